"""Plans that need no search: the program as written, its operators fused one after the other where that pays, and what
kernels reduce then stored where that does.

The exhaustive search starts from them. They bound what is worth looking at, and they are what there is of a program so
long that time ends the search. What it finds is improved by the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Protocol

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.graph import Decomposition, Node
from mirage_cli.ir.placement import InexpressibleError
from mirage_cli.search.expand import Expansion, Space
from mirage_cli.search.roles import Costed

MAX_TOGETHER = 24
"""Classes that one kernel may put into memory, at most; of the exhaustive search only outputs, beyond two."""
MANY = 60
"""Kernels as written, beyond which they are not fused one by one from all of them: each fusion tries all."""

Kernels = dict[tuple[Form, ...], Costed]
"""The kernels of a plan, by the classes that they put into memory."""

Made = dict[tuple[tuple[Form, ...], ...] | Expansion, Costed | None]
"""The cheapest kernel by the classes that it puts into memory and those that its foldings read, or by what it computes;
None where there is none."""


class SearchEndedError(Exception):
    """The budget is spent, or the user interrupted."""


class Planner(Protocol):
    """What implements one kernel. Its calls raise SearchEndedError."""

    d: Decomposition
    space: Space
    gap_us: float
    made: Made

    def implemented(self, e: Expansion) -> list[Costed]: ...


def as_written(planner: Planner) -> Kernels:
    """One library or trivial kernel per operator, in order; masks and constants, which PyTorch users write inline too,
    go into the kernel that reads them. Raises InexpressibleError."""
    d, types = planner.d, planner.space.types
    kernels: Kernels = {}

    def stored(f: Form) -> bool:
        """Whether a kernel of its own makes it: an integer, or a number without axes, only where it is reduced."""
        reduced = any(n.reduces for n in planner.space.options[f])
        return reduced if types[f] == "int" else types[f] == "float" and (bool(f.dims) or reduced)

    def make(f: Form, readers: frozenset[Form] = frozenset()) -> None:
        """readers: those whose kernels come behind this one, and whose results it cannot read."""
        if (f,) in kernels or (d.is_input(f) and f not in d.outputs):
            return
        later = readers | {f}
        e = folded(planner, (f,), lambda c: d.is_input(c) or (stored(c) and c not in later))
        for leaf in e.leaves:
            if leaf is not f:
                make(leaf, later)
        found = planner.implemented(e)
        if not found:
            raise InexpressibleError("an operator of the program fits no kernel")
        library = [c for c in found if c.implementation.kernels[0].kind == "library"]
        kernels[f,] = min(library or found, key=lambda c: (len(c.implementation.kernels), c.us))

    for f in d.outputs:
        make(f)
    return kernels


def fused(planner: Planner, written: Kernels) -> Kernels:
    """From the program as written: libraries give way to kernels, intermediates are computed anew by what reads them,
    and kernels that may be one are made one, each where it is predicted to be faster, until nothing is, or as far as
    time allows. In order.

    It is done twice, first from where no intermediate is left but what is reduced, which takes few steps, then from all
    of them, unless they are many. The faster of the two counts.
    """
    kernels, kernel = dict(written), _maker(planner)
    plans = [kernels]
    with suppress(SearchEndedError):
        memory = frozenset(f for targets in kernels for f in targets)
        for targets, own in written.items():
            other = kernel(targets, memory) if own.implementation.kernels[0].kind == "library" else None
            if (
                other is not None
                and other.us < own.us
                and {*other.implementation.leaves} <= {*own.implementation.leaves}
            ):
                kernels[targets] = other
        few = dict(kernels)
        if _changed(few, [_without_all(few, planner, kernel)], planner.gap_us):
            plans.append(few)
            _fuse(few, planner, kernel)
        if len(plans) == 1 or len(kernels) <= MANY:
            _fuse(kernels, planner, kernel)
    return _in_order(min(plans, key=lambda x: predicted_us(x, planner.gap_us)))


def improved(planner: Planner, kernels: Kernels) -> Kernels:
    """From any plan: its kernels are fused where that is predicted to be faster, and what a kernel reduces, or makes
    anew at several places, is put into memory first, by a kernel of its own, where that is, and so on, as far as time
    allows. In order.

    What is fused one by one may have passed by the second: the sums along one axis of a window that is summed along
    two. What is searched within bounds may have passed by both.
    """
    kernels, kernel = dict(kernels), _maker(planner)
    gap_us = planner.gap_us
    with suppress(SearchEndedError):
        _fuse(kernels, planner, kernel)
        while _changed(kernels, _with_one_stored(kernels, planner, kernel), gap_us) or _changed(
            kernels, _with_one_in_place(kernels, planner, kernel), gap_us
        ):
            _fuse(kernels, planner, kernel)
    return _in_order(kernels)


def _maker(planner: Planner) -> Make:
    def kernel(targets: tuple[Form, ...], memory: frozenset[Form]) -> Costed | None:
        try:
            ways = foldings(planner, targets, lambda c: planner.d.is_input(c) or (c in memory and c not in targets))
        except InexpressibleError:
            return None
        key = targets, *(e.leaves for e in ways)
        if key not in planner.made:
            found = (c for e in ways for c in planner.implemented(e))
            planner.made[key] = min(found, key=lambda c: c.us, default=None)
        return planner.made[key]

    return kernel


@dataclass(frozen=True, slots=True)
class Change:
    """Kernels of a plan that go, and those that come in their places, each priced when it is asked for; None where it
    does not fit."""

    gone: tuple[tuple[Form, ...], ...]
    come: Mapping[tuple[Form, ...], Callable[[], Costed | None]]

    def within(self, us: float, gap_us: float) -> Kernels | None:
        """What comes, if all of it fits and takes less than these microseconds. Kernels behind the one with which it
        takes as long are not priced."""
        found: Kernels = {}
        for targets, priced in self.come.items():
            if (c := priced()) is None:
                return None
            found[targets] = c
            if predicted_us(found, gap_us) >= us:
                return None
        return found


def _fuse(kernels: Kernels, planner: Planner, kernel: Make) -> None:
    gap_us = planner.gap_us
    while _changed(kernels, _without_one(kernels, planner, kernel), gap_us) or _changed(
        kernels, _with_two_in_one(kernels, planner, kernel), gap_us
    ):
        pass


def _changed(kernels: Kernels, changes: Iterable[Change], gap_us: float) -> bool:
    """Makes the first change with which the plan is faster. Whether there is one."""
    for change in changes:
        before = predicted_us({t: kernels[t] for t in change.gone}, gap_us)
        if (come := change.within(before, gap_us)) is None:
            continue
        changed = {t: c for t, c in (kernels | come).items() if t in come or t not in change.gone}
        if ordered(changed.values()) is not None:
            kernels.clear()
            kernels.update(changed)
            return True
    return False


def _in_order(kernels: Kernels) -> Kernels:
    in_order = ordered(kernels.values())
    assert in_order is not None, "every step keeps an order"
    return {c.implementation.targets: c for c in in_order}


Make = Callable[[tuple[Form, ...], frozenset[Form]], Costed | None]
"""The cheapest kernel for these classes, with these in memory; None where there is none."""


def _without_all(kernels: Kernels, planner: Planner, kernel: Make) -> Change:
    """Without any intermediate but what is reduced: what reads the others computes them anew."""
    d, options = planner.d, planner.space.options
    kept = [t for t in kernels if any(f in d.outputs or any(n.reduces for n in options[f]) for f in t)]
    memory = frozenset(f for t in kept for f in t)

    def made(targets: tuple[Form, ...]) -> Costed | None:
        own, other = kernels[targets], kernel(targets, memory)
        reads = all(d.is_input(f) or f in memory for f in own.implementation.leaves)
        return own if reads and (other is None or own.us < other.us) else other

    return Change(tuple(kernels), {t: partial(made, t) for t in kept})


def _without_one(kernels: Kernels, planner: Planner, kernel: Make) -> Iterator[Change]:
    """Without an intermediate, which its readers compute anew; of kernels that were made one, there may be none. Copies
    come first: while parts of a product are copied, it seems faster to make each part by a product of its own."""
    memory = frozenset(f for targets in kernels for f in targets)
    for targets, f in sorted(((t, f) for t in kernels for f in t), key=lambda x: not _is_copy(planner, x[1])):
        if f in planner.d.outputs:
            continue
        readers = [t for t, c in kernels.items() if f in c.implementation.leaves and t != targets]
        others = tuple(x for x in targets if x is not f)
        come = [*readers, others] if others else readers
        yield Change((targets, *readers), {t: partial(kernel, t, memory - {f}) for t in come})


def _is_copy(planner: Planner, f: Form) -> bool:
    """Whether the program makes it by reading something at other places."""
    return any(n.moved and n.origin == "program" for n in planner.space.options[f])


def _with_two_in_one(kernels: Kernels, planner: Planner, kernel: Make) -> Iterator[Change]:
    """With two kernels made one: first those that are near, then those whose products have an operand in common."""
    memory = frozenset(f for targets in kernels for f in targets)
    near, alike = list[tuple[Costed, Costed]](), list[tuple[Costed, Costed]]()
    for first, second in combinations(kernels.values(), 2):
        a, b = first.implementation.targets, second.implementation.targets
        if len(a) + len(b) > MAX_TOGETHER:
            continue
        if _are_near(first, second, planner.d.outputs):
            near.append((first, second))
        elif planner.space.multiply_alike(a[0], b[0]):
            alike.append((first, second))
    for first, second in [*near, *alike]:
        a, b = first.implementation.targets, second.implementation.targets
        yield Change((a, b), {(*a, *b): partial(_as_one, planner, kernel, first, second, memory)})


def _as_one(planner: Planner, kernel: Make, first: Costed, second: Costed, memory: frozenset[Form]) -> Costed | None:
    """The cheapest kernel in the place of two."""
    targets = *first.implementation.targets, *second.implementation.targets
    ways = kernel(targets, memory), _side_by_side(planner, first, second)
    return min(filter(None, ways), key=lambda c: c.us, default=None)


def _are_near(first: Costed, second: Costed, outputs: Sequence[Form]) -> bool:
    """Whether two of three hold for two kernels: they have the same axes, they are for outputs alone, they have a class
    in common. Or one reduces what the other stores."""
    one, other = first.implementation, second.implementation
    a, b = one.targets, other.targets
    same, written = a[0].dims == b[0].dims, {*a, *b} <= {*outputs}
    common = bool({*one.leaves, *a} & {*other.leaves, *b})
    reduced = any(
        reader.targets[0].dims < writer.targets[0].dims and {*writer.targets} & {*reader.leaves}
        for reader, writer in ((one, other), (other, one))
    )
    return same + written + common >= 2 or reduced


def _side_by_side(planner: Planner, first: Costed, second: Costed) -> Costed | None:
    """The cheapest kernel that computes what these two do, as they do; None where they do not agree, or one reads what
    the other stores."""
    a, b = first.implementation.expansion, second.implementation.expansion
    chosen = {**dict(a.chosen), **dict(b.chosen)}
    leaves = {*a.leaves, *b.leaves}
    if any(chosen[f] is not n for f, n in a.chosen) or leaves & chosen.keys():
        return None
    e = Expansion((*a.targets, *b.targets), tuple(chosen.items()), tuple(sorted(leaves, key=lambda f: f.key)))
    if e not in planner.made:
        planner.made[e] = min(planner.implemented(e), key=lambda c: c.us, default=None)
    return planner.made[e]


def _with_one_stored(kernels: Kernels, planner: Planner, kernel: Make) -> Iterator[Change]:
    """With a class in memory that kernels reduce, or make anew where it is read: put there by a kernel of its own, or
    by one that makes others of the same positions. What the latter made for these kernels alone, it no longer does."""
    memory = frozenset(f for targets in kernels for f in targets)
    inside = {t: _storable(planner, t, memory) for t in kernels}
    for f in dict.fromkeys(f for some in inside.values() for f in some):
        readers = {t: partial(kernel, t, memory | {f}) for t, some in inside.items() if f in some}
        yield Change((*readers,), {(f,): partial(kernel, (f,), memory), **readers})
        larger = [t for t in kernels if t not in readers and any(f.dims < x.dims for x in t)]
        behind = {**kernels, **{t: priced() for t, priced in readers.items()}} if larger else {}
        read = {x for c in behind.values() if c is not None for x in c.implementation.leaves}
        for t in larger:
            own = tuple(x for x in t if x in planner.d.outputs or x in read)
            if own and f.dims < own[0].dims and len(own) < MAX_TOGETHER:
                beside = (*own, f)
                yield Change((t, *readers), {beside: partial(kernel, beside, memory - {*t}), **readers})


def _with_one_in_place(kernels: Kernels, planner: Planner, kernel: Make) -> Iterator[Change]:
    """With a class in memory, in the place of an intermediate that is made of it: a product in 16 bits, say, in the
    place of what is made of it in float32. Only what the kernel of the intermediate reduces."""
    memory = frozenset(f for targets in kernels for f in targets)
    for targets in kernels:
        f, *others = targets
        if not others and f not in planner.d.outputs:
            readers = [t for t, c in kernels.items() if f in c.implementation.leaves]
            for g in _storable(planner, targets, memory):
                come = {t: partial(kernel, t, memory - {f} | {g}) for t in readers}
                yield Change((targets, *readers), {(g,): partial(kernel, (g,), memory - {f}), **come})


def _storable(planner: Planner, targets: tuple[Form, ...], memory: frozenset[Form]) -> list[Form]:
    """What a kernel for these classes reduces, or makes anew at the places where it is read, with these in memory."""
    d, space = planner.d, planner.space
    try:
        e = folded(planner, targets, lambda c: d.is_input(c) or (c in memory and c not in targets))
    except InexpressibleError:
        return []
    reduced = [f for f, n in e.chosen if n.reduces and f in space.leaves]
    anew = [f for at, _ in e.chosen for n in space.options[at] for f in n.moved if f.dims and space.types[f] == "float"]
    return [f for f in dict.fromkeys((*reduced, *anew)) if f not in targets and f not in memory and not d.is_input(f)]


def ordered(kernels: Iterable[Costed]) -> list[Costed] | None:
    """Every kernel after those whose results it reads; None where they wait for each other. A result that is an input,
    read at other places, is read from that."""
    left = list(kernels)
    missing = {f for c in left for f in c.implementation.targets if f.atom is None or f.atom.kind != "input"}
    found: list[Costed] = []
    while left:
        ready = [c for c in left if not (missing - set(c.implementation.targets)) & set(c.implementation.leaves)]
        if not ready:
            return None
        found += ready
        missing -= {f for c in ready for f in c.implementation.targets}
        left = [c for c in left if c not in ready]
    return found


def folded(planner: Planner, targets: tuple[Form, ...], in_memory: Callable[[Form], bool]) -> Expansion:
    """One kernel for these classes by the program's own operators, as far as they are such, from what is in memory.

    Raises InexpressibleError.
    """
    return foldings(planner, targets, in_memory)[0]


def foldings(planner: Planner, targets: tuple[Form, ...], in_memory: Callable[[Form], bool]) -> list[Expansion]:
    """As `folded`; and where there are ways with fewer passes, with these: what the program divides by a sum, and then
    sums, is summed first and divided behind it. Raises InexpressibleError."""
    folding = _Folding(planner, in_memory)
    if not folding.make(targets, folding.own) and not folding.make(targets, folding.any):
        raise InexpressibleError("an operator of the program needs its own result")
    own = folding.expansion(targets)
    return [own, folding.expansion(targets)] if folding.choose_fewer_passes() else [own]


class _Folding:
    """Chooses how a kernel makes each class. What a choice computes in the kernel has been chosen before it, so that
    none needs its own result, and each class is looked at a few times at most."""

    def __init__(self, planner: Planner, in_memory: Callable[[Form], bool]) -> None:
        self.is_input, self.options, self.in_memory = planner.d.is_input, planner.space.options, in_memory
        self.space = planner.space
        self.chosen: dict[Form, Node] = {}

    def own(self, f: Form) -> list[Node]:
        """The program's nodes; a renaming is a load, and needs what it renames in memory."""
        return [n for n in self.options[f] if n.origin == "program" and all(map(self.in_memory, n.moved))]

    def any(self, f: Form) -> list[Node]:
        return [*self.own(f), *(n for n in self.options[f] if not n.moved)]

    def inside(self, f: Form, node: Node) -> list[Form]:
        """What the kernel computes for a node of f; it reads the other children."""
        return [c for c in node.children if not (self.in_memory(c) and (c is not f or self.is_input(c)))]

    def make(self, targets: tuple[Form, ...], nodes_of: Callable[[Form], list[Node]]) -> bool:
        """Whether these nodes make the targets, with what is chosen already."""
        ways: dict[Form, list[tuple[Node, list[Form]]]] = {}
        todo = list(targets)
        for f in todo:
            if f not in ways and f not in self.chosen:
                ways[f] = [(n, self.inside(f, n)) for n in nodes_of(f)]
                todo += [c for _, inside in ways[f] for c in inside]
        while self.choose(ways, "program") or self.choose(ways):
            pass
        return all(f in self.chosen for f in targets)

    def choose(self, ways: dict[Form, list[tuple[Node, list[Form]]]], origin: str | None = None) -> bool:
        """Chooses a node of this origin for each class that has one whose children are chosen, the deepest class first;
        of any origin, for one class only: the program's own nodes may go on from there."""
        before = len(ways)
        for f in [*reversed(ways)]:
            ready = (n for n, inside in ways[f] if origin in (None, n.origin) and all(c in self.chosen for c in inside))
            if (node := next(ready, None)) is not None:
                self.chosen[f] = node
                del ways[f]
                if origin is None:
                    break
        return len(ways) < before

    def choose_fewer_passes(self) -> bool:
        """Chooses, for classes in the order of computation, nodes that wait for fewer reductions, made of what was
        chosen before them. Whether there are any."""
        passes: dict[Form, int] = {}
        before = dict(self.chosen)
        for f, own in before.items():
            ways = [own]
            if own.reduces:
                ways += (
                    n for n in self.options[f] if not n.moved and not (self.space.exceeds(n) or self.space.enlarges(n))
                )
            ready = (n for n in ways if all(c in passes for c in self.inside(f, n)))
            self.chosen[f] = min(ready, key=lambda n: n.passes(passes))
            passes[f] = self.chosen[f].passes(passes)
        return self.chosen != before

    def expansion(self, targets: tuple[Form, ...]) -> Expansion:
        """Of what the targets need of it."""
        needed: dict[Form, Node] = {}
        leaves: set[Form] = set()

        def need(f: Form) -> None:
            if f not in needed:
                inside = self.inside(f, self.chosen[f])
                for c in inside:
                    need(c)
                leaves.update(c for c in self.chosen[f].children if c not in inside)
                needed[f] = self.chosen[f]

        for f in targets:
            need(f)
        return Expansion(targets, tuple(needed.items()), tuple(sorted(leaves, key=lambda g: g.key)))


def predicted_us(kernels: Mapping[tuple[Form, ...], Costed], gap_us: float) -> float:
    """Of a plan: its kernels, and the gaps between them."""
    return sum(c.us for c in kernels.values()) + gap_us * max(len(kernels) - 1, 0)
