"""The page of a benchmark: every figure in its place, and a chart that is well-formed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mirage_cli.cli import benchpage
from mirage_cli.cli.tables import bench_table

RESULTS = Path(__file__).parents[2] / "results"


def contestant(us: float | None, failure: str | None = None) -> dict[str, Any]:
    return {"median_us": us, "spread_us": 0.25 if us else None, "method": "CUDA graph", "failure": failure}


ROW = {
    "spec": "soft & hard",
    "dims": {"m": 8},
    "dtype": "float16",
    "gpu": "h200",
    "driver": "1.2",
    "versions": {"mirage": "0", "torch": "2"},
    "mugraph": "abc",
    "schedule": {"k0": {"tiles": [["m", 4]], "order": ["m"], "warps": 4, "stages": 3, "split": 2, "group": 1}},
    "floor_us": 1.5,
    "ceilings": {"copy_tb_per_s": 4.271, "matmul_tflop_per_s": 650.6, "empty_us": 0.744},
    "tuning": {"seconds": 12.3, "trials": 45},
    "errors": [1e-4, 2e-4],
    "contestants": {"mirage": contestant(2.0), "eager": contestant(8.0), "compile": contestant(None, "it fails\nhere")},
}
WITHOUT = ROW | {"mugraph": None, "schedule": None, "tuning": None, "errors": None}
WITHOUT["contestants"] = {"mirage": contestant(None, "no kernel was found"), "eager": contestant(3.0)}


def test_the_page_has_every_figure() -> None:
    text = benchpage.page([ROW, WITHOUT], "mirage bench x.yaml", "x.svg")
    assert "`mirage bench x.yaml`, mirage 0, torch 2, driver 1.2." in text
    assert "| soft & hard | m=8 | 8.00 ± 0.25 | - | 2.00 ± 0.25 | 1.50 | 0.50 |" in text
    assert "4.00 over eager (1 sizes)" in text
    assert "a copy 4.27 TB/s, a float16 matmul 651 TFLOP/s (less when it is hot), an empty kernel 0.74 µs." in text
    assert "compile: it fails" in text and "mirage: no kernel was found" in text
    assert "12 s, 45 schedules" in text and "split=2" in text


def in_both(chain: float, alone: float) -> dict[str, Any]:
    figures = {"chain_us": chain, "chain_spread_us": 0.25, "alone_us": alone, "alone_spread_us": 0.5}
    return contestant((chain * alone) ** 0.5) | figures


def test_the_page_and_the_table_have_both_contexts() -> None:
    row = ROW | {"contestants": {"mirage": in_both(2.0, 4.0), "eager": in_both(8.0, 10.0)}}
    text = benchpage.page([row, WITHOUT], "mirage bench x.yaml", "x.svg")
    assert "| spec | sizes | eager, chain | mirage, chain | eager, alone | mirage, alone | floor |" in text
    assert "| m=8 | 8.00 ± 0.25 | 2.00 ± 0.25 | 10.00 ± 0.50 | 4.00 ± 0.50 | 1.50 | 0.50 |" in text
    assert "where both ran, chain: 4.00 over eager (1 sizes)." in text
    assert "where both ran, alone: 2.50 over eager (1 sizes)." in text
    assert "`alone` is the same call behind a small elementwise kernel" in text
    assert "eager: 2.50 times" in benchpage.chart([row])
    headers = [c.name for c in bench_table([row]).columns]
    assert headers[3:] == ["mirage, chain", "eager, chain", "mirage, alone", "eager, alone"]


def test_rows_of_earlier_versions_have_a_page_without_the_other_context() -> None:
    text = benchpage.page([ROW], "mirage bench x.yaml", "x.svg")
    assert "| eager | compile | mirage | floor |" in text and "alone" not in text


def test_the_chart_is_well_formed_and_has_a_bar_for_each_baseline_that_ran(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    benchpage.write(path, [ROW, WITHOUT], "mirage bench")
    root = ElementTree.fromstring((tmp_path / "page.svg").read_text(encoding="utf-8"))
    titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["eager: 4.00 times"]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/bench.json")), ids=lambda p: p.parent.name)
def test_published_pages_are_those_of_their_samples(path: Path) -> None:
    rows = json.loads(path.read_text(encoding="utf-8"))
    text = path.with_name("README.md").read_text(encoding="utf-8")
    command = text.split("`")[1]
    assert benchpage.page(rows, command, "README.svg") == text
    assert benchpage.chart(rows) == path.with_name("README.svg").read_text(encoding="utf-8")
    for r in rows:
        for c in r["contestants"].values():
            samples = sorted(c["samples_us"])
            assert c["median_us"] is None or samples[0] <= c["median_us"] <= samples[-1]
