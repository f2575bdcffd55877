"""Functions that run side by side, each in a process of its own that knows nothing of the user's script.

`multiprocessing` runs the main script again in a process that it spawns. A script that searches when it is run, as most
do, would search again there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Concatenate, ParamSpec, TypeVar  # what comes through a pipe: a function's own result

from mirage_cli.tune.child import Child

P = ParamSpec("P")
R = TypeVar("R")
Interrupted = Callable[[], bool]
"""Asked now and then by a function that runs in another process: true where it should end with what it has."""


class Processes:
    """At most `count` processes, started when first needed. A context manager: what still runs at its end is killed.

    A thread for each process waits for its answers. A process that dies costs what it was asked, and no more: the next
    question starts another.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, initializer=_hold_interrupts)
        self._lock = threading.Lock()
        self._all: list[Child] = []
        self._idle: list[Child] = []
        self._closed = False

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
        self._signal(signal.SIGKILL)  # a thread that waits for an answer is told that its process died
        self._threads.shutdown()
        for child in self._all:
            child.kill()

    def submit(
        self, function: Callable[Concatenate[Interrupted, P], R], *arguments: P.args, **named: P.kwargs
    ) -> Future[R]:
        """`function(interrupted, ...)`, a function of a module of mirage. The future raises ChildDied where the process
        was killed, and where the function raised an error, which the message shows."""
        return self._threads.submit(self._ask, function, arguments, named)

    def interrupt(self) -> None:
        """Tells the functions that run to end with what they have."""
        self._signal(signal.SIGINT)

    def _ask(self, *question: object) -> Any:
        with self._lock:
            if self._closed:
                raise CancelledError
            child = self._idle.pop() if self._idle else Child(__name__)
            if child not in self._all:
                self._all.append(child)
        child.send(question)
        answer = child.receive(None)
        self._idle.append(child)
        return answer

    def _signal(self, sent: signal.Signals) -> None:
        with self._lock:
            for child in self._all:
                child.send_signal(sent)


@contextmanager
def ahead() -> Generator[None]:
    """Has the process that others are forked from import what they need, while other work is done."""
    child = Child(__name__, kernels=True)
    try:
        yield
    finally:
        child.kill()


def _hold_interrupts() -> None:
    """In this thread and in the processes that it starts, which take those that came meanwhile when they can."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def main(connection: Connection[Any, Any]) -> None:
    """The process: answers (function, arguments, named arguments) with the function's result."""
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    while True:
        function, arguments, named = connection.recv()
        connection.send(function(interrupted.is_set, *arguments, **named))
