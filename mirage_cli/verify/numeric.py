"""The floating-point net: a generated kernel against a float64 evaluation, beside eager PyTorch, on awkward inputs.

A kernel is right when what it returns is within what rounding in the program's own types can give, infinities included:
its error is at most `tolerance` times the larger of eager's error and of the rounding that nobody escapes, where an
infinity stands for every number beyond its type, and a NaN is right only where float64 has no number.
Error is measured twice, and both must pass: the norm of the difference over the norm of the result, and the worst row's
largest difference over that row's largest value, which sees one wrong row among thousands. Comparison with eager on the
same inputs takes care of data that make a program ill-conditioned for everyone. Where eager itself overflows, the
float64 evaluation with every operation rounded to the type's precision stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple  # what a function returns: a tensor, several, or nothing

from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program, spread
from mirage_cli.verify.facts import independent_axis, longest_sum, where_outputs_lie
from mirage_cli.verify.float64 import evaluated

if TYPE_CHECKING:
    import torch

    from mirage_cli.verify.lies import Lies
    from mirage_cli.verify.pieces import Cut
    from mirage_cli.verify.yardstick import Judgement, Reference

Run = Callable[["list[torch.Tensor]"], "Sequence[torch.Tensor]"]
AtOnce = Callable[[Run, "Sequence[list[torch.Tensor]]"], "Sequence[Sequence[torch.Tensor]] | None"]
"""What a function returns for each of several inputs, in one call; None where it has to be called for each."""


@dataclass(frozen=True, slots=True)
class NumericVerdict:
    """The judgement of all distributions. `worst` is the one nearest to, or furthest beyond, what is allowed.

    error, eager_error: norm errors against float64 on the first distribution, the one for ordinary data.
    tolerance: multiples of the yardstick that were allowed. untold: why all that passed proves nothing.
    """

    ok: bool
    worst: Judgement
    error: float
    eager_error: float
    tolerance: float
    detail: tuple[Judgement, ...]
    untold: str | None = None

    def __str__(self) -> str:
        if self.ok:
            return f"error {self.error:.2e}, eager's {self.eager_error:.2e}; all {len(self.detail)} distributions pass"
        problems = [f"{j.distribution}: {j.problem}" for j in self.detail if j.problem]
        return "; ".join(problems or [self.untold or ""])


def judge(
    program: Program,
    run: Run,
    eager: Callable[..., Any],
    device: torch.device | str = "cpu",
    seed: int = 0,
    tolerance: float | None = None,
    distributions: Sequence[str] | None = None,
    overflow_like_eager: bool = False,
    reference: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] | None = None,
    at_once: AtOnce | None = None,
) -> NumericVerdict:
    """Judges `run` at the program's sizes. Exceptions of `run` pass through; ValueError for outputs of other shapes,
    and for inputs that it changes though the program does not.

    run: returns the program's results. eager: `eager(*inputs)` in PyTorch, a tensor or a tuple: its outputs, each as a
    tensor of its own. distributions: names of those to try, all by default.
    overflow_like_eager: let an inf or NaN pass where eager has one too: for plans that keep intermediates in float16.
    reference: float64 outputs from the inputs, where the program's own evaluation (`reference64`) is not wanted.
    at_once: calls `run` for all distributions together. What that refuses is judged again, one call after the other.
    """
    import torch

    from mirage_cli.verify.lies import Lies
    from mirage_cli.verify.pieces import Cut
    from mirage_cli.verify.testdata import DISTRIBUTIONS
    from mirage_cli.verify.yardstick import Reference

    where = torch.device(device)
    axis = independent_axis(program) if reference is None else None
    lies = [Lies(*x) for x in places] if (places := where_outputs_lie(program)) else None
    primitive = lower(program.apart())

    def definition(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return evaluated(program, primitive, inputs)

    wide = definition if reference is None else lambda *inputs: reference(list(inputs))
    judged = _Judged(
        program,
        Reference(eager, definition, getattr(torch, program.dtype), wide),
        lies,
        program.tolerance if tolerance is None else tolerance,
        overflow_like_eager,
        Cut(*axis).on(where) if axis else None,
    )
    seeds = {k.name: seed + i for i, k in enumerate(DISTRIBUTIONS)}
    names = [name for name in seeds if distributions is None or name in distributions]

    def draws() -> Iterator[_Draw]:
        return (_Draw(name, draw_inputs(program, name, where, seeds[name])) for name in names)

    drawn: Iterable[_Draw] = draws()
    if at_once is not None:
        drawn = [*drawn]
        if (calls := _together(drawn, lies, run, at_once)) is not None:
            with suppress(ValueError):  # which calls one by one raise too, or which is theirs alone
                right = [*takewhile(lambda j: j.problem is None, judged.judgements(calls))]
                if len(right) == len(names) and (verdict := judged.verdict(right)).ok:
                    return verdict
            drawn = draws()  # what writes to its inputs has changed them
    return judged.verdict([*judged.judgements(_one_by_one(drawn, lies, run))])


class _Draw(NamedTuple):
    """Inputs that are drawn from a distribution."""

    distribution: str
    inputs: list[torch.Tensor]


class _Call(NamedTuple):
    """A call on such inputs: what the function was given, which it may have changed, and what it returned."""

    draw: _Draw
    given: list[torch.Tensor]
    results: Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Judged:
    """A program by which calls are judged. lies: where its outputs lie, if it has parts. cut: as of `yardstick`."""

    program: Program
    reference: Reference
    lies: Sequence[Lies] | None
    tolerance: float
    overflow_like_eager: bool
    cut: Cut | None

    def judgements(self, calls: Iterable[_Call]) -> Iterator[Judgement]:
        """Of each call. Raises ValueError."""
        from mirage_cli.verify.lies import changed_elsewhere, outputs_of

        terms = longest_sum(self.program)
        for (name, inputs), given, results in calls:
            outputs = outputs_of(self.lies, results, given)
            if changed := [self.program.inputs[i].name for i in changed_elsewhere(self.lies, given, inputs)]:
                raise ValueError(f"writes to its inputs: {', '.join(changed)}")
            allowed = self.tolerance, self.overflow_like_eager
            yield self.reference.judge(name, inputs, outputs, *allowed, terms, self.cut)

    def verdict(self, found: Sequence[Judgement]) -> NumericVerdict:
        """Of all distributions."""
        from mirage_cli.verify.yardstick import untold

        worst, nothing = max(found, key=lambda j: j.score), untold(found)
        ok = nothing is None and all(j.problem is None for j in found)
        errors = found[0].error.norm, found[0].eager_error.norm
        return NumericVerdict(ok, worst, *errors, self.tolerance, tuple(found), nothing)


def _one_by_one(draws: Iterable[_Draw], lies: Sequence[Lies] | None, run: Run) -> Iterator[_Call]:
    from mirage_cli.verify.lies import fresh_memory_is_nan, to_be_changed

    for draw in draws:
        with fresh_memory_is_nan():
            given = to_be_changed(lies, draw.inputs)
            results = run(given)
        yield _Call(draw, given, results)


def _together(draws: Sequence[_Draw], lies: Sequence[Lies] | None, run: Run, at_once: AtOnce) -> list[_Call] | None:
    from mirage_cli.verify.lies import fresh_memory_is_nan, to_be_changed

    with fresh_memory_is_nan():
        given = [to_be_changed(lies, draw.inputs) for draw in draws]
        results = at_once(run, given)
    return None if results is None else [*map(_Call, draws, given, results)]


def draw_inputs(program: Program, distribution: str, device: torch.device, seed: int) -> list[torch.Tensor]:
    """The program's inputs from the distribution of this name."""
    import torch

    from mirage_cli.verify.testdata import DISTRIBUTIONS, draw

    kind = next(k for k in DISTRIBUTIONS if k.name == distribution)
    sizes = program.sizes
    shapes = [tuple(sizes[d] for d in t.dims) for t in program.inputs]
    dtypes: list[torch.dtype] = [getattr(torch, t.dtype) for t in program.inputs]
    spreads = [spread(t, sizes) for t in program.inputs]
    strides = [t.steps(sizes) if t.strides else None for t in program.inputs]
    return draw(kind, shapes, dtypes, spreads, longest_sum(program), device, seed, strides)
