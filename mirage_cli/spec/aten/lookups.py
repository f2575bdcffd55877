"""ATen's operators that read, or write, at the places that integers name."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Trace, Unsupported
from mirage_cli.spec.aten.operands import MOST_COMPARED, along_positions, both, number_of
from mirage_cli.spec.aten.reductions import amax, summed
from mirage_cli.spec.aten.row import Named, Rows, overloadless
from mirage_cli.spec.aten.shapes import broadcast_tensors, unsqueeze

aten = Rows()


def along(node: Any) -> tuple[Named, ...]:
    """Of `op(x, dim, index, ...)`."""
    x, dim, index, *_ = node.args
    return (Named(index, x, dim),)


def by_indices(node: Any) -> tuple[Named, ...]:
    """Of `op(x, [index, None, ...], ...)`."""
    x, indices, *_ = node.args
    return tuple(Named(i, x, d, from_end=True) for d, i in enumerate(indices) if i is not None)


def by_rows(node: Any) -> tuple[Named, ...]:
    """Of `op(x, index, ...)`."""
    x, index, *_ = node.args
    return (Named(index, x, 0),)


def rows(x: Array, dim: int, index: Array, wraps: bool = False) -> Array:
    """x[index] along an axis: the axes of the index take the place of that axis.

    wraps: whether negative indices count from the end. A look-up needs an index that is an input and rows along the
    first axis. Otherwise the result is a sum over all rows, of the row where its number is the index, else 0.
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
    """The element along an axis whose number is asked for, at each position of the other axes."""
    n = x.shape[dim]
    if n > MOST_COMPARED:
        raise Unsupported(f"a computed index among {n} rows")
    place = along_positions(x, dim)

    def here(i: Any, t: Any) -> Any:
        return (i == t) | (i == t + n) if wraps else i == t

    return summed(p.elementwise(lambda i, t, v: g.where(here(i, t), v, 0), place, asked, number_of(x)), dim)


@aten("aten.index_select", looks_up=True, named=along)
def _index_select(x: Array, dim: int, index: Array) -> Array:
    return rows(x, dim, index)


@aten("aten.index", looks_up=True, named=by_indices)
def _index(x: Array, indices: Sequence[Any]) -> Array:
    """x[..., i, ..., j]: what they name stands in front, or at the first position where they stand side by side."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.mask for _, i in given):
        raise Unsupported("elements that a mask picks")
    if len(given) == 1:
        (dim, index), *_ = given
        return rows(x, dim, index, wraps=True)
    dims = [d for d, _ in given]
    x = p.permuted(x, [*dims, *(d for d in range(len(x.dims)) if d not in dims)])
    shapes = broadcast_tensors([i for _, i in given])
    inner = len(shapes[0].dims)
    rest = len(x.dims) - len(dims)
    x = p.viewed(x, [*[()] * inner, *x.dims])
    for index in shapes:  # each takes the first position that is left
        asked = p.viewed(index, [*index.dims, *[()] * (len(x.dims) - inner)])
        x = one_of(x, inner, asked, wraps=True)
    assert len(x.dims) == inner + rest
    front = dims[0] if dims == [*range(dims[0], dims[-1] + 1)] else 0
    behind = [*range(inner, inner + rest)]
    return p.permuted(x, [*behind[:front], *range(inner), *behind[front:]])


@aten("aten._unsafe_index", looks_up=True)
def _unsafe_index(x: Array, indices: Sequence[Any]) -> Array:
    """By numbers that PyTorch does not check either: its decompositions have worked them out."""
    return _index(x, indices)


@aten("aten.gather", looks_up=True, named=along)
def _gather(x: Array, dim: int, index: Array, *_: Any) -> Array:
    dim %= len(x.dims)
    for d, (n, size) in enumerate(zip(index.shape, x.shape, strict=True)):
        if d != dim and n != size:
            x = p.sliced(x, d, 0, n)
    table = p.viewed(x, [*x.dims[: dim + 1], (), *x.dims[dim + 1 :]])
    table = p.viewed(table, [*x.dims[:dim], (), *x.dims[dim:]])
    return one_of(table, dim + 1, unsqueeze(index, dim + 1))


@aten("aten.embedding", looks_up=True, named=by_rows)
def _embedding(weight: Array, indices: Array, *_: Any, **__: Any) -> Array:
    return rows(weight, 0, indices)


@aten("aten.scatter", "aten.scatter_add", with_node=True, named=along)
def _scatter(_t: Trace, node: Any, x: Array, dim: int, index: Array, new: Any, **named: Any) -> Array:
    """Indices along the axis are expected to differ; where several are equal, the largest of their values is kept."""
    dim %= len(x.dims)
    if named.get("reduce") or (isinstance(new, Array) and new.shape != index.shape) or index.shape[dim] > MOST_COMPARED:
        raise Unsupported("a scatter that reduces, or of more than there are numbers")
    if any(n != size for d, (n, size) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim):
        raise Unsupported("a scatter into a part")
    place = along_positions(unsqueeze(x, dim), dim + 1)
    asked = unsqueeze(index, dim + 1)
    given = unsqueeze(number_of(new), dim + 1) if isinstance(new, Array) else number_of(new)
    if overloadless(node.target) == "aten.scatter_add":
        more = summed(p.elementwise(lambda i, t, v: g.where(i == t, v, 0), place, asked, given), dim)
        return both(operator.add, x, more)
    hit = amax(p.elementwise(lambda i, t: g.where(i == t, 1, 0), place, asked), dim)
    best = amax(p.elementwise(lambda i, t, v: g.where(i == t, v, -math.inf), place, asked, given), dim)
    return p.elementwise(lambda h, b, v: g.where(h > 0, b, v), hit, best, number_of(x))


@aten("aten.index_add", named=along)
def _index_add(x: Array, dim: int, index: Array, new: Array, alpha: float = 1) -> Array:
    """x, plus at each index the sum of the elements that have it."""
    dim %= len(x.dims)
    if new.shape[dim] > MOST_COMPARED:
        raise Unsupported(f"{new.shape[dim]} elements that are added where numbers say")
    place = along_positions(unsqueeze(x, dim + 1), dim)
    asked = p.viewed(index, [*index.dims, *[()] * (len(x.dims) - dim - 1)])
    more = summed(
        p.elementwise(lambda i, t, v: g.where(i == t, v * alpha, 0), place, asked, unsqueeze(new, dim)), dim + 1
    )
    return both(operator.add, x, more)
