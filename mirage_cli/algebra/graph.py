"""The AND-OR graph of a decomposition.

A class is a canonical form; a node of it is a few equations over other classes whose result is that form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mirage_cli.algebra.canonical import Algebra, Atom, Form
from mirage_cli.ir.hashed import hashed_once
from mirage_cli.ir.op import Number, Type
from mirage_cli.ir.ops import FOLDS, OPS
from mirage_cli.ir.precision import (
    chosen_values,
    decisive_values,
    exact_values,
    float_types,
    promoted_values,
    values_added_back,
    widened_values,
)
from mirage_cli.ir.program import FLOAT8, HALVES, Program, cast_of, tensor_type

Source = Form | int | Number
"""An argument of a step: a class, the result of an earlier step (int), or a number."""


@dataclass(frozen=True, slots=True)
class Step:
    """An operator applied. casts: operands of a dot that are brought to a type first, in which the program multiplies
    them."""

    op: str
    args: tuple[Source, ...]
    axes: tuple[str, ...] = ()
    casts: tuple[tuple[Form, str], ...] = ()


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class Node:
    """Equations whose last result is the form of the class that has this node."""

    steps: tuple[Step, ...]
    origin: str  # "program", also of its own difference, multiplied out; or "algebra"

    @cached_property
    def children(self) -> tuple[Form, ...]:
        return tuple(dict.fromkeys(a for s in self.steps for a in s.args if isinstance(a, Form)))

    @cached_property
    def key(self) -> tuple[tuple[str, tuple[Source, ...], tuple[str, ...]], ...]:
        """What two nodes share that differ in the order of commuting operands alone, or in a > b and b < a."""
        return tuple(_ordered(s) for s in self.steps)

    @cached_property
    def moved(self) -> tuple[Form, ...]:
        """The children that are read elsewhere than where they are computed, which only loads do."""
        return tuple(a for s in self.steps if OPS[s.op].kind == "rename" for a in s.args if isinstance(a, Form))

    @cached_property
    def multiplied(self) -> tuple[Source, ...]:
        """The operands of its products."""
        return tuple(a for s in self.steps if s.op == "dot" for a in s.args)

    @cached_property
    def subtracts(self) -> bool:
        """Whether it has a difference that is not the program's."""
        return self.origin == "algebra" and any(-1 in OPS[s.op].linear[1:] for s in self.steps)

    @cached_property
    def reduces(self) -> bool:
        return any(OPS[s.op].kind in ("reduction", "contraction") for s in self.steps)

    def passes(self, before: Mapping[Form, int]) -> int:
        """The longest chain of reductions that depend on each other: its own, behind those of the classes it reads, 0
        where `before` does not say."""
        found: list[int] = []
        for s in self.steps:
            deepest = max(
                (found[a] if isinstance(a, int) else before.get(a, 0) for a in s.args if isinstance(a, (int, Form))),
                default=0,
            )
            found.append(deepest + (OPS[s.op].kind in ("reduction", "contraction")))
        return found[-1]


def _ordered(s: Step) -> tuple[str, tuple[Source, ...], tuple[str, ...]]:
    row = OPS[s.op]
    if row.order:
        return "<" if row.order.strict else "<=", s.args[::-1] if row.order.turned else s.args, s.axes
    if row.commutes:
        return s.op, tuple(sorted(s.args, key=lambda a: a.key if isinstance(a, Form) else str(a))), s.axes
    return s.op, s.args, s.axes


@dataclass
class Decomposition:
    """The AND-OR graph. `nodes` has a class for every form; inputs have no nodes.

    products: the type in which the program multiplies under a Σ, where it does; float32, where it does in several.
    precise: classes that are float32 though the program names them, as it does those of internal values, of promoted
    ones that are no casts of 16 bits, and of those that are added back. exact: those whose products are. rounded: the
    others that are of 16 or 8 bits in the program.
    forms: of each of the program's values; two where its exponentials are safe and, for the sake of an output that is
    as large as they are, as written. names: what the program calls a form, and own: where that is the value as the
    program computes it. cuts: how many nodes were left out, by reason.
    """

    algebra: Algebra
    program: Program
    outputs: tuple[Form, ...]
    nodes: dict[Form, tuple[Node, ...]]
    forms: Mapping[str, tuple[Form, ...]]
    names: dict[Form, str]
    own: dict[Form, str]
    orders: Mapping[Form, tuple[str, ...]] = field(default_factory=dict[Form, tuple[str, ...]])
    cuts: Counter[str] = field(default_factory=Counter)
    products: dict[Atom, str] = field(default_factory=dict[Atom, str])
    wide: dict[Form, bool] = field(default_factory=dict[Form, bool])

    @cached_property
    def decisive(self) -> frozenset[str]:
        """The program's values that decisions are made of."""
        return decisive_values(self.program)

    @cached_property
    def exact(self) -> frozenset[Form]:
        return frozenset(f for v in exact_values(self.program) for f in self.forms[v])

    @cached_property
    def precise(self) -> frozenset[Form]:
        p = self.program
        values = (exact_values(p) | promoted_values(p)) - widened_values(p) | values_added_back(p) | p.internals
        values -= chosen_values(p).keys()
        return frozenset(f for v in values for f in self.forms[v])

    @cached_property
    def rounded(self) -> Mapping[Form, str]:
        types = float_types(self.program)
        found = {f: dtype for v, dtype in chosen_values(self.program).items() for f in self.forms[v]}
        for e in self.program.eqns:
            own = [f for f in self.forms[e.out] if self.own.get(f) == e.out and OPS[e.op].kind != "reduction"]
            for f in self.forms[e.out] if cast_of(e) else own:
                if f not in self.precise and self.type_of(f) != "int" and types.get(e.out) in HALVES | FLOAT8:
                    found[f] = types[e.out]
        return found

    @cached_property
    def floats(self) -> frozenset[Form]:
        """What the program has as floats alone, though it may be made of integers: a product of two of int8."""
        made = [(e.type, f) for e in self.program.eqns for f in self.forms[e.out]]
        return frozenset(f for kind, f in made if kind == "float") - {f for kind, f in made if kind != "float"}

    def type_of(self, form: Form) -> Type:
        """Whether a class is a mask, an integer or a float."""
        kind = type_of(form, self.program)
        return "float" if kind == "int" and form in self.floats and not self.is_input(form) else kind

    @property
    def axes(self) -> tuple[str, ...]:
        """The program's axes and those made up to avoid capture."""
        return (*self.program.order, *self.algebra.aliases)

    @property
    def sizes(self) -> dict[str, int]:
        sizes = self.program.sizes
        return sizes | {new: sizes[old] for new, old in self.algebra.aliases.items()}

    @property
    def cancels(self) -> bool:
        """Whether all terms of some value cancel, or all that have some axis."""
        eqns = (e for e in self.program.eqns if e.values)
        return any(f.number is not None or f.dims != frozenset(e.dims) for e in eqns for f in self.forms[e.out])

    def is_input(self, form: Form) -> bool:
        return form.atom is not None and form.atom.kind == "input"

    def __str__(self) -> str:
        lines: list[str] = []
        for form, nodes in self.nodes.items():
            lines.append(f"{self.names.get(form, form.key[:6])}[{','.join(sorted(form.dims))}] := {form}")
            lines += [f"    {n.origin}: {'; '.join(_step_text(self, s) for s in n.steps)}" for n in nodes]
        return "\n".join(lines)


def _step_text(d: Decomposition, s: Step) -> str:
    args = [
        d.names.get(a, a.key[:6]) if isinstance(a, Form) else f"#{a}" if isinstance(a, int) else str(a) for a in s.args
    ]
    return f"{s.op}({', '.join(args)}" + (f"; {', '.join(s.axes)})" if s.axes else ")")


def type_of(form: Form, program: Program) -> Type:
    """Whether a form is a mask, an integer or a float."""
    atom = form.atom
    if atom is not None and atom.kind == "fn" and OPS[atom.args[0]].result == "bool":
        return "bool"
    types = {t.name: tensor_type(t) for t in program.inputs}
    if atom is not None and atom.kind == "input" and types[atom.args[0]] == "bool":
        return "bool"

    def integral(a: Atom) -> bool:
        if a.kind == "fn" and OPS[a.args[0]].result in ("same", "branches"):
            chosen = a.args[2:] if OPS[a.args[0]].result == "branches" else a.args[1:]
            return all(not x.terms or type_of(x, program) == "int" for x in chosen)
        if a.kind == "fn" and OPS[a.args[0]].result == "int":
            return True
        if a.kind in FOLDS:
            return OPS[a.kind].result == "same" and type_of(a.args[1], program) == "int"
        if a.kind == "sum":
            return all(integral(x) and e.denominator == 1 and e > 0 for x, e in a.args[1])
        return a.kind == "index" or (a.kind == "input" and types[a.args[0]] == "int")

    whole = all(
        c.denominator == 1 and all(integral(a) and e.denominator == 1 and e > 0 for a, e in m) for m, c in form.terms
    )
    return "int" if whole and form.terms else "float"
