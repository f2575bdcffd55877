"""Faults of the machine: full disks, what cannot be written, damaged files, several writers, closed streams."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.store.store import Database
from mirage_cli.tune.template import AT
from tests import forked
from tests.cli.test_cli import (
    STORED,
    Mirage,
    Run,
    count,
    environment,
    spawn,
    without_seconds,
    write_specs,
)
from tests.pipeline.test_resume import children, parent_of

READING = (
    *(["cache", "list"], ["cache", "export", "-"], ["show", "tiny.yaml"], ["explain", "tiny.yaml"]),
    *(["export", "tiny.yaml"], ["verify", "--all"], ["lock", "tiny.yaml", "--lock-file", "-"]),
)


@pytest.fixture
def read_only(searched: tuple[Path, Run], tmp_path: Path) -> Path:
    """A folder with a database, none of which can be written to. The last writes are in its write-ahead log alone."""
    folder = tmp_path / "read_only"
    folder.mkdir()
    write_specs(folder)
    shutil.copy(searched[0] / "mirage.db", folder)
    holder = sqlite3.connect(folder / "mirage.db")
    holder.execute("PRAGMA wal_autocheckpoint = 0")
    with holder:
        holder.execute("UPDATE specs SET name = 'renamed'")
    for suffix in ("", "-wal"):
        shutil.copy(folder / f"mirage.db{suffix}", tmp_path / f"copy{suffix}")
    holder.close()
    (folder / "mirage.db").unlink()
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"copy{suffix}", folder / f"mirage.db{suffix}")
        (folder / f"mirage.db{suffix}").chmod(0o444)
    folder.chmod(0o555)
    return folder


WITHOUT_OVERRIDE = f"""
import ctypes
libc, header, held = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # version 3
assert libc.capget(header, held) == 0
for i in range(3):  # effective, permitted, inheritable
    held[i] &= ~(1 << 1)  # CAP_DAC_OVERRIDE
assert libc.capset(header, held) == 0
{forked.COMMAND}
"""
"""The process may not write where permissions forbid it, even where the tests run as root."""


def plain_user(folder: Path, *args: str) -> Run:
    done = forked.ran(args, folder, environment(folder), WITHOUT_OVERRIDE)
    assert "Traceback" not in done.stderr, done.stderr
    return Run(done.returncode, done.stdout, done.stderr)


def test_reading_commands_work_where_nothing_can_be_written(read_only: Path) -> None:
    before = sorted(os.listdir(read_only))
    assert "renamed" in plain_user(read_only, "cache", "list").out
    for args in (["show", "tiny.yaml"], ["explain", "tiny.yaml"], ["export", "tiny.yaml"], ["cache", "export", "-"]):
        run = plain_user(read_only, *args)
        assert run.code == 0 and run.out, (args, run)
    for args in (["search", "tiny.yaml", "--no-tune", "--fresh"], ["cache", "prune", "--spec", "renamed"]):
        run = plain_user(read_only, *args)
        assert run.code == 1 and "error: the database" in run.err and "permissions" in run.err, (args, run)
    assert sorted(os.listdir(read_only)) == before
    read_only.chmod(0o755)  # SQLite opens the file, which it may not change
    run = plain_user(read_only, "search", "tiny.yaml", "--no-tune", "--dim", "m=7")
    assert run.code == 1 and "permissions" in run.err and "error: the database" in run.err, "before any work"
    read_only.chmod(0o555)
    before = sorted(os.listdir(read_only))
    run = plain_user(read_only, "export", "tiny.yaml", "-o", "made.py")
    assert run.code == 1 and run.err.startswith("error: made.py: ")
    assert sorted(os.listdir(read_only)) == before


def limited(folder: Path, most_bytes: int, *args: str) -> Run:
    """A command whose files end there, as on a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from mirage_cli.cli.main import main; main()"
    command, env = [sys.executable, "-c", code, *args], environment(folder, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, preexec_fn=limit)
    assert "Traceback" not in done.stderr, done.stderr
    return Run(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "args",
    [
        ["export", "tiny.yaml", "-o", "out"],
        ["cache", "export", "out"],
        ["verify", "--all", "tiny.yaml", "--junit", "out"],
        ["lock", "tiny.yaml", "--lock-file", "out"],
        ["init", "out"],
    ],
    ids=" ".join,
)
def test_a_file_is_written_whole_or_not_at_all(args: list[str], searched: tuple[Path, Run], tmp_path: Path) -> None:
    write_specs(tmp_path)
    shutil.copy(searched[0] / "mirage.db", tmp_path)
    (tmp_path / "out").write_text("before", encoding="utf-8")
    before = sorted(os.listdir(tmp_path))
    run = limited(tmp_path, 100, *args)
    assert run.code == 1 and re.search(r"\bout(\.yaml)?: ", run.err)
    left = sorted(n for n in os.listdir(tmp_path) if not n.startswith("mirage.db-"))  # SQLite's own
    assert (tmp_path / "out").read_text(encoding="utf-8") == "before" and left == before


def test_a_full_disk_costs_nothing_that_was_committed(searched: tuple[Path, Run], tmp_path: Path) -> None:
    write_specs(tmp_path)
    shutil.copy(searched[0] / "mirage.db", tmp_path)
    size = (tmp_path / "mirage.db").stat().st_size
    run = limited(tmp_path, size, "search", "increment.yaml", "transformer_block.yaml", "--no-tune", "--budget", "1")
    assert run.code == 1 and "error: " in run.err and ("full" in run.err or "cannot be used" in run.err)
    assert "tiny" in spawn(tmp_path, "cache", "list").out and spawn(tmp_path, "export", "tiny.yaml").code == 0


def test_corrupted_pages_are_a_message_in_every_command(
    searched: tuple[Path, Run], tmp_path: Path, found: Mirage
) -> None:
    path = tmp_path / "mirage.db"
    whole = bytearray(path.read_bytes())
    for start in range(4096, len(whole), 4096):
        whole[start : start + 600] = b"\xa5" * 600
    path.write_bytes(whole)
    for args in (*READING, ["cache", "merge", "mirage.db", "--db", "new.db"], ["search", "tiny.yaml", "--no-tune"]):
        run = found(*args)
        assert run.code == 1 and "error: the database" in run.err and "is damaged" in run.err, (args, run)


def test_a_newer_database_is_refused_by_every_command(found: Mirage, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "mirage.db") as connection:
        connection.execute("INSERT INTO migrations VALUES (999, 'of the future', '')")
    connection.close()
    for args in (*READING, ["cache", "merge", "mirage.db", "--db", "new.db"], ["search", "tiny.yaml", "--no-tune"]):
        run = found(*args)
        assert run.code == 1 and "was made by a newer mirage: its format is 999" in run.err, (args, run)


def test_an_older_database_is_read_without_being_changed(found: Mirage, tmp_path: Path) -> None:
    path = tmp_path / "mirage.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("ALTER TABLE measurements DROP COLUMN alone_samples_us")
        connection.execute("DROP TABLE beside")
        connection.execute("DROP TABLE tried")
        connection.execute("CREATE TABLE searches (key TEXT NOT NULL)")
        connection.execute("DELETE FROM migrations WHERE number > 1")
    connection.close()
    before = path.read_bytes()
    for args in READING:
        assert found(*args).code == 0, args
    assert path.read_bytes() == before


WRITER = """
import sys
from mirage_cli.store.records import Key, Measurement
from mirage_cli.store.store import Database
n = int(sys.argv[1])
with Database("mirage.db") as store:
    for i in range(25):
        store.put_measurement(Key(f"p{n}", (("m", i),), "float16", "h100"), Measurement("aaaa", {}, (float(i),), 1.0))
"""


def test_eight_writers_lose_nothing(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with (tmp_path / "out").open("wb") as out:
        writers = [forked.command([str(n)], tmp_path, env, out, out, WRITER) for n in range(8)]
        assert [w.wait(60) for w in writers] == [0] * 8
    with Database(tmp_path / "mirage.db") as store:
        assert len(store.list()) == 8 * 25 and all(e.measurements == 1 for e in store.list())


@pytest.mark.parametrize("closed", ["stdout", "stderr", "stdin"])
def test_a_closed_stream_is_no_traceback(closed: str, searched: tuple[Path, Run]) -> None:
    """Nor does a database or a file take its place."""
    number = {"stdin": 0, "stdout": 1, "stderr": 2}[closed]
    show = [sys.executable, "-m", "mirage_cli", "show", "tiny.yaml"]
    command = [sys.executable, "-c", f"import os; os.close({number}); os.execv({sys.executable!r}, {show})"]
    done = subprocess.run(
        command, cwd=searched[0], env=environment(searched[0]), capture_output=True, timeout=60, check=False
    )
    assert done.returncode in (0, 1) and b"Traceback" not in done.stderr
    assert (closed == "stdout") == (done.stdout == b"")
    assert count(searched[0] / "mirage.db", "results") == 1


KILLED_WRITING = """
import os, signal
from mirage_cli.store import store
real = store._put_kernel
def put_kernel(*row):
    real(*row)
    os.kill(os.getpid(), signal.SIGKILL)
store._put_kernel = put_kernel
from mirage_cli.cli.main import main
main()
"""


def test_a_command_that_is_killed_as_it_writes_loses_nothing_that_was_committed(
    searched: tuple[Path, Run], tmp_path: Path
) -> None:
    write_specs(tmp_path)
    shutil.copy(searched[0] / "mirage.db", tmp_path)
    search = ("search", "increment.yaml", "--no-tune", "--dim", "m=16")
    with (tmp_path / "out").open("wb") as out:
        killed = forked.command(search, tmp_path, environment(tmp_path), out, out, KILLED_WRITING).wait(120)
    assert killed == -signal.SIGKILL
    with Database.reading(tmp_path / "mirage.db") as store:
        (tiny, new) = store.list()
        assert tiny.best is not None and new.best is None and new.mugraphs
    assert spawn(tmp_path, *search).code in (0, 3)
    with Database.reading(tmp_path / "mirage.db") as store:
        assert all(e.best is not None for e in store.list())


def kind_of(pid: int, run: int) -> str | None:
    """Of a process that a run has started: its template, or a fork of the template's second process.

    Forks lead sessions of their own. A compiler's tool that is being started still has the command line of the fork
    that starts it, and is neither.
    """
    if "mirage_cli.tune.template" in Path(f"/proc/{pid}/cmdline").read_text():
        parent = parent_of(pid)
        if parent == run:
            return "template"
        return "interprets" if parent_of(parent) != run and os.getsid(parent) != parent else None
    return None


def differing(a: Any, b: Any, at: str = "") -> list[str]:
    """The fields in which two documents differ, with both values."""
    if isinstance(a, dict) and isinstance(b, dict):
        return [line for k in sorted({*a, *b}) for line in differing(a.get(k), b.get(k), f"{at}.{k}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [line for i, (x, y) in enumerate(zip(a, b, strict=True)) for line in differing(x, y, f"{at}[{i}]")]
    return [] if a == b else [f"{at}: {a!r} != {b!r}"]


def test_processes_that_are_killed_cost_a_search_nothing(searched: tuple[Path, Run], tmp_path: Path) -> None:
    """The one from which those that compile are forked, with these, and the one that interprets."""
    write_specs(tmp_path)
    command = [sys.executable, "-m", "mirage_cli", *STORED, "--workers", "2"]
    env, killed = environment(tmp_path), list[str]()
    del env[AT]  # it has a template of its own
    with (tmp_path / "out").open("wb") as out:
        run = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=subprocess.DEVNULL)
        while run.poll() is None:
            for pid in children(run.pid):
                with suppress(OSError):
                    if (kind := kind_of(pid, run.pid)) is not None and kind not in killed:
                        os.kill(pid, signal.SIGKILL)
                        killed.append(kind)
            time.sleep(0.02)
    assert sorted(killed) == ["interprets", "template"] and run.returncode == 0
    said = json.loads((tmp_path / "out").read_text())["results"]
    assert differing(without_seconds(said), without_seconds(searched[1].results)) == []
