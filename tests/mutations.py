"""Random mutations of μGraphs: the mistakes that a generator or a person could make. Most are wrong, some harmless."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import TypeVar

from mirage_cli.ir.access import Access, Atom, Index, Lookup, Quotient, Remainder, index, plain
from mirage_cli.ir.mugraph import Kernel, MuGraph, Role
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Tensor, equation, sort_dims, tensor_type

T = TypeVar("T")
SIBLINGS = (
    ("add", "sub", "mul", "div", "maximum", "minimum", "exp_sub"),
    ("lt", "le", "gt", "ge", "eq", "ne"),
    ("and", "or"),
    ("exp", "exp2", "log", "sqrt", "rsqrt", "square", "neg", "reciprocal", "abs"),
    ("sigmoid", "silu", "relu", "gelu", "tanh"),
    ("sum", "max", "min"),
)
"""Operators that take each other's place without changing the shape of an equation."""

ROLES: tuple[Role, ...] = ("grid", "loop", "tile", "split")


def mutate(graph: MuGraph, rng: random.Random) -> MuGraph | None:
    """One random mutation, or None if the kind drawn has no place in this graph. The text form may still be wrong."""
    kind = rng.choice(KINDS)
    at = rng.randrange(len(graph.kernels))
    kernel = kind(graph.kernels[at], graph, rng)
    if kernel is None or kernel == graph.kernels[at]:
        return None
    kernel = rederived(kernel, graph)
    if kernel is None:
        return None
    return replace(graph, kernels=(*graph.kernels[:at], kernel, *graph.kernels[at + 1 :]))


def rederived(kernel: Kernel, graph: MuGraph) -> Kernel | None:
    """The kernel with axes and types of its values worked out again; None if an equation no longer makes sense."""
    dtypes = {t.name: t.dtype for t in graph.tensors().values()}
    known: dict[str, Tensor | Eqn] = {x.out: Tensor(x.out, x.dims, dtypes[x.buffer]) for x in kernel.loads}
    order = tuple(d for d, _ in kernel.roles) or tuple(graph.sizes)
    body: list[Eqn] = []
    for e in kernel.body:
        try:
            new = equation(e.out, e.op, e.args, e.axes, known, order)
        except (ValueError, KeyError):
            return None
        known[new.out] = new
        body.append(new)
    return replace(kernel, body=tuple(body))


def _edit(kernel: Kernel, i: int, e: Eqn) -> Kernel:
    return replace(kernel, body=(*kernel.body[:i], e, *kernel.body[i + 1 :]))


def _rewired(kernel: Kernel, old: str, new: str) -> Kernel:
    """Every use of `old` becomes one of `new`."""
    body = tuple(replace(e, args=tuple(new if a == old else a for a in e.args)) for e in kernel.body)
    stores = tuple(replace(s, value=new if s.value == old else s.value) for s in kernel.stores)
    return replace(kernel, body=body, stores=stores)


def swap_args(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """sub(a, b) --> sub(b, a)"""
    places = [i for i, e in enumerate(kernel.body) if len(e.args) > 1 and e.op not in ("pow", "add", "mul", "dot")]
    if not places:
        return None
    i = rng.choice(places)
    *first, a, b = kernel.body[i].args
    return _edit(kernel, i, replace(kernel.body[i], args=(*first, b, a)))


def swap_loads(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """A = load W1, B = load W2 --> A = load W2, B = load W1"""
    tensors = graph.tensors()
    dims = {x.out: tuple(graph.sizes.get(d) for d in tensors[x.buffer].dims) for x in kernel.loads}
    pairs = [
        (i, j)
        for i, x in enumerate(kernel.loads)
        for j, y in enumerate(kernel.loads)
        if i < j and dims[x.out] == dims[y.out]
    ]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    loads = list(kernel.loads)
    loads[i], loads[j] = replace(loads[i], buffer=loads[j].buffer), replace(loads[j], buffer=loads[i].buffer)
    return replace(kernel, loads=tuple(loads))


def swap_use(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """mul(a, b) --> mul(c, b), where c has the axes of a"""
    if not kernel.body:
        return None
    i = rng.randrange(len(kernel.body))
    e = kernel.body[i]
    dims = kernel.value_dims
    known = [x.out for x in kernel.loads] + [x.out for x in kernel.body[:i]]
    choices = [
        (k, v) for k, a in enumerate(e.args) if isinstance(a, str) for v in known if v != a and dims[v] == dims[a]
    ]
    if not choices:
        return None
    k, v = rng.choice(choices)
    return _edit(kernel, i, replace(e, args=(*e.args[:k], v, *e.args[k + 1 :])))


def sibling(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """sum(x; k) --> max(x; k)"""
    places = [(i, group) for i, e in enumerate(kernel.body) for group in SIBLINGS if e.op in group]
    if not places:
        return None
    i, group = rng.choice(places)
    e = kernel.body[i]
    op = rng.choice([o for o in group if o != e.op])
    return _edit(kernel, i, replace(e, op=op))


def change_number(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """add(x, 1/100000) --> add(x, 1/50000)"""
    places = [(i, k) for i, e in enumerate(kernel.body) for k, a in enumerate(e.args) if isinstance(a, Fraction)]
    if not places:
        return None
    i, k = rng.choice(places)
    e = kernel.body[i]
    c = e.args[k]
    assert isinstance(c, Fraction)
    new: Arg = rng.choice([c + 1, c - 1, -c if c else Fraction(2), c * 2 + 3, c / 2 + 1])
    return _edit(kernel, i, replace(e, args=(*e.args[:k], new, *e.args[k + 1 :])))


def insert_number(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """mul(x, y) --> mul(x, y) + 1, everywhere it is used"""
    places = [e for e in kernel.body if e.type == "float"]
    if not places:
        return None
    e = rng.choice(places)
    op, c = rng.choice([("add", Fraction(1)), ("mul", Fraction(2)), ("mul", Fraction(-1)), ("add", Fraction(1, 3))])
    after = _rewired(kernel, e.out, "mutant")
    i = kernel.body.index(e)
    new = replace(e, out="mutant", op=op, args=(e.out, c), axes=())
    return replace(after, body=(*kernel.body[: i + 1], new, *after.body[i + 1 :]))


def change_axis(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """sum(x; k) --> sum(x; m), index(q) --> index(s)"""
    places = [i for i, e in enumerate(kernel.body) if e.axes]
    if not places:
        return None
    i = rng.choice(places)
    e = kernel.body[i]
    inside = {d for a in e.values for d in kernel.value_dims[a]}
    choices = inside - set(e.axes) if OPS[e.op].kind != "leaf" else {d for d, _ in kernel.roles} - set(e.axes)
    if not choices:
        return None
    return _edit(kernel, i, replace(e, axes=(rng.choice(sorted(choices)), *e.axes[1:])))


def _swapped(dims: tuple[T, ...], rng: random.Random) -> tuple[T, ...] | None:
    if len(dims) < 2:
        return None
    i, j = rng.sample(range(len(dims)), 2)
    new = list(dims)
    new[i], new[j] = new[j], new[i]
    return tuple(new)


def swap_load_dims(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """load X[m, k] --> load X[k, m]"""
    i = rng.randrange(len(kernel.loads))
    access = _swapped(kernel.loads[i].access, rng)
    return None if access is None else _read_by(kernel, i, access)


def _read_by(kernel: Kernel, i: int, access: Access) -> Kernel:
    return replace(kernel, loads=(*kernel.loads[:i], replace(kernel.loads[i], access=access), *kernel.loads[i + 1 :]))


def rename_load_dim(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """load X[j, k] --> load X[i, k], for an axis of equal size"""
    i = rng.randrange(len(kernel.loads))
    x = kernel.loads[i]
    choices = [
        (k, d)
        for k, old in enumerate(x.access)
        for d in graph.sizes
        if old.axis is not None and d not in x.dims and graph.sizes[d] == graph.sizes.get(old.axis)
    ]
    if not choices:
        return None
    k, d = rng.choice(choices)
    return _read_by(kernel, i, (*x.access[:k], *plain((d,)), *x.access[k + 1 :]))


def _reaches(i: Index, size: int, sizes: Mapping[str, int]) -> bool:
    low, high = i.bounds(sizes)
    return high >= 0 and low < size


def _other_atoms(a: Atom, graph: MuGraph) -> Iterator[Atom]:
    """s//16 --> s//15 or s%16, T[m] --> U[m] or T[m + 1]"""
    if isinstance(a, Quotient | Remainder):
        for by in (-1, 1, a.by):
            if a.by + by > 0:
                yield type(a)(a.of, a.by + by)
        yield (Remainder if isinstance(a, Quotient) else Quotient)(a.of, a.by)
        yield from (type(a)(i, a.by) for i in _other_indices(a.of, graph))
    if isinstance(a, Lookup):
        dims = {t.name: t.dims for t in graph.inputs}
        for t in graph.inputs:
            if (
                tensor_type(t) == "int"
                and (t.below, t.padded) == (a.below, a.padded)
                and t.name != a.table
                and t.dims == dims[a.table]
            ):
                yield Lookup(t.name, a.access, a.below, a.padded)
        for k, i in enumerate(a.access):
            yield from (
                Lookup(a.table, (*a.access[:k], j, *a.access[k + 1 :]), a.below, a.padded)
                for j in _other_indices(i, graph)
            )


def _other_indices(i: Index, graph: MuGraph) -> Iterator[Index]:
    """The index one further or back, and with another atom in the place of one."""
    yield from (index(dict(i.terms), i.offset + by) for by in (-1, 1))
    for old, c in i.terms:
        rest = {a: d for a, d in i.terms if a != old}
        yield from (index(rest | {b: c + rest.get(b, 0)}, i.offset) for b in _other_atoms(old, graph))


def change_index(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """X[m, n + 64] --> X[m, n + 63], X[m, h*64 + d] --> X[m, h*32 + d] or X[m, d*64 + h]; of a load or a store"""
    tensors = graph.tensors()
    choices: list[tuple[int, int, Index]] = []
    moves = (*kernel.loads, *kernel.stores)
    for i, x in enumerate(moves):
        for k, (d, old) in enumerate(zip(tensors[x.buffer].dims, x.access, strict=True)):
            if not {d, *old.dims} <= graph.sizes.keys():
                continue
            named = dict(old.terms)
            new = [index(named, old.offset + by) for by in (-64, -1, 1, 64)]
            new += [index(named | {a: c + by}, old.offset) for a, c in old.terms for by in (-1, 1, c)]
            new += [index({b if a == old_atom else a: c for a, c in old.terms}, old.offset)
                    for old_atom in named for b in _other_atoms(old_atom, graph)]  # fmt: skip
            new += [index(dict(zip(named, c, strict=True)), old.offset) for c in permutations(named.values())]
            choices += [
                (i, k, j)
                for j in new
                if j != old
                and j.dims
                and j.bounds(graph.sizes)[1] >= 0
                and j.bounds(graph.sizes)[0] < graph.sizes.get(d, 0)
            ]
    if not choices:
        return None
    i, k, new_index = rng.choice(choices)
    access = (*moves[i].access[:k], new_index, *moves[i].access[k + 1 :])
    return _read_by(kernel, i, access) if i < len(kernel.loads) else _stored_by(kernel, i - len(kernel.loads), access)


def swap_store_dims(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """store O[h, q] = x --> store O[q, h] = x"""
    i = rng.randrange(len(kernel.stores))
    access = _swapped(kernel.stores[i].access, rng)
    return None if access is None else _stored_by(kernel, i, access)


def _stored_by(kernel: Kernel, i: int, access: Access) -> Kernel:
    new = replace(kernel.stores[i], access=access)
    return replace(kernel, stores=(*kernel.stores[:i], new, *kernel.stores[i + 1 :]))


def swap_store_values(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """store O = x --> store O = y, where y has the axes of x"""
    i = rng.randrange(len(kernel.stores))
    dims = kernel.value_dims
    old = kernel.stores[i].value
    choices = [v for v in dims if v != old and dims[v] == dims[old]]
    if not choices:
        return None
    new = replace(kernel.stores[i], value=rng.choice(choices))
    return replace(kernel, stores=(*kernel.stores[:i], new, *kernel.stores[i + 1 :]))


def drop_eqn(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """y = exp(x), z = f(y) --> z = f(x)"""
    dims = kernel.value_dims
    choices = [(e, a) for e in kernel.body for a in e.values if sort_dims(dims[a], ()) == sort_dims(e.dims, ())]
    if not choices:
        return None
    e, a = rng.choice(choices)
    kept = replace(kernel, body=tuple(x for x in kernel.body if x is not e))
    return _rewired(kept, e.out, a)


def change_role(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """k:loop --> k:grid"""
    if not kernel.roles or kernel.kind == "library":
        return None
    i = rng.randrange(len(kernel.roles))
    d, role = kernel.roles[i]
    new = rng.choice([r for r in ROLES if r != role])
    return replace(kernel, roles=(*kernel.roles[:i], (d, new), *kernel.roles[i + 1 :]))


def duplicate_term(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """y is used --> y + y (or y * y) is used"""
    places = [e for e in kernel.body if e.type == "float"]
    if not places:
        return None
    e = rng.choice(places)
    after = _rewired(kernel, e.out, "mutant")
    i = kernel.body.index(e)
    new = replace(e, out="mutant", op=rng.choice(["add", "mul"]), args=(e.out, e.out), axes=())
    return replace(after, body=(*kernel.body[: i + 1], new, *after.body[i + 1 :]))


def drop_store(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """store O = x --> nothing"""
    i = rng.randrange(len(kernel.stores))
    return replace(kernel, stores=(*kernel.stores[:i], *kernel.stores[i + 1 :]))


def swap_stores(kernel: Kernel, graph: MuGraph, rng: random.Random) -> Kernel | None:
    """store KC = x, store VC = y --> store VC = x, store KC = y"""
    pairs = [
        (i, j) for j, t in enumerate(kernel.stores) for i, s in enumerate(kernel.stores[:j]) if s.buffer != t.buffer
    ]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    stores = list(kernel.stores)
    stores[i], stores[j] = replace(stores[i], buffer=stores[j].buffer), replace(stores[j], buffer=stores[i].buffer)
    return replace(kernel, stores=tuple(stores))


Mutation = Callable[[Kernel, MuGraph, random.Random], Kernel | None]
KINDS: tuple[Mutation, ...] = (
    swap_args, swap_loads, swap_use, sibling, change_number, insert_number, change_axis, swap_load_dims,
    rename_load_dim, change_index, swap_store_dims, swap_store_values, drop_eqn, change_role, duplicate_term,
    drop_store, swap_stores,
)  # fmt: skip
ACCESSES: tuple[Mutation, ...] = (
    change_index, change_index, change_index, change_index, swap_load_dims, swap_store_dims, rename_load_dim,
    swap_loads, swap_stores,
)  # fmt: skip
"""Those of where a load or a store lies."""
