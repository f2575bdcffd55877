"""Whether a μGraph can be a plan for a program: its interface, its buffers, what its kernels read and store."""

from __future__ import annotations

from collections import Counter

from mirage_cli.ir.access import FARTHEST, dims_of, is_whole, nested, of_positions, outside_tables, renames
from mirage_cli.ir.footprint import is_injective
from mirage_cli.ir.inplace import too_late
from mirage_cli.ir.merge import between_parts
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store
from mirage_cli.ir.op import Type
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import InexpressibleError, place
from mirage_cli.ir.program import (
    Eqn,
    Program,
    Tensor,
    equation,
    tensor_type,
    unmerged,
)


def structure_problem(program: Program, graph: MuGraph) -> str | None:
    """Why this μGraph cannot be a plan for the program, whatever it computes; None if it can."""
    try:
        _check_interface(program, graph)
        _check_buffers(program, graph)
        for k in graph.kernels:
            _check_kernel(k, graph)
        _check_changed(graph)
        _check_dynamic(program, graph)
    except _ProblemError as problem:
        return str(problem)
    return None


class _ProblemError(Exception):
    pass


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise _ProblemError(problem)


def _check_interface(program: Program, graph: MuGraph) -> None:
    parts = [p for _, parts in graph.merged for p in parts]
    made_up = {name for name, _ in graph.merged}
    _require(len({*parts}) == len(parts) and {*parts} <= {*program.order}, "an axis is merged twice, or not there")
    _require(not made_up & {*program.order}, "a merged axis is called like one of the program")
    inputs = {(t.name, t.dims, t.dtype, t.below, t.padded, t.distinct, t.own_strides) for t in program.inputs}
    for t in graph.inputs:
        own = (s for d, s in zip(t.dims, t.own_strides, strict=True) for s in _of_parts(d, s, graph))
        as_given = t.name, unmerged(t.dims, graph.merged), t.dtype, t.below, t.padded, t.distinct, tuple(own)
        _require(as_given in inputs, f"input {t} is not one of the program")
    want = [(t.name, t.dims, t.dtype) for t in program.results]
    got = [(t.name, unmerged(t.dims, graph.merged), t.dtype) for t in graph.outputs]
    _require(sorted(want) == sorted(got), "the outputs are not the program's")
    for d, n in program.dims:
        _require(graph.sizes.get(d, n) == n, f"{d} has another size than in the program")
    names = [t.name for t in (*graph.inputs, *graph.outputs, *graph.buffers)]
    _require(len(set(names)) == len(names), "two tensors have one name")
    _require(len({k.name for k in graph.kernels}) == len(graph.kernels), "two kernels have one name")


def _of_parts(d: str, stride: int | None, graph: MuGraph) -> tuple[int | None, ...]:
    """The strides of the axes that are merged in one: neighbours along the others are what those behind them take."""
    return (*[None] * (len(unmerged((d,), graph.merged)) - 1), stride)


def _check_dynamic(program: Program, graph: MuGraph) -> None:
    """Sizes that are arguments are those of the program. No block holds such an axis whole, and indices are the axis
    itself."""
    _require({*graph.dynamic} == {*program.dynamic}, "the dynamic axes are not the program's")
    dynamic, tensors = {r.dim for r in graph.dynamic}, graph.tensors()
    for k in graph.kernels:
        for d in sorted(dynamic & {*k.with_role("tile")}):
            raise _ProblemError(f"{k.name} holds the dynamic axis {d} whole")
        for e in k.body:
            _require(e.op != "rename" or not dynamic & e.acts_on, f"{k.name}: {e} reads elsewhere along a dynamic axis")
        for x in (*k.loads, *k.stores):
            pairs = zip(tensors[x.buffer].dims, x.access, strict=True)
            for a, i in nested(pairs, {name: t.dims for name, t in tensors.items()}):
                own = i.axis == a or not dynamic & {a, *outside_tables(i)}
                does = f"reads {x.buffer}" if isinstance(x, Load) else "stores"
                _require(own, f"{k.name} {does} along the dynamic axis {a} by {i}")


def _check_buffers(program: Program, graph: MuGraph) -> None:
    """Every buffer is written once before it is read, and every output as often as it has parts, or in pieces."""
    tensors = graph.tensors()
    given = {t.name for t in graph.inputs}
    writes = Counter(s.buffer for k in graph.kernels for s in k.stores)
    parts = Counter(p.tensor.name for p in program.parts)
    parts |= {t.name: writes[t.name] for t in graph.outputs if t.name not in parts and in_pieces(graph, t)}
    for name in (*(t.name for t in (*graph.outputs, *graph.buffers)), *program.changed):
        times = parts.get(name, 1)
        _require(writes[name] > 0, f"nothing writes {name}")
        _require(writes[name] >= times, f"only {writes[name]} of the {times} parts of {name} are written")
        _require(writes[name] == times, f"{name} is written {writes[name]} times")
    for x in (x for k in graph.kernels for x in k.loads if x.buffer in parts):
        _require(x.buffer in program.changed, f"{x.buffer} is written in parts, and read")
    for k in graph.kernels:
        for b in k.read:
            _require(b in tensors, f"{k.name} loads {b}, which does not exist")
            _require(b in given, f"{k.name} loads {b} before it is stored")
        _check_lookups(k, graph)
        for s in k.stores:
            _require(s.buffer in tensors, f"{k.name} stores {s.buffer}, which does not exist")
            overwritten = s.buffer in {t.name for t in graph.inputs} - program.changed
            _require(not overwritten, f"{k.name} overwrites the input {s.buffer}")
        given |= {s.buffer for s in k.stores}


def in_pieces(graph: MuGraph, t: Tensor) -> bool:
    """Whether several stores write a tensor along one of its axes: each some positions in a row, or one, one behind the
    other, and together all."""
    stores = [s for k in graph.kernels for s in k.stores if s.buffer == t.name]
    sizes = graph.sizes
    if len(stores) < 2 or not all({*s.dims} <= sizes.keys() for s in stores):
        return False
    cut = {d for s in stores for d, i in zip(t.dims, s.access, strict=True) if not renames(d, i, sizes)}
    along = [s.access[t.dims.index(d)] for s in stores for d in cut]
    if len(cut) != 1 or not all(i.affine and [c for _, c in i.terms] in ([], [1]) for i in along):
        return False
    ends = [0]
    for first, last in sorted(i.bounds(sizes) for i in along):
        ends += [last + 1] if first == ends[-1] else [-1]
    return ends[-1] == sizes[cut.pop()]


def _check_changed(graph: MuGraph) -> None:
    """What is read of tensors that are changed in place is read before it is overwritten."""
    for k, x, _ in too_late(graph.kernels, graph.changed, graph.sizes, graph.distinct):
        raise _ProblemError(f"{k.name} reads {x.buffer} where it may have been overwritten")


def _check_kernel(k: Kernel, graph: MuGraph) -> None:
    tensors = graph.tensors()
    known: dict[str, Tensor | Eqn] = {}
    _require(len({d for d, _ in k.roles}) == len(k.roles), f"{k.name} gives an axis two roles")
    _require(len(k.with_role("split")) <= 1, f"{k.name} splits two axes")
    chunk = k.chunk if k.split else None
    _require(chunk not in graph.sizes, f"{k.name} counts its chunks by the axis {chunk}")
    for x in k.loads:
        _check_axes(k, x, graph, None)
        _require(x.out not in known, f"{k.name} defines {x.out} twice")
        known[x.out] = Tensor(x.out, x.dims, tensors[x.buffer].dtype)
    order = tuple(d for d, _ in k.roles) or tuple(graph.sizes)
    for e in k.body:
        _require(e.out not in known, f"{k.name} defines {e.out} twice")
        _require(all(a in known for a in e.values), f"{k.name} uses {e.values} before they are known")
        _require(e.op in OPS, f"{k.name} has no operator {e.op}")
        try:
            again = equation(e.out, e.op, e.args, e.axes, known, order)
        except (ValueError, KeyError) as error:
            raise _ProblemError(f"{k.name}: {error}") from error
        _require((again.dims, again.type) == (e.dims, e.type), f"{k.name}: {e} should have the axes {again.dims}")
        _require(len(set(e.dims)) == len(e.dims), f"{k.name}: {e} has an axis twice")
        types = [_type(known[a]) if isinstance(a, str) else "float" for a in e.args]
        _require(all(types[i] == "bool" for i in OPS[e.op].masks), f"{k.name}: {e} needs a mask")
        known[e.out] = e
    placed = {a for e in k.body for a in e.acts_on if OPS[e.op].kind == "leaf"}
    used = {d for x in known.values() for d in x.dims} | placed
    if k.kind == "generated":
        roles = {d for d, _ in k.roles}
        leaves = {a for e in k.body if e.op == "size" for a in e.axes}
        _require(used - leaves <= roles, f"{k.name} gives no role to {', '.join(sorted(used - leaves - roles))}")
    for s in k.stores:
        _check_axes(k, s, graph, chunk)
        _require(s.value in known, f"{k.name} stores {s.value}, which it does not compute")
        value = known[s.value]
        repeated = set(s.dims) - set(value.dims) - {chunk}
        fits = set(value.dims) - {chunk} <= set(s.dims) and repeated <= set(k.with_role("grid", "tile"))
        _require(fits, f"{k.name} stores {s.value}[{', '.join(value.dims)}] as [{', '.join(s.dims)}]")
        kind, held = _type(value), tensor_type(tensors[s.buffer])
        _require(held in (kind, "float"), f"{k.name} stores {kind} in {tensors[s.buffer]}")
    if k.kind == "generated":
        try:
            place(k)
        except InexpressibleError as error:
            raise _ProblemError(f"{k.name} has no placement: {error.reason}") from error


def _check_lookups(k: Kernel, graph: MuGraph) -> None:
    """Tables are inputs of integers. Beyond their end they hold 0, as all tensors do."""
    inputs, sizes = {t.name: t for t in graph.inputs}, graph.sizes
    merging = {d for name, parts in graph.merged for d in (name, *parts)}
    for a in k.lookups:
        _require(a.table not in graph.changed, f"{k.name} looks up {a.table}, which is changed")
        t = inputs.get(a.table)
        known_table = t is not None and tensor_type(t) == "int" and (t.below, t.padded) == (a.below, a.padded)
        _require(known_table, f"{k.name} looks up {a}, which is no table of such integers")
        dims = t.dims if t is not None else ()
        _require(len(dims) == len(a.access), f"{k.name} gives {a.table} {len(a.access)} axes, not {len(dims)}")
        known = {*dims, *dims_of(a.access), *([a.below] if isinstance(a.below, str) else [])}
        _require(known <= {*sizes} and not known & merging, f"{k.name} looks up {a}")
        near = all(max(-low, high) <= FARTHEST for low, high in (i.bounds(sizes) for i in a.access))
        _require(near, f"{k.name} reads {a.table} far beyond its end")


def _check_axes(k: Kernel, x: Load | Store, graph: MuGraph, chunk: str | None) -> None:
    axes, access, does = graph.tensors()[x.buffer].dims, x.access, "reads" if isinstance(x, Load) else "stores"
    merging = {d for name, parts in graph.merged for d in (name, *parts)}
    _require(len(axes) == len(access), f"{k.name} gives {x.buffer} {len(access)} axes, not {len(axes)}")
    for a, i in zip(axes, access, strict=True):
        b = i.axis
        if b is None or ({a, b} <= {*graph.sizes} and graph.sizes[a] != graph.sizes[b]):
            known = not {*i.dims, a} & merging or (a, i) in between_parts(graph.merged, graph.sizes)
            _require({*i.dims, a} <= {*graph.sizes} and known, f"{k.name} {does} {a} by {i}")
            low, high = (i if isinstance(x, Load) else of_positions(i)).bounds(graph.sizes)
            near = max(-low, high) <= FARTHEST if isinstance(x, Load) else low >= 0 and high < graph.sizes[a]
            _require(near, f"{k.name} {does} {x.buffer} along {a} from {low} to {high}")
            continue
        sizes = graph.sizes.get(a), graph.sizes.get(b)
        fits = sizes[0] == sizes[1] if None not in sizes else sizes == (None, None) and a == b
        fits = fits and (a == b or not {a, b} <= merging)
        _require(fits, f"{k.name} takes the axis {a} of {x.buffer} for {b}")
        _require(b in graph.sizes or b == chunk or isinstance(x, Load), f"{k.name} stores along {b}")
    if isinstance(x, Store):
        known = graph.sizes | dict.fromkeys({*x.dims} - {*graph.sizes}, 1)
        _require(is_injective(access, known, graph.distinct), f"{k.name} stores elements of {x.buffer} twice")
    whole = is_whole(access, axes, graph.sizes)
    _require(whole or k.kind == "generated", f"{k.name} {does} {x.buffer} by indices, which no library does")


def _type(value: Tensor | Eqn) -> Type:
    return value.type if isinstance(value, Eqn) else tensor_type(value)
