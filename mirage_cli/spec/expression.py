"""Expressions of a program's text: read as Python expressions and turned into equations. Nothing is executed."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from mirage_cli.ir.access import Index, Lookup, of_nothing
from mirage_cli.ir.access_text import substitution_text
from mirage_cli.ir.derived import DERIVED, Derived, derived_equation
from mirage_cli.ir.op import Number, Op
from mirage_cli.ir.ops import MAX_BITS, OPS, bits
from mirage_cli.ir.program import Arg, equation, tables_of
from mirage_cli.spec.indices import IndexReader, index_count
from mirage_cli.spec.integers import Integers
from mirage_cli.spec.scope import MAX_DEPTH, MAX_INTEGER, Poisoned, Scope
from mirage_cli.spec.vocabulary import FUNCTIONS, PAD, SYMBOLS, idiom, no_expression

NO_NUMBER = "a mask is no number; choose between values with where(mask, x, y)"
MAX_NUMBER = Fraction(sys.float_info.max)
DIVISIONS = {SYMBOLS[ast.Div], SYMBOLS[ast.FloorDiv], SYMBOLS[ast.Mod]}
MAX_EXPONENT = 1 << 20
"""Of numbers beside tensors."""
MAX_AXES = 13
"""Of a tensor, and of all that one operator takes: the verifier runs a program with 3 places and more along each. A
transposed convolution of volumes in groups has 13."""


class ExpressionReader:
    """Reads expressions into the `Builder` of a `Scope`."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.indices, self.integers = scope, IndexReader(scope), Integers(scope)

    def value(self, e: ast.expr, out: str | None, depth: int) -> Arg:
        """The value of an expression: a number, or the name of a result, which is `out` where a new one is made."""
        if depth > MAX_DEPTH:
            raise self.scope.fail(e, "this expression is nested too deeply")
        match e:
            case ast.Constant():
                return self.literal(e)
            case ast.Name():
                return self.scope.name(e)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.number_or_float(e.operand, depth)
            case ast.UnaryOp() if type(e.op) in SYMBOLS:
                return self.elementwise(e, SYMBOLS[type(e.op)], (e.operand,), out, depth)
            case ast.BinOp() if type(e.op) in SYMBOLS:
                return self.binary(e, out, depth)
            case ast.Compare():
                return self.comparison(e, out, depth)
            case ast.BoolOp():
                return self.chain(e, SYMBOLS[type(e.op)], self.scope.each(self.mask, e.values, depth), out)
            case ast.Call():
                return self.call(e, out, depth)
            case ast.Subscript():
                return self.access(e, out, depth)
            case _:
                raise self.scope.fail(e, no_expression(e))

    def literal(self, e: ast.Constant) -> Number:
        if isinstance(e.value, bool) or not isinstance(e.value, int | float):
            raise self.scope.fail(e, f"{e.value!r} is not a number")
        if abs(e.value) > 1 << 63 if isinstance(e.value, int) else math.isinf(e.value):
            raise self.scope.fail(e, "this number is too large")
        return Fraction(e.value)

    def any_value(self, e: ast.expr, depth: int) -> Arg:
        return self.value(e, None, depth + 1)

    def number_or_float(self, e: ast.expr, depth: int) -> Arg:
        """An operand of arithmetic: anything but a mask."""
        x = self.value(e, None, depth + 1)
        if self.scope.type_of(x) == "bool":
            raise self.scope.fail(e, NO_NUMBER)
        return x

    def mask(self, e: ast.expr, depth: int) -> Arg:
        x = self.value(e, None, depth + 1)
        if self.scope.type_of(x) != "bool":
            raise self.scope.fail(e, "a mask is needed here, such as `index(a) >= index(b)`")
        return x

    def elementwise(self, e: ast.AST, op: str, args: Sequence[ast.expr], out: str | None, depth: int) -> Arg:
        masks = [args[i] for i in OPS[op].masks]
        if OPS[op].integers:
            return self.of_integers(e, op, self.scope.each(self.any_value, args, depth), out)
        read = self.scope.each(lambda a, d: (self.mask if a in masks else self.number_or_float)(a, d), args, depth)
        if OPS[op].result == "int" and self.scope.type_of(read[0]) == "int":
            return read[0]  # which is an integer already
        if OPS[op].of_integers:
            return self.of_integers(e, op, read, out)
        if any(isinstance(a, str) for a in read) and self.integers.wraps(op, read):
            return self.emit(e, "shift_left", (self.emit(e, op, tuple(read), None), Fraction(0)), out)
        return self.emit(e, op, tuple(read), out)

    def of_integers(self, e: ast.AST, op: str, args: Sequence[Arg], out: str | None) -> Arg:
        """An operator that computes with integers in another way than with floats, or with integers alone."""
        try:
            simple = self.integers.checked(op, args)
        except ValueError as error:
            raise self.scope.fail(e, str(error)) from None
        return self.emit(e, *simple, out)

    def binary(self, e: ast.BinOp, out: str | None, depth: int) -> Arg:
        match e:
            case ast.BinOp(op=ast.Pow()):
                return self.power(e, out, depth)
            case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=ast.BinOp(op=ast.Pow()) as power):
                return self.by_power(e, power, out, depth)
            case _:
                return self.elementwise(e, SYMBOLS[type(e.op)], (e.left, e.right), out, depth)

    def by_power(self, e: ast.BinOp, power: ast.BinOp, out: str | None, depth: int) -> Arg:
        """`x // c ** y` and `x % c ** y`. A power whose exponent is a tensor is a float; of 2, it is a shift."""
        x, base, y = self.scope.each(self.number_or_float, (e.left, power.left, power.right), depth)
        op = SYMBOLS[type(e.op)]
        if not isinstance(y, str) or "float" in (self.scope.type_of(x), self.scope.type_of(y)):
            return self.of_integers(e, op, (x, self.power_of(power, base, y, None)), out)
        by_power = OPS[op].by_power
        assert by_power is not None, "of a quotient or a remainder"
        try:
            n = self.integers.bits_of_power(base, y)
        except ValueError as error:
            raise self.scope.fail(power, str(error)) from None
        count = y if n == 1 else self.emit(power, "mul", (y, Fraction(n)), None)
        return by_power(lambda op, *args: self.emit(e, op, args, None), x, count)

    def emit(self, e: ast.AST, op: str, args: tuple[Arg, ...], out: str | None) -> Arg:
        """An elementwise operator; worked out here where all arguments are numbers."""
        if not any(isinstance(a, str) for a in args):
            if OPS[op].result == "bool":
                raise self.scope.fail(e, "this asks about numbers alone, whose answer is known")
            return self.fold(e, op, tuple(a for a in args if not isinstance(a, str)))
        return self.append(e, op, args, (), out)

    def append(self, e: ast.AST, op: str, args: tuple[Arg, ...], axes: tuple[str, ...], out: str | None) -> str:
        b = self.scope.builder
        self.check_numbers(e, op, args)
        spanned = {d for a in args if isinstance(a, str) for d in b.known[a].dims}
        if len(spanned) > MAX_AXES:
            raise self.scope.fail(e, f"one operator takes at most {MAX_AXES} axes, and here are {len(spanned)}")
        name = out or self.fresh()
        try:
            if op in DERIVED:
                return b.append(derived_equation(name, op, args, axes, b))
            return b.append(equation(name, op, args, axes, b.known, b.order))
        except ValueError as error:
            raise self.scope.fail(e, str(error)) from None

    def check_numbers(self, e: ast.AST, op: str, args: tuple[Arg, ...]) -> None:
        """Whether the numbers beside tensors can be worked with: as float64, as exponents, and beside integers."""
        numbers = [a for a in args if isinstance(a, Fraction)]
        if any(abs(a) > MAX_NUMBER for a in numbers):
            raise self.scope.fail(e, "a number here is beyond float64, whose largest is about 1.8e308")
        if op in OPS and any(
            isinstance(a, Fraction) and abs(a) > MAX_EXPONENT for a in map(args.__getitem__, OPS[op].numbers)
        ):
            raise self.scope.fail(e, f"an exponent is at most {MAX_EXPONENT}, either way")
        integers = (
            op in OPS
            and OPS[op].result == "bool"
            and any(isinstance(a, str) and self.scope.type_of(a) == "int" for a in args)
        )
        if op in DIVISIONS and args[1] == 0:
            raise self.scope.fail(e, "this divides by the number 0")
        if integers and any(abs(a) > MAX_INTEGER for a in numbers):
            raise self.scope.fail(e, "the number compared with an integer is beyond 64 bits")

    def fresh(self) -> str:
        n = len(self.scope.builder.eqns)
        while f"t{n}" in self.scope.builder.known or f"t{n}" in self.scope.taken:
            n += 1
        return f"t{n}"

    def fold(self, e: ast.AST, op: str, args: tuple[Number, ...]) -> Number:
        """Arithmetic on numbers: exact where it is rational, else in float64."""
        try:
            exact = _exact(OPS[op], args)
            if exact is not None and bits(exact) <= MAX_BITS:
                return exact
            with np.errstate(all="ignore"):
                result = float(OPS[op].ref(*(float(a) for a in args)) if exact is None else exact)
        except (ZeroDivisionError, OverflowError, ValueError):
            result = math.nan
        finite = all(isinstance(a, Fraction) for a in args)
        if math.isnan(result) or (finite and math.isinf(result)):
            raise self.scope.fail(e, "this arithmetic on numbers has no result")
        return Fraction(result) if math.isfinite(result) else result

    def power(self, e: ast.BinOp, out: str | None, depth: int) -> Arg:
        x, y = self.scope.each(self.number_or_float, (e.left, e.right), depth)
        return self.power_of(e, x, y, out)

    def power_of(self, e: ast.BinOp, x: Arg, y: Arg, out: str | None) -> Arg:
        if not isinstance(y, str):
            if isinstance(x, str) and not isinstance(y, Fraction):
                raise self.scope.fail(e, "the exponent must be finite")
            if isinstance(x, str) and y == 0:
                raise self.scope.fail(e, "the exponent 0 gives 1 everywhere; write the number")
            return self.emit(e, "pow", (x, y), out)
        if not isinstance(x, str):
            if not isinstance(x, Fraction) or x <= 0:
                raise self.scope.fail(e, "the base must be positive where the exponent is a tensor")
            return self.emit(e, "exp", (self.emit(e, "mul", (y, Fraction(math.log(x))), None),), out)
        return self.emit(e, "power", (x, y), out)

    def comparison(self, e: ast.Compare, out: str | None, depth: int) -> Arg:
        nodes = (e.left, *e.comparators)
        sides = self.scope.each(self.any_value, nodes, depth)
        own, parts = out if len(e.ops) == 1 else None, list[Arg]()
        for op, (x, y), pair in zip(e.ops, pairwise(sides), pairwise(nodes), strict=True):
            if type(op) not in SYMBOLS:
                raise self.scope.fail(e, "the comparisons are < <= > >= == !=")
            if not isinstance(x, str) and not isinstance(y, str):
                raise self.scope.fail(e, "this compares two numbers, whose answer is known")
            masks = [a for a, side in zip(pair, (x, y), strict=True) if self.scope.type_of(side) == "bool"]
            of_masks = OPS[SYMBOLS[type(op)]].of_masks
            if masks and not (len(masks) == 2 and of_masks):
                raise self.scope.fail(masks[0], NO_NUMBER)
            *first, last = of_masks if masks else (SYMBOLS[type(op)],)
            args: tuple[Arg, ...] = (x, y)
            for name in first:
                args = (self.append(e, name, args, (), None),)
            parts.append(self.append(e, last, args, (), own))
        return self.chain(e, SYMBOLS[ast.And], parts, out) if len(parts) > 1 else parts[0]

    def chain(self, e: ast.AST, op: str, parts: list[Arg], out: str | None) -> Arg:
        result = parts[0]
        for i, x in enumerate(parts[1:], 1):
            result = self.append(e, op, (result, x), (), out if i == len(parts) - 1 else None)
        return result

    # -- calls

    def call(self, e: ast.Call, out: str | None, depth: int) -> Arg:
        """A call of a function, by the kind of its row: what of it is no part of the language is reported."""
        if not isinstance(e.func, ast.Name):
            named = e.func.attr if isinstance(e.func, ast.Attribute) else ""
            hint = f"; functions have no prefix: {named}(...)" if named in FUNCTIONS else idiom(named)
            raise self.scope.fail(e, f"only functions of the spec language can be called{hint}")
        op = e.func.id
        if any(isinstance(a, ast.Starred) for a in e.args) or any(k.arg is None for k in e.keywords):
            raise self.scope.fail(e, "arguments cannot be unpacked here")
        if op not in FUNCTIONS:
            form = "; the form is pad(x, number)[index, ...]" if op == PAD else idiom(op)
            raise self.fail_call(e, f"no function is called {op}{form}", depth, None if form else op)
        if op in DERIVED:
            return self.derived(e, op, out, depth)
        kind = OPS[op].kind
        if op == "rename":
            return self.rename(e, out, depth)
        if kind in ("reduction", "contraction"):
            return self.reduction(e, op, out, depth)
        if e.keywords:
            raise self.scope.fail(e.keywords[0], f"{op} takes no argument called {e.keywords[0].arg}")
        if op == "index":
            self.count(e, 1, 1, "the form is index(axis)", depth)
            return self.append(e, "index", (), (self.scope.axis(e.args[0]),), out)
        row = OPS[op]
        self.count(e, row.arity, row.arity, f"{op} takes {row.arity} argument{'s' if row.arity > 1 else ''}", depth)
        return self.elementwise(e, op, e.args, out, depth)

    def count(self, e: ast.Call, least: int, most: float, usage: str, depth: int) -> None:
        """Raises Poisoned, with the mistake reported, for fewer or more arguments than that. usage: what to write."""
        if not least <= len(e.args) <= most:
            given = "1 argument is" if len(e.args) == 1 else f"{len(e.args)} arguments are"
            raise self.fail_call(e, f"{given} given; {usage}", depth)

    def fail_call(self, e: ast.Call, message: str, depth: int, near: str | None = None) -> Poisoned:
        """Report a call that cannot be read, and then the mistakes in its arguments."""
        poisoned = self.scope.fail(e, message, near, FUNCTIONS)
        self.scope.each(lambda a, d: self.value(a, None, d), e.args, depth + 1)
        return poisoned

    def tensor(self, e: ast.expr, depth: int, op: str) -> str:
        """The name of an argument's value. Raises Poisoned where it is a number."""
        x = self.number_or_float(e, depth)
        if not isinstance(x, str):
            raise self.scope.fail(e, f"{op} needs a tensor, and this is a number")
        return x

    def tensors(self, e: ast.Call, count: int, op: str, depth: int) -> list[str]:
        """The first arguments of a call. Where one is wrong, axes behind them are looked at all the same."""
        try:
            return self.scope.each(lambda a, d: self.tensor(a, d, op), e.args[:count], depth)
        except Poisoned:
            if op not in DERIVED or DERIVED[op].over_axes:
                self.scope.axes(e.args[count:])
            raise

    def reduction(self, e: ast.Call, op: str, out: str | None, depth: int) -> Arg:
        n = OPS[op].arity
        usage = f"the form is {'dot(a, b, axis, ...)' if op == 'dot' else f'{op}(x, axis, ...)'}"
        if e.keywords:
            raise self.scope.fail(e.keywords[0], f"{op} takes no argument called {e.keywords[0].arg}; {usage}")
        self.count(e, n + 1, math.inf, usage, depth)
        args = self.tensors(e, n, op, depth)
        dims = [self.scope.builder.known[a].dims for a in args]
        for node in e.args[n:]:
            if OPS[op].extremum and not (isinstance(node, ast.Name) and node.id in self.scope.sizes):
                of_two = f"that of two values is {OPS[op].joins}(x, y)"
                raise self.scope.fail(node, f"the name of an axis is needed here; {of_two}")
            if isinstance(node, ast.Name) and n == 2 and (node.id in dims[0]) != (node.id in dims[1]):
                one = "first" if node.id in dims[0] else "second"
                raise self.scope.fail(node, f"dot sums over an axis of both sides, and only the {one} has {node.id}")
        axes = self.scope.axes(e.args[n:], [d for d in dims[0] if d in dims[-1]])
        made = self.append(e, op, tuple(args), axes, out)
        if OPS[op].kind == "contraction":
            self.scope.products[made] = self.scope.at(e)
        return made

    def derived(self, e: ast.Call, op: str, out: str | None, depth: int) -> Arg:
        row = DERIVED[op]
        usage, names = f"the form is {row.form}", [name for name, _ in row.options]
        most = math.inf if row.over_axes else 1 + len(names)
        for k in e.keywords:
            if k.arg not in names:
                raise self.scope.fail(k, f"{op} takes no argument called {k.arg}; {usage}")
        self.count(e, 2 if row.over_axes else 1, most, usage, depth)
        (x,) = self.tensors(e, 1, op, depth)
        given = {} if row.over_axes else dict(zip(names, e.args[1:], strict=False))
        for k in e.keywords:
            if k.arg in given:
                raise self.scope.fail(k, f"{k.arg} is given twice; {usage}")
            given[str(k.arg)] = k.value
        numbers: list[Number] = []
        for name, default in row.options:
            if name in given:
                numbers.append(self.option(given[name], name, row, depth))
            elif default is None:
                raise self.scope.fail(e, f"{name} is missing; {usage}")
            else:
                numbers.append(Fraction(default))
        args = (x, *numbers[: max((i + 1 for i, name in enumerate(names) if name in given), default=0)])
        axes = self.scope.axes(e.args[1:], self.scope.builder.known[x].dims) if row.over_axes else ()
        return self.append(e, op, args, axes, out)

    def option(self, e: ast.expr, name: str, row: Derived, depth: int) -> Number:
        number = self.value(e, None, depth + 1)
        if isinstance(number, str) or not (row.any_sign or (isinstance(number, Fraction) and number >= 0)):
            raise self.scope.fail(e, f"{name} is a number{'' if row.any_sign else ' that is not negative'}")
        return number

    def rename(self, e: ast.Call, out: str | None, depth: int) -> Arg:
        self.count(e, 1, 1, "the form is rename(x, old=new)", depth)
        if not e.keywords:
            raise self.scope.fail(e, "the form is rename(x, old=new)")
        x = self.moved(e.args[0], depth, "renamed")
        dims = self.scope.builder.known[x].dims
        pairs: list[str] = []
        left = [d for d in dims if d not in {k.arg for k in e.keywords}]
        for k in e.keywords:
            old, new = str(k.arg), self.scope.axis(k.value)
            if old not in dims:
                raise self.scope.fail(k, f"the axis {old} is not there; the axes are {', '.join(dims)}", old, dims)
            if new in left:
                raise self.scope.fail(k.value, f"the axis {new} is there already")
            if self.scope.sizes[old] != self.scope.sizes[new] and self.scope.sizes[old] and self.scope.sizes[new]:
                raise self.scope.fail(
                    k.value, f"{old} has size {self.scope.sizes[old]} and {new} has size {self.scope.sizes[new]}"
                )
            self.scope.refuse_dynamic(k.value, (old, new), "keeps its name")
            left.append(new)
            pairs += [old, new]
        return self.append(e, "rename", (x,), tuple(pairs), out)

    # -- accesses

    def moved(self, e: ast.expr, depth: int, how: str) -> str:
        """What is read elsewhere than it lies: masks are no values in memory, so of them inputs alone."""
        x = self.value(e, None, depth + 1)
        if not isinstance(x, str):
            raise self.scope.fail(e, f"a number is not {how}")
        if self.scope.type_of(x) == "bool" and x not in self.scope.inputs:
            raise self.scope.fail(
                e, f"a mask is not {how}, but for one that is an input; do so with what it is made of"
            )
        return x

    def access(self, e: ast.Subscript, out: str | None, depth: int) -> Arg:
        """`X[i, j]`: a tensor read by an index for each of its axes, those of a result in the order of `dims`.

        What lies outside is 0, or the number that `pad(X, number)[i, j]` says. Loads of inputs give 0 by themselves.
        """
        of, outside = self.padded(e.value, depth)
        x = self.moved(of, depth, "read by indices")
        if self.scope.type_of(x) == "bool" and outside is not None:
            raise self.scope.fail(e, "outside of a mask it does not hold: there is no number to pad it with")
        dims = self.scope.builder.known[x].dims
        nodes = e.slice.elts if isinstance(e.slice, ast.Tuple) else [e.slice]
        indices = self.scope.each(self.indices.index, nodes, depth)
        if len(indices) != len(dims):
            raise self.scope.fail(e, index_count(x, dims, len(indices)))
        read = [(d, i) for d, i in zip(dims, indices, strict=True) if i.axis != d]
        for d, i, node in zip(dims, indices, nodes, strict=True):
            self.indices.check_index(node, d, i, outside == 0 and x in self.scope.inputs)
            self.indices.check_dynamic(node, d, i, "read")
        if not read:
            return x
        if x not in self.scope.inputs:
            self.indices.warn_exchanged(e, dims, indices)
        elif outside is None:
            self.indices.warn_outside(e, x, dims, indices)
        masks = self.inside(e, read) if outside or x not in self.scope.inputs else []
        axes = substitution_text(dict(read))
        found = self.append(e, "rename", (x, *tables_of(i for _, i in read)), axes, None if masks else out)
        if not masks:
            return found
        return self.append(e, "where", (self.chain(e, "and", masks, None), found, outside or Fraction(0)), (), out)

    def padded(self, e: ast.expr, depth: int) -> tuple[ast.expr, Number | None]:
        """What is read, and the number outside of it where that is given."""
        if not isinstance(e, ast.Call) or not isinstance(e.func, ast.Name) or e.func.id != PAD:
            return e, None
        self.count(e, 2, 2, "the form is pad(x, number)[index, ...]", depth)
        outside = self.value(e.args[1], None, depth + 1)
        if isinstance(outside, str):
            raise self.scope.fail(e.args[1], "what lies outside is a number")
        return e.args[0], outside

    def inside(self, e: ast.AST, read: Iterable[tuple[str, Index]]) -> list[Arg]:
        """Masks that hold where every index is a position of its axis."""
        masks: list[Arg] = []
        for d, i in read:
            masks += [self.names_some(e, d, i, a) for a in i.lookups if a.padded]
            before, behind = (False, False) if i.lookups else i.leaves(self.scope.sizes[d], self.scope.sizes)
            if before or behind:
                position = self.append(e, "index", (), (str(i),), None)
                masks += [self.append(e, "ge", (position, Fraction(0)), (), None)] if before else []
                if behind:
                    masks.append(self.append(e, "lt", (position, self.append(e, "size", (), (d,), None)), (), None))
        return masks

    def names_some(self, e: ast.AST, d: str, i: Index, a: Lookup) -> str:
        """A mask that holds where an entry of a table is not -1, by which the index would be outside."""
        if of_nothing(i, a).bounds(self.scope.sizes)[1] >= 0:
            raise self.scope.fail(e, f"where {a.table} holds -1, this reads {d} all the same")
        dims = self.scope.builder.known[a.table].dims
        read = [(x, j) for x, j in zip(dims, a.access, strict=True) if j.axis != x]
        axes = substitution_text(dict(read))
        tables = (a.table, *tables_of(j for _, j in read))
        entry = self.append(e, "rename", tables, axes, None) if read else a.table
        return self.append(e, "ge", (entry, Fraction(0)), (), None)


def _exact(row: Op, args: tuple[Number, ...]) -> Fraction | None:
    """The result where it is rational and not too long to write down."""
    return row.exact(*args) if row.exact and all(isinstance(a, Fraction) for a in args) else None
