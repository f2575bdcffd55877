"""A kernel's equations where some axes have given positions: numbers, or indices of other axes, in their place."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from mirage_cli.ir.access import Index
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.positions import of_number, of_positions
from mirage_cli.ir.program import Arg, Eqn


class UnknownError(Exception):
    """What an equation comes to is none of its arguments, and no equation."""


class Instance:
    """What equations come to. names: what is in the place of axes. extents: the sizes of these axes. at: values of the
    instance that are positions."""

    def __init__(self, names: Mapping[str, Index], extents: Mapping[str, int], at: Mapping[str, Index]) -> None:
        self.names, self.extents, self.at = names, extents, at

    def folded(self, e: Eqn, args: tuple[Arg, ...]) -> Arg | Index | None:
        """A number, one of its arguments, or a position; None where an equation stays. args: of the instance."""
        if e.op == "size" and e.axes[0] in self.extents:
            return Fraction(self.extents[e.axes[0]])
        position = self._position(e, args)
        if position is not None:
            return position if position.terms else Fraction(position.offset)
        if e.op == "where" and not isinstance(args[0], str):
            return args[1] if args[0] else args[2]
        if e.args and not any(isinstance(a, str) for a in args) and OPS[e.op].kind == "elementwise":
            return _number(float(np.float64(OPS[e.op].ref(*map(float, args)))))
        return None

    def _position(self, e: Eqn, args: tuple[Arg, ...]) -> Index | None:
        """What an equation makes of positions, where that is an index again."""
        if e.place:
            return e.place.within(self.names)
        known = [x for x in map(self.index_of, args) if x is not None]
        return of_positions(e.op, *known) if len(known) == len(args) else None

    def index_of(self, a: Arg) -> Index | None:
        """What an argument is as an index."""
        return self.at.get(a) if isinstance(a, str) else of_number(a)


def simpler(e: Eqn, args: tuple[Arg, ...]) -> tuple[str, tuple[Arg, ...]]:
    """The operator and the arguments of an equation, of which some may be numbers that were values. Of a number for the
    second, more may be known. Raises UnknownError where the operator takes no number there."""
    row = OPS[e.op]
    known = row.simpler(args[1]) if row.simpler is not None and isinstance(args[1], Fraction) else None
    op, args = (e.op, args) if known is None else (known[0], (args[0], known[1]))
    new = {i for i, (a, b) in enumerate(zip(e.args, args, strict=True)) if isinstance(a, str) > isinstance(b, str)}
    if new and (OPS[op].kind != "elementwise" or new & {*OPS[op].masks}):
        raise UnknownError
    return op, args


def _number(x: float) -> Arg:
    if np.isnan(x):
        raise UnknownError
    return x if np.isinf(x) else Fraction(x)
