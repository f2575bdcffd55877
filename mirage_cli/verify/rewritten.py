"""Programs and μGraphs with other accesses, for tests at reduced sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from mirage_cli.ir.access import Access, access_text
from mirage_cli.ir.access_text import substitution_text
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Eqn, Program

Rewrite = Callable[[Access], Access]


def program_with(program: Program, put: Rewrite) -> Program:
    """The program with other accesses."""
    parts = tuple(replace(p, access=put(p.access)) for p in program.parts)
    return replace(program, eqns=tuple(_eqns(program.eqns, put)), parts=parts)


def mugraph_with(graph: MuGraph, put: Rewrite) -> MuGraph:
    """The μGraph with other accesses."""
    kernels = tuple(
        replace(
            k,
            loads=tuple(replace(x, access=put(x.access)) for x in k.loads),
            body=tuple(_eqns(k.body, put)),
            stores=tuple(replace(x, access=put(x.access)) for x in k.stores),
        )
        for k in graph.kernels
    )
    return replace(graph, kernels=kernels)


def _eqns(eqns: Iterable[Eqn], put: Rewrite) -> Iterator[Eqn]:
    for e in eqns:
        if e.place:
            yield replace(e, axes=(access_text(put((e.place,))),))
        elif e.op == "rename":
            access = put(tuple(e.names.values()))
            yield replace(e, axes=substitution_text(dict(zip(e.names, access, strict=True))))
        else:
            yield e
