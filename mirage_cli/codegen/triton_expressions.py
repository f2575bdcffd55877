"""What the blocks of a plan hold as Triton text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from mirage_cli.codegen import nodes
from mirage_cli.codegen.nodes import Axes, Expr
from mirage_cli.codegen.triton_addresses import Names, extent_text, mask_text, position_text, spread_text
from mirage_cli.ir.ops import OPS, power_of_two
from mirage_cli.ir.program import FLOAT8, number_type

TYPE = {
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "float8_e4m3fn": "tl.float8e4nv",
    "float8_e5m2": "tl.float8e5",
    "int8": "tl.int8",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "bool": "tl.int1",
}
ROUNDED = {"bfloat16", *FLOAT8}
"""Types that helpers round to, from float32."""
LOG2E = math.log2(math.e)


def joined_text(blocks: Sequence[str]) -> str:
    """With axes of two elements behind, which say whose it is."""
    return blocks[0] if len(blocks) == 1 else f"tl.join({joined_text(blocks[::2])}, {joined_text(blocks[1::2])})"


def moved_last_text(text: str, axes: Axes, dim: str, twos: int) -> str:
    """A block with so many axes behind its own moved behind one of these."""
    before = range(axes.index(dim) + 1)
    order = (*before, *range(len(axes), len(axes) + twos), *range(len(before), len(axes)))
    return text if order == (*range(len(order)),) else f"tl.permute({text}, {order})"


def expression_text(x: Expr, names: Names) -> str:
    return _EXPRESSIONS[type(x)](x, names)


def _apply(x: nodes.Apply, names: Names) -> str:
    row = OPS[x.op]
    by = x.args[-1]
    if row.of_powers and x.whole and isinstance(by, nodes.Literal) and (n := power_of_two(by.value)) is not None:
        return row.of_powers.format(*(expression_text(a, names) for a in x.args), (1 << n) - 1, n)
    exact = row.by_few if row.by_few and _of_few(by, x.axes) else row.triton
    text = row.of_integers if x.whole else exact if x.exact else row.nearly or row.triton
    few = isinstance(by, nodes.Literal) and text == row.by_few  # a helper takes blocks, or one element
    last = f"tl.full((), {expression_text(by, names)}, tl.float32)" if few else expression_text(by, names)
    return text.format(*(expression_text(a, names) for a in x.args[:-1]), last)


def _of_few(x: Expr, axes: Axes) -> bool:
    """Whether several elements of a block with these axes meet one of x."""
    own = x.x.axes if isinstance(x, nodes.Spread) else x.axes
    return len(own) < len(axes)


def _reduce(x: nodes.Reduce, names: Names) -> str:
    text, axes = expression_text(x.x, names), x.x.axes
    template = f"tl.{x.op}({{0}}, axis={{1}})" if OPS[x.op].extremum and not x.nan else OPS[x.op].triton
    for i in reversed([axes.index(d) for d in x.over]):
        text = template.format(text, i)
    return text


def _scan(x: nodes.Scan, names: Names) -> str:
    place = x.x.axes.index(x.over)
    if x.decay is not None:
        return f"recurrence({expression_text(x.x, names)}, {expression_text(x.decay, names)}, {place}, {x.back})"
    if x.relative:
        return f"running_exponentials({expression_text(x.x, names)}, {place}, {x.back})"
    return OPS[x.op].scan.format(expression_text(x.x, names), place, x.back)


def _dot(x: nodes.Dot, names: Names) -> str:
    added = [names[x.accumulator]] if isinstance(x.accumulator, str) else []
    added += [_dot(x.accumulator, names)] if isinstance(x.accumulator, nodes.Dot) else []
    if isinstance(x.precision, int):
        return " + ".join(
            [*added, f"dot_float8({expression_text(x.left, names)}, {expression_text(x.right, names)}, {x.precision})"]
        )
    if isinstance(x.precision, nodes.InParts):
        side, part = x.precision.side, x.precision.part
        return " + ".join(
            [*added, f"dot_in_{part}({expression_text(x.left, names)}, {expression_text(x.right, names)}, {side})"]
        )
    if x.precision == "int8":
        product = f"tl.dot({expression_text(x.left, names)}, {expression_text(x.right, names)}, out_dtype=tl.int32)"
        return " + ".join([*added, f"{product}.to(tl.float32)"])
    precision = [f'input_precision="{x.precision}"'] if x.precision is not None else []
    return f"tl.dot({', '.join([expression_text(x.left, names), expression_text(x.right, names), *added, *precision])})"


def _byte_bits(x: nodes.ByteBits, names: Names) -> str:
    return (
        f"byte_bits({expression_text(x.x, names)}, {x.shift}, {x.mask}, {x.sign}, {_less(x, names)}{', True' * x.pure})"
    )


def _pair_bits(x: nodes.PairBits, names: Names) -> str:
    return f"pair_bits({expression_text(x.x, names)}, {x.shift + 8 * x.second}, {x.mask}, {x.sign}, {_less(x, names)})"


def of_words_text(x: nodes.OfWords, words: str) -> str:
    bits, own = nodes.WORD_BITS // x.room, f"BLOCK_{x.dim}" + (f" // {x.count}" if x.count > 1 else "")
    at = f"tl.arange(0, {own}) % {x.room // x.count} * {x.count * bits}" if x.count < x.room else ""
    shift = " + ".join(filter(None, (at, str(x.place * bits) if x.place else "")))
    part = f"({words} >> ({shift}))" if shift else words
    return f"{part}.to(tl.int{bits})" + (f".to({TYPE[x.dtype]}, bitcast=True)" if x.dtype != f"int{bits}" else "")


def _less(x: nodes.ByteBits | nodes.PairBits, names: Names) -> str:
    """What is subtracted, in the type of the result."""
    if not isinstance(x.less, nodes.Literal):
        return expression_text(x.less, names)
    dtype = "MATRIX_TYPE" if x.dtype == "bfloat16" else TYPE[x.dtype]
    return f"tl.full((), {expression_text(x.less, names)}, {dtype})"


def _in_turns(x: nodes.InTurns, names: Names) -> str:
    text = joined_text([expression_text(x.first, names), expression_text(x.second, names)])
    return f"tl.reshape({moved_last_text(text, x.axes, x.dim, 1)}, {shape_text(x.axes)})"


def _entries(x: nodes.Entries, names: Names) -> str:
    shape = shape_text(x.axes)
    flat = f"tl.reshape({expression_text(x.x, names)}, [{shape[1:-1].replace(', ', ' * ')}])"
    return f"tl.reshape(tl.gather({expression_text(x.table, names)}, {flat}, 0), {shape})"


def exp_of_difference_text(x: str, shift: str, exact: bool, factor: float) -> str:
    if not exact:
        return f"tl.exp2({x} * {factor * LOG2E!r} - {shift})"
    return f"tl.exp2(({x} - {shift}) * {factor * LOG2E!r})"


def _power(x: str, exponent: Fraction, exact: bool) -> str:
    """x ** exponent: products for small integers, roots for halves, else through the logarithm.

    exact: with quotients and roots that are rounded correctly."""
    sqrt = "tl.sqrt_rn" if exact else "tl.sqrt"
    if exponent < 0 and exponent != Fraction(-1, 2):
        inverse = _power(x, -exponent, exact)
        return f"tl.div_rn(1.0, {inverse})" if exact else f"(1.0 / {inverse})"
    if exponent.denominator == 1 and exponent <= 16:
        return "(" + " * ".join([x] * int(exponent)) + ")" if exponent else f"({x} * 0.0 + 1.0)"
    if exponent == Fraction(1, 2):
        return f"{sqrt}({x})"
    if exponent == Fraction(-1, 2):
        return f"tl.rsqrt({x})"
    if exponent.denominator == 2:
        return f"({_power(x, exponent - Fraction(1, 2), exact)} * {sqrt}({x}))"
    if exponent.denominator == 1:
        size = f"tl.exp2({float(exponent)!r} * tl.log2(tl.abs({x})))"
        return f"tl.where({x} < 0.0, -{size}, {size})" if exponent % 2 else size
    return f"tl.exp2({float(exponent)!r} * tl.log2({x}))"


LEAST_FLOAT32, MOST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The normal numbers."""


_EXPRESSIONS: Mapping[type[Expr], Callable[..., str]] = {
    nodes.Value: lambda x, names: names[x.name],
    nodes.Shift: lambda x, names: f"{names[x.maximum]}_shift",
    nodes.Factor: lambda x, names: f"{names[x.maximum]}_scale",
    nodes.Literal: lambda x, _: number_text(x),
    nodes.Placed: lambda x, names: f"({position_text(x.terms, x.start, x.axes, names)})",
    nodes.Extent: lambda x, _: f"SIZE_{x.dim}.to(tl.float32)",
    nodes.Position: lambda x, _: f"i_{x.dim}" if x.axes else f"(i_{x.dim} + 0)",
    nodes.Full: lambda x, _: (
        f"tl.full({shape_text(x.axes) if x.axes else '()'}, {number_text(x.number)}, {TYPE[x.dtype]})"
    ),
    nodes.Cast: lambda x, names: cast_text(expression_text(x.x, names), x.old, x.new),
    nodes.ByteBits: _byte_bits,
    nodes.PairBytes: lambda x, names: f"pair_bytes({expression_text(x.x, names)}, {x.second})",
    nodes.Entries: lambda x, names: _entries(x, names),
    nodes.HalfWord: lambda x, names: f"({expression_text(x.x, names)}{' >> 16' * x.first}).to(tl.int16)",
    nodes.OfWords: lambda x, names: of_words_text(x, expression_text(x.x, names)),
    nodes.PairBits: _pair_bits,
    nodes.EverySecond: lambda x, names: f"every_second({expression_text(x.x, names)}, {x.second})",
    nodes.InTurns: _in_turns,
    nodes.MatrixType: lambda x, names: f"{expression_text(x.x, names)}.to(MATRIX_TYPE)",
    nodes.Spread: lambda x, names: spread_text(expression_text(x.x, names), x.x.axes, x.axes),
    nodes.Repeated: lambda x, names: f"tl.broadcast_to({expression_text(x.x, names)}, {shape_text(x.axes)})",
    nodes.Permuted: lambda x, names: permuted_text(expression_text(x.x, names), x.x.axes, x.axes),
    nodes.Reshaped: lambda x, names: f"tl.reshape({expression_text(x.x, names)}, {shape_text(x.axes)})",
    nodes.Masked: lambda x, names: (
        f"tl.where({mask_text(x.dims, x.axes)}, {expression_text(x.x, names)}, {number_text(x.number)})"
    ),
    nodes.Apply: _apply,
    nodes.Scaled: lambda x, names: f"({expression_text(x.x, names)} * {number_text(nodes.Literal(x.factor))})",
    nodes.Power: lambda x, names: _power(expression_text(x.x, names), x.exponent, x.exact),
    nodes.AddedLast: lambda x, names: f"tl.fma({expression_text(x.a, names)}, 1.0, {expression_text(x.b, names)})",
    nodes.ExpDifference: lambda x, names: exp_of_difference_text(
        expression_text(x.x, names), expression_text(x.shift, names), x.exact, x.factor
    ),
    nodes.Product: lambda x, names: f"{expression_text(x.a, names)} * {expression_text(x.b, names)}",
    nodes.Reduce: _reduce,
    nodes.Scan: _scan,
    nodes.Along: lambda x, names: expression_text(x.x, names),
    nodes.Dot: _dot,
    nodes.Ended: lambda x, names: f"ended({expression_text(x.x, names)})",
    nodes.Added: lambda x, names: f"{names[x.accumulator]} + {expression_text(x.x, names)}",
}


def number_text(x: nodes.Literal) -> str:
    """A number as Triton reads it; a whole one stays an integer. One that is no normal number of float32 would be read
    as float64, and all that it meets with it."""
    value = x.value
    if isinstance(value, int):
        return str(value)
    exact = isinstance(value, Fraction)
    if exact and x.whole and number_type(value) == "int":
        return str(value.numerator) if value >= 0 else f"({value.numerator})"
    number = float(value)
    if not abs(number) <= MOST_FLOAT32:
        return f'float("{"nan" if number != number else "inf" if number > 0 else "-inf"}")'
    if 0 < abs(number) < LEAST_FLOAT32:
        return f"tl.full((), {number!r}, tl.float32)"
    return f"({number!r})" if exact and number < 0 else repr(number)


def shape_text(axes: Axes) -> str:
    return f"[{', '.join(map(extent_text, axes))}]"


def cast_text(text: str, old: str, new: str) -> str:
    if new not in ROUNDED or old == new:
        return f"{text}.to({TYPE[new]})"
    return f"to_{new}({text})" if old == "float32" else f"to_{new}({text}.to(tl.float32))"


def permuted_text(text: str, have: Axes, want: Axes) -> str:
    return text if have == want else f"tl.permute({text}, ({', '.join(str(have.index(d)) for d in want)}))"
