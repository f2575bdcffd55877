"""One row of the benchmark: the best kernel of a program beside its baselines, timed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from math import inf
from typing import Any, TypeAlias  # Any: what a file of JSON holds

from mirage_cli.errors import StoredKernelError
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.bench.library import LIBRARY, library
from mirage_cli.pipeline.bench.sdpa import sdpa_source
from mirage_cli.pipeline.keys import key_of, versions
from mirage_cli.pipeline.problem import floor_of, measured_problem
from mirage_cli.pipeline.session import Session
from mirage_cli.pipeline.written import written_anew
from mirage_cli.store.records import Best, Key, Measurement
from mirage_cli.target.gpus import driver_version
from mirage_cli.tune.bench import Row, baseline, run_bench
from mirage_cli.tune.measure import Candidate, Failure, GpuWorker, MeasureError, Problem, Standard
from mirage_cli.verify.facts import longest_sum


def _attention(backend: str) -> Callable[[Program, Problem], Candidate | str]:
    def make(program: Program, _: Problem) -> Candidate | str:
        source = sdpa_source(program, backend)
        if source is None:
            return "does not apply: the program is no attention"
        return Candidate(backend, source, kind="function", timeout_s=60.0)

    return make


BASELINES: Mapping[str, Callable[[Program, Problem], Candidate | str]] = {
    "eager": lambda _, problem: baseline("eager", problem),
    "compile": lambda _, problem: baseline("compile", problem),
    "sdpa": _attention("sdpa"),
    "cudnn": _attention("cudnn"),
}
"""What a program may be compared with: a contestant, or why there is none."""


Document: TypeAlias = dict[str, Any]
"""A row, or a part of it, as `mirage bench --json` writes it: Any is what an earlier version's file holds."""

AGAINST = (*BASELINES, LIBRARY)
"""The last: the fastest right one of `library`, in the row's context."""
WRONG = 0.05
"""A library's call that is further than this from float64, relatively, computes something else."""


def fastest(tried: Mapping[str, Row]) -> Document:
    """The figures of the fastest that is right, with `which` it is, and `failures` of the others."""
    failures: dict[str, str] = {}
    right: dict[str, Row] = {}
    for name, r in tried.items():
        if r.timing is None:
            failures[name] = str(r.failure)
        elif r.timing.accuracy and not r.timing.accuracy.relative <= WRONG:
            failures[name] = f"wrong: relative error {r.timing.accuracy.relative:.2g}"
        else:
            right[name] = r
    if not right:
        return {**_figures(Row(LIBRARY), "none ran"), "which": None, "failures": failures}
    which = min(right, key=lambda name: _median_us(right[name]))
    return {**_figures(right[which], None), "which": which, "failures": failures}


def _median_us(r: Row) -> float:
    return r.timing.median_us if r.timing else inf


FIGURES = (
    "median_us",
    "spread_us",
    "context",
    "chain_us",
    "chain_spread_us",
    "alone_us",
    "alone_spread_us",
    "hot_us",
    "accuracy",
)


@cache
def ceilings(worker: GpuWorker, dtype: str) -> dict[str, float] | None:
    """What this process measures of its GPU: a large copy in TB/s, a large matmul in TFLOP/s, and an empty kernel of a
    CUDA graph in µs. GPUs of one name differ by some percent; the target's figures are of one of them.

    None where it cannot: there may be no memory for it.
    """
    try:
        floor = worker.measure_floor(dtype)
    except MeasureError:
        return None
    return {
        "copy_tb_per_s": floor.copy_bytes_per_s / 1e12,
        "matmul_tflop_per_s": floor.matmul_flops_per_s / 1e12,
        "empty_us": floor.empty_us,
    }


def run(session: Session, program: Program, against: Sequence[str]) -> Document:
    """Time the stored best kernel and the baselines, interleaved, on cold inputs."""
    reached = ceilings(session.worker(), program.dtype)
    best = session.store.best(key_of(program, session.target, True))
    result = best and best.result
    problem = measured_problem(program, session.options.seed)
    made = {n: BASELINES[n](program, problem) for n in against if n != LIBRARY}
    tried = library(program, problem) if LIBRARY in against else {}
    same = {c.source: n for n, c in made.items() if isinstance(c, Candidate)}
    contestants = [c for c in made.values() if isinstance(c, Candidate)]
    contestants += [c for c in tried.values() if c.source not in same]
    found = {n: _figures(Row(n), why) for n, why in made.items() if isinstance(why, str)}
    exported, missing = kernel_of(session, program, best)
    if exported is not None:
        contestants.insert(0, exported)
    else:
        found["mirage"] = _figures(Row("mirage"), missing)
    if contestants:
        rows = run_bench(session.worker(), problem, contestants, seed=session.options.seed)
        found |= {r.name: _figures(r, str(r.failure) if r.failure else None) for r in rows}
        if tried:
            by_id = {r.name: r for r in rows}
            found[LIBRARY] = fastest({n: by_id[same.get(c.source, c.id)] for n, c in tried.items()})
    if best:
        keep_contestants(session, key_of(program, session.target, True), found)
    if exported is not None and found["mirage"]["failure"] is None:
        found["mirage"]["wrong"] = wrong_by_the_yardstick(session.worker(), program, exported)
    return {
        "spec": program.name,
        "dims": program.sizes,
        "dtype": program.dtype,
        "gpu": session.target.name,
        "driver": driver_version(),
        "versions": versions(),
        "mugraph": best.mugraph if best else None,
        "schedule": best.schedule if best else None,
        "floor_us": floor_of(program, session.target),
        "ceilings": reached,
        "launch_overhead_us": exported and session.worker().launch_overhead_us(exported, program.name),
        "tuning": result and result.tuning and result.tuning.to_json(),
        "search": result and asdict(result.search),
        "errors": [result.best.error, result.best.eager_error] if result and result.best else None,
        "contestants": {n: found[n] for n in ("mirage", *against)},
    }


def keep_contestants(session: Session, key: Key, found: Mapping[str, Document]) -> None:
    """Puts what was timed into the database, each contestant under its own name."""
    for name, figures in found.items():
        if figures["median_us"] is not None:
            session.store.put_measurement(key, measurement_of(name, figures))


def measurement_of(name: str, figures: Document) -> Measurement:
    """A contestant's figures as the database keeps them. kernel: of the fastest of several, which it is."""
    return Measurement(
        name,
        {},
        tuple(figures["samples_us"]),
        figures["median_us"],
        figures["spread_us"],
        method=figures["method"],
        kernel=figures.get("which"),
        alone_samples_us=tuple(figures["alone_samples_us"]),
    )


def kernel_of(session: Session, program: Program, best: Best | None) -> tuple[Candidate | None, str]:
    """The stored kernel, written anew; or why there is none."""
    if best is None:
        return None, "no kernel was found"
    key = key_of(program, session.target, True)
    try:
        return Candidate("mirage", written_anew(session.store, program, key, best).source), ""
    except StoredKernelError as error:
        return None, str(error)


def wrong_by_the_yardstick(worker: GpuWorker, program: Program, kernel: Candidate) -> str | None:
    """Why a kernel is wrong, on every distribution, by the standard of `mirage verify`; None where it is right."""
    judged = worker.judge(kernel, Standard(program.tolerance, longest_sum(program), overflow_like_eager=True))
    return str(judged) if isinstance(judged, Failure) else judged.problem


def _figures(r: Row, failure: str | None) -> Document:
    """`median_us` and `spread_us` are those of the context."""
    t = r.timing
    if t is None:
        figures: Document = dict.fromkeys(FIGURES)
        return {**figures, "samples_us": [], "alone_samples_us": [], "method": "", "failure": failure}
    figures = asdict(t.times)
    return {
        "median_us": figures.pop("time_us"),
        **figures,
        "hot_us": t.hot_us,
        "samples_us": list(t.samples_us),
        "alone_samples_us": list(t.alone_samples_us),
        "method": t.method,
        "accuracy": asdict(t.accuracy) if t.accuracy else None,
        "failure": failure,
    }
