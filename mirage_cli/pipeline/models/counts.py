"""Numbers of a program that follow from sizes that differ by call.

A part is traced at two sizes. Where its two programs differ in a number, that is found as a size, one more or less, a
root or a reciprocal of one, or a number of them:

    X / 59, X / 61    -->  X / a0            X * 0.1302, X * 0.1280  -->  X * a0 ** -0.5         a0: 59 and 61 positions

A size of an axis is a float of the spec language, so that whole numbers are taken with one nowhere but in comparisons.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping

from mirage_cli.ir.program import Eqn, Program, tensor_type
from mirage_cli.pipeline.models.symbols import Times, length_of
from mirage_cli.spec.arrays import Unsupported
from mirage_cli.spec.graph import Graph, Value

MORE = (0, 1, -1)
"""What is added to a size."""
POWERS = (1.0, -1.0, 0.5, -0.5)
"""In which sizes occur."""
SAME = 1e-12
"""How far apart a number and the power of a size are, at most, as a part of it: a few times float64's rounding."""

Pairs = Mapping[str, tuple[int, int]]


def sizes_for_numbers(one: Graph, other: Graph, axes: Mapping[str, str], pairs: Pairs) -> None:
    """Puts sizes of axes in the place of numbers in which two graphs differ, as far as these are such.

    axes: those whose sizes differ by call, with their symbols. pairs: what these are in the two graphs.
    """
    known = {d: pairs[s] for d, s in axes.items()}
    indices = {*_indices(one)}
    for i, (a, b) in enumerate(zip(one.values, other.values, strict=False)):
        numbers = _number(a), _number(b)
        if i in indices or None in numbers or numbers[0] == numbers[1]:
            continue
        node = _size(float(numbers[0] or 0), float(numbers[1] or 0), known)
        if node is not None:
            a.build = b.build = lambda node=node: node


def _indices(graph: Graph) -> Iterator[int]:
    """The places of values that indices are made of, in which a name is a position."""
    left = [x for v in graph.values if isinstance(_node(v), ast.Subscript) for x in v.operands[1:]]
    while left:
        v = left.pop()
        yield v.place
        left += v.operands


def _node(v: Value) -> ast.expr:
    return v.build(*(ast.Name("_") for _ in v.operands))


def _number(v: Value) -> float | None:
    """The number that a value is; None for another value."""
    if v.operands or not v.number:
        return None
    match v.build():
        case ast.Constant(value=int() | float() as n):
            return n
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as n)):
            return -n
        case _:
            return None


def _size(x: float, y: float, known: Pairs) -> ast.expr | None:
    """What these numbers are in terms of the sizes of axes; None where they are nothing of the kind."""
    if x < 0 and y < 0:
        node = _size(-x, -y, known)
        return node and ast.UnaryOp(ast.USub(), node)
    for power in POWERS if x > 0 and y > 0 else ():
        for more in MORE:
            roots = [n ** (1 / power) for n in (x, y)]
            counts = [round(n) - more for n in roots]
            near = all(math.isclose(n, round(n), rel_tol=SAME) for n in roots)
            if near and min(counts) > 0 and isinstance(length := length_of(counts, known), Times):
                return _expression(length, more, power)
    for d, (a, b) in known.items():
        if math.isclose(x / a, y / b, rel_tol=SAME):
            return ast.BinOp(ast.Name(d), ast.Mult(), ast.Constant(x / a))
    return None


def _expression(length: Times, more: int, power: float) -> ast.expr:
    node: ast.expr = ast.Name(length.symbols[0])
    for name in length.symbols[1:]:
        node = ast.BinOp(node, ast.Mult(), ast.Name(name))
    if length.number != 1:
        node = ast.BinOp(node, ast.Mult(), ast.Constant(length.number))
    if more:
        node = ast.BinOp(node, ast.Add() if more > 0 else ast.Sub(), ast.Constant(1))
    if power == 1:
        return node
    exponent = ast.Constant(abs(power))
    return ast.BinOp(node, ast.Pow(), exponent if power > 0 else ast.UnaryOp(ast.USub(), exponent))


def refuse_inexact(program: Program) -> None:
    """Raises Unsupported where whole numbers are worked out with a size, which is a float."""
    types = {v: x.type if isinstance(x, Eqn) else tensor_type(x) for v, x in program.values().items()}
    sized: set[str] = set()
    for e in program.eqns:
        if e.op == "size" or (e.values and not e.dims and sized.issuperset(e.values)):
            sized.add(e.out)
        elif sized.intersection(e.values) and e.type != "bool" and "int" in {types[v] for v in e.values}:
            raise Unsupported("whole numbers are worked out with a size that differs by call")
