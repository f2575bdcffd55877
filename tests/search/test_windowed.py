"""Windows of keys, as all keys and a mask."""

from __future__ import annotations

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.windowed import by_rows
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.equivalence import check_equivalence
from tests.pipeline.test_random import problem
from tests.searched import BEST

H200 = find_target("h200")
CAUSAL = """
name: causal_window
dims: {h: 2, t: 48, s: 48, w: 9, d: 16}
inputs: {Q: [h, t, d], K: [h, s, d], V: [h, s, d]}
program: |
  A = dot(Q, K[h, t - w, d], d) * d ** -0.5
  P = softmax(where(index(t) - index(w) >= 0, A, -inf), w)
  O = dot(P, V[h, t - w, d], w)
outputs: {O: [h, t, d]}
"""
GAPS = CAUSAL.replace("t - w,", "t - 2*w,").replace("index(t) - index(w) >= 0", "2 * index(w) <= index(t)")
AROUND = CAUSAL.replace("t - w,", "t + w - 4,").replace(
    "index(t) - index(w) >= 0", "index(t) + index(w) - 4 >= 0 and index(t) + index(w) - 4 < s"
)
BIASED = CAUSAL.replace("V: [h, s, d]", "V: [h, s, d], B: [h, w]").replace("d ** -0.5", "d ** -0.5 + B")
INSIDE = (
    CAUSAL.replace("t - w,", "t + w,")
    .replace("s: 48", "s: 56")
    .replace("where(index(t) - index(w) >= 0, A, -inf)", "A")
)
NEGATIVE = GAPS.replace("2 * index(w) <= index(t)", "index(t) >= -(-2 * index(w))")
LINEAR = INSIDE.replace("softmax(A, w)", "A")
PLANE = """
name: neighbourhood
dims: {y: 8, x: 10, u: 8, v: 10, i: 3, j: 3, d: 16}
inputs: {Q: [y, x, d], K: [u, v, d], V: [u, v, d]}
program: |
  M = index(y) + index(i) - 1 >= 0 and index(y) + index(i) - 1 < u
  N = index(x) + index(j) - 1 >= 0 and index(x) + index(j) - 1 < v
  A = dot(Q, K[y + i - 1, x + j - 1, d], d)
  P = softmax(where(M and N, A, -inf), i, j)
  O = dot(P, V[y + i - 1, x + j - 1, d], i, j)
outputs: {O: [y, x, d]}
"""


def program(text: str) -> Program:
    return lower(parse_spec(text).at())


def test_a_window_is_all_rows_and_a_mask() -> None:
    text = str(by_rows(program(CAUSAL)))
    assert "rename(K; s=w_row)" in text
    assert "index(t - w_row)" in text
    assert "w_size[] = size(w)" in text
    assert "dot(P, t9; w_row)" in text or "; w_row)\noutput" in text


def test_gaps_are_blocks() -> None:
    text = str(by_rows(program(GAPS)))
    assert "rename(K; s=w_row*2 + t_in)" in text
    assert "index(t_block - w_row)" in text
    assert "O[h, t_block*2 + t_in, d]" in text


@pytest.mark.parametrize(("text", "outside"), [(INSIDE, "-inf"), (LINEAR, "0")])
def test_the_product_is_masked_where_the_program_has_no_mask(text: str, outside: str) -> None:
    assert f"where(within2, t1_all, {outside})" in str(by_rows(program(text)))


@pytest.mark.parametrize(
    "text",
    [
        CAUSAL.replace("where(index(t) - index(w) >= 0, A, -inf)", "A"),  # keys that are not there have the score 0
        CAUSAL.replace("-inf", "-1"),
        CAUSAL.replace(">= 0", ">= -1"),
        GAPS.replace("t: 48", "t: 47"),
        CAUSAL.replace("O = dot(P, V[h, t - w, d], w)", "O = P").replace("O: [h, t, d]", "O: [h, t, w]"),
    ],
)
def test_other_programs_are_as_they_were(text: str) -> None:
    assert by_rows(program(text)) is None


@pytest.mark.parametrize("text", [CAUSAL, GAPS, AROUND, BIASED, INSIDE, LINEAR, PLANE, NEGATIVE])
def test_kernels_are_right(text: str, interpreter: Interpreter) -> None:
    right = program(text)
    form = by_rows(right)
    assert form is not None
    graph = search(form, H200, bounds=BEST).candidates[0].graph
    assert check_equivalence(right, graph, 0).ok
    assert problem(text, interpreter) is None


@pytest.mark.parametrize(
    "wrong", [("w_row*2 + t_in", "w_row*2"), ("lt(w_at, w_size)", "le(w_at, w_size)"), ("ge(w_at, 0)", "ge(w_at, -1)")]
)
def test_kernels_with_other_windows_are_refused(wrong: tuple[str, str]) -> None:
    right = program(GAPS)
    form = by_rows(right)
    assert form is not None
    text = print_mugraph(search(form, H200, bounds=BEST).candidates[0].graph)
    assert wrong[0] in text
    assert not check_equivalence(right, parse_mugraph(text.replace(*wrong)), 0).ok


def test_loops_visit_the_window_alone() -> None:
    large = GAPS.replace("h: 2, t: 48, s: 48, w: 9, d: 16", "h: 16, t: 4096, s: 4096, w: 128, d: 64")
    found = search_program(parse_spec(large).at(), H200, Options(budget_s=60.0, tune=False))
    assert not found.rejected
    assert found.plans[0].predicted_us < 12
