"""What the terms of the cost model are computed from: the segments of a launch, its products, and what is at work.

They are tuples, which are made faster than dataclasses.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple  # Any: columns of numpy, or numbers

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.once import once
from mirage_cli.ir.program import LINE_BYTES, WIDEST_BYTES
from mirage_cli.ir.reach import visited
from mirage_cli.ir.schedule import (
    MAX_LANES,
    MIN_BYTES_DEPTH,
    MIN_COLUMNS,
    MIN_DOT,
    REGISTER_BYTES,
    WARPGROUP,
    WARPGROUP_ROWS,
)
from mirage_cli.search.cost.batch import Array, Batch, elements_of
from mirage_cli.search.cost.live import Lanes
from mirage_cli.search.cost.products import Product
from mirage_cli.search.cost.traffic import Lines, in_a_row
from mirage_cli.search.cost.work import Block, Model, Work
from mirage_cli.target.gpus import Target

OPERAND_BYTES = 2
"""Of an element in shared memory, but of float8."""
MAX_RESIDENT = 8
"""Blocks that share a multiprocessor at most."""
MOST_REGISTERS = 255
"""Of a thread (CUDA C++ Programming Guide)."""
MOST_LOADED = 32
"""Registers that a thread's loads fill before it uses any of them."""
MAX_IMBALANCE = 2.0
"""How many times the mean the multiprocessor with most to do has, at most, where there are several waves."""


class Elements(dict[tuple[str, ...], Any]):
    """Of a block over some axes, worked out where they are first asked for."""

    def __init__(self, block: Mapping[str, Array]) -> None:
        super().__init__()
        self.block = block

    def __missing__(self, axes: tuple[str, ...]) -> Any:
        found = self[axes] = elements_of(self.block, axes)
        return found


class Launch(NamedTuple):
    """One launch of a kernel under every schedule of a batch.

    without: of TERMS, those that do not count. tiles: along each axis, those of a chunk where it is split. programs:
    the program instances. elements: of a block over these axes. worked_out: what terms have in common, as `once`
    has it.
    """

    m: Model
    batch: Batch
    sizes: Mapping[str, int]
    target: Target
    without: Collection[str]
    zero: Array
    tiles: Mapping[str, Array]
    programs: Array
    elements: Elements
    worked_out: dict[Any, Any]

    @staticmethod
    def of(m: Model, batch: Batch, sizes: Mapping[str, int], target: Target, without: Collection[str]) -> Launch:
        zero, block = np.zeros(len(batch.warps)), batch.block
        extent = {a: np.ceil(sizes[a] / batch.split) if a == m.split else float(sizes[a]) for a in block}
        tiles = {a: np.ceil(extent[a] / block[a]) for a in block}
        programs = reduce(np.multiply, (tiles[d] for d in m.grid), batch.split if m.split else zero + 1.0)
        return Launch(
            m=m,
            batch=batch,
            sizes=sizes,
            target=target,
            without=without,
            zero=zero,
            tiles=tiles,
            programs=programs,
            elements=Elements(block),
            worked_out={},
        )

    def term(self, name: str, value: Array, otherwise: Array | float) -> Array:
        """The value, or what stands in its place where the term is switched off."""
        return self.zero + otherwise if name in self.without else value


class Multiplied(NamedTuple):
    """Products of one shape in a segment. n: how many.

    left, right, depth: elements of a block along the axes of the left operand alone, of the right alone, and those that
    are summed. space: of all of them together. left_first: whether the left operand has the rows. rows, columns: of the
    result. grouped: whether warpgroups multiply. on_units: whether the matrix units do. rate: operations in a
    microsecond. split: elements of operands whose two parts for TF32 are in registers. element: bytes of one of an
    operand in shared memory.
    """

    product: Product
    n: int
    left: Array
    right: Array
    depth: Array
    space: Array
    left_first: NDArray[np.bool_]
    rows: Array
    columns: Array
    grouped: NDArray[np.bool_]
    on_units: NDArray[np.bool_]
    rate: Array
    split: Array
    element: Array


class Segment(NamedTuple):
    """A segment of the kernel: in front of its loops, a loop, or behind them.

    trips: iterations of a program instance in the mean; longest: of that with the most; in_work: the part of the
    instances that have any; runs: of all. loaded: bytes that an iteration loads; fetched: what the L2 serves for them.
    multiplies: whether the matrix units do. depth: iterations whose loads are in flight.
    """

    work: Work
    trips: Array
    longest: Array
    in_work: Array
    runs: Array
    loaded: Array
    fetched: Array
    products: tuple[Multiplied, ...]
    multiplies: NDArray[np.bool_]
    depth: Array


class Occupancy(NamedTuple):
    """What of the GPU is at work.

    shared: bytes of shared memory of a block; registers: of a thread, where nothing is spilled. waves: of blocks.
    spread: the part of the multiprocessors that has any. uneven: how much longer than the mean the multiprocessor with
    most to do takes. alone: blocks that share a multiprocessor. awake: the part of a multiprocessor's schedulers that
    has a warp.
    """

    shared: Array
    registers: Array
    waves: Array
    spread: Array
    uneven: Array
    alone: Array
    awake: Array


def on_matrix_units(p: Product, block: Mapping[str, Array]) -> NDArray[np.bool_]:
    """As `ir.schedule.large_enough`."""
    left, right, depth = (elements_of(block, side) for side in (p.left, p.right, p.summed))
    sides = (np.minimum(left, right) >= MIN_COLUMNS) & (np.maximum(left, right) >= MIN_DOT)
    return sides & (depth >= MIN_DOT)


def added_up(p: Product, block: Mapping[str, Array]) -> Array:
    """Elements of a block that are multiplied one by one and then added up; none where the matrix units do that."""
    return np.where(on_matrix_units(p, block), 0.0, elements_of(block, p.axes))


def _of_small_type(x: Launch, within: Sequence[tuple[str, int]]) -> NDArray[np.bool_]:
    """Whether blocks are such that a product's operands are of a smaller type (`Product.small_within`)."""
    small = x.zero == 0
    for d, n in within:
        block = x.batch.block[d]
        small &= (n % block == 0) & (x.sizes[d] % block == 0)
    return small


def multiplied(x: Launch, p: Product, n: int) -> Multiplied:
    """rate = the matrix units' · (1, or `few_warps` where no warpgroup multiplies, or one waits for its products of
    what it makes of pairs of bytes), where blocks are large enough; bytes have the target's `float8` times that;
    float32 a third of TF32's · `tf32x3`, or `ieee` of the float32 rate, but where its factor stands in front of the
    sum; beside a smaller type, a third of bfloat16's or a half of TF32's. Else the float32 rate."""
    target, c, warps = x.target, x.target.costs, x.batch.warps
    left, right, depth = x.elements[p.left], x.elements[p.right], x.elements[p.summed]
    space = left * right * depth * x.elements[p.batch]
    on_units = on_matrix_units(p, x.batch.block)
    first = _left_is_first(p, x.batch)
    rows, columns = np.where(first, left, right), np.where(first, right, left)
    grouped = in_warpgroups(warps, rows) & (columns >= MIN_DOT)
    waits = np.where(first, *p.paired)
    together = np.where(grouped & ~waits, 1.0, c.few_warps)
    eights = (depth >= MIN_BYTES_DEPTH) & p.eights
    fast = target.tensor_flops_per_us * together * np.where(eights, target.float8, 1.0)
    units, split = fast, x.zero
    if p.single:
        tf32, (a, b) = target.tf32_flops_per_us, p.singles
        in_parts = {"bfloat16": target.tensor_flops_per_us / 3, "float16": tf32 / 2}.get(p.beside, tf32 / 3)
        units = np.where(x.batch.tf32x3, c.tf32x3 * in_parts, c.ieee * target.fp32_flops_per_us)
        split = x.batch.tf32x3 * on_units * (left * a + right * b) * depth
    if p.single and p.small_within is not None:
        small = _of_small_type(x, p.small_within)
        units = np.where(small, fast, units)
        split = np.where(small, 0.0, split)
    rate = np.where(on_units, units, target.fp32_flops_per_us)
    element = np.where(eights, 1.0, OPERAND_BYTES)
    return Multiplied(
        product=p,
        n=n,
        left=left,
        right=right,
        depth=depth,
        space=space,
        left_first=first,
        rows=rows,
        columns=columns,
        grouped=grouped,
        on_units=on_units,
        rate=rate,
        split=split,
        element=element,
    )


def segment(x: Launch, w: Work) -> Segment:
    """trips = Π tiles of the loop's axes · the part of them that masks leave, one of all chunks at least; longest = the
    same · the most they leave of a chunk.

    depth = stages where the matrix units multiply, else 1: only such loops are pipelined.
    """
    trips = longest = elements_of(x.tiles, w.loop) + x.zero
    in_work = x.zero + 1.0
    if w.limits:
        chunks = x.batch.split if x.m.split in w.loop else in_work
        mean, most, in_work = _left_by_masks(x, w, chunks)
        trips = np.maximum(1.0 / chunks, longest * x.term("masks", mean, 1.0))
        longest = np.maximum(1.0, longest * x.term("masks", np.minimum(1.0, most * chunks), 1.0))
    moved = [
        (b.alike * _block_bytes(x, b), used(x, b.beside, b.lines, b.apart_bytes) if b.axes else 1.0) for b in w.blocks
    ]
    products = tuple(multiplied(x, p, n) for p, n in w.dots)
    multiplies = reduce(np.logical_or, (p.on_units for p in products), x.zero > 0)
    loaded = sum((each for each, _ in moved), x.zero)
    windows = _windows(x, w) if x.m.rows is not None else {}
    near = (x.term("near", _from_l1(x, b, multiplies) * windows.get(_window(b), 1.0), 1.0) for b in w.blocks)
    read = zip(moved, near, w.blocks, strict=True)
    fetched = sum((each / used * part * b.inside for (each, used), part, b in read), x.zero)
    stages = x.batch.stages
    depth = x.term("ahead", np.where(multiplies, stages, 1.0), stages) if w.loop else x.zero + 1.0
    fetched = x.term("coalescing", fetched, loaded)
    return Segment(
        work=w,
        trips=trips,
        longest=longest,
        in_work=in_work,
        runs=x.programs * trips,
        loaded=loaded,
        fetched=fetched,
        products=products,
        multiplies=multiplies,
        depth=depth,
    )


def _left_by_masks(x: Launch, w: Work, chunks: Array) -> tuple[Array, Array, Array]:
    """The part of a loop that masks leave, in the mean and at most, and the part of its chunks that have any of it: by
    how many integers and positions that masks ask for are in a tile."""
    steady = {leaf for limit in w.limits if limit.steady for leaf in limit.leaves if leaf[0] == "index"}
    leaves = sorted(steady | {leaf for limit in w.limits for leaf in limit.leaves if leaf[0] == "value"})
    names = [name for _, name in leaves]
    dims = ((name,) if kind == "index" else x.m.kernel.value_dims[name] for kind, name in leaves)
    rows = [x.elements[d] for d in dims]
    table = np.stack([np.broadcast_to(n, x.zero.shape) for n in (*rows, visited_at_once(x, w), chunks)], axis=-1)
    each, which = np.unique(table, axis=0, return_inverse=True)
    parts: list[tuple[float, float, float]] = []
    for *own, tile, count in each.astype(int).tolist():
        found = visited(w.limits, x.sizes, dict(w.integers), dict(zip(names, own, strict=True)), tile)
        parts.append((found.mean, found.most, found.in_work(count)))
    mean, most, in_work = np.array(parts)[which.reshape(-1)].T
    return mean, most, in_work


def touched(x: Launch, w: Work, count: int) -> Array:
    """The part of a loop that so many of the positions and integers that its limits depend on visit together."""
    tiles, which = np.unique(visited_at_once(x, w), return_inverse=True)
    parts = [visited(w.limits, x.sizes, dict(w.integers), tile=int(n)).touched(count) for n in tiles]
    return x.zero + np.array(parts)[which.reshape(-1)]


def visited_at_once(x: Launch, w: Work) -> Array:
    """The positions of a tile along the dimension of a loop's limits, where the loop goes on to others beside each. Of
    a loop over one dimension the parts of tiles beyond its ends do not count: that ranks causal attention better, 0.89
    for 0.87 of gqa_prefill in the study of the cost model."""
    return x.batch.block[w.limits[0].dim] if len(w.loop) > 1 else x.zero + 1.0


def _block_bytes(x: Launch, b: Block) -> Array:
    """What a block reads: X[10*(c // 10) + k] for one c as much as for ten."""
    several = in_a_row(b.lines.access) if b.lines is not None else ()
    found = x.elements[b.axes] * b.element_bytes
    for n, block in ((n, x.batch.block[d]) for d, n in several if d in b.axes):
        found = found * n / np.minimum(n, block)
    return found


def _from_l1(x: Launch, b: Block, multiplies: NDArray[np.bool_]) -> Array:
    """The part of a block's bytes that comes from the L2: what all program instances read, and the L1 holds, is read
    once by each multiprocessor. Copies for the matrix units go past it."""
    whole = prod(x.sizes[a] for a in b.axes) * b.element_bytes
    if whole > x.target.smem_per_sm_bytes / 4:
        return x.zero + 1.0
    read = x.programs * _block_bytes(x, b)
    return np.where(multiplies, 1.0, np.minimum(1.0, x.target.sms * whole / read))


def _window(b: Block) -> Hashable:
    """Alike for loads of a tensor that begin at other places."""
    return None if b.lines is None else (b.lines.tensor, tuple(i.terms for i in b.lines.access))


def _windows(x: Launch, w: Work) -> Mapping[Hashable, Array]:
    """Of loads that begin at other places of a tensor, the part of their bytes that comes from the L2: what several
    read is there once, and otherwise in the L1, which takes `near` of the time.

    Of an axis of the tensor a program instance reads 1 + Σ |coefficient| · (block - 1) + from the first place to the
    last, of all of these loads together.
    """
    found: dict[Hashable, list[Lines]] = {}
    for b in w.blocks:
        if b.lines is not None and all(i.affine for i in b.lines.access):
            found.setdefault(_window(b), []).append(b.lines)
    near, parts = x.target.costs.near, dict[Hashable, Array]()
    for key, some in ((key, some) for key, some in found.items() if len(some) > 1):
        there, read = x.zero + 1.0, x.zero + len(some)
        for indices in zip(*(y.access for y in some), strict=True):
            offsets = [i.offset for i in indices]
            along = (abs(c) * (np.minimum(x.batch.block[str(a)], x.sizes[str(a)]) - 1.0) for a, c in indices[0].terms)
            there = there * (1.0 + sum(along, x.zero) + max(offsets) - min(offsets))
        for a in {str(a) for i in some[0].access for a, _ in i.terms}:
            read = read * np.minimum(x.batch.block[a], x.sizes[a])
        parts[key] = near + (1.0 - near) * np.minimum(1.0, there / read)
    return parts


def occupancy(x: Launch, segments: Sequence[Segment], largest: Array, accumulated: Array) -> Occupancy:
    """shared = the most that a segment loads in which the matrix units multiply · its depth + its operands that were
    loaded in front of it.

    taken(n) = fixed + (n + `held` · the rest of the largest value + `parts` · what is split for TF32) / threads.
    least = max(taken(accumulators + the largest product), `plain_registers` + (accumulators + `kept_lanes` +
    `_loaded_words`) / threads), the first without the matrix units `_least_of_vectors`; registers = max(least,
    taken(`kept` · what is held at once)). A product off the matrix units is all that it adds up. The least counts for
    how many blocks have room: the compiler computes values again rather than take more, but for accumulators and what
    is loaded.

    resident = the least of what shared memory, registers and warps have room for; slots = multiprocessors · resident;
    waves = ⌈programs / slots⌉; uneven = (waves · slots / programs) / spread.
    """
    target, c, warps = x.target, x.target.costs, x.batch.warps
    shared = reduce(np.maximum, (_shared_bytes(x, s) for s in segments if s.work.dots), x.zero)
    split = reduce(np.maximum, (p.split for s in segments for p in s.products if p.product.single), x.zero)
    product = reduce(np.maximum, (x.elements[v] for v in x.m.products), x.zero)
    product = reduce(np.maximum, (added_up(p, x.batch.block) for s in segments for p, _ in s.work.dots), product)

    def taken(n: Array, product: Array) -> Array:
        rest = c.held * (largest - np.minimum(largest, product)) + c.parts * split
        return c.fixed_registers + (n + rest) / (32 * warps)

    multiplies = reduce(np.logical_or, (s.multiplies for s in segments), x.zero > 0)
    read = c.plain_registers + (accumulated + kept_lanes(x) + _loaded_words(segments, x.zero)) / (32 * warps)
    least = np.where(multiplies, taken(accumulated + product, product), _least_of_vectors(x, segments, accumulated))
    least = np.maximum(least, read)
    together = c.kept * held_together(x)
    registers = np.maximum(least, taken(together, together))
    by_shared = x.term("shared memory", target.smem_per_sm_bytes // np.maximum(shared, 1.0), MAX_RESIDENT)
    by_registers = target.regs_per_sm // (np.minimum(least, MOST_REGISTERS) * 32 * warps)
    by_registers = x.term("registers", by_registers, MAX_RESIDENT)
    by_warps = np.minimum(MAX_RESIDENT, target.warps_per_sm // warps)
    resident = np.maximum(np.minimum(np.minimum(by_shared, by_registers), by_warps), 1.0)
    slots = target.sms * resident
    waves = x.term("waves", np.ceil(x.programs / slots), 1.0)
    full = x.term("lengths", _by_lengths(x, segments, waves, slots), waves * slots / x.programs)
    balance = np.minimum(np.where(x.programs > slots, full, 1.0), MAX_IMBALANCE)
    spread = x.term("spread", np.minimum(1.0, x.programs / target.sms), 1.0)
    at_once = np.minimum(np.ceil(x.programs / target.sms), resident)
    awake = x.term("warps", np.minimum(1.0, at_once * warps / c.busy_warps), 1.0)
    alone = np.maximum(1.0, np.minimum(x.programs, slots) / target.sms)
    return Occupancy(shared, registers, waves, spread, balance / spread, alone, awake)


def _by_lengths(x: Launch, segments: Sequence[Segment], waves: Array, slots: Array) -> Array:
    """How much longer than the mean the multiprocessor with most to do takes, where there are several waves: waves ·
    slots / programs; max(1, longest / mean · slots / programs) where masks by position give loops several lengths, of
    which the longest come first: short ones fill the last wave."""
    times = x.zero + 1.0
    for s in segments:
        if s.work.limits and not s.work.by_data:
            times = np.maximum(times, s.longest / s.trips)
    return np.where(times > 1.05, np.maximum(1.0, times * slots / x.programs), waves * slots / x.programs)


def _shared_bytes(x: Launch, s: Segment) -> Array:
    """Of shared memory for a segment's operands, where the matrix units multiply them: a buffer for each iteration in
    flight, and one that warpgroups read from while they multiply (Triton 3.6)."""
    reads = (p.grouped for p in s.products if not all(p.product.computed))
    buffers = np.where(reduce(np.logical_or, reads, x.zero > 0), s.depth, np.maximum(1.0, s.depth - 1.0))
    return np.where(s.multiplies, s.loaded * buffers + _operand_bytes(x, s), 0.0)


def _least_of_vectors(x: Launch, segments: Sequence[Segment], accumulated: Array) -> Array:
    """Registers of a thread at least, without the matrix units: `plain_registers` + its accumulators' lanes + what it
    has loaded at once: with windows in registers, all of it."""
    threads = 32 * x.batch.warps
    loaded = reduce(np.maximum, (s.loaded / REGISTER_BYTES for s in segments), x.zero) / threads
    at_once = np.minimum(loaded, MOST_LOADED) if x.m.rows is None else loaded
    return x.target.costs.plain_registers + (accumulated + kept_lanes(x)) / threads + at_once


def _operand_bytes(x: Launch, s: Segment) -> Array:
    """Of operands that were loaded in front of a segment."""
    return sum((x.elements[o.axes] * o.element_bytes for o in s.work.operands), x.zero)


def _loaded_words(segments: Sequence[Segment], zero: Array) -> Array:
    """Registers of what an iteration loads, of loops that multiply nothing. All loads stand in front of what is
    computed of them. The most of a loop."""
    loops = (s for s in segments if s.work.loop and not s.work.dots)
    return reduce(np.maximum, (s.loaded / REGISTER_BYTES for s in loops), zero)


def held_together(x: Launch) -> Array:
    """Elements that are held in registers at once: max over moments of Σ elements · words · copies."""
    values = {v for moment in x.m.moments for v, _ in moment}
    each = {v: v.words * x.elements[v.axes] * copies(x, v.axes, v.beside) for v in values}
    most = x.zero
    for moment in x.m.moments:
        most = np.maximum(most, sum((each[v] if n == 1 else n * each[v] for v, n in moment), 0.0))
    return most


def kept_lanes(x: Launch) -> Array:
    """Elements beyond their own that accumulators have until after their loop: the most of a loop."""
    most = x.zero
    for w in x.m.segments:
        kept = (np.where(keeps_lanes(x, a), x.elements[a.space] - x.elements[a.axes], 0.0) for a in w.lanes)
        most = np.maximum(most, sum(kept, x.zero))
    return most


def keeps_lanes(x: Launch, a: Lanes) -> NDArray[np.bool_]:
    """Whether an accumulator keeps what it reduces until after its loop."""
    return x.elements[a.space] <= MAX_LANES * 32 * x.batch.warps


@once
def copies(x: Launch, axes: tuple[str, ...], beside: tuple[str, ...]) -> Array | float:
    """Threads that each hold a value with these axes, where blocks have those beside them too: blocks are laid out from
    the last axis of the schedule's order on, what a thread loads at once, then threads, then what each has several of.

    Of each axis beside: min(max(1, threads / those along the axes behind it), those along itself).
    """
    threads, found = 32 * x.batch.warps, 1.0
    along = {a: np.maximum(1.0, x.batch.block[a] / in_one_load(x, a)) for a in (*axes, *beside)} if beside else {}
    for a in beside:
        behind = reduce(
            np.multiply, (np.where(x.batch.place[b] > x.batch.place[a], n, 1.0) for b, n in along.items()), 1.0
        )
        found = found * np.clip(threads / behind, 1.0, along[a])
    return found


@once
def in_one_load(x: Launch, axis: str) -> Array:
    """Elements along an axis that a thread loads by one instruction."""
    blocks = (b.lines for w in x.m.segments for b in w.blocks)
    lines = (y for y in blocks if y and axis in (a for a, _ in _aligned(x, y)))
    each = (np.minimum(one_load_bytes(x, y), WIDEST_BYTES) / y.element for y in lines)
    return reduce(np.maximum, each, x.zero + 1.0)


def _left_is_first(p: Product, batch: Batch) -> NDArray[np.bool_]:
    """Whether the left operand's own axes are the rows of the product: they stand before the right one's, or these are
    too few for rows of the matrix units."""
    left, right = (reduce(np.minimum, (batch.place[d] for d in side), np.inf) for side in (p.left, p.right))
    few, other_few = (elements_of(batch.block, side) < MIN_DOT for side in (p.left, p.right))
    either = ~on_matrix_units(p, batch.block) | (few == other_few)
    return np.where(either, np.less(left, right), other_few)


def in_warpgroups(warps: Array, rows: Array) -> NDArray[np.bool_]:
    return (warps >= WARPGROUP) & (rows >= WARPGROUP_ROWS)


@once
def _aligned(x: Launch, lines: Lines) -> Sequence[tuple[str, int]]:
    return lines.aligned(x.sizes)


@once
def one_load_bytes(x: Launch, lines: Lines | None) -> Array:
    """Bytes that one instruction of a thread may load: elements side by side that begin at a multiple of their number
    and of which a mask leaves all or none; a box has no mask. Infinite where that is not known."""
    if lines is None:
        return x.zero + np.inf
    most, boxes = x.zero + 1.0, lines.aligned_axes(x.sizes)
    for axis, by, aligned in lines.runs(x.sizes):
        block = np.maximum(x.batch.block[axis].astype(np.int64) // by, 1)
        boxed = x.batch.descriptors * (axis in boxes) > 0
        masked = np.where((x.sizes[axis] % (block * by) > 0) & ~boxed, x.sizes[axis] // by, 0)
        most = np.maximum(most, np.gcd(np.gcd(block, aligned), masked))
    return most * lines.element


@once
def used(x: Launch, axes: tuple[str, ...], lines: Lines | None, size: float) -> Array:
    """The part of what a load fetches, or a store touches, that it uses: runs side by side in memory that are shorter
    than a line of the caches waste some. axes: those along which elements lie without gaps."""
    block, run, whole = x.batch.block, x.zero + size, np.True_
    for n, a in enumerate(reversed(axes)):
        run = np.where(whole, run * block[a], run) if n else run * block[a]
        if n + 1 < len(axes):
            whole = whole & (block[a] >= x.sizes[a])
    for a, _ in _aligned(x, lines) if lines is not None else ():
        run = np.maximum(run, size * block[a])  # of a window: y of y + i
    return np.minimum(1.0, run / LINE_BYTES) ** x.target.costs.waste


def warps_along(p: Multiplied, warps: Array) -> tuple[Array, Array]:
    """Warps along the rows and along the columns of a product."""
    down = np.minimum(warps, np.maximum(1.0, np.ceil(p.rows / MIN_DOT)))
    return down, np.ceil(warps / down)
