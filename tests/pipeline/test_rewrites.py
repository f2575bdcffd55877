"""The forms of a program that are searched."""

from __future__ import annotations

import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.rewrites import REWRITES, Rewrite, forms_of
from mirage_cli.spec.reader import parse_spec

PLAIN = ("m: 16, k: 64, n: 24", "X: [m, k], W: [k, n]", "dot(X, W, k)", "m, n")
TABLE = "E: {dims: [m], dtype: int32, below: e}"
NAMED = ("m: 9, e: 5, k: 24, n: 20", f"X: [m, k], W: [e, k, n], {TABLE}", "dot(X, W[E[m], k, n], k)", "m, n")
RUNNING = ("t: 2048, j: 2048", "X: [j]", "sum(where(index(j) <= index(t), X, 0), j)", "t")
LONG = ("t: 16384, j: 16384", *RUNNING[1:])
REWRITTEN = [
    ("k: 36, n: 36", "X: [k]", "sum(where(index(k) == index(n), X, 0), k)", "n"),
    ("b: 3, g: 4, k: 6, n: 5", "X: [b, g, k], W: [g, k, n], S: [k]", "dot(X * S / sum(X, b, k), W, g, k)", "b, n"),
    (
        "b: 2, h: 16, s: 64, d: 576, e: 512",
        "Q: [b, h, d], C: [b, s, d]",
        "dot(softmax(dot(Q, C, d), s), C[b, s, e], s)",
        "b, h, e",
    ),
    (
        "t: 48, s: 48, w: 9, d: 16",
        "Q: [t, d], K: [s, d], V: [s, d]",
        "dot(softmax(where(index(t) - index(w) >= 0, dot(Q, K[t - w, d], d), -inf), w), V[t - w, d], w)",
        "t, d",
    ),
    ("q: 17, s: 17, d: 32, r: 33", "Q: [q, d], R: [r, d]", "dot(Q, R[s - q + 16, d], d)", "q, s"),
    ("y: 19, x: 21, i: 5, j: 5", "X: [y, x]", "sum(X[y + i - 2, x + j - 2], i, j)", "y, x"),
    (NAMED[0], NAMED[1].replace("below: e", "below: e, drawn: sorted"), *NAMED[2:]),
    RUNNING,
    LONG,
    (
        "h: 8, g: 2, s: 40, d: 16",
        "Q: [h, d], K: [s, g, d], V: [s, g, d]",
        "dot(softmax(dot(Q, K[s, h // 4, d], d), s), V[s, h // 4, d], s)",
        "h, d",
    ),
    NAMED,
    NAMED,
    (
        "m: 32, a: 32, b: 48, k: 80, n: 16",
        "A: [m, a], B: [m, b], W: [k, n]",
        "dot(where(index(k) < 32, A[m, k], B[m, k - 32]), W, k)",
        "m, n",
    ),
    (
        "m: 32, a: 32, b: 48, k: 80",
        "A: [m, a], B: [m, b]",
        "where(index(k) < 32, exp(A[m, k]), B[m, k - 32] * 2)",
        "m, k",
    ),
]


def program(dims: str, inputs: str, value: str, output: str) -> Program:
    text = f"name: made\ndims: {{{dims}}}\ninputs: {{{inputs}}}\nprogram: O = {value}\noutputs: {{O: [{output}]}}\n"
    return lower(parse_spec(text).at())


@pytest.mark.parametrize(("rewrite", "spec"), [*zip(REWRITES, REWRITTEN, strict=True)])
def test_every_rewrite_has_a_program_that_it_changes_and_one_that_it_leaves(
    rewrite: Rewrite, spec: tuple[str, str, str, str]
) -> None:
    given = program(*spec)
    assert rewrite.made(given) not in (None, given)
    plain = program(*PLAIN)
    assert rewrite.made(plain) in (None, plain)


def test_a_program_that_no_rewrite_changes_is_searched_as_it_is() -> None:
    plain = program(*PLAIN)
    assert [*forms_of(plain)] == [plain]


def test_what_is_searched_instead_comes_first_and_what_is_searched_beside_it_behind() -> None:
    given = program(*LONG)
    assert given not in [*forms_of(given)]
    for spec, count in ((RUNNING, 1), (NAMED, 2)):
        given = program(*spec)
        first, *beside = forms_of(given)
        assert first == given and len(beside) == count


def test_a_form_is_made_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    own = [
        r if r.instead else Rewrite(lambda p, r=r, i=i: asked.append(i) or r.made(p)) for i, r in enumerate(REWRITES)
    ]
    monkeypatch.setattr("mirage_cli.pipeline.rewrites.REWRITES", own)
    forms = forms_of(program(*NAMED))
    next(forms)
    assert not asked
    next(forms)
    assert asked == [3, 7, 9, 10]
