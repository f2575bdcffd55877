"""Parts of a kernel that share no equation: they run side by side, each in program instances of its own.

    Q[t, h, d] = f(..), K[t, g, d] = f(..)      instances for tiles of (t, h, d), and behind them for tiles of (t, g, d)

In one grid over all axes, every instance of h would compute K anew. A part whose grid is among another's axes stays
with that one: its blocks may be loaded already.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mirage_cli.ir.mugraph import Kernel, Load, Store
from mirage_cli.ir.program import Eqn


def beside(kernel: Kernel, tiled: Collection[str]) -> tuple[Kernel, ...]:
    """The parts of a generated kernel whose program instances are their own; itself where there is one. tiled: axes of
    its grid that have several tiles."""
    groups: list[tuple[frozenset[str], list[Store]]] = []
    parts = [(_grid(kernel, stores) & frozenset(tiled), stores) for stores in _apart(kernel)]
    for axes, stores in sorted(parts, key=lambda p: -len(p[0])):
        own = next((some for known, some in groups if axes <= known), None)
        if own is None:
            groups.append((axes, stores))
        else:
            own += stores
    if len(groups) < 2:
        return (kernel,)
    return tuple(_only(kernel, {*stores}) for _, stores in groups)


def _apart(kernel: Kernel) -> list[list[Store]]:
    """The stores, those together that need one equation, or store one value."""
    found: list[tuple[set[str], list[Store]]] = []
    for s in kernel.stores:
        needed, stores = {e.out for e in _equations(kernel, {s.value})} or {s.value}, [s]
        for other in [x for x in found if x[0] & needed]:
            found.remove(other)
            needed, stores = needed | other[0], other[1] + stores
        found.append((needed, stores))
    return [stores for _, stores in found]


def _equations(kernel: Kernel, values: set[str]) -> tuple[Eqn, ...]:
    """Those that these values need, in order."""
    need, kept = set(values), list[Eqn]()
    for e in reversed(kernel.body):
        if e.out in need:
            need |= {*e.values}
            kept.append(e)
    return tuple(reversed(kept))


def _loads(kernel: Kernel, body: Collection[Eqn], stores: Collection[Store]) -> tuple[Load, ...]:
    used = {v for e in body for v in e.values} | {s.value for s in stores}
    return tuple(x for x in kernel.loads if x.out in used)


def _grid(kernel: Kernel, stores: Collection[Store]) -> frozenset[str]:
    """The axes of the grid that these stores depend on."""
    return frozenset(_only(kernel, {*stores}).with_role("grid"))


def _only(kernel: Kernel, stores: Collection[Store]) -> Kernel:
    """The kernel with these stores alone, and what they need."""
    body = _equations(kernel, {s.value for s in stores})
    loads = _loads(kernel, body, stores)
    axes = {d for x in (*loads, *stores) for d in x.dims} | {d for e in body for d in (*e.dims, *e.acts_on)}
    return replace(
        kernel,
        roles=tuple((d, r) for d, r in kernel.roles if d in axes),
        loads=loads,
        body=body,
        stores=tuple(s for s in kernel.stores if s in stores),
    )
