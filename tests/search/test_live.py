"""What program instances hold at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost.batch import Batch, held
from mirage_cli.search.cost.model import estimate
from mirage_cli.search.cost.occupancy import Launch, Occupancy, copies, occupancy, segment
from mirage_cli.search.cost.work import models
from mirage_cli.search.tiles import orders_of
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.price import predicted
from mirage_cli.tune.space import ranked, roomier

H100 = find_target("h100")
ATTENTION = (Path(__file__).parents[1] / "golden" / "attention.mugraph").read_text(encoding="utf-8")
POINTS = """
mugraph points float32
dims i=4096 j=4096 c=3
input X f32[i, c]
input Y f32[j, c]
input G f32[j]
output O f32[i]
kernel k0 generated i:grid j:tile c:tile
  X = load X[i, c]
  Y = load Y[j, c]
  G = load G[j]
  d[i, j, c] = sub(X, Y)
  e[i, j, c] = mul(d, d)
  r[i, j] = sum(e; c)
  s[i, j] = mul(G, r)
  m[i] = max(s; j)
  p[i, j] = exp_sub(s, m)
  O[i] = sum(p; j)
  store O[i] = O
"""
SUMS = """
mugraph sums float32
dims b=16 n=65536
input X f32[b, n]
input Y f32[b, n]
output O f32[b]
kernel k0 generated b:grid n:loop
  X = load X[b, n]
  Y = load Y[b, n]
  a0[b, n] = mul(X, X)
  a1[b, n] = mul(X, Y)
  a2[b, n] = mul(Y, Y)
  s0[b] = sum(a0; n)
  s1[b] = sum(a1; n)
  s2[b] = sum(a2; n)
  s3[b] = sum(X; n)
  s4[b] = sum(Y; n)
  r0[b] = add(s0, s1)
  r1[b] = add(r0, s2)
  r2[b] = add(r1, s3)
  O[b] = add(r2, s4)
  store O[b] = O
"""
BATCHES = """
mugraph batches float32
dims b=8 t=4096 c=2048
input X f32[b, t, c]
input Y f32[b, t, c]
output O f32[c]
kernel k0 generated b:tile t:loop c:grid
  X = load X[b, t, c]
  Y = load Y[b, t, c]
  p[b, t, c] = mul(X, Y)
  O[c] = sum(p; b, t)
  store O[c] = O
"""
COLUMNS = """
mugraph columns float32
dims t=65536 c=2048
input X f32[t, c]
output O f32[c]
kernel k0 generated t:loop c:grid
  X = load X[t, c]
  O[c] = sum(X; t)
  store O[c] = O
"""


def of(graph: MuGraph, s: KernelSchedule) -> Occupancy:
    (m,) = models(graph).values()
    x = Launch.of(m, Batch.of(m, [s], graph.sizes), graph.sizes, H100, ())
    return occupancy(x, [segment(x, w) for w in m.segments], *held(m, x.batch.block, x.zero))


def us(graph: MuGraph, s: KernelSchedule) -> float:
    (m,) = models(graph).values()
    return float(estimate(m, Batch.of(m, [s], graph.sizes), graph.sizes, H100).us[0])


def test_an_operand_that_is_loaded_in_front_of_the_loop_takes_shared_memory() -> None:
    """Q of attention, beside the stages of K and V. Triton needs as much of kernels for sm_90."""
    graph = parse_mugraph(ATTENTION)
    s = KernelSchedule((("h", 1), ("q", 128), ("s", 64)), ("h", "q", "d", "s", "e"), warps=4, stages=3)
    assert of(graph, s).shared[0] == 2 * (3 * (64 * 64 + 64 * 32) + 128 * 64)
    wide = graph.resized({**graph.sizes, "d": 512})
    assert np.isfinite(us(wide, replace(s, stages=2, tiles=(("h", 1), ("q", 64), ("s", 32)))))
    assert us(wide, replace(s, stages=2)) == np.inf  # 204,800 bytes without Q


def test_what_is_used_behind_a_sum_is_held_beside_it() -> None:
    """s, while its maximum is computed. A block of 4,096 takes 16 registers of 256 threads, once for each of the four
    lanes along c that share it."""
    graph = parse_mugraph(POINTS)
    (m,) = models(graph).values()
    most = {tuple((v.axes, v.beside, n) for v, n in moment) for moment in m.moments}
    whole = (("i", "j"), ("c",), 1)
    assert any(whole in moment and (("i",), ("j", "c"), 1) in moment for moment in most)
    s = KernelSchedule((("i", 1),), ("i", "j", "c"), warps=8, stages=1)
    few = replace(s, warps=1)
    assert of(graph, s).registers[0] > 60 + 0.9 * 16 * 4 and np.isfinite(us(graph, s))
    assert us(graph, few) == np.inf


def test_a_short_axis_that_is_summed_stands_first() -> None:
    """Behind the others, four lanes share a sum's terms: each computes what comes of it, holds it, and they exchange
    what they add up. On sm_90, a loop over pairs of bodies took 3,389 instructions so, and 977 with c in front."""
    graph = parse_mugraph(POINTS)
    (m,) = models(graph).values()
    usual, order = orders_of(m, graph.sizes)
    assert order == ("c", "i", "j") and usual == ("i", "j", "c")
    assert orders_of(m, {**graph.sizes, "c": 32}) == [usual]
    last = KernelSchedule((("i", 1),), ("i", "j", "c"), warps=8, stages=1)
    first = replace(last, order=order)
    x = Launch.of(m, Batch.of(m, [last, first], graph.sizes), graph.sizes, H100, ())
    assert np.asarray(copies(x, ("i", "j"), ("c",))).tolist() == [4.0, 1.0]
    busy = predicted(m, last, graph.sizes, H100).busy["arithmetic"]
    assert predicted(m, first, graph.sizes, H100).busy["arithmetic"][0] < 0.5 * busy[0]


def test_an_accumulator_of_more_than_a_thread_keeps_is_summed_across_threads_in_every_iteration() -> None:
    """64 elements of each thread are kept until after the loop; of twice as many, threads exchange the sums."""
    graph = parse_mugraph(COLUMNS)
    (m,) = models(graph).values()
    kept = KernelSchedule((("t", 128), ("c", 64)), ("t", "c"), warps=4, stages=1)
    summed = replace(kept, tiles=(("t", 256), ("c", 64)))
    busy = [float(predicted(m, s, graph.sizes, H100).busy["arithmetic"][0]) for s in (kept, summed)]
    assert busy[1] > 1.3 * busy[0]


def test_products_of_a_warp_wait_for_each_other_along_a_long_sum() -> None:
    """Of 512 elements of a latent, 24 more than of 128 at a time: 0.46 us."""
    latent = parse_mugraph(ATTENTION).resized({"h": 2, "q": 16, "s": 4096, "d": 512, "e": 64})
    (m,) = models(latent).values()
    s = KernelSchedule((("h", 1), ("q", 16), ("s", 32)), ("h", "q", "d", "s", "e"), warps=4, stages=5)
    wide = replace(s, tiles=(("h", 1), ("q", 16), ("s", 64)))
    batch = Batch.of(m, [s, wide], latent.sizes)
    with_us, without_us = (
        estimate(m, batch, latent.sizes, H100, without).busy["latency"] for without in ((), ("chains",))
    )
    assert np.allclose(with_us - without_us, [127 * 24 * 0.019, 63 * 24 * 0.019])


def test_where_three_stages_have_no_room_two_are_tried() -> None:
    """Blocks of 64 rows of a latent of 512: half the iterations of those of 32. Warpgroups take 313,344 bytes for three
    stages, where single warps, with queries as rows, take 147,456 (triton 3.6, sm_90)."""
    latent = parse_mugraph(ATTENTION).resized({"h": 2, "q": 16, "s": 4096, "d": 512, "e": 256})
    (m,) = models(latent).values()
    found = [(s.tile("q"), s.tile("s"), s.order[0] == "d", s.stages) for s in ranked(m, latent.sizes, H100)]
    assert {stages for *blocks, stages in found if blocks == [16, 64, True]} == {2}
    assert {stages for *blocks, stages in found if blocks == [16, 64, False]} == {3}
    assert {stages for *blocks, stages in found if blocks == [16, 32, True]} == {3}


def test_what_is_loaded_and_kept_says_how_many_blocks_have_room() -> None:
    """Four passes over logits took 188 us on an H200 in blocks of 2 x 4096 with 4 warps, of which two had room, and 110
    to 125 in blocks of 1 x 2048."""
    graph = parse_mugraph(SUMS).resized({"b": 512, "n": 1 << 17})
    wide = KernelSchedule((("b", 1), ("n", 4096)), ("b", "n"), warps=4, stages=1)
    narrow = replace(wide, tiles=(("b", 1), ("n", 512)))
    assert [of(graph, s).waves[0] for s in (wide, narrow)] == [2.0, 1.0]


def test_a_loop_beside_an_axis_that_is_held_whole_walks_in_short_steps_too() -> None:
    """Of 8 x 32 positions of 128 columns, each step sums 128 elements a thread; of 8 x 4, 16 that stay lanes."""
    graph = parse_mugraph(BATCHES)
    (m,) = models(graph).values()
    blocks = {s.tile("t") for s in ranked(m, graph.sizes, H100)}
    assert blocks >= {4, 8, 16}


def test_a_thread_of_many_warps_has_fewer_registers() -> None:
    """16 warps have 128 each."""
    graph = parse_mugraph(POINTS.replace("4096", "16384"))
    s = KernelSchedule((("i", 1),), ("i", "j", "c"), warps=16, stages=1)
    assert of(graph, s).registers[0] < 255 and us(graph, s) == np.inf


def test_where_a_kernel_has_no_room_others_of_the_same_plan_hold_less() -> None:
    """Of the kernel alone that is crowded; the one with the fastest prediction first."""
    graph = parse_mugraph(POINTS.replace("j:tile", "j:loop").replace("exp_sub(s, m)", "mul(s, s)"))
    (m,) = models(graph).values()
    s = Schedule({"k0": KernelSchedule((("i", 64), ("j", 64)), ("i", "j", "c"), warps=4, stages=1)})
    found = roomier(graph, s, H100, "k0", 4)
    had, *less = (predicted(m, x.kernels["k0"], graph.sizes, H100) for x in (s, *found))
    assert len(less) == 4 and all(x.crowded[0] < 0.8 * had.crowded[0] for x in less)
    assert less[0].us[0] == min(x.us[0] for x in less) < np.inf


def test_sums_that_keep_their_elements_until_after_the_loop_take_registers() -> None:
    """For sm_90, four warps: with blocks of 512 elements a thread takes 48 registers, of 2048 128, of 4096 240. Of 8192
    it spills 1200 bytes, where one sum alone takes 94."""
    graph = parse_mugraph(SUMS)

    def schedule(b: int, n: int) -> KernelSchedule:
        return KernelSchedule((("b", b), ("n", n)), ("b", "n"), warps=4, stages=1)

    assert of(graph, schedule(1, 512)).registers[0] < 100
    assert of(graph, schedule(4, 2048)).registers[0] > 5 * 64
    assert us(graph, schedule(4, 2048)) == np.inf
    assert 110 < of(graph, schedule(1, 2048)).registers[0] < 150
    assert 220 < of(graph, schedule(2, 2048)).registers[0] < 260
    assert us(graph, schedule(2, 2048)) < np.inf


def test_what_a_loop_loads_takes_registers_where_nothing_is_multiplied() -> None:
    """Three blocks of 64 elements of a thread and sums of as many: min-p sampling spilled 880 bytes so on sm_90, and
    took 90 registers with an eighth of each."""
    third = "  Z = load Z[b, n]\n  a1[b, n] = mul(X, Z)"
    more = SUMS.replace("output", "input Z f32[b, n]\noutput").replace("  a1[b, n] = mul(X, Y)", third)
    graph = parse_mugraph(more)
    many, few = (of(graph, KernelSchedule((("b", 2), ("n", n)), ("b", "n"), 4, 1)) for n in (4096, 512))
    assert many.registers[0] >= 18 + 64 * (3 + 5)
    assert few.registers[0] < 120
