"""Limits of tables: `below: 65536`, where no axis has that size, is the size of an axis of its own in tests.

So it is reduced as sizes of axes are, and the axes along which such a table names positions are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mirage_cli.ir.access import Atom, Index, Lookup, atom_index
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program, Tensor


def with_limits_as_axes(program: Program, graph: MuGraph) -> tuple[Program, MuGraph]:
    """Both, with an axis for the number that the integers of each table are less than."""
    looked_up = {x.table for x in (*program.lookups(), *(x for k in graph.kernels for x in k.lookups))}
    taken = {*program.sizes, *graph.sizes}
    named: dict[str, str] = {}
    dims: list[tuple[str, int]] = []
    for t in program.inputs:
        if t.name in looked_up and isinstance(t.below, int):
            named[t.name] = next(
                n for n in (f"{t.name}_limit" + "_" * i for i in range(len(taken) + 1)) if n not in taken
            )
            dims.append((named[t.name], t.below))
    if not named:
        return program, graph

    def limited(a: Atom) -> Index | None:
        """What is looked up, with the name of its limit."""
        if not isinstance(a, Lookup):
            return None
        return atom_index(replace(a, access=tuple(map(put, a.access)), below=named.get(a.table, a.below)))

    def put(i: Index) -> Index:
        return i.with_atoms(limited)

    p, g = program.with_indices(put), graph.with_indices(put)
    parts = tuple(replace(x, tensor=_named(x.tensor, named)) for x in p.parts)
    return (
        replace(p, dims=(*p.dims, *dims), inputs=_tables(p.inputs, named), parts=parts),
        replace(g, dims=(*g.dims, *dims), inputs=_tables(g.inputs, named)),
    )


def _tables(inputs: Iterable[Tensor], named: Mapping[str, str]) -> tuple[Tensor, ...]:
    return tuple(_named(t, named) for t in inputs)


def _named(t: Tensor, named: Mapping[str, str]) -> Tensor:
    return replace(t, below=named.get(t.name, t.below))
