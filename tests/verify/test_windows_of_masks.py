"""What a mask chooses at the ends of a tensor, read by a window: the kernel's mask is of the window's index."""

from __future__ import annotations

from functools import cache

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import check_equivalence

SPEC = """
name: trend
dims: {b: 2, t: 12, p: 16, j: 5}
dtype: float32
inputs: {X: [b, t]}
program: |
  P = where(PLACE < 14, where(PLACE < 2, X[b, 0], X[b, p - 2]), X[b, 11])
  O = sum(P[b, t + j], j) / 5
outputs: {O: [b, t]}
"""


@cache
def trend(place: str) -> tuple[Program, MuGraph]:
    """The moving average of series whose ends are repeated, and its fastest plan of one kernel."""
    program = parse_spec(SPEC.replace("PLACE", place)).at()
    found = search_program(program, find_target("h200"), Options(budget_s=20, tune=False))
    assert not found.rejected
    graph = next(x.graph for x in found.plans if len(x.graph.kernels) == 1)
    return lower(program), graph


@pytest.mark.parametrize("place", ["index(p)", "(0 + index(p) * 1)"])
def test_a_mask_by_the_index_of_a_window_is_the_programs(place: str) -> None:
    assert check_equivalence(*trend(place), seed=1).ok


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("lt(v0, 14)", "lt(v0, 12)"), ("lt(v0, 14)", "lt(v0, 15)"), ("lt(v0, 2)", "lt(v0, 1)"), (", 11]", ", 10]")],
)
def test_another_number_is_refused(text: str, wrong: str) -> None:
    program, graph = trend("index(p)")
    written = print_mugraph(graph)
    assert text in written
    assert not check_equivalence(program, parse_mugraph(written.replace(text, wrong)), seed=1).ok
