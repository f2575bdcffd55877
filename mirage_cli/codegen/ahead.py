"""Loads of few bytes that are no words, an iteration ahead: Triton fetches none of them while earlier iterations
multiply (`ir/late.py`).

for i: S = load(S[i]); ...   -->   S_next = load(S[0]); for i: S = S_next; S_next = load(S[i + 1]); ...
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil

from mirage_cli.codegen import addresses, plan, scalars, words
from mirage_cli.codegen.access import multiplies
from mirage_cli.codegen.addresses import Place
from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.loops import LoopRange, chunk, positions, starts
from mirage_cli.codegen.moves import load
from mirage_cli.codegen.plan import Statement
from mirage_cli.codegen.scalars import Scalar, Start
from mirage_cli.ir.access import dims_of, lookups_of
from mirage_cli.ir.placement import Loop


def few_bytes(k: ScheduledKernel, loop: Loop, boxes: Collection[str]) -> frozenset[str]:
    """Loads of a loop that are taken from the iteration before. boxes: loads through descriptors."""
    if len(loop.dims) != 1 or k.schedule.stages < 2 or not multiplies(loop, k.dims, k.block):
        return frozenset()
    (d,) = loop.dims
    length = chunk(k, d) if d == k.kernel.split else k.sizes[d]
    if d not in k.dynamic and isinstance(length, int) and ceil(length / k.block[d]) < 2:
        return frozenset()
    written = {t.name for t in k.graph.outputs} | k.graph.changed
    return frozenset(
        x.out
        for x in words.few(k, loop)
        if x.out not in {*boxes, *k.paired, *k.worded} and x.buffer not in {*written, *k.live}
        if all(d not in dims_of(a.access) for a in lookups_of(x.access))
    )


def taken_ahead(
    phases: Sequence[ScheduledKernel], loop: Loop, part: LoopRange, body: Sequence[Statement], some: Collection[str]
) -> tuple[list[Statement], list[Statement], list[Statement]]:
    """What stands in front of a loop, what its body begins with, and the rest of that, with some of its loads an
    iteration ahead."""
    moved = [s for s in body if isinstance(s, plan.Load) and s.out in some and not s.others]
    if not moved:
        return [], [], [*body]
    k, (d,) = phases[0], loop.dims
    of = {x.out: (p, x) for p in phases for x in p.kernel.loads}
    sure = _runs(part.first, part.last)

    def loads(start: scalars.AtFirst | scalars.AtNext, always: bool) -> list[Statement]:
        reached = None if always else scalars.Reached(start, part.last)
        at: dict[str, Start] = {**starts(k), d: start}
        found = [load(*of[s.out], None, s.once, at, ahead=scalars.Ahead(start, reached)) for s in moved]
        return [*[positions(k, d, start)] * any(_by_position(s, d) for s in found), *found]

    first = scalars.AtFirst(d, part.first)
    taken = [plan.Take(s.out) for s in moved]
    rest = [s for s in body if s not in moved]
    return loads(first, sure), [*taken, *loads(scalars.AtNext(d, k.block[d]), False)], rest


def _runs(first: Scalar, last: Scalar) -> bool:
    """Whether a loop surely has an iteration."""
    match first, last:
        case scalars.Number(0), scalars.Size():
            return True
        case scalars.ChunkAt(length, False), scalars.ChunkAt(other, True):
            return length == other
        case _:
            return False


def _by_position(s: Statement, d: str) -> bool:
    """Whether a load takes the positions of the current block along a dimension."""
    assert isinstance(s, plan.Load) and isinstance(s.access, addresses.Pointers), "a load by pointers"
    places = [*s.access.terms, *(term for w in s.within for term in w.terms)]
    return d in s.mask or any(_names(place, d) for place, _ in places)


def _names(x: Place, d: str) -> bool:
    match x:
        case addresses.Lanes(dim):
            return dim == d
        case addresses.Divided(terms):
            return any(_names(place, d) for place, _ in terms)
        case _:
            return False
