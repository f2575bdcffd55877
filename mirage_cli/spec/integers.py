"""Integers in expressions: between which numbers they lie, and what is computed with them exactly, or refused.

W & 15   -->    W % 16              W >> 4   -->    W // 16
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from mirage_cli.ir.ops import OPS, power_of_two
from mirage_cli.ir.program import WORD, Arg, Tensor, number_type
from mirage_cli.ir.whole import Interval, bounds_of, positions
from mirage_cli.spec.scope import Scope

LEAST, LARGEST = WORD
FLOAT_BITS = 24
"""Of whole numbers, so many float32 holds."""
UNTOLD: Interval = (-(1 << FLOAT_BITS), 1 << FLOAT_BITS)
"""Of integers that no declaration and no operator bounds: what is counted, and inputs without `below`."""


class Integers:
    """What is known of the integers in a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def bounds(self, value: Arg) -> Interval:
        """Between which numbers an integer lies, in 32 bits."""
        if not isinstance(value, str):
            return int(value), int(value)
        b = self.scope.builder
        known = positions(b.known.values(), self.scope.sizes)
        return bounds_of(b.eqns, known).get(value, WORD)

    def wraps(self, op: str, args: Sequence[Arg]) -> bool:
        """Whether a sum, difference or product of integers may be beyond 32 bits. Elsewhere an evaluation in 64 bits is
        one in 32."""
        row = OPS[op]
        if row.whole is None or any(self.type_of(a) != "int" for a in args):
            return False
        b = self.scope.builder
        known = positions(b.known.values(), self.scope.sizes)
        for name, x in b.known.items():
            told = x.drawn == "bits" if isinstance(x, Tensor) else x.op in OPS and OPS[x.op].integers
            if known.get(name) == WORD and not told:
                known[name] = UNTOLD
        found = bounds_of(b.eqns, known)
        made = row.whole(*((int(a), int(a)) if not isinstance(a, str) else found.get(a, UNTOLD) for a in args))
        return made is not None and (made[0] < LEAST or made[1] > LARGEST)

    def type_of(self, a: Arg) -> str:
        return self.scope.type_of(a) if isinstance(a, str) else number_type(a)

    def checked(self, op: str, args: Sequence[Arg]) -> tuple[str, tuple[Arg, ...]]:
        """The operator and the arguments, in simpler ones where there are. Raises ValueError where the result is not
        exact, or not known."""
        x, y = args
        if not isinstance(x, str) and not isinstance(y, str):
            return op, (x, y)
        if OPS[op].integers:
            x, y = args = tuple(word(a) for a in args)
        types = [self.type_of(a) for a in args]
        if OPS[op].integers:
            if "bool" in types:
                raise ValueError("masks are joined by `and`, `or` and xor(mask, other), not by their bits")
            if types != ["int", "int"]:
                others = "masks are joined by `and` and `or`, and powers are x ** y"
                raise ValueError(f"{OPS[op].symbol} is of integers; integer(x) makes one of a float, {others}")
            return self.of_bits(op, x, y)
        whole = isinstance(y, Fraction) and y.denominator == 1
        if types[0] == "int" and (types[1] == "int" or whole):
            self.check_divisor(y)
        elif types[0] == "int" and max(map(abs, self.bounds(x))) > 1 << FLOAT_BITS:
            raise ValueError(
                f"an integer that may be beyond 2 ** {FLOAT_BITS} is divided by a float, which is not exact; "
                "x / 1 makes a float of it, and `below` says what an input is less than"
            )
        return op, (x, y)

    def check_divisor(self, y: Arg) -> None:
        """Raises ValueError for a divisor of integers that may be 0, or that is beyond 32 bits."""
        low, high = self.bounds(y)
        if low <= 0 <= high:
            hint = "may be 0: divide by maximum(y, 1)" if isinstance(y, str) else "is 0"
            raise ValueError(f"the integer that this divides by {hint}")
        if high > LARGEST or low < LEAST:
            raise ValueError("the integer that this divides by is beyond 32 bits")

    def bits_of_power(self, base: Arg, exponent: str) -> int:
        """By how many bits base ** exponent shifts for each 1 of the exponent. Raises ValueError for others."""
        n = power_of_two(base)
        if n is None:
            raise ValueError("where the exponent is a tensor, an integer is divided by powers of 2 ** n alone")
        low, high = self.bounds(exponent)
        if n and (low < 0 or n * high > 31):
            raise ValueError(
                "this power of 2 may be a fraction, or beyond 32 bits: as far as is known, its exponent is from "
                f"{n * low} to {n * high}; y % 8 is from 0 to 7"
            )
        return n

    @staticmethod
    def of_bits(op: str, x: Arg, y: Arg) -> tuple[str, tuple[Arg, ...]]:
        """The last bits as a remainder, and those in front of them as a quotient: these may be known of numbers."""
        if OPS[op].commutes and not isinstance(x, str):
            x, y = y, x
        row = OPS[op]
        if not isinstance(y, Fraction):
            return op, (x, y)
        if not row.commutes and not 0 <= y < 32:
            raise ValueError(f"a shift is by 0 to 31 bits, not by {y}")
        simpler = row.simpler(y) if row.simpler else None
        return (op, (x, y)) if simpler is None else (simpler[0], (x, simpler[1]))


def word(x: Arg) -> Arg:
    """A whole number as 32 bits, and anything else itself. Raises ValueError for what has more."""
    if not isinstance(x, Fraction) or x.denominator != 1:
        return x
    if not LEAST <= x <= 2 * LARGEST + 1:
        raise ValueError(f"{x} has more than 32 bits")
    return x if x <= LARGEST else x - (1 << 32)
