"""Reductions over windows of several axes, as reductions along one axis after the other.

    sum(X[y + i - 4, x + j - 4]; i, j)  -->  R[y, x] = sum(X[y, x + j - 4]; j)
                                             sum(R[y + i - 4, x]; i)

Each position takes 9 + 9 elements then, not 81. Factors along one axis of the window (a Gaussian's), and masks of what
lies outside along one, stay with the reduction over this axis. What lies outside of the inner reduction is read as 0,
as the sum of what lies outside is. Of a maximum, masks have to leave it out: in the verifier's fields the largest of
several zeros is not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from math import isinf, prod

from mirage_cli.ir.access import Index
from mirage_cli.ir.access_text import substitution_text
from mirage_cli.ir.op import Number
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Program
from mirage_cli.ir.rewrites.rewriter import Rewriter

READ = "read"
"""In the place of a value that is not known yet."""
LEAST = 16
"""Elements of the smallest window that is taken apart: of fewer, memory costs more than the reads that are saved."""


def separable(program: Program) -> Program | None:
    """A lowered program with its separable windows reduced along one axis after the other; None where there is none."""
    return _Separable(program).rewritten()


class _InseparableError(Exception):
    """A value that depends on the axis otherwise than by where it is read, by a factor or by a mask."""


class _Separable(Rewriter):
    def of(self, e: Eqn) -> tuple[Eqn, ...]:
        if (e.op == "sum" or OPS[e.op].extremum) and e.type == "float":
            return next(filter(None, (self.apart(e, a) for a in e.axes)), (e,))
        return (e,)

    def apart(self, e: Eqn, axis: str) -> tuple[Eqn, ...]:
        """The sum over all axes but this one, of what is read without it, and then the one over it; nothing where that
        is another value."""
        (value,) = e.values
        others = tuple(a for a in e.axes if a != axis)
        part = _Without(self, e.op, axis, frozenset(others))
        try:
            inner = part.of(value)
        except _InseparableError:
            return ()
        window = prod(self.dims[a] for a in (axis, *part.others))
        if not (part.others and part.read and {*others} <= {*self.known[inner].dims}) or part.others & part.outside:
            return ()
        if window < LEAST or {*part.read} & part.kept or not part.left_out():
            return ()
        eqns = part.eqns
        if others:
            rest = self.define(self.name(f"{e.out}_rest"), e.op, (inner,), others)
            self.sums |= {inner := rest.out}
            eqns += self.of(rest)
        eqns.append(self.read(self.name(f"{e.out}_{axis}"), inner, part.read))
        for op, args in reversed(part.around):
            args = tuple(eqns[-1].out if a == READ else a for a in args)
            eqns.append(self.define(self.name("part"), op, args, ()))
        return *eqns, self.define(e.out, e.op, (eqns[-1].out,), (axis,))


@dataclass
class _Without:
    """A value without one axis of the window.

    op: the reduction. others: the other reduced axes, also of reductions inside. read: the index that holds the axis,
    by which the result is read. kept: axes of what is not read by it. around: factors and masks along the axis, the
    outermost first, each with READ in the place of what it is of. along: these masks. outside: axes of these factors.
    eqns: the equations so far.
    """

    of_all: _Separable
    op: str
    axis: str
    others: frozenset[str]
    read: Mapping[str, Index] = field(default_factory=dict[str, Index])
    kept: set[str] = field(default_factory=set[str])
    around: list[tuple[str, tuple[Arg, ...]]] = field(default_factory=list[tuple[str, tuple[Arg, ...]]])
    along: list[str] = field(default_factory=list[str])
    outside: set[str] = field(default_factory=set[str])
    eqns: list[Eqn] = field(default_factory=list[Eqn])

    @property
    def neutral(self) -> Number:
        """What masks put in the place of what they leave out."""
        identity = OPS[self.op].neutral(False)
        return identity if isinf(identity) else Fraction(identity)

    def of(self, name: str) -> str:
        """The value without what depends on the axis. Raises _InseparableError."""
        x = self.of_all.known[name]
        if self.axis not in x.dims:
            self.kept |= {*x.dims}
            return name
        match x:
            case Eqn(op="rename", values=(source,)):
                return self.moved(x, source)
            case Eqn(op=self.op, values=(value,)):
                self.others |= {*x.axes}
                made = self.add(self.op, (self.of(value),), x.axes)
                self.of_all.sums |= {made}
                return made
            case Eqn(op="mul", values=(_, _)) if self.op == "sum":
                return self.multiplied(x)
            case Eqn(op="mul", args=(str(value), Fraction() as number)) if self.op == "sum":
                return self.add("mul", (self.of(value), number), ())
            case Eqn(op="where", args=(str(mask), str(value), outside)) if outside == self.neutral:
                return self.without_masks(mask, value)
            case _:
                raise _InseparableError

    def moved(self, x: Eqn, source: str) -> str:
        """A read, without the index that holds the axis: one of windows that overlap."""
        sizes = self.of_all.dims
        read = {d: i for d, i in x.names.items() if self.axis in i.dims}
        others = {d: i for d, i in x.names.items() if d not in read}
        held = {a for i in read.values() for a in i.dims}
        beside = {a for i in others.values() for a in i.dims} | {*self.of_all.known[source].dims} - {*x.names}
        overlap = all(prod(sizes[a] for a in i.dims) >= 2 * sizes[d] for d, i in read.items())
        if len(read) != 1 or self.read not in ({}, read) or held & self.others or not overlap:
            raise _InseparableError
        if self.of_all.fixed & {*read, *held} or self.axis in beside:
            raise _InseparableError
        self.read = read
        self.kept |= beside
        if not others:
            return source
        return self.add("rename", (source,), substitution_text(others))

    def multiplied(self, x: Eqn) -> str:
        """A product, of which factors along the axis, and along no other that is reduced, stand outside."""
        for factor, other in (x.values, x.values[::-1]):
            dims = {*self.of_all.known[factor].dims}
            if self.axis in dims and not dims & self.others:
                self.around.append(("mul", (READ, factor)))
                self.outside |= dims
                return self.of(other)
        first, last = x.values
        return self.add("mul", (self.of(first), self.of(last)), ())

    def without_masks(self, mask: str, value: str) -> str:
        """What masks leave: those with the axis stand outside, the others stay."""
        known, masks = self.of_all.known, [*self.of_all.conjuncts(mask)]
        along = [m for m in masks if self.axis in known[m].dims]
        others = [m for m in masks if self.axis not in known[m].dims]
        if self.others & {d for m in along for d in known[m].dims}:
            raise _InseparableError
        if along:
            self.around.append(("where", (reduce(self.both, along), READ, self.neutral)))
            self.along += along
        self.kept |= {d for m in others for d in known[m].dims}
        inner = self.of(value)
        return self.add("where", (reduce(self.both, others), inner, self.neutral), ()) if others else inner

    def left_out(self) -> bool:
        """Whether what lies outside of the inner reduction is as it is read, 0: of a sum; else nothing lies there, or
        masks along the axis leave it out."""
        return not self.neutral or all(self.inside(d, i) for d, i in self.read.items())

    def inside(self, d: str, i: Index) -> bool:
        """Whether masks along the axis leave nothing of what an index reads outside of an axis."""
        known, size = self.of_all.known, self.of_all.dims[d]
        before, behind = i.leaves(size, self.of_all.dims)
        masks = [m for m in map(known.get, self.along) if isinstance(m, Eqn)]
        left = {(m.op, self.number(m.args[1])) for m in masks if self.position(m.args[0]) == i}
        return (not before or ("ge", 0) in left) and (not behind or ("lt", size) in left)

    def position(self, x: Arg) -> Index | None:
        e = self.of_all.known[x] if isinstance(x, str) else None
        return e.place if isinstance(e, Eqn) else None

    def number(self, x: Arg) -> Number | None:
        if not isinstance(x, str):
            return x
        e = self.of_all.known[x]
        return self.of_all.dims[e.axes[0]] if isinstance(e, Eqn) and e.op == "size" else None

    def both(self, mask: str, other: str) -> str:
        return self.add("and", (mask, other), ())

    def add(self, op: str, args: tuple[Arg, ...], axes: tuple[str, ...]) -> str:
        self.eqns.append(self.of_all.define(self.of_all.name("part"), op, args, axes))
        return self.eqns[-1].out
