"""What a CI system reads of a gate: JUnit's XML, and GitHub's summary and annotations."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

from mirage_cli.target.files import write_text

SUMMARY = "GITHUB_STEP_SUMMARY"
"""The variable in which GitHub names the file that a step's summary is added to."""
UNREADABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not have."""


class Summary(StrEnum):
    """The values of --summary."""

    github = "github"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a gate. cells: what a table shows of it, behind its name. problem: None where it passed."""

    name: str
    cells: tuple[str, ...]
    problem: str | None


def write_junit(path: Path, suite: str, cases: Sequence[Case]) -> None:
    """A test for each case. Raises OSError."""
    failed = sum(c.problem is not None for c in cases)
    root = ElementTree.Element("testsuites")
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": "0", "skipped": "0"}
    tests = ElementTree.SubElement(root, "testsuite", {"name": suite, **counts})
    for c in cases:
        test = ElementTree.SubElement(tests, "testcase", {"classname": suite, "name": _readable(c.name)})
        if c.problem is not None:
            text = _readable(c.problem)
            ElementTree.SubElement(test, "failure", {"message": text.splitlines()[0] if text else ""}).text = text
        ElementTree.SubElement(test, "system-out").text = _readable("  ".join(c.cells))
    ElementTree.indent(root)
    xml = ElementTree.tostring(root, encoding="unicode")
    write_text(path, f'<?xml version="1.0" encoding="utf-8"?>\n{xml}\n')


def tell_github(suite: str, columns: Sequence[str], cases: Sequence[Case]) -> None:
    """A Markdown table in the step's summary (on stdout outside of GitHub), and an annotation for each that failed.

    Raises OSError.
    """
    text = markdown(suite, columns, cases)
    if path := os.environ.get(SUMMARY):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    for c in cases:
        if c.problem is not None:
            sys.stdout.write(f"::error title={_property(f'{suite}: {c.name}')}::{_data(c.problem)}\n")


def markdown(suite: str, columns: Sequence[str], cases: Sequence[Case]) -> str:
    """The failed first."""
    failed = [c for c in cases if c.problem is not None]
    passed = [c for c in cases if c.problem is None]
    verdict = f"{len(failed)} of {len(cases)} failed" if failed else f"all {len(cases)} passed"
    lines = [f"### {suite}: {verdict}", "", _row(["", "", *columns, ""]), _row(["---"] * (len(columns) + 3))]
    for mark, some in (("❌", failed), ("✅", passed)):
        lines += [_row([mark, c.name, *c.cells, c.problem or ""]) for c in some]
    return "\n".join([*lines, "", ""])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(x) for x in cells) + " |"


def _cell(text: str) -> str:
    """Text that a cell of Markdown shows as it is."""
    text = " ".join(_readable(text).split())
    return re.sub(r"([\\`*_\[\]<>|~#!])", r"\\\1", text).replace("&", "&amp;") if text != "---" else text


def _data(text: str) -> str:
    """The text of a workflow command, as GitHub's runner decodes it."""
    return _readable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _readable(text: str) -> str:
    return UNREADABLE.sub("\N{REPLACEMENT CHARACTER}", text)
