"""Classes of axes of a program and a μGraph that have one size, as a union-find structure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from mirage_cli.ir.access import Index, Quotient, Remainder, renames
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.running import pairs_of
from mirage_cli.verify.stretches import first_pieces

AXIS = re.compile(r"[A-Za-z_]\w*")
"""A name in the text of an index."""


class AxisClasses:
    """The classes. Two axes are in one class where one is loaded, stored or renamed as the other, or, of those that the
    μGraph alone has, as its neighbours (blocks, and those before them), or where what is along one is reduced up to
    each position of the other (`ir.rewrites.running`). An axis of the μGraph that nothing ties to the program is in the
    class of the program's axes of its size, unless it is of blocks (see `counted`) or the first piece of an axis."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}

    @classmethod
    def of(cls, program: Program, graph: MuGraph) -> AxisClasses:
        classes = cls()
        for d in (*program.order, *graph.sizes):
            classes.find(d)
        for e in (*program.eqns, *graph.eqns):
            for d, i in e.names.items():
                if i.axis is not None and renames(d, i, graph.sizes | program.sizes):
                    classes.join(d, i.axis)
        for a, b in pairs_of(program):
            classes.join(a, b)
        for d, i in graph.accesses():
            if i.axis is not None and (d == i.axis or renames(d, i, graph.sizes)):
                classes.join(d, i.axis)
            elif (a := shifted(d, i, graph.sizes)) and not {a, d} & program.sizes.keys():
                classes.join(a, d)
        known = {classes.find(d) for d in (*program.order, *(name for name, _ in graph.merged))}
        known |= {classes.find(d) for d in digits(program, graph) | _blocks(program, graph)}
        known |= {classes.find(d) for d in first_pieces(program, graph, graph.sizes | program.sizes)}
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


def shifted(axis: str, i: Index, sizes: Mapping[str, int]) -> str | None:
    """The axis of the same size whose positions an index counts along this one, from elsewhere on."""
    ((a, step),) = i.terms if len(i.terms) == 1 else (("", 0),)
    return a if isinstance(a, str) and step == 1 and sizes.get(a) == sizes.get(axis) is not None else None


def same_axes(program: Program, graph: MuGraph) -> Callable[[str], str]:
    """A name for all axes that are one (`AxisClasses`)."""
    return AxisClasses.of(program, graph).find


def counted(program: Program, graph: MuGraph) -> list[tuple[str, Index]]:
    """Axes whose positions the μGraph alone counts by blocks and those within, and the indices that do: t and 8*b + i
    of X[8*b + i], with 8 positions i. What the number index(8*b + i) is of are the program's axes of as many blocks."""
    whole = graph.sizes

    def blocks(i: Index) -> tuple[str, int] | None:
        """The axis of blocks, and the positions of each. Axes of chunks have no size yet."""
        axes = [(a, c) for a, c in i.terms if isinstance(a, str) and a in whole]
        lengths = {whole[a] for a, c in axes if c == 1}
        return next(((a, c) for a, c in axes if c in lengths), None)

    read = [(d, i) for d, i in _own(program, graph) if blocks(i)]
    placed = {e.place for e in graph.eqns} - {e.place for e in program.eqns}
    known = {_form(e.place) for e in program.eqns if e.place}
    numbers = {i: found for i in placed if i and _form(i) not in known and (found := blocks(i))}
    return read + [
        (d, i)
        for i, (block, length) in sorted(numbers.items(), key=str)
        for d, n in program.dims
        if -(-n // length) == whole[block]
    ]


def digits(program: Program, graph: MuGraph) -> set[str]:
    """Axes of positions within such blocks, also those of B[b, i] in B[t // 8, t % 8]."""
    read, whole = _own(program, graph), graph.sizes
    last = {a for _, i in counted(program, graph) for a, c in i.terms if isinstance(a, str) and c == 1}
    last |= {d for d, i in read for a, _ in i.terms if isinstance(a, Remainder) and a.by == whole[d]}
    return last - program.sizes.keys()


def _blocks(program: Program, graph: MuGraph) -> set[str]:
    """Axes of the blocks themselves."""
    read = _own(program, graph)
    first = {a for _, i in (*read, *counted(program, graph)) for a, c in i.terms if isinstance(a, str) and c > 1}
    return first | {d for d, i in read for a, _ in i.terms if isinstance(a, Quotient)}


def _own(program: Program, graph: MuGraph) -> list[tuple[str, Index]]:
    """Axes of tensors and indices, no plain axes, by which the μGraph reads or writes them and the program does not,
    by whatever names of axes and from wherever on."""
    read = [(d, i) for d, i in graph.accesses() if i.axis is None and d in graph.sizes]
    known = {_form(i) for _, i in program.accesses()} if read else set[str]()
    return [(d, i) for d, i in read if _form(i) not in known]


@lru_cache(maxsize=1 << 12)
def _form(i: Index) -> str:
    """The index without names and without its offset."""
    return AXIS.sub("", str(replace(i, offset=0)))
