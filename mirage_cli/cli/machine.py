"""What this machine has, what it lacks, and what that rules out. Facts alone: the command line prints them."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # a module, whose names no type has

from mirage_cli.errors import MirageError
from mirage_cli.store.store import Database, default_path
from mirage_cli.target import knobs
from mirage_cli.target.gpus import DEFAULT, driver_version, local_target

PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Check:
    """One fact. `remedy`: where not `ok`, what that rules out and what to do. Without the `required`, nothing works."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = False


def examine(database: Path | None) -> list[Check]:
    """Every check, in the order in which a person would mend them. Imports torch and triton. Changes nothing.

    database: the file to look at, instead of the one that would be used.
    """
    return [check() for check in CHECKS] + [_database(database)]


# -- what is needed for everything


def _python() -> Check:
    detail = f"{platform.python_version()} at {sys.executable}, {platform.platform(terse=True)}"
    wanted = ".".join(map(str, PYTHON))
    return Check("python", sys.version_info >= PYTHON, detail, f"mirage needs Python {wanted} or newer", required=True)


def _torch() -> Check:
    torch = _module("torch")
    if isinstance(torch, Exception):
        return Check("torch", False, str(torch), "no kernel can be checked or timed; install torch", required=True)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return Check("torch", True, f"{torch.__version__}, {build}", required=True)


def _triton() -> Check:
    triton = _module("triton")
    if isinstance(triton, Exception):
        return Check("triton", False, str(triton), "no kernel can be compiled; install triton", required=True)
    return Check("triton", True, triton.__version__, required=True)


def _knobs() -> Check:
    """Every variable of the environment can be read."""
    problems: list[str] = []
    known = {k.name for k in knobs.KNOBS}
    problems += [
        f"{name} is no variable of mirage" for name in os.environ if name.startswith("MIRAGE_") and name not in known
    ]
    for knob in knobs.KNOBS:
        try:
            knob.value()
        except MirageError as error:
            problems.append(str(error))
    given = [f"{k.name}={os.environ[k.name]}" for k in knobs.KNOBS if os.environ.get(k.name)]
    detail = "; ".join(problems) or ", ".join(given) or "none set"
    return Check("environment", not problems, detail, "unset or correct them")


# -- what is needed to measure


def _driver() -> Check:
    version = driver_version()
    if version is None:
        return Check("driver", False, "no NVIDIA driver", "as for the GPU below")
    return Check("driver", True, version)


def _gpu() -> Check:
    without = (
        f"plans are ranked by the cost model and checked in Triton's interpreter, for --target {DEFAULT} or another"
    )
    if isinstance(torch := _module("torch"), Exception):
        return Check("GPU", False, "cannot be asked without torch", without)
    try:
        target = local_target()
    except MirageError as error:
        return Check("GPU", False, str(error), f"name a --target to plan for; {without}")
    if target is None:
        reason = "none found" if torch.version.cuda else "torch is a CPU build"
        return Check("GPU", False, reason, f"nothing is measured: {without}")
    if not torch.cuda.is_available():
        return Check("GPU", False, "the driver has one, and torch cannot use it", "install a torch for this driver")
    return Check("GPU", True, f"{torch.cuda.get_device_name(0)}, planned for as {target.name} ({target.arch})")


def _interpreter() -> Check:
    on = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")
    remedy = "kernels run in the interpreter and nothing can be timed; unset it to measure"
    return Check("interpreter", not on, "TRITON_INTERPRET is set" if on else "used for checks only", remedy)


# -- what is needed to compile


def _compiler() -> Check:
    """Triton compiles the function that launches a kernel with the C compiler that it finds in this way."""
    found = os.environ.get("CC") or next((p for name in ("clang", "gcc", "cc") if (p := shutil.which(name))), None)
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if found is None or shutil.which(found) is None:
        detail = f"CC={found} is not there" if found else "none of clang, gcc, cc"
        return Check("C compiler", False, detail, "kernels cannot be launched on a GPU; install gcc or set CC")
    if not header.exists():
        remedy = "kernels cannot be launched on a GPU; install Python's headers (python3-dev or python3-devel)"
        return Check("C compiler", False, f"{found}, but no {header}", remedy)
    return Check("C compiler", True, f"{found}, with Python's headers")


def _ptxas() -> Check:
    """Triton brings the assembler and the tool that reads a binary's resources along."""
    remedy = (
        "kernels cannot be compiled for a GPU; reinstall triton, or set TRITON_PTXAS_PATH and TRITON_CUOBJDUMP_PATH"
    )
    if isinstance(triton := _module("triton.knobs"), Exception):
        return Check("ptxas", False, "unknown without triton", remedy)
    try:
        ptxas, cuobjdump = triton.nvidia.ptxas, triton.nvidia.cuobjdump
    except RuntimeError as error:
        return Check("ptxas", False, str(error), remedy)
    return Check("ptxas", True, f"{ptxas.version} at {ptxas.path}; cuobjdump {cuobjdump.version}")


# -- what is kept


def _database(path: Path | None) -> Check:
    """Readable and of this version where it exists; else, whether it could be made."""
    try:
        path = path or default_path()
        if path.exists():
            with Database(path) as store:
                count = len(store.list())
                return Check("database", True, f"{path}, {count} result{'s' * (count != 1)}", required=True)
    except MirageError as error:
        return Check("database", False, str(error), "nothing can be kept", required=True)
    folder = next(p for p in path.absolute().parents if p.exists())
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return Check("database", True, f"{path}, made by the first search", required=True)
    remedy = "nothing can be kept; name another file with --db or MIRAGE_DB"
    return Check("database", False, f"{path} cannot be made: {folder} is not writable", remedy, required=True)


def _cores() -> Check:
    return Check("cores", True, f"{knobs.available_cores()} for search and compilation")


CHECKS: tuple[Callable[[], Check], ...] = (
    _python,
    _torch,
    _triton,
    _cores,
    _driver,
    _gpu,
    _compiler,
    _ptxas,
    _interpreter,
    _knobs,
)


def _module(name: str) -> Any:
    """The module, or the exception that its import raised: a broken installation raises more than ImportError."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return error
