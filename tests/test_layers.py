"""The order of the layers: what may import what, and what must stay quick to import."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.rows import rows

PACKAGE = Path(__file__).parent.parent / "mirage_cli"

PAGE = PACKAGE.parent / "docs" / "architecture.md"


def layers() -> tuple[tuple[str, ...], ...]:
    """The order that the architecture page states. Each layer may import itself and those before it."""
    (line,) = [x for x in PAGE.read_text(encoding="utf-8").splitlines() if x.startswith("    errors < ")]
    middle = [tuple(name.strip() for name in layer.split(",")) for layer in line.split("<")]
    return ("__init__", *middle[0]), *middle[1:], ("__main__",)


RANK = {name: rank for rank, layer in enumerate(layers()) for name in layer}
LIGHT = ("errors", "ir", "target", "spec", "algebra", "store", "search", "cli")
"""What is imported where seconds count: at the prompt, and in the search's processes."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below `mirage_cli`."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name below `mirage_cli` of everything that a module imports from the package, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = [f"{node.module}.{a.name}" for a in node.names]
        else:
            continue
        for name in names:
            package, _, below = name.partition(".")
            if package == "mirage_cli":
                yield node.lineno, module_of(below)


def module_of(name: str) -> str:
    """The module that `name` is, or is in."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or "__init__"


@rows("name", MODULES)
def test_imports_go_one_way(name: str) -> None:
    layer = name.partition(".")[0]
    assert layer in RANK, f"{name} has no place in LAYERS"
    backward = [
        f"{MODULES[name]}:{line}: {name} imports {other}"
        for line, other in imports(MODULES[name])
        if RANK[other.partition(".")[0]] > RANK[layer]
    ]
    assert not backward, "\n".join(backward)


def test_programs_know_nothing_of_models() -> None:
    """The entry that PyTorch calls apart, what works on programs imports nothing of what makes them of models."""
    users = [n for n in MODULES if n.startswith("pipeline.") and n != "pipeline.backend"]
    backward = [
        f"{name} imports {other}"
        for name in users
        if not name.startswith("pipeline.models")
        for _, other in imports(MODULES[name])
        if other.startswith("pipeline.models")
    ]
    assert not backward, "\n".join(backward)


MOST_LINES = 850
"""Of a module: what is longer holds more than one idea."""


def test_modules_hold_one_idea() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert not {name: n for name, n in lines.items() if n > MOST_LINES}


def test_no_two_modules_import_each_other() -> None:
    graph = {name: {other for _, other in imports(path)} - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which shows the cycle


@pytest.mark.parametrize("tool", sorted(path.stem for path in (PACKAGE.parent / "tools").glob("*.py")))
def test_what_a_tool_imports_is_there(tool: str) -> None:
    importlib.import_module(f"tools.{tool}")


@pytest.mark.parametrize("layer", [name for name in LIGHT if name in MODULES])
def test_light_layers_import_no_torch(layer: str) -> None:
    names = [f"mirage_cli.{name}" for name in MODULES if name.partition(".")[0] == layer]
    code = f"import sys, {', '.join(names)}; sys.exit(any(m in sys.modules for m in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "code",
    [
        "import mirage_cli.store.store; assert 'pandas' not in sys.modules; import pandas",
        "import pandas, mirage_cli.store.store",
    ],
)
def test_the_database_does_without_pandas_and_leaves_it_to_others(code: str, tmp_path: Path) -> None:
    """sqlite-utils would import it where it is installed."""
    (tmp_path / "pandas.py").write_text("print('imported')\ndef __getattr__(name): return type(name, (), {})\n")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "imported\n"


WITH_ANY = [
    (name, line)
    for name, path in MODULES.items()
    for line in path.read_text(encoding="utf-8").splitlines()
    if re.match(r"from typing import .*\bAny\b", line)
]


@rows(("name", "line"), WITH_ANY)
def test_a_module_that_gives_up_types_says_of_what(name: str, line: str) -> None:
    assert re.search(r"  # \w.{10,}", line), f"{name}: what is Any, and why?"
