"""Loops and chunks over an axis whose size is an argument: reductions over it, from specs to calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from mirage_cli.codegen import plan, scalars
from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.check import PlanError, check
from mirage_cli.codegen.export import ExportInfo, kernels_source, load_export
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.codegen.sized import Variant, sized_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Before, FetchedAhead, KernelSchedule, Lead, Schedule
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.search.assembly import ScheduledGraph
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.structure import structure_problem
from tests.codegen.test_dynamic import compiled_keys, judged

DIMS = "{min: 1, max: 300, tune: [16, 200]}"
SPECS = {
    "attention": f"""
name: attention
dims: {{h: 2, m: 5, s: {DIMS}, d: 16}}
inputs: {{Q: [h, m, d], K: [h, s, d], V: [h, s, d]}}
program: |
  P = softmax(dot(Q, K, d) * d ** -0.5, s)
  O = dot(P, V, s)
outputs: {{O: [h, m, d]}}
""",
    # lengths in an input end the loop before the size does
    "lengths": f"""
name: lengths
dims: {{b: 3, s: {DIMS}, d: 16}}
inputs: {{Q: [b, d], K: [b, s, d], V: [b, s, d], L: {{dims: [b], dtype: int32, below: 40}}}}
program: |
  P = softmax(where(index(s) <= L, dot(Q, K, d), -inf), s)
  O = dot(P, V, s)
outputs: {{O: [b, d]}}
""",
    "norm": f"""
name: norm
dims: {{m: 5, t: {DIMS}}}
inputs: {{X: [m, t], G: [t]}}
program: O = layer_norm(X, t) * G
outputs: {{O: [m, t]}}
""",
    "pool": f"""
name: pool
dims: {{b: 3, t: {DIMS}, c: 12}}
inputs: {{X: [b, t, c]}}
program: |
  M = mean(X, t)
  N = max(X, t)
outputs: {{M: [b, c], N: [b, c]}}
""",
    "product": f"""
name: product
dims: {{m: 48, n: 32, k: {DIMS}}}
inputs: {{X: [m, k], W: [k, n]}}
program: O = silu(dot(X, W, k))
outputs: {{O: [m, n]}}
""",
    # walked together with an axis of one size
    "several": f"""
name: several
dims: {{m: 17, t: {DIMS}, k: 20, n: 24}}
inputs: {{X: [m, t, k], W: [t, k, n]}}
program: O = dot(X, W, t, k)
outputs: {{O: [m, n]}}
""",
}
SIZES = (1, 17, 64, 201)


@cache
def found(name: str) -> tuple[tuple[Program, tuple[ScheduledGraph, ...]], ...]:
    """The programs of a spec, with all candidates of each."""
    target = find_target("h200")
    return tuple((p, search(lower(merge_axes(p)), target).candidates) for p in parse_spec(SPECS[name]).programs())


def splitting(name: str) -> tuple[Program, ScheduledGraph]:
    """The program for its largest size, with the best candidate that splits the dynamic axis."""
    program, candidates = found(name)[-1]
    (r,) = program.dynamic
    return program, next(c for c in candidates if any(k.split == r.dim for k in c.graph.kernels))


def wrong_at(program: Program, source: str, interpreter: Interpreter, sizes: tuple[int, ...] = SIZES) -> list[int]:
    (r,) = program.dynamic
    return [n for n in sizes if not interpreter.judge(program.resized({r.dim: n}), source, 0, True).ok]


# -- right at every size


@pytest.mark.parametrize("name", SPECS)
def test_every_candidate_is_the_program_and_right_at_every_size(name: str, interpreter: Interpreter) -> None:
    for program, candidates in found(name):
        for c in candidates[:2]:
            assert check_equivalence(lower(program), c.graph, 0).ok
            assert wrong_at(program, kernels_source(c.graph, c.schedule), interpreter, (17, 201)) == []


@pytest.mark.parametrize("name", SPECS)
def test_one_file_is_right_at_sizes_that_were_not_tuned(name: str) -> None:
    variants = [Variant(p, cs[0].graph, cs[0].schedule, ExportInfo()) for p, cs in found(name)]
    function = getattr(load_export(sized_source(variants)), variants[0].program.name)
    program = variants[0].program
    (r,) = program.dynamic
    for n in (16, 65):
        assert judged(program.resized({r.dim: n}), function) is None, n


CHOICES: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "in two chunks": {"split": 2},
    "fetching": {"overlap": True, "before": Before.PREFETCH, "ahead": FetchedAhead(2)},
    "with a lead": {"overlap": True, "hand_over": Lead(2)},
    "one position": {"tile": 1},
}


@pytest.mark.parametrize("name", CHOICES)
def test_chunks_are_right_at_every_size(
    name: str, interpreter: Interpreter, farm: Callable[[int], CompileFarm]
) -> None:
    """Their length follows from the size; of few positions, most chunks are empty."""
    program, c = splitting("attention")
    choice = dict(CHOICES[name])
    tile, split = choice.pop("tile", 16), choice.pop("split", 5)

    def chosen(s: KernelSchedule, splits: bool) -> KernelSchedule:
        tiles = tuple((d, tile if d == "s" else min(t, 16)) for d, t in s.tiles)
        return replace(s, tiles=tiles, split=split if splits else 1, **choice)

    kernels = {k.name: chosen(c.schedule.kernels[k.name], k.split == "s") for k in c.graph.kernels}
    source = kernels_source(c.graph, Schedule(kernels))
    assert wrong_at(program, source, interpreter) == []
    assert len(compiled_keys(program, source, (1, 16, 300), farm, "s")) == 1


def test_scratch_for_chunks_does_not_follow_from_the_size() -> None:
    program, c = splitting("attention")
    source = kernels_source(c.graph, c.schedule)
    assert source.count('@triton.jit(do_not_specialize=["SIZE_s"])') == 1  # the merge kernel takes no size
    assert program.sizes["s"] == 200 and "200" not in re.sub(r"def make_scratch.*", "", source)


def test_a_mean_divides_by_the_size_of_the_call() -> None:
    for program, candidates in found("pool"):
        for c in candidates:
            source = kernels_source(c.graph, c.schedule)
            assert "SIZE_t.to(tl.float32)" in source and f"{program.sizes['t']}.0" not in source


def test_float32_does_not_compare_positions_with_a_size() -> None:
    _, (c, *_) = found("pool")[0]
    few = "  few[] = lt(t1, 5)\n  M[b, c] = where(few, t0, t0)"
    text = canonical_text(c.graph).replace("  M[b, c] = div(t0, t1)", few)
    assert few in text
    with pytest.raises(EmitError, match="a comparison with a dynamic size"):
        kernels_source(parse_mugraph(text), c.schedule)


# -- what must be refused

WRONG_TEXTS = {
    "a mask by the tuned size": (r"in_s = i_s < SIZE_s\b", "in_s = i_s < 200"),
    "a mask that is one short": (r"in_s = i_s < SIZE_s\b", "in_s = i_s < SIZE_s - 1"),
    "a mask that is one too far": (r"in_s = i_s < SIZE_s\b", "in_s = i_s < SIZE_s + 1"),
    "chunks of the tuned size": (r"\(\(SIZE_s \+ \d+\) // \d+ \* (\d+)\)", r"\1"),
    "chunks that are rounded down": (r"\(\(SIZE_s \+ \d+\) // (\d+) \* (\d+)\)", r"(SIZE_s // \1 * \2)"),
    "strides of the tuned size": (r"\(SIZE_s \* 16\)", "3200"),
}


@pytest.mark.parametrize("name", WRONG_TEXTS)
def test_the_numeric_net_refuses_a_wrong_size(name: str, interpreter: Interpreter) -> None:
    program, c = splitting("attention")
    schedule = Schedule({n: replace(s, split=3) if s.split > 1 else s for n, s in c.schedule.kernels.items()})
    source = kernels_source(c.graph, schedule)
    wrong, count = re.subn(*WRONG_TEXTS[name], source)
    assert count and any(wrong_at(program, wrong, interpreter, (n,)) for n in (201, 15))


def test_the_numeric_net_refuses_a_mean_over_the_tuned_size(interpreter: Interpreter) -> None:
    program, (c, *_) = found("pool")[0]
    source = kernels_source(c.graph, c.schedule)
    assert wrong_at(program, source.replace("SIZE_t.to(tl.float32)", "16.0"), interpreter, (15, 16, 17)) == [15, 17]


def changed_loops(change: Callable[[plan.Over], plan.Over]) -> plan.KernelPlan:
    """The plan of a kernel that splits the dynamic axis with other loops."""
    _, c = splitting("attention")
    kernel = next(k for k in c.graph.kernels if k.split)
    sizes = c.graph.sizes | {"s_split": c.schedule.kernels[kernel.name].split}
    made = plan_kernel(c.graph, kernel, c.schedule, sizes)
    check(made)

    def changed(s: plan.Statement) -> plan.Statement:
        return replace(s, over=change(s.over)) if isinstance(s, plan.Loop) and isinstance(s.over, plan.Over) else s

    return replace(made, statements=tuple(map(changed, made.statements)))


WRONG_LOOPS: Mapping[str, tuple[Callable[[plan.Over], plan.Over], str]] = {
    "that ends at the tuned size": (
        lambda o: replace(o, last=scalars.Number(200)),
        "the loop over s has another end",
    ),
    "that goes on beyond the size": (
        lambda o: replace(o, last=scalars.ChunkAt(scalars.Share("s", 4, 64), True)),
        "the loop over s has another end",
    ),
    "by a size that is a constant": (
        lambda o: replace(o, last=scalars.Size("s")),
        "the size of s is taken for another",
    ),
    "of a chunk of the tuned length": (
        lambda o: replace(o, first=scalars.ChunkAt(64, False)),
        "chunks of s are not all of it",
    ),
    "of one chunk too many": (
        lambda o: replace(o, first=scalars.ChunkAt(scalars.Share("s", 5, 64), False)),
        "chunks of s are not all of it",
    ),
}


@pytest.mark.parametrize("name", WRONG_LOOPS)
def test_plans_refuse_a_loop(name: str) -> None:
    change, problem = WRONG_LOOPS[name]
    with pytest.raises(PlanError, match=problem):
        check(changed_loops(change))


def test_plans_refuse_another_number_of_tiles_of_several_axes() -> None:
    program, candidates = found("several")[0]
    c = next(c for c in candidates if {r for _, r in c.graph.kernels[0].roles} == {"grid", "loop"})
    made = plan_kernel(c.graph, c.graph.kernels[0], c.schedule, program.sizes)
    check(made)

    def counted(s: plan.Statement) -> plan.Statement:
        if not isinstance(s, plan.Loop) or not isinstance(s.over, plan.Together):
            return s
        return replace(s, over=replace(s.over, trips=(4,)))

    with pytest.raises(PlanError, match="another number of tiles of t, k"):
        check(replace(made, statements=tuple(map(counted, made.statements))))


WRONG_GRAPHS: Mapping[str, tuple[Callable[[str], str], str]] = {
    "the axis held whole": (lambda text: text.replace("t:loop", "t:tile"), "holds the dynamic axis t whole"),
    "a maximum in the place of a mean": (lambda text: text.replace("sum(X; t)", "max(X; t)"), ""),
    "the size of another axis": (lambda text: text.replace("size(t)", "size(c)"), ""),
    "a mean without its size": (lambda text: re.sub(r"div\((\w+), \w+\)", r"div(\1, 16)", text), ""),
}


@pytest.mark.parametrize("name", WRONG_GRAPHS)
def test_nets_refuse_another_reduction(name: str) -> None:
    program, (c, *_) = found("pool")[0]
    change, problem = WRONG_GRAPHS[name]
    text = canonical_text(c.graph)
    assert change(text) != text and check_equivalence(lower(program), c.graph, 0).ok
    wrong: MuGraph = parse_mugraph(change(text))
    assert problem in (structure_problem(lower(program), wrong) or "")
    assert not check_equivalence(lower(program), wrong, 0).ok
