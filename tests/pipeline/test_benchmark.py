"""The benchmark without a GPU: attention found in programs, and rows of contestants that fail or do not apply."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mirage_cli.cli.tables import bench_figure, bench_table, remarks
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.bench import benchmark
from mirage_cli.pipeline.bench.benchmark import fastest, run
from mirage_cli.pipeline.bench.convolution import convolution_source
from mirage_cli.pipeline.bench.gate import compare
from mirage_cli.pipeline.bench.library import packed_source
from mirage_cli.pipeline.bench.sdpa import attention_sources, flashinfer_sources, sdpa_source
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.searching import Options
from mirage_cli.pipeline.session import Session
from mirage_cli.spec.reader import load_spec, parse_spec
from mirage_cli.store.records import Best
from mirage_cli.store.results import Result
from mirage_cli.store.store import Database
from mirage_cli.target.gpus import find_target
from mirage_cli.tune import bench
from mirage_cli.tune.bench import Row
from mirage_cli.tune.measure import QUICK, Accuracy, Candidate, Failure, FailureKind, GpuWorker, Problem, Timing
from mirage_cli.verify.numeric import draw_inputs
from tests.programs import result_document

SPECS = Path(__file__).parents[2] / "search_specs"
SMALL = {"q": 12, "s": 20, "m": 3, "d": 8, "e": 8, "h": 2}

ATTENTION = """\
name: attention
dims: {b: 2, h: 3, q: 5, s: 7, d: 4, e: 6}
inputs:
  Q: [b, h, q, d]
  K: [b, h, s, d]
  V: [b, h, s, e]
program: |
  O = PROGRAM
outputs:
  O: OUTPUT
"""


def attention(program: str, output: str = "[b, h, q, e]") -> Program:
    text = ATTENTION.replace("O = PROGRAM", program.replace("\n", "\n  ")).replace("OUTPUT", output)
    return parse_spec(text).at()


def assert_same(program: Program, source: str | None, function: str = "make") -> None:
    """The function of the source computes what eager PyTorch computes, here in float64."""
    assert source is not None
    modules: list[dict[str, Any]] = [{}, {"torch": torch}]
    exec(source, modules[0])
    exec(torch_source(program), modules[1])
    drawn = draw_inputs(program, "normal", torch.device("cpu"), 0)
    inputs = [x.double() if x.is_floating_point() else x for x in drawn]
    given = modules[0]["pack"](inputs) if "pack" in modules[0] else inputs
    result = modules[0]["make"](given)(*given) if function == "make" else modules[0][function](*given)
    assert isinstance(result, tuple) or result.is_contiguous()
    torch.testing.assert_close(result, modules[1]["reference"](*inputs))


OPTIONS = {
    "gqa": "is_causal=False, scale=1.0, enable_gqa=False",
    "gqa_decode": "is_causal=False, scale=0.35355339059327373, enable_gqa=False",
    "gqa_prefill": "is_causal=True, scale=0.35355339059327373, enable_gqa=True",
    "qknorm_gqa": "is_causal=False, scale=0.35355339059327373, enable_gqa=False",
}
"""Attention among the specs that come with mirage, and how PyTorch is called for it."""


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda p: p.stem)
def test_attention_is_found_in_the_specs_that_have_it(path: Path) -> None:
    spec = load_spec(path)
    sizes = SMALL if spec.name in OPTIONS else {}  # what is written by indices may need its own
    program = spec.at({d: n for d, n in sizes.items() if d in dict(spec.dims)})
    source = sdpa_source(program)
    assert (source is not None) == (program.name in OPTIONS)
    if source is not None:
        assert OPTIONS[program.name] in source
        assert_same(program, source)


ARE_ATTENTION = {
    "as usual": "O = dot(softmax(dot(Q, K, d), s), V, s)",
    "operands swapped": "O = dot(V, softmax(dot(K, Q, d), s), s)",
    "scaled before": "O = dot(softmax(dot(Q * 0.3, K, d), s), V, s)",
    "scaled twice": "O = dot(softmax(2 * (dot(Q, K, d) / 3), s), V, s)",
    "softmax by hand": "A = dot(Q, K, d)\nE = exp(A - max(A, s))\nO = dot(E / sum(E, s), V, s)",
    "no maximum": "A = dot(Q, K, d)\nE = exp(A)\nO = dot(E / sum(E, s), V, s)",
    "causal": "O = dot(softmax(where(index(q) >= index(s), dot(Q, K, d) / 2, -inf), s), V, s)",
    "causal, turned round": "O = dot(softmax(where(index(s) <= index(q), dot(Q, K, d), -inf) / 2, s), V, s)",
    "computed operands": "O = dot(softmax(dot(rms_norm(Q, d), silu(K), d), s), tanh(V), s)",
    "a whole head's axes": "O = dot(softmax(dot(Q, K, d, h), s), V, s)",
}
ARE_NOT = {
    "another axis": "O = dot(softmax(dot(Q, K, d), q), V, s)",
    "no softmax": "O = dot(exp(dot(Q, K, d)), V, s)",
    "another sum": "A = exp(dot(Q, K, d))\nO = dot(A / sum(A * A, s), V, s)",
    "another maximum": "A = dot(Q, K, d)\nE = exp(A - max(abs(A), s))\nO = dot(E / sum(E, s), V, s)",
    "scaled by a tensor": "O = dot(softmax(dot(Q, K, d) * sum(Q, d), s), V, s)",
    "the other way": "O = dot(softmax(-dot(Q, K, d), s), V, s)",
    "masked otherwise": "O = dot(softmax(where(index(q) > index(s), dot(Q, K, d), -inf), s), V, s)",
    "masked with a number": "O = dot(softmax(where(index(q) >= index(s), dot(Q, K, d), 0), s), V, s)",
    "more behind it": "O = silu(dot(softmax(dot(Q, K, d), s), V, s))",
}


@pytest.mark.parametrize("what", ARE_ATTENTION)
def test_attention_is_found_however_it_is_written(what: str) -> None:
    program = attention(ARE_ATTENTION[what])
    assert_same(program, sdpa_source(program))


def test_attention_is_found_whatever_its_names_and_memory_order() -> None:
    program = parse_spec("""\
name: conv
dims: {out: 5, pos: 4, x: 6, y: 3, z: 7, w: 2}
inputs: {V: [z, out, y], Q: [pos, y, w, x], K: [z, x, y]}
program: R = dot(V, softmax(where(index(pos) >= index(z), dot(K, Q, x), -inf), z), z)
outputs: {R: [out, pos, w, y]}
""").at()
    source = sdpa_source(program)
    assert_same(program, source)
    assert source is not None and "is_causal=True, scale=1.0, enable_gqa=True" in source


def test_every_way_to_call_a_library_for_attention_computes_the_program() -> None:
    grouped = parse_spec("""\
name: grouped
dims: {b: 2, h: 2, g: 3, q: 5, s: 7, d: 4}
inputs: {Q: [b, h, g, q, d], K: [b, h, s, d], V: [b, h, s, d]}
program: O = dot(softmax(dot(Q, K, d), s), V, s)
outputs: {O: [b, h, g, q, d]}
""").at()
    found = attention_sources(grouped)
    assert {"math", "math, g as heads", "math, g,q as heads", "flex, g as heads"} <= set(found)
    assert "enable_gqa=False" in found["math"] and "enable_gqa=True" in found["math, g as heads"]
    for name, source in found.items():
        if name.startswith(("sdpa", "math")):
            assert_same(grouped, source)


def test_the_library_is_the_fastest_that_is_right_and_the_others_are_remarks() -> None:
    def timed(us: float, error: float) -> Row:
        return Row("", Timing((us,), 1, 1, "", accuracy=Accuracy(error, error)))

    failed = Row("", failure=Failure(FailureKind.COMPILE, "no kernel"))
    found = fastest({"slow": timed(9.0, 0.0), "fast": timed(5.0, 1e-3), "wrong": timed(1.0, nan), "none": failed})
    assert (found["which"], found["median_us"], found["failure"]) == ("fast", 5.0, None)
    assert found["failures"] == {"wrong": "wrong: relative error nan", "none": "compile: no kernel"}
    assert fastest({"none": failed})["failure"] == "none ran"


@pytest.mark.parametrize("what", ARE_NOT)
def test_what_is_no_attention_is_not_found(what: str) -> None:
    assert sdpa_source(attention(ARE_NOT[what])) is None


def test_two_outputs_are_no_attention() -> None:
    program = attention("P = softmax(dot(Q, K, d), s)\nO = dot(P, V, s)", "[b, h, q, e]\n  P: [b, h, q, s]")
    assert sdpa_source(program) is None


# -- libraries

PACKED = """\
name: packed
dims: {m: 3, h: 2, d: 4, n: 5, r: 2}
inputs:
  X: [m, h, d]
  U: [h, d, n]
  V: [n, d, h]
  W: [r, h, d]
  B: [r, n]
  Z: [m, n]
program: |
  PROGRAM
outputs: OUTPUTS
"""
PACK = {
    "gated": ("O = silu(dot(X, U, h, d)) * dot(V, X, h, d) + Z", "{O: [m, n]}"),
    "low rank": ("O = dot(X, U, h, d) + dot(dot(X, W, h, d), B, r)", "{O: [m, n]}"),
    "of a norm, several outputs": (
        "Y = rms_norm(X, h, d)\n  A = dot(Y, U, h, d)\n  C = dot(Y, W, h, d)",
        "{C: [r, m], A: [m, n]}",
    ),
}
NOT_PACKED = {
    "one product": ("O = dot(X, U, h, d) * Z", "{O: [m, n]}"),
    "different axes": ("O = sum(dot(X, U, h), d) + dot(X, V, h, d)", "{O: [m, n]}"),
    "weights used twice": ("O = dot(X, U, h, d) * dot(X, V, h, d) + sum(U, h, d) + sum(V, h, d)", "{O: [m, n]}"),
}


@pytest.mark.parametrize("what", PACK)
def test_products_of_one_value_are_one_with_packed_weights(what: str) -> None:
    program = parse_spec(PACKED.replace("PROGRAM", PACK[what][0]).replace("OUTPUTS", PACK[what][1])).at()
    source = packed_source(program)
    assert_same(program, source, "reference")
    assert source is not None and source.count(" @ weights") == 1 and "torch.einsum" not in source.split("def back")[0]


@pytest.mark.parametrize("what", NOT_PACKED)
def test_nothing_is_packed_where_no_product_has_a_like(what: str) -> None:
    program = parse_spec(PACKED.replace("PROGRAM", NOT_PACKED[what][0]).replace("OUTPUTS", NOT_PACKED[what][1])).at()
    assert packed_source(program) is None


CONVOLVED = """\
name: convolved
dims: {b: 2, y: 5, x: 7, c: 3, e: 4, i: 3, j: 3, h: 9, w: 13, p: 3}
inputs:
  X: [b, y, x, c]
  L: [b, h, w, c]
  F: [b, c, y, x]
  G: [b, c]
  W: [i, j, c, e]
  V: [e, c, i, j]
  U: [c, i, e]
  B: [e]
program: |
  PROGRAM
outputs: OUTPUTS
"""
CONVOLUTIONS = {
    "channels last": ("O = silu(dot(X[b, y + i - 1, x + j - 1, c], W, c, i, j) + B)", "{O: [b, y, x, e]}", 2),
    "channels first": ("O = dot(F[b, c, y + i - 1, x + j - 1], V, c, i, j)", "{O: [b, e, y, x]}", 2),
    "without padding, every second row": (
        "O = dot(L[b, y*2 + i - 1, x*2 + j - 1, c], W, c, i, j)",
        "{O: [b, y, x, e]}",
        2,
    ),
    "holes between the taps": ("O = dot(L[b, y + i*2, x + j*3 - 1, c], W, c, i, j)", "{O: [b, y, x, e]}", 2),
    "one window": ("O = dot(X[b, y + i - 1, x, c], U, c, i) + B", "{O: [b, y, x, e]}", 1),
}
NO_CONVOLUTIONS = {
    "a product": ("O = dot(X, G, c)", "{O: [b, y, x]}"),
    "more padding in front than PyTorch has behind": (
        "O = dot(X[b, y + i, x + j, c], W, c, i, j)",
        "{O: [b, y, x, e]}",
    ),
    "turned taps": ("O = dot(L[b, y - i + 2, x + j, c], W, c, i, j)", "{O: [b, y, x, e]}"),
    "a weight without taps": ("O = dot(X[b, y + i - 1, x, c], G, c) * sum(U, c, e)", "{O: [b, y, x, i]}"),
}


@pytest.mark.parametrize("what", CONVOLUTIONS)
def test_a_convolution_has_pytorchs_own_beside_it(what: str) -> None:
    text, outputs, rank = CONVOLUTIONS[what]
    program = parse_spec(CONVOLVED.replace("PROGRAM", text).replace("OUTPUTS", outputs)).at()
    source = convolution_source(program)
    assert_same(program, source, "reference")
    assert source is not None and source.count(f"conv{rank}d(") == 1


@pytest.mark.parametrize("what", NO_CONVOLUTIONS)
def test_what_pytorch_has_no_convolution_for_has_none(what: str) -> None:
    text, outputs = NO_CONVOLUTIONS[what]
    program = parse_spec(CONVOLVED.replace("PROGRAM", text).replace("OUTPUTS", outputs)).at()
    assert convolution_source(program) is None


class Paged:
    """What FlashInfer's wrappers compute, from their documentation: attention over a paged cache."""

    def __init__(self, workspace: torch.Tensor, layout: str, use_tensor_cores: bool = False) -> None:
        assert layout == "NHD"

    def plan(self, *args: Any, causal: bool = False, sm_scale: float = 0.0, **_: Any) -> None:
        *rows, self.pages, self.indices, last, heads, key_heads, _, page = args
        self.rows = rows[0] if rows else torch.arange(len(last) + 1)
        self.behind = page - last
        self.shared, self.causal, self.scale = heads // key_heads, causal, sm_scale

    def run(self, q: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        out = torch.empty(*q.shape[:2], cache[1].shape[-1], dtype=q.dtype)
        for b in range(len(self.rows) - 1):
            pages = self.indices[self.pages[b] : self.pages[b + 1]].long()
            rows = slice(int(self.rows[b]), int(self.rows[b + 1]))
            k, v = (x[pages].flatten(0, 1).repeat_interleave(self.shared, 1).transpose(0, 1) for x in cache)
            k, v = (x[:, : x.shape[1] - int(self.behind[b])] for x in (k, v))
            scores = self.scale * (q[rows].transpose(0, 1) @ k.mT)
            if self.causal:
                scores += torch.full(scores.shape[1:], -torch.inf).triu(1 + scores.shape[2] - scores.shape[1])
            out[rows] = (scores.softmax(-1) @ v).transpose(0, 1)
        return out


@pytest.mark.parametrize(
    ("spec", "sizes", "count"),
    [("gqa_decode", {"b": 2, "s": 32, "g": 3}, 3), ("gqa_prefill", {"q": 32, "s": 32}, 1), ("gqa", {"q": 5}, 3)],
)
def test_flashinfer_gets_its_own_layout(
    spec: str, sizes: dict[str, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load_spec(SPECS / f"{spec}.yaml")
    program = found.at({d: n for d, n in (SMALL | {"s": 48} | sizes).items() if d in dict(found.dims)})
    names = ("BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper")
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(**dict.fromkeys(names, Paged)))
    sources = flashinfer_sources(program)
    assert len(sources) == count
    for source in sources.values():
        assert_same(program, source)


@pytest.mark.parametrize("mask", ["index(s) <= L[b]", "index(s) < L[b]", "index(s) < 48"])
def test_flashinfer_is_given_the_pages_and_the_lengths_of_a_cache(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (SPECS / "paged_decode.yaml").read_text(encoding="utf-8").replace("index(s) <= L[b]", mask)
    if "L" not in mask:
        text = text.replace(f"where({mask}, A, -inf)", "A").replace("  L: {dims: [b], dtype: int32, below: s}\n", "")
    spec = parse_spec(text)
    program = spec.at({"b": 3, "g": 2, "r": 4, "d": 16, "s": 48, "p": 3, "pages": 20})
    names = ("BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper")
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(**dict.fromkeys(names, Paged)))
    (source,) = flashinfer_sources(program).values()
    assert attention_sources(program) == {} or "L" not in mask
    assert_same(program, source)


def test_flashinfer_is_left_out_where_it_takes_no_such_attention() -> None:
    assert flashinfer_sources(attention("O = dot(softmax(dot(Q, K, d), s), V, s)")) == {}  # 7 keys are no pages
    assert flashinfer_sources(attention("O = dot(dot(Q, K, d), V, s)")) == {}


# -- rows


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """One that measures on the CPU, where times mean little."""
    monkeypatch.setattr(bench, "CAREFUL", QUICK)
    monkeypatch.setattr(bench.run_bench, "__defaults__", (QUICK, 0))
    with (
        Database(tmp_path / "mirage.db") as store,
        GpuWorker("cpu") as worker,
        Session(find_target("h100"), Options(), store, True) as made,
    ):
        monkeypatch.setattr(made, "worker", lambda: worker)
        yield made


def test_a_baseline_that_does_not_apply_is_reported_and_the_others_are_timed(session: Session) -> None:
    rows = [
        run(session, attention("O = dot(softmax(dot(Q, K, d), s), V, s)"), ["eager", "sdpa"]),
        run(session, attention("O = dot(dot(Q, K, d), V, s)"), ["eager", "sdpa"]),
    ]
    for r in rows:
        assert list(r["contestants"]) == ["mirage", "eager", "sdpa"] and r["mugraph"] is None
        assert r["launch_overhead_us"] is None
        assert r["ceilings"] == rows[0]["ceilings"] and min(r["ceilings"].values()) > 0
        assert r["contestants"]["eager"]["median_us"] > 0 and r["contestants"]["eager"]["failure"] is None
    sdpa, none = (r["contestants"]["sdpa"] for r in rows)
    assert sdpa["median_us"] > 0 and sdpa["failure"] is None and sdpa["accuracy"]["relative"] < 1e-2
    assert none["median_us"] is None and none["samples_us"] == []
    assert json.loads(json.dumps(rows)) == rows
    assert [line.partition(": ")[2] for line in remarks(rows)] == [
        "mirage: no kernel was found",
        "mirage: no kernel was found",
        "sdpa: does not apply: the program is no attention",
    ]
    assert len(bench_table(rows).rows) == 2


def test_the_row_of_the_library_names_what_won(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = benchmark.library

    def few(program: Program, problem: Problem) -> dict[str, Candidate]:
        return {n: c for n, c in offered(program, problem).items() if n in ("eager", "math")} | {
            "broken": Candidate("library: broken", "1 / 0", kind="function")
        }

    monkeypatch.setattr(benchmark, "library", few)
    r = run(session, attention("O = dot(softmax(dot(Q, K, d), s), V, s)"), ["eager", "library"])
    found = r["contestants"]["library"]
    assert list(r["contestants"]) == ["mirage", "eager", "library"] and json.loads(json.dumps(r)) == r
    assert found["which"] in ("eager", "math") and found["median_us"] > 0 and "broken" in found["failures"]
    assert any("broken: compile: " in line for line in remarks([r]))
    assert f"({found['which']})" in bench_figure(found, "chain")


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1.01, False)])
def test_a_kernel_of_the_database_is_judged_by_the_yardstick(
    session: Session, factor: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = attention("O = dot(dot(Q, K, d), V, s)")
    source = f"""
import torch

def make_scratch(device):
    return []

def launch(inputs, outputs, scratch):
    Q, K, V = (x.double() for x in inputs)
    outputs[0].copy_({factor} * (Q @ K.mT @ V))
"""
    errors = {"error_vs_float64": None, "eager_error_vs_float64": None}
    key = key_of(program, session.target, True)
    session.store.put_best(key, Best("0", "measured", 1.0, {}, source, Result.from_json(result_document(**errors))))
    monkeypatch.setattr(benchmark, "written_anew", lambda *_: SimpleNamespace(source=source))
    r = run(session, program, [])
    found = r["contestants"]["mirage"]
    assert found["median_us"] > 0 and found["accuracy"]["relative"] < 0.05
    assert (found["wrong"] is None) == right and len(remarks([r])) == sum(
        c.problem is not None for c in compare([r], [r])
    ) == 1 - right
    if not right:
        assert remarks([r])[0].endswith(f"mirage: wrong: {found['wrong']}") and "normal: error " in found["wrong"]
