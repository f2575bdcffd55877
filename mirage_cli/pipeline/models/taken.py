"""How much of a model its regions take: nodes, FLOPs, and bytes that eager PyTorch moves, by operator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any  # torch's nodes, and what their arguments are

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from mirage_cli.pipeline.models.inplace import calls, changed
from mirage_cli.pipeline.models.partition import bytes_of, computes
from mirage_cli.pipeline.models.passes import rematerialisable
from mirage_cli.spec.aten.row import APART, overloadless
from mirage_cli.spec.aten.trace import row_of

Pair = tuple[int, int]
"""Of all, and of what is taken."""


@dataclass(frozen=True)
class Share:
    """Of an operator's nodes: how many there are and are taken, and so of their FLOPs and bytes."""

    operator: str
    nodes: Pair
    flops: Pair
    moved_bytes: Pair


def shares(graph: torch.fx.Graph, taken: Collection[Any]) -> tuple[Share, ...]:
    """A row for each operator that computes, the one that moves most first. taken: the nodes that are in regions."""
    nodes: dict[str, list[Any]] = {}
    remat = rematerialisable(graph)
    for n in calls(graph):
        if computes(n, remat) and APART not in n.meta:
            nodes.setdefault(overloadless(n.target), []).append(n)

    def both(some: Iterable[Any], of: Callable[[Any], int]) -> Pair:
        return summed((of(n), of(n) if n in taken else 0) for n in some)

    rows = (Share(k, both(some, lambda _: 1), both(some, flops), both(some, moved)) for k, some in nodes.items())
    return tuple(sorted(rows, key=lambda r: -r.moved_bytes[0]))


def moved(node: Any) -> int:
    """Bytes read and written: of a table the rows that are looked up, of what is changed in place what is new."""
    result, *others = bytes_of(node), *map(bytes_of, node.all_input_nodes)
    if changed(node):
        return 2 * sum(others[1:])
    if row_of(node).looks_up:
        others[0] = min(others[0], result)
    return result + sum(others)


def flops(node: Any) -> int:
    """As PyTorch counts them: of products and attention."""
    packet = getattr(node.target, "overloadpacket", None)
    if not row_of(node).products and packet not in flop_registry:
        return 0
    return counted(node.target, described(node.args), described(tuple(node.kwargs.items())))


@cache
def counted(target: Any, args: Any, kwargs: Any) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        target(*on_meta(args), **dict(on_meta(kwargs)))
    return counter.get_total_flops()


def described(x: Any) -> Any:
    """An argument with shapes and types in the place of nodes."""
    if isinstance(x, torch.fx.Node):
        value = x.meta["val"]
        return Described(tuple(value.shape), tuple(value.stride()), value.dtype)
    return tuple(map(described, x)) if isinstance(x, list | tuple) else x


@dataclass(frozen=True)
class Described:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def on_meta(x: Any) -> Any:
    if isinstance(x, Described):
        return torch.empty_strided(x.shape, x.stride, dtype=x.dtype, device="meta")
    return [*map(on_meta, x)] if isinstance(x, tuple) else x


def table(rows: Iterable[Share]) -> str:
    """The rows, and their sums."""
    rows = [*rows]
    total = Share("in all", *(summed(getattr(r, of) for r in rows) for of in ("nodes", "flops", "moved_bytes")))
    width = max(len(r.operator) for r in (*rows, total))
    lines = [f"{'operator':{width}}  {'taken':>12}  {'FLOPs':>14}  {'bytes':>14}"]
    for r in (*rows, total):
        nodes, taken = r.nodes
        lines.append(f"{r.operator:{width}}  {taken:4} of {nodes:4}  {part(r.flops)}  {part(r.moved_bytes)}")
    return "\n".join(lines)


def summed(pairs: Iterable[Pair]) -> Pair:
    each = [*pairs]
    return sum(x for x, _ in each), sum(x for _, x in each)


def part(pair: Pair) -> str:
    all, taken = pair
    return f"{all:9.2e} {taken / all:4.0%}" if all else f"{'-':>14}"
