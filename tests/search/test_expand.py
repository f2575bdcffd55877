"""What the search makes of awkward programs: every candidate is right, and values are kept where they can be."""

from __future__ import annotations

import pytest

from mirage_cli.algebra.decompose import decompose
from mirage_cli.ir.placement import InexpressibleError
from mirage_cli.ir.precision import widened_values
from mirage_cli.ir.program import Program
from mirage_cli.search.cuts import Bounds
from mirage_cli.search.expand import Space, equations, factors
from mirage_cli.search.generator import search
from mirage_cli.search.roles import implementations
from mirage_cli.target.gpus import find_target
from mirage_cli.verify.equivalence import check_equivalence
from tests.programs import program
from tests.searched import BEST

H100 = find_target("h100")


def a_program(text: str, outputs: str = "O") -> Program:
    return program("m=16 k=16 n=16", "X[m,k] Y[m,k] P[m] W[k,n]", text, outputs)


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("a = layer_norm(X; k) | O = logsumexp(a; k)", "O"),
        ("a = sub(X, P) | b = softmax(a; k) | O = logsumexp(a; k) | c = max(a; k)", "O b c"),
        ("a = max(X; k) | O = softmax(a; m)", "O"),
        ("a = logsumexp(X; k) | O = softmax(a; m)", "O a"),
        ("a = max(X; k) | b = sub(X, a) | c = mul(b, 0.125) | d = exp(c) | e = sum(d; k) | f = log(e) "
         "| g = mul(a, 0.125) | O = add(f, g)", "O"),
        ("i = index(m) | j = index(k) | a = ge(j, i) | b = where(a, X, -inf) | c = max(b; m) | d = rename(c; k=m) "
         "| O = add(d, P)", "O"),
        ("a = sub(X, X) | b = add(a, P) | c = max(b; k) | d = min(a; m, k) | O = add(c, d)", "O"),
        ("a = square(X) | b = add(a, 1) | c = sqrt(b) | O = dot(c, c; m, k)", "O c"),
        ("a = square(X) | b = add(a, 1) | c = sqrt(b) | d = sum(c; k) | e = sqrt(d) | O = layer_norm(e; m)", "O"),
    ],
)  # fmt: skip
def test_no_candidate_is_refused(text: str, outputs: str) -> None:
    p = a_program(text, outputs)
    for c in search(p, H100).candidates:
        verdict = check_equivalence(p, c.graph, 0)
        assert verdict.ok, f"{verdict}\n{c.graph}"


def test_a_difference_of_two_attentions_stores_no_scores() -> None:
    p = program(
        "h=2 q=64 s=512 d=64 e=64",
        "Q[h,q,d] R[h,q,d] K[h,s,d] L[h,s,d] V[h,s,e] G[h]",
        "a = dot(Q, K; d) | A = softmax(a; s) | b = dot(R, L; d) | B = softmax(b; s) | C = mul(G, B) | D = sub(A, C) "
        "| O = dot(D, V; s)",
    )
    best = search(p, H100, bounds=BEST).candidates[0].graph
    assert not any({"q", "s"} <= {*t.dims} for t in best.buffers)
    assert check_equivalence(p, best, 0).ok


def test_what_eager_keeps_in_float32_somewhere_is_stored_in_float32() -> None:
    """square(X) is the user's, in float16, and the norm's own, which may be beyond float16's range."""
    p = a_program("a = square(X) | b = add(a, 1) | c = rsqrt(b) | O = rms_norm(X; k)", "c O")
    buffers = {t.name: t.dtype for t in search(p, H100).as_written.graph.buffers}
    assert buffers["a"] == "float32"
    assert buffers["b"] == "float16"


def test_a_cast_of_whole_numbers_that_are_computed_widens_no_float() -> None:
    p = a_program("a = index(k) | b = sub(a, 5) | c = float32(b) | O = mul(X, c)", "O")
    assert not widened_values(p)


def test_an_output_in_float16_is_not_read_again_where_eager_has_float32() -> None:
    p = program("m=16 k=16", "X[m,k] Y:float32[m,k]", "a = mul(X, Y) | b = sum(a; k) | O = div(a, b)", "a O")
    assert [t.dtype for t in p.outputs] == ["float16", "float16"]
    graph = search(p, H100).as_written.graph
    read = {x.buffer for k in graph.kernels for x in k.loads}
    assert "a" not in read
    assert {t.dtype for t in graph.buffers} == {"float32"}


def test_what_cancels_is_a_number() -> None:
    """The mean of a row less its mean: computed, it would be rounding errors, of which a sum has more than a mean. The
    program as written computes it."""
    p = a_program("a = mean(X; k) | b = sub(X, a) | O = mean(b; k)")
    d = decompose(p)
    (node,) = d.nodes[d.outputs[0]]
    assert not node.children
    found = search(p, H100)
    assert [len(k.body) for k in found.candidates[0].graph.kernels] == [1]
    assert sum(e.op == "sum" for k in found.as_written.graph.kernels for e in k.body) == 2


def test_a_search_whose_time_is_over_prices_no_more_plans() -> None:
    """Time that ends when all expansions of a class are known, and none of them has a price yet, ends it there."""
    p = a_program("a = softmax(X; k) | O = dot(a, W; k)")
    asked: list[None] = []
    asks_at: list[int] = []
    whole = search(p, H100, deadline=lambda: bool(asked.append(None)))
    for most in (len(asked) // 4, len(asked) // 2, len(asked) - 1):
        left = iter(range(most))
        result = search(p, H100, deadline=lambda left=left: next(left, None) is None)
        assert result.stopped == "budget"
        asks_at.append(result.enumerated)
    assert asks_at == sorted(asks_at)
    assert asks_at[0] < asks_at[-1] < whole.enumerated


@pytest.mark.parametrize(("dtype", "cut"), [("float16", True), ("float32", False)])
def test_operands_keep_the_coefficient_that_the_program_gives_them(dtype: str, cut: bool) -> None:
    text = "t = dot(A, B; b) | u = mul(t, 0.2) | v = dot(u, C; c) | O = mul(v, 0.2)"
    d = decompose(program("a=8 b=8 c=8 d=8", "A[a,b] B[b,c] C[c,d]", text, dtype=dtype))
    space = Space(d, Bounds())
    assert space.expansions(tuple(d.outputs))
    assert (space.cuts["operands without the program's coefficient"] > 0) is cut


@pytest.mark.parametrize(("dtype", "cut"), [("float16", True), ("bfloat16", False)])
def test_operands_keep_the_scales_that_the_program_gives_them(dtype: str, cut: bool) -> None:
    """silu(t·S)·C is not (t·sigmoid(t·S))·(S·C): t alone may be beyond float16's range, as of weights of 8 bits."""
    text = "t = dot(A, B; b) | u = mul(t, S) | v = silu(u) | O = dot(v, C; c)"
    d = decompose(program("a=8 b=8 c=8 d=8", "A[a,b] B[b,c] S[c] C[c,d]", text, dtype=dtype))
    space = Space(d, Bounds())
    taken = [e for t in (*d.outputs, *space.leaves) if d.nodes[t] for e in space.expansions((t,))]
    operands = {f for e in taken for _, n in e.chosen for f in factors(d, n)}
    of_product = {f.single[0] for f in operands if f.single and {a.kind for a, _ in f.single[0]} == {"sum", "fn"}}
    assert (not of_product) is cut
    assert (space.cuts["operands without the program's coefficient"] > 0) is cut


def test_of_multiples_of_a_class_one_may_be_read() -> None:
    """dot(X + Y, W) without P is a class, and so is 0.1 times it; the program names neither."""
    text = "y = add(Y, X) | a = mul(y, P) | b = dot(a, W; k) | z = mul(W, 0.1) | c = dot(a, z; k) | e = tanh(c)"
    d = decompose(a_program(f"{text} | O = mul(b, e)"))
    space = Space(d, Bounds())
    assert space.cuts["a number times another class in memory"] == 1
    assert all(f in space.leaves for f, name in d.names.items() if name in ("b", "O"))


def test_what_is_read_elsewhere_lies_in_memory() -> None:
    """Every expansion can be written down: what it renames is read. L is K under other axes, and is not stored too."""
    text = "P = dot(X, W; k) | B = add(P, C) | Q = rename(B; w, 0) | K = rename(B; w, 1) | L = rename(K; m, n)"
    d = decompose(program("m=8 k=8 w=2 d=8 n=8", "X[m,k] W[w,k,d] C[w,d]", f"{text} | S = dot(Q, L; d) | O = tanh(S)"))
    space = Space(d, Bounds())
    expansions = space.expansions(tuple(d.outputs))
    assert any(d.forms["B"][0] in e.leaves for e in expansions)
    for e in expansions:
        assert space.written(e).eqns
    assert d.forms["K"][0] in space.leaves
    assert d.forms["L"][0] not in space.leaves


def test_a_product_that_is_there_but_for_a_factor_is_not_computed_anew() -> None:
    """D = C·r, or the product of X·r with A."""
    text = "C = dot(X, A; k) | s = abs(C) | r = exp(s) | D = mul(C, r) | O = abs(D)"
    d = decompose(program("h=8 k=8", "X[h,k] A[k]", text, "O D"))
    space = Space(d, Bounds())
    found = space.expansions(tuple(d.outputs))
    anew = [e for e in found if e.recomputes_product(d.nodes)]
    assert 0 < len(anew) < len(found)
    for e in anew:
        (why,) = implementations(space, e, d.sizes, lambda _: False)
        assert isinstance(why, InexpressibleError)


@pytest.mark.parametrize("size", [1, 64])
def test_kernels_compute_nothing_that_they_do_not_need(size: int) -> None:
    """Where B is read, the squares of W that it was summed from are not; the cost model priced axes without a block."""
    text = "B = dot(W, W; m) | a = abs(B) | C = div(B, a) | E = exp(D)"
    d = decompose(program(f"d={size} m={size} w={size}", "W[d,m] D[w]", text, "C E"))
    read = 0
    for e in Space(d, Bounds()).expansions(tuple(d.outputs)):
        written = equations(d, e)
        needed = {v for q in written.eqns for v in q.values} | {written.value[t] for t in e.targets}
        assert {q.out for q in written.eqns} <= needed
        assert {name for name, _, _ in written.loads} <= needed
        read += any(not d.is_input(f) for f in e.leaves)
    assert read
    assert search(d.program, H100).candidates


def test_a_product_of_integers_that_the_program_has_as_floats_is_stored_as_one() -> None:
    """Beside an operator that the search stores it for: scales and zero points behind a product of int8."""
    p = program(
        "m=32 k=64 n=32",
        "A:int8[m,k] B:int8[k,n] Z:int32[n] S:float32[m]",
        "P = dot(A, B; k) | D = sub(P, Z) | O = mul(D, S)",
        dtype="bfloat16",
    )
    result = search(p, H100)
    stored = [t for c in result.candidates for t in c.graph.buffers if t.name == "P"]
    assert {t.dtype for t in stored} == {"bfloat16"}
    for c in result.candidates:
        assert check_equivalence(p, c.graph, 0), c.graph
