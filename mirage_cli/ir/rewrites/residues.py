"""Sums of which a mask leaves every s-th position, over these positions alone.

    dot(where((y + 1 - i) % 2 == 0, X[(y + 1 - i)//2], 0), W[i]; i)
        -->  dot(X[(y + 1)//2 - k], W[2*k + (y + 1)%2]; k)                            i = 2*k + (y + 1)%2

So a transposed convolution multiplies no zeros. Its positions y in blocks of 2 (`blocked`) are a convolution for each
place within a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from mirage_cli.ir.access import Index, Remainder, combined, index, remainder
from mirage_cli.ir.program import Eqn, Program
from mirage_cli.ir.rewrites.replaced import Replaced, left_out
from mirage_cli.ir.rewrites.rewriter import fixed_axes


def by_residues(program: Program) -> Program | None:
    """A lowered program with such sums over the positions that their masks leave; None where there is none."""
    found = None
    while (other := _once(found or program)) is not None:
        found = other
    return found


def _once(program: Program) -> Program | None:
    made = (_Residues(program, e.out, *at).rewritten() for e in program.eqns for at in _places(program, e))
    return next((x for x in made if x is not None), None)


class _Residues(Replaced):
    """The sum over `axis` at the positions step * k + first."""

    def __init__(self, program: Program, mask: str, axis: str, step: int, first: Index) -> None:
        super().__init__(program)
        self.masks = frozenset({mask})
        self.own[axis] = new = self.behind(axis, {f"{axis}_step": -(-self.dims[axis] // step)})
        self.whole[axis] = combined(0, ((index(dict.fromkeys(new, step)), 1), (first, 1)))


def _places(program: Program, e: Eqn) -> Iterator[tuple[str, int, Index]]:
    """For a mask that asks for a remainder of positions: a reduced axis, of whose positions no others count, what it is
    divided by, and the first position that counts."""
    eqns = {x.out: x for x in program.eqns}
    place = eqns[e.values[0]].place if e.op == "eq" and e.values[0] in eqns else None
    ((divided, factor),) = place.terms if place and len(place.terms) == 1 else ((None, 1),)
    if place is None or not isinstance(divided, Remainder) or not divided.of.affine or factor != 1:
        return
    left = e.args[1] - place.offset if isinstance(e.args[1], Fraction) else -1
    if left not in range(divided.by):
        return
    for axis, c in divided.of.terms:
        if abs(c) == 1 and axis not in fixed_axes(program) and left_out(program, str(axis), {e.out: 0.0}):
            rest = combined(-int(left), ((divided.of, 1), (index({axis: c}), -1)))
            yield str(axis), divided.by, remainder(combined(0, ((rest, -c),)), divided.by)
