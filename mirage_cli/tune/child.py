"""A Python process at the end of a pipe that may hang, crash or be killed without harm to its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, Any  # what comes through a pipe: the caller knows what it asked for

from mirage_cli.tune.template import Forked, fork, run_child

LOG_TAIL_BYTES = 2000


class ChildDied(Exception):
    """The process ended without an answer; the message says by which signal, with the end of what it printed."""


class ChildKilled(ChildDied):
    """By SIGKILL, which nothing that the process ran can have caused: memory was short, or a person did it. It may be
    asked again."""


class Child:
    """A running `module.main(connection, *arguments)`, where `entry` is `module`.

    The process has a session of its own: Ctrl-C at the terminal reaches the parent only, and `kill` also ends whatever
    the process has started. It ends by itself when its parent is gone. It is forked from a process that has imported
    torch (`tune.template`), where there is one. kernels: whether it compiles or runs kernels: that process is started
    then where there is none.
    """

    def __init__(
        self,
        entry: str,
        arguments: tuple[object, ...] = (),
        env: Mapping[str, str] | None = None,
        kernels: bool = False,
    ) -> None:
        self.connection, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        variables = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": _python_path(), **(env or {})}
        self._process = started(entry, theirs.fileno(), self._log, variables, kernels)
        theirs.close()
        with contextlib.suppress(ChildDied):  # the next receive reports it
            self.send(arguments)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Raises ChildDied."""
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._obituary() from None

    def receive(self, timeout_s: float | None) -> Any:
        """The next message, however long it takes where there is no limit. Raises TimeoutError when none comes in time,
        ChildDied."""
        try:
            if not self.connection.poll(timeout_s):
                raise TimeoutError(f"no answer within {timeout_s:g} s")
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._obituary() from None

    def log_tail(self) -> str:
        """The end of what the process printed."""
        if self._log.closed:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(size - LOG_TAIL_BYTES, 0))
        return self._log.read().decode("utf-8", errors="replace").strip()

    def send_signal(self, sent: signal.Signals) -> None:
        """To the process alone; to none where it has ended."""
        self._process.send_signal(sent)

    def kill(self) -> None:
        self._process.end()
        self.connection.close()
        self._log.close()

    def _obituary(self) -> ChildDied:
        code = 0
        try:
            code = self._process.wait(timeout=5)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        except subprocess.TimeoutExpired:  # it takes its time to end, and has printed why
            how = "closed its pipe"
        tail = self.log_tail()
        kind = ChildKilled if code == -signal.SIGKILL else ChildDied
        return kind(f"the process {how}" + (f": {tail}" if tail else ""))


class Afresh(subprocess.Popen[bytes]):
    def end(self) -> None:
        """Kills it and what it has started in its session, and waits for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


def started(entry: str, descriptor: int, log: IO[bytes], env: Mapping[str, str], kernels: bool) -> Afresh | Forked:
    """A process in a session of its own that runs `entry`, prints to `log` and has one descriptor of this process."""
    if (forked := fork(entry, descriptor, log, env, starts=kernels)) is not None:
        return forked
    code = f"from {run_child.__module__} import run_child; run_child({entry!r}, {descriptor}, {os.getpid()})"
    return Afresh(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(descriptor,),
        start_new_session=True,
        env=env,
    )


def _python_path() -> str:
    root = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return f"{root}{os.pathsep}{inherited}" if inherited else root
