"""Test data and the measure of error. It needs torch alone, because exported kernels carry this text with them."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# -- test data

LARGEST = {torch.float16: 65504.0}  # other types: their range is not what limits them


@dataclass(frozen=True)
class Distribution:
    """One kind of test data. `change(x, scale, contracted)` turns unit normal float64 values into it.

    scale: the deviation that the spec asks for. contracted: terms in the longest contraction of the program.
    first_only: the first floating-point input alone is changed, the others are normal.
    """

    name: str
    doc: str
    change: Callable[[torch.Tensor, float, int], torch.Tensor]
    first_only: bool = False


def products_up_to(peak: float, contracted: int, x: torch.Tensor) -> torch.Tensor:
    """Values whose contraction with others like them hardly ever goes beyond `peak`.

    The largest of n normal values is about sqrt(2 ln n) deviations; n is taken from the rows that x has.
    """
    rows = max(1.0, x.numel() / contracted)
    deviations = max(4.5, math.sqrt(4 * math.log(rows)) + 0.8)
    return x * math.sqrt(peak / (deviations * math.sqrt(contracted)))


def equal_rows(x: torch.Tensor) -> torch.Tensor:
    return x[..., :1].expand(x.shape).clone() if x.dim() else x


def one_outlier(x: torch.Tensor) -> torch.Tensor:
    """One activation of 10000: its product with one normal value is still within float16."""
    x = x.clone()
    x.view(-1)[x.numel() // 2] = 1e4
    return x


DISTRIBUTIONS = (
    Distribution("normal", "normal, with the deviation of the spec", lambda x, scale, _: x * scale),
    Distribution("large", "products up to ±500: exp overflows float32", lambda x, _, k: products_up_to(500, k, x)),
    Distribution("huge", "products up to ±60000, float16's end", lambda x, _, k: products_up_to(60000, k, x)),
    Distribution("equal rows", "every row holds one value", lambda x, scale, _: equal_rows(x) * scale),
    Distribution("outlier", "one value of 10000 in the first input", lambda x, scale, _: one_outlier(x * scale), True),
    Distribution("tiny", "deviation 1e-6: float16's subnormals", lambda x, _, __: x * 1e-6),
    Distribution("large mean", "mean 100, deviation 1, times the spec's", lambda x, scale, _: (x + 100) * scale),
)


def draw(
    kind: Distribution,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    scales: Sequence[float],
    contracted: int,
    device: torch.device,
    seed: int,
) -> list[torch.Tensor]:
    """Inputs of one distribution. Integers are below the longest axis of all, whatever the distribution."""
    g = torch.Generator(device=device).manual_seed(seed)
    longest = max([2, *(n for shape in shapes for n in shape)])
    inputs: list[torch.Tensor] = []
    changed = False
    for shape, dtype, scale in zip(shapes, dtypes, scales, strict=True):
        if not dtype.is_floating_point:
            inputs.append(torch.randint(0, longest, shape, generator=g, device=device, dtype=dtype))
            continue
        x = torch.randn(shape, generator=g, device=device, dtype=torch.float64)
        x = x * scale if changed and kind.first_only else kind.change(x, scale, contracted)
        changed = True
        inputs.append(x.clamp(-LARGEST.get(dtype, math.inf), LARGEST.get(dtype, math.inf)).to(dtype))
    return inputs


# -- error

ROW_ELEMENTS = 16


@dataclass(frozen=True)
class Error:
    """norm: ‖y - ref‖ / ‖ref‖. row: the worst row's max |y - ref| / max |ref|."""

    norm: float
    row: float

    def larger(self, other: Error) -> Error:
        return Error(max(self.norm, other.norm), max(self.row, other.row))

    def over(self, other: Error) -> float:
        """The larger of the two ratios; 0 / 0 is 0."""
        return max(_ratio(self.norm, other.norm), _ratio(self.row, other.row))


def error(y: torch.Tensor, ref: torch.Tensor, apart: torch.Tensor | None = None) -> Error:
    """The error of `y` against the float64 `ref`, where the latter is finite, in the closed range of y's type.

    |clip(y) - clip(ref)|, with clip to the largest number of the type: an infinity stands for all that lies beyond it.
    So an infinity is right where `ref` itself is out of range, or within rounding of it, and a number is as wrong there
    as it is far from the end. A NaN is infinitely wrong where `ref` rounds to a number, and nothing where it does not.

    Magnitudes are those of `ref` in float64, also beyond y's range: where most of a row overflows, what is left is
    small by cancellation, and its error is the row's. A row is the last axis, or as many last axes as hold 16 elements,
    so that it has a typical magnitude; a row of zeros is measured by the largest row, and where all is zero, the error
    is the difference itself, in the norm its root mean square: as if the reference were ones.

    apart: places that do not count.
    """
    wrong = distances(y, ref)
    if apart is not None:
        wrong = torch.where(apart, 0.0, wrong)
    if not wrong.numel():
        return Error(0.0, 0.0)
    expected = torch.where(torch.isfinite(ref), ref, 0.0)
    worst, size = in_rows(wrong).amax(dim=1), row_sizes(ref)
    return Error(
        float(wrong.norm()) / (float(expected.norm()) or math.sqrt(wrong.numel())), float((worst / size).amax())
    )


def distances(y: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """How far each element is off, as `error` counts it; of no negative value, and 0 where `ref` is not finite."""
    if not y.dtype.is_floating_point:
        return torch.where(torch.isfinite(ref), (y.double() - ref).abs(), 0.0)
    most = torch.finfo(y.dtype).max
    off = (y.double().clamp(-most, most) - ref.clamp(-most, most)).abs()
    off = torch.where(y.isnan(), torch.where(torch.isfinite(ref.to(y.dtype)), math.inf, 0.0), off)
    return torch.where(torch.isfinite(ref), off, 0.0)


def in_rows(x: torch.Tensor) -> torch.Tensor:
    """The elements as `[row, element of it]`."""
    row = 1
    for n in reversed(x.shape):
        row *= n
        if row >= ROW_ELEMENTS:
            break
    return x.reshape(-1, row)


def row_sizes(ref: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of each row; of rows of zeros that of the largest row, and 1 where all is zero."""
    size = in_rows(torch.where(torch.isfinite(ref), ref.abs(), 0.0)).amax(dim=1)
    return torch.where(size > 0, size, float(size.amax()) or 1.0)


def beyond_rounding(y: torch.Tensor, ref: torch.Tensor, row_error: float) -> torch.Tensor:
    """Where `y` is a NaN or an infinity that an error of `row_error`, as a part of its row, does not explain."""
    if not (y.dtype.is_floating_point and y.numel()):
        return torch.zeros_like(ref, dtype=torch.bool)
    far = in_rows(distances(y, ref)) > row_error * row_sizes(ref)[:, None]
    return far.reshape(ref.shape) & ~torch.isfinite(y)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else (0.0 if part == 0 else math.inf)


DRAWS = 8
"""Evaluations with rounding by chance: one alone is exact by luck where an output, or a mean that all of an output
rests on, is a single number."""
SUM_BITS = 2
"""A sum of many terms in float32 is off by a few units in the last place, in whatever order they are added."""
MATRIX_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.mv, torch.ops.aten.dot)


class RoundEveryResult(TorchDispatchMode):
    """Rounds what each torch operation returns to the precision of `dtype`, and leaves it float64's range.

    What eager PyTorch would make if nothing overflowed: the yardstick where it does overflow. The operands of a matrix
    product are off by up to half a unit in the last place, at random: with its factors multiplied in another order,
    they are other products, rounded. So an element's error is as large as that of a sum of its terms' magnitudes
    (N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), however small the element.

    seed: beyond 0, results are rounded up or down by chance, the nearer the likelier. Rounded to nearest, equal values
    would be off by the same, and their differences exact by luck, and so is what happens to need few bits; neither is
    luck that the same values have, computed in another order (D. S. Parker, Monte Carlo Arithmetic, 1997).
    summing: by chance in any case, and off by up to 2**SUM_BITS times as much.
    """

    def __init__(self, dtype: torch.dtype, summing: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.unit = torch.finfo(dtype).eps
        self.by_chance = summing or seed > 0
        self.seed = seed
        chance = 1  # up or down is off by up to a unit, to nearest by half of one
        self.bits = 1 - round(math.log2(self.unit)) - (SUM_BITS - chance if summing else 0)
        self.generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in MATRIX_PRODUCTS:
            args = [x * (1 + self.unit * self.drawn(x)) for x in args]
        result = func(*args, **(kwargs or {}))
        if func.is_view:
            return result
        if isinstance(result, tuple | list):  # of a fused operation, with what its gradient would need
            return type(result)(self.rounded(x) for x in result)
        return self.rounded(result)

    def rounded(self, result: Any) -> Any:
        """A tensor of float64, rounded; anything else as it is."""
        if not (isinstance(result, torch.Tensor) and result.dtype == torch.float64):
            return result
        mantissa, exponent = torch.frexp(result)
        units = mantissa * 2**self.bits
        rounded = torch.ldexp(torch.round(units + self.drawn(units) if self.by_chance else units), exponent - self.bits)
        return torch.where(torch.isfinite(result), rounded, result)

    def drawn(self, x: torch.Tensor) -> torch.Tensor:
        """Random numbers from -1/2 to 1/2, the same in each evaluation with this seed."""
        if x.device not in self.generators:
            self.generators[x.device] = torch.Generator(device=x.device).manual_seed(self.seed)
        return torch.rand(x.shape, generator=self.generators[x.device], dtype=x.dtype, device=x.device) - 0.5


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
        x * (1 + most * (2 * torch.rand(x.shape, generator=g, dtype=x.dtype, device=x.device) - 1))
        if x.is_floating_point()
        else x
        for x in wide
    ]


@contextlib.contextmanager
def fresh_memory_is_nan() -> Generator[None]:
    """While it lasts, torch.empty gives NaN (integers: the largest): what a kernel forgets to write is seen."""
    memory: Any = torch.utils.deterministic
    was_filled, was_on = memory.fill_uninitialized_memory, torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.use_deterministic_algorithms(True, warn_only=True)
            memory.fill_uninitialized_memory = True
            yield
    finally:
        torch.use_deterministic_algorithms(was_on, warn_only=warn_only)
        memory.fill_uninitialized_memory = was_filled


# -- judgement


@dataclass(frozen=True)
class Judgement:
    """What became of one distribution, in its worst output. `allowed` already holds the tolerance.

    overflow: where the output has a NaN, or an inf that the allowed error does not explain, in words; or None.
    excused: how many more such places of all outputs were let pass, because eager has an inf or NaN there too.
    """

    distribution: str
    error: Error
    eager_error: Error
    allowed: Error
    overflow: str | None = None
    excused: int = 0

    @property
    def score(self) -> float:
        """1 is the most that passes."""
        return math.inf if self.overflow else self.error.over(self.allowed)

    @property
    def problem(self) -> str | None:
        """Why it did not pass."""
        if self.overflow or self.score <= 1:
            return self.overflow
        mine, most = self.error, self.allowed
        return f"error {mine.norm:.2e} (row {mine.row:.2e}), allowed {most.norm:.2e} (row {most.row:.2e})"


def as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    """What a function returned: one tensor, or several."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def judge_outputs(
    name: str,
    outputs: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    rounded: Callable[[torch.dtype | None, int], Sequence[torch.Tensor]],
    tolerance: float,
    overflow_like_eager: bool,
    terms: int = 1,
) -> Judgement:
    """Outputs pass with an error of at most `tolerance` times the yardstick. In short, a kernel is right when what it
    returns is within what rounding in the program's own types can give, infinities included.

    The yardstick is the larger of eager's error and of what nobody escapes, rounding the result (`unavoidable`) to the
    output's type, or to that of eager's result where it is the coarser. Who fails it is compared with two evaluations
    in float64 too, each with up to `DRAWS` seeds: `rounded(None, seed)`, eager PyTorch with every result and all
    operands of matrix products rounded to the program's type, since eager's own error may be small by luck where
    outputs have few elements, or by its order of multiplying (with seed 0 it also stands in for eager where that has an
    inf or NaN and float64 has none); and `rounded(torch.float32, seed)`, the definition operator by operator in float32
    from inputs as far off, since eager's fused operators may be exact where no sum is.
    terms: of the longest sum in the program.
    overflow_like_eager: let an inf or NaN pass in places where eager has one too (a matmul kept in float16, say).

    Raises ValueError for outputs of another number or shape than the reference's.
    """
    if [y.shape for y in outputs] != [ref.shape for ref in reference]:
        shapes, expected = ([tuple(x.shape) for x in group] for group in (outputs, reference))
        raise ValueError(f"the outputs have the shapes {shapes}, not {expected}")
    evaluated = functools.cache(rounded)
    found: list[Judgement] = []
    for i, (y, ref) in enumerate(zip(outputs, reference, strict=True)):
        e = eager[i].to(y.dtype)
        theirs = numbers_error(e, ref)
        if bool(beyond_rounding(e, ref, 0.0).any()):  # where it is finite, it counts all the same
            theirs = theirs.larger(numbers_error(evaluated(None, 0)[i].to(y.dtype), ref))
        apart = (
            ~torch.isfinite(y) & ~torch.isfinite(e) if overflow_like_eager else torch.zeros_like(y, dtype=torch.bool)
        )
        mine, yardstick = error(y, ref, apart), theirs.larger(unavoidable(coarser(y.dtype, eager[i].dtype), ref, terms))
        for seed in range(DRAWS):
            if mine.over(yardstick) <= tolerance:
                break
            yardstick = yardstick.larger(numbers_error(evaluated(None, seed)[i].to(y.dtype), ref))
            yardstick = yardstick.larger(numbers_error(evaluated(torch.float32, seed)[i].to(y.dtype), ref))
        allowed = Error(tolerance * yardstick.norm, tolerance * yardstick.row)
        bad = beyond_rounding(y, ref, allowed.row)
        overflow = _first(i, y, ref, bad & ~apart)
        found.append(Judgement(name, mine, theirs, allowed, overflow, int((bad & apart).sum())))
    return replace(max(found, key=lambda j: j.score), excused=sum(j.excused for j in found))


def numbers_error(y: torch.Tensor, ref: torch.Tensor) -> Error:
    """The error of what is a number in `y`: an infinity of eager PyTorch's is no measure of rounding."""
    return error(y, ref, ~torch.isfinite(y) if y.dtype.is_floating_point else None)


def coarser(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The one of two types that has the larger unit in the last place; the first, if one is not floating-point."""
    if not (a.is_floating_point and b.is_floating_point):
        return a
    return max(a, b, key=lambda t: torch.finfo(t).eps)


def _first(output: int, y: torch.Tensor, ref: torch.Tensor, bad: torch.Tensor) -> str | None:
    """The first bad place, in words; None where there is none."""
    if not (count := int(bad.sum())):
        return None
    at = tuple(int(i) for i in bad.nonzero()[0])
    more = f" and {count - 1} more places" if count > 1 else ""
    return f"output {output} is {y[at].item()} at {at}{more}, where float64 has {ref[at].item():g}"


def unavoidable(dtype: torch.dtype, ref: torch.Tensor, terms: int) -> Error:
    """The error of the exact result rounded to the type, and at least half a unit in the last place.

    Where sums are accumulated in the result's own precision, their order is a matter of chance: as many times that as
    the root of the number of terms, and at least four times.
    """
    if not dtype.is_floating_point:
        return Error(0.0, 0.0)
    unit = torch.finfo(dtype).eps / 2 * (max(4.0, math.sqrt(terms)) if torch.finfo(dtype).bits >= 32 else 1)
    return error(ref.to(dtype), ref).larger(Error(unit, unit))
