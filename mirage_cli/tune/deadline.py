"""When tuning has to end, and what is kept of its time for the finals."""

from __future__ import annotations

import time

FINALS = 0.15
"""The finals' part of the budget."""
LEAST_MODEL_S, MOST_MODEL = 8.0, 0.3
"""What they have at least for a model's kernel, of which more ways to overlap are timed; and the part that they have at
most of a short budget."""
MOST_PREPARING = 0.4
"""The part of the budget that is kept, at most, for what judgements have still to evaluate before they judge."""
JUDGEMENTS = 2.2
"""For so many the time is kept: of the winner, and of the winner on data drawn anew."""
OVERTIME_S = 10.0
"""After so long beyond the budget, or after twice the budget, it ends without an answer. A judgement has as long in any
case, or twice what one has taken."""


class Deadline:
    """Of one task, from now on. in_model: whether its kernel is to be a part of a model."""

    def __init__(self, budget_s: float, in_model: bool) -> None:
        self.budget_s, self.in_model = budget_s, in_model
        self.end = time.monotonic() + budget_s
        self.judging_s = 0.0  # what the longest judgement took
        self.preparing_s = 0.0  # what is still to be evaluated for judgements will take

    @property
    def finals_s(self) -> float:
        """What the finals have besides the judgements of the winner."""
        more = min(LEAST_MODEL_S, MOST_MODEL * self.budget_s) if self.in_model else 0.0
        return max(FINALS * self.budget_s, more)

    @property
    def left_s(self) -> float:
        """What is left of the budget, without what judging the winner will take."""
        preparing_s = min(self.preparing_s, MOST_PREPARING * max(self.budget_s, 0.0))
        return self.end - time.monotonic() - JUDGEMENTS * self.judging_s - preparing_s

    @property
    def lost(self) -> bool:
        """Whether it has taken so long that it ends even without an answer."""
        return time.monotonic() > self.lost_at

    @property
    def lost_at(self) -> float:
        return self.end + max(OVERTIME_S, self.budget_s)
