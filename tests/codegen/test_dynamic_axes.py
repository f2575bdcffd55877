"""Two axes whose sizes are arguments: one file, and kernels by the sizes of both."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import ExportInfo, kernels_source, load_export
from mirage_cli.codegen.sized import Variant, sized_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.program import Program, mixed
from mirage_cli.search.assembly import ScheduledGraph
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.reduced import dynamic_sizes
from tests.codegen.test_dynamic import inputs_of, judged
from tests.selfchecks import check_itself

B, S = "{min: 1, max: 20, tune: [2, 8]}", "{min: 1, max: 60, tune: [16, 40]}"
SPECS = {
    # neither axis is the first in memory alone, and one is reduced
    "decode": f"""
name: decode
dims: {{b: {B}, h: 2, s: {S}, d: 16}}
inputs: {{Q: [b, h, d], K: [b, s, h, d], V: [b, s, h, d]}}
program: O = dot(softmax(dot(Q, K, d), s), V, s)
outputs: {{O: [b, h, d]}}
""",
    "pointwise": f"""
name: pointwise
dims: {{b: {B}, s: {S}, k: 24}}
inputs: {{X: [b, s, k], G: [k]}}
program: |
  O = rms_norm(X, k) * G
  M = mean(O, s)
outputs: {{O: [b, s, k], M: [b, k]}}
""",
    # reduced together
    "gram": f"""
name: gram
dims: {{b: {B}, s: {S}, k: 24, n: 20}}
inputs: {{X: [b, s, k], Y: [b, s, n]}}
program: O = dot(X, Y, b, s)
outputs: {{O: [k, n]}}
""",
}
SIZES = ((1, 1), (1, 60), (2, 17), (3, 16), (8, 40), (9, 41), (20, 33))


@cache
def found(name: str) -> tuple[tuple[Program, tuple[ScheduledGraph, ...]], ...]:
    target = find_target("h200")
    return tuple((p, search(lower(merge_axes(p)), target).candidates) for p in parse_spec(SPECS[name]).programs())


def variants(name: str) -> list[Variant]:
    return [Variant(p, cs[0].graph, cs[0].schedule, ExportInfo()) for p, cs in found(name)]


@cache
def exported(name: str) -> Any:
    return load_export(sized_source(variants(name)))


def test_a_program_is_tuned_for_each_size_of_one_axis_with_each_of_the_other() -> None:
    assert [p.arguments for p, _ in found("decode")] == [(2, 16), (2, 40), (8, 16), (8, 40)]


@pytest.mark.parametrize("name", SPECS)
def test_candidates_are_the_program_and_right_at_all_sizes(name: str, interpreter: Interpreter) -> None:
    program, candidates = found(name)[-1]
    for c in candidates[:3]:
        assert check_equivalence(lower(program), c.graph, 0).ok
        source = kernels_source(c.graph, c.schedule)
        for b, s in SIZES[1:4]:
            assert interpreter.judge(program.resized({"b": b, "s": s}), source, 0, True).ok, (b, s)


@pytest.mark.parametrize("name", SPECS)
def test_one_file_is_right_at_sizes_that_were_not_tuned(name: str) -> None:
    program = found(name)[0][0]
    for b, s in SIZES[::2]:
        assert judged(program.resized({"b": b, "s": s}), getattr(exported(name), name)) is None, (b, s)


@pytest.mark.parametrize(
    ("sizes", "which"),
    [((1, 1), 0), ((2, 16), 0), ((2, 17), 1), ((3, 16), 2), ((3, 17), 3), ((8, 40), 3), ((9, 41), 3), ((20, 16), 2)],
)
def test_kernels_are_chosen_by_both_sizes(sizes: tuple[int, int], which: int) -> None:
    assert exported("decode")._which(*sizes) == which


@pytest.mark.parametrize(("sizes", "which"), [((1, 16), 0), ((1, 17), 1), ((3, 16), 1), ((20, 60), 1)])
def test_where_a_pair_has_no_kernels_those_for_more_serve_it(sizes: tuple[int, int], which: int) -> None:
    first, _, _, last = variants("decode")
    assert load_export(sized_source([first, last]))._which(*sizes) == which


def test_each_size_outside_of_its_range_is_refused_by_name() -> None:
    program = found("decode")[0][0]
    for b, s, problem in ((21, 5, "b should be 1 to 20, not 21"), (2, 61, "s should be 1 to 60, not 61")):
        with pytest.raises(ValueError, match=problem):
            exported("decode").decode(*inputs_of(program.resized({"b": b, "s": s})))
    q, k, v = inputs_of(program.resized({"b": 2, "s": 5}))
    with pytest.raises(ValueError, match=r"V should have the shape \(2, 5, 2, 16\), not \(2, 6, 2, 16\)"):
        exported("decode").decode(q, k, torch.zeros(2, 6, 2, 16, dtype=v.dtype))


def test_the_field_net_draws_both_sizes_together() -> None:
    _, (c, *_) = found("decode")[0]
    drawn = [dynamic_sizes(c.graph, c.schedule, seed) for seed in range(5)]
    assert all({*sizes} == {"b", "s"} for some in drawn for sizes in some)
    assert any(sizes["b"] > sizes["s"] == 1 for some in drawn for sizes in some)
    assert any(sizes["s"] > sizes["b"] == 1 for some in drawn for sizes in some)


def test_sizes_are_mixed_so_that_none_is_left_out() -> None:
    some = {"b": [1, 2, 3], "s": [10, 20], "t": [7]}
    rows = mixed(some)
    assert {d: {row[d] for row in rows} for d in some} == {d: {*sizes} for d, sizes in some.items()}
    assert mixed({"b": [1, 9], "s": [1, 9]}) == [{"b": 1, "s": 9}, {"b": 9, "s": 1}]
    assert mixed({}) == [{}]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("0 if SIZE_b <= 2 else", "0 if SIZE_b <= 3 else"),
        ("0 if SIZE_s <= 16 else", "0 if SIZE_s <= 15 else"),
        (") * 2 + (", ") * 1 + ("),
        ("1 <= SIZE_s <= 60", "1 <= SIZE_s <= 61"),
        ("1 <= SIZE_b <= 20", "0 <= SIZE_b <= 20"),
        ("", ""),
    ],
)
def test_a_files_own_check_refuses_wrong_bounds(right: str, wrong: str) -> None:
    source = sized_source(variants("pointwise"))
    assert right in source
    done = check_itself(source.replace(right, wrong) if right else source)
    assert bool(done.code) == bool(right), done
    assert ("is served by the kernels" in done.said) == bool(right)
