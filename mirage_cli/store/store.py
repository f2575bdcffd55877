"""The database: SQLite, used by several processes at once, valid after any of them is killed.

Every `put_` is a transaction of its own, so that what a run has found is kept from the moment it has been put. Results
belong to a `Key`, which names everything that they depend on. Values are plain: strings, numbers, and JSON.

    specs         program hash -> name and text
    keys          one row for each Key
    mugraphs      key, id -> text, rank, predicted time, verification
    schedules     id -> JSON
    kernels       key, id -> the source made from one μGraph and one schedule
    measurements  every timing with its samples, and every failure
    results       key -> the best there is
    migrations    which of MIGRATIONS have been applied
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from mirage_cli.errors import AmbiguousIdError, DamagedResultError, StoreError, UnknownIdError
from mirage_cli.ir.schedule import Schedule
from mirage_cli.store.migrations import APPLICATION_ID, MIGRATIONS
from mirage_cli.store.records import (
    MAYBE,
    NUMBER,
    VERDICT,
    Best,
    Entry,
    Json,
    Key,
    Measurement,
    Row,
    Shape,
    Shown,
    StoredMuGraph,
    Winner,
    digest,
    dims_json,
    dump,
    misfit,
)
from mirage_cli.store.results import Result
from mirage_cli.store.sqlite import Tables
from mirage_cli.target import knobs
from mirage_cli.target.files import check_regular

T = TypeVar("T")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DAMAGED = (DamagedResultError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
BUSY_TIMEOUT_S = 30.0
"""How long to wait for another process's transaction. Ours take milliseconds."""


class Database:
    """An open database; a context manager. Made where there is none, migrated where it is older. Raises StoreError.

    Use one for each process and thread. called: the path that messages name, where it is another. warn: told once of
    each row that cannot be read, which is then as if it were not there. reads: the file is there, and only read.
    """

    def __init__(
        self,
        path: Path | str,
        called: Path | None = None,
        warn: Callable[[str], None] = lambda _: None,
        reads: bool = False,
    ) -> None:
        self.path = Path(called or path)
        self._warn, self._warned = warn, set[str]()
        try:
            if not reads:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(self.path, f"cannot be made: {error.strerror}", OTHER_PATH) from None
        try:
            check_regular(Path(path))
        except OSError as error:
            raise StoreError(self.path, f"cannot be used ({error.strerror})", OTHER_PATH) from None
        with self._translated():
            try:
                connection = (_opened_to_read if reads else _opened)(Path(path))
            except OSError as error:
                raise StoreError(self.path, f"cannot be read ({error.strerror})", OTHER_PATH) from None
            connection.text_factory = _readable
            self._db = Tables(connection, execute_plugins=False)
            try:
                self._prepare()
            except BaseException:
                connection.close()
                raise

    @classmethod
    def reading(cls, path: Path, warn: Callable[[str], None] = lambda _: None) -> Database:
        """The database of a file that is there, and is not changed. Raises StoreError."""
        if not path.exists():
            raise StoreError(path, "is not there", "name a file that mirage made")
        return cls(path, warn=warn, reads=True)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    # -- specs

    def put_spec(self, program_hash: str, name: str, text: str) -> None:
        row = {"program_hash": program_hash, "name": name, "text": text}
        with self.transaction() as db:
            db.table("specs").upsert(row, pk="program_hash")

    def spec(self, program_hash: str) -> tuple[str, str] | None:
        """Name and text."""
        sql = "SELECT name, text, keys.id FROM specs LEFT JOIN keys USING (program_hash) WHERE program_hash = ? LIMIT 1"
        for r in self.rows(sql, program_hash):
            return next(
                iter(self.readable([r], lambda r: (r["name"], r["text"]), f"the spec of {r['id']}", r["id"])), None
            )
        return None

    def specs_named(self, name: str) -> list[str]:
        """The texts of the specs of this name."""
        found = self.rows("SELECT program_hash, text FROM specs WHERE name = ? ORDER BY rowid", name)
        return [*self.readable(found, lambda r: r["text"], f"a spec {name}", name)]

    # -- μGraphs

    def put_mugraphs(self, key: Key, mugraphs: Iterable[StoredMuGraph]) -> None:
        """All of them or, where this process is killed, none."""
        with self.transaction() as db:
            rows = [{"key": _put_key(db, key), **asdict(g), "verification": dump(g.verification)} for g in mugraphs]
            db.table("mugraphs").upsert_all(rows, pk=("key", "id"))

    def mugraphs(self, key: Key) -> tuple[StoredMuGraph, ...]:
        """Those of this key, by rank."""
        rows = self.rows("SELECT * FROM mugraphs WHERE key = ? ORDER BY rank, id", key.id)
        return tuple(g for r in rows for g in self.readable([r], _mugraph, f"the μGraph {r['id']}", r["id"]))

    def mugraphs_of(self, program_hash: str, dims: Sequence[tuple[str, int]], dtype: str) -> tuple[StoredMuGraph, ...]:
        """Those of this program at these sizes, found for any GPU by any version, by rank, each once."""
        sql = """SELECT mugraphs.*, min(rank) FROM mugraphs JOIN keys ON keys.id = mugraphs.key
            WHERE program_hash = ? AND dims = ? AND dtype = ? GROUP BY mugraphs.id ORDER BY min(rank), mugraphs.id"""
        rows = self.rows(sql, program_hash, dims_json(dims), dtype)
        return tuple(g for r in rows for g in self.readable([r], _mugraph, f"the μGraph {r['id']}", r["id"]))

    # -- measurements and results

    def put_measurement(self, key: Key, measurement: Measurement) -> None:
        with self.transaction() as db:
            row = {
                **asdict(measurement),
                "key": _put_key(db, key),
                "schedule": _put_schedule(db, measurement.schedule),
                "samples_us": dump(measurement.samples_us),
                "alone_samples_us": dump(measurement.alone_samples_us),
                "accuracy": dump(measurement.accuracy),
                "at": _now(),
            }
            db.table("measurements").insert(row, pk="id")

    def measurements(self, key: Key, mugraph: str) -> tuple[Measurement, ...]:
        """What earlier runs measured, oldest first: a run that was killed goes on from here."""
        sql = """SELECT measurements.*, json AS schedule_json
            FROM measurements JOIN schedules ON schedules.id = measurements.schedule
            WHERE key = ? AND mugraph = ? ORDER BY measurements.id"""
        rows = self.rows(sql, key.id, mugraph)
        return tuple(self.readable(rows, _measurement, f"a measurement of {mugraph}", mugraph))

    def put_best(self, key: Key, best: Best, *, over: Best | None = None) -> Best:
        """Keeps the better of this one and what is stored, and returns it.

        over: what was stored when this one was found, which it replaces whatever their times say: they may have been
        compared in a better way. What somebody else has stored since is not affected.
        """
        with self.transaction() as db:
            old = self.best(key)
            if old not in (None, over) and not best.beats(old):
                return old
            stamped = replace(best, at=_now())
            row = {
                "key": _put_key(db, key),
                "mugraph": best.mugraph,
                "status": best.status,
                "time_us": best.time_us,
                "schedule": _put_schedule(db, best.schedule),
                "kernel": _put_kernel(db, key, best.mugraph, best.schedule, best.source),
                "document": dump(best.result.to_json()),
                "at": stamped.at,
            }
            db.table("results").upsert(row, pk="key")
            return stamped

    def best(self, key: Key) -> Best | None:
        return self._best(key.id)

    def winners(self, key: Key) -> tuple[Winner, ...]:
        """What was measured as the best at other sizes, for programs with the same dimensions, on the same GPU."""
        sql = """SELECT keys.id, dims, results.mugraph, json FROM keys JOIN results ON results.key = keys.id
            JOIN schedules ON schedules.id = results.schedule
            WHERE dtype = ? AND gpu = ? AND mirage = ? AND keys.id != ? AND status = 'measured' ORDER BY keys.id"""
        names = [d for d, _ in key.dims]
        rows = self.rows(sql, key.dtype, key.gpu, key.mirage, key.id)
        found = [w for r in rows for w in self.readable([r], _winner, f"the result of {r['id']}", r["id"])]
        return tuple(w for w in found if [d for d, _ in w.dims] == names and w.dims != key.dims)

    def put_beside(self, key: Key, source: str, kernel_us: float, inductor_us: float) -> None:
        """What the kernel of a file takes, and what Inductor's code for the same takes, in one process."""
        row = {"kernel": digest(source), "kernel_us": kernel_us, "inductor_us": inductor_us, "at": _now()}
        with self.transaction() as db:
            db.table("beside").upsert({"key": _put_key(db, key), **row}, pk=("key", "kernel"))

    def beside(self, key: Key, source: str) -> tuple[float, float] | None:
        """The kernel's time and Inductor's, where both were measured."""
        rows = self.rows("SELECT * FROM beside WHERE key = ? AND kernel = ?", key.id, digest(source))
        return next(iter(self.readable(rows, _beside, f"the times beside Inductor of {key.id}", key.id)), None)

    def state(self, gpu: str) -> str:
        """Differs where the best kernels for this GPU do, their times beside Inductor's code, or the specs."""
        sql = """SELECT results.key AS id, results.kernel || ' ' || results.at AS what
            FROM keys JOIN results ON results.key = keys.id WHERE gpu = ?
            UNION ALL SELECT beside.key, beside.kernel || ' ' || kernel_us || ' ' || inductor_us
            FROM keys JOIN beside ON beside.key = keys.id WHERE gpu = ?
            UNION ALL SELECT program_hash, name || ' ' || text FROM specs ORDER BY 1, 2"""
        return digest("\n".join(f"{r['id']} {r['what']}" for r in self.rows(sql, gpu, gpu)))

    def put_tried(self, key: Key, budget_s: float, problem: str) -> None:
        """That no kernel was found within so many seconds, and why."""
        row = {"budget_s": budget_s, "problem": problem, "at": _now()}
        with self.transaction() as db:
            db.table("tried").upsert({"key": _put_key(db, key), **row}, pk="key")

    def tried(self, key: Key) -> tuple[float, str] | None:
        """The seconds in which no kernel was found, and why, where that was so the last time."""
        rows = self.rows("SELECT * FROM tried WHERE key = ?", key.id)
        return next(iter(self.readable(rows, _tried, f"what was tried for {key.id}", key.id)), None)

    # -- looking around

    def list(self) -> tuple[Entry, ...]:
        """Every key, newest last."""
        sql = """SELECT keys.*, coalesce(specs.name, '') AS spec,
                (SELECT count(*) FROM mugraphs WHERE key = keys.id) AS mugraphs,
                (SELECT count(*) FROM measurements WHERE key = keys.id) AS measurements,
                (SELECT max(at) FROM (SELECT at FROM measurements WHERE key = keys.id UNION ALL
                    SELECT at FROM results WHERE key = keys.id)) AS at
            FROM keys LEFT JOIN specs USING (program_hash) ORDER BY keys.rowid"""
        found: list[Entry] = []
        for r in self.rows(sql):
            for key in self.readable([r], Key.from_row, f"the key {r['id']}", r["id"]):
                best = self._best(r["id"])
                found.append(Entry(key, r["spec"], r["mugraphs"], r["measurements"], best, r["at"] or ""))
        return tuple(found)

    def find(self, id: str) -> str:
        """The whole id of the μGraph or key whose id starts so. Raises UnknownIdError, AmbiguousIdError."""
        sql = """SELECT id FROM mugraphs WHERE substr(id, 1, length(?)) = ?
            UNION SELECT id FROM keys WHERE substr(id, 1, length(?)) = ? ORDER BY id"""
        ids = [r["id"] for r in self.rows(sql, id, id, id, id)] if id else []
        if not ids:
            raise UnknownIdError(id)
        if len(ids) > 1 and id not in ids:
            raise AmbiguousIdError(id, ids)
        return id if id in ids else ids[0]

    def show(self, id: str) -> tuple[Shown, ...]:
        """The μGraph whose id starts so, once for each key that has it, or all μGraphs of the key whose id starts so.

        Raises UnknownIdError, AmbiguousIdError.
        """
        sql = "SELECT * FROM mugraphs WHERE ? IN (id, key) ORDER BY key, rank, id"
        found: list[Shown] = []
        for r in self.rows(sql, self.find(id)):
            keys = self.rows("SELECT * FROM keys WHERE id = ?", r["key"])
            for key in self.readable(keys, Key.from_row, f"the key {r['key']}", r["key"]):
                spec = self.spec(key.program_hash)
                sources = self.rows(
                    "SELECT source FROM kernels WHERE key = ? AND mugraph = ? ORDER BY rowid", r["key"], r["id"]
                )
                found += [
                    Shown(
                        key,
                        spec[0] if spec else "",
                        mugraph,
                        self.measurements(key, r["id"]),
                        tuple(s["source"] for s in sources),
                    )
                    for mugraph in self.readable([r], _mugraph, f"the μGraph {r['id']}", r["id"])
                ]
        return tuple(found)

    def remove(self, id: str) -> int:
        """Removes a key with all that belongs to it, or a μGraph from every key. Returns how many of these went.

        Raises UnknownIdError, AmbiguousIdError.
        """
        id = self.find(id)
        with self.transaction() as db:
            gone = db.execute("DELETE FROM keys WHERE id = ?", [id]).rowcount
            holders = [r["key"] for r in self.rows("SELECT key FROM mugraphs WHERE id = ?", id)]
            for key in holders:
                for table in ("results", "kernels", "measurements"):
                    db.execute(f"DELETE FROM {table} WHERE key = ? AND mugraph = ?", [key, id])
                db.execute("DELETE FROM mugraphs WHERE key = ? AND id = ?", [key, id])
            db.execute("DELETE FROM specs WHERE program_hash NOT IN (SELECT program_hash FROM keys)")
            return gone + len(holders)

    def shrink(self) -> None:
        """Drops schedules that nothing names any more, and gives free pages back."""
        with self.transaction() as db:
            named = " UNION ".join(f"SELECT schedule FROM {t}" for t in ("kernels", "measurements", "results"))
            db.execute(f"DELETE FROM schedules WHERE id NOT IN ({named})")
        with self._translated():
            self._db.execute("VACUUM")

    # -- the ground

    def _best(self, key: str) -> Best | None:
        sql = """SELECT results.mugraph, status, time_us, json AS schedule, source, document, at
            FROM results JOIN schedules ON schedules.id = results.schedule
            JOIN kernels ON kernels.key = results.key AND kernels.id = results.kernel WHERE results.key = ?"""
        return next(iter(self.readable(self.rows(sql, key), _best, f"the result of {key}", key)), None)

    def readable(self, rows: Iterable[Row], read: Callable[[Row], T], what: str, id: str) -> Sequence[T]:
        """Those of the rows that can be read."""
        found: list[T] = []
        for r in rows:
            try:
                if blobs := [column for column, value in r.items() if isinstance(value, bytes)]:
                    raise ValueError(f"{blobs[0]} is no text")
                found.append(read(r))
            except DAMAGED as error:
                if what not in self._warned:
                    self._warned.add(what)
                    self._warn(f"{what} is damaged and left out: {error}; `mirage cache remove {id}` removes it")
        return found

    def rows(self, sql: str, *args: str | int) -> Sequence[Row]:
        """The answer of a query."""
        with self._translated():
            return [*self._db.query(sql, args)]

    @contextmanager
    def snapshot(self) -> Generator[None, None, None]:
        """All that is read inside is of one moment."""
        with self._translated():
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.rollback()

    @contextmanager
    def transaction(self) -> Generator[Tables, None, None]:
        """One that holds the write lock from its start, so that what it reads stays true until it commits."""
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                self._db.rollback()
                raise

    def check_writable(self) -> None:
        """Raises StoreError where nothing can be written, in front of work whose results are to be kept."""
        with self.transaction() as db:
            db.execute("DELETE FROM results WHERE 0")  # of a read-only file, BEGIN IMMEDIATE is a plain BEGIN

    @contextmanager
    def _translated(self) -> Generator[None, None, None]:
        """What SQLite says of this file, as StoreError. Misuse of SQL is a bug and passes."""
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except sqlite3.DatabaseError as error:
            problem, remedy = explanation(str(error))
            raise StoreError(self.path, problem, remedy) from error

    def _prepare(self) -> None:
        """Settings of the connection, and the migrations that the file lacks."""
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA synchronous = NORMAL")  # with WAL: consistent after a crash, durable after a kill
        if self._applied() != len(MIGRATIONS):
            self._use_wal()
            with self.transaction() as db:
                done = self._applied()
                if done == 0:
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    db.execute("CREATE TABLE migrations (number INTEGER PRIMARY KEY, purpose TEXT NOT NULL, at TEXT)")
                for number, purpose, statements in MIGRATIONS[done:]:
                    for statement in statements:
                        db.execute(statement)
                    db.table("migrations").insert({"number": number, "purpose": purpose, "at": _now()})

    def _applied(self) -> int:
        """The number of the last migration the file has had. Refuses files of newer versions and of other programs."""
        tables = {r["name"] for r in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return 0
        owner = self.rows("PRAGMA application_id")[0]["application_id"]
        if owner != APPLICATION_ID or "migrations" not in tables:
            raise StoreError(self.path, "belongs to another program", OTHER_PATH)
        last = int(self.rows("SELECT max(number) AS last FROM migrations")[0]["last"])
        if last > len(MIGRATIONS):
            problem = f"was made by a newer mirage: its format is {last}, and this one knows {len(MIGRATIONS)}"
            raise StoreError(self.path, problem, f"install that version, or: {OTHER_PATH}")
        return last

    def _use_wal(self) -> None:
        """Readers then never wait for a writer. SQLite asks for the lock this needs without waiting, so wait here."""
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL").fetchall()
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)


def _opened_to_read(path: Path) -> sqlite3.Connection:
    """The file itself, where SQLite can read it and its format is this version's; else a copy of it in memory.

    SQLite has no room for its locks where nothing can be written: nobody else writes there either. It then cannot read
    a write-ahead log, and reads a copy of both.
    """
    log = path.with_name(f"{path.name}-wal")
    for options in ("mode=ro", "mode=ro&immutable=1"):
        if "immutable" in options and log.exists() and log.stat().st_size:
            break
        with suppress(sqlite3.OperationalError):
            uri = f"{path.absolute().as_uri()}?{options}"
            connection = sqlite3.connect(uri, timeout=BUSY_TIMEOUT_S, isolation_level=None, uri=True)
            return connection if _last_migration(connection) == len(MIGRATIONS) else _in_memory(connection)
    with TemporaryDirectory(prefix="mirage-") as folder:
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                shutil.copyfile(f"{path}{suffix}", f"{folder}/copy{suffix}")
        return _in_memory(_opened(Path(folder) / "copy"))


def _last_migration(connection: sqlite3.Connection) -> int | None:
    """None where the file is empty or another program's. Raises OperationalError where SQLite cannot read it there."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'migrations'")
    return connection.execute("SELECT max(number) FROM migrations").fetchone()[0] if tables.fetchone() else None


def _in_memory(source: sqlite3.Connection) -> sqlite3.Connection:
    copied = _opened(Path(":memory:"))
    with closing(source):
        source.backup(copied)
    return copied


OTHER_PATH = "name another file with --db or MIRAGE_DB"


def default_path() -> Path:
    """$MIRAGE_DB, or mirage/mirage.db in the user's cache directory ($XDG_CACHE_HOME, else ~/.cache)."""
    if (named := knobs.DB.value()) is not None:
        return named
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "mirage" / "mirage.db"


def _readable(text: bytes) -> str:
    """A text of the database; one that is damaged costs its own row alone, whose readers find that out."""
    return text.decode("utf-8", errors="replace")


def explanation(message: str) -> tuple[str, str]:
    """Problem and remedy behind a message of SQLite's."""
    if "locked" in message or "busy" in message:
        return f"has been locked by another process for {BUSY_TIMEOUT_S:.0f} s", f"end that process, or {OTHER_PATH}"
    if "not a database" in message or "encrypted" in message:
        return "is damaged, or no database at all", f"{OTHER_PATH}, or move it away, and mirage makes a new one"
    if "malformed" in message:
        return f"is damaged ({message})", f"move it away, and mirage makes a new one; or {OTHER_PATH}"
    if "full" in message:
        return "cannot grow: the disk is full", f"make room, or {OTHER_PATH}"
    return f"cannot be used ({message})", f"check the permissions of the file and its folder, or {OTHER_PATH}"


def _put_key(db: Tables, key: Key) -> str:
    db.table("keys").insert({"id": key.id, **key.row()}, pk="id", ignore=True)
    return key.id


def _put_schedule(db: Tables, schedule: Json) -> str:
    text = dump(schedule)
    db.table("schedules").insert({"id": digest(text), "json": text}, pk="id", ignore=True)
    return digest(text)


def _put_kernel(db: Tables, key: Key, mugraph: str, schedule: Json, source: str) -> str:
    id = digest(source)
    row = {"key": _put_key(db, key), "id": id, "mugraph": mugraph, "schedule": _put_schedule(db, schedule)}
    db.table("kernels").upsert({**row, "source": source}, pk=("key", "id"))
    return id


# What follows makes values of rows. It raises DAMAGED where one is damaged.


def _best(row: Row) -> Best:
    columns = {name: row[name] for name in ("mugraph", "status", "time_us", "source", "at")}
    result = Result.from_json(json.loads(row["document"]))
    best = Best(**columns, schedule=_schedule(row["schedule"]), result=result)
    _check_text(best.source, "its kernel")
    if best.status not in ("measured", "predicted"):
        raise ValueError(f"its status is {best.status!r:.40}")
    _check(best.time_us, MAYBE, "its time")
    return best


def _beside(row: Row) -> tuple[float, float]:
    times = row["kernel_us"], row["inductor_us"]
    for x in times:
        _check(x, NUMBER, "a time")
    return times


def _tried(row: Row) -> tuple[float, str]:
    _check(row["budget_s"], NUMBER, "its seconds")
    _check(row["problem"], str, "its problem")
    return row["budget_s"], row["problem"]


def _winner(row: Row) -> Winner:
    return Winner(row["id"], Key.dims_of(row), row["mugraph"], _schedule(row["json"]))


def _mugraph(row: Row) -> StoredMuGraph:
    names = ("id", "text", "rank", "kernels", "predicted_us")
    mugraph = StoredMuGraph(**{n: row[n] for n in names}, verification=json.loads(row["verification"]))
    _check(mugraph.verification, (None, VERDICT), "its verdict")
    _check(mugraph.predicted_us, MAYBE, "its predicted time")
    _check_text(mugraph.text, "its text")
    return mugraph


def _measurement(row: Row) -> Measurement:
    names = ("mugraph", "median_us", "spread_us", "method", "kernel", "failure", "at")
    for name in ("median_us", "spread_us"):
        _check(row[name], MAYBE, name)
    samples = {name: json.loads(row[name]) for name in ("samples_us", "alone_samples_us")}
    _check(samples, {...: [NUMBER]}, "its times")
    return Measurement(
        **{n: row[n] for n in names},
        schedule=_schedule(row["schedule_json"]),
        samples_us=tuple(samples["samples_us"]),
        alone_samples_us=tuple(samples["alone_samples_us"]),
        cold=bool(row["cold"]),
        accuracy=json.loads(row["accuracy"]),
    )


def _schedule(text: str) -> Json:
    schedule = json.loads(text)
    Schedule.from_json(schedule)  # which raises ValueError
    return schedule


def _check(value: Json, shape: Shape, where: str) -> None:
    if (problem := misfit(value, shape, where)) is not None:
        raise ValueError(problem)


def _check_text(text: str, what: str) -> None:
    """No text that mirage has made holds a control character."""
    if (harmful := CONTROL.search(text)) is not None:
        raise ValueError(f"{what} holds the control character {harmful[0]!r}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
