"""Triton's interpreter stands in for a GPU, except in a run of the GPU tests alone, which need the compiler."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module imports Triton, which reads the variable once. A value that is already set stays."""
    if config.getoption("markexpr", "").strip() != "gpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
