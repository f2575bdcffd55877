"""What the tuner works out once for a kernel is what it would be, worked out anew for each schedule of the μGraph.

Prices, normal forms and texts of a kernel depend on its own schedule, and on some of the others': how many chunks it
reads and how long they are, whether any kernel lets the one behind start early, and which.
"""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from mirage_cli.codegen import triton
from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.changes import neighbours
from mirage_cli.tune.normal import NormalForms
from mirage_cli.tune.price import Prices
from mirage_cli.tune.space import first_schedules
from tests.mugraphs import RAGGED
from tests.tune.test_hidden import ADAPTER

H200 = find_target("h200")
BEST = Path(__file__).parents[1] / "golden" / "best"
BEHIND_LIBRARY = """
mugraph behind float16
dims m=256 k=1024 n=1024
input X f16[m, k]
input W f16[k, n]
output O f16[m, n]
buffer T f16[m, n]
kernel k0 library
  X = load X[m, k]
  W = load W[k, n]
  T[m, n] = dot(X, W; k)
  store T[m, n] = T
kernel k1 generated m:grid n:grid
  T = load T[m, n]
  O[m, n] = exp(T)
  store O[m, n] = O
"""
GRAPHS = {
    "inputs that a later kernel reads": ADAPTER,
    "two kernels, and chunks": (BEST / "gqa.mugraph").read_text(encoding="utf-8"),
    "chunks that masks leave nothing": RAGGED.replace("s=64", "s=4096").replace("p=4", "p=256"),
    "a kernel behind the library": BEHIND_LIBRARY,
}
MANNERS: tuple[dict[str, bool | int], ...] = (
    {"overlap": False},
    {"overlap": True},
    {"overlap": True, "early": True},
    {"overlap": True, "relay": True},
)
"""Ways in which a kernel overlaps with others."""


def mixed(graph: MuGraph) -> list[Schedule]:
    """Schedules that differ from one another in one kernel, and in all."""
    rng = random.Random(3)
    start = first_schedules(graph, H200, 1)[0]
    near = [s for _, s in neighbours(graph, [start], H200)[0]]
    some = rng.sample(near, min(8, len(near)))
    split = {k.name for k in graph.kernels if k.split is not None}
    some += [s for s in near if any(s.kernels[n].split != start.kernels[n].split for n in split)][:1]
    both = [{n: rng.choice(near).kernels[n] for n in start.kernels} for _ in range(4)]
    names = [*start.kernels]
    in_turn = [
        {n: start.kernels[n].choosing(**words) for n, words in zip(names, manners, strict=True)}
        for manners in product(MANNERS, repeat=len(names))
    ]
    assert any(len({s.kernels[n].split for s in some}) > 1 for n in split) or not split
    return [start, *some, *map(Schedule, (*both, *in_turn))]


def text(graph: MuGraph, s: Schedule) -> str:
    try:
        return kernels_source(graph, s)
    except EmitError as error:
        return str(error)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_known_of_a_kernel_holds_for_every_schedule_that_it_is_used_for(name: str) -> None:
    graph = parse_mugraph(GRAPHS[name])
    some = mixed(graph)
    prices, forms = Prices(graph, H200, ()), NormalForms(graph)
    triton.written_once.cache_clear()
    us = prices.totals_us(some)
    shares = [prices.kernels_us(s) for s in some]
    texts, normal = [text(graph, s) for s in some], [forms.normalised(s) for s in some]
    assert triton.written_once.cache_info().hits > len(some) // 4
    for i, s in enumerate(some):
        triton.written_once.cache_clear()
        assert text(graph, s) == texts[i], s
        assert NormalForms(graph).normalised(s) == normal[i]
        anew = Prices(graph, H200, ())
        assert anew.kernels_us(s) == pytest.approx(shares[i], rel=1e-12)
        np.testing.assert_allclose(anew.totals_us([s]), us[i : i + 1], rtol=1e-12)
