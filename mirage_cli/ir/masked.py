"""What any implementation of a program must move, and what it must multiply: what masks leave of its products.

Where a mask is a comparison that is linear in positions (causal, a window), the places of the program fall into regions
in each of which every such comparison is true throughout, or false. What is known of values there follows operator by
operator, as it does for the loops of kernels (`ir.reach`), and what is needed follows backwards from the outputs.
The integers of a table that is drawn skewed (lengths, say) are known but for their order, so comparisons with one such
table are among these. Any other comparison of data may come out either way: it is taken to be the way that leaves less.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.access import Access, read_by, renames
from mirage_cli.ir.drawn import skewed
from mirage_cli.ir.footprint import elements_read
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES, Arg, Eqn, Program, Tensor, below, tensor_type
from mirage_cli.ir.reach import Linear, known_value, linear

MOST_LINES = 1 << 20
"""So many lines of places are looked at; where there are more, as many that are drawn."""

MOST_CONDITIONS = 8
"""Comparisons of which each may hold anywhere that another does make 256 regions."""

Truth = tuple[tuple[str, bool], ...]
"""Which of some comparisons hold, by the names of their results."""


@dataclass(frozen=True, slots=True)
class Region:
    """Places at which the same comparisons hold. share: of all places of the program."""

    truth: Truth
    share: float

    def seen(self, axes: frozenset[str], conditions: Mapping[str, Condition]) -> Truth:
        """What a value with these axes alone can tell of it."""
        return tuple((name, holds) for name, holds in self.truth if conditions[name].axes <= axes)


@dataclass(frozen=True)  # without slots, for what is cached
class Condition:
    """A comparison: `difference` of the operands, a sum of positions and of known integers, beside 0.

    known: of the values among its leaves, the axes and the integers.
    """

    op: str
    difference: Linear
    known: Mapping[str, tuple[tuple[str, ...], NDArray[np.int64]]]

    @cached_property
    def axes(self) -> frozenset[str]:
        return self.positions | self.of_values

    @cached_property
    def positions(self) -> frozenset[str]:
        return frozenset(name for (kind, name), _ in self.difference.terms if kind == "index")

    @cached_property
    def of_values(self) -> frozenset[str]:
        """The axes of the values among its leaves."""
        return frozenset(d for (kind, name), _ in self.difference.terms if kind == "value" for d in self.known[name][0])

    def at(self, places: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
        """The difference at these positions; axes without one do not count."""
        total = np.full(1, self.difference.constant, np.int64)
        for (kind, name), c in self.difference.terms:
            if kind == "value":
                dims, integers = self.known[name]
                total = total + c * integers[tuple(places[d] for d in dims)]
            elif name in places:
                total = total + c * places[name]
        return total


class Moved(NamedTuple):
    """Bytes that are read from memory, and that are written."""

    read: int
    written: int


def program_bytes(program: Program) -> Moved:
    """Bytes that any implementation of a lowered program moves: what is read of each input, and each output, once."""
    sizes = program.sizes
    conditions = dict(_conditions(program))
    by_data = any(OPS[e.op].known == "mask" and e.out not in conditions for e in program.eqns)
    distinct = () if by_data else program.distinct  # lengths may leave some out
    ends = [*_unknown_ends(program, conditions)]
    regions = _regions(conditions, sizes)
    needed = [_parts_needed(program, conditions, regions, dict.fromkeys(ends, x)) for x in (False, True)]

    def read(t: Tensor, parts: Mapping[str, float]) -> Iterator[tuple[Access, float]]:
        for e in program.eqns:
            if t.name in e.values[:1] or (t.name in e.values and e.op != "rename"):
                yield read_by(t.dims, e.names), parts.get(e.out if e.op == "rename" else t.name, 0.0)
        yield from ((x.access, 1.0) for x in program.lookups() if x.table == t.name)

    inputs = min(
        sum(elements_read(t.dims, read(t, parts), sizes, distinct) * DTYPE_BYTES[t.dtype] for t in program.inputs)
        for parts in needed
    )
    return Moved(round(inputs), sum(prod(sizes[a] for a in t.dims) * DTYPE_BYTES[t.dtype] for t in program.outputs))


def _of_positions(a: Arg, eqns: Mapping[str, Eqn], integers: Container[str]) -> Linear | None:
    """An argument as a sum of positions and of some integers."""
    return linear(a, eqns, lambda leaf: leaf[0] == "index" or (leaf[0] == "value" and leaf[1] in integers))


def _unknown_ends(program: Program, conditions: Mapping[str, Condition]) -> Iterator[str]:
    """Comparisons at which a loop may end, but where is not known: a position is less than a length, say."""
    eqns = {e.out: e for e in program.eqns}
    integers = {t.name for t in program.inputs if tensor_type(t) == "int"}
    for e in program.eqns:
        if OPS[e.op].order is not None and e.out not in conditions:
            sides = [_of_positions(a, eqns, integers) for a in e.args]
            leaves = {leaf for x in sides if x is not None for leaf, _ in x.terms}
            if None not in sides and {kind for kind, _ in leaves} == {"index", "value"}:
                yield e.out


def _parts_needed(
    program: Program, conditions: Mapping[str, Condition], regions: list[Region], assumed: Mapping[str, bool]
) -> dict[str, float]:
    """The part of each value that is needed where comparisons of positions, and with known integers, say so.

    assumed: how some others come out.
    """
    single = frozenset(d for d, n in program.sizes.items() if n == 1)
    dims = {name: single.union(v.dims) for name, v in program.values().items()}
    needed, _ = _needed(program, conditions, regions, None, assumed)
    parts = {
        name: sum(r.share for r in regions if r.seen(dims[name], conditions) in places)
        for name, places in needed.items()
    }
    compared = (v for e in program.eqns if OPS[e.op].known == "mask" for v in e.values)
    return parts | dict.fromkeys(compared, 1.0)


def product_flops(program: Program) -> float:
    """Operations of the lowered program's products, without those that masks make useless."""
    conditions = dict(_conditions(program))
    regions = _regions(conditions, program.sizes)
    return min(_needed(program, conditions, regions, other)[1] for other in (False, True))


def _needed(
    program: Program,
    conditions: Mapping[str, Condition],
    regions: list[Region],
    other: bool | None,
    assumed: Mapping[str, bool] = MappingProxyType({}),
) -> tuple[dict[str, set[Truth]], float]:
    """Where each value is needed, and the operations of products there.

    assumed: how some comparisons come out that are no conditions; other: how all others do, None where nobody can tell.
    """
    sure = [_known(program, dict(r.truth), None) for r in regions]
    known = [_known(program, {**assumed, **dict(r.truth)}, other) for r in regions]
    single = frozenset(d for d, n in program.sizes.items() if n == 1)
    dims = {name: single.union(v.dims) for name, v in program.values().items()}
    needed = {t.name: {r.seen(dims[t.name], conditions) for r in regions} for t in program.outputs}
    total = 0.0
    for e in reversed(program.eqns):
        axes = frozenset(e.dims) | {a for a in e.axes if OPS[e.op].kind in ("reduction", "contraction")}
        places = set[Truth]()
        for r, settled, values in zip(regions, sure, known, strict=True):
            if e.out in settled or r.seen(dims[e.out], conditions) not in needed.get(e.out, ()):
                continue
            if not _is_zero(e, values):
                places.add(r.seen(axes, conditions))
            for name in _used(e, values):
                needed.setdefault(name, set()).add(r.seen(dims[name], conditions))
        if e.op == "dot":
            share = sum(r.share for r in regions if r.seen(axes, conditions) in places)
            total += 2.0 * prod(program.sizes[a] for a in axes) * share
    return needed, total


def _used(e: Eqn, known: Mapping[str, float]) -> set[str]:
    """The arguments that matter for the result."""
    if e.op == "where" and e.args[0] in known:
        mask, x, y = e.args
        return {a for a in (mask, x if known[str(mask)] else y) if isinstance(a, str)}
    if _is_zero(e, known):
        return {a for a in e.values if known.get(a) == 0.0}
    return set(e.values)


def _is_zero(e: Eqn, known: Mapping[str, float]) -> bool:
    return e.op == "dot" and any(known.get(a) == 0.0 for a in e.values)


def _known(program: Program, truth: Mapping[str, bool], other: bool | None) -> dict[str, float]:
    """The values that are one known number wherever these comparisons hold and fail.

    other: how all others come out, None where nobody can tell.
    """
    known: dict[str, float] = {}
    for e in program.eqns:
        value: float | None = None
        if OPS[e.op].known == "mask":
            holds = truth.get(e.out, other)
            value = None if holds is None else float(holds)
        elif OPS[e.op].zero == "first" and known.get(str(e.args[0])) == 0.0:
            value = 0.0
        elif OPS[e.op].kind == "elementwise":
            value = known_value(e, known)
        if value is not None:
            known[e.out] = value
    return known


def _conditions(program: Program) -> Iterator[tuple[str, Condition]]:
    """Comparisons of integers that positions alone decide, those with the most places first, and as many as there is
    time for; with known integers beside them, whose order is not known, where no comparison has positions along an axis
    of theirs."""
    eqns = {e.out: e for e in program.eqns}
    known = _known_integers(program)
    sizes: dict[str, Arg] = {e.out: Fraction(program.sizes[e.axes[0]]) for e in program.eqns if e.op == "size"}
    found: dict[str, Condition] = {}
    for e in program.eqns:
        if OPS[e.op].known == "mask" and len(e.args) == 2:
            left, right = (_of_positions(sizes.get(str(a), a), eqns, known) for a in e.args)
            if left is not None and right is not None:
                found[e.out] = Condition(e.op, left.plus(right, -1), known)
    positions = {a for c in found.values() for a in c.positions}
    told = [(name, c) for name, c in found.items() if not c.of_values or (c.positions and not positions & c.of_values)]
    yield from sorted(told, key=lambda x: -prod(program.sizes[a] for a in x[1].axes))[:MOST_CONDITIONS]


def _known_integers(program: Program) -> dict[str, tuple[tuple[str, ...], NDArray[np.int64]]]:
    """The integers of the first table that is drawn skewed, with its axes; and the same by other names of its axes.

    What is read of a part of it is not known, as their order is not.
    """
    table = next((t for t in program.inputs if t.drawn == "skewed"), None)
    if table is None:
        return {}
    sizes = program.sizes
    shape = [sizes[d] for d in table.dims]
    longest = max((2, *(sizes[d] for t in program.inputs for d in t.dims)))
    data = np.array(skewed(prod(shape), below(table, sizes) or longest), np.int64).reshape(shape)
    found = {table.name: (table.dims, data)}
    for e in program.eqns:
        access = read_by(table.dims, e.names)
        whole = all(renames(d, i, sizes) for d, i in zip(table.dims, access, strict=True))
        dims = tuple(str(i) for i in access)
        if e.op == "rename" and e.args == (table.name,) and whole and len({*dims}) == len(dims):
            found[e.out] = dims, data
    return found


def _regions(conditions: Mapping[str, Condition], sizes: Mapping[str, int]) -> list[Region]:
    """All regions that have places.

    Along a line of places, a comparison changes at most twice; what is between two changes of any is counted at once.
    """
    of_values = {a for c in conditions.values() for a in c.of_values}
    axes = sorted({a for c in conditions.values() for a in c.axes}, key=lambda a: (a in of_values, -sizes[a], a))
    if not axes:
        return [Region((), 1.0)]
    along, *across = axes
    at = dict(zip(across, _lines([sizes[a] for a in across]), strict=True))
    lines = next(iter(at.values()), np.zeros(1, np.int64)).shape
    cuts = [np.zeros(lines, np.int64), np.full(lines, sizes[along], np.int64)]
    for c in conditions.values():
        slope, rest = dict(c.difference.terms).get(("index", along), 0), c.at(at)
        if slope:
            zero = -rest * (1 if slope > 0 else -1)  # over |slope|: where the difference is 0
            cuts += [-(-zero // abs(slope)), zero // abs(slope) + 1]
    ends = np.sort(np.stack(np.broadcast_arrays(*(np.clip(x, 0, sizes[along]) for x in cuts))), axis=0)
    at |= {along: ends[:-1]}
    held = [np.broadcast_to(OPS[c.op].ref(c.at(at), 0), ends[1:].shape) for c in conditions.values()]
    which = sum((h.astype(np.int64) << i for i, h in enumerate(held)), start=np.zeros(ends[1:].shape, np.int64))
    codes, inverse = np.unique(which, return_inverse=True)
    places = np.bincount(inverse.ravel(), weights=np.diff(ends, axis=0).ravel().astype(float))
    total = places.sum()
    return [
        Region(tuple((name, bool(code >> i & 1)) for i, name in enumerate(conditions)), float(n / total))
        for code, n in zip(codes.tolist(), places, strict=True)
        if n
    ]


def _lines(sizes: list[int]) -> list[NDArray[np.int64]]:
    """Positions across the lines, one array for each axis: of many lines, some that are drawn."""
    count = prod(sizes)
    if count > MOST_LINES:
        rng = np.random.default_rng(0)
        return [rng.integers(0, n, MOST_LINES) for n in sizes]
    return [np.asarray(x, np.int64) for x in np.unravel_index(np.arange(count), sizes)] if sizes else []
