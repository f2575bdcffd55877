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
Rows: TypeAlias = dict[int, list[list[float]]]
"""The features of schedules, by `id`."""

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
AT_ONCE = 8
"""Choices between two updates of the process."""


@dataclass(frozen=True, slots=True)
class Point:
    """A schedule of one μGraph, with the cost model's prediction and, where measured, the time (infinite: failed)."""

    graph: str
    schedule: Schedule
    predicted_us: float
    us: float | None = None


def features(schedule: Schedule, first_order: Mapping[str, tuple[str, ...]]) -> list[list[float]]:
    """The numbers of each kernel's schedule, in lengths. first_order: an order of axes for each kernel, to tell others
    from."""
    return [_features(s, first_order[n]) for n, s in sorted(schedule.kernels.items())]


@lru_cache(maxsize=1 << 15)
def _features(s: KernelSchedule, first_order: tuple[str, ...]) -> list[float]:
    tiles = [math.log2(t) / SIZE for _, t in s.tiles]
    return [
        2.0 * (s.order != first_order) / SIZE,
        *tiles,
        *(x / LENGTHS.get(n, CHOICE) for n, x in s.doublings.items()),
    ]


Shares: TypeAlias = Mapping[str, Sequence[float]]
"""Of μGraphs: the share of the time that each kernel has, by name of the kernels."""
EQUAL: Shares = MappingProxyType({})


def choose(known: Sequence[Point], pool: Sequence[Point], count: int, shares: Shares = EQUAL) -> list[int]:
    """Which of the pool to measure next, by their places in it. shares: where they are not equal."""
    known = list(known)
    left = list(range(len(pool)))
    chosen: list[int] = []
    rows: Rows = {}
    for confidence in cycle(CONFIDENCE):
        if not left or len(chosen) >= count:
            break
        mean, deviation = predict(known, [pool[i] for i in left], shares, rows)
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
    known: Sequence[Point], pool: Sequence[Point], shares: Shares = EQUAL, rows: Rows | None = None
) -> tuple[Array, Array]:
    """Mean and deviation of the logarithm of every pool schedule's time. rows: features that are known, and become so.

    The first known point of a μGraph stays the first from call to call.
    """
    rows = {} if rows is None else rows
    offset = statistics.median([_error(p) for p in known if _measured(p)] or [0.0])
    mean, deviation = np.zeros(len(pool)), np.zeros(len(pool))
    for graph in dict.fromkeys(p.graph for p in pool):
        here = [i for i, p in enumerate(pool) if p.graph == graph]
        seen = [p for p in known if p.graph == graph and p.us is not None]
        mean[here], deviation[here] = _process(seen, [pool[i] for i in here], offset, shares.get(graph, ()), rows)
    return mean, deviation


def _process(
    seen: Sequence[Point], pool: Sequence[Point], offset: float, shares: Sequence[float], rows: Rows
) -> tuple[Array, Array]:
    prior = np.log([p.predicted_us for p in pool]) + offset
    if not seen:
        return prior, np.full(len(pool), math.hypot(DEVIATION, APART))
    order = {name: s.order for name, s in seen[0].schedule.kernels.items()}
    for p in (*seen, *pool):
        if id(p.schedule) not in rows:
            rows[id(p.schedule)] = features(p.schedule, order)
    x, z = ([rows[id(p.schedule)] for p in points] for points in (seen, pool))
    weights = np.square(shares if shares else np.ones(len(order)))
    weights /= max(weights.sum(), 1e-12)
    worst = max((_error(p) for p in seen if _measured(p)), default=offset) + math.log(2.0)  # what a failure counts as
    error = np.array([_error(p) if _measured(p) else worst for p in seen]) - offset
    covariance = APART**2 + DEVIATION**2 * _similar(x, x, weights) + NOISE**2 * np.eye(len(x))
    inverse = np.linalg.inv(np.linalg.cholesky(covariance))
    solved = inverse.T @ (inverse @ error)
    cross = APART**2 + DEVIATION**2 * _similar(z, x, weights)
    reduced = inverse @ cross.T
    variance = np.maximum(APART**2 + DEVIATION**2 - (reduced**2).sum(axis=0), 1e-12)
    return prior + cross @ solved, np.sqrt(variance)


def _measured(p: Point) -> bool:
    return p.us is not None and math.isfinite(p.us)


def _error(p: Point) -> float:
    """What the cost model is wrong by, as a logarithm."""
    return math.log(p.us or math.inf) - math.log(p.predicted_us)


def _similar(a: Sequence[Sequence[Sequence[float]]], b: Sequence[Sequence[Sequence[float]]], weights: Array) -> Array:
    """The weighted sum over kernels of exp of minus half the squared distance; 1 where there are none."""
    total = np.full((len(a), len(b)), 0.0 if len(weights) else 1.0)
    for k, weight in enumerate(weights):
        x, z = np.array([row[k] for row in a]), np.array([row[k] for row in b])
        square = (x**2).sum(axis=1)[:, None] + (z**2).sum(axis=1)[None, :] - 2.0 * x @ z.T
        total += weight * np.exp(-0.5 * np.maximum(square, 0.0))
    return total


def distinct(points: Iterable[Point], taken: set[Hashable]) -> list[Point]:
    """Points whose (graph, schedule) is not taken yet, each once."""
    found: dict[Hashable, Point] = {}
    for p in points:
        key = (p.graph, p.schedule)
        if key not in taken:
            found.setdefault(key, p)
    return list(found.values())
