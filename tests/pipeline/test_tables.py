"""Programs that look positions up, divide them, and take integers and small floats from memory, from spec to
kernel."""

from __future__ import annotations

import pytest

from mirage_cli.tune.interpreted import Interpreter
from tests.pipeline.test_random import problem

PROGRAMS = {
    "masks that are given, read whole, by windows, by a table and under another name": """
name: masks
dims: {m: 13, s: 13, k: 40, v: 50}
dtype: float16
inputs:
  X: [m, k]
  M: {dims: [m], dtype: bool}
  N: {dims: [m, s], dtype: bool}
  U: {dims: [v, k], dtype: bool}
  T: {dims: [m], dtype: int32, below: v}
program: |
  A = dot(X, rename(X, m=s), k) / 8
  B = softmax(where(N or index(s) == 0, A, -inf), s)
  C = where(M[m + 1] and not M, X, 0) + where(xor(U[T[m], k], X > 0), 1, 2) + where(xor(N[m, 0], M), X, -X)
  O = dot(B, where(rename(M, m=s), rename(X, m=s), 0), s) + C
outputs: {O: [m, k]}
""",
    "a mask in each row of a loop": """
name: rows
dims: {i: 9, j: 40, k: 33}
dtype: bfloat16
inputs:
  A: [i, k]
  B: [j, k]
  M: {dims: [j, k], dtype: bool}
program: |
  O = dot(A, where(M, B, 0), k) + sum(where(M, 1, 0), k)
outputs: {O: [i, j]}
""",
    "integers of all types, as indices and as numbers": """
name: ints
dims: {m: 12, k: 64, v: 50}
dtype: float16
inputs:
  X: [m, k]
  W: {dims: [m, k], dtype: int8}
  T: {dims: [m], dtype: int64, below: v}
  U: {dims: [m], dtype: int64}
  Z: {dims: [k], dtype: int8, below: v}
  E: [v]
program: |
  A = W * X + W * 3 * W / 100
  B = (sum(W * W, k) + T * T - max(W, k)) / 1000
  C = where(index(k) < U, A, W)
  O = A + B + C * E[T[m]] + E[Z[k]] + W // 16 + W % 16
outputs: {O: [m, k]}
""",
    "two tables of what is computed, whose axes lie in another order": """
name: twice
dims: {m: 12, v: 50, k: 6, r: 30}
dtype: float32
inputs:
  E: [v, k]
  T: {dims: [m], dtype: int64, below: r}
  U: {dims: [m], dtype: int64, below: k}
program: |
  A = exp(E[r, k])
  O = A[U[m], T[m]]
outputs: {O: [m]}
""",
    "floats of 8 bits": """
name: f8
dims: {m: 12, k: 128, n: 48, g: 4}
dtype: float16
inputs:
  X: [m, k]
  W: {dims: [k, n], dtype: float8_e4m3fn}
  V: {dims: [k, n], dtype: float8_e5m2}
  S: {dims: [g, n], scale: 0.02}
program: |
  O = dot(X, W * S[k // 32, n], k) + dot(rms_norm(X, k), V, k) * 0.01 + max(W[m * 2, n], n)
outputs: {O: [m, n]}
""",
    "floats of 8 bits alone": """
name: f8b
dims: {m: 12, k: 128, n: 48}
dtype: bfloat16
inputs:
  X: {dims: [m, k], dtype: float8_e4m3fn}
  W: {dims: [k, n], dtype: float8_e4m3fn}
program: |
  O = dot(X, W, k)
outputs: {O: [m, n]}
""",
    "floats of 8 bits by token, behind a norm": """
name: rms_quantised
dims: {m: 12, k: 96}
dtype: bfloat16
inputs:
  X: [m, k]
  R: [m, k]
  G: [k]
program: |
  H = X + R
  Y = rms_norm(H, k) * G
  S = maximum(max(abs(Y), k), 1e-10) / 448
  Q = clamp(Y / S, -448, 448)
outputs:
  Q: {dims: [m, k], dtype: float8_e4m3fn}
  S: {dims: [m], dtype: float32}
  H: [m, k]
""",
    "floats of 8 bits in another memory order, in parts, and beside what a product makes of them": """
name: quantised
dims: {m: 12, k: 32, n: 48, n2: 96, n3: 64}
dtype: float16
inputs:
  X: [m, n2]
  W: {dims: [n, k], scale: 0.1}
  S: {dims: [], dtype: float32}
program: |
  Y = silu(X[m, n]) * X[m, n + 48]
  Q = clamp(Y / (abs(S) + 0.01), -448, 448)
  E = Y * 1000
  O = dot(Y, W, n)
  P[m, n] = Y
  P[m, index + 48] = X[m, index]
outputs:
  Q: {dims: [n, m], dtype: float8_e4m3fn}
  E: {dims: [m, n], dtype: float8_e5m2}
  O: [m, k]
  P: {dims: [m, n3], dtype: float8_e5m2}
""".replace("index", "j").replace("n3: 64", "j: 16, n3: 64"),
    "floats of 8 bits in a cache": """
name: quantised_cache
dims: {t: 5, h: 2, d: 16, pages: 6, page: 4, slots: 24}
dtype: bfloat16
inputs:
  K: [t, h, d]
  S: {dims: [], dtype: float32}
  T: {dims: [t], dtype: int64, below: slots, distinct: true, padded: true}
  KC: {dims: [pages, page, h, d], dtype: float8_e4m3fn}
  VC: {dims: [slots, h, d], dtype: float8_e5m2}
program: |
  KC[T[t] // 4, T[t] % 4, h, d] = clamp(K / (abs(S) + 0.1), -448, 448)
  VC[t + 3, h, d] = K
outputs:
  KC: {inout: KC}
  VC: {inout: VC}
""",
    "tables at constant places and without axes": """
name: consts
dims: {m: 12, k: 64, v: 50, p: 3}
dtype: float16
inputs:
  X: [v, k]
  T: {dims: [p], dtype: int64, below: v}
  N: {dims: [], dtype: int32, below: 7}
program: |
  O = X[T[2], k] + X[T[m % 3] // 2 + N, (k + T[N // 4] % 5) % 64]
outputs: {O: [m, k]}
""",
    "a mask over positions that a table names": """
name: random
dims: {k: 16, m: 16, v: 3}
dtype: bfloat16
inputs:
  X: [k, m]
  H: {dims: [k], dtype: int64, below: 8}
program: |
  A = softmax(where(index(k) >= index(m), X, -inf), m)
  B = rsqrt(A + 1)
  C = A * A
  D = B[H[v // 2] * 2 + v % 2, m]
  E = min(D, v, m)
  F = minimum(D, E)
outputs:
  C: [k, m]
  F: {dims: [m, v], dtype: float32}
""",
    "a window over rows that a table names": """
name: random
dims: {m: 57, d: 7, k: 1, v: 4}
dtype: bfloat16
inputs:
  X: {dims: [k, d], scale: 0.1}
  J: {dims: [v], dtype: int32, below: 7}
program: |
  B = X[k, 2*m - 2]
  C = B[J[k // 8] * 8 + k % 8, k]
  D = B * C
  F = min(C, k)
outputs: {D: [m, k], F: []}
""",
    "a rotation and a quotient of a computed value": """
name: rot
dims: {m: 12, d: 128, j: 256}
dtype: float16
inputs:
  X: [m, d]
  S: [j, d]
program: |
  Y = X * 2 + 1
  O = Y[m, (d + 64) % 128] * X + S[d // 2 + 3 + m % 5, d]
outputs: {O: [m, d]}
""",
    "the first positions and a window in front of a length, in pages": """
name: sinks
dims: {b: 3, g: 2, r: 4, d: 32, s: 640, p: 40, pages: 130, page: 16}
dtype: bfloat16
inputs:
  Q: [b, g, r, d]
  K: [pages, page, g, d]
  V: [pages, page, g, d]
  P: {dims: [b, p], dtype: int32, below: pages, distinct: true}
  L: {dims: [b], dtype: int32, below: s}
program: |
  A = dot(Q, K[P[b, s // 16], s % 16, g, d], d) * d ** -0.5
  B = where(index(s) <= L and (index(s) > L - 100 or index(s) < 4), A, -inf)
  O = dot(softmax(B, s), V[P[b, s // 16], s % 16, g, d], s)
outputs: {O: [b, g, r, d]}
""",
    "pages": """
name: paged_scores
dims: {b: 3, h: 2, d: 32, s: 64, pages: 20, page: 16, p: 4}
dtype: float16
inputs:
  Q: [b, h, d]
  P: {dims: [b, p], dtype: int32, below: pages}
  K: [pages, page, h, d]
program: |
  O = softmax(dot(Q, K[P[b, s // 16], s % 16, h, d], d), s)
outputs: {O: [b, h, s]}
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_tables_and_types(name: str, interpreter: Interpreter) -> None:
    assert problem(PROGRAMS[name], interpreter) is None
