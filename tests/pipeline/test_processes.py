"""Processes that search and verify: they run no script of the user's again, import no torch and end when told."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from mirage_cli.pipeline import processes
from mirage_cli.pipeline.processes import Processes
from mirage_cli.tune.child import ChildDied, ChildKilled

SCRIPT = """
from pathlib import Path

with Path("runs").open("a") as runs:
    runs.write("run\\n")

from mirage_cli.pipeline import verifying
from mirage_cli.pipeline.searchers import search_all
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target

SPEC = '''name: scaled
dims: {m: 16, k: 64}
inputs: {X: [m, k]}
program: |
  O = softmax(X * NUMBER, k)
outputs: {O: [m, k]}
'''
programs = [parse_spec(SPEC.replace("NUMBER", str(n))).programs()[0] for n in (2, 3)]
target, options = find_target("h200"), Options(workers=2, tune=False)
print([len(found.plans) > 1 for found in search_all(programs, target, options)])

verifying.SLOW_S = 0.0
print(len(search_program(programs[0], target, options).plans) > 1)
"""
"""What users write: nothing keeps the work from being done again by a process that runs the script again."""


def script_environment(folder: Path) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{root}"}


@pytest.mark.parametrize("read_from", ["a file", "stdin"])
def test_a_script_that_searches_runs_once(read_from: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("open('torch', 'w')\n", encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command, text = ([script], None) if read_from == "a file" else (["-"], SCRIPT)
    done = subprocess.run(
        [sys.executable, *command],
        input=text,
        cwd=tmp_path,
        env=script_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[True, True]\nTrue\n", "")
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "run\n"
    assert not (tmp_path / "torch").exists()


FUNCTIONS = """
import os, time

def add(interrupted, x, y=0):
    return os.getpid(), x + y

def divide(interrupted, x):
    return 1 / x

def wait(interrupted, mark):
    mark.touch()
    while not interrupted():
        time.sleep(0.01)
    return "interrupted"
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "asked_functions.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield importlib.import_module("asked_functions")
    del sys.modules["asked_functions"]


def until(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_process_answers_until_it_dies_and_then_another_does(functions: ModuleType, tmp_path: Path) -> None:
    with Processes(1) as processes:
        first, three = processes.submit(functions.add, 1, y=2).result()
        assert three == 3 and first != os.getpid()
        assert processes.submit(functions.add, 1).result() == (first, 1)
        waiting = processes.submit(functions.wait, tmp_path / "begun")
        until(tmp_path / "begun")
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ChildKilled, match="killed by SIGKILL"):
            waiting.result()
        second, five = processes.submit(functions.add, 5).result()
        assert five == 5 and second != first


def test_an_error_of_the_function_is_told(functions: ModuleType) -> None:
    with Processes(1) as processes, pytest.raises(ChildDied, match=r"code 1: [\s\S]*ZeroDivisionError"):
        processes.submit(functions.divide, 0).result()


def test_an_interrupt_ends_all_that_runs_with_what_it_has(functions: ModuleType, tmp_path: Path) -> None:
    marks = tmp_path / "one", tmp_path / "two"
    with Processes(2) as processes:
        waiting = [processes.submit(functions.wait, mark) for mark in marks]
        for mark in marks:
            until(mark)
        processes.interrupt()
        assert [x.result() for x in waiting] == ["interrupted"] * 2


EARLY = """
import time
from pathlib import Path
from asked_functions import wait
from mirage_cli.pipeline import processes
from mirage_cli.pipeline.processes import Processes

with Processes(1) as processes:
    waiting = processes.submit(wait, Path("begun"))
    while not processes._all:
        time.sleep(0.001)
    processes.interrupt()
    print(waiting.result(60))
"""


def test_an_interrupt_reaches_a_process_that_is_still_starting(tmp_path: Path) -> None:
    (tmp_path / "asked_functions.py").write_text(FUNCTIONS, encoding="utf-8")
    command, env = [sys.executable, "-c", EARLY], script_environment(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_what_runs_at_the_end_is_killed_and_what_has_not_begun_does_not(functions: ModuleType, tmp_path: Path) -> None:
    with Processes(1) as processes:
        begun, late = (processes.submit(functions.wait, tmp_path / name) for name in ("begun", "late"))
        until(tmp_path / "begun")
    assert isinstance(begun.exception(60), ChildKilled) and not (tmp_path / "late").exists()
    with pytest.raises(CancelledError):
        late.result()


@pytest.mark.parametrize("fails", [False, True])
def test_what_processes_are_forked_from_is_asked_for_ahead(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that kernels run in, which starts it, and which ends with the work that was done meanwhile."""
    seen = list[object]()

    class Started:
        def __init__(self, entry: str, *, kernels: bool) -> None:
            seen.append((entry, kernels))

        def kill(self) -> None:
            seen.append("killed")

    monkeypatch.setattr(processes, "Child", Started)
    with suppress(ZeroDivisionError), processes.ahead():
        seen.append(1 // (not fails))
    assert seen == [(processes.__name__, True), *[1] * (not fails), "killed"]
