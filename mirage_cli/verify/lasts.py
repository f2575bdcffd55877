"""Last positions: what is read at the last position of an axis is read at the last one of the reduced axis.

`C[63]` of a running sum along 64 positions is `C[4]` along five, and a comparison of positions with index(63) is one
with index(4). So it is where every number along the axis is that of the last position, or 0, in the program and in the
μGraph: who reads one position before is told from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from mirage_cli.ir.access import Index, index, renames
from mirage_cli.ir.access_text import substitution_text
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program

Indexed = TypeVar("Indexed", Program, MuGraph)


def is_last(d: str, i: Index, sizes: Mapping[str, int]) -> bool:
    """Whether an index is the number of the axis's last position."""
    return not i.terms and i.offset > 0 and i.offset == sizes.get(d, 0) - 1


def with_lasts(x: Indexed, old: Mapping[str, int]) -> Indexed:
    """A program or a μGraph at smaller sizes than these old ones, with the last positions of its own axes."""
    new = x.sizes

    def put(d: str, i: Index) -> Index:
        return index({}, new[d] - 1) if is_last(d, i, old) and i.offset >= new[d] else i

    if isinstance(x, Program):
        return replace(x, eqns=_with_reads(x.eqns, put))
    tensors = x.tensors()

    def read(k: Kernel) -> Kernel:
        loads = (zip(tensors[v.buffer].dims, v.access, strict=True) for v in k.loads)
        accesses = (tuple(put(d, i) for d, i in pairs) for pairs in loads)
        moved = (replace(v, access=access) for v, access in zip(k.loads, accesses, strict=True))
        return replace(k, loads=tuple(moved), body=_with_reads(k.body, put))

    return replace(x, kernels=tuple(map(read, x.kernels)))


def read_at_last(program: Program, graph: MuGraph, same: Callable[[str], str]) -> set[str]:
    """The axes, by the name that `same` has for all of one size, along which that is the only number: nothing is
    written by an index, no table names positions, and they are no part of a merged axis."""
    sizes = graph.sizes | program.sizes
    read = {*_reads(program), *_reads(graph)}
    found = {same(d) for d, i in read if is_last(d, i, sizes)}
    if not found:
        return found
    others = {*program.accesses(), *graph.accesses()} - read
    others |= {(d, i) for d, i in read if not is_last(d, i, sizes) and i != index({}, 0)}
    kept = {d for d, i in others if not (i.axis is not None and (d == i.axis or renames(d, i, sizes)))}
    kept |= {d for x in graph.merged for d in (x[0], *x[1])} | {r.dim for r in graph.dynamic}
    kept |= {t.below for t in program.inputs if isinstance(t.below, str)}
    kept |= {d for t in program.inputs if t.name in _tables(program, graph) for d in t.dims}
    for eqns in (program.eqns, *(k.body for k in graph.kernels)):
        kept |= {d for d, n in sizes.items() if n in _numbers(eqns)}
    return found - {same(d) for d in kept}


def _tables(program: Program, graph: MuGraph) -> set[str]:
    return {x.table for x in (*program.lookups(), *(x for k in graph.kernels for x in k.lookups))}


def _reads(x: Program | MuGraph) -> Iterator[tuple[str, Index]]:
    """Axes, and what they are read at or compared with: not what tables are read at behind that."""
    if isinstance(x, Program):
        yield from _read_by(x.eqns)
        return
    tensors = x.tensors()
    for k in x.kernels:
        for v in k.loads:
            yield from zip(tensors[v.buffer].dims, v.access, strict=True)
        yield from _read_by(k.body)


def _read_by(eqns: Sequence[Eqn]) -> Iterator[tuple[str, Index]]:
    beside = _compared_with(eqns)
    for e in eqns:
        yield from e.names.items()
        if e.place and e.out in beside:
            yield beside[e.out], e.place


def _with_reads(eqns: Sequence[Eqn], put: Callable[[str, Index], Index]) -> tuple[Eqn, ...]:
    beside = _compared_with(eqns)

    def moved(e: Eqn) -> Eqn:
        if e.place:
            return replace(e, axes=(str(put(beside[e.out], e.place)),)) if e.out in beside else e
        return replace(e, axes=substitution_text({d: put(d, i) for d, i in e.names.items()})) if e.names else e

    return tuple(map(moved, eqns))


def _compared_with(eqns: Iterable[Eqn]) -> dict[str, str]:
    """Single positions that are only compared with positions along one axis, and this axis."""
    places = {e.out: e.place for e in eqns if e.place}
    single = {v for v, i in places.items() if not i.terms}
    found: dict[str, set[str]] = {v: set() for v in single}
    for e in eqns:
        for v in single.intersection(e.values):
            axes = {i.axis or "" for w in e.values if w != v and (i := places.get(w))}
            found[v] |= axes if len(axes) == 1 and OPS[e.op].compares else {""}
    return {v: min(axes) for v, axes in found.items() if len(axes) == 1 and "" not in axes}


def _numbers(eqns: Sequence[Eqn]) -> set[int]:
    """How long an axis is of which the last position may be meant by a number that is compared, or by a single position
    that is used otherwise."""
    beside = _compared_with(eqns)
    found = {e.place.offset + 1 for e in eqns if e.place and not e.place.terms and e.out not in beside}
    near = {int(a) for e in eqns if OPS[e.op].compares for a in e.args if isinstance(a, Fraction) and a}
    return found | {n + more for n in near for more in (0, 1)}
