"""Right μGraphs with their programs, as text: what the verifier and the interpreters must accept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf, prod

from mirage_cli.ir.access import dims_of
from mirage_cli.ir.access import nested as nested_reads
from mirage_cli.ir.access_text import parse_access
from mirage_cli.ir.derived import derived_equation, lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Arg, Builder, Eqn, Part, Program, Tensor, distinct_positions
from mirage_cli.ir.text import parse_mugraph


@dataclass(frozen=True)
class Case:
    """A lowered program and a μGraph that computes it."""

    name: str
    program: Program
    text: str

    @property
    def graph(self) -> MuGraph:
        return parse_mugraph(self.text)

    def fitting(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes, with tensors that have parts so long that they hold them, as the tables do that name where."""
        before, found = dict[str, int](), dict(sizes)
        tables = {t.name: t.dims for t in self.program.inputs}
        while before != found:
            before = dict(found)
            for p in self.program.parts:
                for d, i in nested_reads(zip(p.tensor.dims, p.access, strict=True), tables):
                    found[d] = max(found[d], i.bounds(before)[1] + 1)
            for dims, below in distinct_positions(self.program.inputs) if self.program.parts else ():
                found[below] = max(found[below], prod(found[d] for d in dims))
        return found


class Write(Builder):
    """`w.mul("y", "x", 2)` appends `y = mul(x, 2)`; axes go behind `over`."""

    def __getattr__(self, op: str) -> Callable[..., str]:
        def append(out: str, *args: Arg | int, over: str = "") -> str:
            exact = tuple(Fraction(a) if isinstance(a, int) else a for a in args)
            return self.emit(op.rstrip("_"), *exact, axes=over.split(), out=out)

        return append


def program(graph: MuGraph, define: Callable[[Write], None], parts: str = "") -> Program:
    """parts: lines `O[m, n + 4] = Y`, where outputs are no tensors of their own."""
    w = Write(graph.inputs, (n for n, _ in graph.dims))
    define(w)
    tensors = graph.tensors()
    found = tuple(Part(m[3], tensors[m[1]], parse_access(m[2])) for m in re.finditer(r"(\w+)\[(.*)\] = (\w+)", parts))
    own = tuple(t for t in graph.outputs if t not in {p.tensor for p in found})
    outputs = (*own, *(Tensor(p.value, dims_of(p.access), p.tensor.dtype) for p in found))
    eqns = tuple(w.eqns)
    return lower(Program(graph.name, graph.dims, graph.dtype, graph.inputs, eqns, outputs, parts=found))


def case(text: str, define: Callable[[Write], None], parts: str = "") -> Case:
    graph = parse_mugraph(text)
    return Case(graph.name, program(graph, define, parts), text)


# -- matmul: a library kernel, and a generated one with its contraction split

MATMUL = """
mugraph matmul float16
dims m=32 k=128 n=64
input X f16[m, k]
input W f16[k, n]
output Y f16[m, n]
kernel k0 library m:grid n:grid k:loop
  X = load X[m, k]
  W = load W[k, n]
  Y[m, n] = dot(X, W; k)
  store Y[m, n] = Y
"""

SPLIT_MATMUL = """
mugraph split_matmul float16
dims m=32 k=128 n=64
input X f16[m, k]
input W f16[k, n]
output Y f16[m, n]
buffer P f32[k_split, m, n]
kernel k0 generated m:grid n:grid k:split
  X = load X[m, k]
  W = load W[k, n]
  Y[m, n] = dot(X, W; k)
  store P[k_split, m, n] = Y
kernel k1 generated m:grid n:grid k_split:loop
  P = load P[k_split, m, n]
  Y[m, n] = sum(P; k_split)
  store Y[m, n] = Y
"""


def matmul(w: Write) -> None:
    w.dot("Y", "X", "W", over="k")


# -- rmsnorm, gain and matmul, the division after the contraction

RMSNORM = """
mugraph rmsnorm_linear float16
dims m=16 k=64 n=96
input X f16[m, k]
input G f16[k]
input W f16[k, n]
output Y f16[m, n]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  G = load G[k]
  W = load W[k, n]
  XG[m, k] = mul(X, G)
  P[m, n] = dot(XG, W; k)
  S[m, k] = mul(X, X)
  Q[m] = sum(S; k)
  C[] = size(k)
  V[m] = div(Q, C)
  D[m] = add(V, 1/100000)
  R[m] = sqrt(D)
  Y[m, n] = div(P, R)
  store Y[m, n] = Y
"""


def rmsnorm(w: Write) -> None:
    w.append(_derived(w, "N", "rms_norm", "X", Fraction(1, 100000), over="k"))
    w.mul("NG", "N", "G")
    w.dot("Y", "NG", "W", over="k")


def _derived(w: Write, out: str, op: str, *args: Arg, over: str) -> Eqn:
    return derived_equation(out, op, args, tuple(over.split()), w)


# -- LoRA in one kernel

LORA = """
mugraph lora float16
dims m=16 k=64 r=16 n=96
input X f16[m, k]
input W f16[k, n]
input A f16[k, r]
input B f16[r, n]
output Y f16[m, n]
kernel k0 generated m:grid n:grid k:loop r:tile
  X = load X[m, k]
  W = load W[k, n]
  A = load A[k, r]
  B = load B[r, n]
  XW[m, n] = dot(X, W; k)
  XA[m, r] = dot(X, A; k)
  L[m, n] = dot(XA, B; r)
  Y[m, n] = add(XW, L)
  store Y[m, n] = Y
"""


def lora(w: Write) -> None:
    w.dot("D", "A", "B", over="r")
    w.add("E", "W", "D")
    w.dot("Y", "X", "E", over="k")


# -- gated MLP, both contractions in one kernel

GATED_MLP = """
mugraph gated_mlp float16
dims m=16 k=64 n=96
input X f16[m, k]
input W1 f16[k, n]
input W2 f16[k, n]
output Y f16[m, n]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  W1 = load W1[k, n]
  W2 = load W2[k, n]
  A[m, n] = dot(X, W1; k)
  B[m, n] = dot(X, W2; k)
  S[m, n] = silu(A)
  Y[m, n] = mul(S, B)
  store Y[m, n] = Y
"""


def gated_mlp(w: Write) -> None:
    w.dot("A", "X", "W1", over="k")
    w.sigmoid("S", "A")
    w.mul("T", "A", "S")
    w.dot("B", "X", "W2", over="k")
    w.mul("Y", "B", "T")


# -- attention with a running maximum, whole and split

ATTENTION = """
mugraph attention float16
dims h=2 q=256 s=512 d=64 e=32
input Q f16[h, q, d]
input K f16[h, d, s]
input V f16[h, s, e]
output O f16[h, q, e]
kernel k0 generated h:grid q:grid e:tile d:tile s:loop
  Q = load Q[h, q, d]
  K = load K[h, d, s]
  V = load V[h, s, e]
  A[h, q, s] = dot(Q, K; d)
  B[h, q, s] = mul(A, 0.125)
  M[h, q] = max(B; s)
  E[h, q, s] = exp_sub(B, M)
  L[h, q] = sum(E; s)
  U[h, q, e] = dot(E, V; s)
  O[h, q, e] = div(U, L)
  store O[h, q, e] = O
"""


def attention(w: Write) -> None:
    w.dot("A", "Q", "K", over="d")
    w.mul("B", "A", Fraction(1, 8))
    w.append(_derived(w, "P", "softmax", "B", over="s"))
    w.dot("O", "P", "V", over="s")


SPLIT_ATTENTION = """
mugraph split_attention float16
dims h=2 q=256 s=4096 d=64 e=64
input Q f16[h, q, d]
input K f16[h, d, s]
input V f16[h, s, e]
output O f16[h, q, e]
buffer Mp f32[h, q, s_split]
buffer Lp f32[h, q, s_split]
buffer Up f32[h, q, s_split, e]
kernel k0 generated h:grid q:grid e:tile d:tile s:split
  Q = load Q[h, q, d]
  K = load K[h, d, s]
  V = load V[h, s, e]
  A[h, q, s] = dot(Q, K; d)
  M[h, q] = max(A; s)
  E[h, q, s] = exp_sub(A, M)
  L[h, q] = sum(E; s)
  U[h, q, e] = dot(E, V; s)
  store Mp[h, q, s_split] = M
  store Lp[h, q, s_split] = L
  store Up[h, q, s_split, e] = U
kernel k1 generated h:grid q:grid e:tile s_split:loop
  Mp = load Mp[h, q, s_split]
  Lp = load Lp[h, q, s_split]
  Up = load Up[h, q, s_split, e]
  M[h, q] = max(Mp; s_split)
  F[h, q, s_split] = exp_sub(Mp, M)
  Lw[h, q, s_split] = mul(Lp, F)
  Uw[h, q, e, s_split] = mul(Up, F)
  L[h, q] = sum(Lw; s_split)
  U[h, q, e] = sum(Uw; s_split)
  O[h, q, e] = div(U, L)
  store O[h, q, e] = O
"""


def unsafe_attention(w: Write) -> None:
    w.dot("A", "Q", "K", over="d")
    w.exp("E", "A")
    w.sum("L", "E", over="s")
    w.div("P", "E", "L")
    w.dot("O", "P", "V", over="s")


CAUSAL = """
mugraph causal_attention float16
dims h=2 q=256 s=256 d=64 e=32
input Q f16[h, q, d]
input K f16[h, d, s]
input V f16[h, s, e]
output O f16[h, q, e]
kernel k0 generated h:grid q:grid e:tile d:tile s:loop
  Q = load Q[h, q, d]
  K = load K[h, d, s]
  V = load V[h, s, e]
  A[h, q, s] = dot(Q, K; d)
  iq[q] = index(q)
  is[s] = index(s)
  C[q, s] = ge(iq, is)
  B[h, q, s] = where(C, A, -inf)
  M[h, q] = max(B; s)
  E[h, q, s] = exp_sub(B, M)
  L[h, q] = sum(E; s)
  U[h, q, e] = dot(E, V; s)
  O[h, q, e] = div(U, L)
  store O[h, q, e] = O
"""


def causal(w: Write) -> None:
    w.dot("A", "Q", "K", over="d")
    w.index("i", over="q")
    w.index("j", over="s")
    w.le("C", "j", "i")
    w.where("B", "C", "A", -inf)
    w.append(_derived(w, "P", "softmax", "B", over="s"))
    w.dot("O", "P", "V", over="s")


# -- a sliding window that reaches further than reduced sizes do

WINDOW = """
mugraph window float32
dims q=4096 s=4096
input A f32[q, s]
output O f32[q]
kernel k0 generated q:grid s:loop
  A = load A[q, s]
  iq[q] = index(q)
  is[s] = index(s)
  D[q, s] = sub(iq, is)
  C[q, s] = lt(D, 1024)
  B[q, s] = where(C, A, 0)
  O[q] = sum(B; s)
  store O[q] = O
"""


def window(w: Write) -> None:
    w.index("i", over="q")
    w.index("j", over="s")
    w.sub("D", "i", "j")
    w.gt("C", 1024, "D")
    w.where("B", "C", "A", 0)
    w.sum("O", "B", over="s")


# -- layer norm, two loops

LAYER_NORM = """
mugraph layer_norm float16
dims m=16 k=64
input X f16[m, k]
output Y f16[m, k]
kernel k0 generated m:grid k:loop
  X = load X[m, k]
  S[m] = sum(X; k)
  C[] = size(k)
  A[m] = div(S, C)
  D[m, k] = sub(X, A)
  D2[m, k] = square(D)
  V[m] = sum(D2; k)
  W[m] = div(V, C)
  Z[m] = add(W, 1/100000)
  R[m] = rsqrt(Z)
  Y[m, k] = mul(D, R)
  store Y[m, k] = Y
"""


def layer_norm(w: Write) -> None:
    w.append(_derived(w, "Y", "layer_norm", "X", Fraction(1, 100000), over="k"))


# -- a Gram matrix: one buffer, loaded under two names

GRAM = """
mugraph gram float16
dims i=32 j=32 k=64
input X f16[i, k]
output Y f16[i, j]
kernel k0 generated i:grid j:grid k:loop
  X = load X[i, k]
  Z = load X[j, k]
  Y[i, j] = dot(X, Z; k)
  store Y[i, j] = Y
"""


def gram(w: Write) -> None:
    w.rename("Z", "X", over="i j")
    w.dot("Y", "X", "Z", over="k")


# -- two outputs, one of them the other's operand; a clamp

TWO_OUTPUTS = """
mugraph two_outputs float16
dims m=16 k=64 n=96
input X f16[m, k]
input W f16[k, n]
output Y f16[m, n]
output T f16[m]
kernel k0 generated m:grid k:loop n:tile
  X = load X[m, k]
  W = load W[k, n]
  P[m, n] = dot(X, W; k)
  R[m, n] = maximum(P, 0)
  Y[m, n] = minimum(R, 6)
  T[m] = max(Y; n)
  store Y[m, n] = Y
  store T[m] = T
"""


def two_outputs(w: Write) -> None:
    w.dot("P", "X", "W", over="k")
    w.relu("R", "P")
    w.minimum("Y", 6, "R")
    w.max("T", "Y", over="n")


# -- logsumexp beside the softmax it belongs to

LOGSUMEXP = """
mugraph logsumexp float32
dims m=16 k=64
input X f32[m, k]
output Y f32[m]
kernel k0 generated m:grid k:loop
  X = load X[m, k]
  M[m] = max(X; k)
  E[m, k] = exp_sub(X, M)
  L[m] = sum(E; k)
  G[m] = log(L)
  Y[m] = add(G, M)
  store Y[m] = Y
"""


def logsumexp(w: Write) -> None:
    w.exp("E", "X")
    w.sum("L", "E", over="k")
    w.log("Y", "L")


# -- two layers of attention: an exponential of an exponential

NESTED = """
mugraph nested float32
dims m=16 k=64 n=32
input X f32[m, k]
input W f32[k, n]
output Y f32[m, n]
buffer H f32[m, n]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  W = load W[k, n]
  M[m] = max(X; k)
  E[m, k] = exp_sub(X, M)
  L[m] = sum(E; k)
  U[m, n] = dot(E, W; k)
  H[m, n] = div(U, L)
  store H[m, n] = H
kernel k1 generated m:grid n:loop
  H = load H[m, n]
  M[m] = max(H; n)
  E[m, n] = exp_sub(H, M)
  L[m] = sum(E; n)
  Y[m, n] = div(E, L)
  store Y[m, n] = Y
"""


def nested(w: Write) -> None:
    w.append(_derived(w, "P", "softmax", "X", over="k"))
    w.dot("H", "P", "W", over="k")
    w.append(_derived(w, "Y", "softmax", "H", over="n"))


# -- more roots than a draw can have squares under

ROOTS = """
mugraph roots float32
dims m=32 k=64 n=48
input X f32[m, k]
input W f32[k, n]
output Y f32[]
kernel k0 generated k:loop m:tile n:tile
  X = load X[m, k]
  W = load W[k, n]
  A[k, m] = sqrt(X)
  P[m, n] = dot(A, W; k)
  B[m, n] = sqrt(P)
  Y[] = sum(B; m, n)
  store Y[] = Y
"""


def roots(w: Write) -> None:
    w.sqrt("A", "X")
    w.dot("P", "W", "A", over="k")
    w.pow_("B", "P", Fraction(1, 2))
    w.sum("Y", "B", over="m n")


# -- one packed tensor: slices of it, each with an axis that is two; and windows that overlap

PACKED = """
mugraph packed float16
dims q=32 s=32 h=4 d=16 k=64 n=192
input X f16[q, n]
input G f16[k]
output O f16[q, h, d]
kernel k0 generated q:grid h:grid d:tile s:loop
  Q = load X[q, h*16 + d]
  K = load X[s, h*16 + d + 64]
  V = load X[s, h*16 + d + 128]
  G = load G[h*16 + d]
  A[q, h, s] = dot(Q, K; d)
  M[q, h] = max(A; s)
  E[q, h, s] = exp_sub(A, M)
  L[q, h] = sum(E; s)
  P[q, h, d] = dot(E, V; s)
  N[q, h, d] = mul(P, G)
  O[q, h, d] = div(N, L)
  store O[q, h, d] = O
"""


def packed(w: Write) -> None:
    w.rename("Q", "X", over="n h*16+d")
    w.rename("K", "X", over="q s n h*16+d+64")
    w.rename("V", "X", over="q s n h*16+d+128")
    w.dot("A", "Q", "K", over="d")
    w.append(_derived(w, "P", "softmax", "A", over="s"))
    w.dot("Y", "P", "V", over="s")
    w.rename("R", "G", over="k h*16+d")
    w.mul("O", "Y", "R")


WINDOWS = """
mugraph windows float16
dims x=64 y=31 i=3 c=16
input X f16[x, c]
input W f16[i, c]
output O f16[y, c]
kernel k0 generated y:grid c:grid i:loop
  X = load X[y*2 + i, c]
  W = load W[i, c]
  P[y, c, i] = mul(X, W)
  O[y, c] = sum(P; i)
  store O[y, c] = O
"""
BORDER = WINDOWS.replace("windows", "border").replace("y=31", "y=64").replace("y*2 + i", "y + i - 1")
CONVOLUTION = """
mugraph convolution float16
dims y=12 x=12 i=3 j=3 c=16 e=16
input X f16[y, x, c]
input W f16[i, j, c, e]
output O f16[y, x, e]
kernel k0 generated y:grid x:grid e:grid i:loop j:loop c:loop
  X = load X[y + i - 1, x + j - 1, c]
  W = load W[i, j, c, e]
  O[y, x, e] = dot(X, W; i, j, c)
  store O[y, x, e] = O
"""
DIAGONAL = """
mugraph diagonal float16
dims y=16 z=16
input X f16[y, z]
output O f16[y]
kernel k0 generated y:grid
  X = load X[y, y]
  O[y] = mul(X, 2)
  store O[y] = O
"""


def windows(w: Write, index: str = "2*y+i") -> None:
    w.rename("Z", "X", over=f"x {index}")
    w.mul("P", "Z", "W")
    w.sum("O", "P", over="i")


def border(w: Write) -> None:
    windows(w, "y+i-1")


def convolution(w: Write) -> None:
    w.rename("Z", "X", over="y y+i-1 x x+j-1")
    w.dot("O", "Z", "W", over="i j c")


def diagonal(w: Write) -> None:
    w.rename("D", "X", over="z y")
    w.mul("O", "D", 2)


HALVES = """
mugraph halves float16
dims m=16 d=64
input X f16[m, d]
output O f16[m, d]
kernel k0 generated m:grid d:grid
  A = load X[m, d - 32]
  B = load X[m, d + 32]
  O[m, d] = sub(A, B)
  store O[m, d] = O
"""


def halves(w: Write) -> None:
    w.rename("A", "X", over="d d-32")
    w.rename("B", "X", over="d d+32")
    w.sub("O", "A", "B")


# -- what tables name: pages of a cache, the experts of rows; and a rotation

PAGED = """
mugraph paged float16
dims b=3 s=64 p=4 pages=9 page=16 h=2 d=16
input Q f16[b, h, d]
input K f16[pages, page, h, d]
input P i32[b, p] below pages
output O f16[b, h, s]
kernel k0 generated b:grid h:grid s:grid d:loop
  Q = load Q[b, h, d]
  K = load K[P{pages}[b, s//16], s%16, h, d]
  O[b, h, s] = dot(Q, K; d)
  store O[b, h, s] = O
"""

EXPERTS = """
mugraph experts float16
dims t=24 e=12 k=32 n=16
input X f16[t, k]
input E i32[t] below e
input F i64[t] below e
input W f16[e, k, n]
input B f16[e, n]
output O f16[t, n]
kernel k0 generated t:grid n:grid k:split
  X = load X[t, k]
  W = load W[E{e}[t], k, n]
  A[t, n] = dot(X, W; k)
  store A[k_split, t, n] = A
kernel k1 generated t:grid n:grid k_split:tile
  A = load A[k_split, t, n]
  S[t, n] = sum(A; k_split)
  B = load B[F{e}[t], n]
  O[t, n] = add(S, B)
  store O[t, n] = O
""".replace("output O f16[t, n]\n", "output O f16[t, n]\nbuffer A f32[k_split, t, n]\n")

ROTATED = """
mugraph rotated float16
dims m=16 d=64 g=8
input X f16[m, d]
input S f16[m, g]
input T i32[m] below m
output O f16[m, d]
kernel k0 generated m:grid d:grid
  A = load X[m, (d + 32)%64]
  S = load S[T{m}[T{m}[m]], d//8]
  B[m, d] = mul(A, S)
  i[m] = index(T{m}[m])
  O[m, d] = add(B, i)
  store O[m, d] = O
"""


def paged(w: Write) -> None:
    w.rename("C", "K", "P", over="pages P{pages}[b,s//16] page s%16")
    w.dot("O", "Q", "C", over="d")


def experts(w: Write) -> None:
    w.rename("V", "W", "E", over="e E{e}[t]")
    w.dot("A", "X", "V", over="k")
    w.rename("C", "B", "F", over="e F{e}[t]")
    w.add("O", "A", "C")


def rotated(w: Write) -> None:
    w.rename("A", "X", over="d (d+32)%64")
    w.rename("C", "S", "T", over="m T{m}[T{m}[m]] g d//8")
    w.mul("B", "A", "C")
    w.index("i", over="m")
    w.rename("j", "i", "T", over="m T{m}[m]")
    w.add("O", "B", "j")


# -- rows of different lengths: positions beyond a row's last are masked out, in chunks that merge

RAGGED = """
mugraph ragged float16
dims t=8 b=3 s=64 p=4 pages=9 page=16 d=16
input Q f16[t, d]
input K f16[pages, page, d]
input P i32[b, p] below pages
input B i32[t] below b drawn sorted
input L i32[b] below s drawn skewed
output O f16[t, d]
buffer Mp f32[t, s_split]
buffer Lp f32[t, s_split]
buffer Up f32[t, s_split, d]
kernel k0 generated t:grid d:tile s:split
  L = load L[B{b}[t]]
  Q = load Q[t, d]
  K = load K[P{pages}[B{b}[t], s//16], s%16, d]
  i[s] = index(s)
  C[t, s] = le(i, L)
  A[t, s] = dot(Q, K; d)
  R[t, s] = where(C, A, -inf)
  M[t] = max(R; s)
  E[t, s] = exp_sub(R, M)
  S[t] = sum(E; s)
  U[t, d] = dot(E, K; s)
  store Mp[t, s_split] = M
  store Lp[t, s_split] = S
  store Up[t, s_split, d] = U
kernel k1 generated t:grid d:tile s_split:loop
  Mp = load Mp[t, s_split]
  Lp = load Lp[t, s_split]
  Up = load Up[t, s_split, d]
  M[t] = max(Mp; s_split)
  F[t, s_split] = exp_sub(Mp, M)
  Lw[t, s_split] = mul(Lp, F)
  Uw[t, d, s_split] = mul(Up, F)
  S[t] = sum(Lw; s_split)
  U[t, d] = sum(Uw; s_split)
  O[t, d] = div(U, S)
  store O[t, d] = O
"""

FILLED = """
mugraph filled float32
dims m=8 k=64
input X f32[m, k]
input L i32[m] below k
output Y f32[m]
kernel k0 generated m:grid k:loop
  X = load X[m, k]
  L = load L[m]
  i[k] = index(k)
  C[m, k] = lt(i, L)
  A[m, k] = where(C, X, 1)
  Y[m] = sum(A; k)
  store Y[m] = Y
"""


def filled(w: Write) -> None:
    w.index("i", over="k")
    w.lt("C", "i", "L")
    w.where("A", "C", "X", 1)
    w.sum("Y", "A", over="k")


def ragged(w: Write) -> None:
    w.rename("C", "K", "B", "P", over="pages P{pages}[B{b}[t],s//16] page s%16")
    w.rename("N", "L", "B", over="b B{b}[t]")
    w.dot("A", "Q", "C", over="d")
    w.index("i", over="s")
    w.le("H", "i", "N")
    w.where("R", "H", "A", -inf)
    w.append(_derived(w, "W", "softmax", "R", over="s"))
    w.dot("O", "W", "C", over="s")


# -- parts of outputs: side by side, from two kernels, and in turn; and rows of an input that are changed in place

PARTS = """
mugraph parts float16
dims m=32 k=64 n=48 p=16 w=64 h=16
input X f16[m, k]
input W f16[k, n]
output O f16[m, w]
buffer S f32[m]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  W = load W[k, n]
  A[m, n] = dot(X, W; k)
  S[m] = sum(X; k)
  store O[m, n] = A
  store S[m] = S
kernel k1 generated m:grid p:grid
  X = load X[m, p*4]
  S = load S[m]
  B[m, p] = mul(X, S)
  store O[m, p + 48] = B
"""
PARTS_WRITTEN = """
O[m, n] = A
O[m, p + 48] = B
"""


def parts(w: Write) -> None:
    w.dot("A", "X", "W", over="k")
    w.sum("S", "X", over="k")
    w.rename("Y", "X", over="k p*4")
    w.mul("B", "Y", "S")


IN_TURN = """
mugraph in_turn float16
dims m=32 i=32 d=64 c=4 r=8
input X f16[m, d]
input C f16[m, i]
output O f16[m, d]
kernel k0 generated m:grid c:grid r:grid
  A = load X[m, c*16 + r]
  B = load X[m, c*16 + r + 8]
  C = load C[m, c*8 + r]
  P[m, c, r] = mul(A, C)
  Q[m, c, r] = add(B, C)
  Y[m, c, r] = sub(P, B)
  Z[m, c, r] = mul(Q, A)
  store O[m, c*16 + r] = Y
  store O[m, c*16 + r + 8] = Z
"""
IN_TURN_WRITTEN = """
O[m, c*16 + r] = Y
O[m, c*16 + r + 8] = Z
"""


def in_turn(w: Write) -> None:
    w.rename("A", "X", over="d c*16+r")
    w.rename("B", "X", over="d c*16+r+8")
    w.rename("R", "C", over="i c*8+r")
    w.mul("P", "A", "R")
    w.add("Q", "B", "R")
    w.sub("Y", "P", "B")
    w.mul("Z", "Q", "A")


TURNED = """
mugraph turned float16
dims m=32 i=32 d=64
input X f16[m, d]
input C f16[m, i]
output O f16[m, d]
kernel k0 generated m:grid i:grid
  A = load X[m, i*2]
  B = load X[m, i*2 + 1]
  C = load C[m, i]
  P[m, i] = mul(A, C)
  Q[m, i] = add(B, C)
  Y[m, i] = sub(P, B)
  Z[m, i] = mul(Q, A)
  store O[m, i*2] = Y
  store O[m, i*2 + 1] = Z
"""
TURNED_WRITTEN = """
O[m, i*2] = Y
O[m, i*2 + 1] = Z
"""


def turned(w: Write) -> None:
    w.rename("A", "X", over="d i*2")
    w.rename("B", "X", over="d i*2+1")
    w.mul("P", "A", "C")
    w.add("Q", "B", "C")
    w.sub("Y", "P", "B")
    w.mul("Z", "Q", "A")


APPEND = """
mugraph append float16
dims t=16 d=32 k=64 s=160 l=100
input X f16[t, k]
input W f16[k, d]
input K f16[s, d]
output O f16[d]
kernel k0 generated t:grid d:grid k:loop
  X = load X[t, k]
  W = load W[k, d]
  N[t, d] = dot(X, W; k)
  store K[t + 100, d] = N
kernel k1 generated d:grid l:loop
  L = load K[l, d]
  O[d] = sum(L; l)
  store O[d] = O
"""
APPEND_WRITTEN = "K[t + 100, d] = N"


def append(w: Write) -> None:
    w.rename("L", "K", over="s l")
    w.sum("O", "L", over="l")
    w.dot("N", "X", "W", over="k")


# -- rows that a table names: slots of a paged cache, the page behind a length, and a ring

SLOTS = """
mugraph slots float16
dims t=24 h=3 g=2 f=8 w=16 pages=4 page=16 slots=64
input A f16[t, h, w]
input B f16[t, g, w]
input V f16[t, g, w]
input C f16[t, f]
input S f16[t, f]
input KC f16[pages, page, g, w]
input VC f16[pages, page, g, w]
input slot i64[t] below slots distinct
input place i64[t] below slots distinct
output Q f16[t, h, f]
kernel k0 generated t:grid h:grid g:grid f:grid w:grid
  A = load A[t, h, f]
  B1 = load B[t, g, f]
  B2 = load B[t, g, f + 8]
  V = load V[t, g, w]
  C = load C[t, f]
  S = load S[t, f]
  Q[t, h, f] = mul(A, C)
  P1[t, g, f] = mul(B1, C)
  P2[t, g, f] = mul(B2, S)
  K1[t, g, f] = sub(P1, P2)
  P3[t, g, f] = mul(B2, C)
  P4[t, g, f] = mul(B1, S)
  K2[t, g, f] = add(P3, P4)
  W[t, g, w] = mul(V, 2)
  store Q[t, h, f] = Q
  store KC[slot{slots}[t]//16, slot{slots}[t]%16, g, f] = K1
  store KC[slot{slots}[t]//16, slot{slots}[t]%16, g, f + 8] = K2
  store VC[place{slots}[t]//16, place{slots}[t]%16, g, w] = W
"""
SLOTS_WRITTEN = """
KC[slot{slots}[t]//16, slot{slots}[t]%16, g, f] = K1
KC[slot{slots}[t]//16, slot{slots}[t]%16, g, f + 8] = K2
VC[place{slots}[t]//16, place{slots}[t]%16, g, w] = W
"""


def slots(w: Write) -> None:
    w.rename("A1", "A", over="w f")
    w.mul("Q", "A1", "C")
    w.rename("B1", "B", over="w f")
    w.rename("B2", "B", over="w f+8")
    w.mul("P1", "B1", "C")
    w.mul("P2", "B2", "S")
    w.sub("K1", "P1", "P2")
    w.mul("P3", "B2", "C")
    w.mul("P4", "B1", "S")
    w.add("K2", "P3", "P4")
    w.mul("W", "V", 2)


PADDED = """
mugraph padded float16
dims t=24 e=16 s=40 pages=4 page=16 slots=64
input K f16[t, e]
input E f16[s, e]
input pos i32[t] below s padded
input slot i64[t] below slots padded distinct
input KC f16[pages, page, e]
output O f16[t, e]
kernel k0 generated t:grid e:grid
  K = load K[t, e]
  E = load E[pos{-1, s}[t], e]
  W[t, e] = mul(K, E)
  O[t, e] = add(K, E)
  store O[t, e] = O
  store KC[slot{-1, slots}[t]//16, slot{-1, slots}[t]%16, e] = W
"""
PADDED_WRITTEN = "KC[slot{-1, slots}[t]//16, slot{-1, slots}[t]%16, e] = W"


def padded(w: Write) -> None:
    w.rename("R", "E", "pos", over="s pos{-1,s}[t]")
    w.mul("W", "K", "R")
    w.add("O", "K", "R")


LENGTHS = """
mugraph lengths float16
dims b=3 p=4 pages=20 page=16 d=16 j=16 k=32
input X f16[b, k]
input W f16[k, d]
input K f16[pages, page, d]
input P i32[b, p] below pages distinct
input L i32[b] below 48
output O f16[b, d]
kernel k0 generated b:grid d:grid j:loop
  F = load K[P{pages}[b, 0], j, d]
  O[b, d] = sum(F; j)
  store O[b, d] = O
kernel k1 generated b:grid d:grid k:loop
  X = load X[b, k]
  W = load W[k, d]
  N[b, d] = dot(X, W; k)
  store K[P{pages}[b, L{48}[b]//16 + 1], L{48}[b]%16, d] = N
"""
LENGTHS_WRITTEN = "K[P{pages}[b, L{48}[b]//16 + 1], L{48}[b]%16, d] = N"


def lengths(w: Write) -> None:
    w.dot("N", "X", "W", over="k")
    w.rename("F", "K", "P", over="pages P{pages}[b,0] page j")
    w.sum("O", "F", over="j")


RING = """
mugraph ring float16
dims t=24 d=16 s=32
input X f16[t, d]
input K f16[s, d]
input N i32[] below s
kernel k0 generated t:grid d:grid
  X = load X[t, d]
  Y[t, d] = mul(X, 2)
  store K[(t + N{s}[])%32, d] = Y
"""
RING_WRITTEN = "K[(t + N{s}[])%32, d] = Y"


def ring(w: Write) -> None:
    w.mul("Y", "X", 2)


# -- two products that need one value, each in program instances of its own

PROJECTIONS = """
mugraph projections float16
dims m=24 k=48 n=40 p=20
input X f16[m, k]
input G f16[k]
input U f16[k, n]
input V f16[k, p]
output Q f16[m, n]
output K f16[m, p]
kernel k0 generated m:grid n:grid p:grid k:loop
  X = load X[m, k]
  G = load G[k]
  U = load U[k, n]
  V = load V[k, p]
  A[m, k] = mul(X, G)
  Q[m, n] = dot(A, U; k)
  K[m, p] = dot(A, V; k)
  store Q[m, n] = Q
  store K[m, p] = K
"""


def projections(w: Write) -> None:
    w.mul("A", "X", "G")
    w.dot("Q", "A", "U", over="k")
    w.dot("K", "A", "V", over="k")


# -- outputs that are whole numbers and masks: the place of the largest, in chunks; and what is compared and counted

CHOSEN = """
mugraph chosen float16
dims m=32 k=128 n=64
input X f16[m, k]
input W f16[k, n]
output T i64[m]
buffer Y f16[m, n]
buffer M f32[m]
buffer P i32[n_split, m]
kernel k0 generated m:grid n:grid k:loop
  X = load X[m, k]
  W = load W[k, n]
  Y[m, n] = dot(X, W; k)
  store Y[m, n] = Y
kernel k1 generated m:grid n:loop
  Y = load Y[m, n]
  M[m] = max(Y; n)
  store M[m] = M
kernel k2 generated m:grid n:split
  Y = load Y[m, n]
  M = load M[m]
  B[m, n] = eq(Y, M)
  i[n] = index(n)
  L[m, n] = where(B, i, 64)
  T[m] = min(L; n)
  store P[n_split, m] = T
kernel k3 generated m:grid n_split:loop
  P = load P[n_split, m]
  T[m] = min(P; n_split)
  store T[m] = T
"""


def chosen(w: Write) -> None:
    w.dot("Y", "X", "W", over="k")
    w.max("M", "Y", over="n")
    w.eq("B", "Y", "M")
    w.index("i", over="n")
    w.where("L", "B", "i", 64)
    w.min("T", "L", over="n")


DECIDED = """
mugraph decided float16
dims m=32 k=64
input X f16[m, k]
input S f16[m]
output B i1[m, k]
output C i32[m]
output A i1[m]
output E i1[m]
output Q i8[m, k]
kernel k0 generated m:grid k:loop
  X = load X[m, k]
  S = load S[m]
  B[m, k] = ge(X, S)
  N[m, k] = where(B, 1, 0)
  C[m] = sum(N; k)
  H[m] = max(N; k)
  A[m] = gt(H, 0)
  L[m] = min(N; k)
  E[m] = gt(L, 0)
  D[m, k] = div(X, S)
  R[m, k] = round(D)
  U[m, k] = maximum(R, -128)
  V[m, k] = minimum(U, 127)
  Q[m, k] = integer(V)
  store B[m, k] = B
  store C[m] = C
  store A[m] = A
  store E[m] = E
  store Q[m, k] = Q
"""


def decided(w: Write) -> None:
    w.ge("B", "X", "S")
    w.where("N", "B", 1, 0)
    w.sum("C", "N", over="k")
    w.max("H", "N", over="k")
    w.gt("A", "H", 0)
    w.min("L", "N", over="k")
    w.gt("E", "L", 0)
    w.div("D", "X", "S")
    w.round("R", "D")
    w.maximum("U", "R", -128)
    w.minimum("V", "U", 127)
    w.integer("Q", "V")


CASES = {
    c.name: c
    for c in (
        case(MATMUL, matmul),
        case(SPLIT_MATMUL, matmul),
        case(RMSNORM, rmsnorm),
        case(LORA, lora),
        case(GATED_MLP, gated_mlp),
        case(ATTENTION, attention),
        case(SPLIT_ATTENTION, unsafe_attention),
        case(CAUSAL, causal),
        case(WINDOW, window),
        case(LAYER_NORM, layer_norm),
        case(GRAM, gram),
        case(TWO_OUTPUTS, two_outputs),
        case(LOGSUMEXP, logsumexp),
        case(NESTED, nested),
        case(ROOTS, roots),
        case(PACKED, packed),
        case(WINDOWS, windows),
        case(BORDER, border),
        case(HALVES, halves),
        case(CONVOLUTION, convolution),
        case(DIAGONAL, diagonal),
        case(PAGED, paged),
        case(EXPERTS, experts),
        case(ROTATED, rotated),
        case(RAGGED, ragged),
        case(FILLED, filled),
        case(PARTS, parts, PARTS_WRITTEN),
        case(IN_TURN, in_turn, IN_TURN_WRITTEN),
        case(TURNED, turned, TURNED_WRITTEN),
        case(APPEND, append, APPEND_WRITTEN),
        case(SLOTS, slots, SLOTS_WRITTEN),
        case(PADDED, padded, PADDED_WRITTEN),
        case(LENGTHS, lengths, LENGTHS_WRITTEN),
        case(RING, ring, RING_WRITTEN),
        case(PROJECTIONS, projections),
        case(CHOSEN, chosen),
        case(DECIDED, decided),
    )
}
