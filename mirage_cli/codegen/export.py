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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from mirage_cli.codegen.access import Descriptor
from mirage_cli.codegen.carried import CHECKS, carried
from mirage_cli.codegen.exported_text import (
    PLANNED,
    PUBLIC,
    RESERVED,
    SELF_CHECK,
    WITHOUT_AUTOCAST,
)
from mirage_cli.codegen.helpers import (
    BFLOAT16,
    BOUND,
    BYTES,
    DESCRIPTORS,
    EXTREMA,
    FETCH,
    FLOAT8,
    FLOAT8_STORED,
    HELPERS,
    IN_PARTS,
    INTERPRETED,
    OPERATORS,
    OVERLAP,
    RELEASE_BEFORE,
)
from mirage_cli.codegen.library import buffers_of, library_kernel
from mirage_cli.codegen.public import Templates, docstring, file_text, public_values, tables_text
from mirage_cli.codegen.start_text import USED, start_body
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.codegen.triton import KernelSource, emit_kernel
from mirage_cli.codegen.writing import (
    input_text,
    layout_of_box,
    layout_text,
    room_text,
    size_texts,
    spelled,
    table_text,
    tuple_text,
    unpacked,
    wrapped,
)
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.program import Program, Tensor, spread, unmerged
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


# -- kernels, scratch and launch


def launch_sizes(graph: MuGraph, schedule: Schedule) -> dict[str, int]:
    """Sizes of all axes: those of the μGraph, and of each split's chunks from the schedule. Raises ValueError."""
    sizes = graph.sizes
    for k in graph.kernels:
        if k.split is None:
            continue
        chunks = schedule.kernels[k.name].split
        if sizes.setdefault(k.chunk, chunks) != chunks:
            raise ValueError(f"two kernels split {k.split}, in {sizes[k.chunk]} chunks and in {chunks}")
    return sizes


def kernels_source(graph: MuGraph, schedule: Schedule) -> str:
    """Module text with the kernels, `make_scratch(device)` and `launch(inputs, outputs, scratch)`.

    `launch` asks the device nothing: it can be captured in a CUDA graph, and it runs on meta tensors.
    """
    parts = Parts(graph, schedule)
    imports = ["import functools", ""] if parts.overlap else []
    imports += ["import torch", *parts.imports()]
    return "\n\n\n".join(["\n".join(imports), *parts.blocks()]) + "\n"


class Parts:
    """The pieces of text that all forms share.

    label: behind the names of functions where a file has them for several sizes. given: what its `make_scratch` takes
    besides the device then.
    """

    def __init__(self, graph: MuGraph, schedule: Schedule, label: str = "", given: Sequence[str] = ()) -> None:
        self.label, self.given = label, given
        if label:
            schedule = Schedule({f"{name}{label}": s for name, s in schedule.kernels.items()})
            graph = replace(graph, kernels=tuple(replace(k, name=f"{k.name}{label}") for k in graph.kernels))
        self.graph = graph
        self.sizes = launch_sizes(graph, schedule)
        self.overlap = any(s.overlap for s in schedule.kernels.values())
        self.kernels: dict[str, KernelSource] = {
            k.name: emit_kernel(graph, k, schedule, self.sizes) for k in graph.kernels if k.kind == "generated"
        }
        self.texts = size_texts(self.sizes, graph.dynamic)
        self.patient = [name for name in self.kernels if schedule.kernels[name].patient]
        self.libraries = len(self.kernels) < len(graph.kernels)
        self.descriptors = any(k.descriptors for k in self.kernels.values())
        taken = {"torch", "triton", "tl", "inputs", "outputs", "scratch", "make_scratch", "launch", "PATIENT"}
        taken |= HELPERS | USED | {k.name for k in graph.kernels} | {f"SIZE_{r.dim}" for r in graph.dynamic}
        self.names = spelled(graph.tensors(), taken.__contains__)

    def imports(self) -> list[str]:
        """What the module takes from Triton."""
        if not self.kernels:
            return []
        boxes = ["from triton.tools.tensor_descriptor import TensorDescriptor"] * self.descriptors
        return ["import triton", "import triton.language as tl", *boxes]

    def layout(self, t: Tensor) -> tuple[str, str]:
        """Shape and strides."""
        return layout_text(t, self.texts)

    def made(self, t: Tensor, device: str) -> str:
        """The call that makes an output, or an intermediate."""
        shape, strides, cut = room_text(t, self.texts)
        return f"torch.empty_strided({shape}, {strides}, dtype=torch.{t.dtype}, device={device}){cut}"

    def blocks(self) -> list[str]:
        ends = [] if self.label else patience(self.patient)
        return [*self.functions(), *ends, self.scratch(), self.launch()]

    def functions(self) -> list[str]:
        """The kernels, and what they call."""
        kernels = [self.kernel(k) for k in self.graph.kernels]
        helpers = [OVERLAP] * self.overlap
        helpers += [RELEASE_BEFORE] * any("release_before(" in k for k in kernels)
        helpers += [FETCH] * any(k.fetches for k in self.kernels.values())
        helpers += [BOUND] * any("bound(" in k for k in kernels)
        helpers += [EXTREMA] * any("largest(" in k or "least(" in k for k in kernels)
        own = dict.fromkeys(text for name, text in OPERATORS.items() if any(f"{name}(" in k for k in kernels))
        helpers += [BFLOAT16] * any("MATRIX_TYPE" in k or "to_bfloat16" in k or "dot_in_" in k for k in kernels)
        helpers += [BYTES] * any("raised_bits(" in k for k in kernels)
        helpers += [FLOAT8] * any("dot_float8(" in k for k in kernels)
        helpers += [IN_PARTS] * any("dot_in_" in k for k in kernels)
        helpers += [FLOAT8_STORED] * any("to_float8_" in k for k in kernels)
        if self.descriptors:
            kernels = [DESCRIPTORS, *kernels]
        if helpers:
            kernels = [INTERPRETED, *helpers, *kernels]
        return [*own, *kernels]

    def kernel(self, k: Kernel) -> str:
        if k.name in self.kernels:
            return self.kernels[k.name].source.strip("\n")
        return library_kernel(self.graph, k, self.sizes, self.names)

    def recorded(self) -> str:
        """What makes every kernel of Triton's one whose launches can be planned."""
        made = {name: f"Recorded{'Box' * bool(k.descriptors)}Kernel" for name, k in self.kernels.items()}
        return "\n".join(
            f"{name} = {kind}({name}{', patient=True' * (name in self.patient)}"
            f"{', sized=True' * bool(self.kernels[name].sizes)})"
            for name, kind in made.items()
        )

    def scratch(self) -> str:
        made = [f"        {self.made(t, 'device')},  # {t}" for t in self.graph.buffers]
        result = ["    return [", *made, "    ]"] if made else ["    return []"]
        doc = '    """Intermediates in device memory; their content before a launch does not matter."""'
        taken = self.given or [f"SIZE_{r.dim}={self.sizes[r.dim]}" for r in self.graph.dynamic]
        return "\n".join([f"def make_scratch{self.label}({', '.join(['device', *taken])}):", doc, *result])

    def launch(self) -> str:
        lines = [
            f"def launch{self.label}(inputs, outputs, scratch):",
            '    """Runs all kernels on the current stream."""',
        ]
        for source, tensors in (
            ("inputs", self.graph.inputs),
            ("outputs", self.graph.outputs),
            ("scratch", self.graph.buffers),
        ):
            if tensors:
                lines.append(unpacked([self.names[t.name] for t in tensors], source))
        return "\n".join([*lines, *self.launches()])

    def launches(self) -> list[str]:
        """The lines that start all kernels, with the tensors under their names."""
        lines: list[str] = []
        for r in self.graph.dynamic:
            axes = {t.name: unmerged(t.dims, self.graph.merged) for t in self.graph.inputs}
            name = next(name for name, dims in axes.items() if r.dim in dims)
            lines.append(f"    SIZE_{r.dim} = {self.names[name]}.shape[{axes[name].index(r.dim)}]")
        for k in self.graph.kernels:
            if k.name in self.kernels:
                ks = self.kernels[k.name]
                boxes = [self.descriptor(d) for d in ks.descriptors]
                args = [*(self.names[a] for a in ks.args), *boxes, *ks.sizes, *ks.options]
                lines.append(wrapped(f"    {ks.name}[({ks.programs},)](", args, ")"))
            else:
                lines.append(f"    {k.name}({', '.join(self.names[b] for b in buffers_of(k))})")
        return lines

    def descriptor(self, d: Descriptor) -> str:
        shape, strides = (f"[{', '.join(x)}]" for x in layout_of_box(d))
        return f"descriptor({self.names[d.buffer]}, {shape}, {strides}, {[*d.box]})"


def patience(kernels: Sequence[str]) -> list[str]:
    """What says which kernels start early only behind some; nothing where none does."""
    names = tuple_text(f'"{name}"' for name in kernels)
    return [f"PATIENT = {names}  # start early only behind kernels that let the next one start"] * bool(kernels)


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
    return file_text(program, header, parts.imports(), [graph], blocks, SIZE, values, parts.descriptors)


def _self_check(program: Program) -> dict[str, str]:
    """The values for the places of `SELF_CHECK`."""
    from mirage_cli.verify.numeric import blocks_of, independent_axis, longest_sum, where_outputs_lie

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
