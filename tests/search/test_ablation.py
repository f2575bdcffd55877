"""Ablations: what they report, and that they leave what is stored alone."""

from __future__ import annotations

import json
from pathlib import Path

from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.store import Database
from tests.cli.test_cli import TINY, spawn, write_specs
from tools.ablation import FULL, VARIANTS, ablations, run


def test_an_ablation_is_printed_with_what_it_took_and_takes_no_ones_place(tmp_path: Path) -> None:
    write_specs(tmp_path)
    search = ("search", "tiny.yaml", "--no-tune")
    full = json.loads(spawn(tmp_path, *search, "--json").out)
    with Database(tmp_path / "mirage.db") as store:
        before = store.list()
    for option in ("--no-prune", "--no-decompose"):
        done = spawn(tmp_path, *search, option, "--workers", "1")
        first = done.out.splitlines()[0]
        assert done.code == 0 and first.startswith("tiny m=4 k=32 n=16: ")
        assert " kernels looked at, exhausted after " in first
    with Database(tmp_path / "mirage.db") as store:
        assert store.list() == before
    again = json.loads(spawn(tmp_path, *search, "--json").out)
    assert [r["best"] for r in again["results"]] == [r["best"] for r in full["results"]]


def test_the_page_has_a_row_for_each_program_and_says_where_time_ran_out() -> None:
    program = parse_spec(TINY).at()
    head, line, row, total = ablations([program])[:4]
    assert head.count("states") == len(VARIANTS) and line.startswith("| --- |")
    assert row.startswith("| tiny |") and total.startswith("| all |") and "ran out" not in row


def test_a_search_that_ran_out_of_time_says_so() -> None:
    stopped = run(parse_spec(TINY).at(), FULL, budget_s=0.0)
    assert stopped.found.stopped == "interrupted" and "(ran out)" in str(stopped.cells()[0])
