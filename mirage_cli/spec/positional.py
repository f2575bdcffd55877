"""Operators of tensors whose axes have positions: elementwise, reductions, products, and views, which are accesses."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

from mirage_cli.spec import graph as g
from mirage_cli.spec.arrays import (
    Applied,
    Array,
    Axis,
    Counted,
    Dim,
    Names,
    Part,
    Read,
    Trace,
    Unsupported,
    Viewed,
    leaves,
    paired,
    size_of,
    source,
)
from mirage_cli.spec.graph import Value

# -- operators


Pairs = Iterable[tuple[Sequence[Axis], Sequence[Axis]]]
"""Dims that are taken beside each other: another array's, and an array's own."""


def beside(a: Array, pairs: Pairs) -> dict[Axis, Axis]:
    """What an array's own axes are to be called, so that they are those that they are taken beside."""
    sides = [both for theirs, own in pairs for both in paired(theirs, own)]
    return {y: x for x, y in sides if not a.trace.unify(x.found(), y.found())}


def with_axes(a: Array, renamed: Mapping[Axis, Axis]) -> Array:
    """The array with other axes in the place of some of its leaves."""
    if not renamed:
        return a
    dims = tuple(tuple(renamed.get(x, x) for x in leaves(dim)) for dim in a.dims)
    held = tuple(renamed.get(x, x) for x in a.own)
    if len({*held}) < len(held):
        raise Unsupported("a diagonal")
    pairs = [(y, x) for y, x in renamed.items() if y in a.own]
    if not pairs:
        return viewed(a, dims)
    if a.mask and not a.name:
        return mask_with_axes(a, renamed, dims)
    if any(y.size in a.trace.named for y, _ in pairs):  # whose size a program says once
        return viewed(a.trace.along(a, dict(pairs)), dims)

    def make(names: Names, value: Value) -> Value:
        new = {o: n for y, x in pairs for o, n in zip(names.of([y]), names.of([x]), strict=True)}
        others = {o: names.graph.axis(n) for o, n in new.items() if o != n}
        return g.rename(value, **others) if others else value

    made = a.trace.add(Array(a.trace, dims, held, (a,), make, a.mask))
    a.trace.renamed[made] = pairs
    return made


def mask_with_axes(a: Array, renamed: Mapping[Axis, Axis], dims: Sequence[Dim]) -> Array:
    """The same of a mask that is computed: what it is made of has the other axes. dims: of the result."""
    match a.how:
        case Applied(function, operands):
            own = ({y: x for y, x in renamed.items() if isinstance(u, Array) and y in u.axes} for u in operands)
            pairs = zip(operands, own, strict=True)
            return elementwise(function, *(with_axes(u, r) if isinstance(u, Array) else u for u, r in pairs), mask=True)
        case Viewed():
            return viewed(with_axes(a.operands[0], renamed), dims)
        case _:
            return as_number(partial(with_axes, renamed=renamed), a)


def elementwise(function: Callable[..., Value], *operands: Array | float, mask: bool = False) -> Array:
    """function: of the graph's values. Shapes broadcast as in PyTorch."""
    arrays = [x for x in operands if isinstance(x, Array)]
    trace = arrays[0].trace
    rank = max(len(x.dims) for x in arrays)
    dims: list[Dim] = []
    pairs: dict[int, list[tuple[Sequence[Axis], Sequence[Axis]]]] = {i: [] for i in range(len(arrays))}
    for at in range(-rank, 0):
        some = {i: arrays[i].dims[at] for i, x in enumerate(arrays) if len(x.dims) >= -at and size_of(x.dims[at]) > 1}
        first = next(iter(some.values()), ())
        if any(size_of(d) != size_of(first) for d in some.values()):
            raise Unsupported(f"shapes {', '.join(str(x.shape) for x in arrays)} do not broadcast")
        if {*leaves(first)} & {x for dim in dims for x in leaves(dim)}:  # x[:, None] - x[None, :]
            first = tuple(Axis(x.size) for x in leaves(first))
            for i, d in some.items():
                taken = zip(leaves(d), first, strict=True)
                arrays[i] = with_axes(arrays[i], {x: new for x, new in taken if x in arrays[i].axes})
        dims.append(first)
        for i in some:
            pairs[i].append((first, arrays[i].dims[at]))
    with trace.apart(dims):
        made = [with_axes(x, beside(x, pairs[i])) for i, x in enumerate(arrays)]
    held = tuple(dict.fromkeys(x for a in made for x in a.own))
    places = [i for i, x in enumerate(operands) if isinstance(x, Array)]

    def make(_: Names, *values: Value | float) -> Value:
        given = [*operands]
        for i, v in zip(places, values, strict=True):
            given[i] = v  # type: ignore[call-overload]
        return function(*given)

    how = Applied(function, operands)
    return trace.add(Array(trace, tuple(dims), held, tuple(made), make, mask, how=how))


def reduction(name: str, a: Array, positions: Sequence[int], keep: bool = False, **options: float) -> Array:
    """A reduction of the spec language over these positions, which disappear unless they are kept."""
    at = {p % len(a.dims) for p in positions} if a.dims else set()
    over = [x for p in sorted(at) for x in leaves(a.dims[p])]
    varied = [x for x in over if x in {*a.own}]
    times = math.prod(x.size for x in over if x not in varied)
    dims = tuple(() if p in at else d for p, d in enumerate(a.dims) if keep or p not in at)
    held = tuple(x for x in a.own if x not in over)

    def make(names: Names, value: Value) -> Value:
        axes = names.of(varied)
        made = getattr(g, name)(value, *axes, **options) if axes else value
        return OF_EQUAL.get(name, lambda v, _: v)(made, times) if times > 1 else made

    if not over:
        return a.trace.add(Array(a.trace, dims, held, (a,), lambda _, value: value, a.mask))
    return a.trace.add(Array(a.trace, dims, held, (a,), make))


OF_EQUAL: Mapping[str, Callable[[Value, int], Value]] = {
    "sum": lambda v, n: v * n,
    "logsumexp": lambda v, n: v + math.log(n),
    "prod": lambda v, n: v**n,
}
"""Reductions of several equal numbers that are not the number itself."""


def along(name: str, a: Array, positions: Sequence[int], **options: float) -> Array:
    """A function of the spec language over these positions that keeps them: softmax, a norm."""
    over = [x for p in positions for x in a.dims[p]]
    if not {*leaves(over)} <= {*a.own}:
        raise Unsupported(f"{name} over an axis along which the tensor is constant")
    if not leaves(over):
        raise Unsupported(f"{name} over an axis of one position")

    def make(names: Names, value: Value) -> Value:
        return getattr(g, name)(value, *names.of(over), **options)

    return a.trace.add(Array(a.trace, a.dims, a.held, (a,), make))


def einsum(equation: str, *operands: Array) -> Array:
    """As `torch.einsum`, with a letter for every position."""
    left, _, right = equation.replace(" ", "").partition("->")
    labels = left.split(",")
    result = operands[0]
    at = labels[0]
    for i, (more, operand) in enumerate(zip(labels[1:], operands[1:], strict=True), 1):
        later = {*right, *"".join(labels[i + 1 :])}
        kept = "".join(dict.fromkeys(c for c in at + more if c in later))
        result, at = product(result, at, operand, more, kept), kept
    summed = [i for i, c in enumerate(at) if c not in right]
    if summed:
        result, at = reduction("sum", result, summed), "".join(c for c in at if c in right)
    return permuted(result, [at.index(c) for c in right])


def product(a: Array, left: str, b: Array, right: str, kept: str) -> Array:
    """Multiplied, and summed over the labels that are not kept."""
    if len({*left}) < len(left) or len({*right}) < len(right):
        raise Unsupported("a diagonal in einsum")
    dim_of: dict[str, Dim] = {}
    for labels, x in ((left, a), (right, b)):
        for c, d in zip(labels, x.dims, strict=True):
            if not dim_of.get(c):
                dim_of[c] = d
    shared = [(dim_of[c], d) for c, d in zip(right, b.dims, strict=True) if c in left and d and a.dims[left.index(c)]]
    renamed = beside(b, shared)
    taken = {*a.own} | {*renamed.values()}
    alone = (x for c, d in zip(right, b.dims, strict=True) if c not in left for x in leaves(d))
    b = with_axes(b, renamed | {x: Axis(x.size) for x in alone if x in taken})
    dim_of |= {c: d for c, d in zip(right, b.dims, strict=True) if c not in left or not a.dims[left.index(c)]}
    both = {*a.own} | {*b.own}
    over = [x for c in dict.fromkeys(left + right) if c not in kept for x in leaves(dim_of[c])]
    varied = [x for x in over if x in both]
    times = math.prod(x.size for x in over if x not in both)
    alone = [x for x in varied if x not in {*a.own} or x not in {*b.own}]
    held = tuple(dict.fromkeys(x for x in (*a.own, *b.own) if x not in over))

    def make(names: Names, x: Value, y: Value) -> Value:
        axes = names.of(varied)
        product = partial(g.dot, x, y) if not alone else partial(g.sum, x * y)
        made = product(*axes) if axes else x * y
        return made * times if times > 1 else made

    dims = tuple(dim_of[c] for c in kept)
    return a.trace.add(Array(a.trace, dims, held, (a, b), make))


# -- shapes


def viewed(a: Array, dims: Sequence[Dim]) -> Array:
    """The same value with its axes at other positions."""
    return a.trace.add(Array(a.trace, tuple(dims), a.held, (a,), lambda _, value: value, a.mask, how=Viewed()))


def permuted(a: Array, order: Sequence[int]) -> Array:
    return viewed(a, [a.dims[p] for p in order])


def reshaped(a: Array, shape: Sequence[int]) -> Array:
    total = math.prod(a.shape)
    known = math.prod(n for n in shape if n >= 0)
    wanted = [n if n >= 0 else total // max(known, 1) for n in shape]
    if math.prod(wanted) != total:
        raise Unsupported(f"{a.shape} is no {wanted}")
    left = [x for dim in a.dims for x in leaves(dim)]
    if not nested_sizes([x.size for x in left], wanted):
        return counted_anew(a, wanted)
    dims: list[Dim] = []
    for n in wanted:
        dim: list[Axis] = []
        while size_of(dim) < n:
            x, missing = left.pop(0), n // size_of(dim)
            if x.size > missing:
                x.split(x.size // missing)
                x, rest = x.leaves()
                left.insert(0, rest)
            dim.append(x)
        dims.append(tuple(dim))
    return viewed(a, dims)


def nested_sizes(sizes: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether axes of these sizes may be split and merged to those that are wanted."""
    ends = sorted({*accumulate(sizes, operator.mul), *accumulate(wanted, operator.mul)})
    return all(b % a == 0 for a, b in pairwise(ends))


def counted_anew(a: Array, shape: Sequence[int]) -> Array:
    """A shape that cuts axes across: each place is read where the same number stands in the old one."""
    dims = [(Axis(n),) if n > 1 else () for n in shape]
    steps = [*accumulate([*shape[:0:-1]], operator.mul, initial=1)][::-1]
    flat = viewed(a, [tuple(x for dim in a.dims for x in leaves(dim))])
    return read(flat, [([*zip(dims, steps, strict=True)], 0)], dims)


def expanded(a: Array, shape: Sequence[int]) -> Array:
    new = len(shape) - len(a.dims)
    dims: list[Dim] = []
    for p, n in enumerate(shape):
        own = a.dims[p - new] if p >= new else ()
        dims.append(own if n in (-1, size_of(own)) else (Axis(n),))
    return viewed(a, dims)


def read(a: Array, parts: Sequence[Part], dims: Sequence[Dim], outside: float = 0.0) -> Array:
    """The array read at an index for each of its positions. dims: of the result. outside: what lies there."""
    if a.mask:
        return as_number(lambda number: read(number, parts, dims, outside), a)
    own = {*a.own}
    for at, (d, part) in enumerate(zip(a.dims, parts, strict=True)):
        if not {*leaves(d)} & own and leaves_axis(size_of(d), part):
            rest = [([], 0) if i == at else x for i, x in enumerate(parts)]
            return inside(read(a, rest, dims, outside), size_of(d), part, outside)
    if not own:
        return viewed(a, dims)
    held = dict.fromkeys(x for d in digits(a.dims, parts, own).values() for x, _ in d.terms)

    def make(names: Names, value: Value) -> Value:
        index = indices(names, a.dims, parts, {*a.own})
        order = names.in_memory(value, a)
        target = named(names, value)
        padded = g.pad(target, outside) if outside else target
        return padded[tuple(index[n] for n in order)]

    how = Read(a, tuple(parts)) if not outside else None
    return a.trace.add(Array(a.trace, tuple(dims), tuple(held), (a,), make, how=how))


def as_number(function: Callable[[Array], Array], mask: Array) -> Array:
    """What a function makes of a mask's numbers, 1 where it holds and 0 elsewhere, as a mask."""
    return elementwise(lambda v: v != 0, function(elementwise(lambda m: g.where(m, 1, 0), mask)), mask=True)


def leaves_axis(size: int, part: Part) -> bool:
    """Whether an index may lie outside of an axis of this size."""
    terms, offset = part
    ends = [step * (size_of(dim) - 1) for dim, step in terms]
    return offset + sum(min(e, 0) for e in ends) < 0 or offset + sum(max(e, 0) for e in ends) >= size


def inside(a: Array, size: int, part: Part, outside: float) -> Array:
    """The array where an index lies on an axis of this size, along which it is the same."""
    terms, offset = part

    def make(names: Names) -> Value | float:
        places = (names.index(dim) * step for dim, step in terms if dim)
        return sum(places, start=offset)

    held = tuple(x for dim, _ in terms for x in leaves(dim))
    place = a.trace.add(Array(a.trace, a.dims, held, (), make))
    return elementwise(lambda i, v: g.where((i >= 0) & (i < size), v, outside), place, a)


def named(names: Names, value: Value) -> Value:
    """What is read by indices has a name."""
    return value if value.name else names.graph.let(f"r{len(names.graph.values)}", value)


def read_through(a: Array, parts: Sequence[Part], dims: Sequence[Dim]) -> Array:
    """The same where what lies outside of the array is of no use: f(x[i])[j] is f(x[i[j]]). What lies outside of x is 0
    all the same, where i may be there."""
    match a.how:
        case Applied(function, operands) if len(a.operands) == 1:
            given = (read_through(x, parts, dims) if isinstance(x, Array) else x for x in operands)
            return elementwise(function, *given, mask=a.mask)
        case Read(source, own) if all(dim in a.dims for terms, _ in own for dim, _ in terms if dim):
            leaves_source = any(leaves_axis(size_of(d), x) for d, x in zip(source.dims, own, strict=True))
            further = read if leaves_source else read_through
            return further(source, [composed(x, a.dims, parts) for x in own], dims)
        case _:
            return read(a, parts, dims)


def composed(inner: Part, dims: Sequence[Dim], outer: Sequence[Part]) -> Part:
    """An index by these dims, with other indices in the place of their positions."""
    terms, offset = inner
    found: list[tuple[Dim, int]] = []
    for dim, step in terms:
        if dim:
            more, start = outer[dims.index(dim)]
            found += [(d, s * step) for d, s in more]
            offset += start * step
    return found, offset


def are_looked_up(a: Array, tables: Sequence[Array]) -> bool:
    """Whether a[tables], along a's first positions, is read by address: tables are inputs or views of them, or count
    all positions there, and the sizes there do not differ by call."""
    firsts = [leaves(d) for d in a.dims[: len(tables)]]
    fixed = not any(x.size in a.trace.named for d in firsts for x in d)
    read = all(source(t).name or counts_all(t, n) for t, n in zip(tables, a.shape, strict=False))
    return fixed and read and all(d and {*d} <= {*a.own} for d in firsts)


def counts_all(index: Array, size: int) -> bool:
    """Whether an index is 0, 1, 2, ... to the last of so many positions along one of its own, and varies along no
    other."""
    root = source(index)
    if root.how != Counted(0, 1) or root.shape != (size,) or not root.dims[0]:
        return False
    return sum(d == root.dims[0] for d in index.dims) == 1


def looked_up(a: Array, tables: Sequence[Array]) -> Array:
    """a[tables], along a's first positions: what is there for each entry of tables, whose shapes broadcast. A table
    that counts is the position itself. Raises Unsupported."""
    firsts, entries = a.dims[: len(tables)], in_step(tables)
    for d, table in zip(firsts, tables, strict=True):
        if source(table).name:
            a.trace.bound(source(table), size_of(d), d)
        else:
            paired(d, table.held)
    taken = list(dict.fromkeys(x for table in tables for x in table.own))
    fresh = with_axes(a, {x: Axis(x.size) for x in a.own if x in taken})
    named_by = {x: n for n, d in enumerate(fresh.dims[: len(tables)]) for x in leaves(d)}
    held = dict.fromkeys(x for x in (*taken, *fresh.own) if x not in named_by)

    def make(names: Names, value: Value, *entries: Value) -> Value:
        at: dict[str, Value] = {}
        for first, table, entry in zip(fresh.dims, tables, entries, strict=False):
            if source(table).name:
                at |= digits_of(names, first, leaves(table.held), entry)
            elif [x.size for x in leaves(first)] == [x.size for x in leaves(table.held)]:
                at |= zip(names.of(first), map(names.axis, leaves(table.held)), strict=True)
            else:  # what is read has been taken apart along an axis since, and lies in memory with one
                at |= digits_of(names, first, (), place_along(names, table.held))
        return element_at(names, value, names.in_memory(value, fresh), at)

    return a.trace.add(Array(a.trace, (*entries, *fresh.dims[len(tables) :]), tuple(held), (fresh, *tables), make))


def looked_up_in_rows(a: Array, position: int, table: Array) -> Array | None:
    """a[i, j, table[i, j, k]] for its last position, and likewise for others. None where one axis would have to be two.
    Raises Unsupported."""
    first, others = a.dims[position], [d for p, d in enumerate(a.dims) if p != position]
    rows = [t for p, t in enumerate(table.dims) if p != position]
    pairs = [(d, t) for d, t in zip(others, rows, strict=True) if {*leaves(t)} & {*table.own}]
    called = beside(table, pairs)  # where the table is read by other axes than its own
    called |= {y: Axis(y.size) for y in leaves(table.dims[position]) if called}
    entries = tuple(called.get(y, y) for y in leaves(table.dims[position]))
    kept = {x for d in others for x in leaves(d)}
    own = [called.get(y, y) for y in leaves(table.held)]
    if {*entries} & kept or {*leaves(first)} & {*kept, *own} or len({*own}) < len(own):
        return None
    a.trace.bound(source(table), size_of(first), first)
    held = dict.fromkeys(x for x in (*own, *a.own) if x not in leaves(first))

    def make(names: Names, value: Value, entry: Value) -> Value:
        at = digits_of(names, first, leaves(own), entry)
        return element_at(names, value, names.in_memory(value, a), at)

    dims = [entries if p == position else d for p, d in enumerate(a.dims)]
    return a.trace.add(Array(a.trace, tuple(dims), tuple(held), (a, table), make))


def element_at(names: Names, value: Value, order: Sequence[str], at: Mapping[str, Value]) -> Value:
    """A value at these places along some of its axes. order: of all its axes."""
    target = named(names, value)
    return target[tuple(at[n] if n in at else names.graph.axis(n) for n in order)]


def place_along(names: Names, axes: Sequence[Axis]) -> Value:
    """The place along axes that lie one within the other, for an index."""
    first, *others = leaves(axes)
    place = names.axis(first)
    for x in others:
        place = place * x.size + names.axis(x)
    return place


def digits_of(names: Names, dim: Dim, own: Sequence[Axis], entry: Value) -> dict[str, Value]:
    """The places along a dim that a table names as places along each of its axes, by their names. own: axes by which
    the table is read. entry: the graph's value of the table."""
    at: dict[str, Value] = {}
    inner = size_of(dim)
    for n, x in enumerate(leaves(dim)):  # digits of a number, each of its own read: a shared value has a name
        row = entry[tuple(names.axis(y) for y in own)] if own else entry
        inner //= x.size
        over = row // inner if inner > 1 else row
        (along,) = names.of([x])
        at[along] = over % x.size if n else over
    return at


def in_step(tables: Sequence[Array]) -> list[Dim]:
    """The dims of these arrays as they broadcast, axis by axis one of all. Raises Unsupported."""
    found: list[Dim] = []
    for at in range(-max(len(t.dims) for t in tables), 0):
        some = [t.dims[at] for t in tables if len(t.dims) >= -at and size_of(t.dims[at]) > 1]
        for d in some[1:]:
            pairs = [*zip(leaves(some[0]), leaves(d), strict=False)]
            alike = size_of(d) == size_of(some[0]) and all(x.size == y.size for x, y in pairs)
            if not alike or not all(tables[0].trace.unify(x, y) for x, y in pairs):
                raise Unsupported("tables that are not read in step")
        found.append(some[0] if some else ())
    return found


def indices(names: Names, dims: Sequence[Dim], parts: Sequence[Part], own: Container[Axis]) -> dict[str, Value | int]:
    """The index along each axis that a tensor varies along, by its name. own: these axes."""
    return {names.of([x])[0]: digit.value(names) for x, digit in digits(dims, parts, own).items()}


@dataclass(frozen=True)
class Digit:
    """Where an axis is read: (the sum of positions times steps, plus offset) // inner % size; without the remainder
    where there is no size."""

    terms: Sequence[tuple[Axis, int]]
    offset: int
    inner: int = 1
    size: int | None = None

    def value(self, names: Names) -> Value | int:
        found: Value | int = self.offset
        for x, step in self.terms:
            along = names.axis(x) * step if step != 1 else names.axis(x)
            found = along if isinstance(found, int) and found == 0 else along + found
        found = found // self.inner if self.inner > 1 else found
        return found if self.size is None else found % self.size


def digits(dims: Sequence[Dim], parts: Sequence[Part], own: Container[Axis]) -> dict[Axis, Digit]:
    """The indices of positions as one for each of their axes. own: the axes that matter."""
    each = (spread(leaves(d), *part) for d, part in zip(dims, parts, strict=True))
    return {x: digit for found in each for x, digit in found.items() if x in own}


def spread(axes: Sequence[Axis], terms: Sequence[tuple[Dim, int]], offset: int) -> dict[Axis, Digit]:
    """The index of a position, as one for each axis that the position has. Outside of the first is outside of all."""
    steps = [x for dim, step in terms for x in steps_of(dim, step)]
    found: dict[Axis, Digit] = {}
    for n, axis in enumerate(axes[::-1]):
        last = n == len(axes) - 1
        inner = [(x, s) for x, s in steps if last or s % axis.size]
        if not last and (offset % axis.size or not 0 <= reach(inner) < axis.size):
            return found | counted_over(axes[: len(axes) - n], steps, offset)
        found[axis] = Digit(inner, offset if last else 0)
        steps = [(x, s // axis.size) for x, s in steps if (x, s) not in inner]
        offset //= axis.size
    return found


def steps_of(dim: Dim, step: int = 1) -> Iterator[tuple[Axis, int]]:
    """The axes of a dim with their steps, innermost first, where it has this step."""
    for x in leaves(dim)[::-1]:
        yield x, step
        step *= x.size


def reach(terms: Sequence[tuple[Axis, int]]) -> int:
    """The largest sum of positions times steps; -1 where a step is negative."""
    return -1 if any(s < 0 for _, s in terms) else sum(s * (x.size - 1) for x, s in terms)


def counted_over(axes: Sequence[Axis], terms: Sequence[tuple[Axis, int]], offset: int) -> dict[Axis, Digit]:
    """A place that is counted over several axes, as one along each."""
    sizes = [None, *(axis.size for axis in axes[1:])]
    return {x: Digit(terms, offset, size_of(axes[n + 1 :]), sizes[n]) for n, x in enumerate(axes)}


def whole(a: Array) -> list[Part]:
    """The parts that read all of an array."""
    return [([(d, 1)], 0) for d in a.dims]


def axis_of(a: Array, position: int) -> int:
    """A position that may count from the end, from the front. Raises Unsupported where the array is a single number,
    which PyTorch takes for one along an axis."""
    if not a.dims:
        raise Unsupported("an axis of a tensor without axes")
    return position % len(a.dims)


def sliced(a: Array, position: int, start: int, size: int, step: int = 1) -> Array:
    """`size` places along a position."""
    at = axis_of(a, position)
    if (start, size) == (0, a.shape[at]):
        return a
    new: Dim = (Axis(size),) if size > 1 else ()
    parts, dims = whole(a), [*a.dims]
    parts[at], dims[at] = ([(new, step)], start), new
    return read(a, parts, dims)


def rolled(a: Array, position: int, start: int) -> Array:
    """a[(i + start) % n] along a position of n places."""
    if a.mask:
        return as_number(lambda number: rolled(number, position, start), a)
    at = axis_of(a, position)
    dim, place, n = a.dims[at], (Axis(a.shape[at]),), a.shape[at]
    dims = [place if d == at else own for d, own in enumerate(a.dims)]
    if not {*leaves(dim)} <= {*a.own}:
        return concatenated([sliced(a, at, start, n - start), sliced(a, at, 0, start)], at)
    held = tuple(place[0] if x == leaves(dim)[0] else x for x in a.own if x not in leaves(dim)[1:])

    def make(names: Names, value: Value) -> Value:
        total = Digit([*steps_of(place)], start).value(names) % n
        index: dict[str, Value | int] = {names.of([x])[0]: names.axis(x) for x in a.own}
        axes, inner = leaves(dim), n
        for x in axes:
            inner //= x.size
            over = total // inner if inner > 1 else total
            index[names.of([x])[0]] = over % x.size if x is not axes[0] else over
        return named(names, value)[tuple(index[d] for d in names.in_memory(value, a))]

    return a.trace.add(Array(a.trace, tuple(dims), held, (a,), make))


def selected(a: Array, position: int, index: int) -> Array:
    at = axis_of(a, position)
    one = sliced(a, at, index % a.shape[at], 1)
    return viewed(one, [d for p, d in enumerate(one.dims) if p != at])


def concatenated(arrays: Sequence[Array], position: int) -> Array:
    """Arrays behind each other along a position."""
    at = axis_of(arrays[0], position)
    sizes = [a.shape[at] for a in arrays]
    axis = (Axis(sum(sizes)),)
    moved: list[Array] = []
    for a, n, start in zip(arrays, sizes, accumulate(sizes, initial=0), strict=False):
        parts, dims = whole(a), [*a.dims]
        parts[at], dims[at] = ([(axis, 1)], -start), axis
        moved.append(read_through(a, parts, dims) if n > 1 else viewed(a, dims))
    result = moved[0]
    place = counted(result.trace, axis, len(result.dims) - at - 1)
    for a, start in zip(moved[1:], accumulate(sizes), strict=False):
        result = elementwise(partial(_before, start), place, result, a)
    return result


def counted(trace: Trace, dim: Dim, behind: int) -> Array:
    """The positions along a dim, with so many positions of size 1 behind."""
    return trace.add(Array(trace, (dim, *[()] * behind), dim, (), lambda names: names.index(dim)))


def _before(start: int, place: Value, x: Value, y: Value) -> Value:
    return g.where(place < start, x, y)
