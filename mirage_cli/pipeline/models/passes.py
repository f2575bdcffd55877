"""Passes over a PyTorch graph before it is cut: rematerialisation, dead code, fills, empty tensors, masks of dropouts,
memory that is read by strides, aliased results."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Container, Mapping
from typing import Any  # torch's graphs and nodes, which have few types

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from mirage_cli.pipeline.models.inplace import GIVEN, calls, changed, in_order
from mirage_cli.pipeline.models.symbols import is_size, is_symbol, shape_of
from mirage_cli.spec.aten.creation import filled_with
from mirage_cli.spec.aten.memory import inverse, memory_order, order_of_result
from mirage_cli.spec.aten.row import APART, overloadless
from mirage_cli.spec.aten.trace import row_of, supported

aten = torch.ops.aten


def rematerialisable(graph: torch.fx.Graph, refused: Container[Any] = ()) -> frozenset[Any]:
    """The nodes whose value each user may compute for itself: elements of the model's inputs, or of what a loop's step
    takes, in another place, and whole numbers and masks that follow from positions and whole numbers."""
    moved, counted = set[Any](), set[Any]()
    for n in graph.nodes:
        if not known_call(n, refused):
            continue
        read = n.all_input_nodes
        if row_of(n).moves and all(x.op in GIVEN or STEP in x.meta or is_size(x) or x in moved for x in read):
            moved.add(n)
        if all(not floating(x) or x in counted for x in read):
            counted.add(n)
    return frozenset(moved | counted)


STEP = "step"
"""Where a node says that it is a part that a loop's step takes of a tensor."""
STEPS = 8
"""Of one tensor, as many steps of a loop as may well be regions that differ in the number of the step."""
STEP_BYTES = 128
"""Steps lie so far apart in memory, or a multiple of it: a kernel reads a view of one as it reads a tensor. What lies
closer, as the gates of a step do, is copied apart where the steps of a loop take it beside others."""


def steps_apart(graph: torch.fx.Graph) -> set[Any]:
    """The views that the steps of a loop take of one tensor, right behind that tensor. No region has them: so regions
    of different steps are equal.

    select(x, 1, 0) ... tanh(h @ W + select(x, 1, 7))    -->    tanh(h @ W + x7), with x0, ..., x7 given
    """
    for n in graph.find_nodes(op="call_function", target=aten.unbind.int):
        if len(n.users) > STEPS:
            _as_selections(graph, n)
    found = set[Any]()
    loops: list[set[int]] = []
    several = _steps(graph)
    for steps in (steps for key, steps in several.items() if _lie_apart(key)):
        loops.append({*steps})
        found |= {_of_one(graph, same, same[0].args[0]) for same in steps.values()}
    for key, steps in several.items() if in_order(graph) else ():  # else it might be copied in front of a change
        if not _lie_apart(key) and any({*steps} <= loop for loop in loops):
            found |= _copied_apart(graph, key[2], steps)
    for n in found:
        n.meta[STEP] = True
    return found


def _steps(graph: torch.fx.Graph) -> dict[tuple[Any, ...], dict[int, list[Any]]]:
    """What more than a few steps of a loop may take, by whose part it is and how (`_step`), and the step's number."""
    views: dict[tuple[Any, ...], dict[int, list[Any]]] = {}
    for n in calls(graph):
        if (step := _step(n)) is not None:
            views.setdefault(step[:-1], {}).setdefault(step[-1], []).append(n)
    return {key: steps for key, steps in views.items() if len(steps) > STEPS}


def _lie_apart(key: tuple[Any, ...]) -> bool:
    """Whether a kernel reads a step where it lies."""
    whole, _, axis, _ = key
    value = whole.meta["val"]
    return value.stride(axis) * value.element_size() % STEP_BYTES == 0


def _of_one(graph: torch.fx.Graph, same: list[Any], whole: Any) -> Any:
    """The first of equal views, right behind what it is a view of, and in the place of the others."""
    first = next(iter(calls(graph)), graph.output_node())
    (first if whole.op in GIVEN else whole.next).prepend(same[0])
    for n in same[1:]:
        n.replace_all_uses_with(same[0])
        graph.erase_node(n)
    return same[0]


def _copied_apart(graph: torch.fx.Graph, axis: int, steps: Mapping[int, list[Any]]) -> set[Any]:
    """Has steps that lie close take their part of a copy in which they lie apart. Returns what no region has of that.

    select(x, 1, 7)    -->    view(slice(select(constant_pad_nd(view(x, ..), ..), 0, 7), 0, 0, n), ..)
    """
    whole = next(iter(steps.values()))[0].args[0]
    shape, size = [*whole.meta["val"].shape], whole.meta["val"].element_size()
    own = [n for d, n in enumerate(shape) if d != axis]
    count, made = math.prod(own), set[Any]()

    def call(operator: Any, x: Any, *args: Any) -> Any:
        new = graph.call_function(operator, (x, *args))
        new.meta["val"] = operator(x.meta["val"], *args)
        made.add(new)
        return new

    first = next(iter(calls(graph)), graph.output_node())
    with graph.inserting_before(first if whole.op in GIVEN else whole.next):
        turned = call(aten.permute.default, whole, [axis, *(d for d in range(len(shape)) if d != axis)])
        rows = call(aten.reshape.default, turned, [shape[axis], count])
        apart = call(aten.constant_pad_nd.default, rows, [0, -count % (STEP_BYTES // size)])
        for number, same in steps.items():
            row = call(aten.slice.Tensor, call(aten.select.int, apart, 0, number), 0, 0, count)
            part = call(aten.view.default, row, own)
            for n in same:
                n.replace_all_uses_with(part)
                graph.erase_node(n)
    return made


def _as_selections(graph: torch.fx.Graph, node: Any) -> None:
    """getitem(unbind(x, 1), 3)    -->    select(x, 1, 3)"""
    for x in [*node.users]:
        with graph.inserting_before(x):
            own = graph.call_function(aten.select.int, (node.args[0], (*node.args[1:], 0)[0], x.args[1]))
        own.meta = dict(x.meta)
        x.replace_all_uses_with(own)
        graph.erase_node(x)
    graph.erase_node(node)


def _step(node: Any) -> tuple[Any, ...] | None:
    """Of which tensor, by which operator, along which axis, how much of it, and from where on a node is a view that the
    step of a loop may take."""
    if node.target not in (aten.select.int, aten.slice.Tensor) or not is_view(node):
        return None
    whole, value = node.args[0], node.meta["val"]
    axis, start = (*node.args[1:3], 0, 0)[:2]
    numbers = (*shape_of(whole), *whole.meta["val"].stride(), start)
    if len(node.args) > 4 or not all(isinstance(n, int) for n in numbers):
        return None
    key = whole, node.target, axis % whole.meta["val"].dim(), value.shape
    return (*key, start) if node.target is aten.select.int or _lie_apart(key) else None


def rematerialised(graph: torch.fx.Graph, refused: Container[Any]) -> None:
    """Copies what is rematerialisable, once for each node that is not and reads it, by others or itself. Each copy
    stands right in front of its first user, or of what changes in place what it is made of."""
    remat = rematerialisable(graph, refused)
    changes = first_changes(graph, remat)
    reader: dict[Any, Any] = {}
    for n in reversed(calls(graph)):
        if n not in remat:
            continue
        users: dict[Any, list[Any]] = {}
        for user in n.users:
            users.setdefault(reader.get(user, user), []).append(user)
        for i, (last, some) in enumerate(users.items()):
            first = min([*some, *changes.get(n, ())])
            with graph.inserting_before(first):
                own = graph.node_copy(n) if i else n
            first.prepend(own)
            reader[own] = last
            for user in some:
                user.replace_input_with(n, own)


def first_changes(graph: torch.fx.Graph, remat: Container[Any]) -> dict[Any, list[Any]]:
    """For each of these nodes the first one behind it, if there is one, that changes in place what the node reads, or
    what others of them read of which it is made."""
    changes = [(c, {*map(memory_of, changed(c))}) for c in calls(graph) if changed(c)]
    reads: dict[Any, set[object]] = {}
    for n in graph.nodes if changes else ():
        if n in remat:
            own = n.all_input_nodes
            reads[n] = {*map(memory_of, own)}.union(*(reads[x] for x in own if x in reads))
    return {n: [c for c, some in changes if n < c and not some.isdisjoint(own)][:1] for n, own in reads.items()}


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
        filled(graph, n, number, order)


def zeros_in_memory(graph: torch.fx.Graph) -> None:
    """Zeros that PyTorch keeps no memory for (derivatives of what does not change) become tensors like others, and so
    does what is zero because of them: a kernel would read their memory.

    mul(x, _efficientzerotensor([2, 7]))    -->    full([2, 7], 0.0, ...)
    """
    for n in calls(graph):
        value = n.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value._is_zerotensor():
            continue
        if all(isinstance(size, int) for size in shape_of(n)):
            filled(graph, n, 0.0, order_of_result(value))


def drawn_apart(graph: torch.fx.Graph) -> None:
    """A dropout draws its mask of a tensor of its own, in front of all regions: so one region has what is computed in
    front of it and behind it. Where something else draws numbers too, they would be drawn in another order.

    native_dropout(x, 0.2, True)    -->    mul(mul(x, mask), 1.25),
                                           mask = getitem(native_dropout(empty_strided([2, 7], [7, 1]), 0.2, True), 1)
    """
    drawing = [n for n in calls(graph) if draws(n.target)]
    if any(n.target is not aten.native_dropout.default for n in drawing):
        return
    for n in drawing:
        x, share, training = n.args
        value = x.meta["val"]
        layout = (*value.shape, *value.stride())
        if not training or not 0 < share < 1 or not all(isinstance(i, int) for i in layout) or not floating(x):
            continue
        options = {"dtype": value.dtype, "device": value.device}
        with graph.inserting_before(n):
            own = graph.call_function(aten.empty_strided.default, ([*value.shape], [*value.stride()]), options)
            drawn = graph.call_function(n.target, (own, share, training))
            mask = graph.call_function(operator.getitem, (drawn, 1))
            kept = graph.call_function(aten.mul.Tensor, (x, mask))
            scaled = graph.call_function(aten.mul.Tensor, (kept, 1 / (1 - share)))
        own.meta, drawn.meta = {"val": torch.empty_like(value), APART: True}, {"val": n.meta["val"], APART: True}
        mask.meta = {"val": n.meta["val"][1], APART: True}
        kept.meta = scaled.meta = {"val": n.meta["val"][0]}
        for taken in [*n.users]:
            taken.replace_all_uses_with(mask if taken.args[1] else scaled)
            graph.erase_node(taken)
        graph.erase_node(n)


def draws(target: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def strided_in_memory(graph: torch.fx.Graph) -> None:
    """What reads memory by strides reads the tensor whose memory it is, not a view of it: a kernel's result has the
    elements of a view, and no gaps between them.

    as_strided(slice(x, 1, 0, None, 2), [2, 3], [8, 2])    -->    as_strided(x, [2, 3], [8, 2], 0)
    """
    for n in calls(graph):
        if overloadless(n.target) != "aten.as_strided":
            continue
        view, size, stride, *given = n.args
        whole, offset = viewed(view), given[0] if given else None
        if offset is None and whole.op not in GIVEN:
            offset = view.meta["val"].storage_offset()
        if offset is not None:
            n.args = whole, size, stride, offset


def viewed(node: Any) -> Any:
    """The node whose memory a view lies in, views of views and one of several views among them."""
    maker = node.args[0] if overloadless(node.target) == "getitem" else node
    read = [] if changed(maker) else maker.all_input_nodes
    of = next((x for x in read if memory_of(x) == memory_of(node)), None)
    return node if of is None else viewed(of)


def filled(graph: torch.fx.Graph, node: Any, number: float, order: tuple[int, ...]) -> None:
    """Replaces a node by a tensor that is filled with a number, whose positions lie in memory in this order."""
    value = node.meta["val"]
    sizes = [value.shape[d] for d in order]
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    with graph.inserting_before(node):
        full = graph.call_function(aten.full.default, (sizes, number), options)
        made = graph.call_function(aten.permute.default, (full, inverse(order)))
    with value.fake_mode:  # type: ignore[attr-defined]  # values of a traced graph
        whole = torch.empty(sizes, **options)
        full.meta, made.meta = node.meta | {"val": whole}, node.meta | {"val": whole.permute(inverse(order))}
    node.replace_all_uses_with(made)
    graph.erase_node(node)


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


def aliased_results(graph: torch.fx.Graph) -> set[Any]:
    """Results of the graph that share memory with another result or with an input: who changes the one changes the
    other, so PyTorch makes them. Each becomes a copy of its view, for the result alone."""
    returned = [memory_of(x) for n in graph.find_nodes(op="output") for x in n.all_input_nodes]
    given = {memory_of(n) for n in graph.nodes if n.op in GIVEN}
    seen = given | {m for m, count in Counter(returned).items() if count > 1}
    found: set[Any] = set()
    for n in reversed(calls(graph)):
        results = [u for u in n.users if u.op == "output" or u in found]
        of_several = any(u in found and overloadless(u.target) == "getitem" for u in results)
        if not results or not (of_several or (viewed(n) is not n and memory_of(n) in seen)):
            continue
        with graph.inserting_after(n):
            copy = graph.node_copy(n)
        for u in results:
            u.replace_input_with(n, copy)
        found.add(copy)
        if not n.users:
            graph.erase_node(n)
    return found


def known_call(node: Any, refused: Container[Any]) -> bool:
    return node.op == "call_function" and node not in refused and supported(node) and not changed(node)


def floating(node: Any) -> bool:
    value = node.meta.get("val")
    whole = isinstance(value, int | torch.SymInt)
    return not whole and (not isinstance(value, torch.Tensor) or value.is_floating_point())


def memory_of(node: Any) -> object:
    """Equal for nodes whose tensors lie in the same memory: the storage, or the node itself where it is no tensor, or
    a sparse one."""
    value = node.meta.get("val")
    dense = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return StorageWeakRef(value.untyped_storage()).cdata if dense else node


def in_memory_of_others(node: Any) -> bool:
    return any(memory_of(x) == memory_of(node) for x in node.all_input_nodes)


def is_view(node: Any) -> bool:
    """Whether a node makes a view of what it reads."""
    return in_memory_of_others(node) and not changed(node)
