"""The table of contestants: the same problem, in one process, by one method, interleaved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mirage_cli.tune.measure import CAREFUL, Candidate, Effort, Failure, GpuWorker, Problem, Timing

Baseline = Literal["eager", "compile"]
COMPILE_TIMEOUT_S = 300.0
"""Max-autotune compiles and times dozens of kernels."""

_MAKE: Mapping[Baseline, str] = {
    "eager": """

def make(inputs):
    return {called}
""",
    "compile": """

def make(inputs):
    import torch

    torch._dynamo.reset()
    return torch.compile({called}, mode="max-autotune-no-cudagraphs", dynamic=False)
""",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant: its timing, or why there is none."""

    name: str
    timing: Timing | None = None
    failure: Failure | None = None


def baseline(name: Baseline, problem: Problem) -> Candidate:
    """The problem's reference as users run it, in the problem's own types. Raises ValueError without a reference."""
    if problem.reference_source is None:
        raise ValueError("a baseline needs the problem's reference")
    timeout_s = COMPILE_TIMEOUT_S if name == "compile" else 60.0
    return Candidate(
        name, problem.reference_source + _MAKE[name].format(called=problem.called), kind="function", timeout_s=timeout_s
    )


def run_bench(
    worker: GpuWorker,
    problem: Problem,
    contestants: Sequence[Candidate],
    effort: Effort = CAREFUL,
    seed: int = 0,
) -> tuple[Row, ...]:
    """A row for each contestant, in their order. The errors are those of the timed calls. Raises MeasureError."""
    worker.set_problem(problem)
    rows: list[Row] = []
    for name, timing in worker.time(contestants, effort, seed).items():
        rows.append(Row(name, failure=timing) if isinstance(timing, Failure) else Row(name, timing))
    return tuple(rows)
