"""The architecture page is short, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
MOST_WORDS = 1600


def test_the_architecture_page_can_be_read_at_once() -> None:
    assert len(PAGE.read_text(encoding="utf-8").split()) <= MOST_WORDS


@pytest.mark.parametrize("page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`([\w/]+(?:/|\.py|\.md|\.yaml))`", page.read_text(encoding="utf-8"))
    missing = [
        n for n in named if not any((place / n).exists() for place in (ROOT, ROOT / "mirage_cli", ROOT / "docs"))
    ]
    assert not missing


def test_every_package_is_in_the_table_of_stages_or_the_order() -> None:
    text = PAGE.read_text(encoding="utf-8")
    packages = {p.parent.name for p in (ROOT / "mirage_cli").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"\w+", next(x for x in text.splitlines() if x.startswith("    errors < "))))
