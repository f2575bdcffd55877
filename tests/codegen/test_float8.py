"""Products of float8 on the matrix units as such, and outputs of float8."""

from __future__ import annotations

import re

import pytest
import torch

from mirage_cli.codegen.export import export_source, kernels_source, load_export
from mirage_cli.errors import NoKernelError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.cost import model
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.work import models
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from tests.codegen.conftest import Stages

PLAIN = """
mugraph p {dtype}
dims m=64 k=512 n=64
input X {x}[m, k]
input W {w}[n, k]
output O {out}[m, n]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[n, k]
  O[m, n] = dot(X, W; k)
  store O[m, n] = O
"""
SCALED = """
mugraph p bfloat16
dims m=64 g=8 k=128 n=64
input X f8e4m3fn[m, g, k]
input W f8e5m2[n, g, k]
input S f32[m, g]
input R f32[g, n]
output O bf16[m, n]

kernel k0 generated m:grid g:loop k:tile n:grid
  X = load X[m, g, k]
  W = load W[n, g, k]
  S = load S[m, g]
  R = load R[g, n]
  P[m, g, n] = dot(X, W; k)
  Q[m, g, n] = mul(P, S)
  O[m, n] = dot(Q, R; g)
  store O[m, n] = O
"""
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def plain(x: str = "f8e4m3fn", w: str = "f8e4m3fn", dtype: str = "bfloat16", out: str = "bf16") -> MuGraph:
    return parse_mugraph(PLAIN.format(dtype=dtype, x=x, w=w, out=out))


def plan(tiles: str, stages: int = 3, order: str = "m,k,n") -> Schedule:
    return Schedule.parse(f"k0: {tiles} order={order} warps=4 stages={stages}")


@pytest.mark.parametrize("k", [16, 32, 64])
@pytest.mark.parametrize(("x", "w"), [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2)])
@pytest.mark.parametrize(("dtype", "out"), [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "f32")])
def test_products(x: torch.dtype, w: torch.dtype, dtype: str, out: str, k: int) -> None:
    """With blocks that no tile of the matrix units is too deep for, in programs of every type."""
    short = {E4M3: "f8e4m3fn", E5M2: "f8e5m2"}
    g = plain(short[x], short[w], dtype, out).resized({"m": 20, "k": 192, "n": 24})
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randn((n, 192), generator=made).to(t) for n, t in ((20, x), (24, w)))
    text = kernels_source(g, plan(f"m=16 k={k} n=16"))
    assert ("dot_float8(" in text) == (k >= 32 and dtype != "float32")
    module = load_export(text)
    result = torch.full((20, 24), float("nan"), dtype=getattr(torch, dtype))
    module.launch([a, b], [result], module.make_scratch(torch.device("cpu")))
    torch.testing.assert_close(result, (a.double() @ b.double().T).to(result.dtype), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    ("arch", "instruction"),
    [
        (89, r"mma\.sync\.aligned\.m16n8k32\.row\.col\.f32\.e5m2\.e4m3\.f32"),
        (90, r"wgmma\.mma_async\.sync\.aligned\.m64n64k32\.f32\.e5m2\.e4m3"),
        (100, r"tcgen05\.mma\.cta_group::1\.kind::f8f6f4"),
    ],
)
def test_the_matrix_units_take_float8(arch: int, instruction: str, stage: Stages) -> None:
    text = stage(plain("f8e5m2"), plan("m=64 k=128 n=64"), arch, "ptx")
    assert re.search(instruction, text) and "cp.async" in text and ".e5m2x2 " not in text


def test_without_float8_they_take_float16(stage: Stages) -> None:
    text = stage(plain("f8e5m2", "f8e5m2"), plan("m=64 k=64 n=64"), 80, "ptx")
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in text


@pytest.mark.parametrize("arch", [89, 90])
@pytest.mark.parametrize(("dtype", "out", "added"), [("bfloat16", "bf16", 2), ("float16", "f16", 8)])
def test_float32_adds_what_short_accumulators_would_cut_off(
    arch: int, dtype: str, out: str, added: int, stage: Stages
) -> None:
    """The matrix units of these add up 128 products of a bfloat16 program, and 32 of a float16 program."""
    text = stage(plain(dtype=dtype, out=out), plan("m=64 k=256 n=64"), arch, "ptx")
    elements = 64 * 64 // 128
    assert len(re.findall(r"add\.(?:rn\.)?f32 ", text)) >= (added if arch == 90 else 1) * elements


def test_where_accumulators_are_of_float32_they_add(stage: Stages) -> None:
    text = stage(plain(), plan("m=64 k=128 n=64"), 100, "ttgir")
    assert not re.findall(r"arith\.addf", text)


def test_what_scales_a_product_is_fetched_ahead(stage: Stages) -> None:
    """Behind the product of each block, for the iterations in front of it. What the compiler is told is in the text."""
    g = parse_mugraph(SCALED)
    text = kernels_source(g, plan("m=64 n=64 g=1", order="m,k,n,g"))
    assert "in tl.range(0, SIZE_g, 1, num_stages=3):" in text
    loop = stage(g, plan("m=64 n=64 g=1", order="m,k,n,g"), 90, "ttgir")
    loop = loop[loop.index("scf.for") :]
    assert "tt.load" not in loop and loop.count("async_copy_global_to_local") == 4


def test_what_lies_across_goes_through_registers() -> None:
    """Up to sm_90 the matrix units take float8 only with neighbours along what is summed."""
    across = parse_mugraph(print_mugraph(plain()).replace("[n, k]", "[k, n]"))
    assert "dot_float8(" not in kernels_source(across, plan("m=64 k=64 n=64"))


def test_the_model_knows_the_rate() -> None:
    """Half the time of bfloat16, where the GPU multiplies float8, and no tile is too shallow."""

    def busy(text: str, gpu: str, tiles: str) -> float:
        g = parse_mugraph(text).resized({"m": 4096, "k": 4096, "n": 4096})
        m, schedule = models(g)["k0"], plan(tiles).kernels["k0"]
        found = model.estimate(m, Batch.of(m, [schedule], g.sizes), g.sizes, find_target(gpu), {"turns", "behind"})
        return float(found.busy["matrix units"][0])

    wide = PLAIN.format(dtype="bfloat16", x="bf16", w="bf16", out="bf16")
    eight = PLAIN.format(dtype="bfloat16", x="f8e4m3fn", w="f8e5m2", out="bf16")
    across = eight.replace("[n, k]", "[k, n]")
    deep, shallow = "m=128 k=64 n=128", "m=128 k=16 n=128"
    assert busy(eight, "h100", deep) == pytest.approx(busy(wide, "h100", deep) / 2)
    assert busy(eight, "a100", deep) == pytest.approx(busy(wide, "a100", deep))
    assert busy(eight, "h100", shallow) == pytest.approx(busy(wide, "h100", shallow))
    assert busy(across, "h100", deep) == pytest.approx(busy(wide, "h100", deep))


FLAT = """
mugraph p bfloat16
dims m=1024 g=32 k=4096 n=1024 h=8
input X f8e4m3fn[m, k]
input W f8e4m3fn[n, k]
input S f32[m, g]
input R f32[h, g]
output O bf16[m, n]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[n, k]
  S = load S[m, k//128]
  R = load R[n//128, k//128]
  A[m, k] = mul(X, S)
  B[k, n] = mul(W, R)
  O[m, n] = dot(A, B; k)
  store O[m, n] = O
"""


def test_the_model_takes_scales_out_of_the_sum() -> None:
    """As the emitter does, where a block has one: operands are as they are stored then, and scales fetched ahead. In
    a deeper block operands are float32."""
    g = parse_mugraph(FLAT)
    m, target = models(g)["k0"], find_target("h100")

    def busy(tiles: str, without: str) -> dict[str, float]:
        batch = Batch.of(m, [plan(tiles).kernels["k0"]], g.sizes)
        return {name: float(us[0]) for name, us in model.estimate(m, batch, g.sizes, target, {without}).busy.items()}

    assert "dot_float8(X, W, 128)" in kernels_source(g, plan("m=128 k=128 n=128"))
    found = busy("m=128 k=128 n=128", "turns")
    least_us = 2 * 1024 * 1024 * 4096 / target.matrix_flops_per_us("float8_e4m3fn")
    assert least_us <= found["matrix units"] < 3 * least_us and found["arithmetic"] < 2 * found["matrix units"]
    assert found["latency"] == busy("m=128 k=128 n=128", "late")["latency"]
    assert busy("m=128 k=256 n=128", "turns")["matrix units"] > 5 * found["matrix units"]


# -- outputs

STORED = """
mugraph p float32
dims m=4096
input X f32[m]
output A f8e4m3fn[m]
output B f8e5m2[m]

kernel k0 generated m:grid
  X = load X[m]
  A[m] = mul(X, 1)
  B[m] = mul(X, 1)
  store A[m] = A
  store B[m] = B
"""
QUANTISED = """
name: quantised
dims: {m: 4, k: 32, n: 16}
dtype: bfloat16
inputs:
  X: [m, k]
  W: [k, n]
program: |
  Y = X * 2
  O = dot(Y, W, k)
outputs:
  Y: {dims: [m, k], dtype: float8_e4m3fn}
  O: [m, n]
"""


def stored() -> MuGraph:
    return parse_mugraph(STORED)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """All of a type, those in the middle between two neighbours, their neighbours, and some beyond."""
    own = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype).float()
    own = own[own.isfinite()].sort().values
    middle = (own[1:] + own[:-1]) / 2
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e-30, -1e-40, 460.0, 464.0, 465.0, 1e9, 61439.0, 61440.0])
    up, down = (torch.nextafter(middle, torch.tensor(x)) for x in (torch.inf, -torch.inf))
    return torch.cat([own, middle, up, down, ends])


def test_numbers_are_rounded_to_nearest() -> None:
    """As PyTorch does, but for what is beyond the largest number of float8_e4m3fn: that is this number."""
    x = torch.cat([numbers(E4M3), numbers(E5M2), torch.randn(4096, generator=torch.Generator().manual_seed(0))])[:4096]
    module = load_export(kernels_source(stored(), Schedule.parse("k0: m=1024 order=m warps=4 stages=1")))
    outs = [torch.zeros(4096, dtype=t) for t in (E4M3, E5M2)]
    module.launch([x], outs, module.make_scratch(torch.device("cpu")))
    for y, want in zip(outs, (x.clamp(-448, 448).to(E4M3), x.to(E5M2)), strict=True):
        torch.testing.assert_close(y.float(), want.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("arch", "hardware"), [(89, False), (90, True), (100, True)])
def test_the_hardware_rounds_where_it_takes_float32(arch: int, hardware: bool, stage: Stages) -> None:
    """Before sm_90 it takes float16, to which Triton cuts off."""
    text = stage(stored(), Schedule.parse("k0: m=1024 order=m warps=4 stages=1"), arch, "ptx")
    assert [f"cvt.rn.satfinite.{t}x2.f32" in text for t in ("e4m3", "e5m2")] == [hardware] * 2
    assert "f16" not in text.replace("f16x2", "") and "cvt.rz" not in text


def test_gpus_without_a_type_are_named() -> None:
    program = parse_spec(QUANTISED).at()
    with pytest.raises(NoKernelError, match="Y is of float8_e4m3fn, which sm_80 does not have"):
        search_program(program, find_target("a100"), Options(tune=False))


def test_later_kernels_read_what_was_rounded_to_no_float8() -> None:
    """Of the program as written, the second kernel reads the first one's result."""
    graph = search(lower(parse_spec(QUANTISED).at()), find_target("h100")).as_written.graph
    first, second = graph.kernels
    assert {s.buffer for s in first.stores} > {"Y"} and "Y" not in {x.buffer for x in second.loads}


def test_an_exported_function_returns_float8() -> None:
    """Alone and in a compiled function, with outputs that it makes and that it is given."""
    program = parse_spec(QUANTISED).at()
    found = search(lower(program), find_target("h100")).as_written
    module = load_export(export_source(program, found.graph, found.schedule))
    made = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=made).bfloat16() for shape in ((4, 32), (32, 16)))
    y, o = module.quantised(x, w)
    assert y.dtype == E4M3 and torch.equal(y.float(), (x.float() * 2).to(E4M3).float())
    compiled = torch.compile(lambda x, w: module.quantised(x, w)[0].float() * 2, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, w), y.float() * 2)
    torch.testing.assert_close(o, (x.float() * 2 @ w.float()).bfloat16(), rtol=1e-2, atol=1e-2)
