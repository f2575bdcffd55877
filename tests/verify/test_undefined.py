"""Rows that are masked out whole have no value, and a test that met nothing else has proved nothing."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.degree import claim
from mirage_cli.verify.draws import Draws
from mirage_cli.verify.equivalence import REDRAWS, Series, check_equivalence
from mirage_cli.verify.reduced import small_instance
from mirage_cli.verify.verdict import NO_BOUND, accepted
from tests.mugraphs import CASES, Case, Write, case
from tests.seeds import over_seeds

DOCUMENTS = """
mugraph documents float16
dims q=16 s=32
input A f16[q, s]
input U i32[q]
input T i32[s]
output P f16[q, s]
kernel k0 generated q:grid s:tile
  A = load A[q, s]
  U = load U[q]
  T = load T[s]
  C[q, s] = eq(U, T)
  B[q, s] = where(C, A, -inf)
  M[q] = max(B; s)
  E[q, s] = exp_sub(B, M)
  L[q] = sum(E; s)
  P[q, s] = div(E, L)
  store P[q, s] = P
"""


def documents(w: Write) -> None:
    w.eq("C", "U", "T")
    w.where("B", "C", "A", -inf)
    w.exp("E", "B")
    w.sum("L", "E", over="s")
    w.div("P", "E", "L")


def nothing(w: Write) -> None:
    """The same, with a mask that holds nowhere."""
    w.ne("C", "U", "U")
    w.where("B", "C", "A", -inf)
    w.exp("E", "B")
    w.sum("L", "E", over="s")
    w.div("P", "E", "L")


@pytest.fixture(scope="module")
def right() -> Case:
    return case(DOCUMENTS, documents)


@over_seeds(range(24))
def test_masks_of_integers_are_compared_where_they_hold(right: Case, seed: int) -> None:
    verdict = check_equivalence(right.program, right.graph, seed)
    assert verdict.ok, verdict
    assert 0 < verdict.bound < 2.0**-20


@over_seeds(range(24))
@pytest.mark.parametrize(
    "edit", [("eq(U, T)", "le(U, T)"), ("div(E, L)", "mul(E, L)"), ("where(C, A, -inf)", "where(C, A, 0)")]
)
def test_wrong_masks_of_integers_are_refused(right: Case, edit: tuple[str, str], seed: int) -> None:
    assert edit[0] in DOCUMENTS
    wrong = case(DOCUMENTS.replace(*edit), documents)
    assert not check_equivalence(right.program, wrong.graph, seed).ok


SPEC = """
name: documents
dims: {q: 16, s: 32}
dtype: float16
inputs:
  A: [q, s]
  U: {dims: [q], dtype: int32}
  T: {dims: [s], dtype: int32}
program: |
  P = softmax(where(U == T, A, -inf), s)
outputs: {P: [q, s]}
"""


def test_every_plan_of_a_document_mask_is_verified() -> None:
    found = search_program(parse_spec(SPEC).at(), find_target("h100"), Options(tune=False))
    assert found.plans and not found.rejected and found.stopped == "exhausted"
    assert all(0 < p.verdict.bound < 2.0**-20 for p in found.plans)


def test_what_was_undefined_in_every_draw_is_not_claimed() -> None:
    text = DOCUMENTS.replace("C[q, s] = eq(U, T)", "C[q] = ne(U, U)").replace("  T = load T[s]\n", "")
    masked = case(text, nothing)
    verdict = check_equivalence(masked.program, masked.graph, 0)
    assert not verdict.ok
    assert "undefined in every draw" in verdict.detail


def test_a_test_that_compared_nothing_bounds_nothing(right: Case) -> None:
    empty = claim(right.program, right.graph, [set()])
    assert empty.bound == 1
    assert NO_BOUND in accepted(right.program, right.graph, [empty], proved=False).claim


def test_a_bound_is_never_zero(right: Case) -> None:
    claims = [replace(claim(right.program, right.graph, [set()]), bound=1e-300)] * 3
    assert accepted(right.program, right.graph, claims, proved=False).bound > 0


def test_draws_that_bring_nothing_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program settles an element that the μGraph leaves in doubt: every draw is useful, and none tells anything."""
    case = CASES["rmsnorm_linear"]
    draws: list[int] = []

    def brings_nothing(_: object, run: Draws, *, doubtful: bool) -> list[set[str]]:
        assert not doubtful
        draws.extend(run.draws)
        assert len(draws) < 10_000, "draws without end"
        return [{t.name for t in case.program.outputs} for _ in run.draws]

    monkeypatch.setattr(Series, "compare", brings_nothing)
    series = Series(case.program, case.graph, *small_instance(case.program, case.graph, 0), 0)
    assert series.run(REDRAWS) is None
    assert draws


SELDOM = """
name: seldom
dims: {m: 64, g: 8}
dtype: float32
inputs: {Y: [m], C: {dims: [m], dtype: int8, below: 80}}
program: |
  n = sum(where(C == index(g), 1.0, 0.0), m, g)
  O = sum(Y, m) / n
outputs: {O: []}
"""


@over_seeds(range(4))
def test_an_output_that_seldom_has_a_value_is_compared(seed: int) -> None:
    """Draws in which it has none tell nothing once there were eight, and take no other draw's place."""
    program = parse_spec(SELDOM).at()
    found = search_program(program, find_target("h100"), Options(tune=False, seed=seed))
    assert found.plans and not found.rejected
