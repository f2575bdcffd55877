"""Structural search: the verified μGraphs of a program, here or in worker processes. It needs no torch and no GPU.

The search and the verifier are imported when they are first asked: an answer from the database needs neither.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_cli.errors import MirageError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import ROW, merge_axes
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.search.cuts import Bounds
from mirage_cli.store.results import Searched
from mirage_cli.target.gpus import Target
from mirage_cli.verify.verdict import Verdict

if TYPE_CHECKING:
    from mirage_cli.search.generator import Candidate
    from mirage_cli.tune.measure import Context

VERIFIED = 10
"""μGraphs that are verified, at most."""
VERIFYING = 0.2
"""The part of the budget that the search leaves to verification."""
SLOW_S = 1.0
"""Seconds of verification after which other processes take part, where there may be any: they take about as long to
start."""
TUNING = 0.25
"""The part of the budget that the search leaves to tuning, where there is any."""
GRACE_S = 1.5
"""Seconds that a worker process has, once interrupted, to hand over what it has found."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may set. budget_s: for the search and the tuning of one program together. context: in which calls
    are timed (`tune.measure.Context`)."""

    workers: int = 1
    top: int = 5
    budget_s: float = 60.0
    seed: int = 0
    fresh: bool = False
    tune: bool = True
    context: Context = "both"
    prune: bool = True
    own_algebra_only: bool = False
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True)
class Plan:
    """A verified μGraph with the schedule the cost model chose."""

    id: str
    graph: MuGraph
    schedule: Schedule
    predicted_us: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Found:
    """What the structural search of one program gave: verified μGraphs of distinct structure, cheapest first.

    rejected: how many candidates the verifier refused, with one reason each; a right generator gives none.
    """

    plans: tuple[Plan, ...]
    as_written: str
    classes: int
    nodes: int
    enumerated: int
    pruned: dict[str, int]
    rejected: tuple[str, ...]
    stopped: str
    seconds: float

    @property
    def stats(self) -> Searched:
        """The `search` object of the JSON document."""
        return Searched(
            classes=self.classes,
            nodes=self.nodes,
            enumerated=self.enumerated,
            pruned=dict(sorted(self.pruned.items())),
            verified=len(self.plans),
            rejected=len(self.rejected),
            stopped=self.stopped,
            seconds=round(self.seconds, 3),
        )


@dataclass(frozen=True, slots=True)
class Failed:
    """A program whose search, tuning or prediction failed, and why, in one line."""

    problem: str

    @staticmethod
    def of(error: Exception) -> Failed:
        """An error that is no user's own is a bug: its kind and place are said."""
        if isinstance(error, MirageError):
            return Failed(str(error))
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Failed(f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})")


def merged(program: Program, lowered: Program) -> Program:
    """The program with axes that are one as one axis, or as two where a long one is best summed in parts."""
    from mirage_cli.algebra.decompose import summed_in_parts

    found = merge_axes(program)
    if all(found.sizes[axis] <= ROW for axis, _ in found.merged):
        return found
    return merge_axes(program, summed_in_parts(lowered))


Doing = Callable[[str, "float | None"], None]
"""Told what is being done, and the µs of the best plan so far where there is one."""


def search_program(
    program: Program,
    target: Target,
    options: Options,
    interrupted: Callable[[], bool] = lambda: False,
    doing: Doing = lambda _, __: None,
) -> Found:
    """Search and verify. Runs without torch; the same seed gives the same result in any process. The search sees axes
    that are one as one; the verifier compares what it finds with the program as it was written.

    interrupted: asked now and then; true ends the search with what it has.
    """
    from mirage_cli.search.generator import search

    start = time.perf_counter()
    lowered = lower(program)
    budget_s = options.budget_s * (1 - TUNING if options.tune else 1)
    end = start + budget_s

    def out_of_time() -> bool:
        return time.perf_counter() > end or interrupted()

    def time_to_verify() -> bool:
        return time.perf_counter() > end - VERIFYING * budget_s or interrupted()

    result = search(
        lower(merged(program, lowered)),
        target,
        bounds=options.bounds,
        prune=options.prune,
        own_algebra_only=options.own_algebra_only,
        deadline=time_to_verify,
        end=out_of_time,
        looking=lambda count, us: doing(f"searching, {count} kernels looked at", us),
    )
    plans: list[Plan] = []
    rejected: list[str] = []
    stopped = result.stopped
    chosen = distinct(result.candidates, result.as_written)
    with Verifier(lowered, [c.graph for c in chosen], options) as verifier:
        for i, c in enumerate(chosen):
            if plans and c is not result.as_written and (result.stopped == "interrupted" or out_of_time()):
                stopped = "interrupted" if result.stopped == "interrupted" else "budget"
                continue
            doing(f"verifying {i + 1} of {len(chosen)} plans", chosen[0].predicted_us)
            verdict = verifier.verdict(i)
            if verdict.ok:
                plans.append(Plan(c.id, c.graph, c.schedule, c.predicted_us, verdict))
            else:
                rejected.append(f"{c.id}: {verdict}")
    seconds = time.perf_counter() - start
    return Found(
        tuple(plans),
        result.as_written.id,
        result.classes,
        result.nodes,
        result.enumerated,
        dict(result.pruned),
        tuple(rejected),
        stopped,
        seconds,
    )


class Verifier:
    """Verdicts on μGraphs, asked for in their order: worked out one by one, or, where that is slow, side by side."""

    def __init__(self, program: Program, graphs: Sequence[MuGraph], options: Options) -> None:
        self.program, self.graphs, self.options = program, graphs, options
        self.spent_s = 0.0
        self.pool: ProcessPoolExecutor | None = None
        self.futures: dict[int, Future[Verdict]] = {}

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)

    def verdict(self, i: int) -> Verdict:
        if i in self.futures:
            with contextlib.suppress(BrokenProcessPool):  # a process was killed: what is left is verified here
                return self.futures[i].result()
        from mirage_cli.verify.equivalence import check_equivalence

        start = time.perf_counter()
        found = check_equivalence(self.program, self.graphs[i], self.options.seed)
        self.spent_s += time.perf_counter() - start
        left = range(i + 1, len(self.graphs))
        workers = min(len(left), self.options.workers)
        if self.pool is None and self.spent_s > SLOW_S and workers > 1:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(workers, context, initializer=_become_searcher, initargs=(None,))
            tasks = {n: (self.program, self.graphs[n], self.options.seed) for n in left}
            self.futures = {n: self.pool.submit(check_equivalence, *task) for n, task in tasks.items()}
        return found


def distinct(candidates: Sequence[Candidate], as_written: Candidate) -> list[Candidate]:
    """The cheapest candidate of each structure, the cheapest for each number of kernels, and the program as written."""
    found: dict[tuple[object, ...], Candidate] = {}
    for c in candidates:
        found.setdefault(c.shape, c)
    chosen = list(found.values())[:VERIFIED]
    counts = {len(c.graph.kernels) for c in chosen}
    for c in found.values():
        if len(c.graph.kernels) not in counts:
            counts.add(len(c.graph.kernels))
            chosen.append(c)
    return chosen if as_written in chosen else [*chosen, as_written]


def search_all(
    programs: Sequence[Program], target: Target, options: Options, doing: Doing = lambda _, __: None
) -> Iterator[Found | Failed]:
    """Search every program, in order, in worker processes where there are several. Interrupted, it gives what the
    search at hand has found so far, as the last. doing: told of the search at hand, where it is in this process."""
    if options.workers <= 1 or len(programs) <= 1:
        for p in programs:
            yield search_or_fail(p, target, options, doing=doing)
        return
    with _Searchers(programs, target, options) as searchers:
        for i in range(len(programs)):
            yield searchers.result(i)


def search_or_fail(
    program: Program,
    target: Target,
    options: Options,
    interrupted: Callable[[], bool] = lambda: False,
    doing: Doing = lambda _, __: None,
) -> Found | Failed:
    """`search_program`, where a failure of one program must not cost the others their results."""
    try:
        return search_program(program, target, options, interrupted, doing)
    except Exception as error:
        return Failed.of(error)


class _Searchers:
    """The worker processes that search several programs side by side.

    A pool is lost with any of its processes. What it had not finished is then searched one program at a time, each in
    a process of its own: what kills a process is most often that memory is short.
    """

    def __init__(self, programs: Sequence[Program], target: Target, options: Options) -> None:
        self.programs, self.target, self.options = programs, target, options
        self.context = multiprocessing.get_context("spawn")
        self.stop = self.context.Event()
        self.others = multiprocessing.active_children()
        workers = min(options.workers, len(programs))
        self.pool = self.new_pool(workers)
        self.futures = [self.submit(p, options.workers // workers) for p in programs]

    def __enter__(self) -> _Searchers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.stop.set()
        if self.stop.is_set():
            self.kill()
        self.pool.shutdown(cancel_futures=True)  # a pool that is not waited for may be half closed as Python ends

    def new_pool(self, workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(workers, self.context, initializer=_become_searcher, initargs=(self.stop,))

    def submit(self, program: Program, workers: int) -> Future[Found | Failed]:
        try:
            return self.pool.submit(_search_in_worker, program, self.target, replace(self.options, workers=workers))
        except BrokenProcessPool as error:
            lost: Future[Found | Failed] = Future()
            lost.set_exception(error)
            return lost

    def result(self, i: int) -> Found | Failed:
        """Of one program. Raises KeyboardInterrupt where its search does not end within GRACE_S of one."""
        try:
            try:
                return self.futures[i].result()
            except BrokenProcessPool:
                self.pool.shutdown()
                self.pool = self.new_pool(1)
                self.futures[i] = self.submit(self.programs[i], self.options.workers)
                return self.futures[i].result()
        except BrokenProcessPool:
            return Failed("the process that searched it was killed, and killed again when it was searched alone")
        except KeyboardInterrupt:
            self.stop.set()
            with contextlib.suppress(TimeoutError, BrokenProcessPool):
                if isinstance(found := self.futures[i].result(GRACE_S), Found):
                    return found
            raise

    def kill(self) -> None:
        for child in multiprocessing.active_children():
            if child not in self.others:
                child.kill()


_stop: Event | None = None
"""In a worker process: set when its search should end with what it has."""


def _become_searcher(stop: Event | None) -> None:
    """A worker leaves interrupts to its parent, and does not outlive it."""
    global _stop
    _stop = stop
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # which reach the whole group
        signal.signal(sent, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are child processes"
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _search_in_worker(program: Program, target: Target, options: Options) -> Found | Failed:
    stop = _stop
    assert stop is not None, "the process was made a searcher"
    found = search_or_fail(program, target, options, stop.is_set)
    return replace(found, stopped="interrupted") if isinstance(found, Found) and stop.is_set() else found
