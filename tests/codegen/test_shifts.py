"""exp(x - m) for a running maximum m: when it may be one multiply-add, and what large numbers are rounded to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.ir.program import Program
from mirage_cli.search.generator import ScheduledGraph, search
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.yardstick import as_tuple
from tests.programs import program

TILE = 64
LARGE = 999424.0
"""A number of bfloat16 whose product with log2 e is rounded by up to 1/16 in float32: 2^(1/16) for each of 64 tiles."""


def weighted(dtype: str = "bfloat16", loops: int = 1) -> Program:
    """The weights themselves are an output where there is to be a second loop: they wait for the sum of the first."""
    text, outputs = "p = softmax(L; s) | O = dot(p, V; s)", "O" if loops == 1 else "O p"
    return program("m=8192 s=4096 e=64", "L[m,s] V[s,e]", text, outputs, dtype=dtype)


def plans(of: Program, loops: int) -> list[ScheduledGraph]:
    """Of one kernel with so many loops over s, in the order of predicted time."""
    found = [c for c in search(of, find_target("h100"), prune=False).candidates if len(c.graph.kernels) == 1]
    return [c for c in found if text(of, c).count("for s_s in") == loops]


def text(of: Program, c: ScheduledGraph) -> str:
    return export_source(of, c.graph, c.schedule)


def exponents(of: Program, c: ScheduledGraph) -> list[str]:
    return re.findall(r"_shift\S* = .*|tl\.exp2?\(.*?\)(?=  #|$)", text(of, c), re.MULTILINE)


def test_exponentials_that_meet_one_another_alone_are_one_multiply_add() -> None:
    of = weighted()
    (c, *_) = plans(of, 1)
    _, scale, to_log2, each = exponents(of, c)
    assert re.fullmatch(r"tl\.exp2\(\((\w+) - \1_shift\) \* 1\.44\d+\)", scale), "the factor of tiles is exact"
    assert re.search(r"_shift = \w+_shift \* 1\.44", to_log2)
    assert re.match(r"tl\.exp2\(.* \* 1\.44\d+ - \w+_shift", each)


def test_others_subtract_first() -> None:
    for dtype, loops in (("bfloat16", 2), ("float32", 1), ("float32", 2)):
        of = weighted(dtype, loops)
        found = plans(of, loops)
        assert found
        for c in found:
            assert not re.search(r"\* 1\.44\d+ - ", text(of, c))


@pytest.mark.gpu
@pytest.mark.parametrize("loops", [1, 2])
def test_gpu_large_numbers_that_are_equal_have_equal_weights(loops: int, tmp_path: Path) -> None:
    of = weighted(loops=loops)
    (c, *_) = plans(of, loops)
    file = tmp_path / "weighted.py"
    file.write_text(text(of, c), encoding="utf-8")
    module: Any = load_export(file.read_text(encoding="utf-8"))
    scores = torch.full((8192, 4096), LARGE, device="cuda", dtype=torch.bfloat16)
    values = (torch.arange(4096, device="cuda") >= 2048).to(torch.bfloat16)[:, None].expand(4096, 64).contiguous()
    found, *_ = as_tuple(module.t(scores, values))
    torch.testing.assert_close(found.float(), torch.full((8192, 64), 0.5, device="cuda"))
