"""ATen's cells of recurrent networks, behind their products, as they run on a GPU. What they keep for a derivative is
not here."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array
from mirage_cli.spec.aten.operands import both
from mirage_cli.spec.aten.row import Rows

aten = Rows()


def parts(x: Array, bias: Array | None, count: int) -> Sequence[Array]:
    """What a product gives each gate. x: [b, count * h]; bias: [count * h]."""
    x = x if bias is None else both(operator.add, x, bias)
    size = x.shape[1] // count
    return [p.sliced(x, 1, i * size, size) for i in range(count)]


@aten("aten._thnn_fused_gru_cell")
def _gru_cell(x: Array, hidden: Array, state: Array, x_bias: Any = None, hidden_bias: Any = None) -> list[Array]:
    """x, hidden: [b, 3 * h]; state: [b, h]."""

    def cell(xr: Any, xz: Any, xn: Any, hr: Any, hz: Any, hn: Any, h: Any) -> Any:
        new = g.tanh(xn + g.sigmoid(xr + hr) * hn)
        return new + g.sigmoid(xz + hz) * (h - new)

    return [both(cell, *parts(x, x_bias, 3), *parts(hidden, hidden_bias, 3), state)]


@aten("aten._thnn_fused_lstm_cell")
def _lstm_cell(x: Array, hidden: Array, cell: Array, x_bias: Any = None, hidden_bias: Any = None) -> list[Array]:
    """x, hidden: [b, 4 * h]; cell: [b, h]. Returns the state, and the cell."""
    pairs = zip(parts(x, x_bias, 4), parts(hidden, hidden_bias, 4), strict=True)
    i, f, new, o = (both(operator.add, a, b) for a, b in pairs)
    made = both(lambda f, c, i, n: g.sigmoid(f) * c + g.sigmoid(i) * g.tanh(n), f, cell, i, new)
    return [both(lambda o, c: g.sigmoid(o) * g.tanh(c), o, made), made]
