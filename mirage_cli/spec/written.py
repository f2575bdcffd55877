"""What a trace writes into its inputs in place: values at rows that a table names, or that are counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # the graph's values: of inputs, and what may be a number

from mirage_cli.spec.arrays import (
    Array,
    Counted,
    Dim,
    InPlaceWrite,
    Names,
    Part,
    Unsupported,
    leaves,
    paired,
    size_of,
    source,
)
from mirage_cli.spec.graph import Value
from mirage_cli.spec.positional import indices


@dataclass(frozen=True)
class Entry:
    """An index that a table holds. dims: of the value that is written, beside the table's positions."""

    table: Array
    dims: tuple[Dim, ...]


Place = Part | Entry


def place_of(index: Array, size: int, beside: Sequence[Dim]) -> Place:
    """What an index of an axis of this size says. beside: the dims of a value beside its last positions. Raises
    Unsupported."""
    root = source(index)
    sides = dict(zip(index.dims, beside[len(beside) - len(index.dims) :], strict=True))
    if not {*root.dims} - {()} <= {*sides}:
        raise Unsupported("an index whose axes are taken apart")
    dims = tuple(sides[d] if d else () for d in root.dims)
    if isinstance(root.how, Counted):
        last = root.how.start + root.how.step * (size_of(root.dims[0]) - 1)
        if not 0 <= min(root.how.start, last) <= max(root.how.start, last) < size:
            raise Unsupported("an index outside of its axis")
        return [(dims[0], root.how.step)], root.how.start
    if not root.name:
        raise Unsupported("an index that is computed")
    return Entry(root, dims)


def stored(a: Array, places: Sequence[Place], value: Array) -> None:
    """Writes a value into an input in place, by an index for each of the input's positions. Raises Unsupported."""
    trace, root = a.trace, source(a)
    named_once(a, places)
    for dim, place in zip(a.dims, places, strict=True):
        for x, y in sides_of(dim, place):
            trace.unify(x.found(), y.found())
        if isinstance(place, Entry):
            trace.bound(place.table, size_of(dim), dim)
    if not {x for dim in value.dims for x in leaves(dim)} <= {*value.own}:
        raise Unsupported("one number is written at several places")
    tables = [place.table for place in places if isinstance(place, Entry)]

    def write(names: Names, target: Value, written: Value | float, *entries: Any) -> None:
        if not isinstance(written, Value):
            raise Unsupported("what is written is a constant")
        held, index, left = {*root.own}, dict[str, Any](), iter(entries)
        for dim, place in zip(a.dims, places, strict=True):
            if not isinstance(place, Entry):
                index |= indices(names, [dim], [place], held)
                continue
            row = entry(names, place, next(left))
            if len(leaves(dim)) > 1:
                raise Unsupported("rows of an axis that is several")
            index |= dict.fromkeys(names.of(dim), row)
        target[tuple(index[n] for n in names.of(root.held))] = written

    trace.stores.append(InPlaceWrite((root, value, *tables), write, trace.maker))


def sides_of(dim: Dim, place: Place) -> list[tuple[Any, Any]]:
    """The axes of a table, or of an input where all of an axis is written, with those of the value beside them."""
    match place:
        case Entry(table, dims):
            return [both for own, other in zip(table.dims, dims, strict=True) for both in paired(own, other)]
        case ([(other, 1)], 0) if size_of(other) == size_of(dim):
            return paired(dim, other)
        case _:
            return []


def named_once(a: Array, places: Sequence[Place]) -> None:
    """Declares that a table holds no number twice, where nothing else tells its rows apart: PyTorch leaves open which
    of several it writes. Raises Unsupported."""
    told = {axis for place in places if not isinstance(place, Entry) for dim, _ in place[0] for axis in leaves(dim)}
    tables = [(d, place) for d, place in enumerate(places) if isinstance(place, Entry)]
    alone = [(d, place) for d, place in tables if not {x for dim in place.dims for x in leaves(dim)} <= told]
    if len(alone) > 1 or any(math.prod(place.table.shape) > a.shape[d] for d, place in alone):
        raise Unsupported("what is written may be written again")
    a.trace.distinct |= {place.table for _, place in alone}


def entry(names: Names, place: Entry, entries: Any) -> Any:
    """What a table holds beside the axes of a value."""
    index = indices(names, place.table.dims, [([(dim, 1)], 0) for dim in place.dims], {*place.table.own})
    order = names.of(place.table.held)
    return entries[tuple(index[n] for n in order)] if order else entries
