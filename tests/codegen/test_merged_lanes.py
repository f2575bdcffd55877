"""Operands with several axes on one side of a product, loaded through pointers as the matrices that are multiplied."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest

from mirage_cli.codegen import addresses, plan, scalars
from mirage_cli.codegen.check import PlanError
from mirage_cli.codegen.check import check as check_plan
from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.spec.reader import parse_spec
from tests.codegen.conftest import Stages
from tests.codegen.test_access import WINDOWS, choosing
from tests.codegen.test_plan import changed, plans
from tests.codegen.test_triton import PRODUCT, SPLIT_TWO, as_program, check, kernel, schedule

LINEAR = "m:grid n:grid k:loop l:loop"


def projection(weights: str = "n,a,d", n: int = 40, a: int = 5, d: int = 24, b: int = 3, how: str = "") -> MuGraph:
    """A product that sums over two axes: heads and positions in them."""
    header = f"n={n} a={a} d={d} b={b}; A[b,a,d] W[{weights}]; O[n,b]{how}"
    return kernel(header, "n:grid a:loop d:loop b:tile", "O[n, b] = dot(A, W; a, d)")


def loads(source: str) -> list[str]:
    """The axes of loaded blocks, as the comments behind them say."""
    return re.findall(r" = tl\.load\(.*# \[(.*)\]", source)


@pytest.mark.parametrize("weights", [",".join(p) for p in permutations("nad")])
@pytest.mark.parametrize("tiles", ["n=16 a=2 d=16", "n=16 a=4 d=8", "n=32 a=8 d=32"])
def test_summed_axes_are_one_axis_of_both_operands(weights: str, tiles: str) -> None:
    """However they lie in memory, and past the end of both."""
    graph = projection(weights)
    for order in ("n a d b", "b n a d", "d n a b", "d a b n"):
        source = kernels_source(graph, schedule(graph, tiles, order))
        assert all({"a*d", "d*a"} & {*axes.split(", ")} for axes in loads(source))
        assert "tl.reshape" not in source
        check(graph, schedule(graph, tiles, order))


@pytest.mark.parametrize("how", ["; bfloat16", "; float32"])
def test_of_each_type(how: str) -> None:
    graph = projection(how=how)
    plan = schedule(graph, "n=16 a=4 d=16", "n a d b")
    assert loads(kernels_source(graph, plan)) == ["a*d, b", "n, a*d"]
    check(graph, plan)


def test_three_summed_axes() -> None:
    graph = kernel(
        "n=24 a=3 c=5 d=6 b=3; A[b,a,d,c] W[c,n,a,d]; O[n,b]",
        "n:grid a:loop c:loop d:loop b:tile",
        "O[n, b] = dot(A, W; a, c, d)",
    )
    plan = schedule(graph, "n=16 a=2 c=4 d=4", "n a c d b")
    source = kernels_source(graph, plan)
    assert loads(source) == ["a*c*d, b", "n, a*c*d"]
    assert "tl.arange(0, BLOCK_a * BLOCK_c * BLOCK_d) // BLOCK_d % BLOCK_c" in source
    check(graph, plan)


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_split_axis_among_them(chunks: int) -> None:
    """The last chunk is short."""
    program = as_program(
        kernel("m=18 k=33 l=12 n=17; X[m,k,l] W[l,k,n]; Y[m,n]", LINEAR, PRODUCT.format(out="m, n", over="k, l"))
    )
    graph = parse_mugraph(SPLIT_TWO.format(k=33, l=12))
    plan = schedule(graph, "m=16 n=16 k=4 l=8", chunks=chunks)
    assert all("k*l" in axes or "l*k" in axes for axes in loads(kernels_source(graph, plan))[:2])
    check(graph, plan, program)


def test_windows_keep_their_axes() -> None:
    """Bounds are worked out for each position of an axis, of which a merged one has as many as both together."""
    graph = parse_mugraph(WINDOWS)
    source = kernels_source(graph, schedule(graph, "b=1 y=4 x=4 c=16 i=1 j=1 e=16", "b y x c i j e"))
    assert "y, x, c" in loads(source)


def test_what_something_else_reads_keeps_its_axes() -> None:
    """Merged for its product, what is loaded has no axis that a sum over groups could name."""
    body = "T[m, g, c] = dot(X, W; k)\nV[g, c] = sum(W; k)\nY[m, g, c] = mul(T, V)"
    graph = kernel("m=32 g=8 c=8 k=32; X[m,k] W[g,c,k]; Y[m,g,c]", "m:grid g:grid c:tile k:loop", body)
    plan = schedule(graph, "m=16 g=4 k=16", "m k g c")
    assert "k, g, c" in loads(kernels_source(graph, plan))
    check(graph, plan)


BY_TABLE = """mugraph named float16
dims b=3 s=4 h=2 d=8 r=5 pages=9
input Q f16[b, h, d, r]
input K f16[pages, h, d]
input P i32[b, s] below pages
output O f16[b, s, r]

kernel k0 generated b:grid s:grid r:tile h:tile d:tile
  Q = load Q[b, h, d, r]
  K = load K[P{pages}[b, s], h, d]
  O[b, s, r] = dot(Q, K; h, d)
  store O[b, s, r] = O
"""

NAMED = """
name: named
dims: {b: 3, s: 4, h: 2, d: 8, r: 5, pages: 9}
inputs:
  Q: [b, h, d, r]
  K: [pages, h, d]
  P: {dims: [b, s], dtype: int32, below: pages}
program: O = dot(Q, K[P[b, s], h, d], h, d)
outputs:
  O: [b, s, r]
"""


def test_rows_that_a_table_names_lie_in_the_order_of_its_block() -> None:
    """A product has its batches in front, whatever the order of a table's block. Where that has as many of both, one
    would be taken for the other."""
    graph, program = parse_mugraph(BY_TABLE), parse_spec(NAMED).at()
    for order, merged in (("b s h d r", "b, s, h*d"), ("s b h d r", "s, b, h, d")):
        plan = schedule(graph, "b=16 s=16", order)
        assert merged in loads(kernels_source(graph, plan))
        check(graph, plan, program)


@pytest.mark.parametrize("order", ["n a d b", "b n a d"])
def test_nothing_goes_through_registers_on_its_way(order: str, stage: Stages) -> None:
    """On an H200 a projection of 4,096 x 4,096 for 8 rows took 29.8 us where blocks of two axes were reshaped."""
    graph = projection(n=4096, a=32, d=128, b=8)
    plan = choosing(schedule(graph, "n=64 a=2 d=64", order), warps=4, stages=4)
    loop = stage(graph, plan, 90, "ttgir").split("scf.for", 1)[1].split("scf.yield", 1)[0]
    assert not re.search("tt.reshape|tt.trans|ttg.convert_layout|ttg.local_alloc", loop)
    assert loop.count("ttg.async_copy_global_to_local") == 2
    assert ("ttng.warp_group_dot" in loop and "ttg.local_load" not in loop) == (order == "n a d b")


# -- what a plan must hold


def refused(message: str, how: Callable[[plan.Load, addresses.Pointers], plan.Load]) -> None:
    """The plan of a projection whose loads are changed so is refused."""
    graph = projection()
    (whole,) = plans(graph, schedule(graph, "n=16 a=4 d=16", "n a d b"))
    check_plan(whole)

    def put(s: plan.Statement) -> list[plan.Statement]:
        return [how(s, s.access)] if isinstance(s, plan.Load) and isinstance(s.access, addresses.Pointers) else [s]

    with pytest.raises(PlanError, match=message):
        check_plan(changed(whole, put))


def test_each_axis_of_a_merged_one_is_addressed_once() -> None:
    refused("of merged axes", lambda s, p: replace(s, access=replace(p, terms=p.terms[:-1])))
    refused("of merged axes", lambda s, p: replace(s, access=replace(p, terms=(*p.terms, p.terms[-1]))))


def test_each_axis_of_a_merged_one_is_masked() -> None:
    refused("is masked along", lambda s, _: replace(s, mask=tuple(d for d in s.mask if d != "d")))


def test_positions_of_a_merged_axis_are_those_of_the_current_block() -> None:
    def moved(p: addresses.Place) -> addresses.Place:
        return replace(p, start=scalars.AtZero()) if isinstance(p, addresses.MergedLanes) else p

    def elsewhere(s: plan.Load, x: addresses.Pointers) -> plan.Load:
        return replace(s, access=replace(x, terms=tuple((moved(p), n) for p, n in x.terms)))

    refused("from elsewhere", elsewhere)


def test_positions_have_their_axes_in_the_order_of_the_block() -> None:
    """Else rows of a block would be taken for its columns."""

    def turned(s: plan.Load, x: addresses.Pointers) -> plan.Load:
        table = addresses.Looked("A", x.axes[::-1], False)
        return replace(s, access=replace(x, terms=(*x.terms, (table, 1))))

    refused("positions along .* in a block with", turned)
