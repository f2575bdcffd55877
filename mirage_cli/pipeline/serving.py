"""Which kernels of one file serve which dynamic sizes: those that are expected to be the fastest there.

    expected(kernels, sizes) = predicted at these sizes · measured / predicted at the sizes that they are tuned for

Kernels that are tuned for the next larger size fill their last tiles badly just above a tuned size, and those for much
more leave multiprocessors idle. The cost model counts both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product

from mirage_cli.codegen.sized import Serves, Serving, Variant, by_tuned_sizes
from mirage_cli.ir.program import Range
from mirage_cli.target.gpus import Target
from mirage_cli.tune.space import models, total_us

AN_OCTAVE = 8
"""Parts of a range, in which one variant serves, between a size and twice that."""
LEAST_PART = 16
"""The least difference between their ends: rows of the smallest tile of a matrix unit."""
MOST_PARTS = 64
"""Combinations of parts of all axes that are looked at. Each takes a millisecond for each variant."""
GAIN = 0.97
"""The part of the time that others must be expected to take, for the next larger tuned size not to serve. Predictions
of one μGraph at two sizes, or of two schedules, are seldom nearer than that."""


def fastest(target: Target) -> Serves:
    """The rule for kernels of this GPU."""

    def serves(variants: Sequence[Variant]) -> Serving:
        usual = by_tuned_sizes(variants)
        dynamic = variants[0].program.dynamic
        scales = [_scale(v, target) for v in variants]
        ends = _ends(variants)

        def chosen(i: int, sizes: Mapping[str, int]) -> int:
            us = [_predicted_us(v, sizes, target) * scale for v, scale in zip(variants, scales, strict=True)]
            best = min(range(len(us)), key=us.__getitem__)
            return best if us[best] < GAIN * us[i] else i

        cells = [*usual.cells(dynamic)]
        found: list[int] = []
        for at in product(*ends):
            i = next(i for i, some in cells if all(r.least <= n <= r.most for r, n in zip(some, at, strict=True)))
            found.append(chosen(i, {r.dim: n for r, n in zip(dynamic, at, strict=True)}))
        return _joined(Serving(ends, tuple(found)))

    return serves


def _scale(v: Variant, target: Target) -> float:
    """measured / predicted, where it was measured."""
    if not v.info.measured or v.info.time_us is None:
        return 1.0
    predicted_us = _predicted_us(v, {}, target)
    return v.info.time_us / predicted_us if math.isfinite(predicted_us) else 1.0


def _predicted_us(v: Variant, sizes: Mapping[str, int], target: Target) -> float:
    graph = v.graph.resized(sizes)
    return total_us(graph, v.schedule, target, models(graph))


def _ends(variants: Sequence[Variant]) -> tuple[tuple[int, ...], ...]:
    """Of each axis the last sizes of the parts in which one variant serves: those that any is tuned for, and others
    between them."""
    dynamic = variants[0].program.dynamic
    tuned = [{v.program.sizes[r.dim] for v in variants} for r in dynamic]
    fine = [_between(r) | some for r, some in zip(dynamic, tuned, strict=True)]
    few = math.prod(map(len, fine)) <= MOST_PARTS
    kept = (some if few else own for some, own in zip(fine, tuned, strict=True))
    return tuple(
        tuple(sorted({n for n in some if r.least <= n < r.most} | {r.most}))
        for r, some in zip(dynamic, kept, strict=True)
    )


def _between(r: Range) -> set[int]:
    """Sizes in a range, so many in each octave."""
    found = {1 << i for i in range(r.most.bit_length())}
    for octave in [*found]:
        step = max(octave // AN_OCTAVE, LEAST_PART)
        found |= {*range(octave, 2 * octave, step)} if octave >= LEAST_PART else set()
    return found


def _joined(serving: Serving) -> Serving:
    """Of a single axis, neighbouring parts that one variant serves are one part."""
    if len(serving.ends) != 1:
        return serving
    (ends,) = serving.ends
    last = [a != b for a, b in pairwise(serving.which)] + [True]
    parts = [(n, i) for n, i, ends_here in zip(ends, serving.which, last, strict=True) if ends_here]
    return Serving((tuple(n for n, _ in parts),), tuple(i for _, i in parts))
