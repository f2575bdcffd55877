"""The measure of error, and what is allowed. It needs torch alone: exported kernels carry this text with them."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mirage_cli.verify.rows import row_axis
from mirage_cli.verify.testdata import copied, memory_of

# -- error


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


DRAWS = 8
"""Evaluations with rounding by chance: one alone is exact by luck where an output, or a mean that all of an output
rests on, is a single number."""
SUM_BITS = 2
"""A sum of many terms in float32 is off by a few units in the last place, in whatever order they are added."""
MATRIX_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.mv, torch.ops.aten.dot)
JUMPS = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("floor", "ceil", "round", "trunc", "frac", "sign", "remainder", "fmod", "floor_divide")
)
"""Functions that jump between numbers which rounding tells apart."""


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
    jumped: whether one of JUMPS was among the operations.
    """

    def __init__(self, dtype: torch.dtype, summing: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.unit = torch.finfo(dtype).eps
        self.by_chance = summing or seed > 0
        self.jumped = False
        self.seed = seed
        chance = 1  # up or down is off by up to a unit, to nearest by half of one
        self.bits = 1 - round(math.log2(self.unit)) - (SUM_BITS - chance if summing else 0)
        self.generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in MATRIX_PRODUCTS:
            args = [x * (1 + self.unit * self.drawn(x)) for x in args]
        self.jumped |= func.overloadpacket in JUMPS
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
        if math.isfinite(float(result.norm())):  # then every element is
            return rounded
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
    was_filled, mode = memory.fill_uninitialized_memory, torch.get_deterministic_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.set_deterministic_debug_mode("warn")  # unlike use_deterministic_algorithms, it imports no Inductor
            memory.fill_uninitialized_memory = True
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        memory.fill_uninitialized_memory = was_filled


# -- pieces

PIECE_BYTES = 1 << 30
"""About what the float64 values of one piece take."""


@dataclass(frozen=True)
class Cut:
    """An axis at whose positions a program computes independently of one another, so that it can be judged in pieces.

    inputs, outputs: where each has the axis; None where an input lacks it. length: of the axis. position_bytes: what a
    float64 evaluation holds for one position.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    length: int
    position_bytes: int


@dataclass(frozen=True)
class Piece:
    """Some positions of a cut; without one, all of the problem."""

    cut: Cut | None = None
    start: int = 0
    length: int = 0

    def inputs(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Of all the inputs, what belongs to this piece."""
        axes = self.cut.inputs if self.cut else (None,) * len(tensors)
        return [self.of(x, axis) for x, axis in zip(tensors, axes, strict=True)]

    def output(self, y: torch.Tensor, i: int) -> torch.Tensor:
        """Of output number i, what belongs to this piece."""
        return self.of(y, self.cut.outputs[i] if self.cut else None)

    def of(self, x: torch.Tensor, axis: int | None) -> torch.Tensor:
        return x if axis is None else x.narrow(axis, self.start, self.length)


def pieces_of(cut: Cut | None) -> list[Piece]:
    """Pieces of about `PIECE_BYTES`; one, the whole, where all is no more or there is no cut."""
    if cut is None or (step := max(1, PIECE_BYTES // cut.position_bytes)) >= cut.length:
        return [Piece()]
    return [Piece(cut, at, min(step, cut.length - at)) for at in range(0, cut.length, step)]


# -- where outputs lie


Total = tuple[int, tuple[tuple[int, "Atom"], ...]]
"""A number, and factors with atoms, of which it is the sum."""
Atom = int | tuple[str, Total, int] | tuple[str, int, tuple[Total, ...]]
"""What positions are computed from: the position along an axis, by its number; a total divided (`//`) by a number, or
what is left of it (`%`); or what input number so-and-so holds (`at`) at totals."""


@dataclass(frozen=True)
class Lies:
    """Where an output lies: in returned tensor number `tensor`, or in input number -1 - `tensor`, which is changed in
    place. shape, strides, start: of the output in that tensor's memory, in elements. moved: steps from there that
    depend on what inputs hold, or are no multiples of positions, with what they are multiplied by."""

    tensor: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    moved: tuple[tuple[int, Atom], ...] = ()

    @property
    def view(self) -> bool:
        """Whether PyTorch has a view of it: none goes backwards."""
        return not self.moved and min(self.strides, default=0) >= 0

    def whole(self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor that it lies in."""
        return results[self.tensor] if self.tensor >= 0 else inputs[-1 - self.tensor]

    def of(self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The output: a view where there is one, else a copy."""
        x = self.whole(results, inputs)
        if self.view:
            return x.as_strided(self.shape, self.strides, x.storage_offset() + self.start)
        return memory_of(x)[self.places(x, inputs)]

    def fill(
        self, values: float | torch.Tensor, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> None:
        """Writes a number, or a value for each element, where the output lies."""
        x = self.whole(results, inputs)
        if self.view:
            self.of(results, inputs)[...] = values
        else:
            memory_of(x)[self.places(x, inputs)] = values

    def places(self, x: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Where its elements are in the memory of the tensor that it lies in."""
        count = range(len(self.shape))
        shapes = [[-1 if j == i else 1 for j in count] for i in count]
        along = [torch.arange(n, device=x.device).reshape(s) for n, s in zip(self.shape, shapes, strict=True)]
        terms = (*((s, i) for i, s in enumerate(self.strides) if s), *self.moved)
        at = torch.as_tensor(_position((self.start, terms), along, inputs), device=x.device)
        return at.expand(self.shape)


def _position(x: Total, along: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor | int:
    found: torch.Tensor | int = x[0]
    for factor, a in x[1]:
        found = found + factor * _atom(a, along, inputs)
    return found


def _atom(a: Atom, along: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor | int:
    match a:
        case int():
            return along[a]
        case ("at", int() as table, tuple() as at):
            return inputs[table].long()[tuple(_position(x, along, inputs) for x in at)]
        case ("//", tuple() as of, int() as by):
            return _position(of, along, inputs) // by
        case (_, tuple() as of, int() as by):
            return _position(of, along, inputs) % by
        case _:
            raise ValueError(f"no atom: {a}")


def outputs_of(
    lies: Sequence[Lies] | None, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs in what a call returned and in its inputs. lies: where; None where they are what is returned."""
    return list(results) if lies is None else [x.of(results, inputs) for x in lies]


def to_be_changed(lies: Sequence[Lies] | None, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of inputs of which some are changed in place, with NaN where outputs will lie: nothing reads that."""
    given = [copied(x) for x in inputs]
    for v in lies or ():
        if v.tensor < 0:
            v.fill(math.nan, (), given)
    return given


def changed_elsewhere(
    lies: Sequence[Lies] | None, inputs: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
) -> list[int]:
    """The inputs, by number, that differ from what they were in other elements than outputs, or between elements."""
    found: list[int] = []
    for i, (x, y) in enumerate(zip(inputs, before, strict=True)):
        own = [v for v in lies or () if v.tensor == -1 - i]
        pair = [copied(t) if own else t for t in (x, y)]
        for v in own:
            for t in pair:
                v.fill(0.0, (), [*before[:i], t, *before[i + 1 :]])
        mine, kept = map(memory_of, pair)
        if not bool(((mine == kept) | (mine.isnan() & kept.isnan())).all()):
            found.append(i)
    return found


# -- judgement

Exact = Callable[[Piece], Sequence[torch.Tensor]]
"""The outputs in float64 for a piece of the inputs."""
Rounded = Callable[[Piece, torch.dtype | None, int], Sequence[torch.Tensor]]
"""The same with rounding (None: eager's, to the program's type; else the definition's, to this type), and a seed."""


Known = dict[tuple[int, object], "Error"]
"""By output: the errors of eager and of evaluations with rounding on one draw of inputs, which no candidate changes."""


def measured(y: torch.Tensor, i: int, pieces: Sequence[Piece]) -> Measured:
    """For the pieces of `y`, which is output number i."""
    cut = pieces[0].cut
    return Measured(y.shape, cut.outputs[i] if cut else 0)


def error_of(y: torch.Tensor, i: int, exact: Exact, pieces: Sequence[Piece]) -> Error:
    """The error of output number i; infinite where an infinity is further off than the largest value of its row, which
    no rounding explains."""
    mine = measured(y, i, pieces)
    for piece in pieces:
        mine.add(piece.output(y, i), Part.of(exact(piece)[i], mine.row_axis))
    if not mine.finite and not bool(torch.isfinite(y).all()):
        for piece in pieces:
            ref = exact(piece)[i]
            if bool(overflows(piece.output(y, i), ref, mine.row_sizes(ref)).any()):
                return Error(math.inf, math.inf)
    return mine.error


@dataclass(frozen=True)
class Judgement:
    """What became of one distribution, in its worst output. `allowed` already holds the tolerance.

    overflow: where the output has an inf or NaN that float64 lacks, in words; None where nowhere.
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
    """What a function returned: one tensor, several, or nothing."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result or ())


def judge_outputs(
    name: str,
    outputs: Sequence[torch.Tensor],
    exact: Exact,
    eager: Sequence[torch.Tensor],
    rounded: Rounded,
    tolerance: float,
    overflow_like_eager: bool,
    terms: int = 1,
    cut: Cut | None = None,
    known: Known | None = None,
) -> Judgement:
    """Outputs pass that are within what rounding in the program's own types can give, infinities included: with an
    error of at most `tolerance` times the yardstick, where an infinity stands for all that lies beyond its type.

    The yardstick is the larger of eager's error and of what nobody escapes, rounding the result (`unavoidable`) to the
    output's type, or to that of eager's result where it is the coarser. Who fails it is compared with two evaluations
    in float64 too, each with up to `DRAWS` seeds: `rounded(.., None, seed)`, eager PyTorch with every result and all
    operands of matrix products rounded to the program's type, since eager's own error may be small by luck where
    outputs have few elements, or by its order of multiplying (with seed 0 it also stands in for eager where that has an
    inf or NaN and float64 has none); and `rounded(.., torch.float32, seed)`, the definition operator by operator in
    float32 from inputs as far off, since eager's fused operators may be exact where no sum is.
    terms: of the longest sum in the program.
    overflow_like_eager: let an inf or NaN pass in places where eager has one too (a matmul kept in float16, say).
    cut: along which exact and rounded outputs are made, so that few of them are held at a time.
    known: what the yardstick came to for other outputs of the same problem and data; what this one adds is put there.

    Raises ValueError for outputs of another number or shape than eager's.
    """
    if [y.shape for y in outputs] != [e.shape for e in eager]:
        shapes, expected = ([tuple(x.shape) for x in group] for group in (outputs, eager))
        raise ValueError(f"the outputs have the shapes {shapes}, not {expected}")
    pieces = pieces_of(cut)
    if len(pieces) == 1:
        exact, rounded = functools.cache(exact), functools.cache(rounded)
    found: list[Judgement] = []
    for i, y in enumerate(outputs):
        judged = _Output(i, y, eager[i], exact, rounded, pieces, overflow_like_eager, {} if known is None else known)
        found.append(judged.judgement(name, tolerance, terms))
    return replace(max(found, key=lambda j: j.score), excused=sum(j.excused for j in found))


@dataclass(frozen=True)
class Reference:
    """A program in PyTorch, by which kernels are judged: in the GPU process, in the interpreter, in exported files.

    eager: as a user calls it. stepwise: its definition, operator by operator. precision: the type that it computes in.
    wide: what gives the outputs of inputs in float64, where that is not `eager`. All return a tensor or several.
    """

    eager: Callable[..., Any]
    stepwise: Callable[..., Any]
    precision: torch.dtype
    wide: Callable[..., Any] | None = None

    def exact(self, inputs: Sequence[torch.Tensor], piece: Piece) -> list[torch.Tensor]:
        """The outputs in float64."""
        return _widened((self.wide or self.eager)(*in_float64(piece.inputs(inputs))))

    def rounded(
        self, inputs: Sequence[torch.Tensor], piece: Piece, dtype: torch.dtype | None, seed: int
    ) -> list[torch.Tensor]:
        """The same with rounding: that of eager's calls, or, where a type is named, of every operator to this type.

        Inputs are moved then, but in front of a jump: a kernel is given 2.5 itself, and is to round it as eager does.
        """
        given = piece.inputs(inputs)
        mode = RoundEveryResult(dtype or self.precision, dtype is not None, seed)
        with mode:
            result = (self.stepwise if dtype else self.eager)(*in_float64(given, dtype, seed))
        if dtype and mode.jumped:
            with RoundEveryResult(dtype, True, seed):
                result = self.stepwise(*in_float64(given))
        return _widened(result)

    def judge(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        tolerance: float,
        overflow_like_eager: bool,
        terms: int = 1,
        cut: Cut | None = None,
    ) -> Judgement:
        """What a kernel makes of these inputs, as `judge_outputs` does."""
        exact, rounded = functools.partial(self.exact, inputs), functools.partial(self.rounded, inputs)
        eager = as_tuple(self.eager(*inputs))
        return judge_outputs(name, outputs, exact, eager, rounded, tolerance, overflow_like_eager, terms, cut)


def _widened(result: Any) -> list[torch.Tensor]:
    return [y.double() for y in as_tuple(result)]


class _Output:
    """One output under judgement."""

    def __init__(
        self,
        i: int,
        y: torch.Tensor,
        eager: torch.Tensor,
        exact: Exact,
        rounded: Rounded,
        pieces: Sequence[Piece],
        overflow_like_eager: bool,
        known: Known,
    ) -> None:
        self.i, self.y, self.eager, self.known = i, y, eager, known
        self.exact, self.rounded, self.pieces = exact, rounded, pieces
        self.overflow_like_eager = overflow_like_eager

    def judgement(self, name: str, tolerance: float, terms: int) -> Judgement:
        result = coarser(self.y.dtype, self.eager.dtype)
        mine, (eagers, of_result) = self.compared(result)
        yardstick = eagers.larger(unavoidable(result, of_result, terms))
        for seed in range(DRAWS if math.isfinite(mine.error.norm) else 0):  # rounding excuses no infinite error
            if mine.error.over(yardstick) <= tolerance:
                break
            yardstick = yardstick.larger(self.rounding(None, seed)).larger(self.rounding(torch.float32, seed))
        allowed = Error(tolerance * yardstick.norm, tolerance * yardstick.row)
        overflow, excused = self.overflow(mine, allowed)
        return Judgement(name, mine.error, eagers, allowed, overflow, excused)

    def compared(self, result: torch.dtype) -> tuple[Measured, tuple[Error, Error]]:
        """The output, with eager's error and that of the exact output in this type, which are the same for every
        output that is judged on these data. One evaluation in float64 serves all three.

        Where eager overflows, and float64 does not, its error is at least that of its evaluation with rounding.
        """
        mine, theirs, rounded = (measured(self.y, self.i, self.pieces) for _ in range(3))
        keys = (self.i, "eager"), (self.i, "rounded")
        fresh, overflows = not all(key in self.known for key in keys), False
        for y, e, part in self.parts():
            mine.add(y, part, functools.partial(self.counted, y, e))
            if fresh:
                theirs.add(e, part, functools.partial(both_finite, e, part.ref))
                rounded.add(part.ref.to(result), part)
                overflows |= not theirs.finite and overflows_alone(e, part.ref)
        if fresh:
            eagers = theirs.error
            self.known[keys[0]] = eagers.larger(self.rounding(None, 0)) if overflows else eagers
            self.known[keys[1]] = rounded.error
        return mine, (self.known[keys[0]], self.known[keys[1]])

    def parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, Part]]:
        """For each piece: the output, eager's in its type, and float64's."""
        axis = row_axis(self.y.shape)
        for piece in self.pieces:
            part = Part.of(self.exact(piece)[self.i], axis)
            y, e = (piece.output(x, self.i) for x in (self.y, self.eager))
            yield y, e.to(y.dtype), part

    def rounding(self, dtype: torch.dtype | None, seed: int) -> Error:
        """The error of an evaluation with rounding. It has float64's range: what is beyond the output type's is so by
        rounding, and is measured as the infinity that it is stored as."""
        key = self.i, (dtype, seed)
        if key not in self.known:
            self.known[key] = self.evaluated(dtype, seed)
        return self.known[key]

    def evaluated(self, dtype: torch.dtype | None, seed: int) -> Error:
        found = measured(self.y, self.i, self.pieces)
        for piece in self.pieces:
            part = Part.of(self.exact(piece)[self.i], found.row_axis)
            x = self.rounded(piece, dtype, seed)[self.i]
            found.add(x.to(self.y.dtype), part, functools.partial(torch.isfinite, x))
        return found.error

    def counted(self, y: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        """The places that are not excused."""
        return ~self.excusable(y, e)

    def excusable(self, y: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        if not self.overflow_like_eager:
            return torch.zeros_like(y, dtype=torch.bool)
        return ~torch.isfinite(y) & ~torch.isfinite(e)

    def overflow(self, mine: Measured, allowed: Error) -> tuple[str | None, int]:
        """The first place that overflows beyond rounding, in words, and how many such places are excused."""
        if mine.finite or bool(torch.isfinite(self.y).all()):
            return None, 0
        first, count, excused = "", 0, 0
        for piece, (y, e, part) in zip(self.pieces, self.parts(), strict=True):
            ref = part.ref
            bad, excusable = overflows(y, ref, allowed.row * mine.row_sizes(ref)), self.excusable(y, e)
            excused += int((bad & excusable).sum())
            bad &= ~excusable
            if not first and bool(bad.any()):
                first = self.in_words(piece, y, ref, bad)
            count += int(bad.sum())
        more = f" and {count - 1} more places" if count > 1 else ""
        return (first.format(more=more) if first else None), excused

    def in_words(self, piece: Piece, y: torch.Tensor, ref: torch.Tensor, bad: torch.Tensor) -> str:
        at = [int(i) for i in bad.nonzero()[0]]
        value, expected = y[tuple(at)].item(), ref[tuple(at)].item()
        if piece.cut:
            at[piece.cut.outputs[self.i]] += piece.start
        return f"output {self.i} is {value} at {tuple(at)}{{more}}, where float64 has {expected:g}"


def coarser(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The one of two types that has the larger unit in the last place; the first, if one is not floating-point."""
    if not (a.is_floating_point and b.is_floating_point):
        return a
    return max(a, b, key=lambda t: torch.finfo(t).eps)


def unavoidable(dtype: torch.dtype, of_result: Error, terms: int) -> Error:
    """The error of the exact result rounded to the type, `of_result`, and at least half a unit in the last place.

    Where sums are accumulated in the result's own precision, their order is a matter of chance: as many times that as
    the root of the number of terms, and at least four times.
    """
    if not dtype.is_floating_point:
        return Error(0.0, 0.0)
    unit = torch.finfo(dtype).eps / 2 * (max(4.0, math.sqrt(terms)) if torch.finfo(dtype).bits >= 32 else 1)
    return of_result.larger(Error(unit, unit))
