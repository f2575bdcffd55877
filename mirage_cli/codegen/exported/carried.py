"""Modules whose text exported files carry. They are read and not imported, for PyTorch takes seconds."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
PLANS = ("codegen/exported/overlap.py", "codegen/exported/direct.py", "codegen/exported/ordinary.py")
PLANS_WITH_MAPS = (*PLANS, "codegen/exported/maps.py")
CHECKS = (
    "ir/drawn.py", "verify/testdata.py", "verify/rows.py", "verify/distance.py", "verify/rounding.py", "verify/lies.py",
    "verify/decided.py", "verify/pieces.py", "verify/yardstick.py", "verify/halves.py",
    "codegen/exported/selfcheck.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Carried:
    """Some modules as one text.

    standard: lines that import from the standard library. torch: those that import single names from torch, which
    itself is there, as triton is. body: the definitions.
    """

    standard: str
    torch: str
    body: str

    def inside_function(self) -> str:
        """The text as it stands in a function: no two blank lines."""
        return re.sub(r"\n{3,}", "\n\n", "\n\n".join([self.standard, self.torch, self.body]))


@cache
def carried(modules: tuple[str, ...], also: tuple[str, ...] = ()) -> Carried:
    """modules: their paths in this package. also: modules of the standard library that are imported besides."""
    plain = set(also)
    names: dict[str, set[str]] = {}
    bodies: list[str] = []
    for path in modules:
        source = (PACKAGE / path).read_text(encoding="utf-8")
        statements = ast.parse(source).body
        end = 0
        for x in statements:
            if isinstance(x, ast.Import):
                plain |= {a.name for a in x.names}
            elif (
                isinstance(x, ast.ImportFrom)
                and x.module
                and x.module.split(".")[0] not in ("mirage_cli", "__future__")
            ):
                names.setdefault(x.module, set()).update(a.name for a in x.names)
            if isinstance(x, ast.Import | ast.ImportFrom):
                end = x.end_lineno or 0
        bodies.append("\n".join(source.splitlines()[end:]).strip())
    lines = {m: f"from {m} import {', '.join(sorted(names[m]))}" for m in sorted(names)}
    standard = [f"import {m}" for m in sorted(plain - {"torch", "triton"})]
    standard += [line for m, line in lines.items() if not m.startswith("torch")]
    torch = [line for m, line in lines.items() if m.startswith("torch")]
    return Carried("\n".join(standard), "\n".join(torch), "\n\n\n".join(bodies))
