"""Whole numbers that a type of 16 bits holds exactly, computed in it: parts of bytes, and sums of them.

By way of float32, each byte costs a conversion to float32, operations of 32 bits, and a conversion to 16. For n below
1024, the last bits of 1024 + n in float16 are those of n, and for n below 128 those of 128 + n in bfloat16: so the
parts of four bytes become four numbers by logic alone (Kim et al., "Who Says Elephants Can't Run", 2022), and what was
added is subtracted together with whatever else is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mirage_cli.codegen import nodes
from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.nodes import RAISED, WORD_BITS, Axes, Expr
from mirage_cli.ir.access import Quotient, atom_index, combined, index, remainder
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.op import Bits
from mirage_cli.ir.ops import OPS, power_of_two
from mirage_cli.ir.positions import position_of
from mirage_cli.ir.program import Arg, Eqn
from mirage_cli.ir.whole import EXACT

PACKED = 4
"""Bytes that are brought to float16 at once."""


@dataclass(frozen=True, slots=True)
class Sum:
    """bits of a block of bytes or words + number + the sum of coefficient * value."""

    byte: str
    bits: Bits
    number: int
    others: tuple[tuple[str, int], ...]

    @property
    def values(self) -> tuple[str, ...]:
        return (self.byte, *(v for v, _ in self.others))


WHOLE = (0, 255, 128)
"""The bits of a byte of int8."""
WORD = (0, (1 << 32) - 1, 1 << 31)
"""The bits of a word of int32."""
BYTE, HALF = 8, 16
"""Bits of a byte, and of a half of a word."""
ARITHMETIC = {"float16": "float16", "bfloat16": "float32"}
"""What a narrow equation that is no such sum is computed in, by the program's type."""


def packed(k: ScheduledKernel, value: str) -> bool:
    """Whether it is a block of bytes, of which each thread has several."""
    axes = k.axes_of(value)
    large = k.elements(axes) >= PACKED * 32 * k.schedule.warps and axes == k.axes(k.dims[value])
    return large and value in k.small_integers and k.type_of(value) == "int8"


def in_words(k: ScheduledKernel, value: str) -> bool:
    """Whether it is a block of words, of which each thread has several."""
    axes = k.axes_of(value)
    whole = value in k.loads and k.type_of(value) == "int32" and axes == k.axes(k.dims[value])
    return whole and k.elements(axes) >= 2 * 32 * k.schedule.warps


def of_bytes(k: ScheduledKernel, value: str, pure: bool = False) -> Expr:
    """A block of bytes as float16. pure: as `RaisedBits.pure`."""
    return _written(k, Sum(value, WHOLE, 0, ()), k.axes_of(value), pure)


def computed(k: ScheduledKernel, e: Eqn, pure: bool) -> Expr:
    """What a narrow equation computes. pure: as `ByteBits.pure`."""
    want, dtype = k.axes_of(e.out), k.graph.dtype
    found = _sum(k, e)
    if found is not None:
        return _written(k, found, want, pure)
    row = OPS[e.op]
    if row.of_integers or row.integers:
        blocks = tuple(_whole(k, a, want) for a in e.args)
        return nodes.Cast(nodes.Apply(e.op, blocks, True, want, bool(row.of_integers)), "int32", dtype)
    computed_in = dtype if _adds_exactly(k, e) else ARITHMETIC[dtype]
    x = nodes.Apply(e.op, tuple(_number(k, a, want, computed_in) for a in e.args), True, want)
    in_type = computed_in == dtype and all(isinstance(a, str) for a in e.args)
    return x if in_type else nodes.Cast(x, "float32", dtype)


def sum_of(k: ScheduledKernel, value: str) -> Sum | None:
    """A value as a sum with a part of a block of bytes, if it is that block or made of it."""
    if packed(k, value):
        found = Sum(value, WHOLE, 0, ())
        return found if _stays_exact(k, found) else None
    return _sum(k, k.eqns[value]) if value in k.eqns and value in k.small_integers else None


def words_along(x: Load) -> tuple[str, int] | None:
    """The dimension along which several positions in a row share each word that is loaded, and how many."""
    found = [a for i in x.access for a, _ in i.terms if isinstance(a, Quotient) and i == atom_index(a)]
    own = [(a.of.axis, a.by) for a in found if a.of.axis and WORD_BITS % a.by == 0]
    (dim, by) = own[0] if len(own) == 1 else (None, 0)
    elsewhere = [i for i in x.access if dim in i.dims]
    return (dim, by) if dim is not None and len(elsewhere) == 1 else None


def sum_along_words(k: ScheduledKernel, value: str) -> Sum | None:
    """A value as a sum with a part of a block of words: of each position the bits that are its own. Its bits are those
    of the first position."""
    return _sum(k, k.eqns[value], _own_bits) if value in k.eqns and value in k.small_integers else None


def read(k: ScheduledKernel, e: Eqn) -> Sequence[str]:
    """The values whose blocks an equation takes."""
    found = _sum(k, e) if e.out in k.small_integers else None
    return e.values if found is None else found.values


def _whole(k: ScheduledKernel, a: Arg, want: Axes) -> Expr:
    if not isinstance(a, str):
        return nodes.Literal(a, True)
    return nodes.spread(nodes.Cast(k.block_of(a), k.type_of(a), "int32"), want)


def _adds_exactly(k: ScheduledKernel, e: Eqn) -> bool:
    """Whether a sum is one of values that the program's type holds exactly, as it does the sum."""
    return bool(OPS[e.op].linear) and all(a in k.bounded for a in e.args)


def _number(k: ScheduledKernel, a: Arg, want: Axes, computed_in: str) -> Expr:
    if not isinstance(a, str):
        return nodes.Literal(a)
    return _in_type(k.block_of(a), k.type_of(a), want, computed_in)


def _in_type(x: Expr, kind: str, want: Axes, computed_in: str) -> Expr:
    if kind not in (computed_in, "bool"):
        x = nodes.Cast(x, kind, computed_in)
    x = nodes.MatrixType(x) if computed_in == "bfloat16" else x
    return nodes.spread(x, want)


def _sum(
    k: ScheduledKernel, e: Eqn, part: Callable[[ScheduledKernel, str], tuple[str, Bits] | None] | None = None
) -> Sum | None:
    """A narrow equation as a sum, if part of a block of bytes is added in it. part: what finds that, or `_bits`."""
    terms, number = terms_of(k, e, 1)
    for v, c in terms:
        byte = (part or _bits)(k, v) if c == 1 else None
        if byte is not None and k.axes_of(byte[0]) == k.axes_of(e.out):
            others = tuple(t for t in terms if t != (v, c))
            found = Sum(*byte, number, others)
            return found if _stays_exact(k, found) else None
    return None


def terms_of(k: ScheduledKernel, e: Eqn, factor: int = 1) -> tuple[list[tuple[str, int]], int]:
    """An equation as a sum of values, of those that it alone reads their own terms, and of a number."""
    row = OPS[e.op]
    if not row.linear:
        return [(e.out, factor)], 0
    terms: list[tuple[str, int]] = []
    number = 0
    for a, c in zip(e.args, row.linear, strict=True):
        if not isinstance(a, str):
            assert isinstance(a, Fraction), "a whole number"
            number += factor * c * int(a)
        elif a in k.eqns and sum(x.values.count(a) for x in k.kernel.body) == 1:
            more, known = terms_of(k, k.eqns[a], factor * c)
            terms, number = terms + more, number + known
        else:
            terms.append((a, factor * c))
    return terms, number


def _bits(k: ScheduledKernel, value: str) -> tuple[str, Bits] | None:
    """A value as bits of a byte: of one of a block of bytes, or of one of those of a block of words."""
    found = _part(k, value)
    if found is None:
        return None
    shift, mask, _ = found[1]
    return found if shift % BYTE + mask.bit_length() <= BYTE else None


def _own_bits(k: ScheduledKernel, value: str) -> tuple[str, Bits] | None:
    """A value as the bits of a block of words that are a position's own."""
    e = k.eqns.get(value)
    bits, n = (None, None) if e is None else (OPS[e.op].bits, power_of_two(e.args[-1]))
    shifted = None if e is None or bits is None else k.eqns.get(str(e.args[0]))
    if bits is None or n is None or shifted is None or OPS[shifted.op].simpler is None:
        return None
    word, by = shifted.args
    if not isinstance(word, str) or not in_words(k, word) or (along := words_along(k.loads[word])) is None:
        return None
    dim, count = along
    own = combined(0, ((remainder(index({dim: 1}), count), WORD_BITS // count),))
    found = bits(n, WORD)
    right = OPS[shifted.op].symbol == ">>" and position_of(by, k.eqns) == own
    return (word, found) if right and found and found[0] == 0 and found[1].bit_length() <= WORD_BITS // count else None


def _part(k: ScheduledKernel, value: str) -> tuple[str, Bits] | None:
    """A value as bits of a block of bytes or words."""
    if packed(k, value):
        return value, WHOLE
    if in_words(k, value):
        return value, WORD
    e = k.eqns.get(value)
    bits = None if e is None else OPS[e.op].bits
    if e is None or bits is None or not isinstance(e.args[0], str):
        return None
    n, inner = power_of_two(e.args[1]), _part(k, e.args[0])
    part = None if n is None or inner is None else bits(n, inner[1])
    return None if part is None or inner is None else (inner[0], part)


def _stays_exact(k: ScheduledKernel, x: Sum) -> bool:
    """Whether the raised bits and what is subtracted from them are exact, whatever it is added up of first."""
    raised, dtype = RAISED[k.graph.dtype], k.graph.dtype
    if x.bits[1] >= raised or not all(v in k.bounded and abs(c) == 1 for v, c in x.others):
        return False
    largest = sum(max(map(abs, k.bounded[v])) for v, _ in x.others)
    return raised + x.bits[2] + abs(x.number) + largest <= EXACT[dtype]


def _written(k: ScheduledKernel, x: Sum, want: Axes, pure: bool) -> Expr:
    less = nodes.spread(subtracted(k, x), want)
    if k.type_of(x.byte) == "int32":
        shift, mask, sign = x.bits
        half = nodes.HalfWord(k.block_of(x.byte), shift >= HALF)
        return nodes.PairBits(half, False, shift % HALF, mask, sign, less, k.graph.dtype)
    return nodes.ByteBits(k.block_of(x.byte), *x.bits, less, k.graph.dtype, pure)


def subtracted(k: ScheduledKernel, x: Sum, raised: bool = True, blocks: Callable[[str], Expr] | None = None) -> Expr:
    """What is subtracted from the bits of a sum, raised or as the number that they are. blocks: of the values that are
    added to them, all along one axis, where these are not whole."""
    dtype = k.graph.dtype
    found = [(blocks or k.block_of)(v) for v, _ in x.others]
    axes = found[0].axes if blocks and found else k.axes({d for b in found for d in b.axes})
    less: Expr = nodes.Literal(Fraction((RAISED[dtype] + x.bits[2]) * raised - x.number))
    for b, (v, c) in zip(found, x.others, strict=True):
        own = _in_type(b, k.type_of(v), axes, ARITHMETIC[dtype])
        less = nodes.Apply("sub" if c > 0 else "add", (less, own), True, axes)
    return nodes.MatrixType(less) if x.others and dtype == "bfloat16" else less
