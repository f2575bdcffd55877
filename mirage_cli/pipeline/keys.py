"""What the database knows a program by: its text, the GPU, and the versions that are installed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mirage_cli
from mirage_cli import __version__
from mirage_cli.ir.program import Program
from mirage_cli.store.records import PREDICTED, Key
from mirage_cli.target.gpus import Target, driver_version


def program_hash(program: Program) -> str:
    """Identity of a program at its sizes."""
    return hashlib.sha256(str(program).encode()).hexdigest()[:16]


@cache
def sources() -> str:
    """Identity of this package's modules, which say more than its version while they are changed."""
    folder = Path(mirage_cli.__file__).parent
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of what results depend on; empty where a package is missing."""
    found = {"mirage": __version__}
    for name in ("torch", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def gpu_of(target: Target, measured: bool) -> str:
    """What keys name a GPU by."""
    return target.name if measured else target.name + PREDICTED


def key_of(program: Program, target: Target, measured: bool) -> Key:
    v = versions()
    driver = (driver_version() or "") if measured else ""
    gpu = gpu_of(target, measured)
    return Key(program_hash(program), program.dims, program.dtype, gpu, driver, v["torch"], v["triton"], v["mirage"])


def keys_of(programs: Sequence[Program], target: Target, measured: bool) -> list[Key]:
    """With the versions that are installed where it is called."""
    return [key_of(p, target, measured) for p in programs]
