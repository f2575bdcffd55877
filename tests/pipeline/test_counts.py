"""Numbers of a PyTorch graph that follow from sizes that differ by call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.regions import Cut, cut, exported
from mirage_cli.tune.interpreted import Interpreter
from tests.pipeline.test_random import problem

ROWS, KEYS = Dim("rows", min=2, max=64), Dim("keys", min=2, max=64)


def of(function: Any, *inputs: torch.Tensor, dynamic: Any) -> Cut:
    return cut(exported(as_module(function), inputs, dynamic))


def program_text(found: Cut) -> Callable[..., torch.Tensor]:
    """The one region's program, as PyTorch evaluates it at the sizes of its inputs."""
    (region,) = found.regions
    names: dict[str, Any] = {"torch": torch}
    exec(torch_source(region.program), names)
    return names["reference"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.exp() / x.shape[0]).relu(),
        lambda x: x.exp() * x.shape[0] - 3 * x.shape[0],
        lambda x: x.sum(0) / (x.shape[0] - 1),
        lambda x: x.exp() * (x.shape[0] + 1),
        lambda x: x.exp() * -x.shape[0],
        lambda x: x.exp() * x.shape[0] ** -0.5,
        lambda x: x.exp() * x.shape[0] ** 0.5,
        lambda x: x.exp() * (1 / x.shape[0]),
        lambda x: x.exp() * (x.shape[0] * 0.25),
        lambda x: x.var(0),
        lambda x: x.std(0, unbiased=False) + x.mean(0),
        lambda x: x * (torch.arange(x.shape[0])[:, None] / x.shape[0]),
        lambda x: torch.where(torch.arange(x.shape[0])[:, None] < x.shape[0] - 1, x, x.exp()),
        lambda x: torch.nn.functional.mse_loss(x, x.sigmoid(), reduction="none").sum() / x.shape[0],
    ],
)
def test_it_is_that_of_the_call(function: Any) -> None:
    found = of(function, torch.randn(10, 24), dynamic=(({0: ROWS},),))
    assert not found.left
    run = program_text(found)
    for n in (2, 3, 24, 64):
        x = torch.randn(n, 24)
        torch.testing.assert_close(run(x), function(x))


def test_it_is_of_the_axis_that_has_the_size() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y.T / (y.shape[0] * x.shape[0])).softmax(1) * y.shape[0]

    found = of(function, torch.randn(10, 24), torch.randn(7, 24), dynamic=(({0: ROWS}, {0: KEYS}),))
    assert not found.left
    run, program = program_text(found), found.regions[0].program
    for n, m in ((2, 3), (31, 5), (64, 63)):
        x, y = torch.randn(n, 24), torch.randn(m, 24)
        given = (x, y) if program.inputs[0].dims[0] == program.outputs[0].dims[0] else (y, x)
        torch.testing.assert_close(run(*given), function(x, y))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x.exp() * ((x.shape[0] // 40) * 0.5), "no sum of products"),
        (lambda x: x.exp() * ((x.shape[0] % 40) ** 0.5), ""),
        (lambda x: (torch.arange(x.shape[0]) * x.shape[0])[:, None] * x, "whole numbers"),
    ],
)
def test_steps_and_whole_numbers_are_pytorchs(function: Any, why: str) -> None:
    found = of(function, torch.randn(10, 24), dynamic=(({0: ROWS},),))
    assert any(why in reason for reason in found.left.values()), found.left
    for n in (2, 24, 61):
        x = torch.randn(n, 24)
        torch.testing.assert_close(found.model(x), function(x))


SPEC = """
name: counted
dims: {m: {min: 1, max: 90, tune: [16, 48]}, k: 24, n: 20}
inputs: {X: [m, k], W: {dims: [k, n], scale: 0.1}}
program: |
  O = relu(dot(X / m, W, k)) * m ** 0.5 + (m - 1) / 64
  V = sum((X - mean(X, m)) ** 2, m) / m
outputs: {O: [m, n], V: [k]}
"""


def test_kernels_take_it_as_an_argument(interpreter: Interpreter) -> None:
    assert problem(SPEC, interpreter) is None
