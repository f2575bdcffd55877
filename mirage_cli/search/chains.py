"""Lower bounds of kernel graphs: how many kernels, and how long, it takes at least to have classes in memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol  # Any: what is worked out once

from mirage_cli.algebra.canonical import Form
from mirage_cli.ir.once import once
from mirage_cli.search.expand import Expansion
from mirage_cli.search.roles import Costed
from mirage_cli.search.storage import Storage


@dataclass(slots=True, eq=False)
class Reading:
    """Expansions of the same targets that read the same. They are priced when there may be time for them.

    needs: what other kernels have to make, in the order of keys: what is asked first does not depend on the run. same:
    with the microseconds of their work, the least first. least_us: no kernel of theirs takes less. costed: the cheapest
    first; None before they are priced.
    """

    targets: tuple[Form, ...]
    needs: tuple[Form, ...]
    same: list[tuple[float, Expansion]]
    least_us: float
    costed: list[Costed] | None = None

    @property
    def us(self) -> float:
        """A lower bound of the cheapest's time, which it is once they are priced."""
        if self.costed is None:
            return self.least_us
        return self.costed[0].us if self.costed else math.inf


class Priced(Protocol):
    """What knows the last kernels of some targets, and their prices."""

    def readings(self, targets: tuple[Form, ...]) -> list[Reading]: ...

    def costed(self, r: Reading) -> list[Costed]: ...


class Chains:
    """Bounds of sets of classes that have to be in memory, each worked out once.

    kernels: of a graph, at most. prune: whether a bound is of any use.
    """

    def __init__(self, storage: Storage, priced: Priced, kernels: int, prune: bool) -> None:
        self.storage, self.priced, self.kernels, self.prune = storage, priced, kernels, prune
        self.d, self.target = storage.d, storage.target
        self.gap_us = self.target.costs.gap_us
        self.worked_out: dict[Any, Any] = {}  # as `once` has it
        self.chains: dict[tuple[Form, int], tuple[float, float]] = {}
        self.least: dict[tuple[frozenset[Form], int], tuple[float, float]] = {}
        self.apart: dict[frozenset[Form], float] = {}

    @once
    def least_kernels(self, required: frozenset[Form]) -> int:
        """The least number of kernels for having these classes in memory, up to one more than there may be: those of
        the longest chain, and one for two classes of the same shape, but for outputs."""
        if not self.prune:
            return 0
        longest = max(map(self.shortest_chain, required), default=0)
        shapes = Counter(f.dims for f in required if f not in self.d.outputs)
        return max(longest, sum((n + 1) // 2 for n in shapes.values()))

    @once
    def shortest_chain(self, f: Form) -> int:
        """The least number of kernels of which one makes this class and each needs what another makes."""
        most = self.kernels + 1
        return next((k for k in range(1, most) if self.can_make(f, k)), most)

    @once
    def can_make(self, f: Form, kernels: int) -> bool:
        """Whether a chain of so many kernels ends with this class."""
        return kernels > 0 and any(
            all(self.can_make(g, kernels - 1) for g in r.needs) for r in self.priced.readings((f,))
        )

    def least_us(self, required: frozenset[Form], kernels: int, enough: float) -> float:
        """A lower bound for having these classes in memory by so many kernels; any bound above `enough` will do."""
        us, asked = self.least.get((required, kernels), (0.0, -math.inf))
        if us > enough or asked >= enough:
            return us
        us = self.apart_us(required, enough)
        for f in sorted(required, key=lambda f: f.key):  # whichever comes first may be enough
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
        traffic = self.target.launch_us + self.storage.traffic_us(tuple(required))
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
        for r in self.priced.readings((f,)) if self.can_make(f, kernels) else ():
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
            self.priced.costed(r)
        return r.us + before

    @once
    def cheapest_us(self, f: Form) -> float:
        """Of the cheapest kernel for this class alone."""
        least = math.inf
        for r in sorted(self.priced.readings((f,)), key=lambda r: r.us):
            if r.us >= least:
                break
            self.priced.costed(r)
            least = min(least, r.us)
        return least
