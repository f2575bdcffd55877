"""The gate of `mirage bench --check`: which rows are worse than those of an earlier run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import EarlierBenchError
from mirage_cli.pipeline.bench.gate import asked_for, compare, identity, read_rows


def row(
    us: float | None,
    spread: float = 0.1,
    wrong: str | None = None,
    m: int = 2,
    gpu: str = "h200",
    context: str = "both",
) -> dict[str, Any]:
    figures = {"median_us": us, "spread_us": spread, "context": context if us else None}
    mirage = {**figures, "failure": None if us else "no kernel was found", "wrong": wrong}
    return {"spec": "s", "dims": {"m": m}, "dtype": "float16", "gpu": gpu, "contestants": {"mirage": mirage}}


def problems(before: list[dict[str, Any]], after: list[dict[str, Any]], threshold: float = 5.0) -> list[str]:
    return [f"{c.name}: {c.problem}" for c in compare(before, after, threshold) if c.problem]


def test_a_kernel_is_slower_by_more_than_5_percent_and_both_spreads() -> None:
    assert problems([row(10.0)], [row(10.6)]) == problems([row(None)], [row(99.0)]) == []
    assert problems([row(10.0)], [row(10.8)]) == ["s float16 m=2: slower: 10.80 µs, was 10.00 µs"]


def test_the_threshold_is_a_part_of_the_earlier_time() -> None:
    assert problems([row(10.0)], [row(10.4)], 0.0) and not problems([row(10.0)], [row(10.1)], 0.0)
    assert problems([row(10.0)], [row(12.0)], 15.0) and not problems([row(10.0)], [row(11.6)], 15.0)


def test_without_an_earlier_run_a_kernel_is_wrong_or_failed_by_itself() -> None:
    rows = [row(1.0), row(None, m=4), row(1.0, m=8, wrong="x")]
    found = compare(None, rows)
    assert [c.problem for c in found] == [None, "failed: no kernel was found", "wrong: x"]
    assert [(c.was_us, c.now_us) for c in found] == [(None, 1.0), (None, None), (None, 1.0)]


WORSE = {
    "wrong": (row(9.0, wrong="huge: output 0 is inf"), "wrong: huge: output 0 is inf"),
    "failed": (row(None), "failed: no kernel was found"),
}


@pytest.mark.parametrize("what", WORSE)
def test_a_kernel_that_is_wrong_or_failed_is_worse_than_before_however_fast(what: str) -> None:
    now, problem = WORSE[what]
    assert problems([row(10.0)], [now]) == [f"s float16 m=2: {problem}"]


def test_a_row_that_only_one_run_has_is_missing() -> None:
    assert problems([row(1.0), row(1.0, m=4)], [row(1.0)]) == ["s float16 m=4: missing: only the earlier run has it"]
    assert problems([row(1.0)], [row(1.0), row(1.0, m=4)]) == [
        "s float16 m=4: missing: the earlier run has no such row"
    ]


def test_of_an_earlier_run_what_is_asked_for_is_compared() -> None:
    rows = [row(1.0), row(1.0, m=4)]
    assert asked_for(rows, set(), [{}], None) == asked_for(rows, {"s"}, [{}], "float16") == rows
    assert asked_for(rows, {"s"}, [{"m": 8}, {"m": 4}], None) == rows[1:]
    assert asked_for(rows, set(), [{}], None, {identity("s", {"m": 2}, "float16")}) == rows[1:]
    assert asked_for(rows, {"t"}, [{}], None) == asked_for(rows, set(), [{}], "float32") == []


def test_an_earlier_run_of_another_gpu_or_of_nothing_is_refused(tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    for rows, problem in (([], "no rows"), ([row(1.0), row(1.0, gpu="h100")], "of h100, and the GPU here is h200")):
        before.write_text(json.dumps(rows), encoding="utf-8")
        with pytest.raises(EarlierBenchError, match=problem):
            read_rows(before, "h200", "both")


def test_an_earlier_run_in_another_context_is_refused(tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    old = row(1.0)
    del old["contestants"]["mirage"]["context"]  # as of a version that timed the chain alone
    for rows, was in (([row(1.0), row(1.0, m=4, context="alone")], "alone"), ([old], "chain")):
        before.write_text(json.dumps(rows), encoding="utf-8")
        with pytest.raises(EarlierBenchError, match=f"times are of the context {was}; name it with --context"):
            read_rows(before, "h200", "both")
    before.write_text(json.dumps([old, row(None)]), encoding="utf-8")
    assert read_rows(before, "h200", "chain") == [old, row(None)]


SIZELESS = '[{"spec": "s", "gpu": "h200", "dims": {"m": [1]}, "dtype": "float16", "contestants": {"mirage": null}}]'


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"spec": "s"}]', "[" * 100_000, '[{"contestants": []}]', SIZELESS])
def test_a_file_that_is_no_earlier_run_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "before.json").write_text(text, encoding="utf-8")
    with pytest.raises(EarlierBenchError, match=r"before.json: "):
        read_rows(tmp_path / "before.json", "h200", "both")
    with pytest.raises(EarlierBenchError, match="No such file"):
        read_rows(tmp_path / "none.json", "h200", "both")


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"schema": 1, "results": rows}])
def test_the_file_of_an_earlier_run_is_read(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    """Earlier versions wrote the rows alone."""
    (tmp_path / "before.json").write_text(json.dumps(wrap([row(1.0), row(None)])), encoding="utf-8")
    assert read_rows(tmp_path / "before.json", "h200", "both") == [row(1.0), row(None)]
