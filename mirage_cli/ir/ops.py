"""OPS: the one table of operators. A row says everything that mirage knows about an operator; `ir.op` has the columns.

A row is written in "tagless" style: its `field` and `canon` columns are functions of an interpreter (`F`, the pair of
finite fields of `verify.field`; `A`, the canonical forms of `algebra.canonical`), so the table depends on neither.
Every column of every row is run by `tests/ir/test_ops.py`; a new operator is one row and no other file.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any  # what an interpreter computes with: arrays, residues, forms

import numpy as np

from mirage_cli.ir.op import INF, Bits, Growth, Known, Number, Op, Order, Zero

MAX_BITS = 4096
"""Of an exact number's numerator or denominator; larger ones become float64."""


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _fn(name: str, at_zero: Fraction | None = None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The field and canonical meaning of an opaque function: known only as "this function of this argument". at_zero:
    what the field knows besides, its value where the argument is 0, or the first of several."""
    return (lambda F, *x: F.fn(name, *x, at_zero=at_zero)), (lambda A, *x: A.fn(name, *x))


def _at_zero(ref: Callable[..., Any]) -> Fraction | None:
    """The value of a function of one argument at 0, where it has one."""
    with np.errstate(all="ignore"):
        value = float(ref(np.float64(0.0)))
    return Fraction(value) if math.isfinite(value) else None


def bits(x: Fraction) -> int:
    return max(x.numerator.bit_length(), x.denominator.bit_length())


def _whole_power(x: Fraction, y: Fraction) -> Fraction | None:
    return x**y.numerator if y.denominator == 1 and bits(x) * abs(y) <= MAX_BITS else None


def _word(x: Any) -> Any:
    """Integers as those of 32 bits that have the same last bits."""
    return (np.asarray(x).astype(np.int64) + (1 << 31)) % (1 << 32) - (1 << 31)


def _shifted(by: Callable[[int, int], int], x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int] | None:
    """Between which numbers integers lie that are shifted by 0 to 31 bits."""
    if not 0 <= y[0] <= y[1] < 32:
        return None
    return min(by(x[0], n) for n in y), max(by(x[1], n) for n in y)


def _joined(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int] | None:
    """Between which numbers integers lie that are made of the bits of two without a sign."""
    return (0, (1 << max(x[1], y[1]).bit_length()) - 1) if x[0] >= 0 <= y[0] else None


def _last_bits(n: int, x: Bits) -> Bits | None:
    """The last n bits of these bits, without a sign. Beyond all of them are those of the sign, where there is one."""
    shift, mask, sign = x
    last = (1 << n) - 1
    return (shift, mask & last, 0) if last <= mask or not sign else None


def _first_bits(n: int, x: Bits) -> Bits | None:
    """These bits without the last n, if that leaves any."""
    shift, mask, sign = x
    return (shift + n, mask >> n, sign >> n) if n < mask.bit_length() else None


def _of_bits(of: Callable[[int, int], int], x: Fraction, y: Fraction) -> Fraction | None:
    """Of whole numbers. Raises ValueError for a shift by fewer bits than none."""
    known = x.denominator == y.denominator == 1 and max(abs(x), abs(y)) < 1 << 64 and y < MAX_BITS
    return Fraction(of(int(x), int(y))) if known else None


def exact_inverse(x: Number) -> float | None:
    """1 / x for a power of two, by which multiplying is dividing by x."""
    mantissa, exponent = math.frexp(x)
    return 1 / float(x) if abs(mantissa) == 0.5 and abs(exponent) < 100 else None


def _unary(
    name: str,
    doc: str,
    ref: Callable[..., Any],
    triton: str,
    torch: str,
    *,
    known: Known,
    growth: Growth,
    meaning: tuple[Callable[..., Any], Callable[..., Any]] | None = None,
    **rest: Any,
) -> Op:
    field, canon = meaning or _fn(name, _at_zero(ref))
    one = {"known": known, "growth": growth, "commutes": False, "takes_infinity": False}
    return Op(name, "elementwise", 1, doc, ref, field, canon, triton, torch, **one, **rest)


def _cast(dtype: str) -> Op:
    """The rounding to a type of 16 or 32 bits: of real numbers, the identity. How near a kernel comes to what eager
    PyTorch makes of it is judged in floating point."""
    return _unary(dtype, f"x rounded to {dtype}", lambda x: x * 1.0, f"tl.cast({{0}}, tl.{dtype})",
                  f"{{0}}.to(torch.{dtype})", zero="all", degree="first",
                  meaning=(lambda F, x: x, lambda A, x: x),
                  result="float", known="exactly", growth="first", assignable=True, cast=dtype)  # fmt: skip


def _to_float8(x: Any, digits: int, bias: int, most: float, beyond: float) -> Any:
    """The nearest number with so many bits behind the first, halves to even; beyond the largest, what is named."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):
        unit = np.exp2(np.maximum(np.frexp(x)[1] - 1, 1 - bias) - digits)
        near = np.round(x / unit) * unit
        return np.where(np.abs(near) > most, np.copysign(beyond, x), near)


def _cast_to_float8(dtype: str, digits: int, bias: int, most: float, beyond: float) -> Op:
    """The rounding to a type of 8 bits, a function of its own: few numbers are left, so where it stands matters."""
    clamped = f"torch.clamp({{0}}, -{most}, {most})" if beyond == most else "{0}"
    return _unary(dtype, f"x rounded to {dtype}", lambda x: _to_float8(x, digits, bias, most, beyond),
                  f"to_{dtype}({{0}})", f"{clamped}.to(torch.{dtype}).to({{0}}.dtype)", flops=8.0, zero="all",
                  result="float", known="fn", growth="fresh", jumps=True, assignable=True, cast=dtype)  # fmt: skip


def _compare(
    name: str,
    symbol: str,
    ref: Callable[..., Any],
    field: Callable[..., Any],
    canon: Callable[..., Any],
    *,
    order: Order | None = None,
    equal: bool | None = None,
    of_masks: tuple[str, ...] = (),
) -> Op:
    source = f"({{0}} {symbol} {{1}})"
    return Op(name, "elementwise", 2, f"x {symbol} y, a mask", ref, field, canon, source, source, "bool",
              domain=((-2, 2), (-2, 2)), known="mask", growth="fresh", commutes=order is None, takes_infinity=True,
              symbol=symbol, called=False, order=order, equal=equal, of_masks=of_masks)  # fmt: skip


def _bitwise(
    name: str, symbol: str, doc: str, ref: Callable[..., Any], of: Callable[[int, int], int], *, zero: Zero, **rest: Any
) -> Op:
    """Of each bit of two integers, whatever the other bits are."""
    source = f"({{0}} {symbol} {{1}})"
    return Op(name, "elementwise", 2, doc, lambda x, y: ref(_word(x), _word(y)),
              lambda F, x, y: F.symmetric(name, x, y, either=zero == "either"),
              lambda A, x, y: A.fn(name, *A.sort(x, y)),
              source, source, "same", domain=WORDS, zero=zero,
              known="fn", growth="fresh", commutes=True, takes_infinity=False, symbol=symbol, assignable=True,
              exact=lambda x, y: _of_bits(of, x, y), integers=True, whole=_joined, **rest)  # fmt: skip


PRODUCT = """
@triton.jit
def times(a, b):
    return a * b


@triton.jit
def product(x, axis: tl.constexpr):
    return tl.reduce(x, axis, times)
""".strip()
ROUND = """
@triton.jit
def round_to_even(x):
    low = tl.floor(x)
    up = (x - low > 0.5) | ((x - low == 0.5) & (tl.floor(low * 0.5) * 2.0 != low))
    return tl.where(up, low + 1.0, low)
""".strip()
LOG1P = """
@triton.jit
def log1p(x):
    # 1 + x = 2^k * (1 + m), 1 + m from 0.75 to 1.5, and m made of x: the sum has lost bits. power: k, as an exponent
    x = tl.cast(x, tl.float32)
    power = (tl.cast(1.0 + x, tl.int32, bitcast=True) - 0x3F400000) & -0x800000
    shifted = 0.25 * tl.cast(0x40800000 - power, tl.float32, bitcast=True) - 1.0
    m = tl.cast(tl.cast(x, tl.int32, bitcast=True) - power, tl.float32, bitcast=True) + shifted
    # least squares, off by 4e-8
    near = (5.559711158275604e-2 * m - 1.2114124745130539e-1) * m + 1.4904440939426422e-1
    near = ((near * m - 1.6788819432258606e-1) * m + 1.9982320070266724e-1) * m - 2.4996361136436462e-1
    near = ((near * m + 3.3333471417427063e-1) * m - 0.5) * (m * m) + m
    made = tl.cast(power, tl.float32) * 8.262958294867817e-8 + near
    other = tl.where(x < -1.0, float("nan"), tl.where(x == -1.0, float("-inf"), x))
    return tl.where((x > -1.0) & (x < float("inf")), made, other)
""".strip()
EXPM1 = """
@triton.jit
def expm1(x):
    # Taylor's polynomial, off by 2e-8 where it ends
    near = 1 / 120 + x * (1 / 720 + x * (1 / 5040))
    near = x * (1.0 + x * (0.5 + x * (1 / 6 + x * (1 / 24 + x * near))))
    return tl.where(tl.abs(x) < 0.35, near, tl.exp(x) - 1.0)
""".strip()
TANH = """
@triton.jit
def tanh(x):
    # near 0, where the exponentials cancel, the polynomial of Cephes (Moshier), off by 4e-8
    z = x * x
    near = ((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1
    near = x + x * z * (near * z - 3.33332819422e-1)
    return tl.where(tl.abs(x) < 0.625, near, 2.0 * tl.sigmoid(2.0 * x) - 1.0)


@triton.jit
def nearly_tanh(x):
    # off by 2e-6 of it: 1 - 2 / (exp(2 x) + 1), and near 0 a polynomial (least squares)
    z = x * x
    near = x * (z * (1.2877344e-1 * z - 3.3324617e-1) + 1.0)
    root = tl.rsqrt(tl.exp2(2.8853900817779268 * x) + 1.0)
    return tl.where(tl.abs(x) < 0.25, near, 1.0 - 2.0 * (root * root))
""".strip()
ERFC = """
@triton.jit
def erfc(x):
    # Cephes (Moshier): beyond 1, exp(-x * x) times a polynomial of 1 / x
    size = tl.minimum(tl.abs(x), 30.0, propagate_nan=tl.PropagateNan.ALL)
    inverse = tl.div_rn(1.0, tl.maximum(size, 1.0))
    z = inverse * inverse
    near = ((2.326819970068386e-2 * z - 1.387039388740657e-1) * z + 3.687424674597105e-1) * z - 5.824733027278666e-1
    near = ((near * z + 6.210004621745983e-1) * z - 4.944515323274145e-1) * z + 3.404879937665872e-1
    near = (near * z - 2.741127028184656e-1) * z + 5.638259427386472e-1
    far = ((1.297719955372516e1 - 1.047766399936249e1 * z) * z - 7.495518717768503) * z + 2.921019019210786
    far = ((far * z - 1.015265279202700) * z + 4.218463358204948e-1) * z - 2.820767439740514e-1
    far = far * z + 5.641895067754075e-1
    # exp of the square of the first bits of x, which is exact, less a multiple of log(2); and of what these bits leave
    head = tl.cast(tl.cast(tl.cast(size, tl.float32), tl.int32, bitcast=True) & -4096, tl.float32, bitcast=True)
    twos = tl.floor(head * head * 1.4426950408889634 + 0.5)
    rest = (head - size) * (head + size) - ((head * head - twos * 0.693359375) + twos * 2.12194440e-4)
    tail = tl.exp2(-twos) * (tl.exp(rest) * (inverse * tl.where(size < 2.0, near, far)))
    return tl.where(tl.abs(x) < 1.0, 1.0 - tl.erf(x), tl.where(x < 0.0, 2.0 - tail, tail))
""".strip()
ATAN = """
@triton.jit
def atan(x):
    # Cephes (Moshier): the angle less 0, 45 or 90 degrees, and a polynomial
    size = tl.abs(x)
    steep, middle = size > 2.414213562373095, size > 0.4142135623730950
    start = tl.where(steep, 1.5707963267948966, tl.where(middle, 0.7853981633974483, 0.0))
    rest = tl.where(middle, tl.div_rn(size - 1.0, size + 1.0), size)
    rest = tl.where(steep, -tl.div_rn(1.0, size), rest)
    z = rest * rest
    near = ((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1
    angle = start + (near * z * rest + rest)
    return tl.where(x < 0.0, -angle, angle)
""".strip()
SIGNBIT = """
@triton.jit
def signbit(x):
    return tl.cast(tl.cast(x, tl.float32), tl.int32, bitcast=True) < 0
""".strip()
POWER = """
@triton.jit
def power(x, y):
    # in float64, as the error of a logarithm is multiplied by the exponent
    x, y = tl.broadcast(tl.cast(x, tl.float32), tl.cast(y, tl.float32))
    size = tl.exp2(tl.cast(y, tl.float64) * tl.log2(tl.abs(tl.cast(x, tl.float64))))
    size = tl.where((tl.abs(x) == 1.0) & (y == y), 1.0, tl.cast(size, tl.float32))
    odd = tl.floor(y * 0.5) * 2.0 != y
    negative = tl.where(tl.floor(y) != y, float("nan"), tl.where(odd, -size, size))
    return tl.where((y == 0.0) | (x == 1.0), 1.0, tl.where(x < 0.0, negative, size))
""".strip()
REMAINDER = """
@triton.jit
def remainder(x, y):
    # in float64, where the quotient of float32 numbers loses nothing up to 2 ** 30 and the rest nothing up to 2 ** 53
    a, b = tl.broadcast(tl.cast(x, tl.float64), tl.cast(y, tl.float64))
    rest = tl.fma(-tl.floor(a / b), b, a)
    rest = tl.where((rest != 0.0) & ((rest < 0.0) != (b < 0.0)), rest + b, rest)
    far = tl.where((a != 0.0) & ((a < 0.0) != (b < 0.0)), b, a)
    infinite = (tl.abs(b) == float("inf")) & (tl.abs(a) < float("inf"))
    return tl.cast(tl.where(infinite, far, rest), tl.float32)


@triton.jit
def whole_remainder(x, y):
    rest = x % y  # has the sign of x
    return tl.where((rest != 0) & ((rest ^ y) < 0), rest + y, rest)
""".strip()
FLOOR_DIVIDE = """
@triton.jit
def floor_divide(x, y):
    # in float64, where the quotient of float32 numbers is on the right side of a whole number up to 2 ** 30
    a, b = tl.broadcast(tl.cast(x, tl.float64), tl.cast(y, tl.float64))
    low = tl.where((a != 0.0) & ((a < 0.0) != (b < 0.0)) & (tl.abs(b) == float("inf")), -1.0, tl.floor(a / b))
    low = tl.where(tl.abs(a) < float("inf"), low, float("nan"))
    return tl.cast(tl.where(b == 0.0, a / b, low), tl.float32)


@triton.jit
def whole_quotient(x, y):
    near = x // y  # is rounded to 0
    rest = x - near * y
    return tl.where((rest != 0) & ((rest ^ y) < 0), near - 1, near)
""".strip()
SHIFT_RIGHT = """
@triton.jit
def shift_right(x, y):
    return x >> tl.where((y < 0) | (y > 31), 31, y)
""".strip()
SHIFT_LEFT = """
@triton.jit
def shift_left(x, y):
    return tl.where((y < 0) | (y > 31), 0, x << (y & 31))
""".strip()
HALF = Fraction(1, 2)
LN2 = Fraction(math.log(2))
TWO_ANY = ((-2.0, 2.0), (-2.0, 2.0))
WORDS = ((-(2.0**31), 2.0**31 - 1), (0.0, 31.0))

_ROWS = [
    # -- arithmetic
    Op("add", "elementwise", 2, "x + y", np.add, lambda F, x, y: F.add(x, y), lambda A, x, y: A.add(x, y),
       "({0} + {1})", "({0} + {1})", "same", domain=TWO_ANY, zero="all", degree="same",
       known="exactly", growth="total", commutes=True, takes_infinity=False,
       symbol="+", called=False, exact=operator.add, linear=(1, 1), all_reduce="SUM",
       whole=lambda x, y: (x[0] + y[0], x[1] + y[1])),
    Op("sub", "elementwise", 2, "x - y", np.subtract, lambda F, x, y: F.sub(x, y),
       lambda A, x, y: A.add(x, A.scale(y, Fraction(-1))),
       "({0} - {1})", "({0} - {1})", "same", domain=TWO_ANY, zero="all", degree="same",
       known="exactly", growth="total", commutes=False, takes_infinity=False,
       symbol="-", called=False, exact=operator.sub, linear=(1, -1),
       whole=lambda x, y: (x[0] - y[1], x[1] - y[0])),
    Op("mul", "elementwise", 2, "x * y", np.multiply, lambda F, x, y: F.mul(x, y), lambda A, x, y: A.mul(x, y),
       "({0} * {1})", "({0} * {1})", "same", domain=TWO_ANY, zero="either", degree="add",
       known="exactly", growth="product", commutes=True, takes_infinity=False,
       symbol="*", called=False, exact=operator.mul, all_reduce="PRODUCT",
       whole=lambda x, y: (min(a * b for a in x for b in y), max(a * b for a in x for b in y))),
    Op("div", "elementwise", 2, "x / y", np.divide, lambda F, x, y: F.div(x, y),
       lambda A, x, y: A.mul(x, A.pow(y, Fraction(-1))),
       "tl.div_rn({0}, {1})", "({0} / {1})", "float", flops=17.0, domain=((-2, 2), (0.5, 2)), zero="first",
       degree="sub", known="exactly", growth="quotient", commutes=False, takes_infinity=False,
       symbol="/", called=False, exact=operator.truediv, nearly="({0} / {1})", by_few="quotient({0}, {1})",
       by_number="mul"),
    Op("pow", "elementwise", 2, "x ** c, c a number", lambda x, c: np.power(x, float(c)),
       lambda F, x, c: F.pow(x, c), lambda A, x, c: A.pow(x, c),
       "pow({0}, {1})", "torch.pow({0}, {1})", "float", flops=29.0, domain=((0.5, 2), (3, 3)),
       known="exactly", growth="raised", commutes=False, takes_infinity=False,
       symbol="**", called=False, numbers=(1,), exact=_whole_power),
    _unary("neg", "-x", np.negative, "(-{0})", "(-{0})", result="same", zero="all", degree="first",
           meaning=(lambda F, x: F.mul(x, F.const(Fraction(-1))), lambda A, x: A.scale(x, Fraction(-1))),
           known="exactly", growth="first", symbol="-", exact=operator.neg, linear=(-1,)),
    _unary("reciprocal", "1 / x", lambda x: 1 / x, "tl.div_rn(1.0, {0})", "torch.reciprocal({0})", flops=17.0,
           domain=((0.5, 2),), meaning=(lambda F, x: F.pow(x, Fraction(-1)), lambda A, x: A.pow(x, Fraction(-1))),
           result="float", known="exactly", growth="inverse", nearly="(1.0 / {0})"),
    _unary("square", "x * x", np.square, "({0} * {0})", "torch.square({0})", result="same", zero="all",
           meaning=(lambda F, x: F.mul(x, x), lambda A, x: A.pow(x, Fraction(2))),
           known="exactly", growth="squared"),
    _unary("sqrt", "square root", np.sqrt, "tl.sqrt_rn({0})", "torch.sqrt({0})", flops=13.0, domain=((0, 4),),
           zero="all", meaning=(lambda F, x: F.pow(x, HALF), lambda A, x: A.pow(x, HALF)),
           result="float", known="root", growth="fresh", nearly="tl.sqrt({0})"),
    _unary("rsqrt", "1 / sqrt(x)", lambda x: 1 / np.sqrt(x), "tl.rsqrt({0})", "torch.rsqrt({0})", flops=4.0,
           domain=((0.5, 2),), meaning=(lambda F, x: F.pow(x, -HALF), lambda A, x: A.pow(x, -HALF)),
           result="float", known="root", growth="fresh"),
    # -- exponentials
    _unary("exp", "e ** x", np.exp, "tl.exp({0})", "torch.exp({0})", flops=4.0,
           meaning=(lambda F, x: F.exp(x), lambda A, x: A.exp(x)),
           result="float", known="exponential", growth="fresh"),
    # The shift of a softmax: exp(x - m), where an infinite m counts as no shift: -inf is that of a row that is masked
    # out whole, inf of one that has overflowed, whose logsumexp is inf and no NaN, as in PyTorch.
    Op("exp_sub", "elementwise", 2, "exp(x - m), without NaN where both are the same infinity",
       lambda x, m: np.exp(x - np.where(np.isinf(m), 0.0, m)),
       lambda F, x, m: F.exp(F.sub(x, F.finite(m))), lambda A, x, m: A.exp(A.add(x, A.scale(m, Fraction(-1)))),
       'tl.exp({0} - tl.where(tl.abs({1}) == float("inf"), 0.0, {1}))',
       "torch.exp({0} - torch.where(torch.isinf({1}), 0.0, {1}))", "float", flops=6.0, domain=TWO_ANY,
       known="exponential", growth="fresh", commutes=False, takes_infinity=False, called=False, shift=True),
    _unary("exp2", "2 ** x", np.exp2, "tl.exp2({0})", "torch.exp2({0})", flops=3.0,
           meaning=(lambda F, x: F.exp(F.mul(x, F.const(LN2))), lambda A, x: A.exp(A.scale(x, LN2))),
           result="float", known="exponential", growth="fresh"),
    _unary("log", "natural logarithm", np.log, "tl.log({0})", "torch.log({0})", flops=25.0, domain=((0.5, 4),),
           meaning=(lambda F, x: F.log(x), lambda A, x: A.log(x)),
           result="float", known="exponential", growth="fresh"),
    # -- functions that the algebra treats as opaque
    _unary("abs", "absolute value", np.abs, "tl.abs({0})", "torch.abs({0})", result="same", zero="all",
           known="fn", growth="fresh", whole=lambda x: (max(x[0], -x[1], 0), max(-x[0], x[1])), unsigned=True),
    _unary("sigmoid", "1 / (1 + exp(-x))", lambda x: 1 / (1 + np.exp(-x)), "tl.sigmoid({0})", "torch.sigmoid({0})",
           flops=12.0,
           result="float", known="fn", growth="fresh"),
    _unary("silu", "x * sigmoid(x)", lambda x: x / (1 + np.exp(-x)), "({0} * tl.sigmoid({0}))",
           "torch.nn.functional.silu({0})", flops=13.0, zero="all",
           meaning=(lambda F, x: F.mul(x, F.fn("sigmoid", x)), lambda A, x: A.mul(x, A.fn("sigmoid", x))),
           result="float", known="fn", growth="scaled"),
    _unary("relu", "max(x, 0)", lambda x: np.maximum(x, 0),
           "tl.maximum({0}, 0.0, propagate_nan=tl.PropagateNan.ALL)", "torch.relu({0})", zero="all",
           meaning=(lambda F, x: F.extremum(x, F.const(Fraction(0)), largest=True),
                    lambda A, x: A.fn("maximum", *A.sort(x, A.const(Fraction(0))))),
           result="float", known="extremum", growth="fresh"),
    _unary("gelu", "x * Φ(x), the erf form", lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
           "(0.5 * {0} * (1.0 + tl.erf({0} * 0.7071067811865476)))", "torch.nn.functional.gelu({0})", flops=32.0,
           zero="all",
           result="float", known="fn", growth="fresh"),
    _unary("tanh", "hyperbolic tangent", np.tanh, "tanh({0})", "torch.tanh({0})", flops=31.0, zero="all",
           result="float", known="fn", growth="fresh", helper=TANH, nearly="nearly_tanh({0})", nearly_flops=22.0),
    Op("maximum", "elementwise", 2, "the larger of x and y", np.maximum,
       lambda F, x, y: F.extremum(x, y, largest=True), lambda A, x, y: A.fn("maximum", *A.sort(x, y)),
       "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)", "torch.maximum({0}, {1})", "same",
       domain=TWO_ANY, zero="all", known="extremum", growth="fresh", commutes=True, takes_infinity=True,
       all_reduce="MAX",
       whole=lambda x, y: (max(x[0], y[0]), max(x[1], y[1]))),
    Op("minimum", "elementwise", 2, "the smaller of x and y", np.minimum,
       lambda F, x, y: F.extremum(x, y, largest=False), lambda A, x, y: A.fn("minimum", *A.sort(x, y)),
       "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)", "torch.minimum({0}, {1})", "same",
       domain=TWO_ANY, zero="all", known="extremum", growth="fresh", commutes=True, takes_infinity=True,
       all_reduce="MIN",
       whole=lambda x, y: (min(x[0], y[0]), min(x[1], y[1]))),
    _unary("erf", "the error function", _erf, "tl.erf({0})", "torch.erf({0})", flops=28.0, zero="all", result="float",
           known="fn", growth="fresh", assignable=True),
    _unary("erfc", "1 - erf(x), exact where it is small", lambda x: np.vectorize(math.erfc, otypes=[np.float64])(x),
           "erfc({0})", "torch.erfc({0})", flops=110.0, result="float",
           known="fn", growth="fresh", assignable=True, helper=ERFC),
    _unary("sin", "sine", np.sin, "tl.sin({0})", "torch.sin({0})", flops=25.0, zero="all", result="float",
           known="fn", growth="fresh", assignable=True),
    _unary("cos", "cosine", np.cos, "tl.cos({0})", "torch.cos({0})", flops=25.0, result="float",
           known="fn", growth="fresh", assignable=True),
    _unary("atan", "arc tangent", np.arctan, "atan({0})", "torch.atan({0})", flops=45.0, zero="all", result="float",
           known="fn", growth="fresh", assignable=True, helper=ATAN),
    # Triton's floor and ceil take numbers below 1e-38 for 0.
    _unary("floor", "the largest whole number that is not above x", lambda x: np.floor(x * 1.0),
           "tl.where(tl.floor({0}) > {0}, -1.0, tl.floor({0}))", "torch.floor({0})", flops=5.0, zero="all",
           result="float", known="fn", growth="fresh", jumps=True, assignable=True),
    _unary("ceil", "the least whole number that is not below x", lambda x: np.ceil(x * 1.0),
           "tl.where(tl.ceil({0}) < {0}, 1.0, tl.ceil({0}))", "torch.ceil({0})", flops=4.0, zero="all",
           result="float", known="fn", growth="fresh", jumps=True, assignable=True),
    _unary("round", "the nearest whole number, halves to even", lambda x: np.round(x * 1.0), "round_to_even({0})",
           "torch.round({0})", flops=10.0, zero="all", result="float", known="fn", growth="fresh", jumps=True,
           assignable=True, helper=ROUND),
    _unary("integer", "x without its fraction, an integer", lambda x: np.trunc(x * 1.0).astype(np.int64),
           "tl.cast({0}, tl.int32)", "{0}.long()", flops=2.0, zero="all",
           meaning=(lambda F, x: F.integer(x), lambda A, x: A.fn("integer", x)),
           result="int", known="fn", growth="fresh", jumps=True, exact=lambda x: Fraction(int(x)), assignable=True),
    _unary("sign", "1, -1, or 0 for 0 and NaN", lambda x: (x > 0) * 1.0 - (x < 0),
           "tl.where({0} > 0.0, 1.0, tl.where({0} < 0.0, -1.0, 0.0))", "torch.sign({0})", flops=6.0, zero="all",
           result="float", known="fn", growth="fresh", jumps=True, assignable=True),
    _unary("log1p", "log(1 + x), exact near 0", np.log1p, "log1p({0})", "torch.log1p({0})", flops=26.0,
           domain=((-0.5, 4),), zero="all", result="float", known="fn", growth="fresh", assignable=True, helper=LOG1P),
    _unary("expm1", "exp(x) - 1, exact near 0", np.expm1, "expm1({0})", "torch.expm1({0})", flops=20.0, zero="all",
           result="float", known="fn", growth="fresh", assignable=True, helper=EXPM1),
    _unary("log2", "logarithm to base 2", np.log2, "tl.log2({0})", "torch.log2({0})", flops=27.0, domain=((0.5, 4),),
           meaning=(lambda F, x: F.mul(F.log(x), F.const(1 / LN2)), lambda A, x: A.scale(A.log(x), 1 / LN2)),
           result="float", known="exponential", growth="fresh", assignable=True),
    *map(_cast, ("float16", "bfloat16", "float32")),
    _cast_to_float8("float8_e4m3fn", 3, 7, 448.0, 448.0),
    _cast_to_float8("float8_e5m2", 2, 15, 57344.0, INF),
    Op("power", "elementwise", 2, "x ** y", lambda x, y: np.power(x * 1.0, y), *_fn("power"),
       "power({0}, {1})", "({0} ** {1})", "float", flops=140.0, domain=((0.5, 2), (-2, 2)),
       known="fn", growth="fresh", assignable=True, commutes=False, takes_infinity=False, helper=POWER),
    Op("remainder", "elementwise", 2, "x - floor(x / y) · y, with the sign of y", np.remainder,
       *_fn("remainder", Fraction(0)), "remainder({0}, {1})", "({0} % {1})", "same", flops=50.0,
       domain=((-2, 2), (0.5, 2)), zero="first", degree="same",
       known="fn", growth="fresh", jumps=True, assignable=True, commutes=False, takes_infinity=False, symbol="%",
       exact=operator.mod, helper=REMAINDER, of_integers="whole_remainder({0}, {1})",
       by_power=lambda emit, x, y: emit("bit_and", x, emit("sub", emit("shift_left", Fraction(1), y), Fraction(1))),
       of_powers="({0} & {2})", whole=lambda x, y: (0, y[1] - 1) if y[0] > 0 else None,
       bits=_last_bits),
    Op("floor_divide", "elementwise", 2, "x / y, rounded down", np.floor_divide,
       *_fn("floor_divide", Fraction(0)), "floor_divide({0}, {1})", "({0} // {1})", "same", flops=50.0,
       domain=((-2, 2), (0.5, 2)), zero="first",
       known="fn", growth="fresh", jumps=True, assignable=True, commutes=False, takes_infinity=False, symbol="//",
       exact=lambda x, y: Fraction(x // y), helper=FLOOR_DIVIDE,
       of_integers="whole_quotient({0}, {1})", of_powers="({0} >> {3})",
       by_power=lambda emit, x, y: emit("shift_right", x, y),
       whole=lambda x, y: (x[0] // y[0], x[1] // y[0]) if y[0] == y[1] > 0 else None,
       bits=_first_bits),
    # -- bits of integers
    Op("shift_right", "elementwise", 2, "x without its last y bits, those beyond 31 like bit 31",
       lambda x, y: np.right_shift(_word(x), np.where((y < 0) | (y > 31), 31, _word(y))),
       *_fn("shift_right", Fraction(0)), "shift_right({0}, {1})", "({0} >> {1})", "same",
       flops=3.0, domain=WORDS, zero="all",
       known="fn", growth="fresh", assignable=True, commutes=False, takes_infinity=False, symbol=">>",
       exact=lambda x, y: _of_bits(operator.rshift, x, y), helper=SHIFT_RIGHT, integers=True,
       simpler=lambda n: ("floor_divide", Fraction(1 << int(n))) if n < 31 else None,
       whole=lambda x, y: _shifted(operator.rshift, x, y)),
    Op("shift_left", "elementwise", 2, "x behind y more bits that are 0, of which 32 are kept",
       lambda x, y: np.where((y < 0) | (y > 31), 0, _word(np.left_shift(_word(x), _word(y) & 31))),
       *_fn("shift_left", Fraction(0)), "shift_left({0}, {1})", "({0} << {1}).int()",
       "same", flops=3.0, domain=WORDS, zero="all",
       known="fn", growth="fresh", assignable=True, commutes=False, takes_infinity=False, symbol="<<",
       exact=lambda x, y: _of_bits(operator.lshift, x, y), helper=SHIFT_LEFT, integers=True,
       whole=lambda x, y: _shifted(operator.lshift, x, y)),
    _bitwise("bit_and", "&", "the bits that both integers have", np.bitwise_and, operator.and_, zero="either",
             simpler=lambda n: ("remainder", n + 1) if n < 1 << 30 and power_of_two(n + 1) is not None else None),
    _bitwise("bit_or", "|", "the bits that either integer has", np.bitwise_or, operator.or_, zero="all"),
    _bitwise("bit_xor", "^", "the bits that one integer alone has", np.bitwise_xor, operator.xor, zero="all"),
    # -- masks
    _compare("lt", "<", np.less, lambda F, x, y: F.less(x, y), lambda A, x, y: A.fn("lt", x, y),
             order=Order(strict=True, turned=False)),
    _compare("le", "<=", np.less_equal, lambda F, x, y: ~F.less(y, x), lambda A, x, y: A.fn("le", x, y),
             order=Order(strict=False, turned=False)),
    _compare("gt", ">", np.greater, lambda F, x, y: F.less(y, x), lambda A, x, y: A.fn("lt", y, x),
             order=Order(strict=True, turned=True)),
    _compare("ge", ">=", np.greater_equal, lambda F, x, y: ~F.less(x, y), lambda A, x, y: A.fn("le", y, x),
             order=Order(strict=False, turned=True)),
    _compare("eq", "==", np.equal, lambda F, x, y: F.equal(x, y), lambda A, x, y: A.fn("eq", *A.sort(x, y)),
             equal=True, of_masks=("xor", "not")),
    _compare("ne", "!=", np.not_equal, lambda F, x, y: ~F.equal(x, y), lambda A, x, y: A.fn("ne", *A.sort(x, y)),
             equal=False, of_masks=("xor",)),
    Op("and", "elementwise", 2, "both masks", np.logical_and, lambda F, x, y: x & y,
       lambda A, x, y: A.fn("and", *A.sort(x, y)), "({0} & {1})", "({0} & {1})", "bool", domain=TWO_ANY, zero="either",
       known="exactly", growth="fresh", commutes=True, takes_infinity=False,
       symbol="and", called=False, masks=(0, 1)),
    Op("or", "elementwise", 2, "either mask", np.logical_or, lambda F, x, y: x | y,
       lambda A, x, y: A.fn("or", *A.sort(x, y)), "({0} | {1})", "({0} | {1})", "bool", domain=TWO_ANY, zero="all",
       known="exactly", growth="fresh", commutes=True, takes_infinity=False,
       symbol="or", called=False, masks=(0, 1)),
    _unary("isnan", "x is no number, a mask", np.isnan, "({0} != {0})", "torch.isnan({0})", result="bool",
           meaning=(lambda F, x: F.mask("isnan", x), lambda A, x: A.fn("isnan", x)), known="mask", growth="fresh",
           assignable=True),
    _unary("signbit", "x is below 0, or is -0, a mask", np.signbit, "signbit({0})", "torch.signbit({0})",
           flops=2.0, result="bool", meaning=(lambda F, x: F.mask("signbit", x), lambda A, x: A.fn("signbit", x)),
           known="mask", growth="fresh", jumps=True, assignable=True, helper=SIGNBIT),
    Op("xor", "elementwise", 2, "one mask and not the other", np.logical_xor, lambda F, x, y: x ^ y,
       lambda A, x, y: A.fn("xor", *A.sort(x, y)), "({0} != {1})", "({0} ^ {1})", "bool", domain=TWO_ANY, zero="all",
       known="exactly", growth="fresh", assignable=True, commutes=True, takes_infinity=False, masks=(0, 1)),
    _unary("not", "where the mask does not hold", np.logical_not, "(~{0})", "(~{0})", result="bool",
           meaning=(lambda F, x: ~x, lambda A, x: A.fn("not", x)), known="exactly", growth="fresh",
           symbol="not", called=False, masks=(0,)),
    Op("where", "elementwise", 3, "x where the mask holds, else y", np.where, lambda F, c, x, y: F.where(c, x, y),
       lambda A, c, x, y: A.fn("where", c, x, y), "tl.where({0}, {1}, {2})", "torch.where({0}, {1}, {2})", "branches",
       domain=((-2, 2), (-2, 2), (-2, 2)),
       known="exactly", growth="total", commutes=False, takes_infinity=True, masks=(0,),
       whole=lambda x, y: (min(x[0], y[0]), max(x[1], y[1]))),
    # -- leaves
    Op("index", "leaf", 0, "the position along an axis", lambda n: np.arange(n), lambda F, a: F.index(a),
       lambda A, a: A.index(a), "{0}", "torch.arange({0})", "int", flops=0.0,
       known="exactly", growth="none", commutes=False, takes_infinity=False),
    Op("size", "leaf", 0, "the size of an axis, as a number", lambda n: np.float64(n), lambda F, a: F.size(a),
       lambda A, a: A.size(a), "{0}", "{0}", "float", flops=0.0,
       known="exactly", growth="none", commutes=False, takes_infinity=False, called=False),
    Op("rename", "rename", 1, "the same data with other axis names", lambda x: x, lambda F, x: x,
       lambda A, x, names: A.rename(x, names), "{0}", "{0}", "same", flops=0.0, degree="first",
       known="exactly", growth="first", commutes=False, takes_infinity=False),
    # -- reductions
    Op("sum", "reduction", 1, "sum over axes", np.sum, lambda F, x, axes: F.sum(x, axes),
       lambda A, x, axes: A.sum(x, axes), "tl.sum({0}, axis={1})", "torch.sum({0}, dim={1})", "same", degree="first",
       known="exactly", growth="first", commutes=False, takes_infinity=False, identity=0.0, joins="add",
       scan="tl.cumsum({0}, axis={1}, reverse={2})", torch_scan="torch.cumsum({0}, dim={1})"),
    Op("max", "reduction", 1, "maximum over axes", np.max, lambda F, x, axes: F.reduce_extremum(x, axes, largest=True),
       lambda A, x, axes: A.folded("max", x, axes), "largest({0}, {1})", "torch.amax({0}, dim={1})", "same",
       known="extremum", growth="all", commutes=False, takes_infinity=False,
       identity=-INF, joins="maximum", scan="running_largest({0}, {1}, {2})",
       torch_scan="torch.cummax({0}, dim={1}).values"),
    Op("min", "reduction", 1, "minimum over axes", np.min, lambda F, x, axes: F.reduce_extremum(x, axes, largest=False),
       lambda A, x, axes: A.folded("min", x, axes), "least({0}, {1})", "torch.amin({0}, dim={1})", "same",
       known="extremum", growth="all", commutes=False, takes_infinity=False,
       identity=INF, joins="minimum", scan="running_least({0}, {1}, {2})",
       torch_scan="torch.cummin({0}, dim={1}).values"),
    Op("prod", "reduction", 1, "product over axes", lambda x, axis: np.prod(x * 1.0, axis=axis),
       lambda F, x, axes: F.prod(x, axes), lambda A, x, axes: A.folded("prod", x, axes),
       "product({0}, {1})", "torch.prod({0}, dim={1})", "float",
       domain=((0.5, 1.5),), known="exactly", growth="all", commutes=False, takes_infinity=False, assignable=True,
       helper=PRODUCT, identity=1.0, joins="mul", scan="tl.cumprod({0}, axis={1}, reverse={2})",
       torch_scan="torch.cumprod({0}, dim={1})", torch_axes="one"),
    Op("dot", "contraction", 2, "multiply, then sum over axes", lambda x, y, axis: np.sum(x * y, axis=axis),
       lambda F, x, y, axes: F.dot(x, y, axes), lambda A, x, y, axes: A.sum(A.mul(x, y), axes),
       "tl.dot({0}, {1})", "torch.matmul({0}, {1})", "float", flops=2.0, domain=TWO_ANY, zero="either", degree="add",
       known="exactly", growth="product", commutes=True, takes_infinity=False, identity=0.0, joins="add"),
]  # fmt: skip

OPS: Mapping[str, Op] = {row.name: row for row in _ROWS}
"""Every primitive operator by name. Derived operators (softmax, ...) are rows of `ir.derived.DERIVED`."""

FOLDS = frozenset(name for name, row in OPS.items() if row.folds)
"""The reductions that are atoms of the algebra, whatever they are of."""


def power_of_two(x: object) -> int | None:
    """The n of 2**n, of a number of a program."""
    if not isinstance(x, Fraction) or x.denominator != 1 or x <= 0 or x.numerator & (x.numerator - 1):
        return None
    return x.numerator.bit_length() - 1


def flops_of(name: str, args: Sequence[object], nearly: bool = False) -> float:
    """`Op.flops` where some of the arguments may be numbers: a quotient by a power of two is a product with its
    inverse, whole numbers are shifted and masked, and powers are products and roots. nearly: of `Op.nearly`."""
    row = OPS[name]
    if nearly and row.nearly_flops:
        return row.nearly_flops
    number = args[1] if len(args) > 1 and isinstance(args[1], Fraction) else None
    if number is None:
        return row.flops
    if row.growth == "raised":
        return _power_flops(number)
    if row.by_number and exact_inverse(number) is not None:
        return OPS[row.by_number].flops
    return 1.0 if row.of_powers and power_of_two(number) is not None else row.flops


def _power_flops(exponent: Fraction) -> float:
    if exponent == Fraction(-1, 2):
        return OPS["rsqrt"].flops
    if exponent < 0:
        return OPS["reciprocal"].flops + _power_flops(-exponent)
    if exponent.denominator > 2 or exponent > 16:
        return OPS["pow"].flops
    root = OPS["sqrt"].flops if exponent.denominator == 2 else 0.0
    return root + max(0.0, float(exponent // 1) - (root == 0.0))
