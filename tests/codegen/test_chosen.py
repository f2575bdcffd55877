"""Where the extremum of a loop stands, found in that loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.placement import place
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.spec.reader import parse_spec
from mirage_cli.verify.equivalence import check_equivalence
from tests.codegen.conftest import Compile
from tests.codegen.test_triton import check

SPEC = """
name: chosen
dims: {a: 3, n: 5, k: 71}
dtype: DTYPE
inputs: {X: [a, k, n], Z: [k, n]}
program: |
  M = max(X, k)
  L = min(X, k)
  P = min(where(X == M or isnan(X), index(k), k), k)
  Q = sum(where(X == L, Z, 0), k)
  R = max(where(index(k) > 4 and X == M, index(k), -1), k)
outputs:
  P: {dims: [a, n], dtype: int64}
  Q: [a, n]
  R: {dims: [a, n], dtype: int32}
  M: [a, n]
"""
GRAPH = """
mugraph chosen DTYPE
dims a=3 n=5 k=71
input X TYPE[a, k, n]
input Z TYPE[k, n]
output P i64[a, n]
output Q TYPE[a, n]
output R i32[a, n]
output M TYPE[a, n]

kernel k0 generated a:grid n:grid k:loop
  X = load X[a, k, n]
  Z = load Z[k, n]
  M[a, n] = max(X; k)
  L[a, n] = min(X; k)
  t0[a, n, k] = eq(X, M)
  t1[a, n, k] = isnan(X)
  t2[a, n, k] = or(t0, t1)
  t3[k] = index(k)
  t4[a, n, k] = where(t2, t3, 71)
  P[a, n] = min(t4; k)
  t5[a, n, k] = eq(X, L)
  t6[a, n, k] = where(t5, Z, 0)
  Q[a, n] = sum(t6; k)
  t7[k] = gt(t3, 4)
  t8[a, n, k] = and(t7, t0)
  t9[a, n, k] = where(t8, t3, -1)
  R[a, n] = max(t9; k)
  store P[a, n] = P
  store Q[a, n] = Q
  store R[a, n] = R
  store M[a, n] = M
"""


def chosen(dtype: str) -> MuGraph:
    kind = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[dtype]
    return parse_mugraph(GRAPH.replace("DTYPE", dtype).replace("TYPE", kind))


def schedule(n: int, k: int, **others: Any) -> Schedule:
    own = KernelSchedule(tiles=(("a", 1), ("n", n), ("k", k)), order=("a", "n", "k"), **others)
    return Schedule({"k0": own})


@pytest.mark.parametrize("tiles", [(2, 8), (8, 32), (1, 128)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_places_of_equal_numbers_and_of_none(dtype: str, tiles: tuple[int, int]) -> None:
    graph = chosen(dtype)
    (loop,) = place(graph.kernels[0]).loops
    assert {x.accumulator for x in loop.anew} == {"P", "Q", "R"}
    x = torch.randn(3, 71, 5, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    x[0, 33, 2] = x[1, 69, 3] = x[1, 70, 3] = torch.nan
    x[2, :, 1], x[2, 40:, 0], x[2, 7, 4] = -torch.inf, torch.inf, -torch.inf
    inputs = {"X": x.to(getattr(torch, dtype)), "Z": torch.randn(71, 5).to(getattr(torch, dtype))}
    check(graph, schedule(*tiles), parse_spec(SPEC.replace("DTYPE", dtype)).at(), inputs)


@pytest.mark.parametrize("tiles", [(2, 8), (1, 128)], ids=str)
def test_what_is_not_chosen_counts_where_there_is_any(tiles: tuple[int, int]) -> None:
    """In front of the first tile there is nothing, though the extremum moves there: where all are equal, all are
    chosen."""
    changes = ((", k), k)", ", -5), k)"), ("71)", "-5)")), ((", -1), k)", ", 100), k)"), ("t3, -1)", "t3, 100)"))
    text, spec = GRAPH.replace("DTYPE", "float32").replace("TYPE", "f32"), SPEC.replace("DTYPE", "float32")
    for in_spec, in_graph in changes:
        assert in_spec[0] in spec and in_graph[0] in text
        text, spec = text.replace(*in_graph), spec.replace(*in_spec)
    graph = parse_mugraph(text)
    assert {x.accumulator for x in place(graph.kernels[0]).loops[0].anew} == {"P", "Q", "R"}
    x = torch.zeros(3, 71, 5)
    x[1, 40:] = 1
    x[2, 3:, 0] = -torch.inf
    inputs = {"X": x, "Z": torch.randn(71, 5)}
    check(graph, schedule(*tiles), parse_spec(spec).at(), inputs)


def test_the_fields_see_what_is_chosen_in_the_end() -> None:
    program = lower(parse_spec(SPEC.replace("DTYPE", "float32")).at())
    assert check_equivalence(program, chosen("float32"), 0).ok
    for right, wrong in [("eq(X, L)", "eq(X, M)"), ("t9[a, n, k] = where(t8", "t9[a, n, k] = where(t0")]:
        graph = parse_mugraph(GRAPH.replace("DTYPE", "float32").replace("TYPE", "f32").replace(right, wrong))
        assert place(graph.kernels[0]).loops[0].anew
        assert not check_equivalence(program, graph, 0).ok


def test_it_compiles(compiled: Compile) -> None:
    for arch in (90, 100):
        assert len(compiled(chosen("bfloat16"), schedule(8, 64), arch)) == 1
