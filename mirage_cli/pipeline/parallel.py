"""Tensor parallelism: one axis of a program cut over several GPUs, and what they have to add up between them.

    Program, GPUs ─► Split for each axis: a program for each GPU, an all-reduce, a program, ...

Axes have names, so one name says how every tensor is cut. A value that has the axis is cut along it. A reduction over
the axis leaves a partial result on each GPU, which stays partial through what is linear in it; elsewhere it is joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from mirage_cli.ir.access import Index
from mirage_cli.ir.derived import lower
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES, INTEGERS, Eqn, Program, Tensor, live_eqns
from mirage_cli.pipeline.roofline import Roofline, bounds
from mirage_cli.target.gpus import Target


@dataclass(frozen=True, slots=True)
class Join:
    """An all-reduce of `tensor`: what all GPUs have of it, joined by `op` (a row of OPS: add, maximum, minimum).

    Partial sums of half precision travel in float32, as a `dot` adds them: one may overflow where the sum does not.
    Those of int8 travel in int32. The sum is rounded to `dtype` behind that, by a kernel of its own.
    """

    tensor: str
    op: str
    dtype: str
    elements: int

    @property
    def travels_as(self) -> str:
        wide = "int32" if self.dtype in INTEGERS else "float32"
        return wide if OPS[self.op].linear and DTYPE_BYTES[self.dtype] < DTYPE_BYTES[wide] else self.dtype

    @property
    def moved_bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.travels_as]

    def us(self, gpus: int, target: Target) -> float:
        """`join_us` + 2 (g - 1) / g · bytes / the links' rate: a ring sends each byte so many times (Patarasuk and Yuan
        2009, "Bandwidth optimal all-reduce algorithms"). A kernel that rounds is launched."""
        ring_us = 2 * (gpus - 1) / gpus * self.moved_bytes / target.link_bytes_per_us
        return target.join_us + ring_us + target.launch_us * (self.travels_as != self.dtype)


@dataclass(frozen=True, slots=True)
class Stage:
    """What each GPU computes, and what is joined behind it. program: at one GPU's sizes; None where it has nothing."""

    program: Program | None
    joins: tuple[Join, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """A program with an axis cut over GPUs. axes: that one, and those of tensors that it is the outer part of.

    kept: the outputs that each GPU has a part of.
    """

    axes: tuple[str, ...]
    gpus: int
    stages: tuple[Stage, ...]
    kept: tuple[str, ...]

    @property
    def joined_bytes(self) -> int:
        return sum(j.moved_bytes for s in self.stages for j in s.joins)

    def cost(self, target: Target) -> Cost:
        computed = [bounds(s.program, target) for s in self.stages if s.program]
        joined_us = sum(j.us(self.gpus, target) for s in self.stages for j in s.joins)
        return Cost(tuple(computed), joined_us)


@dataclass(frozen=True, slots=True)
class Cost:
    """The least that a split takes: what each GPU computes, one stage after the other, and what joins take."""

    computed: tuple[Roofline, ...]
    joined_us: float

    @property
    def us(self) -> float:
        return sum(b.us for b in self.computed) + self.joined_us


class UnsplittableError(Exception):
    """An axis that cannot be cut so, and why."""


def splits(program: Program, gpus: int, target: Target) -> tuple[list[tuple[Split, Cost]], dict[str, str]]:
    """Every way to cut one axis, the cheapest first, and why the other axes cannot be cut."""
    found: dict[tuple[str, ...], tuple[Split, Cost]] = {}
    refused: dict[str, str] = {}
    lowered = lower(program)
    for axis in lowered.sizes:
        try:
            ways = [_Cut(lowered, axis, gpus, late).split() for late in (True, False)]
        except UnsplittableError as error:
            refused[axis] = str(error)
            continue
        priced = min(((w, w.cost(target)) for w in ways), key=lambda x: x[1].us)
        found.setdefault(tuple(sorted(priced[0].axes)), priced)
    return sorted(found.values(), key=lambda x: x[1].us), refused


@dataclass(frozen=True, slots=True)
class State:
    """How GPUs hold a value: cut (each has its part), partial (to be joined by an operator), or whole.

    stage: in which it is known.
    """

    cut: bool = False
    join: str = ""
    stage: int = 0


class _Cut:
    """Follows one axis through a lowered program. late: partial results stay so as long as what reads them allows."""

    def __init__(self, program: Program, axis: str, gpus: int, late: bool) -> None:
        self.program, self.gpus, self.late = program, gpus, late
        self.axes = self.closure(axis)
        self.states: dict[str, State] = {}
        self.joined: dict[str, State] = {}
        self.numbers: dict[str, Fraction] = {}
        for t in program.inputs:
            self.states[t.name] = State(cut=bool(self.axes & set(t.dims)))

    def closure(self, axis: str) -> frozenset[str]:
        """The axis, with the axes of tensors whose outer part it is. Raises UnsplittableError."""
        p, sizes = self.program, self.program.sizes
        if p.parts or p.dynamic:
            raise UnsplittableError("outputs are parts of tensors" if p.parts else "a size is known at the call alone")
        accesses = list(p.accesses())
        axes, before = {axis}, set[str]()
        while axes != before:
            before = set(axes)
            for of, index in accesses:
                outer = _outer(of, index, sizes)
                if outer in axes or of in axes:
                    axes |= {of, outer} if outer else {of}
        found = frozenset(axes)
        for of, index in accesses:
            if not _stays_apart(of, index, found, sizes):
                raise UnsplittableError(f"{of} is read at {index}, which crosses the parts")
        if uneven := sorted(a for a in axes if sizes[a] % self.gpus):
            raise UnsplittableError(f"{uneven[0]} = {sizes[uneven[0]]} is no multiple of {self.gpus}")
        both = [name for name, v in p.values().items() if len(axes & set(v.dims)) > 1]
        if both:
            raise UnsplittableError(f"{both[0]} has two axes that would be cut")
        if any(isinstance(t.below, str) and t.below in axes for t in p.inputs):
            raise UnsplittableError("integers of an input count along it")
        return found

    def split(self) -> Split:
        for e in self.program.eqns:
            self.states[e.out] = self.state(e)
        outputs = [t.name for t in self.program.outputs]
        for name in outputs:
            if self.states[name].join:
                self.join(name)
        if all(not s.cut for s in self.states.values()):
            raise UnsplittableError("no tensor has it")
        kept = tuple(name for name in outputs if self.states[name].cut)
        return Split(tuple(d for d in self.program.order if d in self.axes), self.gpus, tuple(self.stages()), kept)

    # -- how each value is held

    def state(self, e: Eqn) -> State:
        row = OPS[e.op]
        if row.kind == "leaf":
            return self.leaf(e)
        values = [v for v in e.values if v not in self.numbers]
        cut = bool(self.axes & set(e.dims))
        reduced = row.kind in ("reduction", "contraction") and bool(self.axes & set(e.axes))
        partial = [v for v in values if self.states[v].join]
        if partial and not (self.late and not reduced and not cut and self.stays(e, values)):
            for v in partial:
                self.join(v)
            partial = []
        stage = max((self.at(v).stage for v in values), default=0)
        if partial:
            return State(join=self.states[partial[0]].join, stage=stage)
        return State(cut, row.joins if reduced else "", stage)

    def leaf(self, e: Eqn) -> State:
        """A position along the axis would count from 0 on every GPU; the size is the whole one's."""
        if e.op == "size":
            self.numbers[e.out] = Fraction(self.program.sizes[e.axes[0]])
        elif self.axes & e.acts_on:
            raise UnsplittableError("positions along it are compared")
        return State()

    def stays(self, e: Eqn, values: Sequence[str]) -> bool:
        """Whether the equation of the joined arguments is what joining the equation's results gives."""
        row = OPS[e.op]
        states = [self.states[v] for v in values]
        if any(not OPS[s.join].linear for s in states if s.join):
            return False
        if row.linear:
            return len(values) == len(e.args) and all(s.join for s in states)
        if row.kind == "rename" or (row.kind == "reduction" and row.joins and OPS[row.joins].linear):
            return bool(states[0].join)
        if row.growth == "product":
            return sum(bool(s.join) for s in states) == 1 and not any(s.cut for s in states)
        first = e.args[0]
        return (
            row.growth == "quotient"
            and [bool(s.join) for s in states] == [True] + [False] * (len(states) - 1)
            and (isinstance(first, str) and first == values[0])
        )

    def join(self, name: str) -> None:
        """The value is joined, and known whole in the next stage."""
        s = self.states[name]
        if name not in self.joined:
            self.joined[name] = s
        self.states[name] = State(stage=s.stage + 1)

    def at(self, name: str) -> State:
        return self.states[name]

    # -- what each GPU runs

    def stages(self) -> Iterator[Stage]:
        made = {
            e.out: self.joined[e.out].stage if e.out in self.joined else self.states[e.out].stage
            for e in self.program.eqns
        }
        for n in range(max(made.values(), default=0) + 1):
            joins = tuple(self.joins(n))
            program = self.stage_program(n, made)
            if program or joins:
                yield Stage(program, joins)

    def joins(self, n: int) -> Iterator[Join]:
        for name, s in self.joined.items():
            if s.stage == n:
                yield self.join_of(name, s)

    def join_of(self, name: str, s: State) -> Join:
        local, t = self.local_sizes(), self.tensor(name)
        return Join(name, s.join, t.dtype, prod(local[d] for d in t.dims))

    def tensor(self, name: str) -> Tensor:
        """A value as the stages behind the one that makes it read it."""
        known = {t.name: t for t in (*self.program.inputs, *self.program.outputs)}
        return known.get(name) or Tensor(name, self.program.values()[name].dims, self.program.dtype)

    def made(self, name: str) -> Tensor:
        """A value as its stage leaves it."""
        s, t = self.joined.get(name), self.tensor(name)
        return t if s is None else replace(t, dtype=self.join_of(name, s).travels_as)

    def local_sizes(self) -> dict[str, int]:
        return {d: n // self.gpus if d in self.axes else n for d, n in self.program.dims}

    def stage_program(self, n: int, made: Mapping[str, int]) -> Program | None:
        """The equations of one stage. Reads inputs and what stages before it made."""
        p, values = self.program, self.program.values()
        own = [e for e in p.eqns if made[e.out] == n and e.out not in self.numbers]
        read_later = {v for e in p.eqns if made[e.out] > n for v in e.values}
        outputs = {t.name for t in p.outputs}
        wanted = [e.out for e in own if e.out in outputs or e.out in read_later]
        eqns = [self.with_numbers(e) for e in live_eqns(own, wanted)]
        if not eqns:
            return None
        here = {e.out for e in eqns}
        inputs = {t.name for t in p.inputs}
        read = dict.fromkeys(v for e in eqns for v in e.values if v not in here)
        for v in read:
            if v not in inputs and (carried := values[v]) and isinstance(carried, Eqn) and carried.type != "float":
                raise UnsplittableError(f"{v}, which is no floating-point number, would pass from stage to stage")
        axes = {d for v in (*read, *here) for d in values[v].dims} | {a for e in eqns for a in e.acts_on}
        local = self.local_sizes()
        return replace(
            p,
            name=f"{p.name}_stage{n}",
            dims=tuple((d, local[d]) for d, _ in p.dims if d in axes),
            inputs=tuple(map(self.tensor, read)),
            eqns=tuple(eqns),
            outputs=tuple(map(self.made, wanted)),
            internals=p.internals & here,
        )

    def with_numbers(self, e: Eqn) -> Eqn:
        args = e.arguments(lambda v: self.numbers.get(v, v))
        return replace(e, args=args)


def _outer(of: str, index: Index, sizes: Mapping[str, int]) -> str | None:
    """The axis that counts blocks of another, one behind the other: h in `h*64 + d`, and n in `n`."""
    if not index.affine or index.offset or not index.terms:
        return None
    (axis, step), *rest = index.terms
    within = 1 + sum(c * (sizes[str(a)] - 1) for a, c in rest)
    fits = step >= within and all(c > 0 for _, c in rest) and step * sizes[str(axis)] == sizes.get(of)
    return str(axis) if fits else None


def _stays_apart(of: str, index: Index, axes: frozenset[str], sizes: Mapping[str, int]) -> bool:
    """Whether each GPU's part of these axes reads its own part of the tensor's axis, or, of a whole one, rows that a
    table names."""
    if of in axes:
        return _outer(of, index, sizes) in axes
    return not any(isinstance(a, str) and a in axes for a, _ in index.terms) and (
        bool(index.lookups) or not set(index.dims) & axes
    )
