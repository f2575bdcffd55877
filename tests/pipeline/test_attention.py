"""Attention that AOTAutograd leaves whole: regions are those that `optimize` finds, and all else is PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mirage_cli.pipeline import backend
from mirage_cli.pipeline.callers import Settings
from mirage_cli.pipeline.models.inplace import put_in_place
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.regions import Cut, cut, exported
from mirage_cli.spec.aten.row import overloadless

Q, K = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 9, 8)


def grouped(q: Tensor, k: Tensor, n: Tensor, dropout: float = 0.0) -> Tensor:
    """Queries share keys, and a mask of bits hides some: PyTorch has no fused kernel for both."""
    mask = torch.arange(9) <= n[:, None]
    return F.scaled_dot_product_attention(q * 2, k, k, mask, dropout, enable_gqa=True).relu()


@contextmanager
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Cut]]:
    """The regions of each graph that AOTAutograd gives, which stay as they are."""
    found: list[Cut] = []
    with_kernels = backend.with_kernels

    def looked_at(model: torch.fx.GraphModule, settings: Settings) -> Mapping[Any, Any]:
        names = {overloadless(n.target) for n in model.graph.nodes}
        if "mirage.attention" in names:
            copied = copy.deepcopy(model)
            put_in_place(copied.graph)
            found.append(cut(copied))
        return with_kernels(model, settings)

    with monkeypatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        patch.setattr(backend, "with_kernels", looked_at)
        torch._dynamo.reset()
        yield found


@torch.no_grad()
def test_regions_are_those_of_optimize(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Q, K, torch.tensor([3, 0, 8])
    with seen(monkeypatch) as found:
        torch.compile(grouped, backend="mirage")(*given)
    own = cut(exported(as_module(grouped), given))
    assert [r.graph.name for r in found[0].regions] == [r.graph.name for r in own.regions]
    assert found[0].left == own.left == {}


@torch.no_grad()
def test_what_is_in_no_kernel_is_pytorchs() -> None:
    for n in (torch.tensor([3, 0, 8]), torch.tensor([-1, 0, 8])):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(grouped, backend="mirage")(Q, K, n), grouped(Q, K, n))


def test_what_is_differentiated_transformed_or_drawn_is_not_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    n = torch.tensor([3, 0, 8])
    with seen(monkeypatch) as found:
        compiled = torch.compile(grouped, backend="mirage")
        q, other = (Q.clone().requires_grad_() for _ in range(2))
        compiled(q, K, n).square().sum().backward()
        grouped(other, K, n).square().sum().backward()
        torch.testing.assert_close(q.grad, other.grad)
        with torch.no_grad():
            compiled(Q, K, n, 0.5)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.compile(grouped, backend="mirage")(Q, K, n).dtype == grouped(Q, K, n).dtype
            both = torch.stack([Q, Q + 1])
            mapped = torch.compile(lambda q: torch.vmap(lambda x: grouped(x, K, n))(q), backend="mirage")
            torch.testing.assert_close(mapped(both), torch.stack([grouped(x, K, n) for x in both]))
    assert not found


def test_a_fused_layer_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """`nn.TransformerEncoderLayer` calls one operator where no gradient is asked for. With a mask it stays so."""
    monkeypatch.setattr(backend, "runs_on", lambda _: True)
    cuts: list[Cut] = []

    def cut_alone(model: torch.fx.GraphModule, _: Settings) -> Mapping[Any, Any]:
        cuts.append(cut(model))
        return {}

    monkeypatch.setattr(backend, "with_kernels", cut_alone)
    torch.manual_seed(0)
    x, hidden = torch.randn(2, 5, 12), torch.arange(5) > torch.tensor([[2], [4]])
    for first in (False, True):
        layer = torch.nn.TransformerEncoderLayer(12, 2, 16, batch_first=True, norm_first=first).eval()
        torch._dynamo.reset()
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(layer, backend="mirage")(x), layer(x))
            assert not cuts[-1].left and len(cuts[-1].regions) > 1
            fast = torch.compile(layer, backend="mirage")
            torch.testing.assert_close(fast(x, src_key_padding_mask=hidden), layer(x, src_key_padding_mask=hidden))
    assert "aten._transformer_encoder_layer_fwd" in str(cuts[1].left)
