"""Sums that meet a product of their loop, and sums and maxima for which warps meet."""

from __future__ import annotations

import pytest

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import KernelSchedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.model import estimate
from mirage_cli.search.cost.work import models
from mirage_cli.search.tiles import choices, orders_of
from mirage_cli.target.gpus import find_target

H200 = find_target("h200")
TEXT = """mugraph keys float16
dims h=16 q=256 s=4096 d=64 e=64
input Q f16[h, q, d]
input K f16[h, s, d]
input V f16[h, s, e]
output O f16[h, q, e]

kernel k0 generated h:grid q:grid s:loop d:tile e:tile
  V = load V[h, s, e]
  Q = load Q[h, q, d]
  K = load K[h, s, d]
  t0[h, s, d] = square(K)
  t1[h, s] = sum(t0; d)
  t2[h, s] = rsqrt(t1)
  {scaled}
  O[h, q, e] = dot(V, t4; s)
  store O[h, q, e] = O
"""
SCORES = "t3[h, q, s] = dot(Q, K; d)\n  t4[h, q, s] = mul(t3, t2)"
OPERAND = "t3[h, s, d] = mul(K, t2)\n  t4[h, q, s] = dot(Q, t3; d)"


def graph(scaled: str) -> MuGraph:
    return parse_mugraph(TEXT.format(scaled=scaled))


def met_us(graph: MuGraph, order: tuple[str, ...], warps: int = 8) -> float:
    """Arithmetic that the term adds, µs."""
    m = models(graph)["k0"]
    tiles = tuple((d, {"q": 128, "s": 256, "e": 64}.get(d, 1)) for d in ("h", "q", "s", "e"))
    batch = Batch.of(m, [KernelSchedule(tiles, order, warps, 3)], graph.sizes)
    with_it, without = (estimate(m, batch, graph.sizes, H200, x).busy["arithmetic"] for x in ((), ("met",)))
    return float((with_it - without)[0])


def test_a_sum_that_scales_scores_is_taken_by_every_warp_that_has_its_columns() -> None:
    """Compiled for sm_90 (Triton 3.7) with these blocks, a loop has 208 exchanges and 194 MUFU, and 32 and 138 where K
    is scaled: 64 of the 256 sums and rsqrt in each thread, and three exchanges for each."""
    scores = graph(SCORES)
    each = 64 * (5.0 * 3 + 4.0)  # of a thread
    ops = each * 256 * 16 * (16 * 2)  # threads, iterations, program instances
    us = ops / (H200.fp32_flops_per_us * H200.costs.simd) * (132 / 32)  # on 32 multiprocessors
    assert met_us(scores, ("h", "q", "d", "s", "e")) == pytest.approx(us, rel=1e-6)


def test_one_that_scales_an_operand_is_not() -> None:
    assert met_us(graph(OPERAND), ("h", "q", "d", "s", "e")) == 0.0


def test_along_the_rows_of_the_result_few_threads_have_it() -> None:
    scores = graph(SCORES)
    columns, rows = (met_us(scores, x) for x in (("h", "q", "d", "s", "e"), ("e", "s", "d", "q", "h")))
    assert 0.0 < rows < 0.1 * columns


DECODING = """mugraph decoding float16
dims b=64 h=4 s=2048 d=128 e=128
input Q f16[b, h, d]
input K f16[b, s, d]
input V f16[b, s, e]
output O f16[b, h, e]

kernel k0 generated b:grid h:tile s:loop d:tile e:tile
  V = load V[b, s, e]
  Q = load Q[b, h, d]
  K = load K[b, s, d]
  t0[b, h, s] = dot(Q, K; d)
  t1[b, h] = max(t0; s)
  t2[b, h, s] = exp_sub(t0, t1)
  t3[b, h] = sum(t2; s)
  t4[b, h, e] = dot(t2, V; s)
  O[b, h, e] = div(t4, t3)
  store O[b, h, e] = O
"""


@pytest.mark.parametrize(
    ("order", "warps", "meetings"),
    [("bhsde", 4, 2), ("bhsde", 1, 0), ("bedsh", 4, 2), ("bedsh", 1, 0)],
)
def test_warps_meet_in_every_iteration_for_what_they_reduce_of_scores(order: str, warps: int, meetings: int) -> None:
    """The maximum and the sum over keys, along which the warps stand in either order. One H200, batch 8: 31.5 us with
    steps of 64 keys, and 23.5 with steps of 128."""
    assert added_us(parse_mugraph(DECODING), {"b": 1, "s": 128}, order, warps) == pytest.approx(
        meetings * 15 * H200.costs.across_step_us  # behind the first of 16 iterations
    )


def test_warps_that_have_whole_rows_of_scores_do_not_meet() -> None:
    text = DECODING.replace("h=4", "h=64")
    rows, columns = (added_us(parse_mugraph(text), {"b": 1, "s": 128}, order, 4) for order in ("bhsde", "bedsh"))
    assert rows == 0.0 < columns


def added_us(graph: MuGraph, tiles: dict[str, int], order: str, warps: int) -> float:
    """Latency that the term adds, µs."""
    m = models(graph)["k0"]
    batch = Batch.of(m, [KernelSchedule((*tiles.items(),), (*order,), warps, stages=5)], graph.sizes)
    with_it, without = (estimate(m, batch, graph.sizes, H200, x).busy["latency"] for x in ((), ("meetings",)))
    return float((with_it - without)[0])


MERGE = """mugraph merge float32
dims c=4 q=4096 e=64
input V f32[c, q, e]
input M f32[c, q]
output O f32[q, e]

kernel k0 generated c:tile q:grid e:grid
  V = load V[c, q, e]
  M = load M[c, q]
  m[q] = max(M; c)
  x[c, q] = exp_sub(M, m)
  v[c, q, e] = mul(V, x)
  O[q, e] = sum(v; c)
  store O[q, e] = O
"""


def merge_us(q: int, warps: int, without: tuple[str, ...] = ()) -> float:
    graph = parse_mugraph(MERGE)
    m = models(graph)["k0"]
    batch = Batch.of(m, [KernelSchedule((("q", q), ("e", 64)), ("c", "q", "e"), warps, 3)], graph.sizes)
    return float(estimate(m, batch, graph.sizes, H200, without).us[0])


def test_several_warps_meet_for_each_sum_outside_of_loops() -> None:
    """Compiled for sm_90, such merges have 3 to 7 barriers, and none with one warp."""
    alone, several = (merge_us(8, n) - merge_us(8, n, ("meetings",)) for n in (1, 4))
    assert alone == 0.0
    assert several == pytest.approx(2 * H200.costs.meet_us)


def test_other_waves_hide_where_warps_meet() -> None:
    one, many = (merge_us(q, 4) - merge_us(q, 4, ("meetings",)) for q in (8, 1))
    assert 0.0 < many < one


def test_what_only_loads_and_sums_is_tried_with_one_warp() -> None:
    graph = parse_mugraph(MERGE)
    m = models(graph)["k0"]
    found = choices(m, graph.sizes, H200, orders_of(m, graph.sizes), coarse=False).batch
    elements = 4 * found.block["q"] * found.block["e"]
    small, large = (elements >= 1024) & (elements <= 2048), elements > 2048
    assert {*found.warps[small].tolist()} == {1.0, 4.0}
    assert 1.0 not in found.warps[large]
    loops = parse_mugraph(MERGE.replace("c:tile", "c:loop").replace("x[c, q] = exp_sub(M, m)", "x[c, q] = exp(M)"))
    m = models(loops)["k0"]
    walked = choices(m, loops.sizes, H200, orders_of(m, loops.sizes), coarse=False).batch
    assert (walked.warps[walked.block["q"] * walked.block["e"] >= 1024] > 1.0).all()
