"""What a functional PyTorch graph writes into a tensor: rows by an index for each axis, also where it writes a view.

a = select(cache, 0, 1)
b = index_put(a, [at], k)                     -->   index_put(cache, [[1], at], k)
y = select_scatter(cache, b, 0, 1)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any  # torch's graphs and nodes, which have few types

import torch

from mirage_cli.spec.aten.row import overloadless

aten = torch.ops.aten
VIEWS = ("aten.select", "aten.slice", "aten.unbind", "getitem")
Step = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True)
class Update:
    """What a node writes into its first argument: indices as of `index_put_`, with ranges for counted ones. turned:
    operators by which the value is as `index_put_` takes it, each with what it is given besides. read: the nodes that
    read of the tensor what is overwritten, for its shape alone, each behind those that read it."""

    indices: tuple[Any, ...]
    value: Any
    turned: tuple[Step, ...] = ()
    read: tuple[Any, ...] = ()

    @property
    def given(self) -> list[int]:
        """The axes that have an index."""
        return [d for d, i in enumerate(self.indices) if i is not None]


@dataclass(frozen=True)
class View:
    """One position of an axis of a tensor, or a range of them. selected: whether the view lacks the axis."""

    dim: int
    places: range
    selected: bool


def updates_of(x: Any, made: Any) -> list[tuple[Any, Update]]:
    """The updates, one of the other's result, that make a node of a tensor, the first first, each with its node. None
    where it is made otherwise."""
    found: list[tuple[Any, Update]] = []
    while made is not x:
        update = update_of(made)
        if update is None:
            return []
        found.append((made, update))
        made = made.args[0]
    return found[::-1]


def update_of(made: Any) -> Update | None:
    """What a node writes, if it is an update of whole rows."""
    match overloadless(made.target), made.args:
        case "aten.index_put", (_, indices, value, *accumulate) if not any(accumulate):
            return Update((*indices,), value)
        case "aten.index_copy", (_, dim, index, value) if index.meta["val"].dim() == 1 <= value.meta["val"].dim():
            return Update((*[None] * (dim % value.meta["val"].dim()), index), value)
        case "aten.slice_scatter" | "aten.select_scatter", (x, value, *_):
            view = view_of(x, (*made.args[2:],), made)
            return view and written(made, view, value)
        case _:
            return None


def view_of(x: Any, where: tuple[Any, ...], node: Any) -> View | None:
    """What a node reads or writes of a tensor, by its own arguments; None where that is not known."""
    shape, step = x.meta["val"].shape, list[Any]()
    if "select" in overloadless(node.target):
        dim, place = where
        if not isinstance(place, int) or not isinstance(shape[dim], int):
            return None
        first = place % shape[dim]
        step, selected = [first, first + 1, 1], True
    else:
        dim, *step = (*where, *(0, None, None, 1)[len(where) :])
        selected = False
    if not all(isinstance(n, int) for n in (*(s or 0 for s in step), shape[dim])):
        return None
    return View(int(dim or 0) % len(shape), range(*slice(*step).indices(shape[dim])), selected)


def written(made: Any, view: View, value: Any) -> Update | None:
    """An update of a view of a tensor as one of the tensor. value: the view behind it."""
    inner = update_of(value)
    read = reading(value.args[0], made, view) if inner is not None or is_copy(value) else None
    if read is not None and len(value.users) == 1:
        if inner is not None:
            return within(inner, view, value, read)
        target, copied = value.args[0].meta["val"], value.args[1]
        if target.shape == copied.meta["val"].shape and target.dtype == copied.meta["val"].dtype:
            return replace(whole(view, copied), read=(value, *read))
    return whole(view, value)


def is_copy(node: Any) -> bool:
    return overloadless(node.target) == "aten.copy"


def whole(view: View, value: Any) -> Update:
    """All of a view is written."""
    turned = ((aten.unsqueeze.default, (view.dim,)),) if view.selected else ()
    return Update((*[None] * view.dim, view.places), value, turned)


def reading(node: Any, made: Any, view: View) -> tuple[Any, ...] | None:
    """The nodes by which a node that has one reader is this view of what another updates; None where it is not."""
    if len(node.users) != 1 or node.op != "call_function":
        return None
    match overloadless(node.target), node.args:
        case "aten.select" | "aten.slice", (x, *where):
            found, read = view_of(x, (*where,), node), (node,)
        case "getitem", (parts, place) if overloadless(parts.target) == "aten.unbind" and len(parts.users) == 1:
            x, dim = parts.args[0], (*parts.args, 0)[1]
            found, read = View(dim % x.meta["val"].dim(), range(place, place + 1), True), (node, parts)
        case _:
            return None
    again = again_of(x, made.args[0])
    return None if found != view or again is None else (*read, *again)


def again_of(x: Any, y: Any) -> tuple[Any, ...] | None:
    """The nodes by which one node is the same view as another, made again for one reader; None where it is not."""
    if x is y:
        return ()
    alike = x.op == y.op == "call_function" and x.target is y.target and len(x.users) == 1
    if not alike or overloadless(x.target) not in VIEWS or x.args[1:] != y.args[1:] or x.kwargs != y.kwargs:
        return None
    again = again_of(x.args[0], y.args[0])
    return None if again is None else (x, *again)


def within(inner: Update, view: View, node: Any, read: tuple[Any, ...]) -> Update | None:
    """An update of a view as one of the tensor that it is a view of. node: which makes the view."""
    rank, own = node.meta["val"].dim(), inner.indices
    if any(not isinstance(i, range | None) and i.meta["val"].dtype in (torch.bool, torch.uint8) for i in own):
        return None  # one index of several axes
    read = (node, *inner.read, *read)
    if not view.selected:
        return replace(inner, read=read) if view.places == range(node.args[0].meta["val"].shape[view.dim]) else None
    own = (*own, *[None] * (rank - len(own)))
    indices = (*own[: view.dim], view.places, *own[view.dim :])
    found = replace(inner, indices=indices, read=read)
    before, behind = lead(inner.given), lead(found.given)
    if before == behind:
        return found
    beside = max(1 if isinstance(i, range) else i.meta["val"].dim() for i in own if i is not None)
    order = [*range(rank - len(inner.given) + beside)]
    if inner.turned or inner.value.meta["val"].dim() != len(order):
        return None
    first = order[before : before + beside]
    turn = aten.permute.default, ([*first, *(d for d in order if d not in first)],)
    return replace(found, turned=(turn,))


def lead(given: list[int]) -> int:
    """In front of which of the other axes PyTorch has those of several indices: all, unless the indices are beside one
    another."""
    return given[0] if given == [*range(given[0], given[0] + len(given))] else 0
