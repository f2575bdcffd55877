"""Reductions up to each position: as scans, and by blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mirage_cli.codegen import nodes
from mirage_cli.codegen.check import PlanError, check
from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.plan import Let
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.ir import running
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.running import block_of, in_scans
from mirage_cli.ir.scans import Scan, scanned
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.predicting import judge_small
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.reduced import small_instance

SPEC = """
name: running
dims: {{m: 3, t: {size}, j: {size}, h: 8}}
dtype: float32
inputs: {{X: [m, t], M: {{dims: [j], dtype: bool}}, N: {{dims: [m, t], dtype: int32, below: 3}}, Y: [h, j]}}
program: |
  O = {program}
outputs: {{O: {output}}}
"""
UP_TO = "sum(where(index(j) <= index(t), X[m, j], 0), j)"


def written(program: str, size: int = 64, output: str = "[m, t]") -> str:
    return SPEC.format(program=program, size=size, output=output)


def taken(text: str, long: int = running.LONG) -> Program | None:
    return in_scans(lower(parse_spec(text).at()), long)


def test_positions_before_each_are_those_up_to_it_of_what_is_shifted() -> None:
    found = taken(written("sum(where(M and index(j) < index(t), X[m, j], 0), j)"))
    assert found is not None
    assert [str(e) for e in found.eqns] == [
        "t4[m, j] = rename(X; t=j)",
        "O_some[m, j] = where(M, t4, 0)",
        "O_moved[m, j] = rename(O_some; j=j - 1)",
        "j1[j] = index(j - 1)",
        "O_mask[j] = ge(j1, 0)",
        "O_some1[m, j] = where(O_mask, O_moved, 0)",
        "j2[j] = index(j)",
        "t6[t] = index(t)",
        "O_mask1[t, j] = le(j2, t6)",
        "O_some2[m, t, j] = where(O_mask1, O_some1, 0)",
        "O[m, t] = sum(O_some2; j)",
    ]


def test_a_sum_along_a_long_axis_is_of_a_block_and_of_the_blocks_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LENGTHS", range(16, 7, -1))
    found = taken(written(UP_TO), 60)
    assert found is not None
    assert [str(e) for e in found.eqns] == [
        "t3[m, j] = rename(X; t=j)",
        "O_moved[m, block, inner] = rename(t3; j=block*16 + inner)",
        "O_total[m, block] = sum(O_moved; inner)",
        "O_earlier[m, earlier] = rename(O_total; block=earlier)",
        "O_moved1[m, earlier] = rename(O_earlier; earlier=earlier - 1)",
        "earlier1[earlier] = index(earlier - 1)",
        "O_mask[earlier] = ge(earlier1, 0)",
        "O_some[m, earlier] = where(O_mask, O_moved1, 0)",
        "earlier2[earlier] = index(earlier)",
        "block1[block] = index(block)",
        "O_mask1[block, earlier] = le(earlier2, block1)",
        "O_some1[m, block, earlier] = where(O_mask1, O_some, 0)",
        "O_before[m, block] = sum(O_some1; earlier)",
        "inner1[inner] = index(inner)",
        "within1[within] = index(within)",
        "O_mask2[within, inner] = le(inner1, within1)",
        "O_some2[m, block, within, inner] = where(O_mask2, O_moved, 0)",
        "O_within[m, block, within] = sum(O_some2; inner)",
        "O_both[m, block, within] = add(O_within, O_before)",
    ]
    assert [str(p) for p in found.parts] == ["O[m, block*16 + within] = O_both"]


def test_blocks_have_one_length_where_they_can() -> None:
    assert [block_of(n) for n in (8193, 10_000, 1 << 20, 16381)] == [256, 250, 256, 256]


RIGHT = [
    pytest.param(UP_TO, 64, "[m, t]", id="up to each"),
    pytest.param("sum(where(index(j) < index(t), X[m, j], 0), j)", 80, "[t, m]", id="before each"),
    pytest.param("sum(where(index(t) < index(j) + 1, X[m, j], 0), j)", 67, "[m, t]", id="from each on, a short block"),
    pytest.param("sum(where(index(j) > index(t), X[m, j], 0), j)", 64, "[m, t]", id="behind each"),
    pytest.param("sum(where(M and index(t) >= index(j), X[m, j] * 0.5, 0), j)", 64, "[m, t]", id="another mask"),
    pytest.param("sum(where(index(j) < index(t), exp(X[m, j]), 0), j)", 67, "[m, t]", id="of what is not 0 outside"),
    pytest.param("max(where(index(j) <= index(t), X[m, j], -inf), j)", 67, "[m, t]", id="a maximum"),
    pytest.param("max(where(index(j) > index(t), X[m, j], -inf), j)", 64, "[m, t]", id="a maximum behind each"),
    pytest.param("min(where(index(j) >= index(t), X[m, j], inf), j)", 67, "[m, t]", id="a minimum from each on"),
    pytest.param("exp(0.01 * " + UP_TO + ") * X", 70, "[m, t]", id="with what is made of it"),
    pytest.param(
        "sum(where(index(j) < index(t), where(N[m, j] == 1, 1, 0), 0), j)", 64, "{dims: [m, t], dtype: int32}",
        id="a count",
    ),
]  # fmt: skip


def judged(text: str, interpreter: Interpreter, long: int = running.LONG) -> list[MuGraph]:
    """Judges the two best plans."""
    program = lower(parse_spec(text).at())
    found = search(in_scans(program, long) or program, find_target("h200")).candidates[:2]
    for c in found:
        verdict = check_equivalence(program, c.graph, 0)
        assert verdict.ok, verdict
        made = judge_small(interpreter, program, c.graph, c.schedule)
        assert made.ok, made.problem
    return [c.graph for c in found]


@pytest.mark.parametrize(("program", "size", "output"), RIGHT)
def test_kernels_with_scans_are_right(program: str, size: int, output: str, interpreter: Interpreter) -> None:
    best, *_ = judged(written(program, size, output), interpreter)
    assert any(isinstance(e, Scan) for k in best.kernels for e in scanned(k).body)


@pytest.mark.parametrize(
    ("program", "size", "output"), [x for x in RIGHT if "max(" not in str(x) and "min(" not in str(x)]
)
def test_kernels_by_blocks_are_right(
    program: str, size: int, output: str, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LENGTHS", range(8, 6, -1))
    judged(written(program, size, output), interpreter, 60)


@pytest.mark.parametrize(
    ("program", "size"),
    [
        pytest.param(UP_TO, 64, id="as scans have it"),
        pytest.param("sum(where(index(j) <= index(t), X[m, j] * X[m, t], 0), j)", 64, id="of the position itself"),
        pytest.param("sum(where(index(j) <= index(t), X[m, j], 1), j)", 64, id="ones outside"),
        pytest.param("sum(where(index(j) <= index(t) + 1, X[m, j], 0), j)", 64, id="one further"),
        pytest.param("sum(where(index(j) + index(t) < 64, X[m, j], 0), j)", 64, id="up to the mirrored position"),
        pytest.param("sum(where(index(j) <= 2 * index(t), X[m, j], 0), j)", 64, id="twice as far"),
        pytest.param("sum(where(index(j) <= N, X[m, j], 0), j)", 64, id="up to a number"),
        pytest.param("sum(where(index(j) == index(t), X[m, j], 0), j)", 64, id="equal"),
        pytest.param(
            "sum(where(index(j) <= index(t) and index(j) > index(t) - 9, X[m, j], 0), j)", 64, id="a window"
        ),
        pytest.param("max(where(index(j) < index(t), X[m, j], 0), j)", 64, id="a maximum that is not negative"),
        pytest.param("X * sum(where(index(j) <= index(h), Y[h, j], 0), j, h)", 64, id="two axes"),
    ],
)  # fmt: skip
def test_other_sums_are_as_they_were(program: str, size: int) -> None:
    assert taken(written(program, size)) is None


def test_what_is_read_from_its_end_on_is_a_sum_from_the_other_side(interpreter: Interpreter) -> None:
    text = written("R[m, 66 - t]", 67).replace(
        "  O =", "  R = sum(where(index(j) <= index(t), X[m, 66 - j], 0), j)\n  O ="
    )
    found = taken(text)
    assert found is not None
    assert "ge" in [e.op for e in found.eqns]
    assert not any(e.out == "O" and e.names for e in found.eqns)
    judged(text, interpreter)


UNREAD = ", M: {dims: [j], dtype: bool}, N: {dims: [m, t], dtype: int32, below: 3}, Y: [h, j]"
HOLES = torch.tensor([[1.0, 2.0, -torch.inf, 3.0, 1.0], [1.0, torch.nan, 5.0, torch.inf, -torch.inf]])


@pytest.mark.parametrize(
    ("program", "eager"),
    [
        (UP_TO, lambda x: x.cumsum(1)),
        ("sum(where(index(j) >= index(t), X[m, j], 0), j)", lambda x: x.flip(1).cumsum(1).flip(1)),
        ("max(where(index(j) <= index(t), X[m, j], -inf), j)", lambda x: x.cummax(1).values),
        ("min(where(index(j) >= index(t), X[m, j], inf), j)", lambda x: x.flip(1).cummin(1).values.flip(1)),
    ],
)
def test_infinities_and_nans_are_as_in_pytorch(program: str, eager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a block that reaches past the end of the axis."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    text = SPEC.format(program=program, size=5, output="[m, t]").replace("m: 3", "m: 2")
    spec = parse_spec(text.replace(UNREAD, ""))
    best = search_program(spec.at(), find_target("h200"), Options(tune=False)).plans
    found = next(p for p in best if any(isinstance(e, Scan) for k in p.graph.kernels for e in scanned(k).body))
    with np.errstate(invalid="ignore"):
        made = load_export(export_source(spec.at(), found.graph, found.schedule)).running(HOLES)
    assert torch.equal(made.nan_to_num(7, 8, 9), eager(HOLES).nan_to_num(7, 8, 9))


@pytest.mark.parametrize("back", [False, True])
def test_a_plan_that_scans_what_is_not_neutral_past_the_end_is_refused(back: bool) -> None:
    sign = ">=" if back else "<="
    program = lower(parse_spec(written(f"max(where(index(j) {sign} index(t), X[m, j], -inf), j)", 67)).at())
    c = search(program, find_target("h200")).candidates[0]
    made = plan_kernel(c.graph, c.graph.kernels[0], c.schedule, c.graph.sizes)
    check(made)
    (scan,) = [s for s in made.statements if isinstance(s, Let)]
    assert isinstance(scan.expr, nodes.Scan)
    assert isinstance(scan.expr.x, nodes.Masked)
    bare = replace(scan, expr=replace(scan.expr, x=scan.expr.x.x))
    with pytest.raises(PlanError, match="lanes past the end of j"):
        check(replace(made, statements=tuple(bare if s is scan else s for s in made.statements)))


def test_axes_of_other_sizes_are_not_scanned() -> None:
    program = lower(parse_spec(written(UP_TO).replace("j: 64", "j: 63")).at())
    for c in search(program, find_target("h200")).candidates:
        assert "tile" not in {c.graph.kernels[0].role("t")}


@pytest.fixture(scope="module")
def plan() -> tuple[Program, Plan]:
    """Of 65536 positions in 256 blocks, and of 128 rows: an axis that is none of blocks."""
    text = written(UP_TO, 1 << 16).replace("m: 3", "m: 128")
    program = parse_spec(text).at()
    found = search_program(program, find_target("h200"), Options(tune=False))
    assert not found.rejected
    return lower(program), found.plans[0]


def test_the_plan_is_by_blocks_and_its_tests_are_small(plan: tuple[Program, Plan]) -> None:
    program, best = plan
    sizes, _ = small_instance(program, best.graph, 0)
    assert "block*256 + within" in print_mugraph(best.graph)
    assert sizes["within"] == sizes["inner"] == 256
    assert sizes["t"] == 256 * sizes["block"] <= 1280
    assert sizes["m"] < 8


@pytest.mark.parametrize(
    "edit",
    [
        (" = le(earlier", " = lt(earlier"),
        (" = ge(earlier1, 0)", " = ge(earlier1, 1)"),
        (" = le(inner", " = lt(inner"),
        (" = le(inner", " = ge(inner"),
        ("block*256 + inner]", "block*256 + inner + 1]"),
        ("block*256 + inner]", "block*255 + inner]"),
        ("block*256 + within]", "within*256 + block]"),
    ],
)
def test_another_sum_is_refused(plan: tuple[Program, Plan], edit: tuple[str, str]) -> None:
    program, best = plan
    text = print_mugraph(best.graph)
    assert edit[0] in text
    assert not check_equivalence(program, parse_mugraph(text.replace(*edit)), 0).ok
