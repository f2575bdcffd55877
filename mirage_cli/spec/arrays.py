"""Tensors whose axes have positions, and the trace that writes them down as a `Graph`, whose axes have names.

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
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from mirage_cli.spec import graph as g
from mirage_cli.spec.graph import Graph, Value
from mirage_cli.spec.keys import FLOATS


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
    """What elementwise operators have made of arrays and numbers, at each of their positions, which broadcast."""

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


def source(a: Array) -> Array:
    """What an array is a view of."""
    while isinstance(a.how, Viewed):
        (a,) = a.operands
    return a


@dataclass(frozen=True)
class InPlaceWrite:
    """What is written into an input in place. arrays: the input, and all that is read for it. write: the graph's
    statement, from the names of axes and the arrays' values. maker: what asked for it."""

    arrays: tuple[Array, ...]
    write: Callable[..., None]
    maker: object


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

    def along(self, others: Iterable[tuple[Axis, Axis]]) -> Names:
        """The same names, but for axes in the place of which others are taken."""
        new = {y: self.names[x] for both in others for y, x in zip(*map(Axis.leaves, both), strict=True)}
        names = Names(self.graph, {**self.names, **new})
        names.order = self.order
        return names

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
    """Collects arrays. A program is one trace.

    named: sizes of axes that keep their names: they differ by call. moves: of a graph of PyTorch, which nodes copy
    elements and compute nothing.
    """

    def __init__(self, named: Container[int] = (), moves: Callable[[object], bool] = lambda _: False) -> None:
        self.named, self.moves = named, moves
        self.arrays: list[Array] = []
        self.inputs: list[tuple[Array, str, float | None]] = []
        self.strides: dict[Array, list[int]] = {}  # of inputs that are not row-major, of each axis that is held
        self.below: dict[Array, tuple[int, Dim]] = {}  # of tables: less than what entries are, and whose size it is
        self.turned: dict[Array, tuple[Array, tuple[int, ...]]] = {}  # what is read from its ends on along these axes
        self.interleaved: dict[Array, tuple[int, list[Array]]] = {}  # what takes turns along a position
        self.distinct: set[Array] = set()  # tables that hold no number twice
        self.bits: set[Array] = set()  # inputs of which bits are read
        self.sorted: set[Array] = set()  # tables whose numbers are in order
        self.renamed: dict[Array, Sequence[tuple[Axis, Axis]]] = {}  # axes that are other ones in what an array makes
        self.again: dict[Array, Array] = {}  # inputs that are another one once more, along other axes
        self.anew: dict[tuple[Array, frozenset[tuple[Axis, Axis]]], Array] = {}  # arrays along other axes
        self.computed_again = set[object]()  # the makers of such arrays
        self.stores: list[InPlaceWrite] = []
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

    def bound(self, table: Array, size: int, dim: Dim = ()) -> None:
        """Takes down that a table's entries are less than a size. dim: whose size it is."""
        least, known = self.below.get(table, (size, ()))
        if size <= least:
            self.below[table] = size, known if size == least and known else dim

    def along(self, a: Array, others: Mapping[Axis, Axis]) -> Array:
        """What an array holds, made once more along other axes, of inputs that are given once more. others: by the axes
        in the place of which they are."""
        pairs = [(y, x) for y, x in others.items() if y in a.own]
        key = a, frozenset(pairs)
        if not pairs or key in self.anew:
            return self.anew.get(key, a)
        dims = tuple(tuple(others.get(x, x) for x in leaves(dim)) for dim in a.dims)
        held = tuple(others.get(x, x) for x in a.own)
        if a.name:
            made = self.once_more(a, dims, held)
        else:
            bound = {x for u in a.operands for x in u.own}.difference(a.own)
            inner = {x: Axis(x.size) for _, x in pairs if x in bound} | dict(pairs)
            operands = tuple(self.along(u, inner) for u in a.operands)
            make = partial(made_along, a, [*inner.items()])
            made = self.add(Array(self, dims, held, operands, make, a.mask, how=how_along(a, inner)))
            self.computed_again |= {self.makers[a]} - {self.maker}
        self.anew[key] = made
        self.renamed[made] = [*pairs, *self.renamed.get(a, ())]
        return made

    def once_more(self, a: Array, dims: tuple[Dim, ...], held: Dim) -> Array:
        """An input, given once more, along other axes."""
        ((dtype, scale),) = [(dtype, scale) for x, dtype, scale in self.inputs if x is a]
        made = self.add(Array(self, dims, held, (), a.make, a.mask, f"{a.name}_{len(self.again)}"))
        self.again[made] = self.again.get(a, a)
        self.inputs.append((made, dtype, scale))
        if a in self.strides:
            self.strides[made] = self.strides[a]
        return made

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
        changed = {s.arrays[0] for s in self.stores}
        if any(self.again.get(a) in changed for a in needed):
            raise Unsupported("what is changed in place is read along another axis too")
        self.split_alike([pair for a in needed for pair in self.renamed.get(a, ())])
        axes = axis_names([a for a, _ in outputs.values()], needed)
        sizes = {n: x.size for x, n in axes.items()}
        given = {a: (dtype, scale) for a, dtype, scale in self.inputs}
        dtypes = (*(dtype for _, dtype in outputs.values()), *(given[s.arrays[0]][0] for s in self.stores))
        computed = (d for d in (*dtypes, *(dtype for dtype, _ in given.values())) if d in FLOATS)
        graph = Graph(name, sizes, next(computed, "float32"))
        names = Names(graph, axes)
        values: dict[Array, Value | float] = {}
        once: dict[tuple[Array | str, ...], Value] = {}  # inputs, by what they are along which axes
        for a in needed:
            if a.name:
                key = self.again.get(a, a), *names.of(a.held)
                values[a] = once[key] = once[key] if key in once else self.input_of(names, a, *given[a])
            else:
                self.maker = self.makers[a]
                values[a] = a.make(names, *(values[x] for x in a.operands))
        for out, (a, dtype) in outputs.items():
            self.maker = self.makers[a]
            value = values[a]
            if not isinstance(value, Value) or value.number:
                raise Unsupported(f"the result {out} is a constant")
            graph.output(out, value, *names.of(result_axes(a)), dtype=dtype)
        for store in self.stores:
            self.maker = store.maker
            store.write(names, *(values[a] for a in store.arrays))
        return graph

    def split_alike(self, pairs: Sequence[tuple[Axis, Axis]]) -> None:
        """Splits axes and those that they are renamed to until all agree. Raises Unsupported."""
        before = -1
        while before < (before := sum(len(paired([y], [x])) for y, x in pairs)):
            pass

    def input_of(self, names: Names, a: Array, dtype: str, scale: float | None) -> Value:
        """The input of the graph."""
        first = self.again.get(a, a)
        below = self.below_of(a, names) or self.below_of(first, names)
        drawn = "bits" if {a, first} & self.bits and dtype == "int32" and below is None else None
        drawn = "sorted" if first in self.sorted else drawn
        return names.graph.input(
            a.name,
            *names.of(a.held),
            dtype=dtype,
            scale=scale,
            below=below,
            distinct=first in self.distinct,
            drawn=drawn,
            strides=self.strides_of(a),
        )

    def below_of(self, a: Array, names: Names) -> int | str | None:
        """What the entries of a table are less than: the size of an axis by its name, so that it may be another."""
        size, dim = self.below.get(a, (None, ()))
        named = [names.names[x] for x in leaves(dim) if x in names.names]
        return named[0] if len(named) == len(leaves(dim)) == 1 else size

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


def made_along(a: Array, pairs: Sequence[tuple[Axis, Axis]], names: Names, *values: Value | float) -> Value | float:
    """What makes an array, along other axes."""
    return a.make(names.along(pairs), *values)


def how_along(a: Array, others: Mapping[Axis, Axis]) -> Applied | Viewed | Counted | None:
    match a.how:
        case Applied(function, operands):
            given = (a.trace.along(u, others) if isinstance(u, Array) else u for u in operands)
            return Applied(function, tuple(given))
        case Read():
            return None
        case how:
            return how


def axis_names(outputs: Iterable[Array], needed: Iterable[Array]) -> dict[Axis, str]:
    """Names for all axes of these arrays: those of the outputs first, in their order."""
    of_outputs = (x for a in outputs for x in result_axes(a))
    others = (x for a in needed for x in (*a.own, *leaves(x for dim in a.dims for x in dim)))
    return {x: f"a{i}" for i, x in enumerate(dict.fromkeys((*of_outputs, *others)))}


def result_axes(a: Array) -> list[Axis]:
    """The axes of a result in memory order: those of its dims that it varies along."""
    own = {*a.own}
    return [x for dim in a.dims for x in leaves(dim) if x in own]
