"""The `program` of a spec: assignments read as Python and turned into equations. Nothing is executed."""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from mirage_cli.ir.access import Access, dims_of, plain
from mirage_cli.ir.program import Arg, Tensor, tensor_type
from mirage_cli.spec.expression import ExpressionReader
from mirage_cli.spec.indices import index_count
from mirage_cli.spec.scope import Place, Poisoned, Scope
from mirage_cli.spec.vocabulary import CONSTANTS, RESERVED

MAKES: Mapping[str, str] = {
    "float": "a float; integer(x) makes an integer of it, and x > 0 a mask",
    "int": "an integer; declare `dtype: int32`",
    "bool": "a mask; declare `dtype: bool`, or choose numbers with where(mask, x, y)",
}
"""What a value is that is no output of another type, and how it becomes one."""
TARGET = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
"""The name that a line assigns."""
WORD = re.compile(r"(\w+)")
"""The word at a place of a line."""
OPERATOR = re.compile(r"and|or|not")
"""Words of Python that programs have too."""
MAX_UNREADABLE = 20
"""Lines that are no Python and are reported, of one program."""


@dataclass(frozen=True, slots=True)
class IndexedStore:
    """`tensor[access] = value` of a program, and the line and column where it stands, behind so many equations."""

    tensor: Tensor
    access: Access
    value: str
    place: tuple[int, int]
    behind: int


def _keyword(line: str, at: int) -> tuple[int, str] | None:
    """Where a word of Python stands as if it were a name, assigned or at this place, and what is said of it."""
    for word in (TARGET.match(line), WORD.match(line, at)):
        if word is not None and keyword.iskeyword(word[1]) and not OPERATOR.fullmatch(word[1]):
            return word.start(1), f"`{word[1]}` is a word of Python, and no name"
    return None


class ProgramReader:
    """Reads assignments into the `Builder` of a `Scope`.

    stores: what is written into `outputs` by indices: the program's, or inputs that are changed in place.
    complete: whether the whole text was parsed, so that `assigned` has every name that it assigns.
    """

    def __init__(self, scope: Scope, outputs: Iterable[Tensor] = (), broken: Collection[str] = ()) -> None:
        """broken: tensors that were refused, of which nothing more is said."""
        self.scope, self.broken = scope, broken
        self.expressions = ExpressionReader(scope)
        self.outputs = {t.name: t for t in outputs}
        self.stores: list[IndexedStore] = []
        self.assigned: dict[str, Arg | None] = {}
        self.complete = False

    def read(self, text: str, place: Place, hint: str = "") -> None:
        """Read a whole program. hint: what is said behind a line that is no Python."""
        self.scope.begin(text, place)
        tree = self.parsed(text, hint)
        self.scope.taken |= _assigned(tree)
        for statement in tree.body:
            self.statement(statement)

    def parsed(self, text: str, hint: str) -> ast.Module:
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
                    at, said = _keyword(rows[row - 1], offset - 1) or (offset - 1, error.msg)
                    self.scope.report(*self.scope.place(row, at), f"not a list of assignments: {said}{hint}", None)
            except (ValueError, RecursionError, MemoryError):
                self.scope.report(*self.scope.place(1, 0), "not a list of assignments: this is nested too deeply", None)
                rows, row = [""], 1
            self.complete = False
            if target := TARGET.match(rows[row - 1]):
                self.scope.taken.add(target[1])
                self.define(target[1], None)
            rows[row - 1] = ""
        return ast.Module([], [])

    def statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(target := s.targets[0], ast.Subscript):
            with suppress(Poisoned):
                self.store(s, target)
            return
        if not isinstance(s, ast.Assign) or len(s.targets) != 1 or not isinstance(s.targets[0], ast.Name):
            self.scope.fail(s, "a program is a list of assignments such as `Y = X * 2`")
            for target in _assigned(s):
                self.define(target, None)
            return
        self.assign(s, s.targets[0].id)

    def define(self, name: str, value: Arg | None) -> None:
        """Gives a name its value, or poisons it where that is None. An input, and a name that has a value or is
        poisoned, stay as they are."""
        if name not in self.scope.inputs:
            self.assigned.setdefault(name, value)
            self.scope.names.setdefault(name, value)

    def assign(self, s: ast.Assign, name: str) -> None:
        """`name = value`, of the whole of a value."""
        value: Arg | None = None
        with suppress(Poisoned):
            try:
                self.check_name(s, name)
            except Poisoned:
                self.look_at(s.value)
                raise
            value = self.expressions.value(s.value, name, 0)
            known_mask = isinstance(value, str) and name not in self.outputs and self.scope.type_of(value) == "bool"
            if isinstance(value, str) and value != name and not known_mask:
                value = self.scope.copy(value, name)
        self.define(name, value)

    def look_at(self, value: ast.expr) -> None:
        """Reports the mistakes in a value that is assigned to nothing."""
        with suppress(Poisoned):
            self.expressions.value(value, None, 0)

    def check_name(self, s: ast.Assign, name: str) -> None:
        """Whether a name may be given a value here. Raises Poisoned."""
        if name in self.scope.inputs:
            self.scope.written.add(name)
            changed = f"; the form is {name}[index, ...] = ..." if name in self.outputs else ""
            raise self.scope.fail(s, f"{name} is an input and cannot be assigned{changed}")
        if any(x.tensor.name == name for x in self.stores):
            raise self.scope.fail(s, f"{name} is written in parts already")
        if name in self.assigned:
            raise self.scope.fail(s, f"{name} is assigned twice")
        if name in self.scope.sizes or name in CONSTANTS:
            raise self.scope.fail(s, f"{name} is the name of {CONSTANTS.get(name, 'an axis')}")
        if name in RESERVED:
            raise self.scope.fail(s, f"{name} is the name of a function")

    def store(self, s: ast.Assign, target: ast.Subscript) -> None:
        """`tensor[index, ...] = value`. What writes all of an output in its own order is an assignment of its name."""
        name = target.value.id if isinstance(target.value, ast.Name) else None
        try:
            if name in self.broken:
                raise Poisoned
            if name is None or name not in self.outputs:
                what = "an input that is not `inout`" if name in self.scope.inputs else "no output"
                shown = name or ast.unparse(target.value)
                raise self.scope.fail(
                    target, f"{shown} is {what}; only outputs are written by indices", name, self.outputs
                )
            tensor = self.outputs[name]
            nodes = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
            access = tuple(self.scope.each(self.expressions.indices.index, nodes, 0))
            if len(access) != len(tensor.dims):
                raise self.scope.fail(target, index_count(name, tensor.dims, len(access)))
            if access == plain(tensor.dims) and name not in self.scope.inputs:
                self.assign(s, name)
                return
            if name in self.assigned:
                raise self.scope.fail(s, f"{name} is assigned already, as a whole")
            self.expressions.indices.check_written(name, tensor, access, nodes)
        except Poisoned:
            self.scope.written.add(name)
            self.look_at(s.value)
            raise
        self.scope.written.add(name)
        self.scope.used.add(name)
        value = self.stored(s, name, access)
        self.stores.append(IndexedStore(tensor, access, value, self.scope.at(target), len(self.scope.builder.eqns)))

    def stored(self, s: ast.Assign, name: str, access: Access) -> str:
        """The value on the right, under a name of its own, which it may have already."""
        taken = {x.value for x in self.stores} | {*self.outputs}
        fresh = (x for n in count() if (x := f"{name}_{n}") not in self.scope.builder.known)
        out = next(
            x for x in fresh if x not in self.scope.taken | {*self.scope.sizes} | RESERVED | {*CONSTANTS} | taken
        )
        value = self.expressions.value(s.value, out, 0)
        if not isinstance(value, str):
            raise self.scope.fail(s.value, f"this part of {name} is just a number")
        if not holds(self.outputs[name], kind := self.scope.type_of(value)):
            raise self.scope.fail(s.value, f"this part of {name} is {MAKES[kind]}")
        has, written = self.scope.builder.known[value].dims, dims_of(access)
        if {*has} != {*written}:
            axes = ", ".join(has) or "none", ", ".join(written) or "none"
            raise self.scope.fail(
                s.value, f"this part of {name} has the axes {axes[0]}, and the indices on the left {axes[1]}"
            )
        if value in taken or value in self.scope.inputs:
            value = self.scope.copy(value, out)
        return value


def holds(output: Tensor, kind: str) -> bool:
    """Whether an output holds values of this type: a float one integers too, rounded to it."""
    return kind == tensor_type(output) or (kind, tensor_type(output)) == ("int", "float")


def _assigned(node: ast.AST) -> set[str]:
    """Every name that is assigned inside."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
