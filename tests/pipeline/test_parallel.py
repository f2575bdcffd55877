"""A split computes what the program does: its stages run on each GPU's part in float64, joined as the split says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.parallel import Split, splits
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.pipeline.roofline import bounds
from mirage_cli.spec.reader import load_spec, parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import reduced_sizes
from mirage_cli.verify import testdata
from mirage_cli.verify.float64 import reference64

SPECS = sorted((Path(__file__).parents[2] / "search_specs").glob("*.yaml"))
H200 = find_target("h200")
JOINED = {
    "add": sum,
    "maximum": lambda xs: torch.stack(list(xs)).amax(0),
    "minimum": lambda xs: torch.stack(list(xs)).amin(0),
}
MLP = """
name: mlp
dims: {m: 16, k: 4096, n: 14336, p: 4096}
dtype: float16
inputs: {X: [m, k], W1: [k, n], W2: [k, n], W3: [n, p]}
program: |
  O = dot(silu(dot(X, W1, k)) * dot(X, W2, k), W3, n)
outputs: {O: [m, p]}
"""


def program(body: str, dims: str = "{m: 4, k: 6, n: 8}", output: str = "[m, n]") -> Program:
    inputs = "inputs: {X: [m, k], W: [k, n], R: [m, n]}"
    text = f"name: t\ndims: {dims}\ndtype: float32\n{inputs}\nprogram: |\n  O = {body}\noutputs: {{O: {output}}}\n"
    return parse_spec(text, "t.yaml").programs()[0]


def drawn(p: Program) -> dict[str, torch.Tensor]:
    problem = measured_problem(p, 0)
    shapes, spreads = [s.shape for s in problem.inputs], [s.spread for s in problem.inputs]
    dtypes = [getattr(torch, s.dtype) for s in problem.inputs]
    data = testdata.draw(testdata.DISTRIBUTIONS[0], shapes, dtypes, spreads, 1, torch.device("cpu"), 0)
    return {s.name: x for s, x in zip(problem.inputs, data, strict=True)}


def part(x: torch.Tensor, dims: tuple[str, ...], split: Split, rank: int) -> torch.Tensor:
    for i, d in enumerate(dims):
        if d in split.axes:
            x = x.chunk(split.gpus, i)[rank]
    return x


def run(p: Program, split: Split, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The outputs that the GPUs have together."""
    dims = {t.name: t.dims for t in p.outputs}
    held = [{t.name: part(data[t.name], t.dims, split, r) for t in p.inputs} for r in range(split.gpus)]
    for stage in split.stages:
        if stage.program:
            for mine in held:
                found = reference64(stage.program, [mine[t.name] for t in stage.program.inputs])
                mine.update(zip((t.name for t in stage.program.outputs), found, strict=True))
        for j in stage.joins:
            whole = JOINED[j.op](mine[j.tensor] for mine in held)
            for mine in held:
                mine[j.tensor] = whole
    outputs: dict[str, torch.Tensor] = {}
    for t in p.outputs:
        parts = [mine[t.name] for mine in held]
        along = next((i for i, d in enumerate(dims[t.name]) if d in split.axes), None)
        assert (along is not None) == (t.name in split.kept)
        outputs[t.name] = parts[0] if along is None else torch.cat(parts, along)
    return outputs


def check(p: Program, gpus: int = 2) -> list[Split]:
    ways, _ = splits(p, gpus, H200)
    data = drawn(p)
    wanted = dict(
        zip((t.name for t in p.outputs), reference64(lower(p), [data[t.name] for t in p.inputs]), strict=True)
    )
    for split, _ in ways:
        for name, x in run(p, split, data).items():
            torch.testing.assert_close(x.double(), wanted[name].double(), rtol=1e-9, atol=1e-9)
    return [s for s, _ in ways]


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
@pytest.mark.parametrize("gpus", [2, 4])
def test_every_split_of_every_spec_computes_the_spec(path: Path, gpus: int) -> None:
    p = load_spec(path).programs()[0]
    if p.dynamic or p.parts:
        assert splits(p, gpus, H200)[0] == []
        return
    small = reduced_sizes(p)
    even = p.resized({d: n + -n % 4 if d != "k" else n for d, n in small.items()})
    try:
        drawn(even)
    except (ValueError, RuntimeError, IndexError):  # tables whose numbers are distinct need more of them than that
        even = p.resized(small)
    check(even, gpus)


@pytest.mark.parametrize(
    ("body", "axis", "joins"),
    [
        ("dot(X, W, k)", "k", [("O", "add")]),
        ("dot(X, W, k) * 2.0 + R", "k", [("t1", "add")]),
        ("-dot(X, W, k) + dot(X * X, W, k)", "k", [("O", "add")]),
        ("dot(X, W, k) / R", "k", [("O", "add")]),
        ("R / dot(X, W, k)", "k", [("t0", "add")]),
        ("square(dot(X, W, k))", "k", [("t0", "add")]),
        ("dot(X, W, k) * dot(X, W, k)", "k", None),
        ("softmax(R, n)", "n", None),
        ("rms_norm(R, n)", "n", None),
    ],
)
def test_partial_results_are_joined_before_what_is_not_linear_in_them(
    body: str, axis: str, joins: list[tuple[str, str]] | None
) -> None:
    p = program(body)
    found = {s.axes: s for s in check(p)}
    split = found[(axis,)]
    told = [(j.tensor, j.op) for stage in split.stages for j in stage.joins]
    assert told and (joins is None or [op for _, op in told] == [op for _, op in joins])
    if joins == [("O", "add")]:
        assert len(split.stages) == 1, "joined last"


def test_a_softmax_over_parts_joins_its_maximum_and_its_sum() -> None:
    split = next(s for s in check(program("softmax(R, n)")) if s.axes == ("n",))
    assert [j.op for stage in split.stages for j in stage.joins] == ["maximum", "add"]
    assert split.kept == ("O",)


@pytest.mark.parametrize(
    ("body", "axis", "why"),
    [
        ("where(index(m) >= index(n), R, 0.0)", "m", "positions along it"),
        ("dot(X[m, (k + 2) % 6], W, k)", "k", "crosses the parts"),
        ("R[m, n - 1]", "n", "crosses the parts"),
    ],
)
def test_an_axis_whose_parts_depend_on_each_other_is_refused(body: str, axis: str, why: str) -> None:
    _, refused = splits(program(body), 2, H200)
    assert why in refused[axis]


def test_a_size_that_does_not_divide_is_refused() -> None:
    _, refused = splits(program("dot(X, W, k)"), 4, H200)
    assert refused == {"k": "k = 6 is no multiple of 4"}


def test_the_gated_mlp_is_split_along_its_inner_axis() -> None:
    p = parse_spec(MLP, "mlp.yaml").programs()[0]
    (best, cost), *_ = splits(p, 2, H200)[0]
    assert best.axes == ("n",) and best.joined_bytes == 16 * 4096 * 4 and best.kept == ()
    (stage,) = best.stages
    assert stage.program is not None and stage.program.sizes["n"] == 7168
    one = bounds(p, H200)
    assert cost.computed[0].us == pytest.approx(one.us / 2, rel=0.01)
    assert cost.us < one.us


def test_bounds_of_each_level_by_hand() -> None:
    p = parse_spec(MLP, "mlp.yaml").programs()[0]
    b = bounds(p, H200)
    assert b.flops == 3 * 2 * 16 * 4096 * 14336
    assert b.moved_bytes == 2 * (3 * 4096 * 14336 + 2 * 16 * 4096)
    by_name = {x.name: x for x in b.levels}
    written, reading = 2 * 16 * 4096, 1.065 * 4.27e6
    us = (b.moved_bytes - written) / reading + written * (2 / 4.27e6 - 1 / reading)
    assert by_name["memory"].us == pytest.approx(us)
    assert by_name["launches"].us == H200.launch_us and b.limit.name == "memory"
    large = parse_spec(MLP.replace("m: 16", "m: 65536"), "mlp.yaml").programs()[0]
    at = {x.name: x for x in bounds(large, H200).levels}
    held = (228 * 1024 + 4 * 65536) / 2
    volume = 65536 * 4096 * 14336
    assert at["L2"].amount == pytest.approx(2 * (2 * volume / held**0.5 - 2 * held * 132))


DECISIONS = """
name: decisions
dims: {m: 8, k: 16, n: 12}
inputs:
  X: [m, k]
  A: {dims: [m, n], dtype: int8}
program: |
  T = min(where(X == max(X, k), index(k), k), k)
  C = sum(where(X > 0, 1, 0), k)
  S = sum(A, n)
  M = max(where(X > 1, 1, 0), k) > 0
outputs:
  T: {dims: [m], dtype: int64}
  C: {dims: [m], dtype: int8}
  S: {dims: [m], dtype: int32}
  M: {dims: [m], dtype: bool}
"""


@pytest.mark.parametrize("gpus", [2, 4])
def test_whole_numbers_are_joined_as_whole_numbers(gpus: int) -> None:
    ways = check(parse_spec(DECISIONS).at(), gpus)
    joins = {(j.tensor, j.op, j.travels_as) for s in ways for stage in s.stages for j in stage.joins}
    assert ways and {j for j in joins if j[0] in "CS"} <= {("C", "add", "int32"), ("S", "add", "int32")}, joins
