"""What the loads of a kernel move: the bytes that they take from memory, and how their elements lie in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.access import (
    Access,
    Atom,
    Index,
    Quotient,
    Remainder,
    access_text,
    dims_of,
    dims_of_atom,
    lookups_of,
    steady,
)
from mirage_cli.ir.footprint import box_around, read_once
from mirage_cli.ir.hashed import hashed_once
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.program import WIDEST_BYTES, Tensor


class BufferPart(NamedTuple):
    """What is read of a buffer, as text: "" from its first element on."""

    buffer: str
    where: str


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class Lines:
    """Elements of a tensor that a load reads, as they lie in memory. element: bytes of one. intermediate: whether no
    caller gives it."""

    tensor: Tensor
    access: Access
    element: int
    intermediate: bool

    def aligned(self, sizes: Mapping[str, int]) -> Sequence[tuple[str, int]]:
        """The axes in which the address moves by single elements, each with what all else of the address is a multiple
        of (0 for nothing else): one instruction of a thread loads elements that begin at a multiple of their number."""
        return [(a, n) for a, by, n in self.runs(sizes) if by == 1]

    def runs(self, sizes: Mapping[str, int]) -> Sequence[tuple[str, int, int]]:
        """The same, and axes of which so many positions in a row (the second) read one element: a loop in phases reads
        them as they lie."""
        return _runs(self, tuple(sizes[d] for d in self.tensor.dims))

    def aligned_axes(self, sizes: Mapping[str, int]) -> list[str]:
        """Those in which rows begin at multiples of what one instruction of a thread loads."""
        return [a for a, n in self.aligned(sizes) if n * self.element % WIDEST_BYTES == 0]


@lru_cache(maxsize=4096)
def _runs(lines: Lines, extent: tuple[int, ...]) -> Sequence[tuple[str, int, int]]:
    """extent: of the tensor."""
    sizes = dict(zip(lines.tensor.dims, extent, strict=True))
    tensor = lines.tensor.with_aligned_rows(sizes, lines.element) if lines.intermediate else lines.tensor
    steps = tensor.steps(sizes)
    terms = [(a, n * step) for i, step in zip(lines.access, steps, strict=True) for a, n in i.terms]
    offset = sum(i.offset * step for i, step in zip(lines.access, steps, strict=True))
    single = ((a, *_positions(a)) for a, n in terms if n == 1)
    return tuple((d, by, math.gcd(offset, *(n for b, n in terms if b != a))) for a, d, by in single if by)


def _positions(a: Atom) -> tuple[str, int]:
    """The axis of which an atom is every position, or of so many in a row the same; 0 for anything else."""
    match a:
        case str():
            return a, 1
        case Quotient(Index(terms=((str() as d, 1),), offset=offset), by) if offset % by == 0:
            return d, by
        case _:
            return "", 0


def bytes_of(x: Load, element_bytes: Mapping[str, int]) -> float:
    """Of an element, for each position that reads it: several in a row may."""
    return element_bytes[x.buffer] / math.prod(n for _, n in in_a_row(x.access))


def apart_bytes(x: Load, axis: str, element_bytes: Mapping[str, int]) -> float:
    """From one position along an axis to the next, where elements lie without gaps: several may read one."""
    return element_bytes[x.buffer] / alike_along(x.access, axis)


@lru_cache(maxsize=4096)
def in_a_row(access: Access) -> tuple[tuple[str, int], ...]:
    """The axes along which several positions in a row read one element, and how many."""
    return tuple((d, n) for d in dims_of(access) if (n := alike_along(access, d)) > 1)


def alike_along(access: Access, d: str) -> int:
    """Positions along one axis that read one element."""
    return max(1, math.gcd(*(steady(a, d) for i in access for a, _ in i.terms)))


def side_by_side(x: Load, t: Tensor | None) -> tuple[str, ...]:
    """The axes of a load along which elements lie without gaps, in memory order: those behind what a table names, and
    along which it names the same, and those that are added to what it names. Its numbers may be any. t: None for what
    is row-major."""
    if t is None or not t.strides:
        behind = max((n for n, i in enumerate(x.access, 1) if i.lookups), default=0)
        atoms = [a for y in lookups_of(x.access) for i in y.access for a, _ in i.terms]
        named = {d for a in atoms for d in dims_of_atom(a) if steady(a, d) == 1}
        if not behind:
            return x.dims
        last = x.access[behind - 1]
        return tuple(dict.fromkeys(d for d in (*_added(last), *dims_of(x.access[behind:])) if d not in named))
    return dims_of(i for d, i in zip(t.dims, x.access, strict=True) if d in t.without_gaps)


def _added(index: Index) -> Iterator[str]:
    """The axes along which an index moves by single positions, but where it begins again."""
    for a, n in index.terms:
        match a:
            case str() if n == 1:
                yield a
            case Remainder() if n == 1:
                yield from _added(a.of)
            case _:
                pass


def lines_of(x: Load, t: Tensor | None, element: int) -> Lines | None:
    """None where the addresses are not known. t: None for an intermediate, with the axes that the access names.
    element: bytes of one."""
    return _lines(x.access, None if t is None else (t.dims, t.strides), element)


@lru_cache(maxsize=4096)
def _lines(access: Access, t: tuple[tuple[str, ...], tuple[int | None, ...]] | None, element: int) -> Lines | None:
    if t is not None:
        dims, strides = t
        return Lines(Tensor("", dims, "", strides=strides), access, element, intermediate=False)
    dims = tuple(i.axis for i in access if i.axis is not None)
    return Lines(Tensor("", dims, ""), access, element, intermediate=True) if len(dims) == len(access) else None


def whole_rows(x: Load, inputs: Iterable[Tensor], sizes: Mapping[str, int], element: int) -> bool:
    """Whether rows of what is loaded begin and end at multiples of what one instruction loads, or nothing else is
    known. inputs: of the μGraph. element: bytes of one."""
    lines = lines_of(x, next((t for t in inputs if t.name == x.buffer), None), element)
    return lines is None or any(sizes[a] * element % WIDEST_BYTES == 0 for a in lines.aligned_axes(sizes))


def bytes_once(access: Access, size: float, element: int, sizes: Mapping[str, int], l2_bytes: int) -> float:
    """What a load takes from memory for each position, in the mean: what windows that overlap have in common is read
    once, and so is what tables name again, as far as the L2 still has it. size: bytes for each position. element: of
    one of the tensor."""
    if all(i.affine for i in access):
        return size * read_once(access, sizes)
    positions = math.prod(sizes[a] for a in dims_of(access))
    there = box_around([access], sizes) * element
    again = max(0.0, positions * size - there) * min(1.0, l2_bytes / max(there, 1))
    return size - again / positions


def part_of(buffer: str, access: Access) -> BufferPart:
    """What is read of a buffer: loads that begin at other offsets, or at other rows that tables name, read other
    parts. Under other names of axes, they read the same."""
    return BufferPart(buffer, _where(access))


@lru_cache(maxsize=4096)
def _where(access: Access) -> str:
    if not all(i.affine for i in access):
        names = {d: Index(((f"%{n}", 1),)) for n, d in enumerate(dims_of(access))}
        return access_text(tuple(i.within(names) for i in access))
    offsets = [i.offset for i in access]
    return str(offsets) if any(offsets) else ""


def of_parts(
    bytes_of_parts: Mapping[BufferPart, NDArray[np.float64] | float],
    accesses: Iterable[tuple[str, Access]],
    element_bytes: Mapping[str, int],
    sizes: Mapping[str, int],
) -> NDArray[np.float64] | float:
    """The bytes of all parts together. Those of one buffer overlap, as the neighbours in a stencil do, where they have
    more elements than the box around them. accesses: to each buffer."""
    found: NDArray[np.float64] | float = 0.0
    accesses = tuple(accesses)
    for buffer in dict.fromkeys(part.buffer for part in bytes_of_parts):
        own = [n for part, n in bytes_of_parts.items() if part.buffer == buffer]
        together = sum(own[1:], own[0])
        if len(own) > 1:
            box = box_around([a for b, a in accesses if b == buffer], sizes)
            together = np.minimum(together, box * element_bytes[buffer])
        found = found + together
    return found
