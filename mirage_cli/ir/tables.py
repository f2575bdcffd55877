"""Entries of short tables that results name: a kernel that holds a table whole reads them from it.

    sum(where(index(t) == I[k, n], T[t], 0); t)   -->   the entry of T at I[k, n], with the role t:tile

μGraphs keep the sum, which says all of it. As with scans, the cost model and the planner see the kernel with a
`TableEntry` in its place, where the index lies in the table for all data that the inputs declare: outside of it the sum
is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Tensor, live_eqns
from mirage_cli.ir.whole import bounds

PLACED_AS = "power"
"""The row by which an entry is placed and typed: an elementwise one of two numbers. Text and price are its own."""


@dataclass(frozen=True, slots=True)
class TableEntry(Eqn):
    """The entry of its first argument, a table, at its second, an index. It stands where the index does."""

    @property
    def table(self) -> str:
        return self.values[0]

    @property
    def index(self) -> str:
        return self.values[1]


def with_entries(kernel: Kernel, tensors: Mapping[str, Tensor], sizes: Mapping[str, int] | None = None) -> Kernel:
    """The kernel with the entries of tables that it holds whole.

    sizes: of axes that are the same in all calls; None where they are not known yet, and an index counts as one of the
    table's.
    """
    found = {x.out: x for e in kernel.body if (x := _entry(e, kernel, tensors, sizes)) is not None}
    if not found:
        return kernel
    body = (found.get(e.out, e) for e in kernel.body)
    return replace(kernel, body=tuple(live_eqns(body, {s.value for s in kernel.stores})))


def _entry(e: Eqn, kernel: Kernel, tensors: Mapping[str, Tensor], sizes: Mapping[str, int] | None) -> TableEntry | None:
    """A sum as an entry of a table."""
    eqns, loads = {x.out: x for x in kernel.body}, {x.out: x for x in kernel.loads}
    if e.op != "sum" or len(e.axes) != 1 or e.axes[0] not in kernel.with_role("tile"):
        return None
    (axis,) = e.axes
    kept = eqns.get(e.values[0])
    if kept is None or OPS[kept.op].masks != (0,) or len(kept.args) != 3 or kept.args[2] != 0:
        return None
    mask, table, _ = kept.args
    chosen = eqns.get(str(mask))
    if chosen is None or chosen.op != "eq" or str(table) not in loads or loads[str(table)].dims != (axis,):
        return None
    positions = [a for a in chosen.values if a in eqns and (i := eqns[a].place) is not None and i.axis == axis]
    others = [a for a in chosen.args if a not in positions]
    if len(positions) != 1 or len(others) != 1 or not isinstance(index := others[0], str) or index not in eqns:
        return None
    between = bounds(kernel, tensors).get(index)
    if between is None or axis in eqns[index].dims or eqns[index].type != "int":
        return None
    inside = between[0] >= 0 and (sizes is None or between[1] < sizes.get(axis, 0))
    return TableEntry(e.out, PLACED_AS, (str(table), index), (), e.dims, "float") if inside else None
