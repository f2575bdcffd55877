"""Decomposition graphs: every node makes its class, the program is in its graph, and the graphs keep their sizes."""

from __future__ import annotations

import pytest

from mirage_cli.algebra.canonical import Form
from mirage_cli.algebra.decompose import decompose
from mirage_cli.algebra.graph import Decomposition, Node
from mirage_cli.ir.access import Index
from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.op import Number
from mirage_cli.ir.program import Program
from tests.mugraphs import CASES
from tests.programs import program
from tests.rows import rows

MATRICES = "m=8 k=4096 n=4096 r=16"
HEADS = "h=2 q=256 s=4096 d=64 e=64"

PROGRAMS: dict[str, Program] = {
    "gated": program(
        MATRICES,
        "X[m,k] W1[k,n] W2[k,n]",
        "U = dot(X, W1; k) | V = dot(X, W2; k) | S = silu(U) | O = mul(S, V)",
    ),
    "lora": program(
        MATRICES,
        "X[m,k] W[k,n] A[k,r] B[r,n]",
        "U = dot(X, W; k) | T = dot(X, A; k) | Z = dot(T, B; r) | O = add(U, Z)",
    ),
    "residual": program(
        "m=8 k=4096 n=4096", "X[m,k] R[m,k] W[k,n]", "U = dot(X, W; k) | V = dot(R, W; k) | O = add(U, V)"
    ),
    "rms": program(MATRICES, "X[m,k] G[k] W[k,n]", "Y = rms_norm(X, 0.00001; k) | Z = mul(Y, G) | O = dot(Z, W; k)"),
    "attention": program(
        HEADS,
        "Q[h,q,d] K[h,d,s] V[h,s,e]",
        "A = dot(Q, K; d) | E = exp(A) | L = sum(E; s) | P = div(E, L) | O = dot(P, V; s)",
    ),
    "causal": program(
        HEADS,
        "Q[h,q,d] K[h,d,s] V[h,s,e]",
        "A = dot(Q, K; d) | I = index(q) | J = index(s) | C = ge(I, J) | M = where(C, A, -inf) | P = softmax(M; s) "
        "| O = dot(P, V; s)",
    ),
    "two attentions": program(
        HEADS,
        "Q[h,q,d] R[h,q,d] K[h,d,s] L[h,d,s] V[h,s,e] G[h]",
        "a = dot(Q, K; d) | A = softmax(a; s) | b = dot(R, L; d) | B = softmax(b; s) | C = mul(G, B) | D = sub(A, C) "
        "| O = dot(D, V; s)",
    ),
    "attention with shifted keys": program(
        HEADS,
        "Q[h,q,d] K[h,d,s] B[h,d] V[h,s,e] M[h,e]",
        "C = add(K, B) | A = dot(Q, C; d) | P = softmax(A; s) | D = sub(V, M) | O = dot(P, D; s)",
    ),
    "packed projection": program(
        "m=256 k=64 w=3 h=2 d=64 n=256",
        "X[m,k] W[w,k,h,d]",
        "P = dot(X, W; k) | Q = rename(P; w, 0) | K = rename(P; w, 1) | L = rename(K; m, n) | O = dot(Q, L; d)",
    ),
    "a difference of inputs": program("m=8 k=4096 n=4096", "X[m,k] R[m,k] W[k,n]", "D = sub(X, R) | O = dot(D, W; k)"),
    "entropy": program(
        "m=8 k=64", "X[m,k]", "a = logsumexp(X; k) | y = sub(X, a) | w = exp(y) | v = mul(w, y) | O = sum(v; k)"
    ),
    "entropy of a softmax": program(
        "m=8 k=64", "X[m,k]", "a = logsumexp(X; k) | y = sub(X, a) | w = softmax(X; k) | O = dot(w, y; k)"
    ),
    "divergence": program(
        "m=8 k=64",
        "X[m,k] Y[m,k]",
        "a = logsumexp(X; k) | b = logsumexp(Y; k) | x = sub(X, a) | y = sub(Y, b) | w = exp(y) | z = sub(y, x) "
        "| v = mul(w, z) | O = sum(v; k)",
    ),
    "entropy of what is less than a maximum": program(
        "m=8 k=64",
        "X[m,k]",
        "a = max(X; k) | x = sub(X, a) | e = exp(x) | s = sum(e; k) | l = log(s) | y = sub(x, l) | w = softmax(X; k) "
        "| O = dot(w, y; k)",
    ),
    "weights of any sign": program(
        "m=8 k=64", "X[m,k] W[m,k]", "a = logsumexp(X; k) | y = sub(X, a) | O = dot(W, y; k)"
    ),
    "weights whose sum is not 1": program(
        "m=8 k=64", "X[m,k] W[m,k]", "a = logsumexp(X; k) | y = sub(X, a) | w = exp(W) | O = dot(w, y; k)"
    ),
    "less the mean": program(
        "m=8 k=64", "X[m,k]", "a = mean(X; k) | y = sub(X, a) | w = softmax(X; k) | O = dot(w, y; k)"
    ),
    "centred": program("m=8 k=4096 n=4096", "X[m,k] W[k,n]", "a = layer_norm(X; k) | O = dot(a, W; k)"),
    "layer norm": program(
        MATRICES, "X[m,k] G[k] B[k] W[k,n]", "a = layer_norm(X; k) | b = mul(a, G) | c = add(b, B) | O = dot(c, W; k)"
    ),
    "two layers": program(
        "m=8 k=4096 n=4096 r=16", "X[m,k] W[k,n] Z[n,r]", "a = dot(X, W; k) | b = gelu(a) | O = dot(b, Z; n)"
    ),
    "shared factor beside a function of the summed axis": program(
        "k=256 h=4", "X[k,h]", "A = dot(X, X; h) | B = sum(A; k) | S = sigmoid(A) | C = mul(B, S) | O = add(B, C)"
    ),
    "contraction of an axis made up": program(
        "d=4 k=8 m=4", "X[d,k,m] V[d,k,m]", "B = dot(X, V; k, d) | O = rename(B; m, d)"
    ),
    "constant": program("m=4", "X[m]", "a = sub(X, X) | O = add(a, 2)"),
    "less an input": program(
        "m=8 k=64 n=16",
        "X[m,k] Z[m] V[k,n]",
        "y = sub(X, Z) | E = exp(y) | L = sum(E; k) | D = dot(E, V; k) | O = add(D, L)",
    ),
} | {name: case.program for name, case in CASES.items()}


def result(d: Decomposition, node: Node) -> Form:
    """The form that the steps of a node make of its children."""
    forms: list[Form] = []
    for s in node.steps:
        args: list[Form | Number] = [forms[a] if isinstance(a, int) else a for a in s.args]
        forms.append(d.algebra.apply(s.op, args, s.axes))
    return forms[-1]


@rows("name", PROGRAMS)
def test_every_node_makes_its_class(name: str) -> None:
    d = decompose(PROGRAMS[name])
    for form, nodes in d.nodes.items():
        assert nodes or d.is_input(form), f"nothing makes {form}"
        for node in nodes:
            assert result(d, node) is form, f"{node} makes\n{result(d, node)} and not\n{form}"
            assert all(c in d.nodes for c in node.children)


def accesses_in(f: Form) -> tuple[Index, ...]:
    """The indices of an input, or of a position."""
    if f.atom is None or f.atom.kind not in ("input", "index"):
        return ()
    return f.atom.args[1] if f.atom.kind == "input" else (parse_index(f.atom.args[0]),)


@rows("name", PROGRAMS)
def test_every_class_is_needed_and_leads_down_to_inputs(name: str) -> None:
    d = decompose(PROGRAMS[name])
    reached = set(d.outputs)
    stack = list(d.outputs)
    while stack:
        found = {c for n in d.nodes[stack.pop()] for c in n.children} - reached
        reached |= found
        stack += found
    assert reached == set(d.nodes)
    made = {f for f in d.nodes if d.is_input(f)}
    while more := {f for f, nodes in d.nodes.items() if f not in made and any(set(n.children) <= made for n in nodes)}:
        made |= more
    assert made == set(d.nodes), "a class that no program computes"
    inputs = [f.atom for f in d.nodes if f.atom and d.is_input(f)]
    looked_up = {x.table for f in d.nodes for i in accesses_in(f) for x in i.lookups}
    used = {a.args[0] for a in inputs} | looked_up | {x.table for x in d.program.lookups()} | d.program.changed
    assert used == {t.name for t in d.program.inputs} or (name == "constant")


@rows("name", PROGRAMS)
def test_the_program_as_written_is_in_its_graph(name: str) -> None:
    """With the program's own nodes alone, every class that it names has one; and all of them are in the full graph."""
    p = PROGRAMS[name]
    own, full = decompose(p, own_algebra_only=True), decompose(p)
    assert [str(f) for f in own.outputs] == [str(f) for f in full.outputs]
    texts = {str(f): {str(n) for n in nodes} for f, nodes in full.nodes.items()}
    for form, nodes in own.nodes.items():
        assert nodes or own.is_input(form)
        assert {str(n) for n in nodes if n.origin == "program"} <= texts[str(form)]
        program = [n for n in nodes if n.origin == "program"]
        in_no_memory = all(any(own.type_of(c) != "float" and not own.is_input(c) for c in n.moved) for n in program)
        assert len(nodes) - len(program) <= in_no_memory
    assert sum(map(len, own.nodes.values())) <= sum(map(len, full.nodes.values()))


SIZES = {
    "gated": (8, 10, {"outer product": 6}),
    "lora": (10, 8, {"outer product": 1}),
    "residual": (7, 5, {}),
    "rms": (14, 16, {"scaling of the larger operand": 3, "outer product": 6}),
    "attention": (11, 11, {"outer product": 1}),
    "causal": (14, 13, {"outer product": 1}),
    "layer norm": (17, 15, {"cancellation": 5}),
    "two layers": (6, 3, {}),
    "gram": (3, 1, {}),
    "nested": (12, 12, {"outer product": 1}),
}


@pytest.mark.parametrize("name", SIZES)
def test_graphs_keep_their_sizes(name: str) -> None:
    """Classes, nodes, and what was left out by name; a change here changes every search."""
    d = decompose(PROGRAMS[name])
    assert (len(d.nodes), sum(map(len, d.nodes.values())), d.cuts) == SIZES[name]


def ways(name: str) -> set[str]:
    """The ways to make the output, as text with the forms of the children."""
    d = decompose(PROGRAMS[name])
    return {
        " then ".join(f"{s.op}({', '.join(str(a) for a in s.args if isinstance(a, Form))})" for s in n.steps)
        for n in d.nodes[d.outputs[0]]
    }


def test_a_common_factor_is_taken_out_from_under_two_sums() -> None:
    """X·W + R·W = (X + R)·W"""
    assert any(w.startswith("dot(W[k,n], ") and "X[m,k]" in w and "R[m,k]" in w for w in ways("residual"))


def test_a_contraction_is_reassociated() -> None:
    """X·W + (X·A)·B = X·(W + A·B)"""
    assert any("dot(X[m,k], " in w and "W[k,n]" in w and "Σ_{r}(" in w for w in ways("lora"))


def test_factors_that_share_an_axis_are_multiplied_before_they_are_contracted_over_it() -> None:
    """Σ_{k,i} M[k,i,l]·(X[k,i]·R[k,c]) is one product of matrices. Not X·B in X·A·B, which have no axis in common, and
    not X·W in Σ_k X[m,k]·W[k,n]·G[k]: G is a vector beside them."""
    found = decompose(program("k=64 i=4 l=16 c=64", "M[k,i,l] X[k,i] R[k,c]", "A = dot(M, X; i) | O = dot(A, R; k)"))
    made = [{*map(str, n.steps[-1].args)} for n in found.nodes[found.outputs[0]] if len(n.steps) == 1]
    assert {"M[k,i,l]", "R[k,c]·X[k,i]"} in made
    chain = program(MATRICES, "X[m,k] A[k,r] B[r,n]", "T = dot(X, A; k) | O = dot(T, B; r)")
    scaled = program(MATRICES, "X[m,k] W[k,n] G[k]", "Y = mul(X, G) | O = dot(Y, W; k)")
    for d in map(decompose, (chain, scaled)):
        assert d.cuts["outer product"] and not any(f.dims >= {"m", "k", "n"} for f in d.nodes)


@pytest.mark.parametrize(("other", "parts"), [("sum(X; m)", 1), ("sum(X; m n)", 0)])
def test_a_maximum_is_taken_over_the_axis_of_another_reduction_first(other: str, parts: int) -> None:
    """max over m and n = max over n of max over m, beside a Σ over m"""
    d = decompose(program("m=4 n=8", "X[m,n]", f"S = {other} | A = abs(X) | O = max(A; m n)", "S O"))
    steps = [n.steps[-1] for n in d.nodes[d.outputs[1]]]
    assert [(s.op, s.axes) for s in steps] == [("max", ("m", "n")), ("max", ("n",))][: parts + 1]


def test_a_division_moves_over_a_contraction() -> None:
    """softmax(A)·V both ways: divided before the product and after it."""
    found = ways("attention")
    assert any(w.startswith("dot(") and "then" not in w for w in found)
    assert any("then div(" in w for w in found)


def test_a_division_moves_over_a_contraction_with_a_difference() -> None:
    """softmax(A)·(V - M), where the program's own difference stays an operand."""
    assert any(
        w.startswith("dot(") and w.endswith(")") and "then div(" in w for w in ways("attention with shifted keys")
    )


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("y = add(A, B) | q = mul(y, y) | s = sum(q; k) | r = sqrt(s)", True),
        ("y = sub(A, B) | q = mul(y, y) | s = sum(q; k) | r = sqrt(s)", True),
        ("y = sub(A, B) | q = mul(y, y) | s = sum(q; k) | r = add(s, 1)", False),  # no root
        ("y = sub(A, B) | q = mul(y, y) | r = sqrt(q)", False),  # of as many elements
    ],
)
def test_a_quotient_by_a_root_of_fewer_axes_is_a_product(text: str, other: bool) -> None:
    """Where what is divided has several terms: else the algebra makes the product anyway. What decisions are made of
    is divided as the program does."""
    assert ("rsqrt mul" in operators(f"{text} | O = div(y, r)")) == other
    assert "rsqrt mul" not in operators(f"{text} | p = div(y, r) | O = round(p)")


def test_a_softmax_is_of_the_values_that_the_program_has() -> None:
    """Of Q·(K + B), whose Q·B cancels: without it, no operator of the program would make the exponent."""
    d = decompose(PROGRAMS["attention with shifted keys"])
    (scores,) = d.forms["A"]
    assert any(n.origin == "program" for n in d.nodes[scores])


def test_a_read_of_what_was_read_is_one_read() -> None:
    """L[h, d, n] = K[n, h, d] = P[1, n, h, d], as the program has it and at once."""
    d = decompose(PROGRAMS["packed projection"])
    (read,) = d.forms["L"]
    assert {(*n.moved, n.steps[0].axes) for n in d.nodes[read] if n.origin == "program"} == {
        (*d.forms["P"], ("m", "n", "w", "1")),
        (*d.forms["K"], ("m", "n")),
    }


def test_what_is_made_of_a_difference_is_made_where_it_is_read() -> None:
    """Of the sums that it is made of, which lie in memory, there: the rows that a norm of a product is pooled over."""
    p = program(
        "m=8 k=4 n=6 i=7",
        "X[m,k] W[k,n] G[n]",
        "P = dot(X, W; k) | S = sum(P; m) | D = sub(P, S) | N = mul(D, G) | M = rename(N; m, i+1) | O = max(M; i)",
    )
    d = decompose(p)
    (total,), (difference,), (read,) = (d.forms[x] for x in "PDM")
    there = {"m": parse_index("i + 1")}
    assert {n.steps[0].op for n in d.nodes[read]} >= {"rename", "mul"}
    assert {n.steps[0].op for n in d.nodes[d.algebra.rename(difference, there)]} == {"sub"}
    assert (total,) in {n.moved for n in d.nodes[d.algebra.rename(total, there)]}


def test_a_difference_of_sums_is_multiplied_out() -> None:
    """(A - g·B)·V = A·V - g·B·V, where both products have softmaxes of their own."""
    found = ways("two attentions")
    assert {w.partition("(")[0] for w in found} == {"dot", "sub"}
    assert not any("then" in w for w in found)


@pytest.mark.parametrize("name", ["a difference of inputs", "centred"])
def test_other_differences_stay_as_the_program_takes_them(name: str) -> None:
    """Inputs may be near each other, and rows far from 0, where the products hold nothing of what is left of them."""
    assert not any("sub(" in w for w in ways(name))
    assert decompose(PROGRAMS[name]).cuts["cancellation"]


@pytest.mark.parametrize(("name", "terms"), [("entropy", 2), ("entropy of a softmax", 2), ("divergence", 4)])
def test_a_mean_of_differences_that_are_rounded_is_a_difference_of_means(name: str, terms: int) -> None:
    """Σ w·(x - lse) = Σ w·x - lse, where the weights add up to 1: one loop makes both."""
    d = decompose(PROGRAMS[name])
    written, other, *_ = d.nodes[d.outputs[0]]
    assert {s.op for s in written.steps} <= {"sum", "dot"}
    assert {s.op for s in other.steps} == {"sub"} and len(other.children) == terms


@pytest.mark.parametrize(
    "name",
    [
        "entropy of what is less than a maximum",
        "weights of any sign",
        "weights whose sum is not 1",
        "less the mean",
    ],
)
def test_means_of_other_differences_stay(name: str) -> None:
    """There Σ w·x has errors that the program's own sum has not: of rows far from 0, or of parts that cancel."""
    assert not any("sub(" in w for w in ways(name))


def test_a_graph_prints_each_class_with_its_ways() -> None:
    text = str(decompose(PROGRAMS["matmul"]))
    assert text.splitlines() == [
        "Y[m,n] := Σ_{k}(X[m,k]·W[k,n])",
        "    program: dot(X, W; k)",
        "X[k,m] := X[m,k]",
        "W[k,n] := W[k,n]",
    ]


def operators(text: str) -> set[str]:
    """Of every way to make a value of the program."""
    d = decompose(program("m=8 n=16 k=4", "X[m,n] A[m,k] B[m,k] W[k,n]", text))
    return {" ".join(s.op for s in n.steps) for nodes in d.nodes.values() for n in nodes}


@pytest.mark.parametrize("decision", ["float8_e4m3fn", "float8_e5m2", "round", "integer", "floor"])
@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("a = abs(X) | t = max(a; n) | s = div(t, 448) | q = div(X, s)", "mul div"),  # 448·X / max
        ("a = abs(X) | t = max(a; n) | s = div(448, t) | q = mul(X, s)", "mul div"),
        ("a = abs(X) | t = max(a; n) | l = log2(t) | c = ceil(l) | s = exp2(c) | q = div(X, s)", "exp"),  # of 0.693·c
        ("r = add(A, B) | p = div(A, r) | x = dot(X, W; n) | q = mul(p, x)", "mul div"),
    ],
)
def test_what_decisions_are_made_of_is_computed_as_the_program_does(decision: str, text: str, other: str) -> None:
    """(448 / max)·X and X / (max / 448) differ in the last bit, where one may be half-way between two numbers."""
    assert other in operators(f"{text} | O = abs(q)")
    assert other not in operators(f"{text} | O = {decision}(q)")


def test_sums_that_decisions_are_made_of_may_become_one() -> None:
    """A·W + B·W = (A + B)·W"""
    ways = operators("a = dot(A, W; k) | b = dot(B, W; k) | c = add(a, b) | q = div(c, 3) | O = round(q)")
    assert ways == {"round", "div", "add", "dot"}


@pytest.mark.parametrize("way", ["y = sub(X, Z) | E = exp(y)", "a = exp(X) | b = exp(Z) | E = div(a, b)"])
def test_a_difference_in_an_exponential_is_not_taken_apart(way: str) -> None:
    """exp(x - z) may be small where exp(x) is infinite and exp(-z) is 0. The program's own exponentials stay."""
    d = decompose(program("m=8 k=64 n=16", "X[m,k] Z[m] V[k,n]", f"{way} | D = dot(E, V; k)", "D"))
    taken = {str(f) for f in d.nodes if f.atom and f.atom.kind == "exp"}
    assert taken - {"exp(-1·Z[m] + X[m,k])", "exp(X[m,k] + -1·Z[m])"} <= {"exp(X[m,k])", "exp(Z[m])"}
    assert way.startswith("a = ") or len(taken) == 1
    assert d.cuts["an exponential that may overflow"]


def test_an_exponential_of_what_is_nowhere_above_a_number_is_taken_apart() -> None:
    d = decompose(
        program(
            "m=8 k=64", "X[m,k] Z[m]", "z = square(Z) | y = sub(X, z) | E = exp(y) | O = sum(E; k) | P = exp(X)", "O P"
        )
    )
    assert "exp(-1·Z[m]^2)" in {str(f) for f in d.nodes}


GUARDS = {
    "where it is -inf": ("c = eq(t, -inf) | g = where(c, 0, t)", True),
    "where it is not -inf": ("c = ne(t, -inf) | g = where(c, t, 0)", True),
    "above -inf": ("c = gt(t, -inf) | g = where(c, t, 0)", True),
    "at least": ("c = lt(t, -9) | g = where(c, -9, t)", True),
    "the larger": ("g = maximum(t, Z)", True),
    "the larger of it and where": ("c = eq(t, -inf) | h = where(c, 0, t) | g = maximum(h, Z)", True),
    "the other way round": ("c = eq(t, -inf) | g = where(c, t, 0)", False),
    "a number below some": ("c = lt(t, -9) | g = where(c, -10, t)", False),
    "at most": ("c = lt(t, 9) | g = where(c, t, 9)", False),
    "the lesser": ("g = minimum(t, Z)", False),
    "by another": ("c = eq(Z, -inf) | g = where(c, 0, t)", False),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_bound_of_a_maximum_is_as_good_as_the_maximum(name: str) -> None:
    """Of a program that subtracts it, the sum of exponentials comes out of one loop: they are less their maximum."""
    guard, bounds = GUARDS[name]
    d = decompose(
        program("m=8 k=64", "X[m,k] Z[m]", f"t = max(X; k) | {guard} | y = sub(X, g) | E = exp(y) | L = sum(E; k) "
                "| O = add(L, Z)", "L O")
    )  # fmt: skip
    safe = any(f.atom and f.atom.kind == "shifted_exp" for f in d.nodes)
    assert safe == bounds
    taken = {str(f.atom.args[0]) for f in d.nodes if f.atom and f.atom.kind == "exp"}
    assert len(taken) == 1 and all(" + " in t for t in taken), taken
