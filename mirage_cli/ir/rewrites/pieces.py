"""Summed axes in two pieces, each a power of two: 576 = 512 + 64.

    dot(Q, K; d)  -->  add(dot(Q[e], K[e]; e), dot(Q[r + 512], K[r + 512]; r))        d = 576, e = 512, r = 64

A block has powers of two along its axes, so one that holds 576 positions takes the room of 1024. That matters where an
axis is held whole, which it is in a loop over another: where products are summed again. Where something else reads the
first piece by an axis of its own, values of as many, that axis stands for the piece: both read one block.

So are axes of outputs that a product of sums has, in which a block has each piece as an accumulator of its own:

    O = dot(P, V; s)  -->  O[e] = dot(P, V[e]; s), O[r + 128] = dot(P, V[r + 128]; s)        192 = 128 + 64
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from mirage_cli.ir.access import index
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Part, Program, Tensor
from mirage_cli.ir.rewrites.rewriter import Rewriter
from mirage_cli.ir.schedule import MIN_DOT, next_power_of_two

LEAST_ROOM = 1.3
"""How many times its size a block must be for an axis to be taken apart."""
HELD = 1024
"""Positions of the longest axis that a block holds whole."""


def in_pieces(program: Program) -> Program | None:
    """A lowered program with outputs made in pieces, and products of what it reads summed in pieces; None where there
    are none."""
    made = program if program.parts else _Outputs(program).rewritten() or program
    made = _Sums(made).rewritten() or made
    return None if made is program else made


def pieces_of(size: int) -> tuple[int, int] | None:
    """A size as two powers of two, the larger first, where one block of it would take much more room."""
    first = next_power_of_two(size) // 2
    rest = size - first
    two = rest >= MIN_DOT and rest & (rest - 1) == 0
    return (first, rest) if two and LEAST_ROOM * size <= next_power_of_two(size) <= HELD else None


def _summed_again(program: Program) -> set[str]:
    """Values that a later sum or extremum is made of."""
    found: set[str] = set()
    for e in reversed(program.eqns):
        if OPS[e.op].kind in ("reduction", "contraction") or e.out in found:
            found.update(e.values)
    return found


def _made_of_sums(program: Program) -> set[str]:
    """Values that are sums or extrema, or made of such."""
    found: set[str] = set()
    for e in program.eqns:
        if OPS[e.op].kind in ("reduction", "contraction") or found & {*e.values}:
            found.add(e.out)
    return found


class _Pieces(Rewriter):
    """made: pieces of values, by value and axis of the piece. whole: the pieces of axes that have some."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.made: dict[tuple[str, str], str] = {}
        self.whole = {d: p for d, n in program.dims if d not in self.fixed and (p := pieces_of(n))}

    def is_read(self, value: str) -> bool:
        """Whether a value is what an input holds somewhere."""
        known = self.known[value]
        return isinstance(known, Tensor) or OPS[known.op].kind == "rename"


class _Outputs(_Pieces):
    """reduced: values that are made of sums. eqns: of the program, and of pieces."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.known |= {e.out: e for e in program.eqns}
        self.reduced = _made_of_sums(program)
        self.eqns = [*program.eqns]

    def of(self, e: Eqn) -> Iterable[Eqn]:
        return (e,)

    def rewritten(self) -> Program | None:
        own = {t.name: [*self.pieces(t)] for t in self.program.outputs}
        if not any(own.values()):
            return None
        outputs = tuple(x for t in self.program.outputs for x in [x for x, _ in own[t.name]] or [t])
        parts = tuple(p for some in own.values() for _, p in some)
        self.program = replace(self.program, outputs=outputs, parts=parts)
        return self.program_of(self.eqns)

    def pieces(self, t: Tensor) -> Iterator[tuple[Tensor, Part]]:
        """The pieces of an output, each with where it lies; none where it stays whole."""
        axis = next((d for d in t.dims if d in self.whole and self.is_held(t.name, d)), None)
        if axis is None:
            return
        for start, size in zip((0, self.whole[axis][0]), self.whole[axis], strict=True):
            piece = self.new(f"{axis}_{start}", size)
            access = tuple(index({piece: 1}, start) if d == axis else index({d: 1}) for d in t.dims)
            value = self.piece(t.name, axis, piece, start)
            dims = tuple(piece if d == axis else d for d in t.dims)
            yield replace(t, name=value, dims=dims), Part(value, t, access)

    def is_held(self, value: str, axis: str) -> bool:
        """Whether a value is made elementwise of products that a block holds whole along this axis, and of what is
        read; and nothing but elementwise operators is made of them."""
        found, products = [value], set[str]()
        for v in found:
            e = self.known[v]
            if isinstance(e, Tensor) or axis not in e.dims or self.is_read(v):
                continue
            if self.is_of_sums(e, axis):
                products.add(v)
            elif OPS[e.op].kind == "elementwise":
                found += [x for x in e.values if x not in found]
            else:
                return False
        behind = products.copy()
        for e in (e for e in self.program.eqns if not behind.isdisjoint(e.values)):
            if OPS[e.op].kind != "elementwise" or axis not in e.dims:
                return False
            behind.add(e.out)
        return bool(products)

    def is_of_sums(self, e: Eqn, axis: str) -> bool:
        """Whether an equation is a product of what is made of sums and what is read along this axis."""
        along = {v for v in e.values if axis in self.known[v].dims}
        return (
            OPS[e.op].kind == "contraction"
            and all(map(self.is_read, along))
            and bool(self.reduced & {*e.values} - along)
        )

    def piece(self, value: str, axis: str, piece: str, start: int) -> str:
        """The name of the piece of a value that begins there."""
        e = self.known[value]
        if axis not in e.dims or (value, piece) in self.made:
            return self.made.get((value, piece), value)
        name = self.made[value, piece] = self.name(f"{value}_{piece}")
        if not isinstance(e, Eqn) or self.is_read(value):
            self.eqns.append(self.read(name, value, {axis: index({piece: 1}, start)}))
        else:
            args = e.arguments(lambda v: self.piece(v, axis, piece, start))
            self.eqns.append(self.define(name, e.op, args, e.axes))
            self.sums |= {name} if value in self.program.internals else set()
        return name


class _Sums(_Pieces):
    """again: values that are summed again."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.again = _summed_again(program)

    def of(self, e: Eqn) -> Iterable[Eqn]:
        axis = self.axis_of(e)
        return (e,) if axis is None else self.summed(e, axis)

    def axis_of(self, e: Eqn) -> str | None:
        """The axis of a product that is summed in pieces."""
        if OPS[e.op].kind != "contraction" or e.out not in self.again or not all(map(self.is_read, e.values)):
            return None
        return next((d for d in e.axes if d in self.whole), None)

    def summed(self, e: Eqn, axis: str) -> Iterator[Eqn]:
        first, rest = self.whole[axis]
        low = self.axis(e, axis, first, self.program.sizes)
        high = self.axis(e, f"{axis}_rest", rest, self.program.sizes)
        sums: list[str] = []
        for piece, at in ((low, index({low: 1})), (high, index({high: 1}, first))):
            args: list[str] = []
            for value in e.values:
                if (value, piece) not in self.made:
                    self.made[value, piece] = name = self.name(f"{value}_{piece}")
                    yield self.read(name, value, {axis: at})
                args.append(self.made[value, piece])
            sums.append(self.name(f"{e.out}_{piece}"))
            yield self.define(sums[-1], e.op, tuple(args), tuple(piece if a == axis else a for a in e.axes))
        self.sums |= {*sums}
        yield self.define(e.out, "add", tuple(sums), ())
