"""A call by the plan as text: one function without a loop, since each step of Python counts in it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from mirage_cli.codegen.library import buffers_of, makes_result
from mirage_cli.codegen.triton import KernelSource
from mirage_cli.codegen.writing import layout_of_box, product_text, room_text, stride_factors, tuple_text, wrapped
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import DTYPE_BYTES, Tensor, unmerged

SCRATCH_BYTES = 256  # where each scratch buffer starts in memory that they share: at a multiple of it
NAMES_A_LINE = 8
USED = frozenset(
    {"plan", "stream", "empty", "allocate", "free", "joined", "torch"}
    | {"ALIGNMENT_BYTES", "is_capturing", "launches_are_watched"}
    | {"_by_triton", "_is_deterministic", "_FILLED", "_FRESH"}
)
"""Names that the function uses besides those of tensors and kernels."""


def start_body(
    graph: MuGraph,
    sizes: Mapping[str, int | str],
    kernels: Mapping[str, KernelSource],
    names: Mapping[str, str],
    patient: bool,
    by_triton: str = "_by_triton(",
) -> str:
    """The lines of `_start(plan, *inputs)`. It returns what the public function does.

    sizes: of all axes, or the names of what holds them. kernels: Triton's, which take addresses; libraries' take
    tensors. names: of the tensors in the text. patient: whether a kernel is launched in another way while a CUDA graph
    is captured. by_triton: the call that has Triton launch, up to the inputs.
    """
    start = _Start(graph, sizes, kernels, names, patient, by_triton)
    outputs = ", ".join(names[t.name] for t in graph.outputs)
    result = (outputs if len(graph.outputs) == 1 else f"({outputs})") if graph.outputs else "None"
    lines = [*start.checks(), *start.tensors(), *start.launches(), f"return {result}"]
    return textwrap.indent("\n".join(lines), "    ")


class _Start:
    """The parts of the function.

    arguments: by kernel, the buffers it is given, by address or as tensors. at: what addresses are called. made: by
    library kernel, the result that it makes. own: buffers that no library sees.
    """

    def __init__(
        self,
        graph: MuGraph,
        sizes: Mapping[str, int | str],
        kernels: Mapping[str, KernelSource],
        names: Mapping[str, str],
        patient: bool,
        by_triton: str,
    ) -> None:
        self.graph, self.sizes, self.kernels, self.names, self.by_triton = graph, sizes, kernels, names, by_triton
        self.bound = "not is_capturing() and plan.bound.get(stream)" if patient else "plan.bound.get(stream)"
        libraries = [k for k in graph.kernels if k.name not in kernels]
        self.arguments = {
            k.name: _pointers(kernels[k.name]) if k.name in kernels else buffers_of(k) for k in graph.kernels
        }
        self.at = _addresses([b for name in kernels for b in self.arguments[name]], names)
        self.made = {k.name: k.stores[0].buffer for k in libraries if makes_result(graph, k)}
        self.seen_by_libraries = {b for k in libraries for b in self.arguments[k.name]}
        self.own = [t for t in graph.buffers if t.name not in self.seen_by_libraries]

    def checks(self) -> list[str]:
        """Addresses of inputs, and what leaves a call to Triton itself."""
        inputs = [t.name for t in self.graph.inputs]
        addressed = [x for x in inputs if x in self.at]
        lines = [self.address(x) for x in addressed]
        for i in range(0, len(addressed), NAMES_A_LINE):
            some = " | ".join(self.at[x] for x in addressed[i : i + NAMES_A_LINE])
            lines.append(f"joined {'|=' if i else '='} {some}")
        conditions = ["joined % ALIGNMENT_BYTES"] * bool(addressed)
        conditions += ['torch.is_autocast_enabled("cuda")'] * bool(self.seen_by_libraries)
        lines.append(f"if {' or '.join([*conditions, 'launches_are_watched()'])}:")
        comma = "," * (len(inputs) == 1)
        return [*lines, wrapped(f"    return {self.by_triton}(", [self.names[x] for x in inputs], f"{comma}))")]

    def tensors(self) -> list[str]:
        """Outputs, and what libraries see of buffers, but for what libraries make."""
        lines = ["empty, allocate, free = _FILLED if _is_deterministic() else _FRESH"]
        lines.append("stream = plan.current_stream(plan.device)")
        outputs = (replace(t, dims=unmerged(t.dims, self.graph.merged)) for t in self.graph.outputs)
        for t in (*outputs, *(t for t in self.graph.buffers if t not in self.own)):
            if t.name not in self.made.values():
                shape, strides, cut = room_text(t, self.sizes)
                lines.append(f"{self.names[t.name]} = empty({shape}, {strides}, torch.{t.dtype}){cut}")
                lines += [self.address(t.name)] if t.name in self.at else []
        return lines

    def launches(self) -> list[str]:
        """All kernels, on scratch memory of their own."""
        called = ", ".join(self.arguments) + "," * (len(self.arguments) == 1)
        lines = [f"{called} = {self.bound} or plan.bind(stream)"]
        for name, buffers in self.arguments.items():
            passed = self.passed(self.kernels[name]) if name in self.kernels else [self.names[b] for b in buffers]
            if name not in self.made:
                lines.append(wrapped(f"{name}(", passed, ")"))
                continue
            *operands, result = passed
            lines.append(wrapped(f"{result} = {name}(", operands, ")"))
            lines += [self.address(self.made[name])] if self.made[name] in self.at else []
        if not self.own:
            return lines
        given_back = (
            f"    free({self.at[self.own[0].name]})  # to what comes next on the stream, as a tensor's memory is"
        )
        return [*self.scratch(), "try:", textwrap.indent("\n".join(lines), "    "), "finally:", given_back]

    def passed(self, kernel: KernelSource) -> list[str]:
        """What a kernel of Triton's is started with: its grid where that differs by call, addresses, sizes. What a
        descriptor of another shape in each call is made of stands in the place of its address."""
        boxes: list[str] = []
        for d in kernel.descriptors:
            at = self.at[d.buffer]
            boxes.append(tuple_text([at, *map(tuple_text, layout_of_box(d))]) if d.sized else at)
        passed = [*(self.at[b] for b in kernel.args), *boxes]
        return [kernel.programs, *passed, *kernel.sizes] if kernel.sizes else passed

    def scratch(self) -> list[str]:
        """One allocation for all buffers of its own."""
        first, *others = (self.at[t.name] for t in self.own)
        ends = [*itertools.accumulate((self.rounded_up(t) for t in self.own), _sum_text)]
        lines = [f"{first} = allocate({ends[-1]}, stream)"]
        return lines + [f"{x} = {first} + {start}" for x, start in zip(others, ends, strict=False)]

    def rounded_up(self, t: Tensor) -> int | str:
        """The bytes of a buffer with those up to the next."""
        along = [(self.sizes[d], *step) for d, step in zip(t.dims, stride_factors(t, self.sizes), strict=True)]
        factors = [*(x for longest in along[:1] for x in longest), DTYPE_BYTES[t.dtype]]
        whole = [x for x in factors if isinstance(x, int)]
        if len(whole) == len(factors):
            return -(-prod(whole) // SCRATCH_BYTES) * SCRATCH_BYTES
        return f"-(-{product_text(factors)} // {SCRATCH_BYTES}) * {SCRATCH_BYTES}"

    def address(self, tensor: str) -> str:
        return f"{self.at[tensor]} = {self.names[tensor]}.data_ptr()"


def _sum_text(a: int | str, b: int | str) -> int | str:
    return a + b if isinstance(a, int) and isinstance(b, int) else f"{a} + {b}"


def _pointers(kernel: KernelSource) -> list[str]:
    """The buffers whose addresses a kernel of Triton's takes."""
    return [*kernel.args, *(d.buffer for d in kernel.descriptors)]


def _addresses(tensors: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """What each tensor's address is called."""
    used = {*names.values()}
    made: dict[str, str] = {}
    for t in dict.fromkeys(tensors):
        spellings = (f"{names[t]}_at{'_' * i}" for i in itertools.count())
        made[t] = next(s for s in spellings if s not in used)
        used.add(made[t])
    return made
