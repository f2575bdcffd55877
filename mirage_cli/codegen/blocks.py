"""What follows from a kernel, its schedule and the sizes about the blocks that it works on.

Every value is a block with one axis for each of its dimensions whose block size is over 1, in the schedule's order;
dimensions with block size 1 are scalars. Blocks are powers of two, so a block may reach past the end of a dimension.
What lanes out there hold is not defined, except where it is known to be zero; so every reduction masks its operand
unless it knows.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from math import gcd, prod
from types import MappingProxyType

from mirage_cli.codegen import addresses, axisnames
from mirage_cli.codegen.addresses import Place
from mirage_cli.codegen.nodes import Axes, Repeated, Spread, Value
from mirage_cli.ir.access import Atom, Index, Lookup, Remainder, dims_of, lookups_of, steady
from mirage_cli.ir.exponents import merges_alone, postponed
from mirage_cli.ir.largest import largest
from mirage_cli.ir.late import COPY_BYTES
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import Loop, Placement, place
from mirage_cli.ir.program import DTYPE_BYTES, FLOAT8, HALVES, Arg, Eqn, Tensor, cast_of
from mirage_cli.ir.schedule import KernelSchedule, block_order, block_sizes, on_matrix_units
from mirage_cli.ir.tables import TableEntry
from mirage_cli.ir.whole import EXACT, LOADED, Interval, bounds

EVERYWHERE: Mapping[str, Place] = MappingProxyType({})
"""The positions of current blocks along all dimensions."""

LINE_BYTES = 128
"""A cache line (CUDA C++ programming guide)."""
MAX_PRODUCT = 1 << 17
"""Elements of the broadcast product that stands in for a matrix product where an axis is too small for it."""
LARGEST_SHIFT = float(1 << 30)
"""m · log2 e is off by up to 2^-24 of itself, and exp2 of more than 128 is infinite in float32."""
MAX_ELEMENTS = 1 << 17
"""Elements of any one block; Triton's own limit is 2^20."""


class EmitError(Exception):
    """This schedule cannot be written in Triton. `reason` is a short constant, for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _jumps(e: Eqn) -> bool:
    """Whether an equation jumps, of floating-point numbers."""
    return e.op in OPS and OPS[e.op].jumps and (e.type == "float" or OPS[e.op].result == "int")


@dataclass(frozen=True, slots=True)
class Live:
    """Where a partial result was stored: where none of these is negative. Elsewhere it is `identity`."""

    where: tuple[Index, ...]
    identity: float


@dataclass(frozen=True, slots=True)
class Factored:
    """A product that is multiplied by the values in `by` once a block of it is summed. part: that sum's name."""

    product: Eqn
    by: tuple[str, ...]
    part: str


@dataclass(frozen=True)  # without slots, for what is cached
class ScheduledKernel:
    """A kernel with its schedule. sizes: of every axis, those of chunks included. live: of partial results that are not
    stored everywhere, by buffer. merged: axes of values that are loaded as operands of products, one for a side
    that is several axes (`m*n`). folded: of these, those whose boxes have several axes there. paired: loads of 16
    bits at a time, with the axis along which numbers share them, and how many do. worded: loads of words of 32 bits,
    once for each so many numbers along an axis."""

    graph: MuGraph
    kernel: Kernel
    schedule: KernelSchedule
    sizes: Mapping[str, int]
    live: Mapping[str, Live] = field(default_factory=dict["str", "Live"])
    merged: Mapping[str, Axes] = field(default_factory=dict["str", "Axes"])
    folded: frozenset[str] = frozenset()
    paired: Mapping[str, tuple[str, int]] = field(default_factory=dict["str", "tuple[str, int]"])
    worded: Mapping[str, tuple[str, int]] = field(default_factory=dict["str", "tuple[str, int]"])

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.graph.tensors()

    @cached_property
    def block(self) -> dict[str, int]:
        """The block size of every dimension."""
        return block_sizes(self.kernel, self.schedule, self.sizes)

    @cached_property
    def order(self) -> Axes:
        """The order of axes in blocks (`block_order`)."""
        return block_order(self.kernel, tuple(d for d in self.schedule.order if d in self.block), self.block)

    @cached_property
    def dims(self) -> Mapping[str, Axes]:
        """The dimensions of every value."""
        return self.kernel.value_dims

    @cached_property
    def eqns(self) -> dict[str, Eqn]:
        return {e.out: e for e in self.kernel.body}

    @cached_property
    def loads(self) -> dict[str, Load]:
        return {x.out: x for x in self.kernel.loads}

    @cached_property
    def placement(self) -> Placement:
        return place(self.kernel)

    @cached_property
    def padded(self) -> frozenset[str]:
        """Dimensions whose last block reaches past their end."""
        return frozenset(d for d, n in self.block.items() if (n > 1 if d in self.dynamic else self.sizes[d] % n > 0))

    @cached_property
    def dynamic(self) -> frozenset[str]:
        """Dimensions whose size is an argument."""
        return frozenset(r.dim for r in self.graph.dynamic)

    @cached_property
    def size_arguments(self) -> Axes:
        """Dimensions whose size the kernel takes as an argument: those that it has blocks along, or counts by."""
        counted = {e.axes[0] for e in self.kernel.body if e.op == "size"}
        return tuple(r.dim for r in self.graph.dynamic if r.dim in {*self.block, *counted})

    def tiled(self, d: str) -> bool:
        """Whether a dimension may have more than one tile."""
        return d in self.dynamic or self.sizes[d] > self.block[d]

    @cached_property
    def float32_products(self) -> frozenset[str]:
        """Values whose products are of float32."""
        return self.graph.exact()[self.kernel.name]

    @cached_property
    def float32_accurate(self) -> bool:
        """Whether results are to be right to the last bits of float32. They are where the program has float32, and
        where it makes whole numbers, masks or float8: a quotient may be half-way between two of these, and then every
        bit counts.
        """
        types = {self.graph.dtype, *(t.dtype for t in (*self.graph.inputs, *self.graph.outputs))}
        decided = any(t.dtype not in HALVES for t in self.graph.outputs)
        return "float32" in types or decided or any(map(_jumps, self.graph.eqns))

    @cached_property
    def accurate(self) -> frozenset[str]:
        """The values that are to be right to the last bits of float32: those of which whole numbers, masks, float8 or
        float32 are made. Outputs of 16 bits, which no kernel behind reads, show none of these bits."""
        if not self.float32_accurate:
            return frozenset()
        names = [k.name for k in self.graph.kernels]
        behind = self.graph.kernels[names.index(self.kernel.name) + 1 :]
        shown = {t.name for t in self.graph.buffers} | {x.buffer for k in behind for x in k.loads}
        shown |= {b for b, t in self.tensors.items() if t.dtype not in HALVES}
        found = {s.value for s in self.kernel.stores if s.buffer in shown}
        for e in reversed(self.kernel.body):
            if e.out in found or _jumps(e):
                found |= {e.out, *e.values}
        return frozenset(found)

    @cached_property
    def subtracted_first(self) -> frozenset[str]:
        """Running maxima m for which exp(x - m) subtracts before it multiplies by log2 e: all in float32; those that
        other loops, the end of the kernel or other kernels subtract so, but for merging chunks; and those that may be
        so large (`ir/largest.py`) that what they are rounded to is off by more than exp2 takes.

        The rest multiply and add at once. What m · log2 e is rounded to on the way scales all exponentials of a loop
        alike, which cancels where they meet one another alone.
        """
        inside = {m for loop in self.placement.loops for m in loop.running}
        if self.float32_accurate or not inside:
            return frozenset(inside)
        large = {m for m, size in largest(self.graph)[self.kernel.name].items() if size > LARGEST_SHIFT}
        stored = {s.value for s in self.kernel.stores if not merges_alone(self.graph, s.buffer)}
        behind = {
            str(e.args[1])
            for segment in self.placement.segments
            for e in segment.steps
            if isinstance(e, Eqn) and OPS[e.op].shift
            if not isinstance(segment, Loop) or e.args[1] not in segment.running
        }
        return frozenset(inside & (stored | behind | large))

    @cached_property
    def read_behind_loops(self) -> frozenset[str]:
        """What is stored, or read outside of loops or in other loops than it is made in."""
        stored = {s.value for s in self.kernel.stores}
        made = [{s.out for s in x.steps} if isinstance(x, Loop) else set[str]() for x in self.placement.segments]
        read = (
            {v for e in x.steps if isinstance(e, Eqn) for v in e.values} - inside
            for x, inside in zip(self.placement.segments, made, strict=True)
        )
        return frozenset(stored.union(*read))

    @cached_property
    def postponed(self) -> Mapping[str, float]:
        """Values that are held without a factor, which their maximum and their exponents have (`ir/exponents.py`)."""
        return {} if self.float32_accurate else postponed(self.kernel, self.placement)

    @cached_property
    def looked_up(self) -> dict[Lookup, str]:
        """What loads look up, each with the name of its block: one name in all parts of the kernel."""
        found: dict[Lookup, str] = {}
        taken = {*self.whole_kernel.value_dims}
        for a in (*self.whole_kernel.lookups, *(a for x in self.live.values() for a in lookups_of(x.where))):
            names = (f"{a.table}_at{i or ''}" for i in itertools.count())
            found[a] = found.get(a) or next(n for n in names if n not in {*taken, *found.values()})
        return found

    @cached_property
    def whole_kernel(self) -> Kernel:
        """The kernel of the μGraph, of which this may be a part."""
        return next(k for k in self.graph.kernels if k.name == self.kernel.name)

    def places(self, i: Index, picked: Mapping[str, Place] = EVERYWHERE) -> tuple[tuple[tuple[Place, int], ...], int]:
        """Where an index is, as the sum of position · factor, and where that starts. picked: positions along some
        dimensions, where they are not those of the current block."""
        terms: list[tuple[Place, int]] = []
        start = i.offset
        for a, c in i.terms:
            place, more = self.place(a, picked)
            start += c * more
            if place is not None:
                terms.append((place, c))
        return tuple(terms), start

    def place(self, a: Atom, picked: Mapping[str, Place] = EVERYWHERE) -> tuple[Place | None, int]:
        """Where an atom is, and what is to be added; no place where it is a number. picked: as in `places`."""
        split = self.kernel.split
        match a:
            case str() if a in picked:
                return picked[a], 0
            case str():
                if split is not None and a == self.kernel.chunk:
                    return addresses.ChunkNumber(), 0
                axes = self.axes((a,))
                several = axes or self.sizes[a] > 1 or a in self.dynamic
                return (addresses.Lanes(a, bool(axes)) if several else None), 0
            case Lookup():
                return addresses.Looked(self.looked_up[a], self.axes(dims_of(a.access)), self.huge), 0
            case _:
                terms, start = self.places(a.of, picked)
                before = max(0, -(a.of.bounds(self.sizes)[0] // a.by))  # numbers below 0 are divided otherwise
                axes = tuple(d for d in self.order if any(d in addresses.lanes_of(x) for x, _ in terms))
                rest = isinstance(a, Remainder)
                if not terms:  # of axes with one position
                    return None, start % a.by if rest else start // a.by
                place = addresses.Divided(terms, start + before * a.by, a.by, rest, axes, self.huge)
                return place, 0 if rest else -before

    @cached_property
    def huge(self) -> bool:
        """Whether offsets into some tensor need 64 bits."""
        sizes = {**self.sizes, **{r.dim: r.most for r in self.graph.dynamic}}
        touched = {*self.whole_kernel.read, *(s.buffer for s in self.whole_kernel.stores)}
        return any(self.tensors[b].span(sizes) >= 1 << 31 for b in touched)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """What the kernel reads and writes, in order."""
        known = (a.table for x in self.live.values() for a in lookups_of(x.where))
        return tuple(dict.fromkeys([*self.kernel.read, *known, *(s.buffer for s in self.kernel.stores)]))

    @cached_property
    def long_axes(self) -> Axes:
        """The dimensions that are not scalars, in the schedule's order."""
        return tuple(d for d in self.order if self.block[d] > 1)

    def axes(self, dims: Iterable[str]) -> Axes:
        """The axes of a block: the dimensions that are not scalars, in the schedule's order."""
        dims = {*dims}
        return tuple([d for d in self.long_axes if d in dims])

    def axes_of(self, value: str) -> Axes:
        """The axes of the current block of a value: those along which it may differ."""
        found = self._axes_of.get(value)
        if found is None:
            own = self.merged.get(value)
            alike = self.uniform_dims[value]
            found = tuple(d for d in self.axes(self.dims[value]) if d not in alike) if own is None else own
            self._axes_of[value] = found
        return found

    @cached_property
    def _axes_of(self) -> dict[str, Axes]:
        """As far as they were asked for."""
        return {}

    @cached_property
    def loads_bytes(self) -> bool:
        """Whether it loads any int8, or int32."""
        return any(self.tensors[x.buffer].dtype in LOADED for x in self.kernel.loads)

    def block_of(self, value: str) -> Value:
        """The current block of a value."""
        return Value(value, self.axes_of(value))

    def full_block(self, value: str) -> Value | Repeated:
        """The current block of a value with the axes of all its dimensions."""
        x, axes = self.block_of(value), self.axes(self.dims[value])
        return x if value in self.merged or x.axes == axes else Repeated(Spread(x, axes), axes)

    @cached_property
    def uniform_dims(self) -> Mapping[str, frozenset[str]]:
        """Dimensions along which the block of a value is the same everywhere: one row of scales for a tile, say."""
        found: dict[str, frozenset[str]] = {}
        for x in self.kernel.loads:
            repeated = self.repeats(x)
            found[x.out] = frozenset(d for d, n in repeated.items() if n == self.block[d])
        for e in self.kernel.body:
            alike = OPS[e.op].kind == "elementwise" and bool(e.values)
            found[e.out] = frozenset(
                d for d in e.dims if alike and all(d not in self.dims[v] or d in found[v] for v in e.values)
            )
        return found

    def repeats(self, x: Load) -> Mapping[str, int]:
        """Dimensions along which one element is read for several positions in a row, and for how many: indices divide
        what a block that starts at a multiple of that number has along them. Not of a vector of words: threads copy
        these asynchronously one by one, and Triton moves nothing that is made of repeated elements behind the read that
        brings threads what they multiply."""
        axes, found = self.axes(x.dims), dict[str, int]()
        for d in axes:
            n = gcd(self.block[d], *(steady(a, d) for i in x.access for a, _ in i.terms))
            if n > 1 and d not in self.padded and d not in self.dynamic:
                found[d] = n
        bounded = x.buffer in self.live or any(
            any(i.leaves(self.sizes[d], self.sizes)) for d, i in zip(self.tensors[x.buffer].dims, x.access, strict=True)
        )
        alike = {d: n for d, n in found.items() if n == self.block[d]}
        words = DTYPE_BYTES[self.tensors[x.buffer].dtype] >= COPY_BYTES and len({*axes} - {*alike}) == 1
        return {} if bounded else alike if words else found

    @cached_property
    def factored(self) -> Mapping[str, Factored]:
        """Accumulated products with a factor that is the same along all that a block of them sums over."""
        found: dict[str, Factored] = {}
        for loop in self.placement.loops:
            for name, _ in loop.accumulators:
                e = self.eqns[name]
                if e.op == "dot" and on_matrix_units(e, self.dims, self.block):
                    product, by = self._factors(e, {s.out for s in loop.steps})
                    found |= {name: Factored(product, by, self._unused(f"{name}_sum"))} if by else {}
        return found

    @cached_property
    def before(self) -> Mapping[str, str]:
        """Of extrema that choose in their loop, the names of what they were in front of an iteration."""
        chosen = dict.fromkeys(x.extremum for loop in self.placement.loops for x in loop.anew)
        return {m: self._unused(f"{m}_before") for m in chosen}

    def _unused(self, name: str) -> str:
        return next(n for i in itertools.count() if (n := f"{name}{i or ''}") not in self.dims)

    def _factors(self, product: Eqn, inside: Collection[str]) -> tuple[Eqn, tuple[str, ...]]:
        """The product without such factors of its operands, and these. inside: the values of its loop."""
        by: list[str] = []
        args = list(product.args)
        for i, y in enumerate(args):
            while (two := self._two_factors(y, product)) and y in inside:
                by.append(two[0])
                y = args[i] = two[1]
        return replace(product, args=tuple(args)), tuple(by)

    def _two_factors(self, y: Arg, product: Eqn) -> tuple[str, str] | None:
        """An operand as a factor that is the same along what is summed, and one that has the operand's axes and is
        multiplied as it is: what is computed in float32 may be beyond a smaller type without its factor."""
        if not isinstance(y, str) or y not in self.eqns or not self._multiplies(self.eqns[y]):
            return None
        for s, u in permutations(self.eqns[y].values, 2):
            alike = not {*self.axes_of(s)} & {*product.axes} and self.axes_of(u) == self.axes_of(y)
            if alike and self.type_of(u) in {self.graph.dtype, "int8", *FLOAT8}:
                return s, u
        return None

    def _multiplies(self, e: Eqn) -> bool:
        """Whether it is a product, element by element, that one equation reads."""
        row = OPS[e.op]
        readers = [x.out for x in self.kernel.body for v in x.values if v == e.out]
        alone = len(readers) == 1 and not self._stored(e.out)
        return row.kind == "elementwise" and row.growth == "product" and alone

    def _stored(self, value: str) -> bool:
        return any(s.value == value for s in self.kernel.stores)

    def elements(self, axes: Iterable[str]) -> int:
        """Elements of a block."""
        return prod(self.block[d] for d in axisnames.apart(tuple(axes)))

    def masked_dims(self, dims: Iterable[str], axes: Axes) -> Axes:
        """Of these dimensions the axes of a block that reaches past their end."""
        dims = set(dims)
        return tuple(d for d in axes if d in dims & self.padded)

    @cached_property
    def small_integers(self) -> Mapping[str, Interval]:
        """Values that are whole numbers which the program's type holds exactly: what they are computed in, unless a
        larger integer is made of them. In bfloat16 what products take: all else is in float32 where it is read."""
        found = self.bounded
        if self.graph.dtype != "bfloat16":
            return found
        kept = {v: b for v, b in found.items() if v in self.loads}
        for e in reversed(self.kernel.body):
            readers = [x for x in self.kernel.body if e.out in x.values]
            if e.out in found and readers and not self._stored(e.out) and all(self._takes(x, kept) for x in readers):
                kept[e.out] = found[e.out]
        return kept

    @cached_property
    def bounded(self) -> Mapping[str, Interval]:
        """Whole numbers that the program's type holds exactly, and of which no larger integer is made."""
        if self.graph.dtype not in EXACT:
            return {}
        found = bounds(self.kernel, self.tensors)
        kept = {v: b for v, b in found.items() if max(map(abs, b)) <= EXACT[self.graph.dtype]}
        for e in reversed(self.kernel.body):
            if e.type == "int" and any(e.out in x.values for x in self.kernel.body if self._counts(x, kept)):
                kept.pop(e.out, None)
        return kept

    def _takes(self, e: Eqn, narrow: Collection[str]) -> bool:
        """Whether an equation is a product on the matrix units, or makes for one what these are, or what may be a
        factor of its result."""
        multiplied = e.op == "dot" and on_matrix_units(e, self.dims, self.block)
        return multiplied or e.out in narrow or (e.type == "float" and self._multiplies(e))

    @staticmethod
    def _counts(e: Eqn, narrow: Collection[str]) -> bool:
        """Whether an equation computes with integers, or compares them."""
        return e.type != "float" and e.out not in narrow

    def type_of(self, value: str) -> str:
        """The element type of a value: of its tensor for a load, 32 bits of 64; that of a cast; else float32, int32 or
        bool; or a smaller one that holds it exactly."""
        if value in self.loads:
            dtype = self.tensors[self.loads[value].buffer].dtype
            return "int32" if dtype == "int64" else dtype
        if value in self.small_integers:
            return self.graph.dtype
        e = self.eqns[value]
        if isinstance(e, TableEntry):
            return self.type_of(e.table)
        return cast_of(e) or {"float": "float32", "int": "int32", "bool": "bool"}[e.type]

    def iteration_space(self, e: Eqn) -> set[str]:
        """The dimensions of a reduction's argument, or of a product before it is summed."""
        return {*e.dims, *e.axes} if e.op == "dot" else set(self.dims[e.values[0]])

    def from_product(self, value: str) -> bool:
        """Whether a value is computed from a product."""
        e = self.eqns.get(value)
        return e is not None and (e.op == "dot" or any(self.from_product(v) for v in e.values))
