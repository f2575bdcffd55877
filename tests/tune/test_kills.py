"""Processes that are killed by kill -9, as where memory is short: what they were at is asked again, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.compilefarm import Compiled, CompileFarm
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.tune.measure import (
    Accuracy,
    Candidate,
    Failure,
    FailureKind,
    GpuWorker,
    Judged,
    Problem,
    Standard,
    TensorSpec,
    Timing,
)

X, Y = TensorSpec("X", (16,), "float32"), TensorSpec("Y", (16,), "float32")
DOUBLING = Problem((X,), (Y,), "def reference(x):\n    return x * 2\n")
PROGRAM = parse_spec(
    "name: doubling\ndims: {m: 16}\ndtype: float32\ninputs: {X: [m]}\nprogram: 'Y = X * 2'\noutputs: {Y: [m]}\n"
).at()


def killed(times: int, folder: Path) -> Candidate:
    """One that doubles, and whose process is killed as it runs, this many times."""
    source = f"""
import os, pathlib, signal, torch

def make_scratch(device):
    return []

def launch(inputs, outputs, scratch):
    for i in range({times}):
        mark = pathlib.Path({str(folder)!r}, str(i))
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    torch.mul(inputs[0], 2, out=outputs[0])
"""
    return Candidate("c", source)


def test_a_process_that_measures(tmp_path: Path) -> None:
    with GpuWorker("cpu") as worker:
        worker.set_problem(DOUBLING)
        found = worker.time([killed(1, tmp_path)])["c"]
        assert isinstance(found, Timing) and found.accuracy == Accuracy(0.0, 0.0) and worker.restarts == 1
        (tmp_path / "twice").mkdir()
        failure = worker.time([killed(2, tmp_path / "twice")])["c"]
        assert isinstance(failure, Failure) and failure.kind is FailureKind.CRASH and "SIGKILL" in failure.message
        for _ in range(2):  # between two questions too
            assert isinstance(worker.judge(killed(0, tmp_path), Standard(4.0, 1)), Judged)
            assert worker._child  # pyright: ignore[reportPrivateUsage]
            os.kill(worker._child.pid, signal.SIGKILL)


@pytest.mark.parametrize(("times", "right"), [(1, True), (2, False)])
def test_a_process_that_interprets(times: int, right: bool, interpreter: Interpreter, tmp_path: Path) -> None:
    judged = interpreter.judge(PROGRAM, killed(times, tmp_path).source, 0)
    assert judged.ok == right and (right or "killed by SIGKILL" in str(judged.problem))


def test_a_process_that_compiles(farm: Callable[[int], CompileFarm], tmp_path: Path) -> None:
    def compiled(candidate: Candidate) -> Compiled:
        ((_, answer),) = farm(90).compile_all([candidate], (X,), (Y,))
        return answer

    right = compiled(killed(0, tmp_path))
    assert compiled(killed(1, tmp_path)) == right
    (tmp_path / "twice").mkdir()
    answer = compiled(killed(2, tmp_path / "twice"))
    assert isinstance(answer, Failure) and answer.kind is FailureKind.CRASH and "SIGKILL" in answer.message


@pytest.mark.parametrize(("times", "kind"), [(1, None), (2, FailureKind.CRASH)])
def test_a_tool_of_the_compiler(
    times: int, kind: FailureKind | None, farm: Callable[[int], CompileFarm], tmp_path: Path
) -> None:
    """Triton raises an error of its own where ptxas fails, in the handler of the error that names the signal."""
    source = f"""
import pathlib, subprocess

def make_scratch(device):
    return []

def launch(inputs, outputs, scratch):
    for i in range({times}):
        mark = pathlib.Path({str(tmp_path)!r}, str(i))
        if not mark.exists():
            mark.touch()
            try:
                subprocess.run(["sh", "-c", "kill -9 $$"], check=True)
            except subprocess.CalledProcessError:
                raise RuntimeError("ptxas failed")
"""
    ((_, answer),) = farm(90).compile_all([Candidate("c", source)], (X,), (Y,))
    assert (answer.kind if isinstance(answer, Failure) else None) == kind
