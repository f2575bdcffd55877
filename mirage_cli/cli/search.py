"""`mirage search` and `mirage tune`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.documents import emit
from mirage_cli.cli.progress import progress
from mirage_cli.cli.shared import (
    LOCK_FILE,
    TOP,
    Budget,
    Context,
    Contexts,
    DatabaseFile,
    Dims,
    Dtype,
    Executor,
    ExecutorOption,
    Fresh,
    Json,
    LockFile,
    Scheduler,
    Seed,
    ShardOption,
    Specs,
    TargetName,
    Top,
    Workers,
    choose_target,
    cluster_of,
    command,
    command_line,
    err,
    local_gpu,
    open_store,
    out,
    read,
    shard,
    worker_count,
)

if TYPE_CHECKING:
    from mirage_cli.pipeline.locked import Lock
    from mirage_cli.store.results import Result, Unfinished
    from mirage_cli.store.store import Database
    from mirage_cli.target.gpus import Target


@command(
    "mirage search rmsnorm_linear.yaml                  all sizes of a spec",
    "mirage search *.yaml --budget 30 --json > out.json",
    "mirage search gqa.yaml --dim m=8,16 --top 5        two sizes, and why the others lost",
    "mirage search *.yaml --executor dask --scheduler tcp://head:8786",
    "mirage search lora.yaml --target a100              plan for a GPU that is not here",
)
def search(
    specs: Specs,
    workers: Workers = None,
    top: Top = None,
    budget: Budget = 60.0,
    seed: Seed = 0,
    fresh: Fresh = False,
    context: Context = Contexts.both,
    executor: ExecutorOption = Executor.processes,
    scheduler: Scheduler = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="fail where a kernel differs from the one that the lock file pins")
    ] = False,
    lock_file: LockFile = LOCK_FILE,
    no_tune: Annotated[
        bool, typer.Option("--no-tune", help="search and verify only: compile and time nothing")
    ] = False,
    no_prune: Annotated[bool, typer.Option("--no-prune", help="cut nothing by cost (an ablation)")] = False,
    no_decompose: Annotated[
        bool, typer.Option("--no-decompose", help="only the program's own algebra (an ablation)")
    ] = False,
    part: ShardOption = None,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: DatabaseFile = None,
    as_json: Json = False,
) -> None:
    """Find, verify, tune and keep the best kernels.

    They are timed on this machine's GPU, or predicted for the target. What the database can answer is not searched
    again. What an ablation finds is printed, with what it took, and not kept.
    """
    ablation = no_prune or no_decompose
    began = time.monotonic()
    with progress(budget) as told, ExitStack() as stack:  # from here on, it is shown that something is being done
        from mirage_cli.pipeline.keys import keys_of
        from mirage_cli.pipeline.optimize import optimize
        from mirage_cli.pipeline.searching import Options
        from mirage_cli.pipeline.session import Session

        programs, _ = shard(read(specs, dim, dtype), part)
        told.count, processes = len(programs), worker_count(workers)
        lock = lock_of(lock_file) if locked else None
        cluster = stack.enter_context(cluster_of(executor, scheduler, processes))
        chosen, here = cluster.target(target) if cluster else choose_target(target)
        wanted = Options(
            processes,
            top=top or TOP,
            budget_s=budget,
            seed=seed,
            fresh=fresh or ablation,
            tune=not no_tune,
            context=context.value,
            prune=not no_prune,
            own_algebra_only=no_decompose,
        )
        if lock:
            plain = [p for p, _ in programs]
            lock.check_before(plain, (cluster.keys if cluster else keys_of)(plain, chosen, here and wanted.tune))
        store = stack.enter_context(passing_store() if ablation else open_store(db))
        session = stack.enter_context(Session(chosen, wanted, store, here, told, command_line()))
        results, interrupted = collected(
            lambda: cluster.optimize(session, programs) if cluster else optimize(session, programs, began)
        )
    if ablation and not as_json:
        for result in found_of(results):
            out.print(effort(result))
    end("search", results, chosen, as_json, interrupted, top, predicted_for(chosen, here, target), lock)


def lock_of(path: Path) -> Lock:
    from mirage_cli.pipeline.locked import Lock

    return Lock(path)


@contextmanager
def passing_store() -> Generator[Database]:
    """A database for one run: what a worse search found takes no better result's place."""
    with TemporaryDirectory() as folder, open_store(Path(folder) / "mirage.db") as store:
        yield store


def effort(result: Result) -> str:
    """What a search took."""
    from mirage_cli.cli.tables import about_text

    stats = result.search
    end = f"{stats.stopped} after {stats.seconds:.2f} s"
    return f"{about_text(result.about)}: {stats.enumerated} kernels looked at, {end}"


@command(
    "mirage cache merge found_elsewhere.db",
    "mirage tune gated_mlp.yaml --budget 120",
)
def tune(
    specs: Specs,
    workers: Workers = None,
    top: Top = None,
    budget: Budget = 60.0,
    seed: Seed = 0,
    context: Context = Contexts.both,
    executor: ExecutorOption = Executor.processes,
    scheduler: Scheduler = None,
    part: ShardOption = None,
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: DatabaseFile = None,
    as_json: Json = False,
) -> None:
    """Time the stored plans of specs on this GPU.

    Search elsewhere, and tune here; or on the GPUs of a cluster.
    """
    with progress(budget) as told, ExitStack() as stack:
        from mirage_cli.pipeline.optimize import tune
        from mirage_cli.pipeline.searching import Options
        from mirage_cli.pipeline.session import Session

        programs, _ = shard(read(specs, dim, dtype), part)
        told.count, processes = len(programs), worker_count(workers)
        cluster = stack.enter_context(cluster_of(executor, scheduler, processes))
        gpu = cluster.gpu(target) if cluster else local_gpu(target, "tune")
        wanted = Options(processes, top=top or TOP, budget_s=budget, seed=seed, context=context.value)
        store = stack.enter_context(open_store(db))
        session = stack.enter_context(Session(gpu, wanted, store, True, told, command_line()))
        results, interrupted = collected(lambda: (cluster.tune if cluster else tune)(session, programs))
    end("tune", results, gpu, as_json, interrupted, top)


def collected(work: Callable[[], Iterable[Result | Unfinished]]) -> tuple[list[Result | Unfinished], bool]:
    """The results so far, and whether an interrupt ended the work."""
    found: list[Result | Unfinished] = []
    try:
        for result in work():
            found.append(result)  # noqa: PERF402  an interrupt leaves those before it
    except KeyboardInterrupt:
        return found, True
    return found, False


def found_of(results: Sequence[Result | Unfinished]) -> list[Result]:
    from mirage_cli.store.results import Result

    return [r for r in results if isinstance(r, Result)]


def predicted_for(target: Target, here: bool, named: str) -> str:
    """What a table of predictions says of the GPU that was planned for; nothing where it is this machine's."""
    return "" if here else f"predicted for {target.name}" + " (no GPU here)" * (named == "auto")


def end(
    command: str,
    results: Sequence[Result | Unfinished],
    target: Target,
    as_json: bool,
    interrupted: bool,
    top: int | None,
    about: str = "",
    lock: Lock | None = None,
) -> None:
    """Prints results, and what was lost or failed, and picks the exit code. top: whether and how many plans of each are
    shown. Raises LockError where a kernel is another than the locked one."""
    from mirage_cli.cli.tables import about_text, contenders, losses, refusals, results_tables
    from mirage_cli.store.results import Unfinished

    found = found_of(results)
    failed = [r for r in results if isinstance(r, Unfinished)]
    if as_json:
        emit(command, (r.to_json() for r in results), target)
    else:
        for table in results_tables(found, about):
            out.print(table)
        for r in found if top else ():
            out.print(contenders(r))
        for line in [*losses(found), *refusals(found)]:
            out.print(line, soft_wrap=True, markup=False)
    for r in failed:
        err.print(f"error: {about_text(r.about)}: {r.problem}", style="red")
    if interrupted:
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)
    if lock:
        lock.check(found)
    if not any(r.beats_what_was_given for r in found):
        raise typer.Exit(3)
