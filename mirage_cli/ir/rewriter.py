"""The base of rewrites of a program: equation by equation, with new axes and values besides the program's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from mirage_cli.ir.program import Arg, Eqn, Program, Tensor, equation


class Rewriter:
    """dims: of the program, and new ones. known: tensors and results so far. taken: all names. fixed: merged axes,
    their parts, and dynamic axes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.dims = program.sizes
        self.known: dict[str, Tensor | Eqn] = {t.name: t for t in program.inputs}
        self.fixed = {d for name, parts in program.merged for d in (name, *parts)} | {r.dim for r in program.dynamic}
        self.taken = {*program.sizes, *self.known, *(e.out for e in program.eqns)}

    def program_of(self, eqns: tuple[Eqn, ...]) -> Program:
        """The program of those of these equations that its outputs need."""
        whole = replace(self.program, dims=tuple(self.dims.items()), eqns=eqns)
        needed = {e.out for e in whole.only(t.name for t in self.program.outputs).eqns}
        return replace(whole, eqns=tuple(e for e in eqns if e.out in needed))

    def define(self, out: str, op: str, args: tuple[Arg, ...], axes: tuple[str, ...]) -> Eqn:
        """The equation of a new value."""
        self.known[out] = made = equation(out, op, args, axes, self.known, self.dims)
        return made

    def axis(self, e: Eqn, wanted: str, size: int, among: Iterable[str]) -> str:
        """An axis of this size by which values of an equation are read: one of those that neither the values nor the
        equation have, or a new one."""
        taken = {*e.axes, *(d for v in e.values for d in self.known[v].dims)}
        return next((d for d in among if self.dims[d] == size and d not in taken), None) or self.new(wanted, size)

    def new(self, wanted: str, size: int) -> str:
        name = self.name(wanted)
        self.dims[name] = size
        return name

    def name(self, wanted: str) -> str:
        name = next(x for i in count() if (x := f"{wanted}{i or ''}") not in self.taken)
        self.taken.add(name)
        return name
