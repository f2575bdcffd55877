"""How far loops go under masks: what is skipped changes nothing, and what is left out of the mask needs none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from time import process_time
from typing import Any

import numpy as np
import pytest
import torch

from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.drawn import skewed
from mirage_cli.ir.masked import product_flops
from mirage_cli.ir.masked import program_bytes as moved
from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.placement import Loop, place
from mirage_cli.ir.program import Drawn, Program, Tensor
from mirage_cli.ir.reach import SAMPLES, Limit, Linear, idle, limits, made_by, visited
from mirage_cli.ir.schedule import Schedule
from mirage_cli.pipeline.problem import floor_of
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.cuts import Bounds
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import reduced_schedule
from mirage_cli.tune.lanes import at_once
from mirage_cli.tune.outputs import poison
from mirage_cli.tune.space import first_schedules
from mirage_cli.verify.equivalence import check_equivalence
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
    "hidden": "where(index(s) > index(q), -inf, A)",
    "hidden outside a window": "where(index(q) < index(s) or index(q) - index(s) >= 20, -inf, A)",
    "hidden in front": "where(not (index(s) >= index(q)), -inf, A)",
    "hidden beyond lengths": "where(index(s) > L, -inf, A)",
    "added": "A + where(index(q) >= index(s), 0, -inf)",
    "every second": "where(2 * index(s) <= index(q), A, -inf)",
    "hidden by both": "where(index(s) > index(q) and index(s) > 5, -inf, A)",
    "either": "where(index(s) <= index(q) or index(s) < 5, A, -inf)",
    "sinks": "where(index(s) <= index(q) and (index(s) > index(q) - 20 or index(s) < 4), A, -inf)",
    "hidden but for sinks": "where(index(s) > index(q) or (index(s) <= index(q) - 20 and not index(s) < 4), -inf, A)",
    "sinks in front of lengths": "where(index(s) <= L and (index(s) > L - 30 or index(s) < 5), A, -inf)",
    "sinks of both sides": "where((index(s) < index(q) + 9 and index(s) > index(q) - 9) or index(s) < 4, A, -inf)",
    "one position": "where(index(s) == index(q), A, -inf)",
    "not to zero weight": "where(index(q) >= index(s), A, 0)",
    "blocks so far": "where(index(s) // 16 <= index(q) // 16, A, -inf)",
    "blocks in front": "where(index(s) // 16 < index(q) // 16, A, -inf)",
    "blocks from here": "where(index(s) // 16 >= index(q) // 16, A, -inf)",
    "own block": "where(index(s) // 16 == index(q) // 16 and index(s) <= index(q), A, -inf)",
    "near": "where(abs(index(s) - index(q)) <= 12, A, -inf)",
    "hidden afar": "where(abs(index(q) - index(s)) > 12, -inf, A)",
    "neighbours": "where(abs(maximum(minimum(index(q), s - 6), 5) - index(s)) <= 5, A, -inf)",
    "neighbours in rows of 9": "where(abs(index(s) // 9 - maximum(minimum(index(q) // 9, 7), 1)) <= 1 and "
    "abs(index(s) % 9 - index(q) % 9) <= 1, A, -inf)",
    "near, or first": "where(abs(index(q) - index(s)) <= 12 or index(s) < 5, A, -inf)",
    "neither near nor far": "where(abs(index(s) - index(q)) >= 12, A, -inf)",
    "a corner": "where(maximum(index(s), index(q)) < 50, A, -inf)",
    "less than the larger": "where(index(s) < maximum(index(q), 20), A, -inf)",
    "more than neither": "where(maximum(index(s) - index(q), index(s) - 70) <= 0, A, -inf)",
    "every second row": "where(index(s) % 2 <= index(q) % 2, A, -inf)",
}
SKIPS = {"causal", "strictly causal, the first row empty", "window", "looking ahead", "shifted", "lengths", "added",
         "hidden", "hidden outside a window", "hidden in front", "hidden beyond lengths", "hidden by both", "either",
         "sinks", "hidden but for sinks", "sinks in front of lengths", "sinks of both sides",
         "one position", "blocks so far", "blocks in front", "blocks from here", "own block", "near", "hidden afar",
         "neighbours", "neighbours in rows of 9", "less than the larger", "more than neither"}  # fmt: skip


def bytes_of(program: Program) -> int:
    return sum(moved(program))


@cache
def fused(mask: str) -> tuple[Program, MuGraph, Schedule]:
    """The best μGraph of one kernel, and a schedule of it."""
    text = SPEC.replace("MASK", MASKS[mask])
    if "L" not in MASKS[mask]:
        text = text.replace("  L: {dims: [h], dtype: int32}\n", "")
    program = parse_spec(text).at()
    found = search_program(program, H200, Options(bounds=Bounds(kernels=1)))
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
        outputs = [poison(torch.empty((2, 75, 16), dtype=torch.float16))]
        module.launch(inputs, outputs, module.make_scratch("cpu"))
        return outputs

    eager: Any = names["reference"]
    verdict = judge(small, run, eager, distributions=["normal", "large"], at_once=at_once)
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
        ("hidden", [(False, 0)]),
        ("hidden outside a window", [(False, 0), (True, -19)]),
        ("hidden in front", [(True, 0)]),
        ("hidden by both", [(False, 0)]),
        ("either", [(False, 0)]),
        ("sinks", [(False, 0), (True, -19)]),
        ("sinks of both sides", [(False, 8), (True, -8)]),
        ("one position", [(False, 0), (True, 0)]),
        ("not to zero weight", []),
        ("blocks so far", [(False, 15)]),
        ("blocks in front", [(False, -1)]),
        ("blocks from here", [(True, 0)]),
        ("own block", [(False, 15), (True, 0), (False, 0)]),
        ("near", [(False, 12), (True, -12)]),
        ("hidden afar", [(False, 12), (True, -12)]),
        ("neighbours", [(False, 5), (True, -5)]),
        ("neighbours in rows of 9", [(False, 17), (True, -9)]),
        ("near, or first", []),
        ("a corner", []),
        ("more than neither", [(False, 0), (False, 70)]),
    ],
)
def test_limits(mask: str, expected: list[tuple[bool, int]]) -> None:
    (kernel,) = fused(mask)[1].kernels
    assert sorted(found_limits(kernel)) == sorted(expected)


@pytest.mark.parametrize(
    "mask",
    [
        *("window", "either", "hidden by both", "sinks", "hidden but for sinks", "sinks of both sides"),
        *("blocks so far", "own block", "near", "less than the larger"),
    ],
)
def test_loops_are_expected_to_visit_what_the_mask_leaves(mask: str) -> None:
    """The mean and the most over the rows, of 17 of which each of these samples is one."""
    (kernel,) = fused(mask)[1].kernels
    (loop,) = place(kernel).loops
    q, s = np.arange(0, 401, 25)[:, None], np.arange(401)
    holds = {
        "window": (s <= q) & (q - s < 20),
        "either": (s <= q) | (s < 5),
        "hidden by both": (s <= q) | (s <= 5),
        "sinks": (s <= q) & ((s > q - 20) | (s < 4)),
        "hidden but for sinks": (s <= q) & ((s > q - 20) | (s < 4)),
        "sinks of both sides": ((s < q + 9) & (s > q - 9)) | (s < 4),
        "blocks so far": s // 16 <= q // 16,
        "own block": (s // 16 == q // 16) & (s <= q),
        "near": abs(s - q) <= 12,
        "less than the larger": s < np.maximum(q, 20),
    }[mask]
    rows = holds.mean(axis=1)
    ends = limits(kernel, loop)
    made = {v: m for x in ends for kind, v in x.leaves if kind == "made" and (m := made_by(kernel, v))}
    found = visited(ends, {"h": 2, "q": 401, "s": 401}, made)
    assert found[:2] == (pytest.approx(rows.mean()), pytest.approx(rows.max()))
    assert found.touched(1) == pytest.approx(rows.mean())
    assert found.touched(401) == pytest.approx(1.0, abs=3e-3)  # by one row or another


@pytest.mark.parametrize("mask", ["sinks", "hidden but for sinks"])
def test_what_lies_between_sinks_and_a_window_is_not_loaded(mask: str) -> None:
    """NaN there changes nothing, and whole tiles have no mask."""
    _, graph, schedule = fused(mask)
    sizes = {"h": 1, "q": 256, "s": 256, "d": 16, "e": 16}
    small = reduced_schedule(graph.resized(sizes), schedule)
    source = kernels_source(graph.resized(sizes), small)
    module = load_export(source)
    q, k, v = (torch.randn(1, 256, 16).half() for _ in range(3))
    tile = dict(small.kernels[graph.kernels[0].name].tiles)
    row, width = 255 // tile["q"] * tile["q"], tile["s"]
    first, last = -(-4 // width) * width, (row - 19) // width * width
    assert 0 < first < last
    outputs = torch.empty(2, 1, 256, 16).half()
    for y in outputs:
        module.launch([q, k, v], [y], module.make_scratch("cpu"))
        v[:, first:last] = k[:, first:last] = torch.nan
    assert torch.equal(outputs[0, :, row:], outputs[1, :, row:]) and not outputs[1, :, row:].isnan().any()
    masked = ['float("-inf")' in part for part in source.split("for s_s in range(")[1:]]
    assert masked == [True, True, False, True], source


def test_a_mask_whose_else_counts_is_not_idle() -> None:
    (kernel,) = fused("not to zero weight")[1].kernels
    masks = [e.out for e in kernel.body if e.op in ("le", "ge")]
    assert masks
    assert not any(idle(loop, {m: False}) for loop in place(kernel).loops for m in masks)


@pytest.mark.parametrize("mask", ["causal", "hidden"])
def test_whole_tiles_need_no_mask_and_long_rows_go_first(mask: str) -> None:
    _, graph, schedule = fused(mask)
    source = kernels_source(graph, schedule)
    body = source[source.index("def k0") : source.index("def make_scratch")]
    loops = re.split(r"\n    for ", body)[1:]
    assert len(loops) == 2
    masked = re.compile(r"tl\.where\(.*float\(\"-inf\"\)")
    assert not masked.search(loops[0]) and masked.search(loops[1])
    assert "the longest loops first" in body


# -- loops that are left out

TILES = """\
name: tiles
dims: {e: 3, i: 512, j: 512, k: 512}
inputs:
  X: [e, i, k]
  W: [e, k, j]
  L: {dims: [e], dtype: int32, below: i}
program: |
  O = VALUE + 0 * L
outputs:
  O: [e, i, j]
"""
LEFT_OUT: dict[str, tuple[str, Callable[[Any, Any, Any], Any]]] = {
    "a triangle": ("where(index(i) >= index(j), dot(X, W, k), 0)", lambda i, j, n: i >= j),
    "another value": ("where(index(i) + 3 > 2 * index(j), dot(X, W, k), 7)", lambda i, j, n: i + 3 > 2 * j),
    "rows": ("where(index(i) < L, dot(X, W, k), 0)", lambda i, j, n: i < n),
    "rows that are hidden": ("where(index(i) >= L, 0, dot(X, W, k))", lambda i, j, n: i < n),
    "rows of an operand": ("dot(where(index(i) < L, X, 0), W, k)", lambda i, j, n: i < n),
    "rows of a triangle": (
        "where(index(i) < L and index(i) >= index(j), dot(X, W, k), 0)",
        lambda i, j, n: (i < n) & (i >= j),
    ),
    "all but the first row": ("where(index(i) > 0, dot(X, W, k), 0)", lambda i, j, n: i > 0),
    "either": ("where(index(i) < L or index(j) < 4, dot(X, W, k), 0)", lambda i, j, n: (i >= 0) & (j >= 0)),
    "both sides": ("where(index(i) < L, dot(X, W, k), dot(X, W, k) * 2)", lambda i, j, n: (i >= 0) & (j >= 0)),
}
UNCHANGED = {"either", "both sides"}
NOT_LEFT_OUT = {*UNCHANGED, "all but the first row"}


@cache
def tiled(value: str) -> tuple[Program, MuGraph]:
    """The best μGraph of one kernel without chunks."""
    program = parse_spec(TILES.replace("VALUE", value)).at()
    found = search_program(program, H200, Options(tune=False))
    return program, next(p.graph for p in found.plans if len(p.graph.kernels) == 1 and not p.graph.kernels[0].split)


@pytest.mark.parametrize("what", LEFT_OUT)
def test_loops_without_any_use_are_left_out(what: str) -> None:
    """The kernel is right, and of a tile that its mask empties reads nothing: NaN there changes nothing."""
    value, holds = LEFT_OUT[what]
    program, graph = tiled(value)
    small = program.resized({"e": 3, "i": 70, "j": 75, "k": 33})
    schedule = reduced_schedule(graph.resized(small.sizes), first_schedules(graph, H200, 1)[0])
    source = kernels_source(graph.resized(small.sizes), schedule)
    assert ("end_k" in source) == (what not in NOT_LEFT_OUT), source
    module = load_export(source)
    names: dict[str, object] = {"torch": torch}
    exec(torch_source(small), names)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = [poison(torch.empty((3, 70, 75), dtype=torch.float16))]
        module.launch(inputs, outputs, module.make_scratch("cpu"))
        return outputs

    eager: Any = names["reference"]
    verdict = judge(small, run, eager, distributions=["normal", "large"], at_once=at_once)
    assert verdict.ok, f"{verdict}\n{source}"
    if what in NOT_LEFT_OUT:
        return
    tile = dict(schedule.kernels[graph.kernels[0].name].tiles)
    lengths = torch.tensor([0, 1, 40], dtype=torch.int32)
    i, j = np.ogrid[:70, :75]
    work = np.stack([np.broadcast_to(holds(i, j, n), (70, 75)) for n in lengths.tolist()])
    empty = [row for row in range(0, 70, tile["i"]) if not work[:, row : row + tile["i"]].any()]
    X, W = torch.randn(3, 70, 33).half(), torch.randn(3, 33, 75).half()
    if empty:
        X[:, empty[0] : empty[0] + tile["i"]] = torch.nan
    (output,) = run([X, W, lengths])
    assert not output.isnan().any()


@pytest.mark.parametrize("what", LEFT_OUT)
def test_loops_that_are_left_out_are_not_expected_to_take_time(what: str) -> None:
    """The part of the instances that have a loop: at so many positions and lengths as `visited` samples."""
    value, holds = LEFT_OUT[what]
    program, graph = tiled(value)
    (kernel,) = graph.kernels
    (loop,) = place(kernel).loops
    at = np.linspace(0, 511, 17)
    work = holds(at[:, None, None], at[:, None], at)
    expected = 1.0 if what in UNCHANGED else np.broadcast_to(work, (17, 17, 17)).mean()
    integers = {x.out: t for x in kernel.loads for t in program.inputs if t.name == x.buffer}
    assert visited(limits(kernel, loop), program.sizes, integers).mean == pytest.approx(expected)


def test_the_finite_field_net_refuses_loops_that_are_left_out_where_they_count(monkeypatch: pytest.MonkeyPatch) -> None:
    program, graph = tiled(LEFT_OUT["rows"][0])
    assert check_equivalence(lower(program), graph, 0, tests=1).ok

    def turned(kernel: Kernel, loop: Loop) -> tuple[Limit, ...]:
        return tuple(replace(x, holds=not x.holds) for x in limits(kernel, loop))

    monkeypatch.setattr("mirage_cli.verify.interpret.limits", turned)
    verdict = check_equivalence(lower(program), graph, 0, tests=1)
    assert not verdict.ok and verdict.net == "field"


# -- what masks leave of products

H, Q, S, D, E = 3, 24, 20, 5, 7
LEAVES: dict[str, tuple[str, Callable[[Any, Any, Any], Any]]] = {
    "everything": ("A", lambda h, q, s: s >= 0),
    "causal": (MASKS["causal"], lambda h, q, s: q >= s),
    "strictly causal": ("where(index(s) < index(q), A, -inf)", lambda h, q, s: s < q),
    "window": (
        "where(index(q) >= index(s) and index(q) - index(s) < 4, A, -inf)",
        lambda h, q, s: (q >= s) & (q - s < 4),
    ),
    "looking ahead": (MASKS["looking ahead"], lambda h, q, s: s >= q),
    "shifted": (MASKS["shifted"], lambda h, q, s: s <= q + 7),
    "added": (MASKS["added"], lambda h, q, s: q >= s),
    "every second": (MASKS["every second"], lambda h, q, s: 2 * s <= q),
    "backwards": ("where(3 * index(q) + 2 * index(s) < 50, A, -inf)", lambda h, q, s: 3 * q + 2 * s < 50),
    "either": (MASKS["either"], lambda h, q, s: (s <= q) | (s < 5)),
    "the first": ("where(index(s) < 6, A, -inf)", lambda h, q, s: s < 6),
    "one position": (MASKS["one position"], lambda h, q, s: s == q),
    "all but one": ("where(index(s) != index(q), A, -inf)", lambda h, q, s: s != q),
    "the other way": ("where(index(s) > index(q), -inf, A)", lambda h, q, s: s <= q),
    "a window of each head": (
        "where(index(q) - index(s) < 4 + 2 * index(h) and index(s) <= index(q), A, -inf)",
        lambda h, q, s: (q - s < 4 + 2 * h) & (s <= q),
    ),
    "lengths in the data": (MASKS["lengths"], lambda h, q, s: s < 0),
    "lengths and causal": ("where(index(s) < L and index(s) <= index(q), A, -inf)", lambda h, q, s: s < 0),
}


def masked(mask: str) -> Program:
    """Attention under this mask, at small sizes."""
    text = SPEC.replace("MASK", mask)
    if "L" not in mask:
        text = text.replace("  L: {dims: [h], dtype: int32}\n", "")
    return parse_spec(text).at({"h": H, "q": Q, "s": S, "d": D, "e": E})


@pytest.mark.parametrize("what", LEAVES)
def test_products_count_with_what_masks_leave_of_them(what: str) -> None:
    mask, holds = LEAVES[what]
    left = int(np.broadcast_to(holds(*np.ogrid[:H, :Q, :S]), (H, Q, S)).sum())
    assert product_flops(lower(masked(mask))) == pytest.approx(2 * left * (D + E))


def test_a_mask_that_leaves_a_weight_spares_only_the_product_that_it_hides() -> None:
    left = int((np.arange(Q)[:, None] >= np.arange(S)).sum())
    flops = product_flops(lower(masked(MASKS["not to zero weight"])))
    assert flops == pytest.approx(2 * H * (left * D + Q * S * E))


def test_a_product_behind_one_that_is_masked_is_needed_wherever_any_place_needs_it() -> None:
    """The keys of the first six positions, and no other; under the causal mask, all."""
    spec = SPEC.replace("A = dot(Q, K, d)", "N = dot(K, R, d)\n  A = dot(Q, N, c)").replace(
        "  L: {dims: [h], dtype: int32}\n", ""
    )
    spec = spec.replace("Q: [h, q, d]", "Q: [h, q, c]\n  R: [d, c]").replace("d: 64,", "d: 64, c: 3,")
    sizes = {"h": H, "q": Q, "s": S, "d": D, "e": E}
    for mask, keys, places in (
        ("index(s) < 6", 6, 6 * Q),
        ("index(s) <= index(q)", S, sum(min(i + 1, S) for i in range(Q))),
    ):
        program = parse_spec(spec.replace("MASK", f"where({mask}, A, -inf)")).at(sizes)
        assert product_flops(lower(program)) == pytest.approx(2 * H * (keys * D * 3 + places * (3 + E)))


@pytest.mark.parametrize(("compared", "needed"), [("X > 0", 0.0), ("A > 0", 1.0), ("index(n) < 2 and A > 0", 0.25)])
def test_what_a_mask_of_data_compares_is_needed(compared: str, needed: float) -> None:
    text = f"""\
name: chosen
dims: {{m: 4, k: 8, n: 8}}
inputs:
  X: [m, n]
  Y: [m, k]
  W: [k, n]
program: |
  A = dot(Y, W, k)
  O = X + where({compared}, A, 0)
outputs:
  O: [m, n]
"""
    assert product_flops(lower(parse_spec(text).at())) == needed * 2 * 4 * 8 * 8


def test_the_floor_of_attention_is_the_share_of_its_products_that_the_mask_leaves() -> None:
    def floor(mask: str) -> float:
        return floor_of(parse_spec(SPEC.replace("MASK", mask).replace("h: 2", "h: 32")).at(), H200)

    whole = floor("A + 0 * L")
    assert whole == pytest.approx(2 * 2 * prod((32, 4096, 4096, 64)) / H200.tensor_flops_per_us)
    assert floor(f"{MASKS['causal']} + 0 * L") == pytest.approx(whole * 4097 / 8192)


def test_a_condition_across_beside_one_along_is_counted() -> None:
    """A mask over q and s beside one over d, the longest axis: what each line of d holds depends on q and s."""
    text = """
name: two_masks
dims: {q: 3, s: 4, d: 8}
inputs: {X: [q, d], Y: [s, d]}
program: |
  O = where(index(q) >= index(s), dot(where(index(d) < 4, X, 0), Y, d), 0)
outputs: {O: [q, s]}
"""
    kept = 3 + 2 + 1
    assert product_flops(lower(parse_spec(text).at())) == kept * 2 * 4


def test_a_window_beyond_both_ends_of_a_result_is_counted_where_it_is_inside() -> None:
    text = """
name: window
dims: {b: 2, y: 7, c: 4, e: 5, i: 3}
inputs: {X: [b, y, c], W: [i, c, e]}
program: |
  A = silu(X)
  O = dot(A[b, y + i - 1, c], W, i, c)
outputs: {O: [b, y, e]}
"""
    assert product_flops(lower(parse_spec(text).at())) == pytest.approx(2 * 2 * 4 * 5 * (7 * 3 - 2))


RAGGED = """
name: ragged
dims: {b: 6, t: 9, s: 200, d: 8, p: 50, pages: 300, page: 4}
inputs:
  Q: [b, d]
  K: [pages, page, d]
  V: [pages, page, d]
  P: {dims: [b, p], dtype: int32, below: pages, distinct: true}
  L: {dims: [b], dtype: int32, below: s, drawn: DRAWN}
program: |
  N = K[P[b, s // 4], s % 4, d]
  A = dot(Q, N, d)
  O = dot(softmax(where(index(s) <= L[b], A, -inf), s), V[P[b, s // 4], s % 4, d], s)
outputs:
  O: [b, d]
"""


def test_the_floor_counts_the_lengths_that_are_drawn() -> None:
    """Keys and values of the positions that rows have, and once what is read of the rest: tables, queries, results."""
    program = parse_spec(RAGGED.replace("DRAWN", "skewed")).at()
    positions = sum(n + 1 for n in skewed(6, 200))
    rest = 2 * 6 * 8 * 2 + 6 * 50 * 4 + 6 * 4
    assert bytes_of(lower(program)) == pytest.approx(positions * 2 * 8 * 2 + rest, abs=2)
    assert product_flops(lower(program)) == pytest.approx(positions * 2 * 2 * 8)
    unknown = RAGGED.replace("DRAWN", "evenly"), RAGGED.replace("DRAWN", "skewed").replace("<= L[b]", "<= L[b // 2]")
    for other in (lower(parse_spec(text).at()) for text in unknown):
        assert bytes_of(other) < bytes_of(lower(program)) and product_flops(other) == 0


CONTIGUOUS = """
name: contiguous
dims: {b: 6, s: 200, d: 8}
inputs:
  Q: [b, d]
  K: [b, s, d]
  L: {dims: [b], dtype: int32, below: s, drawn: skewed}
program: |
  A = dot(Q, K, d)
  O = dot(softmax(where(MASK, A, -inf), s), K, s)
outputs:
  O: [b, d]
"""


def test_the_floor_counts_sinks_and_the_window_in_front_of_a_length() -> None:
    text = CONTIGUOUS.replace("MASK", "index(s) <= L and (index(s) > L - 40 or index(s) < 4)")
    s = np.arange(200)
    positions = sum(int(((s <= n) & ((s > n - 40) | (s < 4))).sum()) for n in skewed(6, 200))
    rest = 2 * 6 * 8 * 2 + 6 * 4
    assert bytes_of(lower(parse_spec(text).at())) == pytest.approx(positions * 8 * 2 + rest, abs=2)


def test_of_what_rows_have_side_by_side_the_floor_counts_their_lengths_too() -> None:
    program = parse_spec(CONTIGUOUS.replace("MASK", "index(s) <= L")).at()
    positions, rest = sum(n + 1 for n in skewed(6, 200)), 2 * 6 * 8 * 2 + 6 * 4
    assert bytes_of(lower(program)) == pytest.approx(positions * 8 * 2 + rest, abs=2)


@pytest.mark.parametrize(
    ("mask", "part"), [("index(s) <= L", 0), ("not index(s) > L", 0), ("L > 0", 1), ("index(s) == L", 1)]
)
def test_what_lengths_may_leave_out_is_in_no_floor(mask: str, part: int) -> None:
    """A loop ends where a length says, which may be at once. Other comparisons of data end none."""
    program = parse_spec(CONTIGUOUS.replace(", drawn: skewed", "").replace("MASK", mask)).at()
    keys, rest = 6 * 200 * 8 * 2, 6 * 8 * 2 + 6 * 4
    queries = 6 * 8 * 2 * part
    assert bytes_of(lower(program)) == part * keys + queries + rest


def test_lengths_of_some_rows_are_not_known() -> None:
    """Their order is not: the first rows may be the shortest."""
    some = "index(s) <= L and index(b) < 3"
    program = lower(parse_spec(CONTIGUOUS.replace("MASK", some)).at())
    assert product_flops(program) == 0
    assert product_flops(lower(parse_spec(CONTIGUOUS.replace("MASK", "index(s) <= L")).at())) > 0


@pytest.mark.parametrize(("drawn", "mean"), [("skewed", 0.17), ("evenly", 0.5), ("sorted", 0.5)])
def test_loops_are_expected_to_go_as_far_as_lengths_are_drawn(drawn: Drawn, mean: float) -> None:
    (kernel,) = fused("lengths")[1].kernels
    (loop,) = place(kernel).loops
    found, (leaf,) = limits(kernel, loop), [leaf for x in limits(kernel, loop) for leaf, _ in x.limit.terms]
    lengths = Tensor("L", ("h",), "int32", below="s", drawn=drawn)
    left = visited(found, {"h": 2, "s": 400}, {leaf[1]: lengths})
    assert left[:2] == (pytest.approx(mean, abs=0.02), pytest.approx(1.0))
    assert left.in_work(1) == 1.0
    assert mean < left.in_work(16) < left.in_work(4) < left.in_work(2) < 1.0
    assert left.in_work(400) == pytest.approx(mean, abs=0.02)
    assert visited(found, {"h": 2, "s": 400}, {})[:2] == (1.0, 1.0)


def test_positions_along_many_axes_stand_for_all_in_bounds() -> None:
    """Each has fewer where a mask depends on more."""
    of_axes = [Linear(tuple((("index", f"a{i}"), 1) for i in range(n)), 0) for n in (2, 6)]
    sizes = {"s": 600, **{f"a{i}": 100 for i in range(6)}}
    few, many = (visited([Limit("mask", "s", False, x)], sizes, {}) for x in of_axes)
    assert (few.ends.size, many.ends.size) == (SAMPLES**2, 4**6)
    assert (few.mean, many.mean) == (pytest.approx(100 / 600, abs=0.01), pytest.approx(298 / 600, abs=0.01))


@pytest.mark.parametrize(
    ("drawn", "rows", "mean"),
    [("evenly", 1, 0.5), ("evenly", 3, 0.75), ("evenly", 64, 0.98), ("sorted", 3, 0.5), ("sorted", 32, 0.74)],
)
def test_a_loop_goes_as_far_as_the_longest_of_a_tile(drawn: Drawn, rows: int, mean: float) -> None:
    (kernel,) = fused("lengths")[1].kernels
    (loop,) = place(kernel).loops
    found, (leaf,) = limits(kernel, loop), [leaf for x in limits(kernel, loop) for leaf, _ in x.limit.terms]
    lengths = Tensor("L", ("h",), "int32", below="s", drawn=drawn)
    left = visited(found, {"h": 64, "s": 400}, {leaf[1]: lengths}, {leaf[1]: rows})
    assert left.mean == pytest.approx(mean, abs=0.02)


@pytest.mark.parametrize(
    ("drawn", "rows", "mean"), [("sorted", 1, 1 / 64), ("sorted", 4, 4 / 64), ("evenly", 1, 1 / 6)]
)
def test_what_lies_between_neighbours_of_a_sorted_table_is_short(drawn: Drawn, rows: int, mean: float) -> None:
    """Sequences that lie packed, each up to its end: sums over them go over each element once."""
    program = parse_spec(
        "name: t\ndims: {n: 640000, s: 64}\ninputs: {X: [n], E: {dims: [s], dtype: int32, below: n}}\nprogram: |\n"
        "  O = sum(where(E[s - 1] <= index(n) and index(n) < E, X, 0), n)\noutputs: {O: [s]}\n"
    ).at()
    plans = search_program(program, H200, Options(tune=False)).plans
    found = next(limits(k, loop) for p in plans for k in p.graph.kernels for loop in place(k).loops)
    ends = Tensor("E", ("s",), "int32", below="n", drawn=drawn)
    values = {leaf[1] for x in found for leaf, _ in x.limit.terms}
    left = visited(found, program.sizes, dict.fromkeys(values, ends), dict.fromkeys(values, rows))
    assert len(values) == 2 and left.mean == pytest.approx(mean, rel=0.1)


def test_many_comparisons_that_have_nothing_in_common_take_no_time() -> None:
    """Of 24 axes of two positions, the regions would be 2^24."""
    names = [f"a{i}" for i in range(24)]
    parts = "\n".join(f"  M{a} = sum(where(index({a}) < 1, X, 0), {a})" for a in names)
    dims = ", ".join(f"{a}: 2" for a in names)
    text = (
        f"name: t\ndims: {{k: 8, {dims}}}\ndtype: float32\ninputs: {{X: [k]}}\n"
        f"program: |\n{parts}\n  O = {' + '.join(f'M{a}' for a in names)}\noutputs: {{O: [k]}}\n"
    )
    start = process_time()
    assert bytes_of(lower(parse_spec(text).at())) == 2 * 8 * 4
    assert process_time() - start < 5


def test_a_mask_of_a_later_loop_ends_no_earlier_one() -> None:
    """Both loops go along k. The mean square needs all of it, though what it divides is hidden behind h."""
    program = parse_spec(
        "name: t\ndims: {k: 33, h: 33}\ndtype: float32\ninputs: {X: [k]}\nprogram: |\n"
        "  G = where(index(k) >= index(h), -1, rms_norm(X, k))\noutputs: {G: [k, h]}\n"
    ).at()
    graphs = [plan.graph for plan in search_program(program, H200, Options(tune=False)).plans]
    loops = [(k, loops) for g in graphs for k in g.kernels if len(loops := place(k).loops) == 2]
    assert loops
    for kernel, (first, _) in loops:
        assert limits(kernel, first) == ()
