"""Calls that are interpreted at once give what they give one after another, or are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.lanes import at_once
from mirage_cli.verify import numeric
from mirage_cli.verify.numeric import judge
from mirage_cli.verify.testdata import memory_of

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="kernels are compiled in this run")
CALLS = 3
Kernel = Callable[[Any, Any, Any], None]


@triton.jit
def halved(x):
    return x * 0.5


@triton.jit
def elements(X, W, Y):
    """Numbers of the grid and of memory, rows and columns, masks, and what is elsewhere."""
    row = tl.program_id(0)
    first = tl.load(X + row)
    i, j = tl.arange(0, 16), tl.arange(0, 16)
    inside = (i < 13)[:, None] & (j[None, :] < 11 + row)
    x = tl.load(X + i[:, None] * 16 + j[None, :], mask=inside, other=0)
    w = tl.load(W + j, mask=j < 9, other=3).to(tl.float32)
    y = tl.where(x.to(tl.float32) > first.to(tl.float32), halved(x.to(tl.float32)), w[None, :] * first)
    y = tl.exp2(tl.minimum(y, 3.0)) + (i // 3 % 2)[:, None].to(tl.float32) + tl.abs(x.to(tl.float32))
    z = tl.full([16, 16], 2.0, tl.float32) + tl.zeros([16], tl.float32)[:, None]
    tl.store(Y + row * 256 + i[:, None] * 16 + j[None, :], tl.fma(y, z, y).to(tl.float16), mask=inside)


@triton.jit
def reductions(X, W, Y):
    i = tl.arange(0, 16)
    x = tl.load(X + i[:, None] * 16 + i[None, :]).to(tl.float32)
    total, most, least = tl.sum(x, 1), tl.max(x, axis=1), tl.min(x, axis=0)
    places = tl.sum((x > 0).to(tl.int32), axis=0)
    running = tl.cumsum(tl.load(W + i).to(tl.float32), axis=0) + tl.sum(total, axis=0)
    all_of_it = tl.max(tl.max(x, axis=1), axis=0)
    tl.store(Y + tl.program_id(0) * 256 + i, (total + most + least + places + running + all_of_it).to(tl.float16))


@triton.jit
def shapes(X, W, Y):
    """Axes in another order and number, halves, and what two blocks make together."""
    i = tl.arange(0, 16)
    x = tl.load(X + i[:, None] * 16 + i[None, :])
    w = tl.load(W + i)
    turned = tl.permute(tl.reshape(x, [4, 4, 16]), (2, 1, 0)).reshape([16, 16])
    even, odd = tl.split(tl.reshape(x, [16, 8, 2]))
    both = tl.reshape(tl.join(even, odd), [16, 16]) - tl.broadcast_to(w[:, None], [16, 16])
    bits = (both.to(tl.int16, bitcast=True) & 0x7FFF).to(tl.float16, bitcast=True)
    tl.store(Y + tl.program_id(0) * 256 + i[:, None] * 16 + i[None, :], turned + bits)


@triton.jit
def products(X, W, Y):
    i = tl.arange(0, 16)
    x = tl.load(X + i[:, None] * 16 + i[None, :])
    total = tl.zeros([16, 16], tl.float32)
    for _ in range(3):
        total = tl.dot(x, tl.permute(x, (1, 0)), total)
    total += tl.dot(x.to(tl.float32), x.to(tl.float32), input_precision="tf32x3") + tl.load(W + i)[None, :]
    tl.store(Y + tl.program_id(0) * 256 + i[:, None] * 16 + i[None, :], total.to(tl.float16))


@triton.jit
def boxes_of(X_box, W, Y):
    row = tl.program_id(0)
    i, j = tl.arange(0, 8), tl.arange(0, 16)
    x = X_box.load([row * 8 + 4, 0]) + tl.load(W + j)[None, :]
    tl.store(Y + row * 256 + i[:, None] * 16 + j[None, :], x)


@triton.jit
def in_place(X, W, Y):
    """What is read has been written before, by this program of the grid or by another."""
    i = tl.arange(0, 16)
    tl.store(X + i, tl.load(X + i) + tl.load(W + i))
    tl.store(W + i, tl.load(X + i) - tl.load(W + 15 - i))
    tl.store(Y + tl.program_id(0) * 256 + i, tl.load(X + i) + tl.load(W + i))


@triton.jit
def as_long_as_told(X, W, Y):
    i = tl.arange(0, 16)
    total = tl.zeros([16], tl.float16)
    for _ in range(tl.load(X).to(tl.int32) + 3):
        total += tl.load(W + i)
    tl.store(X + i, total)
    tl.store(Y + i, total)


@triton.jit
def where_told(X, W, Y):
    if tl.load(X) > 0:
        tl.store(Y, 1.0)


def called(kernel: Any, boxed: bool = False) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        x, w = inputs
        y = torch.empty((2, 16, 16), dtype=torch.float16).fill_(7.0)
        kernel[(2,)](TensorDescriptor.from_tensor(x, [8, 16]) if boxed else x, w, y)
        return [y[0], y[1]]

    return run


def given(seed: int = 0) -> list[list[torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [[torch.randn(*n, generator=g).half() for n in ((16, 16), (16,))] for _ in range(CALLS)]


KERNELS = [elements, reductions, shapes, products, boxes_of, in_place]


@pytest.mark.parametrize("kernel", KERNELS, ids=[k.fn.__name__ for k in KERNELS])
def test_results_and_what_is_changed_are_those_of_calls_one_after_another(kernel: Any) -> None:
    run = called(kernel, kernel is boxes_of)
    together, alone = given(), given()
    found = at_once(run, together)
    assert found is not None
    for i, inputs in enumerate(alone):
        wanted = run(inputs)
        for got, want in zip([*found[i], *together[i]], [*wanted, *inputs], strict=True):
            stored = want != 7.0  # the rest is the memory that a call is given
            assert torch.equal(got[stored], want[stored]), i
    assert not torch.equal(found[0][0], found[1][0])


def with_a_copy(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return called(elements)([inputs[0] * 2, inputs[1]])


def with_a_result_of_torch(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [called(elements)(inputs)[0] + 1]


@pytest.mark.parametrize("run", [called(as_long_as_told), called(where_told), with_a_copy, with_a_result_of_torch])
def test_calls_that_do_not_do_the_same_are_not_made_at_once(run: Any) -> None:
    """A loop as long as an input says, a condition, tensors that PyTorch makes: what each call does, nobody knows."""
    together, before = given(), given()
    assert at_once(run, together) is None
    for xs, ys in zip(together, before, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))


def test_tensors_of_several_shapes_are_given_one_after_another() -> None:
    first, second, *_ = given()
    assert at_once(called(elements), [first, [second[0].t(), second[1]]]) is None


def test_gaps_between_elements_are_each_calls_own() -> None:
    def apart() -> list[list[torch.Tensor]]:
        return [[x, torch.stack([w, 2 * w], 1)[:, 0]] for x, w in given()]

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The kernel knows of no gaps, and takes them for elements."""
        return called(in_place)(inputs)

    together, alone = apart(), apart()
    found = at_once(run, together)
    assert found is not None
    for i, inputs in enumerate(alone):
        assert torch.equal(found[i][0][0], run(inputs)[0][0])
        assert all(torch.equal(memory_of(x), memory_of(y)) for x, y in zip(together[i], inputs, strict=True))


ROWS = """
name: rows
dims: {m: 16, n: 16}
inputs:
  X: [m, n]
  W: [n]
program: |
  Y = X * W
outputs:
  Y: [m, n]
"""


@triton.jit
def scaled(X, W, Y, BEYOND: tl.constexpr):
    """Right below a number. Ordinary inputs are."""
    at = tl.program_id(0) * 16 + tl.arange(0, 16)
    x = tl.load(X + at)
    tl.store(Y + at, tl.where(tl.abs(x.to(tl.float32)) < BEYOND, x * tl.load(W + tl.arange(0, 16)), 0.0).to(tl.float16))


@pytest.mark.parametrize("beyond", [float("inf"), 90.0])
def test_a_judgement_is_the_same_and_of_one_call_where_all_is_right(beyond: float) -> None:
    calls = 0

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal calls
        calls += 1
        y = torch.empty(16, 16, dtype=torch.float16)
        scaled[(16,)](*inputs, y, BEYOND=beyond)
        return [y]

    program = parse_spec(ROWS).at()
    verdict = judge(program, run, torch.mul, at_once=at_once)
    once, calls = calls, 0
    assert verdict == judge(program, run, torch.mul)
    right = beyond == float("inf")
    assert verdict.ok == right
    assert (once, calls) == ((1, 7) if right else (8, 7))


def test_what_is_refused_at_once_is_judged_by_calls_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same data, unless calls may have changed them."""
    program, drawn, draw = parse_spec(ROWS).at(), list[str](), numeric.draw_inputs
    monkeypatch.setattr(numeric, "draw_inputs", lambda p, kind, *more: (drawn.append(kind), draw(p, kind, *more))[1])

    def other(run: Any, inputs: Any) -> Any:
        return [[x * w + 1] for x, w in inputs]

    def torn(run: Any, inputs: Any) -> Any:
        for xs in inputs:
            xs[0].fill_(0.0)
        return [[x * w] for x, w in inputs]

    for wrong, times in ((other, 2), (torn, 2), (lambda *_: None, 1)):
        drawn.clear()
        assert judge(program, lambda xs: [xs[0] * xs[1]], torch.mul, at_once=wrong).ok
        assert Counter(drawn) == dict.fromkeys(drawn, times)
