"""Parts of a kernel that run side by side, each in program instances of its own.

    Q[t, h, d] = f(..), K[t, g, d] = f(..)      instances for tiles of (t, h, d), and behind them for tiles of (t, g, d)

In one grid over all axes, every instance of h would compute K anew. What both need is computed by the instances of
each: in the one grid it would be computed by more. A part whose grid is among another's axes stays with that one: its
blocks may be loaded already.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from mirage_cli.ir.mugraph import Kernel, Store
from mirage_cli.ir.program import live_eqns


def beside(kernel: Kernel, tiled: Collection[str]) -> tuple[Kernel, ...]:
    """The parts of a generated kernel whose program instances are their own; itself where there is one. tiled: axes of
    its grid that have several tiles."""
    return _parts(kernel, frozenset(tiled)) if len(kernel.stores) > 1 else (kernel,)


@lru_cache(maxsize=4096)
def _parts(kernel: Kernel, tiled: frozenset[str]) -> tuple[Kernel, ...]:
    groups: list[tuple[frozenset[str], list[Store]]] = []
    grids = [(_grid(kernel, s) & tiled, s) for s in kernel.stores]
    for axes, store in sorted(grids, key=lambda g: -len(g[0])):
        own = next((some for known, some in groups if axes <= known), None)
        if own is None:
            groups.append((axes, [store]))
        else:
            own.append(store)
    if len(groups) < 2:
        return (kernel,)
    return tuple(only(kernel, frozenset(stores)) for _, stores in groups)


def _grid(kernel: Kernel, store: Store) -> frozenset[str]:
    """The axes of the grid that what is stored depends on."""
    return frozenset(only(kernel, frozenset({store})).with_role("grid"))


@lru_cache(maxsize=4096)
def only(kernel: Kernel, stores: frozenset[Store]) -> Kernel:
    """The kernel with these stores alone, and what they need."""
    body = tuple(live_eqns(kernel.body, {s.value for s in stores}))
    loads = kernel.needed_loads(body, stores)
    axes = {d for x in (*loads, *stores) for d in x.dims} | {d for e in body for d in (*e.dims, *e.acts_on)}
    return replace(
        kernel,
        roles=tuple((d, r) for d, r in kernel.roles if d in axes),
        loads=loads,
        body=body,
        stores=tuple(s for s in kernel.stores if s in stores),
    )
