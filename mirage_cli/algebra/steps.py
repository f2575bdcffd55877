"""The steps of a node: products of factors, and sums of terms, as chains of operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from mirage_cli.algebra.canonical import ONE, Form, Mono
from mirage_cli.algebra.graph import Decomposition, Node, Source, Step
from mirage_cli.ir.op import Number


class Steps:
    """Collects the steps of a node."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, op: str, *args: Source, axes: tuple[str, ...] = ()) -> int:
        return self.append(Step(op, args, axes))

    def append(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def node(self, origin: str = "algebra") -> Node:
        return Node(tuple(self.steps), origin)


def constant(form: Form) -> Form | Number:
    """The number that a constant form is, so that it stays a literal."""
    if form.number is not None:
        return form.number
    if form.single and [a.kind for a, _ in form.single[0]] == ["inf"]:
        return math.copysign(math.inf, form.single[1].numerator)
    return form


def product(d: Decomposition, steps: Steps, start: list[Source], mono: Mono, c: Fraction) -> None:
    """Steps for start · c · mono, small factors first, divisions last."""
    times: list[Source] = list(start)
    over: list[Source] = []
    for atom, e in sorted(mono, key=lambda f: (len(f[0].dims), f[0].key)):
        base = constant(atom.args[0] if atom.kind == "poly" else d.algebra.of_atom(atom))
        if atom.kind == "number":
            base = atom.args[0]
        if e == 1 or e == -1:
            (times if e == 1 else over).append(base)
        elif e == 2:
            times.append(steps.add("square", base))
        elif abs(e) == Fraction(1, 2):
            times.append(steps.add("sqrt" if e > 0 else "rsqrt", base))
        else:
            times.append(steps.add("pow", base, e))
    if not times:
        times, c = [c], ONE
    result = times[0]
    if c != 1:
        result = steps.add("neg", result) if c == -1 else steps.add("mul", result, c)
    for x in times[1:]:
        result = steps.add("mul", result, x)
    for x in over:
        result = steps.add("div", result, x)


def product_after(d: Decomposition, steps: Steps, first: int, rest: Mono, c: Fraction) -> None:
    if rest or c != 1:
        product(d, steps, [first], rest, c)


def chain(d: Decomposition, steps: Steps, start: int | None, terms: Sequence[tuple[Mono, Fraction]]) -> None:
    """Steps for start + terms, positive terms first."""
    result: Source | None = start
    for mono, c in sorted(terms, key=lambda t: (t[1] < 0, not t[0])):
        term: Source
        if not mono:
            term, c = c, ONE
        else:
            term = constant(d.algebra.of_mono(mono))
        if abs(c) != 1:
            term, c = steps.add("mul", term, abs(c)), ONE if c > 0 else -ONE
        if result is None:
            result = term if c > 0 else steps.add("neg", term)
        else:
            result = steps.add("add" if c > 0 else "sub", result, term)
