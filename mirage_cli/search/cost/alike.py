"""Kernels that differ in names alone have one price: a key that is equal for them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace

from mirage_cli.ir.mugraph import Kernel, Load, Store
from mirage_cli.ir.program import Tensor


def unnamed(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Tensors by name, each without what no price depends on."""
    return {t.name: replace(t, name="", scale=1.0) for t in tensors}


def nameless(
    k: Kernel, element_bytes: Mapping[str, int], exact: Collection[str], known: Mapping[str, Tensor]
) -> Hashable:
    """The key of a kernel: roles, equations, loads and stores, with buffers and values numbered in order of use. Prices
    follow from it and from sizes.

    exact: the values whose products are of float32. known: inputs and outputs of the program, `unnamed`.
    """
    names: dict[str, str] = {}

    def name(text: str) -> str:
        return names.setdefault(text, f"%{len(names)}")

    def buffer(x: Load | Store) -> tuple[object, ...]:
        return name(f"buffer {x.buffer}"), element_bytes[x.buffer], known.get(x.buffer)

    args = (e.arguments(name) for e in k.body)
    body = tuple((e.op, a, e.axes, name(e.out), e.dims, e.type) for e, a in zip(k.body, args, strict=True))
    products = tuple(not {*e.values}.isdisjoint(exact) for e in k.body if e.op == "dot")
    stores = tuple((name(s.value), *buffer(s), s.access) for s in k.stores)
    loads = {x.out: x for x in k.loads}
    used = tuple((name(v), *buffer(loads[v]), loads[v].access) for v in [*names] if v in loads)
    return k.roles, body, products, stores, used
