"""Every example of a console in the documentation is run, and prints what the page says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from mirage_cli.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [
    p
    for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "```console" in p.read_text(encoding="utf-8")
]
MODULES = {"mirage": "mirage_cli", "dask": "dask"}
"""What examples may run."""
PORT = "8786"
"""Of Dask's scheduler, on the pages."""
MOST_LINES = 110
"""Of the README: two screens."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def examples(page: Path) -> list[tuple[str, str]]:
    """Each command line with what it prints."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [
        (m[1], m[2]) for block in blocks for m in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", block, re.MULTILINE)
    ]


def fits(said: str, printed: str) -> bool:
    """`...` stands for any text."""
    pattern = ".*".join(map(re.escape, said.strip().split("...")))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """What a command line of mirage prints, run in this process. The processes that it starts are forked."""

    def printed(words: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", ["mirage", *words])
        handlers = {sent: signal.getsignal(sent) for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        with pytest.raises(SystemExit) as end:
            main()
        for sent, handler in handlers.items():  # a command that has ended ignores them, as what it starts would
            signal.signal(sent, handler)
        shown = capfd.readouterr()
        assert end.value.code in (0, 3), f"{words}: {shown.err}"
        return shown.out

    return printed


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Callable[[list[str]], str]
) -> None:
    found = examples(page)
    assert found
    for name, value in {"MIRAGE_DB": str(tmp_path / "mirage.db"), "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    env, port = {**os.environ, "PYTHONPATH": str(ROOT)}, str(free_port())
    with ExitStack() as started:
        for line, said in found:
            command, _, into = line.replace(PORT, port).removesuffix(" &").partition(" > ")
            words = shlex.split(command)
            if line.endswith(" &"):
                program = [sys.executable, "-m", MODULES[words[0]], *words[1:]]
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                process = started.enter_context(subprocess.Popen(program, cwd=tmp_path, env=env, **quiet))
                started.callback(process.terminate)
                continue
            assert MODULES[words[0]] == "mirage_cli"
            out = printed(words[1:])
            if into:
                (tmp_path / into).write_text(out, encoding="utf-8")
                continue
            assert fits(said, out), f"{line}\n--- the page\n{said}\n--- printed\n{out}"


def test_the_comparison_sees_what_differs() -> None:
    assert fits("a ... c\n", "a b b c") and not fits("a ... c", "a b d") and not fits("a", "a b")


def test_every_page_is_in_the_site_and_every_command_has_an_example_or_a_row() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {p.stem for p in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages == set(re.search(r"maxdepth: 1\n\n(.*?)```", index, re.DOTALL)[1].split())  # type: ignore[index]
    from mirage_cli.cli.shared import app

    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    names = [c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands]
    assert all(f"mirage {name}" in text for name in names)


def test_the_readme_fits_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES
