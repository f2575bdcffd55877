"""Inputs that a first kernel copies into another memory order, to aligned rows, or rounded to a smaller type; and what
tables name of them, where it would be looked up again and again.

    O = dot(X[b, c, y + i, x + j], W[e, c, i, j]; c, i, j)
    -->  X_laid[b, y, x, c] = X, W_laid[c, i, j, e] = W, and the product of these

The matrix units wait for an operand in every iteration where threads load it in pieces of less than 16 bytes. Elements
that are loaded one by one, as of odd rows of float32, go to shared memory in an order in which all threads wait for one
bank. x + j may begin at any element, along c elements lie apart, and rows of an odd number of elements begin anywhere.
What is copied has an axis last along which a block's elements lie side by side, and its rows
are those of an intermediate, which begin at multiples of 16 bytes.

    O = dot(A[k, m], B[k, n], k), of float32  -->  A_laid[m, k] = A, and the product of it and B

Warpgroups take their second operand of TF32 along the sum, so one of the two lies so.

    O = dot(bfloat16(X), bfloat16(W), k), of float32  -->  X_laid = bfloat16(X), W_laid = bfloat16(W)

Rounded in each block, what products take passes through registers every time that it is read.

    S[b, h, q, k] = A + W[T[q, k], h]  -->  W_laid[h, q, k] = W[T[q, k], h], and S = A + W_laid

Looked up for each score, a bias takes as many single loads as there are scores. Of one batch there are fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod

from mirage_cli.ir.access import dims_of, lookups_of
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import (
    DTYPE_BYTES,
    HALVES,
    LINE_BYTES,
    WIDEST_BYTES,
    Builder,
    Eqn,
    Program,
    Tensor,
    cast_of,
    tensor_type,
)
from mirage_cli.search.assembly import ScheduledGraph, concatenated
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.occupancy import Launch, one_load_bytes
from mirage_cli.search.cost.traffic import lines_of, whole_rows
from mirage_cli.search.cost.work import chunk_sizes, models
from mirage_cli.search.expand import fresh_name
from mirage_cli.search.generator import SearchResult
from mirage_cli.target.gpus import Target


def relaid(program: Program, result: SearchResult, target: Target) -> dict[str, Tensor]:
    """Copies of inputs from which products of the best plan are fed faster: where they load less at once than an
    instruction may, or than a library is fast with, in a memory order in which they do not; and where the program reads
    an input rounded to a smaller type alone, in this type. None of a tensor that is changed, that names positions, or
    that is a mask. By the name of an equation, what tables name of such an input, where it is looked up again."""
    found: dict[str, Tensor] = {}
    copied = (t for t in program.inputs if t.below is None and tensor_type(t) != "bool")
    tensors = {t.name: t for t in copied if t.name not in program.changed}
    best = result.candidates[0]
    accesses: dict[str, list[Load]] = {}
    for k, x in _narrow(best, target):
        if _summed(k) & {*x.dims}:
            accesses.setdefault(x.buffer, []).append(x)
    for name, loads in accesses.items():
        if (t := tensors.get(name)) is not None and (order := _wide_order(program, t, loads)) is not None:
            found[name] = _laid(t, order)
    for x, order in _across_the_sum(best):
        if (t := tensors.get(x.buffer)) is not None:
            found[t.name] = _laid(t, order)
    summed = {x.buffer for k in best.graph.kernels for x in k.loads if _summed(k) & {*x.dims}}
    for name, dtype in _cast_alone(program).items():
        if name in summed & tensors.keys():
            found[name] = replace(found.get(name, _laid(tensors[name], tensors[name].dims)), dtype=dtype)
    named = {x.buffer for _, x in _narrow(best, target) if lookups_of(x.access)}
    for e in _looked_up_again(program):
        if (t := tensors.get(e.values[0])) is not None and t.name in named:
            inner = [d for x in lookups_of(e.names.values()) for d in dims_of(x.access)]
            found[e.out] = Tensor(e.out, tuple(sorted(e.dims, key=lambda d: d in inner and inner.index(d))), t.dtype)
    return found


def _looked_up_again(program: Program) -> Iterator[Eqn]:
    """What tables name of an input, where all that is made of it has more axes: in a kernel for that, each element is
    looked up at every position along these."""
    inputs, eqns = {t.name for t in program.inputs}, program.eqns
    kept = {*(t.name for t in program.outputs), *(p.value for p in program.parts)}
    for e in eqns:
        if lookups_of(e.names.values()) and {*e.values} <= inputs and e.out not in kept:
            readers = [r for r in eqns if e.out in r.values]
            if all(OPS[r.op].kind == "elementwise" and {*e.dims} < {*r.dims} for r in readers):
                yield e


def _cast_alone(program: Program) -> dict[str, str]:
    """The inputs that the program reads as they are rounded to one type of 16 bits alone, and this type."""
    behind = {t.name: t.name for t in program.inputs if t.dtype == "float32"}
    read: dict[str, set[str]] = {name: set() for name in behind}
    for e in program.eqns:
        for v in e.values:
            if v in behind and e.op == "rename":
                behind[e.out] = behind[v]
            elif v in behind:
                read[behind[v]].add(cast_of(e))
    for v in (p.value for p in program.parts):
        if v in behind:
            read[behind[v]].add("")
    for t in program.outputs:
        if t.name in behind:
            read[behind[t.name]].add("")
    return {name: next(iter(types)) for name, types in read.items() if len(types) == 1 and types <= HALVES}


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


def _across_the_sum(c: ScheduledGraph) -> Iterator[tuple[Load, tuple[str, ...]]]:
    """Of each product of two float32 tensors of which neither lies along the sum: the load of the smaller one, and the
    order in which it would."""
    tensors, sizes = c.graph.tensors(), chunk_sizes(c.graph, c.schedule)
    for k in c.graph.kernels:
        loads = {x.out: x for x in k.loads if c.graph.element_bytes[x.buffer] == DTYPE_BYTES["float32"]}
        for e in (e for e in k.body if e.op == "dot"):
            pair = [loads[v] for v in e.values if v in loads]
            lines = [lines_of(x, tensors[x.buffer], DTYPE_BYTES["float32"]) for x in pair]
            if len(pair) < 2 or any(y is None or {a for a, _ in y.aligned(sizes)} & {*e.axes} for y in lines):
                continue
            x = min(pair, key=lambda x: prod(sizes[d] for d in tensors[x.buffer].dims))
            own = [d for d, i in zip(tensors[x.buffer].dims, x.access, strict=True) if i.axis in e.axes]
            if own and sizes[own[-1]] * DTYPE_BYTES["float32"] >= LINE_BYTES:
                yield x, (*(d for d in tensors[x.buffer].dims if d != own[-1]), own[-1])


def _narrow(c: ScheduledGraph, target: Target) -> Iterator[tuple[Kernel, Load]]:
    """Loads of a plan of which threads load less at once than an instruction may; and those of a library whose rows are
    not aligned."""
    tensors, sizes = c.graph.tensors(), chunk_sizes(c.graph, c.schedule)
    for k in c.graph.kernels:
        if k.kind == "library":
            element = c.graph.element_bytes
            yield from ((k, x) for x in k.loads if not whole_rows(x, c.graph.inputs, sizes, element[x.buffer]))
    for name, m in models(c.graph).items():
        launch = Launch.of(m, Batch.of(m, [c.schedule.kernels[name]], sizes), sizes, target, ())
        for x in m.kernel.loads:
            size = c.graph.element_bytes[x.buffer]
            lines = lines_of(x, tensors[x.buffer], size)
            if one_load_bytes(launch, lines) < WIDEST_BYTES:
                yield m.kernel, x


def _summed(k: Kernel) -> frozenset[str]:
    """The axes that products of a kernel sum."""
    return frozenset[str]().union(*(summed for _, _, summed in k.products))


def behind_copies(
    program: Program,
    laid: Mapping[str, Tensor],
    best_us: float,
    search: Callable[[Program], SearchResult],
    gap_us: float,
) -> SearchResult | None:
    """What a search finds of a program with these inputs, and with what is looked up, in aligned rows, behind the
    kernels that copy them; None where copying them takes as long as the best plan without."""
    aligned = {name: t.with_aligned_rows(program.sizes, DTYPE_BYTES[t.dtype]) for name, t in laid.items()}
    taken = {*program.sizes, *program.values(), *(t.name for t in program.results)}
    names = {name: fresh_name(f"{name}_laid", taken) for name in laid}
    copies = search(_copies(program, laid, names)).candidates[0]
    if copies.predicted_us >= best_us:
        return None
    new = [t for name, t in aligned.items() if name not in {x.name for x in program.inputs}]
    inputs = (*(aligned.get(t.name, t) for t in program.inputs), *new)
    found = search(replace(program, inputs=inputs, eqns=tuple(e for e in program.eqns if e.out not in aligned)))
    return replace(found, candidates=tuple(_behind(copies, c, program, names, gap_us) for c in found.candidates))


def _laid(t: Tensor, order: tuple[str, ...]) -> Tensor:
    return replace(t, dims=order, strides=())


def _copies(program: Program, laid: Mapping[str, Tensor], names: Mapping[str, str]) -> Program:
    """The program of the copies: each is an output in its order, of its type."""
    eqns = [e for e in program.eqns if e.out in laid]
    read = {*laid, *(v for e in eqns for v in e.values)}
    inputs = tuple(t for t in program.inputs if t.name in read)
    builder = Builder(inputs, program.order)
    for t in (t for t in inputs if t.name in laid):
        builder.emit("mul", t.name, Fraction(1), out=names[t.name])
    for e in eqns:
        builder.append(replace(e, out=names[e.out]))
    outputs = tuple(replace(t, name=names[name]) for name, t in laid.items())
    axes = {d for t in (*inputs, *outputs) for d in t.dims}
    dims = {d: n for d, n in program.dims if d in axes}
    dynamic = tuple(r for r in program.dynamic if r.dim in dims)
    return Program(
        program.name, tuple(dims.items()), program.dtype, inputs, tuple(builder.eqns), outputs, dynamic=dynamic
    )


def _behind(
    copies: ScheduledGraph, c: ScheduledGraph, program: Program, names: Mapping[str, str], gap_us: float
) -> ScheduledGraph:
    """One plan behind the copies that it reads."""

    def reading(k: Kernel) -> Kernel:
        return replace(k, loads=tuple(replace(x, buffer=names.get(x.buffer, x.buffer)) for x in k.loads))

    graph: MuGraph = replace(c.graph, inputs=program.inputs, kernels=tuple(map(reading, c.graph.kernels)))
    return concatenated(copies, replace(c, graph=graph), graph, copies.graph.outputs, gap_us)
