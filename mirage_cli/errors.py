"""Every error that a user can meet, one class each, with its message template. Nothing else raises text at a user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class MirageError(Exception):
    """Base of all errors that are the input's or the machine's fault. The command line prints no traceback."""


class KnobError(MirageError):
    """An environment variable with a value that cannot be read."""

    def __init__(self, name: str, text: str, expected: str) -> None:
        super().__init__(f"the environment variable {name} is {text!r}; expected {expected}")


class TargetError(MirageError):
    """A GPU that mirage knows nothing of."""

    def __init__(self, text: str, names: Iterable[str]) -> None:
        super().__init__(f"no GPU is known as {text!r}; known are {', '.join(names)}")


class StoreError(MirageError):
    """A database that cannot be used as it is, with the remedy."""

    def __init__(self, path: object, problem: str, remedy: str) -> None:
        super().__init__(f"the database {path} {problem}\n    {remedy}")


class UsageError(MirageError):
    """An option's value that cannot be read."""


class NothingStoredError(MirageError):
    """A command that needs an earlier search's result, which is not there."""

    def __init__(self, name: str, sizes: object) -> None:
        super().__init__(f"nothing is stored for {name} at {sizes}\n    run `mirage search` on the spec first")


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake in a spec: where it is, what is wrong, and the nearest valid name where one is close.

    line, column: from 1. source: the line itself.
    """

    path: str
    line: int
    column: int
    source: str
    message: str
    suggestion: str | None = None
    severity: str = "error"

    def __str__(self) -> str:
        text = f"{self.path}:{self.line}:{self.column}: {self.severity}: {self.message}"
        if self.source:
            text += f"\n    {self.source}\n    {' ' * (self.column - 1)}^"
        if self.suggestion:
            text += f"\n    help: did you mean `{self.suggestion}`?"
        return text


class SpecError(MirageError):
    """A spec with mistakes, all of them."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(diagnostics, key=lambda d: (d.line, d.column)))
        count = len(self.diagnostics)
        heading = f"the spec has {count} mistake{'s' if count > 1 else ''}"
        super().__init__("\n".join([heading, *map(str, self.diagnostics)]))
