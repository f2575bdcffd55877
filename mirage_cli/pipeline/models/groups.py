"""Grouped products, each of whose groups of rows has a matrix, as products of rows that name their matrix: a kernel
reads it by address, and computes what stands around the product. What is in no kernel becomes PyTorch's again.

    _grouped_mm(x, w, ends)    -->    named = clamp(searchsorted(ends, arange(m), right=True), max=e - 1)
                                      by_matrix(x, w, named)

Rows behind the last end are any numbers, as PyTorch leaves them what its memory was.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any  # PyTorch's graphs and nodes, which have few types

import torch

from mirage_cli.pipeline.models.named import behind_what_it_reads

aten = torch.ops.aten
PARAMETERS = ("self", "mat2", "offs", "bias", "out_dtype")
"""Of PyTorch's operator."""


@torch.library.custom_op("mirage::by_matrix", mutates_args=())
def by_matrix(x: torch.Tensor, w: torch.Tensor, named: torch.Tensor) -> torch.Tensor:
    """The product of each row of x: [m, k] with the one of w: [e, k, n] that it names."""
    made = x.new_empty(x.shape[0], w.shape[2])
    for i in named.unique().tolist():
        rows = named == i
        made[rows] = x[rows] @ w[i]
    return made


@by_matrix.register_fake
def _(x: torch.Tensor, w: torch.Tensor, named: torch.Tensor) -> torch.Tensor:
    return x.new_empty(named.shape[0], w.shape[2])


def matrices_named(graph: torch.fx.Graph) -> None:
    """Has rows of grouped products name their matrices, where the sizes are the same in every call."""
    known: dict[Any, Any] = {}
    for n in graph.find_nodes(op="call_function", target=aten._grouped_mm.default):
        given = dict(zip(PARAMETERS, n.args, strict=False)) | n.kwargs
        x, w, ends, *rest = (given.get(name) for name in PARAMETERS)
        sizes = [size for y in (x, w) for size in y.meta["val"].shape]
        one_for_each_row = ends is not None and len(sizes) == 5 and w.meta["val"].dim() == 3
        if not one_for_each_row or rest != [None, None] or not all(isinstance(size, int) for size in sizes):
            continue
        rows, _, matrices, *_ = sizes
        if (ends, rows) not in known:
            known[ends, rows] = named_by(graph, ends, rows, matrices)
        replaced(graph, n, torch.ops.mirage.by_matrix.default, (x, w, known[ends, rows]))


def named_by(graph: torch.fx.Graph, ends: Any, rows: int, matrices: int) -> Any:
    """The node that holds the matrix of each row."""
    value = ends.meta["val"]
    places = behind_what_it_reads(graph, aten.arange.default, rows, dtype=value.dtype, device=value.device)
    found = behind_what_it_reads(graph, aten.searchsorted.Tensor, ends, places, right=True)
    named = behind_what_it_reads(graph, aten.clamp.default, found, None, matrices - 1)
    for node, dtype in ((places, value.dtype), (found, torch.int64), (named, torch.int64)):
        node.meta["val"] = value.new_empty((rows,), dtype=dtype)
    return named


def by_pytorch(graph: torch.fx.Graph, inside: Container[Any]) -> None:
    """Undoes `matrices_named` for products that are in no region."""
    for n in graph.find_nodes(op="call_function", target=torch.ops.mirage.by_matrix.default):
        if n in inside:
            continue
        x, w, named = n.args
        found, ends = named.args[0], named.args[0].args[0]
        places = found.args[1]
        replaced(graph, n, aten._grouped_mm.default, (x, w, ends))
        for node in (named, found, places):
            if not node.users:
                graph.erase_node(node)


def replaced(graph: torch.fx.Graph, node: Any, target: Any, args: tuple[Any, ...]) -> None:
    with graph.inserting_before(node):
        made = graph.call_function(target, args)
    made.meta = {**node.meta}
    node.replace_all_uses_with(made)
    graph.erase_node(node)
