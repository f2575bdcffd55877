"""What a PyTorch graph changes in place: which nodes do, whether the graph's edges tell their order, and updates of
what a model holds that a graph makes anew and copies back, put in place.

    y = index_put(keys, [None, None, at], k)            y = index_put_(keys, [None, None, at], k)
    z = f(y)                                      -->   z = f(y)
    copy_(keys, y)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any  # torch's graphs and nodes, which have few types

import torch

from mirage_cli.spec.aten.row import APART, overloadless
from mirage_cli.spec.aten.trace import kept_statistics, written

LAST = "aten.copy_"
"""What writes inputs and buffers that a model changes, at the end of its graph."""
CHANGED = "changed"
"""Where the call of a region's module keeps which of its arguments it changes in place, by number."""
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
    return all(changed(x) or (x.op in GIVEN and len(readers(x)) == 1) for x in several)


def readers(node: Any) -> set[Any]:
    """The nodes that read a node's elements."""
    return {u for u in node.users if u.op != "call_module" or u.target != GUARDS}


@dataclass(frozen=True)
class Update:
    """What a node writes into a tensor: indices as of `index_put_`, with ranges for counted ones. read: the nodes that
    read of the tensor what is overwritten, for its shape alone."""

    indices: tuple[Any, ...]
    value: Any
    read: tuple[Any, ...] = ()


def put_in_place(graph: torch.fx.Graph) -> None:
    """Changes what the graph holds and is given in place, where it makes the whole anew and copies that back at its
    end; unless something else reads the tensor, or the graph returns it."""
    for last in [n for n in calls(graph) if is_last(n)]:
        x, made = last.args[:2]
        update = update_of(made)
        if update is None or made.args[0] is not x or any(u.op == "output" for u in (*made.users, *last.users)):
            continue
        if readers(x) != {made, last, *update.read[-1:]}:
            continue
        with graph.inserting_before(made):
            indices = [counted(graph, i, made) if isinstance(i, range) else i for i in update.indices]
            new = graph.call_function(aten.index_put_.default, (x, indices, update.value))
        new.meta = dict(made.meta)
        graph.erase_node(last)
        made.replace_all_uses_with(new)
        for n in (made, *update.read):
            graph.erase_node(n)


def update_of(made: Any) -> Update | None:
    """What a node writes, if it is an update of whole rows."""
    match overloadless(made.target), made.args:
        case "aten.index_put", (_, indices, value, *accumulate) if not any(accumulate):
            return Update((*indices,), value)
        case "aten.index_copy", (_, dim, index, value) if index.meta["val"].dim() == 1 <= value.meta["val"].dim():
            return Update((*[None] * (dim % value.meta["val"].dim()), index), value)
        case "aten.slice_scatter", (x, value, *where):
            dim, start, end, step = (*where, *(0, None, None, 1)[len(where) :])
            size = x.meta["val"].shape[dim]
            if not all(isinstance(n, int) for n in (start or 0, end or 0, step, size)):
                return None
            dim %= x.meta["val"].dim()
            return over(made, Update((*[None] * dim, range(*slice(start, end, step).indices(size))), value))
        case _:
            return None


def over(made: Any, update: Update) -> Update | None:
    """The update, without what is read of a tensor only to be copied over."""
    copy = update.value
    if overloadless(copy.target) != "aten.copy":
        return update
    view, value = copy.args[:2]
    one, other = (n.meta["val"] for n in (copy, value))
    alone = len(copy.users) == len(view.users) == 1 and view.args[:1] == made.args[:1]
    if not alone or one.shape != other.shape or one.dtype != other.dtype:
        return None
    return replace(update, value=value, read=(copy, view))


def functionalised(graph: torch.fx.Graph) -> None:
    """Undoes `put_in_place` for updates that no kernel took: Inductor puts its own updates in place."""
    for n in graph.find_nodes(op="call_function", target=aten.index_put_.default):
        x, indices, value, *_ = n.args
        with graph.inserting_before(n):
            again = [i.args[0] if i is not None and APART in i.meta else i for i in indices]
            new = graph.call_function(aten.index_put.default, (x, again, value))
        new.meta = dict(n.meta)
        n.replace_all_uses_with(new)
        graph.erase_node(n)
        with graph.inserting_before(next(iter(graph.find_nodes(op="output")))):
            last = graph.call_function(aten.copy_.default, (x, new))
        last.meta = dict(new.meta)


def counted(graph: torch.fx.Graph, places: range, like: Any) -> Any:
    """The node of a table with these numbers."""
    value = like.meta["val"]
    args = places.start, places.stop, places.step
    node = graph.call_function(aten.arange.start_step, args, {"dtype": torch.int64, "device": value.device})
    with value.fake_mode:
        node.meta["val"] = torch.arange(*args, device=value.device)
    return node
