"""Plans that count positions in parts, or by the index that something is read by, as the program does not."""

from __future__ import annotations

from functools import cache

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify import equivalence
from mirage_cli.verify.equivalence import check_equivalence

PARTS = """
name: parts
dims: {{p: 100, r: 64}}
inputs: {{W: [p, r], Y: [p]}}
program: |
  A = {}
  O = {}
outputs: {{O: [p]}}
"""
READ = """
name: read
dims: {{h: 257, m: 100, v: 4}}
dtype: float32
inputs: {{T: [h]}}
program: |
  B = where(index(h) {}, T, 0)
  D = B[{}]
  E = B[{}]
outputs: {{D: [m, v], E: [m, v]}}
"""


@cache
def found(text: str) -> tuple[Program, tuple[Plan, ...]]:
    """What the search finds, of which the verifier refuses nothing."""
    program = parse_spec(text).at()
    found = search_program(program, find_target("h100"), Options(budget_s=60, tune=False))
    assert found.plans and not found.rejected, found.rejected
    return lower(program), found.plans


def refused(program: Program, plan: Plan, right: str, wrong: str) -> bool:
    text = canonical_text(plan.graph)
    assert right in text, text
    return not check_equivalence(program, parse_mugraph(text.replace(right, wrong)), seed=1).ok


@pytest.mark.parametrize(
    ("chosen", "summed"),
    [
        ("where(index(r) == 35, W, Y)", "sum(A * index(r), r)"),
        ("where(index(r) <= 35, W, Y)", "sum(where(index(r) >= 2 * index(p), A, 0), r)"),
        ("where(index(r) <= 35, Y * index(r), W)", "sum(A, r)"),
        ("where(index(r) <= 35, Y * index(r), where(index(r) == 36, Y, W))", "sum(A, r)"),
        ("where(index(r) <= 35, W, where(index(r) <= 50, Y * index(r), 2 * W))", "sum(A * index(r), r)"),
    ],
)
def test_an_axis_whose_positions_are_counted_in_parts(chosen: str, summed: str) -> None:
    _, plans = found(PARTS.format(chosen, summed))
    assert any(len(p.graph.sizes.keys() - {"p", "r"}) > 1 for p in plans), "none has parts"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("index(r2 + 36)", "index(r2 + 37)"),
        ("index(r2 + 36)", "index(r2 + 35)"),
        ("index(35)", "index(34)"),
        ("load W[p, 35]", "load W[p, 36]"),
        ("r1=35 r2=28", "r1=34 r2=28"),
        ("r1=35 r2=28", "r1=35 r2=27"),
    ],
)
def test_other_parts_are_refused(right: str, wrong: str) -> None:
    program, plans = found(PARTS.format("where(index(r) == 35, W, Y)", "sum(A * index(r), r)"))
    one = next(p for p in plans if len(p.graph.kernels) == 1 and "r2" in p.graph.sizes)
    assert refused(program, one, right, wrong)


@pytest.mark.parametrize(
    ("mask", "far", "near"),
    [
        ("<= 75", "v + m + 175", "v + m + 175"),  # behind all that the mask lets through, at any size
        ("<= 75", "v + m + 120", "v + m"),  # which comes to 75 in full
        ("<= 75", "v + m", "150 - m - v"),
    ],
)
def test_a_number_that_another_index_does_not_come_to(mask: str, far: str, near: str) -> None:
    program, plans = found(READ.format(mask, far, near))
    one = next(p for p in plans if len(p.graph.kernels) == 1)
    number = mask.split()[1]
    compared = [line for line in canonical_text(one.graph).split("\n") if f", {number})" in line]
    assert compared
    if far != near:
        line = compared[-1]
        for wrong in (int(number) - 1, int(number) + 1):
            assert refused(program, one, line, line.replace(f", {number})", f", {wrong})"))


def test_a_number_that_only_another_index_comes_to_at_small_sizes() -> None:
    """Then the axis is long enough for it too."""
    text = """
name: outer
dims: {i: 7, n: 7, z: 6, w: 9}
dtype: float32
inputs: {X: [z]}
program: |
  A = where(index(n) < 3, X[5 - n], 0)
  O = A[2*w + i - 3]
outputs: {O: [i, w]}
"""
    program, plans = found(text)
    one = next(p for p in plans if len(p.graph.kernels) == 1)
    assert refused(program, one, ", 3)", ", 2)")
    assert refused(program, one, ", 3)", ", 4)")


def test_chunks_end_nowhere_where_positions_are_compared_with_the_first() -> None:
    """Plans in chunks of a sum: those have no size yet."""
    text = """
name: chunks
dims: {m: 16, k: 1024, n: 64}
inputs: {X: [m, k], A: [n, k]}
program: O = dot(X, where(index(k) > 0, A, 0), k)
outputs: {O: [m, n]}
"""
    _, plans = found(text)
    assert any(k.with_role("split") for p in plans for k in p.graph.kernels)


WINDOWS = """
name: windows
dims: {{x: 8, u: 8, p: 30, q: 3}}
dtype: float32
inputs: {{A: [p], B: [q, x], C: [p, x]}}
program: |
  Y = where(index(u) {})
  O = {}
outputs: {{O: [x]}}
"""


@pytest.mark.parametrize("reduced", ["max(Y, u)", "sum(Y * Y, u)"])
@pytest.mark.parametrize(
    "chosen",
    [
        ">= 7, A[3*u + 1], B[u + x - 1, x]",
        ">= 3, A[3*u + 1], B[u + x - 1, x]",
        "<= 2, C[2*u + x, x], B[u + x - 1, x]",
        "<= 4, B[u + x - 1, x], C[u + 2*x, x]",
    ],
)
def test_windows_that_lie_one_behind_another(chosen: str, reduced: str) -> None:
    """Each is read along its part alone, by an index with other axes or a step."""
    _, plans = found(WINDOWS.format(chosen, reduced))
    assert any(p.graph.sizes.keys() - {"x", "u", "p", "q"} for p in plans), "none has parts"


@pytest.mark.parametrize(
    ("right", "wrong"), [("x*2 + q + 5", "x*2 + q + 6"), ("u1 + x - 1", "u1 + x - 2"), ("x*2 + q + 5", "x + q + 5")]
)
def test_other_windows_behind_another_are_refused(right: str, wrong: str) -> None:
    program, plans = found(WINDOWS.format("<= 4, B[u + x - 1, x], C[u + 2*x, x]", "max(Y, u)"))
    some = [p for p in plans if right in canonical_text(p.graph)]
    assert some
    assert all(refused(program, p, right, wrong) for p in some)


JOINED = """
name: joined
dims: {{b: 5, j: 24, k: 40, t: 64}}
dtype: float32
inputs: {{X: [b, j], Y: [b, k]}}
program: |
  C = where(index(t) < 24, X[b, t], Y[b, t - 24])
  O = {}
outputs: {{O: {}}}
"""


@pytest.mark.parametrize(
    ("reduced", "axes"), [("max(C, t)", "[b]"), ("logsumexp(C, t)", "[b]"), ("softmax(C, t)", "[b, t]")]
)
def test_a_part_that_ends_where_a_mask_does_is_there(reduced: str, axes: str) -> None:
    """A shorter X would be 0 up to position 24: no number that a sum counts, and one that a maximum does."""
    _, plans = found(JOINED.format(reduced, axes))
    assert any(d == i.axis == "j" for p in plans for d, i in p.graph.accesses()), "none has parts"


ENDED = """
name: ended
dims: {b: 3, j: 16, t: 20}
dtype: float32
inputs: {X: [b, j]}
program: |
  O = where(index(t) < 16, X[b, t], 0)
outputs: {O: [b, t]}
"""


def test_a_mask_that_ends_before_what_it_chooses_is_refused() -> None:
    """Where the last of X lies outside in tests, it is 0, as what the mask chooses instead."""
    program, plans = found(ENDED)
    assert all(refused(program, p, "lt(t0, 16)", "lt(t0, 15)") for p in plans)


BEHIND = """
name: behind
dims: {b: 2, a: 2, c: 1, t: 3}
dtype: float32
inputs: {X: [b, a], Y: [b, c]}
program: |
  C = where(index(t) < 2, X[b, t], Y[b, t - 2])
  O = C[b, t + 2]
outputs: {O: [b, t]}
"""


@pytest.mark.parametrize("at_once", [1, 64])
def test_a_comparison_that_the_program_does_not_make_is_drawn_until_it_would_be_seen(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below 2 are all positions t - 2, none of which comes to 2: tests take the comparison for random, and one element
    alone depends on it. at_once: how many draws of a block are run together."""
    monkeypatch.setattr(equivalence, "at_once", lambda _: at_once)
    program, plans = found(BEHIND)
    fused = parse_mugraph(canonical_text(plans[0].graph).replace("index(t + 2)", "index(t - 2)"))
    assert fused != plans[0].graph and len(fused.kernels) == 1
    for _ in range(2):  # what was computed may be found the second time
        assert not any(check_equivalence(program, fused, seed).ok for seed in range(24))


def test_a_sum_over_two_values_joined_in_both_operands() -> None:
    """Tests have all of the second part, as the program has: an axis of its own, and what is left of the joined one."""
    text = """
name: joined
dims: {m: 64, n: 80, r: 32, e: 64, d: 96}
inputs: {Q: [m, r], P: [m, e], K: [n, r], R: [n, e]}
program: |
  A = where(index(d) < 32, Q[m, d], P[m, d - 32])
  B = where(index(d) < 32, K[n, d], R[n, d - 32])
  O = dot(A, B, d)
outputs: {O: [m, n]}
"""
    program, plans = found(text)
    one = next(p for p in plans if len(p.graph.kernels) == 1 and "d" not in dict(p.graph.kernels[0].roles))
    assert refused(program, one, "load R[n, e]", "load R[n, e + 1]")
    assert refused(program, one, "load R[n, e]", "load R[n, 63 - e]")


def test_what_is_read_outside_of_a_part_and_not_chosen_leaves_nothing_in_doubt() -> None:
    """The norm of a row of zeros is the root of a number that may be no square."""
    text = """
name: norms
dims: {t: 80, p: 30, q: 50, d: 8}
inputs: {A: [p, d], B: [q, d], G: [d]}
program: |
  N = rms_norm(A, d, eps=1e-6) * G
  M = rms_norm(B, d, eps=1e-6)
  O = where(index(t) < 30, N[t, d], M[t - 30, d])
outputs: {O: [t, d]}
"""
    program, plans = found(text)
    one = next(p for p in plans if "load B[t - 30, d]" in canonical_text(p.graph))
    assert refused(program, one, "load B[t - 30, d]", "load B[t - 29, d]")
    assert refused(program, one, "load A[t, d]", "load A[t + 1, d]")
