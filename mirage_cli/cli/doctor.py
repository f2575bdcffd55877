"""`mirage doctor`."""

from __future__ import annotations

import typer

from mirage_cli.cli.documents import emit
from mirage_cli.cli.shared import DatabaseFile, Json, command, out


@command("mirage doctor", "mirage doctor --json")
def doctor(db: DatabaseFile = None, as_json: Json = False) -> None:
    """Say what this machine has, and what that rules out."""
    from dataclasses import asdict

    from mirage_cli.cli.layout import Column, Sheet
    from mirage_cli.cli.machine import examine

    checks = examine(db)
    if as_json:
        emit("doctor", (asdict(c) for c in checks))
    else:
        table = Sheet("", (Column("what"), Column("ok"), Column("found", prose=True), Column("remedy", prose=True)))
        for c in checks:
            table.add(c.name, "yes" if c.ok else "no", c.detail, "" if c.ok else c.remedy)
        out.print(table)
    if any(not c.ok and c.required for c in checks):
        raise typer.Exit(1)
