"""Programs as PyTorch functions, against the float64 reference of OPS in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import inf, prod

import numpy as np
import pytest
import torch

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.derived import DERIVED, derived_equation, lower
from mirage_cli.ir.op import Op
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.precision import exact_values
from mirage_cli.ir.program import Builder, Program, Tensor
from mirage_cli.spec.reader import parse_spec
from mirage_cli.verify.float64 import reference64
from tests.rows import rows

SIZES = {"b": 2, "h": 3, "q": 4, "s": 5, "d": 6, "e": 7}
ORDER = tuple(SIZES)

Define = Callable[[Builder], object]


def program(inputs: dict[str, str], define: Define, outputs: dict[str, str]) -> Program:
    """inputs, outputs: axes in memory order, one letter each; lower-case names are integers."""
    tensors = tuple(Tensor(n, tuple(dims), "int32" if n.islower() else "float16") for n, dims in inputs.items())
    b = Builder(tensors, ORDER)
    define(b)
    results = tuple(Tensor(n, tuple(dims), "float16") for n, dims in outputs.items())
    return Program("test", tuple(SIZES.items()), "float16", tensors, tuple(b.eqns), results)


def numpy_outputs(p: Program, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The obvious evaluation: every value broadcast to all of the program's axes, in order."""
    sizes = p.sizes
    values: dict[str, np.ndarray] = {}

    def spread(x: np.ndarray, dims: tuple[str, ...]) -> np.ndarray:
        have = [d for d in p.order if d in dims]
        x = np.transpose(x, [dims.index(d) for d in have])
        return x.reshape([sizes[d] if d in have else 1 for d in p.order])

    for t, x in zip(p.inputs, inputs, strict=True):
        values[t.name] = spread(x, t.dims)
    for e in lower(p).eqns:
        row = OPS[e.op]
        args = [np.float64(a) if not isinstance(a, str) else values[a] for a in e.args]
        axes = tuple(p.order.index(a) for a in e.axes)
        if row.kind == "leaf":
            x = row.ref(sizes[e.axes[0]])
            values[e.out] = spread(np.asarray(x), e.dims)
        elif row.kind == "rename":
            have = next(v.dims for n, v in p.values().items() if n == e.args[0])
            names = dict(zip(e.axes[::2], e.axes[1::2], strict=True))
            x = args[0].reshape([sizes[d] for d in p.order if d in have])
            renamed = tuple(names.get(d, d) for d in p.order if d in have)
            values[e.out] = spread(x, renamed)
        elif row.kind == "contraction":
            values[e.out] = np.expand_dims(row.ref(*args, axis=axes), axes)
        elif row.kind == "reduction":
            values[e.out] = np.expand_dims(row.ref(args[0], axis=axes), axes)
        else:
            values[e.out] = row.ref(*args)
    out = []
    for t in p.outputs:
        have = [d for d in p.order if d in t.dims]
        x = np.asarray(values[t.name], dtype=np.float64).reshape([sizes[d] for d in have])
        out.append(np.transpose(x, [have.index(d) for d in t.dims]))
    return out


def run(p: Program, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    scope: dict[str, object] = {"torch": torch}
    exec(torch_source(p, "reference"), scope)
    result = scope["reference"](*inputs)  # type: ignore[operator]
    return result if isinstance(result, tuple) else (result,)


def inputs_of(p: Program, low: float = -2.0, high: float = 2.0) -> list[np.ndarray]:
    g = np.random.default_rng(0)
    shapes = [tuple(p.sizes[d] for d in t.dims) for t in p.inputs]
    kinds = [t.dtype for t in p.inputs]
    return [
        g.integers(0, 5, s).astype(np.int32) if k == "int32" else g.uniform(low, high, s)
        for s, k in zip(shapes, kinds, strict=True)
    ]


def check(p: Program, inputs: list[np.ndarray] | None = None) -> None:
    arrays = inputs_of(p) if inputs is None else inputs
    tensors = [torch.from_numpy(x) for x in arrays]
    expected = numpy_outputs(p, arrays)
    for outputs in (run(p, tensors), reference64(p, tensors)):
        for t, y, ref in zip(p.outputs, outputs, expected, strict=True):
            assert y.dtype == torch.float64
            assert y.is_contiguous()
            assert tuple(y.shape) == tuple(p.sizes[d] for d in t.dims)
            np.testing.assert_allclose(y.numpy(), ref, rtol=1e-9, atol=1e-9)


def softmax(b: Builder, x: str, *axes: str) -> str:
    return b.append(derived_equation(b.fresh(), "softmax", (x,), axes, b))


def product(axes: str) -> Define:
    return lambda b: b.emit("dot", "X", "W", axes=axes, out="O")


def masked(b: Builder) -> None:
    inside = b.emit("and", b.emit("lt", "X", Fraction(1)), b.emit("ne", "Y", Fraction(1)))
    b.emit("where", b.emit("or", b.emit("gt", "X", "Y"), inside), "Y", "X", out="O")


def attention(b: Builder) -> None:
    scores = b.emit("mul", b.emit("dot", "Q", "K", axes="d"), Fraction(1, 8))
    causal = b.emit("ge", b.emit("index", axes="q"), b.emit("index", axes="s"))
    p = softmax(b, b.emit("where", causal, scores, -inf), "s")
    b.emit("dot", p, "V", axes="s", out="O")


PROGRAMS: dict[str, Program] = {
    "matmul": program({"X": "qd", "W": "de"}, product("d"), {"O": "qe"}),
    "matmul transposed": program({"X": "dq", "W": "ed"}, product("d"), {"O": "eq"}),
    "matrix times vector": program({"X": "bqd", "W": "d"}, product("d"), {"O": "bq"}),
    "two summed axes": program({"X": "qsd", "W": "esd"}, product("sd"), {"O": "qe"}),
    "inner product": program({"X": "d", "W": "d"}, product("d"), {"O": ""}),
    "one-sided sum": program({"X": "qd", "W": "qe"}, product("d"), {"O": "qe"}),
    "causal attention": program({"Q": "qhbd", "K": "shd", "V": "she"}, attention, {"O": "qhbe"}),
    "attention of one batch axis": program({"Q": "hqd", "K": "hsd", "V": "hse"}, attention, {"O": "hqe"}),
    "two matmuls and a product": program(
        {"X": "qd", "A": "de", "B": "de"},
        lambda b: b.emit(
            "mul", b.emit("silu", b.emit("dot", "X", "A", axes="d")), b.emit("dot", "X", "B", axes="d"), out="O"
        ),
        {"O": "qe"},
    ),
    "several outputs": program(
        {"X": "qd", "W": "d"},
        lambda b: (
            b.emit("mul", "X", "W", out="Y"),
            b.emit("sum", "Y", axes="q", out="Z"),
            b.emit("max", "Y", axes="qd", out="M"),
        ),
        {"Z": "d", "Y": "dq", "M": ""},
    ),
    "broadcast of both": program({"X": "qd", "Y": "he"}, lambda b: b.emit("add", "X", "Y", out="O"), {"O": "hqde"}),
    "integer input": program(
        {"X": "bs", "n": "b"},
        lambda b: b.emit("where", b.emit("lt", b.emit("index", axes="s"), "n"), "X", Fraction(0), out="O"),
        {"O": "sb"},
    ),
    "integer arithmetic": program(
        {"X": "s", "n": "b"},
        lambda b: b.emit(
            "mul", "X", b.emit("add", b.emit("mul", b.emit("index", axes="s"), Fraction(2)), "n"), out="O"
        ),
        {"O": "bs"},
    ),
    "integers alone": program({"n": "bs"}, lambda b: b.emit("exp", b.emit("neg", "n"), out="O"), {"O": "bs"}),
    "count of a mask": program(
        {"X": "qd"}, lambda b: b.emit("sum", b.emit("gt", "X", Fraction(0)), axes="d", out="O"), {"O": "q"}
    ),
    "two numbers chosen by a mask": program(
        {"X": "qd"},
        lambda b: b.emit(
            "mul", "X", b.emit("where", b.emit("gt", "X", Fraction(0)), Fraction(1, 3), Fraction(2)), out="O"
        ),
        {"O": "qd"},
    ),
    "masks joined": program({"X": "qd", "Y": "d"}, masked, {"O": "qd"}),
    "number inside a function": program(
        {"X": "qd"}, lambda b: b.emit("maximum", b.emit("pow", "X", Fraction(3)), Fraction(1, 2), out="O"), {"O": "dq"}
    ),
    "size of an axis": program(
        {"X": "qd"}, lambda b: b.emit("div", "X", b.emit("sqrt", b.emit("size", axes="d")), out="O"), {"O": "qd"}
    ),
    "names that Python needs": program(
        {"X": "qd", "W": "d"},
        lambda b: (b.emit("mul", "X", "W", out="is"), b.emit("exp", "is", out="dtype")),
        {"dtype": "qd"},
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_numpy_does(name: str) -> None:
    check(PROGRAMS[name])


def test_renamed_axes() -> None:
    sizes = SIZES | {"s": SIZES["q"]}
    x = Tensor("X", ("q", "d"), "float16")
    b = Builder((x,), ORDER)
    b.emit("dot", "X", b.emit("rename", "X", axes=("q", "s")), axes="d", out="O")
    p = Program("gram", tuple(sizes.items()), "float16", (x,), tuple(b.eqns), (Tensor("O", ("s", "q"), "float16"),))
    check(p)


@rows("row", [r for r in OPS.values() if r.kind == "elementwise" and not r.integers])
def test_every_elementwise_operator(row: Op) -> None:
    domain = row.domain * row.arity if len(row.domain) == 1 else row.domain
    numbers = [lo == hi for lo, hi in domain[: row.arity]]
    names = [f"X{i}" for i in range(row.arity)]

    def define(b: Builder) -> None:
        args = [Fraction(domain[i][0]) if numbers[i] else n for i, n in enumerate(names)]
        args = [b.emit("gt", a, Fraction(0)) if i in row.masks else a for i, a in enumerate(args)]
        y = b.emit(row.name, *args)
        b.emit("where", y, "X0", Fraction(0), out="O") if row.result == "bool" else b.emit("add", y, "X0", out="O")

    p = program({n: "qd" for n, c in zip(names, numbers, strict=True) if not c}, define, {"O": "qd"})
    g = np.random.default_rng(1)
    check(p, [g.uniform(*domain[i], (4, 6)) for i, c in enumerate(numbers) if not c])


DERIVED_OVER = [
    (op, axes) for op, row in DERIVED.items() for axes in (["d", "q", "qd", "dq"] if row.over_axes else [""])
]


@pytest.mark.parametrize(("op", "axes"), DERIVED_OVER)
def test_every_derived_operator(op: str, axes: str) -> None:
    numbers = [Fraction(i + 1, 3) for i, (_, default) in enumerate(DERIVED[op].options) if default is None]

    def define(b: Builder) -> None:
        x = b.emit("mul", "X", "G")
        y = b.append(derived_equation("Y", op, (x, *numbers), tuple(axes), b))
        b.emit("add", y, "G", out="O")

    left = "".join(a for a in "bqd" if a == "d" or a not in axes or not DERIVED[op].reduces)
    check(program({"X": "dqb", "G": "d"}, define, {"O": left}))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_every_reduction_over_several_axes(op: str) -> None:
    check(program({"X": "qbd"}, lambda b: b.emit(op, "X", axes="qd", out="O"), {"O": "b"}))


def test_a_matmul_is_a_matmul_and_a_softmax_a_softmax() -> None:
    assert "torch.matmul(X, W)" in torch_source(PROGRAMS["matmul"])
    assert "torch.softmax(" in torch_source(PROGRAMS["causal attention"])
    assert "torch.matmul(Q, K.mT)" in torch_source(PROGRAMS["attention of one batch axis"])


def test_half_precision_stays_half_precision() -> None:
    for p in PROGRAMS.values():
        inputs = [torch.from_numpy(x) for x in inputs_of(p)]
        inputs = [x.half() if x.is_floating_point() else x for x in inputs]
        if any(x.is_floating_point() for x in inputs):
            assert {y.dtype for y in run(p, inputs)} == {torch.float16}


def test_the_text_takes_sizes_from_the_tensors() -> None:
    p = PROGRAMS["causal attention"].resized({"q": 9, "s": 3})
    inputs = [torch.from_numpy(x) for x in inputs_of(p)]
    scope: dict[str, object] = {"torch": torch}
    exec(torch_source(PROGRAMS["causal attention"]), scope)
    y = scope["reference"](*inputs)  # type: ignore[operator]
    np.testing.assert_allclose(y.numpy(), numpy_outputs(p, [x.numpy() for x in inputs])[0], rtol=1e-9, atol=1e-9)
    assert prod(y.shape) == 9 * 3 * 2 * 7


MIXED = """
name: mixed
dims: {q: 17, d: 16, e: 8}
dtype: float16
inputs:
  X: [q, d]
  W: [d, e]
  B: {dims: [e], dtype: float32}
  V: {dims: [d, e], dtype: float32}
program: |
  small = rsqrt(square(X) + 1)
  P = dot(X, W, d)
  Y = P + B
  largest = max(B, e)
  T = X * largest
  Z = dot(X, V, d)
  M = maximum(V, 0.5) * index(e)
  N = X * index(d)
  C = where(index(e) < 3, W, V)
  K = where(B > 0.25, 0.5, P)
outputs: {small: [q, d], P: [q, e], Y: [q, e], T: [q, d], Z: [q, e], M: [d, e], N: [q, d], C: [d, e], K: [q, e]}
"""


def by_hand(X: torch.Tensor, W: torch.Tensor, B: torch.Tensor, V: torch.Tensor) -> list[torch.Tensor]:
    """What a PyTorch user writes for that."""
    e, d = torch.arange(8), torch.arange(16)
    p = X @ W
    return [torch.rsqrt(X.square() + 1), p, p + B, X.to(B.dtype) * B.max(), X.to(V.dtype) @ V,
            torch.maximum(V, torch.tensor(0.5, dtype=V.dtype)) * e, X * d, torch.where(e < 3, W, V),
            torch.where(B > 0.25, 0.5, p)]  # fmt: skip


def test_float32_is_what_float32_inputs_reach_and_nothing_else() -> None:
    """As in PyTorch and in `exact_values`: the square of 1000 is too much for float16, also beside a float32 input."""
    p = parse_spec(MIXED).at()
    inputs = [torch.from_numpy(x) for x in inputs_of(p)]
    check(p, inputs_of(p))
    inputs = [x.to(getattr(torch, t.dtype)) for t, x in zip(p.inputs, inputs, strict=True)]
    inputs[0][0, 0] = 1000.0
    outputs = run(p, inputs)
    assert outputs[0][0, 0] == 0
    for t, y, right in zip(p.outputs, outputs, by_hand(*inputs), strict=True):
        assert y.dtype == right.dtype == (torch.float32 if t.name in "YTZMC" else torch.float16), t.name
        assert y.dtype == torch.float16 or t.name in exact_values(p)
        assert torch.equal(y, right), t.name


COUNTED = """
name: counted
dims: {q: 40, d: 7}
dtype: float32
inputs:
  X: [q, d]
  H: {dims: [q, d], dtype: bfloat16}
  B: {dims: [q, d], dtype: bool}
  N: {dims: [q], dtype: int32, below: 100}
program: |
  P = X * H
  A = mean(where(B, 1, 0) / 1, q)
  C = (N + index(q)) / 3
  R = H * index(d)
outputs: {P: [q, d], A: [d], C: [q], R: {dims: [q, d], dtype: bfloat16}}
"""


def test_what_no_float_is_in_has_the_programs_type() -> None:
    """Not that of a narrower input beside it."""
    p = parse_spec(COUNTED).at()
    X, H, N = torch.randn(40, 7), torch.randn(40, 7).bfloat16(), torch.arange(40, dtype=torch.int32)
    B = torch.rand(40, 7) < 0.3
    whole = torch.arange(40)
    right = [X * H, B.float().mean(0), (N + whole) / 3, H * torch.arange(7)]
    for y, wanted in zip(run(p, [X, H, B, N]), right, strict=True):
        assert y.dtype == wanted.dtype
        torch.testing.assert_close(y, wanted, rtol=1e-6, atol=1e-6)


MASKED = """
name: masked
dims: {q: 4, s: 8}
dtype: float16
inputs: {A: [q, s], N: {dims: [q], dtype: int32, below: s}}
program: |
  O = where(index(s) <= N, A, -1e9)
outputs: {O: [q, s]}
"""


def test_a_number_beyond_the_type_in_a_branch_is_infinite() -> None:
    """torch.where on a GPU refuses it: it is rounded as a tensor is, and in float64 it is itself."""
    p = parse_spec(MASKED).at()
    assert ".new_full((), -1000000000.0, dtype=torch.float64).to(" in torch_source(p)
    A, N = torch.zeros(4, 8).half(), torch.zeros(4, dtype=torch.int32)
    for x, last in ((A, -torch.inf), (A.double(), -1e9)):
        (y,) = run(p, [x, N])
        assert y[:, 0].eq(0).all() and y[:, 1:].eq(last).all()


def test_float16_and_bfloat16_have_float32_in_common() -> None:
    p = program({"X": "qd", "W": "d"}, lambda b: b.emit("mul", "X", "W", out="O"), {"O": "qd"})
    x, w = torch.randn(4, 6).half(), torch.randn(6).bfloat16()
    p = replace(p, inputs=(p.inputs[0], replace(p.inputs[1], dtype="bfloat16")))
    assert torch.equal(run(p, [x, w])[0], x.float() * w.float())


def test_positions_are_divided_as_integers() -> None:
    """The parity of 2049 is none in float16."""
    p = parse_spec(
        "name: odd\ndims: {k: 4096}\ninputs: {X: [k]}\n"
        "program: |\n  O = where(index(k) % 2 == 0, X, -X) + index(k) // 1024\noutputs: {O: [k]}\n"
    ).at()
    x = torch.randn(4096).half()
    (y,) = run(p, [x])
    sign = 1 - 2 * (torch.arange(4096) % 2)
    torch.testing.assert_close(y, x * sign + torch.arange(4096) // 1024)


def test_a_part_begins_where_the_tensor_that_is_changed_does() -> None:
    p = parse_spec(
        "name: heads\ndims: {t: 3, h: 2, d: 4, n: 8}\ninputs: {X: [t, h, d], K: [t, n]}\n"
        "program: |\n  K[t, h*4 + d] = X * 2\noutputs: {K: {inout: K}}\n"
    ).at()
    whole, x = torch.zeros(5, 8, dtype=torch.float64), torch.randn(3, 2, 4, dtype=torch.float64)
    scope: dict[str, object] = {"torch": torch}
    exec(torch_source(p), scope)
    scope["reference"](x, whole[2:])  # type: ignore[operator]
    assert not whole[:2].any()
    torch.testing.assert_close(whole[2:], 2 * x.reshape(3, 8))


HASH = """
name: hashes
dims: {n: 1000}
inputs: {seed: {dims: [], dtype: int32, drawn: bits}}
program: |
  a = index(n) ^ seed
  b = a * -2048144789
  c = (b ^ (b >> 13 & 524287)) * 1664525 + 1013904223
  keep = c > -1717986918
  O = where(keep, 1, 0)
outputs: {c: {dims: [n], dtype: int32}, O: {dims: [n], dtype: int8}}
"""


@pytest.mark.parametrize("seed", [0, 12345, -(2**31), 2**31 - 1])
def test_integers_of_32_bits_wrap_around_before_they_are_compared(seed: int) -> None:
    """A hash is multiplied beyond 32 bits. PyTorch's integers have 64, which compare otherwise."""
    program = parse_spec(HASH).at()
    a = np.arange(1000, dtype=np.uint32) ^ np.uint32(seed % 2**32)
    b = a * np.uint32(-2048144789 % 2**32)
    c = ((b ^ (b >> np.uint32(13))) * np.uint32(1664525) + np.uint32(1013904223)).astype(np.int32)
    given = [torch.tensor(seed, dtype=torch.int32)]
    for counted, kept in (run(program, given), reference64(program, given)):
        assert np.array_equal(counted.numpy().astype(np.int64), c)
        assert np.array_equal(kept.numpy(), c > -1717986918)


OF_SIZES = {"W": "drawn: bits", "B": "below: 8", "Y": ""}


@pytest.mark.parametrize(
    ("made", "wraps"),
    [
        ("W * 3", True),
        ("(W ^ 1) * 3", True),
        ("(W >> 28) * 3", False),
        ("(B | 8) * 100000000", False),
        ("(B | 8) * 200000000", True),
        ("((B - 9) ^ 1) * 200", True),  # bits of what is below 0
        ("Y * Y", True),
        ("Y + Y", False),
    ],
)
def test_integers_wrap_around_where_they_may_leave_32_bits(made: str, wraps: bool) -> None:
    """W says that it has all bits, B that it has three. What says nothing of its size is taken for 24."""
    (name,) = {*made} & {*OF_SIZES}
    spec = f"""
name: small
dims: {{n: 8}}
inputs: {{{name}: {{dims: [n], dtype: int32, {OF_SIZES[name]}}}}}
program: |
  O = {made}
outputs: {{O: {{dims: [n], dtype: int32}}}}
"""
    last = parse_spec(spec).at().eqns[-1]
    assert (last.op == "shift_left") is wraps, last


def test_integers_that_stay_within_32_bits_are_not_wrapped() -> None:
    """A product that cannot reach 32 bits is one product, and so is that of a length that says nothing of its size."""
    text = HASH.replace("drawn: bits", "below: 8").replace("-2048144789", "16").replace("1664525", "3")
    program = parse_spec(text.replace("1013904223", "1").replace("-1717986918", "100")).at()
    assert not any("shift_left" in str(e) for e in program.eqns), str(program)
