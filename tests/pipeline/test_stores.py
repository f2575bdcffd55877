"""Programs that write parts of outputs or change inputs in place: search, verifier, emitter, interpreter, exports."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import export_source, kernels_source, load_export
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.pipeline.keys import program_hash
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.pipeline.searching import Plan
from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.bench import baseline, run_bench
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.tune.measure import Effort, GpuWorker
from mirage_cli.verify.facts import where_outputs_lie
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.lies import Lies, outputs_of
from mirage_cli.verify.numeric import draw_inputs
from mirage_cli.verify.pieces import as_tuple
from tests.searched import searched
from tests.selfchecks import check_itself

PROGRAMS = int(os.environ.get("MIRAGE_RANDOM_PROGRAMS", "30")) // 2
PLANS = 2


def plans(program: Program) -> tuple[Plan, ...]:
    found = searched(program)
    assert not found.rejected, found.rejected
    assert found.plans
    return found.plans


# -- random programs


@dataclass
class Writer:
    """Writes a random spec: every output is cut in parts in one of several ways, each part a random expression."""

    rng: random.Random

    def __post_init__(self) -> None:
        self.dims = {"m": self.rng.choice((1, 3, 7, 16)), "k": self.rng.choice((5, 16, 33))}
        self.inputs = {"X": "[m, k]"}
        self.lines: list[str] = []
        self.outputs: dict[str, str] = {}
        self.fresh = count()

    def axis(self, size: int) -> str:
        name = f"a{next(self.fresh)}"
        self.dims[name] = size
        return name

    def value(self, *axes: str) -> str:
        """An expression with m and these axes."""
        name = f"W{next(self.fresh)}"
        form = self.rng.choice(("dot({x}, {w}, k)", "silu({w})", "sum({x} * {w}, k)", "{v} * sum({x}, k)"))
        own = ("k", *axes) if "{w}" in form and "k)" in form else (*axes,)
        own = ("m", *own) if "k" not in own else own
        self.inputs[name] = f"[{', '.join(own)}]"
        return form.format(x="X", w=name, v=name)

    def cut(self, pieces: int) -> list[tuple[str, str]]:
        """Indices of parts of one axis, each with the axes that it has; then the size is that of the axis."""
        kind = self.rng.choice(("side by side", "in turn", "blocks in turn"))
        if kind == "side by side":
            sizes = [self.rng.choice((1, 3, 8, 20)) for _ in range(pieces)]
            names = [self.axis(n) for n in sizes]
            starts = [sum(sizes[:i]) for i in range(pieces)]
            self.size = sum(sizes)
            return [(f"{a} + {s}", a) for a, s in zip(names, starts, strict=True)]
        outer, inner = self.rng.choice((2, 5)), self.rng.choice((3, 8))
        a, b = self.axis(outer), self.axis(inner)
        self.size = outer * inner * pieces
        if kind == "in turn":
            whole = self.axis(outer * inner)
            return [(f"{whole} * {pieces} + {i}", whole) for i in range(pieces)]
        return [(f"{a} * {inner * pieces} + {b} + {i * inner}", f"{a} {b}") for i in range(pieces)]

    def output(self, name: str) -> None:
        parts = self.cut(self.rng.randint(1, 3))
        whole = self.axis(self.size)
        turned = self.rng.random() < 0.3
        for index, axes in self.rng.sample(parts, len(parts)):
            at = f"{index}, m" if turned else f"m, {index}"
            self.lines.append(f"{name}[{at}] = {self.value(*axes.split())}")
        self.outputs[name] = f"[{whole}, m]" if turned else f"[m, {whole}]"

    def change(self, name: str) -> None:
        """Rows of an input; sometimes rows in front of them are read."""
        before, rows, behind = (self.rng.choice((1, 4, 9)) for _ in range(3))
        r, s = self.axis(rows), self.axis(before + rows + behind)
        self.inputs[name] = f"[{s}, m]"
        self.lines.append(f"{name}[{r} + {before}, m] = {self.value(r)}")
        if self.rng.random() < 0.5:
            read = self.axis(before)
            self.lines.append(f"S{name} = sum({name}[{read}, m], {read})")
            self.outputs[f"S{name}"] = "[m]"
        self.outputs[name] = f"{{inout: {name}}}"

    def scatter(self, name: str) -> None:
        """Rows of an input that a table names: by their number, by page and place, behind a length, or round a ring."""
        page, rows = self.rng.choice((2, 4, 8)), self.rng.choice((1, 3, 5))
        r, p, s = self.axis(rows), self.axis(page), self.axis(self.rng.choice((2, 3, 5)) + -(-rows // page))
        table = f"T{next(self.fresh)}"
        places = self.dims[p] * self.dims[s]
        dtype = self.rng.choice(("int32", "int64"))
        kind = self.rng.choice(("row", "slot", "pages", "length", "ring"))
        padded = kind != "ring" and self.rng.random() < 0.4

        def declared(axes: str, below: str | int, distinct: bool = True) -> str:
            flags = f"distinct: {str(distinct).lower()}, padded: {str(distinct and padded).lower()}"
            return f"{{dims: [{axes}], dtype: {dtype}, below: {below}, {flags}}}"

        tensor, at = f"[{s}, {p}, m]", f"{table}[{r}] // {page}, {table}[{r}] % {page}, m"
        self.inputs[table] = declared(r, places)
        if kind == "row":
            tensor, at = f"[{self.axis(places)}, m]", f"{table}[{r}], m"
        elif kind == "pages":
            self.inputs[table] = declared(s, s)
            at = f"{table}[{r} // {page}], {r} % {page}, m"
        elif kind == "length":
            pages, length = self.axis(2 * rows + 1), f"L{next(self.fresh)}"
            self.inputs[table] = declared(f"{r}, {self.axis(2)}", pages)
            self.inputs[length] = declared(r, 2 * page, distinct=False)
            tensor = f"[{pages}, {p}, m]"
            at = f"{table}[{r}, {length}[{r}] // {page}], {length}[{r}] % {page}, m"
        elif kind == "ring":
            self.inputs[table] = declared("", places, distinct=False)
            tensor, at = f"[{self.axis(places)}, m]", f"({r} + {table}) % {places}, m"
        self.inputs[name] = tensor
        self.lines.append(f"{name}[{at}] = {self.value(r)}")
        self.outputs[name] = f"{{inout: {name}}}"

    def text(self) -> str:
        what = self.rng.choice(("output", "change", "both", "scatter", "scatter", "all"))
        if what in ("output", "both", "all"):
            self.output("O")
        if what in ("change", "both"):
            self.change("K")
        if what in ("scatter", "all"):
            self.scatter("P")
        dims = ", ".join(f"{d}: {n}" for d, n in self.dims.items())
        lines = ["name: stores", f"dims: {{{dims}}}", f"dtype: {self.rng.choice(('float16', 'float32'))}", "inputs:"]
        lines += [f"  {n}: {t}" for n, t in self.inputs.items()] + ["program: |", *(f"  {x}" for x in self.lines)]
        return "\n".join([*lines, "outputs:", *(f"  {n}: {t}" for n, t in self.outputs.items())]) + "\n"


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs_with_stores(seed: int, interpreter: Interpreter) -> None:
    text = Writer(random.Random(seed)).text()
    program = parse_spec(text).at()
    for plan in plans(program)[:PLANS]:
        assert parse_mugraph(canonical_text(plan.graph)) == plan.graph
        judged = interpreter.judge(
            program, kernels_source(plan.graph, plan.schedule), seed, len(plan.graph.kernels) > 1
        )
        assert judged.ok, f"{judged.problem}\n{text}\n{canonical_text(plan.graph)}"


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_pytorch_writes_what_the_definition_says(seed: int) -> None:
    """The text for users, which writes slices and changes inputs, beside float64 values of the single parts."""
    program = parse_spec(Writer(random.Random(seed)).text()).at()
    torch.manual_seed(seed)
    drawn = draw_inputs(program, "normal", torch.device("cpu"), seed)
    inputs = [x.double() if x.is_floating_point() else x for x in drawn]
    names: dict[str, object] = {"torch": torch}
    exec(torch_source(program), names)
    given = [x.clone() for x in inputs]
    results = as_tuple(names["reference"](*given))  # type: ignore[operator]
    lies = [Lies(*x) for x in where_outputs_lie(program) or ()]
    assert lies
    for mine, want in zip(outputs_of(lies, results, given), reference64(program, inputs), strict=True):
        torch.testing.assert_close(mine, want)
    named = {v.tensor for v in lies if (there := v.is_named(v.whole(results, given), given)) is None or there.any()}
    for n, (x, before) in enumerate(zip(given, inputs, strict=True)):
        assert torch.equal(x, before) == (-1 - n not in named)


# -- what users get

APPEND = """
name: append
dims: {t: 4, h: 2, d: 8, s: 24, q: 20}
dtype: float32
inputs: {X: [t, h, d], K: [s, h, d], V: [s, h, d]}
program: |
  K[t + 20, h, d] = silu(X)
  V[t + 20, h, d] = X * 2
  O = sum(K[q, h, d], q)
outputs:
  K: {inout: K}
  V: {inout: V}
"""


def appending(returns: bool) -> tuple[Program, str]:
    text = (
        APPEND + "  O: [h, d]\n" if returns else APPEND.replace("  O = sum(K[q, h, d], q)\n", "").replace(", q: 20", "")
    )
    program = parse_spec(text).at()
    plan = plans(program)[0]
    return program, export_source(program, plan.graph, plan.schedule)


def tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in ((4, 2, 8), (24, 2, 8), (24, 2, 8))]


@pytest.mark.parametrize("returns", [True, False])
def test_an_exported_function_changes_its_inputs_and_returns_the_rest(returns: bool) -> None:
    _, source = appending(returns)
    module = load_export(source)
    x, k, v = tensors()
    _, k0, v0 = tensors()

    def check(result: torch.Tensor | None) -> None:
        torch.testing.assert_close(k[20:], torch.nn.functional.silu(x))
        torch.testing.assert_close(v[20:], x * 2)
        assert torch.equal(k[:20], k0[:20]) and torch.equal(v[:20], v0[:20])
        if returns:
            torch.testing.assert_close(result, k0[:20].sum(0))
        else:
            assert result is None
        k.copy_(k0), v.copy_(v0)

    check(module.append(x, k, v))
    name = re.search(r"torch\.ops\.mirage\.(append_\w+)\(", source)
    assert name is not None
    operator = getattr(torch.ops.mirage, name[1])
    assert [a.alias_info is not None for a in operator.default._schema.arguments] == [False, True, True]
    check(operator(x, k, v))
    torch.library.opcheck(operator, (x, k, v), test_utils=("test_schema", "test_faketensor"))
    k.copy_(k0), v.copy_(v0)

    def layer(x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        result = module.append(x, k, v)
        return k[20:].sum() + (result.sum() if returns else 0)  # what stands behind the call sees what it wrote

    want = torch.nn.functional.silu(x).sum() + (k0[:20].sum() if returns else 0)
    for backend in ("eager", "aot_eager"):
        torch.testing.assert_close(torch.compile(layer, backend=backend, fullgraph=True)(x, k, v), want)
        k.copy_(k0), v.copy_(v0)


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("which", range(3))
def test_a_change_in_place_that_would_lose_a_gradient_is_refused(returns: bool, which: int) -> None:
    function, given = load_export(appending(returns)[1]).append, tensors()
    given[which].requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradient passes through the change of K, V in place"):
        function(*given)
    with torch.no_grad():
        function(*given)
    torch.testing.assert_close(given[2][20:], given[0] * 2)


@pytest.mark.parametrize("returns", [True, False])
def test_what_is_changed_and_lies_where_another_input_does_is_refused(returns: bool) -> None:
    """Instances would read what others have written. Where both have gaps, as two caches in turns have, it is not
    known."""
    function, (x, k, v) = load_export(appending(returns)[1]).append, tensors()
    for given in ((x, k, k), (k[:4], k, v), (k[-4:], k, v), (v[1:5], k, v)):
        with pytest.raises(ValueError, match="K, V should share no memory with other inputs"):
            function(*given)
    whole = torch.cat([k, v, x])
    function(whole[-4:], whole[:24], whole[24:-4])
    torch.testing.assert_close(whole[44:48], x * 2)


def test_what_autograd_has_kept_of_a_tensor_that_is_changed_is_not_taken_for_what_it_was() -> None:
    """Its version says so, as behind an operator of PyTorch's."""
    function, (x, k, v) = load_export(appending(returns=False)[1]).append, tensors()
    weight = torch.ones_like(k, requires_grad=True)
    loss = (k * weight).sum()
    before = k._version, v._version, x._version
    function(x, k, v)
    assert (k._version, v._version, x._version) == (before[0] + 1, before[1] + 1, before[2])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    _, source = appending(returns=False)
    assert re.search(r"_current_level < 0:\n +_changes\(K\)\n +_changes\(V\)\n +return _start", source)


@pytest.mark.parametrize(("old", "new"), [("+ 320", "+ 304"), ("+ 320", "+ 0")])
def test_a_file_that_writes_other_rows_fails_its_own_check(old: str, new: str) -> None:
    """Rows in front of those that it should write, also where these are right all the same."""
    _, source = appending(returns=False)
    assert old in source
    for text, code in ((source, 0), (source.replace(old, new), 1)):
        done = check_itself(text)
        assert done.code == code, done


def test_a_kernel_that_changes_more_than_its_rows_is_refused(interpreter: Interpreter) -> None:
    program, _ = appending(returns=False)
    plan = plans(program)[0]
    source = kernels_source(plan.graph, plan.schedule)
    assert interpreter.judge(program, source, 0).ok
    more = source.replace(
        "def launch(inputs, outputs, scratch):", "def launch(inputs, outputs, scratch):\n    inputs[1][0] += 1"
    )
    judged = interpreter.judge(program, more, 0)
    assert not judged.ok and "writes to its inputs: K" in (judged.problem or "")


@pytest.mark.parametrize("returns", [True, False])
def test_a_baseline_is_timed_by_what_it_leaves(returns: bool) -> None:
    """PyTorch's own call changes the inputs too; the database tells such a program from one that returns the values."""
    program, _ = appending(returns)
    problem = measured_problem(program, seed=0)
    with GpuWorker("cpu", context="chain") as worker:
        (row,) = run_bench(worker, problem, [baseline("eager", problem)], Effort(5, 2, 0.05, hot=True))
    assert row.timing is not None, row.failure
    assert row.timing.accuracy is not None and row.timing.accuracy.relative < 1e-6
    assert program_hash(program) != program_hash(program.apart())


SLOTS = """
name: slots
dims: {t: 5, h: 2, d: 8, pages: 6, page: 4, slots: pages*page}
dtype: float32
inputs:
  X: [t, h, d]
  K: [pages, page, h, d]
  slot: {dims: [t], dtype: int64, below: slots, distinct: true}
program: |
  K[slot[t] // 4, slot[t] % 4, h, d] = silu(X)
outputs:
  K: {inout: K}
"""


def slots_source() -> str:
    program = parse_spec(SLOTS).at()
    plan = plans(program)[0]
    return export_source(program, plan.graph, plan.schedule)


def test_an_exported_function_writes_the_rows_that_a_table_names_now() -> None:
    """Calls with the same tensors, of which the table holds other rows each time: a kernel keeps none of them."""
    slots = load_export(slots_source()).slots
    torch.manual_seed(0)
    x, k, slot = torch.randn(5, 2, 8), torch.randn(6, 4, 2, 8), torch.empty(5, dtype=torch.int64)
    for _ in range(4):
        slot.copy_(torch.randperm(24)[:5])
        x.normal_()
        want = k.clone()
        want.view(24, 2, 8)[slot] = torch.nn.functional.silu(x)
        assert slots(x, k, slot) is None
        torch.testing.assert_close(k, want)


def test_a_table_that_names_rows_twice_is_refused_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = load_export(slots_source()).slots
    x, k = torch.randn(5, 2, 8), torch.zeros(6, 4, 2, 8)
    monkeypatch.setenv("MIRAGE_CHECK_TABLES", "1")
    slots(x, k, torch.tensor([23, 4, 0, 7, 5]))
    before = k.clone()
    for wrong, why in (([23, 4, 0, 23, 5], "slot should hold no number twice"), ([24, 4, 0, 7, 5], "from 0 to 23")):
        with pytest.raises(ValueError, match=why):
            slots(x, k, torch.tensor(wrong))
    assert torch.equal(k, before)


@pytest.mark.gpu
def test_gpu_a_graph_writes_the_rows_that_a_table_names_at_each_replay() -> None:
    slots_graph = load_export(slots_source()).slots_graph
    x, k = torch.randn(5, 2, 8, device="cuda"), torch.randn(6, 4, 2, 8, device="cuda")
    slot = torch.arange(5, device="cuda")
    replay = slots_graph(x, k, slot)
    for _ in range(4):
        slot.copy_(torch.randperm(24)[:5])
        x.normal_()
        want = k.clone()
        want.view(24, 2, 8)[slot] = torch.nn.functional.silu(x)
        replay()
        torch.testing.assert_close(k, want)


PAGED = """
name: paged
dims: {b: 5, g: 2, r: 4, d: 16, s: 64, p: 4, pages: 30, page: 16}
inputs:
  Q: [b, g, r, d]
  K: [pages, page, g, d]
  V: [pages, page, g, d]
  P: {dims: [b, p], dtype: int32, below: pages, distinct: true}
  L: {dims: [b], dtype: int32, below: s}
program: |
  A = dot(Q, K[P[b, s // 16], s % 16, g, d], d) * d ** -0.5
  W = softmax(where(index(s) <= L[b], A, -inf), s)
  O = dot(W, V[P[b, s // 16], s % 16, g, d], s)
outputs: {O: [b, g, r, d]}
"""


def pages_and_lengths(device: str, calls: Callable[[Any, Sequence[torch.Tensor]], Callable[[], torch.Tensor]]) -> None:
    """Calls with the same tensors, of which tables hold other pages and lengths each time, right by PyTorch.

    calls: what calls the functions of a file for these tensors."""
    program = parse_spec(PAGED).at()
    torch.manual_seed(0)
    for plan in plans(program)[:2]:
        q = torch.empty(5, 2, 4, 16, device=device).half()
        k, v = (torch.randn(30, 16, 2, 16, device=device).half() for _ in range(2))
        pages, lengths = (torch.zeros(*n, dtype=torch.int32, device=device) for n in ((5, 4), (5,)))
        pages.copy_(torch.arange(20).view(5, 4))
        call = calls(load_export(export_source(program, plan.graph, plan.schedule)), (q, k, v, pages, lengths))
        for some in ([0, 1, 63, 15, 16], [5, 0, 31, 32, 62], [63] * 5):
            pages.copy_(torch.randperm(30)[:20].view(5, 4))
            lengths.copy_(torch.tensor(some))
            q.normal_()
            keys, values = (x[pages.long()].flatten(1, 2).float().permute(0, 2, 1, 3) for x in (k, v))
            there = torch.arange(64, device=device) <= lengths[:, None, None, None]
            weights = (q.float() @ keys.mT * 0.25).masked_fill(~there, -torch.inf).softmax(-1)
            torch.testing.assert_close(call().float(), weights @ values, atol=5e-3, rtol=5e-3)


def test_an_exported_function_reads_the_pages_and_lengths_of_each_call() -> None:
    pages_and_lengths("cpu", lambda module, tensors: lambda: module.paged(*tensors))


@pytest.mark.gpu
def test_gpu_a_graph_reads_the_pages_and_lengths_of_each_replay() -> None:
    pages_and_lengths("cuda", lambda module, tensors: module.paged_graph(*tensors))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(slot_at // 4)", "((slot_at + 4) // 4 % 6)"),
        ("(slot_at % 4)", "((slot_at + 1) % 4)"),
        ("slot_at % 4", "slot_at % 3"),
    ],
)
def test_a_file_that_writes_other_slots_fails_its_own_check(old: str, new: str) -> None:
    source = slots_source()
    assert old in source
    for text, code in ((source, 0), (source.replace(old, new), 1)):
        done = check_itself(text)
        assert done.code == code, done


def test_slots_are_timed_by_what_a_call_leaves_and_a_call_that_writes_elsewhere_is_none() -> None:
    program = parse_spec(SLOTS).at()
    problem = measured_problem(program, seed=0)
    eager = baseline("eager", problem)
    assert "slot % 4] =" in eager.source
    wrong = replace(eager, id="wrong", source=eager.source.replace("slot % 4] =", "(slot + 1) % 4] ="))
    with GpuWorker("cpu", context="chain") as worker:
        right, other = run_bench(worker, problem, [eager, wrong], Effort(5, 2, 0.05, hot=True))
    assert right.timing is not None and right.timing.accuracy is not None and right.timing.accuracy.relative < 1e-6
    assert other.timing is None or other.timing.accuracy is None or not other.timing.accuracy.relative < 1e-2


def test_an_operator_that_writes_by_slots_says_what_it_changes() -> None:
    module, source = load_export(slots_source()), slots_source()
    name = re.search(r"torch\.ops\.mirage\.(slots_\w+)\(", source)
    assert name is not None
    operator = getattr(torch.ops.mirage, name[1])
    assert [a.alias_info is not None for a in operator.default._schema.arguments] == [False, True, False]
    x, k, slot = torch.randn(5, 2, 8), torch.zeros(6, 4, 2, 8), torch.tensor([23, 4, 0, 7, 5])
    torch.library.opcheck(operator, (x, k, slot), test_utils=("test_schema", "test_faketensor"))

    def layer(x: torch.Tensor, k: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        module.slots(x, k, slot)
        return k.view(24, 2, 8)[slot].sum()  # what stands behind the call sees what it wrote

    want = torch.nn.functional.silu(x).sum()
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x, k, slot), want)


WHOLE = """
name: whole
dims: {m: 6, k: 16, n: 8, p: 4, w: 12}
inputs: {X: [m, k], A: [k, n], B: [k, p]}
program: |
  O[m, n] = dot(X, A, k)
  O[m, p + 8] = dot(X, B, k)
outputs: {O: [m, w]}
"""


def test_a_store_of_all_of_an_output_is_an_assignment() -> None:
    text = "name: plain\ndims: {m: 2, k: 3}\ninputs: {X: [m, k]}\nprogram: |\n  O[m, k] = X * 2\noutputs: {O: [m, k]}\n"
    assert parse_spec(text).at() == parse_spec(text.replace("O[m, k] = X", "O = X")).at()


def test_parts_that_one_kernel_reads_are_in_memory_as_a_whole_too() -> None:
    """A part that a later kernel reads is stored twice: nothing reads an output that is written in parts."""
    text = WHOLE.replace("{O: [m, w]}", "{O: [m, w], Z: [m]}").replace(
        "  O[m, n] = dot(X, A, k)\n", "  P = dot(X, A, k)\n  O[m, n] = P\n  Z = sum(exp(P - max(P, n)), n)\n"
    )
    program = parse_spec(text).at()
    for plan in plans(program):
        reads = {x.buffer for k in plan.graph.kernels for x in k.loads}
        assert "O" not in reads


def test_parts_are_written_in_the_order_of_their_outputs() -> None:
    program = parse_spec(WHOLE).at()
    assert [t.name for t in program.results] == ["O"]
    assert [p.tensor.name for p in program.parts] == ["O", "O"]
    starts = [i.offset for p in program.parts for i in p.access[1:]]
    assert all(a < b for a, b in pairwise(starts))


QUANTISED = """
name: quantised
dims: {t: 5, h: 2, d: 16, s: 11}
dtype: float32
inputs:
  X: [t, h, d]
  N: {dims: [t], dtype: int32, below: 100}
  K: {dims: [s, h, d], dtype: int8}
  S: [s, h]
  U: {dims: [s], dtype: bool}
  L: {dims: [s], dtype: int32, below: 100}
  slot: {dims: [t], dtype: int64, below: s, distinct: true}
program: |
  M = max(abs(X), d) / 127
  K[slot[t], h, d] = integer(clamp(round(X / M), -128, 127))
  S[slot[t], h] = M
  U[slot[t]] = N > 50
  L[slot[t]] = N + 1
outputs:
  K: {inout: K}
  S: {inout: S}
  U: {inout: U}
  L: {inout: L}
"""


def test_whole_numbers_and_masks_are_written_in_place() -> None:
    program = parse_spec(QUANTISED).at()
    plan = plans(program)[0]
    source = export_source(program, plan.graph, plan.schedule)
    torch.manual_seed(0)
    x, n, slot = torch.randn(5, 2, 16), torch.tensor([3, 99, 51, 50, 0], dtype=torch.int32), torch.randperm(11)[:5]
    caches = [torch.full((11, 2, 16), 7, dtype=torch.int8), torch.ones(11, 2), torch.ones(11, dtype=torch.bool)]
    caches.append(torch.full((11,), 7, dtype=torch.int32))
    want = [c.clone() for c in caches]
    scale = x.abs().amax(2) / 127
    values = ((x / scale[..., None]).round().to(torch.int8), scale, n > 50, n + 1)
    for cache, value in zip(want, values, strict=True):
        cache[slot] = value
    assert load_export(source).quantised(x, n, *caches, slot) is None
    torch.testing.assert_close(caches, want)


@pytest.mark.parametrize("cache", ["K", "U", "L"])
def test_a_file_that_writes_no_whole_numbers_fails_its_own_check(cache: str) -> None:
    """What it leaves in a cache is no result: it was put there by the check."""
    program = parse_spec(QUANTISED).at()
    plan = plans(program)[0]
    source = export_source(program, plan.graph, plan.schedule)
    forgets, count = re.subn(rf"tl\.store\({cache}_ptr.*", "pass", source)
    assert count
    for text, code in ((source, 0), (forgets, 1)):
        done = check_itself(text)
        assert done.code == code, done


def test_a_baseline_that_leaves_whole_numbers_is_timed() -> None:
    program = parse_spec(QUANTISED).at()
    problem = measured_problem(program, seed=0)
    with GpuWorker("cpu", context="chain") as worker:
        (row,) = run_bench(worker, problem, [baseline("eager", problem)], Effort(5, 2, 0.05, hot=True))
    assert row.timing is not None, row.failure
    assert row.timing.accuracy is not None and row.timing.accuracy.relative < 1e-2
