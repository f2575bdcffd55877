"""The least time of one kernel, before its axes have roles: no implementation of an expansion takes less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any  # what is worked out once

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.graph import Node
from mirage_cli.ir.access import Access
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.once import once
from mirage_cli.ir.ops import OPS, flops_of
from mirage_cli.ir.placement import InexpressibleError
from mirage_cli.ir.precision import product_dtype
from mirage_cli.ir.program import DTYPE_BYTES
from mirage_cli.search.cost.traffic import BufferPart, bytes_of, bytes_once, of_parts, part_of
from mirage_cli.search.expand import Equations, Expansion, Space
from mirage_cli.search.roles import buffer_of
from mirage_cli.search.storage import Storage


class _Steps(dict[tuple[Form, Node], tuple[float, ...]]):
    """`LeastWork.steps_us`, worked out where it is first asked for."""

    def __init__(self, least: LeastWork) -> None:
        super().__init__()
        self.least = least

    def __missing__(self, made: tuple[Form, Node]) -> tuple[float, ...]:
        found = self[made] = self.least.steps_us(*made)
        return found


class LeastWork:
    """Lower bounds of single kernels, from their equations alone.

    Of expansions that read the same, twice as many are looked at as there may be alternatives. prune: whether a bound
    is of any use.
    """

    def __init__(self, storage: Storage, space: Space, prune: bool) -> None:
        self.storage, self.space, self.prune = storage, space, prune
        self.alternatives = space.bounds.alternatives
        self.worked_out: dict[Any, Any] = {}  # as `once` has it
        self.d, self.sizes, self.target = storage.d, storage.sizes, storage.target
        own = self.target.matrix_flops_per_us(product_dtype(self.d.program))
        self.products_per_us = max(self.target.tensor_flops_per_us, own)
        self.of_steps = _Steps(self)

    def work(self, e: Expansion) -> float:
        """Arithmetic of an expansion in microseconds at full rate, every step once over its whole space."""
        return sum(chain.from_iterable(map(self.of_steps.__getitem__, e.chosen)), 0.0)

    def steps_us(self, f: Form, node: Node) -> tuple[float, ...]:
        """Of the steps of a node whose class is f."""
        space = float(prod(self.sizes[a] for a in f.dims))
        found: list[float] = []
        for s in node.steps:
            reduced = prod(self.sizes[a] for a in s.axes) if OPS[s.op].kind in ("reduction", "contraction") else 1
            rate = self.products_per_us if s.op == "dot" else self.target.fp32_flops_per_us
            found.append(flops_of(s.op, s.args, nearly=True) * space * reduced / rate)
        return tuple(found)

    def kernel_us(self, same: Sequence[tuple[float, Expansion]]) -> float:
        """A lower bound for the kernels of the expansions that will be priced."""
        if not self.prune:
            return 0.0
        return min((self.expansion_us(e) for _, e in same[: 2 * self.alternatives]), default=math.inf)

    @once
    def expansion_us(self, e: Expansion) -> float:
        """A lower bound for the kernels of an expansion; infinite if it has none."""
        if self.space.recomputes(e):
            return math.inf
        try:
            written = self.space.written(e)
        except InexpressibleError:
            return math.inf
        return self.target.launch_us + max(self.moving_us(e.targets, written), self.arithmetic_us(written))

    def moving_us(self, targets: tuple[Form, ...], written: Equations) -> float:
        """The least time to read and write what these equations do; what masks may leave out is not counted."""
        read = () if _masked(written) else tuple((f, access) for _, f, access in written.loads)
        return (self.read_bytes(read) + sum(map(self.storage.bytes_of, targets))) / self.target.dram_bytes_per_us

    @once
    def read_bytes(self, read: tuple[tuple[Form, Access], ...]) -> float:
        """Of what these loads read: many expansions read the same."""
        parts: dict[BufferPart, float] = {}
        element_bytes: dict[str, int] = {}
        accesses: list[tuple[str, Access]] = []
        for f, access in read:
            x = Load("", buffer_of(self.d, f), access)
            element_bytes[x.buffer] = DTYPE_BYTES[self.storage.dtype_of(f)]
            part, size, l2_bytes = part_of(x.buffer, access), bytes_of(x, element_bytes), self.target.l2_bytes
            each = bytes_once(access, size, element_bytes[x.buffer], self.sizes, l2_bytes)
            whole = prod(self.sizes[a] for a in x.dims) * each
            parts[part] = max(parts.get(part, 0.0), whole)
            accesses.append((x.buffer, access))
        return float(of_parts(parts, accesses, element_bytes, self.sizes))

    def arithmetic_us(self, written: Equations) -> float:
        """The least time of these equations in the cost model, products beside all else; 0 where masks may leave a part
        of it out."""
        if _masked(written):
            return 0.0
        products = others = 0.0
        for q in written.eqns:
            reduces = OPS[q.op].kind in ("reduction", "contraction")
            space = float(prod(self.sizes[a] for a in ({*q.dims, *q.axes} if reduces else q.dims)))
            if q.op == "dot":
                products += OPS["dot"].flops * space
            else:
                others += flops_of(q.op, q.args, nearly=True) * space
        return max(
            products / self.products_per_us,
            others / (self.target.fp32_flops_per_us * self.target.costs.simd),
        )


def _masked(written: Equations) -> bool:
    return any(q.type == "bool" for q in written.eqns)
