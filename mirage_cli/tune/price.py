"""What the cost model says of a whole μGraph under its schedules: the time of each kernel, and of all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.search import cost, work
from mirage_cli.search.batch import Array, Batch
from mirage_cli.search.work import chunk_sizes, models
from mirage_cli.target.gpus import Target
from mirage_cli.tune.hidden import hidden_us


def bottlenecks(graph: MuGraph, schedule: Schedule, target: Target) -> dict[str, tuple[str, float]]:
    """For each generated kernel what the cost model says it waits for (of `cost.LIMITS`), and its predicted time."""
    found = estimates(graph, schedule, target).items()
    return {name: (cost.LIMITS[int(e.limit[0])], round(float(e.us[0]), 3)) for name, e in found}


def estimates(graph: MuGraph, schedule: Schedule, target: Target) -> dict[str, cost.Estimates]:
    """For each generated kernel what the cost model says of this one schedule."""
    sizes = chunk_sizes(graph, schedule)
    return {name: predicted(m, schedule.kernels[name], sizes, target) for name, m in models(graph).items()}


def predicted(m: work.Model, s: KernelSchedule, sizes: Mapping[str, int], target: Target) -> cost.Estimates:
    return cost.estimate(m, Batch.of(m, [s], sizes), sizes, target)


def kernels_us(graph: MuGraph, schedule: Schedule, target: Target) -> dict[str, float]:
    """The predicted time of each generated kernel."""
    return {name: float(e.us[0]) for name, e in estimates(graph, schedule, target).items()}


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
    """The cost model's times of a whole μGraph under many schedules, in microseconds. without: of `cost.TERMS`.

    A kernel that starts early gains nothing behind the library's, which let none start; the last of a call is in front
    of the first of the next (pairs of schedules that differ in nothing else: 0.5 us lost to 0.1 us gained).
    """
    total = np.zeros(len(schedules))
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}  # by sizes, those of the chunk axes among them
    for i, s in enumerate(schedules):
        alike.setdefault(tuple(chunk_sizes(graph, s).items()), []).append(i)
    for axes, places in alike.items():
        total[places] = _same_sizes_us(graph, [schedules[i] for i in places], dict(axes), target, without)
    return total


def _same_sizes_us(
    graph: MuGraph,
    schedules: Sequence[Schedule],
    sizes: Mapping[str, int],
    target: Target,
    without: Collection[str],
) -> Array:
    element, by_name = graph.element_bytes, models(graph)
    total = np.zeros(len(schedules))
    batches: dict[str, Batch] = {}
    found: dict[str, cost.Estimates] = {}
    for i, k in enumerate(graph.kernels):
        if k.kind == "library":
            total += cost.library_us(k, graph.inputs, sizes, element[k.stores[0].buffer], target)
            continue
        batch = Batch.of(by_name[k.name], [s.kernels[k.name] for s in schedules], sizes)
        if graph.kernels[i - 1].kind == "library":
            batch = replace(batch, overlap=np.zeros(len(schedules)))
        batches[k.name], found[k.name] = batch, cost.estimate(by_name[k.name], batch, sizes, target, without)
        total += found[k.name].us
    return total - sum(hidden_us(graph, batches, found, target), np.zeros(len(schedules)))
