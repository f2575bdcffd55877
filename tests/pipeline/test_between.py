"""What stands between a model's kernels: modules that are compiled once, in the model's order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.export import Dim

import mirage_cli
from mirage_cli.errors import TraceError
from mirage_cli.pipeline.models import model as model_module
from mirage_cli.pipeline.models.model import Gain, Replaced
from mirage_cli.pipeline.models.pieces import PREFIX, pieces
from mirage_cli.pipeline.models.regions import Cut, exported
from mirage_cli.target import gpus
from tests.pipeline.test_wrong_use import BEST, StandIn, kernels, same

assert kernels  # a fixture
BEST_OF: Any = SimpleNamespace(best=BEST)


class Layer(nn.Module):
    """A program, and behind it what no kernel is for."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.up(self.norm(x))).sort(-1).values.flip(-1)


class Sorted(nn.Module):
    """What no kernel is for."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(-1).values


def layers(count: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(count))).eval()


X = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))


def optimized(function: Callable[..., Any], *inputs: Any, db: Path, dynamic: Any = None) -> Any:
    with torch.no_grad():
        return mirage_cli.optimize(function, inputs, db=db / "mirage.db", dynamic=dynamic, say=lambda _: None)


def modules(model: nn.Module) -> dict[str, nn.Module]:
    return {name: m for name, m in model.named_children() if name.startswith(PREFIX)}


def test_equal_pieces_are_one_module(tmp_path: Path) -> None:
    several = [optimized(layers(count), X, db=tmp_path) for count in (2, 5)]
    assert [len(modules(fast)) for fast in several] == [1, 1]
    assert len([n for n in several[1].graph.nodes if str(n.target).startswith(PREFIX)]) == 5


def test_a_piece_is_compiled_once_and_kernels_never(tmp_path: Path) -> None:
    compiled: list[str] = []

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        compiled.append(str(graph.graph))
        return graph.forward

    model, fast = layers(4), optimized(layers(4), X, db=tmp_path)
    torch._dynamo.reset()
    for m in modules(fast).values():
        m.compile(backend=compiler)
    with torch.no_grad():
        same(model, fast, X, kernels=len([n for n in fast.graph.nodes if str(n.target).startswith("region_")]))
        same(model, fast, X + 1, kernels=StandIn.calls)
        whole = torch.compile(fast, backend="eager", dynamic=False)
        torch.testing.assert_close(whole(X), model(X))
    assert len(compiled) == 1 and "sort" in compiled[0] and "layer_norm" not in compiled[0]


def test_what_has_no_kernel_is_compiled_with_what_stands_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gains(found: Cut, *_: object) -> list[Gain]:
        first, *others = found.regions
        kernel = StandIn(first.program, BEST_OF, "", "")
        return [Gain(first, kernel), *(Gain(r, None, "none is faster") for r in others)]

    monkeypatch.setattr(model_module, "gains", gains)

    def model(x: Tensor) -> Tensor:
        return (x.exp().sort(-1).values * 2 + x).sin().sort(0).values.tanh()

    fast = optimized(model, X, db=tmp_path)
    (piece,) = modules(fast).values()
    names = [str(n.target) for n in piece.graph.nodes]  # type: ignore[union-attr]
    assert [names.count(f"aten.{op}.default") for op in ("sort", "sin", "tanh", "exp")] == [2, 1, 1, 0]
    same(model, fast, X, kernels=1)


class Cache(nn.Module):
    """Rows that are changed in place by an operator that is in no region, and read behind that."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 12))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        y = F.gelu(x) * 2
        self.rows.index_add_(0, at, y.sort(-1).values)
        return F.silu(self.rows * 3).sort(-1).values + y.sum()


def test_changes_in_place_stay_in_order(tmp_path: Path) -> None:
    model, given = Cache(), (X[:2], torch.tensor([3, 1]))
    fast = optimized(Cache(), *given, db=tmp_path)
    assert StandIn.calls == 0 and any(isinstance(m, Replaced) for m in fast.children())
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(*given), model(*given))
            torch.testing.assert_close(fast.rows, model.rows)
        for m in modules(fast).values():
            m.compile(backend="aot_eager", dynamic=False)
        torch.testing.assert_close(fast(*given), model(*given))
        torch.testing.assert_close(fast.rows, model.rows)


def test_sizes_are_worked_out_beside_the_pieces(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        y = x.exp().sort(-1).values.reshape(-1)
        return y.reshape(x.shape[1], x.shape[0]).sort(-1).values.tanh_() * x.shape[0]

    rows = Dim("rows", min=2, max=64)
    fast = optimized(model, X, db=tmp_path, dynamic=({0: rows},))
    for m in modules(fast).values():
        m.compile(backend="eager", dynamic=True)
    with torch.no_grad():
        for n in (5, 2, 64):
            x = torch.randn(n, 12)
            torch.testing.assert_close(fast(x), model(x))


def test_views_alone_are_no_piece(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        return F.gelu(x).unfold(0, 2, 2).real

    with torch.no_grad():
        graph = exported(model_module.as_module(model), (X,)).graph
    assert sum(map(bool, pieces(graph))) == 1
    fast = optimized(model, X, db=tmp_path)
    assert not modules(fast)
    same(model, fast, X, kernels=1)


def test_operators_that_run_graphs_are_called_as_they_are(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        y = F.gelu(x)
        return torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,)).sort(-1).values

    fast = optimized(model, X, db=tmp_path)
    with torch.no_grad():
        for x in (X, -X.abs()):
            torch.testing.assert_close(fast(x), model(x))


def test_a_model_without_kernels_is_compiled_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was exported is another program for a compiler, and not always as fast."""
    given = nn.Sequential(Sorted(), nn.Identity()).eval()
    given[1].train()
    monkeypatch.setattr(gpus, "chosen_target", lambda _: (gpus.find_target("h100"), True))
    monkeypatch.setattr(torch, "compile", lambda module, **how: compiled.append(how) or module)
    compiled: list[object] = []
    fast = optimized(given, X, db=tmp_path)
    assert fast.function is given and compiled == [{"dynamic": False}]
    assert given[1].training and not fast.training
    with pytest.raises(TraceError, match="float32 in the example"):
        fast(X.half())
