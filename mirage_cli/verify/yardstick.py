"""The judgement of outputs: what error is allowed. With the modules that it imports it needs torch alone: exported
kernels carry their text.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any  # what a function returns: a tensor, several, or nothing

import torch

from mirage_cli.verify.decided import FEW, MANY, ROUNDS, Decisions, decides
from mirage_cli.verify.distance import Error, Measured, Part, both_finite, overflows, overflows_alone
from mirage_cli.verify.pieces import Block, Cut, Piece, as_tuple, in_blocks, pieces_of, pieces_with
from mirage_cli.verify.rounding import (
    MoveEveryResult,
    RangeOfEveryResult,
    RecordDecisions,
    RoundEveryResult,
    in_float64,
)
from mirage_cli.verify.rows import row_axis

DRAWS = 8
"""Evaluations with rounding by chance: one alone is exact by luck where an output, or a mean that all of an output
rests on, is a single number."""
SELDOM = 1 / 64
"""The part of an output whose elements may rest on what rounding decides, where they are more than `MANY`; of a small
one, half."""
MUCH = 4.0
"""How many times as large an error is that rounding does not make where it decides nothing."""
SOME = 2
"""Rounds of evaluations in which elements that rest on decisions are looked for. Most outputs that are wrong have
none."""

Exact = Callable[[Piece], Sequence[torch.Tensor]]
"""The outputs in float64 for a piece of the inputs."""
AS_DECIDED = math.inf
"""For evaluations with rounding that make float64's decisions; they give nothing where there are none."""
Rounded = Callable[[Piece, torch.dtype | None, int, float | None], Sequence[torch.Tensor]]
"""The same with rounding (None: eager's, to the program's type; else the definition's, to this type), a seed, and for
decisions how many times as much (`MoveEveryResult`)."""
Ranged = Callable[[Piece, int | None, float], Sequence[torch.Tensor]]
"""The definition in float64 for a piece of the inputs, in the range of float32. With a seed, every result is moved by
up to so many times as much as rounding does (`MoveEveryResult`)."""
SEEDS = range(ROUNDS[-1].stop)
"""Of evaluations in which infinities are looked for that rounding makes, at most."""
Tame = Callable[[Piece, int], Sequence[torch.Tensor]]
"""The outputs in float64 for numbers near 1 in the place of a piece's floating-point inputs, drawn by a seed."""
TAME = range(2)
"""Seeds of evaluations on such numbers."""


@dataclass
class Overflows:
    """Where rounding decides whether elements of a piece of an output are numbers.

    finite: those that are numbers in float32's range, without rounding. found: those for which an evaluation with moved
    results says otherwise: it has an infinity in place of a number, or a number in place of an infinity. seeds: how
    many evaluations with moved results were made.
    """

    finite: torch.Tensor
    found: torch.Tensor
    seeds: int = 0


@dataclass(frozen=True)
class Known:
    """What no candidate changes on one draw of inputs.

    errors: by output, those of eager and of evaluations with rounding. overflows: by output and piece.
    """

    errors: dict[tuple[int, object], Error] = field(default_factory=dict[tuple[int, object], Error])
    overflows: dict[tuple[int, Piece], Overflows] = field(default_factory=dict[tuple[int, Piece], Overflows])


@dataclass(frozen=True)
class Undecided(Error):
    """An error but for elements that rest on decisions. decided: how many these are."""

    decided: int = 0


def measured(y: torch.Tensor, i: int, pieces: Sequence[Piece]) -> Measured:
    """For the pieces of `y`, which is output number i."""
    cut = pieces[0].cut
    return Measured(y.shape, cut.outputs[i] if cut else 0)


def error_of(
    y: torch.Tensor,
    i: int,
    exact: Exact,
    pieces: Sequence[Piece],
    eager: Callable[[], torch.Tensor] | None = None,
    ranged: Ranged | None = None,
) -> Error:
    """The error of output number i; infinite where an infinity is further off than the largest value of its row, which
    no rounding explains.

    eager: what eager PyTorch makes of it, asked for where the output has an inf or NaN: those that are `excusable` do
    not count. None where nothing is excused.
    """
    y = y.double() if decides(y.dtype) else y
    mine = measured(y, i, pieces)

    def counted(piece: Piece) -> torch.Tensor:
        part = piece.output(y, i)
        if eager is None or bool(torch.isfinite(part).all()):
            return torch.ones_like(part, dtype=torch.bool)
        return ~excusable(part, piece.output(eager(), i).to(y.dtype), ranged, piece, i)

    for piece in pieces:
        part = Part.of(exact(piece)[i], mine.row_axis)
        mine.add(piece.output(y, i), part, functools.partial(counted, piece))
    if not mine.finite and not bool(torch.isfinite(y).all()):
        for piece in pieces:
            ref = exact(piece)[i]
            if bool((overflows(piece.output(y, i), ref, mine.row_sizes(ref)) & counted(piece)).any()):
                return Error(math.inf, math.inf)
    return mine.error


def excusable(y: torch.Tensor, eager: torch.Tensor, ranged: Ranged | None, piece: Piece, i: int) -> torch.Tensor:
    """Where an inf or NaN in a piece of output number i is let pass: eager has one too, or may have one in another
    order of its sums."""
    mine, theirs = ~torch.isfinite(y), ~torch.isfinite(eager)
    if ranged is not None and bool((mine & ~theirs).any()):
        theirs |= ~torch.isfinite(ranged(piece, None, 0.0)[i])
    return mine & theirs


@dataclass(frozen=True)
class Judgement:
    """What became of one distribution, in its worst output. `allowed` already holds the tolerance.

    wrong: where the output has an inf or NaN that float64 lacks, or decides as no rounding does, in words; None where
    nowhere.
    excused: how many more infinities and NaNs of all outputs were let pass, because eager has one there too.
    told: whether, of each output, at least half of the elements were compared: of decisions, those that are settled.
    """

    distribution: str
    error: Error
    eager_error: Error
    allowed: Error
    wrong: str | None = None
    excused: int = 0
    told: bool = True

    @property
    def score(self) -> float:
        """1 is the most that passes."""
        return math.inf if self.wrong else self.error.over(self.allowed)

    @property
    def problem(self) -> str | None:
        """Why it did not pass."""
        if self.wrong or self.score <= 1:
            return self.wrong
        mine, most = self.error, self.allowed
        return f"error {mine.norm:.2e} (row {mine.row:.2e}), allowed {most.norm:.2e} (row {most.row:.2e})"


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
    ranged: Ranged | None = None,
    tame: Tame | None = None,
) -> Judgement:
    """Outputs pass that are within what rounding in the program's own types can give, infinities included: with an
    error of at most `tolerance` times the yardstick, where an infinity stands for all that lies beyond its type.

    The yardstick is the larger of eager's error and of what nobody escapes, rounding the result (`unavoidable`) to the
    output's type, or to that of eager's result where it is the coarser. Who fails it is compared with two evaluations
    in float64 too, each with up to `DRAWS` seeds: `rounded(.., None, seed)`, eager PyTorch with every result and all
    operands of matrix products rounded to the program's type, since eager's own error may be small by luck where
    outputs have few elements, or by its order of multiplying (with seed 0 it also stands in for eager where that has an
    inf or NaN and float64 has none); and `rounded(.., torch.float32, seed)`, the definition operator by operator in
    float32 from inputs as far off, since eager's fused operators may be exact where no sum is. Whole numbers, masks
    and float8 are decisions: `judge_decisions`; so are the few elements of another output that rest on such.
    terms: of the longest sum in the program.
    overflow_like_eager: let an inf or NaN pass in places where eager has one too (a matmul kept in float16, say).
    cut: along which exact and rounded outputs are made, so that few of them are held at a time.
    known: what the yardstick came to for other outputs of the same problem and data; what this one adds is put there.
    ranged: the definition with the range of float32, in which sums overflow by their order: where that has an inf or
    NaN, eager may have one too, in another order. Where only evaluations with moved results in that range have one, it
    is what rounding gives, and needs no excuse: exp of a difference that is 0, or 1000 by the last places of its terms.
    tame: where an infinity of float64's is the same on these numbers, as a mask's is, the output has it too.

    Raises ValueError for outputs of another number or shape than eager's.
    """
    if [y.shape for y in outputs] != [e.shape for e in eager]:
        shapes, expected = ([tuple(x.shape) for x in group] for group in (outputs, eager))
        raise ValueError(f"the outputs have the shapes {shapes}, not {expected}")
    pieces, anew = pieces_of(cut), rounded
    if len(pieces) == 1:
        exact, rounded, ranged = functools.cache(exact), functools.cache(rounded), ranged and functools.cache(ranged)
    found: list[Judgement] = []
    for i, y in enumerate(outputs):
        if decides(y.dtype):
            found.append(judge_decisions(name, i, y, eager[i], exact, anew, pieces, tolerance))
            continue
        how = anew, pieces, overflow_like_eager, ranged, tame, known or Known()
        found.append(_Output(i, y, eager[i], exact, rounded, *how).judgement(name, tolerance, terms))
    worst = max(found, key=lambda j: j.score)
    return replace(worst, excused=sum(j.excused for j in found), told=all(j.told for j in found))


def judge_decisions(
    name: str,
    i: int,
    y: torch.Tensor,
    eager: torch.Tensor,
    exact: Exact,
    rounded: Rounded,
    pieces: Sequence[Piece],
    tolerance: float,
) -> Judgement:
    """Of output number i, whose elements are decisions. Errors are the part of the elements that differ from float64's;
    allowed are those that rounding may decide so."""
    axis = pieces[0].cut.outputs[i] if pieces[0].cut else 0
    mine, theirs = (Decisions(y.shape, axis, y.dtype) for _ in range(2))
    for piece in pieces:
        ref, by_eager = exact(piece)[i], piece.output(eager, i)
        mine.add(piece.output(y, i), ref, piece.positions)
        mine.look(by_eager.double(), piece.positions)
        theirs.add(by_eager.to(y.dtype), ref, piece.positions)
    explain(mine, i, rounded, pieces, tolerance)
    found, count = mine.decided(), max(1, mine.count)
    parts = (found.differing, len(theirs.at), found.differing - found.wrong)
    error, eagers, allowed = (Error(n / count, n / count) for n in parts)
    return Judgement(name, error, eagers, allowed, found.in_words(f"output {i}"), 0, 2 * found.told >= count)


def explain(
    found: Decisions,
    i: int,
    rounded: Rounded,
    pieces: Sequence[Piece],
    tolerance: float,
    rounds: Sequence[range] = ROUNDS,
) -> None:
    """Has evaluations of output number i with moved results looked at, until these explain all of it, or little."""
    for seeds in rounds:
        for piece in pieces_with(found.open_positions(), pieces):
            for seed, times, dtype in ways(seeds, max(1.0, tolerance)):
                if not found.open(piece.positions):
                    break
                found.look(rounded(piece, dtype, seed, times)[i], piece.positions)
        if found.hopeless:
            break


def ways(seeds: range, tolerance: float) -> Iterator[tuple[int, float, torch.dtype | None]]:
    """The evaluations with these seeds: the seed, how many times as much as rounding it moves results, and of which
    type (None: of eager's). Some round to equal numbers; in the second round, where many elements are open still, none.
    """
    several = (tolerance,) if seeds == ROUNDS[1] else (tolerance, 0.0)
    return itertools.product(seeds, several, (None, torch.float32))


UNTOLD = "rounding decides most of an output on every distribution: nothing was compared"


def untold(found: Iterable[Judgement]) -> str | None:
    """Why judgements that have all passed prove nothing; None where one of them does."""
    return None if any(j.told for j in found) else UNTOLD


@dataclass(frozen=True)
class Reference:
    """A program in PyTorch, by which kernels are judged: in the GPU process, in the interpreter, in exported files.

    eager: as a user calls it. stepwise: its definition, operator by operator. precision: the type that it computes in.
    wide: what gives the outputs of inputs in float64, where that is not `eager`. All return a tensor or several.
    blocks: in which each piece is evaluated.
    """

    eager: Callable[..., Any]
    stepwise: Callable[..., Any]
    precision: torch.dtype
    wide: Callable[..., Any] | None = None
    blocks: tuple[Block, ...] = ()

    def evaluated(self, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of a piece, as float64, by one of the program's functions."""
        return [y.double() for y in in_blocks(function, inputs, self.blocks)]

    def by_eager(self, inputs: Sequence[torch.Tensor], pieces: Sequence[Piece]) -> list[torch.Tensor]:
        """The outputs by eager PyTorch; piece by piece, where memory has no room for what it makes on its way."""
        cut = pieces[0].cut
        try:
            return [*as_tuple(self.eager(*inputs))]
        except torch.OutOfMemoryError:
            if cut is None and not self.blocks:
                raise
        parts = [in_blocks(self.eager, piece.inputs(inputs), self.blocks) for piece in pieces]
        if cut is None:
            return [*parts[0]]
        return [torch.cat(some, axis) for some, axis in zip(zip(*parts, strict=True), cut.outputs, strict=True)]

    def exact(self, inputs: Sequence[torch.Tensor], piece: Piece) -> list[torch.Tensor]:
        """The outputs in float64."""
        return self.evaluated(self.wide or self.eager, in_float64(piece.inputs(inputs)))

    def rounded(
        self,
        inputs: Sequence[torch.Tensor],
        piece: Piece,
        dtype: torch.dtype | None,
        seed: int,
        times: float | None = None,
    ) -> list[torch.Tensor]:
        """The same with rounding: that of eager's calls, or, where a type is named, of every operator to this type.

        Inputs are moved then, but in front of a jump: a kernel is given 2.5 itself, and is to round it as eager does.
        times: for decisions, of inputs as they are: as of `MoveEveryResult`; or 0 to round each result in the type's
        range, by which numbers that are near each other become equal, and so do those that are near 0; or `AS_DECIDED`.
        """
        given, function = piece.inputs(inputs), self.stepwise if dtype else self.eager
        if times == AS_DECIDED:
            return self.rounded_as_decided(given, dtype, seed)
        if times is not None:
            precision, summing = dtype or self.precision, dtype is not None
            least = torch.finfo(precision).tiny * (1 if seed % 2 else torch.finfo(precision).eps)  # may be flushed to 0
            moved = MoveEveryResult(precision, summing, seed, times) if times else None
            with moved or RoundEveryResult(precision, summing, seed, least):
                return self.evaluated(function, in_float64(given))
        how, moved = (dtype or self.precision, dtype is not None, seed), in_float64(given, dtype, seed)
        with RoundEveryResult(*how) as mode:
            result = self.evaluated(function, moved)
        if dtype and mode.jumped:
            with RoundEveryResult(*how):
                result = self.evaluated(function, in_float64(given))
        return result

    def rounded_as_decided(
        self, given: Sequence[torch.Tensor], dtype: torch.dtype | None, seed: int
    ) -> list[torch.Tensor]:
        """The same with float64's decisions; nothing where there are neither these nor jumps: that is what it is
        without."""
        function = self.stepwise if dtype else self.eager
        with RecordDecisions() as exact:
            self.evaluated(function, in_float64(given))
        if not (exact.made or exact.jumped):
            return []
        with RoundEveryResult(dtype or self.precision, dtype is not None, seed, made=exact.made):
            return self.evaluated(function, in_float64(given, dtype, seed))

    def ranged(
        self, inputs: Sequence[torch.Tensor], piece: Piece, seed: int | None = None, times: float = 0.0
    ) -> list[torch.Tensor]:
        """Its definition in float64, with the infinities and NaN that float32's range may make of it.

        seed: every result is moved by up to `times` as much as rounding moves it by (`MoveEveryResult`); None: none is.
        """
        given = in_float64(piece.inputs(inputs))
        with RangeOfEveryResult(torch.float32):
            if seed is None:
                return self.evaluated(self.stepwise, given)
            with MoveEveryResult(torch.float32, True, seed, times):
                return self.evaluated(self.stepwise, given)

    def tame(self, inputs: Sequence[torch.Tensor], piece: Piece, seed: int) -> list[torch.Tensor]:
        """Its outputs in float64 for numbers near 1, of either sign, in the place of floating-point inputs."""
        return self.evaluated(self.wide or self.eager, tamed(piece.inputs(inputs), seed))

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
        ranged, tame = functools.partial(self.ranged, inputs), functools.partial(self.tame, inputs)
        how = tolerance, overflow_like_eager, terms, cut, None, ranged, tame
        return judge_outputs(name, outputs, exact, self.by_eager(inputs, pieces_of(cut)), rounded, *how)


class _Output:
    """One output under judgement."""

    def __init__(
        self,
        i: int,
        y: torch.Tensor,
        eager: torch.Tensor,
        exact: Exact,
        rounded: Rounded,
        anew: Rounded,
        pieces: Sequence[Piece],
        overflow_like_eager: bool,
        ranged: Ranged | None,
        tame: Tame | None,
        known: Known,
    ) -> None:
        self.i, self.y, self.eager, self.known = i, y, eager, known
        self.exact, self.rounded, self.anew, self.pieces = exact, rounded, anew, pieces
        self.overflow_like_eager, self.ranged, self.tame = overflow_like_eager, ranged, tame
        self.excuses = False
        self.explained: dict[Piece, torch.Tensor] = {}  # where rounding decides whether there is a number

    def judgement(self, name: str, tolerance: float, terms: int) -> Judgement:
        """What passes without excuse has none. What is neither a number nor excused is looked for in evaluations with
        rounding. Where these explain most elements, nothing is told."""
        own = self.judged(name, tolerance, terms)
        if own.problem is None or (own.wrong is None and bool(torch.isfinite(self.y).all())):
            return own
        if self.overflow_like_eager:
            self.excuses = True
            own = self.judged(name, tolerance, terms)
            if own.problem is None:
                return replace(own, excused=max(1, own.excused))
        if count := self.explain_overflows(max(1.0, tolerance)):
            own = replace(self.judged(name, tolerance, terms), told=2 * count <= self.y.numel())
        return own

    def explain_overflows(self, tolerance: float) -> int:
        """How many infinities and NaNs, and numbers where float64 has none, are what rounding gives. Evaluations of a
        piece end when they explain all of them, or when `FEW` leave more than half unexplained: then none is made of
        the pieces behind it."""
        explained = 0
        for piece, y, e, part in self.parts() if self.ranged is not None else ():
            finite = torch.isfinite(part.ref)
            wrong = ~torch.isfinite(y) & finite & ~self.excusable(piece, y, e) | self.missed(piece, y, e, part.ref)
            left, count = wrong.clone(), int(wrong.sum())
            rest, in_vain = count, False
            for seed in SEEDS:
                if not rest or in_vain:
                    break
                left &= ~self.overflows_of(piece, seed, tolerance, finite)
                rest = int(left.sum())
                in_vain = seed + 1 >= FEW and 2 * rest > max(MANY, count)
            self.explained[piece] = wrong & ~left
            explained += count - rest
            if in_vain:
                break
        return explained

    def overflows_of(self, piece: Piece, seed: int, tolerance: float, finite: torch.Tensor) -> torch.Tensor:
        """Where an evaluation with moved results, of this seed or one before it, has an infinity in place of a number,
        or a number in place of an infinity. finite: where float64 has numbers; where float32's range alone changes
        that, nothing is explained."""
        assert self.ranged is not None
        key = self.i, piece
        if key not in self.known.overflows:
            here = torch.isfinite(self.ranged(piece, None, 0.0)[self.i])
            self.known.overflows[key] = Overflows(here, torch.zeros_like(here))
        known = self.known.overflows[key]
        for fresh in range(known.seeds, seed + 1):
            known.found |= known.finite != torch.isfinite(self.ranged(piece, fresh, tolerance)[self.i])
            known.seeds = fresh + 1
        return known.found & (known.finite == finite)

    def missed(self, piece: Piece, y: torch.Tensor, e: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
        """Where a piece lacks an infinity that it has to have: float64 has it for these inputs and for numbers near 1,
        eager has it, and float32's range does not change it. A mask gives such infinities, and so does the logarithm
        of an empty sum."""
        missed = ref.isinf() & (y.double() != ref)
        if self.ranged is None or self.tame is None or not bool(missed.any()):
            return torch.zeros_like(missed)
        missed &= (e.double() == ref) & (self.ranged(piece, None, 0.0)[self.i] == ref)
        for seed in TAME if bool(missed.any()) else ():
            missed &= self.tame(piece, seed)[self.i] == ref
        return missed

    def judged(self, name: str, tolerance: float, terms: int) -> Judgement:
        result = coarser(self.y.dtype, self.eager.dtype)
        mine, (eagers, of_result) = self.compared(result)
        least = unavoidable(result, of_result, terms)
        yardstick = eagers.larger(least)
        if mine.error.over(least) > tolerance and eagers.over(least) > tolerance:
            rounding = self.with_rounding(least, 0)
            if mine.error.over(rounding) <= tolerance:
                yardstick = rounding
            else:
                eagers = self.eagers_undecided(eagers, rounding, tolerance)
                yardstick = eagers.larger(least)
        allowed = scaled(tolerance, self.drawn(mine, yardstick, tolerance))
        if mine.error.over(allowed) > 1 and mine.finite:
            few = 2 * eagers.decided if isinstance(eagers, Undecided) else 0
            mine, _ = self.without_decided(self.y, mine, allowed, tolerance, few)
        wrong, excused = self.overflow(mine, allowed)
        return Judgement(name, mine.error, eagers, allowed, wrong, excused)

    def drawn(self, mine: Measured, yardstick: Error, tolerance: float) -> Error:
        """The yardstick with as many evaluations with rounding as it takes for the output to pass, up to `DRAWS`."""
        for seed in range(DRAWS if math.isfinite(mine.error.norm) else 0):  # rounding excuses no infinite error
            if mine.error.over(yardstick) <= tolerance:
                break
            yardstick = self.with_rounding(yardstick, seed)
        return yardstick

    def with_rounding(self, yardstick: Error, seed: int) -> Error:
        """At least the errors of both evaluations with rounding."""
        return yardstick.larger(self.rounding(None, seed)).larger(self.rounding(torch.float32, seed))

    def eagers_undecided(self, eagers: Error, rounding: Error, tolerance: float) -> Error:
        """Eager's error, where it is larger than rounding explains, but for elements that it decides otherwise than
        float64: their error is no measure of the others'."""
        key = self.i, "undecided"
        if key not in self.known.errors:
            self.known.errors[key] = eagers
            if rounding.row < eagers.row < math.inf and eagers.over(rounding) > tolerance:
                y, found = self.eager.to(self.y.dtype), measured(self.y, self.i, self.pieces)
                for _, _, e, part in self.parts():
                    found.add(e, part, functools.partial(both_finite, e, part.ref))
                if found.finite:
                    left, decided = self.without_decided(y, found, scaled(tolerance, rounding), tolerance)
                    self.known.errors[key] = Undecided(left.error.norm, left.error.row, decided)
        return self.known.errors[key]

    def without_decided(
        self, y: torch.Tensor, found: Measured, allowed: Error, tolerance: float, few: int = 0
    ) -> tuple[Measured, int]:
        """The error of all but the elements that rest on what rounding decides, where those are few, and how many those
        are. few: so many are, in any case."""
        off = Decisions(y.shape, self.pieces[0].cut.outputs[self.i] if self.pieces[0].cut else 0, y.dtype)
        for piece in self.pieces:
            ref = self.exact(piece)[self.i]
            off.add(piece.output(y, self.i), ref, piece.positions, allowed.row * found.row_sizes(ref))
        if not 0 < len(off.at) <= most_decided(off.count, few):
            return found, 0
        explain(off, self.i, self.anew, self.pieces, tolerance, ROUNDS[:SOME])
        if not bool(off.explained.any()):
            return found, 0
        decided = torch.zeros(y.shape, dtype=torch.bool, device=y.device)
        decided.view(-1)[off.at[off.explained]] = True
        left = measured(y, self.i, self.pieces)
        for piece, _, _, part in self.parts():
            mine = piece.output(y, self.i)
            left.add(torch.where(piece.output(decided, self.i), part.ref.to(y.dtype), mine), part)
        return left, int(off.explained.sum())

    def compared(self, result: torch.dtype) -> tuple[Measured, tuple[Error, Error]]:
        """The output, with eager's error and that of the exact output in this type, which are the same for every
        output that is judged on these data. One evaluation in float64 serves all three.

        Where eager overflows, and float64 does not, its error is at least that of its evaluation with rounding.
        """
        mine, theirs, rounded = (measured(self.y, self.i, self.pieces) for _ in range(3))
        keys = (self.i, "eager"), (self.i, "rounded")
        fresh, overflows = not all(key in self.known.errors for key in keys), False
        for piece, y, e, part in self.parts():
            mine.add(y, part, functools.partial(self.counted, piece, y, e))
            if fresh:
                theirs.add(e, part, functools.partial(both_finite, e, part.ref))
                rounded.add(stored(part.ref, result), part)
                overflows |= not theirs.finite and overflows_alone(e, part.ref)
        if fresh:
            eagers = theirs.error
            self.known.errors[keys[0]] = eagers.larger(self.rounding(None, 0)) if overflows else eagers
            self.known.errors[keys[1]] = rounded.error
        return mine, (self.known.errors[keys[0]], self.known.errors[keys[1]])

    def parts(self) -> Iterator[tuple[Piece, torch.Tensor, torch.Tensor, Part]]:
        """Each piece, with the output, eager's in its type, and float64's."""
        axis = row_axis(self.y.shape)
        for piece in self.pieces:
            part = Part.of(self.exact(piece)[self.i], axis)
            y, e = (piece.output(x, self.i) for x in (self.y, self.eager))
            yield piece, y, e.to(y.dtype), part

    def rounding(self, dtype: torch.dtype | None, seed: int) -> Error:
        """The error of an evaluation with rounding. It has float64's range: what is beyond the output type's is so by
        rounding, and is measured as the infinity that it is stored as."""
        key = self.i, (dtype, seed)
        if key not in self.known.errors:
            self.known.errors[key] = self.evaluated(dtype, seed)
        return self.known.errors[key]

    def evaluated(self, dtype: torch.dtype | None, seed: int) -> Error:
        """Where float64's decisions make it much smaller, and few elements are off by more than that, the others'."""
        found, made = self.evaluation(dtype, seed, None)
        unit = Error(*[torch.finfo(coarser(self.y.dtype, self.eager.dtype)).eps] * 2)
        if not found.finite or found.error.over(unit) <= MUCH:
            return found.error
        as_decided, _ = self.evaluation(dtype, seed, AS_DECIDED)
        most = as_decided.error
        if not as_decided.count or found.error.over(most) <= MUCH:
            return found.error
        left, off, count = measured(self.y, self.i, self.pieces), 0, 0
        for piece, x in zip(self.pieces, made, strict=True):
            part = Part.of(self.exact(piece)[self.i], found.row_axis)
            decided = (x.double() - part.ref).abs() > MUCH * most.row * found.row_sizes(part.ref)
            left.add(torch.where(decided, part.ref.to(x.dtype), x), part)
            off, count = off + int(decided.sum()), count + x.numel()
        return left.error if off <= most_decided(count) else found.error

    def evaluation(
        self, dtype: torch.dtype | None, seed: int, times: float | None
    ) -> tuple[Measured, list[torch.Tensor]]:
        """Its error, and what it gives, piece by piece; of none, where no decisions are to be made as in float64."""
        found, made = measured(self.y, self.i, self.pieces), list[torch.Tensor]()
        for piece in self.pieces:
            outputs = self.rounded(piece, dtype, seed, times)
            if not outputs:
                break
            x = outputs[self.i]
            made.append(x.to(self.y.dtype))
            part = Part.of(self.exact(piece)[self.i], found.row_axis)
            found.add(made[-1], part, functools.partial(torch.isfinite, x))
        return found, made

    def counted(self, piece: Piece, y: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        """The places that are not excused."""
        return ~self.excusable(piece, y, e)

    def excusable(self, piece: Piece, y: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        """Of a piece: what rounding explains, and nothing else as long as nothing is excused."""
        explained = self.explained_of(piece, y)
        return explained | excusable(y, e, self.ranged, piece, self.i) if self.excuses else explained

    def explained_of(self, piece: Piece, y: torch.Tensor) -> torch.Tensor:
        """Where rounding explains that a piece has a number, or none."""
        return self.explained[piece] if piece in self.explained else torch.zeros_like(y, dtype=torch.bool)

    def overflow(self, mine: Measured, allowed: Error) -> tuple[str | None, int]:
        """The first place that overflows beyond rounding, or lacks an infinity, in words, and how many such places are
        excused."""
        if mine.finite:
            return None, 0
        first, count, excused = "", 0, 0
        for piece, y, e, part in self.parts():
            ref = part.ref
            bad, excusable = overflows(y, ref, allowed.row * mine.row_sizes(ref)), self.excusable(piece, y, e)
            excused += int((bad & excusable & ~self.explained_of(piece, y)).sum())
            bad &= ~excusable
            bad |= self.missed(piece, y, e, ref) & ~self.explained_of(piece, y)
            if not first and bool(bad.any()):
                first = self.in_words(piece, y, ref, bad)
            count += int(bad.sum())
        more = f" and {count - 1} more places" if count > 1 else ""
        return (first.format(more=more) if first else None), excused

    def in_words(self, piece: Piece, y: torch.Tensor, ref: torch.Tensor, bad: torch.Tensor) -> str:
        at = [int(i) for i in bad.nonzero()[0]]
        value, expected = y[tuple(at)].item(), ref[tuple(at)].item()
        if piece.cut and piece.positions:
            at[piece.cut.outputs[self.i]] += piece.positions[0]
        return f"output {self.i} is {value} at {tuple(at)}{{more}}, where float64 has {expected:g}"


def tamed(inputs: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """The inputs with numbers in float64 from 0.5 to 1.5, of either sign, for all floating-point ones."""
    made: list[torch.Tensor] = []
    for i, x in enumerate(inputs):
        g = torch.Generator(device=x.device).manual_seed(len(TAME) * i + seed)
        if x.is_floating_point():
            sizes, signs = (torch.rand(x.shape, generator=g, dtype=torch.float64, device=x.device) for _ in range(2))
            made.append((sizes + 0.5).copysign(signs - 0.5))
        else:
            made.append(x)
    return made


def most_decided(count: int, few: int = 0) -> float:
    """Of so many elements, those that may rest on decisions. few: so many, if that is more than a few."""
    return min(max(MANY, SELDOM * count, few), count / 2)


def scaled(factor: float, error: Error) -> Error:
    return Error(factor * error.norm, factor * error.row)


def stored(ref: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The exact result in this type, and 0 where float32 has no normal number: fast functions of a GPU flush that."""
    y = ref.to(dtype)
    return y.masked_fill(ref.abs() < torch.finfo(torch.float32).tiny, 0) if dtype.is_floating_point else y


def coarser(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The one of two types that has the larger unit in the last place; the first, if one is not floating-point."""
    if not (a.is_floating_point and b.is_floating_point):
        return a
    return max(a, b, key=lambda t: torch.finfo(t).eps)


def unavoidable(dtype: torch.dtype, of_result: Error, terms: int) -> Error:
    """The error of the exact result as it is `stored`, `of_result`, and at least half a unit in the last place.

    Where sums are accumulated in the result's own precision, their order is a matter of chance: as many times that as
    the root of the number of terms, and at least four times.
    """
    if not dtype.is_floating_point:
        return Error(0.0, 0.0)
    unit = torch.finfo(dtype).eps / 2 * (max(4.0, math.sqrt(terms)) if torch.finfo(dtype).bits >= 32 else 1)
    return of_result.larger(Error(unit, unit))
