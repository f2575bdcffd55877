"""Products that a library computes."""

from __future__ import annotations

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.interpreted import Interpreter
from tests.searched import searched

SPEC = """
name: grouped
dims: {{m: {m}, g: 8, c: {c}, k: {k}}}
dtype: float16
inputs:
  X: [m, k]
  W: {{dims: {dims}, strides: {strides}, scale: 0.02}}
program: |
  Y = dot(X, W, k)
  O = Y - mean(Y, c)
outputs: {{O: [m, g, c]}}
"""


def with_library(dims: str, strides: str, m: int, c: int, k: int) -> list[MuGraph]:
    program = parse_spec(SPEC.format(m=m, c=c, k=k, dims=dims, strides=strides)).at()
    graphs = [p.graph for p in searched(program).plans]
    return [g for g in graphs if any(x.kind == "library" for x in g.kernels)]


def test_columns_that_are_several_axes_side_by_side_are_one_product(interpreter: Interpreter) -> None:
    assert with_library("[g, c, k]", "[c*k, k, 1]", 1024, 512, 4096)
    small = parse_spec(SPEC.format(m=6, c=24, k=40, dims="[g, c, k]", strides="[c*k, k, 1]")).at()
    plans = [p for p in searched(small).plans if p.graph.kernels[0].kind == "library"]
    assert plans
    for p in plans:
        source = kernels_source(p.graph, p.schedule)
        assert "torch.mm(X, W.view(192, 40).mT, out=Y.view(6, 192))" in source
        assert interpreter.judge(small, source, 0).ok


@pytest.mark.parametrize(("dims", "strides"), [("[g, k, c]", "[k*c, c, 1]"), ("[g, c, k]", "[2*c*k, k, 1]")])
def test_columns_that_lie_apart_are_none(dims: str, strides: str) -> None:
    assert not with_library(dims, strides, 1024, 512, 4096)


def test_a_sum_over_an_axis_of_one_side_is_no_product_of_matrices() -> None:
    """The mask is that of E == 0, so that nothing on the left has e: the sum of W's rows times X."""
    text = """
name: one_side
dims: {t: 5, e: 16, k: 20, n: 16}
dtype: float32
inputs: {E: {dims: [t], dtype: int64, below: e}, X: [t, k], W: [e, n]}
program: |
  O = dot(where(index(e) - index(e) == E, X, 0), W, e)
outputs: {O: [t, k, n]}
"""
    plans = searched(parse_spec(text).at()).plans
    assert plans and not any(k.kind == "library" for p in plans for k in p.graph.kernels)
