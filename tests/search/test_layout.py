"""The memory order of what kernels hand to each other."""

import pytest

from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target

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
    ],
)
def test_memory_order_of_buffers(rest: str, expected: dict[str, tuple[str, ...]]) -> None:
    """In every verified plan that stores them."""
    program = parse_spec(HEAD + rest).at()
    found = search_program(program, find_target("h200"), Options(budget_s=30.0))
    assert not found.rejected
    for name, dims in expected.items():
        assert {t.dims for p in found.plans for t in p.graph.buffers if t.name == name} == {dims}
