"""`mirage bench`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.benchgpus import bench_gpus, check_gpus
from mirage_cli.cli.documents import envelope
from mirage_cli.cli.gatefiles import Case, Summary, tell_github, write_junit
from mirage_cli.cli.progress import progress
from mirage_cli.cli.shared import (
    Budget,
    Context,
    Contexts,
    DatabaseFile,
    Dims,
    Dtype,
    Executor,
    ExecutorOption,
    Scheduler,
    Seed,
    ShardOption,
    TargetName,
    Workers,
    cluster_of,
    command,
    command_line,
    err,
    local_gpu,
    open_store,
    out,
    overrides,
    read,
    shard,
    worker_count,
)
from mirage_cli.errors import BaselineError, EmptyStoreError
from mirage_cli.target.files import write_text

if TYPE_CHECKING:
    from mirage_cli.ir.program import Program
    from mirage_cli.pipeline.bench.benchmark import Document
    from mirage_cli.pipeline.bench.gate import Compared
    from mirage_cli.pipeline.cluster import Cluster
    from mirage_cli.pipeline.session import Session
    from mirage_cli.store.store import Database

MOST_GPUS = 64
"""Of one machine."""
REGRESSED = 4
"""The exit code of `--check` where a row is worse than before."""
COLUMNS = ("before, µs", "now, µs")


@command(
    "mirage bench                                       all that is stored, with eager and torch.compile",
    "mirage bench gqa.yaml --against eager,library",
    "mirage bench specs/*.yaml --json before.json",
    "mirage bench specs/*.yaml --check before.json --threshold 3 --summary github --junit bench.xml",
    "mirage bench mlp.yaml --gpus 2                     split over two GPUs, beside one and the prediction",
)
def bench(
    specs: Annotated[
        list[Path] | None,
        typer.Argument(help="spec files (YAML) [default: all that the database has a kernel for]", metavar="SPEC"),
    ] = None,
    against: Annotated[
        str, typer.Option(help="baselines, comma separated: eager, compile, sdpa, cudnn, library (the fastest of all)")
    ] = "eager,compile",
    json_file: Annotated[Path | None, typer.Option("--json", help="also write all samples to this file")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="also write a page with a table, and a chart beside it as SVG")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="exit with 4 where a kernel is slower than in this file, wrong or missing"),
    ] = None,
    threshold: Annotated[
        float, typer.Option(min=0.0, max=1000.0, help="percent beyond both spreads from which a kernel is slower")
    ] = 5.0,
    summary: Annotated[
        Summary | None, typer.Option("--summary", help="write a summary, and annotations, as this service reads them")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="also write the rows as tests of JUnit's XML")] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=2, max=MOST_GPUS, help="instead: split each program over so many GPUs, and run that"),
    ] = None,
    executor: ExecutorOption = Executor.processes,
    scheduler: Scheduler = None,
    part: ShardOption = None,
    workers: Workers = None,
    budget: Budget = 60.0,
    seed: Seed = 0,
    context: Context = Contexts.both,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: DatabaseFile = None,
) -> None:
    """Compare the best kernels with baselines on this GPU.

    One process, cold inputs, one method, contestants interleaved. With --check it is a gate: exit code 4 where a kernel
    is slower than in an earlier file, wrong, failed or missing. With --gpus, the split that `mirage roofline` finds is
    run with NCCL, each GPU its exported kernels, and compared with one GPU and with the prediction. On a Dask cluster,
    each program is timed by one of the workers that hold a GPU.
    """
    from mirage_cli.cli import benchpage
    from mirage_cli.pipeline.bench import gate
    from mirage_cli.pipeline.bench.benchmark import AGAINST
    from mirage_cli.pipeline.searching import Options
    from mirage_cli.pipeline.session import Session
    from mirage_cli.store.records import identity

    programs = read(specs or (), dim, dtype)
    names = list(dict.fromkeys(n.strip() for n in against.split(",") if n.strip()))
    if unknown := [n for n in names if n not in AGAINST]:
        raise BaselineError(unknown, AGAINST)
    processes = worker_count(workers)
    if gpus:
        check_gpus(gpus, gate=any((check, summary, junit, markdown)), here=executor is Executor.processes)
    wanted = Options(processes, budget_s=budget, seed=seed, context=context.value)
    timed = Timed()
    with ExitStack() as stack:
        cluster = stack.enter_context(cluster_of(executor, scheduler, processes))
        gpu = cluster.gpu(target) if cluster else local_gpu(target, "measure")
        before = gate.read_rows(check, gpu.name, context.value) if check else None
        store = stack.enter_context(open_store(db))
        programs, others = shard(programs or stored_programs(store, overrides(dim), dtype), part)
        with (
            progress() as told,
            Session(gpu, wanted, store, True, told, command_line()) as session,
        ):
            told.count = len(programs)
            if gpus:
                bench_gpus(session, programs, gpus, json_file)
                return
            found = measured_there(cluster, session, programs, names) if cluster else measured(session, programs, names)
            for rows in timed.all(found):
                if json_file:
                    write_text(json_file, json.dumps(envelope("bench", rows, gpu), indent=1))
                if markdown:
                    benchpage.write(markdown, rows, command_line())
    timed.show()
    named = {p.name for p, _ in programs + others} if specs else set[str]()
    elsewhere = {identity(p.name, p.sizes, p.dtype) for p, _ in others}
    earlier = None if before is None else gate.asked_for(before, named, overrides(dim), dtype, elsewhere)
    compared = gate.compare(earlier, timed.rows, threshold)
    tell(compared, summary, junit)
    worse = [c for c in compared if c.problem and before is not None]
    for c in worse:
        err.print(f"{c.name}: {c.problem}", style="red")
    if worse or timed.failures:
        raise typer.Exit(REGRESSED if worse else 1)


@dataclass
class Timed:
    """What was timed so far, and what could not be."""

    rows: list[Document] = field(default_factory=list["Document"])
    failures: list[str] = field(default_factory=list[str])
    interrupted: bool = False

    def all(self, found: Iterable[Document | str]) -> Iterator[list[Document]]:
        """The rows so far, with each that comes. An interrupt ends them."""
        try:
            for row in found:
                if isinstance(row, str):
                    self.failures.append(row)
                else:
                    self.rows.append(row)
                    yield self.rows
        except KeyboardInterrupt:
            self.interrupted = True

    def show(self) -> None:
        """Raises Exit behind an interrupt: what is left out is not missing."""
        from mirage_cli.cli.tables import bench_table, remarks

        out.print(bench_table(self.rows))
        for line in remarks(self.rows):
            err.print(line)
        for problem in self.failures:
            err.print(f"error: {problem}", style="red")
        if self.interrupted:
            raise typer.Exit(130)


def measured(
    session: Session, programs: Sequence[tuple[Program, str]], against: Sequence[str]
) -> Iterator[Document | str]:
    """The row of each program, or why there is none. A program without a kernel is searched and tuned first."""
    from mirage_cli.cli.tables import about_text
    from mirage_cli.pipeline.bench.benchmark import run
    from mirage_cli.pipeline.kept import has_kernel
    from mirage_cli.pipeline.optimize import finish
    from mirage_cli.pipeline.searchers import search_all
    from mirage_cli.store.results import Unfinished

    todo = [p for p, _ in programs if not has_kernel(session, p)]
    if todo:
        session.prepare()
    found = search_all(todo, session.target, session.options)
    for i, (program, text) in enumerate(programs, 1):
        session.progress.program(i, program.name)
        if not has_kernel(session, program):
            result = finish(session, program, text, next(found))
            if isinstance(result, Unfinished):
                yield f"{about_text(result.about)}: {result.problem}"
                continue
        session.progress.doing("timing it with its baselines")
        yield run(session, program, against)


def measured_there(
    cluster: Cluster, session: Session, programs: Sequence[tuple[Program, str]], against: Sequence[str]
) -> Iterator[Document | str]:
    """The same, on a cluster."""
    from mirage_cli.cli.tables import about_text
    from mirage_cli.store.results import Unfinished

    for row in cluster.bench(session, programs, against):
        yield f"{about_text(row.about)}: {row.problem}" if isinstance(row, Unfinished) else row


def tell(compared: Sequence[Compared], summary: Summary | None, junit: Path | None) -> None:
    """What a CI system is told of each row."""
    from mirage_cli.cli.tables import figure

    cases = [Case(c.name, (figure(c.was_us), figure(c.now_us)), c.problem) for c in compared]
    if junit:
        write_junit(junit, "mirage bench", cases)
    if summary:
        tell_github("mirage bench", COLUMNS, cases)


def stored_programs(
    store: Database, sizes: Sequence[Mapping[str, int]], dtype: str | None
) -> list[tuple[Program, str]]:
    """Every program that a kernel is stored for, on any GPU, with its spec's text; those of one of these sizes and of
    this type.

    Raises EmptyStoreError where there is none. A spec that this version cannot read is a warning.
    """
    from mirage_cli.pipeline.kept import stored_program

    found: dict[str, tuple[Program, str]] = {}
    for e in store.list():
        key, has = e.key, dict(e.key.dims)
        spec = store.spec(key.program_hash)
        if e.best is None or spec is None or key.program_hash in found:
            continue
        fits = any(all(has.get(d) == n for d, n in chosen.items()) for chosen in sizes)
        if dtype not in (None, key.dtype) or not fits:
            continue
        program = stored_program(spec[1], spec[0], key, lambda text: err.print(f"warning: {text}", style="yellow"))
        if program is not None:
            found[key.program_hash] = program, spec[1]
    if not found:
        raise EmptyStoreError
    return list(found.values())
