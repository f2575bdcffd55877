"""Where equations stand: running maxima, several loops, what no kernel can do, and the text that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.placement import InexpressibleError, Loop, Straight, place
from mirage_cli.ir.program import Eqn
from mirage_cli.ir.text import MuGraphTextError, canonical_text, mugraph_id, parse_mugraph, print_mugraph
from tests.mugraphs import CASES
from tests.rows import rows

GOLDEN = Path(__file__).parents[1] / "golden"
HEADER = """mugraph g float32
dims m=8 n=8 j=8 k=64 l=64
input X f32[m, k]
input Z f32[m, k]
input V f32[k, n]
input A f32[j, m, k]
input B f32[m, k, l]
output Y f32[m]
output O f32[m, k]
buffer P f32[m, k_split]
"""


def kernel(roles: str, *lines: str) -> Kernel:
    text = HEADER + f"kernel k0 generated {roles}\n" + "".join(f"  {line}\n" for line in lines)
    return parse_mugraph(text).kernels[0]


def only_loop(k: Kernel) -> Loop:
    (loop,) = place(k).loops
    return loop


def names(steps: tuple[object, ...]) -> list[str]:
    return [s.out for s in steps if isinstance(s, Eqn)]


def refused(k: Kernel) -> str:
    with pytest.raises(InexpressibleError) as caught:
        place(k)
    return caught.value.reason


ROWS = "m:grid k:loop"
SOFTMAX = ("X = load X[m, k]", "M[m] = max(X; k)", "E[m, k] = exp_sub(X, M)", "L[m] = sum(E; k)")
STORE = "store Y[m] = Y"

# -- running maxima


def test_sums_of_exponentials_run_beside_their_maximum() -> None:
    loop = only_loop(kernel(ROWS, *SOFTMAX, "G[m] = log(L)", "Y[m] = add(G, M)", STORE))
    assert loop.running == ("M",)
    assert loop.accumulators == (("M", ()), ("L", (("M", 1),)))


ONLINE = {
    "square by product": ("F[m, k] = mul(E, E)", 2),
    "inverse": ("F[m, k] = div(1, E)", -1),
    "quotient": ("F[m, k] = div(Z, E)", -1),
    "weighted": ("F[m, k] = mul(E, Z)", 1),
    "negated": ("F[m, k] = neg(E)", 1),
    "ratio": ("F[m, k] = div(E, E)", 0),
    "equal degrees": ("F[m, k] = add(E, E)", 1),
}


@pytest.mark.parametrize("name", ONLINE)
def test_degrees(name: str) -> None:
    line, degree = ONLINE[name]
    loop = only_loop(kernel(ROWS, *SOFTMAX[:3], "Z = load Z[m, k]", line, "L[m] = sum(E; k)", "S[m] = sum(F; k)",
                            "Y[m] = div(S, L)", STORE))  # fmt: skip
    assert loop.running == ("M",)
    assert dict(loop.accumulators)["S"] == ((("M", degree),) if degree else ())


TWO_PASSES = {
    "terms of two degrees": ("F[m, k] = add(E, 1)", "S[m] = sum(F; k)"),
    "terms of two degrees, both exponentials": ("F[m, k] = mul(E, E)", "H[m, k] = sub(F, E)", "S[m] = sum(H; k)"),
    "not homogeneous": ("F[m, k] = silu(E)", "S[m] = sum(F; k)"),
    "square": ("F[m, k] = square(E)", "S[m] = sum(F; k)"),
    "a maximum of exponentials": ("F[m, k] = neg(E)", "S[m] = max(F; k)"),
    "exponent of an exponent": ("F[m, k] = exp_sub(E, M)", "S[m] = sum(F; k)"),
    "compared": ("C[m, k] = lt(E, X)", "F[m, k] = where(C, 1, 0)", "S[m] = sum(F; k)"),
}


@pytest.mark.parametrize("name", TWO_PASSES)
def test_a_maximum_that_is_used_otherwise_is_complete_first(name: str) -> None:
    k = kernel(ROWS, *SOFTMAX, *TWO_PASSES[name], "Y[m] = div(S, L)", STORE)
    first, second = place(k).loops
    assert [x for x, _ in first.accumulators] == ["M"]
    assert not first.running
    assert not second.running
    assert [x for x, _ in second.accumulators] == ["L", "S"]
    assert "M" not in names(second.steps)


LATER = {
    "used elsewhere in the loop": ("F[m, k] = mul(E, M)", "S[m] = sum(F; k)"),
    "exponent upside down": ("F[m, k] = exp_sub(M, X)", "S[m] = sum(F; k)"),
}


@pytest.mark.parametrize("name", LATER)
def test_another_use_of_a_maximum_waits_for_a_second_loop(name: str) -> None:
    first, second = place(kernel(ROWS, *SOFTMAX, *LATER[name], "Y[m] = div(S, L)", STORE)).loops
    assert first.running == ("M",)
    assert "F" not in names(first.steps)
    assert second.running == ()
    assert second.accumulators == (("S", ()),)


def test_what_is_stored_in_the_loop_needs_the_whole_maximum() -> None:
    k = kernel(ROWS, *SOFTMAX[:3], "store O[m, k] = E")
    first, second = place(k).loops
    assert not first.running
    assert [s.buffer for s in second.stores] == ["O"]


def test_softmax_alone_takes_its_maximum_and_sum_in_one_pass_and_divides_in_another() -> None:
    first, second = place(kernel(ROWS, *SOFTMAX, "P[m, k] = div(E, L)", "store O[m, k] = P")).loops
    assert first.running == ("M",)
    assert names(first.steps) == ["M", "E", "L"]
    assert names(second.steps) == ["E", "P"]


def test_two_maxima_run_in_one_loop() -> None:
    """Sums of each have a degree in it alone, their products in both."""
    loop = only_loop(
        kernel(ROWS, *SOFTMAX, "Z = load Z[m, k]", "N[m] = max(Z; k)", "F[m, k] = exp_sub(Z, N)", "S[m] = sum(F; k)",
               "H[m, k] = mul(E, F)", "I[m, k] = div(H, F)", "T[m] = sum(H; k)", "U[m] = sum(I; k)", "a[m] = div(T, L)",
               "b[m] = div(a, S)", "Y[m] = mul(b, U)", STORE)
    )  # fmt: skip
    assert loop.running == ("M", "N")
    degrees = {x: dict(g) for x, g in loop.accumulators}
    assert degrees == {"M": {}, "L": {"M": 1}, "N": {}, "S": {"N": 1}, "T": {"M": 1, "N": 1}, "U": {"M": 1}}


def test_a_maximum_of_what_another_shifts_takes_a_second_loop() -> None:
    lines = (
        "D[m, k] = sub(X, M)",
        "N[m] = max(D; k)",
        "F[m, k] = exp_sub(D, N)",
        "S[m] = sum(F; k)",
        "Y[m] = div(S, L)",
    )
    first, second = place(kernel(ROWS, *SOFTMAX, *lines, STORE)).loops
    assert (first.running, second.running) == (("M",), ("N",))


def test_a_maximum_with_axes_that_the_sum_lacks_does_not_run() -> None:
    """Σ over j and k of exp(A - max_k A): every j has a factor of its own."""
    k = kernel("m:grid j:tile k:loop", "A = load A[j, m, k]", "M[m, j] = max(A; k)", "E[m, j, k] = exp_sub(A, M)",
               "Y[m] = sum(E; j, k)", STORE)  # fmt: skip
    first, second = place(k).loops
    assert not first.running
    assert not second.running


def test_a_maximum_that_the_loop_does_not_use_is_a_plain_accumulator() -> None:
    loop = only_loop(
        kernel(ROWS, "X = load X[m, k]", "M[m] = max(X; k)", "S[m] = sum(X; k)", "Y[m] = div(S, M)", STORE)
    )
    assert not loop.running
    assert loop.accumulators == (("M", ()), ("S", ()))


# -- several loops, and what stands outside of them


def segments(k: Kernel) -> list[list[str]]:
    return [names(s.steps) for s in place(k).segments]


def test_layer_norm_walks_its_row_three_times() -> None:
    (k,) = CASES["layer_norm"].graph.kernels
    assert segments(k) == [[], ["S"], ["C", "A"], ["D", "D2", "V"], ["W", "Z", "R"], ["D", "Y"], []]


def test_an_epilogue_and_its_loads_stand_after_the_loop() -> None:
    text = HEADER.replace("output O", "input G f32[m]\noutput O")
    text += "kernel k0 generated m:grid k:loop\n"
    lines = ("X = load X[m, k]", "G = load G[m]", "H[m] = exp(G)", "F[m, k] = mul(X, 2)", "S[m] = sum(F; k)",
             "Y[m] = mul(S, H)", STORE)  # fmt: skip
    before, loop, after = place(parse_mugraph(text + "".join(f"  {x}\n" for x in lines)).kernels[0]).segments
    assert isinstance(before, Straight) and isinstance(loop, Loop) and isinstance(after, Straight)
    assert before.steps == ()
    assert [s.out for s in loop.steps] == ["X", "F", "S"]
    assert [s.out for s in after.steps] == ["G", "H", "Y"]
    assert [s.value for s in after.stores] == ["Y"]


def test_what_a_loop_needs_stands_before_it() -> None:
    text = HEADER.replace("output O", "input G f32[m]\noutput O") + "kernel k0 generated m:grid k:loop\n"
    lines = ("X = load X[m, k]", "G = load G[m]", "H[m] = exp(G)", "F[m, k] = mul(X, H)", "S[m] = sum(F; k)",
             "Y[m] = mul(S, H)", STORE)  # fmt: skip
    before, loop, after = place(parse_mugraph(text + "".join(f"  {x}\n" for x in lines)).kernels[0]).segments
    assert [s.out for s in before.steps] == ["G", "H"]
    assert [s.out for s in loop.steps] == ["X", "F", "S"]
    assert [s.out for s in after.steps] == ["Y"]


def test_loops_over_the_same_dimensions_are_one() -> None:
    loop = only_loop(
        kernel("m:grid k:loop l:loop", "B = load B[m, k, l]", "S[m] = sum(B; k, l)", "M[m] = max(B; k, l)",
               "Y[m] = add(S, M)", STORE)
    )  # fmt: skip
    assert loop.dims == ("k", "l")


# -- what no kernel can do

CANNOT = {
    "nested loop": kernel("m:grid k:loop l:loop", "B = load B[m, k, l]",
                          "S[m, k] = sum(B; l)", "Y[m] = max(S; k)", STORE),
    "reduces a grid axis": kernel("m:grid k:grid", "X = load X[m, k]", "Y[m] = sum(X; k)", STORE),
    "uses a partial result": kernel("m:grid k:split", "X = load X[m, k]", "S[m] = sum(X; k)", "Y[m] = exp(S)", STORE),
    "stores a partial result as a whole": kernel("m:grid k:split", "X = load X[m, k]", "Y[m] = sum(X; k)", STORE),
}  # fmt: skip


@pytest.mark.parametrize("reason", CANNOT)
def test_roles_that_give_no_kernel(reason: str) -> None:
    assert refused(CANNOT[reason]) == reason


def test_a_partial_result_is_not_used_within_a_later_loop() -> None:
    k = kernel("m:grid k:split", "X = load X[m, k]", "S[m] = sum(X; k)", "D[m, k] = sub(X, S)", "E[m, k] = mul(D, D)",
               "V[m] = sum(E; k)", "store P[m, k_split] = V")  # fmt: skip
    assert refused(k) == "uses a partial result"


def test_partial_results_are_stored_by_chunk() -> None:
    loop = only_loop(kernel("m:grid k:split", "X = load X[m, k]", "S[m] = sum(X; k)", "store P[m, k_split] = S"))
    assert loop.dims == ("k",)
    assert [x for x, _ in loop.accumulators] == ["S"]


# -- text


@rows("name", CASES)
def test_text_reads_back(name: str) -> None:
    graph = CASES[name].graph
    assert parse_mugraph(print_mugraph(graph)) == graph
    assert parse_mugraph(canonical_text(graph)) == graph
    assert canonical_text(parse_mugraph(print_mugraph(graph))) == canonical_text(graph)
    assert mugraph_id(parse_mugraph(print_mugraph(graph))) == mugraph_id(graph)


def test_ids_differ() -> None:
    assert len({mugraph_id(c.graph) for c in CASES.values()}) == len(CASES)


@pytest.mark.parametrize("name", ["attention", "split_attention", "layer_norm", "rmsnorm_linear", "parts", "append"])
def test_print(name: str) -> None:
    """What people read: maps, loops, accumulators with their rescaling, epilogues."""
    assert print_mugraph(CASES[name].graph) == (GOLDEN / f"{name}.mugraph").read_text(encoding="utf-8")


WRONG = {
    "dims": ("dims m=8", "dims m", "line 2: "),
    "role": ("k:loop", "k:lop", "a role is grid, split, loop or tile, not 'lop'"),
    "kind": ("generated", "made", "a kernel is generated or library, not made"),
    "operator": ("max(X; k)", "maxi(X; k)", "no operator is called maxi"),
    "axes": ("M[m] = max", "M[k] = max", r"the result has the axes \[m\]"),
    "missing axis": ("max(X; k)", "max(X; n)", "max over n, which its argument lacks"),
    "unknown value": ("max(X; k)", "max(Q; k)", "line 13: .*Q"),
    "junk": ("store Y[m] = M", "Y[m] == M", "expected `x = load"),
    "buffer": ("load X", "load Q", "line 12: .*Q"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_line(name: str) -> None:
    old, new, message = WRONG[name]
    text = HEADER + "kernel k0 generated m:grid k:loop\n  X = load X[m, k]\n  M[m] = max(X; k)\n  store Y[m] = M\n"
    parse_mugraph(text)
    with pytest.raises(MuGraphTextError, match=rf"(?s){message}"):
        parse_mugraph(text.replace(old, new))


# -- extrema that choose

FIRST = ("X = load X[m, k]", "M[m] = max(X; k)", "E[m, k] = eq(X, M)", "I[k] = index(k)")
PLACE = ("W[m, k] = where(E, I, 64)", "P[m] = min(W; k)", "Y[m] = div(P, 1)", STORE)
UNDEFINED = ("U[m, k] = isnan(X)", "B[m, k] = or(E, U)", "W[m, k] = where(B, I, 64)", "P[m] = min(W; k)",
             "Y[m] = div(P, 1)", STORE)  # fmt: skip
CHOSEN = {
    "the first place": (FIRST, PLACE, "64"),
    "the first place of a minimum": ((FIRST[0], "M[m] = min(X; k)", *FIRST[2:]), PLACE, "64"),
    "that, or of what is no number": (FIRST, UNDEFINED, "64"),
    "of some": (FIRST, ("G[k] = gt(I, 3)", "B[m, k] = and(G, E)", "W[m, k] = where(B, I, 64)", *PLACE[1:]), "64"),
    "the last place": (FIRST, ("W[m, k] = where(E, I, -1)", "P[m] = max(W; k)", *PLACE[2:]), "-1"),
    "how many": (FIRST, ("W[m, k] = where(E, 1, 0)", "P[m] = sum(W; k)", *PLACE[2:]), "0"),
    "a sum of others": (("Z = load Z[m, k]", *FIRST), ("W[m, k] = where(E, Z, 0)", "Y[m] = sum(W; k)", STORE), "0"),
    "up to a size": (("S[] = size(k)", *FIRST), ("W[m, k] = where(E, I, S)", *PLACE[1:]), "S"),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_what_an_extremum_chooses_starts_anew_where_it_moves(name: str) -> None:
    first, rest, other = CHOSEN[name]
    loop = only_loop(kernel(ROWS, *first, *rest))
    (anew,) = loop.anew
    assert (anew.extremum, str(anew.other)) == ("M", other)
    assert not loop.running and not loop.steady


TWO_LOOPS = {
    "another mask beside it": (
        *FIRST, "G[k] = gt(I, 3)", "B[m, k] = or(G, E)", "W[m, k] = where(B, I, 64)", *PLACE[1:],
    ),
    "what is no number of another value": (
        "Z = load Z[m, k]", *FIRST, "U[m, k] = isnan(Z)", "B[m, k] = or(E, U)", "W[m, k] = where(B, I, 64)", *PLACE[1:],
    ),
    "where another value equals it": ("Z = load Z[m, k]", *FIRST[:2], "E[m, k] = eq(Z, M)", FIRST[3], *PLACE),
    "where it is not": (FIRST[0], FIRST[1], "E[m, k] = ne(X, M)", FIRST[3], *PLACE),
    "the other way round": (*FIRST, "W[m, k] = where(E, 64, I)", *PLACE[1:]),
    "a sum with others": (*FIRST, "W[m, k] = where(E, I, 64)", "P[m] = sum(W; k)", *PLACE[2:]),
    "another value in each place": ("Z = load Z[m, k]", *FIRST, "W[m, k] = where(E, Z, X)", "Y[m] = sum(W; k)", STORE),
    "a number that may be nearer than what is chosen": (
        "Z = load Z[m, k]", *FIRST, "W[m, k] = where(E, Z, 0)", "Y[m] = min(W; k)", STORE,
    ),
    "it shifts exponents too": (
        *FIRST, "W[m, k] = where(E, I, 64)", "P[m] = min(W; k)", "D[m, k] = exp_sub(X, M)", "L[m] = sum(D; k)",
        "Y[m] = mul(P, L)", STORE,
    ),
    "a function of what is chosen": (
        *FIRST, "W[m, k] = where(E, X, 0)", "V[m, k] = square(W)", "Y[m] = sum(V; k)", STORE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO_LOOPS)
def test_what_else_is_made_of_an_extremum_waits_for_a_second_loop(name: str) -> None:
    one, two = place(kernel(ROWS, *TWO_LOOPS[name])).loops
    assert not one.anew and not one.running and not two.anew


def test_a_chunk_knows_no_extremum_of_the_others() -> None:
    assert refused(kernel("m:grid k:split", *FIRST, *PLACE)) == "uses a partial result"


@pytest.mark.parametrize("equal", ["eq(V, N)", "eq(N, V)"])
def test_an_extremum_of_what_another_chooses_waits_for_it(equal: str) -> None:
    """Where the first moves, the second may be what it was by chance, though nothing is left that it chose."""
    lines = ("V[m, k] = where(E, Z, -inf)", "N[m] = max(V; k)", f"F[m, k] = {equal}", "W[m, k] = where(F, I, 64)")
    one, two = place(kernel(ROWS, "Z = load Z[m, k]", *FIRST, *lines, *PLACE[1:])).loops
    assert not one.anew
    assert [(x.accumulator, x.extremum) for x in two.anew] == [("P", "N")]


def test_a_maximum_of_what_another_chooses_shifts_nothing_before_that_is_known() -> None:
    lines = ("V[m, k] = where(E, Z, -inf)", "N[m] = max(V; k)", "D[m, k] = exp_sub(V, N)", "Y[m] = sum(D; k)", STORE)
    one, two = place(kernel(ROWS, "Z = load Z[m, k]", *FIRST, *lines)).loops
    assert not one.anew and two.running == ("N",) and not two.anew
