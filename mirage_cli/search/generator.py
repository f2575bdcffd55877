"""The generator: kernel graphs from the decomposition graph, exhaustive within bounds, cheapest first.

A state is the set of classes that must be in device memory. A step takes the class of highest rank, alone or with
others, and computes it by one plan (one kernel, or two where a split is merged) from other classes, which then must
be in memory in turn. The best continuations of a state do not depend on how it was reached, so they are memoised.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count
from math import prod

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.decompose import Decomposition, decompose
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store, exact_values, split_axis
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import InexpressibleError
from mirage_cli.ir.program import DTYPE_BYTES, Program, Tensor
from mirage_cli.ir.schedule import KernelSchedule, Schedule, next_power_of_two
from mirage_cli.ir.text import mugraph_id
from mirage_cli.search import cost, greedy, work
from mirage_cli.search.cuts import Bounds
from mirage_cli.search.expand import Expansion, Space, Written, axes_of, equations, sort_axes
from mirage_cli.search.roles import Costed, Plan, Roles, buffer_of, nameless, plans
from mirage_cli.search.tiles import best_schedule
from mirage_cli.search.twice import summed_twice
from mirage_cli.target.gpus import Target

REPEATED = 64
"""Elements of a block along an axis that an output only repeats itself along."""
WIDENING = 1.02, 1.1, 1.4
"""How many times the time of the plan that needs no search others may take, first and then, before the bounds' slack.
Most searches find enough of them at once; within less time, fewer states are worth a look."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A μGraph with the schedule that the cost model would choose and its predicted time."""

    graph: MuGraph
    schedule: Schedule
    predicted_us: float
    shape: tuple[object, ...] = ()

    @property
    def id(self) -> str:
        return mugraph_id(self.graph)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Candidates, cheapest first, the program as written last among equals; and what the search did.

    stopped: "exhausted" (all within the bounds was looked at), "budget" or "interrupted".
    """

    candidates: tuple[Candidate, ...]
    as_written: Candidate
    classes: int
    nodes: int
    enumerated: int
    pruned: Mapping[str, int]
    stopped: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of a kernel graph. names: by what plans call them; taken: all names."""

    taken: set[str]
    names: dict[str, str]
    tensors: list[Tensor]

    def add(self, key: str, wanted: str, dims: tuple[str, ...], dtype: str) -> None:
        name = next(x for n in count() if (x := f"{wanted}_{n}" if n else wanted) not in self.taken)
        self.taken.add(name)
        self.names[key] = name
        self.tensors.append(Tensor(name, dims, dtype))

    def real(self, buffer: str, n: int) -> str:
        """The name of what plan n calls so: its own scratch, or what all plans call so."""
        return self.names.get(scratch_key(buffer, n)) or self.names.get(buffer, buffer)


def scratch_key(buffer: str, n: int) -> str:
    """What plan n calls so is its own, though others may call theirs the same."""
    return f"{buffer}#{n}"


@dataclass(slots=True, eq=False)
class Reading:
    """Expansions of the same targets that read the same. They are priced when there may be time for them.

    needs: what other kernels have to make. same: with the microseconds of their work, the least first. least_us: no
    kernel of theirs takes less. plans: the cheapest first; None before they are priced.
    """

    targets: tuple[Form, ...]
    needs: frozenset[Form]
    same: list[tuple[float, Expansion]]
    least_us: float
    plans: list[Costed] | None = None

    @property
    def us(self) -> float:
        """A lower bound of the cheapest's time, which it is once they are priced."""
        if self.plans is None:
            return self.least_us
        return self.plans[0].us if self.plans else math.inf


@dataclass(frozen=True, slots=True)
class Step:
    """What a last kernel may be: where it stands among all, what has to be in memory before it, and the least number of
    kernels for that."""

    at: tuple[int, int]
    reading: Reading
    rest: frozenset[Form]
    kernels: int


class OutOfTimeError(Exception):
    """The budget is spent, or the user interrupted."""


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
) -> SearchResult:
    """All μGraphs of a lowered program within the bounds, the best of them in order.

    prune: cut what costs more than the best times the slack; off for ablations.
    deadline: asked now and then; true ends the search with what it has.
    end: asked before that, as the program is decomposed and its operators are fused; true leaves them as written.
    looking: told as often how many kernels were looked at, and the µs of the best plan so far.
    """
    start = time.perf_counter()
    d = decompose(program, own_algebra_only=own_algebra_only, deadline=end)
    run = _Search(d, target, bounds or Bounds(), prune, lambda: False)
    written = greedy.as_written(run)  # however little time there is
    as_written, *literal = _literally(run) if d.cancels else [run.in_order(written)]
    fused = written
    stopped = "exhausted"

    def look_and_ask() -> bool:
        looking(run.enumerated, min((us for us, _ in run.found), default=None))
        return deadline()

    try:
        run.deadline = end
        fused = greedy.fused(run, written)
        run.deadline = look_and_ask
        if run.exact_candidate(tuple(fused.values())) is None:
            fused = written
        for budget in run.budgets(greedy.predicted_us(fused, run.gap_us)):
            run.solve(frozenset(d.outputs), run.space.bounds.kernels, budget)
    except OutOfTimeError:
        stopped = "budget"
    except KeyboardInterrupt:
        stopped = "interrupted"
    found = [*run.found, (greedy.predicted_us(fused, run.gap_us), tuple(fused.values()))]
    candidates: dict[str, Candidate] = {}
    for _, steps in found:
        if candidate := run.exact_candidate(steps):
            candidates.setdefault(candidate.id, candidate)
    for c in (as_written, *literal):
        candidates.setdefault(c.id, c)
    ordered = tuple(sorted(candidates.values(), key=lambda c: (c.predicted_us, c.id)))
    nodes, pruned = sum(len(n) for n in d.nodes.values()), dict(d.cuts + run.space.cuts)
    seconds = time.perf_counter() - start
    return SearchResult(ordered, as_written, len(d.nodes), nodes, run.enumerated, pruned, stopped, seconds)


def _literally(run: _Search) -> list[Candidate]:
    """The program as written, and its operators fused, with what cancels computed all the same: where what it is
    computed from was rounded, the program may be more exact with it."""
    d = decompose(run.d.program, own_algebra_only=True, literal=True)
    literal = _Search(d, run.target, run.space.bounds, run.prune, lambda: False)
    written = greedy.as_written(literal)
    fused = literal.in_order(greedy.fused(literal, written))
    return [literal.in_order(written), replace(fused, shape=("as written", *fused.shape))]


Way = tuple[float, tuple[Costed, ...]]
"""Kernels in order, behind the microseconds that they take together."""


def _masked(written: Written) -> bool:
    return any(q.type == "bool" for q in written.eqns)


def _followed_by(c: Costed, us: float, ways: Iterable[Way]) -> list[Way]:
    """These ways with one more kernel, which takes so long, where none of them makes what it makes."""
    targets = set(c.plan.targets)
    return [
        (us + before, (*steps, c)) for before, steps in ways if all(targets.isdisjoint(s.plan.targets) for s in steps)
    ]


class _Search:
    def __init__(
        self, d: Decomposition, target: Target, bounds: Bounds, prune: bool, deadline: Callable[[], bool]
    ) -> None:
        self.d, self.target, self.prune, self.deadline = d, target, prune, deadline
        self.gap_us = target.costs.gap_us
        self.space = Space(d, bounds)
        sizes = d.program.sizes
        self.sizes = sizes | {new: sizes[old] for new, old in d.algebra.aliases.items()}
        self.exact = {f for v in d.program.exact() for f in d.forms[v]}
        self.precise = self.exact | {f for v in d.program.internals | d.program.promoted() for f in d.forms[v]}
        outputs = list(zip(d.program.places(), d.outputs, strict=True))
        self.no_library = {f for (t, whole, _), f in outputs if t is not whole or frozenset(t.dims) != f.dims}
        """Outputs that repeat themselves, or that are parts: a library writes what it computes, as a whole."""
        self.memo: dict[tuple[frozenset[Form], int], tuple[float, list[Way]]] = {}
        self.found: list[Way] = []  # kernel graphs so far
        self.ceiling = math.inf
        self.read: dict[tuple[Form, ...], list[Reading]] = {}
        self.steps: dict[frozenset[Form], list[Step]] = {}
        self.makeable: dict[tuple[Form, int], bool] = {}
        self.shortest: dict[Form, int] = {}
        self.counts: dict[frozenset[Form], int] = {}
        self.cheapest: dict[Form, float] = {}
        self.chains: dict[tuple[Form, int], tuple[float, float]] = {}
        self.least: dict[tuple[frozenset[Form], int], tuple[float, float]] = {}
        self.weighed: dict[Form, int] = {}
        self.apart: dict[frozenset[Form], float] = {}
        self.priced: dict[object, tuple[float, KernelSchedule] | None] = {}  # by kernel, whatever its names
        self.enumerated = 0

    def ask(self) -> None:
        """Raises OutOfTimeError at the deadline."""
        if self.deadline():
            raise OutOfTimeError

    # -- kernels

    def dtype_of(self, f: Form) -> str:
        """The element type of an intermediate: the program's where its user has this value as an elementwise or
        contracted result, so that it is rounded where eager PyTorch rounds; float32 otherwise, where eager keeps the
        same value in float32 elsewhere, within a norm say, and where it is `promoted`. Integers are not rounded: they
        are float32's too."""
        if self.d.is_input(f):
            atom = f.atom
            return next(t.dtype for t in self.d.program.inputs if atom is not None and t.name == atom.args[0])
        own = self.d.own.get(f)
        if own is None or f in self.precise or self.space.types[f] == "int":
            return "float32"
        for e in self.d.program.eqns:
            if e.out == own:
                return "float32" if OPS[e.op].kind == "reduction" else self.d.program.dtype
        return "float32"

    def element_bytes(self, plan: Plan) -> dict[str, int]:
        found = {t.name: DTYPE_BYTES[t.dtype] for t in (*self.d.program.inputs, *plan.scratch)}
        return found | {"@" + f.key: DTYPE_BYTES[self.dtype_of(f)] for f in (*plan.targets, *plan.leaves)}

    def exact_values(self, plan: Plan) -> list[frozenset[str]]:
        """For each kernel, the values whose products are of float32."""
        inputs = {t.name for t in self.d.program.inputs if t.dtype == "float32"}
        inputs |= {"@" + f.key for f in plan.leaves if f in self.exact and self.dtype_of(f) == "float32"}
        buffers = {t.name for t in plan.scratch if t.dtype == "float32"}
        return exact_values(plan.kernels, self.d.program.dtype, inputs, buffers)

    def price(self, plan: Plan) -> Costed | None:
        """The plan at its best coarse tiles, or None where no tiles fit."""
        if plan.kernels[0].kind == "library":
            dtypes = {self.dtype_of(f) for f in (*plan.targets, *plan.leaves)}
            if dtypes != {self.d.program.dtype} or plan.targets[0] in self.no_library:
                return None
            element = DTYPE_BYTES[self.d.program.dtype]
            return Costed(plan, (None,), cost.library_us(plan.kernels[0], self.sizes, element, self.target))
        sizes = dict(self.sizes)
        schedules: list[KernelSchedule] = []
        total = 0.0
        element_bytes = self.element_bytes(plan)
        for i, (kernel, exact) in enumerate(zip(plan.kernels, self.exact_values(plan), strict=True)):
            products = tuple(bool(exact & set(e.values)) for e in kernel.body if e.op == "dot")
            alike = nameless(kernel, element_bytes), products, tuple(sizes.items())[len(self.sizes) :]
            if alike not in self.priced:
                m = work.model(kernel, element_bytes, exact, self.d.program.inputs)
                self.priced[alike] = best_schedule(m, sizes, self.target)
            best = self.priced[alike]
            if best is None:
                return None
            total += best[0] + (self.gap_us if i else 0.0)
            schedules.append(best[1])
            if kernel.split is not None:
                sizes[split_axis(kernel.split)] = best[1].split
        return Costed(plan, tuple(schedules), total)

    def readings(self, targets: tuple[Form, ...]) -> list[Reading]:
        """What kernels for these classes may read, the least traffic first.

        Of the expansions with the same leaves, longest chain of reductions and operands that products find in memory,
        those that do the least work are priced.
        """
        if targets not in self.read:
            by_leaves: dict[tuple[tuple[Form, ...], object], list[tuple[float, Expansion]]] = {}
            for e in self.space.expansions(targets, self.ask):
                kind = e.depth, e.operands, e.faithful(self.d.names)
                by_leaves.setdefault((e.leaves, kind), []).append((self.work(e), e))
            found: list[Reading] = []
            looked_at: Counter[tuple[int, bool]] = Counter()
            for same in sorted(by_leaves.values(), key=lambda same: self.least_traffic(targets, same)):
                e = same[0][1]
                if self.prune and self.traffic_us((*targets, *e.leaves)) > self.time_for(targets):
                    self.space.cuts["more memory traffic than there is time for"] += len(same)
                    continue
                needs = frozenset(f for f in e.leaves if not self.d.is_input(f))
                kind = len(needs), e.faithful(self.d.names)
                looked_at[kind] += 1
                if self.prune and looked_at[kind] > self.space.bounds.readings:
                    self.space.cuts["more memory traffic from as many intermediates"] += len(same)
                    continue
                same.sort(key=lambda w: w[0])
                found.append(Reading(targets, needs, same, self.least_kernel_us(same)))
            self.read[targets] = found
        return self.read[targets]

    def plans_in(self, r: Reading) -> list[Costed]:
        """Its plans, cheapest first."""
        if r.plans is None:
            r.plans = sorted(self.least_work(r.same), key=lambda c: c.us)
        return r.plans

    def least_kernel_us(self, same: Sequence[tuple[float, Expansion]]) -> float:
        """A lower bound for the kernels of the expansions that will be priced."""
        if not self.prune:
            return 0.0
        least = math.inf
        for _, e in same[: 2 * self.space.bounds.alternatives]:
            if not e.multiplies_anew(self.d.nodes):
                try:
                    written = equations(self.d, e)
                except InexpressibleError:
                    continue
                moving_us = self.least_moving_us(e.targets, written)
                least = min(least, self.target.launch_us + max(moving_us, self.least_arithmetic_us(written)))
        return least

    def least_moving_us(self, targets: tuple[Form, ...], written: Written) -> float:
        """The least time to read and write what these equations do; what masks may leave out is not counted."""
        parts: dict[str, float] = {}
        for name, f, access in () if _masked(written) else written.loads:
            x = Load(name, buffer_of(self.d, f), access)
            size = work.bytes_of(x, {x.buffer: DTYPE_BYTES[self.dtype_of(f)]})
            part = work.part_of(x)
            parts[part] = max(parts.get(part, 0.0), prod(self.sizes[a] for a in x.dims) * size)
        moved = sum(parts.values()) + sum(map(self.bytes_of, targets))
        return moved / self.target.dram_bytes_per_us

    def least_traffic(self, targets: tuple[Form, ...], same: list[tuple[float, Expansion]]) -> tuple[float, float]:
        """Microseconds of the traffic that these expansions with the same leaves have, and of the least work."""
        return self.traffic_us((*targets, *same[0][1].leaves)), min(us for us, _ in same)

    def least_work(self, same: list[tuple[float, Expansion]]) -> list[Costed]:
        """Plans of expansions with the same leaves, least work first: a few for each choice of roles."""
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
            if self.prune and self.least_kernel_us([(0.0, e)]) > self.time_for(e.targets):
                self.space.cuts["more arithmetic than there is time for"] += 1
                continue
            for c in self.plans_of(e, enough):
                made[c.plan.roles] += 1
                found.append(c)
        return found

    def work(self, e: Expansion) -> float:
        """Arithmetic of an expansion in microseconds at full rate, every step once over its whole space."""
        total = 0.0
        for f, node in e.chosen:
            space = float(prod(self.sizes[a] for a in f.dims))
            for s in node.steps:
                reduced = prod(self.sizes[a] for a in s.axes) if OPS[s.op].kind in ("reduction", "contraction") else 1
                rate = self.target.tensor_flops_per_us if s.op == "dot" else self.target.fp32_flops_per_us
                total += OPS[s.op].flops * space * reduced / rate
        return total

    def least_arithmetic_us(self, written: Written) -> float:
        """The least time of these equations in the cost model, products beside all else; 0 where masks may leave a part
        of it out."""
        if _masked(written):
            return 0.0
        products = others = 0.0
        for q in written.eqns:
            reduces = OPS[q.op].kind in ("reduction", "contraction")
            space = float(prod(self.sizes[a] for a in ({*q.dims, *q.axes} if reduces else q.dims)))
            if q.op == "dot":
                products += OPS["dot"].flops * space
            else:  # by a number it multiplies
                others += OPS[(len(q.values) < 2 and OPS[q.op].by_number) or q.op].flops * space
        return max(
            products / self.target.tensor_flops_per_us,
            others / (self.target.fp32_flops_per_us * self.target.costs.simd),
        )

    def time_for(self, targets: tuple[Form, ...]) -> float:
        """Microseconds that a kernel for these classes may take in a kernel graph worth keeping: what the last kernel
        takes at least is not its own."""
        outputs = self.d.outputs
        last = self.read.get(outputs) if len(outputs) == 1 and outputs != targets else None
        return self.ceiling - (min(r.us for r in last) + self.gap_us if last else 0.0)

    def traffic_us(self, forms: tuple[Form, ...]) -> float:
        """The least time to move these classes through device memory once."""
        return sum(map(self.bytes_of, set(forms))) / self.target.dram_bytes_per_us

    def bytes_of(self, f: Form) -> int:
        """Of a class in device memory."""
        if f not in self.weighed:
            self.weighed[f] = prod(self.sizes[a] for a in f.dims) * DTYPE_BYTES[self.dtype_of(f)]
        return self.weighed[f]

    def plans_of(self, e: Expansion, enough: Callable[[Roles], bool] = lambda roles: False) -> list[Costed]:
        """The plans of an expansion that fit. enough: whether there are enough with these roles."""
        found: list[Costed] = []
        self.ask()
        for plan in plans(self.d, e, self.sizes, enough):
            self.ask()
            self.enumerated += 1
            if isinstance(plan, InexpressibleError):
                self.space.cuts[plan.reason] += 1
            elif costed := self.price(plan):
                found.append(costed)
            else:
                self.space.cuts["blocks too large"] += 1
        return found

    # -- kernel graphs

    def solve(self, required: frozenset[Form], kernels: int, budget: float) -> list[Way]:
        """The cheapest ways to have these classes in memory with at most so many kernels, last kernel last.

        budget: ways that take longer are of no use to the caller; infinite when pruning is off.
        """
        if not required:
            return [(0.0, ())]
        if kernels == 0:
            self.space.cuts["kernels per graph"] += 1
            return []
        key = (required, kernels)
        if key in self.memo and self.memo[key][0] >= budget:
            return [p for p in self.memo[key][1] if p[0] <= budget]
        asked, whole = budget, required == frozenset(self.d.outputs)
        best: list[Way] = []
        tried: set[tuple[Form, ...]] = set()

        def most_us() -> float:
            return budget

        for c, rest in self.continuations(required, kernels, most_us):
            left = kernels - len(c.plan.kernels)
            if left < 0:
                self.space.cuts["kernels per graph"] += 1
                continue
            here = c.us + (self.gap_us if rest else 0.0)
            if not self.reachable(rest, left, budget - here):
                continue
            tried.add(c.plan.leaves)
            if self.prune and len(tried) > self.space.bounds.continuations:
                self.space.cuts["continuations of one state"] += 1
                break
            if ways := _followed_by(c, here, self.solve(rest, left, budget - here)):
                best = self.shortlist([*best, *ways])
            if best and self.prune:
                budget = self.worth(best, budget)
            if whole and ways:
                self.found = self.shortlist([*self.found, *ways])
                self.ceiling = min(self.ceiling, self.worth(self.found, self.ceiling))
        self.memo[key] = (asked, best)
        return best

    def budgets(self, greedy_us: float) -> Iterator[float]:
        """For whole kernel graphs, one after the other, until enough are found. greedy_us: of the one that needs no
        search."""
        bounds = self.space.bounds
        if not self.prune:
            yield math.inf
            return
        self.ceiling = bounds.slack * greedy_us
        for factor in (*(f for f in WIDENING if f < bounds.slack), bounds.slack):
            if self.enumerated > bounds.widening and factor > WIDENING[0]:
                self.space.cuts["plans that are much slower"] += 1
                return
            yield factor * greedy_us
            if len(self.found) == bounds.plans:
                return

    def worth(self, best: Sequence[Way], budget: float) -> float:
        """What further ways may cost at most, to be kept beside these."""
        budget = min(budget, self.space.bounds.slack * best[0][0])
        return min(budget, best[-1][0]) if len(best) == self.space.bounds.plans else budget

    def continuations(
        self, required: frozenset[Form], kernels: int, budget: Callable[[], float]
    ) -> Iterator[tuple[Costed, frozenset[Form]]]:
        """What the last kernels may be, each with what has to be in memory before it: those that finish the job first,
        since they give the bound, then by cost."""
        heap: list[tuple[bool, float, bool, tuple[int, ...], Step, Costed | None]] = [
            (bool(s.rest), s.reading.us, False, s.at, s, None) for s in self.last_steps(required) if s.kernels < kernels
        ]
        heapify(heap)
        while heap:
            unfinished, us, _, at, step, priced = heappop(heap)
            r, rest = step.reading, step.rest
            if priced is not None:
                yield priced, rest
                continue
            if r.plans is None and not self.reachable(rest, kernels - 1, budget() - us - self.gap_us * bool(rest)):
                continue
            for n, c in enumerate(self.plans_in(r)):
                heappush(heap, (unfinished, c.us, True, (*at, n), step, c))

    def last_steps(self, required: frozenset[Form]) -> list[Step]:
        """Of every kernel that may be the last, in the order of groups."""
        if required not in self.steps:
            found: list[Step] = []
            for i, targets in enumerate(self.groups(required)):
                others = required.difference(targets)
                for j, r in enumerate(self.readings(targets)):
                    if r.needs.isdisjoint(targets):  # or it needs its own result
                        rest = others | r.needs
                        found.append(Step((i, j), r, rest, self.least_kernels(rest)))
            self.steps[required] = found
        return self.steps[required]

    def reachable(self, rest: frozenset[Form], kernels: int, remaining_us: float) -> bool:
        """Whether so many kernels may make this in the time that remains."""
        if not self.prune:
            return True
        if kernels < self.least_kernels(rest):
            self.space.cuts["kernels per graph"] += 1
            return False
        if remaining_us < (self.least_us(rest, kernels, remaining_us) if rest else 0.0):
            self.space.cuts["cost above the best times the slack"] += 1
            return False
        return True

    def shortlist(self, found: list[Way]) -> list[Way]:
        """The cheapest few, few of each structure: equal structures that differ in algebra alone cost much the same."""
        made: Counter[tuple[object, ...]] = Counter()
        kept: list[Way] = []
        for p in sorted(found, key=lambda p: p[0]):
            shape = tuple(c.plan.shape for c in p[1])
            made[shape] += 1
            if made[shape] <= self.space.bounds.algebras:
                kept.append(p)
        return kept[: self.space.bounds.plans]

    def least_kernels(self, required: frozenset[Form]) -> int:
        """The least number of kernels for having these classes in memory, up to one more than there may be."""
        if not self.prune:
            return 0
        if required not in self.counts:
            self.counts[required] = max(map(self.shortest_chain, required), default=0)
        return self.counts[required]

    def shortest_chain(self, f: Form) -> int:
        """The least number of kernels of which one makes this class and each needs what another makes."""
        if f not in self.shortest:
            most = self.space.bounds.kernels + 1
            self.shortest[f] = next((k for k in range(1, most) if self.can_make(f, k)), most)
        return self.shortest[f]

    def can_make(self, f: Form, kernels: int) -> bool:
        """Whether a chain of so many kernels ends with this class."""
        key = f, kernels
        if key not in self.makeable:
            self.makeable[key] = kernels > 0 and any(
                all(self.can_make(g, kernels - 1) for g in r.needs) for r in self.readings((f,))
            )
        return self.makeable[key]

    def least_us(self, required: frozenset[Form], kernels: int, enough: float) -> float:
        """A lower bound for having these classes in memory by so many kernels; any bound above `enough` will do."""
        us, asked = self.least.get((required, kernels), (0.0, -math.inf))
        if us > enough or asked >= enough:
            return us
        us = self.apart_us(required, enough)
        for f in required:
            if us > enough:
                break
            us = max(us, self.chain_us(f, kernels, enough))
        self.least[required, kernels] = us, enough
        return us

    def apart_us(self, required: frozenset[Form], enough: float) -> float:
        """Of classes of different shapes, which are never targets of one kernel: each of them, in its cheapest kernel,
        adds up."""
        if required in self.apart:
            return self.apart[required]
        traffic = self.target.launch_us + self.traffic_us(tuple(required))
        if traffic > enough:
            return traffic
        apart: list[Form] = []
        total = -self.gap_us
        for us, f in sorted(((self.cheapest_us(f), f) for f in required), key=lambda x: (-x[0], x[1].key)):
            if all(f.dims != g.dims for g in apart) and (f not in self.d.outputs or not apart):
                apart.append(f)
                total += us + self.gap_us
        self.apart[required] = max(traffic, total)
        return self.apart[required]

    def chain_us(self, f: Form, kernels: int, enough: float) -> float:
        """Of the cheapest kernel of this class and, before it, the most expensive chain to what that reads."""
        us, asked = self.chains.get((f, kernels), (0.0, -math.inf))
        if us > enough or asked >= enough:
            return us
        least = math.inf
        for r in self.readings((f,)) if self.can_make(f, kernels) else ():
            if f not in r.needs:
                least = min(least, self.chain_of_us(r, kernels, min(least, enough)))
        self.chains[f, kernels] = least, enough
        return least

    def chain_of_us(self, r: Reading, kernels: int, enough: float) -> float:
        """With this kernel last; one that may be within `enough` is priced."""
        before = self.gap_us if r.needs else 0.0
        for g in r.needs:
            if r.us + before > enough:
                break
            before = max(before, self.gap_us + self.chain_us(g, kernels - 1, enough - r.us - self.gap_us))
        if r.us + before <= enough:
            self.plans_in(r)
        return r.us + before

    def cheapest_us(self, f: Form) -> float:
        """Of the cheapest kernel for this class alone."""
        if f not in self.cheapest:
            least = math.inf
            for r in sorted(self.readings((f,)), key=lambda r: r.us):
                if r.us >= least:
                    break
                self.plans_in(r)
                least = min(least, r.us)
            self.cheapest[f] = least
        return self.cheapest[f]

    def groups(self, required: frozenset[Form]) -> list[tuple[Form, ...]]:
        """The classes that the last kernel may compute: the one of highest rank, alone, with another, or with all."""
        first, *others = sorted(required, key=lambda f: (-self.space.rank.get(f, 0), f.key))
        near = [f for f in others if f.dims == first.dims or {f, first} <= set(self.d.outputs)]
        self.space.cuts["targets of different shape"] += len(others) - len(near)
        together = tuple(f for f in (first, *near) if f in self.d.outputs)
        whole = [together] if 2 < len(together) <= greedy.MAX_TOGETHER and together[0] is first else []
        return [(first,), *((first, f) for f in near), *whole]

    # -- μGraphs

    def in_order(self, kernels: greedy.Kernels) -> Candidate:
        """The μGraph of a greedy plan."""
        made = self.assemble(tuple(kernels.values()))
        assert made is not None, "kernels are in order"
        return made

    def exact_candidate(self, steps: tuple[Costed, ...]) -> Candidate | None:
        """The μGraph of these plans, unless it would be less exact than the program."""
        made = self.assemble(steps)
        return None if made is None or summed_twice(made.graph, {e.out for e in self.d.program.eqns}) else made

    def assemble(self, steps: tuple[Costed, ...]) -> Candidate | None:
        """The μGraph of these plans in order; None where one of them reads what only a later one writes."""
        d, program = self.d, self.d.program
        buffers = self.buffers(steps)
        kernels: list[Kernel] = []
        schedules: dict[str, KernelSchedule] = {}
        written: set[str] = set()
        chunks: dict[str, int] = {}
        us = 0.0
        for n, step in enumerate(steps):
            us += step.us + (self.gap_us if n else 0.0)
            for planned, schedule in zip(step.plan.kernels, step.schedules, strict=True):
                kernel = self.wired(planned, f"k{len(kernels)}", buffers, n)
                if any(
                    x.buffer.startswith("@") and y.buffer not in written
                    for x, y in zip(planned.loads, kernel.loads, strict=True)
                ):
                    return None
                written |= {s.buffer for s in kernel.stores}
                if schedule is not None:
                    if kernel.split is not None:  # partial results of one axis share the axis of chunks
                        schedule = replace(schedule, split=chunks.setdefault(kernel.split, schedule.split))
                    kernel, schedules[kernel.name] = self.broadcasting(kernel, schedule)
                if any(a in kernel.with_role("loop", "split") for s in kernel.stores for a in self.repeated(kernel, s)):
                    return None
                kernels.append(kernel)
        dims = (*program.dims, *((a, self.sizes[a]) for a in d.algebra.aliases))
        graph = MuGraph(
            program.name,
            dims,
            program.dtype,
            program.inputs,
            program.results,
            tuple(buffers.tensors),
            tuple(kernels),
            program.merged,
            program.dynamic,
        )
        return Candidate(graph, Schedule(schedules), us, tuple(s.plan.shape for s in steps))

    def buffers(self, steps: Sequence[Costed]) -> Buffers:
        """What these plans have in memory: classes that are outputs in the outputs, others in buffers of their own, as
        parts of outputs are that later kernels read."""
        d, program = self.d, self.d.program
        found = Buffers({t.name for t in (*program.inputs, *program.results)}, {}, [])
        for (t, whole, _), f in zip(program.places(), d.outputs, strict=True):
            exact = f not in self.precise or DTYPE_BYTES[t.dtype] >= DTYPE_BYTES["float32"]
            if t is whole and frozenset(t.dims) == f.dims and exact:  # later kernels read it from there
                found.names.setdefault("@" + f.key, t.name)
        read = {f for s in steps for f in s.plan.leaves if not d.is_input(f)}
        for n, step in enumerate(steps):
            for f in step.plan.targets:
                if "@" + f.key not in found.names and (f in read or f not in d.outputs):
                    found.add("@" + f.key, d.names.get(f, "t"), axes_of(d, f), self.dtype_of(f))
            for t in step.plan.scratch:
                found.add(scratch_key(t.name, n), t.name.strip("@"), t.dims, t.dtype)
        return found

    def wired(self, kernel: Kernel, name: str, buffers: Buffers, n: int) -> Kernel:
        """A kernel of plan n with the buffers of the graph; what is an output is stored there too."""
        outputs = {t.name for t in self.d.program.results}
        loads = tuple(replace(x, buffer=buffers.real(x.buffer, n)) for x in kernel.loads)
        stores: list[Store] = []
        for s in kernel.stores:
            stores += self.output_stores(s)
            real = buffers.real(s.buffer, n)
            if real not in outputs | {s.buffer}:
                stores.append(replace(s, buffer=real))
        return replace(kernel, name=name, loads=self.reorder(loads), stores=tuple(stores))

    def output_stores(self, s: Store) -> list[Store]:
        """The stores of a class that is an output, once for each output that is this class, where that lies."""
        outputs = zip(self.d.program.places(), self.d.outputs, strict=True)
        return [Store(t.name, s.value, access) for (_, t, access), f in outputs if "@" + f.key == s.buffer]

    @staticmethod
    def repeated(kernel: Kernel, s: Store) -> set[str]:
        """The axes of a store along which the value repeats itself."""
        chunk = split_axis(kernel.split) if kernel.split else ""
        return set(s.dims) - set(kernel.value_dims[s.value]) - {chunk}

    def broadcasting(self, kernel: Kernel, schedule: KernelSchedule) -> tuple[Kernel, KernelSchedule]:
        """With a place on the grid for axes that only a store has: along them the output repeats itself."""
        have = {*(a for a, _ in kernel.roles), *(split_axis(a) for a, r in kernel.roles if r == "split")}
        for a in dict.fromkeys(a for s in kernel.stores for a in s.dims if a not in have):
            tile = min(REPEATED, next_power_of_two(self.sizes[a]))
            kernel = replace(kernel, roles=(*kernel.roles, (a, "grid")))
            schedule = replace(schedule, tiles=(*schedule.tiles, (a, tile)), order=(*schedule.order, a))
        return kernel, schedule

    def reorder(self, loads: tuple[Load, ...]) -> tuple[Load, ...]:
        """Loads with the axes in the tensor's own memory order, which a declared output may have chosen."""
        declared = {t.name: t.dims for t in self.d.program.results}
        found: list[Load] = []
        for x in loads:
            order = declared.get(x.buffer, ())
            read_by = dict(zip(sort_axes(self.d, set(order)), x.access, strict=True)) if order else {}
            found.append(replace(x, access=tuple(read_by[a] for a in order)) if order else x)
        return tuple(found)
