"""Which nodes of a PyTorch graph become one region: what the search takes whole, cut where little passes.

graph ─► levels of what is known ─► cuts of each level ─► parts, of which equal ones have equal signatures
"""

from __future__ import annotations

import heapq
import operator
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any  # torch's graphs and nodes, which have few types

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from mirage_cli.pipeline.inplace import CHANGED, GIVEN, calls, changed, in_order
from mirage_cli.pipeline.symbols import SYMBOLIC, is_size, placeholders, shape_of
from mirage_cli.spec.aten.creation import filled_with
from mirage_cli.spec.aten.row import APART, overloadless
from mirage_cli.spec.aten.trace import inverse, memory_order, row_of, strides_of, supported

aten = torch.ops.aten

MOST_PRODUCTS, MOST_NODES = 3, 20
"""Of one region: more than that, and the search takes minutes."""
UNCUT_BYTES = 1 << 60
"""Where masks, whole numbers, several tensors at once, or what each user makes for itself would pass."""
LAUNCH_BYTES = 8 << 20
"""What a kernel more costs, as bytes that could be moved meanwhile (2 µs at 4 TB/s)."""
SEARCH_BYTES = 4 * LAUNCH_BYTES
"""What a region costs for which no equal one is known, so that the first and the last of equal layers are cut as they
are."""

Part = list[Any]
"""Nodes in the order of their graph."""
Signature = tuple[Any, ...]


# -- what each user makes for itself


def made_anew(graph: torch.fx.Graph, refused: Container[Any] = ()) -> frozenset[Any]:
    """The nodes whose value each user may make for itself: it is what the model is given, moved, or a count with
    positions and whole numbers."""
    moved, counted = set[Any](), set[Any]()
    for n in graph.nodes:
        if not known_call(n, refused):
            continue
        read = n.all_input_nodes
        if row_of(n).moves and all(x.op in GIVEN or is_size(x) or x in moved for x in read):
            moved.add(n)
        if all(not floating(x) or x in counted for x in read):
            counted.add(n)
    return frozenset(moved | counted)


def without_unread(graph: torch.fx.Graph) -> None:
    """Takes away what only computes a value that nothing reads."""
    for n in reversed(calls(graph)):
        if not n.users and known_call(n, ()):
            graph.erase_node(n)


def by_sizes(graph: torch.fx.Graph) -> None:
    """Makes tensors of one number that are made like another tensor of their sizes alone, where these are numbers.

    zeros_like(x)    -->    full([2, 7], 0.0, ...)
    """
    for n in calls(graph):
        value = n.meta.get("val")
        if not n.all_input_nodes or not isinstance(value, torch.Tensor) or (number := filled_with(n)) is None:
            continue
        order = memory_order(value)
        if not value.permute(order).is_contiguous() or not all(isinstance(size, int) for size in shape_of(n)):
            continue
        sizes = [value.shape[d] for d in order]
        options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        with graph.inserting_before(n):
            full = graph.call_function(aten.full.default, (sizes, number), options)
            made = graph.call_function(aten.permute.default, (full, inverse(order)))
        full.meta, made.meta = n.meta | {"val": value.permute(order)}, dict(n.meta)
        n.replace_all_uses_with(made)
        graph.erase_node(n)


def known_call(node: Any, refused: Container[Any]) -> bool:
    return node.op == "call_function" and node not in refused and supported(node) and not changed(node)


def floating(node: Any) -> bool:
    value = node.meta.get("val")
    whole = isinstance(value, int | torch.SymInt)
    return not whole and (not isinstance(value, torch.Tensor) or value.is_floating_point())


def with_own(graph: torch.fx.Graph) -> None:
    """Copies what may be made anew, until each copy has one user, right behind it."""
    anew = made_anew(graph)
    for n in reversed(calls(graph)):
        if n in anew:
            for user in [*n.users][1:]:
                with graph.inserting_before(user):
                    user.replace_input_with(n, graph.node_copy(n))
            for user in n.users:
                user.prepend(n)


def seen_views(graph: torch.fx.Graph) -> set[Any]:
    """Views that the graph returns beside what they are views of, or of what it is given: who changes the one changes
    the other. Each gets a copy that nothing else reads."""
    returned = [memory_of(x) for n in graph.find_nodes(op="output") for x in n.all_input_nodes]
    given = {memory_of(n) for n in graph.nodes if n.op in GIVEN}
    seen = given | {m for m, count in Counter(returned).items() if count > 1}
    found: set[Any] = set()
    for n in reversed(calls(graph)):
        results = [u for u in n.users if u.op == "output" or u in found]
        if not results or not in_memory_of_others(n) or memory_of(n) not in seen:
            continue
        with graph.inserting_after(n):
            copy = graph.node_copy(n)
        for u in results:
            u.replace_input_with(n, copy)
        found.add(copy)
        if not n.users:
            graph.erase_node(n)
    return found


def memory_of(node: Any) -> object:
    """What is the same for nodes whose tensors lie in the same memory."""
    value = node.meta.get("val")
    return StorageWeakRef(value.untyped_storage()).cdata if isinstance(value, torch.Tensor) else node


def in_memory_of_others(node: Any) -> bool:
    return any(memory_of(x) == memory_of(node) for x in node.all_input_nodes)


def is_view(node: Any) -> bool:
    """Whether a node is another look at what it reads."""
    return in_memory_of_others(node) and not changed(node)


# -- levels


def segments(graph: torch.fx.Graph, refused: set[Any]) -> list[Part]:
    """The nodes of each region.

    Each level is cut on its own, and then again with what turned out to be there several times for nothing.
    """
    if not in_order(graph):
        return []  # what is read before and behind the change may not be moved past it
    anew = made_anew(graph, refused)
    found = levels(graph, refused, anew)
    first = [signature(part)[0] for nodes in found for part in pieces(nodes, anew)]
    often = {s for s, count in Counter(first).items() if count > 1}
    parts = (part for nodes in found for part in pieces(nodes, anew, often))
    return [part for part in parts if any(computes(n, anew) for n in part)]


def computes(node: Any, anew: Container[Any]) -> bool:
    """Whether it is worth a region. Counts are, where they are results of the graph. anew: as of `made_anew`."""
    result = floating(node) and any(u.op == "output" for u in node.users)
    return not row_of(node).moves and (result or node not in anew)


def levels(graph: torch.fx.Graph, refused: Container[Any], anew: Container[Any]) -> list[Part]:
    """The nodes that are known here, by level: how many nodes that are not stand in front, one behind the other, or
    that change a tensor in place.

    No node of a level is both before and behind one that is not known, so any of its nodes may be one region. Nor does
    one read what another changes. Those that read one value are side by side, wherever the model has them.
    """
    level: dict[Any, int] = {}
    known: set[Any] = set()
    unknown: set[Any] = set()
    early: set[Any] = set()  # in front of all
    for n in [n for n in calls(graph) if not is_size(n)]:
        taken = overloadless(n.target) == "getitem"  # with what makes several tensors
        if APART in n.meta and all(x.op in GIVEN or is_size(x) or x in anew for x in n.all_input_nodes):
            early.add(n)
        elif n not in refused and supported(n) and (not taken or n.args[0] in known):
            known.add(n)
        elif not taken:
            unknown.add(n)
        behind = (level.get(x, 0) + (x in known and bool(changed(x))) for x in n.all_input_nodes)
        level[n] = max(behind, default=0) + (n in unknown)
    found: dict[int, Part] = {}
    for n in reversed(calls(graph)):
        if n in known and n in anew:
            if n.users and early >= {*n.users}:
                early.add(n)
                continue
            if not any(u in known or u.op == "output" for u in {*n.users} - early):  # PyTorch makes it for itself
                known.remove(n)
                continue
            level[n] = min((level.get(u, level[n]) - (u in unknown) for u in n.users), default=level[n])
        if n in known:
            found.setdefault(level[n], []).append(n)
    return [nodes[::-1] for _, nodes in sorted(found.items())]


# -- cuts


def pieces(nodes: Sequence[Any], anew: Container[Any], often: Iterable[Signature] = ()) -> list[Part]:
    """The nodes of a level cut where the least has to be stored, into parts that are no larger than a search takes.
    anew: as of `made_anew`; these stay with their user, and do not count.

    best[i] = min over j of best[j] + the bytes that pass at j + the kernels of nodes j to i, for the first i nodes.
    Of equal cuts the last is taken: it leaves what is cheap with what it follows.
    """
    rows = [row_of(n) for n in nodes]
    work = [not row.moves and floating(n) and n not in anew for row, n in zip(rows, nodes, strict=True)]
    passing = seams(nodes, anew)
    known = recognised(nodes, often)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for i in range(1, len(nodes) + 1):
        options: list[tuple[float, int]] = []
        products = count = 0
        late = 0  # kernels behind the last product
        for j in range(i - 1, -1, -1):
            late = late if products else max(late, rows[j].behind)
            products, count = products + rows[j].products, count + work[j]
            if (products > MOST_PRODUCTS or count > MOST_NODES) and j < i - 1:
                break
            cost = (late * LAUNCH_BYTES if products else 0) + (passing[j] + LAUNCH_BYTES if j else 0)
            fresh = 0 if known(j, i) or not products else SEARCH_BYTES
            options.append((best[j][0] + cost + fresh, j))
        best.append(min(options, key=lambda x: (x[0], -x[1])))
    ends = [len(nodes)]
    while ends[-1]:
        ends.append(best[ends[-1]][1])
    return [list(nodes[a:b]) for a, b in pairwise(reversed(ends))]


def recognised(nodes: Sequence[Any], often: Iterable[Signature]) -> Callable[[int, int], bool]:
    """Whether the nodes from one place to another have one of these signatures."""
    wanted = {*often}
    outlines = {(len(s[0]), s[0][0][0], s[0][-1][0]) for s in wanted}

    def known(start: int, end: int) -> bool:
        outline = end - start, nodes[start].target, nodes[end - 1].target
        return outline in outlines and signature(nodes[start:end])[0] in wanted

    return known


def seams(nodes: Sequence[Any], anew: Container[Any]) -> list[int]:
    """Bytes that the nodes before each place hand to those from there on. anew: as of `made_anew`."""
    at = {n: i for i, n in enumerate(nodes)}
    steps = [0] * (len(nodes) + 1)
    for i, n in enumerate(nodes):
        last = max((at[u] for u in n.users if u in at), default=i)
        passed = bytes_of(n) if is_handed_on(n) and n not in anew else UNCUT_BYTES
        steps[i + 1] += passed
        steps[last + 1] -= passed
    return [*accumulate(steps)][: len(nodes)]


def is_handed_on(node: Any) -> bool:
    """Whether one region may hand it to another: one tensor of floating-point numbers. Masks and indices are cheap, and
    what a kernel knows of how they were made is lost in memory."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def bytes_of(node: Any) -> int:
    value = node.meta.get("val")
    some = value if isinstance(value, list | tuple) else [value]
    return sum(x.numel() * x.element_size() for x in some if isinstance(x, torch.Tensor))


def outputs_of(part: Iterable[Any]) -> list[Any]:
    """What others read of a part, and what it changes in place."""
    own = {*part}
    return [n for n in part if any(u not in own for u in n.users) or changed(n)]


def signature(part: Sequence[Any]) -> tuple[Signature, list[Any]]:
    """What a part computes, whatever its nodes are called, and the nodes that it reads, in order. Parts of one
    signature are one program."""
    own = {n: i for i, n in enumerate(part)}
    read: dict[Any, int] = {}

    def of(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return tuple(map(of, x))
        if not isinstance(x, torch.fx.Node):
            return type(x), x
        if x in own:
            return "made", own[x]
        fresh = x not in read
        return "read", read.setdefault(x, len(read)), tensor_of(x) if fresh else ()

    nodes = tuple((n.target, of(n.args), tuple((k, of(x)) for k, x in n.kwargs.items())) for n in part)
    return (nodes, tuple(own[n] for n in outputs_of(part))), [*read]


def tensor_of(node: Any) -> tuple[Any, ...]:
    value = node.meta.get("val")
    symbolic = node.meta.get(SYMBOLIC, value)
    if not isinstance(value, torch.Tensor):
        return type(symbolic), str(symbolic) if isinstance(symbolic, torch.SymInt) else ""
    layout = tuple(map(str, symbolic.shape)), tuple(map(str, symbolic.stride())), strides_of(node)
    return *layout, value.dtype, value.device, node.meta.get("scale"), APART in node.meta


# -- modules


def fused(model: torch.fx.GraphModule, parts: Sequence[Part], prefix: str) -> dict[Signature, str]:
    """Puts a call of a module in the place of each part; equal parts have one module. The names of the modules.

    The arguments are what a part reads, and the results what others read of it, both as in its signature.
    """
    arranged(model.graph, parts)
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


def unfused(model: torch.fx.GraphModule, name: str) -> None:
    """Puts in the place of each call of a module what it was made of."""
    inner: Any = model.get_submodule(name)
    for call in model.graph.find_nodes(op="call_module", target=name):
        places = dict(zip(placeholders(inner.graph), call.args, strict=True))
        with model.graph.inserting_before(call):
            made: Any = model.graph.graph_copy(inner.graph, places)
        replaced_by(call, made)
    model.delete_submodule(name)


def replaced_by(call: Any, made: Any) -> None:
    """Gives who reads a module's call the nodes that were made for it: of its result, or of each of several."""
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


def arranged(graph: torch.fx.Graph, parts: Sequence[Part]) -> None:
    """Puts the nodes of each part side by side, and otherwise leaves the order as far as it can be left."""
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
