"""Inputs that are changed in place to what is computed from them: search, verifier, emitter, exports, timing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.errors import SpecError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.pipeline.searching import Plan
from mirage_cli.search.cost.work import chunk_sizes
from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.bench import baseline, run_bench
from mirage_cli.tune.measure import Effort, GpuWorker
from mirage_cli.verify import interpret, structure
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.facts import where_outputs_lie
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.lies import Lies, outputs_of
from mirage_cli.verify.numeric import draw_inputs
from mirage_cli.verify.pieces import as_tuple
from mirage_cli.verify.structure import structure_problem
from tests.searched import searched
from tests.selfchecks import check_itself

SPEC = """\
name: state
dims: {{{dims}}}
dtype: float32
inputs:
{inputs}
program: |
{program}
outputs:
{outputs}
"""


def program(dims: str, inputs: str, lines: str, outputs: str) -> Program:
    """Each a list, separated by semicolons."""
    some = ("\n".join(f"  {x.strip()}" for x in text.split(";")) for text in (inputs, lines, outputs))
    return parse_spec(SPEC.format(dims=dims, **dict(zip(("inputs", "program", "outputs"), some, strict=True)))).at()


LINEAR = program(
    "b: 3, k: 17, v: 9",
    "S: [b, k, v]; Q: [b, k]; K: [b, k]; V: [b, v]; W: [b, k]",
    "N = S * W + K * V; S[b, k, v] = N; O = dot(Q, N, k)",
    "S: {inout: S}; O: [b, v]",
)
DELTA = program(
    "b: 3, k: 16, v: 9, r: 7",
    "S: [r, k, v]; T: {dims: [b], dtype: int32, below: r, distinct: true}; Q: [b, k]; K: [b, k]; V: [b, v]; G: [b]",
    "D = S[T[b], k, v] * G; U = V - dot(K, D, k); N = D + K * U; S[T[b], k, v] = N; O = dot(Q, N, k)",
    "S: {inout: S}; O: [b, v]",
)
IN_TIME = {
    "a state and what it is read by": LINEAR,
    "rows that a table names": DELTA,
    "three tensors": program(
        "n: 1003",
        "P: [n]; M: [n]; V: [n]; G: [n]",
        "A = 0.9 * M + 0.1 * G; B = 0.99 * V + 0.01 * G * G; P[n] = P - A / (sqrt(abs(B)) + 1e-8); M[n] = A; V[n] = B",
        "P: {inout: P}; M: {inout: M}; V: {inout: V}",
    ),
    "a shift along an axis that a block holds": program(
        "b: 5, d: 33, j: 4",
        "C: [b, d, j]; X: [b, d]; W: [d, j]",
        "N = where(index(j) == 3, X, C[b, d, j + 1]); C[b, d, j] = N; O = silu(sum(N * W, j))",
        "C: {inout: C}; O: [b, d]",
    ),
    "rows less their mean": program("m: 5, n: 300", "X: [m, n]", "X[m, n] = X - mean(X, n)", "X: {inout: X}"),
    "two tensors side by side": program(
        "a: 33, b: 65, v: 1003",
        "G: [a, b]; H: [v]; N: []",
        "G[a, b] = G * N; H[v] = H * N",
        "G: {inout: G}; H: {inout: H}",
    ),
    "the old elements too": program(
        "b: 3, k: 17, v: 9",
        "S: [b, k, v]; Q: [b, k]; W: [b, k]",
        "O = dot(Q, S, k); S[b, k, v] = S * W",
        "S: {inout: S}; O: [b, v]",
    ),
    "pairs of two tensors": program(
        "t: 5, h: 33, g: 3, r: 4, d: 8",
        "Q: [t, h, d]; K: [t, g, d]; C: [t, r]; S: [t, r]",
        "a = Q[t, h, 2*r]; b = Q[t, h, 2*r + 1]; c = K[t, g, r]; e = K[t, g, r + 4];"
        "Q[t, h, 2*r] = a * C - b * S; Q[t, h, 2*r + 1] = b * C + a * S;"
        "K[t, g, r] = c * C - e * S; K[t, g, r + 4] = e * C + c * S",
        "Q: {inout: Q}; K: {inout: K}",
    ),
    "packed heads that are normalised and turned": program(
        "t: 5, h: 3, g: 2, d: 8, r: 4, n: 40",
        "X: [t, n]; G: [d]; C: [t, r]; S: [t, r]",
        "Q = rms_norm(X[t, 8*h + d], d) * G; K = rms_norm(X[t, 8*g + d + 24], d);"
        "a = Q[t, h, 2*r]; b = Q[t, h, 2*r + 1]; c = K[t, g, r]; e = K[t, g, r + 4];"
        "X[t, 8*h + 2*r] = a * C - b * S; X[t, 8*h + 2*r + 1] = b * C + a * S;"
        "X[t, 8*g + r + 24] = c * C - e * S; X[t, 8*g + r + 28] = e * C + c * S",
        "X: {inout: X}",
    ),
}
BY_A_COPY = {
    "a shift of a long axis": program("n: 40099", "X: [n]; Y: [n]", "X[n] = X[n - 1] + Y", "X: {inout: X}"),
    "a transposition": program("m: 300, n: 300", "X: [m, n]", "X[m, n] = X[n, m]", "X: {inout: X}"),
    "a sum over the axis that instances share": program(
        "m: 3, n: 300, k: 300", "X: [m, n]; W: [k, n]", "X[m, n] = dot(X[m, k], W, k)", "X: {inout: X}"
    ),
}
EXCHANGED = program("n: 1003", "A: [n]; B: [n]", "T = A * 1; A[n] = B; B[n] = T", "A: {inout: A}; B: {inout: B}")
VIEWS = program(
    "n: 50, w: 100",
    "A: [w]; B: [n]",
    "O = A[2*n + 1]; B[n] = A[2*n]; A[w] = A * 2",
    "A: {inout: A}; B: {inout: B}; O: [n]",
)
WHOLE = program(
    "m: 7, d: 33",
    "C: {dims: [m, d], dtype: int8}; S: [m]",
    "C[m, d] = integer(clamp(round(C * S), -128, 127)); S[m] = abs(S) + 1",
    "C: {inout: C}; S: {inout: S}",
)
EARLY = program(
    "b: 1, k: 300, v: 2",
    "S: [b, k, v]; U: [b, k]; Q: [b, k]; V: [b, v]; W: [b, k, v]",
    "A = silu(V); B = U * abs(dot(Q, S, k)) + W; C = U * dot(U, Q * V, k); V[b, v] = A; W[b, k, v] = B; S[b, k, v] = C",
    "V: {inout: V}; W: {inout: W}; S: {inout: S}",
)
SINGLE = program("b: 3, v: 1", "U: [b]; S: [b, v]", "O = U * S; U[b] = U * 2", "U: {inout: U}; O: [b, v]")
PROGRAMS = {
    **IN_TIME,
    **BY_A_COPY,
    "exchanged": EXCHANGED,
    "views": VIEWS,
    "whole numbers of floats": WHOLE,
    "an axis of one position that the tensor lacks": SINGLE,
    "a store in front of loops that use the old elements": EARLY,
}


def plans(p: Program) -> tuple[Plan, ...]:
    found = searched(p)
    assert not found.rejected, found.rejected
    assert found.plans
    return found.plans


def writes_copies(graph: MuGraph) -> bool:
    return any("_new" in t.name for t in graph.buffers)


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")  # of elements past the end
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_leaves_what_the_old_elements_make(name: str) -> None:
    p = PROGRAMS[name]
    inputs = draw_inputs(p, "normal", torch.device("cpu"), 1)
    want = reference64(p, inputs)
    lies = [Lies(*x) for x in where_outputs_lie(p) or ()]
    module: dict[str, object] = {"torch": torch}
    exec(torch_source(p, "whole"), module)
    exported = (load_export(export_source(p, x.graph, x.schedule)) for x in plans(p)[:3])
    for call in (module["whole"], *(getattr(x, p.name) for x in exported)):
        given = [x.clone() for x in inputs]
        found = call(*given)  # type: ignore[operator]
        for x, y in zip(outputs_of(lies, () if found is None else as_tuple(found), given), want, strict=True):
            torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", IN_TIME)
def test_an_instance_reads_what_it_overwrites_itself(name: str) -> None:
    best = plans(IN_TIME[name])[0]
    assert not writes_copies(best.graph)
    sizes = chunk_sizes(best.graph, best.schedule)
    for kernel in best.graph.kernels:
        text = str(plan_kernel(best.graph, kernel, best.schedule, sizes))
        assert text.index("barrier") < text.index("store")


@pytest.mark.parametrize("name", BY_A_COPY)
def test_what_other_instances_read_is_written_by_a_kernel_behind(name: str) -> None:
    for plan in plans(BY_A_COPY[name]):
        *_, last = plan.graph.kernels
        assert writes_copies(plan.graph)
        assert {s.buffer for s in last.stores} == plan.graph.changed
        assert {x.buffer for x in last.loads}.isdisjoint(plan.graph.changed)


@pytest.mark.parametrize("name", BY_A_COPY)
def test_without_the_copy_two_nets_refuse_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = BY_A_COPY[name]
    plan = next(x for x in plans(p) if len(x.graph.kernels) == 2)
    first, last = plan.graph.kernels
    (store,) = last.stores
    stores = tuple(replace(s, buffer=store.buffer, access=store.access) for s in first.stores)
    graph = replace(plan.graph, buffers=(), kernels=(replace(first, stores=stores),))
    assert structure_problem(lower(p), graph) == "k0 reads X where it may have been overwritten"
    for module in (structure, interpret):
        monkeypatch.setattr(module, "too_late", lambda *_: iter(()))
    assert check_equivalence(lower(p), graph, 0).net == "field"


@pytest.mark.parametrize(
    ("lines", "ok"),
    [
        pytest.param("O = dot(Q, S, k); S[b, k, v] = S * W", True, id="in front of the store"),
        pytest.param("S[b, k, v] = S * W; O = dot(Q, S, k)", False, id="behind it"),
        pytest.param("D = S * 2; S[b, k, v] = S * W; O = dot(Q, D, k)", True, id="of a value made in front of it"),
    ],
)
def test_statements_behind_a_store_read_nothing_that_it_writes(lines: str, ok: bool) -> None:
    given = "b: 3, k: 17, v: 9", "S: [b, k, v]; Q: [b, k]; W: [b, k]", lines, "S: {inout: S}; O: [b, v]"
    if ok:
        program(*given)
    else:
        with pytest.raises(SpecError, match="statements behind it read"):
            program(*given)


def test_eager_calls_are_timed_on_what_the_ones_before_have_left_and_judged_on_what_was_drawn() -> None:
    problem = measured_problem(LINEAR, seed=0)
    with GpuWorker("cpu", context="chain") as worker:
        (row,) = run_bench(worker, problem, [baseline("eager", problem)], Effort(5, 2, 0.05, hot=True))
    assert row.timing is not None, row.failure
    assert row.timing.accuracy is not None and row.timing.accuracy.relative < 1e-6


@pytest.mark.gpu
def test_gpu_a_graph_is_made_without_a_call() -> None:
    plan = plans(LINEAR)[0]
    module = load_export(export_source(LINEAR, plan.graph, plan.schedule))
    inputs = draw_inputs(LINEAR, "normal", torch.device("cuda"), 1)
    lies = [Lies(*x) for x in where_outputs_lie(LINEAR) or ()]
    want = reference64(LINEAR, inputs)
    before = inputs[0].clone()
    replay = module.state_graph(*inputs)
    assert torch.equal(inputs[0], before)
    for x, y in zip(outputs_of(lies, as_tuple(replay()), inputs), want, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-3, atol=1e-3)


def test_an_exported_file_finds_itself_right_and_keeps_the_state_of_a_graph() -> None:
    plan = plans(LINEAR)[0]
    source = export_source(LINEAR, plan.graph, plan.schedule)
    assert "kept = [x.clone() for x in (inputs[0],)]" in source
    assert check_itself(source).code == 0
