"""Sums that two kernels add up, each in its own order, and that meet under an exponential or in a comparison."""

from __future__ import annotations

from collections.abc import Container, Hashable

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES

Sums = frozenset[tuple[Hashable, str]]
"""The sums that a value rests on: what they are, and where they got their last digits: the kernel that added them up,
or the buffer for which they were rounded."""


def summed_twice(graph: MuGraph, named: Container[str]) -> bool:
    """Whether values meet that rest on one sum from two kernels, where last digits tell.

    In a comparison: x == max x holds nowhere where the two sums are apart. In float32, in the difference under an
    exponential: x - max x is then off by what they are apart, for the largest x too, where it is to be 0. At large x, a
    softmax that should be 1 is not. In narrower types eager's own error is above that.

    named: values that have one name wherever they are computed, as those of the program have. The others are told
    apart by what computes them.
    """
    narrow = {t.name for t in (*graph.outputs, *graph.buffers) if DTYPE_BYTES[t.dtype] < DTYPE_BYTES["float32"]}
    sums: dict[str, Sums] = {}
    stored: dict[str, Hashable] = {}  # what buffers hold
    numbers: dict[Hashable, int] = {}  # of what is computed without a name (value numbering)
    for k in graph.kernels:
        behind = {x.out: sums.get(x.buffer, frozenset()) for x in k.loads}
        computed: dict[str, Hashable] = {x.out: (stored.get(x.buffer, x.buffer), x.access) for x in k.loads}
        for e in k.body:
            told = OPS[e.op].compares or (OPS[e.op].shift and graph.dtype == "float32")
            if told and _apart(*(behind.get(a, frozenset()) for a in e.args if isinstance(a, str))):
                return True
            made_of = tuple(computed.get(a, a) if isinstance(a, str) else a for a in e.args)
            how = (e.op, made_of, e.axes)
            computed[e.out] = e.out if e.out in named else numbers.setdefault(how, len(numbers))
            under = frozenset[tuple[Hashable, str]]().union(*(behind[a] for a in e.values))
            if e.op in ("sum", "dot"):  # of parts of itself too, which are not it
                under = {x for x in under if x[0] != computed[e.out]} | {(computed[e.out], k.name)}
            behind[e.out] = frozenset(under)
        for s in k.stores:
            rounded = frozenset((what, s.buffer) for what, _ in behind[s.value])
            sums[s.buffer] = rounded if s.buffer in narrow else behind[s.value]
        stored |= {s.buffer: computed[s.value] for s in k.stores}
    return False


def _apart(*values: Sums) -> bool:
    """Whether one sum is there from two kernels."""
    met = frozenset[tuple[Hashable, str]]().union(*values)
    return len({what for what, _ in met}) < len(met)
