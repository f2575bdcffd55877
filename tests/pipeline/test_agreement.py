"""Regions compared with PyTorch: what is the same program, and what is another one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from mirage_cli.pipeline.models.agreement import (
    DECIDED,
    Sample,
    agrees,
    close,
    drawn,
    examples,
    in_doubt,
    overflows,
    vanishes,
)
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.regions import cut, exported
from mirage_cli.pipeline.models.symbols import placeholders
from mirage_cli.spec.reader import parse_spec

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("pytorchs", "exact", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([1.0, -INF], [1.0, -INF], True),
        ([1.0, -INF], [1.0, INF], False),
        ([1.0, -INF], [1.0, 0.0], False),
        ([1.0, 0.0], [1.0, -INF], False),
        ([1.0, NAN], [1.0, NAN], True),
        ([1.0, NAN], [1.0, INF], False),
        ([1.0, INF], [1.0, 1e39], True),  # beyond float32
        ([0.0, 0.0], [1e-39, 1e-120], True),  # below float32's normal numbers
        ([0.0, 0.0], [1e-37, 1e-120], False),
        ([NAN, NAN], [NAN, NAN], False),  # says nothing
    ],
)
def test_a_region_agrees_where_infinities_do_too(pytorchs: list[float], exact: list[float], same: bool) -> None:
    assert close(torch.tensor(pytorchs), torch.tensor(exact, dtype=torch.float64)) == same


def quantised(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers of what was rounded to bfloat16 on the way, where rounding decides one in twenty."""
    y = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
    largest = y.float().abs().amax(-1, keepdim=True).clamp(min=1e-10) / 127
    return torch.round(y.float() / largest).clamp(-128, 127).to(torch.int8), largest


def test_what_rounding_on_the_way_may_decide_is_the_same_program() -> None:
    found = cut(exported(as_module(quantised), (torch.randn(16, 64).bfloat16(), torch.randn(64).bfloat16())))
    assert found.left == {}
    (region,) = found.regions
    module = found.model.get_submodule(region.module)
    given = examples(module)
    made, sample = module(*given), Sample.of(region, region.program, given, {})
    (i,) = (i for i, y in enumerate(made) if not y.is_floating_point())
    y, exact = made[i], sample.exact()[i]
    assert int((y != exact).sum()) > 2 * DECIDED * y.numel()
    assert close(y, exact, torch.bfloat16, sample.moved(i, torch.bfloat16))
    assert not close(y, exact, torch.float32, sample.moved(i, torch.float32))
    assert not close(y.int() + 1, exact, torch.bfloat16, sample.moved(i, torch.bfloat16))


def heights(boxes: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The embeddings of the heights of boxes: no random numbers are a bottom and a top."""
    return rows[boxes[:, 3] - boxes[:, 1]] + F.embedding(boxes[:, 3] - boxes[:, 1], rows)


def counted_from_1(classes: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return F.embedding(classes - 1, rows) * 2


def levels(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return F.embedding((x * 4).long(), rows) * 2


def worked_out(i: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What PyTorch's decompositions look up: reflections at the ends of an axis of one position."""
    return torch.ops.aten._unsafe_index(rows[:1] * 2, [i]) + 1


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (worked_out, torch.tensor([0, 0])),
        (heights, torch.tensor([[0, 1, 2, 3], [1, 2, 4, 2]])),
        (counted_from_1, torch.tensor([1, 3])),
        (levels, torch.tensor([0.3, 0.8])),
    ],
)
def test_rows_that_are_looked_up_by_computed_numbers_are_there(function: Any, given: torch.Tensor) -> None:
    """Most random data names none, which PyTorch refuses, on a GPU by an assertion that ends all."""
    inputs = given, torch.randn(5, 3)
    found = cut(exported(as_module(function), inputs))
    assert found.left == {} and found.regions
    torch.testing.assert_close(found.model(*inputs), function(*inputs))


@pytest.mark.timeout(60)
def test_numbers_that_are_made_of_a_long_chain_are_looked_at_once() -> None:
    """Of a residual quantiser: each code is of what the codes before have left, which is read several times."""

    def codes(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        for _ in range(16):
            x = x - rows[(x @ rows.T - x.square().sum(-1, keepdim=True)).argmax(-1)]
        return x

    assert cut(exported(as_module(codes), (torch.randn(4, 3), torch.randn(5, 3)))).regions


def test_where_no_data_names_rows_the_region_is_pytorchs() -> None:
    def far(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return F.embedding(x + 9, rows) * 2

    found = cut(exported(as_module(far), (torch.tensor([-9, -8]), torch.randn(5, 3))))
    assert found.regions == [] and "rows that there are not" in " ".join(found.left.values())


def test_what_pytorch_refuses_but_between_0_and_1_is_compared_there() -> None:
    model = as_module(lambda x, y: nn.functional.binary_cross_entropy(x, y))
    found = cut(exported(model, (torch.rand(5, 3), torch.rand(5, 3))))
    assert found.left == {} and len(found.regions) == 1
    assert float(drawn(torch.empty(1000), torch.Generator().manual_seed(0), "fractions").min()) > 0.05


def test_a_single_length_is_not_0_in_all_that_is_drawn() -> None:
    def mean(x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        kept = torch.arange(5) < length[:, None]
        return (x * kept).sum(1) / length

    found = cut(exported(as_module(mean), (torch.randn(1, 5), torch.tensor([3]))))
    assert found.left == {} and len(found.regions) == 1


@pytest.mark.parametrize(("places", "doubt"), [(0, False), (1, True), (64, True), (65, False)])
def test_rounding_decides_what_is_a_number_at_a_few_places(places: int, doubt: bool) -> None:
    exact = torch.ones(4096, dtype=torch.float64)
    exact[:places] = NAN
    assert int(in_doubt(torch.ones(4096), exact).sum()) == (places if doubt else 0)


def test_a_root_of_what_cancels_is_compared_between_0_and_1() -> None:
    """Of normal numbers, rounding in bfloat16 decides the sign below the root at some places."""
    model = as_module(lambda v, g: torch.sqrt(1.1 * v + 1.3 * g))
    inputs = torch.randn(64, 128, dtype=torch.bfloat16), torch.randn(64, 128, dtype=torch.bfloat16)
    found = cut(exported(model, inputs))
    assert found.left == {} and len(found.regions) == 1


def test_roots_between_products_that_overflow_are_compared_on_small_numbers_above_0() -> None:
    """Of normal numbers half of the variances are negative, and of those between 0 and 1 sums overflow float16."""
    layers = nn.Sequential(nn.Linear(768, 4096), nn.BatchNorm1d(4096), nn.Linear(4096, 64)).half().eval()
    with torch.no_grad():
        found = cut(exported(layers, (torch.randn(4, 768).half(),)))
    assert found.left == {} and found.regions


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda v, g: torch.sqrt(1.1 * v + 2.6 * g) + torch.relu(v), id="another root"),
        pytest.param(lambda v, g: torch.sqrt(1.1 * v + 1.3 * g) + v, id="the same between 0 and 1"),
    ],
)
def test_what_differs_beside_a_root_of_what_cancels_is_refused(other: Any) -> None:
    model = as_module(lambda v, g: torch.sqrt(1.1 * v + 1.3 * g) + torch.relu(v))
    inputs = torch.randn(64, 128, dtype=torch.bfloat16), torch.randn(64, 128, dtype=torch.bfloat16)
    found = cut(exported(model, inputs))
    (region,) = found.regions
    (wrong,) = cut(exported(as_module(other), inputs)).regions
    module = found.model.get_submodule(region.module)
    assert agrees(module, region) and not agrees(module, wrong)


def chosen_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What is beyond float16 is multiplied by 0 in most rows."""
    return torch.where(x[:, 1] > 1, x[:, 1], (x @ w).square().sum(-1) * (x[:, 0] > 1))


def test_what_goes_beyond_its_type_on_the_way_to_some_results_is_compared_on_small_numbers() -> None:
    given = torch.randn(64, 8192).half(), torch.randn(8192, 64).half()
    found = cut(exported(as_module(chosen_rows), given))
    assert found.left == {}
    (region,) = found.regions
    module = found.model.get_submodule(region.module)
    made, (exact,) = module(*examples(module)), Sample.of(region, region.program, examples(module), {}).exact()
    assert overflows(made, exact) and not overflows(exact.half(), exact)


def test_what_goes_beyond_its_type_on_normal_numbers_is_compared_on_small_ones() -> None:
    model = as_module(lambda x, w: (x @ w).square().sum(-1))
    given = (torch.randn(2, 8192).half(), torch.randn(8192, 64).half())
    assert model(*given).isinf().all()
    found = cut(exported(model, given))
    assert found.left == {} and len(found.regions) == 1


def test_powers_beyond_the_type_are_compared_on_fractions() -> None:
    """Of normal numbers they are infinite on the way: PyTorch makes no number where float64 has one that is itself
    beyond the type."""

    def decayed(x: torch.Tensor, rate: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        distance = torch.arange(400)[:, None] - torch.arange(400)[None, :]
        return (x @ x.mT * rate[:, None, None] ** distance.clamp(min=0)) @ y

    given = torch.randn(2, 400, 8), torch.rand(2), torch.randn(2, 400, 8)
    found = cut(exported(as_module(decayed), given))
    assert found.left == {} and len(found.regions) == 1
    module, wrong = found.model.get_submodule(found.regions[0].module), as_module(lambda *x: decayed(*x) * 1.05)
    assert not agrees(module, cut(exported(wrong, given)).regions[0])


def test_products_of_many_factors_are_compared_on_moderate_numbers() -> None:
    """Normal ones and those between 0 and 1 go beyond float16, and of small ones it has no normal number."""

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (torch.nn.functional.layer_norm(x, (64,)) @ w) ** 2
        return y * (y.mean(0) @ w)

    given = torch.randn(32, 64).half(), torch.randn(64, 64).half()
    found = cut(exported(as_module(model), given))
    assert found.left == {} and len(found.regions) == 1
    module, wrong = found.model.get_submodule(found.regions[0].module), as_module(lambda x, w: model(x, w) * 1.05)
    assert not agrees(module, cut(exported(wrong, given)).regions[0])


def test_what_rounding_moves_as_far_as_it_is_off_is_compared_on_other_numbers() -> None:
    """1 / (1.1 v + 1.3 g), near 0: of numbers above 0 it never is, and there another program is refused."""
    given = torch.randn(64, 128).half(), torch.randn(64, 128).half()
    found = cut(exported(as_module(lambda v, g: 1 / (1.1 * v + 1.3 * g)), given))
    assert found.left == {}
    (region,) = found.regions
    (wrong,) = cut(exported(as_module(lambda v, g: 1.1 / (1.1 * v + 1.3 * g)), given)).regions
    module = found.model.get_submodule(region.module)
    made, (exact,) = module(*examples(module)), Sample.of(region, region.program, examples(module), {}).exact()
    assert not close(made, exact, torch.float16) and agrees(module, region) and not agrees(module, wrong)


def test_what_makes_no_numbers_is_not_compared() -> None:
    model = as_module(lambda x: torch.log(-x.abs() - 1) * 2)
    (why,) = cut(exported(model, (torch.randn(5, 3),))).left.values()
    assert why == "of random data PyTorch makes no numbers that rounding leaves to be compared"


def test_what_is_written_twice_is_not_compared() -> None:
    """Which of several values is kept is left open: the data write each place once."""
    given = torch.randn(4, 6), torch.tensor([[3, 0, 5]] * 4), torch.randn(4, 3)
    for dim in (1, -1):
        found = cut(exported(as_module(lambda x, i, y, dim=dim: x.scatter(dim, i, y) * 2), given))
        assert len(found.regions) == 1 and not found.left


def test_a_number_that_is_small_beside_normal_ones_is_compared_beside_small_ones() -> None:
    """Added to a mean of squares of a bfloat16 norm, 2^-7 moves normal data by less than rounding may."""

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 2**-23).to(x.dtype)

    found = cut(exported(as_module(norm), (torch.randn(16, 64).bfloat16(),)))
    (region,) = found.regions
    module = found.model.get_submodule(region.module)
    assert agrees(module, region)
    other = parse_spec(region.graph.text().replace(str(2**-23), str(2**-7)), "other").at()
    assert other != region.program and not agrees(module, replace(region, program=other))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_norm_without_a_number_of_its_own_adds_pytorchs(dtype: torch.dtype) -> None:
    """Of float32, in which norms of 16 bits are computed. The numbers are so small that it counts."""
    norm = nn.RMSNorm(64, dtype=dtype)
    x = (torch.randn(16, 64) / 256).to(dtype)
    found = cut(exported(norm, (x,)))
    (region,) = found.regions
    module = found.model.get_submodule(region.module)
    assert agrees(module, region)
    given = [x if n.meta["val"].dim() == 2 else norm.weight.detach() for n in placeholders(module.graph)]
    (exact,) = Sample.of(region, region.program, given, {}).exact()
    torch.testing.assert_close(exact.to(dtype), norm(x))


def test_powers_of_two_by_bytes_are_compared_where_they_are_numbers_of_float32() -> None:
    """Bytes are drawn as 0 and 1: as exponents less 127 they make what processors flush to 0."""
    model = as_module(lambda x, e: x.bfloat16() * torch.exp2(e.float() - 127).bfloat16())
    found = cut(exported(model, (torch.randn(8, 32), torch.randint(110, 140, (8, 1), dtype=torch.uint8))))
    (region,) = found.regions
    module = found.model.get_submodule(region.module)
    assert agrees(module, region)
    wrong = parse_spec(region.graph.text().replace("127", "126")).at()
    assert not agrees(module, replace(region, program=wrong))


def test_results_that_are_too_small_to_be_compared_say_nothing() -> None:
    made = torch.tensor([3e-37, 0.0, -1e-38], dtype=torch.float64)
    assert vanishes(made) and not vanishes(made * 1e12) and not vanishes(made * 0) and not vanishes(made / 0)
