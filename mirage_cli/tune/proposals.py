"""The schedules that are worth a trial: the first of each μGraph, then those of which a surrogate expects most."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any  # what `once` has

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.once import once
from mirage_cli.ir.schedule import Schedule
from mirage_cli.target.gpus import Target
from mirage_cli.tune.changes import ahead_of_time, crossings, in_groups, neighbours, through_descriptors
from mirage_cli.tune.price import dearest_kernel, kernels_us, total_us, totals_us
from mirage_cli.tune.space import first_schedules, fitted, other_blocks
from mirage_cli.tune.surrogate import Known, Point, choose, distinct
from mirage_cli.tune.trials import Trial, Trials, key_of
from mirage_cli.tune.trust import Trust

STARTS = 20
"""The first schedules of each μGraph, from which the surrogate may choose as from others."""
AHEAD_STARTS = 4
"""And so many of each whose kernels all start ahead of time, as the winners do at 18 of 24 sizes. Of the best μGraph,
the best schedule and the best of these are also tried through descriptors, which winners use at 8 of 24 sizes."""
NEAR = 1.2
"""A μGraph that is predicted to take so many times the best is not among the first: the surrogate may choose it."""
BEAM = 6
"""Schedules of each μGraph around which further ones are looked for."""
LEADING = 3
"""Of those, the ones from which schedules two changes away are drawn."""
FARTHER = 6
"""Schedules one change away that are looked around in turn, of all μGraphs together."""
LARGE = 0.15
"""The part of a μGraph's time from which a kernel is also tried with blocks far from those of the best schedule."""
OTHER_BLOCKS = 8
"""So many of them."""
HOPELESS = 1.35
"""A μGraph whose best schedule takes this much longer than the best of all is given up."""

BEHIND = 3.0
"""A program as written that is predicted to take so many times the best comes behind the best of each μGraph."""
GUESSES = 12
"""Schedules that the surrogate names at once, whenever fewer than that are on their way: what is named later rests on
more timings, and compilers are idle where fewer are on their way."""


class Proposals:
    """Of schedules of these μGraphs, on what the trials so far have shown. trust: what it excludes is not proposed."""

    def __init__(
        self, graphs: Mapping[str, MuGraph], target: Target, trials: Trials, seed: int, trust: Trust | None = None
    ) -> None:
        self.graphs, self.target, self.trials, self.trust = graphs, target, trials, trust or Trust()
        self.starts: dict[str, list[Point]] = {}
        self.near: dict[str, list[Point]] = {}
        self.worked_out: dict[Any, Any] = {}  # as `once` has it
        self.predictions: dict[str, float] = {}
        self.features: Known = {}
        self.rng = random.Random(seed)

    def first(self, as_written: str, hints: Sequence[tuple[str, Schedule]]) -> list[tuple[str, Schedule]]:
        """In this order: the program as written, unless it is far `BEHIND`; what won at other sizes; the cost model's
        best of each μGraph that is `NEAR`; that of the best μGraph in other ways (`varied`)."""
        graph = self.graphs.get(as_written)
        sure = [(as_written, s) for s in (first_schedules(graph, self.target, 1) if graph else [])]
        won = [(g, fitted(self.graphs[g], s, self.target)) for g, s in hints if g in self.graphs]
        first = [(g, s) for g, s in won if s is not None]
        best = self.nearest([(g, s) for g in self.graphs for s in self.starting(g, 1)])
        others = [(g, x) for g, s in best[:1] for x in self.varied(g, s)]
        if self.is_behind(sure, best):
            ordered = [*first, *(pair for pair in best if pair[0] != as_written), *sure, *others]
        else:
            ordered = [*sure, *first, *best, *others]
        return [pair for pair in ordered if not self.trust.excludes(*pair)]

    def is_behind(self, some: Sequence[tuple[str, Schedule]], others: Sequence[tuple[str, Schedule]]) -> bool:
        """Whether the first of some is predicted to take `BEHIND` times the best of the others."""
        if not some:
            return False
        own_us, *us = (total_us(self.graphs[g], s, self.target) for g, s in (some[0], *others))
        return own_us > BEHIND * min(us, default=math.inf)

    def nearest(self, some: Sequence[tuple[str, Schedule]]) -> list[tuple[str, Schedule]]:
        """Those that are predicted to take less than `NEAR` times the best of them, the best first."""
        us = [total_us(self.graphs[g], s, self.target) for g, s in some]
        order = sorted(range(len(some)), key=us.__getitem__)
        return [some[i] for i in order if us[i] <= NEAR * us[order[0]]]

    def varied(self, g: str, best: Schedule) -> list[Schedule]:
        """A schedule, and the best ahead of time, through descriptors; in front of these the first of them in groups,
        or the schedule where there is none."""
        graph, target = self.graphs[g], self.target
        some = [best, *ahead_of_time(graph, best, target, 1)]
        boxes = [x for s in some if (x := through_descriptors(graph, s, target)) is not None]
        grouped = [x for s in [*boxes, best][:1] if (x := in_groups(graph, s, target)) is not None]
        return [*grouped, *boxes]

    def starting(self, g: str, count: int) -> list[Schedule]:
        """The cost model's first schedules of a μGraph; by float32 arithmetic where those are distrusted that multiply
        on the matrix units."""
        some = first_schedules(self.graphs[g], self.target, count)
        if any(self.trust.excludes(g, s) for s in some):
            return first_schedules(self.graphs[g], self.target, count, by_arithmetic=True)
        return some

    def first_points(self, g: str) -> list[Point]:
        """The cost model's first schedules of a μGraph, and its best that start ahead of time."""
        if g not in self.starts or any(self.trust.excludes(g, p.schedule) for p in self.starts[g]):
            graph, target = self.graphs[g], self.target
            some = self.starting(g, STARTS)
            some += ahead_of_time(graph, some[0], target, AHEAD_STARTS) if some else []
            self.starts[g] = self.points(g, some)
        return self.starts[g]

    def points(self, g: str, schedules: Sequence[Schedule]) -> list[Point]:
        """With their predicted times."""
        graph = self.graphs[g]
        us = totals_us(graph, schedules, self.target) if schedules else []
        return [Point(g, s, float(x)) for s, x in zip(schedules, us, strict=True)]

    def promising(self, waiting: Iterable[Trial]) -> list[tuple[str, Schedule]]:
        """What the surrogate expects most of. waiting: trials to come."""
        limit = HOPELESS * self.trials.best_us
        timed: dict[str, list[Trial]] = {}
        for t in self.trials.leaders():
            timed.setdefault(t.mugraph, []).append(t)
        hopeful = {g: timed.get(g, []) for g in self.graphs if g not in timed or timed[g][0].paced_us <= limit}
        taken: set[Hashable] = {(t.mugraph, t.schedule) for t in (*self.trials.values(), *waiting)}
        pool = distinct((p for p in self.pool(hopeful) if not self.trust.excludes(p.graph, p.schedule)), taken)
        tried = [p for p in self.tried() if p.predicted_us < float("inf")]
        known = [p for p in tried if not self.trust.excludes(p.graph, p.schedule)]  # others fail for what these lack
        shares = {g: self.shares(g, trials) for g, trials in hopeful.items()}
        chosen = choose(known, pool, GUESSES, shares, self.features)
        return [(pool[i].graph, pool[i].schedule) for i in chosen]

    def shares(self, g: str, trials: Sequence[Trial]) -> list[float]:
        """Of each kernel, by name: its part of the time of the best schedule, by the cost model; none where that has
        no time for it."""
        first = [trials[0].schedule] if trials else [p.schedule for p in self.first_points(g)]
        schedule = first[0] if first else Schedule()
        us = kernels_us(self.graphs[g], schedule, self.target) if schedule.kernels else {}
        total_us = sum(us.values())
        return [us[name] / total_us for name in sorted(us)] if math.isfinite(total_us) else []

    def pool(self, hopeful: Mapping[str, Sequence[Trial]]) -> list[Point]:
        """Of these μGraphs, each with its trials from the best on: the cost model's first schedules, those one change
        from the best, some two changes away, and the best with other blocks."""
        points: list[Point] = []
        farther: list[tuple[str, Schedule]] = []
        for g, trials in hopeful.items():
            points += self.first_points(g)
            if not trials:
                continue
            if len(trials[0].schedule.kernels) > 1:
                points += self.crossed(g, trials)
            points += self.with_other_blocks(g, trials[0].schedule)
            near = self.around(g, [t.schedule for t in self.centres(g, trials)])
            points += [p for some in near for p in some]
            farther += [(g, p.schedule) for some in near[:LEADING] for p in some]
        drawn: dict[str, list[Schedule]] = {}
        for g, s in self.rng.sample(farther, min(FARTHER, len(farther))):
            drawn.setdefault(g, []).append(s)
        points += [p for g, schedules in drawn.items() for some in self.around(g, schedules) for p in some]
        return points

    @once
    def with_other_blocks(self, g: str, best: Schedule) -> list[Point]:
        """The best schedule of a μGraph with other blocks of each large kernel in turn."""
        us = kernels_us(self.graphs[g], best, self.target)
        large = [name for name, own in us.items() if own >= LARGE * sum(us.values())]
        some = [s for name in large for s in other_blocks(self.graphs[g], best, self.target, name, OTHER_BLOCKS)]
        return [p for p in self.points(g, some) if math.isfinite(p.predicted_us)]

    def crossed(self, g: str, trials: Sequence[Trial]) -> list[Point]:
        """The best trials with each kernel in turn as other trials have it: for each kernel, the best that differ in
        it."""
        others: dict[str, Schedule] = {}
        for name in trials[0].schedule.kernels:
            distinct_in = {t.schedule.kernels[name]: t.schedule for t in reversed(trials)}
            best = sorted(distinct_in.values(), key=lambda s: self.trials[key_of(g, s)].paced_us)
            others |= {str(s): s for s in best[:BEAM]}
        best = [t.schedule for t in trials[:LEADING]]
        return [Point(g, s, us) for us, s in crossings(self.graphs[g], best, [*others.values()], self.target)]

    def centres(self, g: str, trials: Sequence[Trial]) -> list[Trial]:
        """The best trials, then the best with other block sizes of the dearest kernel: a gain may need two changes."""
        best = list(trials[:BEAM])
        if not trials[0].schedule.kernels:
            return best
        kernel = dearest_kernel(self.graphs[g], trials[0].schedule, self.target)
        seen = {t.schedule.kernels[kernel].tiles for t in best}
        others: list[Trial] = []
        for t in trials[BEAM:]:
            tiles = t.schedule.kernels[kernel].tiles
            if len(others) < BEAM and tiles not in seen:
                seen.add(tiles)
                others.append(t)
        return best + others

    def around(self, g: str, schedules: Sequence[Schedule]) -> list[list[Point]]:
        """For each of these the schedules one change away."""
        new = {key: s for s in schedules if (key := key_of(g, s)) not in self.near}
        for key, near in zip(new, neighbours(self.graphs[g], [*new.values()], self.target), strict=True):
            self.near[key] = [Point(g, s, us) for us, s in near]
        return [self.near[key_of(g, s)] for s in schedules]

    def tried(self) -> list[Point]:
        """The trials, with what the cost model predicts."""
        new: dict[str, list[Schedule]] = {}
        for key, t in self.trials.items():
            if key not in self.predictions:
                new.setdefault(t.mugraph, []).append(t.schedule)
        for g, schedules in new.items():
            self.predictions |= {key_of(g, p.schedule): p.predicted_us for p in self.points(g, schedules)}
        return [Point(t.mugraph, t.schedule, self.predictions[key], t.paced_us) for key, t in self.trials.items()]
