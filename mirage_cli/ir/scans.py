"""Reductions up to each position of an axis that a kernel holds whole: one scan computes those of all positions.

    sum(where(j <= t, X[j], 0); j)  -->  running sums of X, with the roles j:tile, t:tile

μGraphs keep the masked reduction, which says all of it. As with the matrix units, how a block of it is computed is left
to the cost model and the planner: both see the kernel with `Scan`s in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, live_eqns
from mirage_cli.ir.reach import ONE, Linear, linear


@dataclass(frozen=True, slots=True)
class Scan(Eqn):
    """At each position along `to`, what `op` makes of its argument along `axes` up to the same position, or with `back`
    from there on."""

    to: str
    back: bool


@dataclass(frozen=True, slots=True)
class Upto:
    """A mask of the positions of an axis up to those of `to`, or with `back` from them on. apart: 0 where it holds at
    the same position, 1 where it does from the one before or behind."""

    axis: str
    to: str
    back: bool
    apart: int


def difference(mask: Eqn, eqns: Mapping[str, Eqn]) -> Linear | None:
    """For a comparison of positions, the number that is at most 0 where it holds."""
    if (order := OPS[mask.op].order) is None:
        return None
    left, right = (linear(a, eqns, lambda leaf: leaf[0] == "index") for a in mask.args)
    if left is None or right is None:
        return None
    if order.turned:
        left, right = right, left
    return left.plus(right, -1).plus(ONE, int(order.strict))


def upto(mask: Eqn, axis: str, eqns: Mapping[str, Eqn]) -> Upto | None:
    """What a comparison leaves of an axis, if that is what is up to each position of another."""
    if (zero_at_most := difference(mask, eqns)) is None:
        return None
    terms = {d: c for (_, d), c in zero_at_most.terms}
    factor, constant = terms.pop(axis, 0), zero_at_most.constant
    if len(terms) != 1 or abs(factor) != 1 or constant not in (0, 1):
        return None
    ((to, opposite),) = terms.items()
    return Upto(axis, to, factor < 0, constant) if opposite == -factor else None


def _scan(e: Eqn, eqns: Mapping[str, Eqn], dims: Mapping[str, tuple[str, ...]]) -> Scan | None:
    """A masked reduction as a scan, whatever the sizes of its two axes are."""
    if OPS[e.op].kind != "reduction" or len(e.axes) != 1 or (some := eqns.get(e.values[0])) is None:
        return None
    if OPS[some.op].masks != (0,) or len(some.args) != 3:
        return None
    mask, value, outside = some.args
    if not (isinstance(mask, str) and isinstance(value, str) and mask in eqns):
        return None
    if isinstance(outside, str) or outside != OPS[e.op].identity:
        return None
    (axis,) = e.axes
    found = upto(eqns[mask], axis, eqns)
    if found is None or found.apart or axis not in dims[value] or found.to in dims[value]:
        return None
    return Scan(e.out, e.op, (value,), e.axes, e.dims, e.type, found.to, found.back)


def possible(kernel: Kernel) -> Iterator[Scan]:
    """Those of a kernel that there are once both of their axes are held whole."""
    eqns = {e.out: e for e in kernel.body}
    return (s for e in kernel.body if (s := _scan(e, eqns, kernel.value_dims)) is not None)


def with_scans(kernel: Kernel, some: Collection[Scan]) -> Kernel:
    """The kernel with these in the place of its masked reductions."""
    scans = {s.out: s for s in some}
    body = (scans.get(e.out, e) for e in kernel.body)
    return replace(kernel, body=tuple(live_eqns(body, (s.value for s in kernel.stores)))) if scans else kernel


@lru_cache(maxsize=4096)
def scanned(kernel: Kernel) -> Kernel:
    """The kernel with the scans whose axes it holds whole. These have one size (`whole_alike`)."""
    whole = {*kernel.with_role("tile")}
    return with_scans(kernel, [s for s in possible(kernel) if {s.to, *s.axes} <= whole])


def whole_alike(kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Whether the axes of all scans are pairs of one size."""
    scans = (e for e in scanned(kernel).body if isinstance(e, Scan))
    return all(sizes[s.to] == sizes[a] for s in scans for a in s.axes)


def reduces(e: Eqn) -> bool:
    """Whether an equation reduces its axes, to one result for all of their positions."""
    return OPS[e.op].kind == "reduction" and not isinstance(e, Scan)
