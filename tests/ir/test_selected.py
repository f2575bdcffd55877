"""Reductions over an axis of which a mask leaves one position."""

from __future__ import annotations

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.selected import selected
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from tests.pipeline.test_random import problem

INPUTS = {
    "X": "[k]", "Y": "[k, n]", "A": "[i, k]", "M": "{dims: [k, n], dtype: bool}",
    "T": "{dims: [i], dtype: int32, below: 37}",
}  # fmt: skip


def spec(value: str, dims: str) -> str:
    inputs = ", ".join(f"{name}: {tensor}" for name, tensor in INPUTS.items() if name in value)
    return (
        "name: chosen\ndims: {i: 37, k: 37, j: 36, n: 19}\ndtype: float32\n"
        f"inputs: {{{inputs}}}\nprogram: |\n  O = {value}\noutputs: {{O: [{dims}]}}\n"
    )


def read(value: str, dims: str) -> Program | None:
    return selected(lower(parse_spec(spec(value, dims)).at()))


READ = {
    ("dot(where(index(i) == index(k), X, 0), Y, k)", "i, n"): [
        "t3_there[i] = rename(X; k=i)",
        "Y_there[i, n] = rename(Y; k=i)",
        "O[i, n] = mul(t3_there, Y_there)",
    ],
    ("dot(Y, where(index(k) == index(j) + 1, X, 0), k)", "j, n"): [
        "Y_there[j, n] = rename(Y; k=j + 1)",
        "t4_there[j] = rename(X; k=j + 1)",
        "O[j, n] = mul(Y_there, t4_there)",
    ],
    ("dot(where(index(k) == index(i), Y, 0), Y, k, n)", "i"): [
        "t3_there[i, n] = rename(Y; k=i)",
        "Y_there[i, n] = rename(Y; k=i)",
        "O[i] = dot(t3_there, Y_there; n)",
    ],
    ("sum(where(index(i) == index(k), A, 0), k)", "i"): ["O[i] = rename(A; k=i)"],
    ("max(where(index(k) - 1 == index(j) and M, Y, -inf), k)", "j, n"): [
        "M_there[j, n] = rename(M; k=j + 1)",
        "t5_value[j, n] = rename(Y; k=j + 1)",
        "O[j, n] = where(M_there, t5_value, -inf)",
    ],
}


@pytest.mark.parametrize(("value", "dims"), READ)
def test_the_one_position_is_read(value: str, dims: str, interpreter: Interpreter) -> None:
    form = read(value, dims)
    assert form is not None
    assert [str(e) for e in form.eqns] == READ[value, dims]
    assert problem(spec(value, dims), interpreter) is None


NOT_READ = {
    "another number outside": ("sum(where(index(i) == index(k), X, 1), k)", "i"),
    "beyond the axis": ("sum(where(index(k) == index(i) + 1, X, 0), k)", "i"),
    "a number that the fields take comparisons with for random": (
        "sum(where(index(k) == 36 - index(i), X, 0), k)",
        "i",
    ),
    "a remainder, which the fields take for random": ("sum(where(index(k) == (index(i) + 1) % 37, X, 0), k)", "i"),
    "not one position": ("sum(where(index(k) <= index(i), X, 0), k)", "i"),
    "what a table names": ("sum(where(index(k) == T, X, 0), k)", "i"),
    "more than what is masked": ("dot(where(index(i) == index(k), X, 0) + 1, Y, k)", "i, n"),
    "a place that is reduced too": ("sum(where(index(i) == index(k), A, 0), i, k)", ""),
}


@pytest.mark.parametrize("which", NOT_READ)
def test_others_are_reduced(which: str) -> None:
    assert read(*NOT_READ[which]) is None


def test_where_the_verifier_refuses_this_form_the_program_is_searched_as_it_is_written() -> None:
    """`index(k) < 2` holds everywhere, but fields take it for random: of one position i they know it."""
    text = spec("dot(where(index(k) == index(i) and index(k) < 2, X, 0), Y, k)", "i, n")
    text = text.replace("i: 37, k: 37", "i: 1, k: 2")
    found = search_program(parse_spec(text).at(), find_target("h200"), Options(budget_s=60.0, tune=False))
    assert found.rejected and found.plans
    assert found.as_written in {p.id for p in found.plans}
