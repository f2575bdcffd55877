"""Block sizes, chunks, warps and orders of axes that are worth a try for a kernel, before anything was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import ceil, prod

import numpy as np

from mirage_cli.ir.schedule import MIN_DOT, KernelSchedule, next_power_of_two
from mirage_cli.search.cost import Batch, Model, estimate, whole_block
from mirage_cli.target import Target


def tile_choices(m: Model, sizes: Mapping[str, int], *, coarse: bool) -> Iterator[dict[str, int]]:
    """Block sizes to try for every dimension that is not held whole; `coarse` for ranking structures."""
    axes = [d for d, r in m.kernel.roles if r != "tile"]
    options = [_options(m, d, sizes[d], coarse) for d in axes]
    for tiles in product(*options):
        yield dict(zip(axes, tiles, strict=True))


def _options(m: Model, d: str, size: int, coarse: bool) -> list[int]:
    top = next_power_of_two(size)
    if d in m.batch_axes:
        return [1]
    if d in m.matrix_axes:
        choices = [16, 64, 128] if coarse else [16, 32, 64, 128, 256]
        fitting = [t for t in choices if t <= max(top, MIN_DOT)]
        single = [1] if d in m.grid and (size < MIN_DOT or (not coarse and top <= 256)) else []
        return single + fitting
    if d in m.grid:
        choices = [1, 4, 64, 512] if coarse else [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    else:
        choices = [64, 512, 2048] if coarse else [32, 64, 128, 256, 512, 1024, 2048, 4096]
    return [t for t in choices if t <= top] or [top]


def split_choices(
    m: Model, sizes: Mapping[str, int], tiles: Mapping[str, int], target: Target, *, coarse: bool
) -> list[int]:
    """Numbers of chunks that bring the grid near a whole number of waves."""
    if m.split is None:
        return [1]
    programs = prod(ceil(sizes[d] / tiles[d]) for d in m.grid)
    most = max(1, sizes[m.split] // max(tiles[m.split], 1))
    wanted = (1.0, 2.0) if coarse else (0.5, 1.0, 2.0, 4.0)
    found = {min(most, max(2, round(target.sms * w / programs))) for w in wanted}
    return sorted(found)


def best_schedule(m: Model, sizes: Mapping[str, int], target: Target) -> tuple[float, KernelSchedule] | None:
    """The coarse tiles with the least predicted time, or None where no blocks fit."""
    order = default_order(m)
    schedules = [
        KernelSchedule(tuple(tiles.items()), order, default_warps(m, tiles, sizes), 3, chunks, overlap=target.overlaps)
        for tiles in tile_choices(m, sizes, coarse=True)
        for chunks in split_choices(m, sizes, tiles, target, coarse=True)
    ]
    us = estimate(m, Batch.of(m, schedules, sizes), sizes, target).us
    best = int(us.argmin())
    return (float(us[best]), schedules[best]) if np.isfinite(us[best]) else None


def default_warps(m: Model, tiles: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """Warps so that a thread holds about 32 elements of the largest accumulator or block."""
    block = {d: int(whole_block(m, d, sizes)) for d in m.whole} | dict(tiles)
    largest = max((prod(block[a] for a in v) for v in (*m.accumulators, *m.values)), default=1)
    return 8 if largest >= 16384 else 4 if largest >= 1024 else 1


def default_order(m: Model) -> tuple[str, ...]:
    """An order of block axes in which products need no transposition: M before K before N, as far as possible."""
    order = [d for d, _ in m.kernel.roles]
    dims = m.kernel.value_dims()
    for e in m.kernel.body:
        if e.op == "dot":
            a, b = (set(dims[v]) if isinstance(v, str) else set[str]() for v in e.args)
            rows, columns = [x for x in order if x in a - b], [x for x in order if x in b - a]
            if rows and columns and order.index(rows[0]) > order.index(columns[0]):
                rows, columns = columns, rows
            for x in [x for x in order if x in e.axes and x in a & b]:
                first, last = (
                    max(map(order.index, rows), default=-1),
                    min(map(order.index, columns), default=len(order)),
                )
                if not first < order.index(x) < last:
                    order.remove(x)
                    order.insert(min(map(order.index, columns), default=len(order)), x)
    return tuple(order)
