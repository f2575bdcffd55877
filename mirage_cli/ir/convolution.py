"""A convolution in a program: O[b.., y.., e] = Σ_{c, i..} X[b.., y*s + i*d - p.., c] · W[i.., c, e], axes in any order.

It is looked for in the program lowered to primitive operators. It is a structure of certain operators, so their names
are compared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mirage_cli.ir.access import Dims, Index
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Eqn, Program

MOST_WINDOWS = 3
"""Axes with windows of the convolutions that PyTorch has."""


@dataclass(frozen=True, slots=True)
class Window:
    """An axis of X that is read at row * stride + tap * dilation - padding."""

    axis: str
    row: str
    tap: str
    stride: int
    dilation: int
    padding: int


@dataclass(frozen=True, slots=True)
class Convolution:
    """out = Σ value · weight. plain: the axis of the product that each axis of `value` without a window is read by.

    channels: the plain ones that are summed. columns: the axes of the weight alone.
    """

    out: str
    value: str
    weight: str
    plain: Mapping[str, str]
    windows: tuple[Window, ...]
    channels: Dims
    columns: Dims

    @property
    def batch(self) -> Dims:
        """The axes of the product that come from `value`, and are no rows of windows."""
        return tuple(a for a in self.plain.values() if a not in self.channels)


def find_convolution(program: Program) -> Convolution | None:
    """The convolution with the most multiplications of a program, if it has one."""
    lowered = lower(program)
    found = [c for e in lowered.eqns if e.op == "dot" for c in _both_ways(lowered, e)]
    dims, sizes = {e.out: (*e.dims, *e.axes) for e in lowered.eqns}, program.sizes
    return max(found, key=lambda c: prod(sizes[d] for d in dims[c.out]), default=None)


def _both_ways(program: Program, e: Eqn) -> list[Convolution]:
    some = (e.values, e.values[::-1]) if len(e.values) == 2 else ()
    return [c for x, w in some if (c := _convolution(program, e, x, w)) is not None]


def _convolution(program: Program, e: Eqn, x: str, w: str) -> Convolution | None:
    moved = next((r for r in program.eqns if r.out == x and r.op == "rename"), None)
    weight = next((t for t in program.inputs if t.name == w), None)
    readers = sum(x in r.values for r in program.eqns)
    if moved is None or weight is None or readers != 1 or len(moved.args) != 1:
        return None
    value = str(moved.args[0])
    plain: dict[str, str] = {}
    windows: list[Window] = []
    for a in program.values()[value].dims:
        i = moved.names.get(a)
        axis = a if i is None else i.axis
        if axis is not None:
            plain[a] = axis
        elif i is not None and (window := _window(a, i, e, program.sizes)) is not None:
            windows.append(window)
        else:
            return None
    taps, rows = {x.tap for x in windows}, {x.row for x in windows}
    channels = tuple(a for a in plain.values() if a in e.axes)
    columns = tuple(a for a in weight.dims if a not in e.axes)
    whole = {*weight.dims} == {*taps, *channels, *columns} and {*e.axes} == {*taps, *channels}
    apart = not {*columns} & {*plain.values(), *rows} and len({*rows, *plain.values()}) == len(rows) + len(plain)
    fits = all(program.sizes[a] == program.sizes[b] for a, b in plain.items())
    if not (whole and apart and fits and 0 < len(windows) <= MOST_WINDOWS):
        return None
    return Convolution(e.out, value, w, plain, tuple(windows), channels, columns)


def _window(axis: str, i: Index, e: Eqn, sizes: Mapping[str, int]) -> Window | None:
    """An index as a window that PyTorch has: as much padding on both sides, of which the last rows may be left out."""
    steps = {a: c for a, c in i.terms if isinstance(a, str)}
    rows, taps = [a for a in steps if a not in e.axes], [a for a in steps if a in e.axes]
    if not (len(i.terms) == len(steps) == 2 and len(rows) == len(taps) == 1 and min(steps.values()) > 0 >= i.offset):
        return None
    (row,), (tap,) = rows, taps
    reach = sizes[axis] - 2 * i.offset - steps[tap] * (sizes[tap] - 1)
    if reach < 1 or (reach - 1) // steps[row] + 1 < sizes[row]:
        return None
    return Window(axis, row, tap, steps[row], steps[tap], -i.offset)
