"""When tuning has to end, and what is kept of its time for the finals."""

from __future__ import annotations

import time

FINALS, LEAST_FINALS_S, MOST_FINALS = 0.15, 8.0, 0.3
"""The finals' part of the budget; what they have at least; and the part that they have at most of a short budget."""
JUDGEMENTS = 2.2
"""For so many the time is kept: of the winner, and of the winner on data drawn anew."""
OVERTIME_S = 10.0
"""After so long beyond the budget, or after twice the budget, it ends without an answer. A judgement has as long in any
case, or twice what one has taken."""


class Deadline:
    """Of one task, from now on."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.end = time.monotonic() + budget_s
        self.judging_s = 0.0  # what the longest judgement took

    @property
    def finals_s(self) -> float:
        """What the finals have besides the judgements of the winner."""
        return max(FINALS * self.budget_s, min(LEAST_FINALS_S, MOST_FINALS * self.budget_s))

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
