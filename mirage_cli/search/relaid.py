"""Inputs that a first kernel copies into another memory order, or to aligned rows.

    O = dot(X[b, c, y + i, x + j], W[e, c, i, j]; c, i, j)
    -->  X_laid[b, y, x, c] = X, W_laid[c, i, j, e] = W, and the product of these

The matrix units wait for an operand in every iteration where threads can load less at once than an asynchronous copy
moves. x + j may begin at any element, along c elements lie apart, and rows of an odd number of elements begin
anywhere. What is copied has an axis last along which a block's elements lie side by side, and its rows are those of an
intermediate, which begin at multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import count

from mirage_cli.ir.mugraph import Kernel, Load, MuGraph
from mirage_cli.ir.program import DTYPE_BYTES, LINE_BYTES, WIDEST_BYTES, Builder, Program, Tensor
from mirage_cli.search.assembly import Candidate, concatenated
from mirage_cli.search.batch import Batch
from mirage_cli.search.cost import COPY_BYTES
from mirage_cli.search.generator import SearchResult
from mirage_cli.search.occupancy import Launch, one_load_bytes
from mirage_cli.search.work import chunk_sizes, lines_of, models, whole_rows
from mirage_cli.target.gpus import Target


def relaid(program: Program, result: SearchResult, target: Target) -> dict[str, tuple[str, ...]]:
    """The inputs of which products of the best plan load less at once than an asynchronous copy moves, or than a
    library is fast with, each with the memory order in which they would not. None of a tensor that is changed, or that
    names positions."""
    found: dict[str, tuple[str, ...]] = {}
    tensors = {t.name: t for t in program.inputs if t.name not in program.changed and t.below is None}
    accesses: dict[str, list[Load]] = {}
    for x in _narrow(result.candidates[0], target):
        accesses.setdefault(x.buffer, []).append(x)
    for name, loads in accesses.items():
        if (t := tensors.get(name)) is not None and (order := _wide_order(program, t, loads)) is not None:
            found[name] = order
    return found


def _wide_order(program: Program, t: Tensor, loads: Iterable[Load]) -> tuple[str, ...] | None:
    """The memory order in which threads would load more of a tensor at once; None where there is none, or it is the
    tensor's own, with rows that are aligned already."""
    sizes, element, dynamic = program.sizes, DTYPE_BYTES[t.dtype], {r.dim for r in program.dynamic}
    plain = [d for i, d in enumerate(t.dims) if d not in dynamic and all(x.access[i].axis for x in loads)]
    wide = [d for d in plain if sizes[d] * element % WIDEST_BYTES == 0]
    rows = [d for d in plain if sizes[d] * element >= LINE_BYTES]
    if t.dims[-1] in rows:
        misaligned = any(n * element % WIDEST_BYTES for n in t.steps(sizes)[:-1])
        return t.dims if misaligned else None
    last = max(wide or rows, key=lambda d: sizes[d], default=None)
    return None if last in (None, t.dims[-1]) else (*(d for d in t.dims if d != last), last)


def _narrow(c: Candidate, target: Target) -> Iterator[Load]:
    """Loads of a plan of which threads load less at once than an asynchronous copy moves, and that a product sums; and
    those of a library whose rows are not aligned."""
    tensors, sizes = c.graph.tensors(), chunk_sizes(c.graph, c.schedule)
    for k in c.graph.kernels:
        if k.kind == "library":
            element = c.graph.element_bytes
            yield from (x for x in k.loads if not whole_rows(x, c.graph.inputs, sizes, element[x.buffer]))
    for name, m in models(c.graph).items():
        launch = Launch.of(m, Batch.of(m, [c.schedule.kernels[name]], sizes), sizes, target, ())
        summed = frozenset[str]().union(*(k for _, _, k in m.kernel.products))
        for x in m.kernel.loads:
            size = c.graph.element_bytes[x.buffer]
            lines = lines_of(x, tensors[x.buffer], size)
            if summed & {*x.dims} and one_load_bytes(launch, lines) < COPY_BYTES:
                yield x


def behind_copies(
    program: Program, orders: Mapping[str, tuple[str, ...]], search: Callable[[Program], SearchResult], gap_us: float
) -> SearchResult:
    """What a search finds of a program with inputs in these memory orders and aligned rows, behind the kernels that
    copy them."""
    laid = tuple(
        _laid(t, orders[t.name]).with_aligned_rows(program.sizes, DTYPE_BYTES[t.dtype]) if t.name in orders else t
        for t in program.inputs
    )
    found = search(replace(program, inputs=laid))
    taken = {t.name for c in found.candidates for t in c.graph.tensors().values()} | {*program.sizes}
    names = {name: next(x for n in count() if (x := f"{name}_laid{n or ''}") not in taken) for name in orders}
    copies = search(_copies(program, orders, names)).candidates[0]
    return replace(found, candidates=tuple(_behind(copies, c, program, names, gap_us) for c in found.candidates))


def _laid(t: Tensor, order: tuple[str, ...]) -> Tensor:
    return replace(t, dims=order, strides=())


def _copies(program: Program, orders: Mapping[str, tuple[str, ...]], names: Mapping[str, str]) -> Program:
    """The program of the copies: each is an output in its order."""
    inputs = tuple(t for t in program.inputs if t.name in orders)
    builder = Builder(inputs, program.order)
    for t in inputs:
        builder.emit("mul", t.name, Fraction(1), out=names[t.name])
    outputs = tuple(replace(_laid(t, orders[t.name]), name=names[t.name]) for t in inputs)
    dims = {d: n for d, n in program.dims if any(d in t.dims for t in inputs)}
    dynamic = tuple(r for r in program.dynamic if r.dim in dims)
    return Program(
        program.name, tuple(dims.items()), program.dtype, inputs, tuple(builder.eqns), outputs, dynamic=dynamic
    )


def _behind(copies: Candidate, c: Candidate, program: Program, names: Mapping[str, str], gap_us: float) -> Candidate:
    """One plan behind the copies that it reads."""

    def reading(k: Kernel) -> Kernel:
        return replace(k, loads=tuple(replace(x, buffer=names.get(x.buffer, x.buffer)) for x in k.loads))

    graph: MuGraph = replace(c.graph, inputs=program.inputs, kernels=tuple(map(reading, c.graph.kernels)))
    return concatenated(copies, replace(c, graph=graph), graph, copies.graph.outputs, gap_us)
