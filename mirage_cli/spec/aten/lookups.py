"""ATen's operators that read, or write, at the places that integers name."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import (
    Applied,
    Array,
    Axis,
    Counted,
    Dim,
    Part,
    Trace,
    Unsupported,
    Viewed,
    leaves,
    size_of,
    source,
)
from mirage_cli.spec.aten.magnitudes import is_whole, not_negative
from mirage_cli.spec.aten.operands import (
    MOST_COMPARED,
    along_positions,
    both,
    chosen,
    conjunction,
    disjunction,
    mask_of,
    number_of,
)
from mirage_cli.spec.aten.reductions import amax, amin, summed
from mirage_cli.spec.aten.row import APART, Named, Rows, overloadless
from mirage_cli.spec.aten.shapes import broadcast_tensors, diagonal, unsqueeze

aten = Rows()
MOST_WRITTEN, MANY_COMPARISONS = 64, 1 << 26
"""Numbers that each place is compared with where a scatter writes, at most, unless there are few places: PyTorch writes
at those that they name alone."""
AGAIN = "what is written may be written again"


def along(node: Any) -> tuple[Named, ...]:
    """Of `op(x, dim, index, ...)`."""
    x, dim, index, *_ = node.args
    return (Named(index, x, dim),)


def by_indices(node: Any) -> tuple[Named, ...]:
    """Of `op(x, [index, None, ...], ...)`."""
    x, indices, *_ = node.args
    return tuple(Named(i, x, d, from_end=True) for d, i in enumerate(indices) if i is not None)


def by_trusted_indices(node: Any) -> tuple[Named, ...]:
    """Of the same with indices of PyTorch's own."""
    return tuple(replace(named, from_end=False, trusted=True) for named in by_indices(node))


def by_rows(node: Any) -> tuple[Named, ...]:
    """Of `op(x, index, ...)`."""
    x, index, *_ = node.args
    return (Named(index, x, 0),)


def rows(x: Array, dim: int, index: Array, wraps: bool = False) -> Array:
    """x[index] along an axis: the axes of the index take the place of that axis.

    wraps: whether negative indices count from the end. A look-up needs an index that is an input. Otherwise the result
    is a sum over all rows, of the row where its number is the index, else 0.
    """
    at = p.axis_of(x, dim)
    first = p.permuted(x, [at, *(d for d in range(len(x.dims)) if d != at)])
    if (made := counted(first, [index])) is not None:
        return with_named_at(made, len(index.dims), at)
    if not wraps and p.are_looked_up(first, [index]):
        return with_named_at(p.looked_up(number_of(first), [index]), len(index.dims), at)
    lead, behind, n = x.dims[:at], x.dims[at + 1 :], x.shape[at]
    if n > MOST_COMPARED:
        raise Unsupported(f"a computed index among {n} rows")
    inner = len(index.dims)
    table = p.viewed(x, [*lead, *[()] * inner, x.dims[at], *behind])
    asked = p.viewed(index, [*[()] * at, *index.dims, (), *[()] * len(behind)])
    return one_of(table, at + inner, asked, wraps)


def counted(x: Array, indices: Sequence[Array]) -> Array | None:
    """x[indices], along the first positions, where each of them counts along an axis, from the front or the end: an
    access. None of others."""
    rank = max(len(i.dims) for i in indices)
    sizes = [max(n) for n in zip(*([1] * (rank - len(i.dims)) + [*i.shape] for i in indices), strict=True)]
    places = [(Axis(n),) if n > 1 else () for n in sizes]
    parts: list[Part] = []
    for index, size in zip(indices, x.shape, strict=False):
        root = source(index)
        if not isinstance(root.how, Counted) or not {*root.dims} - {()} <= {*index.dims}:
            return None
        start, step = root.how.start, root.how.step
        ends = {start, start + step * (root.shape[0] - 1)}
        if max(ends) < 0:
            start, ends = start + size, {n + size for n in ends}
        if not ends <= {*range(size)}:
            return None
        along = [places[rank - len(index.dims) + d] for d, own in enumerate(index.dims) if own and own == root.dims[0]]
        parts.append(([(a, step) for a in along], start))
    return p.read(x, [*parts, *p.whole(x)[len(parts) :]], [*places, *x.dims[len(parts) :]])


def with_named_at(x: Array, inner: int, front: int) -> Array:
    """x with its first `inner` axes, those of indices, behind `front` of the others."""
    behind = [*range(inner, len(x.dims))]
    return p.permuted(x, [*behind[:front], *range(inner), *behind[front:]])


def one_of(x: Array, dim: int, asked: Array, wraps: bool = False) -> Array:
    """The element along an axis whose number is asked for, at each position of the other axes."""
    n = x.shape[dim]
    if n > MOST_COMPARED:
        raise Unsupported(f"a computed index among {n} rows")
    return element(number_of(x), dim, asked, wraps)


def element(x: Array, dim: int, asked: Array, wraps: bool = False) -> Array:
    """The element along an axis of any length whose number is asked for; f(u, v) is f of the elements of u and v, so
    that nothing else is computed for it. Where there is no such number: f of 0. wraps: numbers below 0 count from the
    end."""
    n, behind = x.shape[dim], len(x.dims) - dim
    made: dict[Array, Array] = {}

    def here(i: Any, t: Any) -> Any:
        return (i == t) | (i == t + n) if wraps else i == t

    def found(a: Array) -> Array:
        if a not in made:
            made[a] = picked(a)
        return made[a]

    def picked(a: Array) -> Array:
        at = len(a.dims) - behind
        if at < 0:
            return a
        if not {*leaves(a.dims[at])} & {*a.own}:
            return p.viewed(a, [*a.dims[:at], *a.dims[at + 1 :]])
        if isinstance(a.how, Applied):
            given = (found(u) if isinstance(u, Array) else u for u in a.how.operands)
            return p.elementwise(a.how.function, *given, mask=a.mask)
        place, numbers = along_positions(a, at), number_of(a)
        own = summed(p.elementwise(lambda i, t, v: g.where(here(i, t), v, 0), place, asked, numbers), -behind)
        return mask_of(own) if a.mask else own

    return found(x)


@aten("aten.index_select", looks_up=True, named=along)
def _index_select(x: Array, dim: int, index: Array) -> Array:
    return rows(x, dim, index)


@aten("aten.index", looks_up=True, with_node=True, named=by_indices)
def _index(t: Trace, node: Any, x: Array, indices: Sequence[Any]) -> Array:
    """x[..., i, ..., j]: what they name stands in front, or at the first position where they stand side by side.
    Numbers that are worked out apart count from the front (`pipeline.models.named`)."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.mask for _, i in given):
        raise Unsupported("elements that a mask picks")
    if len(given) == 1:
        (dim, index), *_ = given
        named = node.args[1][dim]
        return rows(x, dim, index, wraps=APART not in named.meta and not not_negative(named, t.moves))
    dims = [d for d, _ in given]
    x = p.permuted(x, [*dims, *(d for d in range(len(x.dims)) if d not in dims)])
    front = dims[0] if dims == [*range(dims[0], dims[-1] + 1)] else 0
    whole = broadcast_tensors([i for _, i in given])[0].shape
    told = [n for n, (_, i) in enumerate(given) if same_at_all(x, n, i)]
    if told and len(told) < len(given):  # along the others it is read, and repeated
        rest = x.dims[len(given) :]
        x = p.viewed(x, [dim for n, dim in enumerate(x.dims) if n not in told])
        given = [g for n, g in enumerate(given) if n not in told]
        made = named_in_front(node, x, given)
        inner = len(made.dims) - len(rest)
        made = p.viewed(made, [*[()] * (len(whole) - inner), *made.dims])
        return with_named_at(p.expanded(made, [*whole, *map(size_of, rest)]), len(whole), front)
    return with_named_at(named_in_front(node, x, given), len(whole), front)


def same_at_all(x: Array, dim: int, index: Array) -> bool:
    """Whether an index counts some of an axis' places, and x is the same at all of them."""
    if {*leaves(x.dims[dim])} & {*x.own} or not isinstance(how := source(index).how, Counted):
        return False
    last = how.start + how.step * (source(index).shape[0] - 1)
    return {how.start, last} <= {*range(x.shape[dim])}


def named_in_front(node: Any, x: Array, given: Sequence[tuple[int, Array]]) -> Array:
    """What indices name along the first positions of x, their axes in front. given: with their places in the call."""
    tables = [i for _, i in given]
    if (made := counted(x, tables)) is not None:
        return made
    apart = all(APART in node.args[1][d].meta or p.counts_all(i, x.shape[n]) for n, (d, i) in enumerate(given))
    if apart and p.are_looked_up(x, tables):
        return p.looked_up(number_of(x), tables)
    shapes = broadcast_tensors(tables)
    inner = len(shapes[0].dims)
    rest = len(x.dims) - len(given)
    x, shapes = beside_counted(x, shapes)
    for index in shapes:  # each takes the first position that is left
        asked = p.viewed(index, [*index.dims, *[()] * (len(x.dims) - inner)])
        x = one_of(x, inner, asked, wraps=True)
    assert len(x.dims) == inner + rest
    return x


def beside_counted(x: Array, indices: Sequence[Array]) -> tuple[Array, list[Array]]:
    """x with the positions of the indices in front of its own, and the indices that are left, each for the first
    position of x that no index took. An index of `batches` takes none: x's axis stands where it counts."""
    own = batches(dict(enumerate(indices)), x)
    places: list[Dim] = [() for _ in indices[0].dims]
    for d, place in own.items():
        places[place] = x.dims[d]
    others = [i for d, i in enumerate(indices) if d not in own]
    return p.viewed(x, [*places, *(dim for d, dim in enumerate(x.dims) if d not in own)]), others


def batches(indices: Mapping[int, Array], x: Array) -> dict[int, int]:
    """The axes of x that an index counts whole, and at which of the index's positions: axes of a batch, of which each
    has rows of its own, named by the other indices. indices: by x's axes, of one shape."""
    found: dict[int, int] = {}
    for d, index in indices.items():
        if p.counts_all(index, x.shape[d]):
            place = index.dims.index(source(index).dims[0])
            if place not in found.values():
                found[d] = place
    return found


@aten("aten._unsafe_index", looks_up=True, with_node=True, named=by_trusted_indices)
def _unsafe_index(t: Trace, node: Any, x: Array, indices: Sequence[Any]) -> Array:
    """By numbers that PyTorch does not check either: its decompositions have worked them out."""
    return _index(t, node, x, indices)


@aten("aten.gather", looks_up=True, named=along)
def _gather(x: Array, dim: int, index: Array, *_: Any) -> Array:
    dim = p.axis_of(x, dim)
    for d, (n, size) in enumerate(zip(index.shape, x.shape, strict=True)):
        if d != dim and n != size:
            x = p.sliced(x, d, 0, n)
    if index.shape[dim] == 1 and not x.name:  # what makes whole rows reads every element anyway
        return unsqueeze(element(number_of(x), dim, index), dim)
    if p.are_looked_up(p.permuted(x, [dim, *(d for d in range(len(x.dims)) if d != dim)]), [index]):
        return each_in_its_row(x, dim, index)
    table = p.viewed(x, [*x.dims[: dim + 1], (), *x.dims[dim + 1 :]])
    table = p.viewed(table, [*x.dims[:dim], (), *x.dims[dim:]])
    return one_of(table, dim + 1, unsqueeze(index, dim + 1))


def each_in_its_row(x: Array, dim: int, index: Array) -> Array:
    """x[i, j, index[i, j, k]] for its second axis, and likewise for others: of all rows for each number, the one where
    the number stands."""
    if (found := p.looked_up_in_rows(number_of(x), dim, index)) is not None:
        return found
    rank = len(x.dims)
    others = [d for d in range(rank) if d != dim]
    made = p.looked_up(number_of(p.permuted(x, [dim, *others])), [index])
    places = [*range(rank), *(rank + d for d in others)]  # of the index, and of x
    for d in others:
        made = diagonal(made, 0, places.index(d), places.index(rank + d))
        places = [n for n in places if n not in (d, rank + d)] + [d]
    return p.permuted(made, [places.index(d) for d in range(rank)])


@aten("mirage.by_matrix", looks_up=True, products=1)
def _by_matrix(x: Array, w: Array, named: Array) -> Array:
    """The product of each row with the matrix that it names. Rows are sorted by their matrix."""
    if not p.are_looked_up(w, [named]):
        raise Unsupported("matrices that are named by what a kernel works out")
    x.trace.sorted.add(source(named))
    return p.einsum("mk,mkn->mn", x, p.looked_up(number_of(w), [named]))


@aten("aten.embedding", looks_up=True, named=by_rows)
def _embedding(weight: Array, indices: Array, *_: Any, **__: Any) -> Array:
    return rows(weight, 0, indices)


@aten("aten._embedding_bag", "aten._embedding_bag_forward_only", looks_up=True, with_node=True, named=by_rows)
def _embedding_bag(_t: Trace, node: Any, weight: Array, indices: Array, _offsets: Any, _scale: bool = False,
                   mode: int = 0, _sparse: bool = False, weights: Array | None = None, last: bool = False,
                   padding: int = -1) -> list[Array]:  # fmt: skip
    """The sum, mean or maximum of the rows of each bag. Bags are of one size, which the counting of their starts says:
    so PyTorch writes the bags of a matrix of indices."""
    (n,), starts = indices.shape, node.args[2]
    first, end, *step = starts.args if overloadless(starts.target) == "aten.arange" else (None, None)
    if first != 0 or end != n or n % (size := step[0] if step else 1) or last or padding >= 0:
        raise Unsupported("bags of several sizes, or that leave rows out")
    found = rows(weight, 0, p.reshaped(indices, [n // size, size]))
    if weights is not None:
        found = both(operator.mul, found, p.reshaped(weights, [n // size, size, 1]))
    return [p.reduction(("sum", "mean", "max")[mode], found, [1])]


def of_scatter(node: Any) -> tuple[Named, ...]:
    """Of `op(x, dim, index, ...)` that writes at an index, or adds there."""
    return tuple(replace(named, apart=overloadless(node.target) == "aten.scatter") for named in along(node))


@aten("aten.scatter", "aten.scatter_add", with_node=True, named=of_scatter, keeps_type=True)
def _scatter(_t: Trace, node: Any, x: Array, dim: int, index: Array, new: Any, **named: Any) -> Array:
    """Indices along the axis are expected to differ; where several are equal, the largest of their values is kept."""
    dim = p.axis_of(x, dim)
    if named.get("reduce"):
        raise Unsupported("a scatter that reduces")
    place, asked = scattered(x, dim, index, new)
    given = unsqueeze(number_of(new), dim + 1) if isinstance(new, Array) else number_of(new)
    if overloadless(node.target) == "aten.scatter_add":
        more = summed(p.elementwise(lambda i, t, v: g.where(i == t, v, 0), place, asked, given), dim)
        return both(operator.add, x, more)
    hit = amax(p.elementwise(lambda i, t: g.where(i == t, 1, 0), place, asked), dim)
    best = amax(p.elementwise(lambda i, t, v: g.where(i == t, v, -math.inf), place, asked, given), dim)
    return p.elementwise(lambda h, b, v: g.where(h > 0, b, v), hit, best, number_of(x))


@aten("aten.scatter_reduce", with_node=True, named=of_scatter)
def _scatter_reduce(_t: Trace, node: Any, x: Array, dim: int, index: Array, new: Array, reduce: str,
                    include_self: bool = True) -> Array:  # fmt: skip
    """x, reduced at each index with the elements that have it. include_self: and with x's own."""
    neutral = {"amax": -math.inf, "amin": math.inf, "sum": 0, "mean": 0}
    dim = p.axis_of(x, dim)
    if reduce not in neutral or is_whole(node):
        raise Unsupported(f"a scatter that reduces by {reduce}, of {node.meta['val'].dtype}")
    place, asked = scattered(x, dim, index, new)
    given = p.elementwise(lambda i, t, v: g.where(i == t, v, neutral[reduce]), place, asked, unsqueeze(new, dim + 1))
    count = summed(p.elementwise(lambda i, t: g.where(i == t, 1, 0), place, asked), dim)
    made = {"amax": amax, "amin": amin}.get(reduce, summed)(given, dim)
    if include_self:
        made = both({"amax": g.maximum, "amin": g.minimum}.get(reduce, operator.add), made, x)
        count = both(lambda n: n + 1, count)
    if reduce not in ("sum", "amax", "amin"):  # the mean
        made = both(lambda v, n: v / g.maximum(n, 1), made, count)
    return made if include_self else both(lambda n, v, old: g.where(n > 0, v, old), count, made, x)


def scattered(x: Array, dim: int, index: Array, new: Any) -> tuple[Array, Array]:
    """The positions of x along an axis, and the indices, which lie along an axis of their own in front."""
    if (isinstance(new, Array) and new.shape != index.shape) or index.shape[dim] > MOST_COMPARED:
        raise Unsupported("a scatter of more than there are numbers")
    if any(n != size for d, (n, size) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim):
        raise Unsupported("a scatter into a part")
    compared = index.shape[dim] * math.prod(x.shape)
    if index.shape[dim] > MOST_WRITTEN and compared > MANY_COMPARISONS:
        raise Unsupported(f"a scatter that compares {compared} pairs of numbers")
    return along_positions(unsqueeze(x, dim), dim + 1), unsqueeze(index, dim + 1)


@aten("aten.bucketize")
def _bucketize(x: Any, bounds: Array, *, right: bool = False, **_: Any) -> Array:
    """How many bounds are below each number, or not above it: all, of what is no number."""
    if not isinstance(x, Array) or bounds.shape[-1] > MOST_COMPARED:
        raise Unsupported("numbers that are compared with so many bounds")
    if any(a.name for a in made_of(bounds)):
        raise Unsupported("bounds that are read, and may not be in order")
    asked = unsqueeze(number_of(x), len(x.dims))
    return summed(both(lambda v, b: g.where(v < b if right else v <= b, 0, 1), asked, number_of(bounds)), -1)


@aten("aten.searchsorted")
def _searchsorted(bounds: Array, x: Any, *, right: bool = False, side: str | None = None, **_: Any) -> Array:
    """The same, with bounds for each row of numbers."""
    apart = unsqueeze(bounds, len(bounds.dims) - 1) if len(bounds.dims) > 1 else bounds
    return _bucketize(x, apart, right=right or side == "right")


def made_of(x: Array) -> list[Array]:
    """An array, and those that it is made of."""
    found = [x]
    for a in found:
        found += [y for y in a.operands if y not in found]
    return found


@aten("aten.index_put", named=by_indices)
def _index_put(x: Array, indices: Sequence[Any], value: Any, accumulate: bool = False) -> Array:
    """x with a value at x[..., i, ..., j]. PyTorch leaves open which value is kept where several are written."""
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if any(i.mask for i in given.values()):
        return filled(x, given, value, accumulate)
    once = (
        accumulate
        or math.prod(value.shape) == 1
        or any(differ(i, x.shape[d], len(given) == 1) for d, i in given.items())
    )
    if not once:
        raise Unsupported(AGAIN)
    each = broadcast_tensors([*given.values()])
    first, *others = given
    lead = first if others == [*range(first + 1, first + 1 + len(others))] else 0
    sizes, inner = [n for d, n in enumerate(x.shape) if d not in given], each[0].shape
    value = p.expanded(number_of(value), [*sizes[:lead], *inner, *sizes[lead:]])
    by_axis = dict(zip(given, each, strict=True))
    own = batches(by_axis, x)
    own = own if len(own) < len(given) else {}
    behind = iter([d for d in range(len(value.dims)) if not 0 <= d - lead < len(inner)])
    at = {d: own[d] + lead if d in own else next(behind) for d in range(len(x.dims)) if d in own or d not in given}
    entries = {d: behind_batches(i, own, x) for d, i in by_axis.items() if d not in own}
    return put(x, entries, behind_batches(value, at, x), accumulate)


def behind_batches(a: Array, at: Mapping[int, int], x: Array) -> Array:
    """An array with some of its positions where x has them, and all others as one, behind. at: by x's positions."""
    order = [*at.values(), *(d for d in range(len(a.dims)) if d not in at.values())]
    flat = p.reshaped(p.permuted(a, order), [*(a.shape[d] for d in at.values()), -1])
    beside = dict(zip(at, flat.dims, strict=False))
    return p.viewed(flat, [*(beside.get(d, ()) for d in range(len(x.dims))), flat.dims[-1]])


def differ(index: Array, size: int, alone: bool) -> bool:
    """Whether no two of these numbers are equal: they are counted, or a table that is alone declares that."""
    match index.how:
        case Counted():
            return True
        case Viewed() | Applied():
            return len(index.operands) == 1 and differ(index.operands[0], size, alone)
        case _ if alone and index.name and math.prod(index.shape) <= size:
            index.trace.bound(index, size)
            index.trace.distinct.add(index)
            return True
        case _:
            return False


def filled(x: Array, given: Mapping[int, Array], value: Any, accumulate: bool) -> Array:
    """x with one number where a mask holds."""
    (at, mask), *others = given.items()
    if others or accumulate or math.prod(getattr(value, "shape", ())) != 1:
        raise Unsupported("elements that a mask picks")
    behind = len(x.dims) - at - len(mask.dims)
    mask = p.viewed(mask, [*[()] * at, *mask.dims, *[()] * behind])
    return p.elementwise(chosen, mask, p.reshaped(number_of(value), [1] * len(x.dims)), number_of(x))


def put(x: Array, entries: Mapping[int, Array], value: Array, accumulate: bool) -> Array:
    """x with values at the positions that entries name. The entries, and their values, lie along one position more, the
    last. entries: by x's positions."""
    if value.shape[-1] > MOST_COMPARED:
        raise Unsupported(f"{value.shape[-1]} elements that are put where numbers say")
    longer = unsqueeze(x, len(x.dims))
    hits = (
        p.elementwise(partial(names, x.shape[d]), along_positions(longer, d), asked, mask=True)
        for d, asked in entries.items()
    )
    hit = reduce(lambda a, b: p.elementwise(conjunction, a, b, mask=True), hits)
    given = p.elementwise(lambda h, v: chosen(h, v, 0 if accumulate else -math.inf), hit, value)
    if accumulate:
        return both(operator.add, x, summed(given, -1))
    found = amax(number_of(hit), -1)
    return p.elementwise(lambda f, v, w: g.where(f > 0, v, w), found, amax(given, -1), number_of(x))


def names(size: int, place: Any, number: Any) -> Any:
    """Whether a number, which may count from the end, names a place."""
    return disjunction(place == number, place == number + size)


@aten("aten.index_copy", named=along)
def _index_copy(x: Array, dim: int, index: Array, value: Array) -> Array:
    dim = p.axis_of(x, dim)
    if not differ(index, x.shape[dim], True):
        raise Unsupported(AGAIN)
    return put_along(x, dim, index, number_of(value))


@aten("aten.index_fill", named=along, keeps_type=True)
def _index_fill(x: Array, dim: int, index: Array, value: Any) -> Array:
    dim, ones = p.axis_of(x, dim), [1] * len(x.dims)
    number = p.reshaped(value, ones) if isinstance(value, Array) else x.trace.full(ones, value)
    return put_along(x, dim, index, p.expanded(number, [*ones[:dim], math.prod(index.shape), *ones[dim + 1 :]]))


def put_along(x: Array, dim: int, index: Array, value: Array) -> Array:
    """x with slices of a value where an index says along an axis."""
    behind = [*value.dims[:dim], (), *value.dims[dim + 1 :], value.dims[dim]]
    return put(x, {dim: p.reshaped(index, [*[1] * len(x.dims), -1])}, p.viewed(value, behind), False)


@aten("aten.index_add", named=along)
def _index_add(x: Array, dim: int, index: Array, new: Array, alpha: float = 1) -> Array:
    """x, plus at each index the sum of the elements that have it."""
    dim = p.axis_of(x, dim)
    if new.shape[dim] > MOST_COMPARED:
        raise Unsupported(f"{new.shape[dim]} elements that are added where numbers say")
    place = along_positions(unsqueeze(x, dim + 1), dim)
    asked = p.viewed(index, [*index.dims, *[()] * (len(x.dims) - dim - 1)])
    more = summed(
        p.elementwise(lambda i, t, v: g.where(i == t, v * alpha, 0), place, asked, unsqueeze(new, dim)), dim + 1
    )
    return both(operator.add, x, more)
