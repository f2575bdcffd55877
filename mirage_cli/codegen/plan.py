"""What a generated kernel does, statement by statement, before it is text in any language.

The planner (`planner.py`) makes a plan of a μGraph and a schedule; `check.py` says what is wrong with one; `triton.py`
prints it. Blocks have named axes throughout. Two schedules with equal plans are one candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeAlias

from mirage_cli.codegen.access import Descriptor
from mirage_cli.codegen.addresses import Box, Lanes, MergedLanes, Pointers, Within
from mirage_cli.codegen.nodes import Apply, Axes, Expr, Literal, OfWords, Spread, Value
from mirage_cli.codegen.scalars import (
    Ahead,
    Corner,
    Count,
    Length,
    Mark,
    Number,
    Scalar,
    Share,
    Size,
    Start,
    Tiles,
    Times,
)
from mirage_cli.ir.schedule import Word


@dataclass(frozen=True, slots=True)
class Instances:
    """Which tiles this program instance computes.

    programs: instances of the kernel, or of this part of it. chunk: instances of each chunk; 0 where all are of one
    chunk; None where nothing is split. Both are counted for each tile along dimensions whose size is an argument.
    grid: the dimensions with more than one tile, and how many; tiles along the last ones run next to each other.
    near, far: dimensions of which `group` tiles along near run next to each other, then as many of the next tile along
    far; all others of the grid come in between. backwards: dimensions whose last tile comes first. first: instances of
    other parts of the kernel in front of these.
    """

    programs: int
    chunk: int | None
    grid: tuple[tuple[str, Count], ...]
    near: Axes
    far: Axes
    group: int
    backwards: Axes
    first: int = 0


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
    """Sets a bound of a loop. masks: the masks that would make all that is added up zero outside of the bounds."""

    mark: Mark
    scalar: Scalar
    masks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Loads the block of a value.

    axes: of the block. mask: dimensions past whose end it may reach. within: bounds that its positions may leave. when:
    a mask of the elements that are needed. What lies outside of these is `outside`; a box is zero past any end.
    once: no instance reads it again, so the L2 need not keep it. whole: integers, converted to int32. float8: of a type
    that has no integer 0. part: of each word that is loaded, the number that is a lane's own.
    repeated: axes of the block along which so many positions in a row hold one element: all positions of an axis that
    the pointers lack.
    others: values whose elements lie behind those of `out` in turns, along the dimension that the pointers have `Turns`
    of. Mask and block are so many times as long.
    ahead: the iteration that is loaded, of which `Take` makes the block current; nothing is loaded if there is none.
    """

    out: str
    access: Pointers | Box
    mask: Axes
    once: bool
    within: tuple[Within, ...] = ()
    whole: bool = False
    float8: bool = False
    repeated: tuple[tuple[str, int], ...] = ()
    axes: Axes = ()
    outside: float = 0.0
    others: tuple[str, ...] = ()
    ahead: Ahead | None = None
    when: Expr | None = None
    part: OfWords | None = None


@dataclass(frozen=True, slots=True)
class Take:
    """What has been loaded ahead is the current block now."""

    out: str


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
    """Moves a running maximum, and notes its shift and its factor. factor: what it is multiplied by behind the loop."""

    out: str
    block: Expr
    nan: bool
    exact: bool
    factor: float


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
    """Stores a block.

    once: dimensions of the grid along which all instances have the same block; the first one stores. one_chunk: the
    same for chunks. within: bounds beyond which nothing is stored. room: axes without a mask, each with the positions
    that a row has room for: what is written behind the last means nothing. others: blocks whose elements lie behind
    those of `block` in turns, as of `Load`.
    """

    pointers: Pointers
    block: Expr
    mask: Axes
    once: Axes
    one_chunk: bool
    within: tuple[Within, ...] = ()
    room: tuple[tuple[str, int], ...] = ()
    others: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Barrier:
    """Waits for all threads of the program instance: each has read what others overwrite from here on."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Brings cache lines into the L2. read: by loads whose result is dropped."""

    pointers: Pointers
    read: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits until the kernel in front has ended."""


@dataclass(frozen=True, slots=True)
class Release:
    """Lets the kernel behind start."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends this program instance where the loop from `first` to `last` has no iteration: then it stores nothing."""

    first: Scalar
    last: Scalar


@dataclass(frozen=True, slots=True)
class ReleaseBefore:
    """Lets the kernel behind start if no more than `most` positions of the loop are left."""

    dim: str
    last: Scalar
    most: int


@dataclass(frozen=True, slots=True)
class Over:
    """A loop over the tiles of a dimension. hidden: the compiler is kept from working out how many there are."""

    dim: str
    first: Scalar
    last: Scalar
    step: int
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Together:
    """A loop over the tiles of several dimensions.

    trips: the number of tiles, as factors, without that of the first dimension where it is split, or walked in part.
    split: the first dimension, where it is split, with the lengths of its chunks and of its tiles. part: the bounds of
    the first dimension.
    """

    dims: Axes
    trips: tuple[Count, ...]
    split: tuple[str, Length, int] | None
    part: Over | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop and its body.

    specialized: warps of their own fetch for it. stages: of the compiler's pipeline, where by itself it would not have
    all loads in flight; None for the loads that it finds, those of products on the matrix units.
    """

    over: Over | Together
    specialized: bool
    body: tuple[Statement, ...]
    stages: int | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """Parts of the kernel, each in so many program instances of its own, for each tile along dimensions whose size is
    an argument."""

    programs: tuple[int, ...]
    bodies: tuple[tuple[Statement, ...], ...]


Statement: TypeAlias = (
    Instances
    | Positions
    | SetMark
    | Load
    | Take
    | Let
    | Round
    | Initialise
    | Accumulate
    | Advance
    | Rescale
    | Complete
    | Store
    | Barrier
    | Prefetch
    | Wait
    | Release
    | Leave
    | ReleaseBefore
    | Loop
    | Beside
)


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension along which the kernel has blocks.

    block: positions of a block. padded: whether the last block reaches past the end. dynamic: whether the size is an
    argument, and `size` the one that the kernel is tuned for: the last block of several positions may reach past the
    end then, whatever the size.
    """

    name: str
    size: int
    block: int
    padded: bool
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One generated kernel.

    dims: those that it has blocks along. sizes: the dimensions whose size it takes as an argument. values: their names,
    for none of the kernel's own to be one. args: buffers that it is given pointers into, in order. descriptors: by
    value. awaited: buffers that may be read only after the wait. compiled: what the compiler is told beside the text.
    waits: whether it starts before the kernel in front has ended. fuses: whether a product may be added before it is
    rounded.
    """

    name: str
    dims: tuple[Dimension, ...]
    sizes: Axes
    values: tuple[str, ...]
    args: tuple[str, ...]
    descriptors: tuple[tuple[str, Descriptor], ...]
    awaited: frozenset[str]
    programs: int
    compiled: tuple[tuple[str, Word], ...]
    waits: bool
    fuses: bool
    statements: tuple[Statement, ...]

    @property
    def tiles(self) -> tuple[Tiles, ...]:
        """What the number of instances is a multiple of besides `programs`."""
        instances = next(s for s, _ in walk(self.statements) if isinstance(s, Instances))
        return tuple(n for _, n in instances.grid if isinstance(n, Tiles))

    @property
    def fetches(self) -> bool:
        """Whether it fetches inputs ahead."""
        return any(isinstance(s, Prefetch) for s, _ in walk(self.statements))

    @property
    def shared_bits(self) -> Mapping[str, int]:
        """Buffers that it reads in more than an element at a time, with the most bits."""
        accesses = (s.access for s, _ in walk(self.statements) if isinstance(s, Load))
        found: dict[str, int] = {}
        for x in accesses:
            if isinstance(x, Pointers) and x.bits:
                found[x.buffer] = max(x.bits, found.get(x.buffer, 0))
        return found

    def __str__(self) -> str:
        dims = " ".join(f"{d.name}={'?' * d.dynamic or d.size}/{d.block}" for d in self.dims)
        flags = " waits" * self.waits + " fuses" * self.fuses
        told = "".join(f" {name}={x}" for name, x in self.compiled)
        lines = [f"plan {self.name} programs={self.programs}{told}{flags}"]
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
        if isinstance(s, Beside):
            yield from (x for body in s.bodies for x in walk(body, depth + 1))


def statement_text(s: Statement) -> str:
    """One line: `let A[m, n] = dot(X, W)`."""
    if isinstance(s, Loop):
        return f"loop {_text(s.over)}" + " specialized" * s.specialized + f" stages={s.stages}" * (s.stages is not None)
    if isinstance(s, Beside):
        return f"beside {' '.join(map(str, s.programs))}"
    word = type(s).__name__.lower()
    given = {f.name: getattr(s, f.name) for f in fields(s)}
    out = f" {given.pop('out')}" if "out" in given else ""
    if isinstance(s, Load) and not s.repeated:
        del given["axes"]  # the pointers', or the box's
    if isinstance(s, Let | Complete):
        return f"{word}{out}[{', '.join(s.expr.axes)}] = {_text(s.expr)}"
    return word + out + "".join(f" {name}={_text(x)}" for name, x in given.items() if x not in (False, (), None, ""))


def _text(x: object) -> str:
    """`Q[b*2048 + g:*128]` is a block of pointers, `g:` the positions of the current block along g."""
    match x:
        case Value(name=name) | Size(dim=name):
            return name if isinstance(x, Value) else f"size {name}"
        case Share(dim, chunks, tile):
            return f"share {dim}/{chunks}/{tile}"
        case Number(value) | Literal(value):
            return str(value)
        case Lanes(dim) | MergedLanes(dim):
            return dim if isinstance(x, Lanes) and not x.block else f"{dim}:"
        case Tiles(dim, tile):
            return f"tiles {dim}/{tile}"
        case Times(number, dims):
            return "*".join([str(number), *dims])
        case Corner() | Pointers():
            return _sum_text(x)
        case Apply(op, args, exact):
            return f"{op}{'' if exact else '~'}({', '.join(map(_text, args))})"
        case Spread(block, axes):
            return f"{_text(block)}[{', '.join(d if d in block.axes else '-' for d in axes)}]"
        case tuple():
            return f"({', '.join(map(_text, x))})"
        case _ if is_dataclass(x):
            inside = [_text(getattr(x, f.name)) for f in fields(x)]
            return type(x).__name__.lower() + (f"({', '.join(inside)})" if inside else "")
        case _:
            return str(x)


def _sum_text(x: Corner | Pointers) -> str:
    """Positions or starts, each times a number, and a number."""
    starts, start = ((), x.offset) if isinstance(x, Corner) else (x.starts, x.start)
    texts = [_text(p) if n == 1 else f"{_text(p)}*{_text(n)}" for p, n in x.terms]
    text = " + ".join([*texts, *map(_text, starts), *[str(start)] * bool(start)])
    return text if isinstance(x, Corner) else f"{x.buffer}[{text}]"
