"""What a row of `OPS` says: the columns of the table of operators, which `ir.ops` fills."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Any, Literal, get_args  # Any: what an interpreter computes with: arrays, residues, forms

Number = Fraction | float
"""A constant: an exact rational, or plus or minus infinity as a float."""

Kind = Literal["elementwise", "reduction", "contraction", "leaf", "rename", "derived"]
Type = Literal["float", "int", "bool"]
Known = Literal["exactly", "exponential", "root", "extremum", "mask", "fn"]
"""How the finite fields know an operator: exactly, or by less than a theorem on polynomials asks (`verify.degree`)."""
Growth = Literal[
    "none", "first", "total", "product", "quotient", "squared", "inverse", "raised", "all", "scaled", "fresh"
]
"""The degree of a result in the variables, from its arguments': 0; the first's; that of a sum; of a product; of a
quotient; of x·x; of 1/x; of x ** c; of a product over all elements; of x times a fresh variable; of a fresh one."""

Zero = Literal["either", "all", "first", "never"]
"""When a result is 0: where one argument is, where all are, where the first is and no other, or nobody knows."""

Bits = tuple[int, int, int]
"""Some bits of an integer x as a number: ((x >> shift) & mask ^ sign) - sign; shift, mask and sign."""

INF = math.inf


@dataclass(frozen=True, slots=True)
class Order:
    """x < y, or x <= y where it is not strict; of y and x where it is turned."""

    strict: bool
    turned: bool


@dataclass(frozen=True, slots=True)
class Op:
    """One operator with all its meanings.

    ref: float64 reference on numpy arrays aligned for broadcasting; reductions take `axis=` (a tuple of positions).
    field: meaning over finite fields, written with the combinators of the interpreter `F`.
    canon: canonical form, written with the combinators of the algebra `A`.
    triton, torch: source templates; `{0}`, `{1}`... are the arguments.
    result: type of the result from the types of the arguments.
    flops: cost of one element: the instructions that it takes on sm_90 (Triton 3.6), but for those of rare arguments.
    domain: the interval that tests draw each argument from, so that the operator is defined and well conditioned.
    zero: when the result is 0, so that padding stays zero.
    degree: how the exponent of a common factor λ of the arguments carries over (see `ir.placement`):
        "same" all arguments alike, "add", "sub", "first" linear in the first argument alone, "none" must be degree 0.

    Required, by name, so that no reader of the table has to guess for a row that is silent:
    known: how the verifier's finite fields know it; what a verdict assumes follows from it.
    growth: the degree of the result, from which the bound of a verdict follows.
    commutes: f(x, y) = f(y, x); False for operators of one argument.
    takes_infinity: an infinity among the arguments is chosen or compared, never added or multiplied.

    What few operators have:
    symbol, called: how a spec writes it, with a symbol of Python and as a function.
    assignable: a value of a spec may have the function's name: specs did before there was the function.
    masks: positions of the arguments that are masks. numbers: of those that are numbers, no values.
    exact: the result for rational numbers, where that is rational and not too long.
    helper: text of the function in Triton that the template calls, where one line is not enough.
    integers: the arguments are integers, and nothing else.
    of_integers: the text in Triton for two integers, which gives an integer, where the other text is for floats.
        of_powers: the text where the second is the number 2 to the power of {3}, and {2} is less by 1.
    by_power: what it is of an integer x and 2 ** y for an integer y, as `emit(operator, *arguments)` makes it.
    simpler: an operator of which more is known, and a number, which make the same of an integer and this one.
    whole: between which numbers the result lies, a whole one, where the arguments that are no masks are whole numbers
        between these.
    bits: which bits of an integer the result is, where the second argument is 2 to the power of a number, and the
        first is these bits.
    nearly: the text in Triton that is some units of float32 off, which no smaller type shows, for a part of the time.
        nearly_flops: as `flops`, measured where functions of the hardware's slower unit take the time.
    by_few: the text in Triton where many elements of the first argument meet one of the second, which takes less time.
    order: the order that a comparison asks for. equal: whether one that asks for none holds where both are equal.
        of_masks: the operators that make of two masks, one after the other,
        what a comparison makes of numbers.
    linear: the coefficients of a sum of the arguments.
    shift: the second argument is a maximum that shifts an exponent, and cancels.
    by_number: what it is where the second argument is a number: the same of the number's inverse.
    identity: of a reduction: what masked-out lanes and empty accumulators hold. joins: the operator that makes the
        result of two parts' results.
    scan: of a reduction: the text in Triton for that up to each position; {1} is the axis, and {2} whether it is that
        from each position on. torch_scan: the same in torch, from the first position on.
    torch_axes: how many axes torch's function reduces at once.
    all_reduce: of such an operator: the name of torch.distributed for it, between GPUs.
    cast: the floating-point type that the argument is rounded to, and the result is of.
    jumps: between numbers that rounding tells apart: of an argument near such a place, every bit counts.
    unsigned: the result is the argument without its sign.
    """

    name: str
    kind: Kind
    arity: int
    doc: str
    ref: Callable[..., Any]
    field: Callable[..., Any]
    canon: Callable[..., Any]
    triton: str
    torch: str
    result: Literal["float", "same", "bool", "int", "branches"]
    flops: float = 1.0
    domain: tuple[tuple[float, float], ...] = ((-2.0, 2.0),)
    zero: Zero = "never"
    degree: Literal["same", "add", "sub", "first", "none"] = "none"
    _: KW_ONLY
    known: Known
    growth: Growth
    commutes: bool
    takes_infinity: bool
    symbol: str = ""
    called: bool = True
    assignable: bool = False
    masks: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    exact: Callable[..., Fraction | None] | None = None
    helper: str = ""
    integers: bool = False
    of_integers: str = ""
    of_powers: str = ""
    by_power: Callable[[Callable[..., Any], Any, Any], Any] | None = None
    simpler: Callable[[Fraction], tuple[str, Fraction] | None] | None = None
    whole: Callable[..., tuple[int, int] | None] | None = None
    bits: Callable[[int, Bits], Bits | None] | None = None
    nearly: str | None = None
    nearly_flops: float = 0.0
    by_few: str = ""
    order: Order | None = None
    equal: bool | None = None
    of_masks: tuple[str, ...] = ()
    linear: tuple[int, ...] = ()
    shift: bool = False
    by_number: str = ""
    identity: float | None = None
    joins: str = ""
    scan: str = ""
    torch_scan: str = ""
    torch_axes: Literal["all", "one"] = "all"
    all_reduce: str = ""
    cast: str = ""
    jumps: bool = False
    unsigned: bool = False

    @property
    def compares(self) -> bool:
        """A mask of which of two numbers is the larger, or whether they are equal."""
        return self.result == "bool" and self.arity == 2 and not self.masks

    @property
    def folds(self) -> bool:
        """A reduction of which nothing is pulled out, as factors are out of a sum."""
        return self.kind == "reduction" and self.joins != "add"

    @property
    def extremum(self) -> bool:
        """A reduction to the largest or the least."""
        return self.kind == "reduction" and self.identity in (INF, -INF)

    def neutral(self, whole: bool) -> float:
        """The identity of a reduction of floating-point numbers, or of int32."""
        assert self.identity is not None, f"{self.name} is no reduction"
        if not whole:
            return self.identity
        return int({INF: (1 << 31) - 1, -INF: -(1 << 31)}.get(self.identity, self.identity))

    def __post_init__(self) -> None:
        assert self.known in get_args(Known) and self.growth in get_args(Growth), f"row {self.name}"


def torch_reduced(row: Op, text: str, places: Sequence[int]) -> str:
    """The text in torch of a reduction over axes at these places."""
    at = tuple(places)
    if row.torch_axes == "all":
        return row.torch.format(text, at[0] if len(at) == 1 else at)
    for place in sorted(at, reverse=True):
        text = row.torch.format(text, place)
    return text


def result_type(op: Op, types: tuple[Type, ...]) -> Type:
    """The type of `op` applied to arguments of these types (numbers count as "int" when integral)."""
    if op.result == "bool":
        return "bool"
    if op.result == "int":
        return "int"
    if op.result == "branches":
        types = types[1:]
    if op.kind == "rename":
        return types[0]
    if op.result in ("same", "branches") and types and all(t == "int" for t in types):
        return "int"
    return "float"
