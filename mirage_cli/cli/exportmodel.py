"""`mirage export-model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.shared import DatabaseFile, TargetName, command, of_one_gpu, out, warn
from mirage_cli.cli.trace import Inputs, Model, model_of

if TYPE_CHECKING:
    from mirage_cli.ir.program import Program
    from mirage_cli.store.records import Best, Key


@command("mirage export-model model.py:Block kernels/     with Block_inputs() in the file", name="export-model")
def export_model(
    what: Model,
    folder: Annotated[Path, typer.Argument(help="the package's folder, which is not there yet", metavar="DIR")],
    shapes: Inputs = None,
    target: TargetName = "auto",
    db: DatabaseFile = None,
) -> None:
    """Write the stored kernels of a PyTorch model as a package.

    A file for each region, an __init__.py with their names, and a README.md that says what each is and how it was
    verified. The example inputs are what NAME_inputs() of the file returns, or --input. The file is run.
    """
    from mirage_cli.pipeline.callers import Kernels, Settings
    from mirage_cli.pipeline.models.package import packed, write_package

    found, name = model_of(what, shapes)
    with Kernels(Settings(target, db=db)) as kernels:
        graphs = [r.graph for r in found.regions]
        owners = [(i, p) for i, x in enumerate(kernels.standing(graphs)) for p in x.programs]
        entries: list[list[tuple[Program, Key, Best]]] = [[] for _ in graphs]
        gpu = kernels.target.name
        for n, (key, best) in of_one_gpu(kernels.store, [p for _, p in owners], target).items():
            i, program = owners[n]
            entries[i].append((program, key, best))
            gpu = key.gpu_name
        stored = [kernels.written(g.name, some) for g, some in zip(graphs, entries, strict=True)]
    made = packed(name, found, stored, gpu)
    for region, why in made.missing.items():
        warn(f"{region}: {why}")
    write_package(folder, made.files)
    for file in made.files:
        out.print(str(folder / file))
