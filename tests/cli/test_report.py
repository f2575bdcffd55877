"""What was lost is said: plans that were refused though they were faster than the best."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from mirage_cli.cli.tables import explanation, losses, status_text
from mirage_cli.errors import DamagedResultError
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.store.results import (
    About,
    Asked,
    Finalist,
    KernelResult,
    Lost,
    Nearby,
    Rejected,
    Result,
    Searched,
    Times,
    Tuning,
)
from mirage_cli.tune.measure import Judged, Timing
from mirage_cli.tune.trials import Trial, Tuned


def trial(mugraph: str, us: float, spread: float = 0.0) -> Trial:
    return Trial(mugraph, Schedule({}), mugraph, Timing((us, us - spread, us + spread), 1, 1, "test"))


def tuned(best: Trial | None, *rejected: Trial) -> Tuned:
    verdict = Judged(False, 1.0, 0.1, "huge: output 0 is inf at (3, 4), where float64 has 5")
    return Tuned(best, None, [], [best] if best else [], [(t, verdict) for t in rejected], {})


def test_lost_are_the_fastest_of_each_graph_that_beat_the_best_by_more_than_its_spread() -> None:
    slow, fast, faster = trial("b", 30.0), trial("c", 12.0), trial("c", 10.0)
    best = trial("a", 20.0, spread=1.0)
    found = tuned(best, slow, fast, trial("d", 19.5), faster, trial("e", 18.0)).lost
    assert [(t.mugraph, us) for t, _, us in found] == [("c", 10.0), ("e", 18.0)]
    assert tuned(best, Trial("a", best.schedule, "a", trial("a", 1.0).timing)).lost == []  # right after all
    assert len(tuned(None, slow, fast).lost) == 2
    assert tuned(best, Trial("f", Schedule({}), "f")).lost == []  # never timed


def test_lost_are_compared_as_if_timed_together() -> None:
    """The best took 20 µs while the GPU was cool, and 22 at the end, where what took 21 then would take 23."""
    best = replace(trial("a", 22.0), pace=1.0)
    cool, hot = trial("b", 21.0), replace(trial("c", 21.0), pace=1.1)
    found = replace(tuned(best, cool, hot), trials=[trial("a", 20.0), cool, hot]).lost
    assert [(t.mugraph, us) for t, _, us in found] == [("c", pytest.approx(21.0))]


SEARCH = {"classes": 1, "enumerated": 1, "pruned": {}, "verified": 1, "rejected": 0, "stopped": "x", "seconds": 1.0}
BEST = {
    "id": "aaaaaaaaaaaa", "kernels": 11, "status": "measured", "time_us": 76.4, "floor_us": 50.0, "eager_us": 75.7,
    "error_vs_float64": 1e-4, "eager_error_vs_float64": 1e-4, "schedule": {},
}  # fmt: skip
DOCUMENT = {
    "spec": "mlp", "dims": {"m": 8}, "dtype": "float16", "seed": 0, "search": SEARCH, "best": BEST, "top": [],
}  # fmt: skip
"""What a version wrote that knew one context alone."""


def result(**more: Any) -> Result:
    return Result.from_json({**DOCUMENT, **more})


def test_a_line_says_what_was_lost_by_how_much_and_why() -> None:
    r = result(lost=[{"id": "bbbbbbbbbbbb", "kernels": 1, "time_us": 55.6, "problem": "huge: output 0 is -inf"}])
    (line,) = losses([r, result(lost=[]), result()])
    assert line == (
        "mlp m=8: refused, though faster: bbbbbbbbbbbb, 1 kernel, 55.60 µs (1.37 times as fast as the best): "
        "huge: output 0 is -inf"
    )
    printed = StringIO()
    console = Console(width=200, file=printed)
    for part in explanation(r):
        console.print(part)
    assert "refused, though faster" in printed.getvalue()
    assert losses([replace(r, best=None)])[0].endswith("bbbbbbbbbbbb, 1 kernel, 55.60 µs: huge: output 0 is -inf")


def test_tables_say_that_the_program_as_written_won() -> None:
    def status(r: Result) -> str:
        assert r.best is not None
        return status_text(r, r.best)

    assert status(result(as_written="aaaaaaaaaaaa")) == "measured, as written"
    assert status(result(as_written="bbbbbbbbbbbb")) == status(result()) == "measured"


# -- results as documents


def test_a_result_reads_as_it_was_written() -> None:
    schedule = KernelSchedule((("m", 16),), ("m",), overlap=True)
    times = Times("both", 3.0, 0.1, 2.0, 0.2, 4.5, 0.3)
    best = KernelResult(
        "aaaa", 2, Schedule({"k0": schedule}), 1.5, True, 2.5, times, 1.0, "CUDA graph", times, 1e-3, 2e-3, True,
        {"k0": ("memory", 2.0)}, "proved",
    )  # fmt: skip
    whole = Result(
        About("mlp", {"m": 8}, "float16", 3),
        Searched(1, 2, 3, {"nested loop": 4}, 5, 6, "budget", 7.5),
        Asked(3, 5, 60.0, True, "both"),
        "aaaa",
        best,
        (best, replace(best, times=None, claim=None)),
        (Nearby("aaaa", Schedule({"k0": schedule}), 3.5),),
        (replace(best, claim=None),),
        True,
        (Lost("bbbb", 1, 2.0, "wrong"), Lost("cccc", 1, None, "wrong", 1.0)),
        Tuning(9, {"hang": 1}, (Rejected("bbbb", Schedule({}), "wrong"),), "exhausted", 1.0, {"timing": 0.5},
               Finalist("aaaa", 3.0, None), None),
        {"spills": 2},
        4,
        False,
        ("dddd: refused",),
    )  # fmt: skip
    text = json.dumps(whole.to_json())
    assert Result.from_json(json.loads(text)) == whole
    assert set(json.loads(text)) >= set(DOCUMENT) and set(json.loads(text)["best"]) >= set(BEST)


FITTING = [("spec", "x"), ("dims", {"a": 1}), ("dtype", "x"), ("seed", 5)]
OTHER = [(n, v) for n in DOCUMENT for v in (5, [1], "x", {"a": 1}) if (n, v) not in FITTING]


@pytest.mark.parametrize(("name", "value"), OTHER)
def test_a_document_with_a_value_of_another_kind_is_damaged(name: str, value: Any) -> None:
    with pytest.raises(DamagedResultError):
        Result.from_json({**DOCUMENT, name: value})


@pytest.mark.parametrize("name", DOCUMENT)
def test_a_document_that_lacks_a_value_is_damaged(name: str) -> None:
    with pytest.raises(DamagedResultError):
        Result.from_json({n: v for n, v in DOCUMENT.items() if n != name})


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"search": {**SEARCH, "classes": "5"}}, r"its document\.search\.classes is '5'"),
        ({"search": {**SEARCH, "verified": True}}, r"its document\.search\.verified is True"),
        ({"best": {**BEST, "floor_us": "5"}}, r"its document\.best\.floor_us is '5'"),
        ({"best": {**BEST, "bottlenecks": {"k0": ["memory"]}}}, r"its document\.best\.bottlenecks\.k0 is \['memory'\]"),
        ({"best": {**BEST, "schedule": {"k0": {}}}}, r"its document\.best\.schedule: .* is no schedule"),
        ({"top": [BEST, {**BEST, "id": 1}]}, r"its document\.top\[1\]\.id is 1"),
        ({"lost": [{"id": "x", "kernels": 1, "time_us": None}]}, r"its document\.lost\[0\]\.problem is missing"),
        ({"asked": {"seed": 0, "top": 1, "budget_s": 1, "tune": 1}}, r"its document\.asked\.tune is 1"),
    ],
)
def test_a_damaged_document_is_told_with_the_place(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(DamagedResultError, match=f"^{problem}"):
        result(**more)


@pytest.mark.parametrize("document", [None, 5, [], "x", {}])
def test_no_document_at_all_is_named(document: Any) -> None:
    with pytest.raises(DamagedResultError):
        Result.from_json(document)
