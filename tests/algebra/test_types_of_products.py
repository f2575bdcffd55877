"""Casts: the types in which a program multiplies, and what may be moved over a cast."""

from __future__ import annotations

import pytest

from mirage_cli.algebra.decompose import decompose
from mirage_cli.algebra.graph import Decomposition, Step
from mirage_cli.ir.derived import lower
from mirage_cli.ir.precision import exact_values
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.spec.reader import parse_spec
from mirage_cli.verify.equivalence import check_equivalence

SPEC = """
name: casts
dims: {{m: 16, k: 32, n: 16, h: 8}}
dtype: {dtype}
inputs: {{X: [m, k], G: {{dims: [k], dtype: float32}}, W: [k, n], B: {{dims: [m, n], dtype: float32}}, V: [n, h]}}
program: |
  {program}
outputs: {{O: [m, {out}]}}
"""


PRODUCTS = ("G[k]·X[m,k]", "X[m,k]·G[k]")


def lowered(program: str, dtype: str = "bfloat16", out: str = "n") -> Program:
    text = SPEC.format(dtype=dtype, program="\n  ".join(program.split("; ")), out=out)
    return lower(parse_spec(text).at())


def dots(d: Decomposition) -> list[Step]:
    return [s for nodes in d.nodes.values() for n in nodes for s in n.steps if s.op == "dot"]


def casts(step: Step) -> set[str]:
    return {dtype for _, dtype in step.casts}


def test_a_factor_moves_over_a_cast_to_sixteen_bits() -> None:
    """Of real numbers that is the identity: a norm may be divided by behind the product."""
    program = lowered("Y = bfloat16(X * G / sqrt(sum(X * X, k))); O = dot(Y, W, k)")
    d = decompose(program)
    assert {"Y", "O"} & exact_values(program) == set() < exact_values(program)
    undivided = [s for s in dots(d) if any(str(f) in PRODUCTS for f, _ in s.casts)]
    assert undivided and all(casts(s) == {"bfloat16"} for s in undivided)


def test_float16_is_for_what_the_program_has_in_float16() -> None:
    """x / 100000 may be in the range of float16 where x is not."""
    d = decompose(lowered("Y = float16(X * G / (sum(X * X, k) + 1)); O = dot(Y, W, k)", "float16"))
    own = set(d.forms["Y"])
    rounded = [(f, dtype) for s in dots(d) for f, dtype in s.casts]
    assert rounded and {*rounded} == {(f, "float16") for f in own}
    assert any(not s.casts for s in dots(d) if s.axes == ("k",))  # without the divisor, and so in float32


def test_exponentials_up_to_1_are_float16() -> None:
    """What an online softmax multiplies before it is divided."""
    d = decompose(lowered("O = dot(float16(softmax(dot(X, W, k) + B, n)), V, n)", "float16", "h"))
    shifted = [f for s in dots(d) for f, _ in s.casts if f.atom is not None and f.atom.kind == "shifted_exp"]
    assert shifted


@pytest.mark.parametrize(("program", "types"), [
    ("O = dot(X * G, W, k)", {"": 1}),
    ("O = dot(bfloat16(X * G), W, k) + B", {"bfloat16": 1}),
    ("O = dot(float32(X) * 3, W, k)", {"float32": 1}),
    ("O = dot(float32(X), float32(W), k)", {"": 1}),
])  # fmt: skip
def test_products_are_taken_in_the_type_that_pytorch_takes_them_in(program: str, types: dict[str, int]) -> None:
    """Where no cast is needed for it, there is none: of inputs of 16 bits every product is exact in float32."""
    d = decompose(lowered(program), own_algebra_only=True)
    assert {"".join(casts(s)) for s in dots(d)} == {*types}


FLOAT8 = """
mugraph casts bfloat16
dims m=16 k=32
input X bf16[m, k]
input G f32[k]
output O bf16[m]
kernel k0 generated m:grid k:loop
  X = load X[m, k]
  {first}
  {second}
  store O[m] = O
"""


@pytest.mark.parametrize("function", ["float8_e4m3fn", "float8_e5m2"])
def test_a_cast_to_float8_stays_where_it_is(function: str) -> None:
    """Σ of what is rounded is not what is rounded of Σ: neither proved nor accepted."""
    text = SPEC.format(dtype="bfloat16", program=f"O = sum({function}(X), k)", out="n")
    spec = text.replace("G: {dims: [k], dtype: float32}, W: [k, n], B: {dims: [m, n], dtype: float32}, V: [n, h]", "")
    program = lower(parse_spec(spec.replace("[m, n]", "[m]").replace(", }", "}")).at())
    graph = FLOAT8.replace("input G f32[k]\n", "")
    right = graph.format(first=f"C[m, k] = {function}(X)", second="O[m] = sum(C; k)")
    wrong = graph.format(first="C[m] = sum(X; k)", second=f"O[m] = {function}(C)")
    none = graph.format(first="C[m, k] = mul(X, 1)", second="O[m] = sum(C; k)")
    verdicts = [check_equivalence(program, parse_mugraph(g), 0) for g in (right, wrong, none)]
    assert [v.ok for v in verdicts] == [True, False, False]
    assert [v.proved for v in verdicts] == [True, False, False]
