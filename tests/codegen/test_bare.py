"""Kernels without checks, and layers, in Triton's interpreter."""

from __future__ import annotations

import ast

import pytest
import torch

from mirage_cli.codegen.export import export_source, load_export
from mirage_cli.codegen.exported.bare import bare_source, layer_source
from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.errors import MirageError
from mirage_cli.spec.reader import parse_spec
from mirage_cli.tune.interpreted import reduced_schedule
from mirage_cli.verify.float64 import reference64
from mirage_cli.verify.numeric import draw_inputs, judge
from tests.searched import searched

SPEC = """
name: normed
dims: {m: 5, k: 24, n: 20}
dtype: float32
inputs: {X: [m, k], G: [k], W: [k, n]}
program: O = dot(rms_norm(X, k) * G, W, k)
outputs: {O: [m, n]}
"""
PROGRAM = parse_spec(SPEC).at()


@pytest.mark.parametrize("rank", range(3))
def test_a_bare_kernel_is_right(rank: int) -> None:
    plan = searched(PROGRAM).plans[rank]
    source = bare_source(PROGRAM, plan.graph, reduced_schedule(plan.graph, plan.schedule))
    module = load_export(source)
    eager = load_export("import torch\n\n\n" + torch_source(PROGRAM)).reference
    verdict = judge(PROGRAM, lambda xs: [module.normed(*xs)], eager)
    assert verdict.ok, str(verdict)


def test_it_has_the_triton_functions_and_one_launcher() -> None:
    plan = searched(PROGRAM).plans[0]
    tree = ast.parse(bare_source(PROGRAM, plan.graph, plan.schedule))
    plain = [f.name for f in tree.body if isinstance(f, ast.FunctionDef) and not f.decorator_list]
    assert plain == ["normed"]
    assert not [c for c in tree.body if isinstance(c, ast.ClassDef)]


@pytest.mark.parametrize("write", [bare_source, export_source])
def test_a_layer_has_the_weights_of_the_spec(write) -> None:  # type: ignore[no-untyped-def]
    plan = searched(PROGRAM).plans[0]
    text = write(PROGRAM, plan.graph, reduced_schedule(plan.graph, plan.schedule))
    layer = load_export(text + "\n\n" + layer_source(PROGRAM, ["G", "W"])).Normed()
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {"G": (24,), "W": (24, 20)}
    x, gain, w = draw_inputs(PROGRAM, "normal", torch.device("cpu"), 0)
    layer.load_state_dict({"G": gain, "W": w})
    (exact,) = reference64(PROGRAM, [x, gain, w])
    torch.testing.assert_close(layer(x).double(), exact, rtol=1e-5, atol=1e-5)


def test_a_weight_that_is_no_input_is_named() -> None:
    with pytest.raises(MirageError, match="no weight V; its inputs are X, G, W"):
        layer_source(PROGRAM, ["V"])
