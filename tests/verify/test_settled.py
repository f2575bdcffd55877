"""Masks that hold everywhere or nowhere at the sizes of the program itself."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Program
from mirage_cli.ir.text import canonical_text, parse_mugraph
from mirage_cli.pipeline.searching import Options, Plan, search_program
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.floatsemantics import FloatSemantics
from mirage_cli.verify.interpret import run_program
from mirage_cli.verify.semantics import Named
from mirage_cli.verify.settled import settled

EVERYWHERE = """
name: everywhere
dims: {m: 3, d: 7, n: 4}
dtype: float32
inputs: {X: [d, n]}
program: |
  A = dot(X, X, n)
  C = where(index(d) <= 7, 0, A)
  D = C[m + 0]
outputs: {D: [m]}
"""
NOWHERE = """
name: nowhere
dims: {t: 7, u: 6, n: 5}
dtype: float32
inputs: {X: [u], W: [t, n]}
program: |
  A = where(index(u) >= 3, X[(u + 1) % 3], 1)
  O = dot(A[t // 3], W, t)
outputs: {O: [n]}
"""


def found(text: str) -> tuple[Program, tuple[Plan, ...]]:
    program = parse_spec(text).at()
    found = search_program(program, find_target("h100"), Options(budget_s=60, tune=False))
    assert found.plans and not found.rejected, found.rejected
    return lower(program), found.plans


@pytest.mark.parametrize("text", [EVERYWHERE, NOWHERE])
def test_what_no_position_tells_apart_is_not_compared(text: str) -> None:
    assert len(found(text)[1]) > 1


def test_what_a_position_tells_apart_is_compared() -> None:
    program, plans = found(NOWHERE)
    some = [p for p in plans if "le(3," in canonical_text(p.graph)]
    assert some
    for plan in some:
        text = canonical_text(plan.graph)
        assert not check_equivalence(program, parse_mugraph(text.replace("le(3,", "le(2,")), 1).ok
        assert check_equivalence(program, parse_mugraph(text.replace("le(3,", "le(4,")), 1).ok  # 2 is the last


@pytest.mark.parametrize("op", [name for name, row in OPS.items() if row.compares])
def test_answers_are_those_of_all_positions(op: str) -> None:
    """As float64 computes them before and after."""
    for number in (-3, Fraction(-1, 2), 0, Fraction(5, 2), 4, 5, 9):
        call = f"{OPS[op].symbol}" if OPS[op].symbol else op
        call = OPS[op].symbol
        lines = (
            f"  A{i} = where({x} {call} {float(number)}, X, 2 * X)" for i, x in enumerate(("index(d)", "4 - index(d)"))
        )
        head = "name: p\ndims: {d: 5}\ndtype: float32\ninputs: {X: [d]}\nprogram: |\n"
        program = lower(parse_spec("\n".join([head, *lines, "outputs: {A0: [d], A1: [d]}\n"])).at())
        inputs = {"X": Named(("d",), np.arange(1.0, 6.0))}
        both = [run_program(p, inputs, FloatSemantics(program.sizes)) for p in (program, settled(program))]
        for out in ("A0", "A1"):
            assert (both[0][out].data == both[1][out].data).all()
        positions = [OPS[op].ref(i, float(number)) for i in range(5)]
        changed = settled(program).eqns != program.eqns
        assert changed == (len({bool(x) for x in positions}) == 1)
