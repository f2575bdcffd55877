"""Kernels in other forms, as the cost model and the choice of tiles have them: several groups of a product as one."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.model import estimate
from mirage_cli.search.cost.work import models
from mirage_cli.search.tiles import best_schedule
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.changes import neighbours
from mirage_cli.tune.normal import normalised
from mirage_cli.tune.price import predicted
from mirage_cli.tune.space import ranked
from tests.codegen.test_unrolled import WIDE

H200 = find_target("h200")
CONVOLVED = parse_mugraph("""
mugraph convolved float16
dims b=16 y=28 x=28 g=32 k=16 n=16 i=3 j=3
input X f16[b, y, x, g, k]
input W f16[g, i, j, k, n]
output O f16[b, y, x, g, n]
kernel k0 generated b:grid y:grid x:grid g:grid k:tile n:grid i:loop j:loop
  W = load W[g, i, j, k, n]
  X = load X[b, i + y - 1, j + x - 1, g, k]
  O[b, y, x, g, n] = dot(X, W; i, j, k)
  store O[b, y, x, g, n] = O
""")


def planned(graph: MuGraph, tiles: str) -> KernelSchedule:
    order = ",".join(d for d, _ in graph.kernels[0].roles)
    return Schedule.parse(f"k0: {tiles} order={order} warps=4 stages=3 overlap").kernels["k0"]


def test_small_groups_are_multiplied_several_at_once() -> None:
    """Alone, 16 columns leave most of what the matrix units may multiply unused."""
    m = models(CONVOLVED)["k0"]
    found = best_schedule(m, CONVOLVED.sizes, H200)
    assert found is not None
    us, s = found
    assert s.tile("g") > 1
    (one,) = predicted(m, planned(CONVOLVED, "b=16 y=4 x=4 g=1 n=16 i=1 j=1"), CONVOLVED.sizes, H200).us
    assert us < 0.75 * one


def test_the_price_is_that_of_the_kernel_that_is_made() -> None:
    m = models(CONVOLVED)["k0"]
    schedules = [planned(CONVOLVED, f"b=16 y=4 x=4 g={n} n=16 i=1 j=1") for n in (1, 2, 4, 8)]
    found = [float(predicted(m, s, CONVOLVED.sizes, H200).us[0]) for s in schedules]
    for n, s, us in zip((2, 4, 8), schedules[1:], found[1:], strict=True):
        made = m.formed(n, CONVOLVED.sizes)
        assert made is not None
        assert float(predicted(made.model, made.form.schedule(s), made.sizes, H200).us[0]) == us
    together = estimate(m, Batch.of(m, schedules[::-1], CONVOLVED.sizes), CONVOLVED.sizes, H200).us
    assert together.tolist() == found[::-1] and len({*found}) == 4


def test_zeros_between_groups_are_not_fetched() -> None:
    """Of W all blocks together have 4 times its bytes, of which a quarter is inside."""
    m = models(CONVOLVED)["k0"]
    made = m.formed(4, CONVOLVED.sizes)
    assert made is not None
    whole = replace(made.model, inside={})
    s = made.form.schedule(planned(CONVOLVED, "b=1 y=4 x=16 g=4 n=16 i=1 j=1"))
    own, all_fetched = (float(predicted(x, s, made.sizes, H200).busy["L2"][0]) for x in (made.model, whole))
    weights, pixels = 64 * 64, 64 * 64  # of a block; 3 of 4 of the first are zeros
    assert np.isclose(own / all_fetched, (pixels + weights / 4) / (pixels + weights), rtol=0.05)


def test_schedules_are_ranked_as_of_their_own_form() -> None:
    """Each form gives schedules with so many groups, or rows, as it has in a block, in the order of their prices."""
    for graph, axis in ((CONVOLVED, "g"), (WIDE, "y")):
        m = models(graph)["k0"]
        first = [*islice(ranked(m, graph.sizes, H200), 400)]
        assert len({s.tile(axis) for s in first if axis == "g" or s.unroll}) > 1
        us = estimate(m, Batch.of(m, first, graph.sizes), graph.sizes, H200).us
        assert (np.diff(us) >= 0).all()


def test_the_tuner_tries_other_numbers_of_groups() -> None:
    best = normalised(CONVOLVED, Schedule({"k0": planned(CONVOLVED, "b=8 y=4 x=4 g=4 n=16 i=1 j=1")}))
    ((*near,),) = [[s.kernels["k0"].tile("g") for _, s in some] for some in neighbours(CONVOLVED, [best], H200)]
    assert {*near} == {2, 4, 8}
    odd = CONVOLVED.resized({**CONVOLVED.sizes, "g": 28})
    ((*near,),) = [[s.kernels["k0"].tile("g") for _, s in some] for some in neighbours(odd, [best], H200)]
    assert {*near} == {2, 4}
