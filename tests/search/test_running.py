"""Sums up to each position, by blocks."""

from __future__ import annotations

import pytest

from mirage_cli.ir import running
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.running import block_of, by_blocks
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


def taken(text: str) -> Program | None:
    return by_blocks(lower(parse_spec(text).at()))


def test_a_sum_is_of_a_block_and_of_the_blocks_before() -> None:
    found = taken(written(UP_TO))
    assert found is not None
    assert [str(e) for e in found.eqns] == [
        "t3[m, j] = rename(X; t=j)",
        "O_block[m, block, inner] = rename(t3; j=block*8 + inner)",
        "O_total[m, block] = sum(O_block; inner)",
        "O_earlier[m, earlier] = rename(O_total; block=earlier)",
        "O_earlier1[earlier] = index(earlier)",
        "O_block1[block] = index(block)",
        "O_mask[block, earlier] = lt(O_earlier1, O_block1)",
        "O_some[m, block, earlier] = where(O_mask, O_earlier, 0)",
        "O_before[m, block] = sum(O_some; earlier)",
        "O_inner[inner] = index(inner)",
        "O_within[within] = index(within)",
        "O_mask1[within, inner] = le(O_inner, O_within)",
        "O_some1[m, block, within, inner] = where(O_mask1, O_block, 0)",
        "O_within1[m, block, within] = sum(O_some1; inner)",
        "O_both[m, block, within] = add(O_within1, O_before)",
    ]
    assert [str(p) for p in found.parts] == ["O[m, block*8 + within] = O_both"]


def test_blocks_are_about_as_many_as_positions_within() -> None:
    assert [block_of(n) for n in (64, 100, 256, 257, 4000, 1 << 20)] == [8, 16, 16, 32, 32, 32]


RIGHT = [
    pytest.param(UP_TO, 64, "[m, t]", id="up to each"),
    pytest.param("sum(where(index(j) < index(t), X[m, j], 0), j)", 80, "[t, m]", id="before each"),
    pytest.param("sum(where(index(t) < index(j) + 1, X[m, j], 0), j)", 67, "[m, t]", id="from each on, a short block"),
    pytest.param("sum(where(index(j) > index(t), X[m, j], 0), j)", 64, "[m, t]", id="behind each"),
    pytest.param("sum(where(M and index(t) >= index(j), X[m, j] * 0.5, 0), j)", 64, "[m, t]", id="another mask"),
    pytest.param("exp(0.01 * " + UP_TO + ") * X", 70, "[m, t]", id="with what is made of it"),
    pytest.param(
        "sum(where(index(j) < index(t), where(N[m, j] == 1, 1, 0), 0), j)", 64, "{dims: [m, t], dtype: int32}",
        id="a count",
    ),
]  # fmt: skip


def judged(text: str, interpreter: Interpreter, least: int = running.LEAST) -> None:
    """Judges the two best plans by blocks: at these sizes, programs as they are written are faster."""
    program = lower(parse_spec(text).at())
    form = by_blocks(program, least)
    assert form is not None
    for c in search(form, find_target("h200")).candidates[:2]:
        verdict = check_equivalence(program, c.graph, 0)
        assert verdict.ok, verdict
        found = judge_small(interpreter, program, c.graph, c.schedule)
        assert found.ok, found.problem


@pytest.mark.parametrize(("program", "size", "output"), RIGHT)
def test_kernels_by_blocks_are_right(program: str, size: int, output: str, interpreter: Interpreter) -> None:
    judged(written(program, size, output), interpreter)


@pytest.mark.parametrize(
    ("program", "size"),
    [
        pytest.param(UP_TO, 63, id="short"),
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
        pytest.param("max(where(index(j) <= index(t), X[m, j], 0), j)", 64, id="a maximum"),
        pytest.param("X * sum(where(index(j) <= index(h), Y[h, j], 0), j, h)", 64, id="two axes"),
    ],
)  # fmt: skip
def test_other_sums_are_as_they_were(program: str, size: int) -> None:
    assert taken(written(program, size)) is None


def test_sums_up_to_blocks_are_taken_by_blocks_too(monkeypatch: pytest.MonkeyPatch, interpreter: Interpreter) -> None:
    monkeypatch.setattr(running, "FEW", 4)
    monkeypatch.setattr(running, "LARGEST", 4)
    text = written(UP_TO, 40)
    found = by_blocks(lower(parse_spec(text).at()), 8)
    assert found is not None
    assert len([e for e in found.eqns if e.op == "sum"]) == 5
    judged(text, interpreter, 8)


@pytest.fixture(scope="module")
def plan() -> tuple[Program, Plan]:
    """Of 4096 positions in 128 blocks, and of 128 rows: an axis that is none of blocks."""
    text = written(UP_TO, 4096).replace("m: 3", "m: 128")
    program = parse_spec(text).at()
    found = search_program(program, find_target("h200"), Options(tune=False))
    assert not found.rejected
    return lower(program), found.plans[0]


def test_the_plan_is_by_blocks_and_its_tests_are_small(plan: tuple[Program, Plan], interpreter: Interpreter) -> None:
    program, best = plan
    sizes, _ = small_instance(program, best.graph, 0)
    assert "block*32 + within" in print_mugraph(best.graph)
    assert sizes["within"] == sizes["inner"] == 32
    assert sizes["t"] == 32 * sizes["block"] <= 160
    assert sizes["m"] < 8
    assert judge_small(interpreter, program, best.graph, best.schedule).ok


def test_short_axes_are_searched_both_ways() -> None:
    program = parse_spec(written(UP_TO, 64).replace("m: 3", "m: 131072")).at()
    found = search_program(program, find_target("h200"), Options(tune=False))
    assert not found.rejected
    assert "block*8 + within" in print_mugraph(found.plans[0].graph)
    (as_written,) = [p for p in found.plans if p.id == found.as_written]
    assert "block" not in print_mugraph(as_written.graph)


@pytest.mark.parametrize(
    "edit",
    [
        ("O_mask[block, earlier] = lt", "O_mask[block, earlier] = le"),
        ("O_mask1[within, inner] = le", "O_mask1[within, inner] = lt"),
        ("O_mask1[within, inner] = le", "O_mask1[within, inner] = ge"),
        ("block*32 + inner]", "block*32 + inner + 1]"),
        ("block*32 + inner]", "block*31 + inner]"),
        ("block*32 + within]", "within*128 + block]"),
    ],
)
def test_another_sum_is_refused(plan: tuple[Program, Plan], edit: tuple[str, str]) -> None:
    program, best = plan
    text = print_mugraph(best.graph)
    assert edit[0] in text
    assert not check_equivalence(program, parse_mugraph(text.replace(*edit)), 0).ok
