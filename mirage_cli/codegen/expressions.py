"""Equations as Triton expressions over the current blocks of their arguments: elementwise, reductions, products."""

from __future__ import annotations

import math
from fractions import Fraction

from mirage_cli.codegen.blocks import MAX_PRODUCT, TRITON_TYPE, Blocks, EmitError
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.ops import IDENTITY, OPS, Number, exact_inverse
from mirage_cli.ir.program import Eqn
from mirage_cli.ir.reach import kept
from mirage_cli.ir.schedule import on_matrix_units

LOG2E = math.log2(math.e)
NAN_TOO = "propagate_nan=tl.PropagateNan.ALL"
"""What has `tl.maximum` and `tl.minimum` return NaN where an argument is."""
NEARLY = {"div": "({0} / {1})", "sqrt": "tl.sqrt({0})"}
"""Operators that are a unit of float32 off, which no smaller type shows, for a part of the time."""


class Expressions(Blocks):
    """Blocks with what their equations compute.

    true: masks that hold throughout the loop at hand. running: its running maxima.
    """

    true: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()

    def value(self, e: Eqn) -> str:
        """The block that an equation computes from the current blocks of its arguments."""
        kind = OPS[e.op].kind
        if e.op == "dot":
            return self.dot(e, None)
        if kind == "reduction":
            return self.reduction(e)
        if e.op == "index":
            self.clean[e.out] = frozenset()
            return f"i_{e.axes[0]}" + (" + 0" if self.block[e.axes[0]] == 1 else "")
        if e.op == "size":
            self.clean[e.out] = frozenset()
            return f"tl.full((), {float(self.sizes[e.axes[0]])!r}, tl.float32)"
        return self.elementwise(e)

    def elementwise(self, e: Eqn) -> str:
        want = self.axes(e.dims)
        row = OPS[e.op]
        branch = kept(e, self.true)
        if branch is not None:
            return self.branch(e, branch, want)
        if e.op == "exp_sub" and e.args[1] in self.running:
            return self.shifted_exp(e, want)
        keep: frozenset[str] = frozenset()
        if row.keeps_zero and e.values:
            clean = [self.clean[v] for v in e.values]
            if len(e.values) == 1:
                keep = clean[0]
            else:  # a product: zero where one factor is and the other is zero too or lacks the dimension
                keep = frozenset(
                    d
                    for d in self.padded
                    if any(d in c for c in clean)
                    and all(d in c or d not in self.dims[v] for v, c in zip(e.values, clean, strict=True))
                )
        elif e.op in ("add", "sub") and len(e.values) == 2:
            keep = self.clean[e.values[0]] & self.clean[e.values[1]]
        elif e.op == "div" and isinstance(e.args[0], str):
            keep = self.clean[e.args[0]] - set(self.dims[e.args[1]] if isinstance(e.args[1], str) else ())
        self.clean[e.out] = keep
        if not e.values:
            return self.constant(e)
        whole = all(self.type_of(v) in ("int32", "bool") for v in e.values)
        args = [self.argument(a, want, e, whole) for a in e.args]
        if e.op == "pow":
            exponent = e.args[1]
            assert not isinstance(exponent, str)
            return _power(args[0], exponent, self.single)
        if self.adds_to_fresh_product(e):
            return f"tl.fma({args[0]}, 1.0, {args[1]})"  # a + b would make the load the product's first addend
        divisor = self.number(e.args[1]) if e.op == "div" else None
        inverse = None if divisor is None else exact_inverse(divisor)
        exact = self.single or divisor is not None  # means of equal values are to be that value
        text = (row.triton if exact else NEARLY.get(e.op, row.triton)).format(*args)
        if inverse is not None:
            text = f"({args[0]} * {inverse!r})"
        have = {d for v in e.values for d in self.axes(self.dims[v])}
        return text if have == set(want) else f"tl.broadcast_to({text}, {self.shape(want)})"

    def adds_to_fresh_product(self, e: Eqn) -> bool:
        """Whether this adds what a loop loads to a product of the same iteration. As the first addend of that it would
        be loaded before it starts, and not fetched ahead."""
        if e.op != "add" or len(e.values) < 2:
            return False
        for loop in self.placement.loops:
            fresh = {s.out for s in loop.steps if isinstance(s, Eqn) and s.op == "dot"} - dict(loop.accumulators).keys()
            loaded = {s.out for s in loop.steps if isinstance(s, Load)}
            if any(v in fresh and w in loaded for v, w in (e.values, e.values[::-1])):
                return True
        return False

    def number(self, a: str | Number) -> Number | None:
        """The number that an argument is, also where it is the size of an axis."""
        e = self.eqns.get(a) if isinstance(a, str) else None
        if e is not None and e.op == "size":
            return Fraction(self.sizes[e.axes[0]])
        return None if isinstance(a, str) else a

    def branch(self, e: Eqn, a: str | Number, want: list[str]) -> str:
        """An equation that comes to one of its arguments."""
        self.clean[e.out] = self.clean[a] if isinstance(a, str) else frozenset()
        text = self.argument(a, want, e, e.type == "int")
        if not isinstance(a, str):
            return f"tl.full({self.shape(want) if want else '()'}, {text}, {TRITON_TYPE[self.type_of(e.out)]})"
        return text if self.axes(self.dims[a]) == want else f"tl.broadcast_to({text}, {self.shape(want)})"

    def shifted_exp(self, e: Eqn, want: list[str]) -> str:
        """exp(x - m) for a running maximum: one multiply-add and one exp2. What m is rounded to on the way cancels, but
        in float32 where it meets an exp that was shifted after the loop: there x - m comes first."""
        x, m = (str(a) for a in e.args)
        self.clean[e.out] = frozenset()
        shift = self.spread(f"{self.name(m)}_shift", self.axes(self.dims[m]), want)
        text = self.exp_of_difference(self.argument(x, want, e, False), shift)
        have = {d for v in e.values for d in self.axes(self.dims[v])}
        return text if have == set(want) else f"tl.broadcast_to({text}, {self.shape(want)})"

    def exp_of_difference(self, x: str, shift: str) -> str:
        """exp(x - m), where `shift` holds m, or, if it is to be one multiply-add, m log2 e."""
        return f"tl.exp2(({x} - {shift}) * {LOG2E!r})" if self.single else f"tl.exp2({x} * {LOG2E!r} - {shift})"

    def constant(self, e: Eqn) -> str:
        """An equation of numbers alone, worked out here."""
        result = float(OPS[e.op].ref(*(float(a) for a in e.args if not isinstance(a, str))))
        return (
            f"tl.full((), {number_literal(Fraction(result) if math.isfinite(result) else result, False)}, tl.float32)"
        )

    def argument(self, a: str | Number, want: list[str], e: Eqn, whole: bool) -> str:
        if not isinstance(a, str):
            return number_literal(a, whole)
        text = self.name(a)
        kind = self.type_of(a)
        mixed = kind == "int32" and (not whole or e.type == "float")
        counted = kind == "bool" and e.type == "float" and not (e.op == "where" and a == e.args[0])
        if kind in ("float16", "bfloat16") or mixed or counted:
            text += ".to(tl.float32)"
        return self.spread(text, self.axes(self.dims[a]), want)

    def reduction(self, e: Eqn, lanes: bool = False) -> str:
        """The reduction over this block; over a loop, `accumulate` combines it into the accumulator.

        lanes: only mask the block, for an accumulator that is reduced after the loop.
        """
        (a,) = e.values
        axes = self.axes(self.dims[a])
        whole = self.type_of(a) == "int32"
        identity = number_literal(IDENTITY[e.op], False)
        if whole:
            identity = {"sum": "0", "max": "-2147483648", "min": "2147483647"}[e.op]
        text = self.name(a) + ("" if self.type_of(a) in ("float32", "int32") else ".to(tl.float32)")
        zero_is_neutral = self.clean[a] if e.op == "sum" else frozenset[str]()
        text = self.masked(text, axes, [d for d in axes if d in e.axes], zero_is_neutral, identity)
        self.clean[e.out] = self.clean[a] - set(e.axes) if e.op == "sum" else frozenset()
        return text if lanes else self.across(e, text)

    def across(self, e: Eqn, text: str) -> str:
        """A block with all axes that the equation computes over, reduced over those that it reduces."""
        axes = self.axes(self.space(e))
        reduce = OPS["sum" if e.op == "dot" else e.op].triton
        if e.op in ("max", "min") and not self.shows_nan(e):
            reduce = f"tl.{e.op}({{0}}, axis={{1}})"
        for i in reversed([i for i, d in enumerate(axes) if d in e.axes]):
            text = reduce.format(text, i)
        return text

    def shows_nan(self, e: Eqn) -> bool:
        """Whether a maximum or minimum is to be NaN where an argument is. One that only shifts exponents need not be:
        their sum is."""
        if e.type == "int":
            return False
        uses = [x for x in self.kernel.body if e.out in x.values]
        shift = bool(uses) and all(x.op == "exp_sub" and x.args[1] == e.out for x in uses)
        outputs = {t.name for t in self.graph.outputs}
        return not shift or any(x.value == e.out and x.buffer in outputs for x in self.kernel.stores)

    def space(self, e: Eqn) -> set[str]:
        """The dimensions of a reduction's argument, or of a product before it is summed."""
        return {*e.dims, *e.axes} if e.op == "dot" else set(self.dims[e.values[0]])

    # -- products

    def dot(self, e: Eqn, accumulator: str | None) -> str:
        """A product on the matrix units where the blocks allow it, else multiplied out and summed.

        accumulator: the name of a block to add to, which tl.dot does itself.
        """
        a, b = e.args
        assert isinstance(a, str) and isinstance(b, str), "a product of numbers is no dot"
        axes = {v: self.axes(self.dims[v]) for v in (a, b)}
        result = self.axes(e.dims)
        middle = [d for d in self.order if d in axes[a] and d in axes[b] and d in e.axes]
        batch = [d for d in result if d in axes[a] and d in axes[b]]
        rows = [d for d in result if d in axes[a] and d not in axes[b]]
        columns = [d for d in result if d in axes[b] and d not in axes[a]]
        self.clean[e.out] = frozenset(
            d for d in self.padded & set(e.dims) if any(d in self.clean[v] for v in (a, b)) and not set(batch) & {d}
        )
        if not on_matrix_units(e, self.dims, self.block):
            text = self.multiplied_out(e)
            return f"{accumulator} + {text}" if accumulator else text
        if rows and columns and self.order.index(rows[0]) > self.order.index(columns[0]):
            a, b, rows, columns = b, a, columns, rows
        dtype = "float32" if self.exact & {a, b} else self.graph.dtype
        left = self.operand(a, [batch, rows, middle], e.axes, dtype)
        right = self.operand(b, [batch, middle, columns], e.axes, dtype)
        flat = ([batch] if batch else []) + [rows, columns]
        plain = all(len(g) == 1 for g in flat) and [g[0] for g in flat] == result
        precision = f', input_precision="{"tf32x3" if self.schedule.tf32x3 else "ieee"}"' if dtype == "float32" else ""
        if plain:
            return f"tl.dot({left}, {right}{f', {accumulator}' if accumulator else ''}{precision})"
        text = f"tl.dot({left}, {right}{precision})"
        whole = [d for g in flat for d in g]
        if any(len(g) > 1 for g in flat):
            text = f"tl.reshape({text}, {self.shape(whole)})"
        text = self.permuted(text, whole, result)
        return f"{accumulator} + {text}" if accumulator else text

    def operand(self, value: str, groups: list[list[str]], summed: tuple[str, ...], dtype: str) -> str:
        """A block as tl.dot takes it: batch, then two axes, clean along the summed ones, in the matrix units' type."""
        have = self.axes(self.dims[value])
        text = self.name(value)
        kind = self.type_of(value)
        text = self.masked(
            text, have, [d for d in have if d in summed], self.clean[value], "0.0" if kind != "int32" else "0"
        )
        if kind != dtype:
            text = self.cast(text, kind, dtype)
        if dtype == "bfloat16":
            text = f"{text}.to(MATRIX_TYPE)"
        text = self.permuted(text, have, [d for g in groups for d in g])
        groups = [g for g in groups if g]
        if any(len(g) > 1 for g in groups):
            shape = ", ".join(" * ".join(f"BLOCK_{d}" for d in g) for g in groups)
            text = f"tl.reshape({text}, [{shape}])"
        return text

    def multiplied_out(self, e: Eqn, lanes: bool = False) -> str:
        """A product element by element, summed over this block. lanes: not summed, as `reduction` has it."""
        a, b = e.args
        assert isinstance(a, str) and isinstance(b, str), "a product of numbers is no dot"
        space = self.axes({*e.dims, *e.axes})
        if self.count(space) > MAX_PRODUCT:
            raise EmitError("product too large to multiply out")
        axes = {v: self.axes(self.dims[v]) for v in (a, b)}
        text = " * ".join(self.spread(self.as_float(v), axes[v], space) for v in (a, b))
        summed = [d for d in space if d in e.axes]
        both = frozenset(d for d in summed if all(d in self.clean[v] or d not in axes[v] for v in (a, b)))
        masked = self.masked(text, space, summed, both, "0.0")
        if lanes:
            return masked
        return f"({text})" if masked == text and not summed else self.across(e, masked)


def number_literal(x: Number, whole: bool) -> str:
    """A number as Triton reads it; `whole` keeps an integer an integer."""
    if not isinstance(x, Fraction):
        return repr(x) if math.isfinite(x) else f'float("{x}")'
    if whole and x.denominator == 1:
        return str(x.numerator) if x >= 0 else f"({x.numerator})"
    return repr(float(x)) if x >= 0 else f"({float(x)!r})"


def _power(x: str, exponent: Number, exact: bool) -> str:
    """x ** exponent: products for small integers, roots for halves, else through the logarithm.

    exact: with quotients and roots that are rounded correctly."""
    if not isinstance(exponent, Fraction):
        raise EmitError("an infinite exponent")
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
