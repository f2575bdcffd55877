"""Models, graphs and Mirage's tutorials in Python: what callers get, in Triton's interpreter."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import mirage_cli
from mirage_cli import mi
from mirage_cli.errors import GraphError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.precision import chosen_values
from mirage_cli.pipeline import backend
from mirage_cli.pipeline.models.inplace import calls
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.partition import level_parts, with_readers
from mirage_cli.pipeline.models.regions import (
    Cut,
    cut,
    exported,
    pytorchs_table,
)
from mirage_cli.pipeline.models.straight import Steps
from mirage_cli.pipeline.models.taken import table
from mirage_cli.spec.aten.trace import supported
from tests import forked
from tests.searched import searched
from tests.torch_programs import Attention, GatedMlp, rope_halves

ROOT = Path(__file__).parents[2]


class Layer(nn.Module):
    """A decoder's layer with grouped attention: nine products."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
        self.norm1, self.norm2, self.mlp = nn.RMSNorm(width), nn.RMSNorm(width), GatedMlp(width, 2 * width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        y = self.norm1(x)
        q, k, v = (w(y).view(b, t, -1, d // self.heads).transpose(1, 2) for w in (self.q, self.k, self.v))
        q, k = rope_halves(q, cos, sin), rope_halves(k, cos, sin)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


def decoder(layers: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Decoder(layers).eval(), (torch.randn(1, 6, 32), torch.randn(6, 8), torch.randn(6, 8))


@pytest.fixture(scope="module")
def regions() -> Cut:
    model, inputs = decoder(3)
    return cut(exported(model, inputs))


# -- regions


def test_equal_layers_are_the_same_regions(regions: Cut) -> None:
    assert regions.left == {}
    assert [r.times for r in regions.regions] == [3, 3, 3]


def test_what_regions_take_is_counted() -> None:
    """FLOPs of products; bytes of the rows that are looked up, and of what is written into a cache."""
    with torch.no_grad():
        found = cut(exported(Cached().eval(), (torch.randn(1, 1, 8), torch.tensor([5]))))
    rows = {r.operator: r for r in found.shares}
    assert rows["aten.scaled_dot_product_attention"].flops == (2 * 2 * (2 * 16 * 4),) * 2
    assert rows["aten.linear"].nodes == (2, 2)
    assert rows["aten.linear"].flops == (2 * 2 * 8 * 8,) * 2
    assert rows["aten.linear"].moved_bytes == (2 * 4 * (8 + 8 * 8 + 8 + 8),) * 2
    assert rows["aten.index_put_"].nodes == (1, 1)
    assert rows["aten.index_put_"].moved_bytes == (2 * (8 * 4 + 8),) * 2  # the keys, and their place
    assert table(found.shares).splitlines()[-1].startswith("in all ")
    words = cut(exported(nn.Sequential(nn.Embedding(1000, 4), nn.ReLU()), (torch.tensor([3, 4]),)))
    (embedding,) = (r for r in words.shares if r.operator == "aten.embedding")
    assert embedding.moved_bytes == (2 * 4 * 4 * 2 + 2 * 8,) * 2


def test_a_batch_norm_in_training_is_in_a_region_with_its_statistics() -> None:
    """PyTorch counts the batches itself: in whole numbers."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()).train()
    found = cut(exported(model, (torch.randn(5, 6),)))
    assert list(found.left) == ["aten.add (add)"]
    assert [len(r.results) for r in found.regions] == [3]


def test_products_of_one_input_are_in_one_region(regions: Cut) -> None:
    """The three projections, of weights that stay apart, with the norm in front."""
    text = regions.regions[0].graph.text()
    assert text.count("dot(") == 3
    assert "rsqrt" in text or "rms_norm" in text
    assert len(regions.regions[0].results) == 3


class Cached(nn.Module):
    """One step of attention that appends to a cache, which it reads as far as it is filled."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 2, 16, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k = (w(x).view(1, 1, 2, 4).transpose(1, 2) for w in (self.q, self.k))
        self.keys[:, :, at] = k
        seen = torch.arange(16) <= at[:, None]
        return nn.functional.scaled_dot_product_attention(q, self.keys, self.keys, seen)


def test_a_cache_stays_where_it_is() -> None:
    """The region of the products changes it in place; attention, which reads it, is another."""
    model, inputs = Cached().eval(), (torch.randn(1, 1, 8), torch.tensor([5]))
    with torch.no_grad():
        found = cut(exported(model, inputs))
        assert found.left == {}
        assert "copy_" not in found.model.code
        assert "{inout: X" in found.regions[0].graph.text()
        assert [r.graph.text().count("dot(") for r in found.regions] == [2, 2]
        assert "index(" in found.regions[1].graph.text()  # the mask is made anew of the position, and not read
        expected = model(*inputs)
        kept = model.keys.clone()
        model.keys.zero_()
        torch.testing.assert_close(found.model(*inputs), expected)
        assert torch.equal(model.keys, kept)
        assert kept[:, :, 5].any()


def test_a_cache_that_is_read_in_front_of_its_change_too_becomes_a_new_one() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sums", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.sums * 2
            self.sums.add_(x)
            return before + self.sums

    model = Model()
    found = cut(exported(model, (torch.ones(3),)))
    torch.testing.assert_close(found.model(torch.ones(3)), torch.full((3,), 4.0))
    torch.testing.assert_close(model.sums, torch.full((3,), 2.0))


def test_what_needs_other_places_of_a_product_is_another_region(regions: Cut) -> None:
    """RoPE reads halves of heads that other blocks compute; norms sum what all of them compute."""
    projections, *others = [r.graph.text() for r in regions.regions]
    assert "index(" not in projections
    assert any("index(" in text for text in others)
    norms = [text for text in (projections, *others) if "rms_norm" in text]
    assert not [text for text in norms if "dot(" in text.partition("rms_norm")[0]]


def test_what_an_unknown_operator_makes_of_numbers_alone_is_held() -> None:
    """Places above the diagonal are a table of the model's. What is drawn is drawn by each call."""
    rows, columns = torch.triu_indices(4, 4, 1)

    def function(x: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.triu_indices(4, 4, 1)
        return x[:, rows, columns] * 2

    x = torch.randn(3, 4, 4)
    found = cut(exported(as_module(function), (x,)))
    assert found.left == {} and len(found.regions) == 1
    torch.testing.assert_close(found.model(x), x[:, rows, columns] * 2)
    drawn = cut(exported(as_module(lambda x: x * torch.rand(4)), (x,)))
    assert "aten.rand" in str(drawn.left)


@pytest.mark.parametrize(
    "view",
    [lambda y: y[:, ::2], lambda y: y.T[1:], lambda y: y.split(4, 1)[1], lambda y: y[1].expand(3, 8)],
)
def test_memory_is_read_by_strides_where_a_view_lies(view: Any) -> None:
    """Not where a kernel would store the elements of the view, without gaps."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(view(x * 2), (2, 3), (9, 2)) + 1

    x = torch.randn(4, 8)
    found = cut(exported(as_module(function), (x,)))
    assert found.left == {} and len(found.regions) == 1
    torch.testing.assert_close(found.model(x), function(x))


def test_memory_that_pytorch_reads_by_strides_is_that_of_the_whole() -> None:
    """A result of a region may lie elsewhere than the tensor that a view of it had gaps in."""
    x = torch.randn(4, 8)
    found = cut(exported(as_module(lambda x: torch.as_strided((x * 2)[:, 1::2], (2, 3), (9, 2), 40) + 1), (x[:, :7],)))
    (strided,) = [n for n in calls(found.model.graph) if n.target == torch.ops.aten.as_strided.default]
    assert "beyond" in str(found.left)
    assert strided.args[0].op == "call_module" and strided.args[3] == 40


@pytest.mark.parametrize(
    "read", [lambda x: torch.as_strided(x, (2, 3), (9, 2), 1), lambda x: torch.as_strided(x[1], (2, 3), (3, 1))]
)
def test_memory_of_an_argument_is_read_by_pytorch(read: Any) -> None:
    """It may lie otherwise in another call."""
    found = cut(exported(as_module(lambda x: read(x) * 2), (torch.randn(4, 8),)))
    assert "may lie otherwise" in str(found.left)


def test_counts_that_read_others_twice_are_copied_once_for_each_reader() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(5)
        for _ in range(30):
            places = (places * 2 + places // 2) % 7
        return (x @ x + places) @ x * places

    found = cut(exported(as_module(function), (torch.randn(5, 5),)))
    assert found.left == {}
    assert sum(len(r.program.eqns) for r in found.regions) < 400


def test_what_is_empty_is_put_in_front_of_nothing() -> None:
    """As caches are that transformers makes. Another type makes the whole one of that type."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nothing = torch.tensor([], dtype=x.dtype)
        return torch.cat([nothing, x], -2) * 2, torch.cat([x[:, :0], x, x], 1), torch.cat([nothing.double(), x]) * 2

    x = torch.randn(3, 5)
    found = cut(exported(as_module(function), (x,)))
    torch.testing.assert_close(found.model(x), function(x))
    assert {name.split(" ")[0] for name in found.left} == {"aten.cat", "aten.mul"}
    assert sum(len(r.results) for r in found.regions) == 2


def test_a_tensors_number_selects_by_a_look_up() -> None:
    """What is returned stays the view that it is."""

    def function(table: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * table[at] + table[:, at + 1].mean(), table[at]

    given = torch.randn(6, 6), torch.tensor(-2), torch.randn(4, 6)
    found = cut(exported(as_module(function), given))
    made, wanted = found.model(*given), function(*given)
    torch.testing.assert_close(made, wanted)
    assert {name.split(" ")[0] for name in found.left} == {"aten._local_scalar_dense"}
    with pytest.raises(RuntimeError, match=r"names no row|out of range"):
        found.model(given[0], torch.tensor(6), given[2])


def test_what_nothing_reads_is_not_computed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(45):
            y = y.sin()
        return x * 2

    (region,) = cut(exported(as_module(function), (torch.randn(3, 5),))).regions
    assert [e.op for e in region.program.eqns] == ["mul"]


def test_what_pytorch_alone_reads_is_no_kernels_work() -> None:
    """The view and the mask stay with the operator that is not known."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linalg.inv(x.mT.unflatten(0, (1, 3))), x * 2

    found = cut(exported(as_module(function), (torch.randn(3, 3),)))
    assert [len(r.results) for r in found.regions] == [1]


def test_a_model_is_cut_where_little_passes() -> None:
    wide = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 64), nn.Linear(64, 64))
    graph = exported(wide, (torch.randn(2048, 8),)).graph
    parts = level_parts([n for n in graph.nodes if n.op == "call_function"], ())
    assert [len(p) for p in parts] == [4, 2]  # behind the 4 numbers of each row


def test_many_operators_without_a_product_are_one_region() -> None:
    """Each region would read its inputs anew."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x * torch.sigmoid(x + 1).rsqrt() - x.exp()
        return x @ w

    graph = exported(as_module(function), (torch.randn(512, 8), torch.randn(8, 8))).graph
    parts = level_parts([n for n in graph.nodes if n.op == "call_function"], ())
    assert [len(p) for p in parts] == [36, 1]


def test_what_is_not_known_is_named() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sort(x.softmax(-1) * 2, -1).values.relu()

    found = cut(exported(Model(), (torch.randn(3, 4),)))
    assert [*found.left.values()] == ["no operator that is known here"]
    assert len(found.regions) == 2
    x = torch.randn(3, 4)
    torch.testing.assert_close(found.model(x), Model()(x))


class Modes(nn.Module):
    """A part that is not trained, and one that computes in another type."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            y = self.frozen(x).relu()
            with torch.enable_grad():
                z = self.frozen(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.trained(y) * 2, z


@pytest.mark.parametrize("gradients", [True, False])
def test_parts_without_gradient_or_under_autocast_are_in_regions(gradients: bool) -> None:
    model, x = Modes(), torch.randn(3, 4)
    with torch.set_grad_enabled(gradients):
        found = cut(exported(model, (x,)))
    assert not found.left
    for made in (found.model, model):
        for p in model.parameters():
            p.grad = None
        y, z = made(x)
        y.sum().backward()
        assert y.dtype == torch.bfloat16
        assert model.frozen.weight.grad is None and model.trained.weight.grad is not None
        z.sum().backward()
        assert model.frozen.weight.grad is not None
    torch.testing.assert_close(found.model(x), model(x))


def test_decompositions_are_listed_once_but_for_operators_that_are_registered_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed: list[int] = []
    list_all = torch.export.default_decompositions
    monkeypatch.setattr(torch.export, "default_decompositions", lambda: listed.append(1) or list_all())
    pytorchs_table.cache_clear()
    x = torch.randn(3, 4)
    for function in (torch.nn.functional.softshrink, torch.nn.functional.hardswish) * 2:
        made = exported(as_module(function), (x,))
        assert all(map(supported, calls(made.graph)))
    assert len(listed) == 1
    with torch.library._scoped_library("registered_later", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        made = exported(as_module(lambda x: torch.ops.registered_later.twice(x)), (x,))
        assert [n.target for n in calls(made.graph)] == [torch.ops.aten.add.Tensor]
    exported(as_module(lambda x: x * 2), (x,))
    assert len(listed) == 2


# -- kernels, in a process that interprets them

SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import mirage_cli
from contextlib import contextmanager
from mirage_cli import Graph, dot, mi, silu
from mirage_cli.pipeline import backend
from mirage_cli.pipeline.models.beside import given_to
from mirage_cli.pipeline.callers import known_to_inductor
from mirage_cli.store.store import Database
from tests.pipeline.test_torch import decoder
from mirage_cli.tune.triton_interpreter import like_a_gpu
from torch._inductor.lowering import lowerings

@contextmanager
def monkeypatched(module, name, calls):
    original = getattr(module, name)
    setattr(module, name, lambda *args: calls.append(name) or original(*args))
    yield
    setattr(module, name, original)

like_a_gpu()
db, found = sys.argv[1], {}
model, inputs = decoder(2)
said = []
with torch.no_grad():
    expected = model(*inputs)
    fast = mirage_cli.optimize(model, inputs, budget=25, db=db, say=said.append)
    found["optimize"] = float((fast(*inputs) - expected).abs().max())
    again = []
    mirage_cli.optimize(model, inputs, budget=25, db=db, say=again.append)
    found["said"] = said, again
    with Database(db) as store:
        searched = [r["n"] for r in store.rows("SELECT count(*) AS n FROM keys")]
    found["off"], found["calls"] = [], []
    for options in {"db": db}, {"db": db, "tune": 20}:
        torch._dynamo.reset()
        names = []
        with monkeypatched(backend, "call", names):
            compiled = torch.compile(model, backend="mirage", options=options)
            found["off"].append(float((compiled(*inputs) - expected).abs().max()))
        found["calls"].append(len(names))
    with Database(db) as store:
        found["searched"] = searched, [r["n"] for r in store.rows("SELECT count(*) AS n FROM keys")]
region, operator = fast.region_0, fast.region_0.operator
found["known"] = [operator in lowerings, (known_to_inductor(operator), operator in lowerings)[1]]
given = given_to(fast, ["region_0"], inputs)["region_0"].tensors
with torch.no_grad():
    several = [x if isinstance(x, tuple) else (x,) for x in (torch.compile(region)(*given), region(*given))]
    found["inductor"] = max(float((x - y).abs().max()) for x, y in zip(*several))
packed = torch.randn(6, 3, 20)
slices = packed[:, 0, :16], packed[:, 2, 4:]
sliced = mirage_cli.optimize(lambda a, b: torch.nn.functional.silu(a) * b, slices, budget=60, db=db, say=lambda _: None)
with torch.no_grad():
    expected = torch.nn.functional.silu(slices[0]) * slices[1]
    found["sliced"] = [float((sliced(*x) - expected).abs().max()) for x in (slices, [x.contiguous() for x in slices])]
found["strides"] = [given.strides for given in sliced.region_0.region.inputs]
x = inputs[0].clone().requires_grad_()
fast(x, *inputs[1:]).sum().backward()
found["gradient"] = x.grad is not None
seconds = []
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # others have no second derivative
    for function in (fast, model):
        (first,) = torch.autograd.grad(function(x, *inputs[1:]).sum(), x, create_graph=True)
        seconds += torch.autograd.grad(first.square().sum(), x)
found["second"] = float((seconds[0] - seconds[1]).abs().max() / seconds[1].abs().max())
for wrong, y in {"type": inputs[0].double(), "size": torch.randn(1, 7, 32)}.items():
    try:
        with torch.no_grad():
            fast(y, *inputs[1:])
    except Exception as error:
        found[wrong] = f"{type(error).__name__}: {error}"

class First(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.norm(x + torch.tanh(self.inner(x)))[:, 0])

rows, x = First(), torch.randn(2, 5, 8)
torch._dynamo.reset()
gradients = []
for function in (torch.compile(rows, backend="mirage", options={"db": db, "tune": 3}), rows):
    rows.zero_grad()
    function(x).square().sum().backward()
    gradients.append([p.grad.clone() for p in rows.parameters()])
found["of a part"] = max(float((a - b).abs().max()) for a, b in zip(*gradients))

graph = mi.new_kernel_graph()
Q = graph.new_input(dims=(2, 16, 32), dtype=mi.float16)
K = graph.new_input(dims=(2, 32, 24), dtype=mi.float16)
V = graph.new_input(dims=(2, 24, 32), dtype=mi.float16)
E = graph.exp(graph.matmul(Q, K))
graph.matmul(graph.div(E, graph.reduction(E, 2)), V)
attention = graph.superoptimize(config="attention", budget=10, db=db)
torch.manual_seed(1)
q, k, v = (torch.randn(s).half() * 0.5 for s in ((2, 16, 32), (2, 32, 24), (2, 24, 32)))
exact = torch.softmax(q.double() @ k.double(), -1) @ v.double()
ways = {"list": attention([q, k, v]), "positions": attention(q, k, v), "named": attention(inputs=[q, k, v])}
for way, (y,) in ways.items():
    found[way] = float((y.double() - exact).abs().max())
try:
    attention(q, k, v[:1])
except ValueError as error:
    found["shape"] = str(error)

g = Graph("gated", dims={"m": 5, "k": 24, "n": 12}, dtype="float32")
X, W = g.input("X", "m", "k"), g.input("W", "k", "n")
g.output("O", silu(dot(X, W, "k")), "m", "n")
kernel = g.search(budget=10, db=db)
a, b = torch.randn(5, 24), torch.randn(24, 12)
found["graph"] = float((kernel.run(a, b) - torch.nn.functional.silu(a @ b)).abs().max())
found["explain"], found["export"] = kernel.explain(), kernel.export()[:40]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a script without `if __name__ == "__main__"` gets."""
    folder = tmp_path_factory.mktemp("callers")
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = forked.ran((str(folder / "mirage.db"),), folder, env, SCRIPT, most_s=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_model_with_kernels_is_the_same(found: dict[str, Any]) -> None:
    said, again = found["said"]
    assert found["optimize"] < 1e-5
    traced, shares, searched_for, *said = said
    assert (
        traced == "the model is traced"
        and searched_for
        == f"{len(said)} region{'s are' if len(said) > 1 else ' is'} searched and tuned, for 21 s in all"
    )
    assert shares.splitlines()[-1].endswith("100%")
    assert [" × 2: " in line for line in said] == [True] * len(said)
    assert not [line for line in said if "PyTorch's" in line]
    assert again == [traced, shares, searched_for, *said]  # of the database, and no search


def test_inductor_knows_the_operators_before_it_meets_them(found: dict[str, Any]) -> None:
    assert found["known"] == [False, True]
    assert found["inductor"] == 0.0


def test_slices_are_given_to_kernels_as_they_are(found: dict[str, Any]) -> None:
    assert found["strides"] == [[60, 1], [60, 1]]
    assert max(found["sliced"]) < 1e-5  # also where a call gives others


def test_the_backend_takes_what_was_found_and_searches_nothing_anew(found: dict[str, Any]) -> None:
    """AOTAutograd takes norms, projections and attention apart, which `torch.export` leaves whole."""
    assert max(found["off"]) < 1e-5
    said, _ = found["said"]
    regions = sum(line.startswith("region_") for line in said)
    assert found["calls"] == [2 * regions] * 2  # a call for each region of both layers
    before, after = found["searched"]
    assert before == after


def test_where_a_gradient_is_asked_for_pytorch_computes(found: dict[str, Any]) -> None:
    assert found["gradient"]
    assert found["second"] < 1e-4


def test_a_part_of_what_a_kernel_makes_is_kept_for_the_backward_graph(found: dict[str, Any]) -> None:
    assert found["of a part"] < 1e-5


def test_inputs_of_another_type_or_size_are_refused(found: dict[str, Any]) -> None:
    assert "float64" in found["type"] or "Double" in found["type"]
    assert "was [1, 6, 32] in the example" in found["size"]


@pytest.mark.parametrize("way", ["list", "positions", "named"])
def test_a_tutorial_runs(found: dict[str, Any], way: str) -> None:
    assert found[way] < 5e-3


def test_a_tensor_of_another_shape_is_refused_with_both(found: dict[str, Any]) -> None:
    assert found["shape"] == "X2 is declared with the shape (2, 24, 32), and given with (1, 24, 32)"


def test_a_graph_is_searched(found: dict[str, Any]) -> None:
    assert found["graph"] < 1e-5
    assert found["explain"].startswith("gated: ")
    assert "equal canonical forms" in found["explain"]
    assert found["export"].startswith('"""gated:')


# -- what goes without kernels


def test_a_backend_without_a_gpu_leaves_all_to_pytorch() -> None:
    model, inputs = decoder(1)
    with torch.no_grad():
        compiled = torch.compile(model, backend="mirage")
        torch.testing.assert_close(compiled(*inputs), model(*inputs))


def test_a_backend_trains() -> None:
    model, inputs = decoder(1)
    compiled = torch.compile(model, backend="mirage")
    gradients = []
    for run in (compiled, model):
        model.zero_grad()
        run(*inputs).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) == 9
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


class Classes(nn.Module):
    """A language model's head: tied rows, and words that do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(13, 8), nn.LayerNorm(8)

    def forward(self, i: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.words(i))[:, :6]
        return nn.functional.cross_entropy(h @ self.words.weight[:, 2:].T, target, ignore_index=-1)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.ones(12)), nn.Linear(12, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As GPUs compute `rms_norm`."""
        return self.out(torch.ops.aten._fused_rms_norm(x, [12], self.weight, 1e-6)[0]).mean(0)


def pictures(*layers: nn.Module) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(*layers), (torch.randn(2, 4, 7, 8, requires_grad=True),)


TRAINED: dict[str, Callable[[], tuple[Any, tuple[torch.Tensor, ...]]]] = {
    "activations": lambda: (
        nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6), nn.GELU(), nn.ELU(), nn.LogSigmoid(), nn.Softmax(-1)),
        (torch.randn(5, 8, requires_grad=True),),
    ),
    "classes": lambda: (Classes(), (torch.randint(0, 13, (6,)), torch.tensor([1, 2, -1, 4, 5, 12]))),
    "rms norm": lambda: (Scaled(), (torch.randn(4, 12, requires_grad=True),)),
    "convolutions": lambda: pictures(
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False), nn.GroupNorm(3, 6), nn.Hardswish(),
        nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, groups=2),
    ),
    "dilated": lambda: pictures(
        nn.Conv2d(4, 6, 3, dilation=(1, 2)), nn.SiLU(), nn.ConvTranspose2d(6, 4, 3, dilation=2),
    ),
    "of one axis": lambda: (
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3)), nn.LeakyReLU(), nn.Flatten()),
        (torch.randn(2, 3, 9),),
    ),
}  # fmt: skip


class Conditioned(nn.Module):
    """A block whose scales and gates are parts of one product, which are read far behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.scales, self.qkv, self.out = (nn.Linear(8, n) for n in (24, 24, 8))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        scale, gate, last = self.scales(c)[:, None].chunk(3, -1)
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.qkv(x * scale).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + gate * self.out(mixed.transpose(1, 2).flatten(2))
        return x + last * self.down(self.up(nn.functional.layer_norm(x, (8,))).relu())


@torch.no_grad()
@pytest.mark.parametrize("name", ["conditioned", "pooled"])
def test_the_backend_has_the_regions_of_optimize(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever AOTAutograd takes apart, and views as a matrix."""
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    model, inputs = {
        "conditioned": (Conditioned(), (torch.randn(2, 10, 8), torch.randn(2, 8))),
        "pooled": (pooled, (torch.randn(2, 3, 6, 7),)),
    }[name]
    own = cut(exported(model, inputs))
    cuts: list[Cut] = []
    monkeypatch.setattr(backend, "with_kernels", lambda graph, _: cuts.append(cut(copy.deepcopy(graph))) or {})
    torch._dynamo.reset()
    torch.compile(model, backend="mirage")(*inputs)
    assert [r.graph.name for r in cuts[0].regions] == [r.graph.name for r in own.regions]


def test_what_moves_elements_of_one_part_for_another_is_in_the_other() -> None:
    graph = exported(
        as_module(lambda x, y, w: (y @ w) * x.exp()[:, None]), (torch.ones(3), *torch.randn(2, 3, 3))
    ).graph
    product, exponential, view, scaled = calls(graph)
    assert with_readers([[exponential], [view, product], [scaled]]) == [[exponential], [product], [view, scaled]]
    assert with_readers([[exponential, view], [product, scaled]]) == [[exponential, view], [product, scaled]]


@pytest.mark.parametrize("name", TRAINED)
def test_derivatives_are_in_regions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each region's program agrees with PyTorch in float64, or its operators are left."""
    torch.manual_seed(0)
    model, inputs = TRAINED[name]()
    cuts: list[Cut] = []
    monkeypatch.setattr(backend, "runs_on", lambda _: True)
    monkeypatch.setattr(backend, "with_kernels", lambda graph, _: cuts.append(cut(copy.deepcopy(graph))) or {})
    torch._dynamo.reset()
    read = [x for x in (*inputs, *model.parameters()) if x.requires_grad]
    found, expected = (
        torch.autograd.grad(run(*inputs).square().sum(), read)
        for run in (torch.compile(model, backend="mirage"), model)
    )
    torch.testing.assert_close(found, expected)
    assert len(cuts) == 2 and all(c.regions for c in cuts)
    assert not [x for c in cuts for x in c.left.items()]


def test_a_kernel_takes_what_lies_otherwise_by_another_kernel() -> None:
    """A part of a packed result has gaps that a kernel's own result has not, and the other way round."""
    graph = torch.fx.Graph()
    with FakeTensorMode():
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(4, 6)
        made = graph.call_function(torch.ops.aten.t.default, (x,))  # what a kernel makes, whose value is not known yet
        flat = graph.call_function(torch.ops.aten.expand.default, (made, [6, 4]))
        flat.meta["val"] = torch.empty(6, 4)
        given = graph.call_function(torch.ops.aten.reshape.default, (flat, [6, 4]))
        given.meta[backend.WHOLE] = True
        row = graph.call_function(torch.ops.aten.view.default, (flat, [24]))
        row.meta["val"] = torch.empty(24)
    graph.output((graph.call_function(torch.ops.aten.relu.default, (given,)), row))
    backend.without_gaps(graph)
    model = torch.fx.GraphModule(torch.nn.Module(), graph)
    inputs: list[torch.Tensor] = []
    model.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[0].target = lambda y: inputs.append(
        y
    )
    model.recompile()
    model(torch.randn(4, 6))
    assert flat.meta["val"].stride() == (1, 6) and inputs[0].is_contiguous()


def test_a_backend_refuses_options_that_it_lacks() -> None:
    compiled = torch.compile(Attention().eval(), backend="mirage", options={"tunes": 3})
    with pytest.raises(Exception, match="backend mirage has no option tunes"):
        compiled(torch.randn(1, 4, 32))


def test_a_mode_is_inductors_for_what_is_in_no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that capture a CUDA graph are refused, by name."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(backend, "on_gpu", lambda _: True)
    for name in ("by_inductor", "inductors_own"):
        monkeypatch.setattr(backend, name, lambda model, _, options: given.append(options) or model.forward)
    x = torch.randn(4, 6)
    torch._dynamo.reset()
    torch.compile(torch.sin, backend="mirage")(x)
    torch._dynamo.reset()
    torch.compile(torch.sin, backend="mirage", mode="max-autotune-no-cudagraphs")(x)
    assert given == [{}, {"max_autotune": True, "coordinate_descent_tuning": True}]
    for mode in ("reduce-overhead", "fast"):
        torch._dynamo.reset()
        with pytest.raises(
            Exception, match=f"backend mirage has no mode {mode}; there are default, .*torch.cuda.graph"
        ):
            torch.compile(torch.sin, backend="mirage", mode=mode)(x)


# -- Mirage's tutorials, as far as they need no search


def test_a_reduction_keeps_its_axis() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(4, 6))
    assert graph.reduction(x, 1).shape == (4, 1)
    assert graph.reduction(x, 1, 3).shape == (4, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda graph, x: graph.matmul(x, x),
        lambda graph, x: graph.reduction(x, 1, 4),
        lambda graph, x: graph.rms_norm(x, (5,)),
        lambda graph, x: graph.add(x, graph.new_input(dims=(3, 6))),
        lambda graph, _: graph.new_input(dims=(4, 6), strides=(1, 4)),
        lambda graph, _: graph.superoptimize(),
        lambda graph, x: graph.reduction(x, 2),
        lambda graph, x: graph.add(x, None),
        lambda graph, _: graph.mark_output(3),
        lambda graph, x: graph.exp(mi.new_kernel_graph().new_input(dims=x.shape)),
        lambda graph, _: graph.new_input(dims=(4, -1)),
        lambda graph, _: graph.new_input(dims=4),
        lambda graph, _: graph.new_input(dims=(4, 6), dtype="f16"),
    ],
)
def test_what_no_program_is_is_refused(wrong: Any) -> None:
    graph = mi.new_kernel_graph()
    with pytest.raises(GraphError):
        wrong(graph, graph.new_input(dims=(4, 6)))


def changed_inside(x: torch.Tensor) -> torch.Tensor:
    before = x * 2
    y = x.clone()
    y.add_(1)
    y[:, 0] = 5.0
    return before + y * 3


def changed_input(x: torch.Tensor) -> torch.Tensor:
    before = x * 2
    x.add_(1)
    return before + x * 3


@pytest.mark.parametrize("function", [changed_inside, changed_input])
def test_what_is_changed_in_place_is_read_as_it_was_then(function: Any) -> None:
    x = torch.randn(3, 4)
    found = cut(exported(as_module(function), (x.clone(),)))
    inputs = [x.clone(), x.clone()]
    torch.testing.assert_close(found.model(inputs[0]), function(inputs[1]))
    assert torch.equal(inputs[0], inputs[1])
    assert found.regions


@pytest.mark.gpu
def test_a_model_is_timed_beside_inductor_as_a_whole(tmp_path: Path) -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.RMSNorm(256)
            self.q, self.k, self.v = (torch.nn.Linear(256, 256, bias=False) for _ in range(3))

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            weights = (self.q(y) @ self.k(y).mT / 16).masked_fill(~mask, -1e4)
            return torch.softmax(weights, -1) @ self.v(y)

    model = Attention().to("cuda", torch.float16).eval()
    x = torch.randn(64, 256, device="cuda", dtype=torch.float16)
    mask = torch.rand(64, 64, device="cuda") < 0.7
    said: list[str] = []
    with torch.no_grad():
        fast = mirage_cli.optimize(model, (x, mask), budget=10.0, db=tmp_path / "db.sqlite", say=said.append)
        torch.testing.assert_close(fast(x, mask), model(x, mask), rtol=2e-2, atol=2e-2)
    assert any("µs, Inductor" in line or "is not surely below Inductor's" in line for line in said), said
    used = any(line.startswith("region_") and "µs, Inductor" in line for line in said)
    assert sum(line.startswith("the model: ") for line in said) == used, said


def test_a_region_of_numbers_of_eight_bits_is_compared_with_pytorch() -> None:
    """PyTorch draws no random numbers in these types."""
    x, w = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((3, 16), (16, 8)))
    found = cut(exported(as_module(lambda a, b: a.float() @ b.float()), (x, w)))
    assert found.left == {} and len(found.regions) == 1


def of_signed_bytes(b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What the kernel of the test below computes."""
    assert b.dtype == torch.int8
    return x * ((b.int() & 255) >> 4)


def test_bytes_without_a_sign_are_given_to_kernels_as_they_read_them() -> None:
    """By a model with kernels, where its sizes are fixed and where they are not, and by a graph of the backend."""
    inputs = torch.arange(256, dtype=torch.uint8).view(16, 16), torch.randn(16, 16)
    made = cut(exported(as_module(lambda b, x: x * (b >> 4)), inputs))
    (region,) = made.regions
    (part,) = made.model.graph.find_nodes(op="call_module", target=region.module)
    expected = inputs[1] * (inputs[0] >> 4)
    for given in Steps.of(region).inputs(inputs, {}), [x.of(inputs, {}) for x in region.inputs]:
        assert torch.equal(of_signed_bytes(*given), expected)
    graph = torch.fx.Graph()
    args = [graph.placeholder(f"x{i}") for i in range(2)]
    for new, old in zip(args, part.args, strict=True):
        new.meta = old.meta
    kernel: Any = SimpleNamespace(operator=of_signed_bytes)
    graph.output(backend.call(graph, region, kernel, args))
    assert torch.equal(torch.fx.GraphModule({}, graph)(*inputs), expected)


def test_a_result_that_nobody_reads_is_not_asked_for() -> None:
    """The places of a running maximum, which no program has."""
    found = cut(exported(as_module(lambda x: x.cummax(1).values), (torch.randn(3, 7),)))
    assert found.left == {} and len(found.regions) == 1


class Quantised(nn.Module):
    """A norm behind a residual, in float8 by a scale for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(256, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = x + r
        y = self.norm(h).float()
        s = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
        return (y / s).clamp(-448, 448).to(torch.float8_e4m3fn), s, h


def test_results_of_eight_bits() -> None:
    """Rounded where they are stored, in one program with what they are made of, beside a scale of float32."""
    x, r = (torch.randn(16, 256).bfloat16() for _ in range(2))
    found = cut(exported(Quantised(), (x, r)))
    assert found.left == {} and len(found.regions) == 1
    assert "O2: {dims: [a0, a1], dtype: float8_e4m3fn}" in found.regions[0].graph.text()


def test_what_is_made_of_16_bits_as_float32_is_float32() -> None:
    """In each plan, also where an intermediate is stored: it is as exact as PyTorch's."""
    found = cut(
        exported(as_module(lambda x: x.float().log_softmax(1).square().mean()), (torch.randn(5, 37).bfloat16(),))
    )
    program = found.regions[0].program
    plans = searched(program).plans
    stored = {b for p in plans for b in p.graph.buffers if b.name not in chosen_values(lower(program))}
    assert len(plans) > 2 and {b.dtype for b in stored} == {"float32"}


def test_what_is_rounded_on_the_way_is_cast() -> None:
    """To fewer bits: of more, nothing is lost."""
    x = torch.randn(8, 16).bfloat16()
    found = cut(exported(as_module(lambda x: (x * 2).to(torch.float8_e5m2).to(torch.bfloat16) + 1), (x,)))
    assert len(found.regions) == 1 and "float8_e5m2(X0 * 2) + 1" in found.regions[0].graph.text()
    w = torch.randn(16, 16)
    mixed = cut(exported(as_module(lambda x, w: (x.float() * w).bfloat16() @ w.bfloat16()), (torch.randn(16), w)))
    (text,) = (r.graph.text() for r in mixed.regions)
    assert text.count("bfloat16(") == 2 and "float32(" not in text
    torch.testing.assert_close(found.model(x), (x * 2).to(torch.float8_e5m2).bfloat16() + 1, rtol=0, atol=0)
    given = x.to(torch.float8_e4m3fn)
    read = cut(exported(as_module(lambda x: x.view(16, 8).to(torch.bfloat16) + 1), (given,)))
    assert len(read.regions) == 1


def test_a_cache_of_eight_bits_is_changed_in_place() -> None:
    def append(cache: torch.Tensor, at: torch.Tensor, k: torch.Tensor, s: torch.Tensor) -> None:
        cache.index_put_((at,), (k.float() / s).clamp(-448, 448).to(cache.dtype))

    cache = torch.zeros(64, 2, 16).to(torch.float8_e4m3fn)
    inputs = cache, torch.randperm(64)[:12], torch.randn(12, 2, 16).bfloat16(), torch.tensor(0.5)
    found = cut(exported(as_module(append), inputs))
    assert found.left == {} and [r.graph.text().count("inout") for r in found.regions] == [1]
