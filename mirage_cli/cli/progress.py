"""What a long command says on stderr while it works: one line on a terminal, and on a log a line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console

from mirage_cli.cli.shared import err

LOG_EVERY_S = 5.0
"""Between two lines of a log. A command that takes less time writes none."""


class Told:
    """How far a command is: which program of how many, what is being tried, the best time so far, and the clock.

    budget_s: for each program; None where there is none. Told things from one thread, and read from another.
    """

    def __init__(self, count: int, budget_s: float | None) -> None:
        self.count, self.budget_s = count, budget_s
        self.number, self.name, self.what = 0, "", ""
        self.best_us: float | None = None
        self.begun = self.began = time.monotonic()

    def program(self, number: int, name: str) -> None:
        self.number, self.name, self.what, self.best_us = number, name, "", None
        self.began = time.monotonic()

    def doing(self, what: str, best_us: float | None = None) -> None:
        self.what = what
        if best_us is not None:
            self.best_us = best_us

    def __rich__(self) -> str:
        return self.line()

    def line(self) -> str:
        now = time.monotonic()
        parts = [f"{self.number} of {self.count}"] if self.number else []
        if self.name:
            of_budget = f" of {self.budget_s:g} s" if self.budget_s is not None else " s"
            parts.append(f"{self.name}, {now - self.began:.0f}{of_budget}")
        parts += [self.what] if self.what else []
        parts += [f"best {self.best_us:.2f} µs"] if self.best_us is not None else []
        if self.count > 1:
            parts.append(f"{now - self.begun:.0f} s in all")
        return " · ".join(parts) or "starting"


@contextmanager
def progress(count: int, budget_s: float | None = None, console: Console = err) -> Generator[Told]:
    """A line that says what is being tried; on a terminal it stays in its place and goes at the end."""
    told = Told(count, budget_s)
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
