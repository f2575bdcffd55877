"""Sizes that are arguments: kernels, and files that serve several sizes, from specs to calls."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from mirage_cli.codegen import plan, scalars
from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.check import PlanError, check
from mirage_cli.codegen.export import ExportInfo, kernels_source, load_export
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.codegen.sized import Variant, any_source, sized_source
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.errors import MirageError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program, Range
from mirage_cli.ir.schedule import Before, FetchedAhead, Schedule
from mirage_cli.ir.text import canonical_text, mugraph_id, parse_mugraph
from mirage_cli.search.assembly import ScheduledGraph
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.compilefarm import CompileFarm, KernelResources
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.tune.lanes import at_once
from mirage_cli.tune.measure import Candidate, TensorSpec
from mirage_cli.verify.equivalence import DYNAMIC_DRAWS, check_equivalence
from mirage_cli.verify.numeric import judge
from mirage_cli.verify.reduced import dynamic_sizes
from mirage_cli.verify.structure import structure_problem
from tests.searched import BEST
from tests.selfchecks import check_itself
from tools.launch_overhead import (
    StubDriver,
    StubKernel,
    chain,
    dynamic_chain,
    inputs_of,
    kernel_names,
    schedule_of,
    stubbed,
)

TARGET = find_target("h200")
DIMS = "{min: 1, max: 90, tune: [1, 16, 48]}"
SPECS = {
    "gated_mlp": f"""
name: gated_mlp
dims: {{m: {DIMS}, k: 48, n: 32}}
inputs: {{X: [m, k], W1: {{dims: [k, n], scale: 0.1}}, W2: {{dims: [k, n], scale: 0.1}}}}
program: O = silu(dot(X, W1, k)) * dot(X, W2, k)
outputs: {{O: [m, n]}}
""",
    "rmsnorm_linear": f"""
name: rmsnorm_linear
dims: {{m: {DIMS}, k: 64, n: 48}}
inputs: {{X: [m, k], G: [k], W: {{dims: [k, n], scale: 0.1}}}}
program: O = dot(rms_norm(X, k) * G, W, k)
outputs: {{O: [m, n]}}
""",
    "lora": f"""
name: lora
dims: {{m: {DIMS}, k: 64, n: 32, r: 16}}
inputs: {{X: [m, k], W: {{dims: [k, n], scale: 0.1}}, A: {{dims: [k, r], scale: 0.1}}, B: {{dims: [r, n], scale: 0.1}}}}
program: O = dot(X, W, k) + dot(dot(X, A, k), B, r)
outputs: {{O: [m, n]}}
""",
    "exponential": f"""
name: exponential
dims: {{m: {DIMS}, n: 32}}
inputs: {{X: [m, n]}}
program: O = exp(X)
outputs: {{O: [m, n]}}
""",
    # the dynamic axis within tensors, side by side with axes that are merged; and in a mask
    "inner": f"""
name: inner
dims: {{b: 2, h: 3, m: {DIMS}, s: 20, d: 16}}
inputs: {{Q: [b, h, m, d], K: [b, h, s, d], V: [b, h, s, d]}}
program: |
  P = softmax(where(index(s) <= index(m) + 3, dot(Q, K, d), -inf), s)
  O = dot(P, V, s)
outputs: {{O: [b, h, m, d]}}
""",
    # rows of sequences of different lengths: tables along the dynamic axis, one behind another; and rows of experts
    "ragged": f"""
name: ragged
dims: {{m: {DIMS}, b: 3, s: 40, d: 16, p: 10, pages: 30, page: 4}}
inputs:
  Q: [m, d]
  K: [pages, page, d]
  P: {{dims: [b, p], dtype: int32, below: pages, distinct: true}}
  B: {{dims: [m], dtype: int32, below: b, drawn: sorted}}
  N: {{dims: [m], dtype: int32, below: s, drawn: skewed}}
program: |
  C = K[P[B[m], s // 4], s % 4, d]
  O = dot(softmax(where(index(s) <= N[m], dot(Q, C, d), -inf), s), C, s)
outputs: {{O: [m, d]}}
""",
    "experts": f"""
name: experts
dims: {{m: {DIMS}, e: 4, k: 48, n: 16}}
inputs: {{X: [m, k], E: {{dims: [m], dtype: int32, below: e}}, W: {{dims: [e, k, n], scale: 0.1}}, G: [e, n]}}
program: O = dot(X, W[E[m], k, n], k) * G[E[m], n]
outputs: {{O: [m, n]}}
""",
}
PROGRAMS = ("gated_mlp", "rmsnorm_linear", "lora", "inner", "ragged", "experts")
SLOW = ("inner", "ragged")
UNTUNED = (2, 3, 5, 7, 8, 13, 15, 17, 19, 23, 31, 32, 33, 37, 47, 49, 53, 64, 65, 90)


@cache
def found(name: str) -> tuple[tuple[Program, ScheduledGraph], ...]:
    """The programs of a spec, with the best candidate of each."""
    target = find_target("h200")
    programs = parse_spec(SPECS[name]).programs()
    return tuple((p, search(lower(merge_axes(p)), target, bounds=BEST).candidates[0]) for p in programs)


@cache
def exported(name: str) -> Any:
    return load_export(sized_source([Variant(p, c.graph, c.schedule, ExportInfo()) for p, c in found(name)]))


def judged(program: Program, call: Callable[..., Any]) -> str | None:
    """Why what a function returns is wrong at the program's sizes."""
    names: dict[str, Any] = {"torch": torch}
    exec(torch_source(program), names)

    def called(xs: Any) -> list[Any]:
        y = call(*xs)
        return [*y] if isinstance(y, tuple) else [y]

    verdict = judge(program, called, names["reference"], "cpu", 3, overflow_like_eager=True, at_once=at_once)
    return None if verdict.ok else str(verdict)


# -- one file for all sizes


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_file_is_right_at_sizes_that_were_not_tuned(name: str) -> None:
    function = getattr(exported(name), name)
    program = found(name)[0][0]
    for m in UNTUNED[:: 4 if name in SLOW else 1]:
        assert judged(program.resized({"m": m}), function) is None, m


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kernel_is_right_in_the_whole_range(name: str, interpreter: Interpreter) -> None:
    for program, c in found(name):
        source = kernels_source(c.graph, c.schedule)
        for m in (1, 33):
            assert interpreter.judge(program.resized({"m": m}), source, 0, True).ok, m


DECODE = """
name: decode
dims: {m: {min: 1, max: 90, tune: [2]}, k: 1024, n: 64}
inputs: {X: [k, m], W: {dims: [k, n], scale: 0.05}}
program: O = silu(dot(X, W, k))
outputs: {O: [n, m]}
"""
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "grouped": {"group": 2},
    "fetching": {"overlap": True, "before": Before.PREFETCH, "ahead": FetchedAhead(2)},
    "by descriptors": {"descriptors": True, "stream": True},
    "one row": {"m": 1},
    "eight columns": {"m": 8},
}


@pytest.mark.parametrize("name", CHOICES)
def test_schedules_are_right_at_other_sizes(
    name: str, interpreter: Interpreter, farm: Callable[[int], CompileFarm]
) -> None:
    """Chunks of a split axis, groups of tiles, prefetches: their counts and strides follow from the size."""
    (program,) = parse_spec(DECODE).programs()
    candidates = search(lower(merge_axes(program)), find_target("h200")).candidates
    graph, schedule = next((c.graph, c.schedule) for c in candidates if any(k.split for k in c.graph.kernels))
    choice = dict(CHOICES[name])
    rows = choice.pop("m", 16)
    kernels = {
        n: replace(s, tiles=tuple((d, rows if d == "m" else min(t, 32)) for d, t in s.tiles), **choice)
        for n, s in schedule.kernels.items()
    }
    source = kernels_source(graph, Schedule(kernels))
    for m in (1, 3) if rows == 1 else (1, 33):
        judged = interpreter.judge(program.resized({"m": m}), source, 0, True)
        assert judged.ok, judged.problem
    assert len(compiled_keys(program, source, (1, 16, 33), farm)) == 1


def test_offsets_beyond_32_bits_are_refused() -> None:
    """Of a buffer: of inputs and outputs, the spec is."""
    _, c = found("lora")[1]
    large = replace(c.graph, dynamic=(Range("m", 1, 1 << 26),))
    with pytest.raises(EmitError, match="offsets beyond 32 bits"):
        kernels_source(large, c.schedule)


def test_kernels_take_the_size_and_no_kernel_has_it() -> None:
    for program, c in found("lora"):
        source = kernels_source(c.graph, c.schedule)
        kernels = [k for k in c.graph.kernels if k.kind == "generated"]
        assert source.count('@triton.jit(do_not_specialize=["SIZE_m"])') == len(kernels)
        assert "SIZE_m: tl.constexpr" not in source
        other = kernels_source(c.graph.resized({"m": 77}), c.schedule)
        assert other == source.replace(f"SIZE_m={program.sizes['m']}", "SIZE_m=77")


@pytest.mark.parametrize(("m", "which"), [(1, 0), (2, 1), (16, 1), (17, 2), (48, 2), (49, 2), (90, 2)])
def test_the_first_kernels_that_are_tuned_for_as_much_serve_a_size(m: int, which: int) -> None:
    module = exported("gated_mlp")
    assert module._which(m) == which


@pytest.mark.parametrize("m", [0, 91])
def test_a_size_outside_of_the_range_is_refused_by_name(m: int) -> None:
    x, w1, w2 = inputs_of(found("gated_mlp")[0][0].resized({"m": m}))
    with pytest.raises(ValueError, match=rf"^m should be 1 to 90, not {m}$"):
        exported("gated_mlp").gated_mlp(x, w1, w2)


def test_inputs_that_do_not_fit_each_other_are_refused() -> None:
    function = exported("inner").inner
    q, k, v = inputs_of(found("inner")[0][0].resized({"m": 5}))
    with pytest.raises(ValueError, match=r"^K should have the shape \(2, 3, 20, 16\), not \(2, 3, 21, 16\)$"):
        function(q, torch.zeros(2, 3, 21, 16, dtype=torch.float16), v)
    with pytest.raises(ValueError, match=r"^Q should have the shape \(2, 3, m, 16\), not \(16,\)$"):
        function(q[0, 0, 0], k, v)
    with pytest.raises(ValueError, match=r"Q should be contiguous"):
        function(q.transpose(0, 1).contiguous().transpose(0, 1), k, v)
    with pytest.raises(TypeError, match=r"V should have the dtype torch.float16, not torch.float32"):
        function(q, k, v.float())


def test_torch_compile_serves_all_sizes_by_one_graph() -> None:
    module = exported("rmsnorm_linear")
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x, g, w: module.rmsnorm_linear(x, g, w) + 1, backend=backend, dynamic=True)
    program = found("rmsnorm_linear")[0][0]
    for m in (5, 17, 16, 49, 90):
        inputs = inputs_of(program.resized({"m": m}))
        assert compiled(*inputs).shape == (m, 48)
    assert len(graphs) == 1
    assert "mirage.rmsnorm_linear" in graphs[0].code


def test_outputs_of_any_size_may_be_there_already() -> None:
    module, source = exported("rmsnorm_linear"), found("rmsnorm_linear")[0][0]
    for m in (5, 17):
        inputs = inputs_of(source.resized({"m": m}))
        out = torch.empty(m, 48, dtype=torch.float16)
        assert module.rmsnorm_linear(*inputs, out=out) is out
        assert torch.equal(out, module.rmsnorm_linear(*inputs))
        with pytest.raises(ValueError, match=rf"contiguous torch.float16\[{m}, 48\] on cpu, not"):
            module.rmsnorm_linear(*inputs, out=torch.empty(m + 1, 48, dtype=torch.float16))


def test_operators_of_any_size_are_sound() -> None:
    """Those of the file: other tests make some of one size."""
    source = sized_source([Variant(p, c.graph, c.schedule, ExportInfo()) for p, c in found("rmsnorm_linear")])
    load_export(source)
    inputs = inputs_of(found("rmsnorm_linear")[0][0].resized({"m": 7}))
    names = {*re.findall(r'"mirage::(\w+)"', source)}
    assert len(names) == 2
    for name in names:
        operator = getattr(torch.ops.mirage, name).default
        given = (*inputs, torch.empty(7, 48, dtype=torch.float16)) if name.endswith("_out") else tuple(inputs)
        torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))


# -- calls by a plan


@pytest.mark.parametrize("library", [False, True])
def test_plans_start_kernels_on_the_grid_and_scratch_of_the_size(driver: StubDriver, library: bool) -> None:
    program, graph = dynamic_chain(3, library)
    started: list[tuple[Any, ...]] = []
    variants = [
        Variant(program.resized({"m": m}), graph.resized({"m": m}), schedule_of(graph), ExportInfo()) for m in (16, 64)
    ]
    module: Any = stubbed(sized_source(variants), lambda: StubKernel(started))
    allocated: list[int] = []
    module._FRESH = module._FRESH._replace(allocate=lambda n, _: (allocated.append(n), 1 << 21)[1])
    for m in (5, 16, 40):  # each of the two plans is made once
        module.stubbed(*inputs_of(program.resized({"m": m})))
    assert sorted(module._KNOWN[0]) == [0, 1]
    counts = [len(getattr(module, name).kernel.dispatched) for name in kernel_names(module)]
    assert counts == [1] * len(counts)
    assert {c[-1] for c in started} == {16}  # the second call of the first plan
    started.clear()
    allocated.clear()
    for m in (1, 16, 17, 33, 100):
        y = module.stubbed(*inputs_of(program.resized({"m": m})))
        assert y.shape == (m, 48)
        tiles = -(-m // 16)
        assert [c[0] for c in started] == [tiles * 3] * (2 if library else 3)
        assert {c[-1] for c in started} == {m}
        assert started[-1][-2] == y.data_ptr()
        needed = -(-m * 48 * 2 // 256) * 256
        assert allocated == [needed * (1 if library else 2)]
        started.clear()
        allocated.clear()
    assert [len(getattr(module, name).kernel.dispatched) for name in kernel_names(module)] == counts


def test_the_known_way_takes_nothing_that_does_not_fit(driver: StubDriver) -> None:
    program, graph = dynamic_chain(1)
    module: Any = stubbed(any_source(Variant(program, graph, schedule_of(graph), ExportInfo())))
    x, w = inputs_of(program.resized({"m": 8}))
    for _ in range(2):
        module.stubbed(x, w)
    for m in (0, 101):
        with pytest.raises(ValueError, match=f"m should be 1 to 100, not {m}"):
            module.stubbed(torch.zeros(m, 64, dtype=torch.float16), w)
    with pytest.raises(ValueError, match="X should have the shape"):
        module.stubbed(torch.zeros(8, 65, dtype=torch.float16), w)
    with pytest.raises(ValueError, match="X should be contiguous"):
        module.stubbed(torch.zeros(8, 128, dtype=torch.float16)[:, ::2], w)


def test_a_call_does_little_more_than_that_of_one_size(driver: StubDriver) -> None:
    """Functions of Python and C that a call of known inputs goes through: for the size one that finds the kernels, and
    one for the grid of each."""
    made: list[list[str]] = []
    for program, graph in (chain(2), dynamic_chain(2)):
        module: Any = stubbed(any_source(Variant(program, graph, schedule_of(graph), ExportInfo())))
        inputs = inputs_of(program)
        for _ in range(2):
            module.stubbed(*inputs)
        made.append(calls_in(lambda module=module, inputs=inputs: module.stubbed(*inputs)))
    one_size, any_size = made
    assert len(one_size) <= 22, one_size
    assert len(any_size) <= len(one_size) + 3, any_size


def calls_in(call: Callable[[], Any]) -> list[str]:
    """The functions that are called, of Python and of C."""
    found: list[str] = []

    def note(frame: Any, event: str, what: Any) -> None:
        if event in ("call", "c_call"):
            found.append(frame.f_code.co_name if event == "call" else what.__name__)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[1:-1]  # without `call` and what ends this


# -- a spec's instances

INSTANCES = """
name: scaled
dims: {m: 5, n: 32}
instances: [{m: 5}, {m: 20}, {m: 5, n: 48}]
inputs: {X: [m, n]}
program: O = exp(X) / n
outputs: {O: [m, n]}
"""


def test_one_file_serves_the_instances_of_a_spec_and_no_other_size() -> None:
    variants = []
    for p in parse_spec(INSTANCES).programs():
        c = search(lower(merge_axes(p)), find_target("h200"), bounds=BEST).candidates[0]
        variants.append(Variant(p, c.graph, c.schedule, ExportInfo()))
    module: Any = load_export(sized_source(variants))
    for v in variants:
        assert judged(v.program, module.scaled) is None
    there = "m=5, n=32; m=5, n=48; m=20, n=32"
    with pytest.raises(ValueError, match=f"^there are kernels for {there}, not for m=20, n=48$"):
        module.scaled(torch.zeros(20, 48, dtype=torch.float16))


APPEND = """
name: append
dims: {t: 5, g: 2, e: 8, w: 16, pages: 6, page: 4, slots: pages*page, n: 48}
instances: [{t: 1}, {t: 5}, {t: 16}]
inputs:
  K: {dims: [t, g, e], strides: [n, e, 1]}
  slot: {dims: [t], dtype: int64, below: slots, distinct: true}
  KC: [pages, page, g, e]
program: |
  KC[slot[t] // 4, slot[t] % 4, g, e] = K * 2
  O[t, g, e] = exp(K)
  O[t, g, e + 8] = sum(K, g) + K
outputs: {KC: {inout: KC}, O: [t, g, w]}
"""
APPEND_ANY = APPEND.replace("instances: [{t: 1}, {t: 5}, {t: 16}]\n", "").replace(
    "t: 5", "t: {min: 1, max: 20, tune: [1, 5, 16]}"
)
APPENDS = {
    APPEND: ((16, 1, 5), 4, "there are kernels for t=1; t=5; t=16, not for t=4"),
    APPEND_ANY: ((16, 1, 20, 7, 3), 21, "t should be 1 to 20, not 21"),
}
"""Of specs, sizes that one file serves, one that it refuses, and what it says."""


@cache
def append(spec: str) -> str:
    """The text of one file for all sizes."""
    plans = [(p, search(lower(merge_axes(p)), TARGET, bounds=BEST).candidates[0]) for p in parse_spec(spec).programs()]
    return sized_source([Variant(p, c.graph, c.schedule, ExportInfo()) for p, c in plans])


@pytest.mark.parametrize("spec", APPENDS, ids=["instances", "dynamic"])
def test_one_file_writes_parts_and_changes_tensors_in_place_at_all_sizes(spec: str) -> None:
    """Slices of a packed tensor too, the stride of whose only row does not matter."""
    module: Any = load_export(append(spec))
    served, other, refused = APPENDS[spec]
    torch.manual_seed(0)

    def apart(k: torch.Tensor, slot: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return module.append(k, slot, cache), cache + 0

    dynamic = None if spec == APPEND else True
    compiled = torch.compile(apart, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for t in served:
        k, slot = torch.randn(t, 48).half()[:, 16:32].unflatten(1, (2, 8)), torch.randperm(24)[:t]
        before = torch.randn(6, 4, 2, 8).half()
        rows = before.clone()
        rows.view(24, 2, 8)[slot] = k * 2
        want = torch.cat([k.float().exp(), k.float().sum(1, keepdim=True) + k], 2)
        for call in (apart, compiled):
            cache = before.clone()
            out, seen = call(k, slot, cache)
            assert torch.equal(cache, rows)
            assert torch.equal(seen, rows)
            torch.testing.assert_close(out.float(), want, atol=1e-2, rtol=1e-2)
    k = torch.randn(other, 48).half()[:, 16:32].unflatten(1, (2, 8))
    with pytest.raises(ValueError, match=f"^{refused}$"):
        module.append(k, torch.randperm(24)[:other], before)


@pytest.mark.parametrize("spec", APPENDS, ids=["instances", "dynamic"])
@pytest.mark.parametrize(
    ("old", "new"), [("", ""), ("(slot_at % 4)", "((slot_at + 1) % 4)"), ("slot_at // 4", "(slot_at + 4) // 4 % 6")]
)
def test_a_file_for_several_sizes_refuses_other_slots(spec: str, old: str, new: str) -> None:
    text = append(spec)
    assert old in text
    assert bool(check_itself(text.replace(old, new) if old else text).code) == bool(old)


def test_sizes_that_no_input_shows_cannot_share_a_file() -> None:
    text = INSTANCES.replace("exp(X) / n", "X + index(m)").replace("X: [m, n]", "X: [n]")
    variants = []
    for p in parse_spec(text).programs()[:2]:
        c = search(lower(merge_axes(p)), find_target("h200"), bounds=BEST).candidates[0]
        variants.append(Variant(p, c.graph, c.schedule, ExportInfo()))
    with pytest.raises(MirageError, match="no input of scaled has the axis m"):
        sized_source(variants)


def test_tables_are_checked_at_the_sizes_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CHECK_TABLES", "1")
    text = """
name: rows
dims: {m: 5, v: 20, n: 32}
instances: [{v: 20}, {m: 7, v: 30}]
inputs: {T: {dims: [m], dtype: int32, below: v, distinct: true}, X: [v, n]}
program: O = exp(X[T[m], n])
outputs: {O: [m, n]}
"""
    variants = []
    for p in parse_spec(text).programs():
        c = search(lower(merge_axes(p)), find_target("h200"), bounds=BEST).candidates[0]
        variants.append(Variant(p, c.graph, c.schedule, ExportInfo()))
    rows = load_export(sized_source(variants)).rows
    for m, v in ((5, 20), (7, 30)):
        X, T = torch.randn(v, 32).half(), torch.randperm(v)[:m].int()
        assert rows(T, X).shape == (m, 32)
        T[1] = v
        with pytest.raises(ValueError, match=f"^T should be from 0 to {v - 1}, and holds \\d+ to {v}$"):
            rows(T, X)
        T[1] = T[0]
        with pytest.raises(ValueError, match=r"^T should hold no number twice$"):
            rows(T, X)
        with pytest.raises(TypeError, match=r"^T should have the dtype"):
            rows(T.float(), X)


def test_tables_are_checked_at_any_dynamic_size(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = exported("experts")
    monkeypatch.setenv("MIRAGE_CHECK_TABLES", "1")
    inputs = inputs_of(found("experts")[0][0].resized({"m": 9}))
    assert module.experts(*inputs).shape == (9, 16)
    inputs[1][3] = 4
    with pytest.raises(ValueError, match=r"^E should be from 0 to 3, and holds"):
        module.experts(*inputs)


# -- compilation


def compiled_keys(
    program: Program, source: str, sizes: Sequence[int], farm: Callable[[int], CompileFarm], dim: str = "m"
) -> set[tuple[str, ...]]:
    """What a text compiles to for sm_90 at these sizes of an axis."""
    found: set[tuple[str, ...]] = set()
    for n in sizes:
        at = program.resized({dim: n})
        inputs, outputs = (
            tuple(TensorSpec(t.name, tuple(at.sizes[d] for d in t.dims), t.dtype) for t in some)
            for some in (at.inputs, at.outputs)
        )
        ((_, kernels),) = farm(90).compile_all([Candidate("dynamic", source, timeout_s=60)], inputs, outputs)
        assert isinstance(kernels, tuple), kernels
        assert all(isinstance(k, KernelResources) and k.spill_bytes == 0 for k in kernels)
        found.add(tuple(k.cache_key for k in kernels))
    return found


def test_one_compilation_serves_all_sizes(farm: Callable[[int], CompileFarm]) -> None:
    for program, c in found("lora"):
        source = kernels_source(c.graph, c.schedule)
        assert len(compiled_keys(program, source, (1, 2, 15, 16, 17, 64, 90), farm)) == 1
        specialized = source.replace('(do_not_specialize=["SIZE_m"])', "")
        assert len(compiled_keys(program, specialized, (1, 15, 16), farm)) > 1


# -- texts and nets


def test_a_dynamic_graph_prints_and_parses() -> None:
    _, c = found("lora")[1]
    assert "\ndynamic m=1..90\n" in canonical_text(c.graph)
    read = parse_mugraph(canonical_text(c.graph))
    assert (read.dynamic, canonical_text(read)) == (c.graph.dynamic, canonical_text(c.graph))
    assert mugraph_id(replace(c.graph, dynamic=())) != mugraph_id(c.graph)


def test_the_field_net_draws_sizes_at_random() -> None:
    program, c = found("gated_mlp")[1]
    verdict = check_equivalence(lower(program), c.graph, 0)
    assert verdict.ok
    tested = {int(n) for t in verdict.tests for n in re.findall(r"\bm=(\d+)", t.split(", k0")[0])}
    assert len(verdict.tests) == 2 * (1 + DYNAMIC_DRAWS)
    assert 1 in tested
    assert max(tested) > 4
    fixed = check_equivalence(replace(lower(program), dynamic=()), replace(c.graph, dynamic=()), 0)
    assert verdict.bound == fixed.bound  # a draw of one row may see less: it is not counted


def test_drawn_sizes_are_parts_of_a_tile_and_several() -> None:
    _, c = found("gated_mlp")[1]
    drawn = [n for seed in range(20) for n in dynamic_sizes(c.graph, Schedule(c.schedule.kernels), seed)]
    (tile,) = {dict(s.tiles)["m"] for s in c.schedule.kernels.values()}
    sizes = {n["m"] for n in drawn}
    assert {1, tile - 1, tile, tile + 1} <= sizes
    assert any(n > 2 * tile and n % tile for n in sizes)


WRONG: Mapping[str, tuple[Callable[[MuGraph], MuGraph], str]] = {
    "another range": (
        lambda g: replace(g, dynamic=(Range("m", 1, 91),)),
        "the dynamic axes are not the program's",
    ),
    "a fixed size": (lambda g: replace(g, dynamic=()), "the dynamic axes are not the program's"),
    "a tile of the whole": (
        lambda g: parse_mugraph(canonical_text(g).replace("m:grid", "m:tile")),
        "k0 holds the dynamic axis m whole",
    ),
}


WRONG_TABLES = {
    "a table by a part of the axis": ("E{e}[m]", "E{e}[m//2]", "along the dynamic axis m by m//2"),
    "the next row of a table": ("E{e}[m]", "E{e}[m + 1]", "along the dynamic axis m by m + 1"),
    "a position beside a table": ("W[E{e}[m]", "W[E{e}[m] + m", "reads W along the dynamic axis e by E{e}[m] + m"),
}
WRONG_STORES = {
    "slots of other rows": ("slot{slots}[t]//4", "slot{slots}[t + 1]//4", "t by t + 1"),
    "a position beside a slot": ("slot{slots}[t]//4", "slot{slots}[t]//4 + t", "pages by slot{slots}[t]//4 + t"),
    "a position for a slot": ("slot{slots}[t]%4", "t%4", "page by t%4"),
    "every second row": ("O[t, g, e]", "O[t*2, g, e]", "t by t*2"),
}
"""What is right where t is 1, and nowhere else."""


@pytest.mark.parametrize("name", WRONG_TABLES)
def test_structure_refuses_tables_that_are_not_read_row_by_row(name: str) -> None:
    program, c = found("experts")[1]
    old, new, problem = WRONG_TABLES[name]
    text = canonical_text(c.graph)
    assert structure_problem(lower(program), c.graph) is None and old in text
    assert problem in (structure_problem(lower(program), parse_mugraph(text.replace(old, new))) or "")


@pytest.mark.parametrize("name", WRONG_STORES)
def test_structure_refuses_stores_that_need_the_size_beforehand(name: str) -> None:
    program = parse_spec(APPEND_ANY).programs()[0]
    graph = search(lower(program), TARGET, bounds=BEST).candidates[0].graph
    old, new, stored = WRONG_STORES[name]
    text = canonical_text(graph)
    assert structure_problem(lower(program), graph) is None and old in text
    wrong = parse_mugraph(text.replace(old, new))
    assert structure_problem(lower(program), wrong) == f"k0 stores along the dynamic axis {stored}"


@pytest.mark.parametrize("name", WRONG)
def test_structure_refuses_what_needs_the_size_beforehand(name: str) -> None:
    program, c = found("gated_mlp")[1]
    change, problem = WRONG[name]
    assert structure_problem(lower(program), c.graph) is None
    assert problem in (structure_problem(lower(program), change(c.graph)) or "")


# -- what must be refused


def changed_plan(change: Callable[[plan.Statement], plan.Statement], **fields: Any) -> plan.KernelPlan:
    _, c = found("gated_mlp")[1]
    made = plan_kernel(c.graph, c.graph.kernels[0], c.schedule, c.graph.sizes)
    check(made)
    return replace(made, statements=tuple(map(change, made.statements)), **fields)


def test_a_grid_of_the_tuned_size_is_refused() -> None:
    def tuned(s: plan.Statement) -> plan.Statement:
        if not isinstance(s, plan.Instances):
            return s
        return replace(s, grid=tuple((d, 1 if isinstance(n, scalars.Tiles) else n) for d, n in s.grid))

    with pytest.raises(PlanError, match="m has another number of tiles"):
        check(changed_plan(tuned))


def test_a_grid_without_the_axis_is_refused() -> None:
    def without(s: plan.Statement) -> plan.Statement:
        return replace(s, grid=tuple(x for x in s.grid if x[0] != "m")) if isinstance(s, plan.Instances) else s

    with pytest.raises(PlanError, match="m has one tile"):
        check(changed_plan(without))


def test_a_plan_without_a_mask_for_the_last_tile_is_refused() -> None:
    _, c = found("gated_mlp")[1]
    made = plan_kernel(c.graph, c.graph.kernels[0], c.schedule, c.graph.sizes)
    dims = tuple(replace(d, padded=False) if d.name == "m" else d for d in made.dims)
    with pytest.raises(PlanError, match="m has no mask, and may end within a tile"):
        check(replace(made, dims=dims))


MUTATIONS = {
    "a grid of the tuned size": (r"-\(-SIZE_m // 16\)", "1"),
    "a grid that is a tile short": (r"-\(-SIZE_m // 16\)", "(SIZE_m // 16)"),
    "a last row that is left out": (r"in_m = i_m < SIZE_m\b", "in_m = i_m < SIZE_m - 1"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_numeric_net_refuses_a_wrong_size(name: str, interpreter: Interpreter) -> None:
    program, c = found("gated_mlp")[1]
    source, count = re.subn(*MUTATIONS[name], kernels_source(c.graph, c.schedule))
    assert count
    sizes = Range("m", 1, 35).some(16)
    assert not all(interpreter.judge(program.resized({"m": m}), source, 0, True).ok for m in sizes)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("1 if SIZE_m <= 16", "1 if SIZE_m <= 15"),
        ("0 if SIZE_m <= 1 ", "0 if SIZE_m <= 2 "),
        ("1 <= SIZE_m <= 90", "1 <= SIZE_m <= 91"),
        ("1 <= SIZE_m <= 90", "0 <= SIZE_m <= 90"),
        ("", ""),
    ],
)
def test_a_files_own_check_refuses_bounds_that_are_off_by_one(right: str, wrong: str) -> None:
    source = sized_source([Variant(p, c.graph, c.schedule, ExportInfo()) for p, c in found("exponential")])
    assert right in source
    done = check_itself(source.replace(right, wrong) if right else source)
    assert bool(done.code) == bool(right), done
    assert ("is served by the kernels" in done.said) == bool(right)


def test_sizes_to_judge_are_the_ends_what_is_near_and_one_between() -> None:
    for least, most, tuned in itertools.product((1, 5), (60, 500), (1, 16, 64)):
        some = Range("m", least, most).some(tuned)
        assert {least, most} <= set(some)
        assert all(least <= n <= most for n in some)
        assert (tuned in some) == (least <= tuned <= most)
