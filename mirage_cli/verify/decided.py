"""The judgement of outputs that are whole numbers, masks or float8, and of elements that rest on such. Exported kernels
carry this text.

Each element is a decision: which of two numbers is the larger, which whole number or number of float8 is the nearest.
Rounding may decide otherwise where they are close, and nowhere else. So an element equals float64's, or lies between
the least and the largest that evaluations in float64 come to whose every result is moved at random, by up to
`tolerance` times what rounding moves it by. Where all of these agree with float64, the decision is settled.

A few elements of another output may rest on decisions: the mean of the points that are nearest to a centre, where one
is as near to two. There float64 may be missed by the error that is allowed everywhere, its slack, or these evaluations
are farther apart than twice that, and the element lies between them, or is off by no more than the slack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

BITS = 32
"""In which kernels compute whole numbers. What lies beyond is undefined, as PyTorch converts it otherwise on each
device."""
NEAR = 1 / 8
"""What rounding decides is known well enough to tell something where it differs by less, as a part of the number."""
ROUNDS = (range(2), range(2, 8), range(8, 16), range(16, 32), range(32, 64))
"""The seeds of evaluations with moved results, at most. One decides an element as a kernel does that rounds, and
float64 does not, with a probability of about 3/8: it moves results by four times the kernel's error, to either side.
Behind each round, the elements are left alone that rounding explains."""
FEW, MANY = 8, 32
"""After so many evaluations, half of what differs is explained, if it is rounding and so many elements differ. Chance
leaves each open with a probability of (5/8)**FEW or more: of a few, all."""


@dataclass(frozen=True)
class Decided:
    """An output, beside float64's.

    count: of elements. differing: of these, from float64's. told: those that equal float64's, or about which rounding
    leaves little open. wrong: those that no rounding explains. first: the place of the first of these, its value,
    float64's, and between what rounding may put it.
    """

    count: int
    differing: int
    told: int
    wrong: int
    first: tuple[tuple[int, ...], float, float, float, float] | None

    def in_words(self, output: str) -> str | None:
        """The first that is wrong, if one is."""
        if self.first is None:
            return None
        at, value, expected, least, most = self.first
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


class Decisions:
    """The elements of an output that differ from float64's, and between what rounding puts them.

    shape: of the output. axis: along which it is given in pieces. dtype: its type.
    """

    def __init__(self, shape: Sequence[int], axis: int, dtype: torch.dtype) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.length = shape[axis] if shape else 1
        self.inner = math.prod(shape[axis + 1 :])
        self.count = self.known = 0
        self.at = torch.zeros(0, dtype=torch.long)
        self.mine, self.want = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
        self.least, self.most, self.slack = self.want, self.want, self.want

    def add(
        self,
        y: torch.Tensor,
        ref: torch.Tensor,
        positions: Sequence[int] | None = None,
        slack: torch.Tensor | None = None,
    ) -> None:
        """Adds what the output has at these positions of the axis, which follow each other, beside float64's. slack: by
        how much each element may miss it."""
        want, got = held(ref, self.dtype).flatten(), y.double().flatten()
        spare = torch.zeros_like(want) if slack is None else slack.expand(ref.shape).flatten()
        known = ~want.isnan()
        at = (known & (got != want) & ~((got - want).abs() <= spare)).nonzero()[:, 0]
        here = got[at], want[at], want[at], want[at], spare[at]
        if positions is not None:
            outer, rest = at // (len(positions) * self.inner), at % (len(positions) * self.inner)
            at = outer * (self.length * self.inner) + rest + positions[0] * self.inner
        before = self.at, self.mine, self.want, self.least, self.most, self.slack
        joined = [torch.cat([a.to(b.device), b]) for a, b in zip(before, (at, *here), strict=True)]
        self.at, self.mine, self.want, self.least, self.most, self.slack = joined
        self.count += y.numel()
        self.known += int(known.sum())

    def look(self, x: torch.Tensor, positions: Sequence[int] | None = None) -> None:
        """Takes an evaluation into account, of all the output or of these positions of the axis, which ascend."""
        some, at = self._at(positions)
        here = held(x, self.dtype).flatten()[at]
        self.least[some] = torch.minimum(self.least[some], here.nan_to_num(-torch.inf))
        self.most[some] = torch.maximum(self.most[some], here.nan_to_num(torch.inf))

    def _at(self, positions: Sequence[int] | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of the elements are at these positions, and where in a tensor of these alone."""
        if positions is None:
            return torch.arange(len(self.at), device=self.at.device), self.at
        given = torch.tensor(positions, device=self.at.device)
        row = self.at // self.inner
        place = torch.searchsorted(given, row % self.length).clamp_max(len(positions) - 1)
        some = (given[place] == row % self.length).nonzero()[:, 0]
        outer, inner = row[some] // self.length, self.at[some] % self.inner
        return some, (outer * len(positions) + place[some]) * self.inner + inner

    @property
    def explained(self) -> torch.Tensor:
        """Of the elements that differ, whether rounding explains each. Where an evaluation is undefined, anything is
        right."""
        inside = (self.least - self.slack <= self.mine) & (self.mine <= self.most + self.slack)
        inside &= self.most - self.least > 2 * self.slack
        return inside | (self.mine.isnan() & (self.most - self.least == torch.inf))

    def open(self, positions: Sequence[int] | None = None) -> int:
        """How many elements, at these positions of the axis, are not explained."""
        return int((~self.explained[self._at(positions)[0]]).sum())

    @property
    def hopeless(self) -> bool:
        """Whether too much is open for it to be rounding, after `FEW` evaluations."""
        return 2 * self.open() > max(MANY, len(self.at))

    def open_positions(self) -> list[int]:
        """Where on the axis such elements are, ascending."""
        return (self.at[~self.explained] // self.inner % self.length).unique().tolist()

    def decided(self) -> Decided:
        inside = self.explained
        near = int((self.most - self.least <= NEAR * self.want.abs()).sum())
        wrong, first = int((~inside).sum()), None
        if wrong:
            i = int((~inside).nonzero()[0, 0])
            place = tuple(int(p) for p in torch.unravel_index(self.at[i], self.shape))
            first = place, float(self.mine[i]), float(self.want[i]), float(self.least[i]), float(self.most[i])
        return Decided(self.count, len(self.at), self.known - len(self.at) + near, wrong, first)


def decided(y: torch.Tensor, ref: torch.Tensor, others: Iterable[torch.Tensor]) -> Decided:
    """ref: the output in float64. others: eager's, and evaluations with moved results, asked for as long as they are
    needed."""
    found = Decisions(y.shape, 0, y.dtype)
    found.add(y, ref)
    for i, x in enumerate(others if len(found.at) else ()):
        found.look(x)
        open_ones = found.open()
        if not open_ones or (i >= FEW and found.hopeless):
            break
    return found.decided()
