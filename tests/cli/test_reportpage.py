"""`mirage report`: the 24 sizes that one H200 measured, as one page, in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from typer.testing import CliRunner

from mirage_cli.cli import commands
from mirage_cli.cli.reportpage import page
from mirage_cli.pipeline.reported import Section, sections
from mirage_cli.store.records import Measurement
from mirage_cli.store.store import Database
from tests.cli.browser import CHROMIUM, look
from tools.rebuilt import rebuild
from tools.recorded import load

ROOT = Path(__file__).parents[2]
MOST_BYTES = 2_000_000
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "h200.db"
    rows = json.loads((ROOT / "results/h200/contexts.json").read_text(encoding="utf-8"))
    recorded = load(ROOT / "tests/data/h200_tuned.json.gz")
    with Database(path) as store:
        assert rebuild(store, rows, recorded, sorted((ROOT / "search_specs").glob("*.yaml"))) == 24
    return path


def found_in(database: Path) -> list[Section]:
    warnings: list[str] = []
    with Database(database) as store:
        found = sections(store, (), None, warnings.append)
    assert not warnings
    return found


@pytest.fixture(scope="module")
def text(database: Path) -> str:
    return page(found_in(database), "mirage: 24 sizes", "mirage report")


def test_the_page_of_24_sizes_is_small_and_asks_for_nothing(text: str) -> None:
    assert len(text.encode()) < MOST_BYTES
    assert not re.findall(r'(?:src|href|action|data|poster)="(?!#|data:)', text)
    assert "url(" not in text and "@import" not in text and "<script" not in text
    assert "default-src 'none'" in text


def test_every_program_has_all_its_parts(database: Path, text: str) -> None:
    articles = text.split("<article")[1:]
    found = found_in(database)
    assert len(articles) == len(found) == 24
    for s, article in zip(found, articles, strict=True):
        assert s.best.mugraph in article and f'id="p-{s.key.id}"' in article
        assert article.count('class="mugraph"') == article.count('class="roofline"') == 1
        assert {"in a chain", "alone"} <= set(re.findall(r"Time of a call, ([\w ]+) <", article))
        for part in ("History", "What lost, and why", "false accept below", "def k0(" if s.source else "The program"):
            assert part in article, part
        for kernel in s.profiles:
            assert f">{kernel.name}</th>" in article


def test_the_pictures_in_it_are_well_formed(text: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 49, "a plan and a roofline for each, and the roofline of all"
    for x in pictures:
        assert Xml.fromstring(x).get("aria-label")


@needs_chromium
@pytest.mark.parametrize("width", [360, 800, 1600])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_in_a_browser_it_fits_is_legible_and_silent(text: str, width: int, dark: bool, tmp_path: Path) -> None:
    seen = look(text, width, tmp_path, dark)
    assert seen.found["width"] == width and seen.found["dark"] == dark
    assert seen.console == []
    assert seen.found["overflow"] <= 0
    assert seen.found["low"] == [] and seen.found["least"] >= 4.5
    assert seen.found["unreachable"] == [], "what scrolls can be reached by keyboard, and has a name"
    assert seen.found["broken"] == [] and seen.found["unnamed"] == 0
    assert seen.found["scrollers"] > 0 or width > 1000


@needs_chromium
def test_the_browser_sees_what_is_amiss(text: str, tmp_path: Path) -> None:
    pale = text.replace("--faint: #57606a", "--faint: #b0b0b0").replace(
        "<main>", '<main><div style="width:3000px">x</div>'
    )
    pale = pale.replace("<header>", '<header><img src="https://example.org/x.png" alt="x">')
    seen = look(pale, 800, tmp_path)
    assert seen.found["overflow"] > 0 and seen.found["low"] and seen.console


def test_names_that_mean_something_in_html_are_text(database: Path) -> None:
    one = found_in(database)[0]
    strange = replace(one, name="<script>alert(1)</script>", text='"</pre><img src=x onerror=alert(1)>')
    written = page([strange], "a & <b>", "mirage report --db '<x>'")
    assert "<script" not in written and "<img" not in written and "a &amp; &lt;b&gt;" in written


def test_history_has_each_version_and_the_newest_is_told(database: Path, tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    with Database(database) as old, Database(path) as store:
        entry = old.list()[0]
        assert entry.best is not None
        spec = old.spec(entry.key.program_hash)
        assert spec is not None
        store.put_spec(entry.key.program_hash, *spec)
        for triton, us in (("3.5.0", 25.0), ("3.6.0", 20.0)):
            key = replace(entry.key, triton=triton)
            store.put_mugraphs(key, old.mugraphs(entry.key))
            store.put_best(key, replace(entry.best, time_us=us))
        store.put_measurement(key, Measurement("library", {}, (30.0,), 30.0, kernel="eager, packed weights"))
    (section,) = found_in(path)
    assert [m.key.triton for m in section.history] == ["3.5.0", "3.6.0"] and section.best.time_us == 20.0
    written = page([section], "x", "y")
    assert "triton 3.5.0" in written and "25.0 µs" in written
    assert "library (eager, packed weights)" in written and "30.0 µs" in written


def test_the_command_writes_the_page_and_refuses_an_empty_database(database: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    page_path = tmp_path / "out" / "report.html"
    done = runner.invoke(commands.app, ["report", "--db", str(database), "-o", str(page_path)])
    assert done.exit_code == 0 and done.output.split() == [str(page_path)]
    assert page_path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with Database(tmp_path / "empty.db"):
        pass
    done = runner.invoke(commands.app, ["report", "--db", str(tmp_path / "empty.db")])
    assert done.exit_code and "no kernel" in str(done.exception)
