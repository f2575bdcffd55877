"""Without a GPU: the cheapest plans by the cost model, compiled for the target and judged in Triton's interpreter."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program, mixed
from mirage_cli.ir.schedule import Schedule, about_tiles
from mirage_cli.pipeline.problem import floor_of, measured_problem
from mirage_cli.pipeline.searching import Found, Plan
from mirage_cli.pipeline.session import Session
from mirage_cli.pipeline.written import keep_best
from mirage_cli.store.records import Key
from mirage_cli.store.results import KernelResult, Lost, Result
from mirage_cli.target.gpus import Target
from mirage_cli.tune.compilefarm import KernelResources
from mirage_cli.tune.interpreted import Interpreter, own_sums, reduced_schedule, reduced_sizes
from mirage_cli.tune.measure import Candidate, Failure, Judged, Problem
from mirage_cli.tune.price import bottlenecks
from mirage_cli.tune.space import first_schedules, roomier
from mirage_cli.verify.rings import reduced_to

WRONG = "wrong in the interpreter"
SPILL_LIMIT_BYTES = 128
"""Local memory of a thread: what a kernel takes that uses more, the cost model cannot say."""

OTHERS = 4
"""Schedules of a plan that are compiled where the first does not pass."""


@dataclass(slots=True)
class Passed:
    """The plans that were looked at, as they come.

    overflowing: those that overflow where eager PyTorch does, which count only where no other passes. unchecked: how
    many plans there was no time for.
    """

    rows: list[KernelResult] = field(default_factory=list[KernelResult])
    overflowing: list[KernelResult] = field(default_factory=list[KernelResult])
    lost: list[Lost] = field(default_factory=list[Lost])
    failures: Counter[str] = field(default_factory=Counter[str])
    unchecked: int = 0

    @property
    def kernels(self) -> list[KernelResult]:
        return self.rows or self.overflowing


def predicted_result(
    session: Session, program: Program, key: Key, found: Found, empty: Result, left_s: float
) -> Result:
    """The result of one program without timing, stored if there is a kernel. With `tune`, plans are compiled and judged
    while there is time. Behind an interrupt none is, and what is stored stays, and is the result. empty: the result
    without kernels."""
    end, last_s = time.monotonic() + left_s, 0.0
    interrupted, stored = found.stopped == "interrupted", session.store.best(key)
    if interrupted and stored is not None:
        return replace(stored.result, cached=True)
    checks = session.options.tune and not interrupted
    passed = Passed()

    def late() -> bool:
        """Whether there is no time for more than the one kernel that there has to be: for a plan that takes as long as
        the last one, or has taken longer. Nor is there for that one where others need the time."""
        now = time.monotonic()
        return checks and (now > session.options.until_s or (bool(passed.kernels) and max(now, begun + last_s) > end))

    for i, p in enumerate(found.plans):
        begun = time.monotonic()
        if len(passed.rows) >= session.options.top:
            break
        if late():
            passed.unchecked += len(found.plans) - i
            break
        had = passed.kernels[:1]
        row = row_of(session, program, p, found.as_written)
        look_at(session, program, p, row, checks, passed, late)
        if checks and passed.kernels[:1] != had:  # a run that is killed later leaves this behind
            first = replace(empty, best=passed.kernels[0], complete=False)
            keep_best(session, program, key, p.graph, first, session.store.best(key))
        last_s = time.monotonic() - begun
    graphs = {p.id: p.graph for p in found.plans}
    top = tuple(
        replace(k, bottlenecks=bottlenecks(graphs[k.id], k.schedule, session.target))
        for k in passed.kernels[: session.options.top]
    )
    written_us = next((round(p.predicted_us, 3) for p in found.plans if p.id == found.as_written), None)
    dropped = dict(passed.failures)
    result = replace(empty, as_written_us=written_us, dropped=dropped, unchecked=passed.unchecked)
    if not top:
        return replace(result, lost=tuple(passed.lost))
    best = top[0]
    faster = tuple(x for x in passed.lost if (x.predicted_us or 0.0) < (best.predicted_us or 0.0))
    result = replace(result, best=best, top=top, lost=faster)
    keep_best(session, program, key, graphs[best.id], result, session.store.best(key))
    return result


def row_of(session: Session, program: Program, p: Plan, as_written: str) -> KernelResult:
    """A plan at the schedule that the cost model chose, unchecked."""
    return KernelResult(
        id=p.id,
        kernels=len(p.graph.kernels),
        schedule=p.schedule,
        floor_us=floor_of(program, session.target),
        as_written=p.id == as_written,
        predicted_us=round(p.predicted_us, 3),
    )


def look_at(
    session: Session,
    program: Program,
    p: Plan,
    row: KernelResult,
    checks: bool,
    passed: Passed,
    late: Callable[[], bool],
) -> None:
    """Puts a plan where it belongs."""
    if not checks:
        try:
            kernels_source(p.graph, p.schedule)
        except EmitError as error:
            passed.failures[error.reason] += 1
        else:
            passed.rows.append(row)
        return
    outcome = check_offline(session, program, p, late)
    if outcome is None:
        passed.unchecked += 1
        return
    if isinstance(outcome, str):
        passed.failures[outcome] += 1
        if outcome.startswith(WRONG):
            passed.lost.append(Lost(p.id, row.kernels, None, outcome, row.predicted_us))
        return
    schedule, judged = outcome
    row = replace(row, schedule=schedule, error=judged.error, eager_error=judged.eager_error, checked=True)
    (passed.overflowing if judged.excused else passed.rows).append(row)


def check_offline(
    session: Session, program: Program, p: Plan, late: Callable[[], bool] = lambda: False
) -> tuple[Schedule, Judged] | str | None:
    """The first schedule that compiles for the target without spilling and is right in the interpreter, but where eager
    PyTorch overflows too, with the judgement; or the reason why there is none. None where it is late before that.

    It is judged at reduced sizes and, where that takes seconds, with sums as long as its own. late: asked before each
    of these.
    """

    def interpret(graph: MuGraph, schedule: Schedule) -> Judged:
        return judge_kernel(session.interpreter(), program, graph, schedule)

    problem = measured_problem(program, session.options.seed)
    reason = "no schedule fits"
    for schedule, answer in compiled_offline(session, p, problem):
        if late():
            return None
        if isinstance(answer, str):
            reason = answer
            continue
        if not all(has_room(k, session.target) for k in answer):
            reason = "spills registers or shared memory"
            continue
        session.progress.doing(f"interpreting {p.id}")
        judged = judge_small(session.interpreter(), program, p.graph, schedule)
        if judged.ok and (long := own_sums(program, p.graph, schedule)) is not None:
            if late():
                return None
            before, judged = judged, interpret(*long)
            if not judged.ok and not schedule.tf32x3:  # whatever else the schedule is
                return f"{WRONG}: {judged.problem}"
            judged = replace(judged, excused=judged.excused + before.excused)
        if judged.ok:
            return schedule, judged
        reason = f"{WRONG}: {judged.problem}"
    return reason


def judge_small(interpreter: Interpreter, program: Program, graph: MuGraph, schedule: Schedule) -> Judged:
    """A μGraph's kernels in the interpreter, at reduced sizes in reduced blocks."""
    small = reduced_to(graph, reduced_sizes(program, graph=graph))
    return judge_kernel(interpreter, program, small, reduced_schedule(small, schedule))


def judge_kernel(interpreter: Interpreter, program: Program, graph: MuGraph, schedule: Schedule) -> Judged:
    """The kernel's text in the interpreter: at the graph's sizes, and at others where its dynamic axes are a part of a
    tile, about one, and several. The errors are those at the graph's sizes."""
    source = kernels_source(graph, schedule)
    found: Judged | None = None
    for sizes in [{}, *some_dynamic_sizes(graph, schedule)]:
        judged = interpreter.judge(reduced_to(program, graph.sizes | sizes), source, 0, True)
        if not judged.ok:
            where = ", ".join(f"{d}={n}" for d, n in sizes.items())
            return replace(judged, problem=f"at {where}: {judged.problem}" if where else judged.problem)
        found = replace(found, excused=found.excused + judged.excused) if found else judged
    assert found is not None, "there are the graph's own sizes"
    return found


def some_dynamic_sizes(graph: MuGraph, schedule: Schedule) -> list[dict[str, int]]:
    """Small sizes of dynamic axes that are cut in these tiles; kernels are right at them also where the ranges have
    larger ones alone."""
    found = mixed(about_tiles(graph.dynamic, schedule))
    return [sizes for sizes in found if not sizes.items() <= graph.sizes.items()]


def has_room(k: KernelResources, target: Target) -> bool:
    """Whether a kernel has registers and shared memory enough."""
    return k.spill_bytes <= SPILL_LIMIT_BYTES and k.shared_bytes <= target.smem_per_block_bytes


def compiled_offline(
    session: Session, p: Plan, problem: Problem
) -> Iterator[tuple[Schedule, tuple[KernelResources, ...] | str]]:
    """The plan's schedule and, if more are asked for, others, each with the kernels that it compiles to for the target,
    or why there are none. Those others are compiled side by side. Where a kernel has too little room, they differ in
    that one, which holds less."""
    crowded: str | None = None
    for others in (False, True):
        session.progress.doing(f"compiling {p.id} for {session.target.arch}")
        schedules = [p.schedule]
        if others:
            schedules = (
                roomier(p.graph, p.schedule, session.target, crowded, OTHERS)
                if crowded
                else first_schedules(p.graph, session.target, OTHERS)
            )
            schedules += [p.schedule.by_arithmetic()] * p.schedule.tf32x3
        jobs: list[Candidate] = []
        for i, schedule in enumerate(schedules):
            try:
                jobs.append(Candidate(f"{i}", kernels_source(p.graph, schedule)))
            except EmitError as error:
                yield schedule, error.reason
        answers = dict(session.farm().compile_all(jobs, problem.inputs, problem.outputs))
        for job in jobs:
            answer = answers[job.id]
            if not others and not isinstance(answer, Failure):
                crowded = next((k.name for k in answer if not has_room(k, session.target)), None)
            yield schedules[int(job.id)], str(answer.kind) if isinstance(answer, Failure) else answer
