"""Regions of a model, and the model as a whole, timed beside what Inductor makes of the same nodes.

Both are called in one CUDA graph each, and replayed in turn: a region on the tensors that the model gives it. What the
rest of the model has computed is in the L2 then, as far as it has room; of all else there are copies that no L2 holds.
In a chain, calls follow each other; alone, an elementwise kernel that knows nothing of overlap stands before each, and
its own time is subtracted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar  # Any: models, their arguments and results

import torch

from mirage_cli.pipeline.models.inplace import changed
from mirage_cli.verify.testdata import copied

COLD_L2 = 8
"""Times the L2 that the copies of the tensors are to take, as in `tune.worker`."""
P = ParamSpec("P")
R = TypeVar("R")
MOST_COPIES, LEAST_CALLS, ROUNDS = 64, 8, 15


@dataclass(frozen=True)
class Beside:
    """Medians of one call: the geometric mean of both contexts."""

    kernel_us: float
    inductor_us: float


@dataclass(frozen=True)
class Arguments:
    """What a call of a model gives a part of it. computed: whether another part has made it."""

    tensors: tuple[Any, ...]
    computed: tuple[bool, ...]


def given_to(model: torch.fx.GraphModule, names: Iterable[str], inputs: Sequence[Any]) -> dict[str, Arguments]:
    """What a call of the model gives these modules first. What it changes in place is as before."""
    found: dict[str, Arguments] = {}
    own = [*model.parameters(), *model.buffers(), *(x for x in inputs if isinstance(x, torch.Tensor))]
    places = {x.untyped_storage().data_ptr() for x in own}

    def keeper(name: str) -> Callable[[torch.nn.Module, tuple[Any, ...]], None]:
        def keep(_: torch.nn.Module, args: tuple[Any, ...]) -> None:
            made = (isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in places for x in args)
            found.setdefault(name, Arguments(args, tuple(made)))

        return keep

    hooks = [model.get_submodule(name).register_forward_pre_hook(keeper(name)) for name in names]
    try:
        with torch.no_grad(), unchanged(model, inputs):
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


@contextmanager
def unchanged(model: torch.fx.GraphModule, inputs: Sequence[Any]) -> Generator[None]:
    """Puts back what calls of the model change meanwhile: buffers, and inputs."""
    named = dict(model.named_buffers()) | dict(model.named_parameters())
    roots = [x for n in model.graph.nodes for x in changed(n)]
    tensors = [named[n.target] for n in roots if n.op == "get_attr"]
    tensors += [x for x in inputs if isinstance(x, torch.Tensor)] if any(n.op == "placeholder" for n in roots) else []
    before = [x.clone() for x in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for x, old in zip(tensors, before, strict=True):
                x.copy_(old)


def in_own_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """A call that no mode of PyTorch reaches. While AOTAutograd compiles, modes hold in its thread, in which exported
    functions take tensors for more than numbers."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else -1

    def call() -> R:
        with torch.cuda.device(device):
            return function(*args, **kwargs)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def region_beside(kernel: Callable[..., Any], inductor: Callable[..., Any], given: Arguments) -> Beside:
    """Times a region's kernel and Inductor's code for its module."""
    pairs = [*zip(given.tensors, given.computed, strict=True)]
    cold = [x for x, computed in pairs if isinstance(x, torch.Tensor) and not computed]
    several = {id(x) for x in cold}
    sets = [[copied(x) if id(x) in several else x for x in given.tensors] for _ in range(copies(cold))]
    return timed(kernel, inductor, sets)


def copies(tensors: Sequence[torch.Tensor]) -> int:
    """How many copies of these the L2 does not hold together."""
    size = sum(x.numel() * x.element_size() for x in tensors)
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return min(MOST_COPIES, 1 + math.ceil(COLD_L2 * l2_bytes / size)) if size else 1


def timed(kernel: Callable[..., Any], inductor: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> Beside:
    """Times both on these arguments in turn."""
    samples = in_contexts([kernel, inductor], sets)
    return Beside(*(statistics.median(math.sqrt(chain * alone) for chain, alone in own) for own in samples))


def in_contexts(
    contestants: Sequence[Callable[..., Any]], sets: Sequence[Sequence[Any]]
) -> list[list[tuple[float, float]]]:
    """Samples of each contestant, µs of a call in a chain and alone, taken in turn."""
    sets = [*sets] * math.ceil(LEAST_CALLS / len(sets))
    spacer = torch.zeros(1 << 16, device="cuda")
    with torch.no_grad():
        chains = [captured([lambda f=f, x=x: f(*x) for x in sets]) for f in contestants]
        spaced = [captured([lambda f=f, x=x: (spacer.add_(1), f(*x)) for x in sets]) for f in contestants]
        alone = captured([lambda: spacer.add_(1)] * len(sets))
    samples: list[list[tuple[float, float]]] = [[] for _ in contestants]
    to_us = 1e6 / len(sets)
    for _ in range(ROUNDS):
        empty = seconds(alone)
        for own, chain, behind_spacer in zip(samples, chains, spaced, strict=True):
            alone_s = max(seconds(behind_spacer) - empty, 1e-9)
            own.append((seconds(chain) * to_us, alone_s * to_us))
    return samples


def captured(several: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in several[:3]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in several:
            call()
    return graph


def seconds(graph: torch.cuda.CUDAGraph) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    graph.replay()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) * 1e-3
