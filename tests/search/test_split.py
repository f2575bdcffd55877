"""Kernels that split an axis over program instances: what chunks store of their own positions, and what is merged."""

from __future__ import annotations

import re

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.placement import place
from mirage_cli.ir.text import print_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter

SPEC = """
name: chunks
dims: {{b: 2, v: 40000}}
inputs:
  X: [b, v]
  G: [v]
program: |
  {program}
outputs:
  Y: [b, v]
  M: {{dims: [b], dtype: float32}}
"""


@pytest.mark.parametrize(
    "program",
    [
        "Y = X * G\n  M = max(abs(Y), v)",
        "Y = softmax(X * G, v)\n  M = sum(Y * Y, v)",
        "Y = exp(X * G)\n  M = logsumexp(X, v)",
    ],
)
def test_each_chunk_stores_its_own_positions(program: str, interpreter: Interpreter) -> None:
    """What is reduced and what is stored is read once, also where rows alone keep few multiprocessors busy."""
    read = parse_spec(SPEC.format(program=program)).at()
    found = search_program(read, find_target("h100"), Options(budget_s=15.0))
    assert not found.rejected, found.rejected
    best = found.plans[0]
    chunks = [
        k for k in best.graph.kernels if k.kind == "generated" and k.split and any(x.stores for x in place(k).loops)
    ]
    assert [{s.dims for s in k.stores} for k in chunks] == [{("b", "v"), ("v_split", "b")}]
    assert re.search(r"store Y\[b, v\] = Y +# omap \{x→b, y→v\}", print_mugraph(best.graph))
    judged = interpreter.judge(read, kernels_source(best.graph, best.schedule), 0)
    assert judged.ok, judged.problem
