"""The kernels of a model as a Python package: a file for each region, the names, and a page that says what each is.

model ─► regions ─► their stored kernels ─► files by name ─► a folder, which is there whole or not at all
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_cli.codegen.exported.public import interface
from mirage_cli.errors import NoKernelError, PackageError
from mirage_cli.ir.program import dims_text
from mirage_cli.pipeline.callers import Kernel
from mirage_cli.pipeline.models.region import Region
from mirage_cli.pipeline.models.regions import Cut

README, INIT = "README.md", "__init__.py"


@dataclass(frozen=True)
class Packed:
    """A package's files by name, and the regions that are not in it, with the reason."""

    files: Mapping[str, str]
    missing: Mapping[str, str]


def packed(model: str, found: Cut, kernels: Sequence[Kernel | NoKernelError], gpu: str) -> Packed:
    """kernels: of the regions, in order, for this GPU. Raises PackageError where there is none at all."""
    pairs = list(zip(found.regions, kernels, strict=True))
    made = {k.program.name: (r, k) for r, k in pairs if isinstance(k, Kernel)}
    missing = {r.graph.name: k.why for r, k in pairs if isinstance(k, NoKernelError)}
    if not made:
        remedy = "run `mirage search` on the specs that `mirage trace` writes, or name another GPU with --target"
        raise PackageError(model, f"the database has a kernel of none of its regions for {gpu}\n    {remedy}")
    files = {f"{name}.py": k.source for name, (_, k) in made.items()}
    return Packed({**files, INIT: init_of(model, made), README: readme(model, made, missing | found.left)}, missing)


def init_of(model: str, names: Sequence[str] | Mapping[str, object]) -> str:
    lines = [f'"""The kernels of {model}. {README} says what each computes, and how it was verified."""', ""]
    lines += [f"from .{name} import {name}" for name in sorted(names)]
    listed = "".join(f'    "{name}",\n' for name in sorted(names))
    return "\n".join([*lines, "", f"__all__ = [\n{listed}]\n"])


def readme(model: str, made: Mapping[str, tuple[Region, Kernel]], left: Mapping[str, str]) -> str:
    """A section for each kernel, and what PyTorch is to compute."""
    parts = [f"# Kernels of {model}", "Each file needs only torch and triton; `python FILE` checks it against float64."]
    for name, (region, kernel) in made.items():
        rows = [
            f"* called {region.times} times in the model",
            f"* {interface(kernel.program)}, where {dims_text(kernel.program.dims)}",
            f"* {kernel.times}",
            f"* right: {kernel.best.claim or 'never looked at'}",
        ]
        text = region.graph.text().strip()
        parts += [f"## {name}", "\n".join(rows), f"```yaml\n{text}\n```"]
    if left:
        parts += ["## Left to PyTorch", "\n".join(f"* {what}: {why}" for what, why in left.items())]
    return "\n\n".join(parts) + "\n"


def write_package(folder: Path, files: Mapping[str, str]) -> None:
    """Makes the folder with these files, whole or not at all. Raises PackageError where something is there."""
    if not folder.name.isidentifier():
        raise PackageError(folder, "no Python package has such a name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PackageError(folder, "something is there already; name a folder that is not there, or move it away")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, text in files.items():
            (made / name).write_text(text, encoding="utf-8")
        made.chmod(0o777 & ~umask())
        os.replace(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def umask() -> int:
    """That of this process, which is read by setting it."""
    now = os.umask(0)
    os.umask(now)
    return now
