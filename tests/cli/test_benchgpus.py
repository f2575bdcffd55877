"""`mirage bench --gpus`, where what is measured is made up; tests/pipeline/test_several.py measures on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.cli import bench as bench_command
from mirage_cli.cli import benchgpus
from mirage_cli.cli.help import ENVELOPE
from mirage_cli.errors import NoKernelError
from mirage_cli.pipeline.bench import several
from mirage_cli.target.gpus import find_target
from tests.cli.test_cli import Mirage


def test_several_gpus_are_a_table_a_document_and_an_exit_code(
    mirage: Mirage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    args = ("bench", "tiny.yaml", "--gpus", "2")
    assert mirage(*args).code == 1
    monkeypatch.setattr(bench_command, "local_gpu", lambda *_: find_target("h100"))
    run = mirage(*args)
    assert run.code == 1 and "2 GPUs to run on, and this machine has 0" in run.err
    monkeypatch.setattr(benchgpus, "device_count", lambda: 2)
    assert mirage(*args, "--check", "before.json").code == 2
    figures = {"us": 10.0, "spread_us": 0.1, "computed_us": 7.5, "one_gpu_us": 18.0, "one_gpu_spread_us": 0.2}
    found = {
        "spec": "tiny",
        "dims": {"m": 4},
        "dtype": "float16",
        "gpu": "h100",
        "gpus": 2,
        "axes": ["n"],
        "all_reduce_bytes": 1 << 18,
        "error": 1e-3,
        "eager_error": 2e-3,
        "wrong": None,
        "measured": figures,
        "predicted": {"us": 9.0, "all_reduce_us": 2.0, "one_gpu_us": 17.0},
    }
    monkeypatch.setattr(several, "measured_split", lambda *_: found)
    run = mirage(*args, "--json", "out.json")
    document = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert run.code == 0 and list(document) == list(ENVELOPE) and document["results"] == [found]
    assert all(x in run.out for x in ("10.00 ± 0.10", "0.90", "2.50 µs", "18.00 ± 0.20", "1.80", "0.50"))
    monkeypatch.setitem(found, "wrong", "large: inf")
    run = mirage(*args)
    assert run.code == 1 and "tiny m=4 k=32 n=16 is wrong: large: inf" in run.err

    def refuse(*_: object) -> Any:
        raise NoKernelError("tiny", "m cannot be split")

    monkeypatch.setattr(several, "measured_split", refuse)
    run = mirage(*args)
    assert run.code == 1 and "m cannot be split" in run.err and run.out == ""
