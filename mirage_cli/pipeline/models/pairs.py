"""Complex numbers as pairs of real ones: a program computes with their real and imaginary parts.

    z = view_as_complex(x)           a, b = select(x, -1, 0), select(x, -1, 1)
    y = mul(z, w)             -->    c, d = select(view_as_real(w), -1, 0), select(view_as_real(w), -1, 1)
    o = view_as_real(y)              o = stack([a * c - b * d, a * d + b * c], -1)

Complex numbers that the graph is given, or that an operator without a row here makes, are read through a view. Those
that such an operator reads, or that are a result, are a view of their parts beside each other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any  # torch's graphs and nodes, which have few types

import torch
from torch._guards import detect_fake_mode

from mirage_cli.pipeline.models.inplace import calls, changed
from mirage_cli.pipeline.models.symbols import shape_of
from mirage_cli.spec.aten.memory import inverse, order_of_result
from mirage_cli.spec.aten.row import APART, overloadless
from mirage_cli.spec.aten.trace import row_of

aten = torch.ops.aten
REAL = {torch.complex64: torch.float32, torch.complex32: torch.float16}
"""The types of the parts. Kernels have none for those of complex128."""
LINEAR = "aten.neg", "aten.sum", "aten.mean", "aten.flip", "aten.roll"
"""Operators that do to each part what they do to the whole, besides those that move elements."""
VIEWS = aten.view_as_real.default, aten.view_as_complex.default


@dataclass(frozen=True, slots=True)
class Pair:
    """The real and the imaginary part of a value: nodes or numbers. None is 0."""

    re: Any
    im: Any


def as_pairs(graph: torch.fx.Graph) -> None:
    """Has the operators of complex numbers that have a row here compute with pairs."""
    pairs = Pairs(graph)
    for n in calls(graph):
        pairs.at = n
        made = pairs.result(n)
        if isinstance(made, Pair):
            pairs.known[n] = pairs.broadcast(made)
        elif made is not None:
            n.replace_all_uses_with(made)
            graph.erase_node(n)
    for n in reversed([*pairs.known]):
        if n.users:
            pairs.at = n
            n.replace_all_uses_with(pairs.joined(n))
        graph.erase_node(n)
    for n in calls(graph):
        if n.target in VIEWS:
            n.meta[APART] = True  # which computes nothing


def types(node: Any) -> set[torch.dtype]:
    """Those of complex numbers in a node's value."""
    value = node.meta.get("val")
    some = value if isinstance(value, list | tuple) else [value]
    return {x.dtype for x in some if isinstance(x, torch.Tensor) and x.is_complex()}


@dataclass
class Pairs:
    """The pairs of a graph. given: of what the graph does not make of pairs. at: what new nodes stand in front of."""

    graph: torch.fx.Graph
    known: dict[Any, Pair] = field(default_factory=dict[Any, Pair])
    given: dict[Any, Pair] = field(default_factory=dict[Any, Pair])
    at: Any = None

    def result(self, n: Any) -> Any:
        """What a call makes: a pair, or a real node. None where it stays as it is."""
        found = types(n).union(*map(types, n.all_input_nodes))
        if not found or not found <= {*REAL} or changed(n):
            return None
        name, row = overloadless(n.target), row_of(n)
        if name in ROWS:
            return ROWS[name](self, n)
        if (row.moves or row.looks_up or row.joins) and any(x in self.known for x in n.all_input_nodes):
            return self.each(n)
        return None

    def made(self, target: Any, *args: Any, **options: Any) -> Any:
        """A new node, with its value."""
        with self.graph.inserting_before(self.at):
            node = self.graph.call_function(target, args, options)
        mode = detect_fake_mode([x.meta["val"] for x in node.all_input_nodes])

        def value(x: Any) -> Any:
            held = isinstance(found := x.meta["val"], torch.Tensor) and not hasattr(found, "fake_mode")
            return mode.from_tensor(found) if mode and held else found

        args, options = torch.fx.map_arg((args, options), value)
        node.meta = {"val": target(*args, **options)}
        return node

    def of(self, x: Any, like: Any) -> Pair:
        """The parts of an operand, in the type of another node's."""
        if isinstance(x, complex):
            return Pair(x.real if x.real or not x.imag else None, x.imag or None)
        if not isinstance(x, torch.fx.Node):
            return Pair(x, None)
        if not types(x):
            return Pair(self.real(x, like), None)
        if x in self.known:
            return self.known[x]
        if x not in self.given:
            view = self.made(VIEWS[0], x)
            self.given[x] = Pair(*(self.made(aten.select.int, view, -1, i) for i in (0, 1)))
        return self.given[x]

    def real(self, x: Any, like: Any) -> Any:
        """A real node in the type of the parts of another."""
        kinds = types(like)
        dtype = REAL[kinds.pop()] if kinds else x.meta["val"].dtype
        return x if x.meta["val"].dtype == dtype else self.made(aten._to_copy.default, x, dtype=dtype)

    def broadcast(self, x: Pair) -> Pair:
        """Both parts in one shape."""
        if x.re is None or x.im is None or shape_of(x.re) == shape_of(x.im):
            return x
        both = self.made(aten.broadcast_tensors.default, [x.re, x.im])
        return Pair(*(self.made(operator.getitem, both, i) for i in (0, 1)))

    def filled(self, x: Pair) -> Pair:
        """With zeros for None."""
        if x.re is None:
            return Pair(self.made(aten.zeros_like.default, x.im), x.im)
        return x if x.im is not None else Pair(x.re, self.made(aten.zeros_like.default, x.re))

    def joined(self, n: Any) -> Any:
        """A pair as complex numbers that lie in memory as a node's."""
        x = self.filled(self.known[n])
        order = order_of_result(n.meta["val"])
        parts = [x.re, x.im]
        if moved := [*order] != sorted(order):
            parts = [self.made(aten.permute.default, part, [*order]) for part in parts]
        whole = self.made(VIEWS[1], self.made(aten.stack.default, parts, -1))
        return self.made(aten.permute.default, whole, inverse(order)) if moved else whole

    def each(self, n: Any) -> Pair:
        """A linear operator, of each part."""
        own = {x: self.of(x, n) for x in n.all_input_nodes if types(x)}
        if row_of(n).joins:
            own |= {x: self.of(x, n) for x in n.all_input_nodes}

        def of(name: str) -> Any:
            if all(getattr(x, name) is None for x in own.values()):
                return None
            args, options = torch.fx.map_arg(
                (n.args, n.kwargs), lambda x: getattr(self.filled(own[x]), name) if x in own else x
            )
            return self.made(n.target, *args, **options)

        return Pair(of("re"), of("im"))

    # -- arithmetic

    def times(self, target: Any, a: Any, b: Any) -> Any:
        """A product of parts."""
        if a is None or b is None:
            return None
        return self.made(target, *((a, b) if isinstance(a, torch.fx.Node) else (b, a)))

    def plus(self, a: Any, b: Any, target: Any = aten.add.Tensor) -> Any:
        if b is None:
            return a
        if a is None:
            return b if target is aten.add.Tensor else self.made(aten.neg.default, b)
        return self.made(target, a, b)

    def product(self, n: Any) -> Pair:
        """(a + ib) (c + id) = (ac - bd) + i (ad + bc)."""
        x, y = (self.of(z, n) for z in n.args)
        target = aten.mul.Tensor if overloadless(n.target) == "aten.mul" else n.target
        re = self.plus(self.times(target, x.re, y.re), self.times(target, x.im, y.im), aten.sub.Tensor)
        return Pair(re, self.plus(self.times(target, x.re, y.im), self.times(target, x.im, y.re)))


def linear(target: Any) -> Callable[[Pairs, Any], Pair | None]:
    """The row of a sum or difference."""

    def row(pairs: Pairs, n: Any) -> Pair | None:
        if n.kwargs:
            return None
        x, y = (pairs.of(z, n) for z in n.args)
        return Pair(pairs.plus(x.re, y.re, target), pairs.plus(x.im, y.im, target))

    return row


def quotient(pairs: Pairs, n: Any) -> Pair | None:
    """By real numbers."""
    x, by = n.args
    if isinstance(by, complex) or n.kwargs or (isinstance(by, torch.fx.Node) and types(by)):
        return None
    parts, own = pairs.of(x, n), pairs.of(by, n).re
    return Pair(*(None if part is None else pairs.made(aten.div.Tensor, part, own) for part in (parts.re, parts.im)))


def converted(pairs: Pairs, n: Any) -> Pair | None:
    x, made = n.args[0], n.meta["val"]
    given = x.meta["val"]
    if not types(n) or given.device != made.device or types(x) - types(n) or (types(x) and x not in pairs.known):
        return None
    return pairs.of(x, n)


def exponential(pairs: Pairs, n: Any) -> Pair:
    x = pairs.of(n.args[0], n)
    if x.im is None:
        return Pair(pairs.made(aten.exp.default, x.re), None)
    turn = pairs.made(aten.cos.default, x.im), pairs.made(aten.sin.default, x.im)
    if x.re is None:
        return Pair(*turn)
    size = pairs.made(aten.exp.default, x.re)
    return Pair(*(pairs.made(aten.mul.Tensor, size, part) for part in turn))


def polar(pairs: Pairs, n: Any) -> Pair:
    size, angle = n.args
    return Pair(
        *(pairs.made(aten.mul.Tensor, size, pairs.made(f, angle)) for f in (aten.cos.default, aten.sin.default))
    )


def conjugate(pairs: Pairs, n: Any) -> Pair:
    x = pairs.of(n.args[0], n)
    return Pair(x.re, None if x.im is None else pairs.made(aten.neg.default, x.im))


def size(pairs: Pairs, n: Any) -> Any:
    x = pairs.of(n.args[0], n)
    if x.re is None or x.im is None:
        return pairs.made(aten.abs.default, x.im if x.re is None else x.re)
    return pairs.made(aten.hypot.default, x.re, x.im)


def part(name: str) -> Callable[[Pairs, Any], Any]:
    """The row of what takes one part."""
    return lambda pairs, n: getattr(pairs.filled(pairs.of(n.args[0], n)), name)


def view_as_real(pairs: Pairs, n: Any) -> Any:
    """Of pairs: of others it is a view that stays."""
    if n.args[0] not in pairs.known:
        return None
    x = pairs.filled(pairs.known[n.args[0]])
    return pairs.made(aten.stack.default, [x.re, x.im], -1)


def view_as_complex(pairs: Pairs, n: Any) -> Pair:
    return Pair(*(pairs.made(aten.select.int, n.args[0], -1, i) for i in (0, 1)))


ROWS: Mapping[str, Callable[[Pairs, Any], Any]] = {
    "aten.view_as_complex": view_as_complex,
    "aten.view_as_real": view_as_real,
    "aten.real": part("re"),
    "aten.imag": part("im"),
    "aten.complex": lambda _, n: Pair(*n.args),
    "aten.polar": polar,
    "aten.exp": exponential,
    "aten.abs": size,
    **dict.fromkeys(("aten._conj", "aten._conj_physical", "aten.conj_physical"), conjugate),
    **dict.fromkeys(("aten.mul", "aten.mm", "aten.bmm", "aten.matmul"), Pairs.product),
    "aten.div": quotient,
    "aten.add": linear(aten.add.Tensor),
    "aten.sub": linear(aten.sub.Tensor),
    **dict.fromkeys(LINEAR, lambda pairs, n: None if n.kwargs else pairs.each(n)),
    **dict.fromkeys(("aten.to", "aten._to_copy"), converted),
}
"""By operator: what it makes of pairs. What moves elements, and does nothing else, moves both parts."""
