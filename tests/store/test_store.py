"""The database: what is put comes back, processes share it, nothing that was acknowledged is lost, damage is named."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.errors import AmbiguousIdError, ExchangeError, StoreError, UnknownIdError
from mirage_cli.store import exchange
from mirage_cli.store.migrations import APPLICATION_ID, MIGRATIONS
from mirage_cli.store.records import Winner
from mirage_cli.store.results import Result
from mirage_cli.store.store import Best, Database, Key, Measurement, StoredMuGraph, default_path
from tests.programs import result_document

ROOT = Path(__file__).parents[2]
KEY = Key("cafe", (("m", 16), ("k", 4096)), "float16", "NVIDIA H200", "570.1", "2.11.0", "3.6.0", "0.1.0")
SCHEDULE = {"k0": {"tiles": [["m", 16]], "order": ["m"], "warps": 4}}
VERDICT = {"ok": True, "net": "field", "bound": 1e-9, "detail": "", "counterexample": None, "assumes": []}
FIRST = StoredMuGraph("aaaa00000000", "mugraph first\n", 0, 1, 10.5, VERDICT)
SECOND = StoredMuGraph("bbbb00000000", "mugraph second\n", 1, 2)
TIMED = Measurement(FIRST.id, SCHEDULE, (10.0, 10.5), 10.25, 0.5, method="graph", accuracy={"error": 1e-3})
BEST = Best(FIRST.id, "measured", 10.25, SCHEDULE, "def kernel(): ...\n", Result.from_json(result_document()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "mirage.db"


def filled(path: Path) -> Database:
    store = Database(path)
    store.put_spec(KEY.program_hash, "gated_mlp", "name: gated_mlp\n")
    store.put_mugraphs(KEY, [FIRST, SECOND])
    store.put_measurement(KEY, TIMED)
    store.put_best(KEY, BEST)
    return store


# -- what is put comes back


def test_everything_put_comes_back_after_reopening(path: Path) -> None:
    filled(path).close()
    with Database(path) as store:
        assert store.spec("cafe") == ("gated_mlp", "name: gated_mlp\n")
        assert store.mugraphs(KEY) == (FIRST, SECOND)
        (timed,) = store.measurements(KEY, FIRST.id)
        assert timed.at and replace(timed, at="") == TIMED
        best = store.best(KEY)
        assert best is not None and replace(best, at="") == BEST


def test_what_won_at_other_sizes_is_found(path: Path) -> None:
    large = replace(KEY, program_hash="beef", dims=(("m", 2048), ("k", 4096)))
    others = [replace(large, gpu="NVIDIA H100"), replace(large, dtype="bfloat16"), replace(large, dims=(("m", 2048),))]
    with filled(path) as store:
        for key in others:
            store.put_best(key, BEST)
        assert store.winners(KEY) == ()
        assert store.winners(large) == (Winner(KEY.id, KEY.dims, BEST.mugraph, SCHEDULE),)
        store.put_best(large, replace(BEST, status="predicted"))
        assert store.winners(KEY) == ()
        store.put_best(large, BEST)
        assert store.winners(KEY) == (Winner(large.id, large.dims, BEST.mugraph, SCHEDULE),)


def test_times_beside_inductor_are_of_a_kernel(path: Path) -> None:
    with Database(path) as store:
        assert store.beside(KEY, "kernel") is None
        store.put_beside(KEY, "kernel", 1.5, 2.5)
        store.put_beside(KEY, "kernel", 1.25, 2.25)
        assert store.beside(KEY, "kernel") == (1.25, 2.25)
        assert store.beside(KEY, "another") is None
        store.put_best(KEY, BEST)
        store.remove(KEY.id)
        assert store.beside(KEY, "kernel") is None


def test_what_was_not_put_is_none(path: Path) -> None:
    with Database(path) as store:
        assert store.spec("cafe") is store.best(KEY) is None
        assert store.mugraphs(KEY) == store.measurements(KEY, FIRST.id) == store.list() == ()


@pytest.mark.parametrize(
    "change",
    [{"program_hash": "beef"}, {"dims": (("m", 17), ("k", 4096))}, {"dtype": "bfloat16"}, {"gpu": "h200"},
     {"driver": "571"}, {"torch": "2.12"}, {"triton": "3.7"}, {"mirage": "0.2.0"}],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_every_part_of_a_key_tells_results_apart(path: Path, change: dict[str, object]) -> None:
    other = replace(KEY, **change)  # type: ignore[arg-type]
    assert other.id != KEY.id and Key.from_row(other.row()) == other
    with filled(path) as store:
        assert store.best(other) is None
        assert store.measurements(other, FIRST.id) == store.mugraphs(other) == ()


def test_plans_searched_for_one_gpu_are_found_for_another(path: Path) -> None:
    elsewhere = replace(KEY, gpu="h100", driver="")
    with filled(path) as store:
        store.put_mugraphs(elsewhere, [replace(SECOND, rank=0), replace(FIRST, rank=1)])
        found = store.mugraphs_of(KEY.program_hash, KEY.dims, KEY.dtype)
        assert [(g.id, g.rank) for g in found] == [(FIRST.id, 0), (SECOND.id, 0)]
        assert store.mugraphs_of(KEY.program_hash, (("m", 1), ("k", 4096)), KEY.dtype) == ()


def test_a_failed_candidate_is_remembered(path: Path) -> None:
    failed = Measurement(SECOND.id, SCHEDULE, failure="hang: no answer in time", kernel="k0", cold=False)
    with filled(path) as store:
        store.put_measurement(KEY, failed)
        assert [replace(m, at="") for m in store.measurements(KEY, SECOND.id)] == [failed]


@pytest.mark.parametrize(
    ("new", "kept"),
    [
        (replace(BEST, time_us=9.0), True),
        (replace(BEST, time_us=11.0), False),
        (replace(BEST, status="predicted", time_us=1.0), False),
        (replace(BEST, time_us=None), False),
    ],
)
def test_the_better_result_is_kept(path: Path, new: Best, kept: bool) -> None:
    with filled(path) as store:
        winner = store.put_best(KEY, new)
        assert winner.time_us == store.best(KEY).time_us == (new if kept else BEST).time_us  # type: ignore[union-attr]
        assert store.put_best(KEY, new, over=store.best(KEY)).time_us == new.time_us


def test_what_a_result_was_not_compared_with_stays_if_it_is_better(path: Path) -> None:
    with filled(path) as store:
        compared = store.best(KEY)
        store.put_best(KEY, replace(BEST, time_us=9.0))  # by another process, in the meantime
        assert store.put_best(KEY, replace(BEST, time_us=11.0), over=compared).time_us == 9.0
        assert store.put_best(KEY, replace(BEST, time_us=8.0), over=compared).time_us == 8.0


# -- looking around


def test_list_show_and_remove(path: Path) -> None:
    with filled(path) as store:
        (entry,) = store.list()
        assert (entry.key, entry.spec, entry.mugraphs, entry.measurements) == (KEY, "gated_mlp", 2, 1)
        assert entry.best is not None and entry.best.mugraph == FIRST.id
        (shown,) = store.show("aaaa")
        assert shown.mugraph == FIRST and shown.sources == (BEST.source,) and len(shown.measurements) == 1
        assert [s.mugraph.id for s in store.show(KEY.id)] == [FIRST.id, SECOND.id]

        assert store.remove(FIRST.id) == 1
        assert store.best(KEY) is None
        assert store.mugraphs(KEY) == (SECOND,)
        assert store.remove(KEY.id) == 1
        assert store.list() == () and store.spec("cafe") is None


def test_the_beginning_of_an_id_names_one_thing_or_none(path: Path) -> None:
    alike = replace(SECOND, id="aaaa11111111")
    with filled(path) as store:
        store.put_mugraphs(KEY, [alike])
        assert [s.mugraph.id for s in store.show("aaaa1")] == [alike.id] and store.find(KEY.id[:8]) == KEY.id
        for look in (store.show, store.remove):
            with pytest.raises(AmbiguousIdError, match=r"2 ids start with aaa: aaaa00000000, aaaa11111111\n"):
                look("aaa")
            for nothing in ("", "%", "aaaa2", "aaaa000000001"):
                with pytest.raises(UnknownIdError):
                    look(nothing)
        assert len(store.mugraphs(KEY)) == 3
        assert store.remove("aaaa1") == 1 and store.mugraphs(KEY) == (FIRST, SECOND)


def test_a_mugraph_of_several_keys_is_shown_for_each(path: Path) -> None:
    with filled(path) as store:
        store.put_mugraphs(replace(KEY, gpu="h100"), [FIRST])
        assert {s.key.gpu for s in store.show("aa")} == {KEY.gpu, "h100"}


# -- several processes, and processes that are killed

WRITER = """
import sys
from pathlib import Path
from test_store import KEY, SCHEDULE, Measurement, Database
with Database(sys.argv[1]) as store:
    for n in range(int(sys.argv[3])):
        store.put_measurement(KEY, Measurement(sys.argv[2], SCHEDULE, (float(n),), float(n)))
        print(n, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path])}
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def test_four_processes_make_one_database(path: Path) -> None:
    names = ["w0", "w1", "w2", "w3"]
    running = [writer(path, name, 25) for name in names]
    for process in running:
        process.communicate(timeout=120)
        assert process.returncode == 0
    with Database(path) as store:
        for name in names:
            assert [m.median_us for m in store.measurements(KEY, name)] == [float(n) for n in range(25)]


def test_a_killed_process_loses_nothing_that_was_acknowledged(path: Path) -> None:
    for turn in range(5):
        with writer(path, f"w{turn}", 100_000) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.03 * turn)
            process.send_signal(signal.SIGKILL)
            acknowledged = 1 + len(process.stdout.read().splitlines())
        with sqlite3.connect(path) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        raw.close()
        with Database(path) as store:
            kept = [m.median_us for m in store.measurements(KEY, f"w{turn}")]
            assert len(kept) >= acknowledged - 1  # the last line may have been cut by the kill
            assert kept == [float(n) for n in range(len(kept))]


def test_a_transaction_that_fails_leaves_nothing(path: Path) -> None:
    with filled(path) as store:
        with pytest.raises(sqlite3.IntegrityError):
            store.put_mugraphs(KEY, [replace(FIRST, text="changed"), replace(SECOND, text=None)])  # type: ignore[arg-type]
        assert store.mugraphs(KEY) == (FIRST, SECOND)
        store.put_measurement(KEY, TIMED)
        assert len(store.measurements(KEY, FIRST.id)) == 2


def test_a_locked_database_is_waited_for_and_then_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_cli.store.store.BUSY_TIMEOUT_S", 0.1)
    filled(path).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Database(path) as store:
        assert store.best(KEY) is not None, "readers do not wait for a writer"
        with pytest.raises(StoreError, match="locked by another process"):
            store.put_measurement(KEY, TIMED)
    holder.close()


def test_what_was_tried_is_kept_with_its_budget(path: Path) -> None:
    with Database(path) as store:
        assert store.tried(KEY) is None
        for seconds in (8.0, 20.0):
            store.put_tried(KEY, seconds, "none is right")
            assert store.tried(KEY) == (seconds, "none is right")


# -- migrations, and files that are not ours


def test_migrations_are_numbered_from_one_and_recorded(path: Path) -> None:
    assert [number for number, _, _ in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
    Database(path).close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT number, purpose FROM migrations").fetchall() == [(n, p) for n, p, _ in MIGRATIONS]
        assert raw.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    raw.close()


def test_an_older_database_is_migrated_with_its_content(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path).close()
    later = (len(MIGRATIONS) + 1, "a note on each key", ("ALTER TABLE keys ADD COLUMN note TEXT NOT NULL DEFAULT ''",))
    monkeypatch.setattr("mirage_cli.store.store.MIGRATIONS", (*MIGRATIONS, later))
    for _ in range(2):
        with Database(path) as store:
            assert store.mugraphs(KEY) == (FIRST, SECOND)
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT note FROM keys").fetchall() == [("",)]
    raw.close()


def test_times_beside_inductor_that_may_be_others_are_left_out_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as m:
        m.setattr("mirage_cli.store.store.MIGRATIONS", MIGRATIONS[:5])
        with Database(path) as store:
            store.put_beside(KEY, "kernel", 1.5, 2.5)
    with Database(path) as store:
        assert store.beside(KEY, "kernel") is None
        store.put_beside(KEY, "kernel", 1.5, 2.5)
    with Database(path) as store:
        assert store.beside(KEY, "kernel") == (1.5, 2.5)


def test_a_failing_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path).close()
    bad = (len(MIGRATIONS) + 1, "half done", ("CREATE TABLE half (x)", "CREATE TABLE keys (x)"))
    with monkeypatch.context() as m:
        m.setattr("mirage_cli.store.store.MIGRATIONS", (*MIGRATIONS, bad))
        with pytest.raises(StoreError, match="already exists"):
            Database(path)
    with Database(path) as store:
        assert store.mugraphs(KEY) == (FIRST, SECOND)


def test_a_newer_database_is_refused(path: Path) -> None:
    filled(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("INSERT INTO migrations VALUES (999, 'from the future', '')")
    raw.close()
    with pytest.raises(StoreError, match=r"newer mirage: its format is 999(?s:.*)--db"):
        Database(path)


def test_damage_is_named_with_a_remedy(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database at all, but it is long enough to be looked at " * 20)
    with pytest.raises(StoreError, match=r"is damaged(?s:.*)move it away"):
        Database(path)
    assert path.exists()


def test_damage_further_in_is_named_when_it_is_met(path: Path) -> None:
    with filled(path) as store:
        store.put_mugraphs(KEY, [replace(SECOND, id=f"{n:012}", text="x" * 1000) for n in range(200)])
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        read_all(path)


def read_all(path: Path) -> None:
    with Database(path) as store:
        store.list()
        store.mugraphs(KEY)


def test_a_text_that_is_no_text_costs_its_own_row(path: Path) -> None:
    filled(path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE kernels SET source = CAST(X'64FF66' AS TEXT)")
    connection.execute("UPDATE mugraphs SET text = CAST(X'64FF66' AS TEXT) WHERE id = ?", (SECOND.id,))
    connection.commit()
    connection.close()
    with Database.reading(path) as store:
        best, graphs = store.best(KEY), store.mugraphs(KEY)
    assert best is not None and best.source == "d\ufffdf"
    assert graphs == (FIRST, replace(SECOND, text="d\ufffdf"))


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE bookmarks (url)")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Database(path)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        Database(tmp_path / "file" / "mirage.db")
    with pytest.raises(StoreError, match="cannot be used"):
        Database(tmp_path)


# -- databases to one another

OTHER = replace(KEY, dims=(("m", 1), ("k", 4096)))


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, but for the numbers that SQLite gives."""
    with sqlite3.connect(path) as raw:
        tables = [
            r[0] for r in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'migrations'")
        ]
        found = {t: sorted(map(repr, raw.execute(f"SELECT * FROM {t}"))) for t in tables if t != "measurements"}
        columns = (
            "key, mugraph, kernel, schedule, samples_us, alone_samples_us, median_us, spread_us, cold, method, "
            "accuracy, failure, at"
        )
        found["measurements"] = sorted(map(repr, raw.execute(f"SELECT {columns} FROM measurements")))
    raw.close()
    return found


def test_what_is_exported_is_imported_whole_and_once(path: Path, tmp_path: Path) -> None:
    with filled(path) as store:
        store.put_mugraphs(OTHER, [SECOND])
        store.put_measurement(KEY, Measurement("eager", {}, (3.0,), 3.0, math.inf))
        store.put_measurement(KEY, Measurement(SECOND.id, SCHEDULE, failure="hang: no answer in time"))
        assert exchange.write(store, tmp_path / "all.jsonl") == 2
    with Database(tmp_path / "new.db") as new:
        first = exchange.merge(new, exchange.read(tmp_path / "all.jsonl"))
        assert (first.mugraphs, first.measurements, first.results) == (3, 3, 1)
        assert content(tmp_path / "new.db") == content(path)
        again = exchange.merge(new, exchange.read(tmp_path / "all.jsonl"))
        assert (again.mugraphs, again.measurements, again.results) == (0, 0, 0)
        assert content(tmp_path / "new.db") == content(path)


def test_a_part_is_exported_by_id(path: Path, tmp_path: Path) -> None:
    with filled(path) as store:
        store.put_mugraphs(OTHER, [SECOND])
        whole = list(exchange.bundles(store, [KEY.id[:9]]))
        part = list(exchange.bundles(store, [SECOND.id]))
        assert list(exchange.bundles(store, [SECOND.id, KEY.id])) == [*whole, part[1]]
        assert [[m["id"] for m in b["mugraphs"]] for b in whole] == [[FIRST.id, SECOND.id]]
        assert [[m["id"] for m in b["mugraphs"]] for b in part] == [[SECOND.id], [SECOND.id]]
        assert all(b[t] == [] for b in part for t in ("results", "kernels", "measurements"))
        with pytest.raises(UnknownIdError):
            exchange.write(store, tmp_path / "none.jsonl", ["cccc"])
    assert not (tmp_path / "none.jsonl").exists()


def merged(path: Path, other: Path) -> exchange.Merged:
    with Database(path) as store, Database.reading(other) as copy:
        return exchange.merge(store, exchange.bundles(copy))


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        (replace(BEST, time_us=9.0), True),
        (replace(BEST, time_us=11.0), False),
        (replace(BEST, status="predicted", time_us=1.0), False),
        (replace(BEST, result=Result.from_json(result_document(floor_us=8.0))), True),  # as good, and newer
    ],
)
def test_of_two_databases_the_better_result_is_kept(path: Path, tmp_path: Path, theirs: Best, kept: bool) -> None:
    filled(path).close()
    time.sleep(0.01)
    with Database(tmp_path / "other.db") as other:
        other.put_best(KEY, theirs)
    assert merged(path, tmp_path / "other.db").results == kept
    assert merged(path, tmp_path / "other.db").results == 0
    with Database(path) as store:
        best = store.best(KEY)
        assert best is not None and replace(best, at="") == (theirs if kept else BEST)
    assert merged(tmp_path / "other.db", path).results == (not kept)


def test_a_database_of_an_older_version_is_merged_and_left_as_it_is(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path).close()
    later = (len(MIGRATIONS) + 1, "a note on each key", ("ALTER TABLE keys ADD COLUMN note TEXT NOT NULL DEFAULT ''",))
    before = path.read_bytes()
    with monkeypatch.context() as m:
        m.setattr("mirage_cli.store.store.MIGRATIONS", (*MIGRATIONS, later))
        assert merged(tmp_path / "newer.db", path).mugraphs == 2
    assert path.read_bytes() == before
    with pytest.raises(StoreError, match=r"newer.db was made by a newer mirage"):
        merged(path, tmp_path / "newer.db")


def test_a_file_that_cannot_be_merged_is_named(path: Path, tmp_path: Path) -> None:
    filled(path).close()
    (tmp_path / "text").write_text("no database " * 100, encoding="utf-8")
    with sqlite3.connect(tmp_path / "foreign.db") as raw:
        raw.execute("CREATE TABLE bookmarks (url)")
    raw.close()
    for name, problem in {
        "none": "is not there",
        "text": "is damaged",
        "foreign.db": "belongs to another program",
    }.items():
        with pytest.raises(StoreError, match=f"the database {tmp_path / name} {problem}"):
            merged(path, tmp_path / name)


def test_a_file_of_the_first_format_is_merged(path: Path, tmp_path: Path) -> None:
    """Its bundles have a table of searches, which this version does not."""
    with filled(tmp_path / "other.db") as other:
        (bundle,) = exchange.bundles(other)
    file = tmp_path / "cache.jsonl"
    lines = ({"mirage_cache": 1, "mirage": "0.1.0"}, bundle | {"searches": [{"seed": 0}]})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with Database(path) as store:
        assert exchange.merge(store, exchange.read(file)).mugraphs == 2


def bad_files() -> dict[str, tuple[str, str]]:
    header = '{"mirage_cache":1,"mirage":"0.1.0"}\n'
    key = {"program_hash": "cafe", "dims": [["m", 1]], "dtype": "float16", "gpu": "h100", "driver": "", "torch": "",
           "triton": "", "mirage": "0.1.0"}  # fmt: skip
    empty = {"key": key, "spec": None, **{t: [] for t in exchange.COLUMNS}}
    mugraph = {"id": "aa", "text": "", "rank": 0, "kernels": 1, "predicted_us": None, "verification": None}
    result = {"mugraph": "aa", "status": "measured", "time_us": 1.0, "schedule": {}, "kernel": "bb", "at": ""}
    result |= {"document": result_document()}
    kernel = {"id": "bb", "mugraph": "aa", "schedule": {}, "source": ""}

    def with_(**changes: object) -> str:
        return header + json.dumps(empty | changes)

    return {
        "empty": ("", "1: this is no file of"),
        "no header": (json.dumps(empty), "1: this is no file of"),
        "newer": ('{"mirage_cache": 9}', "1: a newer mirage wrote it: its format is 9"),
        "no JSON": (header + "{", "2: not JSON"),
        "deep": (header + "[" * 100_000, "2: not JSON"),
        "no bundle": (header + "[]", "2: expected an object with key, spec, mugraphs"),
        "no list": (with_(mugraphs={}), "2: mugraphs is no list"),
        "column missing": (with_(mugraphs=[{"id": "aa"}]), "2: mugraphs: expected an object with id, text"),
        "wrong type": (with_(mugraphs=[mugraph | {"rank": "first"}]), "2: mugraphs: rank is 'first'"),
        "huge": (with_(mugraphs=[mugraph | {"rank": 1 << 70}]), "2: mugraphs: rank is"),
        "no number": (with_(mugraphs=[mugraph | {"predicted_us": math.nan}]), "2: mugraphs: predicted_us is nan"),
        "dims": (with_(key=key | {"dims": [["m"]]}), "2: key: dims is no list"),
        "no kernel": (with_(results=[result]), "2: results: the kernel bb is not there"),
        "another kernel": (with_(kernels=[kernel]), "2: kernels: an id is not that of its source"),
    }


@pytest.mark.parametrize("what", bad_files())
def test_a_file_that_cannot_be_imported_is_told_with_its_line(what: str, tmp_path: Path) -> None:
    text, problem = bad_files()[what]
    (tmp_path / "file").write_text(text, encoding="utf-8")
    with pytest.raises(ExchangeError, match=re.escape(f"file:{problem}")):
        list(exchange.read(tmp_path / "file"))


# -- where it lies, and what it costs


def test_the_default_path_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIRAGE_DB", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".cache" / "mirage" / "mirage.db"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the XDG specification says to ignore
    assert default_path() == tmp_path / ".cache" / "mirage" / "mirage.db"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_path() == tmp_path / "xdg" / "mirage" / "mirage.db"
    monkeypatch.setenv("MIRAGE_DB", "~/mine.db")
    assert default_path() == tmp_path / "mine.db"


def test_the_store_needs_neither_torch_nor_triton() -> None:
    code = "import sys, mirage_cli.store.store; sys.exit(any(m in sys.modules for m in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
