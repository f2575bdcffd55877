"""Processes that compile and measure are forked from one that has imported torch and Triton."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mirage_cli.tune.child import Child, ChildDied, ChildKilled
from mirage_cli.tune.template import AT, Forked, Template, template
from tests.forked import alive
from tests.pipeline.test_resume import parent_of

MODULE = """
import os, sys, time

def main(connection, what):
    if what == "tells":
        print("said", flush=True)
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch else None
        connection.send((os.getcwd(), os.environ.get("SAID"), os.environ.get("GONE"), threads, os.getppid()))
        os._exit(connection.recv())
    if what == "waits":
        connection.send("waits")
        time.sleep(600)
    if what == "starts":
        import subprocess
        connection.send(subprocess.Popen(["sleep", "600"]).pid)
        time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "templated.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.delenv(AT)  # of the tests
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def little(folder: Path) -> Path:
    """The same, where templates that start find a torch that they import in no time."""
    (folder / "torch.py").write_text("get_num_threads = set_num_threads = print", encoding="utf-8")
    return folder


def start(what: str, **env: str) -> Child:
    return Child("templated", (what,), env, kernels=True)


def ends(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_it_has_its_own_folder_environment_threads_log_and_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GONE", "by then")
    template()
    monkeypatch.delenv("GONE")
    process = start("tells", SAID="this", OMP_NUM_THREADS="1")
    where, said, gone, threads, parent = process.receive(120)
    assert (where, said, gone, threads) == (str(folder), "this", None, 1)
    assert isinstance(process._process, Forked) and parent not in (os.getpid(), process.pid)  # pyright: ignore[reportPrivateUsage]
    process.send(3)
    with pytest.raises(ChildDied, match=r"exited with code 3: said"):
        process.receive(60)
    process.kill()


def test_one_that_is_killed_is_told_from_one_that_fails(folder: Path) -> None:
    process = start("waits")
    assert process.receive(120) == "waits"
    process.send_signal(signal.SIGKILL)
    with pytest.raises(ChildKilled, match="SIGKILL"):
        process.receive(60)
    process.kill()
    absent = Child("no_such_module", kernels=True)
    with pytest.raises(ChildDied, match=r"exited with code 1: No module named 'no_such_module'\n    `mirage doctor`"):
        absent.receive(60)
    absent.kill()


def test_what_it_has_started_ends_with_it(folder: Path) -> None:
    process = start("starts")
    other = process.receive(120)
    assert alive(other)
    process.kill()
    assert ends(other)


def test_a_template_that_is_killed_takes_its_forks_along_and_another_takes_its_place(
    little: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: list[Template] = []
    monkeypatch.setattr(f"{Template.__module__}._templates", own)
    process, first = start("waits"), template()
    assert process.receive(120) == "waits"
    killed = own[0]._process  # pyright: ignore[reportPrivateUsage]
    killed.kill()
    with pytest.raises(ChildKilled):
        process.receive(60)
    assert ends(process.pid)
    process.kill()
    killed.wait()
    again = start("waits")
    assert again.receive(120) == "waits" and template() != first
    again.kill()
    own.pop().close()


def test_one_that_is_killed_as_it_starts_ends(folder: Path) -> None:
    """Also before it has a session of its own."""
    start("waits").kill()
    for _ in range(40):
        process = start("waits")
        pid = process.pid
        process.kill()
        assert ends(pid)


SCRIPT = """
import os, sys, time
from mirage_cli.tune.child import Child
begun = time.monotonic()
process = Child("templated", ("waits",), kernels=True)
if sys.argv[1] == "at once":
    process.kill()
    print(time.monotonic() - begun)
else:
    process.receive(120)
    print(process.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def script(how: str) -> str:
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ['PYTHONPATH']}"}
    return subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, env=env).stdout


def test_they_end_with_the_process_that_asked(little: Path) -> None:
    assert ends(int(script("and is killed")))


def test_one_that_has_not_started_is_not_waited_for(folder: Path) -> None:
    """An interrupt while the template imports."""
    assert float(script("at once")) < 0.5


NESTED = """
import os, sys
from mirage_cli.tune.child import Child

def main(connection):
    child = Child("templated", ("tells",))
    child.receive(60)
    connection.send((child.pid, os.getppid(), type(child._process).__name__))
    connection.recv()
"""


def test_their_own_children_are_forked_from_the_same_template_and_end_with_them(folder: Path) -> None:
    (folder / "nested.py").write_text(NESTED, encoding="utf-8")
    process = Child("nested", kernels=True)
    grandchild, serving, kind = process.receive(120)
    assert kind == "Forked" and parent_of(grandchild) == serving == parent_of(process.pid)
    process.send_signal(signal.SIGKILL)
    assert ends(grandchild)
    process.kill()


def test_kernels_are_interpreted_and_compiled_in_forks_of_two_processes_of_one_template(folder: Path) -> None:
    interprets, compiles = start("tells", TRITON_INTERPRET="1"), start("tells")
    first, second = (p.receive(120)[-1] for p in (interprets, compiles))
    assert first != second and parent_of(first) == second
    interprets.kill()
    compiles.kill()


def test_without_a_template_only_a_child_that_needs_kernels_starts_one(
    little: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{Template.__module__}._templates", [])
    afresh = Child("templated", ("waits",))
    assert not isinstance(afresh._process, Forked)  # pyright: ignore[reportPrivateUsage]
    afresh.kill()
    named = Template()
    monkeypatch.setenv(AT, named.name)
    for runs in (True, False):
        process = Child("templated", ("tells",))
        assert isinstance(process._process, Forked) == runs  # pyright: ignore[reportPrivateUsage]
        assert process.receive(120)[0] == str(little)
        process.kill()
        named.close()


def test_a_template_serves_its_own_user_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    process = start("tells")
    assert not isinstance(process._process, Forked)  # pyright: ignore[reportPrivateUsage]
    process.kill()
