"""How a kernel's loads reach memory: which go through tensor descriptors, which are fetched into the L2 beforehand, and
which read what nobody reads again.

It follows from the μGraph and the schedule, so the tuner can tell a choice that changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil, prod
from typing import NamedTuple, TypeVar

from mirage_cli.codegen import axisnames
from mirage_cli.codegen.nodes import Axes
from mirage_cli.codegen.scalars import Stride, Times
from mirage_cli.ir.access import Index, Lookup, combined, plain, strides
from mirage_cli.ir.footprint import apart
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph
from mirage_cli.ir.placement import Loop, Straight, place
from mirage_cli.ir.program import DTYPE_BYTES, Eqn, Tensor
from mirage_cli.ir.reach import left_out, limits
from mirage_cli.ir.schedule import (
    MIN_DOT,
    Before,
    FetchedAhead,
    KernelSchedule,
    Lead,
    Relay,
    Schedule,
    block_order,
    block_sizes,
    chunk_length,
    on_matrix_units,
)

T = TypeVar("T")

DESCRIPTOR_ALIGNMENT = 16
"""Bytes: of the start of a tensor, of its strides, and the least of a box's innermost axis (CUDA driver API,
cuTensorMapEncodeTiled). And of where a box begins along that axis: on an H200, boxes of 8 to 64 elements of float16, or
of 4 to 32 of float32, that begin elsewhere are an illegal instruction."""
MAX_BOX = 256
"""Elements of a box along one axis (the same)."""
MAX_RANK = 5
"""Axes of a descriptor (the same)."""
SPECIALIZED_WARPS = 4
WARP_GROUP_ROWS = 64
"""Of a product of one warp group on sm_90 (PTX ISA, wgmma)."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor that is read in boxes, as `triton.tools.tensor_descriptor.TensorDescriptor` is given it.

    dims: the kernel's name of each axis of the box, the one with neighbouring elements last. at: where along each the
    box is, which may be outside of the tensor, where it reads as 0. shape, strides: of the tensor, in elements; those
    that follow from sizes which a call says differ by call. box: elements along each axis, 1 along those that are no
    axes of the kernel's block. narrow: whether the last two have to be merged, for rows of the last are too short.
    """

    buffer: str
    dims: tuple[str, ...]
    at: tuple[Index, ...]
    shape: tuple[Stride, ...]
    strides: tuple[Stride, ...]
    box: tuple[int, ...]
    narrow: bool = False

    @property
    def block(self) -> tuple[str, ...]:
        """The axes of the kernel's block, as a box has them."""
        return tuple(d for d, n in zip(self.dims, self.box, strict=True) if n > 1)

    @property
    def sized(self) -> bool:
        """Whether it is another for each size of a call."""
        return any(isinstance(n, Times) for n in (*self.shape, *self.strides))


def merged_box(d: Descriptor, axes: Axes, sizes: Mapping[str, int]) -> Descriptor:
    """The descriptor with merged axes where they are one axis in memory. Rows of a product that are one axis of a box
    go to the matrix units from shared memory; rows of several axes go through registers. sizes: of all axes."""
    for axis in axes:
        first, many = d.dims.index(axisnames.apart((axis,))[0]), len(axisnames.apart((axis,)))
        if many > 1:
            d = _merged(d, axis, first, first + many, sizes) or d
    return d


def _merged(d: Descriptor, axis: str, first: int, end: int, sizes: Mapping[str, int]) -> Descriptor | None:
    """With axes from the first to the end as this one. None unless all but the first are whole in a box, elements lie
    side by side, and boxes start inside: what is outside along one axis may be inside along the merged one."""
    dims, sides, box = d.dims[first:end], [*zip(d.shape, d.strides, strict=True)][first:end], d.box[first:end]
    numbers = [n for side in sides for n in side if isinstance(n, int)]
    if len(numbers) < 2 * len(sides) or d.at[first + 1 : end] != plain(dims[1:]):
        return None
    extents, strides = numbers[::2], numbers[1::2]
    whole = all(n == extent for n, extent in zip(box[1:], extents[1:], strict=True))
    dense = all(n == extent * step for n, extent, step in zip(strides, extents[1:], strides[1:], strict=False))
    if not whole or not dense or prod(box) > MAX_BOX or any(d.at[first].leaves(extents[0], sizes)):
        return None
    at = combined(0, ((i, n // strides[-1]) for i, n in zip(d.at[first:end], strides, strict=True)))

    def put(values: tuple[T, ...], new: T) -> tuple[T, ...]:
        return *values[:first], new, *values[end:]

    return Descriptor(
        d.buffer,
        put(d.dims, axis),
        put(d.at, at),
        put(d.shape, prod(extents)),
        put(d.strides, strides[-1]),
        put(d.box, prod(box)),
    )


def descriptors(
    graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int], *, narrow: bool = False
) -> dict[str, Descriptor]:
    """The descriptors of a kernel by the values that are loaded through them. narrow: those too that may be, if their
    axes are merged.

    They serve loads inside loops, where the hardware fetches ahead what threads would work out the addresses of, and
    all loads of a specialized kernel. `sizes` holds every axis, those of chunks included.
    """
    if specialized(graph, kernel, schedule, sizes):
        return {**_boxes(graph, kernel, schedule, sizes).all}
    found = _boxes(graph, kernel, schedule, sizes).in_loops if schedule.descriptors else {}
    return {v: d for v, d in found.items() if narrow or not d.narrow}


def specialized(graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> bool:
    """Whether warps of their own fetch for the loop of this kernel.

    Triton does that for four warps that multiply with products of at least 64 rows. Where there is another loop, or a
    load by pointers, its compiler fails (3.6 and 3.7).
    """
    loops = place(kernel).loops
    if not schedule.specialize or schedule.warps != SPECIALIZED_WARPS or len(loops) != 1:
        return False
    block, dims = block_sizes(kernel, schedule, sizes), kernel.value_dims
    order = block_order(kernel, schedule.order, block)
    sides = [_rows_and_columns(e, dims, block, order) for e in loops[0].steps if isinstance(e, Eqn) and e.op == "dot"]
    large = all(rows >= WARP_GROUP_ROWS and columns >= MIN_DOT for rows, columns in sides)
    wide = multiplies(loops[0], dims, block) and large
    return wide and len(_boxes(graph, kernel, schedule, sizes).all) == len(kernel.loads)


def _rows_and_columns(
    e: Eqn, dims: Mapping[str, tuple[str, ...]], block: Mapping[str, int], order: tuple[str, ...]
) -> tuple[int, int]:
    """Elements along the axes that are a product's rows, those of the operand whose own axes the order has first, and
    along its columns."""
    a, b = (set(dims[v]) - set(e.axes) for v in e.values)
    first = next((d for d in order if d in a ^ b and block[d] > 1), None)
    left, right = (prod(block[d] for d in side) for side in (a - b, b - a))
    return (left, right) if first in a else (right, left)


def multiplies(loop: Loop, dims: Mapping[str, tuple[str, ...]], block: Mapping[str, int]) -> bool:
    """Whether a loop has a product on the matrix units."""
    return any(isinstance(e, Eqn) and e.op == "dot" and on_matrix_units(e, dims, block) for e in loop.steps)


class _Boxes(NamedTuple):
    """By the values that are loaded: all of a kernel, and those inside loops."""

    all: Mapping[str, Descriptor]
    in_loops: Mapping[str, Descriptor]


def _boxes(graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> _Boxes:
    return _boxes_of_tiles(graph, kernel, schedule.tiles, schedule.order, tuple(sizes.items()))


@lru_cache(maxsize=1 << 12)
def _boxes_of_tiles(
    graph: MuGraph,
    kernel: Kernel,
    tiles: tuple[tuple[str, int], ...],
    order: tuple[str, ...],
    axes: tuple[tuple[str, int], ...],
) -> _Boxes:
    """axes: with their sizes. No other choice of a schedule matters."""
    sizes = dict(axes)
    block = block_sizes(kernel, KernelSchedule(tiles, order), sizes)
    order = block_order(kernel, order, block)
    partly = left_out(graph)  # a box has no mask
    some = {x.out: _descriptor(graph, x, order, block, sizes) for x in kernel.loads if x.buffer not in partly}
    found = {value: d for value, d in some.items() if d is not None}
    inside = {step.out for loop in place(kernel).loops for step in loop.steps}
    wide = {value: d for value, d in found.items() if not d.narrow}
    return _Boxes(wide, {value: d for value, d in found.items() if value in inside})


class _Side(NamedTuple):
    """An axis of a box: its name, where it is, the positions that the tensor has along it, elements between them, and
    how many a box has."""

    dim: str
    at: Index
    size: Stride
    stride: Stride
    box: int

    def apart(self, sizes: Mapping[str, int]) -> int:
        """Elements between neighbours at these sizes."""
        n = self.stride
        return n if isinstance(n, int) else n.number * prod(sizes[d] for d in n.dims)

    @property
    def beside(self) -> tuple[int, ...]:
        """What the start of a box is a sum of along this axis, besides multiples of the box."""
        return self.at.offset, *(c for a, c in self.at.terms if a != self.dim)

    @property
    def aligned(self) -> int:
        """What the elements between neighbours are a multiple of at all sizes."""
        return self.stride if isinstance(self.stride, int) else self.stride.number


def _descriptor(
    graph: MuGraph, x: Load, order: tuple[str, ...], block: Mapping[str, int], sizes: Mapping[str, int]
) -> Descriptor | None:
    """None where the hardware takes no such box, or where it would have a single axis: pointers do well there.

    Scalar dimensions come first and the others in the order of blocks, as far as the innermost axis, which is last,
    allows: so what is loaded is the kernel's block, or a transposition of it.
    """
    tensor = graph.tensors()[x.buffer]
    largest = {**sizes, **{r.dim: r.most for r in graph.dynamic}}  # what is decided holds at all sizes
    stored = x.buffer in {t.name for t in graph.outputs} | graph.changed
    if tensor.dtype == "bool":  # of which Triton 3.6 has no descriptors
        return None
    if stored or any(d not in block for d in x.dims) or not all(_is_corner(i, block, sizes) for i in x.access):
        return None
    element = DTYPE_BYTES[tensor.dtype]
    dynamic = {r.dim for r in graph.dynamic}
    found = _sides(tensor, x, block, largest, dynamic)
    if found is not None and len(found) > MAX_RANK:
        found = _sides(tensor, x, block, largest, dynamic, few=True)
    sides = sorted(found or (), key=lambda s: -s.apart(largest))
    axes = [s for s in sides if s.box > 1]
    if len(axes) < 2 or len(sides) > MAX_RANK:
        return None
    *others, inner = sides
    narrow = inner.box * element < DESCRIPTOR_ALIGNMENT
    if not _is_able([*others[:-1], _joined(others[-1], inner, largest)] if narrow else sides, element):
        return None
    scalars = [s for s in others if s.box == 1]
    ordered = sorted((s for s in axes if s != inner), key=lambda s: order.index(s.dim))
    dims, at, extents, steps, box = zip(*(*scalars, *ordered, inner), strict=True)
    return Descriptor(x.buffer, dims, at, extents, steps, box, narrow)


def _is_able(sides: Sequence[_Side | None], element: int) -> bool:
    """Whether the hardware takes a box with these axes. element: bytes of one."""
    *others, inner = sides
    if inner is None or inner.stride != 1 or inner.box * element < DESCRIPTOR_ALIGNMENT:
        return False
    starts = (*inner.beside, *(s.aligned for s in others if s is not None))
    large = any(s.box > MAX_BOX for s in sides if s is not None)
    return not large and all(n * element % DESCRIPTOR_ALIGNMENT == 0 for n in starts)


def _joined(outer: _Side, inner: _Side, sizes: Mapping[str, int]) -> _Side | None:
    """Two axes as one in memory, of which a box has the inner one whole; None where they are not, or where a box may
    begin outside."""
    whole = inner.size == inner.box and inner.at == plain((inner.dim,))[0]
    if not whole or outer.stride != inner.size or not isinstance(outer.size, int):
        return None
    at = combined(0, [(outer.at, inner.box)])
    return (
        None if any(outer.at.leaves(outer.size, sizes)) else outer._replace(at=at, stride=1, box=outer.box * inner.box)
    )


def _sides(
    tensor: Tensor,
    x: Load,
    block: Mapping[str, int],
    sizes: Mapping[str, int],
    dynamic: Collection[str],
    *,
    few: bool = False,
) -> list[_Side] | None:
    """The axes of a box: each dimension of an index that stays inside of the tensor, and the tensor's own axis where an
    index leaves it, as windows do, or where a box is to have `few` axes; None where that has no box. sizes: the largest
    of dynamic axes, along which the box ends where the size of a call does."""
    found: list[_Side] = []
    inside: dict[tuple[str, ...], list[tuple[Index, int]]] = {}
    for d, i, (step, times) in zip(tensor.dims, x.access, tensor.sized_steps(sizes, dynamic), strict=True):
        if (d in dynamic or {*i.dims} & {*dynamic}) and i.axis != d:
            return None
        if i.affine and not any(i.leaves(sizes[d], sizes)) and not (few and len(i.dims) > 1):
            inside.setdefault(times, []).append((i, step))
            continue
        many = [(a, c) for a, c in i.terms if isinstance(a, str) and block[a] > 1]
        name, factor = many[0] if many else (i.dims[0], 1)
        if len(many) > 1 or factor != 1 or sizes[name] % block[name]:  # past its end a block would not be zero
            return None
        found.append(_Side(name, i, sizes[d], _times(step, times), block[name]))
    for times, some in inside.items():
        steps, start = strides(tuple(i for i, _ in some), [n for _, n in some])
        if start:
            return None
        dims = [str(a) for a in steps if sizes[str(a)] > 1 or block[str(a)] > 1]
        extents = {d: _times(1, (d,)) if d in dynamic else sizes[d] for d in dims}
        found += [_Side(d, plain((d,))[0], extents[d], _times(steps[d], times), block[d]) for d in dims]
    told = {a for s in found for a in s.at.dims}
    once = len(told) == sum(len(s.at.dims) for s in found)
    return found if once and min((s.aligned for s in found), default=0) > 0 else None


def _is_corner(i: Index, block: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """Whether one position tells where a box starts by an index: what is divided is of scalars, and not negative."""
    atoms = [a for a, _ in i.terms if not isinstance(a, str)]
    return all(
        not isinstance(a, Lookup)
        and a.of.affine
        and a.of.bounds(sizes)[0] >= 0
        and all(block[d] == 1 for d in a.of.dims)
        for a in atoms
    )


def _times(number: int, dims: tuple[str, ...]) -> Stride:
    return Times(number, dims) if dims else number


def _leaves(tensor: Tensor, x: Load, sizes: Mapping[str, int]) -> bool:
    """Whether a load reads beyond its tensor."""
    return any(any(i.leaves(sizes[d], sizes)) for d, i in zip(tensor.dims, x.access, strict=True))


def streamed(graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> frozenset[str]:
    """Values whose loads read each element of a tensor once: in one program instance, one iteration and one kernel.

    Loops that multiply on the matrix units fetch ahead, by copies that Triton gives no hint to; nor does it give any to
    copies by descriptors.
    """
    if not schedule.stream:
        return frozenset()
    boxes = descriptors(graph, kernel, schedule, sizes)
    block = block_sizes(kernel, schedule, sizes)
    dims = kernel.value_dims
    shared = {d for d, n in _instances(kernel, schedule, block, sizes).items() if n > 1}
    segments = place(kernel).segments
    others = [x for k in graph.kernels for x in k.loads]
    tables = {x.table for k in graph.kernels for x in k.lookups}
    found: set[str] = set()
    for x in (x for x in kernel.loads if x.out not in boxes and all(i.affine for i in x.access)):
        homes = [s for s in segments if any(step.out == x.out for step in s.steps)]
        loops = [s for s in homes if isinstance(s, Loop)]
        walked = {d for s in loops for d in s.dims}
        ahead = schedule.stages > 1 and any(multiplies(s, dims, block) for s in loops)
        alone = x.buffer not in tables and sum(_meet(x, y, sizes) for y in others) == 1
        if len(homes) == 1 and alone and shared | walked <= set(x.dims) and not ahead:
            found.add(x.out)
    return frozenset(found)


def _meet(x: Load, y: Load, sizes: Mapping[str, int]) -> bool:
    """Whether two loads may read one element: two parts of a packed tensor do not."""
    return x.buffer == y.buffer and not apart(x.access, y.access, sizes)


def _instances(
    kernel: Kernel, schedule: KernelSchedule, block: Mapping[str, int], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Program instances along each dimension of the grid, chunks included."""
    along = {d: ceil(sizes[d] / block[d]) for d in kernel.with_role("grid")}
    return along if kernel.split is None else along | {kernel.split: schedule.split}


def relays(graph: MuGraph, kernel: Kernel, schedule: Schedule) -> bool:
    """Whether a kernel lets the one behind start before it has waited itself.

    The last kernel of a call does so only behind one that waits before it releases: whatever follows may then count on
    all before the call having ended once it starts. A kernel of the library starts after the end alone.
    """
    own = schedule.kernels.get(kernel.name)
    if own is None or own.hand_over != Relay() or not own.overlap:
        return False
    behind = [b.kind for a, b in pairwise(graph.kernels) if a.name == kernel.name]
    return behind == ["generated"] if behind else _held(graph, kernel, schedule)


def _held(graph: MuGraph, kernel: Kernel, schedule: Schedule) -> bool:
    """Whether all before the call has ended once a kernel starts: one in front of it does not relay."""
    return not all(relays(graph, k, schedule) for k in _in_front(graph, kernel))


@dataclass(frozen=True, slots=True)
class Around:
    """What the plan of a kernel depends on besides its own schedule.

    releases: whether any kernel of the call lets the one behind start early. relays: whether this one does before it
    has waited itself. held: whether all before the call has ended once it starts. lengths: of a chunk, for partial
    results that are not stored everywhere, by the buffer that the kernel reads them from.
    """

    releases: bool
    relays: bool
    held: bool
    lengths: tuple[tuple[str, int], ...]


def around(graph: MuGraph, kernel: Kernel, schedule: Schedule, sizes: Mapping[str, int]) -> Around:
    releases = any(s.overlap for s in schedule.kernels.values())
    left = left_out(graph)
    lengths: dict[str, int] = {}
    for buffer, of in ((x.buffer, left[x.buffer]) for x in kernel.loads if x.buffer in left):
        split = schedule.kernels[of.kernel]
        lengths[buffer] = chunk_length(sizes[of.dim], split.split, split.tile(of.dim))
    held = _held(graph, kernel, schedule)
    return Around(releases, relays(graph, kernel, schedule), held, tuple(lengths.items()))


def awaited(graph: MuGraph, kernel: Kernel, held: bool) -> frozenset[str]:
    """What may only be read when the kernel in front has ended: what kernels in front have written, and the inputs.

    The inputs are there if one of those kernels lets none start before it has waited itself: what came before the
    launch has ended by then.
    """
    return _written_in_front(graph, kernel) | {t.name for t in graph.inputs if not held}


def _in_front(graph: MuGraph, kernel: Kernel) -> tuple[Kernel, ...]:
    return graph.kernels[: [k.name for k in graph.kernels].index(kernel.name)]


def _written_in_front(graph: MuGraph, kernel: Kernel) -> frozenset[str]:
    return frozenset(s.buffer for k in _in_front(graph, kernel) for s in k.stores)


def leading(graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> Loop | None:
    """The loop in whose last iterations a kernel that does not relay lets the one behind start: its last, if that walks
    one dimension."""
    loop = next(reversed(place(kernel).loops), None)
    if loop is None or not isinstance(schedule.hand_over, Lead) or len(loop.dims) != 1:
        return None
    d = loop.dims[0]
    chunks, tile = schedule.split if d == kernel.split else 1, block_sizes(kernel, schedule, sizes)[d]
    tiles = chunk_length(sizes[d], chunks, tile) // tile
    fits = schedule.hand_over.iterations < tiles and not specialized(graph, kernel, schedule, sizes)
    return loop if fits else None


@dataclass(frozen=True, slots=True)
class Fetch:
    """What of a load's block is fetched into the L2: all of it, or the first `part` positions along a loop."""

    load: Load
    part: int | None = None


def fetched_ahead(
    graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]
) -> dict[Loop | None, tuple[Fetch, ...]]:
    """What a kernel that waits for the one in front fetches into the L2 meanwhile: loads before any loop (None), and
    those of its first loop that the fewest program instances share, if it walks one dimension whole.

    What all read, the first of them brings in for all. Where each fetches it, it is asked for so many times over: on
    an H200, a gated MLP of 8x4096x4096 that starts 4 iterations early and fetches 2 ahead took 19.2 us so, and 16.9
    without X; with a quarter of 8, 18.0 and 16.9.

    What is fetched is forgotten, and what is written there afterwards is what is read. So it may come before the wait,
    also for inputs that the kernel in front of the launch is still writing.
    """
    if not schedule.overlap:
        return {}
    cut = schedule.tiles, schedule.split
    return {**_fetched(graph, kernel, *cut, schedule.before, schedule.ahead, tuple(sizes.items()))}


@lru_cache(maxsize=1 << 12)
def _fetched(
    graph: MuGraph,
    kernel: Kernel,
    tiles: tuple[tuple[str, int], ...],
    split: int,
    before: Before,
    ahead: FetchedAhead | None,
    axes: tuple[tuple[str, int], ...],
) -> Mapping[Loop | None, tuple[Fetch, ...]]:
    """axes: with their sizes. No other choice of a schedule matters."""
    sizes, schedule = dict(axes), KernelSchedule(tiles, (), split=split)
    in_front, loop, inside = _fetchable(graph, kernel, axes)
    found: dict[Loop | None, tuple[Fetch, ...]] = {}
    if before != Before.NOTHING:
        found[None] = tuple(map(Fetch, in_front))
    if ahead and loop is not None:
        block = block_sizes(kernel, schedule, sizes)
        loads = _least_shared(inside, _instances(kernel, schedule, block, sizes))
        found[loop] = _part(loop, loads, block, graph.element_bytes, ahead.share)
    return {where: loads for where, loads in found.items() if loads}


@lru_cache(maxsize=1 << 12)
def _fetchable(
    graph: MuGraph, kernel: Kernel, axes: tuple[tuple[str, int], ...]
) -> tuple[tuple[Load, ...], Loop | None, tuple[Load, ...]]:
    """The loads before any loop that may be fetched, the first loop if it walks one dimension whole, and its loads that
    may be. axes: with their sizes."""
    sizes, late = dict(axes), _written_in_front(graph, kernel)
    first, *others = place(kernel).segments
    loop = next((s for s in others if isinstance(s, Loop)), None)
    if loop is not None and (len(loop.dims) != 1 or any(not x.steady for x in limits(kernel, loop))):
        loop = None
    return _inputs(graph, first, late, sizes), loop, _inputs(graph, loop, late, sizes) if loop else ()


def _part(
    loop: Loop, loads: Sequence[Load], block: Mapping[str, int], element: Mapping[str, int], share: int
) -> tuple[Fetch, ...]:
    """One part in `share` of the loads of an iteration, by bytes: those whose values are used first."""
    if share < 2:
        return tuple(Fetch(x) for x in loads)
    used = {v: i for i, e in reversed([*enumerate(loop.steps)]) if isinstance(e, Eqn) for v in e.values}
    size = {x: prod(block[d] for d in x.dims) * element[x.buffer] for x in loads}
    left = sum(size.values()) // share
    (d,) = loop.dims
    found: list[Fetch] = []
    for x in sorted(loads, key=lambda x: used.get(x.out, len(loop.steps))):
        whole = size[x] <= left
        part = block[d] if whole else 1 << (block[d] * left // size[x]).bit_length() >> 1
        if part and (whole or d in x.dims):
            found.append(Fetch(x, None if whole else part))
            left -= size[x] * part // block[d]
    return tuple(found)


def _least_shared(loads: Sequence[Load], instances: Mapping[str, int]) -> tuple[Load, ...]:
    """Those whose blocks the fewest program instances read alike."""
    readers = [prod(n for d, n in instances.items() if d not in x.dims) for x in loads]
    return tuple(x for x, n in zip(loads, readers, strict=True) if n == min(readers))


def _inputs(
    graph: MuGraph, segment: Straight | Loop, late: frozenset[str], sizes: Mapping[str, int]
) -> tuple[Load, ...]:
    """Of inputs, what is there whole: beyond a tensor there may be no memory."""
    tensors = graph.tensors()
    loads = (x for x in segment.steps if isinstance(x, Load) and x.buffer not in late)
    loads = (x for x in loads if all(i.affine for i in x.access))  # the others' positions are not known yet
    return tuple(x for x in loads if not _leaves(tensors[x.buffer], x, sizes))
