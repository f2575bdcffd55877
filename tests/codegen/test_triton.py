"""The emitter: μGraphs as Triton, run in its interpreter over sizes, schedules and types, against float64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

from mirage_cli.codegen.blocks import EmitError
from mirage_cli.codegen.export import kernels_source, load_export
from mirage_cli.codegen.triton import emit_kernel, written_once
from mirage_cli.ir.access import index
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import DTYPES, Program, below, tensor_type
from mirage_cli.ir.reach import Left
from mirage_cli.ir.schedule import KernelSchedule, Schedule
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.cost.work import models
from mirage_cli.search.generator import search
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.normal import normalised
from mirage_cli.tune.outputs import poison
from mirage_cli.verify.facts import where_outputs_lie
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.lies import Lies, changed_elsewhere, outputs_of, to_be_changed
from tests.codegen.conftest import Compile
from tests.mugraphs import CASES
from tests.programs import program
from tests.seeds import over_seeds

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5}
Inputs = dict[str, torch.Tensor]


def as_program(graph: MuGraph) -> Program:
    """What a μGraph of one generated kernel computes, as a program: its own equations."""
    (k,) = graph.kernels
    assert all(x.out == x.buffer and x.dims == graph.tensors()[x.buffer].dims for x in k.loads)
    assert all(s.value == s.buffer for s in k.stores)
    return Program(graph.name, graph.dims, graph.dtype, graph.inputs, k.body, graph.outputs)


def schedule(
    graph: MuGraph, tiles: str = "", order: str = "", chunks: int = 1, group: int = 1, default: int = 16
) -> Schedule:
    """The same tiles, `m=16 k=32`, for all kernels; other dimensions get `default`."""
    given = {d: int(t) for d, t in (x.split("=") for x in tiles.split())}
    kernels: dict[str, KernelSchedule] = {}
    for k in graph.kernels:
        if k.kind == "generated":
            cut = tuple((d, given.get(d, default)) for d in k.with_role("grid", "split", "loop"))
            axes = tuple(d for d, _ in k.roles)
            axes = tuple(order.split()) if order else axes
            kernels[k.name] = KernelSchedule(cut, axes, 4, 2, chunks if k.split else 1, group)
    return Schedule(kernels)


def draw(graph: MuGraph, seed: int = 0, change: Callable[[str, torch.Tensor], torch.Tensor] | None = None) -> Inputs:
    """Normal data; integers as they are declared, or from 0 up to 8."""
    g = torch.Generator().manual_seed(seed)
    inputs: Inputs = {}
    for t in graph.inputs:
        shape = [graph.sizes[d] for d in t.dims]
        if tensor_type(t) == "int":
            most = below(t, graph.sizes) or 9
            many = torch.randperm(most, generator=g)[: math.prod(shape)] if t.distinct else None
            x = torch.randint(0, most, shape, generator=g) if many is None else many.reshape(shape)
            inputs[t.name] = x.to(getattr(torch, t.dtype))
        else:
            x = torch.randn(shape, generator=g)
            inputs[t.name] = (change(t.name, x) if change else x).to(getattr(torch, t.dtype))
    return inputs


def run(graph: MuGraph, schedule: Schedule, inputs: Inputs) -> list[torch.Tensor]:
    """The outputs, from memory that was NaN, as scratch is."""
    module = load_export(kernels_source(graph, schedule))
    outputs = [poisoned([graph.sizes[d] for d in t.dims], t.dtype) for t in graph.outputs]
    scratch = module.make_scratch("cpu")
    for x in scratch:  # what lies between rows, too
        poison(x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,)))
    with np.errstate(all="ignore"):  # lanes past the end of a dimension may hold anything
        module.launch(list(inputs.values()), outputs, scratch)
    return outputs


def poisoned(shape: list[int], dtype: str) -> torch.Tensor:
    return poison(torch.empty(shape, dtype=getattr(torch, dtype)))


def check(graph: MuGraph, schedule: Schedule, program: Program | None = None, inputs: Inputs | None = None) -> None:
    """The emitted kernels compute the program, within rounding of the type; NaN and inf exactly where it has them."""
    inputs = inputs or draw(graph)
    program = program or as_program(graph)
    expected = reference64(program, list(inputs.values()))
    lies = [Lies(*x) for x in places] if (places := where_outputs_lie(program)) else None
    given = dict(zip(inputs, to_be_changed(lies, list(inputs.values())), strict=True))
    found = outputs_of(lies, run(graph, schedule, given), list(given.values()))
    assert not changed_elsewhere(lies, list(given.values()), list(inputs.values()))
    for t, got, want in zip(program.outputs, found, expected, strict=True):
        decisions = not got.dtype.is_floating_point
        want = want.to(got.dtype).double()
        got = got.double()
        if decisions:  # which rounding takes otherwise where they are close
            assert (got != want).sum() <= got.numel() // 16, t.name
            continue
        same = (got == want) | (got.isnan() & want.isnan())
        finite = want.isfinite()
        assert (same | finite).all(), f"{t.name}: {got[~finite]} for {want[~finite]}"
        scale = want[finite].abs().max() if finite.any() else torch.tensor(1.0)
        worst = (got - want)[finite].abs().max() if finite.any() else torch.tensor(0.0)
        assert worst <= TOLERANCE[graph.dtype] * scale.clamp(min=1e-30), f"{t.name}: off by {worst} of {scale}"


def kernel(header: str, roles: str, body: str) -> MuGraph:
    """A μGraph of one kernel. `header`: dims, inputs and outputs; loads and stores of all of them are added."""
    dims, inputs, outputs, *dtype = (x.strip() for x in header.split(";"))
    dtype = dtype[0] if dtype else "float16"
    lines = [f"mugraph g {dtype}", f"dims {dims}"]
    loads, stores = [], []
    for word, texts, moves in (("input", inputs, loads), ("output", outputs, stores)):
        for text in texts.split():
            head, _, axes = text.rstrip("]").partition("[")
            name, _, kind = head.partition(":")
            shown = ", ".join(axes.split(","))
            lines.append(f"{word} {name} {kind or DTYPES[dtype]}[{shown}]")
            load = f"  {name} = load {name}[{shown}]"
            moves.append(load if word == "input" else f"  store {name}[{shown}] = {name}")
    lines += [f"kernel k0 generated {roles}", *loads, *(f"  {x.strip()}" for x in body.strip().split("\n")), *stores]
    return parse_mugraph("\n".join(lines) + "\n")


# -- all known μGraphs, over random sizes and schedules

SIZES = (1, 2, 3, 7, 15, 16, 17, 31, 33, 40, 64)


def random_schedule(graph: MuGraph, rng: random.Random) -> Schedule:
    kernels: dict[str, KernelSchedule] = {}
    for k in graph.kernels:
        if k.kind == "library":
            continue
        tiles = tuple(
            (d, rng.choice([t for t in (1, 2, 4, 16, 32) if t * 3 >= min(graph.sizes.get(d, 1), 48)]))
            for d in k.with_role("grid", "split", "loop")
        )
        order = [d for d, _ in k.roles]
        rng.shuffle(order)
        chunks = rng.choice((1, 2, 3, 5)) if k.split else 1
        kernels[k.name] = KernelSchedule(tiles, tuple(order), 4, 2, chunks, rng.choice((1, 2, 3)))
    return Schedule(kernels)


def fits(graph: MuGraph, schedule: Schedule) -> bool:
    """Whether blocks of this schedule are within the emitter's limits."""
    try:
        kernels_source(graph, schedule)
    except EmitError:
        return False
    return True


@pytest.mark.parametrize("name", CASES)
@over_seeds(range(6))
def test_known_graphs(name: str, seed: int) -> None:
    """Instances of size 1 or above one tile or below it, blocks in any order, any number of chunks and groups."""
    case = CASES[name]
    rng = random.Random(f"{name} {seed}")
    sizes = {d: min(n, rng.choice(SIZES)) for d, n in case.program.dims}
    if name == "gram":
        sizes["j"] = sizes["i"]
    if name == "window":
        sizes["s"] = 1100 if seed == 0 else sizes["s"]
        sizes["q"] = 1300 if seed == 0 else sizes["q"]
    sizes = case.fitting(sizes)
    graph = case.graph.resized(sizes)
    positive = (lambda _, x: x.abs() + 0.1) if name == "roots" else None
    plan = random_schedule(graph, rng)
    if name == "window" and seed == 0:
        plan = schedule(graph, "q=512 s=256")
    if fits(graph, plan):
        check(graph, plan, case.program.resized(sizes), draw(graph, seed, positive))


# -- products

PRODUCT = "Y[{out}] = dot(X, W; {over})"
PRODUCTS = {
    "matmul": ("m=33 k=40 n=17; X[m,k] W[k,n]; Y[m,n]", "m:grid n:grid k:loop", "m n", "k"),
    "transposed operand": ("m=33 n=17 k=40; X[k,m] W[n,k]; Y[m,n]", "m:grid n:grid k:loop", "m n", "k"),
    "whole contraction": ("m=33 k=40 n=17; X[m,k] W[k,n]; Y[m,n]", "m:grid k:tile n:grid", "m n", "k"),
    "batch": ("b=5 m=18 k=20 n=33; X[b,m,k] W[b,k,n]; Y[b,m,n]", "b:grid m:grid k:loop n:grid", "b m n", "k"),
    "batch inside": ("m=18 b=5 k=20 n=33; X[m,b,k] W[k,b,n]; Y[m,b,n]", "m:grid b:grid k:loop n:grid", "m b n", "k"),
    "two batch axes": (
        "b=3 c=2 m=18 k=20 n=17; X[b,c,m,k] W[c,b,k,n]; Y[b,c,m,n]",
        "b:grid c:grid m:grid k:loop n:grid",
        "b c m n",
        "k",
    ),
    "vector and matrix": ("k=40 n=17; X[k] W[k,n]; Y[n]", "n:grid k:loop", "n", "k"),
    "matrix and vector": ("m=33 k=40; X[m,k] W[k]; Y[m]", "m:grid k:loop", "m", "k"),
    "inner product": ("k=70; X[k] W[k]; Y[]", "k:loop", "", "k"),
    "two row axes": ("a=7 c=5 k=40 n=17; X[a,c,k] W[k,n]; Y[a,c,n]", "a:grid c:grid k:loop n:grid", "a c n", "k"),
    "row axes apart": ("a=7 n=17 c=5 k=40; X[a,c,k] W[k,n]; Y[a,n,c]", "a:grid n:grid c:grid k:loop", "a n c", "k"),
    "two column axes": ("m=18 k=40 c=5 e=6; X[m,k] W[c,k,e]; Y[m,c,e]", "m:grid k:loop c:grid e:grid", "m c e", "k"),
    "two contracted axes": (
        "m=18 k=9 l=11 n=17; X[m,k,l] W[l,k,n]; Y[m,n]",
        "m:grid k:loop l:loop n:grid",
        "m n",
        "k, l",
    ),
    "two contracted axes, whole": (
        "m=18 k=5 l=6 n=17; X[m,k,l] W[l,k,n]; Y[m,n]",
        "m:grid k:tile l:tile n:grid",
        "m n",
        "k, l",
    ),
    "one looped and one whole": (
        "m=18 k=33 l=6 n=17; X[m,k,l] W[l,k,n]; Y[m,n]",
        "m:grid k:loop l:tile n:grid",
        "m n",
        "k, l",
    ),
    "an axis of one operand contracted": ("m=18 k=20 l=6; X[m,k,l] W[k]; Y[m]", "m:grid k:loop l:tile", "m", "k, l"),
    "an axis of one operand of a matrix product": (
        "m=18 k=20 l=4 n=17; X[m,k,l] W[k,n]; Y[m,n]",
        "m:grid k:tile l:tile n:grid",
        "m n",
        "k, l",
    ),
    "sizes of 1": ("b=1 m=1 k=1 n=1; X[b,m,k] W[b,k,n]; Y[b,m,n]", "b:grid m:grid k:loop n:grid", "b m n", "k"),
    "outer product": ("m=18 k=1 n=17; X[m,k] W[k,n]; Y[m,n]", "m:grid k:tile n:grid", "m n", "k"),
}  # fmt: skip


def product_graph(name: str, dtype: str = "float16") -> MuGraph:
    header, roles, out, over = PRODUCTS[name]
    return kernel(f"{header};{dtype}", roles, PRODUCT.format(out=", ".join(out.split()), over=over))


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("tile", [1, 2, 8, 16, 64])
def test_products(name: str, tile: int) -> None:
    """On the matrix units or multiplied out; with blocks of one batch or of several; in both orders of axes."""
    graph = product_graph(name)
    graph = graph.resized({d: min(n, 3 * tile - 1) for d, n in graph.dims})
    order = [d for d, _ in graph.kernels[0].roles]
    for o in (order, order[::-1]):
        plan = schedule(graph, order=" ".join(o), default=tile)
        if fits(graph, plan) or tile < 64:
            check(graph, plan)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["matmul", "batch", "two contracted axes", "vector and matrix"])
def test_product_types(name: str, dtype: str) -> None:
    """On the matrix units, and multiplied out; for bfloat16 too, whose bits the interpreter's tl.dot would multiply."""
    graph = product_graph(name, dtype)
    for tile in (8, 16):
        check(graph, schedule(graph, default=tile))


def test_bfloat16_is_rounded_to_nearest_down_to_its_smallest_numbers() -> None:
    """exp(-100) is far below bfloat16's smallest number, 9.2e-41, and exp(-88) is between two of them."""
    graph = kernel("m=64; X:f32[m]; Y[m]; bfloat16", "m:grid", "Y[m] = add(X, 0)")
    small = torch.exp(-torch.linspace(80.0, 104.0, 48))
    others = torch.tensor([0.0, -0.0, -1e-44, 1.00390625, 1.01171875, -1.999999, 3.4e38, -3.4e38, 1e-39, -6e-39])
    x = torch.cat([small, others, torch.tensor([math.nan, math.inf, -math.inf, 1.0, -1e-41, 1.1754942e-38])])
    (y,) = run(graph, schedule(graph), {"X": x})
    right = x.bfloat16()
    assert torch.equal(y.isnan(), right.isnan())
    assert torch.equal(y.nan_to_num(), right.nan_to_num())


@pytest.mark.parametrize(
    "name", ["batch", "batch inside", "two batch axes", "two row axes", "row axes apart", "two column axes"]
)
@pytest.mark.parametrize("small", [2, 4])
def test_blocks_of_several_axes_reach_the_matrix_units(name: str, small: int) -> None:
    graph = product_graph(name)
    tiles = " ".join(f"{d}={small}" for d in "bcae") + " k=32"
    if name in ("two row axes", "row axes apart"):
        tiles = f"a={small} c=8 k=32"
    elif name == "two column axes":
        tiles = f"e={small} c=8 k=32"
    for reverse in (False, True):
        order = [d for d, _ in graph.kernels[0].roles]
        plan = schedule(graph, tiles, " ".join(order[::-1] if reverse else order))
        assert "tl.dot(" in kernels_source(graph, plan)
        check(graph, plan)


@pytest.mark.parametrize("name", ["split_matmul", "causal_attention", "window", "two axes"])
def test_bounds_of_loops_are_integers_to_the_interpreter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors are none up to Triton 3.6, with numpy from 2.4 on."""

    def refuse(_: Any) -> int:
        raise TypeError("a tensor is no integer")

    monkeypatch.setattr(tl.tensor, "__index__", refuse, raising=False)
    graph = parse_mugraph(SPLIT_TWO.format(k=65, l=16)) if name == "two axes" else CASES[name].graph
    graph = graph.resized({d: min(n, 70) for d, n in graph.dims})
    plan = schedule(graph, chunks=3)
    assert "bound(" in kernels_source(graph, plan)
    run(graph, plan, draw(graph))


SPLIT_TWO = """
mugraph g float16
dims m=18 k={k} l={l} n=17
input X f16[m, k, l]
input W f16[l, k, n]
output Y f16[m, n]
buffer P f32[k_split, m, n]
kernel k0 generated m:grid n:grid k:split l:loop
  X = load X[m, k, l]
  W = load W[l, k, n]
  Y[m, n] = dot(X, W; k, l)
  store P[k_split, m, n] = Y
kernel k1 generated m:grid n:grid k_split:tile
  P = load P[k_split, m, n]
  Y[m, n] = sum(P; k_split)
  store Y[m, n] = Y
"""


@pytest.mark.parametrize(("k", "chunks"), [(64, 3), (64, 1), (65, 4), (16, 4), (1, 2), (48, 5)])
@pytest.mark.parametrize("size_l", [16, 5])
def test_a_split_dimension_is_walked_together_with_another(k: int, chunks: int, size_l: int) -> None:
    """The last chunks are short or empty: they may not read past the end, even where tiles divide the size."""
    graph = parse_mugraph(SPLIT_TWO.format(k=k, l=size_l))
    whole = PRODUCT.format(out="m, n", over="k, l")
    program = as_program(
        kernel(f"m=18 k={k} l={size_l} n=17; X[m,k,l] W[l,k,n]; Y[m,n]", "m:grid n:grid k:loop l:loop", whole)
    )
    check(graph, schedule(graph, chunks=chunks), program)


# -- reductions

REDUCTIONS = {
    "sum": "Y[m] = sum(X; k)",
    "max": "Y[m] = max(X; k)",
    "min": "Y[m] = min(X; k)",
    "max of negative values": "A[m, k] = sub(X, 100)\nY[m] = max(A; k)",
    "min of positive values": "A[m, k] = add(X, 100)\nY[m] = min(A; k)",
    "sum of shifted": "A[m, k] = add(X, 3)\nY[m] = sum(A; k)",
    "sum of exp": "A[m, k] = exp(X)\nY[m] = sum(A; k)",
    "sum of a constant": "A[m, k] = mul(X, 0)\nB[m, k] = add(A, 1)\nY[m] = sum(B; k)",
    "sum of quotients": "A[m, k] = div(X, X)\nY[m] = sum(A; k)",
    "sum of divided": "A[m, k] = sub(X, 7)\nB[m, k] = div(X, A)\nY[m] = sum(B; k)",
    "sum of a root": "A[m, k] = square(X)\nB[m, k] = sqrt(A)\nY[m] = sum(B; k)",
    "sum of a mask": "A[m, k] = lt(X, 0.5)\nY[m] = sum(A; k)",
    "mean": "A[m] = sum(X; k)\nC[] = size(k)\nY[m] = div(A, C)",
    "positions": "i[k] = index(k)\nA[m, k] = mul(X, i)\nY[m] = sum(A; k)",
    "logsumexp": "M[m] = max(X; k)\nE[m, k] = exp_sub(X, M)\nL[m] = sum(E; k)\nG[m] = log(L)\nY[m] = add(G, M)",
    "negative degree": "M[m] = max(X; k)\nE[m, k] = exp_sub(X, M)\nL[m] = sum(E; k)\nF[m, k] = div(1, E)\n"
    "S[m] = sum(F; k)\nY[m] = mul(L, S)",
    "negative degree alone": "M[m] = max(X; k)\nE[m, k] = exp_sub(X, M)\nF[m, k] = reciprocal(E)\nZ[m, k] = div(X, E)\n"
    "Q[m] = sum(Z; k)\nL[m] = sum(E; k)\nY[m] = mul(L, Q)",
    "second degree": "M[m] = max(X; k)\nE[m, k] = exp_sub(X, M)\nL[m] = sum(E; k)\nF[m, k] = mul(E, E)\n"
    "S[m] = sum(F; k)\nD[m] = mul(L, L)\nY[m] = div(S, D)",
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("role", ["loop", "tile"])
def test_reductions(name: str, role: str) -> None:
    for m, k, tiles in (
        (5, 37, "m=2 k=8"),
        (1, 1, "m=1 k=1"),
        (3, 16, "m=1 k=4"),
        (4, 5, "m=8 k=64"),
        (7, 9, "m=4 k=1"),
    ):
        graph = kernel(f"m={m} k={k}; X[m,k]; Y[m]; float32", f"m:grid k:{role}", REDUCTIONS[name])
        check(graph, schedule(graph, tiles))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("roles", ["m:loop k:loop", "m:tile k:loop", "m:tile k:tile", "k:loop m:loop"])
def test_reductions_of_everything(op: str, roles: str) -> None:
    for m, k in ((5, 37), (1, 1), (16, 16)):
        graph = kernel(f"m={m} k={k}; X[m,k]; Y[]; float32", roles, f"Y[] = {op}(X; m, k)")
        for tiles in ("m=2 k=8", "m=1 k=1", "m=32 k=64"):
            check(graph, schedule(graph, tiles))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("role", ["loop", "tile"])
def test_integer_reductions(op: str, role: str) -> None:
    graph = kernel(
        "m=5 k=37; L:i32[m,k]; Y[m] Z[m]; float32",
        f"m:grid k:{role}",
        f"N[m, k] = sub(L, 20)\nA[m] = {op}(N; k)\nY[m] = mul(A, 0.5)\nB[m] = {op}(L; k)\nZ[m] = add(B, 1)",
    )
    check(graph, schedule(graph, "m=2 k=8"))


# -- masks and integers

LENGTHS = """
i[k] = index(k)
C[m, k] = lt(i, L)
A[m, k] = where(C, X, {})
"""
SOFTMAX = """
M[m] = max(A; k)
E[m, k] = exp_sub(A, M)
S[m] = sum(E; k)
P[m, k] = div(E, S)
Y[m, k] = mul(P, 1)
"""


@pytest.mark.parametrize("tiles", ["m=4 k=8", "m=1 k=16", "m=2 k=64"])
@pytest.mark.parametrize("role", ["loop", "tile"])
def test_rows_that_are_masked_out_whole(tiles: str, role: str) -> None:
    """A length of 0 leaves no lane: NaN in that row, as 0/0 is, and nowhere else."""
    graph = kernel("m=6 k=19; X[m,k] L:i32[m]; Y[m,k]; float32", f"m:grid k:{role}", LENGTHS.format("-inf") + SOFTMAX)
    inputs = draw(graph)
    inputs["L"] = torch.tensor([0, 1, 8, 9, 19, 0], dtype=torch.int32)
    check(graph, schedule(graph, tiles), inputs=inputs)
    (y,) = run(graph, schedule(graph, tiles), inputs)
    assert y.isnan().any(1).tolist() == [True, False, False, False, False, True]


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
@pytest.mark.parametrize("last", [0, 15, 16, 40, 63])
def test_nothing_beyond_the_end_of_a_row_is_read(rows: int, chunks: int, last: int) -> None:
    """Pages are NaN from the tile on where no row of a block has keys: read, they would reach the sums as 0·NaN."""
    ragged = CASES["ragged"]
    graph = ragged.graph
    inputs = draw(graph)
    inputs["B"] = torch.tensor([2, 2, 2, 2, 0, 0, 0, 0], dtype=torch.int32)
    inputs["L"] = torch.tensor([last, 63, 5], dtype=torch.int32)
    inputs["P"] = torch.tensor([[0, 1, 2, 3], [8, 8, 8, 8], [4, 5, 6, 7]], dtype=torch.int32)
    inputs["K"][[p for row, n in ((0, last), (2, 5)) for p in inputs["P"][row, n // 16 + 1 :].tolist()]] = math.nan
    whole = inputs | {"K": inputs["K"].nan_to_num()}
    expected = run(graph, schedule(graph, f"t={rows} s=16", chunks=chunks), whole)
    check(graph, schedule(graph, f"t={rows} s=16", chunks=chunks), ragged.program, whole)
    (found,) = run(graph, schedule(graph, f"t={rows} s=16", chunks=chunks), inputs)
    assert torch.equal(found, expected[0])


def uneven_rows(*last: int) -> Inputs:
    """Of rows whose last keys are these, in pages of their own."""
    rows = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2], dtype=torch.int32)
    pages = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [5, 3, 8, 1]], dtype=torch.int32)
    return draw(CASES["ragged"].graph) | {"B": rows, "P": pages, "L": torch.tensor(last, dtype=torch.int32)}


@pytest.mark.parametrize("last", [(15, 16, 63), (0, 31, 47), (-1, 32, 200)])
def test_chunks_without_work_store_nothing(last: tuple[int, ...]) -> None:
    """The scratch stays NaN there, and nothing else does; a row without keys has no chunk, and is NaN."""
    graph = CASES["ragged"].graph
    inputs = uneven_rows(*last)
    uneven = schedule(graph, "t=1 s=16 s_split=1", chunks=4)
    module = load_export(kernels_source(graph, uneven))
    scratch = [poisoned(list(x.shape), "float32") for x in module.make_scratch("cpu")]
    outputs = [poisoned([8, 16], "float16")]
    with np.errstate(all="ignore"):  # 0 / 0 in a row without keys
        module.launch(list(inputs.values()), outputs, scratch)
    live = torch.arange(4) * 16 <= inputs["L"][inputs["B"].long()][:, None]
    assert all(torch.equal(~x.isnan().flatten(2).any(2) if x.dim() > 2 else ~x.isnan(), live) for x in scratch)
    check(graph, uneven, CASES["ragged"].program, inputs)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_merge_that_mistakes_which_chunks_were_stored_is_wrong(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One position too few leaves a chunk out, one too many reads memory that nothing wrote."""
    right = Left.live
    monkeypatch.setattr("mirage_cli.codegen.triton.written_once", written_once.__wrapped__)  # nothing of this is kept
    monkeypatch.setattr(Left, "live", lambda *given: tuple(index(dict(i.terms), i.offset + off) for i in right(*given)))
    graph = CASES["ragged"].graph
    with pytest.raises(AssertionError):
        check(graph, schedule(graph, "t=1 s=16", chunks=4), CASES["ragged"].program, uneven_rows(15, 16, 63))


OFFSETS = """
i[k] = index(k)
C[m, k] = ge(i, F)
D[m, k] = lt(i, G)
B[m, k] = and(C, D)
A[m, k] = where(B, X, 0)
Y[m] = sum(A; k)
"""


@pytest.mark.parametrize("tiles", ["m=1 k=8", "m=2 k=4", "m=4 k=64"])
def test_loops_go_from_one_offset_to_the_next(tiles: str) -> None:
    """Rows of one flat tensor: offsets that meet leave a row empty, the first row starts at 0, the last ends at k."""
    graph = kernel("m=5 k=40; X[k] F:i32[m] G:i32[m]; Y[m]; float32", "m:grid k:loop", OFFSETS)
    offsets = torch.tensor([0, 0, 7, 8, 39, 40], dtype=torch.int32)
    inputs = draw(graph) | {"F": offsets[:-1].clone(), "G": offsets[1:].clone()}
    check(graph, schedule(graph, tiles), inputs=inputs)
    source = kernels_source(graph, schedule(graph, tiles))
    assert "begin_k" in source and "end_k" in source


def test_a_maximum_that_is_found_late() -> None:
    """The first tiles are masked out: their maximum is -inf, and what they sum is nothing."""
    body = LENGTHS.format("-inf").replace("lt(i, L)", "ge(i, L)") + SOFTMAX
    graph = kernel("m=4 k=40; X[m,k] L:i32[m]; Y[m,k]; float32", "m:grid k:loop", body)
    inputs = draw(graph)
    inputs["L"] = torch.tensor([0, 17, 39, 32], dtype=torch.int32)
    check(graph, schedule(graph, "m=2 k=8"), inputs=inputs)


@pytest.mark.parametrize("scale", [1, 100, 10000])
def test_exponentials_of_large_values(scale: float) -> None:
    graph = kernel("m=4 k=40; X[m,k]; Y[m]; float32", "m:grid k:loop", REDUCTIONS["logsumexp"])
    check(graph, schedule(graph, "m=2 k=8"), inputs=draw(graph, change=lambda _, x: x * scale))


def test_an_inverse_exponential_that_overflows_is_infinite() -> None:
    """A rescaling by more than the type's range may not turn a sum into nothing."""
    graph = kernel("m=1 k=16; X[m,k]; Y[m]; float32", "m:grid k:loop", REDUCTIONS["negative degree"])
    inputs = {"X": torch.arange(16.0)[None] * 20}
    check(graph, schedule(graph, "m=1 k=4"), inputs=inputs)


INTEGERS = {
    "where": "C[m, k] = eq(L, 3)\nY[m, k] = where(C, X, 0)",
    "compare with a fraction": "C[m, k] = lt(L, 2.5)\nY[m, k] = where(C, X, -inf)",
    "compare with a float": "C[m, k] = ge(L, X)\nY[m, k] = where(C, 1, X)",
    "compare with infinity": "C[m, k] = lt(L, inf)\nY[m, k] = where(C, X, 0)",
    "integer branches": "C[m, k] = gt(X, 0)\nA[m, k] = where(C, L, -1)\nY[m, k] = mul(A, X)",
    "one integer branch": "C[m, k] = gt(X, 0)\nY[m, k] = where(C, L, X)",
    "quotient": "A[m, k] = add(L, 1)\nY[m, k] = div(L, A)",
    "half": "Y[m, k] = mul(L, 0.5)",
    "power": "A[m, k] = pow(L, 2)\nY[m, k] = add(A, X)",
    "functions": "A[m, k] = square(L)\nB[m, k] = neg(A)\nD[m, k] = abs(B)\nE[m, k] = sqrt(D)\nF[m, k] = relu(L)\n"
    "G[m, k] = exp(B)\nH[m, k] = add(E, F)\nY[m, k] = add(H, G)",
    "extremes": "A[m, k] = maximum(L, 3)\nB[m, k] = minimum(A, 5)\nY[m, k] = mul(B, X)",
    "masks": "C[m, k] = lt(L, 4)\nD[m, k] = gt(X, 0)\nA[m, k] = and(C, D)\nB[m, k] = or(A, C)\n"
    "E[m, k] = where(A, X, 7)\nF[m, k] = where(B, E, 9)\nY[m, k] = mul(F, 1)",
    "masks as numbers": "C[m, k] = lt(L, 4)\nD[m, k] = gt(X, 0)\nA[m, k] = add(C, D)\nB[m, k] = mul(C, X)\n"
    "Y[m, k] = add(A, B)",
    "indices": "i[m] = index(m)\nj[k] = index(k)\nA[m, k] = sub(i, j)\nB[m, k] = maximum(A, L)\nY[m, k] = add(B, X)",
    "integers in a product": "j[k] = index(k)\nA[m] = dot(L, j; k)\nY[m, k] = mul(X, A)",
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("tiles", ["m=2 k=8", "m=1 k=1", "m=8 k=32"])
def test_integers_and_masks(name: str, tiles: str) -> None:
    role = "loop" if "dot" in INTEGERS[name] else "grid"
    graph = kernel("m=5 k=19; X[m,k] L:i32[m,k]; Y[m,k]; float32", f"m:grid k:{role}", INTEGERS[name])
    check(graph, schedule(graph, tiles))


# -- elementwise functions

POWERS = ("0", "1", "2", "3", "5", "20", "21", "-1", "-2", "-3", "0.5", "-0.5", "1.5", "-1.5", "2.5", "1/3", "-1/3")


@pytest.mark.parametrize("exponent", POWERS)
def test_powers(exponent: str) -> None:
    graph = kernel("k=40; X[k]; Y[k]; float32", "k:grid", f"Y[k] = pow(X, {exponent})")
    whole = "/" not in exponent and float(exponent).is_integer()
    x = torch.linspace(-1.5, 1.5, 40) if whole else torch.linspace(0.1, 3, 40)
    check(graph, schedule(graph, "k=16"), inputs={"X": x})


AROUND = torch.tensor(
    [0.0, 1e-30, -1e-30, 1e-6, -1e-6, 1e-3, 0.0999, 0.1, 0.1001, -0.1, 0.5, -0.5, 1, -1, 3, -3, 9, -9, 30, -30, 100,
     -100, 1000, -1000, 60000, -60000]
)  # fmt: skip


@pytest.mark.parametrize("op", ["tanh", "gelu", "sigmoid", "silu", "relu", "abs", "neg", "square"])
def test_functions_near_zero_and_far_from_it(op: str) -> None:
    """Each value for itself: 1e-6 relative, or 1e-7 of the argument."""
    graph = kernel(f"k={len(AROUND)}; X[k]; Y[k]; float32", "k:grid", f"Y[k] = {op}(X)")
    (y,) = run(graph, schedule(graph, "k=16"), {"X": AROUND})
    (want,) = reference64(as_program(graph), [AROUND])
    allowed = 2e-6 * want.abs() + 2e-7 * AROUND.abs().clamp(max=10) + 1e-38
    assert ((y - want).abs() <= allowed).all(), list(zip(AROUND.tolist(), y.tolist(), want.tolist(), strict=True))


@pytest.mark.parametrize(
    ("types", "body", "nearly"),
    [
        ("X[k]; Y[k]; bfloat16", "Y[k] = tanh(X)", True),
        ("X[k]; Y[k]; float16", "Z[k] = float32(X)\nY[k] = tanh(Z)", True),
        ("X[k]; Y[k]; float32", "Y[k] = tanh(X)", False),
        ("X[k]; Y:f32[k]; bfloat16", "Y[k] = tanh(X)", False),
        ("X[k]; Y[k]; bfloat16", "Z[k] = tanh(X)\nY[k] = floor(Z)", False),
    ],
)
def test_a_function_is_some_units_off_where_nothing_shows_them(types: str, body: str, nearly: bool) -> None:
    graph = kernel(f"k=40; {types}", "k:grid", body)
    (model,) = models(graph).values()
    assert ("nearly_tanh(X" in kernels_source(graph, schedule(graph, "k=16")).replace("Z", "X")) is nearly
    if "floor" not in body:  # what jumps is priced as the rest
        assert model.nearly is nearly


def test_extremes_keep_nan() -> None:
    graph = kernel("k=4; X[k] Z[k]; Y[k] W[k]; float32", "k:grid", "Y[k] = maximum(X, Z)\nW[k] = minimum(X, Z)")
    x, z = torch.tensor([math.nan, 1, math.nan, -math.inf]), torch.tensor([1.0, math.nan, math.nan, 2])
    check(graph, schedule(graph, "k=4"), inputs={"X": x, "Z": z})


@pytest.mark.parametrize("role", ["tile", "loop"])
def test_extremes_along_an_axis_keep_nan(role: str) -> None:
    text = "m=3 k=40; X[m,k]; Y[m] Z[m]; float32"
    graph = kernel(text, f"m:grid k:{role}", "Y[m] = max(X; k)\nZ[m] = min(X; k)")
    x = torch.randn(3, 40)
    x[1, 17], x[2, 39] = math.nan, math.inf
    y, z = run(graph, schedule(graph, "m=1 k=16" if role == "loop" else "m=1"), {"X": x})
    assert torch.equal(y.isnan(), torch.tensor([False, True, False])) and y[2] == math.inf
    assert torch.equal(z.isnan(), y.isnan()) and z[0] == x[0].min() and z[2] == x[2].min()


def test_numbers_alone() -> None:
    body = "a[] = mul(2, 3)\nb[] = exp(1)\nc[] = add(a, b)\nd[] = size(k)\ne[] = div(c, d)\nY[k] = mul(X, e)"
    graph = kernel("k=40; X[k]; Y[k]; float32", "k:grid", body)
    check(graph, schedule(graph, "k=16"))


# -- stores

STORES = {
    "what lacks a grid axis": (
        "m=18 n=33; X[m] Z[n]; Y[m,n] A[m] B[n] C[]",
        "m:grid n:grid",
        "Y[m, n] = mul(X, Z)\nA[m] = exp(X)\nB[n] = neg(Z)\nd[] = size(n)\nC[] = mul(d, 2)",
    ),
    "inside a loop": (
        "m=18 k=37; X[m,k]; Y[m,k] S[m]",
        "m:grid k:loop",
        "Y[m, k] = mul(X, 2)\nS[m] = sum(X; k)",
    ),
    "in a second loop": (
        "m=18 k=37; X[m,k]; Y[m,k] S[m]",
        "m:grid k:loop",
        "S[m] = max(X; k)\nY[m, k] = sub(X, S)",
    ),
    "inside a loop, lacking a grid axis": (
        "m=18 n=5 k=37; X[m,k] Z[k,n]; Y[m,n] A[k]",
        "m:grid n:grid k:loop",
        "Y[m, n] = dot(X, Z; k)\ni[k] = index(k)\nA[k] = mul(i, 2)",
    ),
    "another order of axes": ("m=18 n=33; X[m,n]; Y[n,m]", "m:grid n:grid", "Y[m, n] = exp(X)"),
    "three axes": ("a=3 b=4 c=5; X[a,b,c]; Y[c,a,b]", "a:grid b:grid c:grid", "Y[a, b, c] = neg(X)"),
    "copied": ("m=18 n=33; X[m,n]; Y[m,n]", "m:grid n:grid", "Y[m, n] = mul(X, 1)"),
    "sizes of 1": ("a=1 b=1; X[a,b]; Y[b,a] Z[]", "a:grid b:tile", "Y[a, b] = neg(X)\nd[] = size(a)\nZ[] = mul(d, 3)"),
}  # fmt: skip


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("tile", [1, 4, 16, 32])
@pytest.mark.parametrize("group", [1, 2])
def test_stores(name: str, tile: int, group: int) -> None:
    header, roles, body = STORES[name]
    graph = kernel(header, roles, body)
    graph = graph.resized({d: min(n, 3 * tile) for d, n in graph.dims})
    order = [d for d, _ in graph.kernels[0].roles]
    for o in (order, order[::-1]):
        check(graph, schedule(graph, order=" ".join(o), default=tile, group=group))


TWO_READERS = """
mugraph two_readers {dtype}
dims m=33 k=48 n=40
input X {short}[m, k]
input W {short}[k, n]
buffer A {short}[m, n]
buffer M f32[m]
output D f32[m, n]

kernel k0 generated m:grid k:{role} n:tile
  X = load X[m, k]
  W = load W[k, n]
  A[m, n] = dot(X, W; k)
  M[m] = max(A; n)
  store A[m, n] = A
  store M[m] = M

kernel k1 generated m:grid n:tile
  A = load A[m, n]
  M = load M[m]
  D[m, n] = sub(A, M)
  store D[m, n] = D
"""


@pytest.mark.parametrize("role", ["tile", "loop"])
@pytest.mark.parametrize(("dtype", "short"), [("float16", "f16"), ("bfloat16", "bf16")])
def test_kernels_agree_about_a_value_that_is_stored_in_a_narrower_type(dtype: str, short: str, role: str) -> None:
    """The maximum is that of what the second kernel reads: an exponent of the difference is never above one."""
    graph = parse_mugraph(TWO_READERS.format(dtype=dtype, short=short, role=role))
    (d,) = run(graph, schedule(graph), draw(graph))
    assert d.amax(dim=1).eq(0.0).all()


def test_an_instance_stores_what_others_compute_too_only_once() -> None:
    header, roles, body = STORES["what lacks a grid axis"]
    graph = kernel(header, roles, body)
    source = emit_kernel(graph, graph.kernels[0], schedule(graph), graph.sizes).source
    assert source.count("if t_n == 0:") == 1
    assert source.count("if t_m == 0:") == 1
    assert source.count("if t_m == 0 and t_n == 0:") == 1


@pytest.mark.parametrize(
    "name", ["lambda", "pid", "step", "s_k", "i_k", "t_m", "first_m", "rows_m", "tl", "M_scale", "X_ptr"]
)
def test_names_that_the_kernel_needs_itself(name: str) -> None:
    body = f"M[m] = max(X; k, l)\n{name}[m, k, l] = exp_sub(X, M)\nS[m] = sum({name}; k, l)\nY[m] = div(1, S)"
    graph = kernel("m=40 k=9 l=5; X[m,k,l]; Y[m]; float32", "m:grid k:loop l:loop", body)
    check(graph, schedule(graph, "m=8 k=2 l=2"))


def test_numbers_that_are_no_normal_float32_are_float32_all_the_same() -> None:
    """Triton takes 1e-39 for a float64, of which float8 and powers have other bits."""
    body = "a[m] = max(X; k)\nb[m] = maximum(a, {least})\nc[m] = minimum(b, {most})\nY[m] = exp2(c)"
    for least, most in (("1e-39", "1e39"), ("-1e-44", "1e300")):
        graph = kernel("m=40 k=9; X[m,k]; Y:f8e4m3fn[m]; float16", "m:grid k:tile", body.format(least=least, most=most))
        check(graph, schedule(graph, "m=8"))


# -- compiled, with no GPU present

COMPILED = {
    "matmul": (CASES["split_matmul"].graph, "m=16 n=32 k=32", 2),
    "attention": (CASES["attention"].graph, "h=1 q=32 s=32", 1),
    "causal": (CASES["causal_attention"].graph, "h=1 q=32 s=64", 1),
    "layer norm": (CASES["layer_norm"].graph, "m=2 k=32", 1),
    "batch of several": (product_graph("batch"), "b=2 m=16 n=16 k=16", 1),
    "two contracted axes": (product_graph("two contracted axes"), "m=16 n=16 k=4 l=4", 1),
    "bfloat16": (product_graph("matmul", "bfloat16"), "m=16 n=16 k=32", 1),
    "float32": (product_graph("two row axes", "float32"), "a=4 c=4 n=16 k=32", 1),
    "rows masked out": (
        kernel("m=6 k=19; X[m,k] L:i32[m]; Y[m,k]; float32", "m:grid k:loop", LENGTHS.format("-inf") + SOFTMAX),
        "m=4 k=8",
        1,
    ),
    **{f"integers: {n}": (kernel("m=5 k=19; X[m,k] L:i32[m,k]; Y[m,k]", "m:grid k:grid", INTEGERS[n]), "m=2 k=8", 1)
       for n in ("functions", "masks", "masks as numbers", "extremes")},
    "scalars": (kernel("m=5 k=37; X[m,k]; Y[]", "m:loop k:loop", "Y[] = max(X; m, k)"), "m=1 k=1", 1),
}  # fmt: skip


@pytest.mark.parametrize("arch", [80, 90])
def test_compiled(arch: int, compiled: Compile) -> None:
    """The compiler takes what the interpreter takes, with no spilled registers; kernels that overlap do so on sm_90."""
    for graph, tiles, chunks in COMPILED.values():
        given = schedule(graph, tiles, chunks=chunks)
        chosen = {k: s.choosing(overlap=True, fetch=True, ahead=2, lead=1) for k, s in given.kernels.items()}
        overlapping = Schedule(chosen)
        source = kernels_source(graph, overlapping)
        assert source.count("    wait_for_data()\n") == source.count("    release_next()\n") == len(given.kernels)
        leads = sum(s.words["lead"] for s in normalised(graph, overlapping).kernels.values())
        assert source.count("        release_before(") == leads
        assert len(compiled(graph, overlapping, arch)) == len(graph.kernels)


def test_a_name_that_begins_as_a_helper_brings_no_helper() -> None:
    of = program("m=64 k=32", "running_loss[m,k]", "O = mul(running_loss, 2)")
    (c, *_) = search(of, find_target("h100")).candidates
    assert "associative_scan" not in kernels_source(c.graph, c.schedule)
