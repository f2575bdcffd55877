"""Triton's interpreter stands in for a GPU, except in a run of the GPU tests alone, which need the compiler."""

from __future__ import annotations

import os
import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module imports what reads these variables once. A value that is already set stays.

    The matrices of the tests are small: threads of one test only wait for those of the test beside it.
    """
    if config.getoption("markexpr", "").strip() != "gpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    for library in ("OMP", "OPENBLAS"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that are marked with `gpu` need one, and kernels that are compiled for it. Behind the imports of all tests:
    kernels that are interpreted here are interpreted as in a process of `tune.interpreted`."""
    if "triton" in sys.modules and sys.modules["triton"].knobs.runtime.interpret:
        from mirage_cli.tune.interpreted import like_a_gpu

        like_a_gpu()
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch
        import triton

        if not torch.cuda.is_available() or triton.knobs.runtime.interpret:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no GPU, or kernels are interpreted"))
