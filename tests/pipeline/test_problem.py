"""What is asked of a GPU for programs whose sizes are arguments."""

from __future__ import annotations

from math import prod

import pytest

from mirage_cli.ir import masked
from mirage_cli.ir.program import MOST_JUDGED
from mirage_cli.pipeline.problem import floor_of, problems_at_other_sizes
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target

SPEC = """
name: product
dims: {m: {min: 1, max: 4096, tune: [16]}, n: 24, k: {min: 1, max: 65536, tune: [128]}}
inputs: {X: [m, k], W: [k, n]}
program: O = dot(X, W, k)
outputs: {O: [m, n]}
"""
TRIANGLE = """
name: triangle
dims: {i: 30, k: 20, n: 24}
inputs: {X: [i, k], W: [k, n]}
program: O = dot(where(index(i) >= index(k), X, 0), W, k)
outputs: {O: [i, n]}
"""


def test_kernels_are_judged_at_other_sizes_with_sums_of_their_lengths() -> None:
    (program,) = parse_spec(SPEC).programs()
    found = problems_at_other_sizes(program, 0)
    assert all(problem.inputs[0].shape == problem.arguments for problem, _ in found)
    assert all(terms == k for problem, terms in found for _, k in [problem.arguments])
    sizes = [problem.arguments for problem, _ in found]
    assert (16, 128) not in sizes
    assert {1, 4096} <= {m for m, _ in sizes} and {1, 65536} <= {k for _, k in sizes}
    assert all(sum(prod(t.shape) for t in (*p.inputs, *p.outputs)) <= MOST_JUDGED for p, _ in found)


def test_what_masks_leave_is_counted_once_for_bytes_and_once_for_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program with several long axes under masks, counting takes seconds, and every plan has a floor."""
    counted: list[int] = []
    real = vars(masked)["_regions"]
    monkeypatch.setattr(masked, "_regions", lambda *args: counted.append(1) or real(*args))
    for _ in range(3):
        floor_of(parse_spec(TRIANGLE).at(), find_target("h100"))
    assert len(counted) == 2
