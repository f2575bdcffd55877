"""Integers that are computed with exactly: quotients and remainders by integers, shifts, and words of which all bits
are set."""

from __future__ import annotations

import pytest
import torch

from mirage_cli.codegen.export import export_source, kernels_source, load_export
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import spread
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.float64 import called64
from mirage_cli.verify.testdata import DISTRIBUTIONS, draw
from tests.pipeline.test_random import problem
from tests.searched import BEST

PROGRAMS = {
    "eight numbers in a word": """
name: words
dims: {m: 16, k: 64, n: 32, w: 8}
inputs: {X: [m, k], W: {dims: [w, n], dtype: int32, drawn: bits}}
program: |
  O = dot(X, (W[k // 8, n] >> 4 * (index(k) % 8) & 15) - 8, k)
outputs: {O: [m, n]}
""",
    "eight numbers in a word, by powers": """
name: powers
dims: {w: 8, n: 32, j: 8}
inputs: {W: {dims: [w, n], dtype: int32, drawn: bits}}
program: |
  N = W // 16 ** (index(n) % 8)
  P = W[w, n] // 16 ** index(j) % 16
  R = W % 16 ** (index(n) % 8)
outputs: {N: {dims: [w, n], dtype: int32}, P: [w, n, j], R: {dims: [w, n], dtype: int32}}
""",
    "32 masks in a word": """
name: planes
dims: {w: 5, n: 7, b: 32, k: 160}
inputs: {W: {dims: [w, n], dtype: int32, drawn: bits}, X: [k]}
program: |
  B = W >> index(b) & 1
  S = dot(X, 2 * (W[k // 32, n] >> index(k) % 32 & 1) - 1, k)
  C = sum(W >> index(b) & 1, b)
outputs: {B: {dims: [w, n, b], dtype: int8}, S: [n], C: {dims: [w, n], dtype: int32}}
""",
    "quotients by integers of either sign": """
name: quotients
dims: {m: 9, k: 11}
inputs:
  X: {dims: [m, k], dtype: int32, drawn: bits}
  Y: {dims: [k], dtype: int32, below: 70}
  Z: {dims: [m], dtype: int8}
program: |
  Q = X // (Y + 1) - X // 1000003
  R = X % (-1 - Y) + X % 1000003
  S = Z // maximum(Y - 3, 1) * 16 + Z % 7
outputs:
  Q: {dims: [m, k], dtype: int32}
  R: {dims: [m, k], dtype: int32}
  S: {dims: [m, k], dtype: int32}
""",
    "words that a mask hides": """
name: hidden
dims: {m: 24, k: 40, n: 16}
inputs: {X: [m, k], W: {dims: [k, n], dtype: int32, drawn: bits}}
program: |
  V = where(index(k) <= index(m), W, 0)
  O = sum(X * (V & 5), k) + sum(X * (V >> 20 & 2), k)
outputs: {O: [m, n]}
""",
    "a difference of integers that is read elsewhere": """
name: zeros
dims: {n: 8, g: 3, w: 2, j: 8, q: 8}
inputs:
  Z: {dims: [g, n], dtype: int32, drawn: bits}
  T: {dims: [w, j], dtype: int64, below: g}
  Y: {dims: [w, n], dtype: int32, drawn: bits}
program: |
  P = (Y >> 4 * index(q) & 15) - (Z[T[w, q], n] >> 4 * index(j) & 15) - 1
  O = rename(P / 1, q=j, j=q)
outputs: {O: [n, w, j, q]}
""",
    "numbers beyond 32 bits are floats": """
name: beyond
dims: {m: 9, k: 11}
inputs: {X: [m, k], N: {dims: [m, k], dtype: int32, drawn: bits}}
program: |
  O = softmax(X + where(index(k) > index(m), -3.4028234663852886e+38, 0), k)
  C = where(N < 5000000000, N & 4042322160, 1)
outputs: {O: [m, k], C: {dims: [m, k], dtype: int32}}
""",
    "a hash": """
name: hash
dims: {m: 33}
inputs: {X: {dims: [m], dtype: int32, drawn: bits}}
program: |
  A = X ^ X >> 15 ^ X << 7
  B = (A ^ A >> 12 | 1) & 0xfff0f0f0
  C = B << index(m) % 5
  D = X << 28 >> 28
outputs:
  A: {dims: [m], dtype: int32}
  B: {dims: [m], dtype: int32}
  C: {dims: [m], dtype: int32}
  D: {dims: [m], dtype: int8}
""",
    "integers in floats": """
name: mixed
dims: {m: 6, k: 8}
inputs: {X: [m, k], T: {dims: [m, k], dtype: int32, below: 4000}}
program: |
  O[m, k] = T % 16
  O[m, k + 8] = X * (T // 16)
  P = T // 7
outputs: {O: {dims: [m, q]}, P: {dims: [m, k], dtype: float32}}
""".replace("k: 8}", "k: 8, q: 16}"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_integers(name: str, interpreter: Interpreter) -> None:
    assert problem(PROGRAMS[name], interpreter) is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_exported_function_is_exact(name: str) -> None:
    """On words whose bits are drawn, and on what the reference makes of them in 64 bits."""
    program = parse_spec(PROGRAMS[name]).at()
    plan = search_program(program, find_target("h200"), Options(bounds=BEST, tune=False)).plans[0]
    function = getattr(load_export(export_source(program, plan.graph, plan.schedule)), program.name)
    shapes = [tuple(program.sizes[d] for d in t.dims) for t in program.inputs]
    dtypes = [getattr(torch, t.dtype) for t in program.inputs]
    data = draw(DISTRIBUTIONS[0], shapes, dtypes, [spread(t, program.sizes) for t in program.inputs], 1,
                torch.device("cpu"), 0)  # fmt: skip
    found = function(*data)
    wanted, _ = called64(program, data)
    for y, want in zip(found if isinstance(found, tuple) else [found], wanted, strict=True):
        if y.dtype.is_floating_point:
            torch.testing.assert_close(y.double(), want, rtol=2e-3, atol=2e-2)
        else:
            assert torch.equal(y, want.to(y.dtype))


def test_all_bits_of_test_data_are_set() -> None:
    g = [
        draw(DISTRIBUTIONS[0], [(64,)], [torch.int32], [(0, "bits", False)], 1, torch.device("cpu"), s) for s in (0, 1)
    ]
    for (x,) in g:
        assert x.min() == -(1 << 31) and x.max() == (1 << 31) - 1
        for bit in range(32):
            assert 8 < int((x >> bit & 1).sum()) < 56


@pytest.mark.parametrize(("some", "wrong"), [("& 15", "& 7"), ("% 8", "% 7"), (">>", "<<"), ("4 *", "2 *")])
def test_other_bits_are_refused(some: str, wrong: str) -> None:
    text = PROGRAMS["eight numbers in a word"]
    right, other = (lower(parse_spec(t).at()) for t in (text, text.replace(some, wrong)))
    plan = search_program(other, find_target("h200"), Options(bounds=BEST, tune=False)).plans[0]
    assert not check_equivalence(right, plan.graph, 0).ok
    assert check_equivalence(other, plan.graph, 0).ok


LOOP = """
mugraph words float16
dims m=16 k=256 n=32 w=32
input X f16[m, k]
input W i32[w, n]
output O f16[m, n]

kernel k0 generated m:tile k:loop n:tile
  X = load X[m, k]
  W = load W[k//8, n]
  at[k] = index(k)
  place[k] = remainder(at, 8)
  count[k] = mul(4, place)
  shifted[k, n] = shift_right(W, count)
  bits[k, n] = remainder(shifted, 16)
  whole[k, n] = sub(bits, 8)
  O[m, n] = dot(X, whole; k)
  store O[m, n] = O
"""


@pytest.mark.parametrize("tile", [32, 128])
def test_words_are_loaded_once_and_taken_apart_in_phases(tile: int) -> None:
    """Where a tile has 16 words or more along the loop."""
    graph = parse_mugraph(LOOP)
    schedule = Schedule({"k0": KernelSchedule((("k", tile),), ("m", "k", "n"), 4, 2, 1, 1)})
    source = kernels_source(graph, schedule)
    assert source.count("O = tl.dot(") == (8 if tile == 128 else 1)
    kernels = load_export(source)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(16, 256, generator=g).half()
    w = torch.randint(-(1 << 31), 1 << 31, (32, 32), dtype=torch.int32, generator=g)
    found = torch.empty(16, 32).half()
    kernels.launch([x, w], [found], kernels.make_scratch("cpu"))
    numbers = (w[:, None] >> torch.arange(0, 32, 4)[:, None] & 15).reshape(256, 32) - 8
    torch.testing.assert_close(found.double(), x.double() @ numbers.double(), rtol=2e-3, atol=0.1)
