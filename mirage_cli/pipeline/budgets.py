"""How long each program of a model is tuned, within one budget.

All are searched, side by side. Then they are tuned alike, one after the other, those first that are expected to gain
most. What is left goes to those that may still gain most: the time above its floor, times the calls of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.optimize import about, finish, optimize, searched, tune_on, was_interrupted
from mirage_cli.pipeline.problem import floor_of
from mirage_cli.pipeline.searching import Failed, Found
from mirage_cli.pipeline.session import Session
from mirage_cli.store.results import Result, Unfinished

FIRST, FIRST_LEAST_S = 0.4, 3.0
"""The part of the time behind the searches that programs have alike, and the seconds that each has then, where there
are as many: forty schedules or so."""
LEAST_S = 1.0
"""Of tuning for one program. Where there is less, those that may gain least are not tuned."""
SEARCHING, SEARCHING_LEAST_S = 0.25, 3.0
"""The part of the budget that the searches have, side by side, and at least so many seconds: the process that owns the
GPU takes as long to start."""


def optimize_together(
    session: Session, programs: Sequence[tuple[Program, str]], calls: Sequence[int], budget_s: float
) -> list[Result | Unfinished]:
    """The result of each program, in order; each comes with the text of its spec.

    calls: of each program, in a call of the model. budget_s: for all of them. What the database answers is tuned no
    further.
    """
    count = len(programs)
    if count <= 1:
        session.allow(budget_s)
        return list(optimize(session, programs))
    in_turns = max(1.0, count / session.options.workers)
    session.allow(budget_s / count, max(SEARCHING * budget_s, SEARCHING_LEAST_S) / in_turns)
    if not session.measures:
        return list(optimize(session, programs))
    end = time.monotonic() + budget_s
    found = first_results(session, programs, calls, end)
    gains = {i: n * gain_us(session, programs[i][0], r) for i, (n, r) in enumerate(zip(calls, found, strict=True))}
    for i, more_s in shares(end - time.monotonic(), gains, FIRST_LEAST_S).items():
        result = found[i]
        assert isinstance(result, Result), "only such may gain"
        longer = tune_on(session, programs[i][0], result, more_s)
        found[i] = longer if isinstance(longer, Result) and longer.best is not None else result
    return found


def first_results(
    session: Session, programs: Sequence[tuple[Program, str]], calls: Sequence[int], end: float
) -> list[Result | Unfinished]:
    """All programs are searched; then they are tuned alike, those that are expected to gain most first, until time is
    up. end: of the budget."""
    made: dict[int, Result | Unfinished] = {}
    found: dict[int, Found | Failed] = {}
    for i, x in enumerate(searched(session, programs)):
        if isinstance(x, Result):
            made[i] = x
        else:
            found[i] = x
    expected = {i: calls[i] * expected_gain_us(x) for i, x in found.items()}
    left_s, some = end - time.monotonic(), max(sum(gain > 0 for gain in expected.values()), 1)
    each_s = max(FIRST * left_s / some, min(FIRST_LEAST_S, left_s / some), LEAST_S)
    order = sorted(expected, key=lambda i: -expected[i])
    for i, behind in zip_longest(order, order[1:]):
        (program, text), x = programs[i], found[i]
        why = "" if expected[i] > 0 else "no plan is expected to be faster than the program as written"
        if end - time.monotonic() < LEAST_S:
            why = why or "the budget was spent on regions that may gain more"
        if why and not isinstance(x, Failed):
            made[i] = Unfinished(about(session, program), f"it was not tuned: {why}")
            continue
        if behind is not None and expected[behind] > 0:
            ahead(session, programs[behind][0], found[behind])
        made[i] = finish(session, program, text, x, each_s)
        if was_interrupted(x):
            raise KeyboardInterrupt
    return [made[i] for i in range(len(programs))]


def ahead(session: Session, program: Program, found: Found | Failed) -> None:
    """Compiles for a program while the one in front of it is tuned."""
    from mirage_cli.pipeline.tuning import compile_ahead

    if isinstance(found, Found):
        with suppress(Exception):  # told in the program's own result
            compile_ahead(session, program, found)


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
