"""ATen's operators that change a tensor in place: its rows, by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Dim, Unsupported
from mirage_cli.spec.aten.lookups import along, by_indices
from mirage_cli.spec.aten.operands import number_of
from mirage_cli.spec.aten.row import Rows
from mirage_cli.spec.aten.shapes import broadcast_tensors
from mirage_cli.spec.written import Place, place_of, stored

aten = Rows()
WRITTEN = object()
"""What a node is that changes a tensor in place: nothing that the same program could read."""


@aten("aten.index_put_", named=by_indices)
def _index_put(x: Array, indices: Sequence[Any], value: Array, accumulate: bool = False) -> object:
    """x[..., i, ..., j] = value, by numbers that a table holds, none below zero, or that are counted."""
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if accumulate or any(i.mask for i in given.values()):
        raise Unsupported("what is added in place, or where a mask says")
    shape = broadcast_tensors([*given.values()])[0].shape
    first, *others = given
    lead = first if others == [*range(first + 1, first + 1 + len(others))] else 0
    sizes = [n for d, n in enumerate(x.shape) if d not in given]
    value = p.expanded(number_of(value), [*sizes[:lead], *shape, *sizes[lead:]])
    behind = lead + len(shape)
    beside, left = value.dims[lead:behind], iter((*value.dims[:lead], *value.dims[behind:]))
    stored(
        x, [place_of(given[d], n, beside) if d in given else whole(next(left)) for d, n in enumerate(x.shape)], value
    )
    return WRITTEN


@aten("aten.index_copy_", named=along)
def _index_copy(x: Array, dim: int, index: Array, value: Array) -> object:
    value, dim = number_of(value), p.axis_of(x, dim)
    places = [whole(d) for d in value.dims]
    places[dim] = place_of(index, x.shape[dim], [value.dims[dim]] if index.dims else [])
    stored(x, places, value)
    return WRITTEN


def whole(dim: Dim) -> Place:
    return [(dim, 1)], 0
