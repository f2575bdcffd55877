"""Which nodes of a PyTorch graph become one region: what the search takes whole, cut where little passes.

graph ─► levels of what is known ─► cuts of each level ─► parts, of which equal ones have equal signatures
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any  # torch's graphs and nodes, which have few types

import torch

from mirage_cli.pipeline.models.inplace import GIVEN, calls, changed, in_order
from mirage_cli.pipeline.models.passes import STEP, floating, rematerialisable
from mirage_cli.pipeline.models.symbols import is_size
from mirage_cli.spec.aten.memory import strides_of
from mirage_cli.spec.aten.row import APART, SYMBOLIC, overloadless
from mirage_cli.spec.aten.trace import row_of, supported

FEW_PRODUCTS, MOST_PRODUCTS, MOST_NODES, MOST_ALONE = 3, 6, 20, 60
"""Of one region, with products and without: more than that, and the search takes minutes."""
UNCUT_BYTES = 1 << 60
"""The cost of a cut where a mask, whole numbers, several tensors of one node, or a rematerialisable value are live."""
LAUNCH_BYTES = 8 << 20
"""The cost of one more kernel, in bytes that could be moved meanwhile (2 µs at 4 TB/s)."""
SEARCH_BYTES = 4 * LAUNCH_BYTES
"""The cost of a region that is not one of several equal ones. It has the first and the last of equal layers cut as the
layers between them."""
PRODUCT_BYTES = 8 * LAUNCH_BYTES
"""The cost of each product of a region behind a few, for which the search takes seconds longer: less than that of the
scores that the derivative of attention would store."""

Part = list[Any]
"""Nodes in the order of their graph."""
Signature = tuple[Any, ...]


# -- levels


def segments(graph: torch.fx.Graph, refused: set[Any], stored: Container[Any] = ()) -> list[Part]:
    """The nodes of each region. stored: nodes that no region has beside those that read them.

    Each level is cut twice: the second time, a part whose signature the first cut found several times costs no search.
    """
    if not in_order(graph):
        return []  # what is read before and behind the change may not be moved past it
    remat = rematerialisable(graph, refused)
    found = levels(graph, refused, remat, stored)
    first = [signature(part)[0] for nodes in found for part in level_parts(nodes, remat)]
    often = {s for s, count in Counter(first).items() if count > 1}
    parts = (part for nodes in found for part in with_readers(level_parts(nodes, remat, often)))
    return [part for part in parts if any(computes(n, remat) for n in part)]


def computes(node: Any, remat: Container[Any]) -> bool:
    """Whether a node is worth a region: it does more than move elements, and is not rematerialisable or is a result of
    the graph in floating point. remat: as of `rematerialisable`."""
    result = floating(node) and any(u.op == "output" for u in node.users)
    return not row_of(node).moves and (result or node not in remat)


def levels(graph: torch.fx.Graph, refused: Container[Any], remat: Container[Any], stored: Container[Any]) -> list[Part]:
    """The nodes that are known here, by level: how many nodes that are not stand in front, one behind the other, or
    that change a tensor in place, or are to be stored. Those of a step's part of a tensor (`STEP`) count as one.

    No node of a level is both before and behind one that is not known, so any of its nodes may be one region. Nor does
    one read what another changes. Those that read one value are side by side, wherever the model has them.
    """
    level: dict[Any, int] = {}
    known: set[Any] = set()
    unknown: set[Any] = set()
    early: set[Any] = set()  # in front of all
    given: set[Any] = set()  # what may be worked out again of the graph's inputs alone
    for n in [n for n in calls(graph) if not is_size(n)]:
        taken = overloadless(n.target) == "getitem"  # with what makes several tensors
        of_given = all(x.op in GIVEN or is_size(x) or x in given or x in early for x in n.all_input_nodes)
        if of_given and n in remat:
            given.add(n)
        if of_given and APART in n.meta:
            early.add(n)
        elif n not in refused and supported(n) and (not taken or n.args[0] in known):
            known.add(n)
        elif not taken:
            unknown.add(n)
        ends = {x for x in n.all_input_nodes if x in known and (changed(x) or x in stored)}
        behind = (level.get(x, 0) + (x in ends) for x in n.all_input_nodes)
        within = any(STEP in x.meta for x in n.all_input_nodes if STEP in n.meta)
        level[n] = max(behind, default=0) + (n in unknown and not within)
    found: dict[int, Part] = {}
    for n in reversed(calls(graph)):
        if n in known and n in remat:
            if n.users and early >= {*n.users}:
                early.add(n)
                continue
            alone = not any(u in known or u.op == "output" for u in {*n.users} - early)
            if n in given and alone:  # PyTorch works it out: no kernel reads it
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

    best[i] = min over j of best[j] + live_bytes[j] + (launches of nodes j to i) + (the search, where it is a new one) +
    (products of nodes j to i behind a few): the cost of the first i nodes. Of equal cuts the last is taken: a cheap
    operator stays with the node it reads.
    """
    rows = [row_of(n) for n in nodes]
    work = [not row.moves and floating(n) and n not in remat for row, n in zip(rows, nodes, strict=True)]
    multiplied, behind = [row.products for row in rows], [row.behind for row in rows]
    first = [live + LAUNCH_BYTES if j else 0 for j, live in enumerate(live_bytes(nodes, remat))]
    known = recognised(nodes, often)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for i in range(1, len(nodes) + 1):
        least, start = math.inf, i - 1
        products = count = 0
        after = 0  # kernels that run after the last product
        for j in range(i - 1, -1, -1):
            if not products and behind[j] > after:
                after = behind[j]
            products, count = products + multiplied[j], count + work[j]
            if (products > MOST_PRODUCTS or count > (MOST_NODES if products else MOST_ALONE)) and j < i - 1:
                break
            cost = best[j][0] + first[j]
            if products:
                cost += after * LAUNCH_BYTES + PRODUCT_BYTES * max(0, products - FEW_PRODUCTS)
                cost += 0 if known(j, i) else SEARCH_BYTES
            if cost < least:
                least, start = cost, j
        best.append((least, start))
    ends = [len(nodes)]
    while ends[-1]:
        ends.append(best[ends[-1]][1])
    return [list(nodes[a:b]) for a, b in pairwise(reversed(ends))]


def with_readers(parts: Sequence[Part]) -> list[Part]:
    """What only moves elements that another part makes, and is read by one other alone, is in that, and what PyTorch
    alone reads of it in none: no kernel has to copy it."""
    at: dict[Any, int | None] = {n: i for i, part in enumerate(parts) for n in part}
    passed = set[Any]()  # moves elements of other parts
    for n in (n for part in parts for n in part):
        if row_of(n).moves and all(x in passed or at.get(x) != at[n] for x in n.all_input_nodes):
            passed.add(n)
    for n in reversed([n for part in parts for n in part]):
        reader, *others = {at.get(u) for u in n.users} or {None}
        result = any(u.op == "output" for u in n.users)
        if n in passed and not others and n.users and not result:
            at[n] = reader
    return [[n for one in parts for n in one if at[n] == i] for i in range(len(parts))]


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
