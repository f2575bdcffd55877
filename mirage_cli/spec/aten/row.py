"""A row of the table of PyTorch's operators: how a call becomes arrays, and what the choice of regions has to know."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any  # what a handler takes and makes is as its operator's schema says

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Row:
    """An operator of PyTorch.

    handler: makes arrays of the call's arguments. with_node: the handler takes the trace and the node in front of them.
    products: how often the operator contracts. moves: it computes nothing. looks_up: it reads of its first tensor what
    it returns. behind: how many kernels it takes behind a product, for operators that read other places than they
    write and contract nothing. Sums and norms take one. Operators that move elements take two: they are searched worst
    in one region with what makes those elements.
    """

    handler: Handler
    with_node: bool = False
    products: int = 0
    moves: bool = False
    looks_up: bool = False
    behind: int = 0


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
    ) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.update(dict.fromkeys(names, Row(handler, with_node, products, moves, looks_up, behind)))
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
