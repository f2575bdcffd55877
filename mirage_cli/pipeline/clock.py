"""When a search has to end, and when the verification of its plans has to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

VERIFYING = 0.2
"""The part of the budget that the search leaves to verification."""
FUSING = 0.75
"""The part of the search's time in which operators are fused before the first plan is verified, at most."""
AGAIN = 1.3
"""How many times as long as the verification of one plan that of a later one may take."""
KEEPING_S = 0.6
"""Seconds of verification behind an interrupt: plans that are not verified cannot be kept."""


class Clock:
    """When the search has to end, and when verification has to. An interrupt ends the search at once, and verification
    within KEEPING_S. until_s: behind which nothing is done, on the monotonic clock: operators are fused only as long as
    is searched then, since a plan that is not verified until then is none."""

    def __init__(self, budget_s: float, interrupted: Callable[[], bool], until_s: float = math.inf) -> None:
        self.budget_s = budget_s
        began_s = time.monotonic()
        self.until_s = until_s
        self.end_s = min(began_s + budget_s, until_s)
        self.search_end_s = self.end_s - VERIFYING * budget_s
        self.first_s = began_s + FUSING * (self.search_end_s - began_s)
        self.interrupted = interrupted
        self.stop_s = math.inf

    @contextmanager
    def leaving_as_long(self) -> Generator[None]:
        """What is done meanwhile will be done once more at the end: the search leaves the time for it."""
        began_s = time.monotonic()
        yield
        took_s = time.monotonic() - began_s
        self.search_end_s = min(self.search_end_s, self.until_s - AGAIN * took_s)

    def interrupt(self) -> None:
        self.stop_s = min(self.stop_s, time.monotonic() + KEEPING_S)

    def was_interrupted(self) -> bool:
        if self.interrupted():
            self.interrupt()
        return self.stop_s < math.inf

    def search_is_over(self) -> bool:
        return time.monotonic() > self.search_end_s or self.was_interrupted()

    def budget_is_spent(self) -> bool:
        end_s = self.end_s if math.isinf(self.until_s) else self.search_end_s
        return time.monotonic() > end_s or self.was_interrupted()

    def first_is_due(self) -> bool:
        """Whether the plan at hand is to be verified: operators are fused on behind that, from where they are."""
        is_due = math.isfinite(self.until_s) and time.monotonic() > self.first_s
        return is_due or self.budget_is_spent()

    def verification_is_over(self, behind_s: float = 0.0) -> bool:
        """behind_s: seconds behind the budget that verification may take."""
        end_s = min(self.end_s + behind_s, self.until_s)
        return time.monotonic() > end_s or (self.was_interrupted() and time.monotonic() > self.stop_s)
