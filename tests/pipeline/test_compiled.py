"""Graphs with kernels in PyTorch's cache: what a process that starts anew finds, and what it must not find. Kernels are
interpreted."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._functorch import config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from mirage_cli.pipeline import backend as backend_module
from mirage_cli.pipeline.backend import Compiler, mirage
from mirage_cli.pipeline.callers import Exported, Settings
from mirage_cli.pipeline.keys import gpu_of, key_of
from mirage_cli.pipeline.models import compiled as compiled_module
from mirage_cli.pipeline.models.compiled import FOUND, Compiled, Found, as_described, described, noted, pickled
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.store import Database

X = torch.randn(6, 32)
SPEC = """\
name: twice
dims: {m: 4}
dtype: float32
inputs:
  X: [m]
program: |
  O = 2 * X
outputs:
  O: [m]
"""


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.gate = nn.LayerNorm(32), nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.norm(x) * self.gate) + x


class Starts:
    """Of processes, as far as one may start anew: how often a graph was cut, and the calls of its kernels."""

    def __init__(self, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.db, self.cuts, self.kernels = db, 0, 0
        own = backend_module.with_kernels
        load = Exported.function.func  # type: ignore[attr-defined]  # of a cached property

        def counted(*args: Any, **options: Any) -> Any:
            self.cuts += 1
            return own(*args, **options)

        def loaded(file: Exported) -> Callable[..., Any]:
            function = load(file)

            def called(*tensors: torch.Tensor) -> Any:
                self.kernels += 1
                return function(*tensors)

            return called

        monkeypatch.setattr(backend_module, "with_kernels", counted)
        monkeypatch.setattr(Exported, "function", property(loaded))

    def compiled(self, model: nn.Module, tune: float, *, dynamic: bool = False) -> Callable[..., Any]:
        torch._dynamo.reset()
        counters.clear()
        self.cuts = self.kernels = 0
        return torch.compile(model, backend=mirage, dynamic=dynamic, options={"db": self.db, "tune": tune})

    def __call__(self, *, tune: float = 0.0, model: nn.Module | None = None) -> tuple[int, int]:
        """How many cuts and calls of kernels there were."""
        model = model or Gated()
        compiled = self.compiled(model, tune)
        with torch.no_grad():
            torch.testing.assert_close(compiled(X), model(X), rtol=1e-4, atol=1e-5)
        return self.cuts, self.kernels

    def trained(self, *, tune: float = 0.0, dynamic: bool = False) -> tuple[int, int]:
        """The same of a step of training, at two sizes where these differ by call. Memory that was saved is read twice
        by the backward graph."""
        ours, own = Gated(), Gated()
        compiled = self.compiled(ours, tune, dynamic=dynamic)
        for x in [X.clone(), torch.cat([X, X])][: 1 + dynamic]:  # PyTorch marks tensors whose sizes differ by call
            loss = compiled(x).square().sum()
            for some in (loss, own(x).square().sum()):
                some.backward(retain_graph=True)
                some.backward()
        for found, expected in zip(ours.parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
        return self.cuts, self.kernels


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with config.patch(enable_autograd_cache=True):
        yield


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: None) -> Starts:
    return Starts(tmp_path / "mirage.db", monkeypatch)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that kernels' functions are called."""
    for module in (backend_module, compiled_module):
        monkeypatch.setattr(module, "on_gpu", lambda _: True)


@pytest.mark.usefixtures("on_gpu")
def test_a_process_that_starts_anew_finds_a_graph_with_its_kernels(starts: Starts) -> None:
    """Compiled once more where it was searched: as it is found by what searches nothing. What the database has since
    learnt is another graph, and so is another function."""
    assert starts(tune=30.0) == (2, 1)
    assert starts() == (0, 1)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    with Database(starts.db) as store:
        (entry,) = store.list()
        store.remove(entry.key.id)
    assert starts() == (1, 0), "the database has none"
    assert starts() == (0, 0)


@pytest.mark.usefixtures("on_gpu")
def test_a_process_that_starts_anew_finds_a_training_step(starts: Starts) -> None:
    """Both of its graphs, with their kernels, which are searched before the first backward pass."""
    cuts, kernels = starts.trained(tune=20.0)
    assert cuts == 4, "searched, and compiled once more as it is found"
    assert kernels == 3, "the backward graph's is called twice"
    for _ in range(2):
        assert starts.trained() == (0, 3)
        assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    with Database(starts.db) as store:
        for entry in store.list():
            store.remove(entry.key.id)
    assert starts.trained() == (2, 0), "the database has none"


@pytest.mark.usefixtures("on_gpu")
def test_a_training_step_whose_sizes_differ_by_call_is_found(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its backward graph is compiled for sizes that differ, and for the same ones from the cache."""
    seen: list[tuple[str, ...]] = []

    def by_inductor(graph: torch.fx.GraphModule, inputs: Sequence[Any], _: object) -> Callable[..., Any]:
        seen.append(tuple(str(x.shape if isinstance(x, torch.Tensor) else x) for x in inputs))
        return graph.forward

    monkeypatch.setattr(compiled_module, "by_inductor", by_inductor)
    assert starts.trained(dynamic=True)[0] == 2
    assert not any("6" in x for x in seen[1]), seen
    assert starts.trained(dynamic=True) == (0, 0)
    assert seen[:2] == seen[2:]
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


def test_inputs_of_a_backward_graph_are_as_they_are_described() -> None:
    """Their lengths are those of this process's tensors, whose symbols have the same names."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.randn(6, 32), symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2))
    n, k = x.shape
    with mode:
        given = [x.t(), torch.empty(2 * n, k + 1, dtype=torch.bfloat16), n * k, torch.empty(3, 4).t()]
    made = as_described(described(given), [x])
    assert described(made) == described(given)
    with pytest.raises(ValueError, match="tensors with data"):
        as_described(described(given), [X])
    fixed = FakeTensorMode(shape_env=ShapeEnv())
    with pytest.raises(NameError):
        as_described(described([n]), [fixed.from_tensor(X, static_shapes=True)])


@pytest.mark.usefixtures("on_gpu")
def test_a_search_is_not_spared_by_a_start_without_one(starts: Starts) -> None:
    assert starts() == (1, 0)
    assert starts() == (0, 0)
    assert starts(tune=30.0)[1] == 1


@pytest.mark.usefixtures("kept")
def test_what_decides_is_in_the_key(tmp_path: Path) -> None:
    """A kernel, its time beside Inductor's, a spec, a budget that is spent; nothing of another GPU."""
    settings = Settings(target="h200", budget=0.0, db=tmp_path / "m.db")
    graph = torch.fx.symbolic_trace(nn.ReLU())

    def state(budget: float = 0.0, *, searches: bool = True) -> str:
        with_budget = Settings(target=settings.target, budget=budget, db=settings.db)
        return Compiler(with_budget, {}, graph, [X], searches).state()

    seen = [state()]
    assert seen[0], "it is kept"
    assert state(3.0) not in seen and state(3.0, searches=False) == seen[0]
    program = parse_spec(SPEC).at()
    target, measures = settings.gpu()
    for gpu in (target, "a100"):
        key = key_of(program, target if gpu is target else Settings(target="a100").gpu()[0], measures)
        assert key.gpu == gpu_of(target, measures) or gpu == "a100"
        with Database(tmp_path / "m.db") as store:
            store.put_beside(key, "text", 1.0, 2.0)
        assert (state() not in seen) == (gpu is target)
        seen.append(state())
    with Database(tmp_path / "m.db") as store:  # timed anew
        store.put_beside(key_of(program, target, measures), "text", 1.0, 2.5)
    assert state() not in seen
    seen.append(state())
    with Database(tmp_path / "m.db") as store:
        store.put_spec("0" * 16, "name", "text")
    assert state() not in seen
    with config.patch(enable_autograd_cache=False):
        assert state() == "", "PyTorch keeps nothing"


def compiled_of(model: nn.Module, *, as_given: bool = False, text: bool = True) -> Compiled:
    graph = torch.fx.symbolic_trace(model)
    return Compiled(pickled(graph)[0] if text else None, (), False, {}, described([X]), as_given)


def found() -> Found:
    return FOUND.get()


def test_inductor_compiles_what_no_kernel_makes_faster() -> None:
    """A process that starts anew knows so as soon as the graph is found."""
    compiled = compiled_of(nn.ReLU(), as_given=True)
    compiled.prepare_for_serialization()
    with noted(torch.fx.symbolic_trace(nn.ReLU()), "") as known:
        pickle.loads(pickle.dumps(compiled)).post_compile([X], None, {})
        assert found() is known and known.as_given


def test_a_graph_is_for_what_it_was_made_for() -> None:
    others: Sequence[Sequence[Any]] = ([X.T], [X.double()], [X[:3]], [X, X], [3], [X.to("meta")])
    with noted(torch.fx.symbolic_trace(nn.ReLU()), ""):
        compiled = compiled_of(nn.ReLU())
        compiled.post_compile([X], None, {})
        torch.testing.assert_close(compiled([X]), X.relu())
        for inputs in others:
            with pytest.raises(ValueError, match="the graph is for"):
                compiled.post_compile(inputs, None, {})


def test_constants_are_kept_with_their_data(starts: Starts) -> None:
    """PyTorch works with tensors without data while a graph is compiled."""

    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.eye(32) + torch.arange(32.0) + torch.tensor([3.0])

    for hits in (0, 1):
        starts(model=Shifted())
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits


@pytest.mark.parametrize("trained", [False, True])
def test_what_no_tensor_goes_into_is_computed_in_each_call(starts: Starts, trained: bool) -> None:
    """Random numbers, and tensors that are changed afterwards, also by who called."""

    def noisy(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = torch.zeros(4)
        count[1:3] += 1
        return x * torch.randn(6, 32) + torch.rand(()), count, torch.full((3,), 2.0)

    for hits in (0, 1):
        compiled = starts.compiled(noisy, 0.0)  # type: ignore[arg-type]
        x = X.clone().requires_grad_(trained)
        with torch.set_grad_enabled(trained):
            for seed in (1, 1, 2):
                found: list[tuple[torch.Tensor, ...]] = []
                for function in (noisy, compiled):
                    torch.manual_seed(seed)
                    found.append(function(x))
                torch.testing.assert_close(found[1], found[0])
                for y in found[1][1:]:
                    y.fill_(7.0)
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits


def test_what_cannot_be_read_is_compiled_anew(starts: Starts) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    for _ in range(2):
        starts(model=Branches())
        assert not counters["aot_autograd"]["autograd_cache_hit"]


def test_what_only_this_process_knows_is_not_kept() -> None:
    def of_this_process(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    graph = torch.fx.Graph()
    graph.output(graph.call_function(of_this_process, (graph.placeholder("x"),)))
    model = torch.fx.GraphModule(nn.Module(), graph)
    assert pickled(model) == (None, model)
    with pytest.raises(BypassAOTAutogradCache):
        compiled_of(nn.ReLU(), text=False).prepare_for_serialization()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_gpu_graphs_are_found_with_kernels_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside Inductor's code, alone, and as Inductor compiles what no kernel makes faster."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    cuts: list[int] = []
    own = backend_module.with_kernels

    def counted(*args: Any, **options: Any) -> Any:
        kernels = own(*args, **options)
        cuts.append(len(kernels))
        return kernels

    monkeypatch.setattr(backend_module, "with_kernels", counted)
    monkeypatch.setattr(backend_module, "faster", lambda gain, _: gain)
    x = torch.randn(6, 32, device="cuda")
    models = {"alone": Gated(), "beside": nn.Sequential(Gated(), nn.Conv1d(6, 6, 3, padding=1)), "none": nn.Tanh()}
    options = {"db": tmp_path / "mirage.db"}
    with torch.no_grad(), config.patch(enable_autograd_cache=True):
        for name, model in models.items():
            model = model.cuda()
            for start in range(3):
                torch._dynamo.reset()
                counters.clear()
                cuts.clear()
                tune = {"tune": 4.0} if start == 0 and name != "none" else {}
                y = torch.compile(model, backend=mirage, options=options | tune)(x)
                torch.testing.assert_close(y, model(x), rtol=1e-3, atol=1e-3)
                assert start == 0 or not cuts or (name == "none" and start == 1 and cuts == [0]), (name, start, cuts)
            assert counters["aot_autograd"]["autograd_cache_hit"] >= 1
