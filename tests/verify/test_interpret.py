"""μGraphs as scheduled against their programs, in float64 and over finite fields; and what may not run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_cli.ir.access import index, plain
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.placement import place
from mirage_cli.ir.program import Program, below, tensor_type
from mirage_cli.ir.reach import Left, left_out, limits
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.verify import interpret, remembered
from mirage_cli.verify.draws import run_draws
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.fieldsemantics import FieldMemory, FieldSemantics
from mirage_cli.verify.floatsemantics import FloatMemory, FloatSemantics
from mirage_cli.verify.interpret import chunks, run_mugraph, run_program, tiles
from mirage_cli.verify.reduced import small_instance
from mirage_cli.verify.remembered import Contents, Remembered, content
from mirage_cli.verify.residues import LEVELS, Residues, aligned
from mirage_cli.verify.semantics import Named, ScheduleFailure
from tests.mugraphs import CASES, Case
from tests.seeds import over_seeds


def floats(program: Program, seed: int) -> dict[str, Named]:
    rng = np.random.default_rng(seed)
    sizes = program.sizes
    draws = {
        t.name: rng.choice(below(t, sizes) or 9, size=tuple(sizes[d] for d in t.dims), replace=not t.distinct)
        if tensor_type(t) == "int"
        else rng.normal(size=tuple(sizes[d] for d in t.dims))
        for t in program.inputs
    }
    positive = program.name == "roots"
    return {t.name: Named(t.dims, np.abs(draws[t.name]) if positive else draws[t.name]) for t in program.inputs}


def agrees_in_float64(case: Case, graph: MuGraph, seed: int) -> bool:
    """Whether a μGraph, at reduced sizes of the seed, gives the program's outputs in float64."""
    sizes, schedule = small_instance(case.program, graph, seed)
    program = case.program.resized(sizes)
    inputs = floats(program, seed)
    semantics = FloatSemantics(sizes)
    want = run_program(program, inputs, semantics)
    try:
        got = run_mugraph(graph.resized(sizes), schedule, inputs, semantics, seed, program)
    except ScheduleFailure:
        return False
    return all(
        np.allclose(
            aligned(want[t.name].data, want[t.name].dims, t.dims),
            got[t.name].data,
            rtol=1e-6,
            atol=1e-9,
            equal_nan=True,
        )
        for t in program.outputs
    )


@pytest.mark.parametrize("name", CASES)
@over_seeds(range(6))
def test_scheduled_graph_computes_its_program(name: str, seed: int) -> None:
    assert agrees_in_float64(CASES[name], CASES[name].graph, seed)


def test_running_maximum_is_safe_where_exp_overflows() -> None:
    case = CASES["split_attention"]
    sizes, schedule = small_instance(case.program, case.graph, 0)
    program = case.program.resized(sizes)
    inputs = floats(program, 0)
    inputs["Q"] = Named(inputs["Q"].dims, inputs["Q"].data * 1e5)
    semantics = FloatSemantics(sizes)
    naive = run_program(program, inputs, semantics)["O"].data
    safe = run_mugraph(case.graph.resized(sizes), schedule, inputs, semantics)["O"].data
    assert not np.isfinite(naive).all()
    assert np.isfinite(safe).all()


@pytest.mark.parametrize(("size", "split", "tile"), [(7, 2, 2), (7, 3, 2), (1, 4, 8), (64, 4, 16), (65, 4, 16)])
def test_chunks_cover_the_dimension_once_in_whole_tiles(size: int, split: int, tile: int) -> None:
    ranges = chunks(size, split, tile)
    assert len(ranges) == split
    assert [i for low, high in ranges for i in range(low, high)] == list(range(size))
    assert all(high == size or (high - low) % tile == 0 for low, high in ranges)
    assert [i for low, high in ranges for a, b in tiles(low, high, tile) for i in range(a, b)] == list(range(size))


def test_order_of_instances_does_not_matter() -> None:
    case = CASES["split_attention"]
    sizes, schedule = small_instance(case.program, case.graph, 1)
    inputs = floats(case.program.resized(sizes), 1)
    runs = [run_mugraph(case.graph.resized(sizes), schedule, inputs, FloatSemantics(sizes), s)["O"] for s in (1, 2)]
    assert (runs[0].data == runs[1].data).all()


def failure(graph: MuGraph, case: Case) -> str:
    sizes, schedule = small_instance(case.program, graph, 0)
    semantics = FieldSemantics(0, sizes)
    program = case.program.resized(sizes)
    inputs = {t.name: semantics.field.draw(t.dims, "float") for t in program.inputs}
    with pytest.raises(ScheduleFailure) as caught:
        run_mugraph(graph.resized(sizes), schedule, inputs, semantics)
    return caught.value.reason


def test_race_is_seen() -> None:
    case = CASES["split_matmul"]
    first, second = case.graph.kernels
    loads = (*first.loads, replace(second.loads[0], out="Z", access=plain(("k", "m", "n"))))
    assert failure(replace(case.graph, kernels=(replace(first, loads=loads), second)), case) == "race"


def test_overlapping_stores_are_seen() -> None:
    case = CASES["two_outputs"]
    text = case.text.replace("  store Y[m, n] = Y", "  store Y[m, n] = Y\n  store Y[m, n] = R")
    assert failure(parse_mugraph(text), case) == "overlapping store"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("off", [-1, 1])
def test_a_merge_that_mistakes_which_chunks_were_stored_is_refused(
    off: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One position too few leaves a chunk out, one too many reads memory that nothing wrote."""
    ragged = CASES["ragged"]
    assert {*left_out(ragged.graph)} == {"Mp", "Lp", "Up"}
    assert check_equivalence(ragged.program, ragged.graph, seed).ok
    right = Left.live
    monkeypatch.setattr(Left, "live", lambda *given: tuple(index(dict(i.terms), i.offset + off) for i in right(*given)))
    verdict = check_equivalence(ragged.program, ragged.graph, seed)
    assert not verdict.ok and "computes another O" in str(verdict)


def test_partial_results_are_stored_everywhere_where_a_reader_does_not_know_the_lengths() -> None:
    """Lengths that a kernel in front computes are in no input."""
    ragged = CASES["ragged"]
    computed = (
        ragged.text.replace("output O", "buffer N i32[t]\noutput O")
        .replace(
            "kernel k0 generated t:grid d",
            "kernel n0 generated t:grid\n  L = load L[B{b}[t]]\n  N[t] = add(L, 0)\n"
            "  store N[t] = N\nkernel k0 generated t:grid d",
        )
        .replace("  L = load L[B{b}[t]]\n  Q", "  L = load N[t]\n  Q")
    )
    assert not left_out(parse_mugraph(computed))


def test_holes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpret, "tiles", lambda low, high, tile: tiles(low, high, tile)[:-1])
    assert failure(CASES["gram"].graph, CASES["gram"]) == "hole"


@pytest.mark.parametrize("name", CASES)
def test_what_instances_share_is_what_each_of_them_computes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    sizes, schedule = small_instance(case.program, case.graph, 4)
    program, graph = case.program.resized(sizes), case.graph.resized(sizes)
    run = run_draws(program, 4, range(1, 4), (1, 2, 3))

    def results() -> dict[str, Residues]:
        return run_mugraph(graph, schedule, run.inputs, run.semantics, 4, program)

    class Forgetful(Remembered):
        def value(self, key: Any, operands: Any, compute: Callable[[], Any]) -> Any:
            return compute()

    monkeypatch.setattr(interpret, "REMEMBERED", Remembered())
    first, again = results(), results()
    computed = len(interpret.REMEMBERED.values)
    monkeypatch.setattr(interpret, "REMEMBERED", Forgetful())
    for value, alone in results().items():
        assert content(alone) == content(first[value]) == content(again[value])
    assert computed > 0


def pointwise(name: str) -> dict[str, frozenset[str]]:
    """Of each kernel of a case."""
    graph = CASES[name].graph
    shared = [interpret._Shared(k, place(k), graph.sizes, lambda _: b"") for k in graph.kernels]
    return {x.kernel.name: x.pointwise for x in shared}


def test_axes_along_which_instances_compute_at_once() -> None:
    """Not where a mask of theirs ends a loop, nor where instances may write what others read."""
    assert pointwise("split_matmul") == {"k0": {"m", "n"}, "k1": {"m", "n"}}
    for name in CASES:
        for kernel in CASES[name].graph.kernels:
            ends = {x.mask for loop in place(kernel).loops for x in limits(kernel, loop)}
            masked = {d for mask in ends for d in kernel.value_dims[mask]}
            changes = {*kernel.read} & {s.buffer for s in kernel.stores}
            assert not pointwise(name)[kernel.name] & (masked if not changes else {*kernel.with_role("grid")})
    assert pointwise("ragged")["k0"] < {*CASES["ragged"].graph.kernels[0].with_role("grid")}


@pytest.mark.parametrize("name", CASES)
def test_instances_compute_at_once_what_each_of_them_computes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    sizes, schedule = small_instance(case.program, case.graph, 5)
    program, graph = case.program.resized(sizes), case.graph.resized(sizes)
    run = run_draws(program, 5, range(1, 4), (1, 2, 3))
    at_once = run_mugraph(graph, schedule, run.inputs, run.semantics, 5, program)
    monkeypatch.setattr(interpret._Shared, "_pointwise", lambda _: frozenset())
    alone = run_mugraph(graph, schedule, run.inputs, run.semantics, 5, program)
    assert {n: content(x) for n, x in alone.items()} == {n: content(x) for n, x in at_once.items()}


def test_a_tile_is_loaded_once_for_all_instances_that_need_it_and_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case, read, write = CASES["split_matmul"], FieldMemory.read, FieldMemory.write
    sizes, schedule = small_instance(case.program, case.graph, 3)
    program, graph = case.program.resized(sizes), case.graph.resized(sizes)
    run = run_draws(program, 3, range(1, 2), (1,))
    found: list[str] = []
    stored: list[str] = []
    monkeypatch.setattr(FieldMemory, "read", lambda m, *at: (found.append(m.name), read(m, *at))[1])
    monkeypatch.setattr(FieldMemory, "write", lambda m, *at: (stored.append(m.name), write(m, *at))[1])
    run_mugraph(graph, schedule, run.inputs, run.semantics, 3, program)
    m, n, k = (len(tiles(0, sizes[d], schedule.kernels["k0"].tile(d))) for d in "mnk")
    assert m > 1 < n and found.count("X") == found.count("W") == k
    (output,) = graph.outputs
    assert stored.count(output.name) == 1


def test_a_mugraph_that_is_run_again_computes_nothing_but_its_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["attention"]
    sizes, schedule = small_instance(case.program, case.graph, 3)
    program, graph = case.program.resized(sizes), case.graph.resized(sizes)
    run = run_draws(program, 3, range(1, 2), (1,))
    applied: list[str] = []
    apply, join = FieldSemantics.apply, FieldSemantics.join
    monkeypatch.setattr(FieldSemantics, "apply", lambda s, op, *rest: (applied.append(op), apply(s, op, *rest))[1])
    monkeypatch.setattr(FieldSemantics, "join", lambda s, op, *rest: (applied.append(op), join(s, op, *rest))[1])
    monkeypatch.setattr(interpret, "REMEMBERED", Remembered())
    for computes in (True, False):
        applied.clear()
        run_mugraph(graph, schedule, run.inputs, run.semantics, 3, program)
        assert bool(applied) is computes


def test_what_a_kernel_writes_to_is_loaded_by_each_instance() -> None:
    """In no order may an instance find there what another one writes."""
    graph = CASES["split_matmul"].graph
    memories: dict[str, FloatMemory] = {}
    for t in graph.inputs:
        memories[t.name] = memory = FloatMemory(t.name, t.dims, (2,) * len(t.dims))
        memory.write((slice(0, 2),) * len(t.dims), t.dims, Named(t.dims, np.ones((2,) * len(t.dims))))
    kernel, contents = graph.kernels[0], Contents(graph, memories)

    def steps(written: str) -> dict[str, bool]:
        shared = interpret._Shared(
            kernel, place(kernel), graph.sizes, lambda n: None if n == written else contents.of(n)
        )
        return {name: x.said is not None for name, x in shared.steps.items()}

    assert all(steps("").values())
    assert [name for name, known in steps("X").items() if not known] == ["X"]


def test_what_is_given_and_written_to_or_written_twice_is_not_known_by_its_content() -> None:
    graph = CASES["append"].graph
    changed = {s.buffer for k in graph.kernels for s in k.stores} & {t.name for t in graph.inputs}
    assert changed and changed <= Contents(graph, {}).changing
    twice = replace(CASES["gram"].graph, kernels=(*CASES["gram"].graph.kernels,) * 2)
    assert {s.buffer for k in twice.kernels for s in k.stores} <= Contents(twice, {}).changing


def test_contents_differ_in_every_part() -> None:
    x = Residues(("a",), "field", np.zeros((LEVELS, 2), dtype=np.int64))
    others = [
        replace(x, dims=("b",)),
        replace(x, data=x.data + 1),
        replace(x, data=x.data.astype(np.uint64)),
        replace(x, valid=(0, 0, 0, 0)),
        replace(x, flags=np.zeros(2, dtype=np.int8)),
        replace(x, taint=np.zeros((LEVELS, 2), dtype=bool)),
        replace(x, sign=1),
        replace(x, large=True),
    ]
    assert len({content(y) for y in (x, *others)}) == 1 + len(others)
    assert content(replace(x, data=x.data.copy())) == content(x)


def test_values_keep_their_operands_and_are_forgotten_together() -> None:
    """The identity of an operand that is gone may become another's."""
    found = Remembered(most_bytes=20_000)
    for n in range(1000):
        operand = Named((), np.array(n))
        made = found.value(("twice", id(operand)), (operand,), lambda x=operand: Named((), 2 * x.data))
        assert made.data == 2 * n
    assert len(found.values) < 50
    assert all(id(operands[0]) == key[1] for key, (_, operands) in found.values.items())


def test_values_that_are_asked_for_stay() -> None:
    found, made = Remembered(most_bytes=20_000), list[int]()
    number = found.number("kept")
    for n in range(1000):
        for m in (0, n):
            found.value((m,), (), lambda m=m: made.append(m))
        assert found.number(n) != number == found.number("kept")
    assert made == [*range(1000)] and len(found.values) < 50
    found.value((1,), (), lambda: made.append(1))
    assert made[-1] == 1


def test_inputs_are_known_without_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of long inputs, hashes would take longer than all else."""
    case, hashed = CASES["split_matmul"], list[Residues]()
    sizes, schedule = small_instance(case.program, case.graph, 3)
    run = run_draws(case.program.resized(sizes), 3, range(1), (0,))
    monkeypatch.setattr(remembered, "content", lambda value: (hashed.append(value), content(value))[1])
    run_mugraph(case.graph.resized(sizes), schedule, run.inputs, run.semantics, 3)
    (partial,) = hashed
    assert partial.dims[1:] == case.graph.buffers[0].dims
