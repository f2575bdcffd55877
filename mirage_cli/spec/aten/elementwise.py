"""ATen's elementwise operators. Those of `OPS` have their rows from there."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.ir.op import Op
from mirage_cli.ir.ops import OPS, power_of_two
from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Trace, Unsupported
from mirage_cli.spec.aten.magnitudes import is_mask, is_whole
from mirage_cli.spec.aten.operands import (
    both,
    chosen,
    conjunction,
    disjunction,
    mask_of,
    negation,
    number_of,
    trailing,
    truncated,
)
from mirage_cli.spec.aten.row import Handler, Row, Rows

aten = Rows()
CALLED: Mapping[str, str] = {
    "logical_and": "and", "logical_or": "or", "logical_not": "not", "logical_xor": "xor",
}  # fmt: skip
"""ATen's names of operators that have others here."""
SYMBOLS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "%": operator.mod, "//": operator.floordiv, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "and": conjunction, "or": disjunction, "not": negation,
}  # fmt: skip


def handler_of(name: str, op: Op) -> Handler:
    """Of an elementwise row of `OPS`. name: ATen's."""
    function: Callable[..., Any] = getattr(g, op.name) if op.called else SYMBOLS[op.symbol]
    if op.arity == 1 and op.symbol == "-":
        function = operator.neg

    def handler(*args: Any) -> Array:
        if len(args) != op.arity:
            raise Unsupported(f"aten.{name} with {len(args)} arguments")
        given = [mask_of(x) if i in op.masks else number_of(x) for i, x in enumerate(args)]
        return p.elementwise(function, *given, mask=op.result == "bool")

    return handler


OWN = [x.name for x in OPS.values() if x.kind == "elementwise" and (x.called or x.symbol) and not x.cast]
NAMES = dict(zip(OWN, OWN, strict=True)) | CALLED
aten.update({f"aten.{name}": Row(handler_of(name, OPS[ours])) for name, ours in NAMES.items()})


@aten("aten.add")
def _add(x: Any, y: Any, alpha: float = 1) -> Array:
    return both(operator.add, x, y if alpha == 1 else both(operator.mul, y, alpha))


@aten("aten.sub")
def _sub(x: Any, y: Any, alpha: float = 1) -> Array:
    return both(operator.sub, x, y if alpha == 1 else both(operator.mul, y, alpha))


@aten("aten.rsub")
def _rsub(x: Any, y: Any, alpha: float = 1) -> Array:
    return _sub(y, x, alpha)


@aten("aten.div", "aten.true_divide", with_node=True)
def _div(_t: Trace, node: Any, x: Any, y: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "trunc":
        return both(whole_quotient if is_whole(node) else lambda v, w: truncated(v / w), x, y)
    return both(operator.floordiv if rounding_mode else operator.truediv, x, y)


def whole_quotient(x: Any, y: Any) -> Any:
    """x / y of whole numbers, rounded towards 0."""
    size = g.abs(x) // (abs(y) if isinstance(y, int) else g.abs(y))
    return g.where(x * y < 0, -size, size)


@aten("aten.pow", with_node=True)
def _pow(_t: Trace, node: Any, x: Any, y: Any) -> Array:
    n = power_of_two(Fraction(x)) if isinstance(x, int) else None
    if n is not None and is_whole(node):
        return both(lambda v: g.shift_left(1, v * n), y)
    if isinstance(y, Array) or not isinstance(x, Array):
        return both(g.power, x, y)
    if y == 0:
        return x.trace.full(x.shape, 1)
    special = {2: g.square, 0.5: g.sqrt, -0.5: g.rsqrt, -1: g.reciprocal}
    return both(special[y], x) if y in special else both(lambda v: v**y, x)


FAR = 1e9
"""Beyond it, x² + 1 is x² in float64 too."""


def hypotenuse(x: Any, y: Any) -> Any:
    """√(x² + y²), where no square overflows: of the larger times √(1 + the quotient's square). With an infinity it is
    infinite, whatever the other is."""
    most, least = g.maximum(g.abs(x), g.abs(y)), g.minimum(g.abs(x), g.abs(y))
    part = g.where(most == 0, 0, least / most)
    return g.where((g.abs(x) >= math.inf) | (g.abs(y) >= math.inf), math.inf, most * g.sqrt(1 + part * part))


def area_sine(x: Any) -> Any:
    """asinh(x): log(2·|x|) where the square may overflow."""
    size = g.abs(x)
    near = g.log1p(size + x * x / (1 + g.sqrt(x * x + 1)))
    return g.sign(x) * g.where(size > FAR, g.log(size) + math.log(2), near)


def area_cosine(x: Any) -> Any:
    """acosh(x), likewise. It is no number below 1."""
    above = x - 1
    near = g.log1p(g.where(above < 0, -2, above + g.sqrt(above * (above + 2))))
    return g.where(x > FAR, g.log(x) + math.log(2), near)


def direction(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), from -π to π. Zeros have signs."""
    rise, run = g.abs(y), g.abs(x)
    slope = g.where(rise == run, 1, rise / run)
    first = g.atan(g.where(rise == 0, 0, slope))
    turned = g.where(g.signbit(x), math.pi - first, first)
    return g.where(g.isnan(x), x, with_sign(turned, y))


def with_sign(x: Any, y: Any) -> Any:
    return g.where(g.signbit(y), -g.abs(x), g.abs(x))


def of_numbers(function: Callable[..., Any]) -> Handler:
    """The handler of an operator that is one expression of numbers."""
    return lambda *args: both(function, *args)


EXPRESSIONS: Mapping[str, Handler] = {
    "aten.acos": of_numbers(lambda x: 2 * g.atan(g.sqrt((1 - x) / (1 + x)))),
    "aten.asin": of_numbers(lambda x: g.atan(x / g.sqrt((1 - x) * (1 + x)))),
    "aten.atan2": of_numbers(direction),
    "aten.copysign": of_numbers(with_sign),
    "prims.fma": of_numbers(lambda x, y, z: x * y + z),
    "aten.tan": of_numbers(lambda x: g.sin(x) / g.cos(x)),
    "aten.sinh": of_numbers(lambda x: (g.expm1(x) - g.expm1(-x)) / 2),
    "aten.cosh": of_numbers(lambda x: (g.exp(x) + g.exp(-x)) / 2),
    "aten.asinh": of_numbers(area_sine),
    "aten.acosh": of_numbers(area_cosine),
    "aten.atanh": of_numbers(lambda x: (g.log1p(x) - g.log1p(-x)) / 2),
    "aten.log10": of_numbers(lambda x: g.log(x) * (1 / math.log(10))),
    "aten.trunc": of_numbers(truncated),
    "aten.fix": of_numbers(truncated),
    "aten.frac": of_numbers(lambda x: x - truncated(x)),
    "aten.sgn": of_numbers(lambda x: g.sign(x)),
    "aten.hypot": of_numbers(hypotenuse),
    "aten.ldexp": of_numbers(lambda x, y: x * g.exp2(y)),
    "aten.special_xlog1py": of_numbers(lambda x, y: g.where((x == 0) & ~g.isnan(y), 0, x * g.log1p(y))),
    "aten.xlogy": of_numbers(lambda x, y: g.where((x == 0) & ~g.isnan(y), 0, x * g.log(y))),
    "aten.logaddexp": of_numbers(lambda x, y: g.maximum(x, y) + g.log1p(g.exp(-g.where(x == y, 0, g.abs(x - y))))),
    "aten.fmax": of_numbers(lambda x, y: g.where(g.isnan(x), y, g.where(g.isnan(y), x, g.maximum(x, y)))),
    "aten.fmin": of_numbers(lambda x, y: g.where(g.isnan(x), y, g.where(g.isnan(y), x, g.minimum(x, y)))),
    "aten.isposinf": lambda x: p.elementwise(lambda v: v >= math.inf, number_of(x), mask=True),
    "aten.isneginf": lambda x: p.elementwise(lambda v: v <= -math.inf, number_of(x), mask=True),
    "aten.isinf": lambda x: p.elementwise(lambda v: g.abs(v) >= math.inf, number_of(x), mask=True),
}  # fmt: skip


aten.update({name: Row(handler) for name, handler in EXPRESSIONS.items()})


def take_apart(x: Any) -> None:
    """The bits of the inputs that a value is made of are read."""
    todo = [x] if isinstance(x, Array) else []
    for a in todo:
        if a.name:
            a.trace.bits.add(a)
        todo += [y for y in a.operands if y not in todo]


def joined(masks: Callable[..., Any], bits: Callable[..., Any]) -> Handler:
    """Of masks, or of the bits of whole numbers."""

    def handler(_t: Trace, node: Any, x: Any, y: Any) -> Array:
        if is_mask(node):
            return p.elementwise(masks, mask_of(x), mask_of(y), mask=True)
        take_apart(x)
        take_apart(y)
        return both(bits, x, y)

    return handler


for _name, _masks, _bits in (("and", conjunction, g.bit_and), ("or", disjunction, g.bit_or), ("xor", g.xor, g.bit_xor)):
    for _called in (f"aten.bitwise_{_name}", f"aten.__{_name}__"):
        aten.update({_called: Row(joined(_masks, _bits), with_node=True)})


@aten("aten.bitwise_not", with_node=True)
def _bitwise_not(_t: Trace, node: Any, x: Array) -> Array:
    return p.elementwise(negation, mask_of(x), mask=True) if is_mask(node) else both(lambda v: -1 - v, x)


@aten("aten.__rshift__", "aten.bitwise_right_shift")
def _right_shift(x: Any, count: Any) -> Array:
    take_apart(x)
    return both(g.shift_right, x, count)


@aten("aten.__lshift__", "aten.bitwise_left_shift")
def _left_shift(x: Any, count: Any) -> Array:
    take_apart(x)
    return both(g.shift_left, x, count)


@aten("aten.round")
def _round(x: Array, decimals: int = 0) -> Array:
    return both(lambda v: g.round(v * 10**decimals) / 10**decimals, x) if decimals else both(g.round, x)


@aten("aten.fmod")
def _fmod(x: Any, y: Any) -> Array:
    """The remainder with the sign of x."""
    size = both(g.abs, y) if isinstance(y, Array) else abs(y)
    return both(lambda v, w: g.where(v < 0, -(-v % w), v % w), x, size)


@aten("aten.hardtanh")
def _hardtanh(x: Array, low: Any = -1, high: Any = 1) -> Array:
    return _clamp(x, low, high)


@aten("aten.clamp", "aten.clip")
def _clamp(x: Array, min: Any = None, max: Any = None) -> Array:
    x = x if min is None else both(g.maximum, x, min)
    return x if max is None else both(g.minimum, x, max)


@aten("aten.clamp_min")
def _clamp_min(x: Array, low: Any) -> Array:
    return both(g.maximum, x, low)


@aten("aten.clamp_max")
def _clamp_max(x: Array, high: Any) -> Array:
    return both(g.minimum, x, high)


@aten("aten.gelu")
def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "none":
        return both(g.gelu, x)
    return both(lambda v: 0.5 * v * (1 + g.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v))), x)


@aten("aten.softplus")
def _softplus(x: Array, beta: float = 1, threshold: float = 20) -> Array:
    return both(lambda v: g.where(v * beta > threshold, v, g.log1p(g.exp(g.minimum(v * beta, threshold))) / beta), x)


@aten("aten.prelu")
def _prelu(x: Array, weight: Array) -> Array:
    return _prelu_kernel(x, trailing(weight, len(x.dims) - 2) if len(x.dims) > 1 else weight)


@aten("aten._prelu_kernel")
def _prelu_kernel(x: Array, slope: Array) -> Array:
    return both(lambda v, s: g.where(v > 0, v, v * s), x, slope)


@aten("aten.leaky_relu")
def _leaky_relu(x: Array, slope: float = 0.01) -> Array:
    return both(lambda v: g.where(v > 0, v, v * slope), x)


@aten("aten.rrelu_with_noise_functional")
def _rrelu(x: Array, _noise: Any, least: float = 1 / 8, most: float = 1 / 3, training: bool = False,
           *_: Any) -> list[Array]:  # fmt: skip
    if training:
        raise Unsupported("slopes that are drawn at random")
    return [_leaky_relu(x, (least + most) / 2)]


@aten("aten.elu")
def _elu(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    return both(lambda v: scale * g.where(v > 0, v, alpha * g.expm1(g.minimum(v * input_scale, 0))), x)


@aten("aten.selu")
def _selu(x: Array) -> Array:
    return _elu(x, 1.6732632423543772, 1.0507009873554805)


@aten("aten.celu")
def _celu(x: Array, alpha: float = 1) -> Array:
    return _elu(x, alpha, 1, 1 / alpha)


@aten("aten.hardsigmoid")
def _hardsigmoid(x: Array) -> Array:
    return both(lambda v: g.minimum(g.maximum(v + 3, 0), 6) / 6, x)


@aten("aten.hardswish")
def _hardswish(x: Array) -> Array:
    return both(lambda v: v * g.minimum(g.maximum(v + 3, 0), 6) / 6, x)


@aten("aten.relu6")
def _relu6(x: Array) -> Array:
    return _clamp(x, 0, 6)


@aten("aten.mish")
def _mish(x: Array) -> Array:
    return both(lambda v, s: v * g.tanh(s), x, _softplus(x))


@aten("aten.log_sigmoid")
def log_sigmoid(x: Array) -> Array:
    return both(lambda v: g.minimum(v, 0) - g.log1p(g.exp(-g.abs(v))), x)


@aten("aten.nan_to_num", with_node=True)
def _nan_to_num(_t: Trace, node: Any, x: Array, nan: Any = None, high: Any = None, low: Any = None) -> Array:
    """By default 0, and the largest numbers of the type."""
    import torch

    if not node.meta["val"].dtype.is_floating_point:
        return x
    most = torch.finfo(node.meta["val"].dtype).max
    nan, high, low = nan or 0.0, most if high is None else high, -most if low is None else low
    above = both(lambda v: g.where(v >= math.inf, high, g.where(v <= -math.inf, low, v)), x)
    return both(lambda v, w: g.where(g.isnan(v), nan, w), x, above)


@aten("aten.threshold")
def _threshold(x: Array, threshold: float, value: float) -> Array:
    return both(lambda v: g.where(v <= threshold, value, v), x)


@aten("aten.glu")
def _glu(x: Array, dim: int = -1) -> Array:
    half = x.shape[dim] // 2
    left, right = p.sliced(x, dim, 0, half), p.sliced(x, dim, half, half)
    return both(lambda a, b: a * g.sigmoid(b), left, right)


@aten("aten.addcmul")
def _addcmul(x: Array, a: Array, b: Array, value: float = 1) -> Array:
    return both(lambda v, s, t: v + value * (s * t), x, a, b)


@aten("aten.addcdiv")
def _addcdiv(x: Array, a: Array, b: Array, value: float = 1) -> Array:
    return both(lambda v, s, t: v + value * (s / t), x, a, b)


@aten("aten.lerp")
def _lerp(x: Array, y: Array, weight: Any) -> Array:
    """From the nearer end, as PyTorch does: where the weight is 1 it is y itself."""
    if not isinstance(weight, Array):
        near = abs(weight) < 0.5
        return both(lambda a, b: a + weight * (b - a) if near else b - (1 - weight) * (b - a), x, y)
    return both(lambda a, b, w: g.where(g.abs(w) < 0.5, a + w * (b - a), b - (1 - w) * (b - a)), x, y, weight)


@aten("aten.masked_fill", keeps_type=True)
def _masked_fill(x: Array, mask: Array, value: Any) -> Array:
    return p.elementwise(lambda m, v, f: chosen(m, f, v), mask_of(mask), number_of(x), number_of(value))


@aten("aten.where")
def _where(mask: Array, x: Any, y: Any) -> Array:
    return p.elementwise(lambda m, a, b: chosen(m, a, b), mask_of(mask), number_of(x), number_of(y))
