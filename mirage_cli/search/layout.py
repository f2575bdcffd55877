"""The memory order of what kernels store.

An output lies as it is declared. Another value lies in program order. There are three exceptions, where the elements
of a block would lie apart, a few in each line of memory:

* The value is multiplied by an input. The axes over which the product sums lie in the order of the input then, since a
  block of one is read beside a block of the other.
* The last axis is a batch axis of a product on the matrix units that makes or reads the value, or whose result meets
  the value in elementwise operators, or the value is read at one position of that axis, or at those that a table names.
  Those axes come first then.
* The last axis is that of a window which a product sums. A block of it begins at any element of a line then. The last
  axis that the product sums otherwise comes last, if it fills a line: channels of a convolution. Group norm, SiLU and
  a convolution of 320 to 640 channels took 127 us on an H200 so, 201 in program order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.graph import Decomposition, Node
from mirage_cli.ir.access import dims_of, outside_tables, read_by
from mirage_cli.ir.access_text import substitution
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES, LINE_BYTES
from mirage_cli.search.expand import axes_of, sort_axes


def memory_orders(d: Decomposition) -> dict[Form, tuple[str, ...]]:
    """Of the classes that do not lie in program order."""
    batches: dict[Form, list[frozenset[str]]] = {}
    beside: dict[Form, tuple[str, ...]] = {}
    windows: dict[Form, frozenset[str]] = {}
    sizes, least = d.program.sizes, LINE_BYTES // DTYPE_BYTES[d.program.dtype]
    summed = {a for nodes in d.nodes.values() for n in nodes for a in _summed(n)}
    long = {a for a in summed if sizes.get(a, 0) >= least}
    for form, nodes in d.nodes.items():
        for node in nodes:
            apart = [(f, axes) for axes in batch_axes(node) for f in {form, *node.children}]
            for f, axes in (*apart, *moved_axes(node, batches.get(form, ()))):
                if not d.is_input(f) and axes & f.dims:
                    batches.setdefault(f, []).append(axes & f.dims)
            for f, axes in summed_axes(d, node):
                beside.setdefault(f, axes)
            windows |= {f: axes for f, axes in window_axes(node, summed) if not d.is_input(f)}
    for f, axes in met_axes(d):
        batches.setdefault(f, []).append(axes)
    plain = {f: _like(sort_axes(d, f.dims), beside.get(f, ())) for f in (*batches, *beside, *windows)}
    ordered = ((f, _order(axes, batches.get(f, []))) for f, axes in plain.items())
    found = ((f, _behind_windows(axes, windows.get(f, frozenset()), long)) for f, axes in ordered)
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


def met_axes(d: Decomposition) -> Iterator[tuple[Form, frozenset[str]]]:
    """The classes that meet the result of a product in elementwise operators, as a bias of attention meets its scores,
    with the batch axes of the product that they have."""
    near: dict[Form, list[Form]] = {}
    for form, nodes in d.nodes.items():
        for node in nodes:
            if all(OPS[s.op].kind == "elementwise" for s in node.steps):
                for child in node.children:
                    near.setdefault(form, []).append(child)
                    near.setdefault(child, []).append(form)
    for product, nodes in d.nodes.items():
        for axes in dict.fromkeys(axes for n in nodes for axes in batch_axes(n)):
            met = [product]
            seen = {product}
            for f in met:
                new = [x for x in near.get(f, ()) if x not in seen and not seen.add(x)]
                met += new
                yield from ((x, axes & x.dims) for x in new if axes & x.dims and not d.is_input(x))


def summed_axes(d: Decomposition, node: Node) -> Iterator[tuple[Form, tuple[str, ...]]]:
    """The classes that the node reads beside an input, with the axes over which a product of the node sums and which
    both have, as they lie in the input. Of one axis there is but one order."""
    for s in node.steps:
        if OPS[s.op].kind == "contraction":
            for read in filter(d.is_input, node.children):
                axes = tuple(a for a in axes_of(d, read) if a in s.axes)
                both = ((f, tuple(a for a in axes if a in f.dims)) for f in node.children if not d.is_input(f))
                yield from ((f, some) for f, some in both if len(some) > 1)


def moved_axes(node: Node, batches: Iterable[frozenset[str]]) -> Iterator[tuple[Form, frozenset[str]]]:
    """The classes that the node reads elsewhere, with the axes of which it reads one position, and those that become
    these batch axes."""
    for s in node.steps:
        if OPS[s.op].kind == "rename":
            names = substitution(s.axes)
            for f in (f for f in s.args if isinstance(f, Form)):
                yield f, frozenset(a for a, i in names.items() if not outside_tables(i))
                read = dict(zip(f.dims, read_by((*f.dims,), names), strict=True))
                yield from ((f, frozenset(a for a, i in read.items() if i.axis in axes)) for axes in batches)


def window_axes(node: Node, summed: Collection[str]) -> Iterator[tuple[Form, frozenset[str]]]:
    """The classes that the node reads by windows which some product sums, with the axes that these move along."""
    for s in node.steps:
        if OPS[s.op].kind == "rename":
            moved = frozenset(a for a, i in substitution(s.axes).items() if len(i.dims) > 1 and {*i.dims} & {*summed})
            yield from ((f, moved) for f in s.args if isinstance(f, Form) and moved)


def _summed(node: Node) -> Iterator[str]:
    """The axes that products of a node sum."""
    return (a for s in node.steps if OPS[s.op].kind == "contraction" for a in s.axes)


def _behind_windows(axes: tuple[str, ...], windows: Collection[str], long: Collection[str]) -> tuple[str, ...]:
    """The order with the last of some long axes behind those of windows, where one of these is last."""
    others = [a for a in axes if a in long and a not in windows]
    if axes[-1] not in windows or not others:
        return axes
    return (*(a for a in axes if a != others[-1]), others[-1])


def _like(axes: tuple[str, ...], some: tuple[str, ...]) -> tuple[str, ...]:
    """The axes, where some of them are in this order."""
    in_turn = iter(some)
    return tuple(next(in_turn) if a in some else a for a in axes)


def _order(axes: tuple[str, ...], batches: list[frozenset[str]]) -> tuple[str, ...]:
    """The order in which the last axis is a batch axis of the fewest products; the given one where it is as good."""
    orders = [axes, *(tuple(sorted(axes, key=lambda a, b=b: (a not in b, axes.index(a)))) for b in batches)]
    return min(orders, key=lambda order: sum(order[-1] in b for b in batches))
