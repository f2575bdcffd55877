"""Loads of what a kernel needs behind a loop, in front of it.

    for k: o += X·W            B = load B
    B = load B          -->    for k: o += X·W
    store o + B                store o + B

What comes from memory takes most of a microsecond, and behind the loops of a kernel whose program instances all end at
once nothing else goes on meanwhile. On an H200 the product of one row and 4096 x 4096 with a residual took 10.2 us in a
chain and 11.3 alone, and 9.8 and 10.7 so; four other programs are in results/h200/notes-2026-11-27.md. Where a table
says which rows are loaded, the loop would wait for the table: such rows are loaded behind the loop, and the table in
front of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.handover import waits
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.placement import Placement, Straight, early_loads
from mirage_cli.ir.schedule import REGISTER_BYTES

MOST_BYTES = 32
"""What a thread holds of such loads at most, while the loop runs: 8 registers."""


def placed_early(k: ScheduledKernel, awaited: Collection[str]) -> Placement:
    """The placement with such loads in front of the last loop that they stood behind. The wait for kernels in front
    stays where it is. awaited: what may only be read behind that wait."""
    segments = [*k.placement.segments]
    early = early_loads(k.kernel) - {x.out for x in k.kernel.loads if x.buffer in k.live}
    room = MOST_BYTES
    waited = False
    for i, segment in enumerate(segments):
        front = segments[i - 2] if i > 1 else None
        if isinstance(segment, Straight) and isinstance(front, Straight):
            moved: list[Load] = []
            for x in (x for x in segment.steps if isinstance(x, Load) and x.out in early):
                size = held_bytes(k, x.dims, k.graph.element_bytes[x.buffer])
                if size <= room and (waited or not waits(x, awaited)):
                    room -= size
                    moved.append(x)
            rest = [x for x in moved if waits(x, awaited)]
            first = [x for x in moved if x not in rest]
            segments[i - 2] = replace(front, steps=(*first, *front.steps, *rest))
            segments[i] = replace(segment, steps=tuple(x for x in segment.steps if x not in moved))
        steps = segment.steps if isinstance(segment, Straight) else (segment,)
        waited = waited or any(waits(x, awaited) for x in steps)
    return Placement(tuple(segments))


def held_bytes(k: ScheduledKernel, dims: Iterable[str], element_bytes: int) -> int:
    """Of a block, in the registers of a thread."""
    each = -(-k.elements(k.axes(dims)) // (32 * k.schedule.warps))
    return -(-each * element_bytes // REGISTER_BYTES) * REGISTER_BYTES
