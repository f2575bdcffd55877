"""Which elements accesses meet: how many are read, whether two are apart, whether one names an element twice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from mirage_cli.ir.access import (
    NOT_DISTINCT,
    Access,
    Atom,
    Distinct,
    Index,
    Lookup,
    Quotient,
    Remainder,
    atom_index,
    combined,
    dims_of,
    dims_of_atom,
    index,
    lookups_of,
    of_nothing,
    of_positions,
)

READ = 2
"""Positions of an axis that an index reads at reduced sizes, at least."""
ENTRIES = 16
"""Positions of an axis that a table names at reduced sizes, at least: two entries of it are the same by luck."""
MOST_COUNTED = 1 << 20
"""Positions that are counted one by one, at most."""
MAX_GUESSES = 10_000
"""Numbers of steps that are tried to tell whether two indices meet."""


def elements_read(
    dims: Sequence[str],
    accesses: Iterable[tuple[Access, float]],
    sizes: Mapping[str, int],
    distinct: Collection[str] = (),
) -> float:
    """Elements of a tensor with these dims that some of these accesses read, at least: of accesses that lie apart along
    an axis, the sum. Each comes with the part of it that is read. distinct: tables that name no position twice."""
    read = [(_elements(dims, x, sizes, distinct) * part, x) for x, part in set(accesses)]
    counted: list[tuple[float, Access]] = []
    for n, x in sorted(read, key=lambda read: (-read[0], str(read[1]))):
        if all(apart(x, y, sizes) for _, y in counted):
            counted.append((n, x))
    return sum(n for n, _ in counted)


def _elements(dims: Sequence[str], access: Access, sizes: Mapping[str, int], distinct: Collection[str]) -> int:
    if not all(i.affine for i in access):
        return _elements_by_atoms(dims, access, sizes, distinct)
    along = [_positions(i, sizes[d], sizes) for d, i in zip(dims, access, strict=True)]
    if sum(len(i.terms) for i in access) == len(dims_of(access)):
        return prod(along)
    beyond = any(any(i.leaves(sizes[d], sizes)) for d, i in zip(dims, access, strict=True))
    return 0 if beyond else max(along)


def _elements_by_atoms(dims: Sequence[str], access: Access, sizes: Mapping[str, int], distinct: Collection[str]) -> int:
    """The different positions along the axes of the tensor, those of axes that occur together counted one by one. Of a
    table that may name a position twice nothing is known."""
    if any(any(of_positions(i).leaves(sizes[d], sizes)) for d, i in zip(dims, access, strict=True)):
        return 0
    total, left = 1, [i for i in _known_apart(access, distinct) if i.dims]
    while left:
        some = [left.pop()]
        while near := [i for i in left if set(i.dims) & set(dims_of(some))]:
            some += near
            left = [i for i in left if i not in near]
        axes = dims_of(some)
        if len(some) == 1 and some[0].axis is not None:
            total *= sizes[axes[0]]
        elif prod(sizes[d] for d in axes) <= MOST_COUNTED:
            at = [i.positions(axes, {d: (0, sizes[d]) for d in axes}) for i in some]
            total *= len(np.unique(np.stack([x.ravel() for x in np.broadcast_arrays(*at)]), axis=1).T)
    return total


def _known_apart(access: Iterable[Index], distinct: Collection[str]) -> Iterator[Index]:
    """Indices of which different positions are different elements."""
    for i in access:
        atom = i.terms[0][0] if len(i.terms) == 1 else None
        if isinstance(atom, Lookup) and atom.table in distinct:
            yield from _known_apart(atom.access, distinct)
        elif not i.lookups:
            yield i


def read_once(access: Access, sizes: Mapping[str, int]) -> float:
    """The part of an access's positions at which it reads an element that no earlier position does: windows overlap.

    Counted are affine indices of several axes, which no other index has.
    """
    return prod(_reached(i, sizes) / prod(sizes[d] for d in i.dims) for i in _windows(access))


@lru_cache(maxsize=4096)
def _windows(access: Access) -> tuple[Index, ...]:
    windows = (i for i in access if i.affine and len(i.dims) > 1)
    others = {i: dims_of(j for j in access if j != i) for i in windows if access.count(i) == 1}
    return tuple(i for i, near in others.items() if not {*i.dims} & {*near})


def box_around(accesses: Iterable[Access], sizes: Mapping[str, int]) -> int:
    """Elements of a box that holds what some accesses read of a tensor. What lies before the tensor does not count."""
    total = 1
    for along in zip(*accesses, strict=True):
        lows, highs = zip(*(i.bounds(sizes) for i in along), strict=True)
        total *= max(highs) - max(0, min(lows)) + 1
    return total


def _positions(i: Index, size: int, sizes: Mapping[str, int]) -> int:
    """Positions of an axis of this size that an index reads, at least."""
    return max(0, _reached(i, sizes) - sum(i.leaves(size, sizes)))


def _reached(i: Index, sizes: Mapping[str, int]) -> int:
    """Different numbers that an affine index is; at least, where they lie far apart."""
    steps = tuple((abs(c), sizes[d]) for d, c in reversed(i.terms) if isinstance(d, str))
    assert len(steps) == len(i.terms), "an affine index"
    return _sums(steps)


@lru_cache(maxsize=4096)
def _sums(steps: tuple[tuple[int, int], ...]) -> int:
    """Different sums of a multiple of each step, below as many times the step as are said, short steps first."""
    reach = count = 1
    for step, times in steps:
        further = step * (times - 1)
        if step >= reach:  # as many again for each
            count *= times
        elif count == reach:  # no gaps, which are filled further
            count = reach + further
        elif reach + further <= MOST_COUNTED:
            return _marked(steps).bit_count()
        else:
            count = max(count, times)
        reach += further
    return count


def _marked(steps: Iterable[tuple[int, int]]) -> int:
    """A bit for each of these sums."""
    marks = 1
    for step, times in steps:
        done = 1
        while done < times:
            more = min(done, times - done)
            marks |= marks << step * more
            done += more
    return marks


def apart(x: Access, y: Access, sizes: Mapping[str, int], distinct: Distinct = NOT_DISTINCT) -> bool:
    """Whether no element of a tensor lies in both accesses, as far as can be told: they never meet along some axis."""
    distinct = _naming((x, y), sizes, distinct)
    return not all(_meet(i, j, sizes, distinct) for i, j in zip(x, y, strict=True))


def _meet(i: Index, j: Index, sizes: Mapping[str, int], distinct: Distinct) -> bool:
    """Whether two indices may have one position in common, each with axes of its own."""
    (low, first), (last, high) = i.bounds(sizes), j.bounds(sizes)
    if i.affine and j.affine:
        steps: dict[int, int] = {}
        for d, c in (*i.terms, *j.terms):
            assert isinstance(d, str), "an affine index"
            steps[abs(c)] = steps.get(abs(c), 0) + sizes[d] - 1
        return _reaches(high - low, sorted(steps.items()), [MAX_GUESSES])
    if low > high or last > first:
        return False
    if i.offset == j.offset and len(i.terms) == len(j.terms) == 1:
        (a, c), (b, e) = i.terms[0], j.terms[0]
        if c == e and isinstance(a, Lookup) and isinstance(b, Lookup) and a.table == b.table:
            told = all(_names_once(x, sizes, distinct) for x in (a, b))
            return not told or not apart(a.access, b.access, sizes, distinct)
    return True


def _naming(accesses: Sequence[Access], sizes: Mapping[str, int], distinct: Distinct) -> Distinct:
    """Of the tables that hold no integer twice, but maybe -1, those of which an element that lies in all of these
    accesses has one entry: where they hold -1, one of the accesses is outside of its tensor."""
    once = dict(distinct)
    among = [[a for a in lookups_of(x) if a.padded] for x in accesses]
    for table in {a.table for own in among for a in own}:
        some = [(x, [a for a in own if a.table == table]) for x, own in zip(accesses, among, strict=True)]
        if not any(own and all(_outside(a, x, sizes) for a in own) for x, own in some):
            once.pop(table, None)
    return once


def _outside(a: Lookup, access: Access, sizes: Mapping[str, int]) -> bool:
    """Whether an access is outside of its tensor where a table holds -1."""
    return any(of_nothing(i, a).bounds(sizes)[1] < 0 for i in access)


def _names_once(a: Lookup, sizes: Mapping[str, int], distinct: Distinct) -> bool:
    """Whether equal integers are one entry of the table: it holds no integer twice, and is read inside of itself."""
    dims = distinct.get(a.table)
    return dims is not None and not any(any(i.leaves(sizes[d], sizes)) for d, i in zip(dims, a.access, strict=True))


def _reaches(target: int, steps: Sequence[tuple[int, int]], guesses: list[int]) -> bool:
    """Whether the target is a sum of these steps, each taken up to so many times; true where that is not known.

    steps: the shortest first. guesses: how many numbers of steps may still be tried.
    """
    if not steps:
        return target == 0
    *shorter, (step, most) = steps
    rest = sum(c * n for c, n in shorter)
    for n in range(max(0, -((rest - target) // step)), min(most, target // step) + 1):
        guesses[0] -= 1
        if guesses[0] < 0 or _reaches(target - n * step, shorter, guesses):
            return True
    return False


def is_injective(access: Access, sizes: Mapping[str, int], distinct: Distinct = NOT_DISTINCT) -> bool:
    """Whether an access gives each of its elements once, as far as can be told: its positions tell all axes."""
    return not untold(access, sizes, distinct)


def untold(access: Access, sizes: Mapping[str, int], distinct: Distinct = NOT_DISTINCT) -> tuple[str, ...]:
    """The axes that the positions of an access do not tell, as far as is known.

    An index tells its atoms where the steps of each are longer than what shorter ones reach. An entry of a table that
    holds no integer twice tells where it stands. A remainder by n tells its index where that is less than n from end to
    end, or beside the quotient by n.
    """
    known: dict[Index, None] = dict.fromkeys(access)
    distinct = _naming((access,), sizes, distinct)
    told: set[Atom] = {d for d in dims_of(access) if sizes[d] == 1}
    before = -1
    while before < len(known) + len(told):
        before = len(known) + len(told)
        told |= {a for i in known if _tells(i, told, sizes) for a, _ in i.terms}
        known |= dict.fromkeys(i for a in told for i in _behind(a, told, sizes, distinct))
    return tuple(d for d in dims_of(access) if d not in told)


def _tells(i: Index, told: Collection[Atom], sizes: Mapping[str, int]) -> bool:
    """Whether the position tells those atoms of an index that are not known."""
    reach = 0
    for a, c in reversed(i.terms):
        low, high = atom_index(a).bounds(sizes)
        if low == high or _is_told(a, told):
            continue
        if abs(c) <= reach:
            return False
        reach += abs(c) * (high - low)
    return True


def told_by_steps(i: Index, j: Index, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes whose positions are equal wherever two indices are: 128*h + d and 128*h + 2*r tell h, since neither d
    nor 2*r reaches 128."""
    if not (i.affine and j.affine):
        return ()
    both = [x for x in i.terms if x in j.terms]
    (low, high), (least, most) = (
        combined(y.offset, ((atom_index(a), c) for a, c in y.terms if (a, c) not in both)).bounds(sizes) for y in (i, j)
    )
    reach, told = max(high - least, most - low), list[str]()
    for d, c in sorted(both, key=lambda x: abs(x[1])):
        assert isinstance(d, str), "an affine index"
        if abs(c) > reach:
            told.append(d)
        reach += abs(c) * (sizes[d] - 1)
    return tuple(told)


def _is_told(a: Atom, told: Collection[Atom]) -> bool:
    """Whether an atom is known, by itself or by its axes."""
    return a in told or {*dims_of_atom(a)} <= {*told}


def _behind(a: Atom, told: Collection[Atom], sizes: Mapping[str, int], distinct: Distinct) -> Iterator[Index]:
    """The indices whose positions an atom tells that is known."""
    match a:
        case str():
            return
        case Lookup():
            yield from a.access if _names_once(a, sizes, distinct) else ()
        case Quotient():
            yield from (a.of,) if Remainder(a.of, a.by) in told else ()
        case Remainder():
            rest = combined(0, ((atom_index(b), c) for b, c in a.of.terms if not _is_told(b, told)))
            low, high = rest.bounds(sizes)
            yield from (a.of,) if Quotient(a.of, a.by) in told or high - low < a.by else ()


def large_enough(
    sizes: Mapping[str, int],
    read: Iterable[tuple[str, Index]],
    full: Mapping[str, int],
    same: Callable[[str], str],
    entries: int = ENTRIES,
    distinct: Iterable[tuple[Sequence[str], str]] = (),
    met: Iterable[tuple[str, int, Index]] = (),
    reached: Iterable[tuple[Index, int]] = (),
) -> dict[str, int]:
    """The sizes, made large enough to read of every axis what is read at full sizes: the first positions and the last,
    what is before them and what is behind. No size is made larger than the full one.

    read: axes of tensors and the indices they are read by. same: a name for all axes that are to have one size.
    entries: positions of an axis that a table names. distinct: the axes of tables that hold no integer twice, and the
    axis that those are positions of. met: axes, numbers and indices: where one of axis and index comes to the number,
    the other is to. reached: indices, and numbers that they are to come to.
    """
    sizes = dict(sizes)
    known = [(d, i) for d, i in read if d in sizes and i.axis != d]
    tables = [(dims, below) for dims, below in distinct if {*dims, below} <= {*sizes}]
    growing = _Growing(sizes, full, same, entries)
    met, reached = [*met], [*reached]

    def grows() -> Iterator[bool]:
        yield from (growing.to_read(d, i) for d, i in known)
        yield from (growing.to_hold(x, dims) for dims, x in tables)
        yield from (growing.to_meet(i, n) for d, n, i in met if n < sizes[d])
        yield from (growing.axis(d, n + 1) for d, n, i in met if sizes[d] <= n <= i.bounds(sizes)[1])
        yield from (growing.to_meet(i, n) for i, n in reached)

    while True in {*grows()}:
        pass
    return sizes


@dataclass(frozen=True, slots=True)
class _Growing:
    """Sizes of axes as they grow. Every method says whether some axis has grown. The rest: as of `large_enough`."""

    sizes: dict[str, int]
    full: Mapping[str, int]
    same: Callable[[str], str]
    entries: int

    def axis(self, d: str, need: int) -> bool:
        """An axis, and all that are to have its size."""
        alike = [e for e in self.sizes if self.same(e) == self.same(d)]
        larger = {e: n for e in alike if self.sizes[e] < (n := min(need, self.full[e]))}
        self.sizes.update(larger)
        return bool(larger)

    def index(self, i: Index, by: int) -> bool:
        """An axis by which the index comes further by so much."""
        return any(c > 0 and self.atom(a, -(-by // c)) for a, c in i.terms)

    def atom(self, a: Atom, by: int) -> bool:
        match a:
            case str():
                return self.axis(a, self.sizes[a] + by)
            case Lookup():
                return isinstance(a.below, str) and self.axis(a.below, self.sizes[a.below] + by)
            case Remainder():
                return self.index(a.of, by)
            case Quotient():
                high = a.of.bounds(self.sizes)[1]
                return self.index(a.of, (high // a.by + by) * a.by - high)

    def to_read(self, d: str, i: Index) -> bool:
        """For what an index reads along the axis d of a tensor."""
        if True in [short > 0 and self.index(x, short) for x, short in _shortages(i, self.sizes, self.entries)]:
            return True
        low, high = i.bounds(self.sizes)
        short = min(READ, i.bounds(self.full)[1] + 1) - (high + 1)
        if short > 0 and self.index(i, short):
            return True
        return self.axis(d, max(high + 1 - i.leaves(self.full[d], self.full)[1], low + READ))

    def to_meet(self, i: Index, n: int) -> bool:
        """For an index to come to a number, from above or from below, that it comes to at full sizes."""
        (low, high), (least, most) = i.bounds(self.sizes), i.bounds(self.full)
        if high < n <= most:
            return self.index(i, n - high)
        return least <= n < low and self.index(index({a: -c for a, c in i.terms}), low - n)

    def to_hold(self, d: str, dims: Sequence[str]) -> bool:
        """For as many positions as a table with these axes has entries, of which no two are equal."""
        return self.axis(d, prod(self.sizes[x] for x in dims))


def _shortages(i: Index, sizes: Mapping[str, int], entries: int) -> Iterator[tuple[Index, int]]:
    """By how much indices in an index are to come further: to the next multiple of what divides them, and to the
    entries that tables have."""
    for a, _ in i.terms:
        if isinstance(a, Lookup):
            yield atom_index(a), entries - 1 - a.bounds(sizes)[1]
        elif not isinstance(a, str):
            low, high = a.of.bounds(sizes)
            yield a.of, (low // a.by + 1) * a.by + READ - 1 - high
            yield from _shortages(a.of, sizes, entries)
