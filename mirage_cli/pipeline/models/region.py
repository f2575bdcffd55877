"""A region of a PyTorch model: one program, and how PyTorch's tensors become the program's and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any  # torch's graphs and nodes have few types

import torch

from mirage_cli.ir.program import Program, Range
from mirage_cli.pipeline.models.symbols import Lengths, Times, at_sizes
from mirage_cli.spec.graph import Graph


@dataclass(frozen=True)
class Given:
    """How one of PyTorch's tensors becomes an input of a program.

    which: of a module's. order: of its positions in memory, as it was traced. shape: the input's. strides: None where
    it is contiguous. same: whether the shape is that of the tensor, with its positions in this order, in every call.
    """

    which: int
    order: tuple[int, ...]
    shape: Lengths
    strides: Lengths | None = None
    same: bool = False

    def of(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
        """A copy, where it lies otherwise in memory. sizes: of the symbols."""
        x = tensors[self.which]
        x = x.view(torch.int8) if x.dtype == torch.uint8 else x  # as programs have it
        x = shaped(turned(x, self.order), self.shape, sizes)
        if self.strides is None:
            return x if x.is_contiguous() else x.contiguous()
        strides = at_sizes(self.strides, sizes)
        if [*x.stride()] == strides:
            return x
        return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)

    def in_place(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> bool:
        """Whether `of` is the tensor itself, not a copy."""
        x = turned(tensors[self.which], self.order)
        if self.strides is None:
            return x.is_contiguous()
        return [*x.reshape(at_sizes(self.shape, sizes)).stride()] == at_sizes(self.strides, sizes)


@dataclass(frozen=True)
class Kept:
    """A result that is a tensor that the module is given, changed in place. which: of the module's inputs."""

    which: int


@dataclass(frozen=True)
class Shape:
    """How a result of a program becomes PyTorch's.

    held: the program's, with one place for each axis along which the result is constant. parts: with all places. whole:
    PyTorch's shape in memory order. back: from which to PyTorch's order.
    """

    held: Lengths
    parts: Lengths
    whole: Lengths
    back: tuple[int, ...]

    @property
    def symbols(self) -> set[str]:
        """Of its lengths."""
        lengths = (*self.held, *self.parts, *self.whole)
        return {s for n in lengths if isinstance(n, Times) for s in n.symbols}

    def of(self, y: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        """sizes: of the symbols."""
        if self.held != self.parts:
            y = shaped(y, self.held, sizes).expand(at_sizes(self.parts, sizes))
        return turned(shaped(y, self.whole, sizes), self.back)


# A model that is compiled has these steps in its graph for each call of a region: those that do nothing are left out.


def turned(x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The tensor with its positions in this order."""
    return x if order == (*range(len(order)),) else x.permute(order)


def shaped(x: torch.Tensor, shape: Lengths, sizes: Mapping[str, int]) -> torch.Tensor:
    """The tensor in this shape at these sizes of the symbols."""
    same = not sizes and tuple(x.shape) == shape
    return x if same else x.reshape(at_sizes(shape, sizes))


@dataclass(frozen=True)
class Sized:
    """A size of a region that differs by call. input, axis: where the module is told it; where there is no axis, the
    input is the size. least, most: what kernels are for."""

    symbol: str
    input: int
    axis: int | None
    least: int
    most: int

    def of(self, given: Sequence[Any]) -> Any:
        return given[self.input] if self.axis is None else given[self.input].shape[self.axis]


Apart = tuple[tuple[Times, int, int], ...]
"""Ranges of sizes: the least and the largest of each length."""


@dataclass(frozen=True)
class Region:
    """A part of the model as one program.

    graph, program: what the part computes, under a name that is the same wherever the same is computed. inputs: which
        input of the part each input of the program is. results: what is made of the program's outputs, in order.
        sized: the sizes that differ by call. axes: the length of each axis of the program whose size differs by call.
        example: its length in the example, if that is among the sizes to tune for.
        module: the name in the model of the module that the region replaces, "" for a function. times: how often the
        model calls this module.
    """

    graph: Graph
    program: Program
    inputs: tuple[Given, ...]
    results: tuple[Shape | Kept, ...]
    sized: tuple[Sized, ...]
    axes: Mapping[str, Times]
    example: Mapping[str, int] = field(default_factory=dict[str, int])
    module: str = ""
    times: int = 1

    def sizes(self, given: Sequence[Any]) -> dict[str, Any]:
        """Of the symbols, in a call of the module."""
        return {s.symbol: s.of(given) for s in self.sized}

    def serves(self, given: Sequence[Any], sizes: Mapping[str, Any]) -> bool:
        """Whether kernels are for these sizes of the symbols, and find in place what they change."""
        for s in self.sized:
            if not s.least <= sizes[s.symbol] <= s.most:
                return False
        kept = {r.which for r in self.results if isinstance(r, Kept)}
        return not kept or all(i.in_place(given, sizes) for i in self.inputs if i.which in kept)

    def apart(self, program: Program, ranges: Sequence[Range]) -> Apart:
        """Ranges of a program's dynamic axes as ranges of this region's sizes. program: the region's, whose axes may
        have other names."""
        own = self.own_axes(program)
        return tuple((self.axes[own[r.dim]], r.least, r.most) for r in ranges)

    def example_inside(self, program: Program, ranges: Sequence[Range]) -> bool:
        """Whether the example is known to be in these ranges of a program's dynamic axes."""
        own = self.own_axes(program)
        sizes = [self.example.get(own[r.dim], 0) for r in ranges]
        return all(r.least <= n <= r.most for r, n in zip(ranges, sizes, strict=True))

    def own_axes(self, program: Program) -> dict[str, str]:
        """This region's name of each axis of a program's inputs."""
        pairs = zip(program.inputs, self.program.inputs, strict=True)
        return {theirs: own for t, u in pairs for theirs, own in zip(t.dims, u.dims, strict=True)}

    def made(self, returned: Any, given: Sequence[Any]) -> list[Any]:
        """The module's results, from what the kernel returned for what the module was given."""
        own = iter(returned if isinstance(returned, tuple | list) else [returned])
        sizes = self.sizes(given)
        return [given[r.which] if isinstance(r, Kept) else r.of(next(own), sizes) for r in self.results]
