"""A program that is rewritten with axes and values of its own besides the program's."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from mirage_cli.ir.program import Eqn, Program, Tensor


class Extended:
    """dims: of the program, and new ones. known: tensors and results so far. taken: all names."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.dims = program.sizes
        self.known: dict[str, Tensor | Eqn] = {t.name: t for t in program.inputs}
        self.taken = {*program.sizes, *self.known, *(e.out for e in program.eqns)}

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
