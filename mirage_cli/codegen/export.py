"""A μGraph with its schedule as Python text: what the tuner loads and times, and the one file that users keep.

`kernels_source` is the kernels with `make_scratch` and `launch`. `export_source` adds a header, calls that take little
CPU time, the public functions with their checks, the torch operator, and the self-check that `python FILE` runs.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from mirage_cli.codegen.exported.carried import CHECKS, carried
from mirage_cli.codegen.exported.public import Templates, docstring, file_text, public_values, tables_text
from mirage_cli.codegen.exported.start_text import start_body
from mirage_cli.codegen.exported.text import (
    PLANNED,
    PUBLIC,
    RESERVED,
    SELF_CHECK,
    WITHOUT_AUTOCAST,
)
from mirage_cli.codegen.parts import Parts
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.codegen.writing import input_text, spelled, table_text, tuple_text, wrapped
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program, spread
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import mugraph_id


@dataclass(frozen=True, slots=True)
class ExportInfo:
    """What the header says about where the kernel comes from. A figure that was not measured is None.

    target: the GPU measured on, or planned for. versions: of mirage, torch, triton, driver, by name.
    error, eager_error: norm of the difference from float64 over the norm of the result.
    checked: whether results were ever compared with float64; None where that is not known.
    """

    command: str = ""
    target: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    measured: bool = False
    time_us: float | None = None
    floor_us: float | None = None
    eager_us: float | None = None
    error: float | None = None
    eager_error: float | None = None
    checked: bool | None = None


def kernels_source(graph: MuGraph, schedule: Schedule) -> str:
    """Module text with the kernels, `make_scratch(device)` and `launch(inputs, outputs, scratch)`.

    `launch` asks the device nothing: it can be captured in a CUDA graph, and it runs on meta tensors.
    """
    parts = Parts(graph, schedule)
    imports = ["import functools", ""] if parts.overlap else []
    imports += ["import torch", *parts.imports()]
    return "\n\n\n".join(["\n".join(imports), *parts.blocks()]) + "\n"


# -- the exported file

SIZE = Templates(PUBLIC, PLANNED, SELF_CHECK)
"""Of a file for one size."""


def export_source(program: Program, graph: MuGraph, schedule: Schedule, info: ExportInfo | None = None) -> str:
    """The text of the file of contract section "Exported kernels", for one size; `codegen.sized` writes others."""
    assert not program.dynamic, "a file of sizes that differ by call"
    parts = Parts(graph, schedule)
    blocks = parts.blocks()
    tables = tables_text(program, program.sizes)
    parameters = [*spelled((t.name for t in program.inputs), RESERVED.__contains__).values()]
    values = public_values(program, parameters, blocks, tables, "_OUTPUTS", "") | {
        "inputs": table_text(input_text(t, program.sizes) for t in program.inputs),
        "outputs": table_text(f"({', '.join(parts.layout(t)[::-1])}, torch.{t.dtype})," for t in program.results),
        "autocast": WITHOUT_AUTOCAST * parts.libraries,
        "recorded": parts.recorded(),
        "kernels": tuple_text(k.name for k in graph.kernels),
        "names": ", ".join(parts.names[t.name] for t in graph.inputs),
        "start": start_body(graph, parts.texts, parts.kernels, parts.names, bool(parts.patient)),
    }
    header = docstring(program, header_rows(program, graph, schedule, info or ExportInfo()))
    blocks += [tables] * bool(tables)
    values |= _self_check(program)
    return file_text(program, header, [parts], blocks, SIZE, values)


def _self_check(program: Program) -> dict[str, str]:
    """The values for the places of `SELF_CHECK`."""
    from mirage_cli.verify.facts import blocks_of, independent_axis, longest_sum, where_outputs_lie

    apart, lies, evaluated = program.apart(), where_outputs_lie(program), blocks_of(program)
    precision, tolerance = f"torch.{program.dtype}", f"{program.tolerance:g}"
    blocked = [axis for axis, *_ in evaluated]
    eager = [torch_source(apart, "eager", blocked), *([torch_source(program, "whole")] if lies else [])]
    return {
        "eager": textwrap.indent("\n\n".join(x.strip() for x in eager), "    "),
        "stepwise": textwrap.indent(torch_source(lower(apart), "stepwise", blocked).strip(), "    "),
        "whole": "whole" if lies else "eager",
        "lies": "None" if lies is None else f"[{', '.join(f'Lies{x}' for x in lies)}]",
        "checks": textwrap.indent(carried(CHECKS).inside_function(), "    "),
        "cpu": "_PLANS",
        "spreads": tuple_text(repr(spread(t, program.sizes)) for t in program.inputs),
        "contracted": str(longest_sum(program)),
        "cut": "None" if (cut := independent_axis(program)) is None else f"Cut{cut}",
        "check": wrapped(
            "        results = check(",
            [
                *f"run eager stepwise draw_inputs contracted {precision} {tolerance} device cut lies".split(),
                *([tuple_text(f"Block{x}" for x in evaluated)] if evaluated else []),
            ],
            ")",
        ),
    }


def header_rows(program: Program, graph: MuGraph, schedule: Schedule, info: ExportInfo) -> list[tuple[str, str]]:
    """What a kernel is and was made with, by label."""
    versions = ", ".join(f"{name} {version}" for name, version in info.versions.items())
    figures = [
        ("time", info.time_us, "µs"),
        ("eager", info.eager_us, "µs"),
        ("floor", info.floor_us, "µs"),
    ]
    times = ", ".join(f"{name} {value:.2f} {unit}" for name, value, unit in figures if value is not None)
    errors = [("this kernel", info.error), ("eager", info.eager_error)]
    error = ", ".join(f"{name} {value:.2e}" for name, value in errors if value is not None)
    return [
        ("spec", program.name),
        ("dims", " ".join(f"{n}={s}" for n, s in program.dims)),
        ("dtype", program.dtype),
        ("μGraph", mugraph_id(graph)),
        ("schedule", "; ".join(f"{name}: {k}" for name, k in schedule.kernels.items()) or "library calls alone"),
        ("GPU", info.target),
        ("versions", versions),
        ("measured" if info.measured else "predicted", times),
        ("error", f"{error} (norm, against float64)" if error else ""),
        ("numbers", "never compared with float64; run this file to do so" if info.checked is False else ""),
        ("made by", info.command),
    ]


# -- loading


@functools.cache
def _directory() -> Path:
    """Where sources are put for as long as this process runs: Triton reads a kernel's text from its file."""
    directory = tempfile.mkdtemp(prefix="mirage_export_")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def load_export(source_or_path: str | Path) -> ModuleType:
    """The module that an exported file (or `kernels_source`) defines, from its path or its text."""
    if isinstance(source_or_path, Path):
        path = source_or_path
        name = f"mirage_export_{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    else:
        name = f"mirage_export_{hashlib.sha256(source_or_path.encode()).hexdigest()[:16]}"
        path = _directory() / f"{name}.py"
        path.write_text(source_or_path, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
