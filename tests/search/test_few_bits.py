"""Loads of few bytes in loops, as the cost model has them: weights of 4 bits as measured, and what lies apart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost import model
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.work import chunk_sizes, models
from mirage_cli.search.tiles import best_schedule
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.space import first_schedules
from tests.search.test_tiles import VECTOR

GOLDEN = Path(__file__).parents[1] / "golden" / "triton" / "weights_of_4_bits.py"
MEASURED = {(64, 2, 5, 2): 19.6, (64, 4, 5, 2): 23.4, (128, 4, 3, 4): 14.8, (128, 2, 4, 4): 14.1, (256, 8, 4, 8): 17.1}
"""Columns of a block, warps, stages and chunks, with one row of activations; microseconds on an H200
(results/h200/notes-2026-11-27.md)."""


def weights_of_4_bits() -> MuGraph:
    """With one row of activations."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    text = [line[2:] for line in lines[: lines.index("# schedule")]]
    return parse_mugraph("\n".join(text) + "\n").resized({"m": 1})


def test_the_fastest_schedules_are_expected_to_be_the_fastest() -> None:
    """64 columns are 32 rows of pairs, which 4 warps convert twice."""
    graph = weights_of_4_bits()
    m, target = models(graph)["k0"], find_target("h200")

    def predicted_us(columns: int, warps: int, stages: int, chunks: int, rows: int = 16) -> float:
        plan = Schedule.parse(
            f"k0: m={rows} k=128 n={columns} order=n,k,m warps={warps} stages={stages} split={chunks} overlap\n"
            "k1: m=1 n=256 order=k_split,m,n warps=1 stages=2 overlap"
        )
        sizes = chunk_sizes(graph, plan)
        return float(model.estimate(m, Batch.of(m, [plan.kernels["k0"]], sizes), sizes, target).us[0])

    def by(us: dict[tuple[int, int, int, int], float]) -> list[tuple[int, int, int, int]]:
        return sorted(us, key=lambda x: us[x])

    found = by({x: predicted_us(*x) for x in MEASURED})
    assert {*found[:2]} == {*by(MEASURED)[:2]} and found[-1] == by(MEASURED)[-1]
    assert predicted_us(128, 4, 3, 4, rows=8) < predicted_us(128, 4, 3, 4)  # 13.2 and 16.7


def test_a_block_with_several_factors_is_expected_to_be_slow() -> None:
    """Bytes are read one by one then. Weights of 8 bits took 43.4 us in place of 21.4, of 4 bits 32.6 and 12.4."""
    target = find_target("h200")
    whole_bytes = parse_mugraph(VECTOR.format(dtype="i8")).resized({"m": 8, "k": 4096, "n": 14336, "groups": 32})
    chunks = "n=128 order=n,k,m warps=4 stages=3 split=4 overlap\nk1: m=1 n=256 order=k_split,m,n warps=1 stages=2"
    for graph, rest, most in (
        (whole_bytes, "n=64 order=n,k,m warps=4 stages=4 overlap", 1.5),
        (weights_of_4_bits(), chunks, 2),
    ):
        us: list[float] = []
        for depth in (128, 256):
            plan = Schedule.parse(f"k0: m=8 k={depth} {rest}")
            m, sizes = models(graph)["k0"], chunk_sizes(graph, plan)
            us.append(float(model.estimate(m, Batch.of(m, [plan.kernels["k0"]], sizes), sizes, target).us[0]))
        assert us[1] > most * us[0]


IN_WORDS = """
mugraph words float16
dims m=16 k=4096 n=14336 words=512 columns=1792 groups=32
input X f16[m, k]
input W i32[words, n]
input S f16[groups, n]
input Z i32[groups, columns]
output O f16[m, n]
buffer O_part f32[k_split, m, n]

kernel k0 generated m:grid k:split n:grid
  Z = load Z[k//128, n//8]
  S = load S[k//128, n]
  X = load X[m, k]
  W = load W[k//8, n]
  t1[k] = index(k)
  t2[k] = remainder(t1, 8)
  t3[k] = mul(4, t2)
  t4[k, n] = shift_right(W, t3)
  Q[k, n] = remainder(t4, 16)
  t7[n] = index(n)
  t8[n] = remainder(t7, 8)
  t9[n] = mul(4, t8)
  t10[k, n] = shift_right(Z, t9)
  P[k, n] = remainder(t10, 16)
  t12[k, n] = sub(Q, P)
  t15[k, n] = mul(t12, S)
  O[m, n] = dot(X, t15; k)
  store O_part[k_split, m, n] = O

kernel k1 generated k_split:tile m:grid n:grid
  O_part = load O_part[k_split, m, n]
  O[m, n] = sum(O_part; k_split)
  store O[m, n] = O
"""
MERGE = "k1: m=1 n=256 order=k_split,m,n warps=1 stages=2 overlap"


def first_kernel(graph: MuGraph, schedule: str, *without: str) -> model.Estimates:
    plan, target = Schedule.parse(schedule), find_target("h200")
    m, sizes = models(graph)["k0"], chunk_sizes(graph, plan)
    return model.estimate(m, Batch.of(m, [plan.kernels["k0"]], sizes), sizes, target, without)


def test_words_of_4_bits_cost_what_bytes_do_in_blocks_that_eight_phases_share() -> None:
    """16 rows: 64 columns and a warp took 15.2 us on an H200, 128 columns and two warps 16.1, where bytes take 14.3 and
    14.1; without phases 33 and more (results/h200)."""
    words, of_bytes = parse_mugraph(IN_WORDS.lstrip("\n")), weights_of_4_bits().resized({"m": 16})

    def us(graph: MuGraph, k: int, n: int, warps: int) -> float:
        rest = f"order=n,k,m warps={warps} stages=3 split=4 overlap"
        return float(first_kernel(graph, f"k0: m=16 k={k} n={n} {rest}\n{MERGE}").us[0])

    for n, warps in ((64, 1), (128, 2)):
        assert abs(us(words, 128, n, warps) / us(of_bytes, 128, n, warps) - 1) < 0.05
        assert us(words, 64, n, warps) > 1.5 * us(words, 128, n, warps)
    assert us(words, 128, 64, 1) < us(words, 128, 128, 2)  # rows of 64 words are whole lines


ALONG_COLUMNS = """
mugraph words float16
dims m=16 k=4096 n=14336 columns=1792 groups=32
input X f16[m, k]
input W i32[k, columns]
input S f16[groups, n]
output O f16[m, n]

kernel k0 generated m:grid k:loop n:grid
  S = load S[k//128, n]
  X = load X[m, k]
  W = load W[k, n//8]
  t7[n] = index(n)
  t8[n] = remainder(t7, 8)
  t9[n] = mul(4, t8)
  t10[k, n] = shift_right(W, t9)
  P[k, n] = remainder(t10, 16)
  t15[k, n] = mul(P, S)
  O[m, n] = dot(X, t15; k)
  store O[m, n] = O
"""


def test_words_along_columns_take_blocks_of_which_each_part_has_enough() -> None:
    """Of 64 columns or more: a fourth of fewer is too short for the matrix units, and a warp has 16 of it or more."""
    graph = parse_mugraph(ALONG_COLUMNS.lstrip("\n"))

    (made,) = (e for w in models(graph)["k0"].segments for e in w.elementwise if e.made is not None)
    assert made.made is not None and made.made.least == (("n", 64),) and made.sharing == 4

    def us(n: int, warps: int) -> float:
        plan = f"k0: m=16 k=128 n={n} order=n,k,m warps={warps} stages=4 overlap"
        return float(first_kernel(graph, plan, "turns").busy["arithmetic"][0])

    assert us(128, 8) > 1.4 * us(128, 4)  # four warps make what two would, eight twice that


TABLE = """
mugraph table bfloat16
dims m=1 k=4096 n=14336 half=2048 t=16 blocks=64
input X bf16[m, k]
input W i8[n, half]
input T bf16[t]
input A bf16[n, blocks]
output O bf16[m, n]

kernel k0 generated m:grid k:loop n:grid t:tile
  W = load W[n, k//2]
  T = load T[t]
  X = load X[m, k]
  A = load A[n, k//64]
  t8[t] = index(t)
  t1[k] = index(k)
  t2[k] = remainder(t1, 2)
  t3[k] = eq(t2, 0)
  t4[k, n] = floor_divide(W, 16)
  t5[k, n] = add(t4, 8)
  t6[k, n] = remainder(W, 16)
  I[k, n] = where(t3, t5, t6)
  t9[k, n, t] = eq(t8, I)
  t10[k, n, t] = where(t9, T, 0)
  Q[k, n] = sum(t10; t)
  v0[k, n] = mul(Q, A)
  O[m, n] = dot(X, v0; k)
  store O[m, n] = O
"""


def test_entries_of_a_table_cost_no_comparison_with_each() -> None:
    """16 numbers for 4 bits each (NF4): 96 us as sums."""
    graph = parse_mugraph(TABLE.lstrip("\n"))
    found = best_schedule(models(graph)["k0"], graph.sizes, find_target("h200"))
    assert found is not None and found[0] < 40
    lost = parse_mugraph(TABLE.lstrip("\n").replace("where(t3, t5, t6)", "where(t3, t4, t6)"))  # may be negative
    summed = best_schedule(models(lost)["k0"], lost.sizes, find_target("h200"))
    assert summed is not None and summed[0] > 2 * found[0]


@pytest.mark.parametrize(("warps", "buffers"), [(2, 3), (4, 4)])
def test_warpgroups_read_from_one_buffer_more(warps: int, buffers: int) -> None:
    """Of a product of what is loaded; single warps have read their operands before the next copy begins."""
    text = APART.replace("n=4096", "n=4096 w=4096").replace("[n, 2k]", "[n, w]").replace("[n, 2*k]", "[n, k]")
    plan = f"k0: m=16 k=64 n=64 order=n,k,m warps={warps} stages=4 overlap"
    assert first_kernel(parse_mugraph(text.lstrip("\n")), plan).shared_bytes[0] == buffers * 2 * 64 * (16 + 64)


ALONG_THE_SUM = """
mugraph bytes bfloat16
dims m=16 k=4096 n=14336
input X bf16[m, k]
input W i8[n, k]
input S bf16[n]
input Z i8[n]
output O bf16[m, n]

kernel k0 generated m:grid k:loop n:grid
  W = load W[n, k]
  Z = load Z[n]
  S = load S[n]
  X = load X[m, k]
  t1[k, n] = sub(W, Z)
  t3[k, n] = mul(t1, S)
  O[m, n] = dot(X, t3; k)
  store O[m, n] = O
"""


@pytest.mark.parametrize("m", [1, 16])
def test_bytes_less_zero_points_along_the_sum_are_worth_a_kernel_of_their_own(m: int) -> None:
    """Coarse estimates too try activations as rows, and a vector on the matrix units: 27 and 30 us before."""
    graph = parse_mugraph(ALONG_THE_SUM.lstrip("\n")).resized({"m": m})
    found = best_schedule(models(graph)["k0"], graph.sizes, find_target("h200"))
    assert found is not None and found[0] < 18


PICKED = """
mugraph picked float16
dims m=256 k=64 n=512
input X f16[n]
input T i32[m, k] below n
output O f16[m, k]

kernel k0 generated m:grid k:tile
  X = load X[T{n}[m, k]]
  O[m, k] = exp(X)
  store O[m, k] = O
"""


def test_what_has_no_neighbours_wastes_what_its_element_leaves_of_a_line() -> None:
    """Of rows that a table names by elements, none lie side by side."""
    graph = parse_mugraph(PICKED.lstrip("\n"))
    e = first_kernel(graph, "k0: m=4 order=m,k warps=4 stages=3 overlap")
    assert 0 < e.us[0] < 100


APART = """
mugraph apart float16
dims m=16 k=4096 n=4096
input X f16[m, k]
input W f16[n, 2k]
output O f16[m, n]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[n, 2*k]
  O[m, n] = dot(X, W; k)
  store O[m, n] = O
"""


@pytest.mark.parametrize(("read", "comes_late"), [("2*k", True), ("k", False)])
def test_a_loop_waits_for_what_lies_apart(read: str, comes_late: bool) -> None:
    """Every second element of 2 bytes: a copy moves 4."""
    wide = 8192 if comes_late else 4096
    text = APART.replace("n=4096", f"n=4096 w={wide}").replace("[n, 2k]", "[n, w]").replace("[n, 2*k]", f"[n, {read}]")
    graph = parse_mugraph(text.lstrip("\n"))
    m, target = models(graph)["k0"], find_target("h200")
    plan = Schedule.parse("k0: m=16 k=64 n=64 order=n,k,m warps=4 stages=4 overlap")
    batch = Batch.of(m, [plan.kernels["k0"]], graph.sizes)
    found, without = (model.estimate(m, batch, graph.sizes, target, x).us[0] for x in ((), ("late",)))
    assert (found > without) == comes_late


def test_what_each_iteration_takes_beside_the_bits_counts_for_its_threads() -> None:
    """128 columns, two warps: 128 deep take 14.4 us on an H200, 64 deep 16.0."""
    graph, target = weights_of_4_bits().resized({"m": 16}), find_target("h200")
    m = models(graph)["k0"]

    def us(k: int, warps: int, without: tuple[str, ...] = ()) -> float:
        plan = Schedule.parse(f"k0: m=16 k={k} n=128 order=n,k,m warps={warps} stages=3 split=4 overlap\n{MERGE}")
        sizes = chunk_sizes(graph, plan)
        batch = Batch.of(m, [plan.kernels["k0"]], sizes)
        return float(model.estimate(m, batch, sizes, target, without).busy["arithmetic"][0])

    own = {(k, warps): us(k, warps) - us(k, warps, ("bits",)) for k in (64, 128) for warps in (1, 2)}
    assert own[128, 2] > 0
    assert own[64, 2] == pytest.approx(2 * own[128, 2])
    assert own[128, 2] > own[128, 1]


def test_a_deeper_loop_waits_longer_for_what_it_computes_first() -> None:
    """128 columns, two warps, 8 iterations: 3, 4 and 5 stages take 14.1, 14.4 and 15.8 us on an H200."""
    graph = weights_of_4_bits().resized({"m": 16})
    rest = "order=n,k,m warps=2 split=4 overlap"
    found = [first_kernel(graph, f"k0: m=16 k=128 n=128 {rest} stages={n}\n{MERGE}") for n in (3, 4, 5)]
    assert found[0].us < found[1].us < found[2].us
    steps = [b.busy["arithmetic"] - a.busy["arithmetic"] for a, b in pairwise(found)]
    assert steps[0] == pytest.approx(steps[1])
    assert found[0].busy["memory"] == found[2].busy["memory"]


def test_chunks_of_single_warps_are_tried_that_fill_a_multiprocessor() -> None:
    """Four chunks of 224 blocks of 64 columns: 6.8 blocks of a warp for each multiprocessor."""
    graph = weights_of_4_bits().resized({"m": 16})
    target = find_target("h200")
    first = [s.kernels["k0"] for s in first_schedules(graph, target, 20)]
    found = [(dict(s.tiles)["n"], s.warps, s.split) for s in first if dict(s.tiles)["k"] == 128]
    assert (64, 1, 4) in found


def test_bytes_through_descriptors_are_expected_to_be_read_one_by_one() -> None:
    """64 columns, one warp: 21.0 us on an H200, 14.6 in pairs by pointers."""
    graph = weights_of_4_bits().resized({"m": 16})
    plan = "k0: m=16 k=128 n=64 order=n,k,m warps=1 stages=3 split=4 overlap"
    by_pointers, boxed = (first_kernel(graph, f"{plan}{word}\n{MERGE}").us for word in ("", " descriptors"))
    assert boxed > 1.25 * by_pointers
