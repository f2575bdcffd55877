"""Block sizes that are worth a try."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import KernelSchedule, Schedule, block_sizes, exchanged
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search import roles, tiles
from mirage_cli.search.cost.model import estimate
from mirage_cli.search.cost.work import Model, models
from mirage_cli.search.generator import search
from mirage_cli.search.tiles import tile_options
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.changes import neighbours
from mirage_cli.tune.price import estimates, predicted
from mirage_cli.tune.space import first_schedules
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.numeric import draw_inputs
from tests.codegen.test_triton import check
from tests.mugraphs import CASES
from tests.searched import BEST

H200 = find_target("h200")
THREE_PROJECTIONS = """
mugraph heads bfloat16
dims b=4 t=1024 k=640 h=10 d=64 g=10 e=64 w=10 f=64
input X bf16[b, t, k]
input Q bf16[h, d, k]
input K bf16[g, e, k]
input V bf16[w, f, k]
output A bf16[b, h, t, d]
output B bf16[b, g, t, e]
output C bf16[b, w, t, f]
kernel k0 generated b:grid t:grid k:loop h:grid d:grid g:grid e:grid w:grid f:grid
  X = load X[b, t, k]
  Q = load Q[h, d, k]
  K = load K[g, e, k]
  V = load V[w, f, k]
  A[b, t, h, d] = dot(X, Q; k)
  B[b, t, g, e] = dot(X, K; k)
  C[b, t, w, f] = dot(X, V; k)
  store A[b, h, t, d] = A
  store B[b, g, t, e] = B
  store C[b, w, t, f] = C
"""


ELEMENTWISE = """
mugraph silu bfloat16
dims m={m}
input X bf16[m]
output Y bf16[m]
kernel k0 generated m:grid
  X = load X[m]
  Y[m] = silu(X)
  store Y[m] = Y
"""


def model_of(graph: MuGraph) -> Model:
    (m,) = models(graph).values()
    return m


def best_us(graph: MuGraph, coarse: bool) -> tuple[float, int]:
    """The least time that is predicted, and of how many choices."""
    m = model_of(graph)
    found = tiles.choices(m, graph.sizes, H200, [tiles.default_order(m)], coarse=coarse)
    return float(estimate(m, found.batch, graph.sizes, H200).us.min()), len(found.order)


def test_the_best_of_parts_side_by_side_is_among_the_best_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = CASES["projections"].graph.resized({"m": 300, "k": 512, "n": 2048, "p": 512})
    joined, few = best_us(graph, coarse=False)
    monkeypatch.setattr(tiles, "_joined", lambda m, sizes, _, coarse: tiles._fitting(m, sizes, coarse=coarse))
    whole, many = best_us(graph, coarse=False)
    assert few < many / 4
    assert joined <= 1.03 * whole


@pytest.mark.parametrize("coarse", [False, True])
def test_parts_with_many_axes_have_few_choices(coarse: bool) -> None:
    us, count = best_us(parse_mugraph(THREE_PROJECTIONS), coarse)
    assert np.isfinite(us)
    assert count <= tiles.MOST_BLOCKS


def test_the_choices_of_one_part_are_bounded_too() -> None:
    text = "\n".join(
        ["mugraph many float16", "dims a=64 b=64 c=64 d=64 e=64 f=64", "input X f16[a, b, c, d, e, f]",
         "output Y f16[a, b, c, d, e, f]", "kernel k0 generated a:grid b:grid c:grid d:grid e:grid f:grid",
         "  X = load X[a, b, c, d, e, f]", "  Y[a, b, c, d, e, f] = mul(X, 2)", "  store Y[a, b, c, d, e, f] = Y"]
    )  # fmt: skip
    us, count = best_us(parse_mugraph(text), coarse=False)
    assert np.isfinite(us)
    assert count <= tiles.MOST_BLOCKS


VECTOR = """
mugraph vector float16
dims m=1 k=1024 n=512 groups=8
input X f16[m, k]
input W {dtype}[k, n]
input S f16[groups, n]
output O f16[m, n]
kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[k, n]
  S = load S[k//128, n]
  V[k, n] = mul(W, S)
  O[m, n] = dot(X, V; k)
  store O[m, n] = O
"""


@pytest.mark.parametrize(("dtype", "rows"), [("i8", [1, 8, 16]), ("f16", [1])])
def test_weights_of_bytes_may_meet_a_vector_on_the_matrix_units(dtype: str, rows: list[int]) -> None:
    """As float32 each of them costs more than it takes to bring four at once to the matrix units' type."""
    graph = parse_mugraph(VECTOR.format(dtype=dtype))
    m = model_of(graph)
    assert tiles.tile_options(m, graph.sizes, coarse=False)["m"] == rows
    assert ("m" in m.matrix_axes(graph.sizes)) == (dtype == "i8")


@pytest.mark.parametrize(("m", "n", "least"), [(1, 512, 8), (8, 512, 8), (9, 512, 16), (8, 8, 16), (8, 16, 8)])
def test_few_rows_beside_bytes_may_be_columns_alone(m: int, n: int, least: int) -> None:
    """Where the other side has rows; no tuner's step goes below that."""
    for dtype in ("i8", "f16"):
        graph = parse_mugraph(VECTOR.format(dtype=dtype)).resized({"m": m, "n": n})
        of = model_of(graph)
        assert [tiles.least_tile(of, d, graph.sizes) for d in "mnk"] == [least if dtype == "i8" else 16, 16, 16]


GROUPS = """
mugraph groups float16
dims m=1024 g={g} c={c} k=8192
input X f16[m, k]
input W f16[g, c, k]
output Y f16[m, g, c]
kernel k0 generated m:grid g:grid c:tile k:loop
  X = load X[m, k]
  W = load W[g, c, k]
  T[m, g, c] = dot(X, W; k)
  S[m, g] = sum(T; c)
  Y[m, g, c] = sub(T, S)
  store Y[m, g, c] = Y
"""


@pytest.mark.parametrize("c", [16, 32, 64])
@pytest.mark.parametrize("coarse", [False, True])
def test_groups_of_columns_are_tiled_so_that_all_have_the_columns_of_a_block(c: int, coarse: bool) -> None:
    """As many columns as a product that reduces none of them has, so that it takes as long."""
    graph = parse_mugraph(GROUPS.format(g=8192 // c, c=c))
    m = model_of(graph)
    columns = {c * t for t in tiles.tile_options(m, graph.sizes, coarse=coarse)["g"]}
    assert {128, 256} <= columns <= {16, 32, 64, 128, 256}


def test_the_tuner_goes_on_to_few_groups() -> None:
    graph = parse_mugraph(GROUPS.format(g=256, c=32))
    (start,) = first_schedules(graph, H200, 1)
    four = replace(start.kernels["k0"], tiles=(("m", 128), ("g", 4), ("k", 64)))
    (near,) = neighbours(graph, [Schedule({"k0": four})], H200)
    assert {2, 4, 8} <= {x.kernels["k0"].tile("g") for _, x in near}


@pytest.mark.parametrize(
    ("order", "other"), [("m k g c", "g c k m"), ("m g c k", "k g c m"), ("k c g m", "m c g k"), ("g k c m", "m g k c")]
)
def test_operands_are_exchanged_with_their_axes_in_order(order: str, other: str) -> None:
    (k,) = parse_mugraph(GROUPS.format(g=256, c=32)).kernels
    assert exchanged(k, tuple(order.split())) == tuple(other.split())
    assert exchanged(k, tuple(other.split())) == tuple(order.split())


def test_so_are_axes_that_are_summed() -> None:
    """Reversed, what is loaded for a product would not lie along its rows: Triton took it from shared memory by single
    elements (152 loads of an iteration where 24 do)."""
    (k,) = parse_mugraph(HEADS).kernels
    assert exchanged(k, ("m", "h", "d", "n")) == ("n", "h", "d", "m")
    assert exchanged(k, ("n", "h", "d", "m")) == ("m", "h", "d", "n")


@pytest.mark.parametrize("roles", ["h:loop d:loop", "d:loop h:loop"])
def test_axes_of_one_side_are_in_memory_order(roles: str) -> None:
    """Whatever the order in which the program names them: attention in front of a projection has its keys' axis, then
    its values', then the heads of a group."""
    graph = parse_mugraph(HEADS.replace("h:loop d:loop", roles))
    assert tiles.default_order(model_of(graph)) == ("m", "h", "d", "n")


HEADS = """\
mugraph heads float16
dims m=16 n=4096 h=32 d=128
input X f16[m, h, d]
input W f16[n, h, d]
output Y f16[m, n]

kernel k0 generated m:grid n:grid h:loop d:loop
  X = load X[m, h, d]
  W = load W[n, h, d]
  Y[m, n] = dot(X, W; h, d)
  store Y[m, n] = Y
"""
DEPTHWISE = """\
name: depthwise
dims: {b: 8, c: 2048, t: 4096, i: 4}
dtype: bfloat16
inputs:
  X: [b, c, t]
  W: [c, i]
program: |
  O = silu(dot(X[b, c, t + i - 3], W, i))
outputs:
  O: [b, c, t]
"""


@pytest.mark.parametrize("axes", [pytest.param("b, c, t", id="rows"), pytest.param("b, t, c", id="channels last")])
def test_taps_of_a_depthwise_convolution_are_in_registers_over_blocks_of_positions_and_channels(axes: str) -> None:
    """As a block axis they would be summed across threads, and with one channel a block would read single elements."""
    shifted = axes.replace("t", "t + i - 3")
    text = DEPTHWISE.replace("X: [b, c, t]", f"X: [{axes}]").replace("X[b, c, t + i - 3]", f"X[{shifted}]")
    p = lower(parse_spec(text.replace("O: [b, c, t]", f"O: [{axes}]")).at())
    best = search(p, H200, bounds=BEST).candidates[0]
    (kernel,) = best.graph.kernels
    assert kernel.role("i") == "tile" and best.schedule.kernels[kernel.name].unroll
    tiles = dict(best.schedule.kernels[kernel.name].tiles)
    assert tiles[axes[-1]] >= 32
    small = {"b": 2, "c": 37, "t": 41}
    check(best.graph.resized({**best.graph.sizes, **small}), best.schedule, p.resized({**p.sizes, **small}))


WINDOWS = """\
mugraph windows float16
dims b=32 c=480 i=5 j=5 x=28 y=28
input X f16[b, y, x, c]
input W f16[i, j, c]
output O f16[b, y, x, c]

kernel k0 generated b:grid y:grid x:grid c:grid i:tile j:tile
  X = load X[b, i + y - 2, j + x - 2, c]
  W = load W[i, j, c]
  t[b, y, x, c, i, j] = mul(X, W)
  O[b, y, x, c] = sum(t; i, j)
  store O[b, y, x, c] = O
"""


def test_windows_that_are_summed_by_elements_may_be_walked() -> None:
    """A block of 5 x 5 taps is one of 8 x 8: it loads 64 elements for 25 that count, and sums them across threads."""
    graph = parse_mugraph(WINDOWS)
    choices = [dict(c) for c in roles._choices_of_roles(graph.kernels[0], graph.sizes, ()) if isinstance(c, tuple)]
    assert {"tile", "loop"} == {c["i"] for c in choices} == {c["j"] for c in choices}


COLOURS = """
name: colours
dims: {b: 64, o: 32, y: 64, x: 64, c: 3, i: 3, j: 3, h: 66, w: 66}
dtype: float16
inputs:
  X: [c, h, w, b]
  W: [c, i, j, o]
program: |
  O = relu(dot(X[c, y + i, x + j, b], W, c, i, j))
outputs:
  O: [b, o, y, x]
"""


def test_a_block_has_all_of_several_short_axes_that_a_product_sums() -> None:
    """A tap of three channels, filled up to 16, would take the matrix units five times as long as it has products."""
    p = lower(parse_spec(COLOURS).at())
    best = search(p, H200, bounds=BEST).candidates[0]
    (kernel,) = best.graph.kernels
    own = best.schedule.kernels[kernel.name]
    summed = [4 if kernel.role(d) == "tile" else own.tile(d) for d in ("c", "i", "j")]
    assert summed.count(4) >= 2
    small = {"b": 16, "y": 5, "x": 6, "h": 7, "w": 8}
    few = tuple((d, min(n, 16)) for d, n in own.tiles)
    schedule = Schedule({kernel.name: replace(own, tiles=few)})
    check(best.graph.resized({**best.graph.sizes, **small}), schedule, p.resized({**p.sizes, **small}))


POOLED = """
name: pooled
dims: {b: 64, o: 64, y: 32, x: 32, p: 4, q: 4, c: 8, i: 3, j: 3, u: 128, v: 128, h: 130, w: 130}
dtype: float16
inputs:
  X: [b, c, h, w]
  W: [o, c, i, j]
program: |
  C = tanh(dot(X[b, c, u + i, v + j], W, c, i, j))
  O = max(C[b, o, 4*y + p, 4*x + q], p, q)
outputs:
  O: [b, o, y, x]
"""


def test_axes_that_are_held_whole_fill_one_side_of_a_product_together() -> None:
    """A block has 4 * 4 rows for each maximum. Each axis filled up to 16 has 256, which leaves no room for others."""
    p = lower(parse_spec(POOLED).at())
    best = search(p, H200, bounds=BEST).candidates[0]
    (kernel,) = best.graph.kernels
    own = best.schedule.kernels[kernel.name]
    block = block_sizes(kernel, own, best.graph.sizes)
    assert (block["p"], block["q"]) == (4, 4) and block["x"] * block["y"] * block["b"] > 1
    small = {"b": 2, "o": 20, "y": 2, "x": 3, "u": 8, "v": 12, "h": 10, "w": 14}
    schedule = Schedule({kernel.name: replace(own, tiles=tuple((d, min(n, 16)) for d, n in own.tiles))})
    check(best.graph.resized({**best.graph.sizes, **small}), schedule, p.resized({**p.sizes, **small}))


@pytest.mark.parametrize(("m", "k"), [(2, 64), (4, 4), (1, 64)])
def test_a_side_that_is_held_whole_has_what_the_matrix_units_take(m: int, k: int) -> None:
    text = f"mugraph g float16\ndims m={m} r=2 k={k} n=64\ninput A f16[m, r, k]\ninput B f16[k, n]\n"
    text += "output O f16[m, r, n]\nkernel k0 generated m:tile r:tile k:tile n:grid\n"
    text += "  A = load A[m, r, k]\n  B = load B[k, n]\n"
    text += "  O[m, r, n] = dot(A, B; k)\n  store O[m, r, n] = O\n"
    graph = parse_mugraph(text)
    block = block_sizes(graph.kernels[0], KernelSchedule((("n", 64),), ("m", "r", "k", "n")), graph.sizes)
    assert block["m"] * block["r"] == 16 and block["k"] == max(k, 16)


DRAFTS = """
name: drafts
dims: {b: 16, t: 5, g: 8, r: 4, d: 128, s: 4096}
dtype: bfloat16
inputs:
  Q: {dims: [b, t, g, r, d], scale: 0.1}
  K: [b, s, g, d]
  V: [b, s, g, d]
program: |
  O = dot(softmax(dot(Q, K, d), s), V, s)
outputs:
  O: [b, t, g, r, d]
"""


def test_a_block_has_all_of_several_short_axes_that_are_one_side_of_a_product() -> None:
    """A few draft tokens for each of a few heads: one by one, or filled up to 16, each would read all keys again."""
    program = parse_spec(DRAFTS).at()
    plan = search_program(program, H200, Options(bounds=BEST, tune=False)).plans[0]
    (kernel,) = plan.graph.kernels
    assert tile_options(model_of(plan.graph), plan.graph.sizes, coarse=True)["r"][:2] == [1, 4]
    chosen = plan.schedule.kernels["k0"]
    assert chosen.tile("r") == 4 and chosen.tile("t") >= 8
    small = program.resized({"b": 2, "g": 1, "d": 32, "s": 96})
    graph = plan.graph.resized({"b": 2, "g": 1, "d": 32, "s": 96})
    tiles = {"b": 1, "t": 8, "g": 1, "r": 4, "s": 32}
    own = replace(chosen, tiles=tuple((d, tiles.get(d, n)) for d, n in chosen.tiles))
    module = load_export(export_source(small, graph, Schedule({kernel.name: own})))
    inputs = draw_inputs(small, "normal", torch.device("cpu"), 0)
    (want,) = reference64(small, inputs)
    torch.testing.assert_close(module.drafts(*inputs).double(), want, rtol=2e-2, atol=2e-2)


PAIRS = """
mugraph pairs bfloat16
dims h=64 t=4096 a=64 p=2 d=128
input X bf16[h, t, d]
output O bf16[h, t, a, p]
kernel k0 generated h:grid t:grid a:grid p:grid
  X = load X[h, t, a*2]
  X_1 = load X[h, t, a*2 + 1]
  i[p] = index(p)
  m[p] = lt(i, 1)
  O[h, t, a, p] = where(m, X, X_1)
  store O[h, t, a, p] = O
"""


def test_an_axis_of_two_is_a_block_when_structures_are_ranked() -> None:
    """Neighbours in memory are stored side by side. In blocks of one, each line would be written twice."""
    graph = parse_mugraph(PAIRS)
    assert tiles.tile_options(model_of(graph), graph.sizes, coarse=True)["p"] == [1, 2]
    found = tiles.best_schedule(model_of(graph), graph.sizes, H200)
    assert found is not None and found[1].tile("p") == 2
    assert found[0] < 1.2 * best_us(graph, coarse=False)[0]


@pytest.mark.parametrize("f", [20, 32])
def test_all_of_a_short_axis_is_a_block_when_structures_are_ranked(f: int) -> None:
    """A part of a line, as blocks of 4 have, is fetched from the L2 several times."""
    text = PAIRS.replace("p=2", f"p={f}").replace("a*2 + 1", "a*2 + p").replace("load X[h, t, a*2]", "load X[h, t, p]")
    graph = parse_mugraph(text)
    found = tiles.best_schedule(model_of(graph), graph.sizes, H200)
    assert found is not None and found[1].tile("p") >= f
    assert found[0] < 1.2 * best_us(graph, coarse=False)[0]


IMAGES = """
mugraph images float16
dims b=16 y=28 x=28 c=512 g=32 u=16
input X f16[b, y, x, c]
input A f16[c, g, u]
output O f16[b, y, x, g, u]
kernel k0 generated b:grid y:grid x:grid c:loop g:grid u:grid
  X = load X[b, y, x, c]
  A = load A[c, g, u]
  O[b, y, x, g, u] = dot(X, A; c)
  store O[b, y, x, g, u] = O
"""


def test_several_axes_fill_one_side_of_a_product_with_a_few_of_each() -> None:
    """Of 28 positions along x, 32 are one side; with 4 along y it is 128, and weights are read a fourth as often."""
    graph = parse_mugraph(IMAGES)
    m = model_of(graph)
    found = tiles.choices(m, graph.sizes, H200, [tiles.default_order(m)], coarse=True)
    us = estimate(m, found.batch, graph.sizes, H200).us
    blocks = dict(found.schedule(int(us.argmin())).tiles)
    assert blocks["b"] * blocks["y"] * blocks["x"] >= 64 <= blocks["g"] * blocks["u"]
    assert us.min() < 25


WHOLE = """
mugraph whole float16
dims m=256 k=8192 n=256
input X f16[m, k]
input W f16[k, n]
output O f16[m, n]
kernel k0 generated m:grid k:tile n:grid
  X = load X[m, k]
  W = load W[k, n]
  O[m, n] = dot(X, W; k)
  store O[m, n] = O
"""


def test_what_no_block_fits_is_not_worked_out() -> None:
    graph = parse_mugraph(WHOLE)
    m = model_of(graph)
    assert tiles.best_schedule(m, graph.sizes, H200) is None
    assert "at_once" not in vars(m)
    assert tiles.best_schedule(m, graph.sizes | {"k": 1024}, H200) is not None
    assert "at_once" in vars(m)


MASKED = """
mugraph masked float16
dims m=256 k=8192 n=256 s=512
input X f16[m, k]
input W f16[k, n]
input P f16[m, s]
output O f16[m, n]
output R f32[m]
kernel k0 generated m:grid k:tile n:grid s:loop
  X = load X[m, k]
  W = load W[k, n]
  P = load P[m, s]
  O[m, n] = dot(X, W; k)
  i[s] = index(s)
  j[m] = index(m)
  t[m, s] = le(i, j)
  p[m, s] = where(t, P, 0)
  R[m] = sum(p; s)
  store O[m, n] = O
  store R[m] = R
"""


def test_parts_side_by_side_have_no_schedule_where_no_block_of_one_fits() -> None:
    graph = parse_mugraph(MASKED)
    m, sizes = model_of(graph), tuple(graph.sizes.items())
    assert tiles._best_of_part(m, sizes, H200, True, frozenset()) == ()
    assert tiles.best_schedule(m, graph.sizes, H200) is None


FEATURES = """
mugraph features float16
dims h=16 s=8192 d=64 e=64 f=256
input K f16[h, s, d]
input W f16[d, f]
input V f16[h, s, e]
output O f16[h, e, f]
kernel k0 generated h:grid s:loop d:tile e:grid f:grid
  K = load K[h, s, d]
  W = load W[d, f]
  V = load V[h, s, e]
  A[h, s, f] = dot(K, W; d)
  B[h, s, f] = exp(A)
  O[h, e, f] = dot(B, V; s)
  store O[h, e, f] = O
"""


@pytest.mark.parametrize("shared", [False, True])
def test_rows_of_one_product_that_are_a_batch_of_another_are_taken_one_by_one(shared: bool) -> None:
    """The axis of the values may have the keys' name, or one of its own: both tile alike."""
    text = FEATURES
    if shared:
        text = text.replace(" e=64", "").replace(" e:grid", "").replace("e]", "d]").replace("e, f]", "d, f]")
    graph = parse_mugraph(text)
    found = tiles.best_schedule(model_of(graph), graph.sizes, H200)
    assert found is not None and found[1].tile("h") == 1


def test_blocks_of_a_large_elementwise_kernel_take_no_longer_to_start_than_to_work() -> None:
    """45 million elements on an H200: 44.7 us in blocks of 2048, 54.5 of 1024, 106.9 of 512 where kernels may overlap;
    45.4, 45.3 and 55.0 where they do not."""
    graph = parse_mugraph(ELEMENTWISE.format(m=4096 * 11008))
    first, *others = first_schedules(graph, H200, 6)
    assert dict(first.kernels["k0"].tiles) == {"m": 2048}
    assert {dict(s.kernels["k0"].tiles)["m"] for s in others} >= {512, 1024, 4096}
    for overlap, measured in ((False, (55.0, 45.3, 45.4)), (True, (106.9, 54.5, 44.7))):
        each = [KernelSchedule((("m", n),), ("m",), 4, 3, overlap=overlap) for n in (512, 1024, 2048)]
        found = [predicted(model_of(graph), s, graph.sizes, H200).us[0] for s in each]
        assert found == pytest.approx(measured, rel=0.2)


def test_small_elementwise_kernels_keep_all_multiprocessors_busy() -> None:
    graph = parse_mugraph(ELEMENTWISE.format(m=1 << 17))
    (first,) = first_schedules(graph, H200, 1)
    assert dict(first.kernels["k0"].tiles)["m"] <= 1024


@pytest.mark.parametrize(
    ("taps", "expected"),
    [(16, [1, 2, 4, 16, 32, 64, 128, 256]), (8, [1, 4, 8, 16, 32, 64, 128, 256]), (3, [1, 16, 32, 64, 128, 256])],
)
def test_whole_short_axes_fill_a_block_with_a_few_positions_of_another(taps: int, expected: list[int]) -> None:
    """Of three taps, a block of four has one empty."""
    text = f"""
mugraph strided float16
dims b=8 e=512 t=100 c=256 s=816 i={taps}
input X f16[b, c, s]
input W f16[e, c, i]
output O f16[b, e, t]
kernel k0 generated b:grid e:grid t:grid c:loop i:loop
  X = load X[b, c, t*8 + i]
  W = load W[e, c, i]
  O[b, e, t] = dot(X, W; c, i)
  store O[b, e, t] = O
"""
    graph = parse_mugraph(text)
    options = tile_options(model_of(graph), graph.sizes, coarse=False)
    assert options["c"] == expected


def test_a_block_of_one_position_reads_what_ten_share() -> None:
    """Sums of groups, once for each of their ten channels, read X ten times."""
    text = """
mugraph sums float16
dims b=2 g=32 k=10 c=320 v=4096
input X f16[b, c, v]
output S f16[b, c]
kernel k0 generated b:grid c:grid k:tile v:tile
  X = load X[b, c//10*10 + k, v]
  S[b, c] = sum(X; k, v)
  store S[b, c] = S
"""
    graph = parse_mugraph(text)
    s = KernelSchedule((("b", 1), ("c", 1)), ("b", "c", "k", "v"))
    once_us = 2 * prod(graph.sizes[d] for d in ("b", "c", "v")) / H200.l2_bytes_per_us
    assert float(estimates(graph, Schedule({"k0": s}), H200)["k0"].busy["L2"][0]) >= 10 * once_us


def test_no_blocks_of_parts_side_by_side_take_no_time() -> None:
    """Where no blocks fit one of the parts there are no schedules, of which the model says nothing."""
    graph = parse_mugraph(THREE_PROJECTIONS)
    (m,) = models(graph).values()
    assert m.several
    found = tiles.choices(m, graph.sizes, H200, tiles.orders_of(m, graph.sizes), coarse=True)
    some = estimate(m, found.batch, graph.sizes, H200)
    none = estimate(m, found.batch.some(np.zeros_like(some.us, dtype=bool)), graph.sizes, H200)
    assert some.us.size > 0
    assert none.us.size == 0
    assert none.parts.keys() == some.parts.keys()
