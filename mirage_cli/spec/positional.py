"""Programs whose tensors have axes by position, written down as a `Graph`, whose axes have names.

    a = trace.input("X", (8, 64), "float16")
    b = trace.input("W", (64, 32), "float16")
    c = einsum("mk,kn->mn", a, b)
    graph = trace.graph("product", {"O": c})

Axes that an operator takes side by side are one axis (union-find). Where a shape splits an axis, or merges several, the
axis has parts, and so have all tensors with it: X[b, s, h·d] becomes X[b, s, h, d], which is the same memory. Where two
axes of one tensor would become one, one of them is renamed instead. Axes of size 1 have no name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any  # the graph's values: of inputs, and what may be a number

from mirage_cli.spec import graph as g
from mirage_cli.spec.graph import Graph, Value


class Unsupported(Exception):
    """A program that a spec cannot say. The message says why. maker: what asked for what cannot be said, if known."""

    maker: object = None


class Axis:
    """An axis of `size` positions. parts: those it is split into, outermost first."""

    __slots__ = ("other", "parts", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.other: Axis | None = None
        self.parts: tuple[Axis, ...] = ()

    def found(self) -> Axis:
        """The one that stands for all that it was unified with."""
        axis = self
        while axis.other is not None:
            axis = axis.other
        return axis

    def leaves(self) -> list[Axis]:
        """The axes that are not split any further, outermost first."""
        axis = self.found()
        return [x for part in axis.parts for x in part.leaves()] if axis.parts else [axis]

    def split(self, inner: int) -> None:
        self.parts = Axis(self.size // inner), Axis(inner)


Dim = tuple[Axis, ...]
"""The axes of one position, outermost first: none where its size is 1."""
Part = tuple[Sequence[tuple[Dim, int]], int]
"""An index: dims with their steps, and an offset."""


def leaves(dim: Iterable[Axis]) -> list[Axis]:
    return [x for axis in dim for x in axis.leaves()]


def size_of(dim: Iterable[Axis]) -> int:
    return math.prod(x.size for x in dim)


def paired(a: Sequence[Axis], b: Sequence[Axis]) -> list[tuple[Axis, Axis]]:
    """The axes of two dims of one size, pair by pair, split until they agree. Raises Unsupported."""
    if size_of(a) != size_of(b):
        raise Unsupported(f"axes of {size_of(a)} and {size_of(b)} positions are taken side by side")
    left, right = leaves(a)[::-1], leaves(b)[::-1]
    found: list[tuple[Axis, Axis]] = []
    while left and right:
        x, y = left.pop(0), right.pop(0)
        small, large = sorted((x, y), key=lambda axis: axis.size)
        if large.size % small.size:
            raise Unsupported(f"axes of {small.size} and {large.size} positions lie across each other")
        if large.size > small.size:
            large.split(small.size)
            outer, inner = large.leaves()
            rest = left if large is x else right
            rest.insert(0, outer)
            x, y = (inner, y) if large is x else (x, inner)
        found.append((x, y))
    return found


@dataclass(frozen=True)
class Applied:
    """What elementwise operators have made of one array, at each of its positions."""

    function: Callable[..., Value]
    operands: tuple[Array | float, ...]


@dataclass(frozen=True)
class Read:
    """What an array holds at these indices."""

    source: Array
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Viewed:
    """The operand, with its axes at other positions."""


@dataclass(frozen=True)
class Counted:
    """start, start + step, ... along the only position."""

    start: int
    step: int


@dataclass(frozen=True, eq=False)
class Array:
    """A value of a trace.

    dims: by position. held: the axes that it varies along; it is the same at all positions of other ones.
    mask: whether it is a mask, not a number. make: the graph's value, from the names of axes and the operands' values.
    name: of an input. how: it is made, where that matters to those who read it.
    """

    trace: Trace
    dims: tuple[Dim, ...]
    held: Dim
    operands: tuple[Array, ...]
    make: Callable[..., Value | float]
    mask: bool = False
    name: str = ""
    how: Applied | Read | Viewed | Counted | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(size_of, self.dims))

    @property
    def own(self) -> list[Axis]:
        return leaves(self.held)

    @property
    def axes(self) -> set[Axis]:
        """Those of its positions, and those that it varies along."""
        return {*self.own, *leaves(x for dim in self.dims for x in dim)}


@dataclass(frozen=True)
class Row:
    """An index that a table holds. dims: of the value that is written, beside the table's positions."""

    table: Array
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class Stored:
    """What is written into an input in place, by an index for each position. maker: what asked for it."""

    target: Array
    places: tuple[Part | Row, ...]
    value: Array
    maker: object

    @property
    def arrays(self) -> list[Array]:
        return [source(self.target), self.value, *(x.table for x in self.places if isinstance(x, Row))]


class Names:
    """What axes are called in the graph."""

    def __init__(self, graph: Graph, names: Mapping[Axis, str]) -> None:
        self.graph, self.names = graph, names
        self.order = {name: i for i, name in enumerate(names.values())}

    def of(self, dim: Iterable[Axis]) -> list[str]:
        return [self.names[x] for x in leaves(dim)]

    def in_memory(self, value: Value, array: Array) -> list[str]:
        """The axes by which a value is read: an input's as it is declared, another's as it is written."""
        held = self.of(array.held)
        return held if value.name in self.graph.names else sorted(held, key=self.order.__getitem__)

    def axis(self, x: Axis) -> Value:
        return self.graph.axis(self.names[x])

    def index(self, dim: Iterable[Axis]) -> Value | float:
        """The position along a dim, as a number of the program."""
        total: Value | float = 0
        step = 1
        for x in leaves(dim)[::-1]:
            here = g.index(self.axis(x))
            total = here * step + total if step > 1 else here
            step *= x.size
        return total


class Trace:
    """Collects arrays. A program is one trace. named: sizes of axes that keep their names: they differ by call."""

    def __init__(self, named: Container[int] = ()) -> None:
        self.named = named
        self.arrays: list[Array] = []
        self.inputs: list[tuple[Array, str, float | None]] = []
        self.strides: dict[Array, list[int]] = {}  # of inputs that are not row-major, of each axis that is held
        self.below: dict[Array, int] = {}  # of tables, what their entries are less than
        self.distinct: set[Array] = set()  # tables that hold no number twice
        self.stores: list[Stored] = []
        self.maker: object = None  # of the arrays that are added next
        self.makers: dict[Array, object] = {}

    def add(self, array: Array) -> Array:
        self.arrays.append(array)
        self.makers[array] = self.maker
        return array

    def input(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        scale: float | None = None,
        strides: Sequence[int] | None = None,
    ) -> Array:
        """A tensor in device memory. dtype, scale: as in a spec. strides: None where it is row-major."""
        dims = tuple((Axis(n),) if n > 1 else () for n in shape)
        held = tuple(x for dim in dims for x in dim)
        array = self.add(Array(self, dims, held, (), lambda _: 0.0, dtype == "bool", name))
        self.inputs.append((array, dtype, scale))
        if strides is not None:
            self.strides[array] = [s for n, s in zip(shape, strides, strict=True) if n > 1]
        return array

    def full(self, shape: Sequence[int], value: float) -> Array:
        dims = tuple((Axis(n),) if n > 1 else () for n in shape)
        return self.add(Array(self, dims, (), (), lambda _: value))

    def positions(self, size: int, start: int = 0, step: int = 1) -> Array:
        """start, start + step, ..."""
        dim = (Axis(size),) if size > 1 else ()

        def make(names: Names) -> Value | float:
            place = names.index(dim)
            return place if (start, step) == (0, 1) else place * step + start

        return self.add(Array(self, (dim,), dim, (), make, how=Counted(start, step)))

    def unify(self, x: Axis, y: Axis) -> bool:
        """Makes one axis of two, unless one array has both."""
        if x is y:
            return True
        if any({x, y} <= a.axes for a in self.arrays):
            return False
        y.other = x
        return True

    @contextmanager
    def apart(self, dims: Sequence[Dim]) -> Generator[None]:
        """Meanwhile no two of these axes are made one."""
        held = tuple(x for dim in dims for x in dim)
        result = Array(self, tuple(dims), held, (), lambda _: 0.0)
        self.arrays.append(result)
        try:
            yield
        finally:
            self.arrays.remove(result)

    # -- the graph

    def graph(self, name: str, outputs: Mapping[str, tuple[Array, str]]) -> Graph:
        """The named program. outputs: arrays with their dtypes. Raises Unsupported."""
        needed = self.needed([*(a for a, _ in outputs.values()), *(a for s in self.stores for a in s.arrays)])
        axes: dict[Axis, str] = {}
        for a in needed:
            for x in (*a.own, *leaves(x for dim in a.dims for x in dim)):
                axes.setdefault(x, f"a{len(axes)}")
        sizes = {n: x.size for x, n in axes.items()}
        given = {a: (dtype, scale) for a, dtype, scale in self.inputs}
        first = next((dtype for _, dtype in outputs.values()), None)
        graph = Graph(name, sizes, first or next(given[a][0] for s in self.stores for a in s.arrays))
        names = Names(graph, axes)
        values: dict[Array, Value | float] = {}
        for a in needed:
            if a.name:
                dtype, scale = given[a]
                below, strides, distinct = self.below.get(a), self.strides_of(a), a in self.distinct
                values[a] = graph.input(
                    a.name, *names.of(a.held), dtype=dtype, scale=scale, below=below, distinct=distinct, strides=strides
                )
            else:
                self.maker = self.makers[a]
                values[a] = a.make(names, *(values[x] for x in a.operands))
        for out, (a, dtype) in outputs.items():
            value = values[a]
            if not isinstance(value, Value) or value.number:
                raise Unsupported(f"the result {out} is a constant")
            if a.mask:
                raise Unsupported(f"the result {out} is a mask")
            graph.output(out, value, *names.of(result_axes(a)), dtype=dtype)
        for store in self.stores:
            self.maker = store.maker
            write(names, store, values)
        return graph

    def strides_of(self, a: Array) -> list[int] | None:
        """Of the axes that an input's are split into."""
        if a not in self.strides:
            return None
        pairs = zip(a.held, self.strides[a], strict=True)
        return [s * size_of(parts[i + 1 :]) for x, s in pairs for parts in (x.leaves(),) for i in range(len(parts))]

    def needed(self, outputs: Iterable[Array]) -> list[Array]:
        wanted = {*outputs}
        for a in reversed(self.arrays):
            if a in wanted:
                wanted |= {*a.operands}
        return [a for a in self.arrays if a in wanted]


def result_axes(a: Array) -> list[Axis]:
    """The axes of a result in memory order: those of its dims that it varies along."""
    own = {*a.own}
    return [x for dim in a.dims for x in leaves(dim) if x in own]


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
    if any(y.size in a.trace.named for y, _ in pairs):
        raise Unsupported("an axis whose size differs by call is taken beside itself")

    def make(names: Names, value: Value) -> Value:
        new = {o: n for y, x in pairs for o, n in zip(names.of([y]), names.of([x]), strict=True)}
        return g.rename(value, **{o: names.graph.axis(n) for o, n in new.items() if o != n})

    return a.trace.add(Array(a.trace, dims, held, (a,), make, a.mask))


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

    how = Applied(function, operands) if len(arrays) == 1 else None
    return trace.add(Array(trace, tuple(dims), held, tuple(made), make, mask, how=how))


def reduction(name: str, a: Array, positions: Sequence[int], keep: bool = False, **options: float) -> Array:
    """A reduction of the spec language over these positions, which disappear unless they are kept."""
    at = {p % len(a.dims) for p in positions} if a.dims else set()
    over = [x for p in sorted(at) for x in a.dims[p]]
    if not {*leaves(over)} <= {*a.own}:
        raise Unsupported(f"{name} over an axis along which the tensor is constant")
    dims = tuple(() if p in at else d for p, d in enumerate(a.dims) if keep or p not in at)
    held = tuple(x for x in a.own if x not in leaves(over))

    def make(names: Names, value: Value) -> Value:
        axes = names.of(over)
        return getattr(g, name)(value, *axes, **options) if axes else value

    if not leaves(over):
        return a.trace.add(Array(a.trace, dims, held, (a,), lambda _, value: value, a.mask))
    return a.trace.add(Array(a.trace, dims, held, (a,), make))


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
    if not {*over} <= both:
        raise Unsupported("a sum over an axis along which the tensor is constant")
    alone = [x for x in over if x not in {*a.own} or x not in {*b.own}]
    held = tuple(dict.fromkeys(x for x in (*a.own, *b.own) if x not in over))

    def make(names: Names, x: Value, y: Value) -> Value:
        axes = names.of(over)
        if not axes:
            return x * y
        return g.dot(x, y, *axes) if not alone else g.sum(x * y, *axes)

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
        number = elementwise(lambda m: g.where(m, 1, 0), a)
        return elementwise(lambda v: v != 0, read(number, parts, dims, outside), mask=True)
    own = {*a.own}
    for at, (d, part) in enumerate(zip(a.dims, parts, strict=True)):
        if not {*leaves(d)} & own and leaves_axis(size_of(d), part):
            rest = [([], 0) if i == at else x for i, x in enumerate(parts)]
            return inside(read(a, rest, dims, outside), size_of(d), part, outside)
    if not own:
        return viewed(a, dims)
    places = (terms for d, (terms, _) in zip(a.dims, parts, strict=True) if {*leaves(d)} & own)
    held = dict.fromkeys(x for terms in places for dim, _ in terms for x in leaves(dim))

    def make(names: Names, value: Value) -> Value:
        along = {*a.own}
        index: dict[str, Value | int] = {}
        for d, (terms, offset) in zip(a.dims, parts, strict=True):
            index |= spread(names, leaves(d), along, terms, offset)
        order = names.in_memory(value, a)
        target = named(names, value)
        padded = g.pad(target, outside) if outside else target
        return padded[tuple(index[n] for n in order)]

    how = Read(a, tuple(parts)) if not outside else None
    return a.trace.add(Array(a.trace, tuple(dims), tuple(held), (a,), make, how=how))


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
    """The same where what lies outside of the array is of no use: f(x[i])[j] is f(x[i[j]])."""
    match a.how:
        case Applied(function, operands):
            given = (read_through(x, parts, dims) if isinstance(x, Array) else x for x in operands)
            return elementwise(function, *given, mask=a.mask)
        case Read(source, own) if all(dim in a.dims for terms, _ in own for dim, _ in terms if dim):
            return read_through(source, [composed(x, a.dims, parts) for x in own], dims)
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


def source(a: Array) -> Array:
    """What an array is a view of."""
    while isinstance(a.how, Viewed):
        (a,) = a.operands
    return a


def stored(a: Array, places: Sequence[Part | Row], value: Array) -> None:
    """Writes a value into an input in place, by an index for each of its positions. Raises Unsupported."""
    trace = a.trace
    for dim, place in zip(a.dims, places, strict=True):
        match place:
            case Row(table, dims):
                sides = [both for own, other in zip(table.dims, dims, strict=True) for both in paired(own, other)]
                trace.below[table] = size_of(dim)
            case ([(other, 1)], 0) if size_of(other) == size_of(dim):
                sides = paired(dim, other)
            case _:
                sides = []
        for x, y in sides:
            trace.unify(x.found(), y.found())
    if not {x for dim in value.dims for x in leaves(dim)} <= {*value.own}:
        raise Unsupported("one number is written at several places")
    trace.stores.append(Stored(a, tuple(places), value, trace.maker))


def write(names: Names, store: Stored, values: Mapping[Array, Any]) -> None:
    """The statement of a store."""
    root = source(store.target)
    along, index = {*root.own}, dict[str, Value | int]()
    for dim, place in zip(store.target.dims, store.places, strict=True):
        if not isinstance(place, Row):
            index |= spread(names, leaves(dim), along, *place)
        elif dim:
            if len(leaves(dim)) > 1:
                raise Unsupported("rows of an axis that is several")
            index[names.of(dim)[0]] = entry(names, place, values[place.table])
    target, value = values[root], values[store.value]
    if not isinstance(value, Value):
        raise Unsupported("what is written is a constant")
    target[tuple(index[n] for n in names.of(root.held))] = value


def place_of(index: Array, size: int, beside: Sequence[Dim]) -> Part | Row:
    """What an index of an axis of this size says. beside: the dims of a value beside its last positions. Raises
    Unsupported."""
    root = source(index)
    sides = dict(zip(index.dims, beside[len(beside) - len(index.dims) :], strict=True))
    if not {*root.dims} - {()} <= {*sides}:
        raise Unsupported("an index whose axes are taken apart")
    dims = tuple(sides[d] if d else () for d in root.dims)
    if isinstance(root.how, Counted):
        last = root.how.start + root.how.step * (size_of(root.dims[0]) - 1)
        if not 0 <= min(root.how.start, last) <= max(root.how.start, last) < size:
            raise Unsupported("an index outside of its axis")
        return [(dims[0], root.how.step)], root.how.start
    if not root.name:
        raise Unsupported("an index that is computed")
    return Row(root, dims)


def entry(names: Names, row: Row, entries: Any) -> Any:
    """What a table holds beside the axes of a value."""
    own, index = {*row.table.own}, dict[str, Value | int]()
    for dim, other in zip(row.table.dims, row.dims, strict=True):
        index |= spread(names, leaves(dim), own, [(other, 1)], 0)
    order = names.of(row.table.held)
    return entries[tuple(index[n] for n in order)] if order else entries


def looked_up(a: Array, table: Array) -> Array:
    """a[table], along a's first position: a row for each entry of a table, which is an input. Raises Unsupported."""
    if not table.name:
        raise Unsupported("an index that is computed")
    first = a.dims[0]
    if len(leaves(first)) != 1 or not {*leaves(first)} <= {*a.own}:
        raise Unsupported("rows of an axis of one position, or of several")
    a.trace.below[table] = min(a.trace.below.get(table, size_of(first)), size_of(first))
    taken = {*table.own}
    fresh = with_axes(a, {x: Axis(x.size) for x in a.own if x in taken})
    held = dict.fromkeys(x for x in (*table.own, *fresh.own) if x not in leaves(fresh.dims[0]))

    def make(names: Names, value: Value, entries: Value) -> Value:
        row = entries[tuple(names.axis(x) for x in leaves(table.held))] if table.held else entries
        (along,) = names.of(fresh.dims[0])
        order = names.in_memory(value, fresh)
        target = named(names, value)
        return target[tuple(row if n == along else names.graph.axis(n) for n in order)]

    return a.trace.add(Array(a.trace, (*table.dims, *fresh.dims[1:]), tuple(held), (fresh, table), make))


def spread(
    names: Names, axes: Sequence[Axis], held: Container[Axis], terms: Sequence[tuple[Dim, int]], offset: int
) -> dict[str, Value | int]:
    """The index of a position, as one for each axis that the position has and the tensor varies along."""
    steps: list[tuple[Axis, int]] = []
    for dim, step in terms:
        for x in leaves(dim)[::-1]:
            steps.append((x, step))
            step *= x.size
    found: dict[Axis, Value | int] = {}
    for n, axis in enumerate(axes[::-1]):
        last = n == len(axes) - 1
        inner = [(x, s) for x, s in steps if last or s % axis.size]
        if not last and (offset % axis.size or not 0 <= reach(inner) < axis.size):
            return found_of(names, found | digits(axes[: len(axes) - n], total(names, steps, offset)), held)
        found[axis] = total(names, inner, offset if last else 0)
        steps = [(x, s // axis.size) for x, s in steps if (x, s) not in inner]
        offset //= axis.size
    return found_of(names, found, held)


def reach(terms: Sequence[tuple[Axis, int]]) -> int:
    """The largest sum of positions times steps; -1 where a step is negative."""
    return -1 if any(s < 0 for _, s in terms) else sum(s * (x.size - 1) for x, s in terms)


def total(names: Names, terms: Sequence[tuple[Axis, int]], offset: int) -> Value | int:
    found: Value | int = offset
    for x, s in terms:
        place = names.axis(x) * s if s != 1 else names.axis(x)
        found = place if isinstance(found, int) and found == 0 else place + found
    return found


def digits(axes: Sequence[Axis], place: Value | int) -> dict[Axis, Value | int]:
    """A place that is counted over several axes, as one along each. Outside of the first is outside of all."""
    found: dict[Axis, Value | int] = {}
    for n, axis in enumerate(axes):
        inner = size_of(axes[n + 1 :])
        along = place // inner if inner > 1 else place
        found[axis] = along % axis.size if n else along
    return found


def found_of(names: Names, found: Mapping[Axis, Value | int], held: Container[Axis]) -> dict[str, Value | int]:
    return {names.of([x])[0]: index for x, index in found.items() if x in held}


def whole(a: Array) -> list[Part]:
    """The parts that read all of an array."""
    return [([(d, 1)], 0) for d in a.dims]


def sliced(a: Array, position: int, start: int, size: int, step: int = 1) -> Array:
    """`size` places along a position."""
    at = position % len(a.dims)
    if (start, size) == (0, a.shape[at]):
        return a
    new: Dim = (Axis(size),) if size > 1 else ()
    parts, dims = whole(a), [*a.dims]
    parts[at], dims[at] = ([(new, step)], start), new
    return read(a, parts, dims)


def selected(a: Array, position: int, index: int) -> Array:
    at = position % len(a.dims)
    one = sliced(a, at, index % a.shape[at], 1)
    return viewed(one, [d for p, d in enumerate(one.dims) if p != at])


def concatenated(arrays: Sequence[Array], position: int) -> Array:
    """Arrays behind each other along a position."""
    at = position % len(arrays[0].dims)
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
