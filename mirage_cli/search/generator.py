"""The generator: kernel graphs from the decomposition graph, exhaustive within bounds, cheapest first.

A state is the set of classes that must be in device memory. A step takes the class of highest rank, alone or with
others, and computes it (by one kernel, or two where a split is merged) from other classes, which then must
be in memory in turn. The best continuations of a state do not depend on how it was reached, so they are memoised.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple  # Any: what is worked out once

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.decompose import decompose
from mirage_cli.algebra.graph import Decomposition
from mirage_cli.ir.once import once
from mirage_cli.ir.placement import InexpressibleError
from mirage_cli.ir.program import DTYPE_BYTES, Program
from mirage_cli.ir.schedule import KernelSchedule
from mirage_cli.search import greedy
from mirage_cli.search.assembly import Assembly, ScheduledGraph
from mirage_cli.search.chains import Chains, Reading
from mirage_cli.search.cost import library, work
from mirage_cli.search.cost.alike import nameless, unnamed
from mirage_cli.search.cuts import Bounds
from mirage_cli.search.expand import Expansion, Space
from mirage_cli.search.layout import memory_orders
from mirage_cli.search.least import LeastWork
from mirage_cli.search.roles import Costed, Implementation, Roles, implementations
from mirage_cli.search.storage import Storage
from mirage_cli.search.tiles import best_schedule
from mirage_cli.search.twice import sums_again
from mirage_cli.search.unmerged import without_merges
from mirage_cli.target.gpus import Target

WIDENING = 1.02, 1.1, 1.4
"""How many times the time of the plan that needs no search others may take, first and then, before the bounds' slack.
Most searches find enough of them at once; within less time, fewer states are worth a look."""

FEW = 3
"""With fewer plans than this, a search widens once whatever it has looked at: of plans that are predicted to take a few
per cent more than the best, one may be the fastest by far."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Candidates, cheapest first, the program as written last among equals; and what the search did.

    stopped: "exhausted" (all within the bounds was looked at), "budget" or "interrupted".
    """

    candidates: tuple[ScheduledGraph, ...]
    as_written: ScheduledGraph
    classes: int
    nodes: int
    enumerated: int
    pruned: Mapping[str, int]
    stopped: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LastKernel:
    """What a last kernel may be: where it stands among all, what has to be in memory before it, and the least number of
    kernels for that."""

    at: tuple[int, int]
    reading: Reading
    rest: frozenset[Form]
    kernels: int


class Continuation(NamedTuple):
    """A last kernel, as they are looked at in turn: those with nothing before them, then the cheapest by what is known.

    us: a lower bound of its time while `priced` is None, else its own. at: of the last kernel, and behind it, of those
    that are priced, where it stands among what reads the same: it tells equal ones apart.
    """

    unfinished: bool
    us: float
    is_priced: bool
    at: tuple[int, ...]
    last: LastKernel
    priced: Costed | None


def search(
    program: Program,
    target: Target,
    *,
    bounds: Bounds | None = None,
    prune: bool = True,
    own_algebra_only: bool = False,
    deadline: Callable[[], bool] = lambda: False,
    end: Callable[[], bool] = lambda: False,
    looking: Callable[[int, float | None], None] = lambda _, __: None,
    prices: Prices | None = None,
    begun: Begun | None = None,
) -> SearchResult:
    """All μGraphs of a lowered program within the bounds, the best of them in order.

    prune: cut what costs more than the best times the slack; off for ablations.
    deadline: asked now and then; true ends the search with what it has.
    end: asked before that, as the program is decomposed and its operators are fused; true leaves them as written.
    looking: told as often how many kernels were looked at, and the µs of the best plan so far.
    prices: known from searches for the same target, and for those that follow.
    begun: searches within these bounds, which go on where they ended, and this one.
    """
    start = time.perf_counter()
    known = Begun() if begun is None else begun
    if program not in known:
        of_prices = {} if prices is None else prices
        known[program] = _begun(program, target, bounds or Bounds(), prune, own_algebra_only, end, of_prices)
    run, written = known[program]
    as_written, *literal = _literally(run) if run.d.cancels else [run.assembly.in_order(written)]

    def look_and_ask() -> bool:
        looking(run.enumerated, min((g.us for g in run.found), default=None))
        return deadline()

    graphs, stopped = _explore(run, written, end, look_and_ask)
    found = [*filter(None, map(run.assembly.exact_candidate, graphs)), as_written, *literal]
    named = {e.out for e in run.d.program.eqns}
    return SearchResult(
        _cheapest_first([*found, *(without_merges(c, target, named) for c in found)]),
        as_written,
        classes=len(run.d.nodes),
        nodes=sum(len(n) for n in run.d.nodes.values()),
        enumerated=run.enumerated,
        pruned=dict(run.d.cuts + run.space.cuts),
        stopped=stopped,
        seconds=time.perf_counter() - start,
    )


def _begun(
    program: Program,
    target: Target,
    bounds: Bounds,
    prune: bool,
    own_algebra_only: bool,
    end: Callable[[], bool],
    prices: Prices,
) -> tuple[_Search, greedy.Kernels]:
    """A search, and the kernels of the program as written."""
    d = decompose(program, own_algebra_only=own_algebra_only, deadline=end)
    run = _Search(d, target, bounds, prune, prices)
    try:
        return run, greedy.as_written(run)  # however little time there is
    except InexpressibleError:
        if not d.cancels:
            raise
        run = run.literal()  # in which whole numbers stay such
        return run, greedy.as_written(run)


def _explore(
    run: _Search, written: greedy.Kernels, end: Callable[[], bool], deadline: Callable[[], bool]
) -> tuple[list[tuple[Costed, ...]], str]:
    """The kernels of each kernel graph, and why the search stopped: of those within the bounds until the deadline, and
    of those that need no search, or go on from the best that it found, until the end."""
    unsearched = [written]
    stopped = "exhausted"
    try:
        run.deadline = end
        fused = greedy.fused(run, written)
        if run.assembly.exact_candidate(tuple(fused.values())):
            unsearched = [fused]
        run.deadline = deadline
        unsearched.append(greedy.improved(run, fused))
        for limit_us in run.limits_us(greedy.predicted_us(unsearched[0], run.gap_us)):
            run.solve(frozenset(run.d.outputs), run.space.bounds.kernels, limit_us)
    except greedy.SearchEndedError:
        stopped = "budget"
    except KeyboardInterrupt:
        stopped = "interrupted"
    if run.found and stopped != "interrupted":
        run.deadline = end
        unsearched.append(greedy.improved(run, {c.implementation.targets: c for c in run.found[0].kernels}))
    return [*(g.kernels for g in run.found), *(tuple(k.values()) for k in unsearched)], stopped


def _cheapest_first(candidates: Iterable[ScheduledGraph]) -> tuple[ScheduledGraph, ...]:
    """Each candidate once: of equal μGraphs, the first."""
    unique: dict[str, ScheduledGraph] = {}
    for c in candidates:
        unique.setdefault(c.id, c)
    return tuple(sorted(unique.values(), key=lambda c: (c.predicted_us, c.id)))


def _literally(run: _Search) -> list[ScheduledGraph]:
    """The program as written, and its operators fused, with what cancels computed all the same: where what it is
    computed from was rounded, the program may be more exact with it."""
    literal = run.literal()
    written = greedy.as_written(literal)
    fused = literal.assembly.in_order(greedy.fused(literal, written))
    return [literal.assembly.in_order(written), replace(fused, shape=("as written", *fused.shape))]


Prices = dict[object, tuple[float, KernelSchedule] | None]
"""The µs of kernels and their best coarse tiles, None where none fit: by all that they follow from but the target."""

Begun = dict[Program, "tuple[_Search, greedy.Kernels]"]
"""Searches that may go on, each with the kernels of its program as written."""

Kind = tuple[int, frozenset[Form], bool]
"""Of expansions: how deep they are, the operands that they read, and whether they are faithful."""


class PricedKernels(NamedTuple):
    """Kernels in order, and the microseconds that they take together."""

    us: float
    kernels: tuple[Costed, ...]


def _followed_by(c: Costed, us: float, graphs: Iterable[PricedKernels]) -> list[PricedKernels]:
    """These kernel graphs with one more kernel, which takes so long, where no other makes what it makes."""
    targets = set(c.implementation.targets)
    return [
        PricedKernels(us + g.us, (*g.kernels, c))
        for g in graphs
        if all(targets.isdisjoint(k.implementation.targets) for k in g.kernels)
    ]


class Solved(NamedTuple):
    """The kernel graphs for a state, those within the time that was allowed when they were asked for."""

    limit_us: float
    graphs: list[PricedKernels]


class _Search:
    def __init__(self, d: Decomposition, target: Target, bounds: Bounds, prune: bool, prices: Prices) -> None:
        self.d, self.target, self.prune, self.priced = d, target, prune, prices
        self.deadline: Callable[[], bool] = lambda: False
        d.orders = memory_orders(d)
        self.gap_us = target.costs.gap_us
        self.space = Space(d, bounds)
        sizes = d.program.sizes
        self.sizes = sizes | {new: sizes[old] for new, old in d.algebra.aliases.items()}
        self.outputs = (*d.program.outputs, *(p.tensor for p in d.program.parts))
        self.known = unnamed((*d.program.inputs, *self.outputs))
        self.dynamic = frozenset(r.dim for r in d.program.dynamic)
        self.storage = Storage(d, self.space.types, self.sizes, target)
        self.least = LeastWork(self.storage, self.space, prune)
        self.chains = Chains(self.storage, self, bounds.kernels, prune)
        self.assembly = Assembly(self.storage)
        outputs = list(zip(d.program.places(), d.outputs, strict=True))
        self.no_library = {f for (t, whole, _), f in outputs if t is not whole or frozenset(t.dims) != f.dims}
        """Outputs that repeat themselves, or that are parts: a library writes what it computes, as a whole."""
        self.solved: dict[tuple[frozenset[Form], int], Solved] = {}
        self.found: list[PricedKernels] = []  # of the whole program, so far
        self.ceiling = math.inf
        self.made: greedy.Made = {}
        self.read: dict[tuple[Form, ...], list[Reading]] = {}
        self.worked_out: dict[Any, Any] = {}  # as `once` has it
        self.enumerated = 0

    def literal(self) -> _Search:
        """The search among the program's own equations, with what cancels."""
        d = decompose(self.d.program, own_algebra_only=True, literal=True)
        return _Search(d, self.target, self.space.bounds, self.prune, self.priced)

    def ask(self) -> None:
        """Raises SearchEndedError at the deadline."""
        if self.deadline():
            raise greedy.SearchEndedError

    # -- kernels

    def price(self, x: Implementation) -> Costed | None:
        """At its best coarse tiles, or None where no tiles fit."""
        if x.kernels[0].kind == "library":
            dtypes = {self.storage.dtype_of(f) for f in (*x.targets, *x.leaves)}
            if dtypes != {self.d.program.dtype} or x.targets[0] in self.no_library:
                return None
            element = DTYPE_BYTES[self.d.program.dtype]
            return Costed(
                x, (None,), library.library_us(x.kernels[0], self.d.program.inputs, self.sizes, element, self.target)
            )
        sizes = dict(self.sizes)
        schedules: list[KernelSchedule] = []
        total = 0.0
        element_bytes = self.storage.element_bytes(x)
        for i, (kernel, exact) in enumerate(zip(x.kernels, self.storage.exact_values(x), strict=True)):
            kernel = self.storage.with_all_stores(kernel, element_bytes)
            alike = nameless(kernel, element_bytes, exact, self.known), frozenset(sizes.items()), self.dynamic
            try:
                best = self.priced[alike]
            except KeyError:
                m = work.model(kernel, element_bytes, exact, self.d.program.inputs, self.outputs, self.dynamic)
                best = self.priced[alike] = best_schedule(m, sizes, self.target)
            if best is None:
                return None
            total += best[0] + (self.gap_us if i else 0.0)
            schedules.append(best[1])
            if kernel.split is not None:
                sizes[kernel.chunk] = best[1].split
        return Costed(x, tuple(schedules), total)

    def readings(self, targets: tuple[Form, ...]) -> list[Reading]:
        """What kernels for these classes may read, the least traffic first.

        Of the expansions with the same leaves, longest chain of reductions and operands that products find in memory,
        those that do the least work are priced.
        """
        if targets not in self.read:
            by_leaves: dict[tuple[tuple[Form, ...], Kind], list[tuple[float, Expansion]]] = {}
            for e in self.space.expansions(targets, self.ask):
                kind = e.depth, e.operands, e.faithful(self.d.names)
                by_leaves.setdefault((e.leaves, kind), []).append((self.least.work(e), e))
            found: list[Reading] = []
            looked_at: Counter[tuple[int, bool]] = Counter()
            in_order = sorted(by_leaves.items(), key=lambda x: self.least_traffic(targets, x[1]))
            for (leaves, (_, _, faithful)), same in in_order:
                if self.prune and self.storage.traffic_us((*targets, *leaves)) > self.time_for(targets):
                    self.space.cuts["more memory traffic than there is time for"] += len(same)
                    continue
                needs = tuple(f for f in leaves if not self.d.is_input(f))
                looked_at[len(needs), faithful] += 1
                if self.prune and looked_at[len(needs), faithful] > self.space.bounds.readings:
                    self.space.cuts["more memory traffic from as many intermediates"] += len(same)
                    continue
                same.sort(key=lambda w: w[0])
                found.append(Reading(targets, needs, same, self.least.kernel_us(same)))
            self.read[targets] = found
        return self.read[targets]

    def costed(self, r: Reading) -> list[Costed]:
        """What implements it, cheapest first."""
        if r.costed is None:
            r.costed = sorted(self.least_work(r.same), key=lambda c: c.us)
        return r.costed

    def least_traffic(self, targets: tuple[Form, ...], same: list[tuple[float, Expansion]]) -> tuple[float, float]:
        """Microseconds of the traffic that these expansions with the same leaves have, and of the least work."""
        return self.storage.traffic_us((*targets, *same[0][1].leaves)), min(us for us, _ in same)

    def least_work(self, same: list[tuple[float, Expansion]]) -> list[Costed]:
        """What implements expansions with the same leaves, least work first: a few for each choice of roles."""
        limit = self.space.bounds.alternatives
        made: Counter[Roles] = Counter()
        found: list[Costed] = []

        def enough(roles: Roles) -> bool:
            cut = self.prune and made[roles] >= limit
            self.space.cuts["more work from the same leaves"] += cut
            return cut

        for i, (_, e) in enumerate(same):
            if self.prune and i >= 2 * limit:
                self.space.cuts["more work from the same leaves"] += len(same) - i
                break
            if self.prune and self.least.kernel_us([(0.0, e)]) > self.time_for(e.targets):
                self.space.cuts["more arithmetic than there is time for"] += 1
                continue
            for c in self.implemented(e, enough):
                made[c.implementation.roles] += 1
                found.append(c)
        return found

    def time_for(self, targets: tuple[Form, ...]) -> float:
        """Microseconds that a kernel for these classes may take in a kernel graph worth keeping: what the last kernel
        takes at least is not its own."""
        outputs = self.d.outputs
        last = self.read.get(outputs) if len(outputs) == 1 and outputs != targets else None
        return self.ceiling - (min(r.us for r in last) + self.gap_us if last else 0.0)

    def implemented(self, e: Expansion, enough: Callable[[Roles], bool] = lambda roles: False) -> list[Costed]:
        """What implements an expansion, and fits. enough: whether there are enough with these roles."""
        found: list[Costed] = []
        self.ask()
        if sums_again(e, self.d.program.dtype):
            self.space.cuts["adds up again what it compares"] += 1
            return found
        for made in implementations(self.space, e, self.sizes, enough):
            self.ask()
            self.enumerated += 1
            if isinstance(made, InexpressibleError):
                self.space.cuts[made.reason] += 1
            elif costed := self.price(made):
                found.append(costed)
            else:
                self.space.cuts["blocks too large"] += 1
        return found

    # -- kernel graphs

    def solve(self, required: frozenset[Form], kernels: int, limit_us: float) -> list[PricedKernels]:
        """The cheapest kernel graphs of at most so many kernels that put these classes into memory.

        limit_us: those that take longer are of no use to the caller; infinite when pruning is off.
        """
        if not required:
            return [PricedKernels(0.0, ())]
        if kernels == 0:
            self.space.cuts["kernels per graph"] += 1
            return []
        key = (required, kernels)
        if key in self.solved and self.solved[key].limit_us >= limit_us:
            return [g for g in self.solved[key].graphs if g.us <= limit_us]
        asked, whole = limit_us, required == frozenset(self.d.outputs)
        best: list[PricedKernels] = []
        tried: set[tuple[Form, ...]] = set()

        def most_us() -> float:
            return limit_us

        for c, rest in self.continuations(required, kernels, most_us):
            left = kernels - len(c.implementation.kernels)
            if left < 0:
                self.space.cuts["kernels per graph"] += 1
                continue
            own_us = c.us + (self.gap_us if rest else 0.0)
            if not self.reachable(rest, left, limit_us - own_us):
                continue
            tried.add(c.implementation.leaves)
            if self.prune and len(tried) > self.space.bounds.continuations:
                self.space.cuts["continuations of one state"] += 1
                break
            if graphs := _followed_by(c, own_us, self.solve(rest, left, limit_us - own_us)):
                best = self.shortlist([*best, *graphs])
            if best and self.prune:
                limit_us = self.worth(best, limit_us)
            if whole and graphs:
                self.found = self.shortlist([*self.found, *graphs])
                self.ceiling = min(self.ceiling, self.worth(self.found, self.ceiling))
        self.solved[key] = Solved(asked, best)
        return best

    def limits_us(self, greedy_us: float) -> Iterator[float]:
        """For whole kernel graphs, one after the other, until enough are found. greedy_us: of the one that needs no
        search."""
        bounds = self.space.bounds
        if not self.prune:
            yield math.inf
            return
        self.ceiling = bounds.slack * greedy_us
        for factor in (*(f for f in WIDENING if f < bounds.slack), bounds.slack):
            if self.enumerated > bounds.widening and (len(self.found) >= FEW or factor > WIDENING[1]):
                self.space.cuts["plans that are much slower"] += 1
                return
            yield factor * greedy_us
            if len(self.found) == bounds.plans:
                return

    def worth(self, best: Sequence[PricedKernels], limit_us: float) -> float:
        """What further kernel graphs may cost at most, to be kept beside these."""
        limit_us = min(limit_us, self.space.bounds.slack * best[0].us)
        return min(limit_us, best[-1].us) if len(best) == self.space.bounds.plans else limit_us

    def continuations(
        self, required: frozenset[Form], kernels: int, limit_us: Callable[[], float]
    ) -> Iterator[tuple[Costed, frozenset[Form]]]:
        """What the last kernels may be, each with what has to be in memory before it: those that finish the job first,
        since they give the bound, then by cost."""
        heap = [
            Continuation(bool(k.rest), k.reading.us, False, k.at, k, None)
            for k in self.last_kernels(required)
            if k.kernels < kernels
        ]
        heapify(heap)
        while heap:
            first = heappop(heap)
            rest = first.last.rest
            if first.priced is not None:
                yield first.priced, rest
                continue
            gap_us = self.gap_us if rest else 0.0
            if not self.reachable(rest, kernels - 1, limit_us() - first.us - gap_us):
                continue
            for n, c in enumerate(self.costed(first.last.reading)):
                if c.us + gap_us > limit_us():  # as those behind it do
                    self.space.cuts["cost above the best times the slack"] += 1
                    break
                heappush(heap, first._replace(us=c.us, is_priced=True, at=(*first.at, n), priced=c))

    @once
    def last_kernels(self, required: frozenset[Form]) -> list[LastKernel]:
        """Of every kernel that may be the last, in the order of groups."""
        found: list[LastKernel] = []
        for i, targets in enumerate(self.groups(required)):
            own, others = set(targets), required.difference(targets)
            for j, r in enumerate(self.readings(targets)):
                if own.isdisjoint(r.needs):  # or it needs its own result
                    rest = others.union(r.needs)
                    found.append(LastKernel((i, j), r, rest, self.chains.least_kernels(rest)))
        return found

    def reachable(self, rest: frozenset[Form], kernels: int, remaining_us: float) -> bool:
        """Whether so many kernels may make this in the time that remains."""
        if not self.prune:
            return True
        if kernels < self.chains.least_kernels(rest):
            self.space.cuts["kernels per graph"] += 1
            return False
        if remaining_us < (self.chains.least_us(rest, kernels, remaining_us) if rest else 0.0):
            self.space.cuts["cost above the best times the slack"] += 1
            return False
        return True

    def shortlist(self, found: list[PricedKernels]) -> list[PricedKernels]:
        """The cheapest few, few of each structure: equal structures that differ in algebra alone cost much the same."""
        made: Counter[tuple[object, ...]] = Counter()
        kept: list[PricedKernels] = []
        for g in sorted(found, key=lambda g: g.us):
            shape = tuple(c.implementation.shape for c in g.kernels)
            made[shape] += 1
            if made[shape] <= self.space.bounds.algebras:
                kept.append(g)
        return kept[: self.space.bounds.plans]

    def groups(self, required: frozenset[Form]) -> list[tuple[Form, ...]]:
        """The classes that the last kernel may compute: the one of highest rank, alone, with another, or with all."""
        first, *others = sorted(required, key=lambda f: (-self.space.rank.get(f, 0), f.key))
        near = [f for f in others if f.dims == first.dims or {f, first} <= set(self.d.outputs)]
        self.space.cuts["targets of different shape"] += len(others) - len(near)
        together = tuple(f for f in (first, *near) if f in self.d.outputs)
        whole = [together] if 2 < len(together) <= greedy.MAX_TOGETHER and together[0] is first else []
        return [(first,), *((first, f) for f in near), *whole]
