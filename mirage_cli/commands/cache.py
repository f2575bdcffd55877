"""`mirage cache`: the database."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from mirage_cli.commands.shared import Database, Json, app, open_store, out

cache = typer.Typer(help="The database of what was found and measured.", no_args_is_help=True)
app.add_typer(cache, name="cache")


@cache.command("list")
def cache_list(db: Database = None, as_json: Json = False) -> None:
    """List what is stored."""
    from rich.table import Column, Table

    from mirage_cli.report import figure

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
    table = Table("spec", "dims", "dtype", "GPU", "μGraphs", "measurements", best_column, "µs")
    for e in entries:
        dims = " ".join(f"{d}={n}" for d, n in e.key.dims)
        best = e.best.mugraph if e.best else "-"
        us = figure(e.best.time_us) if e.best else "-"
        table.add_row(e.spec, dims, e.key.dtype, e.key.gpu, str(e.mugraphs), str(e.measurements), best, us)
    out.print(table)


@cache.command("show")
def cache_show(
    id: Annotated[str, typer.Argument(help="id of a μGraph, or its first digits")], db: Database = None
) -> None:
    """Show a stored μGraph with its measurements."""
    with open_store(db) as store:
        shown = store.show(id)
    for s in shown:
        out.print(f"{s.spec} on {s.key.gpu}", style="bold")
        out.print(s.mugraph.text)
        for m in sorted(s.measurements, key=lambda m: m.median_us or float("inf"))[:10]:
            result = m.failure or f"{m.median_us:.2f} ± {m.spread_us:.2f} µs"
            out.print(f"  {result}  {json.dumps(m.schedule)}")


@cache.command("remove")
def cache_remove(id: Annotated[str, typer.Argument(help="id of a μGraph or of a key")], db: Database = None) -> None:
    """Remove what is stored under an id."""
    with open_store(db) as store:
        count = store.remove(id)
    out.print(f"removed {count}")
