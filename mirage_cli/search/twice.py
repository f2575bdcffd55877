"""Sums that two kernels add up, each in its own order, and that meet under an exponential."""

from __future__ import annotations

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS

Sums = frozenset[tuple[str, str]]
"""The sums that a value rests on: their names, and the kernels that have added them up."""


def summed_twice(graph: MuGraph) -> bool:
    """Whether an exponential is of a difference of values that rest on one sum from two kernels, in float32.

    x - max x is then off by what the two sums are apart, for the largest x too, where it is to be 0: at large x, a
    softmax that should be 1 is not. In narrower types eager's own error is above that.
    """
    if graph.dtype != "float32":
        return False
    memory: dict[str, Sums] = {}
    for k in graph.kernels:
        behind = {x.out: memory.get(x.buffer, frozenset()) for x in k.loads}
        for e in k.body:
            if OPS[e.op].shift and _apart(*(behind.get(a, frozenset()) for a in e.args if isinstance(a, str))):
                return True
            own = {(e.out, k.name)} if e.op in ("sum", "dot") else set[tuple[str, str]]()
            behind[e.out] = frozenset(own).union(*(behind[a] for a in e.values))
        memory |= {s.buffer: behind[s.value] for s in k.stores}
    return False


def _apart(*values: Sums) -> bool:
    """Whether one sum is there from two kernels."""
    met = frozenset[tuple[str, str]]().union(*values)
    return len({name for name, _ in met}) < len(met)
