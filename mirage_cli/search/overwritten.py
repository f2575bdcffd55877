"""Inputs that are changed in place, and that a plan would read too late: a last kernel changes them instead, or an
instance holds whole what others would overwrite.

k0: N[b, k] = .. S ..; store S[b, k] = N          k0: store S_new[b, k] = N
k1: O[b] = .. S ..                           -->  k1: O[b] = .. S ..
                                                  k2: store S[b, k] = S_new

k0: m:grid r:grid h:tile                          k0: m:grid r:tile h:tile
    store X[m, 2*r] = X * Σ_h X[m, h]        -->      ..
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

from mirage_cli.ir.access import dims_of, plain
from mirage_cli.ir.inplace import reread, shared, too_late
from mirage_cli.ir.mugraph import Kernel, MuGraph, Store
from mirage_cli.ir.program import Builder, Part, Program, Tensor, tables_of, tensor_type
from mirage_cli.search.assembly import ScheduledGraph, concatenated, with_kernels_of
from mirage_cli.search.expand import fresh_name
from mirage_cli.search.generator import SearchResult
from mirage_cli.target.gpus import Target


def read_in_time(
    program: Program, result: SearchResult, search: Callable[[Program], SearchResult], target: Target
) -> SearchResult:
    """What a search has found, every plan in a form that reads inputs before it overwrites them."""
    if not reread(program):
        return result
    known: dict[tuple[Part, ...], ScheduledGraph] = {}

    def in_time(c: ScheduledGraph) -> ScheduledGraph:
        g = c.graph
        late = {(x.store.buffer, x.store.access) for x in too_late(g.kernels, g.changed, g.sizes, g.distinct)}
        parts = tuple(p for p in program.parts if (p.tensor.name, p.access) in late)
        if not parts:
            return c
        names = _names(parts, {*g.tensors(), *program.sizes, *program.values()})
        if parts not in known:
            known[parts] = search(_copies(program, names)).candidates[0]
        behind = _in_front(c, known[parts], names, target.costs.gap_us)
        whole = _held_whole(c, target)
        return behind if whole is None or whole.predicted_us > behind.predicted_us else whole

    found = sorted(map(in_time, result.candidates), key=lambda c: (c.predicted_us, c.id))
    return replace(result, candidates=tuple(found), as_written=in_time(result.as_written))


def _held_whole(c: ScheduledGraph, target: Target) -> ScheduledGraph | None:
    """The plan whose instances hold whole the axes along which others would overwrite what they read; None where that
    does not help, or blocks are too large for it."""
    g = c.graph
    kernels = {k.name: k for k in g.kernels}
    for late in too_late(g.kernels, g.changed, g.sizes, g.distinct):
        k = kernels[late.kernel.name]
        axes = shared(late.kernel, late.load, late.store, g.sizes, g.distinct)
        if not axes or not {*axes} <= {*late.kernel.with_role("grid")}:
            return None
        kernels[k.name] = replace(k, roles=tuple((d, "tile" if d in axes else r) for d, r in k.roles))
    graph = replace(g, kernels=tuple(kernels.values()))
    if any(too_late(graph.kernels, g.changed, g.sizes, g.distinct)):
        return None
    return with_kernels_of(c, graph, target, "held whole")


def _names(parts: tuple[Part, ...], taken: set[str]) -> dict[Part, str]:
    """A name for what is to be written to each part."""
    names: dict[Part, str] = {}
    for p in parts:
        names[p] = fresh_name(f"{p.tensor.name}_new", taken)
        taken.add(names[p])
    return names


def _made(p: Part, name: str) -> Tensor:
    return Tensor(name, dims_of(p.access), p.tensor.dtype)


def _copies(program: Program, names: Mapping[Part, str]) -> Program:
    """The program that copies it there."""
    made = {p: _made(p, name) for p, name in names.items()}
    needed = {t for p in made for t in (p.tensor.name, *tables_of(p.access))}
    inputs = (*made.values(), *(t for t in program.inputs if t.name in needed))
    builder = Builder(inputs, program.order)
    for p, t in made.items():
        op, same = ("and", t.name) if tensor_type(t) == "bool" else ("mul", Fraction(1))
        builder.emit(op, t.name, same, out=p.value)
    outputs = tuple(replace(t, name=p.value) for p, t in made.items())
    eqns, parts = tuple(builder.eqns), tuple(names)
    return Program(program.name, program.dims, program.dtype, inputs, eqns, outputs, parts=parts, merged=program.merged)


def _in_front(c: ScheduledGraph, copies: ScheduledGraph, names: Mapping[Part, str], gap_us: float) -> ScheduledGraph:
    """A plan in front of the copies."""
    lies = {(p.tensor.name, p.access): _made(p, name) for p, name in names.items()}

    def elsewhere(s: Store) -> Store:
        t = lies.get((s.buffer, s.access))
        return s if t is None else replace(s, buffer=t.name, access=plain(t.dims))

    first: tuple[Kernel, ...] = tuple(replace(k, stores=tuple(map(elsewhere, k.stores))) for k in c.graph.kernels)
    graph: MuGraph = replace(c.graph, kernels=first)
    return concatenated(replace(c, graph=graph), copies, graph, lies.values(), gap_us)
