"""Axes that are one where products sum them, and two where statistics are taken over groups."""

from __future__ import annotations

from functools import lru_cache

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import beside_in_products, merge_axes, read_in_parts
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.predicting import judge_small
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter, reduced_sizes
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.reduced import small_instance
from mirage_cli.verify.rings import reduced_to

H200 = find_target("h200")
NORM = """
name: group_norm_and_convolution
dims: {b: 2, e: 16, y: 6, g: 3, k: 10, v: 6, i: 3}
inputs:
  X: [b, g, k, v]
  W: {dims: [e, g, k, i], scale: 0.1}
  S: [g, k]
  T: [g, k]
program: |
  R = silu(layer_norm(X, k, v) * S + T)
  O = dot(R[b, g, k, i + y - 1], W, g, k, i)
outputs: {O: [b, e, y]}
"""
SUMS = """
name: sums
dims: {b: 3, g: 4, k: 6, n: 5}
inputs: {X: [b, g, k], W: [g, k, n], S: [k]}
program: |
  V = sum(X, b, k)
  O = dot(X * S / V, W, g, k)
outputs: {O: [b, n]}
"""


def program(text: str = NORM) -> Program:
    return lower(merge_axes(parse_spec(text).at()))


@lru_cache
def planned() -> tuple[MuGraph, Schedule]:
    """The plan, found without a search, in which each group's statistics are stored, or made again."""
    form = beside_in_products(program())
    assert form is not None
    best = search(form, H200, deadline=lambda: True).candidates[0]
    return best.graph, best.schedule


def test_groups_of_channels_are_channels_where_products_sum_them() -> None:
    form = beside_in_products(program(SUMS))
    assert form is not None
    assert str(form).splitlines()[1:] == [
        "dims b=3 g=4 k=6 gk=g*k n=5",
        "input X f16[b, gk]",
        "input W f16[gk, n]",
        "input S f16[k]",
        "  X_read[b, g, k] = rename(X; gk=g*6 + k)",
        "  V[g] = sum(X_read; b, k)",
        "  S_read[gk] = rename(S; k=gk%6)",
        "  t1[b, gk] = mul(X, S_read)",
        "  V_read[gk] = rename(V; g=gk//6)",
        "  t2[b, gk] = div(t1, V_read)",
        "  O[b, n] = dot(t2, W; gk)",
        "output O f16[b, n]",
    ]


def test_what_is_summed_within_groups_is_made_along_groups() -> None:
    """(X - mean)² is made twice: along groups for their deviation, along channels for the product."""
    form = beside_in_products(program())
    assert form is not None
    assert form.merged == (("gk", ("g", "k")),)
    dims = {e.out: e.dims for e in form.eqns}
    (dot,) = (e for e in form.eqns if e.op == "dot")
    assert dot.axes == ("gk", "i")
    assert all(dims[e.values[0]] == ("b", "g", "k", "v") for e in form.eqns if e.op == "sum")
    assert not any(e.op == "rename" and "gk" in e.names and e.values != ("X",) for e in form.eqns)


def test_what_no_type_rounds_is_not_rounded_where_it_is_read() -> None:
    """The mean of a group is read at the group of a channel."""
    form = beside_in_products(program())
    assert form is not None
    reads = {e.out for e in form.eqns if e.op == "rename" and e.values[0] in form.internals}
    assert reads
    assert reads <= form.internals


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((("k: 10", "k: 64"),), id="groups fill blocks"),
        pytest.param((("W: {dims: [e, g, k, i]", "W: {dims: [e, k, g, i]"),), id="in two orders"),
        pytest.param((("  X: [b, g, k, v]", "  X: {dims: [b, g, k, v], strides: [300, 100, 6, 1]}"),), id="a gap"),
        pytest.param((("* S + T", "* S + T + index(k)"),), id="positions of one"),
        pytest.param(
            (
                ("  T: [g, k]", "  T: [g, k]\n  P: [b, g, v, u]"),
                ("v: 6", "v: 6, u: 6"),
                ("  O =", "  Q = dot(R, P, v)\n  O ="),
                ("dot(R[b, g, k, i + y - 1]", "dot(Q[b, g, k, i + y - 1]"),
            ),
            id="one of them is the batch of a product",
        ),
    ],
)
def test_axes_that_are_not_merged(changes: tuple[tuple[str, str], ...]) -> None:
    text = NORM
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    assert beside_in_products(program(text)) is None


def test_a_plan_of_channels_is_right(interpreter: Interpreter) -> None:
    graph, schedule = planned()
    assert check_equivalence(program(), graph, 0).ok
    judged = interpreter.judge(parse_spec(NORM).at(), kernels_source(graph, schedule), 0)
    assert judged.ok, judged.problem


@pytest.mark.parametrize(
    ("index", "wrong"),
    [("gk//10*10 + k", "gk//10*10 + k - 1"), ("gk//10*10 + k", "gk//5*5 + k")],
)
def test_other_channels_are_refused(index: str, wrong: str) -> None:
    graph, _ = planned()
    text = print_mugraph(graph)
    assert f"X[b, {index}, v]" in text
    changed = parse_mugraph(text.replace(f"X[b, {index}, v]", f"X[b, {wrong}, v]"))
    assert changed != graph
    assert not check_equivalence(program(), changed, 0).ok


def of_many_channels() -> tuple[Program, MuGraph, Schedule]:
    text = NORM.replace("k: 10", "k: 40").replace("g: 3", "g: 32")
    form = beside_in_products(program(text))
    assert form is not None
    best = search(form, H200, deadline=lambda: True).candidates[0]
    return parse_spec(text).at(), best.graph, best.schedule


def test_groups_are_short_in_tests(interpreter: Interpreter) -> None:
    """The number of a group's channels in an index is that of the sizes at hand."""
    p, graph, schedule = of_many_channels()
    sizes = reduced_sizes(p, graph=graph)
    tested, _ = small_instance(lower(p), graph, 0)
    for small in (sizes, tested):
        assert small["k"] < 40
        assert small["g"] < 32
        text = print_mugraph(reduced_to(graph, small))
        assert f"gk//{small['k']}" in text
        assert "40" not in text.partition("kernel")[2]
    assert check_equivalence(lower(p), graph, 0).ok
    judged = judge_small(interpreter, p, graph, schedule)
    assert judged.ok, judged.problem


def test_groups_stay_whole_where_another_index_counts_them() -> None:
    """What that comes to at other sizes is not known."""
    p = program(SUMS)
    form = beside_in_products(p)
    assert form is not None
    graphs = [c.graph for c in search(form, H200, deadline=lambda: True).candidates]
    graph = next(g for g in graphs if "V[gk//6]" in print_mugraph(g))
    assert not read_in_parts(graph)
    changed = parse_mugraph(print_mugraph(graph).replace("S[gk%6]", "S[gk%3]"))
    assert changed != graph
    assert read_in_parts(changed) == {"k"}
    tested, _ = small_instance(p, changed, 0)
    assert tested["k"] == 6
    assert check_equivalence(p, graph, 0).ok
    assert not check_equivalence(p, changed, 0).ok
