"""What a program asks of a machine: its identity in the database, its tensors and PyTorch forms, and its floor."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from mirage_cli import __version__
from mirage_cli.ir.derived import lower
from mirage_cli.ir.masked import product_flops, program_bytes
from mirage_cli.ir.program import Program, Tensor, spread
from mirage_cli.search.cost import floor_us
from mirage_cli.store.records import Key
from mirage_cli.target.gpus import Target, driver_version
from mirage_cli.tune.measure import Problem, TensorSpec
from mirage_cli.verify.numeric import independent_axis, longest_sum, where_outputs_lie


def program_hash(program: Program) -> str:
    """Identity of a program at its sizes."""
    return hashlib.sha256(str(program).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of what results depend on; empty where a package is missing."""
    found = {"mirage": __version__}
    for name in ("torch", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def key_of(program: Program, target: Target, measured: bool) -> Key:
    v = versions()
    driver = (driver_version() or "") if measured else ""
    gpu = target.name if measured else f"{target.name} (predicted)"
    return Key(program_hash(program), program.dims, program.dtype, gpu, driver, v["torch"], v["triton"], v["mirage"])


def keys_of(programs: Sequence[Program], target: Target, measured: bool) -> list[Key]:
    """With the versions that are installed where it is called."""
    return [key_of(p, target, measured) for p in programs]


def floor_of(program: Program, target: Target) -> float:
    """Microseconds below which no kernel is expected: bytes that must move over the measured copy rate, or the
    program's products over the measured matmul rate. Of products under a mask, what it leaves of them is counted."""
    lowered = lower(program)
    return floor_us(program_bytes(lowered), product_flops(lowered), target, program.dtype)


def measured_problem(program: Program, seed: int) -> Problem:
    """The program's tensors and its PyTorch forms, as the measuring process is given them."""
    from mirage_cli.codegen.torch_source import torch_source

    sizes = program.sizes

    def spec(t: Tensor) -> TensorSpec:
        return TensorSpec(t.name, tuple(sizes[d] for d in t.dims), t.dtype, spread(t, sizes))

    apart = program.apart()
    forms = [torch_source(apart), torch_source(lower(apart), "stepwise")]
    forms += [torch_source(program, "whole")] if program.parts else []
    source = "\n\n\n".join(["import torch", *forms])
    tensors = tuple(map(spec, program.inputs)), tuple(map(spec, program.results))
    called = "whole" if program.parts else "reference"
    return Problem(
        *tensors, source, seed, independent_axis(program), where_outputs_lie(program), called, program.arguments
    )


def problems_at_other_sizes(program: Program, seed: int) -> tuple[tuple[Problem, int], ...]:
    """The same for some sizes of its dynamic axes that it is not tuned for, each with the terms of its longest
    contraction."""
    some = program.some_sizes(program.dynamic, seed)
    others = (program.resized(sizes) for sizes in some if not sizes.items() <= program.sizes.items())
    return tuple((measured_problem(p, seed), longest_sum(p)) for p in others)
