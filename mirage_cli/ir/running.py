"""Reductions up to each position of an axis, in the one form that kernels have scans of, and by blocks of long axes.

    sum(where(j < t and M[j], X[j], 0); j)  -->  sum(where(j <= t, Y[j], 0); j), Y[j] = where(M, X, 0)[j - 1]
    sum(where(j <= t, X[j], 0); j)[n - 1 - t]  -->  sum(where(j >= t, X[n - 1 - j], 0); j)         of n positions
    sum(where(j <= t, X[j], 0); j)  -->  B[b, i] = X[256*b + i]
                                         within[b, r] = sum(where(i <= r, B, 0); i)
                                         before[b] = sum(where(a < b, sum(B; i)[a], 0); a)
                                         add(within, before)[b = t // 256, r = t % 256]       of 65,536 positions t

So it is with maxima and minima, but for the blocks: finite fields know no maximum of two maxima. A kernel that holds j
and t whole has a scan of them (`ir.scans`). What lies outside of an axis is read as what changes no reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite

from mirage_cli.ir.access import Index, index, quotient, remainder
from mirage_cli.ir.ops import OPS, Order
from mirage_cli.ir.program import Arg, Eqn, Part, Program, Tensor
from mirage_cli.ir.rewriter import Rewriter
from mirage_cli.ir.scans import Upto, upto

LONG = 8192
"""Positions of the longest axis that is not taken in blocks."""
LEAST = 1024
"""Positions of the longest axis that is never taken in blocks: a program instance soon has them all."""
LENGTHS = range(256, 127, -1)
"""Positions of a block: the first of these of which an axis is a multiple, or else the first. A program instance may
have several blocks; tests of a μGraph have some whole ones (`verify.reduced`)."""


def in_scans(program: Program, long: int = LONG) -> Program | None:
    """A lowered program with its reductions up to each position as scans have them, by blocks along axes with more
    positions than `long`; None where that is the program."""
    found = _Running(program, long)
    eqns = tuple(made for e in program.eqns for made in found.of(e))
    if eqns == program.eqns:
        return None
    made = found.program_of(eqns)
    made = replace(made, internals=(program.internals | found.sums) & {e.out for e in made.eqns})
    return _stored_by_blocks(made, found.stored)


def pairs_of(program: Program) -> tuple[tuple[str, str], ...]:
    """Pairs of axes of one size by which a lowered program reduces up to each position: what is made of that holds for
    equal sizes."""
    found = _Running(program, LONG)
    for e in program.eqns:
        found.known[e.out] = e
    ways = filter(None, map(found.found, program.eqns))
    return tuple((x.upto.axis, x.upto.to) for x in ways)


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
    """Positions of a block of an axis."""
    return next((n for n in LENGTHS if size % n == 0), LENGTHS[0])


@dataclass(frozen=True, slots=True)
class _Found:
    """A reduction of a value up to each position. others: masks that hold besides."""

    e: Eqn
    value: str
    upto: Upto
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Axes of blocks and of positions within one; `earlier` and `inner` are those that are summed."""

    block: str
    within: str
    earlier: str
    inner: str


class _Running(Rewriter):
    """long: positions of the longest axis without blocks. sums: those of and in blocks: no type of the program rounds
    them. blocks: of axes of each size. stored: where outputs that are whole blocks may be written from. ways: of
    results that are reductions up to each position."""

    def __init__(self, program: Program, long: int) -> None:
        super().__init__(program)
        self.long = long
        self.blocks: dict[int, _Blocks] = {}
        self.stored: dict[str, Part] = {}
        self.ways: dict[str, _Found] = {}

    def of(self, e: Eqn) -> tuple[Eqn, ...]:
        """The equation, or those that take its place."""
        self.known[e.out] = e
        found = self.turned(e) if e.op == "rename" else self.found(e)
        if found is None:
            return (e,)
        self.ways[e.out] = found
        return tuple(self.scanned(found, found.e is not e))

    def turned(self, e: Eqn) -> _Found | None:
        """Of what is read from its end on, the reduction from the other side of what is read so too."""
        found = self.ways.get(e.values[0])
        if found is None or len(e.names) != 1:
            return None
        ((axis, place),) = e.names.items()
        at, last = found.upto, self.dims[found.upto.axis] - 1
        ((to, step),) = place.terms if len(place.terms) == 1 else (("", 0),)
        if axis != at.to or not isinstance(to, str) or (step, place.offset) != (-1, last) or to in self.fixed:
            return None
        if self.dims[to] != last + 1 or to in {at.axis, *self.known[found.value].dims}:
            return None
        turned = replace(found.e, out=e.out, dims=e.dims)
        return _Found(turned, found.value, replace(at, to=to, back=not at.back), found.others)

    def found(self, e: Eqn) -> _Found | None:
        """What a reduction is of, if it is up to each position of another axis of its own one's size."""
        if e.op not in OPS or not OPS[e.op].scan or len(e.axes) != 1:
            return None
        match self.known[e.values[0]]:
            case Eqn(op="where", args=(str(mask), str(value), outside)) if outside == OPS[e.op].identity:
                pass
            case _:
                return None
        (axis,) = e.axes
        masks = tuple(self.conjuncts(mask))
        at = [m for m in masks if len(self.known[m].dims) > 1 and axis in self.known[m].dims]
        compared = self.known[at[0]] if len(at) == 1 else None
        if not isinstance(compared, Eqn) or axis not in self.known[value].dims:
            return None
        eqns = {name: x for name, x in self.known.items() if isinstance(x, Eqn)}
        size = self.dims[axis]
        place = upto(compared, axis, eqns)
        if place is None or self.dims[place.to] != size:
            return None
        others = tuple(m for m in masks if m != at[0])
        if any(place.to in self.known[m].dims for m in others):
            return None
        fixed = {place.to, axis} & self.fixed
        return None if place.to in self.known[value].dims or fixed else _Found(e, value, place, others)

    def made(self, name: str, op: str, args: tuple[Arg, ...], axes: tuple[str, ...] = ()) -> Eqn:
        return self.define(self.name(name), op, args, axes)

    def reduced(self, e: Eqn, value: str, at: Upto, name: str) -> Iterator[Eqn]:
        """The reduction of a value up to each position, of the kind that `e` is."""
        yield (left := self.made(at.axis, "index", (), (at.axis,)))
        yield (right := self.made(at.to, "index", (), (at.to,)))
        order = Order(strict=at.apart > 0, turned=at.back)
        op = next(name for name, row in OPS.items() if row.order == order)
        yield (mask := self.made(f"{e.out}_mask", op, (left.out, right.out)))
        yield (some := self.made(f"{e.out}_some", "where", (mask.out, value, self.nothing(e))))
        yield self.define(e.out if name == e.out else self.name(f"{e.out}_{name}"), e.op, (some.out,), (at.axis,))

    @staticmethod
    def nothing(e: Eqn) -> Arg:
        """What changes no reduction of this kind."""
        identity = OPS[e.op].neutral(False)
        return Fraction(identity) if isfinite(identity) else identity

    def scanned(self, found: _Found, turned: bool) -> Iterator[Eqn]:
        """The reduction as scans have it. turned: of the value from its end on."""
        e, value, at, size = found.e, found.value, found.upto, self.dims[found.upto.axis]
        whole = size <= self.long or OPS[OPS[e.op].joins].known != "exactly"
        if not (found.others or turned or at.apart) and whole:
            yield e
            return
        if found.others:
            *first, some = self.where(e, found.others, value)
            yield from (*first, some)
            value = some.out
        if turned or at.apart:
            step = at.apart if at.back else -at.apart
            place = index({at.axis: -1}, size - 1 - step) if turned else index({at.axis: 1}, step)
            *first, moved = self.moved(e, value, at.axis, place)
            yield from (*first, moved)
            value, at = moved.out, replace(at, apart=0)
        if whole:
            yield from self.reduced(e, value, at, e.out)
        else:
            yield from self.by_blocks(e, value, at)

    def moved(self, e: Eqn, value: str, axis: str, place: Index) -> Iterator[Eqn]:
        """A value read elsewhere along an axis, and outside what changes no reduction."""
        size = self.dims[axis]
        yield (read := self.made(f"{e.out}_moved", "rename", (value,), (axis, str(place))))
        least, most = place.bounds(self.dims)
        if (self.nothing(e) == 0 and self.is_read(value)) or 0 <= least <= most < size:
            return  # what lies outside of a tensor is read as 0; what is made of that may be another number
        yield (at := self.made(axis, "index", (), (str(place),)))
        masks: list[str] = []
        if least < 0:
            yield (inside := self.made(f"{e.out}_mask", "ge", (at.out, Fraction(0))))
            masks.append(inside.out)
        if most >= size:
            yield (end := self.made(f"{axis}_size", "size", (), (axis,)))
            yield (inside := self.made(f"{e.out}_mask", "lt", (at.out, end.out)))
            masks.append(inside.out)
        yield from self.where(e, masks, read.out)

    def is_read(self, value: str) -> bool:
        """Whether a value is elements of a tensor."""
        e = self.known[value]
        return isinstance(e, Tensor) or (OPS[e.op].kind == "rename" and self.is_read(e.values[0]))

    def where(self, e: Eqn, masks: Sequence[str], value: str) -> Iterator[Eqn]:
        """A value where all of some masks hold, and else what changes no reduction."""
        mask = masks[0]
        for other in masks[1:]:
            yield (both := self.made(f"{e.out}_mask", "and", (mask, other)))
            mask = both.out
        yield self.made(f"{e.out}_some", "where", (mask, value, self.nothing(e)))

    def by_blocks(self, e: Eqn, value: str, at: Upto) -> Iterator[Eqn]:
        """The reduction within the block of each position and that of the blocks before, and the read of what they
        make."""
        size = self.dims[at.axis]
        length = block_of(size)
        x = self.blocks_of(size, length)
        *first, block = self.moved(e, value, at.axis, index({x.block: length, x.inner: 1}))
        yield from (*first, block)
        yield (total := self.made(f"{e.out}_total", e.op, (block.out,), (x.inner,)))
        yield (earlier := self.made(f"{e.out}_earlier", "rename", (total.out,), (x.block, x.earlier)))
        *first, others = self.moved(e, earlier.out, x.earlier, index({x.earlier: 1}, 1 if at.back else -1))
        yield from (*first, others)
        *first, before = self.reduced(e, others.out, replace(at, axis=x.earlier, to=x.block), "before")
        yield from (*first, before)
        *first, within = self.reduced(e, block.out, replace(at, axis=x.inner, to=x.within), "within")
        yield from (*first, within)
        yield (both := self.made(f"{e.out}_both", OPS[e.op].joins, (within.out, before.out)))
        self.sums |= {total.out, earlier.out, before.out, within.out, both.out}
        to = index({at.to: 1})
        read = ((x.block, quotient(to, length)), (x.within, remainder(to, length)))
        yield self.define(e.out, "rename", (both.out,), tuple(text for d, i in read for text in (d, str(i))))
        out = next((t for t in self.program.outputs if t.name == e.out), None)
        if out is not None and size % length == 0:
            access = tuple(index({x.block: length, x.within: 1} if d == at.to else {d: 1}) for d in out.dims)
            self.stored[e.out] = Part(both.out, out, access)

    def blocks_of(self, size: int, length: int) -> _Blocks:
        if size not in self.blocks:
            count = -(-size // length)
            sizes = {"block": count, "within": length, "earlier": count, "inner": length}
            self.blocks[size] = _Blocks(**{name: self.new(name, n) for name, n in sizes.items()})
        return self.blocks[size]
