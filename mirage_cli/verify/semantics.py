"""What a semantics of the operators is: the meaning of each, values, and device memory.

`verify.fieldsemantics` computes in finite fields, `verify.floatsemantics` in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol  # values of a semantics, each with its own

from numpy.typing import NDArray

from mirage_cli.ir.access import Tables
from mirage_cli.ir.op import Number, Type
from mirage_cli.ir.scans import Scan

Array = NDArray[Any]
Window = dict[str, tuple[int, int]]
At = tuple[slice | Array, ...]
"""For each axis of an array a range, or positions; with positions, for all of them."""


@dataclass(frozen=True, slots=True)
class Named:
    """A numpy array with named axes."""

    dims: tuple[str, ...]
    data: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


class ScheduleFailure(Exception):
    """A μGraph that cannot run as scheduled. `reason`: "race", "overlapping store", "store outside",
    "hole", "stray store" or "shape"."""

    def __init__(self, reason: str, where: str) -> None:
        super().__init__(f"{reason}: {where}")
        self.reason = reason


class Memory(Protocol):
    """One tensor in device memory, undefined at first unless it is an input. written: what stores have written.
    changes: whether what is read may be overwritten while it is in use, and so is a copy."""

    name: str
    dims: tuple[str, ...]
    written: Array
    changes: bool

    def read(self, at: At, dims: tuple[str, ...]) -> Any: ...

    def write(self, at: At, dims: tuple[str, ...], value: Any, padded: bool = False) -> None:
        """Store `value`, whose axes are among `dims`, those of the places. padded: what is before the first element is
        not written. Raises ScheduleFailure on a conflict."""
        ...

    def whole(self) -> Any: ...


class Semantics(Protocol):
    """What the operators mean. Values have named axes: `value.dims`."""

    sizes: Mapping[str, int]
    window: Window
    tables: Tables

    def apply(self, op: str, args: tuple[Any, ...], axes: tuple[str, ...] = ()) -> Any: ...

    def running(self, e: Scan, x: Any) -> Any:
        """The sums of a value up to each position of an axis."""
        ...

    def join(self, op: str, accumulator: Any, tile: Any) -> Any:
        """The accumulator of the reduction `op` after one more tile's result."""
        ...

    def full(self, c: Number, dims: tuple[str, ...], shape: tuple[int, ...], type: Type) -> Any: ...

    def mask(self, dims: tuple[str, ...], data: Array) -> Any: ...

    def memory(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> Memory: ...

    def input(self, name: str, value: Any, dims: tuple[str, ...]) -> Memory: ...

    def tile(self, value: Any, window: Window) -> Any:
        """The elements in these ranges of the axes of a value, of which it has all."""
        ...

    def seen_as(self, value: Any, dims: tuple[str, ...], shape: tuple[int, ...]) -> Any:
        """The same elements in memory order, as a tensor of other axes."""
        ...
