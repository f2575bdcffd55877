"""The schedule space: what the tuner may try for each kernel of a μGraph, ranked by the cost model.

`first_schedules` starts a search, which `tune.changes` continues. Both know kernels only as `search.cost.work.Model`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import merge
from itertools import islice
from operator import itemgetter

import numpy as np

from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.schedule import Early, KernelSchedule, Schedule, next_power_of_two
from mirage_cli.search.cost import model, work
from mirage_cli.search.cost.batch import Array, Batch
from mirage_cli.search.cost.work import chunk_sizes, models
from mirage_cli.search.tiles import DEPTHS, Choices, choices, least_tile, orders_of, other_forms
from mirage_cli.target.gpus import Target
from mirage_cli.tune.hidden import fits, pairs
from mirage_cli.tune.normal import normalised
from mirage_cli.tune.price import dearest_kernel, predicted, total_us

WARPS = (1, 2, 4, 8, 16)
BESIDE_POOL = 256
"""Schedules of a kernel, the fastest first, among which those are looked for that leave room for blocks of the next
kernel on the same multiprocessor."""
BESIDE_TRIALS = 4
"""Of those, how many are tried, each with other blocks. X·A beside X·W, 2048 x 4096 x 4096, on an H200: 103 us where
X·A is in 32 blocks, 109 to 142 where it is in 128, which the cost model holds to be the faster one."""
BESIDE_SLOWER = 1.001
"""By how much the predicted times of two such schedules must differ for both to be tried."""
SURE = 0.95
"""What a kernel takes of what there is, by the cost model, up to which it is sure to have room. With 256 values of a
thread, some kernels for sm_90 spilled up to 1,376 bytes, and others nothing."""
RANKED = 4096
"""Schedules of a kernel that are ranked, at most: of windows in blocks along five axes there are over 100,000."""
ROOMIER, ROOM_POOL = 0.5, 512
"""Where a kernel had no room: the part of the way to the least that any of so many schedules holds, which others go."""


def ranked(
    m: work.Model, sizes: Mapping[str, int], target: Target, split: int | None = None, by_arithmetic: bool = False
) -> Iterator[KernelSchedule]:
    """The best RANKED of all tile sizes, chunks, two depths of stages and orders of one kernel with default warps, best
    first; those that fit, and last those that may not; in other forms of the kernel too. Where shared memory has no
    room for three stages, with two. by_arithmetic: how products of float32 are made, here and below; else on the matrix
    units."""
    own = _in_order(m.alike, tuple(sizes.items()), target, split, by_arithmetic)
    others = (_of_form(x, target, split, by_arithmetic) for x in other_forms(m, sizes, coarse=False))
    yield from (s for _, s in merge(own.schedules(), *others, key=itemgetter(0)))


def _of_form(
    x: work.Formed, target: Target, split: int | None, by_arithmetic: bool
) -> Iterator[tuple[tuple[bool, float], KernelSchedule]]:
    """Those of another form, as schedules of the kernel as it was."""
    for key, s in _in_order(x.model.alike, tuple(x.sizes.items()), target, split, by_arithmetic).schedules():
        yield key, x.form.original(s)


@dataclass(frozen=True, slots=True)
class InOrder:
    """The choices of one model, best first. keys: what they are ranked by, which is whether a choice may not fit, and
    its predicted time."""

    choices: Choices
    keys: Sequence[tuple[bool, float]]

    def schedules(self) -> Iterator[tuple[tuple[bool, float], KernelSchedule]]:
        """Each behind its key. Several choices may be one schedule."""
        seen: set[KernelSchedule] = set()
        for i, key in enumerate(self.keys):
            s = self.choices.schedule(i)
            if s not in seen:
                seen.add(s)
                yield key, s


@lru_cache(maxsize=256)
def _in_order(
    alike: work.Alike, sizes: tuple[tuple[str, int], ...], target: Target, split: int | None, by_arithmetic: bool
) -> InOrder:
    """Of the plans of one program, several have the same kernel."""
    m, known = alike.model, dict(sizes)
    found = choices(m, known, target, orders_of(m, known), coarse=False, split=split)
    found = found.by_arithmetic() if by_arithmetic else found
    e = model.estimate(m, found.batch, known, target)
    deep = (found.batch.stages == DEPTHS[0]) & (e.shared_bytes > target.smem_per_block_bytes)
    if deep.any():
        found = found.shallower(deep)
        shallow = model.estimate(m, found.batch.some(deep), known, target)
        e = model.Estimates.of((e.some(~deep), shallow), np.argsort(np.argsort(deep, kind="stable")))
    last = (e.crowded > SURE) | np.isinf(e.us)
    best = np.lexsort((e.us, last))[: min(np.isfinite(e.us).sum(), RANKED)]
    return InOrder(found.some(best), [*zip(last[best].tolist(), e.us[best].tolist(), strict=True)])


def first_schedules(graph: MuGraph, target: Target, count: int, by_arithmetic: bool = False) -> list[Schedule]:
    """Up to `count` schedules: for the dearest kernel the cost model's best, then the best with each block size that
    those before lack; both in the other orders too. The other kernels' best with each."""
    by_name = models(graph)
    if not by_name:
        return [Schedule({})]
    base = complete(graph, target, {}, by_arithmetic)
    if base is None:
        return []
    varied = dearest_kernel(graph, base, target)
    found: dict[Schedule, None] = {}
    m, sizes = by_name[varied], chunk_sizes(graph, base)
    for s in _diverse(ranked(m, sizes, target, by_arithmetic=by_arithmetic)):
        for variant in (s, *in_other_orders(m, s, sizes)):
            schedule = complete(graph, target, {varied: variant}, by_arithmetic)
            if schedule is not None:
                found |= dict.fromkeys((*_beside_next(graph, schedule, target, by_arithmetic), schedule))
        if len(found) >= count:
            break
    return list(found)[:count]


def other_blocks(graph: MuGraph, schedule: Schedule, target: Target, name: str, count: int) -> list[Schedule]:
    """Up to `count` schedules in which one kernel has other blocks or chunks: the cost model's best with each block
    size, or number of chunks, that those before lack. Its other choices, and the other kernels, stay as they are; the
    merge of its chunks is fitted to them. name: of the kernel."""
    m, own, sizes = models(graph)[name], schedule.kernels[name], chunk_sizes(graph, schedule)
    found: dict[Schedule, None] = {}
    for s in _diverse(ranked(m, sizes, target, by_arithmetic=m.single and not own.tf32x3)):
        if (s.tiles, s.split) != (own.tiles, own.split):
            changed = replace(own, tiles=s.tiles, order=s.order, warps=s.warps, stages=s.stages, split=s.split)
            made = with_kernel(graph, schedule, name, changed, target)
            found |= {} if made is None else {normalised(graph, made): None}
        if len(found) >= count:
            break
    return [*found]


def with_kernel(
    graph: MuGraph, schedule: Schedule, name: str, changed: KernelSchedule, target: Target
) -> Schedule | None:
    """The schedule with one kernel changed. Where that has other chunks, the merge has another axis to walk: it is
    fitted anew."""
    given, kernel = {**schedule.kernels, name: changed}, models(graph)[name].kernel
    if kernel.split is not None and changed.split != schedule.kernels[name].split:
        others = {n for n in given if n != name and _has_chunks(models(graph)[n].kernel, kernel.chunk)}
        given = {n: k for n, k in given.items() if n not in others}
    return complete(graph, target, given)


def instead_by_arithmetic(graph: MuGraph, schedule: Schedule, target: Target) -> list[Schedule]:
    """In the place of a schedule that multiplies float32 on the matrix units: the same by float32 arithmetic, and the
    cost model's best by it, first what it expects to be faster. What fits the matrix units may spill there."""
    some = dict.fromkeys((schedule.by_arithmetic(), *first_schedules(graph, target, 1, by_arithmetic=True)))
    return sorted(some, key=lambda s: total_us(graph, s, target))


def roomier(graph: MuGraph, schedule: Schedule, target: Target, crowded: str, count: int) -> list[Schedule]:
    """Up to `count` schedules in which a kernel holds a good deal less, in registers and in shared memory, than in one
    for which there was no room: the best of these with other blocks, and those with twice the warps, each with another
    block size. The other kernels stay as they are. crowded: the name of the kernel."""
    m, sizes = models(graph)[crowded], chunk_sizes(graph, schedule)
    had = predicted(m, schedule.kernels[crowded], sizes, target).crowded[0]
    some = [*islice(ranked(m, sizes, target), ROOM_POOL)]
    some += [replace(s, warps=2 * s.warps) for s in some if 2 * s.warps in WARPS]
    if not some:
        return []
    found = model.estimate(m, Batch.of(m, some, sizes), sizes, target)
    most = had - ROOMIER * (had - found.crowded.min())
    us = np.where(found.crowded <= most, found.us, np.inf)
    fitting = (some[int(i)] for i in np.argsort(us, kind="stable")[: np.isfinite(us).sum()])
    made = (complete(graph, target, {**schedule.kernels, crowded: s}) for s in _diverse(fitting))
    return [*islice((s for s in made if s is not None), count)]


@lru_cache(maxsize=64)
def _ranked_early(
    m: work.Model, sizes: tuple[tuple[str, int], ...], target: Target, split: int, by_arithmetic: bool
) -> tuple[list[KernelSchedule], Array]:
    """The first of the ranked schedules, letting the next kernel start early, with their bytes of shared memory."""
    known = dict(sizes)
    best = islice(ranked(m, known, target, split, by_arithmetic), BESIDE_POOL)
    some = [replace(s, hand_over=Early()) for s in best]
    return some, model.estimate(m, Batch.of(m, some, known), known, target).shared_bytes


def _beside_next(graph: MuGraph, schedule: Schedule, target: Target, by_arithmetic: bool) -> Iterator[Schedule]:
    """Faster schedules in which a kernel that may run beside the next one leaves room for it: a few, with other blocks
    each."""
    by_name, sizes = models(graph), chunk_sizes(graph, schedule)
    for name, behind in pairs(graph) if target.overlaps else ():
        own = schedule.kernels[name]
        some, shared = _ranked_early(by_name[name], tuple(sizes.items()), target, own.split, by_arithmetic)
        other = predicted(by_name[behind], schedule.kernels[behind], sizes, target).shared_bytes
        small: dict[tuple[int, ...], KernelSchedule] = {}
        for x, room in zip(some, fits(shared, other, target), strict=True):
            if room:
                small.setdefault(tuple(x.tile(d) for d in by_name[name].grid), x)
        made = (complete(graph, target, {**schedule.kernels, name: x}) for x in islice(small.values(), BESIDE_TRIALS))
        priced = sorted(((total_us(graph, s, target), s) for s in made if s), key=lambda p: p[0])
        last_us, limit_us = 0.0, total_us(graph, schedule, target)
        for us, s in priced:
            if last_us * BESIDE_SLOWER < us < limit_us:
                last_us = us
                yield s


def fitted(graph: MuGraph, schedule: Schedule, target: Target) -> Schedule | None:
    """A schedule of the same μGraph at other sizes, with blocks and chunks no larger than these sizes have use for."""
    by_name = models(graph)
    if schedule.kernels.keys() != by_name.keys():
        return None
    sizes = chunk_sizes(graph, schedule)
    given: dict[str, KernelSchedule] = {}
    for name, s in schedule.kernels.items():
        m = by_name[name]
        matrix = m.matrix_axes(sizes)
        least = {d: least_tile(m, d, sizes) if d in matrix else 1 for d, _ in s.tiles}
        tiles = tuple((d, min(t, max(next_power_of_two(sizes[d]), least[d]))) for d, t in s.tiles)
        s = replace(s, tiles=tiles)
        if m.split is not None:
            s = replace(s, split=min(s.split, -(-sizes[m.split] // s.tile(m.split))))
        given[name] = s
    made = complete(graph, target, given)
    return made if made is not None and np.isfinite(total_us(graph, made, target)) else None


def _diverse(schedules: Iterable[KernelSchedule]) -> Iterator[KernelSchedule]:
    """The schedules reordered: first those with a block size or a number of chunks that none before had."""
    seen: set[tuple[str, int]] = set()
    others: list[KernelSchedule] = []
    for s in schedules:
        choices = {*s.tiles, ("split", s.split)}
        if choices <= seen:
            others.append(s)
            continue
        seen |= choices
        yield s
    yield from others


def complete(
    graph: MuGraph,
    target: Target,
    given: Mapping[str, KernelSchedule],
    by_arithmetic: bool = False,
) -> Schedule | None:
    """A schedule for every kernel: those given, and the cost model's best for the others. None where none fits.

    Kernels whose partial results share an axis of chunks get the same number of them.
    """
    chosen: dict[str, KernelSchedule] = {}
    split = (k for k in graph.kernels if k.split is not None and k.name in given)
    chunks: dict[str, int] = {}
    for k in split:
        chunks.setdefault(k.chunk, given[k.name].split)
    for name, m in models(graph).items():
        k, s = m.kernel, given.get(name)
        count = chunks.get(k.chunk) if k.split is not None else None
        if s is None:
            s = next(ranked(m, {**graph.sizes, **chunks}, target, count, by_arithmetic), None)
            if s is None:
                return None
        elif count is not None and s.split != count:
            s = replace(s, split=count)
        if k.split is not None:
            chunks.setdefault(k.chunk, s.split)
        chosen[name] = s
    return Schedule(chosen)


def _has_chunks(kernel: Kernel, chunk: str) -> bool:
    """Whether a kernel splits its dimension along this axis of chunks, or reads what was split along it."""
    return (kernel.split is not None and kernel.chunk == chunk) or any(chunk in x.dims for x in kernel.loads)


def in_other_orders(m: work.Model, s: KernelSchedule, sizes: Mapping[str, int]) -> list[KernelSchedule]:
    return [replace(s, order=order) for order in orders_of(m, sizes) if order != s.order]
