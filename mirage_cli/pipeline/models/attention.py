"""Attention that AOTAutograd leaves whole, as `torch.export` does. What is in no kernel becomes PyTorch's again.

On a GPU, AOTAutograd makes of `scaled_dot_product_attention` whatever PyTorch would run for these inputs: where several
queries share a key, under a mask, that is its parts, with the scores in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # nodes of PyTorch's graphs

import torch
from torch.nn.functional import scaled_dot_product_attention

SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *,"
    " float? scale=None, bool enable_gqa=False) -> Tensor"
)
"""Of PyTorch's operator."""
TRANSFORMS = ("functorch", "autocast")
"""In the names, or the modules, of what has PyTorch compute something else of the same operators."""


@torch.library.custom_op("mirage::attention", mutates_args=(), schema=SCHEMA)
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention`, without a derivative."""
    return scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


@attention.register_fake
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    same = key.shape[-2] == value.shape[-2]  # which PyTorch does not ask for: sizes that differ by call are one
    torch._check(same)  # pyright: ignore[reportPrivateUsage]
    return scaled_dot_product_attention(query, key, value, *rest, **options)


def kept_whole(model: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Has a graph of Dynamo call it, where nothing is differentiated, transformed or drawn."""
    given = [*inputs, *model.parameters()]
    trained = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in given)
    called = [f"{getattr(n.target, '__module__', '')} {n.target}" for n in model.graph.nodes]
    transformed = any(word in name for name in called for word in TRANSFORMS)
    if trained or transformed or any(torch.is_autocast_enabled(d) for d in ("cpu", "cuda")):
        return
    for n in model.graph.find_nodes(op="call_function", target=scaled_dot_product_attention):
        if not n.kwargs.get("dropout_p", n.args[4] if len(n.args) > 4 else 0.0):
            n.target = torch.ops.mirage.attention.default
    model.recompile()


def by_pytorch(model: torch.fx.GraphModule) -> None:
    """Has a graph call PyTorch's operator again."""
    for n in model.graph.find_nodes(op="call_function", target=torch.ops.mirage.attention.default):
        n.target = torch.ops.aten.scaled_dot_product_attention.default
    model.recompile()
