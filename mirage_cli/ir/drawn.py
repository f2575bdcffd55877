"""How test data are drawn. Exported kernels carry this text."""

from __future__ import annotations

Spread = float | tuple[int, str, bool]
"""Of floats the deviation. Of integers what they are less than, 0 where nothing says it; a word: whether they are
`distinct`, drawn `evenly`, `skewed`, evenly and then `sorted`, or as 32 `bits`; and whether some are -1 instead."""
PADDED = 8
"""Of so many integers one is -1, about, where some are."""


def skewed(count: int, below: int) -> list[int]:
    """So many integers from 0 on and less than a number, the largest first: x + 1 in even steps of a logarithmic scale.

    There are as many from 10 to 100 as from 100 to 1000: so it is with the lengths of requests, about.
    """
    last = max(count - 1, 1)
    return [int(below ** (1 - i / last)) - 1 for i in range(count)]
