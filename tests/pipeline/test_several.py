"""A program on several GPUs: the same code on the CPU, with gloo and Triton's interpreter, by a process for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_cli.errors import NoKernelError
from mirage_cli.pipeline.bench import several
from mirage_cli.pipeline.parallel import splits
from mirage_cli.pipeline.searching import Options
from mirage_cli.pipeline.session import Session
from mirage_cli.spec.reader import parse_spec
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.measure import MeasureError, Problem, Standard, TensorSpec
from mirage_cli.tune.ranks import File, Joined, SplitTask, run

H200 = find_target("h200")
MLP = """
name: mlp
dims: {m: 3, k: 32, n: 64, p: 33}
inputs: {X: [m, k], W1: {dims: [k, n], scale: 0.2}, W2: {dims: [k, n], scale: 0.2}, W3: {dims: [n, p], scale: 0.2}}
program: |
  H = silu(dot(X, W1, k)) * dot(X, W2, k)
  O = dot(H, W3, n)
outputs: {O: [m, p], H: [m, n]}
"""


def row(text: str, folder: Path) -> dict[str, object]:
    program = parse_spec(text).at()
    with Database(folder / "mirage.db") as store, Session(H200, Options(tune=False), store, False) as session:
        return several.measured_split(session, program, text, 2, "cpu")


def test_a_split_runs_its_stages_and_joins_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """n is cut: each process has half of H, which is put together, and partial sums of O, which are added."""
    tasks: list[SplitTask] = []
    monkeypatch.setattr(several, "run", lambda task, device: (tasks.append(task), run(task, device))[1])
    found = row(MLP, tmp_path)
    (task,) = tasks
    assert found["axes"] == ["n"] and found["wrong"] is None and found["all_reduce_bytes"] == 3 * 33 * 4
    assert [type(s) for s in task.steps] == [File, Joined] and task.cut == {"W1": 1, "W2": 1, "W3": 0, "H": 1}
    predicted, measured = found["predicted"], found["measured"]
    assert isinstance(predicted, dict) and predicted["us"] > predicted["all_reduce_us"] > 0 < predicted["one_gpu_us"]
    assert isinstance(measured, dict) and measured.pop("method") == "host clock" and measured["us"] > 0
    assert all(x >= 0 for x in measured.values())


HALVES = """
import torch

def halves(x, w):
    return (x.float() @ w.float()), torch.relu(x)
"""
WHOLE = "def whole(x, w):\n    return x @ w, x.relu()\n"


@pytest.mark.parametrize(
    ("joins", "source", "says"),
    [
        ((Joined("Y", "SUM", "float16"),), HALVES, None),
        ((), HALVES, "normal: error"),
        ((Joined("Y", "MAX", "float16"),), HALVES, "normal: error"),
        ((Joined("Y", "SUM", "float16"),), "import os; os.abort()", "GPU [01]: the process was killed by SIGABRT"),
        ((Joined("Y", "SUM", "float16"),), "1 / 0", "GPU [01]: ZeroDivisionError"),
    ],
    ids=["right", "nothing joined", "joined otherwise", "killed", "raising"],
)
def test_what_the_processes_have_together_is_judged(joins: tuple[Joined, ...], source: str, says: str | None) -> None:
    """X and W are cut along what is summed: Y is the sum of both parts, Z is put together."""
    shapes = {"X": (4, 32), "W": (32, 8), "Y": (4, 8), "Z": (4, 32)}
    x, w, y, z = (TensorSpec(n, s, "float16", 0.5) for n, s in shapes.items())
    reference = "import torch\n\ndef reference(x, w):\n    return x @ w, torch.relu(x)\n"
    names = ("X", "W"), ("Y", "Z")
    steps = (File(source, "halves", *names), *joins)
    cut = {"X": 1, "W": 0, "Z": 1}
    task = SplitTask(2, Problem((x, w), (y, z), reference), Standard(4.0, 32), cut, steps, File(WHOLE, "whole", *names))
    if says and says.startswith("GPU"):
        with pytest.raises(MeasureError, match=says):
            run(task, "cpu")
        return
    first, second = run(task, "cpu")
    assert first.judged and second.judged is None and min(*first.split_us, *first.computed_us, *second.one_us) > 0
    assert first.judged.ok == (says is None) and (says or "None") in str(first.judged.problem)


def test_a_program_that_cannot_be_split_says_why(tmp_path: Path) -> None:
    odd = MLP.replace("k: 32, n: 64", "k: 33, n: 65")
    with pytest.raises(NoKernelError, match=r"m cannot be split: m = 3 is no multiple of 2; k"):
        row(odd, tmp_path)
    assert splits(parse_spec(odd).at(), 2, H200)[0] == []
