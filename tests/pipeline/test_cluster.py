"""Searches on a Dask cluster of real processes: the answers of one process, also where workers are killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from mirage_cli.errors import ExecutorError
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.searching import Found, Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target

pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")  # which comes with it
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(120),
]

from mirage_cli.pipeline.cluster import connected, search_on  # noqa: E402

H200 = find_target("h200")
OPTIONS = Options(tune=False, budget_s=60.0, seed=3)
SPEC = (
    "name: p{i}\ndims: {{m: {m}, k: 8}}\ninputs: {{X: [m, k]}}\nprogram: 'O = exp(X * {i})'\noutputs: {{O: [m, k]}}\n"
)


def programs(count: int) -> list[Program]:
    return [parse_spec(SPEC.format(i=i + 2, m=16 + i)).programs()[0] for i in range(count)]


def plain(found: Any) -> dict[str, Any]:
    """What does not differ from run to run."""
    assert isinstance(found, Found), found
    return {"plans": [(p.id, str(p.schedule)) for p in found.plans], **asdict(found.stats), "seconds": 0}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connected(None, 4) as made:
        yield made


def test_forty_programs_have_the_answers_of_one_process(client: Any) -> None:
    asked = programs(40)
    here = [plain(search_program(p, H200, OPTIONS)) for p in asked]
    assert [plain(f) for f in search_on(client, asked, H200, OPTIONS)] == here


def workers_here() -> list[Any]:
    """The processes of the local cluster's workers, which are children of this one."""
    return [c for c in psutil.Process().children() if "--multiprocessing-fork" in c.cmdline()]


def test_programs_are_answered_though_workers_are_killed(client: Any) -> None:
    asked, ended, killed = programs(40), threading.Event(), list[int]()

    def kill() -> None:
        while True:
            if alive := workers_here():
                alive[0].kill()
                killed.append(alive[0].pid)
            if ended.wait(5.0):
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        found = list(search_on(client, asked, H200, OPTIONS))
    finally:
        ended.set()
        thread.join()
    assert killed and len(found) == 40 and all(isinstance(f, Found) for f in found), found


def test_a_scheduler_that_is_not_there_is_a_message() -> None:
    with (
        pytest.raises(ExecutorError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"),
        connected("tcp://127.0.0.1:9", 1),
    ):
        pass
