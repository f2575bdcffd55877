"""Plans of kernels: what they hold, what `check` refuses, and which schedules have the same."""

from __future__ import annotations

import ast
import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.codegen import nodes, plan
from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.check import PlanError, check
from mirage_cli.codegen.parts import launch_sizes
from mirage_cli.codegen.plan import Beside, Instances, KernelPlan, Statement
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.codegen.triton import emit_kernel
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import WORDS, KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.tune.normal import normalised
from tests.codegen.test_golden_triton import FILES, given
from tests.mugraphs import CASES

GOLDEN = Path(__file__).parents[1] / "golden" / "plan"
SHOWN = ("attention_decode", "causal_attention")


def plans(graph: MuGraph, schedule: Schedule) -> tuple[KernelPlan, ...]:
    sizes = launch_sizes(graph, schedule)
    return tuple(plan_kernel(graph, k, schedule, sizes) for k in graph.kernels if k.kind == "generated")


def golden(name: str) -> tuple[KernelPlan, ...]:
    (path,) = (p for p in FILES if p.stem == name)
    return plans(*given(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", SHOWN)
def test_a_plan_prints(name: str) -> None:
    text = "\n".join(map(str, golden(name)))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


# -- what check refuses

Change = Callable[[Statement], list[Statement]]


def changed(p: KernelPlan, change: Change) -> KernelPlan:
    """Each statement replaced by what `change` makes of it, those in loops first."""

    def inside(some: tuple[Statement, ...]) -> tuple[Statement, ...]:
        deep = [replace(s, body=inside(s.body)) if isinstance(s, plan.Loop) else s for s in some]
        return tuple(x for s in deep for x in change(s))

    return replace(p, statements=inside(p.statements))


def without(kind: type[Statement], **having: Any) -> Change:
    """Without statements of this kind that have these fields."""
    return lambda s: [] if isinstance(s, kind) and all(getattr(s, n) == x for n, x in having.items()) else [s]


def with_fields(kind: type[Statement], **fields: Any) -> Change:
    return lambda s: [replace(s, **fields) if isinstance(s, kind) else s]


def bare(x: Any) -> Any:
    """A block without masks."""
    if isinstance(x, nodes.Masked):
        return bare(x.x)
    if isinstance(x, nodes.Reduce | nodes.Cast | nodes.MatrixType | nodes.Permuted | nodes.Reshaped):
        return replace(x, x=bare(x.x))
    return replace(x, left=bare(x.left), right=bare(x.right)) if isinstance(x, nodes.Dot) else x


def unmasked(s: Statement) -> list[Statement]:
    if isinstance(s, plan.Let):
        return [replace(s, expr=bare(s.expr))]
    return [replace(s, block=bare(s.block)) if isinstance(s, plan.Accumulate | plan.Advance) else s]


def permuted(s: Statement) -> list[Statement]:
    if isinstance(s, plan.Let) and isinstance(s.expr, nodes.Permuted):
        return [replace(s, expr=s.expr.x)]
    if isinstance(s, plan.Let) and isinstance(s.expr, nodes.Dot):
        return [replace(s, expr=replace(s.expr, left=s.expr.right, right=s.expr.left))]
    return [s]


def pads(graph: str, dims: str, tiles: str) -> KernelPlan:
    """The plan of a known μGraph at sizes that are no multiples of its tiles."""
    g = parse_mugraph(re.sub(r"dims .*", f"dims {dims}", CASES[graph].text))
    order = ",".join(d for d, _ in g.kernels[0].roles)
    return plans(g, Schedule.parse(f"k0: {tiles} order={order} warps=4 stages=2"))[0]


def padded_rmsnorm() -> KernelPlan:
    return pads("rmsnorm_linear", "m=50 k=100 n=90", "m=16 k=32 n=32")


def relu_of_product() -> KernelPlan:
    return pads("two_outputs", "m=50 k=100 n=90", "m=16 k=32")


def decode() -> KernelPlan:
    return golden("attention_decode")[0]


def merge() -> KernelPlan:
    return golden("attention_decode")[1]


def uneven() -> KernelPlan:
    """A split kernel that overlaps, of rows that end at lengths: chunks without work leave."""
    tiles = {"k0": (("t", 1), ("s", 16)), "k1": (("t", 1), ("s_split", 1))}
    axes = {"k0": ("t", "s", "d"), "k1": ("t", "s_split", "d")}
    some = {k: KernelSchedule(tiles[k], axes[k], split=4 if k == "k0" else 1, overlap=True) for k in tiles}
    return plans(CASES["ragged"].graph, Schedule(some))[0]


WRONG: dict[str, tuple[Callable[[], KernelPlan], Change, str]] = {
    "a value is not loaded": (decode, without(plan.Load, out="Q"), "Q is used before it is defined"),
    "an accumulator is not there": (decode, without(plan.Initialise, out="v0"), "v0 is used before it is defined"),
    "a maximum does not move": (decode, without(plan.Advance), "the maximum t2 has not moved"),
    "positions are not known": (decode, without(plan.Positions, dim="b"), "the positions along b are not known"),
    "a mark is not set": (lambda: golden("causal_attention")[0], without(plan.SetMark), "is used before it is set"),
    "it ends before it has waited": (
        lambda: replace(uneven(), awaited=frozenset()),
        lambda s: [] if isinstance(s, plan.Wait) else [s, plan.Wait()] if isinstance(s, plan.Leave) else [s],
        "the kernel may end before the wait",
    ),
    "it never waits": (merge, without(plan.Wait), "t2_part is read before the wait"),
    "it waits too late": (
        merge,
        lambda s: [] if isinstance(s, plan.Wait) else [plan.Wait(), s] if isinstance(s, plan.Store) else [s],
        "t2_part is read before the wait",
    ),
    "it writes before the wait": (
        lambda: changed(replace(decode(), awaited=frozenset()), without(plan.ReleaseBefore)),
        without(plan.Wait),
        "t2_part is written before the wait",
    ),
    "it waits twice": (decode, lambda s: [s] * 2 if isinstance(s, plan.Wait) else [s], "a wait too many"),
    "it releases twice": (decode, lambda s: [s] * 2 if isinstance(s, plan.Release) else [s], "let start twice"),
    "a load without its mask": (padded_rmsnorm, with_fields(plan.Load, mask=()), "is masked along"),
    "a store without its mask": (padded_rmsnorm, with_fields(plan.Store, mask=()), "Y is masked along"),
    "a maximum over lanes that do not exist": (relu_of_product, unmasked, "max over lanes past the end of n"),
    "a sum over lanes that do not exist, after its loop": (
        lambda: pads("layer_norm", "m=50 k=100", "m=16 k=32"),
        unmasked,
        "sum over lanes past the end of k",
    ),
    "a product of other axes": (decode, permuted, "a product of"),
    "a store of other axes": (
        lambda: golden("attention_prefill")[0],
        lambda s: [replace(s, block=nodes.Permuted(s.block, s.block.axes[::-1])) if isinstance(s, plan.Store) else s],
        "is written with other axes",
    ),
    "steps that skip": (
        decode,
        lambda s: [replace(s, over=replace(s.over, step=100)) if isinstance(s, plan.Loop) else s],
        "steps of no whole tiles",
    ),
    "a value of a loop behind it": (
        decode,
        lambda s: [s, plan.Let("K", nodes.Value("t4", ("g", "s")))] if isinstance(s, plan.Loop) else [s],
        "t4 is used before it is defined",
    ),
    "an accumulator of other axes": (
        padded_rmsnorm,
        lambda s: [replace(s, axes=s.axes[:1]) if isinstance(s, plan.Initialise) else s],
        "has the axes|other axes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused(name: str) -> None:
    make, change, message = WRONG[name]
    right = make()
    check(right)
    with pytest.raises(PlanError, match=message):
        check(changed(right, change))


def test_an_error_shows_the_statements_around_it() -> None:
    with pytest.raises(PlanError) as error:
        check(changed(decode(), without(plan.Load, out="Q")))
    assert str(error.value).splitlines()[-1].strip() == "let t0[g, s] = dot(Q, K, None, None)"


def test_a_product_over_lanes_that_do_not_exist() -> None:
    """k reaches past its end, and the left operand is no load: exp(0) is not 0."""
    graph = parse_mugraph(CASES["nested"].text.replace("k=64", "k=50"))
    schedule = Schedule.parse(
        "k0: m=16 n=16 k=32 order=m,k,n warps=4 stages=2\nk1: m=16 n=16 order=m,n warps=4 stages=2"
    )
    right = plans(graph, schedule)[0]
    check(right)
    with pytest.raises(PlanError, match="lanes past the end of k"):
        check(changed(right, unmasked))


# -- schedules with the same plans


def drawn(graph: MuGraph, schedule: Schedule, rng: random.Random) -> Schedule:
    """The schedule with choices at random."""
    kernels: dict[str, KernelSchedule] = {}
    for name, k in schedule.kernels.items():
        words = {word: rng.choice((False, True) if x is False else (0, 2, 4)) for word, x in WORDS.items()}
        kernels[name] = k.choosing(**words)
    return Schedule(kernels)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_what_the_tuner_takes_away_changes_no_plan(path: Path) -> None:
    graph, schedule = given(path.read_text(encoding="utf-8"))
    rng = random.Random(0)
    for _ in range(20):
        other = drawn(graph, schedule, rng)
        made = plans(graph, other)
        assert plans(graph, normalised(graph, other)) == made
        for p in made:
            check(p)


def test_parts_that_run_side_by_side_have_all_instances_once() -> None:
    graph = CASES["slots"].graph
    tiles = (("t", 4), ("h", 1), ("g", 1), ("f", 8), ("w", 16))
    plan = Schedule({"k0": KernelSchedule(tiles, ("t", "h", "g", "f", "w"))})
    made = plan_kernel(graph, graph.kernels[0], plan, graph.sizes)
    (statement,) = made.statements
    assert isinstance(statement, Beside)
    assert statement.programs == (18, 12) or statement.programs == (12, 18)
    assert made.programs == 30
    check(made)
    bodies = statement.bodies
    from_the_start = tuple(replace(s, first=0) if isinstance(s, Instances) else s for s in bodies[1])
    for wrong in (
        replace(statement, bodies=(bodies[0], from_the_start)),
        replace(statement, programs=(statement.programs[0], statement.programs[1] - 1)),
        replace(statement, bodies=(bodies[0], bodies[0])),
    ):
        with pytest.raises(PlanError):
            check(replace(made, statements=(wrong,)))


@pytest.mark.parametrize("name", CASES)
def test_plans_of_all_sizes_hold(name: str) -> None:
    rng = random.Random(name)
    for _ in range(40):
        text = re.sub(r"=\d+", lambda _: f"={rng.choice((1, 2, 3, 15, 16, 17, 33, 64))}", CASES[name].text)
        graph = CASES[name].graph.resized(parse_mugraph(text).sizes)
        kernels = {
            k.name: KernelSchedule(
                tuple((d, rng.choice((1, 16, 32))) for d in k.with_role("grid", "split", "loop")),
                tuple(rng.sample([d for d, _ in k.roles], len(k.roles))),
                split=3 if k.split else 1,
            )
            for k in graph.kernels
            if k.kind == "generated"
        }
        try:
            made = plans(graph, drawn(graph, Schedule(kernels), rng))
        except EmitError:
            continue
        for p in made:
            check(p)


def test_scalar_positions_of_a_joint_loop_are_64_bits() -> None:
    graph = parse_mugraph(
        """mugraph huge float16
dims m=100000 k=4096 n=16
input X f16[m, k, n]
output Y f32[n]
kernel k0 generated m:loop k:loop n:grid
  X = load X[m, k, n]
  Y[n] = sum(X; m, k)
  store Y[n] = Y
"""
    )
    schedule = Schedule.parse("k0: m=1 k=64 n=16 order=m,k,n warps=4 stages=2")
    source = emit_kernel(graph, graph.kernels[0], schedule, graph.sizes).source
    ast.parse(source)
    assert "i_m = ((step // 64) * 1).to(tl.int64)" in source


@pytest.mark.parametrize("m", [1, 16])
def test_all_positions_of_a_block_are_64_bits(m: int) -> None:
    """15 · 2^28 elements are beyond 32 bits, and the compiler refuses a factor of 2^32."""
    graph = parse_mugraph(
        """mugraph huge float16
dims m=16 k=16384 n=16384
input X f16[m, k, n]
output Y f16[m, k, n]
kernel k0 generated m:grid k:grid n:grid
  X = load X[m, k, n]
  Y[m, k, n] = neg(X)
  store Y[m, k, n] = Y
"""
    )
    schedule = Schedule.parse(f"k0: m={m} k=1 n=1024 order=m,k,n warps=4 stages=2")
    source = emit_kernel(graph, graph.kernels[0], schedule, graph.sizes).source
    positions = {line.split(" = ")[0].strip(): line for line in source.splitlines() if "    i_" in line}
    assert {*positions} == {"i_m", "i_k", "i_n"} and all(".to(tl.int64)" in line for line in positions.values())
    assert ("i_m = tl.arange(0, BLOCK_m).to(tl.int64)" in source) == (m == 16)
