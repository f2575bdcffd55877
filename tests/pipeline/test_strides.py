"""Inputs with strides of their own: from spec to kernel, what is refused on the way, and the exported function."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import export_source, kernels_source, load_export
from mirage_cli.errors import OtherInterfaceError
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes, merged_by
from mirage_cli.ir.program import Program
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
from tests.pipeline.test_random import PROGRAMS as COUNT
from tests.pipeline.test_random import problem
from tests.pipeline.test_stores import Writer
from tests.random_programs import Draft, random_spec

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
    return program, search_program(program, TARGET, Options(budget_s=15.0)).plans[0]


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
def test_a_file_checks_itself_on_such_inputs(name: str, tmp_path: Path) -> None:
    _, source = exported(PROGRAMS[name])
    stride = "96" if name.startswith("slices") else "32"
    assert f" * {stride}" in source
    path = tmp_path / "file.py"
    for text, code in ((source, 0), (source.replace(f" * {stride}", f" * {int(stride) + 1}", 1), 1)):
        path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, path], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True)
        assert done.returncode == code, done


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
