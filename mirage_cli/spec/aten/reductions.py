"""ATen's reductions, and where along an axis an extremum stands."""

from __future__ import annotations

import math
import operator
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Trace, Unsupported, leaves
from mirage_cli.spec.aten.operands import MOST_COMPARED, along_positions, both, mask_of, number_of, positions
from mirage_cli.spec.aten.row import Rows, overloadless
from mirage_cli.spec.aten.shapes import cat, flip, squeeze, unsqueeze

aten = Rows()
MOST_TAKEN = 8
"""Of the largest elements, and of the integers of a product: each is an expression of its own."""

MOST_HELD = 16384
"""Positions up to each of which there may be a maximum: one program instance has to hold them all."""


def in_its_type(node: Any, x: Array) -> Array:
    """What a reduction reads, which it converts first to the type that the call names: a fraction is cut off."""
    dtype, given = node.kwargs.get("dtype"), node.args[0].meta["val"].dtype
    if dtype is None or dtype.is_floating_point or not given.is_floating_point:
        return x
    return both(g.integer, x)


@aten("aten.sum", behind=1, with_node=True)
def _sum(_t: Trace, node: Any, x: Array, dims: Any = None, keep: bool = False) -> Array:
    return summed(in_its_type(node, x), dims, keep)


def summed(x: Array, dims: Any = None, keep: bool = False) -> Array:
    return p.reduction("sum", number_of(x), positions(x, dims), keep)


@aten("aten.nansum", behind=1)
def _nansum(x: Array, dims: Any = None, keep: bool = False) -> Array:
    return summed(both(lambda v: g.where(g.isnan(v), 0, v), x), dims, keep)


@aten("aten.mean", behind=1)
def _mean(x: Array, dims: Any = None, keep: bool = False) -> Array:
    return p.reduction("mean", number_of(x), positions(x, dims), keep)


@aten("aten.amax", behind=1)
def amax(x: Array, dims: Any = None, keep: bool = False) -> Array:
    return p.reduction("max", number_of(x), positions(x, dims), keep)


@aten("aten.amin", behind=1)
def amin(x: Array, dims: Any = None, keep: bool = False) -> Array:
    return p.reduction("min", number_of(x), positions(x, dims), keep)


@aten("aten.max", behind=1)
def _max(x: Array, other: Any = None, keep: bool = False) -> Any:
    if isinstance(other, int):
        return with_place(x, amax(x, other, True), other, keep)
    return both(g.maximum, x, other) if other is not None else amax(x)


def with_place(x: Array, found: Array, dim: int, keep: bool) -> list[Array]:
    """An extremum along an axis, and where it stands."""
    at = p.axis_of(x, dim)
    made = [found, first_place(x, found, along_positions(x, at), at)]
    return made if keep else [squeeze(a, dim) for a in made]


@aten("aten.any", "aten.all", behind=1, with_node=True)
def _any(_t: Trace, node: Any, x: Array, dims: Any = None, keep: bool = False) -> Array:
    most = amax if overloadless(node.target) == "aten.any" else amin
    return mask_of(most(number_of(mask_of(x)), dims, keep))


@aten("aten.prod", behind=1, with_node=True)
def _prod(_t: Trace, node: Any, x: Array, dim: int | None = None, keep: bool = False) -> Array:
    x = in_its_type(node, x)
    if node.meta["val"].dtype.is_floating_point:
        return p.reduction("prod", number_of(x), positions(x, dim), keep)
    if dim is None or x.shape[dim] > MOST_TAKEN:
        raise Unsupported("a product of many integers")
    made = p.selected(x, dim, 0)
    for i in range(1, x.shape[dim]):
        made = both(operator.mul, made, p.selected(x, dim, i))
    return unsqueeze(made, p.axis_of(x, dim)) if keep else made


@aten("aten.min", behind=1)
def _min(x: Array, other: Any = None, keep: bool = False) -> Any:
    if isinstance(other, int):
        return with_place(x, amin(x, other, True), other, keep)
    return both(g.minimum, x, other) if other is not None else amin(x)


def first_place(x: Array, value: Array, place: Array, dim: int, taken: Array | None = None) -> Array:
    """Where along an axis an extremum stands first, of the places that are not taken. What is no number is one, and
    equal to nothing."""
    n, x = x.shape[dim], number_of(x)
    there = p.elementwise(lambda v, w: (v == w) | g.isnan(v), x, value, mask=True)
    if taken is not None:
        there = p.elementwise(lambda t, e: e & ~t, taken, there, mask=True)
    return amin(p.elementwise(lambda e, i: g.where(e, i, n), there, place), dim, True)


@aten("aten.topk")
def _topk(x: Array, k: int, dim: int = -1, largest: bool = True, *_: Any) -> list[Array]:
    """One after the other: the largest that was not taken yet, at its first place. What is no number is larger than
    all numbers."""
    if k > MOST_TAKEN:
        raise Unsupported(f"the {k} largest elements")
    dim = p.axis_of(x, dim)
    place, taken, given = along_positions(x, dim), None, x
    x = x if largest else both(lambda v: g.where(g.isnan(v), -math.inf, -v), x)
    values: list[Array] = []
    places: list[Array] = []
    for _i in range(k):
        left = x if taken is None else p.elementwise(lambda t, v: g.where(t, -math.inf, v), taken, x)
        best = amax(left, dim, True)
        first = first_place(left, best, place, dim, taken)
        now = p.elementwise(operator.eq, place, first, mask=True)
        one = p.elementwise(lambda t, v: g.where(t, v, 0), now, given)
        values.append(best if largest else p.reduction("sum", one, [dim], True))
        places.append(first)
        taken = now if taken is None else p.elementwise(operator.or_, taken, now, mask=True)
    return [cat(values, dim), cat(places, dim)] if k > 1 else [values[0], places[0]]


@aten("aten.argmax", "aten.argmin", with_node=True)
def _argmax(_t: Trace, node: Any, x: Array, dim: int | None = None, keep: bool = False) -> Array:
    if dim is None:
        x, dim = p.reshaped(x, [-1]), 0
    dim = p.axis_of(x, dim)
    most = amax if overloadless(node.target) == "aten.argmax" else amin
    found = first_place(x, most(x, dim, True), along_positions(x, dim), dim)
    return found if keep else squeeze(found, dim)


def running(x: Array, dim: int, kind: str, nothing: float, most: float = math.inf, *, back: bool = False) -> Array:
    """Of each position, the reduction of those up to it, or with `back` from it on: what is read from its end on is
    reduced from there. nothing: what changes no reduction of this kind. most: positions that kernels can do it for."""
    dim %= max(len(x.dims), 1)
    turned, along = x.trace.turned.get(x, (x, ()))
    if along == (dim,):
        return flip(running(turned, dim, kind, nothing, most, back=not back), along)
    x = number_of(x)
    if not x.dims or x.shape[dim] == 1:
        return x
    n = x.shape[dim]
    if n > most:
        raise Unsupported(f"running reductions of {n} elements")
    longer = p.viewed(x, [*x.dims[:dim], (), *x.dims[dim:]])
    rank = len(longer.dims)
    upto, place = x.trace.positions(n), along_positions(longer, dim + 1)
    upto = p.viewed(upto, [*upto.dims, *[()] * (rank - dim - 1)])
    inside = p.elementwise(lambda i, j, v: g.where(j >= i if back else j <= i, v, nothing), upto, place, longer)
    return p.reduction(kind, inside, [dim + 1])


@aten("aten.cumsum", with_node=True)
def _cumsum(_t: Trace, node: Any, x: Array, dim: int) -> Array:
    return running(in_its_type(node, x), dim, "sum", 0)


@aten("aten.cumprod", with_node=True)
def _cumprod(_t: Trace, node: Any, x: Array, dim: int) -> Array:
    if not node.meta["val"].dtype.is_floating_point:
        raise Unsupported("running products of integers")
    return running(x, dim, "prod", 1)


@aten("aten.logcumsumexp")
def _logcumsumexp(x: Array, dim: int) -> Array:
    return running(x, dim, "logsumexp", -math.inf, MOST_COMPARED)


@aten("aten.cummax", "aten.cummin", with_node=True)
def _cummax(_t: Trace, node: Any, x: Array, dim: int) -> list[Array]:
    kind, nothing = ("max", -math.inf) if overloadless(node.target) == "aten.cummax" else ("min", math.inf)
    found = running(x, dim, kind, nothing, MOST_HELD)
    return [found, last_place(number_of(x), found, dim)]


def last_place(x: Array, found: Array, dim: int) -> Array:
    """Where along an axis the extremum up to each position stands last, of all that equal it: at the last position up
    to there that holds its own extremum, or no number."""
    if not x.dims:
        return both(lambda v: g.where(v == v, 0, 0), x)
    place = along_positions(x, p.axis_of(x, dim))
    there = p.elementwise(lambda v, w, i: g.where((v == w) | g.isnan(v), i, -math.inf), x, found, place)
    return both(g.integer, running(there, dim, "max", -math.inf, MOST_HELD))


@aten("aten.logsumexp", behind=1)
def _logsumexp(x: Array, dims: Any, keep: bool = False) -> Array:
    return p.reduction("logsumexp", x, positions(x, dims), keep)


@aten("aten.softmax", "aten._softmax", behind=1)
def softmax(x: Array, dim: int, *_: Any) -> Array:
    x, at = number_of(x), positions(x, dim)
    if {*leaves(axis for d in at for axis in x.dims[d])} & {*x.own}:
        return p.along("softmax", x, at)
    n = math.prod(x.shape[d] for d in at)  # of equal numbers, or of one
    return both(lambda v: g.exp(v - v) if n == 1 else g.exp(v - v) / n, x)


@aten("aten._safe_softmax", behind=1)
def _safe_softmax(x: Array, dim: int, *_: Any) -> Array:
    """Zeros where nothing is left."""
    return both(lambda m, v: g.where(m == -math.inf, 0, v), amax(number_of(x), dim, True), softmax(x, dim))


@aten("aten.log_softmax", "aten._log_softmax", behind=1)
def log_softmax(x: Array, dim: int, *_: Any) -> Array:
    return both(operator.sub, x, p.reduction("logsumexp", number_of(x), positions(x, dim), True))


@aten("aten.var_mean", "aten.std_mean", behind=1, with_node=True)
def _var_mean(
    t: Trace, node: Any, x: Array, dims: Any = None, unbiased: Any = True, keep: bool = False, **named: Any
) -> list[Array]:
    at = positions(x, None if isinstance(dims, bool) else dims)
    mean = p.reduction("mean", x, at, named.get("keepdim", keep))
    return [_var(t, node, x, dims, unbiased, keep, **named), mean]


@aten("aten.var", "aten.std", behind=1, with_node=True)
def _var(
    _t: Trace, node: Any, x: Array, dims: Any = None, unbiased: Any = True, keep: bool = False, **named: Any
) -> Array:
    if isinstance(dims, bool):  # of all numbers
        dims, unbiased = None, dims
    correction = named.get("correction")
    correction = int(unbiased) if correction is None else correction
    keep = named.get("keepdim", keep)
    at = positions(x, dims)
    count = math.prod(x.shape[i] for i in at)
    if count <= correction:
        raise Unsupported("the variance of too few numbers")
    centred = both(operator.sub, x, p.reduction("mean", x, at, True))
    variance = both(lambda v: v / (count - correction), p.reduction("sum", both(g.square, centred), at, keep))
    return variance if "var" in overloadless(node.target) else both(g.sqrt, variance)


@aten("aten.linalg_vector_norm", "aten.norm", behind=1)
def norm(x: Array, order: Any = 2, dims: Any = None, keep: bool = False, **_: Any) -> Array:
    at = positions(x, dims)
    if order == math.inf:
        return p.reduction("max", both(g.abs, x), at, keep)
    if order == 1:
        return p.reduction("sum", both(g.abs, x), at, keep)
    if order == 0:
        return summed(p.elementwise(lambda v: v != 0, x, mask=True), dims, keep)
    if order == -math.inf:
        return p.reduction("min", both(g.abs, x), at, keep)
    if isinstance(order, str):
        raise Unsupported(f"a norm of order {order}")
    if order not in (2, None):
        total = p.reduction("sum", both(lambda v: g.abs(v) ** order, x), at, keep)
        return both(lambda v: v ** (1 / order), total)
    return both(g.sqrt, p.reduction("sum", both(g.square, x), at, keep))


@aten("aten.dist", behind=1)
def _dist(x: Array, y: Array, order: Any = 2) -> Array:
    return norm(both(operator.sub, x, y), order)


@aten("aten._cdist_forward", "aten.cdist", behind=1)
def _cdist(x: Array, y: Array, order: float = 2, *_: Any) -> Array:
    """The distance of each row of x from each row of y."""
    rows, others = unsqueeze(x, len(x.dims) - 1), unsqueeze(y, len(y.dims) - 2)
    return norm(both(operator.sub, rows, others), order, [-1])


@aten("aten._weight_norm_interface", "aten._weight_norm", behind=1, with_node=True)
def _weight_norm(_t: Trace, node: Any, v: Array, size: Array, dim: int = 0) -> Any:
    size_now = norm(v, 2, [d for d in range(len(v.dims)) if d != p.axis_of(v, dim)], True)
    made = both(lambda a, b, n: a * (b / n), v, size, size_now)
    return made if overloadless(node.target) == "aten._weight_norm" else [made, size_now]


@aten("aten._weight_norm_interface_backward", behind=1)
def _weight_norm_backward(grad: Array, v: Array, size: Array, size_now: Array, dim: int) -> list[Array]:
    along = summed(both(operator.mul, grad, v), [d for d in range(len(v.dims)) if d != p.axis_of(v, dim)], True)
    across = both(lambda a, b, s, n: b - a * (s / n / n), v, grad, along, size_now)
    return [both(lambda x, s, n: x * (s / n), across, size, size_now), both(operator.truediv, along, size_now)]
