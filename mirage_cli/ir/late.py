"""Loads that Triton does not fetch while earlier iterations of a loop multiply: an asynchronous copy moves 4 bytes of a
thread or more (PTX ISA, cp.async)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

COPY_BYTES = 4
"""The least that an asynchronous copy moves."""

Number = float | NDArray[np.float64]


class Block(NamedTuple):
    """What a load brings. element: bytes of one in memory. elements, size: of them, and bytes."""

    axes: frozenset[str]
    element: int
    elements: Number
    size: Number


def few(blocks: Sequence[Block], threads: Number) -> list[NDArray[np.bool_]]:
    """Of the loads of a loop, those of which each thread has less than a copy moves. A block with fewer elements than
    threads is laid out as a larger one with its axes, if there is one; a single element is no block."""
    small = [np.logical_and(b.size < COPY_BYTES * threads, b.element < COPY_BYTES or not b.axes) for b in blocks]
    found: list[NDArray[np.bool_]] = []
    for b, of_few in zip(blocks, small, strict=True):
        larger = [~s for other, s in zip(blocks, small, strict=True) if b.axes and b.axes < other.axes]
        alone = np.logical_or(b.elements >= threads, ~np.logical_or.reduce([of_few & False, *larger]))
        found.append(of_few & alone)
    return found
