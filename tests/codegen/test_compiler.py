"""What Triton's compiler makes of kernels for sm_90: facts that the cost model and the emitter count on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import Schedule
from mirage_cli.search import cost
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.space import models
from tests.codegen.test_triton import kernel, schedule

COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from mirage_cli.codegen.export import load_export
for source, types, warps, stages in json.load(sys.stdin):
    k0 = load_export(source).k0
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(k0.arg_names))}
    made = ASTSource(k0, {n: types[n] for n in k0.arg_names}, {}, aligned)
    options = {"num_warps": warps, "num_stages": stages}
    print(json.dumps(triton.compile(made, target=GPUTarget("cuda", 90, 32), options=options).asm["ttgir"]))
"""


POINTERS = {"float16": "*fp16", "float32": "*fp32"}


def with_warps(plan: Schedule, warps: int, stages: int = 4) -> Schedule:
    return Schedule({n: replace(k, warps=warps, stages=stages) for n, k in plan.kernels.items()})


def loops(graph: MuGraph, plans: Sequence[Schedule], cache: Path) -> list[str]:
    """The last loop of the kernel at each schedule in Triton's GPU dialect, below the layouts that it names."""
    types = {f"{t.name}_ptr": POINTERS[t.dtype] for t in (*graph.inputs, *graph.outputs)}
    jobs = [(kernels_source(graph, p), types, p.kernels["k0"].warps, p.kernels["k0"].stages) for p in plans]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(
        command, input=json.dumps(jobs), env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    texts: list[str] = [json.loads(line) for line in done.stdout.splitlines()]
    return [t[: t.index("module")] + t[t.rindex("scf.for") :].split("\n    } loc")[0] for t in texts]


def test_loads_of_less_than_4_bytes_a_thread_are_not_fetched_ahead(tmp_path: Path) -> None:
    """As the cost model has it for a vector in the loop of a product."""
    body = "V[m, k] = mul(X, G)\nY[m, n] = dot(V, W; k)"
    graph = kernel("m=16 k=1024 n=64; X[m,k] G[k] W[k,n]; Y[m,n]", "m:grid n:grid k:loop", body)
    cases = [(1, 32), (1, 64), (2, 64), (2, 128), (4, 64), (4, 128), (4, 256), (8, 128), (8, 256)]
    plans = [with_warps(schedule(graph, f"m=16 n=64 k={k}", "m k n"), w) for w, k in cases]
    target = find_target("h200")
    m = models(graph)["k0"]
    batch = cost.Batch.of(m, [p.kernels["k0"] for p in plans], graph.sizes)
    late = cost.estimate(m, batch, graph.sizes, target).us > cost.estimate(m, batch, graph.sizes, target, {"late"}).us
    assert late.tolist() == ["= tt.load" in x for x in loops(graph, plans, tmp_path)]
    assert 0 < np.count_nonzero(late) < len(cases)


def test_what_is_added_to_a_product_does_not_become_its_first_addend(tmp_path: Path) -> None:
    """A load that did would start and end within the iteration; as it is, that of the next one is under way."""
    body = "V[k, n] = dot(A, B; r)\nU[k, n] = add(W, V)\nY[m, n] = dot(X, U; k)"
    header = "m=16 k=1024 n=64 r=16; X[m,k] W[k,n] A[k,r] B[r,n]; Y[m,n]"
    graph = kernel(header, "m:grid k:loop n:grid r:tile", body)
    (text,) = loops(graph, [with_warps(schedule(graph, "m=16 n=64 k=128", "n r k m"), 4)], tmp_path)
    first = text.index("dot ")
    assert "dot_wait" in text
    loads = [i.start() for i in re.finditer(r"= tt\.load", text)]
    assert all(i > first for i in loads)


def test_warps_stand_along_the_longer_side_of_the_widest_product(tmp_path: Path) -> None:
    """Triton lets all products that share an operand have the layout of the last."""
    body = "Y[m, n] = dot(X, W; k)\nZ[m, r] = dot(X, A; k)"
    graph = kernel("m=16 k=1024 n=64 r=16; X[m,k] W[k,n] A[k,r]; Y[m,n] Z[m,r]", "m:grid n:grid k:loop r:tile", body)
    (text,) = loops(graph, [with_warps(schedule(graph, "m=16 n=64 k=128", "m k n r"), 4)], tmp_path)
    assert re.findall(r"warpsPerCTA = (\[\d, \d\]), instrShape", text) == ["[1, 4]"]


def test_products_of_float32_run_on_the_matrix_units_where_the_schedule_says_so(tmp_path: Path) -> None:
    header = "m=64 k=1024 n=64; X[m,k] W[k,n]; Y[m,n]; float32"
    graph = kernel(header, "m:grid k:loop n:grid", "Y[m, n] = dot(X, W; k)")
    by_arithmetic = with_warps(schedule(graph, "m=64 n=64 k=32", "m k n"), 4)
    on_units = Schedule({"k0": replace(by_arithmetic.kernels["k0"], tf32x3=True)})
    texts = loops(graph, [by_arithmetic, on_units], tmp_path)
    assert ["mma" in text for text in texts] == [False, True]
    assert [len(re.findall(r"= \w+\.(?:warp_group_)?dot ", text)) for text in texts] == [1, 3]
