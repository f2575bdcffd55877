"""Between which numbers values lie that are whole whatever the data is: bytes, positions, and what is computed from
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import INTEGERS, WORD, Arg, Eqn, Tensor, below, number_type

Interval = tuple[int, int]
"""The least and the largest of whole numbers."""
BYTE: Interval = (-128, 127)
LOADED = {"int8": BYTE, "int32": WORD}
"""What is loaded of integers whose parts are small numbers."""
EXACT = {"float16": 2048, "bfloat16": 256}
"""Up to here these types have all whole numbers."""


def bounds(kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, Interval]:
    """Of the values of a kernel that are bytes or words, or by their equations whole numbers where those are."""
    found: dict[str, Interval] = {e.out: WORD for e in kernel.body if e.type == "int"}
    for x in kernel.loads:
        t = tensors.get(x.buffer)
        if t is not None and t.dtype in LOADED:
            found[x.out] = (-t.padded, t.below - 1) if isinstance(t.below, int) else LOADED[t.dtype]
    return bounds_of(kernel.body, found)


def positions(values: Iterable[Tensor | Eqn], sizes: Mapping[str, int]) -> dict[str, Interval]:
    """Of integers: of inputs, as far as they say it, and of positions along axes."""
    found: dict[str, Interval] = {}
    for x in values:
        if isinstance(x, Eqn) and x.type == "int":
            found[x.out] = x.place.bounds(sizes) if x.place else WORD
        elif isinstance(x, Tensor) and x.dtype in INTEGERS:
            most = below(x, sizes)
            found[x.name] = (-x.padded, most - 1) if most is not None else BYTE if x.dtype == "int8" else WORD
    return found


def bounds_of(eqns: Iterable[Eqn], known: Mapping[str, Interval]) -> dict[str, Interval]:
    """These, and those of what is computed from them alone. Elements that are moved stay, or 0 takes their place."""
    found = {**known}

    def of(a: Arg) -> Interval | None:
        if isinstance(a, str):
            return found.get(a)
        return (int(a), int(a)) if number_type(a) == "int" else None

    for e in eqns:
        row = OPS.get(e.op)
        if row is None or not e.values:
            continue
        if e.op == "rename" and (moved := of(e.args[0])) is not None:
            found[e.out] = min(moved[0], 0), max(moved[1], 0)
            continue
        args = [of(a) for i, a in enumerate(e.args) if i not in row.masks]
        whole = [b for b in args if b is not None]
        made = row.whole(*whole) if row.whole is not None and len(whole) == len(args) else None
        if made is not None:
            found[e.out] = WORD if e.type == "int" and not (WORD[0] <= made[0] and made[1] <= WORD[1]) else made
    return found
