"""check_equivalence: structure first, then random tests in finite fields of the μGraph as scheduled, at reduced sizes.

What a passing verdict claims, and for which programs its bound is a theorem, is in docs/verification.md; `Verdict`
(verify/verdict.py) repeats it per result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from math import ceil, inf, prod
from sys import maxsize

import numpy as np

from mirage_cli.ir.drawn import PADDED
from mirage_cli.ir.mugraph import MuGraph
from mirage_cli.ir.program import (
    Program,
    Tensor,
    below,
    tensor_type,
)
from mirage_cli.ir.schedule import Schedule
from mirage_cli.verify.axisclasses import same_axes
from mirage_cli.verify.degree import Claim, claim
from mirage_cli.verify.draws import (
    BLOCK,
    DOUBT,
    KNOWN,
    OPEN,
    Draws,
    answers,
    at_once,
    drawn_bits,
    run_draws,
    statuses,
)
from mirage_cli.verify.fieldsemantics import one_draw, spread
from mirage_cli.verify.floatsemantics import FloatSemantics
from mirage_cli.verify.guesses import Met, bits_of, compared_alone, met
from mirage_cli.verify.interpret import VerificationEndedError, never, run_mugraph, run_program
from mirage_cli.verify.limits import with_limits_as_axes
from mirage_cli.verify.proof import proved
from mirage_cli.verify.reduced import Read, dynamic_sizes, elements, small_instance, turns
from mirage_cli.verify.residues import (
    DRAW,
    LEVELS,
    NO_GUESSES,
    UNDEFINED,
    Levels,
    Residues,
    aligned,
    compared_levels,
    same,
)
from mirage_cli.verify.rings import reduced_to
from mirage_cli.verify.semantics import Named, ScheduleFailure
from mirage_cli.verify.squares import effort
from mirage_cli.verify.structure import structure_problem
from mirage_cli.verify.verdict import Verdict, accepted, refused

REDRAWS = 48
"""Draws in a row that may add nothing to the coverage, before the test goes on at the least sizes, where fewer roots
meet."""

LEAST_REDRAWS = 512
"""The same at the least sizes."""

ENOUGH = 8
"""Informative draws of an output after which a μGraph that left it in doubt in all of them is refused."""

UNDEFINED_DRAWS = 8
"""Draws in which an element has no value in the program (in a row that is masked out whole, say), after which it need
not be compared."""

MASK_BITS = 24
"""Random bits behind every comparison in one test: tests of programs that compare are repeated until they are met."""

MOST_COMPARED = 1 << 16
"""Elements of all equations in the draws of a series, after which a program whose comparisons meet in one element is
not drawn further for what their joined answers choose: the bound says what was seen."""

DYNAMIC_DRAWS = 3
"""Further dynamic sizes at which each test is run."""

MOST_ELEMENTS = 1 << 23
"""Of any one value in a test. Where something far away is read, axes stay long; a test with larger values than that
would take minutes, and gigabytes."""

LONG = 1 << 20
"""Elements from which a test takes seconds."""

SOME_LEVELS: Levels = (True,) * LEVELS
"""Stands for the residues that a draw will compare in, before it is run."""

DOUBTFUL = "signs under roots and logarithms were not checked"

DOUBTFUL_IN_PART = "signs under roots and logarithms were not checked in all elements"

MOST_DRAWN = 1 << 21
"""Elements of all equations in the draws of a series, after which elements that were in doubt in each of them need only
agree in doubt: those of other rows, of which some were compared, have the same roots. It is a second or two; the draws
of most programs have a thousandth of that."""

IN_FLOAT64 = "what roots and logarithms left in doubt was compared in float64"

FLOAT64_DRAWS = 4
"""Draws in float64, every other of positive numbers alone."""

NEARLY = 1e-9
"""How far apart the results of one computation may be in float64, as a part of the largest."""


def check_equivalence(
    program: Program, graph: MuGraph, seed: int, tests: int = 2, end: Callable[[], bool] = never
) -> Verdict:
    """Test a μGraph against its lowered program. Deterministic in the seed, unless the time is up before the tests are
    done: then it is refused.

    end: asked now and then whether the time is up.
    """
    if problem := structure_problem(program, graph):
        return refused("structure", problem)
    try:
        return _tested(*with_limits_as_axes(program, graph), seed, tests, end)
    except VerificationEndedError:
        return refused("time", "its tests would take longer than there is time for")


def takes_long(program: Program, graph: MuGraph, seed: int) -> bool:
    """Whether the first test of a μGraph would take seconds."""
    if structure_problem(program, graph):
        return False
    program, graph = with_limits_as_axes(program, graph)
    sizes, _ = small_instance(program, graph, seed * 1009)
    return elements(program, sizes) > LONG


def _tested(program: Program, graph: MuGraph, seed: int, tests: int, end: Callable[[], bool]) -> Verdict:
    """Raises VerificationEndedError."""
    proof = cache(lambda: proved(program, graph, same_axes(program, graph)))
    passed: list[Claim] = []
    far = turns(program, graph)
    for test in range(max(tests, len(far))):
        for draw in range(1 + DYNAMIC_DRAWS * bool(graph.dynamic)):
            read = far[test % len(far)] if far else None
            outcome = _test(program, graph, seed * 1009 + test, proof, draw, end, read)
            if far and isinstance(outcome, Verdict):  # maybe of what is there in full: f(X[n - 1]), not f(0)
                outcome = _test(program, graph, seed * 1009 + test, proof, draw, end)
            if isinstance(outcome, Verdict):
                return outcome
            passed.append(replace(outcome, bound=1.0) if draw else outcome)  # which may see less than the first draw
    return accepted(program, graph, passed, proof())


# -- one test


def _test(
    program: Program,
    graph: MuGraph,
    seed: int,
    proof: Callable[[], bool],
    draw: int,
    end: Callable[[], bool],
    read: frozenset[Read] | None = None,
) -> Verdict | Claim:
    """Run both on random inputs until every output and every comparison is covered.

    Where roots meet, few draws have squares under all of them, and fewer the larger the sizes. Where none is found at
    the least sizes either, elements in doubt must agree; or, as they do not where a root is squared, say, all must in
    float64, if there is a proof of the algebra. draw: from the second on, at another dynamic size for the same tiles.
    read: as of `small_instance`.
    """
    series: list[Series] = []
    for least, idle in ((False, REDRAWS), (True, LEAST_REDRAWS)):
        sizes, schedule = small_instance(program, graph, seed, least=least, read=read)
        if elements(program, sizes) > MOST_ELEMENTS:
            raise VerificationEndedError
        if draw:
            sizes |= dynamic_sizes(graph, schedule, seed)[draw - 1]
        series.append(Series(program, graph, sizes, schedule, seed, end))
        outcome = series[-1].run(idle)
        if outcome is not None:
            return outcome
    if any(x.informative >= ENOUGH and not x.levels and x.missing().any() for s in series for x in s.coverage.values()):
        return _refusal("roots and logarithms are never of squares where the program's are", f"seed {seed}")
    outcome = series[0].doubtful()
    return series[0].in_float64() if isinstance(outcome, Verdict) and proof() else outcome


class Coverage:
    """How far draws have tested one output.

    informative: in how many draws the program was certain of an element that was still to be compared. uncompared: the
    elements that were never compared. undefined: in how many draws each element had no value. levels: the residues in
    which elements were compared. bits: the random bits behind comparisons in the program, summed over draws in
    which elements were compared; fewest_bits: those of the draw that had the fewest. drawn_bits: the random bits of
    integers and masks that are drawn, summed over all these draws.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.informative, self.bits, self.drawn_bits, self.joined_bits = 0, 0, 0, 0.0
        self.fewest_bits, self.fewest_joined = NO_GUESSES, inf
        self.uncompared = np.ones(shape, dtype=bool)
        self.undefined = np.zeros(shape, dtype=np.int64)
        self.levels: frozenset[Levels] = frozenset()
        self._missing: tuple[np.ndarray, bool] | None = None

    def missing(self) -> np.ndarray:
        """The elements that a comparison may still settle."""
        return self.missing_and_any()[0]

    def missing_and_any(self) -> tuple[np.ndarray, bool]:
        """The missing elements, and whether there are any. Many draws are looked through for each that is recorded."""
        if self._missing is None:
            missing = self.uncompared & (self.undefined < UNDEFINED_DRAWS)
            self._missing = missing, bool(missing.any())
        return self._missing

    def incomplete(self) -> bool:
        """Whether an element is missing, or none was compared."""
        return not self.levels or self.missing_and_any()[1]

    def unfinished(self) -> bool:
        """Whether elements are missing, or random bits."""
        return self.bits_missing() or self.joined_bits < MASK_BITS or self.incomplete()

    def only_doubtful(self) -> bool:
        """Whether what is missing are elements that have been in doubt in every draw, and others were compared."""
        return bool(self.levels) and not self.bits_missing() and not self.undefined[self.missing()].any()

    def bits_missing(self) -> bool:
        return min(self.bits, self.drawn_bits) < MASK_BITS

    def progress(self) -> tuple[int, float, float, bool]:
        """Missing elements, bits, and whether any was compared: a draw that changes none of these brings nothing.
        Elements that the program settles and the μGraph leaves in doubt would be drawn for without end."""
        bits, joined = min(self.bits, self.drawn_bits, MASK_BITS), min(self.joined_bits, MASK_BITS)
        return int(self.missing().sum()), bits, joined, bool(self.levels)

    def adds(self, status: np.ndarray) -> bool:
        """Whether a draw with these statuses of the elements adds to what was covered."""
        missing, some = self.missing_and_any()
        if some:
            return bool((missing & (status != DOUBT)).any())
        return self.unfinished() and bool((status == KNOWN).any())

    def record_compared(self, known: np.ndarray, undefined: np.ndarray, levels: Iterable[Levels]) -> None:
        """These elements were compared in one draw, in these residues."""
        self.levels |= frozenset(levels)
        self.uncompared = self.uncompared & ~known
        self.undefined = self.undefined + undefined
        self._missing = None

    def record_bits(self, guesses: int, drawn_bits: int, joined_bits: float) -> None:
        """The random bits of a draw in which elements were compared."""
        self.bits, self.drawn_bits = self.bits + guesses, self.drawn_bits + drawn_bits
        self.joined_bits += joined_bits
        self.fewest_bits, self.fewest_joined = min(self.fewest_bits, guesses), min(self.fewest_joined, joined_bits)

    def draws_missing(self, drawn_bits: int) -> int:
        """The draws that the missing random bits take, if each has as many as the draw with the fewest so far.
        drawn_bits: of integers and masks that are drawn, in each."""
        each = (self.bits, max(1, self.fewest_bits)), (self.drawn_bits, drawn_bits)
        joined = ceil((MASK_BITS - self.joined_bits) / self.fewest_joined) if self.joined_bits < MASK_BITS else 0
        return max(joined, *(-(-(MASK_BITS - had) // bits) for had, bits in each))

    def missed(self) -> float:
        """A bound on the probability that a wrong comparison, or what is wrong where several meet, was not seen."""
        return 2.0 ** -min(self.bits, self.drawn_bits, self.joined_bits)


class Series:
    """Draws at one choice of sizes and schedule, and the coverage of each output."""

    def __init__(
        self,
        program: Program,
        graph: MuGraph,
        sizes: dict[str, int],
        schedule: Schedule,
        seed: int,
        end: Callable[[], bool] = never,
    ) -> None:
        self.program, self.graph, self.schedule = reduced_to(program, sizes), reduced_to(graph, sizes), schedule
        self.end = end
        self.seed, self.where = seed, f"seed {seed}, {_sizes(self.program)}, {_schedule(schedule)}".removesuffix(", ")
        self.at_once = at_once(self.program)
        self.drawn_bits = {t.name: drawn_bits(self.program, t) for t in program.outputs}
        self.met = {t.name: met(self.program, t) for t in program.outputs}
        self.answers = {t.name: answers(t, sizes) for t in program.inputs if tensor_type(t) != "float"}
        self.alone = compared_alone(program.eqns, graph.eqns)
        self.coverage = {t.name: Coverage([sizes[d] for d in t.dims]) for t in program.outputs}

    def run(self, idle: int) -> Verdict | Claim | None:
        """A refusal, or what the test claims, or None after so many draws in a row that brought nothing, fewer where
        each takes long. Where draws that are mended (`verify.squares`), one in a block, bring something and others
        nothing, all are. After the draws that have MOST_DRAWN elements, what is left in doubt may agree in doubt."""
        since, each = 0, effort(self.program.eqns, self.program.sizes)
        size = 1 + sum(prod(self.program.sizes[d] for d in e.dims) for e in self.program.eqns)
        enough, enough_compared = 1 + MOST_DRAWN // size, 1 + MOST_COMPARED // size
        largest_block = min(BLOCK // each, idle, enough)
        block = range(1, 2)
        mended, others = True, True
        while since < idle:
            since += len(block) * each
            outcome, brought = self.run_block(block)
            if outcome is not None:
                return outcome
            if block.stop > enough and all(x.only_doubtful() for x in self.coverage.values()):
                if isinstance(outcome := self.doubtful(DOUBTFUL_IN_PART), Claim):
                    return outcome
                enough = maxsize
            if block.stop > enough_compared and not any(
                x.bits_missing() or x.incomplete() for x in self.coverage.values()
            ):
                return self.claim()
            since = 0 if brought else since
            mended, others = (brought, others) if len(block) == 1 else (mended, brought)
            most = max(1, largest_block) if others or not mended else 1
            more = self.more_draws(len(block) if brought else 2 * len(block), most)
            block = range(block.stop, block.stop + more)
        return None

    def more_draws(self, enough: int, most: int) -> int:
        """How many draws the next block has: the most where elements are missing, else what random bits take, and so
        many that a draw of them tells something."""
        if any(x.incomplete() for x in self.coverage.values()):
            return most
        draws = (x.draws_missing(self.drawn_bits[name]) for name, x in self.coverage.items())
        return min(most, max(enough, *draws))

    def run_block(self, block: range) -> tuple[Verdict | Claim | None, bool]:
        """A refusal, or what the test claims once it has covered all; and whether the block brought anything."""
        if self.end():
            raise VerificationEndedError
        needed = frozenset(name for name, x in self.coverage.items() if x.unfinished())
        status = statuses(self.program, needed, self.seed, block)
        left, brought = set(block), False
        while selected := self.select(status, block, left):
            before = [x.progress() for x in self.coverage.values()]
            if self.end():
                raise VerificationEndedError
            run = run_draws(self.program, self.seed, block, tuple(selected))
            outcome = self.compare(run, doubtful=False)
            if isinstance(outcome, Verdict):
                return outcome, brought
            for n, (compared, expected) in enumerate(zip(outcome, selected.values(), strict=True)):
                for name in expected:
                    self.coverage[name].informative += 1
                for name in compared & expected:
                    self.record_bits(name, run, n)
            changed = before != [x.progress() for x in self.coverage.values()]
            brought |= changed
            if not any(x.unfinished() for x in self.coverage.values()):
                return self.claim(), brought
            if not changed and not any(x.incomplete() for x in self.coverage.values()):
                break  # bits alone are needed, and the functions that all draws of the block share leave all in doubt
            left -= selected.keys()
        return None, brought

    def record_bits(self, name: str, run: Draws, n: int) -> None:
        """Those of the draw at this place, in which elements of an output were compared. Where the μGraph alone makes
        guesses, it has made one with each comparison of its own."""
        guesses = {v: made[n] for v, made in run.guesses.items() if v in self.met[name]}
        found = [(x, self.met[name][v]) for v, x in (guesses | self.answers).items() if v in self.met[name]]
        if run.of_comparisons.alone:
            found.append((1, Met(self.alone, 1)))
        fewest = min(guesses.values(), default=NO_GUESSES)
        fewest = min(fewest, 1) if run.of_comparisons.alone else fewest
        rows = min((max(1, x // m.row) for x, m in found), default=NO_GUESSES)
        told = bits_of(rows, sum(m.answers for _, m in found))
        self.coverage[name].record_bits(fewest, self.drawn_bits[name], told)

    def select(self, status: Mapping[str, np.ndarray], block: range, draws: Iterable[int]) -> dict[int, frozenset[str]]:
        """Draws to run at once, and the outputs to whose coverage each adds, behind those before it, if the μGraph
        leaves nothing in doubt that the program settles. The draw that settles most elements comes first."""
        found: dict[int, frozenset[str]] = {}
        expected = {name: copy(self.coverage[name]) for name in status}
        none = np.zeros(len(block), dtype=np.int64)
        settled = sum((np.count_nonzero((x != DOUBT).reshape(len(x), -1), axis=1) for x in status.values()), none)
        for draw in sorted(draws, key=lambda draw: (-settled[draw - block.start], draw)):
            here = {name: x[draw - block.start] for name, x in status.items()}
            if added := frozenset(name for name, x in expected.items() if x.adds(here[name])):
                found[draw] = added
                for name, x in expected.items():
                    known = here[name] == KNOWN
                    x.record_compared(known, here[name] == OPEN, [SOME_LEVELS] if known.any() else ())
                    if name in added and known.any():
                        x.record_bits(x.fewest_bits, self.drawn_bits[name], x.fewest_joined)
            if len(found) == self.at_once:
                break
        return found

    def doubtful(self, assumed: str = DOUBTFUL) -> Verdict | Claim:
        """One draw in which elements beyond roots of non-squares count too."""
        outcome = self.compare(run_draws(self.program, self.seed, range(1), (0,)), doubtful=True)
        if isinstance(outcome, Verdict):
            return outcome
        if len(outcome[0]) < len(self.program.outputs):
            return _refusal("an output was undefined in every draw", self.where)
        if isinstance(lost := self.in_float64(values=False), Verdict):
            return lost
        claim = self.claim(seen=False)
        return replace(claim, assumes=(*claim.assumes, assumed))

    def in_float64(self, *, values: bool = True) -> Verdict | Claim:
        """Whether both compute the same in float64, where positive numbers have roots. Of what a proof of the algebra
        leaves to tests (tiles, loops, maps, stores), no mistake is as small as rounding.

        values: whether they are compared. Else a number of the program's is to be one in the μGraph too: the root of
        what has another sign is none.
        """
        rng = np.random.default_rng(self.seed)
        inputs = _in_float64(self.program, rng)
        semantics = FloatSemantics(self.program.sizes)
        results = run_program(self.program, inputs, semantics)
        try:
            found = run_mugraph(self.graph, self.schedule, inputs, semantics, self.seed, self.program, self.end)
        except ScheduleFailure as failure:
            return _refusal(str(failure), self.where)
        compared: set[str] = set()
        for t in self.program.outputs:
            result = results[t.name]
            wants = np.broadcast_to(aligned(result.data, result.dims, (DRAW, *t.dims)), found[t.name].shape)
            for got, want in zip(found[t.name].data, wants, strict=True):
                defined = np.isfinite(want)
                largest = np.abs(want[defined]).max(initial=0.0)
                with np.errstate(invalid="ignore"):  # of infinities, which are not compared
                    near = np.abs(got - want) <= NEARLY * largest if values else np.isfinite(got)
                wrong = defined & ~near
                if wrong.any():
                    at = tuple(int(i) for i in np.argwhere(wrong)[0])
                    return _mismatch(t, at, f"{want[at]}", f"{got[at]}", f"{self.where}, in float64")
                compared |= {t.name} if defined.any() else set()
        if values and len(compared) < len(self.program.outputs):
            return _refusal("an output was undefined in every draw", self.where)
        claim = self.claim(seen=False)
        return replace(claim, bound=1.0, assumes=(*claim.assumes, IN_FLOAT64))

    def claim(self, *, seen: bool = True) -> Claim:
        """seen: whether the random bits of comparisons were met."""
        miss = sum(x.missed() for x in self.coverage.values()) if seen else 0.0
        found = claim(self.program, self.graph, [self.coverage[t.name].levels for t in self.program.outputs])
        return replace(found, bound=min(1.0, found.bound + miss), at=self.where)

    def compare(self, run: Draws, *, doubtful: bool) -> Verdict | list[set[str]]:
        """A refusal; or the outputs of which some element was compared, in each draw."""
        try:
            found = run_mugraph(self.graph, self.schedule, run.inputs, run.semantics, self.seed, self.program, self.end)
        except ScheduleFailure as failure:
            return _refusal(str(failure), self.where)
        compared: list[set[str]] = [set() for _ in run.draws]
        for t in self.program.outputs:
            got = found[t.name]
            want = spread(run.results[t.name], got.dims, got.shape)
            if doubtful:
                want, got = replace(want, taint=None), replace(got, taint=None)
            agree, sure = same(want, got)
            undefined = np.zeros(got.shape, dtype=bool) if want.flags is None else want.flags == UNDEFINED
            if (wrong := ~agree & sure & ~undefined).any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                return _mismatch(t, at[1:], _element(want, at), _element(got, at), self.where)
            coverage, known = self.coverage[t.name], sure & ~undefined
            for n, names in enumerate(compared):
                fresh = known[n] & coverage.uncompared
                levels = compared_levels(one_draw(want, n), one_draw(got, n), fresh) if fresh.any() else ()
                coverage.record_compared(known[n], undefined[n], levels)
                names |= {t.name} if known[n].any() else set()
        return compared


def _refusal(detail: str, counterexample: str | None) -> Verdict:
    return refused("field", detail, counterexample)


def _mismatch(t: Tensor, at: tuple[int, ...], want: str, got: str, where: str) -> Verdict:
    element = f"{t.name}[{', '.join(f'{d}={i}' for d, i in zip(t.dims, at, strict=True))}]"
    return _refusal(f"computes another {t.name}", f"{element}: expected {want}, got {got}; {where}")


def _in_float64(program: Program, rng: np.random.Generator) -> dict[str, Named]:
    """Random inputs, with the axis of draws in front."""
    draws = [
        [_numbers(t, program.sizes, rng, positive=n % 2 > 0) for t in program.inputs] for n in range(FLOAT64_DRAWS)
    ]
    numbers = zip(program.inputs, zip(*draws, strict=True), strict=True)
    return {t.name: Named((DRAW, *t.dims), np.stack(x)) for t, x in numbers}


def _numbers(t: Tensor, sizes: Mapping[str, int], rng: np.random.Generator, *, positive: bool) -> np.ndarray:
    """Normal numbers, or their magnitudes; integers up to the largest size."""
    shape = [sizes[d] for d in t.dims]
    if tensor_type(t) == "int":
        most = below(t, sizes) or max(sizes.values()) + 1
        found = rng.choice(most, size=shape, replace=not t.distinct)
        return np.where(rng.integers(0, PADDED, size=shape) == 0, -1, found) if t.padded else found
    if tensor_type(t) == "bool":
        return rng.integers(0, 2, size=shape, dtype=np.bool_)
    x = rng.standard_normal(shape)
    return np.abs(x) if positive else x


def _element(x: Residues, at: tuple[int, ...]) -> str:
    if x.flags is not None and x.flags[at]:
        return {1: "inf", -1: "-inf", 2: "undefined"}[int(x.flags[at])]
    if x.kind != "field":
        return str(x.data[at])
    residues = [str(int(x.data[(i, *at)])) for i, v in enumerate(x.valid) if v]
    return f"({', '.join(residues)})"


def _sizes(program: Program) -> str:
    return "sizes " + " ".join(f"{d}={n}" for d, n in program.dims)


def _schedule(schedule: Schedule) -> str:
    """The tile of every axis that a kernel cuts, and the number of its chunks."""
    kernels: list[str] = []
    for name, k in schedule.kernels.items():
        if k.tiles:
            chunks = f" and {k.split} chunks" if k.split > 1 else ""
            kernels.append(f"{name} in tiles of {' '.join(f'{d}={n}' for d, n in k.tiles)}{chunks}")
    return ", ".join(kernels)
