"""Calls without Triton's dispatch. Exported files carry this text. The tuner times CUDA graphs, and needs none."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton

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
SCRATCH_BYTES = 256  # where each scratch buffer starts in memory that they share: at a multiple of it


class Memory(NamedTuple):
    """What a call allocates with, on the current device.

    empty(shape, strides, dtype): a tensor. allocate(bytes, stream), free(address): memory that PyTorch makes no tensor
    of, in a third of the time; None where this PyTorch has no such thing.
    """

    empty: Callable[..., Any]
    allocate: Callable[[int, int], int] | None
    free: Callable[[int], None] | None


class PlannedLaunch:
    """`launch`, on scratch memory of its own, by a plan: what it started when it was first called on a device.

    A call by the plan starts what Triton compiled then, on the current stream, with the addresses of its own tensors:
    the same kernels for a fraction of the CPU time. Triton's own way remains for all else: addresses that are aligned
    to less than 16 bytes, launch hooks (a profiler's, say), and a Triton that starts kernels in another way than is
    known here. Shapes and dtypes are not looked at: a file's are always the same.
    """

    def __init__(self, launch: Callable[..., None], make_scratch: Callable[..., Any], memory: Memory) -> None:
        self.launch, self.make_scratch, self.memory = launch, make_scratch, memory
        self.plans: dict[int, Plan] = {}

    def __call__(self, device: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """device: the index of the current one, which holds the tensors."""
        tensors = *inputs, *outputs
        addresses = [x.data_ptr() for x in tensors]
        joined = 0
        for a in addresses:
            joined |= a
        if joined % ALIGNMENT_BYTES or launches_are_watched():
            self.launch(inputs, outputs, self.make_scratch(inputs[0].device))
        elif (plan := self.plans.get(device)) is not None:
            plan.start(device, tensors, addresses)
        else:
            self.record(device, inputs, outputs)

    def record(self, device: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Launches in Triton's own way, and plans to do the same again if that can be."""
        inputs = [x.detach() for x in inputs]  # objects that differ, even where one tensor is given twice
        scratch = self.make_scratch(inputs[0].device)
        RECORDING.noted = noted = []
        try:
            self.launch(inputs, outputs, scratch)
        finally:
            RECORDING.noted = None
        with contextlib.suppress(UnknownLaunchError):
            self.plans[device] = Plan(noted, [*inputs, *outputs], scratch, self.memory)


class Step(NamedTuple):
    """One launch of a plan.

    run: what Triton starts a compiled kernel by, or a function of a library, whose grid is None. pick: takes the
    launch's arguments out of a call's values.
    """

    run: Callable[..., Any]
    grid: int | None
    function: Any
    metadata: Any
    pick: Callable[[Sequence[Any]], Sequence[Any]]


class Bound(NamedTuple):
    """A launch on one stream: `start(*pick(values))` makes it for a call's values."""

    start: Callable[..., Any]
    pick: Callable[[Sequence[Any]], Sequence[Any]]


class Plan:
    """The launches of one call.

    They take their arguments from the call's values: the addresses of inputs, outputs, shared and own scratch, then
    the tensors themselves but for the own scratch, which no library sees and of which PyTorch makes none.
    """

    def __init__(self, noted: Sequence[Any], tensors: Sequence[Any], scratch: Sequence[Any], memory: Memory) -> None:
        """tensors: inputs and outputs. Raises UnknownLaunchError."""
        if memory.allocate is None or memory.free is None:
            raise UnknownLaunchError
        self.empty, self.allocate, self.free = memory.empty, memory.allocate, memory.free
        in_libraries = {id(x) for _, _, grid, args in noted if grid is None for x in args}
        self.needs_tensors = bool(in_libraries)
        shared = [x for x in scratch if id(x) in in_libraries]
        own = [x for x in scratch if id(x) not in in_libraries]
        addresses = {id(x): i for i, x in enumerate([*tensors, *shared, *own])}
        themselves = {id(x): len(addresses) + i for i, x in enumerate([*tensors, *shared])}
        self.steps: list[Step] = [
            kernel.step(started, grid, args, themselves if grid is None else addresses)
            for kernel, started, grid, args in noted
        ]
        self.bound: dict[int, list[Bound]] = {}  # by stream
        self.shared = [(tuple(x.shape), x.stride(), x.dtype) for x in shared]
        sizes = [-(-x.nbytes // SCRATCH_BYTES) * SCRATCH_BYTES for x in own]
        self.own_bytes = sum(sizes)
        self.own_offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        driver: Any = triton.runtime.driver.active
        self.current_stream: Callable[[int], int] = driver.get_current_stream

    def start(self, device: int, tensors: Sequence[Any], addresses: list[int]) -> None:
        """tensors: inputs and outputs, which are at these addresses. The list is the plan's from now on."""
        stream = self.current_stream(device)
        if self.shared:
            made = [self.empty(*layout) for layout in self.shared]
            tensors = *tensors, *made
            addresses += [x.data_ptr() for x in made]
        own = filled = None
        if self.own_bytes:
            if torch.are_deterministic_algorithms_enabled():  # PyTorch is to fill fresh memory
                filled = self.empty((self.own_bytes,), (1,), torch.uint8)  # kept until all is launched
                first = filled.data_ptr()
            else:
                own = first = self.allocate(self.own_bytes, stream)
            addresses += [first + offset for offset in self.own_offsets]
        values = [*addresses, *tensors] if self.needs_tensors else addresses
        try:
            for start, pick in self.bound.get(stream) or self.bind(stream):
                start(*pick(values))
        finally:
            if own is not None:
                self.free(own)  # it is given to what comes next on the stream, as a tensor's memory is

    def bind(self, stream: int) -> list[Bound]:
        """The launches on this stream."""
        if len(self.bound) >= KEPT_STREAMS:
            self.bound.clear()
        self.bound[stream] = made = [on_stream(step, stream) for step in self.steps]
        return made


class Recording(threading.local):
    """What is started in this thread, while it is to be noted: kernel, what it started, grid and arguments."""

    noted: list[tuple[Any, Any, Any, Sequence[Any]]] | None = None

    def note(self, kernel: Any, started: Any, grid: Any, args: Sequence[Any]) -> None:
        if self.noted is not None:
            self.noted.append((kernel, started, grid, args))


RECORDING = Recording()


class UnknownLaunchError(Exception):
    """A launch that only Triton itself can make."""


class RecordedKernel:
    """A kernel of Triton whose launches can be planned."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int]) -> Any:
        return functools.partial(self.launch, grid)

    def launch(self, grid: tuple[int], *args: Any, **options: Any) -> None:
        RECORDING.note(self, self.kernel[grid](*args, **options), grid, args)

    def step(self, compiled: Any, grid: tuple[int], args: Sequence[Any], positions: Mapping[int, int]) -> Step:
        """This launch. positions: among a call's values, by a tensor's id. Raises UnknownLaunchError."""
        if not starts_as_known(type(compiled)):
            raise UnknownLaunchError
        return Step(compiled.run, grid[0], compiled.function, compiled.packed_metadata, picker(args, positions))


class RecordedCall:
    """A function that calls a library with tensors. Plans hold it with a grid of None, and give it tensors."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __call__(self, *tensors: Any) -> None:
        self.function(*tensors)
        RECORDING.note(self, None, None, tensors)

    def step(self, _started: None, _grid: None, tensors: Sequence[Any], positions: Mapping[int, int]) -> Step:
        return Step(self.function, None, None, None, picker(tensors, positions))


def picker(args: Sequence[Any], positions: Mapping[int, int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes these arguments out of a call's values."""
    try:
        places = [positions[id(a)] for a in args]
    except KeyError:
        raise UnknownLaunchError from None
    return operator.itemgetter(*places) if len(places) > 1 else lambda values: [values[i] for i in places]


def on_stream(step: Step, stream: int) -> Bound:
    """What makes a launch on this stream as `step.run` does, with less Python."""
    run: Any = step.run
    grid, function, metadata, pick = step.grid, step.function, step.metadata, step.pick
    if grid is None:
        return Bound(run, pick)
    way = way_into_c(type(run))
    if way is None or run.global_scratch_size or run.profile_scratch_size:
        return Bound(functools.partial(run, grid, 1, 1, stream, function, metadata, None, None, None), pick)
    start = functools.partial(run.launch, grid, 1, 1, stream, function, run.launch_cooperative_grid, run.launch_pdl)
    if way == "3.6":
        return Bound(functools.partial(start, None, None, metadata, None, None, None), pick)
    more = metadata, None, None, None, None, None, run.arg_annotations, run.kernel_signature
    return Bound(functools.partial(start, *more), lambda values: (pick(values),))


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
