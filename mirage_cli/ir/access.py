"""Accesses: where in a stored tensor a value lies. For each axis of the tensor an index, a sum of atoms times numbers.

    X[m, h*64 + d]            the axis k of X as two
    QKV[m, n + 4096]          a slice
    X[b, y*2 + i - 1]         a window with a stride
    X[n]                      the axis m of X by another name
    X[m, (d + 64)%128]        a rotation
    E[T{v}[m], k]             a row that a table names
    K[P{pages}[b, s//16], s%16, d]   pages

An atom is an axis, a quotient or a remainder of an index by a number, or an integer that a table holds (`T{v}`: from 0
to v - 1; `T{-1, v}`: from -1 on, where -1 names nothing), itself accessed. An index has one normal form, which prints
as it is read. `strides` gives the elements between neighbours along each atom, and where the first lies. What lies
outside of the tensor reads as 0. What is written by an access lies inside, but for what -1 in a table names, which is
not written; and no element twice: rows that a table names, if it names none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar  # numbers, arrays or blocks, in whose arithmetic an index is computed

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.hashed import hashed_once

T = TypeVar("T")
Dims = tuple[str, ...]
"""Axes of a tensor or a value, in order."""
Distinct = Mapping[str, tuple[str, ...]]
"""Tables that hold no integer twice, with their axes."""
NOT_DISTINCT: Distinct = MappingProxyType({})
FARTHEST = 1 << 30
"""How far from the start of an axis an index may come: kernels count positions in 32 bits, past the last tile too."""


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class Index:
    """offset + Σ coefficient · atom, the position along one axis of a tensor.

    terms: (atom, coefficient), none of them 0, each atom once, the largest coefficient first. `index` sorts them.
    axis: the axis that the index is, if it is just that. dims: the axes that occur, once each. affine: whether all
    atoms are axes. lookups: what is looked up, what the others need first.
    """

    terms: tuple[tuple[Atom, int], ...]
    offset: int = 0
    axis: str | None = field(init=False, repr=False, compare=False)
    dims: tuple[str, ...] = field(init=False, repr=False, compare=False)
    affine: bool = field(init=False, repr=False, compare=False)
    lookups: tuple[Lookup, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        atoms = [a for a, _ in self.terms]
        alone = len(atoms) == 1 and self.terms[0][1] == 1 and not self.offset
        object.__setattr__(self, "axis", atoms[0] if alone and isinstance(atoms[0], str) else None)
        object.__setattr__(self, "dims", tuple(dict.fromkeys(d for a in atoms for d in dims_of_atom(a))))
        object.__setattr__(self, "affine", all(isinstance(a, str) for a in atoms))
        object.__setattr__(self, "lookups", tuple(dict.fromkeys(x for a in atoms for x in _lookups(a))))

    def __lt__(self, other: Index) -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[list[tuple[str, int]], int]:
        return [(str(a), c) for a, c in self.terms], self.offset

    def with_atoms(self, put: Callable[[Atom], Index | None]) -> Index:
        """The index with other indices in the place of atoms. put: what takes the place of an atom; None where the atom
        stays, with others in the place of those that it is made of."""
        return combined(self.offset, ((put(a) or _with_atoms(a, put), c) for a, c in self.terms))

    def within(self, names: Mapping[str, Index]) -> Index:
        """The index with other indices in the place of axes."""
        return self.with_atoms(lambda a: names.get(a) if isinstance(a, str) else None)

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The least and the largest position, or what is beyond."""
        low = high = self.offset
        for a, c in self.terms:
            first, last = (0, sizes[a] - 1) if isinstance(a, str) else a.bounds(sizes)
            low, high = (low + c * first, high + c * last) if c > 0 else (low + c * last, high + c * first)
        return low, high

    def leaves(self, size: int, sizes: Mapping[str, int]) -> tuple[int, int]:
        """By how much it may go beyond an axis of this size: before the start, and behind the end."""
        low, high = self.bounds(sizes)
        return max(0, -low), max(0, high - size + 1)

    def value(self, axis: Callable[[str], T], looked_up: Callable[[Lookup, list[T]], T]) -> T:
        """The position in any arithmetic, from what stands for an axis, and for a table's integer at positions."""
        total: Any = self.offset  # Any: of whatever type adds, multiplies and divides
        for a, c in self.terms:
            x: Any = axis(a) if isinstance(a, str) else a.value(axis, looked_up)
            total = total + (x if c == 1 else c * x)
        return total

    def positions(
        self, dims: Sequence[str], ranges: Mapping[str, tuple[int, int]], tables: Tables = MappingProxyType({})
    ) -> NDArray[np.int64]:
        """The positions for these ranges of axes, an array that broadcasts against others along `dims`."""

        def along(d: str) -> NDArray[np.int64]:
            return np.arange(*ranges[d]).reshape([-1 if d == e else 1 for e in dims])

        def looked_up(x: Lookup, at: list[NDArray[np.int64]]) -> NDArray[np.int64]:
            before, data = tables[x.table]
            own = [along(d) if n > 1 else zero for d, n in zip(before, data.shape, strict=False)]
            return read_at(data, [*own, *(zero + p for p in at)])

        zero = np.zeros([1] * len(dims), dtype=np.int64)
        return zero + self.value(along, looked_up)

    def __str__(self) -> str:
        parts = [_term_text(a, c) for a, c in self.terms]
        parts += [str(self.offset)] if self.offset or not parts else []
        return " + ".join(parts).replace("+ -", "- ")


@dataclass(frozen=True, slots=True)
class Quotient:
    """An index over a positive number, rounded down."""

    of: Index
    by: int

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        low, high = self.of.bounds(sizes)
        return low // self.by, high // self.by

    def value(self, axis: Callable[[str], T], looked_up: Callable[[Lookup, list[T]], T]) -> T:
        inner: Any = self.of.value(axis, looked_up)
        return inner // self.by

    def __str__(self) -> str:
        return f"{_operand(self.of)}//{self.by}"


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is left of an index by a positive number, from 0 on."""

    of: Index
    by: int

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        low, high = self.of.bounds(sizes)
        return (low % self.by, high % self.by) if low // self.by == high // self.by else (0, self.by - 1)

    def value(self, axis: Callable[[str], T], looked_up: Callable[[Lookup, list[T]], T]) -> T:
        inner: Any = self.of.value(axis, looked_up)
        return inner % self.by

    def __str__(self) -> str:
        return f"{_operand(self.of)}%{self.by}"


@dataclass(frozen=True, slots=True)
class Lookup:
    """The integer that a table holds at an access. below: what it is less than, a number or the size of an axis.
    padded: whether it may be -1, for no position at all."""

    table: str
    access: tuple[Index, ...]
    below: str | int
    padded: bool = False

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        return -self.padded, (sizes[self.below] if isinstance(self.below, str) else self.below) - 1

    def value(self, axis: Callable[[str], T], looked_up: Callable[[Lookup, list[T]], T]) -> T:
        return looked_up(self, [i.value(axis, looked_up) for i in self.access])

    def __str__(self) -> str:
        return f"{self.table}{{{'-1, ' * self.padded}{self.below}}}[{access_text(self.access)}]"


Atom: TypeAlias = str | Quotient | Remainder | Lookup
Tables: TypeAlias = Mapping[str, tuple[tuple[str, ...], NDArray[Any]]]
"""The integers of tables, each with the names of axes that it has in front of its own."""


def dims_of_atom(a: Atom) -> tuple[str, ...]:
    match a:
        case str():
            return (a,)
        case Lookup():
            return dims_of(a.access)
        case _:
            return a.of.dims


def _lookups(a: Atom) -> tuple[Lookup, ...]:
    match a:
        case str():
            return ()
        case Lookup():
            return (*lookups_of(a.access), a)
        case _:
            return a.of.lookups


def in_a_row(access: Access, along: Collection[str]) -> int:
    """How many tables are read one after the other for an access, each at a place that differs along these axes."""

    def of(a: Atom) -> int:
        match a:
            case str():
                return 0
            case Lookup():
                return in_a_row(a.access, along) + (not {*along}.isdisjoint(dims_of(a.access)))
            case _:
                return in_a_row((a.of,), along)

    return max((of(a) for i in access for a, _ in i.terms), default=0)


def _with_atoms(a: Atom, put: Callable[[Atom], Index | None]) -> Index:
    match a:
        case str():
            return plain((a,))[0]
        case Quotient():
            return quotient(a.of.with_atoms(put), a.by)
        case Remainder():
            return remainder(a.of.with_atoms(put), a.by)
        case Lookup():
            return atom_index(replace(a, access=tuple(i.with_atoms(put) for i in a.access)))


def _operand(i: Index) -> str:
    alone = len(i.terms) == 1 and i.terms[0][1] == 1 and not i.offset
    return str(i) if alone else f"({i})"


def _term_text(a: Atom, c: int) -> str:
    text = str(a) if isinstance(a, str | Lookup) or c > 0 else f"({a})"
    return ("-" if c < 0 else "") + text + (f"*{abs(c)}" if abs(c) != 1 else "")


Access = tuple[Index, ...]
"""An index for each axis of a tensor, in memory order."""


def index(terms: Mapping[Atom, int], offset: int = 0) -> Index:
    """The normal form."""
    kept = [(a, c) for a, c in terms.items() if c]
    return Index(tuple(sorted(kept, key=lambda t: (-abs(t[1]), str(t[0])))), offset)


def atom_index(a: Atom) -> Index:
    return Index(((a, 1),))


def combined(offset: int, parts: Iterable[tuple[Index, int]]) -> Index:
    """offset + Σ factor · index"""
    terms: dict[Atom, int] = {}
    for i, factor in parts:
        offset += factor * i.offset
        for a, c in i.terms:
            terms[a] = terms.get(a, 0) + factor * c
    return index(terms, offset)


def quotient(i: Index, by: int) -> Index:
    """i // by: multiples of the number come out, and what it has in common with all terms."""
    for a, c in i.terms:
        if isinstance(a, Remainder) and c * a.by % by == 0:  # c * (x % n) is c * x less a multiple of n
            without = combined(0, ((i, 1), (atom_index(a), -c), (a.of, c)))
            if len(without.terms) < len(i.terms) - 1:
                multiple = quotient(a.of, a.by)
                return combined(0, ((quotient(without, by), 1), (multiple, -c * a.by // by)))
    whole = {a: c // by for a, c in i.terms if c % by == 0}
    rest = {a: c for a, c in i.terms if c % by}
    outside = index(whole, i.offset // by)
    if not rest:
        return outside
    common = gcd(by, *rest.values())
    inner = index({a: c // common for a, c in rest.items()}, i.offset % by // common)
    by //= common
    first = inner.terms[0][0]
    if isinstance(first, Quotient) and inner == atom_index(first):
        inner, by = first.of, first.by * by
    return combined(0, ((outside, 1), (atom_index(Quotient(inner, by)), 1)))


def remainder(i: Index, by: int) -> Index:
    """i % by: multiples of the number are dropped, and what it has in common with all terms comes out."""
    rest, offset = {a: c for a, c in i.terms if c % by}, i.offset % by
    if not rest:
        return index({}, offset)
    common = gcd(by, offset, *rest.values())
    inner = index({a: c // common for a, c in rest.items()}, offset // common)
    first = inner.terms[0][0]
    if isinstance(first, Remainder) and inner == atom_index(first) and first.by % (by // common) == 0:
        inner = first.of
    return combined(0, ((atom_index(Remainder(inner, by // common)), common),))


@lru_cache(maxsize=1 << 14)
def plain(dims: tuple[str, ...]) -> Access:
    """The access that gives each axis of a tensor a name."""
    return tuple(Index(((d, 1),)) for d in dims)


def is_plain(access: Access) -> bool:
    """Whether every index is an axis of its own."""
    return len(access) == len({i.axis for i in access} - {None})


def is_whole(access: Access, dims: Sequence[str], sizes: Mapping[str, int]) -> bool:
    """Whether every index is an axis of its own, as long as that of the tensor, which has these dims."""
    return is_plain(access) and all(renames(d, i, sizes) for d, i in zip(dims, access, strict=True))


def renames(dim: str, i: Index, sizes: Mapping[str, int]) -> bool:
    """Whether an index is the whole of an axis, under its own or another name."""
    return i.axis is not None and sizes.get(dim) == sizes.get(i.axis)


def is_view(access: Access) -> bool:
    """Whether what is read is a view in PyTorch's sense: each axis has a step in memory that is known and positive."""
    return all(i.affine and all(c > 0 for _, c in i.terms) for i in access)


def outside_tables(i: Index) -> frozenset[str]:
    """The axes whose position an index depends on, but for where a table is read."""
    found = set[str]()
    for a, _ in i.terms:
        match a:
            case str():
                found.add(a)
            case Lookup():
                pass
            case _:
                found |= outside_tables(a.of)
    return frozenset(found)


def steady(a: Atom, d: str) -> int:
    """How many positions along a dimension an atom is the same for, from a multiple of that number on; 0 for all."""
    match a:
        case str():
            return int(a == d)
        case Quotient() if a.of.terms == ((d, 1),):
            return gcd(a.by, a.of.offset)
        case _:
            return int(d in dims_of_atom(a))


def dims_of(access: Iterable[Index]) -> tuple[str, ...]:
    """The axes that occur, once each."""
    return tuple(dict.fromkeys(d for i in access for d in i.dims))


def lookups_of(access: Iterable[Index]) -> tuple[Lookup, ...]:
    """What is looked up, once each, what the others need first."""
    return tuple(dict.fromkeys(x for i in access for x in i.lookups))


def divided(access: Iterable[Index]) -> Iterator[tuple[Lookup, int]]:
    """What is looked up and part of what is divided, with the number."""
    for a in (a for i in access for a, _ in i.terms if not isinstance(a, str)):
        if isinstance(a, Lookup):
            yield from divided(a.access)
        else:
            yield from ((x, a.by) for x in a.of.lookups)
            yield from divided((a.of,))


def of_positions(i: Index) -> Index:
    """The index where no table holds -1."""
    return i.with_atoms(lambda a: atom_index(replace(a, padded=False)) if isinstance(a, Lookup) else None)


def of_nothing(i: Index, a: Lookup) -> Index:
    """The index where this table holds -1."""
    return i.with_atoms(lambda b: index({}, -1) if b == a else None)


def may_name_nothing(access: Iterable[Index]) -> tuple[Index, ...]:
    """The indices that are no positions where a table holds -1."""
    return tuple(i for i in access if any(a.padded for a in i.lookups))


def nested(read: Iterable[tuple[str, Index]], dims: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Index]]:
    """Axes and the indices they are read by, those of the tables that are looked up behind each. dims: of tables."""
    for d, i in read:
        yield d, i
        for x in i.lookups:
            yield from zip(dims[x.table], x.access, strict=True)


def access_text(access: Access) -> str:
    return ", ".join(map(str, access))


def read_by(dims: Iterable[str], names: Mapping[str, Index]) -> Access:
    """The access to a value of these dims that has these indices in the place of some of its axes."""
    return tuple(names.get(d) or plain((d,))[0] for d in dims)


def read_at(data: NDArray[Any], at: Sequence[NDArray[np.int64]]) -> NDArray[Any]:
    """The elements at these positions, 0 where there is none."""
    outside = [(x < 0) | (x >= n) for x, n in zip(at, data.shape, strict=True)]
    if not any(o.any() for o in outside):
        return data[tuple(np.broadcast_arrays(*at))] if at else data
    inside = tuple(np.clip(x, 0, n - 1) for x, n in zip(at, data.shape, strict=True))
    beyond = np.logical_or.reduce(np.broadcast_arrays(*outside))
    return np.where(beyond, np.zeros((), data.dtype), data[inside])


def strides(access: Access, steps: Sequence[int]) -> tuple[dict[Atom, int], int]:
    """Elements between neighbours along each atom, and before the first. steps: between neighbours along each axis."""
    found: dict[Atom, int] = {}
    start = 0
    for x, step in zip(access, steps, strict=True):
        start += x.offset * step
        for d, c in x.terms:
            found[d] = found.get(d, 0) + c * step
    return found, start
