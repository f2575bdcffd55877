"""Loops in phases: positions that are a few apart form a block, and an iteration has a block of each phase.

    sum(X[m, k] * f(W[k//2, n], index(k) % 2); k)
        -->  sum(X[m, 2*k] * f(W[k, n], 0) + X[m, 2*k + 1] * f(W[k, n], 1); k)      k half as long

Sums do not ask for the order of their terms. In one phase an index has no remainder that differs by lane: two numbers
of 4 bits that share a byte are each read from blocks of whole bytes, and what chooses between them is a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from mirage_cli.ir.access import Index, dims_of, index, steady
from mirage_cli.ir.instances import Instance, UnknownError, simpler
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import place
from mirage_cli.ir.program import Arg, Eqn, Tensor, live_eqns
from mirage_cli.ir.reach import limits
from mirage_cli.ir.schedule import MIN_DOT, KernelSchedule

MOST = 8
"""Phases of a loop: as many numbers as share a byte, at most."""


@dataclass(frozen=True, slots=True)
class Phased:
    """A kernel for each phase, each with the μGraph in which it stands, whose tensors keep their sizes. What has the
    same name in several is the same value. schedule, sizes: as all of them have them."""

    phases: tuple[tuple[MuGraph, Kernel], ...]
    schedule: KernelSchedule
    sizes: Mapping[str, int]


def phased(graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> Phased:
    """The kernel in the phases of one of its loops' dimensions, or as it is: a single phase."""
    for d in kernel.with_role("split", "loop"):
        n = _period(kernel, d, schedule.tile(d))
        if n > 1 and sizes[d] % n == 0 and _may_be(graph, kernel, d):
            try:
                return _in_phases(graph, kernel, schedule, sizes, d, n)
            except UnknownError:
                continue
    return Phased(((graph, kernel),), schedule, sizes)


def _period(kernel: Kernel, d: str, tile: int) -> int:
    """How many positions in a row some load reads one element for, as far as a block of each phase is large enough."""
    atoms = (a for x in kernel.loads for i in x.access for a, _ in i.terms)
    return max(
        (n for a in atoms if 1 < (n := steady(a, d)) <= MOST and tile % n == 0 and tile >= n * MIN_DOT), default=1
    )


def _may_be(graph: MuGraph, kernel: Kernel, d: str) -> bool:
    """Whether all that the kernel does with a dimension is to sum over it, in any order."""
    reduced = [e for e in kernel.body if OPS[e.op].kind in ("reduction", "contraction") and d in e.axes]
    looked_up = any(d in dims_of(x.access) for x in kernel.lookups)
    stored = any(d in s.dims for s in kernel.stores)
    dynamic = any(r.dim == d for r in graph.dynamic)
    limited = any(not x.steady for loop in place(kernel).loops for x in limits(kernel, loop))
    return all(OPS[e.op].joins == "add" for e in reduced) and not (looked_up or stored or dynamic or limited)


def _in_phases(
    graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int], d: str, n: int
) -> Phased:
    names = {*sizes, *kernel.value_dims, *graph.tensors()}
    whole = next(x for i in range(len(names) + 1) if (x := f"{d}_whole{i or ''}") not in names)

    def moved(some: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(replace(t, dims=tuple(whole if a == d else a for a in t.dims)) for t in some)

    shared = _Shared(kernel, d, n, sizes[d], names)
    found: list[tuple[MuGraph, Kernel]] = []
    for phase in range(n):
        one = _Phase(shared, phase).kernel()
        kernels = tuple(one if k.name == kernel.name else k for k in graph.kernels)
        tensors = {"inputs": moved(graph.inputs), "outputs": moved(graph.outputs), "buffers": moved(graph.buffers)}
        found.append((replace(graph, kernels=kernels, **tensors), one))
    tiles = tuple((a, t // n if a == d else t) for a, t in schedule.tiles)
    return Phased(tuple(found), replace(schedule, tiles=tiles), {**sizes, d: sizes[d] // n, whole: sizes[d]})


@dataclass(frozen=True, slots=True)
class _Shared:
    """What phases have in common. taken: names. numbered: of loads and equations, once each."""

    kernel: Kernel
    dim: str
    count: int
    size: int
    taken: set[str]
    numbered: dict[object, str] = field(default_factory=dict[object, str])

    def name(self, key: object, wanted: str, phase: int) -> str:
        """What is made so, under one name in all phases."""
        if key not in self.numbered:
            new = wanted
            while phase and new in self.taken:
                new += f"_{phase}"
            self.taken.add(new)
            self.numbered[key] = new
        return self.numbered[key]


class _Phase(Instance):
    """One phase. known: what values of the kernel are in it, under their names: another value, or a number."""

    def __init__(self, shared: _Shared, phase: int) -> None:
        self.positions: dict[str, Index] = {}
        names = {shared.dim: index({shared.dim: shared.count}, phase)}
        super().__init__(names, {shared.dim: shared.size}, self.positions)
        self.shared, self.phase = shared, phase
        self.known: dict[str, Arg] = {}
        self.dims = dict(shared.kernel.value_dims)

    def kernel(self) -> Kernel:
        k = self.shared.kernel
        loads = {x.out: x for x in map(self.load, k.loads)}
        body = {e.out: e for e in self.equations(k.body)}
        stored = {s.value for s in k.stores}
        eqns = tuple(live_eqns(body.values(), stored))
        used = {v for e in eqns for v in e.values} | stored
        return replace(k, loads=tuple(x for x in loads.values() if x.out in used), body=eqns)

    def load(self, x: Load) -> Load:
        access = tuple(i.within(self.names) for i in x.access)
        if set(dims_of(access)) != set(x.dims):
            raise UnknownError
        self.known[x.out] = self.shared.name((x.buffer, access), x.out, self.phase)
        return Load(str(self.known[x.out]), x.buffer, access)

    def equations(self, body: tuple[Eqn, ...]) -> Iterator[Eqn]:
        for e in body:
            args = e.arguments(self.known.__getitem__)
            folded = self.folded(e, args)
            if isinstance(folded, Index):
                self.positions[e.out], folded = folded, None
            if folded is None:
                yield self.equation(e, args)
            elif isinstance(folded, str) and {*self.dims[folded]} != {*e.dims}:
                raise UnknownError
            else:
                self.known[e.out] = folded

    def equation(self, e: Eqn, args: tuple[Arg, ...]) -> Eqn:
        """The equation in this phase. Raises UnknownError where a number is in the place of a value."""
        op, args = simpler(e, args)
        axes = (str(self.at[e.out]),) if e.op == "index" else e.axes
        summed = self.shared.dim in e.axes  # into one accumulator
        name = e.out if summed else self.shared.name((op, args, axes, e.dims), e.out, self.phase)
        self.known[e.out], self.dims[name] = name, e.dims
        if e.out in self.at:
            self.positions[name] = self.at[e.out]
        return replace(e, out=name, op=op, args=args, axes=axes)
