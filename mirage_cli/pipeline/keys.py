"""What the database knows a program by: its text, the GPU, and the versions that are installed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from mirage_cli import __version__
from mirage_cli.ir.program import Program
from mirage_cli.store.records import PREDICTED, Key
from mirage_cli.target.gpus import Target, driver_version


def program_hash(program: Program) -> str:
    """Identity of a program at its sizes."""
    return hashlib.sha256(str(program).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of what results depend on; empty where a package is missing."""
    found = {"mirage": __version__}
    for name in ("torch", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def key_of(program: Program, target: Target, measured: bool) -> Key:
    v = versions()
    driver = (driver_version() or "") if measured else ""
    gpu = target.name if measured else target.name + PREDICTED
    return Key(program_hash(program), program.dims, program.dtype, gpu, driver, v["torch"], v["triton"], v["mirage"])


def keys_of(programs: Sequence[Program], target: Target, measured: bool) -> list[Key]:
    """With the versions that are installed where it is called."""
    return [key_of(p, target, measured) for p in programs]
