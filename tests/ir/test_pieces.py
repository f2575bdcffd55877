"""Summed axes in two pieces."""

from __future__ import annotations

import pytest

from mirage_cli.codegen.export import kernels_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.merge import merge_axes
from mirage_cli.ir.program import Program
from mirage_cli.ir.rewrites.pieces import in_pieces, pieces_of
from mirage_cli.ir.text import parse_mugraph, print_mugraph
from mirage_cli.pipeline.searching import Options, search_program
from mirage_cli.search.generator import search
from mirage_cli.spec.reader import parse_spec
from mirage_cli.target.gpus import find_target
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.verify.equivalence import check_equivalence
from mirage_cli.verify.reduced import small_instance
from tests.searched import BEST

TARGET = find_target("h200")
LATENT = """
name: latent
dims: {{b: {b}, h: {h}, s: {s}, d: {d}, e: {e}}}
dtype: bfloat16
inputs:
  Q: [b, h, d]
  C: [b, s, d]
program: |
  A = dot(Q, C, d) / d ** 0.5
  O = dot(softmax(A, s), C[b, s, e], s)
outputs:
  O: [b, h, e]
"""
HEADS = """
name: heads
dims: {h: 2, q: 40, s: 40, d: 80, e: 80, w: 24}
dtype: bfloat16
inputs: {Q: [h, q, d], K: [h, s, d], V: [h, s, e], G: [q, e], W: [e, w]}
program: |
  A = where(index(s) <= index(q), dot(Q, K, d) / d ** 0.5, -inf)
  O = VALUE
outputs: {O: [OUT]}
"""
PRODUCT = """
name: product
dims: {m: 64, d: 576, n: 64}
inputs: {X: [m, d], W: [d, n]}
program: O = silu(dot(X, W, d))
outputs: {O: [m, n]}
"""
NORMALISED = """
name: normalised
dims: {b: 4, m: 512, k: 768, n: 256}
dtype: bfloat16
inputs: {X: [b, m, k], W: [k, n]}
program: O = rms_norm(dot(X, W, k), n)
outputs: {O: [b, m, n]}
"""
DYNAMIC = """
name: scores
dims: {m: 16, d: {min: 1, max: 576, tune: [576]}, n: 64}
inputs: {X: [m, d], W: [d, n]}
program: O = softmax(dot(X, W, d), n)
outputs: {O: [m, n]}
"""


def latent(**sizes: int) -> Program:
    """Attention whose values are the first `e` of the `d` numbers that its keys have."""
    return parse_spec(LATENT.format(**{"b": 16, "h": 128, "s": 4096, "d": 576, "e": 512} | sizes)).programs()[0]


def heads(value: str = "dot(softmax(A, s), V, s) * G", out: str = "h, q, e") -> Program:
    """Attention with heads of 80 that scores are summed over, and of 80 that outputs have."""
    return parse_spec(HEADS.replace("VALUE", value).replace("OUT", out)).programs()[0]


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (576, (512, 64)),
        (80, (64, 16)),
        (640, (512, 128)),
        (512, None),
        (96, (64, 32)),
        (192, (128, 64)),
        (72, None),
        (560, None),
        (1280, None),
    ],
)
def test_sizes_that_are_two_powers_of_two(size: int, pieces: tuple[int, int] | None) -> None:
    """Not those that a block holds without much more room, nor those that no block holds whole."""
    assert pieces_of(size) == pieces


def test_the_first_piece_is_what_something_else_reads() -> None:
    program = in_pieces(lower(latent()))
    assert program is not None
    new = {d: n for d, n in program.dims if d not in latent().sizes}
    assert new == {"d_rest": 64}
    text = str(program)
    assert "dot(Q_e, C_e; e)" in text
    assert "rename(C; d=d_rest + 512)" in text


def test_a_piece_has_an_axis_of_its_own_where_no_other_is_as_long() -> None:
    program = in_pieces(lower(latent(e=256)))
    assert program is not None
    assert {d: n for d, n in program.dims if d not in latent().sizes} == {"d1": 512, "d_rest": 64}


def test_a_part_of_a_merged_axis_stands_for_no_piece() -> None:
    """The rows of a transformer's block are b · m, and m is as long as the first of 768 = 512 + 256."""
    (program,) = parse_spec(NORMALISED).programs()
    form = in_pieces(lower(merge_axes(program)))
    assert form is not None
    assert {d: n for d, n in form.dims if d not in (*program.sizes, "bm")} == {"k1": 512, "k_rest": 256}
    found = search_program(program, TARGET, Options(tune=False, bounds=BEST))
    assert found.plans and found.rejected == ()
    best = found.plans[0].graph
    assert {"k1", "k_rest"} & {*best.sizes}
    sizes, _ = small_instance(lower(program), best, 0)
    assert sizes["m"] < 10 and sizes["k1"] == 512  # a piece stays whole, and nothing else that is as long


def test_an_output_of_sums_of_sums_is_made_in_pieces() -> None:
    """With what is beside it; the first is the first of the summed axis too."""
    program = in_pieces(lower(heads()))
    assert program is not None
    new = {d: n for d, n in program.dims if d not in heads().sizes}
    assert new == {"e_0": 64, "e_64": 16}
    text = str(program)
    assert "dot(Q_e_0, K_e_0; e_0)" in text
    assert "rename(G; e=e_64 + 64)" in text
    assert [str(p) for p in program.parts] == ["O[h, q, e_0] = O_e_0", "O[h, q, e_64 + 64] = O_e_64"]


@pytest.mark.parametrize(
    ("value", "pieces"),
    [
        ("dot(softmax(A, s), V, s) * G", True),
        ("dot(A, V, s)", True),
        ("dot(dot(softmax(A, s), V, s), W, e)", False),  # is no axis of the output
        ("rms_norm(dot(softmax(A, s), V, s), e)", False),  # is summed
        ("dot(softmax(A, s), V, s) * index(e)", False),  # is counted
        ("G * sum(A, s)", False),  # has no product
        ("dot(softmax(A, s), sigmoid(V), s)", False),  # is computed
    ],
)
def test_outputs_that_are_made_in_pieces(value: str, pieces: bool) -> None:
    program = in_pieces(lower(heads(value, "h, q, e" if "W" not in value else "h, q, w")))
    assert program is not None
    assert bool(program.parts) is pieces


@pytest.mark.parametrize("text", [PRODUCT, DYNAMIC])
def test_what_is_not_held_whole_stays_as_it_is(text: str) -> None:
    """A product that nothing sums again is walked in tiles; so is an axis whose size is an argument."""
    (program,) = parse_spec(text).programs()
    assert in_pieces(lower(merge_axes(program))) is None


def test_the_search_finds_it_by_itself() -> None:
    """One loop over the keys, with 576 of each: in one piece, the best plan has a kernel for the scores."""
    program = latent()
    whole = search(lower(merge_axes(program)), TARGET, bounds=BEST).candidates[0]
    found = search_program(program, TARGET, Options(tune=False))
    best = found.plans[0]
    assert best.predicted_us < 0.9 * whole.predicted_us
    reads = [str(x) for k in best.graph.kernels for x in k.loads if x.buffer == "C"]
    assert len(reads) == 2
    assert best.verdict.ok
    assert found.rejected == ()


WRONG = {
    "the second of the values for the first": ("V[h, s, e_64 + 64]", "V[h, s, e_64]"),
    "a position too early": ("V[h, s, e_64 + 64]", "V[h, s, e_64 + 63]"),
    "nothing at the last position": ("store O[h, q, e_64 + 64]", "store O[h, q, e_64 + 63]"),
    "the first stored twice": ("store O[h, q, e_64 + 64]", "store O[h, q, e_64]"),
    "pieces that change places": ("store O[h, q, e_64 + 64] =", "store O[h, q, e_64] ="),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_pieces_of_outputs_are_refused(name: str) -> None:
    program = lower(heads("dot(softmax(A, s), V, s)"))
    form = in_pieces(program)
    assert form is not None
    graph = search(form, TARGET, bounds=BEST).candidates[0].graph
    assert check_equivalence(program, graph, 0).ok
    before, after = WRONG[name]
    text = print_mugraph(graph)
    assert before in text
    changed = text.replace(before, after)
    if "change places" in name:
        changed = changed.replace("store O[h, q, e_0] = ", "store O[h, q, e_0 + 16] = ")
    assert not check_equivalence(program, parse_mugraph(changed), 0).ok


@pytest.mark.parametrize("size", [64, 80])
def test_outputs_in_pieces_are_proved_where_no_sum_is_taken_apart(size: int) -> None:
    program = lower(
        parse_spec(
            HEADS.replace("d: 80", f"d: {size}")
            .replace("VALUE", "dot(softmax(A, s), V, s) * G")
            .replace("OUT", "h, q, e")
        ).programs()[0]
    )
    form = in_pieces(program)
    assert form is not None
    verdict = check_equivalence(program, search(form, TARGET, bounds=BEST).candidates[0].graph, 0)
    assert verdict.ok
    assert ("proved" in str(verdict)) is (size == 64)


def test_wrong_pieces_are_refused() -> None:
    """The second piece a position too early, and the first for the second."""
    program = latent(b=1, h=16, s=64)
    form = in_pieces(lower(program))
    assert form is not None
    graph = search(form, TARGET, bounds=BEST).candidates[0].graph
    assert check_equivalence(lower(program), graph, 0).ok
    for wrong in ("d_rest + 511", "d_rest"):
        changed = parse_mugraph(print_mugraph(graph).replace("C[b, s, d_rest + 512]", f"C[b, s, {wrong}]"))
        assert changed != graph
        assert not check_equivalence(lower(program), changed, 0).ok


def test_kernels_in_pieces_are_right(interpreter: Interpreter) -> None:
    for program in (latent(b=2, h=16, s=40, d=80, e=64), heads()):
        form = in_pieces(lower(program))
        assert form is not None
        for c in search(form, TARGET).candidates[:3]:
            judged = interpreter.judge(program, kernels_source(c.graph, c.schedule), 0, True)
            assert judged.ok, judged.problem
