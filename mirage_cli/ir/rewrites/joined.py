"""Reductions over a concatenated axis, as the join of one reduction for each of the values that are concatenated; and
outputs that are concatenations, each of their parts as an output that lies in the whole.

    dot(where(index(d) < 64, A[m, d], B[m, d - 64]), W; d)  -->  add(dot(A, W[e]; e), dot(B, W[e + 64]; e))
    d = 128, e = 64
    max(where(index(t) < 2048, A[m, t], B[m]); t)           -->  maximum(max(A[m, s]; s), B)
    t = 2049, s = 2048
    O[m, d] = exp(where(index(d) < 64, A[m, d], B[m, d - 64]))  -->  O[m, e] = exp(A), O[m, e + 64] = exp(B)

A concatenation is a `where` whose mask compares positions with a number: the mask is constant along each part of the
axis. A read of positions within one part becomes a read of the value that lies there. So no block holds all values to
choose from, and no value has to be in memory to be read by an index. Parts of one size share one axis, and one loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.access import Index, index
from mirage_cli.ir.access_text import substitution_text
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Part, Program, Tensor, tables_of
from mirage_cli.ir.rewrites.rewriter import Rewriter
from mirage_cli.ir.rewrites.shifts import shifted_once
from mirage_cli.ir.schedule import MIN_DOT

MOST_PARTS = 4
"""Parts of one axis: with more reductions than that, a search takes long."""
LONGEST = 1 << 16
"""The most positions of an axis along which masks are evaluated."""

Constants = Mapping[str, NDArray[np.generic]]
"""The values that depend on the position along one axis alone, by name, evaluated at each: masks and whole numbers."""


def by_parts(program: Program) -> Program | None:
    """A lowered program with a reduction for each part of a concatenated axis; None where no axis is one."""
    return _Parts(shifted_once(program)).rewritten()


def outputs_by_parts(program: Program) -> Program | None:
    """A lowered program whose outputs are written by parts along a concatenated axis; None where none has one."""
    return _Parts(shifted_once(program)).with_outputs_apart()


def in_parts(program: Program) -> Program:
    """The program by parts, or itself: by parts, it is known how many products its masks leave."""
    return by_parts(program) or program


class _MixedError(Exception):
    """A value whose part along an axis is not computed from parts of its arguments."""


class _Parts(Rewriter):
    """sums: reductions over parts, and parts of internal values."""

    def of(self, e: Eqn) -> tuple[Eqn, ...]:
        taken = self.summed if OPS[e.op].joins else self.within
        axes = e.axes if OPS[e.op].joins else e.names
        some = (taken(e, d) for d in axes if d not in self.fixed and self.dims[d] <= LONGEST)
        return next(filter(None, some), (e,))

    def with_outputs_apart(self) -> Program | None:
        program = self.program
        self.known |= {e.out: e for e in program.eqns}
        eqns, outputs, parts = [*program.eqns], list[Tensor](), [*program.parts]
        lies = {p.value for p in parts}
        for t in program.outputs:
            made = () if t.name in lies else self.apart(t, eqns, {p.value for p in parts})
            parts += made
            values = {p.value: self.known[p.value] for p in made}
            outputs += [replace(t, name=v, dims=x.dims, strides=()) for v, x in values.items()] or [t]
        if len(outputs) == len(program.outputs):
            return None
        order = {t.name: i for i, t in enumerate(outputs)}
        parts.sort(key=lambda p: order[p.value])
        self.program = replace(program, outputs=tuple(outputs), parts=tuple(parts))
        return self.program_of(eqns)

    def apart(self, t: Tensor, eqns: list[Eqn], lies: Collection[str]) -> tuple[Part, ...]:
        """An output's parts along the first of its axes that has some, with the equations that compute them. lies:
        values that lie elsewhere already."""
        e = self.known[t.name]
        if isinstance(e, Tensor):
            return ()
        for axis in t.dims:
            if axis in self.fixed or self.dims[axis] > LONGEST:
                continue
            constants, before, own = self.constants(axis), dict(self.dims), list[Eqn]()
            ends = self.ends(replace(e, args=(e.out,)), axis, constants)
            if not 2 < len(ends) <= MOST_PARTS + 1:
                continue
            try:
                found = tuple(self.part_of(t, e, axis, ends_of, constants, own) for ends_of in pairwise(ends))
            except _MixedError:
                self.dims = before
                continue
            values = {p.value for p in found if isinstance(self.known[p.value], Eqn)}
            if len(values - {x.name for x in self.program.outputs} - {*lies}) == len(found):
                eqns += own
                return found
            self.dims = before
        return ()

    def part_of(
        self, t: Tensor, e: Eqn, axis: str, ends: tuple[int, int], constants: Constants, eqns: list[Eqn]
    ) -> Part:
        """An output's part from one position of an axis on, up to another. Raises _MixedError."""
        start, end = ends
        part = (
            [self.axis(e, axis, end - start, (d for d in self.dims if d not in self.fixed))] if end - start > 1 else []
        )
        place = index(dict.fromkeys(part, 1), start)
        value = _Part(self, axis, place, {n: x[start] for n, x in constants.items()}, eqns).of(e.out)
        return Part(value, t, tuple(place if d == axis else index({d: 1}) for d in t.dims))

    def within(self, e: Eqn, axis: str) -> tuple[Eqn, ...]:
        """For a read of positions within one part of an axis, the equations that compute that part; else nothing."""
        (source, *tables), i = e.values, e.names[axis]
        x, (low, high) = self.known[source], i.bounds(self.dims)
        if tables or len(e.names) > 1 or isinstance(x, Tensor) or {*i.dims} & {*x.dims}:
            return ()
        constants = self.constants(axis)
        ends = self.ends(e, axis, constants)
        start = max((n for n in ends if n <= low), default=-1)
        if len(ends) < 3 or start < 0 or high >= min(n for n in ends if n > start):
            return ()
        eqns: list[Eqn] = []
        try:
            made = _Part(self, axis, i, {n: y[start] for n, y in constants.items()}, eqns).of(source)
        except _MixedError:
            return ()
        return (*eqns[:-1], replace(eqns[-1], out=e.out)) if eqns and eqns[-1].out == made else ()

    def summed(self, e: Eqn, axis: str) -> tuple[Eqn, ...]:
        """The reduction as the join of reductions over the parts of its axis; nothing where it has no parts. A part of
        one position is not reduced: its value is joined."""
        row, constants = OPS[e.op], self.constants(axis)
        if row.extremum and self.is_known(e.args[0]):
            return ()
        ends = self.ends(e, axis, constants)
        least = MIN_DOT if row.kind == "contraction" else 1
        if not 2 < len(ends) <= MOST_PARTS + 1 or any(b - a < least for a, b in pairwise(ends)):
            return ()
        before = dict(self.dims)
        eqns: list[Eqn] = []
        products: list[str] = []
        readers = {d for q in self.program.eqns if axis in q.names for d in q.names[axis].dims}
        for start, end in pairwise(ends):
            others = sorted((d for d in self.dims if d not in self.fixed), key=lambda d: d not in readers)
            part = [self.axis(e, e.axes[0], end - start, others)] if end - start > 1 else []
            place = index(dict.fromkeys(part, 1), start)
            made = _Part(self, axis, place, {n: x[start] for n, x in constants.items()}, eqns)
            axes = (*part, *(d for d in e.axes if d != axis))
            try:
                args = made.all(e.values, axes)
            except _MixedError:
                self.dims = before
                return ()
            products.append(self.add(eqns, e.op, args, axes) if axes else args[0])
        total, *_ = sums = products[:1]
        for x in products[1:-1]:
            sums.append(total := self.add(eqns, row.joins, (total, x), ()))
        self.sums |= {*products, *sums}
        return *eqns, self.define(e.out, row.joins, (total, products[-1]), ())

    def is_known(self, a: Arg) -> bool:
        """Whether masks alone choose a value among numbers and positions. In finite fields the larger of two such is
        exact, and the largest along an axis is not: the verifier would refuse the join of parts."""
        if not isinstance(a, str) or isinstance(e := self.known[a], Tensor):
            return not isinstance(a, str)
        return e.place is not None or (e.op == "where" and all(map(self.is_known, e.args[1:])))

    def constants(self, axis: str) -> Constants:
        """The values that depend on the position along this axis alone."""
        found: dict[str, NDArray[np.generic]] = {}
        n = self.dims[axis]
        for e in self.program.eqns:
            if e.op == "size" and e.axes[0] not in self.fixed:
                found[e.out] = np.full(n, self.dims[e.axes[0]])
            elif (i := e.place) and i.dims == (axis,) and not i.lookups:
                found[e.out] = i.positions((axis,), {axis: (0, n)})
            elif OPS[e.op].kind == "elementwise" and e.values and found.keys() >= {*e.values}:
                args = [found[a] if isinstance(a, str) else float(a) for a in e.args]
                with np.errstate(all="ignore"):
                    found[e.out] = np.broadcast_to(OPS[e.op].ref(*args), n)
        return found

    def ends(self, e: Eqn, axis: str, constants: Constants) -> list[int]:
        """0, the positions at which a `where` among the arguments starts to choose another value, and the size."""
        n = self.dims[axis]
        found, todo, seen = {0, n}, [*e.values], set[str]()
        while todo:
            x = self.known[name := todo.pop()]
            if name in seen or isinstance(x, Tensor) or axis not in x.dims:
                continue
            seen.add(name)
            if OPS[x.op].kind == "elementwise":
                todo += x.values
            if x.op == "where" and isinstance(mask := x.args[0], str) and mask in constants:
                found |= {int(i) + 1 for i in np.flatnonzero(constants[mask][1:] != constants[mask][:-1])}
        return sorted(found)

    def add(self, eqns: list[Eqn], op: str, args: tuple[Arg, ...], axes: tuple[str, ...]) -> str:
        eqns.append(self.define(self.name("part"), op, args, axes))
        return eqns[-1].out


@dataclass
class _Part:
    """The values along one part of an axis.

    place: the index along the axis of the part's positions. constants: the values that depend on the position alone, at
    the part's first. eqns: the equations so far. made: the part of each value, by the value's name.
    """

    parts: _Parts
    axis: str
    place: Index
    constants: Mapping[str, np.generic]
    eqns: list[Eqn]
    made: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, name: str) -> str:
        """The part of a value. Raises _MixedError."""
        x = self.parts.known[name]
        if self.axis not in x.dims:
            return name
        if name not in self.made:
            self.made[name] = made = self.read(name, {}, x) if isinstance(x, Tensor) else self.computed(x)
            self.parts.sums |= {made} if name in self.parts.program.internals else set()
        return self.made[name]

    def all(self, names: Iterable[str], axes: Collection[str]) -> tuple[str, ...]:
        """The parts of what is reduced over these axes. Raises _MixedError, also where they are the same along one: a
        sum counts it, and a maximum of it is known to the verifier as a maximum alone."""
        found = tuple(map(self.of, names))
        if not {*axes} <= {d for a in found for d in self.parts.known[a].dims}:
            raise _MixedError
        return found

    def computed(self, e: Eqn) -> str:
        match OPS[e.op].kind:
            case "rename":
                source, *_ = e.values
                return self.read(source, e.names, self.parts.known[source])
            case "elementwise":
                return self.elementwise(e)
            case "leaf" if e.place:
                return self.parts.add(self.eqns, "index", (), (str(self.moved(e.place)),))
            case _:
                raise _MixedError

    def elementwise(self, e: Eqn) -> str:
        """An elementwise equation of parts; of a `where` with a constant mask, the part of what the mask chooses."""
        if e.op == "where" and e.args[0] in self.constants:
            chosen = e.args[1 if self.constants[str(e.args[0])] else 2]
            if not isinstance(chosen, str):
                raise _MixedError
            return self.of(chosen)
        return self.parts.add(self.eqns, e.op, e.arguments(self.of), e.axes)

    def read(self, source: str, names: Mapping[str, Index], x: Tensor | Eqn) -> str:
        """A read of a value at the part's positions: the value itself where that changes no axis."""
        moved = {d: self.moved(i) for d, i in ({d: index({d: 1}) for d in x.dims} | dict(names)).items()}
        if all(d == i.axis for d, i in moved.items()):
            return source
        wanted = {d: i for d, i in moved.items() if d != i.axis}
        return self.parts.add(self.eqns, "rename", (source, *tables_of(wanted.values())), substitution_text(wanted))

    def moved(self, i: Index) -> Index:
        return i.within({self.axis: self.place})
