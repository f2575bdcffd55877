"""Loads generated source as a module from a file, the way both the compile farm and the GPU process do.

Triton reads a kernel's source back from its file. Its disk cache is keyed by the kernel's text and line number (not by
the file's path or the module's name), so the same source loaded in two processes finds the same compiled kernel.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any  # Triton's modules, which have no types


def hash_triton() -> None:
    """Has Triton hash its own files, as it does in front of a process's first compilation: half a second, which passes
    here while nobody waits for an answer."""
    cache: Any = importlib.import_module("triton.runtime.cache")
    getattr(cache, "triton_key", lambda: None)()


def load_module(source: str, directory: Path) -> ModuleType:
    """The module that this source defines, written to `directory` under the hash of its text, and loaded once."""
    name = f"mirage_{hashlib.sha256(source.encode()).hexdigest()[:20]}"
    if name in sys.modules:
        return sys.modules[name]
    path = directory / f"{name}.py"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(source, encoding="utf-8")
        part.replace(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
