"""The measuring process and the compile farm: on the CPU the protocol and the failures, on a GPU the figures."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mirage_cli.codegen.exported.selfcheck import CpuTime
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.bench import baseline, run_bench
from mirage_cli.tune.child import Child, ChildDied
from mirage_cli.tune.compilefarm import CompileFarm, KernelResources
from mirage_cli.tune.measure import (
    CAREFUL,
    QUICK,
    Accuracy,
    Candidate,
    Effort,
    Failure,
    FailureKind,
    GpuWorker,
    Judged,
    MeasureError,
    Problem,
    Standard,
    TensorSpec,
    Timing,
)
from mirage_cli.tune.setting import Run
from mirage_cli.tune.worker import Bench
from mirage_cli.verify import yardstick
from mirage_cli.verify.pieces import Piece
from mirage_cli.verify.testdata import DISTRIBUTIONS
from mirage_cli.verify.yardstick import Reference
from tests.forked import alive

ELEMENTS = 4096
X = TensorSpec("X", (ELEMENTS,), "float32")
Y = TensorSpec("Y", (ELEMENTS,), "float32")
DOUBLING = Problem((X,), (Y,), "def reference(x):\n    return 2 * x\n")


def candidate(id: str, launch: str, scratch: str = "[]", timeout_s: float = 20.0) -> Candidate:
    """A candidate whose `launch` has this body; x, y and s are the input, the output and the workspace."""
    lines = [
        "import os, time, torch",
        f"def make_scratch(device): return {scratch}",
        "def launch(inputs, outputs, s):",
        "    (x,), (y,) = inputs, outputs",
        *(f"    {line}" for line in launch.splitlines()),
    ]
    return Candidate(id, "\n".join(lines) + "\n", timeout_s=timeout_s)


GOOD = candidate("good", "torch.mul(x, 2, out=y)")
STANDARD = Standard(4.0, 1)


@pytest.fixture(scope="module")
def worker() -> Iterator[GpuWorker]:
    with GpuWorker("cpu") as w:
        w.set_problem(DOUBLING)
        yield w


def failed(result: object, kind: FailureKind) -> Failure:
    assert isinstance(result, Failure), result
    assert result.kind is kind, result
    return result


TOO_SOON = """
torch.mul(s[0], 2, out=y)
s[0].copy_(x)
"""


def test_what_a_call_finds_of_the_one_before_is_seen(worker: GpuWorker) -> None:
    """It is right wherever the call before had the same input, as when it is run twice by itself."""
    stale = candidate("stale", TOO_SOON.strip(), f"[torch.zeros({ELEMENTS})]")
    found = worker.time([GOOD, stale], QUICK)
    assert isinstance(found["good"], Timing)
    assert "the outputs depend on the call before" in failed(found["stale"], FailureKind.WRONG).message


def test_a_call_that_goes_by_what_its_input_held_before_is_seen(worker: GpuWorker) -> None:
    """It is right as long as the tensor at each address holds what it held when it was first seen."""
    source = "seen = globals().setdefault('seen', {})\ntorch.mul(seen.setdefault(x.data_ptr(), x.clone()), 2, out=y)"
    found = worker.time([GOOD, candidate("early", source)], Effort(rounds=5, launches=8, seconds=0.1, hot=True))
    assert isinstance(found["good"], Timing)
    assert "reads X before the kernel in front has written it" in failed(found["early"], FailureKind.WRONG).message


@pytest.mark.parametrize("seed", range(4))
def test_an_error_that_differs_by_draw_is_no_early_read(seed: int) -> None:
    """What is added up cancels on each draw to another part: so the same error is another part of the result."""
    reference = "def reference(x):\n    return x.sum().reshape(1)\n"
    y = TensorSpec("Y", (1,), "float32")
    with GpuWorker("cpu") as w:
        w.set_problem(Problem((X,), (y,), reference, seed))
        off = candidate("off", "y.copy_(x.double().sum().reshape(1) + 0.5)")
        found = w.time([off], Effort(rounds=5, launches=8, seconds=0.1, hot=True))
    assert isinstance(found["off"], Timing), found


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "bool"])
def test_calls_that_read_bytes_are_timed_with_care(dtype: str) -> None:
    """torch has no maximum of float8, by which inputs are written in front of calls."""
    reference = "import torch\n\ndef reference(x):\n    return 2 * x.to(torch.float64)\n"
    doubling = candidate("good", "y.copy_(2 * x.to(torch.float32))")
    early = "seen = globals().setdefault('seen', {})\ny.copy_(2 * seen.setdefault(x.data_ptr(), x.clone()).float())"
    with GpuWorker("cpu") as w:
        w.set_problem(Problem((replace(X, dtype=dtype),), (Y,), reference))
        found = w.time([doubling, candidate("early", early)], Effort(rounds=5, launches=8, seconds=0.1, hot=True))
    assert isinstance(found["good"], Timing)
    assert "reads X before the kernel in front has written it" in failed(found["early"], FailureKind.WRONG).message


def test_a_call_is_timed_in_a_chain_and_alone(worker: GpuWorker) -> None:
    slow = worker.time([candidate("slow", "torch.mul(x, 2, out=y)\ntime.sleep(0.01)")])["slow"]
    assert isinstance(slow, Timing) and slow.context == "both"
    assert len(slow.alone_samples_us) == len(slow.samples_us) == QUICK.rounds
    assert slow.alone_us is not None and min(slow.chain_us, slow.alone_us) > 10_000
    with GpuWorker("cpu", context="chain") as w:
        w.set_problem(DOUBLING)
        chain = w.time([GOOD])["good"]
    assert isinstance(chain, Timing) and chain.alone_us is None and chain.median_us == chain.chain_us


def test_a_timing_counts_in_its_context() -> None:
    timing = Timing((1.0, 4.0, 2.0), 1, 1, "", alone_samples_us=(4.0, 4.0, 8.0))
    assert (timing.median_us, timing.chain_us, timing.alone_us) == (2.0, 2.0, 4.0)
    alone, both = replace(timing, context="alone"), replace(timing, context="both")
    assert (alone.median_us, both.figures_us) == (4.0, (2.0, 4.0, 4.0))
    assert both.times.time_us == 4.0 and both.times.chain_us == 2.0


def test_input_sets_that_follow_each_other_differ(tmp_path: Path) -> None:
    setting = Bench(torch.device("cpu"), 0.5, tmp_path, lambda _: None)
    setting.set_problem(DOUBLING)
    sets = [inputs[0] for inputs, _ in setting.input_sets()]
    assert len(sets) >= 3
    assert torch.equal(sets[0], sets[2]) and not torch.equal(sets[0], sets[1])
    for case, x in zip(setting.expected, sets, strict=False):
        assert torch.equal(*case.exact(Piece()), 2 * x.double())


ROWS = Problem(
    (TensorSpec("X", (8, 64), "float32"), TensorSpec("K", (32, 64), "float32")),
    (),
    "def reference(x, k):\n    return x * 2, k[:16].sum(0)[None] + x",
    lies=((-2, (8, 64), (64, 1), 24 * 64), (-2, (8, 64), (64, 1), 16 * 64)),
)
"""Of K the last rows are written, and 8 in front of them; the first are read."""

RIGHT = "x, k = inputs\ntorch.mul(x, 2, out=k[24:])\ntorch.add(x, k[:16].sum(0)[None], out=k[16:24])"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", None),
        ("k[24:]", "k[24:].flip(0)", "normal: "),
        ("x, 2", "x, 3", "normal: "),
        ("out=k[16:24]", "out=k[8:16]", "writes to its inputs: K"),
        ("x, k = inputs", "x, k = inputs\nx.zero_()", "writes to its inputs: X"),
        ("k[:16].sum", "k[24:].sum", "normal: "),
    ],
)
def test_a_kernel_that_changes_an_input_is_judged_by_what_it_leaves_there(old: str, new: str, says: str | None) -> None:
    source = "import torch\n\ndef make_scratch(device):\n    return []\n\n\ndef launch(inputs, outputs, scratch):\n"
    source += "".join(f"    {line}\n" for line in RIGHT.replace(old, new).split("\n"))
    with GpuWorker("cpu", context="chain") as w:
        w.set_problem(ROWS)
        found = w.judge(Candidate("rows", source), STANDARD)
        timed = w.time([Candidate("rows", source)], Effort(rounds=5, launches=8, seconds=0.1, hot=True))["rows"]
    if says is None:
        right(found)
        assert isinstance(timed, Timing) and timed.accuracy is not None and timed.accuracy.relative < 1e-6
    else:
        said = found.message if isinstance(found, Failure) else refused(found)
        assert says in said, said


def test_whole_numbers_in_rows_of_which_pytorch_has_no_view_are_timed_with_care() -> None:
    """They are taken away in front of timed calls, as numbers of their type."""
    x, k = (TensorSpec(name, (rows, 64), "int8") for name, rows in (("X", 8), ("K", 32)))
    backwards = (-2, (8, 64), (-64, 1), 31 * 64)
    rows = Problem((x, k), (), "def reference(x, k):\n    return x // 2", lies=(backwards,))
    source = "def make_scratch(device):\n    return []\n\n\ndef launch(inputs, outputs, scratch):\n"
    source += "    x, k = inputs\n    k[24:].copy_((x // 2).flip(0))\n"
    with GpuWorker("cpu", context="chain") as w:
        w.set_problem(rows)
        right(w.judge(Candidate("rows", source), STANDARD))
        timed = w.time([Candidate("rows", source)], Effort(rounds=5, launches=8, seconds=0.1, hot=True))["rows"]
    assert isinstance(timed, Timing), timed


STATE = Problem(
    (TensorSpec("X", (64, 64), "float32"), TensorSpec("S", (64, 64), "float32")),
    (),
    "def reference(x, s):\n    return s * 2 + x",
    lies=((-2, (64, 64), (64, 1), 0, (), (), True),),
)
"""Each call doubles what the one before has left in S: after some, nothing of X shows."""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("s.mul_(2).add_(x)", None),
        ("s.mul_(2).add_(x, alpha=1.5)", "normal: "),
        ("s.copy_(x)", "normal: "),
    ],
)
def test_a_call_that_reads_what_it_changes_is_judged_on_the_data_that_were_drawn(body: str, says: str | None) -> None:
    source = "def make_scratch(device):\n    return []\n\n\ndef launch(inputs, outputs, scratch):\n"
    source += f"    x, s = inputs\n    {body}\n"
    with GpuWorker("cpu") as w:
        w.set_problem(STATE)
        found = w.judge(Candidate("state", source), STANDARD)
        timed = w.time([Candidate("state", source)], Effort(rounds=5, launches=8, seconds=0.1, hot=True))["state"]
        again = w.judge(Candidate("state", source), STANDARD)
    assert isinstance(timed, Timing) and timed.accuracy is not None
    if says is None:
        right(found)
        right(again)
        assert timed.accuracy.relative < 1e-6
    else:
        assert says in refused(found)
        assert timed.accuracy.relative > 1e-2


def test_a_large_problem_is_judged_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its float64 values no more than a piece is made at a time, and every piece counts."""
    monkeypatch.setattr("mirage_cli.verify.pieces.piece_bytes", lambda device: 1000 if device.type == "cpu" else 0)
    setting = Bench(torch.device("cpu"), 0.5, tmp_path, lambda _: None)
    setting.set_problem(replace(DOUBLING, cut=((0,), (0,), ELEMENTS, 1)))
    setting.room_bytes = 0
    largest: list[int] = []
    exact = Reference.exact

    def counted(self: Reference, inputs: list[torch.Tensor], piece: Piece) -> list[torch.Tensor]:
        largest.append(piece.inputs(inputs)[0].shape[0])
        return exact(self, inputs, piece)

    monkeypatch.setattr(Reference, "exact", counted)
    assert setting.judge_all(GOOD, STANDARD, anew=False).ok
    assert max(largest) == 1000
    assert not setting.cases
    assert len(largest) == len(DISTRIBUTIONS) * math.ceil(ELEMENTS / 1000)  # one evaluation serves all measures
    last = candidate("last", "torch.mul(x, 2, out=y)\ny[-1] = float('inf')")
    assert f"inf at ({ELEMENTS - 1}," in str(setting.judge_all(last, STANDARD, anew=False).problem)


def test_what_eager_has_no_memory_for_is_judged_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As attention whose scores of all heads are larger than the memory; so is what can be evaluated in blocks."""
    reference = "import torch\n\ndef reference(x, start_i=0, size_i=ELEMENTS):\n    x = x[start_i : start_i + size_i]\n"
    reference = reference.replace("ELEMENTS", str(ELEMENTS)) + "    if len(x) > 1000:\n"
    reference += "        raise torch.OutOfMemoryError('made up')\n    return 2 * x\n"
    monkeypatch.setattr("mirage_cli.verify.pieces.PIECE_BYTES", 1000)
    setting = Bench(torch.device("cpu"), 0.5, tmp_path, lambda _: None)
    whole = Problem((X,), (Y,), reference)
    for problem in (
        replace(whole, cut=((0,), (0,), ELEMENTS, 1)),
        replace(whole, blocks=(("i", (0,), ELEMENTS, 1000),)),
    ):
        setting.set_problem(problem)
        assert setting.judge_all(GOOD, STANDARD, anew=False).ok
        assert not setting.judge_all(candidate("wrong", "torch.mul(x, 3, out=y)"), STANDARD, anew=False).ok
    with pytest.raises(torch.OutOfMemoryError):
        setting.set_problem(whole)


@pytest.mark.parametrize(("dtype", "ok"), [("bfloat16", True), ("float32", False)])
def test_a_kernel_rounds_as_the_program_does_and_not_as_its_first_input(dtype: str, ok: bool, tmp_path: Path) -> None:
    """An input in float8 allows no more, and one in float32 no less."""
    setting = Bench(torch.device("cpu"), 0.5, tmp_path, lambda _: None)
    source = "def reference(x):\n    return (x if x.itemsize == 8 else x.float()).exp()\n"
    for first in ("float32", "float8_e4m3fn"):
        setting.set_problem(Problem((replace(X, dtype=first),), (Y,), source, precision=dtype))
        rounding = candidate("rounds", "y.copy_(x.float().exp().bfloat16())")
        assert setting.judge_all(rounding, STANDARD, anew=False).ok == ok
        assert not setting.judge_all(candidate("worse", "y.copy_(x.float().exp() * 1.05)"), STANDARD, anew=False).ok


@pytest.mark.parametrize(
    ("dtype", "reference", "launch"),
    [
        ("float32", "return x.exp()", "y.copy_((x * 1.0001).exp())"),
        ("int32", "return torch.round(x * 8)", "y.copy_(torch.round(x * 8.01))"),
    ],
    ids=["numbers", "decisions"],
)
def test_a_judgement_evaluates_nothing_that_one_before_has_evaluated(
    dtype: str, reference: str, launch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both candidates are wrong, which evaluations with rounding show. The problem is judged in pieces."""
    monkeypatch.setattr("mirage_cli.verify.pieces.PIECE_BYTES", 1000)
    made: list[object] = []
    for name in ("exact", "rounded", "ranged"):
        evaluate = getattr(Reference, name)
        monkeypatch.setattr(Reference, name, lambda *args, of=evaluate: (made.append(args[1:]), of(*args))[1])
    source = f"import torch\n\ndef reference(x):\n    {reference}\n"
    setting = Bench(torch.device("cpu"), 0.5, tmp_path, lambda _: None)
    y = replace(Y, dtype=dtype)
    setting.set_problem(Problem((X,), (y,), source, cut=((0,), (0,), ELEMENTS, 1)))
    first, second = (candidate(id, f"{launch}\ny[0] = {n}") for id, n in (("first", 7), ("second", 8)))
    before = refused(setting.judge_all(first, STANDARD, anew=False))
    assert len(made) > 2 * math.ceil(ELEMENTS / 1000)
    made.clear()
    assert refused(setting.judge_all(second, STANDARD, anew=False))
    assert all(isinstance(piece.positions, tuple) for _, piece, *_ in made)  # where only it differs
    again = Bench(torch.device("cpu"), 0.5, tmp_path, lambda _: None)
    again.room_bytes = 0
    again.set_problem(Problem((X,), (y,), source, cut=((0,), (0,), ELEMENTS, 1)))
    assert refused(again.judge_all(first, STANDARD, anew=False)) == before and made


def test_a_judgement_ends_with_its_time(worker: GpuWorker) -> None:
    """Between two evaluations: the process goes on."""
    restarts = worker.restarts
    assert "time was up" in failed(worker.judge(GOOD, STANDARD, within_s=0.0), FailureKind.LATE).message
    right(worker.judge(GOOD, STANDARD))
    assert worker.restarts == restarts


def test_when_time_is_up_one_that_takes_the_process_down_is_the_last() -> None:
    """Each of many that hang would take seconds more."""
    crash = candidate("crash", "os.abort()")
    with GpuWorker("cpu") as w:
        w.set_problem(DOUBLING)
        late = w.time([crash, GOOD], within_s=0.0)
        assert [*late] == ["crash"] and failed(late["crash"], FailureKind.CRASH)
        assert isinstance(w.time([GOOD], within_s=0.0)["good"], Timing)


def test_every_evaluation_of_a_judgement_may_take_as_long_as_a_step(tmp_path: Path) -> None:
    steps: list[object] = []
    setting = Bench(torch.device("cpu"), 0.5, tmp_path, steps.append)
    setting.set_problem(DOUBLING)
    setting.judge_all(candidate("far", "torch.mul(x, 2.1, out=y)"), STANDARD, anew=False)
    assert len(steps) > 2 * yardstick.DRAWS


def test_the_first_distribution_on_which_it_is_wrong_ends_a_judgement(tmp_path: Path) -> None:
    setting = Bench(torch.device("cpu"), 0.5, tmp_path, lambda _: None)
    setting.set_problem(DOUBLING)
    drawn: list[int] = []
    inputs_of = setting.inputs_of
    setting.inputs_of = lambda i, *args: (drawn.append(i), inputs_of(i, *args))[1]  # type: ignore[method-assign]
    large = candidate("large", "torch.mul(x, 2 if x.abs().max() < 50 else 3, out=y)")
    judged = setting.judge_all(large, STANDARD, anew=False)
    assert not judged.ok and str(judged.problem).startswith(f"{DISTRIBUTIONS[drawn[-1]].name}: error")
    assert 1 < len(drawn) < len(DISTRIBUTIONS)
    (inputs, _), *_ = setting.input_sets()
    assert setting.accuracy([(0, [2 * inputs[0]])]).relative < 1e-3
    assert setting.accuracy([(0, [torch.full_like(inputs[0], math.inf)])]).relative == math.inf


MXFP4 = """
name: mxfp4_linear
dims: {m: 4, n: 8, k: 64, g: 2}
inputs:
  X: [m, k]
  P: {dims: [n, k], dtype: int8}
  E: {dims: [n, g], dtype: int8}
program: |
  W = (P % 16 - 8) * exp2(E[n, k // 32])
  O = dot(X, W, k)
outputs:
  O: [m, n]
"""
"""Its scales are beyond float16 for half of what an int8 may be: eager PyTorch has infinities and NaN there."""


@pytest.mark.parametrize(
    ("body", "is_right", "excuses"),
    [
        ("o.copy_(reference(x, p, e))", True, True),
        ("o.copy_(reference(x.double(), p, e))", True, False),
        ("o.copy_(reference(x, p, e))\no.view(-1)[o.isfinite().view(-1).nonzero()[0]] = torch.nan", False, False),
    ],
    ids=["like eager", "without overflow", "alone"],
)
def test_what_overflows_like_eager_is_timed_and_judged_with_its_excuse(
    body: str, is_right: bool, excuses: bool, tmp_path: Path
) -> None:
    problem = measured_problem(parse_spec(MXFP4).at(), 0)
    source = f"{problem.reference_source}\ndef make_scratch(device):\n    return []\n\n\n"
    source += "def launch(inputs, outputs, s):\n    (x, p, e), (o,) = inputs, outputs\n"
    kernel = Candidate("kernel", source + "".join(f"    {line}\n" for line in body.splitlines()))
    setting = Bench(torch.device("cpu"), 0.5, tmp_path, lambda _: None)
    setting.set_problem(problem)
    found = setting.time((kernel,), QUICK, 0)["kernel"]
    judged = setting.judge_all(kernel, Standard(4.0, 64, overflow_like_eager=True), anew=False)
    strictly = setting.judge_all(kernel, Standard(4.0, 64), anew=False)
    assert judged.ok == is_right and strictly.ok == (is_right and not excuses)
    if is_right:
        assert isinstance(found, Timing), found
        assert bool(judged.excused) == excuses
    else:
        assert "is inf or NaN" in failed(found, FailureKind.WRONG).message


def right(result: object) -> None:
    assert isinstance(result, Judged) and result.ok and result.problem is None, result


def refused(result: object) -> str:
    """Why the judgement is against it."""
    assert isinstance(result, Judged) and not result.ok and result.problem is not None, result
    return result.problem


def test_right_candidate(worker: GpuWorker) -> None:
    assert worker.judge(GOOD, STANDARD) == Judged(True, 0.0, 0.0)


def test_the_error_is_measured_and_held_to_the_standard(worker: GpuWorker) -> None:
    near = candidate("near", "torch.mul(x, 2.02, out=y)")
    result = worker.judge(near, STANDARD)
    assert isinstance(result, Judged) and math.isclose(result.error, 0.01, rel_tol=1e-3)
    assert refused(result).startswith("normal: error")  # the first on which it is wrong
    right(worker.judge(near, Standard(1e6, 1)))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("y[1:] = 2 * x[1:]", "normal: output 0 is nan at (0,), where float64 has "),
        (
            "s[0] -= 1\ntorch.mul(x, 2, out=y)\nif s[0] < 0: y[5] = float('inf')",
            "large: output 0 is inf at (5,), where",
        ),
    ],
    ids=["unwritten", "second-run"],
)
def test_wrong(worker: GpuWorker, body: str, says: str) -> None:
    scratch = "[torch.ones(1, dtype=torch.int32, device=device)]"
    body = body.replace("s[0]", "s[0][0]")
    assert refused(worker.judge(candidate("wrong", body, scratch), STANDARD)).startswith(says)
    right(worker.judge(GOOD, STANDARD))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("x.zero_()", "writes to its inputs: X"),
        ("y.as_strided((1,), (1,), y.storage_offset() - 1).zero_()", "writes outside output Y"),
        ("y.as_strided((1,), (1,), y.storage_offset() + y.numel()).zero_()", "writes outside output Y"),
    ],
    ids=["input", "before", "behind"],
)
def test_a_kernel_that_is_judged_writes_its_outputs_alone(worker: GpuWorker, body: str, says: str) -> None:
    bad = candidate("stray", f"torch.mul(x, 2, out=y)\n{body}")
    assert says in failed(worker.judge(bad, STANDARD), FailureKind.WRONG).message
    right(worker.judge(GOOD, STANDARD))


def test_workspace_is_poisoned(worker: GpuWorker) -> None:
    lazy = candidate("lazy", "torch.add(2 * x, s[0], out=y)", "[torch.zeros(1, device=device)]")
    assert "output 0 is nan at (0,)" in refused(worker.judge(lazy, STANDARD))


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("os.abort()", FailureKind.CRASH, "SIGABRT"),
        ("print('last words', flush=True); os._exit(3)", FailureKind.CRASH, "exited with code 3: last words"),
        ("time.sleep(60)", FailureKind.HANG, "within 1 s"),
        ("undefined", FailureKind.COMPILE, "NameError"),
        ("torch.empty(1 << 60)", FailureKind.COMPILE, "allocate"),
        ("raise type('OutOfResources', (Exception,), {})('shared memory')", FailureKind.OUT_OF_MEMORY, "shared"),
    ],
    ids=["abort", "exit", "hang", "name", "huge", "resources"],
)
def test_failures_are_named_and_survived(worker: GpuWorker, body: str, kind: FailureKind, says: str) -> None:
    bad = candidate("bad", body, timeout_s=1.0)
    assert says in failed(worker.judge(bad, STANDARD), kind).message
    right(worker.judge(GOOD, STANDARD))


def test_one_failure_costs_only_itself(worker: GpuWorker) -> None:
    before = worker.restarts
    late = "s[0] -= 1\nif s[0] < 0: os.abort()\ntorch.mul(x, 2, out=y)".replace("s[0]", "s[0][0]")
    contestants = [
        GOOD,
        candidate("abort", "os.abort()"),
        candidate("syntax", "not python"),
        candidate("late", late, "[torch.full((1,), 60, dtype=torch.int32, device=device)]"),
        candidate("wrong", "y[1:] = x[1:]"),
        candidate("twice", "torch.mul(x, 2, out=y)\ntorch.mul(x, 2, out=y)"),
    ]
    results = worker.time(contestants, Effort(rounds=7, launches=64, seconds=1.0, hot=False))
    assert list(results) == [c.id for c in contestants]
    failed(results["abort"], FailureKind.CRASH)
    failed(results["syntax"], FailureKind.COMPILE)
    failed(results["late"], FailureKind.CRASH)
    failed(results["wrong"], FailureKind.WRONG)
    assert worker.restarts == before + 2
    for id in ("good", "twice"):
        timing = results[id]
        assert isinstance(timing, Timing)
        assert len(timing.samples_us) == 7
        assert timing.accuracy == Accuracy(0.0, 0.0)
        assert timing.median_us > 0
        assert timing.spread_us >= 0


def test_the_caller_goes_on_while_the_process_is_at_work(worker: GpuWorker, tmp_path: Path) -> None:
    told = tmp_path / "told"
    wait = f"while not os.path.exists({str(told)!r}): time.sleep(0.01)\ntorch.mul(x, 2, out=y)"
    found = worker.time([candidate("waits", wait)], QUICK, meanwhile=told.touch)
    assert isinstance(found["waits"], Timing)


def test_what_the_caller_does_meanwhile_is_done_once(worker: GpuWorker) -> None:
    done: list[str] = []
    found = worker.time([candidate("crash", "os._exit(3)"), GOOD], QUICK, meanwhile=lambda: done.append("it"))
    failed(found["crash"], FailureKind.CRASH)
    assert isinstance(found["good"], Timing) and done == ["it"]


def test_no_answer_is_taken_for_that_of_another_question(worker: GpuWorker) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.time([candidate("other", "torch.mul(x, 2, out=y)")], QUICK, meanwhile=interrupt)
    assert [*worker.time([GOOD], QUICK)] == ["good"]


def test_without_time_one_candidate_that_works_is_timed(worker: GpuWorker) -> None:
    bad = candidate("bad", "raise ValueError('made up')")
    others = [replace(GOOD, id=f"{i}") for i in range(3)]
    found = worker.time([bad, *others], within_s=0.0)
    assert list(found) == ["bad", "0"]
    assert isinstance(found["bad"], Failure) and isinstance(found["0"], Timing)


def test_long_calls_that_are_slow_beside_the_best_are_timed_roughly(worker: GpuWorker, tmp_path: Path) -> None:
    """By two calls behind the first, where the best is known, and in two rounds, where it is found later."""
    log = tmp_path / "log"

    def slow(id: str) -> Candidate:
        return candidate(
            id, f"torch.mul(x, 2, out=y)\ntime.sleep(0.02)\nwith open({str(log)!r}, 'a') as f: f.write('x')"
        )

    found = worker.time([slow("before"), GOOD, slow("behind")], QUICK)
    assert all(isinstance(t, Timing) for t in found.values())
    assert found["behind"].method.startswith("host clock, too slow") and found["behind"].accuracy is None
    for id in ("before", "behind"):
        assert len(found[id].figures_us) == 2 and found[id].median_us > 20_000 and math.isfinite(found[id].spread_us)
    assert len(found["good"].figures_us) >= 5
    log.unlink()
    known = worker.time([slow("known")], QUICK, best_us=100.0)["known"]
    assert isinstance(known, Timing) and known.median_us > 20_000
    assert len(log.read_text()) == 3
    careful = replace(QUICK, hot=True, selects=False)
    log.unlink()
    final = worker.time([slow("final")], careful, best_us=100.0)["final"]
    assert isinstance(final, Timing) and len(final.figures_us) == 5 and final.hot_us is not None
    few = len(log.read_text())
    log.unlink()
    worker.time([slow("best")], careful)
    assert few < 0.6 * len(log.read_text())


class MadeUp(Bench):
    """Calls take what `us` says, by the candidate, whatever they do."""

    def __init__(self, directory: Path, us: Mapping[str, float]) -> None:
        super().__init__(torch.device("cpu"), 0.4, directory, lambda _: None)
        self.us, self.at = us, ""
        self.replays: dict[Any, float] = {}
        self.set_problem(DOUBLING)

    def begin(self, candidate: Candidate) -> tuple[Run, float]:
        self.at = candidate.id
        return super().begin(candidate)

    def host_seconds(self, run: Run) -> float:
        run(0)
        return 1e-4

    def record(self, run: Callable[[int], Any], order: Sequence[int]) -> tuple[Callable[[], None], list[Any], str]:
        replay, left, method = super().record(run, order)
        self.replays[replay] = self.us[self.at] * len(order)
        return replay, left, method

    def sample(self, replay: Callable[[], None], cold: bool = True) -> float:
        return self.replays[replay]

    def spacers_us(self, count: int) -> float:
        return 0.0


def test_where_the_fastest_are_asked_for_the_others_get_less(tmp_path: Path) -> None:
    """A call that is slow in the chain is not timed alone where a much faster one is known, and beside faster ones in
    two rounds."""
    bench = MadeUp(tmp_path, {"best": 10.0, "near": 11.0, "far": 12.0, "hopeless": 14.0})
    candidates = tuple(replace(GOOD, id=id) for id in bench.us)
    found = bench.time(candidates, QUICK, seed=0, best_us=10.0)
    assert {id: len(t.samples_us) for id, t in found.items()} == {"best": 5, "near": 5, "far": 2, "hopeless": 2}
    assert {id: t.median_us for id, t in found.items()} == pytest.approx(bench.us)
    hopeless = [id for id, t in found.items() if t.method.endswith("too slow for more")]
    assert hopeless == ["hopeless"] and found["hopeless"].accuracy is None
    found = bench.time(candidates, replace(QUICK, selects=False), seed=0, best_us=10.0)
    assert all(len(t.samples_us) == len(t.alone_samples_us) == 5 and t.accuracy for t in found.values())


def test_rounds_end_when_the_time_is_up(worker: GpuWorker) -> None:
    slow = candidate("slow", "torch.mul(x, 2, out=y)\ntime.sleep(0.05)")
    (timing,) = worker.time([slow], replace(QUICK, rounds=31, seconds=60.0), within_s=0.1).values()
    assert isinstance(timing, Timing) and len(timing.figures_us) == 1


def test_contestants_are_interleaved(worker: GpuWorker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    noting = [
        candidate(id, f"torch.mul(x, 2, out=y)\nwith open({str(log)!r}, 'a') as f: f.write({id!r})") for id in "abc"
    ]
    worker.time(noting, Effort(rounds=6, launches=1, seconds=10.0, hot=True), seed=3)  # alone too, however slow
    calls = log.read_text()[-36:]  # each in a chain and alone
    assert calls[::2] == calls[1::2]
    rounds = [calls[::2][i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) > 1


def test_slower_is_slower(worker: GpuWorker) -> None:
    results = worker.time([candidate("slow", "torch.mul(x, 2, out=y)\ntime.sleep(0.01)"), GOOD])
    slow, good = results["slow"], results["good"]
    assert isinstance(slow, Timing)
    assert isinstance(good, Timing)
    assert slow.median_us > 10_000
    assert slow.median_us > 2 * good.median_us


def test_bad_problem_is_refused() -> None:
    with GpuWorker("cpu") as w:
        with pytest.raises(MeasureError, match="ZeroDivisionError"):
            w.set_problem(Problem((X,), (Y,), "def reference(x):\n    return x / (1 // 0)\n"))
        w.set_problem(DOUBLING)
        right(w.judge(GOOD, STANDARD))


def test_no_device_is_said() -> None:
    with GpuWorker("no-such-device") as w, pytest.raises(MeasureError, match=r"does not start[\s\S]*no-such-device"):
        w.set_problem(DOUBLING)


def test_floor_and_device(worker: GpuWorker) -> None:
    floor = worker.measure_floor("float32")
    assert floor.copy_bytes_per_s > 0
    assert floor.matmul_flops_per_s > 0
    assert worker.device.name == "cpu"
    assert type(worker.device.torch) is str, "a process that is told it need not import torch for its type"
    right(worker.judge(GOOD, STANDARD))


def test_bench_rows(worker: GpuWorker) -> None:
    contestants = [baseline("eager", DOUBLING), GOOD, candidate("broken", "undefined")]
    eager, good, broken = run_bench(worker, DOUBLING, contestants, QUICK)
    assert (eager.name, good.name, broken.name) == ("eager", "good", "broken")
    assert eager.timing is not None and eager.timing.accuracy == Accuracy(0.0, 0.0)
    assert good.timing is not None and good.timing.method == "host clock"
    assert broken.timing is None
    failed(broken.failure, FailureKind.COMPILE)


def test_data_drawn_anew_are_others(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    setting = Bench(torch.device("cpu"), 0.4, tmp_path, lambda _: None)
    setting.set_problem(DOUBLING)
    for i in range(len(DISTRIBUTIONS)):
        (known,), (anew,) = setting.inputs_of(i, 1), setting.inputs_of(i, 1, anew=True)
        assert not torch.equal(known, anew)
    right(setting.judge_all(GOOD, STANDARD, anew=True))
    right(setting.judge_all(GOOD, STANDARD, anew=False))
    for i in range(len(DISTRIBUTIONS)):
        (known,), (anew,) = setting.cases[i, False].inputs, setting.cases[i, True].inputs
        assert not torch.equal(known, anew)


@pytest.mark.parametrize("cut", [None, ((0,), (0,), ELEMENTS, 1)])
def test_a_judgement_that_was_prepared_evaluates_nothing(
    cut: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all data: by eager PyTorch, and in float64. Without room, nothing is prepared."""
    monkeypatch.setattr("mirage_cli.verify.pieces.PIECE_BYTES", 1000)
    setting = Bench(torch.device("cpu"), 0.5, tmp_path, lambda _: None)
    setting.set_problem(replace(DOUBLING, cut=cut))
    count = 2 * len(DISTRIBUTIONS)
    assert [setting.prepare_case(1) for _ in range(count + 1)] == [*reversed(range(count)), 0]
    made: list[str] = []
    for name in ("exact", "by_eager"):
        evaluate = getattr(Reference, name)
        monkeypatch.setattr(Reference, name, lambda *a, of=evaluate, n=name: (made.append(n), of(*a))[1])
    wrong = candidate("wrong", "torch.mul(x, 2, out=y)\ny[-1] = 0.0")
    for anew in (False, True):
        right(setting.judge_all(GOOD, STANDARD, anew=anew))
        assert refused(setting.judge_all(wrong, STANDARD, anew=anew))
    assert not made
    setting.set_problem(replace(DOUBLING, cut=cut))
    setting.room_bytes = 0
    assert setting.prepare_case(1) is None
    right(setting.judge_all(GOOD, STANDARD, anew=False))


def test_judgements_are_prepared_by_the_process(worker: GpuWorker) -> None:
    left = [worker.prepare_judging(1) for _ in range(2)]
    assert left[0] == left[1] + 1 > 1
    right(worker.judge(GOOD, STANDARD))
    worker.set_problem(DOUBLING)
    assert worker.prepare_judging(1) == 2 * len(DISTRIBUTIONS) - 1


def test_the_launch_overhead_is_that_of_the_exported_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured without a GPU it is None; with one, by the file's function and plan, on ordinary inputs."""
    torch = pytest.importorskip("torch")
    exported = Candidate("exported", "_PLANS = 'the plans'\ndef double(x): return 2 * x\n")
    setting = Bench(torch.device("cpu"), 0.4, tmp_path, lambda _: None)
    setting.set_problem(DOUBLING)
    assert setting.launch_overhead_us(exported, "double") is None

    def cpu_time(call: Callable[[], Any], plans: Any, device: int, names: Mapping[str, Any]) -> CpuTime:
        assert (
            torch.equal(call(), 2 * setting.drawn[0][0])
            and (plans, device) == ("the plans", -1)
            and names["_PLANS"] == plans
        )
        return CpuTime(7.5, 2.5, 1.5, 2)

    monkeypatch.setattr("mirage_cli.tune.worker.cpu_time", cpu_time)
    monkeypatch.setattr(setting, "cuda", True)
    assert setting.launch_overhead_us(exported, "double") == 2.5


def test_a_launch_overhead_that_cannot_be_had_is_none(worker: GpuWorker) -> None:
    assert worker.launch_overhead_us(GOOD, "no such function") is None


def test_overflowing_baseline_is_timed(worker: GpuWorker) -> None:
    half = TensorSpec("X", (ELEMENTS,), "float16")
    problem = Problem((half,), (half,), "def reference(x):\n    return (x * 1e6) / 1e6\n")
    (row,) = run_bench(worker, problem, [baseline("eager", problem)], QUICK)
    assert row.timing is not None and row.timing.accuracy == Accuracy(math.inf, math.inf)
    worker.set_problem(DOUBLING)


def test_child_says_why_it_died() -> None:
    child = Child("no_such_module")
    with pytest.raises(ChildDied, match=r"exited with code 1: No module named"):
        child.receive(60)
    child.kill()


def test_child_that_takes_its_time_to_end_says_why_too(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child("no_such_module")
    process: Any = child._process

    def still_running(timeout: float) -> int:
        raise subprocess.TimeoutExpired("child", timeout)

    with monkeypatch.context() as m:
        m.setattr(process, "wait", still_running)
        with pytest.raises(ChildDied, match=r"closed its pipe: No module named"):
            child.receive(60)
    child.kill()


def test_child_ends_with_its_parent(tmp_path: Path) -> None:
    """Even one that does not look at its pipe, after a parent that was killed."""
    (tmp_path / "stuck.py").write_text("import time\ndef main(connection): time.sleep(600)\n")
    code = (
        "from mirage_cli.tune.child import Child; import os;"
        "print(Child('stuck').pid, flush=True); os.kill(os.getpid(), 9)"
    )
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env).stdout)
    deadline = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


SCALE_KERNEL = """
import triton
import triton.language as tl

@triton.jit
def scale(x, y, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + i, 2 * tl.load(x + i, i < n), i < n)

def make_scratch(device):
    return []

def launch(inputs, outputs, scratch):
    scale[(triton.cdiv(inputs[0].numel(), BLOCK),)](inputs[0], outputs[0], inputs[0].numel(), BLOCK, num_warps=WARPS)
"""


def scaling(id: str, block: int, warps: int = 4) -> Candidate:
    return Candidate(id, SCALE_KERNEL.replace("BLOCK", str(block)).replace("WARPS", str(warps)))


@pytest.fixture(scope="module")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("triton")
        patch.setenv("TRITON_CACHE_DIR", str(path))
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield path


def test_farm_compiles_and_survives(triton_cache: Path) -> None:
    jobs = [
        scaling("small", 256),
        candidate("abort", "os.abort()"),
        candidate("hang", "time.sleep(60)", timeout_s=1.0),
        scaling("not a power of two", 100),
        scaling("large", 1024, warps=8),
    ]
    with CompileFarm(90, workers=2) as farm:
        results = dict(farm.compile_all(jobs, (X,), (Y,)))
        again = dict(farm.compile_all(jobs[:1], (X,), (Y,)))
    assert set(results) == {j.id for j in jobs}
    failed(results["abort"], FailureKind.CRASH)
    failed(results["hang"], FailureKind.HANG)
    assert "power of 2" in failed(results["not a power of two"], FailureKind.COMPILE).message
    large = results["large"]
    assert not isinstance(large, Failure)
    assert large == (
        KernelResources("scale", 0, large[0].registers, spill_bytes=0, warps=8, cache_key=large[0].cache_key),
    )
    assert 8 <= large[0].registers <= 64
    assert again["small"] == results["small"]


def test_processes_compile_before_anyone_waits_for_them(triton_cache: Path) -> None:
    """The first jobs are with their processes while these start, and the caller is busy."""
    with CompileFarm(90, workers=2) as farm:
        farm.give([scaling("a", 256), scaling("b", 512), scaling("c", 1024)], (X,), (Y,))
        assert farm.forget() == ["c"]
        done = [*farm.take(), *farm.take()]
    assert {key for key, _ in done} == {"a", "b"} and not any(isinstance(r, Failure) for _, r in done)


def test_what_is_dropped_ends_and_its_process_takes_the_next(triton_cache: Path) -> None:
    """Nobody hears of it, not even where it was given before the process had started."""
    with CompileFarm(90, workers=1) as farm:
        farm.give([scaling("a", 256)], (X,), (Y,))
        farm.drop()
        assert not farm.pending and not farm.take()
        (first,) = (b.child.pid for b in farm._children)
        ((key, answer),) = farm.compile_all([scaling("b", 512)], (X,), (Y,))
        assert key == "b" and not isinstance(answer, Failure)
        assert [b.child.pid for b in farm._children] == [first]


def test_what_is_compiled_ahead_keeps_nobody_waiting(triton_cache: Path) -> None:
    """One of two processes is at work on it, until there is something that somebody waits for."""

    def at_work() -> list[str]:
        return [b.job.candidate.id for b in farm._children if b.job]

    with CompileFarm(90, workers=2) as farm:
        farm.give_ahead([scaling("a", 256), scaling("b", 512)], (X,), (Y,))
        assert at_work() == ["a"] and not farm.pending
        farm.give([scaling("c", 1024), scaling("d", 128)], (X,), (Y,))
        assert at_work() == ["a", "c"] and farm.pending == 2
        done: list[str] = []
        while farm.pending:
            done += [key for key, _ in farm.take()]
        assert {*done} == {"c", "d"}


def test_what_is_at_hand_ahead_is_not_begun_again(triton_cache: Path) -> None:
    """Somebody waits for it from then on, whole as it is; for the same of other tensors another process works."""
    with CompileFarm(90, workers=2) as farm:
        farm.give_ahead([scaling("a", 256)], (X,), (Y,))
        farm.give([replace(scaling("a", 256), shares=2)], (X,), (Y,))
        assert farm.pending == 1 and sum(b.job is not None for b in farm._children) == 1
        assert [key for key, _ in farm.take()] == ["a"] and not farm.pending
        farm.give_ahead([scaling("b", 512)], (X,), (Y,))
        farm.give([scaling("b", 512)], (replace(X, shape=(64,)),), (Y,))
        assert [b.wanted for b in farm._children if b.job] == [False, True]


CALLED = """
TWO = tl.constexpr(2)

@triton.jit
def twice(a):
    return a * TWO

@triton.jit
def four_times(a):
    return twice(a) + TWO * a

@triton.jit"""
CALLING = SCALE_KERNEL.partition("def launch")[0].replace("@triton.jit", CALLED, 1).replace("2 *", "four_times(1)*")
TWO_KERNELS = f"""
{CALLING}
@triton.jit
def halve(x, y, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + i, four_times(0.5 * tl.load(x + i, i < n)), i < n)

def launch(inputs, outputs, scratch):
    n = inputs[0].numel()
    halve[(1,)](inputs[0], outputs[0], n, BLOCK, num_warps=4)
    scale[(1,)](inputs[0], outputs[0], n, 512, num_warps=4)
"""


def test_a_candidate_is_compiled_by_two_processes(triton_cache: Path) -> None:
    """And fails where the share of one does. A kernel has one key, on other lines too, and whatever was launched before
    it, though both call the same functions."""
    source = TWO_KERNELS.replace("BLOCK", "256")
    alone = source.replace("    halve[", "    0 and halve[")
    jobs = [Candidate("one", source), Candidate("two", source, shares=2), Candidate("lower", "\n" + alone)]
    jobs += [Candidate("wrong", TWO_KERNELS.replace("BLOCK", "100"), shares=2)]
    with CompileFarm(90, workers=2) as farm:
        done = list(farm.compile_all(jobs, (X,), (Y,)))
        assert not farm.pending
    assert sorted(key for key, _ in done) == ["lower", "one", "two", "wrong"]
    found = dict(done)
    kernels = {n: {k.name: k for k in x} for n, x in found.items() if not isinstance(x, Failure)}
    assert kernels["one"] == kernels["two"] and {*kernels["two"]} == {"halve", "scale"}
    assert kernels["lower"]["scale"] == kernels["two"]["scale"]
    assert "power of 2" in failed(found["wrong"], FailureKind.COMPILE).message


LAUNCH_WITH_REAL_TENSORS = """
import json, sys
from pathlib import Path
import torch, triton
from triton.runtime.jit import JITFunction
from mirage_cli.tune.modules import load_module, read_generated
from mirage_cli.tune.offline import OfflineDriver

triton.runtime.driver.set_active(OfflineDriver(90))
launch = JITFunction.run

def warm(self, *args, grid, warmup, **kwargs):
    print(json.dumps(launch(self, *args, grid=grid, warmup=True, **kwargs).hash))

JITFunction.run = warm
triton.knobs.compilation.listener = lambda *, cache_hit, **_: print(json.dumps(cache_hit))
for source, folder in zip(sys.argv[1::2], map(Path, sys.argv[2::2])):
    read_generated(folder)
    module = load_module(Path(source).read_text(), folder)
    print(json.dumps(module.scale.hash is not None))
    module.launch([torch.ones(4096)], [torch.ones(4096)], module.make_scratch("cpu"))
"""


def test_launch_finds_what_the_farm_compiled(triton_cache: Path, tmp_path: Path) -> None:
    """In another process, with real tensors, from a file elsewhere: the same key, and a hit in Triton's disk cache.
    From the same file too, where what the key says of the text is known."""
    arguments, keys = list[str](), list[str]()
    for name, block in (("elsewhere", 512), ("shared", 256)):
        job, folder, source = scaling("job", block), tmp_path / name, tmp_path / f"{name}.py"
        folder.mkdir()
        with CompileFarm(90, 1, folder if name == "shared" else None) as farm:
            ((_, kernels),) = farm.compile_all([job], (X,), (Y,))
        assert not isinstance(kernels, Failure)
        source.write_text(job.source)
        arguments += [str(source), str(folder)]
        keys.append(f'"{kernels[0].cache_key}"')
    command = [sys.executable, "-c", LAUNCH_WITH_REAL_TENSORS, *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert printed == ["false", "true", keys[0], "true", "true", keys[1]]


# On a GPU


@pytest.fixture(scope="module")
def gpu() -> Iterator[GpuWorker]:
    n = 1 << 24
    spec = TensorSpec("X", (n,), "float32"), TensorSpec("Y", (n,), "float32")
    with GpuWorker() as w:
        w.set_problem(Problem(spec[:1], spec[1:], DOUBLING.reference_source))
        yield w


ILLEGAL = SCALE_KERNEL.replace("tl.store(y + i,", "tl.store(y + i + (1 << 44),").replace("BLOCK", "256")
HANGING = SCALE_KERNEL.replace(
    "    tl.store", "    while tl.load(x, volatile=True) < 1e30:\n        pass\n    tl.store"
).replace("BLOCK", "256")


@pytest.mark.gpu
def test_gpu_fault_and_hang_are_named_and_survived(gpu: GpuWorker) -> None:
    good = scaling("good", 1024)
    illegal = Candidate("illegal", ILLEGAL.replace("WARPS", "4"))
    hanging = Candidate("hanging", HANGING.replace("WARPS", "4"), timeout_s=10.0)
    failed(gpu.judge(illegal, STANDARD), FailureKind.FAULT)
    right(gpu.judge(good, STANDARD))
    failed(gpu.judge(hanging, STANDARD), FailureKind.HANG)
    results = gpu.time([illegal, good, hanging])
    failed(results["illegal"], FailureKind.FAULT)
    failed(results["hanging"], FailureKind.HANG)
    assert isinstance(results["good"], Timing)


@pytest.mark.gpu
def test_gpu_time_is_above_the_floor(gpu: GpuWorker) -> None:
    floor = gpu.measure_floor()
    assert 0.1 < floor.empty_us < 20
    contestants = [scaling("good", 1024), scaling("same", 1024), scaling("wide", 4096)]
    results = gpu.time(contestants, CAREFUL)
    bound_us = 1e6 * 2 * 4 * (1 << 24) / floor.copy_bytes_per_s
    for timing in results.values():
        assert isinstance(timing, Timing)
        assert timing.method == "CUDA graph"
        assert timing.hot_us is not None
        assert 0.9 * bound_us < timing.median_us < 10 * bound_us
    good, same = results["good"], results["same"]
    assert isinstance(good, Timing)
    assert isinstance(same, Timing)
    assert abs(good.median_us - same.median_us) < 0.1 * good.median_us


@pytest.mark.gpu
def test_gpu_times_on_behind_a_call_that_no_graph_can_hold(gpu: GpuWorker) -> None:
    """A capture that fails leaves PyTorch's random numbers unusable, which warming up once drew from."""
    waits = "make = lambda inputs: lambda x: x * float(x.flatten()[0].item() * 0 + 2)\n"
    first = gpu.time([Candidate("waits", waits, "function"), scaling("good", 1024)])
    assert isinstance(first["waits"], Timing) and first["waits"].method.startswith("events, no CUDA graph")
    time.sleep(1.1)  # after so long it warms up again
    assert isinstance(gpu.time([scaling("good", 1024)])["good"], Timing)
    assert gpu.measure_floor().empty_us > 0


@pytest.mark.gpu
def test_gpu_finds_what_the_farm_compiled(gpu: GpuWorker, triton_cache: Path) -> None:
    """Timing a compiled candidate adds no kernel to Triton's disk cache."""
    job = scaling("precompiled", 2048)
    n = TensorSpec("X", (1 << 24,), "float32"), TensorSpec("Y", (1 << 24,), "float32")
    with CompileFarm(gpu.device.arch, workers=1) as farm:
        ((_, kernels),) = farm.compile_all([job], n[:1], n[1:])
    assert not isinstance(kernels, Failure)
    compiled = set(triton_cache.rglob("*.cubin"))
    with GpuWorker() as w:  # started after the cache's place was set
        w.set_problem(Problem(n[:1], n[1:], DOUBLING.reference_source))
        right(w.judge(job, STANDARD))
    assert set(triton_cache.rglob("*.cubin")) == compiled


@pytest.mark.gpu
def test_gpu_baselines(gpu: GpuWorker) -> None:
    problem = Problem((X,), (Y,), DOUBLING.reference_source)
    eager, compiled = run_bench(gpu, problem, [baseline("eager", problem), baseline("compile", problem)])
    for row in (eager, compiled):
        assert row.failure is None
        assert row.timing is not None and row.timing.method == "CUDA graph"
        assert row.timing.accuracy == Accuracy(0.0, 0.0)
