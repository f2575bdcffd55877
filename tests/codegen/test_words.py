"""Loads of few bytes as words, of which each lane takes its own number: where, and that they are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_cli.codegen import plan
from mirage_cli.codegen.check import PlanError
from mirage_cli.codegen.check import check as check_plan
from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from tests.codegen.test_ahead import AHEAD, CHANGES, ONE_LOOP, causal, vector
from tests.codegen.test_plan import changed, plans
from tests.codegen.test_triton import check, kernel

WORDS = "G = (tl.load(G_ptr.to(tl.pointer_type(tl.int32))"


@pytest.mark.parametrize("k", [32, 34, 64, 100])
@pytest.mark.parametrize("dtype", ["f16", "i8"])
def test_a_vector_in_whole_words_is_read_so(k: int, dtype: str) -> None:
    """In the iteration that needs it: Triton fetches it with what it multiplies."""
    g = replace_type(vector(k), dtype)
    text = kernels_source(g, Schedule.parse(ONE_LOOP))
    whole = k % (4 if dtype == "i8" else 2) == 0
    assert (WORDS in text) == whole and (AHEAD in text) == (not whole)
    check(g, Schedule.parse(ONE_LOOP))


def replace_type(g: MuGraph, dtype: str) -> MuGraph:
    if dtype == "f16":
        return g
    return replace(g, inputs=tuple(replace(t, dtype="int8") if t.name == "G" else t for t in g.inputs))


@pytest.mark.parametrize(
    "plan",
    [
        ONE_LOOP.replace("k=32", "k=64"),  # 4 bytes of each thread: an asynchronous copy takes them
        ONE_LOOP.replace("stages=3", "stages=1"),  # nothing is fetched ahead
        "k0: m=1 n=16 k=32 order=m,k,n warps=1 stages=3",  # no product on the matrix units
    ],
)
def test_others_are_read_as_they_are(plan: str) -> None:
    assert WORDS not in kernels_source(vector(128), Schedule.parse(plan))


def test_a_loop_over_several_axes_has_words() -> None:
    g = kernel(
        "m=20 j=4 k=100 n=24; X[m,j,k] G[j,k] W[j,k,n]; Y[m,n]",
        "m:grid n:grid j:loop k:loop",
        "V[m, j, k] = mul(X, G)\nY[m, n] = dot(V, W; j, k)",
    )
    s = Schedule.parse(ONE_LOOP.replace("k=32", "j=1 k=32").replace("m,k,n", "m,j,k,n"))
    assert WORDS in kernels_source(g, s)
    check(g, s)


def test_words_past_the_end_of_an_axis_are_masked() -> None:
    g, s = causal(200), Schedule.parse("k0: m=16 s=32 order=m,s,d,e warps=1 stages=3")
    text = kernels_source(g, s)
    assert "tl.load(B_ptr.to(tl.pointer_type(tl.int32))" in text and "mask=in_s" in text
    check(g, s)


def test_what_a_kernel_changes_is_read_where_it_lies() -> None:
    """Words are read from a copy, where a tensor starts within one."""
    text, tiles = CHANGES.replace("k=97", "k=96"), Schedule.parse("k0: k=32 order=m,k,n warps=1 stages=3")
    assert WORDS not in kernels_source(parse_mugraph(text), tiles)
    assert WORDS in kernels_source(parse_mugraph(text.replace("  store G[k] = H\n", "")), tiles)


def test_a_number_of_what_is_no_word_is_refused() -> None:
    def bare(s: plan.Statement) -> list[plan.Statement]:
        if isinstance(s, plan.Load) and s.part is not None:
            return [replace(s, access=replace(s.access, bits=0))]
        return [s]

    made = plans(vector(100), Schedule.parse(ONE_LOOP))[0]
    check_plan(made)
    with pytest.raises(PlanError, match="no part of words"):
        check_plan(changed(made, bare))
