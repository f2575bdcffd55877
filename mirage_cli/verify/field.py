"""Field: programs in modular arithmetic, so that "equal" is decided exactly, and a wrong plan passes by luck alone.

A value is four residues, one for each prime of a Cunningham chain (every prime is twice the next plus one). In such a
chain the exponents of one field are the elements of the next, so exp(x) = ω^x maps residue i+1 to residue i, and log
back, as homomorphisms: exp(a + b) = exp(a) exp(b) holds exactly. Each exp spends one residue; what spends all four
becomes a random function. This generalises the pair of fields of Mirage (OSDI '25, section 5) to nested exponentials.

    + - × ÷, integer powers   exact in each residue
    roots                     x ** ((p + 1) / 4) as p ≡ 3 mod 4: multiplicative; a root wherever x is a square, and the
                              elements where it is not are marked as tainted
    log                       of non-squares (the field's negative numbers) tainted likewise
    max, min, maximum, relu   one associative, commutative operation x ∘ y = φ⁻¹(φ(x) φ(y)), φ(x) = (x + c)³ + d with
                              random c and d, so that maxima of tiles agree with the maximum, and every element has its
                              say; exact between two integers near the sizes and -1, 0, 1
    comparisons               exact between integers near the sizes and -1, 0, 1; else random functions of both sides
    sigmoid, gelu, ...        random functions of their arguments
    infinity, 0 / 0           flags beside the residues

Everything is drawn from the seed: two `Field`s with one seed agree.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any  # functions of numpy, which are not typed

import numpy as np
from numpy.typing import NDArray

from mirage_cli.ir.access import Index, Tables
from mirage_cli.ir.access_text import parse_index
from mirage_cli.ir.drawn import PADDED
from mirage_cli.ir.op import Number, Type
from mirage_cli.verify.contracted import contracted, taint_of
from mirage_cli.verify.guesses import Guesses
from mirage_cli.verify.logarithms import logarithms
from mirage_cli.verify.residues import (
    ALL,
    ALL_BORROWED,
    BORROWED,
    DRAW,
    FINITE,
    GENERATOR,
    LEVELS,
    MINUS_INF,
    MODULI,
    OWN,
    PLUS_INF,
    SPENT,
    UNDEFINED,
    Array,
    Residues,
    aligned,
    as_field,
    axis_flags,
    beside_number,
    both_ordered,
    both_valid,
    chosen_taint,
    columns,
    finish,
    joint_flags,
    joint_shape,
    joint_taint,
    mix,
    no_square,
    ordered,
    power,
    powers,
    seen_by_functions,
    taint_over,
    times,
    union,
    whole,
    zero_in,
)

ODD = np.uint64(1)
LEVEL_KEYS = np.array([(i + 1) * 0x9E3779B97F4A7C15 % (1 << 64) for i in range(LEVELS)], dtype=np.uint64)
"""What tells hashes of different levels apart: multiples of splitmix64's golden gamma."""
DRAW_KEY = np.uint64(0xD1B54A32D192ED03)
"""What tells hashes of different draws apart."""
UNSIGNED_MODULI = np.array(MODULI, dtype=np.uint64)
CUBE_ROOTS = tuple(pow(3, -1, p - 1) for p in MODULI)
"""The exponents of cube roots, of which every element has one: p − 1 is twice a prime."""
_BYTE_PLACES = np.array([0, 8, 16, 24]).reshape(1, 4, 1)


def placed(
    i: Index, window: Mapping[str, tuple[int, int]], sizes: Mapping[str, int], tables: Tables
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The axes of an index, those that tables have in front of their own first, and its positions along them."""
    front = {d: (0, n) for x in i.lookups for d, n in zip(*_front(tables[x.table]), strict=True)}
    dims = (*front, *i.dims)
    ranges = {d: window.get(d, (0, sizes[d])) for d in i.dims}
    return dims, i.positions(dims, {**front, **ranges}, tables)


def _front(table: tuple[tuple[str, ...], Array]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The axes in front of a table's own, and their sizes."""
    front, data = table
    return front, data.shape[: len(front)]


def _zeros(x: Residues, dims: tuple[str, ...]) -> Array:
    """In which residues a value is 0, along these axes."""
    return aligned(x.data == 0 if x.flags is None else (x.data == 0) & (x.flags == FINITE), x.dims, dims, 1)


def _flags_of_sum(f: Array, g: Array) -> Array:
    """x + inf is inf, and inf - inf is undefined."""
    return np.where(f == FINITE, g, np.where((g == FINITE) | (g == f), f, UNDEFINED)).astype(np.int8)


def _flags_of_product(f: Array, s: Array, g: Array, t: Array) -> Array:
    """x * inf is inf with the sign of x, and 0 * inf is undefined. f, g: the flags of the factors. s, t: their signs,
    0 where they are 0 or unknown."""
    infinite = np.where(s * t == 0, UNDEFINED, s * t)
    flags = np.where((f == FINITE) & (g == FINITE), FINITE, infinite)
    return np.where((f == UNDEFINED) | (g == UNDEFINED), UNDEFINED, flags).astype(np.int8)


def _flags_of_power(f: Array, zero: Array, c: Fraction) -> Array:
    """inf ** c is inf above c = 0, with the sign of odd powers, and 0 below it. 0 ** c is undefined below c = 0, and so
    is a root of -inf. f: the flags of the base. zero: where it is 0."""
    if c < 0:
        flags = np.where(zero | (f == UNDEFINED), UNDEFINED, FINITE)
    elif c > 0:
        flags = np.where(f == MINUS_INF, MINUS_INF if c.numerator % 2 and c.denominator == 1 else PLUS_INF, f)
    else:
        flags = np.where(f == UNDEFINED, UNDEFINED, FINITE)
    if c.denominator != 1:
        flags = np.where(f == MINUS_INF, UNDEFINED, flags)
    return flags.astype(np.int8)


def _product(factors: Array, kept: int) -> Array:
    """Residues multiplied along all axes behind so many."""
    factors = factors.reshape(*factors.shape[:kept], -1)
    p = columns(factors)
    while (count := factors.shape[-1]) > 1:  # halves of a long axis at once
        half = count // 2
        both = factors[..., :half] * factors[..., half : 2 * half] % p
        factors = np.concatenate([both, factors[..., 2 * half :]], axis=-1) if count % 2 else both
    return factors[..., 0]


NEGATIVE = 4
"""Of so many integers of an input that nothing bounds, one is negative, about."""


class Field:
    """The interpreter `F` that the `field` column of OPS speaks to.

    sizes: of every axis, for `index` and `size`. window: where a tile lies along its axes, for `index`. tables: what
        it looks up. All are set by whoever runs a kernel.
    draws: the numbers of the draws along their axis, of which each has random functions of its own; or of the only one.
    guesses: the random answers of comparisons; None where nobody asks for them.
    """

    def __init__(self, seed: int, sizes: Mapping[str, int]) -> None:
        self.seed = seed
        self.sizes: Mapping[str, int] = dict(sizes)
        self.window: Mapping[str, tuple[int, int]] = {}
        self.tables: Tables = {}
        self.draws: Array = np.zeros(1, dtype=np.uint64)
        rng = np.random.default_rng(seed)
        self._rng = rng
        self._turns = tuple(int(rng.integers(1, q)) for q in MODULI[1:])
        self.omega = tuple(pow(GENERATOR, r, p) for r, p in zip(self._turns, MODULI[:-1], strict=True))
        self._shifts = {largest: self._drawn(rng) for largest in (True, False)}
        self._lifts = {largest: self._drawn(np.random.default_rng([seed, largest])) for largest in (True, False)}
        self.guesses: Guesses | None = Guesses()
        self._exp_tables: Array | None = None
        self._names: dict[str, int] = {}
        self._constants: dict[tuple[int, int] | float, Residues] = {}  # which equations of many program instances share

    @staticmethod
    def _drawn(rng: np.random.Generator) -> Array:
        """A residue of each level, none of which is 0."""
        return np.array([rng.integers(1, p) for p in MODULI])

    # -- leaves

    def draw(
        self,
        dims: tuple[str, ...],
        type: Type,
        sizes: Mapping[str, int] | None = None,
        below: int | None = None,
        distinct: bool = False,
        divisors: Sequence[int] = (),
        edges: Sequence[int] = (),
        padded: bool = False,
    ) -> Residues:
        """A random input: uniform residues, or integers, where nothing says what they are below up to the largest size,
        some of them negative.
        sizes: where dims has further axes. distinct: whether no two of the integers are equal, along all axes but the
        first. divisors: every other integer is one below a multiple of these, where a quotient changes. edges: every
        other is one of these, where a comparison changes. padded: whether some of them are -1 instead."""
        shape = tuple((sizes or self.sizes)[d] for d in dims)
        if type == "int":
            most = max(self.sizes.values()) + 1 if below is None else below
            x = self._integers(shape, most, distinct, divisors, edges)
            if below is None:
                x = np.where(self._rng.integers(0, NEGATIVE, size=shape) == 0, -x, x)
            if padded:
                x = np.where(self._rng.integers(0, PADDED, size=shape) == 0, -1, x)
            return Residues(dims, "int", x)
        if type == "bool":
            return Residues(dims, "bool", self._rng.integers(0, 2, size=shape, dtype=np.bool_))
        data = np.stack([self._rng.integers(0, p, size=shape, dtype=np.int64) for p in MODULI])
        return Residues(dims, "field", data)

    def _integers(
        self, shape: tuple[int, ...], below: int, distinct: bool, divisors: Sequence[int], edges: Sequence[int]
    ) -> NDArray[np.int64]:
        x = self._rng.integers(0, below, size=shape)
        if divisors:
            last = self._rng.choice(divisors, size=shape)
            last = np.minimum(last * self._rng.integers(1, below // last + 2), below) - 1
            x = np.where(self._rng.integers(0, 2, size=shape) > 0, last, x)
        if edges:
            x = np.where(self._rng.integers(0, 2, size=shape) > 0, self._rng.choice(edges, size=shape), x)
        if not distinct:
            return x
        return np.stack([self._without_repeats(row, below) for row in x.reshape(shape[0], -1)]).reshape(shape)

    def _without_repeats(self, row: NDArray[np.int64], below: int) -> NDArray[np.int64]:
        """The integers, with others in the place of what is there already."""
        many = np.concatenate([row, self._rng.permutation(below)])
        _, first = np.unique(many, return_index=True)
        return many[np.sort(first)[: len(row)]]

    def const(self, c: Number) -> Residues:
        key = (c.numerator, c.denominator) if isinstance(c, Fraction) else c
        if key not in self._constants:
            self._constants[key] = self._const(c)
        return self._constants[key]

    def _const(self, c: Number) -> Residues:
        sign = (c > 0) - (c < 0)
        if not isinstance(c, Fraction):
            flags = np.array(PLUS_INF if sign > 0 else MINUS_INF, dtype=np.int8)
            return Residues((), "field", np.zeros(LEVELS, dtype=np.int64), ALL, flags, None, sign)
        if c.denominator == 1 and abs(c) < 1 << 31:
            return Residues((), "int", np.array(int(c), dtype=np.int64), sign=sign, large=abs(c) > 1)
        data = np.array([c.numerator * pow(c.denominator, -1, p) % p for p in MODULI], dtype=np.int64)
        return Residues((), "field", data, sign=sign)

    def full(self, c: Number, dims: tuple[str, ...], shape: tuple[int, ...], type: Type) -> Residues:
        """A constant array. Infinity as an integer is the largest or smallest int64."""
        if type == "int" and not isinstance(c, Fraction):
            info = np.iinfo(np.int64)
            return Residues(dims, "int", np.full(shape, info.max if c > 0 else info.min, dtype=np.int64))
        x = self.const(c)
        if type == "int":
            return Residues(dims, "int", np.full(shape, x.data))
        x = as_field(x)
        flags = None if x.flags is None else np.full(shape, x.flags)
        data = np.broadcast_to(x.data.reshape((LEVELS,) + (1,) * len(shape)), (LEVELS, *shape))
        return Residues(dims, "field", data, flags=flags)

    def index(self, axis: str) -> Residues:
        i = parse_index(axis)
        dims, positions = placed(i, self.window, self.sizes, self.tables)
        first, last = i.bounds(self.sizes)
        ascends = i.affine and all(c > 0 for _, c in i.terms)  # it begins at this position, whatever its axes' sizes
        return Residues(dims, "int", positions, reach=(min(0, first) if ascends and first < last else first, last))

    def size(self, axis: str) -> Residues:
        return Residues((), "int", np.array(self.sizes[axis], dtype=np.int64), sign=1)

    # -- arithmetic

    def add(self, x: Residues, y: Residues) -> Residues:
        return self._linear(np.add, x, y) if (same := beside_number(x, y, 0)) is None else same

    def sub(self, x: Residues, y: Residues) -> Residues:
        return self._linear(np.subtract, x, y)

    def _linear(self, op: Any, x: Residues, y: Residues) -> Residues:
        dims = union(x.dims, y.dims)
        if x.kind == y.kind == "int":
            data = op(aligned(x.data, x.dims, dims), aligned(y.data, y.dims, dims))
            return Residues(dims, "int", data, taint=joint_taint((x, y), dims), large=x.large or y.large)
        x, y = as_field(x), as_field(y)
        valid = both_valid(x, y)
        if not any(valid):
            return self._borrowed(op.__name__, x, y)
        data = op(aligned(x.data, x.dims, dims, 1), aligned(y.data, y.dims, dims, 1))
        data = np.remainder(data, columns(data))
        flags = None
        if x.flags is not None or y.flags is not None:
            f = axis_flags(x, dims) if x.flags is not None else np.zeros((1,) * len(dims), np.int8)
            g = axis_flags(y, dims) if y.flags is not None else np.zeros((1,) * len(dims), np.int8)
            assert f is not None and g is not None
            if op is np.subtract:
                g = np.where(g == UNDEFINED, g, -g)
            flags = _flags_of_sum(f, g)
        return finish(dims, data, valid, flags, joint_taint((x, y), dims))

    def mul(self, x: Residues, y: Residues) -> Residues:
        if (same := beside_number(x, y, 1)) is not None:
            return same
        dims = union(x.dims, y.dims)
        sign = x.sign * y.sign
        if x.kind == y.kind == "int":
            data = aligned(x.data, x.dims, dims) * aligned(y.data, y.dims, dims)
            return Residues(dims, "int", data, taint=joint_taint((x, y), dims), sign=sign, large=x.large or y.large)
        signs = (self._signs(x, dims), self._signs(y, dims)) if x.flags is not None or y.flags is not None else None
        x, y = as_field(x), as_field(y)
        valid = both_valid(x, y)
        if not any(valid):
            return self._borrowed("mul", x, y)
        a, b = aligned(x.data, x.dims, dims, 1), aligned(y.data, y.dims, dims, 1)
        data = times(a, b, columns(a))
        flags = None if signs is None else _flags_of_product(*signs[0], *signs[1])
        return finish(dims, data, valid, flags, joint_taint((x, y), dims), sign)

    def _signs(self, x: Residues, dims: tuple[str, ...]) -> tuple[Array, Array]:
        """The flags and the signs of x; the sign is 0 where it is 0 or unknown."""
        flags = axis_flags(x, dims)
        if x.kind != "field":
            signs = aligned(np.sign(x.data.astype(np.int8 if x.kind == "bool" else np.int64)), x.dims, dims)
            return np.zeros_like(signs, dtype=np.int8), signs
        finite = np.full(aligned(x.data[0], x.dims, dims).shape, x.sign)
        if flags is None:
            return np.zeros_like(finite, dtype=np.int8), finite
        return flags, np.where(flags == FINITE, finite, np.where(flags == UNDEFINED, 0, flags))

    def div(self, x: Residues, y: Residues) -> Residues:
        """x / y. An integer divided by 1 or -1 stays one, which the algebra does not write down."""
        unit = x.kind == y.kind == "int" and not y.dims and abs(y.data) == 1
        return self.mul(x, y if unit else self.pow(y, Fraction(-1)))

    def pow(self, x: Residues, c: Number) -> Residues:
        """x ** c. Roots of non-squares give a root of -x, and taint the element. Infinite c: a random function."""
        x = as_field(x)
        if not isinstance(c, Fraction):
            return self.fn(f"pow {c}", x)
        twos = (c.denominator & -c.denominator).bit_length() - 1
        odd = c.denominator >> twos
        valid = tuple(v if math.gcd(odd, p - 1) == 1 else SPENT for v, p in zip(x.valid, MODULI, strict=True))
        if not any(valid):
            return self._borrowed(f"pow {c}", x)
        exponents = tuple(
            c.numerator * pow((p + 1) // 4, twos, p - 1) * (pow(odd, -1, p - 1) if v else 1) % (p - 1)
            for v, p in zip(valid, MODULI, strict=True)
        )
        data = power(x.data, exponents)
        taint = x.taint
        if twos:
            negative = no_square(x.data, data if abs(c) == Fraction(1, 2) else None, c)
            taint = negative if taint is None else taint | negative
        flags = x.flags
        zero = zero_in(x) & (True if flags is None else flags == FINITE)
        if c <= 0 or flags is not None:
            flags = _flags_of_power(np.zeros(x.shape, np.int8) if flags is None else flags, zero, c)
        data = np.where(zero, 1 if c == 0 else 0, data)
        return finish(x.dims, data, valid, flags, taint, x.sign if c.numerator % 2 else abs(x.sign))

    def finite(self, m: Residues) -> Residues:
        """m where it is not -infinity, else 0."""
        if m.flags is None:
            return m
        return finish(m.dims, m.data, m.valid, np.where(m.flags == MINUS_INF, FINITE, m.flags), m.taint)

    # -- exponentials

    def exp(self, x: Residues) -> Residues:
        """ω ** x, one level up; a random function where x has no level to spend."""
        x = as_field(x)
        valid = (*x.valid[1:], SPENT)
        if any(valid):
            data = np.zeros_like(x.data)
            on = np.flatnonzero(valid)
            p = np.array(MODULI)[on, None]
            digits = x.data[on + 1].reshape(len(on), 1, -1) >> _BYTE_PLACES & 255
            factors = self._tables()[on[:, None, None], _BYTE_PLACES // 8, digits]
            pairs = factors[:, ::2] * factors[:, 1::2] % p[:, None]
            data[on] = (pairs[:, 0] * pairs[:, 1] % p).reshape(len(on), *x.shape)
            taint = None if x.taint is None else np.concatenate([x.taint[1:], np.zeros_like(x.taint[:1])])
        else:
            y = self._borrowed("exp", replace(x, flags=None))
            data, valid, taint = y.data, y.valid, y.taint
        flags = None
        if x.flags is not None:
            data = np.where(x.flags == MINUS_INF, 0, data)
            flags = np.where(x.flags == MINUS_INF, FINITE, x.flags)
        return finish(x.dims, data, valid, flags, taint)

    def _tables(self) -> Array:
        """ω ** (d · 256**k) for each level, each k and each byte d."""
        if self._exp_tables is None:
            moduli = zip(self.omega, MODULI[:-1], strict=True)
            self._exp_tables = np.array([[powers(pow(w, 256**k, p), 256, p) for k in range(4)] for w, p in moduli])
        return self._exp_tables

    def log(self, x: Residues) -> Residues:
        """The discrete logarithm, one level down: half that of x². Of a non-square it is that of -x, and tainted."""
        x = as_field(x)
        valid = (SPENT, *x.valid[:-1])
        if any(valid):
            data = np.zeros_like(x.data)
            for i in range(LEVELS - 1):
                if valid[i + 1]:
                    data[i + 1] = self._log(i, x.data[i])
            negative = no_square(x.data)
            negative = negative if x.taint is None else negative | x.taint
            taint = np.concatenate([np.zeros_like(negative[:1]), negative[:-1]])
        else:
            y = self._borrowed("log", replace(x, flags=None))
            data, valid, taint = y.data, y.valid, y.taint
        old = np.zeros(x.shape, np.int8) if x.flags is None else x.flags
        flags = np.where(old == MINUS_INF, UNDEFINED, old)
        flags = np.where((old == FINITE) & zero_in(x), MINUS_INF, flags).astype(np.int8)
        return finish(x.dims, data, valid, flags, taint)

    def _log(self, level: int, y: Array) -> Array:
        """log of y or -y to the base ω, modulo MODULI[level + 1]; of 0 it is 0."""
        n = MODULI[level + 1]
        found = logarithms(level, np.where(y == 0, 1, y).ravel()) * pow(self._turns[level], -1, n) % n
        return found.reshape(y.shape)

    # -- random functions

    def fn(self, name: str, *args: Residues, at_zero: Fraction | None = None) -> Residues:
        """A random function, the same for equal names and arguments: in each residue a function of that residue, and
        of the first one that is left where it is spent. at_zero: its value where the first argument is 0: loops and
        padding rest on that (`known_value` in `ir.reach`, `zero` in OPS)."""
        dims = self._drawn_dims(*args)
        seen = tuple(seen_by_functions(x) for x in args)
        data = self._residues(self._hash(name, seen, dims))
        if at_zero is not None and any(seen[0].valid):
            known = as_field(self.const(at_zero)).data
            data = np.where(_zeros(seen[0], dims), known.reshape(LEVELS, *(1,) * (data.ndim - 1)), data)
        return self._random(data, args, seen, dims)

    def symmetric(self, name: str, x: Residues, y: Residues, *, either: bool) -> Residues:
        """The same in either order of the arguments. It is 0 where both are 0, or where either is."""
        dims = self._drawn_dims(x, y)
        seen = seen_by_functions(x), seen_by_functions(y)
        data = self._residues(self._hash(name, seen[:1], dims) + self._hash(name, seen[1:], dims))
        if any(both_valid(*seen)):
            a, b = (_zeros(v, dims) for v in seen)
            data = np.where(a | b if either else a & b, 0, data)
        return self._random(data, (x, y), seen, dims)

    def _random(
        self, data: Array, args: tuple[Residues, ...], seen: tuple[Residues, ...], dims: tuple[str, ...]
    ) -> Residues:
        valid = tuple(v if v == OWN else BORROWED for v in both_valid(*args))
        return finish(dims, data, valid, self._undefined(args, dims), joint_taint(seen, dims))

    def integer(self, x: Residues) -> Residues:
        """x without its fraction: a random function, but of what is known to be an integer (`ordered`)."""
        whole, known = ordered(x)
        if known.all():
            return x
        found = self.fn("integer", x)
        whole, known = (aligned(v, x.dims, found.dims, 1) for v in (whole, known))
        data = np.where(known, whole % columns(whole), found.data)
        return finish(found.dims, data, found.valid, found.flags, found.taint)

    def _borrowed(self, name: str, *args: Residues) -> Residues:
        """A random function in the place of an operator whose meaning has no residue left."""
        return replace(self.fn(name, *args), valid=ALL_BORROWED)

    @staticmethod
    def _residues(state: Array) -> Array:
        """Residues from hashes, both with the levels first."""
        added, moduli = (x.reshape(-1, *(1,) * (state.ndim - 1)) for x in (LEVEL_KEYS, UNSIGNED_MODULI))
        return (mix(state + added) % moduli).astype(np.int64)

    def _drawn_dims(self, *args: Residues) -> tuple[str, ...]:
        """The axes of a random function's value: it has that of the draws even where the arguments do not differ."""
        dims = union(*(x.dims for x in args))
        return dims if DRAW in dims or len(self.draws) == 1 else (DRAW, *dims)

    def _hash(self, name: str, seen: tuple[Residues, ...], dims: tuple[str, ...]) -> Array:
        """A hash of the arguments in each level, another one in each draw."""
        if name not in self._names:
            digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
            self._names[name] = int.from_bytes(digest[:8], "little")
        draws = aligned(self.draws, (DRAW,), dims) if DRAW in dims else self.draws.reshape((1,) * len(dims))
        state: Array = np.broadcast_to(
            np.multiply(draws, DRAW_KEY) ^ np.uint64(self._names[name]), (LEVELS, *draws.shape)
        )
        for x in seen:
            state = mix(state * np.uint64(0xD1342543DE82EF95) + np.uint64(1))
            key = x.data
            if x.flags is not None:
                key = np.where(x.flags == FINITE, key, x.flags.astype(np.int64) + (1 << 40))
            state = mix(state ^ aligned(key.astype(np.uint64), x.dims, dims, 1))
        return state

    @staticmethod
    def _undefined(args: Iterable[Residues], dims: tuple[str, ...]) -> Array | None:
        total: Array | None = None
        for x in args:
            if x.flags is not None:
                part = aligned(x.flags == UNDEFINED, x.dims, dims)
                total = part if total is None else total | part
        return None if total is None else np.where(total, UNDEFINED, FINITE).astype(np.int8)

    # -- order

    def extremum(self, x: Residues, y: Residues, *, largest: bool) -> Residues:
        """What joins parts of an extremum; exact between small integers (`ordered`) and where one side is infinite."""
        dims = union(x.dims, y.dims)
        pick = np.maximum if largest else np.minimum
        if x.kind == y.kind == "int" and not (x.large or y.large):
            data = pick(aligned(x.data, x.dims, dims), aligned(y.data, y.dims, dims))
            return Residues(dims, "int", data, taint=joint_taint((x, y), dims))
        a, b, known = both_ordered(x, y, dims)
        x, y = seen_by_functions(x), seen_by_functions(y)
        first, second = (aligned(self._as_factor(v.data, largest), v.dims, dims, 1) for v in (x, y))
        data = self._of_factors(times(first, second, columns(first)), largest)
        data = np.where(known, pick(a, b) % columns(data), data)
        taint = joint_taint((x, y), dims)
        f, g = joint_flags(x, dims), joint_flags(y, dims)
        loses = MINUS_INF if largest else PLUS_INF
        data = np.where(f == loses, aligned(y.data, y.dims, dims, 1), data)
        data = np.where(g == loses, aligned(x.data, x.dims, dims, 1), data)
        flags = np.where(f == loses, g, np.where(g == loses, f, np.where(f == FINITE, g, f)))
        flags = np.where((f == UNDEFINED) | (g == UNDEFINED), UNDEFINED, flags)
        valid = both_valid(x, y)
        return finish(dims, data, valid if any(valid) else ALL_BORROWED, flags, taint)

    def less(self, x: Residues, y: Residues) -> Residues:
        """A mask, a random function of both sides unless exact."""
        return self._compared(x, y, np.less, lambda ordered, *_: ordered & ODD == 1)

    def equal(self, x: Residues, y: Residues) -> Residues:
        """A mask, a symmetric random function unless exact."""
        return self._compared(
            x,
            y,
            np.equal,
            lambda _, x, y, dims: mix(self._hash("eq", (x,), dims)[0] ^ self._hash("eq", (y,), dims)[0]) & ODD == 0,
        )

    def mask(self, name: str, *args: Residues) -> Residues:
        """A mask, a random function of its arguments, be they infinite or undefined."""
        dims = self._drawn_dims(*args)
        valid = ALL if both_valid(*args)[0] == OWN else ALL_BORROWED
        seen = tuple(seen_by_functions(x) for x in args)
        guesses = self._hash(name, seen, dims)[0]
        taint = joint_taint(seen, dims)
        taint = None if taint is None else np.broadcast_to(taint[:1], taint.shape)
        self._note(guesses, np.zeros((1,) * len(dims), dtype=bool), dims, taint)
        return Residues(dims, "bool", guesses & ODD == 1, valid, taint=taint)

    def _compared(
        self,
        x: Residues,
        y: Residues,
        exactly: np.ufunc,
        guess: Callable[[Array, Residues, Residues, tuple[str, ...]], Array],
    ) -> Residues:
        """guess: a random mask, of a hash of both sides in their order, and of the sides."""
        dims = union(x.dims, y.dims)
        valid = ALL if both_valid(x, y)[0] == OWN else ALL_BORROWED  # a mask sees the first residue
        seen = not (x.large or y.large) or x.reaches(y) or y.reaches(x)
        if "field" not in (x.kind, y.kind) and seen:
            data = exactly(aligned(x.data, x.dims, dims), aligned(y.data, y.dims, dims))
            taint = whole(joint_taint((x, y), dims))
        else:
            a, b, known = (part[0] for part in both_ordered(x, y, dims))
            if not known.all() and (drawn := self._drawn_dims(x, y)) != dims:
                a, b, known = (aligned(part, dims, drawn) for part in (a, b, known))
                dims = drawn
            x, y = seen_by_functions(x), seen_by_functions(y)
            taint = joint_taint((x, y), dims)
            taint = None if taint is None else np.broadcast_to(taint[:1], taint.shape)
            data = exactly(a, b)
            if not known.all():
                guesses = self._hash("lt", (x, y), dims)[0]
                self._note(guesses, known, dims, taint)
                data = np.where(known, data, guess(guesses, x, y, dims))
            if x.flags is not None or y.flags is not None:
                f, g = (joint_flags(v, dims) for v in (x, y))
                data = np.where((f != FINITE) | (g != FINITE), exactly(f, g), data)
        shape = np.broadcast_shapes(data.shape, joint_shape(dims, x, y))
        return Residues(dims, "bool", np.broadcast_to(data, shape), valid, taint=taint)

    def _note(self, guesses: Array, known: Array, dims: tuple[str, ...], taint: Array | None) -> None:
        """Notes the guesses of a comparison, but for elements that are known, or in doubt."""
        if self.guesses is not None:
            self.guesses.note(guesses, ~known if taint is None else ~(known | taint[0]), dims)

    def where(self, mask: Residues, x: Residues, y: Residues) -> Residues:
        dims = union(mask.dims, x.dims, y.dims)
        m = aligned(mask.data, mask.dims, dims)
        taint = chosen_taint(mask, x, y, dims)
        if x.kind == y.kind != "field":
            data = np.where(m, aligned(x.data, x.dims, dims), aligned(y.data, y.dims, dims))
            return Residues(dims, x.kind, data, both_valid(mask, x, y), taint=taint, large=x.large or y.large)
        x, y = as_field(x), as_field(y)
        valid = both_valid(mask, x, y)
        if not any(valid):
            return self._borrowed("where", mask, x, y)
        data = np.where(m, aligned(x.data, x.dims, dims, 1), aligned(y.data, y.dims, dims, 1))
        flags = None
        if x.flags is not None or y.flags is not None:
            f, g = (aligned(np.zeros(v.shape, np.int8) if v.flags is None else v.flags, v.dims, dims) for v in (x, y))
            flags = np.where(m, f, g)
        return finish(dims, data, valid, flags, taint)

    # -- reductions

    def sum(self, x: Residues, axes: tuple[str, ...]) -> Residues:
        at = tuple(x.dims.index(a) for a in axes)
        dims = tuple(d for d in x.dims if d not in axes)
        lead = 0 if x.kind == "int" else 1
        taint = taint_over(x.taint, at)
        if x.kind == "int":
            return Residues(dims, "int", x.data.sum(axis=at), taint=taint, large=x.large)
        x = as_field(x)
        data = x.data.sum(axis=tuple(a + lead for a in at))
        data = np.remainder(data, columns(data))
        flags = None
        if x.flags is not None:
            up, down = (x.flags == PLUS_INF).any(axis=at), (x.flags == MINUS_INF).any(axis=at)
            flags = np.where(up, PLUS_INF, np.where(down, MINUS_INF, FINITE))
            flags = np.where((up & down) | (x.flags == UNDEFINED).any(axis=at), UNDEFINED, flags).astype(np.int8)
        return finish(dims, data, x.valid, flags, taint)

    def dot(self, x: Residues, y: Residues, axes: tuple[str, ...]) -> Residues:
        valid, finite = both_valid(x, y), x.flags is None and y.flags is None
        plain = x.kind == y.kind == "field" and finite and any(valid)
        if not plain or (found := contracted(x, y, axes)) is None:
            return self.sum(self.mul(x, y), axes)
        dims, data = found
        taints = [t for v in (x, y) if (t := taint_of(v, axes, dims)) is not None]
        return finish(dims, data, valid, None, functools.reduce(np.logical_or, taints) if taints else None)

    def prod(self, x: Residues, axes: tuple[str, ...]) -> Residues:
        """The product of all elements along these axes. Where one is infinite, it has no value: its sign is that of all
        others, and one may be 0."""
        at, x = tuple(x.dims.index(a) for a in axes), as_field(x)
        flags = None
        if x.flags is not None:
            flags = np.where((x.flags != FINITE).any(axis=at), UNDEFINED, FINITE).astype(np.int8)
        dims = tuple(d for d in x.dims if d not in axes)
        factors = aligned(x.data, x.dims, (*dims, *axes), 1)
        return finish(dims, _product(factors, len(dims) + 1), x.valid, flags, taint_over(x.taint, at))

    def reduce_extremum(self, x: Residues, axes: tuple[str, ...], *, largest: bool) -> Residues:
        """x ∘ y over all elements: associative and commutative, and every element matters."""
        at = tuple(x.dims.index(a) for a in axes)
        dims = tuple(d for d in x.dims if d not in axes)
        x = as_field(x)
        factors = self._as_factor(x.data, largest)
        loses, wins = (MINUS_INF, PLUS_INF) if largest else (PLUS_INF, MINUS_INF)
        flags = None
        if x.flags is not None:
            factors = np.where(x.flags == loses, 1, factors)
            flags = np.where((x.flags == loses).all(axis=at), loses, FINITE)
            flags = np.where((x.flags == wins).any(axis=at), wins, flags)
            flags = np.where((x.flags == UNDEFINED).any(axis=at), UNDEFINED, flags).astype(np.int8)
        product = _product(aligned(factors, x.dims, (*dims, *axes), 1), len(dims) + 1)
        return finish(dims, self._of_factors(product, largest), x.valid, flags, taint_over(x.taint, at))

    def _as_factor(self, x: Array, largest: bool) -> Array:
        """φ(x) = (x + c)³ + d: extrema are products of these."""
        p, c, d = columns(x), self._column(self._shifts[largest], x), self._column(self._lifts[largest], x)
        base = (x + c) % p
        return (times(times(base, base, p), base, p) + d) % p

    def _of_factors(self, product: Array, largest: bool) -> Array:
        """φ⁻¹ of a product."""
        c, d = self._column(self._shifts[largest], product), self._column(self._lifts[largest], product)
        p = columns(product)
        return (power((product - d) % p, CUBE_ROOTS) - c) % p

    @staticmethod
    def _column(residues: Array, like: Array) -> Array:
        return residues.reshape((LEVELS,) + (1,) * (like.ndim - 1))

    def join(self, x: Residues, y: Residues, *, largest: bool) -> Residues:
        """The maximum or minimum over two parts of an axis from those of the parts, with equal dims."""
        x, y = as_field(x), as_field(y)
        lead = ("", *x.dims)
        data = np.stack([x.data, np.broadcast_to(aligned(y.data, y.dims, x.dims, 1), x.data.shape)], axis=1)
        flags, taint = None, None
        if x.flags is not None or y.flags is not None:
            flags = np.stack([np.broadcast_to(joint_flags(v, x.dims), data.shape[2:]) for v in (x, y)])
        if x.taint is not None or y.taint is not None:
            total = joint_taint((x, y), x.dims)
            assert total is not None
            taint = np.broadcast_to(total[:, None], data.shape)
        whole = Residues(lead, "field", data, both_valid(x, y), flags, taint)
        return self.reduce_extremum(whole, ("",), largest=largest)
