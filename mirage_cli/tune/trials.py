"""What a tuning run tries, and what it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.tune.measure import Failure, Judged, Timing


@dataclass(frozen=True, slots=True)
class Trial:
    """One schedule of one μGraph with what was measured of it. `timing` is None where it failed before being timed.

    pace: how much slower the GPU was than when the first schedules were timed (`tune.pace`).
    """

    mugraph: str
    schedule: Schedule
    source: str
    timing: Timing | None = None
    failure: str | None = None
    pace: float = 1.0

    @property
    def key(self) -> str:
        return key_of(self.mugraph, self.schedule)

    @property
    def us(self) -> float:
        return self.timing.median_us if self.timing else float("inf")

    @property
    def paced_us(self) -> float:
        """By which schedules that were timed at different times compare."""
        return self.us / self.pace

    @property
    def mean_us(self) -> float:
        return self.timing.mean_us if self.timing else float("inf")


def key_of(mugraph: str, schedule: Schedule) -> str:
    return f"{mugraph}\n{schedule}"


class Trials(dict[str, Trial]):
    """The trials of a run by their keys."""

    def leaders(self) -> list[Trial]:
        """Those that were timed, the fastest first."""
        return sorted((t for t in self.values() if t.timing), key=lambda t: t.paced_us)

    @property
    def best_us(self) -> float:
        return min((t.paced_us for t in self.values()), default=float("inf"))


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best of an earlier run. It is no trial: only the finals know of it."""

    mugraph: str
    graph: MuGraph
    schedule: Schedule


@dataclass(slots=True)
class Tuned:
    """What tuning found: the best finalist, all trials, and how the time went.

    finalists: with their careful timings, fastest first; among them the incumbent, if it is right.
    found: the first of them that is a trial.
    incumbent: as it came out of the finals, with its timing or why it has none.
    near: others that are right, for dynamic sizes near the tuned ones.
    variants: what is right too and overlaps in another way, for models.
    phases: seconds of each kind of work; schedules are chosen while others are timed.
    """

    best: Trial | None
    verdict: Judged | None
    trials: list[Trial]
    finalists: list[Trial]
    rejected: list[tuple[Trial, Judged]]
    baselines: dict[str, Timing | Failure]
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    stopped: str = "exhausted"
    found: Trial | None = None
    incumbent: Trial | None = None
    near: Sequence[Trial] = ()
    variants: Sequence[tuple[Trial, Judged]] = ()
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def ranked(self) -> list[Trial]:
        """The finalists, and behind them the fastest trial of each μGraph that has none among them."""
        ranked = list(self.finalists)
        for t in sorted(self.trials, key=lambda t: t.us):
            if t.timing and all(t.mugraph != x.mugraph for x in ranked):
                ranked.append(t)
        return ranked

    @property
    def lost(self) -> list[tuple[Trial, Judged, float]]:
        """What was refused and took less than the best, by more than its spread, with the µs that it would take beside
        the best as that was timed at the end: the fastest of each μGraph, the fastest first."""
        kept = [(t.mugraph, t.schedule) for t in self.finalists]
        spread_us = self.best.timing.spread_us if self.best and self.best.timing else 0.0
        fastest: dict[str, tuple[Trial, Judged, float]] = {}
        for t, verdict in sorted(self.rejected, key=lambda r: r[0].paced_us):
            us, best_us = self.beside_best(t)
            if us < best_us - spread_us and (t.mugraph, t.schedule) not in kept:
                fastest.setdefault(t.mugraph, (t, verdict, us))
        return list(fastest.values())

    def beside_best(self, trial: Trial) -> tuple[float, float]:
        """The µs of a trial, had the GPU been as fast as it was when the best was timed at the end, and of the best."""
        if self.best is None:
            return trial.us, float("inf")
        place = self.best.mugraph, self.best.schedule
        own = next((t for t in self.trials if (t.mugraph, t.schedule) == place and t.timing), None)
        return (trial.us if own is None else trial.paced_us * self.best.us / own.paced_us), self.best.us
