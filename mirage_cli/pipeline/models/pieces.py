"""What stands between the kernels of a model, as modules that Inductor compiles: equal ones once.

    kernel ─► a ─► b ─► kernel ─► a ─► b    -->    kernel ─► piece_0 ─► kernel ─► piece_0

No compiler changes a kernel or sees through it. Where a model is compiled as a whole, each call of a kernel is still
traced, functionalised and lowered, and that is most of the time of compiling: 32 equal layers cost 32 times one layer.
In pieces they cost one. The order of the graph is kept, so what stands in front of a change in place stays in front.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any  # torch's graphs and nodes, which have few types

import torch
from torch._ops import OpOverload

from mirage_cli.pipeline.models.inplace import GUARDS
from mirage_cli.pipeline.models.named import raise_unless
from mirage_cli.pipeline.models.outlining import outlined
from mirage_cli.pipeline.models.partition import Part
from mirage_cli.pipeline.models.passes import is_view

PREFIX = "piece_"
NUMBERS = int | float | torch.SymInt | torch.SymFloat | torch.SymBool


def in_pieces(model: torch.fx.GraphModule) -> list[torch.nn.Module]:
    """Puts a call of a module in the place of each piece. The modules."""
    parts = [part for part in pieces(model.graph) if not all(map(is_view, part))]
    return [model.get_submodule(name) for name in outlined(model, parts, PREFIX).values()]


def pieces(graph: torch.fx.Graph) -> Iterator[Part]:
    """The operators of tensors between one call of another kind and the next: of a kernel, of an operator that runs
    graphs, or of what works sizes out."""
    part: Part = []
    for n in graph.nodes:
        if of_tensors(n):
            part.append(n)
        elif n.op.startswith("call") and n.target != GUARDS:
            yield part
            part = []
    yield part


def of_tensors(node: Any) -> bool:
    """Whether a node calls an operator that makes tensors, changes or checks them."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return of_tensors(node.args[0])
    known = isinstance(node.target, OpOverload) or node.target is raise_unless
    return known and not isinstance(node.meta.get("val"), NUMBERS)
