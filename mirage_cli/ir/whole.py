"""Between which numbers values lie that are whole whatever the data is: bytes, and what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Tensor

Bounds = tuple[int, int]
"""The least and the largest."""
BYTE: Bounds = (-128, 127)


def bounds(kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, Bounds]:
    """Of the values of a kernel that are bytes, or by their equations whole numbers where those are."""
    found: dict[str, Bounds] = {}
    for x in kernel.loads:
        t = tensors.get(x.buffer)
        if t is not None and t.dtype == "int8":
            found[x.out] = (0, t.below - 1) if isinstance(t.below, int) else BYTE

    def known(a: Arg) -> Bounds | None:
        if isinstance(a, str):
            return found.get(a)
        return (int(a), int(a)) if isinstance(a, Fraction) and a.denominator == 1 else None

    for e in kernel.body:
        row = OPS[e.op]
        args = [known(a) for i, a in enumerate(e.args) if i not in row.masks]
        whole = [b for b in args if b is not None]
        if row.whole is not None and e.values and len(whole) == len(args):
            made = row.whole(*whole)
            if made is not None:
                found[e.out] = made
    return found
