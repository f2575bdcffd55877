"""What the cost model says of a whole μGraph under its schedules: the time of each kernel, and of all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.search.cost import library, model, work
from mirage_cli.search.cost.batch import Array, Batch
from mirage_cli.search.cost.work import chunk_sizes, models
from mirage_cli.target.gpus import Target
from mirage_cli.tune.hidden import NEEDED, hidden_us, needed


def bottlenecks(graph: MuGraph, schedule: Schedule, target: Target) -> dict[str, tuple[str, float]]:
    """For each generated kernel what the cost model says it waits for (of `model.LIMITS`), and its predicted time."""
    found = estimates(graph, schedule, target).items()
    return {name: (model.LIMITS[int(e.limit[0])], round(float(e.us[0]), 3)) for name, e in found}


def estimates(graph: MuGraph, schedule: Schedule, target: Target) -> dict[str, model.Estimates]:
    """For each generated kernel what the cost model says of this one schedule."""
    sizes = chunk_sizes(graph, schedule)
    return {name: predicted(m, schedule.kernels[name], sizes, target) for name, m in models(graph).items()}


def predicted(m: work.Model, s: KernelSchedule, sizes: Mapping[str, int], target: Target) -> model.Estimates:
    return model.estimate(m, Batch.of(m, [s], sizes), sizes, target)


Chunks: TypeAlias = tuple[int, ...]
"""The numbers of chunks that a kernel reads."""
Key: TypeAlias = tuple[KernelSchedule, Chunks, bool]
"""What the time of a kernel depends on; at the end, whether it starts when all in front has ended."""
COLUMNS = ("us", *NEEDED)


class Prices:
    """The cost model's times of the kernels of one μGraph, each worked out once for each of their schedules.

    A kernel that starts early gains nothing behind the library's, which let none start; the last of a call is in front
    of the first of the next (pairs of schedules that differ in nothing else: 0.5 us lost to 0.1 us gained).
    """

    def __init__(self, graph: MuGraph, target: Target, without: Collection[str]) -> None:
        self.graph, self.target, self.without = graph, target, without
        self.sizes, self.models = graph.sizes, models(graph)
        chunks = {k.chunk for k in graph.kernels if k.split is not None}
        read = ({d for x in k.loads for d in x.dims} for k in graph.kernels)
        self.chunks = {k.name: sorted(axes & chunks) for k, axes in zip(graph.kernels, read, strict=True)}
        in_front = zip(graph.kernels, (graph.kernels[-1], *graph.kernels), strict=False)
        self.behind_library = {k.name for k, before in in_front if before.kind == "library"}
        self.known: dict[str, dict[Key, tuple[float, ...]]] = {name: {} for name in self.models}

    def totals_us(self, schedules: Sequence[Schedule]) -> Array:
        """Of the whole μGraph under each of these schedules."""
        total = np.zeros(len(schedules))
        sizes = [chunk_sizes(self.graph, s) for s in schedules]
        found: dict[str, Mapping[str, Array]] = {}
        for k in self.graph.kernels:
            chunks = [tuple(n[c] for c in self.chunks[k.name]) for n in sizes]
            if k.kind == "library":
                total += self.library_us(k, chunks)
            else:
                last = k.name in self.behind_library
                keys = [(s.kernels[k.name], n, last) for s, n in zip(schedules, chunks, strict=True)]
                found[k.name] = self.columns(k.name, keys)
                total += found[k.name]["us"]
        return total - sum(hidden_us(self.graph, found, self.target), np.zeros(len(schedules)))

    def kernels_us(self, schedule: Schedule) -> dict[str, float]:
        """Of each generated kernel, whatever is in front of it."""
        sizes = chunk_sizes(self.graph, schedule)
        chunks = {name: tuple(sizes[c] for c in self.chunks[name]) for name in self.models}
        keys = {name: (schedule.kernels[name], n, False) for name, n in chunks.items()}
        return {name: float(self.columns(name, [key])["us"][0]) for name, key in keys.items()}

    def columns(self, name: str, keys: Sequence[Key]) -> Mapping[str, Array]:
        """`COLUMNS` of a generated kernel."""
        known = self.known[name]
        new: dict[tuple[Chunks, bool], list[KernelSchedule]] = {}
        for s, chunks, last in dict.fromkeys(key for key in keys if key not in known):
            new.setdefault((chunks, last), []).append(s)
        for (chunks, last), some in new.items():
            rows = self.rows(name, some, chunks, last)
            known.update(zip(((s, chunks, last) for s in some), rows, strict=True))
        columns = np.array([known[key] for key in keys]).reshape(len(keys), len(COLUMNS)).T
        return dict(zip(COLUMNS, columns, strict=True))

    def rows(
        self, name: str, schedules: Sequence[KernelSchedule], chunks: Chunks, last: bool
    ) -> Iterable[tuple[float, ...]]:
        """`COLUMNS` of a generated kernel for each of these schedules."""
        m, sizes = self.models[name], self.sizes_of(name, chunks)
        batch = Batch.of(m, schedules, sizes)
        if last:
            batch = replace(batch, overlap=np.zeros(len(schedules)))
        e = model.estimate(m, batch, sizes, self.target, self.without)
        return zip(*(x.tolist() for x in (e.us, *needed(batch, e).values())), strict=True)

    def library_us(self, k: Kernel, chunks: Sequence[Chunks]) -> Array:
        graph, element = self.graph, self.graph.element_bytes[k.stores[0].buffer]
        us = {n: library.library_us(k, graph.inputs, self.sizes_of(k.name, n), element, self.target) for n in {*chunks}}
        return np.array([us[n] for n in chunks])

    def sizes_of(self, name: str, chunks: Chunks) -> Mapping[str, int]:
        return {**self.sizes, **dict(zip(self.chunks[name], chunks, strict=True))}


@lru_cache(maxsize=64)
def prices(graph: MuGraph, target: Target, without: frozenset[str] = frozenset()) -> Prices:
    """Those of a μGraph, while it is one of the last that were asked for. without: of `model.TERMS`."""
    return Prices(graph, target, without)


def kernels_us(graph: MuGraph, schedule: Schedule, target: Target) -> dict[str, float]:
    """The predicted time of each generated kernel."""
    return prices(graph, target).kernels_us(schedule)


def dearest_kernel(graph: MuGraph, schedule: Schedule, target: Target) -> str:
    """The generated kernel that takes longest."""
    us = kernels_us(graph, schedule, target)
    return max(us, key=us.__getitem__)


def total_us(graph: MuGraph, schedule: Schedule, target: Target) -> float:
    """The predicted time of a whole μGraph."""
    return float(totals_us(graph, [schedule], target)[0])


def totals_us(
    graph: MuGraph,
    schedules: Sequence[Schedule],
    target: Target,
    without: Collection[str] = (),
) -> Array:
    """The cost model's times of a whole μGraph under many schedules, in microseconds. without: of `model.TERMS`."""
    return prices(graph, target, frozenset(without)).totals_us(schedules)
