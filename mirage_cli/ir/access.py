"""Accesses: where in a stored tensor a value lies that is read or written. For each axis of the tensor an index, which
is affine in axes.

    X[m, h*64 + d]      the axis k of X as two
    QKV[m, n + 4096]    a slice
    X[b, y*2 + i - 1]   a window with a stride
    X[n]                the axis m of X by another name

An index has one normal form, which prints as it is read. Tensors are row-major, so what an access reads of one is a
strided view: `strides` gives the elements between neighbours along each axis, and where the view begins. What lies
outside of the tensor reads as 0. What is written by an access lies inside, and no element twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

FARTHEST = 1 << 30
"""How far from the start of an axis an index may come: kernels count positions in 32 bits, past the last tile too."""
READ = 2
"""Positions of an axis that an index reads at reduced sizes, at least."""
MAX_GUESSES = 10_000
"""Numbers of steps that are tried to tell whether two indices meet."""
_TERM = re.compile(r"\s*(-?)\s*(?:(?:(\d+) ?\* ?)?([^\W\d]\w*)(?: ?\* ?(\d+))?|(\d+))\s*")


@dataclass(frozen=True, order=True, slots=True)
class Index:
    """offset + Σ coefficient · axis, the position along one axis of a tensor.

    terms: (axis, coefficient), none of them 0, each axis once, the largest coefficient first. `index` sorts them.
    axis: the axis that the index is, if it is just that.
    """

    terms: tuple[tuple[str, int], ...]
    offset: int = 0
    axis: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        alone = len(self.terms) == 1 and self.terms[0][1] == 1 and not self.offset
        object.__setattr__(self, "axis", self.terms[0][0] if alone else None)

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(d for d, _ in self.terms)

    def within(self, names: Mapping[str, Index]) -> Index:
        """The index with other indices in the place of axes."""
        terms: dict[str, int] = {}
        offset = self.offset
        for d, c in self.terms:
            new = names.get(d)
            for axis, inner in ((d, 1),) if new is None else new.terms:
                terms[axis] = terms.get(axis, 0) + c * inner
            offset += c * new.offset if new is not None else 0
        return index(terms, offset)

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The least and the largest position."""
        ends = [c * (sizes[d] - 1) for d, c in self.terms]
        return self.offset + sum(min(e, 0) for e in ends), self.offset + sum(max(e, 0) for e in ends)

    def leaves(self, size: int, sizes: Mapping[str, int]) -> tuple[int, int]:
        """By how much it goes beyond an axis of this size: before the start, and behind the end."""
        low, high = self.bounds(sizes)
        return max(0, -low), max(0, high - size + 1)

    def positions(self, dims: Sequence[str], ranges: Mapping[str, tuple[int, int]]) -> NDArray[np.int64]:
        """The positions for these ranges of axes, an array that broadcasts against others along `dims`."""
        total = np.full([1] * len(dims), self.offset, dtype=np.int64)
        for d, c in self.terms:
            total = total + c * np.arange(*ranges[d]).reshape([-1 if d == e else 1 for e in dims])
        return total

    def __str__(self) -> str:
        parts = [d if c == 1 else f"-{d}" if c == -1 else f"{d}*{c}" if c > 0 else f"-{d}*{-c}" for d, c in self.terms]
        parts += [str(self.offset)] if self.offset or not parts else []
        return " + ".join(parts).replace("+ -", "- ")


Access = tuple[Index, ...]
"""An index for each axis of a tensor, in memory order."""


def index(terms: Mapping[str, int], offset: int = 0) -> Index:
    """The normal form."""
    kept = [(d, c) for d, c in terms.items() if c]
    return Index(tuple(sorted(kept, key=lambda t: (-abs(t[1]), t[0]))), offset)


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


def dims_of(access: Iterable[Index]) -> tuple[str, ...]:
    """The axes that occur, once each."""
    return tuple(dict.fromkeys(d for i in access for d in i.dims))


def access_text(access: Access) -> str:
    return ", ".join(map(str, access))


def parse_access(text: str) -> Access:
    """The inverse of `access_text`. Raises ValueError."""
    return tuple(parse_index(x) for x in text.split(",") if x.strip())


@lru_cache(maxsize=1 << 14)
def parse_index(text: str) -> Index:
    """A sum of axes, axes times numbers, and numbers. Raises ValueError."""
    terms: dict[str, int] = {}
    offset = 0
    for part in text.strip().replace("-", "+-").removeprefix("+").split("+"):
        match = _TERM.fullmatch(part)
        if match is None or (match[2] and match[4]):
            raise ValueError(f"an index is a sum of axes, each times a number, and a number, not {text!r}")
        factor = int(match[2] or match[4] or match[5] or 1) * (-1 if match[1] else 1)
        if match[5]:
            offset += factor
        else:
            terms[match[3]] = terms.get(match[3], 0) + factor
    return index(terms, offset)


@lru_cache(maxsize=1 << 14)
def substitution(axes: tuple[str, ...]) -> Mapping[str, Index]:
    """What an equation `rename` puts in the place of axes: its `axes`, which hold old names and new indices in turn."""
    return {old: parse_index(new) for old, new in zip(axes[::2], axes[1::2], strict=True)}


def read_by(dims: Iterable[str], names: Mapping[str, Index]) -> Access:
    """The access to a value of these dims that has these indices in the place of some of its axes."""
    return tuple(names.get(d) or plain((d,))[0] for d in dims)


def strides(access: Access, shape: Sequence[int]) -> tuple[dict[str, int], int]:
    """Elements between neighbours along each axis, and before the first, in a row-major tensor of this shape."""
    found: dict[str, int] = {}
    start = 0
    for i, x in enumerate(access):
        step = prod(shape[i + 1 :])
        start += x.offset * step
        for d, c in x.terms:
            found[d] = found.get(d, 0) + c * step
    return found, start


def elements_read(dims: Sequence[str], accesses: Iterable[Access], sizes: Mapping[str, int]) -> int:
    """Elements of a tensor with these dims that some of these accesses read, at least: of accesses that lie apart along
    an axis, the sum."""
    counted: list[tuple[int, Access]] = []
    for x in sorted(set(accesses), key=lambda x: -_elements(dims, x, sizes)):
        if all(apart(x, y, sizes) for _, y in counted):
            counted.append((_elements(dims, x, sizes), x))
    return sum(n for n, _ in counted)


def _elements(dims: Sequence[str], access: Access, sizes: Mapping[str, int]) -> int:
    along = [_positions(i, sizes[d], sizes) for d, i in zip(dims, access, strict=True)]
    if sum(len(i.terms) for i in access) == len(dims_of(access)):
        return prod(along)
    beyond = any(any(i.leaves(sizes[d], sizes)) for d, i in zip(dims, access, strict=True))
    return 0 if beyond else max(along)


def _positions(i: Index, size: int, sizes: Mapping[str, int]) -> int:
    """Positions of an axis of this size that an index reads, at least: all from its first to its last where the steps
    of an axis are no longer than what smaller steps reach."""
    before, behind = i.leaves(size, sizes)
    reach = 1
    for d, c in reversed(i.terms):
        if abs(c) > reach:
            return max(0, max(sizes[d] for d in i.dims) - before - behind)
        reach += abs(c) * (sizes[d] - 1)
    return reach - before - behind


def apart(x: Access, y: Access, sizes: Mapping[str, int]) -> bool:
    """Whether no element of a tensor lies in both accesses, as far as can be told: they never meet along some axis."""
    return not all(_meet(i, j, sizes) for i, j in zip(x, y, strict=True))


def _meet(i: Index, j: Index, sizes: Mapping[str, int]) -> bool:
    """Whether two indices may have one position in common, each with axes of its own."""
    steps: dict[int, int] = {}
    for d, c in (*i.terms, *j.terms):
        steps[abs(c)] = steps.get(abs(c), 0) + sizes[d] - 1
    (low, _), (_, high) = i.bounds(sizes), j.bounds(sizes)
    return _reaches(high - low, sorted(steps.items()), [MAX_GUESSES])


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


def is_injective(access: Access, sizes: Mapping[str, int]) -> bool:
    """Whether an access gives each of its elements once, as far as can be told: some order of its indices names all
    axes, each index with steps that its shorter steps do not reach."""
    known: set[str] = set()
    left = list(access)
    while found := next((i for i in left if _tells(i, known, sizes)), None):
        left.remove(found)
        known |= {*found.dims}
    return known >= {*dims_of(access)}


def _tells(i: Index, known: Collection[str], sizes: Mapping[str, int]) -> bool:
    """Whether the position tells those axes of an index that are not known."""
    reach = 0
    for d, c in reversed([t for t in i.terms if t[0] not in known and sizes[t[0]] > 1]):
        if abs(c) <= reach:
            return False
        reach += abs(c) * (sizes[d] - 1)
    return True


def large_enough(
    sizes: Mapping[str, int], read: Iterable[tuple[str, Index]], full: Mapping[str, int], same: Callable[[str], str]
) -> dict[str, int]:
    """The sizes, made large enough to read of every axis what is read at full sizes: the first positions and the last,
    what is before them and what is behind. No size is made larger than the full one.

    read: axes of tensors and the indices they are read by. same: a name for all axes that are to have one size.
    """
    found = dict(sizes)
    known = [(d, i) for d, i in read if d in sizes and i.axis != d]

    def grow(d: str, need: int) -> bool:
        larger = {e: n for e in found if same(e) == same(d) and found[e] < (n := min(need, full[e]))}
        found.update(larger)
        return bool(larger)

    def grown(d: str, i: Index) -> bool:
        low, high = i.bounds(found)
        short = min(READ, i.bounds(full)[1] + 1) - (high + 1)
        for axis, c in i.terms:
            if short > 0 and c > 0 and found[axis] < full[axis]:
                return grow(axis, found[axis] - (-short // c))
        return grow(d, max(high + 1 - i.leaves(full[d], full)[1], low + READ))

    while True in {grown(d, i) for d, i in known}:
        pass
    return found
