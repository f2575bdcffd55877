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
