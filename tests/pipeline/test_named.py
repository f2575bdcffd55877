"""Numbers that name rows beyond an axis: refused by models with kernels, as by PyTorch, and nothing is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.export import Dim

import mirage_cli
from mirage_cli.pipeline.models import named, regions
from mirage_cli.pipeline.models.inplace import calls
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.named import raise_unless
from mirage_cli.pipeline.models.regions import cut, exported
from mirage_cli.spec.aten.operands import MOST_COMPARED
from tests.pipeline.test_inplace import TABLE, Cache, at_heads_and_rows, at_rows, at_rows_of_each, copied
from tests.pipeline.test_inplace import with_kernels as interpreted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where lanes hold nothing
REFUSED = (IndexError, RuntimeError)


def after_one(keys: Tensor, at: Tensor, k: Tensor) -> None:
    keys[:, :, at + 1] = k


UPDATES = (at_rows, at_rows_of_each, at_heads_and_rows, copied, after_one)


@pytest.mark.parametrize("write", UPDATES, ids=lambda f: f.__name__)
def test_updates_of_rows_that_are_not_there(write: Callable[[Tensor, Tensor, Tensor], object]) -> None:
    eager = Cache(write, torch.zeros(2, 3, 16, 4))
    model = copy.deepcopy(eager)
    found, faster = interpreted(model, (torch.randn(2, 3, 2, 4), TABLE))
    assert found.left == {}
    x = torch.ones(2, 3, 2, 4)
    for numbers in ([16, 1], [3, 1000], [0, -18]):
        at = torch.tensor(numbers)
        with pytest.raises(REFUSED):
            eager(x, at)
        eager.keys.zero_()  # PyTorch may have written others
        with pytest.raises(RuntimeError, match="names no row"):
            faster(x, at)
        assert not model.keys.any()
    at = torch.tensor([14, 0])
    torch.testing.assert_close(faster(x, at), eager(x, at))


READS: dict[str, tuple[Callable[..., Tensor], bool]] = {
    "embedding": (lambda x, at: F.embedding(at, x) * 2, False),
    "embedding of what is counted": (lambda x, at: F.embedding(at + 1, x) * 2, False),
    "index_select": (lambda x, at: x.index_select(0, at).exp(), False),
    "index_select within": (lambda x, at: x.index_select(1, at).exp(), False),
    "index": (lambda x, at: x[at].exp(), True),
    "index within": (lambda x, at: x[:, at].exp(), True),
    "several indices": (lambda x, at: x[torch.arange(2), at].exp(), True),
    "gather": (lambda x, at: x.gather(0, at[:, None].expand(2, 8)).exp(), False),
    "scatter": (lambda x, at: x.scatter(0, at[:, None].expand(2, 8), x[:2] * 2).exp(), False),
    "index_add": (lambda x, at: x.index_add(0, at, x[:2] * 2).exp(), False),
    "classes": (lambda x, at: F.cross_entropy(x[:2], at), False),
}
"""What reads 8 rows, and 8 columns, by two numbers, and whether negative ones count from the end."""


@pytest.mark.parametrize("name", READS)
def test_reads_of_rows_that_are_not_there(name: str) -> None:
    function, from_end = READS[name]
    torch.manual_seed(0)
    x, model = torch.randn(8, 8), as_module(function)
    found, faster = interpreted(model, (x, torch.tensor([3, 1])))
    assert found.left == {} and found.regions
    for numbers in ([8, 1], [1, 1 << 40], [-9, 0], *[[-2, 0]] * (not from_end)):
        at = torch.tensor(numbers)
        with pytest.raises(REFUSED):
            model(x, at)
        with pytest.raises(RuntimeError, match="names no row"):
            faster(x, at)
    for numbers in ([6, 0], *[[-2, 0]] * from_end):
        at = torch.tensor(numbers)
        torch.testing.assert_close(faster(x, at), model(x, at))


MANY = 5000
"""Rows, more than are compared with an index one by one."""


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda x, at: x[at].exp(), id="rows"),
        pytest.param(lambda x, at: x[:, 0][at].sum(-1), id="numbers"),
        pytest.param(lambda x, at: x[at[1:, 0]] * 2, id="one row"),
        pytest.param(lambda x, at: x.square()[at[None, :, 1]] + 1, id="computed rows"),
        pytest.param(lambda x, at: x.view(2, -1, 2, 4).transpose(0, 1).reshape(-1, 4)[at], id="of several axes"),
        pytest.param(lambda x, at: x[at.int()].view(2, 2, 1, 4).sum(1), id="32 bits"),
    ],
)
def test_rows_of_a_long_table_are_looked_up(read: Callable[..., Tensor]) -> None:
    x, model = torch.randn(MANY, 4), as_module(read)
    found, faster = interpreted(model, (x, torch.tensor([[3, 1], [2, 0]])))
    assert found.left == {} and len(found.regions) == 1
    for numbers in ([[-1, MANY - 1], [0, -MANY]], [[7, -7], [7, -7]]):
        at = torch.tensor(numbers)
        torch.testing.assert_close(faster(x, at), model(x, at))


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda x, at: F.embedding(at[:, 1], x) * 2, id="by a column"),
        pytest.param(lambda x, at: F.embedding(at.view(-1), x).exp(), id="by what is flattened"),
        pytest.param(lambda x, at: x.index_select(0, at[1]) * 2, id="by a row"),
        pytest.param(lambda x, at: x.gather(0, at).exp(), id="each in its column"),
        pytest.param(lambda x, at: x.exp().gather(0, at[:, :1].expand(-1, 4)), id="the same in each column"),
        pytest.param(lambda x, at: x.view(2, -1, 4).gather(1, at[:, None, :1]).exp(), id="one in each column"),
    ],
)
def test_numbers_that_count_from_the_front_are_looked_up(read: Callable[..., Tensor]) -> None:
    x, model = torch.randn(MANY, 4), as_module(read)
    found, faster = interpreted(model, (x, torch.tensor([[3, 1], [2, 0]])))
    assert found.left == {} and len(found.regions) == 1
    for numbers in ([[1, MANY // 2 - 1], [0, 7]], [[7, 7], [7, 8]]):
        at = torch.tensor(numbers)
        torch.testing.assert_close(faster(x, at), model(x, at))
    with pytest.raises(RuntimeError, match="names no row"):
        faster(x, torch.tensor([[-1, -1], [-1, -1]]))


def in_both_directions(x: Tensor, y: Tensor) -> Tensor:
    at = relative(6, 6).clamp(0, 2)
    return x.gather(1, at) * (x @ y.T) + y.gather(1, at).T


def relative(n: int, m: int) -> Tensor:
    """The differences of positions that are not far from each other, and a number for those that are: none below 0."""
    return (torch.arange(n)[:, None] - torch.arange(m)).clamp(-2, 2) + 2


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda x: F.embedding(torch.arange(7) + 2, x) * 2, id="positions"),
        pytest.param(lambda x: x.exp()[torch.arange(-1, -9, -3)], id="from the end"),
        pytest.param(lambda x: x.exp()[torch.arange(5)[:, None] + 1, torch.arange(1, 3)], id="a part"),
        pytest.param(lambda x: x.exp()[torch.arange(3), torch.arange(1, 4)], id="a diagonal"),
        pytest.param(lambda x: x.exp()[(torch.arange(12.0) / 2).long()], id="each twice"),
        pytest.param(lambda x: x.exp()[torch.arange(9)[:, None] // 3, torch.arange(6) % 3], id="each several times"),
        pytest.param(lambda x: x.index_select(0, torch.arange(6) ** 2) * 2, id="squares"),
        pytest.param(lambda x: x.exp()[relative(6, 5)], id="relative positions"),
        pytest.param(lambda x: F.embedding(relative(6, 5), x.exp()), id="their embedding"),
        pytest.param(
            lambda x: x.view(2, -1, 4).transpose(1, 2).exp().gather(2, relative(4, 6).expand(2, 4, 6)),
            id="relative positions, in each row",
        ),
        pytest.param(
            lambda x: in_both_directions(x[:6, :3].exp(), x[6:12, :3].exp()), id="one table in both directions"
        ),
    ],
)
def test_rows_that_numbers_alone_name_are_read_by_address(read: Callable[[Tensor], Tensor]) -> None:
    x, model = torch.randn(MANY, 4), as_module(read)
    found, faster = interpreted(model, (x,))
    assert found.left == {} and len(found.regions) == 1
    assert not [n for n in calls(found.model.graph) if n.target is raise_unless]
    assert "sum(" not in found.regions[0].graph.text()
    torch.testing.assert_close(faster(x), model(x))


MANY_OF = torch.randn(16)
READS_OF_MANY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "of a table": lambda x, at: F.embedding((at - 1).clamp(0, 99), x[:100].exp()),
    "from the end": lambda x, at: x[:100].exp()[(at - 1).clamp(-100, 99)],
    "in each row": lambda x, at: x.view(2, -1, 4).exp().gather(1, (at - 1).clamp(0, 99).expand(2, -1, -1)),
    "by two": lambda x, at: x[:100].exp()[(at - 1).clamp(0, 99), at.clamp(0, 3)],
}
"""What reads rows by the numbers of a matrix with four columns, moved and clamped."""


def compared_for_long(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many comparisons take longer than a kernel that stores numbers."""
    monkeypatch.setattr(named, "MANY_COMPARISONS", times)
    monkeypatch.setattr(named, "COMPARED_MEANWHILE", 0)


@pytest.mark.parametrize("name", READS_OF_MANY)
def test_rows_that_are_named_by_what_is_worked_out_are_looked_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where to compare them with each row would take long: what works the numbers out is no part of the kernel."""
    compared_for_long(monkeypatch, 1000)
    x, model = torch.randn(MANY, 4), as_module(READS_OF_MANY[name])
    at = torch.tensor([[3, 1, 0, 2], [90, 0, 1, 100], [1, 1, 2, 2]])
    found, faster = interpreted(model, (x, at))
    assert {*found.left.values()} <= {"only PyTorch's operators read it"} and len(found.regions) == 1
    assert "sum(" not in found.regions[0].graph.text()
    torch.testing.assert_close(faster(x, at), model(x, at))
    torch.testing.assert_close(faster(x, at + 1), model(x, at + 1))


def test_rows_that_are_named_by_what_kernels_work_out_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest of several words: one kernel finds their numbers, and another reads them."""
    compared_for_long(monkeypatch, 1000)
    x, words = torch.randn(40, 8), torch.randn(20, 8)
    model = as_module(lambda x, words: F.embedding((words.square().sum(-1) - 2 * x @ words.T).argmin(-1), words) - x)
    found, faster = interpreted(model, (x, words))
    assert found.left == {}
    _, read = (r.graph.text() for r in found.regions)
    assert "sum(" not in read and "below: " in read
    (check,) = (n for n in calls(found.model.graph) if n.target is raise_unless)
    assert "names no row" in check.args[1]
    torch.testing.assert_close(faster(x, words), model(x, words))


BETWEEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the row in front": lambda x, at: x[at.floor().long()[:, None]] * (at - at.floor().long())[:, None, None],
    "both": lambda x, at: x[low := at.floor().long()] * (low + 1 - at)[:, None] + x[low + 1] * (at - low)[:, None],
}
"""What reads rows beside places between them, and computes with the numbers of the rows too."""


@pytest.mark.parametrize("name", BETWEEN)
def test_rows_beside_places_are_looked_up_behind_the_kernel_that_works_them_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared_for_long(monkeypatch, 1000)
    x, at, model = torch.randn(40, 8), torch.rand(20) * 38, as_module(BETWEEN[name])
    found, faster = interpreted(model, (x, at))
    assert len(found.regions) >= 2 and not any("sum(" in r.graph.text() for r in found.regions)
    torch.testing.assert_close(faster(x, at), model(x, at))


def test_rows_that_are_named_beside_positions_that_are_counted_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each batch and head their own, as samples of pictures have it."""
    compared_for_long(monkeypatch, 100)
    b, h = torch.arange(2)[:, None, None], torch.arange(3)
    x, at = torch.randn(2, 7, 6, 12), torch.randint(0, 6, (2, 5, 3))
    for model in (
        lambda x, i: x.view(2, 7, 6, 3, 4)[b, i, i, h],
        lambda x, i: x.view(2, 7, 6, 3, 4)[b, i, i - i // 6, h],
    ):
        found, faster = interpreted(as_module(model), (x, at))
        assert not any("sum(" in r.graph.text() for r in found.regions) and found.regions
        torch.testing.assert_close(faster(x, at), model(x, at))


def test_rows_of_a_long_table_that_are_named_by_what_is_worked_out_are_looked_up() -> None:
    """They are more than are compared."""
    x, model = torch.randn(MANY, 4), as_module(lambda x, at: F.embedding((at - 1).clamp(0, MANY - 1), x.exp()) * 2)
    at = torch.tensor([3, 1, 0, MANY])
    found, faster = interpreted(model, (x, at))
    assert len(found.regions) == 1 and "sum(" not in found.regions[0].graph.text()
    torch.testing.assert_close(faster(x, at), model(x, at))


def test_a_few_comparisons_are_worth_no_kernel() -> None:
    model = as_module(READS_OF_MANY["of a table"])
    (region,) = cut(exported(model, (torch.randn(MANY, 4), torch.tensor([[3, 1, 0, 2]])))).regions
    assert "sum(" in region.graph.text()


def test_entries_of_a_short_table_are_picked_where_their_numbers_are_worked_out() -> None:
    """To store a number takes longer than to compare it with those of 16 entries, however many there are."""

    def halves(packed: Tensor, table: Tensor) -> Tensor:
        return table[torch.stack([packed & 15, packed >> 4], -1).int()]

    (region,) = (found := cut(exported(as_module(halves), (torch.empty(1 << 22, dtype=torch.uint8), MANY_OF)))).regions
    assert not found.left
    assert "+ 16" not in region.graph.text(), "the numbers are from 0 on"


def test_numbers_are_checked_once_however_often_they_are_repeated() -> None:
    """Of numbers that are expanded, those that there are."""
    model = as_module(lambda x, at: x.exp().gather(1, at.expand(6, -1, -1)))
    found = cut(exported(model, (torch.randn(6, 8, 4), torch.tensor([[3, 1, 0, 2]]))))
    (check,) = (n for n in calls(found.model.graph) if n.target is raise_unless)
    read = set(check.args[0].all_input_nodes[0].all_input_nodes)
    assert {n.op for n in read} == {"placeholder"}


def test_numbers_alone_that_name_no_row_are_refused_as_by_pytorch() -> None:
    x, model = torch.randn(5, 4), as_module(lambda x: x.exp()[torch.arange(4) ** 2])
    with pytest.raises(REFUSED):
        cut(exported(model, (x,))).model(x)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda x, i, j: x.relu()[:, i, j] * 2, id="behind an axis"),
        pytest.param(lambda x, i, j: x.softmax(1)[i, :, j], id="around an axis"),
        pytest.param(lambda x, i, j: torch.einsum("kim,kjm->kij", x, x)[:, i, j], id="of a product"),
        pytest.param(lambda x, i, j: x.relu()[i[:, None], j[:3]], id="a grid"),
        pytest.param(lambda x, i, j: x.exp()[i, i] + j[:, None], id="by one table twice"),
        pytest.param(lambda x, i, j: x.exp()[:, j], id="a single one behind an axis"),
        pytest.param(lambda x, i, j: x.view(6, 2, 3, 6).relu()[i, :, j % 3], id="by what is worked out"),
    ],
)
def test_rows_that_several_tables_name_are_looked_up(read: Callable[..., Tensor]) -> None:
    """By address: no position along their axes is compared with a number, unless that is worked out."""
    x, i, j = torch.randn(6, 6, 6), torch.tensor([1, -2, 3, 0]), torch.tensor([5, 2, -1, -6])
    model = as_module(read)
    found, faster = interpreted(model, (x, i, j))
    assert found.left == {} and len(found.regions) == 1
    for numbers in ((i, j), (j, i), (i.flip(0), i)):
        torch.testing.assert_close(faster(x, *numbers), model(x, *numbers))
    text = found.regions[0].graph.text()
    assert ("==" in text) == ("remainder(" in text), text


def test_numbers_that_pytorch_works_out_are_counted_from_the_end_by_the_kernel() -> None:
    """Beside rows that are looked up by numbers that the model is given: the programs differ."""

    def both(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return x[at].exp(), x[torch.sort(at)[0]].exp()

    x, model = torch.randn(8, 4), as_module(both)
    found, faster = interpreted(model, (x, torch.tensor([3, 1])))
    assert len(found.regions) == 2
    at = torch.tensor([-2, -5])
    for y, expected in zip(faster(x, at), model(x, at), strict=True):
        torch.testing.assert_close(y, expected)


def test_rows_that_a_router_names_are_read_behind_it() -> None:
    """By numbers that are worked out of floating-point ones, as an expert's matrices are: by address, in a region of
    their own, however the numbers are moved between."""

    def experts(x: Tensor, router: Tensor, w: Tensor) -> Tensor:
        weight, row = (x @ router).softmax(1).topk(2)
        return (x.repeat_interleave(2, 0)[:, None] @ w[row.view(-1)] * weight.view(-1, 1, 1)).view(3, 2, -1).sum(1)

    model = as_module(experts)
    some = torch.randn(3, 4), torch.randn(4, MOST_COMPARED + 1), torch.randn(MOST_COMPARED + 1, 4, 4)
    found, faster = interpreted(model, some)
    assert found.left == {} and len(found.regions) == 2
    torch.testing.assert_close(faster(*some), model(*some), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("divided", [(2, 4, 4), (4, 2, 4), (2, 2, 2, 4)])
def test_a_table_whose_rows_are_divided_elsewhere(divided: tuple[int, ...]) -> None:
    model = as_module(lambda x, at: x[at] + x.view(divided).square().sum(0).flatten(0, -2).amax(0))
    x = torch.randn(8, 4)
    found, faster = interpreted(model, (x, torch.tensor([3, 1])))
    assert found.regions
    at = torch.tensor([-2, 5])
    torch.testing.assert_close(faster(x, at), model(x, at))


def test_a_class_that_is_ignored_is_no_row() -> None:
    x, at = torch.randn(2, 8), torch.tensor([-100, 3])
    _, faster = interpreted(as_module(F.cross_entropy), (x, at))
    torch.testing.assert_close(faster(x, at), F.cross_entropy(x, at))


class Deep(nn.Module):
    """Layers with a cache each, which write at one place."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.caches = nn.ModuleList(Cache(at_rows, torch.zeros(2, 3, 16, 4)) for _ in range(layers))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        for cache in self.caches:
            x = x + cache(x, at).mean()
        return x


def test_the_same_numbers_are_checked_once() -> None:
    model, inputs = Deep(3), (torch.randn(2, 3, 2, 4), TABLE)
    with torch.no_grad():
        found = cut(exported(model, inputs))
    assert sum(r.times for r in found.regions) > 3
    assert len(found.model.graph.find_nodes(op="call_function", target=raise_unless)) == 1
    assert [str(n.target) for n in calls(found.model.graph)].count("aten.remainder.Scalar") == 1
    assert not any("assert" in s.operator or "remainder" in s.operator for s in found.shares)


def test_a_compiled_model_checks_too() -> None:
    with torch.no_grad():
        found = cut(exported(as_module(lambda x, at: F.embedding(at, x).exp()), (torch.randn(8, 4), TABLE)))
        found.model.compile()  # as `optimize` does
        x = torch.randn(8, 4)
        torch.testing.assert_close(found.model(x, torch.tensor([7, 0])), x[[7, 0]].exp())
        with pytest.raises(RuntimeError, match="names no row"):
            found.model(x, torch.tensor([8, 0]))


def test_numbers_that_are_known_are_not_checked() -> None:
    model = as_module(lambda x: (x[torch.arange(3), torch.arange(1, 7, 2)] * 2).exp())
    with torch.no_grad():
        found = cut(exported(model, (torch.randn(8, 8),)))
    assert found.regions and not found.model.graph.find_nodes(op="call_function", target=raise_unless)


def test_rows_of_a_size_that_differs_by_call() -> None:
    def read(x: Tensor, at: Tensor) -> Tensor:
        return x.index_select(1, at).exp()

    rows = Dim("rows", min=2, max=64)
    with torch.no_grad():
        made = exported(as_module(read), (torch.randn(4, 8), torch.tensor([3, 1])), (({1: rows}, None),))
        found = cut(made)
    assert len(found.regions) == 1
    x = torch.randn(4, 11)
    torch.testing.assert_close(found.model(x, torch.tensor([10, 0])), read(x, torch.tensor([10, 0])))
    for numbers in ([11, 0], [-1, 0]):
        with pytest.raises(RuntimeError, match="names no row"):
            found.model(x, torch.tensor(numbers))


def test_a_cache_of_a_size_that_differs_by_call() -> None:
    def write(keys: Tensor, at: Tensor, k: Tensor) -> Tensor:
        keys[:, at] = k * 2
        return keys.sum(-1)

    rows = Dim("rows", min=2, max=64)
    inputs = torch.zeros(3, 16, 4), TABLE, torch.randn(3, 2, 4)
    with torch.no_grad():
        found = cut(exported(as_module(write), inputs, (({1: rows}, None, None),)))
    keys, k = torch.zeros(3, 20, 4), torch.ones(3, 2, 4)
    found.model(keys, torch.tensor([-1, 16]), k)
    assert keys[:, [19, 16]].eq(2).all() and keys.count_nonzero() == 24
    for numbers in ([20, 0], [0, -21]):
        with pytest.raises(REFUSED):
            found.model(keys, torch.tensor(numbers), k)


def test_kernels_of_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def looked_up(x: Tensor, at: Tensor) -> Tensor:
        return F.embedding(at, x).exp()

    fast: Any = mirage_cli.kernel(db=tmp_path / "mirage.db")(looked_up)
    x = torch.randn(16, 3)
    fast.search(x, TABLE, budget=8)
    torch.testing.assert_close(fast(x, torch.tensor([15, 0])), x[[15, 0]].exp())
    for numbers in ([16, 0], [0, -1]):
        with pytest.raises(RuntimeError, match="names no row"):
            fast(x, torch.tensor(numbers))


WIDE: dict[str, Callable[..., Tensor]] = {
    "converted": lambda x, at: x * at.to(x.dtype),
    "moved, then compared": lambda x, at: torch.where(at[:, None].expand(2, 8) > 5, x, 0.0) * 2,
    "a remainder": lambda x, at: x * (at % 7)[:, None],
    "beside each other": lambda x, at: x * torch.cat([at[:1], at[1:] + 1])[:, None],
}


@pytest.mark.parametrize("name", WIDE)
def test_whole_numbers_of_64_bits_fit_in_those_of_a_kernel_or_end_the_call(name: str) -> None:
    model = as_module(lambda x, at: WIDE[name](x[:, :2] if name == "converted" else x, at))
    x = torch.randn(2, 8)
    found, faster = interpreted(model, (x, torch.tensor([3, 9])))
    assert found.left == {} and found.regions
    for fine in ([-5, 6], [(1 << 30) - 1, 1 - (1 << 30)]):
        torch.testing.assert_close(faster(x, torch.tensor(fine)), model(x, torch.tensor(fine)))
    for wide in ([1 << 30, 0], [0, 1 << 40], [(1 << 32) + 1, 0], [0, -(1 << 31)]):
        with pytest.raises(RuntimeError, match="compute in 32 bits"):
            faster(x, torch.tensor(wide))


def test_numbers_that_name_rows_are_checked_once() -> None:
    """They are less than an axis is long."""
    model = as_module(lambda x, at: F.embedding(at, x) * at[:, None])
    found = cut(exported(model, (torch.randn(8, 8), torch.tensor([3, 1]))))
    assert len(found.model.graph.find_nodes(op="call_function", target=raise_unless)) == 1


def test_rows_are_as_many_as_an_axis_is_long() -> None:
    """A size by its name: tests of plans may take a shorter axis, which 100,003 rows would not let them."""
    x, at = torch.randn(100003, 8), torch.randint(0, 100003, (100003, 3))

    def neighbours(x: Tensor, at: Tensor) -> Tensor:
        return (x[at] - x[:, None]).amax(1)

    (region,) = cut(exported(as_module(neighbours), (x, at))).regions
    (table,) = (t for t in region.program.inputs if t.dtype == "int64")
    assert isinstance(table.below, str)
    assert region.program.sizes[table.below] == 100003


def test_forms_beyond_pythons_recursion_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a loop in Python, one behind another, are some hundred operators deep."""

    def deep(*_: object) -> str:
        raise RecursionError

    monkeypatch.setattr(regions, "computed_hash", deep)
    found = cut(exported(as_module(lambda x: x.exp() * 2), (torch.randn(3),)))
    assert not found.regions and "one behind another" in next(iter(found.left.values()))


@pytest.mark.parametrize(("long", "looked_up"), [(512, False), (4096, True)])
def test_numbers_that_are_worked_out_name_rows_where_a_comparison_would_read_much(long: int, looked_up: bool) -> None:
    """The last token of each sequence: of 64 × 4096 × 32 numbers it needs 2048."""
    x = torch.empty(64, long, 32)

    def last(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(64), lengths - 1] * 2.0

    found = cut(exported(as_module(last), (x, torch.full((64,), long))))
    (region,) = found.regions
    tables = [t for t in region.graph.program().inputs if t.dtype == "int64"]
    assert len(tables) == 1
    assert (tables[0].below is not None) is looked_up


def test_numbers_that_pytorch_has_worked_out_are_not_checked() -> None:
    """As it does not check them itself: those of what is padded, and of what is made larger."""
    given = torch.randn(4, 3), torch.tensor([3, 0])
    unsafe, safe = (
        cut(exported(as_module(lambda x, i, op=op: op(x.exp(), [i]) * 2), given))
        for op in (torch.ops.aten._unsafe_index, torch.ops.aten.index)
    )
    assert [len(found.model.graph.find_nodes(op="call_function", target=raise_unless)) for found in (unsafe, safe)] == [
        0,
        1,
    ]
    torch.testing.assert_close(unsafe.model(*given), safe.model(*given))


def of_each_box(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """As `grid_sample` reads one picture for several boxes."""
    batch, channel = torch.arange(5)[:, None, None], torch.arange(3)[:, None]
    return x.expand(5, -1, -1, -1)[batch, channel, row[:, None], column[:, None]] * 2


def of_one_channel(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return x[:, :1][torch.arange(5)[:, None], torch.arange(1), row, column] * 2


def taken_apart(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The batch lies in memory as one axis, and its result has three."""
    found = x.flatten(0, 1)[:12][torch.arange(12)[:, None], row.flatten()[:3], column.flatten()[:3]]
    return (found * 2).view(2, 2, 3, 3).transpose(1, 2)


@pytest.mark.parametrize("read", [of_each_box, of_one_channel, taken_apart], ids=lambda f: f.__name__)
def test_axes_that_are_counted_are_no_reason_to_compare(read: Callable[..., Tensor]) -> None:
    inputs = (
        torch.randn(1 if read is of_each_box else 5, 3, 6, 7),
        torch.randint(-6, 6, (5, 4)),
        torch.randint(7, (5, 4)),
    )
    found, faster = interpreted(as_module(read), inputs)
    assert all(t.below is not None for r in found.regions for t in r.program.inputs if t.dtype == "int64")
    torch.testing.assert_close(faster(*inputs), read(*inputs))
