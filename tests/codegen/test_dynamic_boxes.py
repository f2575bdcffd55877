"""Boxes of tensors with an axis whose size is an argument: the descriptor ends where the size of the call does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest
import torch

from mirage_cli.codegen.access import Descriptor, descriptors
from mirage_cli.codegen.check import PlanError, check
from mirage_cli.codegen.export import ExportInfo, kernels_source, load_export
from mirage_cli.codegen.parts import launch_sizes
from mirage_cli.codegen.planner import plan_kernel
from mirage_cli.codegen.scalars import Times
from mirage_cli.codegen.sized import Variant, sized_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import Program, mixed
from mirage_cli.ir.schedule import Schedule
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.compilefarm import CompileFarm
from mirage_cli.tune.interpreted import Interpreter
from tests.codegen import test_dynamic_axes, test_dynamic_loops
from tests.codegen.test_dynamic import compiled_keys

M = "{min: 1, max: 90, tune: [16]}"
SPECS: Mapping[str, str] = {
    "gated": f"""
name: gated
dims: {{m: {M}, k: 96, n: 64}}
inputs: {{X: [m, k], W1: {{dims: [k, n], scale: 0.1}}, W2: {{dims: [k, n], scale: 0.1}}}}
program: O = silu(dot(X, W1, k)) * dot(X, W2, k)
outputs: {{O: [m, n]}}
""",
    # the dynamic axis between others, so that strides are multiples of its size
    "heads": f"""
name: heads
dims: {{h: 3, m: {M}, k: 96, n: 32}}
inputs: {{X: [h, m, k], W: {{dims: [h, k, n], scale: 0.1}}}}
program: O = dot(X, W, k)
outputs: {{O: [h, m, n]}}
""",
    # strides of its own: a part of rows that are longer
    "gaps": f"""
name: gaps
dims: {{m: {M}, k: 96, n: 32}}
inputs: {{X: {{dims: [m, k], strides: [128, 1]}}, W: {{dims: [k, n], scale: 0.1}}}}
program: O = dot(X, W, k)
outputs: {{O: [m, n]}}
""",
    "attention": test_dynamic_loops.SPECS["attention"],
    "product of the argument": """
name: product
dims: {m: 48, n: 32, k: {min: 1, max: 300, tune: [200]}}
inputs: {X: [k, m], W: [k, n]}
program: O = silu(dot(X, W, k))
outputs: {O: [m, n]}
""",
    "decode": test_dynamic_axes.SPECS["decode"],
    "gram": test_dynamic_axes.SPECS["gram"],
}
INNERMOST = """
name: innermost
dims: {m: {min: 1, max: 90, tune: [16]}, k: 96, n: 64}
inputs: {X: [k, m], W: [k, n]}
program: O = silu(dot(X, W, k))
outputs: {O: [n, m]}
"""


def boxes(graph: MuGraph, schedule: Schedule) -> dict[str, Descriptor]:
    """All descriptors of a μGraph, by value."""
    sizes = launch_sizes(graph, schedule)
    kernels = [k for k in graph.kernels if k.kind == "generated"]
    return {v: d for k in kernels for v, d in descriptors(graph, k, schedule.kernels[k.name], sizes).items()}


@cache
def found(text: str) -> tuple[Program, MuGraph, Schedule]:
    """The program for its largest sizes, with the candidate and schedule that have most boxes over dynamic axes."""
    program = parse_spec(text).programs()[-1]

    def by_descriptors(schedule: Schedule, tile: int) -> Schedule:
        """Blocks of so many positions of a dynamic axis, and of 32 along loops."""
        dynamic = {r.dim for r in program.dynamic}
        return Schedule(
            {
                n: replace(
                    s, tiles=tuple((d, tile if d in dynamic else min(t, 32)) for d, t in s.tiles), descriptors=True
                )
                for n, s in schedule.kernels.items()
            }
        )

    candidates = search(lower(merge_axes(program)), find_target("h200")).candidates
    made = [(c.graph, by_descriptors(c.schedule, tile)) for c in candidates for tile in (16, 1)]
    graph, schedule = max(made, key=lambda x: (sum(d.sized for d in boxes(*x).values()), len(boxes(*x))))
    return program, graph, schedule


def sizes_of(program: Program, seed: int) -> list[dict[str, int]]:
    """Sizes at random, with the ends of each range."""
    rng = random.Random(seed)
    return mixed({r.dim: [r.least, *(rng.randint(r.least, r.most) for _ in range(3)), r.most] for r in program.dynamic})


@pytest.mark.parametrize("name", SPECS)
def test_boxes_are_right_at_every_size(name: str, interpreter: Interpreter) -> None:
    program, graph, schedule = found(SPECS[name])
    sized = {v: d for v, d in boxes(graph, schedule).items() if d.sized}
    assert sized
    source = kernels_source(graph, schedule)
    assert source.count("_desc.load(") >= len(sized)
    for sizes in sizes_of(program, 1):
        judged = interpreter.judge(program.resized(sizes), source, 0, True)
        assert judged.ok, (sizes, judged.problem)


def test_extents_and_strides_are_of_the_call() -> None:
    _, graph, schedule = found(SPECS["heads"])
    x = boxes(graph, schedule)["X"]
    assert dict(zip(x.dims, x.shape, strict=True)) == {"h": 3, "m": Times(1, ("m",)), "k": 96}
    assert dict(zip(x.dims, x.strides, strict=True)) == {"h": Times(96, ("m",)), "m": 96, "k": 1}
    assert "descriptor(X, [3, SIZE_m, 96], [SIZE_m * 96, 96, 1], " in kernels_source(graph, schedule)


def test_the_text_is_the_same_whatever_size_it_is_tuned_for() -> None:
    _, graph, schedule = found(SPECS["heads"])
    source = kernels_source(graph, schedule)
    for m in (1, 90):
        assert kernels_source(graph.resized({"m": m}), schedule) == source.replace("SIZE_m=16", f"SIZE_m={m}")


def test_the_hardware_takes_no_rows_whose_length_is_an_argument() -> None:
    """They would start at multiples of 16 bytes at some sizes alone."""
    _, graph, schedule = found(INNERMOST)
    assert boxes(graph, schedule).keys() == {"W"}


@pytest.mark.parametrize("name", ["gated", "heads", "attention"])
def test_one_compilation_serves_all_sizes(name: str, farm: Callable[[int], CompileFarm]) -> None:
    program, graph, schedule = found(SPECS[name])
    (r,) = program.dynamic
    assert len(compiled_keys(program, kernels_source(graph, schedule), (1, 15, 16, 90), farm, r.dim)) == 1


def test_warps_of_their_own_fetch_where_all_is_in_boxes(farm: Callable[[int], CompileFarm]) -> None:
    """For which a load by pointers is one too many."""
    program, graph, schedule = found(SPECS["gated"])
    ((name, s),) = schedule.kernels.items()
    tiles = tuple((d, {"m": 64, "n": 64, "k": 32}[d]) for d, _ in s.tiles)
    special = Schedule({name: replace(s, tiles=tiles, warps=4, specialize=True)})
    source = kernels_source(graph, special)
    assert "warp_specialize=True" in source
    assert len(compiled_keys(program, source, (1, 90), farm)) == 1


def test_a_box_with_another_end_is_refused() -> None:
    _, graph, schedule = found(SPECS["gated"])
    (k,) = graph.kernels
    planned = plan_kernel(graph, k, schedule, launch_sizes(graph, schedule))
    check(planned)

    def fixed(d: Descriptor) -> Descriptor:
        return replace(d, shape=tuple(n if isinstance(n, int) else 16 for n in d.shape))

    wrong = replace(planned, descriptors=tuple((v, fixed(d)) for v, d in planned.descriptors))
    with pytest.raises(PlanError, match="a box for X has an end that is not the size of the call"):
        check(wrong)


def test_files_start_kernels_with_the_shape_of_the_call() -> None:
    program, graph, schedule = found(SPECS["heads"])
    source = sized_source([Variant(program, graph, schedule, ExportInfo())])
    assert "(X_at, (3, SIZE_m, 96), (SIZE_m * 96, 96, 1))" in source


# On a GPU


@pytest.mark.gpu
def test_gpu_calls_of_all_sizes_at_several_addresses() -> None:
    """One file, called twice for each size: the second call takes the maps that the first has made."""
    program, graph, schedule = found(SPECS["heads"])
    module = load_export(sized_source([Variant(program, graph, schedule, ExportInfo())]))
    g = torch.Generator("cuda").manual_seed(1)
    w = torch.randn(3, 96, 32, generator=g, device="cuda").half() / 8
    inputs = [torch.randn(3, m, 96, generator=g, device="cuda").half() for m in range(1, 91)]
    for x in inputs * 2:
        torch.testing.assert_close(module.heads(x, w).float(), x.float() @ w.float(), rtol=1e-2, atol=1e-2)
    if torch.cuda.get_device_capability()[0] >= 9:
        assert len(module._KNOWN[torch.cuda.current_device()]) == 1
