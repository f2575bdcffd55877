"""What `python FILE` does in an exported kernel. Exported files carry this text, behind that of what it imports."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any  # what a kernel takes and returns: tensors, or a tuple of them

import torch

from mirage_cli.verify.halves import add_by_halves
from mirage_cli.verify.lies import Lies, changed_elsewhere, fresh_memory_is_nan, outputs_of, to_be_changed
from mirage_cli.verify.pieces import Block, Cut, as_tuple
from mirage_cli.verify.testdata import DISTRIBUTIONS, Distribution
from mirage_cli.verify.yardstick import Judgement, Reference, untold

# -- the check


def check(
    run: Callable[..., Any],
    eager: Callable[..., Any],
    stepwise: Callable[..., Any],
    draw_inputs: Callable[[Distribution, int], list[torch.Tensor]],
    contracted: int,
    precision: torch.dtype,
    tolerance: float,
    device: torch.device,
    cut: Cut | None,
    lies: Sequence[Lies] | None,
    blocks: tuple[Block, ...] = (),
) -> Iterator[tuple[bool, str]]:
    """For each distribution: whether it passes, and a line with the errors against float64.

    eager: the program's outputs in PyTorch. stepwise: the same, operator by operator, to be rounded at every step.
    draw_inputs: of a distribution and a seed. lies: where a call of `run` leaves its outputs; None where it returns
    them.
    """
    program = Reference(eager, stepwise, precision, blocks=blocks)
    cut = cut and cut.on(device)
    if device.type == "cpu":
        add_by_halves()
    found: list[Judgement] = []
    for seed, kind in enumerate(DISTRIBUTIONS):
        inputs = draw_inputs(kind, seed)
        with fresh_memory_is_nan():
            given = to_be_changed(lies, inputs) if lies else inputs
            outputs = outputs_of(lies, as_tuple(run(*given)), given)
        verdict = program.judge(kind.name, inputs, outputs, tolerance, True, contracted, cut)
        found.append(verdict)
        figures = f"error {verdict.error.norm:.2e}, eager's {verdict.eager_error.norm:.2e}"
        overflow = f", but {verdict.excused} overflow as in eager" if verdict.excused else ""
        changed = ", ".join(f"number {i}" for i in changed_elsewhere(lies, given, inputs)) if lies else ""
        problem = verdict.problem or (f"changes what it should not of input {changed}" if changed else None)
        line = f"{kind.name:<11} {figures}  {problem or 'passes'}{overflow}  ({kind.doc})"
        yield problem is None, line
    if nothing := untold(found):
        yield False, nothing


# -- the timing

SAMPLES = 21
COLD = 8  # times the L2 cache that the input sets hold together


def time_beside_eager(
    run: Callable[..., Any], eager: Callable[..., Any], make_inputs: Callable[[int], list[torch.Tensor]]
) -> Iterator[str]:
    """A line for both, with median and spread: replays of a CUDA graph of calls over input sets beyond the L2. Of eager
    PyTorch there is none where memory has no room for what it makes on its way.

    What no graph can hold, such as eager PyTorch's rows by a mask, is called instead, and its line says so.
    """
    first = make_inputs(0)
    size = sum(x.numel() * x.element_size() for x in first)
    l2 = torch.cuda.get_device_properties(first[0].device).L2_cache_size
    room = torch.cuda.mem_get_info(first[0].device)[0] // 4
    count = max(1, min(math.ceil(COLD * l2 / size), room // size, 256))
    sets = [first, *(make_inputs(i) for i in range(1, count))]
    ways = {"this kernel": capture(run, sets)}
    with contextlib.suppress(torch.OutOfMemoryError):
        ways["eager"] = capture(eager, sets)
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(SAMPLES):
        for name, (replay, _) in ways.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            stop.record()
            stop.synchronize()
            samples[name].append(start.elapsed_time(stop) * 1e3 / len(sets))
    for name, times in samples.items():
        low, _, high = statistics.quantiles(times, n=4)
        figures = f"{statistics.median(times):.2f} µs a call, quartiles {low:.2f} to {high:.2f}"
        inputs = f"inputs of {len(sets) * size / l2:.1f} times the L2"
        yield f"{name:<11} {figures}, {SAMPLES} samples of {len(sets)} calls, {inputs}{ways[name][1]}"


def capture(run: Callable[..., Any], sets: Sequence[Sequence[torch.Tensor]]) -> tuple[Callable[[], Any], str]:
    """A replay of one call for each input set, and what there is to say of it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for inputs in sets[:3]:
            run(*inputs)
    torch.cuda.current_stream().wait_stream(stream)

    def calls() -> None:
        for inputs in sets:
            run(*inputs)

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            calls()
    except RuntimeError:
        torch.cuda.synchronize()
        return calls, ", no CUDA graph"
    return graph.replay, ""


# -- the CPU's time

BATCHES = 41
BATCH = 50  # calls; the GPU's queue holds about 1,000 launches, and a CPU that fills it waits for the GPU


@dataclass(frozen=True)
class CpuTime:
    """CPU time of one call, µs: medians over batches of calls.

    call_us: all of the call. overhead_us: of a call whose launches, of Triton kernels and of libraries, do nothing.
    (Not the difference from the launches alone: what a launch takes depends on how busy the GPU is.) None where the
    file launches by Triton's own way. own_us: of a call that allocates nothing either; what allocating takes depends
    on the sizes and on what else PyTorch's allocator holds. launches: how many there are, if overhead_us is known.
    """

    call_us: float
    overhead_us: float | None = None
    own_us: float | None = None
    launches: int = 0

    def __str__(self) -> str:
        figures = f"{self.call_us:.2f} µs a call"
        if self.overhead_us is not None and self.own_us is not None:
            parts = f"{self.own_us:.2f} its own, {max(self.overhead_us - self.own_us, 0.0):.2f} PyTorch's for memory"
            without = f"a call without its {self.launches} launches, {parts}"
            figures = f"overhead {self.overhead_us:.2f} µs: {without}; {figures} with them"
        return f"{'CPU':<11} {figures}, medians of {BATCHES} batches of {BATCH} calls"


def cpu_time(call: Callable[[], Any], plans: Mapping[int, Any], device: int, names: dict[str, Any]) -> CpuTime:
    """Times `call()` without launches and memory, then with memory, then as it is. The GPU is idle before each batch,
    and not waited for in one.

    plans: by which `call()` launches, by device. device: the current one. names: the globals of the exported file.
    """
    call()  # plans what is not planned yet
    plan = plans.get(device)
    if plan is None:
        return CpuTime(median_us(call))
    with launching_nothing(plan, device, call):
        with allocating_nothing(names, call):
            own_us = median_us(call)
        overhead_us = median_us(call)
    call_us = median_us(call)
    torch.cuda.synchronize()
    return CpuTime(call_us, overhead_us, own_us, len(plan.steps))


def median_us(call: Callable[[], Any]) -> float:
    return statistics.median(batch_us(call) for _ in range(BATCHES))


def batch_us(call: Callable[[], Any]) -> float:
    """CPU time of one call among many: of this thread, for other processes may have the core in between."""
    torch.cuda.synchronize()
    began_ns = time.thread_time_ns()
    for _ in range(BATCH):
        call()
    return (time.thread_time_ns() - began_ns) / 1e3 / BATCH


@contextlib.contextmanager
def allocating_nothing(names: dict[str, Any], call: Callable[[], Any]) -> Generator[None]:
    """The file's calls are given the memory of one of them meanwhile."""
    memory = names["_FRESH"]
    tensors: list[Any] = []
    addresses: list[int] = []

    def empty(*layout: Any) -> Any:
        tensors.append(memory.empty(*layout))
        return tensors[-1]

    def allocate(nbytes: int, stream: int) -> int:
        addresses.append(memory.allocate(nbytes, stream))
        return addresses[-1]

    names["_FRESH"] = memory._replace(empty=empty, allocate=allocate, free=lambda _: None)
    try:
        call()
        a_tensor, an_address = itertools.cycle(tensors), itertools.cycle(addresses)
        names["_FRESH"] = memory._replace(
            empty=lambda *_: next(a_tensor), allocate=lambda *_: next(an_address), free=lambda _: None
        )
        yield
    finally:
        names["_FRESH"] = memory
        for address in addresses:
            memory.free(address)


@contextlib.contextmanager
def launching_nothing(plan: Any, device: int, call: Callable[[], Any]) -> Generator[None]:
    """The plan's launches on the current stream do nothing meanwhile: they return what they have returned before."""
    stream = plan.current_stream(device)
    bound = plan.bound.get(stream) or plan.bind(stream)
    results: list[Any] = []
    plan.bound[stream] = [lambda *args, f=f: results.append(f(*args)) or results[-1] for f in bound]
    try:
        call()
        plan.bound[stream] = [lambda *_, y=y: y for y in results]
        yield
    finally:
        plan.bound[stream] = bound
