"""Kernels compiled, and exported files that start theirs, with no GPU present."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Tensor
from mirage_cli.ir.schedule import Schedule
from mirage_cli.tune.compilefarm import Compiled, CompileFarm, KernelResources
from mirage_cli.tune.measure import Candidate, TensorSpec

if TYPE_CHECKING:
    from tools.launch_overhead import StubDriver

Compile = Callable[[MuGraph, Schedule, int], tuple[KernelResources, ...]]
CompileText = Callable[[MuGraph, str, int], Compiled]
Stages = Callable[[MuGraph, Schedule, int, str], str]


@pytest.fixture(scope="session")
def compiled_text(farm: Callable[[int], CompileFarm]) -> CompileText:
    """What becomes of a text of a μGraph's kernels for an architecture."""

    def compile_for(graph: MuGraph, source: str, arch: int) -> Compiled:
        def specs(tensors: tuple[Tensor, ...]) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(t.name, tuple(graph.sizes[d] for d in t.dims), t.dtype) for t in tensors)

        job = Candidate(graph.name, source, timeout_s=60)
        ((_, kernels),) = farm(arch).compile_all([job], specs(graph.inputs), specs(graph.outputs))
        return kernels

    return compile_for


@pytest.fixture(scope="session")
def compiled(compiled_text: CompileText) -> Compile:
    """The kernels of a μGraph, which spill nothing, at a schedule for an architecture."""

    def compile_for(graph: MuGraph, plan: Schedule, arch: int) -> tuple[KernelResources, ...]:
        kernels = compiled_text(graph, source := kernels_source(graph, plan), arch)
        assert isinstance(kernels, tuple), f"{kernels}\n{source}"
        assert all(isinstance(k, KernelResources) and k.spill_bytes == 0 for k in kernels)
        return kernels

    return compile_for


@pytest.fixture(scope="session")
def stage(compiled: Compile) -> Stages:
    """A stage of the compiler (`ptx`, `ttgir`) for all kernels of a μGraph."""
    from triton.runtime.cache import get_cache_manager

    def text(graph: MuGraph, plan: Schedule, arch: int, name: str) -> str:
        files = [get_cache_manager(k.cache_key).get_file(f"{k.name}.{name}") for k in compiled(graph, plan, arch)]
        return "\n".join(Path(f).read_text(encoding="utf-8") for f in files if f is not None)

    return text


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    """A GPU, as far as an exported file asks torch and Triton for one."""
    import triton

    from tools.launch_overhead import StubDriver, StubGpu

    stub = StubDriver()
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=stub))
    for where, name, answer in StubGpu.answers:
        monkeypatch.setattr(where, name, answer)
    return stub
