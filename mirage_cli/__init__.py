"""mirage: a multi-level superoptimizer for tensor programs that writes plain Triton."""

from __future__ import annotations

from importlib import import_module
from typing import Any  # of a name that is imported when it is asked for

__version__ = "0.1.2"


ELSEWHERE = {"Graph": "pipeline.callers", "kernel": "pipeline.models.functions", "optimize": "pipeline.models.model"}
MODULES = ("mi",)


def __getattr__(name: str) -> Any:
    """`Graph`, `kernel`, `optimize`, the module `mi`, and every function of the spec language, which `spec.graph` has;
    imported when first asked for."""
    if name in MODULES:
        return import_module(f"mirage_cli.{name}")
    module = ELSEWHERE.get(name, "spec.graph")
    found = None if name.startswith("_") else getattr(import_module(f"mirage_cli.{module}"), name, None)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
