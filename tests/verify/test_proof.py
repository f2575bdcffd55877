"""The proof by canonical forms: what it sees, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest

from mirage_cli.algebra.canonical import Form
from mirage_cli.ir.program import Program
from mirage_cli.verify.axisclasses import same_axes
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.proof import Forms, program_forms, proved
from mirage_cli.verify.structure import structure_problem
from mirage_cli.verify.verdict import Verdict
from tests.mugraphs import CASES, Case, Write, case
from tests.rows import rows

HEAD = """
mugraph unsound float32
dims m=32 k=128
input X f32[m, k]
output Y f32[m]
"""


def is_proved(c: Case) -> bool:
    assert structure_problem(c.program, c.graph) is None
    return proved(c.program, c.graph, same_axes(c.program, c.graph))


@rows("name", CASES)
def test_right_graphs_are_proved(name: str) -> None:
    """All but one that reads pages along a split axis: a position in the whole is not one in a chunk."""
    assert is_proved(CASES[name]) == (name != "ragged")


def split(first: str, second: str) -> str:
    """A μGraph whose two kernels are a split of k and its merge."""
    return f"""{HEAD}buffer P f32[k_split, m]
kernel k0 generated m:grid k:split
  X = load X[m, k]
  {first}
  store P[k_split, m] = A
kernel k1 generated m:grid k_split:loop
  P = load P[k_split, m]
  {second}
  store Y[m] = Y
"""


def total(w: Write) -> None:
    w.sum("Y", "X", over="k")


def squares(w: Write) -> None:
    w.mul("S", "X", "X")
    w.sum("Y", "S", over="k")


def mean_of_one(w: Write) -> None:
    w.mul("Z", "X", 0)
    w.add("O", "Z", 1)
    w.sum("Y", "O", over="k")


def infinite(w: Write) -> None:
    w.max("Y", "X", over="k")


NOT_PROVED: dict[str, tuple[str, Callable[[Write], None]]] = {
    "squares of the chunks' sums": (
        split("A[m] = sum(X; k)", "S[m, k_split] = mul(P, P)\n  Y[m] = sum(S; k_split)"),
        squares,
    ),
    "the largest of the chunks' sums": (split("A[m] = sum(X; k)", "Y[m] = max(P; k_split)"), total),
    "sums of the chunks' maxima": (split("A[m] = max(X; k)", "Y[m] = sum(P; k_split)"), infinite),
    "infinities that cancel": (
        f"""{HEAD}kernel k0 generated m:grid k:loop
  X = load X[m, k]
  M[m] = max(X; k)
  A[m] = add(M, inf)
  Y[m] = sub(A, inf)
  store Y[m] = Y
""",
        infinite,
    ),
}


@pytest.mark.parametrize("name", NOT_PROVED)
def test_what_is_wrong_is_not_proved(name: str) -> None:
    wrong = case(*NOT_PROVED[name])
    assert not is_proved(wrong)
    assert not check_equivalence(wrong.program, wrong.graph, 0).ok


def test_sums_and_maxima_of_chunks_are_merged() -> None:
    merged = split("A[m] = sum(X; k)", "Y[m] = sum(P; k_split)")
    assert is_proved(case(merged, total))
    assert is_proved(case(merged.replace("sum(", "max("), infinite))


def test_chunks_that_differ_in_size_prove_nothing() -> None:
    """A sum of ones over a chunk is the chunk's size, and the chunks' sizes are known to nobody."""
    ones = "Z[m, k] = mul(X, 0)\n  O[m, k] = add(Z, 1)\n  A[m] = sum(O; k)"
    right = case(split(ones, "Y[m] = sum(P; k_split)"), mean_of_one)
    assert not is_proved(right)


def test_the_forms_of_a_program_serve_all_its_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are worked out once for plans that split the same axes, and a plan that is not proved, since its chunks
    differ in size, leaves nothing behind for the one after it."""
    worked_out: list[str] = []
    of_program = Forms.of_program

    def noting(self: Forms, program: Program) -> dict[str, Form]:
        worked_out.append(program.name)
        return of_program(self, program)

    monkeypatch.setattr(Forms, "of_program", noting)
    program_forms.cache_clear()
    ones = "Z[m, k] = mul(X, 0)\n  O[m, k] = add(Z, 1)\n  A[m] = sum(O; k)\n  T[m] = sum(X; k)"
    sizes = split(ones, "Y[m] = sum(P; k_split)").replace("P[k_split, m] = A", "P[k_split, m] = T")
    sums = split("A[m] = sum(X; k)", "Y[m] = sum(P; k_split)")
    assert [is_proved(case(text, total)) for text in (sums, sizes, sums)] == [True, False, True]
    assert len(worked_out) == 1


def test_a_position_along_a_split_axis_is_that_along_the_whole() -> None:
    text = split("i[k] = index(k)\n  W[m, k] = mul(X, i)\n  A[m] = sum(W; k)", "Y[m] = sum(P; k_split)")

    def weighted(w: Write) -> None:
        w.index("i", over="k")
        w.mul("W", "i", "X")
        w.sum("Y", "W", over="k")

    assert is_proved(case(text, weighted))


def test_a_verdict_is_read_back_also_from_a_version_that_made_no_claim() -> None:
    c = CASES["attention"]
    verdict = check_equivalence(c.program, c.graph, 0)
    assert Verdict.from_json(asdict(verdict)) == verdict
    names = ("ok", "net", "bound", "detail", "counterexample", "assumes")
    old = Verdict.from_json({name: asdict(verdict)[name] for name in names})
    assert old.claim.startswith("tested, false accept below 2^-") and not old.proved


def test_what_is_outside_the_bound_is_named_with_its_operators() -> None:
    def outside(name: str) -> list[str]:
        verdict = check_equivalence(CASES[name].program, CASES[name].graph, 0, tests=1)
        return [x.split(" (")[0] for x in verdict.outside]

    assert outside("matmul") == ["rounding in float16"]
    assert outside("rmsnorm_linear") == ["rsqrt, sqrt", "rounding in float16"]
    assert outside("causal_attention") == ["exp, exp_sub", "max", "ge, le", "rounding in float16"]
    assert outside("two_outputs") == ["max, maximum, minimum, relu", "rounding in float16"]
    assert outside("roots") == ["pow, sqrt", "rounding in float32"]
