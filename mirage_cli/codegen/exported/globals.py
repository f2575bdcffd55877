"""A function of an exported file has its spec's name, whatever that is: what else is called so there is renamed."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

FUNCTIONS = (ast.FunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (*FUNCTIONS, ast.ClassDef, *COMPREHENSIONS)


def without_global(source: str, name: str) -> str:
    """The text of a module whose own global of this name, if it has one, is called otherwise.

    import torch; def f(torch): return torch; x = torch.nan
    --> import torch as torch_; def f(torch): return torch; x = torch_.nan
    """
    words = re.finditer(rf"{name}(?<![\w.:\"']{name})\b", source)
    if all(source.startswith("#", source.rfind("\n", 0, word.start()) + 1) for word in words):  # most: no need to parse
        return source
    tree = ast.parse(source)
    if name not in _bound(tree.body):
        return source
    new = f"{name}_"
    while new in source:
        new += "_"
    lines = source.encode().split(b"\n")  # columns count bytes
    where = [n for n, line in enumerate(source.split("\n"), 1) if name in line]
    for line, column, text in sorted(_places(tree.body, name, new, where), reverse=True):
        before, after = lines[line - 1][:column], lines[line - 1][column + len(name) :]
        lines[line - 1] = before + text.encode() + after
    return b"\n".join(lines).decode()


def _places(nodes: Iterable[ast.AST], name: str, new: str, where: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Line and column of each word that stands for the global, and what is to stand there. where: the lines in which
    the name stands, whatever it stands for; a statement without such a line is passed over."""
    for node in nodes:
        if isinstance(node, ast.stmt) and not _spells(node, where):
            continue
        match node:
            case ast.Name(id=spelled) if spelled == name:
                yield node.lineno, node.col_offset, new
            case ast.alias() if (node.asname or node.name) == name:
                column = (node.end_col_offset or 0) - len(name)
                yield node.lineno, column, new if node.asname else f"{name} as {new}"
            case ast.FunctionDef() | ast.ClassDef() if node.name == name:
                yield node.lineno, node.col_offset + len("def " if isinstance(node, ast.FunctionDef) else "class "), new
            case _:
                pass
        if isinstance(node, SCOPES):
            yield from _places(_parts(node)[0], name, new, where)
            yield from _places_inside(node, name, new, where)
        else:
            yield from _places(ast.iter_child_nodes(node), name, new, where)


def _spells(statement: ast.stmt, where: Sequence[int]) -> bool:
    """Whether one of these lines is the statement's, its decorators' included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    first = min(x.lineno for x in (statement, *decorators))
    at = bisect_left(where, first)
    return at < len(where) and where[at] <= (statement.end_lineno or first)


def _places_inside(scope: ast.AST, name: str, new: str, where: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Those within a scope's own names, unless one of them hides the global."""
    inside = _parts(scope)[1]
    if name not in _bound(inside) | _parameters(scope):
        yield from _places(inside, name, new, where)
    elif isinstance(scope, ast.ClassDef):  # its methods see past its own names
        for method in inside:
            if isinstance(method, ast.FunctionDef):
                yield from _places_inside(method, name, new, where)


def _parts(scope: ast.AST) -> tuple[list[ast.AST], list[ast.AST]]:
    """The nodes of a function, class or comprehension that belong to the scope around it, and those in its own."""
    match scope:
        case ast.FunctionDef(args=args, body=body):
            return [*scope.decorator_list, args, *([scope.returns] if scope.returns else [])], [*body]
        case ast.Lambda(args=args, body=value):
            return [args], [value]
        case ast.ClassDef(body=body):
            return [*scope.decorator_list, *scope.bases, *scope.keywords], [*body]
        case _:
            return [], [*ast.iter_child_nodes(scope)]


def _parameters(scope: ast.AST) -> set[str]:
    return {a.arg for a in ast.walk(scope.args) if isinstance(a, ast.arg)} if isinstance(scope, FUNCTIONS) else set()


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """What these nodes define in their own scope."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias():
                found.add(node.asname or node.name.partition(".")[0])
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.ExceptHandler(name=str() as name):
                found.add(name)
            case _:
                pass
        inside = _parts(node)[0] if isinstance(node, SCOPES) else ast.iter_child_nodes(node)
        found |= _bound(inside)
    return found
