"""Partial results that the kernels behind them merge themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.predicting import judge_small
from mirage_cli.search.assembly import ScheduledGraph
from mirage_cli.search.generator import search
from mirage_cli.search.unmerged import without_merges
from mirage_cli.spec.reader import load_spec, parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.equivalence import check_equivalence

H200 = find_target("h200")
SPECS = Path(__file__).parents[2] / "search_specs"
FAR = replace(H200, costs=replace(H200.costs, gap_us=1000.0))
"""A target on which any plan with fewer kernels is faster."""

NORMALISED = """
name: normalised
dims: {b: 2, k: 65536}
inputs:
  X: [b, k]
program: |
  D = X - mean(X, k)
  O = D / sqrt(mean(square(D), k) + 0.001)
outputs:
  O: [b, k]
"""
SHARED = """
name: shared
dims: {b: 2, i: 2, k: 65536}
dtype: float32
inputs:
  X: [b, k]
  Y: [i, k]
program: |
  M = max(X, k)
  Z = sum(exp(X - M), k)
  O = M - rename(Z, b=i) * Y
  P = M + Z + X
outputs:
  O: [b, i, k]
  P: [b, k]
"""


def plans(text: str) -> tuple[Program, list[ScheduledGraph]]:
    program = lower(parse_spec(text).at())
    return program, [*search(program, H200).candidates]


def merging(c: ScheduledGraph) -> list[str]:
    """The kernels that read chunks."""
    return [k.name for k in c.graph.kernels if any({*x.dims} - c.graph.sizes.keys() for x in k.loads)]


def test_two_statistics_and_what_they_normalise_are_three_kernels() -> None:
    program, found = plans(NORMALISED)
    best = found[0]
    assert len(best.graph.kernels) == 3 and merging(best) == ["k1", "k2"]
    assert any(len(c.graph.kernels) == 5 and c.predicted_us > best.predicted_us for c in found)
    assert check_equivalence(program, best.graph, 0).ok
    assert parse_mugraph(print_mugraph(best.graph)) == best.graph


@pytest.mark.parametrize("text", [NORMALISED, SHARED])
def test_kernels_that_merge_what_they_read_are_right(text: str, interpreter: Interpreter) -> None:
    program, found = plans(text)
    named = {e.out for e in program.eqns}
    others = [(c, without_merges(c, FAR, named)) for c in found]
    changed = [after for c, after in others if len(after.graph.kernels) < len(c.graph.kernels)]
    assert changed
    assert all(check_equivalence(program, c.graph, 0).ok for c in changed)
    assert judge_small(interpreter, program, changed[0].graph, changed[0].schedule).ok


def test_what_is_an_output_too_is_merged_by_a_kernel_of_its_own() -> None:
    text = NORMALISED.replace("outputs:\n", "outputs:\n  M: {dims: [b], dtype: float32}\n").replace(
        "  D = X - mean(X, k)", "  M = mean(X, k)\n  D = X - M"
    )
    program, found = plans(text)
    after = without_merges(found[0], FAR, {e.out for e in program.eqns})
    assert any(s.buffer == "M" for k in after.graph.kernels for s in k.stores)
    assert check_equivalence(program, after.graph, 0).ok


def test_a_maximum_of_all_positions_is_not_taken_of_a_part() -> None:
    """What merges the sums of a product takes the maximum of its rows too, which a reader that splits them has not."""
    program = lower(load_spec(SPECS / "gqa_decode.yaml").at({"b": 1}))
    found = {c.shape: c for c in search(program, H200).candidates if len(c.graph.kernels) == 3}
    assert found
    for c in [*found.values()][:8]:
        assert check_equivalence(program, c.graph, 0).ok
