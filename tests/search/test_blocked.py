"""Axes in blocks, where a factor of a sum depends on them by their blocks alone."""

from __future__ import annotations

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.rewrites.blocked import blocked
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.reduced import turns
from tests.pipeline.test_random import problem
from tests.searched import BEST

H200 = find_target("h200")
EXPERTS = """
name: experts
dims: {{m: {m}, k: {k}, n: {n}, e: 5, j: {j}}}
dtype: bfloat16
inputs: {{X: [m, k], W: {{dims: [e, n, k], scale: 0.1}}, E: {{dims: [j], dtype: int32, below: e}}, Z: [m, n]}}
program: |
  O = silu(dot(X, W[E[m // {length}], n, k], k)) + Z
outputs: {{O: [m, n]}}
"""
SCALED = """
name: scaled
dims: {m: 192, k: 192, n: 192, e: 4, j: 3, kb: 3, nb: 3}
dtype: bfloat16
inputs:
  X: {dims: [m, k], dtype: float8_e4m3fn}
  A: {dims: [m, kb], dtype: float32}
  W: {dims: [e, n, k], dtype: float8_e4m3fn}
  B: {dims: [e, nb, kb], dtype: float32}
  E: {dims: [j], dtype: int32, below: e}
program: |
  O = sum(X * W[E[m // 64], n, k] * A[m, k // 64] * B[E[m // 64], n // 64, k // 64], k)
outputs: {O: [m, n]}
"""
HEADS = """
name: heads
dims: {b: 2, h: 8, g: 2, s: 40, d: 16}
inputs: {Q: [b, h, d], K: [b, s, g, d], V: [b, s, g, d]}
program: |
  P = softmax(dot(Q, K[b, s, h // 4, d], d), s)
  O = dot(P, V[b, s, h // 4, d], s)
outputs: {O: [b, h, d]}
"""


def experts(m: int, length: int, k: int = 32, n: int = 24) -> str:
    return EXPERTS.format(m=m, k=k, n=n, j=-(-m // length), length=length)


def test_rows_of_a_block_are_multiplied_by_one_matrix() -> None:
    found = blocked(lower(parse_spec(experts(64, 16)).at()))
    assert found is not None
    text = str(found)
    assert "rename(W, E; e=E{e}[m_block])" in text
    assert "dims m=64 m_block=4 m_in=16 k=32" in text
    assert "part O bf16[m, n] O[m_block*16 + m_in, n] = O_blocks" in text


def test_scales_of_8_bits_stand_behind_the_sum_over_a_block() -> None:
    found = blocked(lower(parse_spec(SCALED).at()))
    assert found is not None
    assert "rename(A; m=m_block*64 + m_in, kb=k_block)" in str(found)
    assert blocked(lower(parse_spec(SCALED.replace("float8_e4m3fn", "float16")).at())) is not None  # for m alone
    one = SCALED.replace("E[m // 64]", "0").replace("E: {dims: [j], dtype: int32, below: e}", "").replace("j: 3, ", "")
    assert blocked(lower(parse_spec(one).at())) is not None
    assert blocked(lower(parse_spec(one.replace("float8_e4m3fn", "float16")).at())) is None


@pytest.mark.parametrize(
    "text",
    [
        experts(72, 16),  # the last block is short
        experts(64, 16).replace("m // 16]", "m // 16 + m % 2]").replace("j: 4", "j: 5"),  # a block has two matrices
        experts(64, 16).replace("X: [m, k]", "X: [k]"),  # the sum has nothing by position
    ],
)
def test_other_programs_are_as_they_were(text: str) -> None:
    assert blocked(lower(parse_spec(text).at())) is None


READ_AGAIN = experts(48, 16).replace("O = silu(", "Y = (").replace(" + Z", "\n  O = Y[47 - m, n] + Z")


def test_what_a_block_makes_is_read_by_its_positions() -> None:
    text = str(blocked(lower(parse_spec(READ_AGAIN).at())))
    assert "rename(Y; m_block=(-m_in + 15)//16 - m_block + 2, m_in=(-m_in + 15)%16)" in text


@pytest.mark.parametrize("text", [experts(48, 16), HEADS, READ_AGAIN])
def test_kernels_by_blocks_are_right(text: str, interpreter: Interpreter) -> None:
    assert problem(text, interpreter) is None


def test_it_is_as_fast_as_the_program_that_says_its_blocks() -> None:
    """Of 16 rows at once; and a plan that reads the matrix, or the row, of another block is refused."""
    program = parse_spec(experts(4096, 128, 1024, 2048)).at()
    found = search_program(program, H200, Options(budget_s=60.0, tune=False))
    assert found.plans and not found.rejected
    own = experts(4096, 128, 1024, 2048).replace(
        "  O = silu(dot(X, W[E[m // 128]", "  O[128*j + r, n] = silu(dot(X[128*j + r, k], W[E[j]"
    )
    own = own.replace(") + Z", ") + Z[128*j + r, n]").replace("dims: {", "dims: {r: 128, ")
    said = search_program(parse_spec(own).at(), H200, Options(budget_s=60.0, tune=False))
    assert found.plans[0].predicted_us <= 1.01 * said.plans[0].predicted_us
    text = print_mugraph(found.plans[0].graph)
    for right, wrong in (("[m_block], n", "[0], n"), ("load X[m_block*128", "load X[m_block*64")):
        assert right in text
        assert not check_equivalence(lower(program), parse_mugraph(text.replace(right, wrong)), 0).ok


def test_scales_of_three_axes_are_tested_in_turns() -> None:
    """Rows, columns and the summed axis are long in tests, but not all at once: wrong blocks of each are refused."""
    program = lower(parse_spec(SCALED).at())
    form = blocked(program)
    assert form is not None
    graph = search(form, H200, bounds=BEST).candidates[0].graph
    text = print_mugraph(graph)
    far = turns(program, graph)
    assert len(far) > 1
    assert all(any(i.lookups for _, i in read) for read in far)
    assert check_equivalence(program, graph, 0).ok
    for right, wrong in (("n//64", "n//32"), ("A[m_block*64 + m_in, k_block]", "A[m_block*64 + m_in, 0]")):
        assert right in text
        assert not check_equivalence(program, parse_mugraph(text.replace(right, wrong)), 0).ok
