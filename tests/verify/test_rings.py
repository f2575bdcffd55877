"""Indices that go round an axis go round the reduced axis in tests: none has to be as long as the program's."""

from __future__ import annotations

import math

import pytest

from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.predicting import judge_small
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter, reduced_sizes
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.reduced import small_instance
from mirage_cli.verify.rings import around, large_enough_around
from tests.searched import BEST

TORUS = """
name: torus
dims: {y: 8192, x: 16384}
dtype: float32
inputs: {X: [y, x]}
program: |
  F = exp(X) + index(y)
  O = F[(y + 1) % 8192, x] + 2 * F[(y + 8190) % 8192, x] - F[y, (x + 16383) % 16384] * F[y, (x + 1) % 16384]
outputs: {O: [y, x]}
"""


def planned(spec: str) -> tuple[Program, Plan]:
    """The program and its best plan, of a search that refuses none."""
    program = parse_spec(spec).at()
    found = search_program(program, find_target("h100"), Options(bounds=BEST, tune=False))
    assert found.stopped == "exhausted"
    assert not found.rejected
    return lower(program), found.plans[0]


def tells_apart(program: Program, plan: Plan, edit: tuple[str, str]) -> bool:
    """Whether the verifier takes the plan as it is, and refuses it with another index."""
    text = print_mugraph(plan.graph)
    assert edit[0] in text
    right, wrong = (check_equivalence(program, parse_mugraph(x), 0).ok for x in (text, text.replace(*edit)))
    return right and not wrong


@pytest.fixture(scope="module")
def torus() -> tuple[Program, Plan]:
    return planned(TORUS)


def test_axes_stay_short(torus: tuple[Program, Plan]) -> None:
    program, plan = torus
    assert math.prod(small_instance(program, plan.graph, 0)[0].values()) < 100
    assert math.prod(reduced_sizes(program, graph=plan.graph).values()) < 2000


def test_kernels_run_in_the_interpreter_at_short_axes(torus: tuple[Program, Plan]) -> None:
    program, plan = torus
    with Interpreter() as interpreter:
        assert judge_small(interpreter, program, plan.graph, plan.schedule).ok


@pytest.mark.parametrize(
    "edit",
    [
        ("(y + 1)%8192", "y"),
        ("(y + 1)%8192", "y + 1"),
        ("(y + 1)%8192", "(y + 2)%8192"),
        ("(y + 1)%8192", "(y + 6)%8192"),
        ("(y + 8190)%8192", "(y + 8189)%8192"),
        ("(y + 8190)%8192", "(y + 8190)%16384"),
        ("(x + 16383)%16384", "(x + 8191)%16384"),
        ("(x + 16383)%16384", "x - 1"),
        ("index((y + 1)%8192)", "index((y + 8191)%8192)"),
    ],
)
def test_wrong_steps_are_refused(torus: tuple[Program, Plan], edit: tuple[str, str]) -> None:
    assert tells_apart(*torus, edit)


@pytest.mark.parametrize(
    ("at", "small"),
    [
        ("(y + 1)%64", "(y + 1)%7"),
        ("(y + 62)%64", "(y + 5)%7"),
        ("(y + i + 63)%64", "(y + i + 6)%7"),
        ("2*((y + 1)%64) + 1", "2*((y + 1)%7) + 1"),
        ("(y + 4)%64", "(y + 4)%64"),  # 4 steps forward are 3 back
        ("(y + 32)%64", "(y + 32)%64"),
        ("(y + 1)%32", "(y + 1)%32"),  # no ring of y
        ("(2*y + 1)%64", "(2*y + 1)%64"),
        ("(y + T{64}[b])%64", "(y + T{64}[b])%64"),
    ],
)
def test_a_ring_is_of_the_axis_that_there_is(at: str, small: str) -> None:
    old, new = {"y": 64, "i": 3, "b": 4}, {"y": 7, "i": 3, "b": 2}
    assert around(parse_index(at), old, new) == parse_index(small)


WINDOWS = """
name: shifted_windows
dims: {u: 80, i: 7, p: 7, y: 560, d: 4}
dtype: float32
inputs: {X: [y, d], W: {dims: [i, p], dtype: float32}}
program: |
  S = exp(X[(7*u + p + 3) % 560, d]) * where(index(u) == 79, 2, 1)
  O[(7*u + i + 3) % 560, d] = dot(W, S, p)
outputs: {O: [y, d]}
"""


@pytest.fixture(scope="module")
def windows() -> tuple[Program, Plan]:
    return planned(WINDOWS)


def test_a_field_that_goes_round_by_windows_stays_small(windows: tuple[Program, Plan]) -> None:
    program, plan = windows
    sizes, _ = small_instance(program, plan.graph, 0)
    assert sizes["y"] == 7 * sizes["u"] <= 35
    assert sizes["p"] + 2 >= 7, "the last window reaches the first positions"
    small = reduced_sizes(program, graph=plan.graph)
    assert small["y"] == 7 * small["u"] < 560


def test_kernels_of_windows_run_in_the_interpreter_at_small_fields(windows: tuple[Program, Plan]) -> None:
    program, plan = windows
    with Interpreter() as interpreter:
        assert judge_small(interpreter, program, plan.graph, plan.schedule).ok


@pytest.mark.parametrize(
    "edit",
    [
        ("(u*7 + p + 3)%560", "(u*7 + p + 4)%560"),
        ("(u*7 + p + 3)%560", "(u*7 + p + 24)%560"),  # three windows away
        ("(u*7 + p + 3)%560", "(u*7 + p + 556)%560"),
        ("(u*7 + p + 3)%560", "(u*7 + p + 3)%553"),
        ("(u*7 + p + 3)%560", "(u*6 + p + 3)%480"),
        ("(u*7 + p + 3)%560", "u*7 + p + 3"),
        ("(u*7 + i + 3)%560", "(u*7 + i + 10)%560"),
        ("(u*7 + i + 3)%560", "u*7 + i"),
    ],
)
def test_wrong_windows_are_refused(windows: tuple[Program, Plan], edit: tuple[str, str]) -> None:
    assert tells_apart(*windows, edit)


@pytest.mark.parametrize(
    ("at", "u", "small"),
    [
        ("(7*u + i + 3)%56", 3, "(7*u + i + 3)%21"),
        ("(7*u + i + 52)%56", 3, "(7*u + i + 17)%21"),
        ("(7*u + i + 3)%56", 2, "(7*u + i + 3)%56"),  # 9 steps forward are 5 back
        ("(7*u + i + 3)%56", 8, "(7*u + i + 3)%56"),
        ("(7*u + i + 3)%49", 3, "(7*u + i + 3)%49"),
        ("(6*u + i + 3)%56", 3, "(6*u + i + 3)%56"),
    ],
)
def test_a_ring_of_blocks_has_the_blocks_that_there_are(at: str, u: int, small: str) -> None:
    assert around(parse_index(at), {"u": 8, "i": 7}, {"u": u, "i": 6}) == parse_index(small)


def test_a_field_that_is_longer_than_its_windows_has_all_of_them() -> None:
    """One that a table names has 16 positions or more: it may be read by rings of its own."""
    read = [("y", parse_index("(7*u + i + 3)%56")), ("x", parse_index("(2*v + 1)%16"))]
    full = {"u": 8, "i": 7, "y": 56, "v": 8, "x": 16}
    found = large_enough_around({"u": 3, "i": 2, "y": 30, "v": 3, "x": 2}, read, full, str)
    assert found == {"u": 8, "i": 6, "y": 56, "v": 3, "x": 6}


def test_a_ring_is_not_taken_for_one_of_another_length() -> None:
    """X[(x + w) % 11] asks for eleven positions of x, along which (x + w) % 12 would be the same."""
    text = """
name: rings
dims: {y: 3, x: 12, w: 3}
dtype: float32
inputs: {X: [y, x]}
program: |
  O = sum(X[y, (x + w) % 12], w) * X[y, (x + 5) % 12]
outputs: {O: [y, x]}
"""
    program, plan = planned(text)
    assert tells_apart(program, plan, ("(w + x)%12", "(w + x)%11"))


@pytest.mark.parametrize(
    ("dims", "at", "edit"),
    [("x: 11, v: 1, j: 5", "2*x + j", ("x*2 + j", "x*2 - j")), ("x: 8, v: 8, j: 2", "x + 2*j + 3", ("j*2", "j*3"))],
)
def test_what_few_positions_take_inside_an_axis_is_there(dims: str, at: str, edit: tuple[str, str]) -> None:
    """2*x - j of three x and two j is 0 for x = 0 and j = 0 alone, as 2*x + j is; j + 3 and 2*j + 3 are outside of five
    positions for all j but the first."""
    text = f"""
name: windows
dims: {{y: 3, {dims}}}
dtype: float32
inputs: {{X: [y, v], W: [j]}}
program: |
  O = dot(X[y, {at}], W, j)
outputs: {{O: [y, x]}}
"""
    program, plan = planned(text)
    wrong = parse_mugraph(print_mugraph(plan.graph).replace(*edit))
    assert wrong != plan.graph
    assert not [seed for seed in range(12) if check_equivalence(program, wrong, seed).ok]


def test_a_sum_over_whole_rounds_is_not_taken_for_another() -> None:
    """Over four j, the sum of X[(x + j) % 4] is the same for all x."""
    text = """
name: rounds
dims: {y: 3, x: 3, v: 4, j: 5}
dtype: float32
inputs: {X: [y, v]}
program: |
  O = sum(X[y, (x + j) % 4], j)
outputs: {O: [y, x]}
"""
    program, plan = planned(text)
    wrong = parse_mugraph(print_mugraph(plan.graph).replace("(j + x)%4", "(j + x + 1)%4"))
    assert wrong != plan.graph
    assert not [seed for seed in range(24) if check_equivalence(program, wrong, seed).ok]
