"""Parts of a PyTorch graph as programs, at any sizes of those that differ by call.

A part is traced at two primes for each such size. Where both traces are one program but for the sizes of axes, it is
the program of all sizes. Axes that are one are joined, so that kernels are tiled and tuned as for a matrix:

    X[b, t, k], W[k, n]  -->  X[m, k], W[k, n]        m = b*t, in every call
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import Any  # torch's graphs and nodes have few types

import torch

from mirage_cli.ir.merge import LONGEST, runs_of_any_size
from mirage_cli.pipeline.models.counts import refuse_inexact, sizes_for_numbers
from mirage_cli.pipeline.models.partition import Part, outputs_of
from mirage_cli.pipeline.models.region import Shape, Sized
from mirage_cli.pipeline.models.symbols import (
    Length,
    Lengths,
    Symbol,
    Times,
    fractions_of,
    grows,
    length_of,
    shape_of,
    sizes_of,
    symbol_of,
    times,
    two_each,
    valued,
    with_sizes,
    worked_out,
)
from mirage_cli.spec.arrays import Array, Unsupported
from mirage_cli.spec.aten.memory import inverse, memory_order, order_of_result
from mirage_cli.spec.aten.row import SYMBOLIC
from mirage_cli.spec.aten.trace import Traced, row_of, trace
from mirage_cli.spec.graph import Dynamic, Graph
from mirage_cli.spec.reader import MAX_OFFSET

TUNED = (1, 16, 256, 4096)
"""Sizes to tune for where one size differs by call, besides that of the example."""
TUNED_OF_SEVERAL = (16, 1024)
"""The same of each of several."""


class ComputedAgain(Exception):
    """Products of a part that its program would compute once more, along other axes: they are to be stored."""

    def __init__(self, products: Sequence[Any]) -> None:
        super().__init__("it computes a product twice")
        self.products = products


@dataclass(frozen=True)
class Placed:
    """The program of a part at some sizes. orders: of its inputs' positions in memory. shapes: of what it returns."""

    traced: Traced
    orders: Mapping[str, tuple[int, ...]]
    shapes: tuple[Shape, ...]


def placed_part(part: Part, named: Mapping[int, int], arguments: Sequence[Any] | None = None) -> Placed:
    """named: the largest of each size that differs by call. Raises Unsupported."""
    traced = trace(part, outputs_of(part), "part", lambda n: n.meta.get("scale"), named, arguments)
    pairs = zip(traced.arrays, traced.outputs, strict=True)
    shapes = tuple(result_shape(a, n.meta["val"]) for a, (_, n) in pairs)
    return Placed(traced, {label: memory_order(n.meta["val"]) for label, n in traced.inputs}, shapes)


def at_any_size(
    part: Part, read: Sequence[Any], symbols: Mapping[str, Symbol]
) -> tuple[Placed, tuple[Sized, ...], dict[str, Times], dict[str, int]]:
    """The program of a part with dynamic axes, their lengths, and those that they have in the example, if it is the
    same at two sizes of each symbol but for these axes. Raises Unsupported, SpecError, ComputedAgain."""
    primes = two_each({name: (s.least, s.most) for name, s in symbols.items()})
    if len(primes) < len(symbols):
        raise Unsupported("many of its sizes differ by call")
    if not all(map(grows, (*sizes_of([*part, *read]), *fractions_of(read)))):
        raise Unsupported("a size in it is no sum of products of those that differ by call")
    some: list[Placed] = []
    elements: list[list[int]] = []
    at_two: list[dict[str, int]] = []
    made = worked_out(read, symbols)
    every = {name: symbol_of(n, symbols) for name, n in made.items()} | {**symbols}
    for i in range(2):
        sizes = {s: pair[i] for s, pair in primes.items()}
        at_two.append({name: with_sizes(n, sizes) for name, n in made.items()} | sizes)
        with valued([*part, *read], sizes):
            some.append(placed_part(part, {n: every[name].most for name, n in at_two[i].items()}))
            elements.append([math.prod(x.meta["val"].shape) for x in (*part, *read) if shape_of(x)])
    pairs = {name: (n, at_two[1][name]) for name, n in at_two[0].items()}
    one, other = some
    if again := [n for n in part if n in one.traced.again and row_of(n).products]:
        raise ComputedAgain(again)
    graph, same = one.traced.graph, other.traced.graph
    dims = graph.dims
    axes = {d: s for s, pair in pairs.items() for d, n in dims.items() if pair == (n, same.dims.get(d))}
    same.dims = {**same.dims, **{d: dims[d] for d in axes}}
    sizes_for_numbers(graph, same, axes, pairs)
    if same.text() != graph.text() or one.orders != other.orders:
        raise another_program(part)
    lengths = (length_of(pair, among) for pair in zip(*elements, strict=True) for among in (pairs, primes))
    ranges = in_range(every, [*lengths])
    graph.dims = {**dims, **{d: Dynamic(*ranges[s], (ranges[s][1],)) for d, s in axes.items()}}
    found = joined(graph, {d: Times(1, (s,)) for d, s in axes.items()}, ranges)
    in_example = tuned_together(graph, found, {n: m for n, m in made.items() if n in {*axes.values()}}, symbols)
    shapes = tuple(at_both(a, b, pairs) for a, b in zip(one.shapes, other.shapes, strict=True))
    used = {*axes.values()} | {s for shape in shapes for s in shape.symbols}
    said = {s: told(read, s) for s in every}
    if unsaid := next((s for s in used if said[s] is None), None):
        raise Unsupported(f"none of its inputs says {unsaid}, which differs by call")
    sized = tuple(Sized(s, *place, *ranges[s]) for s, place in said.items() if place is not None)
    return replace(one, shapes=shapes), sized, found, in_example


def another_program(part: Part) -> Unsupported:
    """Why a part is another program at other sizes: what it puts behind each other, if that is along such a size."""
    for n in part:
        dim = n.args[1] if len(n.args) > 1 else 0
        if row_of(n).joins and any(isinstance(shape_of(x)[dim], torch.SymInt) for x in n.args[0]):
            error = Unsupported("a concatenation along an axis whose size differs by call")
            error.maker = n
            return error
    return Unsupported("it is another program at other sizes")


def joined(graph: Graph, axes: Mapping[str, Times], ranges: Mapping[str, tuple[int, int]]) -> dict[str, Times]:
    """Joins axes of a graph that are one, of which some differ by call. The lengths of all axes that do, by axis.

    axes: those lengths before. ranges: of the symbols. Raises SpecError.
    """
    found = dict(axes)
    program = graph.program()
    refuse_inexact(program)
    least, most = ({s: r[i] for s, r in ranges.items()} for i in range(2))
    for run in runs_of_any_size(program):
        length = reduce(times, (axes.get(d, program.sizes[d]) for d in run))
        if not isinstance(length, Times) or length.at(most) > LONGEST:
            continue
        if graph.join(run, Dynamic(length.at(least), length.at(most), (length.at(most),))):
            found = {run[0]: length} | {d: n for d, n in found.items() if d not in run}
    return found


def tuned_together(
    graph: Graph, axes: Mapping[str, Times], made: Mapping[str, torch.SymInt], symbols: Mapping[str, Symbol]
) -> dict[str, int]:
    """Says which sizes of a graph's dynamic axes to tune for: where there are several, which of them together, as these
    follow from the symbols. Those of the example, if it is known and in range. axes: their lengths. made: lengths that
    are symbols of their own."""
    examples = {name: s.example for name, s in symbols.items() if s.example is not None}
    dynamic = {d: n for d, n in graph.dims.items() if isinstance(n, Dynamic)}
    if len(dynamic) == 1:
        ((d, r),) = dynamic.items()
        example = sizes_at(axes, made, examples).get(d)
        tune = tuned_for(r.min, r.max, TUNED, example)
        graph.dims = {**graph.dims, d: replace(r, tune=tune)}
        return {d: example} if example in tune else {}
    named = {s for n in axes.values() for s in n.symbols}
    free = sorted((named - {*made}) | {str(x) for n in made.values() for x in n.node.expr.free_symbols})
    wanted = TUNED if len(free) == 1 else TUNED_OF_SEVERAL
    each = [tuned_for(symbols[s].least, symbols[s].most, wanted) for s in free]
    several = [dict(zip(free, some, strict=True)) for some in product(*each)]
    found = [sizes_at(axes, made, sizes) for sizes in (*several, examples)]
    in_example = found[-1]
    inside = [x for x in found if all(d in x and r.min <= x[d] <= r.max for d, r in dynamic.items())]
    graph.instances = sorted((dict(x) for x in {tuple(x.items()) for x in inside}), key=lambda x: [*x.values()])
    if not graph.instances:
        graph.instances = [{d: r.max for d, r in dynamic.items()}]
    tuned = {d: tuple(sorted({x[d] for x in graph.instances})) for d in dynamic}
    graph.dims = {**graph.dims, **{d: replace(r, tune=tuned[d]) for d, r in dynamic.items()}}
    return in_example if in_example in inside else {}


def sizes_at(axes: Mapping[str, Times], made: Mapping[str, torch.SymInt], sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of axes, as far as these of the symbols say them."""
    every = {name: with_sizes(n, sizes) for name, n in made.items()} | {**sizes}
    known = {name: n for name, n in every.items() if isinstance(n, int)}
    return {d: n.at(known) for d, n in axes.items() if {*n.symbols} <= {*known}}


def in_range(symbols: Mapping[str, Symbol], elements: Sequence[Length | None]) -> dict[str, tuple[int, int]]:
    """The least and the largest of sizes at which kernels can count the elements of all these tensors."""
    most = {name: s.most for name, s in symbols.items()}
    while any(isinstance(n, Times) and n.at(most) >= MAX_OFFSET for n in elements):
        longest = max(most, key=most.__getitem__)
        most[longest] //= 2
    if any(most[name] < s.least for name, s in symbols.items()):
        raise Unsupported("its tensors have more elements than kernels count")
    return {name: (s.least, most[name]) for name, s in symbols.items()}


def tuned_for(least: int, most: int, some: Sequence[int], example: int | None = None) -> tuple[int, ...]:
    """Of some sizes, and that of the example, those in a range to tune for."""
    wanted = some if example is None else (*some, example)
    return tuple(sorted({n for n in wanted if least <= n <= most})) or (most,)


def told(read: Sequence[Any], symbol: str) -> tuple[int, int | None] | None:
    """Where a part is told a size: by an input, or by an axis of one."""
    for i, x in enumerate(read):
        if str(x.meta.get(SYMBOLIC, x.meta.get("val"))) == symbol:
            return i, None
        for axis, n in enumerate(shape_of(x)):
            if str(n) == symbol:
                return i, axis
    return None


def at_both(one: Shape, other: Shape, primes: Mapping[str, tuple[int, int]]) -> Shape:
    """The shape at any sizes, from that at two. Raises Unsupported."""

    def lengths(name: str) -> Lengths:
        found = [length_of(pair, primes) for pair in zip(getattr(one, name), getattr(other, name), strict=True)]
        if one.back != other.back or None in found:
            raise Unsupported("a result has a size that is no product of those that differ by call")
        return tuple(x for x in found if x is not None)

    return Shape(lengths("held"), lengths("parts"), lengths("whole"), one.back)


def result_shape(array: Array, like: torch.Tensor) -> Shape:
    """array: in the memory order of PyTorch's result."""
    own = {*array.own}
    parts = [x for dim in array.dims for axis in dim for x in axis.leaves()]
    held = tuple(x.size if x in own else 1 for x in parts)
    return Shape(held, tuple(x.size for x in parts), array.shape, (*inverse(order_of_result(like)),))
