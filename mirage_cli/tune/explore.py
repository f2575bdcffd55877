"""The first part of tuning: a stream of schedules that are compiled in parallel and timed quickly as they come.

    proposals ─► waiting ─► compilers ─► ready ─► GPU ─► trials ─► proposals

Whenever few are left on their way, more are proposed (`tune.proposals`), until nothing gets better or the time is up.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.ir.schedule import Schedule
from mirage_cli.tune.deadline import Deadline
from mirage_cli.tune.inflight import InFlight
from mirage_cli.tune.judge import Judge
from mirage_cli.tune.measure import QUICK, Candidate, Effort, Failure, FailureKind, Judged, Timing
from mirage_cli.tune.pace import Pace
from mirage_cli.tune.proposals import GUESSES, Proposals
from mirage_cli.tune.space import instead_by_arithmetic
from mirage_cli.tune.task import Means, Task
from mirage_cli.tune.trials import Trial, Trials, key_of
from mirage_cli.tune.trust import DISTRUSTED, INEXACT, UNTRUSTED, Trust

PATIENCE = 160
"""So many of them in a row that bring less than `GAIN` end the search; what is on its way then is dropped."""
GAIN = 0.99
FEW = 12
"""Until so many are timed, the finals have nothing but the judgements of the winner."""
FIRST_TIMED, BEFORE_JUDGING = 8, 0.4
"""So many timings, or this part of what is left when the first is made, come before the first judgement: a judgement of
a large problem takes longer than all of a short budget."""
BEYOND_S = 2.0
"""Seconds beyond the budget for which compilers are waited for, as long as fewer are timed."""
SECURED = 3
"""Schedules that are judged before the finals, at most, until one is right, besides one of each μGraph that is wrong
with float32 multiplied on the matrix units."""
STEP, LEAST_STEP_S, MOST_STEP_S = 0.3, 5.0, 20.0
"""The part of the budget that one step of a candidate may take before it counts as one that hangs, and its limits."""
SPECIALIZED_TIMEOUT_S = 8.0
"""What a step of a specialized schedule may take: some that Triton compiles never end."""
STARTED_ANEW = 6
"""Schedules by float32 arithmetic that are compiled as soon as that is seen, besides the same of the refused one."""


class Gains:
    """Whether what the surrogate names still brings any.

    guessed: the keys of all that it has named. record_us: the last gain. idle: the guesses since that brought none.
    """

    def __init__(self) -> None:
        self.guessed: set[str] = set()
        self.record_us, self.idle = math.inf, 0

    def begin(self, record_us: float) -> None:
        """Counts anew."""
        self.record_us, self.idle = record_us, 0

    def seen(self, trial: Trial) -> None:
        self.idle += trial.key in self.guessed
        if trial.paced_us < GAIN * self.record_us:
            self.begin(trial.paced_us)

    @property
    def ended(self) -> bool:
        return self.idle >= PATIENCE


class Explorer:
    """One run of the first part, with the trials it has made."""

    def __init__(self, means: Means, task: Task) -> None:
        self.means, self.task, self.graphs = means, task, task.graphs
        self.deadline = Deadline(task.budget_s, task.in_model)
        self.judge = Judge(means.worker, task, self.deadline)
        self.trials, self.trust, self.gains = Trials(), Trust(task.floor_us), Gains()
        self.proposals = Proposals(task.graphs, means.target, self.trials, task.problem.seed, self.trust)
        self.in_flight = InFlight(means.farm, task.problem)
        self.choosing_s = 0.0  # what the last naming took
        self.stopped = ""  # what has ended the exploration
        self.judging_at: float | None = None  # when the first judgement is due, however few are timed
        self.failures: Counter[str] = Counter()
        self.phases: dict[str, float] = {}
        self.pace = Pace()
        for trial in task.known:
            if trial.mugraph in self.graphs and trial.us >= self.trust.least_us:
                self.trials[trial.key] = trial
                self.trust.learn(trial)

    @property
    def exploring_s(self) -> float:
        """What is left of the budget for the first part. When `FEW` are timed, the finals keep their part of it."""
        return self.deadline.left_s - (self.deadline.finals_s if self.timed_so_far >= FEW else 0.0)

    @property
    def late(self) -> bool:
        """Whether there is something to end with, and no time for more."""
        return self.exploring_s < 0 and (self.deadline.lost or self.compared)

    @property
    def timed_so_far(self) -> int:
        return sum(t.timing is not None for t in self.trials.values())

    @property
    def compared(self) -> bool:
        """Whether enough was timed to choose from. Until then, what compilers have begun with is waited for, and timed
        when time is up, too: all began together, and the first that is compiled is seldom the best."""
        enough = self.timed_so_far >= FIRST_TIMED or not self.in_flight.waiting or self.wait_s <= 0
        return self.answered and enough

    @property
    def wait_s(self) -> float:
        """For so long compilers are waited for: without limit, where nothing is timed but the program as written."""
        return self.deadline.end + BEYOND_S - time.monotonic() if self.answered else math.inf

    @property
    def answered(self) -> bool:
        """Whether something was timed besides the program as written: that alone is no reason to end before what is
        being compiled is timed."""
        others = self.graphs.keys() - {self.task.as_written} or self.graphs.keys()
        return any(t.mugraph in others for t in self.trials.leaders())

    def run(self) -> None:
        """Times schedules until the best seems found, or the time is up. Raises MeasureError."""
        try:
            self.ask(self.proposals.first(self.task.as_written or "", self.task.hints))
            self.refill()
            with self.phase("starting"):  # while the first are being compiled
                self.means.worker.set_problem(self.task.problem)
            self.explore()
        finally:
            self.in_flight.clear()

    def explore(self) -> None:
        while True:
            if not self.in_flight.waiting:
                self.refill()
            if not self.in_flight.waiting:
                self.stopped = self.stopped or "exhausted"
                return
            with self.phase("compiling"):
                self.in_flight.ready += self.arrived()
            with self.phase("timing"):
                self.time()
            self.tell()
            with self.phase("judging"):
                self.secure()
            if not self.stopped:
                over = self.exploring_s < 0 and (self.deadline.lost or self.trials.best_us < math.inf)
                self.stopped = "budget" if over else "exhausted" if self.gains.ended else ""
                if self.stopped:
                    self.in_flight.forget()
            if self.stopped and self.deadline.left_s < 0 and (self.compared or self.deadline.lost):
                return  # what is being compiled comes too late

    def secure(self) -> None:
        """Judges the fastest so far, until one is right: there is an answer then, and what a judgement takes is known
        while there is time to keep for others."""
        if self.in_flight.waiting and not (self.answered or self.deadline.lost):
            return  # none but the program as written is timed, and others are being compiled
        now = time.monotonic()
        if self.judging_at is None:
            self.judging_at = now + max(BEFORE_JUDGING * (self.deadline.end - now), 0.0)
        early = self.timed_so_far < FIRST_TIMED and (now < self.judging_at or self.exploring_s < 0)
        if self.in_flight.waiting and early:
            return
        if len(self.judge.verdicts) - len(self.trust.refused) < SECURED and not self.judge.known_right:
            for t in self.trials.leaders()[:1]:
                if t.source and not (verdict := self.judge.verdict(t)).ok and t.schedule.tf32x3:
                    self.by_arithmetic(t, verdict)

    def by_arithmetic(self, refused: Trial, verdict: Judged) -> None:
        """Takes all schedules of a μGraph out of the race that multiply float32 on the matrix units, as one does whose
        error is too large, and has others compiled that multiply by float32 arithmetic. An error that is not finite is
        no rounding."""
        if verdict.error is None:
            return
        g = refused.mugraph
        self.trust.refused[g] = refused, verdict
        for t in [t for t in (*self.trials.leaders(), *self.in_flight.ready) if self.is_inexact(t)]:
            self.failed(t, INEXACT)
        self.in_flight.ready = [t for t in self.in_flight.ready if not self.is_inexact(t)]
        self.gains.begin(self.trials.best_us)
        dropped = self.in_flight.forget()
        best = self.proposals.first_points(g)[:STARTED_ANEW]
        instead = instead_by_arithmetic(self.graphs[g], refused.schedule, self.means.target)
        self.ask([(g, s) for s in (*instead, *(p.schedule for p in best))])
        self.ask([(t.mugraph, t.schedule) for t in dropped if not self.is_inexact(t)])

    def is_inexact(self, t: Trial) -> bool:
        return self.trust.is_inexact(t.mugraph, t.schedule)

    def refill(self) -> None:
        """Names more schedules where few are left on their way, and what is named can still be compiled and timed."""
        flight = self.in_flight
        while not self.stopped and len(flight.waiting) < GUESSES and not self.gains.ended:
            if flight.compiling_s and flight.waiting and self.exploring_s < self.choosing_s + flight.compiling_s:
                break
            start = time.monotonic()
            with self.phase("choosing"):
                promising = self.proposals.promising(flight.waiting.values())
                self.gains.guessed |= {key_of(*pair) for pair in promising}
                self.ask(promising)
            self.choosing_s = time.monotonic() - start
            if not promising:
                break

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        start = time.monotonic()
        yield
        self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - start

    def ask(self, pairs: Sequence[tuple[str, Schedule]]) -> None:
        """Has these compiled, unless they were tried before or cannot be written; the first, for which a GPU waits,
        kernel by kernel."""
        new: dict[str, Trial] = {}
        for g, s in pairs:
            key = key_of(g, s)
            if key in self.trials or key in self.in_flight.waiting or key in new:
                continue
            try:
                new[key] = Trial(g, s, self.means.emit(self.graphs[g], s))
            except EmitError as error:
                self.failures[error.reason] += 1
                self.trials[key] = refused = Trial(g, s, "", failure=error.reason)
                self.gains.seen(refused)
        shares = {g: 1 if self.gains.guessed else len(graph.kernels) for g, graph in self.graphs.items()}
        self.in_flight.give(new, shares)

    def build(self, pairs: Sequence[tuple[str, Schedule]]) -> list[Trial]:
        """Those that were not tried before, and can be written and compiled."""
        self.ask(pairs)
        fine: list[Trial] = []
        while self.means.farm.pending:
            fine += self.compiled()
        return fine

    def arrived(self) -> list[Trial]:
        """What the compilers have done. Where nothing is ready to be timed, judgements are prepared until something is,
        or wait for it."""
        fine = self.compiled(wait=False)
        while not (fine or self.in_flight.ready) and self.means.farm.pending and self.judge.prepare():
            fine = self.compiled(wait=False)
        return fine or self.compiled(wait=not self.in_flight.ready, within_s=max(self.wait_s, 0.0))

    def compiled(self, wait: bool = True, within_s: float = math.inf) -> list[Trial]:
        """Of what the compilers have done, what has the shared memory that it needs. What has too few registers is
        timed as it is: of 5,300 schedules for the 24 sizes of `search_specs` a fiftieth spilled. wait: for some, and no
        longer than this."""
        fine: list[Trial] = []
        for trial, answer in self.in_flight.take(wait, within_s):
            if isinstance(answer, Failure):
                self.failed(trial, answer)
            elif self.is_inexact(trial):
                self.failed(trial, INEXACT)
            elif any(k.shared_bytes > self.means.target.smem_per_block_bytes for k in answer):
                self.fail(trial, "shared memory", "needs more shared memory than a block may have")
            else:
                fine.append(trial)
        return fine

    def tell(self) -> None:
        best = self.trials.best_us
        what = "promising schedules" if self.gains.guessed else "first schedules"
        self.means.progress(what, len(self.trials), best if best < float("inf") else None)

    def time(self) -> None:
        """What is compiled: what is specialized by itself, the schedules of a μGraph together. What there is no time
        for is dropped."""
        trials, self.in_flight.ready = self.in_flight.ready, []
        self.in_flight.ready = self.time_plain([t for t in trials if not t.schedule.specialize and not self.late])
        own = next((t for t in self.trials.leaders() if t.source), None)  # those of an earlier run have none
        if own is not None:
            self.pace.begin(own)
        risky: dict[str, list[Trial]] = {}
        for t in trials:
            if t.schedule.specialize:
                risky.setdefault(t.mugraph, []).append(t)
        for g, some in risky.items():
            if not self.late:
                self.time_specialized(g, some)
        kept = {t.key for t in self.in_flight.ready}
        for key in {t.key for t in trials} - kept:
            self.in_flight.waiting.pop(key, None)

    def time_plain(self, trials: Sequence[Trial]) -> list[Trial]:
        """As many as there is time for; what is left for the next time. While these are at work on the GPU, more are
        named, on what is known by then."""
        if not trials:
            return []
        plain = sorted(trials, key=lambda t: t.mugraph == self.task.as_written)  # which, far slower, takes fewer calls
        control = self.pace.due()
        found = self.timings([*plain, *control], meanwhile=self.refill, within_s=self.exploring_s)
        for timing in (timing for t, timing in found if t in control):
            self.pace.seen(timing)
        for t, timing in found:
            if t not in control:
                self.timed(t, timing)
        return [] if self.late else [t for t in plain if t.key in self.in_flight.waiting]

    def time_specialized(self, g: str, trials: Sequence[Trial]) -> None:
        """Where one hangs or faults, or the fastest of the first that were timed is wrong, none of them counts."""
        trusted = self.trust.specialized.get(g, True)
        timings = self.timings(trials, SPECIALIZED_TIMEOUT_S) if trusted else []
        fine = [(x.median_us, t) for t, x in timings if isinstance(x, Timing)]
        trusted &= not any(isinstance(x, Failure) and x.kind in UNTRUSTED for _, x in timings)
        if trusted and fine and g not in self.trust.specialized:
            trusted = self.judge.verdict(min(fine, key=lambda f: f[0])[1]).ok
        if fine or not trusted:
            self.trust.specialized[g] = trusted
        known = {t.key: x for t, x in timings}
        for t in trials:
            timing = known.get(t.key, DISTRUSTED)
            self.timed(t, timing if trusted or isinstance(timing, Failure) else DISTRUSTED)

    def timings(
        self,
        trials: Sequence[Trial],
        timeout_s: float | None = None,
        effort: Effort = QUICK,
        meanwhile: Callable[[], object] = lambda: None,
        within_s: float = math.inf,
    ) -> list[tuple[Trial, Timing | Failure]]:
        """Timings side by side, of as many as fit into the seconds. With a timeout, one that takes the
        process down leaves the others without."""
        jobs = {f"{i}": t for i, t in enumerate(trials)}
        step_s = min(MOST_STEP_S, max(LEAST_STEP_S, STEP * self.task.budget_s)) if timeout_s is None else timeout_s
        candidates = [Candidate(i, t.source, timeout_s=step_s) for i, t in jobs.items()]
        found = self.means.worker.time(
            candidates,
            effort,
            persist=timeout_s is None,
            meanwhile=meanwhile,
            within_s=within_s,
            best_us=self.trials.best_us * self.pace.now,
        )
        return [(jobs[i], timing) for i, timing in found.items()]

    def timed(self, t: Trial, timing: Timing | Failure) -> None:
        if isinstance(timing, Failure):
            self.failed(t, timing)
        elif problem := self.disbelieved(t, timing):
            self.timed(t, Failure(FailureKind.WRONG, f"faster than can be: {problem}"))
        else:
            self.keep(Trial(t.mugraph, t.schedule, t.source, timing, pace=self.pace.now))

    def disbelieved(self, t: Trial, timing: Timing) -> str | None:
        """Why a kernel is wrong that is faster than is believed of one that was not judged."""
        if timing.median_us >= self.trust.least_us:
            return None
        verdict = self.judge.verdict(t)
        if verdict.ok:
            self.trust.believe(timing.median_us)
        return verdict.problem

    def failed(self, trial: Trial, failure: Failure) -> None:
        self.fail(trial, str(failure.kind), str(failure))

    def fail(self, trial: Trial, reason: str, message: str) -> None:
        self.failures[reason] += 1
        self.keep(Trial(trial.mugraph, trial.schedule, trial.source, failure=message))

    def keep(self, trial: Trial) -> None:
        key = trial.key
        self.trials[key] = trial
        self.in_flight.waiting.pop(key, None)
        self.gains.seen(trial)
        self.task.on_trial(trial)
