"""Tuning on this machine's GPU: from verified μGraphs to the fastest kernel that is right, as it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import mugraph_id
from mirage_cli.pipeline.kept import readable_graph
from mirage_cli.pipeline.problem import floor_of, measured_problem, problems_at_other_sizes, specs_of
from mirage_cli.pipeline.searching import Found, Plan
from mirage_cli.pipeline.session import Session
from mirage_cli.pipeline.written import keep_best
from mirage_cli.store.records import Best, Key, Measurement
from mirage_cli.store.results import Finalist, KernelResult, Lost, Nearby, Rejected, Result, Tuning
from mirage_cli.tune.measure import Candidate, Judged, Timing
from mirage_cli.tune.price import bottlenecks
from mirage_cli.tune.proposals import Proposals
from mirage_cli.tune.select import tune
from mirage_cli.tune.task import Task
from mirage_cli.tune.trials import Incumbent, Trial, Trials, Tuned
from mirage_cli.tune.trials import key_of as key_of_trial
from mirage_cli.verify.facts import longest_sum

AHEAD = 8
"""First kernels of a program that are compiled before its tuning begins."""


def tuned_result(session: Session, program: Program, key: Key, found: Found, empty: Result, left_s: float) -> Result:
    """The result of one program on this GPU, stored if there is a kernel. empty: the result without kernels. left_s:
    what the search has left of the budget. Raises MeasureError."""
    stored = session.store.best(key)
    incumbent = readable_incumbent(session, key, stored)
    if not found.plans and incumbent is None:
        return empty
    session.on_tuning(program.name)
    tuned = tune_plans(session, program, key, found, incumbent, left_s)
    session.on_tuned(tuned)
    graphs = {p.id: p.graph for p in found.plans}
    if incumbent is not None:
        graphs.setdefault(incumbent.mugraph, incumbent.graph)
    lost = tuple(Lost(t.mugraph, len(graphs[t.mugraph].kernels), us, v.problem) for t, v, us in tuned.lost)
    result = replace(empty, tuning=tuning_of(tuned), lost=lost)
    best = tuned.best
    if best is None or best.timing is None or tuned.verdict is None:
        return result
    eager = tuned.baselines.get("eager")

    def kernel(t: Trial) -> KernelResult:
        return KernelResult(
            id=t.mugraph,
            kernels=len(graphs[t.mugraph].kernels),
            schedule=t.schedule,
            floor_us=floor_of(program, session.target),
            as_written=t.mugraph == found.as_written,
            times=t.timing and t.timing.times,
            hot_us=t.timing and t.timing.hot_us,
            method=t.timing.method if t.timing else "",
            eager=eager.times if isinstance(eager, Timing) else None,
            checked=True,
            bottlenecks=bottlenecks(graphs[t.mugraph], t.schedule, session.target),
        )

    def judged(t: Trial, verdict: Judged) -> KernelResult:
        return replace(kernel(t), error=verdict.error, eager_error=verdict.eager_error)

    winner = judged(best, tuned.verdict)
    others = tuned.ranked[1 : session.options.top]  # the first is the best
    written_us = next((t.us for t in tuned.ranked if t.mugraph == found.as_written), None)
    top = (winner, *map(kernel, others))
    nearby = tuple(Nearby(t.mugraph, t.schedule, tuned.beside_best(t)[0]) for t in tuned.near)
    variants = tuple(judged(t, verdict) for t, verdict in tuned.variants)
    result = replace(
        result, best=winner, top=top, nearby=nearby, variants=variants, in_model=False, as_written_us=written_us
    )
    keep_best(session, program, key, graphs[best.mugraph], result, stored)
    return result


def first_kernels(session: Session, program: Program, graphs: Mapping[str, MuGraph], as_written: str) -> None:
    """Gives the first kernels to the compilers that tuning is going to ask for."""
    means = session.means()
    proposals = Proposals(graphs, session.target, Trials(), session.options.seed)
    some = proposals.first(as_written, [])
    sources: dict[str, str] = {}
    for id, schedule in some[:AHEAD]:
        with suppress(EmitError):
            sources[key_of_trial(id, schedule)] = means.emit(graphs[id], schedule)
    means.farm.give_ahead([Candidate(key, source) for key, source in sources.items()], *specs_of(program))


def tune_plans(
    session: Session, program: Program, key: Key, found: Found, incumbent: Incumbent | None, budget_s: float
) -> Tuned:
    """Runs the tuner, continuing from the trials that the database already has, unless a fresh run is asked for."""

    def keep(trial: Trial) -> None:
        t = trial.timing
        session.store.put_measurement(
            key,
            Measurement(
                trial.mugraph,
                trial.schedule.to_json(),
                t.samples_us if t else (),
                t.median_us if t else None,
                t.spread_us if t else None,
                method=t.method if t else "",
                failure=trial.failure,
                alone_samples_us=t.alone_samples_us if t else (),
            ),
        )

    plans = found.plans
    task = Task(
        graphs={p.id: p.graph for p in plans},
        problem=measured_problem(program, session.options.seed),
        tolerance=program.tolerance,
        contracted=longest_sum(program),
        budget_s=budget_s,
        known=[] if session.options.fresh else known_trials(session, key, plans),
        on_trial=keep,
        hints=hints(session, key, plans),
        elsewhere=problems_at_other_sizes(program, session.options.seed),
        as_written=found.as_written,
        in_model=session.options.in_model,
        floor_us=floor_of(program, session.target),
    )
    return tune(session.means(), task, incumbent)


def readable_incumbent(session: Session, key: Key, stored: Best | None) -> Incumbent | None:
    """The stored best, to be timed with the finalists; None where there is none that this version can read."""
    graphs = [readable_graph(m) for m in session.store.mugraphs(key) if stored is not None and m.id == stored.mugraph]
    if stored is None or not graphs or graphs[0] is None:
        return None
    schedule = Schedule.from_json(stored.schedule)
    return Incumbent(stored.mugraph, graphs[0], schedule) if schedule.fits(graphs[0]) else None


def known_trials(session: Session, key: Key, plans: Sequence[Plan]) -> list[Trial]:
    """The trials of earlier runs, but for damaged ones, and for those that were timed in the chain alone where both
    contexts count."""
    context = session.options.context
    known: list[Trial] = []
    for p in plans:
        for m in session.store.measurements(key, p.id):
            schedule = Schedule.from_json(m.schedule)
            if not schedule.fits(p.graph) or (m.samples_us and not m.alone_samples_us and context != "chain"):
                continue
            timing = Timing(
                samples_us=m.samples_us,
                launches=0,
                sets=0,
                method=m.method,
                hot_us=None,
                accuracy=None,
                alone_samples_us=m.alone_samples_us,
                context=context,
            )
            timing = timing if m.samples_us else None
            known.append(Trial(p.id, schedule, "", timing, m.failure))
    return known


def hints(session: Session, key: Key, plans: Sequence[Plan]) -> list[tuple[str, Schedule]]:
    """The schedules that won for these μGraphs at other sizes."""
    won = [(w, Schedule.from_json(w.schedule)) for w in session.store.winners(key)]
    return [
        (p.id, schedule)
        for w, schedule in won
        for p in plans
        if mugraph_id(p.graph.resized(dict(w.dims))) == w.mugraph and schedule.fits(p.graph)
    ]


def tuning_of(tuned: Tuned) -> Tuning:
    """How the tuning went; the finalists as timed in the finals."""

    def finalist(t: Trial | None) -> Finalist | None:
        return t and Finalist(t.mugraph, t.timing.median_us if t.timing else None, t.failure)

    return Tuning(
        trials=len(tuned.trials),
        failures=dict(tuned.failures),
        rejected=tuple(Rejected(t.mugraph, t.schedule, v.problem) for t, v in tuned.rejected),
        stopped=tuned.stopped,
        seconds=round(tuned.seconds, 2),
        phases={name: round(s, 2) for name, s in tuned.phases.items()},
        found=finalist(tuned.found),
        stored=finalist(tuned.incumbent),
    )
