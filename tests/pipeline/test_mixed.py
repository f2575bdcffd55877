"""Programs of float32 with inputs of a smaller type."""

from __future__ import annotations

import re

import pytest
import torch

from mirage_cli.codegen.export import export_source, kernels_source, load_export
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.pipeline.problem import floor_of
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.occupancy import Launch, multiplied
from mirage_cli.search.cost.work import models
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.price import total_us
from mirage_cli.tune.space import first_schedules
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.numeric import draw_inputs
from tests.searched import BEST

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
    ("dtype", "other", "second"),
    [
        ("bfloat16", "bfloat16", r"tl\.dot\((?!.*input_precision)"),
        ("float16", "float16", r"tl\.dot\((?!.*input_precision)"),
        ("bfloat16", "float32", r"dot_in_bfloat16\("),
        ("bfloat16", "float16", r'tl\.dot\(.*input_precision="tf32"'),
    ],
)
def test_matrix_units_multiply_inputs_of_a_smaller_type_as_such(dtype: str, other: str, second: str) -> None:
    """In a float32 program too, where both are of one type: their products are exact in what they are added up in."""
    text = STATISTICS.replace("DTYPE", dtype).replace("OTHER", other)
    program = parse_spec(text).at()
    plan = search_program(program, H200, Options(bounds=BEST, tune=False)).plans[0]
    start = first_schedules(plan.graph, H200, 1)[0]
    source = kernels_source(plan.graph, start)
    first, last = re.findall(r"^ +\w+ = .*\bdot.*$", source[source.index("def k0") :], re.MULTILINE)
    assert any(re.search(second, line) for line in (first, last))
    assert any(re.search(r"tl\.dot\((?!.*input_precision)", line) for line in (first, last))
    inputs = draw_inputs(program, "normal", torch.device("cpu"), 0)
    module = load_export(export_source(program, plan.graph, start))
    for x, y in zip(module.statistics(*inputs), reference64(program, inputs), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-4)
    assert floor_of(program, H200) <= total_us(plan.graph, start, H200)


SCALED = """
mugraph scaled bfloat16
dims m=64 k=K n=512 a=8 c=4
input X bf16[m, k]
input W TYPE[k, n]
input S f32[a, c]
input T f32[m]
output O bf16[m, n]
kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[k, n]
  S = load S[k//128, n//128]
  T = load T[m]
  V[k, n] = mul(W, S)
  U[m, k] = mul(X, T)
  O[m, n] = dot(U, V; k)
  store O[m, n] = O
"""


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "i8", "bf16", "f32"])
@pytest.mark.parametrize("k", [1024, 1000])
@pytest.mark.parametrize("block", [32, 128, 256])
def test_products_with_float32_scales_in_front_of_their_sums_are_priced_as_they_are_multiplied(
    dtype: str, k: int, block: int
) -> None:
    graph = parse_mugraph(SCALED.replace("K", str(k)).replace("TYPE", dtype))
    own = KernelSchedule((("m", 64), ("k", block), ("n", 128)), ("m", "k", "n"), tf32x3=True)
    (m,) = models(graph).values()
    launch = Launch.of(m, Batch.of(m, [own], graph.sizes), graph.sizes, H200, ())
    ((product, n),) = (x for w in m.segments for x in w.dots)
    small = "input_precision" not in kernels_source(graph, Schedule({"k0": own}))
    assert small == (dtype != "f32" and block <= 128 and k % block == 0)
    whole = H200.tensor_flops_per_us * (1.0 if own.warps >= 4 else H200.costs.few_warps)
    assert (float(multiplied(launch, product, n).rate[0]) == whole) == small
