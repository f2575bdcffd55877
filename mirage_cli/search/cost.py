"""The cost model: predicted time of a kernel at given tiles, from what it must move and compute.

It orders candidates; it does not have to be right in microseconds. The largest of six times counts: device memory,
L2, shared memory, matrix units, other arithmetic, and the latency of the iterations that one program instance walks in
sequence. Fitted constants are those that order the measured schedules of `results/` best; the comparison is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, reduce
from math import prod
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.mugraph import Kernel, split_axis
from mirage_cli.ir.program import DTYPE_BYTES
from mirage_cli.ir.reach import visited
from mirage_cli.ir.schedule import MAX_LANES, MIN_DOT, KernelSchedule, next_power_of_two
from mirage_cli.search.roles import MAX_BLOCK
from mirage_cli.search.work import Model, Product, Work
from mirage_cli.target.gpus import Target

Array = NDArray[np.float64]

GAP_US = 1.2
"""Between two dependent kernels of one CUDA graph: the drain of one and the ramp of the next (H200, measured)."""
LATENCY_US = 0.7
"""From issuing a load of device memory to using it (H200, measured)."""
RAMP_US = 0.6
"""What a kernel takes to fill the GPU and to drain, unless it starts before the one in front has ended (pairs that
differ in nothing else: 0.4 to 0.6 of a kernel behind itself, 0.8 to 1.2 behind another)."""
COPY_BYTES = 4
"""The least that an asynchronous copy moves (PTX ISA, cp.async)."""
LATE_US = 0.6
"""What an iteration of a loop waits for a load that is not fetched ahead (one program on the H200: 17 us more in 32
iterations)."""
STEP_US = 0.085
"""The least time of one loop iteration of one warp: barriers and address arithmetic (fitted)."""
WARP_STEP_US = 0.11
"""What each doubling of the warps adds to it (fitted)."""
BUSY_WARPS = 4.5
"""Warps of a multiprocessor below which its reads of operands slow down, by their number, and its arithmetic, by the
square of it (fitted)."""
SIMD = 0.55
"""The part of the float32 rate that arithmetic reaches which is not all multiply-adds (fitted)."""
OPERAND_BYTES = 2
"""Of an element in shared memory."""
ACROSS_US = 8e-4
"""A sum across warps, for each warp and each element of the result (fitted)."""
FEW_WARPS = 0.4
"""The part of the matrix units' rate that is reached without a warpgroup, or by one with fewer rows than it takes
(fitted)."""
TF32X3 = 0.7
"""The part of a third of TF32's rate that three products of it reach (fitted on 550 schedules of two programs)."""
PARTS = 2.2
"""Registers that an element of their operands takes, whose two parts are worked out there (fitted on 42 schedules of
three programs, compiled for sm_90)."""
IEEE = 0.4
"""The part of the float32 rate that Triton's products of float32 reach without the matrix units (two programs on the
H200: 0.3 and 0.55)."""
WARPGROUP, WARPGROUP_ROWS = 4, 64
"""Warps that multiply together straight from shared memory, and the rows of a block that this takes (sm_90)."""
RUN_BYTES = 128
"""A line of the caches. Loads of shorter runs of neighbouring elements waste some of what they fetch."""
WASTE = 0.6
"""The power of run over line that such a load uses (fitted; 0 would be no waste, 1 the rest of the line)."""
PORT = 1.7
"""How many times its share of the L2's rate a multiprocessor takes where others are idle (fitted)."""
EARLY_US = 0.4
"""Microseconds that a kernel gains which lets the one behind start at once: that one's blocks are in place when its own
end, in the next call too (fitted on tuned schedules)."""
FETCHED_US = 0.55
"""Microseconds that a kernel gains whose first loads find their lines in the L2, or on their way there (fitted on tuned
schedules; pairs that differ in nothing else: 0.3 to 0.7)."""
TRAFFIC = 0.35
"""What fetching into the L2 before the wait costs, as a part of the time that its bytes take at the memory's rate: it
takes turns with the kernel in front (fitted on tuned schedules; in a first kernel, which has nothing to wait for, pairs
that differ in nothing else show up to 1)."""
SHOWN = 0.05
"""The part of what does not dominate that nothing hides (fitted)."""
EXPOSED = 0.15
"""The part more that shows of a block that is alone on its multiprocessor and fetches nothing ahead. It falls with the
blocks, and with the square of the stages (fitted)."""
TURNED = 6.0
"""How many times an element costs what reading it from shared memory does, where a warpgroup has computed it in this
iteration and a product takes it as its second operand: it is written there, in another layout, first (fitted)."""
BOXES = 1.6
"""How many times as fast the L2 serves loops through descriptors: whole boxes, with no help of threads (fitted)."""
LIBRARY_US = 4.2
"""What a product by the library takes beside its launch and its bytes or operations (fitted on tuned μGraphs)."""
LIBRARY_MEMORY = 0.95
"""The part of the memory's rate that it reaches (fitted on tuned μGraphs)."""
LIBRARY_SINGLE = 0.75
"""The part of the float32 rate that it reaches with float32 (one product on the H200)."""
MAX_ACCUMULATORS = 32768
MAX_RESIDENT = 8
"""Blocks that share a multiprocessor at most."""


LIMITS = ("memory", "L2", "matrix units", "arithmetic", "latency", "operands")
"""What can dominate the time of a kernel, in the order of `Estimates.limit`."""

TERMS: Mapping[str, str] = {
    "memory": "each tensor moves through device memory once",
    "L2": "each program instance moves its blocks through the L2",
    "matrix units": "products at the matrix units' rate",
    "arithmetic": "all other operations",
    "latency": "iterations of a program instance follow each other",
    "operands": "warps read their operands of a product from shared memory",
    "launch": "each kernel costs its launch",
    "overlap": "a kernel that starts early hides a part of that",
    "sum": "a part of what does not dominate is not hidden",
    "pauses": "few blocks and stages hide less of it",
    "stores": "results are stored after the loops, which hides them behind other waves only",
    "ahead": "only loops that multiply on the matrix units fetch ahead",
    "coalescing": "short runs of neighbouring elements waste what a load fetches",
    "warps": "few warps leave a multiprocessor's schedulers idle, many take longer to meet",
    "sums": "sums across warps in every iteration",
    "copies": "several warps compute the same elements of an operand",
    "turned": "what a warpgroup has computed goes through shared memory to be a second operand",
    "descriptors": "blocks come faster from the L2 through descriptors",
    "turns": "a block that is alone on its multiprocessor computes or multiplies",
    "shared memory": "shared memory limits the blocks of a multiprocessor",
    "registers": "registers limit the blocks of a multiprocessor",
    "waves": "the last wave of blocks leaves multiprocessors idle",
    "late": "a load of less than 4 bytes a thread is not fetched ahead",
    "masks": "a loop does not visit what masks empty",
    "spread": "few blocks leave multiprocessors idle",
    "short": "a loop of few iterations waits once and has no use for more stages",
    "port": "a multiprocessor takes more than its share of the L2's rate where others are idle",
    "early": "a kernel that lets the one behind start at once, or in its last iterations, hides that one's beginning",
    "fetched": "inputs that are fetched into the L2 before the wait arrive sooner",
    "traffic": "fetching into the L2 before the wait takes memory's time",
}
"""What the model consists of. `tools.study` switches off one at a time and compares with measurements."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """For each schedule of a batch: predicted microseconds (infinite where blocks do not fit) and what limits it."""

    us: Array
    limit: Array
    shared_bytes: Array


@dataclass(frozen=True, slots=True)
class Batch:
    """Many schedules of one kernel as columns: the block size and the place in the order of every dimension, chunks,
    warps, stages, 1 for a kernel that starts early, that reads blocks through descriptors, that lets the kernel behind
    start before or after it has waited itself, and that fetches before it waits, the iterations of its first loop that
    it fetches then, those of its last loop that are left when it lets the kernel behind start, of how many parts of the
    former it fetches one, and 1 for products of float32 on the matrix units. All but the first two are called as in the
    schedule."""

    block: Mapping[str, Array]
    place: Mapping[str, Array]
    split: Array
    warps: Array
    stages: Array
    overlap: Array
    descriptors: Array
    relay: Array
    early: Array
    fetch: Array
    ahead: Array
    lead: Array
    share: Array
    tf32x3: Array

    @staticmethod
    def of(m: Model, schedules: Sequence[KernelSchedule], sizes: Mapping[str, int]) -> Batch:
        count = len(schedules)
        block = {d: np.full(count, whole_block(m, d, sizes)) for d in m.whole}
        for i, (d, _) in enumerate(schedules[0].tiles):
            block[d] = np.array([s.tiles[i][1] for s in schedules], dtype=np.float64)
        orders = {order: i for i, order in enumerate(dict.fromkeys(s.order for s in schedules))}
        which = np.array([orders[s.order] for s in schedules])
        place = {d: np.array([float(order.index(d)) for order in orders])[which] for d in block}
        named = [{**s.numbers, **s.words} for s in schedules]
        columns = ([n[f.name] for n in named] for f in fields(Batch)[2:])
        return Batch(block, place, *(np.array(c, dtype=np.float64) for c in columns))


def whole_block(m: Model, d: str, sizes: Mapping[str, int]) -> float:
    return float(max(next_power_of_two(sizes[d]), MIN_DOT if d in m.matrix_axes and sizes[d] > 1 else 1))


def elements_of(block: Mapping[str, Array] | Mapping[str, float], axes: Sequence[str]) -> Any:
    """Of a block over these axes."""
    blocks: list[Any] = [block[a] for a in axes]
    return reduce(mul, blocks) if blocks else 1.0


def held(m: Model, block: Mapping[str, Array] | Mapping[str, float], zero: Array | float) -> tuple[Any, Any]:
    """Elements of the largest value, and of all accumulators."""
    largest = reduce(np.maximum, (elements_of(block, v) for v in m.values), zero + 1.0)
    return largest, sum((elements_of(block, a) for a in m.accumulators), zero)


def fits(largest: Array | float, accumulated: Array | float) -> Any:
    """Whether a program instance may hold so many elements."""
    return (largest <= MAX_BLOCK) & (accumulated <= MAX_ACCUMULATORS)


def estimate(
    m: Model, batch: Batch, sizes: Mapping[str, int], target: Target, without: Collection[str] = ()
) -> Estimates:
    """Predicted time of one launch for every schedule of the batch. without: of TERMS, those that do not count."""
    block, warps, stages = batch.block, batch.warps, batch.stages
    zero = np.zeros_like(warps)

    @cache
    def elements(axes: tuple[str, ...]) -> Any:
        return elements_of(block, axes)

    def term(name: str, value: Array, otherwise: Array | float) -> Array:
        """The value, or what stands in its place where the term is switched off."""
        return zero + otherwise if name in without else value

    largest, accumulated = held(m, block, zero)
    extent = {a: np.ceil(sizes[a] / batch.split) if a == m.split else zero + sizes[a] for a in block}
    tiles = {a: np.ceil(extent[a] / block[a]) for a in block}
    programs = reduce(np.multiply, (tiles[d] for d in m.grid), batch.split if m.split else zero + 1.0)
    l2, dot_us, simd, latency, shared, operands, sums, deepest, ahead_bytes, thirds = (zero,) * 10
    looped = False
    for i, w in enumerate(m.segments):
        trips = elements_of(tiles, w.loop) + zero
        if w.limits:
            trips = np.maximum(1.0, trips * term("masks", zero + visited(w.limits, w.loop, sizes), 1.0))
        moved = [(n * elements(axes) * size, axes, size) for axes, size, n in w.blocks]
        loaded = sum((each for each, _, _ in moved), zero)
        fetched = sum((each / _used(axes, size, block, sizes) for each, axes, size in moved), zero)
        each_trip = programs * trips
        if w.loop and not looped:  # the first loop
            looped = True
            if batch.ahead.any():
                ahead = np.minimum(batch.ahead, trips) / np.maximum(batch.share, 1.0)
                ahead_bytes = ahead_bytes + ahead * _least_shared(m, w, tiles, batch, elements)
        elif i == 0:
            ahead_bytes = ahead_bytes + batch.fetch * loaded
        l2 = l2 + each_trip * term("coalescing", fetched, loaded)
        multiplies = zero > 0
        for p, n in Counter(w.dots).items():
            left, right, depth = elements(p.left), elements(p.right), elements(p.summed)
            space = left * right * depth * elements(p.batch)
            on_units = np.minimum(np.minimum(left, right), depth) >= MIN_DOT
            first = _left_is_first(p, batch)
            together = np.where(_in_warpgroups(warps, np.where(first, left, right)), 1.0, FEW_WARPS)
            units = target.tensor_flops_per_us * together
            if p.single:
                on_thirds = TF32X3 * target.tf32_flops_per_us / 3 * together
                units = np.where(batch.tf32x3, on_thirds, IEEE * target.fp32_flops_per_us)
                thirds = np.maximum(thirds, batch.tf32x3 * on_units * (left + right) * depth)
            rate = np.where(on_units, units, target.fp32_flops_per_us)
            dot_us = dot_us + 2.0 * n * each_trip * space / rate
            multiplies = multiplies | on_units
            rows = _operand_rows(first, warps, left, right)
            if w.loop and any(p.computed):
                rows = rows + term("turned", TURNED * _turned_rows(p, first, warps, left, right, depth), 0.0)
            operands = operands + np.where(on_units, n * each_trip * depth * rows, 0.0)
            summed_last = (space <= MAX_LANES * 32 * warps) & p.accumulates
            sums = sums + np.where(on_units | summed_last, 0.0, n * each_trip * (space / depth) * warps)
        for axes, operations, rows in w.elementwise:
            computed = each_trip * (elements(axes) * operations)
            if rows:
                computed = computed * term("copies", np.maximum(1.0, MIN_DOT * warps / elements(rows)), 1.0)
            simd = simd + computed
        depth = term("ahead", np.where(multiplies, stages, 1.0), stages) if w.loop else zero + 1.0
        deepest = np.maximum(deepest, term("short", np.minimum(depth, trips), depth))
        if w.dots:
            shared = np.maximum(shared, loaded * depth)
        if w.loop:
            step = STEP_US + term("warps", WARP_STEP_US * np.log2(warps), 0.0)
            fetching = np.maximum(1.0, depth - 1)
            once = term("short", np.minimum(fetching, trips), 0.0)  # iterations whose data the first wait brings
            stalls = (trips - once) * np.maximum(0.0, LATENCY_US / fetching - step)
            latency = latency + LATENCY_US + (trips - term("short", zero + 1.0, 0.0)) * step + stalls
            if w.dots:
                late = multiplies * _comes_late(w, elements, 32 * warps)
                latency = latency + LATE_US * term("late", late, 0.0) * trips
        else:
            latency = latency + (LATENCY_US if w.loads else 0.1)
    product = reduce(np.maximum, (elements(v) for v in m.products), zero)
    in_registers = accumulated + product + 0.15 * (largest - np.minimum(largest, product)) + PARTS * thirds
    registers = 60 + in_registers / (32 * warps)
    by_shared = target.smem_per_sm_bytes // np.maximum(shared, 1.0)
    by_registers = target.regs_per_sm // (np.minimum(registers, 255) * 32 * warps)
    resident = np.minimum(term("shared memory", by_shared, MAX_RESIDENT), term("registers", by_registers, MAX_RESIDENT))
    resident = np.clip(resident, 1, MAX_RESIDENT)
    slots = target.sms * resident
    waves = term("waves", np.ceil(programs / slots), 1.0)
    balance = np.minimum(np.where(programs > slots, waves * slots / programs, 1.0), 2.0)
    spread = term("spread", np.minimum(1.0, programs / target.sms), 1.0)
    uneven = balance / spread  # how much longer the multiprocessor with most to do takes than the mean
    at_once = np.minimum(np.ceil(programs / target.sms), resident)
    awake = term("warps", np.minimum(1.0, at_once * warps / BUSY_WARPS), 1.0)
    dot_us = dot_us * uneven
    simd_us = simd / (target.fp32_flops_per_us * SIMD * awake**2) * uneven
    simd_us = simd_us + term("sums", ACROSS_US * sums / target.sms * uneven, 0.0)
    # a block alone computes or multiplies; others fill its pauses
    alone = np.maximum(1.0, np.minimum(programs, slots) / target.sms)
    turns = term("turns", np.minimum(dot_us, simd_us) / alone, 0.0)
    ports = term("port", np.minimum(1.0, PORT * spread), spread)
    stored = _stored_bytes(m, sizes, batch.split)
    boxes = term("descriptors", np.where(batch.descriptors, BOXES, 1.0), 1.0)
    busy = [
        (_read_bytes(m, sizes) + stored) / target.dram_bytes_per_us,
        l2 / (target.l2_bytes_per_us * ports * boxes),
        dot_us + np.where(dot_us > simd_us, turns, 0.0),
        simd_us + np.where(dot_us > simd_us, 0.0, turns),
        latency * waves,
        operands * OPERAND_BYTES / (target.smem_bytes_per_us * awake) * uneven,
    ]
    times = np.array([term(name, t, 0.0) for name, t in zip(LIMITS, busy, strict=True)])
    longest = times.max(axis=0)
    us = term("launch", zero + target.launch_us, 0.0) + RAMP_US * (1.0 - term("overlap", batch.overlap, 1.0))
    shown = SHOWN + term("pauses", (1.0 - SHOWN) * EXPOSED / (alone * deepest**2), 0.0)
    us = us + term("sum", longest + shown * (times.sum(axis=0) - longest), longest)
    us = us + term("stores", stored / (target.dram_bytes_per_us * waves), 0.0)
    us = us - term("early", EARLY_US * np.maximum(np.maximum(batch.relay, batch.early), batch.lead > 0), 0.0)
    ahead_bytes = ahead_bytes * batch.overlap
    us = us - term("fetched", np.where(ahead_bytes > 0, FETCHED_US, 0.0), 0.0)
    traffic = TRAFFIC * ahead_bytes * programs / target.dram_bytes_per_us
    us = us + term("traffic", traffic, 0.0)
    fit = fits(largest, accumulated) & (shared <= target.smem_per_block_bytes) & (registers <= 300)
    return Estimates(np.where(fit, us, np.inf), times.argmax(axis=0), shared)


def _least_shared(
    m: Model, w: Work, tiles: Mapping[str, Array], batch: Batch, elements: Callable[[Iterable[str]], Array]
) -> Array:
    """Bytes that an iteration loads of what the fewest program instances read alike."""
    along = {d: tiles[d] for d in m.grid} | ({m.split: batch.split} if m.split else {})
    readers = [reduce(np.multiply, (n for d, n in along.items() if d not in a), np.array(1.0)) for a, _, _ in w.loads]
    least = reduce(np.minimum, readers, np.array(np.inf))
    own = zip(w.loads, readers, strict=True)
    return sum((np.where(n == least, elements(axes) * size, 0.0) for (axes, size, _), n in own), np.array(0.0))


def _comes_late(w: Work, elements: Callable[[Iterable[str]], Array], threads: Array) -> Array:
    """1 where a loop waits for some load in every iteration: threads have less of its block than an asynchronous copy
    takes. A block with fewer elements than threads is laid out as a larger one with its axes, if there is one."""
    axes = [a for a, _, _ in w.blocks if a]
    small = [elements(a) * size < COPY_BYTES * threads for a, size, _ in w.blocks if a]
    late = np.zeros_like(threads, dtype=bool)
    for i, a in enumerate(axes):
        larger = [~small[j] for j, b in enumerate(axes) if set(a) < set(b)]
        late |= small[i] & ((elements(a) >= threads) | ~reduce(np.logical_or, larger, late & False))
    return late.astype(np.float64)


def _left_is_first(p: Product, batch: Batch) -> NDArray[np.bool_]:
    """Whether the left operand's own axes stand before the right one's: then they are the rows of the product."""
    left, right = (reduce(np.minimum, (batch.place[d] for d in side), np.inf) for side in (p.left, p.right))
    return np.less(left, right)


def _in_warpgroups(warps: Array, rows: Array) -> NDArray[np.bool_]:
    return (warps >= WARPGROUP) & (rows >= WARPGROUP_ROWS)


def _operand_rows(first: NDArray[np.bool_], warps: Array, left: Array, right: Array) -> Array:
    """Rows and columns that warps read of a product's operands, those that several warps read counted for each.

    A warp has 16 rows or more of the result, and what it has of the columns; a warpgroup reads each operand once.
    """
    tall, wide = np.where(first, left, right), np.where(first, right, left)
    down = np.minimum(warps, np.maximum(1.0, np.ceil(tall / MIN_DOT)))
    across = np.ceil(warps / down)
    group = _in_warpgroups(warps, tall)
    groups = np.maximum(1.0, np.minimum(warps / WARPGROUP, tall / WARPGROUP_ROWS))
    return tall * np.where(group, 1.0, across) + wide * np.where(group, groups, down)


def _turned_rows(p: Product, first: NDArray[np.bool_], warps: Array, left: Array, right: Array, depth: Array) -> Array:
    """Columns of the second operand, where a warpgroup has computed it: its rows are the axes that are summed here."""
    second = np.where(first, right * p.computed[1], left * p.computed[0])
    return np.where(_in_warpgroups(warps, depth), second, 0.0)


def _used(axes: Sequence[str], size: int, block: Mapping[str, Array], sizes: Mapping[str, int]) -> Array | float:
    """The part of what a load fetches that it uses: runs shorter than `RUN_BYTES` side by side in memory waste some."""
    if not axes:
        return 1.0
    outer, last = axes[:-1], axes[-1]
    run, whole = size * block[last], block[last] >= sizes[last]
    for a in reversed(outer):
        run = np.where(whole, run * block[a], run)
        whole = whole & (block[a] >= sizes[a])
    return np.minimum(1.0, run / RUN_BYTES) ** WASTE


def _read_bytes(m: Model, sizes: Mapping[str, int]) -> float:
    """Bytes of device memory: each tensor read once."""
    return sum({name: prod(sizes[a] for a in axes) * size for w in m.segments for axes, size, name in w.loads}.values())


def _stored_bytes(m: Model, sizes: Mapping[str, int], split: Array) -> Array:
    """Each store written once."""
    chunk = split_axis(m.split) if m.split else None
    total = np.zeros_like(split)
    for axes, size in m.stores:
        total = total + prod(sizes[a] for a in axes if a != chunk) * size * (split if chunk in axes else 1.0)
    return total


def library_us(kernel: Kernel, sizes: Mapping[str, int], element: int, target: Target) -> float:
    """Predicted time of a matrix product by the vendor's library, in microseconds. element: bytes of one."""
    e = kernel.body[0]
    tensors = [x.dims for x in kernel.loads] + [e.dims]
    moved = sum(prod(sizes[a] for a in axes) * element for axes in tensors)
    flops = 2.0 * prod(sizes[a] for a in {*e.dims, *e.axes})
    moving_us = moved / (LIBRARY_MEMORY * target.dram_bytes_per_us)
    rate = (
        LIBRARY_SINGLE * target.fp32_flops_per_us if element == DTYPE_BYTES["float32"] else target.tensor_flops_per_us
    )
    return target.launch_us + LIBRARY_US + max(moving_us, flops / rate)


def floor_us(moved_bytes: float, flops: float, target: Target, dtype: str) -> float:
    """No kernel is faster than this: bytes over measured bandwidth, operations over the measured matmul rate."""
    return max(moved_bytes / target.dram_bytes_per_us, flops / target.matrix_flops_per_us(dtype))
