"""Windows of several axes, reduced along one axis after the other."""

from __future__ import annotations

import pytest

from mirage_cli.algebra.decompose import decompose
from mirage_cli.ir.derived import lower
from mirage_cli.ir.precision import chosen_values
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.separable import separable
from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.interpreted import Interpreter
from tests.pipeline.test_random import problem

SPEC = """
name: windows
dims: {{y: 19, x: 21, i: 5, j: 5, u: 9, v: 10, p: 3, q: 3}}
dtype: float32
inputs: {{X: [y, x], Y: [y], G: [i], V: [y, i], W: [i, j]}}
program: |
  O = {program}
outputs: {{O: [{dims}]}}
"""
BOX = "sum(X[y + i - 2, x + j - 2], i, j) / 25"


def windows(program: str, dims: str = "y, x") -> str:
    return SPEC.format(program=program, dims=dims)


def separated(text: str) -> Program | None:
    return separable(lower(parse_spec(text).at()))


def test_a_window_is_summed_along_one_axis_after_the_other() -> None:
    found = separated(windows(BOX))
    assert found is not None
    assert [str(e) for e in found.eqns] == [
        "part[y, x, j] = rename(X; x=j + x - 2)",
        "t1_rest[y, x] = sum(part; j)",
        "t1_i[y, x, i] = rename(t1_rest; y=i + y - 2)",
        "t1[y, x] = sum(t1_i; i)",
        "O[y, x] = div(t1, 25)",
    ]
    assert found.internals == {"t1_rest"}


@pytest.mark.parametrize(
    ("program", "dims"),
    [
        pytest.param("sum(X[y + i - 2, x + j - 2] * G * G[j], i, j)", "y, x", id="factors"),
        pytest.param("sum(exp(X)[2*u + i - 1, 2*v + j - 3], i, j)", "u, v", id="steps of 2"),
        pytest.param(
            "sum(G / sum(G * G, i) * X[y + i - 2, x + j - 2] * X[y + i, x + j - 2], i, j)", "y, x", id="nested"
        ),
        pytest.param(
            "sum(where(index(i) < 3, X[y + i - 2, x + j - 2] * 0.5, 0), i, j)", "y, x", id="a mask of its own"
        ),
        pytest.param("sum(where(index(y) + index(i) < 9, X[y + i - 2, x + j], 0), i, j)", "y, x", id="a mask of both"),
        pytest.param("sum(X[y + i - 2, x + j - 2] * Y[y], i, j)", "y, x", id="a factor of the positions"),
        pytest.param("sum(X[y + i - 2, x + j - 2] * V * G[j], i, j)", "y, x", id="a factor of places and taps"),
        pytest.param("max(pad(X, -inf)[y + i - 2, x + j - 2], i, j)", "y, x", id="a maximum"),
        pytest.param("min(pad(X, inf)[2*u + i - 1, 2*v + j - 3], i, j)", "u, v", id="a minimum, steps of 2"),
        pytest.param("max(max(pad(X, -inf)[y + i - 2, x + j - 2], i), j)", "y, x", id="a maximum of maxima"),
    ],
)
def test_kernels_that_do_are_right(program: str, dims: str, interpreter: Interpreter) -> None:
    text = windows(program, dims)
    assert separated(text) is not None
    assert problem(text, interpreter) is None


@pytest.mark.parametrize(
    ("program", "dims"),
    [
        pytest.param("sum(X[y + i - 2, x + j - 2] * W, i, j)", "y, x", id="weights of both axes"),
        pytest.param("dot(X[y + i - 2, x + j - 2], W, i, j)", "y, x", id="a convolution"),
        pytest.param("sum(X[y + p - 1, x + q - 1], p, q)", "y, x", id="a small window"),
        pytest.param("sum(X[y + i + j - 4, x + j - 2], i, j)", "y, x", id="a skewed window"),
        pytest.param("sum(exp(X[y + i - 2, x + j - 2]), i, j)", "y, x", id="what is not 0 outside"),
        pytest.param(
            "sum(where(index(i) + index(j) < 6, X[y + i - 2, x + j - 2], 0), i, j)", "y, x", id="a mask of both"
        ),
        pytest.param("sum(where(index(i) < 3, X[y + i - 2, x + j - 2], 1), i, j)", "y, x", id="ones outside a mask"),
        pytest.param("max(X[y + i - 2, x + j - 2] * G[i], i, j)", "y, x", id="a maximum of products"),
        pytest.param("max(pad(X, 1)[y + i - 2, x + j - 2], i, j)", "y, x", id="a maximum with ones outside"),
        pytest.param(
            "max(where(index(y) + index(i) < 21 and index(x) + index(j) < 9, X[y + i - 2, x + j - 2], -inf), i, j)",
            "y, x",
            id="a maximum with zeros outside of a mask",
        ),
        pytest.param("max(X[y + i - 2, x + j - 2], i, j)", "y, x", id="a maximum with zeros outside"),
        pytest.param(
            "max(where(index(y) + index(i) - 2 >= 0 and index(x) + index(j) < 9, X[y + i - 2, x + j], -inf), i, j)",
            "y, x",
            id="a maximum with zeros on one side",
        ),
        pytest.param("sum(X[(y + i) % 19, x], i)", "y, x", id="one axis"),
        pytest.param("sum(G * X[y + 1, x], i) * sum(W, i, j)", "y, x", id="nothing read by the axis"),
        pytest.param("sum(X[5*p + i, 5*q + j], i, j)", "p, q", id="windows that do not overlap"),
    ],
)
def test_other_windows_are_as_they_were(program: str, dims: str) -> None:
    assert separated(windows(program, dims)) is None


@pytest.mark.parametrize(("program", "dtype"), [("X", "float16"), ("X * 2", None)])
def test_the_largest_element_of_16_bits_lies_in_memory_as_such(program: str, dtype: str | None) -> None:
    """It is as exact. What is computed of an input is not rounded before it is compared."""
    text = windows(f"max(pad({program}, -inf)[y + i - 2, x + j - 2], i, j)").replace("float32", "float16")
    p = separated(text)
    assert p is not None
    d = decompose(p)
    assert [d.rounded.get(f) for f in d.forms["O_rest"]] == [dtype]
    assert (chosen_values(p).keys() >= {"O_rest", "O"}) == (dtype is not None)


def test_kernels_that_keep_it_in_16_bits_are_right(interpreter: Interpreter) -> None:
    text = windows("max(pad(X, -inf)[y + i - 2, x + j - 2], i, j)").replace("float32", "float16")
    assert problem(text, interpreter) is None
