"""Schedules in their normal form: choices that change nothing of the kernels they are made for are not made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from mirage_cli.codegen.access import descriptors, fetched_ahead, leading, relays, specialized, streamed
from mirage_cli.ir.forms import at_schedule
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.schedule import (
    AtEnd,
    Before,
    Early,
    KernelSchedule,
    Lead,
    Relay,
    Schedule,
    block_order,
    block_sizes,
    on_matrix_units,
)
from mirage_cli.ir.unrolled import in_blocks
from mirage_cli.search.cost.work import chunk_sizes


class NormalForms:
    """The normal forms of the kernels of one μGraph, each worked out once."""

    def __init__(self, graph: MuGraph) -> None:
        self.graph = graph
        self.kernels = {k.name: k for k in graph.kernels}
        self.split = [k.name for k in graph.kernels if k.split is not None]
        self.sizes: dict[tuple[int, ...], Mapping[str, int]] = {}  # by the chunks of these
        self.known: dict[tuple[str, KernelSchedule, tuple[int, ...], bool], KernelSchedule] = {}
        self.made: dict[KernelSchedule, KernelSchedule] = {}  # each once, so that comparing them is comparing objects

    def normalised(self, schedule: Schedule) -> Schedule:
        chunks = tuple(schedule.kernels[name].split for name in self.split)
        if chunks not in self.sizes:
            self.sizes[chunks] = chunk_sizes(self.graph, schedule)
        overlaps = any(s.overlap for s in schedule.kernels.values())
        made: dict[str, KernelSchedule] = {}
        for name, s in schedule.kernels.items():
            relay = isinstance(s.hand_over, Relay)
            released = relays(self.graph, self.kernels[name], schedule) if relay else overlaps
            key = name, s, chunks, released
            found = self.known.get(key)
            if found is None:
                found = _normalised(self.graph, self.kernels[name], s, self.sizes[chunks], released)
                found = self.known[key] = self.made.setdefault(found, found)
            made[name] = found
        return Schedule(made)


@lru_cache(maxsize=64)
def forms(graph: MuGraph) -> NormalForms:
    """Those of a μGraph, while it is one of the last that were asked for."""
    return NormalForms(graph)


def normalised(graph: MuGraph, schedule: Schedule) -> Schedule:
    """The schedule without choices that change nothing of the kernels they are made for: two schedules with one normal
    form are the same kernels."""
    return forms(graph).normalised(schedule)


def _normalised(
    graph: MuGraph, k: Kernel, s: KernelSchedule, sizes: Mapping[str, int], released: bool
) -> KernelSchedule:
    """released: whether the kernel may let the one behind start early where its schedule says so."""
    made = at_schedule(graph, k, s, sizes)
    if made is not None:
        own = _normalised(made.graph(graph), made.kernel, made.schedule(s), made.sizes(sizes), released)
        return made.original(own)
    s = in_blocks(s) if s.unroll else s
    s = _with(s, order=block_order(k, s.order, block_sizes(k, s, sizes)))
    if s.specialize:
        special = specialized(graph, k, s, sizes)
        s = _with(s, specialize=special, descriptors=s.descriptors or special)
    if not _hands_over(graph, k, s, sizes, released):
        s = _with(s, hand_over=AtEnd())
    if s.before != Before.NOTHING or s.ahead is not None:
        found = fetched_ahead(graph, k, s, sizes)
        before = s.before if None in found else Before.NOTHING
        s = _with(s, before=before, ahead=s.ahead if found.keys() - {None} else None)
    if s.tf32x3:
        s = _with(s, tf32x3=_on_matrix_units(graph, k, s, sizes))
    if s.patient:
        s = _with(s, patient=s.overlap and _behind_unreleased(graph, k))
    if s.descriptors:
        s = _with(s, descriptors=bool(descriptors(graph, k, s, sizes, narrow=True)))
    return _with(s, stream=bool(streamed(graph, k, s, sizes))) if s.stream else s


def _with(s: KernelSchedule, **choices: object) -> KernelSchedule:
    """The same schedule, with its text, where these are its choices already."""
    return s if all(getattr(s, name) == x for name, x in choices.items()) else replace(s, **choices)


def _hands_over(graph: MuGraph, k: Kernel, s: KernelSchedule, sizes: Mapping[str, int], released: bool) -> bool:
    """Whether a kernel may let the one behind start when its schedule says so; at the end of its loops each may."""
    match s.hand_over:
        case Relay():
            return released
        case Early():
            return released and bool(k.with_role("loop", "split"))
        case Lead():
            return released and leading(graph, k, s, sizes) is not None
        case AtEnd():
            return True


def _behind_unreleased(graph: MuGraph, k: Kernel) -> bool:
    """Whether the kernel in front may be one that releases nothing early: of another call, or of a library."""
    at = graph.kernels.index(k)
    return at == 0 or graph.kernels[at - 1].kind == "library"


def _on_matrix_units(graph: MuGraph, k: Kernel, s: KernelSchedule, sizes: Mapping[str, int]) -> bool:
    """Whether a product of float32 is large enough for the matrix units."""
    exact, dims, block = graph.exact()[k.name], k.value_dims, block_sizes(k, s, sizes)
    products = (e for e in k.body if e.op == "dot" and exact & set(e.values))
    return any(on_matrix_units(e, dims, block) for e in products)
