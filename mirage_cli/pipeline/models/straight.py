"""The steps around a region's kernel, worked out beforehand as far as sizes are known.

A compiled model has them traced for each call of a region. A function that is called, a comprehension or a generator
costs Dynamo more than all the steps in it, so these are tuples, and loops that take them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any  # PyTorch's tensors, and arguments of other kinds

import torch

from mirage_cli.pipeline.models.region import Given, Kept, Region, Shape
from mirage_cli.pipeline.models.symbols import Length, Times, at_sizes

Order = tuple[int, ...]
Lengths = tuple[bool, list[Any]]
"""A shape, and whether sizes of the call are missing in it. One of these is -1 instead, which says itself."""
Input = tuple[int, Given | None, Order | None, Lengths | None]
"""Which argument it is; what makes it of that, where it has gaps in memory; or its positions in memory order and its
shape, each where it is another than the argument's."""
Result = tuple[int, Lengths | None, list[Length], Lengths | None, Order | None]
"""Which argument it is, or -1; its shape with one place for each axis along which it is constant, where there are such,
and with all; its shape, and its positions in PyTorch's order, each where it is another than the kernel returns."""


@dataclass(frozen=True)
class Steps:
    """What becomes of a region's arguments in front of its kernel, and of the kernel's results behind it."""

    before: tuple[Input, ...]
    behind: tuple[Result, ...]

    @staticmethod
    def of(region: Region) -> Steps:
        lengths: dict[str, Length] = {**region.program.sizes, **region.axes}
        returned = ([lengths[d] for d in t.dims] for t in region.program.results)
        behind = (_kept(r) if isinstance(r, Kept) else _result(r, next(returned)) for r in region.results)
        return Steps(tuple(map(_input, region.inputs)), tuple(behind))

    def inputs(self, given: Sequence[Any], sizes: Mapping[str, Any]) -> list[Any]:
        """The kernel's. sizes: of the symbols."""
        found: list[Any] = []
        for which, apart, order, shape in self.before:
            x = given[which]
            if apart is not None:
                found.append(apart.of(given, sizes))
                continue
            if x.dtype == torch.uint8:
                x = x.view(torch.int8)  # as programs have it
            if order is not None:
                x = x.permute(order)
            if not x.is_contiguous():
                x = x.contiguous()
            if shape is not None:
                x = x.reshape(at_sizes(shape[1], sizes) if shape[0] else shape[1])
            found.append(x)
        return found

    def results(self, returned: Any, given: Sequence[Any], sizes: Mapping[str, Any]) -> list[Any]:
        """The region's. returned: by the kernel, for what the region was given. sizes: of the symbols."""
        own = returned if isinstance(returned, tuple | list) else (returned,)
        found: list[Any] = []
        at = 0
        for which, held, parts, whole, back in self.behind:
            if which >= 0:
                found.append(given[which])
                continue
            y = own[at]
            at += 1
            if held is not None:
                y = y.reshape(at_sizes(held[1], sizes) if held[0] else held[1])
                y = y.expand(at_sizes(parts, sizes) if sizes else parts)
            if whole is not None:
                y = y.reshape(at_sizes(whole[1], sizes) if whole[0] else whole[1])
            found.append(y if back is None else y.permute(back))
        return found


def _input(x: Given) -> Input:
    if x.strides is not None:
        return x.which, x, None, None
    return x.which, None, _other(x.order), None if x.same else _lengths(x.shape)


def _kept(r: Kept) -> Result:
    return r.which, None, [], None, None


def _result(r: Shape, returned: list[Length]) -> Result:
    parts, whole = [*r.parts], [*r.whole]
    constant = r.held != r.parts
    made = parts if constant else returned
    held = _lengths(r.held) if constant else None
    return -1, held, parts, None if whole == made else _lengths(r.whole), _other(r.back)


def _lengths(shape: Sequence[Length]) -> Lengths:
    first = next((i for i, n in enumerate(shape) if isinstance(n, Times)), None)
    found = [-1 if i == first else n for i, n in enumerate(shape)]
    return any(isinstance(n, Times) for n in found), found


def _other(order: Order) -> Order | None:
    return None if order == (*range(len(order)),) else order
