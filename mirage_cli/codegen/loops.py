"""The loops of a kernel: which there are, from where to where they go, and where their blocks start."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, prod
from types import MappingProxyType
from typing import NamedTuple

from mirage_cli.codegen import plan, scalars
from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.plan import Statement
from mirage_cli.codegen.scalars import Kind, Mark, Number, Scalar, Start
from mirage_cli.ir.access import FARTHEST, in_a_row
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.placement import Loop
from mirage_cli.ir.program import Eqn
from mirage_cli.ir.reach import Limit, Linear, limits
from mirage_cli.ir.schedule import chunk_length, on_matrix_units

MIN_PEELED = 4
"""Tiles of a loop from which on those that need no mask get a loop without it."""


class LoopRange(NamedTuple):
    """A part of a loop over one dimension. masks: what these are all the way."""

    first: Scalar
    last: Scalar
    masks: Mapping[str, bool] = MappingProxyType({})


def ranges(
    k: ScheduledKernel, loop: Loop, some: Sequence[Limit], specialized: bool
) -> tuple[list[Statement], tuple[LoopRange, ...]]:
    """The parts that a loop is written in, by positions along the dimension of its limits, and the marks between them.
    some: limits of the loop."""
    d = some[0].dim if some else loop.dims[0]
    tile = k.block[d]
    first, last = span(k, d)
    some = [x for x in some if not (x.steady and _everywhere(k, x.limit))]
    if not some:
        return [], (LoopRange(first, last),)
    found = _Bounds(k, some)
    marks: list[Statement] = []

    def mark(kind: Kind, scalar: Scalar, *masks: str) -> Mark:
        marks.append(plan.SetMark(Mark(kind, d), scalar, masks))
        return Mark(kind, d)

    last = _least(last, *found.ends) if found.ends else last
    if found.begins:
        first = mark("begin", _most(first, *(_aligned(least, tile) for least in found.begins)))
    last = mark("end", last, *dict.fromkeys(y.mask for x in some for y in x.all if not x.parts))
    if ceil(k.sizes[d] / tile) < MIN_PEELED or specialized:
        return marks, (LoopRange(first, last),)
    parts: list[LoopRange] = []
    known: dict[str, bool] = {}
    if found.gap is not None:
        most, least = found.gap
        pause = mark("pause", _least(last, _most(first, _aligned(scalars.Plus(most, tile), tile))))
        parts.append(LoopRange(first, pause))
        first = mark("resume", _most(pause, _aligned(least, tile)))
        known = found.behind_gap
    work = known | found.work
    if found.below:
        whole = _most(first, *(_aligned(scalars.Plus(most, tile - 1), tile) for most in found.below))
        begun = mark("whole", _least(whole, last))
        parts.append(LoopRange(first, begun, known))
        first = begun
    if found.above:
        whole = _least(last, *(_aligned(scalars.Plus(least, 1), tile) for least in found.above))
        rest = mark("rest", _most(first, whole))
        return marks, (*parts, LoopRange(first, rest, work), LoopRange(rest, last, known))
    return marks, (*parts, LoopRange(first, last, work))


class _Bounds:
    """What limits say of a loop in this program instance.

    begins, ends: positions in front of and behind which nothing changes. below, above: up to and from which on some
    mask of `work` is not throughout what it is there. gap: the last position in front of it, and the first behind it;
    of several gaps the first. behind_gap: what the mask that ends what is in front of it is there.
    """

    def __init__(self, k: ScheduledKernel, some: Sequence[Limit]) -> None:
        self.begins: list[Scalar] = []
        self.ends: list[Scalar] = []
        self.below: list[Scalar] = []
        self.above: list[Scalar] = []
        self.gap: tuple[Scalar, Scalar] | None = None
        self.work: dict[str, bool] = {}
        self.behind_gap: dict[str, bool] = {}
        for x in some:
            least, most = _reach(k, x.limit)
            if x.steady:
                works = _most(_least(scalars.Plus(most, 1), Number(1)), Number(0))  # 1 or 0
                self.ends.append(scalars.Sum(0, ((FARTHEST, works),)))
                continue
            if x.unless is None:
                (self.begins if x.lower else self.ends).append(least if x.lower else scalars.Plus(most, 1))
                (self.below if x.lower else self.above).append(most if x.lower else least)
                self.work[x.mask] = x.holds
                continue
            other_least, other_most = _reach(k, x.unless.limit)
            if not x.parts and x.lower:
                self.begins.append(_least(least, other_least))
            elif not x.parts:
                self.ends.append(scalars.Plus(_most(most, other_most), 1))
            elif self.gap is None:
                self.gap = other_most, least
                self.below.append(most)
                self.work[x.mask] = x.holds
                self.behind_gap[x.unless.mask] = not x.unless.holds


def span(k: ScheduledKernel, d: str) -> tuple[Scalar, Scalar]:
    """From where to where a loop over one dimension goes in this program instance."""
    size = scalars.Size(d, d in k.dynamic)
    if d != k.kernel.split:
        return Number(0), size
    length = chunk(k, d)
    last = scalars.ChunkAt(length, True)
    whole = k.sizes[d] == length * k.schedule.split if isinstance(length, int) else False
    return scalars.ChunkAt(length, False), last if whole else _least(last, size)


def chunk(k: ScheduledKernel, d: str) -> scalars.Length:
    """The length of the chunks of the split dimension."""
    if d in k.dynamic:
        return scalars.Share(d, k.schedule.split, k.block[d])
    return chunk_length(k.sizes[d], k.schedule.split, k.block[d])


def _least(*of: Scalar) -> Scalar:
    return scalars.Bound(False, of)


def _most(*of: Scalar) -> Scalar:
    return scalars.Bound(True, of)


def _aligned(position: Scalar, tile: int) -> Scalar:
    return scalars.Aligned(position, tile) if tile > 1 else position


def _reach(k: ScheduledKernel, x: Linear) -> tuple[Scalar, Scalar]:
    """The least and the most that a linear expression can be in this program instance."""
    ends: list[tuple[Scalar, Scalar]] = []
    for (kind, name), c in x.terms:
        if kind in ("value", "made"):
            axes, farthest = k.axes_of(name), FARTHEST // abs(c)  # what is beyond all positions is so with them too
            low, high = (
                _least(_most(scalars.Extreme(name, largest, axes), Number(-farthest)), Number(farthest))
                for largest in (False, True)
            )
        elif kind == "size":
            low = high = scalars.Size(name, True) if name in k.dynamic else Number(k.sizes[name])
        else:
            low, high = _extent(k, name)
        ends.append((low, high) if c > 0 else (high, low))
    coefficients = [c for _, c in x.terms]
    low, high = (tuple(zip(coefficients, (end[i] for end in ends), strict=True)) for i in (0, 1))
    return scalars.Sum(x.constant, low), scalars.Sum(x.constant, high)


def _everywhere(k: ScheduledKernel, x: Linear) -> bool:
    """Whether a linear expression is at least 0 somewhere in each program instance, whatever is loaded."""
    least = x.constant
    for (kind, name), c in x.terms:
        if kind in ("value", "made") or name in k.dynamic:
            return False
        if kind == "size":
            least += c * k.sizes[name]
            continue
        tile = k.block[name]
        least += c * (min(tile, k.sizes[name]) - 1) if c > 0 else c * ((k.sizes[name] - 1) // tile * tile)
    return least >= 0


def _extent(k: ScheduledKernel, d: str) -> tuple[Scalar, Scalar]:
    """The first and the last position along a dimension that does not move here."""
    if d not in k.kernel.with_role("grid") or not k.tiled(d):
        return Number(0), Number(k.sizes[d] - 1)
    return scalars.TileAt(d, k.block[d], False), scalars.TileAt(d, k.block[d], True)


def starts(k: ScheduledKernel, loop: Loop | None = None) -> Mapping[str, Start]:
    """Where the current block starts along each dimension, in a loop or outside."""
    found: dict[str, Start] = {d: scalars.AtZero() for d in k.block}
    for d in k.kernel.with_role("grid"):
        if k.tiled(d):
            found[d] = scalars.AtTile(d, k.block[d])
    return found if loop is None else found | loop_starts(k, loop)


def loop_starts(k: ScheduledKernel, loop: Loop) -> dict[str, Start]:
    """The same along the dimensions of a loop, in the order in which it walks them."""
    if len(loop.dims) == 1:
        (d,) = loop.dims
        return {d: scalars.AtStep(d)}
    dims = in_turn(k, loop)
    trips = _trips(k, dims)
    found: dict[str, Start] = {}
    for i, d in enumerate(dims):
        length = chunk(k, d) if d == k.kernel.split else None
        found[d] = scalars.AtJointStep(_product(trips[i + 1 :]), trips[i] if i else None, k.block[d], length)
    return found


def together(k: ScheduledKernel, loop: Loop, outermost: plan.Over) -> plan.Together:
    """A loop over several dimensions together. outermost: the part of it, along the dimension that limits are of."""
    dims = in_turn(k, loop)
    trips = _trips(k, dims)
    d = dims[0]
    if d == k.kernel.split:
        return plan.Together(dims, _product(trips[1:]), (d, chunk(k, d), k.block[d]))
    if limits(k.kernel, loop):
        return plan.Together(dims, _product(trips[1:]), None, outermost)
    return plan.Together(dims, _product(trips), None)


def stages(k: ScheduledKernel, loop: Loop, ahead: Collection[str]) -> int | None:
    """What Triton is told of a loop with products on the matrix units, where by itself it would not have all loads in
    flight.

    What no product takes, such as scales of what they compute, it loads in their own iteration, unless it is told.
    Where tables are read for what a product takes, ⌈(n - 2) / (tables in a row + 1)⌉ iterations of n are in flight: n
    is such that as many are as the schedule says. ahead: loads of the next iteration, which it leaves where they are.
    """
    eqns = {s.out: s for s in loop.steps if isinstance(s, Eqn)}
    factored = {name: x.product for name, x in k.factored.items()}
    products = [factored.get(e.out, e) for e in _products(k, loop)]
    taken = set[str]()
    todo = [v for e in products for v in e.values]
    while todo:
        v = todo.pop()
        todo += eqns[v].values if v in eqns and v not in taken else ()
        taken.add(v)
    loads = [s for s in loop.steps if isinstance(s, Load) and s.out not in ahead]
    row = max((in_a_row(s.access, loop.dims) for s in loads if s.out in taken), default=0)
    told = products and (row or any(s.out not in taken for s in loads))
    return (row + 1) * (k.schedule.stages - 1) + 1 if told else None


def _products(k: ScheduledKernel, loop: Loop) -> list[Eqn]:
    """The products of a loop that the matrix units take."""
    eqns = (s for s in loop.steps if isinstance(s, Eqn) and s.op == "dot")
    return [e for e in eqns if on_matrix_units(e, k.dims, k.block)]


def in_turn(k: ScheduledKernel, loop: Loop) -> tuple[str, ...]:
    """The dimensions of a loop, outermost a split one, or the one that limits are of."""
    first = {k.kernel.split, *(x.dim for x in limits(k.kernel, loop))}
    return tuple(sorted(loop.dims, key=lambda d: d not in first))


def _trips(k: ScheduledKernel, dims: Sequence[str]) -> list[scalars.Count]:
    return [scalars.Tiles(d, k.block[d]) if d in k.dynamic else ceil(k.sizes[d] / k.block[d]) for d in dims]


def _product(counts: Sequence[scalars.Count]) -> tuple[scalars.Count, ...]:
    """Factors of a product: one number, and those that follow from arguments."""
    return prod(n for n in counts if isinstance(n, int)), *(n for n in counts if not isinstance(n, int))


def positions(k: ScheduledKernel, d: str, start: Start) -> plan.Positions:
    wide = k.huge and (k.block[d] > 1 or not isinstance(start, scalars.AtZero))
    return plan.Positions(d, start, k.block[d] > 1, wide, d in k.padded and k.block[d] > 1)


def uneven(limits: Mapping[Loop, Sequence[Limit]]) -> dict[str, bool]:
    """Dimensions along which loops get longer or shorter from tile to tile, with whether the last tile has the longest.
    Those along which both ends of a loop move are none of them."""
    found = {
        (name, (c > 0) != x.lower)
        for own in limits.values()
        for limit in own
        for x in limit.all
        for (kind, name), c in x.limit.terms
        if kind == "index" and c and not x.steady
    }
    return {d: grows for d, grows in sorted(found) if (d, not grows) not in found}
