"""ATen's operators that move elements: views, slices, concatenations, padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Axis, Dim, Unsupported
from mirage_cli.spec.aten.memory import order_of_result
from mirage_cli.spec.aten.operands import number_of
from mirage_cli.spec.aten.row import Rows

aten = Rows()
MOST_PARTS = 32
"""Of a concatenation. A kernel tells them apart one by one, where PyTorch copies many by one kernel."""


@aten("aten.diagonal")
def diagonal(x: Array, offset: int = 0, first: int = 0, second: int = 1) -> Array:
    rank = len(x.dims)
    first, second = first % rank, second % rank
    size = min(x.shape[first] + min(offset, 0), x.shape[second] - max(offset, 0))
    along: Dim = (Axis(size),) if size > 1 else ()
    parts, dims = p.whole(x), [d for i, d in enumerate(x.dims) if i not in (first, second)]
    parts[first], parts[second] = ([(along, 1)], max(-offset, 0)), ([(along, 1)], max(offset, 0))
    return p.read(x, parts, [*dims, along])


@aten("aten.view", "aten.reshape", "aten._unsafe_view", moves=True)
def _view(x: Array, shape: Any) -> Array:
    if not isinstance(shape, Sequence):
        raise Unsupported(f"a view of bits as {shape}")
    return p.reshaped(x, shape)


@aten("aten.view_as", "aten.reshape_as", moves=True)
def _view_as(x: Array, like: Array) -> Array:
    return p.reshaped(x, like.shape)


@aten("aten.flatten", moves=True)
def _flatten(x: Array, first: int = 0, last: int = -1) -> Array:
    n = len(x.shape)
    first, last = first % max(n, 1), last % max(n, 1)
    return p.reshaped(x, [*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]])


@aten("aten.unflatten", moves=True)
def _unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    dim = p.axis_of(x, dim)
    rest = x.shape[dim] // abs(math.prod(sizes))
    return p.reshaped(x, [*x.shape[:dim], *(n if n >= 0 else rest for n in sizes), *x.shape[dim + 1 :]])


@aten("aten.permute", moves=True)
def _permute(x: Array, order: Sequence[int]) -> Array:
    return p.permuted(x, [d % len(order) for d in order])


@aten("aten.transpose", "aten.swapaxes", moves=True)
def transpose(x: Array, a: int, b: int) -> Array:
    order = [*range(len(x.dims))]
    if order:
        order[a], order[b] = order[b], order[a]
    return p.permuted(x, order)


@aten("aten.t", "aten.numpy_T", "aten.mT", moves=True)
def _t(x: Array) -> Array:
    return transpose(x, -2, -1) if len(x.dims) > 1 else x


@aten("aten.movedim", moves=True)
def _movedim(x: Array, source: Any, target: Any) -> Array:
    n = len(x.dims)
    source, target = ([d % n for d in (s if isinstance(s, list) else [s])] for s in (source, target))
    rest = iter(d for d in range(n) if d not in source)
    at = dict(zip(target, source, strict=True))
    return p.permuted(x, [at[i] if i in at else next(rest) for i in range(n)])


@aten("aten.unsqueeze", moves=True)
def unsqueeze(x: Array, dim: int) -> Array:
    dim %= len(x.dims) + 1
    return p.viewed(x, [*x.dims[:dim], (), *x.dims[dim:]])


def at_least(rank: int, last: int) -> Callable[[Any], Any]:
    """The handler that gives a tensor, or each of several, so many axes. last: how many new ones stand behind."""

    def handler(x: Any) -> Any:
        if isinstance(x, list):
            return [handler(y) for y in x]
        more = max(rank - len(x.dims), 0)
        behind = min(more, last)
        return p.viewed(x, [*[()] * (more - behind), *x.dims, *[()] * behind])

    return handler


aten("aten.atleast_1d", moves=True)(at_least(1, 0))
aten("aten.atleast_2d", moves=True)(at_least(2, 0))
aten("aten.atleast_3d", moves=True)(at_least(3, 1))


@aten("aten.squeeze", moves=True)
def squeeze(x: Array, dims: Any = None) -> Array:
    n = len(x.dims)
    given = range(n) if dims is None else dims if isinstance(dims, list) else [dims]
    gone = {d % n for d in given if n and x.shape[d] == 1}
    return p.viewed(x, [d for i, d in enumerate(x.dims) if i not in gone])


@aten("aten.expand", "aten.broadcast_to", moves=True)
def _expand(x: Array, shape: Sequence[int], **_: Any) -> Array:
    return p.expanded(x, shape)


@aten("aten.expand_as", moves=True)
def _expand_as(x: Array, like: Array) -> Array:
    return p.expanded(x, like.shape)


@aten("aten.broadcast_tensors", moves=True)
def broadcast_tensors(arrays: Sequence[Array]) -> list[Array]:
    rank = max(len(x.dims) for x in arrays)
    shapes = [(1,) * (rank - len(x.dims)) + x.shape for x in arrays]
    return [p.expanded(x, [max(sizes) for sizes in zip(*shapes, strict=True)]) for x in arrays]


@aten("aten.meshgrid", moves=True)
def _meshgrid(arrays: Sequence[Array], indexing: str = "ij") -> list[Array]:
    """Each along an axis of its own; the first two in the other order where that is how images are counted."""
    order = [*range(len(arrays))]
    if indexing == "xy":
        order[:2] = order[1::-1]
    places = [[x.dims[0] if x.dims else () for x in arrays][i] for i in order]
    shapes = [[d if j == i else () for j, d in zip(order, places, strict=True)] for i in range(len(arrays))]
    return broadcast_tensors([p.viewed(x, dims) for x, dims in zip(arrays, shapes, strict=True)])


@aten("aten.cartesian_prod", moves=True)
def _cartesian_prod(arrays: Sequence[Array]) -> Array:
    return stack([p.reshaped(x, [-1]) for x in _meshgrid(arrays)], 1) if len(arrays) > 1 else arrays[0]


@aten("aten.repeat", moves=True)
def _repeat(x: Array, times: Sequence[int]) -> Array:
    """Where an axis of several positions is repeated, the copies lie behind each other: an axis of copies in front of
    it, and both as one."""
    new = len(times) - len(x.dims)
    x = p.viewed(x, [*[()] * new, *x.dims])
    wanted = [n * size for n, size in zip(times, x.shape, strict=True)]
    several = [n != 1 and size != 1 for n, size in zip(times, x.shape, strict=True)]
    parts = [[(), d] if apart else [d] for d, apart in zip(x.dims, several, strict=True)]
    longer = p.viewed(x, [d for dims in parts for d in dims])
    sizes = [[n, size] if apart else [n * size] for n, size, apart in zip(times, x.shape, several, strict=True)]
    return p.reshaped(p.expanded(longer, [n for some in sizes for n in some]), wanted)


@aten("aten.repeat_interleave")
def repeat_interleave(x: Array, times: Any, dim: int | None = None, **_: Any) -> Array:
    if isinstance(times, Array):
        raise Unsupported("repeat_interleave by a tensor")
    x, dim = (p.reshaped(x, [-1]), 0) if dim is None else (x, p.axis_of(x, dim))
    longer = p.viewed(x, [*x.dims[: dim + 1], (), *x.dims[dim + 1 :]])
    shape = [*longer.shape]
    shape[dim + 1] = times
    longer = p.expanded(longer, shape)
    return p.reshaped(longer, [*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :]])


@aten("aten.slice", moves=True)
def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    positions = range(*slice(start, end, step).indices(x.shape[dim]))
    if not positions:
        raise Unsupported("a slice of nothing")
    return p.sliced(x, dim, positions[0], len(positions), step)


@aten("aten.narrow", moves=True)
def _narrow(x: Array, dim: int, start: int, size: int) -> Array:
    return p.sliced(x, dim, start % x.shape[dim] if start else 0, size)


@aten("aten.select", moves=True)
def _select(x: Array, dim: int, at: int) -> Array:
    return p.selected(x, dim, at)


@aten("aten.chunk", "aten.unsafe_chunk", moves=True)
def _chunk(x: Array, count: int, dim: int = 0) -> list[Array]:
    return _split(x, -(-x.shape[dim] // count), dim)


@aten("aten.split", "aten.split_with_sizes", "aten.unsafe_split", moves=True)
def _split(x: Array, sizes: Any, dim: int = 0) -> list[Array]:
    n = x.shape[dim]
    each = [*sizes] if isinstance(sizes, list) else [min(sizes, n - i) for i in range(0, n, sizes)]
    return [p.sliced(x, dim, sum(each[:i]), size) for i, size in enumerate(each)]


@aten("aten.unbind", moves=True)
def unbind(x: Array, dim: int = 0) -> list[Array]:
    return [p.selected(x, dim, i) for i in range(x.shape[dim])]


@aten("getitem", moves=True)
def _getitem(x: Sequence[Array], at: int) -> Array:
    if at >= len(x):
        raise Unsupported(f"result {at} of an operator that makes {len(x)} here")
    return x[at]


@aten("aten.cat", "aten.concat", behind=2, joins=True)
def cat(arrays: Sequence[Array], dim: int = 0) -> Array:
    if len(arrays) > MOST_PARTS:
        raise Unsupported(f"a concatenation of more than {MOST_PARTS} parts")
    some = [number_of(a) for a in arrays]
    return p.concatenated(some, dim) if len(some) > 1 else some[0]


@aten("aten.stack", behind=2)
def stack(arrays: Sequence[Array], dim: int = 0) -> Array:
    return cat([unsqueeze(a, dim) for a in arrays], dim)


@aten("aten.hstack", behind=2)
def _hstack(arrays: Sequence[Array]) -> Array:
    return cat(arrays, int(len(arrays[0].dims) > 1))


@aten("aten.flip", behind=2)
def flip(x: Array, dims: Sequence[int]) -> Array:
    """flip(flip(x)) is x."""
    along, turned = tuple(sorted(p.axis_of(x, d) for d in dims)), x.trace.turned
    if x in turned and turned[x][1] == along:
        return turned[x][0]
    made = x
    for d in along:
        n = x.shape[d]
        made = p.sliced(made, d, n - 1, n, -1) if n > 1 else made
    if made is not x:
        turned[made] = x, along
    return made


@aten("aten.roll", behind=2)
def _roll(x: Array, shifts: Any, dims: Any = None) -> Array:
    if dims in (None, []):
        return p.reshaped(_roll(p.reshaped(x, [-1]), shifts, 0), x.shape)
    for s, d in zip(
        shifts if isinstance(shifts, list) else [shifts], dims if isinstance(dims, list) else [dims], strict=True
    ):
        n = x.shape[d]
        if s % n:
            x = p.rolled(x, d, n - s % n)
    return x


@aten("aten.pad", "aten.constant_pad_nd", keeps_type=True)
def pad(x: Array, pads: Sequence[int], mode: Any = "constant", value: Any = 0.0) -> Array:
    if isinstance(mode, int | float):
        mode, value = "constant", mode
    if mode != "constant":
        return padded_with_itself(x, pads, EDGES[mode])
    parts, dims = p.whole(x), [*x.dims]
    for i, (before, behind) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        at = len(dims) - 1 - i
        if before or behind:
            n = x.shape[at] + before + behind
            if n < 1:
                raise Unsupported("padding that leaves nothing")
            dims[at] = (Axis(n),) if n > 1 else ()
            parts[at] = ([(dims[at], 1)], -before)
    return p.read(x, parts, dims, float(value or 0.0))


Edge = Callable[[Array, int, int, bool], Array]


EDGES: Mapping[str, Edge] = {
    "reflect": lambda x, d, n, front: flip(p.sliced(x, d, 1 if front else x.shape[d] - n - 1, n), [d]),
    "replicate": lambda x, d, n, front: _expand_at(p.sliced(x, d, 0 if front else x.shape[d] - 1, 1), d, n),
    "circular": lambda x, d, n, front: p.sliced(x, d, x.shape[d] - n if front else 0, n),
}
"""What stands in front of and behind an axis, by the kind of padding."""


def _expand_at(x: Array, dim: int, n: int) -> Array:
    return p.expanded(x, [n if i == dim else size for i, size in enumerate(x.shape)])


def padded_with_itself(x: Array, pads: Sequence[int], edge: Edge) -> Array:
    if any(n < 0 for n in pads):
        raise Unsupported("padding that takes away")
    for i, (before, behind) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        at = len(x.dims) - 1 - i
        front, back = ([edge(x, at, n, first)] if n else [] for n, first in ((before, True), (behind, False)))
        x = cat([*front, x, *back], at)
    return x


@aten("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
def _reflection_pad(x: Array, pads: Sequence[int]) -> Array:
    return padded_with_itself(x, pads, EDGES["reflect"])


@aten("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def _replication_pad(x: Array, pads: Sequence[int]) -> Array:
    return padded_with_itself(x, pads, EDGES["replicate"])


@aten("aten.as_strided", with_node=True)
def _as_strided(
    _: Any, node: Any, x: Array, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Array:
    """Of a result without gaps, each step is a number of places along one of its axes, the outermost that it may be.
    Where the places of an axis do not suffice, it is one with the axis outside of it."""
    read = node.args[0]
    order = order_of_result(read.meta["val"])
    if offset is None or read.op in ("placeholder", "get_attr"):
        raise Unsupported("as_strided of a tensor that may lie otherwise in another call")
    if not read.meta["val"].permute(order).is_contiguous():
        raise Unsupported("as_strided of a tensor that has gaps")
    dims: list[Dim] = [(Axis(n),) if n > 1 and step else () for n, step in zip(size, stride, strict=True)]
    steps = [(dim, step) for dim, step in zip(dims, stride, strict=True) if dim]
    shape = [x.shape[d] for d in order]
    while True:
        parts = strided(shape, steps, offset)
        left = next((i for i, (n, part) in enumerate(zip(shape, parts, strict=True)) if p.leaves_axis(n, part)), None)
        if left is None:
            return p.expanded(p.read(p.reshaped(p.permuted(x, order), shape), parts, dims), size)
        if left == 0:
            raise Unsupported("as_strided beyond a tensor's end")
        shape[left - 1 : left + 1] = [shape[left - 1] * shape[left]]


def strided(shape: Sequence[int], steps: Sequence[tuple[Dim, int]], offset: int) -> list[p.Part]:
    """The index along each axis of memory in this shape, of steps through it; it may leave the axis."""
    terms: list[list[tuple[Dim, int]]] = [[] for _ in shape]
    places, rest = [math.prod(shape[i + 1 :]) for i in range(len(shape))], offset
    for dim, step in steps:
        at = next(i for i, n in enumerate(places) if step % n == 0)
        terms[at].append((dim, step // places[at]))
    parts: list[p.Part] = []
    for some, n in zip(terms, places, strict=True):
        parts.append((some, rest // n))
        rest %= n
    return parts


@aten("aten.slice_scatter", keeps_type=True)
def _slice_scatter(
    x: Array, new: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    at, n = p.axis_of(x, dim), x.shape[dim]
    places = range(*slice(start, end, step).indices(n))
    if not places:
        return x
    if len(places) == n:
        return p.expanded(number_of(new), x.shape)
    if len(places) * step == n:
        return in_turns(x, new, at, places[0], step)
    first, last = places[0], places[-1]
    axis: Dim = (Axis(n),) if n > 1 else ()
    spaced = p.counted(x.trace, axis, len(x.dims) - at - 1)
    parts, dims = p.whole(new), [*new.dims]
    wide = repeat_interleave(new, step, at) if step > 1 else new
    parts = p.whole(wide)
    parts[at], dims[at] = ([(axis, 1)], -first), axis
    moved = p.read(number_of(wide), parts, dims)

    def inside(place: Any) -> Any:
        within = (place >= first) & (place <= last)
        return within & ((place - first) % step == 0) if step > 1 else within

    return p.elementwise(lambda i, a, b: g.where(inside(i), a, b), spaced, moved, number_of(x))


def in_turns(x: Array, new: Array, at: int, turn: int, step: int) -> Array:
    """x where each place of this turn, of `step` places, is new: in all turns new ones, it is their stack."""
    known, turns = x.trace.interleaved.get(x, (None, [x]))
    if known != at or len(turns) != step:
        turns = [p.sliced(x, at, first, x.shape[at] // step, step) for first in range(step)]
    turns = [new if i == turn else own for i, own in enumerate(turns)]
    made = p.reshaped(stack(turns, at + 1), x.shape)
    x.trace.interleaved[made] = at, turns
    return made


@aten("aten.select_scatter", keeps_type=True)
def _select_scatter(x: Array, new: Array, dim: int, index: int) -> Array:
    at = index % x.shape[dim]
    return _slice_scatter(x, unsqueeze(new, p.axis_of(x, dim)), dim, at, at + 1)
