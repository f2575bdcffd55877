"""Rings: indices that go round an axis, as `(y + 4095) % 4096` does along an axis of 4096 positions.

At a reduced size, 7 say, such an index is `(y + 6) % 7`: it goes round the axis that there is, one position back. Steps
of a ring, which are at most half its length, stay apart from each other where the reduced axis is longer than twice the
longest of them: a μGraph that takes another step is another function at the reduced size too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from mirage_cli.ir.access import Atom, Index, Remainder, atom_index, combined, index, remainder
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Eqn, Program

Indexed = TypeVar("Indexed", Program, MuGraph)


def steps(a: Remainder, sizes: Mapping[str, int]) -> tuple[str, Index] | None:
    """The axis that it goes round, and by how much, where no position of that is more than half the axis away."""
    for axis, c in a.of.terms:
        if isinstance(axis, str) and c == 1 and sizes.get(axis) == a.by:
            near = a.of.offset if 2 * a.of.offset <= a.by else a.of.offset - a.by
            step = index({b: n for b, n in a.of.terms if b != axis}, near)
            return (axis, step) if least_ring(step, sizes) < a.by else None
    return None


def least_ring(step: Index, sizes: Mapping[str, int]) -> int:
    """Positions of an axis along which steps of a ring stay apart, at least."""
    return 2 * max(map(abs, step.bounds(sizes))) + 1


def ring(i: Index, sizes: Mapping[str, int]) -> tuple[str, Index] | None:
    """The same of an index that is nothing else."""
    a = i.terms[0][0] if i.terms else None
    return steps(a, sizes) if isinstance(a, Remainder) and i == atom_index(a) else None


def without_rings(
    read: Iterable[tuple[str, Index]], eqns: Iterable[Eqn], sizes: Mapping[str, int], same: Callable[[str], str]
) -> tuple[dict[str, int], list[tuple[str, Index]]]:
    """How long axes that indices go round are at least; and of axes of tensors and the indices that they are read by,
    those that do not go round just that axis. same: a name for all axes that are to have one size."""
    least: dict[str, int] = {}
    others: list[tuple[str, Index]] = []
    positions = (e.place for e in eqns if e.place)
    for d, i in (*read, *((None, i) for i in positions)):
        found = ring(i, sizes)
        if found is not None:
            axis, step = found
            least[same(axis)] = max(least.get(same(axis), 0), least_ring(step, sizes))
        if d is not None and (found is None or same(found[0]) != same(d)):
            others.append((d, i))
    return least, others


def around(i: Index, old: Mapping[str, int], new: Mapping[str, int]) -> Index:
    """The index, with rings of the old sizes as rings of the new ones. An axis that is too short for its ring has the
    index as it is."""

    def put(a: Atom) -> Index | None:
        if not isinstance(a, Remainder) or (found := steps(a, old)) is None:
            return None
        axis, step = found
        if not least_ring(step, old) <= new[axis] < a.by:
            return None
        return remainder(combined(0, ((atom_index(axis), 1), (step.with_atoms(put), 1))), new[axis])

    return i.with_atoms(put)


def reduced_to(x: Indexed, sizes: Mapping[str, int]) -> Indexed:
    """A program or a μGraph at reduced sizes, with its rings."""
    old, small = x.sizes, x.resized(sizes)
    return small.with_indices(lambda i: around(i, old, small.sizes))
