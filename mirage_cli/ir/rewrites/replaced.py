"""The base of rewrites that put indices of other axes in the place of axes, throughout a program.

    X[m, k]                    -->  X[128*b + r, k]                       m = 128*b + r
    sum(X[t - w] * P[w]; w)    -->  sum(X[u] * P[t - u] where 0 <= t - u < w; u)      w = t - u

Where the new axes have no position for some places of the old one, or one for places that it has not, masks have to
leave these out of every reduction over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from mirage_cli.ir.access import Atom, Index, dims_of, plain
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Part, Program, Tensor
from mirage_cli.ir.reach import kept, known_value
from mirage_cli.ir.rewrites.rewriter import Rewriter


class OtherwiseError(Exception):
    """An axis is read, reduced or stored otherwise than the new axes can say."""


class Replaced(Rewriter):
    """whole: for each old axis, the index that is its position. own: the axes that a reduction over it goes over.
    masks: those that hold at all places that the new axes have, but beyond the ends of old axes. made: inputs by the
    new axes. stands: values that others stand for. true: masks that hold everywhere."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.before = program.values()
        self.whole: dict[str, Index] = {}
        self.own: dict[str, tuple[str, ...]] = {}
        self.masks = frozenset[str]()
        self.made: dict[str, str] = {}
        self.stands: dict[str, str] = {}
        self.true = set[str]()

    def behind(self, axis: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """New axes of these sizes, in the program's order behind an old one."""
        names = {self.name(wanted): n for wanted, n in sizes.items()}
        before = list(self.dims.items())
        at = [d for d, _ in before].index(axis) + 1
        self.dims = dict([*before[:at], *names.items(), *before[at:]])
        return tuple(names)

    def rewritten(self) -> Program | None:
        try:
            return super().rewritten() if self.whole else None
        except OtherwiseError:
            return None

    def of(self, e: Eqn) -> Iterator[Eqn]:
        if e.out in self.masks:
            yield from self.between_ends(e)
        elif (branch := kept(e, dict.fromkeys(self.true, True))) is not None:
            self.stand_for(e, branch)
        elif e.op == "rename":
            yield self.read_by_others(e)
        elif e.place:
            yield self.define(e.out, e.op, (), (str(self.placed(e.place)),))
        elif OPS[e.op].kind == "leaf":
            yield e
        else:
            yield from self.computed(e)

    def computed(self, e: Eqn) -> Iterator[Eqn]:
        for a in e.values:
            yield from self.input_by_others(a)
        args = e.arguments(lambda v: self.stands.get(v, self.made.get(v, v)))
        axes = tuple(p for d in e.axes for p in self.own.get(d, (d,)))
        had = {d for a in e.values for d in self.before[a].dims if d in self.whole and d not in e.axes}
        beside = {a for d in had for a in self.whole[d].dims if a not in self.own[d]}
        if not {*axes} <= {d for a in args if isinstance(a, str) for d in self.known[a].dims} or beside & {*axes}:
            raise OtherwiseError
        yield self.define(e.out, e.op, args, axes)

    def between_ends(self, e: Eqn) -> Iterator[Eqn]:
        """In the place of such a mask, what holds where the place is between the ends of the old axes it is of."""
        made: list[Eqn] = []
        for d in (d for d in e.dims if d in self.whole):
            made += self.within(d)
        ends = [m.out for m in made if m.type == "bool"]
        if not ends:
            self.true.add(e.out)
            return
        yield from made
        for out in ends[1:-1]:
            yield (both := self.define(self.name("within"), "and", (ends[0], out), ()))
            ends[0] = both.out
        yield self.define(e.out, "and", (ends[0], ends[-1]), ()) if len(ends) > 1 else replace(made[-1], out=e.out)

    def within(self, d: str) -> Iterator[Eqn]:
        """The masks that hold where the index of an old axis is at least 0, and less than its size."""
        before, behind = self.whole[d].leaves(self.dims[d], self.dims)
        if before or behind:
            yield (at := self.define(self.name(f"{d}_at"), "index", (), (str(self.whole[d]),)))
            if before:
                yield self.define(self.name("within"), "ge", (at.out, Fraction(0)), ())
            if behind:
                yield (size := self.define(self.name(f"{d}_size"), "size", (), (d,)))
                yield self.define(self.name("within"), "lt", (at.out, size.out), ())

    def stand_for(self, e: Eqn, branch: object) -> None:
        if not isinstance(branch, str):
            raise OtherwiseError
        if branch in self.true:
            self.true.add(e.out)
        self.stands[e.out] = self.stands.get(branch, branch)

    def input_by_others(self, a: str) -> Iterator[Eqn]:
        """The read of an input with an old axis, once."""
        t = self.known[self.stands.get(a, a)]
        if isinstance(t, Tensor) and t.name not in self.made and (names := self.positions(t)):
            self.made[t.name] = self.name(f"{t.name}_blocks")
            yield self.read(self.made[t.name], t.name, names)
        if a in self.stands and isinstance(t, Tensor) and t.name in self.made:
            self.stands[a] = self.made[t.name]

    def positions(self, t: Tensor) -> dict[str, Index]:
        return {d: self.whole[d] for d in t.dims if d in self.whole}

    def read_by_others(self, e: Eqn) -> Eqn:
        value = self.stands.get(e.values[0], e.values[0])
        known = self.known[value]
        names = {d: self.placed(i) for d, i in e.names.items()}
        if isinstance(known, Tensor):
            return self.read(e.out, value, {**self.positions(known), **names})
        had = [d for d in self.before[e.values[0]].dims if d in self.whole]
        return self.read(e.out, value, dict(self.of_result(had, names)))

    def of_result(self, had: Sequence[str], names: Mapping[str, Index]) -> Iterator[tuple[str, Index]]:
        """The indices by which a result is read that had these old axes. names: by its axes before."""
        if {*names, *dims_of(names.values())} & {a for d in had for a in (d, *self.whole[d].dims)}:
            raise OtherwiseError
        yield from names.items()

    def placed(self, i: Index) -> Index:
        """An index with those of the new axes in the place of old ones."""
        return i.with_atoms(self.atom)

    def atom(self, a: Atom) -> Index | None:
        return self.whole.get(a) if isinstance(a, str) else None

    def program_of(self, eqns: Iterable[Eqn]) -> Program:
        """The program, whose outputs along old axes are written by the new ones."""
        program = super().program_of(eqns)
        parts = {p.value: p for p in program.parts}
        names: dict[str, str] = {}
        outputs: list[Tensor] = []
        for t in program.outputs:
            part = parts.get(t.name) or Part(t.name, t, plain(t.dims))
            access = tuple(map(self.placed, part.access))
            dims = {*self.known[t.name].dims} if t.name not in self.stands else None
            if {*dims_of(access)} != dims or any({*self.whole[d].dims} > {*self.own[d]} for d in self.old(part)):
                raise OtherwiseError
            if t.name not in parts and access != part.access:
                names[t.name] = self.name(f"{t.name}_blocks")
            if t.name in parts or access != part.access:
                value = names.get(t.name, t.name)
                parts[t.name] = replace(part, value=value, access=access)
                t = replace(t, name=value, dims=dims_of(access), strides=())
            outputs.append(t)
        ordered = (parts[t.name] for t in program.outputs if t.name in parts)
        eqns = tuple(e.renamed(names) for e in program.eqns)
        return replace(program, eqns=eqns, outputs=tuple(outputs), parts=tuple(ordered))

    def old(self, part: Part) -> Iterator[str]:
        return (d for d in dims_of(part.access) if d in self.whole)


def left_out(program: Program, axis: str, known: Mapping[str, float]) -> bool:
    """Whether nothing that is reduced over an axis counts where these values are known to be so, and no output has it.

    Zero times anything is zero, and zero over anything.
    """
    if any(axis in t.dims for t in program.outputs):
        return False
    known = dict(known)
    for e in program.eqns:
        if e.out in known:
            continue
        divided = OPS[e.op].zero == "first" and known.get(str(e.args[0])) == 0.0
        value = 0.0 if divided else known_value(e, known)
        if axis in e.axes and OPS[e.op].kind in ("reduction", "contraction"):
            if value != OPS[e.op].identity:
                return False
        elif value is not None:
            known[e.out] = value
    return True
