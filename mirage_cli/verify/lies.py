"""Where a call leaves its outputs, with what none is there first: what a kernel forgets to write is seen."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any  # the switches of PyTorch, which are not typed

import torch

from mirage_cli.verify.testdata import as_bytes, copied, memory_of


@contextlib.contextmanager
def fresh_memory_is_nan() -> Generator[None]:
    """While it lasts, torch.empty gives NaN (integers: the largest): what a kernel forgets to write is seen."""
    memory: Any = torch.utils.deterministic
    was_filled, mode = memory.fill_uninitialized_memory, torch.get_deterministic_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.set_deterministic_debug_mode("warn")  # unlike use_deterministic_algorithms, it imports no Inductor
            memory.fill_uninitialized_memory = True
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        memory.fill_uninitialized_memory = was_filled


def nothing(dtype: torch.dtype) -> float | int:
    """What no right output is filled with: NaN, the least of the whole numbers, True."""
    if dtype.is_floating_point:
        return math.nan
    return 1 if dtype == torch.bool else torch.iinfo(dtype).min


Total = tuple[int, tuple[tuple[int, "Atom"], ...]]
"""A number, and factors with atoms, of which it is the sum."""
Atom = int | tuple[str, Total, int] | tuple[str, int, tuple[Total, ...]]
"""What positions are computed from: the position along an axis, by its number; a total divided (`//`) by a number, or
what is left of it (`%`); or what input number so-and-so holds (`at`) at totals."""


@dataclass(frozen=True)
class Lies:
    """Where an output lies: in returned tensor number `tensor`, or in input number -1 - `tensor`, which is changed in
    place. shape, strides, start: of the output in that tensor's memory, in elements. moved: steps from there that
    depend on what inputs hold, or are no multiples of positions, with what they are multiplied by. named: where one of
    these is negative, the element is nowhere: it reads as 0, and is not written. read: whether the call reads what lies
    there before."""

    tensor: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    moved: tuple[tuple[int, Atom], ...] = ()
    named: tuple[Total, ...] = ()
    read: bool = False

    @property
    def view(self) -> bool:
        """Whether PyTorch has a view of it: none goes backwards."""
        return not self.moved and min(self.strides, default=0) >= 0

    def whole(self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor that it lies in."""
        return results[self.tensor] if self.tensor >= 0 else inputs[-1 - self.tensor]

    def of(self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The output: a view where there is one, else a copy."""
        x = self.whole(results, inputs)
        if self.view:
            return x.as_strided(self.shape, self.strides, x.storage_offset() + self.start)
        at, named = self.places(x, inputs), self.is_named(x, inputs)
        found = as_bytes(memory_of(x))[at if named is None else at.where(named, 0)]
        return (found if named is None else found.where(named, 0)).view(x.dtype)

    def fill(
        self, values: float | torch.Tensor, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> None:
        """Writes a number, or a value for each element, where the output lies."""
        x = self.whole(results, inputs)
        if self.view:
            self.of(results, inputs)[...] = values
            return
        at, named = self.places(x, inputs), self.is_named(x, inputs)
        if not isinstance(values, torch.Tensor):
            values = torch.full((), values, dtype=x.dtype, device=x.device).expand(self.shape)
        if named is not None:
            at, values = at[named], values[named]
        as_bytes(memory_of(x))[at] = as_bytes(values.to(x.dtype))

    def take_away(self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Leaves `nothing` where the output lies."""
        self.fill(nothing(self.whole(results, inputs).dtype), results, inputs)

    def is_named(self, x: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Which elements are somewhere; None where all are."""
        if not self.named:
            return None
        totals = [torch.as_tensor(_position(t, self.along(x), inputs), device=x.device) for t in self.named]
        there = functools.reduce(torch.logical_and, [t >= 0 for t in totals])
        return there.expand(self.shape)

    def along(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The positions along each axis, which broadcast against each other."""
        count = range(len(self.shape))
        shapes = [[-1 if j == i else 1 for j in count] for i in count]
        return [torch.arange(n, device=x.device).reshape(s) for n, s in zip(self.shape, shapes, strict=True)]

    def places(self, x: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Where its elements are in the memory of the tensor that it lies in."""
        terms = (*((s, i) for i, s in enumerate(self.strides) if s), *self.moved)
        at = torch.as_tensor(_position((self.start, terms), self.along(x), inputs), device=x.device)
        return at.expand(self.shape)


def _position(x: Total, along: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor | int:
    found: torch.Tensor | int = x[0]
    for factor, a in x[1]:
        found = found + factor * _atom(a, along, inputs)
    return found


def _atom(a: Atom, along: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor | int:
    match a:
        case int():
            return along[a]
        case ("at", int() as table, tuple() as at):
            return inputs[table].long()[tuple(_position(x, along, inputs) for x in at)]
        case ("//", tuple() as of, int() as by):
            return _position(of, along, inputs) // by
        case (_, tuple() as of, int() as by):
            return _position(of, along, inputs) % by
        case _:
            raise ValueError(f"no atom: {a}")


def outputs_of(
    lies: Sequence[Lies] | None, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs in what a call returned and in its inputs. lies: where; None where they are what is returned."""
    return list(results) if lies is None else [x.of(results, inputs) for x in lies]


def to_be_changed(lies: Sequence[Lies] | None, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of inputs of which some are changed in place, with `nothing` where outputs will lie, but for what the call
    reads there before."""
    given = [copied(x) for x in inputs]
    for v in lies or ():
        if v.tensor < 0 and not v.read:
            v.take_away((), given)
    return given


def changed_elsewhere(
    lies: Sequence[Lies] | None, inputs: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
) -> list[int]:
    """The inputs, by number, that differ from what they were in other elements than outputs, or between elements."""
    found: list[int] = []
    for i, (x, y) in enumerate(zip(inputs, before, strict=True)):
        own = [v for v in lies or () if v.tensor == -1 - i]
        pair = [copied(t) if own else t for t in (x, y)]
        for v in own:
            for t in pair:
                v.fill(0.0, (), [*before[:i], t, *before[i + 1 :]])
        mine, kept = (as_bytes(memory_of(t)) for t in pair)
        if not bool(((mine == kept) | (mine.isnan() & kept.isnan())).all()):
            found.append(i)
    return found
