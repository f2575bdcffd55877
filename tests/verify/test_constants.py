"""Values that are constant since their terms cancel: the search makes numbers of them, the program does not.

To the verifier the two must be the same, whatever is done with them, and other numbers must be others.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from mirage_cli.errors import NumberError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.searching import Found, Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.floatsemantics import FloatSemantics
from mirage_cli.verify.interpret import run_mugraph, run_program
from mirage_cli.verify.semantics import Named

SPEC = """
name: constant
dims: {{m: 8, n: 5}}
dtype: float32
inputs:
  X: [m, n]
program: |
  A = X - X
  B = {}
outputs:
  B: [m, n]
"""
CONSTANTS = ("A", "A + 1", "A - 1", "A - 2", "A + 9", "A + 0.5")
OPPOSITES = (("<", ">="), ("<=", ">"), ("==", "!="))
SYMBOLS = [symbol for pair in OPPOSITES for symbol in pair]
UNARY = [n for n, row in OPS.items() if row.kind == "elementwise" and row.arity == 1 and row.result != "bool"]
UNDEFINED_AT_ZERO = ("reciprocal", "rsqrt", "log")
UNDEFINED_BELOW = ("sqrt", "rsqrt", "log")


def parsed(expression: str) -> Program:
    return parse_spec(SPEC.format(expression)).at()


def search(program: Program) -> Found:
    return search_program(program, find_target("h100"), Options(budget_s=20.0))


def expressions() -> list[str]:
    """Of each number: every function of it, and for each other operand every comparison with it. The parts of a sum
    have weights that tell them apart: each that is another shows in the sum."""
    found = ["where(index(m) > 0, A, X)"]
    for c in CONSTANTS:
        undefined = UNDEFINED_AT_ZERO if c == "A" else UNDEFINED_BELOW if "-" in c else ()
        found.append(weighted([f"{name}({c})" for name in UNARY if name not in (*undefined, "neg")]) + " + X")
        found.append(f"X - {c}")
        others = ("A", "1", "X", "index(m)", c)
        found += [weighted([f"{name}({c}, {x})" for name in ("maximum", "minimum")]) + " + X" for x in others]
        found += [weighted([f"where({x} {symbol} {c}, X, 0)" for symbol in SYMBOLS]) for x in ("A + 1", c)]
        for x in ("index(m)", "X"):  # masks that stay: each pair of opposites
            found += [weighted([f"where({x} {s} {c}, X, 0)" for s in pair]) for pair in OPPOSITES]
    return found


def weighted(parts: list[str]) -> str:
    return " + ".join(f"{2**i} * {x}" for i, x in enumerate(parts))


@pytest.mark.parametrize("expression", expressions())
def test_cancelled_terms_are_their_number(expression: str) -> None:
    """Nothing that the search makes is refused, and at full size it is what the program is in float64."""
    program = parsed(expression)
    found = search(program)
    assert found.plans and not found.rejected, found.rejected
    inputs = {"X": np.random.default_rng(0).normal(size=(8, 5))}
    values = {"X": Named(("m", "n"), inputs["X"])}
    want = run_program(lower(program), values, FloatSemantics(program.sizes))["B"]
    for plan in found.plans:
        got = run_mugraph(plan.graph, plan.schedule, inputs, FloatSemantics(program.sizes))["B"]
        assert want.dims == got.dims == ("m", "n")
        np.testing.assert_allclose(got.data, want.data, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("maximum(A, 1) + X", "minimum(A, 1) + X"),
        ("maximum(A, A) + X", "maximum(A, A + 1) + X"),
        ("relu(A - 1) + X", "A - 1 + X"),
        ("relu(A + 2) + X", "relu(A + 3) + X"),
        ("abs(A) + X", "abs(A + 1) + X"),
        ("where(A < 1, X, 0)", "where(A > 1, X, 0)"),
        ("where(A <= A, X, 0)", "where(A < A, X, 0)"),
        ("where(index(m) > A, X, 0)", "where(index(m) >= A, X, 0)"),
        ("where(index(m) < A + 2, X, 0)", "where(index(m) < A + 3, X, 0)"),
        ("where(X < A, X, 0)", "where(X <= A, X, 0)"),
        ("where(where(index(m) > 0, X, 0) < 1, X, 0)", "where(where(index(m) > 0, X, 0) > 1, X, 0)"),
    ],
)
def test_other_numbers_are_refused(right: str, wrong: str) -> None:
    for program, other in ((right, wrong), (wrong, right)):
        for plan in search(parsed(other)).plans:
            assert not check_equivalence(lower(parsed(program)), plan.graph, 0).ok


def test_numbers_are_never_multiplied_beyond_float64() -> None:
    for expression in ("X * 3e200 * 1e300", "X * 3e-200 * 1e-300", "where(X > 0, X, inf) * 1e300 * 1e300"):
        program = parsed(expression)
        found = search(program)
        assert found.plans and not found.rejected
        numbers = [a for p in found.plans for k in p.graph.kernels for e in k.body for a in e.args]
        assert all(x == 0 or math.isfinite(1 / float(x)) for x in numbers if isinstance(x, Fraction))
    with pytest.raises(NumberError, match="the numbers that make B come to one beyond float64"):
        search(parsed("(A + 1e300) * 1e300 * X"))


BLOCKS = """
name: blocks
dims: {m: 40, k: 48}
dtype: float32
inputs: {X: [m, k], Y: [m, k]}
program: O = where(index(k) < 16, X[m, 2 * k + 17], Y)
outputs: {O: [m, k]}
"""


@pytest.mark.parametrize("edit", [("< 16", "< 15"), ("< 16", "<= 16"), ("< 16", "> 16"), ("< 16", "< 32")])
def test_masks_of_positions_on_both_sides_of_a_number_are_compared_as_they_are(edit: tuple[str, str]) -> None:
    """The axis is as long as it is, for what is read of X: so one mask may be another, written otherwise."""
    program, other = lower(parse_spec(BLOCKS).at()), parse_spec(BLOCKS.replace(*edit)).at()
    same = parse_spec(BLOCKS.replace("where(index(k) < 16", "where(index(k) <= 15")).at()
    assert check_equivalence(program, search(same).plans[0].graph, 0).ok
    assert not check_equivalence(program, search(other).plans[0].graph, 0).ok
