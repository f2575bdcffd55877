"""The operators in finite fields: what the verifier computes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import inf
from typing import Any  # arrays of any element type, and numbers of `OPS`

import numpy as np

from mirage_cli.ir.access import Tables
from mirage_cli.ir.op import Number, Type
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.scans import Scan
from mirage_cli.verify.field import Field
from mirage_cli.verify.places import (
    NAMED,
    check_overlap,
    check_places,
    named,
    places_of,
    renamed,
    window_places,
    within,
)
from mirage_cli.verify.residues import (
    ALL,
    FINITE,
    LEVELS,
    UNDEFINED,
    Residues,
    aligned,
    as_field,
    both_valid,
    columns,
    same,
)
from mirage_cli.verify.semantics import Array, At, Window


class FieldSemantics:
    """The operators' `field` column."""

    def __init__(self, seed: int, sizes: Mapping[str, int]) -> None:
        self.field = Field(seed, sizes)
        self.sizes: Mapping[str, int] = dict(sizes)
        self.window: Window = {}
        self.tables: Tables = {}

    def apply(self, op: str, args: tuple[Any, ...], axes: tuple[str, ...] = ()) -> Residues:
        row, F = OPS[op], self.field
        if row.kind == "leaf":
            F.window, F.sizes, F.tables = self.window, self.sizes, self.tables
            return row.field(F, axes[0])
        values = [a if i in row.numbers else self._value(a) for i, a in enumerate(args)]
        if op == "rename":
            x, *tables = values
            found = _part(x, *renamed(x, tables, axes, self.sizes))
            if x.reach is None or tables:
                return found
            return replace(found, reach=(int(found.data.min()), int(found.data.max())))
        if row.kind in ("reduction", "contraction"):
            return row.field(F, *values, axes)
        return row.field(F, *values)

    def running(self, e: Scan, x: Residues) -> Residues:
        """The sums up to each position."""
        (axis,) = e.axes
        if x.kind != "field" or x.flags is not None or x.valid != ALL:
            places = np.arange(x.shape[x.dims.index(axis)])
            order = np.greater_equal if e.back else np.less_equal
            upto = Residues((axis, e.to), "bool", order.outer(places, places))
            return self.apply(e.op, (self.apply("where", (upto, x, Fraction(0))),), e.axes)
        at = x.dims.index(axis) - len(x.dims)
        turn = partial(np.flip, axis=at) if e.back else np.asarray
        data = turn(np.cumsum(turn(x.data), axis=at))
        taint = None if x.taint is None else turn(np.logical_or.accumulate(turn(x.whole_taint), axis=at))
        dims = tuple(e.to if d == axis else d for d in x.dims)
        return Residues(dims, "field", np.remainder(data, columns(data)), x.valid, taint=taint)

    def _value(self, a: Any) -> Residues:
        return a if isinstance(a, Residues) else self.field.const(a)

    def join(self, op: str, accumulator: Residues, tile: Residues) -> Residues:
        if OPS[op].extremum:
            return self.field.join(accumulator, tile, largest=OPS[op].identity == -inf)
        return OPS[OPS[op].joins].field(self.field, accumulator, tile)

    def full(self, c: Number, dims: tuple[str, ...], shape: tuple[int, ...], type: Type) -> Residues:
        return self.field.full(c, dims, shape, type)

    def mask(self, dims: tuple[str, ...], data: Array) -> Residues:
        return Residues(dims, "bool", data)

    def memory(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> FieldMemory:
        return FieldMemory(name, dims, shape)

    def input(self, name: str, value: Residues, dims: tuple[str, ...]) -> FieldMemory:
        memory = FieldMemory(name, dims, value.shape)
        memory.write(tuple(slice(0, n) for n in value.shape), dims, value)
        memory.given, memory.written[...] = True, False
        return memory

    def tile(self, value: Residues, window: Window) -> Residues:
        at = window_places(value.dims, window)
        return value if at is None else _part(value, at, value.dims)

    def seen_as(self, value: Residues, dims: tuple[str, ...], shape: tuple[int, ...]) -> Residues:
        lead = (LEVELS,) if value.kind == "field" else ()
        flags = None if value.flags is None else value.flags.reshape(shape)
        taint = None if value.taint is None else value.whole_taint.reshape((LEVELS, *shape))
        return replace(value, dims=dims, data=value.data.reshape((*lead, *shape)), flags=flags, taint=taint)


def _part(x: Residues, at: At, dims: tuple[str, ...]) -> Residues:
    """The elements at these places, whose axes are these."""
    take = within(at, x.shape)
    flags = None if x.flags is None else take(x.flags, 0)
    taint = None if x.taint is None else take(x.whole_taint, 1)
    return Residues(
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
        self.value: Residues | None = None  # with every element undefined or written
        self.dims = dims

    def whole(self) -> Residues:
        assert self.value is not None
        return self.value

    def read(self, at: At, dims: tuple[str, ...]) -> Residues:
        assert self.value is not None
        x = _part(self.value, at, dims)
        if not self.changes:
            return x
        flags, taint = (None if y is None else y.copy() for y in (x.flags, x.taint))
        return replace(x, data=x.data.copy(), flags=flags, taint=taint)

    def write(self, at: At, dims: tuple[str, ...], value: Residues, padded: bool = False) -> None:
        if padded and (kept := named(at)) is not None:
            x = spread(value, dims, kept.shape)
            flags, taint = (None if y is None else y[..., kept] for y in (x.flags, x.taint))
            value = replace(x, dims=NAMED, data=x.data[..., kept], flags=flags, taint=taint)
            at, dims = places_of(at, kept), NAMED
        check_places(self, at)
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
            check_overlap(self, at, written & ~agree)
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

    def _poison(self, like: Residues) -> Residues:
        shape = self.written.shape
        if like.kind == "bool":
            return Residues(self.dims, "bool", np.zeros(shape, dtype=np.bool_))
        if like.kind == "int":
            return Residues(
                self.dims, "int", np.full(shape, np.iinfo(np.int64).min), large=like.large, reach=like.reach
            )
        return Residues(
            self.dims,
            "field",
            np.zeros((LEVELS, *shape), dtype=np.int64),
            ALL,
            np.full(shape, UNDEFINED, dtype=np.int8),
            np.zeros((LEVELS, *shape), dtype=bool),
        )


def _thawed(x: Residues, written: Array) -> Residues:
    """A field value that may be written to: flags and taint are arrays of their own."""
    flags = np.where(written, FINITE if x.flags is None else x.flags, UNDEFINED).astype(np.int8)
    taint = np.zeros(x.data.shape, dtype=bool) if x.taint is None else x.taint.copy()
    return replace(x, data=x.data.copy(), flags=flags, taint=taint)


def spread(x: Residues, dims: tuple[str, ...], shape: tuple[int, ...]) -> Residues:
    """x with exactly these axes, repeated along those that it lacks."""
    lead = 0 if x.kind != "field" else 1
    if x.dims == dims and x.shape == shape:
        return x
    data = aligned(x.data, x.dims, dims, lead)
    data = np.broadcast_to(data, (LEVELS, *shape) if lead else shape)
    flags = None if x.flags is None else np.broadcast_to(aligned(x.flags, x.dims, dims), shape)
    taint = None if x.taint is None else np.broadcast_to(aligned(x.taint, x.dims, dims, 1), (LEVELS, *shape))
    return replace(x, dims=dims, data=data, flags=flags, taint=taint)


def one_draw(x: Residues, n: int) -> Residues:
    """The value of one draw, of those along the first axis."""
    flags = None if x.flags is None else x.flags[n]
    taint = None if x.taint is None else x.whole_taint[:, n]
    data = x.data[:, n] if x.kind == "field" else x.data[n]
    return replace(x, dims=x.dims[1:], data=data, flags=flags, taint=taint)
