"""Programs on a Dask cluster of real processes: the answers of one process, whatever dies meanwhile.

Workers that hold a GPU hold one whose times are made up (`made_up_gpu`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import ExecutorError, NothingStoredError
from mirage_cli.ir.program import Program
from mirage_cli.pipeline import cluster as module
from mirage_cli.pipeline.bench.benchmark import run
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.optimize import optimize
from mirage_cli.pipeline.searching import Failed, Options
from mirage_cli.pipeline.session import Session
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.results import Result, Unfinished
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import find_target
from tests.pipeline import made_up_gpu

dask: Any = pytest.importorskip("dask")
pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")  # which comes with it
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(30),
]

from mirage_cli.pipeline.cluster import Cluster, asked_of, connected  # noqa: E402
from mirage_cli.pipeline.onworker import Job  # noqa: E402

H200 = find_target("h200")
SEARCHED = Options(tune=False, budget_s=60.0, seed=3)
TUNED = Options(budget_s=0.0, seed=3)  # one round
SPEC = (
    "name: p{i}\ndims: {{m: {m}, k: 8}}\ninputs: {{X: [m, k]}}\nprogram: 'O = exp(X * {i})'\noutputs: {{O: [m, k]}}\n"
)
Answers = list[Result | Unfinished]


def programs(count: int) -> list[tuple[Program, str]]:
    texts = [SPEC.format(i=i + 2, m=16 + i) for i in range(count)]
    return [(parse_spec(t).programs()[0], t) for t in texts]


def plain(value: Any) -> Any:
    """A document without what differs from run to run."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in ("seconds", "phases", "cached")}
    return [plain(v) for v in value] if isinstance(value, list) else value


def documents(answers: Sequence[Result | Unfinished]) -> list[Any]:
    return [plain(a.to_json()) for a in answers]


def here(folder: Path, options: Options, measures: bool, asked: Sequence[tuple[Program, str]]) -> list[Any]:
    """The answers of one process, and what its database then has."""
    with Database(folder / "here.db") as store, Session(H200, options, store, measures) as session:
        return documents(list(optimize(session, asked))) + stored(store, measures, asked)


def there(
    cluster: Cluster, folder: Path, options: Options, measures: bool, asked: Sequence[tuple[Program, str]]
) -> list[Any]:
    with Database(folder / "there.db") as store, Session(H200, options, store, measures) as session:
        return documents(list(cluster.optimize(session, asked))) + stored(store, measures, asked)


def stored(store: Database, measures: bool, asked: Sequence[tuple[Program, str]]) -> list[Any]:
    found: list[Any] = []
    for program, _ in asked:
        key = key_of(program, H200, measures)
        best = store.best(key)
        times = [(m.schedule, m.samples_us) for g in store.mugraphs(key) for m in store.measurements(key, g.id)]
        found.append([best and (best.mugraph, best.schedule, best.time_us, best.source), len(times)])
    return found


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with which a GPU is lost."""
    return tmp_path_factory.mktemp("cluster") / "lost"


@pytest.fixture(scope="module")
def cluster(losing: Path) -> Iterator[Cluster]:
    """Four processes, two of which hold a GPU. Another cluster of this machine has Dask's own port."""
    preload = dask.config.set({"distributed.worker.preload": ["tests.pipeline.made_up_gpu"]})
    with pytest.MonkeyPatch.context() as patch, preload:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv(made_up_gpu.LOST, str(losing))
        with socket.socket() as other:
            with suppress(OSError):  # it is taken already
                other.bind(("127.0.0.1", 8787))
                other.listen()
            with connected(None, 4, gpus=2) as made:
                yield made


def test_programs_have_the_answers_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    asked = programs(12)
    assert there(cluster, tmp_path, SEARCHED, False, asked) == here(tmp_path, SEARCHED, False, asked)


def workers_here() -> list[Any]:
    """The processes of the local cluster's workers, forked from a child of this one that has imported Dask."""
    servers = [c for c in psutil.Process().children() if any("multiprocessing.forkserver" in a for a in c.cmdline())]
    return [worker for server in servers for worker in server.children()]


@contextmanager
def killing(every_s: float) -> Generator[list[int]]:
    """Kills a worker every so many seconds."""
    ended, killed = threading.Event(), list[int]()

    def kill() -> None:
        while not ended.is_set():
            if alive := workers_here():
                alive[len(killed) % len(alive)].kill()
                killed.append(1)
            ended.wait(every_s)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def test_programs_are_answered_though_workers_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    asked = programs(12)
    with killing(5.0) as killed:
        found = there(cluster, tmp_path, SEARCHED, False, asked)
    assert killed and found == here(tmp_path, SEARCHED, False, asked)


def test_another_worker_answers_where_the_one_that_is_asked_dies(cluster: Cluster, tmp_path: Path) -> None:
    """The first question of a command is what its results are stored under."""
    assert cluster.ask(False, 1, made_up_gpu.dies_once, tmp_path / "died") == ["alive"]
    assert (tmp_path / "died").exists()


def test_kernels_are_tuned_by_the_workers_that_hold_gpus(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.target("auto") == (H200, True) and cluster.gpu("h200") == H200
    asked = programs(4)
    found = there(cluster, tmp_path, TUNED, True, asked)
    with monkeypatch.context() as patch:
        made_up_gpu.pretend(patch.setattr)
        assert found == here(tmp_path, TUNED, True, asked)
    with Database(tmp_path / "there.db") as store, Session(H200, TUNED, store, True) as session:
        assert all(isinstance(a, Result) and a.cached for a in cluster.optimize(session, asked))
        (tuned,) = cluster.tune(session, asked[:1])
        assert isinstance(tuned, Result) and tuned.tuning and tuned.tuning.stored
        with pytest.raises(NothingStoredError):
            cluster.tune(session, programs(5)[4:])


def test_kernels_are_compared_by_the_workers_that_hold_gpus(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no kernel is tuned first; what was timed is in the database; another run tunes nothing."""
    asked, against = programs(2), ["eager", "compile"]
    with Database(tmp_path / "there.db") as store, Session(H200, TUNED, store, True) as session:
        list(cluster.optimize(session, asked[:1]))
        found = list(cluster.bench(session, asked, against))
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "optimize", None)
            again = list(cluster.bench(session, asked, against))
        with monkeypatch.context() as patch:
            made_up_gpu.pretend(patch.setattr)
            assert plain(found) == plain(again) == plain([run(session, program, against) for program, _ in asked])
        assert all(store.measurements(key_of(p, H200, True), "compile") for p, _ in asked)
    assert [r["spec"] for r in found if isinstance(r, dict)] == ["p2", "p3"]


def test_a_gpu_that_is_lost_leaves_its_programs_to_others(
    cluster: Cluster, losing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = time.monotonic() + 20
    while len(cluster.workers(True)) < 2 and time.monotonic() < end:  # tests above have killed workers
        time.sleep(0.1)
    losing.touch()
    found = there(cluster, tmp_path, TUNED, True, programs(4))
    assert losing.read_text() and all(d["best"]["status"] == "measured" for d in found[:4])
    assert len(cluster.workers(True)) == 1 and len(cluster.workers(False)) == 3

    cluster.client.retire_workers(cluster.workers(True))
    monkeypatch.setattr(module, "LOST_S", 1.0)
    with Database(tmp_path / "mirage.db") as store:
        ((program, text),) = programs(1)
        asked = asked_of(store, key_of(program, H200, True), program, text)
    job = Job(H200, TUNED, True, "")
    ((_, answer),) = cluster.run(lambda a: cluster.submitted(job, a), {0: asked}, True)
    assert isinstance(answer, Failed) and "there was no worker that holds a GPU for 1 s" in answer.problem
    with pytest.raises(ExecutorError, match=r"no worker holds h200 to tune on; .*--resources GPU=1"):
        cluster.gpu("h200")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def outside(*command: str) -> Generator[subprocess.Popen[bytes]]:
    """A scheduler or a worker as somebody else starts it."""
    line = [sys.executable, "-m", "dask", *command]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_scheduler_that_is_restarted_is_given_what_was_left(tmp_path: Path) -> None:
    port = str(free_port())
    address = f"tcp://127.0.0.1:{port}"
    asked, found = programs(6), list[Any]()
    scheduler = ("scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
    worker = ("worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny")
    with (
        outside(*scheduler) as first,
        connected(address, 1) as cluster,
        Database(tmp_path / "there.db") as store,
        Session(H200, SEARCHED, store, False) as session,
    ):
        with outside(*worker):
            answers = cluster.optimize(session, asked)
            found.append(next(answers))
            first.kill()
        with outside(*scheduler), outside(*worker):
            found += answers
    assert documents(found) == here(tmp_path, SEARCHED, False, asked)[: len(asked)]


def test_a_scheduler_that_is_not_there_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_S", 0.2)
    with (
        pytest.raises(ExecutorError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"),
        connected("tcp://127.0.0.1:9", 1),
    ):
        pass
