"""`mirage trace`."""

from __future__ import annotations

import re
import runpy
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any  # a user's function or module

import typer

from mirage_cli.cli.shared import command, err
from mirage_cli.errors import MirageError, TraceError
from mirage_cli.target.files import write_text

if TYPE_CHECKING:
    import torch

    from mirage_cli.pipeline.models.regions import Cut

SHAPE = re.compile(r"(?P<sizes>\d+(,\d+)*)?(:(?P<dtype>\w+))?")

Model = Annotated[str, typer.Argument(help="a function, or a module, of a Python file", metavar="FILE.py:NAME")]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", help="shape and type of an example input, such as 8,4096:float16; one for each"),
]


@command(
    "mirage trace model.py:Block -o specs/          with Block_inputs() in the file",
    "mirage trace ops.py:gate --input 8,4096:float16 --input 8,4096:float16",
)
def trace(
    what: Model,
    shapes: Inputs = None,
    folder: Annotated[Path | None, typer.Option("--output", "-o", help="write NAME_0.yaml, ... here")] = None,
) -> None:
    """Write the specs of a PyTorch function or module.

    The example inputs are what NAME_inputs() of the file returns, or --input. The file is run. A spec that is there is
    not overwritten.
    """
    made, name = model_of(what, shapes)
    texts = {r.graph.text(): r for r in made.regions}
    for i, text in enumerate(texts):
        if folder is None:
            sys.stdout.write("---\n" * (i > 0) + text)
        else:
            path = folder / f"{name}_{i}.yaml"
            folder.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_bytes() != text.encode():
                write_text(path, text)
            sys.stdout.write(f"{path}\n")
    if not texts:
        raise TraceError(what, "nothing in it is a program")


def model_of(what: str, shapes: list[str] | None) -> tuple[Cut, str]:
    """The regions of FILE.py:NAME, and its name. Says what is in none. Raises TraceError."""
    path, _, name = what.rpartition(":")
    if not path or not name.isidentifier():
        raise TraceError(what, "the form is FILE.py:NAME")
    if not Path(path).is_file():
        raise TraceError(what, f"there is no file {path}")
    with theirs(what, path):
        found = runpy.run_path(path)
    if name not in found:
        raise TraceError(what, f"{path} defines no {name}")
    with theirs(what, path):
        inputs = examples(what, found.get(f"{name}_inputs"), shapes or [])
    from mirage_cli.pipeline.models.model import as_module
    from mirage_cli.pipeline.models.regions import cut, exported
    from mirage_cli.pipeline.models.taken import table

    with theirs(what, path):
        function = found[name]() if isinstance(found[name], type) else found[name]
    if not callable(function):
        raise TraceError(what, f"{name} is no function and no module")
    with theirs(what, path):
        graph = exported(as_module(function), inputs)
    made = cut(graph)
    for operator, why in made.left.items():
        err.print(f"{operator}: {why}", style="yellow", markup=False)
    err.print(table(made.shares))
    return made, name


@contextmanager
def theirs(what: str, path: str) -> Generator[None]:
    """While a user's file runs: what it raises, or PyTorch does as it exports it, is said with the line of the file.
    Raises TraceError."""
    try:
        yield
    except MirageError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's file raises is its failure
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        at = f" ({path}:{lines[-1]})" if lines else ""
        raise TraceError(what, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}{at}") from None


def examples(what: str, make: Any, shapes: list[str]) -> tuple[torch.Tensor, ...]:
    """The example inputs. Raises TraceError."""
    if shapes:
        return tuple(example(what, x) for x in shapes)
    if not callable(make):
        raise TraceError(what, f"give --input, or define {what.rpartition(':')[2]}_inputs() in the file")
    made: Any = make()
    return tuple(made) if isinstance(made, list | tuple) else (made,)


def example(what: str, text: str) -> torch.Tensor:
    import torch

    match = SHAPE.fullmatch(text)
    dtype = getattr(torch, (match and match["dtype"]) or "float32", None)
    if match is None or not isinstance(dtype, torch.dtype):
        raise TraceError(what, f"{text!r} is no shape and type such as 8,4096:float16")
    sizes = [int(n) for n in (match["sizes"] or "").split(",") if n]
    if dtype.is_floating_point:
        return torch.randn(sizes).to(dtype)
    return torch.zeros(sizes, dtype=dtype)
