"""Calls without Triton's dispatch. Exported files carry this text. The tuner times CUDA graphs, and needs none."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple  # Any: Triton's kernels and launches, which have no types

import torch
import triton

from mirage_cli.codegen.exported.overlap import releasing_kernels, starts_early

# How Triton 3.6 and 3.7 start a kernel that is compiled (`CompiledKernel.__getitem__`), without blanks.
CONVENTION = (
    "self.run(grid[0],grid[1],grid[2],stream,self.function,self.packed_metadata,launch_metadata,"
    "knobs.runtime.launch_enter_hook,knobs.runtime.launch_exit_hook,*args)"
)
# How what it runs then calls C (`CudaLauncher.__call__`), by version.
INTO_C = {
    "3.6": "self.launch(gridX,gridY,gridZ,stream,function,self.launch_cooperative_grid,self.launch_pdl,"
    "global_scratch,profile_scratch,*args)",
    "3.7": "self.launch(gridX,gridY,gridZ,stream,function,self.launch_cooperative_grid,self.launch_pdl,"
    "kernel_metadata,launch_metadata,launch_enter_hook,launch_exit_hook,global_scratch,profile_scratch,"
    "self.arg_annotations,self.kernel_signature,args)",
}
ALIGNMENT_BYTES = 16  # Triton compiles differently for addresses that are multiples of it and for others
KEPT_STREAMS = 64  # of one plan
LIBRARY: Any = triton
RUNTIME = LIBRARY.knobs.runtime
is_capturing = torch.cuda.is_current_stream_capturing


class Memory(NamedTuple):
    """What a call allocates with, on the current device.

    empty(shape, strides, dtype): a tensor. allocate(bytes, stream), free(address): memory that PyTorch makes no tensor
    of, in a third of the time.
    """

    empty: Callable[..., Any]
    allocate: Callable[[int, int], int]
    free: Callable[[int], None]


def memory_of_tensors() -> Memory:
    """Slower, and filled where PyTorch is to fill fresh memory."""
    allocated: dict[int, Any] = {}

    def empty(shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")

    def allocate(nbytes: int, _stream: int) -> int:
        memory = empty((nbytes,), (1,), torch.uint8)
        allocated[memory.data_ptr()] = memory
        return memory.data_ptr()

    return Memory(empty, allocate, allocated.__delitem__)


class Step(NamedTuple):
    """A kernel that Triton has compiled. run: what Triton starts it by. grid: None where it is the first argument.
    expand: its arguments, of addresses. patient: whether it starts early only behind a kernel that releases it early,
    where that is known.
    """

    run: Callable[..., Any]
    grid: int | None
    function: Any
    metadata: Any
    expand: Callable[[Sequence[int]], Sequence[Any]] | None
    patient: bool = False


class Plan:
    """The launches of a call, as Triton made them when there was one on this device for the first time.

    known: what says whether inputs are like those of an earlier call but for their data, and whether any of those may
    be trained. steps: in order; libraries' functions among them, which take tensors.
    """

    def __init__(self, device: int, kernels: Sequence[Any], noted: Mapping[Any, Sequence[Any]]) -> None:
        """kernels: of the call, in order. noted: of Triton's, what started them. Raises UnknownLaunchError."""
        self.device = device
        self.known: tuple[Callable[..., bool], bool] = (lambda *_: False), False
        self.steps = [k.step(*noted[k]) if isinstance(k, RecordedKernel) else k for k in kernels]
        self.patient = any(x.patient for x in self.steps if isinstance(x, Step))
        self.bound: dict[int, list[Callable[..., Any]]] = {}  # by stream, for calls that no CUDA graph captures
        steps = (x for x in self.steps if isinstance(x, Step))
        releasing_kernels().update(x.function for x in steps if getattr(x.run, "launch_pdl", False))
        driver: Any = triton.runtime.driver.active
        self.current_stream: Callable[[int], int] = driver.get_current_stream

    def bind(self, stream: int) -> list[Callable[..., Any]]:
        """What makes each of the launches on this stream: of addresses, or of tensors where a library is called."""
        if self.patient and is_capturing():
            return [
                x if not isinstance(x, Step) else (captured if x.patient else on_stream)(x, stream) for x in self.steps
            ]
        if len(self.bound) >= KEPT_STREAMS:
            self.bound.clear()
        self.bound[stream] = made = [on_stream(x, stream) if isinstance(x, Step) else x for x in self.steps]
        return made


def first_call(
    plans: dict[int, Plan], device: int, kernels: Sequence[Any], inputs: Sequence[Any], call: Callable[[], Any]
) -> Any:
    """The result of `call()`, in which Triton itself launches. What it starts is planned for this device if it can be.

    It cannot where the same launches might not do next time: for addresses that are less aligned, for hooks (a
    profiler's, say), and with a Triton that starts kernels in another way than is known here. Shapes and dtypes are
    not looked at: a file's are always the same.
    """
    usual = not any(x.data_ptr() % ALIGNMENT_BYTES for x in inputs) and not launches_are_watched()
    RECORDING.noted = noted = {}
    try:
        result = call()
    finally:
        RECORDING.noted = None
    if usual:
        with contextlib.suppress(UnknownLaunchError):
            plans[device] = Plan(device, kernels, noted)
    return result


class Recording(threading.local):
    """What starts in this thread while it is to be noted: by kernel, what Triton compiled, the grid and arguments."""

    noted: dict[Any, Sequence[Any]] | None = None


RECORDING = Recording()


class UnknownLaunchError(Exception):
    """A launch that only Triton itself can make."""


class RecordedKernel:
    """A kernel of Triton whose launches can be planned."""

    def __init__(self, kernel: Any, patient: bool = False, sized: bool = False) -> None:
        """sized: whether its grid follows from sizes that differ by call."""
        self.kernel, self.patient, self.sized = kernel, patient, sized

    def __getitem__(self, grid: tuple[int]) -> Any:
        return functools.partial(self.launch, grid)

    def launch(self, grid: tuple[int], *args: Any, **options: Any) -> None:
        compiled = self.kernel[grid](*args, **options)
        if RECORDING.noted is not None:
            RECORDING.noted[self] = compiled, grid, args

    def step(self, compiled: Any, grid: tuple[int], _args: Sequence[Any]) -> Step:
        """This launch. Raises UnknownLaunchError."""
        if not starts_as_known(type(compiled)):
            raise UnknownLaunchError
        first = None if self.sized else grid[0]
        return Step(compiled.run, first, compiled.function, compiled.packed_metadata, None, self.patient)


def on_stream(step: Step, stream: int) -> Callable[..., Any]:
    """What makes a launch on this stream as `step.run` does, with less Python."""
    run: Any = step.run
    grid, function, metadata, expand = step.grid, step.function, step.metadata, step.expand
    if grid is None:
        return on_any_grid(step, stream)
    way = way_into_c(type(run))
    if way is None or run.global_scratch_size or run.profile_scratch_size:
        start = functools.partial(run, grid, 1, 1, stream, function, metadata, None, None, None)
    else:
        start = functools.partial(run.launch, grid, 1, 1, stream, function, run.launch_cooperative_grid, run.launch_pdl)
        if way == "3.7":  # which takes the arguments as one
            more = metadata, None, None, None, None, None, run.arg_annotations, run.kernel_signature
            start = functools.partial(start, *more)
            return (lambda *args: start(args)) if expand is None else lambda *args: start(expand(args))
        start = functools.partial(start, None, None, metadata, None, None, None)
    return start if expand is None else lambda *args: start(*expand(args))


def on_any_grid(step: Step, stream: int) -> Callable[..., Any]:
    """The same for a launch whose grid is its first argument."""
    run: Any = step.run
    function, metadata, expand = step.function, step.metadata, step.expand
    way = way_into_c(type(run))
    if way is None or run.global_scratch_size or run.profile_scratch_size:
        start, before = run, (1, 1, stream, function, metadata, None, None, None)
    else:
        start, before = run.launch, (1, 1, stream, function, run.launch_cooperative_grid, run.launch_pdl)
        if way == "3.7":
            before = *before, metadata, None, None, None, None, None, run.arg_annotations, run.kernel_signature
            if expand is None:
                return lambda grid, *args: start(grid, *before, args)
            return lambda grid, *args: start(grid, *before, expand(args))
        before = *before, None, None, metadata, None, None, None
    if expand is None:
        return lambda grid, *args: start(grid, *before, *args)
    return lambda grid, *args: start(grid, *before, *expand(args))


def captured(step: Step, stream: int) -> Callable[..., Any]:
    """As `on_stream`, in a CUDA graph: started early only behind a kernel that releases it early."""
    run: Any = copy.copy(step.run)
    run.launch_pdl = False
    early, late = (on_stream(x, stream) for x in (step, step._replace(run=run)))
    return lambda *args: (early if starts_early(stream) else late)(*args)


def launches_are_watched() -> bool:
    """Whether somebody has set hooks that Triton calls around every launch."""
    before, after = RUNTIME.launch_enter_hook, RUNTIME.launch_exit_hook
    return bool(getattr(before, "calls", before) or getattr(after, "calls", after))


@functools.cache
def way_into_c(kind: Any) -> str | None:
    """The version of Triton that calls C as launchers of this type do, if that is known."""
    try:
        text = "".join(inspect.getsource(kind.__call__).split())
    except (AttributeError, OSError, TypeError):
        return None
    return next((version for version, call in INTO_C.items() if call in text), None)


@functools.cache
def starts_as_known(kind: Any) -> bool:
    """Whether Triton itself starts compiled kernels of this type just as plans do."""
    try:
        return CONVENTION in "".join(inspect.getsource(kind.__getitem__).split())
    except (AttributeError, OSError, TypeError):
        return False
