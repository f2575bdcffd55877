"""What the interpreter is spared gives what Triton gives without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
import triton.runtime.interpreter as interpreter

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="kernels are compiled in this run")
TYPES = {str(t): t for t in (tl.float16, tl.float32, tl.int32)}
VALUES = {
    "fp16": np.array([0.0, -0.0, 1.5, -2.5, 6e-8, np.inf, -np.inf, np.nan], dtype=np.float16),
    "fp32": np.array([0.0, -0.0, 1.0002441, 65519.9, 65520.0, -3e38, np.inf, np.nan], dtype=np.float32),
    "int32": np.array([0, 1, -1, 2049, 16777217, 2**31 - 1, -(2**31), 65520], dtype=np.int32),
}


def shortcuts() -> Any:
    """The object whose methods stand in the place of Triton's, which it holds."""
    return interpreter.interpreter_semantic.cast.__self__


def same(a: Any, b: Any) -> bool:
    """Whether two values of the interpreter have one type and the same bits."""
    data = a.handle.data, b.handle.data
    return str(a.type) == str(b.type) and data[0].dtype == data[1].dtype and data[0].tobytes() == data[1].tobytes()


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("to", TYPES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers that a type lacks
def test_a_cast(name: str, to: str) -> None:
    own, x = shortcuts(), shortcuts().block(VALUES[name], TYPES[name])
    assert same(own.cast(x, TYPES[to]), own.converted(x, TYPES[to]))
    assert ((name, to) in own.casts) == ((name, to) != ("fp16", "int32"))


def test_a_pointer_and_where_it_points_to() -> None:
    own = shortcuts()
    at = own.block(np.arange(8, dtype=np.int32).reshape(1, 8), tl.int32)
    pointers = own.block(np.full((4, 1), 1024, dtype=np.uint64), tl.pointer_type(tl.float16))
    for a, b in zip(own.operands(pointers, at, True, True), own.checked(pointers, at, True, True), strict=True):
        assert same(a, b)
    with pytest.raises(Exception, match="fp16"):
        own.operands(pointers, own.block(np.ones((1, 8), dtype=np.float16), tl.float16), True, True)


def test_elements_that_are_wider_than_their_type_are_refused() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="exceeds dtype"):
            interpreter.TensorHandle(np.zeros(3, dtype=np.float64), tl.float32)
