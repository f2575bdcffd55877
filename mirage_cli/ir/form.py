"""Another form of a kernel, which a schedule asks for: what a μGraph says is one kernel in any form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.schedule import KernelSchedule

Axes = tuple[tuple[str, int], ...]
"""With their sizes."""


@dataclass(frozen=True, slots=True)
class Form(ABC):
    """of: the kernel as it was. axes: those that this one has and the μGraph has not, or all of its own."""

    of: Kernel
    kernel: Kernel
    axes: Axes

    def graph(self, graph: MuGraph) -> MuGraph:
        """The μGraph of the kernel as it was, with this in its place."""
        return replace(graph, kernels=tuple(self.kernel if k.name == self.of.name else k for k in graph.kernels))

    def sizes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Of all axes, its own among them."""
        return {**sizes, **dict(self.axes)}

    @abstractmethod
    def schedule(self, s: KernelSchedule) -> KernelSchedule:
        """Its own, from that of the kernel as it was."""

    @abstractmethod
    def original(self, s: KernelSchedule) -> KernelSchedule:
        """That of the kernel as it was, from its own."""


def axes_of(kernel: Kernel, sizes: Mapping[str, int]) -> Axes:
    """Those that have roles."""
    return tuple((d, sizes[d]) for d, _ in kernel.roles)
