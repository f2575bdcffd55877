"""Judgements of schedules: whether a kernel is right, on every distribution of test data."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from mirage_cli.tune.deadline import JUDGEMENTS, OVERTIME_S, Deadline
from mirage_cli.tune.measure import Candidate, Failure, FailureKind, GpuWorker, Judged, Standard
from mirage_cli.tune.task import Task
from mirage_cli.tune.trials import Trial

JUDGING_S = 20.0
"""What one step of a judgement may take, or the budget where that is more."""
WAITING_S = 60.0
"""What a judgement may take as long as no kernel has passed everywhere: a late answer is better than none. After one
judgement that takes longer, the others have `OVERTIME_S`."""


class Judge:
    """Of one task, with the verdicts it has given."""

    def __init__(self, worker: GpuWorker, task: Task, deadline: Deadline) -> None:
        self.worker, self.task, self.deadline = worker, task, deadline
        self.verdicts: dict[tuple[str, bool], Judged] = {}  # by source, and whether on data drawn anew
        self.waits = True  # `WAITING_S` for each judgement
        self.unprepared: int | None = 1  # what `prepare` has left; None where there is no more room
        self.prepared_s: list[float] = []  # what each took

    def verdict(self, trial: Trial, anew: bool = False) -> Judged:
        """Every distribution against float64 and eager, once. anew: on data drawn anew."""
        key = trial.source, anew
        if key not in self.verdicts:
            self.verdicts[key] = self.judged(trial, self.task.contracted, anew)
        return self.verdicts[key]

    def elsewhere(self, trial: Trial) -> Judged | None:
        """The first sizes of dynamic axes at which it is wrong, or overflows like eager PyTorch; None where it is right
        at all of them."""
        excused: Judged | None = None
        try:
            for problem, contracted in self.task.elsewhere:
                self.worker.set_problem(problem)
                judged = self.judged(trial, contracted, anew=True)
                if not judged.ok:
                    return replace(judged, problem=f"where dynamic sizes are {problem.arguments}: {judged.problem}")
                excused = excused or (judged if judged.excused else None)
        finally:
            if self.task.elsewhere:
                self.worker.set_problem(self.task.problem)
        return excused

    def anew(self, trial: Trial) -> Judged:
        """On data drawn anew, and at other dynamic sizes. What is wrong there is so from then on."""
        verdict = self.verdict(trial, anew=True)
        if verdict.ok:
            verdict = self.elsewhere(trial) or verdict
        if not verdict.ok:
            self.verdicts[trial.source, False] = verdict
        self.waits = self.waits and not verdict.ok
        return verdict

    def everywhere(self, trial: Trial) -> Judged:
        """As the winner is judged: on the data that all see, on data drawn anew, and at other dynamic sizes."""
        verdict = self.verdict(trial)
        return self.anew(trial) if verdict.right else verdict

    def prepare(self) -> bool:
        """Has the GPU process evaluate, while it has nothing to time, what the program makes of one more distribution.
        Whether it did: not where all is done, nor where room or time is up."""
        start = time.monotonic()
        if not self.unprepared or start + JUDGEMENTS * max(self.prepared_s, default=0.0) > self.deadline.end:
            return False
        self.unprepared = self.worker.prepare_judging(self.task.contracted)
        self.prepared_s.append(time.monotonic() - start)
        # where there is no more room, what is not held is evaluated anew
        again = len(self.prepared_s) if self.unprepared is None else self.unprepared
        self.deadline.preparing_s = again * statistics.fmean(self.prepared_s)
        return self.unprepared is not None

    @property
    def known_right(self) -> bool:
        """Whether something is right without excuse."""
        return any(v.right for v in self.verdicts.values())

    def judged(self, trial: Trial, contracted: int, anew: bool) -> Judged:
        start = time.monotonic()
        step_s = max(JUDGING_S, self.task.budget_s)
        allowed_s = WAITING_S if self.waits else OVERTIME_S
        within_s = max(allowed_s, self.deadline.lost_at - start, JUDGEMENTS * self.deadline.judging_s)
        standard = Standard(self.task.tolerance, contracted, overflow_like_eager=True)
        candidate = Candidate("judged", trial.source, timeout_s=step_s)
        judged = self.worker.judge(candidate, standard, anew, within_s)
        if isinstance(judged, Failure) and judged.kind is FailureKind.LATE:
            self.waits = False
        else:
            self.deadline.judging_s = max(self.deadline.judging_s, time.monotonic() - start)
        if isinstance(judged, Failure):
            return Judged(False, problem=str(judged))
        return judged
