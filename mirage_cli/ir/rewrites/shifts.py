"""An extremum that is subtracted from a difference, as one that is subtracted once.

    y = x - c, y - max(y; a)  -->  x - max(x; a), where c lacks the axis a

Users of PyTorch subtract one in front of a softmax, which subtracts another. The canonical form knows that they come to
the same, but not where the axis is taken in parts, each with a maximum of its own.
"""

from __future__ import annotations

from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program
from mirage_cli.ir.rewrites.rewriter import Rewriter


def shifted_once(program: Program) -> Program:
    """A lowered program, or what it is with such extrema subtracted once."""
    return _Shifts(program).rewritten() or program


class _Shifts(Rewriter):
    def of(self, e: Eqn) -> tuple[Eqn, ...]:
        y, extremum = (self.known.get(a) if isinstance(a, str) else None for a in (*e.args, 0, 0)[:2])
        if not (e.op == "sub" and isinstance(y, Eqn) and isinstance(extremum, Eqn) and y.op == "sub"):
            return (e,)
        x, c = y.args
        along = {*extremum.axes} & {*self.known[c].dims} if isinstance(c, str) else ()
        if not isinstance(x, str) or along or extremum.args != (y.out,) or not OPS[extremum.op].extremum:
            return (e,)
        found = [q.out for q in self.known.values() if isinstance(q, Eqn) and _is_alike(q, extremum, x)]
        made = [] if found else [self.define(self.name(extremum.out), extremum.op, (x,), extremum.axes)]
        return *made, self.define(e.out, "sub", (x, found[0] if found else made[0].out), ())


def _is_alike(q: Eqn, extremum: Eqn, x: str) -> bool:
    """Whether it is this extremum of another value."""
    return (q.op, q.args, q.axes) == (extremum.op, (x,), extremum.axes)
