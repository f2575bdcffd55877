"""Programs on a Dask cluster: a scheduler that somebody runs, or worker processes of this machine.

    Program ─► search, on any worker ─► tune, on a worker that holds a GPU ─► rows ─► the one database, here

Where no worker holds a GPU (the Dask resource `GPU`), any worker compiles and interprets instead of tuning. Each arrow
is a task, which Dask gives to another worker when its own dies. A task is given what the database knew as the run
began, so that no answer depends on how many workers there are. Rows are stored here as they come.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, TypeVar  # dask is an extra, which may not be there

from mirage_cli import __version__
from mirage_cli.errors import ExecutorError
from mirage_cli.ir.program import Program
from mirage_cli.pipeline import onworker
from mirage_cli.pipeline.bench.benchmark import Document
from mirage_cli.pipeline.kept import stored_result, stored_search
from mirage_cli.pipeline.keys import keys_of
from mirage_cli.pipeline.onworker import GPU, Compared, Finished, Job, compare_here, finish_here
from mirage_cli.pipeline.searchers import search_or_fail
from mirage_cli.pipeline.searching import Failed, Found
from mirage_cli.pipeline.session import Session
from mirage_cli.store import exchange
from mirage_cli.store.records import Best, Key
from mirage_cli.store.results import About, Result, Unfinished
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import Target, chosen_target
from mirage_cli.target.knobs import WORKERS, available_cores
from mirage_cli.tune.template import AT, template

T = TypeVar("T")
DEATHS = 20
"""Workers that may die over one task before it counts as what kills them."""
CONNECT_S = 10.0
"""Seconds for the first answer of a scheduler."""
LOST_S = 120.0
"""Seconds without a scheduler, or without a worker that can take what is left, after which a run ends."""
LOOK_S = 1.0
"""Seconds between two looks at whether there are workers."""
UNWATCHED = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "5s",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "5s",
}
"""Of a local cluster, which has no dashboard: what Dask measures of its workers took a twentieth of two cores."""
FORKED = {"distributed.worker.multiprocessing-method": "forkserver"}
"""Of a local cluster: its workers, replaced ones too, are forked from a process that has imported Dask once."""
FIRST = 1
"""Dask's priority of tuning: a worker that holds a GPU searches only when there is nothing to tune."""


@contextlib.contextmanager
def connected(scheduler: str | None, workers: int, gpus: int = 0) -> Generator[Cluster]:
    """The cluster of the scheduler at this address; without one, of this many processes here, the first `gpus` of
    which hold a GPU. Raises ExecutorError."""
    try:
        dask: Any = importlib.import_module("dask")
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise ExecutorError(f"{error}; install mirage-cli[dask]") from None
    settings: dict[str, object] = {
        "distributed.scheduler.allowed-failures": DEATHS,
        "distributed.worker.preload": [*dask.config.get("distributed.worker.preload"), onworker.__name__],
        "distributed.logging.distributed": "error",
        **({} if scheduler is not None else UNWATCHED | FORKED),
    }
    with contextlib.ExitStack() as stack, dask.config.set(settings):
        if scheduler is None:
            scheduler = stack.enter_context(_local(distributed, workers, gpus)).scheduler_address
        cluster = Cluster(distributed.Client, str(scheduler))
        stack.callback(cluster.close)
        cluster.connect(CONNECT_S)
        yield cluster


def _local(distributed: Any, workers: int, gpus: int) -> Any:
    """A scheduler in this process, with worker processes. A killed one is replaced."""
    here = {"host": "127.0.0.1", "dashboard": False}
    quiet = {"silence_logs": logging.ERROR}

    def process(holds: bool) -> dict[str, Any]:
        compiling = WORKERS.value() if holds else max(1, available_cores() // workers)
        resources, env = {GPU: 1} if holds else None, {WORKERS.name: str(compiling), AT: template()}
        options = {**here, **quiet, "nthreads": 1, "resources": resources, "env": env}
        return {"cls": distributed.Nanny, "options": options}

    any_port = {"dashboard_address": "127.0.0.1:0"}  # of a server that Dask starts all the same: 8787 may be taken
    scheduler = {"cls": distributed.Scheduler, "options": {**here, **any_port}}
    return distributed.SpecCluster({i: process(i < gpus) for i in range(workers)}, scheduler, **quiet)


@dataclass(frozen=True, slots=True)
class Asked:
    """A program that is on its way. known: what the database has that matters for it. before: the best among that.
    found: what to tune, where that was searched before."""

    program: Program
    text: str
    key: Key
    known: list[exchange.Bundle]
    before: Best | None
    found: Found | None


class _SchedulerGoneError(Exception):
    pass


class Cluster:
    """The connection to a scheduler, made anew where that is restarted. client: Dask's class."""

    def __init__(self, client: Any, address: str) -> None:
        self.make, self.address = client, address
        self.client: Any = None

    def close(self) -> None:
        if self.client is not None:
            self.client.close()

    def connect(self, within_s: float) -> None:
        """Raises ExecutorError."""
        self.close()
        end = time.monotonic() + within_s
        while True:
            try:
                self.client = self.make(self.address, timeout=min(within_s, CONNECT_S))
                return
            except OSError as error:
                if time.monotonic() >= end:
                    raise ExecutorError(f"no scheduler answers at {self.address}: {error}") from None

    # -- what the workers have

    def target(self, name: str) -> tuple[Target, bool]:
        """`target.gpus.chosen_target`, as the workers that hold GPUs answer it. Without any, kernels are predicted.
        Raises ExecutorError, TargetError."""
        self.awaited(False)
        if not self.workers(True):
            return chosen_target(name)[0], False
        answers = set(self.ask(True, None, chosen_target, name))
        if len(answers) > 1:
            names = ", ".join(sorted(target.name for target, _ in answers))
            raise ExecutorError(f"the workers hold several GPUs ({names}); give those of each a scheduler of their own")
        return answers.pop()

    def gpu(self, name: str) -> Target:
        """The workers' GPU, to measure on. Raises ExecutorError where it is not the one that is named."""
        target, held = self.target(name)
        if not held:
            what = "a GPU" if name == "auto" else target.name
            remedy = f"`dask worker {self.address} --resources {GPU}=1` starts one that does"
            raise ExecutorError(f"no worker holds {what} to tune on; {remedy}")
        return target

    def keys(self, programs: Sequence[Program], target: Target, measures: bool) -> list[Key]:
        """Under which the workers' results are stored. Raises ExecutorError where they run another mirage."""
        (keys,) = self.ask(measures, 1, keys_of, programs, target, measures)
        if others := {k.mirage for k in keys} - {__version__}:
            raise ExecutorError(f"the workers run mirage {others.pop()}, and this is {__version__}")
        return keys

    def workers(self, holding: bool) -> list[str]:
        """The addresses of all, or of those that hold a GPU. None of a scheduler that is gone."""
        with contextlib.suppress(OSError):
            found: dict[str, Any] = self.client.scheduler_info(n_workers=-1)["workers"]
            return [address for address, w in found.items() if not holding or w["resources"].get(GPU)]
        return []

    def awaited(self, holding: bool, unless: Callable[[], bool] = lambda: False) -> list[str]:
        """The same: one at least, unless that is not needed any more. Raises ExecutorError where none comes."""
        end = time.monotonic() + LOST_S
        while not (found := self.workers(holding)) and not unless():
            if time.monotonic() > end:
                which, resource = (" that holds a GPU", f" --resources {GPU}=1") if holding else ("", "")
                remedy = f"`dask worker {self.address}{resource}` starts one"
                raise ExecutorError(f"there was no worker{which} for {LOST_S:.0f} s; {remedy}")
            time.sleep(LOOK_S)
        return found

    def ask(self, holding: bool, count: int | None, question: Callable[..., T], *args: object) -> list[T]:
        """The answers of so many workers, or of all that there are, whatever else they do. Where one dies meanwhile,
        those that are there then are asked. Raises ExecutorError: mirage may not be installed."""
        end = time.monotonic() + LOST_S
        while True:
            try:
                asked = self.awaited(holding)[:count]
                return list(self.client.run(question, *args, workers=asked).values())
            except ImportError as error:
                raise ExecutorError(f"a worker says: {error}; install the same mirage-cli on all") from None
            except OSError as error:
                if time.monotonic() > end:
                    raise ExecutorError(f"no worker answers: {error}") from None
                time.sleep(LOOK_S)

    # -- programs

    def optimize(self, session: Session, programs: Sequence[tuple[Program, str]]) -> Iterator[Result | Unfinished]:
        """`optimize.optimize` on the workers; the session's own processes are not used."""
        asked: dict[int, Asked] = {}
        answers: dict[int, Result | Unfinished] = {}
        keys = self.keys([p for p, _ in programs], session.target, session.measures)
        for i, ((program, text), key) in enumerate(zip(programs, keys, strict=True)):
            if (known := stored_result(session, key)) is not None:
                answers[i] = known
            else:
                asked[i] = asked_of(session.store, key, program, text)
        if asked:
            session.store.check_writable()
        return self.finished(session, programs, asked, answers)

    def tune(self, session: Session, programs: Sequence[tuple[Program, str]]) -> Iterator[Result | Unfinished]:
        """`optimize.tune` on the workers. Raises NothingStoredError."""
        searched = [stored_search(session.store, p) for p, _ in programs]
        session.store.check_writable()
        keys = self.keys([p for p, _ in programs], session.target, session.measures)
        each = zip(keys, programs, searched, strict=True)
        asked = {i: asked_of(session.store, key, *program, found) for i, (key, program, found) in enumerate(each)}
        return self.finished(session, programs, asked, {})

    def bench(
        self, session: Session, programs: Sequence[tuple[Program, str]], against: Sequence[str]
    ) -> Iterator[Document | Unfinished]:
        """`benchmark.run` on the workers that hold GPUs. What has no kernel is searched and tuned first."""
        keys = self.keys([p for p, _ in programs], session.target, True)
        without = [i for i, key in enumerate(keys) if session.store.best(key) is None]
        found = list(self.optimize(session, [programs[i] for i in without])) if without else []
        answers: dict[int, Document | Unfinished] = {
            i: answer for i, answer in zip(without, found, strict=True) if isinstance(answer, Unfinished)
        }
        each = enumerate(zip(keys, programs, strict=True))
        asked = {i: asked_of(session.store, key, *program) for i, (key, program) in each if i not in answers}
        job = job_of(session)

        def submitted(a: Asked) -> Any:
            return self.client.submit(
                compare_here, job, a.program, against, a.known, resources={GPU: 1}, priority=FIRST, pure=False
            )

        coming = ((i, compared(session, asked[i], answer)) for i, answer in self.run(submitted, asked, True))
        return in_order(session, programs, answers, coming)

    def finished(
        self,
        session: Session,
        programs: Sequence[tuple[Program, str]],
        asked: dict[int, Asked],
        answers: dict[int, Result | Unfinished],
    ) -> Iterator[Result | Unfinished]:
        """The answers that are there, and those that come, in the order of the programs."""
        job = job_of(session)
        given = self.run(lambda a: self.submitted(job, a), asked, job.measures)
        coming = ((i, kept(session, asked[i], answer)) for i, answer in given)
        return in_order(session, programs, answers, coming)

    def run(
        self, submit: Callable[[Asked], Any], asked: dict[int, Asked], holding: bool
    ) -> Iterator[tuple[int, Any | Failed]]:
        """The answers in the order in which they come. What a scheduler has not answered when it is lost is given to
        the one that is started in its place. holding: whether a worker that holds a GPU is needed."""
        left, problem = dict(asked), ""
        while left and not problem:
            try:
                for i, answer in self.until_lost(submit, left, holding):
                    del left[i]
                    yield i, answer
            except ExecutorError as error:
                problem = str(error)
            except _SchedulerGoneError:
                with contextlib.suppress(ExecutorError):
                    self.connect(LOST_S)
                    continue
                problem = f"the scheduler at {self.address} was lost for {LOST_S:.0f} s"
        yield from ((i, Failed(problem)) for i in left)

    def until_lost(
        self, submit: Callable[[Asked], Any], asked: dict[int, Asked], holding: bool
    ) -> Iterator[tuple[int, Any | Failed]]:
        """The same, of one scheduler. Raises _SchedulerGoneError, and ExecutorError where there are no workers."""
        done: SimpleQueue[Any] = SimpleQueue()
        futures = {submit(a): i for i, a in asked.items()}
        try:
            for future in futures:
                future.add_done_callback(done.put)
            while futures:
                try:
                    future = done.get(timeout=LOOK_S)
                except Empty:
                    self.awaited(holding, lambda: not done.empty())
                    continue
                yield futures.pop(future), _answer(future)
        finally:
            with contextlib.suppress(Exception):  # of a scheduler that is gone
                self.client.cancel(list(futures))

    def submitted(self, job: Job, a: Asked) -> Any:
        """The future of a program's `Finished`."""
        found = a.found
        if found is None:
            alone = replace(job.options, workers=1)
            found = self.client.submit(search_or_fail, a.program, job.target, alone, pure=False)
        resources = {GPU: 1} if job.measures else None
        return self.client.submit(
            finish_here, job, a.program, a.text, found, a.known, resources=resources, priority=FIRST, pure=False
        )


def in_order(
    session: Session, programs: Sequence[tuple[Program, str]], answers: dict[int, T], coming: Iterator[tuple[int, T]]
) -> Iterator[T]:
    """The answers that are there, and those that come, in the order of the programs."""
    for i, (program, _) in enumerate(programs):
        session.progress.program(i + 1, program.name)
        while i not in answers:
            session.progress.doing(f"on the cluster, {len(answers)} of {len(programs)} answered")
            number, answer = next(coming)
            answers[number] = answer
        yield answers[i]


def job_of(session: Session) -> Job:
    return Job(session.target, session.options, session.measures, session.command)


def _answer(future: Any) -> Any | Failed:
    """Raises _SchedulerGoneError."""
    if future.status == "cancelled":  # by Dask, as it loses the scheduler: nobody else cancels what is waited for
        raise _SchedulerGoneError
    try:
        return future.result()
    except Exception as error:  # the border of the cluster: of a task that kills its workers, say
        return Failed.of(error)


def asked_of(store: Database, key: Key, program: Program, text: str, found: Found | None = None) -> Asked:
    """With the rows that tuning goes on from: the key's own, and what won for the same axes at other sizes."""
    own = exchange.bundle(store, key.id)
    others = (exchange.bundle(store, w.key) for w in store.winners(key))
    known = [b for b in (own, *({**b, "measurements": []} for b in others if b)) if b]
    return Asked(program, text, key, known, store.best(key), found)


def kept(session: Session, asked: Asked, answer: Finished | Failed) -> Result | Unfinished:
    """The result, with its rows in the database."""
    if isinstance(answer, Failed):
        return unfinished(session, asked, answer)
    if answer.rows is not None:
        exchange.merge(session.store, [answer.rows])
    if answer.best is not None:
        session.store.put_best(asked.key, answer.best, over=asked.before)
    return answer.result


def compared(session: Session, asked: Asked, answer: Compared | Failed) -> Document | Unfinished:
    """The row, with what was timed in the database."""
    if isinstance(answer, Failed):
        return unfinished(session, asked, answer)
    if answer.rows is not None:
        exchange.merge(session.store, [answer.rows])
    return answer.row


def unfinished(session: Session, asked: Asked, failed: Failed) -> Unfinished:
    p = asked.program
    return Unfinished(About(p.name, p.sizes, p.dtype, session.options.seed), failed.problem)
