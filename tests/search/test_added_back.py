"""What is made of a value and added to it is stored as exactly as the value: the two may cancel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.precision import values_added_back
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import reduced_schedule
from mirage_cli.tune.lanes import at_once
from mirage_cli.tune.outputs import poison
from mirage_cli.tune.space import first_schedules
from mirage_cli.verify.numeric import judge

A100 = find_target("a100")
"""Of whose plans one computes a value again beside what is made of it."""
STICK = """
name: stick
dims: {q: 17, s: 17, r: 17, d: 16, e: 16}
dtype: bfloat16
inputs:
  Q: [q, d]
  K: [s, d]
  V: [s, e]
program: |
  Z = dot(Q, K, d)
  L = -softplus(Z)
  R = sum(where(index(s) < index(r) and index(r) < index(q), rename(L, s=r), 0), r)
  A = where(index(s) < index(q), exp(Z + L + R), 0)
  O = dot(bfloat16(A), V, s)
outputs:
  O: [q, e]
"""


def test_a_value_that_cancels_is_stored_as_exactly_as_it_is_computed_elsewhere() -> None:
    """L is -Z where Z is large, so that Z + L is 0. PyTorch rounds both alike; a kernel that reads a rounded L beside
    a Z of its own had the rounding error as an exponent."""
    program = parse_spec(STICK).at()
    graphs = [p.graph for p in search_program(program, A100, Options(tune=False)).plans]
    graph = next(
        g
        for g in graphs
        for k in g.kernels
        if any(x.buffer == "L" for x in k.loads) and any(e.out == "Z" for e in k.body)
    )
    module = load_export(kernels_source(graph, reduced_schedule(graph, first_schedules(graph, A100, 1)[0])))
    names: dict[str, object] = {"torch": torch}
    exec(torch_source(program), names)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = [poison(torch.empty((17, 16), dtype=torch.bfloat16))]
        module.launch(inputs, outputs, module.make_scratch("cpu"))
        return outputs

    eager: Any = names["reference"]
    verdict = judge(program, run, eager, distributions=["normal", "large", "large mean"], at_once=at_once)
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("Z = dot(Q, K, d)\n  L = gelu(Z)\n  O = Z - L", {"L"}),
        ("Z = dot(Q, K, d)\n  M = exp(Z)\n  L = M * 2\n  O = L + Z", {"L", "M"}),
        ("Z = dot(Q, K, d)\n  L = gelu(Z)\n  M = float16(L)\n  O = Z - M", {"L"}),  # the program rounds M
        ("Z = dot(Q, K, d)\n  L = gelu(Z)\n  O = Z * L", set[str]()),
        ("Z = dot(Q, K, d)\n  L = sum(gelu(Z), s)\n  O = Z + L", set[str]()),
        ("Z = dot(Q, K, d)\n  L = gelu(Z)\n  M = tanh(Z)\n  O = L + M", set[str]()),
    ],
)
def test_what_is_added_back(program: str, found: set[str]) -> None:
    text = STICK[: STICK.index("  Z =")] + f"  {program}\noutputs:\n  O: [q, s]\n"
    text = text.replace(", r: 17", "").replace(", e: 16", "").replace("  V: [s, e]\n", "")
    assert values_added_back(parse_spec(text).at()) == found
