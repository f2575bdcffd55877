"""Whole numbers that are known to be none below 0: a row that such a number names is not counted from the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mirage_cli.spec.aten.magnitudes import not_negative
from mirage_cli.spec.aten.trace import moves

BYTES, WORDS = torch.tensor([0, 3, 200, 255], dtype=torch.uint8), torch.tensor([0, 3, -200, 1 << 30], dtype=torch.int32)


@pytest.mark.parametrize(
    ("made", "known"),
    [
        (lambda b, w: b.long(), True),
        (lambda b, w: b.to(torch.int8).long(), False),  # 200 is -56
        (lambda b, w: (b >> 4).int(), True),
        (lambda b, w: b.int() << 24, False),  # the sign's bit
        (lambda b, w: b.long() + 1, False),
        (lambda b, w: w & 15, True),
        (lambda b, w: (w >> 4) & 15, True),
        (lambda b, w: w >> 4, False),
        (lambda b, w: w % 16, True),
        (lambda b, w: w % -16, False),
        (lambda b, w: torch.remainder(5, w | 1), False),  # of 5 and -199 it is -194
        (lambda b, w: torch.stack([w & 15, b.int()], -1).reshape(-1), True),
        (lambda b, w: torch.stack([w & 15, w], -1).reshape(-1), False),
        (lambda b, w: torch.where(w > 3, b.int(), w & 1), True),
        (lambda b, w: torch.where(w > 3, b.int(), w), False),
        (lambda b, w: torch.where(w > 3, w, 1), False),
        (lambda b, w: torch.argmax(w), True),
        (lambda b, w: w, False),
    ],
)
def test_what_is_known_of_numbers_is_so(made: Callable[..., torch.Tensor], known: bool) -> None:
    graph = make_fx(lambda b, w: (made(b, w),))(BYTES, WORDS).graph
    for n, value in zip(graph.find_nodes(op="placeholder"), (BYTES, WORDS), strict=True):
        n.meta["val"] = value
    for n in graph.nodes:
        if n.op == "call_function":
            args = torch.fx.map_arg((n.args, n.kwargs), lambda x: x.meta["val"])
            n.meta["val"] = n.target(*args[0], **args[1])
    (output,) = graph.find_nodes(op="output")
    (result,) = output.args[0]
    assert not_negative(result, moves) is known
    assert not known or bool((result.meta["val"] >= 0).all())
