"""Products of several groups as one, whose second matrix has zeros between the groups: it is block-diagonal.

    O[m, g, n] = dot(X[m, g, k], W[g, k, n]; k)          in blocks of 4 along g
        -->  O[m, u, p, n] = dot(X[m, 4*u + q, k], W'[u, p, q, k, n]; k, q)          g = 4*u + p, u a quarter as long
             W'[u, p, q, k, n] = W[4*u + p, k, n] where p == q, else 0

W' reads W at `4*u + p + size(g)*(q - p)`, which lies outside of it unless p == q, and what lies outside reads as 0. The
matrix units multiply blocks of 64 x 16 at best, so that groups of 16 x 16 leave most of each instruction unused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count as count_from
from itertools import islice
from math import prod

from mirage_cli.ir.access import Access, Index, combined, index
from mirage_cli.ir.form import Axes, Form, axes_of
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Role
from mirage_cli.ir.program import Eqn, Tensor
from mirage_cli.ir.scans import scans_of
from mirage_cli.ir.schedule import KernelSchedule

MOST_WIDE = 64
"""Rows, and columns, that a group's second matrix has at most: with more, its groups fill the matrix units alone."""


@dataclass(frozen=True, slots=True)
class Diagonal(Form):
    """A kernel that multiplies several groups as one.

    groups: the axis of the kernel as it was, and the one that counts blocks of so many (`count`) along it. inside: the
    axes along a block, that of results first, then those that products sum. names: of its values, as the kernel as it
    was has them.
    """

    groups: tuple[str, str]
    count: int
    inside: tuple[str, ...]
    names: Mapping[str, str]

    def schedule(self, s: KernelSchedule) -> KernelSchedule:
        old, new = self.groups
        tiles = tuple((new, 1) if d == old else (d, t) for d, t in s.tiles)
        return replace(s, tiles=tiles, order=self.order(s.order))

    def order(self, order: tuple[str, ...]) -> tuple[str, ...]:
        """Of blocks' axes, from that of the kernel as it was: the axes along a block of groups stand beside those of
        the same side of a product, in front of them where the groups do in memory."""
        old, new = self.groups
        found = [new if d == old else d for d in order]
        sides = dict(zip(self.inside, self.beside(), strict=True))
        for axis, (side, in_front) in sides.items():
            places = [found.index(d) for d in side if d in found]
            found.insert((min(places) if in_front else max(places) + 1) if places else len(found), axis)
        return tuple(found)

    def beside(self) -> list[tuple[frozenset[str], bool]]:
        """For each axis along a block of groups, the others of its side of a product, and whether it is in front."""
        found: list[tuple[frozenset[str], bool]] = []
        for axis in self.inside:
            side = next(s for product in self.kernel.products for s in product[::-1] if axis in s) - {axis}
            reads = (x for x in (*self.kernel.loads, *self.kernel.stores) if axis in x.dims and side & {*x.dims})
            access = next((x.access for x in reads), ())
            places = [[n for n, i in enumerate(access) if {*i.dims} & some] for some in ({axis}, side)]
            found.append((side, not all(places) or max(places[0]) <= max(places[1])))
        return found

    def original(self, s: KernelSchedule) -> KernelSchedule:
        old, new = self.groups
        tiles = tuple((old, self.count) if d == new else (d, t) for d, t in s.tiles)
        order = (old if d == new else d for d in s.order if d not in self.inside)
        return replace(s, tiles=tiles, order=tuple(order))


def at_schedule(graph: MuGraph, kernel: Kernel, s: KernelSchedule, sizes: Mapping[str, int]) -> Diagonal | None:
    """The kernel as a schedule has it that has several groups in a block; None where it has not."""
    found = grouped(kernel, known(kernel, graph.inputs, sizes, frozenset(r.dim for r in graph.dynamic)))
    return diagonal(kernel, found, s.tile(found.axis)) if found else None


@dataclass(frozen=True, slots=True)
class Known:
    """axes: those of a kernel with roles, with their sizes. extents: of the inputs that it reads, whose sizes are no
    arguments. dynamic: axes whose sizes are."""

    axes: Axes
    extents: tuple[tuple[str, tuple[int, ...]], ...]
    dynamic: frozenset[str]


def known(
    kernel: Kernel, inputs: Iterable[Tensor], sizes: Mapping[str, int], dynamic: frozenset[str] = frozenset()
) -> Known:
    own = (t for t in inputs if t.name in kernel.read and dynamic.isdisjoint(t.dims))
    extents = tuple((t.name, tuple(sizes[d] for d in t.dims)) for t in own)
    return Known(axes_of(kernel, sizes), extents, dynamic)


@dataclass(frozen=True, slots=True)
class Groups:
    """The axis of a kernel's groups. seconds: for each product that has them, by its name, the operand that may have
    zeros between them, and the extent of its tensor along the axis in which it reads a group."""

    axis: str
    seconds: tuple[tuple[str, Load, int], ...]
    sizes: Axes


@lru_cache(maxsize=4096)
def grouped(kernel: Kernel, known: Known) -> Groups | None:
    """The first axis of a kernel's grid along which all products multiply one by one, of matrices that are small."""
    sizes, loaded = dict(known.axes), {x.buffer for x in kernel.loads}
    if scans_of(kernel) or any(s.buffer in loaded for s in kernel.stores):
        return None
    for g in kernel.with_role("grid"):
        products = [e for e in kernel.body if e.op == "dot" and g in e.dims]
        told = all(e.place is not None or g not in e.acts_on for e in kernel.body)
        if told and g not in kernel.matrix_axes(sizes) | known.dynamic and sizes[g] > 1:
            seconds = tuple(x for e in products for x in _second(kernel, e, g, known))
            if seconds and len(seconds) == len(products):
                return Groups(g, seconds, known.axes)
    return None


@lru_cache(maxsize=4096)
def diagonal(kernel: Kernel, groups: Groups, count: int) -> Diagonal | None:
    """None where a block has a single group, or the last has fewer than others."""
    if count < 2 or dict(groups.sizes)[groups.axis] % count:
        return None
    taken = {*dict(groups.sizes), *kernel.value_dims}
    names = (x for i in count_from(0) if (x := f"{groups.axis}_{i}") not in taken)
    blocks, *inside = islice(names, len(groups.seconds) + 2)
    return _Diagonal(kernel, groups, blocks, tuple(inside), count).diagonal()


def _second(kernel: Kernel, e: Eqn, g: str, known: Known) -> Iterator[tuple[str, Load, int]]:
    """The smaller operand of a product that may have zeros between the groups: loaded, few numbers for each group, and
    read at a group by one index alone that stays inside of the tensor."""
    sizes, extents, dims = dict(known.axes), dict(known.extents), kernel.value_dims
    able: list[tuple[int, Load, int]] = []
    for x in (x for x in kernel.loads if x.out in e.values and x.buffer in extents):
        others = {d for v in e.values if v != x.out for d in dims[v]}
        at = [(i, n) for i, n in zip(x.access, extents[x.buffer], strict=True) if g in i.dims]
        if len(at) != 1 or not at[0][0].affine or any(at[0][0].leaves(at[0][1], sizes)) or g not in others:
            continue
        own = [d for d in x.dims if d != g and kernel.role(d) != "loop"]
        sides = [prod(sizes[d] for d in own if (d in e.axes) == summed) for summed in (False, True)]
        if not {*own} & others - {*e.axes} and max(sides) <= MOST_WIDE:
            able.append((prod(sides), x, at[0][1]))
    yield from ((e.out, x, n) for _, x, n in sorted(able, key=lambda y: y[0])[:1])


@dataclass(frozen=True, slots=True)
class _Diagonal:
    """inside: as of `Diagonal`, with room for one axis more than products follow one another. known: what a value is
    along one of these axes, by its name and the number of the axis; of values that have no groups, by -1. Each product
    sums the axis behind that of its result. names: as of `Diagonal`."""

    of: Kernel
    groups: Groups
    blocks: str
    inside: tuple[str, ...]
    count: int
    known: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    names: dict[str, str] = field(default_factory=dict[str, str])
    loads: list[Load] = field(default_factory=list[Load])
    body: list[Eqn] = field(default_factory=list[Eqn])

    def diagonal(self) -> Diagonal:
        k, g = self.of, self.groups.axis
        values = [self.value(s.value, 0) for s in k.stores]
        stores = tuple(
            replace(s, value=v, access=self.placed(s.access, 0)) for s, v in zip(k.stores, values, strict=True)
        )
        used = {d for x in (*self.loads, *stores) for d in x.dims}
        inside = tuple(a for a in self.inside if a in used)
        own: list[tuple[str, Role]] = [(self.blocks, "grid"), *((a, "tile") for a in inside)]
        roles = tuple(x for d, r in k.roles for x in (own if d == g else [(d, r)]))
        kernel = replace(k, roles=roles, loads=tuple(self.loads), body=tuple(self.body), stores=stores)
        axes = ((self.blocks, dict(self.groups.sizes)[g] // self.count), *((a, self.count) for a in inside))
        return Diagonal(k, kernel, axes, (g, self.blocks), self.count, inside, self.names)

    def placed(self, access: Access, n: int) -> Access:
        return tuple(map(self.put(n), access))

    def put(self, n: int) -> Callable[[Index], Index]:
        """What an index is along one of the axes inside."""
        whole = {self.groups.axis: index({self.blocks: self.count, self.inside[n]: 1})}
        return lambda i: i.within(whole)

    def value(self, v: str, n: int) -> str:
        """The name of a value along one of the axes inside, which is made first."""
        key = v, n if self.groups.axis in self.of.value_dims[v] else -1
        if key not in self.known:
            step = next(x for x in (*self.of.loads, *self.of.body) if x.out == v)
            made = self.load(step, n) if isinstance(step, Load) else self.equation(step, n)
            self.known[key] = made
            self.names[made] = v
        return self.known[key]

    def fresh(self, v: str) -> str:
        return v if v not in self.names else self.fresh(f"{v}_")

    def load(self, x: Load, n: int) -> str:
        made = Load(self.fresh(x.out), x.buffer, self.placed(x.access, n))
        self.loads.append(made)
        return made.out

    def equation(self, e: Eqn, n: int) -> str:
        g, e = self.groups.axis, e.with_indices(self.put(n))
        second = next(((x, extent) for out, x, extent in self.groups.seconds if out == e.out), None)
        if second is None:
            args, axes = tuple(self.value(a, n) if isinstance(a, str) else a for a in e.args), e.axes
        else:
            x, extent = second
            sides = (self.second(x, extent, n) if a == x.out else self.value(str(a), n + 1) for a in e.args)
            args, axes = tuple(sides), (*e.axes, self.inside[n + 1])
        dims = tuple(x for d in e.dims for x in ((self.blocks, self.inside[n]) if d == g else (d,)))
        made = replace(e, out=self.fresh(e.out), args=args, axes=axes, dims=dims)
        self.body.append(made)
        return made.out

    def second(self, x: Load, extent: int, n: int) -> str:
        """A product's second operand, of the groups along the axis inside of its result: outside of the tensor for all
        others along the axis that it sums."""
        apart = index({self.inside[n + 1]: 1, self.inside[n]: -1})
        access = tuple(
            combined(0, ((i, 1), (apart, extent))) if self.blocks in i.dims else i for i in self.placed(x.access, n)
        )
        made = Load(self.fresh(x.out), x.buffer, access)
        self.loads.append(made)
        self.names[made.out] = x.out
        return made.out
