"""Completeness: on tiny spaces the search, with pruning off, finds what brute force finds, and each loss has a reason.

`UPDATE_GOLDEN=1 pytest tests/search/test_bruteforce.py` writes the losses anew; read the difference before keeping it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path

import pytest

from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Program
from mirage_cli.search.cuts import Bounds
from mirage_cli.search.generator import search
from mirage_cli.target.gpus import find_target
from tests.bruteforce import Space, canonical, everything, text_of, texts, within
from tests.programs import program

LOSSES = Path(__file__).parents[1] / "golden" / "losses"
ALL = 10**6

SPACES = {
    "matmul": Space(program("m=4 k=256 n=8", "X[m,k] W[k,n]", "O = dot(X, W; k)"), ("dot", "mul", "sum", "add"), 2),
    "matmul_bias": Space(
        program("m=4 k=32 n=8", "X[m,k] W[k,n] B[n]", "a = dot(X, W; k) | O = add(a, B)"), ("dot", "sum", "add"), 3
    ),
    "two_matmuls": Space(
        program("m=4 k=32 n=64 r=8", "X[m,k] A[k,n] B[n,r]", "a = dot(X, A; k) | O = dot(a, B; n)"), ("dot", "sum"), 3
    ),
    "unsafe_softmax": Space(
        program("m=4 k=32", "X[m,k]", "e = exp(X) | s = sum(e; k) | O = div(e, s)"),
        ("exp", "max", "exp_sub", "sum", "div"),
        4,
    ),
    "sum_of_squares": Space(
        program("m=4 k=256", "X[m,k] S[m]", "a = square(X) | b = sum(a; k) | O = mul(b, S)"),
        ("square", "sum", "mul", "dot"),
        3,
    ),
    "elementwise_and_sum": Space(
        program("m=4 k=32", "X[m,k] Y[m,k]", "a = mul(X, Y) | b = sum(a; k) | O = div(X, b)"),
        ("mul", "sum", "div", "dot"),
        3,
    ),
    "outer_product": Space(program("m=4 n=8", "X[m] Y[n]", "O = mul(X, Y)"), ("mul", "add", "sum"), 3),
    "residual": Space(
        program("m=4 k=32 n=8", "X[m,k] R[m,k] W[k,n]", "a = dot(X, W; k) | b = dot(R, W; k) | O = add(a, b)"),
        ("add", "dot", "sum"),
        3,
    ),
    "gain": Space(
        program("m=4 k=32 n=8", "X[m,k] G[k] W[k,n]", "a = mul(X, G) | O = dot(a, W; k)"), ("mul", "dot", "sum"), 3
    ),
    "lora": Space(
        program(
            "m=4 k=32 n=8 r=2",
            "X[m,k] W[k,n] A[k,r] B[r,n]",
            "a = dot(X, W; k) | b = dot(X, A; k) | c = dot(b, B; r) | O = add(a, c)",
        ),
        ("add", "dot"),
        4,
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_the_search_finds_what_brute_force_finds(name: str) -> None:
    space = SPACES[name]
    brute, found = everything(space), searched(space)
    assert not found.keys() - brute.keys(), "brute force should find these too"
    assert found, "the search finds something"
    for text, graph in found.items():
        assert reason(space.program, graph) is None, f"the reason for losses is no reason: {text}"
    lost = sorted((reason(space.program, brute[t]) or "unexplained", t) for t in brute.keys() - found.keys())
    assert not [t for why, t in lost if why == "unexplained"], "the search should find these"
    groups = [f"# {why}\n" + "".join(f"{t}\n" for _, t in same) for why, same in groupby(lost, lambda x: x[0])]
    text = f"# found: {len(found)}, lost: {len(lost)}\n\n" + "\n".join(groups)
    path = LOSSES / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def searched(space: Space) -> dict[str, MuGraph]:
    """What the search finds, exhaustively, of one kernel or two."""
    bounds = Bounds(
        kernels=2,
        equations=space.equations,
        intermediates=space.stored,
        expansions=ALL,
        decisions=ALL,
        alternatives=ALL,
        continuations=ALL,
        plans=ALL,
        algebras=ALL,
    )
    result = search(space.program, find_target("h100"), bounds=bounds, prune=False)
    assert result.stopped == "exhausted"
    return {canonical(c.graph): c.graph for c in result.candidates if within(space, c.graph)}


# -- why the search leaves a μGraph out


@dataclass(frozen=True)
class Made:
    """How a value is made; what it is made of, and it itself, are expressions of the inputs."""

    text: str
    op: str
    args: tuple[str, ...]
    axes: frozenset[str]
    dims: frozenset[str]

    @property
    def reduces(self) -> bool:
        return OPS[self.op].kind in ("reduction", "contraction")


class Plan:
    """A μGraph as definitions of values, whichever kernel makes them.

    own: the program's values. stored: what each kernel but the last leaves in memory.
    """

    def __init__(self, program: Program, graph: MuGraph) -> None:
        self.sizes = graph.sizes
        self.own = {t.name for t in program.inputs}
        text = {t.name: t.name for t in program.inputs}
        for e in program.eqns:
            text[e.out] = text_of(e.op, (text[str(a)] for a in e.args), e.axes)
            self.own.add(text[e.out])
        self.made: dict[str, Made] = {}
        self.dims = {t.name: frozenset(t.dims) for t in program.inputs}
        self.stored: list[list[Made]] = []
        for k, text in zip(graph.kernels, texts(graph, marked=False), strict=True):
            for e in k.body:
                args = tuple(text[str(a)] for a in e.args)
                self.made[text[e.out]] = Made(text[e.out], e.op, args, frozenset(e.axes), frozenset(e.dims))
                self.dims[text[e.out]] = frozenset(e.dims)
            self.stored.append([self.made[text[s.value]] for s in k.stores])
        self.stored.pop()

    def all(self, *ops: str) -> list[Made]:
        return [m for m in self.made.values() if m.op in ops]

    def factors(self, text: str) -> list[str]:
        m = self.made.get(text)
        return [f for a in m.args for f in self.factors(a)] if m is not None and m.op == "mul" else [text]

    def elements(self, text: str) -> int:
        return prod(self.sizes[d] for d in self.dims[text])

    def operand(self, text: str) -> bool:
        return any(text in m.args for m in self.all("dot"))

    def sums_within(self, m: Made) -> bool:
        return m.reduces or any(self.sums_within(self.made[a]) for a in m.args if a in self.made)


def another_shift(p: Plan) -> bool:
    for e in p.all("exp_sub"):
        top = p.made.get(e.args[1])
        summed = [m.axes for m in p.all("sum") if e.text in m.args]
        if top is None or top.op != "max" or top.args != e.args[:1] or top.axes not in summed:
            return True
    return False


def times_itself(p: Plan) -> bool:
    factors = [[f for a in m.args for f in p.factors(a)] for m in p.all("mul", "dot")]
    return any(len(set(f)) < len(f) for f in factors)


def outer_product(p: Plan) -> bool:
    summed = {a for m in p.all("sum", "dot") for a in m.args}
    return any(m.text in summed and all(p.dims[a] != m.dims for a in m.args) for m in p.all("mul"))


def by_elements(p: Plan, m: Made) -> bool:
    return len({p.dims[a] for a in m.args}) == 1


def sum_of_product(p: Plan) -> bool:
    products = [(m, p.made[m.args[0]]) for m in p.all("sum") if m.args[0] in p.made]
    return any(m.text not in p.own and x.op == "mul" and not by_elements(p, x) for m, x in products)


def scales_larger(p: Plan) -> bool:
    for m in p.all("dot"):
        for side, other in (m.args, m.args[::-1]):
            scaled = p.made.get(side)
            if scaled is None or scaled.op != "mul":
                continue
            for f, rest in (scaled.args, scaled.args[::-1]):
                if p.dims[f] <= p.dims[rest] & p.dims[other] and p.elements(rest) > p.elements(other):
                    return True
    return False


def no_operand(p: Plan) -> bool:
    return any(not m.reduces and not p.operand(m.text) for stored in p.stored for m in stored)


def operand_of_nobody(p: Plan) -> bool:
    return any(m.text not in p.own and not p.sums_within(m) for stored in p.stored for m in stored)


REASONS: dict[str, Callable[[Plan], bool]] = {
    "exp without a maximum, which overflows": lambda p: bool(p.all("exp")),
    "a shift that is not the maximum over what is summed": another_shift,
    "a value times itself, which is a square": times_itself,
    "a product with more axes than its factors, which is then summed": outer_product,
    "a sum of a product, which is a dot": sum_of_product,
    "a dot of tensors with the same axes, which is a sum": lambda p: any(by_elements(p, m) for m in p.all("dot")),
    "a factor on the larger operand of a dot": scales_larger,
    "one kernel leaves values of different axes in memory": lambda p: any(
        len({m.dims for m in stored}) > 1 for stored in p.stored
    ),
    "an elementwise value in memory that is no operand of a dot": no_operand,
    "an elementwise operand in memory that the program has not and that holds no sum": operand_of_nobody,
}


def reason(program: Program, graph: MuGraph) -> str | None:
    """The first rule of the search that leaves this out, in words."""
    plan = Plan(program, graph)
    return next((why for why, holds in REASONS.items() if holds(plan)), None)
