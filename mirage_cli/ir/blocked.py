"""Axes in blocks, where a factor of a sum is the same for all positions of a block.

    O[m, n] = dot(X[m, k], W[E[m // 128], n, k]; k)
        -->  O[128*b + r, n] = dot(X[128*b + r, k], W[E[b], n, k]; k)                   b = m // 128, r = m % 128

With m, each row has a matrix of its own; with b and r, the rows of a block have one, and their product is one of
matrices. So it is with rows that are sorted by expert, with heads that share keys (`K[s, h // 4, d]`), and with groups
of channels.

    dot(X[m, k] * S[m, k // 128], W[n, k]; k)  -->  sum(dot(X[m, 128*b + i], W[n, 128*b + i]; i) * S[m, b]; b)

Where X and W have 8 bits, the matrix units multiply them as they are stored, once the scales stand behind the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import gcd

from mirage_cli.ir.access import (
    Atom,
    Index,
    Lookup,
    Quotient,
    Remainder,
    dims_of,
    index,
    plain,
    quotient,
    read_by,
    remainder,
    steady,
)
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES, Eqn, Part, Program, Tensor
from mirage_cli.ir.rewriter import Rewriter

FACTORS = 2
"""Of a product on the matrix units."""
Steps = Mapping[str, int]
"""For each axis of a value, how many positions in a row have the same elements, from a multiple of that number on."""


def blocked(program: Program) -> Program | None:
    """A lowered program with such axes in blocks wherever they occur; None where there is none, or where something is
    made of an axis that blocks of it do not say."""
    return _Blocked(program).rewritten()


class _OtherwiseError(Exception):
    """An axis in blocks is read, reduced or stored otherwise than by its positions."""


class _Blocked(Rewriter):
    """length: positions of a block, of each axis that is taken in blocks. parts: the axes of its blocks and of
    positions within. whole: the index that these two are. made: inputs by blocks."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.length = lengths(program, self.fixed)
        self.parts: dict[str, tuple[str, str]] = {}
        self.dims = dict(self.beside_their_axes())
        self.whole = {d: index({b: self.length[d], i: 1}) for d, (b, i) in self.parts.items()}
        self.made: dict[str, str] = {}

    def beside_their_axes(self) -> Iterator[tuple[str, int]]:
        """All axes, each new one behind that which it is a part of."""
        for d, size in self.program.dims:
            yield d, size
            if d in self.length:
                n = self.length[d]
                self.parts[d] = block, within = self.name(f"{d}_block"), self.name(f"{d}_in")
                yield from ((block, size // n), (within, n))

    def rewritten(self) -> Program | None:
        try:
            return super().rewritten() if self.parts else None
        except _OtherwiseError:
            return None

    def of(self, e: Eqn) -> Iterator[Eqn]:
        if e.op == "rename":
            yield self.read_by_blocks(e)
        elif e.place:
            yield self.define(e.out, e.op, (), (str(self.placed(e.place)),))
        elif OPS[e.op].kind == "leaf":
            yield e
        else:
            for a in e.values:
                yield from self.input_by_blocks(a)
            args = tuple(self.made.get(a, a) if isinstance(a, str) else a for a in e.args)
            axes = tuple(p for d in e.axes for p in self.parts.get(d, (d,)))
            if not {*axes} <= {d for a in args if isinstance(a, str) for d in self.known[a].dims}:
                raise _OtherwiseError
            yield self.define(e.out, e.op, args, axes)

    def input_by_blocks(self, a: str) -> Iterator[Eqn]:
        """The read of an input with an axis in blocks, once."""
        t = self.known[a]
        if isinstance(t, Tensor) and a not in self.made and (names := self.positions(t)):
            self.made[a] = self.name(f"{a}_blocks")
            yield self.read(self.made[a], a, names)

    def positions(self, t: Tensor) -> dict[str, Index]:
        return {d: self.whole[d] for d in t.dims if d in self.whole}

    def read_by_blocks(self, e: Eqn) -> Eqn:
        """A read. One of a result along such an axis, or by it, would be of positions in any block."""
        value, *_ = e.values
        known = self.known[value]
        names = {d: self.placed(i) for d, i in e.names.items()}
        if isinstance(known, Tensor):
            return self.read(e.out, value, {**self.positions(known), **names})
        if self.parts.keys() & {*e.names, *(d for i in e.names.values() for d in i.dims)}:
            raise _OtherwiseError
        return self.read(e.out, value, names)

    def placed(self, i: Index) -> Index:
        """An index with blocks and positions within in the place of their axes."""
        return i.with_atoms(self.atom)

    def atom(self, a: Atom) -> Index | None:
        match a:
            case str():
                return self.whole.get(a)
            case Quotient() if (d := a.of.axis) in self.parts and a.by % self.length[d] == 0:
                return quotient(index({self.parts[d][0]: 1}), a.by // self.length[d])
            case Remainder() if (d := a.of.axis) in self.parts and self.length[d] % a.by == 0:
                return remainder(index({self.parts[d][1]: 1}), a.by)
            case _:
                return None

    def program_of(self, eqns: Iterable[Eqn]) -> Program:
        """The program, whose outputs along such axes are written from blocks."""
        program = super().program_of(eqns)
        parts = {p.value: p for p in program.parts}
        names: dict[str, str] = {}
        outputs: list[Tensor] = []
        for t in program.outputs:
            part = parts.get(t.name) or Part(t.name, t, plain(t.dims))
            access = tuple(map(self.placed, part.access))
            if {*dims_of(access)} != {*self.known[t.name].dims}:
                raise _OtherwiseError
            if t.name not in parts and access != part.access:
                names[t.name] = self.name(f"{t.name}_blocks")
            if t.name in parts or access != part.access:
                value = names.get(t.name, t.name)
                parts[t.name] = replace(part, value=value, access=access)
                t = replace(t, name=value, dims=dims_of(access), strides=())
            outputs.append(t)
        ordered = (parts[t.name] for t in program.outputs if t.name in parts)
        eqns = tuple(_renamed(e, names) for e in program.eqns)
        return replace(program, eqns=eqns, outputs=tuple(outputs), parts=tuple(ordered))


def _renamed(e: Eqn, names: Mapping[str, str]) -> Eqn:
    args = tuple(names.get(a, a) if isinstance(a, str) else a for a in e.args)
    return replace(e, out=names.get(e.out, e.out), args=args)


def lengths(program: Program, fixed: Collection[str]) -> dict[str, int]:
    """The axes that are taken in blocks, none of the fixed ones, with the positions of a block of each."""
    sizes, values = program.sizes, program.values()
    steps: dict[str, Steps] = {}
    factors: dict[str, tuple[str, ...]] = {}
    found: dict[str, int] = {}
    for name, x in values.items():
        steps[name], factors[name] = steps_of(x, steps), (name,)
        if isinstance(x, Tensor):
            continue
        if OPS[x.op].kind == "elementwise":
            factors[name] = tuple(dict.fromkeys(f for v in x.values for f in factors[v]))
        if x.axes and OPS[x.op].joins == "add":
            some = {f: steps[f] for v in x.values for f in factors[v]}
            for d, n in (*_of_rows(some, x.axes), *_of_scales(some, x.axes, values)):
                if n < sizes[d] and sizes[d] % n == 0 and d not in fixed:
                    found[d] = max(n, found.get(d, 0))
    return found


def _of_rows(some: Mapping[str, Steps], summed: Collection[str]) -> Iterator[tuple[str, int]]:
    """Axes by whose blocks alone one factor of a sum depends on them, and another by their positions; both on what is
    summed by its positions."""
    of_products = [s for s in some.values() if any(s.get(k) == 1 for k in summed)]
    for s in of_products:
        for d, n in s.items():
            if n > 1 and d not in summed and any(other.get(d) == 1 for other in of_products):
                yield d, n


def _of_scales(
    some: Mapping[str, Steps], summed: Collection[str], values: Mapping[str, Tensor | Eqn]
) -> Iterator[tuple[str, int]]:
    """Summed axes by whose blocks alone a factor depends on them, where two others have 8 bits."""
    for k in summed:
        eights = sum(s.get(k) == 1 and _has_8_bits(f, values) for f, s in some.items())
        if eights >= FACTORS:
            yield from ((k, n) for s in some.values() if (n := s.get(k, 1)) > 1)


def _has_8_bits(name: str, values: Mapping[str, Tensor | Eqn]) -> bool:
    """Whether a value is read from a tensor of numbers of 8 bits."""
    x = values[name]
    while isinstance(x, Eqn) and x.op == "rename":
        x = values[x.values[0]]
    return isinstance(x, Tensor) and x.dtype != "bool" and DTYPE_BYTES[x.dtype] == 1


def steps_of(x: Tensor | Eqn, steps: Mapping[str, Steps]) -> Steps:
    """Of a value, by those of what it is made of."""
    if isinstance(x, Tensor):
        return dict.fromkeys(x.dims, 1)
    if x.place:
        return {d: _same(x.place, d) for d in x.dims}
    if x.op == "rename":
        own = steps[x.values[0]]
        indices = [i for d in own for i in read_by((d,), x.names)]
        along = {i.axis: own[d] for d, i in zip(own, indices, strict=True) if i.axis is not None}
        return {d: gcd(*(_same(i, d) if i.axis != d else along[d] for i in indices if d in i.dims)) for d in x.dims}
    return {d: gcd(*(s for v in x.values if (s := steps[v].get(d)))) for d in x.dims}


def _same(i: Index, d: str) -> int:
    """How many positions in a row along an axis an index is the same for, from a multiple of that number on."""

    def of(a: Atom) -> int:
        return gcd(*(_same(j, d) for j in a.access)) if isinstance(a, Lookup) else steady(a, d)

    return gcd(*(of(a) for a, _ in i.terms))
