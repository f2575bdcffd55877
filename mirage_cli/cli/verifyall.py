"""What `mirage verify --all` judges: every stored kernel, written anew, or every exported file of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_cli.cli.bench import stored_programs
from mirage_cli.cli.progress import progress
from mirage_cli.cli.shared import gpu_of, overrides, read, shard
from mirage_cli.errors import EmptyStoreError, MirageError
from mirage_cli.target.files import read_bytes

if TYPE_CHECKING:
    from mirage_cli.ir.program import Program
    from mirage_cli.store.records import Best, Key
    from mirage_cli.store.store import Store
    from mirage_cli.target.gpus import Target
    from mirage_cli.tune.interpreted import Interpreter

MAX_KERNEL_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of one kernel. id: of its μGraph, or the file that it is in."""

    name: str
    id: str
    gpu: str
    ok: bool
    claim: str


def judge_all(
    store: Store,
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
        raise EmptyStoreError
    return found


def judge_stored(
    store: Store, program: Program, seed: int, gpu: Target | None, interpreter: Interpreter
) -> Iterator[Answer]:
    """The stored kernels of a program, of every GPU or of one: the μGraph by the structural and finite-field nets, and
    the text by the numeric one, in the interpreter at reduced sizes."""
    from mirage_cli.pipeline.keys import program_hash

    mine = [(e.key, e.best) for e in store.list() if e.best and e.key.program_hash == program_hash(program)]
    for key, best in mine:
        if gpu is None or gpu_of(key) == gpu.name:
            try:
                ok, claim = judged(store, program, key, best, seed, interpreter)
            except MirageError as error:
                ok, claim = False, str(error).partition("\n")[0]
            yield Answer(name_of(program), best.mugraph, gpu_of(key), ok, claim)


def judged(
    store: Store, program: Program, key: Key, best: Best, seed: int, interpreter: Interpreter
) -> tuple[bool, str]:
    from mirage_cli.pipeline.predicting import judge_small
    from mirage_cli.pipeline.written import written_anew

    written = written_anew(store, program, key, best, seed)
    numeric = judge_small(interpreter, program, written.graph, written.schedule)
    if not numeric.ok:
        return False, f"floating point, in the interpreter: {numeric.problem}"
    error = f"error {numeric.error:.1e}" if numeric.error is not None else "overflows like eager PyTorch"
    other = "; the stored text is not what this version writes" if written.differs else ""
    return True, f"{written.verdict.claim}; {error} at small sizes{other}"


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
    return f"{program.name} {program.dtype} {' '.join(f'{d}={n}' for d, n in program.dims)}"
