"""The schedule space: what the tuner may try for each kernel of a μGraph, ranked by the cost model.

`first_schedules` starts a search, `neighbours` continues one; both know kernels only through `search.work.Model`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice, product
from math import prod

import numpy as np

from mirage_cli.codegen.access import (
    SPECIALIZED_WARPS,
    descriptors,
    fetched_ahead,
    leading,
    relays,
    specialized,
    streamed,
)
from mirage_cli.ir.mugraph import Kernel, MuGraph, split_axis
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
    on_matrix_units,
)
from mirage_cli.search import cost, work
from mirage_cli.search.batch import Array, Batch, elements_of, held
from mirage_cli.search.tiles import choices, default_order, exchanged, held_beside
from mirage_cli.search.work import chunk_sizes, models
from mirage_cli.target.gpus import Target
from mirage_cli.tune.hidden import fits, hidden_us, pairs

WARPS = (1, 2, 4, 8, 16)
STAGES = (1, 2, 3, 4, 5, 6, 7, 9)
GROUPS = (1, 4, 8, 16)
GROUP = 8
"""Of a first schedule of a large product."""
SPLIT_LIMIT = 256
REGISTERS_HELD = 0.5
"""The part of a multiprocessor's registers that the largest value may take in a kernel without products. Of kernels for
sm_90, those that filled half had 158 to 213 registers a thread, or spilled up to 488 bytes where they reduce many
short rows; those that filled all spilled, with 8 warps and with 16."""
CROWDED, MANY_WARPS = 96, 4
"""Elements that a thread holds, and warps, from which a multiprocessor's registers may suffice for two blocks alone.
Warps that are specialized share registers in another way. The cost model does not tell limits apart: where they are
offered for less, the tuner tries little else."""
SMALLER = 256
"""Schedules of a kernel, best first, among which some are looked for that have room beside the next kernel."""
ROOMY = 4
"""Of those, how many are tried, each in other blocks. X·A beside X·W, 2048 x 4096 x 4096, on an H200: 103 us where X·A
is in 32 blocks, 109 to 142 where it is in 128, which the cost model holds to be the faster one."""
UNLIKE = 1.001
"""How much longer a call must take by the cost model for another such schedule to be worth a trial."""
BESIDE = 32
"""Registers that a thread needs beside those, at the least."""
RELAYED = tuple((Lead(lead), n) for lead in (2, 4) for n in AHEAD[1:3])
"""How all kernels of a μGraph may be ahead of time at once, if they relay: when one that may not relay lets the next
start, and iterations that are fetched ahead. One that is ahead is of use to one behind it that is too."""
HELD = tuple((hand_over, n) for hand_over in (Early(), Lead(4)) for n in AHEAD[:3])
"""The same for all but the last kernel, where that relays, which it does behind one that does not."""


def ranked(
    m: work.Model, sizes: Mapping[str, int], target: Target, split: int | None = None
) -> Iterator[KernelSchedule]:
    """All tile sizes, chunks, two depths of stages and, where there are products, both orders of one kernel with
    default warps, best first; those that fit."""
    order = default_order(m)
    orders = [order, exchanged(m, order)] if m.matrix_axes(sizes) else [order]
    found = choices(m, sizes, target, orders, coarse=False, split=split)
    us = cost.estimate(m, found.batch, sizes, target).us
    seen: set[KernelSchedule] = set()
    for i in np.argsort(us, kind="stable")[: np.isfinite(us).sum()]:
        s = found.schedule(int(i))
        if s not in seen:
            seen.add(s)
            yield s


@lru_cache(maxsize=1024)
def _best(
    m: work.Model, sizes: tuple[tuple[str, int], ...], target: Target, split: int | None
) -> KernelSchedule | None:
    """The first of the ranked schedules."""
    return next(ranked(m, dict(sizes), target, split), None)


def first_schedules(graph: MuGraph, target: Target, count: int, varied: str | None = None) -> list[Schedule]:
    """Up to `count` schedules: for one kernel the cost model's best, then the best with each block size that those
    before lack; both with operands swapped too where it has products. The other kernels' best with each. Blocks that
    are sure to spill registers are left out.

    varied: the name of that kernel; the dearest where there is none.
    """
    by_name = models(graph)
    if not by_name:
        return [Schedule({})]
    base = complete(graph, by_name, target, {})
    if base is None:
        return []
    varied = varied or dearest_kernel(graph, base, target)
    found: dict[str, Schedule] = {}
    m, sizes = by_name[varied], chunk_sizes(graph, base)
    matrix, room = bool(m.matrix_axes(sizes)), REGISTERS_HELD * target.regs_per_sm
    fitting = (s for s in ranked(m, sizes, target) if matrix or _held_by_all(m, s, sizes) <= room)
    for s in _varied(fitting):
        swapped = [replace(s, order=exchanged(m, s.order))] if matrix else []
        for variant in (s, *swapped):
            schedule = complete(graph, by_name, target, {varied: variant})
            if schedule is not None:
                for made in (*_with_room(graph, schedule, target, by_name), schedule):
                    found.setdefault(str(made), made)
        if len(found) >= count:
            break
    return list(found.values())[:count]


@lru_cache(maxsize=64)
def _best_of_many(
    m: work.Model, sizes: tuple[tuple[str, int], ...], target: Target, split: int
) -> tuple[list[KernelSchedule], Array]:
    """The first of the ranked schedules, which let the next kernel start early, with their bytes of shared memory."""
    known = dict(sizes)
    some = [replace(s, hand_over=Early()) for s in islice(ranked(m, known, target, split), SMALLER)]
    return some, cost.estimate(m, Batch.of(m, some, known), known, target).shared_bytes


def _with_room(
    graph: MuGraph, schedule: Schedule, target: Target, by_name: Mapping[str, work.Model]
) -> Iterator[Schedule]:
    """The schedule with kernels that may run beside the next one small enough for that, in several blocks, where that
    is faster."""
    sizes = chunk_sizes(graph, schedule)
    for name, behind in pairs(graph) if target.overlaps else ():
        some, shared = _best_of_many(by_name[name], tuple(sizes.items()), target, schedule.kernels[name].split)
        other = predicted(by_name[behind], schedule.kernels[behind], sizes, target).shared_bytes
        small: dict[tuple[int, ...], KernelSchedule] = {}
        for x, room in zip(some, fits(shared, other, target), strict=True):
            if room:
                small.setdefault(tuple(x.tile(d) for d in by_name[name].grid), x)
        made = (complete(graph, by_name, target, {**schedule.kernels, name: x}) for x in islice(small.values(), ROOMY))
        priced = sorted(((total_us(graph, s, target, by_name), s) for s in made if s), key=lambda p: p[0])
        last_us, limit_us = 0.0, total_us(graph, schedule, target, by_name)
        for us, s in priced:
            if last_us * UNLIKE < us < limit_us:
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
        least = {d: cost.MIN_DOT if d in matrix else 1 for d, _ in s.tiles}
        tiles = tuple((d, min(t, max(next_power_of_two(sizes[d]), least[d]))) for d, t in s.tiles)
        s = replace(s, tiles=tiles)
        if m.split is not None:
            s = replace(s, split=min(s.split, -(-sizes[m.split] // s.tile(m.split))))
        given[name] = s
    made = complete(graph, by_name, target, given)
    return made if made is not None and np.isfinite(total_us(graph, made, target, by_name)) else None


def kernels_us(graph: MuGraph, schedule: Schedule, target: Target) -> dict[str, float]:
    """What each generated kernel takes by the cost model."""
    sizes = chunk_sizes(graph, schedule)
    return {n: predicted_us(m, schedule.kernels[n], sizes, target) for n, m in models(graph).items()}


def dearest_kernel(graph: MuGraph, schedule: Schedule, target: Target) -> str:
    """The generated kernel that takes longest."""
    us = kernels_us(graph, schedule, target)
    return max(us, key=us.__getitem__)


def _varied(schedules: Iterable[KernelSchedule]) -> Iterator[KernelSchedule]:
    """Those that bring a block size or a number of chunks that none before had, then the others, in order."""
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


def predicted_us(m: work.Model, s: KernelSchedule, sizes: Mapping[str, int], target: Target) -> float:
    return float(predicted(m, s, sizes, target).us[0])


def predicted(m: work.Model, s: KernelSchedule, sizes: Mapping[str, int], target: Target) -> cost.Estimates:
    return cost.estimate(m, Batch.of(m, [s], sizes), sizes, target)


def complete(
    graph: MuGraph,
    by_name: Mapping[str, work.Model],
    target: Target,
    given: Mapping[str, KernelSchedule],
) -> Schedule | None:
    """A schedule for every kernel: those given, and the cost model's best for the others. None where none fits.

    Kernels that split the same dimension get the same number of chunks, since their partial results share an axis.
    """
    sizes = dict(graph.sizes)
    chosen: dict[str, KernelSchedule] = {}
    for k in graph.kernels:
        if k.split is not None and k.name in given:
            sizes.setdefault(split_axis(k.split), given[k.name].split)
    for k in graph.kernels:
        if k.kind == "library":
            continue
        m = by_name[k.name]
        chunks = sizes.get(split_axis(k.split)) if k.split is not None else None
        s = given.get(k.name)
        if s is None:
            s = _best(m, tuple(sizes.items()), target, chunks)
            if s is None:
                return None
        elif chunks is not None and s.split != chunks:
            s = replace(s, split=chunks)
        if k.split is not None:
            sizes.setdefault(split_axis(k.split), s.split)
        chosen[k.name] = s
    return Schedule(chosen)


def bottlenecks(graph: MuGraph, schedule: Schedule, target: Target) -> dict[str, tuple[str, float]]:
    """For each generated kernel what the cost model says it waits for (of `cost.LIMITS`), and its predicted time."""
    found = estimates(graph, schedule, target).items()
    return {name: (cost.LIMITS[int(e.limit[0])], round(float(e.us[0]), 3)) for name, e in found}


def estimates(graph: MuGraph, schedule: Schedule, target: Target) -> dict[str, cost.Estimates]:
    """For each generated kernel what the cost model says of this one schedule."""
    sizes = chunk_sizes(graph, schedule)
    return {
        name: cost.estimate(m, Batch.of(m, [schedule.kernels[name]], sizes), sizes, target)
        for name, m in models(graph).items()
    }


def total_us(graph: MuGraph, schedule: Schedule, target: Target, by_name: Mapping[str, work.Model]) -> float:
    """The cost model's time of a whole μGraph."""
    return float(totals_us(graph, [schedule], target, by_name)[0])


def totals_us(
    graph: MuGraph,
    schedules: Sequence[Schedule],
    target: Target,
    by_name: Mapping[str, work.Model],
    without: Collection[str] = (),
) -> Array:
    """The cost model's times of a whole μGraph under many schedules, in microseconds. without: of `cost.TERMS`.

    A kernel that starts early gains nothing behind the library's, which let none start; the last of a call is in front
    of the first of the next (pairs of schedules that differ in nothing else: 0.5 us lost to 0.1 us gained).
    """
    total = np.zeros(len(schedules))
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}  # by sizes, those of the chunk axes among them
    for i, s in enumerate(schedules):
        alike.setdefault(tuple(chunk_sizes(graph, s).items()), []).append(i)
    for axes, places in alike.items():
        total[places] = _same_sizes_us(graph, [schedules[i] for i in places], dict(axes), target, by_name, without)
    return total


def _same_sizes_us(
    graph: MuGraph,
    schedules: Sequence[Schedule],
    sizes: Mapping[str, int],
    target: Target,
    by_name: Mapping[str, work.Model],
    without: Collection[str],
) -> Array:
    element = graph.element_bytes
    total = np.zeros(len(schedules))
    batches: dict[str, Batch] = {}
    found: dict[str, cost.Estimates] = {}
    for i, k in enumerate(graph.kernels):
        if k.kind == "library":
            total += cost.library_us(k, graph.inputs, sizes, element[k.stores[0].buffer], target)
            continue
        batch = Batch.of(by_name[k.name], [s.kernels[k.name] for s in schedules], sizes)
        if graph.kernels[i - 1].kind == "library":
            batch = replace(batch, overlap=np.zeros(len(schedules)))
        batches[k.name], found[k.name] = batch, cost.estimate(by_name[k.name], batch, sizes, target, without)
        total += found[k.name].us
    return total - sum(hidden_us(graph, batches, found, target), np.zeros(len(schedules)))


def neighbours(graph: MuGraph, schedules: Sequence[Schedule], target: Target) -> list[list[tuple[float, Schedule]]]:
    """For each schedule those that differ in one choice of one kernel, with their predicted times, least first.

    Among them those in which all kernels are ahead of time. The model prices many at once in hardly more time than one.
    """
    by_name = models(graph)
    each = [_neighbours(graph, s, target, by_name) for s in schedules]
    us = totals_us(graph, [s for near in each for s in near], target, by_name)
    parts = np.split(us, np.cumsum([len(near) for near in each])[:-1])
    return [sorted(_that_fit(some, near), key=lambda x: x[0]) for some, near in zip(parts, each, strict=False)]


def _neighbours(
    graph: MuGraph, schedule: Schedule, target: Target, by_name: Mapping[str, work.Model]
) -> list[Schedule]:
    sizes = chunk_sizes(graph, schedule)
    found: dict[str, Schedule] = {}
    for made in _ahead_of_time(graph, schedule) if target.overlaps else ():
        found[str(made)] = made
    for name, s in schedule.kernels.items():
        kernel = by_name[name].kernel
        for other in _variations(by_name[name], s, tuple(sizes.items()), target):
            given = {**schedule.kernels, name: other}
            if kernel.split is not None and other.split != s.split:  # the merge has another axis to walk: refit it
                given = {n: k for n, k in given.items() if n == name or by_name[n].kernel.split is None}
                given = {n: k for n, k in given.items() if not _reads_chunks(by_name[n].kernel, kernel.split)}
            if (made := complete(graph, by_name, target, given)) is not None:
                made = settled(graph, made)
                found[str(made)] = made
    found.pop(str(schedule), None)
    return [*found.values()]


def _ahead_of_time(graph: MuGraph, schedule: Schedule) -> Iterator[Schedule]:
    """All kernels start ahead of time, in one of the ways that have to do with several."""

    def fetching(ahead: int, **words: bool) -> dict[str, KernelSchedule]:
        changed = {"overlap": True, "fetch": True, "ahead": ahead, **words}
        return {k: s.choosing(**changed) for k, s in schedule.kernels.items()}

    for n in AHEAD:
        yield settled(graph, Schedule(fetching(n, early=True)))
    for lead, n in RELAYED:
        made = settled(graph, Schedule(fetching(n, relay=True))).kernels
        kernels = {k: s if s.hand_over == Relay() else replace(s, hand_over=lead) for k, s in made.items()}
        yield settled(graph, Schedule(kernels))
    last = graph.kernels[-1].name
    for hand_over, n in HELD if last in schedule.kernels and len(graph.kernels) > 1 else ():
        given = {k: Relay() if k == last else hand_over for k in schedule.kernels}
        kernels = {k: replace(s, hand_over=given[k]) for k, s in fetching(n).items()}
        yield settled(graph, Schedule(kernels))


def ahead_of_time(graph: MuGraph, schedule: Schedule, target: Target, count: int) -> list[Schedule]:
    """The schedule with all kernels ahead of time: the cost model's best of so many ways to hand over, each with and
    without iterations that are fetched ahead."""
    made = {str(s): s for s in (_ahead_of_time(graph, schedule) if target.overlaps and schedule.kernels else ())}
    made.pop(str(schedule), None)
    us = totals_us(graph, [*made.values()], target, models(graph))
    ways: dict[tuple[object, ...], Schedule] = {}
    for _, s in sorted(_that_fit(us, made.values()), key=lambda x: x[0]):
        ways.setdefault(tuple((k.hand_over, k.ahead is None) for k in s.kernels.values()), s)
    return [*ways.values()][:count]


def through_descriptors(graph: MuGraph, schedule: Schedule, target: Target) -> Schedule | None:
    """The schedule with all kernels that may reading through descriptors; None where none may, or all do."""
    if not target.descriptors:
        return None
    made = settled(graph, Schedule({n: replace(s, descriptors=True) for n, s in schedule.kernels.items()}))
    fits = np.isfinite(total_us(graph, made, target, models(graph)))
    return made if fits and str(made) != str(schedule) else None


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
    return settled(graph, Schedule(grouped)) if names else None


def crossings(
    graph: MuGraph, schedules: Sequence[Schedule], others: Sequence[Schedule], target: Target
) -> list[tuple[float, Schedule]]:
    """Each schedule with each kernel in turn as another one has it, with predicted times."""
    by_name = models(graph)
    found: dict[str, Schedule] = {}
    for a, b in product(schedules, others):
        for name in a.kernels:
            if b.kernels[name] == a.kernels[name]:
                continue
            if (made := complete(graph, by_name, target, {**a.kernels, name: b.kernels[name]})) is not None:
                made = settled(graph, made)
                found[str(made)] = made
    return _that_fit(totals_us(graph, [*found.values()], target, by_name), found.values())


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
    made = [settled(graph, Schedule(x)) for x in some]
    return [*{str(s): s for s in made if str(s) != str(schedule)}.values()]


def manner(schedule: Schedule) -> tuple[tuple[bool, type[HandOver], bool], ...]:
    """How each kernel starts, lets the next one start, and reads."""
    return tuple((s.overlap, type(s.hand_over), s.descriptors) for s in schedule.kernels.values())


def settled(graph: MuGraph, schedule: Schedule) -> Schedule:
    """The schedule without choices that change nothing of the kernels they are made for."""
    sizes, overlaps = tuple(chunk_sizes(graph, schedule).items()), _overlaps(schedule)
    kernels = {k.name: k for k in graph.kernels}
    relaying = {n: s.hand_over == Relay() and relays(graph, kernels[n], schedule) for n, s in schedule.kernels.items()}
    made = ((n, _settled(graph, kernels[n], s, sizes, overlaps, relaying[n])) for n, s in schedule.kernels.items())
    return Schedule(dict(made))


def _overlaps(schedule: Schedule) -> bool:
    return any(s.overlap for s in schedule.kernels.values())


@lru_cache(maxsize=1 << 14)
def _settled(
    graph: MuGraph, k: Kernel, s: KernelSchedule, axes: tuple[tuple[str, int], ...], overlaps: bool, relaying: bool
) -> KernelSchedule:
    """axes: with their sizes. overlaps: whether any kernel does. relaying: whether it may relay where it would."""
    sizes = dict(axes)
    if s.specialize:
        special = specialized(graph, k, s, sizes)
        s = _with(s, specialize=special, descriptors=s.descriptors or special)
    if not _hands_over(graph, k, s, sizes, overlaps, relaying):
        s = _with(s, hand_over=AtEnd())
    if s.before != Before.NOTHING or s.ahead is not None:
        found = fetched_ahead(graph, k, s, sizes)
        before = s.before if None in found else Before.NOTHING
        s = _with(s, before=before, ahead=s.ahead if found.keys() - {None} else None)
    if s.tf32x3:
        s = _with(s, tf32x3=_single(graph, k, s, sizes))
    if s.patient:
        s = _with(s, patient=s.overlap and _behind_others(graph, k))
    if s.descriptors:
        s = _with(s, descriptors=bool(descriptors(graph, k, s, sizes)))
    return _with(s, stream=bool(streamed(graph, k, s, sizes))) if s.stream else s


def _with(s: KernelSchedule, **choices: object) -> KernelSchedule:
    """The same schedule, with its text, where these are its choices already."""
    return s if all(getattr(s, name) == x for name, x in choices.items()) else replace(s, **choices)


def _hands_over(
    graph: MuGraph, k: Kernel, s: KernelSchedule, sizes: Mapping[str, int], overlaps: bool, relaying: bool
) -> bool:
    """Whether a kernel may let the one behind start when its schedule says so, or that is when its loops are done."""
    match s.hand_over:
        case Relay():
            return relaying
        case Early():
            return overlaps and bool(k.with_role("loop", "split"))
        case Lead():
            return overlaps and leading(graph, k, s, sizes) is not None
        case AtEnd():
            return True


def _behind_others(graph: MuGraph, k: Kernel) -> bool:
    """Whether what is in front of the kernel may be a kernel that releases nothing early."""
    at = graph.kernels.index(k)
    return at == 0 or graph.kernels[at - 1].kind == "library"


def _single(graph: MuGraph, k: Kernel, s: KernelSchedule, sizes: Mapping[str, int]) -> bool:
    """Whether products of float32 are large enough for the matrix units."""
    exact, dims, block = graph.exact()[k.name], k.value_dims, block_sizes(k, s, sizes)
    products = (e for e in k.body if e.op == "dot" and exact & set(e.values))
    return any(on_matrix_units(e, dims, block) for e in products)


def _reads_chunks(kernel: Kernel, dim: str) -> bool:
    return any(split_axis(dim) in x.dims for x in kernel.loads)


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
    held = _held_by_all(m, s, sizes) / (32 * s.warps)
    able = {
        "": True,
        "overlaps": target.overlaps,
        "descriptors": target.descriptors,
        "specializes": target.specializes,
        "single": m.single,
        "crowded": held >= CROWDED and s.warps >= MANY_WARPS and not s.specialize,
    }
    for c in CHOICES:
        if able[c.needs]:
            near = (replace(s, **{c.field: x}) for x in c.near(getattr(s, c.field)))
            yield from (x for x in near if x.registers is None or x.registers >= held + BESIDE)
    if target.overlaps:
        yield from (replace(s.choosing(overlap=True, ahead=n), hand_over=lead) for lead, n in RELAYED)
    if target.specializes:
        yield replace(s, specialize=True, warps=SPECIALIZED_WARPS)


def _held_by_all(m: work.Model, s: KernelSchedule, sizes: Mapping[str, int]) -> float:
    """Elements that a block's threads hold of all accumulators, or of the largest block that is computed."""
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
    if m.matrix_axes(sizes):
        yield replace(s, order=exchanged(m, s.order))
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
    least = max(1, cost.MIN_DOT // held_beside(m, d, sizes)) if matrix else 1
    for other in (tile // 2, tile * 2):
        if other < least or d in m.batch_axes(sizes) or other >= 2 * max(sizes[d], cost.MIN_DOT):
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
