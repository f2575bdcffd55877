"""Kernels that run while the next one's loops do: that one reads what they write behind its loops alone.

    kernel 0   | wait | release | loop ....... | stores |
    kernel 1          | launch | loop ...................... | wait | the rest

Both must have room on a multiprocessor, and kernel 0 must release early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.placement import Loop, place
from mirage_cli.search.cost.batch import Array, Batch
from mirage_cli.search.cost.model import Estimates
from mirage_cli.target.gpus import Target

HIDDEN = 0.75
"""The part of such a kernel's work that does not show: X·A beside X·W, 2048 x 4096 x 4096, took 4.1 us less on an H200
where the two had room, of 5.5 that it is predicted."""

NEEDED = ("shared_bytes", "early", "overlap", "work", "matrix units", "memory")
"""What tells how much of a kernel is hidden: of its schedule, and of what the cost model says of that."""


def needed(batch: Batch, e: Estimates) -> Mapping[str, Array]:
    """`NEEDED` of the schedules of a batch."""
    busy = e.busy["matrix units"], e.busy["memory"]
    some = (e.shared_bytes, batch.early, batch.overlap, e.parts["work"], *busy)
    return dict(zip(NEEDED, some, strict=True))


@lru_cache(maxsize=256)
def pairs(graph: MuGraph) -> tuple[tuple[str, str], ...]:
    """The generated kernels that may run beside the next one, with that one."""
    kernels = [(a, b) for a, b in pairwise(graph.kernels) if {a.kind, b.kind} == {"generated"}]
    return tuple((a.name, b.name) for a, b in kernels if _read_behind_loops(a, b))


def _read_behind_loops(a: Kernel, b: Kernel) -> bool:
    """Whether b reads of a, after a loop of its own, and stores nothing before the end of that."""
    written = {s.buffer for s in a.stores}
    segments = place(b).segments
    first = next((i for i, s in enumerate(segments) if isinstance(s, Loop)), len(segments))
    early = [step.out for s in segments[: first + 1] for step in s.steps]
    reads = {x.out for x in b.loads if not written.isdisjoint(x.buffers)}
    return (
        first < len(segments)
        and bool(reads)
        and reads.isdisjoint(early)
        and not any(s.stores for s in segments[: first + 1])
    )


def hidden_us(graph: MuGraph, found: Mapping[str, Mapping[str, Array]], target: Target) -> Iterator[Array]:
    """Microseconds that each kernel which runs beside the next one takes less of a call, for every schedule of a batch.

    `HIDDEN` · min(its work, what the next one multiplies while memory is idle), where it lets that start when it has
    waited, and both have room. Two that wait for memory wait for each other: of 26 schedules with 2 to 64 rows that
    could hide a kernel, none took less than others like it. found: `NEEDED` of each kernel.
    """
    for a, b in pairs(graph):
        one, other = found[a], found[b]
        room = fits(one["shared_bytes"], other["shared_bytes"], target)
        beside = room & (one["early"] > 0) & (other["overlap"] > 0)
        idle = np.maximum(other["matrix units"] - other["memory"], 0.0)
        yield np.where(beside, HIDDEN * np.minimum(one["work"], idle), 0.0)


def fits(one: Array, other: Array, target: Target) -> NDArray[np.bool_]:
    """Whether blocks of two kernels have room on one multiprocessor, by their bytes of shared memory."""
    return one + other <= target.smem_per_sm_bytes
