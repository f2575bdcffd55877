"""The steps around a region's kernel at fixed sizes, worked out beforehand.

A compiled model has them traced for each call of a region. A function that is called, a comprehension or a generator
costs Dynamo more than all the steps in it, so these are tuples, and loops that take them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # PyTorch's tensors, and arguments of other kinds

import torch

from mirage_cli.pipeline.models.region import Given, Kept, Region, Shape

Order = tuple[int, ...]
Input = tuple[int, Given | None, Order | None, list[Any] | None]
"""Which argument it is; what makes it of that, where it has gaps in memory; or its positions in memory order and its
shape, each where it is another than the argument's."""
Result = tuple[int, list[Any] | None, list[Any], list[Any] | None, Order | None]
"""Which argument it is, or -1; its shape with one place for each axis along which it is constant, where there are such,
and with all; its shape, and its positions in PyTorch's order, each where it is another than the kernel returns."""


@dataclass(frozen=True)
class Steps:
    """What becomes of a region's arguments in front of its kernel, and of the kernel's results behind it."""

    before: tuple[Input, ...]
    behind: tuple[Result, ...]

    @staticmethod
    def of(region: Region) -> Steps:
        returned = ([region.program.sizes[d] for d in t.dims] for t in region.program.results)
        behind = (_kept(r) if isinstance(r, Kept) else _result(r, next(returned)) for r in region.results)
        return Steps(tuple(map(_input, region.inputs)), tuple(behind))

    def inputs(self, given: Sequence[Any]) -> list[Any]:
        """The kernel's."""
        found: list[Any] = []
        for which, apart, order, shape in self.before:
            x = given[which]
            if apart is not None:
                found.append(apart.of(given, {}))
                continue
            if x.dtype == torch.uint8:
                x = x.view(torch.int8)  # as programs have it
            if order is not None:
                x = x.permute(order)
            if not x.is_contiguous():
                x = x.contiguous()
            found.append(x if shape is None else x.reshape(shape))
        return found

    def results(self, returned: Any, given: Sequence[Any]) -> list[Any]:
        """The region's. returned: by the kernel, for what the region was given."""
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
                y = y.reshape(held).expand(parts)
            if whole is not None:
                y = y.reshape(whole)
            found.append(y if back is None else y.permute(back))
        return found


def _input(x: Given) -> Input:
    if x.strides is not None:
        return x.which, x, None, None
    return x.which, None, _other(x.order), None if x.same else [*x.shape]


def _kept(r: Kept) -> Result:
    return r.which, None, [], None, None


def _result(r: Shape, returned: list[int]) -> Result:
    held, parts, whole = [*r.held], [*r.parts], [*r.whole]
    constant = held != parts
    made = parts if constant else returned
    return -1, held if constant else None, parts, None if whole == made else whole, _other(r.back)


def _other(order: Order) -> Order | None:
    return None if order == (*range(len(order)),) else order
