"""PyTorch's functions and modules by generated kernels, in Triton's interpreter: within twice eager's error."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.pipeline.models.model import as_module
from mirage_cli.pipeline.models.region import Kept, Region
from mirage_cli.pipeline.models.regions import cut, exported
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import own_sums, reduced_schedule
from mirage_cli.tune.outputs import poison
from mirage_cli.verify.float64 import called64
from tests.searched import BEST
from tests.torch_programs import CASES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where lanes hold nothing
H200 = find_target("h200")
EAGERS = 2.0
ROUNDINGS = 1
"""Of a result's type, that are let pass: eager PyTorch may happen to make none."""
DECIDED = 1 / 64
"""Of whole numbers and masks, that rounding may decide otherwise."""
SEARCH_S = 0.5


class Interpreted(torch.nn.Module):
    """A region by generated kernels. off: for each result its error against float64, and how much may be."""

    def __init__(self, original: torch.nn.Module, region: Region) -> None:
        super().__init__()
        self.original, self.region = original, region
        self.off: list[tuple[float, float]] = []
        plan = search_program(region.program, H200, Options(budget_s=SEARCH_S, tune=False, bounds=BEST)).plans[0]
        self.kernels = load_export(kernels_source(plan.graph, reduced_schedule(plan.graph, plan.schedule)))

    def forward(self, *given: torch.Tensor) -> Any:
        region, program, sizes = self.region, self.region.program, self.region.sizes(given)
        inputs = [x.of(given, sizes) for x in region.inputs]
        shapes = [[program.sizes[d] for d in t.dims] for t in program.results]
        made = [
            poison(torch.empty(shape, dtype=getattr(torch, t.dtype)))
            for shape, t in zip(shapes, program.results, strict=True)
        ]
        others = [x.clone() for x in given]
        expected, (returned, behind) = self.original(*others), called64(program, inputs)
        self.kernels.launch(inputs, made, self.kernels.make_scratch("cpu"))
        found, exact = region.made(made, given), region.made(returned, given)
        expected = expected if isinstance(expected, tuple) else (expected,)
        triples = [(y, eager, x) for r, *(y, eager, x) in zip(region.results, found, expected, exact, strict=True)
                   if not isinstance(r, Kept)]  # fmt: skip
        kept = {r.which for r in region.results if isinstance(r, Kept)}
        triples += [(x.of(given, sizes), x.of(others, sizes), y)
                    for x, y in zip(region.inputs, behind, strict=True) if x.which in kept]  # fmt: skip
        for y, eager, x in triples:
            rounding = ROUNDINGS * torch.finfo(y.dtype).eps if y.is_floating_point() else DECIDED
            self.off.append((off(y, x), EAGERS * off(eager, x) + rounding))
        return found[0] if len(found) == 1 else tuple(found)


def off(y: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the difference over that of the numbers. Infinities are in the same places. Of whole numbers and
    masks, the part that differs."""
    if not y.is_floating_point():
        return float((y != exact).double().mean())
    numbers = exact.isfinite()
    torch.testing.assert_close(y[~numbers].double(), exact[~numbers], equal_nan=True)
    difference, size = (float(x[numbers].norm()) for x in (y.double() - exact, exact))
    return difference / max(size, torch.finfo(y.dtype).tiny)


def interpreted(name: str) -> None:
    function, inputs = CASES[name]
    model = as_module(function).eval()
    with torch.no_grad():
        expected = model(*inputs)
        found = cut(exported(model, inputs))
        kernels = [Interpreted(found.model.get_submodule(r.module), r) for r in found.regions]
        for r, k in zip(found.regions, kernels, strict=True):
            setattr(found.model, r.module, k)
        torch.testing.assert_close(found.model(*inputs), expected, rtol=1e-3, atol=1e-4)
    assert found.left == {} and kernels
    for k in kernels:
        assert k.off and all(error <= most for error, most in k.off), k.off


NAMES = (
    "rope_neighbours", "squeeze_excite_by_convolutions", "focal", "fake_quantized", "token_shift", "lengths_mask",
    "pixel_shuffle", "masked_softmax", "mse_loss", "causal_conv", "clip_by_norm", "variance", "convnext_block",
    "llama_norm", "normalize", "log_probs", "separable_conv", "rotary", "l1_loss", "cross_entropy_of_probabilities",
    "backwards", "embedding", "unfold", "smooth_l1_loss", "adamw", "written_into", "hardtanh", "glu", "logsigmoid",
    "gram", "tanhshrink", "rms_norm", "between_extremes", "prelu", "attention_with_a_mask_of_bits", "leaky_relu",
    "instance_norm", "cosine_similarity", "huber_loss", "addmm", "expanded_beside_two", "softplus", "lion",
    "avg_pool", "linear_attention", "alibi_module", "celu", "conv_of_volumes", "selu", "group_norm", "roll",
    "transposed_conv_in_groups", "mish", "max_pool", "nearest_up", "attention_with_softcap", "last_token",
    "lstm_cell", "t5_attention", "mixture", "segment_means", "mamba_step", "larger", "diagonals", "weighted_bits",
    "triplet_margin", "temporal", "standardised", "node_sums", "quantised_linear", "rows_put", "log_space_sum",
    "mask_of_a_transposed_view", "mask_of_a_mask", "any_and_all", "argmax", "maximum_and_place", "topk", "logits",
    "numbers_in_microscaling_formats", "written_in_turns", "written_in_turns_of_both", "one_turn_of_three_written",
    "powers_of_two", "times_a_logarithm",
    "count", "count_of_all", "bucket", "quantised", "truncated", "truncated_and_on", "clamped_to_whole_numbers",
    "a_mask_beside_numbers", "bytes_multiplied", "packed_bytes", "decomposed_quantisation",
)  # fmt: skip
"""For each operator of the programs that take the interpreter a second or two, one of them."""


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_as_exact_as_eager(name: str) -> None:
    interpreted(name)


@pytest.mark.parametrize("numbers", [False, True])
def test_what_a_mask_hides_from_all_is_nothing(numbers: bool) -> None:
    """As of PyTorch's attention, and not of its softmax: no key is left in front of the first, and where q is no
    number, neither is what it attends to."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(9) <= n[:, None]
        mask = torch.where(mask, 0.0, -torch.inf) if numbers else mask
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask) + 1

    q, k, v = torch.randn(2, 7, 8), torch.randn(2, 9, 8), torch.randn(2, 9, 8)
    found = cut(exported(as_module(attention), (q, k, v, torch.arange(7))))
    (region,) = found.regions
    kernel = Interpreted(found.model.get_submodule(region.module), region)
    setattr(found.model, region.module, kernel)
    hidden = torch.tensor([3, -1, 0, 8, -1, 1, 5])
    y = found.model(q, k, v, hidden)
    assert y[:, [1, 4]].eq(1).all()
    torch.testing.assert_close(y, attention(q, k, v, hidden))
    q[:, 3] = torch.nan
    y = found.model(q, k, v, hidden)
    assert y[:, 3].isnan().all() and y[:, [0, 1, 2, 4]].isfinite().all()


WHOLE = """
mugraph whole float16
dims b=5 y=5 x=5 n=6 c=200 i=3 j=3
input T f16[b, y, x, c, i, j]
input W f16[n, c, i, j]
output O f16[b, n, y, x]

kernel k0 generated b:grid y:grid x:grid n:grid c:tile i:tile j:tile
  T = load T[b, y, x, c, i, j]
  W = load W[n, c, i, j]
  O[b, y, x, n] = dot(T, W; c, i, j)
  store O[b, n, y, x] = O
"""


def test_blocks_that_make_few_instances_are_blocks_that_can_be_written() -> None:
    """Three axes that are summed whole are 4096 elements of each result, which is multiplied out."""
    graph = parse_mugraph(WHOLE)
    tiles = tuple((d, 1) for d in ("b", "y", "x", "n"))
    small = reduced_schedule(graph, Schedule({"k0": KernelSchedule(tiles, ("b", "y", "x", "n"))}))
    assert prod(t for _, t in small.kernels["k0"].tiles) == 32
    assert "def launch(" in kernels_source(graph, small)


WINDOWS = """
name: windows
dims: {m: 61, y: 64, t: 61, i: 4, c: 5}
dtype: float32
inputs: {X: [m, c], W: [i]}
program: |
  R = sum(X[y + i - 3, c] * W, i)
  O = R[t, c]
outputs: {O: [t, c]}
"""


def test_an_axis_that_the_program_alone_reads_along_is_not_made_too_short() -> None:
    """Beyond y the program's R is 0. A μGraph in one kernel has no y, and computes R anywhere."""
    program = parse_spec(WINDOWS).at()
    plans = search_program(program, H200, Options(budget_s=SEARCH_S, tune=False)).plans
    (plan,) = (p for p in plans if len(p.graph.kernels) == 1)
    long = own_sums(program, plan.graph, plan.schedule)
    assert long is not None
    sizes = long[0].sizes
    assert sizes["i"] == 4 and sizes["y"] >= sizes["t"] > 1
