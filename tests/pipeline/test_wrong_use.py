"""Optimised models used in other ways than they were traced: PyTorch's own behaviour, or a message that says why not.

Kernels are stood in for by PyTorch's operators: what is looked at is what stands around them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_leaves

import mirage_cli
from mirage_cli.errors import MirageError, NoKernelError, OptionError, TraceError
from mirage_cli.pipeline.backend import mirage, with_kernels
from mirage_cli.pipeline.callers import Kernel, Kernels, Settings
from mirage_cli.pipeline.models import model as model_module
from mirage_cli.pipeline.models import whole as whole_module
from mirage_cli.pipeline.models.beside import Beside
from mirage_cli.pipeline.models.model import Replaced, as_module
from mirage_cli.pipeline.models.regions import NO_GRAPH, exported
from mirage_cli.spec.aten.row import overloadless
from mirage_cli.spec.graph import Graph

BEST = SimpleNamespace(us=1.0, eager_us=None, status="predicted")
Optimize = Callable[..., torch.nn.Module]


class StandIn(Kernel):
    """A kernel that PyTorch computes, and whose calls count: not those by which a compiler asks for shapes."""

    calls = 0

    @property
    def function(self) -> Callable[..., Any]:  # type: ignore[override]
        def counted(*tensors: torch.Tensor) -> Any:
            StandIn.calls += not any(isinstance(x, FakeTensor) for x in tensors)
            with torch.no_grad(), torch.autocast("cpu", enabled=False):  # as kernels do
                return self.in_pytorch(*tensors)

        return counted

    @property
    def operator(self) -> Callable[..., Any]:
        return self.function


def stand_ins(_: object, graphs: Sequence[Graph], *__: object) -> list[Kernel]:
    result: Any = SimpleNamespace(best=BEST, variants=(), in_model=False)
    return [StandIn(g.program(), result, "", "") for g in graphs]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for every region."""
    for name in ("of", "known"):
        monkeypatch.setattr(Kernels, name, stand_ins)
    StandIn.calls = 0


@pytest.fixture
def optimize(tmp_path: Path) -> Optimize:
    def made(function: Callable[..., Any], *inputs: Any) -> torch.nn.Module:
        with torch.no_grad():
            return mirage_cli.optimize(function, inputs, db=tmp_path / "mirage.db", say=lambda _: None)

    return made


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 20), nn.Linear(20, 12)
        self.register_buffer("scale", torch.full((12,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)))) * self.scale


X = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def both(optimize: Optimize) -> tuple[nn.Module, nn.Module]:
    """A model, and the same with its kernel."""
    torch.manual_seed(0)
    model = Mlp().eval()
    return model, optimize(model, X)


def same(model: Callable[..., Any], fast: Callable[..., Any], *inputs: Any, kernels: int = 0) -> None:
    """The same numbers of both, the second with so many kernels."""
    StandIn.calls = 0
    expected = model(*inputs)
    close(fast(*inputs), expected)
    assert StandIn.calls == kernels


def close(found: Any, expected: Any) -> None:
    """Within some roundings of numbers about 1."""
    kind = next(x.dtype for x in (expected, *expected) if isinstance(x, torch.Tensor))
    atol = 64 * torch.finfo(kind).eps
    torch.testing.assert_close(found, expected, rtol=atol, atol=atol)


# -- inputs


@pytest.mark.parametrize(
    "lies", [lambda x: x.T.contiguous().T, lambda x: x[:1].expand(5, 12), lambda x: x.flip(0)[::1]]
)
@torch.no_grad()
def test_inputs_may_lie_in_any_order(both: tuple[nn.Module, nn.Module], lies: Any) -> None:
    same(*both, lies(X), kernels=1)


@torch.no_grad()
def test_what_is_more_than_numbers_is_pytorchs(both: tuple[nn.Module, nn.Module]) -> None:
    model, fast = both
    same(*both, torch._neg_view(X))
    same(torch.func.vmap(model), torch.func.vmap(fast), torch.stack([X, -X]))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, X + 1)
        tangents = [forward_ad.unpack_dual(f(dual)).tangent for f in both]
    torch.testing.assert_close(*tangents)
    with torch.inference_mode():
        same(*both, X, kernels=1)


@torch.no_grad()
def test_what_lies_where_the_model_changes_another_is_refused(optimize: Optimize) -> None:
    """`torch.export` writes the change back at the end: what is read of it behind the change would be as it was."""

    def doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.mul_(2)
        return torch.relu(x @ x.T + y)

    fast = optimize(doubled, torch.randn(4, 4), torch.randn(4, 4))
    whole = torch.randn(2, 4, 4)
    x, y = whole.clone()
    close(fast(*whole), doubled(x, y))  # two parts of one tensor
    torch.testing.assert_close(whole[1], y)
    for a, b in [(x, x), (x, x.T), (whole.view(8, 4)[2:6], whole[0])]:
        with pytest.raises(TraceError, match="argument 0: it lies where argument 1 does, which the model changes"):
            fast(a, b)


@pytest.mark.parametrize("kind", [torch.float16, torch.float64, torch.complex64, torch.int64])
def test_another_type_is_refused(both: tuple[nn.Module, nn.Module], kind: torch.dtype) -> None:
    with pytest.raises(TraceError, match=f"argument 0: it is {kind}, and was torch.float32"), torch.no_grad():
        both[1](X.to(kind))


@pytest.mark.parametrize(("whole_us", "operator_s", "used"), [(1.0, 1.0, True), (3.0, 1.0, False), (3.0, 9.0, True)])
def test_a_model_that_is_no_faster_as_a_whole_stays_pytorchs(
    whole_us: float, operator_s: float, used: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Regions are faster one by one. What needs a GPU is stood in for: compilers, and timings of 2 µs by Inductor. The
    model has six operators, and Inductor may take 20 s."""
    monkeypatch.setattr(Kernels, "measures", property(lambda _: True, lambda *_: None), raising=False)
    monkeypatch.setattr(model_module, "region_beside", lambda *_: Beside(1.0, 2.0))
    monkeypatch.setattr(model_module, "timed", lambda *_: Beside(whole_us, 2.0))
    monkeypatch.setattr(whole_module, "OPERATOR_S", operator_s)
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: None)
    model, said = Mlp().eval(), list[str]()
    with torch.no_grad():
        fast = mirage_cli.optimize(model, (X,), db=tmp_path / "mirage.db", say=said.append)
        assert any(isinstance(x, Replaced) for x in fast.children()) is used
        assert any("stays PyTorch's" in line for line in said) is not used
        torch.testing.assert_close(fast(X), model(X))
        with pytest.raises(TraceError):
            fast(X.half())


@pytest.mark.parametrize("given", [(X[:3],), (X[None],), (), (X, X)])
def test_other_sizes_and_numbers_of_inputs_are_refused(both: tuple[nn.Module, nn.Module], given: Any) -> None:
    with pytest.raises(TraceError, match=r"in the example|the example has 1"), torch.no_grad():
        both[1](*given)


def test_arguments_by_name_and_other_arrays_are_refused(both: tuple[nn.Module, nn.Module]) -> None:
    for named in ({"x": X}, {"scale": 2.0}):
        with pytest.raises(TraceError, match="by position"), torch.no_grad():
            both[1](*[X] * ("x" not in named), **named)
    with pytest.raises(TraceError, match="ndarray"), torch.no_grad():
        both[1](X.numpy())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PyTorch's own, as it copies a graph
def test_a_copy_looks_at_its_arguments_and_keeps_its_mode_too(both: tuple[nn.Module, nn.Module]) -> None:
    for fast in (copy.deepcopy(both[1]), copy.deepcopy(copy.deepcopy(both[1]))):
        for wrong in (X.half(), X[:3]):
            with pytest.raises(TraceError, match="argument 0"), torch.no_grad():
                fast(wrong)
        with pytest.raises(TraceError, match="stays in the mode"):
            fast.train()
        assert fast.eval() is fast
        assert len(fast._forward_pre_hooks) == 1


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PyTorch's own, as it copies a graph
def test_arguments_of_tensors_are_not_taken_apart(optimize: Optimize) -> None:
    """Nor are results put together, but for those in others."""
    kinds: list[tuple[Callable[..., Any], bool]] = [(lambda y: y, False), (lambda y: (y, y + 1), False)]
    for results, apart in (*kinds, (lambda y: [y], False), (lambda y: {"y": y}, True), (lambda y: (y, [y + 1]), True)):
        fast = optimize(lambda x, r=results: r(F.gelu(x)), X)
        assert ("pytree" in fast.code) is apart
        made, wanted = fast(X), results(F.gelu(X))
        assert type(made) is type(wanted)
        torch.testing.assert_close(made, wanted)
        torch.testing.assert_close(copy.deepcopy(fast)(X), wanted)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).reshape(-1)[::3],
        lambda x: (x.exp()[:, ::2], (x + 1).T),
        lambda x: {"mean": x.mean(0).expand(5, 12) + 1},
    ],
)
def test_results_have_the_gaps_that_pytorchs_have(optimize: Optimize, function: Callable[..., Any]) -> None:
    """Each element in its own place, and slices of what has none between them with gaps. They have derivatives."""
    model, x = optimize(function, X), X.clone().requires_grad_()
    made = tree_leaves(model(X))
    assert StandIn.calls == 1
    for y, expected in zip(made, tree_leaves(function(X)), strict=True):
        torch.testing.assert_close(y, expected)
        assert y.stride() == expected.stride()
        y.mul_(2)
    with torch.enable_grad():
        found, wanted = (
            torch.autograd.grad(sum(y.square().sum() for y in tree_leaves(f(x))), x) for f in (model, function)
        )
    torch.testing.assert_close(found, wanted)


def test_arguments_of_another_structure_are_refused(optimize: Optimize) -> None:
    fast = optimize(lambda x, y: F.gelu(x["a"]) + y[0] + y[1], {"a": X}, (X, X))
    torch.testing.assert_close(fast({"a": X}, (X, X)), F.gelu(X) + X + X)
    for given in (({"b": X}, (X, X)), ({"a": X}, [X, X]), ({"a": X, "b": X}, X), (X, X, X), (X, X)):
        with pytest.raises(TraceError, match="example"):
            fast(*given)
    with pytest.raises(TraceError, match="argument 0: it is a dict of b, and was a dict of a in the example"):
        fast({"b": X}, (X, X))
    with pytest.raises(TraceError, match="argument 1: it is a tensor, and was a tuple of 2 in the example"):
        fast({"a": X}, X)
    with pytest.raises(TraceError, match="1 are given, and the example has 2"):
        optimize(lambda x, y: F.gelu(x) + y, X, X)((X, X))


def test_a_class_and_sizes_of_no_argument_are_refused_before_anything_is_traced() -> None:
    traced: list[str] = []
    with pytest.raises(TypeError, match="not the class Linear"):
        mirage_cli.optimize(nn.Linear, (X,), say=traced.append)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"an entry for each argument.*not True"):
        mirage_cli.optimize(F.gelu, (X,), dynamic=True, say=traced.append)
    assert not traced


def test_a_tensor_alone_is_one_example(tmp_path: Path) -> None:
    fast = mirage_cli.optimize(F.gelu, X, budget=0, db=tmp_path / "mirage.db", say=lambda _: None)
    torch.testing.assert_close(fast(X), F.gelu(X))


@pytest.mark.parametrize(("example", "given"), [(2.0, 3.0), (2, 3), (None, X), (True, False), ("a", "b")])
def test_what_is_no_tensor_is_as_in_the_example(optimize: Optimize, example: Any, given: Any) -> None:
    def function(x: torch.Tensor, y: Any) -> torch.Tensor:
        return F.gelu(x) * (y if isinstance(y, int | float) else 2)

    fast = optimize(function, X, example)
    same(function, fast, X, example, kernels=1)
    with pytest.raises(TraceError, match="in the example"):
        fast(X, given)


def test_a_compiled_call_looks_at_its_arguments_too(both: tuple[nn.Module, nn.Module]) -> None:
    fast = torch.compile(both[1], backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(fast(X), both[0](X))
        with pytest.raises(TraceError, match="argument 0"):
            fast(X.half())


# -- gradients


def test_gradients_are_pytorchs(both: tuple[nn.Module, nn.Module]) -> None:
    found: list[list[torch.Tensor]] = []
    for f in both:
        x = X.clone().requires_grad_()
        parameters = [x, *f.parameters()]
        first = torch.autograd.grad(f(x).square().sum(), parameters, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), parameters)
        found.append([*first, *second])
    torch.testing.assert_close(*found)
    assert StandIn.calls == 0


def test_a_tensor_that_a_function_holds_has_its_gradient(optimize: Optimize) -> None:
    """It is no parameter, so that PyTorch's export detaches it."""
    weight = torch.randn(12, 7, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.relu(x @ weight)

    found, expected = (torch.autograd.grad(f(X).square().sum(), weight) for f in (optimize(function, X), function))
    torch.testing.assert_close(found, expected)


def test_functional_gradients_are_pytorchs(both: tuple[nn.Module, nn.Module]) -> None:
    model, fast = both
    for transform in (torch.func.jacrev, torch.func.jacfwd, lambda f: torch.func.hessian(lambda x: f(x).sum())):
        same(transform(model), transform(fast), X)


# -- types


@torch.no_grad()
def test_autocast_is_pytorchs_unless_traced_in(both: tuple[nn.Module, nn.Module], optimize: Optimize) -> None:
    model = nn.Sequential(nn.Linear(12, 12), nn.GELU())
    fast = optimize(model, X)
    with torch.autocast("cpu", torch.bfloat16):
        same(model, fast, X)
        same(*both, X)
        within = optimize(model, X)
        same(model, within, X, kernels=1)
    with torch.autocast("cpu", torch.float16):
        same(model, within, X)
    same(model, within, X)
    same(model, fast, X, kernels=1)


# -- parameters


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PyTorch's own, as it copies a graph
@torch.no_grad()
def test_parameters_are_the_models(both: tuple[nn.Module, nn.Module]) -> None:
    model, fast = both
    assert fast.state_dict().keys() == model.state_dict().keys()
    model.up.weight.mul_(1.5)
    model.scale.add_(1)
    same(*both, X, kernels=1)
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    same(*both, X, kernels=1)
    fast.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    same(*both, X, kernels=1)
    other = copy.deepcopy(fast)
    same(fast, other, X, kernels=2)
    other.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
    assert not torch.equal(other(X), fast(X))
    doubled = {k: v * 2 for k, v in fast.named_parameters()}
    found, expected = (torch.func.functional_call(f, doubled, (X,)) for f in (fast, model))
    close(found / expected.abs().max(), expected / expected.abs().max())


@torch.no_grad()
def test_tied_weights_stay_tied(optimize: Optimize) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
            self.head.weight = self.words.weight

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.head(self.words(i)))

    model, words = Tied(), torch.tensor([3, 0, 11])
    fast = optimize(model, words)
    assert fast.state_dict().keys() == model.state_dict().keys()
    model.words.weight.mul_(2)
    same(model, fast, words, kernels=1)


# -- modes


def test_a_model_stays_in_its_mode(both: tuple[nn.Module, nn.Module]) -> None:
    _, fast = both
    assert not fast.training and fast.eval() is fast
    assert nn.Sequential(fast).eval()[0] is fast
    with pytest.raises(TraceError, match="stays in the mode"):
        fast.train()


@torch.no_grad()
def test_dropout_draws_as_pytorch_does(optimize: Optimize) -> None:
    model = nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.5), nn.GELU())
    fast = optimize(model, X)
    found: list[torch.Tensor] = []
    for f in (model, fast):
        torch.manual_seed(1)
        found += [f(X), f(X)]
    torch.testing.assert_close(found[:2], found[2:])
    assert not torch.equal(found[0], found[1])
    with pytest.raises(TraceError, match="stays in the mode"):
        fast.eval()


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)])
@pytest.mark.parametrize("twice", [False, True])
def test_running_statistics_are_kept(optimize: Optimize, norm: nn.Module, twice: bool) -> None:
    """PyTorch does not say of a norm that it changes them."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = copy.deepcopy(norm)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.gelu(self.norm(F.silu(x)))
            return self.norm(y * 3 + 1) if twice else y

    x = torch.randn(3, 4, 5)
    model, other = Model(), Model()
    fast = optimize(model, x)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(fast(x), other(x))
        torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()))


# -- results


def result_and_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.relu(x) * 2
    return y, y.view(-1), y.t()


def input_and_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x, x.t(), F.relu(x) * 2


def view_that_is_used(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.relu(x) * 2
    z = y.t()
    return y, z, F.gelu(z) + 1


def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.relu(x) * 2
    return y, y


def parts_of_an_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = x.chunk(2, -1)
    return a, b, *(F.relu(a) * 2 + b).split(3, 1)


@pytest.mark.parametrize("function", [result_and_view, input_and_view, view_that_is_used, twice, parts_of_an_input])
def test_views_among_the_results_stay_views(optimize: Optimize, function: Any) -> None:
    fast = optimize(function, X)
    same(function, fast, X, kernels=1)
    places = [[x.untyped_storage().data_ptr() for x in f(X)] for f in (fast, function)]
    shared = [[i == j for i in some for j in [*some, X.untyped_storage().data_ptr()]] for some in places]
    assert shared[0] == shared[1]


def as_it_lies(x: torch.Tensor) -> torch.Tensor:
    return (F.gelu(x.t()) * 2).as_strided((12, 5), (1, 12))


def flat_again(x: torch.Tensor) -> torch.Tensor:
    return torch.digamma(F.gelu(x.t()) + 1).t().view(-1)


@pytest.mark.parametrize(
    "function", [as_it_lies, flat_again, lambda x: F.gelu(x.t()), lambda x: x.view(5, 3, 4).mT.exp() + 1]
)
def test_results_lie_as_pytorchs_do(optimize: Optimize, function: Any) -> None:
    fast = optimize(function, X)
    same(function, fast, X, kernels=1)
    assert fast(X).stride() == function(X).stride()


def test_pictures_may_lie_channels_last(optimize: Optimize) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.SiLU()).requires_grad_(False)
    picture = torch.randn(2, 4, 6, 5).to(memory_format=torch.channels_last)
    fast = optimize(model, picture)
    same(model, fast, picture, kernels=1)
    same(model, fast, picture.contiguous(), kernels=1)
    assert fast(picture).is_contiguous(memory_format=torch.channels_last)


# -- changes in place


def doubled_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return F.gelu(x) + y


def through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    v = x.view(-1)
    v[:12].add_(1)
    return F.gelu(x) + y


def copied_back(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.copy_(F.gelu(x) * y)
    return x + 1


@pytest.mark.parametrize("function", [doubled_first, through_a_view, copied_back])
def test_changed_inputs_are_changed(optimize: Optimize, function: Any) -> None:
    fast = optimize(function, X.clone(), X)
    inputs = [(X.clone(), X + 1) for _ in range(2)]
    torch.testing.assert_close(fast(*inputs[0]), function(*inputs[1]))
    torch.testing.assert_close(*inputs)
    with pytest.raises(RuntimeError, match=r"leaf Variable|a view of a leaf"):
        fast(X.clone().requires_grad_(), X)


# -- functions


@pytest.fixture
def gated(tmp_path: Path) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """A function, and the same by a kernel."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ w)

    return function, mirage_cli.kernel(db=tmp_path / "mirage.db")(function)


W = torch.randn(12, 7, generator=torch.Generator().manual_seed(1))


def test_a_function_is_pytorchs_where_a_kernel_is_not_it(gated: Any) -> None:
    function, fast = gated
    same(*gated, X, W, kernels=1)
    same(*gated, X.mT.contiguous().mT, W, kernels=1)
    same(*gated, torch._neg_view(X), W)
    same(torch.func.vmap(function), torch.func.vmap(fast), torch.stack([X, -X]), torch.stack([W, W]))
    with torch.autocast("cpu", torch.bfloat16):
        same(*gated, X, W, kernels=1)  # another kernel
    same(*gated, X, W, kernels=1)
    same(*gated, X.half(), W.half(), kernels=1)
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(fast(x, W).square().sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(function(x, W).square().sum(), x, create_graph=True)
    torch.testing.assert_close(first, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(g.square().sum(), x)[0] for g in (first, wanted)))


@pytest.mark.parametrize(
    ("function", "given", "problem"),
    [
        (lambda x, k: F.gelu(x) * k, (X, 2.0), "argument 1 is no tensor"),
        (lambda x: (F.gelu(x), x.t()), (X,), "returns a view of an argument"),
        (lambda x: F.gelu(x).mul_(2).add_(x.sub_(1)), (X,), "changes a tensor in place"),
        (lambda x: F.gelu(x), (X.double(),), "float64"),
        (lambda x: F.gelu(x), (X.to(torch.complex64),), "complex64"),
        (lambda x: x.nonzero() * 2, (X,), "a size of what it makes depends"),
        (lambda x: x * x.sum().item(), (X,), "aten._local_scalar_dense: no operator that is known here"),
        (lambda x: str(x), (X,), "returns tensors alone, and not str"),
        (lambda x: x, (X,), "computes nothing of its arguments that is a tensor"),
    ],
)
def test_functions_that_are_no_kernels_say_why(function: Any, given: Any, problem: str) -> None:
    with pytest.raises((TraceError, RuntimeError), match=problem):
        mirage_cli.kernel(function)(*given)


def test_what_cannot_be_called_is_no_model(optimize: Optimize) -> None:
    with pytest.raises(TypeError, match=r"a model is an nn\.Module or a function, not str"):
        optimize("model.pt", X)


def test_a_kernels_arguments_are_given_by_position() -> None:
    with pytest.raises(TraceError, match="give x by position"):
        mirage_cli.kernel(lambda x: F.gelu(x))(x=X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: (x * 2,),
        lambda x: [x * 2, x + 1],
        lambda x: (x * 2, x + 1),
        lambda x: {"twice": x * 2, "more": (x + 1, [x - 1])},
    ],
)
def test_a_kernels_results_lie_in_what_the_function_returns(function: Callable[..., Any]) -> None:
    fast = mirage_cli.kernel(function)
    for x in (X, X.clone().requires_grad_()):
        made, wanted = (tree_flatten(f(x)) for f in (fast, function))
        assert made[1] == wanted[1]
        for y, right in zip(made[0], wanted[0], strict=True):
            assert torch.equal(y, right) and y.requires_grad == right.requires_grad
    assert StandIn.calls == 1


@pytest.mark.parametrize(("function", "what"), [(lambda x: (x * 2, None), "NoneType"), (lambda x: [3, x * 2], "int")])
def test_what_is_no_tensor_is_no_result(function: Callable[..., Any], what: str) -> None:
    with pytest.raises(TraceError, match=f"returns tensors alone, and not {what}"):
        mirage_cli.kernel(function)(X)


# -- programs


def test_pytorch_computes_what_is_written_in_parts_and_in_place() -> None:
    g = mirage_cli.Graph("parts", dims={"m": 5, "k": 12, "h": 6}, dtype="float32")
    x, m, h = g.input("X", "m", "k"), g.axis("m"), g.axis("h")
    halves = g.parts("O", "m", "k")
    halves[m, h] = x[m, 2 * h]
    halves[m, h + 6] = x[m, 2 * h + 1]
    (kernel,) = stand_ins(None, [g])
    assert torch.equal(kernel.in_pytorch(X), torch.cat([X[:, ::2], X[:, 1::2]], 1))

    g = mirage_cli.Graph("doubled", dims={"m": 5, "k": 12}, dtype="float32")
    x = g.input("X", "m", "k")
    x[g.axis("m"), g.axis("k")] = x * 2
    g.written("X")
    (kernel,) = stand_ins(None, [g])
    given = X.clone()
    assert kernel.in_pytorch(given) is None
    assert torch.equal(given, X * 2)


def test_a_program_looks_at_its_tensors_on_every_device() -> None:
    g = mirage_cli.Graph("product", dims={"m": 5, "k": 12, "n": 7}, dtype="float32")
    g.output("O", mirage_cli.dot(g.input("X", "m", "k"), g.input("W", "k", "n"), "k"), "m", "n")
    (kernel,) = stand_ins(None, [g])
    torch.testing.assert_close(kernel.in_pytorch(X, W), X @ W)
    for wrong, problem in (
        ((X,), "takes 2 tensors, and 1 are given"),
        ((X.half(), W), "X should have the dtype torch.float32, not torch.float16"),
        ((X[:1], W), r"X should have the shape \(5, 12\), not \(1, 12\)"),
        ((X, W.mT), r"W should have the shape \(12, 7\), not \(7, 12\)"),
        ((X, 3), "W should be a tensor, not int"),
    ):
        with pytest.raises((TypeError, ValueError), match=problem):
            kernel.run(*wrong)


# -- rows that are not there


def test_a_compiled_model_refuses_rows_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 6), nn.GELU()).eval()
    fast = torch.compile(model, backend="mirage", options={"db": tmp_path / "mirage.db"})
    with torch.no_grad():
        same(model, fast, torch.tensor([9, 0]), kernels=1)
        for numbers in ([10, 0], [0, -1]):
            with pytest.raises(RuntimeError, match="names no row"):
                fast(torch.tensor(numbers))


@torch.no_grad()
def test_rows_by_vmap_are_pytorchs(optimize: Optimize) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 6), nn.GELU()).eval()
    at = torch.tensor([[9, 0], [3, 1]])
    fast = optimize(model, at[0])
    same(torch.vmap(model), torch.vmap(fast), at)
    with pytest.raises(RuntimeError, match="names no row"):
        torch.vmap(fast)(at + 1)


def test_a_graph_without_kernels_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(Kernels, "known", lambda _, graphs: [NoKernelError("none", "none") for _ in graphs])

    def write(x: torch.Tensor, at: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        keys[at] = F.gelu(x)
        return F.embedding(at, x * 2) + 1

    model = exported(as_module(write), (X, torch.tensor([1, 0, 2, 3, 4]), torch.zeros(5, 12)))
    with_kernels(model, Settings(budget=0.0, db=tmp_path / "mirage.db"))
    assert not {"aten._assert_async", "aten.remainder"} & {overloadless(n.target) for n in model.graph.nodes}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"budget": -1}, "a budget is a number of seconds, 0 or more, and not -1"),
        ({"budget": "x"}, "a budget is a number of seconds, 0 or more, and not 'x'"),
        ({"target": "h300"}, "no GPU is known as 'h300'"),
        ({"target": None}, "no GPU is known as None"),
        ({"seed": -1}, "a seed is a whole number, 0 to 9223372036854775807, and not -1"),
        ({"seed": 1.5}, "a seed is a whole number, 0 to 9223372036854775807, and not 1.5"),
        ({"workers": -3}, "workers are a whole number, 1 to 1024, and not -3"),
        ({"workers": "x"}, "workers are a whole number, 1 to 1024, and not 'x'"),
    ],
)
def test_options_are_looked_at_before_anything_is_traced(options: dict[str, Any], problem: str) -> None:
    in_kernel = {"tune" if name == "budget" else name: x for name, x in options.items()}
    with pytest.raises(MirageError, match=problem):
        mirage_cli.optimize(Mlp(), (X[:, :1],), **options)  # which cannot be traced
    with pytest.raises(MirageError, match=problem):
        mirage_cli.kernel(**in_kernel)
    with pytest.raises(MirageError, match=problem):
        mirage(torch.fx.symbolic_trace(Mlp()), (), options=in_kernel)


def test_a_model_that_is_no_one_graph_is_told_what_takes_it() -> None:
    """PyTorch's error stays what it is, and has a note."""
    model = as_module(lambda x: x if x.sum() > 0 else -x)
    with pytest.raises(Exception, match="data-dependent") as found:
        exported(model, (torch.randn(2, 16),))
    assert found.value.__notes__ == [NO_GRAPH]
