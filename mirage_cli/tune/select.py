"""The tuner: from μGraphs and a cost model to the one schedule that is fastest and right on this GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.tune.explore import Explorer, Means, Task
from mirage_cli.tune.finals import Finals
from mirage_cli.tune.measure import Problem
from mirage_cli.tune.trials import Incumbent, Trial, Tuned

FINISHING = 0.15
"""The part of the budget that is left to the judgement of the finalists and their timing."""


def tune(
    means: Means,
    graphs: Sequence[tuple[str, MuGraph]],
    problem: Problem,
    tolerance: float,
    contracted: int,
    budget_s: float,
    known: Sequence[Trial] = (),
    on_trial: Callable[[Trial], None] = lambda _: None,
    incumbent: Incumbent | None = None,
    hints: Sequence[tuple[str, Schedule]] = (),
) -> Tuned:
    """The best schedule of any of these μGraphs, or the incumbent.

    contracted: terms of the program's longest contraction.
    known: trials of an earlier run, which are not repeated.
    hints: what won for some of these μGraphs at other sizes.
    """
    task = Task(
        dict(graphs),
        problem,
        tolerance,
        contracted,
        time.monotonic() + budget_s * (1.0 - FINISHING),
        known,
        hints,
        on_trial,
    )
    start = time.monotonic()
    explorer = Explorer(means, task)
    result = Finals(explorer, incumbent).decide(explorer.run())
    result.seconds = time.monotonic() - start
    result.phases = explorer.phases
    return result
