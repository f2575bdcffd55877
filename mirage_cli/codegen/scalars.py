"""The integers of a kernel that all lanes share: sizes, strides and lengths, bounds of loops, and where blocks start.

Where a size is an argument of the kernel, `Tiles`, `Times` and `Share` stand in the place of a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf
from typing import TypeAlias

from mirage_cli.codegen.axisnames import Axes

# -- numbers, which depend on a size where it is an argument of the kernel


@dataclass(frozen=True, slots=True)
class Tiles:
    """ceil(size / tile) of a dimension whose size is an argument."""

    dim: str
    tile: int


@dataclass(frozen=True, slots=True)
class Times:
    """A number times the sizes of dimensions that are arguments."""

    number: int
    dims: Axes


@dataclass(frozen=True, slots=True)
class Share:
    """The length of a chunk, in whole tiles: a dimension whose size is an argument is cut into so many chunks."""

    dim: str
    chunks: int
    tile: int


Count: TypeAlias = int | Tiles


Stride: TypeAlias = int | Times


Length: TypeAlias = int | Share


# -- bounds of loops


@dataclass(frozen=True, slots=True)
class Number:
    value: int


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a dimension. given: as an argument."""

    dim: str
    given: bool = False


@dataclass(frozen=True, slots=True)
class TileAt:
    """The first position of this instance's tile along a dimension of the grid, or the last."""

    dim: str
    tile: int
    last: bool


@dataclass(frozen=True, slots=True)
class ChunkAt:
    """Where this instance's chunk starts, or ends."""

    length: Length
    end: bool


Kind = OneOf["begin", "pause", "resume", "end", "whole", "rest"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A bound of the loops over a dimension that `SetMark` has set."""

    kind: Kind
    dim: str


@dataclass(frozen=True, slots=True)
class Extreme:
    """The least or the largest of the integers in a block, or the one in a scalar."""

    value: str
    largest: bool
    axes: Axes


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of coefficient · scalar, plus a constant."""

    constant: int
    terms: tuple[tuple[int, Scalar], ...]


@dataclass(frozen=True, slots=True)
class Plus:
    start: Scalar
    more: int


@dataclass(frozen=True, slots=True)
class Aligned:
    """The start of the tile that has this position."""

    position: Scalar
    tile: int


@dataclass(frozen=True, slots=True)
class Bound:
    """The least of these, or the largest."""

    largest: bool
    of: tuple[Scalar, ...]


Scalar: TypeAlias = Number | Size | TileAt | ChunkAt | Mark | Extreme | Sum | Plus | Aligned | Bound


# -- where the current block along a dimension starts


@dataclass(frozen=True, slots=True)
class AtZero:
    """At the start of the dimension, always."""


@dataclass(frozen=True, slots=True)
class AtTile:
    """At this instance's tile."""

    dim: str
    tile: int


@dataclass(frozen=True, slots=True)
class AtStep:
    """Where the loop over this dimension is."""

    dim: str


@dataclass(frozen=True, slots=True)
class AtJointStep:
    """Where a loop over several dimensions is: step // inner (a product), modulo `trips` unless it is the outermost,
    tiles on, from the start of the chunk (of this length) of a split dimension on."""

    inner: tuple[Count, ...]
    trips: Count | None
    tile: int
    chunk: Length | None


@dataclass(frozen=True, slots=True)
class AtFirst:
    """Where the loop over this dimension begins."""

    dim: str
    first: Scalar


@dataclass(frozen=True, slots=True)
class AtNext:
    """Where the loop over this dimension is in its next iteration, so many positions on."""

    dim: str
    step: int


@dataclass(frozen=True, slots=True)
class AtDivided:
    """Where a box starts by a quotient, or a remainder, of a position that is not negative."""

    of: Corner
    by: int
    remainder: bool


Start: TypeAlias = AtZero | AtTile | AtStep | AtJointStep | AtFirst | AtNext | AtDivided


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether a loop that ends at `end` has an iteration that starts here."""

    start: Start
    end: Scalar


@dataclass(frozen=True, slots=True)
class Ahead:
    """The iteration that a load is for, where another asks for it. reached: whether there is one; None where that is
    sure."""

    start: AtFirst | AtNext
    reached: Reached | None


@dataclass(frozen=True, slots=True)
class Corner:
    """Where a box starts along an axis: the sum of start · factor, and a number."""

    terms: tuple[tuple[Start, int], ...]
    offset: int
