"""How loads reach memory: the same results through tensor descriptors as through pointers, and what the GPU is told."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mirage_cli.codegen.access import Descriptor, around, awaited, descriptors, streamed
from mirage_cli.codegen.blocks import LINE_BYTES
from mirage_cli.codegen.export import export_source, kernels_source, load_export
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.schedule import NUMBERS, KernelSchedule, Schedule
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.search.cost.work import chunk_sizes
from mirage_cli.tune.normal import normalised
from tests.codegen.conftest import Stages
from tests.codegen.test_triton import (
    PRODUCT,
    PRODUCTS,
    SPLIT_TWO,
    as_program,
    check,
    draw,
    fits,
    kernel,
    product_graph,
    random_schedule,
    run,
    schedule,
)
from tests.mugraphs import CASES
from tests.seeds import over_seeds


def choosing(plan: Schedule, **choices: Any) -> Schedule:
    """The schedule with these numbers and words for all kernels."""
    numbers = {name: x for name, x in choices.items() if name in NUMBERS}
    words = {name: x for name, x in choices.items() if name not in NUMBERS}
    return Schedule({name: replace(s, **numbers).choosing(**words) for name, s in plan.kernels.items()})


def boxes(graph: MuGraph, plan: Schedule) -> dict[str, Descriptor]:
    """All descriptors of a μGraph, by value."""
    sizes = chunk_sizes(graph, plan)
    kernels = [k for k in graph.kernels if k.kind == "generated"]
    return {v: d for k in kernels for v, d in descriptors(graph, k, plan.kernels[k.name], sizes).items()}


# -- descriptors

SIZES = (1, 8, 16, 24, 40, 48, 56, 64)
"""Rows of float16 that start at multiples of 16 bytes, over one block and below one."""


@pytest.mark.parametrize("name", CASES)
@over_seeds(range(6))
def test_known_graphs_through_descriptors(name: str, seed: int) -> None:
    """Blocks in any order, any number of chunks."""
    case = CASES[name]
    rng = random.Random(f"{name} {seed}")
    sizes = {d: min(n, rng.choice(SIZES)) for d, n in case.program.dims}
    sizes = {d: n if n == 1 else -(-n // 8) * 8 for d, n in sizes.items()}
    if name == "gram":
        sizes["j"] = sizes["i"]
    sizes = case.fitting(sizes)
    graph = case.graph.resized(sizes)
    positive = (lambda _, x: x.abs() + 0.1) if name == "roots" else None
    plan = choosing(random_schedule(graph, rng), descriptors=True)
    if fits(graph, plan):
        assert kernels_source(graph, plan).count("_desc.load(") >= len(boxes(graph, plan))
        check(graph, plan, case.program.resized(sizes), draw(graph, seed, positive))


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("tile", [8, 16, 32])
def test_products_through_descriptors(name: str, tile: int) -> None:
    """Operands in memory order and transposed, with axes of batches and of one element, in both orders of axes."""
    graph = product_graph(name)
    graph = graph.resized({d: n if n == 1 else 8 * (1 + n // 9) for d, n in graph.dims})
    order = [d for d, _ in graph.kernels[0].roles]
    for o in (order, order[::-1]):
        for b in (1, 2):
            tiles = " ".join(f"{d}={b}" for d in "bc" if d in order)
            plan = choosing(schedule(graph, tiles, " ".join(o), default=tile), descriptors=True)
            if fits(graph, plan):
                check(graph, plan)


@pytest.mark.parametrize("name", ["matmul", "transposed operand", "batch", "batch inside", "two batch axes"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_all_operands_of_a_product_are_read_through_descriptors(name: str, dtype: str) -> None:
    graph = product_graph(name, dtype)
    graph = graph.resized({d: 8 * (1 + n // 9) for d, n in graph.dims})
    plan = choosing(schedule(graph, "b=1 c=1"), descriptors=True)
    assert boxes(graph, plan).keys() == {"X", "W"}
    source = kernels_source(graph, plan)
    assert source.count("_desc.load(") == 2
    assert "X_ptr" not in source
    assert "W_ptr" not in source
    check(graph, plan)


@pytest.mark.parametrize(("dtype", "read"), [("i8", {"X", "C"}), ("i1", {"X"})])
def test_masks_are_not_read_through_descriptors(dtype: str, read: set[str]) -> None:
    """Triton 3.6 ends the process for one."""
    mask = "gt(C, 0)" if dtype == "i8" else "and(C, C)"
    body = f"D[m, k] = {mask}\nZ[m, k] = where(D, X, 0)\nY[m] = sum(Z; k)"
    graph = kernel(f"m=32 k=64; X[m,k] C:{dtype}[m,k]; Y[m]; float16", "m:grid k:loop", body)
    plan = choosing(schedule(graph, "m=16 k=32"), descriptors=True)
    assert boxes(graph, plan).keys() == read
    check(graph, plan)


@pytest.mark.parametrize(("k", "chunks"), [(64, 3), (64, 1), (72, 4), (16, 4), (48, 5)])
def test_chunks_that_are_short_or_empty(k: int, chunks: int) -> None:
    """A chunk is a number of whole tiles, so that a box reaches past its end only where the tensor ends."""
    graph = parse_mugraph(SPLIT_TWO.format(k=k, l=16)).resized({"n": 24})
    whole = PRODUCT.format(out="m, n", over="k, l")
    program = as_program(
        kernel(f"m=18 k={k} l=16 n=24; X[m,k,l] W[l,k,n]; Y[m,n]", "m:grid n:grid k:loop l:loop", whole)
    )
    plan = choosing(schedule(graph, chunks=chunks), descriptors=True)
    assert boxes(graph, plan).keys() == {"X", "W"}
    check(graph, plan, program)


def test_what_lies_past_the_end_of_a_dimension_is_zero() -> None:
    """A sum needs no mask there; what is not zero where its operand is gets one."""
    graph = kernel("m=6 k=40; X[m,k]; Y[m] Z[m]; float32", "m:grid k:loop",
                   "Y[m] = sum(X; k)\nA[m, k] = add(X, 3)\nZ[m] = sum(A; k)")  # fmt: skip
    plan = choosing(schedule(graph, "m=4 k=16"), descriptors=True)
    assert boxes(graph, plan)
    source = kernels_source(graph, plan)
    assert source.count("in_k[None, :]") == 1
    check(graph, plan)


def test_one_tensor_read_in_two_ways() -> None:
    """Rows of X as it lies and rows renamed: each has its own box, and the diagonal, which is no box, a pointer."""
    graph = parse_mugraph(
        "mugraph g float16\ndims i=24 j=24 k=40\ninput X f16[i, k]\ninput D f16[i, j]\noutput Y f16[i, j]\n"
        "kernel k0 generated i:grid j:grid k:loop\n  X = load X[i, k]\n  Z = load X[j, k]\n"
        "  P[i, j] = dot(X, Z; k)\n  store Y[i, j] = P\n"
    )
    plan = choosing(schedule(graph, "i=16 j=8 k=16"), descriptors=True)
    found = boxes(graph, plan)
    assert {v: (d.buffer, d.dims, d.box) for v, d in found.items()} == {
        "X": ("X", ("i", "k"), (16, 16)),
        "Z": ("X", ("j", "k"), (8, 16)),
    }
    inputs = draw(graph)
    (y,) = run(graph, plan, inputs)
    assert torch.allclose(y.float(), inputs["X"].float() @ inputs["X"].float().T, atol=2e-2, rtol=1e-2)


WINDOWS = """\
mugraph g float16
dims b=2 y=8 x=16 c=32 e=16 i=3 j=3
input X f16[b, y, x, c]
input W f16[i, j, c, e]
output O f16[b, y, x, e]
kernel k0 generated b:grid y:grid x:grid c:loop e:grid i:loop j:loop
  P = load X[b, y + i - 1, x + j - 1, c]
  W = load W[i, j, c, e]
  O[b, y, x, e] = dot(P, W; c, i, j)
  store O[b, y, x, e] = O
"""


@pytest.mark.parametrize("tiles", ["b=1 y=4 x=8", "b=1 y=1 x=16", "b=2 y=8 x=1", "b=1 y=2 x=8"])
def test_windows_are_boxes_that_reach_beyond_the_tensor(tiles: str) -> None:
    """What lies outside reads as 0, by a box as by a mask."""
    graph = parse_mugraph(WINDOWS)
    plan = choosing(schedule(graph, f"{tiles} c=16 i=1 j=1 e=16", "b y x c i j e"), descriptors=True)
    found = boxes(graph, plan)
    assert found.keys() == {"P", "W"}
    assert {str(i) for i in found["P"].at} == {"b", "i + y - 1", "j + x - 1", "c"}
    inputs = draw(graph)
    (got,) = run(graph, plan, inputs)
    x, w = inputs["X"].double().permute(0, 3, 1, 2), inputs["W"].double().permute(3, 2, 0, 1)
    want = torch.nn.functional.conv2d(x, w, padding=1).permute(0, 2, 3, 1)
    assert (got.double() - want).abs().max() <= 2e-3 * want.abs().max()


def test_windows_of_several_taps_or_of_every_second_row_are_no_boxes() -> None:
    graph = parse_mugraph(WINDOWS)
    plan = choosing(schedule(graph, "b=1 y=4 x=8 c=16 i=1 j=4 e=16", "b y x c i j e"), descriptors=True)
    assert boxes(graph, plan).keys() == {"W"}
    steps = parse_mugraph(WINDOWS.replace("y + i - 1", "y*2 + i - 8"))
    assert boxes(steps, choosing(plan, descriptors=True)).keys() == {"W"}
    padded = choosing(schedule(graph, "b=1 y=4 x=8 c=16 i=1 j=1 e=16", "b y x c i j e"), descriptors=True)
    assert boxes(graph.resized({"y": 7}), padded).keys() == {"W"}  # past its end a box would not be zero


PLACES = """\
mugraph g float16
dims b=2 y=8 q=16 r=2 c=32 e=16 i=4 k=2
input X f16[b, y, c]
input W f16[i, c, e]
output O f16[b, q, e]
kernel k0 generated b:grid y:grid r:grid c:loop e:grid k:loop
  P = load X[b, (r + 1)//2 - k + y, c]
  W = load W[k*2 + (r + 1)%2, c, e]
  Z[b, y, r, e] = dot(P, W; c, k)
  store O[b, y*2 + r, e] = Z
"""


@pytest.mark.parametrize("rows", [2, 8])
def test_boxes_begin_at_quotients_and_remainders_of_scalars(rows: int) -> None:
    """Each place of two rows of a transposed convolution has taps of its own."""
    graph = parse_mugraph(PLACES)
    tiles = schedule(graph, f"b=1 y={rows} r=1 c=16 k=1 e=16", "b y r c k e")
    plan = choosing(tiles, descriptors=True)
    found = boxes(graph, plan)
    assert {str(i) for i in found["P"].at} == {"b", "(r + 1)//2 - k + y", "c"}
    assert {str(i) for i in found["W"].at} == {"k*2 + (r + 1)%2", "c", "e"}
    inputs = draw(graph)
    (got,) = run(graph, plan, inputs)
    x, w = inputs["X"].double().permute(0, 2, 1), inputs["W"].double().permute(1, 2, 0)
    want = torch.nn.functional.conv_transpose1d(x, w, stride=2, padding=1).permute(0, 2, 1)
    assert (got.double() - want).abs().max() <= 2e-3 * want.abs().max()


def test_quotients_of_several_positions_are_no_boxes() -> None:
    graph = parse_mugraph(PLACES)
    both = choosing(schedule(graph, "b=1 y=8 r=2 c=16 k=1 e=16", "b y r c k e"), descriptors=True)
    assert not boxes(graph, both)
    below = parse_mugraph(PLACES.replace("(r + 1)//2", "(-r)//2"))  # which a GPU rounds towards 0
    plan = choosing(schedule(below, "b=1 y=8 r=1 c=16 k=1 e=16", "b y r c k e"), descriptors=True)
    assert boxes(below, plan).keys() == {"W"}


@pytest.mark.parametrize(("step", "start", "boxed"), [(1, 1, False), (1, 8, False), (8, 1, False), (8, 8, True)])
def test_boxes_begin_at_multiples_of_16_bytes_along_the_innermost_axis(step: int, start: int, boxed: bool) -> None:
    """What begins elsewhere is an illegal instruction."""
    at = f"x + j{f'*{step}' if step > 1 else ''} - {start}"
    text = WINDOWS.replace("[b, y, x, c]\ninput W", "[b, c, y, x]\ninput W")
    graph = parse_mugraph(text.replace("X[b, y + i - 1, x + j - 1, c]", f"X[b, c, y + i - 1, {at}]"))
    plan = choosing(schedule(graph, "b=1 y=4 x=16 c=16 i=1 j=1 e=16", "b y x c i j e"), descriptors=True)
    assert boxes(graph, plan).keys() == ({"P", "W"} if boxed else {"W"})
    inputs = draw(graph)
    (got,) = run(graph, plan, inputs)
    x, w = inputs["X"].double(), inputs["W"].double().permute(3, 2, 0, 1)
    x = torch.nn.functional.pad(x, (start, 32, 1, 1))
    want = torch.nn.functional.conv2d(x, w, dilation=(1, step))[..., :16].permute(0, 2, 3, 1)
    assert (got.double() - want).abs().max() <= 2e-3 * want.abs().max()


UNSUITABLE = {
    "rows start at no multiple of 16 bytes": ("m=33 n=32 k=20; X[m,k] W[k,n]; Y[m,n]", "", {"W"}),
    "innermost blocks under 16 bytes": ("m=32 n=32 k=32; X[m,k] W[k,n]; Y[m,n]", "k=4 n=64 m=64", {"W"}),
    "blocks over 256 elements": ("m=32 n=32 k=1024; X[m,k] W[k,n]; Y[m,n]", "k=512", set[str]()),
    "a vector": ("n=32 k=32; X[k] W[k,n]; Y[n]", "", {"W"}),
    "a scalar row": ("m=32 n=32 k=32; X[m,k] W[k,n]; Y[m,n]", "m=1", {"W"}),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUITABLE)
def test_what_the_hardware_takes_no_box_of_is_read_through_pointers(name: str) -> None:
    header, tiles, expected = UNSUITABLE[name]
    roles = " ".join(f"{d}:{'loop' if d == 'k' else 'grid'}" for d in "mkn" if f"{d}=" in header)
    out = "m, n" if "m=" in header else "n"
    graph = kernel(header, roles, PRODUCT.format(out=out, over="k"))
    plan = choosing(schedule(graph, tiles), descriptors=True)
    assert boxes(graph, plan).keys() == expected
    check(graph, plan)


def test_a_load_outside_of_loops_has_no_descriptor() -> None:
    graph = kernel("m=32 n=32; X[m,n]; Y[m,n]", "m:grid n:grid", "Y[m, n] = exp(X)")
    plan = choosing(schedule(graph), descriptors=True)
    assert not boxes(graph, plan)
    assert normalised(graph, plan) == choosing(plan, descriptors=False)
    assert kernels_source(graph, plan) == kernels_source(graph, normalised(graph, plan))


def test_inputs_that_start_anywhere_are_read_as_they_are() -> None:
    """A view that starts two bytes into its memory."""
    graph = product_graph("matmul").resized({"m": 16, "n": 16, "k": 32})
    plan = choosing(schedule(graph), descriptors=True)
    inputs = draw(graph)
    shifted = {name: torch.cat([torch.zeros(1).half(), x.flatten()])[1:].view(x.shape) for name, x in inputs.items()}
    assert all(x.data_ptr() % 16 for x in shifted.values())
    check(graph, plan, inputs=shifted)
    exported = load_export(export_source(as_program(graph), graph, plan))
    y = exported.g(*shifted.values())
    assert torch.equal(y, exported.g(*inputs.values()))
    assert torch.allclose(y.float(), inputs["X"].float() @ inputs["W"].float(), atol=2e-2, rtol=1e-2)


def test_stored_schedules_keep_their_meaning() -> None:
    old = {"k0": {"tiles": [["m", 16]], "order": ["m"], "warps": 8, "stages": 2, "split": 1, "group": 1}}
    assert Schedule.from_json(old).kernels["k0"] == KernelSchedule((("m", 16),), ("m",), 8, 2)
    plan = choosing(Schedule.from_json(old), descriptors=True)
    assert Schedule.from_json(plan.to_json()) == plan
    assert str(plan) == f"{Schedule.from_json(old)} descriptors"


# -- specialized kernels


def test_a_specialized_kernel_reads_everything_through_descriptors() -> None:
    graph = product_graph("batch inside").resized({"b": 3, "m": 72, "n": 72, "k": 40})
    plan = choosing(schedule(graph, "b=1 m=64 n=64 k=16", "b m k n"), specialize=True)
    assert normalised(graph, plan) == choosing(plan, descriptors=True)
    source = kernels_source(graph, plan)
    assert "in tl.range(0, SIZE_k, 16, warp_specialize=True):" in source
    assert source.count("_desc.load(") == 2
    check(graph, plan)


def test_a_specialized_loop_with_a_mask_is_not_taken_apart() -> None:
    graph = parse_mugraph((Path(__file__).parents[1] / "golden" / "best" / "gqa_prefill.mugraph").read_text())
    (k,) = graph.kernels
    tiles = " ".join(
        f"{d}={64 if d in 'qs' else 1 if d in 'hg' else 128}" for d in k.with_role("grid", "split", "loop")
    )
    plan = choosing(schedule(graph, tiles, "q d h g s e"), specialize=True)
    source = kernels_source(graph, plan)
    assert source.count("warp_specialize=True") == source.count("    for ") == 1
    assert source.count("_desc.load(") == len(k.loads) == 3
    small = graph.resized({d: {"q": 200, "s": 200, "h": 2, "g": 2}.get(d, min(n, 32)) for d, n in graph.dims})
    whole = choosing(plan, specialize=False)
    inputs = draw(small)
    for a, b in zip(run(small, plan, inputs), run(small, whole, inputs), strict=True):
        assert torch.allclose(a.float(), b.float(), atol=2e-3, rtol=2e-3)


UNSPECIALIZED = {
    "eight warps": ({"warps": 8}, ""),
    "products of few rows": ({}, "m=32 n=64 k=16"),
    "a load by pointers": ({}, "m=64 n=4 k=16"),
}


@pytest.mark.parametrize("name", UNSPECIALIZED)
def test_what_cannot_be_specialized_stays_as_it_is(name: str) -> None:
    choices, tiles = UNSPECIALIZED[name]
    graph = product_graph("matmul").resized({"m": 72, "n": 72, "k": 40})
    plan = choosing(schedule(graph, tiles or "m=64 n=64 k=16"), **choices)
    special = choosing(plan, specialize=True)
    assert normalised(graph, special) == plan
    assert kernels_source(graph, special) == kernels_source(graph, plan)


# -- what is fetched while a kernel waits

FETCHED = {
    "a product, its first tiles": ("m=40 n=300 k=96; X[m,k] W[k,n]; Y[m,n]", "m:grid n:grid k:loop",
        "Y[m, n] = dot(X, W; k)", "m=16 n=128 k=32", {"X": 40 * 64, "W": 64 * 300}),
    "what more instances read than another": ("m=16 n=200 k=96; X[m,k] W[k,n]; Y[m,n]", "m:grid n:grid k:loop",
        "Y[m, n] = dot(X, W; k)", "m=16 n=128 k=32", {"X": 0, "W": 64 * 200}),
    "rows shorter than a line": ("m=48 k=24; X[m,k]; Y[m]", "m:grid k:loop", "Y[m] = sum(X; k)", "m=16 k=16",
        {"X": 48 * 24}),
    "before any loop": ("m=37 n=100; X[m,n] B[n]; Y[m,n]", "m:grid n:grid", "Y[m, n] = add(X, B)", "m=1 n=64",
        {"X": 37 * 100, "B": 100}),
    "a scalar, before any loop": ("m=37 n=100; X[m,n] B[]; Y[m,n]", "m:grid n:grid", "Y[m, n] = add(X, B)", "m=1 n=64",
        {"X": 37 * 100, "B": 1}),
    "before a loop, and in it": ("m=16 n=64 k=64; X[m,k] W[k,n] B[m]; Y[m,n]", "m:grid n:grid k:loop",
        "A[m, k] = mul(X, B)\nY[m, n] = dot(A, W; k)", "m=16 n=64 k=16", {"X": 16 * 32, "W": 32 * 64, "B": 16}),
}  # fmt: skip
"""Kernels, and how many elements of each input are fetched for two iterations of all instances, and what comes before
them: in loops, of what the fewest instances share."""


Addresses = np.ndarray[Any, np.dtype[np.int64]]


def asked_for(graph: MuGraph, plan: Schedule) -> tuple[dict[str, torch.Tensor], list[Addresses]]:
    """The inputs of a call, and the addresses of each fetch."""
    module = load_export(kernels_source(graph, plan))
    asked: list[Addresses] = []
    module.fetch = lambda pointers, read: asked.append(np.ravel(pointers.handle.data).astype(np.int64))
    inputs = draw(graph)
    outputs = [torch.empty([graph.sizes[d] for d in t.dims], dtype=getattr(torch, t.dtype)) for t in graph.outputs]
    with np.errstate(all="ignore"):  # lanes past the end of a dimension may hold anything
        module.launch(list(inputs.values()), outputs, module.make_scratch("cpu"))
    return inputs, asked


def elements_fetched(graph: MuGraph, plan: Schedule) -> dict[str, int]:
    """How many elements of each input lie in cache lines that were asked for. Nothing else may be asked for."""
    inputs, asked = asked_for(graph, plan)
    addresses = np.unique(np.concatenate(asked))
    lines = np.unique(addresses // LINE_BYTES)
    found: dict[str, int] = {}
    for name, x in inputs.items():
        own = x.data_ptr() + np.arange(x.numel()) * x.element_size()
        found[name] = int(np.isin(own // LINE_BYTES, lines).sum())
        addresses = np.setdiff1d(addresses, own)
    assert not len(addresses), "between elements, or outside of all inputs"
    return found


@pytest.mark.parametrize("name", FETCHED)
def test_fetches_ask_for_the_lines_that_are_read_first(name: str) -> None:
    header, roles, body, tiles, least = FETCHED[name]
    graph = kernel(header, roles, body)
    plan = choosing(schedule(graph, tiles), overlap=True, fetch=True, ahead=2)
    assert normalised(graph, plan).kernels["k0"].words["fetch"] == ("before" in name)
    found = elements_fetched(graph, plan)
    assert {t for t in found if not found[t]} == {t for t in least if not least[t]}
    assert all(least[t] - LINE_BYTES <= found[t] for t in least), found  # a block's first line may be a part of one


def test_reads_take_the_part_of_prefetches_before_loops_alone() -> None:
    header, roles, body, tiles, _ = FETCHED["before a loop, and in it"]
    graph = kernel(header, roles, body)
    plan = choosing(schedule(graph, tiles), overlap=True, fetch=True, read=True, ahead=2)
    found = re.findall(r"fetch\((\w)_ptr.*read=(\w+)\)", kernels_source(graph, plan))
    assert dict(found) == {"B": "True", "X": "False", "W": "False"}
    assert normalised(graph, plan) == plan
    assert not normalised(graph, choosing(plan, fetch=False)).kernels["k0"].words["read"]


TOO_LARGE = ("split_attention", "convolution")
"""Of whose blocks, with tiles of 16, some have more elements than a block may."""


@pytest.mark.parametrize("name", [name for name in CASES if name not in TOO_LARGE])
def test_nothing_outside_of_the_inputs_is_asked_for(name: str) -> None:
    """A read of what is not there would be a fault."""
    graph = CASES[name].graph
    plan = choosing(schedule(graph, chunks=2), overlap=True, fetch=True, read=True, ahead=3)
    if "    fetch(" in kernels_source(graph, plan):
        assert any(elements_fetched(graph, plan).values())


@pytest.mark.parametrize("chunks", [1, 3, 4])
def test_every_chunk_fetches_its_first_tiles(chunks: int) -> None:
    graph = CASES["split_matmul"].graph.resized({"m": 16, "n": 64, "k": 272})
    plan = choosing(schedule(graph, "m=16 n=64 k=16", chunks=chunks), overlap=True, fetch=True, ahead=1)
    assert elements_fetched(graph, plan)["W"] >= chunks * 16 * 64 - LINE_BYTES


VALUES_FIRST = kernel(
    "q=16 s=80 d=64 e=128; V[s,e] Q[q,d] K[s,d]; O[q,e]",
    "q:grid s:loop d:tile e:tile",
    "S[q, s] = dot(Q, K; d)\nO[q, e] = dot(S, V; s)",
)
"""Tiles of 16 positions of s: 2 KB of K, which is used first, and 4 KB of V. Rows are one cache line and two."""
SHARES = {2: (16, 4), 3: (16, 0), 4: (8, 2), 8: (4, 1), 100: (0, 0)}
"""Of how many positions of a tile K and V are fetched, where one part in so many is."""


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("warps", [1, 4])
def test_a_share_of_a_tile_is_what_is_needed_first(share: int, warps: int) -> None:
    plan = choosing(schedule(VALUES_FIRST, "q=16 s=16"), overlap=True, ahead=4, share=share, warps=warps)
    if not any(SHARES[share]):
        assert normalised(VALUES_FIRST, plan) == choosing(plan, ahead=0, share=0)
        return
    assert normalised(VALUES_FIRST, plan) == plan
    inputs, asked = asked_for(VALUES_FIRST, plan)
    addresses = np.concatenate(asked)
    for name, positions in zip("KV", SHARES[share], strict=True):
        x = inputs[name]
        offsets = (addresses - x.data_ptr()) // x.element_size()
        offsets = offsets[(offsets >= 0) & (offsets < x.numel())]
        expected = [16 * tile + i for tile in range(4) for i in range(positions)]
        assert sorted({*(offsets // x.shape[1]).tolist()}) == expected
        assert len(offsets) == len(expected) * x.shape[1] // 64, "each line once"


@pytest.mark.parametrize(("share", "together"), [(0, 1), (2, 1), (4, 1), (8, 2), (16, 4), (32, 8), (64, 8)])
def test_few_lines_are_fetched_for_several_iterations_together(share: int, together: int) -> None:
    """A tile has 128 lines, and a warp 32 threads, of which several would fetch the same where there are fewer."""
    graph = kernel("n=64 k=4096; W[k,n]; Y[n]", "n:grid k:loop", "Y[n] = sum(W; k)")
    plan = choosing(schedule(graph, "n=64 k=128"), overlap=True, ahead=8, share=share, warps=1)
    assert f"for s_k in range(0, bound(min(SIZE_k, 1024)), {128 * together}):" in kernels_source(graph, plan)


def test_iterations_that_are_not_there_are_not_asked_for() -> None:
    """Four together, of three tiles, the last of which is a part of one."""
    graph = kernel("m=16 n=64 k=40; X[m,k] W[k,n]; Y[m,n]", "m:grid n:grid k:loop", "Y[m, n] = dot(X, W; k)")
    plan = choosing(schedule(graph, "m=16 n=64 k=16"), overlap=True, ahead=4, share=2)
    assert ", 64):" in kernels_source(graph, plan)
    assert elements_fetched(graph, plan)["W"]


TWO = """
mugraph g float16
dims m=16 k=64 n=64
input X f16[m, k]
input W f16[k, n]
output Y f16[m, n]
buffer A f16[m, k]
kernel k0 generated m:grid k:tile
  X = load X[m, k]
  A[m, k] = exp(X)
  store A[m, k] = A
kernel k1 generated m:grid n:grid k:loop
  A = load A[m, k]
  W = load W[k, n]
  Y[m, n] = dot(A, W; k)
  store Y[m, n] = Y
"""


def test_what_a_kernel_in_front_writes_is_not_fetched() -> None:
    graph = parse_mugraph(TWO)
    plan = choosing(schedule(graph, "m=1"), overlap=True, fetch=True, ahead=2)
    source = kernels_source(graph, plan)
    assert re.findall(r"fetch\((\w)_ptr", source) == ["X", "W"]
    second = source[source.index("def k1") :]
    assert second.index("fetch(W_ptr") < second.index("wait_for_data()") < second.index("tl.load(A_ptr")
    inputs = draw(graph)
    waiting = choosing(plan, fetch=False, ahead=0)
    assert all(map(torch.equal, run(graph, plan, inputs), run(graph, waiting, inputs)))


def test_a_kernel_that_does_not_wait_fetches_nothing() -> None:
    graph = product_graph("matmul")
    plan = choosing(schedule(graph), fetch=True, ahead=2)
    assert normalised(graph, plan) == schedule(graph)
    assert kernels_source(graph, plan) == kernels_source(graph, schedule(graph))


# -- when the kernel behind may start

LEADING = {
    "a loop": ("m=16 n=64 k=16", 1, {}, "bound(chunk * 256 + 256) - s_k, 16"),
    "a chunk": ("m=16 n=64 k=16", 2, {}, "bound(chunk * 128 + 128) - s_k, 16"),
    "all iterations": ("m=16 n=64 k=128", 2, {}, None),
    "at once": ("m=16 n=64 k=16", 1, {"early": True}, None),
}


@pytest.mark.parametrize("name", LEADING)
def test_a_kernel_lets_the_next_start_in_its_last_iterations(name: str) -> None:
    tiles, chunks, choice, want = LEADING[name]
    graph = CASES["split_matmul"].graph.resized({"m": 16, "n": 64, "k": 256})
    plan = choosing(schedule(graph, tiles, chunks=chunks), overlap=True, lead=1, **choice)
    source = kernels_source(graph, plan)
    found = re.findall(r"^        release_before\((.*)\)$", source, re.MULTILINE)
    assert found == ([want] if want else [])
    assert normalised(graph, plan).kernels["k0"].words["lead"] == len(found)
    first = source[source.index("def k0") : source.index("def k1")]
    assert first.index("wait_for_data()") < first.index("tl.load(")
    inputs = draw(graph)
    assert all(map(torch.equal, run(graph, plan, inputs), run(graph, choosing(plan, lead=0), inputs)))


CHAIN = """
mugraph chain float16
dims m=16 k=64
input X f16[m, k]
input G f16[k]
output Y f16[m, k]
buffer A f16[m, k]
buffer B f16[m, k]
kernel k0 generated m:grid k:tile
  X = load X[m, k]
  A[m, k] = exp(X)
  store A[m, k] = A
kernel k1 generated m:grid k:tile
  G = load G[k]
  H[k] = exp(G)
  A = load A[m, k]
  B[m, k] = mul(A, H)
  store B[m, k] = B
kernel k2 generated m:grid k:tile
  G = load G[k]
  H[k] = abs(G)
  B = load B[m, k]
  Y[m, k] = mul(B, H)
  store Y[m, k] = Y
"""


@pytest.mark.parametrize("relaying", ["", "k0", "k1", "k2", "k0 k1", "k0 k2", "k1 k2", "k0 k1 k2"])
def test_behind_relays_alone_inputs_are_read_after_the_wait(relaying: str) -> None:
    """A kernel that relays starts the one behind while what makes the inputs may still run."""
    graph = parse_mugraph(CHAIN)
    plain = choosing(schedule(graph, "m=1"), overlap=True)
    plan = Schedule({n: s.choosing(relay=n in relaying.split()) for n, s in plain.kernels.items()})
    orders = orders_of(graph, plan)
    wait, release = "wait_for_data", "release_next"
    assert orders[0] == ([release, wait, "X"] if "k0" in relaying else [wait, release, "X"])
    assert (
        orders[1]
        == {
            "": ["G", wait, release, "A"],
            "k0": [wait, release, "G", "A"],
            "k1": [release, "G", wait, "A"],
            "k0 k1": [release, wait, "G", "A"],
        }[relaying.removesuffix("k2").strip()]
    )
    if relaying.startswith("k0 k1"):  # the last then holds what the others do not
        assert orders[2] == [wait, release, "G", "B"]
    else:
        assert orders[2] == ([release, "G", wait, "B"] if "k2" in relaying else ["G", wait, release, "B"])
    inputs = draw(graph)
    assert all(map(torch.equal, run(graph, plan, inputs), run(graph, plain, inputs)))


def orders_of(graph: MuGraph, plan: Schedule) -> list[list[str]]:
    """What each generated kernel waits for, releases and loads, in its order."""
    source = kernels_source(graph, plan)
    generated = [k.name for k in graph.kernels if k.kind == "generated"]
    texts = [source[source.index(f"def {n}(") :].split("\n\n")[0] for n in generated]
    return [re.findall(r"wait_for_data|release_next|(?<=tl\.load\()\w", t) for t in texts]


def test_one_kernel_of_a_call_relays_nothing() -> None:
    """What follows a call may count on all before it having ended once it starts."""
    graph = parse_mugraph(CHAIN)
    plan = choosing(schedule(graph, "m=1"), overlap=True, relay=True, lead=1, early=True)
    made = normalised(graph, plan).kernels
    assert [s.words["relay"] for s in made.values()] == [True, True, False]
    assert not any(s.words["early"] or s.words["lead"] for s in made.values())
    assert [x.index("wait_for_data") < x.index("release_next") for x in orders_of(graph, plan)] == [False, False, True]
    waiting = Schedule({**plan.kernels, "k0": replace(plan.kernels["k0"], overlap=False)})
    near = normalised(graph, waiting)
    assert [s.words["relay"] for s in near.kernels.values()] == [False, True, True]
    other = Schedule({**near.kernels, "k0": plan.kernels["k0"]})
    assert [s.words["relay"] for s in normalised(graph, other).kernels.values()] == [True, True, False]
    alone = product_graph("matmul")
    assert not normalised(alone, choosing(schedule(alone), overlap=True, relay=True)).kernels["k0"].words["relay"]
    held = around(graph, graph.kernels[1], waiting, graph.sizes).held
    assert [t.name for t in graph.inputs if t.name in awaited(graph, graph.kernels[1], held)] == []


def test_in_front_of_the_library_nothing_is_relayed() -> None:
    graph = parse_mugraph(TWO)
    library = replace(graph.kernels[1], kind="library", roles=())
    graph = replace(graph, kernels=(graph.kernels[0], library))
    plan = Schedule({"k0": schedule(parse_mugraph(TWO), "m=1").kernels["k0"].choosing(overlap=True, relay=True)})
    assert not normalised(graph, plan).kernels["k0"].words["relay"]
    assert orders_of(graph, plan) == [["wait_for_data", "release_next", "X"]]


# -- calls that follow each other

STEP = TWO.replace("exp", "tanh")  # results stay of the size of the inputs
AHEAD_OF_TIME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "overlap": ({}, {}),
    "early": ({"early": True, "fetch": True}, {"early": True, "ahead": 2}),
    "lead": ({"fetch": True}, {"lead": 2, "ahead": 1}),
    "relay": ({"relay": True, "fetch": True}, {"lead": 2, "ahead": 2}),
    "relay of the last": ({"early": True, "fetch": True}, {"relay": True, "ahead": 2}),
    "reads": ({"fetch": True, "read": True}, {"lead": 2, "ahead": 1}),
}


def steps(graph: MuGraph, plan: Schedule, device: str, count: int) -> Callable[[bool], list[torch.Tensor]]:
    """A chain of calls on one scratch memory: each takes the result of the one before, and weights of its own.

    The function that makes them is told whether each is to have ended before the next begins, and gives all results.
    """
    module: Any = load_export(kernels_source(graph, plan))
    m, k = graph.sizes["m"], graph.sizes["k"]
    g = torch.Generator().manual_seed(0)
    x = torch.randn(m, k, generator=g).half().to(device)
    weights = [(2 * torch.randn(k, k, generator=g) / k**0.5).half().to(device) for _ in range(count)]
    results = [torch.full_like(x, math.nan) for _ in range(count)]
    scratch = module.make_scratch(device)

    def run(alone: bool) -> list[torch.Tensor]:
        for given, w, y in zip([x, *results], weights, results, strict=False):
            module.launch([given, w], [y], scratch)
            if alone and device == "cuda":
                torch.cuda.synchronize()
        return results

    return run


def step_plan(graph: MuGraph, name: str, tiles: str) -> Schedule:
    """The first kernel has one row in a program instance, and the second these tiles."""
    first, second = AHEAD_OF_TIME[name]
    plan = choosing(schedule(graph, tiles), overlap=True).kernels
    rows = replace(plan["k0"], tiles=(("m", 1),))
    return Schedule({"k0": rows.choosing(**first), "k1": plan["k1"].choosing(**second)})


@pytest.mark.parametrize("name", AHEAD_OF_TIME)
def test_calls_that_follow_each_other(name: str) -> None:
    """The CPU runs one kernel after another: this is about the text of the next test, and what it compares."""
    graph = parse_mugraph(STEP)
    plan = step_plan(graph, name, "m=16 n=16 k=16")
    assert [s.words["relay"] for s in normalised(graph, plan).kernels.values()] == [
        name == "relay",
        name == "relay of the last",
    ]
    run = steps(graph, plan, "cpu", 3)
    alone = [y.clone() for y in run(True)]
    assert all(map(torch.equal, alone, run(False)))
    g = torch.Generator().manual_seed(0)
    expected = torch.randn(16, 64, generator=g).half()
    for y in alone:
        w = (2 * torch.randn(64, 64, generator=g) / 8).half()
        expected = (expected.float().tanh().half().float() @ w.float()).half()
        assert torch.allclose(y.float(), expected.float(), atol=5e-2, rtol=5e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", AHEAD_OF_TIME)
def test_gpu_calls_that_overlap_each_other(name: str) -> None:
    """Every call reads what the one before wrote, and all write the same scratch: one that reads too soon is wrong."""
    graph = parse_mugraph(STEP).resized({"m": 16, "k": 2048, "n": 2048})
    run = steps(graph, step_plan(graph, name, "m=16 n=32 k=128"), "cuda", 24)
    alone = [y.clone() for y in run(True)]
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = run(False)
    for _ in range(50):
        for y in results:
            y.fill_(math.nan)
        captured.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, results, alone))


# -- what is read once

STREAMED = {
    "every instance has rows of its own": ("m=64 k=64; X[m,k]; Y[m]", "m:grid k:loop", "Y[m] = sum(X; k)", "", {"X"}),
    "elementwise, one operand shared": (
        "m=64 n=64; X[m,n] B[n]; Y[m,n]", "m:grid n:grid", "Y[m, n] = add(X, B)", "", {"X"}),
    "shared by no one, with one tile of rows": (
        "m=16 n=64; X[m,n] B[n]; Y[m,n]", "m:grid n:grid", "Y[m, n] = add(X, B)", "", {"X", "B"}),
    "read again by a second loop": (
        "m=64 k=64; X[m,k]; Y[m,k]", "m:grid k:loop", "S[m] = sum(X; k)\nY[m, k] = div(X, S)", "", set[str]()),
    "read again for each tile of another axis": (
        "m=64 k=64 l=64; X[m,k,l] W[k]; Y[m]", "m:grid k:loop l:loop", "A[m, k, l] = mul(X, W)\nY[m] = sum(A; k, l)",
        "", {"X"}),
    "multiplied out": ("n=64 k=64; X[k] W[n,k]; Y[n]", "n:grid k:loop", "Y[n] = dot(X, W; k)", "", {"W"}),
    "fetched ahead for the matrix units": (
        "m=16 n=64 k=64; X[m,k] W[k,n]; Y[m,n]", "m:grid n:grid k:loop", "Y[m, n] = dot(X, W; k)", "", set[str]()),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMED)
def test_what_one_instance_reads_once_leaves_the_caches_first(name: str) -> None:
    header, roles, body, tiles, expected = STREAMED[name]
    graph = kernel(header, roles, body)
    plan = choosing(schedule(graph, tiles), stream=True)
    assert streamed(graph, graph.kernels[0], plan.kernels["k0"], graph.sizes) == expected
    source = kernels_source(graph, plan)
    assert [x for x in "XBW" if f"{x} = tl.load" in source and "evict_first" in line_of(source, x)] == sorted(
        expected, key="XBW".index
    )
    assert normalised(graph, plan) == choosing(plan, stream=bool(expected))
    check(graph, plan)


def line_of(source: str, value: str) -> str:
    return next(line for line in source.splitlines() if f" {value} = tl.load" in line)


def test_parts_of_a_packed_tensor_leave_the_caches_each_by_itself() -> None:
    graph = parse_mugraph(
        "mugraph g float16\ndims t=8 a=64 n=128\ninput P f16[t, n]\noutput O f16[t, a]\n"
        "kernel k0 generated t:grid a:grid\n  X = load P[t, a]\n  Y = load P[t, a + 64]\n"
        "  O[t, a] = mul(X, Y)\n  store O[t, a] = O\n"
    )
    plan = choosing(schedule(graph, "t=2 a=64"), stream=True)
    found = kernels_source(graph, plan)
    assert all("evict_first" in line_of(found, v) for v in ("X", "Y"))
    both = parse_mugraph(canonical_text(graph).replace("a + 64", "a + 32"))  # some elements are read by both
    assert "evict_first" not in kernels_source(both, plan)


def test_what_another_kernel_reads_too_stays_in_the_caches() -> None:
    graph = CASES["split_matmul"].graph
    plan = choosing(schedule(graph, chunks=2), stream=True)
    sizes = chunk_sizes(graph, plan)
    found = {k.name: streamed(graph, k, plan.kernels[k.name], sizes) for k in graph.kernels}
    assert [bool(x) for x in found.values()] == [False, True]
    twice = replace(graph, kernels=(*graph.kernels, graph.kernels[1]))
    assert not streamed(twice, graph.kernels[1], plan.kernels[graph.kernels[1].name], sizes)


# -- compiled, with no GPU present


TILED: Mapping[str, tuple[MuGraph, str, str]] = {
    "matmul": (product_graph("matmul").resized({"m": 128, "n": 128, "k": 256}), "m=64 n=64 k=64", ""),
    "swapped": (product_graph("matmul").resized({"m": 8, "n": 128, "k": 256}), "m=16 n=64 k=64", "n k m"),
    "batch": (
        product_graph("batch inside").resized({"b": 4, "m": 64, "n": 64, "k": 128}),
        "b=1 m=64 n=64 k=64",
        "b m k n",
    ),
}


@pytest.mark.parametrize("name", TILED)
def test_descriptors_are_compiled_to_tensor_copies(name: str, stage: Stages) -> None:
    graph, tiles, order = TILED[name]
    plan = schedule(graph, tiles, order)
    ptx = stage(graph, choosing(plan, descriptors=True), 90, "ptx")
    assert "cp.async.bulk.tensor" in ptx
    assert "cp.async.cg" not in ptx
    assert "wgmma.mma_async" in ptx


NORMED = """
T[m, g, c] = dot(X, W; k)
S[m, g] = sum(T; c)
D[m, g, c] = sub(T, S)
Y[m, g, c] = mul(D, D)
"""
"""A reduction over groups of a product's columns."""


def normed(m: int, g: int, c: int, k: int, weights: str = "g,c,k") -> MuGraph:
    header = f"m={m} g={g} c={c} k={k}; X[m,k] W[{weights}]; Y[m,g,c]"
    return kernel(header, "m:grid g:grid c:tile k:loop", NORMED)


@pytest.mark.parametrize("order", ["m k g c", "m g c k", "g c m k", "g c k m", "k c m g"])
@pytest.mark.parametrize(("m", "g", "c"), [(40, 12, 8), (16, 8, 16), (24, 3, 16), (24, 3, 24), (16, 1, 32)])
@pytest.mark.parametrize("weights", ["g,c,k", "k,g,c", "c,k,g", "g,k,c"])
def test_columns_in_groups_through_descriptors(order: str, m: int, g: int, c: int, weights: str) -> None:
    """Groups and columns past the end, whatever the order in which blocks and memory have them."""
    graph = normed(m, g, c, 40, weights)
    plan = choosing(schedule(graph, "m=16 g=4 k=16", order), descriptors=True)
    assert weights.endswith("g") or boxes(graph, plan).keys() == {"X", "W"}
    check(graph, plan)


@pytest.mark.parametrize("order", ["m k g c", "m g c k", "g c k m", "k g c m"])
def test_groups_come_to_the_matrix_units_from_shared_memory(order: str, stage: Stages) -> None:
    """As rows and as columns; and the product of an iteration is under way in the next."""
    graph = normed(1024, 64, 32, 1024)
    plan = choosing(schedule(graph, "m=128 g=4 k=64", order), descriptors=True, warps=8, stages=3)
    assert "descriptor(W, [2048, 1024], [1024, 1], [128, 64])" in kernels_source(graph, plan)
    loop = stage(graph, plan, 90, "ttgir").split("scf.for", 1)[1].split("scf.yield", 1)[0]
    assert "ttg.local_load" not in loop
    assert "pendings = 1" in loop


def test_groups_that_are_not_whole_in_a_box_are_merged_in_shared_memory(stage: Stages) -> None:
    graph = normed(1024, 64, 24, 1024)
    plan = choosing(schedule(graph, "m=128 g=4 k=64", "m k g c"), descriptors=True, warps=8, stages=3)
    assert "descriptor(W, [64, 24, 1024], [24576, 1024, 1], [4, 32, 64])" in kernels_source(graph, plan)
    loop = stage(graph, plan, 90, "ttgir").split("scf.for", 1)[1].split("scf.yield", 1)[0]
    assert "ttg.memdesc_reshape" in loop
    assert "ttg.local_load" not in loop


def test_an_operand_that_is_read_otherwise_too_keeps_its_axes() -> None:
    """Merged for its product, what is loaded has no axis that a sum over groups could name."""
    body = "T[m, g, c] = dot(X, W; k)\nV[g, c] = sum(W; k)\nY[m, g, c] = mul(T, V)"
    graph = kernel("m=32 g=8 c=8 k=32; X[m,k] W[g,c,k]; Y[m,g,c]", "m:grid g:grid c:tile k:loop", body)
    plan = choosing(schedule(graph, "m=16 g=4 k=16", "m k g c"), descriptors=True)
    assert boxes(graph, plan).keys() == {"X", "W"}
    check(graph, plan)


def test_windows_are_compiled_to_tensor_copies(stage: Stages) -> None:
    graph = parse_mugraph(WINDOWS).resized({"y": 16, "c": 128, "e": 64})
    plan = schedule(graph, "b=1 y=8 x=16 c=64 i=1 j=1 e=64", "b y x c i j e")
    ptx = stage(graph, choosing(plan, descriptors=True), 90, "ptx")
    assert "cp.async.bulk.tensor.4d" in ptx and "wgmma.mma_async" in ptx
    assert "cp.async.cg" not in ptx


def test_specialized_kernels_have_warps_of_their_own_for_fetching(stage: Stages) -> None:
    graph, tiles, order = TILED["matmul"]
    ptx = stage(graph, choosing(schedule(graph, tiles, order), specialize=True), 90, "ptx")
    assert "setmaxnreg" in ptx
    assert "mbarrier.try_wait" in ptx
    assert "cp.async.bulk.tensor" in ptx


@pytest.mark.parametrize("arch", [80, 90])
def test_what_is_read_once_is_marked_in_the_instructions(arch: int, stage: Stages) -> None:
    graph = kernel("n=512 k=4096; X[k] W[n,k]; Y[n]", "n:grid k:loop", "Y[n] = dot(X, W; k)")
    plan = schedule(graph, "n=8 k=512")
    assert "evict_first" not in stage(graph, plan, arch, "ptx")
    assert "L1::evict_first" in stage(graph, choosing(plan, stream=True), arch, "ptx")


def test_descriptors_work_where_the_hardware_has_none(stage: Stages) -> None:
    graph, tiles, order = TILED["matmul"]
    ptx = stage(graph, choosing(schedule(graph, tiles, order), descriptors=True), 80, "ptx")
    assert "cp.async.bulk.tensor" not in ptx
