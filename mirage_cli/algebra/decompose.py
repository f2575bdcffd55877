"""Decomposition: every way to make a canonical form with one last operator, as an AND-OR graph.

A class is a canonical form; a node of it is a few equations over other classes whose result is that form. All nodes of
all classes reachable from the outputs make the graph. Each node is, by construction, part of some program equal to the
target, so a search over the graph generates nothing that it would have to discard (Mirage prunes the same space from
the other side, with abstract expressions).

The equations of the program itself are nodes too, so the program as written is always in its graph.
"""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations, islice

from mirage_cli.algebra.canonical import ONE, Algebra, Atom, Form, LiteralAlgebra, Mono
from mirage_cli.algebra.safe import grows_with_exponentials, overflowing, plain_forms, program_forms
from mirage_cli.errors import NumberError
from mirage_cli.ir.access import Index
from mirage_cli.ir.hashed import hashed_once
from mirage_cli.ir.ops import OPS, Number, Type
from mirage_cli.ir.program import FLOAT8, HALVES, Eqn, Program, Tensor, cast_of, product_type, tables_of, tensor_type

MAX_CLASSES = 400
"""Beyond this many classes, further ones keep the program's own nodes alone (or one of the algebra's if none)."""
MAX_FACTORS = 6
"""A contraction of more factors than this is only ever split as one factor against the rest."""
MAX_ABSORBED = 2
"""Factors that are taken into a Σ at once."""

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
    def reduces(self) -> bool:
        return any(OPS[s.op].kind in ("reduction", "contraction") for s in self.steps)


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
    precise: classes that are float32 though the program names them, as it does those of internal and of promoted
    values that are no casts of 16 bits. exact: those whose products are. rounded: the others that are of 16 or 8 bits
    in the program.
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
    def exact(self) -> frozenset[Form]:
        return frozenset(f for v in self.program.exact() for f in self.forms[v])

    @cached_property
    def precise(self) -> frozenset[Form]:
        values = (self.program.exact() | self.program.promoted()) - self.program.widened() | self.program.internals
        return frozenset(f for v in values for f in self.forms[v])

    @cached_property
    def rounded(self) -> Mapping[Form, str]:
        types, found = self.program.float_types(), dict[Form, str]()
        for e in self.program.eqns:
            own = [f for f in self.forms[e.out] if self.own.get(f) == e.out and OPS[e.op].kind != "reduction"]
            for f in self.forms[e.out] if cast_of(e) else own:
                whole = type_of(f, self.program) == "int"
                if f not in self.precise and not whole and types.get(e.out) in HALVES | FLOAT8:
                    found[f] = types[e.out]
        return found

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
        if a.kind in ("max", "min"):
            return type_of(a.args[1], program) == "int"
        if a.kind == "sum":
            return all(integral(x) and e.denominator == 1 and e > 0 for x, e in a.args[1])
        return a.kind == "index" or (a.kind == "input" and types[a.args[0]] == "int")

    whole = all(
        c.denominator == 1 and all(integral(a) and e.denominator == 1 and e > 0 for a, e in m) for m, c in form.terms
    )
    return "int" if whole and form.terms else "float"


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
        _note_products(d, forms)
    own: dict[Form, list[Node]] = {}
    for forms in versions:
        for name, form in forms.items():
            d.names.setdefault(form, name)
            if form in (raw[name], plain[name]):
                d.own.setdefault(form, name)
        for form, nodes in _program_nodes(d, forms).items():
            own.setdefault(form, []).extend(nodes)
    todo = list(dict.fromkeys(d.outputs))
    for form in todo:
        if d.is_input(form):
            d.nodes[form] = ()
            continue
        nodes = own.get(form, [])
        if not own_algebra_only and len(todo) < MAX_CLASSES and not deadline():
            nodes = [*nodes, *_algebra_nodes(d, form, nodes)]
        elif not nodes:
            nodes = [*islice(_algebra_nodes(d, form, []), 1)]
        d.nodes[form] = _writable_nodes(d, form, nodes)
        known = set(todo)
        todo += [c for n in d.nodes[form] for c in n.children if c not in known and not known.add(c)]
    return d


def _writable_nodes(d: Decomposition, form: Form, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Those whose numbers float64 has, each once. Raises NumberError where there are none."""
    unique: dict[object, Node] = {}
    for n in nodes:
        if _has_literals(n):
            unique.setdefault(n.key, n)
    if not unique:
        raise NumberError(d.names.get(form, str(form)))
    return tuple(unique.values())


# -- types of products


def _note_products(d: Decomposition, forms: Mapping[str, Form]) -> None:
    """Takes down in which type the program multiplies under each Σ."""
    types = d.program.float_types()
    for e in d.program.eqns:
        if e.op == "dot":
            dtype = product_type(e, types, d.program.dtype)
            for total in _sums_over(forms[e.out], e.axes):
                same = d.products.setdefault(total, dtype) == dtype
                d.products[total] = dtype if same else "float32"


def _dot(d: Decomposition, a: Source, b: Source, axes: tuple[str, ...], dtype: str) -> Step:
    """A product in this type: an operand that would be multiplied in another is rounded to it first. In any, where it
    is not named."""
    sides = [x for x in (a, b) if isinstance(x, Form)]
    wide = [x for x in sides if _is_wide(d, x)]
    casts: list[Form] = []
    if dtype in HALVES and all(_fits(d, x, dtype) for x in wide):
        casts = wide
    elif dtype == "float32" and not wide:
        casts = [x for x in sides if not d.is_input(x)][:1]
    return Step("dot", (a, b), axes, tuple((x, dtype) for x in dict.fromkeys(casts)))


def _is_wide(d: Decomposition, form: Form) -> bool:
    """Whether products take a class as float32 that no cast has rounded (`ir.mugraph.exact_values`)."""
    if form not in d.wide:
        atom = form.atom
        if d.program.dtype == "float32" and not (atom is not None and atom.kind == "input"):
            d.wide[form] = True
        else:
            d.wide[form] = any(_is_wide_atom(d, a) for m, _ in form.terms for a, _ in m)
    return d.wide[form]


def _is_wide_atom(d: Decomposition, atom: Atom) -> bool:
    match atom.kind:
        case "input":
            return next(t.dtype for t in d.program.inputs if t.name == atom.args[0]) == "float32"
        case "sum":
            return d.products.get(atom) not in HALVES and any(_is_wide_atom(d, a) for a, _ in atom.args[1])
        case "fn" if OPS[atom.args[0]].cast:
            return False
        case _:
            return any(_is_wide(d, x) for x in atom.args if isinstance(x, Form))


def _fits(d: Decomposition, form: Form, dtype: str) -> bool:
    """Whether a class is in the range of a type, as far as the program's own values are: bfloat16 has float32's; to
    float16 it is a value of this type in the program, or what is made of float32 in it lies between 0 and 1."""
    if dtype == "bfloat16":
        return True
    types = d.program.float_types()
    if any(form in d.forms[v] for v, own in types.items() if own == dtype):
        return True
    single = d.program.dtype == "float32"
    factors = [f for m, _ in form.terms for f in m if single or _is_wide_atom(d, f[0])]
    return len(form.terms) == 1 and all(a.kind == "shifted_exp" and e > 0 for a, e in factors)


# -- nodes


def _program_nodes(d: Decomposition, safe: dict[str, Form]) -> dict[Form, list[Node]]:
    """The program's own equations as nodes, where they hold for the safe forms too."""
    nodes: dict[Form, list[Node]] = {}
    for e in _with_joined_reads(d.program):
        given = e.args[: OPS[e.op].arity]  # tables are part of an access
        args: tuple[Form | Number, ...] = tuple(safe[a] if isinstance(a, str) else a for a in given)
        made = safe[e.out].atom
        if made is not None and made.kind == "shifted_exp":
            continue  # exp(a - max a), which only exp_sub computes without NaN where a row is masked out whole
        if safe[e.out].number is not None and e.values:
            continue  # its terms have cancelled: what they leave would be rounding errors
        dims = frozenset[str]().union(*(a.dims for a in args if isinstance(a, Form)))
        acted_on = set(e.names or e.axes) if OPS[e.op].kind != "leaf" else set[str]()
        if not acted_on <= dims or safe[e.out].dims != frozenset(e.dims):
            continue  # an argument or the result has lost an axis, its terms having cancelled
        if d.algebra.apply(e.op, args, e.axes) is safe[e.out] and safe[e.out] not in args:
            constant = tuple(_constant(a) if isinstance(a, Form) else a for a in args)
            node = Node(_steps_of(d, e, constant), "program")
            nodes.setdefault(safe[e.out], []).append(node)
    for form, node in _moved_nodes(d, safe):
        nodes.setdefault(form, []).append(node)
    return nodes


def _moved_nodes(d: Decomposition, safe: Mapping[str, Form]) -> Iterator[tuple[Form, Node]]:
    """The program's own differences where they are read: at other places, from arguments there. Those of the algebra
    may cancel where these do not.

    D = X - Y, E = D[y + 1]  -->  E = X[y + 1] - Y[y + 1]
    """
    values = d.program.values()
    todo = [(str(e.args[0]), e.names) for e in d.program.eqns if e.op == "rename"]
    seen = set[Form]()
    for value, names in todo:
        e, form = values[value], d.algebra.rename(safe[value], names)
        if isinstance(e, Tensor) or OPS[e.op].kind not in ("elementwise", "rename") or form in seen:
            continue
        seen.add(form)
        if e.op == "rename":
            todo.append((str(e.args[0]), _read_twice(values[str(e.args[0])].dims, e.names, names)))
            continue
        todo += [(a, names) for a in e.values]
        if -1 not in OPS[e.op].linear[1:]:
            continue
        args = tuple(d.algebra.rename(safe[a], names) if isinstance(a, str) else a for a in e.args)
        if d.algebra.apply(e.op, args) is form and form not in args and form.number is None:
            yield form, Node((Step(e.op, tuple(_constant(a) if isinstance(a, Form) else a for a in args)),), "program")


def _with_joined_reads(program: Program) -> Iterator[Eqn]:
    """The equations. A read of what another equation has read stands behind the one read that does both.

    K = QKV[s, h + 8], KT = K[t, h]  -->  K = QKV[s, h + 8], KT = QKV[t, h + 8], KT = K[t, h]
    """
    dims = {x.name: x.dims for x in program.inputs} | {e.out: e.dims for e in program.eqns}
    reads: dict[str, Eqn] = {}
    for e in program.eqns:
        if e.op == "rename":
            reads[e.out] = e
            if (first := reads.get(str(e.args[0]))) is not None:
                x = str(first.args[0])
                names = _read_twice(dims[x], first.names, e.names)
                axes = tuple(text for a, i in names.items() for text in (a, str(i)))
                reads[e.out] = replace(e, args=(x, *tables_of(names.values())), axes=axes)
                yield reads[e.out]
        yield e


def _read_twice(dims: Sequence[str], first: Mapping[str, Index], then: Mapping[str, Index]) -> dict[str, Index]:
    """What takes the place of axes where what is read is read again. dims: of what is read first."""
    return {a: i for a, i in then.items() if a in dims} | {a: i.within(then) for a, i in first.items()}


def _steps_of(d: Decomposition, e: Eqn, args: tuple[Form | Number, ...]) -> tuple[Step, ...]:
    """An equation's steps: one, but for a product with a number, which is no operand of a contraction."""
    if OPS[e.op].kind == "contraction" and not all(isinstance(a, Form) for a in args):
        return Step("mul", args), Step("sum", (0,), e.axes)
    if e.op == "dot":
        types = [d.products[total] for f in d.forms[e.out] for total in _sums_over(f, e.axes)]
        dtype = types[0] if types else product_type(e, d.program.float_types(), d.program.dtype)
        return (_dot(d, *args, axes=e.axes, dtype=dtype),)
    return (Step(e.op, args, e.axes),)


def _constant(form: Form) -> Form | Number:
    """The number that a constant form is, so that it stays a literal."""
    if form.number is not None:
        return form.number
    if form.single and [a.kind for a, _ in form.single[0]] == ["inf"]:
        return math.copysign(math.inf, form.single[1].numerator)
    return form


def _has_literals(node: Node) -> bool:
    """Whether float64 has every number of the node: a product of the program's constants may be beyond it."""
    numbers = [a for s in node.steps for a in s.args if isinstance(a, Fraction)]
    return all(x == 0 or sys.float_info.min <= abs(x) <= sys.float_info.max for x in numbers)


class _Steps:
    """Collects the steps of a node."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, op: str, *args: Source, axes: tuple[str, ...] = ()) -> int:
        return self.append(Step(op, args, axes))

    def append(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def node(self, origin: str = "algebra") -> Node:
        return Node(tuple(self.steps), origin)


def _algebra_nodes(d: Decomposition, form: Form, own: Sequence[Node]) -> Iterator[Node]:
    """One by one: of many classes, the first is enough."""
    if form.number is not None or len(form.terms) == 0:
        steps = _Steps()
        steps.add("mul", form.number or Fraction(0), ONE)
        yield steps.node()
        return
    if len(form.terms) > 1:
        yield from _sum_nodes(d, form, own)
        return
    mono, c = form.terms[0]
    if form.atom is not None and form.atom.kind != "sum":
        yield _atom_node(d, form.atom)
        return
    if form.atom is None:
        steps = _Steps()
        _product(d, steps, [], mono, c)
        if steps.steps:
            yield steps.node()
    for atom, e in mono:
        if atom.kind == "sum" and e == 1:
            yield from _contractions(d, atom, tuple(f for f in mono if f[0] is not atom), c)


def _product(d: Decomposition, steps: _Steps, start: list[Source], mono: Mono, c: Fraction) -> None:
    """Steps for start · c · mono, small factors first, divisions last."""
    times: list[Source] = list(start)
    over: list[Source] = []
    for atom, e in sorted(mono, key=lambda f: (len(f[0].dims), f[0].key)):
        base = _constant(atom.args[0] if atom.kind == "poly" else d.algebra.of_atom(atom))
        if atom.kind == "number":
            base = atom.args[0]
        if e == 1 or e == -1:
            (times if e == 1 else over).append(base)
        elif e == 2:
            times.append(steps.add("square", base))
        elif abs(e) == Fraction(1, 2):
            times.append(steps.add("sqrt" if e > 0 else "rsqrt", base))
        else:
            times.append(steps.add("pow", base, e))
    if not times:
        times, c = [c], ONE
    result = times[0]
    if c != 1:
        result = steps.add("neg", result) if c == -1 else steps.add("mul", result, c)
    for x in times[1:]:
        result = steps.add("mul", result, x)
    for x in over:
        result = steps.add("div", result, x)


def _atom_node(d: Decomposition, atom: Atom) -> Node:
    """The one operator that makes an atom which is no Σ."""
    algebra, steps = d.algebra, _Steps()
    match atom.kind:
        case "exp":
            steps.add("exp", _constant(atom.args[0]))
        case "shifted_exp":
            x, axes, k = atom.shift
            steps.add("exp_sub", algebra.scale(x, k), algebra.scale(algebra.extremum("max", x, axes), k))
        case "log":
            steps.add("log", atom.args[0])
        case "fn":
            args = tuple(_constant(a) for a in atom.args[1:])
            steps.add(atom.args[0], *args)
        case "max" | "min":
            steps.add(atom.kind, atom.args[1], axes=atom.args[0])
        case "index" | "size":
            steps.add(atom.kind, axes=(atom.args[0],))
        case "poly":
            steps.add("mul", atom.args[0], ONE)
        case _:
            steps.add("mul", _constant(algebra.of_atom(atom)), ONE)
    return steps.node()


# -- Σ of a product


def _contractions(d: Decomposition, total: Atom, others: Mono, c: Fraction) -> Iterator[Node]:
    """dot or sum for one Σ, with some of the factors that stand beside it taken in."""
    bound, mono, dtype = frozenset(total.args[0]), total.args[1], d.products.get(total, "")
    takeable = [f for f in others if not f[0].dims & bound and not (f[0].kind == "sum" and f[1] == 1) and f[0].dims]

    def summed() -> Node:
        steps = _Steps()
        first = steps.add("sum", d.algebra.of_mono(mono), axes=total.args[0])
        _product_after(d, steps, first, others, c)
        return steps.node()

    if len(mono) == 1:
        yield summed()
    found = 0
    for n in range(min(len(takeable), MAX_ABSORBED) + 1):
        for taken in combinations(takeable, n):
            rest = tuple(f for f in others if f not in taken)
            for side, other, axes in _partitions(d, mono + taken, bound):
                steps = _Steps()
                if dtype in HALVES:  # so are the Σs that the sides have been given
                    for inner in (*_sums_in(side), *_sums_in(other)):
                        if {*inner.args[0]} <= bound - {*axes}:
                            d.products.setdefault(inner, dtype)
                if side.dims == other.dims:  # neither is a matrix beside the other: a product by elements
                    first = steps.add("sum", steps.add("mul", side, other), axes=axes)
                else:
                    first = steps.append(_dot(d, side, other, axes, dtype))
                _product_after(d, steps, first, rest, c)
                found += 1
                yield steps.node()
    if len(mono) > 1 and not found:
        yield summed()
    yield from _sums_of_parts(d, total, others, c)


def _sums_of_parts(d: Decomposition, total: Atom, others: Mono, c: Fraction) -> Iterator[Node]:
    """The Σ of squared distances by parts, and the Σ that its shift holds. i are the innermost of the axes.

    Σ_ai (x - s)² = Σ_a (Σ_i (x - m)² + |i|·(m - s)²), where m is the mean of x over i, and s is any value without i
    (Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances").
    Σ_ai x = Σ_a Σ_i x

    A shift such as the mean over all is not known before all of x was read. The parts are about means of their own, and
    what they are off is small where s is near x: nothing cancels that does not in the Σ itself.
    """
    algebra, axes = d.algebra, tuple(a for a in d.axes if a in total.args[0])
    shift = _shifted_square(algebra, total)
    held = not shift and any(
        a.args[0] == total.args[0] and (p := _shifted_square(algebra, a)) and total in _sums_in(p)
        for a in [*algebra.atoms.values()]
        if a.kind == "sum"
    )
    for n in range(1, len(axes) if shift or held else 1):
        outer, inner = axes[:n], axes[n:]
        steps = _Steps()
        part: Source = algebra.sum(algebra.of_mono(total.args[1]), inner)
        if shift:
            size = functools.reduce(algebra.mul, map(algebra.size, inner))
            apart = algebra.mul(algebra.sum(shift, inner), algebra.pow(size, -ONE))
            squares = steps.add("mul", steps.add("square", _constant(apart)), size)
            own = algebra.sum(algebra.pow(algebra.sub(shift, apart), Fraction(2)), inner)
            part = steps.add("add", squares, own)
        first = steps.add("sum", part, axes=outer)
        _product_after(d, steps, first, others, c)
        yield steps.node()


def summed_in_parts(program: Program) -> set[frozenset[str]]:
    """The axes of every Σ of squares about a shift that holds a Σ over the same axes, in a lowered program: two passes
    where they are one axis, and one by parts."""
    algebra = Algebra()
    plain_forms(algebra, program)
    atoms = [a for a in algebra.atoms.values() if a.kind == "sum"]
    return {frozenset(a.args[0]) for a in atoms if _shifted_square(algebra, a)}


def _shifted_square(algebra: Algebra, total: Atom) -> Form | None:
    """The x - s of Σ (x - s)², where s lacks the axes of the Σ and holds a Σ over them."""
    if len(total.args[1]) > 1:
        return None
    ((atom, power),) = total.args[1]
    x = atom.args[0] if atom.kind == "poly" and power == 2 else algebra.zero
    return x if any(a.args[0] == total.args[0] for a in _sums_in(x)) else None


def _sums_in(x: Form) -> list[Atom]:
    """The Σs that are factors of its terms."""
    return [a for m, _ in x.terms for a, _ in m if a.kind == "sum"]


def _sums_over(x: Form, axes: Iterable[str]) -> list[Atom]:
    """Those of these that are over one of the axes."""
    return [total for total in _sums_in(x) if {*total.args[0]} & {*axes}]


def _product_after(d: Decomposition, steps: _Steps, first: int, rest: Mono, c: Fraction) -> None:
    if rest or c != 1:
        _product(d, steps, [first], rest, c)


def _partitions(d: Decomposition, mono: Mono, bound: frozenset[str]) -> Iterator[tuple[Form, Form, tuple[str, ...]]]:
    """The two sides of a dot, each with its own Σs inside, for every bipartition of the factors. Of a side that is a
    value of the program, no factor is better taken by the other side."""
    factors = list(mono)
    if len(factors) < 2:
        return
    rest = factors[1:]
    sizes = range(len(rest)) if len(factors) <= MAX_FACTORS else (0, len(rest) - 1)
    for n in sizes:
        for chosen in combinations(rest, n):
            left = (factors[0], *chosen)
            right = tuple(f for f in rest if f not in chosen)
            axes = bound & _dims(left) & _dims(right)
            if not axes:
                continue
            if _outer(left, bound - axes) or _outer(right, bound - axes):
                d.cuts["outer product"] += 1
                continue
            sides = [d.algebra.sum(d.algebra.of_mono(s), bound & _dims(s) - axes) for s in (left, right)]
            scaled = (_scales_larger(d, left, right), _scales_larger(d, right, left))
            if any(larger and side not in d.own for larger, side in zip(scaled, sides, strict=True)):
                d.cuts["scaling of the larger operand"] += 1
                continue
            a, b = sorted(sides, key=lambda f: f.key)
            yield a, b, tuple(x for x in d.axes if x in axes)


def _dims(mono: Iterable[tuple[Atom, Fraction]]) -> frozenset[str]:
    return frozenset[str]().union(*(a.dims for a, _ in mono))


def _outer(side: Sequence[tuple[Atom, Fraction]], summed: frozenset[str]) -> bool:
    """Whether a side is a product with more axes than any of its factors, and nothing is summed in it."""
    dims = _dims(side)
    return len(side) > 1 and not dims & summed and all(a.dims != dims for a, _ in side)


def _scales_larger(
    d: Decomposition, side: Sequence[tuple[Atom, Fraction]], other: Sequence[tuple[Atom, Fraction]]
) -> bool:
    """Whether a factor of this side only scales it, and could as well scale the other, smaller side."""
    sizes = d.sizes

    def elements(dims: frozenset[str]) -> tuple[int, str]:
        return math.prod(sizes[a] for a in dims), ",".join(sorted(dims))

    for f in side:
        rest = _dims([g for g in side if g is not f])
        if (
            len(side) > 1
            and f[0].dims <= rest
            and f[0].dims <= _dims(other)
            and elements(rest) > elements(_dims(other))
        ):
            return True
    return False


# -- sums of terms


def _sum_nodes(d: Decomposition, form: Form, own: Sequence[Node]) -> Iterator[Node]:
    """Adding terms, and taking out a factor that several terms share, also from under their Σs."""
    steps = _Steps()
    _chain(d, steps, None, form.terms)
    if _is_difference(form) and type_of(form, d.program) != "int":
        # as the user took it, or a multiple of it: of what is rounded, other terms may cancel to nothing
        if _of_products(d, own):
            yield steps.node("program")
            return
        multiple = None if own else _multiple_of_own(d, form)
        if own or multiple:
            d.cuts["cancellation"] += 1
            yield from (multiple,) if multiple else _scaled_after(d, own)
            return
    yield from _scaled_after(d, own)
    if any(_multiplies_sums(n) for n in own):
        d.cuts["a product of sums multiplied out"] += 1
        return
    yield steps.node()
    yield from _common_factors(d, form)
    yield from _common_under_sum(d, form)


def _is_difference(form: Form) -> bool:
    return len({c > 0 for _, c in form.terms}) > 1


def _of_products(d: Decomposition, own: Sequence[Node]) -> bool:
    """Whether the program multiplies a difference of values that hold sums, each scaled along other axes than the
    product's, by another factor: Σ (a - g·b)·v = Σ a·v - g·Σ b·v.

    What sums were rounded to is in the difference already, and with it an error of the size of theirs, not of what they
    leave. (It is not of inputs, which may be near each other; nor of squares: Σ (x - m)² is small where Σ x² is not.)
    """
    for step in (n.steps[0] for n in own if n.steps[0].op == "dot"):
        *factors, difference = sorted((a for a in step.args if isinstance(a, Form)), key=lambda f: len(f.terms))
        if _is_difference(difference) and all(len(f.terms) == 1 for f in factors):
            return all(_scaled_sum(d, dict(mono), frozenset(step.axes)) for mono, _ in difference.terms)
    return False


def _scaled_sum(d: Decomposition, mono: dict[Atom, Fraction], axes: frozenset[str]) -> bool:
    """Whether a term is a value of the program that holds a Σ, times factors without these axes."""
    for own in (f for f in d.own if len(f.terms) == 1 and axes <= f.dims):
        factors = dict(own.terms[0][0])
        held = factors.items() <= mono.items() and not any(a.dims & axes for a in mono.keys() - factors.keys())
        if held and any(a.kind == "sum" for a in factors):
            return True
    return False


def _multiplies_sums(node: Node) -> bool:
    """Whether an equation multiplies two sums, so that its result has a term for each pair of theirs; or a sum by a
    number, which has the ways of that sum."""
    step = node.steps[0]
    sums = [not isinstance(a, Form) or len(a.terms) > 1 for a in step.args]
    return OPS[step.op].growth == "product" and all(sums)


def _scaled_after(d: Decomposition, own: Iterable[Node]) -> Iterator[Node]:
    """Σ (g·a)·v = g·Σ a·v of a product that the program takes. g lacks the axes of the Σ; v, which has several terms,
    stays as the program has it."""
    for step in (n.steps[0] for n in own if len(n.steps) == 1 and n.steps[0].op == "dot"):
        for x, other in (step.args, step.args[::-1]):
            if isinstance(x, Form) and x.single:
                mono, c = x.single
                outside = tuple(f for f in mono if not f[0].dims & set(step.axes))
                inside = tuple(f for f in mono if f not in outside)
                if outside and inside:
                    steps = _Steps()
                    dtype = next((dtype for _, dtype in step.casts), "")
                    first = steps.append(_dot(d, d.algebra.of_mono(inside), other, step.axes, dtype))
                    _product_after(d, steps, first, outside, c)
                    yield steps.node()


def _multiple_of_own(d: Decomposition, form: Form) -> Node | None:
    """The form as a number times a value of the program."""
    leading = form.terms[0][1]
    for own in d.own:
        if (
            own is not form
            and len(own.terms) == len(form.terms)
            and d.algebra.scale(own, leading / own.terms[0][1]) is form
        ):
            steps = _Steps()
            steps.add("mul", own, leading / own.terms[0][1])
            return steps.node()
    return None


def _chain(d: Decomposition, steps: _Steps, start: int | None, terms: Sequence[tuple[Mono, Fraction]]) -> None:
    """Steps for start + terms, positive terms first."""
    result: Source | None = start
    for mono, c in sorted(terms, key=lambda t: (t[1] < 0, not t[0])):
        term: Source
        if not mono:
            term, c = c, ONE
        else:
            term = _constant(d.algebra.of_mono(mono))
        if abs(c) != 1:
            term, c = steps.add("mul", term, abs(c)), ONE if c > 0 else -ONE
        if result is None:
            result = term if c > 0 else steps.add("neg", term)
        else:
            result = steps.add("add" if c > 0 else "sub", result, term)


def _common_factors(d: Decomposition, form: Form) -> Iterator[Node]:
    shared: Counter[tuple[Atom, Fraction]] = Counter(f for mono, _ in form.terms for f in mono)
    for factor, count in sorted(shared.items(), key=lambda f: f[0][0].key):
        if count < 2 or not factor[0].dims:
            continue
        inside = [(tuple(f for f in m if f != factor), c) for m, c in form.terms if factor in m]
        outside = [(m, c) for m, c in form.terms if factor not in m]
        rest = d.algebra.add(*(d.algebra.of_mono(m, c) for m, c in inside))
        steps = _Steps()
        first = steps.add("mul", d.algebra.of_mono((factor,)), _constant(rest))
        _chain(d, steps, first, outside)
        yield steps.node()


def _common_under_sum(d: Decomposition, form: Form) -> Iterator[Node]:
    """Σ f·a + g·Σ f·b = Σ f·(a + g·b), where a and b may be Σs over further axes, and g lacks the axes of the Σ."""
    candidates: dict[tuple[Atom, Fraction], list[int]] = {}
    for i, (mono, _) in enumerate(form.terms):
        sums = [a for a, e in mono if a.kind == "sum" and e == 1]
        if len(sums) == 1:
            beside = _dims(f for f in mono if f[0] is not sums[0])
            for factor in sums[0].args[1]:
                if not beside & factor[0].dims & frozenset(sums[0].args[0]):
                    candidates.setdefault(factor, []).append(i)
    for factor, where in sorted(candidates.items(), key=lambda f: f[0][0].key):
        if len(where) < 2:
            continue
        axes: set[frozenset[str]] = set()
        types: set[str] = set()
        inner: list[Form] = []
        for i in where:
            mono, c = form.terms[i]
            total = next(a for a, e in mono if a.kind == "sum" and e == 1)
            here = factor[0].dims & frozenset(total.args[0])
            axes.add(here)
            types.add(d.products.get(total, ""))
            left = d.algebra.of_mono(tuple(f for f in total.args[1] if f != factor))
            summed = d.algebra.sum(left, frozenset(total.args[0]) - here)
            inner.append(d.algebra.mul(summed, d.algebra.of_mono(tuple(f for f in mono if f[0] is not total), c)))
        if len(axes) > 1:
            continue
        steps = _Steps()
        dtype = types.pop() if len(types) == 1 else ""
        own = tuple(sorted(axes.pop()))
        first = steps.append(_dot(d, d.algebra.of_mono((factor,)), d.algebra.add(*inner), own, dtype))
        _chain(d, steps, first, [t for i, t in enumerate(form.terms) if i not in where])
        yield steps.node()
