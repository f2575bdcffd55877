"""Products of float32 and a smaller type: in parts, each of a type that the matrix units take."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.occupancy import Launch, multiplied
from mirage_cli.search.cost.work import models
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from tests.codegen.conftest import Stages
from tests.codegen.test_triton import schedule

SPEC = """
name: mixed
dims: {m: 64, k: 96, n: 64}
dtype: OWN
inputs:
  X: {dims: [m, k], dtype: LEFT}
  W: {dims: [k, n], dtype: RIGHT}
program: O = dot(X, W, k)
outputs: {O: {dims: [m, n], dtype: float32}}
"""
GRAPH = """
mugraph mixed OWN
dims m=64 k=96 n=64
input X LEFT[m, k]
input W RIGHT[k, n]
output O f32[m, n]
kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[k, n]
  O[m, n] = dot(X, W; k)
  store O[m, n] = O
"""
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "f8e4m3fn"}
SMALL = ["bfloat16", "float16", "float8_e4m3fn"]


def text(form: str, small: str, side: int, names: dict[str, str]) -> str:
    own = small if small != "float8_e4m3fn" else "bfloat16"
    left, right = ("float32", small) if side == 0 else (small, "float32")
    for word, dtype in (("OWN", own), ("LEFT", left), ("RIGHT", right)):
        form = form.replace(word, names.get(dtype, dtype))
    return form


def plan_of(small: str, side: int, tf32x3: bool = True) -> tuple[MuGraph, Schedule]:
    graph = parse_mugraph(text(GRAPH, small, side, SHORT))
    found = schedule(graph, "m=64 n=64 k=32", "m k n")
    return graph, Schedule({"k0": replace(found.kernels["k0"], tf32x3=tf32x3)})


def product(small: str, side: int, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    graph, plan = plan_of(small, side)
    source = export_source(parse_spec(text(SPEC, small, side, {})).at(), graph, plan)
    return load_export(source).mixed(x, w)


def drawn(small: str, side: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    kinds = [torch.float32, getattr(torch, small)]
    shapes = [(64, 96), (96, 64)]
    return [torch.randn(s).to(kinds[i == 1 if side == 0 else i == 0]) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize("side", [0, 1])
def test_no_bits_of_the_float32_that_matter_are_lost(small: str, side: int) -> None:
    x, w = drawn(small, side)
    got, want = product(small, side, x, w).double(), x.double() @ w.double()
    assert (got - want).abs().max() < 2e-6 * (x.double().abs() @ w.double().abs()).max()
    rounded = x.to(torch.bfloat16).double() @ w.to(torch.bfloat16).double()
    assert (rounded - want).abs().max() > 1e-4, "one part would not do"


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("small", SMALL[:2])
@pytest.mark.parametrize("side", [0, 1])
def test_the_largest_numbers_and_infinities_stay_such(small: str, side: int) -> None:
    """What is left of an infinity behind its first part is nothing, and so is what zeros make of one."""
    x, w = drawn(small, side)
    wide, other = (x, w) if side == 0 else (w.T, x.T)
    other[:] = 1.0
    wide[:] = 0.0
    wide[0, 0], wide[1, 0], wide[2, 0], wide[3, 0] = torch.inf, -torch.inf, torch.nan, torch.finfo(torch.float32).max
    other[0, 1], wide[4, 0] = torch.inf, 1.0
    got = product(small, side, x, w)
    got = got if side == 0 else got.T
    rest = [*range(2, 64)]
    assert (got[0, rest] == torch.inf).all() and (got[1, rest] == -torch.inf).all()
    assert got[2].isnan().all()
    torch.testing.assert_close(got[3, rest], torch.full((62,), torch.finfo(torch.float32).max), rtol=1e-6, atol=0.0)
    assert got[4, 1] == torch.inf and got[5, 1].isnan() and (got[4, rest] == 1.0).all()


@pytest.mark.parametrize(("small", "dots"), [("bfloat16", 3), ("float16", 2), ("float8_e4m3fn", 3)])
def test_matrix_units_multiply_the_parts(small: str, dots: int, stage: Stages) -> None:
    for side in (0, 1):
        graph, plan = plan_of(small, side)
        found = stage(graph, plan, 90, "ttgir")
        products = re.findall(r"= \w+\.(?:warp_group_)?dot .*", found)
        assert len(products) == dots
        assert all(("bf16" in p) == (small != "float16") for p in products)


@pytest.mark.parametrize("small", SMALL)
def test_the_model_has_their_number(small: str) -> None:
    target = find_target("h200")
    rates: list[float] = []
    for kind in (small, "float32"):
        graph, plan = plan_of(kind, 0)
        (m,) = models(graph).values()
        own = plan.kernels["k0"]
        launch = Launch.of(m, Batch.of(m, [own], graph.sizes), graph.sizes, target, ())
        ((p, n),) = (x for w in m.segments for x in w.dots)
        rates.append(float(multiplied(launch, p, n).rate[0]))
    assert rates[0] / rates[1] == pytest.approx(1.5 if small == "float16" else 2.0, rel=0.01)
