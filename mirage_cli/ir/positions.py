"""Values that are indices: what equations make of positions along axes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from mirage_cli.ir.access import Index, combined, index, quotient, remainder
from mirage_cli.ir.ops import Number
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
    if len(e.args) != 2:
        return None
    x, y = (position_of(b, eqns) for b in e.args)
    return None if x is None or y is None else of_positions(e.op, x, y)


def of_positions(op: str, x: Index, y: Index) -> Index | None:
    """What an operator makes of two indices, where that is an index again."""
    divides = not y.terms and y.offset > 0
    match op:
        case "add" | "sub":
            return combined(0, ((x, 1), (y, 1 if op == "add" else -1)))
        case "mul" if not (x.terms and y.terms):
            whole, factor = (x, y.offset) if not y.terms else (y, x.offset)
            return combined(0, ((whole, factor),))
        case "remainder" if divides:
            return remainder(x, y.offset)
        case "floor_divide" if divides:
            return quotient(x, y.offset)
        case _:
            return None
