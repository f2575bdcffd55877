"""The floating-point judgement of decisions: whole numbers, masks and float8 are float64's where rounding does not
decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.verify.decided import decided, held
from mirage_cli.verify.float64 import evaluated
from mirage_cli.verify.numeric import NumericVerdict, judge
from mirage_cli.verify.pieces import PIECE_BYTES, Cut, Piece, pieces_of, pieces_with
from mirage_cli.verify.rounding import RecordDecisions, RoundEveryResult
from mirage_cli.verify.testdata import DISTRIBUTIONS
from mirage_cli.verify.yardstick import AS_DECIDED, UNTOLD, Reference, judge_outputs

Tensors = list[torch.Tensor]

SPEC = """
name: decisions
dims: {{m: 16, k: 64, n: 48, j: 48}}
inputs:
  X: [m, k]
  W: {{dims: [k, n], scale: 0.1}}
program: |
  Y = dot(X, W, k)
  S = sigmoid(8 * Y)
  Z = rename(S, n=j)
  O = {}
outputs:
  O: {{dims: [{}], dtype: {}}}
"""
ARGMAX = "min(where(Y == max(Y, n), index(n), n), n)", "m", "int64"
MASK = "Y > 0.5", "m, n", "bool"
COUNT = "sum(where(Y > 0, 1, 0), n)", "m", "int32"
QUANTISED = "integer(clamp(round(Y * 127 / max(abs(Y), n)), -128, 127))", "m, n", "int8"
RANKS = "sum(where(Z > S or Z == S and index(j) < index(n), 1, 0), j)", "m, n", "int32"
EIGHTS = "clamp(Y * 448 / max(abs(Y), n), -448, 448)", "m, n", "float8_e4m3fn"
WIDE = "Y * 3", "m, n", "float8_e5m2"


def program(expression: str, dims: str, dtype: str) -> Program:
    return parse_spec(SPEC.format(expression, dims, dtype)).at()


def judged(
    what: tuple[str, str, str],
    run: Callable[[torch.Tensor], torch.Tensor],
    on: Sequence[str] = tuple(d.name for d in DISTRIBUTIONS),
) -> NumericVerdict:
    """run: from Y in float32 to the output. on: the distributions of its data."""
    p = program(*what)
    scope: dict[str, object] = {"torch": torch}
    exec(torch_source(p), scope)
    dtype: torch.dtype = getattr(torch, what[2])
    made: Callable[[Tensors], Tensors] = lambda x: [run(x[0].float() @ x[1].float()).to(dtype)]  # noqa: E731
    return judge(p, made, scope["reference"], distributions=on)  # type: ignore[arg-type]


def argmax(y: torch.Tensor) -> torch.Tensor:
    return y.argmax(1)


def mask(y: torch.Tensor) -> torch.Tensor:
    return y > 0.5


def count(y: torch.Tensor) -> torch.Tensor:
    return (y > 0).sum(1)


def quantised(y: torch.Tensor) -> torch.Tensor:
    return (y * 127 / y.abs().amax(1, keepdim=True)).round().clamp(-128, 127)


def ranks(y: torch.Tensor) -> torch.Tensor:
    """Of numbers of which many are 1 when they are rounded: of these the first is the largest."""
    return torch.sort(torch.sigmoid(8 * y), stable=True, dim=1, descending=True).indices.argsort(1)


def eights(y: torch.Tensor) -> torch.Tensor:
    return y * 448 / y.abs().amax(1, keepdim=True)


def down(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers with so many bits behind the point; what is behind these is cut off."""
    return ((x.view(torch.int32) >> (23 - bits)) << (23 - bits)).view(torch.float32)


RIGHT = {
    "argmax": (ARGMAX, argmax),
    "mask": (MASK, mask),
    "count": (COUNT, count),
    "ranks": (RANKS, ranks),
    "quantised": (QUANTISED, quantised),
    "float8": (EIGHTS, eights),
    "wide float8": (WIDE, lambda y: y * 3),
}
ROUNDED = [x for x in RIGHT if x != "argmax"]


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("rounded", [False, True])
def test_right_decisions_pass(name: str, rounded: bool) -> None:
    """Also those of numbers that were rounded to float16 before, as eager PyTorch does."""
    what, run = RIGHT[name]
    verdict = judged(what, lambda y: run(y.half().float() if rounded else y))
    assert verdict.ok, str(verdict)
    most = 0.6 if name == "ranks" else 0.2  # of large numbers, which are 0 or 1 when they are rounded
    assert all(0 <= j.error.norm <= j.allowed.norm < most for j in verdict.detail if j.told)


WRONG: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "the index behind": ("argmax", lambda y: y.argmax(1) + 1),
    "the least": ("argmax", lambda y: y.argmin(1)),
    "of a half": ("argmax", lambda y: y[:, :24].argmax(1)),
    "the second": ("argmax", lambda y: y.topk(2).indices[:, 1]),
    "inverted": ("mask", lambda y: y <= 0.5),
    "another threshold": ("mask", lambda y: y > 0.53),
    "one place": ("mask", lambda y: (y > 0.5) ^ ((torch.arange(48) == 47) & (torch.arange(16) == 15)[:, None])),
    "all": ("mask", lambda y: y == y),
    "one more": ("count", lambda y: (y > 0).sum(1) + 1),
    "without the last": ("count", lambda y: (y[:, :-1] > 0).sum(1)),
    "of the negative": ("count", lambda y: (y < 0).sum(1)),
    "the other way round": ("ranks", lambda y: ranks(-y)),
    "the next rank": ("ranks", lambda y: (ranks(y) + 1) % 48),
    "rounded down": ("quantised", lambda y: (y * 127 / y.abs().amax(1, keepdim=True)).floor()),
    "by 128": ("quantised", lambda y: (y * 128 / y.abs().amax(1, keepdim=True)).round().clamp(-128, 127)),
    "one more of each": ("quantised", lambda y: quantised(y) + 1),
    "cut off": ("float8", lambda y: down(eights(y), 3)),
    "by 420": ("float8", lambda y: eights(y) * 420 / 448),
    "one number more": ("float8", lambda y: eights(y) * 1.125),
    "one element": ("float8", lambda y: eights(y).index_fill(1, torch.tensor(47), 0.0)),
    "wide and cut off": ("wide float8", lambda y: down(y * 3, 2)),
    "infinite": ("wide float8", lambda y: y * torch.inf),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_decisions_are_refused(name: str) -> None:
    """On one distribution at least. What is refused takes 64 evaluations: those behind it are not asked."""
    of, run = WRONG[name]
    verdicts = (judged(RIGHT[of][0], run, [d.name]) for d in DISTRIBUTIONS)
    assert any(not v.ok and "output 0 is " in str(v) for v in verdicts)


def test_of_equal_numbers_the_first_is_no_matter_of_rounding() -> None:
    """The inputs are compared as they are: nothing is rounded."""
    text = (
        SPEC.format("min(where(X == max(X, k), index(k), k), k)", "m", "int64")
        .replace("  Y = dot(X, W, k)\n", "")
        .replace("  S = sigmoid(8 * Y)\n  Z = rename(S, n=j)\n", "")
    )
    p = parse_spec(text).at()
    scope: dict[str, object] = {"torch": torch}
    exec(torch_source(p), scope)
    for run, right in ((lambda x: x.argmax(1), True), (lambda x: 63 - x.flip(1).argmax(1), False)):
        verdict = judge(p, lambda x, run=run: [run(x[0])], scope["reference"])  # type: ignore[arg-type]
        assert verdict.ok == right
        assert {j.distribution for j in verdict.detail if j.problem} >= ({"equal rows"} if not right else set())


def test_what_rounding_decides_everywhere_proves_nothing() -> None:
    """On every distribution, an element lies between what evaluations with rounding come to."""
    ref = torch.zeros(64, dtype=torch.float64)
    flips = iter([torch.zeros(64), *(torch.rand(64).round() for _ in range(100))])
    found = judge_outputs("normal", [torch.ones(64, dtype=torch.bool)], lambda _: [ref], [ref.bool()],
                          lambda *_: [next(flips).double()], 4, False)  # fmt: skip
    assert found.problem is None and not found.told
    p = program(*ARGMAX)
    verdict = judge(p, lambda _: [torch.ones(16, dtype=torch.int64)], lambda *x: torch.ones(16, dtype=torch.int64),
                    reference=lambda _: [torch.zeros(16, dtype=torch.float64)])  # fmt: skip
    assert not verdict.ok and str(verdict) == UNTOLD and len(verdict.detail) == len(DISTRIBUTIONS)


def some(y: Sequence[int], ref: Sequence[float], *others: Sequence[float], dtype: torch.dtype = torch.int32):
    rounded = (torch.tensor(x, dtype=torch.float64) for x in others)
    return decided(torch.tensor(y, dtype=dtype), torch.tensor(ref, dtype=torch.float64), rounded)


def test_an_element_lies_between_what_evaluations_come_to() -> None:
    found = some([1, 5, 9], [1, 4, 9], [1, 4, 7], [1, 6, 9])
    assert (found.count, found.differing, found.told, found.wrong) == (3, 1, 2, 0)
    assert found.in_words("output 0") is None
    found = some([1, 5, 8], [1, 4, 9], [1, 6, 9])
    assert (found.differing, found.wrong) == (2, 1)
    assert found.in_words("output 0") == "output 0 is 8 at (2,), where float64 has 9"
    found = some([100, 105], [101, 104], [99, 104], [101, 104])
    assert (found.differing, found.told, found.wrong) == (2, 2, 1)


def test_a_count_that_rounding_changes_a_little_tells_something() -> None:
    assert some([1000], [1003], [990]).told == 1
    assert some([3], [1], [5]).told == 0


def test_evaluations_are_asked_for_only_where_something_differs() -> None:
    def never():
        raise AssertionError("asked for")
        yield

    assert decided(torch.tensor([1, 2]), torch.tensor([1.0, 2.0]).double(), never()).told == 2


def test_numbers_are_held_as_a_type_holds_them() -> None:
    x = torch.tensor([200.0, -129.0, 2.0**31, -(2.0**40), torch.nan, torch.inf, 7.0], dtype=torch.float64)
    assert held(x, torch.int8).nan_to_num(-1000).tolist() == [-56, 127, -1000, -1000, -1000, -1000, 7]
    assert held(x, torch.bool)[[0, 6]].tolist() == [1, 1]
    assert some([5, -56], [2.0**31, 200.0], dtype=torch.int8).differing == 0
    assert some([5, -56], [2.0**31, 200.0], dtype=torch.int8).told == 1
    assert held(x, torch.float8_e4m3fn).nan_to_num(-1000).tolist() == [192, -128, 448, -448, -1000, 448, 7]
    assert held(x, torch.float8_e5m2).nan_to_num(-1000, 500, -500).tolist() == [192, -128, 500, -500, -1000, 500, 7]


def test_float8_is_told_in_words() -> None:
    y, ref, rounded = (torch.tensor([x], dtype=torch.float64) for x in (0.125, 0.3, 0.26))
    found = decided(y.to(torch.float8_e4m3fn), ref, [rounded])
    assert found.in_words("output 0") == (
        "output 0 is 0.125 at (0,), where float64 has 0.3125, and rounding gives 0.25 to 0.3125"
    )


def test_an_output_without_axes_and_in_pieces() -> None:
    found = decided(torch.tensor(3), torch.tensor(4.0).double(), ())
    assert found.in_words("output 0") == "output 0 is 3 at (), where float64 has 4"
    ref = torch.arange(4096.0, dtype=torch.float64).reshape(64, 64)
    wrong = ref.int()
    wrong[63, 1] += 1
    cut = Cut((0,), (0,), 64, 1 << 25)
    judged = judge_outputs("normal", [wrong], lambda piece: [piece.of(ref, 0)], [ref.int()],
                           lambda piece, *_: [piece.of(ref, 0)], 4, False, cut=cut)  # fmt: skip
    assert judged.problem == "output 0 is 4034 at (63, 1), where float64 has 4033"


def test_what_is_open_is_evaluated_at_its_positions_alone() -> None:
    """Of 64 rows, three differ; rounding explains two of them at once, and the third never."""
    ref = torch.zeros(2, 64, 5, dtype=torch.float64)
    y = ref.int()
    for row in (3, 40, 41):
        y[1, row, 2] = 1
    asked: list[tuple[int, ...]] = []

    def rounded(piece: Piece, *_: object) -> Tensors:
        assert isinstance(piece.positions, tuple)
        asked.append(piece.positions)
        moved = ref.clone()
        moved[1, 3, 2] = moved[1, 41, 2] = 1
        return [piece.of(moved, 1)]

    cut = Cut((1,), (1,), 64, 1 << 25)
    judged = judge_outputs("normal", [y], lambda piece: [piece.of(ref, 1)], [ref.int()], rounded, 4, False, cut=cut)
    assert judged.problem == "output 0 is 1 at (1, 40, 2), where float64 has 0"
    assert asked[0] == (3, 40, 41) and set(asked[1:]) == {(3, 40, 41), (40,)} and asked[-1] == (40,)
    assert len(asked) == 64 * 4 - 6 * 2


@pytest.mark.parametrize(("count", "explained"), [(1, True), (16, True), (40, False)])
def test_chance_may_leave_a_few_open_at_first(count: int, explained: bool) -> None:
    """The twentieth evaluation explains them. Of forty that none has explained so far, it is not asked."""
    ref = torch.zeros(64, dtype=torch.float64)
    y = (torch.arange(64) < count).int()
    asked: list[int] = []

    def rounded(*_: object) -> Tensors:
        asked.append(1)
        return [y.double() if len(asked) >= 20 else ref]

    judged = judge_outputs("normal", [y], lambda _: [ref], [ref.int()], rounded, 4, False)
    assert (judged.problem is None) == explained == (len(asked) == 20)
    assert (decided(y, ref, iter([*[ref] * 20, y.double()])).wrong == 0) == explained


def test_a_few_elements_may_rest_on_decisions() -> None:
    """Two of 640 are something else in half of the evaluations that are moved as far as rounding may. They lie between,
    or are off by no more than any element may be."""
    ref = torch.linspace(1, 2, 640, dtype=torch.float64).reshape(64, 10)
    decided = ref.clone()
    decided[3, 4:6] = torch.tensor([0.0, 5.0])

    def rounded(_: Piece, __: object, seed: int, times: float | None) -> Tensors:
        return [decided if times and seed % 2 else ref * (1 + 1e-7)]

    def problem(y: torch.Tensor) -> str | None:
        return judge_outputs("normal", [y.float()], lambda _: [ref], [ref.float()], rounded, 4, False).problem

    def changed(*places: tuple[int, int, float]) -> torch.Tensor:
        y = decided.clone()
        for row, column, value in places:
            y[row, column] = value
        return y

    assert problem(decided) is None
    assert problem(changed((3, 4, 0.5), (3, 5, float(ref[3, 5])))) is None
    assert problem(changed((3, 4, -1e-7))) is None
    assert problem(changed((3, 5, 5.01)))
    assert problem(changed((3, 6, 5.0)))
    assert problem(changed((40, 4, 0.0)))
    assert problem(decided * (1 + 1e-5))
    assert problem(torch.where(torch.arange(640).reshape(64, 10) % 8 == 0, 5.0, ref))


NEAREST = """
name: nearest
dims: {n: 512, k: 16, d: 8}
dtype: float32
inputs: {X: [n, d], C: [k, d]}
program: |
  D = sum(square(C), d) - 2 * dot(X, C, d)
  A = min(where(D == min(D, k), index(k), k), k)
  O = sum(where(A == index(k), C, 0), k)
outputs: {O: [n, d]}
"""


def test_where_eager_decides_otherwise_it_allows_no_error_elsewhere() -> None:
    """The centre that is nearest to each point, of which eight lie between two. There eager may take the other one, and
    so may a kernel: by as much, no other element may be off."""
    program = parse_spec(NEAREST).at()
    scope: dict[str, Callable[..., torch.Tensor]] = {"torch": torch}  # type: ignore[dict-item]
    exec(torch_source(program), scope)
    eager = scope["reference"]
    g = torch.Generator().manual_seed(0)
    x, c = torch.randn(512, 8, generator=g), torch.randn(16, 8, generator=g)
    d = (c[:, None] - c).square().sum(2) + 1e9 * torch.eye(16)
    near = d.argmin(1)[:8]  # between a centre and the one that is nearest to it there is no third
    x[:8] = (c[:8] + c[near]) / 2
    mine, exact = eager(x, c), eager(x.double(), c.double())
    assert 1 <= int((mine - exact).abs().amax(1).gt(0.1).sum()) <= 8, "eager decides otherwise"
    reference = Reference(eager, lambda *t: evaluated(program, lower(program), t), torch.float32)

    def problem(y: torch.Tensor) -> str | None:
        return reference.judge("normal", [x, c], [y], 4, overflow_like_eager=False, terms=8).problem

    def changed(row: int, by: float) -> torch.Tensor:
        y = mine.clone()
        y[row, 3] += by
        return y

    assert problem(mine) is problem(exact.float()) is problem(changed(100, 1e-7)) is None
    assert problem(changed(100, 0.5))
    assert problem(changed(100, 1e-4))
    assert problem(changed(0, 9.0))


def test_a_kernel_may_decide_twice_as_many_elements_otherwise_as_eager() -> None:
    """Of 6,400, a 64th is 100. Eager decides 90 otherwise in one way, and the evaluations in another."""
    ref = torch.linspace(1, 2, 6400, dtype=torch.float64).reshape(64, 100)

    def otherwise(count: int) -> torch.Tensor:
        return torch.where(torch.arange(6400).reshape(64, 100) < count, 5.0, ref)

    def rounded(_: Piece, __: object, seed: int, times: float | None) -> Tensors:
        return [otherwise(400) if times and seed % 2 else ref * (1 + 1e-7)]

    def right(count: int, by_eager: int) -> bool:
        y, eager = otherwise(count).float(), otherwise(by_eager).float()
        return judge_outputs("normal", [y], lambda _: [ref], [eager], rounded, 4, False).problem is None

    assert right(90, 0) and not right(150, 0)
    assert right(150, 90) and not right(200, 90)


def test_eagers_decisions_are_not_looked_for_where_rounding_explains_a_kernel() -> None:
    """Eager decides ten elements otherwise. That says what is allowed of others; as much as they are off here, is."""
    ref, moved = torch.linspace(1, 2, 6400, dtype=torch.float64).reshape(64, 100), list[float | None]()

    otherwise = torch.where(ref < ref.flatten()[10], 5.0, ref)

    def rounded(_: Piece, __: object, seed: int, times: float | None) -> Tensors:
        if times in {None, AS_DECIDED}:
            return [ref * (1 + 1e-5)]
        moved.append(times)
        return [otherwise if seed % 2 else ref]

    eager = otherwise.float()
    for by, right in ((3e-5, True), (5e-5, False)):
        y = (ref * (1 + by)).float()
        found = judge_outputs("normal", [y], lambda _: [ref], [eager], rounded, 4, False)
        assert ((found.problem is None), not moved) == (right, right)


def test_positions_that_are_a_piece_each_are_looked_for_in_those_pieces() -> None:
    """Their evaluations may be held, and serve other candidates."""
    for position_bytes, here in ((PIECE_BYTES, [range(2, 3), range(5, 6)]), (PIECE_BYTES // 2, [(2, 5)])):
        pieces = pieces_of(Cut((0,), (0,), 8, position_bytes))
        assert [piece.positions for piece in pieces_with([2, 5], pieces)] == here
        assert pieces_with([*range(5)], pieces) == pieces and pieces_with([], pieces) == []


@pytest.mark.parametrize("function", [lambda x: (x > 0.5) * x, torch.round, lambda x: x.argmax(0).double() + x[0]])
def test_evaluations_with_rounding_decide_as_float64_does(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Of 100 elements just beside a threshold, rounding to float16 decides some otherwise, and is off by 1e-3 at most
    where float64's decisions stand."""
    x = 0.5 + 1e-9 * torch.linspace(-1, 1, 100).double().roll(50)
    exact = function(x)
    with RoundEveryResult(torch.float16, True, 1) as mode:
        assert (function(x * 1) - exact).abs().max() > 0.4
    assert mode.decided
    with RecordDecisions() as decisions:
        function(x * 1)
    with RoundEveryResult(torch.float16, True, 1, made=decisions.made):
        found = function(x * 1)
    assert 0 <= (found - exact).abs().max() <= 1e-2


@pytest.mark.parametrize(
    ("scale", "pieces"),
    [
        (lambda x: 1, 1),
        (lambda x: 1 + 1e9 * (x.sum(1) > x.flip(1).sum(1) + 1e-9), 4),
        (lambda x: 1 + x[:, 0].frac(), 4),
    ],
    ids=["nothing", "a mask", "a jump"],
)
def test_what_rounding_decides_is_looked_for_once_and_where_something_is_decided(
    monkeypatch: pytest.MonkeyPatch, scale: Callable[[torch.Tensor], Any], pieces: int
) -> None:
    """Sums cancel, so that errors are large. There are four pieces, each of which is evaluated once with rounding, and
    once with float64's decisions, for which these are recorded: of the first alone, where there are none."""
    made: list[tuple[object, ...]] = []
    rounded = Reference.rounded

    def counted(self: Reference, inputs: Tensors, piece: Piece, *how: Any) -> Tensors:
        made.append((piece, *how))
        return rounded(self, inputs, piece, *how)

    monkeypatch.setattr(Reference, "rounded", counted)
    x = 1 + torch.rand(64, 64, generator=torch.Generator().manual_seed(0))

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.sum(1) - x.flip(1).sum(1) + 1e-6) * scale(x)

    cut = Cut((0,), (0,), 64, PIECE_BYTES // 16)
    reference = Reference(program, program, torch.float32)
    assert reference.judge("normal", [x], [program(x) + 1e12], 4, False, 64, cut).problem
    assert len({*made}) == len(made)
    as_decided = [piece for piece, dtype, seed, times in made if (dtype, seed, times) == (torch.float32, 0, AS_DECIDED)]
    assert len(as_decided) == pieces


def test_an_output_most_of_which_would_rest_on_decisions_is_refused() -> None:
    ref = torch.ones(4, dtype=torch.float64)
    moved = torch.tensor([1.0, 5.0, 5.0, 5.0], dtype=torch.float64)
    for y, right in ((moved, False), (torch.tensor([1.0, 1.0, 5.0, 5.0], dtype=torch.float64), True)):
        found = judge_outputs("normal", [y.float()], lambda _: [ref], [ref.float()],
                              lambda _, __, ___, times: [moved if times else ref], 4, False)  # fmt: skip
        assert (found.problem is None) == right and found.told


@pytest.mark.parametrize("seed", [0, 1])
def test_rounding_leaves_infinities_and_nan_and_asks_for_no_value(seed: int) -> None:
    """On a GPU, whoever asks for one waits until all before it is done; on "meta", there are none."""
    largest = torch.finfo(torch.float64).max
    x = torch.tensor([math.inf, -math.inf, math.nan, largest, -largest, 0.0, 1 / 3, 5e-324], dtype=torch.float64)
    with RoundEveryResult(torch.float16, False, seed):
        y = x * 1.0
    assert y.isnan().tolist() == x.isnan().tolist()
    assert y.isinf().tolist()[:2] == [True, True] and (y[:2] == x[:2]).all() and y[5] == 0
    assert abs(float(y[6]) - 1 / 3) <= 2.0**-11 and 0 < y[6] * 2**12 == (y[6] * 2**12).round()
    with RoundEveryResult(torch.float16):
        assert (torch.ones(4, dtype=torch.float64, device="meta") * 2).shape == (4,)


def test_what_is_below_the_normal_numbers_may_be_0() -> None:
    """In every evaluation that stands for a GPU which flushes, and by chance in those that keep multiples of less."""
    tiny = torch.finfo(torch.float32).tiny
    x = torch.tensor([0.99, 1.01], dtype=torch.float64) * tiny
    for seed in range(1, 20):
        with RoundEveryResult(torch.float32, False, seed, tiny):
            flushed = x * 1.0
            assert (torch.nn.functional.silu(torch.tensor([-88.0, -87.0]).double()) < 0).tolist() == [False, True]
        with RoundEveryResult(torch.float32, False, seed, tiny * torch.finfo(torch.float32).eps):
            kept = x * 1.0
            silu = torch.nn.functional.silu(torch.tensor([-88.0, -87.0], dtype=torch.float64))
        assert flushed[0] == 0 and flushed[1] > 0 and (kept > 0).all() and (silu < 0).all()
