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

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd, prod
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Distinct = Mapping[str, tuple[str, ...]]
"""Tables that hold no integer twice, with their axes."""
NOT_DISTINCT: Distinct = MappingProxyType({})
FARTHEST = 1 << 30
"""How far from the start of an axis an index may come: kernels count positions in 32 bits, past the last tile too."""
READ = 2
"""Positions of an axis that an index reads at reduced sizes, at least."""
ENTRIES = 16
"""Positions of an axis that a table names at reduced sizes, at least: two entries of it are the same by luck."""
MOST_COUNTED = 1 << 20
"""Positions that are counted one by one, at most."""
_TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d]\w*)|(//|[-+*%()\[\]{},]))")
MAX_GUESSES = 10_000
"""Numbers of steps that are tried to tell whether two indices meet."""


@dataclass(frozen=True, slots=True)
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
        object.__setattr__(self, "dims", tuple(dict.fromkeys(d for a in atoms for d in _dims(a))))
        object.__setattr__(self, "affine", all(isinstance(a, str) for a in atoms))
        object.__setattr__(self, "lookups", tuple(dict.fromkeys(x for a in atoms for x in _lookups(a))))

    def __lt__(self, other: Index) -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[list[tuple[str, int]], int]:
        return [(str(a), c) for a, c in self.terms], self.offset

    def within(self, names: Mapping[str, Index]) -> Index:
        """The index with other indices in the place of axes."""
        return combined(self.offset, ((_within(a, names), c) for a, c in self.terms))

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


def _dims(a: Atom) -> tuple[str, ...]:
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


def _within(a: Atom, names: Mapping[str, Index]) -> Index:
    match a:
        case str():
            return names.get(a) or plain((a,))[0]
        case Quotient():
            return quotient(a.of.within(names), a.by)
        case Remainder():
            return remainder(a.of.within(names), a.by)
        case Lookup():
            return atom_index(Lookup(a.table, tuple(i.within(names) for i in a.access), a.below, a.padded))


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
        case Quotient() if a.of.terms == ((d, 1),):
            return gcd(a.by, a.of.offset)
        case _:
            return int(d in _dims(a))


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


def with_numbers(i: Index, number: Callable[[Lookup], Index | None]) -> Index:
    """The index with other indices in the place of some of what it looks up."""

    def put(a: Atom) -> Index:
        match a:
            case Lookup():
                return number(a) or atom_index(a)
            case Quotient():
                return quotient(with_numbers(a.of, number), a.by)
            case Remainder():
                return remainder(with_numbers(a.of, number), a.by)
            case _:
                return atom_index(a)

    return combined(i.offset, ((put(a), c) for a, c in i.terms)) if i.lookups else i


def of_positions(i: Index) -> Index:
    """The index where no table holds -1."""
    return with_numbers(i, lambda a: atom_index(replace(a, padded=False)))


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


def parse_access(text: str) -> Access:
    """The inverse of `access_text`. Raises ValueError."""
    return tuple(parse_index(x) for x in comma_separated(text))


def comma_separated(text: str) -> list[str]:
    """The parts between commas, but for those in brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [x.strip() for x in parts if x.strip()]


@lru_cache(maxsize=1 << 14)
def parse_index(text: str) -> Index:
    """The inverse of `str`. Raises ValueError."""
    if text.isidentifier():
        return plain((text,))[0]
    parser = _Parser(text)
    found = parser.total()
    parser.expect(None)
    return found


class _Parser:
    """Reads an index: sums of products of what `factor` reads, one of each product a number."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, at = text, list[str](), 0
        while at < len(text.rstrip()):
            token = _TOKEN.match(text, at)
            if token is None:
                raise self.problem()
            self.tokens.append(token[0].strip())
            at = token.end()
        self.tokens.reverse()

    def problem(self) -> ValueError:
        known = "axes, tables and their // and %, each times a number, and a number"
        return ValueError(f"an index is a sum of {known}, not {self.text!r}")

    def next(self) -> str | None:
        return self.tokens[-1] if self.tokens else None

    def take(self) -> str:
        if not self.tokens:
            raise self.problem()
        return self.tokens.pop()

    def expect(self, token: str | None) -> None:
        if self.next() != token:
            raise self.problem()
        if token is not None:
            self.take()

    def total(self) -> Index:
        parts = [self.product(-1 if self.next() == "-" and self.take() else 1)]
        while self.next() in ("+", "-"):
            parts.append(self.product(1 if self.take() == "+" else -1))
        return combined(0, parts)

    def product(self, sign: int) -> tuple[Index, int]:
        found = self.factor()
        while self.next() in ("*", "//", "%"):
            operator, other = self.take(), self.factor()
            if other.terms and operator == "*":
                found, other = other, found
            if other.terms or (operator != "*" and other.offset < 1):
                raise self.problem()
            n = other.offset
            made = {"*": lambda i, n: combined(0, ((i, n),)), "//": quotient, "%": remainder}
            found = made[operator](found, n)
        return found, sign

    def factor(self) -> Index:
        token = self.take()
        if token.isdigit():
            return index({}, int(token))
        if token == "(":
            found = self.total()
            self.expect(")")
            return found
        if not token.isidentifier():
            raise self.problem()
        if self.next() != "{":
            return plain((token,))[0]
        self.take()
        padded = self.next() == "-"
        for part in ("-", "1", ",") if padded else ():
            self.expect(part)
        below = self.take()
        self.expect("}")
        self.expect("[")
        access = [] if self.next() == "]" else [self.total()]
        while self.next() == ",":
            self.take()
            access.append(self.total())
        self.expect("]")
        return atom_index(Lookup(token, tuple(access), int(below) if below.isdigit() else below, padded))


@lru_cache(maxsize=1 << 14)
def substitution(axes: tuple[str, ...]) -> Mapping[str, Index]:
    """What an equation `rename` puts in the place of axes: its `axes`, which hold old names and new indices in turn."""
    return {old: parse_index(new) for old, new in zip(axes[::2], axes[1::2], strict=True)}


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


def _positions(i: Index, size: int, sizes: Mapping[str, int]) -> int:
    """Positions of an axis of this size that an index reads, at least.

    A step that is as long as what shorter steps reach gives as many positions again for each; a shorter one fills what
    has no gaps further.
    """
    before, behind = i.leaves(size, sizes)
    reach = count = 1
    for d, c in reversed(i.terms):
        assert isinstance(d, str), "an affine index"
        further = abs(c) * (sizes[d] - 1)
        if abs(c) >= reach:
            count *= sizes[d]
        else:
            count = reach + further if count == reach else max(count, sizes[d])
        reach += further
    return max(0, count - before - behind)


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
    return any(with_numbers(i, lambda b: index({}, -1) if b == a else None).bounds(sizes)[1] < 0 for i in access)


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


def _is_told(a: Atom, told: Collection[Atom]) -> bool:
    """Whether an atom is known, by itself or by its axes."""
    return a in told or {*_dims(a)} <= {*told}


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
) -> dict[str, int]:
    """The sizes, made large enough to read of every axis what is read at full sizes: the first positions and the last,
    what is before them and what is behind. No size is made larger than the full one.

    read: axes of tensors and the indices they are read by. same: a name for all axes that are to have one size.
    entries: positions of an axis that a table names. distinct: the axes of tables that hold no integer twice, and the
    axis that those are positions of.
    """
    found = dict(sizes)
    known = [(d, i) for d, i in read if d in sizes and i.axis != d]

    def grow(d: str, need: int) -> bool:
        larger = {e: n for e in found if same(e) == same(d) and found[e] < (n := min(need, full[e]))}
        found.update(larger)
        return bool(larger)

    def raised(i: Index, by: int) -> bool:
        """Whether some axis could grow so that the index comes further by so much."""
        return any(c > 0 and higher(a, -(-by // c)) for a, c in i.terms)

    def higher(a: Atom, by: int) -> bool:
        match a:
            case str():
                return grow(a, found[a] + by)
            case Lookup():
                return isinstance(a.below, str) and grow(a.below, found[a.below] + by)
            case Remainder():
                return raised(a.of, by)
            case Quotient():
                high = a.of.bounds(found)[1]
                return raised(a.of, (high // a.by + by) * a.by - high)

    def grown(d: str, i: Index) -> bool:
        if True in [short > 0 and raised(x, short) for x, short in _shortages(i, found, entries)]:
            return True
        low, high = i.bounds(found)
        short = min(READ, i.bounds(full)[1] + 1) - (high + 1)
        if short > 0 and raised(i, short):
            return True
        return grow(d, max(high + 1 - i.leaves(full[d], full)[1], low + READ))

    tables = [(dims, below) for dims, below in distinct if {*dims, below} <= {*found}]
    while True in {*(grown(d, i) for d, i in known), *(grow(x, prod(found[d] for d in dims)) for dims, x in tables)}:
        pass
    return found


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
