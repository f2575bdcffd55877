"""The memory order of what kernels hand to each other."""

import pytest

from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from tests.searched import BEST

HEAD = """\
name: order
dims: {i: 128, j: 128, k: 128, h: 4, c: 64, d: 64}
dtype: bfloat16
inputs:
"""


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        pytest.param(
            """\
  X: [i, k, c]
  W: [c, d]
program: |
  A = sigmoid(dot(X, W, c))
  T = dot(A, rename(A, i=j), k)
  O = softmax(T, j)
outputs:
  O: [i, j, d]
""",
            {"A": ("d", "i", "k"), "T": ("d", "i", "j")},
            id="a batch axis that would be last comes first",
        ),
        pytest.param(
            """\
  X: [i, h, c]
  Y: [j, h, c]
  W: [c, d]
program: |
  A = sigmoid(dot(X, W, c))
  B = sigmoid(dot(Y, W, c))
  O = dot(A, B, d)
outputs:
  O: [h, i, j]
""",
            {"A": ("i", "h", "d"), "B": ("j", "h", "d")},
            id="one that would not be last stays",
        ),
        pytest.param(
            """\
  X: [i, c]
  W: [h, c, d]
program: |
  P = sigmoid(dot(X, W, c))
  A = dot(P[i, h, 0], rename(P[i, h, 1], i=j), h)
  O = softmax(A, j)
outputs:
  O: [i, j]
""",
            {"P": ("d", "i", "h")},
            id="one of which one position is read comes first",
        ),
        pytest.param(
            """\
  X: [k, h, i, d]
  Y: [k, h, j, d]
  Z: [i, j, c]
  W: [c, h]
program: |
  B = dot(Z, W, c)
  O = softmax(dot(X, Y, d) + B, j)
outputs:
  O: [k, h, i, j]
""",
            {"B": ("h", "i", "j")},
            id="a batch axis of the product that a bias is added to comes first",
        ),
        pytest.param(
            """\
  X: [i, c]
  V: [c, h, d]
  W: [j, d, h]
program: |
  A = sigmoid(dot(X, V, c))
  O = dot(A, W, h, d)
outputs:
  O: [i, j]
""",
            {"A": ("i", "d", "h")},
            id="those that a product sums over lie as in the input beside them",
        ),
        pytest.param(
            """\
  X: [c, i, j]
  W: [d, c, h]
program: |
  A = X * rsqrt(mean(X * X, i, j) + 1e-5)
  O = dot(A[c, i, j + h - 1], W, c, h)
outputs:
  O: [d, i, j]
""",
            {"A": ("i", "j", "c")},
            id="channels behind the axis of windows that a product sums",
        ),
    ],
)
def test_memory_order_of_buffers(rest: str, expected: dict[str, tuple[str, ...]]) -> None:
    """In every verified plan that stores them."""
    program = parse_spec(HEAD + rest).at()
    found = search_program(program, find_target("h200"), Options(tune=False))
    assert not found.rejected
    for name, dims in expected.items():
        assert {t.dims for p in found.plans for t in p.graph.buffers if t.name == name} == {dims}


PARTS = """\
name: parts
dims: {k: 5, n: 100, o: 200}
dtype: float32
inputs: {X: [k, n]}
program: |
  A = X + 0.5
  O[2*n, k] = A * 2
  O[2*n + 1, k] = A
outputs: {O: [o, k]}
"""


def test_a_part_of_an_output_that_later_kernels_read_lies_as_it_was_stored() -> None:
    """It is in a buffer of its own, in program order, whatever order its axes have in the output."""
    found = search_program(parse_spec(PARTS).at(), find_target("h200"), Options(tune=False))
    assert not found.rejected
    reads = {(x.buffer, x.dims) for p in found.plans for k in p.graph.kernels[1:] for x in k.loads}
    assert ("A", ("k", "n")) in reads


def test_an_output_is_priced_in_the_order_in_which_it_lies() -> None:
    """Its last axis, along which the input's elements lie apart, has a block of whole lines of the caches."""
    text = "name: turned\ndims: {b: 16, c: 64, s: 4096}\ndtype: float16\ninputs: {X: [b, c, s]}\n"
    text += "program: |\n  O = X * 2\noutputs: {O: [b, s, c]}\n"
    best = search_program(parse_spec(text).at(), find_target("h200"), Options(bounds=BEST, tune=False)).plans[0]
    tiles = dict(best.schedule.kernels["k0"].tiles)
    assert min(tiles["c"], tiles["s"]) * 2 >= 128
