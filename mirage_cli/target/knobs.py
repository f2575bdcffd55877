"""KNOBS: every environment variable that mirage reads, one row each. `KNOB.value()` reads it anew at every call."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar  # of a knob, the type of its value

from mirage_cli.errors import KnobError

T = TypeVar("T")
MAX_WORKERS = 1024
MAX_SEED = (1 << 63) - 1
"""What the database's integers hold."""


@dataclass(frozen=True, slots=True)
class Knob(Generic[T]):
    """`parse` turns the variable's text into a value, and raises ValueError saying what was expected."""

    name: str
    doc: str
    default: str
    parse: Callable[[str], T]

    def value(self) -> T:
        """The variable's value, or the default where it is unset or empty. Raises KnobError."""
        text = os.environ.get(self.name) or self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise KnobError(self.name, text, str(error)) from error


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def _workers(text: str) -> int:
    if not text:
        return available_cores()
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise ValueError(f"a number of processes, 1 to {MAX_WORKERS}")
    return int(text)


def available_cores() -> int:
    """Cores that this process may run on, which a container or `taskset` may have made fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


DB = Knob("MIRAGE_DB", "path of the database (default: mirage/mirage.db in the user's cache directory)", "", _path)
WORKERS = Knob("MIRAGE_WORKERS", "processes to search and compile with (default: the cores there are)", "", _workers)

KNOBS: tuple[Knob[Any], ...] = (DB, WORKERS)
