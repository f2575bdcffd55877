"""Which nodes of a graph become one region."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.partition import segments
from mirage_cli.pipeline.models.regions import cut, exported

aten = torch.ops.aten


def derivative(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Of attention, by hand: five products."""
    p = ((q @ k.mT).float() * 0.125 - lse).exp()
    ds = (p * ((given @ v.mT).float() - delta) * 0.125).to(q.dtype)
    return ds @ k, ds.mT @ q, p.to(q.dtype).mT @ given


@pytest.mark.parametrize(("length", "parts"), [(2048, 1), (64, 2)])
def test_a_region_has_more_than_a_few_products_where_much_would_be_stored_between_two(length: int, parts: int) -> None:
    rows = [torch.empty(2, 16, length, 64, dtype=torch.bfloat16) for _ in range(4)]
    numbers = [torch.empty(2, 16, length, 1) for _ in range(2)]
    found = segments(exported(as_module(derivative), (*rows, *numbers)).graph, set())
    assert len(found) == parts


def test_one_region_has_what_is_computed_around_a_dropout() -> None:
    """Masks are drawn as PyTorch draws them, in the same order, along the memory of what is dropped."""

    def dropped(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, mask = aten.native_dropout(x @ w, 0.2, True)
        z, other = aten.native_dropout(torch.nn.functional.gelu(y).t(), 0.5, True)
        return z.tanh(), mask, other

    x, w = torch.randn(6, 8), torch.randn(8, 8)
    found = cut(make_fx(dropped, tracing_mode="fake")(x, w))
    assert len(found.regions) == 1 and not found.left
    for seed in range(2):
        results: list[tuple[torch.Tensor, ...]] = []
        for function in (dropped, found.model):
            torch.manual_seed(seed)
            results.append(function(x, w))
        torch.testing.assert_close(results[1], results[0])


def test_a_dropout_stays_in_its_place_beside_what_else_draws_numbers() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        y, _ = aten.native_dropout(torch.rand_like(x.exp()) * x, 0.2, True)
        return y.tanh()

    x = torch.randn(6, 8)
    found = cut(make_fx(noisy, tracing_mode="fake")(x))
    (node,) = found.model.graph.find_nodes(op="call_function", target=aten.native_dropout.default)
    assert node.args[0].target is not aten.empty_strided.default
    assert any("native_dropout" in name for name in found.left)
