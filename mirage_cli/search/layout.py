"""The memory order of what kernels store.

An output lies as it is declared. Another value lies in program order, but where a product on the matrix units that
makes or reads it has the last axis as a batch axis: the elements of a block of it would lie apart, one in each line of
memory. Its batch axes come first then.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.decompose import Decomposition, Node
from mirage_cli.ir.access import dims_of
from mirage_cli.ir.access_text import substitution
from mirage_cli.ir.ops import OPS
from mirage_cli.search.expand import sort_axes


def memory_orders(d: Decomposition) -> dict[Form, tuple[str, ...]]:
    """Of the classes that do not lie in program order."""
    batches: dict[Form, list[frozenset[str]]] = {}
    for form, nodes in d.nodes.items():
        for node in nodes:
            for axes in batch_axes(node):
                for f in {form, *node.children}:
                    if not d.is_input(f) and axes & f.dims:
                        batches.setdefault(f, []).append(axes & f.dims)
    found = ((f, _order(sort_axes(d, f.dims), several)) for f, several in batches.items())
    orders = {f: order for f, order in found if order != sort_axes(d, f.dims)}
    outputs = zip(d.program.places(), d.outputs, strict=True)
    declared = [(f, t.dims) for (t, whole, _), f in outputs if t is whole and frozenset(t.dims) == f.dims]
    return orders | dict(reversed(declared))


def batch_axes(node: Node) -> Iterator[frozenset[str]]:
    """The batch axes of each product of the node whose operands both have axes of their own."""
    made: list[frozenset[str]] = []
    for s in node.steps:
        args = [made[a] if isinstance(a, int) else a.dims for a in s.args if isinstance(a, int | Form)]
        dims = frozenset[str]().union(*args)
        match OPS[s.op].kind:
            case "contraction":
                a, b = args
                shared, summed = a & b - {*s.axes}, frozenset(s.axes)
                if shared and a - b - summed and b - a - summed:
                    yield shared
                dims -= summed
            case "reduction":
                dims -= {*s.axes}
            case "rename":
                names = substitution(s.axes)
                dims = frozenset(x for a in dims for x in (dims_of((names[a],)) if a in names else (a,)))
            case "elementwise" | "leaf" | "derived":
                pass
        made.append(dims)


def _order(axes: tuple[str, ...], batches: list[frozenset[str]]) -> tuple[str, ...]:
    """The order in which the last axis is a batch axis of the fewest products; the given one where it is as good."""
    orders = [axes, *(tuple(sorted(axes, key=lambda a, b=b: (a not in b, axes.index(a)))) for b in batches)]
    return min(orders, key=lambda order: sum(order[-1] in b for b in batches))
