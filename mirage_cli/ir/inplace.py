"""Inputs that are changed in place: whether what is read of them is read before it is overwritten.

N = S * W + K * V
S[b, k, v] = N          the kernel that stores N reads S too: each program instance what it overwrites itself
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mirage_cli.ir.access import Access, Distinct, dims_of, plain, read_by
from mirage_cli.ir.beside import beside, only
from mirage_cli.ir.footprint import apart, told_by_steps, untold
from mirage_cli.ir.mugraph import Kernel, Load, Store
from mirage_cli.ir.placement import InexpressibleError, Loop, place
from mirage_cli.ir.program import Eqn, Program, Tensor, distinct_tables


def reads_of(t: Tensor, eqns: Iterable[Eqn]) -> list[Access]:
    """How equations read a tensor."""
    return [
        read_by(t.dims, e.names) if e.names and e.args[0] == t.name else plain(t.dims)
        for e in eqns
        if t.name in e.values
    ]


def reread(program: Program) -> frozenset[str]:
    """The parts, by value, that lie where the program reads an input: its old elements."""
    changed, distinct = program.changed, distinct_tables(program.inputs)
    return frozenset(
        p.value
        for p in program.parts
        if p.tensor.name in changed
        and any(not apart(p.access, x, program.sizes, distinct) for x in reads_of(p.tensor, program.eqns))
    )


class TooLate(NamedTuple):
    """A load of elements that a store in front of it, or of another program instance, may have overwritten."""

    kernel: Kernel
    load: Load
    store: Store


def too_late(
    kernels: Sequence[Kernel], changed: Collection[str], sizes: Mapping[str, int], distinct: Distinct
) -> Iterator[TooLate]:
    """Those of kernels in order. changed: the inputs that they store into."""
    for i, k in enumerate(kernels):
        for s in (s for s in k.stores if s.buffer in changed):
            for later in kernels[i:]:
                for x in (x for x in later.loads if x.buffer == s.buffer):
                    first = later is k and reads_first(k, x, s, sizes, distinct)
                    if not first and not apart(x.access, s.access, sizes, distinct):
                        yield TooLate(later, x, s)


def overwrites(k: Kernel, s: Store, sizes: Mapping[str, int], distinct: Distinct) -> bool:
    """Whether a kernel may read elements that it stores."""
    return any(x.buffer == s.buffer and not apart(x.access, s.access, sizes, distinct) for x in k.loads)


def reads_first(k: Kernel, x: Load, s: Store, sizes: Mapping[str, int], distinct: Distinct) -> bool:
    """Whether program instances read by `x`, for what they store, nothing that another one overwrites by `s`, nor what
    they have overwritten: no others do (`shared`), and of the loop that both stand in all axes are told, where the last
    read is in no loop in front of it.
    """
    if shared(k, x, s, sizes, distinct) != ():
        return False
    told = _told(x.access, s.access, sizes, distinct)
    try:
        segments = place(k).segments
    except InexpressibleError:
        return False
    stored = next(i for i, segment in enumerate(segments) if s in segment.stores)
    last = max((i for i, segment in enumerate(segments) if x in segment.steps), default=-1)
    segment = segments[stored]
    return last < stored or (last == stored and (not isinstance(segment, Loop) or {*segment.dims} <= told))


def shared(k: Kernel, x: Load, s: Store, sizes: Mapping[str, int], distinct: Distinct) -> tuple[str, ...] | None:
    """The axes of which instances with other positions may overwrite by `s` what one reads by `x`: those that are cut
    over instances, and that elements do not tell. None where `s` has instances of its own."""
    cut = _cut(k, x, s)
    if cut is None:
        return None
    told = _told(x.access, s.access, sizes, distinct)
    return tuple(d for d in cut if d not in told)


def _told(x: Access, y: Access, sizes: Mapping[str, int], distinct: Distinct) -> set[str]:
    """The axes of which two positions read and write different elements: the indices that both accesses have in common
    tell them, or the terms that two indices have in common, of steps that the rest of them does not reach."""
    several = {d: max(n, 2) for d, n in sizes.items()}  # what a kernel may read is the same at all sizes
    common = tuple(i for i, j in zip(x, y, strict=True) if i == j)
    told = {*dims_of(common)}.difference(untold(common, several, distinct))
    return told.union(*(told_by_steps(i, j, several) for i, j in zip(x, y, strict=True)))


def _cut(k: Kernel, x: Load, s: Store) -> tuple[str, ...] | None:
    """The axes that are cut over the instances for which it matters what `x` reads; None where `s` has instances of
    its own. Where what is made of it is stored by the instances that store `s`, and by no others, these may read what
    they like."""
    makers = [only(k, frozenset({t})) for t in k.stores if t == s or x in only(k, frozenset({t})).loads]
    if len({(frozenset(m.with_role("grid")), frozenset(m.with_role("split"))) for m in makers}) == 1:
        return makers[0].with_role("grid", "split")
    grid = k.with_role("grid")
    return k.with_role("grid", "split") if len(beside(k, grid)) == 1 else None
