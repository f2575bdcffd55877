"""Plans that need no search: the program as written, and its operators fused one after the other where that pays.

The exhaustive search starts from them. They bound what is worth looking at, and they are what there is of a program so
long that time ends the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Protocol

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.decompose import Decomposition, Node
from mirage_cli.ir.placement import InexpressibleError
from mirage_cli.search.expand import Expansion, Space
from mirage_cli.search.roles import Costed

MAX_TOGETHER = 5
"""Classes that one kernel may put into memory, at most; of the exhaustive search only outputs, beyond two."""

Kernels = dict[tuple[Form, ...], Costed]
"""The kernels of a plan, by the classes that they put into memory."""


class Planner(Protocol):
    """What knows the plans of one kernel."""

    d: Decomposition
    space: Space
    gap_us: float

    def plans_of(self, e: Expansion) -> list[Costed]: ...


def as_written(planner: Planner) -> Kernels:
    """One library or trivial kernel per operator, in order; masks and constants, which PyTorch users write inline too,
    go into the kernel that reads them. Raises InexpressibleError."""
    d, types = planner.d, planner.space.types
    kernels: Kernels = {}

    def in_memory(c: Form) -> bool:
        return d.is_input(c) or (types[c] == "float" and bool(c.dims))

    def make(f: Form) -> None:
        if (f,) in kernels or (d.is_input(f) and f not in d.outputs):
            return
        e = folded(planner, (f,), in_memory)
        for leaf in e.leaves:
            if leaf is not f:
                make(leaf)
        found = planner.plans_of(e)
        if not found:
            raise InexpressibleError("an operator of the program fits no kernel")
        library = [c for c in found if c.plan.kernels[0].kind == "library"]
        kernels[f,] = min(library or found, key=lambda c: (len(c.plan.kernels), c.us))

    for f in d.outputs:
        make(f)
    return kernels


def fused(planner: Planner, written: Kernels) -> Kernels:
    """From the program as written: intermediates are computed anew by what reads them, and kernels that may be one are
    made one, each where it is predicted to be faster, until nothing is. In order."""
    kernels, known = dict(written), dict[tuple[tuple[Form, ...], tuple[Form, ...]], Costed | None]()

    def kernel(targets: tuple[Form, ...], memory: frozenset[Form]) -> Costed | None:
        try:
            e = folded(planner, targets, lambda c: planner.d.is_input(c) or (c in memory and c not in targets))
        except InexpressibleError:
            return None
        key = targets, e.leaves
        if key not in known:
            known[key] = min(planner.plans_of(e), key=lambda c: c.us, default=None)
        return known[key]

    outputs, gap_us = planner.d.outputs, planner.gap_us
    while _without_one(kernels, outputs, kernel, gap_us) or _with_two_in_one(kernels, outputs, kernel, gap_us):
        pass
    in_order = ordered(kernels.values())
    assert in_order is not None, "every step keeps an order"
    return {c.plan.targets: c for c in in_order}


Make = Callable[[tuple[Form, ...], frozenset[Form]], Costed | None]
"""The cheapest kernel for these classes, with these in memory; None where there is none."""


def _without_one(kernels: Kernels, outputs: Sequence[Form], kernel: Make, gap_us: float) -> bool:
    """Drops the first intermediate without which the plan is faster."""
    memory = frozenset(f for targets in kernels for f in targets)
    for targets, own in kernels.items():
        f, *others = targets
        if others or f in outputs:
            continue
        readers = {t: kernel(t, memory - {f}) for t, c in kernels.items() if f in c.plan.leaves and t != targets}
        made = {t: c for t, c in readers.items() if c is not None}
        before = own.us + gap_us + sum(kernels[t].us for t in readers)
        if len(made) == len(readers) and sum(c.us for c in made.values()) < before:
            changed = {t: c for t, c in (kernels | made).items() if t != targets}
            if ordered(changed.values()) is not None:
                kernels.clear()
                kernels.update(changed)
                return True
    return False


def _with_two_in_one(kernels: Kernels, outputs: Sequence[Form], kernel: Make, gap_us: float) -> bool:
    """Makes the first two kernels one that are faster as one."""
    memory = frozenset(f for targets in kernels for f in targets)
    for (a, first), (b, second) in combinations(kernels.items(), 2):
        alike = a[0].dims == b[0].dims or {*a, *b} <= set(outputs)
        near = {*first.plan.leaves, *a} & {*second.plan.leaves, *b}
        if not alike or not near or len(a) + len(b) > MAX_TOGETHER:
            continue
        made = kernel((*a, *b), memory)
        if made is not None and made.us < first.us + second.us + gap_us:
            changed = {t: c for t, c in kernels.items() if t not in (a, b)} | {(*a, *b): made}
            if ordered(changed.values()) is not None:
                kernels.clear()
                kernels.update(changed)
                return True
    return False


def ordered(kernels: Iterable[Costed]) -> list[Costed] | None:
    """Every kernel after those whose results it reads; None where they wait for each other."""
    left = list(kernels)
    missing = {f for c in left for f in c.plan.targets}
    found: list[Costed] = []
    while left:
        ready = [c for c in left if not (missing - set(c.plan.targets)) & set(c.plan.leaves)]
        if not ready:
            return None
        found += ready
        missing -= {f for c in ready for f in c.plan.targets}
        left = [c for c in left if c not in ready]
    return found


def folded(planner: Planner, targets: tuple[Form, ...], in_memory: Callable[[Form], bool]) -> Expansion:
    """One kernel for these classes by the program's own operators, as far as they are such, from what is in memory.

    Raises InexpressibleError.
    """
    chosen: dict[Form, Node] = {}
    leaves: set[Form] = set()

    def renamed(n: Node) -> list[Form]:
        return [a for s in n.steps if s.op == "rename" for a in s.args if isinstance(a, Form)]

    def add(g: Form, path: frozenset[Form]) -> bool:
        """Choose how to make a class without what is being made with it. False where there is no way."""
        if g in chosen:
            return True
        options = planner.space.options(g)
        wanted = [n for n in options if n.origin == "program" and all(map(in_memory, renamed(n)))]
        for node in (*wanted, *(n for n in options if not renamed(n))):
            inline = [c for c in node.children if not (in_memory(c) and (c is not g or planner.d.is_input(c)))]
            if not any(c in path or c is g for c in inline) and all(add(c, path | {g}) for c in inline):
                leaves.update(c for c in node.children if c not in inline)
                chosen[g] = node
                return True
        return False

    if not all(add(f, frozenset()) for f in targets):
        raise InexpressibleError("an operator of the program needs its own result")
    return Expansion(targets, tuple(chosen.items()), tuple(sorted(leaves, key=lambda g: g.key)))


def predicted_us(kernels: Mapping[tuple[Form, ...], Costed], gap_us: float) -> float:
    """Of a plan: its kernels, and the gaps between them."""
    return sum(c.us for c in kernels.values()) + gap_us * max(len(kernels) - 1, 0)
