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

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import gcd, lcm

from mirage_cli.ir.access import (
    Atom,
    Index,
    Lookup,
    Quotient,
    Remainder,
    dims_of_atom,
    index,
    quotient,
    read_by,
    remainder,
    steady,
)
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES, Eqn, Program, Tensor
from mirage_cli.ir.rewrites.replaced import Replaced
from mirage_cli.ir.rewrites.residues import by_residues
from mirage_cli.ir.rewrites.rewriter import fixed_axes

FACTORS = 2
"""Of a product on the matrix units."""
Steps = Mapping[str, int]
"""For each axis of a value, how many positions in a row have the same elements, from a multiple of that number on."""


def blocked(program: Program) -> Program | None:
    """A lowered program with such axes in blocks wherever they occur; None where there is none, or where something is
    made of an axis that blocks of it do not say."""
    program = by_residues(program) or program
    return in_blocks(program, lengths(program, fixed_axes(program)))


def in_blocks(program: Program, length: Mapping[str, int]) -> Program | None:
    """A lowered program with these axes in blocks of so many positions."""
    return _Blocked(program, length).rewritten()


class _Blocked(Replaced):
    """length: positions of a block, of each axis that is taken in blocks."""

    def __init__(self, program: Program, length: Mapping[str, int]) -> None:
        super().__init__(program)
        self.length = dict(length)
        for d, n in length.items():
            self.own[d] = block, within = self.behind(d, {f"{d}_block": self.dims[d] // n, f"{d}_in": n})
            self.whole[d] = index({block: n, within: 1})

    def atom(self, a: Atom) -> Index | None:
        """Positions within a block change no quotient by a multiple of its length, blocks no remainder by a divisor."""
        match a:
            case Quotient() if (d := a.of.axis) in self.length and a.by % self.length[d] == 0:
                return quotient(index({self.own[d][0]: 1}), a.by // self.length[d])
            case Remainder() if (d := a.of.axis) in self.length and self.length[d] % a.by == 0:
                return remainder(index({self.own[d][1]: 1}), a.by)
            case _:
                return super().atom(a)

    def of_result(self, had: Sequence[str], names: Mapping[str, Index]) -> Iterator[tuple[str, Index]]:
        for d, i in names.items():
            if d in had:
                block, within = self.own[d]
                yield from ((block, quotient(i, self.length[d])), (within, remainder(i, self.length[d])))
            else:
                yield d, i


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
            again = [(s, _periods(values[f])) for f, s in some.items()]
            for d, n in (*_of_rows(some, x.axes), *_again(again, x.axes), *_of_scales(some, x.axes, values)):
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


def _again(some: Sequence[tuple[Steps, Steps]], summed: Collection[str]) -> Iterator[tuple[str, int]]:
    """Axes by whose remainders alone one factor of a sum depends on them, and another by their positions; both on what
    is summed. some: steps and periods of each factor."""
    of_products = [(s, p) for s, p in some if any(s.get(k) == 1 for k in summed)]
    for _, periods in of_products:
        for d, n in periods.items():
            if d not in summed and any(d in s and d not in p for s, p in of_products):
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


def _periods(x: Tensor | Eqn) -> Steps:
    """For axes of a read that stand in its indices in remainders alone, after how many positions it is the same."""
    atoms = [a for i in x.names.values() for a, _ in i.terms] if isinstance(x, Eqn) else []
    of = {d: [a for a in atoms if d in dims_of_atom(a)] for a in atoms for d in dims_of_atom(a)}
    return {d: lcm(*(a.by for a in some if isinstance(a, Remainder))) for d, some in of.items() if _divided(some)}


def _divided(atoms: Collection[Atom]) -> bool:
    return all(isinstance(a, Remainder) and a.of.affine for a in atoms)


def _same(i: Index, d: str) -> int:
    """How many positions in a row along an axis an index is the same for, from a multiple of that number on."""

    def of(a: Atom) -> int:
        return gcd(*(_same(j, d) for j in a.access)) if isinstance(a, Lookup) else steady(a, d)

    return gcd(*(of(a) for a, _ in i.terms))
