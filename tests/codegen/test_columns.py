"""Products with few rows: the matrix units take 8 columns, which the shorter side has in each order of axes."""

from __future__ import annotations

from itertools import permutations

import pytest

from mirage_cli.codegen import nodes, plan
from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.check import PlanError
from mirage_cli.codegen.check import check as check_plan
from mirage_cli.codegen.export import kernels_source
from mirage_cli.codegen.matrices import matrices
from mirage_cli.codegen.plan import Statement
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.tune.normal import normalised
from tests.codegen.conftest import Compile, Stages
from tests.codegen.test_compiler import with_warps
from tests.codegen.test_plan import changed, plans
from tests.codegen.test_triton import check, kernel, schedule

ATTENTION = """
A[g, s] = dot(Q, K; d)
M[g] = max(A; s)
E[g, s] = exp_sub(A, M)
L[g] = sum(E; s)
U[g, e] = dot(E, V; s)
Y[g, e] = div(U, L)
"""
LINEAR = "m:grid n:grid k:loop"
GRAPHS = {
    "rows": ("m=5 k=72 n=40; X[m,k] W[k,n]; Y[m,n]", LINEAR, "Y[m, n] = dot(X, W; k)"),
    "columns": ("n=40 k=72 m=5; W[n,k] X[k,m]; Y[n,m]", "n:grid m:grid k:loop", "Y[n, m] = dot(W, X; k)"),
    "bfloat16": ("m=8 k=72 n=40; X[m,k] W[k,n]; Y[m,n]; bfloat16", LINEAR, "Y[m, n] = dot(X, W; k)"),
    "float32": ("m=8 k=72 n=40; X[m,k] W[k,n]; Y[m,n]; float32", LINEAR, "Y[m, n] = dot(X, W; k)"),
    "bytes": ("m=8 k=72 n=64; X[m,k] W:i8[k,n]; Y[m,n]", LINEAR, "Y[m, n] = dot(X, W; k)"),
    "bytes along the sum": ("m=8 k=72 n=64; X[m,k] W:i8[n,k]; Y[m,n]", LINEAR, "Y[m, n] = dot(X, W; k)"),
    "scaled": (
        "m=8 k=72 n=64; X[m,k] W:i8[k,n] S[n]; Y[m,n]",
        "m:grid k:loop n:grid",
        "V[k, n] = mul(W, S)\nY[m, n] = dot(X, V; k)",
    ),
    "a batch": ("b=3 m=8 k=72 n=40; X[b,m,k] W[b,k,n]; Y[b,m,n]", f"b:grid {LINEAR}", "Y[b, m, n] = dot(X, W; k)"),
    "queries": ("g=5 s=70 d=16 e=32; Q[g,d] K[s,d] V[s,e]; Y[g,e]", "g:grid s:loop d:tile e:grid", ATTENTION),
}
TILES = "m=8 g=8 n=32 k=32 s=32 e=16 b=1"


def graph(name: str) -> MuGraph:
    return kernel(*GRAPHS[name])


@pytest.mark.parametrize("name", GRAPHS)
def test_the_shorter_side_has_the_columns(name: str) -> None:
    """In each order of axes: no other is in front of the rows, and each product is one of the matrix units."""
    g = graph(name)
    few = "g" if "g" in g.sizes else "m"
    for order in permutations(d for d, _ in g.kernels[0].roles):
        plan = schedule(g, TILES, " ".join(order))
        k = ScheduledKernel(g, g.kernels[0], plan.kernels["k0"], g.sizes)
        products = [matrices(k, e) for e in g.kernels[0].body if e.op == "dot"]
        assert all(m.columns == [few] for m in products) and "tl.dot(" in kernels_source(g, plan)
        assert all(k.order.index(m.rows[0]) < k.order.index(few) for m in products)
        check(g, plan)
        assert kernels_source(g, normalised(g, plan)) == kernels_source(g, plan)


def test_rows_of_8_are_refused() -> None:
    g = graph("rows")
    (p,) = plans(g, schedule(g, TILES, "n k m"))
    check_plan(p)

    def exchange(s: Statement) -> list[Statement]:
        match s:
            case plan.Let(out, nodes.Dot(left, right, _, precision)):
                a, b = (nodes.Permuted(x, x.axes[::-1]) for x in (right, left))
                return [plan.Let(out, nodes.Dot(a, b, None, precision))]
            case _:
                return [s]

    with pytest.raises(PlanError, match="too small for the matrix units"):
        check_plan(changed(p, exchange))


def test_eight_columns_take_less_of_everything(stage: Stages, compiled: Compile) -> None:
    """Operands come from shared memory, where copies of later iterations bring them, and no warpgroup multiplies."""
    g = kernel("m=8 k=1024 n=256; X[m,k] W[k,n]; Y[m,n]", LINEAR, "Y[m, n] = dot(X, W; k)")
    few, many = (with_warps(schedule(g, f"m={m} n=128 k=64", "n k m"), 4) for m in (8, 16))
    ptx = stage(g, few, 90, "ptx")
    assert "mma.sync.aligned.m16n8k16" in ptx and "cp.async" in ptx and "wgmma" not in ptx
    (less,), (more,) = compiled(g, few, 90), compiled(g, many, 90)
    assert less.shared_bytes < more.shared_bytes and less.registers <= more.registers
