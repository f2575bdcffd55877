"""Inputs with strides of their own: from spec to kernel, what is refused on the way, and the exported function."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from mirage_cli.codegen.access import descriptors
from mirage_cli.codegen.export import ExportInfo, export_source, kernels_source, load_export
from mirage_cli.codegen.sized import Variant, sized_source
from mirage_cli.errors import MirageError, OtherInterfaceError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes, merged_by
from mirage_cli.ir.program import Program
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.pipeline.judging import defines, kernel_programs
from mirage_cli.pipeline.keys import program_hash
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.spec.strides import overlap
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.bench import baseline, run_bench
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.tune.measure import Effort, GpuWorker
from mirage_cli.verify import equivalence
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.testdata import laid_out
from tests.pipeline.test_random import PROGRAMS as COUNT
from tests.pipeline.test_random import problem
from tests.pipeline.test_stores import Writer
from tests.random_programs import Draft, random_spec
from tests.searched import BEST
from tests.selfchecks import check_itself

TARGET = find_target("h200")

PROGRAMS = {
    "slices of a packed projection": """
name: attention
dims: {m: 20, s: 20, h: 2, d: 16}
inputs:
  Q: {dims: [m, h, d], strides: [3*h*d, d, 1]}
  K: {dims: [s, h, d], strides: [3*h*d, d, 1]}
  V: {dims: [s, h, d], strides: [3*h*d, d, 1]}
program: |
  A = where(index(m) >= index(s), dot(Q, K, d) * d ** -0.5, -inf)
  O = dot(softmax(A, s), V, s)
outputs: {O: [m, h, d]}
""",
    "the first positions of a cache with room for more, by heads": """
name: decode
dims: {b: 2, h: 2, s: 24, d: 16}
inputs:
  Q: [b, h, d]
  K: {dims: [b, h, s, d], strides: [40*h*d, d, h*d, 1]}
  V: {dims: [b, h, s, d], strides: [40*h*d, d, h*d, 1]}
program: |
  O = dot(softmax(dot(Q, K, d), s), V, s)
outputs: {O: [b, h, d]}
""",
    "a weight that is transposed": """
name: linear
dims: {m: 18, k: 40, n: 24}
dtype: bfloat16
inputs: {X: {dims: [m, k], strides: [64, 1]}, W: {dims: [k, n], strides: [1, k], scale: 0.1}}
program: O = silu(dot(X, W, k))
outputs: {O: [m, n]}
""",
    "every second element of a table and of its rows": """
name: rows
dims: {t: 9, v: 30, k: 20}
inputs:
  T: {dims: [t], strides: [2], dtype: int32, below: v}
  E: {dims: [v, k], strides: [2*k, 2]}
program: O = E[T[t], k] + E[t, (k + 3) % 20]
outputs: {O: [t, k]}
""",
    "two axes with one position each, which are one in the plans": """
name: ones
dims: {g: 3, h: 1, m: 1, k: 17, n: 33}
inputs: {X: {dims: [k, g, h, m], strides: [20, 4, 4, 1]}, W: [g, k, n]}
program: O = dot(X, W, k)
outputs: {O: [g, h, m, n]}
""",
    "rows of a slice that are changed in place": """
name: append
dims: {t: 4, s: 12, h: 2, d: 8, l: 6}
inputs:
  X: {dims: [t, h, d], strides: [40, d, 1]}
  K: {dims: [s, h, d], strides: [2*h*d, d, 1]}
  T: {dims: [t], dtype: int32, below: 6, distinct: true}
program: |
  K[T[t] + 6, h, d] = silu(X)
  O = sum(K[l, h, d], l)
outputs: {K: {inout: K}, O: [h, d]}
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_strides(name: str, interpreter: Interpreter) -> None:
    assert problem(PROGRAMS[name], interpreter) is None


def strided(text: str, seed: int) -> str:
    """The spec with strides for most of its inputs: gaps, and other memory orders."""
    rng = random.Random(seed)
    draft = Draft.parse(text)
    inputs: dict[str, Any] = {}
    for name, t in draft.inputs.items():
        order = rng.sample(t["dims"], len(t["dims"])) if rng.random() < 0.4 else [*t["dims"]]
        step, strides = rng.choice((1, 1, 2)), {}
        for d in reversed(order):
            strides[d], step = step, step * draft.dims[d] + rng.choice((0, 0, 0, 1, 16))
        inputs[name] = {**t, "strides": [strides[d] for d in t["dims"]]} if rng.random() < 0.8 else t
    return replace(draft, inputs=inputs).text


@pytest.mark.parametrize("seed", range(COUNT // 2))
def test_random_programs_with_strides(seed: int, interpreter: Interpreter) -> None:
    text = strided(random_spec(5000 + seed, accesses=seed % 2 > 0), seed)
    assert problem(text, interpreter) is None, text


@pytest.mark.parametrize("seed", range(COUNT // 4))
def test_random_stores_with_strides(seed: int, interpreter: Interpreter) -> None:
    text = strided(Writer(random.Random(5000 + seed)).text(), seed)
    assert problem(text, interpreter) is None, text


# -- what is refused

SLICES = """
name: slices
dims: {m: 6, h: 6, d: 16}
inputs:
  X: {dims: [m, h, d], strides: [400, 20, 1]}
  Y: {dims: [m, h, d], strides: [16, 100, 1]}
program: O = X * Y + 1
outputs: {O: [m, h, d]}
"""
WRONG = {
    "a stride off by one": ("X f16[m:400, h:20, d]", "X f16[m:401, h:20, d]"),
    "an inner stride off by one": ("X f16[m:400, h:20, d]", "X f16[m:400, h:19, d]"),
    "a gap left out": ("X f16[m:400, h:20, d]", "X f16[m:400, h, d]"),
    "row-major": ("X f16[m:400, h:20, d]", "X f16[m, h, d]"),
    "strides swapped": ("Y f16[m:16, h:100, d]", "Y f16[m:100, h:16, d]"),
}


@cache
def plan(text: str) -> tuple[Program, Plan]:
    program = parse_spec(text).at()
    return program, search_program(program, TARGET, Options(bounds=BEST, tune=False)).plans[0]


def wrong(name: str) -> tuple[Program, Plan, Plan]:
    """A program, a plan that is right, and one that is wrong."""
    program, right = plan(SLICES)
    if name != "an axis merged over a gap":
        assert WRONG[name][0] in canonical_text(right.graph)
        return program, right, replace(right, graph=parse_mugraph(canonical_text(right.graph).replace(*WRONG[name])))
    dense = SLICES.replace("[400, 20, 1]", "[400, d, 1]").replace("[16, 100, 1]", "[96, d, 1]")
    _, merged = plan(dense)
    assert "X f16[m:400, hd]" in canonical_text(merged.graph)
    program, right = plan(dense.replace("[400, d, 1]", "[400, 20, 1]"))
    return program, right, merged


@pytest.mark.parametrize("name", [*WRONG, "an axis merged over a gap"])
def test_other_strides_are_refused_by_each_net(
    name: str, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, right, other = wrong(name)
    lowered = lower(program)
    verdict = check_equivalence(lowered, other.graph, 0)
    assert verdict.net == "structure" and "is not one of the program" in verdict.detail
    for p, ok in ((right, True), (other, False)):
        judged = interpreter.judge(program, kernels_source(p.graph, p.schedule), 0)
        assert judged.ok is ok, judged.problem
        with monkeypatch.context() as m:
            m.setattr(equivalence, "structure_problem", lambda *_: None)
            verdict = check_equivalence(lowered, p.graph, 0)
        assert verdict.ok is ok and (ok or verdict.net == "field"), verdict


def test_axes_are_merged_where_there_is_no_gap_between_their_positions() -> None:
    text = SLICES.replace("[16, 100, 1]", "[m*d, d, 1]")
    assert merge_axes(parse_spec(text).at()).merged == ()
    dense = parse_spec(text.replace("[400, 20, 1]", "[400, d, 1]")).at()
    merged = merge_axes(dense)
    assert merged.merged == (("hd", ("h", "d")),)
    assert [str(t) for t in merged.inputs] == ["X f16[m:400, hd]", "Y f16[m, hd]"]
    with pytest.raises(ValueError, match="has a gap between the positions of h, which is merged"):
        merged_by(parse_spec(text).at(), merged.merged)


# -- programs and their texts


def test_a_stride_that_is_what_the_axis_behind_takes_is_none() -> None:
    """So they follow sizes, and a program that says what goes without saying is the same program."""
    assert (
        parse_spec(PLAIN).at()
        == parse_spec(PLAIN.replace("X: [m, h, d]", "X: {dims: [m, h, d], strides: [h*d, 16, 1]}")).at()
    )
    own = [str(t) for t in parse_spec(SLICES).at().inputs]
    assert own == ["X f16[m:400, h:20, d]", "Y f16[m:16, h:100, d]"]
    assert program_hash(parse_spec(SLICES).at()) != program_hash(parse_spec(SLICES.replace("400", "401")).at())


def test_an_axis_with_one_position_may_be_longer_at_other_sizes() -> None:
    """Its stride does not matter to a call, and others may be in the way of what the axis behind takes."""
    text = PLAIN.replace("X: [m, h, d]", "X: {dims: [m, h, d], strides: [1, 6, 36]}").replace("d: 16", "d: 1")
    program = parse_spec(text).at()
    assert [str(t) for t in program.inputs] == ["X f16[m:1, h:6, d:36]"]
    x, sizes = program.resized({"d": 3}).inputs[0], {"m": 6, "h": 6, "d": 3}
    assert x.steps(sizes) == (1, 6, 36)
    front = parse_spec(text.replace("strides: [1, 6, 36]", "strides: [77, 20, 9]").replace("m: 6", "m: 1")).at()
    assert [str(t) for t in front.inputs] == ["X f16[m, h:20, d]"]


PLAIN = """
name: plain
dims: {m: 6, h: 6, d: 16}
inputs: {X: [m, h, d]}
program: O = X + 1
outputs: {O: [m, h, d]}
"""


@pytest.mark.parametrize("seed", range(40))
def test_at_any_sizes_no_two_elements_are_in_one_place(seed: int) -> None:
    rng = random.Random(seed)
    text = strided(random_spec(seed), seed)
    program = parse_spec(text).at()
    assert program.resized(program.sizes) == program
    sizes = {d: rng.choice((1, 2, 3, 7, 50)) for d in program.sizes}
    for t, old in zip(program.resized(sizes).inputs, program.inputs, strict=True):
        assert overlap(t.steps(sizes), t.dims, sizes) is None, f"{old} at {sizes} is {t}"
        some = [d for d in t.dims if program.sizes[d] > 1]
        orders = [sorted(some, key=lambda d: dict(zip(x.dims, x.steps(s), strict=True))[d])
                  for x, s in ((t, sizes), (old, program.sizes))]  # fmt: skip
        assert orders[0] == orders[1] or any(sizes[d] == 1 for d in t.dims)


# -- the exported function


def exported(text: str) -> tuple[Program, str]:
    program, best = plan(text)
    return program, export_source(program, best.graph, best.schedule)


PACKED = PROGRAMS["slices of a packed projection"]


def test_slices_are_taken_as_they_are() -> None:
    _, source = exported(PACKED)
    module: Any = load_export(source)
    torch.manual_seed(0)
    packed = torch.randn(20, 3, 2, 16).half()
    q, k, v = packed.unbind(1)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1).float() for x in (q, k, v)), is_causal=True
    ).transpose(0, 1)
    torch.testing.assert_close(module.attention(q, k, v).float(), want, atol=2e-3, rtol=2e-3)
    with pytest.raises(ValueError, match=re.escape("K should have the strides (96, 16, 1), not (32, 16, 1)")):
        module.attention(q, k.contiguous(), v)
    name = re.search(r"torch\.ops\.mirage\.(attention_\w+)\(", source)
    assert name is not None
    operator = getattr(torch.ops.mirage, name[1])
    torch.library.opcheck(operator, (q, k, v), test_utils=("test_schema", "test_faketensor"))

    def layer(packed: torch.Tensor) -> torch.Tensor:
        q, k, v = (packed * 2).unbind(1)
        return module.attention(q, k, v) + 1

    torch._dynamo.reset()
    compiled: Any = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(packed), layer(packed))


def test_strides_of_axes_with_one_position_do_not_matter() -> None:
    _, source = exported(PACKED.replace("m: 20", "m: 1").replace("index(m) >= index(s)", "index(s) >= 0"))
    module: Any = load_export(source)
    q, k, v = torch.randn(20, 3, 2, 16).half().unbind(1)
    first = module.attention(q[:1], k, v)
    torch.testing.assert_close(module.attention(q[:1].contiguous(), k, v), first)
    torch.testing.assert_close(module.attention(q[:1].as_strided((1, 2, 16), (7, 16, 1)), k, v), first)


@pytest.mark.parametrize("name", ["slices of a packed projection", "rows of a slice that are changed in place"])
def test_a_file_checks_itself_on_such_inputs(name: str) -> None:
    _, source = exported(PROGRAMS[name])
    stride = "96" if name.startswith("slices") else "32"
    assert f" * {stride}" in source
    for text, code in ((source, 0), (source.replace(f" * {stride}", f" * {int(stride) + 1}", 1), 1)):
        done = check_itself(text)
        assert done.code == code, done


def test_what_lies_between_the_rows_that_are_changed_stays(interpreter: Interpreter) -> None:
    text = PROGRAMS["rows of a slice that are changed in place"]
    program, best = plan(text)
    append = load_export(export_source(program, best.graph, best.schedule)).append
    torch.manual_seed(0)
    cache, x = torch.randn(12, 2, 2, 8).half(), torch.randn(4, 40).half()
    before, rows = cache.clone(), torch.tensor([5, 0, 3, 1], dtype=torch.int32)
    append(x[:, :16].unflatten(1, (2, 8)), cache[:, 0], rows)
    want = before.clone()
    want[rows.long() + 6, 0] = torch.nn.functional.silu(x[:, :16].float()).half().unflatten(1, (2, 8))
    torch.testing.assert_close(cache, want, atol=1e-3, rtol=1e-3)
    assert torch.equal(cache[:, 1], before[:, 1])
    source = kernels_source(best.graph, best.schedule)
    more = source.replace(
        "def launch(inputs, outputs, scratch):",
        "def launch(inputs, outputs, scratch):\n    inputs[1].as_strided((1,), (1,), 16).zero_()",
    )
    judged = interpreter.judge(program, more, 0)
    assert not judged.ok and "writes to its inputs: K" in (judged.problem or "")


def test_a_file_for_other_strides_is_no_kernel_of_the_spec() -> None:
    program, source = exported(PACKED)
    assert defines(program, source)
    other = parse_spec(PACKED.replace("K: {dims: [s, h, d], strides: [3*h*d, d, 1]}", "K: [s, h, d]")).at()
    assert not defines(other, source)
    with pytest.raises(OtherInterfaceError, match=re.escape("float16[20, 2, 16] with the strides (96, 16, 1)")):
        kernel_programs([other], source)


def test_baselines_are_given_the_same_tensors() -> None:
    for text in (PACKED, PROGRAMS["rows of a slice that are changed in place"]):
        problem = measured_problem(parse_spec(text).at(), seed=0)
        assert any(t.strides for t in problem.inputs)
        with GpuWorker("cpu", context="chain") as worker:
            (row,) = run_bench(worker, problem, [baseline("eager", problem)], Effort(5, 2, 0.05, hot=True))
        assert row.timing is not None, row.failure
        assert row.timing.accuracy is not None and row.timing.accuracy.relative < 2e-3


# -- kinds of kernels


def test_sizes_that_differ_by_call_leave_strides_as_they_are() -> None:
    """A slice of rows that are dynamic, and a tensor with room for the most of them."""
    text = """
name: rows
dims: {m: {min: 1, max: 40, tune: [1, 3, 16]}, b: 2, k: 32, n: 16}
inputs:
  X: {dims: [m, k], strides: [80, 1]}
  Y: {dims: [b, m, k], strides: [40*k, k, 1]}
  Z: [b, m, k]
  W: {dims: [k, n], strides: [1, k], scale: 0.1}
program: O = dot(X + Y + Z, W, k)
outputs: {O: [b, m, n]}
"""
    variants = []
    for program in parse_spec(text).programs():
        best = search_program(program, TARGET, Options(bounds=BEST, tune=False)).plans[0]
        assert [str(t) for t in best.graph.inputs if t.strides] == [
            "X f16[m:80, k]",
            "Y f16[b:1280, m, k]",
            "W f16[k:1, n:32]",
        ]
        variants.append(Variant(program, best.graph, best.schedule, ExportInfo()))
    rows = load_export(sized_source(variants)).rows
    torch.manual_seed(0)
    wide, room, weight = torch.randn(40, 80).half(), torch.randn(2, 40, 32).half(), torch.randn(16, 32).half() / 6
    for m in (1, 3, 7, 16, 40):
        z = torch.randn(2, m, 32).half()
        x, y, w = wide[:m, 40:72], room[:, :m], weight.T
        want = (x.float() + y.float() + z.float()) @ w.float()
        torch.testing.assert_close(rows(x, y, z, w).float(), want, atol=1e-2, rtol=1e-2)
        if m == 1:  # where strides of rows do not matter
            continue
        with pytest.raises(ValueError, match=re.escape("X should have the strides (80, 1), not (81, 1)")):
            rows(torch.randn(m, 81).half()[:, :32], y, z, w)


def test_sizes_of_a_spec_share_a_file_where_their_strides_are_equal() -> None:
    text = PLAIN.replace("dims: {m: 6, h: 6, d: 16}", "dims: {m: 6, h: 6, d: 16}\ninstances: [{m: 6}, {m: 1}, {m: 9}]")

    def file(strides: str) -> Any:
        programs = parse_spec(text.replace("X: [m, h, d]", f"X: {{dims: [m, h, d], strides: {strides}}}")).programs()
        plans = [search_program(p, TARGET, Options(bounds=BEST, tune=False)).plans[0] for p in programs]
        return load_export(
            sized_source([Variant(p, x.graph, x.schedule, ExportInfo()) for p, x in zip(programs, plans, strict=True)])
        ).plain

    plain = file("[400, d, 1]")
    for m in (6, 1, 9):
        x = torch.randn(m, 400).half()[:, :96].unflatten(1, (6, 16))
        torch.testing.assert_close(plain(x), x + 1)
    with pytest.raises(MirageError, match="X has other strides at other sizes"):
        file("[100*m, d, 1]")


LINEAR = """
mugraph linear float16
dims m=64 k=128 n=64
input X f16[m:192, k]
input W f16[k:1, n:136]
output O f16[m, n]
kernel k0 {kind}
  X = load X[m, k]
  W = load W[k, n]
  O[m, n] = dot(X, W; k)
  store O[m, n] = O
"""


def linear(kind: str) -> tuple[Any, Program]:
    graph = parse_mugraph(LINEAR.format(kind=kind))
    (k,) = graph.kernels
    return graph, Program("linear", graph.dims, "float16", graph.inputs, k.body, graph.outputs)


@pytest.mark.parametrize("kind", ["library", "generated m:grid n:grid k:loop"])
def test_libraries_and_boxes_take_strides(kind: str, interpreter: Interpreter) -> None:
    graph, program = linear(kind)
    schedule = Schedule({})
    if kind != "library":
        own = KernelSchedule((("m", 32), ("n", 32), ("k", 64)), ("m", "k", "n"), descriptors=True)
        schedule = Schedule({"k0": own})
        x, w = descriptors(graph, graph.kernels[0], own, graph.sizes).values()
        assert (x.dims, x.shape, x.strides) == (("m", "k"), (64, 128), (192, 1))
        assert (w.dims, w.shape, w.strides) == (("n", "k"), (64, 128), (136, 1))
    assert check_equivalence(program, graph, 0).ok
    source = kernels_source(graph, schedule)
    judged = interpreter.judge(program, source, 0)
    assert judged.ok, judged.problem


def test_boxes_of_a_slice_that_begins_anywhere_are_of_a_copy_with_its_strides() -> None:
    """The hardware asks for 16 bytes; what lies in the gaps of a copy is never read."""
    graph, _ = linear("generated m:grid n:grid k:loop")
    own = KernelSchedule((("m", 32), ("n", 32), ("k", 64)), ("m", "k", "n"), descriptors=True)
    launch = load_export(kernels_source(graph, Schedule({"k0": own}))).launch
    torch.manual_seed(0)
    memory, w = torch.randn(64 * 192 + 8).half(), laid_out(torch.randn(128, 64).half(), (1, 136))
    for start in (0, 1, 8):
        x, o = memory[start:].as_strided((64, 128), (192, 1)), torch.empty(64, 64).half()
        launch([x, w], [o], [])
        torch.testing.assert_close(o.float(), x.float() @ w.float(), atol=0.1, rtol=1e-2)


def test_a_library_multiplies_no_axes_over_a_gap_as_one() -> None:
    text = """
mugraph heads float16
dims m=8 h=4 d=16 n=32
input X f16[m:200, h{gap}, d]
input W f16[h, d, n]
output O f16[m, n]
kernel k0 library
  X = load X[m, h, d]
  W = load W[h, d, n]
  O[m, n] = dot(X, W; h, d)
  store O[m, n] = O
"""
    for gap, call in (("", "torch.mm(X.view(8, 64), W.view(64, 32), out=O)"), (":20", "torch.einsum(")):
        graph = parse_mugraph(text.format(gap=gap))
        source = kernels_source(graph, Schedule({}))
        assert call in source
        x, w = laid_out(torch.randn(8, 4, 16).half(), (200, 20 if gap else 16, 1)), torch.randn(4, 16, 32).half()
        o = torch.empty(8, 32).half()
        load_export(source).launch([x, w], [o], [])
        torch.testing.assert_close(o.float(), torch.einsum("mhd,hdn->mn", x.float(), w.float()), atol=0.1, rtol=1e-2)


def test_offsets_are_of_64_bits_where_strides_reach_far() -> None:
    near, _ = linear("generated m:grid n:grid k:loop")
    far = parse_mugraph(canonical_text(near).replace("m:192", f"m:{1 << 26}"))
    schedule = Schedule({"k0": KernelSchedule((("m", 32), ("n", 32), ("k", 64)), ("m", "k", "n"))})
    assert "int64" not in kernels_source(near, schedule)
    assert "int64" in kernels_source(far, schedule)
    assert far.inputs[0].span(far.sizes) > 1 << 31


def test_a_box_asks_for_strides_of_16_bytes_and_neighbours() -> None:
    own = KernelSchedule((("m", 32), ("n", 32), ("k", 64)), ("m", "k", "n"), descriptors=True)
    for old, new, left in (("m:192", "m:193", ["W"]), ("k:1, n:136", "k:2, n:272", ["X"])):
        graph = parse_mugraph(canonical_text(linear("generated m:grid n:grid k:loop")[0]).replace(old, new))
        assert [*descriptors(graph, graph.kernels[0], own, graph.sizes)] == left


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_gpu_programs_with_strides(name: str) -> None:
    from tools.sweep import GpuJudge

    judge = GpuJudge()
    try:
        assert problem(PROGRAMS[name], judge) is None
    finally:
        judge.close()


@pytest.mark.gpu
def test_gpu_slices_that_begin_anywhere() -> None:
    """Calls by a plan, and by Triton where an address is no multiple of 16 bytes; the second call knows its inputs."""
    module: Any = load_export(exported(PACKED)[1])
    for start in (0, 8, 1):
        memory = torch.randn(20 * 96 + start, device="cuda").half()[start:]
        q, k, v = memory.view(20, 3, 2, 16).unbind(1)
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(0, 1).float() for x in (q, k, v)), is_causal=True
        ).transpose(0, 1)
        out = torch.empty(20, 2, 16, dtype=torch.float16, device="cuda")
        for _ in range(3):
            torch.testing.assert_close(module.attention(q, k, v).float(), expected, atol=2e-3, rtol=2e-3)
            assert torch.equal(module.attention(q, k, v, out=out), module.attention(q, k, v))
