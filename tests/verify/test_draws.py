"""Draws: what many of them tell at once is what each tells by itself."""

from __future__ import annotations

from itertools import islice

import pytest

from mirage_cli.verify.draws import AT_ONCE, SPACE, blocks, run_draw, sure, told
from mirage_cli.verify.residues import aligned
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
    for block in islice(blocks(p), 6):
        at_once = told(p, needed, 5, block)
        for n, draw in enumerate(block):
            want = run_draw(p, 5, block, draw).want
            for t in p.outputs:
                x = want[t.name]
                assert (at_once[t.name][n] == aligned(sure(x), x.dims, t.dims)).all(), f"{t.name} in draw {draw}"


def test_blocks_follow_each_other_and_grow_to_a_bound() -> None:
    small, large = PROGRAMS["roots of roots"], program("m=64 n=128", "X[m,n]", "O = sqrt(X)")
    assert [len(b) for b in islice(blocks(small), 9)] == [1, 2, 4, 8, 16, 32, AT_ONCE, AT_ONCE, AT_ONCE]
    assert [len(b) for b in islice(blocks(large), 4)] == [1, 2, 2, 2]
    assert SPACE // (64 * 128) == 2
    first = list(islice(blocks(small), 9))
    assert [b.start for b in first[1:]] == [b.stop for b in first[:-1]]
