"""Schedules on their way from the proposals to the GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mirage_cli.tune.compilefarm import Compiled, CompileFarm
from mirage_cli.tune.measure import Candidate, Problem
from mirage_cli.tune.trials import Trial


class InFlight:
    """Trials that are being compiled, or were and are not yet timed.

    waiting: all of them, by their keys. ready: of these, what is compiled. compiling_s: until the first was.
    """

    def __init__(self, farm: CompileFarm, problem: Problem) -> None:
        self.farm, self.problem = farm, problem
        self.waiting: dict[str, Trial] = {}
        self.ready: list[Trial] = []
        self.asked_at: float | None = None  # when the first were given to the compilers
        self.compiling_s = 0.0

    def give(self, trials: Mapping[str, Trial], shares: Mapping[str, int]) -> None:
        """Has these compiled, which go by their keys. shares: by μGraph, into how many parts, side by side."""
        self.waiting |= trials
        jobs = [Candidate(key, t.source, shares=shares[t.mugraph]) for key, t in trials.items()]
        self.asked_at = self.asked_at or time.monotonic()
        self.farm.give(jobs, self.problem.inputs, self.problem.outputs)

    def take(self, wait: bool, within_s: float) -> list[tuple[Trial, Compiled]]:
        """What the compilers have done. wait: for some, and no longer than this."""
        found = self.farm.take(wait, within_s)
        if found and not self.compiling_s and self.asked_at:
            self.compiling_s = time.monotonic() - self.asked_at
        return [(self.waiting[key], answer) for key, answer in found]

    def forget(self) -> list[Trial]:
        """Drops what no compiler has begun with, and says what that is."""
        return [self.waiting.pop(key) for key in self.farm.forget()]

    def clear(self) -> None:
        """Drops everything: it may be asked for again."""
        self.farm.drop()
        self.waiting.clear()
        self.ready.clear()
