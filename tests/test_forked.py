"""A forked process is as one that is started afresh."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from mirage_cli.tune import child
from mirage_cli.tune.child import Child, ChildDied, ChildKilled
from tests.forked import Forked

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

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="processes are started afresh")


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
    assert os.getpgid(process.pid) == process.pid
    process.kill()
    assert process._process.returncode == -signal.SIGKILL  # pyright: ignore[reportPrivateUsage]
    assert child.started.__module__ == "tests.forked"


def main(connection: object) -> None:
    """Of the process that is killed."""
    signal.pause()
