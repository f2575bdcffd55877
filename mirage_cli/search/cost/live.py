"""What a program instance holds at once: values in registers, and operands of products in shared memory.

A block is loaded as a whole. A sum or a product is computed as a whole, so what is used behind it is held while it is
computed. What a loop reads that was made in front of it is held throughout the loop. What is computed element by
element in between is not: the compiler has a few elements of it at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.ops import OPS, flops_of
from mirage_cli.ir.placement import Loop, Placement, Straight
from mirage_cli.ir.program import Eqn
from mirage_cli.ir.scans import reduces
from mirage_cli.ir.schedule import REGISTER_BYTES


class LiveValue(NamedTuple):
    """A value that is held. words: registers of an element, of which one holds two where products alone take them.
    beside: the axes without its own of what it is computed from or with: threads that share them each hold a copy (a
    slice of a layout, in Triton)."""

    axes: tuple[str, ...]
    words: float
    beside: tuple[str, ...]


Moment = tuple[tuple[LiveValue, int], ...]
"""The values that are held at a time, and how many there are alike."""


class Operand(NamedTuple):
    """A load that only products take, which lies in shared memory."""

    axes: tuple[str, ...]
    element_bytes: int


class Lanes(NamedTuple):
    """An accumulator that keeps what it reduces until after its loop, where a thread has few enough elements of that:
    its own axes, and those of what it adds up."""

    axes: tuple[str, ...]
    space: tuple[str, ...]


class Met(NamedTuple):
    """A sum of a loop that meets, element by element, what a product of the loop has made: Triton takes the sum in the
    layout of the product's result. axes: of the sum. operations: what is computed of an element on the way. product:
    the product's name."""

    axes: tuple[str, ...]
    operations: float
    product: str


class Held(NamedTuple):
    """moments: of a kernel, those at which most is held. operands: for each segment, those that are loaded in front of
    it."""

    moments: tuple[Moment, ...]
    operands: tuple[tuple[Operand, ...], ...]


def held_at_once(
    kernel: Kernel,
    placement: Placement,
    element_bytes: Mapping[str, int],
    exact: Collection[str],
    added: Collection[str],
) -> Held:
    """element_bytes: of each buffer. exact: the values whose products are of float32. added: products that the matrix
    units add to accumulators."""
    loads = {x.out: x for x in kernel.loads}
    stored = {s.value for s in kernel.stores}
    computed = {v for e in kernel.body if e.op != "dot" for v in e.values} | stored
    operands = {v for e in kernel.body if e.op == "dot" for v in e.values if v in loads} - computed
    products = {v for e in kernel.body if e.op == "dot" for v in e.values} - computed
    words = dict.fromkeys(kernel.value_dims, 1.0) | dict.fromkeys(products - {*exact}, 0.5)
    words |= {v: min(1.0, element_bytes[x.buffer] / REGISTER_BYTES) for v, x in loads.items()}
    numbers: dict[LiveValue, int] = {}
    moments: dict[tuple[int, ...], None] = {}
    in_front: list[tuple[Operand, ...]] = []
    later = [_used(s) for s in placement.segments]
    known = set[str]()
    for i, segment in enumerate(placement.segments):
        behind = set[str]().union(*later[i + 1 :])
        through = {v for v in known - {s.out for s in segment.steps} if v in later[i] or v in behind}
        taken = ((kernel.value_dims[v], element_bytes[loads[v].buffer]) for v in sorted(through & operands))
        in_front.append(tuple(Operand(*x) for x in taken))
        spaces = spaces_of_sums(kernel, segment)
        own = {n for n, _ in segment.accumulators} if isinstance(segment, Loop) else set[str]()
        values = {
            v: numbers.setdefault(LiveValue(axes, words[v], axes_beside(axes, spaces)), len(numbers))
            for v in (through | own | {s.out for s in segment.steps}) - operands - {*added}
            if (axes := kernel.value_dims[v])
        }
        for names in _moments(segment, through, behind, set(loads)):
            moments[tuple(sorted(values[v] for v in names & values.keys()))] = None
        known |= own if isinstance(segment, Loop) else {s.out for s in segment.steps}
    found = [*numbers]
    most = tuple(tuple(sorted((found[v], n) for v, n in m.items())) for m in _most(moments))
    return Held(most, tuple(in_front))


def lanes(kernel: Kernel, loop: Loop) -> tuple[Lanes, ...]:
    """As `codegen.iterations.deferred`: what nothing rescales, and no product has laid out."""
    eqns = {e.out: e for e in kernel.body}
    kept = (eqns[n] for n in loop.steady)
    sums = (e for e in kept if OPS[e.op].kind == "reduction" and not _from_product(eqns, *e.values))
    return tuple(Lanes(e.dims, (*e.dims, *e.axes)) for e in sums)


def met(loop: Loop) -> tuple[Met, ...]:
    """Of each sum that no product is in, the first product whose result it meets, if any."""
    eqns = [s for s in loop.steps if isinstance(s, Eqn)]
    made_of = _products_within(eqns)
    found: list[Met] = []
    for e in eqns:
        if not reduces(e) or made_of[e.out]:
            continue
        along, operations = {e.out}, 0.0
        for f in (f for f in eqns if f.op != "dot" and not reduces(f) and along & {*f.values}):
            if others := [p for v in f.values for p in made_of.get(v, ())]:
                found.append(Met(e.dims, operations, others[0]))
                break
            if {*f.dims} == {*e.dims}:
                along.add(f.out)
                operations += flops_of(f.op, f.args)
    return tuple(found)


def reduced(loop: Loop) -> tuple[tuple[tuple[str, ...], str], ...]:
    """What a loop reduces of what products have made: the axes, and the last of these products."""
    eqns = [s for s in loop.steps if isinstance(s, Eqn)]
    made_of = _products_within(eqns)
    return tuple((e.axes, made_of[e.out][-1]) for e in eqns if reduces(e) and made_of[e.out])


def _products_within(eqns: Iterable[Eqn]) -> dict[str, tuple[str, ...]]:
    """For each equation the products that it is computed from, itself among them."""
    found: dict[str, tuple[str, ...]] = {}
    for e in eqns:
        before = dict.fromkeys(p for v in e.values for p in found.get(v, ()))
        found[e.out] = (e.out,) if e.op == "dot" else (*before,)
    return found


def _from_product(eqns: Mapping[str, Eqn], *values: str) -> bool:
    """Whether any value is computed from a product."""
    todo, seen = [*values], set[str]()
    while todo:
        v = todo.pop()
        if v in seen or v not in eqns:
            continue
        seen.add(v)
        if eqns[v].op == "dot":
            return True
        todo += eqns[v].values
    return False


def _used(segment: Straight | Loop) -> set[str]:
    return {v for s in segment.steps if isinstance(s, Eqn) for v in s.values} | {s.value for s in segment.stores}


def _moments(segment: Straight | Loop, through: set[str], behind: set[str], loads: set[str]) -> Iterator[set[str]]:
    """The names that are held when something is loaded, while each sum or product is computed, and at the end. through:
    made in front of the segment, and used in it or behind it. behind: what later segments use."""
    loop = isinstance(segment, Loop)
    accumulators = {n for n, _ in segment.accumulators} if loop else set[str]()
    eqns = [s for s in segment.steps if isinstance(s, Eqn)]
    here = {s.out for s in segment.steps}
    made = set[str]()
    loaded = loads & here
    yield from ({v} | through if loop else {v} for v in sorted(loaded))
    afterwards = _used_behind(eqns, {s.value for s in segment.stores} | (set[str]() if loop else behind))
    for e, after in zip(eqns, afterwards, strict=True):
        made |= loaded.intersection(e.values)  # loaded where it is first used
        if OPS[e.op].kind in ("reduction", "contraction"):
            taken = {*e.values} if e.op == "dot" else set[str]()
            yield (through if loop else through & (after | taken)) | (made & (after | taken)) | accumulators | {e.out}
        made.add(e.out)
    yield (through if loop else through & behind) | accumulators


def _used_behind(eqns: Sequence[Eqn], last: set[str]) -> list[set[str]]:
    """What is used behind each equation. last: behind all of them."""
    found: list[set[str]] = []
    for e in reversed(eqns):
        found.append(last)
        last = last.union(e.values)
    return found[::-1]


def spaces_of_sums(kernel: Kernel, segment: Straight | Loop) -> list[tuple[str, ...]]:
    """The axes of what a segment sums; none where it multiplies: a layout of the matrix units has few copies."""
    order = [d for d, _ in kernel.roles]
    eqns = [s for s in segment.steps if isinstance(s, Eqn)]
    if any(e.op == "dot" for e in eqns):
        return []
    sums = ({*kernel.value_dims[e.out], *e.axes} for e in eqns if reduces(e))
    return [tuple(d for d in order if d in space) for space in sums]


def axes_beside(axes: Collection[str], spaces: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Those of the largest of these spaces that has the axes, and others."""
    beside = [tuple(d for d in s if d not in axes) for s in spaces if axes and {*axes} < {*s}]
    return max(beside, key=len, default=())


def _most(moments: Iterable[tuple[int, ...]]) -> list[Counter[int]]:
    """How often each value is there at those that are not a part of another. moments: each once."""
    each = [(m, frozenset(m)) for m in moments]

    def within(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return len(a) < len(b) and all(a.count(v) <= b.count(v) for v in a)

    kept = (a for a, of_a in each if not any(of_a <= of_b and within(a, b) for b, of_b in each))
    return [Counter(m) for m in kept]
