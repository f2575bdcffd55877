"""`mirage report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirage_cli.cli.shared import (
    DatabaseFile,
    Dims,
    Dtype,
    TargetName,
    command,
    command_line,
    out,
    print_text,
    read,
    reading_store,
    warn,
)
from mirage_cli.errors import EmptyStoreError, NothingStoredError
from mirage_cli.target.files import write_text


@command(
    "mirage report                              report.html, of all that is stored",
    "mirage report gqa.yaml -o gqa.html         of one spec",
    "mirage report --target h200 -o -           for one GPU, to stdout",
)
def report(
    specs: Annotated[
        list[Path] | None, typer.Argument(help="spec files (YAML) [default: all that is stored]", metavar="[SPEC]...")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="write here; `-` is stdout")] = Path("report.html"),
    dim: Dims = None,
    dtype: Dtype = None,
    target: TargetName = "auto",
    db: DatabaseFile = None,
) -> None:
    """Write one HTML page of what the database holds.

    For each program: its plan as a picture, times beside baselines, the roofline, history, what lost and why, the
    verdict, and the source. The page needs nothing else, and asks for nothing.
    """
    from mirage_cli.cli.reportpage import page
    from mirage_cli.pipeline.keys import program_hash
    from mirage_cli.pipeline.reported import sections
    from mirage_cli.target.gpus import find_target

    programs = [p for p, _ in read(specs or (), dim, dtype)]
    gpu = None if target == "auto" else find_target(target).name
    with reading_store(db) as store:
        found = sections(store, {program_hash(p) for p in programs}, gpu, warn)
    if not found and programs:
        raise NothingStoredError(programs[0].name, programs[0].sizes)
    if not found:
        raise EmptyStoreError
    text = page(found, title_of([s.name for s in found]), command_line())
    if str(output) == "-":
        print_text(text)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text)
    out.print(str(output))


def title_of(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    what = distinct[0] if len(distinct) == 1 else f"{len(distinct)} programs"
    return f"mirage: {what} at {len(names)} size{'s' * (len(names) != 1)}" if len(names) > 1 else f"mirage: {what}"
