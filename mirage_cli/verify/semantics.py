"""Two meanings for the operators, finite fields and float64, each with its values and its device memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from math import inf
from typing import Any, Protocol  # values of a semantics, each with its own

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.access import Access, Tables, dims_of, lookups_of, read_by, renames
from mirage_cli.ir.access_text import parse_index, substitution
from mirage_cli.ir.ops import OPS, Number, Type
from mirage_cli.verify.field import Field, placed
from mirage_cli.verify.residues import (
    ALL,
    DRAW,
    FINITE,
    LEVELS,
    UNDEFINED,
    Value,
    aligned,
    as_field,
    both_valid,
    same,
)

Array = NDArray[Any]
Window = dict[str, tuple[int, int]]
At = tuple[slice | Array, ...]
"""For each axis of an array a range, or positions; with positions, for all of them."""


class ScheduleFailure(Exception):
    """A μGraph that cannot run as scheduled. `reason`: "race", "overlapping store", "store outside",
    "hole", "stray store" or "shape"."""

    def __init__(self, reason: str, where: str) -> None:
        super().__init__(f"{reason}: {where}")
        self.reason = reason


class Memory(Protocol):
    """One tensor in device memory, undefined at first unless it is an input. written: what stores have written.
    changes: whether what is read may be overwritten while it is in use, and so is a copy."""

    name: str
    dims: tuple[str, ...]
    written: Array
    changes: bool

    def read(self, at: At, dims: tuple[str, ...]) -> Any: ...

    def write(self, at: At, dims: tuple[str, ...], value: Any, padded: bool = False) -> None:
        """Store `value`, whose axes are among `dims`, those of the places. padded: what is before the first element is
        not written. Raises ScheduleFailure on a conflict."""
        ...

    def whole(self) -> Any: ...


class Semantics(Protocol):
    """What the operators mean. Values have named axes: `value.dims`."""

    sizes: Mapping[str, int]
    window: Window
    tables: Tables

    def apply(self, op: str, args: tuple[Any, ...], axes: tuple[str, ...] = ()) -> Any: ...

    def join(self, op: str, accumulator: Any, tile: Any) -> Any:
        """The accumulator of the reduction `op` after one more tile's result."""
        ...

    def full(self, c: Number, dims: tuple[str, ...], shape: tuple[int, ...], type: Type) -> Any: ...

    def mask(self, dims: tuple[str, ...], data: Array) -> Any: ...

    def memory(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> Memory: ...

    def input(self, name: str, value: Any, dims: tuple[str, ...]) -> Memory: ...

    def tile(self, value: Any, window: Window) -> Any:
        """The elements in these ranges of the axes of a value, of which it has all."""
        ...

    def seen_as(self, value: Any, dims: tuple[str, ...], shape: tuple[int, ...]) -> Any:
        """The same elements in memory order, as a tensor of other axes."""
        ...


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


def _within(dims: tuple[str, ...], window: Window) -> At | None:
    """The ranges of a window along these axes, all of the others; None where it cuts none of them."""
    return tuple(slice(*window.get(d, (None, None))) for d in dims) if window.keys() & {*dims} else None


def _renamed(
    x: Value | Named, tables: Sequence[Value | Named], axes: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[At, tuple[str, ...]]:
    """Where the elements of a renamed value lie in it, and its axes. Each table may have axes in front of its own."""
    shape = x.data.shape[-len(x.dims) :] if x.dims else ()
    names = substitution(axes)
    access = read_by(x.dims, names)
    own = {y.table: len(y.access) for y in lookups_of(access)}
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


# -- finite fields


class FieldSemantics:
    """The operators' `field` column."""

    def __init__(self, seed: int, sizes: Mapping[str, int]) -> None:
        self.field = Field(seed, sizes)
        self.sizes: Mapping[str, int] = dict(sizes)
        self.window: Window = {}
        self.tables: Tables = {}

    def apply(self, op: str, args: tuple[Any, ...], axes: tuple[str, ...] = ()) -> Value:
        row, F = OPS[op], self.field
        if row.kind == "leaf":
            F.window, F.sizes, F.tables = self.window, self.sizes, self.tables
            return row.field(F, axes[0])
        values = [a if i in row.numbers else self._value(a) for i, a in enumerate(args)]
        if op == "rename":
            x, *tables = values
            found = _part(x, *_renamed(x, tables, axes, self.sizes))
            return found if x.reach is None else replace(found, reach=(int(found.data.min()), int(found.data.max())))
        if row.kind in ("reduction", "contraction"):
            return row.field(F, *values, axes)
        return row.field(F, *values)

    def _value(self, a: Any) -> Value:
        return a if isinstance(a, Value) else self.field.const(a)

    def join(self, op: str, accumulator: Value, tile: Value) -> Value:
        if OPS[op].extremum:
            return self.field.join(accumulator, tile, largest=OPS[op].identity == -inf)
        return self.field.add(accumulator, tile)

    def full(self, c: Number, dims: tuple[str, ...], shape: tuple[int, ...], type: Type) -> Value:
        return self.field.full(c, dims, shape, type)

    def mask(self, dims: tuple[str, ...], data: Array) -> Value:
        return Value(dims, "bool", data)

    def memory(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> FieldMemory:
        return FieldMemory(name, dims, shape)

    def input(self, name: str, value: Value, dims: tuple[str, ...]) -> FieldMemory:
        memory = FieldMemory(name, dims, value.shape)
        memory.write(tuple(slice(0, n) for n in value.shape), dims, value)
        memory.given, memory.written[...] = True, False
        return memory

    def tile(self, value: Value, window: Window) -> Value:
        at = _within(value.dims, window)
        return value if at is None else _part(value, at, value.dims)

    def seen_as(self, value: Value, dims: tuple[str, ...], shape: tuple[int, ...]) -> Value:
        lead = (LEVELS,) if value.kind == "field" else ()
        flags = None if value.flags is None else value.flags.reshape(shape)
        taint = None if value.taint is None else value.whole_taint.reshape((LEVELS, *shape))
        return replace(value, dims=dims, data=value.data.reshape((*lead, *shape)), flags=flags, taint=taint)


def _part(x: Value, at: At, dims: tuple[str, ...]) -> Value:
    """The elements at these places, whose axes are these."""
    take = within(at, x.shape)
    flags = None if x.flags is None else take(x.flags, 0)
    taint = None if x.taint is None else take(x.whole_taint, 1)
    return Value(
        dims,
        x.kind,
        take(x.data, int(x.kind == "field")),
        x.valid,
        flags if flags is not None and flags.any() else None,
        taint if taint is not None and taint.any() else None,
        x.sign,
        x.large,
        x.reach,
    )


class FieldMemory:
    """A tensor of field values, or of integers or masks. given: whether it holds something before it is written."""

    def __init__(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> None:
        self.name = name
        self.given = self.changes = False
        self.written = np.zeros(shape, dtype=bool)
        self.value: Value | None = None  # with every element undefined or written
        self.dims = dims

    def whole(self) -> Value:
        assert self.value is not None
        return self.value

    def read(self, at: At, dims: tuple[str, ...]) -> Value:
        assert self.value is not None
        x = _part(self.value, at, dims)
        if not self.changes:
            return x
        flags, taint = (None if y is None else y.copy() for y in (x.flags, x.taint))
        return replace(x, data=x.data.copy(), flags=flags, taint=taint)

    def write(self, at: At, dims: tuple[str, ...], value: Value, padded: bool = False) -> None:
        if padded and (kept := named(at)) is not None:
            x = spread(value, dims, kept.shape)
            flags, taint = (None if y is None else y[..., kept] for y in (x.flags, x.taint))
            value = replace(x, dims=NAMED, data=x.data[..., kept], flags=flags, taint=taint)
            at, dims = places_of(at, kept), NAMED
        _check_places(self, at)
        if self.value is None:
            self.value = self._poison(value)
        old = self.value
        if old.kind != value.kind:
            old = self.value = _thawed(as_field(old), self.written | self.given)
            value = as_field(value)
        written = self.written[at]
        new = spread(value, dims, written.shape)
        if written.any():
            agree, _ = same(self.read(at, dims), new)
            _check_overlap(self, at, written & ~agree)
        if value.kind != "field":
            old.data[at] = new.data
        else:
            assert old.flags is not None and old.taint is not None
            inner = (slice(None), *at)
            old.data[inner] = new.data
            old.flags[at] = FINITE if new.flags is None else new.flags
            old.taint[inner] = False if new.taint is None else new.taint
            if old.valid != value.valid:
                self.value = replace(old, valid=both_valid(old, value))
        self.written[at] = True

    def _poison(self, like: Value) -> Value:
        shape = self.written.shape
        if like.kind == "bool":
            return Value(self.dims, "bool", np.zeros(shape, dtype=np.bool_))
        if like.kind == "int":
            return Value(self.dims, "int", np.full(shape, np.iinfo(np.int64).min), large=like.large, reach=like.reach)
        return Value(
            self.dims,
            "field",
            np.zeros((LEVELS, *shape), dtype=np.int64),
            ALL,
            np.full(shape, UNDEFINED, dtype=np.int8),
            np.zeros((LEVELS, *shape), dtype=bool),
        )


def _thawed(x: Value, written: Array) -> Value:
    """A field value that may be written to: flags and taint are arrays of their own."""
    flags = np.where(written, FINITE if x.flags is None else x.flags, UNDEFINED).astype(np.int8)
    taint = np.zeros(x.data.shape, dtype=bool) if x.taint is None else x.taint.copy()
    return replace(x, data=x.data.copy(), flags=flags, taint=taint)


def spread(x: Value, dims: tuple[str, ...], shape: tuple[int, ...]) -> Value:
    """x with exactly these axes, repeated along those that it lacks."""
    lead = 0 if x.kind != "field" else 1
    if x.dims == dims and x.shape == shape:
        return x
    data = aligned(x.data, x.dims, dims, lead)
    data = np.broadcast_to(data, (LEVELS, *shape) if lead else shape)
    flags = None if x.flags is None else np.broadcast_to(aligned(x.flags, x.dims, dims), shape)
    taint = None if x.taint is None else np.broadcast_to(aligned(x.taint, x.dims, dims, 1), (LEVELS, *shape))
    return replace(x, dims=dims, data=data, flags=flags, taint=taint)


def one_draw(x: Value, n: int) -> Value:
    """The value of one draw, of those along the first axis."""
    flags = None if x.flags is None else x.flags[n]
    taint = None if x.taint is None else x.whole_taint[:, n]
    data = x.data[:, n] if x.kind == "field" else x.data[n]
    return replace(x, dims=x.dims[1:], data=data, flags=flags, taint=taint)


NAMED = ("named",)
"""The axis of the places that are left where tables name nothing for some."""


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


def _check_overlap(memory: Memory, at: At, conflict: Array) -> None:
    if conflict.any():
        first = tuple(int(i) for i in np.argwhere(conflict)[0])
        raise ScheduleFailure("overlapping store", f"{_element(memory, at, first)} gets two different values")


def _check_places(memory: Memory, at: At) -> None:
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


# -- float64


@dataclass(frozen=True, slots=True)
class Named:
    """A numpy array with named axes."""

    dims: tuple[str, ...]
    data: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


class FloatSemantics:
    """The operators' `ref` column: float64, exact integers, masks."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes: Mapping[str, int] = dict(sizes)
        self.window: Window = {}
        self.tables: Tables = {}

    def apply(self, op: str, args: tuple[Any, ...], axes: tuple[str, ...] = ()) -> Named:
        row = OPS[op]
        if op == "index":
            return Named(*placed(parse_index(axes[0]), self.window, self.sizes, self.tables))
        if op == "size":
            return Named((), np.asarray(row.ref(self.sizes[axes[0]])))
        if op == "rename":
            x, *tables = args
            at, into = _renamed(x, tables, axes, self.sizes)
            return Named(into, taken(x.data, at))
        dims = tuple(dict.fromkeys(d for a in args if isinstance(a, Named) for d in a.dims))
        arrays = [aligned(a.data, a.dims, dims) if isinstance(a, Named) else _float(a) for a in args]
        with np.errstate(all="ignore"):
            if row.kind not in ("reduction", "contraction"):
                return Named(dims, np.asarray(row.ref(*arrays)))
            at = tuple(dims.index(a) for a in axes)
            kept = tuple(d for d in dims if d not in axes)
            return Named(kept, np.asarray(row.ref(*arrays, axis=at)))

    def join(self, op: str, accumulator: Named, tile: Named) -> Named:
        return self.apply(OPS[op].joins, (accumulator, tile))

    def full(self, c: Number, dims: tuple[str, ...], shape: tuple[int, ...], type: Type) -> Named:
        if type == "int":
            info = np.iinfo(np.int64)
            exact = int(c) if isinstance(c, Fraction) else info.max if c > 0 else info.min
            return Named(dims, np.full(shape, exact, dtype=np.int64))
        return Named(dims, np.full(shape, float(c)))

    def mask(self, dims: tuple[str, ...], data: Array) -> Named:
        return Named(dims, data)

    def memory(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> FloatMemory:
        return FloatMemory(name, dims, shape)

    def input(self, name: str, value: Named | Array, dims: tuple[str, ...]) -> FloatMemory:
        data = value.data if isinstance(value, Named) else value
        memory = FloatMemory(name, dims, data.shape)
        memory.write(tuple(slice(0, n) for n in data.shape), dims, Named(dims, data))
        memory.given, memory.written[...] = True, False
        return memory

    def tile(self, value: Named, window: Window) -> Named:
        at = _within(value.dims, window)
        return value if at is None else Named(value.dims, value.data[at])

    def seen_as(self, value: Named | Array, dims: tuple[str, ...], shape: tuple[int, ...]) -> Named:
        return Named(dims, (value.data if isinstance(value, Named) else value).reshape(shape))


def _float(c: Number) -> Any:
    return int(c) if isinstance(c, Fraction) and c.denominator == 1 else float(c)


class FloatMemory:
    """A float64 (or int64, or bool) tensor, NaN at first. given: as of `FieldMemory`."""

    def __init__(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> None:
        self.name = name
        self.given = self.changes = False
        self.dims = dims
        self.written = np.zeros(shape, dtype=bool)
        self.data: Array = np.full(shape, np.nan)

    def whole(self) -> Named:
        return Named(self.dims, self.data)

    def read(self, at: At, dims: tuple[str, ...]) -> Named:
        found = taken(self.data, at)
        return Named(dims, found.copy() if self.changes else found)

    def write(self, at: At, dims: tuple[str, ...], value: Named, padded: bool = False) -> None:
        if padded and (kept := named(at)) is not None:
            whole = np.broadcast_to(aligned(value.data, value.dims, dims), kept.shape)
            at, dims, value = places_of(at, kept), NAMED, Named(NAMED, whole[kept])
        _check_places(self, at)
        shape = self.written[at].shape
        new = np.broadcast_to(aligned(value.data, value.dims, dims), shape)
        fresh = not self.given and not self.written.any()
        if fresh and new.dtype.kind == "i":
            self.data = np.full(self.written.shape, np.iinfo(np.int64).min)
        if fresh and new.dtype.kind == "b":
            self.data = np.zeros(self.written.shape, dtype=bool)
        if (before := self.written[at]).any():
            _check_overlap(self, at, before & ~np.isclose(self.data[at], new, rtol=1e-9, atol=0, equal_nan=True))
        self.data[at] = new
        self.written[at] = True
