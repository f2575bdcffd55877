"""The products of a kernel, as the cost model sees them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirage_cli.ir.access import steady
from mirage_cli.ir.mugraph import Kernel, Load
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.phases import MOST as PHASES
from mirage_cli.ir.program import Eqn
from mirage_cli.ir.schedule import MIN_DOT, multiplied_as
from mirage_cli.search.cost.traffic import Lines


@dataclass(frozen=True, slots=True)
class Product:
    """The axes of one product: those of its left operand alone, of its right alone, summed, and shared by both."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    summed: tuple[str, ...]
    batch: tuple[str, ...]
    accumulates: bool
    """Whether it is added up over its loop and nothing rescales it there: then it can be summed after the loop."""
    computed: tuple[bool, bool]
    """Whether its left and its right operand go through registers: computed beside it, or loaded and computed with."""
    multiplied: tuple[bool, bool]
    """Whether its left and its right operand are made of another product beside it: a warpgroup that has one's rows
    takes them from registers."""
    singles: tuple[bool, bool]
    """Whether its left and its right operand are float32."""
    beside: str
    """As what the matrix units take the operand beside one of float32 (`multiplied_as`)."""
    small_within: tuple[tuple[str, int], ...] | None = None
    """Numbers that blocks of these axes have to divide for its operands to be of a smaller type: what makes them
    float32 is then a factor of all that a block sums, and stands in front of the sum. None where it is none."""
    eights: bool = False
    """Whether the matrix units take its operands as they are stored, where blocks are deep enough."""
    paired: tuple[bool, bool] = (False, False)
    """Whether its left and its right operand are made of bytes that lie side by side along an axis of the result: the
    matrix units may take them as they are read from shared memory (`codegen.bytepairs`)."""
    lines: tuple[Lines | None, Lines | None] = (None, None)
    """Where its left and its right operand lie in memory, those that are loaded."""

    @property
    def axes(self) -> tuple[str, ...]:
        return *self.left, *self.right, *self.summed, *self.batch

    @property
    def single(self) -> bool:
        """Whether an operand is float32."""
        return any(self.singles)


class Unscaled(NamedTuple):
    """A product of what is loaded of a smaller type, without factors of float32 that are the same for several positions
    in a row along what is summed. within: as `Product.small_within`. scaled: what is multiplied by such."""

    product: Eqn
    within: tuple[tuple[str, int], ...]
    scaled: tuple[str, ...]


class FromBits(NamedTuple):
    """An operand that is made of bits of bytes or words by logic. within: numbers that blocks of these axes have to
    divide, for its factors to stand behind the sum of a block (as `Product.small_within`). least: elements that a block
    has at least, for each phase of a loop to have a block (`ir/phases.py`), or each number that shares 16 bits. eqns:
    all that makes the operand of the bytes. whole: whether it is whole bytes, not parts of them."""

    within: tuple[tuple[str, int], ...]
    least: tuple[tuple[str, int], ...]
    eqns: frozenset[str]
    whole: bool


def from_bits(
    kernel: Kernel, product: Eqn, operand: str, halves: Collection[str], words: Collection[str]
) -> FromBits | None:
    """None where it is something else. halves: values that are computed in 16 bits. words: loads of them."""
    loads, eqns = {x.out: x for x in kernel.loads}, {e.out: e for e in kernel.body}
    within: dict[str, int] = {}
    found: set[str] = set()
    v = operand
    while v in eqns and v not in halves and OPS[eqns[v].op].growth == "product" and len(eqns[v].values) == 2:
        whole = [u for u in eqns[v].values if {*kernel.value_dims[u]} == {*eqns[v].dims}]
        scale = [u for u in eqns[v].values if u in loads and u not in whole[:1]]
        if not whole or not scale:
            return None
        within |= {d: math.gcd(within.get(d, 0), n) for d, n in _steady(loads[scale[0]], product.axes) if n}
        found.add(v)
        v = whole[0]
    made = _bits(v, {*kernel.value_dims[operand]}, kernel.value_dims, eqns, halves)
    if made is None or not found | made or 1 in within.values():
        return None
    parts = {str(eqns[x[-1]].args[0]) for e in made if (x := _parts(e, eqns))}
    own = [x for x in map(loads.__getitem__, parts) if all(n <= PHASES for _, n in _steady(x, product.axes))]
    shared = {(x.out, d): n for x in own for d, n in _steady(x, x.dims) if n > 1}
    if any(d not in product.axes and x not in words for x, d in shared):
        return None
    least = tuple((d, (n if d in product.axes else n // 2) * MIN_DOT) for (_, d), n in shared.items())
    return FromBits((*within.items(),), least, frozenset(found | made), not own)


def _steady(x: Load, axes: Collection[str]) -> Iterator[tuple[str, int]]:
    """For how many positions along each of these axes a load reads the same, 0 for all."""
    return ((d, math.gcd(*(steady(a, d) for i in x.access for a, _ in i.terms))) for d in axes)


def _bits(
    v: str,
    space: set[str],
    dims: Mapping[str, tuple[str, ...]],
    eqns: Mapping[str, Eqn],
    halves: Collection[str],
) -> set[str] | None:
    """The equations with these axes that make a value, where that is a sum with bits of a byte or a word: which of
    several may depend on the position, as loops in phases know that."""
    if {*dims[v]} != space or v not in eqns:
        return set() if v in halves else None
    e = eqns[v]
    row = OPS[e.op]
    if v in halves and row.bits and (parts := _parts(v, eqns)):
        return {*parts}
    if v not in halves or not (row.linear or row.masks):
        return None
    found = {v}
    for i, a in enumerate(e.args):
        if isinstance(a, str) and i not in row.masks and {*dims[a]} == space:
            made = _bits(a, space, dims, eqns, halves)
            if made is None:
                return None
            found |= made
    return found


def _parts(v: str, eqns: Mapping[str, Eqn]) -> list[str]:
    """The equations that make a value of bits of what is loaded, shifts by positions among them, the last first; none
    where it is something else."""
    found: list[str] = []
    while v in eqns and isinstance(eqns[v].args[0], str) and _takes_part(eqns[v]):
        found.append(v)
        v = str(eqns[v].args[0])
    return [] if v in eqns else found


def _takes_part(e: Eqn) -> bool:
    """Whether it takes some bits of an integer, or may, once its second argument is a number."""
    return OPS[e.op].bits is not None or OPS[e.op].simpler is not None


def unscaled(kernel: Kernel, product: Eqn, exact: Collection[str], accumulates: bool) -> Unscaled | None:
    """None where operands are float32 otherwise, or where no accumulator takes what factors multiply."""
    if not any(v in exact for v in product.args):
        return Unscaled(product, (), ())
    loads, eqns = {x.out: x for x in kernel.loads}, {e.out: e for e in kernel.body}
    read = Counter([*(v for e in kernel.body for v in e.values), *(s.value for s in kernel.stores)])
    limits: dict[str, int] = {}
    scaled: list[str] = []
    args = list(product.args)
    for i, v in enumerate(args):
        while v in exact:
            y = eqns.get(str(v))
            if y is None or OPS[y.op].growth != "product" or len(y.values) != 2 or read[y.out] > 1:
                return None
            whole = [u for u in y.values if {*kernel.value_dims[u]} == {*y.dims} and u not in exact and u in loads]
            scale = [loads[u] for u in y.values if u not in whole and u in loads]
            if not whole or not scale or not accumulates:
                return None
            limits |= {d: math.gcd(limits.get(d, 0), n) for d, n in _steady(scale[0], product.axes) if n}
            scaled.append(y.out)
            v = args[i] = whole[0]
    return (
        None if 1 in limits.values() else Unscaled(replace(product, args=tuple(args)), (*limits.items(),), (*scaled,))
    )


def product_of(
    e: Eqn,
    dims: Mapping[str, tuple[str, ...]],
    accumulates: bool,
    beside: set[str],
    multiplied: Collection[str],
    alone: Unscaled | None,
    eights: bool,
    exact: Collection[str],
    stored: Mapping[str, str],
    paired: Collection[str],
    lines: Mapping[str, Lines | None],
) -> Product:
    """multiplied: what is made of products beside it. stored: the types of values that are of a smaller one than
    float32. paired: operands, as `Product.paired`. lines: where loads lie."""
    left, right = (dims[v] if isinstance(v, str) else () for v in e.args)
    first, second = (v in exact if alone is None else bool(alone.scaled) for v in e.args)
    small = [multiplied_as(stored.get(str(v), "")) for v in e.args if v not in exact]
    return Product(
        left=tuple(d for d in left if d not in right and d not in e.axes),
        right=tuple(d for d in right if d not in left and d not in e.axes),
        summed=e.axes,
        batch=tuple(d for d in left if d in right and d not in e.axes),
        accumulates=accumulates,
        computed=(e.args[0] in beside, e.args[1] in beside),
        multiplied=(e.args[0] in multiplied, e.args[1] in multiplied),
        singles=(first, second),
        beside=small[0] if first != second else "float32",
        small_within=None if alone is None else alone.within,
        eights=eights,
        paired=(e.args[0] in paired, e.args[1] in paired),
        lines=(lines.get(str(e.args[0])), lines.get(str(e.args[1]))) if first or second else (None, None),
    )
