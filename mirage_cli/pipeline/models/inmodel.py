"""Of the kernels that are kept for a region, the one with which the model as a whole is the fastest.

A region is tuned beside itself and behind kernels that overlap with nothing. In a model other kernels stand around it,
and kernels that start ahead of time may slow these down: on an H200 a decoder of four layers took 744 µs with the
kernels that are the fastest by themselves, and 691 with one of them exchanged for a slower one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch

from mirage_cli.codegen.sized import any_source
from mirage_cli.pipeline.callers import Kernel
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.models.beside import captured, seconds
from mirage_cli.pipeline.written import info_of, keep_kernel, read_variant
from mirage_cli.store.results import KernelResult, Result
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import Target

CALLS, ROUNDS = 8, 11
"""Calls of the model in a CUDA graph, and replays of each of the two graphs that are compared."""
GAIN = 0.995
"""What part of the model's time another kernel has to leave at most."""


@dataclass(frozen=True)
class Choice:
    """A kernel in the place of another of the same region. was_us, us: the model's time with the other, and with this
    one."""

    module: str
    kernel: Kernel
    was_us: float
    us: float

    def __str__(self) -> str:
        return f"{self.module}: another kernel, with which the model takes {self.us:.1f} µs, {self.was_us:.1f} before"


def kept_beside(store: Database, target: Target, kernel: Kernel) -> list[Kernel]:
    """What a model may choose instead of a kernel. None for dynamic sizes, of which other kernels serve others, nor
    where a model has chosen already."""
    program = kernel.program
    if kernel.result.in_model or program.dynamic:
        return []
    key = key_of(program, target, True)
    found: list[Kernel] = []
    for k in kernel.result.variants:
        if k.id == kernel.best.id:  # the μGraph that was verified when the kernel was read
            asked = kernel.result.asked
            info = info_of(k, asked.command if asked else "", target.name)
            variant = read_variant(store, program, key, k.id, k.schedule, info)
            found.append(Kernel(program, with_best(kernel.result, k), any_source(variant), kernel.mugraph))
    return found


def with_best(result: Result, best: KernelResult) -> Result:
    """The result with another best of those that were kept."""
    others = tuple(k for k in (result.best, *result.variants) if k is not None and k != best)
    return replace(result, best=best, top=(best, *(k for k in result.top if k != best)), variants=others)


def keep(store: Database, target: Target, kernel: Kernel) -> None:
    """Has the database answer with this kernel from now on, as a model has chosen it."""
    key = key_of(kernel.program, target, True)
    keep_kernel(store, key, kernel.source, replace(kernel.result, in_model=True), store.best(key))


def choices(
    call: Callable[[], object],
    put: Callable[[str, Kernel], None],
    several: Mapping[str, Sequence[Kernel]],
    within_s: float,
) -> Iterator[Choice]:
    """Puts other kernels in the place of those that a model runs by, where that makes it faster. Of all modules the
    first other is tried, then the second, as long as time allows.

    call: of the model. put: has a module run by a kernel. several: for each module the kernel that it runs by, and
    others.
    """

    def graph() -> torch.cuda.CUDAGraph:
        return captured([call] * CALLS)

    now = graph()
    end = time.monotonic() + within_s
    best = {name: kernels[0] for name, kernels in several.items()}
    for name, kernel in in_turn({name: kernels[1:] for name, kernels in several.items()}):
        if time.monotonic() > end:
            return
        put(name, kernel)
        trial = graph()
        was_us, us = medians(now, trial)
        if us < GAIN * was_us:
            now, best[name] = trial, kernel
            yield Choice(name, kernel, was_us, us)
        else:
            put(name, best[name])


def in_turn(several: Mapping[str, Sequence[Kernel]]) -> Iterator[tuple[str, Kernel]]:
    """The first of each, then the second of each."""
    rounds = zip_longest(*([(name, k) for k in kernels] for name, kernels in several.items()))
    return (pair for some in rounds for pair in some if pair is not None)


def medians(*graphs: torch.cuda.CUDAGraph) -> list[float]:
    """Microseconds of one call of the model in each, replayed in turn."""
    samples = [[seconds(g) / CALLS * 1e6 for g in graphs] for _ in range(ROUNDS)]
    return [statistics.median(x) for x in zip(*samples, strict=True)]
