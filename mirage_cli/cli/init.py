"""`mirage init`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mirage_cli.cli.shared import command
from mirage_cli.errors import MirageError, SpecError
from mirage_cli.target.files import write_text

EXAMPLE = """\
# A spec: what goes in, what comes out, and how it is computed. docs/language.md has every key and function.
name: {name}
description: RMSNorm and the projection behind it
dims: {{m: 16, k: 4096, n: 6144}}          # every axis by name, with its size
instances: [{{m: 2}}, {{m: 16}}, {{m: 2048}}]  # sizes to search, each a change to dims
dtype: float16
inputs:                                  # axes in memory order
  X: [m, k]
  G: [k]
  W: {{dims: [k, n], scale: 0.02}}         # scale: the standard deviation of the test data
program: |
  Y = rms_norm(X, k) * G
  O = dot(Y, W, k)
outputs:
  O: [m, n]
"""


@command("mirage init gated_mlp                gated_mlp.yaml, to be changed", "mirage search gated_mlp.yaml")
def init(
    name: Annotated[
        str, typer.Argument(help="the name of the spec, and of its file NAME.yaml", metavar="NAME")
    ] = "example",
) -> None:
    """Write an example spec to start from.

    The file is NAME.yaml. A file that is there is not overwritten.
    """
    from mirage_cli.spec.reader import parse_spec

    name = name.removesuffix(".yaml")
    path, text = Path(f"{name}.yaml"), EXAMPLE.format(name=name)
    try:
        parse_spec(text, str(path))
    except SpecError as error:  # of which only the name can be wrong
        raise typer.BadParameter(error.diagnostics[0].message) from None
    if os.path.lexists(path):
        raise MirageError(f"{path} is there already, and is not overwritten: choose another NAME")
    write_text(path, text)
    sys.stdout.write(f"{path}\n")
