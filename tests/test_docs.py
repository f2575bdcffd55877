"""The architecture page is short, and what it names is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import mirage_cli
from mirage_cli.cli.commands import app

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGE = ROOT / "docs" / "architecture.md"
MOST_WORDS = 1600


def test_the_architecture_page_can_be_read_at_once() -> None:
    assert len(PAGE.read_text(encoding="utf-8").split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES)
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


def test_the_module_of_every_word_of_the_glossary_speaks_of_it() -> None:
    rows = re.findall(
        r"^\| (.+?) \|.*\| `(.+)` \|$", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rows
    for words, module in rows:
        text = (ROOT / "mirage_cli" / module).read_text(encoding="utf-8").lower()
        for word in words.split(", "):
            stem = word.partition(" of ")[0]
            assert stem in text or stem.replace(" ", "_") in text, (word, module)


def test_every_command_is_in_the_table_of_commands() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `mirage ([a-z-]+)", text, re.MULTILINE))
    command_line = get_command(app)
    assert isinstance(command_line, TyperGroup) and named == {*command_line.commands}
    of_cache = re.search(r"`mirage cache ([a-z|\\]+)`", text)
    cache = command_line.commands["cache"]
    assert isinstance(cache, TyperGroup) and of_cache and {*re.findall(r"[a-z]+", of_cache[1])} == {*cache.commands}


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")))
def test_every_page_is_listed_and_begins_with_what_it_is_for(page: Path) -> None:
    """A paragraph stands behind the title, before any table, list or code."""
    title, _, first = page.read_text(encoding="utf-8").partition("\n\n")
    assert title.startswith("# ") and re.match(r"[A-Z`]", first) and not first.startswith("```")
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.MULTILINE)


def written(page: Path, *kinds: str) -> list[str]:
    """The blocks of code of these kinds on a page."""
    return re.findall(
        rf"^```(?:{'|'.join(kinds)})\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_takes_from_the_package_is_there(page: Path) -> None:
    """Imports, and attributes of `mirage_cli`, of every block of Python."""
    for block in written(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mirage_cli"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, a.name) for a in node.names), ast.unparse(node)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mirage_cli":
                assert hasattr(mirage_cli, node.attr) or importlib.import_module(f"mirage_cli.{node.attr}")


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "examples").rglob("*.yml"))])
def test_every_option_that_a_page_gives_a_command_is_one_of_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"\bmirage ((?:[a-z][a-z-]*)(?: [^`|#\n]*)?)", text):
        words = line.split()
        command = get_command(app)
        while isinstance(command, TyperGroup) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "--version"}
        given = {w.partition("=")[0].rstrip(",.;:)") for w in words if re.match(r"--[a-z]", w)}
        assert isinstance(command, TyperGroup) or given <= known, (line, given - known)
