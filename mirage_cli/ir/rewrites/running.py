"""Reductions up to each position of an axis, in the one form that kernels have scans of, and by blocks of long axes.

    sum(where(j < t and M[j], X[j], 0); j)  -->  sum(where(j <= t, Y[j], 0); j), Y[j] = where(M, X, 0)[j - 1]
    sum(where(j <= t, X[j], 0); j)[n - 1 - t]  -->  sum(where(j >= t, X[n - 1 - j], 0); j)         of n positions
    sum(where(j <= t, X[j], 0); j)  -->  B[b, i] = X[256*b + i]
                                         within[b, r] = sum(where(i <= r, B, 0); i)
                                         before[b] = sum(where(a < b, sum(B; i)[a], 0); a)
                                         add(within, before)[b = t // 256, r = t % 256]       of 65,536 positions t
    sum(where(s <= t, X[s] * prod(where(s < r and r <= t, D[r], 1); r), 0); s)
                                     -->  total[b] = the last of within[b], whole[b] = prod(D[b]; r)
                                         before[b] = whole[b - 1] * before[b - 1] + total[b - 1]
                                         add(within, mul(prod(where(r <= w, D[b, r], 1); r), before))

So it is with maxima and minima, but for the blocks: finite fields know no maximum of two maxima. A kernel that holds j
and t whole has a scan of them (`ir.scans`). What lies outside of an axis is read as what changes no reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite

from mirage_cli.ir.access import Index, index, quotient, remainder, renames
from mirage_cli.ir.op import Order
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Part, Program, Tensor
from mirage_cli.ir.rewrites.rewriter import Rewriter
from mirage_cli.ir.scans import Scan, Upto, by_scans, scan_of, upto

LONG = 8192
"""Positions of the longest axis that is not taken in blocks."""
LEAST = 1024
"""Positions of the longest axis that is never taken in blocks: a program instance soon has them all."""
BLOCK, LONGEST_BLOCK, BLOCKS = 256, 2048, 4096
"""Positions of a block, or down to half as many: the most of which an axis is a multiple, else up to twice as many: the
fewest. Where an axis is no multiple of any, the result is copied from where its blocks are. They are longer where there
would be more than `BLOCKS`, as each block adds up the sums of those before. Measured on an H200, 6,553,600 positions:
195 µs in blocks of 256, 31 of 1024, 25 of 2048 and of 4096. A program instance may have several blocks; tests of a
μGraph have some whole ones (`verify.reduced`)."""
DECAYING = (16, 32)
"""The same of a recurrence, whose tests hold all triples of positions: the first of these of which there are at most
`MANY`, or else the last."""
MANY = 4096
"""Blocks of a recurrence that one program instance may well walk, with some of the axes beside it."""


def in_scans(program: Program, long: int = LONG) -> Program | None:
    """A lowered program with its reductions up to each position as scans have them, by blocks along axes with more
    positions than `long`; None where that is the program."""
    found = _Running(program, long)
    made = found.rewritten()
    return made and _stored_by_blocks(made, found.stored)


def pairs_of(program: Program) -> tuple[tuple[str, str], ...]:
    """Pairs of axes of one size by which a lowered program reduces up to each position: what is made of that holds for
    equal sizes."""
    found = _Running(program, LONG)
    for e in program.eqns:
        found.known[e.out] = e
    ways = filter(None, map(found.found, program.eqns))
    decaying = (e for e in by_scans(program).eqns if isinstance(e, Scan) and e.along)
    return (*((x.upto.axis, x.upto.to) for x in ways), *((a, e.to) for e in decaying for a in e.over))


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
    most = BLOCK
    while most < LONGEST_BLOCK and size > BLOCKS * most:
        most *= 2
    near = (*range(most, most // 2 - 1, -1), *range(most + 1, 2 * most + 1))
    return next((n for n in near if size % n == 0), most)


@dataclass(frozen=True, slots=True)
class _Found:
    """A reduction of a value up to each position. others: masks that hold besides."""

    e: Eqn
    value: str
    upto: Upto
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Axes of blocks and of positions within one; `earlier` and `inner` are those that are summed, `between` and
    `after` those of decays."""

    block: str
    within: str
    earlier: str
    inner: str
    between: str = ""
    after: str = ""


def _ordered(order: Order) -> str:
    """The comparison that asks for this order."""
    return next(name for name, row in OPS.items() if row.order == order)


class _Running(Rewriter):
    """long: positions of the longest axis without blocks. sums: those of and in blocks: no type of the program rounds
    them. blocks: of axes of each size. stored: where outputs that are whole blocks may be written from. ways: of
    results that are reductions up to each position."""

    def __init__(self, program: Program, long: int) -> None:
        super().__init__(program)
        self.long = long
        self.blocks: dict[tuple[int, bool], _Blocks] = {}
        self.stored: dict[str, Part] = {}
        self.ways: dict[str, _Found] = {}
        self.shifts = {e.values[-1] for e in program.eqns if e.op in OPS and OPS[e.op].shift}

    def of(self, e: Eqn) -> tuple[Eqn, ...]:
        """The equation, or those that take its place."""
        self.known[e.out] = e
        found = self.turned(e) if e.op == "rename" else self.found(e)
        if found is None:
            decaying = self.decaying(e)
            return tuple(self.decaying_by_blocks(decaying)) if decaying else (e,)
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
        op = _ordered(Order(strict=at.apart > 0, turned=at.back))
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
        if whole and (e.out in self.shifts or not (found.others or turned or at.apart)):
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
        if (self.nothing(e) == 0 and self.is_read(value, axis)) or 0 <= least <= most < size:
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

    def is_read(self, value: str, axis: str) -> bool:
        """Whether a value is elements of a tensor, and an axis of it the whole of one of the tensor's: what is read
        behind the end of X[s + 1] may lie in X."""
        e = self.known[value]
        if isinstance(e, Tensor):
            return True
        if OPS[e.op].kind != "rename":
            return False
        at = [(d, i) for d, i in e.names.items() if axis in i.dims]
        if len(at) > 1 or not all(renames(d, i, self.dims) for d, i in at):
            return False
        return self.is_read(e.values[0], at[0][0] if at else axis)

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
        yield self.from_blocks(e, at.to, both.out, x, length)

    def from_blocks(self, e: Eqn, to: str, both: str, x: _Blocks, length: int) -> Eqn:
        """The read of what is there by blocks, which is written as it is where an output is nothing else."""
        place, size = index({to: 1}), self.dims[to]
        read = ((x.block, quotient(place, length)), (x.within, remainder(place, length)))
        out = next((t for t in self.program.outputs if t.name == e.out), None)
        if out is not None and size % length == 0:
            access = tuple(index({x.block: length, x.within: 1} if d == to else {d: 1}) for d in out.dims)
            self.stored[e.out] = Part(both, out, access)
        return self.define(e.out, "rename", (both,), tuple(text for d, i in read for text in (d, str(i))))

    def decaying(self, e: Eqn) -> Scan | None:
        """A recurrence along an axis that is taken in blocks."""
        if e.op not in OPS or OPS[e.op].kind != "reduction":
            return None
        eqns = {name: x for name, x in self.known.items() if isinstance(x, Eqn) and x.op in OPS}
        found = scan_of(e, eqns, {name: x.dims for name, x in self.known.items()})
        if found is None or not found.along or {found.to, *found.over} & self.fixed:
            return None
        long = self.dims[found.to] > self.long
        return found if long and all(self.dims[a] == self.dims[found.to] for a in found.over) else None

    def decaying_by_blocks(self, e: Scan) -> Iterator[Eqn]:
        """The recurrence within each block, from nothing on; its last results and the decays over blocks; the
        recurrence of these; and what is left of them at each position."""
        (axis,), size, product = e.axes, self.dims[e.to], replace(e, op="prod")
        length = next((n for n in DECAYING if size <= n * MANY), DECAYING[-1])
        x, step = self.blocks_of(size, length, True), 1 if e.back else -1
        value, *others = e.factors
        for other in others:
            yield (term := self.made(f"{e.out}_term", "mul", (value, other)))
            value = term.out
        assert isinstance(value, str), "one of the factors has the axis"
        yield from (some := [*self.moved(e, value, axis, index({x.block: length, x.inner: 1}))])
        block = some[-1].out
        yield from (some := [*self.decays(e, x, length)])
        decay = some[-1].out
        yield (whole := self.made(f"{e.out}_whole", "prod", (decay,), (x.after,)))
        yield from (some := [*self.moved(product, decay, x.after, index({x.after: 1}, -step))])
        yield from (some := [*self.reduced(product, some[-1].out, Upto(x.after, x.inner, not e.back, 0), "left")])
        yield (total := self.made(f"{e.out}_total", "dot", (block, some[-1].out), (x.inner,)))
        yield (ends := self.made(f"{e.out}_moved", "rename", (total.out,), (x.block, str(index({x.earlier: 1}, step)))))
        yield from (there := [*self.there(e, x.earlier, step, length)])
        yield (ends := self.made(f"{e.out}_some", "where", (there[-1].out, ends.out, self.nothing(e))))
        # the first decay has nothing to multiply
        yield (
            wholes := self.made(f"{e.out}_moved", "rename", (whole.out,), (x.block, str(index({x.between: 1}, step))))
        )
        axes = x.earlier, x.between, x.block
        yield from (before := [*self.recurrence(e, ends.out, wholes.out, axes, "before")])
        yield from (within := [*self.recurrence(e, block, decay, (x.inner, x.after, x.within), "within")])
        yield from (kept := [*self.reduced(product, decay, Upto(x.after, x.within, e.back, 0), "kept")])
        yield (carried := self.made(f"{e.out}_carried", "mul", (kept[-1].out, before[-1].out)))
        yield (both := self.made(f"{e.out}_both", "add", (within[-1].out, carried.out)))
        new = (whole, some[-1], total, before[-1], within[-1], kept[-1], carried, both)
        self.sums |= {q.out for q in new}
        yield self.from_blocks(e, e.to, both.out, x, length)

    def decays(self, e: Scan, x: _Blocks, length: int) -> Iterator[Eqn]:
        """The decays of each block: 1 past the end of the axis."""
        decay, nothing = e.decay, replace(e, op="prod")
        assert decay is not None, "a recurrence"
        if isinstance(decay, str) and e.along in self.known[decay].dims:
            yield from self.moved(nothing, decay, e.along, index({x.block: length, x.after: 1}))
            return
        yield (place := self.made(x.after, "index", (), (str(index({x.block: length, x.after: 1})),)))
        yield (end := self.made(f"{e.to}_size", "size", (), (e.to,)))
        yield (there := self.made(f"{e.out}_mask", "lt", (place.out, end.out)))
        yield self.made(f"{e.out}_decay", "where", (there.out, decay, Fraction(1)))

    def there(self, e: Scan, axis: str, step: int, length: int) -> Iterator[Eqn]:
        """Whether there is a block in front of each, or behind."""
        if step < 0:
            yield (place := self.made(axis, "index", (), (str(index({axis: 1}, step)),)))
            yield self.made(f"{e.out}_mask", "ge", (place.out, Fraction(0)))
            return
        yield (place := self.made(axis, "index", (), (str(index({axis: length}, length)),)))
        yield (end := self.made(f"{e.to}_size", "size", (), (e.to,)))
        yield self.made(f"{e.out}_mask", "lt", (place.out, end.out))

    def recurrence(self, e: Scan, value: str, decay: str, axes: tuple[str, str, str], name: str) -> Iterator[Eqn]:
        """What there is at each position of the last of these axes, of values along the first and decays along the
        second."""
        axis, along, to = axes
        left, right, end = (self.made(a, "index", (), (a,)) for a in (along, axis, to))
        behind = self.made(f"{e.out}_mask", _ordered(Order(strict=True, turned=not e.back)), (left.out, right.out))
        until = self.made(f"{e.out}_mask", _ordered(Order(strict=False, turned=e.back)), (left.out, end.out))
        there = self.made(f"{e.out}_mask", "and", (behind.out, until.out))
        some = self.made(f"{e.out}_some", "where", (there.out, decay, Fraction(1)))
        decayed = self.made(f"{e.out}_decayed", "prod", (some.out,), (along,))
        term = self.made(f"{e.out}_term", "mul", (value, decayed.out))
        yield from (left, right, end, behind, until, there, some, decayed, term)
        yield from self.reduced(e, term.out, Upto(axis, to, e.back, 0), name)
        self.sums |= {decayed.out, term.out}

    def blocks_of(self, size: int, length: int, decaying: bool = False) -> _Blocks:
        if (size, decaying) not in self.blocks:
            count = -(-size // length)
            sizes = {"block": count, "within": length, "earlier": count, "inner": length}
            sizes |= {"between": count, "after": length} if decaying else {}
            self.blocks[size, decaying] = _Blocks(**{name: self.new(name, n) for name, n in sizes.items()})
        return self.blocks[size, decaying]
