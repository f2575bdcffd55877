"""Measurement in a process of its own: what is asked, what comes back, and the parent's side of it.

`GpuWorker` holds a process that owns the GPU (`tune.worker`). A candidate that faults, hangs or crashes costs that
process, which is replaced at the next question, and itself a named failure; never the run, and never another candidate.

The module text of a candidate defines, for `kind="kernels"`:

    make_scratch(device) -> list[Tensor]     workspace, with the content it must have before the first launch
    launch(inputs, outputs, scratch) -> None  runs everything on the current stream; asks the device nothing, so that it
                                             also runs on meta tensors, where the compile farm records what it launches

and for `kind="function"` (eager PyTorch, a compiled function, a library):

    make(inputs) -> fn                       fn(*inputs) returns the output tensor, or a tuple of them
    pack(inputs) -> inputs                   where there is one: what a library's user prepares once (weights side by
                                             side, a cache in its layout); `make` and `fn` are given its result
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
)  # Any: answers of the process

from mirage_cli.errors import MirageError
from mirage_cli.ir.drawn import Spread
from mirage_cli.store.results import Times
from mirage_cli.tune.child import Child, ChildDied, ChildKilled
from mirage_cli.verify.facts import BlockFields, LiesFields

if TYPE_CHECKING:
    from mirage_cli.verify.yardstick import Judgement

START_TIMEOUT_S = 180.0
PROBLEM_TIMEOUT_S = 300.0
SAMPLE_TIMEOUT_S = 10.0


class MeasureError(MirageError):
    """The measuring process cannot start, or cannot hold the problem. The message says what it printed."""


class FailureKind(StrEnum):
    """What became of a candidate that has no figures."""

    COMPILE = "compile"  # the module does not load, compile or launch
    OUT_OF_MEMORY = "out of memory"  # device memory, or more shared memory or registers than a block may have
    RACE = "race"  # the compiled kernel may overwrite what it still reads
    FAULT = "fault"  # the GPU raised an error: an illegal address, a failed assertion
    HANG = "hang"  # no answer in time
    CRASH = "crash"  # the process died
    LATE = "late"  # time was up before it was judged
    WRONG = "wrong"  # ran, and broke a rule that no tolerance excuses


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a candidate has no figures. `fatal`: the process that ran it can run nothing else."""

    kind: FailureKind
    message: str
    fatal: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """`name: dtype[shape]`. spread: of its test data (`verify.testdata.draw`). strides: None where it is contiguous."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    spread: Spread = 1.0
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What all candidates are given, and what they should return.

    outputs: the tensors that a call returns.
    reference_source: module text with `reference(*inputs)` in torch, returning the output or a tuple; it is run in
        float64. None where outputs are not judged.
    cut: the fields of the `pieces.Cut` along which they are judged; None where they are judged whole.
    blocks: the fields of the `pieces.Block`s in which each piece is evaluated.
    lies: those of a `verify.lies.Lies` for each output; None where they are the tensors that a call returns.
    called: the function of `reference_source` that users call.
    arguments: the sizes that kernels take as arguments, for `make_scratch`.
    precision: the type that the program computes in, whatever its inputs are.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    reference_source: str | None = None
    seed: int = 0
    cut: tuple[tuple[int | None, ...], tuple[int, ...], int, int] | None = None
    lies: tuple[LiesFields, ...] | None = None
    called: str = "reference"
    arguments: tuple[int, ...] = ()
    precision: str = "float32"
    blocks: tuple[BlockFields, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A contestant: module text (see the module's docstring) and the seconds that any one step of it may take.

    shares: into so many its launches are cut, each compiled by a process of its own.
    """

    id: str
    source: str
    kind: Literal["kernels", "function"] = "kernels"
    timeout_s: float = 20.0
    shares: int = 1


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The worst output's error against float64 on ordinary data, as `verify.yardstick` measures it.

    relative: ‖out - ref‖ / ‖ref‖. row: the worst row's max |out - ref| / max |ref|. Infinite where an output has an inf
    or NaN and float64 has none, and neither, where it is a generated kernel's, has eager PyTorch.
    """

    relative: float
    row: float


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a timing may cost.

    rounds: samples per candidate, fewer where they would take longer than `seconds` per candidate (at least 5).
    launches: the most calls in one sample. hot: also time one input set over and over. selects: only the fastest are
    asked for, and those that are far from them get fewer samples, or are timed in the chain alone.
    """

    rounds: int
    launches: int
    seconds: float
    hot: bool
    selects: bool = False


QUICK = Effort(rounds=5, launches=64, seconds=0.05, hot=False, selects=True)
CAREFUL = Effort(rounds=51, launches=4096, seconds=1.0, hot=True)


Context = Literal["chain", "alone", "both"]
"""Beside what a call is timed, and ranked.

chain: calls of the same function follow each other, so each may start while the one before drains.
alone: a small kernel that knows nothing of overlap stands before each call; its own time is subtracted.
both: the geometric mean of the two.
"""


def spread(samples_us: Sequence[float]) -> float:
    """The interquartile range."""
    if len(samples_us) < 2:
        return math.inf
    low, _, high = statistics.quantiles(samples_us, n=4, method="inclusive")
    return high - low


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds a call. A sample is one replay over `sets` input sets, `launches` calls in all.

    samples_us: in a chain, in the order of the rounds. hot_us: the median with one input set, None where not asked.
    method: how it was timed, and why not otherwise. accuracy: of what the timed calls left in the outputs.
    alone_samples_us: in the same rounds; empty where only the chain was asked for.
    context: whose figures count.
    """

    samples_us: tuple[float, ...]
    launches: int
    sets: int
    method: str
    hot_us: float | None = None
    accuracy: Accuracy | None = None
    alone_samples_us: tuple[float, ...] = ()
    context: Context = "chain"

    @property
    def figures_us(self) -> tuple[float, ...]:
        """What counts of each round."""
        match self.context:
            case "chain":
                return self.samples_us
            case "alone":
                return self.alone_samples_us
            case "both":
                return tuple(map(_geometric_mean, self.samples_us, self.alone_samples_us))

    @property
    def median_us(self) -> float:
        return statistics.median(self.figures_us)

    @property
    def mean_us(self) -> float:
        """Of the figures without the slowest and the fastest tenth. A kernel that is slow in a fifth of them, where its
        blocks landed badly say, has the median of one that never is."""
        figures = sorted(self.figures_us)
        cut = len(figures) // 10
        return statistics.fmean(figures[cut : len(figures) - cut])

    @property
    def spread_us(self) -> float:
        return spread(self.figures_us)

    @property
    def chain_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def alone_us(self) -> float | None:
        return statistics.median(self.alone_samples_us) if self.alone_samples_us else None

    @property
    def times(self) -> Times:
        alone = self.alone_samples_us
        return Times(
            context=self.context,
            time_us=self.median_us,
            spread_us=self.spread_us,
            chain_us=self.chain_us,
            chain_spread_us=spread(self.samples_us),
            alone_us=self.alone_us,
            alone_spread_us=spread(alone) if alone else None,
        )


def _geometric_mean(a: float, b: float) -> float:
    return math.sqrt(a * b)


@dataclass(frozen=True, slots=True)
class Floor:
    """What this device was measured to reach: a large copy (bytes read plus written), a large matmul, an empty call."""

    copy_bytes_per_s: float
    matmul_flops_per_s: float
    empty_us: float


@dataclass(frozen=True, slots=True)
class MeasuringDevice:
    """The device that measures, and what its results depend on."""

    name: str
    arch: int
    torch: str
    triton: str


@dataclass(frozen=True, slots=True)
class SetProblem:
    problem: Problem


@dataclass(frozen=True, slots=True)
class Standard:
    """What outputs are held to: `verify.yardstick` on all its distributions.

    tolerance: multiples of the yardstick. contracted: terms of the longest contraction, which scales "large" data.
    overflow_like_eager: an inf or NaN passes where eager PyTorch has one too.
    """

    tolerance: float
    contracted: int
    overflow_like_eager: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """The judgement over all distributions, on a GPU or in the interpreter. The errors are those on ordinary data, as
    norms against float64; None where they are infinite, or nothing was compared.

    excused: how many infinities and NaNs were let pass because eager PyTorch overflows there too. distributions: by
    name what is wrong on each, None where nothing is.
    """

    ok: bool
    error: float | None = None
    eager_error: float | None = None
    problem: str | None = None
    excused: int = 0
    distributions: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"], compare=False)

    @staticmethod
    def of(found: Sequence[Judgement]) -> Judged:
        """What judgements on one distribution after the other come to, the first on ordinary data."""
        from mirage_cli.verify.yardstick import untold

        tests = {j.distribution: j.problem for j in found}
        problem = "; ".join(f"{name}: {x}" for name, x in tests.items() if x) or untold(found)
        error, eager = (e.norm if math.isfinite(e.norm) else None for e in (found[0].error, found[0].eager_error))
        return Judged(problem is None, error, eager, problem, sum(j.excused for j in found), tests)

    @property
    def error_text(self) -> str:
        """The errors, of what is right."""
        numbers = ("infinite" if e is None else f"{e:.2e}" for e in (self.error, self.eager_error))
        return "error {} against float64, eager's {}".format(*numbers)

    @property
    def right(self) -> bool:
        """Whether it passes without excuse."""
        return self.ok and not self.excused

    @property
    def refused(self) -> Judged:
        """The verdict where no excuse counts."""
        if not self.ok or self.right:
            return self
        return replace(self, ok=False, problem=f"overflows in {self.excused} places, as eager PyTorch does")


@dataclass(frozen=True, slots=True)
class JudgeCandidate:
    candidate: Candidate
    standard: Standard
    anew: bool
    within_s: float = math.inf


@dataclass(frozen=True, slots=True)
class PrepareJudging:
    contracted: int


@dataclass(frozen=True, slots=True)
class TimeCandidates:
    candidates: tuple[Candidate, ...]
    effort: Effort
    seed: int
    within_s: float = math.inf
    best_us: float = math.inf


@dataclass(frozen=True, slots=True)
class Timings:
    results: dict[str, Timing | Failure]


@dataclass(frozen=True, slots=True)
class MeasureOverhead:
    candidate: Candidate
    function: str


@dataclass(frozen=True, slots=True)
class MeasureFloor:
    dtype: str


@dataclass(frozen=True, slots=True)
class At:
    """Sent before each step: whose it is, and how long it may take."""

    candidate: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """device: "cuda", "cuda:1", or "cpu", where times mean little but the protocol is the same.

    memory_fraction: share of the free device memory that rotated inputs and outputs may take.
    context: in which all candidates are timed.
    """

    device: str = "cuda"
    memory_fraction: float = 0.4
    context: Context = "both"


def _nothing() -> None:
    pass


class GpuWorker:
    """Asks a process of its own. Use as a context manager; from one thread at a time. directory: as a `CompileFarm`'s,
    which has compiled what is timed."""

    def __init__(
        self,
        device: str = "cuda",
        memory_fraction: float = 0.4,
        context: Context = "both",
        directory: Path | None = None,
    ) -> None:
        self._options = WorkerOptions(device, memory_fraction, context)
        self._held = ExitStack()
        self._directory = directory or Path(self._held.enter_context(TemporaryDirectory(prefix="mirage-")))
        self._child: Child | None = None
        self._device: MeasuringDevice | None = None
        self._problem: Problem | None = None
        self.restarts = 0

    def __enter__(self) -> GpuWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._drop()
        self._held.close()

    def start(self) -> None:
        """Starts the process, so that its seconds of imports pass while other work is done."""
        if self._child is None:
            self._child = Child("mirage_cli.tune.worker", (self._options, self._directory), kernels=True)

    @property
    def device(self) -> MeasuringDevice:
        """Raises MeasureError."""
        self._running()
        assert self._device is not None
        return self._device

    def set_problem(self, problem: Problem) -> None:
        """Draws the inputs and computes the float64 outputs. Raises MeasureError."""
        child = self._running(problem=False)
        self._problem = problem
        self._give_problem(child, problem)

    def judge(
        self, candidate: Candidate, standard: Standard, anew: bool = False, within_s: float = math.inf
    ) -> Judged | Failure:
        """Judges it on every distribution against float64 and eager PyTorch, outputs poisoned first.

        anew: on other data of these distributions than all calls without it. within_s: a judgement that takes longer is
        a failure.
        """
        return self._ask(JudgeCandidate(candidate, standard, anew, within_s))

    def prepare_judging(self, contracted: int) -> int | None:
        """Evaluates what the outputs are on one distribution, for the judgements to come. On how many that is still to
        be done; None where there is no memory to hold more, or it failed."""
        answer = self._ask(PrepareJudging(contracted))
        return None if isinstance(answer, Failure) else answer

    def time(
        self,
        candidates: Sequence[Candidate],
        effort: Effort = QUICK,
        seed: int = 0,
        persist: bool = True,
        meanwhile: Callable[[], object] = _nothing,
        within_s: float = math.inf,
        best_us: float = math.inf,
    ) -> Mapping[str, Timing | Failure]:
        """Times all candidates in turn, round by round, each round in an order of its own.

        meanwhile: what the caller does while the process is at work.
        best_us: the best of others before. Calls that take far longer are timed once or twice.
        within_s: where all take longer, the last ones are left out, and have no figures; one that can be timed is, but
        behind one that takes the process down.
        When one takes the process down, it is named, and the others are timed again without it; or else, unless this is
        to `persist`, they have no figures. One that writes where it should not spoils the inputs of the others.
        """
        results: dict[str, Timing | Failure] = {}
        left: tuple[Candidate, ...] = tuple(candidates)
        end = time.monotonic() + within_s
        while left:
            request = TimeCandidates(left, effort, seed, end - time.monotonic(), best_us)
            answer: Timings | Failure | _Lost = self._ask(request, meanwhile)
            meanwhile = _nothing
            if isinstance(answer, Timings):
                results |= answer.results
                break
            if isinstance(answer, Failure):  # of the process, not of one of them
                raise MeasureError(f"Kernels cannot be timed: {answer}")
            lost: set[str] = {answer.candidate} if answer.candidate else {c.id for c in left}
            results |= dict.fromkeys(lost, answer.failure)
            left = tuple(c for c in left if c.id not in lost) if persist and time.monotonic() < end else ()
        return {c.id: results[c.id] for c in candidates if c.id in results}

    def launch_overhead_us(self, exported: Candidate, function: str) -> float | None:
        """CPU time of a call of an exported file's function beyond its launches; None where it cannot be had."""
        answer = self._ask(MeasureOverhead(exported, function))
        return None if isinstance(answer, Failure) else answer

    def measure_floor(self, dtype: str = "float16") -> Floor:
        """The ceilings of this device. Raises MeasureError."""
        answer = self._ask(MeasureFloor(dtype))
        if isinstance(answer, Failure):
            raise MeasureError(f"The device's ceilings cannot be measured: {answer}")
        return answer

    def _ask(
        self,
        request: JudgeCandidate | PrepareJudging | TimeCandidates | MeasureOverhead | MeasureFloor,
        meanwhile: Callable[[], object] = _nothing,
        again: bool = False,
    ) -> Any:
        """The answer: for `TimeCandidates` `Timings` or `_Lost`; otherwise figures or a Failure. Raises MeasureError.

        again: whether the process that was asked first was killed."""
        child = self._running()
        at = At("", PROBLEM_TIMEOUT_S)
        try:
            child.send(request)
            meanwhile()
            while isinstance(answer := child.receive(at.timeout_s), At):
                at = answer
        except TimeoutError as e:
            answer = _Lost(at.candidate, Failure(FailureKind.HANG, str(e), fatal=True))
        except ChildDied as e:
            if isinstance(e, ChildKilled) and not again:
                self._replace()
                return self._ask(request, again=True)
            answer = _Lost(at.candidate, Failure(FailureKind.CRASH, str(e), fatal=True))
        except BaseException:
            self._drop()
            raise
        if isinstance(answer, Failure) and answer.fatal:
            answer = _Lost(at.candidate, answer)
        if isinstance(answer, _Lost):
            self._replace()
            return answer if isinstance(request, TimeCandidates) else answer.failure
        return answer

    def _running(self, problem: bool = True) -> Child:
        self.start()
        child = self._child
        assert child is not None
        if self._device is not None:
            return child
        try:
            self._device = child.receive(START_TIMEOUT_S)
        except (TimeoutError, ChildDied) as e:
            self._drop()
            raise MeasureError(f"The measuring process does not start: {e}") from None
        if problem and self._problem is not None:
            self._give_problem(child, self._problem)
        return child

    def _give_problem(self, child: Child, problem: Problem) -> None:
        try:
            child.send(SetProblem(problem))
            answer = child.receive(PROBLEM_TIMEOUT_S)
        except (TimeoutError, ChildDied) as e:
            answer = Failure(FailureKind.CRASH, str(e), fatal=True)
        if isinstance(answer, Failure):
            self._drop()
            raise MeasureError(f"The inputs and their float64 outputs cannot be made: {answer}")

    def _replace(self) -> None:
        """With the next question."""
        self._drop()
        self.restarts += 1

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = self._device = None


@dataclass(frozen=True, slots=True)
class _Lost:
    candidate: str
    failure: Failure
