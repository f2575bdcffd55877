"""Draws: what many of them tell at once is what each tells by itself."""

from __future__ import annotations

import pytest

from mirage_cli.verify.draws import run_draws, says, told
from mirage_cli.verify.residues import DRAW, aligned
from tests.programs import program

PROGRAMS = {
    "roots of roots": program("m=3 n=2", "X[m,n]", "a = sqrt(X) | b = add(a, 1) | c = rsqrt(b) | O = sum(c; n)"),
    "logarithms": program(
        "m=3 n=2", "X[m,n] Y[n]", "a = softmax(X; n) | b = mul(a, Y) | c = log(b) | d = sqrt(c) | O = sub(d, X)"
    ),
    "integers": program(
        "m=3 n=2",
        "X[m,n] L:int32[n]",
        "i = index(m) | c = lt(i, L) | a = sqrt(X) | w = where(c, a, -inf) | O = logsumexp(w; m)",
    ),
    "without an input": program("m=3 n=2", "X[m,n]", "i = index(m) | a = tanh(i) | O = sqrt(a) | P = exp(X)", "O P"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_tell_the_same_at_once_and_alone(name: str) -> None:
    p = PROGRAMS[name]
    needed = frozenset(t.name for t in p.outputs)
    for block in (range(1, 2), range(2, 12), range(12, 76)):
        at_once = told(p, needed, 5, block)
        for n, draw in enumerate(block):
            results = run_draws(p, 5, block, (draw,)).results
            for t in p.outputs:
                x = results[t.name]
                assert (at_once[t.name][n] == aligned(says(x), x.dims, (DRAW, *t.dims))[0]).all(), f"{t.name} in {draw}"
