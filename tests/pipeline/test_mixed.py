"""Programs of float32 with inputs of a smaller type."""

from __future__ import annotations

import pytest
import torch

from mirage_cli.codegen.export import export_source, kernels_source, load_export
from mirage_cli.pipeline.problem import floor_of
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.work import models
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.space import first_schedules, total_us
from mirage_cli.verify.numeric import draw_inputs, reference64

H200 = find_target("h200")
STATISTICS = """
name: statistics
dims: {m: 96, n: 80, i: 96, k: 64}
dtype: float32
inputs:
  G: {dims: [m, n], dtype: DTYPE}
  W: {dims: [n, k], dtype: OTHER}
  L: [m, i]
program: |
  A = 0.9 * L + dot(G, rename(G, m=i), n)
  B = dot(G, W, n)
outputs:
  A: [m, i]
  B: [m, k]
"""


@pytest.mark.parametrize(
    ("dtype", "other", "single"),
    [
        ("bfloat16", "bfloat16", 0),
        ("float16", "float16", 0),
        ("bfloat16", "float32", 1),
        ("bfloat16", "float16", 2),
    ],
)
def test_matrix_units_multiply_inputs_of_a_smaller_type_as_such(dtype: str, other: str, single: int) -> None:
    """In a float32 program too: their products are exact in what they are added up in."""
    text = STATISTICS.replace("DTYPE", dtype).replace("OTHER", other)
    program = parse_spec(text).at()
    plan = search_program(program, H200, Options()).plans[0]
    start = first_schedules(plan.graph, H200, 1)[0]
    source = kernels_source(plan.graph, start)
    assert source.count("input_precision") == single
    assert source.count("tl.dot(") == 2
    inputs = draw_inputs(program, "normal", torch.device("cpu"), 0)
    module = load_export(export_source(program, plan.graph, start))
    for x, y in zip(module.statistics(*inputs), reference64(program, inputs), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-4)
    assert floor_of(program, H200) <= total_us(plan.graph, start, H200, models(plan.graph))
