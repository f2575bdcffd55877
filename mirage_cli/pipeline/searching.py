"""Structural search: the verified μGraphs of a program. It needs no torch and no GPU.

The search and the verifier are imported when they are first asked: an answer from the database needs neither.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_cli.errors import MirageError, NoKernelError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import ROW, merge_axes
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program, Tensor, cast_of
from mirage_cli.ir.schedule import Schedule
from mirage_cli.pipeline.clock import Clock
from mirage_cli.pipeline.rewrites import forms_of
from mirage_cli.pipeline.verifying import Verifier
from mirage_cli.search.cuts import UNVERIFIED, Bounds
from mirage_cli.store.results import Searched
from mirage_cli.target.gpus import Target
from mirage_cli.verify.verdict import Verdict

if TYPE_CHECKING:
    from mirage_cli.search.assembly import ScheduledGraph
    from mirage_cli.search.generator import Begun, Prices, SearchResult
    from mirage_cli.tune.measure import Context

VERIFIED = 10
"""μGraphs that are verified, at most."""
TUNING = 0.6
"""The part of the budget that the search leaves to tuning, where there is any."""
SELDOM = (20_000, 20, 50)
"""Thresholds of the garbage collector in a search. With 200,000 objects it takes half as long again: most are kept, and
looked at when they have left the caches."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may set. budget_s: for the search and the tuning of one program together. searching_s: for the search
    alone; budget_s is then for tuning alone. context: the context in which calls are timed (`tune.measure.Context`).
    in_model: whether kernels that overlap in other ways are kept beside the best, for a model to choose from. until_s:
    on the monotonic clock, which all processes of a machine share: behind it no program is searched, verified or
    compiled, though it has no kernel then."""

    workers: int = 1
    top: int = 5
    budget_s: float = 60.0
    seed: int = 0
    fresh: bool = False
    tune: bool = True
    context: Context = "both"
    prune: bool = True
    own_algebra_only: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    searching_s: float | None = None
    in_model: bool = False
    until_s: float = math.inf

    @property
    def search_s(self) -> float:
        """Seconds that a search may take."""
        if self.searching_s is not None:
            return self.searching_s
        return self.budget_s * (1 - TUNING if self.tune else 1)

    def tuning_s(self, spent_s: float) -> float:
        """Seconds that tuning may take behind a search of so many."""
        return self.budget_s if self.searching_s is not None else max(self.budget_s - spent_s, 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """A verified μGraph with the schedule the cost model chose."""

    id: str
    graph: MuGraph
    schedule: Schedule
    predicted_us: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Found:
    """What the structural search of one program gave: verified μGraphs of distinct structure, cheapest first.

    rejected: how many candidates the verifier refused, with one reason each; a right generator gives none.
    """

    plans: tuple[Plan, ...]
    as_written: str
    classes: int
    nodes: int
    enumerated: int
    pruned: dict[str, int]
    rejected: tuple[str, ...]
    stopped: str
    seconds: float

    @property
    def stats(self) -> Searched:
        """The `search` object of the JSON document."""
        return Searched(
            classes=self.classes,
            nodes=self.nodes,
            enumerated=self.enumerated,
            pruned=dict(sorted(self.pruned.items())),
            verified=len(self.plans),
            rejected=len(self.rejected),
            stopped=self.stopped,
            seconds=round(self.seconds, 3),
        )


@dataclass(frozen=True, slots=True)
class Failed:
    """A program whose search, tuning or prediction failed, and why, in one line."""

    problem: str

    @staticmethod
    def of(error: Exception) -> Failed:
        """A MirageError is told as it is, and so is a file that the machine cannot make or read; any other error is a
        bug, and is told with its type and place."""
        if isinstance(error, MirageError):
            return Failed(str(error))
        if isinstance(error, OSError) and error.filename is not None:
            return Failed(f"{error.filename}: {error.strerror}")
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Failed(f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})")


def merged(program: Program, lowered: Program) -> Program:
    """The program with axes merged that occur only side by side: into two where a long axis is best summed in parts."""
    from mirage_cli.algebra.contractions import summed_in_parts

    found = merge_axes(program)
    if all(found.sizes[axis] <= ROW for axis, _ in found.merged):
        return found
    return merge_axes(program, summed_in_parts(lowered))


Judged = tuple["ScheduledGraph", Verdict]
Doing = Callable[[str, "float | None"], None]
"""Told what is being done, and the µs of the best plan so far where there is one."""
Chosen = Callable[[Program, "Mapping[str, MuGraph]", str], None]
"""Told a program, its μGraphs by id before they are verified, the cheapest first, and the id of the one as written.
Where nothing is verified behind some time, told the first that is verified alone: of the others, it may be none."""


def unheard(*_: object) -> None:
    """For a caller that need not be told of the search."""


@contextlib.contextmanager
def seldom_collecting() -> Generator[None]:
    """Runs the garbage collector less often, which saves a tenth of a search: reference counts free nearly all of its
    objects."""
    before = gc.get_threshold()
    if 0 < before[0] < SELDOM[0]:
        gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@seldom_collecting()
def search_program(
    program: Program,
    target: Target,
    options: Options,
    interrupted: Callable[[], bool] = lambda: False,
    doing: Doing = unheard,
    chosen: Chosen = unheard,
) -> Found:
    """The verified plans of a program. Runs without torch; the same seed gives the same result in any process.

    interrupted: asked now and then; true ends the search with what it has. Raises NoKernelError for a type that kernels
    of this GPU do not have.
    """
    start = time.perf_counter()
    refuse_types(program, target)
    lowered = lower(program)
    clock = Clock(options.search_s, interrupted, options.until_s)
    form = lower(merged(program, lowered))
    found: list[Judged] = []
    first: list[Judged] = []

    def verify_first(plan: ScheduledGraph) -> None:
        with clock.leaving_as_long():
            first.extend(verified(lowered, [plan], options, clock, doing))

    at_hand = verify_first if math.isfinite(clock.until_s) else unheard
    for search in (partial(search_forms, at_hand=at_hand), search_as_written):
        result = search(form, target, options, clock, doing)
        if result.stopped == "interrupted":
            clock.interrupt()
        some = to_verify(result, lowered, options.seed)

        def told(some: Sequence[ScheduledGraph], as_written: str = result.as_written.id) -> None:
            chosen(program, {c.id: c.graph for c in some}, as_written)

        found += verified(lowered, some, options, clock, doing, told, first)
        if any(v.ok or v.net == "time" for _, v in found):
            break
    late = sum(v.net == "time" for _, v in found)
    return Found(
        plans=tuple(Plan(c.id, c.graph, c.schedule, c.predicted_us, v) for c, v in found if v.ok),
        as_written=result.as_written.id,
        classes=result.classes,
        nodes=result.nodes,
        enumerated=result.enumerated,
        pruned={**result.pruned, **({UNVERIFIED: late} if late else {})},
        rejected=tuple(f"{c.id}: {v}" for c, v in found if not v.ok and v.net != "time"),
        stopped="interrupted" if clock.was_interrupted() else "budget" if late else result.stopped,
        seconds=time.perf_counter() - start,
    )


def refuse_types(program: Program, target: Target) -> None:
    """Raises NoKernelError for a type that kernels of this GPU do not have."""
    held = [(t.name, t.dtype) for t in (*program.inputs, *program.results)]
    for name, dtype in (*held, *((e.out, cast) for e in program.eqns if (cast := cast_of(e)))):
        if not target.holds(dtype):
            raise NoKernelError(program.name, f"{name} is of {dtype}, which {target.arch} does not have")


def search_forms(
    form: Program,
    target: Target,
    options: Options,
    clock: Clock,
    doing: Doing,
    at_hand: Callable[[ScheduledGraph], object] = unheard,
) -> SearchResult:
    """The candidates of a lowered program with merged axes, and of the other forms of it that may have faster ones.
    at_hand: told the best plan that needs no search, as soon as it is there."""
    from mirage_cli.search.overwritten import read_in_time
    from mirage_cli.search.relaid import behind_copies, relaid

    prices: Prices = {}
    begun: Begun = {}
    searched = partial(_searched, target=target, options=options, clock=clock, doing=doing, prices=prices, begun=begun)
    forms = forms_of(form)
    form = next(forms)
    result, laid = searched_behind_copies(form, target, searched, at_hand) if options.prune else (searched(form), {})
    while result.stopped == "exhausted" and (other := next(forms, None)) is not None:
        result = beside(result, searched(other))
    if result.stopped == "exhausted" and options.prune and (more := relaid(form, result, target)) and more != laid:
        best_us = result.candidates[0].predicted_us
        if (other := behind_copies(form, more, best_us, searched, target.costs.gap_us)) is not None:
            result = beside(result, other)
    return read_in_time(form, result, searched, target)


def searched_behind_copies(
    form: Program,
    target: Target,
    searched: Callable[..., SearchResult],
    at_hand: Callable[[ScheduledGraph], object] = unheard,
) -> tuple[SearchResult, dict[str, Tensor]]:
    """The candidates of a form, and of the same behind copies of these inputs where already plans that need no search
    are faster so. Behind the copies it is searched first: the rest, which that is to be beside, may not end in time.
    Plans that need no search are kept where a search that does not end has slower ones."""
    from mirage_cli.search.relaid import behind_copies, relaid

    unsearched = partial(searched, searches=False)
    plain = unsearched(form)
    best_us = plain.candidates[0].predicted_us
    if laid := relaid(form, plain, target):
        gap_us = target.costs.gap_us
        behind = behind_copies(form, laid, best_us, unsearched, gap_us)
        if behind is not None and behind.candidates[0].predicted_us < best_us:
            at_hand(behind.candidates[0])
            other = behind_copies(form, laid, best_us, searched, gap_us)
            if other is not None:
                result = searched(form) if other.stopped == "exhausted" else replace(plain, stopped=other.stopped)
                return beside(result, other), laid
    at_hand(plain.candidates[0])
    result = searched(form)
    if best_us < result.candidates[0].predicted_us:
        both = sorted((*plain.candidates, *result.candidates), key=lambda c: c.predicted_us)
        result = replace(result, candidates=tuple(both))
    return result, {}


def search_as_written(form: Program, target: Target, options: Options, clock: Clock, doing: Doing) -> SearchResult:
    """The candidates of a lowered program in no other form: where the verifier refuses all others."""
    from mirage_cli.search.overwritten import read_in_time

    searched = partial(_searched, target=target, options=options, clock=clock, doing=doing, prices={}, begun={})
    return read_in_time(form, searched(form), searched, target)


def _searched(
    form: Program,
    target: Target,
    options: Options,
    clock: Clock,
    doing: Doing,
    prices: Prices,
    begun: Begun,
    searches: bool = True,
) -> SearchResult:
    """searches: whether more is looked at than plans that need no search."""
    from mirage_cli.search.generator import search

    return search(
        form,
        target,
        bounds=options.bounds,
        prune=options.prune,
        own_algebra_only=options.own_algebra_only,
        deadline=clock.search_is_over if searches else lambda: True,
        end=clock.budget_is_spent if searches else clock.first_is_due,
        looking=lambda count, us: doing(f"searching, {count} kernels looked at", us),
        prices=prices,
        begun=begun,
    )


def verified(
    lowered: Program,
    chosen: Sequence[ScheduledGraph],
    options: Options,
    clock: Clock,
    doing: Doing,
    told: Callable[[Sequence[ScheduledGraph]], object] = unheard,
    before: Sequence[Judged] = (),
) -> list[Judged]:
    """The verdicts on these, the cheapest first. Each is compared with the program as it was written. told: called as
    `Chosen`. before: plans with verdicts, which are among those that are returned."""
    waits = math.isfinite(clock.until_s)
    best_us = min(c.predicted_us for c in chosen)
    verdicts = {c.id: v for c, v in before}
    found = [x for x in before if all(c.id != x[0].id for c in chosen)]
    with Verifier(lowered, [c.graph for c in chosen], options.seed, options.workers, clock) as verifier:
        if not waits:
            told(chosen)
        for i, candidate in enumerate(chosen):
            doing(f"verifying {i + 1} of {len(chosen)} plans", best_us)
            found.append((candidate, verdicts.get(candidate.id) or verifier.verdict(i)))
            if waits and found[-1][1].ok:
                told([candidate])
                waits = False
    return sorted(found, key=lambda x: (x[0].predicted_us, x[0].id))


def to_verify(result: SearchResult, program: Program, seed: int) -> list[ScheduledGraph]:
    """Candidates of distinct structure: the cheapest, the program as written, the others from the cheapest on; those
    whose tests take long behind all others. The first two are verified even behind the budget."""
    from mirage_cli.verify.equivalence import takes_long

    written = result.as_written
    others = [c for c in distinct(result.candidates, written) if c.id != written.id]
    others.sort(key=lambda c: takes_long(program, c.graph, seed))
    return [*others[:1], written, *others[1:]]


def beside(one: SearchResult, other: SearchResult) -> SearchResult:
    """The results of searching two forms of a program as one result, with the plan as written of the first."""
    return replace(
        other,
        candidates=tuple(sorted((*one.candidates, *other.candidates), key=lambda c: c.predicted_us)),
        as_written=one.as_written,
        classes=one.classes + other.classes,
        nodes=one.nodes + other.nodes,
        enumerated=one.enumerated + other.enumerated,
        pruned=Counter(one.pruned) + Counter(other.pruned),
        seconds=one.seconds + other.seconds,
    )


def distinct(candidates: Sequence[ScheduledGraph], as_written: ScheduledGraph) -> list[ScheduledGraph]:
    """The cheapest candidate of each structure, the cheapest for each number of kernels, and the program as written."""
    found: dict[tuple[object, ...], ScheduledGraph] = {}
    for c in candidates:
        found.setdefault(c.shape, c)
    chosen = list(found.values())[:VERIFIED]
    counts = {len(c.graph.kernels) for c in chosen}
    for c in found.values():
        if len(c.graph.kernels) not in counts:
            counts.add(len(c.graph.kernels))
            chosen.append(c)
    return chosen if as_written in chosen else [*chosen, as_written]
