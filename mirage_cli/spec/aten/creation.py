"""ATen's operators that make tensors of numbers alone, and those that copy or convert one."""

from __future__ import annotations

import math
import operator
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Trace, Unsupported
from mirage_cli.spec.aten.magnitudes import is_mask, is_whole, may_wrap
from mirage_cli.spec.aten.operands import both, chosen, mask_of, number_of, truncated
from mirage_cli.spec.aten.row import Rows, dtype_name, overloadless
from mirage_cli.spec.aten.shapes import diagonal, unsqueeze

aten = Rows()
SAME = ("aten.clone", "aten.contiguous", "aten.detach", "aten.alias", "aten.lift_fresh_copy",
        "aten.positive", "aten.dropout", "aten.feature_dropout")  # fmt: skip


@aten(*SAME, moves=True)
def _same(x: Array, probability: Any = None, train: bool = False) -> Array:
    if train and probability:
        raise Unsupported("dropout in training draws numbers")
    return x


@aten("aten.to", "aten._to_copy", "aten.type_as", moves=True, with_node=True)
def _convert(_t: Trace, node: Any, x: Array, *_: Any, **__: Any) -> Array:
    dtype, given = node.meta["val"].dtype, node.args[0].meta["val"].dtype
    if dtype.is_floating_point:
        x = number_of(x) if given.is_floating_point else both(lambda v: v / 1, x)
        if given.is_floating_point and given.itemsize == 2 and dtype.itemsize >= 4:
            return both(g.float32, x)  # what is made of it has no 16 bits
        return x if holds(dtype, given) else both(getattr(g, dtype_name(dtype)), x)
    if dtype_name(dtype) == "bool":
        return mask_of(x)
    if x.mask or not node.args[0].meta["val"].dtype.is_floating_point:
        return number_of(x)
    return both(truncated if may_wrap(node) else g.integer, x)


def holds(dtype: Any, given: Any) -> bool:
    """Whether a floating-point type of PyTorch has all numbers of a given type, or more than kernels compute in."""
    return dtype == given or dtype.itemsize >= 4 or (given.is_floating_point and given.itemsize < dtype.itemsize)


FILLED = ("aten.full", "aten.zeros", "aten.ones", "aten.scalar_tensor", "aten.full_like", "aten.zeros_like",
          "aten.ones_like", "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.empty", "aten.empty_like",
          "aten.new_empty", "aten.new_empty_strided")  # fmt: skip


def filled_with(node: Any) -> float | None:
    """The one number of which a call makes a tensor; None of other calls. What nothing is written into yet is 0."""
    name = overloadless(node.target)
    if name not in FILLED:
        return None
    if "zeros" in name or "ones" in name or "empty" in name:
        return float("ones" in name)
    given = node.args[0 if name == "aten.scalar_tensor" else -1]
    value = node.kwargs.get("fill_value", given)
    if not isinstance(value, int | float):
        return None
    return float(bool(value) if is_mask(node) else math.trunc(value) if is_whole(node) else value)


@aten(*FILLED, with_node=True)
def _full(t: Trace, node: Any, *_: Any, **__: Any) -> Array:
    value = filled_with(node)
    if value is None:
        raise Unsupported(f"{node} is filled with a tensor")
    return t.full(node.meta["val"].shape, value)


@aten("aten.arange", with_node=True)
def _arange(t: Trace, node: Any, *args: Any, **_: Any) -> Array:
    start, step = (args[0], args[2] if len(args) > 2 else 1) if len(args) > 1 else (0, 1)
    return t.positions(node.meta["val"].shape[0], start, step)


@aten("aten.eye", with_node=True)
def _eye(t: Trace, node: Any, *_: Any, **__: Any) -> Array:
    """PyTorch's decomposition counts in uint16 from 256 rows on, which PyTorch itself does not run."""
    value = node.meta["val"]
    row, column = map(t.positions, value.shape)
    mask = p.elementwise(operator.eq, p.viewed(row, [*row.dims, ()]), column, mask=True)
    return mask if is_mask(node) else number_of(mask)


@aten("aten.linspace", with_node=True)
def _linspace(t: Trace, node: Any, start: Any, end: Any, *_: Any) -> Array:
    """Each half is counted from its own end, as PyTorch does."""
    (n,) = node.meta["val"].shape
    if not isinstance(start, int | float) or not isinstance(end, int | float):
        raise Unsupported("numbers between two tensors")
    if n == 1:
        return t.full((1,), float(start))
    step = (end - start) / (n - 1)
    return both(lambda i: g.where(i < n // 2, start + step * i, end - step * (n - 1 - i)), t.positions(n))


@aten("aten.tril", "aten.triu", with_node=True)
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
    return p.elementwise(lambda i, j, v: g.where(i == j, v, 0), row, column, unsqueeze(number_of(x), -2))


@aten("aten.diag")
def _diag(x: Array, offset: int = 0) -> Array:
    return _diag_embed(x, offset) if len(x.dims) == 1 else diagonal(x, offset)


@aten("aten.one_hot")
def _one_hot(index: Array, classes: int = -1) -> Array:
    if classes < 1:
        raise Unsupported("one_hot of a number of classes that is not known")
    place = index.trace.positions(classes)
    return number_of(p.elementwise(operator.eq, place, unsqueeze(index, len(index.dims)), mask=True))


@aten("aten.copy", keeps_type=True)
def _copy(x: Array, source: Array, *_: Any) -> Array:
    return p.expanded(number_of(source), x.shape)


@aten("aten.fill", keeps_type=True)
def _fill(x: Array, value: Any) -> Array:
    return p.expanded(number_of(value), x.shape) if isinstance(value, Array) else x.trace.full(x.shape, float(value))
