"""Windows in registers: what they share is loaded once, and rows of a block are values of their own."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from mirage_cli.codegen.export import kernels_source
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.ir.unrolled import Windows, at_schedule, axes_of, in_blocks, windows
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.model import estimate
from mirage_cli.search.cost.work import models
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.changes import neighbours
from mirage_cli.tune.normal import normalised
from mirage_cli.tune.price import predicted
from mirage_cli.tune.space import ranked
from tests.codegen.test_triton import check
from tests.mugraphs import CASES

H200 = find_target("h200")
WEIGHTED = """
mugraph weighted float32
dims b=2 y=7 x=5 c=12 i=3 j=2 yi=7 xi=6
input X f32[b, yi, xi, c]
input W f32[i, j, c]
output O f32[b, y, x, c]
kernel k0 generated b:grid y:grid x:grid c:grid i:ROLE j:tile
  X = load X[b, y + i*2 - 2, x + j, c]
  W = load W[i, j, c]
  S[b, y, x, c] = dot(X, W; i, j)
  O[b, y, x, c] = relu(S)
  store O[b, y, x, c] = O
"""
POOLED = """
mugraph pooled float16
dims b=2 y=6 x=6 c=4 i=3 j=3 yi=12 xi=6
input X f16[b, c, yi, xi]
output O f16[b, c, y, x]
kernel k0 generated b:grid y:grid x:grid c:grid i:tile j:tile
  X = load X[b, c, y*2 + i - 1, x + j - 1]
  a[y, i] = index(y*2 + i - 1)
  a0[y, i] = ge(a, 0)
  a1[y, i] = lt(a, 12)
  a2[y, i] = and(a0, a1)
  e[x, j] = index(x + j - 1)
  e0[x, j] = ge(e, 0)
  e1[x, j] = lt(e, 6)
  e2[x, j] = and(e0, e1)
  m[y, x, i, j] = and(a2, e2)
  t[b, y, x, c, i, j] = where(m, X, -inf)
  O[b, y, x, c] = max(t; i, j)
  store O[b, c, y, x] = O
"""
COMPARED = """
mugraph compared float32
dims b=2 y=7 c=12 i=3 yi=9
input X f32[b, yi, c]
output O f32[b, y, c]
kernel k0 generated b:grid y:grid c:grid i:tile
  X = load X[b, y + i, c]
  a[y, i] = index((y + i*2)%3)
  m[y, i] = OP(a, 1)
  n[b, y, c, i] = OP(X, 1)
  t[b, y, c, i] = where(m, X, 0)
  u[b, y, c, i] = where(n, 0, t)
  O[b, y, c] = sum(u; i)
  store O[b, y, c] = O
"""
COMPARED_SPEC = """
name: compared
dims: {b: 2, y: 7, c: 12, i: 3, yi: 9}
dtype: float32
inputs: {X: [b, yi, c]}
program: |
  P = X[b, y + i, c]
  O = sum(where(P OP 1, 0, where((index(y) + 2 * index(i)) % 3 OP 1, P, 0)), i)
outputs: {O: [b, y, c]}
"""
WEIGHTED_SPEC = """
name: weighted
dims: {b: 2, y: 7, x: 5, c: 12, i: 3, j: 2, yi: 7, xi: 6}
dtype: float32
inputs: {X: [b, yi, xi, c], W: [i, j, c]}
program: O = relu(dot(X[b, y + 2*i - 2, x + j, c], W, i, j))
outputs: {O: [b, y, x, c]}
"""
POOLED_SPEC = """
name: pooled
dims: {b: 2, y: 6, x: 6, c: 4, i: 3, j: 3, yi: 12, xi: 6}
dtype: float16
inputs: {X: [b, c, yi, xi]}
program: O = max(pad(X, -inf)[b, c, 2*y + i - 1, x + j - 1], i, j)
outputs: {O: [b, c, y, x]}
"""


def weighted(role: str = "tile") -> MuGraph:
    return parse_mugraph(WEIGHTED.replace("ROLE", role))


def planned(graph: MuGraph, tiles: str, unroll: bool = True) -> Schedule:
    order = ",".join(d for d, _ in graph.kernels[0].roles)
    return Schedule.parse(f"k0: {tiles} order={order} warps=1 stages=2 overlap" + " unroll" * unroll)


def kernel_in_registers(graph: MuGraph, tiles: str) -> Kernel:
    made = at_schedule(graph, graph.kernels[0], planned(graph, tiles).kernels["k0"], graph.sizes)
    assert made is not None
    return made.kernel


def test_rows_of_a_block_share_what_their_windows_have_in_common() -> None:
    """Windows 2 apart in a row of blocks of 3: rows -2 to 4 are loaded once, at two places of x each."""
    k = kernel_in_registers(weighted(), "b=1 y=3 x=4 c=4")
    read = [str(x.access[1]) for x in k.loads if x.buffer == "X"]
    assert sorted({*read}) == sorted(
        ["y_rows*3 - 2", *(f"y_rows*3{n}" for n in (" - 1", "", " + 1", " + 2", " + 3", " + 4"))]
    )
    assert len(read) == 2 * 7
    assert [x.buffer for x in k.loads].count("W") == 6
    assert [e.op for e in k.body].count("mul") == 3 * 6 and not any(e.axes for e in k.body)
    assert [str(s.access[1]) for s in k.stores] == ["y_rows*3", "y_rows*3 + 1", "y_rows*3 + 2"]


def test_axes_of_a_window_that_the_kernel_walks_stay_loops() -> None:
    k = kernel_in_registers(weighted("loop"), "b=1 y=3 x=2 c=4 i=1")  # rows along x: these windows overlap along j
    assert k.with_role("loop") == ("i",) and k.with_role("tile") == ()
    assert [e.axes for e in k.body if e.op == "sum"] == [("i",)] * 2


@pytest.mark.parametrize(
    ("graph", "tiles"),
    [
        pytest.param(weighted(), "b=1 y=3 x=4 c=4", id="rows past the end"),
        pytest.param(weighted(), "b=2 y=1 x=1 c=16", id="one row"),
        pytest.param(weighted(), "b=1 y=7 x=2 c=8", id="all rows"),
        pytest.param(weighted("loop"), "b=2 y=2 x=3 c=4 i=1", id="rows along x"),
        pytest.param(weighted("loop"), "b=1 y=4 x=5 c=4 i=2", id="two places in a step"),
        pytest.param(parse_mugraph(POOLED), "b=1 y=2 x=4 c=2", id="maxima that leave out what lies outside"),
        pytest.param(parse_mugraph(POOLED), "b=2 y=6 x=8 c=1", id="maxima of all rows"),
        pytest.param(parse_mugraph(POOLED), "b=1 y=4 x=2 c=4", id="maxima of rows past the end"),
    ],
)
def test_they_compute_the_same(graph: MuGraph, tiles: str) -> None:
    assert at_schedule(graph, graph.kernels[0], planned(graph, tiles).kernels["k0"], graph.sizes) is not None
    spec = {"weighted": WEIGHTED_SPEC, "pooled": POOLED_SPEC}[graph.name]
    check(graph, planned(graph, tiles), lower(parse_spec(spec).at()))


PARTS = """
name: parts
dims: {b: 2, y: 6, z: 5, o: 12, c: 4, i: 3, u: 9}
dtype: float32
inputs: {X: [b, u, c], W: [i, c], O: [b, o, c]}
program: |
  a = dot(X[b, y + i, c], W, i)
  O[b, y + 2, c] = a
outputs: {O: {inout: O}}
"""
IN_PART = """
mugraph parts float32
dims b=2 y=6 z=5 o=12 c=4 i=3 u=9
input X f32[b, u, c]
input W f32[i, c]
input O f32[b, o, c]
kernel k0 generated b:grid y:grid c:grid i:tile
  X = load X[b, y + i, c]
  W = load W[i, c]
  a[b, y, c] = dot(X, W; i)
  store O[b, y + 2, c] = a
"""


def test_rows_behind_a_part_of_a_tensor_are_not_stored() -> None:
    """Of blocks of 4 rows of 6, the last two would be in another part of the tensor."""
    graph, program = parse_mugraph(IN_PART), lower(parse_spec(PARTS).at())
    (k,) = graph.kernels
    for rows, made in ((2, True), (3, True), (4, False)):
        s = planned(graph, f"b=1 y={rows} c=4")
        assert (at_schedule(graph, k, s.kernels["k0"], graph.sizes) is not None) == made
        check(graph, s, program)


@pytest.mark.parametrize(("op", "symbol"), [("eq", "=="), ("ne", "!=")])
def test_a_number_is_no_mask(op: str, symbol: str) -> None:
    """x == 1 is neither x nor a mask that holds everywhere."""
    graph, tiles = parse_mugraph(COMPARED.replace("OP", op)), "b=1 y=2 c=4"
    assert [e.op for e in kernel_in_registers(graph, tiles).body].count(op) == 3 + 4  # of remainders, and of rows
    inputs = {"X": torch.arange(2 * 9 * 12).reshape(2, 9, 12).remainder(4).float()}
    check(graph, planned(graph, tiles), lower(parse_spec(COMPARED_SPEC.replace("OP", symbol)).at()), inputs)


NOWHERE = """
name: nowhere
dims: {b: 2, y: 3, s: 4, q: 2, u: 2}
dtype: bfloat16
inputs: {X: [b, u, s]}
program: |
  a = max(X[b, y - q - 1, s], q)
  O = where(index(s) == 2, a, 1)
outputs: {O: [b, y, s]}
"""
NOWHERE_IN_BLOCKS = """
mugraph nowhere bfloat16
dims b=2 y=3 s=4 q=2 u=2
input X bf16[b, u, s]
output O bf16[b, y, s]
kernel k0 generated b:grid y:grid s:grid q:tile
  X = load X[b, y - q - 1, s]
  d[y, q] = index(y - q - 1)
  n[y, q] = ge(d, 0)
  w[b, y, s, q] = where(n, X, 0)
  a[b, y, s] = max(w; q)
  p[s] = index(s)
  m[s] = eq(p, 2)
  O[b, y, s] = where(m, a, 1)
  store O[b, y, s] = O
"""


def test_what_is_chosen_of_two_numbers_has_the_type_of_the_equation() -> None:
    """A row whose window lies outside is 0: it is no integer for that."""
    graph = parse_mugraph(NOWHERE_IN_BLOCKS)
    s = planned(graph, "b=1 y=4 s=4")
    assert re.search(r"tl\.where\(\w+, 0\.0, 1\.0\)", kernels_source(graph, s))
    check(graph, s, lower(parse_spec(NOWHERE).at()))


def test_comparisons_that_hold_everywhere_are_not_made() -> None:
    """Of rows 4*y_rows - 1 to 4*y_rows + 3 of 12, the first alone may lie outside."""
    k = kernel_in_registers(parse_mugraph(POOLED), "b=1 y=2 x=4 c=2")
    compared = [e.op for e in k.body if e.type == "bool"]
    assert compared.count("ge") == 2 and compared.count("lt") == 1  # of the first row, and of two columns
    assert [e.op for e in k.body].count("where") == 3 + 4 * 2  # the other rows need none in their middle column


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((("W; i, j)", "W; i)"), ("x, c] = ", "x, c, j] = ")), id="an axis stays"),
        pytest.param((("y + i*2 - 2, x + j", "y, x"),), id="nothing overlaps"),
        pytest.param((("i=3 j=2", "i=12 j=12"),), id="too many places"),
        pytest.param((("c:grid", "c:split"),), id="chunks"),
        pytest.param(
            (
                ("c=12", "c=16 n=16"),
                ("W[i, j, c]", "W[i, j, c, n]"),
                ("W f32[i, j, c]", "W f32[i, j, c, n]"),
                ("O f32[b, y, x, c]", "O f32[b, y, x, n]"),
                ("c:grid", "c:tile n:grid"),
                ("x, c] = ", "x, n] = "),
                ("W; i, j)", "W; i, j, c)"),
            ),
            id="a product of matrices",
        ),
    ],
)
def test_of_other_kernels_there_are_none(changes: tuple[tuple[str, str], ...]) -> None:
    text = WEIGHTED.replace("ROLE", "tile")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    graph = parse_mugraph(text)
    k = graph.kernels[0]
    assert windows(k, axes_of(k, graph.sizes), frozenset(), ()) is None


def test_neighbours_in_memory_are_no_rows_and_sizes_that_differ_by_call_have_none() -> None:
    graph = parse_mugraph(WEIGHTED.replace("ROLE", "tile").replace("y + i*2 - 2, x + j, c]", "y, c, x + j + i]"))
    graph = replace(
        graph, inputs=tuple(replace(t, dims=("b", "yi", "c", "xi")) if t.name == "X" else t for t in graph.inputs)
    )
    k, axes = graph.kernels[0], axes_of(graph.kernels[0], graph.sizes)
    assert windows(k, axes, frozenset(), ()) == Windows(("i", "j"), None)
    k, axes = weighted().kernels[0], axes_of(weighted().kernels[0], weighted().sizes)
    assert windows(k, axes, frozenset(), ()) == Windows(("i", "j"), "y")
    assert windows(k, axes, frozenset({"y"}), ()) == Windows(("i", "j"), "x")
    assert windows(k, axes, frozenset({"i"}), ()) is None


def test_a_schedule_that_asks_for_what_cannot_be_is_one_of_blocks() -> None:
    """More rows than there are, of which some would be stored from nowhere, or of a kernel without windows."""
    graph = CASES["matmul"].graph
    s = Schedule(
        {
            k.name: KernelSchedule(tuple((d, 16) for d, _ in k.roles), tuple(d for d, _ in k.roles), unroll=True)
            for k in graph.kernels
        }
    )
    plain = Schedule({name: replace(k, unroll=False) for name, k in s.kernels.items()})
    assert normalised(graph, s) == normalised(graph, plain)
    for k in graph.kernels:
        assert plan_kernel(graph, k, s, graph.sizes) == plan_kernel(graph, k, plain, graph.sizes)
    seven = KernelSchedule((("y", 7), ("x", 4)), ("y", "x"), unroll=True)
    assert in_blocks(seven) == KernelSchedule((("y", 4), ("x", 4)), ("y", "x"))


WIDE = weighted().resized({"b": 16, "y": 56, "yi": 56, "x": 56, "xi": 57, "c": 256})


def test_the_price_is_that_of_the_kernel_that_is_made() -> None:
    """Rows of 4 cost what the unrolled kernel costs in blocks of one; a batch may have several, and none."""
    m = models(WIDE)["k0"]
    schedules = [planned(WIDE, f"b=1 y={n} x=4 c=64").kernels["k0"] for n in (4, 1, 7)]
    found = [float(predicted(m, s, WIDE.sizes, H200).us[0]) for s in schedules]
    made = m.formed(4, WIDE.sizes)
    assert made is not None
    assert float(predicted(made.model, made.form.schedule(schedules[0]), made.sizes, H200).us[0]) == found[0]
    assert made.form.original(made.form.schedule(schedules[0])).tiles == schedules[0].tiles
    mixed = [*schedules, replace(schedules[0], unroll=False), planned(WIDE, "b=1 y=56 x=4 c=64").kernels["k0"]]
    together = estimate(m, Batch.of(m, mixed, WIDE.sizes), WIDE.sizes, H200).us
    assert together[:3].tolist() == found and np.isfinite(together[3]) and np.isinf(together[4])


def test_few_warps_hide_less_where_all_is_loaded_first() -> None:
    """Four rows need the registers of more loads than one: of what does not dominate more shows."""
    m = models(WIDE)["k0"]

    def shown(rows: int) -> float:
        batch = Batch.of(m, [planned(WIDE, f"b=1 y={rows} x=8 c=64").kernels["k0"]], WIDE.sizes)
        own, without = (float(estimate(m, batch, WIDE.sizes, H200, x).us[0]) for x in ((), {"apart"}))
        return own / without

    assert shown(4) > shown(1) > 1


def test_the_tuner_tries_windows_in_registers_and_in_blocks() -> None:
    m = models(WIDE)["k0"]
    best = next(ranked(m, WIDE.sizes, H200))
    assert best.unroll and best.tile("y") > 1
    ((*near,),) = [[s.kernels["k0"] for _, s in found] for found in neighbours(WIDE, [Schedule({"k0": best})], H200)]
    assert any(not s.unroll for s in near) and any(s.unroll and s.tile("y") != best.tile("y") for s in near)
    assert all(s.unroll or s.tile("y").bit_count() == 1 for s in near)
