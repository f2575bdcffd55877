"""Launches without Triton's dispatch. Exported files carry this text. The tuner times CUDA graphs, and needs none."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import triton

# How Triton 3.6 and 3.7 start a kernel that is compiled (`CompiledKernel.__getitem__`), without blanks.
CONVENTION = (
    "self.run(grid[0],grid[1],grid[2],stream,self.function,self.packed_metadata,launch_metadata,"
    "knobs.runtime.launch_enter_hook,knobs.runtime.launch_exit_hook,*args)"
)


class DirectLaunch:
    """A kernel that goes through Triton's dispatch once for each device and each alignment of its arguments.

    Later launches start what Triton compiled then, on the current stream, with the addresses of their arguments: the
    same kernel for a fraction of the CPU time. Triton's own way remains for all else: its interpreter and other tensors
    that are not on a GPU, arguments that are no tensors, launch hooks (a profiler's, say), and a Triton that starts
    compiled kernels in another way than is known here. Dtypes are not looked at: a file's are always the same.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[tuple[int, ...], Any] = {}

    def __getitem__(self, grid: tuple[int]) -> Any:
        return functools.partial(self.launch, grid)

    def launch(self, grid: tuple[int], *args: Any, **options: Any) -> None:
        try:
            on_gpu, addresses = args[0].is_cuda, [x.data_ptr() for x in args]
        except AttributeError:  # an argument that is no tensor
            on_gpu, addresses = False, []
        if not on_gpu:
            self.kernel[grid](*args, **options)
            return
        driver: Any = triton.runtime.driver.active
        device = driver.get_current_device()
        key = device, *[a % 16 == 0 for a in addresses]  # all that Triton compiles differently for
        compiled = self.compiled.get(key)
        if compiled is None or launches_are_watched():
            compiled = self.kernel[grid](*args, **options)
            if starts_as_known(type(compiled)):
                self.compiled[key] = compiled
            return
        stream = driver.get_current_stream(device)
        function, metadata = compiled.function, compiled.packed_metadata
        compiled.run(*grid, 1, 1, stream, function, metadata, None, None, None, *addresses)


def launches_are_watched() -> bool:
    """Whether somebody has set hooks that Triton calls around every launch."""
    library: Any = triton
    knobs = library.knobs.runtime
    before, after = knobs.launch_enter_hook, knobs.launch_exit_hook
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))


@functools.cache
def starts_as_known(kind: Any) -> bool:
    """Whether Triton itself starts compiled kernels of this type just as `DirectLaunch` does."""
    try:
        return CONVENTION in "".join(inspect.getsource(kind.__getitem__).split())
    except (AttributeError, OSError, TypeError):
        return False
