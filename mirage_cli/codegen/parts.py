"""The kernels of a μGraph with its schedule as pieces of text, of which every form of a file is put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.codegen.access import Descriptor
from mirage_cli.codegen.exported.start_text import USED
from mirage_cli.codegen.helpers import (
    BFLOAT16,
    BOUND,
    BYTES,
    DESCRIPTORS,
    EIGHTHS,
    ENDED,
    EXPONENTIALS,
    EXTREMA,
    FETCH,
    FLOAT8,
    FLOAT8_STORED,
    FOURTHS,
    HELPERS,
    HIDDEN_BOUND,
    IN_PARTS,
    INTERPRETED,
    OPERATORS,
    OVERLAP,
    PAIRS,
    QUOTIENT,
    RECURRENCE,
    RELEASE_BEFORE,
    SCANS,
)
from mirage_cli.codegen.library import buffers_of, library_kernel
from mirage_cli.codegen.triton import KernelSource, emit_kernel
from mirage_cli.codegen.writing import (
    layout_of_box,
    layout_text,
    room_text,
    size_texts,
    spelled,
    tuple_text,
    unpacked,
    wrapped,
)
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.program import Tensor, unmerged
from mirage_cli.ir.schedule import Schedule


def launch_sizes(graph: MuGraph, schedule: Schedule) -> dict[str, int]:
    """Sizes of all axes: those of the μGraph, and of each split's chunks from the schedule. Raises ValueError."""
    sizes = {**graph.sizes}
    for k in graph.kernels:
        if k.split is None:
            continue
        chunks = schedule.kernels[k.name].split
        if sizes.setdefault(k.chunk, chunks) != chunks:
            raise ValueError(f"two kernels split {k.split}, in {sizes[k.chunk]} chunks and in {chunks}")
    return sizes


class Parts:
    """The pieces of text for one schedule.

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
        helpers += [HIDDEN_BOUND] * any("hidden_bound(" in k for k in kernels)
        helpers += [QUOTIENT] * any("quotient(" in k for k in kernels)
        helpers += [EXTREMA] * any("largest(" in k or "least(" in k for k in kernels)
        helpers += [SCANS] * any("running_largest(" in k or "running_least(" in k for k in kernels)
        helpers += [RECURRENCE] * any("recurrence(" in k for k in kernels)
        helpers += [EXPONENTIALS] * any("running_exponentials(" in k for k in kernels)
        own = dict.fromkeys(text for name, text in OPERATORS.items() if any(f"{name}(" in k for k in kernels))
        helpers += [BFLOAT16] * any("MATRIX_TYPE" in k or "to_bfloat16" in k or "dot_in_" in k for k in kernels)
        helpers += [BYTES] * any("byte_bits(" in k for k in kernels)
        eighths = any("split_in_eight(" in k for k in kernels)
        helpers += [FOURTHS] * (eighths or any("split_in_four(" in k for k in kernels)) + [EIGHTHS] * eighths
        pairs = any(k.shared_bits for k in self.kernels.values())
        helpers += [PAIRS] * (pairs or any("pair_bits(" in k for k in kernels))
        helpers += [ENDED] * any("ended(" in k for k in kernels)
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
                pointed = (_aligned(self.names[a], ks.shared_bits.get(a, 0)) for a in ks.args)
                args = [*pointed, *boxes, *ks.sizes, *ks.options]
                lines.append(wrapped(f"    {ks.name}[({ks.programs},)](", args, ")"))
            else:
                lines.append(f"    {k.name}({', '.join(self.names[b] for b in buffers_of(k))})")
        return lines

    def descriptor(self, d: Descriptor) -> str:
        shape, strides = (f"[{', '.join(x)}]" for x in layout_of_box(d))
        return f"descriptor({self.names[d.buffer]}, {shape}, {strides}, {[*d.box]})"


def _aligned(tensor: str, bits: int) -> str:
    return f"aligned({tensor}, {bits // 8})" if bits else tensor


def patience(kernels: Sequence[str]) -> list[str]:
    """What says which kernels start early only behind some; nothing where none does."""
    names = tuple_text(f'"{name}"' for name in kernels)
    return [f"PATIENT = {names}  # start early only behind kernels that let the next one start"] * bool(kernels)
