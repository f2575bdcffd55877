"""Summed axes in two pieces, each a power of two: 576 = 512 + 64.

    dot(Q, K; d)  -->  add(dot(Q[e], K[e]; e), dot(Q[r + 512], K[r + 512]; r))        d = 576, e = 512, r = 64

A block has powers of two along its axes, so one that holds 576 positions takes the room of 1024. That matters where an
axis is held whole, which it is in a loop over another: where products are summed again. Where something else reads the
first piece by an axis of its own, values of as many, that axis stands for the piece: both read one block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mirage_cli.ir.access import index
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program, Tensor
from mirage_cli.ir.rewrites.rewriter import Rewriter
from mirage_cli.ir.schedule import MIN_DOT, next_power_of_two

LEAST_ROOM = 1.5
"""How many times its size a block must be for an axis to be taken apart."""
HELD = 1024
"""Positions of the longest axis that a block holds whole."""


def in_pieces(program: Program) -> Program | None:
    """A lowered program with products of what it reads summed in pieces; None where none is."""
    return _Pieces(program).rewritten()


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


class _Pieces(Rewriter):
    """made: pieces of values, by value and axis of the piece. whole: the pieces of axes that have some. again: values
    that are summed again."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.made: dict[tuple[str, str], str] = {}
        self.whole = {d: p for d, n in program.dims if d not in self.fixed and (p := pieces_of(n))}
        self.again = _summed_again(program)

    def of(self, e: Eqn) -> Iterable[Eqn]:
        axis = self.axis_of(e)
        return (e,) if axis is None else self.summed(e, axis)

    def axis_of(self, e: Eqn) -> str | None:
        """The axis of a product that is summed in pieces."""
        if OPS[e.op].kind != "contraction" or e.out not in self.again or not all(map(self.is_read, e.values)):
            return None
        return next((d for d in e.axes if d in self.whole), None)

    def is_read(self, value: str) -> bool:
        """Whether a value is what an input holds somewhere."""
        known = self.known[value]
        return isinstance(known, Tensor) or OPS[known.op].kind == "rename"

    def summed(self, e: Eqn, axis: str) -> Iterator[Eqn]:
        first, rest = self.whole[axis]
        low, high = self.axis(e, axis, first, self.program.sizes), self.new(f"{axis}_rest", rest)
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
        yield self.define(e.out, "add", tuple(sums), ())
