"""A schedule with choices changed: what the tuner tries near those that it has timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from mirage_cli.codegen.access import SPECIALIZED_WARPS
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.schedule import (
    AHEAD,
    CHOICES,
    MIN_DOT,
    AtEnd,
    Before,
    Early,
    HandOver,
    KernelSchedule,
    Lead,
    Relay,
    Schedule,
    block_sizes,
)
from mirage_cli.ir.unrolled import in_blocks
from mirage_cli.search.cost import work
from mirage_cli.search.cost.batch import Array, elements_of, held
from mirage_cli.search.cost.work import chunk_sizes, models
from mirage_cli.search.tiles import held_beside, least_columns
from mirage_cli.target.gpus import Target
from mirage_cli.tune.normal import normalised
from mirage_cli.tune.price import total_us, totals_us
from mirage_cli.tune.space import WARPS, complete, in_other_orders, with_kernel

STAGES = (1, 2, 3, 4, 5, 6, 7, 9)
GROUPS = (1, 4, 8, 16)
GROUP = 8
"""Of a first schedule of a large product."""
SPLIT_LIMIT = 256
CROWDED, MANY_WARPS = 96, 4
"""Elements that a thread holds, and warps, from which a multiprocessor's registers may suffice for two blocks alone.
Warps that are specialized share registers in another way. The cost model does not tell limits apart: where they are
offered for less, the tuner tries little else."""
SPARE_REGISTERS = 32
"""Registers that a thread needs at least besides those that hold accumulators."""
ALL_RELAY = tuple((Lead(lead), n) for lead in (2, 4) for n in AHEAD[1:3])
"""Choices for all kernels at once, each of which relays if it may: the lead of one that may not relay, and the
iterations that are fetched ahead. A kernel gains by starting ahead of time only where the one in front does."""
LAST_RELAYS = tuple((hand_over, n) for hand_over in (Early(), Lead(4)) for n in AHEAD[:3])
"""Choices for all kernels but the last, where the last relays: it may where one in front of it does not."""


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
            if (made := with_kernel(graph, schedule, name, other, target)) is not None:
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
    yield from in_other_orders(m, s, sizes)
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
        if other < least or other >= 2 * max(sizes[d], MIN_DOT) or not _may_have(m, d, other, sizes):
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
