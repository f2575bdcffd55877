"""Axes that are one: they occur only together, and side by side in one order wherever they lie in memory.

    sum(X[b, c, y, x]; c, y, x)  -->  sum(X[b, cyx]; cyx)        cyx = c*y*x

Where neighbours along the outer axis are as far apart as what the inner one takes, which only a stride of its own can
prevent, the merged program addresses the same memory. Its `dims` keep the parts beside the merged axes: whoever makes
or checks tensors has the sizes of both, and whoever changes sizes changes those of the parts.

A long run over which something is summed in parts stays in two:

    layer_norm(X[b, c, y, x]; c, y, x)  -->  layer_norm(X[b, cy, x]; cy, x)

Axes that products sum side by side are one too, though statistics are of one of them alone (`beside_in_products`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, count, pairwise
from math import prod

from mirage_cli.ir.access import Index, dims_of, index, quotient, remainder
from mirage_cli.ir.access_text import substitution_text
from mirage_cli.ir.derived import DERIVED, derived_equation
from mirage_cli.ir.mugraph import MuGraph, split_axis
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Builder, Eqn, Merged, Program, Tensor, live_eqns

LONGEST = 1 << 30
"""Elements of a merged axis, at most: kernels count positions along an axis in 32 bits, to the end of its last tile."""


ROW, PART = 1 << 16, 1 << 12
"""Elements that a block can hold, and of the inner part of a longer run, at most."""


def merge_axes(program: Program, in_parts: Collection[frozenset[str]] = ()) -> Program:
    """The program with every run of axes that are one as one axis. It may hold derived operators.

    in_parts: axes over which Σs are best made of those over their inner axes.
    """
    merged: list[tuple[str, tuple[str, ...]]] = []
    dynamic = {r.dim for r in program.dynamic}
    for parts in (p for run in _runs(program, dynamic) for p in _halves(run, program.sizes, in_parts) if len(p) > 1):
        merged.append((_name(parts, program, merged), parts))
    return merged_by(program, tuple(merged))


def beside_in_products(program: Program) -> Program | None:
    """A lowered program with axes merged that products sum side by side, though others may have one of them alone;
    None where there are none. A block has powers of two along its axes: of ten channels in each of 32 groups it holds
    16, of the 320 that they are as many as it has room for.

        v[b, g] = sum(X[b, g, k, y]; k, y),    O = dot(X / v, W[g, k, n]; g, k)
            -->  v[b, g] = sum(X[b, 10*g + k, y]; k, y),    O = dot(X / v[b, c//10], W[c, n]; c)        c = g*k
    """
    products, values = [e for e in program.eqns if OPS[e.op].kind == "contraction"], program.values()
    held = [{*values[v].dims} for e in products for v in e.values]
    fixed = {d for name, parts in program.merged for d in (name, *parts)} | {r.dim for r in program.dynamic}
    fixed |= {a for e in program.eqns if e.op in ("index", "rename") for a in e.acts_on}
    fixed |= _looked_up(program) | _stored_along(program)
    tensors, sizes = (*program.inputs, *program.outputs), program.sizes
    chosen: list[tuple[str, tuple[str, ...]]] = []
    for t in tensors:
        for a, b in pairwise(t.dims):
            both, taken = {a, b}, fixed | {p for _, parts in chosen for p in parts}
            fills_blocks = sizes[b] & (sizes[b] - 1) == 0
            if fills_blocks or sizes[a] * sizes[b] > LONGEST or both & taken:
                continue
            summed = any(both <= {*e.axes} for e in products) and not any(len(both & dims) == 1 for dims in held)
            if summed and all(_one_behind_the_other(x, a, b) for x in tensors if both <= {*x.dims}):
                chosen.append((_name((a, b), program, chosen), (a, b)))
    if not chosen:
        return None
    try:
        found = merged_by(program, tuple(chosen))
    except ValueError:
        return None
    return replace(found, merged=(*program.merged, *chosen))


def _one_behind_the_other(t: Tensor, a: str, b: str) -> bool:
    """Whether an axis of a tensor is the next in memory behind another, without a gap."""
    i = t.dims.index(a)
    return t.dims[i + 1 : i + 2] == (b,) and t.own_strides[i] is None


def merged_by(program: Program, merged: Merged) -> Program:
    """The program with these axes merged. Raises ValueError where they are not one axis."""
    if not merged:
        return program
    axis_of = {p: name for name, parts in merged for p in parts}
    parts_of = dict(merged)
    dims: list[tuple[str, int]] = []
    sizes = program.sizes
    for d, n in program.dims:
        dims.append((d, n))
        if d in axis_of and d == parts_of[axis_of[d]][-1]:
            dims.append((axis_of[d], prod(sizes[p] for p in parts_of[axis_of[d]])))
    inputs, outputs = (tuple(_merged_tensor(t, parts_of) for t in ts) for ts in (program.inputs, program.outputs))
    if pinned := [a for a in _stored_along(program) if a in axis_of]:
        raise ValueError(f"a part of an output along {pinned[0]}, which is merged into {axis_of[pinned[0]]}")
    b = Builder(inputs, (d for d, _ in dims))
    if looked_up := sorted(_looked_up(program) & {*axis_of}):
        raise ValueError(f"{looked_up[0]} is of a table, and merged into {axis_of[looked_up[0]]}")
    made = _Merging(program, parts_of, b)
    for e in program.eqns:
        made.of(e.out, frozenset())
    for t in outputs:
        if t.dims and {*t.dims} != {*b.known[t.name].dims}:
            raise ValueError(f"{t} is made along the parts of an axis")
    eqns = tuple(live_eqns(b.eqns, (t.name for t in outputs)))
    internals = (program.internals | made.internals) & {e.out for e in eqns}
    return replace(
        program, dims=tuple(dims), inputs=inputs, outputs=outputs, eqns=eqns, merged=merged, internals=internals
    )


class _Merging:
    """The values of a program with these axes merged, in a builder. Where an equation reduces over some of the parts of
    an axis alone, what it is made of is made along the parts, up to what is no longer elementwise, or is read so.

    internals: names of those that are made twice or read, and are internal. seen: reads of values, and of those made
    along parts.
    """

    def __init__(self, program: Program, parts_of: Mapping[str, tuple[str, ...]], b: Builder) -> None:
        self.values, self.parts_of, self.b, self.sizes = program.values(), parts_of, b, program.sizes
        self.program, self.internals = program, set[str]()
        self.taken = {*self.values, *self.sizes, *parts_of}
        self.seen: dict[tuple[str, Collection[str] | str], str] = {}

    def of(self, value: str, apart: frozenset[str]) -> str:
        """A value along merged axes, but along the parts of those in `apart`."""
        x = self.values[value]
        apart = frozenset(name for name in apart if {*self.parts_of[name]} <= {*x.dims})
        if (value, apart) in self.seen:
            return self.seen[value, apart]
        computed = isinstance(x, Eqn) and OPS.get(x.op) is not None and OPS[x.op].kind == "elementwise"
        if isinstance(x, Eqn) and (computed or not apart):
            made = self.computed(x, apart)
        else:
            made = self.along(value if isinstance(x, Tensor) else self.of(value, frozenset()), {*x.dims}, apart)
        self.seen[value, apart] = made
        return made

    def computed(self, e: Eqn, apart: frozenset[str]) -> str:
        self.refuse(e)
        space, axes = {*e.dims, *e.axes} if e.op != "rename" else {*e.dims}, e.axes
        for name, parts in self.parts_of.items():
            if e.op == "size" or not {*parts} & {*axes}:
                continue
            if {*parts} <= {*axes}:
                axes = _together(axes, {name: parts})
            else:
                apart |= {name}
        args = tuple(self.along(self.of(a, apart), space, apart) if isinstance(a, str) else a for a in e.args)
        out = e.out
        if apart and OPS.get(e.op) is not None and OPS[e.op].kind == "elementwise":
            out = self.fresh(f"{e.out}_parts")
            self.internals |= {out} if e.out in self.program.internals else set()
        if e.op in DERIVED:
            return self.b.append(derived_equation(out, e.op, args, axes, self.b))
        return self.b.emit(e.op, *args, axes=axes, out=out)

    def refuse(self, e: Eqn) -> None:
        """Raises ValueError for an equation that names positions along a part of a merged axis."""
        if e.op in ("index", "rename"):
            for name, parts in self.parts_of.items():
                if pinned := [a for a in parts if a in e.acts_on]:
                    raise ValueError(f"{e.op} of {pinned[0]}, which is merged into {name}")

    def along(self, value: str, space: Collection[str], apart: Collection[str]) -> str:
        """A value of the builder, read along each merged axis whose parts are all in a space, or along its parts."""
        names: dict[str, Index] = {}
        for name, parts in self.parts_of.items():
            dims = self.b.known[value].dims
            if name in apart and name in dims:
                names[name] = _whole(parts, self.sizes)
            elif name not in apart and {*parts} <= {*space}:
                names |= {p: i for p, i in _of_parts(name, parts, self.sizes) if p in dims}
        if not names:
            return value
        text = substitution_text(names)
        key = value, " ".join(text)
        if key not in self.seen:
            self.seen[key] = read = self.b.emit("rename", value, axes=text, out=self.fresh(f"{value}_read"))
            self.internals |= {read} if value in self.program.internals | self.internals else set()
        return self.seen[key]

    def fresh(self, wanted: str) -> str:
        name = next(x for i in count() if (x := f"{wanted}{i or ''}") not in self.taken)
        self.taken.add(name)
        return name


def _whole(parts: tuple[str, ...], sizes: Mapping[str, int]) -> Index:
    """The position along a merged axis, by those along its parts."""
    return index({p: prod(sizes[q] for q in parts[i + 1 :]) for i, p in enumerate(parts)})


def _of_parts(name: str, parts: tuple[str, ...], sizes: Mapping[str, int]) -> Iterator[tuple[str, Index]]:
    """The positions along the parts of a merged axis, by that along the axis."""
    for i, p in enumerate(parts):
        inner = quotient(index({name: 1}), prod(sizes[q] for q in parts[i + 1 :]))
        yield p, inner if i == 0 else remainder(inner, sizes[p])


def between_parts(merged: Merged, sizes: Mapping[str, int]) -> set[tuple[str, Index]]:
    """Axes, and indices that are positions along them: of a part, by the merged axis; of a merged axis, by its parts,
    any of which may be by the merged axis itself."""
    return {x for name, parts in merged for x in _between(name, parts, sizes)}


def _between(name: str, parts: tuple[str, ...], sizes: Mapping[str, int]) -> Iterator[tuple[str, Index]]:
    of_parts = dict(_of_parts(name, parts, sizes))
    yield from of_parts.items()
    for some in (c for n in range(len(parts)) for c in combinations(parts, n)):
        yield name, _whole(parts, sizes).within({p: of_parts[p] for p in some})


def parts_at(merged: Merged, old: Mapping[str, int], new: Mapping[str, int]) -> dict[Index, Index]:
    """What such indices are at other sizes: they have the sizes of parts as numbers. c // 160 of parts g = 2 and
    d = 160 is c // 5 where d is 5."""
    pairs = (zip(_between(*x, old), _between(*x, new), strict=True) for x in merged)
    return {i: j for both in pairs for (_, i), (_, j) in both if i.axis is None}


def read_in_parts(graph: MuGraph) -> set[str]:
    """The parts, but the first, of merged axes between which and the whole something is read, and whose sizes are
    numbers in other indices too, which `parts_at` does not know."""
    sizes = graph.sizes
    known = between_parts(graph.merged, sizes)
    read = {*graph.accesses()}
    own = {i for _, i in known if i.axis is None}
    placed = {(e.place.axis or "", e.place) for e in graph.eqns if e.place}
    others = [(d, i) for d, i in read | placed if i not in own and not _counts_alone(i)]
    between = {a for d, i in read & known for a in (d, *i.dims)}
    beside = {a for d, i in others for a in (d, *i.dims)} | {p for p, n in sizes.items() if n == 1}
    return {p for name, parts in graph.merged if name in between and beside & {name, *parts} for p in parts[1:]}


def _counts_alone(i: Index) -> bool:
    """Whether an index has no number but its offset."""
    return i.affine and all(abs(c) == 1 for _, c in i.terms)


def _name(parts: tuple[str, ...], program: Program, merged: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """Of a merged axis beside others: no other axis, value or axis of chunks is called so."""
    axes = (*program.order, *(name for name, _ in merged))
    taken = {*axes, *program.values(), *map(split_axis, axes)}
    name = ("" if all(len(p) == 1 for p in parts) else "_").join(parts)
    while name in taken or split_axis(name) in taken:
        name += "_"
    return name


def _merged_tensor(t: Tensor, parts_of: Mapping[str, tuple[str, ...]]) -> Tensor:
    dims = _together(t.dims, parts_of)
    if tuple(p for d in dims for p in parts_of.get(d, (d,))) != t.dims:
        raise ValueError(f"{t} has the parts of an axis apart or in another order")
    own = dict(zip(t.dims, t.own_strides, strict=True))
    gaps = [p for d in dims for p in parts_of.get(d, (d,))[:-1] if own[p] is not None]
    if gaps:
        raise ValueError(f"{t} has a gap between the positions of {gaps[0]}, which is merged")
    strides = tuple(own[parts_of.get(d, (d,))[-1]] for d in dims)
    return replace(t, dims=dims, strides=strides if t.strides else ())


def _together(axes: tuple[str, ...], parts_of: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """These axes with each merged one of which all parts are there in the place of its first part."""
    for name, parts in parts_of.items():
        if {*parts} <= {*axes}:
            first = next(a for a in axes if a in parts)
            axes = tuple(name if a == first else a for a in axes if a == first or a not in parts)
    return axes


def runs_of_any_size(program: Program) -> list[tuple[str, ...]]:
    """The runs of axes that are one of which the sizes of some differ by call. Behind the last of these, axes of one
    size are left out where one of them is innermost: how many elements lie side by side is known then."""
    dynamic = {r.dim for r in program.dynamic}
    innermost = {t.dims[-1] for t in (*program.inputs, *program.outputs) if t.dims}

    def outer(run: tuple[str, ...]) -> tuple[str, ...]:
        last = max((i for i, d in enumerate(run) if d in dynamic), default=-1)
        return run[: last + 1] if run[-1] in innermost else run

    return [run for run in map(outer, _runs(program, ())) if len(run) > 1 and dynamic & {*run}]


def _runs(program: Program, alone: Collection[str]) -> list[tuple[str, ...]]:
    """The longest runs of axes that are one, of two or more. alone: axes that are in none."""
    tensors = (*program.inputs, *program.outputs)
    pinned = {a for e in program.eqns if e.op in ("index", "rename") for a in e.acts_on}
    pinned |= _looked_up(program) | _stored_along(program) | {*alone}
    groups: list[Collection[str]] = [t.dims for t in tensors]
    for e in program.eqns:
        groups += [e.dims, () if e.op in OPS and OPS[e.op].kind == "leaf" else e.axes]
    places = {d: [i for i, g in enumerate(groups) if d in g] for d in program.order}
    behind: dict[str, set[str | None]] = {d: set() for d in program.order}
    for t in tensors:
        for (a, b), stride in zip(pairwise((*t.dims, None)), t.own_strides, strict=True):
            if a is not None:
                behind[a].add(b if stride is None else None)
    follower: dict[str, str] = {}
    for a, found in behind.items():
        b = next(iter(found), None)
        if len(found) == 1 and b is not None and places[a] == places[b] and not {a, b} & pinned:
            follower[a] = b
    runs: list[tuple[str, ...]] = []
    for a in program.order:
        if a not in follower.values():
            runs += _of_length(a, follower, program.sizes)
    return [r for r in runs if len(r) > 1]


def _halves(
    run: tuple[str, ...], sizes: Mapping[str, int], in_parts: Collection[frozenset[str]]
) -> Iterator[tuple[str, ...]]:
    """The run, or its outer and its inner axes where it is to be in parts and longer than a block can hold."""
    inner = 0
    if prod(sizes[a] for a in run) > ROW and any({*run} <= axes for axes in in_parts):
        inner = max(n for n in range(len(run)) if prod(sizes[a] for a in run[len(run) - n :]) <= PART)
    yield run[: len(run) - inner]
    yield run[len(run) - inner :]


def _looked_up(program: Program) -> set[str]:
    """The axes of tables, and those that they name positions of."""
    dims = {t.name: t.dims for t in program.inputs}
    return {d for x in program.lookups() for d in (*dims[x.table], *([x.below] if isinstance(x.below, str) else []))}


def _stored_along(program: Program) -> set[str]:
    """The axes of tensors that have parts, and of the parts."""
    return {a for p in program.parts for a in (*p.tensor.dims, *dims_of(p.access))}


def _of_length(a: str, follower: Mapping[str, str], sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """The chain of followers from an axis on, cut where a merged axis would be longer than LONGEST."""
    runs: list[tuple[str, ...]] = [(a,)]
    while a in follower:
        a = follower[a]
        if prod(sizes[p] for p in (*runs[-1], a)) <= LONGEST:
            runs[-1] += (a,)
        else:
            runs.append((a,))
    return runs
