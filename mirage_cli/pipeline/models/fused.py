"""PyTorch's operators that it does not decompose in an export, written out in others: its fused layers, which modules
call where no gradient is asked for, and samples of pictures between their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any  # what an operator takes and makes is as its schema says

import torch
from torch._decomp.decompositions import _grid_sampler_2d  # pyright: ignore[reportPrivateUsage]
from torch.nn import functional

from mirage_cli.pipeline.models.attention import attention

aten = torch.ops.aten


def encoder_layer(
    x: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    first_weight: torch.Tensor,
    first_bias: torch.Tensor,
    second_weight: torch.Tensor,
    second_bias: torch.Tensor,
    up_weight: torch.Tensor,
    up_bias: torch.Tensor,
    down_weight: torch.Tensor,
    down_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    _mask_type: int | None = None,
) -> torch.Tensor:
    """`nn.TransformerEncoderLayer`. x: f[batch, place, width]. With a mask it stays PyTorch's."""
    if mask is not None or x.dim() != 3:
        return NotImplemented

    def mixed(y: torch.Tensor) -> torch.Tensor:
        qkv = functional.linear(y, qkv_weight, qkv_bias).unflatten(-1, (3, heads, width // heads))
        q, k, v = (z.transpose(1, 2) for z in qkv.unbind(2))
        return functional.linear(attention(q, k, v).transpose(1, 2).flatten(2), out_weight, out_bias)

    def inner(y: torch.Tensor) -> torch.Tensor:
        y = functional.linear(y, up_weight, up_bias)
        return functional.linear(functional.gelu(y) if use_gelu else functional.relu(y), down_weight, down_bias)

    def first(y: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(y, (width,), first_weight, first_bias, eps)

    def second(y: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(y, (width,), second_weight, second_bias, eps)

    if norm_first:
        x = x + mixed(first(x))
        return x + inner(second(x))
    x = first(x + mixed(x))
    return second(x + inner(x))


WRITTEN_OUT: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
        aten.grid_sampler_2d.default: partial(_grid_sampler_2d, _expand_grid=False),
    }
)
"""By operator: the same in others."""
