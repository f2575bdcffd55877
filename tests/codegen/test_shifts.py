"""exp(x - m) for a running maximum m: when it may be one multiply-add, and what large numbers are rounded to."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.triton import emit_kernel
from mirage_cli.ir.exponents import merges_alone
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.generator import ScheduledGraph, search
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.pieces import as_tuple
from tests.programs import program
from tests.selfchecks import check_itself

TILE = 64
LARGE = 999424.0
"""A number of bfloat16 whose product with log2 e is rounded by up to 1/16 in float32: 2^(1/16) for each of 64 tiles."""


def weighted(dtype: str = "bfloat16", loops: int = 1) -> Program:
    """The weights themselves are an output where there is to be a second loop: they wait for the sum of the first."""
    text, outputs = "p = softmax(L; s) | O = dot(p, V; s)", "O" if loops == 1 else "O p"
    return program("m=8192 s=4096 e=64", "L[m,s] V[s,e]", text, outputs, dtype=dtype)


def plans(of: Program, loops: int) -> list[ScheduledGraph]:
    """Of one kernel with so many loops over s, in the order of predicted time."""
    found = [c for c in search(of, find_target("h100"), prune=False).candidates if len(c.graph.kernels) == 1]
    return [c for c in found if text(of, c).count("for s_s in") == loops]


def text(of: Program, c: ScheduledGraph) -> str:
    return export_source(of, c.graph, c.schedule)


def exponents(of: Program, c: ScheduledGraph) -> list[str]:
    return re.findall(r"_shift\S* = .*|tl\.exp2?\(.*?\)(?=  #|$)", text(of, c), re.MULTILINE)


def test_exponentials_that_meet_one_another_alone_are_one_multiply_add() -> None:
    of = weighted()
    (c, *_) = plans(of, 1)
    _, scale, to_log2, each = exponents(of, c)
    assert re.fullmatch(r"tl\.exp2\(\((\w+) - \1_shift\) \* 1\.44\d+\)", scale), "the factor of tiles is exact"
    assert re.search(r"_shift = \w+_shift \* 1\.44", to_log2)
    assert re.match(r"tl\.exp2\(.* \* 1\.44\d+ - \w+_shift", each)


def test_others_subtract_first() -> None:
    for dtype, loops in (("bfloat16", 2), ("float32", 1), ("float32", 2)):
        of = weighted(dtype, loops)
        found = plans(of, loops)
        assert found
        for c in found:
            assert not re.search(r"\* 1\.44\d+ - ", text(of, c))


ATTENTION = """
mugraph t float16
dims q=64 s=256 d=64 e=64
input Q f16[q, d]
input K f16[s, d]
input V f16[s, e]
output O f16[q, e]

kernel k0 generated q:grid s:loop d:tile e:tile
  Q = load Q[q, d]
  K = load K[s, d]
  V = load V[s, e]
  a[q, s] = dot(Q, K; d)
  {scores}
  m[q] = max(L; s)
  p[q, s] = exp_sub(L, m)
  l[q] = sum(p; s)
  v[q, e] = dot(p, V; s)
  O[q, e] = div(v, l)
  store O[q, e] = O
"""
OWN = KernelSchedule((("q", 16), ("s", 64)), ("q", "d", "s", "e"), 4, 3)


def scored(scores: str) -> MuGraph:
    """Attention whose scores L are made of a = Q K."""
    return parse_mugraph(ATTENTION.format(scores="\n  ".join(scores.split(" | "))))


@pytest.mark.parametrize(
    ("scores", "factor"),
    [
        ("L[q, s] = mul(a, 1/8)", 0.125),
        ("L[q, s] = div(a, 8)", 0.125),
        ("b[q, s] = mul(a, 3/10) | i[s] = index(s) | c[s] = lt(i, 100) | L[q, s] = where(c, b, -inf)", 0.3),
        ("b[q, s] = mul(a, 1/8) | c[q, s] = gt(a, 1) | L[q, s] = where(c, b, -inf)", 0.125),
    ],
)
def test_a_factor_of_scores_is_one_of_their_maximum_and_exponents(scores: str, factor: float) -> None:
    graph = scored(scores)
    body = emit_kernel(graph, graph.kernels[0], Schedule({"k0": OWN}), dict(graph.dims)).source
    assert f" * {factor}" not in body, "neither an element of a block nor a maximum is multiplied by it"
    assert (re.search(r"L = tl\.where\(.*, b, float\(", body) is not None) == ("where" in scores)
    exponents = re.findall(r"tl\.exp2\(\w+ \* (\S+) - m_shift", body)
    assert exponents
    assert [float(n) for n in exponents] == pytest.approx([factor * math.log2(math.e)] * len(exponents))


@pytest.mark.parametrize(
    "scores",
    [
        "L[q, s] = mul(a, -1/8)",  # which would make a minimum of the maximum
        "L[q, s] = mul(a, inf)",
        "L[q, s] = div(8, a)",
        "L[q, s] = add(a, 8)",
        "b[q, s] = mul(a, 1/8) | L[q, s] = tanh(b)",
        "b[q, s] = mul(a, 1/8) | L[q, s] = add(b, a)",
        "L[q, s] = mul(a, 1/8) | store S[q, s] = L",
        "b[q, s] = mul(a, 1/8) | c[q, s] = gt(b, 1) | L[q, s] = where(c, b, -inf)",
        "b[q, s] = mul(a, 1/8) | c[q, s] = gt(a, 1) | L[q, s] = where(c, b, 0)",
        "u[q] = sum(Q; d) | b[q] = mul(u, 1/8) | c[q, s] = gt(a, 1) | L[q, s] = where(c, b, -inf)",  # before the loop
        "i[s] = index(s) | b[s] = mul(i, 3) | c[q, s] = gt(a, 1) | L[q, s] = where(c, b, -inf)",  # may wrap around
        "L[q, s] = mul(a, 1/8) | n[q] = max(a; s) | r[q, s] = exp_sub(L, n) | z[q] = sum(r; s) | store Z[q] = z",
    ],
)
def test_scores_of_which_more_is_made_are_multiplied(scores: str) -> None:
    graph = scored(scores)
    assert not ScheduledKernel(graph, graph.kernels[0], OWN, dict(graph.dims)).postponed


def test_scores_that_a_second_loop_makes_again_are_multiplied() -> None:
    """It has the maximum whole, and no multiply-add that could take the factor."""
    text = ATTENTION.format(scores="L[q, s] = mul(a, 1/8)")
    for stores, factors in (("", {"L": 0.125}), ("P[q, s] = div(p, l)\n  store S[q, s] = P\n  ", {})):
        graph = parse_mugraph(text.replace("store O", stores + "store O"))
        assert ScheduledKernel(graph, graph.kernels[0], OWN, dict(graph.dims)).postponed == factors


def test_scores_of_float32_are_multiplied() -> None:
    graph = parse_mugraph(
        ATTENTION.format(scores="L[q, s] = mul(a, 1/8)").replace("f16", "f32").replace("float16", "float32")
    )
    assert not ScheduledKernel(graph, graph.kernels[0], OWN, dict(graph.dims)).postponed


def test_a_maximum_that_is_stored_is_multiplied_behind_the_loop() -> None:
    stored = ATTENTION.replace("output O", "output M f16[q]\noutput O").replace("store O", "store M[q] = m\n  store O")
    graph = parse_mugraph(stored.format(scores="L[q, s] = mul(a, 3/10)"))
    body = emit_kernel(graph, graph.kernels[0], Schedule({"k0": OWN}), dict(graph.dims)).source
    assert re.findall(r".* \* 0\.3\D.*", body) == ["    m = (m * 0.3)  # [q]"]


@pytest.mark.parametrize(
    ("scores", "first"),
    [
        ("L[q, s] = mul(a, 3/10)", False),
        ("b[q, s] = mul(a, a) | L[q, s] = mul(b, 3/10)", True),  # (100 * 100 * 64)^2
        ("b[q, s] = mul(a, a) | n[q] = dot(Q, Q; d) | c[q, s] = div(b, n) | L[q, s] = mul(c, 3/10)", False),
        ("b[q, s] = mul(a, a) | L[q, s] = tanh(b)", False),
    ],
)
def test_scores_that_may_be_large_subtract_first(scores: str, first: bool) -> None:
    """Their product with log2 e is off by more than exp2 takes: the weight of a row's maximum would be infinite, or all
    of its weights 0."""
    graph = scored(scores)
    body = emit_kernel(graph, graph.kernels[0], Schedule({"k0": OWN}), dict(graph.dims)).source
    factor = "0.43" if "3/10" in scores else "1.44"
    each = rf"\(L - m_shift\[:, None\]\) \* {factor}" if first else rf"L \* {factor}\d+ - m_shift\[:, None\]"
    assert re.search(rf"p = tl\.exp2\({each}", body)


@pytest.mark.gpu
def test_gpu_attention_of_what_was_projected_is_right_where_all_inputs_have_a_large_mean() -> None:
    """Scores of some 10^13, which a GPU multiplies and adds at once."""
    projections = "q = dot(X, Q; k) | p = dot(Y, K; k) | a = dot(q, p; d) | b = mul(a, 3/10)"
    of = program(
        "t=64 s=512 k=64 d=16 e=16",
        "X[t,k] Y[s,k] Q[k,d] K[k,d] V[s,e]",
        f"{projections} | w = softmax(b; s) | O = dot(w, V; s)",
        "O",
        dtype="bfloat16",
    )
    found = search(of, find_target("h100"), prune=False).candidates
    source = next(made for c in found if "running maximum" in (made := text(of, c)))
    done = check_itself(source)
    assert done.code == 0, done.said


@pytest.mark.gpu
@pytest.mark.parametrize("loops", [1, 2])
def test_gpu_large_numbers_that_are_equal_have_equal_weights(loops: int, tmp_path: Path) -> None:
    of = weighted(loops=loops)
    (c, *_) = plans(of, loops)
    file = tmp_path / "weighted.py"
    file.write_text(text(of, c), encoding="utf-8")
    module: Any = load_export(file.read_text(encoding="utf-8"))
    scores = torch.full((8192, 4096), LARGE, device="cuda", dtype=torch.bfloat16)
    values = (torch.arange(4096, device="cuda") >= 2048).to(torch.bfloat16)[:, None].expand(4096, 64).contiguous()
    found, *_ = as_tuple(module.t(scores, values))
    torch.testing.assert_close(found.float(), torch.full((8192, 64), 0.5, device="cuda"))


CHUNKS = """
mugraph t float16
dims q=64 s=256 d=64 e=64
input Q f16[q, d]
input K f16[s, d]
input V f16[s, e]
output O f16[q, e]
{outputs}
buffer m_part f32[s_split, q]
buffer z_part f32[s_split, q]
buffer v_part f32[s_split, q, e]

kernel k0 generated q:grid s:split d:tile e:tile
  Q = load Q[q, d]
  K = load K[s, d]
  V = load V[s, e]
  a[q, s] = dot(Q, K; d)
  m[q] = max(a; s)
  p[q, s] = exp_sub(a, m)
  z[q] = sum(p; s)
  v[q, e] = dot(p, V; s)
  store m_part[s_split, q] = m
  store z_part[s_split, q] = z
  store v_part[s_split, q, e] = v

kernel k1 generated s_split:tile q:grid e:grid
  m_part = load m_part[s_split, q]
  z_part = load z_part[s_split, q]
  v_part = load v_part[s_split, q, e]
  m[q] = max(m_part; s_split)
  m_scale[s_split, q] = exp_sub(m_part, m)
  z_m_0[s_split, q] = mul(z_part, m_scale)
  z[q] = sum(z_m_0; s_split)
  v_m_0[s_split, q, e] = mul(v_part, m_scale)
  v[q, e] = sum(v_m_0; s_split)
  {beside}O[q, e] = div(v, z)
  store O[q, e] = O
"""


def chunks(outputs: str = "", beside: str = "") -> MuGraph:
    return parse_mugraph(CHUNKS.format(outputs=outputs, beside=beside))


def chunk_exponents(graph: MuGraph) -> list[str]:
    tiles = (("q", 64), ("s", 64), ("e", 64))
    schedule = {"k0": KernelSchedule(tiles, ("q", "d", "s", "e"), 4, 3, split=2)}
    sizes = {**dict(graph.dims), "s_split": 2}
    source = emit_kernel(graph, graph.kernels[0], Schedule(schedule), sizes).source
    return re.findall(r"p = tl\.exp2\(.*\)", source)


def test_chunks_that_are_merged_by_their_maxima_are_one_multiply_add() -> None:
    (each,) = chunk_exponents(chunks())
    assert re.fullmatch(r"p = tl\.exp2\(a \* 1\.44\d+ - m_shift\[:, None\]\)", each)


@pytest.mark.parametrize(
    ("outputs", "beside"),
    [
        ("output M f32[q]", "M[q] = abs(m)\n  store M[q] = M\n  "),
        ("output M f32[q]", "store M[q] = m\n  "),
        ("output M f32[q]", "w[s_split, q] = exp_sub(z_part, m)\n  M[q] = sum(w; s_split)\n  store M[q] = M\n  "),
        ("output M f32[q]", "M[q] = min(m_part; s_split)\n  store M[q] = M\n  "),
    ],
    ids=["computed with", "stored", "another's shift", "another reduction"],
)
def test_chunks_whose_maxima_are_used_otherwise_subtract_first(outputs: str, beside: str) -> None:
    (each,) = chunk_exponents(chunks(outputs, beside))
    assert re.fullmatch(r"p = tl\.exp2\(\(a - m_shift\[:, None\]\) \* 1\.44\d+\)", each)


def test_maxima_that_are_an_output_or_that_nothing_reads_are_not_merged_alone() -> None:
    graph = chunks()
    assert merges_alone(graph, "m_part")
    assert not merges_alone(graph, "z_part")
    assert not merges_alone(graph, "O")
