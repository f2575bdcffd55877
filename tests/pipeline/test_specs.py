"""The main job on every spec of `search_specs/`, at the first and the last of its sizes: search, export, and run what
users get, at small odd sizes. `make gpu` does it at all sizes.

Also the data on which a kernel that does not subtract a maximum overflows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import export_source, kernels_source, load_export
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import Schedule
from mirage_cli.pipeline import optimize as optimizing
from mirage_cli.pipeline import predicting, searching, tuning, verifying
from mirage_cli.pipeline.clock import Clock
from mirage_cli.pipeline.optimize import finish
from mirage_cli.pipeline.predicting import check_offline
from mirage_cli.pipeline.problem import floor_of, measured_problem
from mirage_cli.pipeline.searching import Found, Options, Plan, search_program
from mirage_cli.pipeline.session import Session, Silence
from mirage_cli.search.cuts import Bounds
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import load_spec, parse_spec
from mirage_cli.store.results import Result
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.compilefarm import KernelResources
from mirage_cli.tune.interpreted import Interpreter, own_sums, reduced_schedule, reduced_sizes
from mirage_cli.tune.lanes import at_once
from mirage_cli.tune.measure import Judged
from mirage_cli.verify import equivalence
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.numeric import NumericVerdict, draw_inputs, judge
from mirage_cli.verify.pieces import as_tuple
from tests.searched import BEST, USERS, searched

SPECS = Path(__file__).parents[2] / "search_specs"


def ends(sizes: Sequence[Mapping[str, int]]) -> list[Mapping[str, int]]:
    """The first and the last: the kernels of those between are like one of theirs."""
    return [sizes[0], *sizes[1:][-1:]]


INSTANCES = {
    f"{path.stem} {' '.join(f'{d}={n}' for d, n in change.items())}".strip(): (path, change, bounds)
    for path in sorted(SPECS.glob("*.yaml"))
    for change, bounds in zip(ends(load_spec(path).instances or ({},)), (USERS, BEST), strict=False)
}
"""Of the first size all plans that users may get are verified, of the last the best."""
TIMES_EAGER = 2.0
H200 = find_target("h200")


def plans_of(program: Program, bounds: Bounds = USERS) -> tuple[Plan, ...]:
    found = searched(program, bounds)
    assert not found.rejected
    return found.plans


def exported_verdict(program: Program, plan: Plan, variant: int, **options: object) -> NumericVerdict:
    """The verdict on the exported file at small sizes, called as users call it."""
    small = program.resized(reduced_sizes(program, variant))
    graph = plan.graph.resized(small.sizes)
    module = load_export(export_source(small, graph, reduced_schedule(graph, plan.schedule)))
    function = getattr(module, program.name)
    names: dict[str, object] = {"torch": torch}
    exec(torch_source(small.apart()), names)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(as_tuple(function(*inputs)))

    settings = {"eager": names["reference"], "device": "cpu", "seed": variant, "at_once": at_once} | options
    return judge(small, run, **settings)  # type: ignore[arg-type]


def test_verification_side_by_side_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a refusal: of the second of the plans, which is verified here as the first is."""
    program = load_spec(SPECS / "rmsnorm_linear.yaml").at({"m": 2})
    alone = searched(program)
    monkeypatch.setattr(verifying, "SLOW_S", 0.0)
    lowered, (first, *others) = lower(program), [p.graph for p in alone.plans]
    wrong = replace(others[0], kernels=others[0].kernels[:-1])
    clock = Clock(600.0, lambda: False)
    with verifying.Verifier(lowered, [first, wrong, *others], seed=0, workers=2, clock=clock) as verifier:
        verdicts = [verifier.verdict(i) for i in range(len(others) + 2)]
        assert len(verifier.futures) == len(others)
    assert [v for v in verdicts if v.ok] == [p.verdict for p in alone.plans]
    assert verdicts[1] == check_equivalence(lowered, wrong, 0)
    beside = search_program(program, H200, Options(workers=2))
    assert replace(beside, seconds=0.0) == replace(alone, seconds=0.0)


def test_plans_whose_tests_take_long_are_verified_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One test of scans in blocks of 256 takes longer than a short budget: there was nothing but the program as
    written, though other plans are verified in a fraction of a second."""
    program = load_spec(SPECS / "rmsnorm_linear.yaml").at({"m": 2})
    orders: list[list[int]] = []
    for long in ((), (1,)):  # numbers of kernels
        monkeypatch.setattr(equivalence, "takes_long", lambda _, graph, __, long=long: len(graph.kernels) in long)
        told = list[Any]()
        search_program(program, H200, Options(), chosen=lambda *some, told=told: told.append(some))
        ((_, graphs, written),) = told
        orders.append([len(g.kernels) for x, g in graphs.items() if x != written])
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0][0] == 1
    assert orders[1] == sorted(orders[0], key=lambda n: n == 1)


def test_what_will_be_verified_is_told_before_it_is() -> None:
    """So that compilers can begin: every plan is among it, and the program as written."""
    program, told = scaled(64, 64), list[object]()

    def doing(what: str, _: object) -> None:
        if what.startswith("verifying"):
            told.append(what)

    found = search_program(program, H200, Options(), doing=doing, chosen=lambda *some: told.append(some))
    asked, graphs, written = told[0]  # type: ignore[misc]
    assert asked == program and written == found.as_written and {p.id: p.graph for p in found.plans} == graphs
    assert len(told) == 1 + len(graphs)


def test_the_collector_looks_seldom_in_a_search_and_as_before_behind_it() -> None:
    program, before, seen = scaled(64, 64), gc.get_threshold(), set()
    try:
        gc.set_threshold(700, 10, 10)
        search_program(program, H200, Options(), lambda: bool(seen.add(gc.get_threshold())))
        assert seen == {searching.SELDOM} and gc.get_threshold() == (700, 10, 10)
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("name", INSTANCES)
def test_exported_kernels_are_as_exact_as_eager(name: str) -> None:
    path, change, bounds = INSTANCES[name]
    program = load_spec(path).at(change)
    refused: list[str] = []
    for plan in plans_of(program, bounds)[:3]:  # as a search does: what is less exact than eager makes way for the next
        verdicts = [exported_verdict(program, plan, variant) for variant in range(2)]
        if all(v.ok for v in verdicts):
            assert all(v.error <= TIMES_EAGER * v.eager_error for v in verdicts), f"{plan.id}: {verdicts}"
            return
        refused.append(f"{plan.id}: {'; '.join(str(v) for v in verdicts if not v.ok)}")
    pytest.fail("\n".join(refused))


def softmax_attention(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """What gqa.yaml means: its own exp overflows where this does not."""
    return torch.softmax(Q @ K, dim=-1) @ V


@pytest.mark.parametrize("variant", range(4))
@pytest.mark.parametrize("distribution", ["huge", "equal rows", "outlier"])
def test_attention_written_with_a_bare_exp_does_not_overflow(distribution: str, variant: int) -> None:
    program = load_spec(SPECS / "gqa.yaml").at({"h": 2})
    plan = plans_of(program)[0]
    verdict = exported_verdict(
        program,
        plan,
        variant,
        distributions=[distribution],
        eager=softmax_attention,
        reference=lambda inputs: [softmax_attention(*(x.double() for x in inputs))],
        tolerance=TIMES_EAGER,
    )
    assert verdict.ok, f"{plan.id}: {verdict}"


def test_the_data_overflow_what_is_written() -> None:
    program = load_spec(SPECS / "gqa.yaml").at({"h": 2})
    small = program.resized(reduced_sizes(program))
    Q, K, V = draw_inputs(small, "huge", torch.device("cpu"), 0)
    E = torch.exp((Q @ K).float())
    assert not torch.isfinite(E / E.sum(-1, keepdim=True) @ V.float()).all()


def scaled(m: int, k: int) -> Program:
    text = f"name: scaled\ndims: {{m: {m}, k: {k}}}\ndtype: float16\ninputs: {{X: [m, k]}}\n"
    return parse_spec(text + "program: |\n  Y = X / sum(abs(X), k)\noutputs: {Y: [m, k]}\n").at()


Judge = Callable[..., Judged]


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Judge], Session]]:
    """A session without a GPU, in which everything compiles, and that judges plans like this."""
    monkeypatch.setattr(Interpreter, "start", lambda _: None)
    monkeypatch.setattr(predicting, "compiled_offline", lambda _, p, __: [(p.schedule, ())])
    with (
        Database(tmp_path / "mirage.db") as store,
        Session(H200, Options(), store, False) as session,
    ):

        def judging(judge: Judge) -> Session:
            monkeypatch.setattr(Interpreter, "judge", judge)
            return session

        yield judging


@pytest.mark.parametrize(("m", "k"), [(50, 64), (64, 1 << 14), (1 << 16, 64), (4097, 64), (64, 1 << 16)])
def test_without_a_gpu_plans_are_judged_with_sums_as_long_as_their_own(
    m: int, k: int, offline: Callable[[Judge], Session]
) -> None:
    """What is exact enough at reduced sizes need not be at larger ones: their sums may take a factor out of range.
    Where the interpreter has time for it, the text is the very one that is exported."""
    program = scaled(m, k)
    judged: list[dict[str, int]] = []

    def refuse_long_sums(_: Interpreter, p: Program, *__: object) -> Judged:
        judged.append(p.sizes)
        return Judged(p.sizes["k"] < k, 1e-4, 1e-4, "less exact")

    plan = plans_of(program)[0]
    outcome = check_offline(offline(refuse_long_sums), program, plan)
    assert isinstance(outcome, str)
    assert "less exact" in outcome
    tile = max(s.tile("m") for s in plan.schedule.kernels.values())
    assert judged == [reduced_sizes(program), {"m": m if m < 1000 and k < 1 << 16 else min(m, tile, 16), "k": k}]


def test_sums_that_would_take_the_interpreter_minutes_are_judged_at_reduced_sizes(
    offline: Callable[[Judge], Session],
) -> None:
    program = scaled(64, 1 << 24)
    judged: list[dict[str, int]] = []

    def accept(_: Interpreter, p: Program, *__: object) -> Judged:
        judged.append(p.sizes)
        return Judged(True, 1e-4, 1e-4)

    outcome = check_offline(offline(accept), program, plans_of(program)[0])
    assert not isinstance(outcome, str)
    assert judged == [reduced_sizes(program)]


def test_so_are_those_of_huge_weights() -> None:
    """Few of their rows are read, by a slice far behind: all lie in front of it, in float64 of the reference too."""
    text = """
name: experts
dims: {t: 8, x: 8, k: 4096, f: 3584, n: 7168}
inputs: {X: [t, k], W: [x, n, k], E: {dims: [t], dtype: int32, below: x}}
program: |
  O = dot(X, W[E[t], f + 3584, k], k)
outputs: {O: [t, f]}
"""
    program = parse_spec(text).at()
    plan = plans_of(program)[0]
    assert own_sums(program, plan.graph, plan.schedule) is None


def test_of_a_plan_that_spills_the_kernel_that_does_is_varied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever takes the longest: with others of that one, all schedules of the plan would spill."""
    text = "name: s\ndims: {m: 4, k: 1048576}\ninputs: {X: [m, k]}\nprogram: O = sum(X, k)\noutputs: {O: [m]}\n"
    program = parse_spec(text).at()
    plan = next(p for p in plans_of(program) if len(p.graph.kernels) == 2)
    spilling = tuple(KernelResources(name, 0, 32, n, 4, "") for name, n in (("k0", 0), ("k1", 512)))
    farm = SimpleNamespace(compile_all=lambda jobs, *_: [(job.id, spilling) for job in jobs])
    monkeypatch.setattr(Session, "farm", lambda _: farm)
    with Database(tmp_path / "mirage.db") as store, Session(H200, Options(), store, False) as session:
        _, *others = predicting.compiled_offline(session, plan, measured_problem(program, 0))
    assert {a for _, a in others} == {spilling}
    k0, k1 = ({str(s.kernels[k]) for s, _ in others} for k in ("k0", "k1"))
    assert len(k1) > len(k0) == 1


@pytest.mark.parametrize("all_overflow", [False, True])
def test_without_a_gpu_plans_that_overflow_like_eager_pass_only_if_no_other_does(
    all_overflow: bool, offline: Callable[[Judge], Session]
) -> None:
    program = scaled(64, 64)
    found = searched(program)
    first, *others = [p.id for p in found.plans]
    judged: list[dict[str, int]] = []

    def overflow(_: Interpreter, p: Program, *__: object) -> Judged:
        """Of the first plan at reduced sizes, or of all at longer ones."""
        judged.append(p.sizes)
        return Judged(True, 1e-4, 1e-4, excused=int(len(judged) == 1 or (all_overflow and p.sizes["k"] == 64)))

    result = finish(offline(overflow), program, "", found)
    assert isinstance(result, Result) and result.best is not None
    assert [k.id for k in result.top] == ([first, *others] if all_overflow else others)[: Options().top]
    assert result.best.id == result.top[0].id


def test_a_plan_that_cannot_be_written_is_left_out_where_nothing_is_compiled(tmp_path: Path) -> None:
    program, options = scaled(64, 64), Options(tune=False)
    found = searched(program)
    first, *others = found.plans
    huge = {k: replace(s, tiles=tuple((d, 1 << 18) for d, _ in s.tiles)) for k, s in first.schedule.kernels.items()}
    plans = (replace(first, schedule=Schedule(huge)), *others)
    with Database(tmp_path / "mirage.db") as store, Session(H200, options, store, False) as session:
        result = finish(session, program, "", replace(found, plans=plans))
    assert isinstance(result, Result) and result.best is not None
    assert result.best.id == others[0].id
    assert dict(result.dropped) == {"block too large": 1}


@pytest.mark.parametrize(
    ("each_s", "ends_s", "looked_at"),
    [(40.0, [40.0, 80.0], 1), (25.0, [25.0, 50.0], 1), (14.0, [14.0, 28.0, 42.0, 56.0], 2)],
)
def test_without_a_gpu_nothing_is_judged_behind_the_budget_but_the_first_plan(
    each_s: float,
    ends_s: list[float],
    looked_at: int,
    offline: Callable[[Judge], Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan is judged twice. None is begun that would end behind the 60 s of the budget if it took as long as the one
    before."""
    program = scaled(64, 64)
    found = replace(searched(program), seconds=0.0)
    assert len(found.plans) > 2
    now, ends = [0.0], list[float]()
    monkeypatch.setattr(predicting, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(*_: object) -> Judged:
        now[0] += each_s
        ends.append(now[0])
        return Judged(True, 1e-4, 1e-4)

    result = finish(offline(slow), program, "", found)
    assert ends == ends_s
    assert isinstance(result, Result) and result.search.stopped == "exhausted"
    assert result.unchecked == len(found.plans) - looked_at
    assert [k.id for k in result.top] == [p.id for p in found.plans[:looked_at]]


def test_what_passes_until_a_search_is_there_is_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where processes start slowly: the search itself took half a second of the 5 until its result was there."""
    now, left = [100.0], list[float]()
    program = scaled(64, 64)
    found = replace(searched(program), seconds=0.5)

    def found_late(*_: object) -> Iterator[Found]:
        for wait_s in (3.0, 0.0):
            now[0] += wait_s
            yield found

    def tuned(*args: Any) -> Any:
        left.append(args[-1])
        now[0] += 7.0
        raise RuntimeError("of no interest")

    monkeypatch.setattr(optimizing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(optimizing, "search_all", found_late)
    monkeypatch.setattr(optimizing, "keep_search", lambda *_: None)
    monkeypatch.setattr(optimizing, "stored_result", lambda *_: None)
    monkeypatch.setattr(tuning, "tuned_result", tuned)
    store = SimpleNamespace(check_writable=lambda: None)
    parts = {"target": H200, "store": store, "progress": Silence(), "prepare": lambda: None}
    session: Any = SimpleNamespace(options=Options(budget_s=8.0), measures=True, command="", **parts)
    assert len(list(optimizing.optimize(session, [(program, "")] * 2, began=98.0))) == 2
    assert left == [8.0 - 2.0 - 3.0, 8.0 - 0.5]


EXPONENTIALS = """
name: exponentials
dims: {{m: 8, k: 40}}
dtype: {dtype}
inputs:
  X: [m, k]
program: |
  E = exp(X)
  Z = {other}
outputs:
  E: [m, k]
  Z: {dims}
"""


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("other", "dims"),
    [
        ("sum(E, k)", "[m]"),
        ("mean(E, k)", "[m]"),
        ("softmax(X, k)", "[m, k]"),
        ("logsumexp(X, k)", "[m]"),
        ("E / sum(E, k)", "[m, k]"),
    ],
)
def test_an_exponential_that_is_an_output_is_computed_as_written(
    dtype: str, other: str, dims: str, interpreter: Interpreter
) -> None:
    """With its maximum subtracted, a row of 90, 1 and 0 would be inf · 0. What is scaled by it stays safe."""
    program = parse_spec(EXPONENTIALS.format(dtype=dtype, other=other, dims=dims)).at()
    found = search_program(program, H200, Options())
    assert found.plans and not found.rejected
    graphs = {p.id: p for p in found.plans}
    assert found.as_written in graphs
    plan = found.plans[0]
    judged = interpreter.judge(program, kernels_source(plan.graph, plan.schedule), 0)
    assert judged.ok, judged.problem


CHAIN = """
name: chain
dims: {a: 24, b: 64, c: 64, d: 64, e: 64, f: 40}
inputs: {A: [a, b], B: [b, c], C: [c, d], D: [d, e], E: [e, f]}
program: |
  T = dot(A, B, b) * 0.2
  U = dot(T, C, c) * 0.2
  V = dot(U, D, d) * 0.2
  O = dot(V, E, e) * 0.2
outputs: {O: [a, f]}
"""


def test_small_numbers_between_products_keep_them_in_range(interpreter: Interpreter) -> None:
    """With the numbers behind the last product, all plans with less arithmetic overflow: D·E has none of them."""
    program = parse_spec(CHAIN).at()
    found = search_program(program, H200, Options())
    fused = [p for p in found.plans if len(p.graph.kernels) == 1]
    judged = [interpreter.judge(program, kernels_source(p.graph, p.schedule), 0, True) for p in fused]
    assert any(j.ok for j in judged) and not judged[0].ok


CANCELLING = {
    "the mean of what a norm leaves is 0": """
name: twice
dims: {d: 3, h: 100}
dtype: float32
inputs: {X: {dims: [h, d], scale: 0.02}}
program: |
  C = layer_norm(sum(X, d), h, eps=0.001)
  E = dot(X, layer_norm(C, h), h)
outputs: {E: [d]}
""",
    "the mean of what a softmax leaves is a number": """
name: mean
dims: {m: 64, k: 7}
dtype: bfloat16
inputs: {U: [m, k]}
program: |
  B = softmax(where(index(m) >= index(k), U, -inf), k)
  E = dot(B, layer_norm(B, k, eps=0.001), k)
outputs: {E: {dims: [m], dtype: float32}}
""",
}


@pytest.mark.parametrize("what", CANCELLING)
def test_what_cancels_is_computed_in_the_program_as_written(what: str, interpreter: Interpreter) -> None:
    """Of what was rounded, it is not what the algebra says. Fused, that is a plan too."""
    program = parse_spec(CANCELLING[what]).at()
    found = searched(program)
    assert not found.rejected
    plans = {p.id: p for p in found.plans}
    literal = [p for p in plans.values() if operators(p) >= operators(plans[found.as_written])]
    assert len({len(p.graph.kernels) for p in literal}) > 1
    for p in literal:
        judged = interpreter.judge(program, kernels_source(p.graph, p.schedule), 0, overflow_like_eager=True)
        assert judged.ok, judged.problem


def operators(p: Plan) -> int:
    """The different sums and differences of a plan."""
    return len({e.out for k in p.graph.kernels for e in k.body if e.op in ("sum", "sub")})


SEVERAL_AXES = """
name: several
dims: {{b: 3, h: 5, g: 2, e: 24, k: 40}}
dtype: {dtype}
inputs:
  T: [b, h, g, e]
  W: {{dims: [h, g, e, k], scale: 0.05}}
program: |
  {program}
outputs:
  O: {dims}
"""


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("O = dot(T, W, h, g, e)", "[b, k]"),
        ("O = layer_norm(T, h, g, e) * sum(W, k)", "[b, h, g, e]"),
        ("O = mean(T * T, b, h, g, e) * sum(W, h, g, e)", "[k]"),
    ],
)
def test_several_axes_are_reduced_together(dtype: str, text: str, dims: str, interpreter: Interpreter) -> None:
    """One of them in blocks, the others walked one by one where blocks of all would be too large."""
    program = parse_spec(SEVERAL_AXES.format(dtype=dtype, program=text, dims=dims)).at()
    found = search_program(program, H200, Options())
    assert not found.rejected and found.as_written in {p.id for p in found.plans}
    sources = [kernels_source(plan.graph, plan.schedule) for plan in found.plans[:2]]
    judged = [interpreter.judge(program, source, 0, overflow_like_eager=True) for source in sources]
    assert all(j.ok for j in judged), [j.problem for j in judged]
    assert any(not j.excused for j in judged), "where one keeps what overflows, as eager does, another does not"


def test_a_product_over_heads_walks_them_where_they_do_not_fit_a_block() -> None:
    """An attention's output projection: 20 heads of 128, padded to 32, would be more than registers hold. The weights
    have them in another order: they are no one axis."""
    program = parse_spec(
        "name: projection\ndims: {m: 64, h: 20, d: 128, n: 4096}\ndtype: float32\n"
        "inputs: {T: [m, h, d], W: {dims: [d, h, n], scale: 0.02}}\n"
        "program: |\n  O = dot(T, W, h, d)\noutputs: {O: [m, n]}\n"
    ).at()
    found = search_program(program, H200, Options())
    (kernel, *_) = found.plans[0].graph.kernels
    assert {"h", "d"} <= set(kernel.with_role("loop", "split"))
    assert found.plans[0].schedule.kernels[kernel.name].tile("h") == 1


MEAN = """
name: whole
dims: {{m: {m}, n: {n}}}
dtype: float32
inputs: {{X: [m, n]}}
program: |
  O = mean(X, {axes})
outputs: {{O: {dims}}}
"""


@pytest.mark.parametrize(
    ("axes", "dims", "m", "n"), [("m, n", "[]", 131, 257), ("n", "[m]", 33, 257), ("m", "[n]", 257, 33)]
)
def test_a_mean_may_be_split_over_program_instances(
    axes: str, dims: str, m: int, n: int, interpreter: Interpreter
) -> None:
    """Its division by the size of the split axis is the merge kernel's: a number, not what a chunk depends on."""
    program = parse_spec(MEAN.format(m=m, n=n, axes=axes, dims=dims)).at()
    lowered = lower(program)
    split = [c for c in search(lowered, H200, prune=False).candidates if any(k.split for k in c.graph.kernels)]
    assert split
    verdict = check_equivalence(lowered, split[0].graph, 0)
    assert verdict.ok, verdict
    judged = interpreter.judge(program, kernels_source(split[0].graph, split[0].schedule), 0)
    assert judged.ok, judged.problem


def test_a_mean_of_a_whole_tensor_comes_near_the_floor() -> None:
    """4 GiB that one program instance would read in 55 ms."""
    program = parse_spec(MEAN.format(m=32768, n=32768, axes="m, n", dims="[]")).at()
    best = search(lower(program), H200, bounds=BEST).candidates[0]
    assert any(k.split for k in best.graph.kernels)
    assert best.predicted_us < 1.25 * floor_of(program, H200)


# -- exponentials less the larger of a maximum and something else

SHARED = """
name: attention
dims: {{b: 8, r: 8, d: 64, s: 4096, t: 2048, u: 1024}}
dtype: float16
inputs:
  Q: [b, r, d]
  K: [b, s, d]
  V: [b, s, d]
{inputs}
program: |
  A = dot(Q, K, d) * d ** -0.5
{text}
outputs: {{O: [b, r, d]}}
"""
SINK = "  M = maximum(max(A, s), {0})\n  E = exp(A - M)\n  O = dot(E, V, s) / (sum(E, s) + exp({0} - M))"
SHARED_MAXIMA = {
    "a sink": ("  Z: {dims: [b, r], dtype: float32}", SINK.format("Z")),
    "one more than the sum": ("", SINK.format("0")),
    "two prefixes": (
        "  K1: [b, t, d]\n  V1: [b, t, d]",
        "  B = dot(Q, K1, d) * d ** -0.5\n"
        "  M = maximum(max(A, s), max(B, t))\n"
        "  E = exp(A - M)\n"
        "  F = exp(B - M)\n"
        "  O = (dot(E, V, s) + dot(F, V1, t)) / (sum(E, s) + sum(F, t))",
    ),
}
"""Inputs, and equations of each."""


def sharing(name: str) -> str:
    inputs, text = SHARED_MAXIMA[name]
    return SHARED.format(inputs=inputs, text=text)


@pytest.mark.parametrize("name", SHARED_MAXIMA)
def test_no_exponential_less_a_larger_maximum_overflows(name: str) -> None:
    """On all data that kernels are judged on, whatever else than the maximum it is the larger of. Keys in two places
    are split each, and merged by one kernel: no plan of more than three is looked for."""
    program = parse_spec(sharing(name)).at()
    best = plans_of(program, replace(BEST, kernels=3))[0]
    verdict = exported_verdict(program, best, 0)
    assert verdict.ok, verdict
    if name == "two prefixes":
        assert [k.split for k in best.graph.kernels] == ["s", "t", None]


GUARDED = """
name: guarded
dims: {{m: 256, s: 1000, d: 64}}
dtype: {dtype}
inputs: {{X: [m, s], V: [s, d]{inputs}}}
program: |
  A = where(index(s) < index(m), X, -inf)
  M = max(A, s)
  C = {guard}
  E = exp(A - C)
  L = sum(E, s)
  O = {text}
outputs: {{L: [m], O: [m, d]}}
"""
GUARDS = {
    "where a row is masked out": ("", "where(M == -inf, 0, M)", "dot(E, V, s)", "float16"),
    "the same, normalised": ("", "where(M > -inf, M, 0)", "dot(E, V, s) / where(L == 0, 1, L)", "float32"),
    "at least a number": ("", "where(M < -100, -100, M)", "dot(E, V, s)", "bfloat16"),
    "no bound of it": (", Z: [m]", "minimum(abs(M), 60000) + abs(Z)", "dot(E, V, s) / (L + 1)", "float32"),
}
"""Inputs, what is subtracted, what is made of the exponentials, and the type."""


@pytest.mark.parametrize("name", GUARDS)
def test_no_exponential_less_a_guarded_maximum_overflows(name: str, interpreter: Interpreter) -> None:
    """None of the best plans, so that it is right without a judgement too."""
    inputs, guard, text, dtype = GUARDS[name]
    program = parse_spec(GUARDED.format(inputs=inputs, guard=guard, text=text, dtype=dtype)).at()
    for plan in plans_of(program)[:3]:
        judged = predicting.judge_small(interpreter, program, plan.graph, plan.schedule)
        assert judged.ok and not judged.excused, f"{plan.id}: {judged.problem}"
