"""Models whose sizes differ by call: dynamic axes of their regions."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention, silu

import mirage_cli
from mirage_cli.ir.program import Range
from mirage_cli.pipeline import backend
from mirage_cli.pipeline.callers import Kernel, faster_than_eager, slow
from mirage_cli.pipeline.models import region as region_module
from mirage_cli.pipeline.models.agreement import NotRunError, Sample, agrees
from mirage_cli.pipeline.models.anysize import in_range
from mirage_cli.pipeline.models.inplace import calls
from mirage_cli.pipeline.models.model import Replaced, as_module, gain_of
from mirage_cli.pipeline.models.regions import Cut, attribute, cut, exported
from mirage_cli.pipeline.models.symbols import (
    Symbol,
    Times,
    found_in,
    is_size,
    length_of,
    sizes_first,
    two_each,
    valued,
)
from mirage_cli.pipeline.models.taken import table
from mirage_cli.spec.aten.memory import strides_of
from mirage_cli.spec.reader import parse_spec
from tests import forked

ROOT = Path(__file__).resolve().parents[2]


class Block(torch.nn.Module):
    """Heads are taken apart and put together again, which PyTorch writes with products of sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.wide, self.back = torch.nn.LayerNorm(32), torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b, t, _ = x.shape
        y = self.norm(x)
        heads = self.wide(y).view(b, t, 4, 16).transpose(1, 2).reshape(b * 4, t, 16)
        back = silu(heads).view(b, 4, t, 16).transpose(1, 2).reshape(b, t, 64)
        return x + self.back(back), y.mean(1)


BATCH, TOKENS = Dim("batch", min=1, max=64), Dim("tokens", min=2, max=500)


@cache
def block(*dims: Any) -> Cut:
    """The block with these sizes that differ by call, by position."""
    named = {i: d for i, d in enumerate(dims) if d is not None}
    return cut(exported(Block().eval(), (torch.randn(3, 10, 32),), (named,)))


def of(function: Any, *inputs: torch.Tensor, dynamic: Any) -> Cut:
    return cut(exported(as_module(function), inputs, (dynamic,)))


# -- from PyTorch's symbols to axes


@pytest.mark.parametrize(
    ("dims", "dynamic"),
    [
        ((BATCH,), [Range("a0", 1, 64)]),
        ((None, TOKENS), [Range("a1", 2, 500)]),
        ((BATCH, TOKENS), [Range("a0", 1, 64), Range("a1", 2, 500)]),
    ],
)
def test_a_size_that_differs_by_call_is_a_dynamic_axis(dims: Any, dynamic: list[Range]) -> None:
    found = block(*dims)
    (region,) = found.regions
    assert not found.left
    assert [*region.program.dynamic] == dynamic
    assert [(s.least, s.most) for s in region.sized] == [(r.least, r.most) for r in dynamic]


def test_the_example_is_among_the_sizes_to_tune_for() -> None:
    (region,) = block(BATCH).regions
    assert "a0: {min: 1, max: 64, tune: [1, 3, 16]}" in region.graph.text()
    (region,) = block(BATCH, TOKENS).regions
    assert "a0: {min: 1, max: 64, tune: [3, 16]}, a1: {min: 2, max: 500, tune: [10, 16]}" in region.graph.text()
    assert "instances: [{a0: 3, a1: 10}, {a0: 16, a1: 16}]" in region.graph.text()


@pytest.mark.parametrize("sizes", [(1, 2), (3, 10), (7, 61), (64, 500)])
def test_shapes_are_those_of_the_call(sizes: tuple[int, int]) -> None:
    found = block(BATCH, TOKENS)
    (region,) = found.regions
    x = torch.randn(*sizes, 32)
    given = [x if i == region.inputs[0].which else 0 for i in range(20)]
    named = region.sizes(given)
    assert region.serves(given, named)
    assert sorted(named.values()) == sorted(sizes)
    shapes = [[n.at(named) if isinstance(n, Times) else n for n in shape.whole] for shape in region.results]
    assert shapes == [[*y.shape] for y in found.model(x)]


def test_axes_that_are_one_are_joined_at_any_size() -> None:
    """Rows of a matrix: a batch of tokens, and of pictures with one number of places. Kernels are tuned for them."""
    linear, x = torch.nn.Linear(32, 48, bias=False), torch.randn(3, 10, 32)
    joined = "X0: {dims: [a0, a3], dtype: float32}"
    found = of(lambda x: linear(x) + 1, x, dynamic=({0: BATCH, 1: TOKENS},))
    (region,) = found.regions
    text = region.graph.text()
    assert "a0: {min: 2, max: 32000, tune: [16, 30, 256, 4096]}" in text and joined in text and "a1" not in text
    assert agrees(attribute(found.model, region.module), region)
    (pictures,) = of(lambda x: linear(x) + 1, x, dynamic=({0: BATCH},)).regions
    assert "a0: {min: 10, max: 640, tune: [16, 30, 256]}" in pictures.graph.text() and joined in pictures.graph.text()


def test_what_makes_several_tensors_is_not_refused_for_a_neighbour() -> None:
    """Of a part that is refused, the norm alone is asked for with what takes its first result."""
    w, g, x = torch.randn(4, 1, 2), torch.randn(4), torch.randn(3, 4, 10)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.native_layer_norm(x.transpose(1, 2), [4], g, g, 1e-5)[0]
        return silu(y) + torch.conv1d(x, w, stride=2, groups=4).sum()

    left = of(function, x, dynamic=({0: BATCH, 2: TOKENS},)).left
    assert {name.split()[0] for name in left} == {"aten.conv1d", "aten.sum"}


def test_axes_that_are_not_always_one_stay_apart() -> None:
    """One is summed alone, or masked by its position; another is innermost, and its elements lie side by side."""
    x = torch.randn(3, 10, 32)
    for f in (lambda x: x.exp().sum(1), lambda x: x.exp() * torch.arange(x.shape[1])[:, None]):
        (region,) = of(f, x, dynamic=({0: BATCH, 1: TOKENS},)).regions
        assert len(region.program.dynamic) == 2
    (region,) = of(lambda x: silu(x) + 1, x, dynamic=({0: BATCH},)).regions
    assert [*region.program.dynamic] == [Range("a0", 1, 64)]


def test_a_product_is_stored_that_attention_would_compute_twice() -> None:
    """Along queries and along keys, which are two axes where their number differs by call."""
    torch.manual_seed(0)
    wide = torch.nn.Linear(32, 96, bias=False)

    def function(x: torch.Tensor) -> torch.Tensor:
        q, k, v = wide(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    found = of(function, torch.randn(2, 10, 32), dynamic=({0: BATCH, 1: TOKENS},))
    assert [[x.which for x in r.inputs] for r in found.regions] == [[0, 1], [0, 0]] and not found.left
    projection, attention = (r.graph.text() for r in found.regions)
    assert projection.count("dot(") == 1 and attention.count("dot(") == 2
    assert "instances: [{a0: 2, a1: 10, a5: 10}, {a0: 16, a1: 16, a5: 16}]" in attention
    assert all(agrees(attribute(found.model, r.module), r) for r in found.regions)


def test_queries_and_keys_of_one_size_are_two_axes() -> None:
    q = torch.randn(2, 4, 10, 16)
    found = of(scaled_dot_product_attention, q, q + 1, q + 2, dynamic=({2: TOKENS},) * 3)
    (region,) = found.regions
    assert len(region.program.dynamic) == 2
    assert {*region.axes.values()} == {Times(1, (region.sized[0].symbol,))}


def test_a_tensor_beside_itself_is_given_twice() -> None:
    """A program says the size of an axis once: rows and columns of a Gram matrix are two axes, of two inputs."""
    found = of(lambda x: x.exp() @ x.t(), torch.randn(10, 24), dynamic=({0: BATCH},))
    (region,) = found.regions
    assert len(region.program.dynamic) == 2 and [x.which for x in region.inputs] == [0, 0] and not found.left
    assert agrees(attribute(found.model, region.module), region)


def test_whole_numbers_and_masks_beside_themselves() -> None:
    """The mask of documents that are packed, and of tokens that count."""

    def function(x: torch.Tensor, document: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        seen = (document[:, None] == document) & kept & (document[:, None] < 5)
        return (x @ x.t()).masked_fill(~seen, 0)

    inputs = torch.randn(10, 24), torch.randint(0, 3, (10,), dtype=torch.int32), torch.randn(10) > 0
    found = of(function, *inputs, dynamic=({0: BATCH},) * 3)
    assert found.regions and not found.left
    assert all(agrees(attribute(found.model, r.module), r) for r in found.regions)


def test_what_is_summed_along_the_other_axis_stays_summed() -> None:
    """The sums of rows, along the columns that they are sums over."""

    def normalised(x: torch.Tensor) -> torch.Tensor:
        near = (x @ x.t()).relu()
        sums = near.sum(1)
        return near * sums[:, None] * sums

    found = of(normalised, torch.randn(10, 24), dynamic=({0: BATCH},))
    assert found.regions and not found.left
    assert all(agrees(attribute(found.model, r.module), r) for r in found.regions)


def test_attention_within_a_sequence_of_any_length_is_in_a_region() -> None:
    """Queries, keys and values are parts of one product."""

    def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ w).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    found = of(attention, torch.randn(2, 10, 16), torch.randn(16, 96), dynamic=({0: BATCH, 1: TOKENS}, None))
    assert found.regions and not found.left
    assert all(agrees(attribute(found.model, r.module), r) for r in found.regions)


def test_a_size_that_is_made_of_others_is_told_by_its_axis() -> None:
    """Of a cache that has grown by one."""
    inputs = torch.randn(6, 8), torch.randn(7, 8)
    found = of(lambda x, k: (x.square(), silu(k).sum(0)), *inputs, dynamic=({0: BATCH}, {0: BATCH + 1}))
    assert not found.left
    (own,) = (r for r in found.regions for n in r.axes.values() if "+" in str(n))
    ranges = {s.symbol: (s.input, s.axis, s.least, s.most) for s in own.sized}
    assert ranges[next(s for n in own.axes.values() for s in n.symbols if "+" in s)][1:] == (0, 2, 65)


def test_what_is_another_program_at_other_sizes_is_left_alone() -> None:
    """And not what is in a region with it."""

    def function(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return silu(x @ w), torch.cat([k, x[:1]]) + 1

    found = of(function, torch.randn(6, 8), torch.randn(8, 8), torch.randn(10, 8), dynamic=(None, None, {0: TOKENS}))
    assert [name.split()[0] for name in found.left] == ["aten.cat"]
    assert any("dot(" in line for r in found.regions for line in r.graph.statements())


def cuts_of(monkeypatch: pytest.MonkeyPatch) -> list[Cut]:
    """What becomes of the graphs that are compiled from now on."""
    cuts: list[Cut] = []
    monkeypatch.setattr(backend, "runs_on", lambda _: True)
    monkeypatch.setattr(backend, "with_kernels", lambda graph, _: cuts.append(cut(copy.deepcopy(graph))) or {})
    torch._dynamo.reset()
    return cuts


def test_derivatives_at_any_size_are_in_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of weights multiply matrices whose rows are as many as the batch times the tokens."""
    cuts = cuts_of(monkeypatch)
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 6), torch.nn.GELU(), torch.nn.Linear(6, 8))
    compiled = torch.compile(model, backend="mirage", dynamic=True)
    for b, t in ((3, 5), (4, 7)):
        x = torch.randn(b, t, 8, requires_grad=True)
        read = [x, *model.parameters()]
        found, expected = (torch.autograd.grad((x + f(x)).square().sum(), read) for f in (compiled, model))
        torch.testing.assert_close(found, expected)
    assert len(cuts) == 2 and all(c.regions and not c.left for c in cuts)


@torch.no_grad()
def test_keys_and_values_have_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch's own attention does not say where their sizes differ by call."""
    cuts = cuts_of(monkeypatch)
    compiled = torch.compile(scaled_dot_product_attention, backend="mirage")
    for n in (5, 6):
        compiled(torch.randn(1, 2, 1, 8), *torch.randn(2, 1, 2, n, 8))
    assert len(cuts) == 2 and all(c.regions and not c.left for c in cuts)


def test_no_size_waits_for_a_result() -> None:
    """A size that PyTorch takes from a result is taken from the input: no region ends in front of it."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = silu(x @ w)
        return y.view(y.shape[0] * 4, -1).exp()

    found = of(function, torch.randn(6, 8), torch.randn(8, 32), dynamic=({0: BATCH}, None))
    assert [region.times for region in found.regions] == [1] and not found.left


def test_sizes_stand_in_front_in_their_order() -> None:
    model = exported(as_module(lambda x: x.exp().view(x.shape[0] * 4, -1)), (torch.randn(6, 8),), (({0: BATCH},),))
    for node in model.graph.find_nodes(op="call_module", target="_guards_fn"):
        model.graph.erase_node(node)
    sizes_first(model.graph)
    model.graph.lint()
    names = [n.name for n in model.graph.nodes if is_size(n)]
    assert len(names) == 2
    assert [n.name for n in model.graph.nodes if n.op == "call_function"][:2] == names


def test_what_is_not_proven_of_sizes_is_checked_by_the_call() -> None:
    """That it is at most 64·t is what no PyTorch proves of t·t."""

    def function(x: torch.Tensor) -> torch.Tensor:
        t = x.shape[1]
        return (x.exp() * 2).relu() if torch.sym_min(64 * t, t * t) == t * t else x

    x = torch.randn(3, 10, 32)
    found = of(function, x, dynamic=({1: TOKENS},))
    assert [r.times for r in found.regions] == [1] and not found.left
    assert [s.operator for s in found.shares] == ["aten.exp", "aten.mul", "aten.relu"]
    y = torch.randn(3, 64, 32)
    torch.testing.assert_close(found.model(y), function(y))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        found.model(torch.randn(3, 65, 32))


def test_equal_layers_of_any_size_are_one_region() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.SiLU()) for _ in range(6)))
    for p in layers.parameters():
        torch.nn.init.constant_(p, 0.1)
    found = cut(exported(layers.eval(), (torch.randn(5, 32),), ({0: BATCH},)))
    assert [r.times for r in found.regions] == [2]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x.exp() / (x.shape[0] + 2), "another program at other sizes"),
        (lambda x: x.exp() * (x.shape[0] % 2), "no sum of products"),
        (lambda x: x.exp() + x.shape[0] // 100, "no sum of products"),
        (lambda x: x.exp() + max(x.shape[0], 99), "no sum of products"),
        (lambda x: x.exp() + x.shape[0] * (x.shape[0] - 120), "no sum of products"),
        (lambda x: x.exp() * (x.shape[0] * 0.5 + 1), ""),
    ],
)
def test_what_follows_from_a_size_otherwise_is_pytorchs(function: Any, why: str) -> None:
    found = of(function, torch.randn(10, 24), dynamic=({0: BATCH},))
    assert any(why in reason for reason in found.left.values()), found.left
    statements = [x for r in found.regions for x in r.graph.statements()]
    assert not any(operator in x for operator in ("dot", "+", "*", "/") for x in statements)
    for n in (2, 24, 61):
        x = torch.randn(n, 24)
        torch.testing.assert_close(found.model(x), function(x))


def test_a_size_that_is_like_a_prime_is_none_of_the_axis() -> None:
    """An axis of 61 positions is not the one that has 61 where it is traced."""
    found = of(lambda x, y: silu(x) * y, torch.randn(5, 61), torch.randn(61), dynamic=({0: BATCH}, None))
    (region,) = found.regions
    assert [r.dim for r in region.program.dynamic] == ["a0"]
    assert region.program.sizes["a1"] == 61


def test_tensors_have_no_more_elements_than_kernels_count() -> None:
    wide = Dim("wide", min=1, max=1 << 20)
    found = of(lambda x: silu(x) + 1, torch.randn(3, 1 << 16), dynamic=({0: wide},))
    (region,) = found.regions
    assert region.sized[0].most * (1 << 16) < 1 << 31 <= 2 * region.sized[0].most * (1 << 16)


def test_a_program_that_is_wrong_at_other_sizes_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = block(BATCH)
    (region,) = found.regions
    module = attribute(found.model, region.module)
    assert agrees(module, region)
    monkeypatch.setattr(
        region_module, "at_sizes", lambda lengths, _: [n.number if isinstance(n, Times) else n for n in lengths]
    )
    with pytest.raises(NotRunError):
        agrees(module, region)


# -- sizes by division


@pytest.mark.parametrize(
    ("of_two", "found"),
    [
        ((32, 32), 32),
        ((61, 67), Times(1, ("b",))),
        ((4 * 61, 4 * 67), Times(4, ("b",))),
        ((61 * 71 * 2, 67 * 73 * 2), Times(2, ("b", "t"))),
        ((61 * 61, 67 * 67), Times(1, ("b", "b"))),
        ((62, 68), None),
        ((30, 33), None),
    ],
)
def test_a_length_is_a_number_times_symbols(of_two: tuple[int, int], found: Any) -> None:
    assert length_of(of_two, {"b": (61, 67), "t": (71, 73)}) == found


def test_sizes_to_trace_at_are_different_primes_in_the_ranges() -> None:
    pairs = two_each({"b": (1, 32), "t": (1, 1 << 16), "c": (20, 32), "d": (4, 4)})
    assert pairs["b"] == (29, 31) and pairs["t"] == (89, 97) and pairs["c"][0] < pairs["c"][1]
    assert len({p for pair in pairs.values() for p in pair}) == 8
    assert len(two_each({str(i): (1, 99) for i in range(20)})) == 12


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("wrong_at", [lambda n: n > 60, lambda n: n < 8])
def test_each_size_is_compared_when_it_is_large_and_when_it_is_small(
    axis: int, wrong_at: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is another one at some sizes alone is refused."""
    found = block(BATCH, TOKENS)
    (region,) = found.regions
    module = attribute(found.model, region.module)
    made_by = Sample.made_by

    def made(sample: Sample, module: Any) -> Any:
        off = 1.0 if wrong_at([*sample.sizes.values()][axis]) else 0.0
        return [y + off for y in made_by(sample, module) or []]

    assert agrees(module, region)
    monkeypatch.setattr(Sample, "made_by", made)
    assert not agrees(module, region)


def test_ranges_are_cut_where_kernels_no_longer_count() -> None:
    symbols = {"b": Symbol(1, 1 << 16, 4), "t": Symbol(1, 1 << 16, None)}
    ranges = in_range(symbols, [Times(4096, ("b", "t")), 7])
    assert 4096 * ranges["b"][1] * ranges["t"][1] < 1 << 31
    assert min(most for _, most in ranges.values()) >= 512


# -- who computes


class Original(torch.nn.Module):
    def forward(self, *_: Any) -> str:
        return "PyTorch's"


def test_pytorch_computes_at_sizes_that_kernels_are_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (region,) = of(lambda x: silu(x) + 1, torch.randn(3, 4, 5), dynamic=({0: BATCH},)).regions
    given: list[torch.Size] = []
    kernel: Any = SimpleNamespace(function=lambda x: (given.append(x.shape), x)[1], operator=None, slow=())
    module = Replaced(Original(), region, kernel)
    made = [module(torch.zeros(n, 4, 5)) for n in (0, 1, 64, 65)]
    assert [x if isinstance(x, str) else x.shape for x in made] == ["PyTorch's", (1, 4, 5), (64, 4, 5), "PyTorch's"]
    assert given == [(1, 20), (64, 20)] or given == [(1, 4, 5), (64, 4, 5)]


def test_pytorch_computes_at_sizes_at_which_it_is_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own program may have other names of axes."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    function = lambda x: silu(x) + 1  # noqa: E731
    (region,) = of(function, torch.randn(3, 4, 5), dynamic=({0: BATCH},)).regions
    text = region.graph.text().replace("a0", "rows")
    assert "rows: {min: 1, max: 64, tune: [1, 3, 16]}" in text and region.example == {"a0": 3}
    programs = parse_spec(text).programs()
    whole: Any = SimpleNamespace(times="", best=SimpleNamespace(us=1.0, eager_us=2.0))
    for fast, example, served in ((programs[:2], True, [1, 3]), (programs[2:], False, [4, 64]), ([], False, [])):
        kernel = Kernel(programs[2], whole, "", "", slow(programs, fast))
        monkeypatch.setattr(Kernel, "function", property(lambda _: lambda x: x.clone()))
        monkeypatch.setattr(Kernel, "operator", None)
        module = Replaced(Original(), region, kernel)
        made = {n: module(torch.zeros(n, 4, 5)) for n in (1, 3, 4, 64)}
        assert [n for n, y in made.items() if not isinstance(y, str)] == served
        assert (gain_of(region, kernel).kernel is not None) is example


def test_a_size_is_fast_where_it_has_a_kernel_that_is() -> None:
    def best(us: float, eager_us: float | None) -> Any:
        return SimpleNamespace(result=SimpleNamespace(best=SimpleNamespace(us=us, eager_us=eager_us)))

    assert [faster_than_eager(best(1.0, n)) for n in (2.0, 1.0, None)] == [True, False, True]
    assert not faster_than_eager(SimpleNamespace(result=SimpleNamespace(best=None)))  # type: ignore[arg-type]


class Scaled(torch.nn.Module):
    scale = 1e-3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return silu(x) * self.scale


def test_an_attribute_is_a_number_of_the_first_graph_and_an_input_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose values are in the CPU's memory."""
    inputs: list[list[torch.dtype]] = []

    def seen(model: torch.fx.GraphModule, _: object) -> dict[Any, Kernel]:
        values = [n.meta["val"] for n in model.graph.find_nodes(op="placeholder") if n.users]
        inputs.append([x.dtype for x in values if isinstance(x, torch.Tensor)])
        return {}

    monkeypatch.setattr(backend, "with_kernels", seen)
    torch.compiler.reset()
    model, x = Scaled(), torch.randn(3, 4)
    compiled = torch.compile(model, backend="mirage", dynamic=True)
    for scale, size in ((1e-3, 3), (1e-3, 5), (0.5, 5), (0.25, 7)):
        model.scale = scale
        torch.testing.assert_close(compiled(x[:1].expand(size, 4)), model(x[:1].expand(size, 4)))
    assert inputs == [[torch.float32], [torch.float32, torch.float64]]


# -- kernels, in a process that interprets them

SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import mirage_cli
from torch.export import Dim
from mirage_cli.pipeline import backend
from mirage_cli.pipeline.models import symbols
from mirage_cli.tune.triton_interpreter import like_a_gpu
like_a_gpu()

class Pooled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(16, 24)

    def forward(self, x):
        return torch.nn.functional.silu(self.wide(x)).mean(1)

torch.manual_seed(0)
model, db, found = Pooled().eval(), sys.argv[1], {}

def off(function, sizes):
    inputs = [torch.randn(b, t, 16) for b, t in sizes]
    return max(float((function(x) - model(x)).abs().max()) for x in inputs)

with torch.no_grad():
    said = []
    dims = {0: Dim("b", min=1, max=8), 1: Dim("t", min=1, max=40)}
    fast = mirage_cli.optimize(model, (torch.randn(3, 5, 16),), budget=60, db=db, dynamic=(dims,), say=said.append)
    found["said"] = said
    found["optimized"] = off(fast, [(1, 1), (1, 40), (8, 1), (3, 17), (8, 40)])
    with_kernels, graphs = backend.with_kernels, []
    backend.with_kernels = lambda *args, **options: (options or graphs.append(1), with_kernels(*args, **options))[1]
    symbols.MOST = 30
    dynamic = torch.compile(model, backend="mirage", options={"db": db, "tune": 5}, dynamic=True)
    call, called = backend.call, []
    backend.call = lambda *args: (called.append(len(graphs)), call(*args))[1]
    found["compiled"] = off(dynamic, [(3, 5), (2, 30), (30, 2), (5, 17)])
    found["graphs"] = len(graphs), len({*called})
    found["beyond"] = off(dynamic, [(31, 4), (4, 31), (5, 6)])
    found["graphs beyond"] = len(graphs), len({*called})
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("dynamic")
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = forked.ran((str(folder / "mirage.db"),), folder, env, SCRIPT, most_s=400)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_model_with_kernels_is_right_at_all_sizes(found: dict[str, Any]) -> None:
    assert [line for line in found["said"] if "PyTorch's" in line] == []
    assert found["optimized"] < 1e-5


def test_one_graph_serves_all_sizes_of_a_range(found: dict[str, Any]) -> None:
    assert found["graphs"] == [1, 1]
    assert 0 < found["compiled"] < 1e-5


def test_sizes_that_kernels_are_not_for_have_graphs_without_them(found: dict[str, Any]) -> None:
    assert found["beyond"] < 1e-5
    assert found["graphs beyond"] == [3, 1]


def test_optimize_takes_the_dimensions_of_a_functions_arguments() -> None:
    said: list[str] = []
    with torch.no_grad():
        fast = mirage_cli.optimize(
            lambda x: x / (x.shape[0] + 2), (torch.randn(5, 3),), dynamic=({0: BATCH},), say=said.append
        )
        for n in (2, 64):
            x = torch.randn(n, 3)
            torch.testing.assert_close(fast(x), x / (n + 2))
    assert any("another program at other sizes" in line for line in said)


def test_a_number_without_bounds_is_a_size_from_one_on() -> None:
    """An argument of Python's that differs by call may be negative too. Kernels are for those that sizes may be."""
    cuts: list[Cut] = []

    def compiler(graph: torch.fx.GraphModule, _: object) -> Any:
        cuts.append(cut(graph))
        return make_boxed_func(graph.forward)

    def function(x: torch.Tensor, w: int) -> torch.Tensor:
        return x.exp() + x.tril(w)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler, inference_compiler=compiler)
    x = torch.randn(5, 7)
    with torch.no_grad():
        found = torch.compile(function, backend=backend, dynamic=True)(x, -2)
    torch.testing.assert_close(found, function(x, -2))
    assert cuts


def test_sizes_that_depend_on_numbers_are_counted_at_the_largest() -> None:
    x = torch.randn(8, 8)
    found = cut(exported(as_module(lambda x: torch.relu(x[x[:, 0] > 0] @ x)), (x,)))
    assert {r.operator: r.nodes for r in found.shares} == {
        "aten.matmul": (1, 1),
        "aten.index": (1, 0),
        "aten.relu": (1, 1),
        "aten.gt": (1, 1),
    }
    (relu,) = [r for r in found.shares if r.operator == "aten.relu"]
    assert relu.moved_bytes[0] == 2 * 4 * 8 * 8, "x has 8 rows to pick from"


def test_differences_of_positions_fit_at_all_sizes_of_kernels() -> None:
    def biased(x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[1])
        return x @ x.mT - ((at[:, None] - at) * 3).abs().float()

    x = torch.randn(2, 10, 8)
    found = of(biased, x, dynamic=({1: TOKENS},))
    assert found.left == {} and len(found.regions) == 1
    torch.testing.assert_close(found.model(x), biased(x))


def test_positions_that_make_a_table_are_still_those_of_masks() -> None:
    """Of what no argument says the size, PyTorch makes the first numbers alone."""

    def causal(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.arange(x.shape[1])
        angles = torch.cos(at.float()[:, None] * w.sort().values)
        return angles, (x @ x.mT).masked_fill(at[:, None] < at, -torch.inf).softmax(-1)

    x, w = torch.randn(2, 10, 8), torch.randn(4)
    found = of(causal, x, w, dynamic=({1: TOKENS}, None))
    assert {n.split()[0] for n in found.left} == {
        "aten.sort",
        "aten.arange",
    }  # the table's, of which PyTorch makes floats
    assert [r.graph.text().count("index(") for r in found.regions if "softmax" in r.graph.text()] == [2]
    for y, expected in zip(found.model(x, w), causal(x, w), strict=True):
        torch.testing.assert_close(y, expected)


def test_a_concatenation_along_a_size_that_differs_is_at_fault() -> None:
    """One along another axis, as long as such a size may be, is in a region."""

    def packed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[1]).expand(x.shape[0], -1)
        first = torch.diff(at, prepend=at[:, :1] - 1) != 1
        y = torch.cat([x, x @ w], -1)
        return (y @ y.mT).masked_fill((at[:, :, None] < at[:, None]) | first[:, None], -torch.inf).softmax(-1)

    x, w = torch.randn(2, 10, 7), torch.randn(7, 5)
    found = of(packed, x, w, dynamic=({1: Dim("few", min=2, max=12)}, None))
    assert [why for n, why in found.left.items() if "cat" in n] == [
        "a concatenation along an axis whose size differs by call"
    ]
    assert any("softmax" in r.graph.text() for r in found.regions)
    torch.testing.assert_close(found.model(x, w), packed(x, w))


def test_gaps_that_differ_by_call_are_not_read() -> None:
    """The last of all tokens, of what PyTorch makes: its rows lie as far apart as there are tokens."""

    def last(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.sort(1).values[:, -1] @ w)

    w = torch.randn(8, 16)
    found = cut(exported(as_module(last), (torch.randn(2, 5, 8), w), (({1: TOKENS}, None),)))
    assert [*found.left] == ["aten.sort (sort)"] and len(found.regions) == 1
    for n in (2, 9):
        x = torch.randn(2, n, 8)
        torch.testing.assert_close(found.model(x, w), last(x, w))


def test_an_argument_is_copied_where_its_gaps_differ_by_call() -> None:
    tokens = torch.randn(2, 5, 8)
    model = exported(as_module(lambda x: x[:, -1].exp()), (tokens,), (({1: TOKENS},),))
    (select,) = [
        n for n in calls(model.graph) if n.meta["val"].shape == (2, 8) and n.all_input_nodes[0].op == "placeholder"
    ]
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta = noted = dict(select.meta)
    assert isinstance(x.meta["val"].stride(0), torch.SymInt)
    assert strides_of(x) is None
    (name,) = found_in(model.graph.nodes)
    with valued([x], {name: 5}):
        assert x.meta["val"].stride() == (40, 1)
        assert strides_of(x) is None
        assert noted == select.meta, "an input of another graph shares it"
    assert x.meta is noted


def test_a_size_that_the_graphs_checks_settle_is_a_number() -> None:
    """bincount may make more elements than `minlength`. A quotient by them says that it does not."""

    def degrees(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return x / torch.bincount(ends, minlength=7).clamp(min=1)[:, None]

    x, ends = torch.randn(7, 6), torch.randint(0, 7, (15,))
    found = cut(exported(as_module(degrees), (x, ends)))
    assert "clamp" not in str(found.left)
    assert table(found.shares).splitlines()[-1].startswith("in all ")
    torch.testing.assert_close(found.model(x, ends), degrees(x, ends))
