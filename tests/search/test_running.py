"""Reductions up to each position: as scans, and by blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mirage_cli.codegen import nodes
from mirage_cli.codegen.check import PlanError, check
from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.plan import Let
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites import running
from mirage_cli.ir.rewrites.running import block_of, in_scans
from mirage_cli.ir.scans import Scan, by_scans, scanned
from mirage_cli.ir.schedule import whole_blocks
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.predicting import judge_small
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.search.cuts import Bounds
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify import draws, float64, interpret
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.fieldsemantics import FieldSemantics
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.interpret import run_program
from mirage_cli.verify.numeric import draw_inputs
from mirage_cli.verify.reduced import small_instance
from mirage_cli.verify.residues import aligned
from tests.programs import program as written_program
from tests.searched import BEST

SPEC = """
name: running
dims: {{m: 3, t: {size}, j: {size}, h: 8}}
dtype: float32
inputs: {{X: [m, t], M: {{dims: [j], dtype: bool}}, N: {{dims: [m, t], dtype: int32, below: 3}}, Y: [h, j]}}
program: |
  O = {program}
outputs: {{O: {output}}}
"""
UP_TO = "sum(where(index(j) <= index(t), X[m, j], 0), j)"


def written(program: str, size: int = 64, output: str = "[m, t]") -> str:
    return SPEC.format(program=program, size=size, output=output)


def taken(text: str, long: int = running.LONG) -> Program | None:
    return in_scans(lower(parse_spec(text).at()), long)


def test_positions_before_each_are_those_up_to_it_of_what_is_shifted() -> None:
    found = taken(written("sum(where(M and index(j) < index(t), X[m, j], 0), j)"))
    assert found is not None
    assert [str(e) for e in found.eqns] == [
        "t4[m, j] = rename(X; t=j)",
        "O_some[m, j] = where(M, t4, 0)",
        "O_moved[m, j] = rename(O_some; j=j - 1)",
        "j1[j] = index(j - 1)",
        "O_mask[j] = ge(j1, 0)",
        "O_some1[m, j] = where(O_mask, O_moved, 0)",
        "j2[j] = index(j)",
        "t6[t] = index(t)",
        "O_mask1[t, j] = le(j2, t6)",
        "O_some2[m, t, j] = where(O_mask1, O_some1, 0)",
        "O[m, t] = sum(O_some2; j)",
    ]


@pytest.mark.parametrize(("start", "order"), [(3, "index(j) > index(t)"), (2, "index(j) < index(t)")])
def test_what_lies_behind_the_end_of_a_slice_is_no_part_of_it(start: int, order: str) -> None:
    """X[j + 4] of the last j is there in memory, and is not S[j + 1]."""
    text = written(f"sum(where({order}, X[m, j + {start}], 0), j)")
    program = parse_spec(text.replace("X: [m, t]", "X: [m, w]").replace("h: 8", "h: 8, w: 70")).at()
    found = search_program(program, find_target("h100"), Options(budget_s=60, tune=False))
    assert found.plans and not found.rejected, found.rejected
    x = torch.arange(210.0).reshape(3, 70)
    part = x[:, start : start + 64].double()
    sums = part.flip(1).cumsum(1).flip(1) if ">" in order else part.cumsum(1)
    inputs = [x if t.name == "X" else torch.zeros([program.sizes[d] for d in t.dims]) for t in program.inputs]
    (made,) = reference64(in_scans(lower(program)) or program, inputs)
    assert torch.equal(made, sums - part)


def test_a_sum_along_a_long_axis_is_of_a_block_and_of_the_blocks_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BLOCK", 16)
    found = taken(written(UP_TO), 60)
    assert found is not None
    assert [str(e) for e in found.eqns] == [
        "t3[m, j] = rename(X; t=j)",
        "O_moved[m, block, inner] = rename(t3; j=block*16 + inner)",
        "O_total[m, block] = sum(O_moved; inner)",
        "O_earlier[m, earlier] = rename(O_total; block=earlier)",
        "O_moved1[m, earlier] = rename(O_earlier; earlier=earlier - 1)",
        "earlier1[earlier] = index(earlier - 1)",
        "O_mask[earlier] = ge(earlier1, 0)",
        "O_some[m, earlier] = where(O_mask, O_moved1, 0)",
        "earlier2[earlier] = index(earlier)",
        "block1[block] = index(block)",
        "O_mask1[block, earlier] = le(earlier2, block1)",
        "O_some1[m, block, earlier] = where(O_mask1, O_some, 0)",
        "O_before[m, block] = sum(O_some1; earlier)",
        "inner1[inner] = index(inner)",
        "within1[within] = index(within)",
        "O_mask2[within, inner] = le(inner1, within1)",
        "O_some2[m, block, within, inner] = where(O_mask2, O_moved, 0)",
        "O_within[m, block, within] = sum(O_some2; inner)",
        "O_both[m, block, within] = add(O_within, O_before)",
    ]
    assert [str(p) for p in found.parts] == ["O[m, block*16 + within] = O_both"]


def test_blocks_have_one_length_where_they_can() -> None:
    assert [block_of(n) for n in (8193, 10_000, 1 << 20, 16381)] == [256, 250, 256, 256]
    assert [block_of(n) for n in (32769, 512 * 331)] == [331, 256]


def test_blocks_are_longer_where_there_would_be_many() -> None:
    """Each adds up the sums of all before it."""
    assert [block_of(n) for n in (1 << 21, (1 << 21) + 1, 6_553_600, 52_428_800)] == [512, 1024, 2048, 2048]
    text = (
        written(UP_TO, 3 << 20).replace("m: 3, ", "").replace("[m, ", "[").replace("M: {dims: [j], dtype: bool}, ", "")
    )
    program = parse_spec(
        text.replace(", N: {dims: [t], dtype: int32, below: 3}, Y: [h, j]", "").replace("h: 8", "h: 1")
    ).at()
    found = search_program(program, find_target("h200"), Options(bounds=BEST, tune=False))
    assert not found.rejected
    assert "block*1024 + within" in print_mugraph(found.plans[0].graph)


RIGHT = [
    pytest.param(UP_TO, 64, "[m, t]", id="up to each"),
    pytest.param("sum(where(index(j) < index(t), X[m, j], 0), j)", 80, "[t, m]", id="before each"),
    pytest.param("sum(where(index(t) < index(j) + 1, X[m, j], 0), j)", 67, "[m, t]", id="from each on, a short block"),
    pytest.param("sum(where(index(j) > index(t), X[m, j], 0), j)", 64, "[m, t]", id="behind each"),
    pytest.param("sum(where(M and index(t) >= index(j), X[m, j] * 0.5, 0), j)", 64, "[m, t]", id="another mask"),
    pytest.param("sum(where(index(j) < index(t), exp(X[m, j]), 0), j)", 67, "[m, t]", id="of what is not 0 outside"),
    pytest.param("max(where(index(j) <= index(t), X[m, j], -inf), j)", 67, "[m, t]", id="a maximum"),
    pytest.param("max(where(index(j) > index(t), X[m, j], -inf), j)", 64, "[m, t]", id="a maximum behind each"),
    pytest.param("min(where(index(j) >= index(t), X[m, j], inf), j)", 67, "[m, t]", id="a minimum from each on"),
    pytest.param("prod(where(index(j) <= index(t), X[m, j], 1), j)", 67, "[m, t]", id="a product"),
    pytest.param("prod(where(index(j) > index(t), 1 - X[m, j], 1), j)", 67, "[m, t]", id="a product behind each"),
    pytest.param("exp(0.01 * " + UP_TO + ") * X", 70, "[m, t]", id="with what is made of it"),
    pytest.param(
        "sum(where(index(j) < index(t), where(N[m, j] == 1, 1, 0), 0), j)", 64, "{dims: [m, t], dtype: int32}",
        id="a count",
    ),
]  # fmt: skip


EXPONENTIALS = [
    pytest.param("logsumexp(where(index(j) <= index(t), X[m, j], -inf), j)", 67, "[m, t]", id="of exponentials"),
    pytest.param("logsumexp(where(index(j) >= index(t), X[m, j], -inf), j)", 67, "[m, t]", id="from each on"),
]


def judged(text: str, interpreter: Interpreter, long: int = running.LONG) -> list[MuGraph]:
    """Judges the two best plans."""
    program = lower(parse_spec(text).at())
    found = search(in_scans(program, long) or program, find_target("h200"), bounds=Bounds(plans=2)).candidates[:2]
    for c in found:
        verdict = check_equivalence(program, c.graph, 0)
        assert verdict.ok, verdict
        made = judge_small(interpreter, program, c.graph, c.schedule)
        assert made.ok, made.problem
    return [c.graph for c in found]


@pytest.mark.parametrize(("program", "size", "output"), [*RIGHT, *EXPONENTIALS])
def test_kernels_with_scans_are_right(program: str, size: int, output: str, interpreter: Interpreter) -> None:
    best, *_ = judged(written(program, size, output), interpreter)
    assert any(isinstance(e, Scan) for k in best.kernels for e in scanned(k).body)


@pytest.mark.parametrize(("r", "blocks"), [(8, {"r": 8, "t": 8}), (4, {"r": 4, "t": 8})])
def test_what_is_no_scan_has_blocks_of_its_own_sizes(r: int, blocks: dict[str, int]) -> None:
    """Its two axes are not as long as each other."""
    text = f"""
mugraph prefixes float16
dims r={r} t=8
input G f32[r]
output C f32[t]

kernel k0 generated r:tile t:tile
  G = load G[r]
  i[r] = index(r)
  j[t] = index(t)
  m[r, t] = le(i, j)
  w[r, t] = where(m, G, 0)
  C[t] = sum(w; r)
  store C[t] = C
"""
    (kernel,) = parse_mugraph(text.lstrip()).kernels
    assert whole_blocks(kernel, {"r": r, "t": 8}) == blocks


SHARED = """
mugraph segments float32
dims t=4 q=4 s=4 k=16 r=4
input X f32[r]
input A f32[q, k]
input B f32[s, k]
output C f32[t]
output O f32[q, s]

kernel k0 generated t:tile q:tile s:tile k:tile r:tile
  A = load A[q, k]
  B = load B[s, k]
  X = load X[r]
  i[r] = index(r)
{scans}
  p[q, s] = dot(A, B; k)
  O[q, s] = mul(p, Q)
  store C[t] = C
  store O[q, s] = O
"""


@pytest.mark.parametrize("order", ["tq", "qt"])
def test_scans_of_one_axis_have_one_block(order: str) -> None:
    """Also where the results of one are rows of a product, which are padded, and those of another are not."""
    names = {"t": ("C", "t"), "q": ("Q", "q")}
    scans = [
        f"  j{to}[{to}] = index({to})\n  m{to}[{to}, r] = le(i, j{to})\n  w{to}[{to}, r] = where(m{to}, X, 0)\n"
        f"  {out}[{to}] = sum(w{to}; r)"
        for out, to in (names[x] for x in order)
    ]
    graph = parse_mugraph(SHARED.replace("{scans}", "\n".join(scans)).lstrip())
    (kernel,) = graph.kernels
    blocks = whole_blocks(kernel, graph.sizes)
    assert {blocks[d] for d in "tqr"} == {16}


def test_a_scan_beside_a_product_of_few_rows_has_one_block(interpreter: Interpreter) -> None:
    """Eight positions are padded to 16 rows for the matrix units: what the scan reads along r is padded too."""
    text = """
name: chunk
dims: {n: 3, t: 8, s: t, r: t, k: 16, v: 16}
inputs: {Q: [n, t, k], V: [n, s, v], G: [n, t, k]}
program: |
  c = sum(where(index(r) <= index(t), rename(G, t=r), 0), r)
  O = dot(dot(Q * exp(c), rename(Q, t=s), k), V, s)
outputs: {O: [n, t, v]}
"""
    best, *_ = judged(text, interpreter)
    assert any(isinstance(e, Scan) for k in best.kernels for e in scanned(k).body)


@pytest.mark.parametrize(
    ("program", "size", "output"), [x for x in RIGHT if not any(op in str(x) for op in ("max(", "min("))]
)
def test_kernels_by_blocks_are_right(
    program: str, size: int, output: str, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "BLOCK", 8)
    judged(written(program, size, output), interpreter, 60)


@pytest.mark.parametrize(("program", "size", "output"), RIGHT)
def test_numbers_are_evaluated_by_scans_as_they_are_written(
    program: str, size: int, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_so = parse_spec(written(program, size, output)).at()
    inputs = draw_inputs(written_so, "normal", torch.device("cpu"), 0)
    lowered = lower(written_so)
    (found,) = reference64(written_so, inputs)
    scans = sum(isinstance(e, Scan) for e in by_scans(lowered).eqns)
    assert scans == (not any(other in program for other in ("index(j) < ", "index(j) > ", "M and")))
    assert not scans or all({"t", "j"} - {*e.dims} for e in by_scans(lowered).eqns)
    eager: dict[str, Any] = {"torch": torch}
    exec(torch_source(written_so), eager)
    monkeypatch.setattr(float64, "by_scans", lambda program: program)
    assert torch.allclose(found, reference64(written_so, inputs)[0], rtol=1e-12, atol=1e-12)
    assert torch.allclose(eager["reference"](*inputs).double(), found, rtol=1e-4, atol=1e-4)


SUMS = {
    "of numbers": ("a = mul(X, X)", "le"),
    "of roots, some of which there are not": ("a = sqrt(X)", "le"),
    "of integers": ("a = mul(N, 3)", "le"),
    "of infinities": ("c = lt(X, 0) | a = where(c, X, inf)", "le"),
    "from the other side": ("a = sqrt(X)", "ge"),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_up_to_each_position_are_in_fields_what_their_masks_make(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, order = SUMS[name]
    p = written_program(
        "m=3 t=5 j=5",
        "X[m,j] N:int32[m,j]",
        f"{made} | i = index(j) | k = index(t) | u = {order}(i, k) | w = where(u, a, 0) | O = sum(w; j)",
    )
    block = range(2, 66)
    semantics = [FieldSemantics(7, p.sizes), FieldSemantics(7, p.sizes)]
    inputs = draws._inputs(p, 7, block)
    asked: list[str] = []
    own = FieldSemantics.running
    monkeypatch.setattr(FieldSemantics, "running", lambda self, e, x: asked.append(e.out) or own(self, e, x))
    found = run_program(p, inputs, semantics[0])["O"]
    assert asked == ["O"]
    monkeypatch.setattr(interpret, "by_scans", lambda program, sums_alone: program)
    masked = run_program(p, inputs, semantics[1])["O"]
    data = aligned(found.data, found.dims, masked.dims, int(found.kind == "field"))
    assert found.kind == masked.kind and found.valid == masked.valid
    assert (data == masked.data)[~masked.whole_taint if masked.kind == "field" else ...].all()
    assert (aligned(found.whole_taint, found.dims, masked.dims, 1) == masked.whole_taint).all()
    assert (found.flags is None) == (masked.flags is None)
    if masked.flags is not None and found.flags is not None:
        assert (aligned(found.flags, found.dims, masked.dims) == masked.flags).all()


@pytest.mark.parametrize(
    ("program", "size"),
    [
        pytest.param(UP_TO, 64, id="as scans have it"),
        pytest.param("sum(where(index(j) <= index(t), X[m, j] * X[m, t], 0), j)", 64, id="of the position itself"),
        pytest.param("sum(where(index(j) <= index(t), X[m, j], 1), j)", 64, id="ones outside"),
        pytest.param("sum(where(index(j) <= index(t) + 1, X[m, j], 0), j)", 64, id="one further"),
        pytest.param("sum(where(index(j) + index(t) < 64, X[m, j], 0), j)", 64, id="up to the mirrored position"),
        pytest.param("sum(where(index(j) <= 2 * index(t), X[m, j], 0), j)", 64, id="twice as far"),
        pytest.param("sum(where(index(j) <= N, X[m, j], 0), j)", 64, id="up to a number"),
        pytest.param("sum(where(index(j) == index(t), X[m, j], 0), j)", 64, id="equal"),
        pytest.param(
            "sum(where(index(j) <= index(t) and index(j) > index(t) - 9, X[m, j], 0), j)", 64, id="a window"
        ),
        pytest.param("max(where(index(j) < index(t), X[m, j], 0), j)", 64, id="a maximum that is not negative"),
        pytest.param("X * sum(where(index(j) <= index(h), Y[h, j], 0), j, h)", 64, id="two axes"),
    ],
)  # fmt: skip
def test_other_sums_are_as_they_were(program: str, size: int) -> None:
    assert taken(written(program, size)) is None


def test_what_is_read_from_its_end_on_is_a_sum_from_the_other_side(interpreter: Interpreter) -> None:
    text = written("R[m, 66 - t]", 67).replace(
        "  O =", "  R = sum(where(index(j) <= index(t), X[m, 66 - j], 0), j)\n  O ="
    )
    found = taken(text)
    assert found is not None
    assert "ge" in [e.op for e in found.eqns]
    assert not any(e.out == "O" and e.names for e in found.eqns)
    judged(text, interpreter)


RECURRENCE = """
name: recurrence
dims: {{m: 3, t: {size}, s: {size}, r: {size}, d: 5}}
dtype: float32
inputs: {inputs}
program: |
  D = sigmoid(A)
  O = {program}
outputs: {{O: [m, t, d]}}
"""
GIVEN = "{A: [m, t, d], B: [m, t, d]}"
BEHIND = "sum(where(index(s) <= index(t), B[m, s, d] * {}, 0), s)"
"""What there is at each position of h[t] = decay[t] * h[t - 1] + B[t]."""
DECAYED = "prod(where(index(s) < index(r) and index(r) <= index(t), D[m, r, d], 1), r)"
RECURRENCES = [
    pytest.param(BEHIND.format(DECAYED), GIVEN, id="from the start on"),
    pytest.param(
        "sum(where(index(s) >= index(t), B[m, s, d] * "
        "prod(where(index(r) < index(s) and index(t) <= index(r), D[m, r, d], 1), r), 0), s)",
        GIVEN, id="from the end on",
    ),
    pytest.param(
        BEHIND.format("prod(where(index(r) <= index(t) and index(r) > index(s), 0.9, 1), r) * 0.1"),
        GIVEN, id="a number",
    ),
    pytest.param(
        BEHIND.format("(1 - D[m, s, d]) * prod(where(index(s) < index(r) and index(r) <= index(t), A[m, r], 1), r)"),
        "{A: [m, t], B: [m, t, d]}", id="decays that lack an axis",
    ),
    pytest.param(
        BEHIND.replace("B[m, s, d]", "B[s, d]").format(DECAYED), "{A: [m, t, d], B: [t, d]}", id="values that do",
    ),
]  # fmt: skip


def recurrent(program: str, inputs: str, size: int = 37) -> str:
    if "A: [m, t]," in inputs:
        program = program.replace("D[m, s, d]", "D[m, s]")
    return RECURRENCE.format(program=program, inputs=inputs, size=size)


def stepwise(text: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    """One position after the other, in float64."""
    a, b = (x.double() for x in inputs)
    a = a[..., None] if a.dim() < 3 else a
    decay = torch.sigmoid(a) if "D[m, r" in text else torch.full_like(a, 0.9) if "0.9" in text else a
    b = b * (0.1 if "0.1" in text else 1 - torch.sigmoid(a) if "1 - D" in text else 1)
    decay, b = torch.broadcast_tensors(decay, b)
    h, found = torch.zeros_like(b[:, 0]), [torch.zeros(())] * b.shape[1]
    order = range(b.shape[1])
    for t in reversed(order) if ">= index(t)" in text else order:
        found[t] = h = decay[:, t] * h + b[:, t]
    return torch.stack(found, 1)


@pytest.mark.parametrize(("program", "inputs"), RECURRENCES)
def test_recurrences_are_what_they_are_step_by_step(program: str, inputs: str) -> None:
    text = recurrent(program, inputs)
    spec = parse_spec(text).at()
    given = draw_inputs(spec, "normal", torch.device("cpu"), 0)
    want, eager = stepwise(text, given), dict[str, Any](torch=torch)
    assert sum(isinstance(e, Scan) for e in by_scans(lower(spec)).eqns) == 1
    assert torch.allclose(reference64(spec, given)[0], want, rtol=1e-12, atol=1e-12)
    exec(torch_source(spec), eager)
    assert torch.allclose(eager["reference"](*given).double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("program", "inputs"), RECURRENCES)
def test_numbers_of_recurrences_are_evaluated_as_they_are_written(
    program: str, inputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parse_spec(recurrent(program, inputs, 7)).at()
    given = draw_inputs(spec, "normal", torch.device("cpu"), 0)
    (found,) = reference64(spec, given)
    monkeypatch.setattr(float64, "by_scans", lambda program: program)
    assert torch.allclose(found, reference64(spec, given)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("program", "inputs"), RECURRENCES)
def test_kernels_of_recurrences_are_right(program: str, inputs: str, interpreter: Interpreter) -> None:
    best, *_ = judged(recurrent(program, inputs), interpreter)
    (scan,) = (e for k in best.kernels for e in scanned(k).body if isinstance(e, Scan))
    assert scan.along == "r"


@pytest.mark.parametrize("size", [37, 40])
@pytest.mark.parametrize(("program", "inputs"), RECURRENCES)
def test_kernels_of_recurrences_by_blocks_are_right(
    program: str, inputs: str, size: int, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole blocks they are scans, within the blocks and over them."""
    monkeypatch.setattr(running, "DECAYING", (4,))
    best, *_ = judged(recurrent(program, inputs, size), interpreter, 30)
    scans = sum(isinstance(e, Scan) and e.along > "" for k in best.kernels for e in scanned(k).body)
    assert scans == (2 if size == 40 else 0)


@pytest.mark.parametrize(
    "edit",
    [
        (" <= index(t), B", " < index(t), B"),
        ("index(s) < index(r)", "index(s) <= index(r)"),
        ("index(r) <= index(t)", "index(r) < index(t)"),
        ("index(r) <= index(t), D", "index(r) <= index(s), D"),
        ("index(s) < index(r) and ", ""),
        ("D[m, r, d], 1)", "D[m, r, d], 0)"),
        ("D[m, r, d], 1)", "D[m, r, d] + D[m, s, d], 1)"),
        ("B[m, s, d] * ", "B[m, s, d] + "),
        ("B[m, s, d] * ", "B[m, s, d] * B * "),
    ],
)
def test_other_sums_of_products_are_no_recurrences(edit: tuple[str, str]) -> None:
    text = recurrent(BEHIND.format(DECAYED), GIVEN)
    assert edit[0] in text
    assert not any(isinstance(e, Scan) and e.along for e in by_scans(lower(parse_spec(text.replace(*edit)).at())).eqns)


@pytest.fixture(scope="module")
def blocks() -> tuple[Program, MuGraph]:
    """The best plan of a recurrence by blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "DECAYING", (4,))
        program = lower(parse_spec(recurrent(BEHIND.format(DECAYED), GIVEN, 4096)).at())
        form = in_scans(program)
        assert form is None
        form = in_scans(program, 1024)
        assert form is not None
        graph = search(form, find_target("h200"), bounds=BEST).candidates[0].graph
        assert check_equivalence(program, graph, 0).ok
        return program, graph


@pytest.mark.parametrize(
    "edit",
    [
        (" = gt(between1, ", " = ge(between1, "),
        (" = le(earlier", " = lt(earlier"),
        (" = gt(after2, ", " = ge(after2, "),
        ("block*4 + after + 1", "block*4 + after"),
        (" = ge(after2, inner1)", " = gt(after2, inner1)"),
        ("O_total[m, d, earlier - 1]", "O_total[m, d, earlier]"),
        ("O_whole[m, d, between - 1]", "O_whole[m, d, between]"),
        ("mul(O_kept, O_before)", "mul(O_within, O_before)"),
    ],
)
def test_another_recurrence_is_refused(blocks: tuple[Program, MuGraph], edit: tuple[str, str]) -> None:
    program, graph = blocks
    text = print_mugraph(graph)
    assert edit[0] in text
    assert not check_equivalence(program, parse_mugraph(text.replace(*edit)), 0).ok


UNREAD = ", M: {dims: [j], dtype: bool}, N: {dims: [m, t], dtype: int32, below: 3}, Y: [h, j]"
HOLES = torch.tensor([[1.0, 2.0, -torch.inf, 3.0, 1.0], [1.0, torch.nan, 5.0, torch.inf, -torch.inf]])


@pytest.mark.parametrize(
    ("program", "eager"),
    [
        (UP_TO, lambda x: x.cumsum(1)),
        ("sum(where(index(j) >= index(t), X[m, j], 0), j)", lambda x: x.flip(1).cumsum(1).flip(1)),
        ("max(where(index(j) <= index(t), X[m, j], -inf), j)", lambda x: x.cummax(1).values),
        ("min(where(index(j) >= index(t), X[m, j], inf), j)", lambda x: x.flip(1).cummin(1).values.flip(1)),
    ],
)
def test_infinities_and_nans_are_as_in_pytorch(program: str, eager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a block that reaches past the end of the axis."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    text = SPEC.format(program=program, size=5, output="[m, t]").replace("m: 3", "m: 2")
    spec = parse_spec(text.replace(UNREAD, ""))
    best = search_program(spec.at(), find_target("h200"), Options(tune=False)).plans
    found = next(p for p in best if any(isinstance(e, Scan) for k in p.graph.kernels for e in scanned(k).body))
    with np.errstate(invalid="ignore"):
        made = load_export(export_source(spec.at(), found.graph, found.schedule)).running(HOLES)
    assert torch.equal(made.nan_to_num(7, 8, 9), eager(HOLES).nan_to_num(7, 8, 9))


LARGE = [[-torch.inf, -torch.inf, 300.0, -200.0, 1.0], [-1e30, -1.0, 2.0, 1e30, 5.0], [torch.inf, 1.0, 2.0, 3.0, 4.0]]


def test_sums_of_exponentials_are_as_in_pytorch_where_numbers_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    program = "logsumexp(where(index(j) <= index(t), X[m, j], -inf), j)"
    text = SPEC.format(program=program, size=5, output="[m, t]").replace("m: 3", "m: 5")
    spec, given = parse_spec(text.replace(UNREAD, "")), torch.cat([HOLES, torch.tensor(LARGE)])
    best = search_program(spec.at(), find_target("h200"), Options(tune=False)).plans
    found = next(
        p for p in best if any(isinstance(e, Scan) and e.relative for k in p.graph.kernels for e in scanned(k).body)
    )
    with np.errstate(all="ignore"):
        made = load_export(export_source(spec.at(), found.graph, found.schedule)).running(given)
    torch.testing.assert_close(made, given.double().logcumsumexp(1).float(), rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("back", [False, True])
def test_a_plan_that_scans_what_is_not_neutral_past_the_end_is_refused(back: bool) -> None:
    sign = ">=" if back else "<="
    program = lower(parse_spec(written(f"max(where(index(j) {sign} index(t), X[m, j], -inf), j)", 67)).at())
    c = search(program, find_target("h200"), bounds=BEST).candidates[0]
    made = plan_kernel(c.graph, c.graph.kernels[0], c.schedule, c.graph.sizes)
    check(made)
    (scan,) = [s for s in made.statements if isinstance(s, Let)]
    assert isinstance(scan.expr, nodes.Scan)
    assert isinstance(scan.expr.x, nodes.Masked)
    bare = replace(scan, expr=replace(scan.expr, x=scan.expr.x.x))
    with pytest.raises(PlanError, match="lanes past the end of j"):
        check(replace(made, statements=tuple(bare if s is scan else s for s in made.statements)))


def test_axes_of_other_sizes_are_not_scanned() -> None:
    program = lower(parse_spec(written(UP_TO).replace("j: 64", "j: 63")).at())
    for c in search(program, find_target("h200")).candidates:
        assert "tile" not in {c.graph.kernels[0].role("t")}


@pytest.fixture(scope="module")
def plan() -> tuple[Program, Plan]:
    """Of 65536 positions in 256 blocks, and of 128 rows: an axis that is none of blocks."""
    text = written(UP_TO, 1 << 16).replace("m: 3", "m: 128")
    program = parse_spec(text).at()
    found = search_program(program, find_target("h200"), Options(bounds=BEST, tune=False))
    assert not found.rejected
    return lower(program), found.plans[0]


def test_the_plan_is_by_blocks_and_its_tests_are_small(plan: tuple[Program, Plan]) -> None:
    program, best = plan
    sizes, _ = small_instance(program, best.graph, 0)
    assert "block*256 + within" in print_mugraph(best.graph)
    assert sizes["within"] == sizes["inner"] == 256
    assert sizes["t"] == 256 * sizes["block"] <= 1280
    assert sizes["m"] < 8


@pytest.mark.parametrize(
    "edit",
    [
        (" = le(earlier", " = lt(earlier"),
        (" = ge(earlier1, 0)", " = ge(earlier1, 1)"),
        (" = le(inner", " = lt(inner"),
        (" = le(inner", " = ge(inner"),
        ("block*256 + inner]", "block*256 + inner + 1]"),
        ("block*256 + inner]", "block*255 + inner]"),
        ("block*256 + within]", "within*256 + block]"),
    ],
)
def test_another_sum_is_refused(plan: tuple[Program, Plan], edit: tuple[str, str]) -> None:
    program, best = plan
    text = print_mugraph(best.graph)
    assert edit[0] in text
    assert not check_equivalence(program, parse_mugraph(text.replace(*edit)), 0).ok


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_maximum_that_shifts_exponentials_stays_that_of_their_exponent(order: str) -> None:
    """Of rows without elements log(sum) + max is -inf. Less another form of the maximum it would be NaN."""
    spec = "name: p\ndims: {h: 8, j: 64, t: 64}\ndtype: float32\ninputs: {X: [h, j]}\nprogram: |\n  O = "
    text = f"logsumexp(where(index(j) {order} index(t), X, -inf), j)\noutputs: {{O: [h, t]}}"
    found = search_program(parse_spec(spec + text).at(), find_target("h200"), Options(tune=False))
    assert found.plans and not found.rejected
