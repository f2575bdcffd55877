"""What the commands share: the application, the streams, the options, and how specs and databases are opened."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mirage_cli import __version__
from mirage_cli.errors import NothingForGpuError, NothingStoredError, OtherGpuError
from mirage_cli.target.knobs import MAX_SEED, MAX_WORKERS

if TYPE_CHECKING:
    from mirage_cli.ir.program import Program
    from mirage_cli.pipeline.cluster import Cluster
    from mirage_cli.store.records import Best, Key, Shown
    from mirage_cli.store.store import Database
    from mirage_cli.target.gpus import Target

app = typer.Typer(
    help="Search for the fastest verified Triton kernel of a tensor program.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="\b\nExamples:\n"
    "  mirage init norm                 a spec to start from: norm.yaml\n"
    "  mirage search norm.yaml          find, verify and tune its kernels\n"
    "  mirage explain norm.yaml         why it is this one\n"
    "  mirage export norm.yaml -o norm.py\n"
    "  mirage help lang                 what a spec may say",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Command = Callable[..., None]
T = TypeVar("T")


def command(*examples: str, group: typer.Typer = app, name: str | None = None) -> Callable[[Command], Command]:
    """A command, whose help ends with these examples: each what it does and, behind two spaces, the command line."""
    lines = "\n".join(f"  {example}" for example in examples)
    return group.command(name, epilog=f"\b\nExamples:\n{lines}" if examples else None)


# Text is printed as it is: nothing in it is markup or an emoji, no path is broken.
PICTURES = dict.fromkeys(range(0x7F, 0xA0), 0xFFFD) | {c: 0x2400 + c for c in range(32) if c not in b"\t\n"}
"""Control characters, and what is printed for them: names from a file or a database may have any."""


class HarmlessConsole(Console):
    """One whose texts cannot tell the terminal anything: only the styles can."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for s in super().render(renderable, options):
            yield s if s.control else Segment(s.text.translate(PICTURES), s.style)


out = HarmlessConsole(soft_wrap=True, markup=False, emoji=False, highlight=False)
err = HarmlessConsole(soft_wrap=True, markup=False, emoji=False, highlight=False, stderr=True)

MAX_BUDGET_S = 1e9
"""A generation, and a number that JSON has."""
MAX_SIZES = 256
"""Combinations of sizes of one command line."""
MAX_DIGITS = 18
"""Of a size; the spec says which sizes are too large."""

Specs = Annotated[list[Path], typer.Argument(help="spec files (YAML)", metavar="SPEC")]
OneSpec = Annotated[Path, typer.Argument(help="a spec file (YAML)", metavar="SPEC")]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        help="sizes to use instead of the spec's: NAME=SIZE, or NAME=SIZE,SIZE for each of several",
        metavar="NAME=SIZE",
    ),
]
Dtype = Annotated[str | None, typer.Option(help="element type of inputs and outputs instead of the spec's")]
TargetName = Annotated[
    str, typer.Option("--target", help="GPU to plan for: auto (this machine's, else h100), h200, a100, ..., sm_90")
]
DatabaseFile = Annotated[
    Path | None, typer.Option("--db", help="the database [default: $MIRAGE_DB, else the cache directory]")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document and nothing else")]
Workers = Annotated[
    int | None, typer.Option(min=1, max=MAX_WORKERS, help="processes to search and compile with [default: the cores]")
]
Budget = Annotated[
    float, typer.Option(min=0.0, max=MAX_BUDGET_S, help="seconds for each program, search and tuning together")
]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="seed of every random choice")]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="search and tune anew: of the database, only what won at other sizes and the best kernel, to time the new "
        "one against, are used",
    ),
]


ShardOption = Annotated[
    str | None,
    typer.Option("--shard", help="only every N-th program, from the I-th on: N machines run 1/N to N/N", metavar="I/N"),
]
MAX_SHARDS = 10_000
LockFile = Annotated[Path, typer.Option("--lock-file", help="the lock file", metavar="FILE")]
LOCK_FILE = Path("mirage.lock")


class Contexts(StrEnum):
    """The values of --context."""

    both = "both"
    chain = "chain"
    alone = "alone"


class Executor(StrEnum):
    """The values of --executor."""

    processes = "processes"
    dask = "dask"


ExecutorOption = Annotated[
    Executor, typer.Option("--executor", help="where to work: processes of this machine, or a Dask cluster")
]
Scheduler = Annotated[
    str | None,
    typer.Option(help="of Dask: the scheduler's address [default: --workers processes here]", metavar="ADDRESS"),
]
Context = Annotated[
    Contexts,
    typer.Option(
        help="how calls are timed: in a chain of each other, alone (behind a kernel that knows nothing of overlap), or "
        "both (the geometric mean)"
    ),
]
MOST_TOP = 1000
TOP = 5
Top = Annotated[
    int | None,
    typer.Option(
        min=1, max=MOST_TOP, help="show so many plans of each program, and why each lost [default: the best; 5 in JSON]"
    ),
]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="print the version")] = False
) -> None:
    """Search for the fastest verified Triton kernel of a tensor program."""
    if version:
        out.print(__version__)
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        raise typer.Exit(2)


def overrides(dims: Sequence[str] | None) -> list[dict[str, int]]:
    """`--dim` options as the sizes to use: a mapping for each combination. Raises typer.BadParameter."""
    sizes: dict[str, list[int]] = {}
    for text in dims or ():
        name, _, several = text.partition("=")
        for size in several.split(","):
            if not name or not re.fullmatch(f"[0-9]{{1,{MAX_DIGITS}}}", size) or int(size) < 1:
                raise typer.BadParameter(f"--dim takes NAME=SIZE, or NAME=SIZE,SIZE, with positive sizes, not {text!r}")
            if int(size) not in sizes.setdefault(name, []):
                sizes[name].append(int(size))
    if (count := prod(map(len, sizes.values()))) > MAX_SIZES:
        raise typer.BadParameter(f"--dim gives {count} combinations of sizes; at most {MAX_SIZES} are taken")
    return [dict(zip(sizes, chosen, strict=True)) for chosen in product(*sizes.values())]


def shard(programs: Sequence[T], part: str | None) -> tuple[list[T], list[T]]:
    """Those of a shard, and those of the others. Raises typer.BadParameter."""
    if part is None:
        return list(programs), []
    match = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", part)
    if match is None or not 1 <= (number := int(match[1])) <= (count := int(match[2])) <= MAX_SHARDS:
        raise typer.BadParameter(f"--shard takes I/N, such as 1/4, not {part!r}")
    mine = [p for i, p in enumerate(programs) if i % count == number - 1]
    return mine, [p for i, p in enumerate(programs) if i % count != number - 1]


def read(paths: Sequence[Path], dims: Sequence[str] | None, dtype: str | None) -> list[tuple[Program, str]]:
    """The programs of these specs, one for each instance or `--dim`, each with its spec's text. Warnings go to
    stderr."""
    from mirage_cli.spec.reader import load_spec

    found: list[tuple[Program, str]] = []
    for path in paths:
        spec = load_spec(path)
        for warning in spec.warnings:
            err.print(str(warning), style="yellow")
        found += [(p, spec.text) for sizes in overrides(dims) for p in spec.programs(sizes or None, dtype)]
    return found


def open_store(db: Path | None) -> Database:
    """The database, to write to; made where there is none."""
    from mirage_cli.store.store import Database, default_path

    return Database(db or default_path(), warn=warn)


def reading_store(db: Path | None) -> Database:
    """The database, to read: the file is not changed, and never made. One that is named has to be there; without the
    user's own, nothing is stored yet. Raises StoreError."""
    from mirage_cli.store.store import Database, default_path

    path = db or default_path()
    return Database.reading(path, warn=warn) if db or path.exists() else Database(":memory:", called=path, warn=warn)


def warn(text: str) -> None:
    err.print(f"warning: {text}", style="yellow")


def print_text(text: str) -> None:
    """Prints a text that may be a file's: unchanged, but where it would tell the terminal something."""
    sys.stdout.write(text.translate(PICTURES) if sys.stdout.isatty() else text)


def choose_target(name: str) -> tuple[Target, bool]:
    """`target.gpus.chosen_target`, imported when a command runs."""
    from mirage_cli.target.gpus import chosen_target

    return chosen_target(name)


def local_gpu(name: str, what: str) -> Target:
    """This machine's GPU, to measure on. Raises OtherGpuError where it is not the one that `name` names."""
    target, here = choose_target(name)
    if here:
        return target
    local, has_one = choose_target("auto")
    raise OtherGpuError(what, local.name if has_one else None, target.name)


@contextmanager
def cluster_of(executor: Executor, scheduler: str | None, workers: int) -> Generator[Cluster | None]:
    """The cluster to work on; None for this machine's own processes. Of a local one, one process holds the GPU."""
    if executor is Executor.processes:
        if scheduler is not None:
            raise typer.BadParameter("--scheduler is of --executor dask")
        yield None
        return
    from mirage_cli.pipeline.cluster import connected

    _, has_gpu = choose_target("auto")
    with connected(scheduler, workers, gpus=int(has_gpu)) as cluster:
        yield cluster


def worker_count(workers: int | None) -> int:
    from mirage_cli.target.knobs import WORKERS

    return workers or WORKERS.value()


def command_line() -> str:
    return shown("mirage " + " ".join(sys.argv[1:]))


def shown(text: str) -> str:
    """A text that every file can hold, on one line: bytes of a path that are not UTF-8 are spelled out."""
    return text.encode(errors="backslashreplace").decode().translate(PICTURES | {9: 0x2409, 10: 0x240A})


class StoredBest(NamedTuple):
    """The best kernel that is stored under a key."""

    key: Key
    best: Best


def best_of(
    store: Database, path: Path, dims: Sequence[str] | None, dtype: str | None, target: str
) -> tuple[Program, Key, Best]:
    """The best stored kernel for a spec: of the first size that has one, as `chosen_of` takes it. What else there was
    to choose from is said on stderr. Raises NothingStoredError."""
    programs = [p for p, _ in read([path], dims, dtype)]
    stored = stored_for(store, programs, target)
    if not stored:
        raise nothing_stored(store, programs, target)
    first, *others = stored
    program = programs[first]
    if others:
        tell_choice(program.name, changed(programs, first), [changed(programs, i) for i in others], "--dim")
    chosen = chosen_of(stored[first], target)
    tell_gpu(program.name, chosen.key, [e.key for e in stored[first]], target)
    return program, chosen.key, chosen.best


def bests_of(
    store: Database, path: Path, dims: Sequence[str] | None, dtype: str | None, target: str
) -> list[tuple[Program, Key, Best]]:
    """The best stored kernel for each size of a spec that has one, all of one GPU. What is missing is said on stderr.
    Raises NothingStoredError."""
    programs = [p for p, _ in read([path], dims, dtype)]
    found = of_one_gpu(store, programs, target)
    if not found:
        raise nothing_stored(store, programs, target)
    if missing := [changed(programs, i) for i in range(len(programs)) if i not in found]:
        gpu = next(iter(found.values())).key.gpu_name
        served = "which the kernels of other sizes serve" if programs[0].dynamic else "which the file refuses"
        warn(f"{programs[0].name}: nothing is stored for {gpu} at {', '.join(missing)}, {served}")
    return [(programs[i], e.key, e.best) for i, e in found.items()]


def of_one_gpu(store: Database, programs: Sequence[Program], target: str) -> dict[int, StoredBest]:
    """The best stored kernel of each program that has one, by the program's number, all of one GPU: that of the first,
    as `chosen_of` takes it. Which GPU it is is said on stderr, where none was named."""
    stored = stored_for(store, programs, target)
    if not stored:
        return {}
    first = next(iter(stored))
    taken = chosen_of(stored[first], target).key
    tell_gpu(programs[first].name, taken, [e.key for e in stored[first]], target)
    mine = {i: [e for e in entries if e.key.gpu_name == taken.gpu_name] for i, entries in stored.items()}
    return {i: chosen_of(entries, target) for i, entries in mine.items() if entries}


def stored_for(store: Database, programs: Sequence[Program], target: str) -> dict[int, list[StoredBest]]:
    """The best kernels that are stored, by the number of the program, for the GPU that is named."""
    from mirage_cli.pipeline.keys import program_hash
    from mirage_cli.target.gpus import find_target

    named = None if target == "auto" else find_target(target).name
    entries = [
        StoredBest(e.key, e.best) for e in store.list() if e.best is not None and named in (None, e.key.gpu_name)
    ]
    hashes = [program_hash(p) for p in programs]
    return {i: mine for i, h in enumerate(hashes) if (mine := [e for e in entries if e.key.program_hash == h])}


def nothing_stored(store: Database, programs: Sequence[Program], target: str) -> NothingStoredError:
    """That none of these has a kernel for the GPU that is named; for which GPUs, or at which sizes, there are some."""
    first = programs[0]
    others = {e.key.gpu_name for entries in stored_for(store, programs, "auto").values() for e in entries}
    elsewhere = [] if others else sizes_stored(store, first)
    gpu = "" if target == "auto" else target
    return NothingStoredError(first.name, first.sizes, gpu, sorted(others), elsewhere)


def sizes_stored(store: Database, program: Program) -> list[str]:
    """The sizes at which kernels are stored of specs that have the program's name and axes: those that differ from the
    program's, as text."""
    own = program.sizes
    named = (dict(e.key.dims) for e in store.list() if e.best is not None and e.spec == program.name)
    alike = (dims for dims in named if dims.keys() == own.keys() and dims != own)
    return sorted({" ".join(f"{d}={n}" for d, n in dims.items() if n != own[d]) for dims in alike})


def chosen_of(entries: Sequence[StoredBest], target: str) -> StoredBest:
    """Of one program's: this machine's GPU before others, measured before predicted. All commands that take
    stored kernels have this rule."""
    planned, here = choose_target(target)
    return min(
        entries,
        key=lambda e: (
            here and e.key.gpu_name != planned.name,
            e.best.status != "measured",
            e.key.gpu_name != planned.name,
            e.best.time_us or 0.0,
        ),
    )


def shown_for(store: Database, id: str, target: str) -> tuple[Shown, ...]:
    """What is stored of a μGraph, or under a key, for the GPU that `target` names; or, where that is "auto", for all,
    this machine's first. Raises UnknownIdError, AmbiguousIdError, NothingForGpuError."""
    from mirage_cli.target.gpus import find_target

    found = store.show(id)
    if target != "auto":
        named = find_target(target).name
        mine = tuple(s for s in found if s.key.gpu_name == named)
        if found and not mine:
            raise NothingForGpuError(id, named, sorted({s.key.gpu_name for s in found}))
        return mine
    planned, here = choose_target(target)
    measured = [any(m.median_us is not None for m in s.measurements) for s in found]
    other = [s.key.gpu_name != planned.name for s in found]
    order = sorted(range(len(found)), key=lambda i: (here and other[i], not measured[i], other[i]))
    return tuple(found[i] for i in order)


def tell_gpu(name: str, taken: Key, among: Iterable[Key], target: str) -> None:
    """Says on stderr which GPU's entry was taken, where none was named and it might have been another's."""
    planned, _ = choose_target("auto")
    rest = sorted({x.gpu_name for x in among} - {taken.gpu_name})
    if target == "auto" and (rest or taken.gpu_name != planned.name):
        tell_choice(name, f"the kernel for {taken.gpu_name}", rest, "--target")


def changed(programs: Sequence[Program], i: int) -> str:
    """The sizes of a program that are not the same in all of them."""
    return " ".join(f"{d}={n}" for d, n in programs[i].sizes.items() if any(p.sizes.get(d) != n for p in programs))


def tell_choice(name: str, taken: str, others: Sequence[str], option: str) -> None:
    rest = f"; also stored: {', '.join(others)} (choose with {option})" if others else f" ({option} names another)"
    err.print(f"{name}: taking {taken}{rest}", style="yellow")
