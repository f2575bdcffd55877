"""μGraphs: a program as kernels, each with a role for every dimension (OSDI '25, Mirage, section 3).

Roles give every tensor's map at once, since axes have names:

    grid    cut in tiles, one per program instance             imap and omap of the axis
    split   cut in chunks over instances, walked in tiles      imap; partial results are merged by a later kernel
    loop    cut in tiles, walked in sequence by each instance  fmap
    tile    held whole in one block                            φ

A generated kernel loads, computes and stores; which of its equations stand before, inside and after its loops follows
from the roles (`ir.placement`). A library kernel is one `dot` of two tensors in memory, run by torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Literal

from mirage_cli.ir.access import Access, Distinct, Index, Lookup, dims_of, lookups_of, nested
from mirage_cli.ir.hashed import hashed_once
from mirage_cli.ir.precision import in_float32
from mirage_cli.ir.program import (
    DTYPE_BYTES,
    HALVES,
    Eqn,
    Merged,
    Range,
    Tensor,
    cast_of,
    distinct_tables,
    resized_dims,
    tables_of,
)

Role = Literal["grid", "split", "loop", "tile"]


def split_axis(dim: str) -> str:
    """The axis of partial results that counts the chunks of a split dimension. Where kernels split one in their own
    numbers of chunks, all but the first have a number behind it."""
    return f"{dim}_split"


@dataclass(frozen=True, slots=True)
class Load:
    """`out = load buffer[access]`: an index for each axis of the buffer, in memory order, in axes of this kernel.

    dims: the axes of the value. Where the access is plain, they name the buffer's own.
    buffers: what it reads, the tables that its indices look up behind the other.
    """

    out: str
    buffer: str
    access: Access
    dims: tuple[str, ...] = field(init=False, repr=False, compare=False)
    buffers: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", dims_of(self.access))
        object.__setattr__(self, "buffers", (self.buffer, *tables_of(self.access)))

    def neighbours(self, t: Tensor) -> tuple[str, ...]:
        """The axes of the value along which its elements are neighbours in the tensor that it reads."""
        if not t.without_gaps:
            return ()
        i = self.access[t.dims.index(t.without_gaps[-1])]
        return tuple(a for a, n in i.terms if n == 1 and isinstance(a, str))


@dataclass(frozen=True, slots=True)
class Store:
    """`store buffer[access] = value`: an index for each axis of the buffer, in memory order, in axes of this kernel.

    dims: the axes that occur. Stores of a split kernel that carry the chunk name `Kernel.chunk` among them.
    """

    buffer: str
    value: str
    access: Access
    dims: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", dims_of(self.access))


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class Kernel:
    """One kernel launch. Values are local to the kernel; only buffers cross from kernel to kernel."""

    name: str
    kind: Literal["generated", "library"]
    roles: tuple[tuple[str, Role], ...]
    loads: tuple[Load, ...]
    body: tuple[Eqn, ...]
    stores: tuple[Store, ...]

    def role(self, dim: str) -> Role:
        return dict(self.roles)[dim]

    def with_role(self, *roles: Role) -> tuple[str, ...]:
        """The dimensions that have one of these roles, in order."""
        return tuple(d for d, r in self.roles if r in roles)

    def with_role_of(self, roles: tuple[Role, ...]) -> Kernel:
        """The same kernel with other roles for its dimensions, in their order."""
        return replace(self, roles=tuple((d, r) for (d, _), r in zip(self.roles, roles, strict=True)))

    @cached_property
    def split(self) -> str | None:
        """The split dimension, if any; there is at most one."""
        return next(iter(self.with_role("split")), None)

    @cached_property
    def chunk(self) -> str:
        """The axis that counts the chunks of the split dimension: among those of stores, one that has no role."""
        first, own = split_axis(self.split or ""), dict(self.roles)
        axes = (a for s in self.stores for a in s.dims if a not in own)
        return next((a for a in axes if a.removeprefix(f"{first}_").isdecimal()), first)

    def renamed(self, names: Mapping[str, str]) -> Kernel:
        """The same kernel with other names for axes that none of its positions is along."""
        indices = {old: Index(((new, 1),)) for old, new in names.items()}

        def other(axes: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(names.get(a, a) for a in axes)

        return replace(
            self,
            roles=tuple((names.get(d, d), r) for d, r in self.roles),
            loads=tuple(replace(x, access=tuple(i.within(indices) for i in x.access)) for x in self.loads),
            body=tuple(replace(e, axes=other(e.axes), dims=other(e.dims)) for e in self.body),
            stores=tuple(replace(s, access=tuple(i.within(indices) for i in s.access)) for s in self.stores),
        )

    def with_indices(self, put: Callable[[Index], Index]) -> Kernel:
        """The same kernel with other indices wherever it has some."""
        return replace(
            self,
            loads=tuple(replace(x, access=tuple(map(put, x.access))) for x in self.loads),
            body=tuple(e.with_indices(put) for e in self.body),
            stores=tuple(replace(s, access=tuple(map(put, s.access))) for s in self.stores),
        )

    def needed_loads(self, body: Iterable[Eqn], stores: Iterable[Store]) -> tuple[Load, ...]:
        """Those that some of its equations and stores need."""
        used = {v for e in body for v in e.values} | {s.value for s in stores}
        return tuple(x for x in self.loads if x.out in used)

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The buffers that it reads, once each."""
        return tuple(dict.fromkeys([*(x.buffer for x in self.loads), *(x.table for x in self.lookups)]))

    @cached_property
    def lookups(self) -> tuple[Lookup, ...]:
        """What it looks up, once each, what the others need first."""
        own = (x for e in self.body for x in e.looks_up)
        moved = lookups_of(i for x in (*self.loads, *self.stores) for i in x.access)
        return tuple(dict.fromkeys((*moved, *own)))

    @cached_property
    def products(self) -> tuple[tuple[frozenset[str], frozenset[str], frozenset[str]], ...]:
        """M, N and K of each product: axes of its left operand alone, of its right alone, and summed."""
        dims, found = self.value_dims, []
        for e in self.body:
            if e.op == "dot":
                a, b = (frozenset(dims[v]) if isinstance(v, str) else frozenset[str]() for v in e.args)
                found.append((a - b - {*e.axes}, b - a - {*e.axes}, frozenset(e.axes)))
        return tuple(found)

    def matrix_axes(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Axes that are M, N or K of some product of two matrices. With a vector, the matrix units multiply nothing."""
        sides = ((*x, *(prod(sizes[d] for d in side) for side in x[:2])) for x in self.products)
        return frozenset(d for m, n, k, rows, columns in sides if rows > 1 < columns for d in m | n | k)

    @cached_property
    def value_dims(self) -> Mapping[str, tuple[str, ...]]:
        """The axes of every value, in the order of the kernel's roles."""
        place = {d: i for i, (d, _) in enumerate(self.roles)}
        dims: dict[str, tuple[str, ...]] = {
            x.out: tuple(sorted(x.dims, key=lambda d: place.get(d, -1))) for x in self.loads
        }
        return dims | {e.out: e.dims for e in self.body}


@hashed_once
@dataclass(frozen=True)  # without slots, for what is cached
class MuGraph:
    """A plan for one program at given sizes. Kernels run in order; `buffers` are intermediates in device memory, whose
    long rows are aligned (`with_aligned_rows`).

    outputs: the tensors that are returned. Kernels may store into inputs too, which are changed in place.
    dims: every axis with its size. Chunk axes (`Kernel.chunk`) are not among them: the schedule sets their size.
    merged: the axes among them that stand for several of the program's. Tensors of the program that have such an axis
        are given and returned in the program's own shape, and seen as this one: the memory is the same.
    dynamic: the axes whose size kernels take as an argument; among `dims` stands the one that they are tuned for.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    dtype: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    merged: Merged = ()
    dynamic: tuple[Range, ...] = ()

    @cached_property
    def sizes(self) -> dict[str, int]:
        """One dictionary for all who ask; who changes it takes a copy."""
        return dict(self.dims)

    def tensors(self) -> Mapping[str, Tensor]:
        """Everything in device memory by name."""
        return self._tensors

    @cached_property
    def _tensors(self) -> Mapping[str, Tensor]:
        return {t.name: t for t in (*self.inputs, *self.buffers, *self.outputs)}

    @cached_property
    def element_bytes(self) -> Mapping[str, int]:
        """Of everything in device memory."""
        return {name: DTYPE_BYTES[t.dtype] for name, t in self._tensors.items()}

    @property
    def distinct(self) -> Distinct:
        return distinct_tables(self.inputs)

    @cached_property
    def changed(self) -> frozenset[str]:
        """The inputs that kernels store into."""
        return frozenset(t.name for t in self.inputs) & {s.buffer for k in self.kernels for s in k.stores}

    @property
    def eqns(self) -> tuple[Eqn, ...]:
        """Those of all kernels."""
        return tuple(e for k in self.kernels for e in k.body)

    def accesses(self) -> Iterator[tuple[str, Index]]:
        """Every axis of a tensor that is read or written, with the index it is read or written by."""
        return iter(self._accesses)

    @cached_property
    def _accesses(self) -> tuple[tuple[str, Index], ...]:
        tensors = self.tensors()
        dims = {name: t.dims for name, t in tensors.items()}
        moves = (x for k in self.kernels for x in (*k.loads, *k.stores))
        return tuple(use for x in moves for use in nested(zip(tensors[x.buffer].dims, x.access, strict=True), dims))

    def exact(self) -> dict[str, frozenset[str]]:
        """For each kernel, the values whose products are of float32 (`exact_values`)."""
        inputs, buffers = ({t.name for t in some if t.dtype == "float32"} for some in (self.inputs, self.buffers))
        small = {t.name for t in (*self.inputs, *self.buffers) if t.dtype in HALVES}
        found = exact_values(self.kernels, self.dtype, inputs, buffers, small)
        return dict(zip((k.name for k in self.kernels), found, strict=True))

    def resized(self, sizes: Mapping[str, int]) -> MuGraph:
        """The same structure at other sizes."""
        dims = resized_dims(self.dims, self.merged, sizes)
        inputs = tuple(t.resized(self.sizes, dict(dims), self.dynamic) for t in self.inputs)
        return replace(self, dims=dims, inputs=inputs).with_aligned_rows()

    def with_indices(self, put: Callable[[Index], Index]) -> MuGraph:
        return replace(self, kernels=tuple(k.with_indices(put) for k in self.kernels))

    def with_aligned_rows(self) -> MuGraph:
        """The same with its buffers as they lie in memory. Those that a library reads or writes have no gaps between
        rows: it is slower with them."""
        known = {d: n for d, n in self.dims if all(r.dim != d for r in self.dynamic)}
        libraries = [k for k in self.kernels if k.kind == "library"]
        dense = {x.buffer for k in libraries for x in (*k.loads, *k.stores)}

        def lying(t: Tensor) -> Tensor:
            return replace(t, strides=()) if t.name in dense else t.with_aligned_rows(known, DTYPE_BYTES[t.dtype])

        return replace(self, buffers=tuple(map(lying, self.buffers)))


def exact_values(
    kernels: Sequence[Kernel], dtype: str, inputs: Collection[str], buffers: Collection[str], small: Collection[str]
) -> list[frozenset[str]]:
    """For each kernel, the values whose products are of float32: in a program of that type all but `small` inputs and
    buffers, and casts to 16 bits; in others what float32 inputs and casts reach, also through float32 buffers,
    since a smaller type would lose what eager keeps."""
    if dtype == "float32":
        rounded = [{e.out for e in k.body if cast_of(e) in HALVES} for k in kernels]
        loaded = [{x.out for x in k.loads if x.buffer in small} for k in kernels]
        return [frozenset(k.value_dims) - a - b for k, a, b in zip(kernels, rounded, loaded, strict=True)]
    read = set(inputs)
    found: list[frozenset[str]] = []
    for k in kernels:
        values = in_float32(k.body, (x.out for x in k.loads if x.buffer in read))
        read |= {s.buffer for s in k.stores if s.value in values} & set(buffers)
        found.append(frozenset(values))
    return found
