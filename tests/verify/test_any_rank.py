"""Any reduction, any rank: an operator of random axes and sizes has a plan, the program as written, and it is right."""

from __future__ import annotations

import random
from math import prod

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.program import Program
from mirage_cli.search.assembly import ScheduledGraph
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter, reduced_schedule, reduced_sizes
from mirage_cli.verify.equivalence import check_equivalence

H200 = find_target("h200")
SIZES = (1, 1, 2, 3, 5, 7, 13, 16, 17, 33, 64, 100, 129, 256, 1000, 4096, 5000, 65536, 393216)
LARGEST, LARGEST_SPACE = 1 << 32, 1 << 40
HARD = (
    ("k2: 16, k3: 256, k0: 13, k1: 13, b0: 5", "X: [k2, k3, k0, k1, b0]", "sum(X, k0, k1, k2, k3)", "b0"),
    ("k1: 7, k3: 13, k2: 33, k0: 13", "X: [k1, k3, k2, k0]", "mean(X, k0, k1, k2, k3)", ""),
    ("k0: 16, b0: 33, k2: 5, k1: 1000, k3: 16", "X: [k0, b0, k2, k1, k3]", "max(X, k0, k1, k2, k3)", "b0"),
    ("k: 64, a: 256, b: 64, c: 33, d: 16", "X: [b, k, a], Y: [c, d, k]", "dot(X, Y, k)", "d, c, b, a"),
    ("b: 2, h: 2, g: 4, e: 64, k: 512", "T: [b, h, g, e], W: [h, g, e, k]", "dot(T, W, h, g, e)", "b, k"),
)
"""Operators that had no kernel."""


def operator(dims: str, inputs: str, text: str, output: str, dtype: str = "float32") -> Program:
    return parse_spec(
        f"name: t\ndims: {{{dims}}}\ndtype: {dtype}\ninputs: {{{inputs}}}\n"
        f"program: |\n  O = {text}\noutputs: {{O: [{output}]}}\n"
    ).at()


def some_operator(rng: random.Random) -> Program:
    """A product with up to 3 contracted, 3 batch and 2 free axes a side, or a reduction over up to 4 axes."""

    def axes(letter: str, least: int, most: int) -> list[str]:
        return [f"{letter}{i}" for i in range(rng.randint(least, most))]

    kind = rng.choice(["dot", "dot", "dot", "sum", "max", "min", "mean"])
    summed, batch = axes("k", 1, 3 if kind == "dot" else 4), axes("b", 0, 3)
    rows, columns = (axes("r", 0, 2), axes("c", 0, 2)) if kind == "dot" else ([], [])
    operands = {"X": [*summed, *batch, *rows]} | ({"Y": [*summed, *batch, *columns]} if kind == "dot" else {})
    output = [*batch, *rows, *columns]
    for dims in (*operands.values(), output):
        rng.shuffle(dims)
    sizes = {d: rng.choice(SIZES) for d in (*summed, *batch, *rows, *columns)}
    tensors = [*operands.values(), output]
    while prod(sizes.values()) > LARGEST_SPACE or any(prod(sizes[d] for d in t) > LARGEST for t in tensors):
        d = max(sizes, key=lambda d: sizes[d])
        sizes[d] = rng.choice(SIZES[: SIZES.index(sizes[d])])
    return operator(
        ", ".join(f"{d}: {n}" for d, n in sizes.items()),
        ", ".join(f"{name}: [{', '.join(dims)}]" for name, dims in operands.items()),
        f"{kind}({', '.join([*operands, *summed])})",
        ", ".join(output),
        rng.choice(["float16", "bfloat16", "float32"]),
    )


def as_written(program: Program) -> ScheduledGraph:
    """The plan that always works: no time is given to find a better one."""
    return search(lower(program), H200, deadline=lambda: True).as_written


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_every_operator_has_a_plan(first: int) -> None:
    for seed in range(first, first + 50):
        program = some_operator(random.Random(seed))
        for p in {program, merge_axes(program)}:
            assert as_written(p).graph.kernels, program


def judge(program: Program, candidate: ScheduledGraph, interpreter: Interpreter) -> None:
    verdict = check_equivalence(lower(program), candidate.graph, 0, tests=1)
    assert verdict.ok, f"{program}{verdict}"
    small = candidate.graph.resized(reduced_sizes(program))
    schedule = reduced_schedule(small, candidate.schedule)
    judged = interpreter.judge(program.resized(small.sizes), kernels_source(small, schedule), 0, True)
    assert judged.ok, f"{program}{judged.problem}"


@pytest.mark.parametrize("case", HARD)
def test_operators_that_had_no_kernel_have_one(case: tuple[str, str, str, str], interpreter: Interpreter) -> None:
    program = operator(*case)
    judge(program, as_written(program), interpreter)


@pytest.mark.parametrize("seed", [1, 2, 4, 5])  # which the interpreter is soon through with
def test_the_plan_of_a_random_operator_is_right(seed: int, interpreter: Interpreter) -> None:
    program = some_operator(random.Random(seed))
    judge(program, as_written(merge_axes(program)), interpreter)
