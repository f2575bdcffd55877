"""Sums that two kernels add up, each in its own order, and that meet under an exponential."""

from __future__ import annotations

from collections.abc import Container, Hashable

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS

Sums = frozenset[tuple[Hashable, str]]
"""The sums that a value rests on: what they are, and the kernels that have added them up."""


def summed_twice(graph: MuGraph, named: Container[str]) -> bool:
    """Whether an exponential is of a difference of values that rest on one sum from two kernels, in float32.

    x - max x is then off by what the two sums are apart, for the largest x too, where it is to be 0: at large x, a
    softmax that should be 1 is not. In narrower types eager's own error is above that.

    named: values that have one name wherever they are computed, as those of the program have. The others are told
    apart by what computes them.
    """
    if graph.dtype != "float32":
        return False
    sums: dict[str, Sums] = {}
    stored: dict[str, Hashable] = {}  # what buffers hold
    numbers: dict[Hashable, int] = {}  # of what is computed without a name (value numbering)
    for k in graph.kernels:
        behind = {x.out: sums.get(x.buffer, frozenset()) for x in k.loads}
        computed: dict[str, Hashable] = {x.out: (stored.get(x.buffer, x.buffer), x.access) for x in k.loads}
        for e in k.body:
            if OPS[e.op].shift and _apart(*(behind.get(a, frozenset()) for a in e.args if isinstance(a, str))):
                return True
            made_of = tuple(computed.get(a, a) if isinstance(a, str) else a for a in e.args)
            how = (e.op, made_of, e.axes)
            computed[e.out] = e.out if e.out in named else numbers.setdefault(how, len(numbers))
            own = {(computed[e.out], k.name)} if e.op in ("sum", "dot") else set[tuple[Hashable, str]]()
            behind[e.out] = frozenset(own).union(*(behind[a] for a in e.values))
        sums |= {s.buffer: behind[s.value] for s in k.stores}
        stored |= {s.buffer: computed[s.value] for s in k.stores}
    return False


def _apart(*values: Sums) -> bool:
    """Whether one sum is there from two kernels."""
    met = frozenset[tuple[Hashable, str]]().union(*values)
    return len({what for what, _ in met}) < len(met)
