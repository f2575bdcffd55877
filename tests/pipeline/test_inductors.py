"""Inductor's code for regions, compiled beside the tuning of their kernels. Compilation is stood in for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from mirage_cli.pipeline.models import inductors
from mirage_cli.pipeline.models.inductors import Inductors
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.regions import Cut, cut, exported


@pytest.fixture(scope="module")
def gated() -> Cut:
    with torch.no_grad():
        return cut(exported(as_module(lambda x, w: F.silu(x @ w) * 2), (torch.randn(4, 8), torch.randn(8, 16))))


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_compiles_for_a_region_once(fails: bool, gated: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stand-ins for its tensors: nothing runs on the GPU. Where that fails, the first call compiles."""
    (region,) = gated.regions
    own, threads = gated.model.get_submodule(region.module), list[str]()

    def by_inductor(graph: torch.fx.GraphModule, values: Any) -> Any:
        threads.append(threading.current_thread().name)
        assert graph is not own and [tuple(x.shape) for x in values] == [(4, 8), (8, 16)]
        assert all(isinstance(x, torch._subclasses.FakeTensor) for x in values)
        if fails:
            raise RuntimeError("made up")
        return graph.forward

    monkeypatch.setattr(inductors, "by_inductor", by_inductor)
    monkeypatch.setattr(torch, "compile", lambda f, **_: ("compiled when called", f))
    with Inductors(gated.model, gated.regions, 60.0) as several:
        for name in (region.graph.name, "unknown", region.graph.name):
            several.begin(name)
        made = several.of(region.module, own)
        assert several.of(region.module, own) is made
    assert len(threads) == 1 and threads[0].startswith("inductor")
    if fails:
        assert made == ("compiled when called", own)
    else:
        x, w = torch.randn(4, 8), torch.randn(8, 16)
        torch.testing.assert_close(made(x, w), own(x, w))


def test_what_is_not_begun_is_compiled_when_it_is_called(gated: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda f, **_: ("compiled when called", f))
    (region,) = gated.regions
    with Inductors(gated.model, gated.regions, 60.0) as several:
        own = gated.model.get_submodule(region.module)
        assert several.of(region.module, own) == ("compiled when called", own)


def test_nothing_is_compiled_any_more_behind_the_end(gated: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python waits for its threads when it ends, as behind an interrupt."""
    (region,) = gated.regions
    begun, said = threading.Event(), list[str]()

    def endless(*_: Any) -> Any:
        begun.set()
        while True:
            time.sleep(0.001)

    monkeypatch.setattr(inductors, "by_inductor", endless)
    with Inductors(gated.model, gated.regions, 60.0, said.append) as several:
        several.begin(region.graph.name)
        assert begun.wait(30)
    assert isinstance(several.begun[region.module].exception(30), SystemExit)
    several.thread.shutdown()
    assert said == [f"{region.module} is tuned"]


def test_nothing_is_compiled_beside_a_short_tuning(gated: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have half of the tuner's time. It is compiled when it is called then."""
    (region,) = gated.regions
    said: list[str] = []
    monkeypatch.setattr(inductors, "by_inductor", lambda *_: "in the thread")
    monkeypatch.setattr(torch, "compile", lambda *_, **__: "when it is called")
    own = gated.model.get_submodule(region.module)
    for budget_s, made in ((inductors.BESIDE_S, "in the thread"), (inductors.BESIDE_S - 1, "when it is called")):
        with Inductors(gated.model, gated.regions, budget_s, said.append) as several:
            several.begin(region.graph.name)
            assert several.of(region.module, own) == made
    assert said[-1] == f"{region.module}: Inductor compiles it, to be timed beside its kernel"


def test_inductor_knows_a_graph_whether_its_inputs_require_a_gradient_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process that makes a training step's graph they do not, and where PyTorch's cache has it they do."""
    seen: list[bool] = []

    def compile_fx(model: Any, inputs: Sequence[Any], **_: Any) -> Any:
        seen.extend(x.requires_grad for x in inputs if isinstance(x, torch.Tensor))
        return model

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    graph = torch.fx.symbolic_trace(lambda x, n: x * n)
    for trained in (False, True):
        inductors.by_inductor(graph, [torch.randn(3).requires_grad_(trained), 2])
    assert seen == [False, False]
