"""What a worker of a Dask cluster runs: the second half of a program's way, from what the search found to its rows.

    Job, Found, what the database knew ─► Finished: the result, and all rows of its key

A worker keeps its `Session` from one program to the next: the processes that compile, interpret and measure take
seconds to start. Its database is for one program: what it found before would make answers depend on the order of work.
"""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any  # dask is an extra, which may not be there

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.bench.benchmark import Document, run
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.optimize import finish
from mirage_cli.pipeline.searching import Failed, Found, Options
from mirage_cli.pipeline.session import Session
from mirage_cli.store import exchange
from mirage_cli.store.records import Best
from mirage_cli.store.results import Result, Unfinished
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import Target
from mirage_cli.target.knobs import WORKERS
from mirage_cli.tune.measure import MeasureError

GPU = "GPU"
"""The Dask resource of a worker that holds one: `dask worker ADDRESS --resources GPU=1`."""
IDLE_S = 30.0
"""Seconds without a program after which a worker ends the processes of its session."""


def dask_setup(_: object) -> None:
    """Run first by the worker processes of a local cluster, which leave interrupts to their parent."""
    for sent in (signal.SIGINT, signal.SIGHUP):  # which reach the whole group
        signal.signal(sent, signal.SIG_IGN)


@dataclass(frozen=True, slots=True)
class Job:
    """What is the same for all programs of one run. measures: whether kernels are timed, on the worker's GPU."""

    target: Target
    options: Options
    measures: bool
    command: str


@dataclass(frozen=True, slots=True)
class Finished:
    """best: what the worker's database has then. rows: all of the program's key; None where the search had failed."""

    result: Result | Unfinished
    best: Best | None
    rows: exchange.Bundle | None


@dataclass(frozen=True, slots=True)
class Compared:
    """row: a program's kernel beside its baselines. rows: all of the program's key, what was timed among them."""

    row: Document
    rows: exchange.Bundle | None


def finish_here(
    job: Job, program: Program, text: str, found: Found | Failed, known: Sequence[exchange.Bundle]
) -> Finished:
    """`optimize.finish` on this worker. Its processes that compile are as many as MIRAGE_WORKERS says.

    Where its GPU answers no more, the worker leaves the cluster, and its programs go to others.
    """
    with _knowing(job, known) as session:
        result = finish(session, program, text, found)
        if job.measures and isinstance(result, Unfinished) and not _gpu_answers(session):
            _leave()
        key = key_of(program, job.target, job.measures)
        return Finished(result, session.store.best(key), exchange.bundle(session.store, key.id))


def compare_here(job: Job, program: Program, against: Sequence[str], known: Sequence[exchange.Bundle]) -> Compared:
    """`benchmark.run` on this worker's GPU. Raises MeasureError; where the GPU answers no more, the worker leaves."""
    with _knowing(job, known) as session:
        try:
            row = run(session, program, against)
        except MeasureError:
            if not _gpu_answers(session):
                _leave()
            raise
        return Compared(row, exchange.bundle(session.store, key_of(program, job.target, True).id))


@contextmanager
def _knowing(job: Job, known: Sequence[exchange.Bundle]) -> Generator[Session]:
    """This worker's session, with a database that has these rows alone."""
    here = replace(job, options=replace(job.options, workers=WORKERS.value()))
    with TemporaryDirectory(prefix="mirage-") as folder, Database(Path(folder) / "mirage.db") as store:
        exchange.merge(store, known)
        with _held.session(here, store) as session:
            yield session


def _gpu_answers(session: Session) -> bool:
    try:
        return bool(session.worker().device)
    except MeasureError:
        return False


def _leave() -> None:
    """Raises Dask's exception for a task that should run elsewhere."""
    distributed: Any = importlib.import_module("distributed")
    worker = distributed.get_worker()
    worker.loop.add_callback(worker.close_gracefully)
    raise distributed.Reschedule


class _Held:
    """The session of this process, for one program at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.job: Job | None = None
        self.held: Session | None = None
        self.idle = threading.Timer(IDLE_S, self.end)

    @contextmanager
    def session(self, job: Job, store: Database) -> Generator[Session]:
        with self.lock:
            self.idle.cancel()
            if self.held is None or self.job != job:
                self.close()
                self.job, self.held = job, Session(job.target, job.options, store, job.measures, command=job.command)
            self.held.store = store
            try:
                yield self.held
            finally:
                self.idle = threading.Timer(IDLE_S, self.end)
                self.idle.daemon = True
                self.idle.start()

    def end(self) -> None:
        with self.lock:
            self.close()

    def close(self) -> None:
        if self.held is not None:
            self.held.__exit__()
            self.held = None


_held = _Held()
"""In a worker process."""
