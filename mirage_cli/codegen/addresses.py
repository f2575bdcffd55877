"""What memory a statement reads or writes: positions along dimensions, the pointers and the boxes that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mirage_cli.codegen.axisnames import Axes, shared
from mirage_cli.codegen.scalars import Corner, Start, Stride, Times
from mirage_cli.ir.schedule import next_power_of_two


@dataclass(frozen=True, slots=True)
class Lanes:
    """The positions of the current block along a dimension. block: whether they are an axis, or one position."""

    dim: str
    block: bool


@dataclass(frozen=True, slots=True)
class ChunkNumber:
    """The number of this instance's chunk."""


@dataclass(frozen=True, slots=True)
class Every:
    """The first `count` positions, `step` apart, of each of so many blocks (of `block`) in a row."""

    block: int
    count: int
    step: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Picked:
    """Some positions along a dimension: from `start` on (None: those of the current block), every so many (None: that
    one). wide: in 64 bits. clamped: the last that exists for those behind it. block: as in `Lanes`."""

    dim: str
    block: bool
    start: Start | None = None
    wide: bool = False
    every: Every | None = None
    clamped: bool = False


@dataclass(frozen=True, slots=True)
class Divided:
    """The sum of position · factor, and `start`, which is not negative, over a number: rounded down, or what is left.
    axes: of the block. wide: in 64 bits."""

    terms: tuple[tuple[Place, int], ...]
    start: int
    by: int
    rest: bool
    axes: Axes
    wide: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """A block of integers from memory, by its name. wide: in 64 bits."""

    value: str
    axes: Axes
    wide: bool


@dataclass(frozen=True, slots=True)
class Turns:
    """So many times the positions of the current block along a dimension, and those behind each: a block as many times
    as long as `room` says. Nothing is accessed of what is beyond the count. wide: in 64 bits."""

    dim: str
    count: int
    start: Start
    wide: bool

    @property
    def room(self) -> int:
        return next_power_of_two(self.count)


@dataclass(frozen=True, slots=True)
class SharedNumbers:
    """The number of each so many neighbours along a dimension, of those of the current block."""

    dim: str
    start: Start
    count: int


@dataclass(frozen=True, slots=True)
class MergedLanes:
    """The positions along one of the axes that a merged axis of a block is merged from. wide: in 64 bits."""

    dim: str
    axis: str
    start: Start
    wide: bool


Place: TypeAlias = Lanes | ChunkNumber | Picked | Divided | Looked | Turns | SharedNumbers | MergedLanes


def lanes_of(x: Place) -> Axes:
    """The axes of a block of positions."""
    match x:
        case ChunkNumber():
            return ()
        case Divided() | Looked():
            return x.axes
        case Turns():
            return (x.dim,)
        case SharedNumbers():
            return (shared(x.dim, x.count),)
        case MergedLanes():
            return (x.axis,)
        case _:
            return (x.dim,) if x.block else ()


@dataclass(frozen=True, slots=True)
class Pointers:
    """A block of pointers into a buffer: the sum of position · stride, from `start` and `starts` on. bits: of what each
    points to, where that is no element: 16 or 32, in which several numbers lie."""

    buffer: str
    axes: Axes
    terms: tuple[tuple[Place, Stride], ...]
    start: int = 0
    starts: tuple[Times, ...] = ()
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Within:
    """Whether the sum of position · factor, and `start`, is a position of an axis. below: it may be less than 0. size:
    that of the axis, where it may be as much or more."""

    terms: tuple[tuple[Place, int], ...]
    start: int
    below: bool
    size: int | None


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a buffer, by the descriptor of a value. dims: of the box; scalars among them are not in the block.
    starts: along each. block: axes of what is loaded; axes: the order that they are brought into."""

    value: str
    buffer: str
    dims: Axes
    starts: tuple[Corner, ...]
    block: Axes
    axes: Axes
