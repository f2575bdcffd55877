"""The tables of docs/language.md, from the tables of the code.

`python -m tools.language PAGE` writes what stands between `<!-- NAME -->` and `<!-- end -->` anew, for each NAME of
BLOCKS; `make language` does so with docs/language.md. What a function or an operator takes is not written down here: it
is what the reader of programs accepts.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import Formatter

from mirage_cli.ir.derived import DERIVED
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Tensor, number_text
from mirage_cli.spec.expression import FUNCTIONS, ProgramReader
from mirage_cli.spec.reader import INPUT_KEYS, KEYS, OUTPUT_KEYS, Field

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
    reader = ProgramReader(inputs, SIZES, lambda line, column, message, near: mistakes.append(message))
    reader.read("\n".join([*SETTING, f"value = {expression}"]), lambda row, column: (row, column))
    if mistakes or not isinstance(reader.assigned.get("value"), str):
        return None, mistakes
    return Read(tuple(e for e in reader.builder.eqns if e.out not in MASKS)), []


def read(expression: str, dtype: str = "float16") -> Read | None:
    return reading(expression, dtype)[0]


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
    """The type of the result, with that for integers where it is another."""
    found = [r.type for dtype in ("float16", "int32") if (r := read(expression, dtype)) is not None]
    return found[0] if len(set(found)) == 1 else f"{found[0]}; {found[1]} of integers"


def bare(text: str) -> str:
    """Without parentheses around the whole."""
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def code(text: str) -> str:
    return f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in lines)


def torch_text(name: str, arguments: Sequence[str]) -> str:
    """What a PyTorch user writes. The fields of a template that are no argument or axis are options, by their names."""
    if name in OPS:
        return bare(OPS[name].torch.format(*arguments))
    template = DERIVED[name].torch
    options = {field: field for _, field, _, _ in Formatter().parse(template) if field}
    return template.format(*arguments, **options | {"dims": "axis", "last": arguments[0], "sizes": "(axis,)"})


def function_row(name: str) -> tuple[str, list[str]]:
    """The group that a function belongs to, and its row."""
    form = form_of(name)
    call = ast.parse(form, mode="eval").body
    assert isinstance(call, ast.Call)
    arguments = [ast.unparse(a) for a in call.args]
    group = OPS[name].kind if name in OPS else "derived"
    if name in DERIVED and "axis" not in arguments:
        group = "elementwise"
    elif name in DERIVED and DERIVED[name].reduces:
        group = "reduction"
    doc = (OPS[name] if name in OPS else DERIVED[name]).doc
    return PLACE.get(group, group), [code(form), doc, type_text(call_of(name)), code(torch_text(name, arguments))]


def functions() -> str:
    """Every function, by what it does to axes."""
    rows: dict[str, list[list[str]]] = {group: [] for group in GROUPS}
    for name in [*OPS, *DERIVED]:
        if name in FUNCTIONS:
            group, row = function_row(name)
            rows.setdefault(group, []).append(row)
    head = ["", "meaning", "type", "PyTorch"]
    return "\n\n".join(
        f"### {GROUPS.get(group, group.capitalize())}\n\n{table(head, found)}" for group, found in rows.items() if found
    )


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


def operators() -> str:
    """Those that the reader takes, each meaning once."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for form in operator_forms():
        if (found := read(form)) is not None:
            known = len(found.eqns) == 1 and found.ops[0] in OPS
            doc = OPS[found.ops[0]].doc if known else code(found.text())
            rows.setdefault(found.ops, [code(form), doc, type_text(form)])
    return table(["", "meaning", "type"], rows.values())


def fields(keys: Mapping[str, Field]) -> str:
    rows = [[code(f.name) + (" *" if f.required else ""), code(f.form), f.doc] for f in keys.values()]
    return table(["key", "for example", ""], rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "keys": lambda: fields(KEYS),
    "tensors": lambda: fields({**INPUT_KEYS, **OUTPUT_KEYS}),
    "operators": operators,
    "functions": functions,
}


def filled(page: str) -> str:
    """The page with its tables written anew. Raises KeyError where a block is of no known name."""

    def block(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{BLOCKS[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    page: Path = parser.parse_args().page
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
