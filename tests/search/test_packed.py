"""A packed projection is stored once and read in parts, at about the price of the parts' own programs."""

from __future__ import annotations

from functools import cache

import pytest

from mirage_cli.pipeline.searching import Found, Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from tests.searched import BEST

HEAD = "name: packed\ndims: {b: 32, s: 257, h: 16, d: 64, c: 1024, t: 257, w: 3}\ndtype: float16\ninputs:\n"
WEIGHTS = "  X: [b, s, c]\n  G: [c]\n  B: [c]\n  W: {dims: [w, h, d, c], scale: 0.03}\n  C: [w, h, d]\n"
NORM = {"layer norm": "  N = layer_norm(X, c) * G + B\n", "rms norm": "  N = rms_norm(X, c) * G + B\n"}
PROJECTION = "  P = dot(N, W, c) + C\n"
ATTENTION = """\
  S = dot({}, rename({}, s=t), d) * 0.125
  O = dot(softmax(S, t), rename({}, s=t), t)
"""
OUTPUT = "outputs:\n  O: [b, s, h, d]\n"


@cache
def best_us(text: str) -> float:
    found = search_program(parse_spec(text).at(), find_target("h100"), Options(budget_s=600.0, bounds=BEST, tune=False))
    assert isinstance(found, Found)
    assert not found.rejected
    return found.plans[0].predicted_us


@pytest.mark.parametrize("norm", NORM)
def test_a_norm_a_packed_projection_and_attention(norm: str) -> None:
    """Terms of a packed product that do not depend on the keys cancel from the softmax, and a mean is a difference."""
    packed = ATTENTION.format(*(f"P[b, s, h, d, {i}]" for i in range(3)))
    whole = best_us(HEAD + WEIGHTS + "program: |\n" + NORM[norm] + PROJECTION + packed + OUTPUT)
    projection = best_us(HEAD + WEIGHTS + "program: |\n" + NORM[norm] + PROJECTION + "outputs:\n  P: [w, b, s, h, d]\n")
    inputs = "  Q: [b, s, h, d]\n  K: [b, s, h, d]\n  V: [b, s, h, d]\n"
    attention = best_us(HEAD + inputs + "program: |\n" + ATTENTION.format("Q", "K", "V") + OUTPUT)
    assert whole < 1.15 * (projection + attention)
