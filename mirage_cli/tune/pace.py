"""How fast the GPU is now. Where the matrix units are at work it becomes hot, and its clock falls by up to a third:
what is timed later would seem to be worse.

    paced time = time / (the control's time beside it / the control's first time)

The control is the fastest of the schedules that are timed first. It is timed again beside others: now and then, and
each time where that has shown a difference.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from mirage_cli.tune.measure import Failure, Timing
from mirage_cli.tune.trials import Trial

EVERY_S = 1.0
"""Seconds between two timings of the control, while it takes as long as at first."""
NOISE = 0.02
"""A change of its time by less says nothing: it is what quick timings of one schedule differ by."""


@dataclass(slots=True)
class Pace:
    """now: how much longer the control took when it was last timed."""

    control: Trial | None = None
    now: float = 1.0
    at: float = 0.0

    def due(self) -> list[Trial]:
        """The control, where it should be timed beside what is next."""
        due = self.now != 1.0 or time.monotonic() - self.at >= EVERY_S
        return [self.control] if due and self.control else []

    def seen(self, timing: Timing | Failure) -> None:
        """Takes the control's time beside what was timed with it. One that fails is none any more."""
        if self.control is None or isinstance(timing, Failure):
            self.control = None
            return
        self.at = time.monotonic()
        ratio = timing.median_us / self.control.paced_us
        self.now = ratio if abs(ratio - 1) >= NOISE else 1.0

    def begin(self, trial: Trial) -> None:
        """Makes a schedule that was timed the control, unless there is one."""
        if self.control is None:
            self.control, self.at = trial, time.monotonic()
