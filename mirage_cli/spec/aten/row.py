"""A row of the table of PyTorch's operators: how a call becomes arrays, and what the choice of regions has to know."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any  # what a handler takes and makes is as its operator's schema says

Handler = Callable[..., Any]
SYMBOLIC = "symbolic"
"""Where a node keeps its value while numbers stand in the place of sizes that differ by call."""
APART = "apart"
"""What a node has that is to be in no program."""


@dataclass(frozen=True, slots=True)
class Named:
    """Numbers by which a call names positions of a tensor.

    index: the node that holds them. of, axis: the tensor's node, and which of its axes. from_end: whether negative
    numbers count from the end; else they name nothing. besides: a number that may be there, and names nothing either.
    apart: whether those along that axis are expected to differ: which is kept of what is written twice is left open.
    trusted: whether PyTorch has worked them out and does not check them.
    """

    index: Any
    of: Any
    axis: int
    from_end: bool = False
    besides: int | None = None
    apart: bool = False
    trusted: bool = False


def names_nothing(_: Any) -> tuple[Named, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Row:
    """An operator of PyTorch.

    handler: makes arrays from the arguments of a call. with_node: the handler also takes the trace and the node, first.
    products: how many contractions the operator is. moves: the operator copies elements and computes nothing.
    looks_up: the result is elements of the first tensor, at places that another tensor names.
    behind: how many kernels the operator adds to a region whose last kernel is a product. Sums and norms add one.
    Concatenations, flips and rolls add two: the search does worst where they share a region with what they read.
    named: of a call's node, the numbers by which it names positions.
    joins: the operator puts the tensors of its first argument behind each other.
    fractions: PyTorch refuses numbers that are not between 0 and 1.
    keeps_type: what is put among the elements of the first argument is converted to their type.
    """

    handler: Handler
    with_node: bool = False
    products: int = 0
    moves: bool = False
    looks_up: bool = False
    behind: int = 0
    named: Callable[[Any], tuple[Named, ...]] = names_nothing
    fractions: bool = False
    joins: bool = False
    keeps_type: bool = False


class Rows(dict[str, Row]):
    """Rows by the operator's name without its overload. Called, it is a decorator that adds a handler's row:

    @aten("aten.mm", products=1)
    def _mm(a: Array, b: Array) -> Array: ...
    """

    def __call__(
        self,
        *names: str,
        with_node: bool = False,
        products: int = 0,
        moves: bool = False,
        looks_up: bool = False,
        behind: int = 0,
        named: Callable[[Any], tuple[Named, ...]] = names_nothing,
        fractions: bool = False,
        joins: bool = False,
        keeps_type: bool = False,
    ) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            row = Row(handler, with_node, products, moves, looks_up, behind, named, fractions, joins, keeps_type)
            self.update(dict.fromkeys(names, row))
            return handler

        return add


def overloadless(target: object) -> str:
    """`aten.add` of `aten.add.Tensor`, `getitem` of Python's."""
    if target is operator.getitem:
        return "getitem"
    return ".".join(str(target).split(".")[:2])


def dtype_name(dtype: object) -> str:
    """`float16` of `torch.float16`."""
    return str(dtype).removeprefix("torch.")
