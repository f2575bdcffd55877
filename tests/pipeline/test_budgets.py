"""How a budget is divided between the programs of a model. Kernels' times are made up."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_cli.errors import NoKernelError
from mirage_cli.ir.program import Program
from mirage_cli.pipeline import budgets, searchers, searching, tuning
from mirage_cli.pipeline.budgets import optimize_together, shares
from mirage_cli.pipeline.callers import Kernel, Kernels, Settings, parts_of
from mirage_cli.pipeline.clock import Clock
from mirage_cli.pipeline.kept import answers
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.searchers import NO_TIME
from mirage_cli.pipeline.searching import Failed, Found, Options, search_program
from mirage_cli.pipeline.session import Session
from mirage_cli.search import generator
from mirage_cli.spec import reader
from mirage_cli.spec.graph import Dynamic, Graph, dot, silu
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.records import Key
from mirage_cli.store.results import Asked, Result, Unfinished
from mirage_cli.target.gpus import find_target
from mirage_cli.tune import explore
from mirage_cli.verify import equivalence
from mirage_cli.verify.verdict import refused
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


def search_of(best_us: float, written_us: float) -> Any:
    """What a search found: a plan, and the program as written."""
    made = object.__new__(Found)
    plans = SimpleNamespace(id="best", predicted_us=best_us), SimpleNamespace(id="written", predicted_us=written_us)
    for name, value in {"plans": plans, "as_written": "written", "stopped": "exhausted"}.items():
        object.__setattr__(made, name, value)
    return made


@pytest.mark.parametrize(("best_us", "written_us", "gain"), [(10.0, 15.0, 5.0), (10.0, 10.0, 0.0), (10.0, 99.0, 10.0)])
def test_a_gain_is_expected_over_the_program_as_written_and_no_larger_than_what_is_left(
    best_us: float, written_us: float, gain: float
) -> None:
    assert budgets.expected_gain_us(search_of(best_us, written_us)) == gain


class Tried(dict[str, tuple[float, str]]):
    """A database of what was tried."""

    tried = dict[str, tuple[float, str]].get

    def put_tried(self, key: str, budget_s: float, problem: str) -> None:
        self[key] = budget_s, problem


@dataclass
class Tuner:
    """Of made-up programs: `searched` takes so long, and tuning all that it is given."""

    found: dict[str, Any]
    searching_s: float
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    now: float = 0.0
    spent: dict[str, float] = field(default_factory=dict[str, float])
    store: Any = field(default_factory=lambda: Tried())
    ahead: list[str] = field(default_factory=list[str])
    allowed: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])

    def together(
        self,
        monkeypatch: pytest.MonkeyPatch,
        calls: Sequence[int],
        budget_s: float,
        parts: Sequence[float] = (),
        in_time: bool = False,
    ) -> list[Any]:
        def searched(_: Any, programs: Sequence[tuple[str, str]]) -> list[Any]:
            self.now += self.searching_s
            return [self.found[name] for name, _ in programs]

        def tuned(name: str, seconds: float) -> Any:
            self.now += seconds
            self.spent[name] = self.spent.get(name, 0.0) + seconds
            return self.results.get(name, result(20.0))

        monkeypatch.setattr(budgets, "searched", searched)
        monkeypatch.setattr(budgets, "key_of", lambda name, *_: name)
        monkeypatch.setattr(budgets, "ahead", lambda _, name, found: self.ahead.append(name) or found)
        monkeypatch.setattr(budgets, "finish", lambda _, name, text, found, s=0.0: tuned(name, s))
        monkeypatch.setattr(budgets, "tune_on", lambda _, name, r, s: tuned(name, s))
        monkeypatch.setattr(budgets, "about", lambda _, name: name)
        monkeypatch.setattr(budgets, "floor_of", lambda name, _: 10.0)
        monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=lambda: self.now))
        allow = lambda *seconds: self.allowed.append(seconds)  # noqa: E731
        session: Any = SimpleNamespace(
            measures=True, target=None, options=Options(workers=16), allow=allow, store=self.store
        )
        programs: Any = [(name, "") for name in self.found]
        return optimize_together(session, programs, calls, budget_s, parts, in_time)


@pytest.mark.parametrize(("budget_s", "tuned"), [(3.5, 0), (5.5, 2), (8.0, 5), (20.0, 8), (60.0, 8)])
def test_a_budget_is_not_exceeded_however_many_programs_there_are(
    budget_s: float, tuned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight those are tuned first that may gain most; what there is no time for says so."""
    tuner = Tuner({f"p{i}": search_of(10.0, 11.0 + i) for i in range(8)}, 3.0)
    found = tuner.together(monkeypatch, [1] * 8, budget_s)
    assert tuner.now <= budget_s + 1e-6
    assert [*tuner.spent] == [f"p{i}" for i in reversed(range(8 - tuned, 8))]
    assert tuner.ahead[: max(tuned - 1, 0)] == [*tuner.spent][1:]
    assert min(tuner.spent.values(), default=budgets.LEAST_S) >= budgets.LEAST_S
    left = [r.problem for r in found if isinstance(r, Unfinished)]
    assert left == [budgets.TOO_LATE if tuned else budgets.NO_TIME] * (8 - tuned) and not tuner.store


def test_the_size_of_the_example_is_tuned_first_and_as_long_as_all_others() -> None:
    g = Graph("rows", dims={"m": Dynamic(1, 64, (1, 3, 16, 64)), "n": 32})
    g.output("O", silu(g.input("X", "m", "n")), "m", "n")
    programs = parse_spec(g.text()).programs()
    assert parts_of(programs, [3]) == [1 / 3, 1.0, 1 / 3, 1 / 3]
    assert parts_of(programs, []) == parts_of(programs, [5]) == [1.0] * 4
    assert parts_of(programs[:1], [1]) == [1.0]


def test_parts_say_how_long_programs_are_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Tuner({f"p{i}": search_of(10.0, 11.0 + i) for i in range(4)}, 3.0)
    tuner.together(monkeypatch, [1] * 4, 9.0, [1 / 3, 1.0, 1 / 3, 1 / 3])
    assert tuner.spent == pytest.approx({"p1": 3.0, "p3": 1.0, "p2": 1.0, "p0": 1.0}) and tuner.now <= 9.0
    assert [*tuner.spent] == ["p1", "p3", "p2", "p0"]


def test_an_interrupt_ends_the_searches_and_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = search_of(10.0, 20.0)
    object.__setattr__(interrupted, "stopped", "interrupted")
    tuner = Tuner({"first": search_of(10.0, 20.0), "second": interrupted, "third": search_of(10.0, 20.0)}, 3.0)
    with pytest.raises(KeyboardInterrupt):
        tuner.together(monkeypatch, [1, 1, 1], 60.0)
    assert tuner.spent == {"second": 0.0}


def test_what_is_expected_to_gain_nothing_is_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Tuner({"fused": search_of(10.0, 30.0), "product": search_of(100.0, 100.0)}, 2.0)
    fused, product = tuner.together(monkeypatch, [1, 99], 60.0)
    assert isinstance(fused, Result) and isinstance(product, Unfinished)
    assert product.problem == budgets.NO_GAIN and [*tuner.store] == ["product"]
    assert [*tuner.spent] == ["fused"] and not tuner.ahead and tuner.spent["fused"] == pytest.approx(58.0)


def test_what_is_left_goes_where_most_may_be_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention in 32 layers is 9 µs above its floor, and the vocabulary, once, 9 too; a norm is at its floor."""
    us = {"attention": 19.0, "vocabulary": 19.0, "norm": 10.0, "known": 50.0, "tried": 50.0}
    results = {name: result(t, "exhausted" if name == "tried" else "budget") for name, t in us.items()}
    tuner = Tuner({name: search_of(10.0, 20.0) for name in us} | {"known": result(50.0, cached=True)}, 4.0, results)
    tuner.together(monkeypatch, [32, 1, 64, 99, 99], 104.0)
    assert tuner.allowed == [(104.0 / 5, 26.0, math.inf)]
    assert tuner.spent == pytest.approx({"attention": 10.0 + 60.0, "vocabulary": 10.0, "norm": 10.0, "tried": 10.0})


def test_half_of_a_models_budget_is_for_tuning_though_plans_are_not_verified_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuner = Tuner({"one": search_of(10.0, 20.0), "other": search_of(10.0, 20.0)}, 4.0, now=100.0)
    tuner.together(monkeypatch, [1, 1], 60.0, in_time=True)
    assert tuner.allowed == [(30.0, 15.0, 130.0)]


def test_no_verification_is_behind_the_end_of_a_budget_that_others_share() -> None:
    """Elsewhere the cheapest plan is verified behind the budget."""
    now = time.monotonic()
    shared, alone = (Clock(0.0, lambda: False, until_s) for until_s in (now, math.inf))
    assert shared.verification_is_over(30.0) and not alone.verification_is_over(30.0)
    assert (
        Clock(30.0, lambda: False, now).search_is_over() and not Clock(30.0, lambda: False, now + 60).search_is_over()
    )


def test_operators_are_not_fused_in_the_time_for_verification_where_nothing_is_done_behind_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A budget of 10 s leaves 2 of them to verification. Elsewhere the cheapest plan is verified behind the budget."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    shared, alone = (Clock(10.0, lambda: False, until_s) for until_s in (112.0, math.inf))
    monkeypatch.setattr(time, "monotonic", lambda: 109.0)
    assert shared.search_is_over() and shared.budget_is_spent() and not shared.verification_is_over()
    assert alone.search_is_over() and not alone.budget_is_spent()


def test_a_search_leaves_as_long_as_the_first_plan_took_where_nothing_is_done_behind_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    quick, slow = Clock(10.0, lambda: False, 112.0), Clock(10.0, lambda: False, 112.0)
    for clock, took_s in ((quick, 1.0), (slow, 4.0)):
        now[0] = 100.0
        with clock.leaving_as_long():
            now[0] += took_s
    now[0] = 107.0
    assert slow.search_is_over() and not quick.search_is_over()
    assert not slow.verification_is_over()


def test_no_program_waits_for_another_whose_search_does_not_end_in_time() -> None:
    """The process that searches it may still start."""
    programs = [gated(128).program()]
    options = Options(until_s=time.monotonic() + 0.1)
    with searchers._Searchers(programs, find_target("h200"), options, 1) as others:
        others.futures = [Future()]
        began_s = time.monotonic()
        assert others.result(0) == Failed(searchers.LATE)
        assert 0.1 < time.monotonic() - began_s < 5.0


def test_what_is_verified_first_is_not_what_is_fused_in_all_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    in_time, alone = (Clock(10.0, lambda: False, until_s) for until_s in (110.0, math.inf))
    now[0] = 105.9
    assert not in_time.first_is_due()
    now[0] = 106.1
    assert in_time.first_is_due() and not in_time.budget_is_spent() and not alone.first_is_due()


def test_fusing_goes_on_behind_the_plan_that_is_verified_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is the program as written, where no time is left for another. The program is taken apart once."""
    monkeypatch.setattr(Clock, "first_is_due", lambda _: True)
    begun: list[object] = []

    def decompose(*arguments: Any, **named: Any) -> Any:
        begun.append(arguments)
        return graph.decompose(*arguments, **named)

    graph = sys.modules["mirage_cli.algebra.decompose"]
    monkeypatch.setattr(generator, "decompose", decompose)
    options = Options(until_s=time.monotonic() + 3600.0)
    found = search_program(gated(128).program(), find_target("h200"), options)
    assert len(begun) == 1
    ids = [p.id for p in found.plans]
    assert found.as_written in ids[1:] and len(found.plans[0].graph.kernels) == 1


@pytest.mark.parametrize("n", [1, 2])
def test_a_model_waits_for_no_program_when_its_budget_is_spent(n: int, tmp_path: Path) -> None:
    """Its regions are PyTorch's then. Who asks for a program alone has its kernel."""
    graphs = [gated(128), gated(256)][:n]
    with Kernels(Settings("h200", workers=1, budget=1e-9, db=tmp_path / "model.db"), in_time=True) as kernels:
        found = kernels.of(graphs)
    assert all(isinstance(k, NoKernelError) for k in found) and NO_TIME in str(found[-1])


def test_what_has_no_verified_plan_is_not_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_gpu.pretend(monkeypatch.setattr)
    monkeypatch.setattr(searching, "verified", lambda *_: [])
    begun: list[str] = []
    with Kernels(Settings("h200", workers=1, db=tmp_path / "mirage.db"), on_tuning=begun.append) as kernels:
        found = kernels.of([gated(128), gated(256)])
    assert not begun and all("there is no verified plan" in str(k) for k in found)


def test_a_program_that_no_model_waits_for_has_a_kernel_behind_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up_gpu.pretend(monkeypatch.setattr)
    monkeypatch.setattr(explore, "PATIENCE", 8)
    with Kernels(Settings("h200", workers=1, budget=0.001, db=tmp_path / "mirage.db")) as kernels:
        assert all(isinstance(k, Kernel) for k in kernels.of([gated(128)]))


def test_a_search_of_several_has_seconds_of_its_own() -> None:
    """Of 5 s for a program, its search would have 3 and the tuning what that leaves."""
    alone, beside = Options(budget_s=5.0), Options(budget_s=5.0, searching_s=15.0)
    assert (alone.search_s, alone.tuning_s(4.0), alone.tuning_s(6.0)) == (2.0, 1.0, 0.0)
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
    begun: list[str] = []
    db = tmp_path / "mirage.db"
    with Kernels(Settings("h200", workers=1, db=db), on_tuning=begun.append) as kernels:
        made = kernels.of(graphs, [1, 32])
        found = [kernels.store.best(key_of(g.program(), kernels.target, True)) for g in graphs]
        asked = [b.result.asked.budget_s for b in found if b is not None and b.result.asked is not None]
        again = kernels.of(graphs, [1, 32])
    assert all(isinstance(k, Kernel) for k in made) and made == again
    assert {*begun} == {"gated_128", "gated_256"} and len(begun) == 3
    assert [n > 0 for n in known] == [False, False, True], "the second goes on; and nothing is tuned a third time"
    assert asked[0] == pytest.approx(60 / 2) and asked[1] > asked[0]


def test_the_first_kernels_are_compiled_while_plans_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up_gpu.pretend(monkeypatch.setattr)
    monkeypatch.setattr(made_up_gpu.Farm, "ahead", [])
    monkeypatch.setattr(explore, "PATIENCE", 8)
    with Kernels(Settings("h200", workers=1, budget=10.0, db=tmp_path / "mirage.db")) as kernels:
        assert all(isinstance(k, Kernel) for k in kernels.of([gated(128)], [1]))
    assert made_up_gpu.Farm.ahead and all("def k0(" in source for source in made_up_gpu.Farm.ahead)


@pytest.mark.parametrize(("until_s", "first"), [(math.inf, 0), (3600.0, 2)])
def test_where_time_may_be_up_plans_are_verified_in_front_of_compiling(until_s: float, first: int) -> None:
    """One that needs no search, and the best, which is compiled alone: the others may not be verified in time."""
    told: list[str] = []
    compiled: list[str] = []

    def chosen(_: object, graphs: Mapping[str, object], __: str) -> None:
        told.append("chosen")
        compiled.extend(graphs)

    options = Options(until_s=time.monotonic() + until_s)
    doing: Any = lambda what, _: told.append(what.split(" of ")[0])  # noqa: E731
    found = search_program(gated(128).program(), find_target("h200"), options, doing=doing, chosen=chosen)
    told = [x for x in told if x == "chosen" or x.startswith("verifying")]
    assert told.index("chosen") == first and told[:first] == ["verifying 1"] * first
    ids = [p.id for p in found.plans]
    assert told.count("chosen") == 1 and len(ids) > 1
    assert compiled == ids[:1] if first else {*compiled} == {*ids}


def test_where_time_may_be_up_nothing_is_compiled_ahead_of_which_no_plan_is_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = refused("time", "made up")
    monkeypatch.setattr(equivalence, "check_equivalence", lambda *_, **__: late)
    told: list[object] = []
    for until_s in (math.inf, time.monotonic() + 3600.0):
        found = search_program(
            gated(128).program(), find_target("h200"), Options(until_s=until_s), chosen=lambda *x: told.append(x)
        )
        assert not found.plans and len(told) == 1


def test_an_error_in_compiling_ahead_is_told_in_the_results_of_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is searched, and while one in front of it is tuned."""

    def failing(*_: Any) -> Any:
        raise ZeroDivisionError("made up")

    made_up_gpu.pretend(monkeypatch.setattr)
    monkeypatch.setattr(tuning, "Proposals", failing)
    with Kernels(Settings("h200", workers=1, budget=10.0, db=tmp_path / "mirage.db")) as kernels:
        (found,) = kernels.of([gated(128)], [1])
    assert isinstance(found, NoKernelError) and "ZeroDivisionError: made up" in str(found)
    session: Any = SimpleNamespace(measures=True)
    failed = budgets.ahead(session, gated(128).program(), search_of(10.0, 20.0))
    assert isinstance(failed, Failed) and "SimpleNamespace" in failed.problem


def test_what_has_no_kernel_is_tried_again_with_a_larger_budget_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that starts anew would look for it each time."""
    none = result(0.0)
    object.__setattr__(none, "best", None)
    store = Tried()
    monkeypatch.setattr(budgets, "why_none", lambda _: "made up")
    spent: list[list[str]] = []
    for budget_s in (20.0, 20.0, 8.0, 40.0):
        first = {"failed": search_of(10.0, 20.0), "known": result(5.0, cached=True)}
        tuner = Tuner(first, 3.0, {"failed": none}, store=store)
        failed, known = tuner.together(monkeypatch, [1, 1], budget_s)
        assert failed.problem == "made up" and known.best is not None
        spent.append([*tuner.spent])
    assert spent == [["failed"], [], [], ["failed"]] and store == {"failed": (20.0, "made up")}


def test_a_spec_that_the_database_has_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_gpu.pretend(monkeypatch.setattr)
    texts: list[str] = []
    parsed = reader.parse_spec
    monkeypatch.setattr(reader, "parse_spec", lambda text, path: texts.append(text) or parsed(text, path))
    g = gated(16)
    with Kernels(Settings("h200", db=tmp_path / "mirage.db")) as kernels:
        kernels.store.put_spec("made up", g.name, g.text())
        one, other = kernels.standing([g, g])
    assert one is other and texts == [g.text()]


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


def test_processes_are_as_many_as_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the caller does: `optimize` starts as many as `mirage search`."""
    monkeypatch.setenv("MIRAGE_WORKERS", "7")
    for given, started in ((None, 7), (3, 3)):
        assert Kernels(Settings("h200", workers=given, db=tmp_path / "mirage.db")).options.workers == started
