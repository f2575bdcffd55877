"""How large values may be, by kernel: what a choice between two forms of exp(x - m) follows from."""

from __future__ import annotations

import pytest
import torch

from mirage_cli.ir.largest import MEAN, largest
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.verify.testdata import DISTRIBUTIONS

GRAPH = """
mugraph t {name}
dims m=8 n=4 k=16
input X {short}[m, k]
input W {short}[k, n]
output O {short}[m, n]
buffer b {short}[m, n]

kernel k0 generated m:grid k:loop n:tile
  X = load X[m, k]
  W = load W[k, n]
  b[m, n] = dot(X, W; k)
  store b[m, n] = b

kernel k1 generated m:grid n:tile
  b = load b[m, n]
  {more}
  store O[m, n] = O
"""


def graph(more: str, dtype: str = "bfloat16") -> MuGraph:
    return parse_mugraph(GRAPH.format(more=more, name=dtype, short={"bfloat16": "bf16", "float16": "f16"}[dtype]))


@pytest.mark.parametrize(
    ("more", "times"),
    [
        ("O[m, n] = neg(b)", 1.0),
        ("O[m, n] = mul(b, 3)", 3.0),
        ("O[m, n] = sub(b, b)", 2.0),
        ("y[m] = max(b; n)\n  O[m, n] = sub(b, y)", 2.0),
        ("y[m] = sum(b; n)\n  O[m, n] = add(b, y)", 5.0),
        ("c[m, n] = gt(b, 3)\n  O[m, n] = where(c, b, -inf)", 1.0),
        ("O[m, n] = sqrt(b)", 160000.0**-0.5),
    ],
)
def test_magnitudes_follow_from_those_of_the_inputs(more: str, times: float) -> None:
    found = largest(graph(more))
    assert found["k0"]["b"] == 16 * 100.0 * 100.0
    assert found["k1"]["O"] == pytest.approx(160000.0 * times)


def test_buffers_hold_no_more_than_their_type() -> None:
    found = largest(graph("O[m, n] = neg(b)", "float16"))
    assert (found["k0"]["b"], found["k1"]["O"]) == (160000.0, 65504.0)


def test_a_normalised_value_is_about_one_whatever_it_is_made_of() -> None:
    more = "y[m, n] = mul(b, b)\n  z[m] = sum(y; n)\n  r[m] = rsqrt(z)\n  O[m, n] = mul(b, r)"
    assert largest(graph(more))["k1"]["O"] == pytest.approx(0.5)


def test_exponentials_of_differences_are_at_most_one() -> None:
    more = "y[m] = max(b; n)\n  O[m, n] = exp_sub(b, y)"
    assert largest(graph(more))["k1"]["O"] == 1.0


def test_the_mean_is_that_of_the_tests() -> None:
    (kind,) = (x for x in DISTRIBUTIONS if x.name == "large mean")
    assert float(kind.change(torch.zeros(1), 1.0, 1, 1)) == MEAN
