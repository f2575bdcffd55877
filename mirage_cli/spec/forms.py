"""How every function and operator of the language is written, found by asking the reader of programs what it takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import Formatter

from mirage_cli.ir.derived import DERIVED
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Tensor, number_text
from mirage_cli.spec.scope import Scope
from mirage_cli.spec.statements import ProgramReader
from mirage_cli.spec.vocabulary import FUNCTIONS

SIZES = {"m": 3, "a": 2, "b": 2}
VALUES = ("x", "y", "z")
MASKS, NUMBERS = ("mask", "other", "third"), ("c", "d", "e")
SETTING = [*(f"{name} = {v} > 0" for name, v in zip(MASKS, VALUES, strict=True)), *(f"{name} = 2" for name in NUMBERS)]
"""The masks and the numbers that forms are tried with; VALUES are inputs."""

GROUPS: Mapping[str, str] = {
    "elementwise": "Elementwise",
    "reduction": "Over axes, which disappear",
    "derived": "Along axes, which stay",
    "leaf": "Positions and names of axes",
}
PLACE: Mapping[str, str] = {"contraction": "reduction", "rename": "leaf"}
"""The group of a kind that has none of its own."""

INDICES: Mapping[str, str] = {
    "X[m, 64*h + d]": "an index for each axis: + - * // % of axes and numbers; what lies outside reads as 0",
    "pad(X, -inf)[m, k + i - 1]": "the same; what lies outside reads as -inf",
    "E[T[m], k]": "the rows of E that the integer input T names",
    "O[m, n + 64] = x": "a part of an output; all parts together are the whole of it",
}
"""How tensors are read and written at other places than their own axes'."""


@dataclass(frozen=True, slots=True)
class Read:
    """What an expression means: its equations, the last of which is its value."""

    eqns: tuple[Eqn, ...]

    @property
    def type(self) -> str:
        return {"bool": "mask"}.get(self.eqns[-1].type, self.eqns[-1].type)

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(e.op for e in self.eqns)

    def text(self) -> str:
        """The value as one expression of calls."""
        written: dict[str, str] = {}
        for e in self.eqns:
            arguments = (written.get(a, a) if isinstance(a, str) else number_text(a) for a in e.args)
            written[e.out] = f"{e.op}({', '.join(arguments)})"
        return written[self.eqns[-1].out]


def reading(expression: str, dtype: str = "float16") -> tuple[Read | None, list[str]]:
    """What it means where x, y and z are tensors of this type over the axes m and a; None, and why it is refused."""
    mistakes: list[str] = []
    inputs = [Tensor(name, ("m", "a"), dtype) for name in VALUES]
    scope = Scope(inputs, SIZES, lambda line, column, message, *_: mistakes.append(message))
    reader = ProgramReader(scope)
    reader.read("\n".join([*SETTING, f"value = {expression}"]), lambda row, column: (row, column))
    if mistakes or not isinstance(reader.assigned.get("value"), str):
        return None, mistakes
    return Read(tuple(e for e in scope.builder.eqns if e.out not in MASKS)), []


def read(expression: str) -> Read | None:
    """What it means of floats, or where it takes none, of integers."""
    return reading(expression)[0] or reading(expression, "int32")[0]


def calls(name: str) -> Iterator[str]:
    """Calls of a function, simple ones first. Those with axes come last: elsewhere, an axis is a number, its size."""
    for end in ("", "a", "a=b"):
        for count in range(4):
            for kinds in product((VALUES, MASKS, NUMBERS), repeat=count):
                arguments = [kind[kinds[:i].count(kind)] for i, kind in enumerate(kinds)]
                yield f"{name}({', '.join([*arguments, *([end] if end else [])])})"


def call_of(name: str) -> str:
    """The first call of a function that the reader takes."""
    return next(call for call in calls(name) if read(call) is not None)


def form_of(name: str) -> str:
    """How a function is written: as the reader says where it refuses a call without arguments, or as it is called."""
    stated = [m[1] for text in reading(f"{name}()")[1] if (m := re.search(r"the form is (.+)", text))]
    return stated[0] if stated else call_of(name)


def type_text(expression: str) -> str:
    """The type of the result, with that for integers where it is another. Those that divide are not 0."""
    positive = re.sub(r"\by\b", "maximum(y, 1)", expression)
    tried = [("float16", expression), ("int32", expression), ("int32", positive)]
    found = dict.fromkeys(r.type for dtype, text in tried if (r := reading(text, dtype)[0]) is not None)
    return "; ".join([*found][:1] + [f"{kind} of integers" for kind in [*found][1:]])


def bare(text: str) -> str:
    """Without parentheses around the whole."""
    return text[1:-1] if text.startswith("(") and text.find(")") == len(text) - 1 else text


def torch_text(name: str, arguments: Sequence[str]) -> str:
    """What a PyTorch user writes. The fields of a template that are no argument or axis are options, by their names."""
    if name in OPS:
        return bare(OPS[name].torch.format(*arguments))
    template = DERIVED[name].torch
    options = {field: field for _, field, _, _ in Formatter().parse(template) if field}
    return template.format(*arguments, **options | {"dims": "axis", "last": arguments[0], "sizes": "(axis,)"})


@dataclass(frozen=True, slots=True)
class Form:
    """A function or an operator: how it is written, what it means, the type of its result, and what a user of PyTorch
    writes; empty of operators, which PyTorch writes alike."""

    text: str
    meaning: str
    type: str
    torch: str = ""


def form(name: str) -> Form:
    """Of a function. name: one of FUNCTIONS."""
    text = form_of(name)
    doc = (OPS[name] if name in OPS else DERIVED[name]).doc
    return Form(text, doc, type_text(call_of(name)), torch_text(name, _arguments(text)))


def _arguments(text: str) -> list[str]:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call), text
    return [ast.unparse(a) for a in call.args]


def group_of(name: str) -> str:
    """The group, of GROUPS, that a function belongs to."""
    group = OPS[name].kind if name in OPS else "derived"
    if name in DERIVED and "axis" not in _arguments(form_of(name)):
        group = "elementwise"
    elif name in DERIVED and DERIVED[name].reduces:
        group = "reduction"
    return PLACE.get(group, group)


def functions() -> dict[str, list[str]]:
    """The names of all functions, by what they do to axes."""
    names: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in [*OPS, *DERIVED]:
        if name in FUNCTIONS:
            names.setdefault(group_of(name), []).append(name)
    return {GROUPS.get(group, group.capitalize()): found for group, found in names.items() if found}


def operator_forms() -> Iterator[str]:
    """Every operator of Python between values, beside a number, and between masks; unary plus changes nothing."""
    sides = [("x", "y"), ("x", "c"), ("mask", "other")]
    for kind in ast.operator.__subclasses__():
        for left, right in sides:
            yield ast.unparse(ast.BinOp(ast.Name(left), kind(), ast.Name(right)))
    for kind in ast.unaryop.__subclasses__():
        if kind is not ast.UAdd:
            yield from (ast.unparse(ast.UnaryOp(kind(), ast.Name(x))) for x, _ in sides)
    for kind in ast.cmpop.__subclasses__():
        yield from (ast.unparse(ast.Compare(ast.Name(x), [kind()], [ast.Name(y)])) for x, y in sides)
    for kind in ast.boolop.__subclasses__():
        yield from (ast.unparse(ast.BoolOp(kind(), [ast.Name(x), ast.Name(y)])) for x, y in sides)


def operators() -> list[Form]:
    """Those that the reader takes, each meaning once; those of integers alone last."""
    found: dict[tuple[str, ...], Form] = {}
    for text in sorted(operator_forms(), key=lambda text: reading(text)[0] is None):
        if (meant := read(text)) is not None:
            known = len(meant.eqns) == 1 and meant.ops[0] in OPS
            doc = OPS[meant.ops[0]].doc if known else f"`{meant.text()}`"
            found.setdefault(meant.ops, Form(text, doc, type_text(text)))
    return list(found.values())
