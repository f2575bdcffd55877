"""The second part of tuning: of all that was timed quickly, the one schedule that is fastest and right.

The contenders are timed again, side by side: their quick timings were seconds apart, and a GPU that has become hot is
slower. Behind an earlier run, which has found most of what quick timings can tell apart, so is all that is one change
away from the best, up to three times if that finds something faster. The fastest are judged on every distribution of
test data (a compiler may get a single schedule wrong, so the judgement is of schedules, not of μGraphs) until there are
enough finalists, which are timed with care, interleaved with eager PyTorch. The best of an earlier run is one of them,
and stays the best where nothing is faster. The winner is judged again on data drawn anew: of many candidates one may
pass by luck. What overflows where eager PyTorch does takes part where nothing that is right beats eager. Where nothing
is right, the program as written is judged, and compiled before if time was up for that. Where sizes are dynamic, a few
others are judged like it, that are expected to be faster near the tuned sizes.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.ir.placement import InexpressibleError
from mirage_cli.tune.bench import baseline
from mirage_cli.tune.changes import manner, starting_later
from mirage_cli.tune.explore import Explorer
from mirage_cli.tune.measure import Candidate, Effort, Failure, Judged, Timing
from mirage_cli.tune.near import Timed, expected_us, sizes_near, worth_having
from mirage_cli.tune.pace import NOISE
from mirage_cli.tune.space import first_schedules, instead_by_arithmetic
from mirage_cli.tune.trials import Incumbent, Trial, Tuned, key_of

CONTENDERS = 16
"""Trials that are timed again: half are the fastest, the others the best of each μGraph, as far as there are any."""
NEAR = 1.2
"""How much longer than the fastest they may have taken. (The clock of an H200 that is hot falls by up to a third.)"""
AGAIN = Effort(rounds=9, launches=64, seconds=0.09, hot=False)
CLOSE = 1.02
"""How much longer than the best a schedule one change away may have taken when it was timed quickly."""
STEPS = 3
"""Changes from the best, one after the other, for which the second timing goes on."""
FINALISTS = 5
NEARBY = 3
"""Of one tuned size, schedules besides the best that are kept for the sizes near it."""
REACH = 1.5
"""How much longer than the best they may have taken at the tuned size."""
LATER = 1.15
"""How much longer than the best a schedule with less overlap may take by itself, to be tried within a model."""
MANNERS, OTHERS, LEADERS = 4, 1.04, 100
"""Schedules that overlap in yet other ways, at most, that are tried within a model too; how much longer than the best
they may have taken; and among how many of the fastest trials they are looked for."""
AFTER = 0.5
"""The part of the finals' time that careful timings leave to schedules for models and for other dynamic sizes."""
NEARBY_GAIN = 0.01
"""The part of the time by which each must be expected to be faster in the mean from half to twice the tuned size."""
REFUSALS = 3
"""A μGraph of which so many schedules were refused is not judged further."""
LATE_REFUSALS = 3
"""After so many, when time is up, no others are judged but what is known to be right. Where nothing is, none are, as
soon as one overflows like eager."""
FINAL = Effort(rounds=31, launches=2048, seconds=0.5, hot=True)
LONG_US = 2000.0
"""What a long call takes."""
PREPARING, PREPARING_LONG = 2.0, 4.0
"""Times the seconds of a timing's rounds that all of it takes, and where calls are long."""
LEAST_SECONDS = 0.1
"""Of a careful timing's rounds. Where there is no time for as much of each finalist, there are fewer finalists."""


JudgedTrial = tuple[Trial, Judged]
"""A trial, and whether it is right."""


class Finals:
    """What becomes of one run's trials."""

    def __init__(self, explored: Explorer, incumbent: Incumbent | None) -> None:
        self.explored, self.incumbent = explored, incumbent
        self.means, self.task, self.graphs = explored.means, explored.task, explored.graphs
        self.trials, self.judge, self.deadline = explored.trials, explored.judge, explored.deadline
        self.eager = baseline("eager", self.task.problem)

    def decide(self) -> Tuned:
        """The best, or the incumbent. Where all that are right on the data that all see are wrong on data drawn anew,
        the next are judged, even when time is up."""
        incumbent = self.emitted_incumbent()
        with self.explored.phase("finals"):
            contenders = self.contenders()
        rejected = {t.key: (t, v) for t, v in filter(None, self.explored.trust.refused.values())}
        while True:
            with self.explored.phase("judging"):
                judged = self.judge_fastest(contenders)
                if not any(v.right for _, v in judged):
                    seen = {t.key for t, _ in judged}
                    judged += [(t, self.judge.verdict(t)) for t in self.as_written() if t.key not in seen]
                incumbent = self.join(incumbent, judged)
            finalists, refused, eager = self.right_and_timed(judged)
            rejected |= {t.key: (t, v) for t, v in (*judged, *refused) if not v.right}
            if finalists or all(v.ok for _, v in refused) or self.deadline.lost:
                break
        best, verdict = finalists[0] if finalists else (None, None)
        timed = [t for t, _ in finalists]
        lost = [(t, v.refused) for t, v in rejected.values() if not any(t.key == x.key for x in timed)]
        result = Tuned(best, verdict, [*self.trials.values()], timed, lost, {"eager": eager}, self.explored.failures)
        result.stopped = self.explored.stopped
        result.found = next((t for t in timed if t.key in self.trials), None)
        result.incumbent = incumbent and self.outcome(incumbent, timed, lost)
        return result

    def right_and_timed(
        self, judged: Sequence[JudgedTrial]
    ) -> tuple[list[JudgedTrial], list[JudgedTrial], Timing | Failure]:
        """The finalists, timed with care, from the first on that is right on data drawn anew too; those that are not;
        and eager PyTorch's timing. Where none that is right beats eager, those that overflow in the same places as
        eager take part too."""
        own = self.incumbent and key_of(self.incumbent.mugraph, self.incumbent.schedule)
        right = [(t, v) for t, v in judged if v.right]
        excused = [(t, v) for t, v in judged if v.ok and not v.right]
        some_excused = [x for n, x in enumerate(excused) if n < FINALISTS or x[0].key == own]
        refused: list[JudgedTrial] = []
        for some in (right, [*right[:1], *some_excused[:1], *right[1:], *some_excused[1:]]):
            with self.explored.phase("finals"):
                finalists, eager = self.final_timing(some)
            with self.explored.phase("judging"):
                finalists, wrong = self.right_anew(finalists, some is not right)
            refused += wrong
            if finalists and (
                isinstance(eager, Failure) or finalists[0][0].us <= eager.median_us or self.deadline.lost
            ):
                break
            if not any(v.ok for _, v in (*excused, *refused)):
                break
        return finalists, refused, eager

    def near(self, tuned: Tuned) -> list[Trial]:
        """Others that are right, which are expected to be faster than the best at dynamic sizes near the tuned ones."""
        best, graphs = tuned.best, self.graphs
        if best is None or best.mugraph not in graphs or not graphs[best.mugraph].dynamic or self.late:
            return []
        us = {t.key: tuned.beside_best(t)[0] for t in self.trials.leaders()}
        timed = [t for t in self.trials.values() if us.get(t.key, math.inf) <= REACH * best.us]
        some = [best, *(t for t in timed if t.key != best.key and not t.schedule.specialize)]
        points = [Timed(graphs[t.mugraph], t.schedule, us.get(t.key, t.us)) for t in some]
        with self.explored.phase("judging"):
            expected = expected_us(points, sizes_near(graphs[best.mugraph]), self.means.target)
            worth = [self.written(some[i]) for i in worth_having(expected, [0], NEARBY, NEARBY_GAIN)]
            judged = [(t, self.judge.everywhere(t)) for t in worth if t and not self.late]
        tuned.rejected += [(t, verdict.refused) for t, verdict in judged if not verdict.right]
        return [t for t, verdict in judged if verdict.right]

    def variants(self, tuned: Tuned) -> list[JudgedTrial]:
        """What overlaps with other kernels in another way than the best, is right, and not much slower by itself: the
        best with less overlap, and of each other way the fastest that was timed. Which of them is the fastest within a
        model is seen there."""
        best, graphs = tuned.best, self.graphs
        if not self.task.in_model or best is None or best.mugraph not in graphs or self.late:
            return []
        pairs = [(best.mugraph, s) for s in starting_later(graphs[best.mugraph], best.schedule)]
        with self.explored.phase("finals"):
            known = [t for pair in pairs if (t := self.trials.get(key_of(*pair))) and t.timing]
            written = [w for t in known if (w := self.written(t))]
            in_time = self.deadline.left_s > self.explored.in_flight.compiling_s
            timed = self.timed_again([*written, *(self.explored.build(pairs) if in_time else ())], self.deadline.left_s)
        us = {t.key: tuned.beside_best(t)[0] for t in (*timed, *self.trials.leaders()[:LEADERS])}
        others = {manner(best.schedule): best}
        for t in self.trials.leaders()[:LEADERS]:
            if t.mugraph == best.mugraph and not t.schedule.specialize and us[t.key] <= OTHERS * best.us:
                others.setdefault(manner(t.schedule), t)
        some = {t.key: t for t in timed if us[t.key] <= LATER * best.us}
        some |= {w.key: w for t in [*others.values()][1 : MANNERS + 1] if (w := self.written(t))}
        near = sorted(some.values(), key=lambda t: us[t.key])
        with self.explored.phase("judging"):
            judged = [(t, self.judge.everywhere(t)) for t in near if not self.late]
        tuned.rejected += [(t, verdict.refused) for t, verdict in judged if not verdict.right]
        return [(t, verdict) for t, verdict in judged if verdict.right]

    def contenders(self) -> list[Trial]:
        """All that was timed, the fastest first: those that were timed again, then the others."""
        ranked = self.trials.leaders()
        near = [t for t in ranked if t.paced_us <= NEAR * ranked[0].paced_us and not t.schedule.specialize]
        of_each_graph = sorted({t.mugraph: t for t in reversed(near)}.values(), key=lambda t: t.paced_us)
        some = {t.key: t for t in (*near[: CONTENDERS // 2], *of_each_graph, *near)}
        again = [w for t in list(some.values())[:CONTENDERS] if (w := self.written(t))]
        again = self.timed_again(again, self.deadline.left_s / 2) if not self.late else []
        if self.task.known:
            again = self.with_closer(again)
        first = {t.key for t in again}
        return sorted(self.trials.leaders(), key=lambda t: t.key not in first)

    def timed_again(self, trials: Sequence[Trial], within_s: float) -> list[Trial]:
        """Those that did not fail, with their new timings, as many as fit into the seconds."""
        for t, timing in self.explored.timings(trials, effort=AGAIN, within_s=within_s) if trials else ():
            self.explored.timed(t, timing)
        return [own for t in trials if (own := self.trials.get(t.key)) and own.timing]

    def with_closer(self, again: list[Trial]) -> list[Trial]:
        """And what is one change away from the best of these, in turn for the best of those, until none is faster."""
        for _ in range(STEPS):
            if not again or self.explored.late:
                break
            best = min(again, key=lambda t: t.us)
            seen = {t.key for t in again}
            points = [p for near in self.explored.proposals.around(best.mugraph, [best.schedule]) for p in near]
            pairs = [(p.graph, p.schedule) for p in points if not p.schedule.specialize]
            pairs = [pair for pair in pairs if not self.explored.trust.excludes(*pair)]
            known = [t for pair in pairs if (t := self.trials.get(key_of(*pair)))]
            close = [
                w for t in known if t.paced_us <= CLOSE * best.paced_us and t.key not in seen and (w := self.written(t))
            ]
            new = self.timed_again([best, *close, *self.explored.build(pairs)], self.deadline.left_s / 2)
            again = [t for t in again if t.key != best.key] + new
            if not new or min(new, key=lambda t: t.us).key == best.key:
                break
        return again

    def as_written(self) -> list[Trial]:
        """The program as written at its fastest, compiled now where time was up before."""
        name, trials = self.task.as_written or "", self.trials
        if name not in self.graphs:
            return []
        if any(t.mugraph == name for t in trials.values()):
            timed = [w for t in trials.leaders() if t.mugraph == name and (w := self.written(t))]
            return timed[:1]
        some = first_schedules(self.graphs[name], self.means.target, 1)
        built = self.explored.build([(name, s) for s in some])
        for t, timing in self.explored.timings(built) if built else ():
            self.explored.timed(t, timing)
        return [own for t in built if (own := trials[t.key]).timing]

    def written(self, trial: Trial) -> Trial | None:
        """With its source, which trials of an earlier run are without; None where it cannot be written any more."""
        if trial.source:
            return trial
        try:
            return replace(trial, source=self.means.emit(self.graphs[trial.mugraph], trial.schedule))
        except (EmitError, InexpressibleError):
            return None

    @property
    def late(self) -> bool:
        """Whether the rest of the time is needed for the winner alone."""
        return self.deadline.left_s < 0

    def affordable(self, right: Sequence[JudgedTrial]) -> tuple[list[JudgedTrial], Effort]:
        """The finalists that there is time for, with eager PyTorch beside them, and the effort of their timing. The
        first two, and the incumbent, take part in any case."""
        follows = self.task.in_model or any(g.dynamic for g in self.graphs.values())
        within_s = self.deadline.left_s * (1 - AFTER if follows else 1)
        long = any(t.us > LONG_US for t, _ in right[:1])
        each_s = PREPARING_LONG if long else PREPARING  # for each second of rounds
        most = max(2, math.floor(min(2 * FINALISTS, within_s / (each_s * LEAST_SECONDS) - 1)))
        own = self.incumbent and key_of(self.incumbent.mugraph, self.incumbent.schedule)
        some = [x for n, x in enumerate(right) if n < most or x[0].key == own]
        seconds = within_s / (each_s * (len(some) + 1))
        return some, replace(FINAL, seconds=min(FINAL.seconds, max(LEAST_SECONDS, seconds)))

    def emitted_incumbent(self) -> Trial | None:
        """The incumbent, written anew as every trial is, or with the reason why it cannot be."""
        if self.incumbent is None:
            return None
        mugraph, schedule = self.incumbent.mugraph, self.incumbent.schedule
        try:
            return Trial(mugraph, schedule, self.means.emit(self.incumbent.graph, schedule))
        except (EmitError, InexpressibleError) as error:
            return Trial(mugraph, schedule, "", failure=f"cannot be written: {error}")

    def join(self, incumbent: Trial | None, judged: list[JudgedTrial]) -> Trial | None:
        """Puts the incumbent among what is judged, unless it is there already; gives it, with why it is not right."""
        if incumbent is None or not incumbent.source:
            return incumbent
        verdict = next((v for t, v in judged if t.key == incumbent.key), None)
        if verdict is None:
            verdict = self.judge.verdict(incumbent)
            judged.append((incumbent, verdict))
        return replace(incumbent, failure=verdict.problem)

    def outcome(self, incumbent: Trial, timed: Sequence[Trial], rejected: Sequence[JudgedTrial]) -> Trial:
        """The incumbent with its careful timing, or why it has none."""
        if own := next((t for t in timed if t.key == incumbent.key), None):
            return own
        problem = next((v.problem for t, v in rejected if t.key == incumbent.key), incumbent.failure)
        return replace(incumbent, failure=problem or "failed while it was timed")

    def final_timing(self, right: Sequence[JudgedTrial]) -> tuple[list[JudgedTrial], Timing | Failure]:
        """The finalists that there is time for with careful timings, the least mean first, and eager PyTorch's, all
        interleaved."""
        some, effort = self.affordable(right)
        contestants = [Candidate(f"{i}", t.source) for i, (t, _) in enumerate(some)]
        timings = dict(self.means.worker.time([*contestants, self.eager], effort))
        finalists: list[JudgedTrial] = []
        for i, (trial, verdict) in enumerate(some):
            timing = timings[f"{i}"]
            if isinstance(timing, Timing):
                finalists.append((Trial(trial.mugraph, trial.schedule, trial.source, timing), verdict))
            elif trial.key in self.trials:
                self.explored.timed(trial, timing)
        finalists.sort(key=lambda f: f[0].mean_us)
        return finalists, timings[self.eager.id]

    def right_anew(self, finalists: list[JudgedTrial], excuses: bool) -> tuple[list[JudgedTrial], list[JudgedTrial]]:
        """The finalists from the first on that is right on data by which none was chosen, and at other dynamic sizes;
        and those in front of it. excuses: one that overflows like eager PyTorch is right too."""
        refused: list[JudgedTrial] = []
        for n, (trial, _) in enumerate(finalists):
            verdict = self.judge.anew(trial)
            if verdict.ok if excuses else verdict.right:
                return finalists[n:], refused
            refused.append((trial, verdict))
        return [], refused

    def judge_fastest(self, contenders: Sequence[Trial]) -> list[JudgedTrial]:
        """Judges the fastest, until there are enough that are right.

        What is refused with float32 multiplied on the matrix units is judged with float32 arithmetic next, the fastest
        first.
        """
        judged: list[JudgedTrial] = []
        refused: Counter[tuple[str, bool]] = Counter()
        waiting = deque(self.right_first(contenders) if self.late else contenders)
        while waiting and sum(v.right for _, v in judged) < FINALISTS and not self.ends(judged):
            trial = waiting.popleft()
            kind = trial.mugraph, trial.schedule.tf32x3
            if self.explored.trust.excludes(trial.mugraph, trial.schedule):
                continue
            known = self.judge.verdicts.get((trial.source, False))
            if refused[kind] >= (1 if self.late else REFUSALS) and not (known and known.right):
                continue  # what this μGraph computes is inaccurate, whatever else the schedule is
            trial = self.written(trial)
            if trial is None or self.too_late(trial, judged):
                continue
            verdict = self.judge.verdict(trial)
            judged.append((trial, verdict))
            if not verdict.ok and trial.schedule.specialize:
                self.explored.trust.specialized[trial.mugraph] = False
            else:
                refused[kind] += not verdict.right
            if not verdict.right and trial.schedule.tf32x3:
                seen = {t.key for t, _ in judged}
                some = instead_by_arithmetic(self.graphs[trial.mugraph], trial.schedule, self.means.target)
                trials = [Trial(trial.mugraph, s, "") for s in reversed(some)]
                waiting.extendleft(t for t in trials if t.key not in seen)
        return judged

    def right_first(self, contenders: Sequence[Trial]) -> list[Trial]:
        """With those in front that are known to be right, and as fast as the fastest but for noise, or whatever they
        take where the time is lost: none is left to judge others."""
        most_us = math.inf
        if not self.deadline.lost:
            most_us = (1 + NOISE) * min((t.paced_us for t in contenders), default=math.inf)

        def known_right(t: Trial) -> bool:
            known = self.judge.verdicts.get((t.source, False))
            return known is not None and known.right and t.paced_us <= most_us

        return sorted(contenders, key=lambda t: not known_right(t))

    def ends(self, judged: Sequence[JudgedTrial]) -> bool:
        """Whether time is up for judging more: with what is right, or with what overflows like eager where nothing is
        known to be right."""
        if not self.late or (not judged and self.judge.known_right):
            return False
        given_up = len(judged) >= LATE_REFUSALS and any(v.ok for _, v in judged) and not self.judge.known_right
        return any(v.right for _, v in judged) or self.deadline.lost or given_up

    def too_late(self, trial: Trial, judged: Sequence[JudgedTrial]) -> bool:
        """Whether time is up for judging this one, as another is known to be right."""
        known = (trial.source, False) in self.judge.verdicts
        return self.late and not known and len(judged) >= LATE_REFUSALS and self.judge.known_right
