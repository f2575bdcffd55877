"""Kernels that differ in nothing that their price follows from are priced once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.algebra.decompose import decompose
from mirage_cli.algebra.graph import Decomposition
from mirage_cli.ir.access_text import parse_access
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import Kernel, Load
from mirage_cli.ir.program import Tensor
from mirage_cli.ir.schedule import KernelSchedule, Schedule, block_sizes
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search import expand, generator, tiles
from mirage_cli.search.cost.alike import nameless, unnamed
from mirage_cli.search.cost.batch import Batch
from mirage_cli.search.cost.memory import read_bytes
from mirage_cli.search.cost.occupancy import Launch
from mirage_cli.search.cost.traffic import side_by_side
from mirage_cli.search.cost.work import Model, models
from mirage_cli.search.cuts import Bounds
from mirage_cli.search.tiles import best_schedule
from mirage_cli.spec.reader import load_spec, parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune import space
from mirage_cli.tune.price import estimates, total_us, totals_us
from mirage_cli.tune.space import first_schedules
from tests.searched import BEST

SPECS = Path(__file__).parents[2] / "search_specs"
TEXT = """
mugraph g float16
dims m=64 k=64
input A f16[m, k]
input B f16[m, k]
input C f32[m, k]
input D f16[m:72, k]
input H bf16[m, k]
output Y f16[m]
kernel k0 generated m:grid k:loop
  X = load A[m, k]
  Z = load B[m, k]
  E[m, k] = mul(X, Z)
  F[m, k] = mul(E, 2)
  Y[m] = sum(F; k)
  store Y[m] = Y
"""
ALIKE = {
    "other values": (("X", "U"), ("Z", "V"), ("E[", "W["), ("(E,", "(W,")),
    "names that change places": (("X = load A", "X = load B"), ("Z = load B", "Z = load A")),
    "loads in another order": (("X = load A[m, k]\n  Z = load B[m, k]", "Z = load B[m, k]\n  X = load A[m, k]"),),
}
OTHERS = {
    "one input for both": (("Z = load B", "Z = load A"),),
    "wider elements": (("Z = load B", "Z = load C"),),
    "another type that is as wide": (("Z = load B", "Z = load H"),),
    "another operator": (("mul(X, Z)", "add(X, Z)"),),
    "one value for both": (("mul(X, Z)", "mul(X, X)"),),
    "another number": (("mul(E, 2)", "mul(E, 3)"),),
    "another role": (("k:loop", "k:tile"),),
    "other strides": (("Z = load B", "Z = load D"),),
}


def kernel(*changes: tuple[str, str]) -> tuple[Kernel, dict[str, int], frozenset[str], dict[str, Tensor]]:
    head, body = TEXT.split("kernel k0")
    for old, new in changes:
        assert old in body
        body = body.replace(old, new)
    graph = parse_mugraph(f"{head}kernel k0{body}")
    return graph.kernels[0], dict(graph.element_bytes), frozenset(), unnamed(graph.inputs)


@pytest.mark.parametrize("name", ALIKE)
def test_names_of_buffers_and_values_do_not_count(name: str) -> None:
    assert nameless(*kernel(*ALIKE[name])) == nameless(*kernel())


@pytest.mark.parametrize("name", OTHERS)
def test_all_else_does(name: str) -> None:
    assert nameless(*kernel(*OTHERS[name])) != nameless(*kernel())


def test_what_a_tuner_may_try_is_ranked_once_for_kernels_that_differ_in_names_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As plans of one program have them. Of each, all choices are the same."""
    ranked: list[str] = []

    def choices(m: Model, *arguments: Any, **named: Any) -> Any:
        ranked.append(m.kernel.name)
        return tiles.choices(m, *arguments, **named)

    monkeypatch.setattr(space, "choices", choices)
    space._in_order.cache_clear()
    changes = {"": (), **ALIKE, "more of it": (("mul(E, 2)", "exp(E)"),)}
    found: dict[str, list[Schedule]] = {}
    counts: list[int] = []
    for name, some in changes.items():
        text = TEXT
        for old, new in some:
            text = text.replace(old, new)
        found[name] = first_schedules(parse_mugraph(text), find_target("h200"), 4)
        counts.append(len(ranked))
    assert counts == [1] * (1 + len(ALIKE)) + [2]
    assert all(found[name] == found[""] for name in ALIKE)


TWICE = """
name: norms
dims: {m: 64, k: 256}
dtype: float16
inputs: {X: [m, k], Y: [m, k]}
program: |
  A = rms_norm(X, k)
  B = rms_norm(Y, k)
outputs: {A: [m, k], B: [m, k]}
"""


def test_what_is_done_twice_is_priced_once_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[str] = []

    def noting(m: Model, *rest: Any) -> Any:
        priced.append(m.kernel.name)
        return best_schedule(m, *rest)

    def found() -> tuple[list[tuple[str, float]], int]:
        priced.clear()
        result = generator.search(lower(parse_spec(TWICE).at()), find_target("h200"))
        return [(c.id, c.predicted_us) for c in result.candidates], len(priced)

    monkeypatch.setattr(generator, "best_schedule", noting)
    candidates, calls = found()
    monkeypatch.setattr(generator, "nameless", lambda *_: object())
    same, more = found()
    assert candidates == same
    assert calls < 0.8 * more


def test_what_an_earlier_search_has_priced_is_not_priced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind copies, most kernels of a program are those that a search has seen without them."""
    target, prices = find_target("h200"), generator.Prices()
    program = lower(parse_spec(TWICE).at())
    first = generator.search(program, target, prices=prices)
    assert prices

    def refuse(m: Model, *_: Any) -> Any:
        pytest.fail(f"priced again: {m.kernel}")

    monkeypatch.setattr(generator, "best_schedule", refuse)
    assert generator.search(program, target, prices=prices).candidates == first.candidates


def test_the_equations_of_an_expansion_are_written_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Counter[expand.Expansion]()
    real = expand.equations

    def noting(d: Decomposition, e: expand.Expansion) -> expand.Equations:
        written[e] += 1
        return real(d, e)

    monkeypatch.setattr(expand, "equations", noting)
    generator.search(lower(parse_spec(TWICE).at()), find_target("h200"))
    assert {*written.values()} == {1}


def test_what_is_asked_for_a_kernel_is_asked_in_an_order_of_its_own() -> None:
    """Not in that of a set, which differs from run to run, and with it what a search counts as cut."""
    d = decompose(lower(load_spec(SPECS / "qknorm_gqa.yaml").at({"h": 2})))
    run = generator._Search(d, find_target("h200"), Bounds(), True, {})  # pyright: ignore[reportPrivateUsage]
    found = [r for f in d.nodes if not d.is_input(f) for r in run.readings((f,))]
    assert any(len(r.needs) > 1 for r in found)
    assert all([*r.needs] == sorted(r.needs, key=lambda f: f.key) for r in found)


OUTPUTS = """
name: outputs
dims: {m: 512, k: 4096}
dtype: bfloat16
inputs: {X: [m, k], P: {dims: [m, k], dtype: float32}}
program: |
  A = X * P
  B = A
  S = max(abs(X), k) * 2
  Q = round(X / S)
outputs: {A: {dims: [m, k], dtype: float32}, B: [m, k], Q: [m, k], S: {dims: [m], dtype: float32}}
"""


TURNED = """
name: turned
dims: {m: 1000, n: 900}
inputs: {X: [m, n]}
program: |
  Q = silu(X)
  T = Q
outputs: {Q: [m, n], T: {dims: [n, m], dtype: float32}}
"""


@pytest.mark.parametrize("spec", [OUTPUTS, TURNED], ids=["types", "orders"])
def test_outputs_are_priced_in_their_own_types_and_orders_and_each_of_one_value(spec: str) -> None:
    """A kernel's price in the search is what the cost model says of its text."""
    target = find_target("h100")
    for plan in generator.search(lower(parse_spec(spec).at()), target).candidates:
        kernels = [float(e.us[0]) for e in estimates(plan.graph, plan.schedule, target).values()]
        gaps = target.costs.gap_us * (len(kernels) - 1)
        assert plan.predicted_us == pytest.approx(sum(kernels) + gaps)


WINDOWS = """
name: windows
dims: {b: 4, t: 1000, c: 512, i: 4}
inputs: {X: [b, t, c], W: [c, i]}
program: |
  O = sum(X[b, t + i - 3, c] * W, i)
outputs: {O: [b, t, c]}
"""


def test_windows_that_overlap_are_read_from_memory_once() -> None:
    target = find_target("h100")
    best = generator.search(lower(parse_spec(WINDOWS).at()), target, bounds=BEST).candidates[0]
    (kernel,) = estimates(best.graph, best.schedule, target).values()
    moved = 2 * (4 * 1000 * 512 + 512 * 4 + 4 * 1000 * 512)
    beyond = 2 * 4 * 3 * 512  # what the first windows reach, in front of the tensor
    assert moved * 0.9999 <= kernel.busy["memory"][0] * target.dram_bytes_per_us <= (moved + beyond) * 1.0001


SCORES = """
name: scores
dims: {b: 8, s: 4096, h: 32, d: 128}
dtype: float16
inputs: {Q: [b, h, d], K: [b, s, h, d], P: [b, h, s]}
program: |
  A = dot(Q, K, d)
  O = dot(P, K, s)
outputs: {A: [b, h, s], O: [b, h, d]}
"""


def test_a_product_with_a_vector_has_registers_for_what_it_adds_up() -> None:
    """No block of these kernels has more elements of d and s than a thread of it has registers."""
    plans = generator.search(lower(parse_spec(SCORES).at()), find_target("h200")).candidates
    kernels = [(p, k) for p in plans for k in p.graph.kernels if len(k.products) == 1]
    assert kernels
    for plan, k in kernels:
        schedule = plan.schedule.kernels[k.name]
        block = block_sizes(k, schedule, plan.graph.sizes)
        assert prod(block.get(a, 1) for a in "bhsd") <= 256 * 32 * schedule.warps, (str(k), schedule)


FUSED = """
mugraph lora float16
dims m=2048 k=4096 n=4096 r=16
input X f16[m, k]
input W f16[k, n]
input T f16[m, r]
input B f16[r, n]
output O f16[m, n]
kernel k0 generated m:grid k:loop n:grid r:tile
  X = load X[m, k]
  W = load W[k, n]
  T = load T[m, r]
  B = load B[r, n]
  P[m, n] = dot(X, W; k)
  Q[m, n] = dot(T, B; r)
  O[m, n] = add(P, Q)
  store O[m, n] = O
"""
LARGE = "m=128 k=64 n=256 order=m,k,r,n warps=8 stages=3 overlap"


def predicted(text: str) -> float:
    graph = parse_mugraph(text)
    large = LARGE if "r:tile" in text else LARGE.replace("r,", "")
    schedule = Schedule({"k0": KernelSchedule.parse(large)})
    return total_us(graph, schedule, find_target("h200"))


def test_a_product_that_is_added_to_an_accumulator_has_its_registers() -> None:
    """A product with another use, or in another place of a sum, has its own, and such blocks do not fit with both."""
    twice = FUSED.replace("add(P, Q)", "add(P, S)").replace("  O[m, n]", "  S[m, n] = square(Q)\n  O[m, n]")
    assert math.isinf(predicted(twice))
    assert math.isinf(predicted(FUSED.replace("add", "sub")))
    alone = FUSED.replace("  Q[m, n] = dot(T, B; r)\n", "").replace("add(P, Q)", "neg(P)").replace(" r:tile", "")
    alone = alone.replace("  T = load T[m, r]\n  B = load B[r, n]\n", "")
    assert predicted(FUSED) < 1.05 * predicted(alone)


TWO_LOOPS = """
mugraph g float32
dims m=4096 n=65536
input X f32[m, n]
output O f32[m, n]
kernel k0 generated m:grid n:loop
  X = load X[m, n]
  M[m] = max(X; n)
  E[m, n] = exp_sub(X, M)
  S[m] = sum(E; n)
  O[m, n] = div(E, S)
  store O[m, n] = O
"""


@pytest.mark.parametrize(("rows", "columns", "again"), [(4096, 65536, True), (4096, 1024, False), (16, 65536, False)])
def test_what_a_loop_reads_again_costs_memory_where_the_l2_has_lost_it(rows: int, columns: int, again: bool) -> None:
    target = find_target("h100")
    graph = parse_mugraph(TWO_LOOPS).resized({"m": rows, "n": columns})
    schedule = KernelSchedule((("m", 1), ("n", 1024)), ("m", "n"))
    without, with_it = (
        float(totals_us(graph, [Schedule({"k0": schedule})], target, off)[0]) for off in ({"again"}, ())
    )
    assert with_it > 1.1 * without if again else with_it == without


NEIGHBOURS = """
mugraph g float32
dims y=4096 x=4096 p=2048
input U f32[y, x]
output O f32[y, p]
kernel k0 generated y:grid p:grid
  A = load U[{first}]
  B = load U[{second}]
  O[y, p] = add(A, B)
  store O[y, p] = O
"""


@pytest.mark.parametrize(
    ("first", "second", "read"),
    [
        ("y, p", "y, p + 2048", 4096 * 4096),
        ("y + 1, p", "y - 1, p", 4097 * 2048),
        ("y, p*2", "y, p*2 + 1", 4096 * 4096),
        ("y, p//2", "y, p//2 + 1", 4096 * 1025),
    ],
    ids=["two slices", "neighbours", "pairs", "rows in a row"],
)
def test_neighbours_are_read_from_memory_once(first: str, second: str, read: int) -> None:
    graph = parse_mugraph(NEIGHBOURS.format(first=first, second=second))
    schedule = {"k0": KernelSchedule((("y", 1), ("p", 512)), ("y", "p"))}
    (m,) = models(graph).values()
    launch = Launch.of(m, Batch.of(m, [schedule["k0"]], graph.sizes), graph.sizes, find_target("h100"), ())
    assert float(read_bytes(launch)[0]) == 4 * read


TABLE = """
mugraph table float32
dims n=ROWS k=65536 p=256
input S f32[n, p]
input I i32[k] below n
output O f32[k, p]
kernel k0 generated k:grid p:grid
  A = load S[I{n}[k], p]
  O[k, p] = mul(A, 2)
  store O[k, p] = O
"""


@pytest.mark.parametrize(("rows", "read"), [(128, 128), (32768, 32768), (65536, 65536), (131072, 65536)])
def test_rows_that_a_table_names_again_come_from_the_l2_as_far_as_they_are_there(rows: int, read: int) -> None:
    graph = parse_mugraph(TABLE.replace("ROWS", str(rows)))
    schedule = {"k0": KernelSchedule((("k", 1), ("p", 256)), ("k", "p"))}
    (m,) = models(graph).values()
    h100 = find_target("h100")
    launch = Launch.of(m, Batch.of(m, [schedule["k0"]], graph.sizes), graph.sizes, h100, ())
    table = 4 * 65536
    assert float(read_bytes(launch)[0]) == table + 1024 * read
    few = Launch.of(m, launch.batch, graph.sizes, replace(h100, l2_bytes=8 << 20), ())
    found = float(read_bytes(few)[0]) - table
    assert found > 1024 * read if 8192 < rows < 65536 else found == 1024 * read


def test_rows_that_a_table_names_are_read_once_under_two_names() -> None:
    text = TABLE.replace("ROWS", "131072").replace("k=65536", "k=4096 i=16 j=16").replace("I i32[k]", "I i32[k, i]")
    text = text.replace("O f32[k, p]", "O f32[k, i, j]").replace("k:grid p:grid", "k:grid i:grid j:grid p:tile")
    text = text.replace("  A = load S[I{n}[k], p]\n", "  A = load S[I{n}[k, i], p]\n  B = load S[I{n}[k, j], p]\n")
    text = text.replace("O[k, p] = mul(A, 2)", "O[k, i, j] = dot(A, B; p)").replace("store O[k, p]", "store O[k, i, j]")
    graph = parse_mugraph(text)
    schedule = KernelSchedule((("k", 1), ("i", 16), ("j", 16)), ("k", "i", "j", "p"))
    (m,) = models(graph).values()
    launch = Launch.of(m, Batch.of(m, [schedule], graph.sizes), graph.sizes, find_target("h100"), ())
    assert float(read_bytes(launch)[0]) == 4 * (1 + 256) * 4096 * 16


def test_loops_that_data_end_are_tried_in_chunks_and_priced_as_they_were_measured() -> None:
    """Microseconds on an H200 in results/h200/notes-2026-11-27.md, of ragged decoding with 2 to 16 chunks. Chunks that
    have no work cost nothing, and in few the longest runs alone."""
    program = lower(load_spec("search_specs/ragged_decode.yaml").at())
    h200 = find_target("h200")
    graph = next(c.graph for c in generator.search(program, h200).candidates if any(k.split for k in c.graph.kernels))
    measured = {2: 140.3, 4: 95.0, 8: 79.1, 16: 75.8}
    first = first_schedules(graph, h200, 12)
    assert {s.kernels["k0"].split for s in first} >= {4, 8, 16}
    base = first[0]
    own = replace(base.kernels["k0"], tiles=(("b", 1), ("g", 1), ("r", 16), ("s", 64)), warps=2, stages=2)
    schedules = [replace(base, kernels={**base.kernels, "k0": replace(own, split=n)}) for n in measured]
    predicted = dict(zip(measured, totals_us(graph, schedules, h200), strict=True))
    assert predicted[2] > 1.15 * predicted[4] > 1.15 * predicted[8]
    assert predicted[16] < 1.2 * min(predicted.values())


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ("T{v}[m], k", ("k",)),
        ("b, T{v}[m]", ()),
        ("b, T{v}[b, m], m", ()),
        ("T{v}[m], b, m", ("b",)),
        ("T{v}[b, m//16], m%16, k", ("m", "k")),
        ("b, m + T{v}[b]", ("m",)),
        ("y, (x - T{v}[q] + 1)%2048", ("x",)),
        ("T{v}[q], (x - T{v}[q])%64, k", ("x", "k")),
        ("2*((x - T{v}[q])%64), k", ("k",)),
        ("b, 2*m + T{v}[b]", ()),
        ("b, m + T{v}[b, m]", ()),
        ("m, k", ("m", "k")),
    ],
)
def test_what_a_table_names_lies_anywhere(access: str, expected: tuple[str, ...]) -> None:
    """Also beside other elements of the table. What is added to it runs on from there."""
    assert side_by_side(Load("x", "X", parse_access(access)), None) == expected


def test_operands_behind_a_loop_that_registers_do_not_hold_come_one_after_the_other() -> None:
    """They are not loaded in front of it, as a few are. Of two products, the second is summed at once."""
    text = """
mugraph cell bfloat16
dims m=64 n=64 k=256 j={j}
input X bf16[m, k]
input W bf16[n, k]
input H bf16[m, j]
input U bf16[n, j]
output O bf16[m, n]

kernel k0 generated m:grid n:grid k:loop j:tile
  X = load X[m, k]
  W = load W[n, k]
  H = load H[m, j]
  U = load U[n, j]
  a[m, n] = dot(X, W; k)
  b[m, n] = dot(H, U; j)
  O[m, n] = add(a, b)
  store O[m, n] = O
"""

    def latency_us(j: int) -> float:
        graph = parse_mugraph(text.format(j=j))
        s = Schedule({"k0": KernelSchedule((("m", 64), ("n", 16), ("k", 64)), ("m", "k", "j", "n"), 4, 3)})
        return float(estimates(graph, s, h200)["k0"].busy["latency"][0])

    h200 = find_target("h200")
    costs = h200.costs
    held, beyond = map(latency_us, (512, 1024))
    words = (64 + 16) * 1024 * 2 / 4 / 128
    assert beyond - held == pytest.approx(costs.latency_us * words / 64 - costs.fast_us)
