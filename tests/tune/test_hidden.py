"""Kernels that run beside the next one's loops: which may, what that is worth, and that the tuner begins with room."""

from __future__ import annotations

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.hidden import HIDDEN, pairs
from mirage_cli.tune.price import estimates, total_us
from mirage_cli.tune.space import first_schedules

H200 = find_target("h200")
ADAPTER = """
mugraph adapter float16
dims m=2048 k=4096 n=4096 r=16
input X f16[m, k]
input W f16[k, n]
input A f16[k, r]
input B f16[r, n]
output O f16[m, n]
buffer T f16[m, r]
kernel k0 generated m:grid k:loop r:grid
  X = load X[m, k]
  A = load A[k, r]
  T[m, r] = dot(X, A; k)
  store T[m, r] = T
kernel k1 generated k:loop m:grid n:grid r:tile
  X = load X[m, k]
  W = load W[k, n]
  P[m, n] = dot(X, W; k)
  T = load T[m, r]
  B = load B[r, n]
  Q[m, n] = dot(T, B; r)
  O[m, n] = add(P, Q)
  store O[m, n] = O
"""
NEEDED_AT_ONCE = """
mugraph scaled float16
dims m=2048 k=4096 n=4096
input X f16[m, k]
input W f16[k, n]
output O f16[m, n]
buffer S f32[m]
kernel k0 generated m:grid k:loop
  X = load X[m, k]
  S[m] = sum(X; k)
  store S[m] = S
kernel k1 generated m:grid k:loop n:grid
  X = load X[m, k]
  S = load S[m]
  Y[m, k] = mul(X, S)
  W = load W[k, n]
  O[m, n] = dot(Y, W; k)
  store O[m, n] = O
"""
SMALL = "m=64 k=64 r=16 order=m,k,r warps=4 stages=4 overlap early"
WIDE = "m=128 k=64 n=256 order=m,k,r,n warps=8 stages=3 overlap"


def schedule(first: str = SMALL, second: str = WIDE) -> Schedule:
    return Schedule({"k0": KernelSchedule.parse(first), "k1": KernelSchedule.parse(second)})


def hidden_us(graph: MuGraph, s: Schedule) -> float:
    """What the call takes less than its kernels."""
    return sum(float(e.us[0]) for e in estimates(graph, s, H200).values()) - total_us(graph, s, H200)


def test_what_is_read_behind_a_loop_may_be_computed_beside_it() -> None:
    graph = parse_mugraph(ADAPTER)
    assert pairs(graph) == (("k0", "k1"),)
    text = kernels_source(graph, schedule()).split("def k1(")[1]
    assert text.index("for s_k in") < text.index("wait_for_data()"), "the kernel waits behind its loop"
    assert pairs(parse_mugraph(NEEDED_AT_ONCE)) == ()


def test_only_what_releases_early_and_leaves_room_is_hidden() -> None:
    graph = parse_mugraph(ADAPTER)
    work_us = float(estimates(graph, schedule(), H200)["k0"].parts["work"][0])
    assert hidden_us(graph, schedule()) == pytest.approx(HIDDEN * work_us)
    for first, second in (
        (SMALL.removesuffix(" early"), WIDE),
        (SMALL.replace("k=64", "k=256"), WIDE),
        (SMALL, WIDE.removesuffix(" overlap")),
        (SMALL, WIDE.replace("stages=3", "stages=4")),
    ):
        assert hidden_us(graph, schedule(first, second)) == pytest.approx(0.0), (first, second)


def test_the_tuner_begins_with_a_kernel_that_has_room_beside_the_next_one() -> None:
    graph = parse_mugraph(ADAPTER)
    first, *others = first_schedules(graph, H200, 6)
    assert hidden_us(graph, first) > 0
    assert any(hidden_us(graph, s) == pytest.approx(0.0) for s in others), "and without"
    us = [total_us(graph, s, H200) for s in (first, *others)]
    assert us[0] == pytest.approx(min(us))


def test_the_kernel_beside_is_tried_in_few_and_in_many_blocks() -> None:
    tiles = [s.kernels["k0"].tile("m") for s in first_schedules(parse_mugraph(ADAPTER), H200, 6)]
    assert len({*tiles}) >= 3 and max(tiles) >= 4 * min(tiles), tiles
