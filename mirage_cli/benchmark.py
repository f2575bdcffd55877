"""One row of the benchmark: the best kernel of a program beside its baselines, timed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mirage_cli.ir.program import Program
from mirage_cli.pipeline import Pipeline, floor_of, key_of, versions
from mirage_cli.tune.bench import baseline, run_bench
from mirage_cli.tune.measure import Candidate


def run(pipeline: Pipeline, program: Program, against: Sequence[str]) -> dict[str, Any]:
    """Time the stored best kernel and the baselines, interleaved, on cold inputs."""
    best = pipeline.store.best(key_of(program, pipeline.target, True))
    problem = pipeline.problem(program)
    contestants = [baseline("eager" if n == "eager" else "compile", problem) for n in against]
    if best is not None:
        contestants.insert(0, Candidate("mirage", best.source))
    worker = pipeline.worker()
    rows = run_bench(worker, problem, contestants, seed=pipeline.options.seed)
    return {
        "spec": program.name,
        "dims": program.sizes,
        "dtype": program.dtype,
        "gpu": pipeline.target.name,
        "versions": versions(),
        "mugraph": best.mugraph if best else None,
        "schedule": best.schedule if best else None,
        "floor_us": floor_of(program, pipeline.target),
        "tuning": best.document.get("tuning") if best else None,
        "search": best.document.get("search") if best else None,
        "errors": [best.document["best"][k] for k in ("error_vs_float64", "eager_error_vs_float64")] if best else None,
        "contestants": {
            r.name: {
                "median_us": r.median_us,
                "spread_us": r.spread_us,
                "hot_us": r.hot_us,
                "samples_us": list(r.samples_us),
                "method": r.method,
                "accuracy": asdict(r.accuracy) if r.accuracy else None,
                "failure": str(r.failure) if r.failure else None,
            }
            for r in rows
        },
    }
