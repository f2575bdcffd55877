"""Another form of a kernel, which its schedule asks for: in a μGraph the kernel is the same in any form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.schedule import KernelSchedule

Axes = tuple[tuple[str, int], ...]
"""With their sizes."""


class Inside(NamedTuple):
    """An axis along what is one block of a form. beside: in an order of blocks' axes it stands with these; in_front: in
    front of them all."""

    axis: str
    beside: frozenset[str]
    in_front: bool


@dataclass(frozen=True, slots=True)
class KernelForm:
    """A kernel in blocks of so many positions (`count`) along some axis, which its equations tell apart.

    of: the kernel as it was. axes: its own. names: of the axis that counts blocks, by the one that is cut in them.
    gone: axes that it lacks. inside: axes along a block, if it has any. unrolls: whether the schedule says so by
    `KernelSchedule.unroll`, where any tile may be a block of one position too. values: of its values those that have
    another name in the kernel as it was, with that name. parts: of loads of which most lies outside of their tensor,
    what part does not.
    """

    of: Kernel
    kernel: Kernel
    axes: Axes
    names: Mapping[str, str]
    count: int
    gone: tuple[str, ...] = ()
    inside: tuple[Inside, ...] = ()
    unrolls: bool = False
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    parts: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def graph(self, graph: MuGraph) -> MuGraph:
        """The μGraph of the kernel as it was, with this in its place."""
        return replace(graph, kernels=tuple(self.kernel if k.name == self.of.name else k for k in graph.kernels))

    def sizes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Of all axes, its own among them."""
        return {**sizes, **dict(self.axes)}

    def schedule(self, s: KernelSchedule) -> KernelSchedule:
        """Its own, from that of the kernel as it was."""
        tiles = tuple((self.names.get(d, d), 1 if d in self.names else t) for d, t in s.tiles)
        return replace(s, tiles=tiles, order=self.order(s.order), unroll=False)

    def order(self, order: Sequence[str]) -> tuple[str, ...]:
        """Of its blocks' axes, from that of the kernel as it was."""
        found = [self.names.get(d, d) for d in order if d not in self.gone]
        for x in self.inside:
            places = [n for n, d in enumerate(found) if d in x.beside]
            found.insert((min(places) if x.in_front else max(places) + 1) if places else len(found), x.axis)
        return tuple(found)

    def original(self, s: KernelSchedule) -> KernelSchedule:
        """That of the kernel as it was, from its own."""
        names, inside = {new: old for old, new in self.names.items()}, {x.axis for x in self.inside}
        tiles = tuple((names.get(d, d), self.count if d in names else t) for d, t in s.tiles)
        order = (names.get(d, d) for d in s.order if d not in inside)
        return replace(s, tiles=tiles, order=(*order, *self.gone), unroll=self.unrolls)


def axes_of(kernel: Kernel, sizes: Mapping[str, int]) -> Axes:
    """Those that have roles."""
    return tuple((d, sizes[d]) for d, _ in kernel.roles)
