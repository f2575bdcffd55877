"""`mirage export-model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirage_cli.cli.shared import Database, TargetName, command, out, warn
from mirage_cli.cli.trace import Inputs, Model, model_of


@command("mirage export-model model.py:Block kernels/     with Block_inputs() in the file", name="export-model")
def export_model(
    what: Model,
    folder: Annotated[Path, typer.Argument(help="the package's folder, which is not there yet", metavar="DIR")],
    shapes: Inputs = None,
    target: TargetName = "auto",
    db: Database = None,
) -> None:
    """Write the stored kernels of a PyTorch model as a package.

    A file for each region, an __init__.py with their names, and a README.md that says what each is and how it was
    verified. The example inputs are what NAME_inputs() of the file returns, or --input. The file is run.
    """
    from mirage_cli.pipeline.callers import Kernels
    from mirage_cli.pipeline.package import packed, write_package

    found, name = model_of(what, shapes)
    with Kernels(target, db=db) as kernels:
        made = packed(name, found, kernels.known([r.graph for r in found.regions]), kernels.target.name)
    for region, why in made.missing.items():
        warn(f"{region}: {why}")
    write_package(folder, made.files)
    for file in made.files:
        out.print(str(folder / file))
