"""`mirage doctor`."""

from __future__ import annotations

import json
import sys

import typer

from mirage_cli.cli.shared import Database, Json, app, out


@app.command()
def doctor(db: Database = None, as_json: Json = False) -> None:
    """Say what this machine has, what is missing, and what that rules out."""
    from dataclasses import asdict

    from rich.table import Table

    from mirage_cli.cli.machine import examine

    checks = examine(db)
    if as_json:
        sys.stdout.write(json.dumps([asdict(c) for c in checks], indent=1) + "\n")
    else:
        table = Table("", "what", "found", "remedy")
        for c in checks:
            table.add_row("ok" if c.ok else "--", c.name, c.detail, "" if c.ok else c.remedy)
        out.print(table)
    if any(not c.ok and c.required for c in checks):
        raise typer.Exit(1)
