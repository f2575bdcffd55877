"""Model-like programs: what the generator makes, and what a run of them reports."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.child import ChildDied
from mirage_cli.tune.interpreted import reduced_sizes
from mirage_cli.tune.measure import Judged, Timing
from mirage_cli.tune.trials import Trial, Tuned
from tests.model_programs import OPERATORS, fitting, model_spec, model_specs
from tools import large_problems, models
from tools.searched import Row, Searchers, lost, merged, slower_than_eager

H200 = find_target("h200")


def test_programs_are_distinct_and_cover_what_models_hold() -> None:
    texts = [*model_specs(0, 100)]
    programs = [parse_spec(t).at() for t in texts]
    assert len({t.split("\n", 1)[1] for t in texts}) == 100
    assert all(len(p.eqns) in OPERATORS and fitting(p) for p in programs)
    assert {p.dtype for p in programs} == {"float16", "bfloat16", "float32"}
    used = {e.op for p in programs for e in p.eqns}
    assert used >= {"dot", "rms_norm", "layer_norm", "softmax", "logsumexp", "silu", "gelu", "sigmoid", "where", "max"}
    assert any(len(p.outputs) > 2 for p in programs)
    assert max(max(p.sizes.values()) for p in programs) == 16384


def test_the_same_seed_and_index_give_the_same_program() -> None:
    assert [*model_specs(3, 4)] == [model_spec(3, i) for i in range(4)]
    assert model_spec(3, 0) != model_spec(4, 0)


@pytest.mark.parametrize("index", range(0, 60, 10))
def test_programs_go_through_the_search(index: int) -> None:
    spec = parse_spec(model_spec(0, index))
    program = spec.at(reduced_sizes(spec.at()))
    found = search_program(program, H200, Options(budget_s=3.0))
    assert found.plans and not found.rejected


# -- what a run reports


def trial(us: float | None, n: int = 0, graph: str = "g") -> Trial:
    schedule = Schedule({"k": KernelSchedule((("m", 16 << n),), ("m",), 4, 3)})
    return Trial(graph, schedule, "", Timing((us,) * 5, 1, 1, "events") if us is not None else None)


def tuned(best: Trial, trials: Sequence[Trial], rejected: Mapping[str, Trial] | None = None) -> Tuned:
    verdict = Judged(True, 0.0, 0.0)
    refused = [(t, Judged(False, 0.0, 0.0, problem)) for problem, t in (rejected or {}).items()]
    return Tuned(best, verdict, [*trials], [best], refused, {})


def test_a_faster_plan_that_was_refused_is_what_was_lost() -> None:
    fast, slow = trial(5.0, 0), trial(10.0, 1)
    found = lost(tuned(slow, [fast, slow], {"output 0 is inf": fast}))
    assert found["fastest_us"] == 5.0 and found["ratio"] == found["quick_ratio"] == 0.5
    assert found["reason"] == "refused: output 0 is inf"
    assert [r["problem"] for r in found["refused"]] == ["output 0 is inf"]


def test_a_plan_that_was_not_judged_for_others_of_its_graph_names_them() -> None:
    fast, refused, slow = trial(5.0, 0), trial(6.0, 1), trial(10.0, 2, "h")
    found = lost(tuned(slow, [fast, refused, slow], {"nan": refused}))
    assert found["reason"] == "not judged: of the same μGraph 1 schedules were refused: nan"


def test_where_the_fastest_was_chosen_nothing_is_lost() -> None:
    quick, careful = trial(9.0, 1), trial(10.0, 1)  # the same plan, as timed quickly and with care
    found = lost(tuned(careful, [quick, trial(12.0, 0), trial(None, 2)]))
    assert found["ratio"] == found["quick_ratio"] == 1.0 and found["reason"] is None and not found["refused"]


ROW: Row = {
    "name": "mlp_000", "dtype": "float16", "dims": {"m": 8}, "operators": 3, "text": "name: mlp", "floor_us": 5.0,
    "state": "right", "time_us": 10.0, "spread_us": 0.5, "eager_us": 9.7, "eager_spread_us": 0.1, "ratio": 1.0,
    "stopped": {"search": "exhausted", "tuning": "budget"}, "kernels": 1, "seconds": {"all": 9.0, "search": 1.0},
}  # fmt: skip


def test_slower_than_eager_is_by_more_than_the_spread_in_any_context() -> None:
    assert not slower_than_eager(ROW)
    assert slower_than_eager(ROW | {"eager_us": 9.4})
    assert slower_than_eager(ROW | {"alone_us": 12.0, "eager_alone_us": 11.0})
    assert not slower_than_eager({"state": "failed"})


def write(path: Path, *rows: Row) -> Path:
    document: dict[str, Any] = {"gpu": "h200", "versions": {"torch": "2", "triton": "3"}, "budget_s": 15.0}
    path.write_text(json.dumps(document | {"command": path.name, "rows": rows}), encoding="utf-8")
    return path


def test_runs_are_merged_into_one_page(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", ROW)
    lost = ROW | {"name": "mlp_001", "ratio": 0.5, "refused": [{"us": 5.0, "problem": "output 0 is inf"}]}
    two = write(tmp_path / "b.json", lost)
    page = tmp_path / "page.md"
    assert [r["name"] for r in merged([one, two])["rows"]] == ["mlp_000", "mlp_001"]
    assert models.main([str(page), "--merge", str(one), str(two)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "| programs | 2 |" in text and "geometric mean | 0.707 |" in text and "a.json ; b.json" in text
    assert "5.00 µs (chosen 10.00), refused: output 0 is inf" in text.split("under 0.9")[1]
    wrong = write(tmp_path / "c.json", ROW | {"state": "wrong", "problem": "nan at 3 places"})
    assert models.main([str(page), "--merge", str(one), str(wrong)]) == 1
    assert "nan at 3 places" in page.read_text(encoding="utf-8")


def test_goals_that_are_missed_are_named() -> None:
    row = ROW | {"name": "norm_gated_mlp", "eager_us": 80.0}
    assert large_problems.missed(row, 20.0) == []
    assert large_problems.missed(row | {"time_us": 76.0}, 20.0) == ["over 57 µs"]
    assert large_problems.missed(row | {"seconds": {"all": 60.0}}, 20.0) == ["over the budget"]
    assert large_problems.missed(row | {"name": "global_mean"}, 20.0) == ["under 0.8 of the floor"]
    assert large_problems.missed({"name": "global_mean", "state": "failed"}, 20.0) == ["failed"]


# -- the run itself


def test_a_search_that_raises_or_dies_leaves_the_others_alone() -> None:
    program = parse_spec(model_spec(0, 1)).at({"m": 7, "k": 32})
    with Searchers(1, H200, Options(budget_s=3.0)) as searchers:
        nothing: Any = None
        with pytest.raises(RuntimeError, match="AttributeError"):
            searchers.submit(nothing).result()
        dying = searchers.submit(program)
        os.kill(searchers.children[0].pid, signal.SIGKILL)
        with pytest.raises(ChildDied, match="SIGKILL"):
            dying.result()
        assert searchers.submit(program).result().plans


def test_a_run_without_a_gpu_leaves_rows_and_a_page(tmp_path: Path) -> None:
    page, rows = tmp_path / "page.md", tmp_path / "rows.json"
    options = ("--target", "h200", "--small", "--budget", "60", "--workers", "1", "--json", str(rows))
    assert large_problems.main([str(page), *options, "--only", "output_projection"]) == 0
    (row,) = json.loads(rows.read_text(encoding="utf-8"))["rows"]
    assert row["state"] == "right" and row["seconds"]["all"] > 0 and row["dims"]["k"] == 7
    assert "| output_projection" in page.read_text(encoding="utf-8")
