"""A search that is killed at any moment leaves a valid database, and the next one ends with the same answer."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.forked import Command, alive

SPECS = {
    "projection": """\
name: projection
dims: {m: 4, k: 32, n: 16}
instances: [{m: 4}, {m: 16}]
inputs:
  X: [m, k]
  W: {dims: [k, n], scale: 0.2}
program: |
  O = silu(dot(X, W, k))
outputs:
  O: [m, n]
""",
    "increment": """\
name: increment
dims: {m: 16}
inputs:
  X: [m]
program: |
  O = X + 1
outputs:
  O: [m]
""",
    "normed": """\
name: normed
dims: {m: 8, k: 32, n: 16}
instances: [{m: 8}, {m: 16}, {m: 32}]
inputs:
  X: [m, k]
  W: {dims: [k, n], scale: 0.2}
program: |
  O = dot(rms_norm(X, k), W, k)
outputs:
  O: [m, n]
""",
}

SEARCHES = {
    "search": ("projection.yaml", "increment.yaml", "normed.yaml", "--no-tune", "--workers", "2"),
    "search and check": ("normed.yaml", "increment.yaml", "--top", "2", "--dim", "m=8", "--workers", "1"),
}
"""Without tuning: six programs, in two processes. With it: two programs, whose kernels are compiled and interpreted."""

MOMENTS = [("search", i) for i in range(8)] + [("search and check", i) for i in range(2)]


@dataclass(frozen=True, slots=True)
class Whole:
    """A run that was never killed: its answer, and how long it took."""

    answer: Any
    seconds: float


def write_specs(folder: Path) -> None:
    for name, text in SPECS.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def start(kind: str, folder: Path) -> Command:
    """A search of its own session. It prints to files."""
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return forked.command(("search", *SEARCHES[kind], "--json"), folder, environment(folder), out, err)


def start_afresh(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    """The same as a user starts it, so that what it leaves behind can be found. It prints nothing."""
    command = [sys.executable, "-m", "mirage_cli", "search", *SEARCHES[kind], "--json"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=folder, env=environment(folder), start_new_session=True, **silent)


def environment(folder: Path) -> dict[str, str]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "MIRAGE_DB": str(folder / "mirage.db")}
    env.pop("TRITON_INTERPRET", None)
    return env


def answer(kind: str, folder: Path) -> Any:
    """What the search answers when nobody kills it, but for the time that it took."""
    code = start(kind, folder).wait(timeout=120)
    said = (folder / "err").read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d of \d · ", line) for line in said) and code == 0, said  # how far it is, on slow machines
    return without_seconds(json.loads((folder / "out").read_text(encoding="utf-8")))


def without_seconds(value: Any) -> Any:
    """A document without what differs from run to run: figures, and whether the database had the answer."""
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if k not in ("seconds", "cached")}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """The run of this kind that was never killed."""
    found: dict[str, Whole] = {}

    def run(kind: str) -> Whole:
        if kind not in found:
            folder = tmp_path_factory.mktemp("whole")
            write_specs(folder)
            begun = time.perf_counter()
            found[kind] = Whole(answer(kind, folder), time.perf_counter() - begun)
        return found[kind]

    return run


def integrity(database: Path) -> str:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def results(database: Path) -> int:
    """How many there are; none where the database is not there yet."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection,
    ):
        return int(connection.execute("SELECT count(*) FROM results").fetchone()[0])
    return 0


def parent_of(process: int) -> int:
    """Raises OSError where there is no such process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def children(process: int) -> list[int]:
    """The processes that this one has started, and those that they have."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return [q for p in found for q in (p, *children(p))]


def end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@pytest.mark.parametrize(("kind", "number"), MOMENTS)
def test_after_a_kill_the_next_search_gives_the_whole_answer(
    kind: str, number: int, whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    """The moments of one kind lie in equal parts of the run's time, one in each."""
    write_specs(tmp_path)
    expected = whole(kind)
    share = (number + random.Random(number).random()) / sum(k == kind for k, _ in MOMENTS)
    process = start(kind, tmp_path)
    try:
        time.sleep(share * expected.seconds)
    finally:
        process.kill()
        process.wait(timeout=60)
        end_group(process.pid)
    database = tmp_path / "mirage.db"
    assert not database.exists() or integrity(database) == "ok"
    assert answer(kind, tmp_path) == expected.answer
    assert integrity(database) == "ok"


def test_after_a_kill_between_two_kernels_of_a_program_both_are_in_the_answer(
    whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    kind = "search and check"
    write_specs(tmp_path)
    expected = whole(kind)
    process = start(kind, tmp_path)
    while not results(tmp_path / "mirage.db") and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait(timeout=60)
    end_group(process.pid)
    assert answer(kind, tmp_path) == expected.answer


@pytest.mark.parametrize(
    "kind",
    [
        "search",
        "search and check",
    ],
)
def test_a_killed_search_leaves_no_process_behind(kind: str, tmp_path: Path) -> None:
    write_specs(tmp_path)
    process = start_afresh(kind, tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not children(process.pid) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)
        left = children(process.pid)
        process.kill()
        process.wait(timeout=60)
        deadline = time.monotonic() + 5
        while (left := [p for p in left if alive(p)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left
    finally:
        process.kill()
        end_group(process.pid)
