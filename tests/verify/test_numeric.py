"""The floating-point judgement: right kernels pass on every distribution, wrong ones fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.derived import derived_equation
from mirage_cli.ir.program import Builder, Drawn, Program, Tensor
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.triton_interpreter import product_of_tf32x3, to_tf32
from mirage_cli.verify import facts, testdata
from mirage_cli.verify.distance import Error, distance, error, overflows
from mirage_cli.verify.facts import independent_axis
from mirage_cli.verify.float64 import called64, reference64
from mirage_cli.verify.halves import halved_sum, running_sum
from mirage_cli.verify.lies import fresh_memory_is_nan
from mirage_cli.verify.numeric import NumericVerdict, draw_inputs, judge
from mirage_cli.verify.pieces import PIECE_BYTES, Block, Cut, Piece, as_tuple, pieces_of, pieces_with
from mirage_cli.verify.rounding import MoveEveryResult, RangeOfEveryResult, RoundEveryResult, in_float64
from mirage_cli.verify.testdata import DISTRIBUTIONS, draw
from mirage_cli.verify.yardstick import Judgement, Known, Reference, error_of, judge_outputs

DIMS = (("h", 2), ("q", 17), ("s", 33), ("d", 16), ("e", 8))


def attention(dtype: str = "float16", safe: bool = True) -> Program:
    inputs = tuple(Tensor(n, tuple(dims), dtype) for n, dims in (("Q", "hqd"), ("K", "hsd"), ("V", "hse")))
    b = Builder(inputs, [n for n, _ in DIMS])
    scores = b.emit("dot", "Q", "K", axes="d")
    if safe:
        p = b.append(derived_equation("P", "softmax", (scores,), ("s",), b))
    else:
        e = b.emit("exp", scores)
        p = b.emit("div", e, b.emit("sum", e, axes="s"))
    b.emit("dot", p, "V", axes="s", out="O")
    return Program("attention", DIMS, dtype, inputs, tuple(b.eqns), (Tensor("O", ("h", "q", "e"), dtype),))


def eager_of(p: Program):
    scope: dict[str, object] = {"torch": torch}
    exec(torch_source(p), scope)
    return scope["reference"]


def kernel(p: Program, scale: float = 1.0):
    """A good kernel: float32 inside, rounded once."""
    eager = eager_of(p)
    return lambda inputs: [(eager(*(x.float() for x in inputs)) * scale).to(inputs[0].dtype)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("seed", range(5))
def test_a_right_kernel_passes_with_the_smallest_tolerance_in_use(dtype: str, seed: int) -> None:
    p = attention(dtype)
    verdict = judge(p, kernel(p), eager_of(p), seed=seed, tolerance=2)
    assert verdict.ok, str(verdict)
    assert len(verdict.detail) == len(DISTRIBUTIONS)
    assert 0 < verdict.error < 1e-2


def refused(run, p: Program | None = None) -> NumericVerdict:
    p = p or attention()
    verdict = judge(p, run, eager_of(p))
    assert not verdict.ok
    assert verdict.worst.problem in str(verdict)
    return verdict


def test_a_scale_that_is_one_percent_off_is_refused() -> None:
    assert "error" in str(refused(kernel(attention(), 1.01)))


def test_one_wrong_row_is_refused() -> None:
    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        (y,) = kernel(attention())(inputs)
        y[1, 16] *= 1.02
        return [y]

    refused(run)


def test_a_masked_out_last_column_is_refused() -> None:
    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        q, k, v = (x.float() for x in inputs)
        return [(torch.softmax(q @ k[:, :-1].mT, dim=-1) @ v[:, :-1]).half()]

    refused(run)


def test_one_term_of_2048_that_is_left_out_is_refused_in_bfloat16() -> None:
    """Ordinary data do not tell: one term is 2 % of a sum's deviation, and rounding both factors costs as much."""
    inputs = "{X: [m, k], A: {dims: [k, n], scale: 0.02}, B: {dims: [k, n], scale: 0.02}}"
    p = parse_spec(
        f"name: gated\ndims: {{m: 5, k: 2048, n: 7}}\ndtype: bfloat16\ninputs: {inputs}\n"
        "program: O = silu(dot(X, A, k)) * dot(X, B, k)\noutputs: {O: [m, n]}"
    ).at()

    def run(inputs: list[torch.Tensor], terms: int) -> list[torch.Tensor]:
        x, a, b = (t.float() for t in inputs)
        return [(torch.nn.functional.silu(x @ a) * (x[:, :terms] @ b[:terms])).bfloat16()]

    assert {j.distribution for j in refused(partial(run, terms=2047), p).detail if j.problem} == {"tiny"}
    assert judge(p, partial(run, terms=2048), eager_of(p)).ok


def test_a_place_that_is_not_written_is_refused() -> None:
    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        (y,) = kernel(attention())(inputs)
        out = torch.empty_like(y)
        out.view(-1)[:-1] = y.view(-1)[:-1]
        return [out]

    assert "nan at (1, 16, 7)" in str(refused(run))


def test_a_softmax_without_a_maximum_is_refused_on_large_logits_alone() -> None:
    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        q, k, v = (x.float() for x in inputs)
        e = (q @ k.mT).exp()
        return [(e / e.sum(-1, keepdim=True) @ v).half()]

    verdict = refused(run)
    failed = {j.distribution for j in verdict.detail if j.problem}
    assert {"large", "huge", "outlier"} <= failed <= {"large", "huge", "outlier", "large mean"}


def test_eager_that_overflows_is_no_excuse_unless_it_is_asked_for() -> None:
    """A program written without a maximum: float64 holds exp(500), eager in float16 does not."""
    p = attention(safe=False)
    eager = eager_of(p)
    run = lambda inputs: [eager(*inputs)]  # noqa: E731
    assert not judge(p, run, eager, distributions=["large"]).ok
    lenient = judge(p, run, eager, distributions=["large"], overflow_like_eager=True)
    assert lenient.ok
    assert lenient.worst.excused
    good = judge(p, kernel(attention()), eager, distributions=["normal", "large", "huge"])
    assert good.ok, str(good)


def test_a_sum_that_overflows_in_one_order_and_not_in_eagers_is_excused_with_eagers() -> None:
    """Of 3e38, -3e38, 3e38, -3e38, ... no partial sum overflows; of every other one first, the second does."""
    eager = lambda x: x.cumsum(-1)[..., -1]  # noqa: E731
    program = Reference(eager, lambda x: x.sum(-1), torch.float32)
    x = torch.tensor([[3e38, -3e38] * 8, [1e37, -1e37] * 8, [2e37] * 16, [1e36] * 16], dtype=torch.float32)
    right = x.double().sum(-1).float()
    for value in (math.inf, math.nan):
        for row, excused in ((0, True), (1, False), (2, False), (3, False)):
            y = right.clone()
            y[row] = value
            strict, lenient = (program.judge("huge", [x], [y], 4.0, overflow_like_eager=like) for like in (False, True))
            assert strict.problem is not None
            assert (lenient.problem is None, lenient.excused) == (excused, int(excused))
    assert program.judge("huge", [x], [right], 4.0, overflow_like_eager=True).problem is None


def test_a_quotient_by_what_cancels_in_one_order_and_not_in_eagers_is_excused_with_eagers() -> None:
    """1e8 + 1 - 1e8 is 0 in float32, and 1e8 - 1e8 + 1 is 1."""
    eager = lambda x: 1 / x.cumsum(-1)[..., -1]  # noqa: E731
    program = Reference(eager, lambda x: 1 / x.sum(-1), torch.float32)
    x = torch.tensor([[1e8, -1e8, 1.0], [1e6, -1e6, 1.0], [1.0, 2.0, 1.0]])
    for row, excused in ((0, True), (1, False), (2, False)):
        y = eager(x)
        y[row] = math.inf
        strict, lenient = (program.judge("huge", [x], [y], 4.0, overflow_like_eager=like) for like in (False, True))
        assert strict.problem is not None
        assert (lenient.problem is None, lenient.excused) == (excused, int(excused))


@pytest.mark.parametrize("cut", [None, Cut((0,), (0,), 4, 1 << 29)], ids=["whole", "in pieces"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_an_infinity_that_rounding_gives_needs_no_excuse(value: float, cut: Cut | None) -> None:
    """The exponent is 0, or off by the last places of its terms: where these are 1e6, by less than 10. A difference of
    sums that are beyond float32 is NaN, in whatever order: there eager's order is what excuses one."""
    stepwise = lambda x: (x.sum(-1) - x.flip(-1).sum(-1)).exp()  # noqa: E731
    eager = lambda x: torch.ones_like(x[..., 0])  # noqa: E731
    program = Reference(eager, stepwise, torch.float32, wide=eager)
    draws = torch.rand(4, 16, generator=torch.Generator().manual_seed(0))
    x = draws * torch.tensor([1e12, 1e6, 1.0, 3e38])[:, None]
    for row, (right, excused) in enumerate(((True, 0), (False, 0), (False, 0), (False, 1))):
        y = eager(x)
        y[row] = value
        strict, lenient = (program.judge("huge", [x], [y], 4.0, like, 1, cut) for like in (False, True))
        assert (strict.problem is None, strict.excused) == (right, 0)
        assert (lenient.problem is None, lenient.excused) == (right or bool(excused), excused)
        assert strict.told and lenient.told
    y = torch.full((3,), value)
    most = program.judge("huge", [x[[0, 0, 2]]], [torch.where(x[[0, 0, 2], 0] > 1e6, y, 1.0)], 4.0, False)
    assert most.problem is None and not most.told, "nothing was compared in most places"


MASKED = """
name: masked
dims: {{q: 20, s: 40}}
dtype: {dtype}
inputs: {{A: [q, s], L: {{dims: [q], dtype: int32, below: s}}}}
program: |
  X = where(index(s) < L, A, -inf)
  M = max(X, s)
  O = X - logsumexp(X, s)
  P = log(sum(where(index(s) < L, exp(A), 0), s))
outputs: {{X: [q, s], M: [q], O: [q, s], P: [q]}}
"""


@pytest.mark.parametrize(("dtype", "like"), [("float16", True), ("bfloat16", False), ("float32", True)])
def test_an_infinity_of_a_mask_is_an_output_as_any_other(dtype: str, like: bool) -> None:
    """Also in rows of which a mask leaves nothing, whose sums of exponentials have no logarithm."""
    p = parse_spec(MASKED.format(dtype=dtype)).at()

    def run(inputs: list[torch.Tensor], wrong: int | None, value: float | None) -> list[torch.Tensor]:
        a, lengths = inputs[0].double(), inputs[1]
        mask = torch.arange(a.shape[1]) < lengths[:, None]
        x = a.masked_fill(~mask, -math.inf)
        found = [x, x.amax(-1), x - x.logsumexp(-1, keepdim=True), x.logsumexp(-1)]
        if wrong is not None:
            y, free = found[wrong], (a, a.amax(-1), a - x.logsumexp(-1, keepdim=True), a.logsumexp(-1))[wrong]
            found[wrong] = torch.where(y == -math.inf, free if value is None else value, y)
        return [y.to(inputs[0].dtype) for y in found]

    assert judge(p, lambda x: run(x, None, None), eager_of(p), overflow_like_eager=like).ok
    for wrong, value in ((0, None), (0, math.inf), (1, None), (1, math.nan), (2, None), (3, None), (3, 0.0)):
        how = {"distributions": ["normal"], "overflow_like_eager": like}
        found = judge(p, lambda x, w=wrong, v=value: run(x, w, v), eager_of(p), **how)
        assert "where float64 has -inf" in str(found)


def test_an_infinity_that_numbers_make_may_be_a_number_without_rounding() -> None:
    """The logarithm of a sum of exponentials, or of one that is 0 in float64, where a kernel subtracts the maximum; and
    of a difference that cancels."""
    sums, differences = (lambda x: x.exp().sum(-1).log()), (lambda x: (x[..., 0] - x[..., 1]).abs().log())
    for function, x, y in (
        (sums, torch.full((4, 2), 1000.0), torch.full((4,), 1000 + math.log(2))),
        (sums, torch.full((4, 2), -1000.0), torch.full((4,), -1000 + math.log(2))),
        (differences, torch.full((4, 2), 1 / 3), torch.full((4,), -17.0)),
    ):
        program = Reference(function, function, torch.float32)
        assert bool(function(x.double()).isinf().all())
        assert program.judge("huge", [x], [y], 4.0, overflow_like_eager=False).problem is None


def test_what_decides_whether_there_is_an_infinity_may_be_rounding() -> None:
    """Where a sum is 1, a kernel's may be more; where it is 0.5, it is not."""
    function = lambda x: torch.where(x.cumsum(-1)[..., -1] > 1, 0.0, -torch.inf)  # noqa: E731
    program = Reference(function, function, torch.float32)
    for total, right in ((1.0, True), (0.5, False)):
        x = torch.full((4, 10), total / 10)
        judged = program.judge("normal", [x], [torch.zeros(4)], 4.0, overflow_like_eager=False)
        assert (judged.problem is None) == right


def test_infinities_that_rounding_gives_are_looked_for_once_and_no_longer_than_that_helps() -> None:
    """Evaluation n overflows at all places up to n; the last 32 of 128 are numbers in each."""
    exact = [torch.ones(128, dtype=torch.float64)]
    known, made = Known(), list[int | None]()

    def ranged(piece: Piece, seed: int | None, times: float) -> list[torch.Tensor]:
        made.append(seed)
        at = torch.arange(128)
        return [torch.where((at < 96) & (at <= (-1 if seed is None else seed)), torch.inf, exact[0])]

    def seeds(at: list[int], right: bool) -> list[int | None]:
        y = exact[0].float()
        y[at] = torch.nan
        made.clear()
        how = lambda *_: exact, [exact[0].float()], lambda *_: exact, 4.0, False, 1, None, known, ranged
        found = judge_outputs("huge", [y], *how)
        assert (found.problem is None) == right
        return [*made]

    assert seeds([1, 3], right=True) == [None, 0, 1, 2, 3]
    assert seeds([5], right=True) == [4, 5]
    assert seeds([0, 1, 2, 3, 4, 5], right=True) == []
    assert seeds([*range(90, 128)], right=False) == [6, 7], "after eight evaluations nothing is explained"
    assert seeds([0, 120], right=False) == [*range(8, 64)], "of a few, each may be one that chance leaves open"


def test_infinities_that_most_of_a_piece_does_not_explain_are_looked_for_in_no_other() -> None:
    """Eager's own are excused, and looked for nowhere."""
    x, made = torch.ones(4, 64), list[int]()
    cut = Cut((0,), (0,), 4, 1 << 29)
    exact = lambda piece: [x[[*piece.positions]].double()]  # noqa: E731

    def ranged(piece: Piece, seed: int | None, times: float) -> list[torch.Tensor]:
        made.extend([] if seed is None else [piece.positions[0]])
        return exact(piece)

    rounded = lambda piece, *_: exact(piece)  # noqa: E731
    for eager, pieces in ((x, {0}), (torch.where(x > 0, torch.inf, x), set[int]())):
        y = x.clone()
        y[1:] = torch.inf
        made.clear()
        found = judge_outputs("huge", [y], exact, [eager], rounded, 4.0, True, 1, cut, None, ranged)
        assert (found.problem is None) == (not pieces)
        assert {*made} == pieces


def test_what_float32_has_no_normal_number_for_may_be_zero() -> None:
    """A GPU's fast exponential flushes it; where a whole output is so small, that is all of it. What is made of it is
    another matter."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 1e30

    for function, most, right in ((torch.exp, -88.0, True), (torch.exp, -84.0, False), (scaled, -88.0, False)):
        program = Reference(function, function, torch.float32)
        x = torch.linspace(most - 1, most, 16)  # exp(-87.34) is 2 ** -126
        for y, passes in ((torch.zeros(16), right), (function(x), True)):
            judged = program.judge("huge", [x], [y], 4.0, overflow_like_eager=False)
            assert (judged.problem is None) == passes


def test_places_that_are_excused_are_counted_in_all_outputs() -> None:
    """Also where another output has the larger error."""
    exact = [torch.ones(4, dtype=torch.float64)] * 2
    eager = [torch.ones(4).half(), torch.full((4,), math.inf).half()]
    verdict = judge_outputs("normal", [eager[0] * 1.001, eager[1]], lambda _: exact, eager, lambda *_: exact, 4, True)
    assert verdict.problem is None
    assert verdict.error.norm > 0
    assert verdict.excused == 4


def test_other_shapes_are_an_error() -> None:
    p = attention()
    with pytest.raises(ValueError, match=r"\[\(2, 17, 7\)\], not \[\(2, 17, 8\)\]"):
        judge(p, lambda xs: [kernel(p)(xs)[0][..., :7]], eager_of(p))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_data_and_products_are_finite(dtype: str) -> None:
    for kind in DISTRIBUTIONS:
        q, k, _ = draw_inputs(attention(dtype), kind.name, torch.device("cpu"), 0)
        assert torch.isfinite(q).all()
        if kind.name == "huge":
            largest = float((q.double() @ k.double().mT).abs().max())
            assert 20_000 < largest < 65_504
        again = draw_inputs(attention(dtype), kind.name, torch.device("cpu"), 0)[0]
        assert torch.equal(q, again)


def test_integers_are_drawn_as_they_are_declared() -> None:
    tables = (
        Tensor("P", ("m", "k"), "int32", below="v", distinct=True),
        Tensor("T", ("m", "k"), "int64", below=3),
        Tensor("W", ("m", "k"), "int8"),
        Tensor("U", ("m", "k"), "int8", below="m"),
    )
    program = Program("t", (("m", 16), ("k", 300), ("v", 5000)), "float16", tables, (), ())
    for kind in DISTRIBUTIONS:
        distinct, few, whole, small = draw_inputs(program, kind.name, torch.device("cpu"), 0)
        assert distinct.unique().numel() == 16 * 300 and 0 <= int(distinct.min()) < int(distinct.max()) < 5000
        assert few.unique().tolist() == [0, 1, 2] and few.dtype == torch.int64
        assert (int(whole.min()), int(whole.max())) == (-128, 127)
        assert small.unique().tolist() == [*range(16)]


@pytest.mark.parametrize("drawn", ["evenly", "sorted", "skewed"])
def test_lengths_of_none_one_and_all_are_drawn(drawn: Drawn) -> None:
    table = Tensor("L", ("b",), "int32", below="s", drawn=drawn)
    program = Program("t", (("b", 9), ("s", 1000)), "float16", (table,), (), ())
    for seed in range(5):
        (lengths,) = draw_inputs(program, "normal", torch.device("cpu"), seed)
        assert {0, 1, 999} <= {*lengths.tolist()} and lengths.unique().numel() >= 5


def test_integers_are_drawn_with_a_long_tail_or_in_order() -> None:
    """As many lengths from 10 to 100 as from 100 to 1000, from 0 to the longest, in another order by each seed."""
    text = """
name: lengths
dims: {b: 300, t: 40, s: 1000}
inputs:
  L: {dims: [b], dtype: int32, below: s, drawn: skewed}
  B: {dims: [t], dtype: int32, below: b, drawn: sorted}
program: "O = where(index(s) <= L[B[t]], 0.5, 0)"
outputs: {O: [t, s]}
"""
    program = parse_spec(text).at()
    (lengths, rows), (others, _) = (draw_inputs(program, "normal", torch.device("cpu"), seed) for seed in (1, 2))
    counts = [int(((a <= lengths) & (lengths < b)).sum()) for a, b in pairwise([0, 9, 99, 1000])]
    assert max(counts) - min(counts) <= 2 and lengths.min() == 0 and lengths.max() == 999
    assert (lengths != others).any() and torch.equal(lengths.sort().values, others.sort().values)
    assert torch.equal(rows, rows.sort().values) and rows.unique().numel() > 20


def test_positions_that_are_looked_up_are_those_of_pytorch() -> None:
    """In float64 and as a PyTorch user would write it: rows, pages, remainders, and what lies outside of a table."""
    inputs = (
        Tensor("E", ("v", "k"), "float32"),
        Tensor("T", ("m",), "int64", below="v"),
        Tensor("B", ("m", "p"), "int8", below=9),
    )
    dims = (("m", 7), ("k", 12), ("v", 40), ("p", 3), ("s", 12))
    b = Builder(inputs, [d for d, _ in dims])
    b.emit("rename", "E", "T", axes=("v", "T{v}[m]", "k", "(k + 5)%12"), out="X")
    b.emit("rename", "E", "B", axes=("v", "B{9}[m, s//4]*4 + s%4", "k", "0"), out="Y")
    b.emit("rename", "T", axes=("m", "m//2"), out="Z")
    outputs = tuple(Tensor(n, b.known[n].dims, "float32") for n in "XYZ")
    program = Program("t", dims, "float32", inputs, tuple(b.eqns), outputs)
    E, T, B = draw_inputs(program, "normal", torch.device("cpu"), 0)
    names: dict[str, Any] = {"torch": torch}
    exec(torch_source(program), names)
    s, pages = torch.arange(12), B.long().repeat_interleave(4, 1)
    want = E[T].roll(-5, 1), E[pages * 4 + s % 4, 0], T[torch.arange(7) // 2]
    for found in (names["reference"](E, T, B), reference64(program, (E, T, B))):
        for x, y in zip(found, want, strict=True):
            torch.testing.assert_close(x.double(), y.double(), rtol=0, atol=0)


def test_integers_are_drawn_below_the_longest_axis() -> None:
    x = Tensor("n", ("h", "s"), "int32")
    b = Builder((x,), [n for n, _ in DIMS])
    b.emit("exp", "n", out="O")
    p = Program("p", DIMS, "float16", (x,), tuple(b.eqns), (Tensor("O", ("h", "s"), "float16"),))
    (n,) = draw_inputs(p, "huge", torch.device("cpu"), 0)
    assert n.dtype == torch.int32
    assert 0 <= int(n.min()) <= int(n.max()) < 33
    assert reference64(p, [n])[0].dtype == torch.float64


def test_error_measures() -> None:
    ref = torch.ones(4, 16, dtype=torch.float64)
    y = ref.clone()
    y[3, 5] = 1.5
    found = error(y, ref)
    assert found.row == 0.5
    assert found.norm == pytest.approx(0.5 / 8)
    assert Error(0.0, 1.0).over(Error(0.0, 2.0)) == 0.5
    assert Error(1.0, 0.0).over(Error(0.0, 0.0)) == math.inf


def test_the_error_where_all_is_zero_does_not_grow_with_the_number_of_elements() -> None:
    """A layer norm of equal rows: the mean of 33 equal numbers, as a sum over 33, is one unit in the last place off."""
    y = torch.full((33, 33), -3e-7)
    found = error(y, torch.zeros(33, 33, dtype=torch.float64))
    assert found.norm == pytest.approx(3e-7)
    assert found.row == pytest.approx(3e-7)
    y[5, 5] = 1e-4
    assert error(y, torch.zeros(33, 33, dtype=torch.float64)).row == pytest.approx(1e-4)


def test_infinities_that_float64_rounds_to_are_right() -> None:
    ref = torch.tensor([1e6, 65504.0, 65519.0, 1.0, math.nan], dtype=torch.float64)
    y = torch.tensor([math.inf, math.inf, math.inf, math.inf, math.nan], dtype=torch.float16)
    assert overflows(y, ref, 0.0).tolist() == [False, False, False, True, False]
    assert overflows(torch.full_like(y, math.nan), ref, math.inf).tolist() == [True, True, True, True, False]


def test_rounding_every_result_keeps_the_range_and_drops_the_precision() -> None:
    x = torch.tensor([1.0, 1e10, math.inf, 0.0], dtype=torch.float64)
    with RoundEveryResult(torch.float16):
        y = x * (1 + 2**-14)
    assert y.tolist() == [1.0, float(torch.tensor(1e10 / 2**30).half()) * 2**30, math.inf, 0.0]


AWKWARD = (0.0, -0.0, math.inf, -math.inf, 1.0, -1.5, 65519.9, 1e-310, 1.7e308, -3e-45, 2e-41, 1.1754943508222875e-38)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("by_chance", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_result_is_rounded_to_a_multiple_of_a_unit(dtype: torch.dtype, by_chance: bool, flushed: bool) -> None:
    """As Python rounds it, with the same draws."""
    finfo, g = torch.finfo(dtype), torch.Generator().manual_seed(7)
    x = torch.cat([torch.tensor(AWKWARD, dtype=torch.float64), torch.randn(500, generator=g, dtype=torch.float64)])
    least = finfo.tiny if flushed else 0.0
    mode = RoundEveryResult(dtype, by_chance, 0, least)
    draws = torch.empty_like(x).uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(0))
    wanted: list[float] = []
    for value, draw_of_it in zip(x.tolist(), draws.tolist(), strict=True):
        exponent = max(math.frexp(value)[1] - 1, -1022)
        unit = max(2.0 ** (exponent + 1 - mode.bits), least)
        scaled = value / unit
        if math.isfinite(value):
            scaled = math.copysign(round(scaled + draw_of_it if by_chance else scaled), scaled or value)
        wanted.append(scaled * unit)
    found = mode.rounded(x)
    assert found.tolist() == wanted
    assert by_chance or torch.equal(found.signbit(), x.signbit())
    assert bool(mode.rounded(torch.full((1,), math.nan, dtype=torch.float64)).isnan())


def test_what_a_type_holds_is_not_moved_and_all_else_is() -> None:
    x = torch.tensor([0.0, 1.0, -1.5, math.inf, 255 / 128, 257 / 256, 65504.0, -1e-45], dtype=torch.float64)
    mode = MoveEveryResult(torch.bfloat16, False, 1, 4.0)
    moved = mode.rounded(x)
    assert (moved == x).tolist() == [True, True, True, True, True, False, False, False]
    off = (moved - x).abs()[5:]
    assert bool((off <= 2 * torch.finfo(torch.bfloat16).eps * x.abs().clamp_min(mode.least)[5:]).all())


@pytest.mark.parametrize(
    ("mode", "most"),
    [
        (RoundEveryResult(torch.bfloat16), 6),
        (RoundEveryResult(torch.bfloat16, False, 1), 8),
        (RoundEveryResult(torch.bfloat16, False, 1, torch.finfo(torch.bfloat16).tiny), 11),
        (MoveEveryResult(torch.bfloat16, False, 1, 4.0), 10),
        (RangeOfEveryResult(torch.float32), 4),
    ],
    ids=["to nearest", "by chance", "flushed", "moved", "in range"],
)
def test_what_an_evaluation_adds_to_an_operation_are_a_few(mode: TorchDispatchMode, most: int) -> None:
    """A GPU launches each by itself, and reads and writes all of the result."""

    class Launches(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += not (func.is_view or func.overloadpacket == torch.ops.aten.empty)
            return func(*args, **(kwargs or {}))

    x = torch.linspace(1, 2, 8, dtype=torch.float64)
    with Launches() as launches, mode:
        x * x
    assert launches.count - 1 == most


@pytest.mark.parametrize("axis", [0, 1, -1, 2])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_a_softmax_is_evaluated_over_the_last_axis(function: Callable[..., torch.Tensor], axis: int) -> None:
    """Over others, PyTorch's is slow on a GPU. It is the same softmax."""

    class Axes(TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "softmax" in str(func):
                self.seen = (*self.seen, args[1] % 3)
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for mode in (RoundEveryResult(torch.float32), RangeOfEveryResult(torch.float32)):
        with Axes() as axes, mode:
            y = function(x, dim=axis)
        assert axes.seen == (2,)
        assert y.is_contiguous()
        assert (y - function(x, dim=axis)).abs().amax() < 4e-7
    with RoundEveryResult(torch.float32):
        assert function(torch.tensor(2.0, dtype=torch.float64), dim=0) == function(torch.tensor(2.0), dim=0)


def test_what_fused_operations_return_is_rounded_too() -> None:
    torch.manual_seed(0)  # numbers near 0 keep float64's range, in which float16 has fewer bits
    x = torch.randn(4, 64, dtype=torch.float64)
    with RoundEveryResult(torch.float16):
        y = torch.nn.functional.layer_norm(x, (64,))
    assert torch.equal(y, y.half().double())
    assert 1e-5 < (y - torch.nn.functional.layer_norm(x, (64,))).abs().amax() < 4e-3


def test_what_sums_round_up_or_down_by_chance_is_off_by_a_few_units() -> None:
    x = torch.full((1000,), 1.1, dtype=torch.float64)
    with RoundEveryResult(torch.float32, summing=True):
        off = x * 1.1
    units = (off - x * 1.1).abs().amax() / torch.finfo(torch.float32).eps
    assert len(off.unique()) == 2
    assert 1 < units <= 2


@pytest.mark.parametrize(
    ("function", "moved"), [(torch.round, -1), (torch.round, 1), (torch.floor, -1), (torch.ceil, 1), (torch.sign, 1)]
)
def test_inputs_are_not_moved_in_front_of_a_jump(function: Callable[[torch.Tensor], torch.Tensor], moved: int) -> None:
    """A kernel that jumps at other places than eager is wrong, though inputs moved a little jump there too."""
    x = (torch.arange(-128, 128) / 4).half().reshape(4, 64)
    program = Reference(function, function, torch.float16)
    for y, right in ((function(x), True), (function(x.double() + moved * 2**-20).half(), False)):
        judged = program.judge("quarters", [x], [y], 4.0, overflow_like_eager=False)
        assert (judged.problem is None) == right


def chain() -> Program:
    """(A·B)·C, where A·B has one column, with elements that are small by cancellation."""
    dims = (("m", 64), ("k", 64), ("n", 1), ("p", 48))
    inputs = tuple(Tensor(x, tuple(d), "bfloat16") for x, d in (("A", "mk"), ("B", "kn"), ("C", "np")))
    b = Builder(inputs, [n for n, _ in dims])
    b.emit("dot", b.emit("dot", "A", "B", axes="k"), "C", axes="n", out="O")
    return Program("chain", dims, "bfloat16", inputs, tuple(b.eqns), (Tensor("O", ("m", "p"), "bfloat16"),))


def other_order(inputs: list[torch.Tensor], terms: int = 64, scale: float = 1.0) -> list[torch.Tensor]:
    """A·(B·C) with the product in brackets in bfloat16, of the first terms only."""
    a, b, c = (x.float() for x in inputs)
    return [(scale * a[:, :terms] @ (b @ c).bfloat16().float()[:terms]).bfloat16()]


@pytest.mark.parametrize("seed", range(5))
def test_a_product_of_three_may_be_multiplied_in_another_order(seed: int) -> None:
    """Its operands are rounded where those in the program's order are exact, which cancelling terms make visible."""
    p = chain()
    right = judge(p, other_order, eager_of(p), seed=seed)
    assert right.ok, str(right)
    for wrong in ({"terms": 63}, {"scale": 1.03}):
        found = judge(p, lambda x, w=wrong: other_order(x, **w), eager_of(p), seed=seed, distributions=["normal"])
        assert not found.ok, wrong


def norm(dtype: str) -> Program:
    inputs = (Tensor("X", ("h", "s"), dtype),)
    b = Builder(inputs, ["h", "s"])
    b.append(derived_equation("O", "layer_norm", ("X",), ("s",), b))
    return Program("norm", DIMS, dtype, inputs, tuple(b.eqns), (Tensor("O", ("h", "s"), dtype),))


def by_squares(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """A layer norm by E[x²] - E[x]²."""
    x = inputs[0].float()
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square()
    return [((x - mean) * (variance + 1e-5).rsqrt()).to(inputs[0].dtype)]


@pytest.mark.parametrize("seed", range(5))
def test_a_variance_as_a_difference_of_squares_is_refused_on_a_large_mean_alone(seed: int) -> None:
    p = norm("float32")
    found = judge(p, by_squares, eager_of(p), seed=seed)
    assert {j.distribution for j in found.detail if j.problem} == {"large mean"}, str(found)


def difference() -> Program:
    """X·S - min X·S, with S the sum of X: in bfloat16 a difference of few values that are off by half a unit."""
    inputs = (Tensor("X", ("p", "r"), "bfloat16"),)
    b = Builder(inputs, ["p", "r"])
    product = b.emit("mul", "X", b.emit("sum", "X", axes="pr"))
    b.emit("sub", product, b.emit("min", product, axes="r"), out="O")
    return Program(
        "few", (("p", 3), ("r", 7)), "bfloat16", inputs, tuple(b.eqns), (Tensor("O", ("p", "r"), "bfloat16"),)
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_few_values_that_happen_to_need_few_bits_do_not_set_the_standard(seed: int) -> None:
    """The sum is not rounded here, as it is in eager; so the products are other ones, rounded."""

    def run(inputs: list[torch.Tensor], scale: float = 1.0) -> list[torch.Tensor]:
        x = inputs[0].float()
        product = (x * x.sum()).bfloat16().float()
        return [(scale * product - product.amin(-1, keepdim=True)).bfloat16()]

    p = difference()
    found = judge(p, run, eager_of(p), seed=seed)
    assert found.ok, str(found)
    assert not judge(p, lambda x: run(x, 1.1), eager_of(p), seed=seed).ok


def test_the_interpreter_adds_halves() -> None:
    """The sum of 257 equal numbers is exact to a few units in the last place; added one after another, it is not."""
    x = np.where(np.arange(512) < 257, np.float32(1.1), np.float32(0))[:, None] * np.ones(4, np.float32)
    exact = 257 * float(np.float32(1.1))
    for axis, keep in ((0, False), (0, True), (None, False), (None, True)):
        found = halved_sum(x, axis, keep)
        assert np.shape(found) == np.shape(np.sum(x, axis=axis, keepdims=keep))
        assert found.dtype == np.float32
        assert np.allclose(found, exact * (1 if axis == 0 else 4), rtol=2e-7, atol=0)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_interpreter_adds_up_to_each_position_by_doubling(axis: int) -> None:
    """Sums of equal numbers up to each position; 1,009 of them one after another are 30 units in the last place off."""
    x = np.full((1024, 3) if axis == 0 else (3, 1024), np.float32(1.1))
    counts = np.arange(1, 1025).reshape((-1, 1) if axis == 0 else (1, -1))
    exact = counts * float(np.float32(1.1))
    found = running_sum(x, axis)
    assert found.dtype == np.float32
    assert np.allclose(found, exact, rtol=4e-7, atol=0)
    assert not np.allclose(np.cumsum(x, axis=axis), exact, rtol=4e-7, atol=0)


def test_fresh_memory_is_nan_and_the_setting_is_put_back() -> None:
    with fresh_memory_is_nan():
        assert torch.empty(7).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_three_products_of_tf32_are_nearly_float32s() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((48, 512), (512, 40)))
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def error(y: NDArray[np.float32]) -> float:
        return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))

    assert error(product_of_tf32x3(a, b)) < 2 * error(a @ b) < 1e-6
    assert error(to_tf32(a) @ to_tf32(b)) > 1e-4
    assert (to_tf32(a) == a).mean() < 0.01 and (to_tf32(to_tf32(a)) == to_tf32(a)).all()
    whole = np.arange(-2048, 2048, dtype=np.float32)
    assert (to_tf32(whole) == whole).all()  # 11 bits
    assert to_tf32(np.float32([2049.0, -2049.0, 4097.0])).tolist() == [2050.0, -2050.0, 4096.0]
    a[0, 0], a[1, 0], a[2, 0] = np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        plain = a @ b
    np.testing.assert_allclose(product_of_tf32x3(a, b), plain, rtol=1e-3, atol=1e-4)


def test_an_infinity_stands_for_what_lies_beyond_its_type() -> None:
    ref = torch.tensor([65600.0, 64711.0, -1e8, -65000.0, math.inf, 1.0], dtype=torch.float64)
    y = torch.tensor([math.inf, math.inf, -math.inf, math.inf, 3.0, math.nan], dtype=torch.float16)
    assert distance(y, ref).tolist() == [0.0, 65504 - 64711, 0.0, 65504 + 65000, 0.0, math.inf]
    assert distance(torch.zeros(3).half(), ref[:3]).tolist() == [65600.0, 64711.0, 1e8]


def one_output(y: list[float], ref: list[float], eager: list[float] | None = None, lenient: bool = False) -> Judgement:
    """The judgement of one row of float16. eager: the reference rounded, unless given."""
    exact = torch.tensor([ref], dtype=torch.float64)
    theirs = exact.half() if eager is None else torch.tensor([eager]).half()
    return judge_outputs(
        "huge", [torch.tensor([y]).half()], lambda _: [exact], [theirs], lambda *_: [exact], 4, lenient
    )


def test_an_infinity_is_right_where_what_is_allowed_passes_the_range() -> None:
    """In a row that holds 1e8, four times half a unit of float16 is 2e5; in one that holds 64711, it is 126."""
    row = [1.0] * 14
    assert one_output([math.inf, math.inf, *row], [1e8, 64711.0, *row]).problem is None
    refused = one_output([3.0, math.inf, *row], [3.0, 64711.0, *row])
    assert refused.problem == "output 0 is inf at (0, 1), where float64 has 64711"
    assert one_output([3.0, math.inf, *row], [3.0, 65450.0, *row]).problem is None
    assert one_output([3.0, math.inf, *row], [3.0, -65450.0, *row]).problem is not None


def test_a_number_is_wrong_where_float64_is_far_beyond_the_range() -> None:
    row = [1.0] * 15
    assert one_output([0.0, *row], [1e8, *row]).problem is not None
    assert one_output([65504.0, *row], [65530.0, *row]).problem is None


def test_a_nan_is_right_only_where_float64_has_no_number() -> None:
    row = [1.0] * 15
    assert one_output([math.nan, *row], [1e8, *row]).problem is not None
    assert one_output([math.nan, *row], [math.nan, *row]).problem is None


def test_an_output_without_axes_is_judged() -> None:
    ref = torch.tensor(3.0, dtype=torch.float64)
    for value, right in ((3.0, True), (math.inf, False), (math.nan, False)):
        y, eager = torch.tensor(value).half(), torch.tensor(3.0).half()
        found = judge_outputs("normal", [y], lambda _: [ref], [eager], lambda *_: [ref], 4, False)
        assert (found.problem is None) == right
        assert math.isfinite(error_of(y, 0, lambda _: [ref], [Piece()]).norm) == right


def test_only_what_rounding_does_not_explain_is_excused() -> None:
    row = [1.0] * 13
    y = [math.inf, math.inf, math.inf, *row]
    ref = [1e8, 64711.0, 5.0, *row]
    eager = [math.inf, math.inf, math.inf, *row]
    within = one_output(y, ref, eager, lenient=True)
    assert within.problem is None and within.excused == 0  # the row holds 1e8: what is allowed passes the range
    alone = one_output([1.0, *y[1:]], [1.0, *ref[1:]], [1.0, *eager[1:]], lenient=True)
    assert alone.problem is None and alone.excused == 2
    assert one_output([1.0, *y[1:]], [1.0, *ref[1:]], [1.0, 64711.0, math.inf, *row], lenient=True).problem is not None


def gated(dtype: str = "float16") -> Program:
    """RMSNorm, then two projections and a gate, whose products pass float16's range on huge data."""
    dims = (("m", 8), ("k", 512), ("n", 256))
    inputs = (
        Tensor("X", ("m", "k"), dtype),
        Tensor("G", ("k",), dtype),
        Tensor("W", ("k", "n"), dtype, 0.02),
        Tensor("V", ("k", "n"), dtype, 0.02),
    )
    b = Builder(inputs, [n for n, _ in dims])
    y = b.emit("mul", b.append(derived_equation("Y0", "rms_norm", ("X",), ("k",), b)), "G")
    gate = b.emit("silu", b.emit("dot", y, "W", axes="k"))
    b.emit("mul", gate, b.emit("dot", y, "V", axes="k"), out="O")
    return Program("gated", dims, dtype, inputs, tuple(b.eqns), (Tensor("O", ("m", "n"), dtype),))


def linear_attention(dtype: str = "float16") -> Program:
    dims = (("h", 2), ("q", 96), ("s", 256), ("d", 16), ("e", 16))
    inputs = tuple(Tensor(n, tuple(d), dtype, 0.1) for n, d in (("Q", "hqd"), ("K", "hsd"), ("V", "hse")))
    b = Builder(inputs, [n for n, _ in dims])
    b.emit("dot", b.emit("dot", "Q", "K", axes="d"), "V", axes="s", out="O")
    return Program("linear_attention", dims, dtype, inputs, tuple(b.eqns), (Tensor("O", ("h", "q", "e"), dtype),))


@pytest.mark.parametrize("program", [gated, linear_attention])
@pytest.mark.parametrize("seed", range(5))
def test_a_kernel_that_accumulates_in_float32_is_right_also_where_its_results_overflow(program, seed: int) -> None:
    p = program()
    verdict = judge(p, kernel(p), eager_of(p), seed=seed, distributions=["huge"])
    assert verdict.ok, str(verdict)
    assert not judge(p, kernel(p, 1.03), eager_of(p), seed=seed).ok
    assert not judge(p, lambda x: [torch.zeros_like(*kernel(p)(x))], eager_of(p), seed=seed, distributions=["huge"]).ok


PIECES = {"attention": attention(), "gated": gated(), "norm": norm("float32"), "linear": linear_attention("bfloat16")}


@pytest.mark.parametrize("name", PIECES)
def test_judging_in_pieces_finds_the_same_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element of an output that is wrong is found in whatever piece it lies."""
    p = PIECES[name]
    fields = independent_axis(p)
    assert fields is not None
    cut, eager = Cut(*fields), eager_of(p)
    inputs = draw_inputs(p, "normal", torch.device("cpu"), 0)
    (y,) = kernel(p)(inputs)
    monkeypatch.setattr("mirage_cli.verify.pieces.PIECE_BYTES", cut.position_bytes * max(1, cut.length // 3))
    pieces = pieces_of(cut)
    assert len(pieces) >= 2 and sum(len(piece.positions) for piece in pieces) == cut.length

    def exact(piece: Piece) -> tuple[torch.Tensor, ...]:
        return reference64(p, piece.inputs(inputs)) if piece.cut is None else as_tuple(eager(*wide(piece)))

    def wide(piece: Piece) -> list[torch.Tensor]:
        return in_float64(piece.inputs(inputs))

    whole, apart = (error_of(y, 0, exact, some) for some in ([Piece()], pieces))
    assert apart.norm == pytest.approx(whole.norm, rel=1e-9)
    assert apart.row == pytest.approx(whole.row, rel=1e-9)
    assert judge(p, kernel(p), eager).ok
    assert not judge(p, kernel(p, 1.03), eager).ok
    last = tuple(n - 1 for n in y.shape)
    for value in (math.inf, math.nan, 1e3):
        wrong = y.clone()
        wrong[last] = value
        for some in (cut, None):
            found = judge_outputs(
                "normal", [wrong], exact, as_tuple(eager(*inputs)), lambda piece, *_: exact(piece), 4, False, cut=some
            )
            assert found.problem is not None
            assert value == 1e3 or str(last) in found.problem


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32])
@pytest.mark.parametrize(
    "put", [(), ("y", math.inf), ("y", math.nan), ("ref", math.inf), ("ref", math.nan), ("ref", 1e300)]
)
def test_the_error_follows_from_distances(dtype: torch.dtype, put: tuple[Any, ...]) -> None:
    """Whether or not all is finite, in float64 and in the type: what is finite takes fewer passes."""
    g = torch.Generator().manual_seed(5)
    ref = 100 * torch.randn(6, 40, generator=g, dtype=torch.float64)
    y = (ref * 1.01).to(dtype)
    if put and (put[0] == "ref" or dtype.is_floating_point):
        (y if put[0] == "y" else ref)[2, 3] = put[1]
    wrong, size = distance(y, ref), torch.where(ref.isfinite(), ref.abs(), 0.0)
    norms = [float((x / size.amax()).norm()) for x in (wrong, size)]
    found = error(y, ref)
    assert found.norm == pytest.approx(norms[0] / norms[1], rel=1e-12, nan_ok=True)
    assert found.row == pytest.approx(float((wrong.amax(-1) / size.amax(-1)).amax()), rel=1e-12)


@pytest.mark.parametrize(
    ("device", "free_gib", "positions"), [("cuda", 128, 80), ("cuda", 24, 60), ("cuda", 2, 20), ("cpu", 128, 20)]
)
def test_pieces_are_as_large_as_a_device_has_room_for(
    device: str, free_gib: int, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_gib << 30, 128 << 30))
    cut = Cut((0,), (0,), 120, PIECE_BYTES // 20).on(torch.device(device))
    pieces = pieces_of(cut)
    assert [len(piece.positions or ()) for piece in pieces] == [
        min(positions, 120 - at) for at in range(0, 120, positions)
    ]
    some = tuple(range(0, 120, 3))
    assert pieces_with(some, pieces) == [Piece(cut, some[at : at + positions]) for at in range(0, len(some), positions)]


def test_rows_that_are_cut_are_measured_whole() -> None:
    """Sums over the last axis: the only independent axis is the row itself."""
    ref = torch.linspace(1, 100, 40, dtype=torch.float64)
    y = ref.float()
    y[3], y[20] = y[3] + 0.5, math.inf
    cut = Cut((0,), (0,), 40, PIECE_BYTES // 4)
    pieces = pieces_of(cut)
    assert [len(piece.positions) for piece in pieces] == [4] * 10
    exact = lambda piece: [piece.of(ref, 0 if piece.cut else None)]  # noqa: E731
    assert error_of(y, 0, exact, pieces).row == math.inf
    y[20] = ref[20]
    assert error_of(y, 0, exact, pieces).row == pytest.approx(error(y, ref).row) == pytest.approx(0.005, rel=1e-3)


def test_what_a_call_returns_in_float64_is_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of attention, the scores of all heads at once may be more than there is memory for."""

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.elements = max(self.elements, result.numel())
            return result

    p = attention()
    inputs = draw_inputs(p, "normal", torch.device("cpu"), 0)
    with Largest() as whole:
        expected, _ = called64(p, inputs)
    monkeypatch.setattr("mirage_cli.verify.pieces.PIECE_BYTES", 1)
    with Largest() as pieces:
        found, _ = called64(p, inputs)
    assert pieces.elements < whole.elements
    assert all(torch.equal(y, e) for y, e in zip(found, expected, strict=True))


def test_an_axis_to_judge_along_is_mixed_by_nothing() -> None:
    assert independent_axis(chain()) is not None
    assert independent_axis(difference()) is None  # a sum over all
    fields = independent_axis(norm("float32"))
    assert fields is not None and fields[:3] == ((0,), (0,), 2)
    softmax = independent_axis(attention())
    assert softmax is not None and softmax[:2] in {((0, 0, 0), (0,)), ((1, None, None), (1,))}
    sizes = {"h": 8, "q": 512, "s": 65536, "d": 1024, "e": 1024}
    wide = independent_axis(replace(attention(), dims=tuple((d, sizes[d]) for d, _ in attention().dims)))
    assert wide is not None and None not in wide[0]  # along q every piece would need all keys and values
    inputs = (Tensor("X", ("h", "s"), "float32"),)
    b = Builder(inputs, ["h", "s"])
    b.emit("mul", "X", b.emit("index", axes="h"), out="O")
    named = Program(
        "named", (("h", 4), ("s", 4)), "float32", inputs, tuple(b.eqns), (Tensor("O", ("h", "s"), "float32"),)
    )
    fields = independent_axis(named)
    assert fields is not None and fields[0] == (1,)  # the positions of h are named


def test_large_data_are_drawn_in_pieces_of_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testdata, "DRAWN_ELEMENTS", 64)
    for kind in DISTRIBUTIONS:
        q, _, _ = draw_inputs(attention(), kind.name, torch.device("cpu"), 0)
        assert torch.isfinite(q).all() and len(q.unique()) > 10
        if kind.name == "equal rows":
            assert (q == q[..., :1]).all()
        assert int((q == 1e4).sum()) == (kind.name == "outlier")


@pytest.mark.parametrize("drawn", [(0, "evenly", False), (512, "evenly", False)])
def test_a_single_integer_is_the_largest_where_figures_of_speed_count(drawn: tuple[int, str, bool]) -> None:
    def single(i: int, seed: int) -> int:
        shapes, dtypes = [(), (700,)], [torch.int64, torch.int64]
        return int(draw(DISTRIBUTIONS[i], shapes, dtypes, [drawn, drawn], 1, torch.device("cpu"), seed)[0])

    largest = (drawn[0] or 700) - 1
    assert {single(0, seed) for seed in range(8)} == {largest}
    assert len({single(1, seed) for seed in range(8)} - {largest}) > 4


IN_BLOCKS = """
name: in_blocks
dims: {{h: 2, r: 3, q: 50, s: 50, d: 4, w: 2}}
dtype: bfloat16
inputs: {{Q: [{axes}], K: [s, d], L: [q], T: {{dims: [q], dtype: int32, below: s}}, M: [q, w]}}
program: |
  A = where(index(s) <= index(q) and {mask}, dot(Q, K, d), -100)
  O = dot({value}, K, s) + L * T
outputs: {{O: [{axes}]}}
"""
BLOCK = 8 * 2 * 50 * 50
"""Of 50 · 50 numbers, two."""


class Largest(TorchDispatchMode):
    """The largest tensor that is made."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = func(*args, **(kwargs or {}))
        if isinstance(y, torch.Tensor) and not func.is_view:
            self.nbytes = max(self.nbytes, y.nbytes)
        return y


@pytest.mark.parametrize(
    ("axes", "mask", "value"),
    [
        ("h, r, q", "index(s) > index(q) - 20", "softmax(A, s)"),
        ("q", "(2 * index(q) + 1) % 3 > 0", "softmax(A, s)"),
        ("q, r", "index(s) < T and M[q, s // 25] < index(q)", "softmax(A, s)"),
        ("q, h", "index(q) % 7 > 0", "float8_e4m3fn(softmax(A, s) * index(q))"),
    ],
)
def test_what_is_too_large_is_evaluated_in_blocks(
    axes: str, mask: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along any axes of the outputs, also where masks name their positions: float64's outputs are the same."""
    axes += ", d"
    evaluated_in_blocks(IN_BLOCKS.format(axes=axes, mask=mask, value=value), {*"hrq"}, monkeypatch)


READS = """
name: reads
dims: {{q: 50, s: 50, d: 4, v: 7}}
dtype: float32
inputs: {{X: [q, d], E: [v, d], T: {{dims: [q], dtype: int32, below: v}}}}
program: |
  O = ({value}) * X[q, (d + 1) % 4]
outputs: {{O: [q, d]}}
"""


@pytest.mark.parametrize(
    "value",
    [
        "sum(exp(X - X[s, d]), s)",
        "X[q - 1, d] + X[q + 1, d] - 2 * X + sum(X * X[s, d], s)",
        "sum(E[T[q], d] * X[s, d], s) + X[q // 2, d]",
        "sum(E[T[s], d] * X, s) + X[(q + 3) % 50, d]",
    ],
)
def test_blocks_read_whole_inputs(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair of positions, neighbours, and rows that tables name."""
    evaluated_in_blocks(READS.format(value=value), {"q", "d"}, monkeypatch)


def evaluated_in_blocks(spec: str, axes: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "BLOCK_BYTES", BLOCK)
    program = parse_spec(spec).at()
    problem = measured_problem(program, 0)
    assert problem.blocks and {axis for axis, *_ in problem.blocks} <= axes
    scope: dict[str, Any] = {"torch": torch}
    exec(problem.reference_source or "", scope)
    whole = Reference(scope["reference"], scope["stepwise"], torch.float32)
    parts = replace(whole, blocks=tuple(Block(*x) for x in problem.blocks))
    inputs = draw_inputs(program, "normal", torch.device("cpu"), 0)
    with Largest() as made:
        found = parts.exact(inputs, Piece())
    assert made.nbytes <= BLOCK
    torch.testing.assert_close(found, whole.exact(inputs, Piece()))
    ((y,), (z,)) = (x.rounded(inputs, Piece(), torch.float32, 0) for x in (parts, whole))
    torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-4)
