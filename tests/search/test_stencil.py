"""Differences of values at neighbouring places: one kernel makes them anew there, by the program's own operators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_cli.algebra import decompose as decomposing
from mirage_cli.algebra.decompose import decompose
from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.derived import lower
from mirage_cli.search import greedy
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import check_equivalence

H100 = find_target("h100")
FLUXES = """
name: fluxes
dims: {y: 512, x: 512}
dtype: float32
inputs: {H: [y, x], U: [y, x]}
program: |
  h = 1 + abs(H)
  p = h * U
  F = 0.5 * (p + p[y, x + 1]) - abs(U) * (h[y, x + 1] - h)
  G = 0.5 * (p + p[y + 1, x]) - abs(U) * (h[y + 1, x] - h)
  O = h - 0.1 * (F - F[y, x - 1] + G - G[y - 1, x])
outputs: {O: [y, x]}
"""


def test_fluxes_are_made_on_all_sides_of_a_cell_in_one_kernel() -> None:
    program = lower(parse_spec(FLUXES).at())
    best = search(program, H100, deadline=lambda: True).candidates[0]
    (kernel,) = best.graph.kernels
    assert check_equivalence(program, best.graph, 0).ok
    assert kernels_source(best.graph, best.schedule)
    x = next(x for x in kernel.loads if x.access[1].offset)
    moved = replace(x, access=(x.access[0], replace(x.access[1], offset=x.access[1].offset + 1)))
    loads = tuple(moved if y is x else y for y in kernel.loads)
    verdict = check_equivalence(program, replace(best.graph, kernels=(replace(kernel, loads=loads),)), 0)
    assert not verdict.ok and verdict.net == "field", verdict


@pytest.mark.parametrize(("difference", "op"), [("X - exp(Y)", "sub"), ("X + 0.5 * (X[i + 1] - exp(Y))", "add")])
def test_a_difference_at_another_place_is_of_the_program(difference: str, op: str) -> None:
    """A difference of other terms may all but cancel where the program's do not."""
    text = f"D = {difference}\n  O = D[i + 1] * D"
    spec = f"name: d\ndims: {{i: 64}}\ninputs: {{X: [i], Y: [i]}}\nprogram: |\n  {text}\noutputs: {{O: [i]}}"
    d = decompose(lower(parse_spec(spec).at()))
    (moved,) = {c for c in d.nodes for n in d.nodes[c] if n.moved and not d.is_input(n.moved[0])}
    assert [(n.origin, n.steps[0].op) for n in d.nodes[moved] if not n.moved] == [("program", op)]


def test_a_program_of_many_operators_is_one_kernel_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many classes each is still computed where it is read, not from memory alone; and of many operators none is
    stored first that is not reduced, so that fusing them one by one is left no work."""
    monkeypatch.setattr(decomposing, "MAX_CLASSES", 12)
    monkeypatch.setattr(greedy, "MANY", 10)
    monkeypatch.setattr(greedy, "_fuse", lambda *_: None)
    program = lower(parse_spec(FLUXES).at())
    best = search(program, H100, deadline=lambda: True).candidates[0]
    assert len(best.graph.kernels) == 1
    assert check_equivalence(program, best.graph, 0).ok
