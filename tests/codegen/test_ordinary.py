"""Exported functions and operators where PyTorch makes more of a tensor than its numbers: right, or refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from mirage_cli.codegen.export import ExportInfo, load_export
from mirage_cli.codegen.exported.ordinary import has_tangent, only_numbers
from mirage_cli.codegen.sized import Variant, any_source
from mirage_cli.ir.program import Builder, Program
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph

TRIPLED = """
mugraph tripled float32
dims m=5 n=7
input X f32[m, n]
output O f32[m, n]
kernel k0 generated m:grid n:grid
  X = load X[m, n]
  O[m, n] = mul(X, 3)
  store O[m, n] = O
"""


def variant(rows: int) -> Variant:
    graph = parse_mugraph(TRIPLED).resized({"m": rows, "n": 7})
    b = Builder(graph.inputs, ["m", "n"])
    b.emit("mul", "X", 3.0, out="O")
    program = Program("tripled", graph.dims, graph.dtype, graph.inputs, tuple(b.eqns), graph.outputs)
    return Variant(program, graph, Schedule({"k0": KernelSchedule((("m", 4), ("n", 4)), ("m", "n"))}), ExportInfo())


def operator_of(source: str) -> Any:
    function = load_export(source).tripled
    (call,) = (n for n in make_fx(lambda x: function(x))(X).graph.nodes if "mirage" in str(n.target))
    return call.target


X = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
FUNCTIONS = {"of one size": (5,), "of several": (5, 6)}
OPERATORS = {"operator": (5,), "operator of several sizes": (5, 6)}
Function = Callable[[torch.Tensor], torch.Tensor]


@cache
def source(rows: tuple[int, ...]) -> str:
    return any_source(*map(variant, rows))


@pytest.fixture(params=[*FUNCTIONS, *OPERATORS])
def tripled(request: pytest.FixtureRequest) -> Function:
    """Made in a test: a run of the GPU tests imports this module where nothing interprets kernels."""
    if request.param in FUNCTIONS:
        return load_export(source(FUNCTIONS[request.param])).tripled
    return operator_of(source(OPERATORS[request.param]))


def test_numbers_in_memory_are_ordinary() -> None:
    views = X[1:], X.mT, X.expand(2, 5, 7), torch.nn.Parameter(X)
    assert all(only_numbers(x) for x in (X, *views))
    with torch.inference_mode():
        assert only_numbers(X.clone())


def test_what_pytorch_negates_when_it_is_read(tripled: Function) -> None:
    assert not only_numbers(torch._neg_view(X))
    torch.testing.assert_close(tripled(torch._neg_view(X)), -X * 3)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_takes_one_call_after_another(tripled: Function) -> None:
    several = torch.stack([X, -X, X * 2])
    torch.testing.assert_close(torch.func.vmap(tripled)(several), several * 3)


def test_a_graph_that_is_recorded_has_the_operator(tripled: Function) -> None:
    recorded = make_fx(lambda x: tripled(x))(X)
    assert [n for n in recorded.graph.nodes if "mirage" in str(n.target)]
    torch.testing.assert_close(recorded(X + 1), (X + 1) * 3)


def test_a_mode_sees_the_operator(tripled: Function) -> None:
    class Seen(TorchDispatchMode):
        names: list[str]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Seen() as seen:
        seen.names = []
        tripled(X)
    assert [n.partition("_")[0] for n in seen.names] == ["mirage.tripled"]


def test_meta_tensors_have_a_shape_alone(tripled: Function) -> None:
    made = tripled(X.to("meta"))
    assert made.is_meta and made.shape == X.shape


def test_a_tangent_is_refused_at_the_call(tripled: Function) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, X)
        assert has_tangent(dual) and not has_tangent(X)
        torch.testing.assert_close(tripled(X), X * 3)
        with pytest.raises(NotImplementedError, match="X has a tangent"):
            tripled(dual)
    if inspect.isfunction(tripled):  # of an operator without a derivative, PyTorch says that it is 0
        with pytest.raises(NotImplementedError, match="X has a tangent"):
            torch.func.jvp(tripled, (X,), (X,))


def test_a_gradient_is_refused(tripled: Function) -> None:
    made = tripled(X.clone().requires_grad_())
    with pytest.raises(RuntimeError, match="no autograd formula"):
        made.sum().backward()
    with pytest.raises(RuntimeError):
        torch.func.grad(lambda x: tripled(x).sum())(X)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (X.double(), "dtype torch.float32, not torch.float64"),
        (X.half(), "dtype torch.float32, not torch.float16"),
        (X[:3], r"not \(3, 7\)|not for m=3"),
        (X[None], r"not \(1, 5, 7\)"),
        (torch.randn(7, 5).mT, "should be contiguous"),
    ],
)
def test_an_operator_checks_its_inputs_as_the_function_does(
    tripled: Function, wrong: torch.Tensor, problem: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        tripled(wrong)
