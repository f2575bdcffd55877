"""Places: where in the array of a tensor the elements of an access or a tile lie, and what may be stored there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np

from mirage_cli.ir.access import Access, Tables, dims_of, lookups_of, read_by, renames
from mirage_cli.ir.access_text import substitution
from mirage_cli.verify.residues import DRAW, Residues
from mirage_cli.verify.semantics import Array, At, Memory, Named, ScheduleFailure, Window

NAMED = ("named",)
"""The axis of the places that are left where tables name nothing for some."""


def positions(
    access: Access,
    ranges: Mapping[str, tuple[int, int]],
    lengths: Sequence[int],
    tables: Tables,
    dims: tuple[str, ...] | None = None,
) -> At:
    """Where the elements of an access lie in an array, for these positions of its axes: ranges where each index is an
    axis, and all are there, else arrays that broadcast against each other. dims: the axes of the positions, where
    tables bring further ones."""
    dims = dims_of(access) if dims is None else dims
    if dims == tuple(i.axis for i in access) and all(ranges[d][1] <= n for d, n in zip(dims, lengths, strict=True)):
        return tuple(slice(*ranges[d]) for d in dims)
    return tuple(i.positions(dims, ranges, tables) for i in access)


def taken(data: Array, at: At, lead: int = 0) -> Array:
    """The elements at these places, 0 (or False) where there is none; `lead` axes stay first."""
    return within(at, data.shape[lead:])(data, lead)


def within(at: At, shape: Sequence[int]) -> Callable[[Array, int], Array]:
    """`taken` of any array of this shape, whose places are looked at once."""
    outside = [(x < 0) | (x >= n) for x, n in zip(at, shape, strict=True) if not isinstance(x, slice)]
    if not any(o.any() for o in outside):
        return lambda data, lead: data[(*(slice(None),) * lead, *at)]
    inner = tuple(np.clip(x, 0, n - 1) for x, n in zip(at, shape, strict=True) if not isinstance(x, slice))
    beyond = reduce(np.logical_or, outside)
    return lambda data, lead: np.where(beyond, np.zeros((), data.dtype), data[(*(slice(None),) * lead, *inner)])


def window_places(dims: tuple[str, ...], window: Window) -> At | None:
    """The ranges of a window along these axes, all of the others; None where it cuts none of them."""
    return tuple(slice(*window.get(d, (None, None))) for d in dims) if window.keys() & {*dims} else None


def renamed(
    x: Residues | Named, tables: Sequence[Residues | Named], axes: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[At, tuple[str, ...]]:
    """Where the elements of a renamed value lie in it, and its axes. Each table may have axes in front of its own."""
    shape = x.data.shape[-len(x.dims) :] if x.dims else ()
    names = substitution(axes)
    access = read_by(x.dims, names)
    own = {y.table: len(y.access) for y in lookups_of(names.values())}
    found: dict[str, tuple[tuple[str, ...], Array]] = {}
    ranges = _ranges(access, x.dims, shape, sizes)
    dims = dims_of(access)
    for (name, count), t in zip(own.items(), tables, strict=True):
        before = t.dims[: len(t.dims) - count]
        found[name] = before, t.data
        for d, n in zip(before, t.data.shape, strict=False):
            if d not in dims:
                dims, ranges = (d, *dims), ranges | {d: (0, n)}
    return positions(access, ranges, shape, found, dims), dims


def _ranges(
    access: Access, dims: Sequence[str], shape: Sequence[int], sizes: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """The positions of the axes of an access to an array: all of its own where an axis is but renamed."""
    own = {i.axis: n for d, i, n in zip(dims, access, shape, strict=True) if i.axis == d or renames(d, i, sizes)}
    return {d: (0, own[d] if d in own else sizes[d]) for d in dims_of(access)}


def named(at: At) -> Array | None:
    """Which places are none before the first; None where they are ranges."""
    return reduce(np.logical_and, (x >= 0 for x in places)) if (places := _arrays(at)) else None


def places_of(at: At, kept: Array) -> At:
    """Some of these places, in a row."""
    return tuple(x[kept] for x in _arrays(at))


def in_front(shape: tuple[int, ...], at: At) -> At:
    """All positions along axes of this shape in front of places, which are arrays."""
    ndim = max(x.ndim for x in _arrays(at))
    front = (np.arange(n).reshape([-1 if i == k else 1 for k in range(len(shape) + ndim)]) for i, n in enumerate(shape))
    return *front, *at


def where_worked(at: At, worked: Array) -> At:
    """The same places, those along the axis of draws, which is the first, before the start where nothing was done."""
    ranges = [np.arange(x.start, x.stop) for x in at if isinstance(x, slice)]
    draws, *others = np.ix_(*ranges) if ranges else _arrays(at)
    return np.where(worked[draws], draws, -1), *others


def _arrays(at: At) -> tuple[Array, ...]:
    """The places as arrays of one shape, but for ranges."""
    return tuple(np.broadcast_arrays(*(x for x in at if not isinstance(x, slice))))


def check_overlap(memory: Memory, at: At, conflict: Array) -> None:
    if conflict.any():
        first = tuple(int(i) for i in np.argwhere(conflict)[0])
        raise ScheduleFailure("overlapping store", f"{_element(memory, at, first)} gets two different values")


def check_places(memory: Memory, at: At) -> None:
    """Whether every place is in the tensor, and none is there twice."""
    if not at or isinstance(at[0], slice):
        return
    places, shape = _arrays(at), memory.written.shape
    assert len(places) == len(at), "places are all ranges or none"
    for x, n in zip(places, shape, strict=True):
        if (outside := (x < 0) | (x >= n)).any():
            first = tuple(int(i) for i in np.argwhere(outside)[0])
            raise ScheduleFailure("store outside", f"{_element(memory, at, first)} is outside of {memory.name}")
    flat = np.ravel_multi_index(places, shape)
    if len(np.unique(flat)) < flat.size:
        raise ScheduleFailure("overlapping store", f"one store writes an element of {memory.name} twice")


def _element(memory: Memory, at: At, place: tuple[int, ...]) -> str:
    """The element of a tensor that is number `place` among these places."""
    if at and not isinstance(at[0], slice):
        found = [int(x[place]) for x in _arrays(at)]
    else:
        found = [s.start + i for s, i in zip(at, place, strict=True) if isinstance(s, slice)]
    return element(memory, found)


def element(memory: Memory, at: Sequence[int]) -> str:
    """The element of a tensor at a position, in whichever draw."""
    return f"{memory.name}[{', '.join(map(str, at[memory.dims[:1] == (DRAW,) :]))}]"
