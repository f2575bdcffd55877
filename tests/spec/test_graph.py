"""Graphs built in Python: the same programs as specs, the same checks, and errors that say what to do."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mirage_cli.errors import GraphError, SpecError
from mirage_cli.ir.derived import DERIVED
from mirage_cli.ir.ops import OPS
from mirage_cli.spec import graph
from mirage_cli.spec.graph import (
    Graph,
    Value,
    clamp,
    dot,
    exp,
    index,
    layer_norm,
    logsumexp,
    maximum,
    rename,
    rms_norm,
    sigmoid,
    silu,
    softmax,
    sqrt,
    sum,
    tanh,
    where,
)
from mirage_cli.spec.reader import load_spec, parse_spec
from mirage_cli.spec.vocabulary import FUNCTIONS

SPECS = Path(__file__).parents[2] / "search_specs"


def gated_mlp() -> Graph:
    g = Graph("gated_mlp", {"m": 8, "k": 4096, "n": 4096})
    X = g.input("X", "m", "k")
    W1, W2 = (g.input(name, "k", "n", scale=0.02) for name in ("W1", "W2"))
    U = g.let("U", dot(X, W1, "k"))
    V = g.let("V", dot(X, W2, "k"))
    g.output("O", silu(U) * V, "m", "n")
    return g


def gqa() -> Graph:
    g = Graph("gqa", {"h": 2, "q": 256, "s": 4096, "d": 64, "e": 64})
    Q, K = g.input("Q", "h", "q", "d", scale=0.35), g.input("K", "h", "d", "s", scale=0.35)
    V = g.input("V", "h", "s", "e")
    A = g.let("A", dot(Q, K, "d"))
    E = g.let("E", exp(A))
    g.output("O", dot(E / sum(E, "s"), V, "s"), "h", "q", "e")
    return g


def gqa_decode() -> Graph:
    g = Graph("gqa_decode", {"b": 1, "h": 2, "g": 8, "s": 8192, "d": 128, "e": 128})
    Q, K, V = g.input("Q", "b", "h", "g", "d"), g.input("K", "b", "s", "h", "d"), g.input("V", "b", "s", "h", "e")
    s, d = g.axis("s"), g.axis("d")
    P = g.let("P", softmax(dot(Q, K, d) / d**0.5, s))
    g.output("O", dot(P, V, s), "b", "h", "g", "e")
    return g


def gqa_prefill() -> Graph:
    g = Graph("gqa_prefill", {"q": 4096, "s": 4096, "h": 8, "g": 4, "d": 128, "e": 128})
    Q, K, V = g.input("Q", "q", "h", "g", "d"), g.input("K", "s", "h", "d"), g.input("V", "s", "h", "e")
    q, s, d = g.axis("q"), g.axis("s"), g.axis("d")
    A = g.let("A", dot(Q, K, d) / d**0.5)
    P = g.let("P", softmax(where(index(q) >= index(s), A, -math.inf), s))
    g.output("O", dot(P, V, s), "q", "h", "g", "e")
    return g


def lora() -> Graph:
    g = Graph("lora", {"m": 16, "k": 4096, "n": 4096, "r": 16})
    X, W = g.input("X", "m", "k"), g.input("W", "k", "n", scale=0.02)
    A, B = g.input("A", "k", "r", scale=0.02), g.input("B", "r", "n", scale=0.02)
    g.output("O", dot(X, W, "k") + dot(dot(X, A, "k"), B, "r"), "m", "n")
    return g


def ntrans() -> Graph:
    g = Graph("ntrans", {"m": 8, "k": 4096})
    H, X, A = (g.input(name, "m", "k") for name in "HXA")
    N = g.let("N", H / sqrt(sum(H * H, "k")))
    Y = g.let("Y", X + A * (N - X))
    g.output("O", Y / sqrt(sum(Y * Y, "k")), "m", "k")
    return g


def qknorm_gqa() -> Graph:
    g = Graph("qknorm_gqa", {"h": 2, "q": 256, "s": 4096, "d": 64, "e": 64})
    Q, K, V = g.input("Q", "h", "q", "d"), g.input("K", "h", "s", "d"), g.input("V", "h", "s", "e")
    GQ, GK = g.input("GQ", "d"), g.input("GK", "d")
    d = g.axis("d")
    Qn = g.let("Qn", rms_norm(Q, d) * GQ)
    Kn = g.let("Kn", rms_norm(K, d) * GK)
    P = g.let("P", softmax(dot(Qn, Kn, d) / d**0.5, "s"))
    g.output("O", dot(P, V, "s"), "h", "q", "e")
    return g


def rmsnorm_linear() -> Graph:
    g = Graph("rmsnorm_linear", {"m": 16, "k": 4096, "n": 6144})
    X, G, W = g.input("X", "m", "k"), g.input("G", "k"), g.input("W", "k", "n", scale=0.02)
    Y = g.let("Y", rms_norm(X, "k") * G)
    g.output("O", dot(Y, W, "k"), "m", "n")
    return g


def rope_append() -> Graph:
    return rotated("rope_append", 1, 64)


def rope_append_pairs() -> Graph:
    return rotated("rope_append_pairs", 2, 1)


def rotated(name: str, step: int, other: int, projected: bool = False) -> Graph:
    """step: between the first elements of neighbouring pairs. other: from the first of a pair to the second. projected:
    whether the packed row is the result of a projection with bias."""
    sizes = {
        "t": 16,
        **({"k": 4096} if projected else {}),
        "h": 32,
        "g": 8,
        "d": 64,
        "e": 128,
        "n": 6144,
        "s": 8192,
        "pages": 512,
        "page": 16,
        "slots": 8192,
    }
    g = Graph(name, sizes, "bfloat16")
    if projected:
        X, W, B = g.input("X", "t", "k"), g.input("W", "k", "n", scale=0.02), g.input("B", "n")
    else:
        QKV = g.input("QKV", "t", "n")
    R = g.input("R", "s", "e")
    pos = g.input("pos", "t", dtype="int64", below="s")
    padded = name == "rope_append_pairs"
    slot = g.input("slot", "t", dtype="int64", below="slots", distinct=True, padded=padded)
    KC, VC = (g.input(n, "pages", "page", "g", "e") for n in ("KC", "VC"))
    Q = g.parts("Q", "t", "h", "e")
    t, h, k, d, e = (g.axis(name) for name in "thgde")
    if projected:
        QKV = g.let("P", dot(X, W, "k") + B)
    C, S = g.let("C", R[pos[t], d]), g.let("S", R[pos[t], d + 64])

    def packed(name: str, head: Value, start: int) -> Value:
        return g.let(name, QKV[t, head * 128 + step * d + start])

    Q1, Q2 = packed("Q1", h, 0), packed("Q2", h, other)
    K1, K2 = packed("K1", k, 4096), packed("K2", k, 4096 + other)
    Q[t, h, step * d] = Q1 * C - Q2 * S
    Q[t, h, step * d + other] = Q2 * C + Q1 * S
    KC[slot[t] // 16, slot[t] % 16, k, step * d] = K1 * C - K2 * S
    KC[slot[t] // 16, slot[t] % 16, k, step * d + other] = K2 * C + K1 * S
    VC[slot[t] // 16, slot[t] % 16, k, e] = QKV[t, k * 128 + e + 5120]
    return g


def qkv_rope_append() -> Graph:
    return rotated("qkv_rope_append", 1, 64, projected=True)


def embedding_norm() -> Graph:
    g = Graph("embedding_norm", {"m": 16, "v": 128256, "k": 4096}, "bfloat16")
    T = g.input("T", "m", dtype="int64", below="v")
    E, G = g.input("E", "v", "k", scale=0.02), g.input("G", "k")
    g.output("O", rms_norm(E[T["m"], "k"], "k", eps=1e-5) * G, "m", "k")
    return g


def cross_entropy() -> Graph:
    g = Graph("cross_entropy", {"m": 512, "v": 128256}, "bfloat16")
    X, T = g.input("X", "m", "v"), g.input("T", "m", dtype="int64", below="v")
    g.output("L", logsumexp(X, "v") - X["m", T["m"]], "m", dtype="float32")
    return g


def paged_decode() -> Graph:
    dims = {"b": 8, "g": 8, "r": 4, "d": 128, "s": 4096, "p": 256, "pages": 8192, "page": 16}
    g = Graph("paged_decode", dims, "bfloat16")
    Q, KC, VC = g.input("Q", *"bgrd"), *(g.input(n, "pages", "page", "g", "d") for n in ("KC", "VC"))
    P = g.input("P", "b", "p", dtype="int32", below="pages", distinct=True)
    L = g.input("L", "b", dtype="int32", below="s")
    s, d = g.axis("s"), g.axis("d")
    K, V = (g.let(n, x[P["b", s // 16], s % 16, "g", "d"]) for n, x in (("K", KC), ("V", VC)))
    A = g.let("A", dot(Q, K, d) / d**0.5)
    g.output("O", dot(softmax(where(index(s) <= L["b"], A, -math.inf), s), V, s), *"bgrd")
    return g


def ragged_decode() -> Graph:
    dims = {"b": 64, "g": 8, "r": 4, "d": 128, "s": 8192, "p": 512, "pages": 32768, "page": 16}
    g = Graph("ragged_decode", dims, "bfloat16")
    Q, KC, VC = g.input("Q", *"bgrd"), *(g.input(n, "pages", "page", "g", "d") for n in ("KC", "VC"))
    P = g.input("P", "b", "p", dtype="int32", below="pages", distinct=True)
    L = g.input("L", "b", dtype="int32", below="s", drawn="skewed")
    s, d = g.axis("s"), g.axis("d")
    K, V = (g.let(n, x[P["b", s // 16], s % 16, "g", "d"]) for n, x in (("K", KC), ("V", VC)))
    A = g.let("A", dot(Q, K, d) / d**0.5)
    g.output("O", dot(softmax(where(index(s) <= L["b"], A, -math.inf), s), V, s), *"bgrd")
    return g


def mixed_batch() -> Graph:
    dims = {"t": 256, "b": 32, "g": 8, "r": 4, "d": 128, "s": 4096, "p": 256, "pages": 8192, "page": 16}
    g = Graph("mixed_batch", dims, "bfloat16")
    Q, KC, VC = g.input("Q", *"tgrd"), *(g.input(n, "pages", "page", "g", "d") for n in ("KC", "VC"))
    P = g.input("P", "b", "p", dtype="int32", below="pages", distinct=True)
    B = g.input("B", "t", dtype="int32", below="b", drawn="sorted")
    N = g.input("N", "t", dtype="int32", below="s", drawn="skewed")
    s, d = g.axis("s"), g.axis("d")
    K, V = (g.let(n, x[P[B["t"], s // 16], s % 16, "g", "d"]) for n, x in (("K", KC), ("V", VC)))
    A = g.let("A", dot(Q, K, d) / d**0.5)
    g.output("O", dot(softmax(where(index(s) <= N["t"], A, -math.inf), s), V, s), *"tgrd")
    return g


def moe_gate_up() -> Graph:
    g = Graph("moe_gate_up", {"t": 32, "e": 8, "k": 4096, "n": 14336}, "bfloat16")
    X, E = g.input("X", "t", "k"), g.input("E", "t", dtype="int32", below="e")
    WG, WU = (g.input(n, "e", "k", "n", scale=0.02) for n in ("WG", "WU"))
    G, U = (g.let(n, dot(X, w[E["t"], "k", "n"], "k")) for n, w in (("G", WG), ("U", WU)))
    g.output("O", silu(G) * U, "t", "n")
    return g


def int8_linear() -> Graph:
    g = Graph("int8_linear", {"m": 16, "k": 4096, "n": 4096, "groups": 32})
    X, W = g.input("X", "m", "k"), g.input("W", "k", "n", dtype="int8")
    S = g.input("S", "groups", "n", scale=0.0003)
    g.output("O", dot(X, W * S[g.axis("k") // 128, "n"], "k"), "m", "n")
    return g


def int4_linear() -> Graph:
    g = Graph("int4_linear", {"m": 16, "k": 4096, "half": 2048, "n": 14336, "groups": 32})
    X, W = g.input("X", "m", "k"), g.input("W", "half", "n", dtype="int8")
    S, Z = g.input("S", "groups", "n", scale=0.0003), g.input("Z", "groups", "n", dtype="int8", below=16)
    k = g.axis("k")
    B = g.let("B", W[k // 2, "n"])
    Q = g.let("Q", where(index(k) % 2 == 0, B % 16, B // 16 + 8))
    g.output("O", dot(X, (Q - Z[k // 128, "n"]) * S[k // 128, "n"], "k"), "m", "n")
    return g


CONVOLVED = {"b": 2, "y": 64, "x": 64, "c": 320, "e": 320, "i": 3, "j": 3}


def conv_block() -> Graph:
    g = Graph("conv_block", CONVOLVED)
    X, W = g.input("X", "b", "y", "x", "c"), g.input("W", "i", "j", "c", "e", scale=0.02)
    B, R = g.input("B", "e"), g.input("R", "b", "y", "x", "e")
    near = X["b", g.axis("y") + g.axis("i") - 1, g.axis("x") + g.axis("j") - 1, "c"]
    g.output("O", silu(dot(near, W, "c", "i", "j") + B) + R, "b", "y", "x", "e")
    return g


def conv_block_first() -> Graph:
    g = Graph("conv_block_first", CONVOLVED)
    X, W = g.input("X", "b", "c", "y", "x"), g.input("W", "e", "c", "i", "j", scale=0.02)
    B, R = g.input("B", "e"), g.input("R", "b", "e", "y", "x")
    near = X["b", "c", g.axis("y") + g.axis("i") - 1, g.axis("x") + g.axis("j") - 1]
    g.output("O", silu(dot(near, W, "c", "i", "j") + B) + R, "b", "e", "y", "x")
    return g


def triangle_multiplication() -> Graph:
    g = Graph("triangle_multiplication", {"i": 256, "j": 256, "k": 256, "c": 128, "d": 128, "e": 128}, "bfloat16")
    X, M = g.input("X", "i", "j", "c"), g.input("M", "i", "j", dtype="bool")
    G1, B1 = g.input("G1", "c"), g.input("B1", "c")
    WA, WB, GA, GB = (g.input(n, "c", "d", scale=0.1) for n in ("WA", "WB", "GA", "GB"))
    WG, G2, B2 = g.input("WG", "c", "e", scale=0.1), g.input("G2", "d"), g.input("B2", "d")
    WO = g.input("WO", "d", "e", scale=0.1)
    N = g.let("N", layer_norm(X, "c") * G1 + B1)
    A = g.let("A", where(M, sigmoid(dot(N, GA, "c")) * dot(N, WA, "c"), 0))
    B = g.let("B", where(M, sigmoid(dot(N, GB, "c")) * dot(N, WB, "c"), 0))
    T = g.let("T", dot(rename(A, j="k"), rename(B, i="j", j="k"), "k"))
    g.output("O", sigmoid(dot(N, WG, "c")) * dot(layer_norm(T, "d") * G2 + B2, WO, "d"), "i", "j", "e")
    return g


def window_sink_softcap() -> Graph:
    g = Graph("window_sink_softcap", {"b": 1, "q": 4096, "s": 4096, "h": 8, "g": 8, "d": 64, "e": 64}, "bfloat16")
    Q, K = g.input("Q", "b", "q", "h", "g", "d"), g.input("K", "b", "s", "h", "d")
    V, S = g.input("V", "b", "s", "h", "e"), g.input("S", "h", "g")
    q, s, d = (g.axis(name) for name in "qsd")
    at = g.let("at", index(q) + (s - q))
    C = g.let("C", 50 * tanh(dot(Q, K, d) / (50 * d**0.5)))
    A = g.let("A", where((index(s) <= at) & (index(s) > at - 128), C, -math.inf))
    g.output("O", dot(softmax(A, s), V, s) * sigmoid(logsumexp(A, s) - S), "b", "q", "h", "g", "e")
    return g


BUILT = (
    gated_mlp, gqa, gqa_decode, gqa_prefill, lora, ntrans, qknorm_gqa, rmsnorm_linear, embedding_norm, cross_entropy,
    paged_decode, ragged_decode, mixed_batch, moe_gate_up, int8_linear, rope_append, rope_append_pairs,
    qkv_rope_append, int4_linear, conv_block, conv_block_first, triangle_multiplication, window_sink_softcap,
)  # fmt: skip


def test_every_spec_is_built() -> None:
    assert {b.__name__ for b in BUILT} == {path.stem for path in SPECS.glob("*.yaml")}


@pytest.mark.parametrize("build", BUILT, ids=lambda b: b.__name__)
def test_a_graph_gives_the_same_program_as_its_spec(build: Callable[[], Graph]) -> None:
    spec = load_spec(SPECS / f"{build.__name__}.yaml")
    g = build()
    assert g.program() == spec.at()
    assert parse_spec(g.text()).at() == spec.at()


# -- the language


def small() -> tuple[Graph, Value, Value]:
    g = Graph("small", {"m": 4, "k": 8})
    return g, g.input("X", "m", "k"), g.input("Y", "m", "k")


def equations(g: Graph, value: Value, *axes: str) -> list[str]:
    g.output("O", value, *axes)
    return [str(e) for e in g.program().eqns]


OPERATORS: dict[str, Callable[[Value, Value], Value]] = {
    "X + Y": lambda x, y: x + y,
    "1 - X": lambda x, y: 1 - x,
    "X - 1": lambda x, y: x - 1,
    "2 * X": lambda x, y: 2 * x,
    "X / Y": lambda x, y: x / y,
    "1 / X": lambda x, y: 1 / x,
    "X ** 3": lambda x, y: x**3,
    "2 ** X": lambda x, y: 2**x,
    "-X": lambda x, y: -x,
    "X * -0.5": lambda x, y: x * -0.5,
    "(-X) ** 2": lambda x, y: (-x) ** 2,
    "(-2) * X": lambda x, y: x.__rmul__(-2),
    "X - (Y - 1)": lambda x, y: x - (y - 1),
    "where((X < Y) and (X != 1), X, 0)": lambda x, y: where((x < y) & (x != 1), x, 0),
    "where((X <= Y) or (X == 1), X, -inf)": lambda x, y: where((x <= y) | (x == 1), x, -math.inf),
    "where(not X < Y, X, 0)": lambda x, y: where(~(x < y), x, 0),
    "X % 2 + Y // X + 3 % Y": lambda x, y: x % 2 + y // x + 3 % y,
    "clamp(X, 0, max=1)": lambda x, y: clamp(x, 0, max=1),
    "where(X > Y, X, Y)": lambda x, y: where(x > y, x, y),
    "maximum(X, 1e-06)": lambda x, y: maximum(x, 1e-6),
    "X / k ** 0.5": lambda x, y: x / x.graph.axis("k") ** 0.5,
    "X * (m * k - 1)": lambda x, y: x * (x.graph.axis("m") * x.graph.axis("k") - 1),
    "rms_norm(X, k, eps=0.001)": lambda x, y: rms_norm(x, "k", eps=1e-3),
    "X * index(m)": lambda x, y: x * index(x.graph.axis("m")),
}


@pytest.mark.parametrize("text", OPERATORS)
def test_operators_mean_what_they_mean_in_a_spec(text: str) -> None:
    g, X, Y = small()
    spec = "name: small\ndims: {m: 4, k: 8}\ninputs: {X: [m, k], Y: [m, k]}\nprogram: O = {}\noutputs: {O: [m, k]}\n"
    g.output("O", OPERATORS[text](X, Y), "m", "k")
    assert g.program() == parse_spec(spec.replace("O = {}", f'"O = {text}"')).at()


def test_axes_are_renamed() -> None:
    g = Graph("gram", {"i": 4, "j": 4, "k": 8})
    X = g.input("X", "i", "k")
    assert equations(g, dot(X, rename(X, i="j"), "k"), "i", "j") == [
        "t0[j, k] = rename(X; i=j)",
        "O[i, j] = dot(X, t0; k)",
    ]


def test_tensors_are_read_by_indices() -> None:
    g = Graph("heads", {"m": 4, "k": 8, "h": 2, "d": 4})
    X, h = g.input("X", "m", "k"), g.axis("h")
    assert equations(g, X["m", 4 * h + "d"] * X[g.axis("m"), 0], "m", "h", "d") == [
        "t0[m, h, d] = rename(X; k=h*4 + d)",
        "t1[m] = rename(X; k=0)",
        "O[m, h, d] = mul(t0, t1)",
    ]
    with pytest.raises(TypeError):
        iter(X)


def test_every_function_of_the_spec_language_is_there_and_no_other() -> None:
    assert set(FUNCTIONS) <= {*OPS, *DERIVED}
    for name in FUNCTIONS:
        assert getattr(graph, name).__name__ == name
    for name in ("exp_sub", "size", "add", "silo"):
        with pytest.raises(AttributeError, match=name):
            getattr(graph, name)


def test_a_value_that_is_used_twice_is_computed_once() -> None:
    g, X, Y = small()
    E = exp(X - Y)
    unused = silu(E)  # noqa: F841
    assert equations(g, E / sum(E, "k"), "m", "k") == [
        "t0[m, k] = sub(X, Y)",
        "v0[m, k] = exp(t0)",
        "t2[m] = sum(v0; k)",
        "O[m, k] = div(v0, t2)",
    ]


def test_a_name_is_given_before_or_after_use() -> None:
    g, X, _ = small()
    E = exp(X)
    S = sum(E, "k")
    g.let("E", E)
    assert equations(g, E / S, "m", "k") == ["E[m, k] = exp(X)", "t1[m] = sum(E; k)", "O[m, k] = div(E, t1)"]


def test_an_output_may_be_a_named_value_a_copy_and_of_another_type() -> None:
    g, X, _ = small()
    E = g.let("E", exp(X))
    g.output("E", E, "m", "k", dtype="float32")
    g.output("C", X, "k", "m")
    program = g.program()
    assert [str(e) for e in program.eqns] == ["E[m, k] = exp(X)", "C[m, k] = mul(X, 1)"]
    assert [str(t) for t in program.outputs] == ["E f32[m, k]", "C f16[k, m]"]


def test_a_long_chain_is_no_deep_expression() -> None:
    g, X, _ = small()
    Y = X
    for _ in range(3000):
        Y = Y + X
    g.output("O", Y, "m", "k")
    assert len(g.program().eqns) == 3000


def test_numbers_of_numpy_are_numbers() -> None:
    g = Graph("small", {"m": np.int32(4), "k": 8})  # type: ignore[dict-item]
    X = g.input("X", "m", "k", scale=np.float64(0.5))
    assert equations(g, np.float32(0.5) * X + np.int64(3), "m", "k") == [
        "t0[m, k] = mul(0.5, X)",
        "O[m, k] = add(t0, 3)",
    ]


# -- mistakes


def test_every_mistake_is_told_as_in_a_spec() -> None:
    g = Graph("wrong", {"m": 4, "k": 0})
    X = g.input("X", "m", "z")
    g.output("O", sum(silu(X), "kk"), "m")
    with pytest.raises(SpecError) as error:
        g.program()
    text = str(error.value)
    assert "<graph wrong>:2:17: error: the size of k is a positive integer, not 0" in text
    assert "<graph wrong>:6:17: error: no axis is called z; the axes are m, k\n      X: {dims: [m, z]}\n" in text
    assert (
        "error: no axis is called kk; the axes are m, k\n      O = sum(silu(X), kk)\n" in text
        and "did you mean `k`?" in text
    )


def test_functions_of_numbers_are_numbers() -> None:
    assert (exp(0.0), sqrt(4), where(True, 1, 2)) == (1, 2, 1)
    g, X, _ = small()
    g.output("P", X * sqrt(4.0), "m", "k")
    assert "X * 2.0" in g.text()


MISTAKES: dict[str, tuple[Callable[[Graph, Value], object], type[Exception], str]] = {
    "truth": (lambda g, X: 1 if X > 0 else 0, GraphError, "use where"),
    "chain": (lambda g, X: 0 < X < 1, GraphError, "for `and` and `or` use & and |"),
    "text": (lambda g, X: X + "a b", GraphError, "'a b' is neither a value, nor a number"),
    "none": (lambda g, X: X * None, GraphError, "an argument of type NoneType is neither a value"),
    "bool": (lambda g, X: X * True, GraphError, "True is neither a value"),
    "nan": (lambda g, X: X * math.nan, GraphError, "nan is neither a value"),
    "no graph": (lambda g, X: index("m"), GraphError, r"no argument is a value of a graph.*g.axis\(name\)"),
    "two graphs": (lambda g, X: X + small()[1], GraphError, "the arguments are values of two graphs"),
    "output of another": (lambda g, X: g.output("P", small()[1] + 1, "m", "k"), GraphError, "values of two graphs"),
    "named in another": (lambda g, X: g.let("P", small()[1]), GraphError, "values of two graphs"),
    "unhashable": (lambda g, X: {X}, TypeError, "unhashable"),
    "no name": (lambda g, X: g.let("a b", exp(X)), SpecError, "not a list of assignments"),
    "taken": (lambda g, X: g.let("k", exp(X)), SpecError, "k is the name of an axis"),
    "twice": (lambda g, X: [g.let("Z", exp(X)), g.let("Z", silu(X))], SpecError, "Z is assigned twice"),
    "input again": (lambda g, X: g.input("X", "m"), SpecError, "the key X is given twice"),
    "input as output": (lambda g, X: g.output("X", X, "m", "k"), SpecError, "X is an input and cannot be assigned"),
    "mask": (lambda g, X: g.output("P", X > 0, "m", "k"), SpecError, "the output P is a mask"),
    "other axes": (lambda g, X: g.output("P", exp(X), "m"), SpecError, "has the axes m, k, and the spec says m"),
    "arguments": (lambda g, X: g.let("Z", exp(X, X)), SpecError, "exp takes 1 argument"),
    "strange name": (lambda g, X: g.input("a: b\n", "m"), SpecError, "cannot name a tensor"),
    "dtype": (lambda g, X: g.input("Z", "m", dtype="float12"), SpecError, "a dtype is one of"),
    "a product by @": (lambda _, X: X @ X, GraphError, r"@ does not say which axis it sums over: .*dot\(a, b, k\)"),
    "a tensor": (lambda _, X: X * {}, GraphError, "an argument of type dict is neither a value, nor a number"),
    "scale": (lambda g, X: g.input("Z", "m", scale=-1), SpecError, "the scale is a positive number"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_a_clear_error(what: str) -> None:
    act, kind, message = MISTAKES[what]
    g, X, Y = small()
    g.output("O", X * Y, "m", "k")

    def build() -> None:
        act(g, X)
        g.program()

    with pytest.raises(kind, match=message):
        build()


def test_a_graph_without_anything_is_told_so() -> None:
    with pytest.raises(SpecError, match="inputs is a mapping"):
        Graph("empty", {"m": 1}).program()
    with pytest.raises(SpecError, match="a name is made of a-z"):
        Graph("No Name", {}).program()


def test_graphs_need_no_torch() -> None:
    code = "import sys; from mirage_cli.spec.graph import dot; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=SPECS.parent, timeout=60).returncode == 0
