"""What measured schedules say about others: a Gaussian process around the cost model's prediction.

For each μGraph the logarithm of the time is the cost model's, plus a constant, plus for each kernel a smooth function
of its numbers on a logarithmic scale, so that what is learnt of one kernel holds whatever the others do (Rasmussen and
Williams, Gaussian Processes for Machine Learning, algorithm 2.1). `choose` picks what to measure next by the lower
confidence bound (Srinivas et al. 2010), a few at a time, each taken at its predicted value for the choice of the next.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.schedule import Schedule

Array = NDArray[np.float64]
Rows: TypeAlias = dict[int, list[list[float]]]
"""The features of schedules, by `id`."""

DEVIATION = 0.25
"""How far the cost model is from the truth, as a deviation of the logarithm, once its mean error is taken off."""
LENGTH = 2.0
"""Doublings over which a deviation from the model carries over."""
NOISE = 0.02
CONFIDENCE = (0.5, 1.0, 3.0)
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
    """The numbers of each kernel's schedule, doublings as steps of 1. first_order: an order of axes for each kernel, to
    tell others from."""
    return [[2.0 * (s.order != first_order[n]), *s.doublings] for n, s in sorted(schedule.kernels.items())]


def choose(known: Sequence[Point], pool: Sequence[Point], count: int) -> list[int]:
    """Which of the pool to measure next, by their places in it. Every μGraph of the pool has a known point."""
    known = list(known)
    left = list(range(len(pool)))
    chosen: list[int] = []
    rows: Rows = {}
    for confidence in cycle(CONFIDENCE):
        if not left or len(chosen) >= count:
            break
        mean, deviation = predict(known, [pool[i] for i in left], rows)
        order = np.argsort(mean - confidence * deviation, kind="stable")[: min(AT_ONCE, count - len(chosen))]
        for j in order:
            p = pool[left[j]]
            known.append(replace(p, us=math.exp(mean[j])))
            chosen.append(left[j])
        gone = {left[j] for j in order}
        left = [i for i in left if i not in gone]
    return chosen


def predict(known: Sequence[Point], pool: Sequence[Point], rows: Rows | None = None) -> tuple[Array, Array]:
    """Mean and deviation of the logarithm of every pool schedule's time. rows: features that are known, and become so.

    The first known point of a μGraph stays the first from call to call.
    """
    mean, deviation = np.zeros(len(pool)), np.full(len(pool), DEVIATION)
    for graph in dict.fromkeys(p.graph for p in pool):
        here = [i for i, p in enumerate(pool) if p.graph == graph]
        seen = [p for p in known if p.graph == graph and p.us is not None]
        m, s = _process(seen, [pool[i] for i in here], {} if rows is None else rows)
        mean[here], deviation[here] = m, s
    return mean, deviation


def _process(seen: Sequence[Point], pool: Sequence[Point], rows: Rows) -> tuple[Array, Array]:
    prior = np.log([p.predicted_us for p in pool])
    times = [p.us for p in seen if p.us is not None and math.isfinite(p.us)]
    if not times:
        return prior, np.full(len(pool), DEVIATION)
    order = {name: s.order for name, s in seen[0].schedule.kernels.items()}
    for p in (*seen, *pool):
        if id(p.schedule) not in rows:
            rows[id(p.schedule)] = features(p.schedule, order)
    x, z = ([rows[id(p.schedule)] for p in points] for points in (seen, pool))
    worst = 2.0 * max(times)  # what a failure counts as
    y = np.log([p.us if p.us is not None and math.isfinite(p.us) else worst for p in seen])
    error = y - np.log([p.predicted_us for p in seen])
    offset = float(np.median(error))
    covariance = DEVIATION**2 * _similar(x, x) + NOISE**2 * np.eye(len(x))
    lower = np.linalg.cholesky(covariance)
    weights = np.linalg.solve(lower.T, np.linalg.solve(lower, error - offset))
    cross = DEVIATION**2 * _similar(z, x)
    reduced = np.linalg.solve(lower, cross.T)
    variance = np.maximum(DEVIATION**2 - (reduced**2).sum(axis=0), 1e-12)
    return prior + offset + cross @ weights, np.sqrt(variance)


def _similar(a: Sequence[Sequence[Sequence[float]]], b: Sequence[Sequence[Sequence[float]]]) -> Array:
    """The mean over kernels of exp of minus half the squared distance, in units of LENGTH."""
    kernels = len(a[0])
    total = np.zeros((len(a), len(b)))
    for k in range(kernels):
        x, z = np.array([row[k] for row in a]), np.array([row[k] for row in b])
        square = (x**2).sum(axis=1)[:, None] + (z**2).sum(axis=1)[None, :] - 2.0 * x @ z.T
        total += np.exp(-0.5 * np.maximum(square, 0.0) / LENGTH**2)
    return total / max(kernels, 1) if kernels else total + 1.0


def distinct(points: Iterable[Point], taken: set[Hashable]) -> list[Point]:
    """Points whose (graph, schedule text) is not taken yet, each once."""
    found: dict[Hashable, Point] = {}
    for p in points:
        key = (p.graph, str(p.schedule))
        if key not in taken:
            found.setdefault(key, p)
    return list(found.values())
