"""What a generated kernel does, as the cost model sees it: worked out once, evaluated for many schedules."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.access import Access, Index, access_text, dims_of, steady
from mirage_cli.ir.beside import beside
from mirage_cli.ir.footprint import box_around, read_once
from mirage_cli.ir.hashed import hashed_once
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph
from mirage_cli.ir.ops import OPS, exact_inverse, power_of_two
from mirage_cli.ir.placement import Loop, place
from mirage_cli.ir.program import FLOAT8, HALVES, WIDEST_BYTES, Eqn, Tensor, cast_of
from mirage_cli.ir.reach import Limit, limits
from mirage_cli.ir.schedule import Schedule, multiplied_as, takes_float8
from mirage_cli.ir.whole import bounds
from mirage_cli.search.alike import nameless, unnamed
from mirage_cli.search.live import Moment, held_at_once

Elementwise = tuple[tuple[str, ...], float, int, tuple[str, ...]]
"""The axes over which equations compute, operations for an element, how many elements are read for an operand of a
product, and the rows of that operand."""


class Part(NamedTuple):
    """What is read of a buffer, as text: "" from its first element on."""

    buffer: str
    where: str


@dataclass(frozen=True, slots=True)
class Product:
    """The axes of one product: those of its left operand alone, of its right alone, summed, and shared by both."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    summed: tuple[str, ...]
    batch: tuple[str, ...]
    accumulates: bool
    """Whether it is added up over its loop and nothing rescales it there: then it can be summed after the loop."""
    computed: tuple[bool, bool]
    """Whether its left and its right operand go through registers: computed beside it, or loaded and computed with."""
    singles: tuple[bool, bool]
    """Whether its left and its right operand are float32."""
    beside: str
    """As what the matrix units take the operand beside one of float32 (`multiplied_as`)."""
    small_within: tuple[tuple[str, int], ...] | None = None
    """Numbers that blocks of these axes have to divide for its operands to be of a smaller type: what makes them
    float32 is then a factor of all that a block sums, and stands in front of the sum. None where it is none."""
    float8: bool = False
    """Whether the matrix units take its operands as they are stored, where blocks are deep enough."""

    @property
    def axes(self) -> tuple[str, ...]:
        return *self.left, *self.right, *self.summed, *self.batch

    @property
    def single(self) -> bool:
        """Whether an operand is float32."""
        return any(self.singles)


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class Lines:
    """Elements of a tensor that a load reads, as they lie in memory. element: bytes of one. intermediate: whether no
    caller gives it."""

    tensor: Tensor
    access: Access
    element: int
    intermediate: bool

    def aligned(self, sizes: Mapping[str, int]) -> Sequence[tuple[str, int]]:
        """The axes in which the address moves by single elements, each with what all else of the address is a multiple
        of (0 for nothing else): one instruction of a thread loads elements that begin at a multiple of their number."""
        return _aligned(self, tuple(sizes[d] for d in self.tensor.dims))

    def aligned_axes(self, sizes: Mapping[str, int]) -> list[str]:
        """Those in which rows begin at multiples of what one instruction of a thread loads."""
        return [a for a, n in self.aligned(sizes) if n * self.element % WIDEST_BYTES == 0]


@lru_cache(maxsize=4096)
def _aligned(lines: Lines, extent: tuple[int, ...]) -> Sequence[tuple[str, int]]:
    """extent: of the tensor."""
    sizes = dict(zip(lines.tensor.dims, extent, strict=True))
    tensor = lines.tensor.with_aligned_rows(sizes, lines.element) if lines.intermediate else lines.tensor
    steps = tensor.steps(sizes)
    terms = [(a, n * step) for i, step in zip(lines.access, steps, strict=True) for a, n in i.terms]
    offset = sum(i.offset * step for i, step in zip(lines.access, steps, strict=True))
    return tuple(
        (a, math.gcd(offset, *(n for b, n in terms if b != a))) for a, n in terms if n == 1 and isinstance(a, str)
    )


@dataclass(frozen=True, slots=True)
class Work:
    """What one segment does in each of its iterations, as lists of axes (the block sizes come with the tiles)."""

    loop: tuple[str, ...]
    loads: tuple[tuple[tuple[str, ...], float, Part, Access], ...]  # axes, bytes of an element, what is read, where
    blocks: tuple[tuple[tuple[str, ...], float, tuple[str, ...], Lines | None, int], ...]
    """Axes, bytes of an element, those of the axes along which elements lie side by side, where its elements lie, how
    many loads have these."""
    dots: tuple[tuple[Product, int], ...]  # and how many there are alike
    elementwise: tuple[Elementwise, ...]
    limits: tuple[Limit, ...] = ()  # of the loop's position, where masks leave the rest of it nothing to do
    integers: tuple[tuple[str, Tensor], ...] = ()  # the tensors of loaded values that limits depend on
    operands: tuple[tuple[tuple[str, ...], int], ...] = ()  # of products, loaded in front: axes, bytes of an element


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A kernel as the cost model sees it: worked out once, evaluated for many tiles. Each equals itself alone."""

    kernel: Kernel
    grid: tuple[str, ...]
    whole: tuple[str, ...]
    split: str | None
    segments: tuple[Work, ...]
    stores: tuple[tuple[tuple[str, ...], int], ...]
    accumulators: tuple[tuple[str, ...], ...]
    moments: tuple[Moment, ...]
    """What is held in registers at once (`live.held_at_once`)."""
    products: tuple[tuple[str, ...], ...]
    values: tuple[tuple[str, ...], ...]
    """Spaces of values, those that lie within no other."""
    computed: tuple[tuple[str, ...], ...]
    """Of accumulators, products and what is computed: those that lie within no other."""
    shared: frozenset[str]
    """Batch axes of every product that has them."""
    element_bytes: tuple[tuple[str, int], ...]
    exact: frozenset[str]
    inputs: tuple[Tensor, ...]
    several: bool
    """Whether it has parts that may run side by side (`ir.beside`)."""
    from_bytes: frozenset[str] = frozenset()
    """Axes of products of which one operand is computed from bytes."""

    def parts(self, tiled: Collection[str]) -> tuple[Model, ...]:
        """Those that do, with several tiles along these axes."""
        return tuple(_part_of(self, k) for k in beside(self.kernel, tiled))

    def matrix_axes(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Axes of products that the matrix units may take: where an operand is computed from bytes, also with a vector,
        since it comes to them cheaper than as float32."""
        return self.kernel.matrix_axes(sizes) | self.from_bytes

    def batch_axes(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Axes along which the matrix units multiply one by one."""
        return self.shared if self.matrix_axes(sizes) else frozenset()

    @property
    def single(self) -> bool:
        """Whether any product is of float32."""
        return any(p.single for w in self.segments for p, _ in w.dots)


@lru_cache(maxsize=4096)
def _part_of(m: Model, kernel: Kernel) -> Model:
    return _part(_Part(nameless(kernel, dict(m.element_bytes), m.exact, unnamed(m.inputs)), kernel, m))


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a kernel. Those that are alike are equal."""

    alike: Hashable
    kernel: Kernel = field(compare=False)
    of: Model = field(compare=False)


@lru_cache(maxsize=4096)
def _part(x: _Part) -> Model:
    return model(x.kernel, dict(x.of.element_bytes), x.of.exact, x.of.inputs)


def model(kernel: Kernel, element_bytes: Mapping[str, int], exact: frozenset[str], inputs: Iterable[Tensor]) -> Model:
    """The model of a generated kernel. Raises InexpressibleError.

    element_bytes: of each buffer it touches. exact: the values whose products are of float32. inputs: of the μGraph.
    """
    placement = place(kernel)
    dims = kernel.value_dims
    segments: list[Work] = []
    sums: list[tuple[str, ...]] = []
    loads = {x.out: x for x in kernel.loads}
    plain = {n for loop in placement.loops for n, degrees in loop.accumulators if not degrees}
    inputs = tuple(inputs)
    tensors, made = {t.name: t for t in inputs}, {e.out: e for e in kernel.body}
    small = _of_bytes(kernel, element_bytes) | tensors
    stored = _stored_types(kernel, element_bytes, tensors)
    halves = {*bounds(kernel, tensors)} if any(t.dtype == "float16" for t in inputs) else set[str]()
    held = {n for loop in placement.loops for n, _ in loop.accumulators}
    added = _added_to(kernel, held)
    at_once = held_at_once(kernel, placement, element_bytes, exact, added)
    for segment, operands in zip(placement.segments, at_once.operands, strict=True):
        found = limits(kernel, segment) if isinstance(segment, Loop) else ()
        leaves = {name for x in found for kind, name in x.leaves if kind == "value"}
        steps = [s for s in segment.steps if isinstance(s, Eqn)]
        summed = {n for n, _ in segment.accumulators} if isinstance(segment, Loop) else set[str]()
        dots = [e for e in steps if e.op == "dot"]
        alone = {e.out: x for e in dots if (x := _unscaled(kernel, e, exact, e.out in summed)) is not None}
        apart = {v for x in alone.values() for v in x.scaled}
        eqns = [alone[e.out].product if e.out in alone else e for e in steps if e.out not in apart]
        rows = _computed_operands(eqns, dims, set(loads))
        read = [loads[s.out] for s in segment.steps if s.out in loads]
        products = [e for e in eqns if e.op == "dot"]
        eights = {e.out for e in products if takes_float8(e, loads, small, made) and not exact & {*e.values}}
        registers = _in_registers(eqns) | _converted(eqns, eights, loads, small)
        factors = {out: len(x.scaled) for out, x in alone.items()}
        blocks = [(e.dims, 1.0 + factors[e.out]) for e in eqns if e.out in eights or factors.get(e.out)]
        sums += [axes for axes, _ in blocks]
        segments.append(
            Work(
                segment.dims if isinstance(segment, Loop) else (),
                tuple((x.dims, bytes_of(x, element_bytes), part_of(x.buffer, x.access), x.access) for x in read),
                tuple(
                    (*block, n)
                    for block, n in Counter(
                        (
                            x.dims,
                            bytes_of(x, element_bytes),
                            side_by_side(x, tensors.get(x.buffer)),
                            lines_of(x, tensors.get(x.buffer), element_bytes[x.buffer]),
                        )
                        for x in read
                    ).items()
                ),
                tuple(
                    Counter(
                        _product(e, dims, e.out in plain, registers, alone.get(e.out), e.out in eights, exact, stored)
                        for e in products
                    ).items()
                ),
                (
                    *_elementwise([e for e in eqns if e.op != "dot"], rows, set(loads), halves),
                    *((axes, operations, 0, ()) for axes, operations in blocks),
                ),
                found,
                tuple((v, tensors[b]) for v in sorted(leaves) if (b := loads[v].buffer) in tensors),
                operands,
            )
        )
    accumulators = tuple(dims[n] for loop in placement.loops for n, _ in loop.accumulators)
    products = (*sums, *(e.dims for e in kernel.body if e.op == "dot" and e.out not in held | added))
    reduced = [_space(e) for e in kernel.body if OPS[e.op].kind == "reduction"]
    return Model(
        kernel,
        kernel.with_role("grid"),
        kernel.with_role("tile"),
        kernel.split,
        tuple(s for s in segments if s.loads or s.dots or s.elementwise),
        tuple((s.dims, element_bytes[s.buffer]) for s in kernel.stores),
        accumulators,
        at_once.moments,
        products,
        widest([*dims.values(), *reduced]),
        widest([*accumulators, *products, *(axes for w in segments for axes, *_ in w.elementwise)]),
        _shared(kernel, dims),
        tuple(element_bytes.items()),
        frozenset(exact),
        inputs,
        len(beside(kernel, kernel.with_role("grid"))) > 1,
        frozenset(
            d
            for e in kernel.body
            if halves and e.op == "dot" and halves & _made_of(kernel, e)
            for d in (*e.dims, *e.axes)
        ),
    )


@lru_cache(maxsize=64)
def models(graph: MuGraph) -> Mapping[str, Model]:
    """Of every generated kernel."""
    exact = graph.exact()
    generated = (k for k in graph.kernels if k.kind == "generated")
    return {k.name: model(k, graph.element_bytes, exact[k.name], graph.inputs) for k in generated}


def chunk_sizes(graph: MuGraph, schedule: Schedule) -> dict[str, int]:
    """The sizes of all axes under a schedule, chunk axes among them."""
    chunks = {k.chunk: schedule.kernels[k.name].split for k in graph.kernels if k.split is not None}
    return graph.sizes | chunks


def _made_of(kernel: Kernel, product: Eqn) -> set[str]:
    """The operands of a product, and what they are made of element by element."""
    eqns = {e.out: e for e in kernel.body if OPS[e.op].kind == "elementwise"}
    found = set[str]()
    todo = [*product.values]
    while todo:
        v = todo.pop()
        todo += eqns[v].values if v in eqns and v not in found else ()
        found.add(v)
    return found


def bytes_of(x: Load, element_bytes: Mapping[str, int]) -> float:
    """Of an element, for each position that reads it: several in a row may."""
    return element_bytes[x.buffer] / _in_a_row(x.access)


@lru_cache(maxsize=4096)
def _in_a_row(access: Access) -> int:
    """Positions that read one element."""
    in_a_row = (math.gcd(*(steady(a, d) for i in access for a, _ in i.terms)) for d in dims_of(access))
    return math.prod(max(n, 1) for n in in_a_row)


def side_by_side(x: Load, t: Tensor | None) -> tuple[str, ...]:
    """The axes of a load along which elements lie without gaps, in memory order. t: None for what is row-major."""
    if t is None or not t.strides:
        return x.dims
    return dims_of(i for d, i in zip(t.dims, x.access, strict=True) if d in t.without_gaps)


def lines_of(x: Load, t: Tensor | None, element: int) -> Lines | None:
    """None where the addresses are not known. t: None for an intermediate, with the axes that the access names.
    element: bytes of one."""
    return _lines(x.access, None if t is None else (t.dims, t.strides), element)


@lru_cache(maxsize=4096)
def _lines(access: Access, t: tuple[tuple[str, ...], tuple[int | None, ...]] | None, element: int) -> Lines | None:
    if t is not None:
        dims, strides = t
        return Lines(Tensor("", dims, "", strides=strides), access, element, intermediate=False)
    dims = tuple(i.axis for i in access if i.axis is not None)
    return Lines(Tensor("", dims, ""), access, element, intermediate=True) if len(dims) == len(access) else None


def whole_rows(x: Load, inputs: Iterable[Tensor], sizes: Mapping[str, int], element: int) -> bool:
    """Whether rows of what is loaded begin and end at multiples of what one instruction loads, or nothing else is
    known. inputs: of the μGraph. element: bytes of one."""
    lines = lines_of(x, next((t for t in inputs if t.name == x.buffer), None), element)
    return lines is None or any(sizes[a] * element % WIDEST_BYTES == 0 for a in lines.aligned_axes(sizes))


def bytes_once(access: Access, size: float, element: int, sizes: Mapping[str, int], l2_bytes: int) -> float:
    """What a load takes from memory for each position, in the mean: what windows that overlap have in common is read
    once, and so is what tables name again, as far as the L2 still has it. size: bytes for each position. element: of
    one of the tensor."""
    if all(i.affine for i in access):
        return size * read_once(access, sizes)
    positions = math.prod(sizes[a] for a in dims_of(access))
    there = box_around([access], sizes) * element
    again = max(0.0, positions * size - there) * min(1.0, l2_bytes / max(there, 1))
    return size - again / positions


def part_of(buffer: str, access: Access) -> Part:
    """What is read of a buffer: loads that begin at other offsets, or at other rows that tables name, read other
    parts. Under other names of axes, they read the same."""
    return Part(buffer, _where(access))


@lru_cache(maxsize=4096)
def _where(access: Access) -> str:
    if not all(i.affine for i in access):
        names = {d: Index(((f"%{n}", 1),)) for n, d in enumerate(dims_of(access))}
        return access_text(tuple(i.within(names) for i in access))
    offsets = [i.offset for i in access]
    return str(offsets) if any(offsets) else ""


def of_parts(
    bytes_of_parts: Mapping[Part, NDArray[np.float64] | float],
    accesses: Iterable[tuple[str, Access]],
    element_bytes: Mapping[str, int],
    sizes: Mapping[str, int],
) -> NDArray[np.float64] | float:
    """The bytes of all parts together. Those of one buffer overlap, as the neighbours in a stencil do, where they have
    more elements than the box around them. accesses: to each buffer."""
    found: NDArray[np.float64] | float = 0.0
    accesses = tuple(accesses)
    for buffer in dict.fromkeys(part.buffer for part in bytes_of_parts):
        own = [n for part, n in bytes_of_parts.items() if part.buffer == buffer]
        together = sum(own[1:], own[0])
        if len(own) > 1:
            box = box_around([a for b, a in accesses if b == buffer], sizes)
            together = np.minimum(together, box * element_bytes[buffer])
        found = found + together
    return found


def _stored_types(kernel: Kernel, element_bytes: Mapping[str, int], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The types of values that are loaded or cast. An intermediate of two bytes is of the type that inputs have."""
    half = next((t.dtype for t in tensors.values() if t.dtype in HALVES), "bfloat16")
    by_bytes = {1: min(FLOAT8), 2: half}
    loaded = ((x, tensors.get(x.buffer)) for x in kernel.loads)
    found = {x.out: t.dtype if t else by_bytes.get(element_bytes[x.buffer], "float32") for x, t in loaded}
    return found | {e.out: cast for e in kernel.body if (cast := cast_of(e))}


def _in_registers(eqns: Sequence[Eqn]) -> set[str]:
    """Values that are computed here, or loaded and computed with."""
    return {e.out for e in eqns} | {v for e in eqns if e.op != "dot" for v in e.values}


def _of_bytes(kernel: Kernel, element_bytes: Mapping[str, int]) -> dict[str, Tensor]:
    """What the kernel loads of one byte, as intermediates are: of float8, in the order that their accesses name."""
    dims = ((x.buffer, tuple(i.axis for i in x.access if i.axis is not None), len(x.access)) for x in kernel.loads)
    own = {b: axes for b, axes, rank in dims if len(axes) == rank and element_bytes[b] == 1}
    return {b: Tensor(b, axes, min(FLOAT8)) for b, axes in own.items()}


def _converted(
    eqns: Sequence[Eqn], eights: Collection[str], loads: Mapping[str, Load], tensors: Mapping[str, Tensor]
) -> set[str]:
    """Values of float8 that are loaded for products which take another type. eights: the products that take it."""
    taken = {v for e in eqns if e.op == "dot" and e.out not in eights for v in e.values if v in loads}
    return {v for v in taken if (t := tensors.get(loads[v].buffer)) is not None and t.dtype in FLOAT8}


def _added_to(kernel: Kernel, accumulators: Collection[str]) -> set[str]:
    """Products that are used once, in a sum with an accumulator with the same axes: Triton has the matrix units add
    them to it, so they take no registers of their own."""
    dims, uses = kernel.value_dims, Counter(v for e in kernel.body for v in e.values)
    uses.update(s.value for s in kernel.stores)
    pairs = [e.values for e in kernel.body if OPS[e.op].linear == (1, 1) and len(e.values) == 2]
    pairs += [(b, a) for a, b in pairs]
    products = {e.out for e in kernel.body if e.op == "dot"} - {*accumulators}
    return {a for a, b in pairs if a in products and uses[a] == 1 and b in accumulators and dims[a] == dims[b]}


def _product(
    e: Eqn,
    dims: Mapping[str, tuple[str, ...]],
    accumulates: bool,
    beside: set[str],
    alone: Unscaled | None,
    float8: bool,
    exact: Collection[str],
    stored: Mapping[str, str],
) -> Product:
    """stored: the types of values that are of a smaller one than float32."""
    left, right = (dims[v] if isinstance(v, str) else () for v in e.args)
    first, second = (v in exact if alone is None else bool(alone.scaled) for v in e.args)
    small = [multiplied_as(stored.get(str(v), "")) for v in e.args if v not in exact]
    return Product(
        tuple(d for d in left if d not in right and d not in e.axes),
        tuple(d for d in right if d not in left and d not in e.axes),
        e.axes,
        tuple(d for d in left if d in right and d not in e.axes),
        accumulates,
        (e.args[0] in beside, e.args[1] in beside),
        (first, second),
        small[0] if first != second else "float32",
        None if alone is None else alone.within,
        float8,
    )


class Unscaled(NamedTuple):
    """A product of what is loaded of a smaller type, without factors of float32 that are the same for several positions
    in a row along what is summed. within: as `Product.small_within`. scaled: what is multiplied by such."""

    product: Eqn
    within: tuple[tuple[str, int], ...]
    scaled: tuple[str, ...]


def _unscaled(kernel: Kernel, product: Eqn, exact: Collection[str], accumulates: bool) -> Unscaled | None:
    """None where operands are float32 otherwise, or where no accumulator takes what factors multiply."""
    if not any(v in exact for v in product.args):
        return Unscaled(product, (), ())
    loads, eqns = {x.out: x for x in kernel.loads}, {e.out: e for e in kernel.body}
    read = Counter([*(v for e in kernel.body for v in e.values), *(s.value for s in kernel.stores)])
    limits: dict[str, int] = {}
    scaled: list[str] = []
    args = list(product.args)
    for i, v in enumerate(args):
        while v in exact:
            y = eqns.get(str(v))
            if y is None or OPS[y.op].growth != "product" or len(y.values) != 2 or read[y.out] > 1:
                return None
            whole = [u for u in y.values if {*kernel.value_dims[u]} == {*y.dims} and u not in exact and u in loads]
            scale = [loads[u] for u in y.values if u not in whole and u in loads]
            if not whole or not scale or not accumulates:
                return None
            for d in product.axes:
                n = math.gcd(*(steady(a, d) for j in scale[0].access for a, _ in j.terms))
                if n:
                    limits[d] = math.gcd(limits.get(d, 0), n)
            scaled.append(y.out)
            v = args[i] = whole[0]
    return (
        None if 1 in limits.values() else Unscaled(replace(product, args=tuple(args)), (*limits.items(),), (*scaled,))
    )


def _computed_operands(
    eqns: Sequence[Eqn], dims: Mapping[str, tuple[str, ...]], loads: set[str]
) -> dict[frozenset[str], tuple[str, ...]]:
    """The axes of products' operands that are computed, each with those of its axes that the product keeps."""
    return {
        frozenset(dims[v]): tuple(d for d in dims[v] if d not in e.axes)
        for e in eqns
        if e.op == "dot"
        for v in e.values
        if v not in loads
    }


def widest(spaces: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Those that lie within no other: one of them has the largest block, whatever the tiles."""
    distinct = {frozenset(s): s for s in spaces}
    return tuple(s for axes, s in distinct.items() if not any(axes < other for other in distinct))


def _elementwise(
    eqns: Sequence[Eqn], rows: Mapping[frozenset[str], tuple[str, ...]], loads: set[str], halves: Collection[str]
) -> tuple[Elementwise, ...]:
    """halves: of the equations, those that are computed in float16, two at once."""
    operations: defaultdict[tuple[tuple[str, ...], tuple[str, ...]], float] = defaultdict(float)
    conversions: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for e in eqns:
        space = _space(e)
        operand = rows.get(frozenset(space), ())
        by_number = OPS[e.op].by_number
        if by_number and (isinstance(e.args[1], str) or exact_inverse(e.args[1]) is None):
            by_number = ""
        row = OPS[by_number or e.op]
        shifts = bool(row.of_powers) and power_of_two(e.args[1]) is not None
        flops = 1.0 if shifts else row.flops
        operations[space, operand] += flops / 2 if e.out in halves else flops
        conversions[space, operand] += bool(operand and loads & set(e.values))
    return tuple((space, n, conversions[space, operand], operand) for (space, operand), n in operations.items())


def _space(e: Eqn) -> tuple[str, ...]:
    return (*e.dims, *(a for a in e.axes if a not in e.dims)) if OPS[e.op].kind == "reduction" else e.dims


def _shared(kernel: Kernel, dims: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Axes that are batch axes of every product that has them."""
    operands = (e.values for e in kernel.body if e.op == "dot" and len(e.values) == 2)
    shared = {d for a, b in operands for d in {*dims[a]} & {*dims[b]}}
    return frozenset(shared.difference(*(m | n | k for m, n, k in kernel.products)))
