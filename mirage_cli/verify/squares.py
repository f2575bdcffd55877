"""Random inputs that have squares under the roots of a program, as far as rows of one input can be drawn by themselves.

A root of a non-square says nothing (`verify.field`). One number in sixteen is a square in all four residues, so that
nearly no random input of some rows has a norm in every row. But the rows of X / sqrt(sum(X²)) have nothing to do with
each other: X is drawn many times, and each row is taken from the first draw in which it has a norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from mirage_cli.ir.access import read_by, renames
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program, live_eqns, tensor_type
from mirage_cli.verify.field import Field
from mirage_cli.verify.fieldsemantics import FieldSemantics
from mirage_cli.verify.interpret import applied
from mirage_cli.verify.residues import DRAW, Array, Residues, joint_taint

DRAWS = 64
"""In which a row is looked for: in 1.6 % of the cases, none has squares in four residues."""

SPACE = 1 << 15
"""Elements of any one value of all these draws, at most."""

FURTHER = 256
"""Draws in which a row is looked for where many are too large to be drawn at once: of 6,000 rows, one in 2,000 cases
has no squares in any. Only rows in doubt are drawn again."""
IN_VAIN = 8
"""Further draws of which none has settled any row, behind which there are no more: a row that meets many roots would be
in doubt in all."""

LOGARITHMS = 1 << 7
"""Elements of logarithms of which a draw that has more counts as several: their tests for squares take longest."""

RowAxes = dict[str, str]
"""The axes of a value that are axes of an input, and what the input calls them."""


def effort(eqns: Iterable[Eqn], sizes: Mapping[str, int]) -> int:
    """How many draws of equations without logarithms a draw of these counts as."""
    logs = (e for e in eqns if OPS[e.op].known == "exponential" and OPS[e.op].domain[0][0] > 0)
    return 1 + sum(prod(sizes[d] for d in e.dims) for e in logs) // LOGARITHMS


def mended(program: Program, inputs: Mapping[str, Residues], seed: int, draw: int) -> dict[str, Residues]:
    """The inputs of one draw, with other rows where those give squares under roots.

    inputs: random, with an axis of one draw in front. seed, draw: of the functions that are random in the program. What
    no root or logarithm is made of is not computed.
    """
    semantics = FieldSemantics(seed, program.sizes)
    semantics.field.draws = np.array([draw], dtype=np.uint64)
    semantics.field.guesses = None  # of rows that are drawn again there are now more, now fewer
    found = dict(inputs)
    program = replace(program, eqns=tuple(live_eqns(program.eqns, _of_positive_numbers(program.eqns))))
    env: dict[str, Residues] = dict(found)
    rows: dict[str, dict[str, RowAxes]] = {t.name: {t.name: {d: d for d in t.dims}} for t in program.inputs}
    sizes = program.sizes
    for i, e in enumerate(program.eqns):
        env[e.out] = applied(e, env, semantics)
        rows[e.out] = _rows_of(e, rows, sizes)
        if not _adds_doubt(e, env):
            continue
        drawn = [t for t in program.inputs if t.name in rows[e.out] and tensor_type(t) == "float"]
        if not drawn:
            continue
        name = max(drawn, key=lambda t: len(rows[e.out][t.name])).name
        needed = [q for q in live_eqns(program.eqns, (e.out,)) if name in rows[q.out]]
        found[name] = env[name] = _Again(name, needed, env, rows, semantics, Field(seed + i, sizes)).mended()
        for q in program.eqns[: i + 1]:
            if name in rows[q.out]:
                env[q.out] = applied(q, env, semantics)
    return found


@dataclass(frozen=True, slots=True)
class _Again:
    """An input that is drawn again. needed: the equations from it to a root, which is the last. env, rows: of all that
    was computed so far."""

    name: str
    needed: Sequence[Eqn]
    env: Mapping[str, Residues]
    rows: Mapping[str, Mapping[str, RowAxes]]
    semantics: FieldSemantics
    field: Field

    def mended(self) -> Residues:
        """Each row from the first draw in which the root is in doubt nowhere. Where there is room for few draws at
        once, further ones are of the positions along one axis at which some row is in doubt."""
        x, doubt, drawn = self.drawn(self.env, self.semantics.sizes, [self.env[self.name]])
        axis = self.axis_apart() if drawn < DRAWS else None
        if axis is None:
            return x
        data, i = x.data.copy(), x.dims.index(axis)  # behind the axis of draws
        others = tuple(n for n in range(doubt.ndim) if n != i - 1)
        settled, in_vain = False, 0
        while drawn < FURTHER and doubt.any() and (settled or in_vain < IN_VAIN):
            at = np.flatnonzero(doubt.any(others))
            some, still, more = self.drawn(self.at(axis, at), {**self.semantics.sizes, axis: len(at)}, [])
            before = doubt.take(at, i - 1)
            data[(*[slice(None)] * (i + 1), at)] = np.where(before & ~still, some.data, data.take(at, i + 1))
            doubt[(*[slice(None)] * (i - 1), at)] = before & still
            settled, in_vain, drawn = settled or bool((before & ~still).any()), in_vain + 1, drawn + more
        return replace(x, data=data)

    def drawn(
        self, env: Mapping[str, Residues], sizes: Mapping[str, int], present: Sequence[Residues]
    ) -> tuple[Residues, Array, int]:
        """One draw of the input, its rows from as many draws as there is room for, behind the present one; at which of
        its positions the root is in doubt in all of them; and how many these are. env: all that is read besides."""
        largest = max(prod(sizes[a] for a in q.spans) for q in self.needed)
        count = min(DRAWS, 1 + SPACE // (largest * effort(self.needed, sizes)))
        again = self.field.draw(self.env[self.name].dims, "float", {**sizes, DRAW: count})
        many = replace(again, data=np.concatenate([x.data for x in (*present, again)], axis=1))
        made = {**env, self.name: many}
        for q in self.needed:
            made[q.out] = applied(q, made, self.semantics)
        data, doubt = _first_sure(many, made[self.needed[-1].out], self.axes)
        return replace(again, data=data), doubt, count

    @property
    def axes(self) -> RowAxes:
        """The axes along which rows of the input give rows of the root."""
        return self.rows[self.needed[-1].out][self.name]

    def axis_apart(self) -> str | None:
        """The longest axis of the input that is one of all that is made of it, and that nothing is summed or read by an
        index along."""

        def is_apart(axis: str, q: Eqn) -> bool:
            indices = (*q.names, *(d for i in q.names.values() for d in i.dims))
            return axis in q.dims and axis not in q.axes and axis not in indices

        own = [b for a, b in self.axes.items() if a == b and all(is_apart(a, q) for q in self.needed)]
        return max(own, key=lambda d: self.semantics.sizes[d], default=None)

    def at(self, axis: str, at: Array) -> dict[str, Residues]:
        """All that is read besides the input, at some positions along an axis."""
        read = {v for q in self.needed for v in q.values if self.name not in self.rows[v]}
        return {v: _taken(self.env[v], axis, at) for v in read}


def _taken(x: Residues, axis: str, at: Array) -> Residues:
    """A value at some positions along an axis."""
    if axis not in x.dims:
        return x
    i = x.dims.index(axis)

    def some(y: Array | None, place: int) -> Array | None:
        return y if y is None or y.shape[place] == 1 < x.shape[i] else y.take(at, place)

    data = x.data.take(at, i + (x.kind == "field"))
    return replace(x, data=data, flags=some(x.flags, i), taint=some(x.taint, i + 1))


def _of_positive_numbers(eqns: Iterable[Eqn]) -> set[str]:
    """What operators make that are tested on positive numbers alone: roots and logarithms are among them."""
    return {e.out for e in eqns if OPS[e.op].domain[0][0] >= 0}


def _rows_of(e: Eqn, rows: Mapping[str, Mapping[str, RowAxes]], sizes: Mapping[str, int]) -> dict[str, RowAxes]:
    """For each input that the result depends on, the axes along which its rows give rows of the result."""
    found: dict[str, RowAxes] = {}
    for v in e.values:
        for name, axes in rows[v].items() if e.op != "rename" or v == e.args[0] else ():
            if e.op == "rename":
                moved = zip(read_by(axes, e.names), axes.items(), strict=True)
                axes = {i.axis: b for i, (a, b) in moved if i.axis is not None and renames(a, i, sizes)}
            both = found.get(name, {}) | axes
            agreed = {a: b for a, b in both.items() if found.get(name, both).get(a, b) == b}
            found[name] = {a: b for a, b in agreed.items() if a in e.dims and [*agreed.values()].count(b) == 1}
    return found


def _adds_doubt(e: Eqn, env: Mapping[str, Residues]) -> bool:
    """Whether elements of the result are in doubt that were in none of what they are made of."""
    result, values = env[e.out], [env[v] for v in e.values]
    if result.taint is None or any(not set(x.dims) <= set(result.dims) for x in values):
        return False
    before = joint_taint(values, result.dims)
    new = result.taint if before is None else result.taint & ~before
    return bool(new[np.flatnonzero(result.valid)].any())


def _first_sure(x: Residues, result: Residues, rows: RowAxes) -> tuple[Array, Array]:
    """The data of one draw of x: each row from the first of many draws in which no residue of its result is in doubt;
    and where all are in doubt, along the axes of x of which there are rows.

    Where all are in doubt, the row of the first draw is kept.
    """
    if result.taint is None:
        return x.data[:, :1], np.zeros((1,) * (x.data.ndim - 2), dtype=np.bool_)
    names = {a: rows.get(a, "") for a in result.dims if a != DRAW}
    doubt = np.moveaxis(result.taint[np.flatnonzero(result.valid)], 1 + result.dims.index(DRAW), 1)
    doubt = np.asarray(doubt.any(axis=(0, *(i for i, b in enumerate(names.values(), 2) if not b))))
    kept = [b for b in names.values() if b]
    order = [d for d in x.dims if d in kept]
    first, never = doubt.argmin(axis=0), np.asarray(doubt.all(axis=0))  # the first is 0 where all are

    def along(y: Array) -> Array:
        return y.transpose([kept.index(d) for d in order])[
            tuple(slice(None) if d in kept else None for d in x.dims[1:])
        ]

    index = np.broadcast_to(along(first), x.data.shape[2:])
    return np.take_along_axis(x.data, index[None, None], axis=1), along(never).copy()
