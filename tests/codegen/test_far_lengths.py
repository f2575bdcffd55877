"""Loops end at lengths beyond all positions, whatever they are: beside positions, the largest integers wrap around."""

from __future__ import annotations

import pytest
import torch

from mirage_cli.ir.derived import lower
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.spec.reader import parse_spec
from tests.codegen.test_triton import check

SPEC = """
name: far
dims: {h: 4, t: 5, s: 90}
dtype: float32
inputs: {X: [h, s], L: {dims: [h], dtype: int32}}
program: O = sum(where(index(s) - index(t) - 1 < L, X, 0), s)
outputs: {O: [h, t]}
"""
GRAPH = """
mugraph far float32
dims h=4 t=5 s=90
input X f32[h, s]
input L i32[h]
output O f32[h, t]
kernel k0 generated h:grid t:grid s:loop
  X = load X[h, s]
  L = load L[h]
  i[t, s] = index(s - t - 1)
  m[h, t, s] = lt(i, L)
  Y[h, t, s] = where(m, X, 0)
  O[h, t] = sum(Y; s)
  store O[h, t] = O
"""


@pytest.mark.parametrize("tiles", ["h=1 t=1 s=8", "h=4 t=8 s=16"])
@pytest.mark.parametrize("swapped", [False, True])
def test_any_integer_is_a_length(tiles: str, swapped: bool) -> None:
    lengths = torch.tensor([(1 << 31) - 1, -(1 << 31), 0, 40], dtype=torch.int32)
    inputs = {"X": torch.randn(4, 90), "L": lengths}
    spec, graph = SPEC, GRAPH
    if swapped:
        spec, graph = spec.replace("- 1 < L", "- 1 >= L"), graph.replace("lt(i, L)", "ge(i, L)")
    s = Schedule.parse(f"k0: {tiles} order=h,t,s warps=1 stages=2")
    check(parse_mugraph(graph), s, lower(parse_spec(spec).at()), inputs)
