"""Of the kernels that are kept for a region, the one with which the model as a whole is the fastest.

A region is tuned beside itself and behind kernels that overlap with nothing. In a model other kernels stand behind it.
What lets them start early may hand them multiprocessors, and memory bandwidth, that it needs itself: on an H200 four
layers of Llama-3-8B took 744 µs with the fastest attention by itself, and 691 with one that starts the next kernel at
its end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from mirage_cli.codegen.sized import any_source
from mirage_cli.pipeline.beside import captured, seconds
from mirage_cli.pipeline.callers import Kernel
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.written import info_of, keep_kernel, read_variant
from mirage_cli.store.results import Kernel as Chosen
from mirage_cli.store.results import Result
from mirage_cli.store.store import Store
from mirage_cli.target.gpus import Target

CALLS, ROUNDS = 8, 11
"""Calls of the model in a CUDA graph, and replays of each of the two graphs that are compared."""
GAIN = 0.995
"""What part of the model's time another kernel has to leave at most."""


@dataclass(frozen=True)
class Choice:
    """The kernel with which a model takes the least time. was_us: the model's time before. us: with it."""

    module: str
    kernel: Kernel
    was_us: float
    us: float

    def __str__(self) -> str:
        return f"{self.module}: with less overlap the model takes {self.us:.1f} µs, {self.was_us:.1f} before"


def kept_beside(store: Store, target: Target, kernel: Kernel) -> list[Kernel]:
    """What a model may choose instead of a kernel. None for dynamic sizes, of which other kernels serve others, nor
    where a model has chosen already."""
    best, program = kernel.result.best, kernel.program
    if kernel.result.in_model or program.dynamic or best is None:
        return []
    key = key_of(program, target, True)
    found: list[Kernel] = []
    for k in kernel.result.later:
        if k.id == best.id:  # the μGraph that was verified when the kernel was read
            asked = kernel.result.asked
            info = info_of(k, asked.command if asked else "", target.name)
            variant = read_variant(store, program, key, k.id, k.schedule, info)
            found.append(Kernel(program, with_best(kernel.result, k), any_source(variant), kernel.mugraph))
    return found


def with_best(result: Result, best: Chosen) -> Result:
    """The result with another best of those that were kept."""
    others = tuple(k for k in (result.best, *result.later) if k is not None and k != best)
    return replace(result, best=best, top=(best, *(k for k in result.top if k != best)), later=others)


def keep(store: Store, target: Target, kernel: Kernel) -> None:
    """Has the database answer with this kernel from now on, as a model has chosen it."""
    key = key_of(kernel.program, target, True)
    keep_kernel(store, key, kernel.source, replace(kernel.result, in_model=True), store.best(key))


def choices(
    call: Callable[[], object],
    put: Callable[[str, Kernel], None],
    several: Mapping[str, Sequence[Kernel]],
    within_s: float,
) -> Iterator[Choice]:
    """The fastest kernel of each module, put in its place: one module after the other, as long as time allows.

    call: of the model. put: has a module run by a kernel. several: for each module the kernel that it runs by, and
    others.
    """

    def graph() -> torch.cuda.CUDAGraph:
        return captured([call] * CALLS)

    now = graph()
    end = time.monotonic() + within_s
    for name, (chosen, *others) in several.items():
        first_us = us = medians(now)[0]
        for kernel in others:
            if time.monotonic() > end:
                return
            put(name, kernel)
            trial = graph()
            was_us, trial_us = medians(now, trial)
            if trial_us < GAIN * was_us:
                now, us, chosen = trial, trial_us, kernel
            else:
                put(name, chosen)
        yield Choice(name, chosen, first_us, us)


def medians(*graphs: torch.cuda.CUDAGraph) -> list[float]:
    """Microseconds of one call of the model in each, replayed in turn."""
    samples = [[seconds(g) / CALLS * 1e6 for g in graphs] for _ in range(ROUNDS)]
    return [statistics.median(x) for x in zip(*samples, strict=True)]
