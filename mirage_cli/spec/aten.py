"""PyTorch's graphs (ATen, as `torch.export` gives them) as programs: one row of `ATEN` for each operator.

No operator is decomposed further than its row says, so a trace reads as the model does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any  # nodes of PyTorch's graphs, and what their arguments are

from mirage_cli.errors import GraphError
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPES
from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.graph import Graph
from mirage_cli.spec.positional import Array, Trace, Unsupported

Handler = Callable[..., Any]
ATEN: dict[str, Handler] = {}
"""By the operator's name without its overload."""
PRODUCTS: dict[str, int] = {}
"""How often an operator contracts, for those that do."""
MOVES: set[str] = set()
"""Operators that compute nothing."""
BEHIND: dict[str, int] = {}
"""How many kernels an operator takes behind a product: those that need other places of what they read, and contract
nothing. Sums and norms take one. What moves places is searched worst beside what makes them."""


def aten(*names: str, products: int = 0, moves: bool = False, behind: int = 0) -> Callable[[Handler], Handler]:
    """A row of the table."""

    def register(handler: Handler) -> Handler:
        ATEN.update(dict.fromkeys(names, handler))
        PRODUCTS.update(dict.fromkeys(names, products) if products else {})
        MOVES.update(names if moves else ())
        BEHIND.update(dict.fromkeys(names, behind) if behind else {})
        return handler

    return register


def overloadless(target: object) -> str:
    """`aten.add` of `aten.add.Tensor`, `getitem` of Python's."""
    if target is operator.getitem:
        return "getitem"
    return ".".join(str(target).split(".")[:2])


def dtype_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Traced:
    """A graph of PyTorch as a program.

    inputs, outputs: of the program, with their nodes. arrays: the results, whose axes of size 1, and along which they
    are constant, the program's tensors lack.
    """

    graph: Graph
    inputs: tuple[tuple[str, Any], ...]
    outputs: tuple[tuple[str, Any], ...]
    arrays: tuple[Array, ...]


def trace(
    nodes: Sequence[Any], outputs: Sequence[Any], name: str, scale_of: Callable[[Any], float | None] = lambda _: None
) -> Traced:
    """These nodes of a graph, in order. What they take besides is an input of the program.

    outputs: nodes. scale_of: the standard deviation of an input's data. Raises Unsupported.
    """
    t = Trace()
    known: dict[Any, Any] = {}
    inputs: dict[str, Any] = {}

    def value(x: Any) -> Any:
        if isinstance(x, Sequence) and not isinstance(x, str):
            return [value(y) for y in x]
        if not hasattr(x, "op"):
            return x
        if x not in known:
            label = f"X{len(inputs)}"
            inputs[label] = x
            known[x] = input_of(t, label, x, scale_of(x))
        return known[x]

    try:
        for node in nodes:
            t.maker = node
            known[node] = call(t, node, [value(a) for a in node.args], {k: value(a) for k, a in node.kwargs.items()})
        t.maker = None
        return traced(t, name, known, inputs, outputs)
    except Unsupported as error:
        error.maker = t.maker
        raise


def traced(t: Trace, name: str, known: Mapping[Any, Any], inputs: Mapping[str, Any], outputs: Sequence[Any]) -> Traced:
    """The program of what the nodes have come to. Raises Unsupported."""
    if several := [n for n in outputs if not isinstance(known[n], Array)]:
        raise Unsupported(f"{several[0]} makes several tensors")
    arrays = tuple(number_of(known[n]) for n in outputs)
    made: dict[str, tuple[Array, str]] = {}
    for i, (a, n) in enumerate(zip(arrays, outputs, strict=True)):
        t.maker = n
        made[f"O{i}"] = a, output_dtype(n)
    try:
        graph = t.graph(name, made)
    except GraphError as error:
        raise Unsupported(str(error)) from None
    used = {line.split(":")[0] for line in graph.inputs}
    read = tuple((label, x) for label, x in inputs.items() if label in used)
    return Traced(graph, read, tuple(zip(made, outputs, strict=True)), arrays)


def input_of(t: Trace, label: str, node: Any, scale: float | None) -> Array:
    tensor = node.meta["val"]
    dtype = dtype_name(tensor.dtype)
    if dtype == "bool":  # its bytes are 0 and 1
        return mask_of(t.input(label, tensor.shape, "int8"))
    if dtype not in DTYPES:
        raise Unsupported(f"{node} is of {dtype}")
    if not all(isinstance(n, int) for n in tensor.shape):
        raise Unsupported(f"{node} has a size that is not known")
    return t.input(label, tensor.shape, dtype, scale)


def output_dtype(node: Any) -> str:
    dtype = dtype_name(node.meta["val"].dtype)
    if dtype not in ("float16", "bfloat16", "float32"):
        raise Unsupported(f"the result {node} is of {dtype}")
    return dtype


def call(t: Trace, node: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What a node makes. Raises Unsupported."""
    name = overloadless(node.target)
    handler = ATEN.get(name) or elementwise_handler(name.removeprefix("aten."))
    if handler is None:
        raise Unsupported(f"{name} is no operator that is known here")
    given = {k: x for k, x in options.items() if k not in ("dtype", "layout", "device", "pin_memory", "memory_format")}
    if getattr(handler, "makes", False):
        return handler(t, node, *args, **given)
    return handler(*args, **given)


def supported(node: Any) -> bool:
    """Whether there is a row for the node's operator."""
    name = overloadless(node.target)
    return name in ATEN or elementwise_handler(name.removeprefix("aten.")) is not None


# -- elementwise operators

CALLED = {"logical_and": "and", "logical_or": "or", "logical_not": "not", "logical_xor": "xor", "bitwise_and": "and",
          "bitwise_or": "or", "bitwise_not": "not", "bitwise_xor": "xor"}  # fmt: skip
"""ATen's names of operators that have others here."""


def _and(x: Any, y: Any) -> Any:
    """Of masks, of which one may be known."""
    if isinstance(x, bool) or isinstance(y, bool):
        known, other = (x, y) if isinstance(x, bool) else (y, x)
        return other if known else False
    return x & y


def _or(x: Any, y: Any) -> Any:
    return _not(_and(_not(x), _not(y))) if isinstance(x, bool) or isinstance(y, bool) else x | y


def _not(x: Any) -> Any:
    return not x if isinstance(x, bool) else ~x


def chosen(mask: Any, x: Any, y: Any) -> Any:
    if isinstance(mask, bool):
        return x if mask else y
    return g.where(mask, x, y)


SYMBOLS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "%": operator.mod, "//": operator.floordiv, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "and": _and, "or": _or, "not": _not,
}  # fmt: skip


def elementwise_handler(name: str) -> Handler | None:
    """For an operator of the table that ATen has under the same name."""
    row = OPS.get(CALLED.get(name, name))
    if row is None or row.kind != "elementwise":
        return None
    function: Callable[..., Any] = getattr(g, row.name) if row.called else SYMBOLS[row.symbol]
    if row.arity == 1 and row.symbol == "-":
        function = operator.neg

    def handler(*args: Any) -> Array:
        if len(args) != row.arity:
            raise Unsupported(f"aten.{name} with {len(args)} arguments")
        given = [mask_of(x) if i in row.masks else number_of(x) for i, x in enumerate(args)]
        return p.elementwise(function, *given, mask=row.result == "bool")

    return handler


def mask_of(x: Any) -> Any:
    """A tensor of bool that was made of numbers is one of numbers."""
    return p.elementwise(lambda v: v != 0, x, mask=True) if isinstance(x, Array) and not x.mask else x


def number_of(x: Any) -> Any:
    return p.elementwise(lambda v: chosen(v, 1, 0), x) if isinstance(x, Array) and x.mask else x


def both(function: Callable[..., Any], *args: Any) -> Array:
    return p.elementwise(function, *map(number_of, args))


@aten("aten.add")
def _add(x: Any, y: Any, alpha: float = 1) -> Array:
    return both(operator.add, x, y if alpha == 1 else both(operator.mul, y, alpha))


@aten("aten.sub")
def _sub(x: Any, y: Any, alpha: float = 1) -> Array:
    return both(operator.sub, x, y if alpha == 1 else both(operator.mul, y, alpha))


@aten("aten.rsub")
def _rsub(x: Any, y: Any, alpha: float = 1) -> Array:
    return _sub(y, x, alpha)


@aten("aten.div", "aten.true_divide")
def _div(x: Any, y: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "trunc":
        raise Unsupported("division rounded towards 0")
    return both(operator.floordiv if rounding_mode else operator.truediv, x, y)


@aten("aten.pow")
def _pow(x: Any, y: Any) -> Array:
    if isinstance(y, Array) or not isinstance(x, Array):
        return both(g.power, x, y)
    special = {2: g.square, 0.5: g.sqrt, -0.5: g.rsqrt, -1: g.reciprocal}
    return both(special[y], x) if y in special else both(lambda v: v**y, x)


@aten("aten.clamp", "aten.clip", "aten.hardtanh")
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
    slope = trailing(weight, len(x.dims) - 2) if len(x.dims) > 1 else weight
    return both(lambda v, s: g.where(v > 0, v, v * s), x, slope)


@aten("aten.leaky_relu")
def _leaky_relu(x: Array, slope: float = 0.01) -> Array:
    return both(lambda v: g.where(v > 0, v, v * slope), x)


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
def _log_sigmoid(x: Array) -> Array:
    return both(lambda v: g.minimum(v, 0) - g.log1p(g.exp(-g.abs(v))), x)


@aten("aten.threshold")
def _threshold(x: Array, threshold: float, value: float) -> Array:
    return both(lambda v: g.where(v > threshold, v, value), x)


@aten("aten.glu")
def _glu(x: Array, dim: int = -1) -> Array:
    left, right = _chunk(x, 2, dim)
    return both(lambda a, b: a * g.sigmoid(b), left, right)


@aten("aten.addcmul")
def _addcmul(x: Array, a: Array, b: Array, value: float = 1) -> Array:
    return both(lambda v, s, t: v + value * (s * t), x, a, b)


@aten("aten.addcdiv")
def _addcdiv(x: Array, a: Array, b: Array, value: float = 1) -> Array:
    return both(lambda v, s, t: v + value * (s / t), x, a, b)


@aten("aten.lerp")
def _lerp(x: Array, y: Array, weight: Any) -> Array:
    return both(lambda a, b, w: a + w * (b - a), x, y, weight)


@aten("aten.masked_fill")
def _masked_fill(x: Array, mask: Array, value: Any) -> Array:
    return p.elementwise(lambda m, v, f: chosen(m, f, v), mask_of(mask), number_of(x), number_of(value))


@aten("aten.where")
def _where(mask: Array, x: Any, y: Any) -> Array:
    return p.elementwise(lambda m, a, b: chosen(m, a, b), mask_of(mask), number_of(x), number_of(y))


# -- data as it is

SAME = ("aten.clone", "aten.contiguous", "aten.detach", "aten.alias", "aten.lift_fresh_copy",
        "aten.dropout", "aten.feature_dropout", "aten.type_as")  # fmt: skip


@aten(*SAME, moves=True)
def _same(x: Array, probability: Any = None, train: bool = False) -> Array:
    if train and probability:
        raise Unsupported("dropout in training draws numbers")
    return x


def makes(handler: Handler) -> Handler:
    """A handler that takes the trace and the node besides."""
    handler.makes = True  # type: ignore[attr-defined]
    return handler


@aten("aten.to", "aten._to_copy", moves=True)
@makes
def _convert(_t: Trace, node: Any, x: Array, *_: Any, **__: Any) -> Array:
    dtype = node.meta["val"].dtype
    if dtype.is_floating_point:
        return number_of(x)
    if dtype_name(dtype) == "bool":
        return mask_of(x)
    if x.mask or not node.args[0].meta["val"].dtype.is_floating_point:
        return number_of(x)
    raise Unsupported(f"{node} makes whole numbers of others")


@aten("aten.full", "aten.zeros", "aten.ones", "aten.scalar_tensor", "aten.full_like", "aten.zeros_like",
      "aten.ones_like", "aten.new_zeros", "aten.new_ones", "aten.new_full")  # fmt: skip
@makes
def _full(t: Trace, node: Any, *args: Any, **named: Any) -> Array:
    name = overloadless(node.target)
    if "zeros" in name or "ones" in name:
        value = float("ones" in name)
    else:
        value = named.get("fill_value", args[0] if name == "aten.scalar_tensor" else args[-1])
    if isinstance(value, Array):
        raise Unsupported(f"{node} is filled with a tensor")
    return t.full(node.meta["val"].shape, float(value))


@aten("aten.arange")
@makes
def _arange(t: Trace, node: Any, *args: Any, **_: Any) -> Array:
    start, step = (args[0], args[2] if len(args) > 2 else 1) if len(args) > 1 else (0, 1)
    place = t.positions(node.meta["val"].shape[0])
    return place if (start, step) == (0, 1) else p.elementwise(lambda v: v * step + start, place)


@aten("aten.tril", "aten.triu")
@makes
def _triangle(t: Trace, node: Any, x: Array, diagonal: int = 0) -> Array:
    row, column = (t.positions(n) for n in x.shape[-2:])
    row = p.viewed(row, [*row.dims, ()])
    lower = overloadless(node.target) == "aten.tril"
    side = operator.le if lower else operator.ge
    inside = p.elementwise(lambda i, j: side(j, i + diagonal), row, column, mask=True)
    return p.elementwise(lambda m, v: chosen(m, v, 0), inside, number_of(x))


# -- shapes


@aten("aten.view", "aten.reshape", "aten._unsafe_view", moves=True)
def _view(x: Array, shape: Sequence[int]) -> Array:
    return p.reshaped(x, shape)


@aten("aten.view_as", "aten.reshape_as", moves=True)
def _view_as(x: Array, like: Array) -> Array:
    return p.reshaped(x, like.shape)


@aten("aten.flatten", moves=True)
def _flatten(x: Array, first: int = 0, last: int = -1) -> Array:
    n = len(x.shape)
    first, last = first % max(n, 1), last % max(n, 1)
    return p.reshaped(x, [*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]])


@aten("aten.unflatten", moves=True)
def _unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    dim %= len(x.shape)
    rest = x.shape[dim] // abs(math.prod(sizes))
    return p.reshaped(x, [*x.shape[:dim], *(n if n >= 0 else rest for n in sizes), *x.shape[dim + 1 :]])


@aten("aten.permute", moves=True)
def _permute(x: Array, order: Sequence[int]) -> Array:
    return p.permuted(x, [d % len(order) for d in order])


@aten("aten.transpose", "aten.swapaxes", moves=True)
def _transpose(x: Array, a: int, b: int) -> Array:
    order = [*range(len(x.dims))]
    order[a], order[b] = order[b], order[a]
    return p.permuted(x, order)


@aten("aten.t", "aten.numpy_T", "aten.mT", moves=True)
def _t(x: Array) -> Array:
    return _transpose(x, -2, -1) if len(x.dims) > 1 else x


@aten("aten.movedim", moves=True)
def _movedim(x: Array, source: Any, target: Any) -> Array:
    n = len(x.dims)
    source, target = ([d % n for d in (s if isinstance(s, list) else [s])] for s in (source, target))
    rest = iter(d for d in range(n) if d not in source)
    at = dict(zip(target, source, strict=True))
    return p.permuted(x, [at[i] if i in at else next(rest) for i in range(n)])


@aten("aten.unsqueeze", moves=True)
def _unsqueeze(x: Array, dim: int) -> Array:
    dim %= len(x.dims) + 1
    return p.viewed(x, [*x.dims[:dim], (), *x.dims[dim:]])


@aten("aten.squeeze", moves=True)
def _squeeze(x: Array, dims: Any = None) -> Array:
    n = len(x.dims)
    given = range(n) if dims is None else dims if isinstance(dims, list) else [dims]
    gone = {d % n for d in given if x.shape[d] == 1}
    return p.viewed(x, [d for i, d in enumerate(x.dims) if i not in gone])


@aten("aten.expand", "aten.broadcast_to", moves=True)
def _expand(x: Array, shape: Sequence[int], **_: Any) -> Array:
    return p.expanded(x, shape)


@aten("aten.expand_as", moves=True)
def _expand_as(x: Array, like: Array) -> Array:
    return p.expanded(x, like.shape)


@aten("aten.broadcast_tensors", moves=True)
def _broadcast_tensors(arrays: Sequence[Array]) -> list[Array]:
    rank = max(len(x.dims) for x in arrays)
    shapes = [(1,) * (rank - len(x.dims)) + x.shape for x in arrays]
    return [p.expanded(x, [max(sizes) for sizes in zip(*shapes, strict=True)]) for x in arrays]


@aten("aten.repeat", moves=True)
def _repeat(x: Array, times: Sequence[int]) -> Array:
    if any(n != 1 and size != 1 for n, size in zip(times[::-1], x.shape[::-1], strict=False)):
        raise Unsupported("repeat along an axis of several positions")
    new = len(times) - len(x.shape)
    return p.expanded(x, [n * (x.shape[i - new] if i >= new else 1) for i, n in enumerate(times)])


@aten("aten.repeat_interleave")
def _repeat_interleave(x: Array, times: Any, dim: int | None = None, **_: Any) -> Array:
    if isinstance(times, Array) or dim is None:
        raise Unsupported("repeat_interleave by a tensor, or of all elements")
    dim %= len(x.dims)
    longer = p.viewed(x, [*x.dims[: dim + 1], (), *x.dims[dim + 1 :]])
    shape = [*longer.shape]
    shape[dim + 1] = times
    longer = p.expanded(longer, shape)
    return p.reshaped(longer, [*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :]])


@aten("aten.slice", moves=True)
def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    positions = range(*slice(start, end, step).indices(x.shape[dim]))
    if not positions:
        raise Unsupported("a slice of nothing")
    return p.sliced(x, dim, positions[0], len(positions), step)


@aten("aten.narrow", moves=True)
def _narrow(x: Array, dim: int, start: int, size: int) -> Array:
    return p.sliced(x, dim, start % x.shape[dim] if start else 0, size)


@aten("aten.select", moves=True)
def _select(x: Array, dim: int, at: int) -> Array:
    return p.selected(x, dim, at)


@aten("aten.chunk", "aten.unsafe_chunk", moves=True)
def _chunk(x: Array, count: int, dim: int = 0) -> list[Array]:
    return _split(x, -(-x.shape[dim] // count), dim)


@aten("aten.split", "aten.split_with_sizes", "aten.unsafe_split", moves=True)
def _split(x: Array, sizes: Any, dim: int = 0) -> list[Array]:
    n = x.shape[dim]
    each = [*sizes] if isinstance(sizes, list) else [min(sizes, n - i) for i in range(0, n, sizes)]
    return [p.sliced(x, dim, sum(each[:i]), size) for i, size in enumerate(each)]


@aten("aten.unbind", moves=True)
def _unbind(x: Array, dim: int = 0) -> list[Array]:
    return [p.selected(x, dim, i) for i in range(x.shape[dim])]


@aten("getitem", moves=True)
def _getitem(x: Sequence[Array], at: int) -> Array:
    if at >= len(x):
        raise Unsupported(f"result {at} of an operator that makes {len(x)} here")
    return x[at]


@aten("aten.cat", "aten.concat", behind=2)
def _cat(arrays: Sequence[Array], dim: int = 0) -> Array:
    some = [number_of(a) for a in arrays if math.prod(a.shape)]
    return p.concatenated(some, dim) if len(some) > 1 else some[0]


@aten("aten.stack", behind=2)
def _stack(arrays: Sequence[Array], dim: int = 0) -> Array:
    return _cat([_unsqueeze(a, dim) for a in arrays], dim)


@aten("aten.flip", behind=2)
def _flip(x: Array, dims: Sequence[int]) -> Array:
    for d in dims:
        n = x.shape[d]
        x = p.sliced(x, d, n - 1, n, -1) if n > 1 else x
    return x


@aten("aten.roll", behind=2)
def _roll(x: Array, shifts: Any, dims: Any = None) -> Array:
    if dims in (None, []):
        raise Unsupported("roll of a flattened tensor")
    for s, d in zip(
        shifts if isinstance(shifts, list) else [shifts], dims if isinstance(dims, list) else [dims], strict=True
    ):
        n = x.shape[d]
        if s % n:
            x = p.concatenated([p.sliced(x, d, n - s % n, s % n), p.sliced(x, d, 0, n - s % n)], d)
    return x


@aten("aten.pad", "aten.constant_pad_nd")
def _pad(x: Array, pads: Sequence[int], mode: Any = "constant", value: Any = 0.0) -> Array:
    if isinstance(mode, int | float):
        mode, value = "constant", mode
    if mode != "constant":
        raise Unsupported(f"padding of the kind {mode}")
    parts, dims = p.whole(x), [*x.dims]
    for i, (before, behind) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        at = len(dims) - 1 - i
        if before or behind:
            dims[at] = (p.Axis(x.shape[at] + before + behind),)
            parts[at] = ([(dims[at], 1)], -before)
    return p.read(x, parts, dims, float(value or 0.0))


# -- reductions


def positions(x: Array, dims: Any) -> list[int]:
    n = len(x.dims)
    if dims is None or dims == []:
        return [*range(n)]
    return [d % n for d in (dims if isinstance(dims, list) else [dims])]


@aten("aten.sum", behind=1)
def _sum(x: Array, dims: Any = None, keep: bool = False) -> Array:
    return p.reduction("sum", number_of(x), positions(x, dims), keep)


@aten("aten.mean", behind=1)
def _mean(x: Array, dims: Any = None, keep: bool = False) -> Array:
    return p.reduction("mean", number_of(x), positions(x, dims), keep)


@aten("aten.amax", behind=1)
def _amax(x: Array, dims: Any = None, keep: bool = False) -> Array:
    return p.reduction("max", x, positions(x, dims), keep)


@aten("aten.amin", behind=1)
def _amin(x: Array, dims: Any = None, keep: bool = False) -> Array:
    return p.reduction("min", x, positions(x, dims), keep)


@aten("aten.max", behind=1)
def _max(x: Array, other: Any = None) -> Array:
    if isinstance(other, int):
        raise Unsupported("the place of a maximum")
    return both(g.maximum, x, other) if other is not None else _amax(x)


@aten("aten.min", behind=1)
def _min(x: Array, other: Any = None) -> Array:
    if isinstance(other, int):
        raise Unsupported("the place of a minimum")
    return both(g.minimum, x, other) if other is not None else _amin(x)


@aten("aten.logsumexp", behind=1)
def _logsumexp(x: Array, dims: Any, keep: bool = False) -> Array:
    return p.reduction("logsumexp", x, positions(x, dims), keep)


@aten("aten.softmax", "aten._softmax", behind=1)
def _softmax(x: Array, dim: int, *_: Any) -> Array:
    return p.along("softmax", number_of(x), positions(x, dim))


@aten("aten.log_softmax", "aten._log_softmax", behind=1)
def _log_softmax(x: Array, dim: int, *_: Any) -> Array:
    return both(operator.sub, x, p.reduction("logsumexp", number_of(x), positions(x, dim), True))


@aten("aten.var", "aten.std", behind=1)
@makes
def _var(
    _t: Trace, node: Any, x: Array, dims: Any = None, unbiased: Any = True, keep: bool = False, **named: Any
) -> Array:
    correction = named.get("correction")
    correction = int(unbiased) if correction is None else correction
    keep = named.get("keepdim", keep)
    at = positions(x, None if isinstance(dims, bool) else dims)
    count = math.prod(x.shape[i] for i in at)
    if count <= correction:
        raise Unsupported("the variance of too few numbers")
    centred = both(operator.sub, x, p.reduction("mean", x, at, True))
    variance = both(lambda v: v / (count - correction), p.reduction("sum", both(g.square, centred), at, keep))
    return variance if overloadless(node.target) == "aten.var" else both(g.sqrt, variance)


@aten("aten.linalg_vector_norm", "aten.norm", behind=1)
def _norm(x: Array, order: Any = 2, dims: Any = None, keep: bool = False, **_: Any) -> Array:
    at = positions(x, dims)
    if order == math.inf:
        return p.reduction("max", both(g.abs, x), at, keep)
    if order == 1:
        return p.reduction("sum", both(g.abs, x), at, keep)
    if order not in (2, None):
        raise Unsupported(f"a norm of order {order}")
    return both(g.sqrt, p.reduction("sum", both(g.square, x), at, keep))


@aten("aten.embedding")
def _embedding(weight: Array, indices: Array, *_: Any, **__: Any) -> Array:
    return p.looked_up(weight, indices)


# -- norms


def affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else both(operator.mul, x, weight)
    return x if bias is None else both(operator.add, x, bias)


@aten("aten.layer_norm", behind=1)
def _layer_norm(
    x: Array, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Array:
    at = [*range(len(x.dims) - len(shape), len(x.dims))]
    return affine(p.along("layer_norm", x, at, eps=eps), weight, bias)


@aten("aten.native_layer_norm", behind=1)
def _native_layer_norm(x: Array, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> list[Array]:
    return [_layer_norm(x, shape, weight, bias, eps)]


@aten("aten.rms_norm", "aten._fused_rms_norm", behind=1)
@makes
def _rms_norm(
    _t: Trace, node: Any, x: Array, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    at = [*range(len(x.dims) - len(shape), len(x.dims))]
    if eps is None:
        import torch

        eps = torch.finfo(node.args[0].meta["val"].dtype).eps
    made = affine(p.along("rms_norm", x, at, eps=eps), weight, None)
    return [made] if overloadless(node.target) == "aten._fused_rms_norm" else made


@aten("aten.group_norm", behind=1)
def _group_norm(x: Array, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Array:
    n, c, *rest = x.shape
    cut = p.reshaped(x, [n, groups, c // groups, *rest])
    made = p.reshaped(p.along("layer_norm", cut, [*range(2, len(cut.dims))], eps=eps), x.shape)
    return affine(made, *(w and trailing(w, len(rest)) for w in (weight, bias)))


@aten("aten.instance_norm", behind=1)
def _instance_norm(x: Array, weight: Any, bias: Any, mean: Any, var: Any, use_input: bool, *rest: Any) -> Array:
    _, eps, *_ = rest
    if not use_input or mean is not None or var is not None:
        raise Unsupported("instance norm with running statistics")
    made = p.along("layer_norm", x, [*range(2, len(x.dims))], eps=eps)
    return affine(made, *(w and trailing(w, len(x.dims) - 2) for w in (weight, bias)))


@aten("aten.native_group_norm", behind=1)
def _native_group_norm(x: Array, weight: Any, bias: Any, *rest: Any) -> list[Array]:
    *_, groups, eps = rest
    return [_group_norm(x, groups, weight, bias, eps)]


def trailing(w: Array, count: int) -> Array:
    """A value of each channel, with so many axes of size 1 behind."""
    return p.viewed(w, [*w.dims, *[()] * count])


@aten("aten.batch_norm", "aten._native_batch_norm_legit_no_training")
@makes
def _batch_norm(_t: Trace, node: Any, x: Array, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
    native = overloadless(node.target) != "aten.batch_norm"
    training, eps = (False, rest[1]) if native else (rest[0], rest[2])
    behind = len(x.dims) - 2
    weight, bias = (w and trailing(w, behind) for w in (weight, bias))
    if training or mean is None:
        if mean is not None:
            raise Unsupported("batch norm that keeps running statistics")
        at = [0, *range(2, len(x.dims))]
        made = affine(p.along("layer_norm", x, at, eps=eps), weight, bias)
    else:
        centred = both(operator.sub, x, trailing(mean, behind))
        made = affine(
            both(operator.mul, centred, both(lambda v: g.rsqrt(v + eps), trailing(var, behind))), weight, bias
        )
    return [made] if native else made


# -- products


@aten("aten.mm", products=1)
def _mm(a: Array, b: Array) -> Array:
    return p.einsum("mk,kn->mn", a, b)


@aten("aten.mv", products=1)
def _mv(a: Array, b: Array) -> Array:
    return p.einsum("mk,k->m", a, b)


@aten("aten.dot", "aten.inner", products=1)
def _dot(a: Array, b: Array) -> Array:
    return p.einsum("k,k->", a, b)


@aten("aten.outer")
def _outer(a: Array, b: Array) -> Array:
    return p.einsum("m,n->mn", a, b)


@aten("aten.bmm", products=1)
def _bmm(a: Array, b: Array) -> Array:
    return p.einsum("bmk,bkn->bmn", a, b)


@aten("aten.matmul", products=1)
def _matmul(a: Array, b: Array) -> Array:
    batch = "abcdefgh"
    left, right = len(a.dims), len(b.dims)
    if left == 1 or right == 1:
        rows, columns = "m" * (left > 1), "n" * (right > 1)
        lead = batch[: max(left, right) - 2] if max(left, right) > 2 else ""
        a_at = (lead if left > 1 else "") + rows + "k"
        b_at = (lead if right > 1 else "") + "k" + columns
        return p.einsum(f"{a_at},{b_at}->{lead}{rows}{columns}", a, b)
    lead = batch[: max(left, right) - 2]
    return p.einsum(f"{lead[len(lead) - left + 2 :]}mk,{lead[len(lead) - right + 2 :]}kn->{lead}mn", a, b)


@aten("aten.addmm", products=1)
def _addmm(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, _mm(a, b), beta, alpha)


@aten("aten.baddbmm", products=1)
def _baddbmm(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, _bmm(a, b), beta, alpha)


def scaled_sum(c: Array, product: Array, beta: float, alpha: float) -> Array:
    return both(lambda x, y: x * beta + y * alpha if (beta, alpha) != (1, 1) else x + y, c, product)


@aten("aten.linear", products=1)
def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    lead = "abcdefgh"[: len(x.dims) - 1]
    made = p.einsum(f"{lead}k,nk->{lead}n", x, weight)
    return made if bias is None else both(operator.add, made, bias)


@aten("aten.einsum", products=1)
def _einsum(equation: str, operands: Sequence[Array], **_: Any) -> Array:
    if "." in equation:
        raise Unsupported("an ellipsis in einsum")
    if "->" not in equation:
        letters = equation.replace(",", "").replace(" ", "")
        equation += "->" + "".join(sorted(c for c in {*letters} if letters.count(c) == 1))
    return p.einsum(equation, *operands)


FUSED = tuple(
    f"aten._scaled_dot_product_{x}attention"
    for x in ("flash_", "efficient_", "cudnn_", "fused_attention_overrideable_")
)
"""What PyTorch makes of attention on a GPU. Their masks are numbers."""


@aten(*FUSED, products=2)
@makes
def _attention_on_gpu(t: Trace, node: Any, q: Array, k: Array, v: Array, *rest: Any, **named: Any) -> list[Array]:
    flash = "flash" in overloadless(node.target)
    mask = None if flash else rest[0] if rest else named.get("attn_bias")
    more = rest if flash else rest[2:]  # the mask, and whether to return the logsumexp
    dropout, causal = (
        more[i] if len(more) > i else named.get(name) for i, name in enumerate(("dropout_p", "is_causal"))
    )
    return [_attention(t, node, q, k, v, mask, dropout or 0.0, bool(causal), named.get("scale"))]


@aten("aten._scaled_dot_product_flash_attention_for_cpu", products=2)
@makes
def _attention_on_cpu(t: Trace, node: Any, q: Array, k: Array, v: Array, dropout: float = 0.0, causal: bool = False,
                      **named: Any) -> list[Array]:  # fmt: skip
    return [_attention(t, node, q, k, v, named.get("attn_mask"), dropout, causal, named.get("scale"))]


@aten("aten.scaled_dot_product_attention", products=2)
@makes
def _attention(t: Trace, node: Any, q: Array, k: Array, v: Array, mask: Any = None, dropout: float = 0.0,
               causal: bool = False, scale: float | None = None, **_: Any) -> Array:  # fmt: skip
    if dropout:
        raise Unsupported("dropout in training draws numbers")
    if q.shape[-3:-2] != k.shape[-3:-2]:
        k, v = (_repeat_interleave(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = _matmul(q, _transpose(k, -2, -1))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = both(lambda x: x * factor, scores)
    if causal:
        row, column = t.positions(q.shape[-2]), t.positions(k.shape[-2])
        row = p.viewed(row, [*row.dims, ()])
        scores = p.elementwise(lambda i, j, x: g.where(i >= j, x, -math.inf), row, column, scores)
    if mask is not None:
        given = node.args[3] if len(node.args) > 3 and hasattr(node.args[3], "meta") else None
        boolean = mask.mask or (given is not None and dtype_name(given.meta["val"].dtype) == "bool")
        scores = (
            p.elementwise(lambda m, x: chosen(m, x, -math.inf), mask_of(mask), scores)
            if boolean
            else both(operator.add, scores, mask)
        )
    return _matmul(_softmax(scores, -1), v)


# -- windows


def each(x: Any, rank: int) -> list[int]:
    """A number for each axis of a picture."""
    values = x if isinstance(x, list) else [x]
    return values * rank if len(values) == 1 else values


def windows(
    x: Array, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any, shape: Sequence[int], outside: float
) -> Array:
    """x[b, c, y, ...] as [b, c, y', ..., i, ...]: what each place of the result sees."""
    rank = len(kernel)
    parts, dims = p.whole(x)[:2], [*x.dims[:2]]
    steps = zip(kernel, *(each(v, rank) for v in (stride, padding, dilation)), shape, strict=True)
    inner: list[p.Dim] = []
    for size, step, before, apart, n in steps:
        place: p.Dim = (p.Axis(n),) if n > 1 else ()
        tap: p.Dim = (p.Axis(size),) if size > 1 else ()
        parts.append(([(place, step), (tap, apart)], -before))
        dims.append(place)
        inner.append(tap)
    return p.read(x, parts, [*dims, *inner], outside)


@aten("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution", products=1)
@makes
def _convolution(_t: Trace, node: Any, x: Array, weight: Array, bias: Any = None, stride: Any = 1, padding: Any = 0,
                 dilation: Any = 1, *rest: Any) -> Array:  # fmt: skip
    native = overloadless(node.target) == "aten.convolution"
    groups = rest[-1] if rest else 1
    out, rank = node.meta["val"].shape, len(weight.dims) - 2
    if (native and rest and rest[0]) or len(x.dims) != rank + 2 or isinstance(padding, str):
        raise Unsupported("a convolution that is transposed, without a batch, or padded by name")
    seen = windows(x, weight.shape[2:], stride, padding, dilation, out[2:], 0.0)
    places, taps = "xyz"[:rank], "ijk"[:rank]
    if groups == 1:
        made = p.einsum(f"bc{places}{taps},oc{taps}->bo{places}", seen, weight)
    else:
        b, c, *others = seen.shape
        cut = p.reshaped(seen, [b, groups, c // groups, *others])
        by_group = p.reshaped(weight, [groups, weight.shape[0] // groups, *weight.shape[1:]])
        made = p.reshaped(p.einsum(f"bgc{places}{taps},goc{taps}->bgo{places}", cut, by_group), out)
    return made if bias is None else both(operator.add, made, trailing(bias, rank))


@aten("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d")
@makes
def _max_pool(_t: Trace, node: Any, x: Array, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
              ceil: bool = False) -> Array:  # fmt: skip
    shape = node.meta["val"].shape[2:]
    if ceil or len(x.dims) < 3:
        raise Unsupported("pooling that rounds up, or without a batch")
    seen = windows(x, each(kernel, len(shape)), stride or kernel, padding, dilation, shape, -math.inf)
    return p.reduction("max", seen, [*range(len(x.dims), len(seen.dims))])


@aten("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
@makes
def _avg_pool(_t: Trace, node: Any, x: Array, kernel: Any, stride: Any = None, padding: Any = 0, ceil: bool = False,
              count_pad: bool = True, divisor: Any = None) -> Array:  # fmt: skip
    shape = node.meta["val"].shape[2:]
    if ceil or divisor or len(x.dims) < 3 or (any(each(padding, 1)) and not count_pad):
        raise Unsupported("pooling that rounds up, that counts otherwise, or without a batch")
    sizes = each(kernel, len(shape))
    seen = windows(x, sizes, stride or kernel, padding, 1, shape, 0.0)
    total = p.reduction("sum", seen, [*range(len(x.dims), len(seen.dims))])
    return both(lambda v: v / math.prod(sizes), total)


@aten("aten.unfold")
def _unfold(x: Array, dim: int, size: int, step: int) -> Array:
    at = dim % len(x.dims)
    parts, dims = p.whole(x), [*x.dims]
    count = (x.shape[at] - size) // step + 1
    place, tap = ((p.Axis(n),) if n > 1 else () for n in (count, size))
    parts[at], dims[at] = ([(place, step), (tap, 1)], 0), place
    return p.read(x, parts, [*dims, tap])


@aten("aten.adaptive_avg_pool2d", "aten._adaptive_avg_pool2d")
def _adaptive_avg_pool2d(x: Array, size: Any) -> Array:
    if {*each(size, 2)} != {1}:
        raise Unsupported("adaptive pooling to more than one place")
    return p.reduction("mean", x, [len(x.dims) - 2, len(x.dims) - 1], True)


# -- losses


@aten("aten.mse_loss")
def _mse_loss(x: Array, y: Array, reduce: int = 1) -> Array:
    return reduced(both(lambda a, b: g.square(a - b), x, y), reduce)


@aten("aten.l1_loss")
def _l1_loss(x: Array, y: Array, reduce: int = 1) -> Array:
    return reduced(both(lambda a, b: g.abs(a - b), x, y), reduce)


@aten("aten.smooth_l1_loss", "aten.huber_loss")
@makes
def _huber_loss(_t: Trace, node: Any, x: Array, y: Array, reduce: int = 1, width: float = 1.0) -> Array:
    distance = both(lambda a, b: g.abs(a - b), x, y)
    scale = 1 / width if overloadless(node.target) == "aten.smooth_l1_loss" else 1.0
    return reduced(both(lambda d: scale * g.where(d < width, 0.5 * d * d, width * (d - 0.5 * width)), distance), reduce)


@aten("aten.binary_cross_entropy_with_logits")
def _bce(x: Array, y: Array, weight: Any = None, positive: Any = None, reduce: int = 1) -> Array:
    if weight is not None or positive is not None:
        raise Unsupported("binary cross entropy with weights")
    return reduced(both(lambda a, b: g.maximum(a, 0) - a * b + g.log1p(g.exp(-g.abs(a))), x, y), reduce)


@aten("aten.kl_div")
def _kl_div(x: Array, y: Array, reduce: int = 1, log_target: bool = False) -> Array:
    if not log_target:
        raise Unsupported("kl_div of a target that is no logarithm")
    return reduced(both(lambda a, b: g.exp(b) * (b - a), x, y), reduce)


@aten("aten.nll_loss", "aten.nll_loss_nd")
def _nll_loss(x: Array, target: Array, weight: Any = None, reduce: int = 1, ignored: int = -100) -> Array:
    """Of logarithms and class numbers: what counts is where the position along the classes is that number."""
    if weight is not None or len(target.dims) != len(x.dims) - 1:
        raise Unsupported("a loss with weights, or of probabilities")
    at = min(1, len(x.dims) - 1)
    classes = x.trace.positions(x.shape[at])
    place = p.viewed(classes, [*classes.dims, *[()] * (len(x.dims) - at - 1)])
    loss = _sum(p.elementwise(lambda i, t, v: g.where(i == t, -v, 0), place, _unsqueeze(target, at), x), at)
    loss = p.elementwise(lambda t, v: g.where(t != ignored, v, 0), target, loss)
    if reduce == 0:
        return loss
    count = _sum(p.elementwise(lambda t: g.where(t != ignored, 1.0, 0.0), target))
    return _sum(loss) if reduce == 2 else both(operator.truediv, _sum(loss), count)


@aten("aten.cross_entropy_loss")
def _cross_entropy(x: Array, target: Array, weight: Any = None, reduce: int = 1, ignored: int = -100,
                   smoothing: float = 0.0) -> Array:  # fmt: skip
    if smoothing:
        raise Unsupported("cross entropy with smoothing")
    return _nll_loss(_log_softmax(x, min(1, len(x.dims) - 1)), target, weight, reduce, ignored)


def reduced(x: Array, how: int) -> Array:
    return x if how == 0 else p.reduction("mean" if how == 1 else "sum", x, [*range(len(x.dims))])


@aten("aten.cosine_similarity")
def _cosine_similarity(x: Array, y: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    norms = [both(lambda v: g.maximum(v, eps), _norm(a, 2, dim, True)) for a in (x, y)]
    a, b = (both(operator.truediv, v, n) for v, n in zip((x, y), norms, strict=True))
    return _sum(both(operator.mul, a, b), dim)
