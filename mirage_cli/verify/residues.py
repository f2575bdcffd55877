"""Residues: values of `Field` as arrays over named axes, and the modular arithmetic under them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal  # elements of arrays: integers of several widths, or masks

import numpy as np
from numpy.typing import NDArray

MODULI = (2587865279, 1293932639, 646966319, 323483159)
"""The largest chain of four primes p = 2q + 1 with every prime ≡ -1 mod 8·3·5·7·11·13 whose products fit in int64
(found by descending search; `tests/verify/test_field.py` proves that they are primes). By quadratic reciprocity, the
numbers up to 16 and their products have roots in each field, so that the root of 49·x is 7 times that of x."""

LEVELS = len(MODULI)
FINITE, PLUS_INF, MINUS_INF, UNDEFINED = 0, 1, -1, 2
"""Flags of an element. A flagged element has the residues 0."""

Array = NDArray[Any]
SPENT, BORROWED, OWN = 0, 1, 2
"""What a residue of a value is. Another way to the same value may spend others, so that what is borrowed there is
another number: own residues are compared, and borrowed ones only where none is left."""
Valid = tuple[int, ...]
Levels = tuple[bool, ...]
ALL: Valid = (OWN,) * LEVELS
ALL_BORROWED: Valid = (BORROWED,) * LEVELS

_COLUMNS = [np.array(MODULI, dtype=np.int64).reshape((LEVELS,) + (1,) * n) for n in range(16)]
_INT64 = np.iinfo(np.int64)
FEW = 8
"""Elements of an array up to which Python takes powers faster, number by number, than numpy does."""
NO_GUESSES = 1 << 30
"""Where nothing was compared at random."""
DRAW = "#"
"""The axis of draws, which no program can name: in front, where there are several."""

GENERATOR = 4
"""A square other than 1, so it generates the subgroup of squares of each field, whose order is prime."""


@dataclass(frozen=True, slots=True)
class Residues:
    """An array over named axes.

    kind: "field" has data int64[level, *dims]; "int" (exact) and "bool" have data [*dims].
    valid: for each level, whether it means anything: SPENT, no; BORROWED, a random function of another level, as its
        own was spent; OWN.
    flags: int8[*dims], None where all are finite.
    taint: bool[level, *dims], elements that went through a root that does not exist; None for none. Along axes on which
        it does not depend, its size may be 1.
    sign: +1 or -1 for a constant of that sign, else 0 (unknown).
    large: an integer that may be beyond what an index reaches at these sizes, so that comparisons with it would be
        trivial.
    reach: of an index, the first and the last position along the whole of its axes; the first is 0 where the index
        begins behind it at all sizes.
    """

    dims: tuple[str, ...]
    kind: Literal["field", "int", "bool"]
    data: Array
    valid: Valid = ALL
    flags: Array | None = None
    taint: Array | None = None
    sign: int = 0
    large: bool = False
    reach: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape[1:] if self.kind == "field" else self.data.shape

    @property
    def whole_taint(self) -> Array:
        """The taint of each element."""
        return np.broadcast_to(False if self.taint is None else self.taint, (LEVELS, *self.shape))

    def __and__(self, other: Residues) -> Residues:
        return logical(np.logical_and, self, other)

    def reaches(self, other: Residues) -> bool:
        """Whether an index comes to lie on both sides of a number, or on it: what a comparison with another number
        gives is seen then. Of one position there is nothing else to be seen, and none where the index is behind the
        number at all sizes."""
        if self.reach is None or other.kind != "int" or other.dims:
            return False
        first, last = self.reach
        return first == last or first <= int(other.data) <= last

    def __or__(self, other: Residues) -> Residues:
        return logical(np.logical_or, self, other)

    def __xor__(self, other: Residues) -> Residues:
        return logical(np.logical_xor, self, other)

    def __invert__(self) -> Residues:
        return replace(self, data=~self.data)


def beside_number(x: Residues, y: Residues, number: int) -> Residues | None:
    """The other of two integers where one is this number: an index plus 0 reaches as far as the index."""
    pairs = ((x, y), (y, x)) if x.kind == y.kind == "int" else ()
    return next((b for a, b in pairs if not a.dims and a.taint is None and int(a.data) == number), None)


def columns(data: Array) -> Array:
    return _COLUMNS[data.ndim - 1]


def aligned(data: Array, dims: tuple[str, ...], target: tuple[str, ...], lead: int = 0) -> Array:
    """`data` with its named axes in the order of `target`, of size 1 where it lacks one; `lead` axes stay first."""
    if dims == target:
        return data
    order, extended = _alignment(dims, target, lead)
    data = data if order is None else data.transpose(order)
    return data if extended is None else data[extended]


@functools.lru_cache(maxsize=1 << 12)
def _alignment(
    dims: tuple[str, ...], target: tuple[str, ...], lead: int
) -> tuple[tuple[int, ...] | None, tuple[slice | None, ...] | None]:
    """The order of axes and the index that `aligned` needs, where it needs any."""
    present = tuple(d for d in target if d in dims)
    order = None if present == dims else (*range(lead), *(lead + dims.index(d) for d in present))
    extended = None if present == target else tuple(slice(None) if d in dims else None for d in target)
    return order, extended and ((slice(None),) * lead + extended)


@functools.lru_cache(maxsize=1 << 12)
def union(*dims: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(d for group in dims for d in group))


def axis_flags(x: Residues, dims: tuple[str, ...]) -> Array | None:
    return None if x.flags is None else aligned(x.flags, x.dims, dims)


def joint_taint(values: Iterable[Residues], dims: tuple[str, ...]) -> Array | None:
    total: Array | None = None
    for x in values:
        if x.taint is not None:
            part = aligned(x.taint, x.dims, dims, 1)
            total = part if total is None else total | part
    return total


def chosen_taint(mask: Residues, x: Residues, y: Residues, dims: tuple[str, ...]) -> Array | None:
    """Taint of what a mask chooses: its own, and that of what is chosen."""
    if x.taint is None and y.taint is None:
        return joint_taint((mask,), dims)
    of_x, of_y = (False if v.taint is None else aligned(v.taint, v.dims, dims, 1) for v in (x, y))
    taint = np.where(aligned(mask.data, mask.dims, dims), of_x, of_y)
    return taint if mask.taint is None else taint | aligned(mask.taint, mask.dims, dims, 1)


def whole(taint: Array | None) -> Array | None:
    """Taint of a result that mixes the levels."""
    return None if taint is None else np.broadcast_to(taint.any(axis=0), taint.shape)


def taint_over(taint: Array | None, at: tuple[int, ...]) -> Array | None:
    """Taint of a result that mixes the elements along the axes at these positions (of the dims)."""
    return None if taint is None else np.asarray(taint.any(axis=tuple(a + 1 for a in at)))


def logical(op: Callable[[Array, Array], Array], x: Residues, y: Residues) -> Residues:
    dims = union(x.dims, y.dims)
    data = op(aligned(x.data, x.dims, dims), aligned(y.data, y.dims, dims))
    return Residues(dims, "bool", data, both_valid(x, y), taint=joint_taint((x, y), dims))


def finish(
    dims: tuple[str, ...], data: Array, valid: Valid, flags: Array | None, taint: Array | None, sign: int = 0
) -> Residues:
    """A field value with clean flags: residues 0 where flagged, no flags where there are none."""
    shape = data.shape[1:]
    if flags is not None:
        flags = np.broadcast_to(flags, shape) if flags.shape != shape else flags
        flags = flags if flags.any() else None
    if flags is not None:
        data = np.where(flags == FINITE, data, 0)
    if taint is not None:
        taint = np.broadcast_to(taint, data.shape) if taint.shape != data.shape else taint
        taint = taint if taint.any() else None
    return Residues(dims, "field", data, valid, flags, taint, sign)


def joint_flags(x: Residues, dims: tuple[str, ...]) -> Array:
    """The flags of x with axes `dims`, of zeros where all are finite."""
    flags = np.zeros(x.shape, dtype=np.int8) if x.flags is None else x.flags
    return aligned(flags, x.dims, dims)


def as_field(x: Residues) -> Residues:
    """The same numbers as residues."""
    if x.kind == "field":
        return x
    data = np.remainder(x.data.astype(np.int64)[None], _COLUMNS[x.data.ndim])
    flags = (x.data == _INT64.max).astype(np.int8) - (x.data == _INT64.min).astype(np.int8) if x.kind == "int" else None
    return finish(x.dims, data, x.valid, flags, x.taint, x.sign)


def both_valid(*values: Residues) -> Valid:
    """What residues made of those of these values are, level by level."""
    first, *others = {x.valid for x in values}
    return tuple(map(min, first, *others)) if others else first


def best_levels(valid: Valid) -> list[int]:
    """The levels that are its own, if there are any, else the borrowed ones."""
    return [i for i, v in enumerate(valid) if v and v == max(valid)]


def power(x: Array, exponents: tuple[int, ...]) -> Array:
    """x ** exponents[level]; of many elements by squaring, four bits of the exponents at a time."""
    if x[0].size <= FEW:
        rows = zip(x.reshape(LEVELS, -1).tolist(), exponents, MODULI, strict=True)
        return np.array([[pow(v, e, p) for v in row] for row, e, p in rows], dtype=np.int64).reshape(x.shape)
    p = columns(x)
    places = range(max(-(-e.bit_length() // 4) for e in exponents))
    digits = np.array([[e >> 4 * i & 15 for e in exponents] for i in reversed(places)])
    table, square = np.stack([np.ones_like(x), x]), x
    while len(table) <= digits.max(initial=0):
        square = times(square, square, p)
        table = np.concatenate([table, times(table, square, p)])
    result = table[0]
    for place, chosen in enumerate(digits):
        factor = table[chosen, range(LEVELS)]
        if place:
            result = times(result, result, p)
            for _ in range(3):
                np.fmod(np.multiply(result, result, out=result), p, out=result)
        result = times(result, factor, p) if place else factor
    return result


def times(x: Array, y: Array, p: Array) -> Array:
    """The product of residues. `fmod` does not ask for signs, which they have none of."""
    product = x * y
    return np.fmod(product, p, out=product)


def no_square(x: Array, root: Array | None = None, c: Fraction | None = None) -> Array:
    """Elements of x that are no square, the field's negative numbers: -1 is none, and the product of two is one.

    root: x ** c for c = 1/2 or -1/2, where it is at hand: of a square it squares back, of another to the negative.
    """
    if root is None or c is None:
        return power(x, tuple((p - 1) // 2 for p in MODULI)) > 1
    p = columns(x)
    square = root * root % p
    return square != x if c > 0 else (square * x % p != 1) & (x != 0)


def seen_by_functions(x: Residues) -> Residues:
    """x with the first of its best residues, and that one's taint, in the place of each spent one."""
    x = as_field(x)
    if all(x.valid) or not any(x.valid):
        return x
    first = best_levels(x.valid)[0]
    at = [i if v else first for i, v in enumerate(x.valid)]
    return replace(x, data=x.data[at], taint=None if x.taint is None else x.taint[at])


def ordered(x: Residues) -> tuple[Array, Array]:
    """Integers in each level, and where x is known to be them, so that they may be compared as such.

    An index is known. Of residues -1, 0 and 1 are, as are the constants: what terms that cancel leave is not to differ
    from the number that it is. A large integer is not, wherever it comes to lie.
    """
    if x.kind != "field":
        data = np.broadcast_to(x.data.astype(np.int64), (LEVELS, *x.shape))
        return data, np.broadcast_to(not x.large, data.shape)
    data = seen_by_functions(x).data
    data = np.where(data == columns(data) - 1, -1, data)
    known = data <= 1
    return data, known if x.flags is None else known & (x.flags == FINITE)


def both_ordered(x: Residues, y: Residues, dims: tuple[str, ...]) -> tuple[Array, Array, Array]:
    """Two values as integers in each level, with axes `dims`, and where both are known to be them."""
    (a, this), (b, that) = ordered(x), ordered(y)
    known = aligned(this, x.dims, dims, 1) & aligned(that, y.dims, dims, 1)
    return aligned(a, x.dims, dims, 1), aligned(b, y.dims, dims, 1), known


def zero_in(x: Residues) -> Array:
    """Elements that are 0 in some valid level."""
    return (x.data[[i for i, v in enumerate(x.valid) if v]] == 0).any(axis=0)


def joint_shape(dims: tuple[str, ...], *values: Residues) -> tuple[int, ...]:
    """The shape that values broadcast to; an axis of draws may be of one draw in some of them."""
    return np.broadcast_shapes(*(aligned(np.empty(v.shape, dtype=bool), v.dims, dims).shape for v in values))


def mix(x: Array) -> Array:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014). `np.multiply` does not warn of overflow."""
    x = np.multiply(x ^ (x >> np.uint64(30)), np.uint64(0xBF58476D1CE4E5B9))
    x = np.multiply(x ^ (x >> np.uint64(27)), np.uint64(0x94D049BB133111EB))
    return x ^ (x >> np.uint64(31))


def powers(base: int, count: int, p: int) -> Array:
    """base ** 0, base ** 1, ... modulo p; count is a power of two."""
    result = np.ones(1, dtype=np.int64)
    while result.size < count:
        result = np.concatenate([result, result * pow(base, result.size, p) % p])
    return result


def same(x: Residues, y: Residues) -> tuple[Array, Array]:
    """Where two values with equal axes agree, and where the comparison is beyond doubt.

    Compares the best levels that both have, without those that are tainted on either side; an element with no level
    left is in doubt. Undefined elements equal only undefined ones.
    """
    if x.kind == y.kind != "field":
        agree = x.data == aligned(y.data, y.dims, x.dims)
        taint = joint_taint((x, y), x.dims)
        return np.asarray(agree), np.ones(x.shape, dtype=bool) if taint is None else np.asarray(~taint.all(axis=0))
    x, y = as_field(x), as_field(y)
    levels = best_levels(both_valid(x, y))
    equal = x.data[levels] == aligned(y.data, y.dims, x.dims, 1)[levels]
    sure = np.ones(x.shape, dtype=bool)
    taint = joint_taint((x, y), x.dims)
    if taint is not None:
        equal = equal | taint[levels]
        sure = ~taint[levels].all(axis=0)
    agree = equal.all(axis=0) if levels else np.zeros(x.shape, dtype=bool)
    if x.flags is not None or y.flags is not None:
        agree = agree & (joint_flags(x, x.dims) == joint_flags(y, x.dims))
    return np.asarray(agree), np.asarray(sure)


def compared_levels(x: Residues, y: Residues, where: Array) -> set[Levels]:
    """The sets of levels in which these elements of two values with equal axes are compared, by `same`."""
    if x.kind == y.kind != "field":
        return {(True,) * LEVELS} if where.any() else set()
    x, y = as_field(x), as_field(y)
    best = best_levels(both_valid(x, y))
    valid = np.isin(range(LEVELS), best).reshape((LEVELS,) + (1,) * where.ndim)
    taint = joint_taint((x, y), x.dims)
    kept = np.broadcast_to(valid if taint is None else valid & ~taint, (LEVELS, *where.shape))
    return {tuple(bool(v) for v in column) for column in np.unique(kept[:, where], axis=1).T}
