"""The structures that the search must find by itself, as the text of the best μGraph of real specs.

`UPDATE_GOLDEN=1 pytest tests/search/test_golden.py` writes the files anew; read the difference before keeping it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirage_cli.ir.mugraph import Kernel, MuGraph
from mirage_cli.ir.placement import Loop, place
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.spec.reader import load_spec
from tests.searched import searched

ROOT = Path(__file__).parents[1]

CASES = {
    "rmsnorm_linear": {"m": 16},
    "lora": {"m": 16, "k": 256},
    "gated_mlp": {"m": 8, "n": 14336},
    "gqa": {"h": 2},
    "gqa_decode": {"b": 8},
    "gqa_prefill": {},
    "qknorm_gqa": {"h": 16},
    "ntrans": {"m": 64},
}


def found(name: str) -> list[MuGraph]:
    program = load_spec(ROOT.parent / "search_specs" / f"{name}.yaml").at(CASES[name])
    result = searched(program)
    assert result.stopped == "exhausted"
    assert not result.rejected
    return [p.graph for p in result.plans]


@pytest.fixture(scope="module")
def graphs() -> dict[str, list[MuGraph]]:
    return {}


def plans(name: str, graphs: dict[str, list[MuGraph]]) -> list[MuGraph]:
    if name not in graphs:
        graphs[name] = found(name)
    return graphs[name]


def best(name: str, graphs: dict[str, list[MuGraph]]) -> MuGraph:
    return plans(name, graphs)[0]


def dots(kernel: Kernel) -> list[str]:
    return [e.out for e in kernel.body if e.op == "dot"]


def loops(kernel: Kernel) -> list[Loop]:
    return [s for s in place(kernel).segments if isinstance(s, Loop)]


@pytest.mark.parametrize("name", CASES)
def test_best_mugraph(name: str, graphs: dict[str, list[MuGraph]]) -> None:
    graph = best(name, graphs)
    path = ROOT / "golden" / "best" / f"{name}.mugraph"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(print_mugraph(graph), encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    assert print_mugraph(graph) == text
    assert print_mugraph(parse_mugraph(text)) == text


def test_the_division_of_rmsnorm_is_behind_the_matmul_in_one_kernel(graphs: dict[str, list[MuGraph]]) -> None:
    (kernel,) = best("rmsnorm_linear", graphs).kernels
    (product,) = dots(kernel)
    (loop,) = loops(kernel)
    inside = {x.out for x in loop.steps}
    assert product in inside
    assert {e.op for e in kernel.body if e.op in ("div", "rsqrt", "sqrt")}
    assert not [e for e in kernel.body if e.out in inside and e.op in ("div", "rsqrt", "sqrt")]
    # Both the product and the sum of squares are accumulated by the one loop.
    assert {e.op for e in kernel.body if e.out in dict(loop.accumulators)} == {"dot", "sum"}


def test_lora_is_one_kernel_with_both_products_of_x(graphs: dict[str, list[MuGraph]]) -> None:
    """X·W + (X·A)·B in one kernel that reads X once. Another adds A·B to W there: as fast as long as they are small."""
    assert len(best("lora", graphs).kernels) == 1
    alone = [g.kernels[0] for g in plans("lora", graphs) if len(g.kernels) == 1]
    bodies = [[e.op for e in k.body] for k in alone]
    assert bodies.index(["dot", "add", "dot"]) < 2
    assert bodies.index(["dot", "dot", "dot", "add"]) < 2
    both = [k for k in alone if len(dots(k)) == 3 and k.body[-1].op == "add"]
    assert both
    for kernel in both:
        (x,) = [load.out for load in kernel.loads if load.buffer == "X"]
        assert sum(x in e.values for e in kernel.body if e.op == "dot") == 2


def test_the_gated_mlp_has_both_matmuls_in_one_kernel_and_one_loop(graphs: dict[str, list[MuGraph]]) -> None:
    (kernel,) = best("gated_mlp", graphs).kernels
    (loop,) = loops(kernel)
    assert {*dots(kernel)} == {*dict(loop.accumulators)}
    assert len(dots(kernel)) == 2


def test_attention_is_one_kernel_with_a_running_maximum(graphs: dict[str, list[MuGraph]]) -> None:
    (kernel,) = best("gqa_prefill", graphs).kernels
    (loop,) = loops(kernel)
    assert len(loop.running) == 1
    assert len(dots(kernel)) == 2
    rescaled = [name for name, degrees in loop.accumulators if degrees]
    assert len(rescaled) == 2  # the sum of exponentials and the weighted values


@pytest.mark.parametrize("name", ["gqa", "qknorm_gqa", "gqa_decode"])
def test_attention_is_split_over_the_keys_and_merged(name: str, graphs: dict[str, list[MuGraph]]) -> None:
    """Partial maxima, sums and values are written for each chunk; the second kernel merges them."""
    first, second = best(name, graphs).kernels
    assert first.split == "s"
    assert loops(first)[0].running
    assert len(first.stores) == 3
    assert {x.buffer for x in second.loads} == {s.buffer for s in first.stores}
    assert "max" in {e.op for e in second.body}


def test_norms_are_inside_the_attention_kernel(graphs: dict[str, list[MuGraph]]) -> None:
    first, _ = best("qknorm_gqa", graphs).kernels
    assert {"Q", "K", "V", "GQ", "GK"} == {x.buffer for x in first.loads}
