"""The tuner: from μGraphs and a cost model to the one schedule that is fastest and right on this GPU.

Rounds: many schedules timed quickly, then the neighbours of the best few until nothing gets better or the time is up,
then a careful, interleaved timing of the finalists. Every finalist is judged on every distribution of test data: a
compiler may get a single schedule wrong, so the judgement is of schedules, not of μGraphs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.target import Target
from mirage_cli.tune.bench import baseline
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.measure import (
    QUICK,
    Candidate,
    Effort,
    Failure,
    GpuWorker,
    Judged,
    Problem,
    Standard,
    Timing,
)
from mirage_cli.tune.space import first_schedules, neighbours

STARTS = 10
"""Schedules of each μGraph in the first round."""
BEAM = 3
"""Schedules whose neighbours are tried in each further round: the best of as many μGraphs, and the best of all."""
HOPELESS = 1.5
"""A μGraph whose best schedule takes this much longer than the best of all is given up."""
ROUND = 48
"""Schedules of one further round."""
FINALISTS = 5
REFUSALS = 3
"""A μGraph of which so many schedules were refused is not judged further."""
SPILL_LIMIT_BYTES = 128
FINAL = Effort(rounds=31, launches=2048, seconds=0.5, hot=True)
GAIN = 0.99
PATIENCE = 3
"""So many rounds in a row that each bring less than `GAIN` end the search of neighbours."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One schedule of one μGraph with what was measured of it. `timing` is None where it failed before being timed."""

    mugraph: str
    schedule: Schedule
    source: str
    timing: Timing | None = None
    failure: str | None = None

    @property
    def us(self) -> float:
        return self.timing.median_us if self.timing else float("inf")


@dataclass(slots=True)
class Tuned:
    """What tuning found: the best trial that is right, all trials, and how the time went."""

    best: Trial | None
    verdict: Judged | None
    trials: list[Trial]
    finalists: list[Trial]
    rejected: list[tuple[Trial, Judged]]
    baselines: dict[str, Timing | Failure]
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    stopped: str = "exhausted"


Emit = Callable[[MuGraph, Schedule], str]
Progress = Callable[[str, int, float | None], None]
"""Called with what is being tried, how many so far, and the best time so far."""


class Tuner:
    """Tunes μGraphs on one GPU. The worker and the compile farm outlive a problem and serve many."""

    def __init__(self, worker: GpuWorker, farm: CompileFarm, target: Target, emit: Emit, progress: Progress) -> None:
        self.worker, self.farm, self.target, self.emit, self.progress = worker, farm, target, emit, progress

    def tune(
        self,
        graphs: Sequence[tuple[str, MuGraph]],
        problem: Problem,
        tolerance: float,
        contracted: int,
        as_written: str,
        budget_s: float,
        known: Sequence[Trial] = (),
        on_trial: Callable[[Trial], None] = lambda _: None,
    ) -> Tuned:
        """The best schedule of any of these μGraphs.

        contracted: terms of the program's longest contraction. as_written: the id of the program as its user wrote it.
        known: trials of an earlier run, which are not repeated.
        """
        run = _Run(self, dict(graphs), problem, tolerance, time.monotonic() + budget_s, on_trial)
        run.contracted, run.as_written = contracted, as_written
        start = time.monotonic()
        self.worker.set_problem(problem)
        result = run.run(known)
        result.seconds = time.monotonic() - start
        return result


class _Run:
    def __init__(
        self,
        tuner: Tuner,
        graphs: dict[str, MuGraph],
        problem: Problem,
        tolerance: float,
        deadline: float,
        on_trial: Callable[[Trial], None],
    ) -> None:
        self.t, self.graphs, self.problem, self.tolerance = tuner, graphs, problem, tolerance
        self.deadline, self.on_trial = deadline, on_trial
        self.trials: dict[str, Trial] = {}
        self.failures: Counter[str] = Counter()
        self.eager = baseline("eager", problem)
        self.contracted = 1
        self.as_written = ""

    def run(self, known: Sequence[Trial]) -> Tuned:
        for trial in known:
            if trial.mugraph in self.graphs:
                self.trials[self.key(trial.mugraph, trial.schedule)] = trial
        first = [(g, s) for g, graph in self.graphs.items() for s in first_schedules(graph, self.t.target, STARTS)]
        self.round("first schedules", first)
        stopped = "exhausted"
        best = self.best_us()
        tried: set[str] = set()
        idle = 0
        while True:
            if time.monotonic() > self.deadline:
                stopped = "budget"
                break
            leaders = self.next_leaders(tried)
            if not leaders:
                break
            tried |= {self.key(t.mugraph, t.schedule) for t in leaders}
            around = [
                [(t.mugraph, s) for s in neighbours(self.graphs[t.mugraph], t.schedule, self.t.target)] for t in leaders
            ]
            self.round("neighbours of the best", _interleave(around)[:ROUND])
            now = self.best_us()
            idle = 0 if now < best * GAIN else idle + 1
            best = now
            if idle >= PATIENCE:
                break
        return self.finish(stopped)

    def next_leaders(self, tried: set[str]) -> list[Trial]:
        """The best schedule not yet expanded of each of the most promising μGraphs, and of all."""
        limit = HOPELESS * self.best_us()
        fresh = [
            t for t in self.leaders(len(self.trials)) if self.key(t.mugraph, t.schedule) not in tried and t.us <= limit
        ]
        first: dict[str, Trial] = {}
        for t in fresh:
            first.setdefault(t.mugraph, t)
        return [*list(first.values())[:BEAM], *(t for t in fresh[:2] if t not in first.values())]

    def key(self, mugraph: str, schedule: Schedule) -> str:
        return f"{mugraph}\n{schedule}"

    def best_us(self) -> float:
        return min((t.us for t in self.trials.values()), default=float("inf"))

    def leaders(self, count: int) -> list[Trial]:
        return sorted((t for t in self.trials.values() if t.timing), key=lambda t: t.us)[:count]

    def round(self, what: str, pairs: Sequence[tuple[str, Schedule]]) -> None:
        """Emit, compile and quickly time schedules that were not tried before."""
        waiting: dict[str, Trial] = {}
        for g, s in pairs:
            key = self.key(g, s)
            if key in self.trials or key in waiting:
                continue
            try:
                waiting[key] = Trial(g, s, self.t.emit(self.graphs[g], s))
            except EmitError as error:
                self.failures[error.reason] += 1
                self.trials[key] = Trial(g, s, "", failure=error.reason)
        candidates = {key: Candidate(key, t.source) for key, t in waiting.items()}
        compiled: list[Candidate] = []
        for key, answer in self.t.farm.compile_all(
            list(candidates.values()), self.problem.inputs, self.problem.outputs
        ):
            if isinstance(answer, Failure):
                self.fail(waiting[key], str(answer.kind), str(answer))
            elif any(k.spill_bytes > SPILL_LIMIT_BYTES for k in answer):
                self.fail(waiting[key], "spills registers", "spills registers")
            elif any(k.shared_bytes > self.t.target.smem_per_block_bytes for k in answer):
                self.fail(waiting[key], "shared memory", "needs more shared memory than a block may have")
            else:
                compiled.append(candidates[key])
            best = self.best_us()
            self.t.progress(what, len(self.trials), best if best < float("inf") else None)
        self.time(compiled, waiting)
        best = self.best_us()
        self.t.progress(what, len(self.trials), best if best < float("inf") else None)

    def time(self, compiled: Sequence[Candidate], waiting: dict[str, Trial]) -> None:
        if not compiled:
            return
        for key, timing in self.t.worker.time(sorted(compiled, key=lambda c: c.id), QUICK).items():
            if isinstance(timing, Failure):
                self.fail(waiting[key], str(timing.kind), str(timing))
            else:
                t = waiting[key]
                self.keep(Trial(t.mugraph, t.schedule, t.source, timing))

    def fail(self, trial: Trial, reason: str, message: str) -> None:
        self.failures[reason] += 1
        self.keep(Trial(trial.mugraph, trial.schedule, trial.source, failure=message))

    def keep(self, trial: Trial) -> None:
        self.trials[self.key(trial.mugraph, trial.schedule)] = trial
        self.on_trial(trial)

    # -- the end

    def finish(self, stopped: str) -> Tuned:
        """Judge the fastest until enough are right, then time those carefully beside eager PyTorch."""
        right: list[tuple[Trial, Judged]] = []
        rejected: list[tuple[Trial, Judged]] = []
        refused: Counter[str] = Counter()
        for trial in self.leaders(len(self.trials)):
            if refused[trial.mugraph] >= REFUSALS:
                continue  # what this μGraph computes is inaccurate, whatever the schedule
            if not trial.source:
                trial = Trial(
                    trial.mugraph, trial.schedule, self.t.emit(self.graphs[trial.mugraph], trial.schedule), trial.timing
                )
            verdict = self.judge(trial)
            (right if verdict.ok else rejected).append((trial, verdict))
            refused[trial.mugraph] += not verdict.ok
            if len(right) == FINALISTS:
                break
        contestants = [Candidate(f"{i}", t.source) for i, (t, _) in enumerate(right)]
        timings = dict(self.t.worker.time([*contestants, self.eager], FINAL))
        finalists: list[tuple[Trial, Judged]] = []
        for i, (trial, verdict) in enumerate(right):
            timing = timings[f"{i}"]
            if isinstance(timing, Timing):
                finalists.append((Trial(trial.mugraph, trial.schedule, trial.source, timing), verdict))
        finalists.sort(key=lambda f: f[0].us)
        best, verdict = finalists[0] if finalists else (None, None)
        baselines = {"eager": timings[self.eager.id]}
        trials = list(self.trials.values())
        return Tuned(best, verdict, trials, [t for t, _ in finalists], rejected, baselines, self.failures, 0.0, stopped)

    def judge(self, trial: Trial) -> Judged:
        """Every distribution against float64 and eager. The program as written may overflow where eager does."""
        lenient = trial.mugraph == self.as_written
        standard = Standard(self.tolerance, self.contracted, lenient)
        judged = self.t.worker.judge(Candidate("judged", trial.source, timeout_s=60.0), standard)
        if isinstance(judged, Failure):
            return Judged(False, float("inf"), 0.0, str(judged))
        return judged


def _interleave(lists: Sequence[Sequence[tuple[str, Schedule]]]) -> list[tuple[str, Schedule]]:
    longest = max((len(x) for x in lists), default=0)
    return [x[i] for i in range(longest) for x in lists if i < len(x)]
