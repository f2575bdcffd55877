"""Structural searches on a Dask cluster: a scheduler that somebody runs, or worker processes of this machine.

Dask moves tasks from workers that die to others. A search is one task, and gives the same result wherever it runs: what
is found does not depend on how many workers there are.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any  # dask is an extra, which may not be there

from mirage_cli.errors import ExecutorError
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.searching import Failed, Found, Options, Searcher, search_or_fail
from mirage_cli.target.gpus import Target

DEATHS = 20
"""Workers that may die over one program before it counts as what kills them."""
LOST_S = 120.0
"""Seconds without any worker after which a program counts as failed."""


@contextlib.contextmanager
def connected(scheduler: str | None, workers: int) -> Generator[Any]:
    """A client of the scheduler at this address; without one, of this many processes here. Raises ExecutorError."""
    try:
        dask: Any = importlib.import_module("dask")
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise ExecutorError("dask", f"{error}; install mirage-cli[dask]") from None
    settings = {"distributed.scheduler.allowed-failures": DEATHS, "distributed.logging.distributed": "error"}
    with contextlib.ExitStack() as stack, dask.config.set(settings):
        try:
            if scheduler is None:
                cluster = distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
                scheduler = stack.enter_context(cluster).scheduler_address
            yield stack.enter_context(distributed.Client(scheduler, timeout=10))
        except OSError as error:
            raise ExecutorError("dask", f"no scheduler answers at {scheduler}: {error}") from None


def searcher(client: Any) -> Searcher:
    """`searching.search_all` on a cluster."""
    return lambda programs, target, options, _: search_on(client, programs, target, options)


def search_on(client: Any, programs: Sequence[Program], target: Target, options: Options) -> Iterator[Found | Failed]:
    """The results in the order of the programs. A task that Dask gives up is a failure of its program alone."""
    alone = replace(options, workers=1)
    futures = [client.submit(search_or_fail, p, target, alone, pure=False) for p in programs]
    try:
        for future in futures:
            yield _answer(client, future)
    finally:
        client.cancel(futures)


def _answer(client: Any, future: Any) -> Found | Failed:
    while True:
        try:
            found: Found | Failed = future.result(timeout=LOST_S)
            return found
        except TimeoutError:
            if not client.scheduler_info().get("workers"):
                return Failed(f"no worker of the cluster is left, for {LOST_S:.0f} s")
        except Exception as error:  # the border of the cluster: a killed worker, a scheduler that is gone
            return Failed.of(error)
