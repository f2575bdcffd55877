"""The products of a kernel as products of matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mirage_cli.codegen.axisnames import merged
from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.nodes import Axes
from mirage_cli.ir.precision import promoted_dtype
from mirage_cli.ir.program import HALVES, Eqn
from mirage_cli.ir.schedule import (
    MIN_BYTES_DEPTH,
    MIN_DOT,
    WARPGROUP,
    WARPGROUP_ROWS,
    bytes_taken,
    multiplied_as,
)


class Matrices(NamedTuple):
    """The operands of a product as matrices: their axes in groups, each of which is one side of them."""

    left: str
    right: str
    batch: list[str]
    rows: list[str]
    middle: list[str]
    columns: list[str]

    @property
    def axes(self) -> Axes:
        """Of what the matrix units compute."""
        return merged(self.batch, self.rows, self.columns)

    def operands(self) -> Iterator[tuple[str, tuple[list[str], ...]]]:
        """Both, with the axes of the product that are one axis of the operand."""
        yield self.left, (self.batch, self.rows, self.middle)
        yield self.right, (self.batch, self.middle, self.columns)


def matrices(k: ScheduledKernel, e: Eqn) -> Matrices:
    """A product as one of matrices: the rows are the axes that come first in blocks, but not those of a side that is
    too short for rows."""
    a, b = factors(e)
    of_a, of_b = k.axes(k.dims[a]), k.axes(k.dims[b])
    rows = [d for d in of_a if d in e.dims and d not in k.dims[b]]
    columns = [d for d in of_b if d in e.dims and d not in k.dims[a]]
    batch = [d for d in k.axes(e.dims) if d in of_a and d in of_b]
    middle = [d for d in of_a if d in of_b and d in e.axes]

    def place(side: list[str]) -> tuple[bool, int]:
        return k.elements(side) < MIN_DOT, k.order.index(side[0])

    if rows and columns and place(rows) > place(columns):
        a, b, rows, columns = b, a, columns, rows
    return Matrices(a, b, batch, rows, middle, columns)


def operand_types(k: ScheduledKernel, e: Eqn, m: Matrices) -> tuple[str, str]:
    """The types in which the matrix units take the operands: as they are stored, where both are of float8 or both of
    int8, and where one is of float32, which is multiplied in parts."""
    kind = bytes_taken(e, k.loads, k.tensors, k.eqns) if k.elements(m.middle) >= MIN_BYTES_DEPTH else None
    if kind == "int8":
        return "int8", "int8"
    if k.float32_products & {m.left, m.right}:
        left, right = ("float32" if v in k.float32_products else multiplied_as(k.type_of(v)) for v in (m.left, m.right))
        return (left, right) if k.schedule.tf32x3 else ("float32", "float32")
    kinds = (k.type_of(v) for v in (m.left, m.right))
    small = promoted_dtype((t if t in HALVES else k.graph.dtype for t in kinds), k.graph.dtype)
    if kind is not None:
        return k.type_of(m.left), k.type_of(m.right)
    return small, small


def factors(e: Eqn) -> tuple[str, str]:
    a, b = e.args
    assert isinstance(a, str) and isinstance(b, str), "a product of numbers is no dot"
    return a, b


def of_warpgroups(k: ScheduledKernel, m: Matrices) -> bool:
    """Whether warpgroups take a product, on GPUs that have such: its right operand from shared memory alone."""
    large = k.elements(m.rows) >= WARPGROUP_ROWS and k.elements(m.columns) >= MIN_DOT
    return large and k.schedule.warps >= WARPGROUP
