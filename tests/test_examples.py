"""What stands in examples/ runs without a GPU, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(tmp_path: Path, name: str, *arguments: str) -> str:
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_attention_of_exported_kernels_in_a_transformer(tmp_path: Path) -> None:
    said = run(tmp_path, "mgqa.py", "--db", "mirage.db", "--budget", "8", "--tokens", "19")
    assert float(said.split("within ")[1].split()[0]) < 1e-5
    assert sorted(p.name for p in (tmp_path / "mgqa_kernels").glob("*.py")) == [
        "mgqa_attention.py",
        "mgqa_keys.py",
        "mgqa_queries.py",
    ]
