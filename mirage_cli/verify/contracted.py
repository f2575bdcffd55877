"""Sums of products of residues as products of matrices: a dot of large values takes BLAS's time, not that of numpy's
elementwise product of all pairs.

A residue is r = r₁·2^16 + r₀, with both parts below 2^16. A sum of up to 2^21 products of parts is a whole number below
2^53: float64 adds it exactly, in any order.
"""

from __future__ import annotations

from math import prod

import numpy as np

from mirage_cli.verify.residues import LEVELS, MODULI, Array, Residues, aligned, taint_over, union

HALF = 16
"""Bits of the low part of a residue."""

MOST_TERMS = 1 << (53 - 2 * HALF)
"""Terms of a sum that float64 holds exactly."""

MOST_SHIFTED = 1 << 14
"""Terms of a sum of products of parts up to which the sum times 2^16, and such sums beside it, are below 2^63."""

LARGE = 1 << 12
"""Products of two numbers from which on a product of matrices is faster. Measured: at 2^10 it takes 1.5 times as long
as numpy's elementwise product, at 2^16 a tenth, and in batches of matrices of 5 × 5 a half."""


AT_ONCE = 1 << 14
"""Elements of a product that are worked out at once, about: a megabyte of blocks, which stays in the cache. Measured:
products of 2^20 elements take a half to a fourth of the time that they take at once."""


def are_matrices(x: tuple[str, ...], y: tuple[str, ...]) -> bool:
    """Whether a dot of values with these axes is of matrices: each has rows or columns of its own."""
    return bool({*x} - {*y} and {*y} - {*x})


def contracted(x: Residues, y: Residues, axes: tuple[str, ...]) -> tuple[tuple[str, ...], Array] | None:
    """The axes of Σ x · y over these axes, and its residues: int64[level, *dims]. None where that is no product of two
    matrices for each index of the axes that stay in both, or a small one. x, y: of kind "field"."""
    lengths = dict(zip(x.dims, x.shape, strict=True)), dict(zip(y.dims, y.shape, strict=True))
    rows, cols = (tuple(d for d in v.dims if d not in w.dims) for v, w in ((x, y), (y, x)))
    batch = tuple(d for d in x.dims if d in y.dims and d not in axes)
    if {*axes} & {*rows, *cols}:
        return None
    m, n, k = prod(lengths[0][d] for d in rows), prod(lengths[1][d] for d in cols), prod(lengths[0][d] for d in axes)
    many = prod(max(of[d] for of in lengths) for d in batch)
    if min(m, n) == 1 or many * m * n * k < LARGE or k > MOST_TERMS:
        return None
    a = aligned(x.data, x.dims, (*batch, *rows, *axes), 1).reshape(LEVELS, *(lengths[0][d] for d in batch), m, k)
    b = aligned(y.data, y.dims, (*batch, *axes, *cols), 1).reshape(LEVELS, *(lengths[1][d] for d in batch), k, n)
    data = multiplied(a, b)
    data = data.reshape(*data.shape[:-2], *(lengths[0][d] for d in rows), *(lengths[1][d] for d in cols))
    dims = tuple(d for d in union(x.dims, y.dims) if d not in axes)
    return dims, aligned(data, (*batch, *rows, *cols), dims, 1)


def multiplied(a: Array, b: Array) -> Array:
    """a: int64[level, ..., m, k], b: int64[level, ..., k, n], of residues. The residues of the products a @ b, a few
    rows or a few matrices at a time."""
    lead, m, k, n = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], a.shape[-1], b.shape[-1]
    left = np.broadcast_to(a, (*lead, m, k)).reshape(LEVELS, -1, m, k)
    right = np.broadcast_to(b, (*lead, k, n)).reshape(LEVELS, -1, k, n)
    found = np.empty((LEVELS, left.shape[1], m, n), dtype=np.int64)
    rows = max(1, min(m, AT_ONCE // n))
    many = max(1, AT_ONCE // (rows * n))
    for level, p in enumerate(MODULI):
        for some in (slice(i, i + many) for i in range(0, left.shape[1], many)):
            y = _parts(right[level, some], axis=-1)
            for here in (slice(i, i + rows) for i in range(0, m, rows)):
                _multiply(left[level, some, here], y, p, out=found[level, some, here])
    return found.reshape(*lead, m, n)


def _parts(x: Array, axis: int) -> np.ndarray:
    """The high parts of residues, and the low ones behind them."""
    return np.concatenate([x >> HALF, x & ((1 << HALF) - 1)], axis=axis, dtype=np.float64)


def _multiply(a: Array, b: np.ndarray, p: int, out: Array) -> None:
    """The residues of a @ b modulo p. b: in parts. All four products of high and low parts are blocks of one."""
    m, k, n = *a.shape[-2:], b.shape[-1] // 2
    blocks = (_parts(a, axis=-2) @ b).astype(np.int64)
    high = blocks[..., :m, :n] if k <= MOST_SHIFTED else np.fmod(blocks[..., :m, :n], p)
    found = high << HALF
    found += blocks[..., :m, n:]
    found += blocks[..., m:, :n]
    np.fmod(found, p, out=found)
    found <<= HALF
    found += blocks[..., m:, n:]
    np.fmod(found, p, out=out)


def taint_of(x: Residues, axes: tuple[str, ...], dims: tuple[str, ...]) -> Array | None:
    """The taint that x gives a sum over these axes of its products, whose axes are dims."""
    taint = taint_over(x.taint, tuple(x.dims.index(a) for a in axes))
    return None if taint is None else aligned(taint, tuple(d for d in x.dims if d not in axes), dims, 1)
