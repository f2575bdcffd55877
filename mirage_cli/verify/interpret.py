"""The slow, obvious definition of programs and of scheduled μGraphs, over any semantics of the operators.

`run_program` evaluates equation by equation. `run_mugraph` executes a μGraph as its schedule says: every program
instance, every tile of every loop, accumulators, running maxima with their rescaling, chunks of a split dimension and
stores into memory that starts undefined. `FieldSemantics` makes it the verifier's, `FloatSemantics` a reference.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store, split_axis
from mirage_cli.ir.ops import IDENTITY, OPS, Number, Type
from mirage_cli.ir.placement import Loop, Placement, place
from mirage_cli.ir.program import Eqn, Program
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.verify.field import Field
from mirage_cli.verify.residues import ALL, FINITE, LEVELS, UNDEFINED, Value, aligned, as_field, same

Array = NDArray[Any]
Window = dict[str, tuple[int, int]]
Slices = tuple[slice, ...]


class ScheduleFailure(Exception):
    """A μGraph that cannot run as scheduled. `reason`: "race", "overlapping store", "hole" or "shape"."""

    def __init__(self, reason: str, where: str) -> None:
        super().__init__(f"{reason}: {where}")
        self.reason = reason


class Memory(Protocol):
    """One tensor in device memory, undefined at first."""

    def read(self, at: Slices, dims: tuple[str, ...]) -> Any: ...

    def write(self, at: Slices, dims: tuple[str, ...], value: Any) -> None:
        """Store `value`, whose axes are among `dims`, the names of the slices. Raises ScheduleFailure on a conflict."""
        ...

    def hole(self) -> tuple[int, ...] | None:
        """The first element that nothing wrote."""
        ...

    def whole(self) -> Any: ...


class Semantics(Protocol):
    """What the operators mean. Values have named axes: `value.dims`."""

    sizes: Mapping[str, int]
    window: Window

    def apply(self, op: str, args: tuple[Any, ...], axes: tuple[str, ...] = ()) -> Any: ...

    def join(self, op: str, accumulator: Any, tile: Any) -> Any:
        """The accumulator of the reduction `op` after one more tile's result."""
        ...

    def full(self, c: Number, dims: tuple[str, ...], shape: tuple[int, ...], type: Type) -> Any: ...

    def memory(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> Memory: ...

    def input(self, name: str, value: Any, dims: tuple[str, ...]) -> Memory: ...


def renamed(dims: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
    """The dims after a rename whose old and new names alternate in `axes`."""
    names = dict(zip(axes[::2], axes[1::2], strict=True))
    return tuple(names.get(d, d) for d in dims)


# -- finite fields


class FieldSemantics:
    """The operators' `field` column."""

    def __init__(self, seed: int, sizes: Mapping[str, int]) -> None:
        self.field = Field(seed, sizes)
        self.sizes: Mapping[str, int] = dict(sizes)
        self.window: Window = {}

    def apply(self, op: str, args: tuple[Any, ...], axes: tuple[str, ...] = ()) -> Value:
        row, F = OPS[op], self.field
        if row.kind == "leaf":
            F.window = self.window
            return row.field(F, axes[0])
        if op == "pow":
            return F.pow(self._value(args[0]), args[1])
        values = [self._value(a) for a in args]
        if op == "rename":
            return replace(values[0], dims=renamed(values[0].dims, axes))
        if row.kind in ("reduction", "contraction"):
            return row.field(F, *values, axes)
        return row.field(F, *values)

    def _value(self, a: Any) -> Value:
        return a if isinstance(a, Value) else self.field.const(a)

    def join(self, op: str, accumulator: Value, tile: Value) -> Value:
        if op == "max" or op == "min":
            return self.field.join(op, accumulator, tile)
        return self.field.add(accumulator, tile)

    def full(self, c: Number, dims: tuple[str, ...], shape: tuple[int, ...], type: Type) -> Value:
        return self.field.full(c, dims, shape, type)

    def memory(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> FieldMemory:
        return FieldMemory(name, dims, shape)

    def input(self, name: str, value: Value, dims: tuple[str, ...]) -> FieldMemory:
        memory = FieldMemory(name, dims, value.shape)
        memory.write(tuple(slice(0, n) for n in value.shape), dims, value)
        return memory


class FieldMemory:
    """A tensor of field values; masks are stored as integers."""

    def __init__(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> None:
        self.name = name
        self.written = np.zeros(shape, dtype=bool)
        self.value: Value | None = None  # with every element undefined or written
        self.dims = dims

    def whole(self) -> Value:
        assert self.value is not None
        return replace(self.value, dims=self.dims)

    def read(self, at: Slices, dims: tuple[str, ...]) -> Value:
        x = self.whole()
        if x.kind != "field":
            return replace(x, dims=dims, data=x.data[at])
        flags = None if x.flags is None else x.flags[at]
        if flags is not None and not flags.any():
            flags = None
        taint = None if x.taint is None else x.taint[(slice(None), *at)]
        return replace(x, dims=dims, data=x.data[(slice(None), *at)], flags=flags, taint=taint)

    def write(self, at: Slices, dims: tuple[str, ...], value: Value) -> None:
        value = replace(value, sign=0) if value.kind == "int" else as_field(value)
        if self.value is None:
            self.value = self._poison(value)
        old = self.value
        if old.kind != value.kind:
            old = self.value = _thawed(as_field(old), self.written)
            value = as_field(value)
        shape = self.written[at].shape
        if self.written[at].any():
            agree, _ = same(self.read(at, dims), _spread(value, dims, shape))
            _check_overlap(self.name, at, self.written[at] & ~agree)
        spread = _spread(value, dims, shape)
        if value.kind == "int":
            old.data[at] = spread.data
        else:
            assert old.flags is not None and old.taint is not None
            inner = (slice(None), *at)
            old.data[inner] = spread.data
            old.flags[at] = FINITE if spread.flags is None else spread.flags
            old.taint[inner] = False if spread.taint is None else spread.taint
            valid = tuple(a and b for a, b in zip(old.valid, value.valid, strict=True))
            self.value = replace(old, valid=valid)
        self.written[at] = True

    def _poison(self, like: Value) -> Value:
        shape = self.written.shape
        if like.kind == "int":
            return Value(self.dims, "int", np.full(shape, np.iinfo(np.int64).min), large=like.large)
        return Value(
            self.dims,
            "field",
            np.zeros((LEVELS, *shape), dtype=np.int64),
            ALL,
            np.full(shape, UNDEFINED, dtype=np.int8),
            np.zeros((LEVELS, *shape), dtype=bool),
        )

    def hole(self) -> tuple[int, ...] | None:
        return _first_false(self.written)


def _thawed(x: Value, written: Array) -> Value:
    """A field value that may be written to: flags and taint are arrays of their own."""
    flags = np.where(written, FINITE if x.flags is None else x.flags, UNDEFINED).astype(np.int8)
    taint = np.zeros(x.data.shape, dtype=bool) if x.taint is None else x.taint.copy()
    return replace(x, data=x.data.copy(), flags=flags, taint=taint)


def _spread(x: Value, dims: tuple[str, ...], shape: tuple[int, ...]) -> Value:
    """x with exactly these axes, repeated along those that it lacks."""
    lead = 0 if x.kind != "field" else 1
    data = aligned(x.data, x.dims, dims, lead)
    data = np.broadcast_to(data, (LEVELS, *shape) if lead else shape)
    flags = None if x.flags is None else np.broadcast_to(aligned(x.flags, x.dims, dims), shape)
    taint = None if x.taint is None else np.broadcast_to(aligned(x.taint, x.dims, dims, 1), (LEVELS, *shape))
    return replace(x, dims=dims, data=data, flags=flags, taint=taint)


def _check_overlap(name: str, at: Slices, conflict: Array) -> None:
    if conflict.any():
        first = np.argwhere(conflict)[0]
        element = ", ".join(str(s.start + int(i)) for s, i in zip(at, first, strict=True))
        raise ScheduleFailure("overlapping store", f"{name}[{element}] gets two different values")


def _first_false(written: Array) -> tuple[int, ...] | None:
    missing = np.argwhere(~written)
    return tuple(int(i) for i in missing[0]) if len(missing) else None


# -- float64


@dataclass(frozen=True, slots=True)
class Named:
    """A numpy array with named axes."""

    dims: tuple[str, ...]
    data: Array


class FloatSemantics:
    """The operators' `ref` column: float64, exact integers, masks."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes: Mapping[str, int] = dict(sizes)
        self.window: Window = {}

    def apply(self, op: str, args: tuple[Any, ...], axes: tuple[str, ...] = ()) -> Named:
        row = OPS[op]
        if op == "index":
            low, high = self.window.get(axes[0], (0, self.sizes[axes[0]]))
            return Named(axes, low + row.ref(high - low))
        if op == "size":
            return Named((), np.asarray(row.ref(self.sizes[axes[0]])))
        if op == "rename":
            return Named(renamed(args[0].dims, axes), args[0].data)
        dims = tuple(dict.fromkeys(d for a in args if isinstance(a, Named) for d in a.dims))
        arrays = [aligned(a.data, a.dims, dims) if isinstance(a, Named) else _float(a) for a in args]
        with np.errstate(all="ignore"):
            if row.kind not in ("reduction", "contraction"):
                return Named(dims, np.asarray(row.ref(*arrays)))
            at = tuple(dims.index(a) for a in axes)
            kept = tuple(d for d in dims if d not in axes)
            return Named(kept, np.asarray(row.ref(*arrays, axis=at)))

    def join(self, op: str, accumulator: Named, tile: Named) -> Named:
        return self.apply({"max": "maximum", "min": "minimum"}.get(op, "add"), (accumulator, tile))

    def full(self, c: Number, dims: tuple[str, ...], shape: tuple[int, ...], type: Type) -> Named:
        if type == "int":
            info = np.iinfo(np.int64)
            exact = int(c) if isinstance(c, Fraction) else info.max if c > 0 else info.min
            return Named(dims, np.full(shape, exact, dtype=np.int64))
        return Named(dims, np.full(shape, float(c)))

    def memory(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> FloatMemory:
        return FloatMemory(name, dims, shape)

    def input(self, name: str, value: Named | Array, dims: tuple[str, ...]) -> FloatMemory:
        data = value.data if isinstance(value, Named) else value
        memory = FloatMemory(name, dims, data.shape)
        memory.write(tuple(slice(0, n) for n in data.shape), dims, Named(dims, data))
        return memory


def _float(c: Number) -> Any:
    return int(c) if isinstance(c, Fraction) and c.denominator == 1 else float(c)


class FloatMemory:
    """A float64 (or int64) tensor, NaN at first."""

    def __init__(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> None:
        self.name = name
        self.dims = dims
        self.written = np.zeros(shape, dtype=bool)
        self.data: Array = np.full(shape, np.nan)

    def whole(self) -> Named:
        return Named(self.dims, self.data)

    def read(self, at: Slices, dims: tuple[str, ...]) -> Named:
        return Named(dims, self.data[at])

    def write(self, at: Slices, dims: tuple[str, ...], value: Named) -> None:
        shape = self.written[at].shape
        new = np.broadcast_to(aligned(value.data, value.dims, dims), shape)
        if not self.written.any() and new.dtype.kind == "i":
            self.data = np.full(self.written.shape, np.iinfo(np.int64).min)
        conflict = self.written[at] & ~np.isclose(self.data[at], new, rtol=1e-9, atol=0, equal_nan=True)
        _check_overlap(self.name, at, conflict)
        self.data[at] = new
        self.written[at] = True

    def hole(self) -> tuple[int, ...] | None:
        return _first_false(self.written)


# -- programs


def run_program(program: Program, inputs: Mapping[str, Any], semantics: Semantics) -> dict[str, Any]:
    """The outputs of a lowered program, by name. The semantics' sizes are the sizes."""
    semantics.window = {}
    env = dict(inputs)
    for e in program.eqns:
        env[e.out] = semantics.apply(e.op, tuple(env[a] if isinstance(a, str) else a for a in e.args), e.axes)
    return {t.name: env[t.name] for t in program.outputs}


# -- μGraphs


def tiles(low: int, high: int, tile: int) -> list[tuple[int, int]]:
    """The ranges [low, high) is cut into; the last may be short."""
    return [(i, min(i + tile, high)) for i in range(low, high, tile)]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def chunks(size: int, split: int, tile: int) -> list[tuple[int, int]]:
    """The ranges of the chunks of a split dimension: whole tiles, except at the end; late chunks may be empty."""
    length = ceil_div(ceil_div(size, split), tile) * tile
    return [(min(i * length, size), min((i + 1) * length, size)) for i in range(split)]


def run_mugraph(
    graph: MuGraph, schedule: Schedule, inputs: Mapping[str, Any], semantics: Semantics, seed: int = 0
) -> dict[str, Any]:
    """Every buffer and output of the μGraph, by name, executed as scheduled; instances in an order drawn from `seed`.

    Raises ScheduleFailure for a race, conflicting stores or elements that nothing wrote, InexpressibleError as `place`
    does.
    """
    tensors = graph.tensors()
    memories: dict[str, Memory] = {
        t.name: semantics.input(t.name, inputs[t.name], t.dims) for t in graph.inputs if t.name in inputs
    }
    shapes = {t.name: tuple(graph.sizes.get(d, 0) for d in t.dims) for t in graph.inputs}
    for kernel in graph.kernels:
        ks = schedule.kernels.get(kernel.name) or KernelSchedule((), ())
        chunk = {split_axis(kernel.split): ks.split} if kernel.split else {}
        for s in kernel.stores:
            sizes = graph.sizes | _chunk_sizes(graph, kernel, shapes) | chunk
            shapes[s.buffer] = tuple(sizes[d] for d in tensors[s.buffer].dims)
            memories[s.buffer] = semantics.memory(s.buffer, tensors[s.buffer].dims, shapes[s.buffer])
        if race := {x.buffer for x in kernel.loads} & {s.buffer for s in kernel.stores}:
            raise ScheduleFailure("race", f"{kernel.name} reads and writes {min(race)}")
        if stale := [x.buffer for x in kernel.loads if x.buffer not in memories]:
            raise ScheduleFailure("race", f"{kernel.name} reads {stale[0]} before anything writes it")
        semantics.sizes = graph.sizes | _chunk_sizes(graph, kernel, shapes)
        _run_kernel(kernel, ks, memories, semantics, random.Random(seed))
        for s in kernel.stores:
            if (hole := memories[s.buffer].hole()) is not None:
                raise ScheduleFailure("hole", f"nothing writes {s.buffer}[{', '.join(map(str, hole))}]")
    written = [t.name for t in (*graph.buffers, *graph.outputs) if t.name in memories]
    return {name: memories[name].whole() for name in written}


def _chunk_sizes(graph: MuGraph, kernel: Kernel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes of the chunk axes of earlier kernels' partial results, as this kernel loads them."""
    return {
        d: n
        for x in kernel.loads
        for d, n in zip(x.dims, shapes.get(x.buffer, ()), strict=False)
        if d not in graph.sizes
    }


def _run_kernel(
    kernel: Kernel, schedule: KernelSchedule, memories: Mapping[str, Memory], semantics: Semantics, rng: random.Random
) -> None:
    if kernel.kind == "library":
        _Instance(kernel, schedule, memories, semantics, {}, {}).run(None)
        return
    placement = place(kernel)
    instances = list(_instances(kernel, schedule, semantics.sizes))
    rng.shuffle(instances)
    for window, tile_index in instances:
        _Instance(kernel, schedule, memories, semantics, window, tile_index).run(placement)


def _instances(
    kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]
) -> Iterator[tuple[Window, dict[str, int]]]:
    """Every program instance: where its tile and chunk lie, and the index of each."""
    cut = {d: tiles(0, sizes[d], schedule.tile(d)) for d in kernel.with_role("grid")}
    if kernel.split:
        cut[kernel.split] = chunks(sizes[kernel.split], schedule.split, schedule.tile(kernel.split))
    for index in product(*(range(len(ranges)) for ranges in cut.values())):
        at = dict(zip(cut, index, strict=True))
        window = {d: cut[d][i] for d, i in at.items()}
        if kernel.split:
            window[split_axis(kernel.split)] = (at[kernel.split], at[kernel.split] + 1)
        yield window, at


class _Instance:
    """One program instance of a kernel."""

    def __init__(
        self,
        kernel: Kernel,
        schedule: KernelSchedule,
        memories: Mapping[str, Memory],
        semantics: Semantics,
        window: Window,
        tile_index: Mapping[str, int],
    ) -> None:
        self.kernel, self.schedule, self.memories, self.semantics = kernel, schedule, memories, semantics
        self.window, self.tile_index = window, tile_index
        self.types: dict[str, Type] = {e.out: e.type for e in kernel.body}

    def run(self, placement: Placement | None) -> None:
        env: dict[str, Any] = {}
        if placement is None:
            self.straight((*self.kernel.loads, *self.kernel.body), self.kernel.stores, env, self.window)
            return
        for segment in placement.segments:
            if isinstance(segment, Loop):
                self.loop(segment, env)
            else:
                self.straight(segment.steps, segment.stores, env, self.window)

    def straight(
        self, steps: tuple[Load | Eqn, ...], stores: tuple[Store, ...], env: dict[str, Any], window: Window
    ) -> None:
        for step in steps:
            env[step.out] = self.step(step, env, window)
        for s in stores:
            self.store(s, env, window)

    def step(self, step: Load | Eqn, env: Mapping[str, Any], window: Window) -> Any:
        if isinstance(step, Load):
            return self.memories[step.buffer].read(self.slices(step.dims, window), step.dims)
        self.semantics.window = window
        args = tuple(env[a] if isinstance(a, str) else a for a in step.args)
        return self.semantics.apply(step.op, args, step.axes)

    def range(self, dim: str, window: Window) -> tuple[int, int]:
        return window[dim] if dim in window else (0, self.semantics.sizes[dim])

    def slices(self, dims: tuple[str, ...], window: Window) -> Slices:
        return tuple(slice(*self.range(d, window)) for d in dims)

    def store(self, s: Store, env: Mapping[str, Any], window: Window) -> None:
        """Write a tile. Instances that differ only in what the tile does not depend on leave it to the first."""
        split = self.kernel.split
        for d, i in self.tile_index.items():
            kept = d in s.dims or (d == split and split_axis(d) in s.dims)
            if i > 0 and not kept:
                return
        self.memories[s.buffer].write(self.slices(s.dims, window), s.dims, env[s.value])

    def loop(self, loop: Loop, env: dict[str, Any]) -> None:
        degrees = {name: dict(d) for name, d in loop.accumulators}
        accumulators = {s.out: self.identity(s) for s in loop.steps if isinstance(s, Eqn) and s.out in degrees}
        cuts = [tiles(*self.range(d, self.window), self.schedule.tile(d)) for d in loop.dims]
        for ranges in product(*cuts):
            window = self.window | dict(zip(loop.dims, ranges, strict=True))
            inner = dict(env)
            moved: dict[str, tuple[Any, Any]] = {}
            for step in loop.steps:
                value = self.step(step, inner, window)
                if not isinstance(step, Eqn) or step.out not in accumulators:
                    inner[step.out] = value
                    continue
                old = accumulators[step.out]
                for m, g in degrees[step.out].items():
                    old = self.rescaled(old, moved[m], g)
                new = self.semantics.join(step.op, old, value)
                accumulators[step.out] = new
                if step.out in loop.running:
                    moved[step.out] = (old, new)
                    inner[step.out] = new
            for s in loop.stores:
                self.store(s, inner, window)
        env.update(accumulators)

    def rescaled(self, x: Any, moved: tuple[Any, Any], g: int) -> Any:
        """An accumulator of degree g in exp(-m), after m has moved."""
        old, new = moved if g > 0 else moved[::-1]
        factor = self.semantics.apply("exp_sub", (old, new))
        for _ in range(abs(g)):
            x = self.semantics.apply("mul", (x, factor))
        return x

    def identity(self, e: Eqn) -> Any:
        shape = tuple(high - low for low, high in (self.range(d, self.window) for d in e.dims))
        c = IDENTITY[e.op]
        return self.semantics.full(Fraction(0) if c == 0 else c, e.dims, shape, e.type)
