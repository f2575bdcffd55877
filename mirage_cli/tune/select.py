"""The tuner: from μGraphs and a cost model to the one schedule that is fastest and right on this GPU."""

from __future__ import annotations

import time

from mirage_cli.tune.explore import Explorer
from mirage_cli.tune.finals import Finals
from mirage_cli.tune.task import Means, Task
from mirage_cli.tune.trials import Incumbent, Tuned


def tune(means: Means, task: Task, incumbent: Incumbent | None = None) -> Tuned:
    """The best schedule of any of the task's μGraphs, or the incumbent. Raises MeasureError."""
    start = time.monotonic()
    explorer = Explorer(means, task)
    explorer.run()
    finals = Finals(explorer, incumbent)
    result = finals.decide()
    result.near = finals.near(result)
    result.variants = finals.variants(result)
    result.seconds = time.monotonic() - start
    result.phases = explorer.phases
    return result
