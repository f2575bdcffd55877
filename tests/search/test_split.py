"""Kernels that split an axis over program instances: what chunks store of their own positions, and what is merged."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.placement import place
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.tune.price import estimates
from mirage_cli.verify.equivalence import check_equivalence
from tests.searched import BEST

SPEC = """
name: chunks
dims: {{b: 2, v: 40000}}
inputs:
  X: [b, v]
  G: [v]
program: |
  {program}
outputs:
  Y: [b, v]
  M: {{dims: [b], dtype: float32}}
"""


@pytest.mark.parametrize(
    "program",
    [
        "Y = X * G\n  M = max(abs(Y), v)",
        "Y = softmax(X * G, v)\n  M = sum(Y * Y, v)",
        "Y = exp(X * G)\n  M = logsumexp(X, v)",
    ],
)
def test_each_chunk_stores_its_own_positions(program: str, interpreter: Interpreter) -> None:
    """What is reduced and what is stored is read once, also where rows alone keep few multiprocessors busy."""
    read = parse_spec(SPEC.format(program=program)).at()
    found = search_program(read, find_target("h100"), Options(bounds=BEST, tune=False))
    assert not found.rejected, found.rejected
    best = found.plans[0]
    chunks = [
        k for k in best.graph.kernels if k.kind == "generated" and k.split and any(x.stores for x in place(k).loops)
    ]
    assert [{s.dims for s in k.stores} for k in chunks] == [{("b", "v"), (k.chunk, "b")} for k in chunks[:1]]
    assert re.search(r"store Y\[b, v\] = Y +# omap \{x→b, y→v\}", print_mugraph(best.graph))
    judged = interpreter.judge(read, kernels_source(best.graph, best.schedule), 0)
    assert judged.ok, judged.problem


H200 = find_target("h200")
SPLIT_TWICE = """
name: split_twice
dims: {r: 4096, c: 11008}
dtype: float32
inputs: {P: [r, c], G: [r, c]}
program: |
  O = P * sum(P * P, r, c)
  S = sum(sum(G, r) ** 2, c)
outputs: {O: [r, c], S: []}
"""


def test_kernels_that_split_one_axis_cut_it_in_their_own_numbers() -> None:
    """Σ P² wants 264 chunks of r, and (Σ_r G)² one or two: it is merged in one block of all c."""
    result = search(lower(parse_spec(SPLIT_TWICE).at()), H200)
    both = [c for c in result.candidates if sum(k.split == "r" for k in c.graph.kernels) > 1]
    numbers = {tuple(c.schedule.kernels[k.name].split for k in c.graph.kernels if k.split == "r") for c in both}
    assert any(max(x) >= 16 * min(x) for x in numbers), numbers
    for c in result.candidates:
        kernels_source(c.graph, c.schedule)
        assert parse_mugraph(print_mugraph(c.graph)) == c.graph
    for c in both:
        assert len({k.chunk for k in c.graph.kernels if k.split}) == sum(bool(k.split) for k in c.graph.kernels)
        us = sum(float(e.us[0]) for e in estimates(c.graph, c.schedule, H200).values())
        assert us + H200.costs.gap_us * (len(c.graph.kernels) - 1) == pytest.approx(c.predicted_us)


def test_a_kernel_that_merges_the_chunks_of_another_is_refused() -> None:
    program = lower(parse_spec(SPLIT_TWICE).at())
    result = search(program, H200)
    several = (c.graph for c in result.candidates if len({k.chunk for k in c.graph.kernels if k.split}) > 1)
    right = next(several)
    assert check_equivalence(program, right, 0)
    merging = next(k for k in right.kernels if "r_split_1" in k.with_role("tile"))
    wrong = (k.renamed({"r_split_1": "r_split"}) if k is merging else k for k in right.kernels)
    verdict = check_equivalence(program, replace(right, kernels=(*wrong,)), 0)
    assert not verdict.ok and verdict.net == "structure", verdict


def test_short_axes_are_split_where_a_sum_over_them_is_long() -> None:
    """The gradient of a convolution's weight: few rows and columns, and a sum over 32 pictures of 28 by 28."""
    text = "name: taps\ndims: {b: 32, y: 28, x: 28, c: 128, o: 128, i: 3, j: 3}\n"
    text += "inputs: {X: [b, y, x, c], D: [b, y, x, o]}\n"
    text += "program: O = dot(X[b, y + i - 1, x + j - 1, c], D, b, y, x)\noutputs: {O: [o, i, j, c]}\n"
    result = search(lower(parse_spec(text).at()), find_target("h100"))
    best = result.candidates[0]
    assert [k.split for k in best.graph.kernels] == ["b", None]
    assert 3 * best.predicted_us < min(
        c.predicted_us for c in result.candidates if not any(k.split for k in c.graph.kernels)
    )
