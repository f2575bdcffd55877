"""Entries of tables that results name, read from a block of the table."""

from __future__ import annotations

import re

import pytest
import torch

from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.codegen.triton import emit_kernel
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.tables import TableEntry, with_entries
from mirage_cli.search.cost.work import models
from tests.codegen.test_narrow import graph, schedule

TEXT = """
mugraph p float16
dims m=24 k=128 half=64 n=64 t=16 blocks=2
input X f16[m, k]
input W i8[n, half]
input T f16[t]
input A f16[n, blocks]
output O f16[m, n]

kernel k0 generated m:grid k:loop n:grid t:tile
  W = load W[n, k//2]
  T = load T[t]
  X = load X[m, k]
  A = load A[n, k//64]
  entry[t] = index(t)
  at[k] = index(k)
  part[k] = remainder(at, 2)
  even[k] = eq(part, 0)
  high[k, n] = floor_divide(W, 16)
  raised[k, n] = add(high, 8)
  low[k, n] = remainder(W, 16)
  I[k, n] = where(even, raised, low)
  same[k, n, t] = eq(entry, I)
  kept[k, n, t] = where(same, T, 0)
  Q[k, n] = sum(kept; t)
  V[k, n] = mul(Q, A)
  O[m, n] = dot(X, V; k)
  store O[m, n] = O
"""


def in_type(text: str, dtype: str) -> str:
    short = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[dtype]
    return text.replace("p float16", f"p {dtype}").replace(" f16[", f" {short}[")


def made(g: MuGraph, plan: str) -> str:
    return emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source


SHIFTED = """\
  at[k] = index(k)
  part[k] = remainder(at, 2)
  count[k] = mul(4, part)
  moved[k, n] = shift_right(W, count)
  I[k, n] = remainder(moved, 16)
"""


@pytest.mark.parametrize("shifted", [False, True, "whole"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "plan",
    [
        "m=16 k=64 n=32 order=m,k,n,t warps=2 stages=3",
        "m=16 k=128 n=16 order=n,k,m,t warps=4 stages=3",
        "m=1 k=32 n=16 order=k,n,m,t warps=1 stages=3",
    ],
)
def test_entries_of_a_table(plan: str, dtype: str, shifted: bool | str) -> None:
    """One of 16 numbers for each 4 bits (NF4), without a comparison with each position of the table. shifted: which 4
    bits, by a count that is computed of the position, an integer; of each word, or of k as a whole."""
    text = re.sub(r"  at\[k\].*?(?=  same)", SHIFTED, TEXT, flags=re.DOTALL) if shifted else TEXT
    if shifted == "whole":
        text, plan = text.replace("k:loop", "k:tile"), re.sub(r"k=\d+", "k=128", plan)
    g = graph(in_type(text, dtype))
    found = made(g, plan)
    assert found.count("tl.gather(T, ") == 2 - (shifted == "whole") and "==" not in found
    kind, some = getattr(torch, dtype), torch.Generator().manual_seed(1)
    x, t, a = (torch.randn(s, generator=some).to(kind) for s in ((24, 128), (16,), (64, 2)))
    w = torch.randint(-128, 128, (64, 64), generator=some, dtype=torch.int8)
    at = torch.arange(128)
    index = torch.where(at % 2 == 0, w[:, at // 2] // 16 + 8, w[:, at // 2] % 16).long()
    index = w[:, at // 2].int() >> 4 * (at % 2) & 15 if shifted else index
    want = x.double() @ (t.double()[index] * a.double()[:, at // 64]).T
    module = load_export(kernels_source(g, schedule(plan)))
    out = torch.full((24, 64), float("nan"), dtype=kind)
    module.launch([x, w, t, a], [out], module.make_scratch(torch.device("cpu")))
    assert (out.double() - want).abs().max() <= 1e-2 * want.abs().max()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("t=16", "t=15"),  # an index may be beyond the table, where the sum is 0
        ("where(even, raised, low)", "where(even, high, low)"),  # or in front of it
        ("where(same, T, 0)", "where(same, T, 1)"),
        ("eq(entry, I)", "lt(entry, I)"),
        ("t:tile", "t:loop"),
    ],
)
def test_what_is_no_entry_is_summed(old: str, new: str) -> None:
    g = graph(TEXT.replace(old, new))
    kernel = with_entries(g.kernels[0], g.tensors(), g.sizes)
    assert not any(isinstance(e, TableEntry) for e in kernel.body)


@pytest.mark.parametrize("padded", [False, True])
def test_a_padded_index_may_be_in_front_of_the_table(padded: bool) -> None:
    """-1 is in it, where the sum is 0."""
    text = TEXT.replace("W i8[n, half]", "W i8[n, half] below 8" + " padded" * padded)
    g = graph(text.replace("where(even, raised, low)", "where(even, high, low)"))
    kernel = with_entries(g.kernels[0], g.tensors(), g.sizes)
    assert any(isinstance(e, TableEntry) for e in kernel.body) != padded


def test_nothing_has_the_table_s_axis_besides_it() -> None:
    """Neither in the kernel that is written, nor in what the cost model sees of it."""
    g = graph(TEXT)
    kernel = with_entries(g.kernels[0], g.tensors(), g.sizes)
    assert [e.out for e in kernel.body if isinstance(e, TableEntry)] == ["Q"]
    assert [v for v, dims in kernel.value_dims.items() if "t" in dims] == ["T"]
    assert models(g)["k0"].placed.body == kernel.body
