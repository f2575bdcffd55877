"""What Triton's compiler makes of kernels for sm_90: facts that the cost model and the emitter count on."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.search import cost
from mirage_cli.search.batch import Batch
from mirage_cli.search.work import models
from mirage_cli.target.gpus import find_target
from tests.codegen.conftest import Compile, Stages
from tests.codegen.test_triton import kernel, schedule


def with_warps(plan: Schedule, warps: int, stages: int = 4) -> Schedule:
    return Schedule({n: replace(k, warps=warps, stages=stages) for n, k in plan.kernels.items()})


def loop(graph: MuGraph, plan: Schedule, stage: Stages) -> str:
    """The last loop of the kernel in Triton's GPU dialect, below the layouts that it names."""
    text = stage(graph, plan, 90, "ttgir")
    return text[: text.index("module")] + text[text.rindex("scf.for") :].split("\n    } loc")[0]


def test_loads_of_less_than_4_bytes_a_thread_are_not_fetched_ahead(stage: Stages) -> None:
    """As the cost model has it for a vector in the loop of a product."""
    body = "V[m, k] = mul(X, G)\nY[m, n] = dot(V, W; k)"
    graph = kernel("m=16 k=1024 n=64; X[m,k] G[k] W[k,n]; Y[m,n]", "m:grid n:grid k:loop", body)
    cases = [(1, 32), (1, 64), (2, 64), (2, 128), (4, 64), (4, 128), (4, 256), (8, 128), (8, 256)]
    plans = [with_warps(schedule(graph, f"m=16 n=64 k={k}", "m k n"), w) for w, k in cases]
    target = find_target("h200")
    m = models(graph)["k0"]
    batch = Batch.of(m, [p.kernels["k0"] for p in plans], graph.sizes)
    late = cost.estimate(m, batch, graph.sizes, target).us > cost.estimate(m, batch, graph.sizes, target, {"late"}).us
    assert late.tolist() == ["= tt.load" in loop(graph, p, stage) for p in plans]
    assert 0 < np.count_nonzero(late) < len(cases)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("order", "warps"), [("n k m", 4), ("m k n", 4), ("m k n", 2)])
def test_pairs_of_bytes_come_from_shared_memory_as_the_matrix_units_take_them(
    stage: Stages, order: str, warps: int, dtype: str
) -> None:
    """Transposed by the read, and multiplied from registers: nothing that is computed of them goes back."""
    header = f"m=16 k=1024 n=256; X[m,k] W:i8[k,n]; Y[m,n]; {dtype}"
    graph = kernel(header, "m:grid n:grid k:loop", "Y[m, n] = dot(X, W; k)")
    plan = with_warps(schedule(graph, "m=16 n=128 k=64", order), warps)
    text = loop(graph, plan, stage)
    assert "-> tensor<64x64xi16, #ttg.dot_op<" in text and "local_alloc" not in text and "convert_layout" not in text
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in stage(graph, plan, 90, "ptx")


def test_bytes_along_the_sum_are_read_eight_at_a_time(stage: Stages) -> None:
    graph = kernel("m=16 k=1024 n=256; X[m,k] W:i8[n,k]; Y[m,n]", "m:grid n:grid k:loop", "Y[m, n] = dot(X, W; k)")
    plan = with_warps(schedule(graph, "m=16 n=128 k=64", "m k n"), 4)
    assert "ld.shared.v2.b32" in stage(graph, plan, 90, "ptx") and "local_alloc" not in loop(graph, plan, stage)


def test_what_is_added_to_a_product_does_not_become_its_first_addend(stage: Stages) -> None:
    """A load that did would start and end within the iteration; as it is, that of the next one is under way."""
    body = "V[k, n] = dot(A, B; r)\nU[k, n] = add(W, V)\nY[m, n] = dot(X, U; k)"
    header = "m=16 k=1024 n=64 r=16; X[m,k] W[k,n] A[k,r] B[r,n]; Y[m,n]"
    graph = kernel(header, "m:grid k:loop n:grid r:tile", body)
    text = loop(graph, with_warps(schedule(graph, "m=16 n=64 k=128", "n r k m"), 4), stage)
    first = text.index("dot ")
    assert "dot_wait" in text
    loads = [i.start() for i in re.finditer(r"= tt\.load", text)]
    assert all(i > first for i in loads)


def test_warps_stand_along_the_longer_side_of_the_widest_product(stage: Stages) -> None:
    """Triton lets all products that share an operand have the layout of the last."""
    body = "Y[m, n] = dot(X, W; k)\nZ[m, r] = dot(X, A; k)"
    graph = kernel("m=16 k=1024 n=64 r=16; X[m,k] W[k,n] A[k,r]; Y[m,n] Z[m,r]", "m:grid n:grid k:loop r:tile", body)
    text = loop(graph, with_warps(schedule(graph, "m=16 n=64 k=128", "m k n r"), 4), stage)
    assert re.findall(r"warpsPerCTA = (\[\d, \d\]), instrShape", text) == ["[1, 4]"]


def test_products_of_float32_run_on_the_matrix_units_where_the_schedule_says_so(stage: Stages) -> None:
    header = "m=64 k=1024 n=64; X[m,k] W[k,n]; Y[m,n]; float32"
    graph = kernel(header, "m:grid k:loop n:grid", "Y[m, n] = dot(X, W; k)")
    by_arithmetic = with_warps(schedule(graph, "m=64 n=64 k=32", "m k n"), 4)
    on_units = Schedule({"k0": replace(by_arithmetic.kernels["k0"], tf32x3=True)})
    texts = [loop(graph, p, stage) for p in (by_arithmetic, on_units)]
    assert ["mma" in text for text in texts] == [False, True]
    assert [len(re.findall(r"= \w+\.(?:warp_group_)?dot ", text)) for text in texts] == [1, 3]


def test_a_thread_has_no_more_registers_than_the_schedule_says(compiled: Compile) -> None:
    """Without a limit the assembler settles for 128, of three accumulators of 32 elements each."""
    header = "m=4096 k=1024 n=4096; X[m,k] W[k,n] V[k,n] U[k,n]; Y[m,n]"
    body = "A[m, n] = dot(X, W; k)\nB[m, n] = dot(X, V; k)\nC[m, n] = dot(X, U; k)\nD[m, n] = mul(A, B)\n"
    graph = kernel(header, "m:grid n:grid k:loop", body + "Y[m, n] = add(C, D)")
    plan = with_warps(schedule(graph, "m=64 n=64 k=64", "m n k"), 4, 3).kernels["k0"]
    limited = [replace(plan, registers=limit) for limit in (None, 128, 168)]
    free, narrow, wide = (compiled(graph, Schedule({"k0": s}), 90)[0].registers for s in limited)
    assert free <= 128 and narrow <= 128 < wide <= 168


def test_a_side_of_several_short_axes_compiles_wherever_the_summed_axis_stands(compiled: Compile) -> None:
    """Triton has no layout in shared memory for a block of Q[d, t, r] with d contiguous and r shorter than 8."""
    header = "t=8 r=4 d=64 s=1024; Q[t,r,d] K[s,d]; Y[t,r,s]"
    graph = kernel(header, "t:grid r:grid d:tile s:grid", "Y[t, r, s] = dot(K, Q; d)")
    for order in ("s d t r", "d s t r", "t r s d", "d t r s"):  # of K[s, d] · Q[d, t*r], or of Q[t*r, d] · K[d, s]
        plan = with_warps(schedule(graph, "t=8 r=4 s=64", order), 4)
        (found,) = compiled(graph, plan, 90)
        assert found.shared_bytes > 0, order


def buffers(text: str, product: str) -> set[int]:
    """How many buffers those operands of a product of warpgroups have that lie in shared memory as they were copied."""
    operands = re.findall(r"%\w+", product.split("warp_group_dot ")[1])[:2]
    views = (re.search(rf"{re.escape(v)} = ttg\.memdesc_index (%\w+)\[", text) for v in operands)
    kept = (re.search(rf"{re.escape(x[1])} = ttg\.local_alloc : .*memdesc<(\d+)x", text) for x in views if x)
    return {int(n[1]) for n in kept if n}


@pytest.mark.parametrize(
    ("body", "outputs", "registers"),
    [
        ("Y[m, n] = dot(X, W; k)", "Y[m,n]", False),
        ("Y[m, n] = dot(X, W; k)\nS[m] = dot(X, X; k)", "Y[m,n] S[m]", True),
        ("Y[m, n] = dot(X, W; k)\nA[m, k] = abs(X)\nS[m] = max(A; k)", "Y[m,n] S[m]", True),
        ("Y[m, n] = dot(X, W; k)\nS[n] = sum(W; k)", "Y[m,n] S[n]", True),
        ("Y[m, n] = dot(X, W; k)\nZ[m, n] = dot(X, V; k)", "Y[m,n] Z[m,n]", False),
    ],
)
def test_products_that_go_on_read_no_buffer_that_the_next_block_is_copied_to(
    body: str, outputs: str, registers: bool, stage: Stages
) -> None:
    """Where several operators take one load, Triton has one buffer less for it than a product needs that still reads it
    in the next iteration."""
    graph = kernel(
        f"m=512 k=1024 n=512; X[m,k] W[k,n]{' V[k,n]' * ('V' in body)}; {outputs}", "m:grid n:grid k:loop", body
    )
    plan = with_warps(schedule(graph, "m=64 n=64 k=64", "m n k"), 4, 4)
    text = stage(graph, plan, 90, "ttgir")
    products = [line for line in text.splitlines() if "warp_group_dot %" in line and "isAsync" in line]
    assert products
    assert all(buffers(text, line) <= {4} for line in products)
    assert ("in_registers(" in kernels_source(graph, plan)) == registers
