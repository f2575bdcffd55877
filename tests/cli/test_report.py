"""What was lost is said: plans that were refused though they were faster than the best."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from rich.console import Console

from mirage_cli.cli.tables import explanation, losses, status_text
from mirage_cli.ir.schedule import Schedule
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
    assert [(t.mugraph, t.us) for t, _ in found] == [("c", 10.0), ("e", 18.0)]
    assert tuned(best, Trial("a", best.schedule, "a", trial("a", 1.0).timing)).lost == []  # right after all
    assert len(tuned(None, slow, fast).lost) == 2
    assert tuned(best, Trial("f", Schedule({}), "f")).lost == []  # never timed


def document(**more: Any) -> Mapping[str, Any]:
    best = {
        "id": "aaaaaaaaaaaa", "kernels": 11, "status": "measured", "time_us": 76.4, "floor_us": 50.0, "eager_us": 75.7,
        "error_vs_float64": 1e-4, "eager_error_vs_float64": 1e-4, "schedule": {},
    }  # fmt: skip
    search = {"classes": 1, "enumerated": 1, "pruned": {}, "verified": 1, "rejected": 0, "stopped": "x", "seconds": 1.0}
    return {"spec": "mlp", "dims": {"m": 8}, "dtype": "float16", "search": search, "best": best, **more}


def test_a_line_says_what_was_lost_by_how_much_and_why() -> None:
    lost = [{"id": "bbbbbbbbbbbb", "kernels": 1, "time_us": 55.6, "problem": "huge: output 0 is -inf"}]
    r = document(lost=lost)
    (line,) = losses([r, document(lost=[]), document()])
    assert line == (
        "mlp m=8: refused, though faster: bbbbbbbb, 1 kernel, 55.60 µs (1.37 times as fast as the best): "
        "huge: output 0 is -inf"
    )
    printed = StringIO()
    console = Console(width=200, file=printed)
    for part in explanation(r):
        console.print(part)
    assert "refused, though faster" in printed.getvalue()
    assert losses([{**r, "best": None}])[0].endswith("bbbbbbbb, 1 kernel, 55.60 µs: huge: output 0 is -inf")


def test_tables_say_that_the_program_as_written_won() -> None:
    assert status_text(document(as_written="aaaaaaaaaaaa")) == "measured, as written"
    assert status_text(document(as_written="bbbbbbbbbbbb")) == status_text(document()) == "measured"
