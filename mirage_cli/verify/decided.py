"""The judgement of outputs that are whole numbers, masks or float8. Exported kernels carry this text.

Each element is a decision: which of two numbers is the larger, which whole number or number of float8 is the nearest.
Rounding may decide otherwise where they are close, and nowhere else. So an element equals float64's, or lies between
the least and the largest that evaluations in float64 come to whose every result is moved at random, by up to
`tolerance` times what rounding moves it by. Where all of these agree with float64, the decision is settled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

BITS = 32
"""In which kernels compute whole numbers. What lies beyond is undefined, as PyTorch converts it otherwise on each
device."""
NEAR = 1 / 8
"""What rounding decides is known well enough to tell something where it differs by less, as a part of the number."""
EVALUATIONS = 64
"""With moved results, at most, of each kind. One decides an element as a kernel does that rounds, and float64 does not,
with a probability of about 3/8: it moves results by four times the kernel's error, to either side."""
FEW = 8
"""After so many, half of what differs is explained, if it is rounding."""


@dataclass(frozen=True)
class Decided:
    """Some elements of an output, beside float64's.

    count: of elements. differing: of these, from float64's. told: those that equal float64's, or about which rounding
    leaves little open. wrong: those that no rounding explains. first: the place of the first of these, its value,
    float64's, and between what rounding may put it.
    """

    count: int
    differing: int
    told: int
    wrong: int
    first: tuple[tuple[int, ...], float, float, float, float] | None

    def in_words(self, output: str, axis: int, start: int) -> str | None:
        """The first that is wrong, if one is. start: of these elements in the output, along an axis."""
        if self.first is None:
            return None
        at, value, expected, least, most = self.first
        at = tuple(p + start * (d == axis) for d, p in enumerate(at))
        more = f" and {self.wrong - 1} more places" if self.wrong > 1 else ""
        open_to = f", and rounding gives {_text(least)} to {_text(most)}" if least < most else ""
        return f"{output} is {_text(value)} at {at}{more}, where float64 has {_text(expected)}{open_to}"


def _text(x: float) -> str:
    return str(int(x)) if x.is_integer() else f"{x:g}"


def decides(dtype: torch.dtype) -> bool:
    """Whether the elements of an output of this type are decisions."""
    return not dtype.is_floating_point or dtype.itemsize == 1


def held(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What an output of this type holds of a float64 value, as float64; NaN where that is undefined."""
    if dtype.is_floating_point:
        most = torch.finfo(dtype).max if dtype == torch.float8_e4m3fn else torch.inf
        return x.clamp(-most, most).to(dtype).double()
    known = x.abs() < 2.0 ** (BITS - 1)  # which no NaN is
    return torch.where(known, x.where(known, 0.0).long().to(dtype).double(), torch.nan)


def decided(y: torch.Tensor, ref: torch.Tensor, others: Iterable[torch.Tensor]) -> Decided:
    """ref: the output in float64. others: eager's, and evaluations with moved results, asked for as long as they are
    needed. Where one of them is undefined, anything is right."""
    want, got = held(ref, y.dtype).flatten(), y.double().flatten()
    known = ~want.isnan()
    at = (known & (got != want)).nonzero()[:, 0]
    mine, least, most = got[at], want[at], want[at]
    inside = torch.zeros_like(mine, dtype=torch.bool)
    for i, x in enumerate(others if at.numel() else ()):
        here = held(x, y.dtype).flatten()[at]
        least, most = torch.minimum(least, here.nan_to_num(-torch.inf)), torch.maximum(most, here.nan_to_num(torch.inf))
        inside = ((least <= mine) & (mine <= most)) | (mine.isnan() & (most - least == torch.inf))
        open_ones = int((~inside).sum())
        if not open_ones or (i >= FEW and 2 * open_ones > at.numel()):
            break
    near = int((most - least <= NEAR * want[at].abs()).sum())
    count, wrong = int(known.sum()), int((~inside).sum())
    first = None
    if wrong:
        i = int((~inside).nonzero()[0, 0])
        place = tuple(int(p) for p in torch.unravel_index(at[i], y.shape))
        first = place, float(mine[i]), float(want[at[i]]), float(least[i]), float(most[i])
    return Decided(y.numel(), at.numel(), count - at.numel() + near, wrong, first)
