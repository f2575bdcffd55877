"""What stands in examples/ runs without a GPU, in Triton's interpreter."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example as a program, in a folder of its own, and gives what it prints. Its processes are forked."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_attention_of_exported_kernels_in_a_transformer(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")  # which it sets where there is no GPU
    said = run("mgqa.py", "--db", "mirage.db", "--budget", "8", "--tokens", "19")
    assert float(said.split("within ")[1].split()[0]) < 1e-5
    assert os.environ["TRITON_INTERPRET"] == "1"
    assert sorted(p.name for p in (tmp_path / "mgqa_kernels").glob("*.py")) == [
        "mgqa_attention.py",
        "mgqa_keys.py",
        "mgqa_queries.py",
    ]


def test_llama_decodes_a_token_as_it_prefills_all() -> None:
    names = runpy.run_path(str(ROOT / "examples" / "llama.py"), run_name="llama")
    words = torch.randint(128, (2, 9))
    with torch.no_grad():
        whole = names["llama"](names["SMALL"], 2, 12, "cpu", torch.float32)(words, torch.arange(9))
        model = names["llama"](names["SMALL"], 2, 12, "cpu", torch.float32)
        model(words[:, :8], torch.arange(8))
        torch.testing.assert_close(model(words[:, 8:], torch.arange(8, 9)), whole)
