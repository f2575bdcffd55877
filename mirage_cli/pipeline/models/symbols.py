"""Sizes of a PyTorch graph that differ by call, as numbers: what cuts and traces a graph knows sizes that are numbers.

A symbol is such a size by its name. `valued` puts numbers in the place of all of them for a while. What is traced at
two primes for each, and differs in these alone, is what would be traced at any, if all sizes grow with the symbols
(`grows`): what is equal at both is then a number. Sizes that follow from symbols are found by division (`length_of`).
"""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any  # torch's nodes, and what stands for their values

import sympy
import torch
from torch.utils._sympy.numbers import int_oo

from mirage_cli.spec.aten.row import APART, SYMBOLIC

RANGES = "ranges"
"""Where a model keeps what `torch.export` was told of its sizes."""
MOST = 1 << 16
"""The largest size that kernels are for where a model names none."""
PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
"""Sizes to trace at, two for each symbol. Few other sizes of models are multiples of a large one, and none of both."""
COUNTED = frozenset({operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg, torch.sym_max})
"""What PyTorch computes sizes by."""
FRACTIONS = frozenset({torch.sym_float, operator.truediv, operator.pow, getattr(torch, "_sym_sqrt", None)})
"""What it computes numbers of sizes by that are no sizes, such as a scale."""


@dataclass(frozen=True, slots=True)
class Times:
    """A number times symbols."""

    number: int
    symbols: tuple[str, ...]

    def at(self, sizes: Mapping[str, Any]) -> Any:
        found = self.number
        for s in self.symbols:
            found = found * sizes[s]
        return found


Length = int | Times
WITHOUT_STEPS = frozenset(
    ("Add", "Mul", "Pow", "ToFloat", "FloatPow", "FloatTrueDiv", "IntTrueDiv", "OpaqueUnaryFn_sqrt")
)
"""Functions of PyTorch's symbols, by name, whose values change continuously with their arguments."""
SCALARS = int | float | torch.SymInt | torch.SymFloat
"""Sizes, and numbers that are worked out of sizes."""
Lengths = tuple[Length, ...]


def at_sizes(lengths: Sequence[Length], sizes: Mapping[str, Any]) -> list[Any]:
    """A shape at these sizes of the symbols."""
    return [x.at(sizes) if isinstance(x, Times) else x for x in lengths]


def times(a: Length, b: Length) -> Length:
    one, other = (x if isinstance(x, Times) else Times(x, ()) for x in (a, b))
    number, symbols = one.number * other.number, (*one.symbols, *other.symbols)
    return Times(number, symbols) if symbols else number


def length_of(at: Sequence[int], primes: Mapping[str, tuple[int, int]]) -> Length | None:
    """A size at any sizes of the symbols, from that at two. None where it is no product of theirs."""
    rest, symbols = [*at], list[str]()
    if rest[0] == rest[1]:
        return rest[0]
    for s, pair in primes.items():
        while all(n % p == 0 for n, p in zip(rest, pair, strict=True)):
            rest = [n // p for n, p in zip(rest, pair, strict=True)]
            symbols.append(s)
    return Times(rest[0], tuple(symbols)) if rest[0] == rest[1] else None


def two_each(ranges: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Two sizes to trace at for each symbol, in its range if that has two; those of no more than there are primes for.
    ranges: the least and the largest size of each."""
    left = [*PRIMES]
    found: dict[str, tuple[int, int]] = {}
    for name, (least, most) in ranges.items():
        inside = [p for p in left if least <= p <= most]
        *_, one, other = inside if len(inside) > 1 else left
        found[name] = one, other
        left = [p for p in left if p not in found[name]]
        if len(left) < 2:
            break
    return found


def grows(size: torch.SymInt | torch.SymFloat) -> bool:
    """Whether a size grows with each of its symbols, or falls with each: a sum of products of them, all of one sign. Of
    another number, whether it has no steps."""
    expr = size.node.expr
    if isinstance(size, torch.SymFloat):
        return {type(x).__name__ for x in sympy.preorder_traversal(expr) if x.args} <= WITHOUT_STEPS
    if not expr.is_polynomial(*expr.free_symbols):
        return False
    terms = expr.as_poly(*expr.free_symbols).terms()
    return len({bool(factor > 0) for powers, factor in terms if any(powers)}) == 1


def is_size(node: Any) -> bool:
    """Whether it is a size of what the model is given, or a number that is worked out from such."""
    if node.op != "call_function" or not isinstance(node.meta.get("val"), SCALARS):
        return False
    if node.target is torch.ops.aten.sym_size.int:
        return node.args[0].op == "placeholder"
    return node.target in COUNTED | FRACTIONS and all(x.op == "placeholder" or is_size(x) for x in node.all_input_nodes)


def sizes_first(graph: torch.fx.Graph) -> None:
    """Takes sizes from what the model is given, in front of all else, so that no size waits for a result."""
    said = {str(n): (x, i) for x in placeholders(graph) for i, n in enumerate(shape_of(x)) if is_symbol(n)}
    for node in list(graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int)):
        name = str(node.meta.get("val"))
        if node.args[0].op != "placeholder" and name in said:
            node.args = said[name]
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr")]
    front = next((i for i, n in enumerate(nodes) if not is_size(n)), 0)
    for node in nodes[front + 1 :]:
        if is_size(node):
            nodes[front].prepend(node)


def checks_apart(graph: torch.fx.Graph) -> None:
    """Marks what `torch.export` could not prove of sizes and left to the call, and what is worked out for that alone,
    as nodes that are in no region."""
    checks = {*graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)}
    for n in reversed(graph.nodes):
        only = n.op == "call_function" and n.users and all(APART in u.meta for u in n.users)
        if n in checks or (only and not isinstance(n.meta.get("val"), torch.Tensor)):
            n.meta[APART] = True


def placeholders(graph: torch.fx.Graph) -> list[Any]:
    return [n for n in graph.nodes if n.op == "placeholder"]


def shape_of(node: Any) -> tuple[Any, ...]:
    """The sizes of a node's tensor; none of another value."""
    value = node.meta.get(SYMBOLIC, node.meta.get("val"))
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def is_symbol(size: object) -> bool:
    return isinstance(size, torch.SymInt) and size.node.expr.is_symbol


def sizes_of(nodes: Iterable[Any]) -> Iterator[torch.SymInt]:
    """The sizes in these nodes' values that differ by call."""
    for n in nodes:
        value = n.meta.get(SYMBOLIC, n.meta.get("val"))
        some = value if isinstance(value, list | tuple) else [value]
        sizes = (s for x in some for s in (x.shape if isinstance(x, torch.Tensor) else [x]))
        yield from (s for s in sizes if isinstance(s, torch.SymInt))


def fractions_of(nodes: Iterable[Any]) -> Iterator[torch.SymFloat]:
    """The numbers among these nodes' values that are worked out of sizes, and no sizes."""
    values = (n.meta.get(SYMBOLIC, n.meta.get("val")) for n in nodes)
    yield from (x for x in values if isinstance(x, torch.SymFloat))


def found_in(nodes: Iterable[Any]) -> list[str]:
    """The names of the symbols in these nodes' values."""
    return [*dict.fromkeys(str(s) for x in sizes_of(nodes) for s in x.node.expr.free_symbols)]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that differs by call. least, most: what it may be, as far as kernels go. example: None where it is not
    known."""

    least: int
    most: int
    example: int | None


def symbols_of(model: torch.fx.GraphModule) -> dict[str, Symbol]:
    """The symbols of a model by name."""
    envs = [x.node.shape_env for x in sizes_of(model.graph.nodes)]
    if not envs:
        return {}
    ranges = {str(s): r for s, r in {**envs[0].var_to_range, **model.meta.get(RANGES, {})}.items()}
    examples = {str(s): int(n) for s, n in envs[0].backed_var_to_val.items()}
    found: dict[str, Symbol] = {}
    for name in found_in(model.graph.nodes):
        least, most = ranges[name].lower, ranges[name].upper
        most = MOST if most is int_oo else min(int(most), MOST)
        found[name] = Symbol(int(least) if least > 0 else 1, most, examples.get(name))  # else -∞, of a number
    return found


def worked_out(read: Iterable[Any], symbols: Mapping[str, Symbol]) -> dict[str, torch.SymInt]:
    """The lengths of axes of what a part reads that are made of symbols, by their text: a part may know them as symbols
    of their own, each told by its axis (the rows of a matrix, the keys of a cache that has grown by one)."""
    found = {str(n): n for x in read for n in shape_of(x) if isinstance(n, torch.SymInt)}
    return {name: n for name, n in found.items() if name not in symbols}


def symbol_of(size: torch.SymInt, symbols: Mapping[str, Symbol]) -> Symbol:
    """What a size may be that grows with each of these symbols, or falls with each."""
    ends = ({n: s.least for n, s in symbols.items()}, {n: s.most for n, s in symbols.items()})
    least, most = sorted(with_sizes(size, sizes) for sizes in ends)
    example = with_sizes(size, {n: s.example for n, s in symbols.items() if s.example is not None})
    return Symbol(max(least, 1), most, example if isinstance(example, int) else None)


@contextmanager
def valued(nodes: Sequence[Any], sizes: Mapping[str, int]) -> Generator[None]:
    """Meanwhile these nodes' values have the sizes that these symbols give them. What is noted of an input stays as it
    is: a backward graph's inputs share it with the forward graph's nodes."""
    before = [n.meta for n in nodes]
    for n in nodes:
        value = n.meta.get(SYMBOLIC, n.meta.get("val"))
        n.meta = {**n.meta}
        if differs_by_call(value):
            n.meta |= {SYMBOLIC: value, "val": with_sizes(value, sizes)}
    try:
        yield
    finally:
        for n, meta in zip(nodes, before, strict=True):
            n.meta = meta


def differs_by_call(value: Any) -> bool:
    """Whether a value has sizes or strides that differ by call, also where the graph's checks settle them, so that no
    symbol is left."""
    if isinstance(value, list | tuple):
        return any(map(differs_by_call, value))
    some = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else [value]
    return any(isinstance(x, torch.SymInt | torch.SymFloat) for x in some)


def with_symbols(model: torch.fx.GraphModule) -> None:
    """Gives nodes that were made of valued ones the values that those had before."""
    for graph in [m.graph for m in model.modules() if isinstance(m, torch.fx.GraphModule)]:
        for n in graph.nodes:
            if SYMBOLIC in n.meta:
                n.meta["val"] = n.meta.pop(SYMBOLIC)


def with_sizes(value: Any, sizes: Mapping[str, int]) -> Any:
    """A node's value with numbers for symbols, as far as these are all that it has."""
    if isinstance(value, list | tuple):
        return type(value)(with_sizes(x, sizes) for x in value)
    if isinstance(value, torch.SymInt):
        left = value.node.expr.subs({s: sizes[str(s)] for s in value.node.expr.free_symbols if str(s) in sizes})
        return int(left) if left.is_number else value
    if isinstance(value, torch.SymFloat):
        left = value.node.expr.subs({s: sizes[str(s)] for s in value.node.expr.free_symbols if str(s) in sizes})
        return float(left) if left.is_number else value
    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = ([with_sizes(n, sizes) for n in some] for some in (value.shape, value.stride()))
    if any(isinstance(n, torch.SymInt) for n in (*shape, *strides)):
        return value
    with value.fake_mode:  # type: ignore[attr-defined]  # only such have symbols
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
