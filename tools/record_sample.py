"""Times schedules drawn at random, so that the cost model is judged on what no tuner has chosen. It needs a GPU.

`python -m tools.record_sample OUT.json.gz [--count 96] [--plans 4] [--workers N]`: of every spec and instance the best
plans by the cost model, and of each the same number of schedules, every choice drawn uniformly. Those that the model
holds to be over `HOPELESS` times slower than the best are left out: a tuner would not come near them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.pipeline.keys import versions
from mirage_cli.pipeline.predicting import has_room
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.cost import work
from mirage_cli.search.cost.work import models
from mirage_cli.search.tiles import default_order, tile_options
from mirage_cli.spec.reader import load_spec
from mirage_cli.target.gpus import Target, driver_version, find_target
from mirage_cli.tune.changes import GROUPS, STAGES
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.measure import QUICK, Candidate, Failure, GpuWorker
from mirage_cli.tune.price import total_us
from mirage_cli.tune.space import WARPS, complete
from tools.recorded import Measured, Recorded, write_recorded

SPECS = Path(__file__).parents[1] / "search_specs"
HOPELESS = 10.0
CHUNKS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
TRIES = 40
"""Draws for each schedule that is wanted."""


def sample(graph: MuGraph, target: Target, count: int, rng: random.Random) -> list[Schedule]:
    """Schedules of a μGraph that fit by the cost model."""
    by_name = models(graph)
    options = {n: tile_options(m, graph.sizes, coarse=False) for n, m in by_name.items()}
    found: dict[str, tuple[float, Schedule]] = {}
    for _ in range(TRIES * count):
        kernels = {
            n: drawn(m, {d: rng.choice(o) for d, o in options[n].items()}, target, rng) for n, m in by_name.items()
        }
        made = complete(graph, target, kernels)
        us = total_us(graph, made, target) if made else float("inf")
        if made and np.isfinite(us):
            found[str(made)] = (us, made)
        if len(found) == 4 * count:
            break
    best = min((us for us, _ in found.values()), default=0.0)
    return [s for us, s in found.values() if us <= HOPELESS * best][:count]


def drawn(m: work.Model, tiles: dict[str, int], target: Target, rng: random.Random) -> KernelSchedule:
    """One kernel's schedule with these tiles."""
    order = default_order(m)
    return KernelSchedule(
        tuple(tiles.items()),
        order[::-1] if m.kernel.products and rng.random() < 0.5 else order,
        rng.choice(WARPS),
        rng.choice(STAGES),
        rng.choice(CHUNKS) if m.split is not None else 1,
        rng.choice(GROUPS),
        target.overlaps and rng.random() < 0.5,
    )


def measure(program: Program, target: Target, farm: CompileFarm, worker: GpuWorker, given: Any) -> Recorded:
    problem = measured_problem(program, 0)
    plans = search_program(program, target, Options()).plans
    graphs = {p.id: p.graph for p in plans if any(k.kind == "generated" for k in p.graph.kernels)}
    graphs = dict(list(graphs.items())[: given.plans])
    rng = random.Random(0)
    waiting: dict[str, tuple[str, Schedule, Candidate]] = {}
    for g, graph in graphs.items():
        for s in sample(graph, target, given.count // len(graphs), rng):
            with contextlib.suppress(EmitError):
                key = str(len(waiting))
                waiting[key] = g, s, Candidate(key, kernels_source(graph, s))
    ready: list[Candidate] = []
    for key, kernels in farm.compile_all([c for *_, c in waiting.values()], problem.inputs, problem.outputs):
        if not isinstance(kernels, Failure) and all(has_room(k, target) for k in kernels):
            ready.append(waiting[key][2])
    worker.set_problem(problem)
    measured: list[Measured] = []
    for key, t in worker.time(ready, QUICK).items():
        g, s, _ = waiting[key]
        measured.append(Measured(g, s, None, str(t)) if isinstance(t, Failure) else Measured(g, s, t.median_us))
    about = {**versions(), "gpu": target.name, "driver": driver_version() or ""}
    return Recorded(program.name, program.sizes, program.dtype, about, graphs, tuple(measured))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.record_sample", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=96)
    parser.add_argument("--plans", type=int, default=4)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    target = find_target("auto")
    recorded: list[Recorded] = []
    with CompileFarm(target.sm, given.workers) as farm, GpuWorker() as worker:
        for path in sorted(SPECS.glob("*.yaml")):
            for program in load_spec(path).programs():
                begun = time.monotonic()
                recorded.append(measure(program, target, farm, worker, given))
                write_recorded(given.out, recorded)
                took = time.monotonic() - begun
                print(program.name, dict(program.dims), len(recorded[-1].measured), f"{took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
