"""The schedule space: what the tuner may try for each kernel of a μGraph, ranked by the cost model.

`first_schedules` starts a search, `neighbours` continues one; both know kernels only through `search.work.Model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import merge
from itertools import islice
from math import prod
from operator import itemgetter

import numpy as np

from mirage_cli.codegen.access import SPECIALIZED_WARPS
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.schedule import (
    AHEAD,
    CHOICES,
    AtEnd,
    Before,
    Early,
    HandOver,
    KernelSchedule,
    Lead,
    Relay,
    Schedule,
    block_sizes,
    next_power_of_two,
)
from mirage_cli.ir.unrolled import in_blocks
from mirage_cli.search import cost, work
from mirage_cli.search.batch import Array, Batch, elements_of, held
from mirage_cli.search.tiles import (
    DEPTHS,
    choices,
    held_beside,
    least_columns,
    least_tile,
    orders_of,
    other_forms,
)
from mirage_cli.search.work import chunk_sizes, models
from mirage_cli.target.gpus import Target
from mirage_cli.tune.hidden import fits, pairs
from mirage_cli.tune.normal import normalised
from mirage_cli.tune.price import dearest_kernel, predicted, total_us, totals_us

WARPS = (1, 2, 4, 8, 16)
STAGES = (1, 2, 3, 4, 5, 6, 7, 9)
GROUPS = (1, 4, 8, 16)
GROUP = 8
"""Of a first schedule of a large product."""
SPLIT_LIMIT = 256
CROWDED, MANY_WARPS = 96, 4
"""Elements that a thread holds, and warps, from which a multiprocessor's registers may suffice for two blocks alone.
Warps that are specialized share registers in another way. The cost model does not tell limits apart: where they are
offered for less, the tuner tries little else."""
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
ROOMIER, ROOM_POOL = 0.5, 512
"""Where a kernel had no room: the part of the way to the least that any of so many schedules holds, which others go."""
SPARE_REGISTERS = 32
"""Registers that a thread needs at least besides those that hold accumulators."""
ALL_RELAY = tuple((Lead(lead), n) for lead in (2, 4) for n in AHEAD[1:3])
"""Choices for all kernels at once, each of which relays if it may: the lead of one that may not relay, and the
iterations that are fetched ahead. A kernel gains by starting ahead of time only where the one in front does."""
LAST_RELAYS = tuple((hand_over, n) for hand_over in (Early(), Lead(4)) for n in AHEAD[:3])
"""Choices for all kernels but the last, where the last relays: it may where one in front of it does not."""


def ranked(
    m: work.Model, sizes: Mapping[str, int], target: Target, split: int | None = None, by_arithmetic: bool = False
) -> Iterator[KernelSchedule]:
    """All tile sizes, chunks, two depths of stages and orders of one kernel with default warps, best first; those that
    fit, and last those that may not; in other forms of the kernel too. Where shared memory has no room for three
    stages, with two. by_arithmetic: how products of float32 are made, here and below; else on the matrix units."""
    own = _ranked(m, sizes, target, split, by_arithmetic)
    others = (_of_form(x, target, split, by_arithmetic) for x in other_forms(m, sizes, coarse=False))
    yield from (s for _, s in merge(own, *others, key=itemgetter(0)))


def _of_form(
    x: work.Formed, target: Target, split: int | None, by_arithmetic: bool
) -> Iterator[tuple[tuple[bool, float], KernelSchedule]]:
    """Those of another form, as schedules of the kernel as it was."""
    for key, s in _ranked(x.model, x.sizes, target, split, by_arithmetic):
        yield key, x.form.original(s)


def _ranked(
    m: work.Model, sizes: Mapping[str, int], target: Target, split: int | None, by_arithmetic: bool
) -> Iterator[tuple[tuple[bool, float], KernelSchedule]]:
    """Those of one model, each behind what they are ranked by."""
    found = choices(m, sizes, target, orders_of(m, sizes), coarse=False, split=split)
    found = found.by_arithmetic() if by_arithmetic else found
    e = cost.estimate(m, found.batch, sizes, target)
    deep = (found.batch.stages == DEPTHS[0]) & (e.shared_bytes > target.smem_per_block_bytes)
    if deep.any():
        found = found.shallower(deep)
        shallow = cost.estimate(m, found.batch.some(deep), sizes, target)
        e = cost.Estimates.of((e.some(~deep), shallow), np.argsort(np.argsort(deep, kind="stable")))
    seen: set[KernelSchedule] = set()
    last = (e.crowded > SURE) | np.isinf(e.us)
    for i in np.lexsort((e.us, last))[: np.isfinite(e.us).sum()]:
        s = found.schedule(int(i))
        if s not in seen:
            seen.add(s)
            yield (bool(last[i]), float(e.us[i])), s


@lru_cache(maxsize=1024)
def _best(
    m: work.Model, sizes: tuple[tuple[str, int], ...], target: Target, split: int | None, by_arithmetic: bool
) -> KernelSchedule | None:
    """The first of the ranked schedules."""
    return next(ranked(m, dict(sizes), target, split, by_arithmetic), None)


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
        for variant in (s, *_in_other_orders(m, s, sizes)):
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
            made = _with_kernel(graph, schedule, name, changed, target)
            found |= {} if made is None else {normalised(graph, made): None}
        if len(found) >= count:
            break
    return [*found]


def _with_kernel(
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
    found = cost.estimate(m, Batch.of(m, some, sizes), sizes, target)
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
    return some, cost.estimate(m, Batch.of(m, some, known), known, target).shared_bytes


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
            s = _best(m, tuple({**graph.sizes, **chunks}.items()), target, count, by_arithmetic)
            if s is None:
                return None
        elif count is not None and s.split != count:
            s = replace(s, split=count)
        if k.split is not None:
            chunks.setdefault(k.chunk, s.split)
        chosen[name] = s
    return Schedule(chosen)


def neighbours(graph: MuGraph, schedules: Sequence[Schedule], target: Target) -> list[list[tuple[float, Schedule]]]:
    """For each schedule those that differ in one choice of one kernel, with their predicted times, least first.

    Among them those in which all kernels are ahead of time. The model prices many at once in hardly more time than one.
    """
    each = [_neighbours(graph, s, target) for s in schedules]
    us = totals_us(graph, [s for near in each for s in near], target)
    parts = np.split(us, np.cumsum([len(near) for near in each])[:-1])
    return [sorted(_that_fit(some, near), key=lambda x: x[0]) for some, near in zip(parts, each, strict=False)]


def _neighbours(graph: MuGraph, schedule: Schedule, target: Target) -> list[Schedule]:
    by_name, sizes = models(graph), chunk_sizes(graph, schedule)
    found = dict.fromkeys(_ahead_of_time(graph, schedule) if target.overlaps else ())
    for name, s in schedule.kernels.items():
        for other in _variations(by_name[name], s, tuple(sizes.items()), target):
            if (made := _with_kernel(graph, schedule, name, other, target)) is not None:
                found[normalised(graph, made)] = None
    found.pop(schedule, None)
    return [*found]


def _ahead_of_time(graph: MuGraph, schedule: Schedule) -> Iterator[Schedule]:
    """The schedule with all kernels starting ahead of time, once for each choice that is made for several kernels."""

    def fetching(ahead: int, word: str = "overlap") -> dict[str, KernelSchedule]:
        return {k: _fetching(s, ahead, word) for k, s in schedule.kernels.items()}

    for n in AHEAD:
        yield normalised(graph, Schedule(fetching(n, "early")))
    for lead, n in ALL_RELAY:
        made = normalised(graph, Schedule(fetching(n, "relay"))).kernels
        kernels = {k: s if s.hand_over == Relay() else replace(s, hand_over=lead) for k, s in made.items()}
        yield normalised(graph, Schedule(kernels))
    last = graph.kernels[-1].name
    for hand_over, n in LAST_RELAYS if last in schedule.kernels and len(graph.kernels) > 1 else ():
        given = {k: Relay() if k == last else hand_over for k in schedule.kernels}
        kernels = {k: replace(s, hand_over=given[k]) for k, s in fetching(n).items()}
        yield normalised(graph, Schedule(kernels))


@lru_cache(maxsize=1 << 12)
def _fetching(s: KernelSchedule, ahead: int, word: str) -> KernelSchedule:
    """Ahead of time, with so many iterations fetched ahead, and with this word."""
    return s.choosing(**{"overlap": True, "fetch": True, "ahead": ahead, word: True})


def ahead_of_time(graph: MuGraph, schedule: Schedule, target: Target, count: int) -> list[Schedule]:
    """The schedule with all kernels ahead of time: the cost model's best of so many ways to hand over, each with and
    without iterations that are fetched ahead."""
    made = dict.fromkeys(_ahead_of_time(graph, schedule) if target.overlaps and schedule.kernels else ())
    made.pop(schedule, None)
    us = totals_us(graph, [*made], target)
    ways: dict[tuple[object, ...], Schedule] = {}
    for _, s in sorted(_that_fit(us, made), key=lambda x: x[0]):
        ways.setdefault(tuple((k.hand_over, k.ahead is None) for k in s.kernels.values()), s)
    return [*ways.values()][:count]


def through_descriptors(graph: MuGraph, schedule: Schedule, target: Target) -> Schedule | None:
    """The schedule with all kernels that may reading through descriptors; None where none may, or all do."""
    if not target.descriptors:
        return None
    made = normalised(graph, Schedule({n: replace(s, descriptors=True) for n, s in schedule.kernels.items()}))
    fits = np.isfinite(total_us(graph, made, target))
    return made if fits and made != schedule else None


def in_groups(graph: MuGraph, schedule: Schedule, target: Target) -> Schedule | None:
    """The schedule with the instances of products in groups that share rows, where what several instances read is more
    than the L2 holds; None where no product does. Ungrouped, the instances at work at one time read all columns, and
    those after them read them again."""
    element, sizes = graph.element_bytes, graph.sizes

    def large(k: Kernel) -> bool:
        tiled = {d for d in k.with_role("grid") if sizes[d] > schedule.kernels[k.name].tile(d)}
        shared = (x for x in k.loads if tiled - {*x.dims})
        read = sum(prod(sizes.get(d, 1) for d in x.dims) * element[x.buffer] for x in shared)
        return bool(k.products) and len(tiled) >= 2 and read > target.l2_bytes

    names = {k.name for k in graph.kernels if k.name in schedule.kernels and large(k)}
    grouped = {n: replace(s, group=GROUP) if n in names else s for n, s in schedule.kernels.items()}
    return normalised(graph, Schedule(grouped)) if names else None


def crossings(
    graph: MuGraph, schedules: Sequence[Schedule], others: Sequence[Schedule], target: Target
) -> list[tuple[float, Schedule]]:
    """Each schedule with each kernel in turn as another one has it, with predicted times."""
    found: dict[Schedule, None] = {}
    for a in schedules:
        seen = {*a.kernels.items()}
        for name, other in (x for b in others for x in b.kernels.items() if x not in seen):
            seen.add((name, other))
            if (made := complete(graph, target, {**a.kernels, name: other})) is not None:
                found[normalised(graph, made)] = None
    return _that_fit(totals_us(graph, [*found], target), found)


def _that_fit(us: Array, schedules: Iterable[Schedule]) -> list[tuple[float, Schedule]]:
    """With their predicted times, which are infinite for those that do not."""
    return [(float(x), s) for x, s in zip(us, schedules, strict=True) if np.isfinite(x)]


def starting_later(graph: MuGraph, schedule: Schedule) -> list[Schedule]:
    """The schedule with less overlap: all kernels that let the next one start early do so at their end; the first
    kernel starts when all in front of it has ended; both; and no kernel starts ahead of time."""
    kernels = schedule.kernels
    at_end = {n: replace(s, hand_over=AtEnd()) for n, s in kernels.items()}
    last = {n: replace(s, overlap=False, before=Before.NOTHING, ahead=None, patient=False) for n, s in at_end.items()}
    first = [*kernels][:1]
    behind = {n: replace(last[n], hand_over=kernels[n].hand_over) for n in first}
    some = [at_end, {**kernels, **behind}, {**at_end, **{n: last[n] for n in first}}, last]
    made = [normalised(graph, Schedule(x)) for x in some]
    return [s for s in dict.fromkeys(made) if s != schedule]


def manner(schedule: Schedule) -> tuple[tuple[bool, type[HandOver], bool], ...]:
    """For each kernel whether it starts early, how it lets the next one start, and whether it reads through
    descriptors."""
    return tuple((s.overlap, type(s.hand_over), s.descriptors) for s in schedule.kernels.values())


def _has_chunks(kernel: Kernel, chunk: str) -> bool:
    """Whether a kernel splits its dimension along this axis of chunks, or reads what was split along it."""
    return (kernel.split is not None and kernel.chunk == chunk) or any(chunk in x.dims for x in kernel.loads)


@lru_cache(maxsize=4096)
def _variations(
    m: work.Model, s: KernelSchedule, axes: tuple[tuple[str, int], ...], target: Target
) -> list[KernelSchedule]:
    """One choice changed at a time. axes: with their sizes. What is made once has its text and numbers once."""
    kernel, sizes = m.kernel, dict(axes)
    found = [*_other_choices(m, s, sizes, target), *_other_numbers(kernel, m, s, sizes)]
    return found + [x for i in range(len(s.tiles)) for x in _other_tiles(kernel, m, s, sizes, i)]


def _other_choices(
    m: work.Model, s: KernelSchedule, sizes: Mapping[str, int], target: Target
) -> Iterator[KernelSchedule]:
    held = _elements_held(m, s, sizes) / (32 * s.warps)
    able = {
        "": True,
        "overlaps": target.overlaps,
        "descriptors": target.descriptors,
        "specializes": target.specializes,
        "single": m.single,
        "windows": m.windows(sizes) is not None,
        "crowded": held >= CROWDED and s.warps >= MANY_WARPS and not s.specialize,
    }
    for c in CHOICES:
        if able[c.needs]:
            near = (replace(s, **{c.field: x}) for x in c.near(getattr(s, c.field)))
            near = map(in_blocks, near) if c.needs == "windows" and s.unroll else near
            yield from (x for x in near if x.registers is None or x.registers >= held + SPARE_REGISTERS)
    if target.overlaps:
        yield from (replace(s.choosing(overlap=True, ahead=n), hand_over=lead) for lead, n in ALL_RELAY)
    if target.specializes:
        yield replace(s, specialize=True, warps=SPECIALIZED_WARPS)


def _elements_held(m: work.Model, s: KernelSchedule, sizes: Mapping[str, int]) -> float:
    """Elements that the threads of a block hold in registers: of all accumulators, or of the largest value."""
    block = {d: float(n) for d, n in block_sizes(m.kernel, s, sizes).items()}
    _, accumulated = held(m, block, 0.0)
    return max(accumulated, *(elements_of(block, axes) for axes in m.computed), 1.0)


def _in_other_orders(m: work.Model, s: KernelSchedule, sizes: Mapping[str, int]) -> list[KernelSchedule]:
    return [replace(s, order=order) for order in orders_of(m, sizes) if order != s.order]


def _other_numbers(
    kernel: Kernel, m: work.Model, s: KernelSchedule, sizes: Mapping[str, int]
) -> Iterator[KernelSchedule]:
    """Warps, stages, the order of axes, groups and chunks."""
    for warps in (s.warps // 2, s.warps * 2):
        if warps in WARPS:
            yield replace(s, warps=warps)
    if kernel.with_role("loop", "split"):
        at = STAGES.index(s.stages) if s.stages in STAGES else 2
        for stages in STAGES[max(at - 1, 0) : at + 2]:
            if stages != s.stages:
                yield replace(s, stages=stages)
    yield from _in_other_orders(m, s, sizes)
    if sum(sizes[d] > s.tile(d) for d in m.grid) >= 2:
        yield from (replace(s, group=g) for g in GROUPS if g != s.group)
    if kernel.split is not None:
        for split in (s.split // 2, s.split - s.split // 4, s.split + s.split // 4, s.split * 2):
            if 1 < split <= SPLIT_LIMIT and split != s.split:
                yield replace(s, split=split)


def _other_tiles(
    kernel: Kernel, m: work.Model, s: KernelSchedule, sizes: Mapping[str, int], i: int
) -> Iterator[KernelSchedule]:
    """The next sizes of the block along one dimension."""
    d, tile = s.tiles[i]
    matrix = d in m.matrix_axes(sizes) and tile > 1
    least = max(1, least_columns(m, d, sizes) // held_beside(m, d, sizes)) if matrix else 1
    for other in (tile // 2, tile * 2):
        if other < least or other >= 2 * max(sizes[d], cost.MIN_DOT) or not _may_have(m, d, other, sizes):
            continue
        changed = replace(s, tiles=(*s.tiles[:i], (d, other), *s.tiles[i + 1 :]))
        yield changed
        if d in kernel.with_role("loop", "split"):  # as many bytes on their way as before
            yield replace(changed, stages=min(max(-(-s.stages * tile // other), 2), STAGES[-1]))
        warps = s.warps * other // tile  # as many elements for each thread as before
        if warps in WARPS:
            yield replace(changed, warps=warps)
        split = s.split * other // tile  # as many program instances as before
        if kernel.split is not None and d in m.grid and 1 < split <= SPLIT_LIMIT:
            yield replace(changed, split=split)
            if warps in WARPS:
                yield replace(changed, split=split, warps=warps)


def _may_have(m: work.Model, d: str, count: int, sizes: Mapping[str, int]) -> bool:
    """Whether blocks may have so many along an axis: of groups, those that are multiplied as one."""
    several = m.groups(sizes)
    one = several is not None and several.axis == d and several.many(count)
    return count == 1 or one or d not in m.batch_axes(sizes)
