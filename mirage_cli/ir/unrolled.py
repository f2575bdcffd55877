"""Windows in registers: what a block has along their axes, and along one axis that they overlap along, are values of
their own. What several windows share is loaded once.

    O[y, x] = dot(X[y + i, x + j], W[i, j]; i, j)     in blocks of 2 along y
        -->  O_0[v, x] = X[2*v, x]*W[0, 0] + X[2*v, x + 1]*W[0, 1] + X[2*v + 1, x]*W[1, 0] + ...
             O_1[v, x] = X[2*v + 1, x]*W[0, 0] + X[2*v + 1, x + 1]*W[0, 1] + ...              v half as long

A block with axes for windows of 3 x 3 has 16 places for 9, and is summed across threads; one that is walked tap by tap
is loaded nine times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import ceil, prod

import numpy as np

from mirage_cli.ir.access import Index, combined, index
from mirage_cli.ir.form import Axes, KernelForm, axes_of
from mirage_cli.ir.instances import Instance, UnknownError, simpler
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Eqn, Tensor, live_eqns
from mirage_cli.ir.scans import scans_of
from mirage_cli.ir.schedule import KernelSchedule

MOST_ALONG, MOST_TAPS = 16, 32
"""Places of a window along an axis, and in all. Larger ones are walked along an axis: windows of 7 x 7 took 47 us on an
H200 so, and 83 with all places in registers."""
MOST_TERMS = 128
"""Of all windows of a block together. Triton took 28 s for 196 of 8 elements in a thread, and 2 s for 63 (one process,
of a loaded machine)."""

Place = tuple[tuple[str, int], ...]
"""Positions along some axes, in the order of `_Unrolling.unrolled`."""


@dataclass(frozen=True, slots=True)
class Windows:
    """taps: the axes that they have, and that the kernel reduces. along: an axis of the grid that they overlap along,
    but along which no neighbours in memory lie; None where there is none. ends: whether the tensors that the kernel
    stores end where it does, so that rows behind its end are in none of them."""

    taps: tuple[str, ...]
    along: str | None
    ends: bool = True


def at_schedule(graph: MuGraph, kernel: Kernel, s: KernelSchedule, sizes: Mapping[str, int]) -> KernelForm | None:
    """The kernel as a schedule has it that unrolls windows; None where it cannot be."""
    tensors = (*graph.inputs, *graph.outputs)
    found = windows(kernel, axes_of(kernel, sizes), frozenset(r.dim for r in graph.dynamic), tensors)
    if found is None:
        return None
    return unrolled(kernel, found, s.tile(found.along) if found.along else 1, axes_of(kernel, sizes))


def in_blocks(s: KernelSchedule) -> KernelSchedule:
    """The schedule with windows in blocks, whose sizes are powers of two."""
    return replace(s, tiles=tuple((d, 1 << t.bit_length() - 1) for d, t in s.tiles), unroll=False)


@lru_cache(maxsize=4096)
def windows(kernel: Kernel, axes: Axes, dynamic: frozenset[str], tensors: tuple[Tensor, ...]) -> Windows | None:
    """Those of a kernel that multiplies no matrices. Some of their axes it may walk. tensors: the μGraph's inputs and
    outputs."""
    sizes, held = dict(axes), {d for d in kernel.with_role("tile") if dict(axes)[d] <= MOST_ALONG}
    indices = [(x, i) for x in kernel.loads for i in x.access if i.affine and {*i.dims} & held and {*i.dims} - held]
    taps = tuple(d for d, _ in kernel.roles if d in held and any(d in i.dims for _, i in indices))
    over_taps = [e for e in kernel.body if _reduces(e) and {*e.axes} & {*taps}]
    kept = {*taps} - {a for e in over_taps for a in e.axes} | {*taps} & {d for s in kernel.stores for d in s.dims}
    if not taps or kept | dynamic & {*taps} or prod(sizes[a] for a in taps) > MOST_TAPS:
        return None
    if kernel.with_role("split") or kernel.lookups or scans_of(kernel) or any(OPS[e.op].shift for e in kernel.body):
        return None
    if kernel.matrix_axes(sizes):
        return None
    if any(e.type != "float" or not OPS[e.op].joins for e in over_taps):
        return None
    free = {*kernel.with_role("grid")} - dynamic
    rows = {d: i for x, i in indices if i != x.access[-1] for d in i.dims if d in free}
    shared = {d: prod(sizes[a] for a in i.dims if a in taps) for d, i in rows.items()}
    along = max(shared, key=shared.__getitem__, default=None)
    return Windows(taps, along, along is None or _end(kernel, along, {t.name: t.dims for t in tensors}))


def _end(kernel: Kernel, axis: str, tensors: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether each tensor that a kernel stores ends where an axis does. Others than these are the kernel's own."""
    own = (zip(tensors[s.buffer], s.access, strict=True) for s in kernel.stores if s.buffer in tensors)
    return all(any(d == i.axis == axis for d, i in indices) for indices in own)


@lru_cache(maxsize=4096)
def unrolled(kernel: Kernel, found: Windows, rows: int, axes: Axes) -> KernelForm | None:
    """None for too many terms, for rows behind the end of a part of a tensor, which another part may have, and where an
    equation comes to nothing that is known at some place."""
    sizes = dict(axes)
    if rows * prod(sizes[a] for a in found.taps) > MOST_TERMS:
        return None
    if found.along and sizes[found.along] % rows and not found.ends:
        return None
    names: dict[str, str] = {}
    if found.along:
        taken = {*sizes, *kernel.value_dims}
        new = next(x for i in range(len(taken) + 1) if (x := f"{found.along}_rows{i or ''}") not in taken)
        names = {found.along: new}
        sizes[new] = ceil(sizes[found.along] / rows)
    try:
        made = _Unrolling(kernel, (*names, *found.taps), names, rows, sizes).kernel()
    except UnknownError:
        return None
    return KernelForm(kernel, made, tuple(sizes.items()), names, rows, gone=found.taps, unrolls=True)


def _reduces(e: Eqn) -> bool:
    return OPS[e.op].kind in ("reduction", "contraction")


@dataclass(frozen=True, slots=True)
class _Unrolling:
    """unrolled: axes. names, rows: as `names` and `count` of `KernelForm`. known: what a value is at a place along such
    of them as it has: another value, or a number. made: loads and equations, once each, under their names. at: values
    that are positions.
    """

    of: Kernel
    unrolled: tuple[str, ...]
    names: Mapping[str, str]
    rows: int
    sizes: Mapping[str, int]
    known: dict[tuple[str, Place], Arg] = field(default_factory=dict[tuple[str, Place], Arg])
    made: dict[object, str] = field(default_factory=dict[object, str])
    loads: list[Load] = field(default_factory=list[Load])
    body: list[Eqn] = field(default_factory=list[Eqn])
    at: dict[str, Index] = field(default_factory=dict[str, Index])

    def kernel(self) -> Kernel:
        k = self.of
        for x in k.loads:
            for place in self.places(x.dims):
                self.known[x.out, place] = self.load(x, place)
        for row in self.places(self.names):
            for e in k.body:
                for place in self.places(e.dims):
                    if (e.out, place) not in self.known and (place[:1] == row or not self.has_rows(e)):
                        self.known[e.out, place] = self.value(e, place)
        stores = [self.store(s, place) for s in k.stores for place in self.places((*s.dims, *k.value_dims[s.value]))]
        stored = {s.value for s in stores}
        body = tuple(live_eqns(self.body, stored))
        used = {v for e in body for v in e.values} | stored
        roles = tuple((self.names.get(d, d), r) for d, r in k.roles if d in self.names or d not in self.unrolled)
        loads = tuple(x for x in self.loads if x.out in used)
        return replace(k, roles=roles, loads=loads, body=body, stores=tuple(stores))

    def has_rows(self, e: Eqn) -> bool:
        return not {*self.names}.isdisjoint(e.dims)

    def places(self, dims: Collection[str]) -> Iterator[Place]:
        """All along those of some axes that are unrolled."""
        own = [d for d in self.unrolled if d in dims]
        extents = (range(self.rows if d in self.names else self.sizes[d]) for d in own)
        return (tuple(zip(own, at, strict=True)) for at in product(*extents))

    def indices(self, place: Place) -> dict[str, Index]:
        """What is in the place of axes."""
        return {d: index({self.names[d]: self.rows}, n) if d in self.names else index({}, n) for d, n in place}

    def argument(self, a: Arg, place: Place) -> Arg:
        """What an argument is at a place."""
        if not isinstance(a, str):
            return a
        dims = self.of.value_dims[a]
        return self.known[a, tuple((d, n) for d, n in place if d in dims)]

    def load(self, x: Load, place: Place) -> str:
        names = self.indices(place)
        access = tuple(i.within(names) for i in x.access)
        name = self.made.setdefault((x.buffer, access), f"{x.out}_{len(self.made)}")
        if len(self.loads) < len(self.made):
            self.loads.append(Load(name, x.buffer, access))
        return name

    def value(self, e: Eqn, place: Place) -> Arg:
        """What an equation comes to: of a reduction all terms, joined one after the other, and reduced along the axes
        that the kernel walks."""
        walked = tuple(a for a in e.axes if a not in self.unrolled)
        if not _reduces(e) or walked == e.axes:
            return self.equation(e, tuple(self.argument(a, place) for a in e.args), place)
        row, inside = OPS[e.op], (*e.dims, *walked)
        joined, multiplied = (replace(e, op=op, args=(e.out,) * 2, axes=(), dims=inside) for op in (row.joins, "mul"))
        total: Arg | None = None
        for taps in self.places(e.axes):
            here = tuple(sorted((*place, *taps), key=lambda x: self.unrolled.index(x[0])))
            args = tuple(self.argument(a, here) for a in e.args)
            term = args[0] if row.kind == "reduction" else self.equation(multiplied, args, place)
            if term != row.identity:
                total = term if total is None else self.equation(joined, (total, term), place)
        if total is None:
            raise UnknownError
        if not walked:
            return total
        whole = replace(e, op=e.op if row.kind == "reduction" else "sum", args=(e.out,), axes=walked)
        return self.equation(whole, (total,), place)

    def equation(self, e: Eqn, args: tuple[Arg, ...], place: Place) -> Arg:
        """What an equation with these arguments comes to: itself, written once, if nothing else."""
        here = Instance(self.indices(place), {d: self.sizes[d] for d in self.unrolled}, self.at)
        found = here.folded(e, args)
        found = self.decided(here, e, args) if found is None else found
        if found is not None and not isinstance(found, Index):
            return found
        op, args = simpler(e, args)
        axes = (str(found),) if e.op == "index" else e.axes
        dims = tuple(self.names.get(d, d) for d in e.dims if d in self.names or d not in self.unrolled)
        key = op, args, axes, dims
        if key not in self.made:
            name = self.made[key] = f"{e.out}_{len(self.made)}"
            self.body.append(replace(e, out=name, op=op, args=args, axes=axes, dims=dims))
            if found is not None:
                self.at[name] = found
        return self.made[key]

    def decided(self, here: Instance, e: Eqn, args: tuple[Arg, ...]) -> Arg | None:
        """A comparison of positions that holds everywhere or nowhere, and what one of two masks decides."""
        row = OPS[e.op]
        if row.order is not None:
            x, y = (here.index_of(a) for a in (args[::-1] if row.order.turned else args))
            if x is None or y is None:
                return None
            least, most = combined(0, ((y, 1), (x, -1))).bounds(self.sizes)
            return Fraction(1) if least >= row.order.strict else Fraction(0) if most < row.order.strict else None
        masks = [a for a in args if isinstance(a, str)]
        if len(row.masks) != len(args) or len(args) != 2 or len(masks) != 1:
            return None
        one, other = (
            bool(row.ref(*(np.bool_(x) if isinstance(a, str) else np.bool_(a != 0) for a in args)))
            for x in (False, True)
        )
        return Fraction(one) if one == other else masks[0] if other else None

    def store(self, s: Store, place: Place) -> Store:
        value, names = self.argument(s.value, place), self.indices(place)
        if not isinstance(value, str):
            raise UnknownError
        return Store(s.buffer, value, tuple(i.within(names) for i in s.access))
