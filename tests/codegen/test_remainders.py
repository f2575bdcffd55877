"""Quotients of floating-point numbers that are rounded down, and what they leave, of special numbers too."""

from __future__ import annotations

import pytest
import torch

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.spec.reader import parse_spec
from tests.searched import BEST, searched

SPEC = """
name: divided
dtype: float32
inputs:
  X: [m, m2]
  Y: [m, m2]
dims: {m: 18, m2: 18}
program: |
  Q = X // Y
  R = X % Y
outputs: {Q: [m, m2], R: [m, m2]}
"""
EDGES = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 2.5, -2.5, 7.25, -7.25, 1e20, -1e20, 1e-20]
NUMBERS = torch.tensor([*EDGES, torch.inf, -torch.inf, torch.nan])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_they_are_pytorchs() -> None:
    """But beyond 2^30, where float32 has no quotient that says what is left."""
    program = parse_spec(SPEC).at()
    (best, *_) = searched(program, BEST).plans
    module = load_export(export_source(program, best.graph, best.schedule))
    x, y = (t.contiguous() for t in torch.meshgrid(NUMBERS, NUMBERS, indexing="ij"))
    quotient, rest = module.divided(x, y)
    known = ~((x / y).abs() > 2**30) | ~x.isfinite() | (y == 0)
    for found, expected in ((quotient, x // y), (rest, x % y)):
        torch.testing.assert_close(found[known], expected[known], equal_nan=True)
