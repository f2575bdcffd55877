"""What the text of a program can name, and where its mistakes are told.

Every mistake is reported through `report(line, column, message, suggestion)`, and a name whose definition is wrong is
poisoned, so that one mistake is one message.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol, TypeVar

from mirage_cli.ir.program import Arg, Builder, Eqn, Range, Tensor, tensor_type
from mirage_cli.spec.vocabulary import closest, no_axis

T = TypeVar("T")
Place = Callable[[int, int], tuple[int, int]]
"""From a row (from 1) and a column (from 0) of the program's text to a line and a column (from 1) of the file."""
MAX_DEPTH = 100
"""Of expressions and indices."""
MAX_INTEGER = (1 << 63) - 1
MAX_COUNTED = 1 << 24
"""The largest size that float32 holds, as it does all below."""


class Report(Protocol):
    """Takes what is wrong at a line and a column, and what was meant where that is close. severity: as in `errors`."""

    def __call__(
        self, line: int, column: int, message: str, suggestion: str | None, severity: str = "error", /
    ) -> None: ...


class Poisoned(Exception):
    """A mistake was reported; whatever needs this value is skipped."""


def with_most(sizes: Mapping[str, int], dynamic: Mapping[str, Range]) -> dict[str, int]:
    """The sizes, where dynamic axes have the most that they may."""
    return {**sizes, **{d: r.most for d, r in dynamic.items()}}


class Scope:
    """Axes and dimension names share one namespace; values have another.

    sizes: of every axis; 0 for one whose size was refused. dynamic: the axes whose size is known only when a kernel
    is called, and what it may be. names: of values; None for one that is poisoned. taken: names that no value of
    the reader's own may have. written: names of what is written in parts. missing: names of axes that there are
    not, each of which is told once. products: where the text has each product, by the name of its result.
    """

    def __init__(
        self,
        inputs: Sequence[Tensor],
        sizes: Mapping[str, int],
        report: Report,
        dynamic: Mapping[str, Range] | None = None,
    ) -> None:
        self.sizes, self.report = sizes, report
        self.dynamic = dynamic or {}
        self.builder = Builder(inputs, sizes)
        self.names: dict[str, Arg | None] = {t.name: t.name for t in inputs}
        self.inputs = dict.fromkeys(t.name for t in inputs)
        self.written: set[str | None] = set()
        self.used: set[str] = set()
        self.taken: set[str] = set()
        self.missing: set[str] = set()
        self.products: dict[str, tuple[int, int]] = {}

    @property
    def largest(self) -> Mapping[str, int]:
        """The sizes, where dynamic axes have the most that they may."""
        return with_most(self.sizes, self.dynamic)

    def begin(self, text: str, place: Place) -> None:
        """Mistakes from here on are at places in this text."""
        self.place, self.rows = place, text.split("\n")

    def fail(self, node: ast.AST, message: str, near: str | None = None, among: Iterable[str] = ()) -> Poisoned:
        """Report a mistake at a node; the exception to raise."""
        self.report(*self.at(node), message, closest(near, among) if near else None)
        return Poisoned()

    def warn(self, node: ast.AST, message: str) -> None:
        """Report what is likely a mistake, and means something all the same."""
        self.report(*self.at(node), message, None, "warning")

    def at(self, node: ast.AST) -> tuple[int, int]:
        """The line and the column of the file."""
        row, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)  # the offset counts bytes
        column = len(self.rows[row - 1].encode()[:offset].decode(errors="ignore"))
        return self.place(row, column)

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
            if e.id not in self.dynamic:
                return Fraction(self.sizes[e.id])
            if self.dynamic[e.id].most > MAX_COUNTED:
                self.refuse_dynamic(e, (e.id,), f"is a float, which holds no size beyond {MAX_COUNTED}")
            return self.builder.emit("size", axes=(e.id,))
        if e.id in self.written:
            raise self.fail(e, f"{e.id} is written in parts: give what they hold names, and read those")
        known = [*self.names, *self.sizes, "inf"]
        inputs = "" if closest(e.id, known) else f"; the inputs are {', '.join(self.inputs)}"
        raise self.fail(e, f"nothing is called {e.id}{inputs}", e.id, known)

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

    def copy(self, value: str, name: str) -> str:
        """The same value under another name."""
        op, same = ("and", value) if self.type_of(value) == "bool" else ("mul", Fraction(1))
        return self.builder.emit(op, value, same, out=name)

    def axis(self, e: ast.expr, inside: Iterable[str] | None = None) -> str:
        """The name of an axis; with `inside`, one that a value has."""
        if not isinstance(e, ast.Name):
            raise self.fail(e, "the name of an axis is needed here")
        if e.id in self.missing:
            raise Poisoned
        if e.id not in self.sizes:
            self.missing.add(e.id)
            raise self.fail(e, no_axis(e.id, self.sizes), e.id, self.sizes)
        if inside is not None and e.id not in inside:
            has = ", ".join(inside) or "none"
            alike = [d for d in inside if self.sizes[d] == self.sizes[e.id]]
            other = f"; rename(x, {alike[0]}={e.id}) has {e.id} in the place of {alike[0]}" if len(alike) == 1 else ""
            raise self.fail(e, f"the axis {e.id} is not there; the axes are {has}{other}", e.id, inside)
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
