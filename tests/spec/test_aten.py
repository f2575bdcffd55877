"""PyTorch's functions and modules as programs: whole, and in float64 the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mirage_cli.pipeline.model import as_module
from mirage_cli.pipeline.partition import calls
from mirage_cli.pipeline.regions import as_given, cut, exported
from mirage_cli.spec.aten import Traced, trace
from mirage_cli.spec.positional import Trace, Unsupported, einsum, elementwise, reshaped
from mirage_cli.verify.numeric import reference64
from tests.torch_programs import CASES


def whole(function: Any, inputs: tuple[Any, ...]) -> tuple[torch.fx.GraphModule, Traced]:
    model = exported(as_module(function), inputs)
    outputs = next(n for n in model.graph.nodes if n.op == "output").all_input_nodes
    return model, trace(calls(model.graph), outputs, "whole")


def value_of(model: torch.fx.GraphModule, node: Any, inputs: tuple[Any, ...]) -> torch.Tensor:
    if node.op == "get_attr":
        found: Any = model
        for name in node.target.split("."):
            found = getattr(found, name)
        return found.detach()
    places = [n for n in model.graph.nodes if n.op == "placeholder"]
    return inputs[places.index(node)]


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_what_pytorch_computes(name: str) -> None:
    function, inputs = CASES[name]
    if isinstance(function, torch.nn.Module):
        function.eval()
    model, traced = whole(function, inputs)
    program = traced.graph.program()
    nodes = dict(traced.inputs)
    given = [
        as_given(value_of(model, nodes[t.name], inputs), [program.sizes[d] for d in t.dims]) for t in program.inputs
    ]
    found = reference64(program, given)
    with torch.no_grad():
        expected = model(*inputs)
    expected = [x for x in (expected if isinstance(expected, tuple | list) else [expected]) if x is not None]
    assert len(found) == len(expected)
    for y, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(y.reshape(wanted.shape), wanted.double(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_no_operator_is_left(name: str) -> None:
    """Cut in regions that agree with PyTorch, and the same when put together."""
    function, inputs = CASES[name]
    if isinstance(function, torch.nn.Module):
        function.eval()
    with torch.no_grad():
        expected = as_module(function)(*inputs)
        found = cut(exported(as_module(function), inputs))
        assert found.left == {}
        assert found.regions
        torch.testing.assert_close(found.model(*inputs), expected)


def test_weights_that_one_input_is_multiplied_by_stay_apart() -> None:
    _, traced = whole(*CASES["gated_mlp"])
    assert len(traced.inputs) == 4
    assert traced.graph.text().count("dot(") == 3


def test_a_packed_projection_is_split_in_heads() -> None:
    """The packed weight is read at an offset, not copied; no axis has a size that is no head's."""
    _, traced = whole(*CASES["attention"])
    program = traced.graph.program()
    (weight,) = (t for t in program.inputs if [program.sizes[d] for d in t.dims] == [96, 32])
    assert weight.name in traced.graph.text()


# -- axes by position


def test_axes_that_are_taken_side_by_side_are_one() -> None:
    t = Trace()
    a, b = t.input("A", (3, 4), "float32"), t.input("B", (3, 4), "float32")
    c = elementwise(lambda x, y: x + y, a, b)
    assert t.graph("p", {"O": (c, "float32")}).dims == {"a0": 3, "a1": 4}


def test_a_shape_splits_an_axis_everywhere() -> None:
    t = Trace()
    a, w = t.input("A", (3, 8), "float32"), t.input("W", (8, 5), "float32")
    product = einsum("mk,kn->mn", a, w)
    heads = reshaped(a, (3, 2, 4))
    graph = t.graph("p", {"O": (product, "float32"), "H": (elementwise(lambda x: x * 2, heads), "float32")})
    assert sorted(graph.dims.values()) == [2, 3, 4, 5]
    program = graph.program()
    assert [[program.sizes[d] for d in x.dims] for x in program.inputs] == [[3, 2, 4], [2, 4, 5]]


def test_two_axes_of_one_tensor_stay_two() -> None:
    t = Trace()
    a = t.input("A", (4, 4), "float32")
    text = t.graph("p", {"O": (einsum("mk,nk->mn", a, a), "float32")}).text()
    assert "rename(X" not in text and "rename(A" in text


def test_shapes_that_cut_axes_across_are_refused() -> None:
    t = Trace()
    a = t.input("A", (6, 4), "float32")
    with pytest.raises(Unsupported, match="across"):
        reshaped(a, (8, 3))


def test_an_operator_that_is_not_known_is_named() -> None:
    with pytest.raises(Unsupported, match=r"aten\.cumsum"):
        whole(lambda x: x.cumsum(-1), (torch.randn(3, 4),))


def test_whole_numbers_are_no_results() -> None:
    with pytest.raises(Unsupported, match="int64"):
        whole(lambda x: torch.arange(4) * 2 + x.shape[0], (torch.randn(3, 4),))
