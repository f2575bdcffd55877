"""Draws: what many of them tell at once is what each tells by itself."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

from mirage_cli.ir.derived import lower
from mirage_cli.ir.reach import left_out
from mirage_cli.ir.text import parse_mugraph
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.verify import draws, squares
from mirage_cli.verify.draws import KNOWN, drawn_bits, run_draws, status_of, statuses
from mirage_cli.verify.equivalence import SOME_LEVELS, UNDEFINED_DRAWS, Coverage, Series, check_equivalence
from mirage_cli.verify.fieldsemantics import FieldMemory
from mirage_cli.verify.interpret import run_mugraph
from mirage_cli.verify.reduced import small_instance
from mirage_cli.verify.residues import DRAW, NO_GUESSES, Residues, aligned
from tests.mugraphs import CASES
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
        at_once = statuses(p, needed, 5, block)
        for n, draw in enumerate(block):
            results = run_draws(p, 5, block, (draw,)).results
            for t in p.outputs:
                x = results[t.name]
                assert (at_once[t.name][n] == aligned(status_of(x), x.dims, (DRAW, *t.dims))[0]).all(), (
                    f"{t.name} in {draw}"
                )


def test_a_draw_alone_is_run_once_for_all_outputs_that_need_it() -> None:
    """Its status is that of the inputs which are compared: mended for one output alone, they would be others."""
    p = program("m=3 n=2", "X[m,n] Y[n]", "a = sqrt(X) | O = sum(a; n) | b = mul(X, Y) | P = log(b)", "O P")
    block = range(7, 8)
    results = run_draws(p, 11, block, tuple(block)).results
    misses = run_draws.cache_info().misses
    for t in p.outputs:
        found = statuses(p, frozenset([t.name]), 11, block)
        x = results[t.name]
        assert found.keys() == {t.name}
        assert (found[t.name] == aligned(status_of(x), x.dims, (DRAW, *t.dims))).all()
    assert run_draws.cache_info().misses == misses


@pytest.mark.parametrize("name", CASES)
def test_a_scheduled_graph_makes_of_many_draws_what_it_makes_of_each(name: str) -> None:
    """The loops of some draws end where those of others go on, and tables name other rows in each."""
    case, block = CASES[name], range(2, 6)
    sizes, schedule = small_instance(case.program, case.graph, 3)
    program, graph = case.program.resized(sizes), case.graph.resized(sizes)

    def results(draws: tuple[int, ...]) -> dict[str, Residues]:
        run = run_draws(program, 3, block, draws)
        found = run_mugraph(graph, schedule, run.inputs, run.semantics, 3, program)
        return {t.name: found[t.name] for t in program.outputs}

    together = results(tuple(block))
    for n, draw in enumerate(block):
        for output, alone in results((draw,)).items():
            x = together[output]
            assert x.dims == alone.dims and x.kind == alone.kind
            places = {"data": int(x.kind == "field"), "flags": 0, "taint": 1}
            for field, axis in places.items():
                many, one = getattr(x, field), getattr(alone, field)
                assert (many is None and one is None) or (many.take([n], axis) == one).all(), f"{field} of {output}"


def test_draws_in_which_loops_end_elsewhere_leave_other_chunks_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a draw leaves out is not in memory, whatever another one stores there."""
    case = CASES["ragged"]
    sizes, schedule = small_instance(case.program, case.graph, 3)
    program, graph = case.program.resized(sizes), case.graph.resized(sizes)
    run = run_draws(program, 3, range(2, 18), tuple(range(2, 18)))
    memories: dict[str, FieldMemory] = {}

    def kept(name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> FieldMemory:
        return memories.setdefault(name, FieldMemory(name, dims, shape))

    monkeypatch.setattr(run.semantics, "memory", kept)
    run_mugraph(graph, schedule, run.inputs, run.semantics, 3, program)
    for name in left_out(graph):
        each = memories[name].written.reshape(16, -1)
        assert each.any() and len({draw.tobytes() for draw in each}) > 1


def test_integers_that_are_values_are_drawn_as_often_as_tables() -> None:
    integers, logarithms = (PROGRAMS[name] for name in ("integers", "logarithms"))
    assert drawn_bits(integers, integers.outputs[0]) == 1
    assert drawn_bits(logarithms, logarithms.outputs[0]) == NO_GUESSES
    mask = program("m=5 n=2", "X[m,n] M:bool[m]", "O = where(M, X, 0) | P = exp(X)", "O P")
    assert [drawn_bits(mask, t) for t in mask.outputs] == [2, NO_GUESSES]


def test_rows_that_no_draw_settles_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the 40 rows meets 20 roots, of which all would have to be of squares."""
    p = program(
        "s=40 g=20 d=400",
        "X[s,g,d] W[g,d]",
        "a = square(X) | c = sum(a; d) | r = rsqrt(c) | n = mul(X, r) | y = mul(n, W) | e = sum(y; g, d) | O = sqrt(e)",
    )
    asked: list[str] = []
    own = squares._Again.drawn
    monkeypatch.setattr(
        squares._Again, "drawn", lambda self, *args: asked.append(self.needed[-1].out) or own(self, *args)
    )
    statuses(p, frozenset("O"), 3, range(1, 2))
    assert asked.count("r") > 1 + squares.IN_VAIN >= asked.count("O") > 0


def test_rows_of_a_long_axis_are_drawn_until_all_have_roots() -> None:
    """Few draws of 5,400 rows are made at once, and one in sixteen has a norm."""
    p = program(
        "b=2 h=3 s=900 d=4",
        "X[b,h,s,d] G[s]",
        "a = square(X) | c = sum(a; d) | e = mul(c, G) | f = mul(e, G) | r = rsqrt(f) | n = mul(X, r) | O = sum(n; s)",
    )
    (status,) = statuses(p, frozenset("O"), 3, range(1, 2)).values()
    assert (status == KNOWN).all()


def test_rows_are_drawn_again_where_comparisons_lie_between_roots() -> None:
    """Nine draws are compared at once the first time, and eight further on."""
    p = program(
        "b=2 h=3 s=900 d=4",
        "X[b,h,s,d] G[s]",
        "a = square(X) | c = sum(a; d) | q = lt(c, G) | e = mul(c, G) | w = where(q, e, c) | r = rsqrt(w) | "
        "n = mul(X, r) | O = sum(n; s)",
    )
    (status,) = statuses(p, frozenset("O"), 3, range(1, 2)).values()
    assert status.shape == (1, 2, 3, 4)


def test_mended_draws_follow_each_other_where_others_bring_nothing() -> None:
    """Nine logarithms meet in a sum, whose arguments are squares together in one draw of thousands. A table takes six
    draws that bring something."""
    text = """
name: likelihood
dims: {b: 8, t: 512, v: 50000}
inputs:
  X: [b, t, v]
  T: {dims: [b, t], dtype: int64, below: v}
program: O = sum(exp(X[b, t, T[b, t]] - logsumexp(X, v)), b, t)
outputs: {O: []}
"""
    lowered = lower(parse_spec(text).at())
    for c in search(lowered, find_target("h200")).candidates[:6]:
        for seed in range(3):
            assert check_equivalence(lowered, c.graph, seed).ok


MASKED_TABLE = """
name: masked_table
dims: {v: 50, w: 3, e: 4}
dtype: float16
inputs:
  E: [v, e]
  token: {dims: [w], dtype: int32, below: v}
program: |
  M = where(index(v) < 40, E, 0)
  O = M[token[w], e]
outputs: {O: [w, e]}
"""
PUSHED = """
mugraph masked_table float16
dims v=50 w=3 e=4
input E f16[v, e]
input token i32[w] below v
output O f16[w, e]
kernel k0 generated w:grid e:grid
  E = load E[token{v}[w], e]
  place[w] = index(token{v}[w])
  mask[w] = lt(place, 40)
  O[w, e] = where(mask, E, 0)
  store O[w, e] = O
"""


def test_a_mask_is_told_by_the_positions_that_a_table_names() -> None:
    """Integers that are looked up lie where a comparison of the program changes: each other number is refused, and the
    right one is not."""
    program = lower(parse_spec(MASKED_TABLE).at())
    assert check_equivalence(program, parse_mugraph(PUSHED), 0).ok
    for wrong in ("lt(place, 39)", "lt(place, 41)", "le(place, 40)", "lt(place, 38)", "lt(place, 25)"):
        graph = parse_mugraph(PUSHED.replace("lt(place, 40)", wrong))
        assert all(not check_equivalence(program, graph, seed).ok for seed in range(10)), wrong


def test_entries_beside_compared_numbers_count_for_fewer_bits() -> None:
    """Two of them are the same with probability 1 / (4 · 3) + 3 / (4 · 50) at most, and 2^-3 is more than that."""
    program = lower(parse_spec(MASKED_TABLE).at())
    bits = drawn_bits(program, program.outputs[0])
    assert bits == 3
    first, other = (draws._inputs(program, seed, range(4096))["token"].data for seed in (0, 1))
    assert 2.0**-4 < (first == other).mean() < 2.0**-bits


ONE_ENTRY = """
name: named
dims: {t: 33, u: 4, e: 1, n: 3}
inputs: {W: [e, n], E: {dims: [u], dtype: int32, below: e, padded: true}}
program: O = W[E[t // 9], n]
outputs: {O: [t, n]}
"""
ONE_ENTRY_KERNEL = """
mugraph named float16
dims t=33 u=4 e=1 n=3
input W f16[e, n]
input E i32[u] below e padded
output O f16[t, n]
kernel k0 generated t:grid n:grid
  O = load W[E{-1, e}[t//9], n]
  store O[t, n] = O
"""


def test_draws_of_one_block_give_the_bits_of_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is a mended draw, and a block or two for what is missing: each draw has comparisons of its own, those of
    positions with a number that no position of the test comes to among them."""
    p = parse_spec(
        "name: p\ndims: {m: 64, n: 64}\ninputs: {X: [m, n], Y: [m, n]}\n"
        "program: O = where(X < Y, X, where(index(n) < 32, Y, 0))\noutputs: {O: [m, n]}\n"
    ).at()
    blocks: list[tuple[int, range]] = []
    own = Series.run_block

    def counted(series: Series, block: range) -> tuple[object, bool]:
        blocks.append((series.seed, block))
        return own(series, block)

    monkeypatch.setattr(Series, "run_block", counted)
    lowered = lower(p)
    graph = search(p, find_target("h200")).candidates[0].graph
    found = check_equivalence(lowered, graph, 0)
    assert found.ok
    assert len({seed for seed, _ in blocks}) == 2
    assert len(blocks) <= 6


def test_a_table_of_one_entry_may_name_none() -> None:
    """In one draw of three it names the same entry everywhere."""
    program = lower(parse_spec(ONE_ENTRY).at())
    assert drawn_bits(program, program.outputs[0]) == 1
    right, other = (parse_mugraph(ONE_ENTRY_KERNEL.replace("t//9", at)) for at in ("t//9", "t%9"))
    assert check_equivalence(program, right, 0).ok
    assert not any(check_equivalence(program, other, seed).ok for seed in range(10))


def test_what_is_missing_is_worked_out_once_for_each_draw_that_is_recorded() -> None:
    """Many draws are looked through for one that adds anything. What would be covered then is a copy."""
    covered = Coverage((3,))
    missing, none = covered.missing(), np.zeros(3, dtype=bool)
    assert covered.missing() is missing and missing.all()
    expected = copy(covered)
    expected.record_compared(np.array([True, False, True]), none, [SOME_LEVELS])
    assert expected.missing().tolist() == [False, True, False] and expected.incomplete()
    for _ in range(UNDEFINED_DRAWS):
        expected.record_compared(none, np.array([False, True, False]), ())
    assert not expected.missing().any() and not expected.incomplete()
    assert covered.missing() is missing and covered.incomplete()
