"""How the results of a graph lie in memory, with kernels in it: as PyTorch's do."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any  # torch's graphs and nodes, which have few types

import torch

from mirage_cli.pipeline.models.region import Region, Shape
from mirage_cli.spec.aten.row import overloadless

aten = torch.ops.aten


def strides_of_results(graph: torch.fx.Graph) -> list[list[Any]]:
    """How the graph's results lie in memory, if they are tensors."""
    (output,) = graph.find_nodes(op="output")
    values = [x.meta.get("val") if isinstance(x, torch.fx.Node) else None for x in output.args[0]]
    return [[*x.stride()] if isinstance(x, torch.Tensor) else [] for x in values]


def with_strides(graph: torch.fx.Graph, strides: Sequence[list[Any]], copy: Any = aten.copy.default) -> None:
    """Copies results that lie otherwise than PyTorch's, since kernels leave no gaps: the backward graph is made for
    what the forward graph's said. Where sizes differ by call, they stay as they are. copy: the operator that does."""
    (output,) = graph.find_nodes(op="output")
    made: list[Any] = []
    for x, wanted, now in zip(output.args[0], strides, strides_of_results(graph), strict=True):
        made.append(x)
        sizes = [*x.meta["val"].shape] if now else []
        if not all(isinstance(n, int) for n in (*sizes, *now, *wanted)):
            continue
        if all(n == 1 or i == j for n, i, j in zip(sizes, now, wanted, strict=True)):
            continue
        with graph.inserting_before(output):
            place = graph.call_function(aten.new_empty_strided.default, (x, sizes, wanted))
            made[-1] = graph.call_function(copy, (place, x))
        made[-1].meta["val"] = x.meta["val"].new_empty_strided(sizes, wanted)
    output.args = (type(output.args[0])(made),)


def laid_out(graph: torch.fx.Graph, regions: Sequence[Region], by_kernels: Container[str]) -> None:
    """Copies results of a graph that are regions' and lie otherwise than PyTorch's: with gaps, or several elements in
    one place. by_kernels: the modules of regions that have a kernel. Where sizes differ by call, they stay as they are.
    """
    strides, of = strides_of_results(graph), {r.module: r for r in regions}
    (output,) = graph.find_nodes(op="output")
    for x in output.all_input_nodes:
        call, i = x.args if overloadless(x.target) == "getitem" else (x, 0)
        if call.op != "call_module" or call.target not in by_kernels:
            continue
        result, value = of[call.target].results[i], x.meta["val"]
        if isinstance(result, Shape) and not result.symbols:
            x.meta = x.meta | {"val": result.of(value.new_empty(result.held), {})}
    with_strides(graph, strides, aten.copy_.default)  # which has a derivative
