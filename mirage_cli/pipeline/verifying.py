"""Verdicts on the plans of a search, here or in worker processes, until time is up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.clock import Clock
from mirage_cli.pipeline.processes import Interrupted, Processes
from mirage_cli.tune.child import ChildDied
from mirage_cli.verify.verdict import Verdict, refused

SLOW_S = 1.0
"""Seconds of verification after which worker processes are started, if there may be several. Starting them takes about
as long."""
BEHIND_S = 30.0
"""Seconds behind the budget that the verification of the cheapest plan and of the program as written may take, half of
them the first: without the second there may be nothing to use, without the first nothing that is worth it."""
BEHIND = 2
"""How many plans that is."""
BESIDE = 0.1
"""The part of the budget that the program as written may take behind it where the cheapest plan is verified."""


class Verifier:
    """Verdicts on μGraphs, asked for in order: worked out one by one here and, once that took SLOW_S or the next would
    take long, in workers, which can be left when time is up.

    The first μGraph is the cheapest plan, the second the program as written: verification of both may take BEHIND_S
    more, until one may be used. When time is up, the other μGraphs are refused by the net "time".
    """

    def __init__(self, program: Program, graphs: Sequence[MuGraph], seed: int, workers: int, clock: Clock) -> None:
        self.program, self.graphs, self.clock = program, graphs, clock
        self.seed, self.workers = seed, workers
        self.spent_s = 0.0
        self.usable = False
        self.processes: Processes | None = None
        self.futures: dict[int, Future[Verdict]] = {}

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        if self.processes is not None:
            self.processes.close()

    def verdict(self, i: int) -> Verdict:
        """An interrupt leaves KEEPING_S for this verdict and those behind it; another one raises KeyboardInterrupt."""
        try:
            return self.settled(i)
        except KeyboardInterrupt:
            self.clock.interrupt()
            return self.settled(i)

    def settled(self, i: int) -> Verdict:
        """Verified here, or by a process that has begun. Where the first ones take long, processes begin with those
        behind them. Refused by `time` where neither is done in time."""
        from mirage_cli.verify.equivalence import check_equivalence, takes_long

        behind_s = BESIDE * self.clock.budget_s if self.usable else BEHIND_S * (i + 1) / BEHIND
        behind_s = behind_s if i < BEHIND else 0.0
        end = partial(self.clock.verification_is_over, behind_s)
        if i in self.futures:
            try:
                return self.futures[i].result(max(0.0, min(self.clock.end_s, self.clock.stop_s) - time.monotonic()))
            except ChildDied:  # verified here instead
                pass
            except TimeoutError:
                return refused("time", "its tests take longer than there is time for")
        start = time.perf_counter()
        found = check_equivalence(self.program, self.graphs[i], self.seed, end=end)
        self.spent_s += time.perf_counter() - start
        self.usable |= found.ok
        left = range(max(i + 1, BEHIND), len(self.graphs))
        workers = min(len(left), self.workers)
        slow = self.spent_s > SLOW_S or (i + 1 in left and takes_long(self.program, self.graphs[i + 1], self.seed))
        if self.processes is None and slow and self.workers > 1 and left and not end():
            self.processes = processes = Processes(workers)
            asked = (self.seed, self.clock.end_s)
            self.futures = {n: processes.submit(_verify_there, self.program, self.graphs[n], *asked) for n in left}
        return found


def _verify_there(_: Interrupted, program: Program, graph: MuGraph, seed: int, end_s: float) -> Verdict:
    """end_s: on the monotonic clock, which all processes of a machine share."""
    from mirage_cli.verify.equivalence import check_equivalence

    return check_equivalence(program, graph, seed, end=lambda: time.monotonic() > end_s)
