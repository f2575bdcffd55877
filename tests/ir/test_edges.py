"""Functions of OPS where numbers end: infinities, NaNs, halves, negative numbers. Numbers in the place of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Arg, Builder, Program, Tensor
from tests.ir.test_ops import (
    COLUMNS,
    ELEMENTWISE,
    ORDER,
    SIZES,
    Array,
    Case,
    assert_close,
    domain,
    drawn,
    through_triton,
)
from tests.rows import rows

EDGES: Mapping[str, list[tuple[float, ...]]] = {
    "floor": [(-0.5, -1), (2, 2), (-1e-40, -1), (math.inf, math.inf), (-math.inf, -math.inf), (math.nan, math.nan)],
    "ceil": [(0.5, 1), (-2, -2), (1e-40, 1), (math.inf, math.inf), (-math.inf, -math.inf), (math.nan, math.nan)],
    "round": [
        (0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-2.5, -2), (0.49999997, 0), (8388609.0, 8388609.0),
        (math.inf, math.inf), (-math.inf, -math.inf), (math.nan, math.nan),
    ],
    "sign": [(3, 1), (-1e-40, -1), (0, 0), (math.inf, 1), (-math.inf, -1), (math.nan, 0)],
    "log1p": [
        (-1, -math.inf), (-2, math.nan), (1e-20, 1e-20), (math.inf, math.inf), (math.nan, math.nan), (0, 0),
        *((x, math.log1p(x)) for x in (-1 + 2**-24, -0.75, -0.375, -0.25, -(2**-20), 2**-10, 0.5, 0.625, 1, 3, 1e4)),
        (2.0**127, 127 * math.log(2)),
    ],
    "expm1": [(1e-20, 1e-20), (-math.inf, -1), (math.inf, math.inf), (math.nan, math.nan)],
    "log2": [(0, -math.inf), (8, 3), (-1, math.nan), (math.inf, math.inf)],
    "erf": [(math.inf, 1), (-math.inf, -1), (math.nan, math.nan)],
    "erfc": [
        *((x, math.erfc(x)) for x in (-2, -0.5, 0, 0.99, 1, 1.5, 2, 3, 6, 9)),
        *((math.inf, 0), (-math.inf, 2), (math.nan, math.nan), (40, 0)),
    ],
    "isnan": [(math.nan, 1), (math.inf, 0), (0, 0)],
    "remainder": [
        (5, 3, 2), (-5, 3, 1), (5, -3, -1), (-5, -3, -2), (5, math.inf, 5), (-5, math.inf, math.inf),
        (5, -math.inf, -math.inf), (0, -math.inf, 0), (6, 3, 0), (5, 0, math.nan), (math.inf, 2, math.nan),
        (math.nan, 1, math.nan), (1, math.nan, math.nan), (math.inf, math.inf, math.nan), (1e10, 3, 1), (-1e10, 3, 2),
    ],
    "floor_divide": [
        (5, 3, 1), (-5, 3, -2), (5, -3, -2), (-5, -3, 1), (6, 3, 2), (-5, math.inf, -1), (5, math.inf, 0),
        (5, 0, math.inf), (-5, 0, -math.inf), (0, 0, math.nan), (math.inf, 2, math.nan), (math.nan, 1, math.nan),
        (1e10, 3, 3333333248.0),
    ],
    "power": [
        (-2, 3, -8), (-2, 2, 4), (-2, 0.5, math.nan), (-8, 1 / 3, math.nan), (0, 0, 1), (0, 2, 0), (0, -1, math.inf),
        (1, math.nan, 1), (math.nan, 0, 1), (math.nan, 1, math.nan), (math.inf, -1, 0), (-2, math.inf, math.inf),
        (-1, math.inf, 1), (0.5, math.inf, 0), (-math.inf, 3, -math.inf),
        (1 + 2**-23, 1e7, math.exp(1e7 * math.log1p(2**-23))),
    ],
    "maximum": [(1, math.nan, math.nan), (math.nan, 1, math.nan), (math.inf, 1, math.inf)],
}  # fmt: skip
"""Arguments, and what PyTorch makes of them."""


BETWEEN_NUMBERS = [n for n in ELEMENTWISE if OPS[n].arity == 2 and not OPS[n].masks and OPS[n].result != "bool"]


def alone(name: str, args: tuple[Array | Fraction, ...]) -> Case:
    """The operator of arrays over m and k, or numbers; a mask as 1 and 0."""
    inputs = {f"X{i}": x for i, x in enumerate(args) if not isinstance(x, Fraction)}
    dtype = "int32" if OPS[name].integers else "float32"
    tensors = tuple(Tensor(x, ("m", "k"), dtype) for x in inputs)
    b = Builder(tensors, ORDER)
    operands: list[Arg] = [x if isinstance(x, Fraction) else f"X{i}" for i, x in enumerate(args)]
    b.emit(name, *operands, out="R")
    if OPS[name].result == "bool":
        b.emit("where", "R", Fraction(1), Fraction(0), out="O")
    else:
        b.emit("mul", "R", Fraction(1), out="O")
    output = Tensor("O", ("m", "k"), "float32")
    program = Program("one", tuple(SIZES.items()), "float32", tensors, tuple(b.eqns), (output,))
    values = tuple(inputs.values())
    return Case(program, values, values, np.empty(0))


@rows("column", COLUMNS)
@rows("name", EDGES)
def test_a_function_ends_where_that_of_pytorch_does(name: str, column: str) -> None:
    points = np.array(EDGES[name]).astype(np.float32).astype(np.float64)
    repeated = np.resize(points, (SIZES["m"] * SIZES["k"], points.shape[1])).T.reshape(-1, SIZES["m"], SIZES["k"])
    got = COLUMNS[column][0](alone(name, tuple(repeated[:-1])))
    np.testing.assert_allclose(got, repeated[-1], rtol=4e-7, atol=0)


NEAR = [1e-30, 1e-6, 1e-3, 0.0999, 0.2499, 0.25, 0.2501, 0.5, 1, 3, 9, 30, 100, 1e4, 1e30, math.inf, math.nan]


@rows("name", [n for n, row in OPS.items() if row.nearly and row.arity == 1])
def test_the_quicker_text_is_some_units_off_near_zero_and_far_from_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = OPS[name]
    assert row.nearly is not None
    monkeypatch.setitem(OPS, name, replace(row, triton=row.nearly))  # type: ignore[arg-type]
    lowest = -1.0 if row.domain[0][0] < 0 else 1.0
    points = np.array([sign * x for x in NEAR for sign in (1.0, lowest)]).astype(np.float32).astype(np.float64)
    x = np.resize(points, (SIZES["m"], SIZES["k"]))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(through_triton(alone(name, (x,))), row.ref(x), rtol=2e-6, atol=0)


@pytest.mark.parametrize("joined", ["and", "or", "xor"])
def test_a_mask_may_be_of_numbers(joined: str) -> None:
    """As where terms cancel: isnan(X - X)."""
    X = Tensor("X", ("m", "k"), "float32")
    b = Builder((X,), ORDER)
    known = b.emit("not", b.emit("isnan", Fraction(0)))
    b.emit("where", b.emit(joined, known, b.emit("gt", "X", Fraction(0))), "X", Fraction(1, 2), out="O")
    program = Program("one", tuple(SIZES.items()), "float32", (X,), tuple(b.eqns), (replace(X, name="O"),))
    x = drawn(-2, 2, (3, 16), 0)
    holds = {"and": x > 0, "or": x < 9, "xor": x <= 0}[joined]
    np.testing.assert_array_equal(through_triton(Case(program, (x,), (x,), x)), np.where(holds, x, 0.5))


@rows("column", COLUMNS)
@rows("name", BETWEEN_NUMBERS)
def test_an_argument_may_be_a_number(name: str, column: str) -> None:
    row, (through, tolerance) = OPS[name], COLUMNS[column]
    for i in row.numbers or (0, 1):
        x = drawn(*domain(row)[1 - i], (3, 16), 0)
        number = Fraction(3 if row.integers else 1.5)
        x = np.arange(48).reshape(3, 16) % 29 if row.integers else x
        pair = (x, number) if i else (number, x)
        expected = row.ref(*(float(a) if isinstance(a, Fraction) else a for a in pair))
        assert_close(through(alone(name, pair)), expected, tolerance)
