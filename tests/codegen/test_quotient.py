"""Quotients of many by one: what their inline PTX computes, line by line, is the quotient rounded to nearest."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.codegen.helpers import AT_ONCE, QUOTIENT
from mirage_cli.ir.text import parse_mugraph
from tests.codegen.conftest import Stages
from tests.codegen.test_triton import check, kernel, schedule

Pair = tuple[np.float32, np.float32]
FMAF = ctypes.CDLL(None).fmaf
FMAF.restype, FMAF.argtypes = ctypes.c_float, [ctypes.c_float] * 3
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -3.0, 2.0**-149, -(2.0**-130), 2.0**-126, 3.4e38]
EDGES = [2.0**e * (1 + s * 2.0**-23) for e in (-102, -20, 20, 100) for s in (-0.5, 0, 1)]
LINES = [line.strip(" ;") for line in QUOTIENT.split('"""')[-2].splitlines()]
STEPS: dict[str, Callable[..., np.float32]] = {
    "abs.f32": lambda a: np.float32(abs(a)),
    "mul.rn.f32": lambda a, b: a * b,
    "div.rn.f32": lambda a, b: a / b,
    "fma.rn.f32": lambda a, b, c: np.float32(FMAF(a, b, c)),
}


def bits(x: np.float32) -> int:
    return int(struct.unpack("<i", struct.pack("<f", x))[0])


def quotients(pairs: Sequence[Pair]) -> tuple[list[np.float32], bool]:
    """As the helper's text has them, and whether the hardware's own division was left out."""
    held: dict[str, np.float32] = {"0f71800000": np.float32(2.0**100)}
    for i, (x, y) in enumerate(pairs):
        near = 2.0**-20 <= abs(y) <= 2.0**20
        other = np.float32(np.nan if y != y or y == 0 else -0.0 if y < 0 else 0.0)
        inverse, least = (np.float32(1) / y, 2.0**-102) if near else (other, np.inf)
        given = x, y, inverse, -y if near else np.float32(0), np.float32(least)
        held |= {f"${i + AT_ONCE * j}": v for j, v in enumerate(given, 1)}
    p = fast = False
    for line in LINES:
        op, *names = re.split(r",? +", line)
        if op in STEPS:
            held[names[0]] = STEPS[op](*(held[n] for n in names[1:]))
        elif op == "setp.ge.f32":
            p = bool(held[names[1]] >= held[names[2]])
        elif op == "setp.le.and.f32":
            p = p and bool(held[names[1]] <= held[names[2]])
        elif op == "setp.eq.or.b32":
            p = p or bits(held[names[1]]) == int(names[2])
        elif op == "setp.eq.b32":
            fast = names == ["all", "0", "0"]
        elif op == "and.pred":
            fast = fast and p
        elif op == "@all":
            if fast:
                break
        else:
            assert op in ("{", "}", ".reg", "DONE:"), line
    return [held[f"${i}"] for i in range(AT_ONCE)], fast


def test_a_quotient_of_many_by_one_is_rounded_to_nearest() -> None:
    rng = np.random.default_rng(5)
    wide = rng.standard_normal(1500) * 2.0 ** rng.integers(-140, 127, 1500)
    xs = np.array([*SPECIAL, *EDGES, *wide, *rng.random(1500), *rng.integers(0, 1 << 24, 1001)], np.float32)
    ys = np.array([*(2 - 2.0 ** -rng.integers(1, 24, 100)), *range(1, 200), *wide[:100]], np.float32)
    odd = np.array([*SPECIAL, *EDGES], np.float32)
    pairs = [(x, y) for x in odd for y in odd]
    pairs += [(x, y) for x, y in zip(rng.permutation(xs), rng.choice(ys, len(xs)), strict=True)]
    counts = [0, 0]
    with np.errstate(all="ignore"):
        for i in range(0, len(pairs) - AT_ONCE, AT_ONCE):
            found, fast = quotients(pairs[i : i + AT_ONCE])
            counts[fast] += 1
            for (x, y), got in zip(pairs[i:], found, strict=False):
                want = x / y
                right = bits(got) == bits(want) or (got != got and want != want)
                assert right, f"{x!r} / {y!r}: {got!r}, not {want!r}"
    assert min(counts) > 100


def test_what_many_are_divided_by_is_inverted_once(stage: Stages) -> None:
    """For a thread with 32 elements of few rows: one quotient for each row, and a branch for every four others."""
    graph = kernel("m=64 k=1024; X[m,k] G[m]; Y[m,k]; float32", "m:grid k:grid", "Y[m, k] = div(X, G)")
    plan = schedule(graph, "m=4 k=1024", "m k")
    assert "Y = quotient(X, G[:, None])" in kernels_source(graph, plan)
    text = stage(graph, plan, 90, "ptx")
    assert text.count("@all bra DONE") == 8
    assert len(re.findall(r"\t(?:div|rcp)\.rn", text)) - 32 <= 4


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_a_block_of_fewer_elements_than_are_divided_at_once_has_a_kernel(m: int, stage: Stages) -> None:
    graph = kernel(f"m={m}; X[m]; Y[m]; float32", "m:tile", "S[] = sum(X; m)\nY[m] = div(X, S)")
    plan = schedule(graph, "", "m")
    assert ("quotient(X, S)" in kernels_source(graph, plan)) == (m > 1)
    assert ("@all bra DONE" in stage(graph, plan, 90, "ptx")) == (m > 2)


OF_TWO = "D[m, n] = div(X, Y)\nE[m, n] = div(X, Z)\nR[m, n] = round(E)\nQ[m, n] = integer(R)"
"""A quotient that is stored as it is, and one that is rounded to a whole number."""


def divisions(out: str, body: str = OF_TWO, also: str = " Q:i8[m,n]") -> tuple[int, int]:
    """How many are rounded correctly, and how many in all."""
    graph = kernel(f"m=64 n=64; X[m,n] Y[m,n] Z[m,n]; D{out}[m,n]{also}", "m:grid n:grid", body)
    text = kernels_source(graph, schedule(graph, "m=16 n=16"))
    exact = text.count("tl.div_rn(")
    return exact, exact + text[text.index("def k0") : text.index("def make_scratch")].count(" / ")


def test_what_decides_nothing_is_divided_the_short_way() -> None:
    assert divisions("") == (1, 2)  # in 16 bits
    assert divisions(":f32") == (2, 2)
    assert divisions("", "D[m, n] = div(X, Y)", "") == (0, 1)
    decides = OF_TWO.replace("div(X, Z)", "mul(D, Z)")
    assert divisions("", decides) == (1, 1)
    assert divisions("", "D[m, n] = div(X, Y)\nE[m, n] = div(X, Z)\nB[m, n] = gt(E, D)", " B:i1[m,n]") == (2, 2)


def test_a_number_is_inverted_once_too() -> None:
    graph = kernel("m=50 n=64; X[m,n]; D:f32[m,n]", "m:grid n:grid", "D[m, n] = div(X, 127)")
    plan = schedule(graph, "m=16 n=16")
    assert re.search(r"quotient\(X\S*, tl\.full\(\(\), 127\.0, tl\.float32\)\)", kernels_source(graph, plan))
    check(graph, plan)


def test_what_a_kernel_behind_decides_by_is_divided_in_full() -> None:
    text = """
mugraph g float16
dims m=64
input X f16[m]
input Y f16[m]
output D f16[m]
output B i1[m]
kernel k0 generated m:grid
  X = load X[m]
  Y = load Y[m]
  D[m] = div(X, Y)
  store D[m] = D
kernel k1 generated m:grid
  D = load D[m]
  X = load X[m]
  B[m] = gt(D, X)
  store B[m] = B
"""
    graph = parse_mugraph(text)
    assert "tl.div_rn(" in kernels_source(graph, schedule(graph, "m=16"))
