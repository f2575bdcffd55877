"""The finite-field interpreter: its primes, its homomorphisms, and every operator's `field` column."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from time import process_time

import numpy as np
import pytest

from mirage_cli.ir.ops import OPS
from mirage_cli.verify.contracted import AT_ONCE, MOST_SHIFTED, MOST_TERMS, contracted, multiplied
from mirage_cli.verify.draws import SPACE, at_once
from mirage_cli.verify.field import Field
from mirage_cli.verify.fieldsemantics import FieldSemantics
from mirage_cli.verify.logarithms import logarithms
from mirage_cli.verify.residues import (
    ALL_BORROWED,
    DRAW,
    GENERATOR,
    LEVELS,
    MINUS_INF,
    MODULI,
    OWN,
    SPENT,
    UNDEFINED,
    Residues,
    as_field,
    same,
)
from tests.programs import program

SIZES = {"a": 3, "b": 5, "c": 2}
HALF = Fraction(1, 2)


@pytest.fixture
def field() -> Field:
    return Field(7, SIZES)


def draw(field: Field, *dims: str) -> Residues:
    return field.draw(dims, "float")


def assert_same(x: Residues, y: Residues, *, sure: bool = True) -> None:
    agree, certain = same(x, y)
    assert agree.all()
    assert certain.any() or not sure
    assert any(v and w for v, w in zip(x.valid, y.valid, strict=True))


def compared(F: Field, name: str, x: Residues, y: Residues) -> Residues:
    return OPS[name].field(F, x, y)


def flag(x: Residues) -> int:
    assert x.flags is not None
    return int(x.flags.flat[0])


def test_moduli_are_a_cunningham_chain_of_primes() -> None:
    for p in MODULI:
        assert all(p % d for d in range(2, math.isqrt(p) + 1))
        assert p % 4 == 3
        assert p * p < 2**63
        assert all(pow(root * root, (p + 1) // 4, p) == root for root in range(1, 17))
    for p, q in pairwise(MODULI):
        assert p == 2 * q + 1


def test_omega_has_the_order_of_the_next_field(field: Field) -> None:
    for w, p, q in zip(field.omega, MODULI, MODULI[1:], strict=False):
        assert w != 1
        assert pow(w, q, p) == 1


def test_seed_decides_everything() -> None:
    a, b, c = Field(1, SIZES), Field(1, SIZES), Field(2, SIZES)
    assert a.omega == b.omega != c.omega
    x, y, z = (draw(f, "a", "b").data for f in (a, b, c))
    assert (x == y).all()
    assert not (x == z).any()


def test_exp_and_log_are_homomorphisms(field: Field) -> None:
    x, y = draw(field, "a", "b"), draw(field, "b")
    F = field
    assert_same(F.exp(F.add(x, y)), F.mul(F.exp(x), F.exp(y)))
    assert_same(F.log(F.mul(x, y)), F.add(F.log(x), F.log(y)))
    assert_same(F.log(F.exp(x)), x)
    assert_same(F.exp(F.log(F.mul(x, x))), F.mul(x, x))
    assert_same(F.exp(F.exp(F.add(x, y))), F.pow(F.exp(F.mul(F.exp(x), F.exp(y))), Fraction(1)))


def test_exp_spends_a_level_and_falls_back_to_a_random_function(field: Field) -> None:
    x = draw(field, "a")
    levels = []
    for _ in range(LEVELS):
        levels.append(x.valid.count(OWN))
        x = field.exp(x)
    assert levels == [4, 3, 2, 1]
    assert x.valid == ALL_BORROWED


def test_random_functions_keep_the_residues_apart(field: Field) -> None:
    """What is in doubt in one residue is in doubt there alone; a spent residue goes by the first that is left."""
    x = draw(field, "a", "b")
    root = field.pow(x, HALF)
    y = field.fn("f", root)
    assert root.taint is not None and y.taint is not None
    assert (y.taint == root.taint).all()
    other = replace(root, data=np.concatenate([root.data[:1] + 1, root.data[1:]]))
    changed = field.fn("f", other).data != y.data
    assert changed[0].all() and not changed[1:].any()
    spent = field.exp(x)
    assert (field.fn("f", replace(spent, data=np.where([[[v]] for v in spent.valid], spent.data, 0))).data
            == field.fn("f", spent).data).all()  # fmt: skip


@pytest.mark.parametrize("name", [n for n, row in OPS.items() if row.known == "fn" and len(row.domain) == 1])
def test_functions_have_their_value_at_zero(field: Field, name: str) -> None:
    """A loop that ends where a mask leaves 0 counts on what functions are there."""
    x = draw(field, "a", "b")
    nothing = field.sub(x, x)
    got = OPS[name].field(field, nothing)
    want = as_field(field.full(Fraction(float(OPS[name].ref(0.0))), ("a", "b"), nothing.shape, "float"))
    assert_same(as_field(got), want)
    assert not same(OPS[name].field(field, x), want)[0].any()


@pytest.mark.parametrize("name", [n for n, row in OPS.items() if row.integers])
def test_functions_of_bits_are_0_where_their_padding_is(field: Field, name: str) -> None:
    row, x = OPS[name], draw(field, "a", "b")
    nothing = field.sub(x, x)
    zero = as_field(field.full(Fraction(0), ("a", "b"), nothing.shape, "float"))
    both, first, second = (as_field(row.field(field, *xs)) for xs in ((nothing, nothing), (nothing, x), (x, nothing)))
    assert_same(both, zero)
    for found, exact in ((first, row.ref(0, 5)), (second, row.ref(5, 0))):
        assert same(found, zero)[0].all() == (exact == 0)


def test_what_is_borrowed_from_another_residue_is_not_compared(field: Field) -> None:
    """A sum of exponentials over itself is 1, and has spent a residue that 1 has not."""
    x = field.sum(field.exp(draw(field, "a", "b")), ("a",))
    one = field.div(x, x)
    exact = as_field(field.full(Fraction(1), ("b",), one.shape, "float"))
    halves = [field.div(c, field.add(c, c)) for c in (one, exact)]
    functions = [field.fn("f", h) for h in halves]
    assert (functions[0].data != functions[1].data).any(axis=1).tolist() == [False, False, False, True]
    assert_same(*functions)
    assert_same(*(field.exp(f) for f in functions))
    wrong = field.fn("f", field.add(one, one))
    assert not same(functions[0], wrong)[0].any()
    mask = compared(field, "lt", field.log(x), one)
    assert field.where(mask, x, one).valid == (*ALL_BORROWED[:-1], SPENT)


def test_discrete_logarithms() -> None:
    for level, (p, q) in enumerate(pairwise(MODULI)):
        exponents = [0, 1, q - 1, q // 2, 123456789]
        squares = np.array([pow(GENERATOR, e, p) for e in exponents])
        assert logarithms(level, squares).tolist() == exponents
        assert logarithms(level, p - squares).tolist() == exponents
        few = np.array([*range(1, 300), *range(math.isqrt(p) - 300, math.isqrt(p) + 300), *range(p - 300, p)])
        for y in few, np.random.default_rng(level).integers(1, p, size=2000):
            raised = [pow(GENERATOR, e, p) for e in logarithms(level, y).tolist()]
            assert all(x in (z, p - z) for x, z in zip(raised, y.tolist(), strict=True))


def test_log_of_a_negated_argument_is_in_doubt(field: Field) -> None:
    x = draw(field, "a", "b")
    agree, sure = same(field.log(x), field.log(field.mul(x, field.const(Fraction(-1)))))
    assert agree.all()
    assert not sure.any()


def test_a_tile_of_a_mask_or_an_integer_has_its_own_doubts() -> None:
    semantics = FieldSemantics(7, SIZES)
    F = semantics.field
    mask = compared(F, "lt", F.log(draw(F, "b")), draw(F, "a"))
    both = mask & compared(F, "lt", draw(F, "c"), draw(F))
    for x in (mask, F.where(both, F.const(Fraction(1)), F.const(Fraction(0)))):
        assert x.taint is not None
        assert 0 < x.whole_taint[0].sum() < x.whole_taint[0].size
        tile = semantics.tile(x, {"b": (1, 3)})
        assert np.array_equal(tile.whole_taint, x.whole_taint.take(range(1, 3), 1 + x.dims.index("b")))


@pytest.mark.parametrize("c", [HALF, -HALF, Fraction(3, 2), Fraction(1, 4), Fraction(1, 3), Fraction(2), Fraction(-3)])
def test_powers_are_multiplicative(field: Field, c: Fraction) -> None:
    x, y = draw(field, "a", "b"), draw(field, "b")
    assert_same(field.pow(field.mul(x, y), c), field.mul(field.pow(x, c), field.pow(y, c)))


def test_square_roots_square_back(field: Field) -> None:
    x = draw(field, "a", "b")
    root = field.pow(x, HALF)
    assert_same(field.mul(root, root), x)
    assert root.taint is not None
    assert 0 < root.taint.mean() < 1
    assert_same(field.mul(field.pow(x, -HALF), root), field.pow(x, Fraction(0)))


def test_fractions_and_integers_mix_exactly(field: Field) -> None:
    F = field
    third = F.const(Fraction(1, 3))
    assert_same(F.mul(third, F.const(Fraction(3))), as_field(F.const(Fraction(1))))
    assert F.add(F.index("a"), F.const(Fraction(2))).data.tolist() == [2, 3, 4]
    assert F.div(F.index("a"), F.index("a")).flags is not None


def test_infinity(field: Field) -> None:
    F = field
    x, low = draw(field, "a"), F.const(-math.inf)
    assert F.exp(low).data.tolist() == [0] * LEVELS
    assert_same(F.extremum(x, low, largest=True), x)
    assert flag(F.add(x, low)) == MINUS_INF
    assert flag(F.sub(low, low)) == UNDEFINED
    assert flag(F.mul(low, F.const(Fraction(0)))) == UNDEFINED
    assert flag(F.pow(F.const(Fraction(0)), Fraction(-1))) == UNDEFINED
    assert F.finite(low).flags is None
    assert F.div(x, low).flags is None
    assert flag(F.mul(low, F.const(HALF))) == MINUS_INF


def test_maximum_of_parts_is_the_maximum(field: Field) -> None:
    F = field
    x = draw(field, "a", "b")
    parts = [Residues(x.dims, "field", x.data[..., i:j]) for i, j in ((0, 2), (2, 5))]
    whole = F.reduce_extremum(x, ("b",), largest=True)
    assert_same(F.join(*(F.reduce_extremum(p, ("b",), largest=True) for p in parts), largest=True), whole)
    empty = F.full(-math.inf, ("a",), (3,), "float")
    assert_same(F.join(empty, whole, largest=True), whole)


@pytest.mark.parametrize("largest", [True, False])
def test_an_extremum_of_extrema_is_that_of_all(field: Field, largest: bool) -> None:
    F = field
    x = draw(F, "a", "b")
    parts = [Residues(("a",), "field", x.data[..., i]) for i in range(5)]
    found = parts[0]
    for part in parts[1:]:
        found = F.extremum(part, found, largest=largest)
    assert_same(found, F.reduce_extremum(x, ("b",), largest=largest))
    agree, _ = same(found, F.reduce_extremum(x, ("b",), largest=not largest))
    assert not agree.any()


@pytest.mark.parametrize("largest", [True, False])
def test_an_extremum_is_linear_in_nothing(field: Field, largest: bool) -> None:
    """Sums, products and powers of extrema of other elements are other numbers."""
    F, one = field, field.const(Fraction(1))
    x, y, z = (draw(F, "a", "b") for _ in range(3))

    def top(*values: Residues) -> Residues:
        return functools.reduce(lambda a, b: F.extremum(a, b, largest=largest), values)

    def step(x: Residues, y: Residues) -> Residues:
        return F.sub(top(F.add(x, one), y), top(x, y))

    different = [
        (step(x, y), step(z, y)),  # they would not depend on x
        (top(F.mul(x, z), F.mul(y, z)), F.mul(top(x, y), z)),
        (top(F.add(x, z), F.add(y, z)), F.add(top(x, y), z)),
        (F.add(top(x, z), top(y, z)), F.add(top(F.add(x, y), z), z)),
        (F.mul(top(x, z), top(y, z)), F.mul(top(x, y), top(z, z))),
        (F.pow(top(x, y), Fraction(3)), top(F.pow(x, Fraction(3)), F.pow(y, Fraction(3)))),
        (top(x, x), x),
    ]
    for a, b in different:
        agree, _ = same(a, b)
        assert not agree.any()


def test_a_maximum_over_a_long_axis_takes_little_time() -> None:
    """Tests along axes of which something far is read have dozens of them."""
    F = Field(7, {"b": (1 << 20) + 1})
    x = F.draw(("b",), "float")
    start = process_time()
    found = F.reduce_extremum(x, ("b",), largest=True)
    assert process_time() - start < 0.5
    parts = [Residues(x.dims, "field", x.data[..., at]) for at in (slice(None, 1000), slice(1000, None))]
    assert_same(F.join(*(F.reduce_extremum(p, ("b",), largest=True) for p in parts), largest=True), found)


@pytest.mark.parametrize("largest", [True, False])
def test_every_integer_has_its_say_in_a_maximum(field: Field, largest: bool) -> None:
    """By the order of integers, a place that holds would hide all others in its row. Of parts it is as of all."""
    F = field
    x = Residues(("a", "b"), "int", np.array([[1, 0, 1, 1, 0], [5, 5, 2, 5, 5], [0, 0, 0, 0, 0]]))
    whole = F.reduce_extremum(x, ("b",), largest=largest)
    for b in range(5):
        changed = x.data.copy()
        changed[:, b] += 3
        agree, _ = same(whole, F.reduce_extremum(replace(x, data=changed), ("b",), largest=largest))
        assert not agree.any()
    parts = (replace(x, data=part) for part in (x.data[:, :2], x.data[:, 2:]))
    assert_same(F.join(*(F.reduce_extremum(p, ("b",), largest=largest) for p in parts), largest=largest), whole)
    nothing = F.full(-math.inf if largest else math.inf, ("a",), (3,), "int")
    assert_same(F.join(nothing, whole, largest=largest), whole)


def test_what_is_known_to_be_an_integer_is_its_own(field: Field) -> None:
    F = field
    for number in (-1, 0, 1):
        known = F.const(Fraction(number))
        assert F.integer(known) is known
        assert_same(F.integer(as_field(known)), known)
    x = draw(F, "a")
    assert not same(F.integer(x), x)[0].any()
    assert_same(F.integer(x), F.integer(F.add(x, F.const(Fraction(0)))))


def test_comparisons_are_consistent(field: Field) -> None:
    F = field
    x, y = draw(field, "a", "b"), draw(field, "b")
    lt, gt = compared(F, "lt", x, y).data, compared(F, "gt", y, x).data
    assert (lt == gt).all()
    assert (lt != compared(F, "ge", x, y).data).all()
    assert compared(F, "eq", x, x).data.all()
    assert 0 < lt.mean() < 1


def test_large_integers_are_compared_at_random() -> None:
    F = Field(3, {"a": 40})
    low = compared(F, "lt", F.index("a"), F.const(Fraction(1000))).data
    assert 0 < low.mean() < 1
    assert not compared(F, "lt", F.index("a"), F.const(Fraction(0))).data.any()


@pytest.mark.parametrize("c", [1, -1])
def test_an_integer_divided_by_a_unit_is_ordered_as_it_is(c: int) -> None:
    """The algebra does not write such a division down."""
    F = Field(3, {"a": 5})
    number = F.div(F.index("a"), F.const(Fraction(c)))
    assert number.kind == "int" and number.data.tolist() == [c * i for i in range(5)]
    assert_same(
        *(
            F.extremum(x, F.const(Fraction(1)), largest=True)
            for x in (number, F.mul(F.index("a"), F.const(Fraction(c))))
        )
    )
    assert F.div(F.index("a"), F.const(Fraction(2))).kind == "field"


@pytest.mark.parametrize("c", [-1, 0, 1])
def test_what_cancelling_terms_leave_is_ordered_like_the_number(field: Field, c: int) -> None:
    F = field
    x = draw(field)
    number = F.const(Fraction(c))
    left = F.add(F.sub(x, x), number)
    assert left.kind == "field"
    for other in (F.index("a"), number, F.const(Fraction(0)), F.const(Fraction(33)), draw(field, "b"), left):
        for name in ("lt", "le", "gt", "ge", "eq", "ne"):
            assert (compared(F, name, left, other).data == compared(F, name, number, other).data).all()
            assert (compared(F, name, other, left).data == compared(F, name, other, number).data).all()
        for largest in (True, False):
            assert_same(F.extremum(left, other, largest=largest), F.extremum(number, other, largest=largest))
    assert F.guesses and F.guesses.made


def test_comparisons_of_numbers_alone_guess_nothing(field: Field) -> None:
    F = field
    x = draw(field, "a", "b")
    zero = F.sub(x, x)
    assert compared(F, "lt", zero, F.const(Fraction(1))).data.all()
    assert not compared(F, "ne", zero, zero).data.any()
    assert (compared(F, "le", F.index("a"), zero).data == (np.arange(3)[:, None] <= 0)).all()
    assert F.guesses and not F.guesses.made
    mask = compared(F, "eq", F.index("a"), F.const(Fraction(0)))
    half = F.where(mask, zero, x)  # zero where the mask holds: only there the order is known
    less = compared(F, "lt", half, F.const(Fraction(1)))
    assert less.data[0].all()
    assert F.guesses and F.guesses.made == [[2 * SIZES["b"]]]


def test_each_draw_has_random_functions_of_its_own() -> None:
    """What differs by draw alone is the function: each is the one that the draw has alone."""
    several, alone = Field(7, SIZES), Field(7, SIZES)
    several.draws = np.array([3, 4], dtype=np.uint64)
    beyond = Fraction(33)
    for make in (
        lambda F: F.fn("tanh", F.index("b")),
        lambda F: F.symmetric("times", F.index("b"), F.const(beyond), either=True),
        lambda F: F.mask("isnan", F.index("b")),
        lambda F: compared(F, "lt", F.index("b"), F.const(beyond)),
        lambda F: compared(F, "eq", F.index("b"), F.const(beyond)),
    ):
        both = make(several)
        assert both.dims == (DRAW, "b")
        for n, draw in enumerate((3, 4)):
            alone.draws = np.array([draw], dtype=np.uint64)
            assert (both.data.take(n, axis=both.data.ndim - 2) == make(alone).data).all()
    values = several.fn("tanh", several.index("b")).data
    assert (values[:, 0] != values[:, 1]).all()
    assert several.guesses and several.guesses.made == [[SIZES["b"]] * 2] * 3


@pytest.mark.parametrize("name", OPS)
def test_every_field_column_runs(field: Field, name: str) -> None:
    row, F = OPS[name], field
    x, y = draw(field, "a", "b"), draw(field, "b", "a")
    mask = compared(F, "lt", F.index("a"), F.const(Fraction(1)))
    if row.kind == "leaf":
        assert row.field(F, "b").kind == "int"
        return
    args = tuple(
        mask if i in row.masks else Fraction(3) if i in row.numbers else (x, y)[i % 2] for i in range(row.arity)
    )
    axes = (("b",),) if row.kind in ("reduction", "contraction") else ()
    result = row.field(F, *args, *axes)
    again = row.field(F, *args, *axes)
    assert set(result.dims) == ({"a"} if axes or len(row.masks) == row.arity else {"a", "b"})
    assert (result.data == again.data).all()
    if row.kind == "elementwise" and result.kind == "field":
        one = tuple(
            a if not isinstance(a, Residues) or "b" not in a.dims else Residues(a.dims, a.kind, _first_b(a))
            for a in args
        )
        assert_same(row.field(F, *one), Residues(result.dims, "field", _first_b(result), result.valid), sure=False)


def _first_b(x: Residues) -> np.ndarray:
    return np.take(x.data, [0], axis=x.dims.index("b") + 1)


CONTRACTIONS = {
    "matrices": ("mk", "kn", "k"),
    "batches": ("bmk", "nbk", "k"),
    "two axes": ("mkl", "lnk", "lk"),
    "outer product": ("bmk", "bn", ""),
    "draws beside one draw": ("#mk", "#kn", "k"),
}


@pytest.mark.parametrize("at_once", [AT_ONCE, 50, 700])
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_a_product_of_matrices_is_the_sum_of_products(monkeypatch: pytest.MonkeyPatch, name: str, at_once: int) -> None:
    """With the largest residues that there are among random ones, and with elements in doubt; a few rows at a time, and
    a few matrices, the last of them fewer."""
    monkeypatch.setattr("mirage_cli.verify.contracted.AT_ONCE", at_once)
    lengths, rng = {"b": 6, "m": 17, "n": 19, "k": 40, "l": 3, "#": 4}, np.random.default_rng(0)
    F = Field(7, lengths)

    def value(dims: str, draws: int) -> Residues:
        shape = tuple(draws if d == "#" else lengths[d] for d in dims)
        data = np.stack([rng.integers(p - 2 if rng.random() < HALF else 0, p, shape) for p in MODULI])
        return Residues(tuple(dims), "field", data, taint=rng.random(data.shape) < 1 / 64)

    left, right, axes = CONTRACTIONS[name]
    x, y = value(left, 4), value(right, 1)
    found, expected = F.dot(x, y, tuple(axes)), F.sum(F.mul(x, y), tuple(axes))
    assert contracted(x, y, tuple(axes)) is not None, "what is tested is no product of matrices"
    assert found.dims == expected.dims and found.valid == expected.valid
    assert found.taint is not None and expected.taint is not None
    assert (found.data == expected.data).all() and (found.taint == expected.taint).all()


@pytest.mark.parametrize("terms", [MOST_SHIFTED, MOST_SHIFTED + 1, 1 << 17])
def test_a_product_of_matrices_adds_exactly_at_the_largest_residues(terms: int) -> None:
    """Sums of products of parts that are multiplied by 2^16 stay below 2^63, whatever the parts."""
    largest = np.array(MODULI).reshape(-1, 1, 1) - 1
    assert terms <= MOST_TERMS
    assert MOST_SHIFTED * (0xFFFF**2 << 16) + 2 * MOST_SHIFTED * 0xFFFF**2 < 1 << 63
    x, y = (np.broadcast_to(largest, (LEVELS, *shape)) for shape in ((3, terms), (terms, 2)))
    expected = [[[terms % p] * 2] * 3 for p in MODULI]  # (-1)² as often
    assert multiplied(x, y).tolist() == expected


def test_arrays_that_are_not_made_do_not_count_as_held() -> None:
    """A dot of matrices holds its operands and its result; one of vectors, their products."""
    sizes = "m=64 n=64 k=64"
    matrices = program(sizes, "X[m,k] Y[k,n]", "O = dot(X, Y; k)")
    vectors = program(sizes, "X[m,n,k] Y[n,k]", "O = dot(X, Y; k)")
    assert at_once(matrices) == SPACE // 64**2
    assert at_once(vectors) == SPACE // 64**3
