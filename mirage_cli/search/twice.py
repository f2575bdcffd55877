"""Sums that are added up twice, each in its own order, and that meet under an exponential or in a comparison."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mirage_cli.algebra.canonical import Atom, Form
from mirage_cli.algebra.safe import atoms_of
from mirage_cli.ir.access import Access, atom_index, dims_of
from mirage_cli.ir.mugraph import Load, MuGraph, Store
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES, Eqn
from mirage_cli.search.expand import Expansion

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
    numbering = _Numbering(graph.sizes, named)
    for k in graph.kernels:
        behind = {x.out: sums.get(x.buffer, frozenset()) for x in k.loads}
        computed = {x.out: numbering.loaded(x) for x in k.loads}
        for e in k.body:
            if _told(e.op, graph.dtype) and _apart(*(behind[a] for a in e.values)):
                return True
            what = computed[e.out] = numbering.computed(e, computed)
            under = frozenset[tuple[Hashable, str]]().union(*(behind[a] for a in e.values))
            if e.op in ("sum", "dot"):  # of parts of itself too, which are not it
                under = {x for x in under if x[0] != what.number} | {(what.number, f"{k.name} {e.out}")}
            behind[e.out] = frozenset(under)
        for s in k.stores:
            rounded = frozenset((what, s.buffer) for what, _ in behind[s.value])
            sums[s.buffer] = rounded if s.buffer in narrow else behind[s.value]
            numbering.store(s, computed[s.value])
    return False


def sums_again(e: Expansion, dtype: str) -> bool:
    """Whether a kernel adds up again what one of its leaves rests on, and the two meet as in `summed_twice`, of a
    program of this type. So no plan has to be made of it."""
    inside: dict[Form, frozenset[Atom]] = {}
    outside = {f: _sums(f) for f in e.leaves}
    for f, node in e.chosen:
        own = [s for s in node.steps if s.op in ("sum", "dot")]
        made = frozenset(_own_sums(f)) if own else frozenset[Atom]().union(*(inside.get(c, ()) for c in node.children))
        read = frozenset[Atom]().union(*(outside.get(c, ()) for c in node.children))
        if made & read and any(_told(s.op, dtype) for s in node.steps):
            return True
        inside[f], outside[f] = made, frozenset[Atom]() if own else read
    return False


def _told(op: str, dtype: str) -> bool:
    """Whether last digits tell in what an operator makes."""
    return OPS[op].compares or (OPS[op].shift and dtype == "float32")


def _own_sums(f: Form) -> set[Atom]:
    return {a for mono, _ in f.terms for a, _ in mono if a.kind == "sum"}


@lru_cache(1 << 14)
def _sums(f: Form) -> frozenset[Atom]:
    """The sums that a class rests on."""
    return frozenset(a for a in atoms_of([f]) if a.kind == "sum")


def _apart(*values: Sums) -> bool:
    """Whether one sum is there with two roundings."""
    met = frozenset[tuple[Hashable, str]]().union(*values)
    return len({what for what, _ in met}) < len(met)


@dataclass(frozen=True, slots=True)
class _Value:
    """The number of a value, and its axes, in an order that no name decides."""

    number: Hashable
    axes: tuple[str, ...]


class _Numbering:
    """Value numbering: values have one number that differ in the names of their axes alone.

        G[m, n] = dot(X[m, k], X[n, k]; k),  H[m, j] = dot(X[m, k], X[j, k]; k),  N[m] = dot(X[m, k], X[m, k]; k)
        --> G and H have one number, N another

    named: as of `summed_twice`.
    """

    def __init__(self, sizes: Mapping[str, int], named: Container[str]) -> None:
        self.sizes, self.named = sizes, named
        self.numbers: dict[Hashable, tuple[Hashable, tuple[int, ...]]] = {}  # with places of axes among those met
        self.names: dict[str, _Value] = {}
        self.stored: dict[str, Hashable] = {}  # what buffers hold

    def loaded(self, x: Load) -> _Value:
        axes = dims_of(x.access)
        return _Value((self.stored.get(x.buffer, x.buffer), _unnamed(x.access, axes)), axes)

    def store(self, s: Store, value: _Value) -> None:
        self.stored[s.buffer] = value.number, _unnamed(s.access, value.axes)

    def computed(self, e: Eqn, known: Mapping[str, _Value]) -> _Value:
        """What an equation makes. known: its arguments."""
        position = (e.place,) if e.place else ()
        axes = () if position else e.axes
        met = tuple(dict.fromkeys((*(d for a in e.values for d in known[a].axes), *dims_of(position), *axes, *e.dims)))
        at = {d: i for i, d in enumerate(met)}
        args = e.arguments(lambda v: (known[v].number, tuple(at[d] for d in known[v].axes)))
        how = e.op, args, tuple((at[d], self.sizes.get(d)) for d in axes), _unnamed(position, met)
        own = _Value(len(self.numbers), tuple(d for d in met if d in e.dims))
        earlier = self.names.get(e.out, own)
        if {*earlier.axes} != {*own.axes}:
            earlier = replace(own, number=earlier.number)
        number, places = self.numbers.setdefault(how, (earlier.number, tuple(at[d] for d in earlier.axes)))
        made = _Value(number, tuple(met[i] for i in places))
        if e.out not in self.named:
            return made
        self.names.setdefault(e.out, made)
        return made if earlier is own else earlier


def _unnamed(access: Access, axes: Sequence[str]) -> Access:
    """The access with the places of axes among these for their names."""
    numbers = {d: atom_index(str(n)) for n, d in enumerate(axes)}
    return tuple(i.within(numbers) for i in access)
