"""Loops that a graph has written out: the regions of their steps are equal, and what they take of a tensor is right."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.passes import STEPS, steps_apart
from mirage_cli.pipeline.models.regions import cut, exported
from tests.pipeline.test_inplace import with_kernels

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where lanes hold nothing

COUNT = STEPS + 4


def selected(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    h = torch.zeros(x.shape[0], u.shape[0])
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] @ w + h @ u)
    return h


def taken_apart(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    h = torch.zeros(x.shape[0], u.shape[0])
    for step in x.unbind(1):
        h = torch.tanh(step @ w + h @ u)
    return h


def in_chunks(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    state, found = u, []
    for start in range(0, x.shape[1], 2):
        some = x[:, start : start + 2]
        found.append(some @ state)
        state = state * 0.5 + torch.einsum("btk,btv->kv", some, some) * w
    return torch.cat(found, 1)


def given(steps: int) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(2, steps, 32), torch.randn(32, 32) / 6, torch.randn(32, 32) / 6


@pytest.mark.parametrize(
    ("loop", "steps"),
    [(selected, COUNT), (taken_apart, COUNT), (in_chunks, 2 * COUNT)],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_more_steps_are_no_more_regions(loop: Callable[..., Tensor], steps: int) -> None:
    with torch.no_grad():
        few, many = (cut(exported(as_module(loop), given(n))) for n in (steps, 2 * steps))
    assert few.left == many.left == {}
    assert len(many.regions) <= len(few.regions) < COUNT
    assert max(r.times for r in many.regions) >= COUNT // 2


def test_each_step_is_given_its_own_part() -> None:
    inputs = given(COUNT)
    found, faster = with_kernels(as_module(taken_apart), inputs)
    assert len(found.regions) < COUNT
    torch.testing.assert_close(faster(*inputs), taken_apart(*inputs))


def gated(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """A delta rule, of which each step has a gate for each head, and a rate for all."""
    keys, state, found = x * 0.2, u, []
    gate, rate = torch.sigmoid(x.sum(-1)), w[0, : x.shape[1]].exp()
    for t in range(x.shape[1]):
        k = keys[:, t]
        state = state * gate[:, t, None].mean(0) + rate[t] * torch.einsum("bk,bv->kv", k, x[:, t] - k @ state)
        found.append(k @ state)
    return torch.stack(found, 1)


def test_gates_that_lie_close_are_copied_apart() -> None:
    inputs = given(COUNT)
    with torch.no_grad():
        few, many = (cut(exported(as_module(gated), given(n))) for n in (COUNT, 2 * COUNT))
    assert few.left == many.left == {}
    assert len(many.regions) <= len(few.regions) < COUNT
    pads = many.model.graph.find_nodes(op="call_function", target=torch.ops.aten.constant_pad_nd.default)
    assert len(pads) == 2, "once for the gates, once for the rates"
    _, faster = with_kernels(as_module(gated), inputs)
    torch.testing.assert_close(faster(*inputs), gated(*inputs))


def filled(x: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Fills what it returns step by step, and reads back what the step has written."""
    count = x.shape[1]
    out, kept, h = torch.zeros(count + 1, 2, 32), torch.zeros(2, count, 32), torch.zeros(2, 32)
    for t in range(count):
        kept[:, t] = torch.tanh(x[:, t] @ w + h @ u)
        h = kept[:, t] * 0.5
        out[count - t] = h
    return out, kept


def test_what_is_filled_in_many_parts_is_written_once() -> None:
    inputs = given(COUNT)
    with torch.no_grad():
        few, many = (cut(exported(as_module(filled), given(n))) for n in (COUNT, 40))
    assert len(many.regions) <= len(few.regions) < COUNT
    scatters = [n for n in many.model.graph.nodes if "scatter" in str(n.target)]
    assert not scatters
    assert "a concatenation of more than 32 parts" in many.left.values()
    assert max(len(r.program.outputs) for r in many.regions) <= 4, "parts are no copies for PyTorch's concatenation"
    _, faster = with_kernels(as_module(filled), inputs)
    torch.testing.assert_close(faster(*inputs), filled(*inputs))


def read_after_all(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """What is read between is not as it is at the end, and places are written twice."""
    out = torch.zeros(COUNT, 2, 32)
    for t in range(COUNT):
        out[t] = x[:, t] @ w + out.sum(0)
    for t in range(COUNT):
        out[t % 5] = out[t] * 0.1 + u[:2]
    return out


def test_what_is_read_between_parts_is_as_it_was_there() -> None:
    inputs = given(COUNT)
    _, faster = with_kernels(as_module(read_after_all), inputs)
    torch.testing.assert_close(faster(*inputs), read_after_all(*inputs), rtol=1e-3, atol=1e-3)


def test_results_that_are_parts_of_one_another_stay_so() -> None:
    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.zeros(COUNT, 2, 32)
        for t in range(COUNT):
            out[t] = x[:, t] * 2
        return out, out[COUNT - 1]

    x = given(COUNT)[0]
    with torch.no_grad():
        found = cut(exported(as_module(parts), (x,)))
    out, last = found.model(x)
    torch.testing.assert_close((out, last), parts(x))
    last.zero_()
    assert out[-1].count_nonzero() == 0


def converted(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """Each step's part is converted, and read by two."""
    half, h = x.half(), u
    for t in range(x.shape[1]):
        k = half[:, t].float()
        h = torch.tanh(h + torch.einsum("bk,bv->kv", k, torch.tanh(k @ w)))
    return h


def test_conversions_of_a_steps_part_are_in_its_regions() -> None:
    with torch.no_grad():
        found = cut(exported(as_module(converted), given(COUNT)))
    outside = [n for n in found.model.graph.nodes if n.op == "call_function" and "to_copy" in str(n.target)]
    assert len(outside) <= 1, "of the whole"


def decayed(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """What a step makes of its part alone stands in the step, though its gate is a copy's."""
    gate, h = torch.sigmoid(x.sum(-1)), u
    for t in range(x.shape[1]):
        h = torch.einsum("bk,bv->kv", x[:, t].exp(), gate[:, t, None] * (x[:, t] @ h)) * 0.1 + w
    return h


def test_what_depends_on_a_steps_part_alone_is_in_the_steps_region() -> None:
    with torch.no_grad():
        found = cut(exported(as_module(decayed), given(4 * COUNT)))
    assert max(r.times for r in found.regions) >= COUNT
    assert max(len(r.program.outputs) for r in found.regions) <= 2


def records(x: Tensor) -> Tensor:
    return sum(x[:, :, i].tanh() for i in range(32))  # type: ignore[return-value]


def few_steps(x: Tensor) -> Tensor:
    return sum(x[:, i].tanh() for i in range(STEPS))  # type: ignore[return-value]


@pytest.mark.parametrize("function", [records, few_steps])
def test_other_views_stay_with_what_reads_them(function: Callable[[Tensor], Tensor]) -> None:
    """Numbers that lie side by side, and a few steps."""
    model = exported(as_module(function), (torch.randn(2, COUNT, 32),))
    before = str(model.graph)
    assert not steps_apart(model.graph)
    assert str(model.graph) == before


def steps_of_steps(x: Tensor, y: Tensor) -> Tensor:
    found = y
    for i in range(COUNT):
        for j in range(COUNT):
            found = torch.tanh(found + x[i][j] * x[j][i])
    return found


def test_steps_may_have_steps() -> None:
    inputs = torch.randn(COUNT, COUNT, 32), torch.randn(32)
    model = exported(as_module(steps_of_steps), inputs)
    assert steps_apart(model.graph)
    model.graph.lint()
    model.recompile()
    assert torch.equal(model(*inputs), steps_of_steps(*inputs))


class Changing(nn.Module):
    """Reads all rows of a tensor step by step, before and behind changes of one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.randn(2, COUNT, 32))

    def forward(self, x: Tensor) -> Tensor:
        for at in (3, 5):
            for i in range(COUNT):
                x = torch.tanh(x + self.rows[:, i])
            self.rows[:, at] = x
        for i in range(COUNT):
            x = torch.tanh(x * self.rows[:, i])
        return x


def test_steps_see_what_lies_in_memory_by_then() -> None:
    torch.manual_seed(0)
    eager = Changing()
    model = copy.deepcopy(eager)
    _, faster = with_kernels(model, (torch.randn(2, 32),))
    for _ in range(2):
        x = torch.randn(2, 32)
        torch.testing.assert_close(faster(x), eager(x))
        torch.testing.assert_close(model.rows, eager.rows)
