"""What a PyTorch graph changes in place: which nodes do, whether the graph's edges tell their order, and updates of
what a model holds that a graph makes anew and copies back, put in place (`updates.py`).

    y = index_put(keys, [None, None, at], k)            y = index_put_(keys, [None, None, at], k)
    z = f(y)                                      -->   z = f(y)
    copy_(keys, y)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any  # torch's graphs and nodes, which have few types

import torch

from mirage_cli.pipeline.models.updates import Update, updates_of
from mirage_cli.spec.aten.row import APART, overloadless
from mirage_cli.spec.aten.trace import kept_statistics, supported, written

LAST = "aten.copy_"
"""What writes inputs and buffers that a model changes, at the end of its graph."""
CHANGED = "changed"
"""Where the call of a region's module keeps which of its arguments it changes in place, by number."""
COPIED = "copied"
"""Where an update says that it is a copy of all of a tensor into another."""
GIVEN = ("placeholder", "get_attr")
GUARDS = "_guards_fn"
"""The module by which a graph of `torch.export` checks the shapes of its inputs."""
aten = torch.ops.aten


def calls(graph: torch.fx.Graph) -> list[Any]:
    return [n for n in graph.nodes if n.op == "call_function"]


def changed(node: Any) -> Sequence[Any]:
    """The nodes whose tensors a node changes in place."""
    if CHANGED in node.meta:
        return [node.args[i] for i in node.meta[CHANGED]]
    return written(node) or kept_statistics(node)


def is_last(node: Any) -> bool:
    """Whether a node writes an input or a buffer that the model has changed, at the end."""
    return overloadless(node.target) == LAST and node.args[0].op in GIVEN


def in_order(graph: torch.fx.Graph) -> bool:
    """Whether tensors that nodes change in place are inputs or buffers that nothing else reads but by the node's
    result, so that the graph's edges say what stands in front of a change, and what behind it."""
    several = [x for n in calls(graph) if not is_last(n) for x in changed(n)]
    return all((changed(x) or x.op in GIVEN) and len(readers(x)) == 1 for x in several)


def readers(node: Any) -> set[Any]:
    """The nodes that read a node's elements."""
    return {u for u in node.users if u.op != "call_module" or u.target != GUARDS}


def put_in_place(graph: torch.fx.Graph) -> None:
    """Changes what the graph holds and is given in place, where it makes the whole anew and copies that back at its
    end: by updates, one behind the other, between which nothing reads the tensor; or from other tensors alone."""
    for n in graph.find_nodes(op="call_function", target=aten.alias.default):  # slices of all
        n.replace_all_uses_with(n.args[0], lambda user: user.op != "output")
        if not n.users:
            graph.erase_node(n)
    for last in [n for n in calls(graph) if is_last(n)]:
        x, made = last.args[:2]
        updates = updates_of(x, made)
        if updates and is_between(x, last, updates):
            for node, update in updates:
                made = put(graph, x if node is updates[0][0] else made, node, update)
        elif not updates and is_copied(last):
            size, whole = x.meta["val"].shape[0], made
            made = put(graph, x, last, Update((range(size),), whole))
            made.meta[COPIED] = True
            continue
        else:
            continue
        last.replace_all_uses_with(made)
        graph.erase_node(last)


def is_between(x: Any, last: Any, updates: Sequence[tuple[Any, Update]]) -> bool:
    """Whether a tensor and each of its updates but the last are read by the next update alone. last: the copy of the
    last one into the tensor."""
    before = x
    for node, update in updates:
        if readers(before) - {last} != {node, *(n for n in update.read if before in n.all_input_nodes)} - {last}:
            return False
        before = node
    return True


def is_copied(last: Any) -> bool:
    """Whether a tensor that nothing reads is filled by what the graph computes, as it is."""
    x, made = last.args[:2]
    if made.op != "call_function" or not supported(made) or readers(x) != {last} or last.kwargs:
        return False
    own, value = x.meta["val"], made.meta["val"]
    static = own.dim() > 0 and all(isinstance(n, int) and n > 0 for n in own.shape)
    return static and own.shape == value.shape and own.dtype == value.dtype


def put(graph: torch.fx.Graph, x: Any, node: Any, update: Update) -> Any:
    """An update in place of a node, which is the result."""
    with graph.inserting_before(node):
        indices = [counted(graph, i, x) if isinstance(i, range) else i for i in update.indices]
        value = update.value
        for operator, given in update.turned:
            turned = graph.call_function(operator, (value, *given))
            with value.meta["val"].fake_mode if hasattr(value.meta["val"], "fake_mode") else nullcontext():
                turned.meta["val"] = operator(value.meta["val"], *given)
            value = turned
        new = graph.call_function(aten.index_put_.default, (x, indices, value))
    new.meta = dict(x.meta)
    node.replace_all_uses_with(new)
    for n in (node, *update.read):
        graph.erase_node(n)
    return new


def functionalised(graph: torch.fx.Graph) -> None:
    """Undoes `put_in_place` for updates that no kernel took: Inductor puts its own updates in place."""
    made: dict[Any, Any] = {}  # what the graph makes of tensors: of which tensor
    for n in graph.find_nodes(op="call_function", target=aten.index_put_.default):
        x, indices, value, *_ = n.args
        if COPIED in n.meta:
            new = value
        else:
            with graph.inserting_before(n):
                again = [i.args[0] if i is not None and APART in i.meta else i for i in indices]
                new = graph.call_function(aten.index_put.default, (x, again, value))
            new.meta = dict(n.meta)
        n.replace_all_uses_with(new)
        graph.erase_node(n)
        made[new] = made.pop(x, x)
    with graph.inserting_before(next(iter(graph.find_nodes(op="output")))):
        for new, x in made.items():
            graph.call_function(aten.copy_.default, (x, new)).meta = dict(new.meta)


def counted(graph: torch.fx.Graph, places: range, like: Any) -> Any:
    """The node of a table with these numbers."""
    value = like.meta["val"]
    args = places.start, places.stop, places.step
    node = graph.call_function(aten.arange.start_step, args, {"dtype": torch.int64, "device": value.device})
    with value.fake_mode:
        node.meta["val"] = torch.arange(*args, device=value.device)
    return node
