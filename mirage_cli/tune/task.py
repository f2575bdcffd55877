"""What tuning is given: the task, and the means to do it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.target.gpus import Target
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.measure import GpuWorker, Problem
from mirage_cli.tune.trials import Trial

Emit = Callable[[MuGraph, Schedule], str]
Progress = Callable[[str, int, float | None], None]
"""Called with what is being tried, how many so far, and the best time so far."""


@dataclass(frozen=True, slots=True)
class Means:
    """What tuning works with: a GPU and compilers, which outlive a task and serve many, the target that they compile
    for, and what writes sources and reports."""

    worker: GpuWorker
    farm: CompileFarm
    target: Target
    emit: Emit
    progress: Progress


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be tuned.

    graphs: by id. as_written: the one that is the program as written, which is tried first: it always has an answer.
    contracted: terms of the program's longest contraction. budget_s: for all of it. known: trials of an
    earlier run, which are not repeated. on_trial: is told each new one. hints: what won for some of these μGraphs at
    other sizes. elsewhere: the problem at other sizes of dynamic axes, at which the winner is judged too, each with the
    terms of the longest contraction there. in_model: whether schedules that overlap in other ways are judged and kept
    too. floor_us: what no kernel is expected to be faster than.
    """

    graphs: Mapping[str, MuGraph]
    problem: Problem
    tolerance: float
    contracted: int
    budget_s: float
    known: Sequence[Trial] = ()
    on_trial: Callable[[Trial], None] = lambda _: None
    hints: Sequence[tuple[str, Schedule]] = ()
    elsewhere: Sequence[tuple[Problem, int]] = ()
    as_written: str | None = None
    in_model: bool = False
    floor_us: float = 0.0
