"""Casts in kernels: what is rounded, and in which type the matrix units multiply."""

from __future__ import annotations

import pytest
import torch

from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.ir.derived import lower
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.pipeline.problem import floor_of
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.float64 import reference64
from tests.codegen.conftest import Stages
from tests.searched import BEST

H100 = find_target("h100")
GRAPH = """
mugraph p {program}
dims m=64 k=K n=64
input X f32[m, k]
input W f32[n, k]
output O {out}[m, n]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[n, k]
  A[m, k] = {cast}(X)
  B[k, n] = {cast}(W)
  O[m, n] = dot(A, B; k)
  store O[m, n] = O
"""
SCHEDULE = Schedule.parse("k0: m=64 n=64 k=64 order=m,k,n warps=4 stages=2")


def source(program: str, cast: str, k: int = 256, out: str = "f32") -> str:
    graph = parse_mugraph(GRAPH.replace("K", str(k)).format(program=program, cast=cast, out=out))
    return kernels_source(graph, SCHEDULE)


@pytest.mark.parametrize("program", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("cast", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_what_is_cast_is_rounded_and_multiplied_so(program: str, cast: str) -> None:
    """Whatever the type of the program, of what is loaded as float32; k ends within a block."""
    module = load_export(source(program, cast, 200))
    made = torch.Generator().manual_seed(0)
    x, w = (torch.randn(64, 200, generator=made) for _ in range(2))
    out = torch.full((64, 64), torch.nan)
    module.launch([x, w], [out], module.make_scratch(torch.device("cpu")))
    dtype = getattr(torch, cast)
    want = x.to(dtype).double() @ w.to(dtype).double().T
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)


def test_float32_is_said_of_what_is_smaller() -> None:
    """Multiplied in that type, though the program's is smaller."""
    text = source("bfloat16", "float32").split("def k0")[1]
    assert "input_precision" in text and "bfloat16(" not in text


def test_a_kernel_with_casts() -> None:
    body = source("float32", "bfloat16").split("def k0")[1].split("for ")[1].splitlines()
    lines = [line.split("  # ")[0].strip() for line in body if "dot" in line or "_bfloat16" in line]
    assert lines == GOLDEN


GOLDEN = [
    "A = to_bfloat16(X)",
    "B = to_bfloat16(W)",
    "O = ended(tl.dot(A.to(MATRIX_TYPE), B.to(MATRIX_TYPE), O))",
]


@pytest.mark.parametrize(("cast", "instruction"), [("bfloat16", "f32.bf16.bf16"), ("float16", "f32.f16.f16"),
                                                   ("float8_e4m3fn", "f32.e4m3.e4m3")])  # fmt: skip
def test_the_matrix_units_take_the_type(cast: str, instruction: str, stage: Stages) -> None:
    graph = parse_mugraph(GRAPH.replace("K", "200").format(program="bfloat16", cast=cast, out="f32"))
    text = stage(graph, SCHEDULE, 90, "ptx")
    assert "wgmma" in text and instruction in text


QUANTISED = """
name: quantised
dims: {m: 4096, k: 4096, n: 4096}
dtype: bfloat16
inputs: {X: [m, k], W: {dims: [n, k], dtype: float8_e4m3fn}}
program: |
  O = dot(CAST, W, k)
outputs: {O: [m, n]}
"""


def test_what_is_cast_to_float8_is_kept_and_multiplied_as_such() -> None:
    """In the types that eager PyTorch has, at their rates: no floor is above what is predicted."""
    times: dict[str, float] = {}
    for cast in ("float8_e4m3fn(X * 2)", "X * 2"):
        program = lower(parse_spec(QUANTISED.replace("CAST", cast)).at())
        best = search(program, H100, bounds=BEST).candidates[0]
        assert floor_of(program, H100) <= best.predicted_us
        times[cast] = best.predicted_us
    assert times["float8_e4m3fn(X * 2)"] < times["X * 2"] * 0.8


MIXED = """
name: mixed
dims: {m: 512, k: 1024, n: 1024}
dtype: bfloat16
inputs: {X: [m, k], G: {dims: [k], dtype: float32}, W: [k, n], V: [n, k]}
program: |
  Y = CAST(layer_norm(X, k) * G)
  O = X + dot(CAST(relu(dot(Y, W, k))), V, n)
outputs: {O: [m, k]}
"""


def test_a_cast_ends_what_float32_reaches() -> None:
    """float32 weights of a norm make no product behind a cast float32, and no intermediate."""
    program = lower(parse_spec(MIXED.replace("CAST", "bfloat16")).at())
    wide = lower(parse_spec(MIXED.replace("CAST", "float32")).at())
    best, slow = (search(p, H100, bounds=BEST).candidates[0] for p in (program, wide))
    assert {t.dtype for t in best.graph.buffers if len(t.dims) == 2} == {"bfloat16"}
    assert not any(
        best.graph.exact()[k.name] & {*e.values} for k in best.graph.kernels for e in k.body if e.op == "dot"
    )
    assert best.predicted_us < slow.predicted_us
    assert check_equivalence(program, best.graph, 0).proved


QUOTIENT = """
name: quotient
dims: {{m: 64, n: 64}}
dtype: bfloat16
inputs: {{X: [m, n]}}
program: |
  Y = X / max(abs(X), n)
  O = {value}
outputs:
  O: {{dims: [m, n], dtype: {dtype}}}
"""


@pytest.mark.parametrize(
    ("dtype", "value", "exact"),
    [
        ("bfloat16", "Y", False),
        ("float8_e4m3fn", "Y", True),
        ("int8", "integer(Y * 127)", True),
        ("bfloat16", "round(Y * 8) / 8", True),
    ],
)
def test_quotients_that_few_bits_decide_about_are_exact(dtype: str, value: str, exact: bool) -> None:
    """217 / 56 is half-way between two numbers of float8, and the fast quotient of a GPU may be below it."""
    best = search(parse_spec(QUOTIENT.format(value=value, dtype=dtype)).at(), H100, bounds=BEST).candidates[0]
    assert ("div_rn" in kernels_source(best.graph, best.schedule)) == exact


SCALED = """
name: scaled
dims: {{m: 128, n: 1792}}
dtype: float32
inputs: {{X: [m, n]}}
program: |
  s = {scale}
  O = {value}
outputs: {{O: {{dims: [m, n], dtype: {dtype}}}}}
"""


@pytest.mark.parametrize(
    ("scale", "value", "dtype"),
    [
        ("max(abs(X), n) / 448", "float8_e4m3fn(clamp(X / s, -448, 448))", "float8_e4m3fn"),
        ("max(abs(X), n)", "float8_e5m2(X / (s / 448))", "float8_e5m2"),
        ("exp2(ceil(log2(max(abs(X), n) / 448)))", "float8_e4m3fn(X * (1 / s))", "float8_e4m3fn"),
        ("(max(X, n) - min(X, n)) / 896", "integer(clamp(round(X / s / 4), -128, 127))", "int8"),
    ],
)
def test_ties_are_decided_as_the_program_decides_them(scale: str, value: str, dtype: str) -> None:
    """In rows with c for a scale, c·j is divided by what it is a multiple of; 448·c·(1 / 448) is not always c."""
    program = parse_spec(SCALED.format(scale=scale, value=value, dtype=dtype)).at()
    best = search(lower(program), H100, bounds=BEST).candidates[0]
    module = load_export(kernels_source(best.graph, best.schedule))
    x = torch.arange(128, 256)[:, None] * torch.arange(-895, 897) / 2
    out = torch.zeros(x.shape, dtype=getattr(torch, dtype))
    module.launch([x], [out], module.make_scratch(torch.device("cpu")))
    (want,) = reference64(program, [x])
    assert torch.equal(out.double(), want)
