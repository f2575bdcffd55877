"""Which kernels of one file serve which dynamic sizes: those that `tune/near.py` expects to be the fastest there.

Kernels that are tuned for the next larger size fill their last tiles badly just above a tuned size, and those for much
more leave multiprocessors idle. The cost model counts both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product

from mirage_cli.codegen.sized import Serves, Serving, Variant, by_tuned_sizes
from mirage_cli.target.gpus import Target
from mirage_cli.tune.near import Timed, between, expected_us, worth_having

MOST_PARTS = 64
"""Combinations of parts of all axes that are looked at. Each takes a millisecond for each μGraph."""
GAIN = 0.97
"""The part of the time that others must be expected to take, for the next larger tuned size not to serve. Predictions
of one μGraph at two sizes, or of two schedules, are seldom nearer than that."""
MOST_OTHERS = 6
"""Kernels of a file that are the best of no tuned size."""
OTHERS_GAIN = 0.005
"""By which part each of them must lower the expected time, in the mean over the parts of the range: at least by 3 % on
a sixth of it."""


def fastest(target: Target) -> Serves:
    """The rule for kernels of this GPU."""

    def serves(variants: Sequence[Variant]) -> Serving:
        usual = by_tuned_sizes(variants)
        dynamic = variants[0].program.dynamic
        ends = _ends(variants)
        us = expected_us([*map(_timed, variants)], _sizes_at(variants, ends), target)
        best = us.argmin(axis=0)
        cells = [*usual.cells(dynamic)]
        found: list[int] = []
        for n, at in enumerate(product(*ends)):
            i = next(i for i, some in cells if all(r.least <= n <= r.most for r, n in zip(some, at, strict=True)))
            found.append(int(best[n]) if us[best[n], n] < GAIN * us[i, n] else i)
        return _joined(Serving(ends, tuple(found)))

    return serves


def with_others(bests: Sequence[Variant], others: Sequence[Variant], target: Target) -> list[Variant]:
    """The best kernels of the tuned sizes, and which of the others a file should have besides."""
    both = [*bests, *others]
    us = expected_us([*map(_timed, both)], _sizes_at(both, _ends(both)), target)
    return [*bests, *(both[i] for i in worth_having(us, range(len(bests)), MOST_OTHERS, OTHERS_GAIN))]


def _timed(v: Variant) -> Timed:
    return Timed(v.graph, v.schedule, v.info.time_us if v.info.measured else None)


def _sizes_at(variants: Sequence[Variant], ends: Sequence[Sequence[int]]) -> list[Mapping[str, int]]:
    """The sizes of all dynamic axes where a part of each ends, those of the last axis first."""
    axes = [r.dim for r in variants[0].program.dynamic]
    return [dict(zip(axes, at, strict=True)) for at in product(*ends)]


def _ends(variants: Sequence[Variant]) -> tuple[tuple[int, ...], ...]:
    """Of each axis the last sizes of the parts in which one variant serves: those that any is tuned for, and others
    between them."""
    dynamic = variants[0].program.dynamic
    tuned = [{v.program.sizes[r.dim] for v in variants} for r in dynamic]
    fine = [between(1, r.most) | some for r, some in zip(dynamic, tuned, strict=True)]
    few = math.prod(map(len, fine)) <= MOST_PARTS
    kept = (some if few else own for some, own in zip(fine, tuned, strict=True))
    return tuple(
        tuple(sorted({n for n in some if r.least <= n < r.most} | {r.most}))
        for r, some in zip(dynamic, kept, strict=True)
    )


def _joined(serving: Serving) -> Serving:
    """Of a single axis, neighbouring parts that one variant serves are one part."""
    if len(serving.ends) != 1:
        return serving
    (ends,) = serving.ends
    last = [a != b for a, b in pairwise(serving.which)] + [True]
    parts = [(n, i) for n, i, ends_here in zip(ends, serving.which, last, strict=True) if ends_here]
    return Serving((tuple(n for n, _ in parts),), tuple(i for _, i in parts))
