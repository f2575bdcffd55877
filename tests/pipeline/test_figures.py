"""Times of kernels beside Inductor's code: measured once, kept, and obeyed. Kernels and timings are stood in for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import mirage_cli
from mirage_cli.codegen.exported.ordinary import only_numbers
from mirage_cli.pipeline import backend as backend_module
from mirage_cli.pipeline.callers import Kernels, Settings
from mirage_cli.pipeline.models import beside as beside_module
from mirage_cli.pipeline.models import compiled as compiled_module
from mirage_cli.pipeline.models import model as model_module
from mirage_cli.pipeline.models import whole as whole_module
from mirage_cli.pipeline.models.beside import Arguments, Beside
from mirage_cli.pipeline.models.model import Replaced, as_module
from mirage_cli.pipeline.models.regions import Cut, cut, exported
from mirage_cli.pipeline.models.whole import are_numbers, may_be_copied
from tests.pipeline.test_wrong_use import Mlp, StandIn, X, kernels

assert kernels  # a fixture


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[Beside]:
    """What is measured next: of regions, and of models as a whole."""
    found: list[Beside] = []
    monkeypatch.setattr(Kernels, "measures", property(lambda _: True, lambda *_: None), raising=False)
    for module in (model_module, backend_module):
        monkeypatch.setattr(module, "region_beside", lambda *_: found.pop(0))
    monkeypatch.setattr(backend_module, "by_inductor", lambda f, *_: f)
    monkeypatch.setattr(model_module, "timed", lambda *_: Beside(1.0, 2.0))
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: None)
    return found


def optimized(db: Path) -> int:
    """How many regions have a kernel."""
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda f, **_: f)
        fast = mirage_cli.optimize(Mlp().eval(), (X,), db=db, say=lambda _: None)
    return sum(isinstance(x, Replaced) for x in fast.children())


def by_the_backend(db: Path, tune_s: float = 0.0) -> int:
    """How many kernels run."""
    torch._dynamo.reset()
    model = Mlp().eval().requires_grad_(False)
    StandIn.calls = 0
    torch.testing.assert_close(
        torch.compile(model, backend="mirage", options={"db": str(db), "tune": tune_s})(X), model(X)
    )
    return StandIn.calls


@pytest.mark.parametrize(("kernel_us", "used"), [(1.0, 1), (2.0, 0)])
@pytest.mark.parametrize("start", [optimized, by_the_backend])
def test_what_was_measured_is_not_measured_again(
    start: Callable[[Path], int], kernel_us: float, used: int, times: list[Beside], tmp_path: Path
) -> None:
    """A kernel that takes as long as Inductor's code is not used, neither at once nor by who starts anew."""
    times.append(Beside(kernel_us, 2.0))
    assert start(tmp_path / "mirage.db") == used
    assert times == []
    assert start(tmp_path / "mirage.db") == used


def test_the_backend_says_what_became_of_regions(
    times: list[Beside], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(backend_module.LOG, "info", lambda text, gain: said.append(text % gain))
    times.append(Beside(2.0, 2.0))
    by_the_backend(tmp_path / "mirage.db")
    (line,) = said
    assert line.endswith("PyTorch's, 2.00 µs is not surely below Inductor's 2.00")


def test_samples_are_of_one_call_in_a_chain_and_behind_a_spacer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph takes a second for each call of a contestant, and a tenth for each of the spacer."""
    calls: list[str] = []
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: SimpleNamespace(add_=lambda _: calls.append("spacer")))
    monkeypatch.setattr(beside_module, "captured", lambda several: [f() for f in several] and [*calls, calls.clear()])
    monkeypatch.setattr(
        beside_module, "seconds", lambda g: sum({"spacer": 0.1, "a": 1.0, "b": 2.0}.get(x, 0) for x in g)
    )
    sets = [(1,), (2,), (3,)]
    samples = beside_module.in_contexts([lambda _: calls.append("a"), lambda _: calls.append("b")], sets)
    assert [len(own) for own in samples] == [beside_module.ROUNDS] * 2
    for own, us in zip(samples, (1e6, 2e6), strict=True):
        assert [*own[0]] == pytest.approx([us, us])
    found = beside_module.timed(lambda _: calls.append("a"), lambda _: calls.append("b"), sets)
    assert (found.kernel_us, found.inductor_us) == pytest.approx((1e6, 2e6))


def test_the_backend_times_the_kernel_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While AOTAutograd compiles, a mode holds under which exported functions leave their tensors to PyTorch."""
    seen: list[tuple[int, bool]] = []

    def beside(kernel: Callable[..., Any], _: object, given: Arguments) -> Beside:
        StandIn.calls = 0
        kernel(*given.tensors)
        seen.append((StandIn.calls, all(map(only_numbers, given.tensors))))
        StandIn.calls = 0
        return Beside(1.0, 2.0)

    monkeypatch.setattr(Kernels, "measures", property(lambda _: True, lambda *_: None), raising=False)
    monkeypatch.setattr(backend_module, "region_beside", beside)
    monkeypatch.setattr(backend_module, "by_inductor", lambda f, *_: f)
    assert by_the_backend(tmp_path / "mirage.db") == 1
    assert seen == [(1, True)]


@pytest.mark.parametrize("trained", [False, True])
def test_what_has_no_kernel_is_inductors_own(trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd has wrapped a graph once then, unless it is differentiated."""
    compiled: list[str] = []

    def inductors_own(graph: torch.fx.GraphModule, *_: Any) -> Callable[..., Any]:
        compiled.append("as given")
        return graph.forward

    def by_inductor(graph: torch.fx.GraphModule, *_: Any) -> Callable[..., Any]:
        compiled.append("a graph of AOTAutograd")
        return graph.forward

    for module in (backend_module, compiled_module):
        monkeypatch.setattr(module, "on_gpu", lambda _: True)
    monkeypatch.setattr(backend_module, "with_kernels", lambda *_: {})
    monkeypatch.setattr(backend_module, "inductors_own", inductors_own)
    monkeypatch.setattr(compiled_module, "by_inductor", by_inductor)
    torch._dynamo.reset()
    x = X.clone().requires_grad_(trained)
    made = torch.compile(Norm(), backend="mirage")(x)
    torch.testing.assert_close(made, Norm()(x))
    if trained:
        made.sum().backward()
    assert compiled == (["a graph of AOTAutograd"] * 2 if trained else ["as given"])


@pytest.mark.parametrize(
    ("other", "changed", "direct"),
    [
        (torch.ops.aten.view.default, (), True),
        (torch.ops.aten.view.default, ("X",), False),
        (torch.ops.aten.add.Tensor, (), False),
    ],
)
def test_a_graph_of_kernels_alone_calls_their_functions(
    other: Any, changed: tuple[str, ...], direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where more is computed, nor where a kernel changes its input, which an operator tells PyTorch of."""
    compiled: list[object] = []
    program = SimpleNamespace(changed=changed)
    kernel: Any = SimpleNamespace(program=program, function=lambda x: x + 10, exported=None)
    kernels = {torch.ops.aten.sin.default: kernel}  # in whose place the operator stands

    def by_inductor(graph: torch.fx.GraphModule, *_: Any) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled_module, "on_gpu", lambda _: True)
    monkeypatch.setattr(compiled_module, "by_inductor", by_inductor)
    monkeypatch.setattr(backend_module, "with_kernels", lambda *_: kernels)
    more: Any = [60] if "view" in str(other) else 1
    graph = torch.fx.symbolic_trace(lambda x: other(torch.ops.aten.sin.default(x), more))
    made = backend_module.Compiler(Settings(), {}, graph, [X]).forward(graph, [X])([X])
    torch.testing.assert_close(made, other(X + 10 if direct else X.sin(), more))
    assert len(compiled) == (not direct)


def test_views_of_all_of_a_tensor_are_left_out() -> None:
    """But for a result that would be the argument itself, or another result."""

    def looked_at(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        same = torch.ops.aten.permute.default(torch.ops.aten.reshape.default(x, [5, 12]), [0, 1])
        turned = torch.ops.aten.permute.default(x, [1, 0])
        computed, twice = torch.ops.aten.view.default(x.cos(), [5, 12]), x.tan()
        given = torch.ops.aten.view.default(x, [5, 12])
        return same.sin(), turned.sin(), given, computed, twice, torch.ops.aten.view.default(twice, [5, 12])

    graph = make_fx(looked_at)(X).graph
    for n in graph.nodes:
        n.meta["val"] = n.meta.get("val", X)
    backend_module.without_same_views(graph)
    graph.eliminate_dead_code()
    left = [str(n.target) for n in graph.nodes if n.op == "call_function"]
    computed = ["aten.cos.default", "aten.sin.default", "aten.sin.default", "aten.tan.default"]
    assert sorted(left) == sorted([*computed, "aten.permute.default", "aten.view.default", "aten.view.default"])


def test_compiled_graphs_ask_for_no_derivatives() -> None:
    def asked() -> bool:
        return not torch._C._dispatch_tls_local_exclude_set().has(torch._C.DispatchKey.AutogradOther)  # type: ignore[attr-defined]  # no public name

    assert asked() and not compiled_module.undifferentiated(asked)()


class Norm(nn.Module):
    """What Inductor decomposes: a norm, an activation, a softmax."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.layer_norm(x, (12,))).softmax(-1)


def test_what_no_kernel_takes_is_decomposed_for_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Inductor would write code for is run operator by operator: a C++ compiler takes ten seconds for it."""
    from torch._functorch import config
    from torch._inductor import compile_fx

    compiled = compiled_module.by_inductor
    seen: list[str] = []
    lowered: list[str] = []

    def operators(graph: torch.fx.GraphModule) -> list[str]:
        return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]

    def by_inductor(graph: torch.fx.GraphModule, inputs: Any, *options: Any) -> Callable[..., Any]:
        seen.extend(operators(graph))
        return compiled(graph, inputs, *options)

    def without_code(graph: torch.fx.GraphModule, inputs: Any, **_: Any) -> Callable[..., Any]:
        lowered.extend(operators(graph))
        return compiled_module.make_boxed_func(graph.forward)

    kernel = SimpleNamespace(program=SimpleNamespace(dynamic=("s",), changed=()), exported=None, function=None)
    monkeypatch.setattr(compile_fx, "compile_fx", partial(compile_fx.compile_fx, inner_compile=without_code))
    monkeypatch.setattr(backend_module, "with_kernels", lambda *_: {"a kernel": kernel})
    for module in (backend_module, compiled_module):
        monkeypatch.setattr(module, "on_gpu", lambda _: True)
        monkeypatch.setattr(module, "by_inductor", by_inductor)
    torch._dynamo.reset()
    with config.patch(enable_autograd_cache=False):
        torch.testing.assert_close(torch.compile(Norm(), backend="mirage")(X), Norm()(X))
    assert "aten.native_layer_norm.default" in seen
    assert "aten.rsqrt.default" in lowered and "aten.native_layer_norm.default" not in lowered


class Clipped(nn.Module):
    """Numbers as tensors, as many forwards have them: of the CPU wherever the model is."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.min(F.gelu(x @ y), torch.tensor(0.25)) * torch.tensor(3)


def test_a_number_that_a_text_makes_a_tensor_of_is_part_of_the_program(tmp_path: Path) -> None:
    """In both ways in: nothing but the arguments is given to a kernel."""
    inputs = torch.randn(4, 8), torch.randn(8, 16)
    (region,) = cut(exported(Clipped(), inputs)).regions
    assert "0.25" in region.graph.text() and "* 3" in region.graph.text()
    assert len(region.graph.program().inputs) == 2
    graphs: list[Cut] = []

    def cut_too(model: Any) -> Cut:
        graphs.append(cut(model))
        return graphs[-1]

    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_module, "cut", cut_too)
        patch.setattr(backend_module, "runs_on", lambda _: True)
        made = torch.compile(Clipped(), backend="mirage", options={"db": str(tmp_path / "mirage.db")})(*inputs)
    torch.testing.assert_close(made, Clipped()(*inputs))
    assert [len(r.graph.program().inputs) for g in graphs for r in g.regions] == [2]


class Scaled(nn.Module):
    """A number that it holds, by which a user may scale differently later."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor(2.0)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ y) * self.scale


def test_a_number_that_a_model_or_a_closure_holds_stays_a_tensor() -> None:
    scale, inputs = torch.tensor(2.0), (torch.randn(4, 8), torch.randn(8, 16))
    for function in (Scaled(), as_module(lambda x, y: F.gelu(x @ y) * scale)):
        (region,) = cut(exported(function, inputs)).regions
        assert len(region.graph.program().inputs) == 3


def test_a_model_is_timed_as_a_whole_once(times: list[Beside], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is obeyed by who starts anew; other sizes are another model."""
    times += [Beside(1.0, 2.0)] * 3
    timed: list[int] = []
    monkeypatch.setattr(model_module, "timed", lambda *_: timed.append(1) or Beside(3.0, 2.0))
    assert [optimized(tmp_path / "mirage.db") for _ in range(3)] == [0, 0, 0]
    assert len(timed) == 1
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda f, **_: f)
        mirage_cli.optimize(Mlp().eval(), (X[:3],), db=tmp_path / "mirage.db", say=lambda _: None)
    assert len(timed) == 2


def test_a_graph_of_the_backend_is_timed_as_a_whole_once(
    times: list[Beside], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it may be tuned: whoever serves obeys what is known then, and times nothing."""
    times += [Beside(1.0, 2.0)] * 3
    timed: list[int] = []

    def on_copies(kernels: Callable[..., Any], inductor: Callable[..., Any], inputs: Sequence[Any]) -> Beside:
        for some in (kernels, inductor):
            torch.testing.assert_close([*some(*inputs)], [*inductor(*inputs)])
        timed.append(1)
        return Beside(3.0, 2.0)

    monkeypatch.setattr(backend_module, "timed_on_copies", on_copies)
    monkeypatch.setattr(backend_module, "may_be_copied", are_numbers)
    monkeypatch.setattr(backend_module, "inductors_own", lambda model, *_: model.forward)
    db = tmp_path / "mirage.db"
    assert by_the_backend(db) > 0 and not timed, "nothing is timed without a budget"
    assert by_the_backend(db, 1.0) == len(timed) > 0, "called where it is timed, and then no more"
    assert by_the_backend(db) == by_the_backend(db, 1.0) == 0 and len(timed) == 1


def test_what_cannot_be_timed_as_a_whole_keeps_its_kernels(tmp_path: Path, times: list[Beside]) -> None:
    """An operator that waits for the GPU is in no CUDA graph."""
    times += [Beside(1.0, 2.0)] * 3
    said: list[str] = []

    def fails(*_: Any) -> Beside:
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda f, **_: f)
        patch.setattr(model_module, "timed", fails)
        fast = mirage_cli.optimize(Mlp().eval(), (X,), db=tmp_path / "mirage.db", say=said.append)
    assert any(isinstance(x, Replaced) for x in fast.children())
    assert said[-1] == "the model was not timed as a whole: operation not permitted when stream is capturing"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_gpu_a_graph_is_timed_as_a_whole_on_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the call's tensors, which stay as they are."""
    said: list[str] = []
    monkeypatch.setattr(backend_module.LOG, "info", lambda text, *args: said.append(text % args))
    monkeypatch.setattr(backend_module, "faster", lambda gain, _: gain)
    torch._dynamo.reset()
    model, x = Mlp().eval().requires_grad_(False).cuda(), X.cuda()
    before = x.clone()
    compiled = torch.compile(model, backend=backend_module.mirage, options={"db": str(tmp_path / "m.db"), "tune": 1.0})
    torch.testing.assert_close(compiled(x), model(x))
    assert torch.equal(x, before)
    assert any(line.startswith("the model: ") for line in said), said


def test_a_graph_is_timed_on_copies_of_a_calls_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as no cache holds, with their strides, in a thread that no mode of PyTorch reaches."""
    given = [torch.arange(12.0).view(3, 4).T, 3, torch.nn.Parameter(torch.ones(2))]
    seen: list[Any] = []

    def timed(kernels: object, inductor: object, sets: Sequence[Sequence[Any]]) -> Beside:
        seen.extend((kernels, inductor, threading.get_ident(), sets))
        return Beside(1.0, 2.0)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.random, "fork_rng", nullcontext)
    monkeypatch.setattr(whole_module, "copies", lambda tensors: len(tensors) + 1)
    monkeypatch.setattr(whole_module, "timed", timed)
    assert whole_module.timed_on_copies("kernels", "inductor", given) == Beside(1.0, 2.0)  # type: ignore[arg-type]
    kernels, inductor, thread, sets = seen
    assert (kernels, inductor, len(sets)) == ("kernels", "inductor", 3) and thread != threading.get_ident()
    for some in sets:
        assert some[1] == 3
        for i in (0, 2):
            assert torch.equal(some[i], given[i]) and some[i].stride() == given[i].stride()
            assert some[i].data_ptr() != given[i].data_ptr() and not some[i].requires_grad


def test_copies_stand_for_tensors_that_lie_apart() -> None:
    with_one = [torch.empty(4, device="meta"), 3]
    assert not may_be_copied([X]) and not may_be_copied(with_one), "they are on no GPU"
    assert not may_be_copied([]) and not may_be_copied([3]), "a graph of numbers alone may be on none"
