"""Random answers of comparisons: how many are needed where several meet, where a row is reduced, and where the μGraph
alone makes some. Each wrong plan here was accepted with some of these seeds."""

from __future__ import annotations

from functools import cache

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.guesses import bits_of

SPEC = """
name: masks
dtype: float32
dims: {{n: 64}}
inputs: {{X: [n], Y: [n], A: [], B: []}}
program: |
  O = {}
outputs: {{O: [n]}}
"""
UNUSED = " + 0 * (X + Y + A + B)"
SIX = "where((X < Y) and (Y < 5) and (X < 6) and (X + Y < 7) and (X * Y < 8) and (X < 9), {}, Y)"
TREE = "where(X < 2, X, where(X < 3, 1, where(X < 4, 2, where(X < 5, 3, where(X < 6, 4, {})))))"
SCALARS = "where((A < B) and (A < 5) and (B < 6) and (A + B < 7), {}, Y)"

ATTENTION = """
name: windowed
dims: {q: 16, s: 4, d: 20, e: 5}
dtype: float32
inputs: {Q: [q, d], K: [s, d], V: [s, e]}
program: |
  M = where((index(q) - index(s) < 9) and (index(s) - index(q) < 9), dot(Q, K, d), -inf)
  P = exp(M - max(M, s))
  O = dot(P / (sum(P, s) + 0.5), V, s)
outputs: {O: [q, e]}
"""


@cache
def found(text: str) -> tuple[Program, MuGraph]:
    program = parse_spec(text).at()
    plans = search_program(program, find_target("h200"), Options(budget_s=60, tune=False)).plans
    return lower(program), plans[0].graph


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("X", "where(A < B, X, 2 * X)"),
        ("X", "where(X[0] < Y[0], X, 2 * X)"),
        ("X", "where(isnan(A), 2 * X, X)"),
        (SCALARS.format("X"), SCALARS.format("2 * X")),
        (SIX.format("X"), SIX.format("2 * X")),
        (TREE.format(5), TREE.format(6)),
    ],
)
def test_what_few_answers_choose_is_seen(right: str, wrong: str) -> None:
    program, plan = found(SPEC.format(right + UNUSED))
    _, other = found(SPEC.format(wrong + UNUSED))
    verdict = check_equivalence(program, plan, seed=0)
    assert verdict.ok and verdict.bound < 1e-6, verdict
    assert not [seed for seed in range(40) if check_equivalence(program, other, seed).ok]


def test_a_row_of_which_random_masks_leave_one_number_tells_nothing_of_it() -> None:
    """The softmax of one number is 1, whatever it is: a score that is wrong is seen in rows of two."""
    program, plan = found(ATTENTION)
    text = canonical_text(plan)
    right, wrong = "load Q[q, d]", "load Q[q - 1, d]"
    assert right in text, text
    assert check_equivalence(program, plan, seed=0).ok
    other = parse_mugraph(text.replace(right, wrong))
    assert not [seed for seed in range(99, 290) if check_equivalence(program, other, seed).ok]


def test_bits_of_joined_answers() -> None:
    assert bits_of(24, 1) == 24
    assert 2 ** -bits_of(10, 2) == pytest.approx(0.75**10)
    assert bits_of(1, 0) == bits_of(3, 0) == float("inf")
    assert bits_of(1 << 30, 2000) < 1e-200
