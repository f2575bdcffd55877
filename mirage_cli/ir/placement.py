"""Where each equation of a kernel stands: before, inside or after which loop. It follows from the roles alone.

A value that depends on a loop dimension is in a loop; a reduction over it is an accumulator that is complete after the
loop; everything else is straight code between loops. A value that a later loop needs again is computed again there.

A running maximum is the one exception to "complete after the loop": m = max(x; s) may be used by exp_sub(x, m) inside
the very loop that computes it, if every sum which that feeds is homogeneous in exp(-m). Such an accumulator of degree g
is multiplied by exp(m_old - m_new)**g whenever the maximum moves (online softmax, Milakov and Gimelshein 2018, here for
any program with that property).

So may an extremum that chooses: of min(where(x == m, i, c); s), all that was chosen before m moves is c, and the
accumulator starts anew from c, if it has met anything. The place of a maximum is found in the loop that finds the
maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mirage_cli.ir.access import lookups_of
from mirage_cli.ir.mugraph import Kernel, Load, Store
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn


class InexpressibleError(Exception):
    """These roles give no kernel. `reason` is a short constant, used to count what a search cut."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Straight:
    """Code that runs once: before the first loop, between loops, or after the last."""

    steps: tuple[Load | Eqn, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class Anew:
    """What an accumulator starts anew from when an extremum of its loop moves: what all is that it does not choose."""

    accumulator: str
    extremum: str
    other: Arg


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop over the tiles of `dims` together (of the instance's chunk, for a split dimension).

    steps: what each iteration does, in order. A step whose result is in `accumulators` is a reduction over the tile
        that is then combined into the accumulator.
    accumulators: names of the accumulators, each with its degree in the running maxima of this loop.
    running: maxima that are used while they are still being accumulated. anew: accumulators of what an extremum chooses
        that is still being accumulated.
    """

    dims: tuple[str, ...]
    steps: tuple[Load | Eqn, ...]
    stores: tuple[Store, ...]
    accumulators: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    running: tuple[str, ...]
    anew: tuple[Anew, ...] = ()

    @property
    def steady(self) -> tuple[str, ...]:
        """Accumulators that nothing rescales, starts anew, or looks at meanwhile."""
        moving = {*self.running, *(n for x in self.anew for n in (x.accumulator, x.extremum))}
        return tuple(n for n, degrees in self.accumulators if not degrees and n not in moving)


@dataclass(frozen=True, slots=True)
class Placement:
    """The segments of a kernel in order: straight, loop, straight, loop, ..., straight."""

    segments: tuple[Straight | Loop, ...]

    @property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(s for s in self.segments if isinstance(s, Loop))


@lru_cache(maxsize=4096)
def place(kernel: Kernel) -> Placement:
    """The placement of a generated kernel. Raises InexpressibleError."""
    walked = kernel.with_role("loop", "split")
    online = {e.out for e in kernel.body if OPS[e.op].extremum and _loop_axes(walked, e)}
    while True:
        attempt = _Attempt(kernel, frozenset(online))
        placement = attempt.run()
        illegal = attempt.illegal_maxima()
        if not illegal:
            return placement
        online -= illegal


def early_loads(kernel: Kernel) -> frozenset[str]:
    """Loads behind a loop that may as well stand in front of it: no table says from where, and the kernel changes
    nothing there."""
    written = {s.buffer for s in kernel.stores}
    behind = (x for segment in place(kernel).segments[1:] if isinstance(segment, Straight) for x in segment.steps)
    loads = (x for x in behind if isinstance(x, Load))
    return frozenset(x.out for x in loads if not lookups_of(x.access) and written.isdisjoint(x.buffers))


def _loop_axes(walked: tuple[str, ...], e: Eqn) -> tuple[str, ...]:
    """Those that the equation reduces."""
    return tuple(a for a in walked if a in e.axes) if OPS[e.op].kind in ("reduction", "contraction") else ()


class _Attempt:
    """One assignment of equations to segments, given which maxima are used while running.

    A position is an integer: loop number i (from 1), or the straight segment after loop i (0 is before all loops).
    """

    def __init__(self, kernel: Kernel, online: frozenset[str]) -> None:
        self.kernel = kernel
        self.online = online
        self.loop_dims = kernel.with_role("loop", "split")
        self.grid_dims = frozenset(kernel.with_role("grid"))
        self.dims = kernel.value_dims
        self.inside = {name: frozenset(self.loop_dims).intersection(dims) for name, dims in self.dims.items()}
        self.loops: list[tuple[str, ...]] = []
        self.earliest: dict[str, int] = {}  # in-loop values: first loop that can compute them
        self.after: dict[str, int] = {}  # other values: the straight segment they are known in
        self.home: dict[str, int] = {}  # accumulators: their loop
        self.steps: dict[str, Load | Eqn] = {x.out: x for x in kernel.loads} | {e.out: e for e in kernel.body}
        self.degrees: dict[str, dict[str, int]] = {}
        self.chosen: dict[str, tuple[str, Arg | None]] = {}  # by which extremum, and what all else is; None of masks
        self.shifting: set[str] = set()  # maxima that shift exponents while they run
        self.bad: set[str] = set()  # extrema that must not be used while they run

    def run(self) -> Placement:
        for x in self.kernel.loads:
            (self.earliest if self.inside[x.out] else self.after)[x.out] = 1 if self.inside[x.out] else 0
        for e in self.kernel.body:
            self.assign(e)
        stored = [(s, self.store_position(s)) for s in self.kernel.stores]
        return Placement(tuple(self.segments(stored)))

    def ready(self, e: Eqn) -> int:
        """The first loop in which all arguments are known."""
        first = 1
        for a in e.values:
            if a in self.earliest:
                first = max(first, self.earliest[a])
            elif a in self.online and self.inside[e.out] and (self.shifts(e, a) or self.chooses(e, a)):
                first = max(first, self.home[a])
            elif self.depends_on_partial(a):
                raise InexpressibleError("uses a partial result")
            else:
                first = max(first, self.after[a] + 1)
        return first

    @staticmethod
    def shifts(e: Eqn, m: str) -> bool:
        """Whether it is the exponential of a value less the maximum m."""
        return OPS[e.op].shift and m == e.args[1]

    def chooses(self, e: Eqn, m: str) -> bool:
        """Whether it asks where the extremum m is, which no other chunk moves."""
        return e.op == "eq" and {*e.args} == {m, self.reduced(m)} and not self.depends_on_partial(m)

    def reduced(self, m: str) -> str:
        """What an extremum is of."""
        e = self.steps[m]
        assert isinstance(e, Eqn), "an extremum is an equation"
        return e.values[0]

    def assign(self, e: Eqn) -> None:
        axes = _loop_axes(self.loop_dims, e)
        if OPS[e.op].kind in ("reduction", "contraction") and self.grid_dims & set(e.axes):
            raise InexpressibleError("reduces a grid axis")
        if axes:
            if any(not self.inside[a] <= set(axes) for a in e.values) or self.inside[e.out]:
                raise InexpressibleError("nested loop")
            loop = self.loop_from(self.ready(e), axes)
            self.home[e.out] = self.after[e.out] = loop
        elif self.inside[e.out] or any(self.inside[a] for a in e.values):
            if not self.inside[e.out]:
                raise InexpressibleError("leaves a loop without a reduction")
            self.earliest[e.out] = self.ready(e)
        else:
            self.after[e.out] = max((self.after[a] for a in e.values), default=0)
            if any(self.depends_on_partial(a) for a in e.values):
                raise InexpressibleError("uses a partial result")

    def depends_on_partial(self, name: str) -> bool:
        split = self.kernel.split
        return split is not None and name in self.home and split in self.loops[self.home[name] - 1]

    def loop_from(self, first: int, axes: tuple[str, ...]) -> int:
        """The first loop over exactly these axes at or after `first`; a new one at the end if there is none."""
        for i in range(first, len(self.loops) + 1):
            if self.loops[i - 1] == axes:
                return i
        self.loops.append(axes)
        return len(self.loops)

    def store_position(self, s: Store) -> int:
        """The loop number for a value in a loop, else minus the straight segment."""
        inside = self.inside[s.value]
        if not inside:
            split = self.kernel.split
            if split is not None and self.depends_on_partial(s.value) and self.kernel.chunk not in s.dims:
                raise InexpressibleError("stores a partial result as a whole")
            return -self.after[s.value]
        return self.loop_from(self.earliest[s.value], tuple(d for d in self.loop_dims if d in inside))

    def segments(self, stored: list[tuple[Store, int]]) -> list[Straight | Loop]:
        bodies: list[set[str]] = []
        for i, axes in enumerate(self.loops, 1):
            roots = [name for name, home in self.home.items() if home == i]
            roots += [s.value for s, at in stored if at == i]
            bodies.append(self.cone(roots, i, axes))
        sunk = self.sink(bodies, stored)
        result: list[Straight | Loop] = []
        for i in range(len(self.loops) + 1):
            if i:
                result.append(self.loop(i, bodies[i - 1], [s for s, at in stored if at == i]))
            steps = tuple(step for name, step in self.steps.items() if sunk.get(name) == i)
            result.append(Straight(steps, tuple(s for s, at in stored if at == -i)))
        return result

    def cone(self, roots: list[str], loop: int, axes: tuple[str, ...]) -> set[str]:
        """The in-loop values and accumulators of one loop, with everything they need inside it."""
        need = set(roots)
        stack = list(roots)
        while stack:
            step = self.steps[stack.pop()]
            for a in step.values if isinstance(step, Eqn) else ():
                if a in self.earliest and a not in need:
                    need.add(a)
                    stack.append(a)
        for name in need:
            if name in self.earliest and not self.inside[name] <= set(axes):
                raise InexpressibleError("nested loop")
            if name in self.earliest and self.earliest[name] > loop:
                raise InexpressibleError("needed before it is known")
        return need

    def sink(self, bodies: list[set[str]], stored: list[tuple[Store, int]]) -> dict[str, int]:
        """The straight segment of every value outside loops: the last one that is early enough for all its uses."""
        latest: dict[str, int] = {}
        for s, at in stored:
            if at <= 0:
                latest[s.value] = max(-at, self.after[s.value])
        for i, body in enumerate(bodies, 1):
            for name in body:
                step = self.steps[name]
                for a in step.values if isinstance(step, Eqn) else ():
                    if a in self.after and not (a in self.home and self.home[a] == i):
                        latest[a] = min(latest.get(a, i - 1), i - 1)
        for e in reversed(self.kernel.body):
            if e.out in latest and e.out not in self.home and e.out in self.after:
                for a in e.values:
                    latest[a] = min(latest.get(a, latest[e.out]), latest[e.out])
        return {n: at for n, at in latest.items() if n not in self.home}

    def loop(self, i: int, body: set[str], stores: list[Store]) -> Loop:
        steps = tuple(step for name, step in self.steps.items() if name in body)
        degrees = self.loop_degrees(i, steps)
        accumulators = tuple(
            (s.out, tuple(sorted((m, g) for m, g in degrees[s.out].items() if g))) for s in steps if s.out in self.home
        )
        running = tuple(m for m in body if m in self.online and any(degrees[s.out].get(m) for s in steps))
        found = ((name, *self.chosen[name]) for name, _ in accumulators if name in self.chosen)
        anew = tuple(Anew(name, m, other) for name, m, other in found if other is not None)
        return Loop(self.loops[i - 1], steps, tuple(stores), accumulators, tuple(sorted(running)), anew)

    # -- degrees in exp(-m) for the maxima m that run in this loop

    def loop_degrees(self, i: int, steps: tuple[Load | Eqn, ...]) -> dict[str, dict[str, int]]:
        """The degree of every step of loop i; a step with no single degree is recorded as illegal for that maximum."""
        degrees: dict[str, dict[str, int]] = {}
        self.chosen, self.shifting = {}, set()
        for step in steps:
            degrees[step.out] = self.degree(step, degrees, i) if isinstance(step, Eqn) else {}
        self.degrees |= degrees
        for s in self.kernel.stores:
            if s.value in degrees and s.value in self.earliest:
                self.bad |= {m for m, g in degrees[s.value].items() if g}
                self.bad |= {m for m, _ in [self.chosen[s.value]]} if s.value in self.chosen else set()
        self.bad |= self.shifting & {m for m, _ in self.chosen.values()}
        return degrees

    def degree(self, e: Eqn, known: dict[str, dict[str, int]], i: int) -> dict[str, int]:
        """The degree of a step's result in exp of each maximum that loop i moves, where it is not 0; `OPS` has the
        rules. Notes the maxima that the step makes illegal. known: the degrees of the values so far."""
        live = {m for m in self.online if self.home.get(m) == i}
        used = {a for a in e.values if a in live}
        chosen = {self.chosen[v][0] for v in e.values if v in self.chosen}
        moving = {m for v in e.values for m, g in self._get(known, v).items() if g}
        if OPS[e.op].shift and used == {e.args[1]}:
            self.bad |= chosen | moving  # where these move, the maximum may stay by chance
            self.shifting |= used
            return {str(e.args[1]): 1}
        if len(used) == 1 and self.chooses(e, m := next(iter(used))):
            self.bad |= chosen | moving
            self.chosen[e.out] = m, None
            return {}
        self.bad |= used  # in its loop, an extremum is read by what it shifts or chooses alone
        if chosen:
            self.follow(e, chosen, bool(moving))
            return {}
        rule = OPS[e.op].degree
        args = [self._get(known, a) for a in e.args]
        result: dict[str, int] = {}
        for m in live:
            g = [a.get(m, 0) for a in args]
            if not any(g):
                continue
            if rule == "add":
                result[m] = sum(g)
            elif rule == "sub":
                result[m] = g[0] - g[1]
            elif (rule == "same" and len(set(g)) == 1) or rule == "first":
                result[m] = g[0]
            else:
                self.bad.add(m)
        if e.out in self.home:
            self.bad |= {m for m, g in result.items() if g and not set(self.dims[m]) <= set(self.dims[e.out])}
            self.bad |= {m for m, g in result.items() if g and e.op not in ("sum", "dot")}
        elif OPS[e.op].kind in ("reduction", "contraction"):
            self.bad |= {m for m, g in result.items() if g and set(self.dims[m]) & set(e.axes)}
        return result

    def follow(self, e: Eqn, extrema: set[str], rescaled: bool) -> None:
        """Notes what an equation makes of what an extremum chooses; one of more is illegal."""
        found = self.choice(e, *extrema) if len(extrema) == 1 and not rescaled else None
        if found is None:
            self.bad |= extrema
        else:
            self.chosen[e.out] = found

    def choice(self, e: Eqn, m: str) -> tuple[str, Arg | None] | None:
        """A mask that does not hold for what m chose before it moved; a value that is one other there; or a reduction
        that is this other value of all of that. None for what is none of these."""
        if e.op in ("and", "or"):
            rest = [self.steps[a] for a in e.values if a not in self.chosen]
            undefined = all(isinstance(x, Eqn) and x.op == "isnan" and x.values[0] == self.reduced(m) for x in rest)
            return (m, None) if e.op == "and" or undefined else None
        if e.op == "where":
            mask, value, other = e.args
            known = isinstance(other, str) and (other in self.chosen or bool(self.inside[other]))
            return None if mask not in self.chosen or value in self.chosen or known else (m, other)
        _, other = self.chosen.get(e.values[0], (m, None))
        row = OPS[e.op]
        keeps = other is not None and (row.extremum or e.op == "sum")
        keeps = keeps and (other == row.identity or (row.extremum and self.counts(e.values[0])))
        return (m, other) if keeps and e.out in self.home and {*self.dims[m]} <= {*self.dims[e.out]} else None

    def counts(self, v: str) -> bool:
        """Whether what is chosen are positions: an accumulator that is the identity has met nothing then."""
        e = self.steps[v]
        assert isinstance(e, Eqn) and e.type != "bool", "what is reduced is chosen by a mask"
        value = e.args[1]
        step = self.steps[value] if isinstance(value, str) else None
        return isinstance(step, Eqn) and step.place is not None

    @staticmethod
    def _get(known: dict[str, dict[str, int]], a: object) -> dict[str, int]:
        return known.get(a, {}) if isinstance(a, str) else {}

    def illegal_maxima(self) -> set[str]:
        return self.bad & self.online
