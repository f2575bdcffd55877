"""Grouped products, as a mixture's experts have them: each row is multiplied by its matrix in a kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mirage_cli.pipeline.models.groups import by_matrix, by_pytorch, matrices_named
from mirage_cli.pipeline.models.inplace import calls
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.regions import cut, exported
from tests.pipeline.test_inplace import with_kernels as interpreted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where lanes hold nothing
MATRICES, ROWS, K, F = 5, 24, 32, 16


class Experts(nn.Module):
    """Rows that are sorted by their expert, as PyTorch's own models and those of `transformers` have them."""

    def __init__(self) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(0)
        self.up = nn.Parameter(torch.randn(MATRICES, 2 * F, K, generator=made).bfloat16() / 4)
        self.down = nn.Parameter(torch.randn(MATRICES, K, F, generator=made).bfloat16() / 4)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        gate, up = torch._grouped_mm(x, self.up.mT, offs=ends).chunk(2, -1)
        return torch._grouped_mm(nn.functional.silu(gate) * up, self.down.mT, offs=ends)


def given(*ends: int) -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, K, generator=torch.Generator().manual_seed(1)).bfloat16(), torch.tensor(ends).int()


ENDS = [(4, 4, 9, 20, 24), (0, 0, 24, 24, 24), (5, 10, 15, 20, 24)]


def test_kernels_take_grouped_products_and_what_stands_between() -> None:
    model = Experts().eval().requires_grad_(False)
    found, faster = interpreted(model, given(*ENDS[0]))
    assert found.left == {} and len(found.regions) == 1
    text = found.regions[0].graph.text()
    assert text.count("drawn: sorted") == 1
    for ends in ENDS:
        torch.testing.assert_close(faster(*given(*ends)), model(*given(*ends)), atol=0.05, rtol=0.05)


def test_grouped_products_in_no_kernel_are_pytorchs() -> None:
    graph = exported(Experts().eval(), given(*ENDS[0])).graph
    before = [n.target for n in calls(graph)]
    matrices_named(graph)
    assert [n.target for n in calls(graph)].count(torch.ops.mirage.by_matrix.default) == 2
    by_pytorch(graph, ())
    assert [n.target for n in calls(graph)] == before


@pytest.mark.parametrize("shapes", [((3, 8, 16), (3, 16, 8)), ((8, 16), (16, 24))], ids=["a batch", "of columns"])
def test_groups_of_other_axes_are_left(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """A product for each matrix of a batch, and one whose groups are of the summed axis."""
    x, w = (torch.randn(shape).bfloat16() for shape in shapes)
    ends = None if len(shapes[0]) == 3 else torch.tensor([4, 16]).int()
    model = as_module(lambda x, w: torch._grouped_mm(x, w, offs=ends).relu())
    found = cut(exported(model, (x, w)))
    assert [name for name in found.left if "_grouped_mm" in name]
    torch.testing.assert_close(found.model(x, w), model(x, w))


@pytest.mark.parametrize("ends", ENDS)
def test_rows_by_their_matrices_are_the_grouped_product(ends: tuple[int, ...]) -> None:
    x, at = given(*ends)
    w = torch.randn(MATRICES, K, F).bfloat16()
    named = torch.searchsorted(at, torch.arange(ROWS).int(), right=True)
    torch.testing.assert_close(by_matrix(x, w, named), torch._grouped_mm(x, w, offs=at), atol=0.05, rtol=0.05)
