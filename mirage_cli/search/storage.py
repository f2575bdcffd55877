"""Classes as tensors in device memory: element types, bytes, and the time to move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any  # what is worked out once

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.graph import Decomposition
from mirage_cli.ir.access import Access, dims_of
from mirage_cli.ir.mugraph import Kernel, Load, Store, exact_values
from mirage_cli.ir.once import once
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES, HALVES, Tensor
from mirage_cli.search.cost.traffic import bytes_of, bytes_once
from mirage_cli.search.roles import Implementation
from mirage_cli.target.gpus import Target


class Storage:
    """How the classes of a decomposition are stored.

    types: of all classes. sizes: of all axes.
    """

    def __init__(self, d: Decomposition, types: Mapping[Form, str], sizes: Mapping[str, int], target: Target) -> None:
        self.d, self.types, self.sizes, self.target = d, types, sizes, target
        self.exact, self.precise = d.exact, d.precise
        self.worked_out: dict[Any, Any] = {}  # as `once` has it
        self.written: dict[Form, int] = {}
        places: dict[Form, list[tuple[Tensor, Tensor, Access]]] = {}
        for (t, whole, access), f in zip(d.program.places(), d.outputs, strict=True):
            self.written[f] = self.written.get(f, 0) + DTYPE_BYTES[t.dtype]
            if f.dims == frozenset(dims_of(access)):  # others repeat themselves along an axis that no kernel has yet
                places.setdefault(f, []).append((t, whole, access))
        self.places = {"@" + f.key: some for f, some in places.items() if apart(some)}
        """Where outputs hold classes, of those that lie in parts of tensors or in several orders."""

    def dtype_of(self, f: Form) -> str:
        """The element type of an intermediate: the program's where its user has this value as an elementwise or
        contracted result, so that it is rounded where eager PyTorch rounds; float32 otherwise, where eager keeps the
        same value in float32 elsewhere, within a norm say, and where it is `promoted`. Integers have 32 bits."""
        if self.d.is_input(f):
            atom = f.atom
            return next(t.dtype for t in self.d.program.inputs if atom is not None and t.name == atom.args[0])
        if f in self.d.rounded:
            return self.d.rounded[f]
        own = self.d.own.get(f)
        if self.types[f] == "int":
            return "int32"
        if own is None or f in self.precise:
            return "float32"
        for e in self.d.program.eqns:
            if e.out == own:
                return "float32" if OPS[e.op].kind == "reduction" else self.d.program.dtype
        return "float32"

    @once
    def bytes_of(self, f: Form) -> int:
        """Of a class in device memory, the least that is read or written."""
        each = float(DTYPE_BYTES[self.dtype_of(f)])
        if self.d.is_input(f) and f.atom is not None:
            name, access = f.atom.args[:2]
            size = bytes_of(Load("", name, access), {name: int(each)})
            each = bytes_once(access, size, int(each), self.sizes, self.target.l2_bytes)
        return round(prod(self.sizes[a] for a in f.dims) * min(each, self.written.get(f, each)))

    def traffic_us(self, forms: tuple[Form, ...]) -> float:
        """The least time to move these classes through device memory once."""
        return sum(map(self.bytes_of, set(forms))) / self.target.dram_bytes_per_us

    def element_bytes(self, x: Implementation) -> dict[str, int]:
        found = {t.name: DTYPE_BYTES[t.dtype] for t in (*self.d.program.inputs, *x.scratch)}
        found |= {"@" + f.key: DTYPE_BYTES[self.dtype_of(f)] for f in (*x.targets, *x.leaves)}
        return found | {"@" + f.key: self.written[f] for f in x.targets if f in self.written}

    def with_all_stores(self, kernel: Kernel, element_bytes: dict[str, int]) -> Kernel:
        """The kernel with a store for each place where outputs hold a class, in the parts of tensors that these are;
        the bytes of these are noted."""
        if not any(s.buffer in self.places for s in kernel.stores):
            return kernel
        stores: list[Store] = []
        for s in kernel.stores:
            for t, whole, access in self.places.get(s.buffer, ()):
                stores.append(replace(s, buffer=whole.name, access=access))
                element_bytes[whole.name] = DTYPE_BYTES[t.dtype]
            if s.buffer not in self.places:
                stores.append(s)
        return replace(kernel, stores=tuple(stores))

    def exact_values(self, x: Implementation) -> list[frozenset[str]]:
        """For each kernel, the values whose products are of float32."""
        inputs = {t.name for t in self.d.program.inputs if t.dtype == "float32"}
        inputs |= {"@" + f.key for f in x.leaves if f in self.exact and self.dtype_of(f) == "float32"}
        buffers = {t.name for t in x.scratch if t.dtype == "float32"}
        small = {t.name for t in self.d.program.inputs if t.dtype in HALVES}
        small |= {"@" + f.key for f in x.leaves if self.dtype_of(f) in HALVES}
        return exact_values(x.kernels, self.d.program.dtype, inputs, buffers, small)


def apart(places: Sequence[tuple[Tensor, Tensor, Access]]) -> bool:
    """Whether these outputs are otherwise than one tensor of its own, by (output, tensor, where it lies there)."""
    return len({access for _, _, access in places}) > 1 or any(t is not whole for t, whole, _ in places)
