"""The operators in float64: a reference."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any  # arrays of any element type, and numbers of `OPS`

import numpy as np

from mirage_cli.ir.access import Tables
from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.op import Number, Type
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.scans import Scan
from mirage_cli.verify.field import placed
from mirage_cli.verify.places import NAMED, check_overlap, check_places, named, places_of, renamed, taken, window_places
from mirage_cli.verify.residues import aligned
from mirage_cli.verify.semantics import Array, At, Named, Window


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
            at, into = renamed(x, tables, axes, self.sizes)
            return Named(into, taken(x.data, at))
        dims = tuple(dict.fromkeys(d for a in args if isinstance(a, Named) for d in a.dims))
        arrays = [aligned(a.data, a.dims, dims) if isinstance(a, Named) else _float(a) for a in args]
        with np.errstate(all="ignore"):
            if row.kind not in ("reduction", "contraction"):
                return Named(dims, np.asarray(row.ref(*arrays)))
            at = tuple(dims.index(a) for a in axes)
            kept = tuple(d for d in dims if d not in axes)
            return Named(kept, np.asarray(row.ref(*arrays, axis=at)))

    def running(self, e: Scan, x: Named) -> Named:
        """The sums up to each position."""
        at = x.dims.index(e.axes[0])
        turn = partial(np.flip, axis=at) if e.back else np.asarray
        with np.errstate(all="ignore"):
            return Named(tuple(e.to if d in e.axes else d for d in x.dims), turn(np.cumsum(turn(x.data), axis=at)))

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
        at = window_places(value.dims, window)
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
        check_places(self, at)
        shape = self.written[at].shape
        new = np.broadcast_to(aligned(value.data, value.dims, dims), shape)
        fresh = not self.given and not self.written.any()
        if fresh and new.dtype.kind == "i":
            self.data = np.full(self.written.shape, np.iinfo(np.int64).min)
        if fresh and new.dtype.kind == "b":
            self.data = np.zeros(self.written.shape, dtype=bool)
        if new.dtype.kind == "f" and self.data.dtype.kind != "f":  # of several stores, the first had whole numbers
            self.data = np.where(self.written, self.data, np.nan)
        if (before := self.written[at]).any():
            check_overlap(self, at, before & ~np.isclose(self.data[at], new, rtol=1e-9, atol=0, equal_nan=True))
        self.data[at] = new
        self.written[at] = True
