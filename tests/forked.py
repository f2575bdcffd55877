"""Processes of `tune.child` that are forked from one that has imported torch, which takes a second. Tests start some
eighty. Those of commands that tests run are started afresh, as users' are."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO

MOST_BYTES = 1 << 20
"""Of a request: code and an environment."""
FREE = 700
"""Descriptors of the template lie from here on, apart from those that code names."""


class Forked:
    """As much of `subprocess.Popen` as a `Child` asks for.

    The template leaves the process that has ended a zombie: no other one has its number while the tests run.
    """

    def __init__(self, report: int) -> None:
        self._report = report
        self.returncode: int | None = None
        self.pid = int(self._line())

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            self.returncode = int(self._line())
            os.close(self._report)
        return self.returncode

    def send_signal(self, sent: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, sent)

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            more = os.read(self._report, 1)
            assert more, "the process that others are forked from has ended"
            line += more
        return line


class Template:
    """The process that others are forked from."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).parents[1])
        code = f"import sys; sys.path.insert(0, {root!r}); from tests.forked import serve; serve({theirs.fileno()})"
        fds = (theirs.fileno(),)
        command, nothing = [sys.executable, "-P", "-c", code], subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=nothing, pass_fds=fds, start_new_session=True)
        theirs.close()

    def started(self, code: str, descriptor: int, log: IO[bytes], env: Mapping[str, str]) -> Forked:
        """What `child.started` gives."""
        ours, report = os.pipe()
        key = "" if env.get("TRITON_INTERPRET") == "1" else _triton_key()
        request = pickle.dumps((code, descriptor, dict(env), os.getcwd(), key))
        socket.send_fds(self._control, [request], [descriptor, log.fileno(), report])
        os.close(report)
        return Forked(ours)

    def close(self) -> None:
        self._control.shutdown(socket.SHUT_RDWR)  # whoever else has it
        self._control.close()
        self._process.wait()


@cache
def _triton_key() -> str:
    """Triton's hash of its own 460 MB, which every process that compiles would take again. Empty where it has none."""
    hashed = getattr(importlib.import_module("triton.runtime.cache"), "triton_key", None)
    return hashed() if hashed else ""


def serve(control: int) -> None:
    """The template: forks a process for each request until the tests have ended."""
    import torch  # noqa: F401 - for all that are forked

    import mirage_cli.tune.interpreted  # noqa: F401 - with what it imports: numpy, and nothing of Triton

    requests = socket.socket(fileno=_moved(control))
    running: dict[int, tuple[int, int]] = {}  # by a descriptor that can be read when it has ended: process and report
    started: list[int] = []
    ready = select.poll()
    ready.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            if descriptor in running:
                ready.unregister(descriptor)
                _report_end(*running.pop(descriptor))
                os.close(descriptor)
                continue
            message, fds, *_ = socket.recv_fds(requests, MOST_BYTES, 3)
            if not message:
                _end(started)
                return
            given, log, report = map(_moved, fds)
            if (pid := os.fork()) == 0:
                requests.close()
                os.setsid()
                os.write(report, f"{os.getpid()}\n".encode())
                _run(*pickle.loads(message), given, log)
            running[end := os.pidfd_open(pid)] = pid, report
            ready.register(end, select.POLLIN)
            started.append(pid)
            os.close(given)
            os.close(log)


def _moved(descriptor: int) -> int:
    import fcntl

    found = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FREE)
    os.close(descriptor)
    return found


def _report_end(pid: int, report: int) -> None:
    if (end := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)) is not None:
        code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        with contextlib.suppress(BrokenPipeError):
            os.write(report, f"{code}\n".encode())
        os.close(report)


def _end(started: list[int]) -> None:
    for pid in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _run(code: str, descriptor: int, env: dict[str, str], folder: str, key: str, given: int, log: int) -> None:
    """The forked process, which runs code as `python -P -c` does. key: what `modules.hash_triton` need not find out."""
    from mirage_cli.tune import child, modules

    os.chdir(folder)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(given, descriptor)
    os.environ.clear()
    os.environ.update(env)
    paths = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*(p for p in paths if p not in sys.path), *sys.path]
    own, template = child.run_child, os.getppid()
    child.run_child = lambda entry, descriptor, _: own(entry, descriptor, template)
    if key:
        modules.hash_triton = lambda: setattr(
            importlib.import_module("triton.runtime.cache"), "triton_key", lambda: key
        )
    ended = 1
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        ended = 0
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(ended)


@contextlib.contextmanager
def forked_children() -> Iterator[None]:
    """The children of this process are forked; the template is started when the first is."""
    from mirage_cli.tune import child

    template: list[Template] = []

    def started(code: str, descriptor: int, log: IO[bytes], env: Mapping[str, str]) -> Forked:
        if not template:
            template.append(Template())
        return template[0].started(code, descriptor, log, env)

    own, child.started = child.started, started  # type: ignore[assignment]
    yield
    child.started = own
    for each in template:
        each.close()
