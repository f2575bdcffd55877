"""What a judgement has to know of a program, as plain data: how long its sums are, where its outputs lie, and the axes
along which it may be judged in pieces. The classes that these are the fields of need torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any  # nested tuples

from mirage_cli.ir.access import Atom, Index, Lookup, Quotient, may_name_nothing, strides
from mirage_cli.ir.derived import lower
from mirage_cli.ir.inplace import reread
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.named import by_names
from mirage_cli.ir.rewrites.shared import shared
from mirage_cli.ir.scans import by_scans
from mirage_cli.verify.rows import row_axis


@lru_cache(maxsize=16)
def longest_sum(program: Program) -> int:
    """The most terms that one sum or contraction of the program adds up; 1 where there is none."""
    sizes = program.sizes
    terms = [math.prod(sizes[d] for d in e.axes) for e in lower(program).eqns if e.op in ("dot", "sum")]
    return max(terms, default=1)


LiesFields = tuple[int, tuple[int, ...], tuple[int, ...], int, tuple[Any, ...], tuple[Any, ...], bool]
"""The fields of a `lies.Lies`, which needs torch."""


def where_outputs_lie(program: Program) -> tuple[LiesFields, ...] | None:
    """Where a call leaves each output; None where every output is a tensor that it returns."""
    if not program.parts:
        return None
    sizes, results = program.sizes, {t.name: i for i, t in enumerate(program.results)}
    numbers = {t.name: -1 - i for i, t in enumerate(program.inputs)} | results
    found: list[LiesFields] = []
    read = reread(program)
    for t, whole, access in program.places():
        steps, start = strides(access, whole.steps(sizes))
        shape = tuple(sizes[d] for d in t.dims)
        tables = {x.name: i for i, x in enumerate(program.inputs)}
        moved = tuple((n, _atom_fields(a, t.dims, tables)) for a, n in steps.items() if not isinstance(a, str))
        named = tuple(_total_fields(i, t.dims, tables) for i in may_name_nothing(access))
        apart = tuple(steps.get(d, 0) for d in t.dims)
        found.append((numbers[whole.name], shape, apart, start, moved, named, t.name in read))
    return tuple(found)


def _total_fields(i: Index, dims: tuple[str, ...], tables: Mapping[str, int]) -> Any:
    """An index as `lies.Total` has it."""
    return i.offset, tuple((c, _atom_fields(a, dims, tables)) for a, c in i.terms)


def _atom_fields(a: Atom, dims: tuple[str, ...], tables: Mapping[str, int]) -> Any:
    """An atom as `lies.Atom` has it."""
    match a:
        case str():
            return dims.index(a)
        case Lookup():
            return "at", tables[a.table], tuple(_total_fields(i, dims, tables) for i in a.access)
        case _:
            return "//" if isinstance(a, Quotient) else "%", _total_fields(a.of, dims, tables), a.by


CutFields = tuple[tuple[int | None, ...], tuple[int, ...], int, int]
"""The fields of a `pieces.Cut`, which needs torch."""
FINE_BYTES = 1 << 28
"""A position of an axis that takes more is no small piece."""
SHARED_BYTES = 1 << 30
"""Nor is one that comes with more that lacks the axis: every piece is computed from all of that."""


def independent_axis(program: Program) -> CutFields | None:
    """The axis to cut a judgement along; None where no axis is independent."""
    if (found := _cut_along(program)) is None:
        return None
    axis, position_bytes = found
    inputs = tuple(t.dims.index(axis) if axis in t.dims else None for t in program.inputs)
    return inputs, tuple(t.dims.index(axis) for t in program.outputs), program.sizes[axis], position_bytes


def _cut_along(program: Program) -> tuple[str, int] | None:
    """An axis of every output, and what one position takes: no equation mixes its positions, names them or counts them.
    Of several, one whose positions are small, that cuts no row, and without which the least is computed."""
    lowered = by_names(by_scans(lower(shared(program))))
    sizes = lowered.sizes
    mixed = {d for e in lowered.eqns for d in e.acts_on}
    elements = [(v.dims, 8 * math.prod(sizes[d] for d in v.dims)) for v in lowered.values().values()]
    ranked: list[tuple[tuple[bool, bool, int, int], str]] = []
    for axis in program.order:
        if axis in mixed or not _in_all_outputs(program, axis):
            continue
        at = [n // max(1, sizes[axis]) for dims, n in elements if axis in dims]
        position_bytes = sum(at) + 8 * max(at)  # what rounds the largest value holds several of its size
        beside = sum(n for dims, n in elements if axis not in dims)
        cuts_rows = any(t.dims.index(axis) >= row_axis([sizes[d] for d in t.dims]) for t in program.outputs)
        coarse = position_bytes > FINE_BYTES or beside > SHARED_BYTES
        ranked.append(((coarse, cuts_rows, beside, position_bytes), axis))
    if not ranked:
        return None
    (*_, position_bytes), axis = min(ranked)
    return axis, position_bytes


def _in_all_outputs(program: Program, axis: str) -> bool:
    return bool(program.outputs) and all(axis in t.dims for t in program.outputs)


BlockFields = tuple[str, tuple[int, ...], int, int]
"""The fields of a `pieces.Block`, which needs torch."""
BLOCK_BYTES = 1 << 30
"""About what the float64 values of one block take."""


def blocks_of(program: Program) -> tuple[BlockFields, ...]:
    """The axes to evaluate a piece along in blocks, where one position of the axis that pieces are cut along takes more
    than a block does. No equation mixes their positions, but masks may name them, and reads of inputs, which are held
    whole. First those without which the least is computed."""
    lowered, cut = by_names(by_scans(lower(shared(program)))), _cut_along(program)
    given = {t.name for t in program.inputs}
    mixing = (e for e in lowered.eqns if e.op != "index" and not (e.op == "rename" and e.args[0] in given))
    mixed = {d for e in mixing for d in e.acts_on} | ({cut[0]} if cut else set())
    held = lowered.sizes | ({cut[0]: 1} if cut else {})
    values = [e.dims for e in lowered.eqns]

    def bytes_with(axis: str) -> int:
        return sum(8 * math.prod(held[d] for d in dims) for dims in values if axis in dims)

    found: list[BlockFields] = []
    some = [d for d in program.order if d not in mixed and _in_all_outputs(program, d)]
    for axis in sorted(some, key=bytes_with, reverse=True):
        step = max(1, BLOCK_BYTES * held[axis] // max(1, bytes_with(axis)))
        if step < held[axis]:
            held[axis] = step
            found.append((axis, tuple(t.dims.index(axis) for t in program.outputs), program.sizes[axis], step))
    return tuple(found)
