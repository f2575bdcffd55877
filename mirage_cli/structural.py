"""Structural search: the verified μGraphs of a program, here or in worker processes. It needs no torch and no GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.search.expand import Bounds
from mirage_cli.search.generator import Candidate, search
from mirage_cli.target import Target
from mirage_cli.verify.equivalence import Verdict, check_equivalence

VERIFIED = 10
"""μGraphs that are verified, at most."""
VERIFYING = 0.2
"""The part of the budget that the search leaves to verification."""
SLOW_S = 1.0
"""Seconds of verification after which other processes take part, where there may be any: they take about as long to
start."""


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
    context: str = "both"
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
    def stats(self) -> dict[str, Any]:
        """The `search` object of the JSON document."""
        return {
            "classes": self.classes,
            "nodes": self.nodes,
            "enumerated": self.enumerated,
            "pruned": dict(sorted(self.pruned.items())),
            "verified": len(self.plans),
            "rejected": len(self.rejected),
            "stopped": self.stopped,
            "seconds": round(self.seconds, 3),
        }


def search_program(
    program: Program, target: Target, options: Options, interrupted: Callable[[], bool] = lambda: False
) -> Found:
    """Search and verify. Runs without torch; the same seed gives the same result in any process.

    interrupted: asked now and then; true ends the search with what it has.
    """
    start = time.perf_counter()
    lowered = lower(program)
    end = start + options.budget_s

    def out_of_time() -> bool:
        return time.perf_counter() > end or interrupted()

    def time_to_verify() -> bool:
        return time.perf_counter() > end - VERIFYING * options.budget_s or interrupted()

    result = search(
        lowered,
        target,
        bounds=options.bounds,
        prune=options.prune,
        own_algebra_only=options.own_algebra_only,
        deadline=time_to_verify,
    )
    plans: list[Plan] = []
    rejected: list[str] = []
    stopped = result.stopped
    chosen = distinct(result.candidates, result.as_written)
    with Verifier(lowered, [c.graph for c in chosen], options) as verifier:
        for i, c in enumerate(chosen):
            if plans and out_of_time() and c is not result.as_written:
                stopped = "budget"
                continue
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
            return self.futures[i].result()
        start = time.perf_counter()
        found = check_equivalence(self.program, self.graphs[i], self.options.seed)
        self.spent_s += time.perf_counter() - start
        left = range(i + 1, len(self.graphs))
        workers = min(len(left), self.options.workers)
        if self.spent_s > SLOW_S and workers > 1:
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


def search_all(programs: Sequence[Program], target: Target, options: Options) -> Iterator[Found]:
    """Search every program, in order, in worker processes where there are several. Interrupted, it gives what the
    search at hand has found so far, as the last."""
    if options.workers <= 1 or len(programs) <= 1:
        for p in programs:
            yield search_program(p, target, options)
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    workers = min(options.workers, len(programs))
    with ProcessPoolExecutor(workers, context, initializer=_become_searcher, initargs=(stop,)) as pool:
        each = replace(options, workers=options.workers // workers)
        futures = [pool.submit(_search_in_worker, p, target, each) for p in programs]
        for f in futures:
            try:
                yield f.result()
            except KeyboardInterrupt:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                yield f.result()
                return
            except GeneratorExit:
                stop.set()
                raise


_stop: Any = None
"""In a worker process: set when its search should end with what it has."""


def _become_searcher(stop: Any) -> None:
    """A worker leaves Ctrl-C to its parent, and does not outlive it."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are child processes"
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _search_in_worker(program: Program, target: Target, options: Options) -> Found:
    found = search_program(program, target, options, _stop.is_set)
    return replace(found, stopped="interrupted") if _stop.is_set() else found
