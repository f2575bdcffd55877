"""`mirage roofline`: the table, the document and the picture say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from typer.testing import CliRunner

from mirage_cli.cli import commands
from mirage_cli.target.gpus import TARGETS

SPECS = Path(__file__).parents[2] / "search_specs"
RUN = CliRunner()


def told(*arguments: str) -> str:
    done = RUN.invoke(commands.app, ["roofline", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("gpu", [t.name for t in TARGETS])
def test_every_gpu_has_a_bound_at_every_level(gpu: str) -> None:
    sizes = ["--dim", "m=8", "--dim", "n=4096"]
    found = json.loads(told(str(SPECS / "gated_mlp.yaml"), *sizes, "--target", gpu, "--json"))
    (row,) = found["results"]
    assert [x["name"] for x in row["levels"]] == ["matrix units", "memory", "L2", "launches"]
    assert row["bound_us"] == max(x["us"] for x in row["levels"]) > 0
    assert found["target"]["name"] == gpu and row["parallel"] == []


def test_the_table_has_the_figures_of_the_document() -> None:
    arguments = [str(SPECS / "gated_mlp.yaml"), "--dim", "m=8", "--dim", "n=4096", "--target", "h200", "--gpus", "2,8"]
    text, (row,) = told(*arguments), json.loads(told(*arguments, "--json"))["results"]
    for level in row["levels"]:
        assert re.search(rf"^{level['name']} .*{level['us']:.2f}", text, re.MULTILINE)
    assert [x["gpus"] for x in row["parallel"]] == [2, 8]
    for x in row["parallel"]:
        best = x["splits"][0]
        assert f"{x['gpus']} GPUs: split {', '.join(best['axes'])}" in text
        assert best["bound_us"] == min(s["bound_us"] for s in x["splits"])
        assert all(s["program"] is None or s["program"].startswith("program ") for s in best["stages"])
    assert row["parallel"][1]["splits"][0]["bound_us"] < row["parallel"][0]["splits"][0]["bound_us"] < row["bound_us"]


def test_the_picture_has_a_circle_for_each_size() -> None:
    root = Xml.fromstring(told(str(SPECS / "gated_mlp.yaml"), "--target", "h200", "--svg"))
    circles = [x for x in root.iter() if x.tag.endswith("circle")]
    assert len(circles) == 6 and {x.get("class") for x in circles} == {"bound"}
    names = {x.text for x in root.iter() if x.get("class") == "point-text"}
    assert names == {f"m={m} n={n}" for m in (8, 64, 2048) for n in (4096, 14336)}


@pytest.mark.parametrize("gpus", ["1", "two", "2,,x", "0", "4096"])
def test_numbers_of_gpus_that_make_no_sense_are_refused(gpus: str) -> None:
    done = RUN.invoke(commands.app, ["roofline", str(SPECS / "gqa.yaml"), "--gpus", gpus])
    assert done.exit_code == 2 and "--gpus takes numbers" in done.output
