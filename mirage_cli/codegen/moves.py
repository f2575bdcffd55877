"""Loads, stores and prefetches of a kernel as statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

from mirage_cli.codegen import addresses, axisnames, bytepairs, nodes, plan, scalars, words
from mirage_cli.codegen.access import Descriptor, Fetch
from mirage_cli.codegen.addresses import Place
from mirage_cli.codegen.blocks import EVERYWHERE, LINE_BYTES, Live, ScheduledKernel
from mirage_cli.codegen.loops import loop_starts, positions, span, starts
from mirage_cli.codegen.nodes import WORD_BITS, Axes, Expr
from mirage_cli.codegen.plan import Statement
from mirage_cli.codegen.scalars import Start
from mirage_cli.ir.access import Access, Atom, Index, Lookup, Remainder, dims_of, strides
from mirage_cli.ir.mugraph import Load, Store
from mirage_cli.ir.placement import Loop
from mirage_cli.ir.program import DTYPE_BYTES, FLOAT8
from mirage_cli.ir.schedule import Before, next_power_of_two

# -- loads and stores


def load(
    k: ScheduledKernel,
    x: Load,
    box: Descriptor | None,
    once: bool,
    at: Mapping[str, Start],
    ahead: scalars.Ahead | None = None,
) -> plan.Load:
    """box: what it goes through, if it does. at: where blocks start. ahead: of which iteration, if of another."""
    axes = k.axes_of(x.out)
    dtype = k.tensors[x.buffer].dtype
    whole = dtype == "int64"
    if x.out in k.paired:
        return _pairs_of_bytes(k, x, once, at)
    if x.out in k.worded:
        return _words(k, x, once, at)
    if box is None:
        merged = [axis for axis in axes if axisnames.apart((axis,)) != (axis,)]
        picked: dict[str, Place] = {
            d: addresses.MergedLanes(d, axis, at[d], k.huge) for axis in merged for d in axisnames.apart((axis,))
        }
        inside, outside = within(k, x.buffer, x.access, picked), 0.0
        if (live := k.live.get(x.buffer)) is not None:
            inside, outside = (*inside, *_stored(k, live)), live.identity
        repeated = tuple(k.repeats(x).items())
        where = pointers(k, x.buffer, x.access, axes, picked | _once_each(k, x, at))
        mask = k.masked_dims(x.dims, axisnames.apart(axes))
        several = tuple((d, n) for d, n in repeated if d in axes)
        return plan.Load(
            out=x.out,
            access=where,
            mask=mask,
            once=once,
            within=inside,
            whole=whole,
            float8=dtype in FLOAT8,
            repeated=several,
            axes=axes,
            outside=outside,
            ahead=ahead,
        )
    corners = tuple(_corner(i, at) for i in box.at)
    access = addresses.Box(x.out, x.buffer, box.dims, corners, axisnames.merged_as(axes, box.block), axes)
    # a box reads what lies past the end of a dimension as zero
    return plan.Load(x.out, access, (), once, (), whole, axes=axes)


def _corner(i: Index, at: Mapping[str, Start]) -> scalars.Corner:
    """Where a box starts by an index."""

    def start(a: Atom) -> Start:
        if isinstance(a, str):
            return at[a]
        assert not isinstance(a, Lookup), "boxes are not read by tables"
        return scalars.AtDivided(_corner(a.of, at), a.by, isinstance(a, Remainder))

    return scalars.Corner(tuple((start(a), c) for a, c in i.terms), i.offset)


def _pairs_of_bytes(k: ScheduledKernel, x: Load, once: bool, at: Mapping[str, Start]) -> plan.Load:
    """A load of 16 bits at a time: bytes are half as far apart, words twice."""
    (dim, count), axes = k.paired[x.out], bytepairs.block_axes(k, x)
    numbers = addresses.SharedNumbers(dim, at[dim], count)
    where = pointers(k, x.buffer, bytepairs.whole_access(x, dim), axes, {dim: numbers})
    size = DTYPE_BYTES[k.tensors[x.buffer].dtype]
    terms = tuple((p, 1 if p == numbers else _of_16_bits(n, size)) for p, n in where.terms)
    start = _of_16_bits(where.start, size)
    return plan.Load(x.out, replace(where, terms=terms, start=start, bits=16), (), once, axes=axes)


def _words(k: ScheduledKernel, x: Load, once: bool, at: Mapping[str, Start]) -> plan.Load:
    """A load of the word in which numbers lie, once for each so many of them."""
    (dim, count), room = k.worded[x.out], words.room_of(k, x)
    axes = (axisnames.shared(dim, count),)
    numbers = addresses.SharedNumbers(dim, at[dim], count) if count > 1 else addresses.Lanes(dim, True)
    word = numbers if count == room else addresses.Divided(((numbers, count),), 0, room, False, axes, False)
    where = pointers(k, x.buffer, x.access, axes, {dim: numbers, **_once_each(k, x, at)})
    terms = tuple((word, 1) if p == numbers else (p, _in(room, n)) for p, n in where.terms)
    where = replace(where, terms=terms, start=_in(room, where.start), bits=WORD_BITS)
    part = words.number(k, x) if count == 1 else None
    return plan.Load(x.out, where, k.masked_dims(x.dims, axes) if count == 1 else (), once, axes=axes, part=part)


def _once_each(k: ScheduledKernel, x: Load, at: Mapping[str, Start]) -> dict[str, Place]:
    """Of the positions in a row that read the same, the first."""
    some = k.repeats(x).items()
    return {d: addresses.Picked(d, k.block[d] > n, at[d], k.huge, _every(k.block[d], n)) for d, n in some}


def _in(room: int, n: scalars.Stride) -> int:
    """So many numbers in words, each of which has room for so many."""
    assert isinstance(n, int) and n % room == 0, "words begin with the same number of each row"
    return n // room


def _of_16_bits(n: scalars.Stride, size: int) -> int:
    """So many elements of a size in bytes, counted in 16 bits."""
    assert isinstance(n, int), "no size is an argument"
    return n * size // 2


def look_up(k: ScheduledKernel, a: Lookup) -> plan.Load:
    """A block of a table. Lanes that do not exist hold 0, which is a position too."""
    axes, dims = k.axes(dims_of(a.access)), dims_of(a.access)
    where, inside = pointers(k, a.table, a.access, axes), within(k, a.table, a.access)
    whole = k.tensors[a.table].dtype != "int32"
    return plan.Load(k.looked_up[a], where, k.masked_dims(dims, axes), False, inside, whole, axes=axes)


def _every(block: int, n: int) -> addresses.Every | None:
    """Each n-th position of a block; None where that is its first alone."""
    return addresses.Every(block, block // n, n, 1) if block > n else None


def _stored(k: ScheduledKernel, live: Live) -> Iterator[addresses.Within]:
    """Where a partial result was stored."""
    for i in live.where:
        if i.lookups or {*i.dims} & k.dynamic or i.bounds(k.sizes)[0] < 0:
            terms, start = k.places(i)
            yield addresses.Within(terms, start, True, None)


def within(
    k: ScheduledKernel, buffer: str, access: Access, picked: Mapping[str, Place] = EVERYWHERE
) -> tuple[addresses.Within, ...]:
    """The bounds of a tensor that a load may read beyond, and a store name places before. picked: as of `pointers`."""
    found: list[addresses.Within] = []
    for d, i in zip(k.tensors[buffer].dims, access, strict=True):
        before, behind = i.leaves(k.sizes[d], k.sizes)
        if before or behind:
            terms, start = k.places(i, picked)
            found.append(addresses.Within(terms, start, before > 0, k.sizes[d] if behind else None))
    return tuple(found)


def pointers(
    k: ScheduledKernel, buffer: str, access: Access, axes: Axes, picked: Mapping[str, Place] = EVERYWHERE
) -> addresses.Pointers:
    """A block of pointers into a buffer by an access in dimensions of the kernel.

    picked: positions along some dimensions, where they are not those of the current block.
    """
    terms: list[tuple[Place, scalars.Stride]] = []
    apart = k.tensors[buffer].sized_steps(k.sizes, k.dynamic)
    starts: list[scalars.Times] = []
    start = 0
    for behind, some in groupby(zip(access, apart, strict=True), lambda x: x[1][1]):
        indices, numbers = zip(*((i, number) for i, (number, _) in some), strict=True)
        steps, more = strides(indices, numbers)
        for a, n in steps.items():
            place, moved = k.place(a, picked)
            more += moved * n
            if place is not None:
                terms.append((place, scalars.Times(n, behind) if behind else n))
        if behind:
            starts += [scalars.Times(more, behind)] * bool(more)
        else:
            start += more
    return addresses.Pointers(buffer, axes, tuple(terms), start, tuple(starts))


def store(k: ScheduledKernel, s: Store) -> plan.Store:
    axes = k.axes(s.dims)
    split = k.kernel.split
    once = tuple(d for d in k.kernel.with_role("grid") if d not in s.dims and k.tiled(d))
    one_chunk = split is not None and k.schedule.split > 1 and not {split, k.kernel.chunk} & set(s.dims)
    kind, dtype = k.type_of(s.value), k.tensors[s.buffer].dtype
    block: Expr = k.full_block(s.value)
    if kind != dtype or s.value not in k.loads:
        block = nodes.Cast(block, kind, dtype)
    if block.axes and block.axes != axes:
        block = nodes.Spread(block, axes)
    where, inside = pointers(k, s.buffer, s.access, axes), within(k, s.buffer, s.access)
    room = {d: n for d, n in row_of(k, s).items() if d in k.padded}
    longer = {d: n for d, n in room.items() if -(-k.sizes[d] // k.block[d]) * k.block[d] > n}
    ends = (addresses.Within(((addresses.Lanes(d, True), 1),), 0, False, n) for d, n in longer.items())
    mask = tuple(d for d in k.masked_dims(s.dims, axes) if d not in room)
    return plan.Store(where, block, mask, once, one_chunk, (*inside, *ends), tuple(room.items()))


def row_of(k: ScheduledKernel, s: Store) -> dict[str, int]:
    """The axis along which elements of an intermediate lie side by side, with the positions that a row has room for,
    where these are more than the axis has."""
    t = k.tensors[s.buffer]
    if t not in k.graph.buffers or not any(t.strides):
        return {}
    room = t.steps(k.sizes)[-2]
    return {d: room for d in [s.access[-1].axis] if d is not None and d == t.dims[-1] and k.sizes[d] < room}


# -- prefetches


def prefetches(k: ScheduledKernel, ahead: Mapping[Loop | None, Sequence[Fetch]], specialized: bool) -> list[Statement]:
    """What is fetched into the L2 before the wait, `access.fetched_ahead`. specialized: of the kernel's loops."""
    found: list[Statement] = []
    for loop, fetches in ahead.items():
        if loop is None:
            picker = _Picker(k, starts(k))
            found += [picker.prefetch(x, k.schedule.before == Before.READ) for x in fetches]
        elif k.schedule.ahead is not None:
            found.append(_fetching_loop(k, loop, fetches, k.schedule.ahead.iterations, specialized))
    return found


def _fetching_loop(
    k: ScheduledKernel, loop: Loop, fetches: Sequence[Fetch], iterations: int, specialized: bool
) -> plan.Loop:
    """What fetches so many iterations of a loop, several of them at once where each has few lines."""
    (d,) = loop.dims
    most = max(prod(_lines(k, x, d).values()) for x in fetches)
    tiles = 1
    while 2 * tiles * most <= 32 * k.schedule.warps and iterations % (2 * tiles) == 0:
        tiles *= 2
    first, last = span(k, d)
    length = iterations * k.block[d]
    end = scalars.Number(length) if first == scalars.Number(0) else scalars.Plus(first, length)
    picker = _Picker(k, starts(k, loop), d, tiles)
    ((_, start),) = loop_starts(k, loop).items()
    body = positions(k, d, start), *(picker.prefetch(x, False) for x in fetches)
    over = plan.Over(d, first, scalars.Bound(False, (last, end)), k.block[d] * tiles)
    return plan.Loop(over, specialized, body)


def _lines(k: ScheduledKernel, x: Fetch, loop: str | None) -> dict[str, int]:
    """How many pointers there are along each dimension of a load, one into each cache line, in an iteration."""
    count = {d: k.block[d] for d in x.load.dims}
    if loop is not None and x.part is not None:
        count[loop] = x.part
    return count | {d: max(count[d] // n, 1) for d, n in _line_of(k, x.load).items()}


def _line_of(k: ScheduledKernel, x: Load) -> dict[str, int]:
    """How many neighbours a cache line surely has along the axis where they are nearest in memory: a power of two, as
    in blocks. A scalar has none."""
    t = k.tensors[x.buffer]
    steps, _ = strides(x.access, t.steps(k.sizes))
    least = min((abs(steps[d]) for d in x.dims), default=0)
    nearest = [d for d in x.dims if abs(steps[d]) == least][-1:]
    apart_bytes = DTYPE_BYTES[t.dtype] * next_power_of_two(max(least, 1))
    return {d: max(LINE_BYTES // apart_bytes, 1) for d in nearest}


@dataclass(frozen=True, slots=True)
class _Picker:
    """One pointer into each cache line of a load's block. tiles: iterations of the loop along `loop` at once."""

    scheduled: ScheduledKernel
    at: Mapping[str, Start]
    loop: str | None = None
    tiles: int = 1

    def prefetch(self, x: Fetch, read: bool) -> plan.Prefetch:
        k, dims = self.scheduled, x.load.dims
        count = _lines(k, x, self.loop)
        if self.loop is not None and self.loop in count:
            count[self.loop] *= self.tiles
        axes = tuple(d for d in k.order if d in dims and count[d] > 1)
        picked = {d: p for d in dims if (p := self.picked(x, d, count[d])) is not None}
        return plan.Prefetch(pointers(k, x.load.buffer, x.load.access, axes, picked), read)

    def picked(self, x: Fetch, d: str, count: int) -> addresses.Picked | None:
        """The positions along a dimension; None for those of the current block. count: how many they are."""
        k, line = self.scheduled, _line_of(self.scheduled, x.load)
        clamped = d in k.padded or (d == self.loop and self.tiles > 1)
        if d not in (*line, self.loop):
            return addresses.Picked(d, count > 1, clamped=True) if clamped else None
        tiles = self.tiles if d == self.loop else 1
        every = addresses.Every(k.block[d], count // tiles, line.get(d, 1), tiles) if count > 1 else None
        return addresses.Picked(d, count > 1, self.at[d], d not in line and k.huge, every, clamped)
