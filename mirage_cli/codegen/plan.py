"""What a generated kernel does, statement by statement, before it is text in any language.

The planner (`planner.py`) makes a plan of a μGraph and a schedule; `check.py` says what is wrong with one; `triton.py`
prints it. Blocks have named axes throughout. Two schedules with equal plans are one candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from typing import Literal as OneOf
from typing import TypeAlias

from mirage_cli.codegen.access import Descriptor

Axes = tuple[str, ...]
"""The axes of a block, in order. One that is several merged has their names with `*` between them."""


# -- integers that all lanes share: bounds of loops


@dataclass(frozen=True, slots=True)
class Number:
    value: int


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a dimension."""

    dim: str


@dataclass(frozen=True, slots=True)
class TileAt:
    """The first position of this instance's tile along a dimension of the grid, or the last."""

    dim: str
    tile: int
    last: bool


@dataclass(frozen=True, slots=True)
class ChunkAt:
    """Where this instance's chunk starts, or ends."""

    length: int
    end: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A bound of the loops over a dimension that `SetMark` has set."""

    kind: OneOf["begin", "end", "whole", "rest"]
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
    """Where a loop over several dimensions is: step // inner, modulo `trips` unless it is the outermost, tiles on, from
    the start of the chunk (of this length) of a split dimension on."""

    inner: int
    trips: int | None
    tile: int
    chunk: int | None


Start: TypeAlias = AtZero | AtTile | AtStep | AtJointStep


# -- what memory is read and written


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
class Pointers:
    """A block of pointers into a buffer: the sum of position · stride."""

    buffer: str
    axes: Axes
    terms: tuple[tuple[Lanes | ChunkNumber | Picked, int], ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a buffer, by the descriptor of a value. dims: of the box; scalars among them are not in the block.
    starts: along each. block: axes of what is loaded; axes: the order that they are brought into."""

    value: str
    buffer: str
    dims: Axes
    starts: tuple[Start, ...]
    block: Axes
    axes: Axes


# -- what blocks hold


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
    """An elementwise operator of `OPS`. exact: rounded correctly, also where half an ulp more would be cheaper."""

    op: str
    args: tuple[Expr, ...]
    exact: bool
    axes: Axes


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
class ExpDifference:
    """exp(x - m). exact: the difference comes first, and `shift` is m; else one multiply-add, and it is m log2 e."""

    x: Expr
    shift: Expr
    exact: bool
    axes: Axes


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
class Dot:
    """A product on the matrix units, of [.., rows, k] and [.., k, columns]; added to an accumulator if one is named.
    precision: of float32."""

    left: Expr
    right: Expr
    accumulator: str | None
    precision: OneOf["tf32x3", "ieee"] | None

    @property
    def axes(self) -> Axes:
        return (*self.left.axes[:-1], self.right.axes[-1])


@dataclass(frozen=True, slots=True)
class Added:
    """An accumulator plus a block."""

    accumulator: str
    x: Expr

    @property
    def axes(self) -> Axes:
        return self.x.axes


Leaf: TypeAlias = Value | Shift | Factor | Literal | Position | Full
Expr: TypeAlias = (
    Leaf
    | Cast
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
    | Dot
    | Added
)


# -- statements


@dataclass(frozen=True, slots=True)
class Instances:
    """Which tiles this program instance has. chunk: instances of each chunk; 0 where all are of one chunk; None where
    nothing is split. grid: dimensions with more than one tile, and how many. group: tiles of the first of two that
    run next to each other. backwards: dimensions whose last tile comes first."""

    programs: int
    chunk: int | None
    grid: tuple[tuple[str, int], ...]
    group: int
    backwards: Axes


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of the current block along a dimension. block: whether it has more than one. wide: in 64 bits.
    padded: which of them exist is noted too."""

    dim: str
    start: Start
    block: bool
    wide: bool
    padded: bool


@dataclass(frozen=True, slots=True)
class SetMark:
    """masks: those that would make all that is added up zero outside of what the marks bound."""

    mark: Mark
    scalar: Scalar
    masks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """A block from memory; zero past the end of the dimensions in `mask`, as boxes have it in all. once: nobody reads
    it again."""

    out: str
    access: Pointers | Box
    mask: Axes
    once: bool


@dataclass(frozen=True, slots=True)
class Let:
    """A value computed from current blocks."""

    out: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Round:
    """A value in float32 as it is once it has been stored in a narrower type."""

    out: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Initialise:
    """An accumulator as it is before its loop."""

    out: str
    number: Literal
    dtype: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class Accumulate:
    """An accumulator combined with a block: by `sum`, `max` or `min`."""

    out: str
    op: str
    block: Expr
    nan: bool


@dataclass(frozen=True, slots=True)
class Advance:
    """Moves a running maximum, and notes its shift and its factor."""

    out: str
    block: Expr
    nan: bool
    exact: bool


@dataclass(frozen=True, slots=True)
class Rescale:
    """An accumulator times a factor, or divided by it."""

    out: str
    factor: Expr
    divided: bool


@dataclass(frozen=True, slots=True)
class Complete:
    """An accumulator reduced over the axes that it has kept in its loop."""

    out: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Store:
    """once: dimensions of the grid along which all instances have the same, and the first stores; one_chunk: the same
    for chunks."""

    pointers: Pointers
    block: Expr
    mask: Axes
    once: Axes
    one_chunk: bool


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Cache lines brought into the L2. read: by reads that are forgotten."""

    pointers: Pointers
    read: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Until the kernel in front has ended."""


@dataclass(frozen=True, slots=True)
class Release:
    """Lets the kernel behind start."""


@dataclass(frozen=True, slots=True)
class ReleaseBefore:
    """Lets the kernel behind start if no more than `most` positions of the loop are left."""

    dim: str
    last: Scalar
    most: int


@dataclass(frozen=True, slots=True)
class Over:
    """Over the tiles of a dimension."""

    dim: str
    first: Scalar
    last: Scalar
    step: int


@dataclass(frozen=True, slots=True)
class Together:
    """Over the tiles of several dimensions together. trips: how many there are; with a split dimension among them, of
    the others. split: that one, its size of a chunk and of a tile."""

    dims: Axes
    trips: int
    split: tuple[str, int, int] | None


@dataclass(frozen=True, slots=True)
class Loop:
    """specialized: warps of their own fetch for it."""

    over: Over | Together
    specialized: bool
    body: tuple[Statement, ...]


Statement: TypeAlias = (
    Instances
    | Positions
    | SetMark
    | Load
    | Let
    | Round
    | Initialise
    | Accumulate
    | Advance
    | Rescale
    | Complete
    | Store
    | Prefetch
    | Wait
    | Release
    | ReleaseBefore
    | Loop
)


@dataclass(frozen=True, slots=True)
class Dimension:
    """block: positions of a block along it. padded: whether the last block reaches past its end."""

    name: str
    size: int
    block: int
    padded: bool


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One generated kernel.

    dims: those that it has blocks along. values: their names, for none of the kernel's own to be one. args: buffers
    that it is given pointers into, in order. descriptors: by value. awaited: buffers that may be read only after the
    wait. waits: whether it starts before the kernel in front has ended. fuses: whether a product may be added before
    it is rounded.
    """

    name: str
    dims: tuple[Dimension, ...]
    values: tuple[str, ...]
    args: tuple[str, ...]
    descriptors: tuple[tuple[str, Descriptor], ...]
    awaited: frozenset[str]
    programs: int
    warps: int
    stages: int
    waits: bool
    fuses: bool
    statements: tuple[Statement, ...]

    @property
    def fetches(self) -> bool:
        """Whether it fetches inputs ahead."""
        return any(isinstance(s, Prefetch) for s, _ in walk(self.statements))

    def __str__(self) -> str:
        dims = " ".join(f"{d.name}={d.size}/{d.block}" for d in self.dims)
        flags = " waits" * self.waits + " fuses" * self.fuses
        lines = [f"plan {self.name} programs={self.programs} warps={self.warps} stages={self.stages}{flags}"]
        lines += [f"dims {dims}", f"args {' '.join(self.args)}"]
        lines += [f"box {value}: {d.buffer}[{', '.join(d.dims)}] {d.box}" for value, d in self.descriptors]
        lines += [f"{'  ' * depth}{statement_text(s)}" for s, depth in walk(self.statements)]
        return "\n".join(lines) + "\n"


def walk(statements: tuple[Statement, ...], depth: int = 1) -> Iterator[tuple[Statement, int]]:
    """All statements in order, with how deep they stand."""
    for s in statements:
        yield s, depth
        if isinstance(s, Loop):
            yield from walk(s.body, depth + 1)


def statement_text(s: Statement) -> str:
    """One line: `let A[m, n] = dot(X, W)`."""
    if isinstance(s, Loop):
        return f"loop {_text(s.over)}" + " specialized" * s.specialized
    word = type(s).__name__.lower()
    given = {f.name: getattr(s, f.name) for f in fields(s)}
    out = f" {given.pop('out')}" if "out" in given else ""
    if isinstance(s, Let | Complete):
        return f"{word}{out}[{', '.join(s.expr.axes)}] = {_text(s.expr)}"
    return word + out + "".join(f" {name}={_text(x)}" for name, x in given.items() if x not in (False, (), None))


def _text(x: object) -> str:
    match x:
        case Value(name):
            return name
        case Number(value):
            return str(value)
        case Literal(value):
            return str(value)
        case tuple():
            return f"({', '.join(map(_text, x))})"
        case Apply(op, args, exact):
            return f"{op}{'' if exact else '~'}({', '.join(map(_text, args))})"
        case _ if is_dataclass(x):
            inside = [_text(getattr(x, f.name)) for f in fields(x)]
            return f"{type(x).__name__}({', '.join(inside)})"
        case _:
            return str(x)
