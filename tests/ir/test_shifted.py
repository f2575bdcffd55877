"""Extrema that are subtracted twice."""

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.shifts import shifted_once
from mirage_cli.spec.reader import parse_spec

TEXT = """
name: shifted
dims: {{m: 4, k: 6}}
dtype: float32
inputs: {{X: [m, k], C: [m], D: [m, k]}}
program: |
  Y = {}
outputs: {{O: [m, k]}}
"""


def of(lines: str) -> Program:
    return lower(parse_spec(TEXT.format(lines.replace("; ", "\n  "))).at())


@pytest.mark.parametrize("op", ["max", "min"])
def test_it_is_subtracted_once(op: str) -> None:
    found = shifted_once(of(f"X - C; O = Y - {op}(Y, k) + D + C"))
    assert str(found) == str(shifted_once(found))
    assert [(e.op, e.args) for e in found.eqns[:2]] == [(op, ("X",)), ("sub", ("X", found.eqns[0].out))]
    assert "C" in str(found.eqns), "what else reads it does"


def test_a_maximum_that_is_there_is_not_made_again() -> None:
    found = shifted_once(of("X - max(X, k); O = exp(Y - max(Y, k)) + C + D"))
    assert [e.op for e in found.eqns] == ["max", "sub", "exp", "add", "add"]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("X - D; O = Y - max(Y, k) + C", id="what is subtracted differs along the axis"),
        pytest.param("X - C; O = Y - max(Y, m) + D", id="another axis, along which it differs"),
        pytest.param("X - C; O = Y - max(D, k)", id="of another value"),
        pytest.param("X - C; O = Y - sum(Y, k) + D", id="no extremum"),
        pytest.param("X + C; O = Y - max(Y, k) + D", id="added, as of numbers a logsumexp takes off"),
    ],
)
def test_what_is_something_else_stays(lines: str) -> None:
    program = of(lines)
    assert shifted_once(program) is program
