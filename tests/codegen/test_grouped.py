"""Products of several groups as one."""

from __future__ import annotations

import pytest

from mirage_cli.codegen.export import kernels_source
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
FIRST = """
mugraph first float16
dims b=2 g=4 k=6 n=10 y=3 x=17
input X f16[b, g, k, y, x]
input W f16[g, n, k]
output O f16[b, g, n, y, x]
kernel k0 generated b:grid g:grid n:grid y:grid x:grid k:tile
  X = load X[b, g, k, y, x]
  W = load W[g, n, k]
  O[b, g, n, y, x] = dot(X, W; k)
  store O[b, g, n, y, x] = O
"""
BOXED = """
mugraph boxed float16
dims b=8 y=8 x=8 g=8 k=16 n=16 i=3 j=3
input X f16[b, y, x, g, k]
input W f16[g, i, j, k, n]
output O f16[b, y, x, g, n]
kernel k0 generated b:grid y:grid x:grid g:grid k:tile n:grid i:loop j:loop
  W = load W[g, i, j, k, n]
  X = load X[b, i + y - 1, j + x - 1, g, k]
  O[b, y, x, g, n] = dot(X, W; i, j, k)
  store O[b, y, x, g, n] = O
"""
NARROW = BOXED.replace("k=16 n=16", "k=4 n=4").replace("b=8", "b=2")
SPECS = {
    text: f"""
name: spec
dims: {{b: {b}, y: 8, x: 8, g: 8, k: {k}, n: {k}, i: 3, j: 3}}
dtype: float16
inputs: {{X: [b, y, x, g, k], W: [g, i, j, k, n]}}
program: O = dot(X[b, y + i - 1, x + j - 1, g, k], W, i, j, k)
outputs: {{O: [b, y, x, g, n]}}
"""
    for text, b, k in ((BOXED, 8, 16), (NARROW, 2, 4))
} | {CONVOLVED: CONVOLVED_SPEC}


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        (CONVOLVED, "b=1 y=4 x=8 g=2 n=8 i=1 j=1 order=b,y,x,g,k,n,i,j"),
        (CONVOLVED, "b=2 y=2 x=8 g=8 n=8 i=1 j=1 order=g,n,k,i,j,b,y,x"),
        (CHAINED, "m=16 g=2 order=m,g,k,l,n"),
        (CHAINED, "m=32 g=3 order=m,g,k,l,n"),
        (CHAINED, "m=16 g=6 order=n,l,k,g,m"),
        (FIRST, "b=1 y=2 x=16 g=4 n=16 order=b,g,n,k,y,x"),
        (FIRST, "b=2 y=1 x=32 g=2 n=8 order=b,y,x,g,n,k"),
        (BOXED, "b=2 y=4 x=4 g=4 n=16 i=1 j=1 order=b,y,x,g,k,n,i,j descriptors"),
        (NARROW, "b=2 y=4 x=4 g=8 n=4 i=1 j=1 order=b,y,x,g,k,n,i,j descriptors"),
        (NARROW, "b=1 y=4 x=8 g=4 n=4 i=1 j=2 order=b,y,x,g,k,n,i,j"),
    ],
)
def test_they_compute_the_same(text: str, schedule: str) -> None:
    schedule = (
        schedule.removesuffix(" descriptors") + " warps=4 stages=2" + " descriptors" * ("descriptors" in schedule)
    )
    graph, planned = parse_mugraph(text), Schedule.parse(f"k0: {schedule}")
    assert at_schedule(graph, graph.kernels[0], planned.kernels["k0"], graph.sizes) is not None
    check(graph, planned, lower(parse_spec(SPECS[text]).at()) if text in SPECS else None)


def test_groups_that_lie_side_by_side_are_one_axis_of_a_box_and_zeros_of_what_pointers_load() -> None:
    """A box has five axes at most: rows and columns of pictures, of which blocks of groups are one."""
    order = "order=b,y,x,g,k,n,i,j warps=4 stages=3 descriptors"
    source = kernels_source(parse_mugraph(BOXED), Schedule.parse(f"k0: b=8 y=4 x=4 g=4 n=16 i=1 j=1 {order}"))
    assert "[8, 8, 8, 128], [8192, 1024, 128, 1], [8, 4, 4, 64]" in source
    assert "(t_g_0) * 64]" in source
    (loaded,) = (line for line in source.splitlines() if "W = tl.load" in line)
    assert loaded.endswith("# [g_2*k, g_1*n]") and "mask=((tl.arange(0, BLOCK_g_2 * BLOCK_k)" in loaded
    whole = kernels_source(parse_mugraph(BOXED), Schedule.parse(f"k0: b=8 y=4 x=4 g=1 n=16 i=1 j=1 {order}"))
    assert "[8, 8, 8, 8, 16], [16, 8192, 1024, 128, 1], [1, 8, 4, 4, 16]" in whole


def test_rows_of_few_bytes_are_boxes_where_they_are_merged_with_others() -> None:
    """8 bytes are less than a box takes; of 16 groups side by side they are 128. W has such
    rows too, but its axes are two sides of the product."""
    few = BOXED.replace("k=16 n=16", "k=4 n=4").replace(" g=8 ", " g=32 ")
    planned = "b=2 y=8 x=8 g=16 n=4 i=1 j=1 order=b,y,x,g,k,n,i,j warps=4 stages=3 descriptors"
    source = kernels_source(parse_mugraph(few), Schedule.parse(f"k0: {planned}"))
    assert "[8, 8, 8, 128], [8192, 1024, 128, 1], [2, 8, 8, 64]" in source
    alone = Schedule.parse(f"k0: {planned.replace('g=16', 'g=1')}")
    assert "_desc.load" not in kernels_source(parse_mugraph(few), alone)
