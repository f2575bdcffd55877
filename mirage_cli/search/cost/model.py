"""The cost model: predicted time of a kernel at given tiles, from what it must move and compute.

It orders candidates; it does not have to be right in microseconds. The largest of six times counts (`LIMITS`):

* device memory, and the L2 (`memory`);
* matrix units, other arithmetic, and operands in shared memory (`arithmetic`);
* the latency of the iterations that one program instance walks in sequence (`latency`).

`_estimate` has the whole formula. Constants in backquotes are the target's (`target.gpus.Costs`). What the times are
computed from: `work` is what a kernel does, `batch` many schedules of it, `occupancy` what both make of a launch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from mirage_cli.search.cost.arithmetic import elementwise_us, in_turns, operands_us, products_us
from mirage_cli.search.cost.batch import Array, Batch, fits, held
from mirage_cli.search.cost.latency import behind_us, latency_us, lengths
from mirage_cli.search.cost.memory import ahead_bytes, l2_us, memory_us, stored_bytes
from mirage_cli.search.cost.occupancy import (
    MOST_REGISTERS,
    Launch,
    Occupancy,
    Segment,
    occupancy,
    segment,
)
from mirage_cli.search.cost.work import Model
from mirage_cli.target.gpus import Target

OVERESTIMATE = 1.18
"""Of the registers that a thread may have, how many it is estimated to take at most. Of 259 kernels of 11 programs that
were compiled for sm_90 before `search.cost.live` counted what is held, 73 spilled more than 128 bytes: 52 of these were
estimated to take more, and 9 of the others. Since then, of 258 kernels, 72 spilled: 52 of these are, and 14 others."""
MOST_BLOCKS = 32
"""That share a multiprocessor (CUDA C++ Programming Guide, compute capability 9.0)."""

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
    "lengths": "loops that data end at different places leave the last multiprocessors alone, others fill them",
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
    """Of parts that may run side by side. Of no schedules, where no blocks fit a part, as of any other kernel."""
    if not m.several or not len(batch.warps):
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
    stored, ahead = stored_bytes(x), ahead_bytes(x, segments)
    computing = products_us(x, segments, o), operands_us(x, segments, o), elementwise_us(x, segments, o)
    products, operands, elementwise = in_turns(x, segments, o, *computing)
    busy = {
        "memory": memory_us(x, stored, o),
        "L2": l2_us(x, segments, o),
        "matrix units": products,
        "arithmetic": elementwise,
        "latency": latency_us(x, segments, o),
        "operands": operands,
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
        "fetched": -fetched_us(x, ahead),
        "traffic": traffic_us(x, ahead),
    }
    room = OVERESTIMATE * np.minimum(MOST_REGISTERS, target.regs_per_sm / (32 * batch.warps))
    crowded = np.maximum(o.registers / room, o.shared / target.smem_per_block_bytes)
    us = np.where(fits(largest, accumulated) & (crowded <= 1.0), reduce(np.add, parts.values()), np.inf)
    return Estimates(us, parts, busy, times.argmax(axis=0), o.shared, o.spread, crowded)


# -- what is added to the largest of the times


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


def fetched_us(x: Launch, ahead: Array) -> Array:
    """`fetched_us`, where anything is fetched ahead"""
    return x.term("fetched", np.where(ahead > 0, x.target.costs.fetched_us, 0.0), 0.0)


def traffic_us(x: Launch, ahead: Array) -> Array:
    """`traffic` · bytes that are fetched ahead · programs / the memory's rate"""
    return x.term("traffic", x.target.costs.traffic * ahead * x.programs / x.target.dram_bytes_per_us, 0.0)
