"""Sums of which a mask leaves every s-th position: transposed convolutions, and what is like them."""

from __future__ import annotations

import pytest

from mirage_cli.ir.access import quotient
from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.blocked import blocked
from mirage_cli.ir.rewrites.residues import by_residues
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
LINE = """
name: line
dims: {b: 2, y: 24, u: 12, c: 16, o: 16, i: 4}
inputs: {X: [b, u, c], W: {dims: [i, c, o], scale: 0.1}}
program: |
  P = X[b, (y + 1 - i) // 2, c]
  O = dot(where((index(y) + 1 - index(i)) % 2 == 0, P, 0), W, c, i)
outputs: {O: [b, y, o]}
"""
PLANE = """
name: plane
dims: {b: 2, y: 12, x: 18, u: 6, v: 6, c: 16, o: 16, i: 3, j: 5}
inputs: {X: [b, u, v, c], W: {dims: [c, i, j, o], scale: 0.1}, B: [o]}
program: |
  P = X[b, (y + 1 - i) // 2, (x + 2 - j) // 3, c]
  M = (index(y) + 1 - index(i)) % 2 == 0 and (index(x) + 2 - index(j)) % 3 == 0
  O = relu(dot(where(M, P, 0), W, c, i, j) + B)
outputs: {O: [b, y, x, o]}
"""
POOLED = LINE.replace("  O = dot", "  Z = dot").replace("24,", "24, q: 12, r: 2,").replace(
    "c, i)\n", "c, i)\n  O = max(Z[b, 2*q + r, o], r)\n"
).replace("O: [b, y, o]", "O: [b, q, o]")  # fmt: skip
STATISTICS = LINE.replace("  O = dot", "  Z = dot").replace("c, i)\n", "c, i)\n  O = Z - mean(Z, y)\n")
GRADIENT = """
name: gradient
dims: {b: 2, y: 24, u: 12, c: 16, o: 16, i: 4}
inputs: {X: [b, u, c], G: [b, y, o]}
program: |
  P = X[b, (y + 1 - i) // 2, c]
  W = dot(where((index(y) + 1 - index(i)) % 2 == 0, P, 0), G, b, y)
outputs: {W: [i, c, o]}
"""


def program(text: str) -> Program:
    return lower(parse_spec(text).at())


@pytest.mark.parametrize("by", [2, 3, 6])
def test_a_number_less_its_remainder_is_divided(by: int) -> None:
    """(y + 1 - (y + 1) % 6) // 2 is 3 * ((y + 1) // 6)."""
    less = parse_index("y + 1 - ((y + 1)%6)")
    assert quotient(less, by) == parse_index(f"((y + 1)//6)*{6 // by}")
    for n in range(20):
        value = less.value(lambda _, n=n: n, lambda *_: 0)
        assert quotient(less, by).value(lambda _, n=n: n, lambda *_: 0) == value // by
    assert str(quotient(parse_index("(y + 1)%6"), 2)) == "(y + 1)%6//2"


def test_the_positions_that_a_mask_leaves_are_summed() -> None:
    text = str(by_residues(program(LINE)))
    assert "rename(X; u=(y + 1)//2 - i_step)" in text
    assert "rename(W; i=i_step*2 + (y + 1)%2)" in text
    assert "eq(" not in text
    assert "dims b=2 y=24 u=12 c=16 o=16 i=4 i_step=2" in text


def test_what_is_beyond_the_kernel_is_masked() -> None:
    text = str(by_residues(program(PLANE)))
    assert "rename(W; j=j_step*3 + (x + 2)%3, i=i_step*2 + (y + 1)%2)" in text
    assert "lt(i_at, i_size)" in text
    assert "lt(j_at, j_size)" in text


def test_rows_are_split_by_the_kernel_they_are_multiplied_with() -> None:
    text = str(blocked(program(LINE)))
    assert "rename(X; u=(y_in + 1)//2 - i_step + y_block)" in text
    assert "part O f16[b, y, o] O[b, y_block*2 + y_in, o] = O_blocks" in text


@pytest.mark.parametrize(
    "text",
    [
        LINE.replace("% 2 == 0", "% 2 < 1"),
        LINE.replace("% 2 == 0", "% 2 == 2"),  # nowhere
        LINE.replace("% 2 == 0", "% 2 == 0.5"),
        LINE.replace("== 0, P, 0", "== 0, P, 1"),  # the others count too
        LINE.replace("index(y) + 1 - index(i)", "index(y) + 1 - 2 * index(i)"),
        LINE.replace("c, i)", "c)").replace("[b, y, o]", "[b, y, i, o]"),
    ],
)
def test_other_sums_are_as_they_were(text: str) -> None:
    assert by_residues(program(text)) is None


@pytest.mark.parametrize("text", [LINE, PLANE, POOLED, STATISTICS, GRADIENT])
def test_kernels_are_right(text: str, interpreter: Interpreter) -> None:
    assert problem(text, interpreter) is None


def test_no_zeros_are_multiplied() -> None:
    """A quarter of the products, in about a quarter of the time."""
    large = PLANE.replace(
        "b: 2, y: 12, x: 18, u: 6, v: 6, c: 16, o: 16, i: 3, j: 5",
        "b: 8, y: 64, x: 64, u: 32, v: 32, c: 128, o: 64, i: 4, j: 4",
    )
    large = large.replace("(x + 2 - j) // 3", "(x + 1 - j) // 2").replace(
        "(index(x) + 2 - index(j)) % 3", "(index(x) + 1 - index(j)) % 2"
    )
    found = search_program(parse_spec(large).at(), H200, Options(budget_s=60.0, tune=False))
    assert not found.rejected
    times = {x.id: x.predicted_us for x in found.plans}
    assert found.plans[0].predicted_us < 0.4 * times[found.as_written]


@pytest.mark.parametrize(
    "wrong",
    [
        ("i_step*2 + (y_in + 1)%2", "i_step*2 + y_in%2"),
        ("(y_in + 1)//2 - i_step", "y_in//2 - i_step"),
        ("y_block*2 + y_in, o", "y_block*2 - y_in + 1, o"),
    ],
)
def test_kernels_with_other_taps_are_refused(wrong: tuple[str, str]) -> None:
    right = program(LINE)
    form = blocked(right)
    assert form is not None
    text = print_mugraph(search(form, H200, bounds=BEST).candidates[0].graph)
    assert wrong[0] in text
    assert check_equivalence(right, parse_mugraph(text), 0).ok
    assert not check_equivalence(right, parse_mugraph(text.replace(*wrong)), 0).ok
