"""docs/walkthrough.md: its blocks of Python run in order, and print what the page says.

`UPDATE_GOLDEN=1 pytest tests/test_walkthrough.py` writes what they print anew; read the difference before keeping it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "walkthrough.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)


def executed(page: str) -> str:
    """The page, with what each block prints behind it."""
    names: dict[str, Any] = {"__name__": "walkthrough"}

    def run(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[1], str(PAGE), "exec"), names)
        text = printed.getvalue().rstrip()
        return f"```python\n{block[1]}```\n" + (f"\n```text\n{text}\n```\n" if text else "")

    return BLOCK.sub(run, page)


def test_the_page_shows_what_its_blocks_print() -> None:
    text = PAGE.read_text(encoding="utf-8")
    now = executed(text)
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(now, encoding="utf-8")
    assert now == PAGE.read_text(encoding="utf-8")
