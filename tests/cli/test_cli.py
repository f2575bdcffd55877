"""The command line without a GPU: what goes to stdout and stderr, the exit codes, and the documents of --json.

Most tests run `main` in this process; those of signals, of files that cannot be written and of imports start another.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any

import pytest
import torch

from mirage_cli import __version__
from mirage_cli.cli import search as search_command
from mirage_cli.cli.bench import stored_programs
from mirage_cli.cli.commands import app
from mirage_cli.cli.main import main
from mirage_cli.cli.shared import local_gpu, print_text
from mirage_cli.codegen.export import load_export
from mirage_cli.errors import EmptyStoreError, OtherGpuError
from mirage_cli.ir.program import Program
from mirage_cli.pipeline import predicting, searchers, session
from mirage_cli.search.cost.model import LIMITS
from mirage_cli.store.exchange import COLUMNS
from mirage_cli.store.records import Measurement
from mirage_cli.store.store import Database
from mirage_cli.target import gpus
from mirage_cli.tune import compilefarm, interpreted
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.interpreted import Interpreter
from tests import forked

TINY = """\
name: tiny
dims: {m: 4, k: 32, n: 16}
inputs:
  X: [m, k]
  W: {dims: [k, n], scale: 0.2}
program: |
  O = silu(dot(X, W, k))
outputs:
  O: [m, n]
"""
ONE_OPERATOR = """\
name: increment
dims: {m: 16}
instances: [{m: 16}, {m: 32}]
inputs:
  X: [m]
program: |
  O = X + 1
outputs:
  O: [m]
"""
BLOCK = """\
name: transformer_block
dims: {m: 256, k: 1024, h: 16, d: 64, s: 256, f: 4096, o: 1024}
inputs:
  X: [m, k]
  WQ: [k, h, d]
  KC: [s, h, d]
  VC: [s, h, d]
  WO: [h, d, o]
  W1: [o, f]
  W3: [o, f]
  W2: [f, k]
program: |
  Q = dot(rms_norm(X, k), WQ, k)
  A = dot(softmax(dot(Q, KC, d) * 0.125, s), VC, s)
  N = rms_norm(dot(A, WO, h, d), o)
  O = dot(silu(dot(N, W1, o)) * dot(N, W3, o), W2, f) + X
outputs:
  O: [m, k]
"""
"""Large enough that its search takes many seconds."""
MISTAKEN = """\
name: mistaken
dims: {m: 4, k: 8}
inputs:
  X: [m, k]
program: |
  O = rms_nrm(X, k)
  P = X + Z
outputs:
  O: [m, k]
"""
SPECS = {"tiny": TINY, "increment": ONE_OPERATOR, "transformer_block": BLOCK, "mistaken": MISTAKEN}

MUGRAPH = """\
mugraph tiny float16
dims m=4 k=32 n=16
input X f16[m, k]
input W f16[k, n]
output O f16[m, n]
kernel k0 generated m:grid k:tile n:grid
  W = load W[k, n]
  X = load X[m, k]
  t0[m, n] = dot(X, W; k)
  O[m, n] = silu(t0)
  store O[m, n] = O
"""

COMMANDS = (
    *("search", "tune", "bench", "export", "show", "explain", "verify", "doctor", "init", "trace", "help", "lock"),
    *("report", "roofline", "export-model"),
    "cache",
)
CACHE_COMMANDS = ("list", "show", "remove", "merge", "export", "import", "prune")

NUMBER = int | float
MAYBE = int | float | None
DOCUMENT: dict[str, type | UnionType] = {
    "schema": int,
    "command": str,
    "mirage": str,
    "versions": dict,
    "gpu": str | None,
    "driver": str | None,
    "target": dict,
    "results": list,
}
RESULT: dict[str, type | UnionType] = {
    "spec": str,
    "dims": dict,
    "dtype": str,
    "seed": int,
    "search": dict,
    "best": dict,
    "top": list,
}
SEARCH: dict[str, type | UnionType] = {
    "classes": int,
    "enumerated": int,
    "pruned": dict,
    "verified": int,
    "rejected": int,
    "stopped": str,
    "seconds": NUMBER,
}
BEST: dict[str, type | UnionType] = {
    "id": str,
    "kernels": int,
    "status": str,
    "time_us": MAYBE,
    "floor_us": NUMBER,
    "eager_us": MAYBE,
    "error_vs_float64": MAYBE,
    "eager_error_vs_float64": MAYBE,
    "schedule": dict,
    "claim": str,
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one command left: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def results(self) -> list[Any]:
        """Those of its envelope."""
        return self.document["results"]


Mirage = Callable[..., Run]


def write_specs(folder: Path) -> None:
    for name, text in SPECS.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


@pytest.fixture
def mirage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    interpreter: Interpreter,
    farm: Callable[[int], CompileFarm],
) -> Mirage:
    """Runs a command line in this process, in a folder with the specs and a database of its own, without a GPU. The
    processes that it asks are those of all tests."""
    monkeypatch.setattr(interpreted, "Interpreter", lambda: nullcontext(interpreter))
    monkeypatch.setattr(compilefarm, "CompileFarm", lambda arch, *_: nullcontext(farm(arch)))
    write_specs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIRAGE_DB", str(tmp_path / "mirage.db"))
    monkeypatch.setattr(gpus, "driver_version", lambda: None)

    def run(*args: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["mirage", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        assert isinstance(end.value.code, int)
        return Run(end.value.code, shown.out, shown.err)

    return run


def environment(folder: Path, **changes: str) -> dict[str, str]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "MIRAGE_DB": str(folder / "mirage.db")}
    env.pop("TRITON_INTERPRET", None)
    return env | changes


def spawn(folder: Path, *args: str, **changes: str) -> Run:
    """Runs a command line in a process of its own, which is forked."""
    done = forked.ran(args, folder, environment(folder, **changes))
    assert "Traceback" not in done.stderr
    return Run(done.returncode, done.stdout, done.stderr)


def spawn_afresh(folder: Path, *args: str, **changes: str) -> Run:
    """The same in a process that is started as a user's."""
    command = [sys.executable, "-m", "mirage_cli", *args]
    env = environment(folder, **changes)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    return Run(done.returncode, done.stdout, done.stderr)


STORED = ("search", "tiny.yaml", "--json", "--top", "2")


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A folder whose database has the checked kernels of tiny.yaml, and the search that found them."""
    folder = tmp_path_factory.mktemp("searched")
    write_specs(folder)
    (folder / "temporary").mkdir()
    return folder, spawn(folder, *STORED, "--workers", "2", TMPDIR=str(folder / "temporary"))


@pytest.fixture
def found(searched: tuple[Path, Run], tmp_path: Path, mirage: Mirage) -> Mirage:
    """`mirage` with a copy of that database."""
    shutil.copy(searched[0] / "mirage.db", tmp_path / "mirage.db")
    return mirage


def fits(value: dict[str, Any], shape: dict[str, type | UnionType]) -> bool:
    """Whether the keys of a shape are all there, with values of its types."""
    return all(name in value and isinstance(value[name], kind) for name, kind in shape.items())


def without(value: Any, name: str) -> Any:
    """A document without the fields of this name."""
    if isinstance(value, dict):
        return {k: without(v, name) for k, v in value.items() if k != name}
    return [without(v, name) for v in value] if isinstance(value, list) else value


def without_seconds(value: Any) -> Any:
    """A document without what differs from run to run: figures, and the command line."""
    return without(without(value, "seconds"), "command")


# -- search


def test_a_search_without_tuning_prints_one_document_with_the_promised_keys(mirage: Mirage) -> None:
    run = mirage("search", "tiny.yaml", "--no-tune", "--json")
    assert run.code == 0 and run.err == ""
    assert list(run.document) == list(DOCUMENT) and fits(run.document, DOCUMENT)
    assert run.document["mirage"] == __version__ and run.document["target"]["name"] == "h100"
    (r,) = run.document["results"]
    assert fits(r, RESULT) and fits(r["search"], SEARCH) and all(fits(b, BEST) for b in [r["best"], *r["top"]])
    assert (r["spec"], r["dims"], r["dtype"], r["seed"]) == ("tiny", {"m": 4, "k": 32, "n": 16}, "float16", 0)
    assert r["search"]["stopped"] == "exhausted" and r["search"]["rejected"] == 0
    assert all(isinstance(n, int) for n in r["search"]["pruned"].values())
    assert r["best"] == r["top"][0] and 1 <= len(r["top"]) <= 5


def test_what_was_not_measured_is_null(mirage: Mirage) -> None:
    best = mirage("search", "tiny.yaml", "--no-tune", "--json").document["results"][0]["best"]
    assert best["status"] == "predicted"
    for name in ("time_us", "eager_us", "error_vs_float64", "eager_error_vs_float64"):
        assert best[name] is None


def test_a_search_without_a_gpu_compiles_and_interprets_its_kernels(searched: tuple[Path, Run]) -> None:
    run = searched[1]
    assert run.code == 0 and "error" not in run.err  # a slow machine prints how far it is
    (r,) = run.document["results"]
    assert r["best"] == r["top"][0] and len(r["top"]) == 2
    for b in r["top"]:
        assert fits(b, BEST) and b["status"] == "predicted" and b["time_us"] is None and b["eager_us"] is None
        assert 0 < b["error_vs_float64"] <= 4 * b["eager_error_vs_float64"] < 0.01


def test_one_and_two_workers_find_the_same(mirage: Mirage) -> None:
    runs = [
        mirage("search", "tiny.yaml", "increment.yaml", "--no-tune", "--json", "--fresh", "--seed", 7, "--workers", n)
        for n in (1, 2, 2)
    ]
    documents = [without(without_seconds(run.document), "command") for run in runs]
    assert documents[0] == documents[1] == documents[2]
    assert [r["spec"] for r in documents[0]["results"]] == ["tiny", "increment", "increment"]
    assert [r["dims"]["m"] for r in documents[0]["results"]] == [4, 16, 32]
    assert {r["seed"] for r in documents[0]["results"]} == {7}


def test_sizes_type_and_target_of_the_command_line_are_used(mirage: Mirage) -> None:
    run = mirage(
        *("search", "tiny.yaml", "--no-tune", "--json"),
        *("--dim", "m=5", "--dim", "k=48", "--dtype", "bfloat16", "--target", "a100"),
    )
    (r,) = run.document["results"]
    assert r["dims"] == {"m": 5, "k": 48, "n": 16} and r["dtype"] == "bfloat16"
    assert run.document["target"]["name"] == "a100" and run.document["target"]["arch"] == "sm_80"
    text = mirage("show", r["best"]["id"]).out
    assert text.startswith("mugraph tiny bfloat16\ndims m=5 k=48 n=16\n")


def test_a_second_search_answers_from_the_database(mirage: Mirage, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    search_program = searchers.search_program

    def counted(program: Program, *rest: Any) -> Any:
        searched.append(program.name)
        return search_program(program, *rest)

    monkeypatch.setattr(searchers, "search_program", counted)
    first = mirage("search", "tiny.yaml", "--no-tune", "--json")
    again = mirage("search", "tiny.yaml", "--no-tune", "--json")
    assert again.code == 0 and searched == ["tiny"]
    assert [r.results[0]["cached"] for r in (first, again)] == [False, True]
    assert without(again.document, "cached") == without(first.document, "cached")
    fresh = mirage("search", "tiny.yaml", "--no-tune", "--json", "--fresh")
    assert without_seconds(fresh.document) == without_seconds(first.document) and searched == ["tiny", "tiny"]


def test_plans_are_compiled_and_interpreted_while_there_is_time(found: Mirage, monkeypatch: pytest.MonkeyPatch) -> None:
    (at_leisure,) = found(*STORED).document["results"]
    assert len(at_leisure["top"]) > 1 and at_leisure["search"]["stopped"] == "exhausted"
    clock = SimpleNamespace(monotonic=itertools.count(0, 1000).__next__)
    monkeypatch.setattr("mirage_cli.pipeline.predicting.time", clock)
    (late,) = found(*STORED, "--workers", 1, "--fresh").document["results"]
    assert late["search"]["stopped"] == "exhausted" and late["unchecked"] > 0 == at_leisure["unchecked"]
    assert [r["id"] for r in late["top"]] == [at_leisure["best"]["id"]]


def test_a_spec_that_fails_inside_hides_no_result_of_the_others(
    mirage: Mirage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it keep them from the database."""
    real = predicting.predicted_result

    def failing(here: session.Session, program: Program, *rest: Any) -> Any:
        if program.name == "increment":
            raise ZeroDivisionError("by nothing")
        return real(here, program, *rest)

    monkeypatch.setattr(predicting, "predicted_result", failing)
    specs = ("search", "increment.yaml", "tiny.yaml", "--no-tune", "--workers", 1)
    run = mirage(*specs, "--json")
    assert run.code == 1 and [r["spec"] for r in run.results] == ["increment", "increment", "tiny"]
    assert all(r["error"].startswith("ZeroDivisionError: by nothing (test_cli.py:") for r in run.results[:2])
    assert run.results[2]["best"] and "error" not in run.results[2]
    table = mirage(*specs)
    assert table.code == 1 and run.results[2]["best"]["id"][:8] in table.out and "ZeroDivisionError" in table.err
    assert mirage("export", "tiny.yaml").code == 0


def test_a_search_reports_as_many_kernels_as_it_is_asked_for(mirage: Mirage) -> None:
    run = mirage("search", "tiny.yaml", "--no-tune", "--json", "--top", 1)
    assert [len(r["top"]) for r in run.document["results"]] == [1]


def test_the_table_names_the_best_kernel_of_each_size(mirage: Mirage) -> None:
    run = mirage("search", "increment.yaml", "--no-tune")
    assert run.code == 3 and run.err == ""
    for r in mirage("search", "increment.yaml", "--no-tune", "--json").document["results"]:
        assert r["best"]["id"][:8] in run.out and f"m={r['dims']['m']}" in run.out


def test_nothing_better_than_the_program_as_written_is_exit_code_3(mirage: Mirage) -> None:
    run = mirage("search", "increment.yaml", "--no-tune", "--json", "--workers", 1)
    assert run.code == 3 and [r["best"]["kernels"] for r in run.document["results"]] == [1, 1]


ANOTHER_QUESTION = {
    "another seed": (["--no-tune"], ["--no-tune", "--seed", "1"]),
    "more kernels": (["--no-tune", "--top", "1"], ["--no-tune", "--top", "2"]),
}


@pytest.mark.parametrize("what", ANOTHER_QUESTION)
def test_another_question_is_not_answered_from_the_database(what: str, mirage: Mirage) -> None:
    first, second = ([*options, "--json", "--workers", "1"] for options in ANOTHER_QUESTION[what])
    mirage("search", "tiny.yaml", *first)
    (again,) = mirage("search", "tiny.yaml", *second).document["results"]
    (alone,) = mirage("search", "tiny.yaml", *second, "--fresh").document["results"]
    assert without_seconds(again) == without_seconds(alone)


def test_kernels_that_were_never_checked_are_no_answer_to_a_search_that_checks(mirage: Mirage) -> None:
    mirage("search", "tiny.yaml", "--no-tune", "--json", "--top", 1)
    run = mirage("search", "tiny.yaml", "--json", "--top", 1)
    assert run.document["results"][0]["best"]["error_vs_float64"] is not None


def test_a_search_that_ran_out_of_its_budget_is_no_answer_to_one_with_more(mirage: Mirage) -> None:
    short = mirage("search", "tiny.yaml", "--no-tune", "--json", "--budget", 0)
    assert short.document["results"][0]["search"]["stopped"] == "budget"
    run = mirage("search", "tiny.yaml", "--no-tune", "--json")
    assert run.document["results"][0]["search"]["stopped"] == "exhausted"


def test_tuning_asks_for_every_search_before_any_work(found: Mirage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_command, "local_gpu", lambda *_: gpus.find_target("h100"))
    monkeypatch.setattr(session.Session, "prepare", lambda _: pytest.fail("work has begun"))
    run = found("tune", "tiny.yaml", "increment.yaml")
    assert run.code == 1 and run.err.startswith("error: nothing is stored for increment at m=16")


def test_a_size_without_a_kernel_is_refused_with_those_that_have_one(found: Mirage) -> None:
    run = found("export", "tiny.yaml", "--dim", "m=8")
    assert run.code == 1 and run.err == (
        "error: nothing is stored for tiny at m=8 k=32 n=16\n"
        "    run `mirage search` on the spec first, or take what is stored at m=4 (--dim)\n"
    )


def test_a_program_without_a_value_is_said_to_have_no_kernel(mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "nowhere.yaml").write_text(ONE_OPERATOR.replace("X + 1", "X / (X - X)"), encoding="utf-8")
    run = mirage("search", "nowhere.yaml", "--no-tune", "--dim", "m=16", "--workers", 1)
    assert run.code == 3 and run.err == ""
    assert "increment m=16: no kernel was found; " in run.out and "undefined in every draw" in run.out


def test_a_search_that_could_verify_nothing_says_so(mirage: Mirage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_cli.pipeline.verifying.BEHIND_S", -60.0)
    run = mirage("search", "increment.yaml", "--no-tune", "--dim", "m=16", "--workers", 1, "--budget", 0)
    assert run.code == 3
    assert "increment m=16: no kernel was found; there is no verified plan: " in run.out
    assert " could not be verified in time, after 0 s" in run.out


# -- mistakes


def test_every_mistake_of_a_spec_is_told_with_its_place(mirage: Mirage) -> None:
    run = mirage("search", "mistaken.yaml", "--json")
    assert run.code == 1 and run.out == ""
    lines = run.err.splitlines()
    assert lines[0] == "error: the spec has 2 mistakes"
    assert lines[1] == "mistaken.yaml:6:7: error: no function is called rms_nrm"
    assert lines[2:4] == ["      O = rms_nrm(X, k)", "          ^"] and "did you mean `rms_norm`?" in lines[4]
    assert lines[5] == "mistaken.yaml:7:11: error: nothing is called Z; the inputs are X"


def test_a_long_path_is_not_broken_into_lines(mirage: Mirage, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    (folder / "a[b]:x:.yaml").write_text(MISTAKEN, encoding="utf-8")
    assert f"{folder}/a[b]:x:.yaml:6:7: error" in mirage("search", folder / "a[b]:x:.yaml").err


def test_an_input_that_is_never_used_is_a_warning_on_stderr(mirage: Mirage, tmp_path: Path) -> None:
    text = ONE_OPERATOR.replace("  X: [m]\n", "  X: [m]\n  Y: [m]\n")
    (tmp_path / "warned.yaml").write_text(text, encoding="utf-8")
    run = mirage("search", "warned.yaml", "--no-tune", "--json", "--dim", "m=16")
    assert run.code == 3 and run.document["results"][0]["spec"] == "increment"
    assert run.err.startswith("warned.yaml:6:3: warning: the input Y is never used")


def test_two_specs_of_one_name_have_a_table_each(mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(re.sub(r"\bm\b", "rows", ONE_OPERATOR), encoding="utf-8")
    run = mirage("search", "increment.yaml", "other.yaml", "--no-tune")
    assert run.code in (0, 3) and run.out.count("increment float16") == 2


BAD_INPUT = {
    "no such spec": (["search", "nowhere.yaml"], "error: nowhere.yaml: No such file or directory"),
    "a folder as spec": (["search", "."], "error: .: Is a directory\n    a spec is a file: name `./*.yaml`"),
    "unknown target": (["search", "tiny.yaml", "--target", "b999"], "no GPU is known as 'b999'; known are auto, a100"),
    "unknown dimension": (["search", "tiny.yaml", "--dim", "z=4"], "error: tiny.yaml at z=4: no axis is called z"),
    "unknown dtype": (["search", "tiny.yaml", "--dtype", "float12"], "tiny.yaml at dtype float12: the dtype is one of"),
    "nothing stored": (["export", "tiny.yaml"], "nothing is stored for tiny at m=4 k=32 n=16"),
    "nothing to show": (["show", "tiny.yaml"], "run `mirage search` on the spec first"),
    "nothing to explain": (["explain", "tiny.yaml"], "run `mirage search` on the spec first"),
    "unknown id": (["show", "0123456789ab"], "nothing is stored under 0123456789ab"),
    "unknown id to export": (["export", "tiny.yaml", "--id", "0123456789ab"], "is stored under 0123456789ab"),
    "unknown id in the cache": (["cache", "show", "0123456789ab"], "nothing is stored under 0123456789ab"),
    "empty id": (["show", ""], "an empty id names nothing; `mirage cache list`"),
    "empty id to export": (["export", "tiny.yaml", "--id", ""], "an empty id names nothing"),
    "empty id in the cache": (["cache", "show", ""], "an empty id names nothing"),
    "empty id to remove": (["cache", "remove", ""], "an empty id names nothing"),
    "nothing to merge": (["cache", "merge", "none.db"], "the database none.db is not there"),
    "a spec to import": (["cache", "import", "tiny.yaml"], "tiny.yaml:1: this is no file of `mirage cache export`"),
    "a spec to merge": (["cache", "merge", "tiny.yaml"], "tiny.yaml is damaged, or no database at all"),
    "nothing to import": (["cache", "import", "none.jsonl"], "none.jsonl: No such file or directory"),
    "unknown id to take elsewhere": (["cache", "export", "f", "cccc"], "nothing is stored under cccc"),
    "nothing to remove": (["cache", "remove", "0123456789ab"], "nothing is stored under 0123456789ab"),
    "an axis that is not there": (
        ["search", "tiny.yaml", "--dim", "q=3"],
        "no axis is called q; the axes are m, k, n",
    ),
    "no file to verify": (["verify", "tiny.yaml", "nowhere"], "error: nowhere: No such file or directory"),
    "a folder to verify": (["verify", "tiny.yaml", "."], "error: .: Is a directory"),
    "no GPU to tune on": (["tune", "tiny.yaml"], "there is no GPU on this machine to tune on; `mirage doctor`"),
    "no GPU to bench everything on": (["bench"], "there is no GPU on this machine to measure on"),
    "no GPU of that name": (
        ["bench", "tiny.yaml", "--target", "h200"],
        "there is no GPU on this machine to measure on",
    ),
    "unknown baseline": (["bench", "--against", "eager,cublas"], "cublas; known are eager, compile, sdpa"),
    "a device as spec": (["search", "/dev/zero"], "/dev/zero: this is no regular file"),
    "a FIFO as spec": (["search", "fifo"], "fifo: this is no regular file"),
    "a FIFO to verify": (["verify", "tiny.yaml", "fifo"], "fifo: this is no regular file"),
    "a FIFO to import": (["cache", "import", "fifo"], "fifo: this is no regular file"),
    "a device to import": (["cache", "import", "/dev/zero"], "/dev/zero: this is no regular file"),
    "a folder to import": (["cache", "import", "."], ".: Is a directory"),
    "a FIFO to merge": (["cache", "merge", "fifo"], "the database fifo cannot be used (this is no regular file)"),
    "a FIFO as database": (["cache", "list", "--db", "fifo"], "the database fifo cannot be used (this is no regular"),
    "a device as database": (["search", "tiny.yaml", "--db", "/dev/zero"], "cannot be used (this is no regular file)"),
    "a folder as database": (["search", "tiny.yaml", "--db", "."], "cannot be used (Is a directory)"),
    "a path of bytes": (["search", "\udcff.yaml"], "No such file or directory"),
    "unknown target to verify for": (["verify", "tiny.yaml", "tiny.yaml", "--target", "b999"], "no GPU is known as"),
    "unknown id to verify": (["verify", "tiny.yaml", "0123456789ab"], "nothing is stored under 0123456789ab"),
    "no GPU to bench on": (["bench", "tiny.yaml"], "there is no GPU on this machine to measure on; `mirage doctor`"),
}


@pytest.mark.parametrize("what", BAD_INPUT)
def test_bad_input_is_a_message_and_exit_code_1(what: str, mirage: Mirage) -> None:
    args, message = BAD_INPUT[what]
    os.mkfifo("fifo")
    run = mirage(*args)
    assert run.code == 1 and run.out == ""
    assert run.err.startswith("error: ") and message in run.err


def test_a_spec_may_lie_at_a_path_that_is_no_utf_8(mirage: Mirage, tmp_path: Path) -> None:
    path = os.fsdecode(b"tiny\xff.yaml")
    shutil.copy(tmp_path / "tiny.yaml", tmp_path / path)
    run = mirage("search", path, "--no-tune", "--json")
    assert run.code == 0 and run.results[0]["best"]
    for args in (["show", path], ["explain", path], ["export", path, "-o", os.fsdecode(b"tiny\xff.py")]):
        assert mirage(*args).code == 0


BAD_COMMAND_LINES = {
    "unknown command": (["serch"], "No such command 'serch'"),
    "unknown option": (["search", "tiny.yaml", "--fast"], "No such option: --fast"),
    "no spec": (["search"], "Missing argument"),
    "no number": (["search", "tiny.yaml", "--workers", "x"], "Invalid value for '--workers'"),
    "no workers": (["search", "tiny.yaml", "--workers", "0"], "Invalid value for '--workers'"),
    "too many workers": (["search", "tiny.yaml", "--workers", "9" * 9], "Invalid value for '--workers'"),
    "a budget that is no number": (["search", "tiny.yaml", "--budget", "nan"], "Invalid value for '--budget'"),
    "a budget without end": (["search", "tiny.yaml", "--budget", "inf"], "Invalid value for '--budget'"),
    "too many sizes": (
        ["search", "tiny.yaml", *(x for d in "mkn" for x in ("--dim", f"{d}=" + ",".join(map(str, range(1, 8)))))],
        "--dim gives 343 combinations of sizes; at most 256 are taken",
    ),
    "no shard": (["search", "tiny.yaml", "--shard", "5/4"], "--shard takes I/N, such as 1/4, not '5/4'"),
    "no age": (["cache", "list", "--older-than", "3y"], "--older-than takes an age such as 12h, 30d or 8w, not '3y'"),
    "a version of nothing": (
        ["cache", "list", "--version", "cuda=12"],
        "--version is of mirage, torch, triton, driver",
    ),
    "nothing to prune by": (["cache", "prune"], "name at least one filter"),
    "a null byte": (["search", "a\0b"], "embedded null byte"),
    "no file": (["verify", "tiny.yaml"], "name a spec and what is to be judged, or --all"),
    "no seed": (["search", "tiny.yaml", "--seed", "-5"], "Invalid value for '--seed'"),
    "a seed too large": (["search", "tiny.yaml", "--seed", "9" * 20], "Invalid value for '--seed'"),
    "no size": (
        ["search", "tiny.yaml", "--dim", "m=0"],
        "NAME=SIZE, or NAME=SIZE,SIZE, with positive sizes, not 'm=0'",
    ),
    "no digit": (
        ["search", "tiny.yaml", "--dim", "m=²"],
        "NAME=SIZE, or NAME=SIZE,SIZE, with positive sizes, not 'm=²'",
    ),
    "no dimension": (
        ["search", "tiny.yaml", "--dim", "foo"],
        "NAME=SIZE, or NAME=SIZE,SIZE, with positive sizes, not 'foo'",
    ),
    "a size of many digits": (
        ["search", "tiny.yaml", "--dim", "m=" + "9" * 5000],
        "NAME=SIZE, or NAME=SIZE,SIZE, with positive sizes",
    ),
}


@pytest.mark.parametrize("what", BAD_COMMAND_LINES)
def test_a_wrong_command_line_is_exit_code_2_with_the_usage(what: str, mirage: Mirage) -> None:
    args, message = BAD_COMMAND_LINES[what]
    run = mirage(*args)
    assert run.code == 2 and run.out == ""
    assert run.err.startswith("Usage: mirage") and message in run.err


def test_a_database_that_cannot_be_used_is_a_message_with_a_remedy(mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(b"not a database " * 400)
    with sqlite3.connect(tmp_path / "foreign.db") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    expected = {
        "other.db": "is damaged",
        "foreign.db": "belongs to another program",
        ".": "cannot be used",
        "tiny.yaml/mirage.db": "cannot be made",
    }
    before = (tmp_path / "other.db").read_bytes()
    for path, problem in expected.items():
        run = mirage("search", "tiny.yaml", "--no-tune", "--db", path)
        assert run.code == 1 and run.out == ""
        assert f"the database {path} {problem}" in run.err and "--db or MIRAGE_DB" in run.err
    assert (tmp_path / "other.db").read_bytes() == before


def test_a_knob_that_cannot_be_read_is_a_message(mirage: Mirage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_WORKERS", "many")
    run = mirage("search", "tiny.yaml", "--no-tune")
    assert run.code == 1 and "MIRAGE_WORKERS is 'many'; expected a number of processes" in run.err


def test_a_gpu_to_measure_on_is_the_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = gpus.find_target("h200")
    monkeypatch.setattr(gpus, "driver_version", lambda: "570.86")
    monkeypatch.setattr(gpus, "local_target", lambda: h200)
    assert local_gpu("auto", "measure") is local_gpu("H200", "measure") is h200
    with pytest.raises(OtherGpuError, match="the GPU of this machine is h200, not h100"):
        local_gpu("sm_90", "measure")


# -- what was found


def test_an_exported_kernel_imports_torch_and_triton_alone_and_is_right(found: Mirage, tmp_path: Path) -> None:
    run = found("export", "tiny.yaml", "--triton", "-o", "made/k[a].py")
    assert run.code == 0 and run.out == "made/k[a].py\n" and run.err == ""
    path = tmp_path / "made" / "k[a].py"
    text = path.read_text(encoding="utf-8")
    assert text == found("export", "tiny.yaml").out
    imported = {line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))}
    elsewhere = {name for name in imported if name.split(".")[0] not in {*sys.stdlib_module_names, "__future__"}}
    assert elsewhere == {"torch", "triton", "triton.language"}
    torch.manual_seed(0)
    x, w = torch.randn(4, 32, dtype=torch.float16), torch.randn(32, 16, dtype=torch.float16) / 8
    expected = torch.nn.functional.silu(x.double() @ w.double())
    torch.testing.assert_close(load_export(path).tiny(x, w).double(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # NumPy's word where float64 becomes float32
@pytest.mark.parametrize(
    ("expression", "computed"),
    [
        ("(X * 1.0000001) ** 700", lambda x: (x * 1.0000001) ** 700),
        ("X ** (1/3) * 3e38 * 1e300", lambda x: x * math.inf),
    ],
)
def test_numbers_beyond_a_type_give_the_right_kernel(
    expression: str, computed: Callable[[torch.Tensor], torch.Tensor], mirage: Mirage, tmp_path: Path
) -> None:
    text = ONE_OPERATOR.replace("X + 1", expression).replace("dims:", "dtype: float32\ndims:")
    (tmp_path / "numbers.yaml").write_text(text, encoding="utf-8")
    assert mirage("search", "numbers.yaml", "--no-tune", "--dim", "m=16").code in (0, 3)
    assert mirage("export", "numbers.yaml", "-o", "numbers.py").code == 0
    assert mirage("verify", "numbers.yaml", "numbers.py").code == 0
    x = torch.linspace(0.9, 1.1, 16)
    made = load_export(tmp_path / "numbers.py").increment(x)
    torch.testing.assert_close(made.double(), computed(x.double()), rtol=1e-3, atol=0)


def test_a_named_kernel_is_exported(found: Mirage) -> None:
    ids = [b["id"] for b in found(*STORED).document["results"][0]["top"]]
    for id in ids:
        run = found("export", "tiny.yaml", "--id", id)
        assert run.code == 0 and f"μGraph    {id}" in run.out


DYNAMIC = """
name: increment
dims: {m: {min: 1, max: 40, tune: [4, 16]}, h: 2, d: 4, k: h*d}
inputs: {X: [m, k]}
program: O = X + 1
outputs: {O: [m, k]}
"""


def test_all_sizes_are_exported_behind_one_function(mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "dynamic.yaml").write_text(DYNAMIC, encoding="utf-8")
    assert mirage("search", "dynamic.yaml", "--no-tune", "--dim", "m=16").code in (0, 3)
    run = mirage("export", "dynamic.yaml", "--all", "-o", "one.py")
    assert run.code == 0
    assert "nothing is stored for h100 at m=4, which the kernels of other sizes serve" in run.err
    assert mirage("search", "dynamic.yaml", "--no-tune").code in (0, 3)
    run = mirage("export", "dynamic.yaml", "--all", "-o", "all.py")
    assert (run.code, "nothing is stored" in run.err) == (0, False)
    for name, most in (("one.py", 1), ("all.py", 2)):
        made = load_export(tmp_path / name)
        assert len(made._LAUNCHES) == most
        for m in (1, 4, 5, 16, 17, 40):
            x = torch.randn(m, 8, dtype=torch.float16)
            torch.testing.assert_close(made.increment(x), x + 1)
        with pytest.raises(ValueError, match="m should be 1 to 40, not 41"):
            made.increment(torch.zeros(41, 8, dtype=torch.float16))
        assert mirage("verify", "dynamic.yaml", name).code == 0
    assert mirage("export", "dynamic.yaml", "--all", "--id", "0123").code == 2
    run = mirage("search", "dynamic.yaml", "--dim", "m=41")
    assert (run.code, "dynamic.yaml at m=41: the size of m is 1 to 40" in run.err) == (1, True)


@pytest.mark.parametrize("wrong", ["4", "X.shape[0] - 1"])
def test_a_file_that_is_wrong_at_some_sizes_is_refused(wrong: str, mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "dynamic.yaml").write_text(DYNAMIC, encoding="utf-8")
    assert mirage("search", "dynamic.yaml", "--no-tune").code in (0, 3)
    source = mirage("export", "dynamic.yaml", "--all").out
    right = "\n    SIZE_m = X.shape[0]\n"
    assert source.count(right) == 2
    (tmp_path / "wrong.py").write_text(source.replace(right, f"\n    SIZE_m = {wrong}\n"), encoding="utf-8")
    assert mirage("verify", "dynamic.yaml", "wrong.py").code == 1


def test_the_instances_of_a_spec_are_exported_behind_one_function(mirage: Mirage, tmp_path: Path) -> None:
    text = DYNAMIC.replace("{min: 1, max: 40, tune: [4, 16]}", "4").replace(
        "inputs", "instances: [{}, {m: 9, d: 3}]\ninputs"
    )
    (tmp_path / "some.yaml").write_text(text, encoding="utf-8")
    assert mirage("search", "some.yaml", "--no-tune").code in (0, 3)
    assert mirage("export", "some.yaml", "--all", "-o", "all.py").code == 0
    made = load_export(tmp_path / "all.py")
    for shape in ((4, 8), (9, 6)):
        x = torch.randn(shape, dtype=torch.float16)
        torch.testing.assert_close(made.increment(x), x + 1)
    with pytest.raises(ValueError, match=r"^there are kernels for m=4, k=8; m=9, k=6, not for m=4, k=6$"):
        made.increment(torch.zeros(4, 6, dtype=torch.float16))
    assert mirage("verify", "some.yaml", "all.py").code == 0


def test_all_that_is_stored_is_found_without_its_specs(found: Mirage, tmp_path: Path) -> None:
    assert found("search", "tiny.yaml", "--no-tune", "--dim", "m=8", "--dtype", "bfloat16").code == 0
    for name in ("tiny.yaml", "increment.yaml"):
        (tmp_path / name).unlink()
    with Database(tmp_path / "mirage.db") as store:
        every = stored_programs(store, [{}], None)
        assert [(p.name, p.sizes["m"], p.dtype, text) for p, text in every] == [
            ("tiny", 4, "float16", TINY),
            ("tiny", 8, "bfloat16", TINY),
        ]
        assert stored_programs(store, [{"m": 8}], None) == stored_programs(store, [{}], "bfloat16") == every[1:]
        with pytest.raises(EmptyStoreError, match="run `mirage search` first"):
            stored_programs(store, [{"m": 8}], "float32")


def test_a_file_that_cannot_be_written_is_a_message(searched: tuple[Path, Run]) -> None:
    folder = searched[0]
    run = spawn(folder, "export", "tiny.yaml", "-o", str(folder))
    assert run.code == 1 and run.err == f"error: {folder}: Is a directory\n"
    run = spawn(folder, "export", "tiny.yaml", "-o", "tiny.yaml/k.py")
    assert run.code == 1 and run.err.startswith("error: tiny.yaml: ")
    assert (folder / "tiny.yaml").read_text(encoding="utf-8") == TINY
    os.mkfifo(folder / "unread")
    for args in (["export", "tiny.yaml", "-o", "unread"], ["cache", "export", "unread"]):
        run = spawn(folder, *args)
        assert run.code == 1 and run.err == "error: unread: nobody reads this FIFO\n"


def test_the_best_mugraph_is_shown_as_text_and_as_json(found: Mirage) -> None:
    best = found(*STORED).document["results"][0]["best"]
    text, document = found("show", "tiny.yaml"), found("show", "tiny.yaml", "--json")
    assert text.code == document.code == 0
    assert text.out.startswith("mugraph tiny float16\ndims m=4 k=32 n=16\n") and "dot(X, W; k)" in text.out
    assert document.results[0]["id"] == best["id"] and document.results[0]["verification"]["ok"] is True
    assert document.results[0]["predicted_us"] == pytest.approx(best["predicted_us"], abs=1e-3)
    assert found("show", best["id"]).out == found("show", best["id"][:6]).out == text.out


def test_the_best_mugraph_is_shown_as_a_picture_and_as_a_page(found: Mirage) -> None:
    picture, page = found("show", "tiny.yaml", "--svg"), found("show", "tiny.yaml", "--html")
    assert picture.code == page.code == 0 and picture.err == page.err == ""
    assert picture.out.startswith("<svg ") and "dot(X, W; k)" in picture.out
    assert page.out.startswith("<!DOCTYPE html>") and page.out.count('class="mugraph"') == 1
    assert escape(TINY) in page.out and "mugraph tiny float16\n" in page.out
    both = found("show", "tiny.yaml", "--svg", "--json")
    assert both.code == 2 and both.out == "" and "--svg, --html and --json are forms of the same" in both.err


def test_what_was_found_for_another_gpu_is_named_by_its_target(found: Mirage) -> None:
    assert found("search", "tiny.yaml", "--no-tune", "--target", "a100").code == 0
    assert "\nGPU       a100\n" in found("export", "tiny.yaml", "--target", "a100").out
    assert "\nGPU       h100\n" in found("export", "tiny.yaml", "--target", "sm_90").out
    for command in ("export", "show", "explain"):
        run = found(command, "tiny.yaml", "--target", "l40s")
        assert run.code == 1 and "nothing is stored for tiny" in run.err


def test_of_several_gpus_and_sizes_it_is_said_which_one_was_taken(found: Mirage, tmp_path: Path) -> None:
    assert found("search", "tiny.yaml", "--no-tune", "--target", "a100").code == 0
    run = found("export", "tiny.yaml")
    assert "\nGPU       h100\n" in run.out
    assert run.err == "tiny: taking the kernel for h100; also stored: a100 (choose with --target)\n"
    run = found("export", "tiny.yaml", "--db", "other.db")
    assert run.code == 1
    assert found("search", "tiny.yaml", "--no-tune", "--target", "a100", "--db", "other.db").code == 0
    run = found("explain", "tiny.yaml", "--db", "other.db")
    assert run.code == 0 and run.err == "tiny: taking the kernel for a100 (--target names another)\n"
    found("search", "increment.yaml", "--no-tune")
    run = found("show", "increment.yaml")
    assert "dims m=16" in run.out and run.err == "increment: taking m=16; also stored: m=32 (choose with --dim)\n"
    assert found("show", "increment.yaml", "--dim", "m=32").err == ""


def test_a_named_kernel_is_taken_for_the_gpu_that_is_asked_for_or_said(found: Mirage) -> None:
    assert found("search", "tiny.yaml", "--no-tune", "--target", "a100").code == 0
    with Database(Path(os.environ["MIRAGE_DB"])) as store:
        ((id, count_of_keys),) = Counter(g.id for e in store.list() for g in store.mugraphs(e.key)).most_common(1)
    assert count_of_keys == 2
    for gpu in ("h100", "a100"):
        run = found("export", "tiny.yaml", "--id", id, "--target", gpu)
        assert run.code == 0 and f"\nGPU       {gpu}" in run.out and run.err == ""
        assert found("show", id, "--target", gpu).err == ""
    run = found("export", "tiny.yaml", "--id", id)
    assert "\nGPU       h100" in run.out
    assert (
        run.err
        == found("show", id).err
        == "tiny: taking the kernel for h100; also stored: a100 (choose with --target)\n"
    )
    for args in (["export", "tiny.yaml", "--id", id], ["show", id]):
        run = found(*args, "--target", "l40s")
        assert run.code == 1 and run.err == f"error: nothing is stored under {id} for l40s, but for a100, h100\n"


def test_nothing_that_is_printed_speaks_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_text("a file's\x1b]0;title\x07\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_text("a terminal's\x1b]0;title\x07\n")
    assert capsys.readouterr().out == "a file's\x1b]0;title\x07\na terminal's␛]0;title␇\n"


def test_this_machines_gpu_comes_before_another_that_was_measured(
    found: Mirage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found("search", "tiny.yaml", "--no-tune", "--target", "a100").code == 0
    monkeypatch.setattr(gpus, "driver_version", lambda: "570.86")
    monkeypatch.setattr(gpus, "local_target", lambda: gpus.find_target("a100"))
    assert "\nGPU       a100\n" in found("export", "tiny.yaml").out
    for command in ("export", "show", "explain"):
        run = found(command, "tiny.yaml")
        assert (
            run.code == 0 and run.err == "tiny: taking the kernel for a100; also stored: h100 (choose with --target)\n"
        )


def test_what_was_not_checked_or_is_for_another_gpu_is_marked(found: Mirage) -> None:
    run = found("search", "tiny.yaml", "--no-tune", "--fresh", "--dim", "m=8")
    assert "predicted for h100 (no GPU here)" in run.out and "unchecked" in run.out
    assert "\nnumbers   never compared with float64" in found("export", "tiny.yaml", "--dim", "m=8").out
    assert "\nnumbers " not in found("export", "tiny.yaml").out
    checked = found(*STORED).document["results"][0]["best"]["numerically_checked"]
    unchecked = found("search", "tiny.yaml", "--no-tune", "--dim", "m=8", "--json").document["results"][0]["best"]
    assert checked is True and unchecked["numerically_checked"] is False


def test_what_was_searched_and_chosen_is_explained(found: Mirage) -> None:
    r = found(*STORED).document["results"][0]
    run = found("explain", "tiny.yaml")
    assert run.code == 0 and run.err == ""
    assert run.out.startswith("tiny (m=4 k=32 n=16, float16)\n")
    for reason in r["search"]["pruned"]:
        assert reason in run.out
    assert r["best"]["id"] in run.out and f"{r['best']['predicted_us']:.2f} µs, predicted" in run.out
    assert "exhausted" in run.out and "floor" in run.out
    assert r["best"]["claim"].startswith("proved: ") and r["best"]["claim"] in run.out


def test_the_terms_of_the_chosen_kernel_s_predicted_time_add_up_to_it(found: Mirage) -> None:
    best = found(*STORED).document["results"][0]["best"]
    text = found("explain", "tiny.yaml").out
    totals = {name: float(us) for name, us in re.findall(r"^(\w+) by the cost model: ([\d.]+) µs$", text, re.MULTILINE)}
    assert sum(totals.values()) == pytest.approx(best["predicted_us"], abs=0.01) and len(totals) == best["kernels"]
    for name, total in totals.items():
        table = text.partition(f"{name} by the cost model")[2].partition("by the cost model")[0]
        terms = {term: float(us) for term, us in re.findall(r"^  ([\w: ]+?)  +(-?[\d.]+) µs", table, re.MULTILINE)}
        work = {term.removeprefix("work: "): us for term, us in terms.items() if term.startswith("work: ")}
        assert sum(us for term, us in terms.items() if not term.startswith("work: ")) == pytest.approx(total, abs=0.03)
        assert max(work.values()) <= terms["work"] + 0.01 and {"latency"} <= work.keys() <= {*LIMITS}


# -- verify

TWICE = """
name: twice
dims: {m: 32, k: 128}
inputs: {X: [m, k], W: [m, k]}
program: |
  A = sum(X, k)
  B = sum(W, k)
outputs: {A: [m], B: [m]}
"""
TWICE_SPLIT = "mugraph twice float16\ndims m=32 k=128\ninput X f16[m, k]\ninput W f16[m, k]\n"
TWICE_SPLIT += "output A f16[m]\noutput B f16[m]\nbuffer P f32[k_split, m]\nbuffer Q f32[k_split, m]\n"
for part in (
    "generated m:grid k:split|X = load X[m, k]|Y[m] = sum(X; k)|store P[k_split, m] = Y",
    "generated m:grid k_split:loop|P = load P[k_split, m]|Y[m] = sum(P; k_split)|store A[m] = Y",
    "generated m:grid k:split|W = load W[m, k]|Y[m] = sum(W; k)|store Q[k_split, m] = Y",
    "generated m:grid k_split:loop|Q = load Q[k_split, m]|Y[m] = sum(Q; k_split)|store B[m] = Y",
):
    TWICE_SPLIT += f"kernel k{TWICE_SPLIT.count('kernel ')} " + part.replace("|", "\n  ") + "\n"


def test_a_right_mugraph_is_accepted_with_the_bound_of_its_test(mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "right.txt").write_text(MUGRAPH, encoding="utf-8")
    run = mirage("verify", "tiny.yaml", "right.txt")
    first, *rest = run.out.splitlines()
    (answer,) = mirage("verify", "tiny.yaml", "right.txt", "--json").results
    assert run.code == 0 and first == answer["claim"]
    assert first.startswith("proved: equal canonical forms; tiles, maps and stores tested, false accept below 2^-")
    assert [line.split(":")[0].strip() for line in rest] == ["test 1", "test 2", *2 * ["outside the theorem"]]
    assert "seed 0, sizes m=" in rest[0] and "k0 in tiles of m=" in rest[0]
    assert "silu (opaque functions are known as functions alone)" in rest[2] and "rounding in float16" in rest[3]
    assert (
        answer["ok"] is True and answer["proved"] is True and answer["net"] == "field" and 0 < answer["bound"] < 1e-30
    )


def test_without_a_proof_a_mugraph_is_tested_and_no_more_is_said(mirage: Mirage, tmp_path: Path) -> None:
    """Both outputs split the same axis, each with chunks of its own, which canonical forms do not tell apart."""
    (tmp_path / "twice.yaml").write_text(TWICE, encoding="utf-8")
    (tmp_path / "twice.txt").write_text(TWICE_SPLIT, encoding="utf-8")
    run = mirage("verify", "twice.yaml", "twice.txt")
    assert run.code == 0 and run.out.startswith("tested, false accept below 2^-") and "proved" not in run.out


def test_a_wrong_mugraph_is_refused_with_a_counterexample(mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "wrong.txt").write_text(MUGRAPH.replace("silu", "sigmoid"), encoding="utf-8")
    run = mirage("verify", "tiny.yaml", "wrong.txt")
    assert run.code == 1 and run.out.startswith("refused by field: computes another O") and "seed 0" in run.out
    (answer,) = mirage("verify", "tiny.yaml", "wrong.txt", "--json").results
    assert answer["ok"] is False and "O[m=" in answer["counterexample"]


def test_a_mugraph_that_cannot_be_read_is_told_with_file_and_line(mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "broken.txt").write_text(MUGRAPH.replace("dot(X, W; k)", "dot(X, X; k)"), encoding="utf-8")
    run = mirage("verify", "tiny.yaml", "broken.txt")
    assert run.code == 1 and run.out == ""
    assert run.err.startswith("error: broken.txt: line 9: ") and "t0[m, n] = dot(X, X; k)" in run.err


def test_an_exported_kernel_is_judged_in_the_interpreter(found: Mirage, tmp_path: Path) -> None:
    source = found("export", "tiny.yaml").out
    (tmp_path / "right.py").write_text(source, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(source.replace("tl.sigmoid(", "0.5 * tl.sigmoid("), encoding="utf-8")
    right = found("verify", "tiny.yaml", "right.py", "--json")
    assert right.code == 0 and right.results[0]["ok"] is True and 0 < right.results[0]["error"] < 0.01
    assert source != (tmp_path / "wrong.py").read_text(encoding="utf-8")
    wrong = found("verify", "tiny.yaml", "wrong.py")
    assert right.results[0]["claim"].startswith("compared in floating point")
    assert wrong.code == 1 and wrong.err == "" and wrong.out.strip() and not wrong.out.startswith("compared")


UNSAFE = """
name: unsafe
dims: {m: 16, k: 64}
inputs:
  X: [m, k]
program: |
  E = exp(X)
  O = E / sum(E, k)
outputs:
  O: [m, k]
"""
UNSAFE_KERNEL = """
def make_scratch(device):
    return []

def launch(inputs, outputs, scratch):
    E = inputs[0].exp()
    outputs[0].copy_(E / E.sum(-1, keepdim=True))
"""


def test_what_overflows_where_eager_does_passes_and_is_said(mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "unsafe.yaml").write_text(UNSAFE, encoding="utf-8")
    (tmp_path / "alike.py").write_text(UNSAFE_KERNEL, encoding="utf-8")
    (tmp_path / "worse.py").write_text(UNSAFE_KERNEL.replace(".exp()", ".mul(2).exp().sqrt()"), encoding="utf-8")
    run = mirage("verify", "unsafe.yaml", "alike.py")
    assert run.code == 0 and re.search(r"; \d+ places overflow, as in eager PyTorch$", run.out.strip())
    assert mirage("verify", "unsafe.yaml", "worse.py").code == 1


def test_a_stored_mugraph_is_judged_by_its_id(found: Mirage) -> None:
    best = found(*STORED).document["results"][0]["best"]["id"]
    assert found("verify", "tiny.yaml", best[:8]).out.startswith("proved: equal canonical forms; ")
    assert found("verify", "tiny.yaml", best, "--db", "other.db").code == 1


def test_a_kernel_is_compiled_for_the_gpu_that_is_named(found: Mirage, tmp_path: Path) -> None:
    source = found("export", "tiny.yaml").out
    (tmp_path / "right.py").write_text(source, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(source.replace("tl.sigmoid(", "tl.sigmund("), encoding="utf-8")
    assert found("verify", "tiny.yaml", "right.py", "--target", "h100").code == 0
    wrong = found("verify", "tiny.yaml", "wrong.py", "--target", "sm_90", "--json")
    assert wrong.code == 1 and wrong.results[0]["ok"] is False and wrong.results[0]["net"] == "compilation"
    assert (
        "does not compile for h100 (sm_90): " in wrong.results[0]["detail"] and "sigmund" in wrong.results[0]["detail"]
    )


NO_KERNELS = {
    "a script": ("print(1)\n", "this Python file defines no `launch` and no `make_scratch`"),
    "half a kernel": ("def launch(inputs, outputs, scratch): ...\n", "defines no `make_scratch`"),
    "no Python": ("kernel k0\n", "line 1: neither a μGraph nor Python: invalid syntax"),
    "a zero byte": ("x = 1\0", "line 1: neither a μGraph nor Python"),
}


@pytest.mark.parametrize("what", NO_KERNELS)
def test_a_file_that_is_no_kernel_is_a_message(what: str, mirage: Mirage, tmp_path: Path) -> None:
    text, message = NO_KERNELS[what]
    (tmp_path / "file.py").write_text(text, encoding="utf-8")
    run = mirage("verify", "tiny.yaml", "file.py")
    assert run.code == 1 and run.out == "" and run.err.startswith("error: file.py: ") and message in run.err
    assert "`launch(inputs, outputs, scratch)`" in run.err


def test_a_kernel_of_other_tensors_is_a_message(found: Mirage, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(found("export", "tiny.yaml").out, encoding="utf-8")
    made_for = "this kernel is made for float16[4, 32], float16[32, 16] -> float16[4, 16]\n"
    for args, wanted in {
        ("increment.yaml",): "and the spec asks for float16[16] -> float16[16] or float16[32] -> float16[32]",
        ("tiny.yaml", "--dim", "m=5"): "asks for float16[5, 32], float16[32, 16] -> float16[5, 16]",
        ("tiny.yaml", "--dtype", "bfloat16"): "asks for bfloat16[4, 32], ",
    }.items():
        run = found("verify", args[0], "kernel.py", *args[1:])
        assert run.code == 1 and run.out == "" and made_for in run.err and wanted in run.err


def test_a_kernel_that_returns_nothing_is_judged_by_what_it_changes(mirage: Mirage, tmp_path: Path) -> None:
    (tmp_path / "decay.yaml").write_text(
        "name: decay\ndims: {n: 40}\ninputs: {S: [n], G: [n]}\nprogram: S[n] = S * 0.5 + G\noutputs: {S: {inout: S}}\n",
        encoding="utf-8",
    )
    assert mirage("search", "decay.yaml", "--no-tune", "--target", "h200").code in (0, 3)
    (tmp_path / "kernel.py").write_text(mirage("export", "decay.yaml").out, encoding="utf-8")
    assert mirage("verify", "decay.yaml", "kernel.py").code == 0
    run = mirage("verify", "decay.yaml", "kernel.py", "--dim", "n=41")
    assert run.code == 1 and "made for float16[40], float16[40] -> nothing\n" in run.err


def test_a_kernel_is_judged_at_the_size_that_it_is_made_for(found: Mirage, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(found("export", "tiny.yaml").out, encoding="utf-8")
    (tmp_path / "sizes.yaml").write_text(TINY + "instances: [{m: 8}, {m: 4}]\n", encoding="utf-8")
    assert found("verify", "sizes.yaml", "kernel.py").code == 0


# -- the database and the machine


def test_the_cache_is_listed_shown_and_emptied(found: Mirage) -> None:
    assert found("search", "tiny.yaml", "--no-tune", "--dim", "m=8").code == 0
    rows = found("cache", "list", "--json").results
    assert [(r["spec"], r["dims"]["m"], r["gpu"], r["status"]) for r in rows] == [
        ("tiny", 4, "h100 (predicted)", "predicted"),
        ("tiny", 8, "h100 (predicted)", "predicted"),
    ]
    table = found("cache", "list").out
    shown = found("cache", "show", rows[0]["best"]).out
    assert all(r["best"] in table for r in rows)
    assert shown.startswith("tiny on h100 (predicted)\n") and "dims m=4 k=32 n=16" in shown
    removed = found("cache", "remove", rows[0]["id"])
    assert removed.code == 0 and removed.out == "removed 1\n"
    assert found("cache", "list", "--json").results == rows[1:]
    assert found("show", "tiny.yaml").code == 1
    assert found("show", "tiny.yaml", "--dim", "m=8").out.startswith("mugraph tiny float16\ndims m=8 ")


def test_the_cache_is_taken_elsewhere_and_merged(found: Mirage, tmp_path: Path) -> None:
    (row,) = found("cache", "list", "--json").results
    assert found("cache", "export", "all.jsonl").out == "all.jsonl: 1 key\n"
    assert found("cache", "export", "one.jsonl", row["best"][:8]).out == "one.jsonl: 1 key\n"
    taken = found("cache", "import", "all.jsonl", "--db", "new.db")
    assert taken.code == 0 and taken.out.endswith(" 1 better results\n")
    again = found("cache", "import", "all.jsonl", "--db", "new.db")
    assert again.out == "all.jsonl: 0 μGraphs, 0 measurements, 0 better results\n"
    assert found("export", "tiny.yaml", "--db", "new.db").out == found("export", "tiny.yaml").out
    assert found("search", "tiny.yaml", "--no-tune", "--dim", "m=8", "--db", "new.db").code == 0
    assert found("cache", "merge", "new.db").code == 0
    assert len(found("cache", "list", "--json").results) == 2
    (tmp_path / "bad.jsonl").write_text("{}\n", encoding="utf-8")
    run = found("cache", "import", "bad.jsonl", "--db", "untouched.db")
    assert run.code == 1 and run.err == "error: bad.jsonl:1: this is no file of `mirage cache export`\n"
    assert not (tmp_path / "untouched.db").exists()


@pytest.mark.parametrize("text", ["{", "null ]", "[1]", "3"])
def test_a_damaged_result_is_named_and_the_others_stay(found: Mirage, tmp_path: Path, text: str) -> None:
    assert found("search", "tiny.yaml", "--no-tune", "--dim", "m=8").code == 0
    damaged = found("cache", "list", "--json").results[0]["id"]
    with sqlite3.connect(tmp_path / "mirage.db") as connection:
        connection.execute("UPDATE results SET document = ? WHERE key = ?", (text, damaged))
    connection.close()
    warning = f"warning: the result of {damaged} is damaged and left out: "
    listed = found("cache", "list", "--json")
    assert listed.code == 0 and [r["best"] is None for r in listed.results] == [True, False]
    assert listed.err.startswith(warning) and f"`mirage cache remove {damaged}`" in listed.err
    assert found("export", "tiny.yaml", "--dim", "m=8").code == 0
    for command in ("export", "show", "explain"):
        run = found(command, "tiny.yaml")
        assert run.code == 1 and warning in run.err and "nothing is stored for tiny" in run.err
    assert found("search", "tiny.yaml", "--no-tune").code == 0
    assert found("export", "tiny.yaml").err == ""


def test_a_document_of_other_keys_is_a_message(found: Mirage, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "mirage.db") as connection:
        connection.execute("UPDATE results SET document = '{}'")
    connection.close()
    run = found("explain", "tiny.yaml")
    assert run.code == 1 and "is damaged and left out: its document.spec is missing" in run.err
    assert "`mirage cache remove " in run.err


DAMAGE = {
    "a document without its best": ("results", "document", "json_remove(document, '$.best')"),
    "an error that is text": ("results", "document", "json_set(document, '$.best.error_vs_float64', 'x')"),
    "counts that are a list": ("results", "document", "json_set(document, '$.search.pruned', json('[]'))"),
    "a lost plan without its problem": ("results", "document", "json_set(document, '$.lost', json('[{}]'))"),
    "a status that is none": ("results", "status", "'lost'"),
    "a time that is text": ("results", "time_us", "'x'"),
    "a schedule of numbers": ("schedules", "json", "'3'"),
    "a schedule of an unknown choice": ("schedules", "json", """'{"k0": {"tiles": [], "order": [], "magic": 1}}'"""),
    "a schedule of another μGraph": ("schedules", "json", "'{}'"),
    "a deep schedule": ("schedules", "json", f"'{'[' * 5000}'"),
    "a kernel of bytes": ("kernels", "source", "x'ff'"),
    "a kernel that speaks to the terminal": ("kernels", "source", "source || char(27) || ']0;title' || char(7)"),
    "a μGraph that speaks to the terminal": ("mugraphs", "text", "text || char(155) || '31m'"),
    "a μGraph of one word": ("mugraphs", "text", "'mugraph'"),
    "a verdict that is a number": ("mugraphs", "verification", "'3'"),
    "a verdict without its bound": ("mugraphs", "verification", "json_remove(verification, '$.bound')"),
    "no verdict": ("mugraphs", "verification", "'null'"),
    "a predicted time of bytes": ("mugraphs", "predicted_us", "x'00'"),
    "sizes that are none": ("keys", "dims", '\'[["m", "x"]]\''),
    "a name of bytes": ("specs", "name", "x'ff'"),
    "samples that are text": ("measurements", "samples_us", """'["x"]'"""),
    "a median that is text": ("measurements", "median_us", "'x'"),
    "a median that is missing": ("measurements", "median_us", "NULL"),
}
"""Table, column, and what is written there."""


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_a_message_or_left_out_by_every_command(what: str, found: Mirage, tmp_path: Path) -> None:
    table, column, value = DAMAGE[what]
    (row,) = found("cache", "list", "--json").results
    with Database(tmp_path / "mirage.db") as store:
        (key,) = (e.key for e in store.list())
        timed = Measurement(row["best"], store.list()[0].best.schedule, (1.0, 2.0), 1.5, 0.5, method="graph")
        store.put_measurement(key, timed)
    with sqlite3.connect(tmp_path / "mirage.db") as connection:
        assert connection.execute(f"UPDATE {table} SET {column} = {value}").rowcount > 0
    connection.close()
    commands = [
        *(["cache", "list"], ["cache", "show", row["best"]], ["show", row["best"]], ["show", "tiny.yaml"]),
        *(["explain", "tiny.yaml"], ["export", "tiny.yaml", "--id", row["best"]], ["export", "tiny.yaml"]),
        *(["cache", "export", "all.jsonl"], ["cache", "merge", "mirage.db", "--db", "merged.db"]),
        *(["cache", "import", "all.jsonl", "--db", "imported.db"], ["explain", "tiny.yaml", "--db", "imported.db"]),
    ]
    for args in commands:
        run = found(*args)
        assert run.code in (0, 1) and not {"\x1b", "\x07", "\x9b"} & set(run.out + run.err), (args, run)
        assert run.code == 0 or "error: " in run.err, (args, run)
        assert (run.code == 1) <= (run.out == ""), (args, run)


@pytest.mark.parametrize("table", COLUMNS)
def test_a_null_in_a_file_is_refused_with_its_place_or_harmless(table: str, found: Mirage, tmp_path: Path) -> None:
    assert found("cache", "export", "all.jsonl").code == 0
    header, bundle = (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()
    id = json.loads(bundle)["results"][0]["mugraph"]
    refused = 0
    for column in COLUMNS[table]:
        changed = json.loads(bundle)
        for row in changed[table]:
            row[column] = None
        (tmp_path / "null.jsonl").write_text(f"{header}\n{json.dumps(changed)}\n", encoding="utf-8")
        database = f"{table}_{column}.db"
        taken = found("cache", "import", "null.jsonl", "--db", database)
        if taken.code:
            assert taken.code == 1 and f"null.jsonl:2: {table}: " in taken.err, taken.err
            refused += 1
        for args in (["cache", "list"], ["show", id], ["explain", "tiny.yaml"], ["export", "tiny.yaml"]):
            run = found(*args, "--db", database)
            assert run.code == 0 or (run.code == 1 and run.err.startswith("error: ")), (column, args, run)
    assert refused or not json.loads(bundle)[table]


def test_escape_sequences_of_a_name_are_printed_harmless(found: Mirage, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "mirage.db") as connection:
        connection.execute("UPDATE specs SET name = ?", ("\x1b]0;title\x07\x9b31mred",))
    connection.close()
    run = found("cache", "list")
    assert run.code == 0 and "␛]0" in run.out and not {"\x1b", "\x07", "\x9b"} & set(run.out)


def test_an_empty_cache_is_an_empty_list(mirage: Mirage) -> None:
    assert mirage("cache", "list", "--json").results == []


def test_the_doctor_names_what_is_there_and_what_is_missing(mirage: Mirage, tmp_path: Path) -> None:
    run = mirage("doctor", "--json")
    assert run.code == 0 and run.err == ""
    checks = {c["name"]: c for c in run.results}
    assert {"python", "torch", "triton", "GPU", "ptxas", "database"} <= set(checks)
    assert all(c["ok"] for c in checks.values() if c["required"])
    table = mirage("doctor").out
    assert all(name in table for name in checks)
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"x" * 5000)
    assert mirage("doctor", "--db", damaged).code == 1


# -- help and imports


def test_every_command_has_help(mirage: Mirage) -> None:
    whole = mirage("--help")
    assert whole.code == 0 and whole.err == "" and "Commands:" in whole.out
    registered = [c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands]
    assert {*registered, *(g.name for g in app.registered_groups)} == set(COMMANDS)
    for args in [*([c] for c in COMMANDS), *(["cache", c] for c in CACHE_COMMANDS)]:
        run = mirage(*args, "--help")
        assert run.code == 0 and run.err == ""
        assert run.out.startswith(f"Usage: mirage {' '.join(args)} ") and "--help" in run.out
    assert all(f"  {name} " in whole.out for name in COMMANDS)


@pytest.mark.parametrize("command", ["search", "tune", "bench", "export", "show", "explain", "verify"])
def test_every_command_that_takes_a_spec_takes_sizes_type_target_and_database(command: str, mirage: Mirage) -> None:
    text = mirage(command, "--help").out
    assert "SPEC" in text and all(f" {option} " in text for option in ("--dim", "--dtype", "--target", "--db"))


def test_the_version_is_printed(mirage: Mirage) -> None:
    assert mirage("--version").out == f"{__version__}\n"


@pytest.mark.parametrize(
    ("args", "imported"), [(["search", "--help"], []), (["search", "tiny.yaml", "--no-tune"], ["numpy"])]
)
def test_the_command_line_starts_and_searches_without_torch_and_triton(
    args: list[str], imported: list[str], tmp_path: Path
) -> None:
    write_specs(tmp_path)
    text = (
        "import sys, mirage_cli.cli.main\n"
        f"sys.argv = ['mirage', *{args}]\n"
        "try:\n    mirage_cli.cli.main.main()\n"
        "finally:\n    print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)), file=sys.stderr)\n"
    )
    command, env = [sys.executable, "-c", text], environment(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == f"{imported}\n"


# -- interrupts and pipes

INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from mirage_cli.cli.main import main
main()
"""
"""`mirage`, also where the tests run in the background of a shell, which ignores these signals."""


SAID_AT_ONCE = "interrupted: keeping what was found"

AT_ONCE = """
import builtins, os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
real = builtins.__import__
def interrupted(name, *rest):
    if name == "{module}":
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *rest)
builtins.__import__ = interrupted
from mirage_cli.cli.main import main
main()
"""
"""`mirage`, interrupted in the middle of its imports."""


@pytest.mark.parametrize("module", ["typer", "rich.console", "mirage_cli.spec.reader", "numpy"])
def test_an_interrupt_during_the_imports_is_exit_code_130(tmp_path: Path, module: str) -> None:
    write_specs(tmp_path)
    command = [sys.executable, "-c", AT_ONCE.format(module=module), "search", "tiny.yaml"]
    env = environment(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in ("interrupted\n", SAID_AT_ONCE + "\n")


@pytest.mark.parametrize(
    ("workers", "sent"), [(1, signal.SIGINT), (2, signal.SIGINT), (2, signal.SIGTERM), (2, signal.SIGHUP)]
)
def test_an_interrupted_search_is_exit_code_130_and_keeps_what_it_found(
    tmp_path: Path, workers: int, sent: signal.Signals
) -> None:
    write_specs(tmp_path)
    specs = ["increment.yaml", "transformer_block.yaml"]
    options = ["--no-tune", "--json", "--workers", str(workers), "--budget", "20"]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "search", *specs, *options],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    database, deadline = tmp_path / "mirage.db", time.monotonic() + 60
    while count(database, "results") < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    if sent == signal.SIGTERM:
        os.kill(process.pid, sent)  # as `timeout` does: to the process, then to its group
    os.killpg(process.pid, sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert SAID_AT_ONCE in err.splitlines()  # among lines of progress, where the machine is slow
    results = json.loads(out)["results"]
    assert [(r["spec"], r["dims"]["m"], r["search"]["stopped"]) for r in results[:2]] == [
        ("increment", 16, "exhausted"),
        ("increment", 32, "exhausted"),
    ]
    assert all(r["search"]["stopped"] == "interrupted" for r in results[2:])
    assert sum(r["best"] is not None for r in results) == count(database, "results")


def count(database: Path, table: str) -> int:
    """Rows of a table; none where it is not there yet."""
    try:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.OperationalError:
        return 0


KERNEL_THAT_FAILS = """\
def make_scratch(device):
    return []


def launch(inputs, outputs, scratch):
    raise ValueError("on purpose")
"""


def test_no_command_leaves_a_file_behind(searched: tuple[Path, Run], tmp_path: Path) -> None:
    """Nor do those that fail or are interrupted."""
    temporary = searched[0] / "temporary"
    assert os.listdir(temporary) == []  # after the search
    write_specs(tmp_path)
    (tmp_path / "fails.py").write_text(KERNEL_THAT_FAILS, encoding="utf-8")
    assert spawn_afresh(tmp_path, "verify", "tiny.yaml", "fails.py", TMPDIR=str(temporary)).code == 1
    assert os.listdir(temporary) == []
    command = [sys.executable, "-m", "mirage_cli", "search", "tiny.yaml", "--workers", "2", "--fresh"]
    env = environment(tmp_path, TMPDIR=str(temporary))
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60  # before its own folder, Python makes a file, to see whether it can
        while not any(temporary.glob("mirage-*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.terminate()
        assert process.communicate(timeout=60)[1] == b"interrupted: keeping what was found\n"
    assert process.returncode == 130 and os.listdir(temporary) == []


def test_a_reader_that_leaves_early_is_no_error(searched: tuple[Path, Run]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "mirage_cli", "show", "tiny.yaml", "--json"]
    env = environment(searched[0])
    try:
        done = subprocess.run(
            command, cwd=searched[0], env=env, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(writing)
    assert done.returncode == 1 and done.stderr == ""


def test_a_terminal_without_greek_letters_is_no_error(searched: tuple[Path, Run]) -> None:
    """The first as a user starts it; the others in forks, whose streams are made such."""
    folder = searched[0]
    run = spawn_afresh(folder, "show", "tiny.yaml", PYTHONIOENCODING="ascii")
    assert run.code == 0 and run.out.isascii() and run.err.isascii()
    streams = "sys.stdout.reconfigure(encoding='ascii'); sys.stderr.reconfigure(encoding='ascii')"
    code = f"import sys; {streams}; {forked.COMMAND}"
    for args in (["show", "tiny.yaml"], ["cache", "list"], ["export", "tiny.yaml"], ["search", "mistaken.yaml"]):
        done = forked.ran(args, folder, environment(folder), code)
        assert done.returncode == (1 if "mistaken.yaml" in args else 0) and (done.stdout + done.stderr).isascii()
        assert args[0] != "show" or done.stdout == run.out
