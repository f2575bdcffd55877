"""Products of two operands of int8, which the matrix units take as they are stored and add up as integers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.cost.work import models
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from tests.codegen.test_float8 import PLAIN, kernels_source, load_export, plan
from tests.searched import BEST

if TYPE_CHECKING:
    from tests.codegen.conftest import Stages


def plain(w: str = "n, k", dtype: str = "bfloat16", out: str = "bf16") -> MuGraph:
    text = PLAIN.format(dtype=dtype, x="i8", w="i8", out=out)
    return parse_mugraph(text.replace("W i8[n, k]", f"W i8[{w}]").replace("load W[n, k]", f"load W[{w}]"))


@pytest.mark.parametrize(("dtype", "out"), [("bfloat16", "bf16"), ("float32", "f32")])
@pytest.mark.parametrize("k", [16, 32, 64])
def test_sums_of_a_block_are_exact(dtype: str, out: str, k: int) -> None:
    """All are -128 or 127 but few, so that the products of a block come to 2^20, and the sum to 3 · 2^20."""
    g = plain(dtype=dtype, out=out).resized({"m": 20, "k": 200, "n": 24})
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-128, 128, (n, 200), generator=made, dtype=torch.int8) for n in (20, 24))
    a[:10], b[:10] = -128, -128
    text = kernels_source(g, plan(f"m=16 k={k} n=16"))
    assert ("out_dtype=tl.int32" in text) == (k >= 32)
    module = load_export(text)
    result = torch.full((20, 24), float("nan"), dtype=getattr(torch, dtype))
    module.launch([a, b], [result], module.make_scratch(torch.device("cpu")))
    assert torch.equal(result, (a.double() @ b.double().T).float().to(result.dtype))


@pytest.mark.parametrize(
    ("arch", "instruction"),
    [
        (80, r"mma\.sync\.aligned\.m16n8k32\.row\.col\.satfinite\.s32\.s8\.s8\.s32"),
        (90, r"wgmma\.mma_async\.sync\.aligned\.m64n64k32\.s32\.s8\.s8"),
        (100, r"\.s8\.s8|kind::i8"),
        (120, r"mma\.sync\.aligned\.m16n8k32\.row\.col\.satfinite\.s32\.s8\.s8\.s32"),
    ],
)
def test_the_matrix_units_take_int8(arch: int, instruction: str, stage: Stages) -> None:
    """As it is fetched: nothing is turned byte by byte."""
    text = stage(plain(), plan("m=64 k=128 n=64"), arch, "ptx")
    assert re.search(instruction, text) and "cp.async" in text and "prmt" not in text


def test_what_lies_across_is_multiplied_in_16_bits(stage: Stages) -> None:
    """The matrix units take bytes with neighbours along what is summed alone."""
    assert "s8.s8" not in stage(plain("k, n"), plan("m=64 k=64 n=64"), 90, "ptx")


@pytest.mark.parametrize(("dtype", "out"), [("bfloat16", "bf16"), ("float32", "f32")])
def test_the_cost_model_knows(dtype: str, out: str) -> None:
    """In a program of float32 too, where other products of integers are taken in float32."""
    ((dot, _),) = [x for s in models(plain(dtype=dtype, out=out))["k0"].segments for x in s.dots]
    ((across, _),) = [x for s in models(plain("k, n", dtype, out))["k0"].segments for x in s.dots]
    assert dot.eights and not dot.single
    assert not across.eights and across.single == (dtype == "float32")


ZERO_POINTS = """
name: zero_points
dims: {m: 64, k: 4096, n: 256}
dtype: bfloat16
inputs:
  A: {dims: [m, k], dtype: int8}
  B: {dims: [n, k], dtype: int8}
  S: {dims: [m], dtype: float32}
  adj: {dims: [n], dtype: int32, below: 4096}
  azp: {dims: [m], dtype: int32, below: 128}
program: |
  acc = sum(A * B, k)
  O = S * (acc - azp * adj)
outputs:
  O: [m, n]
"""


def test_a_sum_of_integers_is_such_a_product() -> None:
    """Where a kernel of its own adds it up into memory, it stays a sum of integers: a product is a float."""
    found = search_program(
        parse_spec(ZERO_POINTS).at(), find_target("h100"), Options(tune=False, budget_s=20.0, bounds=BEST)
    )
    assert not found.rejected
    products = [e for k in found.plans[0].graph.kernels for e in k.body if e.op == "dot"]
    assert [e.type for e in products] == ["float"]
