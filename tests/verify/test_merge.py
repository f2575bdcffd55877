"""Axes that are one: which are merged, what a merged μGraph is checked against, and what users get from it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import LONGEST, merge_axes, merged_by
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import canonical_text, mugraph_id, parse_mugraph
from mirage_cli.pipeline.keys import program_hash
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import SPACE, reduced_schedule, reduced_sizes
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.floatsemantics import FloatSemantics
from mirage_cli.verify.interpret import run_mugraph, run_program
from mirage_cli.verify.reduced import short_tile, small_instance
from mirage_cli.verify.semantics import Named

H200 = find_target("h200")


def spec(dims: str, inputs: str, text: str, outputs: str, dtype: str = "float32") -> Program:
    body = "\n".join(f"  {line}" for line in text.split(" | "))
    return parse_spec(
        f"name: t\ndims: {{{dims}}}\ndtype: {dtype}\ninputs: {{{inputs}}}\nprogram: |\n{body}\noutputs: {{{outputs}}}\n"
    ).at()


NORM = "b: 3, c: 5, y: 4, x: 6", "X: [b, c, y, x], G: [c, y, x]", "O = layer_norm(X, c, y, x) * G", "O: [b, c, y, x]"
PROJECTION = "m: 7, h: 3, g: 4, e: 8, n: 24", "T: [m, h, g, e], W: [h, g, e, n]", "O = dot(T, W, h, g, e)", "O: [m, n]"
ATTENTION = (
    "b: 2, h: 3, q: 20, s: 33, d: 16, e: 16",
    "Q: [b, h, q, d], K: [b, h, s, d], V: [b, h, s, e]",
    "O = dot(softmax(dot(Q, K, d), s), V, s)",
    "O: [b, h, q, e]",
)
WHOLE = "m: 17, n: 31", "X: [m, n]", "O = mean(X, m, n)", "O: []"
ELEMENTWISE = "b: 3, h: 5, n: 7", "X: [b, h, n], Y: [b, h]", "O = exp(X) * Y", "O: [b, h, n]"
SIZED = "m: 6, h: 3, d: 5", "X: [m, h, d]", "O = sum(X, h, d) / (h * d) | P = X * h", "O: [m], P: [m, h, d]"
ROWS = "a: 3, b: 4, k: 16, n: 32", "X: [a, b, k], W: [k, n]", "O = dot(X, W, k)", "O: [a, b, n]"
CASES = [NORM, PROJECTION, ATTENTION, WHOLE, ELEMENTWISE, SIZED, ROWS]


@pytest.mark.parametrize(
    ("case", "merged"),
    [
        (NORM, {"cyx": ("c", "y", "x")}),
        (PROJECTION, {"hge": ("h", "g", "e")}),
        (ATTENTION, {"bh": ("b", "h")}),
        (WHOLE, {"mn": ("m", "n")}),
        (ELEMENTWISE, {"bh": ("b", "h")}),
        (SIZED, {"hd": ("h", "d")}),
        (ROWS, {"ab": ("a", "b")}),
        (("a: 3, b: 4", "X: [a, b]", "O = exp(X)", "O: [b, a]"), {}),
        (("a: 3, b: 4", "X: [a, b], Y: [b]", "O = X + Y", "O: [a, b]"), {}),
        (("a: 3, b: 4, c: 5", "X: [a, c, b], Y: [a, b]", "O = dot(X, Y, a, b)", "O: [c]"), {}),
        (("a: 3, b: 4", "X: [a, b]", "O = sum(X, b)", "O: [a]"), {}),
        (("a: 3, b: 4", "X: [a, b]", "O = where(index(b) < 2, X, 0)", "O: [a, b]"), {}),
        (("a: 3, b: 3, c: 4", "X: [a, c]", "O = dot(X, rename(X, a=b), c)", "O: [a, b]"), {}),
        (("a: 3, b: 4", "ab: [a, b]", "O = exp(ab)", "O: [a, b]"), {"ab_": ("a", "b")}),
        (("row: 3, col: 4", "X: [row, col]", "O = exp(X)", "O: [row, col]"), {"row_col": ("row", "col")}),
        (("k: 3, split: 4", "X: [k, split]", "O = exp(X)", "O: [k, split]"), {"k_split_": ("k", "split")}),
    ],
)
def test_axes_that_are_one_are_merged(case: tuple[str, ...], merged: dict[str, tuple[str, ...]]) -> None:
    program = spec(*case)
    found = merge_axes(program)
    assert dict(found.merged) == merged
    assert {n: found.sizes[n] for n in merged} == {n: prod(program.sizes[p] for p in merged[n]) for n in merged}


def test_a_merged_axis_is_no_longer_than_kernels_count() -> None:
    program = spec("a: 1024, b: 1024, c: 1024, d: 1024", "X: [a, b, c, d]", "O = exp(X)", "O: [a, b, c, d]")
    found = merge_axes(program)
    assert dict(found.merged) == {"abc": ("a", "b", "c")}
    assert found.sizes["abc"] == LONGEST


@pytest.mark.parametrize("case", CASES)
def test_a_merged_program_computes_the_same_of_the_same_memory(case: tuple[str, ...]) -> None:
    """In float64, by the definition of programs: the user's on its own shapes, the merged one on its own."""
    program = lower(spec(*case))
    merged = lower(merge_axes(spec(*case)))
    rng = np.random.default_rng(0)
    given = {t.name: rng.standard_normal([program.sizes[d] for d in t.dims]) for t in program.inputs}
    results: list[dict[str, Named]] = []
    for p in (program, merged):
        inputs = {t.name: Named(t.dims, given[t.name].reshape([p.sizes[d] for d in t.dims])) for t in p.inputs}
        results.append(run_program(p, inputs, FloatSemantics(p.sizes)))
    for t, m in zip(program.outputs, merged.outputs, strict=True):
        want, got = results[0][t.name], results[1][t.name]
        flat = np.moveaxis(want.data, [want.dims.index(d) for d in t.dims], range(len(t.dims))).ravel()
        np.testing.assert_allclose(
            np.moveaxis(got.data, [got.dims.index(d) for d in m.dims], range(len(m.dims))).ravel(), flat, rtol=1e-12
        )


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's word on rows beyond the end of a tensor
@pytest.mark.parametrize("case", CASES)
def test_plans_are_verified_and_exported_with_the_users_own_shapes(case: tuple[str, ...]) -> None:
    program = spec(*case)
    found = search_program(program, H200, Options(tune=False))
    assert not found.rejected
    merged = [p for p in found.plans if p.graph.merged]
    assert merged
    assert program_hash(program) == program_hash(spec(*case)), "the merge leaves the user's program alone"
    rng = np.random.default_rng(0)
    tensors = {
        t.name: torch.from_numpy(rng.standard_normal([program.sizes[d] for d in t.dims], dtype=np.float32))
        for t in program.inputs
    }
    lowered = lower(program)
    named = {t.name: Named(t.dims, tensors[t.name].double().numpy()) for t in program.inputs}
    want = run_program(lowered, named, FloatSemantics(program.sizes))
    for p in {found.plans[0].id: found.plans[0], found.as_written: _as_written(found.plans, found.as_written)}.values():
        module = load_export(export_source(program, p.graph, reduced_schedule(p.graph, p.schedule)))
        result = module.t(*tensors.values())
        for t, got in zip(program.outputs, (result,) if isinstance(result, torch.Tensor) else result, strict=True):
            assert got.shape == tuple(program.sizes[d] for d in t.dims)
            expected = want[t.name]
            order = [expected.dims.index(d) for d in t.dims]
            torch.testing.assert_close(
                got.double(), torch.from_numpy(np.transpose(expected.data, order)), rtol=1e-4, atol=1e-4
            )
        flat = torch.zeros(1, dtype=torch.float32)
        with pytest.raises((ValueError, TypeError), match="shape"):
            module.t(*(flat for _ in tensors))


def _as_written(plans: tuple[Plan, ...], id: str) -> Plan:
    return next(p for p in plans if p.id == id)


def test_the_text_says_which_axes_are_merged() -> None:
    graph = graph_of(NORM)
    text = canonical_text(graph)
    assert "dims b=3 c=5 y=4 x=6 cyx=c*y*x\n" in text
    assert parse_mugraph(text) == graph
    assert mugraph_id(parse_mugraph(text)) == mugraph_id(graph)
    larger = graph.resized({"c": 7})
    assert larger.sizes["cyx"] == 7 * 4 * 6
    assert parse_mugraph(canonical_text(larger)) == larger


@pytest.mark.parametrize("case", CASES)
def test_reduced_sizes_of_merged_axes_stay_small(case: tuple[str, ...]) -> None:
    program = spec(*case)
    large = program.resized(dict.fromkeys(program.sizes, 64))
    for variant in range(4):
        small = merge_axes(large).resized(reduced_sizes(large, variant)).sizes
        assert all(1 < n <= 60 for n in small.values())


def test_reduced_sizes_have_room_for_what_is_read_far_away() -> None:
    """d is long for the sake of X[.., e + 86]: another axis is short then, or the interpreter would take minutes."""
    text = """
name: far
dims: {t: 21, y: 30, x: 52, h: 24, d: 128, e: 42}
inputs: {X: [t, y, x, h, d]}
program: |
  N = rms_norm(X, d)
  O[t, y, x, h, e + 86] = N[t, y, x, h, e + 86]
  O[t, y, x, h, e + 44] = N[t, y, x, h, e + 44]
  O[t, y, x, h, e + 2] = N[t, y, x, h, e + 2]
  O[t, y, x, h, 0] = N[t, y, x, h, 0]
  O[t, y, x, h, 1] = N[t, y, x, h, 1]
outputs: {O: [t, y, x, h, d]}
"""
    sizes = reduced_sizes(parse_spec(text).at())
    assert sizes["d"] > 86 and prod(sizes[a] for a in "tyxhd") <= SPACE


@pytest.mark.parametrize("seed", range(8))
def test_a_merged_axis_is_tested_in_several_tiles_the_last_of_them_short(seed: int) -> None:
    graph = graph_of(NORM)
    for least in (False, True):
        sizes, schedule = small_instance(lower(spec(*NORM)), graph, seed, least=least)
        assert sizes["cyx"] == sizes["c"] * sizes["y"] * sizes["x"]
        for k in graph.kernels:
            for d in k.with_role("grid", "split", "loop"):
                if d == "cyx":
                    tile = schedule.kernels[k.name].tile(d)
                    assert tile < sizes[d] and sizes[d] % tile
    assert [short_tile(n) for n in (4, 6, 8, 9, 12, 27)] == [3, 4, 3, 2, 5, 6]


# -- what must be refused


def graph_of(case: tuple[str, ...]) -> MuGraph:
    found = search_program(spec(*case), H200, Options(tune=False))
    return next(p.graph for p in found.plans if p.graph.merged)


@pytest.mark.parametrize(
    ("case", "merged", "problem"),
    [
        (ELEMENTWISE, ("h", "b"), "in another order"),
        (("a: 3, b: 4, c: 5", "X: [a, c, b]", "O = exp(X)", "O: [a, c, b]"), ("a", "b"), "apart"),
        (("a: 3, b: 4", "X: [a, b]", "O = where(index(b) < 2, X, 0)", "O: [a, b]"), ("a", "b"), "index of b"),
        (("a: 3, b: 3, c: 4", "X: [a, c]", "O = dot(X, rename(X, a=b), c)", "O: [a, b]"), ("a", "b"), "rename of a"),
    ],
)
def test_axes_that_are_not_one_are_not_merged(case: tuple[str, ...], merged: tuple[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        merged_by(spec(*case), (("ab", merged),))


SQUARE = "b: 4, h: 4, n: 7", "X: [b, h, n], Y: [b, h]", "O = exp(X) * Y", "O: [b, h, n]"
"""Axes of one size: a wrong order of the parts has the right shapes."""


def test_a_merge_in_another_order_is_refused() -> None:
    graph = graph_of(SQUARE)
    wrong = replace(graph, merged=(("bh", ("h", "b")),))
    verdict = check_equivalence(lower(spec(*SQUARE)), wrong, 0)
    assert not verdict.ok
    assert "structure" in str(verdict)


APART = "a: 3, b: 3, c: 3", "X: [a, b, c], Y: [a, c, b]", "O = X + Y", "O: [a, b, c]"


def test_a_merge_of_axes_that_lie_apart_in_one_tensor_is_refused() -> None:
    text = """mugraph t float32
dims a=3 b=3 c=3 bc=b*c
input X f32[a, bc]
input Y f32[a, bc]
output O f32[a, bc]
kernel k0 generated a:grid bc:grid
  X = load X[a, bc]
  Y = load Y[a, bc]
  O[a, bc] = add(X, Y)
  store O[a, bc] = O
"""
    verdict = check_equivalence(lower(spec(*APART)), parse_mugraph(text), 0)
    assert not verdict.ok
    assert "input Y" in str(verdict)


MASKED = "a: 3, b: 4", "X: [a, b]", "O = where(index(b) < 1, X, 0)", "O: [a, b]"


def test_the_index_of_a_merged_axis_is_not_that_of_a_part() -> None:
    """The finite-field net runs the merged kernels on the user's tensors, against the program as it was written."""
    text = """mugraph t float32
dims a=3 b=4 ab=a*b
input X f32[ab]
output O f32[ab]
kernel k0 generated ab:grid
  X = load X[ab]
  i[ab] = index(ab)
  m[ab] = lt(i, 1)
  O[ab] = where(m, X, 0)
  store O[ab] = O
"""
    verdict = check_equivalence(lower(spec(*MASKED)), parse_mugraph(text), 0)
    assert not verdict.ok
    assert "field" in str(verdict)


def test_wrong_mergers_are_refused() -> None:
    graph, program = graph_of(NORM), lower(spec(*NORM))
    for merged in ((("cyx", ("c", "y", "z")),), (("cyx", ("c", "y", "y")),), (("c", ("c", "y", "x")),)):
        assert not check_equivalence(program, replace(graph, merged=merged), 0).ok


def without(k: Kernel, op: str) -> Kernel:
    """The kernel with each division by the size of an axis left out."""
    gone = {e.out: str(e.args[0]) for e in k.body if e.op == op}
    body = tuple(
        replace(e, args=tuple(gone.get(a, a) if isinstance(a, str) else a for a in e.args))
        for e in k.body
        if e.out not in gone
    )
    return replace(k, body=body, stores=tuple(replace(s, value=gone.get(s.value, s.value)) for s in k.stores))


def test_a_mean_that_divides_by_the_size_of_one_part_is_refused() -> None:
    graph, program = graph_of(WHOLE), lower(spec(*WHOLE))
    assert check_equivalence(program, graph, 0).ok

    def part(k: Kernel) -> Kernel:
        return replace(k, body=tuple(replace(e, axes=("m",)) if e.op == "size" else e for e in k.body))

    assert not check_equivalence(program, replace(graph, kernels=tuple(map(part, graph.kernels))), 0).ok
    assert not check_equivalence(program, replace(graph, kernels=tuple(without(k, "div") for k in graph.kernels)), 0).ok


def test_a_merged_graph_runs_on_the_programs_own_tensors() -> None:
    program = lower(spec(*ELEMENTWISE))
    graph = graph_of(ELEMENTWISE)
    sizes, schedule = small_instance(program, graph, 0)
    small, rng = program.resized(sizes), np.random.default_rng(1)
    inputs = {t.name: Named(t.dims, rng.standard_normal([sizes[d] for d in t.dims])) for t in small.inputs}
    got = run_mugraph(graph.resized(sizes), schedule, inputs, FloatSemantics(sizes))["O"]
    assert got.dims == ("b", "h", "n")
    np.testing.assert_allclose(got.data, np.exp(inputs["X"].data) * inputs["Y"].data[:, :, None])
