"""`@mirage_cli.kernel`, in Triton's interpreter."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_cli
from mirage_cli.errors import TraceError
from mirage_cli.pipeline.callers import Kernel
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.regions import exported, whole


def scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w / 2, -1)


def test_calls_take_what_was_searched_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = mirage_cli.kernel(db=tmp_path / "mirage.db")(scores)
    x, w = torch.randn(5, 24), torch.randn(24, 9)
    assert torch.equal(fast(x, w), scores(x, w))  # by PyTorch: nothing is stored, and nothing is searched unasked
    kernel = fast.search(x, w, budget=8)
    assert isinstance(kernel, Kernel)
    assert "def scores(" in kernel.export() and kernel.explain().startswith("scores: ")
    assert repr(kernel) == f"<Kernel scores: {kernel.times}>"  # not the source
    torch.testing.assert_close(fast(x, w), scores(x, w))
    again = mirage_cli.kernel(db=tmp_path / "mirage.db")(scores)
    again(x, w)
    (known,) = again.known.values()
    assert isinstance(known, torch.nn.Module)  # the stored kernel
    y = x.clone().requires_grad_()
    again(y, w).sum().backward()
    assert y.grad is not None


def test_pytorch_computes_of_tensors_without_elements(tmp_path: Path) -> None:
    """Nothing is searched for them, and other shapes have their kernels."""
    fast = mirage_cli.kernel(db=tmp_path / "mirage.db", tune=8)(scores)
    w = torch.randn(24, 9)
    assert fast(torch.randn(0, 24), w).shape == (0, 9)
    assert torch.equal(fast(torch.randn(5, 0), torch.randn(0, 9)), torch.full((5, 9), 1 / 9))
    assert not fast.known
    with pytest.raises(TraceError, match="without elements"):
        fast.search(torch.randn(0, 24), w)
    with pytest.raises(TraceError, match="no tensor"):
        fast(torch.randn(0, 24), 2.0)


def test_the_tutorials_names_are_the_packages() -> None:
    mi = import_module("mirage_cli.mi")
    delattr(mirage_cli, "mi")  # as before anything imports it
    assert mirage_cli.mi is mi and mirage_cli.mi.new_kernel_graph
    with pytest.raises(AttributeError, match="cli"):
        mirage_cli.cli_  # noqa: B018


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(TraceError, match=r"aten\.sort"):
        mirage_cli.kernel(lambda x: x.sort(0).values + 1)(torch.randn(4))
    with pytest.raises(TraceError, match=r"copy_: changes a tensor in place"):
        mirage_cli.kernel(lambda x, m, v: F.batch_norm(x, m, v, training=True))(torch.randn(4, 3), *torch.ones(2, 3))
    with pytest.raises(TypeError, match="budget"):
        mirage_cli.kernel(budget=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"kernel takes a function, not 3; options are named"):
        mirage_cli.kernel(3)  # type: ignore[call-overload]
    with pytest.raises(AttributeError, match="module 'mirage_cli' has no attribute 'optimise'"):
        _ = mirage_cli.optimise


def test_a_kernels_inputs_are_the_arguments_in_their_order() -> None:
    """Whatever reads them first, and whatever their sizes are."""

    def function(bias: torch.Tensor, _: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return w.T @ x + bias

    given = torch.randn(7), torch.randn(3), torch.randn(9, 7), torch.randn(9, 5)
    found = whole(exported(as_module(function), given), "function")
    assert [i.which for i in found.region.inputs] == [0, 2, 3]
    assert found.checks is None
