"""What a row of an output is, whose largest value its elements are measured by. Exported kernels carry this text."""

from __future__ import annotations

from collections.abc import Sequence

ROW_ELEMENTS = 16


def row_axis(shape: Sequence[int]) -> int:
    """The first of the axes that are a row."""
    elements = 1
    for axis in reversed(range(len(shape))):
        elements *= shape[axis]
        if elements >= ROW_ELEMENTS:
            return axis
    return 0
