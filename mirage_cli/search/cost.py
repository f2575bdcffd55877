"""The cost model: predicted time of a kernel at given tiles, from what it must move and compute.

It orders candidates; it does not have to be right in microseconds. The largest of six times counts: device memory,
L2, shared memory, matrix units, other arithmetic, and the latency of the iterations that one program instance walks in
sequence. Constants in backquotes are the target's (`target.gpus.Costs`); `estimate` has the whole formula.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir import late, turns
from mirage_cli.ir.access import Access, dims_of, lookups_of, strides
from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.program import DTYPE_BYTES, LINE_BYTES, SECTOR_BYTES, WIDEST_BYTES, Tensor
from mirage_cli.ir.reach import Leaf
from mirage_cli.ir.schedule import MAX_LANES, MIN_COLUMNS, MIN_DOT, REGISTER_BYTES, WARPGROUP, WARPGROUP_ROWS
from mirage_cli.search.banks import banked_bytes
from mirage_cli.search.batch import Array, Batch, fits, held
from mirage_cli.search.occupancy import (
    MOST_LOADED,
    MOST_REGISTERS,
    Launch,
    Multiplied,
    Occupancy,
    Segment,
    copies,
    in_one_load,
    in_warpgroups,
    keeps_lanes,
    occupancy,
    one_load_bytes,
    segment,
    touched,
    used,
)
from mirage_cli.search.traffic import BufferPart, Lines, bytes_once, of_parts, part_of, whole_rows
from mirage_cli.search.work import Elementwise, Loaded, Model, Stored, Work
from mirage_cli.target.gpus import Target

OVERESTIMATE = 1.18
"""Of the registers that a thread may have, how many it is estimated to take at most. Of 259 kernels of 11 programs that
were compiled for sm_90 before `search.live` counted what is held, 73 spilled more than 128 bytes: 52 of these were
estimated to take more, and 9 of the others. Since then, of 258 kernels, 72 spilled: 52 of these are, and 14 others."""
CHAINED = 128
"""Elements that products sum in an iteration of the loops to which `step_us` was fitted."""
MOST_BLOCKS = 32
"""That share a multiprocessor (CUDA C++ Programming Guide, compute capability 9.0)."""
LANES_DOWN, LANES_ACROSS = 8, 4
"""Threads of a warp along the rows and along the columns of a product's result, of mma as of wgmma (PTX ISA 9.7)."""

LIMITS = ("memory", "L2", "matrix units", "arithmetic", "latency", "operands")
"""What can dominate the time of a kernel, in the order of `Estimates.limit` and `Estimates.busy`."""
COMPUTING = ("matrix units", "arithmetic", "operands")
"""Of these, what waits for the data of the first iteration."""

TERMS: Mapping[str, str] = {
    "memory": "each tensor moves through device memory once",
    "again": "what a loop reads that one before it has read comes from device memory if the L2 has lost it",
    "L2": "each program instance moves its blocks through the L2",
    "matrix units": "products at the matrix units' rate",
    "arithmetic": "all other operations",
    "latency": "iterations of a program instance follow each other",
    "operands": "warps read their operands of a product from shared memory",
    "launch": "each kernel costs its launch",
    "overlap": "a kernel that starts early hides a part of that",
    "starts": "blocks start one after the other, those of such a kernel half as fast",
    "sum": "a part of what does not dominate is not hidden",
    "pauses": "few blocks and stages hide less of it",
    "apart": "and with windows in registers, which are all loaded before anything is computed, so do few warps",
    "stores": "results are stored after the loops, which hides them behind other waves only",
    "ahead": "only loops that multiply on the matrix units fetch ahead",
    "coalescing": "short runs of neighbouring elements waste what a load fetches",
    "near": "what all program instances read comes from the L1",
    "rounds": "a thread loads no more at once than its registers hold",
    "scattered": "and what a store touches",
    "partial": "the L2 takes as long for a part of a sector that a store writes as for the whole",
    "filled": "what a store leaves out of a sector comes from memory, and goes back with it",
    "warps": "few warps leave a multiprocessor's schedulers idle, many take longer to meet",
    "sums": "sums across warps in every iteration",
    "meetings": "several warps meet for each sum outside of loops, and in loops for what they reduce of a product",
    "banks": "windows that pointers load lie in shared memory so that several of a row are in one bank",
    "copies": "several warps compute the same elements of an operand",
    "slices": "threads along what a block sums compute the same elements of what lacks it",
    "bits": "where operands are made of bits, each iteration has zero points, scales and addresses",
    "shuffles": "sums across threads take exchanges of registers",
    "met": "a sum that meets the result of a product is taken in its layout, by all warps that have its columns",
    "turned": "what a warpgroup has computed goes through shared memory to be a second operand",
    "parts": "float32 is split in two parts for the matrix units in every iteration",
    "transposed": "a warpgroup's second operand of TF32 lies along the sum in shared memory, wherever it comes from",
    "descriptors": "blocks come faster from the L2 through descriptors",
    "warpgroups": "blocks that warpgroups multiply come faster from it too",
    "turns": "a block that is alone on its multiprocessor computes or multiplies",
    "shared memory": "shared memory limits the blocks of a multiprocessor",
    "registers": "registers limit the blocks of a multiprocessor",
    "waves": "the last wave of blocks leaves multiprocessors idle",
    "chains": "a warp's products along a sum wait for each other",
    "late": "what lies apart in memory is not fetched ahead, nor are few bytes of a loop over several axes",
    "narrow": "loads of less than 16 bytes take instructions for their addresses and their way to shared memory",
    "masks": "a loop does not visit what masks empty",
    "lengths": "loops that data end at different places leave the last multiprocessors alone",
    "spread": "few blocks leave multiprocessors idle",
    "behind": "what the first iteration needs comes behind what all blocks have asked for by then",
    "short": "a loop of few iterations waits once and has no use for more stages",
    "port": "a multiprocessor takes more than its share of the L2's rate where others are idle",
    "early": "a kernel that lets the one behind start at once, or in its last iterations, hides that one's beginning",
    "fetched": "inputs that are fetched into the L2 before the wait arrive sooner",
    "traffic": "fetching into the L2 before the wait takes memory's time",
}
"""What the model consists of. `tools.study` switches off one at a time and compares with measurements."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """For each schedule of a batch: predicted microseconds (infinite where blocks do not fit), and where they are from.

    parts: what `us` is the sum of, by name. busy: the times of LIMITS, of which one dominates. spread: the part of the
    multiprocessors that has any work. crowded: registers or shared memory over what there is, whichever is more.
    """

    us: Array
    parts: Mapping[str, Array]
    busy: Mapping[str, Array]
    limit: Array
    shared_bytes: Array
    spread: Array
    crowded: Array

    def some(self, which: NDArray[np.bool_]) -> Estimates:
        """Those of some schedules."""
        parts, busy = ({name: x[which] for name, x in us.items()} for us in (self.parts, self.busy))
        others = (x[which] for x in (self.limit, self.shared_bytes, self.spread, self.crowded))
        return Estimates(self.us[which], parts, busy, *others)

    @staticmethod
    def of(some: Sequence[Estimates], order: NDArray[np.int64]) -> Estimates:
        """Several in this order, whose place in it says which of all comes where."""

        def joined(arrays: Iterable[Array]) -> Array:
            return np.concatenate([*arrays])[order]

        return Estimates(
            joined(e.us for e in some),
            {name: joined(e.parts[name] for e in some) for name in some[0].parts},
            {name: joined(e.busy[name] for e in some) for name in some[0].busy},
            joined(e.limit for e in some),
            joined(e.shared_bytes for e in some),
            joined(e.spread for e in some),
            joined(e.crowded for e in some),
        )


# -- the times of which one dominates


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


def products_us(x: Launch, segments: Sequence[Segment], o: Occupancy) -> Array:
    """Σ runs · (2 · elements / rate + parts_us + transposed_us) · uneven: a product waits for its operands' parts"""
    each = (
        p.n * s.runs * (2.0 * p.space / p.rate + x.term("parts", _parts_us(x, p), 0.0) + _transposed_us(x, p))
        for s in segments
        for p in s.products
    )
    return sum(each, x.zero) * o.uneven


def _parts_us(x: Launch, p: Multiplied) -> Array:
    """`splitting` · elements that warps split in parts, those that several warps have counted for each / (the float32
    rate · `simd`)"""
    if not p.product.single:
        return x.zero
    c, (down, across) = x.target.costs, _warps_along(p, x.batch.warps)
    left, right = p.product.singles
    rows = p.rows * np.where(p.left_first, left, right) * across
    columns = p.columns * np.where(p.left_first, right, left) * np.where(p.grouped, 1.0, down)
    elements = np.where(p.split > 0, p.depth * (rows + columns), 0.0)
    return c.splitting * elements / (x.target.fp32_flops_per_us * c.simd)


def _transposed_us(x: Launch, p: Multiplied) -> Array:
    """elements of the second operand · accesses of a warp to shared memory / 32 · 128 bytes · `banks` / shared memory's
    rate, where a warpgroup multiplies TF32."""
    left, right = (_accesses(x, p, lines) for lines in p.product.lines)
    accesses = np.where(p.left_first, right, left)
    bytes_moved = p.columns * p.depth * accesses * np.where(p.grouped & (p.split > 0), LINE_BYTES / 32.0, 0.0)
    return x.term("transposed", x.target.costs.banks * bytes_moved / x.target.smem_bytes_per_us, 0.0)


def _accesses(x: Launch, p: Multiplied, lines: Lines | None) -> Array:
    """How many times the banks are accessed for what 32 threads hold of a second operand of TF32, one element each.

    n = elements that a thread loads at once, r = min(32 · n, columns) / 8. Where the operand lies along its columns,
    threads store each of two parts to r rows of four banks. Where n is 1, Triton has an operand as it comes lie across
    its memory order: min(32, extent of the axis across) accesses to store it, and to read it.
    """
    if lines is None or p.product.beside == "bfloat16":
        return x.zero
    side_by_side = {a for a, _ in lines.aligned(x.sizes)}
    along = bool(side_by_side & {*p.product.summed})
    at_once = np.minimum(one_load_bytes(x, lines), WIDEST_BYTES) / lines.element
    stored = x.zero if along else 2.0 * np.maximum(1.0, np.minimum(32.0 * at_once, p.columns) / 8.0)
    return stored + np.where(at_once < 2, 2.0 * np.minimum(32.0, p.columns if along else p.depth), 0.0)


def elementwise_us(x: Launch, segments: Sequence[Segment], o: Occupancy) -> Array:
    """(Σ runs · elements · operations · copies + `narrow` · loads of less than 16 bytes) / (the float32 rate · `simd` ·
    awake²) · uneven + sums across warps

    copies = max(1, n · warps / rows), of a product's operand that is computed: warps that share rows of it, of which
    numbers that share 16 bits have one; else `occupancy.copies`. n = MIN_DOT, or MIN_COLUMNS of so many columns.
    """
    c = x.target.costs
    each = (_operations(x, s, e) for s in segments for e in s.work.elementwise)
    operations = sum(each, x.zero) + x.term("narrow", c.narrow * _narrow_loads(x, segments), 0.0)
    operations = operations + x.term("shuffles", c.shuffle * _shuffles(x, segments), 0.0)
    operations = operations + x.term("bits", c.bits_step * _by_bits(x, segments), 0.0)
    operations = operations + x.term("met", _met_operations(x, segments), 0.0)
    us = operations / (x.target.fp32_flops_per_us * c.simd * o.awake**2) * o.uneven
    return us + x.term("sums", c.across_us * _sums(x, segments) / x.target.sms * o.uneven, 0.0)


def _by_bits(x: Launch, segments: Sequence[Segment]) -> Array:
    """Σ runs · threads, of segments that make an operand of bits"""
    some = (s.runs for s in segments if any(e.made is not None for e in s.work.elementwise))
    return sum(some, x.zero) * 32.0 * x.batch.warps


def _shuffles(x: Launch, segments: Sequence[Segment]) -> Array:
    """Σ runs · elements of a sum's result · n · log2 n, of n threads along what it sums. Accumulators that keep what
    they reduce are summed once, behind their loops, which does not count."""
    total = x.zero
    for s in segments:
        for a in s.work.lanes:
            threads = x.zero + copies(x, a.axes, tuple(d for d in a.space if d not in a.axes))
            each = s.runs * x.elements[a.axes] * threads * np.log2(threads)
            total = total + np.where(keeps_lanes(x, a), 0.0, each)
        for result, summed in s.work.sums:
            threads = x.zero + copies(x, result, summed)
            total = total + s.runs * x.elements[result] * threads * np.log2(threads)
    return total


def _met_operations(x: Launch, segments: Sequence[Segment]) -> Array:
    """Σ runs · elements of a sum that meets a product's result · threads · (`shuffle` · log2 lanes + what is computed
    on the way there)

    LANES_DOWN lanes of each warp that has rows of the result have a column of it, LANES_ACROSS of each that has columns
    a row.
    """
    total = x.zero
    for s in segments:
        for axes, operations, product in s.work.met:
            (p,) = (p for p in s.products if p.product == product)
            down, across = _warps_along(p, x.batch.warps)
            beside_left, beside_right = (bool({*axes} & {*side}) for side in (product.left, product.right))
            in_column = np.where(p.left_first, beside_right, beside_left)
            lanes = np.where(in_column, LANES_DOWN, LANES_ACROSS)
            threads = lanes * np.where(in_column, down, across)
            each = s.runs * x.elements[axes] * threads * (x.target.costs.shuffle * np.log2(lanes) + operations)
            total = total + np.where(p.on_units, each, 0.0)
    return total


def _narrow_loads(x: Launch, segments: Sequence[Segment]) -> Array:
    """Loads of products' loops that are less than the widest."""
    total = x.zero
    for s in (s for s in segments if s.work.dots and s.work.loop):
        for b in s.work.blocks:
            at_once = one_load_bytes(x, b.lines)
            loads = np.where(at_once < WIDEST_BYTES, x.elements[b.axes] * b.element_bytes / at_once, 0.0)
            total = total + s.runs * b.alike * loads
    return total


def _operations(x: Launch, s: Segment, e: Elementwise) -> Array:
    each = x.zero + e.operations + x.target.costs.conversion * e.reads
    if e.made is not None:
        behind = (n % x.batch.block[d] == 0 for d, n in e.made.within)
        in_phases = (x.batch.block[d] >= n for d, n in e.made.least)
        within = reduce(np.logical_and, (*behind, *in_phases), x.zero == 0)
        c = x.target.costs
        by_bits = c.whole_byte if e.made.whole else c.part_of_byte
        boxed = c.boxed_byte * ((x.batch.descriptors > 0) & (e.sharing > 1))
        each = np.where(within, by_bits + boxed, np.maximum(each, by_bits) + c.single_byte * (e.sharing > 1))
    computed = s.runs * (x.elements[e.axes] * each)
    computed = computed * x.term("slices", x.zero + copies(x, e.axes, e.beside), 1.0)
    if e.rows:
        rows = x.elements[e.rows]
        rows = np.where(rows >= e.sharing * MIN_DOT, rows / e.sharing, rows)
        least = np.where(rows == MIN_COLUMNS, MIN_COLUMNS, MIN_DOT)
        computed = computed * x.term("copies", np.maximum(1.0, least * x.batch.warps / rows), 1.0)
    return computed


def _sums(x: Launch, segments: Sequence[Segment]) -> Array:
    """Elements that warps add up among each other: results of products off the matrix units, in every iteration but
    where they are accumulated lane by lane and summed after the loop."""
    warps = x.batch.warps
    total = x.zero
    for s in segments:
        for p in s.products:
            summed_last = (p.space <= MAX_LANES * 32 * warps) & p.product.accumulates
            each = p.n * s.runs * (p.space / p.depth) * warps
            total = total + np.where(p.on_units | summed_last, 0.0, each)
    return total


def in_turns(x: Launch, o: Occupancy, products: Array, elementwise: Array) -> tuple[Array, Array]:
    """The longer of the two + the shorter / blocks of a multiprocessor: a block alone computes or multiplies, others
    fill its pauses."""
    turns = x.term("turns", np.minimum(products, elementwise) / o.alone, 0.0)
    longer = products > elementwise
    return products + np.where(longer, turns, 0.0), elementwise + np.where(longer, 0.0, turns)


def latency_us(x: Launch, segments: Sequence[Segment], o: Occupancy) -> Array:
    """max(of a program instance in the mean · waves, of the longest), each the Σ of segments"""
    mean = sum((us for s in segments for us in _latencies(x, s, s.trips)), x.zero)
    longest = mean
    if any(s.work.limits for s in segments):
        longest = sum((us for s in segments for us in _latencies(x, s, s.longest)), x.zero)
    return np.maximum(mean * o.waves, longest)


def _latencies(x: Launch, s: Segment, trips: Array) -> Iterator[Array | float]:
    """Of a loop: `latency_us` + (trips - 1) · step + (trips - fetching) · max(0, `latency_us` / fetching - step)
    + `late_us` · trips where a load comes late. Of what stands in no loop: `latency_us` · rounds.

    rounds = max(1, registers that a thread's loads fill / MOST_LOADED) where products are made without the matrix
    units, half of that where they are made with them of more behind a loop than registers hold, else 1.

    step = `step_us` + `warp_step_us` · log2 warps + _chain_us + `across_step_us` · _meetings; fetching = depth - 1:
    iterations whose loads are under way.
    """
    c = x.target.costs
    if not s.work.loop:
        early = all(x.early for x in s.work.loads)
        each = c.fast_us if early else c.latency_us
        if s.work.dots:
            words = s.loaded / (REGISTER_BYTES * 32 * x.batch.warps)
            late = s.multiplies & early & (words > MOST_REGISTERS)
            rounds = np.where(late, words / (2 * MOST_LOADED), np.where(s.multiplies, 1.0, words / MOST_LOADED))
            each = np.where(late, c.latency_us, each) * x.term("rounds", np.maximum(1.0, rounds), 1.0)
        yield each
        return
    step = c.step_us + x.term("warps", c.warp_step_us * np.log2(x.batch.warps), 0.0)
    step = step + x.term("chains", _chain_us(x, s), 0.0)
    step = step + x.term("meetings", c.across_step_us * _meetings(x, s), 0.0)
    fetching = np.maximum(1.0, s.depth - 1)
    once = x.term("short", np.minimum(fetching, trips), 0.0)  # iterations whose data the first wait brings
    stalls = (trips - once) * np.maximum(0.0, c.latency_us / fetching - step)
    yield c.latency_us
    yield (trips - x.term("short", x.zero + 1.0, 0.0)) * step
    yield stalls
    if s.work.dots:
        yield c.late_us * x.term("late", s.multiplies * _comes_late(x, s.work), 0.0) * trips


def operands_us(x: Launch, segments: Sequence[Segment], o: Occupancy) -> Array:
    """Σ runs · (depth · rows and columns that warps read · bytes + `banked_bytes`) / (shared memory's rate · awake) ·
    uneven"""
    read = x.zero
    for s in segments:
        read = read + x.term("banks", s.runs * banked_bytes(x, s), 0.0)
        for p in s.products:
            rows = _operand_rows(p, x.batch.warps)
            if s.work.loop and any(p.product.computed):
                rows = rows + x.term("turned", x.target.costs.turned * _turned_rows(p, x.batch.warps), 0.0)
            read = read + np.where(p.on_units, p.n * s.runs * p.depth * rows * p.element, 0.0)
    return read / (x.target.smem_bytes_per_us * o.awake) * o.uneven


# -- the rest


def behind_us(x: Launch, segments: Sequence[Segment], o: Occupancy, memory: Array) -> Array:
    """`behind` · the memory's time / waves · the most of (depth - 1) / trips, of loops that multiply on the matrix
    units: all blocks ask for several iterations at once, and what the first one needs comes behind a part of these."""
    parts = [
        np.where(s.multiplies, np.minimum(1.0, (s.depth - 1.0) / np.maximum(s.trips, 1.0)), 0.0)
        for s in segments
        if s.work.loop and s.work.dots
    ]
    return x.target.costs.behind * memory / o.waves * reduce(np.maximum, parts, x.zero)


def lengths(x: Launch, segments: Sequence[Segment]) -> Array:
    """1 + (longest / mean - 1) / max(1, program instances of a multiprocessor), of those that have any work and whose
    loops data end: beside the longest, which may start last, others have ended."""
    total = x.zero + 1.0
    for s in segments:
        if s.work.by_data:
            mean = s.trips / np.maximum(s.in_work, 1.0 / x.programs)
            here = np.maximum(1.0, x.programs * s.in_work / x.target.sms)
            total = np.maximum(total, 1.0 + np.maximum(0.0, s.longest / mean - 1.0) / here)
    return total


def launch_us(x: Launch) -> Array:
    """The target's `launch_us`"""
    return x.term("launch", x.zero + x.target.launch_us, 0.0)


def ramp_us(x: Launch) -> Array:
    """`ramp_us`, unless it starts before the kernel in front has ended"""
    return x.target.costs.ramp_us * (1.0 - x.term("overlap", x.batch.overlap, 1.0))


def starts_us(x: Launch, work: Array) -> Array:
    """What program instances · `start_us`, twice that where the kernel may overlap, is more than their work"""
    return x.term("starts", np.maximum(0.0, x.programs * x.target.costs.start_us * (1.0 + x.batch.overlap) - work), 0.0)


def work_us(x: Launch, times: Array, segments: Sequence[Segment], o: Occupancy) -> Array:
    """longest + (shown + (1 - shown) · exposed / (alone · deepest²)) · (Σ times - longest)

    deepest: the most iterations that any loop has in flight. With windows in registers, `apart_warps` / warps of a
    multiprocessor instead, where that is more.
    """
    c, longest = x.target.costs, times.max(axis=0)
    in_flight = (x.term("short", np.minimum(s.depth, s.trips), s.depth) for s in segments)
    deepest = reduce(np.maximum, in_flight, x.zero)
    shown = c.shown + x.term("pauses", (1.0 - c.shown) * c.exposed / (o.alone * deepest**2), 0.0)
    if x.m.rows is not None:
        few = np.minimum(1.0, c.apart_warps / _warps_at_once(x, o))
        shown = np.maximum(shown, x.term("apart", few, 0.0))
    return x.term("sum", longest + shown * (times.sum(axis=0) - longest), longest)


def _warps_at_once(x: Launch, o: Occupancy) -> Array:
    """Of a multiprocessor, as registers have room for them."""
    room = x.target.regs_per_sm // (np.minimum(o.registers, MOST_REGISTERS) * 32 * x.batch.warps)
    blocks = np.minimum(np.minimum(room, MOST_BLOCKS), np.ceil(x.programs / x.target.sms))
    return np.clip(blocks * x.batch.warps, 1.0, x.target.warps_per_sm)


def stores_us(x: Launch, stored: Array, o: Occupancy) -> Array:
    """bytes / (the memory's rate · waves): other waves hide them"""
    return x.term("stores", stored / (x.target.dram_bytes_per_us * o.waves), 0.0)


def meetings_us(x: Launch, segments: Sequence[Segment], o: Occupancy) -> Array:
    """`meet_us` · sums that stand in no loop, of several warps / waves: behind its loads, an instance has nothing to
    hide them"""
    sums = sum(len(s.work.sums) for s in segments if not s.work.loop)
    return x.term("meetings", x.target.costs.meet_us * sums * (x.batch.warps > 1) / o.waves, 0.0)


def early_us(x: Launch) -> Array:
    """`early_us`, where the kernel lets the one behind start before its own end"""
    early = np.maximum(np.maximum(x.batch.relay, x.batch.early), x.batch.lead > 0)
    return x.term("early", x.target.costs.early_us * early, 0.0)


def fetched_us(x: Launch, ahead_bytes: Array) -> Array:
    """`fetched_us`, where anything is fetched ahead"""
    return x.term("fetched", np.where(ahead_bytes > 0, x.target.costs.fetched_us, 0.0), 0.0)


def traffic_us(x: Launch, ahead_bytes: Array) -> Array:
    """`traffic` · bytes that are fetched ahead · programs / the memory's rate"""
    return x.term("traffic", x.target.costs.traffic * ahead_bytes * x.programs / x.target.dram_bytes_per_us, 0.0)


# -- all of it


def estimate(
    m: Model, batch: Batch, sizes: Mapping[str, int], target: Target, without: Collection[str] = ()
) -> Estimates:
    """Predicted time of one launch for every schedule of the batch. without: of TERMS, those that do not count."""
    counts = batch.counts(m, sizes)
    if not counts.any():
        return _in_parts(m, batch, sizes, target, without)
    each, which = np.unique(counts, return_inverse=True)
    some: list[Estimates] = []
    for i, n in enumerate(each.tolist()):
        own = batch.some(which == i)
        made = m.formed(int(n), sizes) if n else None
        if made is not None:
            some.append(_in_parts(made.model, own.formed(made), made.sizes, target, without))
        else:
            e = _in_parts(m, replace(own, unroll=np.zeros_like(own.unroll)), sizes, target, without)
            some.append(replace(e, us=e.us + np.inf) if n else e)
    return Estimates.of(some, np.argsort(np.argsort(which, kind="stable")))


def _in_parts(m: Model, batch: Batch, sizes: Mapping[str, int], target: Target, without: Collection[str]) -> Estimates:
    """Of parts that may run side by side."""
    if not m.several:
        return _estimate(m, batch, sizes, target, without)
    tiled = sum((1 << i) * (batch.block[d] < sizes[d]) for i, d in enumerate(m.grid))
    patterns, which = np.unique(tiled, return_inverse=True)
    of_patterns = [m.parts({d for i, d in enumerate(m.grid) if p >> i & 1}) for p in patterns.tolist()]
    groups = [*dict.fromkeys(of_patterns)]
    group = np.array([groups.index(parts) for parts in of_patterns])[which]
    found: dict[Model, tuple[NDArray[np.bool_], Estimates]] = {}
    for part in dict.fromkeys(part for parts in groups for part in parts):
        own = np.isin(group, [i for i, parts in enumerate(groups) if part in parts])
        found[part] = own, _estimate(part, batch.some(own), sizes, target, without)
    together: list[Estimates] = []
    for i, parts in enumerate(groups):
        own = [estimates.some((group == i)[some]) for some, estimates in (found[part] for part in parts)]
        together.append(_side_by_side(own, target))
    return Estimates.of(together, np.argsort(np.argsort(group, kind="stable")))


def _side_by_side(parts: Sequence[Estimates], target: Target) -> Estimates:
    """Of parts that run side by side: what they keep busy adds up, but for latencies; they share one launch.

    busy = max(the longest, Σ busy · spread / min(1, Σ spread)): few instances leave multiprocessors to other parts.
    """
    first, *others = parts
    if not others:
        return first
    spread = np.minimum(1.0, reduce(np.add, (p.spread for p in parts)))
    busy = {name: reduce(np.maximum, (p.busy[name] for p in parts)) for name in first.busy}
    for name in busy.keys() - {"memory", "latency"}:
        together = reduce(np.add, (p.busy[name] * p.spread for p in parts)) / spread
        busy[name] = np.maximum(busy[name], together)
    busy["memory"] = reduce(np.add, (p.busy["memory"] for p in parts))
    times = np.array([*busy.values()])
    longest = times.max(axis=0)
    found = {name: reduce(np.add, (p.parts[name] for p in parts)) for name in first.parts}
    found |= {name: first.parts[name] for name in ("launch", "ramp", "early", "fetched")}
    found["work"] = longest + target.costs.shown * (times.sum(axis=0) - longest)
    fit = reduce(np.logical_and, (np.isfinite(p.us) for p in parts))
    us = np.where(fit, reduce(np.add, found.values()), np.inf)
    shared, crowded = (reduce(np.maximum, x) for x in zip(*((p.shared_bytes, p.crowded) for p in parts), strict=True))
    return Estimates(us, found, busy, times.argmax(axis=0), shared, spread, crowded)


def _estimate(m: Model, batch: Batch, sizes: Mapping[str, int], target: Target, without: Collection[str]) -> Estimates:
    """Of instances that compute all of a kernel."""
    x = Launch.of(m, batch, sizes, target, without)
    segments = [segment(x, w) for w in m.segments]
    largest, accumulated = held(m, batch.block, x.zero)
    o = occupancy(x, segments, largest, accumulated)
    stored, ahead_bytes = _stored_bytes(x), _ahead_bytes(x, segments)
    products, elementwise = in_turns(x, o, products_us(x, segments, o), elementwise_us(x, segments, o))
    busy = {
        "memory": memory_us(x, stored, o),
        "L2": l2_us(x, segments, o),
        "matrix units": products,
        "arithmetic": elementwise,
        "latency": latency_us(x, segments, o),
        "operands": operands_us(x, segments, o),
    }
    behind = x.term("behind", behind_us(x, segments, o, busy["memory"]), 0.0)
    busy |= {name: busy[name] + behind for name in COMPUTING}
    alone = x.term("lengths", lengths(x, segments), 1.0)
    busy = {name: us if name == "latency" else us * alone for name, us in busy.items()}
    times = np.array([x.term(name, us, 0.0) for name, us in busy.items()])
    work = work_us(x, times, segments, o)
    parts = {
        "launch": launch_us(x),
        "ramp": ramp_us(x),
        "work": work,
        "starts": starts_us(x, work),
        "stores": stores_us(x, stored, o),
        "meetings": meetings_us(x, segments, o),
        "early": -early_us(x),
        "fetched": -fetched_us(x, ahead_bytes),
        "traffic": traffic_us(x, ahead_bytes),
    }
    room = OVERESTIMATE * np.minimum(MOST_REGISTERS, target.regs_per_sm / (32 * batch.warps))
    crowded = np.maximum(o.registers / room, o.shared / target.smem_per_block_bytes)
    us = np.where(fits(largest, accumulated) & (crowded <= 1.0), reduce(np.add, parts.values()), np.inf)
    return Estimates(us, parts, busy, times.argmax(axis=0), o.shared, o.spread, crowded)


# -- what blocks hold, move and share


def _ahead_bytes(x: Launch, segments: Sequence[Segment]) -> Array:
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


def _comes_late(x: Launch, w: Work) -> Array:
    """1 where a loop waits for some load in every iteration: threads have less of its block side by side than an
    asynchronous copy takes. What threads have few bytes of is loaded an iteration ahead, where that can be."""
    threads = 32 * x.batch.warps
    blocks = [b for b in w.blocks if b.axes]
    elements = [x.elements[b.axes] for b in blocks]
    found = [
        late.Block(frozenset(b.axes), b.lines.element if b.lines else 0, n, n * b.element_bytes)
        for b, n in zip(blocks, elements, strict=True)
    ]
    comes = x.zero > 0
    for b, of_few in zip(blocks, late.few(found, threads), strict=True):
        steps = len(w.loop) > 1 or (b.lines is not None and bool(lookups_of(b.lines.access)))
        comes = comes | np.where(of_few, steps, one_load_bytes(x, b.lines) < late.COPY_BYTES)
    return comes.astype(np.float64)


def _meetings(x: Launch, s: Segment) -> Array:
    """Reductions of what a product on the matrix units has made, along rows or columns that several warps share."""
    total = x.zero
    for axes, product in s.work.reduced:
        (p,) = (p for p in s.products if p.product == product)
        down, across = _warps_along(p, x.batch.warps)
        of_left, of_right = (bool({*axes} & {*side}) for side in (product.left, product.right))
        of_rows, of_columns = np.where(p.left_first, of_left, of_right), np.where(p.left_first, of_right, of_left)
        total = total + (p.on_units & ((of_rows & (down > 1)) | (of_columns & (across > 1))))
    return total


def _operand_rows(p: Multiplied, warps: Array) -> Array:
    """Rows and columns that warps read of a product's operands, those that several warps read counted for each.

    A warp has 16 rows or more of the result, and what it has of the columns; a warpgroup reads each operand once.
    """
    down, across = _warps_along(p, warps)
    groups = np.maximum(1.0, np.minimum(warps / WARPGROUP, p.rows / WARPGROUP_ROWS))
    return p.rows * np.where(p.grouped, 1.0, across) + p.columns * np.where(p.grouped, groups, down)


def _warps_along(p: Multiplied, warps: Array) -> tuple[Array, Array]:
    """Warps along the rows and along the columns of a product."""
    down = np.minimum(warps, np.maximum(1.0, np.ceil(p.rows / MIN_DOT)))
    return down, np.ceil(warps / down)


def _turned_rows(p: Multiplied, warps: Array) -> Array:
    """Columns of the second operand, where a warpgroup has computed it: its rows are the axes that are summed here.
    What is made of pairs of bytes stays where it is, if no warpgroup multiplies it."""
    stays = ((both, ~p.grouped) for both in p.product.paired)
    left, right = (c & ~(both & alone) for c, (both, alone) in zip(p.product.computed, stays, strict=True))
    second = np.where(p.left_first, p.right * right, p.left * left)
    return np.where(in_warpgroups(warps, p.depth), second, 0.0)


def _chain_us(x: Launch, s: Segment) -> Array:
    """`mma_us` · max over products that no warpgroup makes: (elements that are summed - CHAINED) / 16. A warp adds them
    to the same result one after the other."""
    longest = x.zero
    for p in s.products:
        alone = p.on_units & ~p.grouped
        longest = np.maximum(longest, np.where(alone, p.depth - CHAINED, 0.0))
    return x.target.costs.mma_us * longest / MIN_DOT


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


def _stored_bytes(x: Launch) -> Array:
    """Each store written once."""
    return sum((whole for _, _, whole in _stores(x)), x.zero)


def _stores(x: Launch) -> Iterator[tuple[tuple[str, ...], int, Array]]:
    """The axes of each store but that of chunks, bytes of an element, and of all that it writes."""
    chunk = x.m.kernel.chunk if x.m.split else None
    for axes, size, _, _ in x.m.stores:
        own = tuple(a for a in axes if a != chunk)
        chunks = x.batch.split if chunk in axes else x.zero + 1.0
        yield own, size, prod(x.sizes[a] for a in own) * size * chunks


def library_us(
    kernel: Kernel, inputs: Iterable[Tensor], sizes: Mapping[str, int], element: int, target: Target
) -> float:
    """Predicted time of a matrix product by the vendor's library, in microseconds. inputs: of the μGraph. element:
    bytes of one."""
    e = kernel.body[0]
    tensors = [x.dims for x in kernel.loads] + [e.dims]
    moved = sum(prod(sizes[a] for a in axes) * element for axes in tensors)
    flops = 2.0 * prod(sizes[a] for a in {*e.dims, *e.axes})
    c = target.costs
    moving_us = moved / (c.library_memory * target.dram_bytes_per_us)
    single = element == DTYPE_BYTES["float32"]
    whole = [whole_rows(x, inputs, sizes, element) for x in kernel.loads]
    whole += [sizes[d] * element % WIDEST_BYTES == 0 for d in kernel.stores[0].dims[-1:]]
    rows = 1.0 if all(whole) else c.library_rows
    rate = c.library_single * target.fp32_flops_per_us if single else rows * target.tensor_flops_per_us
    return target.launch_us + c.library_us + max(moving_us, flops / rate)


def floor_us(read: float, written: float, flops: float, target: Target, dtype: str) -> float:
    """No kernel is faster than this: bytes that are read and written over measured rates, operations over the measured
    matmul rate."""
    return max(target.memory_us(read, written), flops / target.matrix_flops_per_us(dtype))
