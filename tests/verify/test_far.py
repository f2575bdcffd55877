"""Fields that wrap around read their last positions. Tests take turns at being that long along each axis."""

from __future__ import annotations

import math

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.reduced import FAR_ROOM, elements, small_instance, turns
from tests.searched import BEST

SPEC = """
name: periodic
dims: {{y: {y}, x: {x}}}
dtype: float32
inputs:
  X: [y, x]
program: |
  F = {f}
  N = where(index(y) < 1, F[{last_y}, x], F[y - 1, x])
  W = where(index(x) < 1, F[y, {last_x}], F[y, x - 1])
  O = F + 0.25 * (N + W)
outputs: {{O: [y, x]}}
"""

WINDOWS = """
name: windows
dims: {b: 64, c: 4, h: 34, w: 34, o: 16, i: 3, j: 3, u: 32, v: 32, y: 16, x: 16, p: 2, q: 2}
inputs: {X: [b, c, h, w], W: [o, c, i, j]}
program: |
  C = dot(X[b, c, u + i, v + j], W, c, i, j)
  O = max(C[b, o, 2*y + p, 2*x + q], p, q)
outputs: {O: [b, o, y, x]}
"""


def periodic(y: int, x: int, f: str = "X * X") -> Program:
    return parse_spec(SPEC.format(y=y, x=x, last_y=y - 1, last_x=x - 1, f=f)).at()


@pytest.fixture(scope="module")
def large() -> tuple[Program, Plan]:
    program = periodic(1024, 768)
    found = search_program(program, find_target("h100"), Options(bounds=BEST, tune=False))
    assert not found.rejected
    whole = (p for p in found.plans if p.graph.sizes == program.sizes)  # not each part of an output by itself
    return lower(program), next(whole)


def test_tests_take_turns_at_far_positions(large: tuple[Program, Plan]) -> None:
    program, plan = large
    assert len(turns(program, plan.graph)) == 2
    found = [small_instance(program, plan.graph, 0, read=read)[0] for read in turns(program, plan.graph)]
    assert {(s["y"] == 1024, s["x"] == 768) for s in found} == {(True, False), (False, True)}
    assert all(math.prod(s.values()) <= FAR_ROOM for s in found)


def test_what_takes_little_room_is_there_in_every_turn() -> None:
    """The third of three results side by side, whose part of a bias the μGraph reads by itself: without it, the program
    reads 0 and the μGraph does not."""
    text = SPEC.format(y=65536, x=49152, last_y=65535, last_x=49151, f="P[y, x, 0] + P[y, x, 2]")
    text = text.replace("{y: ", "{c: 3, y: ").replace("[y, x]\nprogram: |", "[y, x]\n  B: [c]\nprogram: |\n  P = X + B")
    program = lower(parse_spec(text).at())
    graph = search(program, find_target("h100")).as_written.graph
    far = turns(program, graph)
    assert len(far) == 2
    for seed in range(4):
        found = [small_instance(program, graph, seed, read=read)[0] for read in far]
        assert {(s["y"] > 1000, s["x"] > 1000) for s in found} == {(True, False), (False, True)}
        assert {s["c"] for s in found} == {3}


def test_one_test_reaches_all_where_there_is_room() -> None:
    program = lower(periodic(64, 48))
    graph = search_program(periodic(64, 48), find_target("h100"), Options(tune=False, bounds=BEST)).plans[0].graph
    assert not turns(program, graph)


def test_tests_take_turns_where_all_of_a_tensor_is_changed_in_place() -> None:
    text = SPEC.format(y=1024, x=768, last_y=1023, last_x=767, f="X * X").replace(
        "outputs: {O: [y, x]}", "outputs: {X: {inout: X}}"
    )
    program = parse_spec(text.replace("  O = F", "  X[y, x] = F")).at()
    found = search_program(program, find_target("h100"), Options(tune=False))
    assert not found.rejected
    assert len(turns(lower(program), found.plans[0].graph)) == 2


def test_what_is_read_elsewhere_is_counted_once_for_each_place() -> None:
    """Not once for each element that it might have been: windows over windows have tests of a size that is run."""
    program = parse_spec(WINDOWS).at()
    found = search_program(program, find_target("h100"), Options(tune=False))
    sizes, _ = small_instance(lower(program), found.plans[0].graph, 0)
    windows = math.prod(sizes[d] for d in ("b", "u", "v", "c", "i", "j"))
    assert elements(lower(program), sizes) == windows


@pytest.mark.parametrize("edit", [("1023", "1022"), ("767", "766"), ("y - 1", "y"), ("x - 1", "x")])
def test_wrong_far_positions_are_refused(large: tuple[Program, Plan], edit: tuple[str, str]) -> None:
    program, plan = large
    assert len(plan.graph.kernels) == 1
    text = print_mugraph(plan.graph)
    wrong = parse_mugraph(text.replace(f"[{edit[0]}", f"[{edit[1]}").replace(f", {edit[0]}]", f", {edit[1]}]"))
    assert wrong != plan.graph
    assert not check_equivalence(program, wrong, 0).ok


def test_what_is_made_of_far_positions_is_no_reason_to_refuse() -> None:
    """exp(X[n - 1]) is computed where it is needed, or read from memory: where X ends before, one is 1, the other 0."""
    program = periodic(768, 512, "exp(X)")
    found = search_program(program, find_target("h100"), Options(tune=False))
    assert not found.rejected
    assert {len(p.graph.kernels) for p in found.plans} > {1}


def test_tables_of_numbers_below_one_that_is_no_axis_keep_nothing_long() -> None:
    """As many pages as 65,536 slots have would be 4096 in every test."""
    program = parse_spec("""
name: slots
dims: {t: 64, h: 4, d: 32, pages: 4096, page: 16}
inputs: {K: [t, h, d], C: [pages, page, h, d], T: {dims: [t], dtype: int64, below: 65536, distinct: true}}
program: "C[T[t] // 16, T[t] % 16, h, d] = 2 * K"
outputs: {C: {inout: C}}
""").at()
    found = search_program(program, find_target("h100"), Options(tune=False))
    assert found.plans and "pages=2" in str(found.plans[0].verdict)
    wrong = parse_mugraph(print_mugraph(found.plans[0].graph).replace("T{65536}[t]%16", "T{65536}[t]//4096"))
    assert not check_equivalence(lower(program), wrong, 0).ok
