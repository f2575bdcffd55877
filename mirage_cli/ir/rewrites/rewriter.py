"""The base of rewrites of a program: equation by equation, with new axes and values besides the program's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from mirage_cli.ir.access import Index
from mirage_cli.ir.access_text import substitution_text
from mirage_cli.ir.program import Arg, Eqn, Program, Tensor, equation, live_eqns, tables_of


class Rewriter(ABC):
    """dims: of the program, and new ones. known: tensors and results so far. taken: all names. fixed: merged axes,
    their parts, and dynamic axes. sums: parts of the program's sums: no type of the program rounds them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.dims = program.sizes
        self.known: dict[str, Tensor | Eqn] = {t.name: t for t in program.inputs}
        self.fixed = fixed_axes(program)
        self.taken = {*program.sizes, *self.known, *(e.out for e in program.eqns)}
        self.sums = frozenset[str]()

    @abstractmethod
    def of(self, e: Eqn) -> Iterable[Eqn]:
        """The equation, or those that take its place."""

    def rewritten(self) -> Program | None:
        """The program with what takes the place of its equations; None where all stay."""
        eqns: list[Eqn] = []
        for e in self.program.eqns:
            eqns += (made := [*self.of(e)])
            if made:
                self.known[e.out] = made[-1]
        return None if tuple(eqns) == self.program.eqns else self.program_of(eqns)

    def program_of(self, eqns: Iterable[Eqn]) -> Program:
        """The program of those of these equations that its outputs need."""
        needed = tuple(live_eqns(eqns, (t.name for t in self.program.outputs)))
        internals = (self.program.internals | self.sums) & {e.out for e in needed}
        return replace(self.program, dims=tuple(self.dims.items()), eqns=needed, internals=internals)

    def define(self, out: str, op: str, args: tuple[Arg, ...], axes: tuple[str, ...]) -> Eqn:
        """The equation of a new value."""
        self.known[out] = made = equation(out, op, args, axes, self.known, self.dims)
        return made

    def read(self, out: str, value: str, names: Mapping[str, Index]) -> Eqn:
        """The equation of a value that is read with these indices in the place of axes."""
        return self.define(out, "rename", (value, *tables_of(names.values())), substitution_text(names))

    def conjuncts(self, mask: str) -> Iterator[str]:
        """The masks that hold where this one does."""
        e = self.known[mask]
        if isinstance(e, Eqn) and e.op == "and":
            for m in e.values:
                yield from self.conjuncts(m)
        else:
            yield mask

    def axis(self, e: Eqn, wanted: str, size: int, among: Iterable[str]) -> str:
        """An axis of this size by which values of an equation are read: one of those that neither the values nor the
        equation have, and that is not fixed, or a new one."""
        taken = {*self.fixed, *e.axes, *(d for v in e.values for d in self.known[v].dims)}
        return next((d for d in among if self.dims[d] == size and d not in taken), None) or self.new(wanted, size)

    def new(self, wanted: str, size: int) -> str:
        name = self.name(wanted)
        self.dims[name] = size
        return name

    def name(self, wanted: str) -> str:
        name = next(x for i in count() if (x := f"{wanted}{i or ''}") not in self.taken)
        self.taken.add(name)
        return name


def fixed_axes(program: Program) -> set[str]:
    """Merged axes, their parts, and dynamic axes: they stay as they are."""
    return {d for name, parts in program.merged for d in (name, *parts)} | {r.dim for r in program.dynamic}
