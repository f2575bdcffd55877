"""Values that a program divides by the largest of them before it squares them."""

from __future__ import annotations

import pytest
import torch

from mirage_cli.algebra.canonical import Algebra
from mirage_cli.algebra.safe import plain_forms
from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.ir.derived import lower
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target

NORM = """
name: norm
dims: {{m: 5, n: {n}, k: 6}}
dtype: float32
inputs: {{X: [m, n], W: [n, k]}}
program: |
  T = {largest}
  Y = {scaled}
  S = {squares}
  O = T * sqrt(S)
  U = dot(W, X, n)
outputs: {{O: [m], U: [m, k]}}
"""
PLAIN = {"n": 300, "largest": "max(abs(X), n)", "scaled": "X / T", "squares": "sum(Y * Y, n)"}


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")  # of rows that are not there
@pytest.mark.parametrize(
    "other",
    [
        {},
        {"squares": "dot(Y, Y, n)"},
        {"squares": "mean(Y ** 2, n) * n"},
        {"scaled": "X * (1 / T)"},
        {"largest": "maximum(max(abs(X), n), 1e-30)"},
        {"largest": "max(abs(X), n) + 1e-35", "squares": "sum(square(Y), n)"},
        {"largest": "max(where(index(n) < 300, abs(X), 0), n)", "scaled": "X / (max(abs(X), n))"},
        {"n": 9000},
    ],
)
def test_no_plan_squares_what_the_program_scales(other: dict[str, object]) -> None:
    """Squares of 1e25 are infinite in float32, and those of 1e-30 are 0."""
    text = NORM.format(**PLAIN | other)
    program = parse_spec(text).at()
    found = search_program(program, find_target("h100"), Options(budget_s=30, tune=False))
    assert found.plans and not found.rejected
    torch.manual_seed(0)
    for plan in found.plans[:4]:
        norm = load_export(export_source(program, plan.graph, plan.schedule)).norm
        for size in (1.0, 1e25, 1e-30):
            x = torch.randn(5, program.sizes["n"]) * size
            got, _ = norm(x, torch.zeros(program.sizes["n"], 6))
            torch.testing.assert_close(got.double() / size, x.double().norm(dim=1) / size, atol=0, rtol=1e-5)


def forms(program: str) -> tuple[Algebra, list[object]]:
    algebra = Algebra()
    lines = "\n".join(f"  {line.strip()}" for line in program.split(";"))
    text = f"name: p\ndims: {{m: 4, n: 8, k: 6}}\ninputs: {{X: [m, n], W: [n, k]}}\nprogram: |\n{lines}\n"
    spec = parse_spec(f"{text}outputs: {{A: {{dims: []}}, B: {{dims: []}}}}\n".replace("{dims: []}", "[m]"))
    found = plain_forms(algebra, lower(spec.at()))
    return algebra, [found["A"], found["B"]]


@pytest.mark.parametrize(
    "program",
    [
        "T = max(abs(X), n); A = sum((X / T) * (X / T), n); B = sum(X / T * (1 / T) * X, n)",
        "T = max(abs(X), n); A = sum((X / T) * X, n); B = sum(X * X / T, n)",
        "T = max(abs(X), n); A = sum(T * X / T * X, n); B = sum(X * X, n)",
        "T = max(abs(X), n); A = sum(T * (X / T) * (X / T) * T, n); B = sum(X * X, n)",
        "T = max(abs(X), n); A = sum(X / T, n); B = sum(X, n) / T",
        "T = max(abs(X), n); A = sum(dot(X / T, W, n), k); B = sum(dot(X, W, n), k) / T",
        "T = sum(abs(X), n); A = sum((X / T) * (X / T), n); B = sum(X * X, n) / (T * T)",
        "T = max(X, n); A = sum((X / T) * (X / T), n); B = sum(X * X, n) / (T * T)",
    ],
)
def test_what_is_one_value_has_one_form(program: str) -> None:
    _, (a, b) = forms(program)
    assert a is b


@pytest.mark.parametrize(
    "program",
    [
        "T = max(abs(X), n); A = sum((X / T) * (X / T), n); B = sum(X * X, n) / (T * T)",
        "T = max(X * X, n); A = sum(X * X / T, n); B = sum(X * X, n) / T",
    ],
)
def test_squares_stay_scaled(program: str) -> None:
    _, (a, b) = forms(program)
    assert a is not b
