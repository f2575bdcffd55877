"""Which nodes of a graph become one region."""

from __future__ import annotations

import pytest
import torch

from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.partition import segments
from mirage_cli.pipeline.models.regions import exported


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
