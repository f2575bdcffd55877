"""From an expansion to kernels: a role for every dimension, and the merge of a split dimension.

Only reduced dimensions have a choice: tile, loop or split (of a dynamic one, loop or split). A dimension that no
equation reduces is kept by the output, so it is cut over the grid; holding it whole is a tile size, which the tuner
chooses. Where results at each of its positions are reduced along another axis up to there, both may be held whole: a
scan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.graph import Decomposition
from mirage_cli.ir.access import is_whole, plain
from mirage_cli.ir.mugraph import Kernel, Load, Role, Store, split_axis
from mirage_cli.ir.op import Type
from mirage_cli.ir.ops import FOLDS, OPS
from mirage_cli.ir.placement import InexpressibleError, place
from mirage_cli.ir.program import Eqn, Tensor, equation, live_eqns
from mirage_cli.ir.scans import possible, reduces, with_scans
from mirage_cli.ir.schedule import KernelSchedule, next_power_of_two
from mirage_cli.search.expand import Equations, Expansion, Space, axes_of, sort_axes, stored_axes

TILE_LIMIT = 16384
"""A dimension longer than this is not held whole in one block."""
MAX_BLOCK = 65536
"""Elements of the largest block that a program instance may hold in registers."""
BESIDE_SCAN = 2
"""The part of such a block that a scan may combine: Triton may bring 4 bytes of each through shared memory to another
layout."""
CROWDED = 1024
"""Elements that short reduced axes may have together, before each of them may be walked as well as held whole."""
SPLIT_MINIMUM = 128
"""A dimension shorter than this is not split over program instances by itself."""
SPLIT_TOGETHER = 2048
"""Elements that shorter axes of one reduction have together, at least, where the longest of them is split."""


Roles = tuple[tuple[str, Role], ...]


@dataclass(frozen=True)
class Implementation:
    """Kernels that compute some classes from others in memory: one, and one more for each split that it merges.

    Buffers are called by the key of the class they hold; the assembly of a μGraph names them.
    expansion: what they compute. roles: of all dimensions, in the kernel before it is split; none of a library's.
    """

    expansion: Expansion
    kernels: tuple[Kernel, ...]
    roles: Roles
    scratch: tuple[Tensor, ...] = ()
    faithful: bool = True

    @property
    def targets(self) -> tuple[Form, ...]:
        return self.expansion.targets

    @property
    def leaves(self) -> tuple[Form, ...]:
        return self.expansion.leaves

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """What tells structures apart: the kernels' kinds, roles, and the axes of what they read and write; and
        whether the operands of products are the program's own."""
        return self.faithful, *(shape_of(k) for k in self.kernels)


@dataclass(frozen=True, slots=True)
class Costed:
    """An implementation with its schedules and predicted time."""

    implementation: Implementation
    schedules: tuple[KernelSchedule | None, ...]
    us: float


def shape_of(k: Kernel) -> tuple[object, ...]:
    """The structure of a kernel, whatever its algebra."""
    return k.kind, k.roles, tuple(sorted(x.access for x in k.loads)), tuple(sorted(s.access for s in k.stores))


def buffer_of(d: Decomposition, f: Form) -> str:
    """The name of the buffer that holds a class: an input's own, else the class's key behind `@`."""
    atom = f.atom
    return atom.args[0] if atom is not None and d.is_input(f) else "@" + f.key


def implementations(
    space: Space, e: Expansion, sizes: Mapping[str, int], enough: Callable[[Roles], bool]
) -> Iterator[Implementation | InexpressibleError]:
    """Every choice of roles for an expansion that there are not enough of; a choice that gives no kernel is yielded as
    the reason why."""
    d = space.d
    try:
        written = space.written(e)
    except InexpressibleError as error:
        yield error
        return
    if space.recomputes(e):
        yield InexpressibleError("a product that is there but for a factor")
        return
    base = _kernel(d, e, written)
    faithful = e.faithful(d.names)
    for roles in _choices_of_roles(base, sizes, {r.dim for r in d.program.dynamic}):
        if isinstance(roles, InexpressibleError):
            yield roles
            continue
        if enough(roles):
            continue
        kernel = base.with_role_of(tuple("loop" if r == "split" else r for _, r in roles))
        try:
            kernels, scratch = split_kernels(kernel, [dim for dim, r in roles if r == "split"], d.axes)
            yield Implementation(e, kernels, roles, scratch, faithful)
        except InexpressibleError as error:
            yield error
    if not enough(()) and (library := library_kernel(d, e, written)):
        yield Implementation(e, (library,), (), (), faithful)


def _choices_of_roles(
    base: Kernel, sizes: Mapping[str, int], dynamic: Container[str]
) -> Iterator[Roles | InexpressibleError]:
    """Every choice of roles, depth first; for a part of a choice that no other roles complete to a kernel, the reason
    why. Several axes are split where each is reduced beside the others, as the keys of several attentions are."""
    dims = base.value_dims
    reductions = [q for q in base.body if OPS[q.op].kind in ("reduction", "contraction")]
    reduced = {a for q in reductions for a in q.axes}
    scans = [s for s in possible(base) if all(sizes[s.to] == sizes[a] for a in s.over)]
    spaces = _spaces(with_scans(base, scans))
    scanned = {(s.dims, s.combined * BESIDE_SCAN) for s in scans}
    together = _summed_together(reductions, reduced, spaces, sizes) | _summed_by_elements(base)
    # axes of which either is held whole where the other is: then a scan has all results at once
    alike = {(s.to, a) for s in scans if s.to not in reduced for a in s.over}

    longest = {_longest_together(q, sizes) for q in reductions}
    inside = {(a, b) for q in reductions for v in q.values for a in q.axes for b in dims[v] if b not in q.axes}
    """Of these pairs, a loop over the first would stand inside one over the second."""

    def roles_of(dim: str) -> Iterator[Role]:
        if (dim in reduced or dim in dict(alike)) and sizes[dim] <= TILE_LIMIT and dim not in dynamic:
            yield "tile"
        if dim not in reduced:
            yield "grid"
            return
        if sizes[dim] > 16 or (dim in together and sizes[dim] > 1) or dim in dynamic:
            yield "loop"
        if sizes[dim] >= SPLIT_MINIMUM or dim in longest:
            yield "split"

    def complete(chosen: Roles) -> Iterator[Roles | InexpressibleError]:
        if len(chosen) == len(base.roles):
            yield chosen
            return
        dim = base.roles[len(chosen)][0]
        for role in roles_of(dim):
            here: Roles = (*chosen, (dim, role))
            held = {a for a, r in here if r == "tile"}
            walked = [a for a, r in chosen if r in ("loop", "split")]
            too_long = any(_longer([dims], held, sizes, MAX_BLOCK // n) for dims, n in scanned)
            if role == "tile" and (too_long or _longer(spaces, held, sizes, MAX_BLOCK)):
                yield InexpressibleError("blocks too large")
            elif role in ("loop", "split") and any((dim, a) in inside or (a, dim) in inside for a in walked):
                yield InexpressibleError("nested loop")
            elif _agree(here, alike) and (role != "split" or not _splits_again(dim, chosen, reductions)):
                yield from complete(here)

    yield from complete(())


def _longer(spaces: Iterable[tuple[str, ...]], held: Collection[str], sizes: Mapping[str, int], most: int) -> bool:
    """Whether a block over some of these axes has more elements, of those that are held whole."""
    return any(prod(sizes[a] for a in space if a in held) > most for space in spaces)


def _agree(chosen: Roles, alike: Iterable[tuple[str, str]]) -> bool:
    """Whether of each of these pairs of axes, either both are held whole or none."""
    known, held = {a for a, _ in chosen}, {a for a, r in chosen if r == "tile"}
    return not any({*pair} <= known and len(held & {*pair}) == 1 for pair in alike)


def _splits_again(dim: str, chosen: Roles, reductions: Iterable[Eqn]) -> bool:
    """Whether another axis of a reduction is split already."""
    return any({dim, a} <= set(q.axes) for q in reductions for a, r in chosen if r == "split")


def _spaces(kernel: Kernel) -> set[tuple[str, ...]]:
    """The axes of its values, and of what it reduces."""
    return {*kernel.value_dims.values(), *(tuple({*q.dims, *q.axes}) for q in kernel.body if reduces(q))}


def _summed_together(
    reductions: Iterable[Eqn], reduced: set[str], spaces: Iterable[tuple[str, ...]], sizes: Mapping[str, int]
) -> set[str]:
    """Short axes that may be walked all the same: those of one product, and of blocks that would be crowded."""
    together = {a for q in reductions if q.op == "dot" and len(q.axes) > 1 for a in q.axes}
    for space in spaces:
        short = {a for a in space if a in reduced and 1 < sizes[a] <= 16}
        together |= short if prod(next_power_of_two(sizes[a]) for a in short) > CROWDED else set()
    return together


def _longest_together(q: Eqn, sizes: Mapping[str, int]) -> str | None:
    """The longest axis of a reduction over many elements, which may be split though it is short: the pictures, or their
    rows, over which the gradient of a convolution's weight is summed."""
    longest = max(q.axes, key=lambda a: sizes[a])
    return longest if sizes[longest] > 16 and prod(sizes[a] for a in q.axes) >= SPLIT_TOGETHER else None


def _summed_by_elements(kernel: Kernel) -> set[str]:
    """Summed axes of products that multiply no two matrices, and of sums of what elements of two values give: the taps
    of a depthwise convolution, of which a block would be summed across threads."""
    pairs = {q.out for q in kernel.body if len(q.values) > 1 and not q.axes}
    sums = {a for q in kernel.body if q.op == "sum" and q.args[0] in pairs for a in q.axes}
    return sums | {a for m, n, summed in kernel.products if not m or not n for a in summed}


def reduced_axes(eqns: tuple[Eqn, ...]) -> set[str]:
    return {a for e in eqns if OPS[e.op].kind in ("reduction", "contraction") for a in e.axes}


def _kernel(d: Decomposition, e: Expansion, w: Equations) -> Kernel:
    """The kernel with every dimension on the grid, to be given roles."""
    loads = tuple(Load(name, buffer_of(d, f), access) for name, f, access in w.loads)
    stores = tuple(Store("@" + f.key, w.value[f], plain(stored_axes(d, f))) for f in e.targets)
    dims = {a for x in loads for a in x.dims} | {a for q in w.eqns for a in (*q.dims, *q.acts_on) if q.op != "size"}
    roles: tuple[tuple[str, Role], ...] = tuple((a, "grid") for a in sort_axes(d, dims))
    return Kernel("k", "generated", roles, loads, w.eqns, stores)


def library_kernel(d: Decomposition, e: Expansion, w: Equations) -> Kernel | None:
    """The expansion as one matrix product of the library, where it is just that (see `is_matmul`)."""
    if len(w.eqns) != 1 or w.eqns[0].op != "dot" or len(e.targets) != 1:
        return None
    kernel = replace(_kernel(d, e, w), kind="library", roles=())
    inputs = {t.name: t for t in d.program.inputs}
    own = [(inputs.get(buffer_of(d, f)), f, access) for _, f, access in w.loads]
    whole = all(is_whole(access, t.dims if t else axes_of(d, f), d.sizes) for t, f, access in own)
    gaps = any(t is not None and t.strides for t, *_ in own)
    return kernel if whole and is_matmul(w.eqns[0], kernel.loads, several=not gaps) else None


def is_matmul(e: Eqn, loads: tuple[Load, ...], *, several: bool) -> bool:
    """Whether one torch.bmm of views computes this: at most one batch axis, one axis of K, and rows and columns that
    are one axis each, or, where `several` may be one, side by side in the operand and in the result."""
    a, b = (next((x.dims for x in loads if x.out == v), None) for v in e.args)
    if a is None or b is None or len(e.axes) != 1 or e.axes[0] not in {*a} & {*b}:
        return False
    batch = [x for x in a if x in b and x not in e.axes]
    sides = [(x, tuple(d for d in x if d not in other)) for x, other in ((a, b), (b, a))]
    matrices = all(len(own) == 1 or (several and own and together(own, x, e.dims)) for x, own in sides)
    return len(batch) <= 1 and matrices and all(x[-1] not in batch for x in (a, b))


def together(group: tuple[str, ...], *tensors: tuple[str, ...]) -> bool:
    """Whether axes lie side by side, in this order, in each of some tensors."""
    starts = ((dims, dims.index(group[0])) for dims in tensors)
    return all(dims[at : at + len(group)] == group for dims, at in starts)


# -- splits

ACCUMULATED: Mapping[Type, str] = {"float": "float32", "int": "int32"}
"""The element types of partial results."""


def split_kernels(
    kernel: Kernel, dims: Iterable[str], order: tuple[str, ...]
) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """A kernel that loops over some axes, as one that splits each and one that merges the partial results of all, which
    are in the tensors that are also returned. Raises InexpressibleError."""
    kernels, scratch = (), ()
    place(kernel)
    for dim in dims:
        first, kernel, parts = split_kernel(kernel, dim, order)
        kernels, scratch, order = (*kernels, first), scratch + parts, (split_axis(dim), *order)
    return (*kernels, kernel), scratch


def split_kernel(kernel: Kernel, dim: str, order: tuple[str, ...]) -> tuple[Kernel, Kernel, tuple[Tensor, ...]]:
    """A kernel that loops over `dim`, as one that splits it and one that merges the partial results.

    What the loop stores position by position, each chunk stores for its own positions. Partial sums are added; where
    they depend on a running maximum m, each chunk's are first multiplied by exp(m_chunk - m)^degree, which is the same
    rule as inside the loop. Raises InexpressibleError.
    """
    loops = [x for x in place(kernel).loops if dim in x.dims]
    if len(loops) != 1:
        raise InexpressibleError("a split needs a second pass")
    loop = loops[0]
    degrees = {name: dict(g) for name, g in loop.accumulators}
    whole = tuple(s for s in kernel.stores if s not in loop.stores)
    first_body = tuple(live_eqns(kernel.body, (*degrees, *(s.value for s in loop.stores))))
    rest = tuple(live_eqns((e for e in kernel.body if e.out not in degrees), (s.value for s in whole)))
    dims_of = kernel.value_dims
    if any(dim in (*e.dims, *e.axes) for e in rest if e.op != "size"):  # which is a number, the same in every kernel
        raise InexpressibleError("a split needs a second pass")
    chunk = split_axis(dim)
    used = [n for n in degrees if n in {v for e in rest for v in e.values} | {s.value for s in whole}]
    needed = [n for n in degrees if n in used or any(n in degrees[u] for u in used)]
    types: Mapping[str, Type] = {e.out: e.type for e in kernel.body}
    scratch = tuple(Tensor(f"@{n}_part", (chunk, *dims_of[n]), ACCUMULATED[types[n]]) for n in needed)
    first_loads = kernel.needed_loads(first_body, loop.stores)
    first = Kernel(
        kernel.name,
        "generated",
        _roles(kernel, first_loads, first_body, {dim: "split"}, order),
        first_loads,
        first_body,
        loop.stores + tuple(Store(t.name, n, plain(t.dims)) for n, t in zip(needed, scratch, strict=True)),
    )
    place(first)
    merge_loads, merge_body = _merge(needed, degrees, scratch, kernel, chunk, order)
    loads = merge_loads + kernel.needed_loads(rest, whole)
    body = merge_body + rest
    second = Kernel(kernel.name, "generated", _roles(kernel, loads, body, {chunk: "tile"}, order), loads, body, whole)
    place(second)
    return first, second, scratch


def _merge(
    needed: list[str],
    degrees: Mapping[str, Mapping[str, int]],
    scratch: tuple[Tensor, ...],
    kernel: Kernel,
    chunk: str,
    order: tuple[str, ...],
) -> tuple[tuple[Load, ...], tuple[Eqn, ...]]:
    """Loads of partial results and the equations that merge them under the accumulators' own names."""
    ops = {e.out: e.op for e in kernel.body}
    loads = tuple(Load(f"{n}_part", t.name, plain(t.dims)) for n, t in zip(needed, scratch, strict=True))
    known: dict[str, Tensor | Eqn] = {
        x.out: Tensor(x.out, x.dims, t.dtype) for x, t in zip(loads, scratch, strict=True)
    }
    body: list[Eqn] = []
    axes = (chunk, *order)

    def emit(out: str, op: str, *args: str, over: tuple[str, ...] = ()) -> str:
        e = equation(out, op, args, over, known, axes)
        known[out] = e
        body.append(e)
        return out

    maxima = {m for g in degrees.values() for m in g}
    for n in sorted(needed, key=lambda n: n not in maxima):
        part = f"{n}_part"
        if n in maxima:
            emit(n, "max", part, over=(chunk,))
            emit(f"{n}_scale", "exp_sub", part, n)
            continue
        for m, g in degrees[n].items():
            for i in range(abs(g)):
                part = emit(f"{n}_{m}_{i}", "mul" if g > 0 else "div", part, f"{m}_scale")
        emit(n, ops[n] if ops[n] in FOLDS else "sum", part, over=(chunk,))
    return loads, tuple(body)


def _roles(
    kernel: Kernel, loads: tuple[Load, ...], body: tuple[Eqn, ...], given: Mapping[str, Role], order: tuple[str, ...]
) -> tuple[tuple[str, Role], ...]:
    """The roles of the dimensions that still occur: a reduced one keeps its role, any other goes on the grid."""
    dims = {a for x in loads for a in x.dims} | {a for e in body for a in (*e.dims, *e.acts_on) if e.op != "size"}
    reduced = reduced_axes(body)
    old = dict(kernel.roles)
    place_of = {a: i for i, a in enumerate(order)}
    ordered = sorted(dims, key=lambda a: place_of.get(a, -1))
    return tuple((a, given.get(a) or (old[a] if a in reduced else "grid")) for a in ordered)
