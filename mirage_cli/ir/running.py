"""Sums up to each position, by blocks of positions.

    sum(where(j <= t, X[j], 0); j)  -->  B[b, i] = X[8*b + i]
                                         within[b, r] = sum(where(i <= r, B, 0); i)
                                         before[b] = sum(where(a < b, sum(B; i)[a], 0); a)
                                         add(within, before)[b = t // 8, r = t % 8]              of 64 positions t

Each position takes the sum of 8 elements and of 8 blocks then, not that of 64 elements. Sums up to blocks are sums up
to positions again. What lies behind the last position is read as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt

from mirage_cli.ir.access import index, quotient, remainder
from mirage_cli.ir.ops import OPS, Order
from mirage_cli.ir.program import Arg, Eqn, Part, Program
from mirage_cli.ir.reach import ONE, Linear, linear
from mirage_cli.ir.rewriter import Rewriter
from mirage_cli.ir.schedule import next_power_of_two

LEAST = 64
"""Positions of the shortest axis that is taken in blocks."""
LONG = 256
"""Positions of the shortest axis that only a program by blocks is searched for: it has at most a tenth of the work."""
FEW = 256
"""Blocks that are summed up to each without blocks of their own."""
LARGEST = 32
"""Positions of a block, at most: each takes the sum of as many."""


def by_blocks(program: Program, least: int = LEAST) -> Program | None:
    """A lowered program with its sums up to each position taken by blocks; None where there is none over an axis that
    has so many positions at least."""
    found = _Running(program, least)
    eqns = tuple(made for e in program.eqns for made in found.of(e))
    if eqns == program.eqns:
        return None
    made = found.program_of(eqns)
    made = replace(made, internals=(program.internals | found.sums) & {e.out for e in made.eqns})
    return _stored_by_blocks(made, found.stored)


def _stored_by_blocks(program: Program, stored: Mapping[str, Part]) -> Program:
    """The program with those of its outputs that nothing else is made of written from where blocks of them are."""
    used = {v for e in program.eqns for v in e.values} | {p.value for p in program.parts}
    parts = {t.name: stored[t.name] for t in program.outputs if t.name in stored and t.name not in used}
    dims = {e.out: e.dims for e in program.eqns}
    outputs = tuple(
        replace(t, name=p.value, dims=dims[p.value], strides=()) if (p := parts.get(t.name)) else t
        for t in program.outputs
    )
    eqns = tuple(e for e in program.eqns if e.out not in parts)
    lying = tuple(replace(p, tensor=t) for t in program.outputs if (p := parts.get(t.name)))
    return replace(program, outputs=outputs, eqns=eqns, parts=(*program.parts, *lying))


def block_of(size: int) -> int:
    """Positions of a block of an axis: about as many as there are blocks."""
    return min(LARGEST, next_power_of_two(isqrt(size - 1) + 1))


@dataclass(frozen=True, slots=True)
class _Upto:
    """A mask of the positions of an axis up to those of `to`, or from them on. itself: whether it holds at a position
    itself. others: masks that hold besides."""

    to: str
    turned: bool
    itself: bool
    others: tuple[str, ...]

    @property
    def op(self) -> str:
        """The comparison of a summed position and `to`'s."""
        order = Order(strict=not self.itself, turned=self.turned)
        return next(name for name, row in OPS.items() if row.order == order)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Axes of blocks and of positions within one; `earlier` and `inner` are those that are summed."""

    block: str
    within: str
    earlier: str
    inner: str


class _Running(Rewriter):
    """least: positions of the shortest axis. sums: those of and in blocks: no type of the program rounds them. blocks:
    of axes of each size. stored: where outputs that are whole blocks may be written from."""

    def __init__(self, program: Program, least: int) -> None:
        super().__init__(program)
        self.least = least
        self.sums = frozenset[str]()
        self.blocks: dict[int, _Blocks] = {}
        self.stored: dict[str, Part] = {}

    def of(self, e: Eqn) -> tuple[Eqn, ...]:
        """The equation, or those that take its place."""
        self.known[e.out] = e
        if e.op != "sum" or len(e.axes) != 1 or self.dims[e.axes[0]] < self.least:
            return (e,)
        match self.known[e.values[0]]:
            case Eqn(op="where", args=(str(mask), str(inner), Fraction() as outside)) if not outside:
                upto = self.upto(mask, e.axes[0])
            case _:
                return (e,)
        if upto is None or upto.to in self.known[inner].dims or {upto.to, *e.axes} & self.fixed:
            return (e,)
        return tuple(self.summed(e, inner, upto))

    def upto(self, mask: str, axis: str) -> _Upto | None:
        """What a mask leaves of the axis, if that is what is up to each position of another axis of its size."""
        masks = tuple(self.conjuncts(mask))
        at = [m for m in masks if len(self.known[m].dims) > 1 and axis in self.known[m].dims]
        if len(at) != 1 or (zero_at_most := self.difference(at[0])) is None:
            return None
        terms = {d: c for (_, d), c in zero_at_most.terms}
        factor, others = terms.pop(axis, 0), tuple(terms.items())
        if len(others) != 1 or abs(factor) != 1 or zero_at_most.constant not in (0, 1):
            return None
        ((to, opposite),) = others
        if opposite != -factor or self.dims[to] != self.dims[axis]:
            return None
        rest = tuple(m for m in masks if m != at[0])
        if any(to in self.known[m].dims for m in rest):
            return None
        return _Upto(to, factor < 0, not zero_at_most.constant, rest)

    def difference(self, mask: str) -> Linear | None:
        """For a comparison of positions, the number that is at most 0 where it holds."""
        e = self.known[mask]
        if not isinstance(e, Eqn) or (order := OPS[e.op].order) is None:
            return None
        eqns = {name: x for name, x in self.known.items() if isinstance(x, Eqn)}
        left, right = (linear(a, eqns, lambda leaf: leaf[0] == "index") for a in e.args)
        if left is None or right is None:
            return None
        if order.turned:
            left, right = right, left
        return left.plus(right, -1).plus(ONE, int(order.strict))

    def conjuncts(self, mask: str) -> Iterator[str]:
        e = self.known[mask]
        if isinstance(e, Eqn) and e.op == "and":
            for m in e.values:
                yield from self.conjuncts(m)
        else:
            yield mask

    def summed(self, e: Eqn, value: str, upto: _Upto) -> Iterator[Eqn]:
        """The sum within the block of each position and that of the blocks before, and the read of what they make."""
        (axis,) = e.axes
        size = self.dims[axis]
        length = block_of(size)
        x = self.blocks_of(size, length)

        def made(name: str, op: str, args: tuple[Arg, ...], axes: tuple[str, ...] = ()) -> Eqn:
            return self.define(self.name(f"{e.out}_{name}"), op, args, axes)

        def masked(op: str, summed: str, to: str, value: str, name: str) -> Iterator[Eqn]:
            yield (left := made(summed, "index", (), (summed,)))
            yield (right := made(to, "index", (), (to,)))
            yield (mask := made("mask", op, (left.out, right.out)))
            yield (some := made("some", "where", (mask.out, value, Fraction(0))))
            yield made(name, "sum", (some.out,), (summed,))

        if upto.others:
            mask = upto.others[0]
            for other in upto.others[1:]:
                yield (both := made("mask", "and", (mask, other)))
                mask = both.out
            yield (some := made("some", "where", (mask, value, Fraction(0))))
            value = some.out
        yield (block := made("block", "rename", (value,), (axis, str(index({x.block: length, x.inner: 1})))))
        yield (total := made("total", "sum", (block.out,), (x.inner,)))
        yield (earlier := made("earlier", "rename", (total.out,), (x.block, x.earlier)))
        strict = replace(upto, itself=False).op
        *first, before = masked(strict, x.earlier, x.block, earlier.out, "before")
        yield from (*first, *(self.of(before) if self.dims[x.block] > FEW else (before,)))
        *first, within = masked(upto.op, x.inner, x.within, block.out, "within")
        yield from (*first, within)
        yield (both := made("both", "add", (within.out, before.out)))
        self.sums |= {total.out, earlier.out, before.out, within.out, both.out}
        to = index({upto.to: 1})
        at = ((x.block, quotient(to, length)), (x.within, remainder(to, length)))
        yield self.define(e.out, "rename", (both.out,), tuple(text for d, i in at for text in (d, str(i))))
        out = next((t for t in self.program.outputs if t.name == e.out), None)
        if out is not None and size % length == 0:
            access = tuple(index({x.block: length, x.within: 1} if d == upto.to else {d: 1}) for d in out.dims)
            self.stored[e.out] = Part(both.out, out, access)

    def blocks_of(self, size: int, length: int) -> _Blocks:
        if size not in self.blocks:
            count = -(-size // length)
            sizes = {"block": count, "within": length, "earlier": count, "inner": length}
            self.blocks[size] = _Blocks(**{name: self.new(name, n) for name, n in sizes.items()})
        return self.blocks[size]
