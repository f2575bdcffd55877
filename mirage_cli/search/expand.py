"""What one kernel computes: a choice of nodes of the decomposition graph, from target classes down to leaves in memory.

An `Expansion` is the part of the graph that is fused into a kernel. `expansions` enumerates all of them for a set of
targets; `equations` writes one down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias  # Any: what is worked out once

from mirage_cli.algebra.canonical import ONE, Atom, Form, Mono
from mirage_cli.algebra.graph import Decomposition, Node, Step
from mirage_cli.algebra.safe import up_to_a_number
from mirage_cli.ir.access import Access, dims_of, is_whole, plain, read_by
from mirage_cli.ir.access_text import substitution
from mirage_cli.ir.hashed import hashed_once
from mirage_cli.ir.once import once
from mirage_cli.ir.ops import FOLDS, OPS
from mirage_cli.ir.placement import InexpressibleError
from mirage_cli.ir.program import DTYPES, Arg, Eqn, Tensor, equation, live_eqns, tensor_type
from mirage_cli.search.cuts import Bounds

ASKED = 256
"""Decisions of a walk between two questions whether the time is up."""


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class Expansion:
    """Targets computed in one kernel, the node chosen for every class inside, and the classes read from memory."""

    targets: tuple[Form, ...]
    chosen: tuple[tuple[Form, Node], ...]  # in the order of computation
    leaves: tuple[Form, ...]

    def faithful(self, own: Mapping[Form, str]) -> bool:
        """Whether every operand of a product is a value of the program too, and every difference the program's own.

        Products take operands in the program's dtype, so other operands may lie outside its range (an unnormalised row,
        say) where the program's do not; and other terms may cancel where the program's do not.
        """
        nodes = [n for _, n in self.chosen]
        return all(a in own for n in nodes for a in n.multiplied) and not any(n.subtracts for n in nodes)

    @cached_property
    def operands(self) -> frozenset[Form]:
        """The leaves that products take as they lie in memory: no thread has to touch these on their way."""
        taken = (a for _, n in self.chosen for a in n.multiplied)
        return frozenset(a for a in taken if isinstance(a, Form) and a in self.leaves)

    def recomputes_product(self, nodes: Mapping[Form, Sequence[Node]]) -> bool:
        """Whether a contraction makes a class that follows from other classes of the expansion without one.

        Σ x·(c·z) is c·y where c and y = Σ x·z are there. It would be as much work again and, where terms nearly cancel,
        the two would differ by rounding. nodes: of all classes.
        """
        behind = {leaf: {leaf} for leaf in self.leaves}
        for f, node in self.chosen:
            behind[f] = {f}.union(*(behind[c] for c in node.children))
        contracted = (f for f, node in self.chosen if any(s.op == "dot" for s in node.steps))
        ways = ((f, n) for f in contracted for n in nodes[f] if not n.reduces)
        return any(all(f not in behind.get(c, {f}) for c in n.children) for f, n in ways)

    @cached_property
    def depth(self) -> int:
        """The longest chain of reductions that depend on each other: how many passes over the data at most."""
        depth: dict[Form, int] = {}
        for f, node in self.chosen:
            deepest = 0
            for c in node.children:
                if c in depth and depth[c] > deepest:
                    deepest = depth[c]
            depth[f] = node.reduces + deepest
        return max(depth.values(), default=0)


def node_degree(d: Decomposition, node: Node) -> Fraction:
    """The largest degree in the inputs of an operand of the node's products."""
    return max((degree(a) for a in factors(d, node)), default=Fraction(0))


def factors(d: Decomposition, node: Node) -> list[Form]:
    """The operands of the node's products."""
    found: list[Form] = []
    results: list[Form] = []
    for s in node.steps:
        args = [results[a] if isinstance(a, int) else a for a in s.args]
        if s.op == "dot":
            found += [a for a in args if isinstance(a, Form)]
        if s is not node.steps[-1]:
            results.append(d.algebra.apply(s.op, args, s.axes))
    return found


def coefficient(form: Form) -> tuple[tuple[Mono, ...], Fraction]:
    """A form up to its coefficients, and the largest of them."""
    return tuple(m for m, _ in form.terms), max((abs(c) for _, c in form.terms), default=Fraction(0))


def degree(form: Form) -> Fraction:
    """How fast a value grows with the inputs: the degree of its largest term; 0 for what functions make of them."""

    def of_atom(a: Atom) -> Fraction:
        if a.kind == "input":
            return Fraction(1)
        if a.kind == "sum":
            return of_mono(a.args[1])
        if a.kind in FOLDS:
            return degree(a.args[1])
        return degree(a.args[0]) if a.kind == "poly" else Fraction(0)

    def of_mono(m: Mono) -> Fraction:
        return sum((e * of_atom(a) for a, e in m), Fraction(0))

    return max((of_mono(m) for m, _ in form.terms), default=Fraction(0))


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A node of a class, with what a walk asks of it again and again.

    made: the class and the node. reads: what it reads from memory, whatever else does.
    """

    made: tuple[Form, Node]
    equations: int
    reduces: int
    moved: tuple[Form, ...]
    children: tuple[Form, ...]
    reads: tuple[Form, ...]

    @staticmethod
    def of(form: Form, node: Node, copied: bool) -> Way:
        """copied: whether the class is an input, which is read where it is stored."""
        reads = tuple(dict.fromkeys((*node.moved, *((form,) if copied else ()))))
        return Way((form, node), len(node.steps), int(node.reduces), node.moved, node.children, reads)


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """All of a class. equations, reduces: the most that one of them has. moving: whether any of them has moved."""

    each: tuple[Way, ...]
    equations: int
    reduces: int
    moving: bool

    @staticmethod
    def of(each: tuple[Way, ...]) -> Ways:
        return Ways(
            each,
            max((w.equations for w in each), default=0),
            max((w.reduces for w in each), default=0),
            any(w.moved for w in each),
        )


class Space:
    """The decomposition graph with what a search asks of it again and again."""

    def __init__(self, decomposition: Decomposition, bounds: Bounds) -> None:
        self.d = decomposition
        self.bounds = bounds
        self.cuts: Counter[str] = Counter()
        self.types = {f: decomposition.type_of(f) for f in decomposition.nodes}
        nodes = [n for some in decomposition.nodes.values() for n in some]
        self.operands = {a for n in nodes for a in n.multiplied if isinstance(a, Form)}
        self.moved = {f for n in nodes for f in n.moved}
        products = [n for n in nodes if n.origin == "program" and any(s.op == "dot" for s in n.steps)]
        self.max_degree = max((node_degree(decomposition, n) + 1 for n in products), default=None)
        """Of an operand in the inputs. One of a higher degree may leave float16's range where the program's do not."""
        self.coefficients: dict[tuple[Mono, ...], Fraction] = {}
        """The largest coefficient of the program's own operands: c·x may be within float16's range where x is not."""
        if decomposition.program.dtype != "float32":
            for shape, c in (coefficient(f) for n in products for f in factors(decomposition, n)):
                self.coefficients[shape] = max(c, self.coefficients.get(shape, c))
        self.named = {coefficient(f)[0] for f in decomposition.own}
        self.scaled = [f.single[0] for n in products for f in factors(decomposition, n) if f.single]
        """The program's own operands, as factors: x·S may be within float16's range where x is not."""
        self.multiplied = {
            f: frozenset(a for n in some for a in n.multiplied if isinstance(a, Form))
            for f, some in decomposition.nodes.items()
        }
        """What products that make a class multiply."""
        self.inputs = frozenset(f for f in decomposition.nodes if decomposition.is_input(f))
        self.options = dict(decomposition.nodes)
        """The nodes of every class; an input has one that copies it."""
        for f in self.inputs:
            self.options[f] = (Node((Step("mul", (f, ONE)),), "program"),)
        self.ways = {
            f: Ways.of(tuple(Way.of(f, n, f in self.inputs) for n in nodes)) for f, nodes in self.options.items()
        }
        self.written_down: dict[Expansion, Equations | InexpressibleError] = {}
        self.worked_out: dict[Any, Any] = {}  # as `once` has it
        self.rank: dict[Form, int] = {}
        for f in decomposition.nodes:
            self._rank(f, set())
        leaves = [f for f in decomposition.nodes if self._may_be_leaf(f)]
        self.leaves = self._without_multiples([f for f in leaves if not self._is_renaming(f)])

    def multiply_alike(self, f: Form, g: Form) -> bool:
        """Whether products that make these classes share an operand."""
        return not self.multiplied[f].isdisjoint(self.multiplied[g])

    def _rank(self, f: Form, path: set[Form]) -> int:
        if f not in self.rank:
            if f in path:
                return 0
            path.add(f)
            children = {c for n in self.d.nodes[f] for c in n.children}
            self.rank[f] = 1 + max((self._rank(c, path) for c in children), default=-1)
            path.discard(f)
        return self.rank[f]

    def _may_be_leaf(self, f: Form) -> bool:
        """Whether this class is an input, the direct result of a reduction, an output, an operand of a contraction
        that itself depends on a reduction or that the program names, or one that depends on a reduction and is read
        elsewhere than where it is computed.

        Anything else is dominated: a value in the middle of an elementwise chain by the chain's end, an elementwise
        function of inputs by the inputs. A number without axes is one only where it is reduced, an integer only where
        it depends on a reduction: of what is not reduced, it is a position or part of an input. Masks are none.
        """
        if self.d.is_input(f):
            return True
        reduced = any(OPS[n.steps[-1].op].kind in ("reduction", "contraction") for n in self.d.nodes[f])
        reduces = self.holds_reduction(f)
        operand = f in self.operands and (f in self.d.own or reduces)
        read = operand or f in self.d.outputs or (f in self.moved and reduces)
        kept = self.types[f] == "float" or (self.types[f] == "int" and reduces)
        return kept and (reduced or (bool(f.dims) and read))

    def _is_renaming(self, f: Form) -> bool:
        """Whether this class is all of another class under other names of axes: the other is read in its place."""
        return f not in self.d.outputs and any(
            self._may_be_leaf(g)
            and is_whole(read_by((*g.dims,), substitution(n.steps[0].axes)), (*g.dims,), self.d.sizes)
            for n in self.d.nodes[f]
            for g in n.moved
        )

    def _without_multiples(self, leaves: list[Form]) -> frozenset[Form]:
        """Of classes that are a number times each other, those that the program names, or else one of them."""
        alike: dict[object, list[Form]] = {}
        for f in leaves:
            alike.setdefault(up_to_a_number(f), []).append(f)
        named = ([f for f in same if f in self.d.names or self.d.is_input(f)] or same[:1] for same in alike.values())
        kept = frozenset(f for same in named for f in same)
        self.cuts["a number times another class in memory"] += len(leaves) - len(kept)
        return kept

    def holds_reduction(self, f: Form) -> bool:
        """Whether every way to make this class from inputs reduces something."""
        return any(a.kind in {"sum", "shifted_exp", "poly", *FOLDS} for m, _ in f.terms for a, _ in m)

    def expansions(self, targets: tuple[Form, ...], ask: Callable[[], None] = lambda: None) -> list[Expansion]:
        """Every expansion of these targets within the bounds; where there are more, a spread of them.

        Passes differ in what they prefer, so that a cut leaves all kinds: to fuse by the first ways, which are the
        program's own; to fuse by any; to read from memory.
        ask: called now and then, and may raise where the time is up.
        """
        found: dict[tuple[int, ...], Expansion] = {}  # by what is chosen, which lives as long as the space does
        for fused_first, own_first in ((True, True), (True, False), (False, False)):
            before = self.cuts["expansions of one kernel"]
            for e in _Walk(self, targets, fused_first, own_first, ask).whole():
                found.setdefault(tuple(map(id, e.chosen)), e)
            if self.cuts["expansions of one kernel"] == before:
                break
        within = _without([*found.values()], self.exceeds)
        if len(within) < len(found):
            self.cuts["operands of a higher degree"] += len(found) - len(within)
        kept = _without(within, self.enlarges)
        if len(kept) < len(within):
            self.cuts["operands without the program's coefficient"] += len(within) - len(kept)
        return kept

    def written(self, e: Expansion) -> Equations:
        """The equations of an expansion, worked out once. Raises InexpressibleError."""
        if e not in self.written_down:
            try:
                self.written_down[e] = equations(self.d, e)
            except InexpressibleError as error:
                self.written_down[e] = error
        found = self.written_down[e]
        if isinstance(found, InexpressibleError):
            raise found.with_traceback(None)
        return found

    @once
    def recomputes(self, e: Expansion) -> bool:
        return e.recomputes_product(self.d.nodes)

    @once
    def enlarges(self, node: Node) -> bool:
        """Whether a product takes an operand of the program's without its small coefficient, or without an input that
        the program multiplies it by; other than an input."""
        taken = [f for f in factors(self.d, node) if not self.d.is_input(f)]
        larger = any(c > self.coefficients.get(shape, c) for shape, c in map(coefficient, taken))
        return larger or any(map(self.lacks_input, taken))

    def lacks_input(self, operand: Form) -> bool:
        """Whether an operand that the program does not name comes to one of the program's by factors of which one is an
        input: a scale, say, without which it leaves float16's range."""
        shape, _ = coefficient(operand)
        if self.d.program.dtype != "float16" or len(shape) != 1 or shape in self.named:
            return False
        (mono,) = shape
        left = (dict(own).items() - dict(mono).items() for own in self.scaled if {*mono} < {*own})
        return any(a.kind == "input" for rest in left for a, _ in rest)

    @once
    def exceeds(self, node: Node) -> bool:
        """Whether a product takes an operand of too high a degree in the inputs. The degree of X∘G is 2, that of a row
        over its norm is 0."""
        return self.max_degree is not None and node_degree(self.d, node) > self.max_degree


def _without(some: list[Expansion], wrong: Callable[[Node], bool]) -> list[Expansion]:
    """The expansions of a walk that have no such node."""
    nodes = {id(made): made[1] for e in some for made in e.chosen}
    bad = {i for i, node in nodes.items() if wrong(node)}
    return [e for e in some if bad.isdisjoint(map(id, e.chosen))] if bad else some


Todo: TypeAlias = "tuple[Form, Todo] | None"
"""Classes that a walk has to decide, the next one first."""


class _Walk:
    """One pass over the expansions of some targets. What is chosen, what is read from memory and what is used of the
    bounds belong to where the walk stands; each step takes its own part back when it returns."""

    def __init__(
        self, space: Space, targets: tuple[Form, ...], fused_first: bool, own_first: bool, ask: Callable[[], None]
    ) -> None:
        self.space, self.bounds = space, space.bounds
        self.targets, self.fused_first, self.own_first, self.ask = targets, fused_first, own_first, ask
        self.chosen: dict[Form, Way] = {}
        self.leaves: set[Form] = set()
        self.read_alone = space.inputs.difference(targets)
        self.intermediates = self.equations = self.reductions = self.decisions = 0

    def whole(self) -> list[Expansion]:
        """As many as the bounds allow."""
        return self.expansions(_with(None, self.targets), self.bounds.expansions)

    def expansions(self, todo: Todo, quota: int) -> list[Expansion]:
        """At most `quota`, with these classes still to decide."""
        chosen, leaves = self.chosen, self.leaves
        found: list[Expansion] = []
        taken: list[tuple[Form, Way | None, tuple[Form, ...]]] = []
        while todo is not None:
            form, rest = todo
            if form in chosen or form in leaves:
                todo = rest
                continue
            options = self.options(form)
            if len(options) != 1:
                found = self.alternatives(form, options, rest, quota)
                break
            if not self.decides():
                self.space.cuts["expansions of one kernel"] += 1
                break
            (way,) = options
            taken.append((form, way, self.take(form, way)))
            todo = rest if way is None else _with(rest, way.children)
        else:
            found = self.complete()
        for step in reversed(taken):
            self.give_back(*step)
        return found

    def alternatives(self, form: Form, options: Sequence[Way | None], rest: Todo, quota: int) -> list[Expansion]:
        """With a class had in each way in turn. Alternatives share the quota, and what one leaves over goes to the
        next."""
        found: list[Expansion] = []
        for i, way in enumerate(options):
            left = len(options) - i
            share = (quota - len(found) + (left - 1) * self.own_first) // left  # rounded up for those in front
            if not self.decides() or share < 1:
                self.space.cuts["expansions of one kernel"] += 1
                continue
            new = self.take(form, way)
            found += self.expansions(rest if way is None else _with(rest, way.children), share)
            self.give_back(form, way, new)
        return found

    def decides(self) -> bool:
        """Whether the bound allows one more decision."""
        self.decisions += 1
        if self.decisions % ASKED == 0:
            self.ask()
        return self.decisions <= self.bounds.decisions

    def take(self, form: Form, way: Way | None) -> tuple[Form, ...]:
        """A class is read from memory, or computed this way. What is read for that and was not before."""
        reads = (form,) if way is None else way.reads
        new = tuple(f for f in reads if f not in self.leaves) if reads else ()
        if new:
            self.leaves.update(new)
            self.intermediates += len(new) - len(self.space.inputs.intersection(new))
        if way is not None:
            self.chosen[form] = way
            self.equations += way.equations
            self.reductions += way.reduces
        return new

    def give_back(self, form: Form, way: Way | None, new: tuple[Form, ...]) -> None:
        """Undoes `take`, which returned new."""
        if new:
            self.leaves.difference_update(new)
            self.intermediates -= len(new) - len(self.space.inputs.intersection(new))
        if way is not None:
            del self.chosen[form]
            self.equations -= way.equations
            self.reductions -= way.reduces

    def options(self, form: Form) -> Sequence[Way | None]:
        """The ways to have a class inside a kernel, None to read it from memory."""
        if form in self.read_alone:
            return (None,)
        ways = self.space.ways[form]
        equations, reductions = self.bounds.equations - self.equations, self.bounds.reductions - self.reductions
        options = ways.each
        if ways.equations > equations or ways.reduces > reductions or ways.moving:
            options = tuple(w for w in ways.each if self.within(w, equations, reductions))
        if form not in self.space.leaves or form in self.targets:
            return options
        if self.intermediates >= self.bounds.intermediates:
            self.space.cuts["intermediates read by one kernel"] += 1
            return options
        return (*options, None) if self.fused_first else (None, *options)

    def within(self, way: Way, equations: int, reductions: int) -> bool:
        """Whether a way needs no more equations and reductions than these, and reads what may be read."""
        if way.equations > equations:
            self.space.cuts["equations of one kernel"] += 1
        elif way.reduces > reductions:
            self.space.cuts["reductions of one kernel"] += 1
        elif not all(self.readable(f) for f in way.moved if f not in self.leaves):
            self.space.cuts["rename inside a kernel"] += 1
        else:
            return True
        return False

    def readable(self, form: Form) -> bool:
        """Whether this kernel may read a class from memory."""
        if form in self.space.inputs:
            return True
        within = self.intermediates < self.bounds.intermediates
        return within and form in self.space.leaves and form not in self.chosen and form not in self.targets

    def complete(self) -> list[Expansion]:
        """What is chosen, in an order of computation; none if the choice is circular."""
        chosen, order = self.chosen, list[tuple[Form, Node]]()
        done: dict[Form, bool] = {}  # false: on the way there

        def visit(f: Form, way: Way) -> bool:
            done[f] = False
            for c in way.children:
                if c in done:
                    if not done[c] and c is not f:
                        return False
                elif c in chosen and not visit(c, chosen[c]):
                    return False
            done[f] = True
            order.append(way.made)
            return True

        if not all(t in done or visit(t, chosen[t]) for t in self.targets):
            return []
        return [Expansion(self.targets, tuple(order), tuple(sorted(self.leaves, key=lambda f: f.key)))]


def _with(todo: Todo, more: tuple[Form, ...]) -> Todo:
    """The last of them comes first."""
    for f in more:
        todo = f, todo
    return todo


def fresh_name(wanted: str, taken: Container[str]) -> str:
    """The first of `x`, `x_1`, `x_2`, ... that is not taken."""
    return next(x for n in count() if (x := f"{wanted}_{n}" if n else wanted) not in taken)


def value_name(d: Decomposition, f: Form, taken: Container[str]) -> str:
    """The program's name for a class where it has one, else a fresh one."""
    name = d.names.get(f)
    if name is not None and name not in taken:
        return name
    return next(x for n in count() if (x := f"v{n}") not in taken)


@dataclass(frozen=True, slots=True)
class Equations:
    """An expansion as equations: loads with the names that the kernel gives them and how, and each class's value."""

    loads: tuple[tuple[str, Form, Access], ...]
    eqns: tuple[Eqn, ...]
    value: Mapping[Form, str]


def access_of(d: Decomposition, f: Form) -> Access:
    """How a class is read: an input as the class has it, any other as it is stored."""
    atom = f.atom
    if atom is not None and atom.kind == "input":
        return atom.args[1]
    return plain(stored_axes(d, f))


def axes_of(d: Decomposition, f: Form) -> tuple[str, ...]:
    """The axes of a class in memory order: as declared for an input, else as it is stored."""
    return dims_of(access_of(d, f))


def stored_axes(d: Decomposition, f: Form) -> tuple[str, ...]:
    """The axes of a class in the order in which a kernel stores it."""
    return d.orders.get(f) or sort_axes(d, f.dims)


def sort_axes(d: Decomposition, dims: frozenset[str] | set[str]) -> tuple[str, ...]:
    order = {a: i for i, a in enumerate(d.axes)}
    return tuple(sorted(dims, key=lambda a: order[a]))


def equations(d: Decomposition, e: Expansion) -> Equations:
    """The equations of an expansion, common subexpressions computed once, and nothing that no target needs: another
    node may have had a class in passing. What is read from memory is renamed by reading it under other names.

    Raises InexpressibleError where what the kernel computes would have to be renamed.
    """
    writer = _Writer(d, e)
    for f in e.leaves:
        writer.leaf(f)
    for f, node in e.chosen:
        writer.node(f, node)
    return writer.written()


class _Writer:
    """The loads and equations of an expansion, as they come. known: every name; value: the name of each class."""

    def __init__(self, d: Decomposition, e: Expansion) -> None:
        self.d, self.order, self.targets, self.leaves = d, d.axes, set(e.targets), set(e.leaves)
        self.known: dict[str, Tensor | Eqn] = {}
        self.value: dict[Form, str] = {}
        self.casts: dict[tuple[str, str], str] = {}
        self.loads: list[tuple[str, Form, Access]] = []
        self.eqns: list[Eqn] = []

    def leaf(self, f: Form) -> None:
        atom = f.atom
        base = atom.args[0] if self.d.is_input(f) and atom is not None else value_name(self.d, f, self.known)
        name = fresh_name(base, self.known)
        self.load(name, f, access_of(self.d, f))
        self.value[f] = name

    def load(self, name: str, f: Form, access: Access) -> None:
        own = f.atom.args[0] if self.d.is_input(f) and f.atom is not None else None
        rounded = self.d.rounded.get(f, "float32") if f not in self.d.outputs else "float32"
        computed = {"float": rounded, "int": "int32", "bool": "bool"}[self.d.type_of(f)]
        dtype = next((t.dtype for t in self.d.program.inputs if t.name == own), computed)
        self.known[name] = Tensor(name, dims_of(access), dtype)
        self.loads.append((name, f, access))

    def node(self, f: Form, node: Node) -> None:
        """The steps of a node whose class is f, but for those whose result is there already."""
        forms: list[Form] = []
        for s in node.steps:
            last = len(forms) == len(node.steps) - 1
            args = [forms[a] if isinstance(a, int) else a for a in s.args]
            form = f if last else self.d.algebra.apply(s.op, args, s.axes)
            stored = last and f in self.targets
            if form not in self.value or (stored and self.d.is_input(f)):
                casts = dict(s.casts)
                values = (self.cast(self.value[a], casts.get(a)) if isinstance(a, Form) else a for a in args)
                self.step(s, tuple(values), form, stored)
            forms.append(form)

    def step(self, s: Step, args: tuple[Arg, ...], form: Form, stored: bool) -> None:
        """One equation; of a renaming, a load under other names, and what is stored is its copy."""
        name, op, axes = value_name(self.d, form, self.known), s.op, s.axes
        if op == "rename":
            loaded = f"{name}_in" if stored else name
            self.renamed(s, loaded)
            if not stored:
                self.value[form] = loaded
                return
            op, args, axes = "mul", (loaded, ONE), ()
        eqn = equation(name, op, args, axes, self.known, self.order)
        self.known[name] = eqn
        self.eqns.append(eqn)
        self.value[form] = name

    def cast(self, value: str, dtype: str | None) -> str:
        """The value, rounded to a type."""
        known = self.known[value]
        if dtype is None or (isinstance(known, Tensor) and known.dtype == dtype):
            return value
        if (value, dtype) not in self.casts:
            name = fresh_name(f"{value}_{DTYPES[dtype]}", self.known)
            eqn = self.known[name] = equation(name, dtype, (value,), (), self.known, self.order)
            self.eqns.append(eqn)
            self.casts[value, dtype] = name
        return self.casts[value, dtype]

    def renamed(self, s: Step, loaded: str) -> None:
        (a,) = s.args
        if not isinstance(a, Form) or a not in self.leaves:
            raise InexpressibleError("rename inside a kernel")
        names = substitution(s.axes)
        self.load(loaded, a, tuple(i.within(names) for i in access_of(self.d, a)))

    def written(self) -> Equations:
        """What the targets need: where a step's result is read from memory, the steps in front of it are not."""
        for t, f in zip(self.d.program.outputs, self.d.outputs, strict=True):
            made = self.known[self.value[f]] if f in self.targets else None
            if isinstance(made, Eqn) and tensor_type(t) not in (made.type, "float"):
                raise InexpressibleError("integers by floating point")
        targets = {self.value[t] for t in self.targets}
        eqns = tuple(live_eqns(self.eqns, targets))
        used = {v for q in eqns for v in q.values} | targets
        return Equations(tuple(x for x in self.loads if x[0] in used), eqns, self.value)
