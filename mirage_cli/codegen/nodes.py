"""The expressions of a plan's statements: what blocks of values are computed from, and how."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal as OneOf
from typing import TypeAlias

from mirage_cli.codegen.addresses import Place
from mirage_cli.codegen.axisnames import Axes, half
from mirage_cli.ir.whole import EXACT

WORD_BITS = 32
RAISED = {dtype: most // 2 for dtype, most in EXACT.items()}
"""float16 numbers in [1024, 2048), and bfloat16 numbers in [128, 256), are all the whole ones: the last bits of
RAISED + n are those of n below RAISED."""


@dataclass(frozen=True, slots=True)
class Value:
    """The current block of a value."""

    name: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class Shift:
    """What exponents of a running maximum are shifted by."""

    maximum: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class Factor:
    """By what a running maximum has rescaled in this iteration."""

    maximum: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class Literal:
    """A number; whole: an integer."""

    value: Fraction | float
    whole: bool = False

    @property
    def axes(self) -> Axes:
        return ()


@dataclass(frozen=True, slots=True)
class Position:
    """The positions along a dimension."""

    dim: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a dimension that is an argument, as a number."""

    dim: str

    @property
    def axes(self) -> Axes:
        return ()


@dataclass(frozen=True, slots=True)
class Placed:
    """The sum of position · factor, from `start` on."""

    terms: tuple[tuple[Place, int], ...]
    start: int
    axes: Axes


@dataclass(frozen=True, slots=True)
class Full:
    """A block of one number."""

    number: Literal
    dtype: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class Cast:
    x: Expr
    old: str
    new: str

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class ByteBits:
    """RAISED + ((x >> shift) & mask ^ sign) - less of a block of bytes, in a type of 16 bits. pure: it may be moved
    behind the read that brings threads what they multiply."""

    x: Expr
    shift: int
    mask: int
    sign: int
    less: Expr
    dtype: str
    pure: bool = False

    @property
    def axes(self) -> Axes:
        return self.x.axes

    @property
    def of_zero(self) -> int:
        """What it is of a byte that is 0, before anything is subtracted."""
        return RAISED[self.dtype] + self.sign


@dataclass(frozen=True, slots=True)
class HalfWord:
    """The last or, first, the first 16 bits of integers of 32."""

    x: Expr
    first: bool

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class OfWords:
    """Of each `count` neighbours along a dimension the number at `place`, from a block of the words in which they lie:
    `room` numbers of a type share a word."""

    x: Expr
    dim: str
    count: int
    place: int
    room: int
    dtype: str

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class PairBits:
    """RAISED + ((x >> shift) & mask ^ sign) - less in a type of 16 bits, of 16 bits x; of the first or the second byte
    of each two, of which x is the first byte or the second."""

    x: Expr
    second: bool
    shift: int
    mask: int
    sign: int
    less: Expr
    dtype: str

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class PairBytes:
    """The first or the second byte of each two as bfloat16."""

    x: Expr
    second: bool

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class EverySecond:
    """Every second element of a block with one axis, from the first or the second on."""

    x: Expr
    second: bool

    @property
    def axes(self) -> Axes:
        return tuple(map(half, self.x.axes))


@dataclass(frozen=True, slots=True)
class InTurns:
    """Two blocks as one, whose elements along a dimension are theirs in turns."""

    first: Expr
    second: Expr
    dim: str

    @property
    def axes(self) -> Axes:
        return tuple(self.dim if a == half(self.dim) else a for a in self.first.axes)


@dataclass(frozen=True, slots=True)
class MatrixType:
    """bfloat16 as the matrix units take it."""

    x: Expr

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class Spread:
    """A block with axes of one element where it lacks some of these."""

    x: Expr
    axes: Axes


@dataclass(frozen=True, slots=True)
class Repeated:
    """A block that is the same along the axes it lacks."""

    x: Expr
    axes: Axes


@dataclass(frozen=True, slots=True)
class Permuted:
    x: Expr
    axes: Axes


@dataclass(frozen=True, slots=True)
class Reshaped:
    """A block with neighbouring axes merged, or merged ones apart."""

    x: Expr
    axes: Axes


@dataclass(frozen=True, slots=True)
class Masked:
    """A block with a number where it lies past the end of one of these dimensions."""

    x: Expr
    dims: Axes
    number: Literal

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class Apply:
    """An elementwise operator of `OPS`. exact: rounded correctly, also where half an ulp more would be cheaper.
    whole: of integers, by a text of its own."""

    op: str
    args: tuple[Expr, ...]
    exact: bool
    axes: Axes
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Scaled:
    """A block times a number."""

    x: Expr
    factor: float

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class Power:
    x: Expr
    exponent: Fraction
    exact: bool

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class AddedLast:
    """a + b, where b is no first addend of the product that a is."""

    a: Expr
    b: Expr
    axes: Axes


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a block with one axis, a table, at integers."""

    table: Expr
    x: Expr

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class ExpDifference:
    """exp(factor · (x - m)). exact: the difference comes first, and `shift` is m; else one multiply-add, and it is
    factor · m · log2 e."""

    x: Expr
    shift: Expr
    exact: bool
    axes: Axes
    factor: float


@dataclass(frozen=True, slots=True)
class Product:
    """a · b, element by element, before it is summed."""

    a: Expr
    b: Expr
    axes: Axes


@dataclass(frozen=True, slots=True)
class Reduce:
    """A block reduced over some of its axes. nan: NaN where there is one."""

    op: str
    x: Expr
    over: Axes
    nan: bool

    @property
    def axes(self) -> Axes:
        return tuple(d for d in self.x.axes if d not in self.over)


@dataclass(frozen=True, slots=True)
class Scan:
    """A block reduced up to each position along one of its axes, or with `back` from there on. to: that axis of the
    result. decay: a block of the same axes by which each step multiplies the sum so far, or None. relative: of its
    exponential, relative to that of the largest element so far."""

    op: str
    x: Expr
    over: str
    to: str
    back: bool
    decay: Expr | None = None
    relative: bool = False

    @property
    def axes(self) -> Axes:
        return tuple(self.to if d == self.over else d for d in self.x.axes)


@dataclass(frozen=True, slots=True)
class Along:
    """A block of which one axis stands for another of the same positions."""

    x: Expr
    axis: str
    to: str

    @property
    def axes(self) -> Axes:
        return tuple(self.to if d == self.axis else d for d in self.x.axes)


@dataclass(frozen=True, slots=True)
class InParts:
    """How an operand of float32 is multiplied by one of a smaller type: in parts, each of a type that the matrix units
    take. side: of the operand in parts, 0 or 1. part: bfloat16, which has float32's range, or TF32, which holds
    float16."""

    side: int
    part: OneOf["bfloat16", "tf32"]


Precision: TypeAlias = OneOf["tf32x3", "tf32", "ieee", "int8"] | InParts | int | None


@dataclass(frozen=True, slots=True)
class Dot:
    """A product on the matrix units, of [.., rows, k] and [.., k, columns]; added to an accumulator if one is named, or
    to another product.
    precision: of float32; of float8, how many terms the matrix units may add up before float32 does; int8, whose
    products are added up as integers of 32 bits, exactly, before float32 takes them."""

    left: Expr
    right: Expr
    accumulator: str | Dot | None
    precision: Precision

    @property
    def axes(self) -> Axes:
        return (*self.left.axes[:-1], self.right.axes[-1])


@dataclass(frozen=True, slots=True)
class Ended:
    """A product that is waited for before anything else is done."""

    x: Dot

    @property
    def axes(self) -> Axes:
        return self.x.axes


@dataclass(frozen=True, slots=True)
class Added:
    """An accumulator plus a block."""

    accumulator: str
    x: Expr

    @property
    def axes(self) -> Axes:
        return self.x.axes


Leaf: TypeAlias = Value | Shift | Factor | Literal | Position | Extent | Placed | Full
Expr: TypeAlias = (
    Leaf
    | Cast
    | ByteBits
    | HalfWord
    | OfWords
    | Entries
    | PairBits
    | PairBytes
    | EverySecond
    | InTurns
    | MatrixType
    | Spread
    | Repeated
    | Permuted
    | Reshaped
    | Masked
    | Apply
    | Scaled
    | Power
    | AddedLast
    | ExpDifference
    | Product
    | Reduce
    | Scan
    | Along
    | Dot
    | Ended
    | Added
)


def spread(x: Expr, want: Axes) -> Expr:
    """A block made to broadcast against these axes, of which its own are a part in order."""
    return x if x.axes == want or not x.axes else Spread(x, want)
