"""Sums that are added up twice, each in its own order, and that meet under an exponential or in a comparison."""

from __future__ import annotations

from collections.abc import Container, Hashable

from mirage_cli.ir.access import Access, atom_index, dims_of
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES

Sums = frozenset[tuple[Hashable, str]]
"""The sums that a value rests on: what they are, and where they got their last digits: the kernel and the name under
which they were added up, or the buffer for which they were rounded."""


def summed_twice(graph: MuGraph, named: Container[str]) -> bool:
    """Whether values meet that rest on one sum, added up or rounded twice, where last digits tell.

    In a comparison: x == max x holds nowhere where the two sums are apart. In float32, in the difference under an
    exponential: x - max x is then off by what they are apart, for the largest x too, where it is to be 0. At large x, a
    softmax that should be 1 is not. In narrower types eager's own error is above that.

    A sum along other names of its axes is the same: what is ranked is compared with itself, and must not be larger.

    named: values that have one name wherever they are computed, as those of the program have. All are told apart by
    what computes them too.
    """
    narrow = {t.name for t in (*graph.outputs, *graph.buffers) if DTYPE_BYTES[t.dtype] < DTYPE_BYTES["float32"]}
    sums: dict[str, Sums] = {}
    stored: dict[str, Hashable] = {}  # what buffers hold
    numbers: dict[Hashable, Hashable] = {}  # of what is computed (value numbering)
    names: dict[str, Hashable] = {}  # the numbers of what has a name
    for k in graph.kernels:
        behind = {x.out: sums.get(x.buffer, frozenset()) for x in k.loads}
        computed: dict[str, Hashable] = {x.out: (stored.get(x.buffer, x.buffer), _unnamed(x.access)) for x in k.loads}
        for e in k.body:
            told = OPS[e.op].compares or (OPS[e.op].shift and graph.dtype == "float32")
            if told and _apart(*(behind.get(a, frozenset()) for a in e.args if isinstance(a, str))):
                return True
            made_of = tuple(computed.get(a, a) if isinstance(a, str) else a for a in e.args)
            how = (e.op, made_of, tuple(graph.sizes.get(a) for a in e.axes))
            known = numbers.setdefault(how, names.get(e.out, len(numbers)))
            computed[e.out] = names.setdefault(e.out, known) if e.out in named else known
            under = frozenset[tuple[Hashable, str]]().union(*(behind[a] for a in e.values))
            if e.op in ("sum", "dot"):  # of parts of itself too, which are not it
                under = {x for x in under if x[0] != computed[e.out]} | {(computed[e.out], f"{k.name} {e.out}")}
            behind[e.out] = frozenset(under)
        for s in k.stores:
            rounded = frozenset((what, s.buffer) for what, _ in behind[s.value])
            sums[s.buffer] = rounded if s.buffer in narrow else behind[s.value]
        stored |= {s.buffer: computed[s.value] for s in k.stores}
    return False


def _apart(*values: Sums) -> bool:
    """Whether one sum is there with two roundings."""
    met = frozenset[tuple[Hashable, str]]().union(*values)
    return len({what for what, _ in met}) < len(met)


def _unnamed(access: Access) -> Access:
    """The access with numbers for the names of axes, in order."""
    numbers = {d: atom_index(str(n)) for n, d in enumerate(dims_of(access))}
    return tuple(i.within(numbers) for i in access)
