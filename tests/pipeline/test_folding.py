"""What a graph computes of numbers alone is folded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mirage_cli.pipeline import backend
from mirage_cli.pipeline.models.constants import folded
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.regions import Cut, cut, exported

N = 24


def same_sequence(x: torch.Tensor) -> torch.Tensor:
    """A window over positions of one sequence, as models find that nothing else was packed beside it."""
    at = torch.arange(N) + 0
    number = torch.cumsum(torch.diff(at, prepend=at[:1] - 1) != 1, -1)
    row, column = at[at][:, None], at[None, :]
    seen = (column <= row) & (column > row - 5) & (number[:, None] == number[None, :])
    return torch.where(seen, x, -math.inf).softmax(-1)


def backwards(x: torch.Tensor) -> torch.Tensor:
    return x * torch.arange(N).flip(0)


def lower(x: torch.Tensor) -> torch.Tensor:
    return x * torch.ones(N, N, dtype=torch.int64).tril()


def read_of(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[torch.fx.GraphModule, list[str]]:
    """A function's graph, folded, and the operators that are left in it."""
    model = exported(as_module(function), inputs)
    folded(model)
    model.graph.eliminate_dead_code()
    return model, [str(n.target) for n in model.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("function", [same_sequence, backwards, lower])
def test_a_folded_graph_computes_the_same(function: Callable[..., Any]) -> None:
    x = torch.randn(N, N)
    model, _ = read_of(function, x)
    assert torch.equal(model(x), function(x))


def test_positions_are_told_as_such() -> None:
    _, left = read_of(same_sequence, torch.randn(N, N))
    assert not any("cumsum" in name or "cat" in name or "index" in name for name in left)
    (region,) = cut(exported(as_module(same_sequence), (torch.randn(N, N),))).regions
    assert "sum(" not in region.graph.text()
    _, left = read_of(backwards, torch.randn(N, N))
    assert not any("flip" in name for name in left)


def test_what_is_neither_a_number_nor_positions_stays() -> None:
    _, left = read_of(lower, torch.randn(N, N))
    assert any("tril" in name for name in left)


def test_what_depends_on_a_tensor_or_is_drawn_stays() -> None:
    held = torch.nn.Module()
    held.register_buffer("at", torch.zeros(N, dtype=torch.int64))
    held.forward = lambda x: x * (held.at + 1)  # type: ignore[method-assign]
    model, left = read_of(held, torch.randn(N))
    assert any("add" in name for name in left)
    held.at.add_(1)  # type: ignore[operator]
    assert "at" in dict(model.named_buffers())
    _, left = read_of(lambda x: x + (torch.randint(0, 2, (N,)) + 1), torch.randn(N))
    assert any("randint" in name for name in left) and sum("add" in name for name in left) == 2


def test_a_default_device_changes_nothing() -> None:
    """What is compared with positions lies where these do: a default device of another kind has no data here."""
    model = exported(as_module(backwards), (torch.randn(N, N),))
    with torch.device("meta"):
        folded(model)
    model.graph.eliminate_dead_code()
    names = [str(n.target) for n in model.graph.nodes if n.op == "call_function"]
    assert names[0] == "aten.arange.start_step" and "aten.flip.default" not in names


def test_zeros_without_memory_are_given_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivatives of what does not change have none in PyTorch, and kernels would read it."""
    cuts: list[Cut] = []
    monkeypatch.setattr(backend, "runs_on", lambda _: True)
    monkeypatch.setattr(backend, "with_kernels", lambda model, _: cuts.append(cut(model)) or {})
    net, x = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)), torch.randn(4, 3)

    def laplacian(x: torch.Tensor) -> torch.Tensor:
        hessian = torch.func.hessian(lambda point: net(point)[0])
        return torch.func.vmap(lambda point: hessian(point).diagonal().sum())(x)

    found = torch.compile(laplacian, backend="mirage")(x)
    torch.testing.assert_close(found, laplacian(x))
    (made,) = cuts
    assert made.regions
    assert not any("zerotensor" in str(n.target) for n in made.model.graph.nodes)
