"""Loads of few bytes in loops, as the cost model has them: weights of 4 bits as measured, and what lies apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search import cost
from mirage_cli.search.batch import Batch
from mirage_cli.search.work import chunk_sizes, models
from mirage_cli.target.gpus import find_target
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
        return float(cost.estimate(m, Batch.of(m, [plan.kernels["k0"]], sizes), sizes, target).us[0])

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
            us.append(float(cost.estimate(m, Batch.of(m, [plan.kernels["k0"]], sizes), sizes, target).us[0]))
        assert us[1] > most * us[0]


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
    found, without = (cost.estimate(m, batch, graph.sizes, target, x).us[0] for x in ((), ("late",)))
    assert (found > without) == comes_late
