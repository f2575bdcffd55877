"""Products of several groups as one."""

from __future__ import annotations

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.diagonal import at_schedule
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.spec.reader import parse_spec
from tests.codegen.test_triton import check

CONVOLVED = """
mugraph convolved float16
dims b=2 y=6 x=5 g=8 k=8 n=8 i=3 j=3
input X f16[b, y, x, g, k]
input W f16[g, i, j, k, n]
input B f16[g, n]
output O f16[b, y, x, g, n]
kernel k0 generated b:grid y:grid x:grid g:grid k:tile n:grid i:loop j:loop
  W = load W[g, i, j, k, n]
  X = load X[b, i + y - 1, j + x - 1, g, k]
  B = load B[g, n]
  S[b, y, x, g, n] = dot(X, W; i, j, k)
  T[b, y, x, g, n] = add(S, B)
  O[b, y, x, g, n] = relu(T)
  store O[b, y, x, g, n] = O
"""
CONVOLVED_SPEC = """
name: convolved
dims: {b: 2, y: 6, x: 5, g: 8, k: 8, n: 8, i: 3, j: 3}
dtype: float16
inputs: {X: [b, y, x, g, k], W: [g, i, j, k, n], B: [g, n]}
program: O = relu(dot(X[b, y + i - 1, x + j - 1, g, k], W, i, j, k) + B)
outputs: {O: [b, y, x, g, n]}
"""
CHAINED = """
mugraph chained float16
dims m=40 g=6 k=8 l=16 n=12
input X f16[m, k, g]
input V f16[g, l, k]
input W f16[l, g, n]
output O f16[m, g, n]
kernel k0 generated m:grid g:grid k:tile l:tile n:tile
  X = load X[m, k, g]
  V = load V[g, l, k]
  W = load W[l, g, n]
  i[g] = index(g)
  c[g] = lt(i, 3)
  H[m, g, l] = dot(X, V; k)
  R[m, g, l] = relu(H)
  C[m, g, l] = where(c, R, H)
  O[m, g, n] = dot(C, W; l)
  store O[m, g, n] = O
"""


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        (CONVOLVED, "b=1 y=4 x=8 g=2 n=8 i=1 j=1 order=b,y,x,g,k,n,i,j"),
        (CONVOLVED, "b=2 y=2 x=8 g=8 n=8 i=1 j=1 order=g,n,k,i,j,b,y,x"),
        (CHAINED, "m=16 g=2 order=m,g,k,l,n"),
        (CHAINED, "m=32 g=3 order=m,g,k,l,n"),
    ],
)
def test_they_compute_the_same(text: str, schedule: str) -> None:
    graph, planned = parse_mugraph(text), Schedule.parse(f"k0: {schedule} warps=4 stages=2")
    assert at_schedule(graph, graph.kernels[0], planned.kernels["k0"], graph.sizes) is not None
    check(graph, planned, lower(parse_spec(CONVOLVED_SPEC).at()) if text == CONVOLVED else None)
