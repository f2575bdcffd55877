"""Values that rest on one sum from two kernels do not meet where the last digits tell."""

from __future__ import annotations

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.generator import search
from mirage_cli.search.twice import summed_twice
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target

ARGMAX = """
mugraph argmax float16
dims m=64 k=64 n=512
input X f16[m, k]
input W f16[k, n]
output T i64[m]
"""
AGAIN = """
buffer best f32[m]

kernel k0 generated m:grid k:tile n:loop
  W = load W[k, n]
  X = load X[m, k]
  l[m, n] = dot(X, W; k)
  best[m] = max(l; n)
  store best[m] = best

kernel k1 generated m:grid k:tile n:loop
  W = load W[k, n]
  X = load X[m, k]
  best = load best[m]
  l[m, n] = dot(X, W; k)
  t0[m, n] = eq(l, best)
  t1[n] = index(n)
  t2[m, n] = where(t0, t1, 512)
  T[m] = min(t2; n)
  store T[m] = T
"""
FROM_MEMORY = """
buffer best f32[m]
buffer l {type}[m, n]

kernel k0 generated m:grid k:tile n:loop
  W = load W[k, n]
  X = load X[m, k]
  l[m, n] = dot(X, W; k)
  best[m] = max(l; n)
  store l[m, n] = l
  store best[m] = best

kernel k1 generated m:grid n:loop
  l = load l[m, n]
  best = load best[m]
  t0[m, n] = eq(l, best)
  t1[n] = index(n)
  t2[m, n] = where(t0, t1, 512)
  T[m] = min(t2; n)
  store T[m] = T
"""
ONE_KERNEL = """
kernel k0 generated m:grid k:tile n:loop
  W = load W[k, n]
  X = load X[m, k]
  l[m, n] = dot(X, W; k)
  best[m] = max(l; n)
  t0[m, n] = eq(l, best)
  t1[n] = index(n)
  t2[m, n] = where(t0, t1, 512)
  T[m] = min(t2; n)
  store T[m] = T
"""
MERGED = """
buffer l_part f32[k_split, m, n]

kernel k0 generated m:grid k:split n:grid
  W = load W[k, n]
  X = load X[m, k]
  l[m, n] = dot(X, W; k)
  store l_part[k_split, m, n] = l

kernel k1 generated k_split:tile m:grid n:tile
  l_part = load l_part[k_split, m, n]
  l[m, n] = sum(l_part; k_split)
  best[m] = max(l; n)
  t0[m, n] = eq(l, best)
  t1[n] = index(n)
  t2[m, n] = where(t0, t1, 512)
  T[m] = min(t2; n)
  store T[m] = T
"""


@pytest.mark.parametrize(
    ("kernels", "twice"),
    [
        (AGAIN, True),
        (FROM_MEMORY.format(type="f16"), True),  # it is the unrounded one that is the largest
        (FROM_MEMORY.format(type="f32"), False),
        (ONE_KERNEL, False),
        (MERGED, False),
    ],
    ids=["summed again", "rounded in memory", "from memory", "one kernel", "merged parts"],
)
def test_what_a_comparison_takes_is_one_sum(kernels: str, twice: bool) -> None:
    """x == max x holds nowhere where two kernels add up x, each in its own order."""
    assert summed_twice(parse_mugraph(ARGMAX.lstrip() + kernels), {"l"}) is twice


def test_no_argmax_adds_up_its_product_again() -> None:
    """The product is cheap to compute again, and a plan that does so would be the fastest."""
    spec = """
name: argmax
dims: {m: 4096, k: 64, n: 32768}
inputs: {X: [m, k], W: [k, n]}
program: |
  l = dot(X, W, k)
  T = min(where(l == max(l, n), index(n), n), n)
outputs: {T: {dims: [m], dtype: int64}}
"""
    found = search(lower(parse_spec(spec).at()), find_target("h100"))
    assert not any(summed_twice(c.graph, {"l"}) for c in found.candidates)
    assert found.candidates[0].id != found.as_written.id


RANK = """
mugraph rank float16
dims m=64 k=64 n=16 j=16
input X f16[m, k]
input W f16[k, n]
output R i64[m, n]
"""
UNDER_TWO_NAMES = """
kernel k0 generated m:grid k:tile n:tile j:tile
  W = load W[k, n]
  X = load X[m, k]
  V = load W[k, j]
  l[m, n] = dot(X, W; k)
  v0[m, j] = dot(X, V; k)
  t0[m, n, j] = gt(v0, l)
  t1[m, n, j] = where(t0, 1, 0)
  R[m, n] = sum(t1; j)
  store R[m, n] = R
"""
TWICE_FROM_MEMORY = """
buffer l f32[m, n]

kernel k0 generated m:grid k:tile n:tile
  W = load W[k, n]
  X = load X[m, k]
  l[m, n] = dot(X, W; k)
  store l[m, n] = l

kernel k1 generated m:grid n:tile j:tile
  l = load l[m, n]
  v0 = load l[m, j]
  t0[m, n, j] = gt(v0, l)
  t1[m, n, j] = where(t0, 1, 0)
  R[m, n] = sum(t1; j)
  store R[m, n] = R
"""


@pytest.mark.parametrize(
    ("kernels", "twice"), [(UNDER_TWO_NAMES, True), (TWICE_FROM_MEMORY, False)], ids=["two names", "from memory"]
)
def test_what_is_ranked_is_one_sum(kernels: str, twice: bool) -> None:
    """A score that is added up along n and along j may be larger than itself: ranks are no order then."""
    assert summed_twice(parse_mugraph(RANK.lstrip() + kernels), {"l"}) is twice


NORMS = """
mugraph nearer float32
dims m=64 k=64 n=64
input X f32[m, k]
output O f32[m, n]

kernel k0 generated m:grid k:tile n:grid
  X = load X[m, k]
  x = load X[n, k]
  G[m, n] = dot(X, x; k)
  N[m] = dot(X, X; k)
  t0[m, n] = gt(G, N)
  O[m, n] = where(t0, G, 0)
  store O[m, n] = O
"""
GRAM_TWICE = """
mugraph symmetric float32
dims m=64 k=64 n=64
input X f32[m, k]
output O f32[m, n]

kernel k0 generated m:grid k:tile n:grid
  X = load X[m, k]
  x = load X[n, k]
  G[m, n] = dot(X, x; k)
  H[m, n] = dot(x, X; k)
  t0[m, n] = gt(G, H)
  O[m, n] = where(t0, G, 0)
  store O[m, n] = O
"""


@pytest.mark.parametrize(("graph", "twice"), [(NORMS, False), (GRAM_TWICE, True)], ids=["norms", "exchanged"])
def test_sums_along_other_axes_are_other_sums(graph: str, twice: bool) -> None:
    """X[m, k] X[n, k] and X[m, k] X[m, k] differ in more than names; X[n, k] X[m, k] does not."""
    assert summed_twice(parse_mugraph(graph.lstrip()), {"G", "N", "H"}) is twice


def test_blocks_are_ranked_by_one_sum() -> None:
    """Means of keys are stored rounded, as products take them: no rank compares them with such that are not."""
    spec = """
name: blocks
dims: {q: 2048, n: 16, e: 128, m: n, d: 128, s: n*e}
inputs: {Q: [q, d], K: [s, d]}
dtype: bfloat16
program: |
  g = dot(Q, bfloat16(mean(K[128*n + e, d], e)), d)
  o = rename(g, n=m)
  R = sum(where(o > g or (o == g and index(m) < index(n)), 1, 0), m)
outputs: {R: {dims: [q, n], dtype: int32}}
"""
    found = search(lower(parse_spec(spec).at()), find_target("h200"))
    for c in found.candidates:
        scores = [e for k in c.graph.kernels for e in k.body if e.op == "dot" and {"m", "n"} & set(e.dims)]
        assert len(scores) < 2, str(c.graph)


NEAREST = """
name: nearest
dims: {b: 8, m: 4096, n: 1024, d: 3}
dtype: float32
inputs: {X: [b, m, d], Y: [b, n, d]}
program: |
  D = sum(square(X - Y), d)
  L = min(D, n)
  I = min(where(D == L, index(n), 1024), n)
  M = mean(L, m)
outputs: {I: {dims: [b, m], dtype: int64}, M: [b]}
"""


def test_what_is_ranked_is_added_up_where_its_extremum_is() -> None:
    """The distances are no tensor, and the kernel that finds the nearest one does not read how near it is."""
    result = search(lower(parse_spec(NEAREST).at()), find_target("h100"))
    best = result.candidates[0]
    assert len(best.graph.kernels) == 2
    assert not any({"m", "n"} <= {*t.dims} for t in best.graph.buffers)
    assert result.pruned["adds up again what it compares"] > 0
