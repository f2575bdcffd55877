"""The `program` of a spec: assignments read as Python expressions and turned into equations. Nothing is executed.

Every mistake is reported through `report(line, column, message, suggestion)`, and a name whose definition is wrong is
poisoned, so that one mistake is one message.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import TypeVar

import numpy as np

from mirage_cli.ir.access import (
    FARTHEST,
    Access,
    Index,
    Lookup,
    atom_index,
    combined,
    dims_of,
    index,
    lookups_of,
    may_name_nothing,
    nested,
    of_positions,
    outside_tables,
    plain,
    quotient,
    remainder,
)
from mirage_cli.ir.derived import DERIVED, Derived, derived_equation
from mirage_cli.ir.footprint import untold
from mirage_cli.ir.ops import MAX_BITS, OPS, Number, Op, bits
from mirage_cli.ir.program import Arg, Builder, Eqn, Tensor, distinct_tables, equation, tables_of, tensor_type
from mirage_cli.spec.idioms import BY_NAME, CHOICE, IDIOMS, PRODUCT, SLICE

T = TypeVar("T")
Report = Callable[[int, int, str, str | None], None]
Place = Callable[[int, int], tuple[int, int]]
"""From a row (from 1) and a column (from 0) of the program's text to a line and a column (from 1) of the file."""
MAX_DEPTH = 100
MAX_NUMBER = Fraction(sys.float_info.max)
MAX_INTEGER = (1 << 63) - 1
MAX_EXPONENT = 1 << 20
"""Of numbers beside tensors."""
MAX_AXES = 12
"""Of a tensor, and of all that one operator takes: the verifier runs a program with 3 places and more along each."""
PAD = "pad"
"""What names the number outside of a tensor that is read by indices; it means nothing elsewhere."""
MASK = "a mask; outputs are floats, such as where(mask, x, y)"
TARGET = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
"""The name that a line assigns."""
MAX_UNREADABLE = 20
"""Lines that are no Python and are reported, of one program."""
MAX_NEAR, MAX_NAMES = 64, 200
"""Longer names than this are not compared with the valid ones, nor with more of them than this."""


def _symbol(row: Op) -> type[ast.AST]:
    """What Python reads an operator's symbol as."""
    e = ast.parse(f"{row.symbol} a" if row.arity == 1 else f"a {row.symbol} b", mode="eval").body
    assert isinstance(e, ast.UnaryOp | ast.BinOp | ast.BoolOp | ast.Compare), f"row {row.name}"
    return type(e.ops[0] if isinstance(e, ast.Compare) else e.op)


SYMBOLS: Mapping[type[ast.AST], str] = {_symbol(row): row.name for row in OPS.values() if row.symbol}
"""The operators that are written with symbols."""
CONSTANTS: Mapping[str, str] = {"inf": "infinity", "__debug__": "a constant of Python"}
"""What nothing else can be called."""
FUNCTIONS = sorted({name for name, row in OPS.items() if row.called} | set(DERIVED))
"""Every function of the language."""
RESERVED = {name for name in FUNCTIONS if not (OPS[name] if name in OPS else DERIVED[name]).assignable}
"""Those after which no value can be called."""


def closest(name: str, among: Iterable[str]) -> str | None:
    """The name that was probably meant: the same but for case, or close."""
    names = list(among)
    if len(name) > MAX_NEAR or len(names) > MAX_NAMES:
        return None
    same = [n for n in names if n.lower() == name.lower()]
    return next(iter(same or difflib.get_close_matches(name, names, 1)), None)


def _idiom(name: str) -> str:
    """What another library's function is here."""
    return f"; {IDIOMS[name]}" if name in IDIOMS else ""


def _no_expression(e: ast.expr) -> str:
    """Why Python's expression is none of the spec language."""
    match e:
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
            return "masks are joined by `and` and `or`, not by & and |"
        case ast.BinOp(op=ast.MatMult()):
            return f"@ does not say which axis it sums over: {PRODUCT}"
        case ast.IfExp():
            return f"this is not an expression of the spec language: {CHOICE}"
        case ast.Attribute(attr="T" | "mT" | "H"):
            return f"this is not an expression of the spec language: {BY_NAME}"
        case ast.Attribute(attr="shape") | ast.Subscript(value=ast.Attribute(attr="shape")):
            return "this is not an expression of the spec language: the size of the axis a is a"
        case _:
            return "this is not an expression of the spec language"


class Poisoned(Exception):
    """A mistake was reported; whatever needs this value is skipped."""


@dataclass(frozen=True, slots=True)
class Stored:
    """`tensor[access] = value` of a program, and the line and column where it stands."""

    tensor: Tensor
    access: Access
    value: str
    place: tuple[int, int]


class ProgramReader:
    """Reads assignments into a `Builder`. Axes and dimension names share one namespace; values have another.

    sizes: of every axis; 0 for one whose size was refused.
    dynamic: the axes whose size is known only when a kernel is called.
    stores: what is written into `outputs` by indices: the program's, or inputs that are changed in place.
    complete: whether the whole text was parsed, so that `assigned` has every name that it assigns.
    """

    def __init__(
        self,
        inputs: Iterable[Tensor],
        sizes: Mapping[str, int],
        report: Report,
        outputs: Iterable[Tensor] = (),
        dynamic: Iterable[str] = (),
    ) -> None:
        self.sizes = sizes
        self.dynamic = frozenset(dynamic)
        self.report = report
        inputs = tuple(inputs)
        self.builder = Builder(inputs, sizes)
        self.names: dict[str, Arg | None] = {t.name: t.name for t in inputs}  # None: poisoned
        self.inputs = {t.name for t in inputs}
        self.outputs = {t.name: t for t in outputs}
        self.stores: list[Stored] = []
        self.written: set[str | None] = set()
        self.used: set[str] = set()
        self.assigned: dict[str, Arg | None] = {}
        self.taken: set[str] = set()
        self.complete = False

    # -- statements

    def read(self, text: str, place: Place) -> None:
        """Read a whole program."""
        self.place, self.rows = place, text.split("\n")
        tree = self.parsed(text)
        self.taken |= _assigned(tree)
        for statement in tree.body:
            self.statement(statement)

    def parsed(self, text: str) -> ast.Module:
        """Python's tree of the program, without the lines that are no Python: each is reported, and what it assigns is
        poisoned. What is amiss only because a line is left out is not reported."""
        rows = text.split("\n")
        self.complete = True
        for _ in range(MAX_UNREADABLE):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of Python's, about spellings that the reader refuses anyway
                    return ast.parse("\n".join(rows))
            except SyntaxError as error:
                row, offset = min(error.lineno or 1, len(rows)), error.offset or 1
                if self.complete or not (isinstance(error, IndentationError) or "unmatched" in error.msg):
                    self.report(*self.place(row, offset - 1), f"not a list of assignments: {error.msg}", None)
            except (ValueError, RecursionError, MemoryError):
                self.report(*self.place(1, 0), "not a list of assignments: this is nested too deeply", None)
                rows, row = [""], 1
            self.complete = False
            if target := TARGET.match(rows[row - 1]):
                self.taken.add(target[1])
                self.names.setdefault(target[1], None)
                self.assigned.setdefault(target[1], None)
            rows[row - 1] = ""
        return ast.Module([], [])

    def fail(self, node: ast.AST, message: str, near: str | None = None, among: Iterable[str] = ()) -> Poisoned:
        """Report a mistake at a node; the exception to raise."""
        self.report(*self.at(node), message, closest(near, among) if near else None)
        return Poisoned()

    def at(self, node: ast.AST) -> tuple[int, int]:
        """The line and the column of the file."""
        row, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)  # the offset counts bytes
        column = len(self.rows[row - 1].encode()[:offset].decode(errors="ignore"))
        return self.place(row, column)

    def statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(target := s.targets[0], ast.Subscript):
            with suppress(Poisoned):
                self.store(s, target)
            return
        if not isinstance(s, ast.Assign) or len(s.targets) != 1 or not isinstance(s.targets[0], ast.Name):
            self.fail(s, "a program is a list of assignments such as `Y = X * 2`")
            for target in _assigned(s) - self.inputs:
                self.assigned.setdefault(target, None)
                self.names.setdefault(target, None)
            return
        self.assign(s, s.targets[0].id)

    def assign(self, s: ast.Assign, name: str) -> None:
        """`name = value`, of the whole of a value."""
        value: Arg | None = None
        try:
            if name in self.inputs:
                self.written.add(name)
                changed = f"; the form is {name}[index, ...] = ..." if name in self.outputs else ""
                raise self.fail(s, f"{name} is an input and cannot be assigned{changed}")
            if any(x.tensor.name == name for x in self.stores):
                raise self.fail(s, f"{name} is written in parts already")
            if name in self.assigned:
                raise self.fail(s, f"{name} is assigned twice")
            if name in self.sizes or name in CONSTANTS:
                raise self.fail(s, f"{name} is the name of {CONSTANTS.get(name, 'a dimension')}")
            if name in RESERVED:
                raise self.fail(s, f"{name} is the name of a function")
            value = self.value(s.value, name, 0)
            if isinstance(value, str) and value != name and self.type_of(value) != "bool":  # the same value, as another
                value = self.builder.emit("mul", value, Fraction(1), out=name)
        except Poisoned:
            value = None
        if name not in self.inputs:
            self.assigned.setdefault(name, value)
            self.names.setdefault(name, value)

    def store(self, s: ast.Assign, target: ast.Subscript) -> None:
        """`tensor[index, ...] = value`. What writes all of an output in its own order is an assignment of its name."""
        name = target.value.id if isinstance(target.value, ast.Name) else None
        try:
            if name is None or name not in self.outputs:
                what = "an input that is not `inout`" if name in self.inputs else "no output"
                shown = name or ast.unparse(target.value)
                raise self.fail(target, f"{shown} is {what}; only outputs are written by indices", name, self.outputs)
            tensor = self.outputs[name]
            nodes = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
            access = tuple(self.each(self.index, nodes, 0))
            if len(access) != len(tensor.dims):
                raise self.fail(target, index_count(name, tensor.dims, len(access)))
            if access == plain(tensor.dims) and name not in self.inputs:
                self.assign(s, name)
                return
            if name in self.assigned:
                raise self.fail(s, f"{name} is assigned already, as a whole")
            self.check_indices(name, tensor, access, nodes)
        except Poisoned:
            self.written.add(name)
            with suppress(Poisoned):  # for the mistakes in it
                self.value(s.value, None, 0)
            raise
        self.written.add(name)
        self.used.add(name)
        self.stores.append(Stored(tensor, access, self.stored(s, name, access), self.at(target)))

    def check_indices(self, name: str, tensor: Tensor, access: Access, nodes: Sequence[ast.expr]) -> None:
        for d, i, node in zip(tensor.dims, access, nodes, strict=True):
            if not all(self.sizes[a] for a in (d, *i.dims, *(x.below for x in i.lookups)) if isinstance(a, str)):
                raise Poisoned
            low, high = of_positions(i).bounds(self.sizes)
            if low < 0 or high >= self.sizes[d]:
                reach = f"from {low} to {high}" if low < high else f"at {low}"
                positions = f"{d} has the positions 0 to {self.sizes[d] - 1}"
                raise self.fail(node, f"this writes {name} along {d} {reach}, and {positions}{_limits((i,))}")
            if high > FARTHEST:
                raise self.fail(node, f"this comes to {high}, more than 2 ** 30 from the start of {d}")
        tables = {t.name: t for t in self.builder.known.values() if isinstance(t, Tensor)}
        if axes := untold(access, self.sizes, distinct_tables(tables.values())):
            why = f"they are the same for several positions along {', '.join(axes)}, as far as can be told"
            again = [x for x in tables_of(access) if not tables[x].distinct]
            hint = f"; if {again[0]} names none twice, declare it `distinct: true`" if again else ""
            raise self.fail(nodes[0], f"these indices may write an element of {name} twice: {why}{hint}")

    def stored(self, s: ast.Assign, name: str, access: Access) -> str:
        """The value on the right, under a name of its own, which it may have already."""
        taken = {x.value for x in self.stores} | {*self.outputs}
        fresh = (x for n in count() if (x := f"{name}_{n}") not in self.builder.known)
        out = next(x for x in fresh if x not in self.taken | {*self.sizes} | RESERVED | {*CONSTANTS} | taken)
        value = self.value(s.value, out, 0)
        if not isinstance(value, str):
            raise self.fail(s.value, f"this part of {name} is just a number")
        if (kind := self.type_of(value)) != "float":
            what = "an integer; outputs are floats, such as index(a) / 1"
            raise self.fail(s.value, f"this part of {name} is {what if kind == 'int' else MASK}")
        has, written = self.builder.known[value].dims, dims_of(access)
        if {*has} != {*written}:
            axes = ", ".join(has) or "none", ", ".join(written) or "none"
            raise self.fail(
                s.value, f"this part of {name} has the axes {axes[0]}, and the indices on the left {axes[1]}"
            )
        if value in taken or value in self.inputs:
            value = self.builder.emit("mul", value, Fraction(1), out=out)
        return value

    # -- expressions

    def each(self, read: Callable[[ast.expr, int], T], nodes: Iterable[ast.expr], depth: int) -> list[T]:
        """All of these, read one by one, so that every one's mistakes are reported."""
        values: list[T] = []
        poisoned = False
        for node in nodes:
            try:
                values.append(read(node, depth))
            except Poisoned:
                poisoned = True
        if poisoned:
            raise Poisoned
        return values

    def value(self, e: ast.expr, out: str | None, depth: int) -> Arg:
        """The value of an expression: a number, or the name of a result, which is `out` where a new one is made."""
        if depth > MAX_DEPTH:
            raise self.fail(e, "this expression is nested too deeply")
        match e:
            case ast.Constant():
                return self.literal(e)
            case ast.Name():
                return self.name(e)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.number_or_float(e.operand, depth)
            case ast.BinOp(op=ast.Pow()):
                return self.power(e, out, depth)
            case ast.UnaryOp() if type(e.op) in SYMBOLS:
                return self.elementwise(e, SYMBOLS[type(e.op)], (e.operand,), out, depth)
            case ast.BinOp() if type(e.op) in SYMBOLS:
                return self.elementwise(e, SYMBOLS[type(e.op)], (e.left, e.right), out, depth)
            case ast.Compare():
                return self.comparison(e, out, depth)
            case ast.BoolOp():
                return self.chain(e, SYMBOLS[type(e.op)], self.each(self.mask, e.values, depth), out)
            case ast.Call():
                return self.call(e, out, depth)
            case ast.Subscript():
                return self.access(e, out, depth)
            case _:
                raise self.fail(e, _no_expression(e))

    def literal(self, e: ast.Constant) -> Number:
        if isinstance(e.value, bool) or not isinstance(e.value, int | float):
            raise self.fail(e, f"{e.value!r} is not a number")
        if abs(e.value) > 1 << 63 if isinstance(e.value, int) else math.isinf(e.value):
            raise self.fail(e, "this number is too large")
        return Fraction(e.value)

    def name(self, e: ast.Name) -> Arg:
        if e.id == "inf":
            return math.inf
        if e.id in self.names:
            value = self.names[e.id]
            self.used.add(e.id)
            if value is None:
                raise Poisoned
            return value
        if e.id in self.sizes:
            if not self.sizes[e.id]:
                raise Poisoned
            self.refuse_dynamic(e, (e.id,), "is no number of the program")
            return Fraction(self.sizes[e.id])
        if e.id in self.written:
            raise self.fail(e, f"{e.id} is written in parts: give what they hold names, and read those")
        known = [*self.names, *self.sizes, "inf"]
        raise self.fail(e, f"nothing is called {e.id}", e.id, known)

    def refuse_dynamic(self, e: ast.AST, dims: Iterable[str], why: str) -> None:
        """Report what needs the size of an axis before a kernel is called."""
        for d in dims:
            if d in self.dynamic:
                hint = f"give {d} one size, and name others in `instances`"
                raise self.fail(
                    e, f"{d} is dynamic: its size is known only when the kernel is called, so it {why}; {hint}"
                )

    def type_of(self, a: Arg) -> str:
        if not isinstance(a, str):
            return "number"
        v = self.builder.known[a]
        return v.type if isinstance(v, Eqn) else tensor_type(v)

    def number_or_float(self, e: ast.expr, depth: int) -> Arg:
        """An operand of arithmetic: anything but a mask."""
        x = self.value(e, None, depth + 1)
        if self.type_of(x) == "bool":
            raise self.fail(e, "a mask is no number; choose between values with where(mask, x, y)")
        return x

    def mask(self, e: ast.expr, depth: int) -> Arg:
        x = self.value(e, None, depth + 1)
        if self.type_of(x) != "bool":
            raise self.fail(e, "a mask is needed here, such as `index(a) >= index(b)`")
        return x

    def elementwise(self, e: ast.AST, op: str, args: Sequence[ast.expr], out: str | None, depth: int) -> Arg:
        masks = [args[i] for i in OPS[op].masks]
        read = self.each(lambda a, d: (self.mask if a in masks else self.number_or_float)(a, d), args, depth)
        return self.emit(e, op, tuple(read), out)

    def emit(self, e: ast.AST, op: str, args: tuple[Arg, ...], out: str | None) -> Arg:
        """An elementwise operator; worked out here where all arguments are numbers."""
        if not any(isinstance(a, str) for a in args):
            if OPS[op].result == "bool":
                raise self.fail(e, "this asks about numbers alone, whose answer is known")
            return self.fold(e, op, tuple(a for a in args if not isinstance(a, str)))
        return self.append(e, op, args, (), out)

    def append(self, e: ast.AST, op: str, args: tuple[Arg, ...], axes: tuple[str, ...], out: str | None) -> str:
        b = self.builder
        self.check_numbers(e, op, args)
        spanned = {d for a in args if isinstance(a, str) for d in b.known[a].dims}
        if len(spanned) > MAX_AXES:
            raise self.fail(e, f"one operator takes at most {MAX_AXES} axes, and here are {len(spanned)}")
        name = out or self.fresh()
        try:
            if op in DERIVED:
                return b.append(derived_equation(name, op, args, axes, b))
            return b.append(equation(name, op, args, axes, b.known, b.order))
        except ValueError as error:
            raise self.fail(e, str(error)) from None

    def check_numbers(self, e: ast.AST, op: str, args: tuple[Arg, ...]) -> None:
        """Whether the numbers beside tensors can be worked with: as float64, as exponents, and beside integers."""
        numbers = [a for a in args if isinstance(a, Fraction)]
        if any(abs(a) > MAX_NUMBER for a in numbers):
            raise self.fail(e, "a number here is beyond float64, whose largest is about 1.8e308")
        if op in OPS and any(
            isinstance(a, Fraction) and abs(a) > MAX_EXPONENT for a in map(args.__getitem__, OPS[op].numbers)
        ):
            raise self.fail(e, f"an exponent is at most {MAX_EXPONENT}, either way")
        integers = (
            op in OPS
            and OPS[op].result == "bool"
            and any(isinstance(a, str) and self.type_of(a) == "int" for a in args)
        )
        if integers and any(abs(a) > MAX_INTEGER for a in numbers):
            raise self.fail(e, "the number compared with an integer is beyond 64 bits")

    def fresh(self) -> str:
        n = len(self.builder.eqns)
        while f"t{n}" in self.builder.known or f"t{n}" in self.taken:
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
            raise self.fail(e, "this arithmetic on numbers has no result")
        return Fraction(result) if math.isfinite(result) else result

    def power(self, e: ast.BinOp, out: str | None, depth: int) -> Arg:
        x, y = self.each(self.number_or_float, (e.left, e.right), depth)
        if not isinstance(y, str):
            if isinstance(x, str) and not isinstance(y, Fraction):
                raise self.fail(e, "the exponent must be finite")
            if isinstance(x, str) and y == 0:
                raise self.fail(e, "the exponent 0 gives 1 everywhere; write the number")
            return self.emit(e, "pow", (x, y), out)
        if not isinstance(x, str):
            if not isinstance(x, Fraction) or x <= 0:
                raise self.fail(e, "the base must be positive where the exponent is a tensor")
            return self.emit(e, "exp", (self.emit(e, "mul", (y, Fraction(math.log(x))), None),), out)
        return self.emit(e, "power", (x, y), out)

    def comparison(self, e: ast.Compare, out: str | None, depth: int) -> Arg:
        sides = self.each(self.number_or_float, (e.left, *e.comparators), depth)
        parts: list[Arg] = []
        for op, x, y in zip(e.ops, sides[:-1], sides[1:], strict=True):
            if type(op) not in SYMBOLS:
                raise self.fail(e, "the comparisons are < <= > >= == !=")
            if not isinstance(x, str) and not isinstance(y, str):
                raise self.fail(e, "this compares two numbers, whose answer is known")
            parts.append(self.append(e, SYMBOLS[type(op)], (x, y), (), out if len(e.ops) == 1 else None))
        return self.chain(e, SYMBOLS[ast.And], parts, out) if len(parts) > 1 else parts[0]

    def chain(self, e: ast.AST, op: str, parts: list[Arg], out: str | None) -> Arg:
        result = parts[0]
        for i, x in enumerate(parts[1:], 1):
            result = self.append(e, op, (result, x), (), out if i == len(parts) - 1 else None)
        return result

    # -- calls

    def call(self, e: ast.Call, out: str | None, depth: int) -> Arg:
        if not isinstance(e.func, ast.Name):
            named = e.func.attr if isinstance(e.func, ast.Attribute) else ""
            hint = f"; functions have no prefix: {named}(...)" if named in FUNCTIONS else _idiom(named)
            raise self.fail(e, f"only functions of the spec language can be called{hint}")
        op = e.func.id
        if any(isinstance(a, ast.Starred) for a in e.args) or any(k.arg is None for k in e.keywords):
            raise self.fail(e, "arguments cannot be unpacked here")
        if op not in FUNCTIONS:
            form = "; the form is pad(x, number)[index, ...]" if op == PAD else _idiom(op)
            raise self.fail_call(e, f"no function is called {op}{form}", depth, None if form else op)
        if op in DERIVED:
            return self.derived(e, op, out, depth)
        kind = OPS[op].kind
        if op == "rename":
            return self.rename(e, out, depth)
        if e.keywords:
            raise self.fail(e.keywords[0], f"{op} takes no argument called {e.keywords[0].arg}")
        if op == "index":
            self.count(e, 1, 1, "the form is index(axis)", depth)
            return self.append(e, "index", (), (self.axis(e.args[0]),), out)
        if kind in ("reduction", "contraction"):
            return self.reduction(e, op, out, depth)
        row = OPS[op]
        self.count(e, row.arity, row.arity, f"{op} takes {row.arity} argument{'s' if row.arity > 1 else ''}", depth)
        return self.elementwise(e, op, e.args, out, depth)

    def count(self, e: ast.Call, least: int, most: float, usage: str, depth: int) -> None:
        if not least <= len(e.args) <= most:
            given = "1 argument is" if len(e.args) == 1 else f"{len(e.args)} arguments are"
            raise self.fail_call(e, f"{given} given; {usage}", depth)

    def fail_call(self, e: ast.Call, message: str, depth: int, near: str | None = None) -> Poisoned:
        """Report a call that cannot be read, and then the mistakes in its arguments."""
        poisoned = self.fail(e, message, near, FUNCTIONS)
        self.each(lambda a, d: self.value(a, None, d), e.args, depth + 1)
        return poisoned

    def axis(self, e: ast.expr, inside: Iterable[str] | None = None) -> str:
        """The name of an axis; with `inside`, one that a value has."""
        if not isinstance(e, ast.Name):
            raise self.fail(e, "the name of an axis is needed here")
        if e.id not in self.sizes:
            raise self.fail(e, f"no axis is called {e.id}", e.id, self.sizes)
        if inside is not None and e.id not in inside:
            has = ", ".join(inside) or "none"
            raise self.fail(e, f"the axis {e.id} is not there; the axes are {has}", e.id, inside)
        return e.id

    def axes(self, nodes: Sequence[ast.expr], inside: Iterable[str] | None = None) -> tuple[str, ...]:
        found: list[str] = []

        def one(node: ast.expr, _: int) -> None:
            a = self.axis(node, inside)
            if a in found:
                raise self.fail(node, f"the axis {a} is repeated")
            found.append(a)

        self.each(one, nodes, 0)
        return tuple(found)

    def tensor(self, e: ast.expr, depth: int, op: str) -> str:
        x = self.number_or_float(e, depth)
        if not isinstance(x, str):
            raise self.fail(e, f"{op} needs a tensor, and this is a number")
        return x

    def tensors(self, e: ast.Call, count: int, op: str, depth: int) -> list[str]:
        """The first arguments of a call. Where one is wrong, axes behind them are looked at all the same."""
        try:
            return self.each(lambda a, d: self.tensor(a, d, op), e.args[:count], depth)
        except Poisoned:
            if op not in DERIVED or DERIVED[op].over_axes:
                self.axes(e.args[count:])
            raise

    def reduction(self, e: ast.Call, op: str, out: str | None, depth: int) -> Arg:
        n = OPS[op].arity
        shape = "dot(a, b, axis, ...)" if op == "dot" else f"{op}(x, axis, ...)"
        self.count(e, n + 1, math.inf, f"the form is {shape}", depth)
        args = self.tensors(e, n, op, depth)
        dims = [self.builder.known[a].dims for a in args]
        for node in e.args[n:]:
            if isinstance(node, ast.Name) and n == 2 and (node.id in dims[0]) != (node.id in dims[1]):
                one = "first" if node.id in dims[0] else "second"
                raise self.fail(node, f"dot sums over an axis of both sides, and only the {one} has {node.id}")
        axes = self.axes(e.args[n:], [d for d in dims[0] if d in dims[-1]])
        return self.append(e, op, tuple(args), axes, out)

    def derived(self, e: ast.Call, op: str, out: str | None, depth: int) -> Arg:
        row = DERIVED[op]
        usage, names = f"the form is {row.form}", [name for name, _ in row.options]
        most = math.inf if row.over_axes else 1 + len(names)
        self.count(e, 2 if row.over_axes else 1, most, usage, depth)
        (x,) = self.tensors(e, 1, op, depth)
        given = {} if row.over_axes else dict(zip(names, e.args[1:], strict=False))
        for k in e.keywords:
            if k.arg not in names:
                raise self.fail(k, f"{op} takes no argument called {k.arg}; {usage}")
            if k.arg in given:
                raise self.fail(k, f"{k.arg} is given twice; {usage}")
            given[k.arg] = k.value
        numbers: list[Number] = []
        for name, default in row.options:
            if name in given:
                numbers.append(self.option(given[name], name, row, depth))
            elif default is None:
                raise self.fail(e, f"{name} is missing; {usage}")
            else:
                numbers.append(Fraction(default))
        args = (x, *numbers[: max((i + 1 for i, name in enumerate(names) if name in given), default=0)])
        axes = self.axes(e.args[1:], self.builder.known[x].dims) if row.over_axes else ()
        return self.append(e, op, args, axes, out)

    def option(self, e: ast.expr, name: str, row: Derived, depth: int) -> Number:
        number = self.value(e, None, depth + 1)
        if isinstance(number, str) or not (row.any_sign or (isinstance(number, Fraction) and number >= 0)):
            raise self.fail(e, f"{name} is a number{'' if row.any_sign else ' that is not negative'}")
        return number

    def rename(self, e: ast.Call, out: str | None, depth: int) -> Arg:
        self.count(e, 1, 1, "the form is rename(x, old=new)", depth)
        if not e.keywords:
            raise self.fail(e, "the form is rename(x, old=new)")
        x = self.moved(e.args[0], depth, "renamed")
        dims = self.builder.known[x].dims
        pairs: list[str] = []
        left = [d for d in dims if d not in {k.arg for k in e.keywords}]
        for k in e.keywords:
            old, new = str(k.arg), self.axis(k.value)
            if old not in dims:
                raise self.fail(k, f"the axis {old} is not there; the axes are {', '.join(dims)}", old, dims)
            if new in left:
                raise self.fail(k.value, f"the axis {new} is there already")
            if self.sizes[old] != self.sizes[new] and self.sizes[old] and self.sizes[new]:
                raise self.fail(k.value, f"{old} has size {self.sizes[old]} and {new} has size {self.sizes[new]}")
            self.refuse_dynamic(k.value, (old, new), "keeps its name")
            left.append(new)
            pairs += [old, new]
        return self.append(e, "rename", (x,), tuple(pairs), out)

    # -- accesses

    def moved(self, e: ast.expr, depth: int, how: str) -> str:
        """What is read elsewhere than it lies: masks are no values in memory, so of them inputs alone."""
        x = self.value(e, None, depth + 1)
        if not isinstance(x, str):
            raise self.fail(e, f"a number is not {how}")
        if self.type_of(x) == "bool" and x not in self.inputs:
            raise self.fail(e, f"a mask is not {how}, but for one that is an input; do so with what it is made of")
        return x

    def access(self, e: ast.Subscript, out: str | None, depth: int) -> Arg:
        """`X[i, j]`: a tensor read by an index for each of its axes, those of a result in the order of `dims`.

        What lies outside is 0, or the number that `pad(X, number)[i, j]` says. Loads of inputs give 0 by themselves.
        """
        of, outside = self.padded(e.value, depth)
        x = self.moved(of, depth, "read by indices")
        if self.type_of(x) == "bool" and outside is not None:
            raise self.fail(e, "outside of a mask it does not hold: there is no number to pad it with")
        dims = self.builder.known[x].dims
        nodes = e.slice.elts if isinstance(e.slice, ast.Tuple) else [e.slice]
        indices = self.each(self.index, nodes, depth)
        if len(indices) != len(dims):
            raise self.fail(e, index_count(x, dims, len(indices)))
        read = [(d, i) for d, i in zip(dims, indices, strict=True) if i.axis != d]
        for d, i, node in zip(dims, indices, nodes, strict=True):
            self.check_index(node, d, i, outside == 0 and x in self.inputs)
            for a, j in nested([(d, i)], {t: self.builder.known[t].dims for t in tables_of([i])}):
                if j.axis != a:
                    self.refuse_dynamic(node, (a, *outside_tables(j)), "is only read by its own name")
        if not read:
            return x
        if may_name_nothing(i for _, i in read) and (x not in self.inputs or outside):
            raise self.fail(e, "where a table holds -1, nothing is read but inputs, and what is read is 0")
        masks = self.inside(e, read) if outside or x not in self.inputs else []
        axes = tuple(t for d, i in read for t in (d, str(i)))
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
            raise self.fail(e.args[1], "what lies outside is a number")
        return e.args[0], outside

    def inside(self, e: ast.AST, read: Iterable[tuple[str, Index]]) -> list[Arg]:
        """Masks that hold where every index is a position of its axis."""
        masks: list[Arg] = []
        for d, i in read:
            before, behind = i.leaves(self.sizes[d], self.sizes)
            if before or behind:
                position = self.append(e, "index", (), (str(i),), None)
                masks += [self.append(e, "ge", (position, Fraction(0)), (), None)] if before else []
                if behind:
                    masks.append(self.append(e, "lt", (position, self.append(e, "size", (), (d,), None)), (), None))
        return masks

    def check_index(self, node: ast.expr, d: str, i: Index, padded: bool = False) -> None:
        """Whether an index reads some of an axis; all that a table names must be there, but where what is not is 0 by
        the program's own word (padded)."""
        tables = lookups_of([i])
        if not all(self.sizes[a] for a in (d, *i.dims, *(x.below for x in tables)) if isinstance(a, str)):
            raise Poisoned
        low, high = i.bounds(self.sizes)
        has = f"{d} has the positions 0 to {self.sizes[d] - 1}"
        if high < 0 or low >= self.sizes[d]:
            reach = f"from {low} to {high}" if low < high else f"at {low}"
            raise self.fail(node, f"this reads {d} {reach}, and {has}")
        if max(-low, high) > FARTHEST:
            farthest = low if -low > high else high
            raise self.fail(node, f"this comes to {farthest}, more than 2 ** 30 from the start of {d}")
        if tables and not padded and any(of_positions(i).leaves(self.sizes[d], self.sizes)):
            hint = "; pad(input, 0)[...] reads 0 where nothing is"
            raise self.fail(node, f"this may read {d} from {low} to {high}, and {has}{_limits((i,))}{hint}")

    def index(self, e: ast.expr, depth: int) -> Index:
        """A sum of axes, tables, and their quotients and remainders, each times an integer, and an integer."""
        if depth > MAX_DEPTH:
            raise self.fail(e, "this index is nested too deeply")
        match e:
            case ast.Constant(value=int() as n) if not isinstance(n, bool) and abs(n) <= MAX_INTEGER:
                return index({}, n)
            case ast.Name() if e.id not in self.sizes and e.id in self.names:
                return self.lookup(e, e, (), depth)
            case ast.Name():
                return plain((self.axis(e),))[0]
            case ast.Subscript():
                return self.lookup(e, e.value, e.slice.elts if isinstance(e.slice, ast.Tuple) else [e.slice], depth)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                x = self.index(e.operand, depth + 1)
                return combined(0, ((x, -1),)) if isinstance(e.op, ast.USub) else x
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                x, y = self.each(self.index, (e.left, e.right), depth + 1)
                return combined(0, ((x, 1), (y, 1 if isinstance(e.op, ast.Add) else -1)))
            case ast.BinOp(op=ast.Mult() | ast.FloorDiv() | ast.Mod()):
                return self.index_by_number(e, depth)
            case ast.BinOp(op=ast.Div()):
                raise self.fail(e, "an index is an integer: // divides and rounds down")
            case ast.Slice():
                raise self.fail(e, SLICE)
            case _:
                known = "axes, integer inputs and their // and %, each times an integer, and an integer"
                raise self.fail(e, f"an index is a sum of {known}")

    def index_by_number(self, e: ast.BinOp, depth: int) -> Index:
        """An index times, over or modulo a number."""
        x, y = self.each(self.index, (e.left, e.right), depth + 1)
        if isinstance(e.op, ast.Mult):
            if x.terms and y.terms:
                raise self.fail(e, "an axis is multiplied by a number here, not by an axis; a name is a position")
            return combined(0, ((x, y.offset),)) if x.terms else combined(0, ((y, x.offset),))
        if y.terms or not 1 <= y.offset <= FARTHEST:
            raise self.fail(e.right, "an index is divided by a positive number here; a name is a position")
        return (quotient if isinstance(e.op, ast.FloorDiv) else remainder)(x, y.offset)

    def lookup(self, e: ast.expr, of: ast.expr, nodes: Sequence[ast.expr], depth: int) -> Index:
        """`T[m]`, or `T` where it has no axes: an integer that an input holds."""
        if not isinstance(of, ast.Name):
            raise self.fail(of, "an index is looked up in an input")
        x = self.name(of)
        t = self.builder.known[x] if isinstance(x, str) else None
        if not isinstance(t, Tensor):
            raise self.fail(of, f"{of.id} is no input; an index is computed of axes, numbers and integer inputs alone")
        if tensor_type(t) != "int":
            raise self.fail(of, f"{of.id} is {t.dtype}, and an index is an integer")
        if t.below is None:
            hint = f"inputs: {of.id}: {{dims: [{', '.join(t.dims)}], dtype: {t.dtype}, below: AXIS}}"
            raise self.fail(of, f"an index needs to know what {of.id} is less than; {hint}")
        indices = self.each(self.index, nodes, depth + 1)
        if len(indices) != len(t.dims):
            has = f"the axes {', '.join(t.dims)}" if t.dims else "no axes"
            given = f"{len(indices)} indices are" if len(indices) != 1 else "1 index is"
            raise self.fail(e, f"{given} given, and {of.id} has {has}")
        for d, i, node in zip(t.dims, indices, nodes, strict=True):
            self.check_index(node, d, i)
            if any(i.leaves(self.sizes[d], self.sizes)):
                low, high = i.bounds(self.sizes)
                raise self.fail(
                    node, f"this reads {d} from {low} to {high}, and a table is read inside of itself alone"
                )
        return atom_index(Lookup(t.name, tuple(indices), t.below, t.padded))


def _limits(access: Access) -> str:
    """What the tables are below that are looked up."""
    below = " and ".join(f"{x.table} is below {x.below}" for x in lookups_of(access))
    return f": {below}" * bool(below)


def index_count(name: str, dims: Sequence[str], count: int) -> str:
    """What is wrong with so many indices of a tensor."""
    has = f"the axes {', '.join(dims)}" if dims else "no axes"
    return f"{f'{count} indices are' if count > 1 else '1 index is'} given, and {name} has {has}"


def _assigned(node: ast.AST) -> set[str]:
    """Every name that is assigned inside."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _exact(row: Op, args: tuple[Number, ...]) -> Fraction | None:
    """The result where it is rational and not too long to write down."""
    return row.exact(*args) if row.exact and all(isinstance(a, Fraction) for a in args) else None
