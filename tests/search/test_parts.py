"""Reductions that `lower` makes in parts, and what that saves."""

from __future__ import annotations

import pytest

from mirage_cli.search.generator import search
from mirage_cli.target.gpus import find_target
from tests.programs import program
from tests.searched import BEST

ROWS = "a=2048 n=32000"


def reductions(equations: str, inputs: str = "X[a,n] Y[a,n]", sizes: str = "a=4 n=8") -> list[str]:
    lowered = program(sizes, inputs, equations)
    return [f"{e.op} {','.join(e.axes)}" for e in lowered.eqns if e.axes and e.op != "size"]


def test_what_holds_a_reduction_over_a_part_of_the_axes_is_reduced_over_that_first() -> None:
    assert reductions("s = softmax(X; n) | O = sum(s; a n)") == ["max n", "sum n", "sum n", "sum a"]
    assert reductions("s = softmax(X; n) | O = max(s; a n)") == ["max n", "sum n", "max n", "max a"]
    assert reductions("s = sum(X; n) | t = sub(X, s) | O = min(t; a n)") == ["sum n", "min n", "min a"]


def test_any_other_is_reduced_at_once() -> None:
    assert reductions("s = exp(X) | O = sum(s; a n)") == ["sum a,n"]
    assert reductions("s = softmax(X; n) | O = sum(s; n)") == ["max n", "sum n", "sum n"]
    assert reductions("s = softmax(X; a n) | O = sum(s; a n)") == ["max a,n", "sum a,n", "sum a,n"]


def test_of_a_contraction_the_rest_is_a_sum() -> None:
    assert reductions("O = dot(X, Y; a n)") == ["dot a,n"]
    assert reductions("s = softmax(X; n) | O = dot(s, Y; a n)") == ["max n", "sum n", "dot n", "sum a"]


@pytest.mark.parametrize(
    "equations",
    [
        "s = softmax(X; n) | O = dot(s, Y; n)",
        "s = softmax(X; n) | O = dot(s, Y; a n)",
        "s = softmax(X; n) | p = mul(s, Y) | O = sum(p; a n)",
        "s = softmax(X; n) | l = logsumexp(Y; n) | d = sub(Y, l) | p = mul(s, d) | O = sum(p; a n)",
    ],
)
def test_a_sum_over_rows_ends_in_the_kernel_that_reads_them(equations: str) -> None:
    """Both inputs are read twice at most: what a row needs first, and the row again."""
    target = find_target("h100")
    found = search(program(ROWS, "X[a,n] Y[a,n]", equations), target, bounds=BEST).candidates[0]
    floor = 2 * 2 * 2048 * 32000 / target.dram_bytes_per_us
    assert found.predicted_us < 2 * floor
