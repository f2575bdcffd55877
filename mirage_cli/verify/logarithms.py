"""Discrete logarithms in the fields of `verify.residues`, from a table of the logarithms of small numbers.

Euclid's algorithm on p and y, stopped half-way, gives y = ±a / b with a and b up to √p (P. Wang, 1981). So

    log y = log a − log b

The table is made in the same way. Its first primes have their logarithms from baby and giant steps (Shanks 1971). Any
other prime r gets its own from some e for which r · gᵉ = ±a / b with a and b of primes that are known, as in index
calculus: log r = log a − log b − e.

Of y and −y one is a square. The logarithm is that of the square: half that of y².
"""

from __future__ import annotations

import math
from functools import cache
from itertools import count

import numpy as np

from mirage_cli.verify.residues import GENERATOR, MODULI, Array, powers

STEPPED = 25
"""Primes whose logarithms come from baby and giant steps."""
BABY_STEPS = 1 << 17
"""With these two numbers, the tables of all levels take 0.2 s, once in a process; then a logarithm takes 0.3 µs."""
UNKNOWN = -1


def logarithms(level: int, y: Array) -> Array:
    """Of the squares among y and -y modulo MODULI[level], to the base GENERATOR. y: int64[n], none of them 0."""
    a, b = _quotients(y, MODULI[level])
    table = _table(level)
    return (table[a] - table[b]) % MODULI[level + 1]


def _quotients(y: Array, p: int) -> tuple[Array, Array]:
    """a and b, both up to √p, for which y = ±a / b modulo p: the first remainder in Euclid's algorithm that is so
    small, and its cofactor."""
    most = math.isqrt(p)
    before, a = np.full_like(y, p), y
    b_before, b = np.zeros_like(y), np.ones_like(y)
    while (large := a > most).any():
        times = before // a
        before, a = a, np.where(large, before - times * a, a)
        b_before, b = b, np.where(large, b_before + times * b, b)
    return a, b


@cache
def _table(level: int) -> Array:
    """The logarithms of the numbers up to √p; that of 0 is unknown."""
    p, n = MODULI[level], MODULI[level + 1]
    numbers = np.arange(math.isqrt(p) + 1)
    factor = _smallest_factors(numbers)
    cofactor = numbers // np.maximum(factor, 1)
    primes = numbers[2:][factor[2:] == numbers[2:]]
    table = np.where(numbers == 1, 0, UNKNOWN)
    table[primes[:STEPPED]] = _stepped(level, primes[:STEPPED])
    left = primes[STEPPED:]
    for e in count(1):
        while (new := (table < 0) & (table[factor] >= 0) & (table[cofactor] >= 0)).any():
            table[new] = (table[factor[new]] + table[cofactor[new]]) % n
        if not left.size:
            return table
        a, b = _quotients(left * pow(GENERATOR, e, p) % p, p)
        known = (table[a] >= 0) & (table[b] >= 0)
        table[left[known]] = (table[a[known]] - table[b[known]] - e) % n
        left = left[~known]
    raise AssertionError("there is always another e")


def _smallest_factors(numbers: Array) -> Array:
    """Of 0, 1, 2, ...: the smallest prime that divides each; the number itself where it is a prime or below 2."""
    factor = numbers.copy()
    for d in range(math.isqrt(len(numbers)), 1, -1):
        factor[d * d :: d] = d
    return factor


def _stepped(level: int, numbers: Array) -> Array:
    """A few logarithms by baby and giant steps."""
    p, n = MODULI[level], MODULI[level + 1]
    baby = powers(GENERATOR, BABY_STEPS, p)
    order = np.argsort(baby)
    baby = baby[order]
    giants = -(-n // BABY_STEPS)
    giant = powers(pow(GENERATOR, -BABY_STEPS, p), 1 << (giants - 1).bit_length(), p)[:giants]
    found: list[int] = []
    for y in (numbers * numbers % p).tolist():
        reached = giant * y % p
        at = np.minimum(np.searchsorted(baby, reached), BABY_STEPS - 1)
        step = int((baby[at] == reached).argmax())
        found.append((step * BABY_STEPS + int(order[at[step]])) * ((n + 1) // 2) % n)
    return np.array(found)
