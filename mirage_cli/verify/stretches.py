"""Stretches of an axis that a μGraph has axes of its own for, and positions that comparisons choose by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from mirage_cli.ir.access import Index
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program


def first_pieces(program: Program, graph: MuGraph, whole: Mapping[str, int]) -> set[str]:
    """Axes that stay whole: by which the μGraph alone reads a tensor's axis up to where another axis, or a single
    position, goes on. Positions are of no tensor: who counts them, or reads up to them, stops where anything begins
    that the μGraph alone has, or a mask of the program's chooses another value."""
    own = {*program.accesses()}
    counted = [(None, i) for i in counted_alone(program, graph)]
    stretches = [*((d, i) for d, i in graph.accesses() if is_stretch(i)), *counted]
    starts = {(d, i.offset) for d, i in stretches if (d, i) not in own and i.offset}
    masked = {n + more for _, n in compared(program.eqns) for more in (0, 1)}
    known = {*program.sizes, *(name for name, _ in graph.merged)}

    def stops(d: str | None, a: str, end: int) -> bool:
        numbers = {n for at, n in starts if None in (d, at)} | masked
        return (d, end) in starts or (a not in known and end in numbers)

    return {x for pair in _within_sums(program, graph) for x in pair} | {
        a
        for d, i in stretches
        for a in i.dims
        if a in whole and stops(d, a, i.offset + whole[a])  # chunks have no size
    }


def _within_sums(program: Program, graph: MuGraph) -> Iterator[tuple[str, str]]:
    """Axes by which the μGraph alone reads a tensor, and the longer axes of the program in whose place an index has
    them: a and u of X[a + x + 1], where the program reads X[u + x - 1]."""
    own = [x for x in dict.fromkeys(program.accesses()) if x[1].affine and not is_stretch(x[1])]
    others = [x for x in dict.fromkeys(graph.accesses()) if x[1].affine and not is_stretch(x[1]) and x not in own]
    for (d, i), (e, j) in itertools.product(others, own):
        for (a, c), (b, k) in itertools.product(i.terms, j.terms) if d == e else ():
            alike = c == k and {*i.terms} - {(a, c)} == {*j.terms} - {(b, k)} and (i.offset - j.offset) % c == 0
            if alike and graph.sizes.get(str(a), math.inf) < program.sizes[str(b)]:  # chunks have no size yet
                yield str(a), str(b)


def counted_alone(program: Program, graph: MuGraph) -> list[Index]:
    """Stretches of positions, and single ones, that the μGraph counts and the program does not."""
    places = dict.fromkeys(e.place for e in graph.eqns if e.place)
    own = {e.place for e in program.eqns}
    return [i for i in places if i not in own and is_stretch(i)]


def is_stretch(i: Index) -> bool:
    """Whether it is one position after the other, or a single one."""
    return i.affine and [c for _, c in i.terms] in ([], [1])


def compared(eqns: Iterable[Eqn]) -> Iterator[tuple[str, int]]:
    """Axes whose positions are compared with numbers, and these."""
    return ((i.axis, n) for i, n in compared_with_numbers(eqns) if i.axis is not None)


def compared_by_index(eqns: Iterable[Eqn]) -> Iterator[int]:
    """Numbers that indices are compared with which are no plain axes."""
    return (n for i, n in compared_with_numbers(eqns) if i.axis is None)


def compared_with_numbers(eqns: Iterable[Eqn]) -> Iterator[tuple[Index, int]]:
    along: dict[str, Index] = {}
    for e in eqns:
        if e.place:
            along[e.out] = e.place
        elif OPS[e.op].order is not None:
            places = [along[v] for v in e.values if v in along]
            yield from ((places[0], int(a)) for a in e.args if places and isinstance(a, Fraction))
