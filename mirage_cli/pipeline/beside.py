"""Regions of a model timed beside what Inductor makes of the same nodes, on the tensors that the model gives them.

Both are called in one CUDA graph each, over copies of the tensors that no L2 holds, and replayed in turn. In a chain,
calls follow each other; alone, an elementwise kernel that knows nothing of overlap stands before each, and its own time
is subtracted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any  # models, their arguments and results

import torch

from mirage_cli.pipeline.partition import calls, changes
from mirage_cli.verify.testdata import copied

COLD_L2 = 8
"""Times the L2 that the copies of the tensors are to take, as in `tune.worker`."""
MOST_COPIES, LEAST_CALLS, ROUNDS = 64, 8, 15


@dataclass(frozen=True)
class Beside:
    """Medians of one call: the geometric mean of both contexts."""

    kernel_us: float
    inductor_us: float


def given_to(model: torch.fx.GraphModule, names: Iterable[str], inputs: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """What a call of the model gives these modules first. What it changes in place is as before."""
    found: dict[str, tuple[Any, ...]] = {}

    def keeper(name: str) -> Callable[[torch.nn.Module, tuple[Any, ...]], None]:
        def keep(_: torch.nn.Module, args: tuple[Any, ...]) -> None:
            found.setdefault(name, args)

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
    roots = [n.args[0] for n in calls(model.graph) if changes(n)]
    tensors = [named[n.target] for n in roots if n.op == "get_attr"]
    tensors += [x for x in inputs if isinstance(x, torch.Tensor)] if any(n.op == "placeholder" for n in roots) else []
    before = [x.clone() for x in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for x, old in zip(tensors, before, strict=True):
                x.copy_(old)


def beside_inductor(original: torch.nn.Module, kernel: torch.nn.Module, given: Sequence[Any]) -> Beside:
    """Times a region's kernel and Inductor's code for its module."""
    size = sum(x.numel() * x.element_size() for x in given if isinstance(x, torch.Tensor))
    device = next(x.device for x in given if isinstance(x, torch.Tensor))
    cold = COLD_L2 * torch.cuda.get_device_properties(device).L2_cache_size
    count = min(MOST_COPIES, 1 + math.ceil(cold / max(size, 1)))
    sets = [[copied(x) if isinstance(x, torch.Tensor) else x for x in given] for _ in range(count)]
    sets *= math.ceil(LEAST_CALLS / count)
    spacer = torch.zeros(1 << 16, device=device)
    with torch.no_grad():
        contestants = [kernel, torch.compile(original, dynamic=False)]
        chains = [captured([lambda f=f, x=x: f(*x) for x in sets]) for f in contestants]
        spaced = [captured([lambda f=f, x=x: (spacer.add_(1), f(*x)) for x in sets]) for f in contestants]
        alone = captured([lambda: spacer.add_(1)] * len(sets))
    samples: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        empty = seconds(alone)
        for i in range(2):
            own = max(seconds(spaced[i]) - empty, 1e-9)
            samples[i].append(math.sqrt(seconds(chains[i]) * own) / len(sets) * 1e6)
    return Beside(*map(statistics.median, samples))


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
