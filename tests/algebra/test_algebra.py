"""Canonical forms: equal programs are one object, different ones are not, and no two values are confused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from mirage_cli.algebra import canonical
from mirage_cli.algebra.canonical import Algebra, Atom, Form
from mirage_cli.algebra.safe import eqn_forms, program_forms
from mirage_cli.ir.access import plain
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Program
from mirage_cli.verify.floatsemantics import FloatSemantics
from mirage_cli.verify.interpret import run_program
from mirage_cli.verify.semantics import Named
from tests.programs import program
from tests.rows import rows

DIMS = "m=8 k=64 n=32 r=4 i=16 j=16"
INPUTS = (
    "X[m,k] Y[m,k] W[k,n] W1[k,n] W2[k,n] A[k,r] B[r,n] C[n,r] G[k] H[k] b[n] P[m] Q[m] R[m,n] S[i,j] T[i,j] L:int32[m]"
)


def form(algebra: Algebra, text: str) -> Form:
    """The canonical form of the value O that a text defines."""
    return program_forms(algebra, program(DIMS, INPUTS, text))["O"]


# -- equal

EQUAL = {
    "commuted": ("O = add(X, Y)", "O = add(Y, X)"),
    "commuted product": ("O = dot(X, W; k)", "O = dot(W, X; k)"),
    "associated sum": ("a = add(X, Y) | O = add(a, G)", "a = add(Y, G) | O = add(X, a)"),
    "reassociated products": ("a = dot(X, A; k) | O = dot(a, B; r)", "a = dot(A, B; r) | O = dot(X, a; k)"),
    "three products and a scale": (
        "a = dot(X, A; k) | c = mul(a, P) | O = dot(c, B; r)",
        "a = mul(X, P) | c = dot(A, B; r) | O = dot(a, c; k)",
    ),
    "LoRA": (
        "a = dot(A, B; r) | c = add(W, a) | O = dot(X, c; k)",
        "a = dot(X, A; k) | c = dot(a, B; r) | d = dot(X, W; k) | O = add(d, c)",
    ),
    "division after the contraction": ("a = div(X, P) | O = dot(a, W; k)", "a = dot(X, W; k) | O = div(a, P)"),
    "gain into the weights": ("a = mul(X, G) | O = dot(a, W; k)", "a = mul(G, W) | O = dot(X, a; k)"),
    "dot is mul and sum": ("O = dot(X, W; k)", "a = mul(X, W) | O = sum(a; k)"),
    "bias distributed": ("a = add(X, Y) | O = dot(a, W; k)", "a = dot(X, W; k) | c = dot(Y, W; k) | O = add(a, c)"),
    "factored": ("a = mul(X, G) | c = mul(Y, G) | O = add(a, c)", "a = add(X, Y) | O = mul(G, a)"),
    "a square of a sum": ("a = add(X, Y) | O = square(a)", "a = add(X, Y) | c = add(Y, X) | O = mul(a, c)"),
    "a root of a sum times itself": ("a = add(X, Y) | c = sqrt(a) | O = mul(c, c)", "O = add(Y, X)"),
    "a root of a sum over itself": (
        "a = add(X, Y) | c = sqrt(a) | d = rsqrt(a) | O = mul(c, d)",
        "c = mul(X, 0) | a = add(c, 1) | O = square(a)",
    ),
    "difference of squares": (
        "a = add(X, Y) | c = sub(X, Y) | O = mul(a, c)",
        "a = square(X) | c = square(Y) | O = sub(a, c)",
    ),
    "square is pow": ("O = square(X)", "O = pow(X, 2)"),
    "powers multiply": ("a = pow(X, 3) | O = mul(a, X)", "a = square(X) | O = square(a)"),
    "reciprocal": ("O = div(X, Y)", "a = reciprocal(Y) | O = mul(X, a)"),
    "quotient of quotients": ("a = div(X, Y) | O = div(a, G)", "a = mul(Y, G) | O = div(X, a)"),
    "division cancels": ("a = mul(X, Y) | O = div(a, Y)", "O = mul(X, 1)"),
    "rsqrt": ("O = rsqrt(X)", "a = sqrt(X) | O = div(1, a)"),
    "rsqrt squared": ("a = rsqrt(X) | O = square(a)", "O = reciprocal(X)"),
    "root of a scaled value": ("a = mul(X, 4) | O = sqrt(a)", "a = sqrt(X) | O = mul(a, 2)"),
    "exp of a sum": ("a = add(X, Y) | O = exp(a)", "a = exp(X) | c = exp(Y) | O = mul(a, c)"),
    "exp of a difference": ("a = sub(X, Y) | O = exp(a)", "a = exp(X) | c = exp(Y) | O = div(a, c)"),
    "exp of a multiple": ("a = mul(X, 2) | O = exp(a)", "a = exp(X) | O = square(a)"),
    "log of exp": ("a = exp(X) | O = log(a)", "O = add(X, 0)"),
    "exp of log": ("a = log(X) | O = exp(a)", "O = mul(X, 1)"),
    "exp2 of a sum": ("a = add(X, Y) | O = exp2(a)", "a = exp2(X) | c = exp2(Y) | O = mul(a, c)"),
    "silu": ("O = silu(X)", "a = sigmoid(X) | O = mul(a, X)"),
    "relu": ("O = relu(X)", "O = maximum(0, X)"),
    "gt is lt": ("a = gt(X, Y) | O = where(a, X, 0)", "a = lt(Y, X) | O = where(a, X, 0)"),
    "eq commutes": ("a = eq(X, Y) | O = where(a, X, 0)", "a = eq(Y, X) | O = where(a, X, 0)"),
    "mean": ("O = mean(X; k)", "a = sum(X; k) | c = size(k) | O = div(a, c)"),
    "sum of a constant": ("a = sub(R, R) | c = add(a, 3) | O = sum(c; n)", "a = size(n) | c = sub(P, P) "
                          "| d = mul(a, 3) | O = add(c, d)"),
    "sum of what lacks the axis": ("a = add(X, P) | c = sub(a, X) | d = add(c, G) | e = sub(d, G) | O = mul(e, 1)",
                                   "O = mul(P, 1)"),
    "sum of a sum": ("a = sum(R; n) | O = sum(a; m)", "O = sum(R; m, n)"),
    "sums in another order": ("a = sum(R; n) | O = sum(a; m)", "a = sum(R; m) | O = sum(a; n)"),
    "factor out of a sum": ("a = mul(R, P) | O = sum(a; n)", "a = sum(R; n) | O = mul(P, a)"),
    "sum of an outer product": ("a = mul(P, b) | O = sum(a; m, n)", "a = sum(P; m) | c = sum(b; n) | O = mul(a, c)"),
    "sum of a broadcast": ("a = add(R, P) | O = sum(a; n)",
                           "a = sum(R; n) | c = size(n) | d = mul(P, c) | O = add(a, d)"),
    "max of a max": ("a = max(R; n) | O = max(a; m)", "O = max(R; m, n)"),
    "softmax written out": ("O = softmax(X; k)", "a = exp(X) | c = sum(a; k) | O = div(a, c)"),
    "softmax of shifted": ("O = softmax(X; k)", "a = sub(X, P) | O = softmax(a; k)"),
    "softmax of multiples, shifted before or after": (
        "a = mul(X, 0.125) | O = softmax(a; k)",
        "a = max(X; k) | c = sub(X, a) | d = mul(c, 0.125) | e = exp(d) | f = sum(e; k) | O = div(e, f)",
    ),
    "softmax divided after the product": (
        "a = softmax(X; k) | O = dot(a, W; k)",
        "a = exp(X) | c = dot(a, W; k) | d = sum(a; k) | O = div(c, d)",
    ),
    "logsumexp written out": ("O = logsumexp(X; k)", "a = exp(X) | c = sum(a; k) | O = log(c)"),
    "rms_norm folded": (
        "a = rms_norm(X, 0.001; k) | c = mul(a, G) | O = dot(c, W; k)",
        "a = square(X) | c = mean(a; k) | d = add(c, 0.001) | e = sqrt(d) | f = mul(G, W) | g = dot(X, f; k) "
        "| O = div(g, e)",
    ),
    "layer_norm folded": (
        "a = layer_norm(X, 0.001; k) | O = dot(a, W; k)",
        "a = mean(X; k) | c = dot(X, W; k) | d = sum(W; k) | e = mul(a, d) | f = sub(c, e) | g = sub(X, a) "
        "| h = square(g) | i = mean(h; k) | jj = add(i, 0.001) | l = rsqrt(jj) | O = mul(f, l)",
    ),
    "renamed twice": ("a = rename(S; i=j, j=i) | O = rename(a; i=j, j=i)", "O = mul(S, 1)"),
    "rename commutes with exp": ("a = rename(P; m=r) | O = exp(a)", "a = exp(P) | O = rename(a; m=r)"),
}  # fmt: skip


@rows("name", EQUAL)
def test_equal_programs_have_one_form(name: str) -> None:
    algebra = Algebra()
    one, other = (form(algebra, text) for text in EQUAL[name])
    assert one is other, f"{one}\n{other}"


def test_a_logsumexp_keeps_the_maximum_that_it_adds() -> None:
    """max(X - P) is not used as max X - P: what verifies a plan knows no order."""
    forms = program_forms(
        Algebra(), program(DIMS, INPUTS, "a = sub(X, P) | c = max(a; k) | O = logsumexp(a; k)", "O c")
    )
    assert len(forms["O"].terms) == 2
    assert set(forms["c"].terms) <= set(forms["O"].terms)


@pytest.mark.parametrize(
    "text",
    [
        "a = max(X; k) | O = softmax(a; m)",
        "a = logsumexp(X; k) | O = softmax(a; m)",
        "a = layer_norm(X; k) | O = softmax(a; k)",
        "a = layer_norm(X; k) | O = logsumexp(a; k)",
    ],
)
def test_a_safe_softmax_stays_safe(text: str) -> None:
    """Where the maximum that it subtracts is one of maxima, of logarithms, or has terms that it does not depend on."""
    algebra = Algebra()
    kinds = {a.kind for a in atoms_of(form(algebra, text))}
    assert "shifted_exp" in kinds
    assert "exp" not in kinds


@pytest.mark.parametrize("power", ["O = square(a)", "O = mul(a, a)", "O = pow(a, 4)"])
@pytest.mark.parametrize("sum_", ["a = add(X, Y)", "a = sub(X, Y)", "c = sum(X; k) | d = dot(X, W; k) | a = add(c, d)"])
def test_powers_of_sums_are_not_multiplied_out(sum_: str, power: str) -> None:
    """Where the terms all but cancel, those of the square leave rounding errors."""
    algebra = Algebra()
    found = form(algebra, f"{sum_} | {power}")
    assert found.single is not None
    assert [(a.kind, e % 2) for a, e in found.single[0]] == [("poly", 0)]


def test_an_exponential_that_is_summed_and_squared_is_one() -> None:
    """Otherwise the square of a difference would not be known as one, and be multiplied out."""
    algebra = Algebra()
    text = "a = exp(X) | c = mean(a; k) | d = sub(a, c) | e = square(d) | f = sum(e; k) | g = square(a) | O = sum(g; k)"
    forms = program_forms(algebra, program(DIMS, INPUTS, text, "O a d e f g"))
    assert forms["e"] is algebra.pow(forms["d"], Fraction(2))
    assert forms["g"] is algebra.pow(forms["a"], Fraction(2))


def test_multiples_that_are_summed_over_other_axes_have_their_own_maximum() -> None:
    algebra = Algebra()
    text = "a = softmax(X; k) | c = mul(X, 2) | d = softmax(c; m) | O = mul(a, d)"
    assert "exp" not in {a.kind for a in atoms_of(form(algebra, text))}


def atoms_of(x: Form) -> Iterator[Atom]:
    """Every atom in a form, at any depth."""
    todo = [a for mono, _ in x.terms for a, _ in mono]
    while todo:
        atom = todo.pop()
        yield atom
        forms = [part for part in atom.args if isinstance(part, Form)]
        todo += [a for f in forms for mono, _ in f.terms for a, _ in mono]
        todo += [a for a, _ in atom.args[1]] if atom.kind == "sum" else []


# -- different

GATED = "a = dot(X, {}; k) | c = dot(X, {}; k) | d = silu(a) | O = mul(d, c)"
MASKED = "p = index(i) | q = index(j) | a = {}(p, q) | c = where(a, S, {}) | d = softmax(c; j) | O = dot(d, T; j)"
RMS = "a = rms_norm(X, {}; k) | O = dot(a, W; k)"

DIFFERENT = {
    "swapped weights": (GATED.format("W1", "W2"), GATED.format("W2", "W1")),
    "another reduced axis": ("O = sum(S; j)", "O = sum(S; i)"),
    "transposed": ("O = mul(S, 1)", "O = rename(S; i=j, j=i)"),
    "root of a square": ("a = square(X) | O = sqrt(a)", "O = mul(X, 1)"),
    "root of a square is not abs of another": ("a = square(X) | O = sqrt(a)", "O = abs(Y)"),
    "fourth root of a fourth power": ("a = pow(X, 4) | O = pow(a, 0.25)", "O = mul(X, 1)"),
    "cube root of a cube": ("a = pow(X, 2) | O = pow(a, 1.5)", "O = pow(X, 3)"),
    "root of a product": ("a = mul(X, Y) | O = sqrt(a)", "a = sqrt(X) | c = sqrt(Y) | O = mul(a, c)"),
    "root of a negative multiple": ("a = mul(X, -4) | O = sqrt(a)", "a = sqrt(X) | O = mul(a, -2)"),
    "log of a product": ("a = mul(X, Y) | O = log(a)", "a = log(X) | c = log(Y) | O = add(a, c)"),
    "log of a square": ("a = square(X) | O = log(a)", "a = log(X) | O = mul(a, 2)"),
    "max and min": ("O = max(X; k)", "O = min(X; k)"),
    "max of negated": ("a = neg(X) | O = max(a; k)", "a = max(X; k) | O = neg(a)"),
    "sum and max": ("O = sum(X; k)", "O = max(X; k)"),
    "sum and mean": ("O = sum(X; k)", "O = mean(X; k)"),
    "eps": (RMS.format("0.001"), RMS.format("0.00001")),
    "eps inside and outside the root": (
        "a = square(X) | c = sum(a; k) | d = add(c, 0.001) | O = sqrt(d)",
        "a = square(X) | c = sum(a; k) | d = sqrt(c) | O = add(d, 0.001)",
    ),
    "quotient upside down": ("O = div(X, Y)", "O = div(Y, X)"),
    "difference the other way": ("O = sub(X, Y)", "O = sub(Y, X)"),
    "gt and ge": (MASKED.format("gt", "-inf"), MASKED.format("ge", "-inf")),
    "ge and le": (MASKED.format("ge", "-inf"), MASKED.format("le", "-inf")),
    "masked with another number": (MASKED.format("ge", "-inf"), MASKED.format("ge", "0")),
    "branches swapped": ("a = lt(X, Y) | O = where(a, X, Y)", "a = lt(X, Y) | O = where(a, Y, X)"),
    "clamp bound": ("O = minimum(X, 6)", "O = minimum(X, 7)"),
    "softmax over another axis": ("O = softmax(S; i)", "O = softmax(S; j)"),
    "softmax without its division": ("O = softmax(X; k)", "O = exp(X)"),
    "product of sums": ("a = mul(X, Y) | O = sum(a; k)", "a = sum(X; k) | c = sum(Y; k) | O = mul(a, c)"),
    "square of a sum": ("a = sum(X; k) | O = square(a)", "a = square(X) | O = sum(a; k)"),
    "exp of a sum over an axis": ("a = sum(X; k) | O = exp(a)", "a = exp(X) | O = sum(a; k)"),
    "gelu and silu": ("O = gelu(X)", "O = silu(X)"),
    "scale": ("O = mul(X, 0.125)", "O = mul(X, 0.25)"),
    "size of another axis": ("a = size(k) | O = mul(X, a)", "a = size(n) | O = mul(X, a)"),
    "index along another axis": ("a = index(i) | O = mul(S, a)", "a = index(j) | O = mul(S, a)"),
}


@rows("name", DIFFERENT)
def test_different_programs_have_different_forms(name: str) -> None:
    algebra = Algebra()
    one, other = (form(algebra, text) for text in DIFFERENT[name])
    assert one is not other, str(one)


OPAQUE = ("abs", "gelu", "maximum", "minimum", "sigmoid", "tanh")


@pytest.mark.parametrize("name", OPAQUE)
def test_opaque_functions_are_known_of_no_number(name: str) -> None:
    """The verifier takes them for random functions, which have no value of their own at 0 or -2."""
    algebra = Algebra()
    for c in (Fraction(0), Fraction(-2), Fraction(1, 2)):
        atom = algebra.apply(name, [c] * OPS[name].arity).atom
        assert atom is not None and atom.kind == "fn"


# -- renaming

AXES = "i=3 j=3 j_1=3 k=2"


def test_a_free_axis_renamed_onto_a_bound_one_is_not_captured() -> None:
    """Σ_j S[i,j] renamed i -> j is the same vector, not the trace and not the whole sum."""
    p = program(
        AXES,
        "S[i,j]",
        "a = sum(S; j) | c = rename(a; i=j) | d = mul(S, c) | e = mul(S, a) | O = sum(c; j)",
        "O a c d e",
    )
    forms = program_forms(Algebra(), p)
    assert forms["c"].dims == {"j"}
    assert forms["d"].dims == {"i", "j"}
    assert forms["d"] is not forms["e"]
    assert forms["O"].dims == frozenset()


def test_names_made_up_against_capture_are_no_axes_of_the_program() -> None:
    """The program has an axis j_1 of its own, beside which the bound j must not become j_1."""
    text = "a = mul(S, V) | c = sum(a; j) | d = rename(c; i=j) | e = mul(S, U) | f = sum(e; j) | O = mul(d, 1)"
    p = program(AXES, "S[i,j] V[j_1] U[j_1]", text, "O d f")
    agree(p, program_forms(Algebra(), p), 0)
    q = program(AXES, "S[i,j,j_1]", "c = sum(S; j) | d = rename(c; i=j) | e = sum(S; j_1) | O = sum(d; j_1)", "O d")
    forms = program_forms(Algebra(), q)
    assert forms["d"].dims == {"j", "j_1"}


def test_sums_of_several_reads_have_one_bound_axis() -> None:
    """Two gates of one product whose sum runs along the axis of the gates: one loop computes both."""
    text = "r = dot(X, W; k) | a = rename(r; n=k) | c = rename(r; n=2*k) | O = mul(a, c)"
    p = program("m=2 k=3 n=6", "X[m,k] W[n,k]", text)
    algebra = Algebra()
    (product,) = program_forms(algebra, p)["O"].terms
    assert [atom.args[0] for atom, _ in product[0]] == [("k_1",), ("k_1",)]
    assert algebra.aliases == {"k_1": "k"}


def test_forms_do_not_depend_on_the_run() -> None:
    texts = [text for pair in EQUAL.values() for text in pair]
    first, second = Algebra(), Algebra()
    forward = [form(first, t) for t in texts]
    backward = [form(second, t) for t in reversed(texts)][::-1]
    assert [(f.key, str(f)) for f in forward] == [(f.key, str(f)) for f in backward]


# -- soundness on random programs

UNARY = ("neg", "square", "sqrt", "rsqrt", "exp", "log", "reciprocal", "abs", "relu", "sigmoid", "silu")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "exp_sub")
NUMBERS = ("2", "-1", "0.5", "4", "-3")
POWERS = ("2", "3", "-1", "0.5", "-0.5", "1.5")


def random_program(seed: int, length: int = 24) -> Program:
    """A program with few inputs, so that values often coincide."""
    rng = random.Random(seed)
    axes = {"X": {"i", "j"}, "Y": {"i", "j"}, "v": {"i"}}
    lines: list[str] = []
    for n in range(length):
        name, x = f"v{n}", rng.choice(sorted(axes))
        kind = rng.choice(("unary", "binary", "number", "pow", "reduce", "reduce", "dot", "rename"))
        if kind in ("reduce", "dot", "rename") and not axes[x]:
            kind = "unary"
        if kind == "unary":
            lines.append(f"{name} = {rng.choice(UNARY)}({x})")
            axes[name] = axes[x]
        elif kind == "binary":
            y = rng.choice(sorted(axes))
            lines.append(f"{name} = {rng.choice(BINARY)}({x}, {y})")
            axes[name] = axes[x] | axes[y]
        elif kind == "number":
            pair = [x, rng.choice(NUMBERS)]
            rng.shuffle(pair)
            lines.append(f"{name} = {rng.choice(BINARY[:-1])}({', '.join(pair)})")
            axes[name] = axes[x]
        elif kind == "pow":
            lines.append(f"{name} = pow({x}, {rng.choice(POWERS)})")
            axes[name] = axes[x]
        elif kind == "dot":
            y = rng.choice([y for y in sorted(axes) if axes[y] & axes[x]])
            over = rng.choice(sorted(axes[x] & axes[y]))
            lines.append(f"{name} = dot({x}, {y}; {over})")
            axes[name] = (axes[x] | axes[y]) - {over}
        elif kind == "reduce":
            over = rng.sample(sorted(axes[x]), rng.randint(1, len(axes[x])))
            lines.append(f"{name} = {rng.choice(('sum', 'sum', 'max', 'min'))}({x}; {', '.join(over)})")
            axes[name] = axes[x] - set(over)
        else:
            old = rng.choice(sorted(axes[x]))
            free = sorted({"i", "j", "j_1"} - axes[x])
            if not free:  # swap two axes
                old, new = rng.sample(sorted(axes[x]), 2)
                lines.append(f"{name} = rename({x}; {old}={new}, {new}={old})")
                axes[name] = axes[x]
            else:
                new = rng.choice(free)
                lines.append(f"{name} = rename({x}; {old}={new})")
                axes[name] = (axes[x] - {old}) | {new}
    return program(AXES, "X[i,j] Y[i,j] v[i]", "\n".join(lines), " ".join(f"v{n}" for n in range(length)))


def agree(p: Program, forms: dict[str, Form], seed: int) -> int:
    """Asserts that values with one form are equal wherever both are defined; returns how many such pairs there are."""
    rng = np.random.default_rng(seed)
    sizes = p.sizes
    pairs = 0
    for low in (-2.0, 0.5):
        inputs = {t.name: Named(t.dims, rng.uniform(low, 2, [sizes[d] for d in t.dims])) for t in p.inputs}
        with np.errstate(all="ignore"):
            values = run_program(p, inputs, FloatSemantics(sizes)) | inputs
        of: dict[Form, str] = {}
        for name, f in forms.items():
            if name not in values:
                continue
            first = of.setdefault(f, name)
            if first == name:
                continue
            one, other = (spread(values[v], p.order) for v in (first, name))
            with np.errstate(all="ignore"):
                close = np.isclose(one, other, rtol=1e-6, atol=1e-6 * (1 + largest(values, p, name, first)))
            assert (close | ~np.isfinite(one) | ~np.isfinite(other)).all(), f"{first} and {name} have the form {f}\n{p}"
            pairs += 1
    return pairs


def spread(x: Named, order: tuple[str, ...]) -> np.ndarray:
    """The data with an axis, of size 1 where it lacks it, for every axis of the program."""
    have = sorted(x.dims, key=order.index)
    data = np.transpose(x.data, [x.dims.index(d) for d in have])
    return data[tuple(slice(None) if d in have else None for d in order)].astype(float)


def largest(values: dict[str, Named], p: Program, *names: str) -> float:
    """The largest finite magnitude among the values that these come from: what cancellation may leave errors of."""
    need = set(names)
    for e in reversed(p.eqns):
        if e.out in need:
            need |= set(e.values)
    found = [np.abs(values[v].data[np.isfinite(values[v].data)]).max(initial=0.0) for v in need if v in values]
    return float(max(found))


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_values_with_one_form_are_equal(start: int) -> None:
    pairs = 0
    for seed in range(start, start + 20):
        p = random_program(seed)
        algebra = Algebra()
        algebra.axes |= set(p.order)
        raw = eqn_forms(algebra, p.eqns, {t.name: algebra.input(t.name, plain(t.dims)) for t in p.inputs})
        pairs += agree(p, raw, seed)
        pairs += agree(p, program_forms(Algebra(), p), seed)
    assert pairs > 30, "the programs are too varied to test anything"


def test_the_check_on_random_programs_sees_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """√(x·y) = √x·√y, claimed for all x and y."""
    monkeypatch.setattr(canonical, "is_nonnegative", lambda atom: True)
    programs = [random_program(seed) for seed in range(200)]
    with pytest.raises(AssertionError, match="have the form"):
        [agree(p, program_forms(Algebra(), p), 0) for p in programs]
