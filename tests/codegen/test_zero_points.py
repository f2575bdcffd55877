"""Zero points of weights in pairs: read as words, of which each lane has its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from mirage_cli.codegen import nodes
from mirage_cli.codegen.check import PlanError
from mirage_cli.codegen.check import check as check_plan
from mirage_cli.codegen.plan import Let, Statement
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.codegen.triton import emit_kernel
from tests.codegen.test_narrow import (
    NIBBLES,
    PAIRED,
    along_columns,
    beside_bfloat16,
    expected,
    graph,
    inputs,
    ran,
    schedule,
)
from tests.codegen.test_plan import changed

PLAN = "m=16 k=64 n=64 order=n,k,m warps=1 stages=3"
OF_WORDS = "tl.load(Z_ptr.to(tl.pointer_type(tl.int32))"


def with_zero_points(text: str, declared: str, loaded: str, more: str = "") -> str:
    text = text.replace("input Z i8[groups, n]", f"input Z i8[{declared}]").replace("Z[k//64, n]", loaded)
    return text.replace("  store O", f"{more}  store O")


@pytest.mark.parametrize("plan", [plan for plan, pairs in PAIRED if pairs])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_zero_points_of_pairs_are_read_as_words(plan: str, dtype: str) -> None:
    """Each lane copies the word of its own, also where they start at an odd address: one for each pair, where these are
    as many as threads."""
    text = beside_bfloat16(NIBBLES) if dtype == "bfloat16" else NIBBLES
    g = graph(text, n=256, m=40)
    found = emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    s = schedule(plan).kernels["k0"]
    assert found.count(OF_WORDS) == (s.tile("n") >= 32 * s.warps) and "Z_next" not in found
    assert ("every_second" in found) == (s.tile("n") < 64 * s.warps)
    x = {name: t.to(getattr(torch, dtype)) if t.is_floating_point() else t for name, t in inputs(g).items()}
    moved = torch.empty(x["Z"].numel() + 1, dtype=torch.int8)[1:].view(x["Z"].shape).copy_(x["Z"])
    want = expected(NIBBLES, x)
    for zeros in (x["Z"], moved):
        assert (ran(g, plan, {**x, "Z": zeros}).double() - want).abs().max() <= 8e-3 * want.abs().max()


OTHER_WORDS = {
    "rows that end within a word": ("groups, wide", "Z[k//64, n]", "wide=258"),
    "rows that begin within a word": ("groups, wide", "Z[k//64, n+1]", "wide=260"),
    "no neighbours": ("groups, wide", "Z[k//64, 2*n]", "wide=512"),
    "of each row": ("n, groups", "Z[n, k//64]", ""),
}


@pytest.mark.parametrize("name", OTHER_WORDS)
def test_zero_points_that_fill_no_words_are_read_one_by_one(name: str) -> None:
    declared, loaded, more = OTHER_WORDS[name]
    text = with_zero_points(NIBBLES, declared, loaded).replace("groups=4", f"groups=4 {more}")
    g = graph(text, n=256, m=40)
    found = emit_kernel(g, g.kernels[0], schedule(PLAN), g.sizes).source
    assert OF_WORDS not in found and "every_second(" in found
    x = inputs(g)
    z = x["Z"]
    own = {"n, groups": z.T, "Z[k//64, n+1]": z[:, 1:], "Z[k//64, 2*n]": z[:, ::2]}
    zeros = own.get(declared, own.get(loaded, z))[:, :256]
    want = expected(NIBBLES, {**x, "Z": zeros})
    assert (ran(g, PLAN, x).double() - want).abs().max() <= 2e-3 * want.abs().max()


def test_zero_points_that_others_take_have_a_word_for_each() -> None:
    more = "  plus[k, n] = add(Z, 1)\n  twice[k, n] = mul(plus, S)\n  T[m, n] = dot(X, twice; k)\n  store P[m, n] = T\n"
    text = with_zero_points(NIBBLES, "groups, n", "Z[k//64, n]", more)
    text = text.replace("output O f16[m, n]", "output O f16[m, n]\noutput P f16[m, n]")
    g = graph(text, n=256, m=40)
    found = emit_kernel(g, g.kernels[0], schedule(PLAN), g.sizes).source
    assert found.count(OF_WORDS) == 1 and "every_second(" in found


@pytest.mark.parametrize(("bits", "count"), [(4, 4), (8, 2)])
def test_a_word_of_zero_points_serves_all_that_share_16_bits(bits: int, count: int) -> None:
    text = along_columns(bits).replace("input Z i32[groups, columns]", "input Z i8[groups, n] below 16")
    text = re.sub(r"Z\[k//64, n//\d+\]", "Z[k//64, n]", text)
    text = re.sub(r"  (rest|P)\[k, n\] = .*\n", "", text).replace("sub(Q, P)", "sub(Q, Z)")
    g, plan = graph(text), PLAN.replace("n=64", "n=128")
    found = emit_kernel(g, g.kernels[0], schedule(plan), g.sizes).source
    assert found.count(OF_WORDS) == 1 and "every_second" not in found
    assert ("Z >> (tl.arange" in found) == (count < 4)
    x, columns, at = inputs(g), torch.arange(256), torch.arange(256) // 64
    q = (x["W"][:, columns * bits // 32] >> (columns * bits % 32).int()) & (1 << bits) - 1
    want = x["X"].double() @ ((q - x["Z"].int()[at]).double() * x["S"].double()[at])
    assert (ran(g, plan, x).double() - want).abs().max() <= 8e-3 * want.abs().max()


def numbers_at(**other: int) -> Callable[[Statement], list[Statement]]:
    """A plan in which numbers of words are others."""

    def change(x: Any) -> Any:
        if isinstance(x, nodes.OfWords):
            return replace(x, **other)
        if isinstance(x, tuple):
            return tuple(change(y) for y in x)
        if not is_dataclass(x):
            return x
        return replace(x, **{f.name: change(getattr(x, f.name)) for f in fields(x)})  # pyright: ignore[reportArgumentType]

    return lambda s: [change(s)] if isinstance(s, Let) else [s]


@pytest.mark.parametrize(
    ("other", "message"),
    [({"place": 2}, "number 2 of 2"), ({"room": 256}, "end within words"), ({"count": 4}, "numbers along n of words")],
)
def test_numbers_that_lie_in_other_words_are_refused(other: dict[str, int], message: str) -> None:
    g = graph(NIBBLES, n=256, m=40)
    made = plan_kernel(g, g.kernels[0], schedule(PLAN), g.sizes)
    check_plan(made)
    with pytest.raises(PlanError, match=message):
        check_plan(changed(made, numbers_at(**other)))
