"""`mirage cache`: the database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_cli.cli.documents import emit
from mirage_cli.cli.shared import DatabaseFile, Json, app, command, err, open_store, out, reading_store, warn

if TYPE_CHECKING:
    from mirage_cli.store.records import Entry

cache = typer.Typer(help="The database of what was found and measured.", no_args_is_help=True)
app.add_typer(cache, name="cache")

STDIN = Path("/dev/stdin")
AGE = re.compile(r"(\d{1,6})([hdw])")
UNITS = {"h": "hours", "d": "days", "w": "weeks"}
VERSIONED = ("mirage", "torch", "triton", "driver")

Spec = Annotated[list[str] | None, typer.Option("--spec", help="of specs with these names", metavar="NAME")]
Gpu = Annotated[list[str] | None, typer.Option("--gpu", help="for these GPUs, measured or predicted", metavar="NAME")]
Older = Annotated[
    str | None, typer.Option("--older-than", help="nothing was added for so long: 12h, 30d, 8w", metavar="AGE")
]
Version = Annotated[
    list[str] | None,
    typer.Option(
        "--version", help="of a version: of mirage, or torch=2.6.0, triton=..., driver=...", metavar="VERSION"
    ),
]
Stale = Annotated[
    bool, typer.Option("--stale", help="of other versions than those here, so that no search is answered from it")
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of what is stored: all that fits every filter that was given. before: when its last row was added."""

    specs: frozenset[str]
    gpus: frozenset[str]
    before: str | None
    versions: tuple[tuple[str, str], ...]
    stale: bool

    @property
    def everything(self) -> bool:
        return not (self.specs or self.gpus or self.before or self.versions or self.stale)

    def of(self, entries: Iterable[Entry]) -> list[Entry]:
        return [e for e in entries if self.fits(e)]

    def fits(self, e: Entry) -> bool:

        named = {"mirage": e.key.mirage, "torch": e.key.torch, "triton": e.key.triton, "driver": e.key.driver}
        return (
            (not self.specs or e.spec in self.specs)
            and (not self.gpus or e.key.gpu_name in self.gpus)
            and (self.before is None or e.at < self.before)
            and all(named[name] == version for name, version in self.versions)
            and (not self.stale or _is_stale(named))
        )


def _is_stale(named: dict[str, str]) -> bool:
    from mirage_cli.pipeline.keys import versions

    return any(named[name] != version for name, version in versions().items())


def wanted(
    specs: Sequence[str] | None,
    gpus: Sequence[str] | None,
    older: str | None,
    versions: Sequence[str] | None,
    stale: bool,
) -> Wanted:
    """The filters of a command line. Raises typer.BadParameter."""
    before = None
    if older is not None:
        if (match := AGE.fullmatch(older)) is None:
            raise typer.BadParameter(f"--older-than takes an age such as 12h, 30d or 8w, not {older!r}")
        moment = datetime.now(UTC) - timedelta(**{UNITS[match[2]]: int(match[1])})
        before = moment.isoformat(timespec="milliseconds")
    pairs: list[tuple[str, str]] = []
    for text in versions or ():
        name, _, version = text.rpartition("=")
        if (name or "mirage") not in VERSIONED:
            raise typer.BadParameter(f"--version is of {', '.join(VERSIONED)}, not of {name}")
        pairs.append((name or "mirage", version))
    return Wanted(frozenset(specs or ()), frozenset(gpus or ()), before, tuple(pairs), stale)


@command("mirage cache list", "mirage cache list --gpu h200 --older-than 30d --json", group=cache, name="list")
def cache_list(
    spec: Spec = None,
    gpu: Gpu = None,
    older_than: Older = None,
    version: Version = None,
    stale: Stale = False,
    db: DatabaseFile = None,
    as_json: Json = False,
) -> None:
    """List what is stored, or what fits every filter."""
    filters = wanted(spec, gpu, older_than, version, stale)
    with reading_store(db) as store:
        entries = filters.of(store.list())
    if as_json:
        emit("cache list", map(row_of, entries))
    elif entries:
        print_entries(entries)
    else:
        err.print("nothing is stored" if filters.everything else "nothing that is stored fits")


def row_of(e: Entry) -> dict[str, object]:
    return {
        "id": e.key.id,
        "spec": e.spec,
        "dims": dict(e.key.dims),
        "dtype": e.key.dtype,
        "gpu": e.key.gpu,
        "versions": {"mirage": e.key.mirage, "torch": e.key.torch, "triton": e.key.triton},
        "driver": e.key.driver or None,
        "at": e.at or None,
        "mugraphs": e.mugraphs,
        "measurements": e.measurements,
        "best": e.best.mugraph if e.best else None,
        "status": e.best.status if e.best else None,
        "time_us": e.best.time_us if e.best else None,
    }


def print_entries(entries: Iterable[Entry]) -> None:
    from mirage_cli.cli.layout import Column, Sheet, figures
    from mirage_cli.cli.tables import figure
    from mirage_cli.ir.program import dims_text

    texts = ("spec", "id", "dims", "dtype", "GPU")
    table = Sheet(
        "", (*map(Column, texts), *figures("μGraphs", "timings"), Column("best"), *figures("µs"), Column("at"))
    )
    for e in entries:
        best, us = (e.best.mugraph, figure(e.best.time_us)) if e.best else ("-", "-")
        counts = e.mugraphs, e.measurements
        table.add(e.spec or "-", e.key.id, dims_text(e.key.dims), e.key.dtype, e.key.gpu, *counts, best, us, e.at[:10])
    out.print(table)


@command("mirage cache show c9906dc2e993", group=cache, name="show")
def cache_show(
    id: Annotated[str, typer.Argument(help="id of a μGraph, or its first digits")], db: DatabaseFile = None
) -> None:
    """Show a stored μGraph with its measurements."""
    from mirage_cli.cli.tables import figure

    with reading_store(db) as store:
        shown = store.show(id)
    for s in shown:
        out.print(f"{s.spec} on {s.key.gpu}", style="bold")
        out.print(s.mugraph.text)
        for m in sorted(s.measurements, key=lambda m: m.median_us or float("inf"))[:10]:
            result = m.failure or f"{figure(m.median_us)} ± {figure(m.spread_us)} µs"
            out.print(f"  {result}  {json.dumps(m.schedule)}")


@command("mirage cache merge node1.db node2.db", group=cache, name="merge")
def cache_merge(
    files: Annotated[list[Path], typer.Argument(help="other databases, this version's or older", metavar="FILE")],
    db: DatabaseFile = None,
) -> None:
    """Take the content of other databases into this one.

    The better result, or of equals the newer, is kept. The others are only read, and nothing in them is run: kernels
    are written anew from their μGraphs where they are used.
    """
    from mirage_cli.store.exchange import bundles, merge
    from mirage_cli.store.store import Database

    with open_store(db) as store:
        for file in files:
            with Database.reading(file, warn=warn) as other, other.snapshot():
                out.print(f"{file}: {merge(store, bundles(other))}")


@command(
    "mirage cache export kernels.jsonl",
    "mirage cache export - | ssh node mirage cache import -",
    group=cache,
    name="export",
)
def cache_export(
    file: Annotated[
        Path, typer.Argument(help="the file to write: JSON, a line for each key; - for stdout", metavar="FILE")
    ],
    ids: Annotated[
        list[str] | None, typer.Argument(help="of keys or μGraphs [default: everything]", metavar="ID")
    ] = None,
    db: DatabaseFile = None,
) -> None:
    """Write what is stored for `mirage cache import`."""
    from mirage_cli.store.exchange import write

    with reading_store(db) as store:
        count = write(store, file, ids or ())
    (err if str(file) == "-" else out).print(f"{file}: {count} key{'s' * (count != 1)}")


@command("mirage cache import kernels.jsonl", group=cache, name="import")
def cache_import(
    file: Annotated[Path, typer.Argument(help="a file that `mirage cache export` wrote; - for stdin", metavar="FILE")],
    db: DatabaseFile = None,
) -> None:
    """Take in what `mirage cache export` wrote, as `merge` does.

    Doing it again changes nothing.
    """
    from mirage_cli.store.exchange import merge, read

    found = list(read(STDIN if str(file) == "-" else file))  # all of it is looked at before any of it is taken in
    with open_store(db) as store:
        out.print(f"{file}: {merge(store, found)}")


@command("mirage cache remove c9906dc2e993", group=cache, name="remove")
def cache_remove(
    id: Annotated[str, typer.Argument(help="id of a μGraph or of a key")], db: DatabaseFile = None
) -> None:
    """Remove what is stored under an id."""
    with reading_store(db) as store:
        id = store.find(id)
    with open_store(db) as store:
        count = store.remove(id)
    out.print(f"removed {count}")


@command(
    "mirage cache prune --stale                    what no search here is answered from",
    "mirage cache prune --gpu a100 --older-than 30d --dry-run",
    group=cache,
    name="prune",
)
def cache_prune(
    spec: Spec = None,
    gpu: Gpu = None,
    older_than: Older = None,
    version: Version = None,
    stale: Stale = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list what would go, and remove nothing")] = False,
    db: DatabaseFile = None,
) -> None:
    """Remove what fits every filter, and make the file smaller."""
    filters = wanted(spec, gpu, older_than, version, stale)
    if filters.everything:
        raise typer.BadParameter("name at least one filter; without one, everything would go")
    with reading_store(db) as store:
        gone = filters.of(store.list())
    if gone and dry_run:
        print_entries(gone)
    elif gone:
        with open_store(db) as store:
            for e in gone:
                store.remove(e.key.id)
            store.shrink()
    out.print(f"{'would remove' if dry_run else 'removed'} {len(gone)}")
