"""What a mask leaves in full, it leaves at the small sizes of tests too, and integers of tests may be negative."""

from __future__ import annotations

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.spec.reader import parse_spec
from mirage_cli.verify.equivalence import check_equivalence

BEYOND = """
name: beyond
dims: {a: 2, k: 16}
dtype: float32
inputs: {X: [a, k]}
program: |
  P = sum(where(index(k) > 2, X, 0), k)
outputs: {P: [a]}
""", """
mugraph beyond float32
dims a=2 k=16
input X f32[a, k]
output P f32[a]
buffer t5 f32[a, k]
kernel k1 generated a:grid k:grid
  X = load X[a, k]
  t2[k] = index(k)
  t3[k] = gt(t2, 2)
  t5[a, k] = where(t3, X, 0)
  store t5[a, k] = t5
kernel k2 generated a:grid k:tile
  t5 = load t5[a, k]
  P[a] = sum(t5; k)
  store P[a] = P
"""  # fmt: skip
BEFORE = """
name: before
dims: {b: 3, y: 9, u: 4, i: 2}
dtype: float32
inputs: {X: [b, u], W: [i]}
program: |
  P = pad(X, -1)[b, (4 - y + i) // 3]
  O = dot(where((4 - index(y) + index(i)) % 3 == 2, P, 0), W, i)
outputs: {O: [b, y]}
""", """
mugraph before float32
dims b=3 y=9 u=4 i=2
input X f32[b, u]
input W f32[i]
output O f32[b, y]
kernel k0 generated b:grid y:grid i:tile
  W = load W[i]
  X = load X[b, (i - y + 1)//3 + 1]
  t3[y, i] = index((i - y + 1)//3 + 1)
  t1[y, i] = ge(t3, 0)
  P[b, y, i] = where(t1, X, -1)
  t10[y, i] = index((i - y + 1)%3)
  t11[y, i] = eq(t10, 2)
  t14[b, y, i] = where(t11, P, 0)
  O[b, y] = dot(t14, W; i)
  store O[b, y] = O
"""  # fmt: skip
ALONE = """
name: alone
dims: {t: 5, s: 16, w: 2, d: 4}
dtype: float32
inputs: {Q: [t, d], K: [s, d], V: [s, d]}
program: |
  A = dot(Q, K[t + 2*w - 3, d], d)
  P = softmax(where(s > index(t) + 2 * index(w) - 3 and 0 <= index(t) + 2 * index(w) - 3, A, -inf), w)
  O = dot(P, V[t + 2*w - 3, d], w)
outputs: {O: [t, d]}
""", """
mugraph alone float32
dims t=5 s=16 w=2 d=4
input Q f32[t, d]
input K f32[s, d]
input V f32[s, d]
output O f32[t, d]
kernel k0 generated t:grid w:tile d:tile
  Q = load Q[t, d]
  K = load K[t + w*2 - 3, d]
  V = load V[t + w*2 - 3, d]
  i[t, w] = index(t + w*2 - 3)
  s[] = size(s)
  m[t, w] = gt(s, i)
  j[t, w] = index(-t - w*2 + 3)
  n[t, w] = le(j, 0)
  b[t, w] = and(m, n)
  A[t, w] = dot(Q, K; d)
  B[t, w] = where(b, A, -inf)
  M[t] = max(B; w)
  E[t, w] = exp_sub(B, M)
  L[t] = sum(E; w)
  N[t, d] = dot(E, V; w)
  O[t, d] = div(N, L)
  store O[t, d] = O
"""  # fmt: skip
NEGATIVE = """
name: negative
dims: {b: 3, u: 5}
dtype: float32
inputs: {X: {dims: [b, u], dtype: int8}}
program: O = maximum(X, 0)
outputs: {O: {dims: [b, u], dtype: int32}}
""", """
mugraph negative float32
dims b=3 u=5
input X i8[b, u]
output O i32[b, u]
kernel k0 generated b:grid u:grid
  X = load X[b, u]
  O[b, u] = maximum(X, 0)
  store O[b, u] = O
"""  # fmt: skip
MISSED = """
name: missed
dims: {b: 2, x: 11, v: 1, j: 5}
dtype: float32
inputs: {X: [b, v], W: [j]}
program: O = dot(X[b, 3*x - j + 4], W, j)
outputs: {O: [b, x]}
""", """
mugraph missed float32
dims b=2 x=11 v=1 j=5
input X f32[b, v]
input W f32[j]
output O f32[b, x]
kernel k0 generated b:grid x:grid j:tile
  X = load X[b, x*3 - j + 4]
  W = load W[j]
  O[b, x] = dot(X, W; j)
  store O[b, x] = O
"""  # fmt: skip
WRONG = {
    "behind a number that an axis of a test ends at": (BEYOND, "X = load X[a, k]", "X = load X[k, a]"),
    "before the start of a tensor": (BEFORE, "index((i - y + 1)//3 + 1)", "index((i - y + 1)%3 + 1)"),
    "where a row of a window has one position alone": (ALONE, "Q = load Q[t, d]", "Q = load Q[d, t]"),
    "where positions come to a tensor once": (MISSED, "X = load X[b, ", "X = load X[b + 1, "),
    "of negative numbers": (NEGATIVE, "store O[b, u] = O", "store O[b, u] = X"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_there_is_refused(name: str) -> None:
    (spec, text), right, wrong = WRONG[name]
    program = lower(parse_spec(spec).at())
    assert right in text
    for seed in range(3):
        verdict = check_equivalence(program, parse_mugraph(text), seed)
        assert verdict.ok, verdict
        assert not check_equivalence(program, parse_mugraph(text.replace(right, wrong)), seed).ok
