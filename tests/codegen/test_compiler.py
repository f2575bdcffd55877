"""What Triton's compiler makes of kernels for sm_90: facts that the cost model and the emitter count on."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from triton import knobs

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.tune.measure import Failure, FailureKind
from tests.codegen.conftest import Compile, CompileText, Stages
from tests.codegen.test_triton import kernel, schedule


def with_warps(plan: Schedule, warps: int, stages: int = 4) -> Schedule:
    return Schedule({n: replace(k, warps=warps, stages=stages) for n, k in plan.kernels.items()})


def loop(graph: MuGraph, plan: Schedule, stage: Stages) -> str:
    """The last loop of the kernel in Triton's GPU dialect, below the layouts that it names."""
    text = stage(graph, plan, 90, "ttgir")
    return text[: text.index("module")] + text[text.rindex("scf.for") :].split("\n    } loc")[0]


@pytest.mark.parametrize("words", [False, True])
def test_loads_of_less_than_4_bytes_a_thread_are_words_or_an_iteration_ahead(stage: Stages, words: bool) -> None:
    """Words are copied asynchronously. Others, which no copy fetches, are as many as the emitter has: none is read in
    the iteration that loads it."""
    body = "V[m, k] = mul(X, G)\nY[m, n] = dot(V, W; k)"
    graph = kernel("m=16 k=1024 n=64; X[m,k] G[k] W[k,n]; Y[m,n]", "m:grid n:grid k:loop", body)
    if not words:
        longer = tuple(replace(t, dims=("longer",)) if t.name == "G" else t for t in graph.inputs)
        graph = replace(graph, dims=(*graph.dims, ("longer", 1025)), inputs=longer)
    cases = [(1, 32), (1, 64), (2, 64), (2, 128), (4, 64), (4, 128), (4, 256), (8, 128), (8, 256)]
    plans = [with_warps(schedule(graph, f"m=16 n=64 k={k}", "m k n"), w) for w, k in cases]
    texts = [loop(graph, p, stage) for p in plans]
    ahead = ["G_next = tl.load(" in kernels_source(graph, p) for p in plans]
    assert ahead == ["= tt.load" in text for text in texts]
    assert not any(ahead) if words else 0 < sum(ahead) < len(cases)
    for text in texts:
        for value in re.findall(r"(%\S+) = tt\.load", text):
            assert [x.split()[0] for x in text.splitlines() if re.search(rf"[ (]{value}[, ]", x)][1:] == ["scf.yield"]


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


WORDS = """
mugraph g float16
dims m=16 k=1024 n=1024 w=128
input X f16[m, k]
input W i32[{tensor}]
output Y f16[m, n]

kernel k0 generated m:grid k:loop n:grid
  X = load X[m, k]
  W = load W[{access}]
  at[{along}] = index({along})
  part[{along}] = remainder(at, 8)
  by[{along}] = mul(4, part)
  behind[k, n] = shift_right(W, by)
  Q[k, n] = remainder(behind, 16)
  Y[m, n] = dot(X, Q; k)
  store Y[m, n] = Y
"""


@pytest.mark.parametrize(
    ("along", "tensor", "access", "depth", "operand"),
    [("n", "k, w", "k, n//8", 64, "32x64xi16"), ("k", "w, n", "k//8, n", 128, "128x16xi32")],
)
def test_parts_of_words_are_converted_where_the_matrix_units_take_them(
    stage: Stages, along: str, tensor: str, access: str, depth: int, operand: str
) -> None:
    """Of words along the columns the read is transposed, of words along the sum each thread reads its own."""
    graph = parse_mugraph(WORDS.format(along=along, tensor=tensor, access=access).lstrip("\n"))
    plan = with_warps(schedule(graph, f"m=16 n=128 k={depth}", "n k m"), 2)
    text = loop(graph, plan, stage)
    assert f"-> tensor<{operand}, #ttg.dot_op<" in text and "local_alloc" not in text
    transposed = "ldmatrix.sync.aligned.m8n8.x4.trans" in stage(graph, plan, 90, "ptx")
    assert transposed or along == "k"


def test_bytes_along_the_sum_are_read_eight_at_a_time(stage: Stages) -> None:
    graph = kernel("m=16 k=1024 n=256; X[m,k] W:i8[n,k]; Y[m,n]", "m:grid n:grid k:loop", "Y[m, n] = dot(X, W; k)")
    plan = with_warps(schedule(graph, "m=16 n=128 k=64", "m k n"), 4)
    assert "ld.shared.v2.b32" in stage(graph, plan, 90, "ptx") and "local_alloc" not in loop(graph, plan, stage)


@pytest.mark.parametrize(("q", "s", "warps"), [(64, 64, 4), (128, 64, 8)])
def test_loops_that_go_on_where_masks_begin_keep_products_under_way(
    stage: Stages, tmp_path: Path, q: int, s: int, warps: int
) -> None:
    """The masked rest has one iteration, or two. The assembler says so where it has products wait for each other."""
    body = """i[q] = index(q)
j[s] = index(s)
c[q, s] = ge(i, j)
a[h, q, s] = dot(Q, K; d)
b[h, q, s] = where(c, a, 0)
m[h, q, s] = bfloat16(b)
O[h, q, e] = dot(m, V; s)"""
    header = "h=4 q=2048 s=2048 d=64 e=64; Q[h,q,d] K[h,s,d] V[h,s,e]; O[h,q,e]; bfloat16"
    graph = kernel(header, "h:grid q:grid s:loop d:tile e:tile", body)
    plan = with_warps(schedule(graph, f"h=1 q={q} s={s}", "h q d s e"), warps, 3)
    text = tmp_path / "kernel.ptx"
    text.write_text(stage(graph, plan, 90, "ptx"), encoding="utf-8")
    command = [knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", str(text), "-o", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert text.read_text(encoding="utf-8").count("wgmma.commit_group") == 4
    assert "Used" in said and "serialized" not in said


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


SHARED_LOAD = "Y[m, n] = dot(X, W; k)\nS[n] = sum(W; k)"


@pytest.mark.parametrize(
    ("body", "outputs", "overwrites"),
    [
        ("Y[m, n] = dot(X, W; k)", "Y[m,n]", None),
        ("Y[m, n] = dot(X, W; k)\nZ[m, n] = dot(X, V; k)", "Y[m,n] Z[m,n]", None),
        ("Y[m, n] = dot(X, W; k)\nZ[m, r] = dot(R, X; k)", "Y[m,n] Z[m,r]", "buffer"),
        ("Y[m, n] = dot(X, W; k)\nS[m] = dot(X, X; k)", "Y[m,n] S[m]", "buffer"),
        ("Y[m, n] = dot(X, W; k)\nA[m, k] = abs(X)\nS[m] = max(A; k)", "Y[m,n] S[m]", "buffer"),
        (SHARED_LOAD, "Y[m,n] S[n]", "buffer"),
        ("E[m, k] = exp(X)\nY[m, n] = dot(E, W; k)", "Y[m,n]", "registers"),
        ("Y[m, n, a] = dot(T, W; k)", "Y[m,n,a]", None),
    ],
)
def test_products_end_where_the_next_iteration_would_overwrite_what_they_read(
    body: str, outputs: str, overwrites: str | None, stage: Stages, compiled_text: CompileText
) -> None:
    """Where others than products of warpgroups take a load of theirs, Triton has one buffer less than they need. Left
    operands that are computed are in the same registers in every iteration. Other products stay under way."""
    inputs = [x for x in ("X[m,k]", "W[k,n]", "V[k,n]", "R[r,k]", "T[a,m,k]") if re.search(rf"\b{x[0]}\b", body)]
    axes = {a: n for a, n in {"a": 2, "r": 16}.items() if any(f"[{a}" in x for x in inputs)}
    sizes, roles = " ".join(f"{a}={n}" for a, n in axes.items()), " ".join(f"{a}:tile" for a in axes)
    graph = kernel(f"m=512 k=1024 n=512 {sizes}; {' '.join(inputs)}; {outputs}", f"m:grid n:grid k:loop {roles}", body)
    plan = with_warps(schedule(graph, "m=64 n=64 k=64", f"{' '.join(axes)} m n k"), 4, 4)
    text = stage(graph, plan, 90, "ttgir")
    assert re.findall(r"pendings = (\d)", text)[0] == ("0" if overwrites else str(body.count("dot(")))
    source = kernels_source(graph, plan)
    assert not isinstance(compiled_text(graph, source, 90), Failure)
    if overwrites:
        ended = "return tl.where(tl.program_id(0) >= 0, x, tl.full(x.shape, 1, x.dtype))"
        assert ended in source
        refused = compiled_text(graph, source.replace(ended, "return x"), 90)
        assert isinstance(refused, Failure) and refused.kind is FailureKind.RACE
        assert re.search(rf"overwrites (the )?{overwrites}", refused.message)


def test_products_of_specialized_loops_end_by_themselves() -> None:
    """Triton 3.6 does not compile them where they are asked to."""
    graph = kernel("m=512 k=1024 n=512; X[m,k] W[k,n]; Y[m,n] S[n]", "m:grid n:grid k:loop", SHARED_LOAD)
    plan = with_warps(schedule(graph, "m=64 n=64 k=64", "m n k"), 4, 4).kernels["k0"]
    specialized = replace(plan, descriptors=True, specialize=True)
    found = ["ended(" in kernels_source(graph, Schedule({"k0": s})) for s in (plan, specialized)]
    assert found == [True, False]
