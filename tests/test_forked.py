"""A forked process is as one that is started afresh."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from mirage_cli.tune.child import Child, ChildDied, ChildKilled
from mirage_cli.tune.template import Forked
from tests.forked import Command, command
from tests.pipeline.test_resume import alive

MODULE = """
import os, sys

def main(connection, ending):
    connection.send((os.getpid(), os.getcwd(), os.environ["SAID"], os.getpgid(0), "torch" in sys.modules))
    print("printed", flush=True)
    ending = connection.recv()
    if ending < 0:
        os.kill(os.getpid(), -ending)
    sys.exit(ending)
"""


def test_it_has_its_own_folder_environment_log_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ending.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for n, (ending, kind, says) in enumerate(
        [
            (3, ChildDied, "exited with code 3: printed$"),
            (-signal.SIGABRT, ChildDied, "killed by SIGABRT: printed$"),
            (-signal.SIGKILL, ChildKilled, "killed by SIGKILL: printed$"),
        ]
    ):
        process = Child("ending", (None,), {"SAID": str(n)})
        assert isinstance(process._process, Forked)  # pyright: ignore[reportPrivateUsage]
        pid, folder, said, group, imported = process.receive(60)
        assert (pid, folder, said, group, imported) == (process.pid, str(tmp_path), str(n), pid, True)
        process.send(ending)
        with pytest.raises(kind, match=says):
            process.receive(60)
        process.kill()
    assert "ending" not in sys.modules and "SAID" not in os.environ


def test_it_is_killed_as_it_runs() -> None:
    process = Child("tests.test_forked")
    assert process.receive(60) == "runs"
    assert os.getpgid(process.pid) == process.pid
    process.kill()
    assert process._process.wait() == -signal.SIGKILL  # pyright: ignore[reportPrivateUsage]


STARTS_ANOTHER = """
import atexit, os, sys
from mirage_cli.tune.child import Child

atexit.register(print, "ended")
process = Child("ending", (None,), {"SAID": "nested"})
print(sys.argv[1:], os.getcwd(), os.environ["ASKED"], os.getpgid(0) == os.getpid(), process.receive(60)[1:3])
print(process.pid, type(process._process).__name__, flush=True)
if sys.argv[1] == "waits":
    process.receive(60)
process.send(0)
sys.exit(3)
"""


def asked(folder: Path, word: str) -> Command:
    (folder / "ending.py").write_text(MODULE, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(folder), "ASKED": "yes"}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return command((word, "b"), folder, env, out, err, STARTS_ANOTHER)


def test_a_command_is_as_one_that_is_started_afresh_and_its_processes_are_forked(tmp_path: Path) -> None:
    process = asked(tmp_path, "a")
    assert process.wait(60) == process.poll() == 3
    assert (tmp_path / "err").read_text(encoding="utf-8") == ""
    said, child_process, ended = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert said == f"['a', 'b'] {tmp_path} yes True ({str(tmp_path)!r}, 'nested')"
    assert child_process.split()[1] == "Forked" and ended == "ended"


def test_processes_of_a_command_end_with_it(tmp_path: Path) -> None:
    process = asked(tmp_path, "waits")
    deadline = time.monotonic() + 60
    while len(said := (tmp_path / "out").read_text(encoding="utf-8").split("\n")) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    child_process = int(said[1].split()[0])
    assert alive(child_process)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    while alive(child_process) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child_process)


def main(connection: Connection[str, object]) -> None:
    """Of the process that is killed."""
    connection.send("runs")
    signal.pause()
