"""Decomposition: every way to make a canonical form with one last operator, as an AND-OR graph.

All nodes of all classes reachable from the outputs make the graph (`graph`). Each node is, by construction, part of
some program equal to the target, so a search over the graph generates nothing that it would have to discard (Mirage
prunes the same space from the other side, with abstract expressions).

A node is an equation of the program itself (`own`), or follows from the form: a sum of terms (`terms`), a Σ of a
product (`contractions`), a product, or a function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice

from mirage_cli.algebra.canonical import ONE, Algebra, Atom, Form, LiteralAlgebra
from mirage_cli.algebra.contractions import contractions
from mirage_cli.algebra.graph import Decomposition, Node
from mirage_cli.algebra.own import own_nodes
from mirage_cli.algebra.safe import (
    anywhere,
    grows_with_exponentials,
    may_overflow,
    overflowing,
    plain_forms,
    program_forms,
)
from mirage_cli.algebra.steps import Steps, constant, product
from mirage_cli.algebra.terms import sum_nodes
from mirage_cli.algebra.typed import note_products
from mirage_cli.errors import NumberError
from mirage_cli.ir.ops import FOLDS, OPS
from mirage_cli.ir.program import Program

MAX_CLASSES = 400
"""Beyond this many classes, further ones keep the program's own nodes alone (or one of the algebra's if none computes
the class: a read at other places has it from memory)."""


def decompose(
    program: Program,
    *,
    own_algebra_only: bool = False,
    literal: bool = False,
    deadline: Callable[[], bool] = lambda: False,
) -> Decomposition:
    """The decomposition graph of a lowered program; with `own_algebra_only`, just the program's own equations, as for
    what is left to decompose at the deadline. literal: with what cancels too. Raises NumberError."""
    algebra = LiteralAlgebra() if literal else Algebra()
    raw = program_forms(algebra, program)
    unsafe_outputs = {f for t in program.outputs for f, _ in overflowing(raw[t.name])}
    safe: dict[str, Form] = {}
    for name, form in raw.items():
        strip = tuple((a, -e) for a, e in overflowing(form) if a not in unsafe_outputs)
        safe[name] = algebra.mul(form, algebra.of_mono(strip)) if strip else form
    plain = plain_forms(algebra, program)
    as_written = {t.name for t in program.outputs if grows_with_exponentials(plain[t.name], raw[t.name])}
    outputs = tuple((plain if t.name in as_written else safe)[t.name] for t in program.outputs)
    versions = (safe, plain) if as_written else (safe,)
    d = Decomposition(algebra, program, outputs, {}, {n: tuple(v[n] for v in versions) for n in safe}, {}, {})
    for forms in versions:
        note_products(d, forms)
    for forms in versions:
        for name, form in forms.items():
            d.names.setdefault(form, name)
            if form in (raw[name], plain[name]):
                d.own.setdefault(form, name)
    own, decisive = own_nodes(d, versions)
    todo = list(dict.fromkeys(d.outputs))
    for form in todo:
        if d.is_input(form):
            d.nodes[form] = ()
            continue
        nodes = own.get(form, [])
        if form in decisive:
            if form.atom is None:
                d.cuts["what decisions are made of"] += 1
        elif not own_algebra_only and len(todo) < MAX_CLASSES and not deadline():
            nodes = [*nodes, *_algebra_nodes(d, form, nodes)]
        elif _needs_memory(d, nodes) or (not own_algebra_only and all(n.moved for n in nodes) and not deadline()):
            nodes = [*nodes, *islice(_algebra_nodes(d, form, nodes), 1)]
        d.nodes[form] = _writable_nodes(d, form, nodes)
        known = set(todo)
        todo += [c for n in d.nodes[form] for c in n.children if c not in known and not known.add(c)]
    _drop_overflowing(d)
    return d


def _drop_overflowing(d: Decomposition) -> None:
    """Leaves out exponentials that the program takes at no place and that may overflow, and all that only they make.

    exp(x - c) is not exp(x)·exp(-c) unless x and -c are known to be nowhere large: one may be infinite where the other
    is 0. They stay where an output has no other way.
    """
    exponentials = [f for f in d.nodes if f.atom and f.atom.kind == "exp"]
    own = {anywhere(f) for f in d.own if f.atom and f.atom.kind == "exp"}
    taken = {f for f in exponentials if anywhere(f) not in own and may_overflow(f)}
    left, more = dict(d.nodes), taken
    while more:
        left = {f: tuple(n for n in nodes if more.isdisjoint(n.children)) for f, nodes in left.items() if f not in more}
        more = {f for f, nodes in left.items() if d.nodes[f] and not nodes}
    if not taken or any(f not in left for f in d.outputs):
        return
    todo = list(dict.fromkeys(d.outputs))
    known = set(todo)
    for form in todo:
        todo += [c for n in left[form] for c in n.children if c not in known and not known.add(c)]
    d.cuts["an exponential that may overflow"] += sum(len(d.nodes[f]) - len(left[f]) for f in todo)
    d.nodes = {f: left[f] for f in d.nodes if f in known}


def _needs_memory(d: Decomposition, nodes: Iterable[Node]) -> bool:
    """Whether each of these reads at other places what need not lie in memory: the program as written stores no masks
    and, but for reductions, no whole numbers."""
    return all(any(d.type_of(f) != "float" and not d.is_input(f) for f in n.moved) for n in nodes)


def _writable_nodes(d: Decomposition, form: Form, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Those whose numbers float64 has, each once. Raises NumberError where there are none."""
    unique: dict[object, Node] = {}
    for n in nodes:
        if _has_literals(n):
            unique.setdefault(n.key, n)
    if not unique:
        raise NumberError(d.names.get(form, str(form)))
    return tuple(unique.values())


def _has_literals(node: Node) -> bool:
    """Whether float64 has every number of the node: a product of the program's constants may be beyond it."""
    numbers = [a for s in node.steps for a in s.args if isinstance(a, Fraction)]
    return all(x == 0 or sys.float_info.min <= abs(x) <= sys.float_info.max for x in numbers)


def _algebra_nodes(d: Decomposition, form: Form, own: Sequence[Node]) -> Iterator[Node]:
    """One by one: of many classes, the first is enough."""
    if form.number is not None or len(form.terms) == 0:
        steps = Steps()
        steps.add("mul", form.number or Fraction(0), ONE)
        yield steps.node()
        return
    if len(form.terms) > 1:
        yield from sum_nodes(d, form, own)
        return
    mono, c = form.terms[0]
    if form.atom is not None and form.atom.kind != "sum":
        yield _atom_node(d, form.atom)
        if form.atom.kind in FOLDS:
            yield from _folds_of_folds(d, form.atom)
        return
    if form.atom is None:
        steps = Steps()
        product(d, steps, [], mono, c)
        if steps.steps:
            yield steps.node()
    for atom, e in mono:
        if atom.kind == "sum" and e == 1:
            yield from contractions(d, atom, tuple(f for f in mono if f[0] is not atom), c)


def _folds_of_folds(d: Decomposition, atom: Atom) -> Iterator[Node]:
    """max over a and b of x = max over a of (max over b of x), where a value of the program is reduced over b alone:
    one kernel then makes both, and keeps a on its grid."""
    axes, x = atom.args
    reduced = {frozenset(e.axes) for e in d.program.eqns if OPS[e.op].kind in ("reduction", "contraction")}
    for inner in sorted((r for r in reduced if r < {*axes}), key=sorted):
        steps = Steps()
        part = d.algebra.folded(atom.kind, x, inner)
        steps.add(atom.kind, part, axes=tuple(a for a in axes if a not in inner))
        yield steps.node()


def _atom_node(d: Decomposition, atom: Atom) -> Node:
    """The one operator that makes an atom which is no Σ."""
    algebra, steps = d.algebra, Steps()
    match atom.kind:
        case "exp":
            steps.add("exp", constant(atom.args[0]))
        case "shifted_exp":
            x, axes, k = atom.shift
            steps.add("exp_sub", algebra.scale(x, k), algebra.scale(algebra.folded("max", x, axes), k))
        case "log":
            steps.add("log", atom.args[0])
        case "scaled":
            steps.add("div", *atom.args)
        case "fn":
            args = tuple(constant(a) for a in atom.args[1:])
            steps.add(atom.args[0], *args)
        case kind if kind in FOLDS:
            steps.add(atom.kind, atom.args[1], axes=atom.args[0])
        case "index" | "size":
            steps.add(atom.kind, axes=(atom.args[0],))
        case "poly":
            steps.add("mul", atom.args[0], ONE)
        case _:
            steps.add("mul", constant(algebra.of_atom(atom)), ONE)
    return steps.node()
