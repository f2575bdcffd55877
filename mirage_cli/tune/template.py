"""Processes that are forked from one that has imported what they need.

    parent ─ Start ─► template, which has imported torch and the child's module ─ fork ─► child

A process that starts afresh imports torch and Triton and hashes Triton's own files: seconds, and more where as many
processes do so as there are cores. A fork takes some milliseconds. Nothing in the template touches a GPU, which its
forks could not use then.

A template listens at two sockets. Triton reads on import whether it interprets kernels, so that the template becomes
two processes when it has imported torch: one forks what compiles kernels, one what interprets them. The name of the
template is in the environment of its forks, whose own children are forked from it too.

A module whose children first do what never changes has it in a function `prepare()`, which the template calls once.

Each child has a connection of its own. The parent sends `Start`, then signals; the template answers with the number of
the process, then with what it ended with. A child ends when the parent closes the connection, or ends itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import select
import selectors
import signal
import socket
import struct
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
from uuid import uuid4

AT = "_MIRAGE_TEMPLATE"
"""The environment variable that names the template from which this process's children are forked."""
INTERPRETS = "TRITON_INTERPRET"
MOST_BYTES = 1 << 20
"""Of a request."""
WAITING = 64
"""Connections that a template may have to accept yet, as while it imports."""
CLOSING_S = 0.2
"""What a template may take to end."""


@dataclass(frozen=True, slots=True)
class Start:
    """Asks for a process that runs `entry` (`run_child`) at one end of a pipe. Two descriptors come along: that end,
    and the log. env: the whole environment. blocked: signals, as in the thread that asks."""

    entry: str
    folder: str
    env: Mapping[str, str]
    blocked: frozenset[int]


@dataclass(frozen=True, slots=True)
class Send:
    """Asks for a signal to the process, or to all of its session."""

    signal: int
    session: bool


class Forked:
    """As much of `subprocess.Popen` as a `Child` asks for."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
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
        self._tell(Send(sent, session=False))

    def end(self) -> None:
        """Kills it and what it has started in its session, and waits for its end; not for its start."""
        self._tell(Send(signal.SIGKILL, session=True))
        if self._hears(1, 0):
            self._hears(2, None)
        self._connection.close()

    def _tell(self, message: Send) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send(pickle.dumps(message))

    def _hears(self, count: int, timeout: float | None) -> bool:
        """Whether the template says so much within the time. One that has ended has taken its forks with it."""
        end = None if timeout is None else time.monotonic() + timeout
        while len(self._said) < count and self._connection.fileno() >= 0:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            if not select.select([self._connection], [], [], left)[0]:
                return False
            said = _received(self._connection)
            self._said += [int(said)] if said else [-signal.SIGKILL] * (2 - len(self._said))
        if len(self._said) == 2:
            self._connection.close()
        return len(self._said) >= count


class Template:
    """The process that others are forked from, started here and ended with this process. It imports when it is first
    asked for one."""

    def __init__(self) -> None:
        self.name, self._owner = f"mirage-{uuid4().hex}", os.getpid()
        self._control, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            given = [stack.enter_context(theirs), *(stack.enter_context(_listener(self.name, x)) for x in "01")]
            fds = [s.fileno() for s in given]
            root = str(Path(__file__).parents[2])
            code = f"import sys; sys.path.insert(0, {root!r}); from {__name__} import serve; serve{self.name, *fds}"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
                # read when NumPy is imported: blocks of a kernel that is interpreted are small
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
            )

    @property
    def runs(self) -> bool:
        """For this process: one that is a fork of the owner has none."""
        return self._owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """Ends it, and all that it has forked. Of another process, of which this one is a fork, nothing ends."""
        self._control.close()
        if self._owner == os.getpid():
            try:
                self._process.wait(CLOSING_S)
            except subprocess.TimeoutExpired:  # it is importing, and has forked nothing for these imports
                self._process.kill()
                self._process.wait()


def _address(name: str, interprets: str) -> str:
    """Abstract: it goes with the template."""
    return f"\0{name}-{interprets}"


def _listener(name: str, interprets: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(_address(name, interprets))
    listener.listen(WAITING)
    return listener


def _by_this_user(connection: socket.socket) -> bool:
    """Whether its other end is this user's, as processes of all users can name an abstract socket."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", found)
    return user == os.getuid()


def _received(connection: socket.socket) -> bytes:
    """A message; none where the other end is closed."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(MOST_BYTES)
    return b""


# -- in the template


def serve(name: str, control: int, *listeners: int) -> None:
    """Waits for the first request, and imports torch. Then one process serves those that compile and one those that
    interpret, until the owner is gone."""
    if control in select.select([control, *listeners], [], [])[0]:
        return
    os.environ[AT] = name
    with contextlib.suppress(Exception):  # what cannot be imported is said by the forks that need it
        importlib.import_module("torch")
    interprets = os.fork() == 0
    os.environ[INTERPRETS] = str(int(interprets))
    os.close(listeners[not interprets])
    _Forks(socket.socket(fileno=control), socket.socket(fileno=listeners[interprets])).serve()


class _Forks:
    """running: connections by process."""

    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self.control, self.listener = control, listener
        self.running: dict[int, socket.socket] = {}
        self.imported: set[str] = set()
        self.ended, self.wakeup = os.pipe()  # a byte for each SIGCHLD
        self.ready = selectors.DefaultSelector()
        os.set_blocking(self.wakeup, False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakeup)
        for each in (self.control, self.listener, self.ended):
            self.ready.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in self.ready.select():
                if key.fileobj is self.control:
                    for pid in self.running:
                        _kill(pid, signal.SIGKILL, session=True)
                    return
                if key.fileobj is self.listener:
                    self.accept()
                elif key.fd == self.ended:
                    os.read(self.ended, 1 << 10)
                    self.report()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() >= 0:
                    self.answer(key.fileobj)

    def accept(self) -> None:
        connection, _ = self.listener.accept()
        if _by_this_user(connection):
            self.ready.register(connection, selectors.EVENT_READ)
        else:
            connection.close()

    def answer(self, connection: socket.socket) -> None:
        message, given = b"", list[int]()
        with contextlib.suppress(ConnectionResetError):
            message, given, *_ = socket.recv_fds(connection, MOST_BYTES, 2)
        asked: Start | Send = pickle.loads(message) if message else Send(signal.SIGKILL, session=True)
        if isinstance(asked, Start):
            self.fork(asked, connection, given)
            return
        for pid in [pid for pid, of in self.running.items() if of is connection]:
            _kill(pid, asked.signal, asked.session)
        if not message:
            self.close(connection)

    def fork(self, request: Start, connection: socket.socket, given: list[int]) -> None:
        self.prepare(request.entry)
        held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until the fork handles its own
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            for key in [*self.ready.get_map().values()]:
                os.close(key.fd)
            os.close(self.wakeup)
            self.ready.close()
            _run(request, *given)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        self.running[pid] = connection
        _say(connection, pid)
        for descriptor in given:
            os.close(descriptor)

    def prepare(self, entry: str) -> None:
        """Imports what the fork would. A module that cannot be imported here is left to it, and said by it."""
        if entry not in self.imported:
            self.imported.add(entry)
            with contextlib.suppress(Exception):
                getattr(importlib.import_module(entry), "prepare", lambda: None)()
            gc.freeze()

    def report(self) -> None:
        """Says what has ended, and with what."""
        for pid in [*self.running]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = self.running.pop(pid)
                _say(connection, os.waitstatus_to_exitcode(status))
                self.close(connection)

    def close(self, connection: socket.socket) -> None:
        if connection.fileno() >= 0:
            self.ready.unregister(connection)
            connection.close()


def _say(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # whoever asked is gone
        connection.send(str(number).encode())


def _kill(pid: int, sent: int, session: bool) -> None:
    """A process that has no session of its own yet has started nothing."""
    for kill in (os.killpg, os.kill) if session else (os.kill,):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, sent)


# -- in a process


def run_child(entry: str, descriptor: int, parent: int) -> None:
    """What the process runs: `entry.main(connection, *arguments)`, the arguments being the first message. It says what
    is not installed where something is not."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection: Connection[Any, Any] = Connection(descriptor)
    try:
        with contextlib.suppress(EOFError):
            importlib.import_module(entry).main(connection, *connection.recv())
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{error}\n    `mirage doctor` says what is missing\n")
        sys.exit(1)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(os.getpid(), signal.SIGKILL)


def _run(request: Start, connection: int, log: int) -> None:
    """Makes the fork what a process that starts afresh is, has it run the entry, and ends it."""
    ended = 1
    try:
        template, name = os.getppid(), os.environ[AT]
        os.setsid()
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update({**request.env, AT: name})
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
"""One at most: this process's own."""


def template() -> str:
    """The name of the one from which this process's children are forked, for processes that it starts otherwise."""
    return os.environ.get(AT) or _own()


def _own() -> str:
    """The name of this process's own, started when it is first asked for, and again where it has ended."""
    with _lock:
        if not _templates or not _templates[0].runs:
            _close()
            _templates.append(Template())
        return _templates[0].name


def fork(entry: str, descriptor: int, log: IO[bytes], env: Mapping[str, str], starts: bool) -> Forked | None:
    """From the template that the environment names, where it runs, else from this process's own. starts: whether that
    is started where there is none. None without a template."""
    blocked = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    request = Start(entry, os.getcwd(), dict(env), blocked)
    given = [descriptor, log.fileno()]
    if AT in os.environ and (forked := _forked(os.environ[AT], request, given)) is not None:
        return forked
    return _forked(_own(), request, given) if starts or _templates else None


def _forked(name: str, request: Start, given: list[int]) -> Forked | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError):  # it has ended
        connection.connect(_address(name, "1" if request.env.get(INTERPRETS) == "1" else "0"))
        if _by_this_user(connection):
            socket.send_fds(connection, [pickle.dumps(request)], given)
            return Forked(connection)
    connection.close()
    return None


@atexit.register
def _close() -> None:
    while _templates:
        _templates.pop().close()
