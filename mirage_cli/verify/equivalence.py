"""check_equivalence: structure first, then random tests in finite fields of the μGraph as scheduled, at reduced sizes.

What a passing verdict claims, and for which programs its bound is a theorem, is in docs/verification.md; `Verdict`
(verify/verdict.py) repeats it per result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

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
from mirage_cli.verify.degree import Claim, claim
from mirage_cli.verify.draws import Draw, blocks, run_draw, told
from mirage_cli.verify.interpret import OutOfTimeError, never, run_mugraph, run_program
from mirage_cli.verify.proof import proved
from mirage_cli.verify.reduced import dynamic_sizes, same_axes, small_instance
from mirage_cli.verify.residues import LEVELS, NO_GUESSES, UNDEFINED, Levels, Value, aligned, compared_levels, same
from mirage_cli.verify.semantics import FloatSemantics, Named, ScheduleFailure
from mirage_cli.verify.squares import effort
from mirage_cli.verify.structure import structure_problem
from mirage_cli.verify.verdict import Verdict, accepted, refused

REDRAWS = 48
"""Draws in a row that may bring a test nothing, before it goes on at the least sizes, where fewer roots meet."""

LEAST_REDRAWS = 512
"""The same at the least sizes."""

ENOUGH = 8
"""Draws that tell something about an output, after which a μGraph that was never without doubt in it is refused."""

UNDEFINED_DRAWS = 8
"""Draws in which an element has no value in the program, a row that is masked out whole, say, after which it is let be.
"""

MASK_BITS = 24
"""Random bits behind every comparison in one test: tests of programs that compare are repeated until they are met."""


DYNAMIC_DRAWS = 3
"""Dynamic sizes that each test draws besides that of its other draws."""


DOUBTFUL = "signs under roots and logarithms were not checked"

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
        return _tested(program, graph, seed, tests, end)
    except OutOfTimeError:
        return refused("time", "its tests would take longer than there is time for")


def _tested(program: Program, graph: MuGraph, seed: int, tests: int, end: Callable[[], bool]) -> Verdict:
    """Raises OutOfTimeError."""
    proof = cache(lambda: proved(program, graph, same_axes(program, graph)))
    passed: list[Claim] = []
    for test in range(tests):
        for draw in range(1 + DYNAMIC_DRAWS * bool(graph.dynamic)):
            outcome = _test(program, graph, seed * 1009 + test, proof, draw, end)
            if isinstance(outcome, Verdict):
                return outcome
            passed.append(replace(outcome, bound=1.0) if draw else outcome)  # which may see less than the first draw
    return accepted(program, graph, passed, proof())


# -- one test


def _test(
    program: Program, graph: MuGraph, seed: int, proof: Callable[[], bool], draw: int, end: Callable[[], bool]
) -> Verdict | Claim:
    """Run both on random inputs, again until draws have told something about every output and every comparison.

    Where roots meet, few draws have squares under all of them, and fewer the larger the sizes. Where none is found at
    the least sizes either, elements in doubt must agree; or, as they do not where a root is squared, say, all must in
    float64, if there is a proof of the algebra. draw: from the second on, at another dynamic size for the same tiles.
    """
    small = [small_instance(program, graph, seed, least=least) for least in (False, True)]
    if draw:
        small = [(sizes | dynamic_sizes(graph, s, seed)[draw - 1], s) for sizes, s in small]
    series = [Series(program, graph, *sizes_and_schedule, seed, end) for sizes_and_schedule in small]
    for s, idle in zip(series, (REDRAWS, LEAST_REDRAWS), strict=True):
        outcome = s.run(idle)
        if outcome is not None:
            return outcome
    if any(
        s.told[t.name] >= ENOUGH and not s.levels[t.name] and s.missing(t.name).any()
        for s in series
        for t in program.outputs
    ):
        return _refusal("roots and logarithms are never of squares where the program's are", f"seed {seed}")
    outcome = series[0].doubtful()
    return series[0].in_float64() if isinstance(outcome, Verdict) and proof() else outcome


class Series:
    """Draws at one choice of sizes and schedule.

    told: in how many draws the program told something about an output. unseen: its elements that were never compared.
    undefined: in how many draws each had no value. levels: the residues in which elements were compared. bits: the
    random bits behind the comparisons in the program, in draws that settled something, one of each block: `counted` is
    the last that gave an output any. entry_bits: of the entries of tables, in all these draws.
    """

    def __init__(
        self,
        program: Program,
        graph: MuGraph,
        sizes: dict[str, int],
        schedule: Schedule,
        seed: int,
        end: Callable[[], bool] = never,
    ) -> None:
        self.program, self.graph, self.schedule = program.resized(sizes), graph.resized(sizes), schedule
        self.end = end
        self.seed, self.where = seed, f"seed {seed}, {_sizes(self.program)}, {_schedule(schedule)}".removesuffix(", ")
        self.told: Counter[str] = Counter()
        self.bits: Counter[str] = Counter()
        self.entry_bits: Counter[str] = Counter()
        self.counted: dict[str, range] = {}
        self.unseen = {t.name: np.ones([sizes[d] for d in t.dims], dtype=bool) for t in program.outputs}
        self.undefined = {name: np.zeros(x.shape, dtype=np.int64) for name, x in self.unseen.items()}
        self.levels: dict[str, set[Levels]] = {t.name: set() for t in program.outputs}

    def run(self, idle: int) -> Verdict | Claim | None:
        """A refusal, or what the test claims, or None after so many draws in a row that brought nothing, fewer where
        each takes long."""
        since, each = 0, effort(self.program.eqns, self.program.sizes)
        for block in blocks(self.program):
            if since >= idle:
                return None
            if self.end():
                raise OutOfTimeError
            since += len(block) * each
            needed = frozenset(t.name for t in self.program.outputs if self.needs(t.name))
            certain = told(self.program, needed, self.seed, block)
            for n, draw in enumerate(block):
                useful = {name for name in needed if self.useful(name, certain[name][n], block)}
                self.told.update(useful)
                if not useful:
                    continue
                before = {name: self.left(name) for name in useful}
                if self.end():
                    raise OutOfTimeError
                run = run_draw(self.program, self.seed, block, draw)
                settled = self.compare(run, doubtful=False)
                if isinstance(settled, Verdict):
                    return settled
                for name in settled & useful:
                    self.entry_bits[name] += run.entry_bits
                    if self.counted.get(name) != block:
                        self.counted[name] = block
                        self.bits[name] += run.guesses
                    since = 0 if self.left(name) != before[name] else since
                if not any(self.needs(t.name) for t in self.program.outputs):
                    luck = ((run.guesses, self.bits), (run.entry_bits, self.entry_bits))
                    return self.claim(sum(2.0 ** -min(bits.values()) for n, bits in luck if n != NO_GUESSES))
        return None

    def missing(self, name: str) -> np.ndarray:
        """The elements of an output that a comparison may still settle."""
        return self.unseen[name] & (self.undefined[name] < UNDEFINED_DRAWS)

    def left(self, name: str) -> tuple[int, int, bool]:
        """What is left to learn of an output: elements, bits, and any level. A draw that changes nothing of it brings
        nothing: elements that the program settles and the μGraph leaves in doubt would be drawn for without end."""
        bits = min(self.bits[name], self.entry_bits[name], MASK_BITS)
        return int(self.missing(name).sum()), bits, bool(self.levels[name])

    def needs(self, name: str) -> bool:
        few = min(self.bits[name], self.entry_bits[name]) < MASK_BITS
        return bool(self.missing(name).any()) or not self.levels[name] or few

    def useful(self, name: str, certain: np.ndarray, block: range) -> bool:
        """Whether a draw with these elements without doubt says something that is still needed."""
        missing = self.missing(name)
        if missing.any():
            return bool((certain & missing).any())
        fresh = self.counted.get(name) != block or self.entry_bits[name] < MASK_BITS
        return self.needs(name) and fresh and bool(certain.any())

    def doubtful(self) -> Verdict | Claim:
        """One draw in which elements beyond roots of non-squares count too."""
        settled = self.compare(run_draw(self.program, self.seed, range(1), 0), doubtful=True)
        if isinstance(settled, Verdict):
            return settled
        if len(settled) < len(self.program.outputs):
            return _refusal("an output was undefined in every draw", self.where)
        claim = self.claim(0.0)
        return replace(claim, assumes=(*claim.assumes, DOUBTFUL))

    def in_float64(self) -> Verdict | Claim:
        """Whether both compute the same in float64, where positive numbers have roots. Of what a proof of the algebra
        leaves to tests (tiles, loops, maps, stores), no mistake is as small as rounding."""
        rng = np.random.default_rng(self.seed)
        sizes = self.program.sizes
        compared: set[str] = set()
        for n in range(FLOAT64_DRAWS):
            inputs = {t.name: Named(t.dims, _numbers(t, sizes, rng, positive=n % 2 > 0)) for t in self.program.inputs}
            semantics = FloatSemantics(sizes)
            results = run_program(self.program, inputs, semantics)
            try:
                found = run_mugraph(self.graph, self.schedule, inputs, semantics, self.seed, self.program, self.end)
            except ScheduleFailure as failure:
                return _refusal(str(failure), self.where)
            for t in self.program.outputs:
                got = found[t.name].data
                want = np.broadcast_to(aligned(results[t.name].data, results[t.name].dims, t.dims), got.shape)
                defined = np.isfinite(want)
                largest = np.abs(want[defined]).max(initial=0.0)
                with np.errstate(invalid="ignore"):  # of infinities, which are not compared
                    wrong = defined & ~(np.abs(got - want) <= NEARLY * largest)
                if wrong.any():
                    at = tuple(int(i) for i in np.argwhere(wrong)[0])
                    return _mismatch(t, at, f"{want[at]}", f"{got[at]}", f"in float64, {self.where}")
                compared |= {t.name} if defined.any() else set()
        if len(compared) < len(self.program.outputs):
            return _refusal("an output was undefined in every draw", self.where)
        claim = self.claim(0.0)
        return replace(claim, bound=1.0, assumes=(*claim.assumes, IN_FLOAT64))

    def claim(self, miss: float) -> Claim:
        """miss: bound on not seeing a wrong comparison."""
        found = claim(self.program, self.graph, [self.levels[t.name] for t in self.program.outputs])
        return replace(found, bound=min(1.0, found.bound + miss), at=self.where)

    def compare(self, run: Draw, *, doubtful: bool) -> Verdict | set[str]:
        """A refusal; or the outputs of which some element was compared."""
        try:
            found = run_mugraph(self.graph, self.schedule, run.inputs, run.semantics, self.seed, self.program, self.end)
        except ScheduleFailure as failure:
            return _refusal(str(failure), self.where)
        settled: set[str] = set()
        for t in self.program.outputs:
            want, got = run.want[t.name], found[t.name]
            if doubtful:
                want, got = replace(want, taint=None), replace(got, taint=None)
            want = _spread(t, want, got.shape)
            agree, sure = same(want, got)
            undefined = np.zeros(got.shape, dtype=bool) if want.flags is None else want.flags == UNDEFINED
            if (wrong := ~agree & sure & ~undefined).any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                return _mismatch(t, at, _element(want, at), _element(got, at), self.where)
            if (sure & ~undefined).any():
                settled.add(t.name)
            self.levels[t.name] |= compared_levels(want, got, sure & ~undefined & self.unseen[t.name])
            self.unseen[t.name] &= ~sure | undefined
            self.undefined[t.name] += undefined
        return settled


def _spread(t: Tensor, x: Value, shape: tuple[int, ...]) -> Value:
    """A result of the program with the axes of its output, repeated along those that it lacks."""
    lead = 1 if x.kind == "field" else 0
    data = np.broadcast_to(aligned(x.data, x.dims, t.dims, lead), (*x.data.shape[:lead], *shape))
    flags = None if x.flags is None else np.broadcast_to(aligned(x.flags, x.dims, t.dims), shape)
    taint = None if x.taint is None else np.broadcast_to(aligned(x.taint, x.dims, t.dims, 1), (LEVELS, *shape))
    return replace(x, dims=t.dims, data=data, flags=flags, taint=taint)


def _refusal(detail: str, counterexample: str | None) -> Verdict:
    return refused("field", detail, counterexample)


def _mismatch(t: Tensor, at: tuple[int, ...], want: str, got: str, where: str) -> Verdict:
    element = f"{t.name}[{', '.join(f'{d}={i}' for d, i in zip(t.dims, at, strict=True))}]"
    return _refusal(f"computes another {t.name}", f"{element}: expected {want}, got {got}; {where}")


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


def _element(x: Value, at: tuple[int, ...]) -> str:
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
