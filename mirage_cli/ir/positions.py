"""Values that are indices: what equations make of positions along axes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from mirage_cli.ir.access import Index, combined, index, quotient, remainder
from mirage_cli.ir.op import Number
from mirage_cli.ir.program import Arg, Eqn


def of_number(n: Number) -> Index | None:
    """A number as an index, where it is a whole one."""
    return index({}, int(n)) if isinstance(n, Fraction) and n.denominator == 1 else None


def position_of(a: Arg, eqns: Mapping[str, Eqn]) -> Index | None:
    """What a value or a number is as an index. eqns: by what they compute."""
    if not isinstance(a, str):
        return of_number(a)
    e = eqns.get(a)
    if e is None or e.place:
        return e.place if e is not None else None
    found = [position_of(b, eqns) for b in e.args]
    known = [x for x in found if x is not None]
    return of_positions(e.op, *known) if len(known) == len(found) else None


def of_positions(op: str, *of: Index) -> Index | None:
    """What an operator makes of indices, where that is an index again."""
    match op, of:
        case "neg", (x,):
            return combined(0, ((x, -1),))
        case "add" | "sub", (x, y):
            return combined(0, ((x, 1), (y, 1 if op == "add" else -1)))
        case "mul", (x, y) if not (x.terms and y.terms):
            whole, factor = (x, y.offset) if not y.terms else (y, x.offset)
            return combined(0, ((whole, factor),))
        case "remainder", (x, Index(terms=(), offset=by)) if by > 0:
            return remainder(x, by)
        case "floor_divide", (x, Index(terms=(), offset=by)) if by > 0:
            return quotient(x, by)
        case _:
            return None
