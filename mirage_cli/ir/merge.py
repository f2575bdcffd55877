"""Axes that are one: they occur only together, and side by side in one order wherever they lie in memory.

    sum(X[b, c, y, x]; c, y, x)  -->  sum(X[b, cyx]; cyx)        cyx = c*y*x

Where neighbours along the outer axis are as far apart as what the inner one takes, which only a stride of its own can
prevent, the merged program addresses the same memory. Its `dims` keep the parts beside the merged axes: whoever makes
or checks tensors has the sizes of both, and whoever changes sizes changes those of the parts.

A long run over which something is summed in parts stays in two:

    layer_norm(X[b, c, y, x]; c, y, x)  -->  layer_norm(X[b, cy, x]; cy, x)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod

from mirage_cli.ir.access import dims_of
from mirage_cli.ir.derived import DERIVED, derived_equation
from mirage_cli.ir.mugraph import split_axis
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Builder, Merged, Program, Tensor

LONGEST = 1 << 30
"""Elements of a merged axis, at most: kernels count positions along an axis in 32 bits, to the end of its last tile."""


ROW, PART = 1 << 16, 1 << 12
"""Elements that a block can hold, and of the inner part of a longer run, at most."""


def merge_axes(program: Program, in_parts: Collection[frozenset[str]] = ()) -> Program:
    """The program with every run of axes that are one as one axis. It may hold derived operators.

    in_parts: axes over which Σs are best made of those over their inner axes.
    """
    taken = {*program.order, *program.values(), *map(split_axis, program.order)}
    merged: list[tuple[str, tuple[str, ...]]] = []
    dynamic = {r.dim for r in program.dynamic}
    for parts in (p for run in _runs(program, dynamic) for p in _halves(run, program.sizes, in_parts) if len(p) > 1):
        name = ("" if all(len(p) == 1 for p in parts) else "_").join(parts)
        while name in taken or split_axis(name) in taken:
            name += "_"
        taken |= {name, split_axis(name)}
        merged.append((name, parts))
    return merged_by(program, tuple(merged))


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
    for e in program.eqns:
        axes = e.axes
        if e.op in ("index", "rename"):
            if pinned := [a for a in e.acts_on if a in axis_of]:
                raise ValueError(f"{e.op} of {pinned[0]}, which is merged into {axis_of[pinned[0]]}")
        elif e.op != "size":
            axes = _together(axes, parts_of, str(e))
        _together(e.dims, parts_of, str(e))
        if e.op in DERIVED:
            b.append(derived_equation(e.out, e.op, e.args, axes, b))
        else:
            b.emit(e.op, *e.args, axes=axes, out=e.out)
    return replace(program, dims=tuple(dims), inputs=inputs, outputs=outputs, eqns=tuple(b.eqns), merged=merged)


def _merged_tensor(t: Tensor, parts_of: Mapping[str, tuple[str, ...]]) -> Tensor:
    dims = _together(t.dims, parts_of, str(t))
    if tuple(p for d in dims for p in parts_of.get(d, (d,))) != t.dims:
        raise ValueError(f"{t} has the parts of an axis apart or in another order")
    own = dict(zip(t.dims, t.own_strides, strict=True))
    gaps = [p for d in dims for p in parts_of.get(d, (d,))[:-1] if own[p] is not None]
    if gaps:
        raise ValueError(f"{t} has a gap between the positions of {gaps[0]}, which is merged")
    strides = tuple(own[parts_of.get(d, (d,))[-1]] for d in dims)
    return replace(t, dims=dims, strides=strides if t.strides else ())


def _together(axes: tuple[str, ...], parts_of: Mapping[str, tuple[str, ...]], where: str) -> tuple[str, ...]:
    """These axes with each merged one in the place of its first part. Raises ValueError where a part is missing."""
    for name, parts in parts_of.items():
        here = [a for a in axes if a in parts]
        if here and set(here) != set(parts):
            raise ValueError(f"{where} has {', '.join(here)} alone of the parts of {name}")
        axes = tuple(name if a == next(iter(here), None) else a for a in axes if a not in here[1:])
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
