"""What a long command says on stderr while it works: one line on a terminal, and on a log a line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from mirage_cli.cli.shared import err

LOG_EVERY_S = 5.0
"""Between two lines of a log. A command that takes less time writes none."""


class Told:
    """How far a command is: which program of how many, what is being tried, the best time so far, and the clock.

    budget_s: for each program; None where there is none. Told things from one thread, and read from another.
    """

    def __init__(self, budget_s: float | None) -> None:
        self.budget_s = budget_s
        self.count, self.number, self.name, self.what = 0, 0, "", "starting"
        self.best_us: float | None = None
        self.begun = self.began = time.monotonic()

    def program(self, number: int, name: str) -> None:
        """The next program is at hand. number: from 1."""
        self.number, self.name, self.what, self.best_us = number, name, "", None
        self.began = time.monotonic()

    def doing(self, what: str, best_us: float | None = None) -> None:
        """What is being tried, and the best time so far where there is one."""
        self.what = what
        if best_us is not None:
            self.best_us = best_us

    def __rich__(self) -> Text:
        return Text(self.line(), no_wrap=True, overflow="ellipsis")

    def line(self) -> str:
        now = time.monotonic()
        parts: list[str] = []
        if self.number:
            parts.append(f"{self.number} of {self.count}" if self.count > 1 else "")
            limit = f" of {self.budget_s:g}" if self.budget_s is not None else ""
            parts.append(f"{self.name} {now - self.began:.0f}{limit} s")
        parts += [self.what, f"best {self.best_us:.2f} µs" if self.best_us is not None else ""]
        parts.append(f"{now - self.begun:.0f} s in all" if self.count > 1 else "")
        return " · ".join(filter(None, parts))


@contextmanager
def progress(budget_s: float | None = None, console: Console = err) -> Generator[Told]:
    """A line that says what is being tried; on a terminal it stays in its place and goes at the end."""
    told = Told(budget_s)
    if console.is_terminal:
        with console.status(told):
            yield told
        return
    ended = threading.Event()

    def log() -> None:
        while not ended.wait(LOG_EVERY_S):
            console.print(told.line())

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        ended.set()
        thread.join()
