"""PyTorch's graphs (ATen, as `torch.export` gives them) as programs: one row of `ATEN` for each operator.

No operator is decomposed further than its row says, so a trace reads as the model does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any  # nodes of PyTorch's graphs, and what their arguments are

from mirage_cli.errors import GraphError
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPES
from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.graph import Graph, Value
from mirage_cli.spec.positional import Array, Trace, Unsupported
from mirage_cli.spec.strides import overlap

Handler = Callable[..., Any]
ATEN: dict[str, Handler] = {}
"""By the operator's name without its overload."""
PRODUCTS: dict[str, int] = {}
"""How often an operator contracts, for those that do."""
MOVES: set[str] = set()
"""Operators that compute nothing."""
LOOKUPS = {"aten.embedding", "aten.index", "aten.index_select", "aten.gather"}
"""Operators that read of their first tensor what they return."""
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

    inputs, outputs: of the program, with their nodes. arrays: the results, in memory order, whose axes of size 1, and
    along which they are constant, the program's tensors lack.
    """

    graph: Graph
    inputs: tuple[tuple[str, Any], ...]
    outputs: tuple[tuple[str, Any], ...]
    arrays: tuple[Array, ...]


WRITTEN = object()
"""What nodes are that change a tensor in place: nothing that the same program could read."""


def trace(
    nodes: Sequence[Any],
    outputs: Sequence[Any],
    name: str,
    scale_of: Callable[[Any], float | None] = lambda _: None,
    named: Container[int] = (),
) -> Traced:
    """These nodes of a graph, in order. What they take besides is an input of the program.

    outputs: nodes. scale_of: the standard deviation of an input's data. named: as of `Trace`. Raises Unsupported.
    """
    t = Trace(named)
    known: dict[Any, Any] = {}
    inputs: dict[str, Any] = {}

    def value(x: Any) -> Any:
        if isinstance(x, Sequence) and not isinstance(x, str):
            return [value(y) for y in x]
        if not hasattr(x, "op"):
            return x
        if isinstance(size := getattr(x, "meta", {}).get("val"), int):
            return size
        if x not in known:
            label = f"X{len(inputs)}"
            inputs[label] = x
            known[x] = input_of(t, label, x, scale_of(x))
        if known[x] is WRITTEN:
            raise Unsupported(f"{x} is read where it is changed in place")
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
    outputs = [n for n in outputs if known[n] is not WRITTEN]
    if several := [n for n in outputs if not isinstance(known[n], Array)]:
        raise Unsupported(f"{several[0]} makes several tensors")
    arrays = tuple(p.permuted(number_of(known[n]), memory_order(n.meta["val"])) for n in outputs)
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
    if not hasattr(tensor, "dtype"):
        raise Unsupported(f"{node} is no tensor")
    dtype = dtype_name(tensor.dtype)
    if dtype not in DTYPES:
        raise Unsupported(f"{node} is of {dtype}")
    if not all(isinstance(n, int) for n in tensor.shape):
        raise Unsupported(f"{node} has a size that is not known")
    order = memory_order(tensor)
    array = t.input(label, [tensor.shape[d] for d in order], dtype, scale, strides_of(node))
    return array if [*order] == sorted(order) else p.permuted(array, inverse(order))


def output_dtype(node: Any) -> str:
    dtype = dtype_name(node.meta["val"].dtype)
    if dtype not in ("float16", "bfloat16", "float32"):
        raise Unsupported(f"the result {node} is of {dtype}")
    return dtype


def call(t: Trace, node: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What a node makes. Raises Unsupported."""
    handler = handler_of(node)
    if handler is None:
        why = "changes running statistics" if kept_statistics(node) else "is no operator that is known here"
        raise Unsupported(f"{overloadless(node.target)} {why}")
    refuse_types(node)
    given = {k: x for k, x in options.items() if k not in ("dtype", "layout", "device", "pin_memory", "memory_format")}
    if getattr(handler, "makes", False):
        return handler(t, node, *args, **given)
    return handler(*args, **given)


NARROW = ("int8", "uint8", "int16")
"""Whole numbers that arithmetic in PyTorch wraps around."""


def refuse_types(node: Any) -> None:
    """Raises Unsupported for numbers that a kernel would compute otherwise than PyTorch."""
    value = node.meta.get("val")
    dtype = dtype_name(getattr(value, "dtype", ""))
    if dtype in ("float64", "complex64", "complex128"):
        raise Unsupported(f"{node} is of {dtype}")
    if dtype in NARROW and overloadless(node.target) not in MOVES:
        raise Unsupported(f"{node} computes in {dtype}")


APART = "apart"
"""What a node has that is to be in no program."""


def supported(node: Any) -> bool:
    """Whether there is a row for the node's operator, and the row says all that it does."""
    return APART not in node.meta and handler_of(node) is not None


def handler_of(node: Any) -> Handler | None:
    name = overloadless(node.target)
    row = ATEN.get(name) or elementwise_handler(name.removeprefix("aten."))
    return None if kept_statistics(node) else row


def kept_statistics(node: Any) -> Sequence[Any]:
    """The running statistics that a norm changes, which its schema does not say."""
    if overloadless(node.target) not in ("aten.batch_norm", "aten.instance_norm"):
        return []
    _, _, _, mean, var, training, *_ = node.args
    return [mean, var] if training and mean is not None else []


def memory_order(tensor: Any) -> tuple[int, ...]:
    """The positions of a tensor as they lie in memory, the outermost first; in order, where there are gaps in it, and
    of whole numbers, which are looked up as they are declared."""
    order = (*range(tensor.dim()),)
    if tensor.is_contiguous() or not tensor.dtype.is_floating_point:
        return order
    laid = (*sorted(order, key=lambda d: -tensor.stride(d)),)
    return laid if tensor.permute(laid).is_contiguous() else order


def strides_of(node: Any) -> tuple[int, ...] | None:
    """Those of a tensor with gaps that a model is given or holds, and that is read in place. None for what is whole, as
    kernels make their results, or is made so: where several elements are in one place."""
    tensor = node.meta["val"]
    if node.op not in ("placeholder", "get_attr") or tensor.permute(memory_order(tensor)).is_contiguous():
        return None
    names = [str(i) for i in range(tensor.dim())]
    apart = overlap(tensor.stride(), names, dict(zip(names, tensor.shape, strict=True))) is None
    return tensor.stride() if apart else None


def inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


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


def row(x: Callable[..., Any]) -> Handler:
    """A row that is one expression of numbers."""
    return lambda *args: both(x, *args)


ATEN.update({
    "aten.erfc": row(lambda x: 1 - g.erf(x)),
    "aten.tan": row(lambda x: g.sin(x) / g.cos(x)),
    "aten.sinh": row(lambda x: (g.expm1(x) - g.expm1(-x)) / 2),
    "aten.cosh": row(lambda x: (g.exp(x) + g.exp(-x)) / 2),
    "aten.asinh": row(lambda x: g.sign(x) * g.log1p(g.abs(x) + x * x / (1 + g.sqrt(x * x + 1)))),
    "aten.atanh": row(lambda x: (g.log1p(x) - g.log1p(-x)) / 2),
    "aten.log10": row(lambda x: g.log(x) * (1 / math.log(10))),
    "aten.trunc": row(lambda x: g.where(x < 0, g.ceil(x), g.floor(x))),
    "aten.fix": row(lambda x: g.where(x < 0, g.ceil(x), g.floor(x))),
    "aten.frac": row(lambda x: x - g.where(x < 0, g.ceil(x), g.floor(x))),
    "aten.sgn": row(lambda x: g.sign(x)),
    "aten.xlogy": row(lambda x, y: g.where(x == 0, 0, x * g.log(y))),
    "aten.logaddexp": row(lambda x, y: g.maximum(x, y) + g.log1p(g.exp(-g.abs(x - y)))),
    "aten.isinf": lambda x: p.elementwise(is_infinite, number_of(x), mask=True),
})  # fmt: skip


def is_infinite(x: Value) -> Value:
    return g.abs(x) >= math.inf


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
        whole = not node.args[0].meta["val"].dtype.is_floating_point
        return both(lambda v: v / 1, x) if whole else number_of(x)
    if dtype_name(dtype) == "bool":
        return mask_of(x)
    if x.mask or not node.args[0].meta["val"].dtype.is_floating_point:
        return number_of(x)
    return both(lambda v: g.where(v < 0, g.ceil(v), g.floor(v)), x)


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
    return t.positions(node.meta["val"].shape[0], start, step)


@aten("aten.tril", "aten.triu")
@makes
def _triangle(t: Trace, node: Any, x: Array, diagonal: int = 0) -> Array:
    row, column = (t.positions(n) for n in x.shape[-2:])
    row = p.viewed(row, [*row.dims, ()])
    lower = overloadless(node.target) == "aten.tril"
    side = operator.le if lower else operator.ge
    inside = p.elementwise(lambda i, j: side(j, i + diagonal), row, column, mask=True)
    return p.elementwise(lambda m, v: chosen(m, v, 0), inside, number_of(x))


@aten("aten.diag_embed")
def _diag_embed(x: Array, offset: int = 0, first: int = -2, second: int = -1) -> Array:
    rank = len(x.dims) + 1
    if offset or (first % rank, second % rank) != (rank - 2, rank - 1):
        raise Unsupported("a diagonal that is not the main one of the last two positions")
    row, column = x.trace.positions(x.shape[-1]), x.trace.positions(x.shape[-1])
    row = p.viewed(row, [*row.dims, ()])
    return p.elementwise(lambda i, j, v: g.where(i == j, v, 0), row, column, _unsqueeze(number_of(x), -2))


@aten("aten.diagonal")
def _diagonal(x: Array, offset: int = 0, first: int = 0, second: int = 1) -> Array:
    rank = len(x.dims)
    first, second = first % rank, second % rank
    size = min(x.shape[first] + min(offset, 0), x.shape[second] - max(offset, 0))
    along: p.Dim = (p.Axis(size),) if size > 1 else ()
    parts, dims = p.whole(x), [d for i, d in enumerate(x.dims) if i not in (first, second)]
    parts[first], parts[second] = ([(along, 1)], max(-offset, 0)), ([(along, 1)], max(offset, 0))
    return p.read(x, parts, [*dims, along])


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
        return p.reshaped(_roll(p.reshaped(x, [-1]), shifts, 0), x.shape)
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
        return padded_with_itself(x, pads, EDGES[mode])
    parts, dims = p.whole(x), [*x.dims]
    for i, (before, behind) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        at = len(dims) - 1 - i
        if before or behind:
            n = x.shape[at] + before + behind
            if n < 1:
                raise Unsupported("padding that leaves nothing")
            dims[at] = (p.Axis(n),) if n > 1 else ()
            parts[at] = ([(dims[at], 1)], -before)
    return p.read(x, parts, dims, float(value or 0.0))


Edge = Callable[[Array, int, int, bool], Array]
EDGES: Mapping[str, Edge] = {
    "reflect": lambda x, d, n, front: _flip(p.sliced(x, d, 1 if front else x.shape[d] - n - 1, n), [d]),
    "replicate": lambda x, d, n, front: _expand_at(p.sliced(x, d, 0 if front else x.shape[d] - 1, 1), d, n),
    "circular": lambda x, d, n, front: p.sliced(x, d, x.shape[d] - n if front else 0, n),
}
"""What stands in front of and behind an axis, by the kind of padding."""


def _expand_at(x: Array, dim: int, n: int) -> Array:
    return p.expanded(x, [n if i == dim else size for i, size in enumerate(x.shape)])


def padded_with_itself(x: Array, pads: Sequence[int], edge: Edge) -> Array:
    if any(n < 0 for n in pads):
        raise Unsupported("padding that takes away")
    for i, (before, behind) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        at = len(x.dims) - 1 - i
        front, back = ([edge(x, at, n, first)] if n else [] for n, first in ((before, True), (behind, False)))
        x = _cat([*front, x, *back], at)
    return x


@aten("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
def _reflection_pad(x: Array, pads: Sequence[int]) -> Array:
    return padded_with_itself(x, pads, EDGES["reflect"])


@aten("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def _replication_pad(x: Array, pads: Sequence[int]) -> Array:
    return padded_with_itself(x, pads, EDGES["replicate"])


@aten("aten.slice_scatter")
def _slice_scatter(
    x: Array, new: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    at, n = dim % len(x.dims), x.shape[dim]
    places = range(*slice(start, end, step).indices(n))
    if not places:
        return x
    first, last = places[0], places[-1]
    axis: p.Dim = (p.Axis(n),) if n > 1 else ()
    spaced = p.counted(x.trace, axis, len(x.dims) - at - 1)
    parts, dims = p.whole(new), [*new.dims]
    wide = _repeat_interleave(new, step, at) if step > 1 else new
    parts = p.whole(wide)
    parts[at], dims[at] = ([(axis, 1)], -first), axis
    moved = p.read(number_of(wide), parts, dims)

    def inside(place: Any) -> Any:
        within = (place >= first) & (place <= last)
        return within & ((place - first) % step == 0) if step > 1 else within

    return p.elementwise(lambda i, a, b: g.where(inside(i), a, b), spaced, moved, number_of(x))


@aten("aten.select_scatter")
def _select_scatter(x: Array, new: Array, dim: int, index: int) -> Array:
    at = index % x.shape[dim]
    return _slice_scatter(x, _unsqueeze(new, dim % len(x.dims)), dim, at, at + 1)


@aten("aten.copy")
def _copy(x: Array, source: Array, *_: Any) -> Array:
    return p.expanded(number_of(source), x.shape)


@aten("aten.fill")
def _fill(x: Array, value: Any) -> Array:
    return p.expanded(number_of(value), x.shape) if isinstance(value, Array) else x.trace.full(x.shape, float(value))


# -- rows that numbers name


MOST_COMPARED = 4096
"""Rows of a table that are compared with a computed number, at most: each is read for each result."""


def rows(x: Array, dim: int, index: Array, wraps: bool = False) -> Array:
    """x along a position at each of these numbers, whose positions take the place of that one.

    wraps: whether negative numbers count from the end. Where numbers are computed, or the rows stand at no first
    position, each row is taken times whether it is the one.
    """
    at = dim % len(x.dims)
    if at == 0 and index.name and not wraps and x.shape[0] > 1:
        return p.looked_up(x, index)
    lead, behind, n = x.dims[:at], x.dims[at + 1 :], x.shape[at]
    if n > MOST_COMPARED:
        raise Unsupported(f"a computed index among {n} rows")
    inner = len(index.dims)
    table = p.viewed(x, [*lead, *[()] * inner, x.dims[at], *behind])
    asked = p.viewed(index, [*[()] * at, *index.dims, (), *[()] * len(behind)])
    return one_of(table, at + inner, asked, wraps)


def one_of(x: Array, dim: int, asked: Array, wraps: bool = False) -> Array:
    """The element along a position whose number is asked for at each of the others."""
    n = x.shape[dim]
    if n > MOST_COMPARED:
        raise Unsupported(f"a computed index among {n} rows")
    place = along_positions(x, dim)

    def here(i: Any, t: Any) -> Any:
        return (i == t) | (i == t + n) if wraps else i == t

    return _sum(p.elementwise(lambda i, t, v: g.where(here(i, t), v, 0), place, asked, number_of(x)), dim)


def along_positions(x: Array, dim: int) -> Array:
    """The numbers of the positions along an axis of an array."""
    counted = x.trace.positions(x.shape[dim])
    return p.viewed(counted, [*counted.dims, *[()] * (len(x.dims) - dim % len(x.dims) - 1)])


@aten("aten.index_select")
def _index_select(x: Array, dim: int, index: Array) -> Array:
    return rows(x, dim, index)


@aten("aten.index")
def _index(x: Array, indices: Sequence[Any]) -> Array:
    """x[..., i, ..., j]: tensors of numbers beside each other, from the first position on or alone."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.mask for _, i in given):
        raise Unsupported("elements that a mask picks")
    if len(given) == 1:
        (dim, index), *_ = given
        return rows(x, dim, index, wraps=True)
    dims = [d for d, _ in given]
    if dims != [*range(len(dims))]:
        raise Unsupported("several indices that stand apart")
    shapes = _broadcast_tensors([i for _, i in given])
    inner = len(shapes[0].dims)
    rest = len(x.dims) - len(dims)
    x = p.viewed(x, [*[()] * inner, *x.dims])
    for index in shapes:  # each takes the first position that is left
        asked = p.viewed(index, [*index.dims, *[()] * (len(x.dims) - inner)])
        x = one_of(x, inner, asked, wraps=True)
    assert len(x.dims) == inner + rest
    return x


@aten("aten.gather")
def _gather(x: Array, dim: int, index: Array, *_: Any) -> Array:
    dim %= len(x.dims)
    for d, (n, size) in enumerate(zip(index.shape, x.shape, strict=True)):
        if d != dim and n != size:
            x = p.sliced(x, d, 0, n)
    table = p.viewed(x, [*x.dims[: dim + 1], (), *x.dims[dim + 1 :]])
    table = p.viewed(table, [*x.dims[:dim], (), *x.dims[dim:]])
    return one_of(table, dim + 1, _unsqueeze(index, dim + 1))


@aten("aten.scatter", "aten.scatter_add")
@makes
def _scatter(_t: Trace, node: Any, x: Array, dim: int, index: Array, new: Any, **named: Any) -> Array:
    """At most one of the numbers along the axis is expected to be a place's; of several, the largest is kept."""
    dim %= len(x.dims)
    if named.get("reduce") or (isinstance(new, Array) and new.shape != index.shape) or index.shape[dim] > MOST_COMPARED:
        raise Unsupported("a scatter that reduces, or of more than there are numbers")
    if any(n != size for d, (n, size) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim):
        raise Unsupported("a scatter into a part")
    place = along_positions(_unsqueeze(x, dim), dim + 1)
    asked = _unsqueeze(index, dim + 1)
    given = _unsqueeze(new, dim + 1) if isinstance(new, Array) else new
    if overloadless(node.target) == "aten.scatter_add":
        more = _sum(p.elementwise(lambda i, t, v: g.where(i == t, v, 0), place, asked, given), dim)
        return both(operator.add, x, more)
    hit = _amax(p.elementwise(lambda i, t: g.where(i == t, 1, 0), place, asked), dim)
    best = _amax(p.elementwise(lambda i, t, v: g.where(i == t, v, -math.inf), place, asked, given), dim)
    return p.elementwise(lambda h, b, v: g.where(h > 0, b, v), hit, best, number_of(x))


@aten("aten.index_add")
def _index_add(x: Array, dim: int, index: Array, new: Array, alpha: float = 1) -> Array:
    """At each place, the sum of what is for it."""
    dim %= len(x.dims)
    if new.shape[dim] > MOST_COMPARED:
        raise Unsupported(f"{new.shape[dim]} elements that are added where numbers say")
    place = along_positions(_unsqueeze(x, dim + 1), dim)
    asked = p.viewed(index, [*index.dims, *[()] * (len(x.dims) - dim - 1)])
    more = _sum(
        p.elementwise(lambda i, t, v: g.where(i == t, v * alpha, 0), place, asked, _unsqueeze(new, dim)), dim + 1
    )
    return both(operator.add, x, more)


@aten("aten.one_hot")
def _one_hot(index: Array, classes: int = -1) -> Array:
    if classes < 1:
        raise Unsupported("one_hot of a number of classes that is not known")
    place = index.trace.positions(classes)
    return number_of(p.elementwise(operator.eq, place, _unsqueeze(index, len(index.dims)), mask=True))


# -- tensors that are changed in place


def put(node: Any, x: Array, places: Sequence[p.Part | p.Row], value: Any) -> object:
    """Writes a value in the place of what a tensor has at these indices. Raises Unsupported."""
    output_dtype(node)
    given = node.args[0].meta["val"]
    if strides_of(node.args[0]) is None and not given.permute(memory_order(given)).is_contiguous():
        raise Unsupported("it changes a tensor that has several elements in one place")
    p.stored(x, places, number_of(value))
    return WRITTEN


@aten("aten.index_put_")
@makes
def _index_put(t: Trace, node: Any, x: Array, indices: Sequence[Any], value: Array, accumulate: bool = False) -> object:
    """x[..., i, ..., j] = value, by numbers that a table holds, none below zero, or that are counted."""
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if accumulate or any(i.mask for i in given.values()):
        raise Unsupported("what is added in place, or where a mask says")
    shape = _broadcast_tensors([*given.values()])[0].shape
    first, *others = given
    lead = first if others == [*range(first + 1, first + 1 + len(others))] else 0
    rest = [d for d in range(len(x.dims)) if d not in given]
    count, sizes = len(shape), [x.shape[d] for d in rest]
    value = p.expanded(number_of(value), [*sizes[:lead], *shape, *sizes[lead:]])
    beside = value.dims[lead : lead + count]
    others = iter((*value.dims[:lead], *value.dims[lead + count :]))
    places = [
        p.place_of(given[d], x.shape[d], beside) if d in given else ([(next(others), 1)], 0) for d in range(len(x.dims))
    ]
    named_once(t, places, x)
    return put(node, x, places, value)


@aten("aten.index_copy_")
@makes
def _index_copy(t: Trace, node: Any, x: Array, dim: int, index: Array, value: Array) -> object:
    value, dim = number_of(value), dim % len(x.dims)
    places: list[p.Part | p.Row] = [([(d, 1)], 0) for d in value.dims]
    places[dim] = p.place_of(index, x.shape[dim], [value.dims[dim]] if index.dims else [])
    named_once(t, places, x)
    return put(node, x, places, value)


def named_once(t: Trace, places: Sequence[p.Part | p.Row], x: Array) -> None:
    """Declares that a table holds no number twice, where nothing else tells its rows apart: PyTorch leaves open which
    of several it writes. Raises Unsupported."""
    told = {axis for place in places if not isinstance(place, p.Row) for dim, _ in place[0] for axis in p.leaves(dim)}
    tables = [(d, row) for d, row in enumerate(places) if isinstance(row, p.Row)]
    alone = [(d, row) for d, row in tables if not {a for dim in row.dims for a in p.leaves(dim)} <= told]
    if len(alone) > 1 or any(math.prod(row.table.shape) > x.shape[d] for d, row in alone):
        raise Unsupported("what is written may be written again")
    t.distinct |= {row.table for _, row in alone}


MOST_TAKEN = 8
"""Of the largest elements: each is looked for anew."""


@aten("aten.topk")
def _topk(x: Array, k: int, dim: int = -1, largest: bool = True, *_: Any) -> list[Array]:
    """One after the other: the largest that was not taken yet, at its first place."""
    if k > MOST_TAKEN:
        raise Unsupported(f"the {k} largest elements")
    dim %= len(x.dims)
    sign = 1 if largest else -1
    place, taken = along_positions(x, dim), None
    x = both(lambda v: v * sign, x)
    values: list[Array] = []
    places: list[Array] = []
    for _i in range(k):
        left = x if taken is None else p.elementwise(lambda t, v: g.where(t, -math.inf, v), taken, x)
        best = _amax(left, dim, True)
        first = first_place(left, best, place, dim, taken)
        values.append(both(lambda v: v * sign, best))
        places.append(first)
        now = p.elementwise(operator.eq, place, first, mask=True)
        taken = now if taken is None else p.elementwise(operator.or_, taken, now, mask=True)
    return [_cat(values, dim), _cat(places, dim)] if k > 1 else [values[0], places[0]]


def first_place(x: Array, value: Array, place: Array, dim: int, taken: Array | None = None) -> Array:
    """Where along an axis a value stands first, of the places that are not taken."""
    n = x.shape[dim]
    there = p.elementwise(operator.eq, x, value, mask=True)
    if taken is not None:
        there = p.elementwise(lambda t, e: e & ~t, taken, there, mask=True)
    return _amin(p.elementwise(lambda e, i: g.where(e, i, n), there, place), dim, True)


@aten("aten.argmax", "aten.argmin")
@makes
def _argmax(_t: Trace, node: Any, x: Array, dim: int | None = None, keep: bool = False) -> Array:
    if dim is None:
        x, dim = p.reshaped(x, [-1]), 0
    dim %= len(x.dims)
    most = _amax if overloadless(node.target) == "aten.argmax" else _amin
    found = first_place(x, most(x, dim, True), along_positions(x, dim), dim)
    return found if keep else _squeeze(found, dim)


@aten("aten.cumsum")
def _cumsum(x: Array, dim: int, *_: Any) -> Array:
    """Of each position, the sum of those up to it."""
    x, dim = number_of(x), dim % max(len(x.dims), 1)
    n = x.shape[dim]
    if n > MOST_COMPARED:
        raise Unsupported(f"running sums of {n} elements")
    if n == 1:
        return x
    longer = p.viewed(x, [*x.dims[:dim], (), *x.dims[dim:]])
    rank = len(longer.dims)
    upto, place = x.trace.positions(n), along_positions(longer, dim + 1)
    upto = p.viewed(upto, [*upto.dims, *[()] * (rank - dim - 1)])
    return _sum(p.elementwise(lambda i, j, v: g.where(j <= i, v, 0), upto, place, longer), dim + 1)


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
def _max(x: Array, other: Any = None, keep: bool = False) -> Any:
    if isinstance(other, int):
        return with_place(x, _amax(x, other, True), other, keep)
    return both(g.maximum, x, other) if other is not None else _amax(x)


def with_place(x: Array, found: Array, dim: int, keep: bool) -> list[Array]:
    """An extremum along an axis, and where it stands."""
    made = [found, first_place(x, found, along_positions(x, dim % len(x.dims)), dim % len(x.dims))]
    return made if keep else [_squeeze(a, dim) for a in made]


@aten("aten.any", "aten.all", behind=1)
@makes
def _any(_t: Trace, node: Any, x: Array, dims: Any = None, keep: bool = False) -> Array:
    most = _amax if overloadless(node.target) == "aten.any" else _amin
    return mask_of(most(number_of(mask_of(x)), dims, keep))


@aten("aten.prod", behind=1)
def _prod(x: Array, dim: int | None = None, keep: bool = False) -> Array:
    if dim is None or x.shape[dim] > MOST_TAKEN:
        raise Unsupported("a product of many elements")
    made = p.selected(x, dim, 0)
    for i in range(1, x.shape[dim]):
        made = both(operator.mul, made, p.selected(x, dim, i))
    return _unsqueeze(made, dim % len(x.dims)) if keep else made


@aten("aten.min", behind=1)
def _min(x: Array, other: Any = None, keep: bool = False) -> Any:
    if isinstance(other, int):
        return with_place(x, _amin(x, other, True), other, keep)
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


@aten("aten.var_mean", "aten.std_mean", behind=1)
@makes
def _var_mean(
    t: Trace, node: Any, x: Array, dims: Any = None, unbiased: Any = True, keep: bool = False, **named: Any
) -> list[Array]:
    given = None if isinstance(dims, bool) else dims
    mean = p.reduction("mean", x, positions(x, given), named.get("keepdim", keep))
    return [_var(t, node, x, dims, unbiased, keep, **named), mean]


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
    return variance if "var" in overloadless(node.target) else both(g.sqrt, variance)


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


@aten("aten._weight_norm_interface", "aten._weight_norm", behind=1)
@makes
def _weight_norm(_t: Trace, node: Any, v: Array, size: Array, dim: int = 0) -> Any:
    norm = _norm(v, 2, [d for d in range(len(v.dims)) if d != dim % len(v.dims)], True)
    made = both(lambda a, b, n: a * (b / n), v, size, norm)
    return made if overloadless(node.target) == "aten._weight_norm" else [made, norm]


@aten("aten.embedding")
def _embedding(weight: Array, indices: Array, *_: Any, **__: Any) -> Array:
    return rows(weight, 0, indices)


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
    at = [*range(len(x.dims) - len(shape), len(x.dims))]
    return [_layer_norm(x, shape, weight, bias, eps), *statistics(x, at, eps)]


def statistics(x: Array, at: Sequence[int], eps: float, keep: bool = True) -> list[Array]:
    """The mean, and one over the deviation."""
    mean = p.reduction("mean", x, at, True)
    variance = p.reduction("mean", both(lambda a, m: g.square(a - m), x, mean), at, keep)
    shown = mean if keep else p.reduction("mean", x, at, False)
    return [shown, both(lambda v: g.rsqrt(v + eps), variance)]


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
    n, c, *others = x.shape
    cut = p.reshaped(x, [n, groups, c // groups, *others])
    return [
        _group_norm(x, groups, weight, bias, eps), *statistics(cut, [*range(2, len(cut.dims))], eps, keep=False)
    ]  # fmt: skip


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
        at = [0, *range(2, len(x.dims))]
        made = affine(p.along("layer_norm", x, at, eps=eps), weight, bias)
    else:
        centred = both(operator.sub, x, trailing(mean, behind))
        made = affine(
            both(operator.mul, centred, both(lambda v: g.rsqrt(v + eps), trailing(var, behind))), weight, bias
        )
    return [made] if native else made


@aten("aten._native_batch_norm_legit_functional", "aten._native_batch_norm_legit")
@makes
def _batch_norm_in_training(_t: Trace, node: Any, x: Array, weight: Any, bias: Any, *rest: Any) -> list[Array]:
    """The result, the batch's statistics, and the running ones behind it."""
    *running, training, momentum, eps = rest
    if not training:
        raise Unsupported("batch norm of running statistics, in the form for training")
    at, behind = [0, *range(2, len(x.dims))], len(x.dims) - 2
    made = affine(p.along("layer_norm", x, at, eps=eps), *(w and trailing(w, behind) for w in (weight, bias)))
    mean, deviation = statistics(x, at, eps, keep=False)
    found = [made, mean, deviation]
    if len(running) == 2 and overloadless(node.target).endswith("functional"):
        count = math.prod(x.shape[i] for i in at)
        variance = _var_of(x, at, count - 1)
        found += [
            both(lambda old, new: (1 - momentum) * old + momentum * new, *pair)
            for pair in zip(running, (mean, variance), strict=True)
        ]
    return found


def _var_of(x: Array, at: Sequence[int], count: int) -> Array:
    centred = both(operator.sub, x, p.reduction("mean", x, at, True))
    return both(lambda v: v / count, p.reduction("sum", both(g.square, centred), at))


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
    if beta == 0:  # what is in c does not count, whatever it is
        return both(operator.mul, product, alpha)
    return both(lambda x, y: x * beta + y * alpha if (beta, alpha) != (1, 1) else x + y, c, product)


@aten("aten.addmv", products=1)
def _addmv(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, _mv(a, b), beta, alpha)


@aten("aten.addbmm", products=1)
def _addbmm(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, p.einsum("bmk,bkn->mn", a, b), beta, alpha)


@aten("aten.addr")
def _addr(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return scaled_sum(c, _outer(a, b), beta, alpha)


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
    if len(q.dims) > 2 and 1 < k.shape[-3] < q.shape[-3]:
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


def each(x: Any, rank: int) -> list[Any]:
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
    out, rank = tuple(node.meta["val"].shape), len(weight.dims) - 2
    if len(x.dims) == rank + 1:
        x, out = _unsqueeze(x, 0), (1, *out)
    if native and rest and rest[0]:
        seen, weight = reached(x, weight, stride, padding, dilation, out[2:], groups)
    else:
        if isinstance(padding, str):  # what there is an odd one of stands behind
            reach = [d * (k - 1) for d, k in zip(each(dilation, rank), weight.shape[2:], strict=True)]
            padding = [n // 2 if padding == "same" else 0 for n in reach]
        seen = windows(x, weight.shape[2:], stride, padding, dilation, out[2:], 0.0)
    places, taps = "xyz"[:rank], "ijk"[:rank]
    if groups == 1:
        made = p.einsum(f"bc{places}{taps},oc{taps}->bo{places}", seen, weight)
    else:
        b, c, *others = seen.shape
        cut = p.reshaped(seen, [b, groups, c // groups, *others])
        by_group = p.reshaped(weight, [groups, weight.shape[0] // groups, *weight.shape[1:]])
        made = p.reshaped(p.einsum(f"bgc{places}{taps},goc{taps}->bgo{places}", cut, by_group), out)
    made = made if bias is None else both(operator.add, made, trailing(bias, rank))
    return made if len(node.meta["val"].shape) == rank + 2 else _squeeze(made, [0])


def reached(
    x: Array, weight: Array, stride: Any, padding: Any, dilation: Any, shape: Sequence[int], groups: int
) -> tuple[Array, Array]:
    """Of a transposed convolution: what each place of the result is reached by through each tap, 0 where the stride
    steps over it; and the weight as that of a convolution."""
    rank = len(shape)
    (cin, per_group), taps = weight.shape[:2], weight.shape[2:]
    by_group = p.reshaped(weight, [groups, cin // groups, per_group, *taps])
    turned = p.permuted(by_group, [0, 2, 1, *range(3, 3 + rank)])
    turned = p.reshaped(turned, [groups * per_group, cin // groups, *taps])
    steps = [each(v, rank) for v in (stride, padding, dilation)]
    wide = x
    for i, s in enumerate(steps[0]):
        wide = spaced(wide, 2 + i, s)
    before = [d * (k - 1) - q for d, k, q in zip(steps[2], taps, steps[1], strict=True)]
    seen = windows(wide, taps, 1, before, steps[2], shape, 0.0)
    return seen, _flip(turned, [*range(2, 2 + rank)])


def spaced(x: Array, dim: int, step: int) -> Array:
    """The array with zeros between its places along a position."""
    if step == 1:
        return x
    shape = [*x.shape]
    longer = _pad(_unsqueeze(x, dim + 1), [*[0, 0] * (len(shape) - dim - 1), 0, step - 1])
    return p.reshaped(longer, [*shape[:dim], shape[dim] * step, *shape[dim + 1 :]])


@aten("aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d")
@makes
def _upsample_nearest(_t: Trace, node: Any, x: Array, *_: Any) -> Array:
    for dim in range(2, len(x.dims)):
        times, rest = divmod(node.meta["val"].shape[dim], x.shape[dim])
        if rest:
            raise Unsupported("a picture enlarged by no whole number")
        x = _repeat_interleave(x, times, dim) if times > 1 else x
    return x


@aten("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d")
@makes
def _upsample_linear(_t: Trace, node: Any, x: Array, _size: Any, ends: bool, *scales: Any) -> Array:
    """ends: whether the first and last places stay where they are. scales: for each axis of the picture, if given."""
    given = scales[0] if scales and isinstance(scales[0], list) else [*scales]
    for at in range(2, len(x.dims)):
        scale = given[at - 2] if len(given) == len(x.dims) - 2 else None
        n, size = x.shape[at], node.meta["val"].shape[at]
        step = (n - 1) / max(size - 1, 1) if ends else 1 / scale if scale else n / size
        x = interpolated(x, at, size, step, 0.0 if ends else 0.5 * step - 0.5)
    return x


def interpolated(x: Array, dim: int, size: int, step: float, start: float) -> Array:
    """x between its places along an axis: times the matrix of how near each is to start, start + step, ..."""
    n = x.shape[dim]
    if n > MOST_COMPARED:
        raise Unsupported(f"interpolation between {n} places")
    source, place = x.trace.positions(size), x.trace.positions(n)
    source = p.viewed(source, [*source.dims, ()])

    def near(i: Value, j: Value) -> Value:
        return g.maximum(1 - g.abs(g.minimum(g.maximum(i * step + start, 0), n - 1) - j), 0)

    letters = "abcdefg"[: len(x.dims)]
    equation = f"yz,{letters.replace(letters[dim], 'z')}->{letters.replace(letters[dim], 'y')}"
    return p.einsum(equation, p.elementwise(near, source, place), x)


@aten("aten.pixel_shuffle")
def _pixel_shuffle(x: Array, r: int) -> Array:
    *lead, c, h, w = x.shape
    n = len(lead)
    cut = p.reshaped(x, [*lead, c // (r * r), r, r, h, w])
    moved = p.permuted(cut, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return p.reshaped(moved, [*lead, c // (r * r), h * r, w * r])


@aten("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d")
@makes
def _max_pool(_t: Trace, node: Any, x: Array, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
              _ceil: bool = False) -> Array:  # fmt: skip
    shape = node.meta["val"].shape[2:]
    if len(x.dims) < 3 or len(x.dims) != len(node.meta["val"].shape) or len(shape) != len(each(kernel, len(shape))):
        raise Unsupported("pooling without a batch")
    seen = windows(x, each(kernel, len(shape)), stride or kernel, padding, dilation, shape, -math.inf)
    return p.reduction("max", seen, [*range(len(x.dims), len(seen.dims))])


@aten("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
@makes
def _avg_pool(_t: Trace, node: Any, x: Array, kernel: Any, stride: Any = None, padding: Any = 0, ceil: bool = False,
              count_pad: bool = True, divisor: Any = None) -> Array:  # fmt: skip
    shape = node.meta["val"].shape[2:]
    sizes = each(kernel, len(shape))
    if ceil or len(x.dims) < 3 or len(x.dims) != len(node.meta["val"].shape):
        raise Unsupported("pooling that rounds up, or without a batch")
    seen = windows(x, sizes, stride or kernel, padding, 1, shape, 0.0)
    at = [*range(len(x.dims), len(seen.dims))]
    total = p.reduction("sum", seen, at)
    if divisor or count_pad or not any(each(padding, 1)):
        return both(lambda v: v / (divisor or math.prod(sizes)), total)
    ones = p.elementwise(lambda v: g.where(v == v, 1, 1), x)
    inside = windows(ones, sizes, stride or kernel, padding, 1, shape, 0.0)
    return both(operator.truediv, total, p.reduction("sum", inside, at))


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
    rank = len(x.dims)
    sizes = [x.shape[rank - 2 + i] if n is None else n for i, n in enumerate(each(size, 2))]
    if any(x.shape[rank - 2 + i] % n for i, n in enumerate(sizes)):
        raise Unsupported("adaptive pooling in windows of several sizes")
    *lead, h, w = x.shape
    cut = p.reshaped(x, [*lead, sizes[0], h // sizes[0], sizes[1], w // sizes[1]])
    return p.reduction("mean", cut, [rank - 1, rank + 1])


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
    """(1 - y)·x - (1 + (w - 1)·y)·log σ(x), for a weight w of what is positive."""
    more = 1 if positive is None else both(lambda b, w: 1 + (w - 1) * b, y, positive)
    small = both(lambda a: g.minimum(a, 0) - g.log1p(g.exp(-g.abs(a))), x)
    made = both(lambda a, b, m, v: (1 - b) * a - m * v, x, y, more, small)
    return reduced(made if weight is None else both(operator.mul, made, weight), reduce)


@aten("aten.kl_div")
def _kl_div(x: Array, y: Array, reduce: int = 1, log_target: bool = False) -> Array:
    if log_target:
        return reduced(both(lambda a, b: g.exp(b) * (b - a), x, y), reduce)
    return reduced(both(lambda a, b: g.where(b == 0, 0, b * g.log(b)) - b * a, x, y), reduce)


@aten("aten.binary_cross_entropy")
def _bce_of_probabilities(x: Array, y: Array, weight: Any = None, reduce: int = 1) -> Array:
    made = both(lambda a, b: -(b * g.maximum(g.log(a), -100) + (1 - b) * g.maximum(g.log1p(-a), -100)), x, y)
    return reduced(made if weight is None else both(operator.mul, made, weight), reduce)


@aten("aten.nll_loss", "aten.nll_loss_nd")
def _nll_loss(x: Array, target: Array, weight: Any = None, reduce: int = 1, ignored: int = -100) -> Array:
    """Of logarithms and class numbers: what counts is where the position along the classes is that number."""
    at = min(1, len(x.dims) - 1)
    loss, counts = of_classes(x, target, weight, ignored, at)
    return _over(loss, counts, reduce)


def of_classes(x: Array, target: Array, weight: Any, ignored: int, at: int) -> tuple[Array, Array]:
    """For each target, its loss, and how much it counts."""
    if len(target.dims) != len(x.dims) - 1:
        raise Unsupported("a loss whose classes are no numbers")
    place, asked = along_positions(x, at), _unsqueeze(target, at)
    loss = _sum(p.elementwise(lambda i, t, v: g.where(i == t, -v, 0), place, asked, x), at)
    if weight is None:
        counts = p.elementwise(lambda t: g.where(t != ignored, 1.0, 0.0), target)
        return p.elementwise(lambda t, v: g.where(t != ignored, v, 0), target, loss), counts
    weights = trailing(weight, len(x.dims) - at - 1)
    known = p.elementwise(lambda i, t, w: g.where((i == t) & (t != ignored), w, 0), place, asked, weights)
    counts = _sum(known, at)
    return both(operator.mul, loss, counts), counts


def _over(loss: Array, counts: Array, reduce: int) -> Array:
    if reduce == 0:
        return loss
    return _sum(loss) if reduce == 2 else both(operator.truediv, _sum(loss), _sum(counts))


@aten("aten.cross_entropy_loss")
@makes
def _cross_entropy(_t: Trace, node: Any, x: Array, target: Array, weight: Any = None, reduce: int = 1,
                   ignored: int = -100, smoothing: float = 0.0) -> Array:  # fmt: skip
    at = min(1, len(x.dims) - 1)
    logs, n = _log_softmax(x, at), x.shape[at]
    weights = None if weight is None else trailing(weight, len(x.dims) - at - 1)
    if node.args[1].meta["val"].is_floating_point():
        smooth = both(lambda t: t * (1 - smoothing) + smoothing / n, target) if smoothing else target
        each_class = both(lambda t, v: -t * v, smooth, logs)
        loss = _sum(each_class if weights is None else both(operator.mul, each_class, weights), at)
        if reduce != 1:
            return loss if reduce == 0 else _sum(loss)
        return both(lambda v: v / (math.prod(x.shape) / n), _sum(loss))
    loss, counts = of_classes(logs, target, weight, ignored, at)
    made = _over(loss, counts, reduce)
    if not smoothing:
        return made
    weighted = logs if weights is None else both(operator.mul, logs, weights)
    spread = p.elementwise(lambda t, v: g.where(t != ignored, -v, 0), target, _sum(weighted, at))
    return both(lambda a, b: (1 - smoothing) * a + (smoothing / n) * b, made, _over(spread, counts, reduce))


def reduced(x: Array, how: int) -> Array:
    return x if how == 0 else p.reduction("mean" if how == 1 else "sum", x, [*range(len(x.dims))])


@aten("aten.pairwise_distance")
def _pairwise_distance(x: Array, y: Array, order: float = 2, eps: float = 1e-6, keep: bool = False) -> Array:
    return _norm(both(lambda a, b: a - b + eps, x, y), order, -1, keep)


@aten("aten.cosine_similarity")
def _cosine_similarity(x: Array, y: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    norms = [both(lambda v: g.maximum(v, eps), _norm(a, 2, dim, True)) for a in (x, y)]
    a, b = (both(operator.truediv, v, n) for v, n in zip((x, y), norms, strict=True))
    return _sum(both(operator.mul, a, b), dim)
