"""What is read at the last position of an axis is read at the last one of the reduced axis."""

from __future__ import annotations

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.reduced import small_instance

STATES = """
name: states
dims: {b: 8, i: 64, j: 64}
inputs: {X: [b, j], V: [b, i]}
program: |
  C = sum(where(index(j) <= index(i), X, 0), j)
  O = exp(C[b, 63] - C) * V
outputs: {O: [b, i]}
"""
GIVEN = """
name: given
dims: {b: 8, i: 64}
inputs: {C: [b, i], V: [b, i]}
program: O = exp(C[b, 63] - C) * V
outputs: {O: [b, i]}
"""
BESIDE = {
    "another position": ("C[b, 63] - C)", "C[b, 63] - C - C[b, 31])"),
    "from the last on": ("C[b, 63] - C)", "C[b, 63] - C[b, 63 - i])"),
    "a number that is compared": ("* V", "* where(index(i) < 63, V, 1)"),
}


def planned(text: str) -> tuple[Program, list[MuGraph]]:
    p = lower(parse_spec(text).at())
    return p, [c.graph for c in search(p, find_target("h200"), deadline=lambda: True).candidates]


@pytest.mark.parametrize(("text", "number"), [(STATES, "index(63)"), (GIVEN, "C[b, 63]")])
def test_the_axis_is_short_in_tests(text: str, number: str) -> None:
    p, graphs = planned(text)
    assert any(number in print_mugraph(g) for g in graphs)
    for graph in graphs:
        sizes, _ = small_instance(p, graph, 0)
        assert max(sizes.values()) < 10
        assert check_equivalence(p, graph, 0).ok


@pytest.mark.parametrize("name", BESIDE)
def test_it_stays_as_long_as_other_numbers_name_positions(name: str) -> None:
    old, new = BESIDE[name]
    assert old in STATES
    p, (graph, *_) = planned(STATES.replace(old, new))
    assert small_instance(p, graph, 0)[0]["i"] == 64
    assert check_equivalence(p, graph, 0).ok


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (STATES, "index(63)", "index(62)"),
        (STATES, "index(63)", "index(31)"),
        (STATES, "le(t", "lt(t"),
        (GIVEN, "C[b, 63]", "C[b, 62]"),
        (GIVEN, "C[b, 63]", "C[b, 0]"),
    ],
)
def test_other_positions_are_refused(text: str, right: str, wrong: str) -> None:
    p, graphs = planned(text)
    graph = next(g for g in graphs if right in print_mugraph(g))
    changed = parse_mugraph(print_mugraph(graph).replace(right, wrong))
    assert changed != graph
    assert not check_equivalence(p, changed, 0).ok
