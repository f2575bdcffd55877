"""Products of several groups as one, whose second matrix has zeros between the groups: it is block-diagonal.

    O[m, g, n] = dot(X[m, g, k], W[g, k, n]; k)          in blocks of 4 along g
        -->  O[m, u, p, n] = dot(X[m, 4*u + q, k], W'[u, p, q, k, n]; k, q)          g = 4*u + p, u a quarter as long
             W'[u, p, q, k, n] = W[4*u + p, k, n] where p == q, else 0

W' reads W at `4*u + p + size(g)*(q - p)`, which lies outside of it unless p == q, and what lies outside reads as 0. The
matrix units multiply blocks of 64 x 16 at best, so that groups of 16 x 16 leave most of each instruction unused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count as numbers
from itertools import islice
from math import isinf, prod

from mirage_cli.ir.access import Access, Index, combined, index
from mirage_cli.ir.form import Axes, Inside, KernelForm
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Role
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.placement import InexpressibleError, place
from mirage_cli.ir.program import Eqn, Tensor
from mirage_cli.ir.scans import scans_of
from mirage_cli.ir.schedule import KernelSchedule

MOST_WIDE = 64
"""Rows, and columns, that a group's second matrix has at most: with more, its groups fill the matrix units alone."""


def at_schedule(graph: MuGraph, kernel: Kernel, s: KernelSchedule, sizes: Mapping[str, int]) -> KernelForm | None:
    """The kernel as a schedule has it that has several groups in a block; None where it has not."""
    dynamic = frozenset(r.dim for r in graph.dynamic)
    found = groups(kernel, tuple(graph.tensors().values()), tuple(sizes.items()), dynamic)
    if found is None or _reaches(kernel, found, infinite(graph)):
        return None
    return diagonal(kernel, found, s.tile(found.axis))


@lru_cache(maxsize=4096)
def infinite(graph: MuGraph) -> frozenset[str]:
    """Intermediates that are made of infinite numbers: the softmax of a row that is masked everywhere is NaN."""
    found = set[str]()
    for k in graph.kernels:
        if any(map(_is_infinite, k.body)) or any(x.buffer in found for x in k.loads):
            found |= {s.buffer for s in k.stores}
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Groups:
    """The axis of a kernel's groups. seconds: for each product along it, by its name, the operand that may have zeros
    between groups, and the extent of its tensor where it is read at a group. sizes: of all axes."""

    axis: str
    seconds: tuple[tuple[str, Load, int], ...]
    sizes: Axes

    def many(self, count: int) -> bool:
        """Whether blocks may be of so many groups."""
        return count > 1 and dict(self.sizes)[self.axis] % count == 0


@lru_cache(maxsize=4096)
def groups(kernel: Kernel, tensors: tuple[Tensor, ...], axes: Axes, dynamic: frozenset[str]) -> Groups | None:
    """The first axis of a kernel's grid along which all its products multiply one by one, of small matrices. tensors:
    among them what it reads."""
    sizes, loaded = dict(axes), {x.buffer for x in kernel.loads}
    matrix = kernel.matrix_axes(sizes)
    if not matrix or any(s.buffer in loaded for s in kernel.stores) or any(map(_is_infinite, kernel.body)):
        return None
    extents = {t.name: [sizes[d] for d in t.dims] for t in tensors if dynamic.isdisjoint(t.dims)}
    for g in kernel.with_role("grid"):
        products = [e for e in kernel.body if e.op == "dot" and g in e.dims]
        told = all(e.place is not None or g not in e.acts_on for e in kernel.body)
        if products and told and g not in matrix | dynamic and sizes[g] > 1:
            seconds = [_second(kernel, e, g, extents, sizes) for e in products]
            if None not in seconds and not scans_of(kernel):
                return Groups(g, tuple(x for x in seconds if x is not None), axes)
    return None


@lru_cache(maxsize=4096)
def diagonal(kernel: Kernel, found: Groups, count: int) -> KernelForm | None:
    """None where blocks may not be of so many groups, and where roles do not say so."""
    if not found.many(count):
        return None
    taken = {*dict(found.sizes), *kernel.value_dims}
    names = (x for i in numbers() if (x := f"{found.axis}_{i}") not in taken)
    blocks, *inside = islice(names, len(found.seconds) + 2)
    made = _Diagonal(kernel, found, blocks, tuple(inside), count).form()
    try:
        place(made.kernel)
    except InexpressibleError:
        return None
    return made


def _reaches(kernel: Kernel, found: Groups, infinite: Collection[str]) -> bool:
    """Whether anything but the operands with zeros is of these intermediates, which would reach other groups."""
    seconds = {x.out for _, x, _ in found.seconds}
    return any(x.buffer in infinite and x.out not in seconds for x in kernel.loads)


def _is_infinite(e: Eqn) -> bool:
    """Whether an equation has an infinite number, or what rescales sums: zeros times that are no zeros."""
    return OPS[e.op].shift or any(isinf(a) for a in e.args if not isinstance(a, str))


def _second(
    kernel: Kernel, e: Eqn, g: str, extents: Mapping[str, Sequence[int]], sizes: Mapping[str, int]
) -> tuple[str, Load, int] | None:
    """The smaller operand of a product that may have zeros between the groups: loaded, few numbers for each group, and
    read at a group by one index alone that stays inside of the tensor."""
    dims, able = kernel.value_dims, list[tuple[int, Load, int]]()
    for x in (x for x in kernel.loads if x.out in e.values and x.buffer in extents):
        others = {d for v in e.values if v != x.out for d in dims[v]}
        at = [(i, n) for i, n in zip(x.access, extents[x.buffer], strict=True) if g in i.dims]
        own = [d for d in x.dims if d != g and kernel.role(d) != "loop" and sizes[d] > 1]
        columns, summed = (prod(sizes[d] for d in own if (d in e.axes) == inside) for inside in (False, True))
        rows = prod(sizes[d] for d in others.difference(x.dims, e.axes))
        alone = g in others and len(at) == 1 and others.difference(e.axes, (g,)).isdisjoint(own)
        if alone and 1 < columns <= MOST_WIDE and summed <= MOST_WIDE and rows > 1:
            ((i, extent),) = at
            if i.affine and not any(i.leaves(extent, sizes)):
                able.append((columns * summed, x, extent))
    least = min(able, key=lambda y: y[0], default=None)
    return None if least is None else (e.out, *least[1:])


@dataclass(frozen=True, slots=True)
class _Diagonal:
    """blocks: the axis that counts blocks of groups. inside: axes along a block, enough for products that follow one
    another: each sums the axis behind that of its result. known: what a value is along one of these axes, by its name
    and the number of the axis; of values that have no groups, by -1. names: as `KernelForm.values`. seconds: loads of
    operands with zeros."""

    of: Kernel
    groups: Groups
    blocks: str
    inside: tuple[str, ...]
    count: int
    known: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    names: dict[str, str] = field(default_factory=dict[str, str])
    seconds: list[str] = field(default_factory=list[str])
    loads: list[Load] = field(default_factory=list[Load])
    body: list[Eqn] = field(default_factory=list[Eqn])

    def form(self) -> KernelForm:
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
        return KernelForm(
            k,
            kernel,
            axes,
            {g: self.blocks},
            self.count,
            inside=tuple(_standing(kernel, a, self.seconds) for a in inside),
            values=self.names,
            parts=dict.fromkeys(self.seconds, 1 / self.count),
        )

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
        self.seconds.append(made.out)
        self.names[made.out] = x.out
        return made.out


def _standing(kernel: Kernel, axis: str, seconds: Collection[str]) -> Inside:
    """Where an axis along a block of groups stands: with the others of its side of a product, in front of them where
    the groups are so in memory, in what has no zeros if anything has both."""
    side = next(s for product in kernel.products for s in product[::-1] if axis in s) - {axis}
    moves = sorted((*kernel.loads, *kernel.stores), key=lambda x: isinstance(x, Load) and x.out in seconds)
    lying = next(([{*i.dims} for i in x.access] for x in moves if axis in x.dims and side & {*x.dims}), [])
    own, others = ([n for n, dims in enumerate(lying) if dims & some] for some in ({axis}, side))
    return Inside(axis, side, own[-1:] <= others[-1:])
