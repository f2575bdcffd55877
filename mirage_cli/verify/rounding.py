"""Evaluation with rounding: what a program's own types would give if nothing overflowed; and what may overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any  # what PyTorch dispatches, which is not typed

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SUM_BITS = 2
"""A sum of many terms in float32 is off by a few units in the last place, in whatever order they are added."""
FLUSHED = torch.finfo(torch.float32).tiny
"""GPUs may make 0 of results in float32 that are less (PTX ISA, subnormal numbers)."""
MATRIX_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.mv, torch.ops.aten.dot)
SUMS = (*MATRIX_PRODUCTS, torch.ops.aten.sum, torch.ops.aten.cumsum)
STEPS = frozenset(getattr(torch.ops.aten, name) for name in ("floor", "ceil", "round", "trunc", "sign", "floor_divide"))
JUMPS = STEPS | {torch.ops.aten.frac, torch.ops.aten.remainder, torch.ops.aten.fmod}
"""Functions that jump between numbers which rounding tells apart; steps are constant between jumps."""
EXACT = JUMPS | frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "abs", "amax", "amin", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy",
        "cummax", "cummin", "embedding", "gather", "index", "index_select", "masked_fill", "max", "maximum", "min",
        "minimum", "neg", "relu", "stack", "where", "_to_copy",
    )
)  # fmt: skip
"""Functions that choose among their arguments' elements, and those of whole results: they round nothing."""


SOFTMAXES = frozenset((torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default))
"""Functions of one axis that PyTorch has a slow kernel for where that axis is not the last."""


def called(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation returns. A softmax over another axis is taken over the last one, of a copy with the axes
    exchanged: of 4096 by 4096 numbers in float64, PyTorch's kernel for another axis takes 7 of the 11 ms that an
    evaluation takes on an H200 (results/h200/notes-2026-11-28.md)."""
    if func in SOFTMAXES:
        x, axis, *rest = args
        if axis % max(1, x.dim()) < x.dim() - 1:
            return func(x.transpose(axis, -1).contiguous(), -1, *rest).transpose(axis, -1).contiguous()
    return func(*args, **(kwargs or {}))


def is_decision(func: Any, args: Any, x: Any) -> bool:
    """Whether the elements of what a function makes of float64 are decisions, such as masks, positions and steps."""
    if not (isinstance(x, torch.Tensor) and any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args)):
        return False
    return not x.is_floating_point() or x.itemsize == 1 or func.overloadpacket in STEPS


class EveryResult(TorchDispatchMode):
    """The base of what sees the result of each torch operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asked where a class is defined. If so, its first operation would import TorchDynamo, which takes a second, to
        tell it that there is nothing to compile."""
        return False


class RecordDecisions(EveryResult):
    """Keeps the decisions of an evaluation, in order. jumped: whether one of JUMPS was among the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []
        self.jumped = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.jumped |= func.overloadpacket in JUMPS
        result = func(*args, **(kwargs or {}))
        some = result if isinstance(result, tuple | list) else (result,)
        self.made += [x for x in some if is_decision(func, args, x)]
        return result


class RoundEveryResult(EveryResult):
    """Rounds what each torch operation returns to the precision of `dtype`, and leaves it float64's range.

    What eager PyTorch would make if nothing overflowed: the yardstick where it does overflow. The operands of a matrix
    product are off by up to half a unit in the last place, at random: with its factors multiplied in another order,
    they are other products, rounded. So an element's error is as large as that of a sum of its terms' magnitudes
    (N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), however small the element.

    seed: beyond 0, results are rounded up or down by chance, the nearer the likelier. Rounded to nearest, equal values
    would be off by the same, and their differences exact by luck, and so is what happens to need few bits; neither is
    luck that the same values have, computed in another order (D. S. Parker, Monte Carlo Arithmetic, 1997).
    summing: by chance in any case, and off by up to 2**SUM_BITS times as much.
    least: all results are multiples of it; if it is no less than FLUSHED, what GPUs may flush is 0.
    jumped: whether one of JUMPS was among the operations, or a rounding to float8.
    made: what operations that decide return in their order, in place of what rounding decides; none does yet where it
    is empty. decided: whether there were such operations.
    exact: functions whose results stay as they are.
    """

    exact: frozenset[Any] = frozenset()

    def __init__(
        self,
        dtype: torch.dtype,
        summing: bool = False,
        seed: int = 0,
        least: float = 0.0,
        made: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__()
        self.made, self.decided = iter(made), False
        self.unit, self.least = torch.finfo(dtype).eps, least
        self.by_chance = summing or seed > 0
        self.jumped = False
        self.seed = seed
        chance = 1  # up or down is off by up to a unit, to nearest by half of one
        self.bits = 1 - round(math.log2(self.unit)) - (SUM_BITS - chance if summing else 0)
        self.generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in MATRIX_PRODUCTS:
            args = [self.drawn(x, 1 - self.unit / 2, 1 + self.unit / 2).mul_(x) for x in args]
        self.jumped |= func.overloadpacket in JUMPS
        result = called(func, args, kwargs)
        if self.least >= FLUSHED and not func.is_view:
            result = _flushed(result, args)
        self.jumped |= isinstance(result, torch.Tensor) and result.is_floating_point() and result.itemsize == 1
        if func.is_view or func.overloadpacket in self.exact:
            return result
        if isinstance(result, tuple | list):  # of a fused operation, with what its gradient would need
            return type(result)(self.settled(func, args, x) for x in result)
        return self.settled(func, args, result)

    def settled(self, func: Any, args: Any, x: Any) -> Any:
        """A decision, as it was made before; anything else rounded."""
        if not is_decision(func, args, x):
            return self.rounded(x)
        self.decided = True
        return next(self.made, x)

    def rounded(self, result: Any) -> Any:
        """A tensor of float64, rounded; anything else as it is."""
        if not (isinstance(result, torch.Tensor) and result.dtype == torch.float64):
            return result
        unit = _powers_of_two(result, self.least * 2.0 ** (self.bits - 1)).mul_(2.0 ** (1 - self.bits))
        units = result / unit
        if self.by_chance:
            units += self.drawn(units)
        return units.round_().mul_(unit)

    def drawn(self, x: torch.Tensor, least: float = -0.5, most: float = 0.5) -> torch.Tensor:
        """Random numbers of this range, the same in each evaluation with this seed."""
        if x.device not in self.generators:
            self.generators[x.device] = torch.Generator(device=x.device).manual_seed(self.seed)
        drawn = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return drawn.uniform_(least, most, generator=self.generators[x.device])


class MoveEveryResult(RoundEveryResult):
    """Moves what each torch operation returns by up to `times` as much as rounding to `dtype` does, at random: whatever
    rounding may decide, is decided otherwise in three of eight evaluations or more.

    What the type holds exactly stays, and so does what is chosen: the largest element equals the maximum. Numbers below
    the smallest normal one are rounded as that is.
    """

    exact = EXACT

    def __init__(self, dtype: torch.dtype, summing: bool, seed: int, times: float) -> None:
        super().__init__(dtype, summing, seed)
        self.bits = 1 - round(math.log2(self.unit))
        self.least = torch.finfo(dtype).smallest_normal
        self.unit *= times
        self.most = self.unit * (2**SUM_BITS if summing else 1)

    def rounded(self, result: Any) -> Any:
        if not (isinstance(result, torch.Tensor) and result.dtype == torch.float64):
            return result
        held = result.view(torch.int64) & ((1 << 53 - self.bits) - 1) == 0  # no bits but those that the type has
        sizes = result.abs().clamp_min_(self.least)
        return torch.where(held, result, torch.addcmul(result, sizes, self.drawn(result), value=self.most))


class RangeOfEveryResult(EveryResult):
    """Makes an infinity of what an operation returns beyond the range of `dtype`, as that type has it.

    A sum overflows where its terms, added in some order, do: sum |x| is beyond the range. Where terms have both signs
    it is NaN, for partial sums may be infinities of both. A sum is 0 where its terms, added in some order, may cancel:
    |sum x| is at most eps · sum |x|. A quotient by it may be infinite.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.most, self.unit = torch.finfo(dtype).max, torch.finfo(dtype).eps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = called(func, args, kwargs)
        if func.is_view:
            return result
        if isinstance(result, tuple | list):
            return type(result)(self.within(x) for x in result)
        if func.overloadpacket in SUMS and result.dtype == torch.float64:
            size = func(*(x.abs() if isinstance(x, torch.Tensor) else x for x in args), **(kwargs or {}))
            result = torch.where(result.abs() <= self.unit * size, 0.0, result)
            result = torch.where((size > self.most) & (result.abs() < size), torch.nan, result)
        return self.within(result)

    def within(self, x: Any) -> Any:
        """A tensor of float64 in the range; anything else as it is."""
        if not (isinstance(x, torch.Tensor) and x.dtype == torch.float64):
            return x
        return x.masked_fill(x > self.most, torch.inf).masked_fill_(x < -self.most, -torch.inf)


def _flushed(result: Any, args: Any) -> Any:
    """0 where a result is below the normal numbers of float32, or where a factor of it is: x · sigmoid(x) is 0 where
    the sigmoid is. So functions of one tensor are 0 where they are less than FLUSHED times their argument."""
    if not (isinstance(result, torch.Tensor) and result.dtype == torch.float64):
        return result
    least: torch.Tensor | float = FLUSHED
    given = [x for x in args if isinstance(x, torch.Tensor)]
    if len(given) == 1 and given[0].shape == result.shape and given[0].dtype == result.dtype:
        least = given[0].abs().nan_to_num_(1.0, 1.0).clamp_min_(1.0).mul_(FLUSHED)
    return result.masked_fill(result.abs() < least, 0.0)


def _powers_of_two(x: torch.Tensor, least: float) -> torch.Tensor:
    """The largest power of two in each magnitude, of float64: its exponent alone. At least this one and the smallest
    normal one, and of an infinity or NaN the largest: a multiple of it is what it was."""
    exponents = (x.view(torch.int64) & 0x7FF << 52).view(torch.float64)
    return exponents.clamp_(max(least, torch.finfo(torch.float64).tiny), 2.0**1023)


def in_float64(inputs: Sequence[torch.Tensor], off: torch.dtype | None = None, seed: int = 0) -> list[torch.Tensor]:
    """Floating-point inputs in float64; with `off`, each element off at random by up to one in that type's last place.

    What such data give is as good an answer as rounding errors on the way allow (backward stability: N. Higham,
    Accuracy and Stability of Numerical Algorithms, section 1.5).
    """
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    if off is None:
        return wide
    most = torch.finfo(off).eps
    g = torch.Generator(device=wide[0].device).manual_seed(seed) if wide else None
    return [
        torch.empty(x.shape, dtype=x.dtype, device=x.device).uniform_(1 - most, 1 + most, generator=g).mul_(x)
        if x.is_floating_point()
        else x
        for x in wide
    ]
