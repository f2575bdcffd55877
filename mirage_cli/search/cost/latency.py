"""What a program instance waits for: the times of iterations that follow each other, and of the first one's data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from mirage_cli.ir import late
from mirage_cli.ir.access import lookups_of
from mirage_cli.ir.schedule import MIN_DOT, REGISTER_BYTES
from mirage_cli.search.cost.batch import Array
from mirage_cli.search.cost.occupancy import (
    MOST_LOADED,
    MOST_REGISTERS,
    Launch,
    Occupancy,
    Segment,
    one_load_bytes,
    warps_along,
)
from mirage_cli.search.cost.work import Work

CHAINED = 128
"""Elements that products sum in an iteration of the loops to which `step_us` was fitted."""


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
        down, across = warps_along(p, x.batch.warps)
        of_left, of_right = (bool({*axes} & {*side}) for side in (product.left, product.right))
        of_rows, of_columns = np.where(p.left_first, of_left, of_right), np.where(p.left_first, of_right, of_left)
        total = total + (p.on_units & ((of_rows & (down > 1)) | (of_columns & (across > 1))))
    return total


def _chain_us(x: Launch, s: Segment) -> Array:
    """`mma_us` · max over products that no warpgroup makes: (elements that are summed - CHAINED) / 16. A warp adds them
    to the same result one after the other."""
    longest = x.zero
    for p in s.products:
        alone = p.on_units & ~p.grouped
        longest = np.maximum(longest, np.where(alone, p.depth - CHAINED, 0.0))
    return x.target.costs.mma_us * longest / MIN_DOT
