"""The words of the spec language: functions, symbols, names that nothing else can have, and what was probably meant."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping

from mirage_cli.ir.derived import DERIVED
from mirage_cli.ir.op import Op
from mirage_cli.ir.ops import OPS
from mirage_cli.spec.idioms import BY_NAME, CHOICE, IDIOMS, PRODUCT, SIZE

PAD = "pad"
"""What names the number outside of a tensor that is read by indices; it means nothing elsewhere."""
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


def no_axis(name: str, axes: Iterable[str]) -> str:
    return f"no axis is called {name}; the axes are {', '.join(axes) or 'none'}"


def idiom(name: str) -> str:
    """What another library's function is here."""
    return f"; {IDIOMS[name]}" if name in IDIOMS else ""


def no_expression(e: ast.expr) -> str:
    """Why Python's expression is none of the spec language."""
    match e:
        case ast.BinOp(op=ast.MatMult()):
            return f"@ does not say which axis it sums over: {PRODUCT}"
        case ast.UnaryOp(op=ast.Invert()):
            return "all bits of an integer x turned are x ^ -1, and where a mask does not hold is `not mask`"
        case ast.IfExp():
            return f"this is not an expression of the spec language: {CHOICE}"
        case ast.Attribute(attr="T" | "mT" | "H"):
            return f"this is not an expression of the spec language: {BY_NAME}"
        case ast.Attribute(attr="shape") | ast.Subscript(value=ast.Attribute(attr="shape")):
            return f"this is not an expression of the spec language: {SIZE}"
        case _:
            return "this is not an expression of the spec language"
