"""How long each program of a model is tuned: all alike at first, then those that may still gain most.

What a program may gain is the time above its floor, times the calls of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.optimize import optimize, tune_on
from mirage_cli.pipeline.problem import floor_of
from mirage_cli.pipeline.session import Session
from mirage_cli.store.results import Result, Unfinished

FIRST = 0.4
"""The part of a budget that programs have alike."""
FIRST_LEAST_S = 3.0
"""Of tuning at first, where more follows for those that may still gain: forty schedules or so."""
SEARCHING = 0.25
"""The part that each search may take, of several: they run side by side, and what one has not found is not looked for
again."""


def optimize_together(
    session: Session, programs: Sequence[tuple[Program, str]], calls: Sequence[int], budget_s: float, least_s: float
) -> list[Result | Unfinished]:
    """The result of each program, in order; each comes with the text of its spec.

    calls: of each program, in a call of the model. budget_s: for all of them. least_s: for each, also where the
    budget is too small for that. What the database answers is tuned no further.
    """
    count = len(programs)
    each_s = budget_s / max(count, 1)
    in_two = session.measures and count > 1
    first_least_s = FIRST_LEAST_S if in_two and each_s >= least_s else least_s
    first_s = max((FIRST if in_two else 1.0) * each_s, first_least_s)
    start = time.monotonic()
    session.allow(first_s, max(SEARCHING * budget_s, first_s) if count > 1 else None)
    found = list(optimize(session, programs))
    gains = {i: n * gain_us(session, programs[i][0], r) for i, (n, r) in enumerate(zip(calls, found, strict=True))}
    for i, more_s in shares(budget_s - (time.monotonic() - start), gains, least_s).items():
        result = found[i]
        assert isinstance(result, Result), "only such may gain"
        longer = tune_on(session, programs[i][0], result, more_s)
        found[i] = longer if isinstance(longer, Result) and longer.best is not None else result
    return found


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
