"""All μGraphs of a tiny space, found the dumb way: every operator on every value, every value in memory, every role.

It shares nothing with the search but the language (`ir`) and the verifier. There is no algebra here: values are equal
if they have equal residues on random data, and a set of equations is a program if the last one makes the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, product

from mirage_cli.ir.access import plain
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Role, Store, split_axis
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import InexpressibleError, place
from mirage_cli.ir.program import Eqn, Program, Tensor, equation, tensor_type
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.fieldsemantics import FieldSemantics
from mirage_cli.verify.residues import Residues, aligned, as_field

COMMUTES = ("add", "mul", "dot", "maximum", "minimum")
REDUCES = ("reduction", "contraction")
SIZES = (2, 3, 4, 5, 7)
"""Of the axes, where values are told apart: all different, so that no axis is taken for another."""
LOOPED = 16
"""A dimension longer than this may be looped over..."""
SPLIT = 128
"""...and one of this length split over program instances."""


@dataclass(frozen=True)
class Space:
    """A program, the operators that plans are made of, and their bounds.

    equations: different ones in a plan. repeated: how many its second kernel may compute again. stored: intermediates.
    """

    program: Program
    ops: tuple[str, ...]
    equations: int
    repeated: int = 1
    stored: int = 2


@dataclass(frozen=True)
class Way:
    """One operator that makes a value of others."""

    out: str
    op: str
    args: tuple[str, ...]
    axes: tuple[str, ...] = ()


Ways = frozenset[Way]


class Values:
    """Values by name, which says how each was first made; equal ones have one name."""

    def __init__(self, program: Program) -> None:
        self.semantics = FieldSemantics(0, dict(zip(program.order, SIZES, strict=False)))
        self.data: dict[str, Residues] = {}
        self.names: dict[tuple[object, ...], str] = {}
        self.possible: dict[tuple[str, tuple[str, ...]], list[tuple[tuple[str, ...], frozenset[str]]]] = {}
        self.applied: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Way] = {}
        for t in program.inputs:
            self.named(t.name, self.semantics.field.draw(t.dims, tensor_type(t)))

    def named(self, name: str, x: Residues) -> str:
        x = as_field(x)
        dims = tuple(sorted(x.dims))
        levels = [i for i, v in enumerate(x.valid) if v]
        flags = b"" if x.flags is None else aligned(x.flags, x.dims, dims).tobytes()
        key = (dims, x.valid, aligned(x.data, x.dims, dims, 1)[levels].tobytes(), flags)
        name = self.names.setdefault(key, name)
        self.data.setdefault(name, x)
        return name

    def dims(self, name: str) -> frozenset[str]:
        return frozenset(self.data[name].dims)

    def apply(self, op: str, args: tuple[str, ...], axes: tuple[str, ...] = ()) -> Way:
        key = op, args, axes
        if key not in self.applied:
            made = self.semantics.apply(op, tuple(self.data[a] for a in args), axes)
            self.applied[key] = Way(self.named(text_of(op, args, axes), made), op, args, axes)
        return self.applied[key]

    def ways(
        self,
        ops: Iterable[str],
        targets: frozenset[frozenset[str]],
        known: Iterable[str],
        loose: frozenset[str],
        left: int,
    ) -> Iterator[Way]:
        """Every operator on these values that leaves no more than so many of the loose ones out; the last one makes a
        target. targets: the axes of each."""
        known = sorted(known)
        for op in ops:
            for args in product(known, repeat=OPS[op].arity):
                if len(loose.difference(args)) <= left:
                    for axes, dims in self.choices(op, args):
                        if left > 0 or dims in targets:
                            yield self.apply(op, args, axes)

    def choices(self, op: str, args: tuple[str, ...]) -> list[tuple[tuple[str, ...], frozenset[str]]]:
        """The axes over which an operator may reduce these arguments, each with the axes of its result."""
        if (op, args) not in self.possible:
            dims = [self.dims(a) for a in args]
            if len(args) == 2 and (args[0] > args[1] if op in COMMUTES else args[0] == args[1]):
                choices = []
            elif OPS[op].kind in REDUCES:
                choices = subsets(sorted(frozenset.intersection(*dims)))
            else:
                choices = [()]
            whole = frozenset[str]().union(*dims)
            self.possible[op, args] = [(axes, whole.difference(axes)) for axes in choices]
        return self.possible[op, args]


def subsets(axes: list[str]) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(axes, n) for n in range(1, len(axes) + 1)))


def text_of(op: str, args: Iterable[str], axes: Iterable[str]) -> str:
    args = sorted(args) if op in COMMUTES else list(args)
    return f"{op}({', '.join(args)}" + (f"; {', '.join(sorted(axes))})" if axes else ")")


# -- programs


def programs(
    leaves: frozenset[str],
    targets: frozenset[str],
    most: int,
    ways: Callable[[frozenset[str], frozenset[str], int], Iterable[Way]],
) -> set[Ways]:
    """The sets of at most so many equations that make the targets from the leaves, and nothing that is not needed."""
    found: set[Ways] = set()
    seen: set[Ways] = set()
    todo: list[Ways] = [frozenset()]
    while todo:
        chosen = todo.pop()
        made = frozenset(w.out for w in chosen)
        loose = made - targets - {a for w in chosen for a in w.args}
        if targets <= made and not loose:
            found.add(chosen)
        left = most - len(chosen) - 1
        # an equation ties up two loose ends and makes one, the last one none
        for way in ways(leaves | made, loose, left) if left >= 0 else ():
            if way.out in leaves or way.out in made:
                continue
            if left == 0 and way.out not in targets:
                continue
            longer = chosen | {way}
            if longer not in seen:
                seen.add(longer)
                todo.append(longer)
    return found


@dataclass(frozen=True)
class Part:
    """What one kernel computes, and which values it leaves in memory."""

    ways: Ways
    targets: frozenset[str]

    @property
    def leaves(self) -> frozenset[str]:
        return frozenset(a for w in self.ways for a in w.args) - {w.out for w in self.ways}


def partitions(space: Space, values: Values) -> Iterator[tuple[Part, ...]]:
    """Every plan of one kernel and of two, before roles."""
    program = space.program
    inputs = frozenset(t.name for t in program.inputs)
    own = own_values(program, values)
    targets = frozenset(own[t.name] for t in program.outputs)
    axes = frozenset(map(values.dims, targets))
    whole = programs(inputs, targets, space.equations, partial(values.ways, space.ops, axes))
    every = sorted(frozenset().union(*whole), key=str)
    between = sorted({w.out for w in every if values.dims(w.out)} - targets)

    def useful(known: frozenset[str], loose: frozenset[str], left: int) -> Iterator[Way]:
        return (w for w in every if known.issuperset(w.args) and len(loose.difference(w.args)) <= left)

    for ways in whole:
        yield (Part(ways, targets),)
    most = space.equations + space.repeated
    for stored in chain.from_iterable(combinations(between, n) for n in range(1, space.stored + 1)):
        memory = frozenset(stored)
        for second in programs(inputs | memory, targets, most - 1, useful):
            if memory <= Part(second, targets).leaves:
                for first in programs(inputs, memory, most - len(second), useful):
                    if len({w.out for w in first | second}) <= space.equations:
                        yield Part(first, memory), Part(second, targets)


def own_values(program: Program, values: Values) -> dict[str, str]:
    """What the program's own values are called here."""
    names = {t.name: t.name for t in program.inputs}
    for e in program.eqns:
        names[e.out] = values.apply(e.op, tuple(names[str(a)] for a in e.args), e.axes).out
    return names


# -- kernels


class Writer:
    """Writes plans as μGraphs."""

    def __init__(self, program: Program, values: Values) -> None:
        self.program, self.values = program, values
        self.own = own_values(program, values)
        self.outputs = {self.own[t.name]: t for t in program.outputs}
        rounded = {self.own[e.out] for e in program.eqns if OPS[e.op].kind != "reduction"}
        self.dtypes = dict.fromkeys(rounded, program.dtype) | {t.name: t.dtype for t in program.inputs}
        self.buffers = {t.name: t for t in program.inputs} | self.outputs

    def dtype(self, value: str) -> str:
        """Of an intermediate: eager rounds elementwise results and products, and sums inside norms it does not."""
        return self.dtypes.get(value, "float32")

    def buffer(self, value: str) -> Tensor:
        if value not in self.buffers:
            dims = tuple(d for d in self.program.order if d in self.values.dims(value))
            self.buffers[value] = Tensor(f"b{len(self.buffers)}", dims, self.dtype(value))
        return self.buffers[value]

    def graphs(self, parts: tuple[Part, ...]) -> Iterator[MuGraph]:
        """Every choice of roles and kinds of a plan, those with a placement."""
        for chosen in product(*(list(self.kernels(p)) for p in parts)):
            kernels, scratch = [k for group, _ in chosen for k in group], [t for _, more in chosen for t in more]
            if len(kernels) > 2:
                continue
            buffers = {self.buffer(v) for p in parts for v in p.targets if v not in self.outputs}
            yield MuGraph(
                self.program.name,
                self.program.dims,
                self.program.dtype,
                self.program.inputs,
                self.program.outputs,
                (*sorted(buffers, key=str), *scratch),
                tuple(Kernel(f"k{i}", k.kind, k.roles, k.loads, k.body, k.stores) for i, k in enumerate(kernels)),
            )

    def kernels(self, part: Part) -> Iterator[tuple[tuple[Kernel, ...], tuple[Tensor, ...]]]:
        """The kernel of a part with every choice of roles; two for a split; and the library's, if it has one."""
        loads = tuple(
            Load(f"x{i}", self.buffer(v).name, plain(self.buffer(v).dims)) for i, v in enumerate(sorted(part.leaves))
        )
        names = dict(zip(sorted(part.leaves), (x.out for x in loads), strict=True))
        known: dict[str, Tensor | Eqn] = {x.out: Tensor(x.out, x.dims, "float32") for x in loads}
        body: list[Eqn] = []
        todo = set(part.ways)
        while todo:
            way = min((w for w in todo if set(w.args) <= set(names)), key=str)
            todo.remove(way)
            names[way.out] = f"v{len(body)}"
            args = tuple(names[a] for a in way.args)
            body.append(equation(names[way.out], way.op, args, way.axes, known, self.program.order))
            known[body[-1].out] = body[-1]
        stores = tuple(Store(self.buffer(v).name, names[v], plain(self.buffer(v).dims)) for v in sorted(part.targets))
        sizes = self.program.sizes
        reduced = {a for e in body for a in e.axes}
        dims = [d for d in self.program.order if d in {a for x in (*loads, *body) for a in x.dims} | reduced]
        choices: list[list[Role]] = []
        for d in dims:
            roles: list[Role] = ["tile"]
            roles += ["loop"] if sizes[d] > LOOPED else []
            roles += ["split"] if sizes[d] >= SPLIT else []
            choices.append(roles if d in reduced else ["grid"])
        for chosen in product(*choices):
            kernel = Kernel("k", "generated", tuple(zip(dims, chosen, strict=True)), loads, tuple(body), stores)
            try:
                if chosen.count("split") == 1:
                    yield split(kernel, self.program.order)
                elif "split" not in chosen:
                    place(kernel)
                    yield (kernel,), ()
            except InexpressibleError:
                continue
        rounded = {self.dtype(v) for v in (*part.leaves, *part.targets)} == {self.program.dtype}
        if len(body) == 1 and rounded and is_plain_product(body[0], loads):
            yield (Kernel("k", "library", (), loads, tuple(body), stores),), ()


def is_plain_product(e: Eqn, loads: tuple[Load, ...]) -> bool:
    """[m, k] times [k, n]."""
    if e.op != "dot" or len(e.axes) != 1:
        return False
    a, b = (next(set(x.dims) for x in loads if x.out == v) for v in e.args)
    return a & b == set(e.axes) and len(a) == len(b) == 2


def split(kernel: Kernel, order: tuple[str, ...]) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """Sums and maxima of chunks, and a kernel that puts them together, for kernels that pass once over the data."""
    dim = kernel.split
    assert dim is not None
    chunk = split_axis(dim)
    partial = [e for e in kernel.body if dim in e.axes]
    depends: set[str] = set()
    for e in kernel.body:
        if set(e.values) & (depends | {p.out for p in partial}):
            depends.add(e.out)
    if depends & {p.out for p in partial} or any(dim in (*e.dims, *e.axes) for e in kernel.body if e.out in depends):
        raise InexpressibleError("passes over the data twice")
    before = tuple(e for e in kernel.body if e.out not in depends)
    after = tuple(e for e in kernel.body if e.out in depends)
    scratch = tuple(Tensor(f"{e.out}_part", (chunk, *e.dims), "float32") for e in partial)
    loads: list[Load] = []
    merges: list[Eqn] = []
    stores: list[Store] = []
    for e, t in zip(partial, scratch, strict=True):
        stores.append(Store(t.name, e.out, plain(t.dims)))
        loads.append(Load(f"{e.out}_in", t.name, plain(t.dims)))
        merges.append(Eqn(e.out, "max" if e.op == "max" else "sum", (f"{e.out}_in",), (chunk,), e.dims, "float"))
    first = with_roles(kernel, {dim: "split"}, kernel.loads, before, tuple(stores), order)
    second = with_roles(
        kernel, {chunk: "tile"}, (*loads, *kernel.loads), (*merges, *after), kernel.stores, (chunk, *order)
    )
    place(first)
    place(second)
    return (first, second), scratch


def with_roles(
    old: Kernel,
    given: dict[str, Role],
    loads: tuple[Load, ...],
    body: tuple[Eqn, ...],
    stores: tuple[Store, ...],
    order: tuple[str, ...],
) -> Kernel:
    """A kernel of some of the equations: what it still reduces keeps its role, the rest is on the grid."""
    used = {v for e in body for v in e.values} | {s.value for s in stores}
    loads = tuple(x for x in loads if x.out in used)
    reduced = {a for e in body for a in e.axes}
    dims = {a for x in (*loads, *body) for a in x.dims} | reduced
    before = dict(old.roles)
    roles = tuple((d, given.get(d) or (before[d] if d in reduced else "grid")) for d in order if d in dims)
    return Kernel("k", "generated", roles, loads, body, stores)


# -- the whole space


def everything(space: Space) -> dict[str, MuGraph]:
    """Every μGraph of the space that the verifier accepts, by its canonical text."""
    values = Values(space.program)
    writer = Writer(space.program, values)
    found: dict[str, MuGraph] = {}
    for parts in partitions(space, values):
        for graph in writer.graphs(parts):
            text = canonical(graph)
            if text not in found and check_equivalence(space.program, graph, 0, tests=1).ok:
                found[text] = graph
    return found


def texts(graph: MuGraph, marked: bool) -> list[dict[str, str]]:
    """For each kernel, what its values are as expressions of the inputs; `marked`: intermediates in square brackets."""
    memory = {t.name: t.name for t in graph.inputs}
    found: list[dict[str, str]] = []
    for k in graph.kernels:
        text = {x.out: memory[x.buffer] for x in k.loads}
        for e in k.body:
            text[e.out] = text_of(e.op, (text[a] if isinstance(a, str) else str(a) for a in e.args), e.axes)
        memory |= {s.buffer: f"[{text[s.value]}]" if marked else text[s.value] for s in k.stores}
        found.append(text)
    return found


def canonical(graph: MuGraph) -> str:
    """A μGraph whatever its names and the order of its equations: for each kernel its roles, and what it stores as
    expressions of what it reads."""
    kinds = {t.name: t.dtype for t in (*graph.buffers, *graph.outputs)}
    lines: list[str] = []
    for k, text in zip(graph.kernels, texts(graph, marked=True), strict=True):
        stored = sorted(f"{kinds[s.buffer]}[{', '.join(sorted(s.dims))}] = {text[s.value]}" for s in k.stores)
        roles = " ".join(f"{d}:{r}" for d, r in sorted(k.roles))
        lines.append(f"{roles or k.kind} | {' & '.join(stored)}")
    return "  ->  ".join(lines)


def within(space: Space, graph: MuGraph) -> bool:
    """Whether a μGraph is in the space: one kernel or two, and not too many equations. A split kernel and the one that
    merges its chunks count as one."""
    split = any(k.split for k in graph.kernels)
    bodies = [e for k in graph.kernels for e in k.body if not any(a.endswith("_split") for a in e.axes)]
    named = texts(graph, marked=False)
    different = {t[e.out] for k, t in zip(graph.kernels, named, strict=True) for e in k.body if e in bodies}
    return (
        len(graph.kernels) <= 2
        and len(bodies) <= space.equations + space.repeated
        and (split or len(different) <= space.equations)
    )
