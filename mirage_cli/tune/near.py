"""Which of the kernels that were timed at some sizes are expected to be the fastest at others, where sizes are dynamic.

    expected(kernel, sizes) = predicted(kernel, sizes) · measured / predicted at the sizes where it was timed

Above a tuned size its best kernel may fill the GPU twice, the second time with little; another that took somewhat
longer at the tuned size, such as one with the library's product, is faster there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.target.gpus import Target
from mirage_cli.tune.price import totals_us

AN_OCTAVE = 8
"""Sizes that are looked at between a size and twice that."""
LEAST_STEP = 16
"""The least difference between them: rows of the smallest tile of a matrix unit."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel and what it took at the sizes of its μGraph; None where it was not measured."""

    graph: MuGraph
    schedule: Schedule
    us: float | None


def between(least: int, most: int) -> set[int]:
    """Sizes from `least` to `most`, so many in each octave."""
    found = {1 << i for i in range(most.bit_length())}
    for octave in [*found]:
        if octave >= LEAST_STEP:
            found |= {*range(octave, 2 * octave, max(octave // AN_OCTAVE, LEAST_STEP))}
    return {n for n in found if least <= n <= most}


def sizes_near(graph: MuGraph) -> list[dict[str, int]]:
    """The dynamic sizes of a μGraph, one of them from its half to twice as much."""
    own = {r.dim: graph.sizes[r.dim] for r in graph.dynamic}
    return [
        own | {r.dim: n}
        for r in graph.dynamic
        for n in sorted(between(max(r.least, own[r.dim] // 2), min(r.most, 2 * own[r.dim])))
    ]


def expected_us(some: Sequence[Timed], at: Sequence[Mapping[str, int]], target: Target) -> NDArray[np.float64]:
    """What each kernel is expected to take at each of these dynamic sizes: f64[kernels, sizes]."""
    own_us = _predicted_us(some, {}, target)
    measured_us = np.array([np.nan if t.us is None else t.us for t in some])
    ratio = np.where(np.isfinite(own_us) & np.isfinite(measured_us), measured_us / own_us, 1.0)
    return np.stack([_predicted_us(some, sizes, target) for sizes in at], axis=1) * ratio[:, None]


def _predicted_us(some: Sequence[Timed], sizes: Mapping[str, int], target: Target) -> NDArray[np.float64]:
    resized = {g: g.resized(sizes) for g in {t.graph for t in some}}
    alike: dict[MuGraph, list[int]] = {}
    for i, t in enumerate(some):
        alike.setdefault(resized[t.graph], []).append(i)
    us = np.empty(len(some))
    for graph, places in alike.items():
        us[places] = totals_us(graph, [some[i].schedule for i in places], target)
    return us


def worth_having(us: NDArray[np.float64], had: Sequence[int], most: int, gain: float) -> list[int]:
    """Kernels to have besides those that are had: one after the other the one that lowers the time of the fastest the
    most, while that is by `gain` of it, in the geometric mean over the sizes.

    us: f64[kernels, sizes]. most: how many there may be.
    """
    best = us[[*had]].min(axis=0)
    found: list[int] = []
    while len(found) < most:
        gains = np.log(best / np.minimum(us, best)).mean(axis=1)
        i = int(gains.argmax())
        if not gains[i] >= gain:
            break
        found.append(i)
        best = np.minimum(best, us[i])
    return found
