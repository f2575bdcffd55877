"""How far outputs are from float64's, and how that is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mirage_cli.verify.rows import row_axis


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


def distance(y: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """How far the float64 `ref` is from what `y` stands for: a number for itself, an infinity for every number from the
    largest of its type on. A NaN stands for none, and is infinitely far. 0 where `ref` is no number itself."""
    wide = y.double()
    if y.dtype.is_floating_point:
        largest = torch.finfo(y.dtype).max
        wide = torch.where(y.isinf(), torch.where(y > 0, ref.clamp(min=largest), ref.clamp(max=-largest)), wide)
    return torch.where(torch.isfinite(ref), (wide - ref).abs().nan_to_num(math.inf, math.inf), 0.0)


def both_finite(y: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Where neither `y` nor `ref`, in y's type, is infinite: there eager PyTorch shows what rounding does."""
    return torch.isfinite(ref.to(y.dtype)) & torch.isfinite(y)


def overflows_alone(y: torch.Tensor, ref: torch.Tensor) -> bool:
    """Whether `y` is infinite somewhere where `ref`, in y's type, is not."""
    return not bool((torch.isfinite(y) | ~torch.isfinite(ref.to(y.dtype))).all())


@dataclass(frozen=True)
class Part:
    """A piece of the outputs in float64, with what its finite magnitudes come to.

    norm: the Euclidean one. rows: the largest of each row. largest: of all. finite: whether all are.
    """

    ref: torch.Tensor
    norm: float
    rows: torch.Tensor
    largest: float
    finite: bool

    @staticmethod
    def of(ref: torch.Tensor, axis: int) -> Part:
        """axis: the first of a row."""
        norm = float(ref.norm())
        finite = math.isfinite(norm)
        sizes = ref if finite else torch.where(torch.isfinite(ref), ref.abs(), 0.0)
        rows = largest_of_rows(sizes, axis) if ref.numel() else sizes
        largest = float(rows.amax()) if ref.numel() else 0.0
        return Part(ref, norm if finite else norm_of(sizes), rows, largest, finite)

    def within(self, dtype: torch.dtype) -> bool:
        """Whether all are finite in this type too: rounding keeps the order of magnitudes."""
        return self.finite and bool(torch.isfinite(torch.tensor(self.largest, dtype=torch.float64).to(dtype)))


def largest_of_rows(x: torch.Tensor, axis: int) -> torch.Tensor:
    """The largest magnitude of each row; axis: the first of a row."""
    return torch.linalg.vector_norm(x.reshape(*x.shape[:axis], -1), math.inf, dim=-1)


class Measured:
    """The error of one output, which may come in pieces along an axis.

    Magnitudes are those of `ref` in float64, also beyond y's range: where most of a row overflows, what is left is
    small by cancellation, and its error is the row's. A row is the last axis, or as many last axes as hold 16 elements,
    so that it has a typical magnitude; a row of zeros is measured by the largest row, and where all is zero, the error
    is the difference itself, in the norm its root mean square: as if the reference were ones.

    shape: of the whole output. along: the axis that pieces are cut along. finite: whether all so far were, in float64,
    in y and in y's type.
    """

    def __init__(self, shape: Sequence[int], along: int = 0) -> None:
        self.row_axis = row_axis(shape)
        self.in_rows = along >= self.row_axis
        self.count, self.wrong, self.expected, self.largest = 0, 0.0, 0.0, 0.0
        self.ratios: list[torch.Tensor] = []  # of each piece, the worst row's
        self.of_zero_rows: list[torch.Tensor] = []
        self.finite = True
        self.rows: tuple[torch.Tensor, torch.Tensor] | None = None  # those that further pieces add to

    def add(self, y: torch.Tensor, part: Part, among: Callable[[], torch.Tensor] | None = None) -> Measured:
        """One more piece. among: the places that count, where not all are finite; else all do."""
        if not part.ref.numel():
            return self
        wrong, norm = self._differences(y, part, among)
        self.count += part.ref.numel()
        self.wrong = math.hypot(self.wrong, norm)
        self.expected = math.hypot(self.expected, part.norm)
        worst, size = largest_of_rows(wrong, self.row_axis), part.rows
        self.largest = max(self.largest, part.largest)
        if not self.in_rows:
            self._add_rows(worst, size)
        elif self.rows is None:
            self.rows = worst, size
        else:
            self.rows = torch.maximum(self.rows[0], worst), torch.maximum(self.rows[1], size)
        return self

    def _differences(
        self, y: torch.Tensor, part: Part, among: Callable[[], torch.Tensor] | None
    ) -> tuple[torch.Tensor, float]:
        """The distances that count, up to their signs, and their norm. A norm is finite only where every element is."""
        if part.within(y.dtype):
            wrong = part.ref - (y if y.dtype.is_floating_point else y.double())
            if math.isfinite(norm := float(wrong.norm())):
                return wrong, norm
        self.finite = False
        wrong = distance(y, part.ref)
        if among is not None:
            wrong = torch.where(among(), wrong, 0.0)
        return wrong, norm_of(wrong)

    def _add_rows(self, worst: torch.Tensor, size: torch.Tensor) -> None:
        self.ratios.append(torch.where(size > 0, worst / size, 0.0).amax())
        self.of_zero_rows.append(torch.where(size > 0, 0.0, worst).amax())

    def row_sizes(self, ref: torch.Tensor) -> torch.Tensor:
        """What each element of a piece is measured by, after all pieces were added."""
        if self.rows is not None:
            size = self.rows[1]
        else:
            size = torch.where(torch.isfinite(ref), ref.abs(), 0.0).reshape(*ref.shape[: self.row_axis], -1).amax(-1)
        size = torch.where(size > 0, size, self.largest or 1.0)
        return size.reshape((*size.shape, *(1,) * (ref.dim() - size.dim())))

    @property
    def error(self) -> Error:
        """Of all pieces."""
        if self.rows is not None:
            self._add_rows(*self.rows)
        ratio, of_zero_rows = (float(torch.stack(x).amax()) if x else 0.0 for x in (self.ratios, self.of_zero_rows))
        row = max(ratio, of_zero_rows / (self.largest or 1.0))
        return Error(self.wrong / (self.expected or math.sqrt(self.count) or 1.0), row)


def norm_of(x: torch.Tensor) -> float:
    """The Euclidean norm, also where squares are beyond float64."""
    norm = float(x.norm())
    if math.isfinite(norm):
        return norm
    largest = float(x.abs().amax())
    return largest * float((x / largest).norm()) if math.isfinite(largest) else largest


def error(y: torch.Tensor, ref: torch.Tensor) -> Error:
    """The error of `y` against the float64 `ref`."""
    found = Measured(ref.shape)
    return found.add(y, Part.of(ref, found.row_axis)).error


def overflows(y: torch.Tensor, ref: torch.Tensor, allowed: torch.Tensor | float) -> torch.Tensor:
    """Where `y` is an infinity further from `ref` than allowed, or a NaN where `ref` is a number."""
    if not y.dtype.is_floating_point:
        return torch.zeros_like(ref, dtype=torch.bool)
    return (y.isinf() & (distance(y, ref) > allowed)) | (y.isnan() & torch.isfinite(ref))


def _ratio(part: float, whole: float) -> float:
    if part == 0 or not math.isfinite(part):
        return part
    return part / whole if whole > 0 else math.inf
