"""Does the algebra of a μGraph prove that it computes its program? By canonical forms, over the reals.

The forms say what the kernels compute, not how: tiles, loops, maps and masks are for the finite-field test to check.
Here, exponentials are left as they are written (exp(x - max x) is exp(x)·exp(-max x)), so that a maximum that is
subtracted cancels or does not.

A split axis k is two axes for the whole graph: `k_split`, the chunk, and `k`, the place in it. A sum over k is one over
both, but in the kernel that splits k, where it is one over the places of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from functools import lru_cache, reduce
from math import isinf

from mirage_cli.algebra.canonical import Algebra, Form
from mirage_cli.ir.access import Access, Index, plain, renames
from mirage_cli.ir.merge import merged_by
from mirage_cli.ir.mugraph import Kernel, MuGraph, Store, split_axis
from mirage_cli.ir.op import Number
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Merged, Program, Tensor
from mirage_cli.verify.structure import in_pieces


def proved(program: Program, graph: MuGraph, same_axes: Callable[[str], str]) -> bool:
    """Whether every output has the same canonical form in a lowered program and in a μGraph of sound structure.

    False says nothing: the forms do not know every identity. same_axes: a name for all axes that are one by renaming.
    """
    try:
        program = merged_by(program, graph.merged)
    except ValueError:
        return False
    if any(_infinite(e) for e in (*program.eqns, *graph.eqns)):
        return False
    split = [same_axes(k.split) for k in graph.kernels if k.split]
    if len(set(split)) < len(split) or any(k.chunk != split_axis(k.split) for k in graph.kernels if k.split):
        return False  # their chunks need not be the same
    pairs = {d: split_axis(d) for d in {*program.order, *graph.sizes} if same_axes(d) in split}
    if any(_mixes(k, pairs, same_axes) for k in graph.kernels):
        return False
    read = (*program.accesses(), *graph.accesses())
    if any((d in pairs) != (i.axis in pairs) or (i.axis is None and pairs.keys() & {*i.dims}) for d, i in read):
        return False  # a position in the whole is not one in a chunk
    placed = (e.place for e in graph.eqns if e.place)
    if any(i.axis is None and pairs.keys() & {*i.dims} for i in placed):
        return False
    tensors, parts = graph.tensors(), {p.tensor.name for p in program.parts}
    pieces = {t.name for t in graph.outputs if t.name not in parts and in_pieces(graph, t)}
    parted = parts | pieces
    stores = (s for k in graph.kernels for s in k.stores if s.buffer not in parted)
    if any(not _is_whole(s, tensors[s.buffer].dims, graph.sizes) for s in stores):
        return False
    forms, want = program_forms(program, (*sorted(pairs.items()),), graph.merged)
    forms = forms.copy()
    got, stored = forms.of_graph(graph, parted)
    chunk_sizes = {("size", a) for a in (*pairs, *pairs.values())} & set(forms.algebra.atoms)  # chunks differ in size
    if chunk_sizes:
        return False
    own = (stored.get((x.name, a)) if x.name in parts else got.get(t.name) for t, x, a in program.places())
    alike = all(want[t.name] is f or t.name in pieces for t, f in zip(program.outputs, own, strict=True))
    made = ((f, forms.read_by(a, want[name], tensors[name].dims)) for (name, a), f in stored.items() if name in pieces)
    return alike and all(f is wanted for f, wanted in made)


@lru_cache(maxsize=8)
def program_forms(
    program: Program, pairs: tuple[tuple[str, str], ...], merged: Merged
) -> tuple[Forms, dict[str, Form]]:
    """The forms of a program with these axes in chunks: those of all plans that split the same axes."""
    forms = Forms(dict(pairs), dict(merged))
    return forms, forms.of_program(program)


def forms_of(program: Program) -> dict[str, Form] | None:
    """The canonical form of each value of a lowered program; None where an infinity is added or multiplied, of which
    forms say nothing."""
    return None if any(map(_infinite, program.eqns)) else Forms({}, {}).of_program(program)


def _infinite(e: Eqn) -> bool:
    """Whether an infinity is added or multiplied, which forms take for a number."""
    return not OPS[e.op].takes_infinity and any(isinstance(a, float) and isinf(a) for a in e.args)


def _is_whole(s: Store, dims: Iterable[str], sizes: Mapping[str, int]) -> bool:
    """Whether a store writes all of a tensor with these axes."""
    return all(d == i.axis or renames(d, i, sizes) for d, i in zip(dims, s.access, strict=True))


def _mixes(k: Kernel, pairs: Mapping[str, str], same_axes: Callable[[str], str]) -> bool:
    """Whether a kernel reads chunks' results beside the axis that is cut in these chunks."""
    read = {d for x in k.loads for d in x.dims}
    cut = {same_axes(d) for d, chunk in pairs.items() if chunk in read}
    return any(same_axes(d) in cut for d, _ in k.roles if d in pairs)


class _PlainAlgebra(Algebra):
    """Forms in which a maximum is a value as any other, under exp too."""

    def exp(self, x: Form) -> Form:
        if x is self.zero:
            return self.one
        for mono, c in x.terms:
            atom = mono[0][0] if len(mono) == 1 and mono[0][1] == 1 else None
            if atom is not None and atom.kind == "log" and c.denominator == 1:
                rest = self.sub(x, self.scale(self.of_atom(atom), c))
                return self.mul(self.pow(atom.args[0], c), self.exp(rest))
        return self.of_atom(self._atom("exp", x, dims=x.dims))


class Forms:
    """The forms of values, with every axis of `pairs` as two, and the size of a merged axis as that of its parts."""

    def __init__(self, pairs: Mapping[str, str], parts: Mapping[str, tuple[str, ...]]) -> None:
        self.pairs, self.parts, self.algebra = pairs, parts, _PlainAlgebra()

    def copy(self) -> Forms:
        """The same forms, to which others may be added."""
        found = copy(self)
        found.algebra = self.algebra.copy()
        return found

    def both(self, axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(b for a in axes for b in ((self.pairs[a], a) if a in self.pairs else (a,)))

    def inputs(self, tensors: Iterable[Tensor]) -> dict[str, Form]:
        return {t.name: self.algebra.input(t.name, plain(self.both(t.dims))) for t in tensors}

    def of_program(self, program: Program) -> dict[str, Form]:
        self.algebra.axes |= set(self.both(program.order))
        forms = self.inputs(program.inputs)
        self.equations(program.eqns, forms, None)
        return forms

    def of_graph(
        self, graph: MuGraph, parted: Collection[str]
    ) -> tuple[dict[str, Form], dict[tuple[str, Access], Form]]:
        """The form of everything in memory, each with the axes that the program or the graph gives it; and of what is
        stored in these tensors, by tensor and access."""
        stored: dict[tuple[str, Access], Form] = {}
        self.algebra.axes |= set(self.both(graph.sizes))
        tensors = graph.tensors()
        memory = self.inputs(graph.inputs)
        for k in graph.kernels:
            values = {x.out: self.read_by(x.access, memory[x.buffer], tensors[x.buffer].dims) for x in k.loads}
            self.equations(k.body, values, k.split)
            for s in k.stores:
                if s.buffer in parted:
                    stored[s.buffer, s.access] = values[s.value]
                else:
                    memory[s.buffer] = self.read_by(plain(tensors[s.buffer].dims), values[s.value], s.dims)
        return memory, stored

    def read_by(self, access: Access, x: Form, dims: Iterable[str]) -> Form:
        """x, which has these axes, with an index in the place of each."""
        names: dict[str, Index] = {}
        for d, i in zip(dims, access, strict=True):
            new = (i,) if i.axis is None else plain(self.both((i.axis,)))
            names |= zip(self.both((d,)), new, strict=True)
        return self.algebra.rename(x, names)

    def equations(self, eqns: Iterable[Eqn], forms: dict[str, Form], split: str | None) -> None:
        """Adds the forms of equations; `split` is the axis that their kernel has only a chunk of."""
        for e in eqns:
            forms[e.out] = self.equation(e, e.arguments(forms.__getitem__), split)

    def equation(self, e: Eqn, args: tuple[Form | Number, ...], split: str | None) -> Form:
        algebra = self.algebra
        if e.op == "rename":
            return self.read_by(tuple(e.names.values()), _form(args[0]), e.names)
        if e.op == "size" and e.axes[0] in self.parts:
            return reduce(algebra.mul, (algebra.size(p) for p in self.parts[e.axes[0]]))
        if e.axes and OPS[e.op].kind == "leaf" and e.axes[0] in self.pairs:
            if e.op == "size":
                return algebra.size(f"the whole of {e.axes[0]}")
            return algebra.fn("position", *(algebra.index(a) for a in self.both(e.axes)))
        axes = e.axes
        if OPS[e.op].kind in ("reduction", "contraction"):
            axes = tuple(b for a in e.axes for b in ((a,) if a == split else self.both([a])))
        return algebra.apply(e.op, args, axes)


def _form(x: object) -> Form:
    assert isinstance(x, Form)
    return x
