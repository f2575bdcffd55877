"""How large values may be: where all inputs have a mean that is large beside their deviation, as in one distribution of
the tests (`verify/testdata.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, prod

import numpy as np

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import DTYPE_BYTES, INTEGERS, LARGEST_HALF, Eqn, Tensor

MEAN = 100.0
"""Of that distribution, where the deviation is 1: that of a program is in no text of a μGraph."""
MOST = {"float16": LARGEST_HALF}
"""What tensors of this type hold. What is beyond is infinite, in PyTorch too."""
FLOAT32 = 3e38


def largest(graph: MuGraph) -> Mapping[str, Mapping[str, float]]:
    """The order of the values' magnitudes, by kernel: of products and sums, the number that all their terms together
    have where each has its largest; of differences, that of the sums."""
    held = {t.name: _given(t) for t in graph.inputs}
    types = {name: t.dtype for name, t in graph.tensors().items()}
    found: dict[str, dict[str, float]] = {}
    for k in graph.kernels:
        own = {x.out: held.get(x.buffer, 1.0) for x in k.loads}
        for e in k.body:
            own[e.out] = _made(e, own, graph.sizes)
        for s in k.stores:
            held[s.buffer] = min(own[s.value], MOST.get(types[s.buffer], FLOAT32))
        found[k.name] = own
    return found


def _given(t: Tensor) -> float:
    """Of integers, what their type holds."""
    if t.dtype in INTEGERS:
        return float(1 << (8 * DTYPE_BYTES[t.dtype] - 1))
    return min(MEAN, MOST.get(t.dtype, FLOAT32)) if t.dtype != "bool" else 1.0


def _made(e: Eqn, known: Mapping[str, float], sizes: Mapping[str, int]) -> float:
    row = OPS[e.op]
    args = [known.get(a, 1.0) if isinstance(a, str) else abs(float(a)) for a in e.args]
    if e.type == "bool" or row.shift:
        return 1.0
    if row.kind in ("reduction", "contraction"):
        terms = prod(sizes.get(d, 1) for d in e.axes) if row.joins == "add" else 1
        return min(terms * prod(args), FLOAT32)
    finite = [a for i, a in enumerate(args) if isfinite(a) and i not in row.masks]
    if row.kind != "elementwise" or row.masks or e.type == "int":
        return max([*finite, *(float(sizes.get(d, 1)) for d in e.acts_on)], default=1.0)
    if row.linear:
        return min(sum(abs(float(c)) * a for c, a in zip(row.linear, args, strict=True) if isfinite(a)), FLOAT32)
    with np.errstate(all="ignore"):
        value = abs(float(row.ref(*args)))
    return value if isfinite(value) else FLOAT32
