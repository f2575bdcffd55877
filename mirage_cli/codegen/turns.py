"""Loads and stores of elements that lie in turns, as one of a block so many times as long (`ir/turns.py`).

    store X[m, 2*i] = a          store X[m, i'] = a and b in turns, for i' over twice the positions of i
    store X[m, 2*i + 1] = b  -->

On an H200, stores of two bytes of each four took GPT-J's rotation of 3,000 x 32 heads to 53 us, of which 6 are what its
bytes take; nine stores of four bytes, of a million records of nine, to 69 us, where one of a block of sixteen takes 22.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mirage_cli.codegen import addresses, nodes, plan
from mirage_cli.codegen.blocks import MAX_ELEMENTS, ScheduledKernel
from mirage_cli.codegen.plan import Statement
from mirage_cli.codegen.scalars import Start
from mirage_cli.ir.mugraph import Store
from mirage_cli.ir.turns import STORED, Turns, in_turns

NOTHING = nodes.Literal(0.0)


def loads_in_turns(
    phases: Sequence[ScheduledKernel], body: Sequence[Statement], at: Mapping[str, Start]
) -> list[Statement]:
    """Statements with such loads as one, where the first of them stands. None goes past a loop, a store or the wait.
    phases: the kernel in each. at: where blocks start."""
    found: list[Statement] = []
    run: list[Statement] = []
    for s in body:
        run.append(s)
        if isinstance(s, plan.Loop | plan.Store | plan.Wait):
            found += _loads(phases, run, at)
            run = []
    return [*found, *_loads(phases, run, at)]


def _loads(phases: Sequence[ScheduledKernel], run: Sequence[Statement], at: Mapping[str, Start]) -> Iterator[Statement]:
    k = phases[0]
    accesses = {x.out: x.access for p in phases for x in p.kernel.loads}
    some = [s for s in run if isinstance(s, plan.Load) and s.out in accesses and _plain(s)]
    new: dict[str, plan.Load | None] = {}
    tensors = [(k.tensors[s.access.buffer], accesses[s.out]) for s in some]
    for x in in_turns(tensors, k.sizes, k.dynamic):
        members = [some[n] for n in x.members]
        where = [s.access for s in members if isinstance(s.access, addresses.Pointers)]
        if len({replace(s, out="", access=_from_zero(p)) for s, p in zip(members, where, strict=True)}) == 1:
            pointers = _together(k, where, members[0].within, x, at)
            if pointers is not None:
                first, *others = (s.out for s in members)
                in_front = min(members, key=some.index).out
                new |= dict.fromkeys((s.out for s in members), None)
                new[in_front] = replace(members[0], out=first, access=pointers, others=tuple(others))
    for s in run:
        moved = new.get(s.out, s) if isinstance(s, plan.Load) else s
        if moved is not None:
            yield moved


def _plain(s: plan.Load) -> bool:
    """Whether pointers load it, as it is."""
    pointers = isinstance(s.access, addresses.Pointers) and not s.access.bits
    return pointers and not s.others and s.ahead is None and s.when is None and not s.repeated


def stores_in_turns(
    k: ScheduledKernel, stores: Sequence[Store], statements: Sequence[plan.Store], at: Mapping[str, Start]
) -> list[plan.Store]:
    """The statements of stores with nothing between, those in turns as one, where the last of them stands."""
    new: dict[int, plan.Store | None] = {}
    for x in in_turns([(k.tensors[s.buffer], s.access) for s in stores], k.sizes, k.dynamic, STORED):
        members = [statements[n] for n in x.members]
        if len({replace(s, block=NOTHING, pointers=_from_zero(s.pointers)) for s in members}) == 1:
            pointers = _together(k, [s.pointers for s in members], members[0].within, x, at)
            if pointers is not None:
                first, *others = (_whole(s.block, pointers.axes) for s in members)
                new |= dict.fromkeys(x.members, None)
                new[max(x.members)] = replace(members[0], pointers=pointers, block=first, others=tuple(others))
    moved = (new.get(n, s) for n, s in enumerate(statements))
    return [s for s in moved if s is not None]


def _whole(x: nodes.Expr, axes: nodes.Axes) -> nodes.Expr:
    """A block with all elements of these axes, of which it may have one."""
    if isinstance(x, nodes.Spread) or not x.axes:
        return nodes.Repeated(nodes.Spread(x, axes) if not x.axes else x, axes)
    return x


def _from_zero(x: addresses.Pointers) -> addresses.Pointers:
    return replace(x, start=0)


def _together(
    k: ScheduledKernel,
    some: Sequence[addresses.Pointers],
    within: Sequence[addresses.Within],
    x: Turns,
    at: Mapping[str, Start],
) -> addresses.Pointers | None:
    """The pointers of all, where the axis is one of their blocks and no bound depends on it."""
    first, count = some[0], len(some)
    lanes, turns = addresses.Lanes(x.dim, True), addresses.Turns(x.dim, count, at[x.dim], k.huge)
    bounded = any(x.dim in addresses.lanes_of(place) for w in within for place, _ in w.terms)
    if (lanes, count) not in first.terms or bounded or turns.room * k.elements(first.axes) > MAX_ELEMENTS:
        return None
    if [p.start for p in some] != [first.start + n for n in range(count)]:
        return None
    return replace(first, terms=tuple((turns, 1) if place == lanes else (place, n) for place, n in first.terms))
