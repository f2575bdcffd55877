"""What a call of an exported function costs on the CPU beyond its launches: `python -m tools.launch_overhead`.

It needs no GPU. Stubs stand for Triton's dispatch, what Triton compiles, and the GPU; the rest is the file as users
get it, on CPU tensors. What a GPU changes: its memory is allocated by another allocator, and the current device is
asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
import triton
from triton.backends.nvidia import driver as nvidia
from triton.compiler.compiler import CompiledKernel

from mirage_cli.codegen.export import ExportInfo, load_export
from mirage_cli.codegen.exported.selfcheck import CpuTime, cpu_time
from mirage_cli.codegen.sized import Variant, any_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import canonical_text, parse_mugraph
from tests.mugraphs import CASES

TEXT = """
mugraph stubbed float16
dims m=16 k=64 n=48
input X f16[m, k]
input W f16[k, n]
output Y f16[m, n]
"""
PRODUCT = """
kernel {name} {kind}
  X = load X[m, k]
  W = load W[k, n]
  {y}[m, n] = dot(X, W; k)
  store {y}[m, n] = {y}
"""
SQUARE = """
kernel {name} generated m:tile n:grid
  {x} = load {x}[m, n]
  {y}[m, n] = mul({x}, {x})
  store {y}[m, n] = {y}
"""


def chain(kernels: int, library: bool = False) -> tuple[Program, MuGraph]:
    """X·W, squared in kernels of their own: two inputs, one output, and a buffer behind each kernel but the last.

    library: PyTorch multiplies.
    """
    values = [*(f"B{i}" for i in range(kernels - 1)), "Y"]
    text = TEXT + "".join(f"buffer {b} f16[m, n]\n" for b in values[:-1])
    text += PRODUCT.format(name="k0", y=values[0], kind="library" if library else "generated m:tile n:grid k:loop")
    for i, (x, y) in enumerate(itertools.pairwise(values), 1):
        text += SQUARE.format(name=f"k{i}", x=x, y=y)
    graph = parse_mugraph(text)
    body = tuple(e for k in graph.kernels for e in k.body)
    return Program("stubbed", graph.dims, graph.dtype, graph.inputs, body, graph.outputs), graph


def dynamic_chain(kernels: int, library: bool = False) -> tuple[Program, MuGraph]:
    """X·W, squared in kernels of their own, for 1 to 100 rows."""
    program, graph = chain(kernels, library)
    text = canonical_text(graph).replace("m:tile", "m:grid").replace("n=48\n", "n=48\ndynamic m=1..100\n", 1)
    graph = parse_mugraph(text)
    return replace(program, dynamic=graph.dynamic), graph


def schedule_of(graph: MuGraph, **choices: Any) -> Schedule:
    def tiles(k: Any) -> tuple[tuple[str, int], ...]:
        return tuple((d, 16) for d in k.with_role("grid", "split", "loop"))

    kernels = [k for k in graph.kernels if k.kind == "generated"]
    return Schedule(
        {
            k.name: KernelSchedule(tiles(k), tuple(d for d, _ in k.roles), split=3 if k.split else 1, **choices)
            for k in kernels
        }
    )


class StubDriver:
    """A GPU that is not there."""

    device = 0
    stream = 7

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, _device: int) -> int:
        return self.stream


class StubCompiled(CompiledKernel):
    """What Triton compiles: it keeps what it is started with where `calls` is a list."""

    def __init__(self, calls: list[tuple[Any, ...]] | None) -> None:
        self.function, self.packed_metadata = 3, (4, 1, 0)
        self._run = (lambda *_: None) if calls is None else (lambda *args: calls.append(args))


class StubKernel:
    """What `triton.jit` makes: it counts the launches that go through it."""

    def __init__(self, calls: list[tuple[Any, ...]] | None = None, kind: Any = StubCompiled) -> None:
        self.dispatched: list[tuple[Any, ...]] = []
        self.calls, self.kind = calls, kind

    def __getitem__(self, grid: tuple[int]) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            self.dispatched.append((grid, args, options))
            return self.kind(self.calls)

        return run


def c_launcher(launch: Callable[..., Any]) -> Any:
    """What this Triton starts a kernel by, up to where C takes over: that is `launch`."""
    run: Any = object.__new__(nvidia.CudaLauncher)
    sizes = ("num_ctas", "global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align")
    vars(run).update(dict.fromkeys(sizes, 0), launch_cooperative_grid=False, launch_pdl=True)
    vars(run).update(arg_annotations=["*fp16"], kernel_signature=b"k", launch=launch)
    return run


class StubGpu:
    """What exported files ask of PyTorch, where the CPU stands for a GPU: (object, attribute, value)."""

    answers: tuple[tuple[Any, str, Any], ...] = (
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "synchronize", lambda: None),
        (torch.Tensor, "get_device", lambda _: 0),
    )


CPU_FOR_GPU: Mapping[str, str] = {
    '"cuda"': '"cpu"',
    ".is_cuda": ".is_cpu",
    "_empty_strided_cuda": "_empty_strided_cpu",
    "from torch._C import _cuda_getDevice": "_cuda_getDevice = lambda: 0",
    "is_capturing = torch.cuda.is_current_stream_capturing": "is_capturing = bool",
    "from torch._C import _cuda_cudaCachingAllocator_raw_alloc as _allocate": "_allocate = lambda *_: 1 << 21",
    "from torch._C import _cuda_cudaCachingAllocator_raw_delete as _free": "_free = lambda _: None",
}
"""What an exported file says, and what it would say of a CPU."""


def load_with_stubs(
    program: Program,
    graph: MuGraph,
    make: Callable[[], StubKernel] = StubKernel,
    replaced: Mapping[str, str] = CPU_FOR_GPU,
) -> ModuleType:
    """The exported file, which takes the CPU for a GPU. Its kernels are stubs that compute nothing."""
    return stubbed(any_source(Variant(program, graph, schedule_of(graph), ExportInfo())), make, replaced)


def stubbed(
    source: str, make: Callable[[], StubKernel] = StubKernel, replaced: Mapping[str, str] = CPU_FOR_GPU
) -> ModuleType:
    """The same of the text of an exported file."""
    for cuda, cpu in replaced.items():
        assert cuda in source
        source = source.replace(cuda, cpu)
    module: Any = load_export(source)
    module._INTERPRETED = False
    for name in kernel_names(module):
        getattr(module, name).kernel = make()
    return module


def kernel_names(module: Any) -> list[str]:
    """Of Triton's kernels."""
    return [name for name, value in vars(module).items() if isinstance(value, module.RecordedKernel)]


def inputs_of(program: Program) -> list[torch.Tensor]:
    sizes = program.sizes
    return [torch.zeros([sizes[d] for d in t.dims], dtype=getattr(torch, t.dtype)) for t in program.inputs]


def measure(program: Program, graph: MuGraph) -> CpuTime:
    """The overhead of a call, with the sizes of the program. The stubs must be in place."""
    module: Any = load_with_stubs(program, graph)
    inputs = inputs_of(program)
    run = getattr(module, program.name)
    return cpu_time(lambda: run(*inputs), module._PLANS, 0, vars(module))


def main() -> None:
    driver: Any = triton.runtime.driver
    driver.set_active(StubDriver())
    for where, name, answer in StubGpu.answers:
        setattr(where, name, answer)
    attention = CASES["split_attention"]
    small = {"h": 2, "q": 16, "s": 64, "d": 16, "e": 16}
    graphs = {f"{n} kernels": chain(n) for n in (1, 2, 3)}
    graphs["library and Triton"] = chain(2, library=True)
    graphs |= {f"{n} kernels, any m": dynamic_chain(n) for n in (1, 3)}
    graphs["library, any m"] = dynamic_chain(2, library=True)
    graphs["split attention"] = attention.program.resized(small), attention.graph.resized(small)
    for name, (program, graph) in graphs.items():
        print(f"{name:<18}  {measure(program, graph)}")


if __name__ == "__main__":
    main()
