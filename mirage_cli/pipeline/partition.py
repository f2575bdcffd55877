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
from mirage_cli.pipeline.symbols import SYMBOLIC, is_size, is_symbol, placeholders, shape_of
from mirage_cli.spec.aten.creation import filled_with
from mirage_cli.spec.aten.row import APART, overloadless
from mirage_cli.spec.aten.trace import inverse, memory_order, row_of, strides_of, supported

aten = torch.ops.aten

MOST_PRODUCTS, MOST_NODES, MOST_ALONE = 3, 20, 60
"""Of one region, with products and without: more than that, and the search takes minutes."""
UNCUT_BYTES = 1 << 60
"""The cost of a cut where a mask, whole numbers, several tensors of one node, or a rematerialisable value are live."""
LAUNCH_BYTES = 8 << 20
"""The cost of one more kernel, in bytes that could be moved meanwhile (2 µs at 4 TB/s)."""
SEARCH_BYTES = 4 * LAUNCH_BYTES
"""The cost of a region that is not one of several equal ones. It has the first and the last of equal layers cut as the
layers between them."""

Part = list[Any]
"""Nodes in the order of their graph."""
Signature = tuple[Any, ...]


# -- rematerialisation: what each user may compute for itself


def rematerialisable(graph: torch.fx.Graph, refused: Container[Any] = ()) -> frozenset[Any]:
    """The nodes whose value each user may compute for itself: elements of the model's inputs in another place, and
    whole numbers and masks that follow from positions and whole numbers."""
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


def without_dead_code(graph: torch.fx.Graph) -> None:
    """Erases operators whose result nothing reads."""
    for n in reversed(calls(graph)):
        if not n.users and known_call(n, ()):
            graph.erase_node(n)


def fills_of_own_shape(graph: torch.fx.Graph) -> None:
    """A tensor filled with one number no longer reads the tensor that it takes its shape from, where its sizes are
    numbers.

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


def without_empty(graph: torch.fx.Graph) -> None:
    """What is put behind each other leaves out tensors without elements, where the type of the whole stays.

    cat([full([2, 0, 7], 0.0), x], 1)    -->    cat([x], 1)
    """
    for n in calls(graph):
        if not row_of(n).joins:
            continue
        some = [x for x in n.args[0] if all(is_symbol(size) or size for size in shape_of(x))]
        if some and any(x.meta["val"].dtype == n.meta["val"].dtype for x in some):
            n.args = some, *n.args[1:]


def known_call(node: Any, refused: Container[Any]) -> bool:
    return node.op == "call_function" and node not in refused and supported(node) and not changed(node)


def floating(node: Any) -> bool:
    value = node.meta.get("val")
    whole = isinstance(value, int | torch.SymInt)
    return not whole and (not isinstance(value, torch.Tensor) or value.is_floating_point())


def rematerialised(graph: torch.fx.Graph) -> None:
    """Copies what is rematerialisable, once for each node that is not and reads it, by others or itself. Each copy
    stands right in front of its first user."""
    remat = rematerialisable(graph)
    reader: dict[Any, Any] = {}
    for n in reversed(calls(graph)):
        if n not in remat:
            continue
        users: dict[Any, Part] = {}
        for user in n.users:
            users.setdefault(reader.get(user, user), []).append(user)
        for i, (last, some) in enumerate(users.items()):
            with graph.inserting_before(min(some)):
                own = graph.node_copy(n) if i else n
            min(some).prepend(own)
            reader[own] = last
            for user in some:
                user.replace_input_with(n, own)


def aliased_results(graph: torch.fx.Graph) -> set[Any]:
    """Results of the graph that share memory with another result or with an input: who changes the one changes the
    other, so PyTorch makes them. Each becomes a copy of its view, for the result alone."""
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
    """Equal for nodes whose tensors lie in the same memory: the storage, or a node that is no tensor itself."""
    value = node.meta.get("val")
    return StorageWeakRef(value.untyped_storage()).cdata if isinstance(value, torch.Tensor) else node


def in_memory_of_others(node: Any) -> bool:
    return any(memory_of(x) == memory_of(node) for x in node.all_input_nodes)


def is_view(node: Any) -> bool:
    """Whether a node makes a view of what it reads."""
    return in_memory_of_others(node) and not changed(node)


# -- levels


def segments(graph: torch.fx.Graph, refused: set[Any]) -> list[Part]:
    """The nodes of each region.

    Each level is cut twice: the second time, a part whose signature the first cut found several times costs no search.
    """
    if not in_order(graph):
        return []  # what is read before and behind the change may not be moved past it
    remat = rematerialisable(graph, refused)
    found = levels(graph, refused, remat)
    first = [signature(part)[0] for nodes in found for part in level_parts(nodes, remat)]
    often = {s for s, count in Counter(first).items() if count > 1}
    parts = (part for nodes in found for part in level_parts(nodes, remat, often))
    return [part for part in parts if any(computes(n, remat) for n in part)]


def computes(node: Any, remat: Container[Any]) -> bool:
    """Whether a node is worth a region: it does more than move elements, and is not rematerialisable or is a result of
    the graph in floating point. remat: as of `rematerialisable`."""
    result = floating(node) and any(u.op == "output" for u in node.users)
    return not row_of(node).moves and (result or node not in remat)


def levels(graph: torch.fx.Graph, refused: Container[Any], remat: Container[Any]) -> list[Part]:
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
        if APART in n.meta and all(x.op in GIVEN or is_size(x) or x in remat for x in n.all_input_nodes):
            early.add(n)
        elif n not in refused and supported(n) and (not taken or n.args[0] in known):
            known.add(n)
        elif not taken:
            unknown.add(n)
        behind = (level.get(x, 0) + (x in known and bool(changed(x))) for x in n.all_input_nodes)
        level[n] = max(behind, default=0) + (n in unknown)
    found: dict[int, Part] = {}
    for n in reversed(calls(graph)):
        if n in known and n in remat:
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


def level_parts(nodes: Sequence[Any], remat: Container[Any], often: Iterable[Signature] = ()) -> list[Part]:
    """The nodes of a level cut where the least has to be stored, into parts that are no larger than a search takes.
    remat: as of `rematerialisable`; these stay with their user, and do not count.

    best[i] = min over j of best[j] + live_bytes[j] + (launches of nodes j to i) + (the search, where it is a new one):
    the cost of the first i nodes. Of equal cuts the last is taken: a cheap operator stays with the node it reads.
    """
    rows = [row_of(n) for n in nodes]
    work = [not row.moves and floating(n) and n not in remat for row, n in zip(rows, nodes, strict=True)]
    live = live_bytes(nodes, remat)
    known = recognised(nodes, often)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for i in range(1, len(nodes) + 1):
        options: list[tuple[float, int]] = []
        products = count = 0
        after = 0  # kernels that run after the last product
        for j in range(i - 1, -1, -1):
            after = after if products else max(after, rows[j].behind)
            products, count = products + rows[j].products, count + work[j]
            if (products > MOST_PRODUCTS or count > (MOST_NODES if products else MOST_ALONE)) and j < i - 1:
                break
            cost = (after * LAUNCH_BYTES if products else 0) + (live[j] + LAUNCH_BYTES if j else 0)
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


def live_bytes(nodes: Sequence[Any], remat: Container[Any]) -> list[int]:
    """For each place of a cut the bytes that are live there: made in front of it, and read behind it. remat: as of
    `rematerialisable`."""
    at = {n: i for i, n in enumerate(nodes)}
    steps = [0] * (len(nodes) + 1)
    for i, n in enumerate(nodes):
        last = max((at[u] for u in n.users if u in at), default=i)
        passed = bytes_of(n) if is_handed_on(n) and n not in remat else UNCUT_BYTES
        steps[i + 1] += passed
        steps[last + 1] -= passed
    return [*accumulate(steps)][: len(nodes)]


def is_handed_on(node: Any) -> bool:
    """Whether the graph may be cut behind a node: it makes one tensor of floating-point numbers. Masks and indices are
    not stored between regions: they are cheap, and a kernel that knows how they are computed skips what they hide."""
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
