"""Loads of which a mask leaves a part."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mirage_cli.codegen import nodes
from mirage_cli.codegen.check import PlanError
from mirage_cli.codegen.check import check as check_plan
from mirage_cli.codegen.export import kernels_source
from mirage_cli.codegen.plan import Load, Statement
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from tests.codegen.conftest import Stages
from tests.codegen.test_plan import changed, plans
from tests.codegen.test_triton import check, kernel, schedule

ROLES = "m:grid n:grid k:loop"
EVERY_THIRD = "i[m] = index(m)\nr[m] = remainder(i, 3)\nc[m] = eq(r, 1)\n"
PICKED = EVERY_THIRD + "V[m, k] = where(c, X, 0)\nY[m, n] = dot(V, W; k)"


def product(body: str, sizes: str = "m=50 n=40 k=96", more: str = "") -> MuGraph:
    return kernel(f"{sizes}; X[m,k] W[k,n]{more}; Y[m,n]", ROLES, body)


def loop_of(graph: MuGraph, order: str = "m k n") -> str:
    text = kernels_source(graph, schedule(graph, "m=32 n=32 k=32", order))
    return re.split(r"\n    (?=\S)", text[text.index("for s_k") :])[0]


@pytest.mark.parametrize("order", ["m k n", "n k m"])
def test_what_a_mask_puts_to_zero_is_not_loaded(order: str) -> None:
    graph = product(PICKED)
    text = loop_of(graph, order)
    assert re.search(r"X = tl\.load\(.*in_m.* & \w+\[.*\], other=0\)", text) and "tl.where" not in text
    check(graph, schedule(graph, "m=32 n=32 k=32", order))
    check(graph, schedule(graph, "m=1 n=32 k=32", order))  # where the mask is of no axes


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (PICKED.replace("where(c, X, 0)", "where(c, X, 1)"), ""),
        (PICKED.replace("[m]", "[k]").replace("index(m)", "index(k)"), ""),  # side by side in memory
        (PICKED.replace("dot(V, W", "dot(U, W").replace("\nY", "\nU[m, k] = add(V, X)\nY"), ""),
        (EVERY_THIRD.replace("eq(r, 1)", "gt(S, 0)") + PICKED.removeprefix(EVERY_THIRD).replace("c,", "d,").replace(
            "V[m, k]", "g[m, k] = gt(X, 0)\nd[m] = eq(r, 1)\nV[m, k]", 1).replace("d, X", "g, X"), " S[m]"),
    ],
    ids=["no zero", "along memory", "read twice", "of what is loaded"],
)  # fmt: skip
def test_other_masks_stay(body: str, more: str) -> None:
    graph = product(body, more=more)
    assert "tl.where(" in loop_of(graph)
    check(graph, schedule(graph, "m=32 n=32 k=32", "m k n"))


def test_what_is_stored_too_is_loaded_whole() -> None:
    graph = kernel(
        "m=50 n=32 k=96; X[m,k] W[k,n]; Y[m,n] Z[m,k]", "m:grid n:tile k:loop", PICKED + "\nZ[m, k] = mul(X, 2)"
    )
    plan = schedule(graph, "m=32 k=32", "m k n")
    assert "tl.where(" in kernels_source(graph, plan)
    check(graph, plan)
    lines = "\n".join(x for x in print_mugraph(graph).splitlines() if "mul(X, 2)" not in x)
    assert "tl.where(" in kernels_source(
        parse_mugraph(lines.replace("store Z[m, k] = Z", "store Z[m, k] = X") + "\n"), plan
    )


def test_a_mask_of_another_block_is_refused() -> None:
    graph = product(PICKED)
    (plan,) = plans(graph, schedule(graph, "m=32 n=32 k=32", "m k n"))
    check_plan(plan)
    for other in (nodes.Value("r", ("m",)), nodes.Value("q", ("m", "k"))):

        def masked(s: Statement, other: nodes.Value = other) -> list[Statement]:
            return [replace(s, when=other) if isinstance(s, Load) and s.when is not None else s]

        with pytest.raises(PlanError):
            check_plan(changed(plan, masked))


def test_the_matrix_units_take_it_from_where_it_was_loaded_to(stage: Stages) -> None:
    graph = product(PICKED, "m=256 n=128 k=1024")
    text = stage(graph, schedule(graph, "m=128 n=64 k=64", "m k n"), 90, "ttgir")
    loop = text[text.rindex("scf.for") :].split("\n    } loc")[0]
    assert "local_alloc" not in loop and "local_load" not in loop and "warp_group_dot" in loop
