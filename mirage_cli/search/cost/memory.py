"""What a launch moves: the times of device memory and of the L2, and the bytes that they follow from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np

from mirage_cli.ir import turns
from mirage_cli.ir.access import Access, dims_of, lookups_of, strides
from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.program import SECTOR_BYTES, Tensor
from mirage_cli.ir.reach import Leaf
from mirage_cli.search.cost.batch import Array
from mirage_cli.search.cost.occupancy import Launch, Occupancy, Segment, in_one_load, touched, used
from mirage_cli.search.cost.traffic import BufferPart, bytes_once, of_parts, part_of
from mirage_cli.search.cost.work import Loaded, Stored, Work


def memory_us(x: Launch, stored: Array, o: Occupancy) -> Array:
    """(bytes of each tensor that is read + of what is read again + bytes that are stored + what fills sectors of which
    stores write a part) / the memory's rate"""
    again = x.term("again", _read_again_bytes(x, o), 0.0)
    filled = x.term("filled", _filled_bytes(x), 0.0)
    return (read_bytes(x) + again + stored + filled) / x.target.dram_bytes_per_us


def l2_us(x: Launch, segments: Sequence[Segment], o: Occupancy) -> Array:
    """(Σ runs · fetched / (`boxes` through descriptors, `grouped` in loops in which warpgroups multiply, else 1) + what
    stores of short runs waste) / (the L2's rate · min(1, `port` · spread)) + `partial` · bytes of sectors of which
    instructions write parts / the L2's rate"""
    ports = x.term("port", np.minimum(1.0, x.target.costs.port * o.spread), o.spread)
    fetched = sum((s.runs * s.fetched / _sooner(x, s) for s in segments), x.zero)
    changed = x.target.costs.partial * x.term("partial", _partial_bytes(x), 0.0) / x.target.l2_bytes_per_us
    return (fetched + x.term("scattered", _scattered_bytes(x), 0.0)) / (x.target.l2_bytes_per_us * ports) + changed


def _sooner(x: Launch, s: Segment) -> Array:
    """How many times as fast as others the blocks of a segment come from the L2."""
    c, looping = x.target.costs, bool(s.work.loop)
    grouped = reduce(np.logical_or, (p.on_units & p.grouped for p in s.products), x.zero > 0)
    faster = x.term("warpgroups", np.where(grouped & looping, c.grouped, 1.0), 1.0)
    return np.where(x.term("descriptors", x.batch.descriptors, 0.0) > 0, c.boxes, faster)


def ahead_bytes(x: Launch, segments: Sequence[Segment]) -> Array:
    """What an instance fetches into the L2 before it waits: what it loads in front of its loops, and in the first."""
    b, total = x.batch, x.zero
    if segments and not segments[0].work.loop:
        total = total + b.fetch * segments[0].loaded
    first = next((s for s in segments if s.work.loop), None)
    if first is not None and b.ahead.any():
        total = total + np.minimum(b.ahead, first.trips) / np.maximum(b.share, 1.0) * _least_shared(x, first.work)
    return total * b.overlap


def _least_shared(x: Launch, w: Work) -> Array:
    """Bytes that an iteration loads of what the fewest program instances read alike."""
    along = {d: x.tiles[d] for d in x.m.grid} | ({x.m.split: x.batch.split} if x.m.split else {})
    readers = [reduce(np.multiply, (n for d, n in along.items() if d not in y.axes), np.array(1.0)) for y in w.loads]
    least = reduce(np.minimum, readers, np.array(np.inf))
    own = zip(w.loads, readers, strict=True)
    return sum((np.where(n == least, x.elements[y.axes] * y.element_bytes, 0.0) for y, n in own), np.array(0.0))


def read_bytes(x: Launch) -> Array:
    """Bytes of device memory: each element read once, but for what no loop visits."""
    read: dict[BufferPart, Array] = {}
    accesses: dict[tuple[str, Access], None] = {}
    element_bytes = x.m.bytes_of_buffers
    for w in x.m.segments:
        for y in w.loads:
            whole = prod(x.sizes[a] for a in y.axes) * _bytes_once(x, y)
            read[y.part] = np.maximum(read.get(y.part, x.zero), whole * _part_read(x, w, y.axes))
            accesses[y.part.buffer, y.access] = None
            for table in lookups_of(y.access):
                own = part_of(table.table, table.access)
                of_table = prod(x.sizes[a] for a in dims_of(table.access)) * element_bytes[own.buffer]
                read[own] = np.maximum(read.get(own, x.zero), of_table * _part_read(x, w, y.axes))
                accesses[own.buffer, table.access] = None
    return x.zero + of_parts(read, accesses, element_bytes, x.sizes)


def _bytes_once(x: Launch, y: Loaded) -> float:
    """Of each position of a load, in the mean: `bytes_once`."""
    return bytes_once(y.access, y.element_bytes, x.m.bytes_of_buffers[y.part.buffer], x.sizes, x.target.l2_bytes)


def _read_again_bytes(x: Launch, o: Occupancy) -> Array:
    """Σ over what a loop reads that one before it has read: bytes · (1 - the L2 / what the instances at work read in a
    loop before it is read again)"""
    at_work = x.programs / o.waves
    lost: dict[BufferPart, Array] = {}
    again = x.zero
    for w in (w for w in x.m.segments if w.loop):
        once = {y.part: _bytes_once(x, y) for y in w.loads}
        whole = {y.part: prod(x.sizes[a] for a in y.axes) * once[y.part] for y in w.loads}
        again = sum((whole[part] * lost[part] for part in whole if part in lost), again)
        own = {
            y.part: reduce(
                np.multiply, (x.tiles[a] for a in y.axes if a not in x.m.grid), x.elements[y.axes] * once[y.part]
            )
            for y in w.loads
        }
        read = sum((np.minimum(whole[part], at_work * own[part]) for part in whole), x.zero)
        lost |= dict.fromkeys(whole, 1.0 - np.minimum(1.0, x.target.l2_bytes / np.maximum(read, 1.0)))
    return again


def _part_read(x: Launch, w: Work, axes: Sequence[str]) -> Array | float:
    """The part of a load's elements that is read: what several positions need that it does not have is read once."""
    if not w.limits or w.limits[0].dim not in axes:
        return 1.0
    depends = {a for limit in w.limits for leaf in limit.leaves for a in _axes_of(x.m.kernel, leaf)}
    return x.term("masks", touched(x, w, prod(x.sizes[a] for a in depends.difference(axes))), 1.0)


def _axes_of(kernel: Kernel, leaf: Leaf) -> tuple[str, ...]:
    kind, name = leaf
    if kind == "size":
        return ()
    return (name,) if kind == "index" else kernel.value_dims[name]


def _scattered_bytes(x: Launch) -> Array:
    """Σ over stores: bytes · (1 / the part that is used of the lines they touch - 1)"""
    return sum((whole * (1.0 / used(x, own, None, size) - 1.0) for own, size, whole in _stores(x)), x.zero)


class _Apart(NamedTuple):
    """A store whose neighbours lie so many bytes apart, and between which no other's lie in turns in one block.
    elements: of all that it writes, where that is so. along: the axis. beside: how many stores of the kernel, with
    itself, write between its neighbours."""

    store: Stored
    elements: Array
    apart_bytes: int
    along: str
    beside: int


def _stores_apart(x: Launch) -> Iterator[_Apart]:
    known = [(n, s.tensor, s) for n, s in enumerate(x.m.stores) if s.tensor is not None]
    places = [(t, s.access) for _, t, s in known]
    together: dict[int, str] = {}
    for found in turns.in_turns(places, x.sizes, (), turns.STORED):
        together |= {known[member][0]: found.dim for member in found.members}
    stored = [*_stores(x)]
    apart = [_nearest(x, s, t) for _, t, s in known]
    beside = turns.side_by_side(places, x.sizes, [step for step, _ in apart])
    for (n, _, s), (step, along), count in zip(known, apart, beside, strict=True):
        if step > 1:
            alone = x.batch.block[together[n]] == 1 if n in together else x.zero == 0
            elements = np.where(alone, stored[n][2] / s.element_bytes, 0.0)
            yield _Apart(s, elements, step * s.element_bytes, along, count)


def _nearest(x: Launch, s: Stored, t: Tensor) -> tuple[int, str]:
    """Elements from one that is stored to its neighbour, and the axis along which they lie."""
    steps, _ = strides(s.access, t.steps(x.sizes))
    return min(((abs(n), a) for a, n in steps.items() if isinstance(a, str) and x.sizes[a] > 1), default=(1, ""))


def _partial_bytes(x: Launch) -> Array:
    """Σ elements · min(a sector, bytes from what a thread stores to what its neighbour does by the same instruction):
    a thread has as many elements in a row as it loads at once."""
    total = x.zero
    for s in _stores_apart(x):
        each = x.elements[s.store.axes] / (32 * x.batch.warps)
        in_a_row = np.minimum(in_one_load(x, s.along), np.maximum(1.0, each))
        total = total + s.elements * np.minimum(SECTOR_BYTES, in_a_row * s.apart_bytes)
    return total


def _filled_bytes(x: Launch) -> Array:
    """Σ sectors that the kernel's stores leave gaps in, which are read, but where it has read them anyway, and
    written."""
    read = {y.part.buffer for w in x.m.segments for y in w.loads}
    total = x.zero
    for s in _stores_apart(x):
        element = s.store.element_bytes
        sector = min(SECTOR_BYTES, max(s.apart_bytes / s.beside, element))  # of each element, between those beside it
        tensor = s.store.tensor
        again = 0.0 if sector == element or (tensor is not None and tensor.name in read) else sector
        total = total + s.elements * (again + sector - element)
    return total


def stored_bytes(x: Launch) -> Array:
    """Each store written once."""
    return sum((whole for _, _, whole in _stores(x)), x.zero)


def _stores(x: Launch) -> Iterator[tuple[tuple[str, ...], int, Array]]:
    """The axes of each store but that of chunks, bytes of an element, and of all that it writes."""
    chunk = x.m.kernel.chunk if x.m.split else None
    for axes, size, _, _ in x.m.stores:
        own = tuple(a for a in axes if a != chunk)
        chunks = x.batch.split if chunk in axes else x.zero + 1.0
        yield own, size, prod(x.sizes[a] for a in own) * size * chunks
