"""Operators are known by their columns: outside `mirage_cli/ir/` no operator's name is compared, those of `STRUCTURE`
apart, and the names of types, which are those of casts too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage_cli.ir.derived import DERIVED
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPES
from tests.rows import rows

PACKAGE = Path(__file__).parents[2] / "mirage_cli"
MODULES = [p for p in sorted(PACKAGE.rglob("*.py")) if p.relative_to(PACKAGE).parts[0] != "ir"]
STRUCTURE = {"dot", "sum", "index", "size", "rename"}
"""What other modules know by name, because what they do to axes is the point."""
NAMES = {*OPS, *DERIVED} - STRUCTURE - {*DTYPES}


def names_in(*nodes: ast.AST) -> set[str]:
    """Operators' names among literals, and in groups of such, choices between them and patterns."""
    found = set[str]()
    for node in nodes:
        match node:
            case ast.Constant(str() as value):
                found |= {value} & NAMES
            case ast.Tuple(elements) | ast.List(elements) | ast.Set(elements):
                found |= names_in(*elements)
            case ast.IfExp(_, one, other):
                found |= names_in(one, other)
            case ast.pattern():
                found |= names_in(*ast.iter_child_nodes(node))
            case _:
                pass
    return found


def of_kind(node: ast.AST) -> bool:
    """Whether this is the kind of an atom: canonical forms have kinds, some of which are called like operators."""
    return (isinstance(node, ast.Attribute) and node.attr == "kind") or (
        isinstance(node, ast.Name) and node.id == "kind"
    )


def compared(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """Lines that compare an operator's name, match it, look it up, or keep a table of such names."""
    for node in ast.walk(tree):
        found = set[str]()
        match node:
            case ast.Compare(left, _, others) if not any(map(of_kind, (left, *others))):
                found = names_in(left, *others)
            case ast.Match(subject, cases) if not of_kind(subject):
                found = names_in(*(c.pattern for c in cases))
            case ast.Subscript(_, key):
                found = names_in(key)
            case ast.Dict(keys):
                plain = [k for k in keys if k is not None]
                found = names_in(*plain) if plain and all(names_in(k) for k in plain) else set()
            case ast.Set(elements):
                plain = [x for x in elements if isinstance(x, ast.Constant)]
                found = names_in(*plain) if all(names_in(x) for x in plain) else set()
            case ast.Call(ast.Attribute(_, "get" | "startswith" | "endswith" | "index" | "count"), args):
                found = names_in(*args)
            case _:
                pass
        if found:
            yield getattr(node, "lineno", 0), found


@rows("path", MODULES)
def test_no_name_of_an_operator_is_compared(path: Path) -> None:
    assert not list(compared(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "planted",
    [
        'e.op == "exp"',
        '"softmax" != op',
        's.op in ("gt", "ge")',
        's.op not in {"where", "dot"}',
        'match e.op:\n    case "dot":\n        pass\n    case "add" | "sub":\n        pass',
        'match x:\n    case Apply("div", (a, b)):\n        pass',
        'match op, args:\n    case "mul", (x, y):\n        pass',
        'OPS["tanh"].flops',
        'OPS["mul" if small else s.op]',
        'NEARLY = {"div": "/", "sqrt": "r"}',
        'NEARLY.get("div")',
        'INTERNAL = {"add", "sub", *COMPARE}',
        'op.startswith("exp")',
    ],
)
def test_a_name_that_is_compared_is_seen(planted: str) -> None:
    assert list(compared(ast.parse(planted)))


@pytest.mark.parametrize("fine", ['e.op == "dot"', 'a.kind == "exp"', 'b.emit("mul", x, y)', 'role == "grid"'])
def test_other_text_is_left_alone(fine: str) -> None:
    assert not list(compared(ast.parse(fine)))


def test_structure_is_of_the_table() -> None:
    assert set(OPS) >= STRUCTURE
