"""When tuning has to end, and what is kept of its time for judging."""

from __future__ import annotations

import time

LARGE_ELEMENTS = 1 << 26
"""A problem of more is large: drawing its inputs, or evaluating it to judge a kernel, may take seconds, which the
finals must have."""
LARGE_S = 2.0
"""So is one of which a judgement has taken longer."""
JUDGEMENTS = 2.2
"""For so many the time is kept: of the winner, and of the winner on data drawn anew."""
OVERTIME_S = 10.0
"""After so long beyond the budget, or after twice the budget, it ends without an answer. A judgement has as long in any
case, or twice what one has taken."""


class Deadline:
    """Of one task, from now on. elements: of the problem."""

    def __init__(self, budget_s: float, elements: int) -> None:
        self.budget_s, self.elements = budget_s, elements
        self.end = time.monotonic() + budget_s
        self.judging_s = 0.0  # what the longest judgement took

    @property
    def large(self) -> bool:
        """Whether the clock counts in the finals: by its elements, or since one judgement has taken seconds."""
        return self.elements > LARGE_ELEMENTS or self.judging_s > LARGE_S

    @property
    def left_s(self) -> float:
        """What is left of the budget, without what judging the winner will take."""
        return self.end - time.monotonic() - JUDGEMENTS * self.judging_s

    @property
    def lost(self) -> bool:
        """Whether it has taken so long that it ends even without an answer."""
        return time.monotonic() > self.lost_at

    @property
    def lost_at(self) -> float:
        return self.end + max(OVERTIME_S, self.budget_s)
