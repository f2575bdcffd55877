"""What a program asks of a machine: its tensors and PyTorch forms, and its floor."""

from __future__ import annotations

from functools import lru_cache

from mirage_cli.ir.derived import lower
from mirage_cli.ir.masked import product_flops, program_bytes
from mirage_cli.ir.precision import product_dtype
from mirage_cli.ir.program import Program, Tensor, spread
from mirage_cli.ir.rewrites.joined import in_parts
from mirage_cli.target.gpus import Target
from mirage_cli.tune.measure import Problem, TensorSpec
from mirage_cli.verify.facts import blocks_of, independent_axis, longest_sum, where_outputs_lie


@lru_cache(maxsize=64)
def floor_of(program: Program, target: Target) -> float:
    """Microseconds below which no kernel is expected: bytes that must be read and written over measured rates, or the
    program's products over the measured matmul rate. Of products under a mask, what it leaves of them is counted."""
    lowered = in_parts(lower(program))
    return target.floor_us(*program_bytes(lowered), product_flops(lowered), product_dtype(lowered))


def specs_of(program: Program) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """What the processes that compile and run kernels are told of the inputs, and of what is returned."""
    sizes = program.sizes

    def spec(t: Tensor) -> TensorSpec:
        strides = t.steps(sizes) if t.strides else None
        return TensorSpec(t.name, tuple(sizes[d] for d in t.dims), t.dtype, spread(t, sizes), strides)

    return tuple(map(spec, program.inputs)), tuple(map(spec, program.results))


def measured_problem(program: Program, seed: int) -> Problem:
    """The program's tensors and its PyTorch forms, as the measuring process is given them."""
    from mirage_cli.codegen.torch_source import torch_source

    apart = program.apart()
    lowered = lower(apart)
    blocks = blocks_of(program)
    blocked = [axis for axis, *_ in blocks]
    forms = [torch_source(apart, blocked=blocked), torch_source(lowered, "stepwise", blocked)]
    forms += [torch_source(program, "whole")] if program.parts else []
    source = "\n\n\n".join(["import torch", *forms])
    inputs, outputs = specs_of(program)
    called = "whole" if program.parts else "reference"
    cut, lies = independent_axis(program), where_outputs_lie(program)
    judged = cut, lies, called, program.arguments, program.dtype, blocks
    return Problem(inputs, outputs, source, seed, *judged)


def problems_at_other_sizes(program: Program, seed: int) -> tuple[tuple[Problem, int], ...]:
    """The same for some sizes of its dynamic axes that it is not tuned for, each with the terms of its longest
    contraction."""
    some = program.some_sizes(program.dynamic, seed)
    others = (program.resized(sizes) for sizes in some if not sizes.items() <= program.sizes.items())
    return tuple((measured_problem(p, seed), longest_sum(p)) for p in others)
