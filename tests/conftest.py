"""Triton's interpreter stands in for a GPU, except in a run of the GPU tests alone, which need the compiler."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module imports Triton, which reads the variable once. A value that is already set stays."""
    if config.getoption("markexpr", "").strip() != "gpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that are marked with `gpu` need one, and kernels that are compiled for it."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch
        import triton

        if not torch.cuda.is_available() or triton.knobs.runtime.interpret:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no GPU, or kernels are interpreted"))
