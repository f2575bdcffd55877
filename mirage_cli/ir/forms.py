"""The form of a kernel that its schedule asks for, of all that there are."""

from __future__ import annotations

from collections.abc import Mapping

from mirage_cli.ir import diagonal, unrolled
from mirage_cli.ir.form import KernelForm
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.schedule import KernelSchedule


def at_schedule(graph: MuGraph, kernel: Kernel, s: KernelSchedule, sizes: Mapping[str, int]) -> KernelForm | None:
    """None where a kernel stays as it is."""
    if s.unroll and (made := unrolled.at_schedule(graph, kernel, s, sizes)) is not None:
        return made
    return diagonal.at_schedule(graph, kernel, unrolled.in_blocks(s) if s.unroll else s, sizes)
