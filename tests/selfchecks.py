"""What an exported file says of itself, run as `python FILE` runs it, but in this process: imports take seconds."""

from __future__ import annotations

import contextlib
import io
import runpy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest


class Checked(NamedTuple):
    """code: 0 where the file finds itself right. said: what it prints."""

    code: int
    said: str


@cache
def check_itself(source: str) -> Checked:
    """The answer of a file with this text: of right ones, several tests ask once."""
    said = io.StringIO()
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.py")
        path.write_text(source, encoding="utf-8")
        with pytest.raises(SystemExit) as end, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            runpy.run_path(str(path), run_name="__main__")
    return Checked(int(end.value.code or 0), said.getvalue())
