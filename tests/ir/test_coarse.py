"""Functions that bfloat16 rounds by more than a shorter text is off."""

from __future__ import annotations

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.coarse import coarse
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from tests.codegen.test_triton import kernel

CAPPED = """
name: capped
dims: {h: 2, q: 40, s: 48, d: 16, e: 16}
dtype: bfloat16
inputs: {Q: [h, q, d], K: [h, s, d], V: [h, s, e], M: [q, s]}
program: |
  C = 50 * tanh(dot(Q, K, d) / 50)
  O = dot(softmax(where(index(s) <= index(q), C + M, -inf), s), V, s)
outputs: {O: [h, q, e]}
"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("Y[m, k] = tanh(X)", True),
        ("T[m, k] = tanh(X)\nN[m, k] = neg(T)\nY[m, k] = mul(N, 50)", True),
        ("T[m, k] = tanh(X)\nD[m, k] = div(T, Z)\nY[m, k] = add(D, Z)", True),  # another tensor
        ("T[m, k] = tanh(X)\nY[m, k] = add(T, 1)", False),  # of which little may be left
        ("T[m, k] = tanh(X)\nU[m, k] = mul(T, X)\nY[m, k] = add(U, X)", False),
        ("T[m, k] = tanh(X)\nU[m, k] = mul(X, Z)\nY[m, k] = sub(U, T)", False),
        ("T[m, k] = tanh(X)\nY[m, k] = mul(T, T)", True),
        ("T[m, k] = tanh(X)\nY[m, k] = log(T)", False),
        ("T[m, k] = tanh(X)\nS[k] = sum(T; m)\nY[m, k] = mul(X, S)", True),
        ("F[m, k] = float32(X)\nY[m, k] = tanh(F)", False),  # PyTorch does not round it
        ("F[m, k] = float16(X)\nY[m, k] = tanh(F)", False),
    ],
)
def test_what_is_made_of_a_coarse_value_shows_it_no_better_than_rounded(body: str, found: bool) -> None:
    graph = kernel("m=3 k=8; X[m,k] Z[m,k]; Y[m,k]; bfloat16", "m:tile k:grid", body)
    (k,) = graph.kernels
    assert bool(coarse(k, graph.exact()[k.name], {"bfloat16"})) is found
    assert not coarse(k, graph.exact()[k.name], {"bfloat16", "float16"})
    assert not coarse(k, graph.exact()[k.name], {"float16"})


def test_attention_with_a_cap_is_right_by_the_coarse_text(interpreter: Interpreter) -> None:
    (program,) = parse_spec(CAPPED).programs()
    best = search_program(program, find_target("h200"), Options(tune=False)).plans[0]
    source = kernels_source(best.graph, best.schedule)
    assert " = coarse_tanh(" in source
    judged = interpreter.judge(program, source, 0, True)
    assert judged.ok, judged.problem
