"""Parts of a PyTorch graph as modules of their own, which the graph calls; and back."""

from __future__ import annotations

import heapq
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any  # torch's graphs and nodes, which have few types

import torch

from mirage_cli.pipeline.models.inplace import CHANGED, changed
from mirage_cli.pipeline.models.partition import Part, Signature, outputs_of, signature
from mirage_cli.pipeline.models.symbols import placeholders


def outlined(model: torch.fx.GraphModule, parts: Sequence[Part], prefix: str) -> dict[Signature, str]:
    """Replaces each part by a call of a module that computes it; equal parts share a module. The modules' names.

    The arguments are the nodes that the part reads, and the results those of its nodes that others read, both in the
    order of its signature.
    """
    made_adjacent(model.graph, parts)
    names: dict[Signature, str] = {}
    for part in parts:
        found, read = signature(part)
        results = outputs_of(part)
        if found not in names:
            names[found] = f"{prefix}{len(names)}"
            model.add_submodule(names[found], torch.fx.GraphModule(model, subgraph(part, read, results)))
        with model.graph.inserting_after(part[-1]):
            call = model.graph.call_module(names[found], tuple(read))
        call.meta = dict(results[0].meta) if len(results) == 1 else {"val": tuple(n.meta.get("val") for n in results)}
        call.meta |= {CHANGED: [read.index(x) for n in part for x in changed(n) if x in read]}
        for i, n in reversed([*enumerate(results)]):
            made = call
            if len(results) > 1:
                with model.graph.inserting_after(call):
                    made = model.graph.call_function(operator.getitem, (call, i))
                made.meta = dict(n.meta)
            n.replace_all_uses_with(made)
        for n in reversed(part):
            model.graph.erase_node(n)
    model.graph.lint()
    model.recompile()
    return names


def inlined(model: torch.fx.GraphModule, name: str) -> None:
    """Replaces each call of a module by the module's nodes: undoes `outlined`."""
    inner: Any = model.get_submodule(name)
    for call in model.graph.find_nodes(op="call_module", target=name):
        places = dict(zip(placeholders(inner.graph), call.args, strict=True))
        with model.graph.inserting_before(call):
            made: Any = model.graph.graph_copy(inner.graph, places)
        replace_call(call, made)
    model.delete_submodule(name)


def replace_call(call: Any, made: Any) -> None:
    """Replaces a module's call by nodes: one for its result, or one for each of several."""
    if isinstance(made, torch.fx.Node):
        call.replace_all_uses_with(made)
    else:
        for user in [*call.users]:  # each takes one result
            user.replace_all_uses_with(made[user.args[1]])
            call.graph.erase_node(user)
    call.graph.erase_node(call)


def subgraph(part: Part, read: Sequence[Any], results: Sequence[Any]) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    for i, x in enumerate(read):
        copies[x] = graph.placeholder(f"x{i}")
        copies[x].meta = dict(x.meta)
    for n in part:
        copies[n] = graph.node_copy(n, copies.__getitem__)
    made = tuple(copies[n] for n in results)
    graph.output(made[0] if len(made) == 1 else made)
    return graph


def made_adjacent(graph: torch.fx.Graph, parts: Sequence[Part]) -> None:
    """Sorts the graph topologically so that the nodes of each part are adjacent; of several orders the one that is
    nearest to the graph's."""
    place = {n: i for i, n in enumerate(graph.nodes)}
    groups = {n: part for part in parts for n in part}
    first = {n: place[groups.get(n, [n])[0]] for n in place}
    members = {first[n]: groups.get(n, [n]) for n in place}
    behind: dict[int, set[int]] = {i: set() for i in members}
    for n in place:
        for user in n.users:
            if first[user] != first[n]:
                behind[first[n]].add(first[user])
    waits = Counter(i for some in behind.values() for i in some)
    ready = [i for i in members if not waits[i]]
    heapq.heapify(ready)
    end = next(n for n in place if n.op == "output")
    while ready:
        i = heapq.heappop(ready)
        for n in members[i]:
            if n is not end:
                end.prepend(n)
        for j in behind[i]:
            waits[j] -= 1
            if not waits[j]:
                heapq.heappush(ready, j)
