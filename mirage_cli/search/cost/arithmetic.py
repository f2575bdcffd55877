"""What a launch computes: the times of the matrix units, of all other operations, and of operands in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from mirage_cli.ir.program import LINE_BYTES, WIDEST_BYTES
from mirage_cli.ir.schedule import MAX_LANES, MIN_COLUMNS, MIN_DOT, WARPGROUP_ROWS
from mirage_cli.search.cost.banks import banked_bytes
from mirage_cli.search.cost.batch import Array
from mirage_cli.search.cost.occupancy import (
    Launch,
    Multiplied,
    Occupancy,
    Segment,
    copies,
    in_warpgroups,
    keeps_lanes,
    one_load_bytes,
    warps_along,
)
from mirage_cli.search.cost.traffic import Lines
from mirage_cli.search.cost.work import Elementwise

LANES_DOWN, LANES_ACROSS = 8, 4
"""Threads of a warp along the rows and along the columns of a product's result, of mma as of wgmma (PTX ISA 9.7)."""


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
    c, (down, across) = x.target.costs, warps_along(p, x.batch.warps)
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
            down, across = warps_along(p, x.batch.warps)
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


class Operands(NamedTuple):
    """Times of operands in shared memory, us: of reading them, of what warpgroups read of them, and of writing those
    that are turned."""

    read: Array
    waited: Array
    turned: Array


def in_turns(
    x: Launch, segments: Sequence[Segment], o: Occupancy, products: Array, operands: Operands, elementwise: Array
) -> tuple[Array, Array, Array]:
    """Products, operands, and all other operations, the longer of multiplying and elementwise + the shorter / n, with
    multiplying = max(products, operands that warpgroups wait for): a block alone multiplies or computes, others fill
    its pauses. n = blocks of a multiprocessor, √blocks where warpgroups multiply in a loop what they make of another
    product, as these come to take the same turns (of 1, √blocks and blocks the one that orders attention best).
    """
    chained = (p for s in segments if s.work.loop for p in s.products if any(p.product.multiplied))
    together = reduce(np.logical_or, (p.on_units & p.grouped for p in chained), x.zero > 0)
    multiplying = np.maximum(products, x.term("operands", operands.waited, 0.0))
    blocks = np.where(together, np.sqrt(o.alone), o.alone)
    turns = x.term("turns", np.minimum(multiplying, elementwise) / blocks, 0.0)
    shorter = np.where(multiplying > elementwise, turns, 0.0)
    return products + shorter, operands.read + np.maximum(shorter, operands.turned), elementwise + turns - shorter


def operands_us(x: Launch, segments: Sequence[Segment], o: Occupancy) -> Operands:
    """Σ runs · (depth · rows and columns that warps read · bytes + `banked_bytes`) / (shared memory's rate · awake) ·
    uneven"""
    read = waited = turned = x.zero
    for s in segments:
        read = read + x.term("banks", s.runs * banked_bytes(x, s), 0.0)
        for p in s.products:
            each = np.where(p.on_units, p.n * s.runs * p.depth * p.element, 0.0)
            own = each * _operand_rows(p, x.batch.warps)
            read, waited = read + own, waited + np.where(p.grouped, own, 0.0)
            if s.work.loop and any(p.product.computed):
                turned = turned + each * x.term("turned", x.target.costs.turned * _turned_rows(p, x.batch.warps), 0.0)
    rate = o.uneven / (x.target.smem_bytes_per_us * o.awake)
    return Operands(read * rate, waited * rate, turned * rate)


def _operand_rows(p: Multiplied, warps: Array) -> Array:
    """Rows and columns that warps read of a product's operands, those that several warps read counted for each.

    A warp has 16 rows or more of the result, and what it has of the columns; a warpgroup multiplies 64 rows at once
    (PTX ISA, wgmma), reads the columns again for each 64, and has in registers what it has multiplied itself.
    """
    down, across = warps_along(p, warps)
    groups = np.maximum(1.0, p.rows / WARPGROUP_ROWS)
    held = np.where(p.left_first, *p.product.multiplied)
    return p.rows * np.where(p.grouped, ~held, across) + p.columns * np.where(p.grouped, groups, down)


def _turned_rows(p: Multiplied, warps: Array) -> Array:
    """Columns of the second operand, where a warpgroup has computed it: its rows are the axes that are summed here.
    What is made of pairs of bytes stays where it is, if no warpgroup multiplies it."""
    stays = ((both, ~p.grouped) for both in p.product.paired)
    left, right = (c & ~(both & alone) for c, (both, alone) in zip(p.product.computed, stays, strict=True))
    second = np.where(p.left_first, p.right * right, p.left * left)
    return np.where(in_warpgroups(warps, p.depth), second, 0.0)
