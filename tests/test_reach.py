"""How far loops go under masks: what is skipped changes nothing, and what is left out of the mask needs none."""

from __future__ import annotations

import re

import pytest
import torch

from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.placement import place
from mirage_cli.ir.program import Program
from mirage_cli.ir.reach import idle, limits
from mirage_cli.ir.schedule import Schedule
from mirage_cli.spec import parse_spec
from mirage_cli.structural import Options, search_program
from mirage_cli.target import find_target
from mirage_cli.tune.interpreted import reduced_schedule
from mirage_cli.tune.space import first_schedules
from mirage_cli.verify.numeric import judge

H200 = find_target("h200")
SPEC = """\
name: masked
dims: {h: 2, q: 4096, s: 4096, d: 64, e: 64}
inputs:
  Q: [h, q, d]
  K: [h, s, d]
  V: [h, s, e]
  L: {dims: [h], dtype: int32}
program: |
  A = dot(Q, K, d) * 0.125
  M = MASK
  O = dot(softmax(M, s), V, s)
outputs:
  O: [h, q, e]
"""
MASKS = {
    "causal": "where(index(q) >= index(s), A, -inf)",
    "strictly causal, the first row empty": "where(index(s) < index(q), A, -inf)",
    "window": "where(index(q) >= index(s) and index(q) - index(s) < 20, A, -inf)",
    "looking ahead": "where(index(s) >= index(q), A, -inf)",
    "shifted": "where(index(s) <= index(q) + 7, A, -inf)",
    "lengths": "where(index(s) <= L, A, -inf)",
    "added": "A + where(index(q) >= index(s), 0, -inf)",
    "every second": "where(2 * index(s) <= index(q), A, -inf)",
    "either": "where(index(s) <= index(q) or index(s) < 5, A, -inf)",
    "one position": "where(index(s) == index(q), A, -inf)",
    "not to zero weight": "where(index(q) >= index(s), A, 0)",
}
SKIPS = {"causal", "strictly causal, the first row empty", "window", "looking ahead", "shifted", "lengths", "added"}


def fused(mask: str) -> tuple[Program, MuGraph, Schedule]:
    """The best μGraph of one kernel, and a schedule of it."""
    text = SPEC.replace("MASK", MASKS[mask])
    if "L" not in MASKS[mask]:
        text = text.replace("  L: {dims: [h], dtype: int32}\n", "")
    program = parse_spec(text).at()
    found = search_program(program, H200, Options())
    plan = next(p for p in found.plans if len(p.graph.kernels) == 1)
    return program, plan.graph, first_schedules(plan.graph, H200, 1)[0]


def found_limits(kernel: Kernel) -> list[tuple[bool, int]]:
    """(whether it is a lower one, its constant) for each limit of the kernel's loops."""
    return [(x.lower, x.limit.constant) for loop in place(kernel).loops for x in limits(kernel, loop)]


@pytest.mark.parametrize("mask", MASKS)
def test_masked_loops_are_right_at_odd_sizes(mask: str) -> None:
    program, graph, schedule = fused(mask)
    small = program.resized({"h": 2, "q": 75, "s": 83, "d": 16, "e": 16})
    source = kernels_source(graph.resized(small.sizes), reduced_schedule(graph.resized(small.sizes), schedule))
    module = load_export(source)
    names: dict[str, object] = {"torch": torch}
    exec(torch_source(small), names)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = [torch.full((2, 75, 16), float("nan"), dtype=torch.float16)]
        module.launch(inputs, outputs, module.make_scratch("cpu"))
        return outputs

    verdict = judge(small, run, names["reference"], distributions=["normal", "large"])  # type: ignore[arg-type]
    assert verdict.ok, f"{verdict}\n{source}"
    assert ("end_s" in source or "begin_s" in source) == (mask in SKIPS), source


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("causal", [(False, 0)]),
        ("strictly causal, the first row empty", [(False, -1)]),
        ("window", [(False, 0), (True, -19)]),
        ("looking ahead", [(True, 0)]),
        ("shifted", [(False, 7)]),
        ("one position", []),
        ("not to zero weight", []),
    ],
)
def test_limits(mask: str, expected: list[tuple[bool, int]]) -> None:
    (kernel,) = fused(mask)[1].kernels
    assert sorted(found_limits(kernel)) == sorted(expected)


def test_a_mask_whose_else_counts_is_not_idle() -> None:
    (kernel,) = fused("not to zero weight")[1].kernels
    masks = [e.out for e in kernel.body if e.op in ("le", "ge")]
    assert masks
    assert not any(idle(loop, m) for loop in place(kernel).loops for m in masks)


def test_whole_tiles_need_no_mask_and_long_rows_go_first() -> None:
    _, graph, schedule = fused("causal")
    source = kernels_source(graph, schedule)
    body = source[source.index("def k0") : source.index("def make_scratch")]
    loops = re.split(r"\n    for ", body)[1:]
    assert len(loops) == 2
    masked = re.compile(r"tl\.where\(\w+, \w+, float\(\"-inf\"\)\)")
    assert not masked.search(loops[0]) and masked.search(loops[1])
    assert "the longest loops first" in body
