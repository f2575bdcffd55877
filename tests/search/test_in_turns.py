"""What a block waits for between two products of attention, and what warpgroups read of their operands."""

from __future__ import annotations

import pytest

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.model import Estimates, estimate
from mirage_cli.search.cost.work import models
from mirage_cli.target.gpus import find_target

H200 = find_target("h200")
TEXT = """
mugraph attention bfloat16
dims h=32 q=2048 s=2048 d=128 e=128
input Q bf16[h, q, d]
input K bf16[h, s, d]
input V bf16[h, s, e]
output O bf16[h, q, e]

kernel k0 generated h:grid q:grid s:loop d:tile e:tile
  Q = load Q[h, q, d]
  K = load K[h, s, d]
  V = load V[h, s, e]
  A[h, q, s] = dot(Q, K; d)
  {mask}
  M[h, q] = max(B; s)
  E[h, q, s] = exp_sub(B, M)
  L[h, q] = sum(E; s)
  U[h, q, e] = dot(E, V; s)
  O[h, q, e] = div(U, L)
  store O[h, q, e] = O
"""
ATTENTION = parse_mugraph(TEXT.format(mask="B[h, q, s] = mul(A, 2)"))
CAUSAL = "iq[q] = index(q)\n  is[s] = index(s)\n  C[q, s] = ge(iq, is)\n  B[h, q, s] = where(C, A, -inf)"


def estimated(q: int, s: int, warps: int, without: str = "", graph: MuGraph = ATTENTION) -> Estimates:
    m, order = models(graph)["k0"], "order=h,q,s,d,e"
    schedule = Schedule.parse(f"k0: h=1 q={q} s={s} {order} warps={warps} stages=2").kernels["k0"]
    return estimate(m, Batch.of(m, [schedule], graph.sizes), graph.sizes, H200, {without})


def operands_us(q: int, s: int, warps: int) -> float:
    return float(estimated(q, s, warps, without="turns").busy["operands"][0])


def test_the_keys_are_read_for_each_64_rows_however_many_warps_have_them() -> None:
    """wgmma has 64 rows. Of the first product Q is read too, of the second only V: its rows are in registers."""
    two = operands_us(128, 32, 8)
    assert operands_us(128, 32, 4) == pytest.approx(two, rel=0.001)
    first, second = 64 * 128 + 32 * 128, 32 * 128  # of a step of 64 rows and 32 keys
    steps = 32 * 2048 // 64 * 2048 // 32
    assert two == pytest.approx(2 * (first + second) * steps / H200.smem_bytes_per_us, rel=0.05)  # waves not full


def test_a_block_alone_computes_and_then_waits_for_its_operands() -> None:
    """One H200, heads of 192 and values of 128, causal, 8 warps and 128 rows: 157.0 us with 32 keys, 123.3 with 64.
    With 32, reading operands takes longer than multiplying."""
    for s in (32, 64):
        found, apart = estimated(128, s, 8), estimated(128, s, 8, without="turns")
        multiplying = max(apart.busy["matrix units"][0], apart.busy["operands"][0])
        longest = max(found.busy["matrix units"][0], found.busy["operands"][0])
        assert longest == pytest.approx(multiplying + apart.busy["arithmetic"][0], rel=1e-3)
    narrow, wide = (float(estimated(128, s, 8).us[0]) for s in (32, 64))
    assert narrow > 1.1 * wide


def test_short_loops_fill_the_last_wave() -> None:
    """1,024 instances of which 396 run at a time: three waves, of which the last is not full. The longest loops of a
    causal mask come first (`codegen.planner`), so that the last are short."""
    causal = parse_mugraph(TEXT.format(mask=CAUSAL))
    times = [float(estimated(64, 32, 4, x, causal).busy["operands"][0]) for x in ("lengths", "")]
    waves = [float(estimated(64, 32, 4, x).busy["operands"][0]) for x in ("lengths", "")]
    assert times[0] == pytest.approx(3 * 396 / 1024 * times[1], rel=0.01) and waves[0] == waves[1]
