"""Rings: indices that go round an axis, as `(y + 4095) % 4096` does along an axis of 4096 positions.

At a reduced size, 7 say, such an index is `(y + 6) % 7`: it goes round the axis that there is, one position back. Steps
of a ring, which are at most half its length, stay apart from each other where the reduced axis is longer than twice the
longest of them: a μGraph that takes another step is another function at the reduced size too.

So it is where an index goes round by blocks: `(7*u + i + 3) % 56`, of 8 blocks u, is `(7*u + i + 3) % 21` of three. The
axis that is read by it has 21 positions then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mirage_cli.ir.access import Atom, Index, Quotient, Remainder, atom_index, combined, index, remainder
from mirage_cli.ir.footprint import ENTRIES, READ, large_enough
from mirage_cli.ir.merge import parts_at
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Eqn, Program
from mirage_cli.verify.lasts import with_lasts

Indexed = TypeVar("Indexed", Program, MuGraph)


@dataclass(frozen=True, slots=True)
class Ring:
    """A remainder that goes round `unit` positions for each of an axis, `step` positions away."""

    axis: str
    unit: int
    step: Index

    @property
    def positions(self) -> Index:
        """The last position of each block."""
        return index({self.axis: self.unit}, self.unit - 1)

    def shortest(self, sizes: Mapping[str, int]) -> int:
        """Positions of the axis with which steps of the ring stay apart, at least."""
        return max(1, -(-(2 * max(map(abs, self.step.bounds(sizes))) + 1) // self.unit))


def ring_of(a: Remainder, sizes: Mapping[str, int]) -> Ring | None:
    """The ring that it is, where no position of that is more than half the ring away."""
    for axis, c in a.of.terms:
        if isinstance(axis, str) and c * sizes.get(axis, 0) == a.by:
            near = a.of.offset if 2 * a.of.offset <= a.by else a.of.offset - a.by
            ring = Ring(axis, c, index({b: n for b, n in a.of.terms if b != axis}, near))
            return ring if ring.shortest(sizes) < sizes[axis] else None
    return None


def ring(i: Index, sizes: Mapping[str, int]) -> Ring | None:
    """The same of an index that is nothing else."""
    a = i.terms[0][0] if i.terms else None
    return ring_of(a, sizes) if isinstance(a, Remainder) and i == atom_index(a) else None


def without_rings(
    read: Iterable[tuple[str, Index]], eqns: Iterable[Eqn], sizes: Mapping[str, int], same: Callable[[str], str]
) -> tuple[dict[str, int], list[tuple[str, Index]]]:
    """How long axes that indices go round by are at least; and of axes of tensors and the indices that they are read
    by, those that do not go round just that axis. same: a name for all axes that are to have one size."""
    least: dict[str, int] = {}
    others: list[tuple[str, Index]] = []
    positions = (e.place for e in eqns if e.place)
    for d, i in (*read, *((None, i) for i in positions)):
        found = ring(i, sizes)
        if found is not None:
            least[same(found.axis)] = max(least.get(same(found.axis), 0), found.shortest(sizes))
        if d is not None and (found is None or same(found.axis) != same(d)):
            others.append((d, i))
    return least, others


def large_enough_around(
    sizes: Mapping[str, int],
    read: Sequence[tuple[str, Index]],
    full: Mapping[str, int],
    same: Callable[[str], str],
    entries: int = ENTRIES,
    distinct: Sequence[tuple[Sequence[str], str]] = (),
    met: Sequence[tuple[str, int, Index]] = (),
) -> dict[str, int]:
    """The sizes, made large enough to read of every axis what is read, with the rings that there are at these sizes. A
    ring that is shorter then than an axis that is read by it is whole: the axis may have rings of its own."""
    found, before = dict(sizes), dict[str, int]()
    rings = {(d, i): r for d, i in read if d in sizes and (r := ring(i, full)) is not None}
    while found != before:
        before = found
        short = {x: r for x, r in rings.items() if r.shortest(full) <= found[r.axis] < full[r.axis]}
        reads = [(d, short[d, i].positions if (d, i) in short else i) for d, i in read]
        further = [(r.step, min(r.step.bounds(full)[1], r.unit + READ - 1)) for r in short.values()]
        found = large_enough(found, reads, full, same, entries, distinct, met, further)
        if found == before:
            whole = {same(r.axis) for (d, _), r in short.items() if found[d] != r.unit * found[r.axis]}
            found = {d: full[d] if same(d) in whole else n for d, n in found.items()}
    return found


def around(i: Index, old: Mapping[str, int], new: Mapping[str, int]) -> Index:
    """The index, with rings of the old sizes as rings of the new ones. An axis that is too short for its ring has the
    index as it is."""

    def put(a: Atom) -> Index | None:
        if not isinstance(a, Remainder) or (found := ring_of(a, old)) is None:
            return None
        axis, unit, step = found.axis, found.unit, found.step
        if not found.shortest(old) <= new[axis] < old[axis]:
            return None
        return remainder(combined(0, ((atom_index(axis), unit), (step.with_atoms(put), 1))), unit * new[axis])

    return i.with_atoms(put)


def mistaken(indices: Iterable[Index], old: Mapping[str, int], new: Mapping[str, int]) -> set[str]:
    """The axes of rings of the old sizes that other indices are at the new ones: (y + 3) % 12 is (y + 3) % 11 along 11
    positions of 12."""
    known = {i for i in indices if {*i.dims} <= new.keys()}
    moved = {i: at for i in known if (at := around(i, old, new)) != i}
    return {d for i, at in moved.items() if at in known for d in i.dims if new[d] < old[d]}


def whole_rounds(indices: Iterable[Index], old: Mapping[str, int], new: Mapping[str, int]) -> set[str]:
    """The axes that go round whole times at the new sizes, and do not at the old ones: a sum of X[(x + j) % 4] over
    four j is that of X[(x + j + 1) % 4], and over five it is not."""
    return {
        d
        for i in indices
        if {*i.dims} <= new.keys() and around(i, old, new) == i
        for a in _remainders(i)
        for d, c in a.of.terms
        if isinstance(d, str) and old[d] * c % a.by and not new[d] * c % a.by
    }


def _remainders(i: Index) -> Iterator[Remainder]:
    for a, _ in i.terms:
        if isinstance(a, Remainder):
            yield a
        if isinstance(a, Remainder | Quotient):
            yield from _remainders(a.of)


def reduced_to(x: Indexed, sizes: Mapping[str, int]) -> Indexed:
    """A program or a μGraph at reduced sizes, with its rings, what it reads between merged axes and their parts, and
    last positions."""
    old, small = x.sizes, x.resized(sizes)
    in_parts = parts_at(x.merged, old, small.sizes)
    return with_lasts(small.with_indices(lambda i: in_parts.get(i) or around(i, old, small.sizes)), old)
