"""Classes of axes of a program and a μGraph that have one size, as a union-find structure."""

from __future__ import annotations

from collections.abc import Callable

from mirage_cli.ir.access import renames
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program


class AxisClasses:
    """The classes. Two axes are in one class where one is loaded, stored or renamed as the other. An axis of the μGraph
    that nothing ties to the program is in the class of the program's axes of its size."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}

    @classmethod
    def of(cls, program: Program, graph: MuGraph) -> AxisClasses:
        classes = cls()
        for d in (*program.order, *graph.sizes):
            classes.find(d)
        for e in (*program.eqns, *(e for k in graph.kernels for e in k.body)):
            for d, i in e.names.items():
                if i.axis is not None and renames(d, i, graph.sizes | program.sizes):
                    classes.join(d, i.axis)
        for d, i in graph.accesses():
            if i.axis is not None and (d == i.axis or renames(d, i, graph.sizes)):
                classes.join(d, i.axis)
        known = {classes.find(d) for d in (*program.order, *(name for name, _ in graph.merged))}
        for untied in [d for d in graph.sizes if classes.find(d) not in known]:
            for d, n in program.dims:
                if n == graph.sizes[untied]:
                    classes.join(untied, d)
        return classes

    def find(self, a: str) -> str:
        while self.parent.setdefault(a, a) != a:
            a = self.parent[a]
        return a

    def join(self, a: str, b: str) -> None:
        self.parent[self.find(a)] = self.find(b)


def same_axes(program: Program, graph: MuGraph) -> Callable[[str], str]:
    """A name for all axes that are one (`AxisClasses`)."""
    return AxisClasses.of(program, graph).find
