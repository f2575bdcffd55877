"""The same programs as a spec gives, built in Python.

    from mirage_cli import Graph, dot, silu

    g = Graph("gated", dims={"m": 8, "k": 64, "n": 32})
    X = g.input("X", "m", "k")
    W = g.input("W", "k", "n", scale=0.02)
    g.output("O", silu(dot(X, W, "k")), "m", "n")
    program = g.program()

Every function of the spec language can be imported from here. Axes are given by name, or as `g.axis(name)`, which in
arithmetic is the axis's size. `&` and `|` join masks. Values are expressions until `text` writes them down as a spec,
so the reader of specs makes all the checks, and its messages show the line of that spec.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeAlias  # whatever a user gives for a word

import numpy as np

from mirage_cli.errors import GraphError
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Program
from mirage_cli.spec.idioms import PRODUCT
from mirage_cli.spec.reader import IDENTIFIER, Spec, parse_spec
from mirage_cli.spec.vocabulary import FUNCTIONS, PAD

Build: TypeAlias = Callable[..., ast.expr]
Operand: TypeAlias = "Value | Real | int | float | str"  # a string is the name of an axis
Operator: TypeAlias = "Callable[[Value, Operand], Value]"
MAX_DEPTH = 40  # deeper expressions are written in several statements


def _binary(op: type[ast.operator]) -> tuple[Operator, Operator]:
    """The method, and the one for when the other operand stands first."""
    make: Build = lambda a, b: ast.BinOp(a, op(), b)  # noqa: E731
    return lambda x, y: _apply(make, x, y), lambda x, y: _apply(make, y, x)


def _mask(op: ast.cmpop | ast.boolop) -> Operator:
    if isinstance(op, ast.boolop):
        return lambda x, y: _apply(lambda a, b: ast.BoolOp(op, [a, b]), x, y)
    return lambda x, y: _apply(lambda a, b: ast.Compare(a, [op], [b]), x, y)


class Value:
    """An input, an axis, or what an operator makes of others. build: the expression, from those of the operands.

    number: made of numbers alone, so worked out when the program is read. stores: whether it is no value, but a store.
    """

    __slots__ = ("build", "graph", "name", "number", "operands", "place", "stores")
    __hash__ = None  # type: ignore[assignment]  # == makes a mask
    __array_ufunc__ = None  # numpy's numbers leave operators to us

    def __init__(self, graph: Graph, build: Build, operands: tuple[Value, ...], number: bool, name: str = "") -> None:
        self.graph, self.build, self.operands, self.number, self.name = graph, build, operands, number, name
        self.place, self.stores = len(graph.values), False
        graph.values.append(self)

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Value:
        """The tensor read by an index for each of its axes, in which axes are positions: `X[m, 64 * h + d]`."""

        def build(*nodes: ast.expr) -> ast.expr:
            return ast.Subscript(nodes[0], ast.Tuple(list(nodes[1:])))

        given = indices if isinstance(indices, tuple) else (indices,)
        return _apply(build, self, *given, number=False)

    def __setitem__(self, indices: Operand | tuple[Operand, ...], value: Operand) -> None:
        """Writes a part of an output (`Graph.parts`), or changes an input in place: `K[t + 128, h, d] = x`."""

        def build(*nodes: ast.expr) -> ast.expr:
            target = ast.Subscript(nodes[0], ast.Tuple(list(nodes[1:-1])))
            return ast.NamedExpr(target, nodes[-1])  # type: ignore[arg-type]  # `statements` makes it an assignment

        self.graph.written(self.name)
        given = indices if isinstance(indices, tuple) else (indices,)
        _apply(build, self, *given, value, number=False).stores = True

    __iter__ = None  # or else it would be over all indices

    def __bool__(self) -> bool:
        raise GraphError("a value is not known yet: for `if` use where(mask, x, y), for `and` and `or` use & and |")

    def __matmul__(self, _: object) -> Value:
        raise GraphError(f"@ does not say which axis it sums over: {PRODUCT}")

    __rmatmul__ = __matmul__

    def __neg__(self) -> Value:
        return _apply(lambda x: ast.UnaryOp(ast.USub(), x), self)

    def __invert__(self) -> Value:
        return _apply(lambda x: ast.UnaryOp(ast.Not(), x), self)

    __add__, __radd__ = _binary(ast.Add)
    __sub__, __rsub__ = _binary(ast.Sub)
    __mul__, __rmul__ = _binary(ast.Mult)
    __truediv__, __rtruediv__ = _binary(ast.Div)
    __floordiv__, __rfloordiv__ = _binary(ast.FloorDiv)
    __mod__, __rmod__ = _binary(ast.Mod)
    __pow__, __rpow__ = _binary(ast.Pow)
    __rshift__, __rrshift__ = _binary(ast.RShift)
    __lshift__, __rlshift__ = _binary(ast.LShift)
    __lt__, __le__, __gt__, __ge__ = _mask(ast.Lt()), _mask(ast.LtE()), _mask(ast.Gt()), _mask(ast.GtE())
    __eq__, __ne__ = _mask(ast.Eq()), _mask(ast.NotEq())  # type: ignore[assignment]
    __and__, __or__ = _mask(ast.And()), _mask(ast.Or())


@dataclass(frozen=True, slots=True)
class Dynamic:
    """The size of an axis that differs by call: from `min` to `max`. tune: the sizes to tune for."""

    min: int
    max: int
    tune: tuple[int, ...]

    def __str__(self) -> str:
        return f"{{min: {_word(self.min)}, max: {_word(self.max)}, tune: [{', '.join(map(_word, self.tune))}]}}"


class Graph:
    """Collects inputs, values and outputs. Raises GraphError for what is no expression; the rest is for `program`."""

    def __init__(
        self, name: str, dims: Mapping[str, int | Dynamic], dtype: str = "float16", tolerance: float = 4.0
    ) -> None:
        self.name, self.dims, self.dtype, self.tolerance = name, dims, dtype, tolerance
        self.inputs, self.values, self.outputs = list[str](), list[Value](), list[str]()
        self.names = set[str]()  # of inputs
        self.joined: dict[str, str] = {}  # axes that stand side by side wherever they stand, by the name of one
        self.instances: Sequence[Mapping[str, int]] = ()  # of dynamic axes, the sizes to tune for together

    def input(
        self,
        name: str,
        *axes: Value | str,
        dtype: str | None = None,
        scale: float | None = None,
        below: int | str | None = None,
        distinct: bool = False,
        padded: bool = False,
        drawn: str | None = None,
        strides: Sequence[int | str] | None = None,
    ) -> Value:
        """A tensor in memory order. scale: the standard deviation of its test data. below: what integers are less
        than, a number or the size of an axis. distinct: no two of them are equal. padded: -1 is among them, which
        names nothing, and which several may be. drawn: how they are drawn for tests. strides: elements between
        neighbours along each axis, where it is not row-major."""
        self.names.add(name)
        flags = {key: "true" for key, given in (("distinct", distinct), ("padded", padded)) if given}
        own = _tensor(name, axes, dtype=dtype, scale=scale, below=below, drawn=drawn, strides=strides, **flags)
        self.inputs.append(own)
        return Value(self, lambda: ast.Name(name), (), False, name)

    def axis(self, name: str) -> Value:
        """An axis for `index` and the like; in arithmetic, its size."""
        return Value(self, lambda: ast.Name(name), (), True, name)

    def let(self, name: str, value: Operand) -> Value:
        """Names a result, as an assignment of a spec does."""
        made = _operand(self, value)
        if made.name or made.number:
            made = Value(self, lambda x: x, (made,), False)
        made.name = name
        return made

    def output(self, name: str, value: Operand, *axes: Value | str, dtype: str | None = None) -> None:
        """A result in memory order."""
        made = _operand(self, value)
        if made.name != name or not made.operands:
            self.let(name, made)
        self.outputs.append(_tensor(name, axes, dtype=dtype))

    def parts(self, name: str, *axes: Value | str, dtype: str | None = None) -> Value:
        """A result in memory order of which parts are written: `O[g.axis("m"), g.axis("n") + 64] = x`."""
        self.outputs.append(_tensor(name, axes, dtype=dtype))
        return Value(self, lambda: ast.Name(name), (), False, name)

    def written(self, name: str) -> None:
        """A tensor is written by indices: an input among the outputs is changed in place."""
        entry = f"{_word(name)}: {{inout: {_word(name)}}}"
        if name in self.names and entry not in self.outputs:
            self.outputs.append(entry)

    # -- what it means

    def program(self) -> Program:
        """Raises SpecError with every mistake."""
        return self.spec().at()

    def spec(self) -> Spec:
        """Raises SpecError with every mistake."""
        return parse_spec(self.text(), f"<graph {self.name}>")

    def text(self) -> str:
        """The spec that says the same."""
        sizes = ", ".join(f"{_word(d)}: {n if isinstance(n, Dynamic) else _word(n)}" for d, n in self.dims.items())
        types = [f"dtype: {_word(self.dtype)}", f"tolerance: {_word(self.tolerance)}"]
        changes = (", ".join(f"{_word(d)}: {_word(n)}" for d, n in some.items()) for some in self.instances)
        together = [f"instances: [{', '.join(f'{{{x}}}' for x in changes)}]"] if self.instances else []
        head = [f"name: {_word(self.name)}", f"dims: {{{sizes}}}", *together, *types]
        inputs, outputs = ([f"  {self._named(t)}" for t in side] or ["  {}"] for side in (self.inputs, self.outputs))
        program = [f"  {s}" for s in self.statements()]
        return "\n".join([*head, "inputs:", *inputs, "program: |", *program, "outputs:", *outputs]) + "\n"

    def join(self, parts: tuple[str, ...], size: Dynamic) -> bool:
        """Makes one axis of several, under the name of the first, whose sizes differ by call; unless a line of the
        program names one of them elsewhere than side by side with the others, in this order, or has their strides."""
        side_by_side, lines = ", ".join(parts), [*self.inputs, *self.outputs, *self.statements()]
        rest = (re.sub(rf"\b{side_by_side}\b", "", line) for line in lines)
        if any(re.search(rf"\b({'|'.join(parts)})\b", line) for line in rest):
            return False
        if any("strides: " in line and side_by_side in line for line in self.inputs):
            return False
        self.joined[side_by_side] = parts[0]
        self.dims = {d: size if d == parts[0] else n for d, n in self.dims.items() if d not in parts[1:]}
        return True

    def _named(self, line: str) -> str:
        """The line with one name for axes that are joined."""
        for side_by_side, name in self.joined.items():
            line = re.sub(rf"\b{side_by_side}\b", name, line)
        return line

    def statements(self) -> list[str]:
        """An assignment for each value with a name, and for those that several others use or that are nested deeply."""
        uses = [0] * len(self.values)
        for v in reversed(self.values):
            for x in v.operands if v.name or v.stores or uses[v.place] else ():
                uses[x.place] += 1
        taken = {v.name for v in self.values} | {*self.dims}
        fresh = (name for i in range(len(self.values)) if (name := f"v{i}") not in taken)
        nodes, depth, found = list[ast.expr](), list[int](), list[str]()
        for v, count in zip(self.values, uses, strict=True):
            nodes.append(v.build(*(nodes[x.place] for x in v.operands)))
            depth.append(max((depth[x.place] + 1 for x in v.operands), default=0))
            if v.stores and isinstance(store := nodes[-1], ast.NamedExpr):
                found.append(self._named(f"{ast.unparse(store.target)} = {ast.unparse(store.value)}"))
                continue
            if v.operands and not v.number and (v.name or count > 1 or (count and depth[-1] > MAX_DEPTH)):
                name = v.name or next(fresh)
                found.append(self._named(f"{name} = {ast.unparse(nodes[-1])}"))
                nodes[-1], depth[-1] = ast.Name(name), 0
        return found


def __getattr__(name: str) -> Callable[..., Any]:
    """The functions of the spec language. What they make of numbers alone is a number. A mask that is known chooses."""
    if name not in FUNCTIONS and name != PAD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def function(*args: Operand, **options: Operand) -> Value | float:
        if name in OPS and not options and all(isinstance(x, int | float) for x in args):
            with np.errstate(all="ignore"):
                return np.asarray(OPS[name].ref(*args)).item()
        if len(args) > 1 and isinstance(args[0], bool):
            known, x, y = args
            return x if known else y  # type: ignore[return-value]

        def build(*nodes: ast.expr) -> ast.expr:
            keywords = [ast.keyword(k, x) for k, x in zip(options, nodes[len(args) :], strict=True)]
            return ast.Call(ast.Name(name), list(nodes[: len(args)]), keywords)

        return _apply(build, *args, *options.values(), number=False if name == "index" else None)

    function.__name__ = name
    return function


def operands_of(x: Operand, name: str) -> tuple[Value, ...] | None:
    """The operands of a value that this function has made; None of another."""
    if not isinstance(x, Value):
        return None
    node = x.build(*(ast.Name("_") for _ in x.operands))
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    return x.operands if called else None


def is_number(x: Operand, number: float) -> bool:
    """Whether a value is this number, as it is written."""
    if isinstance(x, Value):
        return not x.operands and x.number and ast.dump(x.build()) == ast.dump(_operand(x.graph, number).build())
    return x == number


def _apply(build: Build, *operands: Operand, number: bool | None = None) -> Value:
    graphs = [x.graph for x in operands if isinstance(x, Value)]
    if not graphs:
        raise GraphError("no argument is a value of a graph: an axis is one as g.axis(name)")
    made = tuple(_operand(graphs[0], x) for x in operands)
    return Value(graphs[0], build, made, all(x.number for x in made) if number is None else number)


def _operand(graph: Graph, x: Operand) -> Value:
    if isinstance(x, Value):
        if x.graph is not graph:
            raise GraphError("the arguments are values of two graphs")
        return x
    if isinstance(x, str) and IDENTIFIER.match(x):
        return Value(graph, lambda: ast.Name(x), (), True)
    if not isinstance(x, Real) or x is True or x is False or math.isnan(x):
        shown = repr(x) if isinstance(x, str | Real) else f"an argument of type {type(x).__name__}"
        raise GraphError(f"{shown} is neither a value, nor a number, nor the name of an axis")
    number = int(x) if isinstance(x, Integral) else float(x)
    node = ast.Name("inf") if math.isinf(number) else ast.Constant(abs(number))
    return Value(graph, lambda: node if number >= 0 else ast.UnaryOp(ast.USub(), node), (), True)


def _tensor(name: str, axes: tuple[Value | str, ...], **options: str | float | Sequence[int | str] | None) -> str:
    """The entry of an input or output."""
    names = ", ".join(_word(a if isinstance(a, str) else a.name) for a in axes)
    given = "".join(f", {k}: {_word(v)}" for k, v in options.items() if v is not None)
    return f"{_word(name)}: {{dims: [{names}]{given}}}"


def _word(x: Any) -> str:
    """A scalar of YAML, plain where it is a name or a number, or a list of them."""
    if isinstance(x, list | tuple):
        return f"[{', '.join(map(_word, x))}]"
    if isinstance(x, str):
        return x if IDENTIFIER.match(x) else json.dumps(x)
    if not isinstance(x, Real) or x is True or x is False:
        return json.dumps(repr(x))
    return repr(int(x) if isinstance(x, Integral) else float(x))
