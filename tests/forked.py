"""Processes that are forked from one that has imported torch and Triton, which takes a second and a half: those of
`tune.child`, of which tests start some eighty, and command lines. A process that is forked so forks its own the same
way. Tests of how processes start and end start them afresh, as users do."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

COMMAND = "from mirage_cli.cli.main import main; main()"
MOST_BYTES = 1 << 20
"""Of a request: code and an environment."""
FREE = 700
"""Descriptors of a template lie from here on, apart from those that code names."""
AT = "TESTS_FORK_AT"
"""The variable that names the socket of a template, to processes that tests start afresh too."""
IMPORTED = (
    "mirage_cli.cli.commands",
    "mirage_cli.codegen.export",
    "mirage_cli.codegen.torch_source",
    "mirage_cli.pipeline.predicting",
    "mirage_cli.pipeline.processes",
    "mirage_cli.tune.interpreted",
    "mirage_cli.verify.numeric",
    "triton.runtime.interpreter",
    "mirage_cli.tune.offline",
    "mirage_cli.tune.worker",
)
"""What is imported before processes are forked, beside torch."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a process is to run. requester: the process that asks. gives: the number that one of its descriptors has
    there. tied: whether the process ends with the one that asks. blocked: signals, as in the thread that asks."""

    code: str
    arguments: tuple[str, ...]
    env: dict[str, str]
    folder: str
    requester: int
    gives: int | None
    tied: bool
    blocked: frozenset[int]

    @property
    def interprets(self) -> str:
        return "1" if self.env.get("TRITON_INTERPRET") == "1" else "0"


class Forked:
    """As much of `subprocess.Popen` as a `Child` and tests ask for.

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

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, sent: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sent)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """As of `child.Afresh`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            more = os.read(self._report, 1)
            assert more, "the process that others are forked from has ended"
            line += more
        return line


class Template:
    """The process that others are forked from, and the socket that it listens at."""

    def __init__(self) -> None:
        self.at = f"mirage-tests-{uuid4().hex}"
        self._control, theirs = socket.socketpair()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("\0" + self.at)
            listener.listen(64)
            root = str(Path(__file__).parents[1])
            fds = theirs.fileno(), listener.fileno()
            code = f"import sys; sys.path.insert(0, {root!r}); from tests.forked import serve; serve{fds}"
            command, nothing = [sys.executable, "-P", "-c", code], subprocess.DEVNULL
            env = os.environ | {AT: self.at}
            self._process = subprocess.Popen(command, stdin=nothing, pass_fds=fds, start_new_session=True, env=env)
        theirs.close()

    def close(self) -> None:
        self._control.shutdown(socket.SHUT_RDWR)  # whoever else has it
        self._control.close()
        self._process.wait()


# -- in the template


def serve(control: int, listener: int) -> None:
    """The template: has imported torch, and hands each request to a process that has imported Triton too, as the
    request's environment has it, until the tests have ended."""
    import torch  # noqa: F401 - for all that are forked

    end, requests = socket.socket(fileno=_moved(control)), socket.socket(fileno=_moved(listener))
    forking: dict[str, tuple[int, socket.socket]] = {}
    while end not in (ready := select.select([end, requests], [], [])[0]):
        assert ready
        with requests.accept()[0] as asking:
            message, fds, *_ = socket.recv_fds(asking, MOST_BYTES, 5)
        interprets = pickle.loads(message).interprets
        if interprets not in forking:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if (pid := os.fork()) == 0:
                for each in (end, requests, ours, *(s for _, s in forking.values())):
                    each.close()
                for fd in fds:
                    os.close(fd)
                _fork_for(interprets, socket.socket(fileno=_moved(theirs.detach())))
                os._exit(0)
            theirs.close()
            forking[interprets] = pid, ours
        socket.send_fds(forking[interprets][1], [message], fds)
        for fd in fds:
            os.close(fd)
    for pid, to in forking.values():
        to.close()
        os.waitpid(pid, 0)


def _fork_for(interprets: str, requests: socket.socket) -> None:
    """Forks a process for each request, and reports its number and its end."""
    import gc

    os.environ["TRITON_INTERPRET"] = interprets
    with contextlib.suppress(ImportError):  # without Triton
        for name in IMPORTED:
            importlib.import_module(name)
        if interprets == "0":
            from mirage_cli.tune.modules import hash_triton

            hash_triton()  # its own 460 MB, once for all that compile
    gc.freeze()
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
            message, fds, *_ = socket.recv_fds(requests, MOST_BYTES, 5)
            if not message:
                _end(started)
                return
            report, *streams = map(_moved, fds)
            if (pid := os.fork()) == 0:
                requests.close()
                os.setsid()
                os.write(report, f"{os.getpid()}\n".encode())
                _run(pickle.loads(message), streams)
            running[end := os.pidfd_open(pid)] = pid, report
            ready.register(end, select.POLLIN)
            started.append(pid)
            for fd in streams:
                os.close(fd)


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


# -- in a forked process


def _run(request: Request, streams: list[int]) -> None:
    """Runs code as `python -P -c` does, and ends the process as Python does."""
    from mirage_cli.tune import child, template

    os.chdir(request.folder)
    for n, stream in zip((0, 1, 2, request.gives), streams, strict=False):
        os.dup2(stream, n if n is not None else stream)
    at = {AT: os.environ[AT]}
    os.environ.clear()
    os.environ.update(request.env | at)
    paths = request.env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*(p for p in paths if p not in sys.path), *sys.path]
    sys.argv[:] = request.arguments or ["-c"]
    tempfile.tempdir = None  # which depends on the environment
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    if request.tied:
        template._end_with = lambda _: _end_with(request.requester)
    child.started = started
    ended = 1
    try:
        exec(compile(request.code, "<string>", "exec"), {"__name__": "__main__"})
        ended = 0
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        if not request.tied:  # no child of `tune.child` comes to its own end but by an error
            threading._shutdown()
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(ended)


def _end_with(requester: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(requester)], [], [])
    os.killpg(os.getpid(), signal.SIGKILL)


# -- in the process that asks


def asked(request: Request, streams: Sequence[int]) -> Forked:
    """streams: descriptors of standard input, output and errors, and of what the request gives."""
    ours, report = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template:
        template.connect("\0" + _template())
        socket.send_fds(template, [pickle.dumps(request)], [report, *streams])
    os.close(report)
    return Forked(ours)


def started(entry: str, descriptor: int, log: IO[bytes], env: Mapping[str, str], compiles: bool) -> Forked:
    """What takes the place of `child.started`. All are forked, whether or not they compile."""
    code = f"from mirage_cli.tune.template import run_child; run_child({entry!r}, {descriptor}, {os.getpid()})"
    blocked = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    request = Request(code, (), dict(env), os.getcwd(), os.getpid(), descriptor, True, blocked)
    with open(os.devnull, "rb") as nothing:
        return asked(request, [nothing.fileno(), log.fileno(), log.fileno(), descriptor])


def command(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], out: IO[bytes], err: IO[bytes], code: str = COMMAND
) -> Forked | subprocess.Popen[bytes]:
    """A command line of mirage, in a session of its own. It is forked where children of this process are."""
    from mirage_cli.tune import child

    with open(os.devnull, "rb") as nothing:
        if child.started.__module__ == __name__:
            request = Request(
                code, ("mirage", *arguments), dict(env), str(folder), os.getpid(), None, False, frozenset()
            )
            return asked(request, [nothing.fileno(), out.fileno(), err.fileno()])
        afresh = [sys.executable, "-c", code, *arguments]
        streams = {"stdin": nothing, "stdout": out, "stderr": err}
        return subprocess.Popen(afresh, cwd=folder, env=env, start_new_session=True, **streams)


@contextlib.contextmanager
def forked_children() -> Iterator[None]:
    """The children of this process are forked. The template is started when the first is; a process that this one
    starts then needs none of its own."""
    from mirage_cli.tune import child

    own, child.started = child.started, started
    yield
    child.started = own
    while _templates:
        del os.environ[AT]
        _templates.pop().close()


_templates: list[Template] = []


def _template() -> str:
    if AT not in os.environ:
        _templates.append(Template())
        os.environ[AT] = _templates[0].at
    return os.environ[AT]
