"""Weights of few bits: loops in phases, factors behind the sums of blocks, and whole numbers computed in float16."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from mirage_cli.codegen import nodes, plan
from mirage_cli.codegen.check import PlanError, check
from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.codegen.plan import Statement
from mirage_cli.codegen.triton import emit_kernel
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.phases import phased
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from tests.codegen.test_plan import changed, plans

HEAD = """
mugraph p float16
dims m=16 k=256 half=128 quarter=64 n=40 groups=4
input X f16[m, k]
input W i8[{rows}, n]
input S f16[groups, n]
input Z i8[groups, n] below 16
output O f16[m, n]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[{index}, n]
  S = load S[k//64, n]
  Z = load Z[k//64, n]
"""
NIBBLES = (
    HEAD.format(rows="half", index="k//2")
    + """
  at[k] = index(k)
  part[k] = remainder(at, 2)
  even[k] = eq(part, 0)
  low[k, n] = remainder(W, 16)
  high[k, n] = floor_divide(W, 16)
  raised[k, n] = add(high, 8)
  Q[k, n] = where(even, low, raised)
  D[k, n] = sub(Q, Z)
  V[k, n] = mul(D, S)
  O[m, n] = dot(X, V; k)
  store O[m, n] = O
"""
)
PAIRS = (
    HEAD.format(rows="quarter", index="k//4")
    + """
  at[k] = index(k)
  part[k] = remainder(at, 4)
  first[k] = lt(part, 1)
  second[k] = lt(part, 2)
  third[k] = lt(part, 3)
  a[k, n] = remainder(W, 4)
  b0[k, n] = floor_divide(W, 4)
  b[k, n] = remainder(b0, 4)
  c0[k, n] = floor_divide(W, 16)
  c[k, n] = remainder(c0, 4)
  d0[k, n] = floor_divide(W, 64)
  d[k, n] = add(d0, 2)
  cd[k, n] = where(third, c, d)
  bcd[k, n] = where(second, b, cd)
  Q[k, n] = where(first, a, bcd)
  D[k, n] = sub(Q, Z)
  V[k, n] = mul(D, S)
  O[m, n] = dot(X, V; k)
  store O[m, n] = O
"""
)
BYTES = (
    HEAD.format(rows="k", index="k")
    + """
  D[k, n] = sub(W, Z)
  V[k, n] = mul(D, S)
  O[m, n] = dot(X, V; k)
  store O[m, n] = O
"""
)


def graph(text: str, **sizes: int) -> MuGraph:
    return parse_mugraph(text.replace("\n\n  ", "\n  ")).resized(sizes)


def schedule(text: str) -> Schedule:
    return Schedule({"k0": KernelSchedule.parse(text)})


def inputs(g: MuGraph) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    found: dict[str, torch.Tensor] = {}
    for t in g.inputs:
        shape = [g.sizes[d] for d in t.dims]
        if t.dtype == "int32":
            found[t.name] = torch.randint(-(1 << 31), 1 << 31, shape, generator=made).int()
        elif t.dtype == "int8":
            low, high = (0, t.below) if isinstance(t.below, int) else (-128, 128)
            found[t.name] = torch.randint(low, high, shape, generator=made, dtype=torch.int8)
        else:
            found[t.name] = torch.randn(shape, generator=made).half()
    return found


def expected(text: str, x: dict[str, torch.Tensor]) -> torch.Tensor:
    k = x["X"].shape[1]
    at, w = torch.arange(k), x["W"].double()
    if text is NIBBLES:
        rows = w[at // 2]
        q = torch.where((at % 2 == 0)[:, None], rows % 16, rows // 16 + 8)
    elif text is PAIRS:
        rows = w[at // 4]
        part = [rows % 4, rows // 4 % 4, rows // 16 % 4, rows // 64 + 2]
        q = torch.stack(part)[at % 4, at]
    else:
        q = w
    scales, zeros = (x[name].double()[at // 64] for name in ("S", "Z"))
    return x["X"].double() @ ((q - zeros) * scales)


SCHEDULES = [
    "m=16 k=64 n=16 order=n,k,m warps=1 stages=3",
    "m=16 k=64 n=32 order=m,k,n warps=4 stages=3",
    "m=16 k=128 n=32 order=m,n,k warps=1 stages=3",
    "m=8 k=64 n=32 order=m,k,n warps=4 stages=3",
    "m=8 k=128 n=64 order=n,k,m warps=2 stages=3",
    "m=4 k=64 n=64 order=m,k,n warps=1 stages=3",
    "m=1 k=32 n=16 order=k,n,m warps=1 stages=3",
    "m=16 k=16 n=16 order=m,k,n warps=1 stages=3",
]


@pytest.mark.parametrize("plan", SCHEDULES)
@pytest.mark.parametrize("text", [NIBBLES, PAIRS, BYTES], ids=["4 bits", "2 bits", "8 bits"])
@pytest.mark.parametrize(("m", "k"), [(1, 256), (16, 256), (16, 252)])
def test_weights_of_few_bits(text: str, plan: str, m: int, k: int) -> None:
    g = graph(text, m=m, k=k, half=k // 2, quarter=k // 4)
    x = inputs(g)
    module = load_export(kernels_source(g, schedule(plan)))
    out = torch.full((m, g.sizes["n"]), float("nan"), dtype=torch.float16)
    module.launch([x[t.name] for t in g.inputs], [out], module.make_scratch(torch.device("cpu")))
    want = expected(text, x)
    assert (out.double() - want).abs().max() <= 2e-3 * want.abs().max()


PAIRED = [
    ("m=16 k=64 n=64 order=n,k,m warps=1 stages=3", 1),
    ("m=16 k=64 n=128 order=n,m,k warps=4 stages=3", 1),
    ("m=16 k=64 n=32 order=m,k,n warps=2 stages=3", 1),
    ("m=16 k=32 n=128 order=k,n,m warps=4 stages=3", 1),
    ("m=8 k=64 n=64 order=m,k,n warps=4 stages=3", 1),
    ("m=16 k=64 n=16 order=n,k,m warps=1 stages=3", 0),  # half of it is too few for the matrix units
    ("m=64 k=64 n=64 order=m,k,n warps=4 stages=3", 0),  # a warpgroup's right operand
    ("m=64 k=64 n=64 order=m,k,n warps=2 stages=3", 1),
    ("m=16 k=64 n=64 order=n,k,m warps=1 stages=3 descriptors", 0),
]


@pytest.mark.parametrize(("plan", "pairs"), PAIRED)
@pytest.mark.parametrize("text", [NIBBLES, PAIRS, BYTES], ids=["4 bits", "2 bits", "8 bits"])
def test_bytes_are_read_two_at_a_time(text: str, plan: str, pairs: int) -> None:
    """Where they lie side by side along an axis of the product, and the matrix units take them from registers."""
    g = graph(text, n=256, m=40)
    pairs *= text is not PAIRS or "k=32" not in plan  # of which four phases have none for the matrix units
    assert source(text, plan, n=256, m=40).count("W = tl.load(W_ptr.to(tl.pointer_type(tl.int16))") == pairs
    x = inputs(g)
    module = load_export(kernels_source(g, schedule(plan)))
    moved = torch.empty(x["W"].numel() + 1, dtype=torch.int8)[1:].view(x["W"].shape).copy_(x["W"])
    for w in (x["W"], moved):
        out = torch.full((40, 256), float("nan"), dtype=torch.float16)
        given = [w if t.name == "W" else x[t.name] for t in g.inputs]
        module.launch(given, [out], module.make_scratch(torch.device("cpu")))
        want = expected(text, x)
        assert (out.double() - want).abs().max() <= 2e-3 * want.abs().max()


def test_products_of_phases_are_added_up_before_they_are_put_together() -> None:
    """By the matrix units, those for even columns and those for odd ones; the plan's check sees both."""
    found = source(NIBBLES, PAIRED[0][0], n=256, m=40)
    assert found.count("tl.join(") == 1 and found.count("tl.dot(") == 4

    def of_unknown(s: Statement) -> list[Statement]:
        if not isinstance(s, plan.Let) or not isinstance(s.expr, nodes.InTurns):
            return [s]
        product = s.expr.first
        assert isinstance(product, nodes.Dot) and isinstance(product.accumulator, nodes.Dot), "of two phases"
        unknown = replace(product.accumulator, left=nodes.Value("nowhere", product.left.axes))
        return [replace(s, expr=replace(s.expr, first=replace(product, accumulator=unknown)))]

    (made,) = plans(graph(NIBBLES, n=256, m=40), schedule(PAIRED[0][0]))
    check(made)
    with pytest.raises(PlanError, match="nowhere is used before it is defined"):
        check(changed(made, of_unknown))


@pytest.mark.parametrize(("plan", "pairs"), PAIRED)
def test_bytes_less_zero_points_are_what_bfloat16_holds(plan: str, pairs: int) -> None:
    """Sums of bytes with other small numbers, too, are made of pairs, or added in that type where they are read."""
    text = BYTES.replace("D[k, n] = sub(W, Z)", "less[k, n] = sub(W, Z)\n  D[k, n] = add(less, 3)")
    g = graph(beside_bfloat16(text), n=256, m=40)
    found = emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    assert found.count("(pair_bytes(W, ") == 2 * pairs
    exact = "to_bfloat16(W.to(tl.float32)).to(MATRIX_TYPE) - to_bfloat16(Z.to(tl.float32)).to(MATRIX_TYPE)"
    assert pairs or exact in found
    x = {name: t.bfloat16() if t.is_floating_point() else t for name, t in inputs(g).items()}
    want = expected(BYTES, {**x, "Z": x["Z"] - 3})
    assert (ran(g, plan, x).double() - want).abs().max() <= 8e-3 * want.abs().max()


@pytest.mark.parametrize(("plan", "pairs"), PAIRED)
def test_bytes_are_read_two_at_a_time_beside_bfloat16(plan: str, pairs: int) -> None:
    text = BYTES.replace("  D[k, n] = sub(W, Z)\n  V[k, n] = mul(D, S)", "  V[k, n] = mul(W, S)").replace("f16", "bf16")
    text = text.replace("p float16", "p bfloat16").replace("input Z i8[groups, n] below 16\n", "")
    g = graph(text.replace("  Z = load Z[k//64, n]\n", ""), n=256, m=40)
    found = emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    assert found.count("pair_bytes(W, ") == 2 * pairs
    x = {name: t.bfloat16() if t.is_floating_point() else t for name, t in inputs(g).items()}
    module = load_export(kernels_source(g, schedule(plan)))
    out = torch.full((40, 256), float("nan"), dtype=torch.bfloat16)
    module.launch([x[t.name] for t in g.inputs], [out], module.make_scratch(torch.device("cpu")))
    scales = x["S"].double()[torch.arange(256) // 64]
    want = x["X"].double() @ (x["W"].double() * scales)
    assert (out.double() - want).abs().max() <= 8e-3 * want.abs().max()


def beside_bfloat16(text: str) -> str:
    return text.replace("f16", "bf16").replace("p float16", "p bfloat16")


def ran(g: MuGraph, plan: str, x: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output in Triton's interpreter."""
    module = load_export(kernels_source(g, schedule(plan)))
    out = torch.full([g.sizes[d] for d in g.outputs[0].dims], float("nan"), dtype=x["X"].dtype)
    module.launch([x[t.name] for t in g.inputs], [out], module.make_scratch(torch.device("cpu")))
    return out


@pytest.mark.parametrize(("plan", "pairs"), [*PAIRED, *((plan, 0) for plan in SCHEDULES)])
@pytest.mark.parametrize("text", [NIBBLES, PAIRS], ids=["4 bits", "2 bits"])
def test_parts_of_bytes_become_bfloat16_by_logic_alone(text: str, plan: str, pairs: int) -> None:
    """In the products that take them, and with their scales behind the sums of blocks."""
    n = 256 if plan in dict(PAIRED) else 40
    g = graph(beside_bfloat16(text), n=n, m=40)
    x = {name: t.bfloat16() if t.is_floating_point() else t for name, t in inputs(g).items()}
    found = emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    if text is NIBBLES:
        assert found.count("pair_bits(W, ") == 4 * pairs
        assert pairs or found.count("byte_bits(W, ") == 2
    want = expected(text, x)
    assert (ran(g, plan, x).double() - want).abs().max() <= 8e-3 * want.abs().max()


IN_WORDS = """
mugraph p float16
dims m=16 k=512 words=64 n=64 columns=8 groups=4
input X f16[m, k]
input W i32[words, n]
input S f16[groups, n]
input Z i32[groups, columns]
output O f16[m, n]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[k//8, n]
  S = load S[k//128, n]
  Z = load Z[k//128, n//8]
  at[k] = index(k)
  part[k] = remainder(at, 8)
  by[k] = mul(4, part)
  behind[k, n] = shift_right(W, by)
  Q[k, n] = remainder(behind, 16)
  column[n] = index(n)
  place[n] = remainder(column, 8)
  over[n] = mul(4, place)
  rest[k, n] = shift_right(Z, over)
  P[k, n] = remainder(rest, 16)
  D[k, n] = sub(Q, P)
  E[k, n] = sub(D, 1)
  V[k, n] = mul(E, S)
  O[m, n] = dot(X, V; k)
  store O[m, n] = O
"""


IN_WORDS_PLAN = "m=16 k=128 n=64 order=n,k,m warps=1 stages=3"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("plan", "by_logic"),
    [
        (IN_WORDS_PLAN, True),
        ("m=16 k=128 n=32 order=m,k,n warps=2 stages=3", True),
        ("m=8 k=128 n=64 order=n,k,m warps=4 stages=3", True),
        ("m=16 k=64 n=64 order=n,k,m warps=1 stages=3", False),  # eight phases have no block for the matrix units each
        ("m=1 k=128 n=64 order=n,k,m warps=1 stages=3", True),
    ],
)
def test_parts_of_words_become_16_bits_by_logic_alone(plan: str, by_logic: bool, dtype: str) -> None:
    """Eight numbers of 4 bits to a word along the sum, with zero points in words along the columns (GPTQ): a block of
    whole words is read for all phases, activations once for all, and zero points without repeated elements."""
    g = graph(beside_bfloat16(IN_WORDS) if dtype == "bfloat16" else IN_WORDS, m=40)
    found = emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    on_units = "m=1" not in plan.split()
    if dtype == "float16" or on_units:
        assert len(re.findall(r"pair_bits\(\(W( >> 16)?\)\.to\(tl\.int16\), ", found)) == 8 * by_logic
    assert ("split_in_eight(" in found) == by_logic
    assert not re.search(r"Z = tl\.reshape", found)
    x = {name: t.to(getattr(torch, dtype)) if t.is_floating_point() else t for name, t in inputs(g).items()}
    at, columns = torch.arange(512), torch.arange(64)
    q = (x["W"][at // 8] >> (at % 8 * 4)[:, None].int()) & 15
    zeros = (x["Z"][:, columns // 8] >> (columns % 8 * 4).int()) & 15
    weights = (q - zeros[at // 128] - 1).double() * x["S"].double()[at // 128]
    want = x["X"].double() @ weights
    assert (ran(g, plan, x).double() - want).abs().max() <= 8e-3 * want.abs().max()


ALONG_COLUMNS = """
mugraph p float16
dims m=40 k=256 n=256 columns={columns} groups=4
input X f16[m, k]
input W i32[k, columns]
input S f16[groups, n]
input Z i32[groups, columns]
output O f16[m, n]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[k, n//{count}]
  S = load S[k//64, n]
  Z = load Z[k//64, n//{count}]
  column[n] = index(n)
  place[n] = remainder(column, {count})
  by[n] = mul({bits}, place)
  behind[k, n] = shift_right(W, by)
  Q[k, n] = remainder(behind, {most})
  rest[k, n] = shift_right(Z, by)
  P[k, n] = remainder(rest, {most})
  D[k, n] = sub(Q, P)
  V[k, n] = mul(D, S)
  O[m, n] = dot(X, V; k)
  store O[m, n] = O
"""


def along_columns(bits: int) -> str:
    count = 32 // bits
    return ALONG_COLUMNS.format(columns=256 // count, count=count, bits=bits, most=1 << bits)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("bits", "plan", "products"),
    [
        (4, "m=16 k=64 n=64 order=n,k,m warps=1 stages=3", 4),
        (4, "m=16 k=64 n=128 order=m,k,n warps=2 stages=3", 4),
        (4, "m=8 k=64 n=64 order=m,k,n warps=4 stages=3", 4),
        (4, "m=16 k=64 n=32 order=n,k,m warps=1 stages=3", 0),  # a fourth of it is too few for the matrix units
        (4, "m=64 k=64 n=64 order=m,k,n warps=4 stages=3", 0),  # a warpgroup's right operand
        (2, "m=16 k=64 n=128 order=n,k,m warps=2 stages=3", 8),
        (8, "m=16 k=64 n=64 order=n,k,m warps=1 stages=3", 2),
    ],
)
def test_words_along_columns_are_read_in_16_bits(bits: int, plan: str, products: int, dtype: str) -> None:
    """A product for each of the numbers that share them (AWQ), which are put together like those of pairs of bytes."""
    products *= bits < 8 or dtype == "float16"
    text = beside_bfloat16(along_columns(bits)) if dtype == "bfloat16" else along_columns(bits)
    g = graph(text)
    found = emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    assert found.count("pair_bits(W, ") == products
    assert found.count("tl.join(") == max(products - 1, 0)
    x = {name: t.to(getattr(torch, dtype)) if t.is_floating_point() else t for name, t in inputs(g).items()}
    columns = torch.arange(256)
    q, zeros = ((x[w][:, columns * bits // 32] >> (columns * bits % 32).int()) & (1 << bits) - 1 for w in ("W", "Z"))
    at = torch.arange(256) // 64
    want = x["X"].double() @ ((q - zeros[at]).double() * x["S"].double()[at])
    assert (ran(g, plan, x).double() - want).abs().max() <= 8e-3 * want.abs().max()


def test_words_whose_parts_lie_in_another_order_are_integers() -> None:
    """Shifts by anything but the position's own bits, or of a part that is larger than these."""
    plan = "m=16 k=64 n=64 order=n,k,m warps=1 stages=3"
    text = along_columns(4)
    backwards = "back[n] = sub(7, place)\n  by[n] = mul(4, back)"
    assert source(text, plan).count("pair_bits(W, ") == 4
    assert "pair_bits(W, " not in source(text.replace("by[n] = mul(4, place)", backwards), plan)
    assert "pair_bits(W, " not in source(text.replace("remainder(behind, 16)", "remainder(behind, 32)"), plan)
    assert source(text.replace("remainder(behind, 16)", "remainder(behind, 8)"), plan).count("pair_bits(W, ") == 4


def test_parts_that_two_bytes_of_a_word_share_are_integers() -> None:
    """No type of 16 bits has room for them where they lie. Of the last 4 bits the sign is a part."""
    found = source(IN_WORDS.replace("remainder(behind, 16)", "remainder(behind, 32)"), IN_WORDS_PLAN)
    parts = re.findall(r"pair_bits\(\(W( >> 16)?\)\.to\(tl\.int16\), (\d+), (\d+), (\d+),", found)
    assert {(bool(first), *map(int, rest)) for first, *rest in parts} == {
        (False, 0, 31, 0), (False, 8, 31, 0), (True, 0, 31, 0), (True, 8, 31, 0), (True, 12, 15, 8)
    }  # fmt: skip


def test_what_bfloat16_does_not_hold_is_computed_in_float32() -> None:
    """Sums beyond 256, and what something else than a product takes."""
    plan = PAIRED[0][0]

    def narrow(text: str) -> int:
        found = emit_kernel(g := graph(beside_bfloat16(text), n=256), g.kernels[0], schedule(plan), g.sizes).source
        return found.count("pair_bits(W, ") or found.count("byte_bits(W, ")

    assert narrow(NIBBLES) == narrow(NIBBLES.replace("add(high, 8)", "add(high, 90)")) == 4
    large = NIBBLES.replace("add(high, 8)", "add(high, 130)")
    assert narrow(large) == 2  # of both phases, but what is added to one of them
    assert narrow(NIBBLES.replace("  V[k, n] = mul(D, S)", "  E[k, n] = exp(D)\n  V[k, n] = mul(E, S)")) == 0
    assert narrow(BYTES) == 0
    g = graph(beside_bfloat16(large), n=256)
    x = {name: t.bfloat16() if t.is_floating_point() else t for name, t in inputs(g).items()}
    half = torch.arange(256)[:, None] % 2 * 122 * x["S"].double().repeat_interleave(64, 0)
    want = expected(NIBBLES, x) + x["X"].double() @ half
    assert (ran(g, plan, x).double() - want).abs().max() <= 8e-3 * want.abs().max()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("plan", "pure"), [(PAIRED[0][0], True), (PAIRED[1][0], False), (PAIRED[2][0], True)])
def test_parts_of_bytes_along_the_sum_are_read_as_they_are_multiplied(plan: str, pure: bool, dtype: str) -> None:
    text = NIBBLES.replace("W i8[half, n]", "W i8[n, half]").replace("load W[k//2, n]", "load W[n, k//2]")
    g = graph(beside_bfloat16(text) if dtype == "bfloat16" else text, n=256, m=40)
    found = emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    assert re.findall(r"byte_bits\(W.*?\[.*?\](, True)?\)", found) == [", True" * pure] * 2
    x = {name: t.to(getattr(torch, dtype)) if t.is_floating_point() else t for name, t in inputs(g).items()}
    want = expected(NIBBLES, {**x, "W": x["W"].T})
    assert (ran(g, plan, x).double() - want).abs().max() <= 8e-3 * want.abs().max()


@pytest.mark.parametrize(("plan", "pure"), [(PAIRED[0][0], True), (PAIRED[1][0], False), (PAIRED[2][0], True)])
def test_bytes_along_the_sum_are_read_as_they_are_multiplied(plan: str, pure: bool) -> None:
    """By warps that each multiply for themselves. A warpgroup would read them one by one."""
    text = NIBBLES[: NIBBLES.index("  at[k]")] + "  O[m, n] = dot(X, W; k)\n  store O[m, n] = O\n"
    text = text.replace("W i8[half, n]", "W i8[n, k]").replace("load W[k//2, n]", "load W[n, k]")
    g = graph(text, n=256, m=40)
    found = emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    assert f"byte_bits(W, 0, 255, 128, tl.full((), 1152.0, tl.float16){', True' * pure})" in found
    x = inputs(g)
    module = load_export(kernels_source(g, schedule(plan)))
    out = torch.full((40, 256), float("nan"), dtype=torch.float16)
    module.launch([x[t.name] for t in g.inputs], [out], module.make_scratch(torch.device("cpu")))
    want = x["X"].double() @ x["W"].double().T
    assert (out.double() - want).abs().max() <= 2e-3 * want.abs().max()


@pytest.mark.parametrize("plan", [PAIRED[0][0], PAIRED[2][0]])
def test_bytes_are_read_two_at_a_time_at_any_number_of_rows(plan: str) -> None:
    text = BYTES.replace("n=40 groups=4\n", "n=40 groups=4\ndynamic m=1..64\n")
    g = graph(text, n=256)
    assert "pair_bits(W, 8, " in emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    x = inputs(g)
    module = load_export(kernels_source(g, schedule(plan)))
    for rows in (1, 40):
        x["X"] = torch.randn(rows, 256, generator=torch.Generator().manual_seed(rows)).half()
        out = torch.full((rows, 256), float("nan"), dtype=torch.float16)
        module.launch([x[t.name] for t in g.inputs], [out], module.make_scratch(torch.device("cpu")))
        want = expected(BYTES, x)
        assert (out.double() - want).abs().max() <= 2e-3 * want.abs().max()


def test_bytes_that_others_take_or_that_have_no_neighbours_are_read_one_by_one() -> None:
    plan = PAIRED[0][0]
    assert "pair_bits" in source(BYTES, plan, n=256)
    assert "pair_bits" not in source(BYTES, plan, n=255)
    assert "pair_bits" not in source(BYTES, plan, n=320 + 32)  # the last block ends within the tensor
    largest = "  T[n] = max(D; k)\n  U[m, n] = dot(X, V; k)\n  O[m, n] = mul(U, T)"
    assert "pair_bits" not in source(BYTES.replace("  O[m, n] = dot(X, V; k)", largest), plan, n=256)
    turned = BYTES.replace("W i8[k, n]", "W i8[n, k]").replace("load W[k, n]", "load W[n, k]")
    assert "pair_bits" not in source(turned, plan, n=256)
    shifted = (
        BYTES.replace("W i8[k, n]", "W i8[k, wide]")
        .replace("n=40", "n=40 wide=258")
        .replace("load W[k, n]", "load W[k, {}]")
    )
    assert "pair_bits" in source(shifted.format("n + 2"), plan, n=256)
    assert "pair_bits" not in source(shifted.format("n + 1"), plan, n=256)


SCALED = """
mugraph p bfloat16
dims m=20 k=64 n=48 rows=5 groups=4 columns=3
input X f8e4m3fn[m, k]
input W f8e4m3fn[k, n]
input S f32[rows, groups]
input R f32[groups, columns]
output O f32[m, n]
output P f32[m, k]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[k, n]
  S = load S[m//4, k//16]
  R = load R[k//16, n//16]
  A[m, k] = mul(X, S)
  B[k, n] = mul(W, R)
  O[m, n] = dot(A, B; k)
  store O[m, n] = O

kernel k1 generated m:grid k:grid
  X = load X[m, k]
  S = load S[m//4, k//16]
  P[m, k] = add(X, S)
  store P[m, k] = P
"""


@pytest.mark.parametrize("tiles", ["m=16 k=16 n=16", "m=4 k=16 n=32", "m=16 k=32 n=16", "m=2 k=16 n=8"])
def test_one_scale_for_a_block_of_two_axes(tiles: str) -> None:
    """Also where the scale is the same along both axes of a whole block, or of some parts of it."""
    g = graph(SCALED)
    elementwise = tiles.rpartition(" ")[0]
    plan = Schedule.parse(f"k0: {tiles} order=m,k,n warps=1 stages=2\nk1: {elementwise} order=m,k warps=1 stages=2")
    made = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=made).to(torch.float8_e4m3fn) for shape in ((20, 64), (64, 48)))
    s, r = (torch.randn(shape, generator=made) for shape in ((5, 4), (4, 3)))
    module = load_export(kernels_source(g, plan))
    out = [torch.full(shape, float("nan")) for shape in ((20, 48), (20, 64))]
    module.launch([x, w, s, r], out, module.make_scratch(torch.device("cpu")))
    scales = s.double().repeat_interleave(4, 0).repeat_interleave(16, 1)
    others = r.double().repeat_interleave(16, 0).repeat_interleave(16, 1)
    torch.testing.assert_close(out[0].double(), (x.double() * scales) @ (w.double() * others), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(out[1].double(), x.double() + scales, rtol=1e-6, atol=1e-6)


def test_scales_of_blocks_leave_the_product_in_the_type_of_the_program() -> None:
    found = source(SCALED, "m=16 k=16 n=16 order=m,k,n warps=1 stages=2")
    assert "O_sum = tl.dot(to_bfloat16(X" in found and "tf32" not in found
    assert re.search(r"R_next = tl.load\(R_ptr .*# \[\]\n", found) and "(O_sum * S[:, None]) * R)" in found


BEYOND = """
mugraph p float16
dims m=3 k=100 n=40
input X f16[m, k]
input W i8[k, n]
input Z i8[k, n] below 16
output O f16[m, n]
output P f16[m, n]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[k, n]
  Z = load Z[k, n]
  D[k, n] = sub(W, Z)
  O[m, n] = dot(X, W; k)
  P[m, n] = dot(X, D; k)
  store O[m, n] = O
  store P[m, n] = P
"""


@pytest.mark.parametrize("plan", ["m=1 k=128 n=16 order=m,k,n warps=1", "m=1 k=64 n=8 order=m,n,k warps=1 stages=2"])
def test_bytes_past_the_end_of_a_sum_are_zero(plan: str) -> None:
    """Without the matrix units, no lane of the product is masked where the bytes are."""
    g = graph(BEYOND)
    assert "byte_bits" in source(BEYOND, plan)
    x = inputs(g)
    module = load_export(kernels_source(g, schedule(plan)))
    out = [torch.full((3, 40), float("nan"), dtype=torch.float16) for _ in g.outputs]
    module.launch([x[t.name] for t in g.inputs], out, module.make_scratch(torch.device("cpu")))
    w, z = x["W"].double(), x["Z"].double()
    for found, factor in zip(out, (w, w - z), strict=True):
        want = x["X"].double() @ factor
        assert (found.double() - want).abs().max() <= 2e-3 * want.abs().max()


def source(text: str, plan: str, **sizes: int) -> str:
    g = graph(text, **sizes)
    return emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source


def test_numbers_that_share_a_byte_are_read_from_whole_bytes() -> None:
    """Once for both, without a choice by position, and with one addition for each."""
    found = source(NIBBLES, SCHEDULES[0])
    assert found.count("tl.load(W_ptr") == found.count("tl.load(S_ptr") == 1
    assert "where" not in found and "broadcast_to" not in found
    assert "byte_bits(W, 0, 15, 0, (1024.0 + Z.to(tl.float16))[:, None])" in found
    assert "byte_bits(W, 4, 15, 8, (1024.0 + Z.to(tl.float16))[:, None])" in found


def test_scales_multiply_the_sum_of_a_block() -> None:
    found = source(BYTES, SCHEDULES[0])
    assert "O = O + (O_sum * S.to(tl.float32)[:, None])" in found
    wide = source(BYTES, "m=16 k=128 n=16 order=n,k,m warps=1 stages=3")  # of two groups in one block
    assert "O_sum" not in wide


def test_what_may_overflow_without_its_factor_is_multiplied_before() -> None:
    """exp(W) is beyond float16 from W = 12 on, and a small scale brings it back."""
    text = BYTES.replace("D[k, n] = sub(W, Z)", "D[k, n] = exp(W)")
    assert "O_sum" not in source(text, SCHEDULES[0])


def test_a_loop_whose_order_matters_has_one_phase() -> None:
    """Where a value of each position is stored, and where the largest so far is, blocks are of neighbours."""
    g = graph(NIBBLES.replace("output O f16[m, n]", "output O f16[m, n]\noutput Q f16[k, n]") + "  store Q[k, n] = Q\n")
    plan = KernelSchedule.parse(SCHEDULES[0])
    assert len(phased(g, g.kernels[0], plan, g.sizes).phases) == 1
    largest = graph(
        NIBBLES.replace(
            "  O[m, n] = dot(X, V; k)", "  T[n] = max(V; k)\n  U[m, n] = dot(X, V; k)\n  O[m, n] = mul(U, T)"
        )
    )
    assert len(phased(largest, largest.kernels[0], plan, largest.sizes).phases) == 1


@pytest.mark.parametrize("name", [n for n, row in OPS.items() if row.whole is not None])
def test_whole_numbers_stay_between_their_bounds(name: str) -> None:
    row = OPS[name]
    some = [(-7, 9), (0, 15), (3, 3), (4, 4), (-128, 127)]
    free = row.arity - len(row.masks)
    assert row.whole is not None
    for first in some:
        bounds = (first, *(b for b in some[1:4] for _ in range(free > 1)))[:free]
        for second in some if free > 1 else [()]:
            ends = (first, second) if second else bounds
            made = row.whole(*ends)
            if made is None:
                continue
            for args in _within(ends):
                for masks in ([True], [False]) if row.masks else ([],):
                    assert made[0] <= float(row.ref(*masks, *args)) <= made[1]


def _within(bounds: tuple[tuple[int, int], ...]) -> list[tuple[float, ...]]:
    columns = [sorted({low, high, (low + high) // 2, low + (high - low) // 3}) for low, high in bounds]
    return (
        [(float(a),) for a in columns[0]]
        if len(columns) == 1
        else [(float(a), float(b)) for a in columns[0] for b in columns[1]]
    )


@pytest.mark.parametrize("name", [n for n, row in OPS.items() if row.bits is not None])
@pytest.mark.parametrize("n", range(1, 8))
def test_bits_of_a_byte_are_the_result(name: str, n: int) -> None:
    """And of some bits of it, where they are bits of it again."""
    row = OPS[name]
    assert row.bits is not None
    for bits in [(0, 255, 128), (0, 15, 0), (2, 63, 32), (3, 7, 0)]:
        found = row.bits(n, bits)
        assert found is not None or (1 << n) - 1 >= bits[1]
        for x in range(-128, 128) if found is not None else ():
            given, got = (((x & 255) >> shift & mask ^ sign) - sign for shift, mask, sign in (bits, found))
            assert got == row.ref(float(given), float(Fraction(2) ** n))


WORDS = """
mugraph p float32
dims m=3 n=5
input X {type}[m, n]
output O f32[m, n]
output R f32[m]

kernel k0 generated m:grid n:tile
  X = load X[m, n]
  high[m, n] = floor_divide(X, {by})
  low[m, n] = remainder(high, {of})
  all[m] = sum(high; n)
  store O[m, n] = low
  store R[m] = all
"""


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("by", "of"), [(16, 16), (256, 16), (3, 7), (1, 11)])
def test_quotients_of_large_integers_are_exact(dtype: str, by: int, of: int) -> None:
    """Float32 has no odd numbers beyond 2^24: quotients are integers, and so is what is made of them, in 32 bits."""
    graph = parse_mugraph(WORDS.format(type={"int32": "i32", "int64": "i64"}[dtype], by=by, of=of))
    kernels = load_export(kernels_source(graph, schedule("m=1 n=8 order=m,n warps=1 stages=3")))
    x = torch.randint(-(1 << 31), 1 << 31, (3, 5), generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    low, total = torch.empty(3, 5), torch.empty(3)
    kernels.launch([x], [low, total], kernels.make_scratch("cpu"))
    high = x.long().div(by, rounding_mode="floor")
    assert torch.equal(low, high.remainder(of).float())
    assert torch.equal(total, high.sum(1).int().float())
