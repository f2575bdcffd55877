"""Structural search: the verified μGraphs of a program, here or in worker processes. It needs no torch and no GPU.

The search and the verifier are imported when they are first asked: an answer from the database needs neither.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_cli.errors import MirageError, NoKernelError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.joined import by_parts
from mirage_cli.ir.merge import ROW, merge_axes
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.pieces import in_pieces
from mirage_cli.ir.program import Program, cast_of
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.skewed import skewed
from mirage_cli.pipeline.processes import Interrupted, Processes
from mirage_cli.search.cuts import UNVERIFIED, Bounds
from mirage_cli.store.results import Searched
from mirage_cli.target.gpus import Target
from mirage_cli.tune.child import ChildDied
from mirage_cli.verify.verdict import Verdict

if TYPE_CHECKING:
    from mirage_cli.search.assembly import Candidate
    from mirage_cli.search.generator import Prices, SearchResult
    from mirage_cli.tune.measure import Context

VERIFIED = 10
"""μGraphs that are verified, at most."""
VERIFYING = 0.2
"""The part of the budget that the search leaves to verification."""
SLOW_S = 1.0
"""Seconds of verification after which worker processes are started, if there may be several. Starting them takes about
as long."""
TUNING = 0.25
"""The part of the budget that the search leaves to tuning, where there is any."""
GRACE_S = 1.3
"""Seconds that a worker process has, once interrupted, to hand over what it has found."""
KEEPING_S = 0.6
"""Seconds of verification behind an interrupt: plans that are not verified cannot be kept."""
BEHIND_S = 30.0
"""Seconds behind the budget that the verification of the cheapest plan and of the program as written may take, half of
them the first: without the second there may be nothing to use, without the first nothing that is worth it."""
BEHIND = 2
"""How many plans that is."""
SELDOM = (20_000, 20, 50)
"""Thresholds of the garbage collector in a search."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may set. budget_s: for the search and the tuning of one program together. searching_s: for the search
    alone; budget_s is then for tuning alone. context: the context in which calls are timed (`tune.measure.Context`).
    in_model: whether kernels that overlap in other ways are kept beside the best, for a model to choose from."""

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
        """A MirageError is told as it is; any other error is a bug, and is told with its type and place."""
        if isinstance(error, MirageError):
            return Failed(str(error))
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Failed(f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})")


def merged(program: Program, lowered: Program) -> Program:
    """The program with axes merged that occur only side by side: into two where a long axis is best summed in parts."""
    from mirage_cli.algebra.decompose import summed_in_parts

    found = merge_axes(program)
    if all(found.sizes[axis] <= ROW for axis, _ in found.merged):
        return found
    return merge_axes(program, summed_in_parts(lowered))


Doing = Callable[[str, "float | None"], None]
"""Told what is being done, and the µs of the best plan so far where there is one."""


class Clock:
    """When the search has to end, and when verification has to. An interrupt ends the search at once, and verification
    within KEEPING_S."""

    def __init__(self, budget_s: float, interrupted: Callable[[], bool]) -> None:
        self.end_s = time.monotonic() + budget_s
        self.search_end_s = self.end_s - VERIFYING * budget_s
        self.interrupted = interrupted
        self.stop_s = math.inf

    def interrupt(self) -> None:
        self.stop_s = min(self.stop_s, time.monotonic() + KEEPING_S)

    def was_interrupted(self) -> bool:
        if self.interrupted():
            self.interrupt()
        return self.stop_s < math.inf

    def search_is_over(self) -> bool:
        return time.monotonic() > self.search_end_s or self.was_interrupted()

    def budget_is_spent(self) -> bool:
        return time.monotonic() > self.end_s or self.was_interrupted()

    def verification_is_over(self, behind_s: float = 0.0) -> bool:
        """behind_s: seconds behind the budget that verification may take."""
        return time.monotonic() > self.end_s + behind_s or (self.was_interrupted() and time.monotonic() > self.stop_s)


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
    doing: Doing = lambda _, __: None,
) -> Found:
    """Search and verify. Runs without torch; the same seed gives the same result in any process. The search gets the
    program with merged axes; the verifier compares each plan with the program as it was written.

    interrupted: asked now and then; true ends the search with what it has. Raises NoKernelError for a type that kernels
    of this GPU do not have.
    """
    from mirage_cli.search.generator import search
    from mirage_cli.search.overwritten import read_in_time
    from mirage_cli.search.relaid import behind_copies, relaid

    start = time.perf_counter()
    held = [(t.name, t.dtype) for t in (*program.inputs, *program.results)]
    for name, dtype in (*held, *((e.out, cast) for e in program.eqns if (cast := cast_of(e)))):
        if not target.holds(dtype):
            raise NoKernelError(program.name, f"{name} is of {dtype}, which {target.arch} does not have")
    lowered = lower(program)
    clock = Clock(options.search_s, interrupted)
    prices: Prices = {}

    def searched(form: Program) -> SearchResult:
        return search(
            form,
            target,
            bounds=options.bounds,
            prune=options.prune,
            own_algebra_only=options.own_algebra_only,
            deadline=clock.search_is_over,
            end=clock.budget_is_spent,
            looking=lambda count, us: doing(f"searching, {count} kernels looked at", us),
            prices=prices,
        )

    form = lower(merged(program, lowered))
    form = skewed(form) or form
    result = searched(form)
    for taken_apart in (by_parts, in_pieces):
        if result.stopped == "exhausted" and (other := taken_apart(form)) is not None:
            result = beside(result, searched(other))
    if result.stopped == "exhausted" and options.prune and (orders := relaid(form, result, target)):
        result = beside(result, behind_copies(form, orders, searched, target.costs.gap_us))
    result = read_in_time(form, result, searched, target.costs.gap_us)
    if result.stopped == "interrupted":
        clock.interrupt()
    written = result.as_written
    others = [c for c in distinct(result.candidates, written) if c.id != written.id]
    chosen = [*others[:1], written, *others[1:]]  # the first two are verified even behind the budget
    verdicts: list[Verdict] = []
    with Verifier(lowered, [c.graph for c in chosen], options, clock) as verifier:
        for i in range(len(chosen)):
            doing(f"verifying {i + 1} of {len(chosen)} plans", result.candidates[0].predicted_us)
            verdicts.append(verifier.verdict(i))
    by_cost = sorted(zip(chosen, verdicts, strict=True), key=lambda x: (x[0].predicted_us, x[0].id))
    late = sum(v.net == "time" for v in verdicts)
    stopped = "interrupted" if clock.was_interrupted() else "budget" if late else result.stopped
    return Found(
        tuple(Plan(c.id, c.graph, c.schedule, c.predicted_us, v) for c, v in by_cost if v.ok),
        written.id,
        result.classes,
        result.nodes,
        result.enumerated,
        {**result.pruned, **({UNVERIFIED: late} if late else {})},
        tuple(f"{c.id}: {v}" for c, v in by_cost if not v.ok and v.net != "time"),
        stopped,
        time.perf_counter() - start,
    )


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


class Verifier:
    """Verdicts on μGraphs, asked for in order: worked out one by one here and, once that took SLOW_S, in workers.

    The first μGraph is the cheapest plan, the second the program as written: verification of both may take BEHIND_S
    more. When time is up, the other μGraphs are refused by the net "time".
    """

    def __init__(self, program: Program, graphs: Sequence[MuGraph], options: Options, clock: Clock) -> None:
        self.program, self.graphs, self.options, self.clock = program, graphs, options, clock
        self.spent_s = 0.0
        self.processes: Processes | None = None
        self.futures: dict[int, Future[Verdict]] = {}

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        if self.processes is not None:
            self.processes.close()

    def verdict(self, i: int) -> Verdict:
        """An interrupt leaves KEEPING_S for this verdict and those behind it; another one raises KeyboardInterrupt."""
        try:
            return self.settled(i)
        except KeyboardInterrupt:
            self.clock.interrupt()
            return self.settled(i)

    def settled(self, i: int) -> Verdict:
        from mirage_cli.verify.equivalence import check_equivalence

        behind_s = BEHIND_S * (i + 1) / BEHIND if i < BEHIND else 0.0
        end = partial(self.clock.verification_is_over, behind_s)
        if i in self.futures:
            try:
                return self.futures[i].result(max(0.0, min(self.clock.end_s, self.clock.stop_s) - time.monotonic()))
            except (ChildDied, TimeoutError):  # verified here instead
                pass
        start = time.perf_counter()
        found = check_equivalence(self.program, self.graphs[i], self.options.seed, end=end)
        self.spent_s += time.perf_counter() - start
        left = range(max(i + 1, BEHIND), len(self.graphs))
        workers = min(len(left), self.options.workers)
        if self.processes is None and self.spent_s > SLOW_S and workers > 1 and not end():
            self.processes = processes = Processes(workers)
            asked = (self.options.seed, self.clock.end_s)
            self.futures = {n: processes.submit(_verify_there, self.program, self.graphs[n], *asked) for n in left}
        return found


def distinct(candidates: Sequence[Candidate], as_written: Candidate) -> list[Candidate]:
    """The cheapest candidate of each structure, the cheapest for each number of kernels, and the program as written."""
    found: dict[tuple[object, ...], Candidate] = {}
    for c in candidates:
        found.setdefault(c.shape, c)
    chosen = list(found.values())[:VERIFIED]
    counts = {len(c.graph.kernels) for c in chosen}
    for c in found.values():
        if len(c.graph.kernels) not in counts:
            counts.add(len(c.graph.kernels))
            chosen.append(c)
    return chosen if as_written in chosen else [*chosen, as_written]


def search_all(
    programs: Sequence[Program], target: Target, options: Options, doing: Doing = lambda _, __: None
) -> Iterator[Found | Failed]:
    """Search every program, in order, in worker processes where there are several. Interrupted, it gives what the
    search at hand has found so far, as the last. doing: told of the search at hand, where it is in this process."""
    if options.workers <= 1 or len(programs) <= 1:
        for p in programs:
            yield search_or_fail(p, target, options, doing=doing)
        return
    with _Searchers(programs, target, options) as searchers:
        for i in range(len(programs)):
            yield searchers.result(i)


def search_or_fail(
    program: Program,
    target: Target,
    options: Options,
    interrupted: Callable[[], bool] = lambda: False,
    doing: Doing = lambda _, __: None,
) -> Found | Failed:
    """`search_program`, where a failure of one program must not cost the others their results."""
    try:
        return search_program(program, target, options, interrupted, doing)
    except Exception as error:  # named in the result: the other programs have theirs
        return Failed.of(error)


class _Searchers:
    """The processes that search several programs side by side.

    A search whose process was killed is made again alone, in a process of its own, and so is each that had not begun:
    what kills a process is most often that memory is short.
    """

    def __init__(self, programs: Sequence[Program], target: Target, options: Options) -> None:
        self.programs, self.target, self.options = programs, target, options
        count = min(options.workers, len(programs))
        self.processes = Processes(count)
        self.futures = [self.submit(p, options.workers // count) for p in programs]

    def __enter__(self) -> _Searchers:
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.close()

    def submit(self, program: Program, workers: int) -> Future[Found | Failed]:
        return self.processes.submit(_search_there, program, self.target, replace(self.options, workers=workers))

    def result(self, i: int) -> Found | Failed:
        """Of one program. Raises KeyboardInterrupt where its search does not end within GRACE_S of one."""
        try:
            try:
                return self.futures[i].result()
            except (ChildDied, CancelledError):
                self.be_alone()
                self.futures[i] = self.submit(self.programs[i], self.options.workers)
                return self.futures[i].result()
        except ChildDied as error:
            how, _, _ = str(error).partition(":")
            return Failed(f"it was searched twice, the second time alone: {how}")
        except KeyboardInterrupt:
            self.processes.interrupt()
            with contextlib.suppress(TimeoutError, ChildDied, CancelledError):
                if isinstance(found := self.futures[i].result(GRACE_S), Found):
                    return found
            raise

    def be_alone(self) -> None:
        """Waits for the searches that have begun, and ends all processes."""
        wait([future for future in self.futures if not future.cancel()])
        self.processes.close()
        self.processes = Processes(1)


def _search_there(interrupted: Interrupted, program: Program, target: Target, options: Options) -> Found | Failed:
    found = search_or_fail(program, target, options, interrupted)
    return replace(found, stopped="interrupted") if isinstance(found, Found) and interrupted() else found


def _verify_there(_: Interrupted, program: Program, graph: MuGraph, seed: int, end_s: float) -> Verdict:
    """end_s: on the monotonic clock, which all processes of a machine share."""
    from mirage_cli.verify.equivalence import check_equivalence

    return check_equivalence(program, graph, seed, end=lambda: time.monotonic() > end_s)
