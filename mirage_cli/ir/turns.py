"""Accesses whose elements lie in turns: together they are a block without gaps.

    X[m, 2*i], X[m, 2*i + 1]   -->   X[m, i'], for i' over twice as many positions

Halves that turn (RoPE of GPT-J), real and imaginary parts, and fields of small records lie so. One by one, each load or
store would touch all of the sectors of memory, and use a part of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mirage_cli.ir.access import Access, Atom, dims_of_atom
from mirage_cli.ir.program import Tensor

LOADED = (8, 4, 2)
"""How many loads may lie in turns: blocks are powers of two, and are taken apart."""
STORED = (*range(16, 1, -1),)
"""How many stores may: of three and their likes, a block has more room, which nothing is stored of."""

Addresses = tuple[tuple[tuple[Atom, tuple[str, ...]], int], ...]
"""Numbers of elements, each of an atom and beside the axes by whose sizes it is multiplied."""


class Turns(NamedTuple):
    """dim: the axis along which the elements of each lie so many apart. members: in the order of their first."""

    dim: str
    members: tuple[int, ...]


def in_turns(
    some: Sequence[tuple[Tensor, Access]],
    sizes: Mapping[str, int],
    dynamic: Collection[str],
    counts: Sequence[int] = LOADED,
) -> list[Turns]:
    """Those of some accesses that lie in turns, each in one of the results. dynamic: axes whose sizes differ by call.
    counts: how many may, the most first.

    They have all steps in common, the step of an axis that occurs once is their number, and they begin one element
    behind another. Where more follow each other, those that begin at a multiple of the number are together.
    """
    alike = _by_start(some, sizes, dynamic).items()
    return [x for (_, steps, _), found in alike if len(found) > 1 for x in _groups(steps, found, counts)]


def side_by_side(some: Sequence[tuple[Tensor, Access]], sizes: Mapping[str, int], apart: Sequence[int]) -> list[int]:
    """How many of some accesses each is one of that have all steps in common, and begin within its own step of so many
    elements."""
    count = [1] * len(some)
    for found in _by_start(some, sizes, ()).values():
        windows = Counter(start // max(apart[n], 1) for start, n in found.items())
        for start, n in found.items():
            count[n] = windows[start // max(apart[n], 1)]
    return count


def _by_start(
    some: Sequence[tuple[Tensor, Access]], sizes: Mapping[str, int], dynamic: Collection[str]
) -> Mapping[tuple[str, Addresses, Addresses], dict[int, int]]:
    """Which access begins where, of those that have all steps in common."""
    alike: dict[tuple[str, Addresses, Addresses], dict[int, int]] = defaultdict(dict)
    for n, (t, access) in enumerate(some):
        own = frozenset(d for d in t.dims if d in dynamic)
        steps, starts, start = _addresses(t, access, tuple((d, sizes[d]) for d in t.dims), own)
        alike[t.name, steps, starts].setdefault(start, n)
    return alike


def _groups(steps: Addresses, found: Mapping[int, int], counts: Sequence[int]) -> Iterator[Turns]:
    """found: by where they start, which access it is."""
    left = dict(found)
    for count in counts:
        dim = _alone(steps, count)
        if dim is None:
            continue
        for first in sorted(left, key=lambda start: (start % count > 0, start)):
            members = range(first, first + count)
            if all(n in left for n in members):
                yield Turns(dim, tuple(left.pop(n) for n in members))


def _alone(steps: Addresses, step: int) -> str | None:
    """The axis with this step, if it occurs nowhere else."""
    found = [a for (a, behind), n in steps if n == step and not behind and isinstance(a, str)]
    if len(found) != 1:
        return None
    (d,) = found
    return d if sum(d in dims_of_atom(a) for (a, _), _ in steps) == 1 else None


@lru_cache(maxsize=1024)
def _addresses(
    t: Tensor, access: Access, sizes: tuple[tuple[str, int], ...], dynamic: frozenset[str]
) -> tuple[Addresses, Addresses, int]:
    """Elements between neighbours along each atom; in front of the first, where dynamic sizes multiply them (under no
    atom), and where none does. The cost model asks for each batch of schedules."""
    steps: dict[tuple[Atom, tuple[str, ...]], int] = {}
    starts: dict[tuple[Atom, tuple[str, ...]], int] = {}
    for i, (step, behind) in zip(access, t.sized_steps(dict(sizes), dynamic), strict=True):
        for a, c in i.terms:
            steps[a, behind] = steps.get((a, behind), 0) + c * step
        if i.offset:
            starts["", behind] = starts.get(("", behind), 0) + i.offset * step
    start = starts.pop(("", ()), 0)
    return tuple(sorted(steps.items(), key=str)), tuple(sorted(starts.items(), key=str)), start
