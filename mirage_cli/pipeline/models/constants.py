"""Constant folding: what a graph computes of numbers alone.

Masks of a model's own text are made of positions. Where a tensor of integers or truth values turns out to be a number,
or positions along an axis, the graph makes it as such; the search knows what lies between two positions, and not what
a cumulative sum over comparisons of them is.

    cumsum(diff(arange(n)) != 1)    -->    full([n], 0)
    arange(n)[arange(n)] + 2        -->    arange(2, n + 2)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any  # torch's graphs and nodes have few types

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_map

from mirage_cli.pipeline.models.inplace import calls
from mirage_cli.pipeline.models.symbols import shape_of
from mirage_cli.spec.aten.row import APART, Named
from mirage_cli.spec.aten.trace import row_of, supported, written

MOST = 1 << 24
"""Elements of a tensor that is worked out to look at it."""
MANY = 256
"""Numbers from which on their deviation is looked at."""
aten = torch.ops.aten
Values = dict[Any, torch.Tensor]


def evaluated(model: torch.fx.GraphModule) -> Values:
    """The values of nodes that read no tensor of the model's, as PyTorch computes them where the model does. The value
    of an operator that has a row here has at most MOST elements."""
    values: Values = {}

    def value(x: Any) -> Any:
        return values.get(x, x) if isinstance(x, torch.fx.Node) else x

    for n in calls(model.graph):
        like = n.meta.get("val")
        drawn = torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())
        if drawn or written(n) or not isinstance(like, torch.Tensor) or any(x not in values for x in n.all_input_nodes):
            continue
        sized = all(isinstance(size, int) for size in shape_of(n))
        if not sized or (supported(n) and elements(like) > MOST):
            continue
        args, kwargs = tree_map(value, (n.args, n.kwargs), is_leaf=lambda x: isinstance(x, torch.fx.Node))
        with unset_fake_temporarily(), torch.no_grad():
            values[n] = n.target(*args, **kwargs)
    return values


def elements(tensor: torch.Tensor) -> int:
    """How many a tensor has in memory."""
    return math.prod(n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step)


def folded(model: torch.fx.GraphModule) -> None:
    """Replaces evaluated nodes: by numbers, by positions, or by a buffer of the model where their operator has no row
    here."""
    values = evaluated(model)
    with unset_fake_temporarily(), torch.no_grad():
        in_tables(model, values)
        for n, made in values.items():
            if not supported(n):
                instead = as_buffer(model, n, made)
            elif n.all_input_nodes and not row_of(n).moves and not made.is_floating_point() and not made.is_complex():
                instead = as_positions(model.graph, n, made.cpu())
            else:
                continue
            if instead is not None:
                n.replace_all_uses_with(instead)
                model.graph.erase_node(n)


def in_tables(model: torch.fx.GraphModule, values: Values) -> None:
    """Has rows be looked up by a table of the model, where their numbers are worked out of numbers alone, and are not
    counted: else a kernel would compare them with each row's."""
    known: dict[object, Any] = {}
    for n in calls(model.graph):
        places = row_of(n).named(n) if row_of(n).looks_up else ()
        made = [(named, varied(values[named.index])) for named in places if named.index in values]
        if all(is_counted(x) for _, x in made) or not all(is_table(*pair) for pair in made):
            continue
        for named, x in made:
            key = x.dtype, x.shape, x.numpy().tobytes()
            if key not in known:
                known[key] = as_buffer(model, named.index, x)
                known[key].meta[APART] = True  # each names a row, from the front
                next(iter(model.graph.nodes)).prepend(known[key])
            sizes = shape_of(named.index)
            with model.graph.inserting_before(n):
                whole = known[key]
                whole = whole if x.shape == sizes else called(model.graph, n, aten.expand.default, whole, [*sizes])
            n.replace_input_with(named.index, whole)


def varied(made: torch.Tensor) -> torch.Tensor:
    """A tensor with the first position alone of axes along which it is the same, on the CPU."""
    for axis in range(made.dim()):
        first = made.narrow(axis, 0, 1) if made.shape[axis] else made
        made = first if made.stride(axis) == 0 or bool((made == first).all()) else made
    return made.cpu().contiguous()


def is_table(named: Named, made: torch.Tensor) -> bool:
    """Whether these are numbers of rows that there are."""
    size = shape_of(named.of)[named.axis]
    whole = made.dtype in (torch.int32, torch.int64) and isinstance(size, int)
    return whole and made.numel() > 0 and 0 <= int(made.min()) <= int(made.max()) < size


def is_counted(made: torch.Tensor) -> bool:
    """Whether these are numbers along one axis, each as far from the last."""
    along = made.numel() == max(made.shape, default=1)
    return along and bool((made.flatten().diff().diff() == 0).all())


def as_buffer(model: torch.fx.GraphModule, node: Any, made: torch.Tensor) -> Any:
    """The node of a buffer of the model with this tensor."""
    model.register_buffer(f"made_{node.name}", made.to(node.meta["val"].device), persistent=False)
    with model.graph.inserting_before(node):
        found = model.graph.get_attr(f"made_{node.name}")
    like = node.meta["val"]
    found.meta = node.meta | {"val": like.new_empty(made.shape, dtype=made.dtype), "scale": scale_of(made)}
    return found


def scale_of(tensor: torch.Tensor) -> float | None:
    """The standard deviation of a parameter's data, as a power of 4: equal layers have equal programs."""
    if not tensor.is_floating_point() or tensor.numel() < MANY:
        return None
    deviation = float(tensor.detach().float().std())
    return 4.0 ** round(math.log(deviation, 4)) if 0 < deviation < math.inf else None


def as_positions(graph: torch.fx.Graph, node: Any, made: torch.Tensor) -> Any:
    """The tensor as a number or as positions along an axis; None where it is neither."""
    steps = [*steps_of(made)]
    if made.numel() == 0 or len(steps) > 1 or (steps and made.dtype == torch.bool):
        return None
    first = made.flatten()[0].item()
    axis, step = steps[0] if steps else (None, 0)
    like: dict[str, Any] = {"dtype": made.dtype, "device": made.device}
    of_steps = torch.full(made.shape, first, **like)
    if axis is not None:
        shape = [n if d == axis else 1 for d, n in enumerate(made.shape)]
        of_steps = of_steps + step * torch.arange(made.shape[axis], **like).view(shape)
    if not torch.equal(of_steps, made):
        return None
    options: dict[str, Any] = {"dtype": made.dtype, "device": node.meta["val"].device}
    with graph.inserting_before(node):
        if axis is None:
            return called(graph, node, aten.full.default, [*made.shape], first, **options)
        count = made.shape[axis]
        line = called(graph, node, aten.arange.start_step, first, first + step * count, step, **options)
        lying = called(graph, node, aten.view.default, line, [n if d == axis else 1 for d, n in enumerate(made.shape)])
        return called(graph, node, aten.expand.default, lying, [*made.shape])


def steps_of(made: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The axes along which a tensor's first two elements differ, and by how much."""
    for axis, n in enumerate(made.shape):
        if n > 1 and made.numel() > 0:
            line = made[tuple(slice(None) if d == axis else 0 for d in range(made.dim()))]
            if step := int(line[1]) - int(line[0]):
                yield axis, step


def called(graph: torch.fx.Graph, node: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """The node of a call, with its value."""
    found = graph.call_function(target, args, kwargs)
    values = tree_map(lambda x: x.meta["val"] if isinstance(x, torch.fx.Node) else x, args)
    with node.meta["val"].fake_mode:
        found.meta = node.meta | {"val": target(*values, **kwargs)}
    return found
