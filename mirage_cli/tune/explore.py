"""The first part of tuning: a stream of schedules that are compiled in parallel and timed quickly as they come.

The first are the cost model's best of each μGraph; whenever few are left on their way, a surrogate model
(`tune.surrogate`) names those of which it expects most, among the cost model's first and around the best, until nothing
gets better or the time is up.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.target.gpus import Target
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.measure import (
    QUICK,
    Candidate,
    Effort,
    Failure,
    FailureKind,
    GpuWorker,
    Judged,
    Problem,
    Standard,
    Timing,
)
from mirage_cli.tune.pace import Pace
from mirage_cli.tune.price import dearest_kernel, kernels_us, totals_us
from mirage_cli.tune.space import (
    ahead_of_time,
    crossings,
    first_schedules,
    fitted,
    in_groups,
    neighbours,
    through_descriptors,
)
from mirage_cli.tune.surrogate import Point, choose, distinct
from mirage_cli.tune.trials import Trial

STARTS = 20
"""The first schedules of each μGraph, from which the surrogate may choose as from others."""
AHEAD_STARTS = 4
"""And so many of each whose kernels all start ahead of time, as the winners do at 18 of 24 sizes. The best schedule
and the best of these are also tried through descriptors, which winners use at 8 of 24 sizes."""
BEAM = 6
"""Schedules of each μGraph around which further ones are looked for."""
LEADING = 3
"""Of those, the ones from which schedules two changes away are drawn."""
FARTHER = 6
"""Schedules one change away that are looked around in turn, of all μGraphs together."""
HOPELESS = 1.35
"""A μGraph whose best schedule takes this much longer than the best of all is given up."""
GUESSES = 24
"""Schedules that the surrogate names at once, whenever fewer than that are on their way."""
PATIENCE = 160
"""So many of them in a row that bring less than `GAIN` end the search; what is on its way then is dropped."""
GAIN = 0.99
FINISHING = 0.15
"""The part of the budget that is left to the finals."""
FEW, OVERTIME = 12, 0.1
"""Until so many are timed, the first part may take all of the budget, and this part of it more."""
LARGE_ELEMENTS = 1 << 26
"""A problem of more is large: drawing its inputs, or evaluating it to judge a kernel, may take seconds, which the
finals must have."""
LARGE_S = 2.0
"""So is one of which a judgement has taken longer."""
JUDGEMENTS = 2.2
"""For so many the time is kept: of the winner, and of the winner on data drawn anew."""
FIRST_TIMED, BEFORE_JUDGING = 8, 0.4
"""So many timings, or this part of the budget, come before the first judgement of a large problem."""
SECURED = 3
"""Schedules of a large problem that are judged before the finals, at most, until one is right."""
STEP, LEAST_STEP_S, MOST_STEP_S = 0.3, 5.0, 20.0
"""The part of the budget that one step of a candidate may take before it counts as one that hangs, and its limits."""
JUDGING_S = 20.0
"""What one step of a judgement may take, or the budget where that is more."""
OVERTIME_S = 10.0
"""After so long beyond the budget, or after twice the budget, it ends without an answer. A judgement has as long in any
case, or twice what one has taken."""
SPECIALIZED_TIMEOUT_S = 8.0
"""What a step of a specialized schedule may take: some that Triton compiles never end."""
UNTRUSTED = (FailureKind.HANG, FailureKind.FAULT, FailureKind.CRASH, FailureKind.WRONG)
"""Failures of a specialized schedule after which no other of the same μGraph is tried."""

Emit = Callable[[MuGraph, Schedule], str]
Progress = Callable[[str, int, float | None], None]
"""Called with what is being tried, how many so far, and the best time so far."""


@dataclass(frozen=True, slots=True)
class Means:
    """What tuning works with: a GPU and compilers, which outlive a task and serve many, the target that they compile
    for, and what writes sources and reports."""

    worker: GpuWorker
    farm: CompileFarm
    target: Target
    emit: Emit
    progress: Progress


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be tuned.

    graphs: by id. as_written: the one that is the program as written, which is tried first: it always has an answer.
    contracted: terms of the program's longest contraction. budget_s: for all of it. known: trials of an
    earlier run, which are not repeated. on_trial: is told each new one. hints: what won for some of these μGraphs at
    other sizes. elsewhere: the problem at other sizes of dynamic axes, at which the winner is judged too, each with the
    terms of the longest contraction there. in_model: whether schedules that overlap in other ways are judged and kept
    too.
    """

    graphs: Mapping[str, MuGraph]
    problem: Problem
    tolerance: float
    contracted: int
    budget_s: float
    known: Sequence[Trial] = ()
    on_trial: Callable[[Trial], None] = lambda _: None
    hints: Sequence[tuple[str, Schedule]] = ()
    elsewhere: Sequence[tuple[Problem, int]] = ()
    as_written: str | None = None
    in_model: bool = False


class Explorer:
    """One run of the first part, with the trials it has made."""

    def __init__(self, means: Means, task: Task) -> None:
        self.means, self.task, self.graphs = means, task, task.graphs
        self.end = time.monotonic() + task.budget_s
        self.judging_s = 0.0  # what the longest judgement took
        self.verdicts: dict[tuple[str, bool], Judged] = {}  # by source, and whether on data drawn anew
        self.trials: dict[str, Trial] = {}
        self.waiting: dict[str, Trial] = {}  # what is being compiled, or was and is not yet timed
        self.ready: list[Trial] = []  # of these, what is compiled
        self.guessed: set[str] = set()  # what the surrogate has named
        self.asked_at: float | None = None  # when the first were given to the compilers
        self.compiling_s = self.choosing_s = 0.0  # until the first was compiled; what the last naming took
        self.record_us, self.idle = math.inf, 0  # the last gain, and the guesses since
        self.stopped = ""  # what has ended the exploration
        self.failures: Counter[str] = Counter()
        self.starts: dict[str, list[Point]] = {}
        self.near: dict[str, list[Point]] = {}
        self.predictions: dict[str, float] = {}
        self.rng = random.Random(task.problem.seed)
        self.phases: dict[str, float] = {}
        self.pace = Pace()
        self.trusted: dict[str, bool] = {}  # by μGraph: whether the specialized schedule that was judged is right
        for trial in task.known:
            if trial.mugraph in self.graphs:
                self.trials[self.key(trial.mugraph, trial.schedule)] = trial
                if trial.schedule.specialize and (trial.failure or "").startswith(UNTRUSTED):
                    self.trusted[trial.mugraph] = False

    @property
    def large(self) -> bool:
        """Whether the clock counts in the finals: by its elements, or since one judgement has taken seconds."""
        return self.task.problem.elements > LARGE_ELEMENTS or self.judging_s > LARGE_S

    @property
    def left_s(self) -> float:
        """What is left of the budget, without what judging the winner will take."""
        return self.end - time.monotonic() - JUDGEMENTS * self.judging_s

    @property
    def exploring_s(self) -> float:
        """What is left of it for the first part. When `FEW` are timed, the finals keep their part of the budget. Until
        then, the first part may take that too, and `OVERTIME`."""
        enough = sum(t.timing is not None for t in self.trials.values()) >= FEW
        return self.left_s - (FINISHING if enough else -OVERTIME) * self.task.budget_s

    @property
    def late(self) -> bool:
        """Whether there is something to end with, and no time for more."""
        return self.exploring_s < 0 and (self.lost or self.answered)

    @property
    def answered(self) -> bool:
        """Whether something was timed besides the program as written: that alone is no reason to end before what is
        being compiled is timed."""
        others = self.graphs.keys() - {self.task.as_written} or self.graphs.keys()
        return any(t.mugraph in others for t in self.leaders(len(self.trials)))

    @property
    def lost(self) -> bool:
        """Whether it has taken so long that it ends even without an answer."""
        return time.monotonic() > self.lost_at

    @property
    def lost_at(self) -> float:
        return self.end + max(OVERTIME_S, self.task.budget_s)

    def run(self) -> None:
        """Times schedules until the best seems found, or the time is up. Raises MeasureError."""
        try:
            self.ask(self.first())
            self.refill()
            with self.phase("starting"):  # while the first are being compiled
                self.means.worker.set_problem(self.task.problem)
            self.explore()
        finally:
            self.means.farm.drop()
            self.waiting.clear()  # what was not timed may be asked for again
            self.ready.clear()

    def explore(self) -> None:
        while True:
            if not self.waiting:
                self.refill()
            if not self.waiting:
                self.stopped = self.stopped or "exhausted"
                return
            with self.phase("compiling"):
                self.ready += self.compiled(wait=not self.ready)
            with self.phase("timing"):
                self.time()
            self.tell()
            if self.large:
                with self.phase("judging"):
                    self.secure()
            if not self.stopped:
                over = self.exploring_s < 0 and (self.lost or bool(self.leaders(1)))
                self.stopped = "budget" if over else "exhausted" if self.idle >= PATIENCE else ""
                for key in self.means.farm.forget() if self.stopped else ():
                    del self.waiting[key]
            if self.stopped and self.left_s < 0 and (self.answered or self.lost):
                return  # what is being compiled comes too late

    def secure(self) -> None:
        """Judges the fastest so far, until one is right: there is an answer then, and what a judgement takes is known
        while there is time to keep for others."""
        timed = sum(t.timing is not None for t in self.trials.values())
        if timed < FIRST_TIMED and self.end - time.monotonic() > (1 - BEFORE_JUDGING) * self.task.budget_s:
            return
        if len(self.verdicts) < SECURED and not self.known_right:
            for t in self.leaders(1):
                if t.source:
                    self.judge(t)

    def refill(self) -> None:
        """Names more schedules where few are left on their way, and what is named can still be compiled and timed."""
        while not self.stopped and len(self.waiting) < GUESSES and self.idle < PATIENCE:
            if self.compiling_s and self.waiting and self.exploring_s < self.choosing_s + self.compiling_s:
                break
            start = time.monotonic()
            with self.phase("choosing"):
                promising = self.promising()
                self.guessed |= {self.key(*pair) for pair in promising}
                self.ask(promising)
            self.choosing_s = time.monotonic() - start
            if not promising:
                break

    def first(self) -> list[tuple[str, Schedule]]:
        """In this order: the program as written; what won at other sizes; the cost model's best of each μGraph; its
        best with descriptors."""
        graph = self.graphs.get(self.task.as_written or "")
        sure = first_schedules(graph, self.means.target, 1) if graph else []
        hints = [(g, fitted(self.graphs[g], s, self.means.target)) for g, s in self.task.hints if g in self.graphs]
        first = [(self.task.as_written or "", s) for s in sure] + [(g, s) for g, s in hints if s is not None]
        of_each = [[(g, s) for s in self.best(graph)] for g, graph in self.graphs.items()]
        return [*first, *(pair for some in of_each for pair in some[:1]), *(p for some in of_each for p in some[1:])]

    def best(self, graph: MuGraph) -> list[Schedule]:
        """The cost model's best, then the same, and its best ahead of time, through descriptors; the first of these in
        groups too."""
        target = self.means.target
        some = first_schedules(graph, target, 1)
        some += ahead_of_time(graph, some[0], target, 1) if some else []
        boxes = [x for s in some if (x := through_descriptors(graph, s, target)) is not None]
        first = [*boxes, *some][:1]
        grouped = [x for s in first if (x := in_groups(graph, s, target)) is not None]
        return [*some[:1], *grouped, *boxes]

    def first_points(self, g: str) -> list[Point]:
        """The cost model's first schedules of a μGraph, and its best that start ahead of time."""
        if g not in self.starts:
            graph, target = self.graphs[g], self.means.target
            some = first_schedules(graph, target, STARTS)
            some += ahead_of_time(graph, some[0], target, AHEAD_STARTS) if some else []
            self.starts[g] = self.points(g, some)
        return self.starts[g]

    def points(self, g: str, schedules: Sequence[Schedule]) -> list[Point]:
        """With their predicted times."""
        graph = self.graphs[g]
        us = totals_us(graph, schedules, self.means.target) if schedules else []
        return [Point(g, s, float(x)) for s, x in zip(schedules, us, strict=True)]

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        start = time.monotonic()
        yield
        self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - start

    def promising(self) -> list[tuple[str, Schedule]]:
        """What the surrogate expects most of."""
        limit = HOPELESS * self.best_us()
        timed: dict[str, list[Trial]] = {}
        for t in self.leaders(len(self.trials)):
            timed.setdefault(t.mugraph, []).append(t)
        hopeful = {g: timed.get(g, []) for g in self.graphs if g not in timed or timed[g][0].paced_us <= limit}
        pool = self.pool(hopeful)
        known = [p for p in self.tried() if p.predicted_us < float("inf")]
        chosen = choose(known, pool, GUESSES, {g: self.shares(g, trials) for g, trials in hopeful.items()})
        return [(pool[i].graph, pool[i].schedule) for i in chosen]

    def shares(self, g: str, trials: Sequence[Trial]) -> list[float]:
        """Of each kernel, by name: its part of the time of the best schedule, by the cost model; none where that has
        no time for it."""
        schedule = trials[0].schedule if trials else next((p.schedule for p in self.first_points(g)), Schedule())
        us = kernels_us(self.graphs[g], schedule, self.means.target) if schedule.kernels else {}
        total_us = sum(us.values())
        return [us[name] / total_us for name in sorted(us)] if math.isfinite(total_us) else []

    def pool(self, hopeful: Mapping[str, Sequence[Trial]]) -> list[Point]:
        """Of these μGraphs, each with its trials from the best on: the cost model's first schedules, those one change
        from the best, and some two changes away."""
        points: list[Point] = []
        farther: list[tuple[str, Schedule]] = []
        for g, trials in hopeful.items():
            points += self.first_points(g)
            if not trials:
                continue
            if len(trials[0].schedule.kernels) > 1:
                points += self.crossed(g, trials)
            near = self.around(g, [t.schedule for t in self.centres(g, trials)])
            points += [p for some in near for p in some]
            farther += [(g, p.schedule) for some in near[:LEADING] for p in some]
        drawn: dict[str, list[Schedule]] = {}
        for g, s in self.rng.sample(farther, min(FARTHER, len(farther))):
            drawn.setdefault(g, []).append(s)
        points += [p for g, schedules in drawn.items() for some in self.around(g, schedules) for p in some]
        return self.untried(p for p in points if not self.distrusted(p.graph, p.schedule))

    def crossed(self, g: str, trials: Sequence[Trial]) -> list[Point]:
        """The best trials with each kernel in turn as other trials have it: for each kernel, the best that differ in
        it."""
        others: dict[str, Schedule] = {}
        for name in trials[0].schedule.kernels:
            distinct_in = {t.schedule.kernels[name]: t.schedule for t in reversed(trials)}
            best = sorted(distinct_in.values(), key=lambda s: self.trials[self.key(g, s)].paced_us)
            others |= {str(s): s for s in best[:BEAM]}
        best = [t.schedule for t in trials[:LEADING]]
        return [Point(g, s, us) for us, s in crossings(self.graphs[g], best, [*others.values()], self.means.target)]

    def untried(self, points: Iterable[Point]) -> list[Point]:
        taken = (*self.trials.values(), *self.waiting.values())
        return distinct(points, {(t.mugraph, str(t.schedule)) for t in taken})

    def distrusted(self, g: str, schedule: Schedule) -> bool:
        return schedule.specialize and not self.trusted.get(g, True)

    def centres(self, g: str, trials: Sequence[Trial]) -> list[Trial]:
        """The best trials, then the best with other block sizes of the dearest kernel: a gain may need two changes."""
        best = list(trials[:BEAM])
        if not trials[0].schedule.kernels:
            return best
        kernel = dearest_kernel(self.graphs[g], trials[0].schedule, self.means.target)
        seen = {t.schedule.kernels[kernel].tiles for t in best}
        others: list[Trial] = []
        for t in trials[BEAM:]:
            tiles = t.schedule.kernels[kernel].tiles
            if len(others) < BEAM and tiles not in seen:
                seen.add(tiles)
                others.append(t)
        return best + others

    def around(self, g: str, schedules: Sequence[Schedule]) -> list[list[Point]]:
        """For each of these the schedules one change away."""
        new = {key: s for s in schedules if (key := self.key(g, s)) not in self.near}
        for key, near in zip(new, neighbours(self.graphs[g], [*new.values()], self.means.target), strict=True):
            self.near[key] = [Point(g, s, us) for us, s in near]
        return [self.near[self.key(g, s)] for s in schedules]

    def tried(self) -> list[Point]:
        """The trials, with what the cost model predicts."""
        new: dict[str, list[Schedule]] = {}
        for key, t in self.trials.items():
            if key not in self.predictions:
                new.setdefault(t.mugraph, []).append(t.schedule)
        for g, schedules in new.items():
            self.predictions |= {self.key(g, p.schedule): p.predicted_us for p in self.points(g, schedules)}
        return [Point(t.mugraph, t.schedule, self.predictions[key], t.paced_us) for key, t in self.trials.items()]

    def key(self, mugraph: str, schedule: Schedule) -> str:
        return f"{mugraph}\n{schedule}"

    def best_us(self) -> float:
        return min((t.paced_us for t in self.trials.values()), default=float("inf"))

    def leaders(self, count: int) -> list[Trial]:
        return sorted((t for t in self.trials.values() if t.timing), key=lambda t: t.paced_us)[:count]

    def ask(self, pairs: Sequence[tuple[str, Schedule]]) -> None:
        """Has these compiled, unless they were tried before or cannot be written; the first, for which a GPU waits,
        kernel by kernel."""
        sources: dict[str, str] = {}
        for g, s in pairs:
            key = self.key(g, s)
            if key in self.trials or key in self.waiting:
                continue
            try:
                sources[key] = self.means.emit(self.graphs[g], s)
                self.waiting[key] = Trial(g, s, sources[key])
            except EmitError as error:
                self.failures[error.reason] += 1
                self.trials[key] = Trial(g, s, "", failure=error.reason)
                self.idle += key in self.guessed
        kernels = {key: len(self.graphs[self.waiting[key].mugraph].kernels) for key in sources}
        jobs = [Candidate(key, sources[key], shares=1 if self.guessed else kernels[key]) for key in sources]
        self.asked_at = self.asked_at or time.monotonic()
        self.means.farm.give(jobs, self.task.problem.inputs, self.task.problem.outputs)

    def build(self, pairs: Sequence[tuple[str, Schedule]]) -> list[Trial]:
        """Those that were not tried before, and can be written and compiled."""
        self.ask(pairs)
        fine: list[Trial] = []
        while self.means.farm.pending:
            fine += self.compiled()
        return fine

    def compiled(self, wait: bool = True) -> list[Trial]:
        """Of what the compilers have done, what has the shared memory that it needs. What has too few registers is
        timed as it is: of 5,300 schedules for the 24 sizes of `search_specs` a fiftieth spilled. wait: for some."""
        fine: list[Trial] = []
        found = self.means.farm.take(wait)
        if found and not self.compiling_s and self.asked_at:
            self.compiling_s = time.monotonic() - self.asked_at
        for key, answer in found:
            trial = self.waiting[key]
            if isinstance(answer, Failure):
                self.fail(trial, str(answer.kind), str(answer))
            elif any(k.shared_bytes > self.means.target.smem_per_block_bytes for k in answer):
                self.fail(trial, "shared memory", "needs more shared memory than a block may have")
            else:
                fine.append(trial)
        return fine

    def tell(self) -> None:
        best = self.best_us()
        what = "promising schedules" if self.guessed else "first schedules"
        self.means.progress(what, len(self.trials), best if best < float("inf") else None)

    def time(self) -> None:
        """What is compiled: what is specialized by itself, the schedules of a μGraph together; of the others as many as
        there is time for, which leaves the last for the next time.

        While those are at work on the GPU, more are named, on what is known by then.
        """
        trials, self.ready = self.ready, []
        plain = [t for t in trials if not t.schedule.specialize and not self.late]
        control = self.pace.due() if plain else []
        some = [*plain, *control]
        found = self.timings(some, meanwhile=self.refill, within_s=self.exploring_s) if some else []
        for timing in (timing for t, timing in found if t in control):
            self.pace.seen(timing)
        for t, timing in found:
            if t not in control:
                self.timed(t, timing)
        if not self.late:
            self.ready = [t for t in plain if self.key(t.mugraph, t.schedule) in self.waiting]
        own = next((t for t in self.leaders(len(self.trials)) if t.source), None)  # those of an earlier run have none
        if own is not None:
            self.pace.begin(own)
        risky: dict[str, list[Trial]] = {}
        for t in trials:
            if t.schedule.specialize:
                risky.setdefault(t.mugraph, []).append(t)
        for g, some in risky.items():
            if not self.late:
                self.time_specialized(g, some)
        kept = {self.key(t.mugraph, t.schedule) for t in self.ready}
        for key in {self.key(t.mugraph, t.schedule) for t in trials} - kept:  # what there was no time for
            self.waiting.pop(key, None)

    def time_specialized(self, g: str, trials: Sequence[Trial]) -> None:
        """Where one hangs or faults, or the fastest of the first that were timed is wrong, none of them counts."""
        trusted = self.trusted.get(g, True)
        timings = self.timings(trials, SPECIALIZED_TIMEOUT_S) if trusted else []
        fine = [(x.median_us, t) for t, x in timings if isinstance(x, Timing)]
        trusted &= not any(isinstance(x, Failure) and x.kind in UNTRUSTED for _, x in timings)
        if trusted and fine and g not in self.trusted:
            trusted = self.judge(min(fine, key=lambda f: f[0])[1]).ok
        if fine or not trusted:
            self.trusted[g] = trusted
        distrusted = Failure(FailureKind.WRONG, "specialized as one that hung, faulted or was wrong")
        known = {self.key(t.mugraph, t.schedule): x for t, x in timings}
        for t in trials:
            timing = known.get(self.key(t.mugraph, t.schedule), distrusted)
            self.timed(t, timing if trusted or isinstance(timing, Failure) else distrusted)

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
            best_us=self.best_us() * self.pace.now,
        )
        return [(jobs[i], timing) for i, timing in found.items()]

    def timed(self, t: Trial, timing: Timing | Failure) -> None:
        if isinstance(timing, Failure):
            self.fail(t, str(timing.kind), str(timing))
        else:
            self.keep(Trial(t.mugraph, t.schedule, t.source, timing, pace=self.pace.now))

    def fail(self, trial: Trial, reason: str, message: str) -> None:
        self.failures[reason] += 1
        self.keep(Trial(trial.mugraph, trial.schedule, trial.source, failure=message))

    def keep(self, trial: Trial) -> None:
        key = self.key(trial.mugraph, trial.schedule)
        self.trials[key] = trial
        self.waiting.pop(key, None)
        self.idle += key in self.guessed
        if trial.paced_us < GAIN * self.record_us:
            self.record_us, self.idle = trial.paced_us, 0
        self.task.on_trial(trial)

    def judge(self, trial: Trial, anew: bool = False) -> Judged:
        """Every distribution against float64 and eager, once. anew: on data drawn anew."""
        key = trial.source, anew
        if key not in self.verdicts:
            self.verdicts[key] = self.judged(trial, self.task.contracted, anew)
        return self.verdicts[key]

    def judge_elsewhere(self, trial: Trial) -> Judged | None:
        """The first sizes of dynamic axes at which it is wrong, or overflows like eager PyTorch; None where it is right
        at all of them."""
        excused: Judged | None = None
        try:
            for problem, contracted in self.task.elsewhere:
                self.means.worker.set_problem(problem)
                judged = self.judged(trial, contracted, anew=True)
                if not judged.ok:
                    return replace(judged, problem=f"where dynamic sizes are {problem.arguments}: {judged.problem}")
                excused = excused or (judged if judged.excused else None)
        finally:
            if self.task.elsewhere:
                self.means.worker.set_problem(self.task.problem)
        return excused

    @property
    def known_right(self) -> bool:
        """Whether something is right without excuse."""
        return any(v.right for v in self.verdicts.values())

    def judged(self, trial: Trial, contracted: int, anew: bool) -> Judged:
        start = time.monotonic()
        step_s = max(JUDGING_S, self.task.budget_s)
        within_s = max(OVERTIME_S, self.lost_at - start, JUDGEMENTS * self.judging_s)
        standard = Standard(self.task.tolerance, contracted, overflow_like_eager=True)
        candidate = Candidate("judged", trial.source, timeout_s=step_s)
        judged = self.means.worker.judge(candidate, standard, anew, within_s)
        if not isinstance(judged, Failure) or judged.kind is not FailureKind.LATE:
            self.judging_s = max(self.judging_s, time.monotonic() - start)
        if isinstance(judged, Failure):
            return Judged(False, float("inf"), 0.0, str(judged))
        return judged
