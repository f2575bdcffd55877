"""Processes that are forked from one that has imported what they need.

    parent ─ request ─► template, which has imported torch and Triton ─ fork ─► child

A process that starts afresh imports torch and Triton and hashes Triton's own files: seconds, and more where as many
processes do so as there are cores. A fork takes some milliseconds. Nothing in the template touches a GPU, which its
forks could not use then.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import itertools
import os
import pickle
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any  # what comes through a pipe: the caller knows what it asked for

from mirage_cli.tune.modules import hash_triton

IMPORTED = (
    "torch",
    "mirage_cli.tune.offline",
    "mirage_cli.tune.worker",
)
"""Before processes are forked; what cannot be imported is left out, and said by those that need it."""
MOST_BYTES = 1 << 20
"""Of a request."""
CLOSING_S = 0.2
"""What a template may take to end."""


@dataclass(frozen=True, slots=True)
class Start:
    """Asks for a process that runs `entry` (`run_child`) at one end of a pipe. Three descriptors come along: that end,
    the log, and a pipe into which the template writes the number of the process, and later what it ended with.

    number: of this process among those of a template. env, without: what is set and what is not, unlike in the
    template. blocked: signals, as in the thread that asks.
    """

    number: int
    entry: str
    folder: str
    env: Mapping[str, str]
    without: frozenset[str]
    blocked: frozenset[int]


@dataclass(frozen=True, slots=True)
class Send:
    """Asks for a signal to a process, or to all of its session."""

    number: int
    signal: int
    session: bool


class Forked:
    """As much of `subprocess.Popen` as a `Child` asks for."""

    def __init__(self, template: Template, number: int, report: int) -> None:
        self._template, self._number = template, number
        self._report = os.fdopen(report, "rb", buffering=0)
        self._said: list[int] = []  # its number as a process, and what it ended with

    @property
    def pid(self) -> int:
        """Known once the template has started it."""
        self._hears(1, None)
        return self._said[0]

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if not self._hears(2, timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return self._said[1]

    def send_signal(self, sent: int) -> None:
        """Where it has not started yet, when it does."""
        self._template.tell(Send(self._number, sent, session=False))

    def end(self) -> None:
        """Kills it and what it has started in its session, and waits for its end; not for its start."""
        self._template.tell(Send(self._number, signal.SIGKILL, session=True))
        if self._hears(1, 0):
            self._hears(2, None)
        self._report.close()

    def _hears(self, count: int, timeout: float | None) -> bool:
        """Whether the template says so much within the time. One that has ended has taken its forks with it."""
        end = None if timeout is None else time.monotonic() + timeout
        while len(self._said) < count and not self._report.closed:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            if not select.select([self._report], [], [], left)[0]:
                return False
            line = self._report.readline()
            self._said += [int(line)] if line else [-signal.SIGKILL] * (2 - len(self._said))
        return len(self._said) >= count


class Template:
    """The process that others are forked from, started here and ended with this process."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._numbers, self._owner = itertools.count(), os.getpid()
        self.env = {**os.environ, "TRITON_INTERPRET": "0"}
        root = str(Path(__file__).parents[2])
        code = f"import sys; sys.path.insert(0, {root!r}); from {__name__} import serve; serve({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env=self.env,
        )
        theirs.close()

    @property
    def runs(self) -> bool:
        """For this process: one that is a fork of the owner has none."""
        return self._owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """Ends it, and all that it has forked. Of another process, of which this one is a fork, nothing ends."""
        self._requests.close()
        if self._owner == os.getpid():
            try:
                self._process.wait(CLOSING_S)
            except subprocess.TimeoutExpired:  # it is importing, and has forked nothing
                self._process.kill()
                self._process.wait()

    def start(self, entry: str, descriptor: int, log: IO[bytes], env: Mapping[str, str]) -> Forked:
        """Raises OSError where the template has ended."""
        number = next(self._numbers)
        changed = {k: v for k, v in env.items() if self.env.get(k) != v}
        blocked = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        request = Start(number, entry, os.getcwd(), changed, frozenset(self.env.keys() - env.keys()), blocked)
        ours, report = os.pipe()
        try:
            socket.send_fds(self._requests, [pickle.dumps(request)], [descriptor, log.fileno(), report])
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(report)
        return Forked(self, number, ours)

    def tell(self, message: Send) -> None:
        with contextlib.suppress(OSError):  # it has ended, and with it all that it has forked
            self._requests.send(pickle.dumps(message))


# -- in the template


def serve(descriptor: int) -> None:
    """Imports, then forks a process for each request, until whoever asks is gone."""
    for name in IMPORTED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        hash_triton()
    gc.freeze()
    _Forks(socket.socket(fileno=descriptor)).serve()


class _Forks:
    """running: the number among all and the pipe for reports, by process."""

    def __init__(self, requests: socket.socket) -> None:
        self.requests = requests
        self.running: dict[int, tuple[int, int]] = {}
        self.ended, self.wakeup = os.pipe()  # a byte for each SIGCHLD
        os.set_blocking(self.wakeup, False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakeup)
        ready = selectors.DefaultSelector()
        ready.register(self.requests, selectors.EVENT_READ)
        ready.register(self.ended, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fd == self.ended:
                    os.read(self.ended, 1 << 10)
                    self.report()
                    continue
                message, given, *_ = socket.recv_fds(self.requests, MOST_BYTES, 3)
                if not message:
                    for pid in self.running:
                        _kill(pid, signal.SIGKILL, session=True)
                    return
                self.answer(pickle.loads(message), given)

    def answer(self, message: Start | Send, given: list[int]) -> None:
        if isinstance(message, Send):
            for pid in [pid for pid, (number, _) in self.running.items() if number == message.number]:
                _kill(pid, message.signal, message.session)
            return
        connection, log, report = given
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            self.requests.close()
            for fd in (self.ended, self.wakeup, report, *(r for _, r in self.running.values())):
                os.close(fd)
            _run(message, connection, log)
        self.running[pid] = message.number, report
        _write(report, pid)
        os.close(connection)
        os.close(log)

    def report(self) -> None:
        """Says what has ended, and with what."""
        for pid in [*self.running]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _, report = self.running.pop(pid)
                _write(report, os.waitstatus_to_exitcode(status))
                os.close(report)


def _write(report: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(report, f"{number}\n".encode())


def _kill(pid: int, sent: int, session: bool) -> None:
    """A process that has no session of its own yet has started nothing."""
    for kill in (os.killpg, os.kill) if session else (os.kill,):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, sent)


# -- in a process


def run_child(entry: str, descriptor: int, parent: int) -> None:
    """What the process runs: `entry.main(connection, *arguments)`, the arguments being the first message."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection: Connection[Any, Any] = Connection(descriptor)
    with contextlib.suppress(EOFError):
        importlib.import_module(entry).main(connection, *connection.recv())


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(os.getpid(), signal.SIGKILL)


def _run(request: Start, connection: int, log: int) -> None:
    """Makes the fork what a process that starts afresh is, has it run the entry, and ends it."""
    ended = 1
    try:
        template = os.getppid()
        os.setsid()
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        os.chdir(request.folder)
        os.environ.update(request.env)
        for name in request.without:
            os.environ.pop(name, None)
        sys.path[:0] = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
        tempfile.tempdir = None  # which the environment decides
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if threads := request.env.get("OMP_NUM_THREADS"):
            importlib.import_module("torch").set_num_threads(int(threads))
        signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
        run_child(request.entry, connection, template)
        ended = 0
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else 1
    except BaseException:  # the end of the process, which says why
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(ended)


# -- in the process that asks

_lock = threading.Lock()
_templates: list[Template] = []
"""One at most."""


def template() -> Template:
    """This process's, started when it is first asked for, and again where it has ended."""
    with _lock:
        if not _templates or not _templates[0].runs:
            _close()
            _templates.append(Template())
        return _templates[0]


@atexit.register
def _close() -> None:
    while _templates:
        _templates.pop().close()
