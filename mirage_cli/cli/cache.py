"""`mirage cache`: the database."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from mirage_cli.cli.shared import Database, Json, app, open_store, out, warn

cache = typer.Typer(help="The database of what was found and measured.", no_args_is_help=True)
app.add_typer(cache, name="cache")


@cache.command("list")
def cache_list(db: Database = None, as_json: Json = False) -> None:
    """List what is stored."""
    from rich.table import Column, Table

    from mirage_cli.cli.tables import figure

    with open_store(db) as store:
        entries = store.list()
    if as_json:
        rows = [
            {
                "id": e.key.id,
                "spec": e.spec,
                "dims": dict(e.key.dims),
                "dtype": e.key.dtype,
                "gpu": e.key.gpu,
                "mugraphs": e.mugraphs,
                "measurements": e.measurements,
                "best": e.best.mugraph if e.best else None,
                "status": e.best.status if e.best else None,
                "time_us": e.best.time_us if e.best else None,
            }
            for e in entries
        ]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    best_column = Column("best", min_width=12)  # whole, to be copied
    table = Table("id", "spec", "dims", "dtype", "GPU", "μGraphs", "measurements", best_column, "µs")
    for e in entries:
        dims = " ".join(f"{d}={n}" for d, n in e.key.dims)
        best = e.best.mugraph if e.best else "-"
        us = figure(e.best.time_us) if e.best else "-"
        table.add_row(e.key.id, e.spec, dims, e.key.dtype, e.key.gpu, str(e.mugraphs), str(e.measurements), best, us)
    out.print(table)


@cache.command("show")
def cache_show(
    id: Annotated[str, typer.Argument(help="id of a μGraph, or its first digits")], db: Database = None
) -> None:
    """Show a stored μGraph with its measurements."""
    from mirage_cli.cli.tables import figure

    with open_store(db) as store:
        shown = store.show(id)
    for s in shown:
        out.print(f"{s.spec} on {s.key.gpu}", style="bold")
        out.print(s.mugraph.text)
        for m in sorted(s.measurements, key=lambda m: m.median_us or float("inf"))[:10]:
            result = m.failure or f"{figure(m.median_us)} ± {figure(m.spread_us)} µs"
            out.print(f"  {result}  {json.dumps(m.schedule)}")


@cache.command("merge")
def cache_merge(
    files: Annotated[list[Path], typer.Argument(help="other databases, this version's or older", metavar="FILE...")],
    db: Database = None,
) -> None:
    """Take the content of other databases into this one; the better result, or of equals the newer, is kept.

    They are only read. Take in what you trust alone: kernels are programs, and `mirage bench` runs them.
    """
    from mirage_cli.store.exchange import bundles, copy_of, merge

    with open_store(db) as store:
        for file in files:
            with copy_of(file, warn) as other:
                out.print(f"{file}: {merge(store, bundles(other))}")


@cache.command("export")
def cache_export(
    file: Annotated[Path, typer.Argument(help="the file to write: JSON, a line for each key", metavar="FILE")],
    ids: Annotated[
        list[str] | None, typer.Argument(help="of keys or μGraphs [default: everything]", metavar="[ID]...")
    ] = None,
    db: Database = None,
) -> None:
    """Write what is stored, or what is stored under some ids, to a file for `mirage cache import`."""
    from mirage_cli.store.exchange import write

    with open_store(db) as store:
        out.print(f"{file}: {write(store, file, ids or ())} keys")


@cache.command("import")
def cache_import(
    file: Annotated[Path, typer.Argument(help="a file that `mirage cache export` wrote", metavar="FILE")],
    db: Database = None,
) -> None:
    """Take in what `mirage cache export` wrote, as `merge` does. Doing it again changes nothing.

    Take in what you trust alone: kernels are programs, and `mirage bench` runs them.
    """
    from mirage_cli.store.exchange import merge, read

    found = list(read(file))  # all of it is looked at before any of it is taken in
    with open_store(db) as store:
        out.print(f"{file}: {merge(store, found)}")


@cache.command("remove")
def cache_remove(id: Annotated[str, typer.Argument(help="id of a μGraph or of a key")], db: Database = None) -> None:
    """Remove what is stored under an id."""
    with open_store(db) as store:
        count = store.remove(id)
    out.print(f"removed {count}")
