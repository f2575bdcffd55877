"""What `--json` prints: one envelope for all commands, which docs/json.md describes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from mirage_cli import __version__
from mirage_cli.errors import TargetError

if TYPE_CHECKING:
    from mirage_cli.target.gpus import Target

SCHEMA = 1
"""Counts up where something that a script may rely on goes or changes; additions leave it."""


def envelope(command: str, results: Iterable[object], target: Target | None = None) -> dict[str, object]:
    """A document: the schema, which command, the versions, the machine's GPU and driver, the target, and the results.

    target: the GPU that the results are for, where they are for one.
    """
    from dataclasses import asdict

    from mirage_cli.pipeline.keys import versions
    from mirage_cli.target.gpus import driver_version

    driver = driver_version()
    return {
        "schema": SCHEMA,
        "command": command,
        "mirage": __version__,
        "versions": versions(),
        "gpu": _gpu() if driver is not None else None,
        "driver": driver,
        "target": target and asdict(target),
        "results": list(results),
    }


def _gpu() -> str | None:
    """The GPU here by name; None where there is none that mirage knows."""
    from mirage_cli.target.gpus import local_target

    with suppress(TargetError):
        return (local := local_target()) and local.name
    return None


def emit(command: str, results: Iterable[object], target: Target | None = None) -> None:
    """Prints a document, and nothing else."""
    sys.stdout.write(json.dumps(envelope(command, results, target), indent=1) + "\n")
