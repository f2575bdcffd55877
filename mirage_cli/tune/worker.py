"""The process that owns the GPU: draws inputs, runs candidates, judges and times them. `tune.measure` asks it.

Timing, the same for every contestant: calls over rotated input sets are captured in one CUDA graph; before each replay
a buffer of `COLD_L2` times the L2 is read, which leaves no input in the cache and keeps the GPU busy while the replay
is queued; events around the replay give one sample. A full cycle of sets covers `COLD_L2` times the L2 as well, so
inputs are cold within a replay (2 times the L2 was measured not to be cold on an H200).

A call is timed in two contexts. In a chain, calls follow each other, and overlap where their kernels are launched to.
Alone, a small kernel of torch, which knows nothing of overlap, stands before each call; the time of as many such
kernels in a chain of their own, taken in the same round, is subtracted.
"""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar  # Any: what comes through a pipe

import torch

from mirage_cli.codegen.exported.selfcheck import cpu_time
from mirage_cli.ir.once import once
from mirage_cli.tune.measure import (
    SAMPLE_TIMEOUT_S,
    Accuracy,
    At,
    Candidate,
    Context,
    Effort,
    Failure,
    FailureKind,
    Floor,
    JudgeCandidate,
    MeasureFloor,
    MeasureOverhead,
    MeasuringDevice,
    PrepareJudging,
    Problem,
    SetProblem,
    TimeCandidates,
    Timing,
    Timings,
    WorkerOptions,
)
from mirage_cli.tune.modules import hash_triton, load_module, read_generated
from mirage_cli.tune.outputs import Tensors, WrongError
from mirage_cli.tune.setting import DECIDED, TRACES, LateError, Left, Run, Setting, device_properties
from mirage_cli.verify.decided import decides
from mirage_cli.verify.testdata import as_bytes

T = TypeVar("T")
HOT_LAUNCHES = 200
MIN_ROUNDS = 5
WARM_UP_S = 0.2
COOL_S = 1.0
"""Without work for so long, the GPU is warmed up again."""
SPACER_BYTES = 1 << 18
"""What the kernel before each call that is timed alone reads and writes."""
LEAST_US = 1e-3
"""Of a call that is timed alone: where it takes next to nothing, noise may leave less than the kernel before it."""
LEAST_CALLS = 2
"""Of one replay, however long a call takes: the second is behind the first."""
SLOW, LONG_S = 3.0, 2e-3
"""Calls that take so many times the best's time, and so long, are timed by the host's clock, which is off by a few
percent then: a timing by events makes some twenty calls."""
HOPELESS, FAR = 1.3, 1.15
"""Where a timing selects the fastest: calls that take so many times the best of those before in a chain are not timed
alone, where they take no less; those that take so many times the best of their own rounds take part in two."""
REPLAY_S = 0.5
"""No replay should take longer, nor than its part of the effort's seconds, or it makes fewer calls."""


def main(connection: Connection[Any, Any], options: WorkerOptions, directory: Path) -> None:
    """Answers requests until the pipe closes. Every failure of a candidate becomes a `Failure`, here and only here."""
    bench = Bench(torch.device(options.device), options.memory_fraction, directory, connection.send, options.context)
    connection.send(bench.describe())
    if bench.cuda:
        hash_triton()
        read_generated(directory)
    while True:
        request = connection.recv()
        try:
            answer = bench.answer(request)
        except Exception as e:  # the border of the GPU process
            answer = bench.failure(e)
        connection.send(answer)
        if isinstance(answer, Failure) and answer.fatal:
            os._exit(1)


@dataclass
class Prepared:
    """A candidate ready to be timed: `replay` makes a call for each input set of the order.

    run: held because the captured calls write to the scratch that it owns. left: what each call leaves. first_us: what
    a first replay has taken. sets: distinct ones in the order. spaced: the same calls with a kernel before each; None
    where only the chain is asked for, or calls are so long that what stands before one hardly matters: then what holds
    in a chain holds alone.
    """

    candidate: Candidate
    run: Run
    order: Sequence[int]
    left: Sequence[Left]
    replay: Callable[[], None]
    first_us: float
    sets: int
    method: str
    spaced: Callable[[], None] | None = None
    accuracy: Accuracy | None = None
    samples_us: list[float] = field(default_factory=list[float])
    alone_samples_us: list[float] = field(default_factory=list[float])
    hot_us: float | None = None

    @property
    def launches(self) -> int:
        return len(self.order)

    @property
    def call_s(self) -> float:
        """What one call of a chain takes."""
        return self.first_us * 1e-6 / self.launches

    def timing(self, context: Context) -> Timing:
        return Timing(
            samples_us=tuple(self.samples_us),
            launches=self.launches,
            sets=self.sets,
            method=self.method,
            hot_us=self.hot_us,
            accuracy=self.accuracy,
            alone_samples_us=tuple(
                self.samples_us if self.spaced is None and context != "chain" else self.alone_samples_us
            ),
            context=context,
        )


def is_slow(call_s: float, best_s: float) -> bool:
    return call_s > LONG_S and call_s > SLOW * best_s


def write_by_kernel(out: torch.Tensor, data: torch.Tensor) -> None:
    """Copies by a kernel of torch, where `copy_` may be none. Of types that torch has no arithmetic for, the bytes."""
    data = as_bytes(data)
    torch.maximum(data, data, out=as_bytes(out))


class Bench(Setting):
    """The state of the process, which answers requests."""

    capture_error_mode = "global"
    """Of CUDA graphs: whose calls may not disturb a capture."""

    def __init__(
        self,
        device: torch.device,
        memory_fraction: float,
        directory: Path,
        report: Callable[[At], None],
        context: Context = "both",
    ) -> None:
        super().__init__(device, memory_fraction, directory, report)
        self.context: Context = context
        self.generator = torch.Generator(self.device)
        self.buffer = torch.zeros(SPACER_BYTES // 4, device=self.device)
        self.worked_out: dict[Any, Any] = {}  # as `once` has it

    def describe(self) -> MeasuringDevice:
        triton_version = version("triton") if find_spec("triton") else "none"
        if not self.cuda:
            return MeasuringDevice("cpu", 0, str(torch.__version__), triton_version)
        p = device_properties(self.device)
        return MeasuringDevice(
            name=p.name,
            arch=p.major * 10 + p.minor,
            torch=str(torch.__version__),  # a `TorchVersion` would have its reader import torch
            triton=triton_version,
        )

    def answer(self, request: object) -> object:
        match request:
            case SetProblem(problem):
                return self.set_problem(problem)
            case JudgeCandidate(candidate, standard, anew, within_s):
                return self.judge_all(candidate, standard, anew, within_s)
            case PrepareJudging(contracted):
                return self.prepare_case(contracted)
            case TimeCandidates(candidates, effort, seed, within_s, best_us):
                return Timings(self.time(candidates, effort, seed, within_s, best_us))
            case MeasureOverhead(candidate, function):
                return self.launch_overhead_us(candidate, function)
            case MeasureFloor(dtype):
                return self.measure_floor(getattr(torch, dtype))
            case _:
                raise TypeError(f"no such request: {request!r}")

    def failure(self, error: Exception) -> Failure:
        """What went wrong, by the exception and by whether the device still answers."""
        message = f"{type(error).__name__}: {error}"[:2000]
        error.__traceback__ = None
        try:
            gc.collect()
            self.synchronize()
            if self.cuda:
                torch.cuda.empty_cache()
                torch.zeros(1, device=self.device).item()
        except Exception as e:  # a context that has faulted raises from every call
            return Failure(FailureKind.FAULT, message if "CUDA" in message else f"{message}; then {e}", fatal=True)
        if isinstance(error, torch.OutOfMemoryError) or type(error).__name__ == "OutOfResources":
            return Failure(FailureKind.OUT_OF_MEMORY, message)
        if isinstance(error, LateError):
            return Failure(FailureKind.LATE, str(error))
        return Failure(FailureKind.WRONG if isinstance(error, WrongError) else FailureKind.COMPILE, message)

    # Timing

    def time(
        self,
        candidates: tuple[Candidate, ...],
        effort: Effort,
        seed: int,
        within_s: float = math.inf,
        best_us: float = math.inf,
    ) -> dict[str, Timing | Failure]:
        """As `GpuWorker.time` says. Half of the seconds are for the rounds."""
        results: dict[str, Timing | Failure] = {}
        start = time.perf_counter()
        ready: list[Prepared] = []
        best_s, timed = best_us * 1e-6, False
        with torch.no_grad():
            if time.perf_counter() - self.busy_until > COOL_S:
                self.warm_up()
            for c in candidates:
                if timed and time.perf_counter() > start + within_s / 2:
                    break
                self.report(At(c.id, c.timeout_s))
                try:
                    run, host_s = self.begin(c)
                    if not effort.hot and is_slow(host_s, best_s):
                        results[c.id] = self.roughly(run, host_s)
                    else:
                        chain = self.chain(c, run, host_s, effort)
                        if effort.selects and (hopeless := self.hopeless(chain, best_us)):
                            results[c.id] = hopeless
                        else:
                            ready.append(self.prepare(chain, host_s, effort, is_slow(host_s, best_s)))
                            best_s = min(best_s, host_s)
                    timed = True
                except Exception as e:  # the border of the GPU process: one candidate's failure is not the others'
                    results[c.id] = failure = self.failure(e)
                    if failure.fatal:
                        raise
            self.run_rounds(ready, effort, random.Random(seed), start + within_s)
        results |= {p.candidate.id: p.timing(self.context) for p in ready}
        self.busy_until = time.perf_counter()
        ready.clear()
        gc.collect()
        gc.freeze()  # modules, above all: looking through them again would soon take longer than the next trials do
        if self.cuda:
            torch.cuda.empty_cache()
        return results

    def begin(self, candidate: Candidate) -> tuple[Run, float]:
        """The candidate on the input sets, compiled, and the seconds that a call takes by the host's clock."""
        run = self.load(candidate, self.input_sets())
        self.host_seconds(run)  # compiles
        return run, self.host_seconds(run)

    def roughly(self, run: Run, host_s: float) -> Timing:
        """The timing of a call that is too slow to be of interest, from this one and one more."""
        samples_us = (host_s * 1e6, self.host_seconds(run) * 1e6)
        return self.given_up(samples_us, 1, 1, "host clock, too slow for more")

    def given_up(self, samples_us: tuple[float, ...], launches: int, sets: int, method: str) -> Timing:
        """Of a call that is known to be no candidate for the best by its times in a chain."""
        alone_us = samples_us if self.context != "chain" else ()
        return Timing(
            samples_us=samples_us,
            launches=launches,
            sets=sets,
            method=method,
            hot_us=None,
            accuracy=None,
            alone_samples_us=alone_us,
            context=self.context,
        )

    def chain(self, candidate: Candidate, run: Run, host_s: float, effort: Effort) -> Prepared:
        """Captures calls that follow each other, with a first sample of them."""
        sets = self.input_sets()
        affordable = max(LEAST_CALLS, int(min(REPLAY_S, effort.seconds / MIN_ROUNDS) / host_s))
        cycle = list(range(len(sets))) * (2 if len(sets) <= 64 else 1)
        order = cycle[: min(effort.launches, affordable)]
        replay, left, method = self.record(run, order)
        return Prepared(candidate, run, order, left, replay, self.sample(replay), len({*order}), method)

    def hopeless(self, p: Prepared, best_us: float) -> Timing | None:
        """The timing of what is far slower than the best in a chain, seen twice."""
        limit_us = HOPELESS * best_us * p.launches
        if p.first_us <= limit_us or (again_us := self.sample(p.replay)) <= limit_us:
            return None
        samples_us = p.first_us / p.launches, again_us / p.launches
        return self.given_up(samples_us, p.launches, p.sets, f"{p.method}, too slow for more")

    def prepare(self, p: Prepared, host_s: float, effort: Effort, slow: bool) -> Prepared:
        """Captures the calls for the other context, and judges what one replay of the chain leaves in the first and the
        last outputs. slow: beside the best, so that a few calls say enough."""
        candidate, run, order = p.candidate, p.run, p.order
        if self.context != "chain" and (host_s <= LONG_S or (effort.hot and not slow)):
            p.spaced = self.record(lambda i: (self.spacer(), run(i))[1], order)[0]
        if self.expected:
            left = self.left_by(p)
            generated = candidate.kind == "kernels"
            p.accuracy = self.accuracy([(order[i], left[i].outputs()) for i in (0, -1)], excuses=generated)
            if generated and not math.isfinite(p.accuracy.relative):
                raise WrongError("an output is inf or NaN, or was not written, where float64 and eager are finite")
            if generated:
                self.refuse_traces_of_calls_before(run, order[-1], left[-1])
            if generated and effort.hot and len(self.sets) > 1:
                self.refuse_early_reads(run)
        if effort.hot:
            launches = LEAST_CALLS if slow else min(HOT_LAUNCHES, max(4, len(order)))
            hot, _, _ = self.record(run, [0] * launches)
            times = [self.sample(hot, cold=False) for _ in range(2 if slow else 6)]
            p.hot_us = statistics.median(times[1:]) / launches
        return p

    def left_by(self, p: Prepared) -> Sequence[Left]:
        """What one replay of the chain leaves. Where calls change what they read, there are no two of an input set: the
        first and the last call alone, on the data that were drawn for them."""
        left = p.left
        if self.state:
            some = [*dict.fromkeys((p.order[0], p.order[-1]))]
            for i in some:
                self.renew(i)
            left = [p.run(i) for i in some]
        else:
            for i in (0, -1) if p.candidate.kind == "kernels" else ():
                left[i].poison()
            p.replay()
        self.synchronize()
        return left

    def refuse_early_reads(self, run: Run) -> None:
        """Raises WrongError where a call reads an input before the kernel right in front of it has written that.

        The last input set holds its own data before each replay; kernels of torch then write another draw over it, each
        input last in turn, and the call must return what that draw gives, as exactly as calls by themselves do of
        either draw.
        """
        last = len(self.sets) - 1
        inputs, own, other = self.sets[last][0], self.drawn[last % 2], self.drawn[1 - last % 2]

        def write(data: Tensors, first: int = 0) -> None:
            for i in range(first, first + len(inputs)):
                write_by_kernel(inputs[i % len(inputs)], data[i % len(inputs)])

        def by_itself(i: int) -> float:
            """The error of a call; of the last two input sets, each has a draw."""
            self.renew(i)
            found = self.accuracy([(i, run(i).outputs())]).relative
            self.renew(i)
            return found

        numbers = [y.dtype for y in run(last).outputs() if not decides(y.dtype)]
        rounding = [torch.finfo(dtype).eps for dtype in numbers] or [DECIDED]
        limit = max(TRACES * max(by_itself(last), by_itself(max(last - 1, 0))), *rounding, 0.0)
        for first in range(len(inputs)):
            with self.launches.early():
                replay, found, _ = self.record(lambda _, first=first: (write(other, first), run(last))[1], [last])
            write(own)
            self.synchronize()
            replay()
            self.synchronize()
            if self.accuracy([(last + 1, found[0].outputs())]).relative > limit:
                name = self.problem.inputs[first - 1].name
                raise WrongError(f"reads {name} before the kernel in front has written it")
        write(own)
        self.synchronize()

    def spacer(self, _: int = 0) -> None:
        """The kernel that stands before a call which is timed alone."""
        self.buffer.add_(1.0)

    @once
    def spacers(self, count: int) -> Callable[[], None]:
        """A chain of so many of them."""
        return self.record(self.spacer, range(count))[0]

    def spacers_us(self, count: int) -> float:
        return self.sample(self.spacers(count))

    def host_seconds(self, run: Run) -> float:
        start = time.perf_counter()
        run(0)
        self.synchronize()
        return time.perf_counter() - start

    def record(self, run: Callable[[int], T], order: Sequence[int]) -> tuple[Callable[[], None], list[T], str]:
        """A way to repeat these calls, what they return, and its name."""
        returned: list[T] = []

        def calls() -> None:
            returned[:] = [run(i) for i in order]

        if not self.cuda:
            calls()
            return calls, returned, "host clock"
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode=self.capture_error_mode):
                calls()
        except RuntimeError as e:
            self.synchronize()
            reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
            calls()
            return calls, returned, f"events, no CUDA graph: {reason}"
        graph.replay()
        self.synchronize()
        return graph.replay, returned, "CUDA graph"

    def run_rounds(self, ready: list[Prepared], effort: Effort, rng: random.Random, until_s: float) -> None:
        """until_s: when no more rounds begin, by this process's clock; there is one in any case. Calls that are slow
        beside the best's take part in two, but where times with hot inputs are asked for too."""
        if not ready:
            return
        best_s = min(p.call_s for p in ready)
        each_s = sum((2 if p.spaced else 1) * p.first_us * 1e-6 for p in ready)
        affordable = int(effort.seconds * len(ready) / max(each_s, 1e-9))
        order = list(ready)
        for done in range(max(MIN_ROUNDS, min(effort.rounds, affordable))):
            if done and time.perf_counter() > until_s:
                break
            if done == 2 and not effort.hot:
                order = [p for p in order if not is_slow(p.call_s, best_s)]
                order = [p for p in order if p.call_s <= FAR * best_s or not effort.selects]
            rng.shuffle(order)
            spacers_us = {n: self.spacers_us(n) for n in sorted({p.launches for p in order if p.spaced})}
            for p in order:
                self.report(At(p.candidate.id, SAMPLE_TIMEOUT_S))
                p.samples_us.append(self.sample(p.replay) / p.launches)
                if p.spaced:
                    alone_us = self.sample(p.spaced) - spacers_us[p.launches]
                    p.alone_samples_us.append(max(alone_us / p.launches, LEAST_US))

    def sample(self, replay: Callable[[], None], cold: bool = True) -> float:
        """Microseconds from before the first call to after the last."""
        if not self.cuda:
            start = time.perf_counter()
            replay()
            return (time.perf_counter() - start) * 1e6
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if cold:
            torch.sum(self.flush, dim=0, out=self.flushed)
        before.record()
        replay()
        after.record()
        after.synchronize()
        return before.elapsed_time(after) * 1e3

    def warm_up(self) -> None:
        """Keeps the GPU at work until its clock has risen."""
        if not self.cuda:
            return
        a = self.square(2048).half()
        stop = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < stop:
            for _ in range(20):
                torch.mm(a, a)
            self.synchronize()

    def square(self, side: int) -> torch.Tensor:
        """Random numbers. PyTorch's own generator gives none any more once a CUDA graph could not be captured."""
        return torch.randn(side, side, generator=self.generator, device=self.device)

    def launch_overhead_us(self, exported: Candidate, function: str) -> float | None:
        """As the file's own check measures it; None without a GPU, or where the file launches by Triton's own way."""
        self.report(At(exported.id, exported.timeout_s))
        if not self.cuda:
            return None
        module, inputs = load_module(exported.source, self.directory), self.drawn[0]
        run, device = getattr(module, function), inputs[0].get_device()
        with torch.inference_mode(), self.launches.as_triton():
            return cpu_time(lambda: run(*inputs), getattr(module, "_PLANS", {}), device, vars(module)).overhead_us

    def measure_floor(self, dtype: torch.dtype) -> Floor:
        """The ceilings. For float32 the matmul may use TF32, so that no kernel that does is found to be impossible."""
        self.warm_up()
        copy_elements, side = (1 << 31, 8192) if self.cuda else (1 << 22, 256)
        copied = [torch.ones(copy_elements, dtype=torch.uint8, device=self.device) for _ in range(2)]
        copy_us = self.median_us(lambda: copied[0].copy_(copied[1]))
        copied.clear()
        a, b = (self.square(side).to(dtype) for _ in range(2))
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        matmul_us = self.median_us(lambda: a @ b)
        torch.set_float32_matmul_precision(precision)
        with self.problem_of_nothing():
            nothing = Candidate("empty", _EMPTY_KERNEL if self.cuda else _EMPTY_CALL)
            empty = self.chain(nothing, *self.begin(nothing), Effort(1, 64, 0, False))
            samples = [self.sample(empty.replay) / empty.launches for _ in range(11)]
        return Floor(2e6 * copy_elements / copy_us, 2e6 * side**3 / matmul_us, statistics.median(samples))

    def median_us(self, call: Callable[[], object]) -> float:
        call()
        return statistics.median(self.sample(lambda: (call(), None)[1]) for _ in range(11))

    @contextmanager
    def problem_of_nothing(self) -> Generator[None]:
        """For the empty kernel: 64 input sets with nothing in them, on a problem without outputs."""
        kept = self.problem, self.expected, self.sets, self.lies
        self.problem, self.expected, self.lies = Problem((), ()), [], None
        self.sets = [([torch.zeros(16, device=self.device)], []) for _ in range(64)]
        try:
            yield
        finally:
            self.problem, self.expected, self.sets, self.lies = kept


_EMPTY_CALL = "make_scratch = lambda device: []\nlaunch = lambda inputs, outputs, scratch: None\n"
_EMPTY_KERNEL = """
import triton
import triton.language as tl

@triton.jit
def empty(x):
    pass

def make_scratch(device):
    return []

def launch(inputs, outputs, scratch):
    empty[(1,)](inputs[0])
"""
