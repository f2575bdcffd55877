"""Operands of products that are made of bytes, two of which are loaded as one element of 16 bits.

    O[n, m] = dot(f(W)[k, n], X[m, k])   -->   O[2*i, m] = dot(f(first byte of W2[k, i]), X[m, k])
                                               O[2*i + 1, m] = dot(f(second byte of W2[k, i]), X[m, k])

The matrix units take elements of 16 bits, and transposed reads of shared memory bring those to the threads that
multiply them. Bytes would be read one by one, or go back through shared memory once they are float16. Bytes that lie
along the summed axis need no transposition: where no warpgroup multiplies, they are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from mirage_cli.codegen import axisnames, narrow, nodes, plan, words
from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.matrices import Matrices, matrices, of_warpgroups, operand_types
from mirage_cli.codegen.nodes import Axes, Expr
from mirage_cli.codegen.plan import Statement
from mirage_cli.ir.access import Access, index, strides
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.program import HALVES, Eqn, cast_of, live_eqns
from mirage_cli.ir.schedule import MIN_DOT, on_matrix_units
from mirage_cli.ir.whole import EXACT

ZERO = nodes.Literal(Fraction(0))


class Paired(NamedTuple):
    """The operand of a product that is a sum with a part of a block of bytes or words. left: which one it is. dim: the
    axis of the result along which they lie. sharing: numbers that share 16 bits, as far apart as that leaves room."""

    left: bool
    sum: narrow.Sum
    dim: str
    sharing: int


def paired_loads(phases: Sequence[ScheduledKernel], boxes: Collection[str]) -> Mapping[str, tuple[str, int]]:
    """Loads of 16 bits at a time: those that nothing but such operands takes, with the axis along which numbers share
    them, and how many do. Not of what the kernel changes: of what lies at an odd address it is given a copy. phases:
    the kernel in each. boxes: loads through descriptors."""
    found: dict[str, tuple[str, int]] = {}
    changed = {s.buffer for s in phases[0].whole_kernel.stores}
    for x in (x for x in phases[0].kernel.loads if x.out not in boxes and x.buffer not in changed):
        shared = {(y.dim, y.sharing) for k in phases for _, y in _operands(k) if y.sum.byte == x.out}
        if len(shared) == 1 and all(_alone(k, x.out) for k in phases):
            found[x.out] = shared.pop()
    return found


def worded_loads(phases: Sequence[ScheduledKernel], boxes: Collection[str]) -> Mapping[str, tuple[str, int]]:
    """Loads of words, once for each so many numbers along an axis: those that nothing but operands in pairs subtract,
    where each thread has a word. With fewer, Triton brings what is made of them through shared memory.

    Each lane copies the word of its own numbers asynchronously. A block of bytes would come through registers, of few
    bytes of each thread, and be brought to the threads that subtract it by way of shared memory."""
    found: dict[str, tuple[str, int]] = {}
    for x in phases[0].kernel.loads:
        taken = {(y.dim, y.sharing) for k in phases for _, y in _operands(k) if x.out in dict(y.sum.others)}
        if (
            len(taken) == 1
            and x.out not in boxes
            and all(_taken_by(k, x.out, partial(_subtracting, k, x.out)) for k in phases)
        ):
            dim, count = taken.pop()
            enough = phases[0].block[dim] >= count * 32 * phases[0].schedule.warps
            if enough and all(words.in_whole_words(k, x, dim, count) for k in phases):
                found[x.out] = dim, count
    return found


def operand(k: ScheduledKernel, e: Eqn) -> Paired | None:
    """The operand of a product that is loaded in pairs, if any."""
    found = _operand(k, e)
    return found if found is not None and k.paired.get(found.sum.byte) == (found.dim, found.sharing) else None


def read(k: ScheduledKernel, e: Eqn) -> Sequence[str]:
    """The values whose blocks an equation takes."""
    found = operand(k, e) if e.op == "dot" else None
    return narrow.read(k, e) if found is None else _read(k, e, found)


def product(k: ScheduledKernel, e: Eqn, x: Paired, other: Expr, accumulator: str | None) -> Expr:
    """The products for the first, the second, and so on of the numbers that share 16 bits, put together. other: the
    operand that is not made of them."""
    sides = [(y, other) if x.left else (other, y) for y in _each(k, x, _axes(matrices(k, e), x))]
    whole = _in_turns([nodes.Dot(*both, None, None) for both in sides], x.dim)
    return whole if accumulator is None else nodes.Added(accumulator, whole)


def _in_turns(some: Sequence[Expr], dim: str) -> Expr:
    if len(some) == 1:
        return some[0]
    even, odd = (_in_turns(x, axisnames.half(dim)) for x in (some[::2], some[1::2]))
    return nodes.InTurns(even, odd, dim)


def added_up(body: Sequence[Statement]) -> list[Statement]:
    """Of statements that add such products up, those for even positions are added among each other, and those for odd
    ones, before they are put together."""
    found: list[Statement] = []
    first: dict[str, nodes.InTurns] = {}
    for s in body:
        match s:
            case plan.Let(out, nodes.Added(accumulator, nodes.InTurns() as x)) if out == accumulator and out in first:
                found = [y for y in found if y != plan.Let(out, first[out])]
                first[out] = _behind(first[out], x)
                found.append(plan.Let(out, first[out]))
            case plan.Let(out, nodes.InTurns() as x):
                first[out] = x
                found.append(s)
            case _:
                found.append(s)
    return found


def _behind(first: nodes.InTurns, second: nodes.InTurns) -> nodes.InTurns:
    """The sum of two such products, the second of which the matrix units add to the first."""
    pairs = ((first.first, second.first), (first.second, second.second))
    even, odd = (replace(y, accumulator=x) for x, y in pairs if isinstance(x, nodes.Dot) and isinstance(y, nodes.Dot))
    return nodes.InTurns(even, odd, first.dim)


def read_as_multiplied(k: ScheduledKernel, e: Eqn, value: str) -> bool:
    """Whether the bytes of a product's operand lie along the summed axis, and each thread reads those it multiplies."""
    if value not in k.loads or of_warpgroups(k, matrices(k, e)):
        return False
    x = k.loads[value]
    steps, _ = strides(x.access, k.tensors[x.buffer].steps(k.sizes))
    return any(steps.get(d) == 1 for d in e.axes)


def is_read_as_multiplied(k: ScheduledKernel, e: Eqn) -> bool:
    """Whether all that takes what a narrow equation computes is products of bytes that are read so."""
    needed = {s.value for s in k.kernel.stores} | {v for x in k.factored.values() for v in x.by}
    readers = [x for x in live_eqns([*_body(k)], needed) if e.out in x.values]
    found = narrow.sum_of(k, e.out)
    products = (x.op == "dot" and on_matrix_units(x, k.dims, k.block) for x in readers)
    return found is not None and all(products) and all(read_as_multiplied(k, x, found.byte) for x in readers)


def block_axes(k: ScheduledKernel, x: Load) -> Axes:
    """The axes of a block of pairs: those of the operand that it is part of."""
    return next(_axes(matrices(k, e), found) for e, found in _operands(k) if found.sum.byte == x.out)


def _axes(m: Matrices, x: Paired) -> Axes:
    sides = (m.rows, m.middle) if x.left else (m.middle, m.columns)
    return tuple(axisnames.shared(d, x.sharing) if d == x.dim else d for d in axisnames.merged(*sides))


def _each(k: ScheduledKernel, x: Paired, axes: Axes) -> list[Expr]:
    """The operand for each of the numbers that share 16 bits along its axis."""
    block = nodes.Value(x.sum.byte, axes)
    dtype, (shift, mask, sign) = k.graph.dtype, x.sum.bits
    whole = x.sum.bits == narrow.WHOLE and dtype == "bfloat16"

    def one(place: int) -> Expr:
        of_words = any(k.worded.get(v) == (x.dim, x.sharing) for v, _ in x.sum.others)
        own = narrow.subtracted(k, x.sum, not whole, (lambda v: _at(k, v, x, place)) if of_words else None)
        own = own if of_words else _every(own, x, place)
        own = nodes.Spread(own, axes) if own.axes else own
        if whole:
            found: Expr = nodes.PairBytes(block, place == 1)
            return nodes.MatrixType(found if own == ZERO else nodes.Apply("sub", (found, own), True, axes))
        at = shift + place * narrow.HALF // x.sharing
        found = nodes.PairBits(block, at >= narrow.BYTE, at % narrow.BYTE, mask, sign, own, dtype)
        return nodes.MatrixType(found) if dtype == "bfloat16" else found

    return [one(place) for place in range(x.sharing)]


def _at(k: ScheduledKernel, value: str, x: Paired, place: int) -> Expr:
    """Of each so many numbers of a value that share 16 bits, the one at a place."""
    block = k.block_of(value)
    if k.worded.get(value) != (x.dim, x.sharing):
        return _every(block, x, place)
    return words.number(k, k.loads[value], place)


def _every(block: Expr, x: Paired, place: int) -> Expr:
    """Of each so many elements along the axis of such an operand, the one at a place."""
    for n in range(x.sharing.bit_length() - 1 if x.dim in block.axes else 0):
        block = nodes.EverySecond(block, place >> n & 1 == 1)
    return block


def _operands(k: ScheduledKernel) -> Iterator[tuple[Eqn, Paired]]:
    for e in _body(k):
        if e.op == "dot" and (found := _operand(k, e)) is not None:
            yield e, found


def _body(k: ScheduledKernel) -> Iterator[Eqn]:
    """The equations, products without the factors that come behind their sums."""
    for e in k.kernel.body:
        yield k.factored[e.out].product if e.out in k.factored else e


def _operand(k: ScheduledKernel, e: Eqn) -> Paired | None:
    """The operand of a product that may be loaded in pairs, if any."""
    dtype = k.graph.dtype
    if not k.loads_bytes or dtype not in HALVES or not on_matrix_units(e, k.dims, k.block):
        return None
    m = matrices(k, e)
    if m.batch or len(m.middle) != 1 or {*e.axes} & k.padded or operand_types(k, e, m) != (dtype, dtype):
        return None
    for left in (True, False):
        value = m.left if left else m.right
        for found, count in _sums(k, value):
            dim = _own_axis(k, m, found, left, count)
            if dim is not None and _side_by_side(k, k.loads[found.byte], dim):
                return Paired(left, found, dim, count)
    return None


def _sums(k: ScheduledKernel, value: str) -> Iterator[tuple[narrow.Sum, int]]:
    """A value as sums with parts of bytes, two of which are 16 bits, or of words, with the positions to 16 bits."""
    found = narrow.sum_of(k, value) or (_whole_byte(k, value) if k.graph.dtype == "bfloat16" else None)
    if found is not None and k.type_of(found.byte) == "int8":
        yield found, 2
    along = narrow.sum_along_words(k, value)
    shared = None if along is None else narrow.words_along(k.loads[along.byte])
    if along is not None and shared is not None and shared[1] > 2:
        yield along, shared[1] // 2


def _whole_byte(k: ScheduledKernel, value: str) -> narrow.Sum | None:
    """A block of bytes, what is made of one by a conversion, or a sum with one, all in what bfloat16 holds."""
    if value in k.eqns and value in k.small_integers:
        terms, number = narrow.terms_of(k, k.eqns[value])
        own = [v for v, c in terms if c == 1 and narrow.packed(k, v) and k.axes_of(v) == k.axes_of(value)]
        others = tuple(t for t in terms if t[0] not in own)
        if len(own) == 1 and all(v in k.bounded and abs(c) == 1 for v, c in others):
            most = abs(number) + sum(max(map(abs, k.bounded[v])) for v, _ in others)
            return narrow.Sum(own[0], narrow.WHOLE, number, others) if most <= EXACT["bfloat16"] else None
    while value in k.eqns and cast_of(k.eqns[value]) in HALVES:
        (value,) = k.eqns[value].values
    load = k.type_of(value) == "int8" and value in k.loads
    return narrow.Sum(value, narrow.WHOLE, 0, ()) if load else None


def _own_axis(k: ScheduledKernel, m: Matrices, x: narrow.Sum, left: bool, count: int) -> str | None:
    """The one axis that an operand has beside the summed one, if it is large enough for so many products along it. The
    right operand of a warpgroup comes from shared memory."""
    own = m.rows if left else m.columns
    others = {d for v, _ in x.others for d in k.axes_of(v)}
    fits = len(own) == 1 and k.elements(own) >= count * MIN_DOT and others <= {*own}
    return own[0] if fits and own[0] not in k.padded and (left or not of_warpgroups(k, m)) else None


def whole_access(x: Load, dim: str) -> Access:
    """Where a load reads, as if each position along an axis had an element of its own."""
    whole = index({dim: 1})
    return tuple(whole if narrow.words_along(x) is not None and dim in i.dims else i for i in x.access)


def _side_by_side(k: ScheduledKernel, x: Load, dim: str) -> bool:
    """Whether the positions of a load along an axis are neighbours in memory, in all of its tensor, where elements of
    16 bits hold two bytes or parts of a word."""
    t, words = k.tensors[x.buffer], narrow.words_along(x) is not None
    if x.buffer in k.live or (k.repeats(x) and not words) or {*t.dims, *x.dims} & k.dynamic:
        return False
    if any(any(i.leaves(k.sizes[d], k.sizes)) for d, i in zip(t.dims, x.access, strict=True)):
        return False
    access = whole_access(x, dim)
    if not all(i.affine or (dim not in i.dims and not words) for i in access):
        return False
    steps, start = strides(access, t.steps(k.sizes))
    even = words or (start % 2 == 0 and all(n % 2 == 0 for a, n in steps.items() if a != dim))
    return steps.get(dim) == 1 and even


def _alone(k: ScheduledKernel, byte: str) -> bool:
    """Whether operands of products are all that a block of bytes is taken for."""

    def made_of_it(e: Eqn) -> Paired | None:
        found = _operand(k, e)
        return found if found is not None and found.sum.byte == byte else None

    return _taken_by(k, byte, made_of_it)


def _taken_by(k: ScheduledKernel, value: str, product_of: Callable[[Eqn], Paired | None]) -> bool:
    """Whether a value is taken by these products alone, and once by each. product_of: a product as one of these."""
    needed = {s.value for s in k.kernel.stores} | {v for x in k.factored.values() for v in x.by}
    for e in reversed([*_body(k)]):
        if e.out not in needed:
            continue
        found = product_of(e) if e.op == "dot" else None
        taken = narrow.read(k, e) if found is None else _read(k, e, found)
        needed |= {*taken}
        if [*taken].count(value) > (found is not None):
            return False
    return value not in {s.value for s in k.kernel.stores}


def _subtracting(k: ScheduledKernel, value: str, e: Eqn) -> Paired | None:
    """A product with an operand in pairs, unless it takes a value for something else than what that is less by."""
    found = operand(k, e)
    others = () if found is None else (found.sum.byte, *_other(k, e, found)[:1])
    return None if value in others else found


def _other(k: ScheduledKernel, e: Eqn, x: Paired) -> tuple[str, ...]:
    m = matrices(k, e)
    return (m.right if x.left else m.left, *(v for v, _ in x.sum.others))


def _read(k: ScheduledKernel, e: Eqn, x: Paired) -> tuple[str, ...]:
    return (x.sum.byte, *_other(k, e, x))
