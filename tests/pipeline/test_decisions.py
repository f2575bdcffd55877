"""Outputs that are whole numbers and masks, through the whole pipeline: searched, verified, emitted, exported."""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mirage_cli
from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.yardstick import UNTOLD
from tests import forked
from tests.pipeline.test_random import problem
from tests.random_programs import Draft, random_spec
from tests.searched import BEST

H100 = find_target("h100")
COUNT = int(os.environ.get("MIRAGE_RANDOM_PROGRAMS", "30")) // 4

PROGRAMS = {
    "the place of the largest": """
name: places
dims: {m: 2, k: 5000}
inputs: {X: [m, k]}
program: |
  O = min(where(X == max(X, k), index(k), k), k)
  N = sum(where(X > 1, 1, 0), k)
outputs:
  O: {dims: [m], dtype: int64}
  N: {dims: [m], dtype: int32}
""",
    "the next token": """
name: token
dims: {m: 3, k: 48, v: 700}
inputs: {X: [m, k], W: {dims: [v, k], scale: 0.1}}
program: |
  Y = dot(X, W, k)
  T = min(where(Y == max(Y, v), index(v), v), v)
outputs:
  T: {dims: [m], dtype: int32}
  Y: [m, v]
""",
    "weights of 8 bits": """
name: quantised
dims: {m: 9, k: 70}
dtype: bfloat16
inputs: {X: [m, k]}
program: |
  S = max(abs(X), k) / 127
  Q = integer(clamp(round(X / S), -128, 127))
outputs:
  Q: {dims: [m, k], dtype: int8}
  S: {dims: [m], dtype: float32}
""",
    "masks": """
name: masks
dims: {m: 9, k: 40, n: 20}
dtype: float32
inputs: {X: [m, k], W: [k, n], P: {dims: [m], dtype: bool}, L: {dims: [m], dtype: int32}}
program: |
  Y = dot(X, W, k)
  M = Y > 1 and P
  A = max(where(M, 1, 0), n) > 0
  N = not isnan(X)
  B = index(k) < L
  P2 = P
outputs:
  M: {dims: [n, m], dtype: bool}
  A: {dims: [m], dtype: bool}
  N: {dims: [m, k], dtype: bool}
  B: {dims: [m, k], dtype: bool}
  P2: {dims: [m], dtype: bool}
""",
    "counts of counts": """
name: counts
dims: {n: 900, c: 200, e: 200}
inputs: {X: {dims: [n], dtype: int32, below: c}, Y: [c]}
program: |
  H = sum(where(X == index(c), 1, 0), n)
  C = sum(where(index(e) <= index(c), rename(H, c=e), 0), e)
  O = where(C[c // 2] > n // 4, Y, 0)
outputs:
  H: {dims: [c], dtype: int64}
  C: {dims: [c], dtype: int32}
  O: [c]
""",
    "parts": """
name: parts
dims: {m: 8, k: 30, w: 60}
inputs: {X: [m, k]}
program: |
  M[m, k] = X > 0
  M[m, k + 30] = X < 1
  C[m, 2*k] = integer(X * 10)
  C[m, 2*k + 1] = index(k) - index(m)
outputs:
  M: {dims: [m, w], dtype: bool}
  C: {dims: [m, w], dtype: int8}
""",
    "whole numbers of whole numbers": """
name: sums
dims: {m: 8, k: 30, n: 12}
inputs: {A: {dims: [m, k], dtype: int8}, B: {dims: [k, n], dtype: int8}, I: {dims: [m], dtype: int64}}
program: |
  P = sum(A * B, k)
  Q = I + index(m) * 3
  R = integer(index(k) // 16) + I
outputs:
  P: {dims: [m, n], dtype: int32}
  Q: {dims: [m], dtype: int64}
  R: {dims: [m, k], dtype: int64}
""",
    "positions of which one is read": """
name: positions
dims: {n: 5, i: 3, j: 3, s: 64, d: 16}
dtype: float32
inputs: {A: [n, i, j], K: [s, d]}
program: |
  G = A + where(index(i) == index(j), 3, 0)
  O = sum(square(G[n, 2, j]), j) * G[n, 2, 1]
  H = where(index(s) < 40 and index(s) >= index(d), K, 0) * index(s)
  P = square(H[5, d]) + H[63, 4]
outputs: {O: [n], P: [d]}
""",
    "of a size that is an argument": """
name: dynamic
dims: {m: {min: 1, max: 64, tune: [4]}, k: 96}
inputs: {X: [m, k], B: {dims: [k], dtype: bool}}
program: |
  A = where(B, X, -inf)
  O = min(where(A == max(A, k), index(k), k), k)
  M = X > 0 and B
outputs:
  O: {dims: [m], dtype: int64}
  M: {dims: [m, k], dtype: bool}
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_decide(name: str, interpreter: Interpreter) -> None:
    assert problem(PROGRAMS[name], interpreter) is None


def made(name: str, **sizes: int) -> Plan:
    found = search_program(parse_spec(PROGRAMS[name]).at(sizes), H100, Options(bounds=BEST, tune=False))
    assert found.plans and not found.rejected
    return found.plans[0]


def test_one_position_is_compared_like_all() -> None:
    """G[n, 2, j] of a diagonal: the number 2 would be compared with j as numbers are, not as positions are."""
    best = made("positions of which one is read")
    assert len(best.graph.kernels) == 1
    assert "index(2)" in canonical_text(best.graph)


def test_partial_results_of_whole_numbers_are_whole_numbers() -> None:
    """float32 holds no odd number beyond 2 ** 24."""
    graph = made("the place of the largest", k=1 << 17).graph
    parts = {t.name: t.dtype for t in graph.buffers if t.name.endswith("_part")}
    assert parts == {"t0_part": "float32", "O_part": "int32", "N_part": "int32"}, canonical_text(graph)
    assert parse_mugraph(canonical_text(graph)) == graph


def test_whole_numbers_are_read_from_memory() -> None:
    """As such: neither counted anew by each kernel that needs them, nor rounded."""
    graph = made("counts of counts", n=1 << 20).graph
    counting = [k.name for k in graph.kernels if any(x.buffer == "X" for x in k.loads)]
    assert len(counting) == 1, canonical_text(graph)
    assert any(x.buffer == "H" for k in graph.kernels for x in k.loads)
    assert {t.dtype for t in graph.buffers} == {"int32"}


# -- exported files


@pytest.fixture(scope="module")
def module() -> Any:
    program, plan = parse_spec(PROGRAMS["masks"]).at(), made("masks")
    return load_export(export_source(program, plan.graph, plan.schedule))


def inputs() -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    numbers = torch.randn(9, 40, generator=g), torch.randn(40, 20, generator=g)
    return *numbers, torch.rand(9, generator=g) > 0.3, torch.randint(0, 40, (9,), generator=g, dtype=torch.int32)


def expected(x: torch.Tensor, w: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    m = (x.double() @ w.double() > 1) & p[:, None]
    return m.T, m.any(1), ~x.isnan(), torch.arange(40) < n[:, None], p


def test_the_exported_function_returns_the_declared_types(module: Any) -> None:
    for y, want in zip(module.masks(*inputs()), expected(*inputs()), strict=True):
        assert y.is_contiguous() and torch.equal(y, want)


def test_out_takes_the_declared_types_alone(module: Any) -> None:
    out = [torch.zeros(y.shape, dtype=torch.bool) for y in expected(*inputs())]
    module.masks(*inputs(), out=tuple(out))
    assert all(map(torch.equal, out, expected(*inputs())))
    with pytest.raises(ValueError, match=r"out should be contiguous torch\.bool"):
        module.masks(*inputs(), out=(*out[:-1], out[-1].float()))
    for wrong in out[0], out[:-1], (*out[:-1], 3), 3:
        with pytest.raises(TypeError, match=f"out should be a tuple of {len(out)} tensors"):
            module.masks(*inputs(), out=wrong)


def test_the_operator_says_the_types_before_it_runs(module: Any) -> None:
    compiled = torch.compile(lambda *x: ~module.masks(*x)[0], backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*inputs()), ~expected(*inputs())[0])


def test_the_exported_file_checks_itself(tmp_path: Path) -> None:
    """And a file that decides otherwise says so."""
    program, plan = parse_spec(PROGRAMS["weights of 8 bits"]).at(), made("weights of 8 bits")
    source = export_source(program, plan.graph, plan.schedule)
    wrong = re.sub(r"= round_to_even\((\w+)\)", r"= tl.floor(\1)", source)
    assert wrong != source
    for text, right in ((source, True), (wrong, False)):
        path = tmp_path / "quantised.py"
        path.write_text(text, encoding="utf-8")
        run = forked.ran((path.name,), tmp_path, os.environ, forked.FILE)
        assert (run.returncode == 0) == right, run.stdout + run.stderr
        assert right or "output 0 is " in run.stdout


# -- from PyTorch


def test_a_function_that_returns_decisions_is_one_kernel(tmp_path: Path) -> None:
    """In the types of PyTorch's results."""

    @mirage_cli.kernel(db=tmp_path / "mirage.db")
    def router(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = (x @ w).softmax(-1)
        weight, expert = scores.topk(2)
        return weight, expert, (scores > 0.2).sum(-1), x.isnan().any(-1)

    x, w = torch.randn(4, 32), torch.randn(32, 8)
    wanted = router(x, w)  # by PyTorch
    router.search(x, w, budget=8)
    assert all(isinstance(k, torch.nn.Module) for k in router.known.values()) and router.known
    for y, want in zip(router(x, w), wanted, strict=True):
        torch.testing.assert_close(y, want)


# -- random programs


def deciding(text: str, seed: int) -> str:
    """The spec with decisions in the place of its outputs, but for those that are written in parts."""
    rng = random.Random(f"deciding {seed}")
    draft = Draft.parse(text)
    lines, outputs = [*draft.lines], dict[str, Any]()
    parted = {name.partition("[")[0] for name, _ in lines if "[" in name}
    outputs |= {name: t for name, t in draft.outputs.items() if name in parted}
    for n, (name, t) in enumerate(x for x in draft.outputs.items() if x[0] not in parted):
        dims = t["dims"]
        over = rng.choice(dims) if dims else ""
        kept = [d for d in dims if d != over]
        number = rng.choice(("0", "0.5", "-1"))
        ways: list[tuple[str, list[str], str]] = [
            (f"{name} {rng.choice(('<', '<=', '>', '>='))} {number}", dims, "bool"),
            (f"integer(clamp(round({name} * 3), -100, 100))", dims, rng.choice(("int8", "int32", "int64"))),
            (f"{name} > {number} and not isnan({name})", dims, "bool"),
        ]
        if dims:
            most = rng.choice(("max", "min"))
            place = f"min(where({name} == {most}({name}, {over}), index({over}), {over}), {over})"
            ways += [
                (place, kept, rng.choice(("int32", "int64"))),
                (f"sum(where({name} > {number}, 1, 0), {over})", kept, "int32"),
                (f"{most}(where({name} > {number}, 1, 0), {over}) > 0", kept, "bool"),
            ]
        expression, axes, dtype = rng.choice(ways)
        lines.append((f"N{n}", expression))
        outputs[f"N{n}"] = {"dims": axes, "dtype": dtype}
        if rng.random() < 0.3:
            outputs[name] = t
    return replace(draft, lines=tuple(lines), outputs=outputs).text


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_programs_that_decide(seed: int, interpreter: Interpreter) -> None:
    text = deciding(random_spec(7000 + seed, accesses=seed % 2 > 0), seed)
    found = problem(text, interpreter)
    assert found is None or UNTOLD in found, text
