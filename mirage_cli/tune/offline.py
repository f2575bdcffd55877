"""A process that compiles candidates for a GPU that need not be there. `tune.compilefarm` asks it.

A candidate's own `launch` is run on meta tensors, with Triton's driver replaced by one that only names the target and
with every launch turned into a compilation. So each kernel is compiled with exactly the signature, constants, options,
and alignment of the real launch (a meta tensor's address is 0, aligned as PyTorch's allocations are), and the entry in
Triton's disk cache is the one that the real launch looks up. The key holds, in Triton 3.6 and 3.7 alike
(`triton.runtime.cache.get_cache_key`): the compiler's own hash, the kernel's text with what it calls and its line
number, signature, divisibility, constants, target, ptxas version, options, and some environment variables.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import re
import signal
import subprocess
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any  # what Triton has compiled, and its launches, which have no types

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from mirage_cli.codegen.races import races
from mirage_cli.tune.compilefarm import CompileRequest, KernelResources
from mirage_cli.tune.measure import Candidate, Failure, FailureKind, TensorSpec
from mirage_cli.tune.modules import hash_triton, keep_hashes, load_module, read_generated

RESOURCE_LINE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


def prepare() -> None:
    hash_triton()


def main(connection: Connection[Any, Any], arch: int, directory: Path) -> None:
    """Answers every request with the resources of the kernels it launches, or the failure."""
    active: Any = driver
    active.set_active(OfflineDriver(arch))
    compiled: dict[str, Any] = {}
    turns = itertools.repeat(True)
    known: dict[str, KernelResources] = {}
    jit: Any = JITFunction
    launch = jit.run

    def compile_only(self: Any, *args: Any, grid: Any, **kwargs: Any) -> None:
        if next(turns):
            kernel = launch(self, *args, grid=grid, **{**kwargs, "warmup": True})
            compiled[kernel.hash] = kernel

    jit.run = compile_only
    read_generated(directory)
    connection.send("ready")
    hash_triton()
    while True:
        request: CompileRequest = connection.recv()
        compiled.clear()
        turns = itertools.cycle(i == request.share for i in range(request.candidate.shares))
        try:
            launch_on_meta(request.candidate, request.inputs, request.outputs, directory)
            for key, kernel in compiled.items():
                if key not in known:
                    refuse_races(kernel)
                    known[key] = resources(kernel)
                    compile_launcher(kernel)
            answer = tuple(known[key] for key in compiled)
        except RaceError as e:
            answer = Failure(FailureKind.RACE, str(e))
        except Exception as e:  # the border of the process: whatever the compiler raises is the candidate's failure
            if tool_was_killed(e):
                os.kill(os.getpid(), signal.SIGKILL)
            kind = FailureKind.OUT_OF_MEMORY if type(e).__name__ == "OutOfResources" else FailureKind.COMPILE
            answer = Failure(kind, f"{type(e).__name__}: {e}"[:2000])
        connection.send(answer)


def tool_was_killed(error: BaseException) -> bool:
    """Whether a program that the compiler runs (ptxas, cuobjdump) ended by SIGKILL, which is no fault of the candidate:
    memory was short, or a person did it. This process ends like it, so that the candidate is compiled again."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, subprocess.CalledProcessError) and cause.returncode == -signal.SIGKILL:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


class OfflineDriver:
    """What Triton asks of a driver in order to compile: the target, and one device with one stream."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def launch_on_meta(
    candidate: Candidate, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], directory: Path
) -> None:
    """Runs the candidate's `launch` where tensors have shapes and no data."""
    module = load_module(candidate.source, directory)
    with torch.no_grad():
        module.launch([_meta(t) for t in inputs], [_meta(t) for t in outputs], module.make_scratch("meta"))
    keep_hashes(module)


class RaceError(Exception):
    """A kernel that may overwrite what it still reads. It may be right whenever it is run, so no judge is asked."""


def refuse_races(kernel: Any) -> None:
    """Raises RaceError."""
    if found := races(kernel.asm["ttgir"]):
        raise RaceError(f"{kernel.metadata.name}: {found}")


def compile_launcher(kernel: Any) -> None:
    """Triton 3.6 launches the kernels of each signature by a C function of their own, a tenth of a second's compilation
    that the GPU process is spared. It is linked with the driver, where there is one; Triton 3.7 has none."""
    nvidia = importlib.import_module("triton.backends.nvidia.driver")
    if hasattr(nvidia, "make_launcher"):
        with contextlib.suppress(AssertionError):  # there is no driver
            nvidia.CudaLauncher(kernel.src, kernel.metadata)


def resources(kernel: Any) -> KernelResources:
    """What one launch of this compiled kernel takes. Local memory beyond what the program asked for is spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = RESOURCE_LINE.search(text)
    if found is None:
        raise ValueError(f"cuobjdump names no resources: {text!r}")
    registers, stack, _, local = map(int, found.groups())
    return KernelResources(
        name=kernel.metadata.name,
        shared_bytes=kernel.metadata.shared,
        registers=registers,
        spill_bytes=stack + local,
        warps=kernel.metadata.num_warps,
        cache_key=kernel.hash,
    )


def _meta(spec: TensorSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    if spec.strides is None:
        return torch.empty(spec.shape, dtype=dtype, device="meta")
    return torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device="meta")
