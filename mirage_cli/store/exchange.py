"""Databases to one another: everything that belongs to a key as one JSON object, written to files and merged.

A file of `mirage cache export` has one JSON object on each line: the first says the format, each of the others is a
bundle: {"key": {...}, "spec": {...}, "mugraphs": [...], "kernels": [...], "measurements": [...], "results": [...]},
with the columns of those tables. Merging adds what is not there; of two results the better is kept, or of equals the
newer. Doing it again changes nothing.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON of files that others may have written

from mirage_cli import __version__
from mirage_cli.errors import DamagedResultError, ExchangeError
from mirage_cli.store.records import NUMBER, VERDICT, Best, Key, Row, Shape, digest, dump, misfit
from mirage_cli.store.results import Result
from mirage_cli.store.sqlite import Tables
from mirage_cli.store.store import Database
from mirage_cli.target.files import open_regular, replacing

FORMAT = 2
Bundle = dict[str, Any]

JSON = object
"""In COLUMNS: any JSON value, kept as text in the database."""
KEY: Mapping[str, Any] = {
    "program_hash": str, "dims": JSON, "dtype": str, "gpu": str, "driver": str, "torch": str, "triton": str,
    "mirage": str,
}  # fmt: skip
SPEC: Mapping[str, Any] = {"name": str, "text": str}
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "mugraphs": {
        "id": str, "text": str, "rank": int, "kernels": int, "predicted_us": int | float | None, "verification": JSON,
    },
    "kernels": {"id": str, "mugraph": str, "schedule": JSON, "source": str},
    "measurements": {
        "mugraph": str, "kernel": str | None, "schedule": JSON, "samples_us": JSON, "median_us": int | float | None,
        "spread_us": int | float | None, "cold": int, "method": str, "accuracy": JSON, "failure": str | None, "at": str,
        "alone_samples_us": JSON,
    },
    "results": {
        "mugraph": str, "status": str, "time_us": int | float | None, "schedule": JSON, "kernel": str,
        "document": JSON, "at": str,
    },
}  # fmt: skip
"""Every table of a bundle with its columns, but for the key's id. Schedules stand where the tables name them."""
SHAPES: Mapping[tuple[str, str], Shape] = {
    ("mugraphs", "verification"): (None, VERDICT),
    ("measurements", "samples_us"): [NUMBER],
    ("measurements", "alone_samples_us"): [NUMBER],
    ("results", "schedule"): dict,
}
"""What the JSON of some columns has to be."""
SINCE: Mapping[tuple[str, str], object] = {("measurements", "alone_samples_us"): []}
"""Columns that files of earlier versions lack, and what they mean by that."""


@dataclass(slots=True)
class Merged:
    """What a merge added."""

    mugraphs: int = 0
    measurements: int = 0
    results: int = 0

    def __str__(self) -> str:
        return f"{self.mugraphs} μGraphs, {self.measurements} measurements, {self.results} better results"


# -- out


def bundles(store: Database, ids: Sequence[str] = ()) -> Iterator[Bundle]:
    """Every key with all that belongs to it; with ids, those keys, and those μGraphs under each of their keys. Damaged
    rows are left out, and told (`Database`).

    Raises UnknownIdError, AmbiguousIdError, before it gives the first.
    """
    wanted: dict[str, set[str] | None] = {}  # key -> μGraphs, or None for all
    for id in (store.find(i) for i in ids):
        for r in store.rows("SELECT id AS key, 1 AS whole FROM keys WHERE id = ?", id):
            wanted[r["key"]] = None
        for r in store.rows("SELECT key FROM mugraphs WHERE id = ?", id):
            if (some := wanted.setdefault(r["key"], set())) is not None:
                some.add(id)
    keys = [r["id"] for r in store.rows("SELECT id FROM keys ORDER BY rowid")]
    made = (bundle(store, k, wanted.get(k)) for k in keys if k in wanted or not ids)
    return (b for b in made if b is not None)


def bundle(store: Database, key: str, only: set[str] | None = None) -> Bundle | None:
    """One key, whole or with some of its μGraphs; None where the key itself is damaged."""

    def readable(rows: Iterable[Row], columns: Mapping[str, Any], what: str) -> Sequence[Row]:
        return [
            x for r in rows for x in store.readable([r], lambda r: _decoded(r, columns, what), f"{what} {key}", key)
        ]

    keys = readable(store.rows("SELECT * FROM keys WHERE id = ?", key), KEY, "key")
    if not keys:
        return None
    specs = store.rows("SELECT name, text FROM specs WHERE program_hash = ?", keys[0]["program_hash"])
    made: Bundle = {"key": keys[0], "spec": next(iter(readable(specs, SPEC, "spec")), None)}
    for table, columns in COLUMNS.items():
        names = ", ".join("schedules.json AS schedule" if c == "schedule" else f"{table}.{c}" for c in columns)
        sql = f"SELECT {names} FROM {table}"
        sql += f" JOIN schedules ON schedules.id = {table}.schedule" if "schedule" in columns else ""
        rows = readable(store.rows(f"{sql} WHERE key = ? ORDER BY {table}.rowid", key), columns, table)
        name = "id" if table == "mugraphs" else "mugraph"
        made[table] = rows if only is None else [r for r in rows if r.get(name) in only]
    kernels = {k["id"] for k in made["kernels"]}
    return {**made, "results": [r for r in made["results"] if r["kernel"] in kernels]}


def write(store: Database, path: Path, ids: Sequence[str] = ()) -> int:
    """Writes a file for `read`. Returns the number of keys in it. Raises OSError."""
    count = 0
    with store.snapshot():
        found = bundles(store, ids)
        with replacing(path) as file:
            file.write(dump({"mirage_cache": FORMAT, "mirage": __version__}) + "\n")
            for b in found:
                file.write(dump(b) + "\n")
                count += 1
    return count


# -- in


def merge(store: Database, found: Iterable[Bundle]) -> Merged:
    """Adds bundles to a database, each in a transaction of its own."""
    merged = Merged()
    for b in found:
        key = Key.from_row({**b["key"], "dims": dump(b["key"]["dims"])})
        with store.transaction() as db:
            _merge_one(store, db, key, b, merged)
    return merged


def _merge_one(store: Database, db: Tables, key: Key, b: Bundle, merged: Merged) -> None:
    if b["spec"] is not None:
        db.table("specs").insert({"program_hash": key.program_hash, **b["spec"]}, pk="program_hash", ignore=True)
    db.table("keys").insert({"id": key.id, **key.row()}, pk="id", ignore=True)
    rows = {t: [{"key": key.id, **_encoded(db, r, columns)} for r in b[t]] for t, columns in COLUMNS.items()}
    merged.mugraphs += sum(_insert(db, "mugraphs", r, ("key", "id")) for r in rows["mugraphs"])
    for r in rows["kernels"]:
        _insert(db, "kernels", r, ("key", "id"))
    merged.measurements += sum(_insert(db, "measurements", r, tuple(r)) for r in rows["measurements"])
    sources = {k["id"]: k["source"] for k in b["kernels"]}
    for r, plain in zip(rows["results"], b["results"], strict=True):
        old_best = store.best(key)
        columns = {n: plain[n] for n in ("mugraph", "status", "time_us", "schedule", "at")}
        new = Best(**columns, source=sources[plain["kernel"]], result=Result.from_json(plain["document"]))
        if old_best is None or (new.beats(old_best) and (not old_best.beats(new) or new.at > old_best.at)):
            db.table("results").upsert(r, pk="key")
            merged.results += 1


def _insert(db: Tables, table: str, row: Row, same: tuple[str, ...]) -> bool:
    """Inserts a row unless there is one that is equal in these columns. Whether it did."""
    where = " AND ".join(f"{c} IS ?" for c in same)
    if next(iter(db.query(f"SELECT 1 FROM {table} WHERE {where}", [row[c] for c in same])), None):
        return False
    db.table(table).insert(row)
    return True


def read(path: Path) -> Iterator[Bundle]:
    """The bundles of a file of `write`. Raises ExchangeError."""
    number = 0
    try:
        opened = io.TextIOWrapper(open_regular(path), encoding="utf-8")
    except OSError as error:
        raise ExchangeError(path, 0, error.strerror or str(error)) from None
    with opened as file:
        try:
            for number, line in enumerate(file, 1):
                try:
                    b = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if number == 1:
                        _check_header(path, None)
                    raise ExchangeError(path, number, f"not JSON: {error}") from None
                if number == 1:
                    _check_header(path, b)
                    continue
                _complete(b)
                if (problem := _problem(b)) is not None:
                    raise ExchangeError(path, number, problem)
                yield b
        except UnicodeDecodeError:
            raise ExchangeError(path, number + 1, "not UTF-8 text") from None
    if not number:
        _check_header(path, None)


def _check_header(path: Path, header: Any) -> None:
    form = header.get("mirage_cache") if isinstance(header, dict) else None
    if not isinstance(form, int):
        raise ExchangeError(path, 1, "this is no file of `mirage cache export`")
    if form > FORMAT:
        raise ExchangeError(path, 1, f"a newer mirage wrote it: its format is {form}, and this one knows {FORMAT}")


def _complete(b: Any) -> None:
    """Adds the columns that an earlier version did not know, and leaves out the table that this one does not."""
    if isinstance(b, dict):
        b.pop("searches", None)
    for (table, column), value in SINCE.items():
        rows = b.get(table) if isinstance(b, dict) else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict):
                row.setdefault(column, value)


def _problem(b: Any) -> str | None:
    """What is wrong with a bundle, if anything is."""
    if not isinstance(b, dict) or set(b) != {"key", "spec", *COLUMNS}:
        return f"expected an object with key, spec, {', '.join(COLUMNS)}"
    rows = [("key", b["key"], KEY), *([("spec", b["spec"], SPEC)] if b["spec"] is not None else [])]
    for table, columns in COLUMNS.items():
        if not isinstance(b[table], list):
            return f"{table} is no list"
        rows += [(table, r, columns) for r in b[table]]
    if problem := next((problem for x in rows if (problem := _row_problem(*x)) is not None), None):
        return problem
    if missing := {r["kernel"] for r in b["results"]} - {k["id"] for k in b["kernels"]}:
        return f"results: the kernel {missing.pop()} is not there"
    return None


def _row_problem(what: str, row: Any, columns: Mapping[str, Any]) -> str | None:
    """The same of one row of a table."""
    if not isinstance(row, dict) or set(row) != set(columns):
        return f"{what}: expected an object with {', '.join(columns)}"
    for column, kind in columns.items():
        value = row[column]
        if not isinstance(value, kind) or (kind is not JSON and not _fits(value)):
            return f"{what}: {column} is {value!r:.40}"
    dims = row.get("dims", [])
    if not isinstance(dims, list) or not all(
        isinstance(d, list) and len(d) == 2 and isinstance(d[0], str) and isinstance(d[1], int) for d in dims
    ):
        return "key: dims is no list of names with sizes"
    for (table, column), shape in SHAPES.items():
        if table == what and (problem := misfit(row[column], shape, column)) is not None:
            return f"{what}: {problem}"
    if what == "results":
        try:
            Result.from_json(row["document"], "document")
        except DamagedResultError as error:
            return f"results: {error}"
    if what == "kernels" and row["id"] != digest(row["source"]):
        return "kernels: an id is not that of its source"
    return None


def _fits(x: object) -> bool:
    """Whether a column can hold it."""
    if isinstance(x, int):
        return abs(x) < 1 << 63
    return not isinstance(x, float) or not math.isnan(x)


# -- rows of tables


def _decoded(row: Row, columns: Mapping[str, Any], what: str) -> Row:
    """A row of a table, as it stands in a bundle. Raises ValueError, TypeError, RecursionError."""
    found = {c: json.loads(row[c]) if kind is JSON else row[c] for c, kind in columns.items()}
    if (problem := _row_problem(what, found, columns)) is not None:
        raise ValueError(problem)
    return found


def _encoded(db: Tables, row: Row, columns: Mapping[str, Any]) -> Row:
    """The columns as the tables have them; a schedule is put in its own table."""
    found = {c: dump(row[c]) if kind is JSON else row[c] for c, kind in columns.items()}
    if "schedule" in found:
        text = found["schedule"]
        found["schedule"] = digest(text)
        db.table("schedules").insert({"id": digest(text), "json": text}, pk="id", ignore=True)
    return found
