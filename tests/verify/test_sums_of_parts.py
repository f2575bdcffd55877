"""Sums of squares about a mean, by parts that need no mean of all: they are found, exact and near float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import PART, ROW, merge_axes
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.pipeline.searching import merged
from mirage_cli.search.assembly import ScheduledGraph
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import reduced_schedule
from mirage_cli.verify.equivalence import check_equivalence
from tests.searched import BEST

H200 = find_target("h200")


def spec(dims: str, x: str, program: str, output: str) -> Program:
    lines = f"name: norm\ndims: {{{dims}}}\ndtype: float32\ninputs: {{X: [{x}]}}\nprogram: |\n"
    lines += "".join(f"  {line}\n" for line in program.split(" | "))
    return parse_spec(f"{lines}outputs: {{{output}}}\n").at()


LAYER = "b: 8, c: 64, y: 64, x: 256", "b, c, y, x", "O = layer_norm(X, c, y, x)", "O: [b, c, y, x]"
VARIANCE = (
    "b: 8, c: 64, y: 64, x: 256",
    "b, c, y, x",
    "M = mean(X, c, y, x) | V = mean(square(X - M), c, y, x)",
    "M: [b], V: [b]",
)
BATCH = (
    "b: 64, c: 32, y: 64, x: 64",
    "b, c, y, x",
    "M = mean(X, b, y, x) | O = (X - M) / sqrt(mean(square(X - M), b, y, x) + 0.00001)",
    "O: [b, c, y, x]",
)
CASES = {"layer norm": (LAYER, 2), "mean and variance": (VARIANCE, 1), "batch norm": (BATCH, 2)}


def readers(graph: MuGraph, name: str = "X") -> int:
    return sum(name in {x.buffer for x in k.loads} for k in graph.kernels)


@cache
def found(case: tuple[str, str, str, str]) -> tuple[Program, tuple[ScheduledGraph, ...]]:
    program = lower(spec(*case))
    return program, search(lower(merged(spec(*case), program)), H200, bounds=BEST).candidates


@pytest.mark.parametrize("name", CASES)
def test_long_rows_are_read_once_for_both_sums(name: str) -> None:
    case, reads = CASES[name]
    program, candidates = found(case)
    assert readers(candidates[0].graph) == reads
    verdict = check_equivalence(program, candidates[0].graph, 0)
    assert verdict.ok, verdict


def by_parts() -> tuple[Program, MuGraph]:
    """The mean and the variance, and a μGraph of them that reads X once."""
    program, candidates = found(VARIANCE)
    return program, candidates[0].graph


def changes(text: str) -> dict[str, str]:
    """The μGraph with one thing wrong in: the means' distances, squared, times the size of a part, plus its own sum."""
    lines = text.splitlines()

    def line(op: str, which: int = 0) -> str:
        return [x for x in lines if f"= {op}(" in x][which]

    def args(x: str) -> list[str]:
        return x.split("(")[1].rstrip(")").split(", ")

    times, plus = line("mul"), line("add")
    distance = line("sub", 1)
    between = next(x for x in lines if "= square(" in x and args(x)[0] == distance.split("[")[0].strip())
    size = next(x for x in lines if x.split("[")[0].strip() == args(times)[1] and "= size(" in x)
    return {
        "distances are not counted": text.replace(plus, plus.replace(args(plus)[0], args(plus)[1])),
        "parts are not counted": text.replace(plus, plus.replace(args(plus)[1], args(plus)[0])),
        "each distance counts once": text.replace(times, times.replace(args(times)[1], "1")),
        "distances are not squared": text.replace(times, times.replace(args(times)[0], args(between)[0])),
        "distances are taken away": text.replace(plus, plus.replace("add(", "sub(")),
        "distances to 0": text.replace(distance, distance.replace("sub(", "add(")),
        "another size": text.replace(size, size.replace("size(x)", "size(cy)")),
    }


WRONG = (
    "distances are not counted",
    "parts are not counted",
    "each distance counts once",
    "distances are not squared",
    "distances are taken away",
    "distances to 0",
    "another size",
)
"""The names of `changes`, which tests are collected by: what is changed takes a search."""


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_corrections_are_refused(wrong: str) -> None:
    program, graph = by_parts()
    text = canonical_text(graph)
    assert (*changes(text),) == WRONG
    changed = changes(text)[wrong]
    assert changed != text
    assert not check_equivalence(program, parse_mugraph(changed), 0).ok


SMALL = {"b": 3, "c": 4, "y": 5, "x": 6}


@cache
def small_norm() -> Any:
    """The exported file of the layer norm's plan, at sizes that the interpreter has soon done."""
    best = found(LAYER)[1][0]
    program, graph = spec(*LAYER).resized(SMALL), best.graph.resized(SMALL)
    return load_export(export_source(program, graph, reduced_schedule(graph, best.schedule)))


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (1000.0, 0.5), (-3e4, 100.0), (1e-3, 1e-6), (5.0, 0.0)])
def test_a_large_mean_takes_no_accuracy(mean: float, deviation: float) -> None:
    """Beside PyTorch's own layer norm in float32; and where a row is one number, its squared distances are 0."""
    x = mean + deviation * torch.randn(*SMALL.values(), generator=torch.Generator().manual_seed(0))
    exact, eager = (torch.layer_norm(y, (4, 5, 6)).double() for y in (x.double(), x))
    assert (small_norm().norm(x).double() - exact).norm() <= 4 * (eager - exact).norm() + 1e-6 * exact.norm()


@pytest.mark.parametrize(
    ("sizes", "together"),
    [
        ("b: 2, c: 64, y: 256, x: 256", {"cy": ("c", "y")}),
        ("b: 2, c: 512, y: 16, x: 32", {"yx": ("y", "x")}),
        ("b: 2, c: 16, y: 16, x: 256", {"cyx": ("c", "y", "x")}),
        ("b: 2, c: 2, y: 2, x: 65536", {"cyx": ("c", "y", "x")}),
    ],
    ids=["the inner axis is long", "two inner axes", "a row that a block holds", "no inner axes that are short"],
)
def test_long_runs_stay_in_two(sizes: str, together: dict[str, tuple[str, ...]]) -> None:
    program = spec(sizes, *LAYER[1:])
    assert dict(merged(program, lower(program)).merged) == together


def test_other_sums_are_over_one_axis() -> None:
    for text in ("O = softmax(X, c, y, x)", "O = X / sqrt(mean(square(X), c, y, x))", "O = X - mean(X, c, y, x)"):
        program = spec("b: 8, c: 64, y: 64, x: 256", "b, c, y, x", text, "O: [b, c, y, x]")
        assert dict(merged(program, lower(program)).merged) == {"cyx": ("c", "y", "x")}
        assert merged(program, lower(program)) == merge_axes(program)
    assert PART < ROW
