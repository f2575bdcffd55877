"""How a budget is divided between the programs of a model. Kernels' times are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_cli.ir.program import Program
from mirage_cli.pipeline import budgets, tuning
from mirage_cli.pipeline.budgets import optimize_together, shares
from mirage_cli.pipeline.callers import Kernel, Kernels
from mirage_cli.pipeline.kept import answers
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.pipeline.searching import Found, Options
from mirage_cli.pipeline.session import Session
from mirage_cli.spec.graph import Graph, dot, silu
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.records import Key
from mirage_cli.store.results import Asked, Result
from mirage_cli.tune import deadline, explore
from tests.pipeline import made_up_gpu


@pytest.mark.parametrize(
    ("seconds", "gains", "expected"),
    [
        (30.0, {0: 1.0, 1: 2.0}, {1: 20.0, 0: 10.0}),
        (30.0, {0: 0.1, 1: 2.9, 2: 0.0}, {1: 30.0}),
        (30.0, {0: 4.0, 1: 1.0, 2: 5.0}, {2: 30 * 5 / 9, 0: 30 * 4 / 9}),
        (4.0, {0: 1.0}, {}),
        (-2.0, {0: 1.0}, {}),
        (30.0, {0: 0.0}, {}),
        (30.0, {}, {}),
    ],
)
def test_shares_are_by_gain_and_none_is_too_small(
    seconds: float, gains: dict[int, float], expected: dict[int, float]
) -> None:
    found = shares(seconds, gains, 5.0)
    assert found == pytest.approx(expected)
    assert [*found] == [*expected]


def result(us: float, stopped: str = "budget", cached: bool = False) -> Any:
    made = object.__new__(Result)
    best = SimpleNamespace(times=SimpleNamespace(time_us=us))
    for name, value in {"best": best, "cached": cached, "tuning": SimpleNamespace(stopped=stopped)}.items():
        object.__setattr__(made, name, value)
    return made


@pytest.mark.parametrize(("budget_s", "first_s"), [(120.0, 8.0), (51.0, 3.4), (36.0, 3.0), (29.0, 5.0), (8.0, 5.0)])
def test_the_first_part_is_short_where_more_follows(
    budget_s: float, first_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[float] = []
    session: Any = SimpleNamespace(measures=True, target=None, allow=lambda s, _: allowed.append(s))
    monkeypatch.setattr(budgets, "optimize", lambda _, programs: [None for _ in programs])
    optimize_together(session, [("", "")] * 6, [1] * 6, budget_s, 5.0)  # type: ignore[list-item]
    assert allowed == pytest.approx([first_s])


def test_what_is_left_goes_where_most_may_be_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention in 32 layers is 9 µs above its floor, and the vocabulary, once, 9 too; a norm is at its floor."""
    us = {"attention": 19.0, "vocabulary": 230.0, "norm": 10.0, "known": 50.0, "tried": 50.0, "failed": 0.0}
    floors = {"attention": 10.0, "vocabulary": 221.0, "norm": 11.0}
    calls = {"attention": 32, "vocabulary": 1, "norm": 64, "known": 99, "tried": 99, "failed": 9}
    more: dict[str, float] = {}
    session: Any = SimpleNamespace(
        measures=True, target=None, allow=lambda s, searching: more.update(first=s, searching=searching)
    )
    first = {n: result(t, "exhausted" if n == "tried" else "budget", n == "known") for n, t in us.items()}
    first["failed"] = None
    monkeypatch.setattr(budgets, "optimize", lambda _, programs: [first[n] for n, _ in programs])
    monkeypatch.setattr(budgets, "tune_on", lambda _, name, r, s: more.update({name: s}) or result(12.0))
    monkeypatch.setattr(budgets, "floor_of", lambda name, _: floors.get(name, 1.0))
    monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=iter([0.0, 60.0]).__next__))
    programs: Any = [(name, "") for name in us]
    found: Any = optimize_together(session, programs, [*calls.values()], 120.0, 5.0)
    assert more == {"first": 0.4 * 120 / 6, "searching": 30.0, "attention": 60.0}
    assert [r and r.best.times.time_us for r in found] == [12.0, 230.0, 10.0, 50.0, 50.0, None]


def test_a_search_of_several_has_seconds_of_its_own() -> None:
    """Of 5 s for a program, its search would have 3.75 and the tuning what that leaves."""
    alone, beside = Options(budget_s=5.0), Options(budget_s=5.0, searching_s=15.0)
    assert (alone.search_s, alone.tuning_s(4.0), alone.tuning_s(6.0)) == (3.75, 1.0, 0.0)
    assert (beside.search_s, beside.tuning_s(9.0)) == (15.0, 5.0)


def gated(n: int) -> Graph:
    g = Graph(f"gated_{n}", dims={"m": 8, "k": 512, "n": n})
    x, w = g.input("X", "m", "k"), g.input("W", "k", "n")
    g.output("O", silu(dot(x, w, "k")), "m", "n")
    return g


def test_tuning_goes_on_from_the_trials_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_gpu.pretend(monkeypatch.setattr)
    monkeypatch.setattr(budgets, "gain_us", lambda _, p, r: float(p.name == "gated_256" and not r.cached))
    monkeypatch.setattr(explore, "PATIENCE", 8)
    graphs, known = [gated(128), gated(256)], list[int]()
    tune_plans = tuning.tune_plans

    def counted(session: Session, program: Program, key: Key, found: Found, *rest: Any) -> Any:
        known.append(len(tuning.known_trials(session, key, found.plans)))
        return tune_plans(session, program, key, found, *rest)

    monkeypatch.setattr(tuning, "tune_plans", counted)
    with Kernels("h200", budget=60.0, db=tmp_path / "mirage.db", workers=1) as kernels:
        made = kernels.of(graphs, 2.0, [1, 32])
        found = [kernels.store.best(key_of(g.program(), kernels.target, True)) for g in graphs]
        asked = [b.result.asked.budget_s for b in found if b is not None and b.result.asked is not None]
        again = kernels.of(graphs, 2.0, [1, 32])
    assert all(isinstance(k, Kernel) for k in made) and made == again
    assert [n > 0 for n in known] == [False, False, True], "the second goes on; and nothing is tuned a third time"
    assert asked[0] == pytest.approx(0.4 * 60 / 2) and asked[1] > asked[0]


@pytest.mark.parametrize(
    ("tuning", "unchecked", "answered"),
    [("budget", 0, False), ("exhausted", 0, True), (None, 0, True), (None, 2, False)],
)
def test_a_larger_budget_goes_on_with_what_ran_out_of_a_smaller_one(
    tuning: str | None, unchecked: int, answered: bool
) -> None:
    """Though its search had come to an end."""
    asked = Asked(0, 5, 10.0, True, "both", "")
    stopped = tuning and SimpleNamespace(stopped=tuning)
    earlier: Any = SimpleNamespace(
        asked=asked,
        complete=True,
        search=SimpleNamespace(stopped="exhausted"),
        tuning=stopped,
        unchecked=unchecked,
    )
    assert answers(earlier, Options(budget_s=10.0), True)
    assert answers(earlier, Options(budget_s=20.0), True) is answered
    assert answers(earlier, Options(budget_s=20.0, tune=False), False)


NUCLEUS = """
name: nucleus
dims: {b: 64, n: 1024, j: 1024}
dtype: float32
inputs:
  X: [b, n]
program: |
  P = softmax(X, n)
  R = rename(P, n=j)
  O = where(sum(where(R > P, R, 0), j) < 0.9, P, 0)
outputs:
  O: [b, n]
"""


def test_a_problem_has_the_elements_of_the_largest_value_that_its_definition_makes() -> None:
    """The pairs of a row's elements are a thousand times as many as these: to judge a kernel, all of them are made."""
    program = parse_spec(NUCLEUS).at()
    problem = measured_problem(program, 0)
    assert problem.elements == 64 * 1024 * (2 + 1024) > deadline.LARGE_ELEMENTS
    assert measured_problem(gated(16).program(), 0).elements == 8 * 512 + 512 * 16 + 2 * 8 * 16
