"""How long each program of a model is tuned, within one budget.

All are searched, side by side. Then they are tuned alike, one after the other, those first that are expected to gain
most. What is left goes to those that may still gain most: the time above its floor, times the calls of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.optimize import about, compile_ahead, finish, optimize, searched, tune_on, was_interrupted
from mirage_cli.pipeline.problem import floor_of
from mirage_cli.pipeline.searching import Failed, Found
from mirage_cli.pipeline.session import Session
from mirage_cli.search.cuts import UNVERIFIED
from mirage_cli.store.results import Result, Unfinished

FIRST, FIRST_LEAST_S = 0.4, 3.0
"""The part of the time behind the searches that programs have alike, and the seconds that each has then, where there
are as many: forty schedules or so."""
LEAST_S = 1.0
"""Of tuning for one program. Where there is less, those that may gain least are not tuned."""
NO_GAIN = "it was not tuned: no plan is expected to be faster than the program as written"
TOO_LATE = "it was not tuned: the budget was spent on regions that may gain more"
NO_TIME = "it was not tuned: the searches took all of the budget"
SEARCHING, SEARCHING_LEAST_S = 0.25, 3.0
"""The part of the budget that the searches have, side by side, and at least so many seconds: the process that owns the
GPU takes as long to start."""
TUNING = 0.5
"""The part that is left for tuning though no plan of a program is verified then."""


def optimize_together(
    session: Session,
    programs: Sequence[tuple[Program, str]],
    calls: Sequence[int],
    budget_s: float,
    parts: Sequence[float],
    in_time: bool,
) -> list[Result | Unfinished]:
    """The result of each program, in order; each comes with the text of its spec.

    calls: of each program, in a call of the model. budget_s: for all of them. What the database answers is tuned no
    further; nor is that tried again for which no kernel was found with as large a budget. parts: of the time that
    programs have alike, what each has; those of less are tuned behind the others. in_time: whether a program has no
    kernel for which there is no time. Else plans are verified behind the budget, until there is one.
    """
    parts = parts or [1.0] * len(programs)
    each_s = budget_s / max(len(programs), 1)
    known = {i: x for i, (p, _) in enumerate(programs) if (x := given_up(session, p, each_s)) is not None}
    left = [i for i in range(len(programs)) if i not in known]
    some, weights = [programs[i] for i in left], [(calls[i], parts[i]) for i in left]
    made = of_all(session, some, weights, budget_s, each_s, in_time)
    for i, result in zip(left, made, strict=True):
        known[i] = result
        if isinstance(result, Result) and result.best is None:
            known[i] = give_up(session, programs[i][0], each_s, why_none(result))
    return [known[i] for i in range(len(programs))]


def given_up(session: Session, program: Program, budget_s: float) -> Result | Unfinished | None:
    """Why there is no kernel, if none was found with such a budget or a larger one."""
    tried = session.store.tried(key_of(program, session.target, session.measures))
    return Unfinished(about(session, program), tried[1]) if tried is not None and tried[0] >= budget_s else None


def give_up(session: Session, program: Program, budget_s: float, why: str) -> Unfinished:
    """Keeps why no kernel was found with this budget."""
    session.store.put_tried(key_of(program, session.target, session.measures), budget_s, why)
    return Unfinished(about(session, program), why)


def of_all(
    session: Session,
    programs: Sequence[tuple[Program, str]],
    weights: Sequence[tuple[int, float]],
    budget_s: float,
    each_s: float,
    in_time: bool,
) -> list[Result | Unfinished]:
    """The results of those that are to be searched, or that the database answers. weights: calls and part of each.
    each_s: what is asked for each."""
    end = time.monotonic() + budget_s
    until_s = (end - TUNING * budget_s if session.measures else end) if in_time else math.inf
    if each_s == budget_s:
        session.allow(budget_s, None, until_s)
        return list(optimize(session, programs))
    in_turns = max(1.0, len(programs) / session.options.workers)
    session.allow(each_s, max(SEARCHING * budget_s, SEARCHING_LEAST_S) / in_turns, until_s)
    if not session.measures:
        return list(optimize(session, programs))
    found = first_results(session, programs, weights, end)
    pairs = enumerate(zip(weights, found, strict=True))
    gains = {i: n * part * gain_us(session, programs[i][0], r) for i, ((n, part), r) in pairs}
    for i, more_s in shares(end - time.monotonic(), gains, FIRST_LEAST_S).items():
        result = found[i]
        assert isinstance(result, Result), "only such may gain"
        longer = tune_on(session, programs[i][0], result, more_s)
        found[i] = longer if isinstance(longer, Result) and longer.best is not None else result
    return found


def first_results(
    session: Session, programs: Sequence[tuple[Program, str]], weights: Sequence[tuple[int, float]], end: float
) -> list[Result | Unfinished]:
    """All programs are searched; then they are tuned alike, as far as they have equal parts, those that are expected to
    gain most first, until time is up. weights: calls and part of each. end: of the budget."""
    made: dict[int, Result | Unfinished] = {}
    found: dict[int, Found | Failed] = {}
    for i, x in enumerate(searched(session, programs)):
        if isinstance(x, Result):
            made[i] = x
        else:
            found[i] = x
            if was_interrupted(x):
                finish(session, *programs[i], x)
                raise KeyboardInterrupt
    expected = {i: weights[i][0] * expected_gain_us(x) for i, x in found.items()}
    part = {i: weights[i][1] for i in found}
    left_s, some = end - time.monotonic(), sum(part[i] for i, gain in expected.items() if gain > 0) or 1.0
    each_s = max(FIRST * left_s / some, min(FIRST_LEAST_S, left_s / some))
    order = sorted(expected, key=lambda i: (-part[i], -expected[i]))
    too_late = NO_TIME
    for i, behind in zip_longest(order, order[1:]):
        (program, text), x = programs[i], found[i]
        if isinstance(x, Failed):
            made[i] = finish(session, program, text, x)
        elif not x.plans:
            made[i] = finish(session, program, text, x, 0.0)
        elif expected[i] <= 0:
            made[i] = give_up(session, program, session.options.budget_s, NO_GAIN)
        elif end - time.monotonic() < LEAST_S:
            made[i] = Unfinished(about(session, program), too_late)
        else:
            if behind is not None and expected[behind] > 0:
                found[behind] = ahead(session, programs[behind][0], found[behind])
            made[i] = finish(session, program, text, x, max(each_s * part[i], LEAST_S))
            too_late = TOO_LATE
    return [made[i] for i in range(len(programs))]


def ahead(session: Session, program: Program, found: Found | Failed) -> Found | Failed:
    """Compiles for a program while the one in front of it is tuned: one whose kernels fail costs that one nothing."""
    if isinstance(found, Found):
        try:
            compile_ahead(session, program, {p.id: p.graph for p in found.plans}, found.as_written)
        except Exception as error:  # told in the program's own result
            return Failed.of(error)
    return found


def why_none(result: Result) -> str:
    """Why a search has found no kernel, by the first thing that stood in the way."""
    search, tuning = result.search, result.tuning
    if not search.verified:
        late = search.pruned.get(UNVERIFIED, 0)
        refused = "; ".join(result.rejections[:1])
        why = f"{late} could not be verified in time" if late else refused or "none was found"
        return f"there is no verified plan: {why}, after {search.seconds:.0f} s"
    if refused := [x.problem for x in (*result.lost, *(tuning.rejected if tuning else ())) if x.problem]:
        return f"no kernel is right: {refused[0]}"
    failures = tuning.failures if tuning else result.dropped
    failed = ", ".join(f"{n} by {why}" for why, n in sorted(failures.items()))
    took = f" in {tuning.seconds:.0f} s" if tuning else ""
    return f"none of {search.verified} verified plans has a kernel{took}: {failed or 'none was compiled in time'}"


def expected_gain_us(found: Found | Failed) -> float:
    """Of a call, by the cost model: over the program as written, of which Inductor too makes up a part; no more than
    the time that is left. Nothing where none is expected."""
    if isinstance(found, Failed) or not found.plans:
        return 0.0
    us = {p.id: p.predicted_us for p in found.plans}
    best_us = min(us.values())
    return min(us.get(found.as_written, math.inf) - best_us, best_us)


def gain_us(session: Session, program: Program, result: Result | Unfinished) -> float:
    """What more tuning may gain of a call; nothing where it is known that none will be found."""
    if not isinstance(result, Result) or result.cached or result.best is None or result.best.times is None:
        return 0.0
    if result.tuning is None or result.tuning.stopped != "budget":
        return 0.0
    return max(result.best.times.time_us - floor_of(program, session.target), 0.0)


def shares(seconds: float, gains: Mapping[int, float], least_s: float) -> dict[int, float]:
    """The seconds divided by what there is to gain, the largest share first, among those whose share is enough."""
    left = sorted((i for i, g in gains.items() if g > 0), key=lambda i: -gains[i])
    while left:
        total = sum(gains[i] for i in left)
        if seconds * gains[left[-1]] / total >= least_s:
            return {i: seconds * gains[i] / total for i in left}
        left.pop()
    return {}
