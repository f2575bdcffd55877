"""What fails in one program's search costs the others nothing: exceptions, killed processes, spent budgets."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_cli.pipeline import searchers
from mirage_cli.pipeline.budgets import why_none
from mirage_cli.pipeline.searchers import search_all
from mirage_cli.pipeline.searching import Failed, Found, Options, search_program
from mirage_cli.search.cuts import UNVERIFIED
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.child import Child
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.measure import MeasureError

H200 = find_target("h200")
SPEC = """name: {name}
dims: {{m: 16, k: 64}}
inputs:
  X: [m, k]
program: |
  O = softmax(X * {number}, k)
outputs:
  O: [m, k]
"""
KILLED = """
import os, signal
from pathlib import Path
from mirage_cli.cli.main import main
from mirage_cli.pipeline import processes

class Child(processes.Child):
    def send(self, message):
        super().send(message)
        mark = Path(__file__).parent / "killed"
        if message and message[1][0].name == "second" and (KILLS == "always" or not mark.exists()):
            mark.touch()
            os.kill(self.pid, signal.SIGKILL)

processes.Child = Child
main()
"""
"""`mirage`, whose processes are killed as they search the second program."""


def write_specs(folder: Path) -> list[str]:
    names = ["first", "second", "third"]
    for i, name in enumerate(names):
        (folder / f"{name}.yaml").write_text(SPEC.format(name=name, number=i + 2))
    return [f"{n}.yaml" for n in names]


@pytest.mark.parametrize(("kills", "code"), [("once", 3), ("always", 1)])
def test_a_killed_search_process_costs_at_most_its_own_program(tmp_path: Path, kills: str, code: int) -> None:
    specs = write_specs(tmp_path)
    (tmp_path / "run.py").write_text(KILLED.replace("KILLS", repr(kills)))
    env = os.environ | {"MIRAGE_DB": str(tmp_path / "mirage.db")}
    options = ["--no-tune", "--json", "--workers", "2", "--target", "h200"]
    command = [sys.executable, str(tmp_path / "run.py"), "search", *specs, *options]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    results = json.loads(done.stdout)["results"]
    assert "Traceback" not in done.stderr
    assert [r["spec"] for r in results] == ["first", "second", "third"]
    assert results[0]["best"] and results[2]["best"]
    if kills == "always":
        assert done.returncode == code and "was killed" in results[1]["error"] and "error: second" in done.stderr
    else:
        assert done.returncode in (0, code) and results[1]["best"] and "error" not in results[1]


def test_a_search_that_raises_is_a_result_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Found] = search_program

    def failing(program: Any, *rest: Any) -> Found:
        if program.name == "second":
            raise ZeroDivisionError("by nothing")
        return real(program, *rest)

    monkeypatch.setattr(searchers, "search_program", failing)
    programs = [parse_spec(SPEC.format(name=n, number=2)).programs()[0] for n in ("first", "second", "third")]
    first, second, third = search_all(programs, H200, Options(tune=False))
    assert isinstance(first, Found) and isinstance(third, Found)
    assert isinstance(second, Failed) and second.problem.startswith("ZeroDivisionError: by nothing (test_failures.py:")


def test_a_budget_of_nothing_gives_the_program_as_written() -> None:
    program = parse_spec(SPEC.format(name="first", number=2)).programs()[0]
    found = search_program(program, H200, Options(budget_s=0.0, tune=False))
    assert found.stopped == "budget" and found.as_written in [p.id for p in found.plans]


def test_a_compiling_process_killed_as_it_starts_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from mirage_cli.tune.measure import Candidate, Failure

    with CompileFarm(90, 1) as farm:
        farm.start()
        os.kill(farm._children[0].child.pid, signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]
        ((name, answer),) = farm.compile_all([Candidate("c", "no python")], (), ())
        assert name == "c" and isinstance(answer, Failure) and not answer.fatal

    real = Child.__init__

    def dying(self: Child, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(Child, "__init__", dying)
    with CompileFarm(90, 1) as farm, pytest.raises(MeasureError, match="do not start"):
        list(farm.compile_all([Candidate("c", "no python")], (), ()))


@pytest.mark.parametrize(
    ("search", "rest", "why"),
    [
        (
            {"verified": 0, "pruned": {UNVERIFIED: 3}},
            {},
            "there is no verified plan: 3 could not be verified in time, after 6 s",
        ),
        ({"verified": 2}, {}, "none of 2 verified plans has a kernel in 4 s: none was compiled in time"),
        (
            {"verified": 2},
            {"failures": {"compile": 2, "hang": 1}},
            "none of 2 verified plans has a kernel in 4 s: 2 by compile, 1 by hang",
        ),
        ({"verified": 2}, {"rejected": (SimpleNamespace(problem="off"),)}, "no kernel is right: off"),
    ],
)
def test_a_search_without_a_kernel_says_what_stood_in_the_way(search: Any, rest: Any, why: str) -> None:
    """Where no plan was verified, nothing could be timed."""
    searched = SimpleNamespace(**{"pruned": {}, "seconds": 6.0, **search})
    tuning = SimpleNamespace(**{"rejected": (), "failures": {}, "seconds": 4.0, **rest})
    result: Any = SimpleNamespace(search=searched, tuning=tuning, lost=(), rejections=(), dropped={})
    assert why_none(result) == why


def test_a_file_that_the_machine_cannot_make_is_told_as_it_is_and_a_bug_with_its_place() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/full/mirage.so")
    assert Failed.of(full) == Failed("/full/mirage.so: No space left on device")
    with pytest.raises(ValueError, match="wrong") as bug:
        raise ValueError("wrong")
    assert re.fullmatch(r"ValueError: wrong \(test_failures\.py:\d+\)", Failed.of(bug.value).problem)
