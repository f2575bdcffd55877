"""A call by the plan as text: one function without a loop, since each step of Python counts in it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from math import prod

from mirage_cli.codegen.library import buffers_of, makes_result
from mirage_cli.codegen.triton import KernelSource
from mirage_cli.codegen.writing import layout_text, wrapped
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import DTYPE_BYTES, Tensor

SCRATCH_BYTES = 256  # where each scratch buffer starts in memory that they share: at a multiple of it
NAMES_A_LINE = 8
USED = frozenset(
    {"plan", "stream", "empty", "allocate", "free", "joined", "torch", "ALIGNMENT_BYTES", "launches_are_watched"}
    | {"_by_triton", "_is_deterministic", "_FILLED", "_FRESH"}
)
"""Names that the function uses besides those of tensors and kernels."""


def start_body(
    graph: MuGraph, sizes: Mapping[str, int], kernels: Mapping[str, KernelSource], names: Mapping[str, str]
) -> str:
    """The lines of `_start(plan, *inputs)`. It returns what the public function does.

    kernels: Triton's, which take addresses; libraries' take tensors. names: of the tensors in the text.
    """
    arguments = {k.name: _pointers(kernels[k.name]) if k.name in kernels else buffers_of(k) for k in graph.kernels}
    at = _addresses([b for name in kernels for b in arguments[name]], names)
    by_library = {b for name, buffers in arguments.items() if name not in kernels for b in buffers}
    made = {k.name: k.stores[0].buffer for k in graph.kernels if k.name not in kernels and makes_result(graph, k)}
    tensors = [*graph.outputs, *(t for t in graph.buffers if t.name in by_library)]
    own = [t for t in graph.buffers if t.name not in by_library]
    addressed = [t.name for t in graph.inputs if t.name in at]
    lines = [f"{at[x]} = {names[x]}.data_ptr()" for x in addressed]
    for i in range(0, len(addressed), NAMES_A_LINE):
        some = " | ".join(at[x] for x in addressed[i : i + NAMES_A_LINE])
        lines.append(f"joined {'|=' if i else '='} {some}")
    autocast = 'torch.is_autocast_enabled("cuda") or ' * (len(kernels) < len(arguments))
    lines.append(f"if {'joined % ALIGNMENT_BYTES or ' * bool(addressed)}{autocast}launches_are_watched():")
    comma = "," * (len(graph.inputs) == 1)
    lines.append(wrapped("    return _by_triton((", [names[t.name] for t in graph.inputs], f"{comma}))"))
    lines.append("empty, allocate, free = _FILLED if _is_deterministic() else _FRESH")
    lines.append("stream = plan.current_stream(plan.device)")
    for t in tensors:
        if t.name in made.values():
            continue
        lines.append(f"{names[t.name]} = empty({', '.join(layout_text(t, sizes))}, torch.{t.dtype})")
        if t.name in at:
            lines.append(f"{at[t.name]} = {names[t.name]}.data_ptr()")
    called = ", ".join(arguments) + "," * (len(arguments) == 1)
    launches = [f"{called} = plan.bound.get(stream) or plan.bind(stream)"]
    for name, buffers in arguments.items():
        if name in made:
            *operands, out = buffers
            launches.append(wrapped(f"{names[out]} = {name}(", [names[b] for b in operands], ")"))
            if out in at:
                launches.append(f"{at[out]} = {names[out]}.data_ptr()")
        else:
            launches.append(wrapped(f"{name}(", [(at if name in kernels else names)[b] for b in buffers], ")"))
    if own:
        lines += _scratch(own, sizes, at)
        given_back = f"    free({at[own[0].name]})  # to what comes next on the stream, as a tensor's memory is"
        launches = ["try:", textwrap.indent("\n".join(launches), "    "), "finally:", given_back]
    outputs = ", ".join(names[t.name] for t in graph.outputs)
    result = outputs if len(graph.outputs) == 1 else f"({outputs})"
    return textwrap.indent("\n".join([*lines, *launches, f"return {result}"]), "    ")


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


def _scratch(buffers: Sequence[Tensor], sizes: Mapping[str, int], at: Mapping[str, str]) -> list[str]:
    """One allocation for all of them."""
    needed = [prod(sizes[d] for d in t.dims) * DTYPE_BYTES[t.dtype] for t in buffers]
    starts = [0, *itertools.accumulate(-(-n // SCRATCH_BYTES) * SCRATCH_BYTES for n in needed)]
    first, *others = (at[t.name] for t in buffers)
    lines = [f"{first} = allocate({starts[-1]}, stream)"]
    return lines + [f"{x} = {first} + {start}" for x, start in zip(others, starts[1:], strict=False)]
