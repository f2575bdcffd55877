"""What a generated kernel does, as the cost model sees it: worked out once, evaluated for many schedules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import NamedTuple

from mirage_cli.ir.access import Access
from mirage_cli.ir.beside import beside
from mirage_cli.ir.diagonal import Groups, diagonal, groups
from mirage_cli.ir.form import KernelForm, axes_of
from mirage_cli.ir.hashed import hashed_once
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph
from mirage_cli.ir.ops import OPS, flops_of
from mirage_cli.ir.phases import MOST as PHASES
from mirage_cli.ir.placement import Loop, Placement, Straight, early_loads, place
from mirage_cli.ir.program import DTYPE_BYTES, FLOAT8, HALVES, Eqn, Tensor, cast_of
from mirage_cli.ir.reach import Limit, Made, limits, made_by
from mirage_cli.ir.scans import Scan, reduces, scanned
from mirage_cli.ir.schedule import Schedule, bytes_taken
from mirage_cli.ir.tables import TableEntry, with_entries
from mirage_cli.ir.unrolled import Windows, unrolled, windows
from mirage_cli.ir.whole import EXACT, LOADED, bounds
from mirage_cli.search.cost.alike import nameless, unnamed
from mirage_cli.search.cost.live import (
    Held,
    Lanes,
    Moment,
    Operand,
    axes_beside,
    held_at_once,
    lanes,
    met,
    reduced,
    spaces_of_sums,
)
from mirage_cli.search.cost.products import FromBits, Product, from_bits, product_of, unscaled
from mirage_cli.search.cost.traffic import (
    BufferPart,
    Lines,
    alike_along,
    apart_bytes,
    bytes_of,
    lines_of,
    part_of,
    side_by_side,
)

Axes = tuple[str, ...]
NO_VALUES = frozenset[str]()
SCANNED = 8.0
"""Times that a scan combines an element: with the one before in its thread, with other threads and with other warps, of
which each takes a part of the elements (Triton 3.6)."""


LOOKED_UP = 8.0
"""Operations that an entry of a table takes: it is read from shared memory, and goes back there to be multiplied. 7.7
instructions a weight in a loop over indices of 4 bits (triton 3.6, sm_90)."""


class Loaded(NamedTuple):
    """A load: the axes of its block, what is read, and where. early: whether it may stand in front of a loop that it
    is behind."""

    axes: Axes
    element_bytes: float
    part: BufferPart
    access: Access
    early: bool


class Block(NamedTuple):
    """The block of loads that are alike. beside: the axes along which elements lie side by side. apart_bytes: between
    neighbours along the last of these. alike: how many. inside: the part of its elements that is read, where most lie
    outside of the tensor."""

    axes: Axes
    element_bytes: float
    beside: Axes
    apart_bytes: float
    lines: Lines | None
    alike: int
    inside: float


class Elementwise(NamedTuple):
    """Equations over the same axes. operations: for an element. reads: elements that are read for an operand of a
    product, whose own axes the rows are. beside: `live.axes_beside`. sharing: how many rows share an element of that
    operand. made: what it makes, where that is an operand that is made of bits by logic."""

    axes: Axes
    operations: float
    reads: int
    rows: Axes
    beside: Axes
    sharing: int = 1
    made: FromBits | None = None


class Stored(NamedTuple):
    """A store: the axes of its block, and where its elements lie. tensor: None for an intermediate."""

    axes: Axes
    element_bytes: int
    access: Access
    tensor: Tensor | None


@dataclass(frozen=True, slots=True)
class Work:
    """What one segment does in each of its iterations; the block sizes come with the tiles.

    dots: products, and how many there are alike. limits: of the loop's position, where masks leave the rest of it
    nothing to do. integers: what limits depend on, the tensors of
    loaded values, and how others are made. operands: of products, loaded in front.
    sums: their axes, and those that they sum. lanes: of a loop, accumulators that may keep what they reduce. met: sums
    that meet what a product has made: their axes, operations for an element, and the product. reduced: what a loop sums
    of that, or takes the maximum of: the axes that are reduced, and the product.
    """

    loop: Axes
    loads: tuple[Loaded, ...]
    blocks: tuple[Block, ...]
    dots: tuple[tuple[Product, int], ...]
    elementwise: tuple[Elementwise, ...]
    limits: tuple[Limit, ...]
    integers: tuple[tuple[str, Tensor | Made], ...]
    operands: tuple[Operand, ...]
    sums: tuple[tuple[Axes, Axes], ...]
    lanes: tuple[Lanes, ...]
    met: tuple[tuple[Axes, float, Product], ...]
    reduced: tuple[tuple[Axes, Product], ...]

    @property
    def by_data(self) -> bool:
        """Whether integers that are loaded say how far its loop goes."""
        return any(kind == "value" for limit in self.limits for kind, _ in limit.leaves)


class ProductAxes(NamedTuple):
    """The axes of a product: those of its left operand alone, of its right alone, summed, and shared by both."""

    left: frozenset[str]
    right: frozenset[str]
    summed: frozenset[str]
    batch: frozenset[str]


@dataclass(frozen=True, eq=False)  # without slots, for what is cached
class Model:
    """A kernel as the cost model sees it: worked out once, evaluated for many tiles. Each equals itself alone.

    What says whether tiles fit is worked out first, all else where tiles are priced: of many kernels, none fit.
    """

    kernel: Kernel
    placed: Kernel
    """The same with scans, where it has any."""
    placement: Placement
    """Of `placed`."""
    element_bytes: tuple[tuple[str, int], ...]
    exact: frozenset[str]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    grid: Axes
    whole: Axes
    split: str | None
    stores: tuple[Stored, ...]
    accumulators: tuple[Axes, ...]
    values: tuple[Axes, ...]
    """Spaces of values, those that lie within no other."""
    scanned: tuple[tuple[Axes, int], ...]
    """The axes of scans, and how many values each combines at once."""
    multiplied: frozenset[ProductAxes]
    shared: frozenset[str]
    """Batch axes of every product that has them."""
    several: bool
    """Whether it has parts that may run side by side (`ir.beside`)."""
    dynamic: frozenset[str]
    """Axes whose size is an argument."""
    rows: Axes | None
    """Where its windows are in registers, the axis that they overlap along, if any: of a block, one position."""
    inside: Mapping[str, float]
    """Of loads of which most lies outside of their tensor, what part does not."""
    halves: frozenset[str]
    """Values that are computed in 16 bits, two at once."""
    from_bytes: frozenset[str]
    """Axes of products of which one operand is computed from bytes."""

    @cached_property
    def held(self) -> frozenset[str]:
        """The accumulators."""
        return frozenset(n for loop in self.placement.loops for n, _ in loop.accumulators)

    @cached_property
    def added(self) -> frozenset[str]:
        """Products that the matrix units add to accumulators."""
        return frozenset(_added_to(self.placed, self.held))

    @cached_property
    def nearly(self) -> bool:
        """Whether nothing that it reads or makes shows the last bits of float32."""
        stored = {s.buffer for s in self.kernel.stores}
        outputs = all(t.dtype in HALVES for t in self.outputs if t.name in stored)
        return outputs and all(t.dtype != "float32" for t in self.inputs if t.name in self.kernel.read)

    @cached_property
    def at_once(self) -> Held:
        return held_at_once(self.placed, self.placement, self.bytes_of_buffers, self.exact, self.added)

    @property
    def moments(self) -> tuple[Moment, ...]:
        """What is held in registers at once (`live.held_at_once`)."""
        return self.at_once.moments

    @cached_property
    def worked(self) -> list[tuple[Work, list[tuple[Axes, float]]]]:
        """Of each segment, as `_segment` has it."""
        of_inputs = self.exact, self.inputs, self.halves, self.inside
        known = _Known.of(self.placed, self.bytes_of_buffers, *of_inputs, self.nearly)
        pairs = zip(self.placement.segments, self.at_once.operands, strict=True)
        return [_segment(known, segment, operands) for segment, operands in pairs if segment.steps]

    @cached_property
    def segments(self) -> tuple[Work, ...]:
        return tuple(w for w, _ in self.worked if w.loads or w.dots or w.elementwise)

    @cached_property
    def products(self) -> tuple[Axes, ...]:
        sums = (axes for _, summed in self.worked for axes, _ in summed)
        kept = self.held | self.added
        return (*sums, *(e.dims for e in self.placed.body if e.op == "dot" and e.out not in kept))

    @cached_property
    def computed(self) -> tuple[Axes, ...]:
        """Of accumulators, products and what is computed: those that lie within no other."""
        elementwise = (axes for w in self.segments for axes, *_ in w.elementwise)
        return widest([*self.accumulators, *self.products, *elementwise])

    def parts(self, tiled: Collection[str]) -> tuple[Model, ...]:
        """Those that do, with several tiles along these axes."""
        return tuple(_part_of(self, k) for k in beside(self.kernel, tiled))

    def windows(self, sizes: Mapping[str, int]) -> Windows | None:
        """Those that may be in registers."""
        return windows(self.kernel, axes_of(self.kernel, sizes), self.dynamic, (*self.inputs, *self.outputs))

    def groups(self, sizes: Mapping[str, int]) -> Groups | None:
        """Those of which blocks may have several, as one product."""
        return groups(self.kernel, self.read, tuple(sizes.items()), self.dynamic)

    def formed(self, count: int, sizes: Mapping[str, int]) -> Formed | None:
        """The kernel with so many of a block: rows along the axis that windows overlap along, which are in registers,
        or groups of products. None where that cannot be."""
        return _formed(self, count, tuple(sizes.items()))

    def matrix_axes(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Axes of products that the matrix units may take: where an operand is computed from bytes, also with a vector,
        since it comes to them cheaper than as float32."""
        return self.kernel.matrix_axes(sizes) | self.from_bytes

    def batch_axes(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Axes along which the matrix units multiply one by one."""
        return self.shared if self.matrix_axes(sizes) else frozenset()

    @cached_property
    def read(self) -> tuple[Tensor, ...]:
        """What the kernel reads: inputs, and intermediates in the axes that their loads name."""
        given = {t.name: t for t in self.inputs}
        others = ((x.buffer, tuple(i.axis for i in x.access if i.axis), len(x.access)) for x in self.kernel.loads)
        made = {b: Tensor(b, axes, "") for b, axes, rank in others if len(axes) == rank and b not in given}
        return *(given[b] for b in self.kernel.read if b in given), *made.values()

    @cached_property
    def sides(self) -> frozenset[frozenset[str]]:
        """The axes of either side of products."""
        return frozenset(side for p in self.multiplied for side in (p.left, p.right))

    @cached_property
    def bytes_of_buffers(self) -> Mapping[str, int]:
        """`element_bytes` by name."""
        return dict(self.element_bytes)

    @property
    def single(self) -> bool:
        """Whether any product is of float32."""
        return any(p.single for w in self.segments for p, _ in w.dots)

    @cached_property
    def alike(self) -> Alike:
        known = unnamed((*self.inputs, *self.outputs))
        key = nameless(self.kernel, self.bytes_of_buffers, self.exact, known)
        return Alike((key, self.dynamic, self.rows, frozenset(self.inside.items())), self)


@hashed_once
@dataclass(frozen=True)
class Alike:
    """A kernel as a key: those that differ in names alone are equal, and have equal prices."""

    key: Hashable
    model: Model = field(compare=False)


@dataclass(frozen=True, slots=True)
class Formed:
    """A kernel in another form. sizes: of all axes, its own among them."""

    model: Model
    form: KernelForm
    sizes: Mapping[str, int]


@lru_cache(maxsize=1024)
def _formed(m: Model, count: int, axes: tuple[tuple[str, int], ...]) -> Formed | None:
    sizes = dict(axes)
    found, several = m.windows(sizes), m.groups(sizes)
    made = unrolled(m.kernel, found, count, axes_of(m.kernel, sizes)) if found is not None else None
    made = diagonal(m.kernel, several, count) if several is not None else made
    if made is None:
        return None
    along = tuple(made.names.values()) if made.unrolls else None
    exact = frozenset(v for v in made.kernel.value_dims if made.values.get(v) in m.exact)
    known = m.inputs, m.outputs, m.dynamic
    return Formed(model(made.kernel, m.bytes_of_buffers, exact, *known, along, made.parts), made, made.sizes(sizes))


@lru_cache(maxsize=4096)
def _part_of(m: Model, kernel: Kernel) -> Model:
    known = unnamed((*m.inputs, *m.outputs))
    return _part(_Part(nameless(kernel, dict(m.element_bytes), m.exact, known), kernel, m))


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a kernel. Those that are alike are equal."""

    alike: Hashable
    kernel: Kernel = field(compare=False)
    of: Model = field(compare=False)


@lru_cache(maxsize=4096)
def _part(x: _Part) -> Model:
    return model(x.kernel, dict(x.of.element_bytes), x.of.exact, x.of.inputs, x.of.outputs, x.of.dynamic)


def model(
    kernel: Kernel,
    element_bytes: Mapping[str, int],
    exact: frozenset[str],
    inputs: Iterable[Tensor],
    outputs: Iterable[Tensor],
    dynamic: frozenset[str] = frozenset(),
    rows: Axes | None = None,
    parts: Mapping[str, float] = MappingProxyType({}),
) -> Model:
    """The model of a generated kernel. Raises InexpressibleError.

    element_bytes: of each buffer it touches. exact: the values whose products are of float32. inputs, outputs, dynamic:
    of the μGraph. parts: as of `KernelForm`.
    """
    inputs, outputs = tuple(inputs), tuple(outputs)
    placed = with_entries(scanned(kernel), {t.name: t for t in inputs})
    placement, dims = place(placed), placed.value_dims
    written = {t.name: t for t in (*inputs, *outputs)}
    halves = _in_halves(placed, inputs)
    products = [e for e in placed.body if e.op == "dot"]
    return Model(
        kernel=kernel,
        placed=placed,
        placement=placement,
        element_bytes=tuple(element_bytes.items()),
        exact=frozenset(exact),
        inputs=inputs,
        outputs=outputs,
        grid=placed.with_role("grid"),
        whole=placed.with_role("tile"),
        split=placed.split,
        stores=tuple(Stored(s.dims, element_bytes[s.buffer], s.access, written.get(s.buffer)) for s in placed.stores),
        accumulators=tuple(dims[n] for loop in placement.loops for n, _ in loop.accumulators),
        values=widest([*dims.values(), *(_space(e) for e in placed.body if reduces(e))]),
        scanned=tuple((e.dims, e.combined) for e in placed.body if isinstance(e, Scan)),
        multiplied=frozenset(_multiplied(e, dims) for e in products),
        shared=_shared(placed, dims),
        several=len(beside(placed, placed.with_role("grid"))) > 1,
        dynamic=dynamic,
        rows=rows,
        inside=parts,
        halves=frozenset(halves),
        from_bytes=frozenset(
            d for e in products if halves and halves & _made_of(placed, e.values) for d in (*e.dims, *e.axes)
        ),
    )


def _in_halves(kernel: Kernel, inputs: Iterable[Tensor]) -> set[str]:
    """Values that are whole numbers computed in the program's type of 16 bits, as far as that holds them: of bfloat16
    half of the range that it has exactly, where they are made of bits, and all of it where they are bytes or sums."""
    given = {t.name: t for t in inputs}
    types = {t.dtype for t in given.values()}
    if not types & HALVES:
        return set()
    found = bounds(kernel, given)
    if "float16" in types:
        return {v for v, b in found.items() if max(map(abs, b)) <= EXACT["float16"]}
    most = EXACT["bfloat16"]
    exact = {v for v, b in found.items() if max(map(abs, b)) <= most}
    sums = {e.out for e in kernel.body if OPS[e.op].linear and exact.issuperset(e.args)}
    wide = sums | {x.out for x in kernel.loads}
    return {v for v in exact if v in wide or found[v][1] - found[v][0] < most // 2}


def _multiplied(e: Eqn, dims: Mapping[str, Axes]) -> ProductAxes:
    left, right = (frozenset(dims[v] if isinstance(v, str) else ()).difference(e.axes) for v in e.args)
    return ProductAxes(left - right, right - left, frozenset(e.axes), left & right)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a kernel's values.

    tensors: the inputs of the μGraph. small: tensors that may be of float8. stored: the types of values that are loaded
    or cast. halves: as of `Model`. lines: where loads lie. early: loads that may
    stand in front of a loop that they are behind. inside, nearly: as of `Model`.
    """

    kernel: Kernel
    element_bytes: Mapping[str, int]
    exact: frozenset[str]
    tensors: Mapping[str, Tensor]
    loads: Mapping[str, Load]
    eqns: Mapping[str, Eqn]
    small: Mapping[str, Tensor]
    stored: Mapping[str, str]
    halves: frozenset[str]
    lines: Mapping[str, Lines | None]
    early: frozenset[str]
    inside: Mapping[str, float]
    nearly: bool

    @staticmethod
    def of(
        kernel: Kernel,
        element_bytes: Mapping[str, int],
        exact: frozenset[str],
        inputs: Sequence[Tensor],
        halves: frozenset[str],
        inside: Mapping[str, float],
        nearly: bool,
    ) -> _Known:
        tensors = {t.name: t for t in inputs}
        return _Known(
            kernel,
            element_bytes,
            exact,
            tensors,
            {x.out: x for x in kernel.loads},
            {e.out: e for e in kernel.body},
            _of_bytes(kernel, element_bytes) | tensors,
            _stored_types(kernel, element_bytes, tensors),
            halves,
            {x.out: lines_of(x, tensors.get(x.buffer), element_bytes[x.buffer]) for x in kernel.loads},
            early_loads(kernel),
            inside,
            nearly,
        )

    def paired(self, products: Iterable[Eqn]) -> set[str]:
        """Operands that are whole numbers made of bytes, or such times a factor, where the bytes lie side by side along
        no axis that is summed."""
        found = set[str]()
        if not self.halves and all(t.dtype != "int8" for t in self.tensors.values()):
            return found
        for e in products:
            for v in {*e.values}:
                factors = self.eqns[v].values if v in self.eqns and OPS[self.eqns[v].op].growth == "product" else ()
                runs = {d for x in self.made_of(v) for d in side_by_side(x, self.tensors.get(x.buffer))[-1:]}
                if any(map(self.whole, (v, *factors))) and runs and not runs & {*e.axes}:
                    found.add(v)
        return found

    @property
    def words(self) -> set[str]:
        """The loads of words."""
        tensors = ((x.out, self.tensors.get(x.buffer)) for x in self.loads.values())
        return {out for out, t in tensors if t is not None and t.dtype == "int32"}

    def sharing(self, v: str) -> int:
        """How many neighbours along its own axis share 16 bits that are loaded at once for an operand: two bytes, or
        parts of a word."""
        found = 1
        for x in self.made_of(v):
            if any(alike_along(x.access, d) > PHASES for d in x.dims):
                continue  # the same along all that a block sums
            t = self.tensors.get(x.buffer)
            size = DTYPE_BYTES[t.dtype] if t is not None and t.dtype in LOADED else 2
            run = side_by_side(x, t)[-1:]
            apart = apart_bytes(x, run[0], {x.buffer: size}) if run else 2.0
            found = max(found, int(2 / apart))
        return found

    def made_of(self, v: str) -> list[Load]:
        """The loads with all axes of an operand that it is made of."""
        some = _made_of(self.kernel, (v,))
        return [self.loads[u] for u in some if u in self.loads and {*self.loads[u].dims} == {*self.dims[v]}]

    def whole(self, v: str) -> bool:
        """Whether a value is whole numbers that float16 holds, or bytes as they are."""
        if v in self.loads:
            t = self.tensors.get(self.loads[v].buffer)
            return t is not None and t.dtype == "int8"
        return v in self.halves or (cast_of(self.eqns[v]) in HALVES and self.whole(*self.eqns[v].values))

    @property
    def dims(self) -> Mapping[str, Axes]:
        return self.kernel.value_dims

    def read(self, x: Load) -> Loaded:
        size = bytes_of(x, self.element_bytes) * self.inside.get(x.out, 1.0)
        return Loaded(x.dims, size, part_of(x.buffer, x.access), x.access, x.out in self.early)

    def blocks(self, loads: Iterable[Load]) -> Iterator[Block]:
        """The blocks of these loads, each alone."""
        for x in loads:
            run = side_by_side(x, self.tensors.get(x.buffer))
            whole = bytes_of(x, self.element_bytes)
            apart = apart_bytes(x, run[-1], self.element_bytes) if run else whole
            yield Block(x.dims, whole, run, apart, self.lines[x.out], 1, self.inside.get(x.out, 1.0))


def _segment(
    k: _Known, segment: Loop | Straight, operands: tuple[Operand, ...]
) -> tuple[Work, list[tuple[Axes, float]]]:
    """The work of a segment. Beside it the products whose blocks are summed apart and then added to an accumulator:
    their axes, and operations for an element."""
    loop = segment if isinstance(segment, Loop) else None
    summed = {n for n, _ in loop.accumulators} if loop else set[str]()
    plain = {*loop.steady, *loop.running} if loop else set[str]()
    steps = [s for s in segment.steps if isinstance(s, Eqn)]
    found = ((e.out, unscaled(k.kernel, e, k.exact, e.out in summed)) for e in steps if e.op == "dot")
    alone = {out: x for out, x in found if x is not None}
    apart = {v for x in alone.values() for v in x.scaled}
    eqns = [alone[e.out].product if e.out in alone else e for e in steps if e.out not in apart]
    products = [e for e in eqns if e.op == "dot"]
    taken = {e.out: bytes_taken(e, k.loads, k.small, k.eqns) for e in products}
    integers = {e.out for e in products if taken[e.out] == "int8"}
    eights = integers | {e.out for e in products if taken[e.out] and not k.exact & {*e.values}}
    registers = _in_registers(eqns) | _converted(eqns, eights, k.loads, k.small)
    multiplied = _of_products(eqns)
    factors = {out: len(x.scaled) for out, x in alone.items()}
    blocks = [(e.dims, 1.0 + factors.get(e.out, 0)) for e in eqns if e.out in eights or factors.get(e.out)]
    dims = k.kernel.value_dims
    paired = k.paired(products)

    def dot(e: Eqn) -> Product:
        exact = NO_VALUES if e.out in integers else k.exact
        known = exact, k.stored, paired, k.lines
        return product_of(e, dims, e.out in plain, registers, multiplied, alone.get(e.out), e.out in eights, *known)

    rows = _computed_operands(eqns, dims, {*k.loads})
    spaces = spaces_of_sums(k.kernel, segment)
    operands_of_bits = (from_bits(k.kernel, e, v, k.halves, k.words) for e in products if k.halves for v in {*e.values})
    by_bits = {v: x for x in operands_of_bits if x is not None for v in x.eqns}
    others = [e for e in eqns if e.op != "dot"]
    elementwise = _elementwise(others, rows, {*k.loads}, k.halves, spaces, by_bits, k.nearly)
    sharing = {frozenset(dims[v]): k.sharing(v) for v in paired}
    elementwise = (x._replace(sharing=sharing.get(frozenset(x.axes), 1)) for x in elementwise)
    sums = ((e.dims, e.axes) for e in eqns if reduces(e) and e.out not in plain)
    read = [k.loads[s.out] for s in segment.steps if s.out in k.loads]
    reach = limits(k.kernel, loop) if loop else ()
    leaves = {leaf for x in reach for leaf in x.leaves}
    known = {v: k.tensors.get(k.loads[v].buffer) for kind, v in leaves if kind == "value"}
    known |= {v: made_by(k.kernel, v) for kind, v in leaves if kind == "made"}
    named = {e.out: dot(e) for e in products}
    work = Work(
        loop=loop.dims if loop else (),
        loads=tuple(map(k.read, read)),
        blocks=tuple(block._replace(alike=n) for block, n in Counter(k.blocks(read)).items()),
        dots=tuple(Counter(named.values()).items()),
        elementwise=(*elementwise, *(Elementwise(axes, operations, 0, (), ()) for axes, operations in blocks)),
        limits=reach,
        integers=tuple((v, t) for v, t in sorted(known.items()) if t is not None),
        operands=operands,
        sums=tuple(sums) if spaces else (),
        lanes=lanes(k.kernel, loop) if loop else (),
        met=tuple((m.axes, m.operations, named[m.product]) for m in met(loop) if m.product in named) if loop else (),
        reduced=tuple((axes, named[product]) for axes, product in reduced(loop) if product in named) if loop else (),
    )
    return work, blocks


@lru_cache(maxsize=64)
def models(graph: MuGraph) -> Mapping[str, Model]:
    """Of every generated kernel."""
    exact = graph.exact()
    generated = (k for k in graph.kernels if k.kind == "generated")
    known = graph.inputs, graph.outputs, frozenset(r.dim for r in graph.dynamic)
    return {k.name: model(k, graph.element_bytes, exact[k.name], *known) for k in generated}


def chunk_sizes(graph: MuGraph, schedule: Schedule) -> dict[str, int]:
    """The sizes of all axes under a schedule, chunk axes among them."""
    chunks = {k.chunk: schedule.kernels[k.name].split for k in graph.kernels if k.split is not None}
    return {**graph.sizes, **chunks}


def _made_of(kernel: Kernel, values: Iterable[str]) -> set[str]:
    """These values, and what they are made of element by element."""
    eqns = {e.out: e for e in kernel.body if OPS[e.op].kind == "elementwise"}
    found = set[str]()
    todo = [*values]
    while todo:
        v = todo.pop()
        todo += eqns[v].values if v in eqns and v not in found else ()
        found.add(v)
    return found


def _stored_types(kernel: Kernel, element_bytes: Mapping[str, int], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The types of values that are loaded or cast. An intermediate of two bytes is of the type that inputs have."""
    half = next((t.dtype for t in tensors.values() if t.dtype in HALVES), "bfloat16")
    by_bytes = {1: min(FLOAT8), 2: half}
    loaded = ((x, tensors.get(x.buffer)) for x in kernel.loads)
    found = {x.out: t.dtype if t else by_bytes.get(element_bytes[x.buffer], "float32") for x, t in loaded}
    return found | {e.out: cast for e in kernel.body if (cast := cast_of(e))}


def _of_products(eqns: Iterable[Eqn]) -> set[str]:
    """Products, and what is made of them."""
    found = set[str]()
    for e in eqns:
        if e.op == "dot" or found & {*e.values}:
            found.add(e.out)
    return found


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
    eqns: Sequence[Eqn],
    rows: Mapping[frozenset[str], tuple[str, ...]],
    loads: set[str],
    halves: Collection[str],
    spaces: Collection[tuple[str, ...]],
    by_bits: Mapping[str, FromBits],
    nearly: bool,
) -> tuple[Elementwise, ...]:
    """halves: of the equations, those that are computed in 16 bits, two at once. spaces: `live.spaces_of_sums`.
    by_bits: of those that make operands of bits, what they make. nearly: as of `Model`."""
    operations: defaultdict[Elementwise, float] = defaultdict(float)
    conversions: Counter[Elementwise] = Counter()
    for e in eqns:
        axes = _space(e)
        operand = rows.get(frozenset(axes), ())
        key = Elementwise(axes, 0.0, 0, operand, axes_beside(axes, spaces), made=by_bits.get(e.out))
        flops = flops_of(e.op, e.args, nearly) * (SCANNED * (2 * e.combined - 1) if isinstance(e, Scan) else 1.0)
        flops = LOOKED_UP if isinstance(e, TableEntry) else flops
        operations[key] += flops / 2 if e.out in halves else flops
        conversions[key] += bool(operand and loads & set(e.values))
    return tuple(key._replace(operations=n, reads=conversions[key]) for key, n in operations.items())


def _space(e: Eqn) -> tuple[str, ...]:
    return (*e.dims, *(a for a in e.axes if a not in e.dims)) if reduces(e) else e.dims


def _shared(kernel: Kernel, dims: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Axes that are batch axes of every product that has them."""
    operands = (e.values for e in kernel.body if e.op == "dot" and len(e.values) == 2)
    shared = {d for a, b in operands for d in {*dims[a]} & {*dims[b]}}
    return frozenset(shared.difference(*(m | n | k for m, n, k in kernel.products)))
