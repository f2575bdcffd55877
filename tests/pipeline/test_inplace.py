"""Caches that a model changes in place, by regions that write their rows: what is taken, and that it is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mirage_cli.pipeline.models.inplace import calls, changed, functionalised
from mirage_cli.pipeline.models.model import as_module, changed_arguments
from mirage_cli.pipeline.models.passes import in_memory_of_others, memory_of
from mirage_cli.pipeline.models.regions import Cut, cut, exported
from tests.pipeline.test_interpreted import Interpreted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where lanes hold nothing


class Cache(nn.Module):
    """Writes what it computes of x [2, 3, t, 4] into a cache, and sums that."""

    def __init__(self, write: Callable[[Tensor, Tensor, Tensor], object], keys: Tensor) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("keys", keys)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.write(self.keys, at, x * 2 + 1)
        return self.keys.sum(-1)


def at_rows(keys: Tensor, at: Tensor, k: Tensor) -> None:
    keys[:, :, at] = k


def at_rows_of_each(keys: Tensor, at: Tensor, k: Tensor) -> None:
    keys[torch.arange(2), :, at] = k[:, :, 0]


def at_heads_and_rows(keys: Tensor, at: Tensor, k: Tensor) -> None:
    keys[:, torch.arange(3)[:, None], at] = k


def at_slice(keys: Tensor, _: Tensor, k: Tensor) -> None:
    keys[:, :, 5:7] = k


def at_every_other(keys: Tensor, _: Tensor, k: Tensor) -> None:
    keys[:, :, 3:6:2].copy_(k)


def copied(keys: Tensor, at: Tensor, k: Tensor) -> None:
    keys.index_copy_(2, at, k)


WAYS = (at_rows, at_rows_of_each, at_heads_and_rows, at_slice, at_every_other, copied)
TABLE = torch.tensor([4, 1])
KEYS: dict[str, Callable[[], Tensor]] = {
    "whole": lambda: torch.randn(2, 3, 16, 4),
    "turned": lambda: torch.randn(2, 16, 3, 4).transpose(1, 2),
    "sliced": lambda: torch.randn(2, 3, 20, 6)[:, :, 1:17, :4],
}


def with_kernels(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Cut, nn.Module]:
    """The model's regions, and the model with generated kernels in their place."""
    with torch.no_grad():
        found = cut(exported(model, inputs))
    for r in found.regions:
        setattr(found.model, r.module, Interpreted(found.model.get_submodule(r.module), r))
    return found, found.model


@pytest.mark.parametrize("write", WAYS, ids=lambda f: f.__name__)
def test_rows_are_written_in_place(write: Callable[[Tensor, Tensor, Tensor], object]) -> None:
    torch.manual_seed(0)
    eager = Cache(write, KEYS["whole"]())
    model = copy.deepcopy(eager)
    found, faster = with_kernels(model, (torch.randn(2, 3, 2, 4), TABLE))
    assert found.left == {}
    assert [r.graph.text().count("inout") for r in found.regions] == [1, 0]
    for _ in range(2):
        x = torch.randn(2, 3, 2, 4)
        torch.testing.assert_close(faster(x, TABLE), eager(x, TABLE))
        torch.testing.assert_close(model.keys, eager.keys)


@pytest.mark.parametrize("layout", KEYS)
def test_a_cache_may_lie_in_memory_as_it_likes(layout: str) -> None:
    torch.manual_seed(0)
    keys = KEYS[layout]()
    before, model = keys.clone(), Cache(at_rows, keys)
    found, faster = with_kernels(model, (torch.randn(2, 3, 2, 4), TABLE))
    assert found.left == {}
    x = torch.randn(2, 3, 2, 4)
    faster(x, TABLE)
    before[:, :, TABLE] = x * 2 + 1
    torch.testing.assert_close(keys, before)


def test_negative_numbers_count_from_the_end() -> None:
    model = Cache(at_rows, torch.zeros(2, 3, 16, 4))
    found, faster = with_kernels(model, (torch.randn(2, 3, 2, 4), TABLE))
    faster(torch.ones(2, 3, 2, 4), torch.tensor([-1, 2]))
    assert model.keys[:, :, [15, 2]].eq(3).all()
    assert model.keys.count_nonzero() == 2 * 3 * 2 * 4
    remainders = found.model.graph.find_nodes(op="call_function", target=torch.ops.aten.remainder.Scalar)
    assert len(remainders) == 1


class Two(nn.Module):
    """Two caches at one place, which is worked out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(3, 16))
        self.register_buffer("values", torch.zeros(3, 16))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        place = at + 1
        self.keys[:, place] = x.exp()
        self.values[:, place] = x.sin()
        return (self.keys * self.values).sum(-1)


def test_several_caches_are_one_region() -> None:
    model, x, at = Two(), torch.randn(3, 1), torch.tensor([7])
    found, faster = with_kernels(model, (x, at))
    assert [r.graph.text().count("inout") for r in found.regions] == [2, 0]
    torch.testing.assert_close(faster(x, at), (x.exp() * x.sin())[:, 0])
    torch.testing.assert_close(model.keys[:, 8], x.exp()[:, 0])


def test_a_cache_that_lies_otherwise_than_in_the_example_is_not_given_to_a_kernel() -> None:
    """The kernel would change a copy."""

    def write(x: Tensor, keys: Tensor) -> Tensor:
        keys[:, :, 1:2] = x[:, :, None]
        return keys * 2

    x, keys = torch.randn(2, 3, 4), torch.zeros(2, 3, 5, 4)
    found = cut(exported(as_module(write), (x, keys)))
    region = found.regions[0]
    read = [n for n in found.model.get_submodule(region.module).graph.nodes if n.op == "placeholder"]
    shapes = [tuple(n.meta["val"].shape) for n in read]

    def serves(cache: Tensor) -> bool:
        given = [cache if shape == (2, 3, 5, 4) else x for shape in shapes]
        return region.serves(given, region.sizes(given))

    assert serves(keys)
    assert not serves(torch.zeros(2, 3, 4, 5).mT)


def added(keys: Tensor, at: Tensor, k: Tensor) -> None:
    keys.index_put_((torch.arange(2)[:, None], torch.arange(3), at[:1]), k[:, :, 0], accumulate=True)


def by_a_mask(keys: Tensor, at: Tensor, k: Tensor) -> None:
    keys[:, :, torch.arange(16) == at[0]] = k[:, :, :1]


def one_number(keys: Tensor, at: Tensor, _: Tensor) -> None:
    keys[:, :, at] = torch.zeros(2, 3, 2, 4)


@pytest.mark.parametrize("write", [added, by_a_mask, one_number], ids=lambda f: f.__name__)
def test_what_no_region_writes_stays_pytorchs(write: Callable[[Tensor, Tensor, Tensor], object]) -> None:
    torch.manual_seed(0)
    eager = Cache(write, torch.randn(2, 3, 16, 4))
    model = copy.deepcopy(eager)
    x = torch.randn(2, 3, 2, 4)
    with torch.no_grad():
        found = cut(exported(model, (x, TABLE)))
    assert not [r for r in found.regions if "inout" in r.graph.text()]
    torch.testing.assert_close(found.model(x, TABLE), eager(x, TABLE))
    torch.testing.assert_close(model.keys, eager.keys)


@torch.library.custom_op("mirage_tests::add_to", mutates_args=("total",))
def add_to(x: Tensor, total: Tensor) -> None:
    """An operator whose second argument changes."""
    total.add_(x)


def summed_between(x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    before = (total * 2).sum(-1)
    add_to(x, total)
    return before, (total * 2 + 1).sum(-1)


def normed_between(x: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
    """The running mean of a batch norm is its fourth argument."""
    before = (mean * 2).sum()
    made = torch.ops.aten._native_batch_norm_legit(x, None, None, mean, torch.ones(5), True, 0.5, 1e-5)
    return before, made[0] * 2, (mean * 2 + 1).sum()


@pytest.mark.parametrize(
    ("function", "held"), [(summed_between, torch.ones(4, 5)), (normed_between, torch.ones(5))], ids=["own", "norm"]
)
def test_what_reads_any_argument_that_an_operator_changes_stands_before_or_behind(function: Any, held: Tensor) -> None:
    x, held_by_eager = torch.randn(4, 5), held.clone()
    found = cut(exported(as_module(function), (x, held.clone())))
    expected = function(x, held_by_eager)
    torch.testing.assert_close(found.model(x, held), expected)
    torch.testing.assert_close(held, held_by_eager)
    assert found.regions


def counted_on(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    n.add_(1)
    return x * (torch.arange(5) < n), n * 2 + 1


def before_and_behind(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    before = n + 1
    n.copy_(n * 2)
    return before, x * before


def behind_another(x: Tensor, n: Tensor) -> Tensor:
    count = n + 1
    n.add_(5)
    x.copy_(torch.where(torch.arange(5) < count, 1.0, 2.0).expand(4, 5))
    return count


def row_of_a_place(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    place = n + 0
    n.add_(1)
    x.index_copy_(0, place, torch.ones(1, 5))
    return (x * (torch.arange(4) < n)[:, None]).sum(-1), n * 2


def returned(x: Tensor, n: Tensor) -> Tensor:
    x[n] = 2.0 * torch.ones(1, 5)
    return x


@pytest.mark.parametrize("function", [counted_on, before_and_behind, behind_another, row_of_a_place, returned])
def test_what_is_worked_out_of_numbers_that_change_is_of_those_in_front(function: Any) -> None:
    """Counts are computed once more where they are read: not behind the change of what they are made of."""
    given = torch.randn(4, 5), torch.tensor([2])
    torch._dynamo.reset()
    with torch.no_grad():
        models = cut(exported(as_module(function), given)).model, torch.compile(function, backend="mirage")
        expected = [*map(torch.clone, given)]
        results = function(*expected)
        for model in models:
            found = [*map(torch.clone, given)]
            torch.testing.assert_close(model(*found), results)
            torch.testing.assert_close(found, expected)


def test_a_single_number_is_written_by_pytorch() -> None:
    def function(x: Tensor, i: Tensor) -> Tensor:
        x.index_copy_(0, i, torch.full((), 3.0))
        return x + 1

    given = torch.tensor(1.0), torch.tensor(0)
    found = cut(exported(as_module(function), given))
    assert found.model(*given) == 4 and given[0] == 3


class ReadBefore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.ones(3, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.keys * 2
        self.keys[:, 2:4] = x
        return before, self.keys.sum(-1)


def test_a_cache_that_is_read_before_is_not_put_in_place() -> None:
    model, x = ReadBefore(), torch.zeros(3, 2)
    made = exported(model, (x,))
    assert all(n.target == torch.ops.aten.copy_.default for n in calls(made.graph) if changed(n))
    before, total = made(x)
    assert before.eq(2).all() and total.eq(6).all()


def both_of_one(c: Tensor, k: Tensor, at: Tensor) -> Tensor:
    keys, values = c.unbind(0)
    keys[at, :] = k
    values[at, :] = k * 2
    return keys.sum() + values.sum()


def layers_in_turn(c: Tensor, k: Tensor, at: Tensor) -> Tensor:
    for layer in range(2):
        c[layer, :, at] = (k * (layer + 1)).transpose(0, 1)  # several indices that stand apart
    return c.sum(-1)


def behind_one_another(c: Tensor, k: Tensor, at: Tensor) -> Tensor:
    c[1].index_copy_(1, at, k.transpose(0, 1))
    c[1][:, :][0, at] = k[:, 0]
    return c[1].sum(-1)


@pytest.mark.parametrize("write", [both_of_one, layers_in_turn, behind_one_another], ids=lambda f: f.__name__)
def test_parts_of_one_tensor_are_written_one_behind_the_other(write: Callable[..., Tensor]) -> None:
    """vLLM has the keys and the values of a layer in one tensor, others the caches of all layers."""
    torch.manual_seed(0)
    at = torch.tensor([3, 1])
    shape = (5, 3) if write is both_of_one else (3, 5)
    cache, k = torch.randn(2, *shape, 4), torch.randn(2, 3, 4)
    found, faster = with_kernels(as_module(write), (cache.clone(), k, at))
    assert found.left == {}
    assert sum(r.graph.text().count("inout") for r in found.regions) == 2
    assert not [n for n in calls(found.model.graph) if changed(n)], "no tensor is copied"
    mine, theirs = cache.clone(), cache.clone()
    torch.testing.assert_close(faster(mine, k, at), write(theirs, k, at))
    torch.testing.assert_close(mine, theirs)


def test_parts_are_written_by_ranges() -> None:
    def write(c: Tensor, k: Tensor) -> Tensor:
        c[0] = k
        c[:, 1] = k[:2] * 2
        c[-1, :, 2:4] = k[:, 2:4].exp()
        return c.sum(-1)

    cache, k = torch.randn(2, 3, 5), torch.randn(3, 5)
    found, faster = with_kernels(as_module(write), (cache.clone(), k))
    assert found.left == {} and not [n for n in calls(found.model.graph) if changed(n)]
    mine, theirs = cache.clone(), cache.clone()
    torch.testing.assert_close(faster(mine, k), write(theirs, k))
    torch.testing.assert_close(mine, theirs)


def test_what_is_read_between_two_updates_is_as_it_was_there() -> None:
    def write(c: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        c[0, at] = k
        between = c.sum(-1)
        c[0, at + 1] = k * 3
        return between, c.sum(-1)

    cache, k, at = torch.randn(2, 5, 4), torch.randn(2, 4), torch.tensor([3, 1])
    _, faster = with_kernels(as_module(write), (cache.clone(), k, at))
    mine, theirs = cache.clone(), cache.clone()
    torch.testing.assert_close(faster(mine, k, at), write(theirs, k, at))
    torch.testing.assert_close(mine, theirs)


def test_a_kernel_writes_into_what_is_given_for_its_result() -> None:
    def quantised(x: Tensor, out: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(-1).clamp(min=1e-10) / 127
        out[...] = (x / scale[:, None]).round()
        scales.copy_(scale)
        return out, scales

    given = torch.randn(3, 8), torch.zeros(3, 8), torch.zeros(3)
    found, faster = with_kernels(as_module(quantised), given)
    assert found.left == {} and [r.graph.text().count("inout") for r in found.regions] == [2]
    mine, theirs = ([x.clone() for x in given] for _ in range(2))
    returned = faster(*mine)
    torch.testing.assert_close(returned, quantised(*theirs))
    assert all(r is x for r, x in zip(returned, mine[1:], strict=True)), "as PyTorch returns them"
    assert not found.regions[0].serves([given[0], torch.zeros(8, 3).T, given[2]], {})
    torch.testing.assert_close(found.model.get_submodule("region_0").original(*given), (theirs[1], theirs[2]))


def test_what_a_region_changes_is_an_argument_that_nothing_else_may_lie_in() -> None:
    def doubled(x: Tensor, out: Tensor, cache: Tensor, at: Tensor) -> None:
        out.copy_(x * 2)
        cache[at] = x * 3

    given = torch.randn(3, 8), torch.zeros(3, 8), torch.zeros(9, 8), torch.tensor([7, 1, 2])
    found = cut(exported(as_module(doubled), given))
    assert len(found.regions) == 1
    assert changed_arguments(found.model.graph) == [1, 2]


def moved(x: Tensor, mean: Tensor) -> Tensor:
    mean.copy_(mean * 0.9 + x.mean(0) * 0.1)
    return x - mean


def counted_up(x: Tensor, steps: Tensor) -> Tensor:
    steps.copy_(x.argmax(-1))
    return x * 2


def from_an_input(x: Tensor, before: Tensor) -> Tensor:
    before.copy_(x)
    return x * 2


@pytest.mark.parametrize(
    ("function", "held"),
    [(moved, torch.randn(8)), (counted_up, torch.zeros(3, dtype=torch.int64)), (from_an_input, torch.zeros(3, 8))],
)
def test_what_else_is_copied_stays_pytorchs(function: Callable[..., Tensor], held: Tensor) -> None:
    """What is made of the tensor itself, whole numbers of 64 bits, what no kernel computes."""
    x = torch.randn(3, 8)
    found, faster = with_kernels(as_module(function), (x, held.clone()))
    assert not [r for r in found.regions if "inout" in r.graph.text()]
    mine, theirs = held.clone(), held.clone()
    torch.testing.assert_close(faster(x, mine), function(x, theirs))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("write", [both_of_one, layers_in_turn])
def test_updates_without_a_kernel_are_one_copy_again(write: Callable[..., Tensor]) -> None:
    """As Inductor knows them."""
    cache, k, at = torch.randn(2, 5, 5, 4), torch.randn(2, 5, 4), torch.tensor([3, 1])
    made = exported(as_module(write), (cache.clone(), k, at))
    assert [n.target for n in calls(made.graph) if changed(n)] == [torch.ops.aten.index_put_.default] * 2
    functionalised(made.graph)
    made.graph.lint()
    made.recompile()
    assert [n.target for n in calls(made.graph) if changed(n)] == [torch.ops.aten.copy_.default]
    mine, theirs = cache.clone(), cache.clone()
    torch.testing.assert_close(made(mine, k, at), write(theirs, k, at))
    torch.testing.assert_close(mine, theirs)


def test_a_result_without_a_kernel_is_copied_again() -> None:
    def doubled(x: Tensor, out: Tensor) -> None:
        out.copy_(x * 2)

    x, out = torch.randn(3, 8), torch.zeros(3, 8)
    made = exported(as_module(doubled), (x, out))
    functionalised(made.graph)
    made.recompile()
    assert [n.target for n in calls(made.graph) if changed(n)] == [torch.ops.aten.copy_.default]
    made(x, out)
    assert out.equal(x * 2)


def test_rows_of_a_cache_of_bytes_are_written() -> None:
    """Bytes that are copied stay what they are, and how far the numbers of rows go does not matter."""

    def write(x: torch.Tensor, cache: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor) -> None:
        scale = x.abs().amax(-1) / 127
        cache.index_copy_(0, rows, (x / scale[:, None]).round().clamp(-127, 127).to(torch.int8))
        scales.index_copy_(0, rows, scale)

    given = torch.randn(3, 8), torch.zeros(16, 8, dtype=torch.int8), torch.zeros(16), torch.tensor([3, 15, 0])
    found = cut(exported(as_module(write), given))
    assert found.left == {} and len(found.regions) == 1
    (region,) = found.regions
    mine, theirs = ([x.clone() for x in given] for _ in range(2))
    setattr(found.model, region.module, Interpreted(found.model.get_submodule(region.module), region))
    found.model(*mine)
    write(*theirs)
    assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


def test_a_sparse_tensor_lies_in_no_memory_of_its_own() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.eye(2).to_sparse()
    assert memory_of(x) is x and not in_memory_of_others(x)
