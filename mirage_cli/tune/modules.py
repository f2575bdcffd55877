"""Loads generated source as a module from a file, the way both the compile farm and the GPU process do.

Triton reads a kernel's source back from its file. Its disk cache is keyed by the kernel's text and line number (not by
the file's path or the module's name; `read_generated` makes all lines one), so the same kernel of any module, loaded in
any process, finds what was compiled once. Where they share a folder, the second also finds Python's code, and what
Triton has made of the text for its key: it need not be parsed again (7 of some 40 ms that a quick timing takes).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import linecache
import os
import sys
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any  # Triton's modules and functions, which have no types


def hash_triton() -> None:
    """Has Triton hash its own files, as it does in front of a process's first compilation: half a second, which passes
    here while nobody waits for an answer."""
    cache: Any = importlib.import_module("triton.runtime.cache")
    getattr(cache, "triton_key", lambda: None)()


def read_generated(directory: Path) -> None:
    """Has Triton find the text of functions in this folder by their indentation, without Python's tokenizer, and take
    each for the first line of its file: a kernel that two plans or schedules share then has one key, and is compiled
    once."""

    def lines(function: FunctionType) -> tuple[list[str], int]:
        code = function.__code__
        if Path(code.co_filename).parent != directory:
            return inspect.getsourcelines(function)
        return function_at(linecache.getlines(code.co_filename), code.co_firstlineno), 1

    jit: Any = importlib.import_module("triton.runtime.jit")
    jit.inspect = SimpleNamespace(**{**vars(inspect), "getsourcelines": lines})


def function_at(text: list[str], number: int) -> list[str]:
    """The lines of the function whose decorators begin at this line, counted from 1."""
    end = next(i for i in range(number - 1, len(text)) if text[i].startswith("def ")) + 1
    while end < len(text) and (not text[end].strip() or text[end][0] in " )"):
        end += 1
    while not text[end - 1].strip():
        end -= 1
    return text[number - 1 : end]


def load_module(source: str, directory: Path) -> ModuleType:
    """The module that this source defines, written to `directory` under the hash of its text, and loaded once."""
    name = f"mirage_{hashlib.sha256(source.encode()).hexdigest()[:20]}"
    if name in sys.modules:
        return sys.modules[name]
    path = directory / f"{name}.py"
    if not path.exists():
        _write(path, source)
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
    if (known := path.with_suffix(".json")).exists():
        for function, found in json.loads(known.read_text(encoding="utf-8")).items():
            getattr(module, function).hash = found
    else:
        _hash_called(module)
    return module


def _hash_called(module: ModuleType) -> None:
    """Has Triton make the keys of the functions that kernels call, in the order of their definitions. It makes one of
    a function that calls others from what those are at the time, so that the key of the same text would be another
    where a kernel that calls them was launched before."""
    launched = getattr(getattr(module, "launch", None), "__code__", None)
    for name, function in _jitted(module).items():
        if launched is None or name not in launched.co_names:
            _ = function.cache_key


def _jitted(module: ModuleType) -> dict[str, Any]:
    """By name, in the order of their definitions; none where Triton interprets them."""
    jit = sys.modules.get("triton.runtime.jit")
    return {n: x for n, x in vars(module).items() if isinstance(x, jit.JITFunction)} if jit else {}


def keep_hashes(module: ModuleType) -> None:
    """Leaves what Triton's key says of the text of each kernel to those that load the module next."""
    path = Path(str(module.__file__)).with_suffix(".json")
    if not path.exists():
        _write(path, json.dumps({n: x.cache_key for n, x in _jitted(module).items()}))


def _write(path: Path, text: str) -> None:
    """Whole or not at all: other processes may read it."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
