"""What the trials so far say of kernels that were not judged: which are not tried, which are too fast to be right."""

from __future__ import annotations

from mirage_cli.ir.schedule import Schedule
from mirage_cli.tune.measure import Failure, FailureKind, Judged
from mirage_cli.tune.trials import Trial

BELIEVED = 0.8
"""What is faster than this part of the floor, or of a kernel below it that is right, is judged before it counts."""
UNTRUSTED = (FailureKind.HANG, FailureKind.FAULT, FailureKind.CRASH, FailureKind.WRONG)
"""Failures of a specialized schedule after which no other of the same μGraph is tried."""
DISTRUSTED = Failure(FailureKind.WRONG, "specialized as one that hung, faulted or was wrong")
"""Of specialized schedules of a μGraph of which one failed so."""
INEXACT = Failure(FailureKind.WRONG, "multiplies float32 on the matrix units, as one whose error was too large")
"""Of schedules of a μGraph of which one was refused so."""


class Trust:
    """In the kernels of one run.

    specialized: by μGraph, whether the specialized schedule that was judged is right. refused: by μGraph, the schedule
    that was wrong with float32 multiplied on the matrix units, with its verdict; None where an earlier run has seen it.
    least_us: what a kernel may take without being judged first.
    """

    def __init__(self, floor_us: float = 0.0) -> None:
        self.specialized: dict[str, bool] = {}
        self.refused: dict[str, tuple[Trial, Judged] | None] = {}
        self.least_us = BELIEVED * floor_us

    def learn(self, trial: Trial) -> None:
        """From a trial of an earlier run."""
        if trial.schedule.specialize and (trial.failure or "").startswith(UNTRUSTED):
            self.specialized[trial.mugraph] = False
        if trial.failure == str(INEXACT):
            self.refused[trial.mugraph] = None

    def believe(self, us: float) -> None:
        """A kernel that takes so long, and less than `least_us`, is right."""
        self.least_us = BELIEVED * us

    def excludes(self, g: str, schedule: Schedule) -> bool:
        """Whether it has a choice for which another schedule of this μGraph was refused."""
        return (schedule.specialize and not self.specialized.get(g, True)) or self.is_inexact(g, schedule)

    def is_inexact(self, g: str, schedule: Schedule) -> bool:
        return schedule.tf32x3 and g in self.refused
