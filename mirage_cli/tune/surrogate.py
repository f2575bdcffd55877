"""What measured schedules say about others: a Gaussian process around the cost model's prediction.

    log(time) = log(predicted) + error of all + error of the μGraph + sum over kernels of f(kernel's schedule)
    covariance of f = DEVIATION² · w · exp(-d² / 2),   w = share² / sum of the shares²

d is the distance of two schedules of a kernel, each number divided by its length (`LENGTHS`); a kernel's share of the
time, by the cost model, is what an error of its own time makes of the whole. So what is learnt of one kernel holds
whatever the others do, a short kernel is not worth many trials, and a μGraph of which one schedule was slow may still
be fast with another (Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1). `choose` picks
what to measure next by the lower confidence bound (Srinivas et al. 2010), a few at a time, each taken at its predicted
value for the choice of the next.

The constants were chosen by the likelihood of what was measured later, given what was measured first, and by how soon
the best were chosen, of 18,700 trials of 24 programs on an H200 (`results/h200/notes-2026-11-25.md`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.schedule import KernelSchedule, Schedule

Array = NDArray[np.float64]

DEVIATION = 0.28
"""How far the cost model is from the truth, as a deviation of the logarithm, once its mean error is taken off."""
APART = 0.15
"""How far a μGraph is from the others in that, as a deviation."""
NOISE = 0.03
SIZE, CHOICE, SHARP = 1.0, 2.0, 0.5
LENGTHS = {**dict.fromkeys(("warps", "stages", "split"), SIZE), **dict.fromkeys(("relay", "registers"), SHARP)}
"""Doublings, or choices, over which a deviation from the model carries over; block sizes and the order of axes have
`SIZE`, others `CHOICE`. A limit of 168 registers may spill where 255 do not."""
CONFIDENCE = (0.25, 0.75, 2.0)
"""Deviations that count in favour of a schedule, in turn: from trusting what is known to trying what is not."""
AT_ONCE = 4
"""Choices between two updates of the process."""


@dataclass(frozen=True, slots=True)
class Point:
    """A schedule of one μGraph, with the cost model's prediction and, where measured, the time (infinite: failed)."""

    graph: str
    schedule: Schedule
    predicted_us: float
    us: float | None = None


class Features:
    """The numbers of the schedules of one μGraph, in lengths: for each kernel a row for each schedule."""

    def __init__(self, first: Schedule) -> None:
        """first: whose orders of axes others are told from."""
        self.orders = {name: s.order for name, s in sorted(first.kernels.items())}
        self.places: dict[Schedule, int] = {}
        self.rows = [np.empty((0, len(_features(s, s.order)))) for _, s in sorted(first.kernels.items())]

    def of(self, schedules: Sequence[Schedule]) -> list[Array]:
        new = [s for s in dict.fromkeys(schedules) if s not in self.places]
        if new:
            self.places |= {s: len(self.places) + i for i, s in enumerate(new)}
            made = ([_features(s.kernels[name], order) for s in new] for name, order in self.orders.items())
            self.rows = [np.concatenate([old, rows]) for old, rows in zip(self.rows, made, strict=True)]
        places = [self.places[s] for s in schedules]
        return [rows[places] for rows in self.rows]


@lru_cache(maxsize=1 << 15)
def _features(s: KernelSchedule, first_order: tuple[str, ...]) -> list[float]:
    tiles = [math.log2(t) / SIZE for _, t in s.tiles]
    return [
        2.0 * (s.order != first_order) / SIZE,
        *tiles,
        *(x / LENGTHS.get(n, CHOICE) for n, x in s.doublings.items()),
    ]


Known: TypeAlias = dict[tuple[str, tuple[tuple[str, ...], ...]], Features]
"""By the μGraph, and the orders of axes that others are told from."""
Shares: TypeAlias = Mapping[str, Sequence[float]]
"""Of μGraphs: the share of the time that each kernel has, by name of the kernels."""
EQUAL: Shares = MappingProxyType({})


def choose(
    known: Sequence[Point], pool: Sequence[Point], count: int, shares: Shares = EQUAL, features: Known | None = None
) -> list[int]:
    """Which of the pool to measure next, by their places in it. shares: where they are not equal. features: those that
    are known, and become so."""
    known, features = list(known), {} if features is None else features
    left = list(range(len(pool)))
    chosen: list[int] = []
    for confidence in cycle(CONFIDENCE):
        if not left or len(chosen) >= count:
            break
        mean, deviation = predict(known, [pool[i] for i in left], shares, features)
        bound = np.round(mean - confidence * deviation, 9)  # sums of products differ by where they lie in memory
        order = np.argsort(bound, kind="stable")[: min(AT_ONCE, count - len(chosen))]
        for j in order:
            p = pool[left[j]]
            known.append(replace(p, us=math.exp(mean[j])))
            chosen.append(left[j])
        gone = {left[j] for j in order}
        left = [i for i in left if i not in gone]
    return chosen


def predict(
    known: Sequence[Point], pool: Sequence[Point], shares: Shares = EQUAL, features: Known | None = None
) -> tuple[Array, Array]:
    """Mean and deviation of the logarithm of each pool schedule's time. features: those known, and those found here."""
    features = {} if features is None else features
    offset = statistics.median([_error(p) for p in known if _measured(p)] or [0.0])
    mean, deviation = np.zeros(len(pool)), np.zeros(len(pool))
    places: dict[str, list[int]] = {}
    for i, p in enumerate(pool):
        places.setdefault(p.graph, []).append(i)
    for graph, here in places.items():
        seen = [p for p in known if p.graph == graph and p.us is not None]
        mean[here], deviation[here] = _process(seen, [pool[i] for i in here], offset, shares.get(graph, ()), features)
    return mean, deviation


def _process(
    seen: Sequence[Point], pool: Sequence[Point], offset: float, shares: Sequence[float], features: Known
) -> tuple[Array, Array]:
    prior = np.log([p.predicted_us for p in pool]) + offset
    if not seen:
        return prior, np.full(len(pool), math.hypot(DEVIATION, APART))
    first = seen[0].schedule
    key = seen[0].graph, tuple(s.order for s in first.kernels.values())
    rows = features.setdefault(key, Features(first))
    x, z = (rows.of([p.schedule for p in points]) for points in (seen, pool))
    weights = np.square(shares if shares else np.ones(len(first.kernels)))
    weights /= max(weights.sum(), 1e-12)
    worst = max((_error(p) for p in seen if _measured(p)), default=offset) + math.log(2.0)  # what a failure counts as
    error = np.array([_error(p) if _measured(p) else worst for p in seen]) - offset
    covariance = APART**2 + DEVIATION**2 * _similar(x, x, weights) + NOISE**2 * np.eye(len(seen))
    inverse = np.linalg.inv(np.linalg.cholesky(covariance))
    solved = inverse.T @ (inverse @ error)
    cross = np.zeros((len(pool), len(seen))) + APART**2 + DEVIATION**2 * _similar(z, x, weights)
    reduced = inverse @ cross.T
    variance = np.maximum(APART**2 + DEVIATION**2 - (reduced**2).sum(axis=0), 1e-12)
    return prior + cross @ solved, np.sqrt(variance)


def _measured(p: Point) -> bool:
    return p.us is not None and math.isfinite(p.us)


def _error(p: Point) -> float:
    """What the cost model is wrong by, as a logarithm."""
    return math.log(p.us or math.inf) - math.log(p.predicted_us)


def _similar(a: Sequence[Array], b: Sequence[Array], weights: Array) -> Array | float:
    """The weighted sum over kernels of exp of minus half the squared distance; 1 where there are none."""
    each = zip(a, b, weights, strict=True)
    return sum((weight * np.exp(-0.5 * np.maximum(_squared(x, z), 0.0)) for x, z, weight in each), 0.0) if a else 1.0


def _squared(x: Array, z: Array) -> Array:
    """The distances of all rows of one from all of the other, squared."""
    return (x**2).sum(axis=1)[:, None] + (z**2).sum(axis=1)[None, :] - 2.0 * x @ z.T


def distinct(points: Iterable[Point], taken: set[Hashable]) -> list[Point]:
    """Points whose (graph, schedule) is not taken yet, each once."""
    found: dict[Hashable, Point] = {}
    for p in points:
        key = (p.graph, p.schedule)
        if key not in taken:
            found.setdefault(key, p)
    return list(found.values())
