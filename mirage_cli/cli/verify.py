"""`mirage verify`: judges what somebody else wrote, or, with --all, every stored kernel or exported file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.bench import stored_programs
from mirage_cli.cli.documents import emit
from mirage_cli.cli.gatefiles import Case, Summary, tell_github, write_junit
from mirage_cli.cli.progress import progress
from mirage_cli.cli.shared import (
    DatabaseFile,
    Dims,
    Dtype,
    Json,
    Seed,
    ShardOption,
    TargetName,
    command,
    out,
    overrides,
    read,
    reading_store,
    shard,
)
from mirage_cli.errors import EmptyStoreError, MirageError
from mirage_cli.target.files import read_bytes

if TYPE_CHECKING:
    from mirage_cli.ir.program import Program
    from mirage_cli.store.records import Best, Key
    from mirage_cli.store.store import Database
    from mirage_cli.target.gpus import Target
    from mirage_cli.tune.interpreted import Interpreter

MAX_KERNEL_BYTES = 1 << 24


@command(
    "mirage verify lora.yaml lora.py --dim m=16    an exported kernel, or one that was changed since",
    "mirage verify lora.yaml plan.txt              a μGraph that was written by hand",
    "mirage verify --all --junit verify.xml        every stored kernel",
    "mirage verify --all lora.yaml --exported kernels/",
)
def verify(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="a spec, and what is judged: a μGraph as text, an exported kernel, or a stored id; with --all, specs "
            "alone",
            metavar="SPEC FILE|ID",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="judge every stored kernel, of these specs or of all, anew")
    ] = False,
    exported: Annotated[
        Path | None,
        typer.Option(
            "--exported", file_okay=False, exists=True, help="with --all: the exported kernels of this folder"
        ),
    ] = None,
    summary: Annotated[
        Summary | None, typer.Option("--summary", help="with --all: a summary, and annotations, for this service")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="with --all: also write tests of JUnit's XML")] = None,
    part: ShardOption = None,
    seed: Seed = 0,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: DatabaseFile = None,
    as_json: Json = False,
) -> None:
    """Judge a μGraph or a kernel against a spec.

    A kernel is a program, and is run.

    With --target, a kernel is also compiled for that GPU.
    """
    from mirage_cli.pipeline.judging import judge_file
    from mirage_cli.target.gpus import find_target

    gpu = None if target == "auto" else find_target(target)
    given = what or []
    if every:
        with reading_store(db) as store:
            answers = judge_all(store, [Path(x) for x in given], exported, part, seed, dim, dtype, gpu)
        tell_all(answers, summary, junit, as_json)
        return
    if len(given) != 2:
        raise typer.BadParameter("name a spec and what is to be judged, or --all")
    spec, file = given
    if Path(spec).suffix == ".py" and Path(file).suffix in (".yaml", ".yml"):
        raise typer.BadParameter("the spec comes first: mirage verify SPEC FILE")
    programs = [p for p, _ in read([Path(spec)], dim, dtype)]
    if re.fullmatch("[0-9a-f]{4,12}", file) and not Path(file).exists():
        with reading_store(db) as store:
            text = "".join(s.mugraph.text for s in store.show(file)[:1])
    else:
        try:
            text = read_bytes(Path(file), MAX_KERNEL_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:
            raise MirageError(f"{file}: {error.strerror if isinstance(error, OSError) else error}") from None
    try:
        answer = judge_file(programs, text, seed, gpu)
    except MirageError as error:
        raise MirageError(f"{file}: {error}") from None
    if as_json:
        emit("verify", [answer])
    else:
        print_verdict(answer)
    if not answer["ok"]:
        raise typer.Exit(1)


def tell_all(answers: Sequence[Answer], summary: Summary | None, junit: Path | None, as_json: bool) -> None:
    """A line for each kernel that was judged, and what a CI system reads of it."""
    from mirage_cli.cli.layout import Column, Sheet

    cases = [Case(a.name, (a.id, a.gpu, a.claim if a.ok else "refused"), None if a.ok else a.claim) for a in answers]
    if as_json:
        emit("verify", (asdict(a) for a in answers))
    else:
        table = Sheet("", (Column("kernel"), Column("μGraph"), Column("GPU"), Column("", prose=True)))
        for a in answers:
            table.add(a.name, a.id, a.gpu, ("" if a.ok else "refused: ") + a.claim)
        out.print(table)
    if junit:
        write_junit(junit, "mirage verify", cases)
    if summary and not as_json:
        tell_github("mirage verify", ("μGraph", "GPU", "verdict"), cases)
    if not all(a.ok for a in answers):
        raise typer.Exit(1)


def print_verdict(answer: Mapping[str, object]) -> None:
    """What is known of a kernel in a line; of one that was refused, a line for each distribution of its data."""
    from mirage_cli.cli.layout import named

    tests = answer.get("distributions")
    if answer["ok"] or not isinstance(tests, dict) or not tests:
        out.print(answer["detail"])
        return
    out.print(f"{answer['claim']}: {sum(x is not None for x in tests.values())} of {len(tests)} distributions fail")
    out.print(named("", ((name, problem or "passes") for name, problem in tests.items())))


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of one kernel. id: of its μGraph, or the file that it is in."""

    name: str
    id: str
    gpu: str
    ok: bool
    claim: str


def judge_all(
    store: Database,
    specs: Sequence[Path],
    exported: Path | None,
    part: str | None,
    seed: int,
    dims: Sequence[str] | None,
    dtype: str | None,
    gpu: Target | None,
) -> list[Answer]:
    """Every kernel of these specs, or of all that are stored. Raises MirageError where there is none."""
    programs = read(specs, dims, dtype) if specs else stored_programs(store, overrides(dims), dtype)
    programs, _ = shard(programs, part)
    from mirage_cli.tune.interpreted import Interpreter

    found: list[Answer] = []
    with progress() as told, Interpreter() as interpreter:
        told.count = len(programs)
        for i, (program, _) in enumerate(programs, 1):
            told.program(i, program.name)
            if exported is None:
                found += judge_stored(store, program, seed, gpu, interpreter)
            else:
                found += judge_files(program, exported, seed, gpu)
    if not found and part is None:
        raise EmptyStoreError(exported)
    return found


def judge_stored(
    store: Database, program: Program, seed: int, gpu: Target | None, interpreter: Interpreter
) -> Iterator[Answer]:
    """The stored kernels of a program, of every GPU or of one: the μGraph by the structural and finite-field nets, and
    the text by the numeric one, in the interpreter at reduced sizes."""
    from mirage_cli.pipeline.keys import program_hash

    mine = [(e.key, e.best) for e in store.list() if e.best and e.key.program_hash == program_hash(program)]
    for key, best in mine:
        if gpu is None or key.gpu_name == gpu.name:
            try:
                ok, claim = judged(store, program, key, best, seed, interpreter)
            except MirageError as error:
                ok, claim = False, str(error).partition("\n")[0]
            yield Answer(name_of(program), best.mugraph, key.gpu_name, ok, claim)


def judged(
    store: Database, program: Program, key: Key, best: Best, seed: int, interpreter: Interpreter
) -> tuple[bool, str]:
    from mirage_cli.pipeline.predicting import judge_small
    from mirage_cli.pipeline.written import written_anew

    written = written_anew(store, program, key, best, seed)
    numeric = judge_small(interpreter, program, written.graph, written.schedule)
    if not numeric.ok:
        return False, f"floating point, in the interpreter: {numeric.problem}"
    other = "; the stored text is not what this version writes" if written.differs else ""
    return True, f"{written.verdict.claim}; {numeric.error_text} at small sizes{other}"


def judge_files(program: Program, folder: Path, seed: int, gpu: Target | None) -> Iterator[Answer]:
    """The exported files of a folder that define the program's function, and are made for its tensors."""
    from mirage_cli.pipeline.judging import defines, judge_file

    for path in sorted(folder.glob("*.py")):
        try:
            text = read_bytes(path, MAX_KERNEL_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:
            raise MirageError(f"{path}: {error}") from None
        if not defines(program, text):
            continue
        answer = judge_file([program], text, seed, gpu)
        yield Answer(name_of(program), path.name, gpu.name if gpu else "", bool(answer["ok"]), str(answer["claim"]))


def name_of(program: Program) -> str:
    from mirage_cli.ir.program import title

    return title(program.name, program.dtype, program.dims)
