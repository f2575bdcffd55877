"""What the interpreter is spared gives what Triton gives without it."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
import triton.runtime.interpreter as interpreter

from mirage_cli.tune.triton_operators import ARITHMETIC, BITS, COMPARISONS, DIVISIONS

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
    own, x = shortcuts(), block(VALUES[name], TYPES[name])
    assert same(own.cast(x, TYPES[to]), own.converted(x, TYPES[to]))
    assert ((name, to) in own.casts) == ((name, to) != ("fp16", "int32"))


NUMBERS = {"fp32": (0, 3, 2**40, -2.5, float("inf"), 1e300), "int32": (0, 1, -7, 2**31 - 1)}
TRITONS = {
    "__add__": "add",
    "__sub__": "sub",
    "__mul__": "mul",
    "__truediv__": "truediv",
    "__floordiv__": "floordiv",
    "__mod__": "mod",
    "__lt__": "less_than",
    "__le__": "less_equal",
    "__gt__": "greater_than",
    "__ge__": "greater_equal",
    "__eq__": "equal",
    "__ne__": "not_equal",
    "__and__": "and_",
    "__or__": "or_",
}
"""Triton's own, by Python's method."""
KINDS = {
    "fp32": (*ARITHMETIC, *COMPARISONS, "__truediv__"),
    "int32": (*ARITHMETIC, *COMPARISONS, *BITS, *DIVISIONS),
    "int1": (*BITS,),
}


def block(data: Any, element: Any) -> Any:
    """As Triton makes one."""
    return tl.tensor(interpreter.TensorHandle(data, element), tl.block_type(element, [*data.shape]))


def tritons(name: str, a: Any, b: Any) -> Any:
    semantic = interpreter.interpreter_semantic
    given = [semantic.to_tensor(x) if name in COMPARISONS else x for x in (a, b)]
    return getattr(semantic, TRITONS[name])(*given, *([False] if name in ARITHMETIC else []))


def operands(kind: str) -> list[tuple[Any, Any]]:
    """A block with a block of the same shape, of another, with a number of the kernel and of Python."""
    if kind == "int1":
        x, y = np.array([False, True, True, False]), np.array([False, False, True, True])
        return [(block(x, tl.int1), block(y, tl.int1)), (block(x[:, None], tl.int1), block(y[None, :], tl.int1))]
    element, data = TYPES[kind], VALUES[kind]
    x, y, column = block(data, element), block(data[::-1].copy(), element), block(data[:, None], element)
    number = tl.tensor(interpreter.TensorHandle(data[2:3], element), element)
    return [(x, y), (column, block(data[None, :], element)), (x, number), (number, x), (number, number)] + [
        (a, b) for a in (x, number) for b in NUMBERS[kind]
    ]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers that a type lacks, and divisions by 0
def test_an_operator(kind: str, name: str) -> None:
    for a, b in operands(kind):
        found = getattr(a, name)(b)
        assert same(found, tritons(name, a, b)), (a, b)
        if isinstance(b, int | float) and hasattr(a, f"__r{name[2:]}"):
            assert same(getattr(a, f"__r{name[2:]}")(b), tritons(name, b, a)), (a, b)


@pytest.mark.parametrize("number", [2**31, 2**40, -(2**31) - 1])
def test_integers_that_an_element_cannot_hold_are_tritons_to_compare_or_refuse(number: int) -> None:
    x = block(VALUES["int32"], tl.int32)
    for name in COMPARISONS:
        assert same(getattr(x, name)(number), tritons(name, x, number)), name
    with pytest.raises(ValueError, match="out of range"):
        x + number


@pytest.mark.parametrize("name", ["__add__", "__mul__", "__lt__", "__truediv__"])
def test_operands_of_two_types_are_tritons_to_convert(name: str) -> None:
    a, b = block(VALUES["int32"], tl.int32), block(VALUES["fp16"], tl.float16)
    with np.errstate(all="ignore"):
        for x, y in ((a, b), (b, a), (b, b)):
            assert same(getattr(x, name)(y), tritons(name, x, y))


def test_a_pointer_and_where_it_points_to() -> None:
    at = block(np.arange(8, dtype=np.int32).reshape(1, 8), tl.int32)
    pointer = tl.pointer_type(tl.float16)
    one = tl.tensor(interpreter.TensorHandle(np.array([1024], dtype=np.uint64), pointer), pointer)
    back = block(np.array([-3, 5], dtype=np.int32), tl.int32)
    for a, b in ((block(np.full((4, 1), 1024, dtype=np.uint64), pointer), at), (one, at), (one, back)):
        assert same(a + b, tritons("__add__", a, b))
    with pytest.raises(Exception, match="fp16"):
        one + block(np.ones((1, 8), dtype=np.float16), tl.float16)


@pytest.mark.parametrize("element", [tl.float16, tl.bfloat16, tl.float32, tl.int32, tl.int8, tl.int1], ids=str)
def test_loads(element: Any) -> None:
    """Whole, with masks of the same and of other shapes, of one number, and with something elsewhere."""
    memory = np.arange(1, 65, dtype=np.uint8)
    start = interpreter.TensorHandle(np.array([memory.ctypes.data], dtype=np.uint64), tl.pointer_type(element))
    one = tl.tensor(start, tl.pointer_type(element))
    rows, columns = (block(np.arange(4, dtype=np.int32).reshape(s), tl.int32) for s in ((4, 1), (1, 4)))
    named = one + (rows * 4 + columns)

    def load(at: Any, mask: Any = None, other: Any = None) -> Any:
        return interpreter.interpreter_semantic.load(at, mask, other, (), "", "", "", False)

    zero = interpreter.interpreter_semantic.to_tensor(0)
    for at, mask in ((named, None), (named, rows < 2), (named, (rows < 2) & (columns < 3)), (one, None)):
        given = {} if mask is None else {"mask": mask, "other": 0}
        assert same(tl.load(at, **given), load(at, mask, None if mask is None else zero))
    if element is not tl.int1:
        three = interpreter.interpreter_semantic.to_tensor(3)
        assert same(tl.load(named, mask=rows < 2, other=3), load(named, rows < 2, three))
    with pytest.raises(Exception, match="Mask argument cannot be block"):
        tl.load(one, mask=rows < 2)
    with pytest.raises(Exception, match="cannot be provided without"):
        tl.load(named, other=0)
    for _ in range(2):
        assert same(tl.load(named, eviction_policy="evict_first"), load(named))
        with pytest.raises(Exception, match="not supported"):
            tl.load(named, eviction_policy="evict_never")


@pytest.mark.parametrize("kind", ["fp32", "int32"])
@pytest.mark.parametrize("name", ["sum", "max"])
def test_reductions_along_an_axis(name: str, kind: str) -> None:
    x = block(np.stack([VALUES[kind], VALUES[kind][::-1], np.ones_like(VALUES[kind]), VALUES[kind]]), TYPES[kind])
    combine = {"sum": tl.standard._sum_combine, "max": tl.standard._elementwise_max}[name]
    with np.errstate(all="ignore"):
        for axis in (0, 1, -1):
            assert same(getattr(tl, name)(x, axis=axis), tl.core.reduce(x, axis % 2, combine))
        flat = block(VALUES[kind], TYPES[kind])
        assert same(getattr(tl, name)(flat, 0), tl.core.reduce(flat, 0, combine))


@pytest.mark.parametrize("acc", [False, True])
def test_products_of_matrices(acc: bool) -> None:
    """The second of a shape is not Triton's."""
    rng = np.random.default_rng(0)
    for m, k, n in ((16, 32, 16), (1, 16, 64)):
        for _ in range(2):
            a, b = (block(rng.standard_normal(s).astype(np.float16), tl.float16) for s in ((m, k), (k, n)))
            more = [block(rng.standard_normal((m, n)).astype(np.float32), tl.float32)] if acc else []
            own = interpreter.interpreter_semantic.dot(a, b, *more or [None], None, None, tl.float32)
            assert same(tl.dot(a, b, *more), own)
    with pytest.raises(AssertionError, match="reduction dimensions"):
        tl.dot(a, a)


def test_positions_and_further_axes() -> None:
    x = tl.arange(0, 8)
    assert same(x, block(np.arange(8, dtype=np.int32), tl.int32))
    assert same(x[:, None] + x[None, :], block(np.add.outer(np.arange(8), np.arange(8)).astype(np.int32), tl.int32))
    with pytest.raises(Exception, match="power of 2"):
        tl.arange(0, 7)
    with pytest.raises(Exception, match="unsupported tensor index"):
        x[1:]


@pytest.mark.skipif(not hasattr(interpreter.TensorHandle, "__post_init__"), reason="Triton 3.5 and before take them")
def test_elements_that_are_wider_than_their_type_are_refused() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="exceeds dtype"):
            interpreter.TensorHandle(np.zeros(3, dtype=np.float64), tl.float32)


@triton.jit
def several_lines(
    X_ptr,
    n: tl.constexpr = 4,
):
    at = tl.arange(0, n)
    # behind a comment

    if n > 2:
        tl.store(X_ptr + at, at)


@triton.jit
def at_the_margin(X_ptr):
    tl.static_assert(
        True,
        """A text that goes on
at the margin.""",
    )
    tl.store(X_ptr, 1)


@pytest.mark.parametrize(("kernel", "plain"), [(several_lines, True), (at_the_margin, False)])
def test_the_text_of_a_function_ends_where_it_is_indented_no_more(
    kernel: Any, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same code at the same lines as Triton finds by its tokens, which are looked at where that is not so."""
    rewriter, by_tokens = kernel.rewriter, []
    expected = rewriter.by_tokens().__code__
    real = inspect.getsourcelines
    monkeypatch.setattr(inspect, "getsourcelines", lambda x: by_tokens.append(x) or real(x))
    found = rewriter.rewrite_ast().__code__
    assert (found.co_code, found.co_consts, [*found.co_lines()]) == (
        expected.co_code,
        expected.co_consts,
        [*expected.co_lines()],
    )
    assert found.co_filename == expected.co_filename == __file__
    assert plain == (not by_tokens)
