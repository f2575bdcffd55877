"""Operands of ATen's operators: numbers and masks, and the positions along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array

MOST_COMPARED = 4096
"""Rows of a table that are compared with a computed index, at most: every row is read for every result."""


def conjunction(x: Any, y: Any) -> Any:
    """Of two masks. One may be a bool of Python."""
    if isinstance(x, bool) or isinstance(y, bool):
        known, other = (x, y) if isinstance(x, bool) else (y, x)
        return other if known else False
    return x & y


def disjunction(x: Any, y: Any) -> Any:
    return negation(conjunction(negation(x), negation(y))) if isinstance(x, bool) or isinstance(y, bool) else x | y


def negation(x: Any) -> Any:
    return not x if isinstance(x, bool) else ~x


def chosen(mask: Any, x: Any, y: Any) -> Any:
    if isinstance(mask, bool):
        return x if mask else y
    return g.where(mask, x, y)


def hiding(x: Any, y: Any) -> Any:
    """x + y. Where y is a mask as numbers, 0 where it holds and -inf elsewhere, x there."""
    mask, kept, hidden = g.operands_of(y, "where") or (None, 1, 1)
    if mask is not None and g.is_number(kept, 0.0) and g.is_number(hidden, -math.inf):
        return g.where(mask, x, -math.inf)
    if mask is not None and g.is_number(kept, -math.inf) and g.is_number(hidden, 0.0):
        return g.where(mask, -math.inf, x)
    return x + y


def mask_of(x: Any) -> Any:
    """x as a mask: numbers are compared with 0."""
    return p.elementwise(lambda v: v != 0, x, mask=True) if isinstance(x, Array) and not x.mask else x


def number_of(x: Any) -> Any:
    """x as numbers: a mask is 1 where it holds, else 0."""
    if isinstance(x, bool):
        return int(x)
    return p.elementwise(lambda v: chosen(v, 1, 0), x) if isinstance(x, Array) and x.mask else x


def truncated(x: Any) -> Any:
    """A number without its fraction, which stays a floating-point one."""
    return g.where(x < 0, g.ceil(x), g.floor(x))


def both(function: Callable[..., Any], *args: Any) -> Array:
    """A function of numbers, at each position of its arguments."""
    return p.elementwise(function, *map(number_of, args))


def trailing(w: Array, count: int) -> Array:
    """A value of each channel, with so many axes of size 1 behind."""
    return p.viewed(w, [*w.dims, *[()] * count])


def along_positions(x: Array, dim: int) -> Array:
    """The numbers of the positions along an axis of an array."""
    at = p.axis_of(x, dim)
    counted = x.trace.positions(x.shape[at])
    return p.viewed(counted, [*counted.dims, *[()] * (len(x.dims) - at - 1)])


def positions(x: Array, dims: Any) -> list[int]:
    """The axes that an argument `dim` names: one, several, or, for None and [], all."""
    n = len(x.dims)
    if dims is None or dims == []:
        return [*range(n)]
    return [d % n for d in (dims if isinstance(dims, list) else [dims]) if n]
