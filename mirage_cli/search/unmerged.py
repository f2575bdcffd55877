"""Kernels that only merge partial results, and whose readers may merge them instead.

    k0: store A_part[k_split, m]                         k0: store A_part[k_split, m]
    k1: A[m] = sum(A_part; k_split), store A        -->  k1: A[m] = sum(A_part; k_split), Y[m, n] = X * A, store Y
    k2: Y[m, n] = X * A, store Y

Each program instance of the reader then reads the chunks of what it needs, which takes less than a launch where they
are few.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import replace

from mirage_cli.ir.access import Index
from mirage_cli.ir.mugraph import Kernel, Load, Role
from mirage_cli.ir.program import Eqn, live_eqns
from mirage_cli.ir.schedule import Schedule
from mirage_cli.search.assembly import ScheduledGraph, with_kernels_of
from mirage_cli.search.expand import fresh_name
from mirage_cli.search.twice import summed_twice
from mirage_cli.target.gpus import Target


def without_merges(c: ScheduledGraph, target: Target, named: Container[str]) -> ScheduledGraph:
    """The plan without kernels that merge, as far as it is predicted to be faster so. named: as of `summed_twice`."""
    for merge in c.graph.kernels:
        other = _without(c, merge, target)
        if other is not None and other.predicted_us < c.predicted_us and not summed_twice(other.graph, named):
            c = other
    return _numbered(c)


def _numbered(c: ScheduledGraph) -> ScheduledGraph:
    """With kernels named in order."""
    names = {k.name: f"k{i}" for i, k in enumerate(c.graph.kernels)}
    graph = replace(c.graph, kernels=tuple(replace(k, name=names[k.name]) for k in c.graph.kernels))
    return replace(c, graph=graph, schedule=Schedule({names[n]: s for n, s in c.schedule.kernels.items()}))


def _without(c: ScheduledGraph, merge: Kernel, target: Target) -> ScheduledGraph | None:
    """The plan without this kernel; None where it does more than merge, or what reads it cannot merge."""
    g = c.graph
    merge = next(k for k in g.kernels if k.name == merge.name)
    made = {s.buffer for s in merge.stores}
    chunks = {a for x in merge.loads for a in x.dims} - g.sizes.keys()
    readers = [k for k in g.kernels if made & {*k.read}]
    if (
        not chunks
        or merge.split
        or not made <= {t.name for t in g.buffers}
        or any(k.kind == "library" for k in readers)
    ):
        return None
    kernels: dict[str, Kernel] = {}
    for k in readers:
        reading = _merging(k, merge, made, chunks)
        if reading is None:
            return None
        kernels[k.name] = reading
    graph = replace(
        g,
        buffers=tuple(t for t in g.buffers if t.name not in made),
        kernels=tuple(kernels.get(k.name, k) for k in g.kernels if k is not merge),
    )
    return with_kernels_of(c, graph, target, "without merges")


def _merging(k: Kernel, merge: Kernel, made: Collection[str], chunks: set[str]) -> Kernel | None:
    """A kernel that merges what it reads of these buffers; None where it reads other places than those that `merge`
    writes, or these take more than partial results: a maximum of all positions, say, of which it has a part."""
    stores = {s.buffer: s for s in merge.stores}
    own = [x for x in k.loads if x.buffer not in made]
    parted = {*k.with_role("grid"), *k.with_role("split")}  # of which an instance has a part
    taken = {*k.value_dims} - {x.out for x in k.loads if x.buffer in made}
    loads, body = list[Load](), list[Eqn]()
    values: dict[str, str] = {}  # of the kernel, by those that it loads
    names: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}  # of merged values, for each place that is read
    for x in k.loads:
        if x.buffer not in made:
            continue
        s = stores[x.buffer]
        axes = {a.axis: b.axis for a, b in zip(s.access, x.access, strict=True) if a.axis and b.axis}
        eqns = [*live_eqns(merge.body, (s.value,))]
        needed = merge.needed_loads(eqns, (s,))
        used = {a for e in eqns if e.op != "size" for a in (*e.dims, *e.acts_on)} | {a for y in needed for a in y.dims}
        moved = any(old != new for old, new in axes.items()) and any(e.place or e.names for e in eqns)
        along = {axes.get(a, a) for e in eqns if e.op != "size" for a in e.acts_on}
        if len({*axes.values()}) < len(s.access) or not used <= {*chunks, *axes} or moved or along & parted:
            return None
        known = names.setdefault((*axes.items(),), {})
        for v in (*needed, *eqns):
            if v.out not in known:
                known[v.out] = fresh_name(v.out, taken)
                taken.add(known[v.out])
                if isinstance(v, Load):
                    loads.append(_load_at(v, known, axes))
                else:
                    body.append(_eqn_at(v, known, axes))
        values[x.out] = known[s.value]
    roles: tuple[tuple[str, Role], ...] = (*((a, "tile") for a in sorted(chunks - {a for a, _ in k.roles})), *k.roles)
    place = {a: i for i, (a, _) in enumerate(roles)}
    merged = (replace(e, dims=tuple(sorted(e.dims, key=place.__getitem__))) for e in body)
    rest = (e.renamed(values) for e in k.body)
    stored = tuple(replace(s, value=values.get(s.value, s.value)) for s in k.stores)
    return replace(k, roles=roles, loads=(*loads, *own), body=(*merged, *rest), stores=stored)


def _load_at(x: Load, names: Mapping[str, str], axes: Mapping[str, str]) -> Load:
    indices = {old: Index(((new, 1),)) for old, new in axes.items()}
    return replace(x, out=names[x.out], access=tuple(i.within(indices) for i in x.access))


def _eqn_at(e: Eqn, names: Mapping[str, str], axes: Mapping[str, str]) -> Eqn:
    def other(some: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axes.get(a, a) for a in some)

    along = e.axes if e.op == "size" else other(e.axes)
    return replace(e.renamed(names), axes=along, dims=other(e.dims))
