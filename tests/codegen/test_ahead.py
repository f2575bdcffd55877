"""Loads of few bytes that are no whole words, an iteration ahead of those that multiply: where they are right, and what
a plan must hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from mirage_cli.codegen import plan, scalars
from mirage_cli.codegen.check import PlanError
from mirage_cli.codegen.check import check as check_plan
from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.codegen.plan import KernelPlan, Statement
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost import model
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.work import models
from mirage_cli.target.gpus import find_target
from tests.codegen.test_plan import changed, plans
from tests.codegen.test_triton import check, kernel

VECTOR = "V[m, k] = mul(X, G)\nY[m, n] = dot(V, W; k)"
ONE_LOOP = "k0: m=16 n=16 k=32 order=m,k,n warps=1 stages=3"
AHEAD = "G_next = tl.load("


def vector(k: int = 101, roles: str = "m:grid n:grid k:loop") -> MuGraph:
    return kernel(f"m=20 k={k} n=24; X[m,k] G[k] W[k,n]; Y[m,n]", roles, VECTOR)


@pytest.mark.parametrize("k", [1, 31, 33, 65, 101])
def test_a_vector_is_right_however_its_loop_ends(k: int) -> None:
    g = vector(k)
    assert (AHEAD in kernels_source(g, Schedule.parse(ONE_LOOP))) == (k > 32)
    check(g, Schedule.parse(ONE_LOOP))


SPLIT = """
mugraph g float16
dims m=20 k=208 n=24 wide=25 groups=13
input X f16[m, k]
input S f16[groups, wide]
input W i8[k, n]
output Y f16[m, n]
buffer P f32[k_split, m, n]
kernel k0 generated m:grid n:grid k:split
  X = load X[m, k]
  S = load S[k//16, n]
  W = load W[k, n]
  V[n, k] = mul(W, S)
  Y[m, n] = dot(X, V; k)
  store P[k_split, m, n] = Y
kernel k1 generated m:grid n:grid k_split:loop
  P = load P[k_split, m, n]
  Y[m, n] = sum(P; k_split)
  store Y[m, n] = Y
"""


@pytest.mark.parametrize("chunks", [1, 3, 9, 13])
@pytest.mark.parametrize("order", ["m,k,n", "n,k,m"])
def test_chunks_end_where_they_do(chunks: int, order: str) -> None:
    """Also where the last are empty: 9 of 32 positions each. Of one tile, nothing is ahead."""
    g = parse_mugraph(SPLIT)
    split = Schedule.parse(
        f"k0: m=16 n=32 k=16 order={order} warps=1 stages=3 split={chunks}\n"
        "k1: m=16 n=16 k_split=1 order=m,n,k_split warps=1 stages=2"
    )
    text = kernels_source(g, split)
    assert ("S_next = tl.load(" in text) == (chunks < 13)
    made = torch.Generator().manual_seed(0)
    x, s = (torch.randn(shape, generator=made).half() for shape in ((20, 208), (13, 25)))
    w = torch.randint(-128, 128, (208, 24), generator=made).to(torch.int8)
    module = load_export(text)
    out = torch.full((20, 24), float("nan")).half()
    with np.errstate(all="ignore"):
        module.launch([x, s, w], [out], module.make_scratch(torch.device("cpu")))
    want = x.double() @ (w.double() * s[:, :24].double().repeat_interleave(16, 0))
    torch.testing.assert_close(out.double(), want, rtol=1e-2, atol=0.5)


CAUSAL = """
T[m, s] = dot(Q, K; d)
I[m] = index(m)
J[s] = index(s)
C[m, s] = ge(I, J)
U[m, s] = add(T, B)
A[m, s] = where(C, U, -inf)
M[m] = max(A; s)
P[m, s] = exp_sub(A, M)
L[m] = sum(P; s)
O[m, e] = dot(P, V; s)
Y[m, e] = div(O, L)
"""


def causal(s: int = 201) -> MuGraph:
    header = f"m=200 s={s} d=16 e=16; Q[m,d] K[s,d] B[s] V[s,e]; Y[m,e]"
    return kernel(header, "m:grid s:loop d:tile e:tile", CAUSAL)


def test_each_part_of_a_loop_begins_anew() -> None:
    """The tiles that need no mask, and those on the diagonal."""
    plan_of = Schedule.parse("k0: m=16 s=32 order=m,s,d,e warps=1 stages=3")
    text = kernels_source(causal(), plan_of)
    assert text.count("    B_next = tl.load(") == 4 and len(re.findall(r"for s_s in", text)) == 2
    check(causal(), plan_of)


CHANGES = """
mugraph g float16
dims m=16 k=97 n=16
input X f16[m, k]
input G f16[k]
input W f16[k, n]
output Y f16[m, n]
kernel k0 generated m:tile n:tile k:loop
  X = load X[m, k]
  G = load G[k]
  W = load W[k, n]
  H[k] = add(G, 1)
  V[m, k] = mul(X, G)
  Y[m, n] = dot(V, W; k)
  store Y[m, n] = Y
  store G[k] = H
"""


def test_what_a_kernel_changes_is_not_read_ahead() -> None:
    tiles = Schedule.parse("k0: k=32 order=m,k,n warps=1 stages=3")
    assert AHEAD not in kernels_source(parse_mugraph(CHANGES), tiles)
    assert AHEAD in kernels_source(parse_mugraph(CHANGES.replace("  store G[k] = H\n", "")), tiles)


def test_the_model_has_what_is_loaded_ahead_in_time() -> None:
    """Loops over several axes have no iteration whose positions are known ahead."""
    target = find_target("h200")
    wide = kernel(
        "m=20 j=4 k=101 n=24; X[m,j,k] G[j,k] W[j,k,n]; Y[m,n]",
        "m:grid n:grid j:loop k:loop",
        "V[m, j, k] = mul(X, G)\nY[m, n] = dot(V, W; j, k)",
    )
    tiles = ONE_LOOP, ONE_LOOP.replace("k=32", "j=1 k=32").replace("m,k,n", "m,j,k,n")
    for graph, tile, late in ((vector(100), tiles[0], False), (wide, tiles[1], True)):
        m, schedule = models(graph)["k0"], Schedule.parse(tile)
        batch = Batch.of(m, [schedule.kernels["k0"]], graph.sizes)
        with_it, without = (model.estimate(m, batch, graph.sizes, target, x).us for x in ((), {"late"}))
        assert (with_it > without).tolist() == [late]
        assert AHEAD not in kernels_source(graph, schedule)
    assert AHEAD in kernels_source(vector(), Schedule.parse(tiles[0]))


# -- what check refuses


def planned() -> KernelPlan:
    return plans(vector(), Schedule.parse(ONE_LOOP))[0]


def of_next(s: Statement) -> bool:
    return isinstance(s, plan.Load) and s.ahead is not None and isinstance(s.ahead.start, scalars.AtNext)


def of_first(s: Statement) -> bool:
    return isinstance(s, plan.Load) and s.ahead is not None and isinstance(s.ahead.start, scalars.AtFirst)


def without_reach(s: Statement) -> list[Statement]:
    if isinstance(s, plan.Load) and s.ahead is not None and of_next(s):
        return [replace(s, ahead=replace(s.ahead, reached=None))]
    return [s]


def too_far(s: Statement) -> list[Statement]:
    if isinstance(s, plan.Load) and s.ahead is not None and s.ahead.reached is not None:
        end = scalars.Plus(s.ahead.reached.end, 32)
        return [replace(s, ahead=replace(s.ahead, reached=replace(s.ahead.reached, end=end)))]
    return [s]


def starting_at(start: scalars.AtFirst) -> Callable[[Statement], list[Statement]]:
    def change(s: Statement) -> list[Statement]:
        if isinstance(s, plan.Positions) and isinstance(s.start, scalars.AtFirst):
            return [replace(s, start=start)]
        if isinstance(s, plan.Load) and of_first(s):
            return [replace(s, ahead=scalars.Ahead(start, None))]
        return [s]

    return change


def two_steps(s: Statement) -> list[Statement]:
    if isinstance(s, plan.Positions) and isinstance(s.start, scalars.AtNext):
        return [replace(s, start=replace(s.start, step=64))]
    return [s]


WRONG: dict[str, tuple[Callable[[Statement], list[Statement]], str]] = {
    "nothing for the first iteration": (lambda s: [] if of_first(s) else [s], "G is not loaded ahead"),
    "nothing for the next": (lambda s: [] if of_next(s) else [s], "not taken in turn"),
    "never taken": (lambda s: [] if isinstance(s, plan.Take) else [s], "before it is taken"),
    "loaded before it is taken": (
        lambda s: [] if isinstance(s, plan.Take) else [s, plan.Take("G")] if of_next(s) else [s],
        "before it is taken",
    ),
    "beyond the last iteration": (without_reach, "an iteration too many"),
    "an iteration too far": (too_far, "an iteration too many"),
    "from another first position": (starting_at(scalars.AtFirst("k", scalars.Number(32))), "for another loop"),
    "two iterations on": (two_steps, "no next iteration"),
    "at the positions of this iteration": (
        lambda s: [] if isinstance(s, plan.Positions) and isinstance(s.start, scalars.AtNext) else [s],
        "positions of another iteration along k|the positions along k are not known",
    ),
    "this iteration at the positions of the next": (
        lambda s: [] if isinstance(s, plan.Positions) and isinstance(s.start, scalars.AtStep) else [s],
        "positions of another iteration along k",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused(name: str) -> None:
    change, message = WRONG[name]
    check_plan(planned())
    with pytest.raises(PlanError, match=message):
        check_plan(changed(planned(), change))


def test_a_buffer_that_changes_is_refused() -> None:
    def writes(s: Statement) -> list[Statement]:
        if isinstance(s, plan.Store):
            return [replace(s, pointers=replace(s.pointers, buffer="G"))]
        return [s]

    with pytest.raises(PlanError, match="G changes, and is read ahead"):
        check_plan(changed(planned(), writes))
