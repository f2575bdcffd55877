"""The process that owns the GPU: draws inputs, runs candidates, judges and times them. `tune.measure` asks it.

Timing, the same for every contestant: calls over rotated input sets are captured in one CUDA graph; before each replay
a buffer of `COLD_L2` times the L2 is read, which leaves no input in the cache and keeps the GPU busy while the replay
is queued; events around the replay give one sample. A full cycle of sets covers `COLD_L2` times the L2 as well, so
inputs are cold within a replay (2 times the L2 was measured not to be cold on an H200).
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
from typing import Any

import torch

from mirage_cli.tune.measure import (
    SAMPLE_TIMEOUT_S,
    Accuracy,
    At,
    Candidate,
    Check,
    Device,
    Distribution,
    Effort,
    Failure,
    FailureKind,
    Floor,
    Judge,
    Judged,
    MeasureFloor,
    Problem,
    SetProblem,
    Standard,
    TensorSpec,
    Time,
    Timing,
    Timings,
    WorkerOptions,
)
from mirage_cli.tune.modules import load_module
from mirage_cli.tune.testdata import (
    GUARD_ELEMENTS,
    Tensors,
    WrongError,
    as_list,
    draw,
    guarded_buffer,
    inside_of,
    judge,
    poison,
)
from mirage_cli.verify import yardstick

COLD_L2 = 8
MAX_SETS = 4096
CPU_L2_BYTES = 1 << 20
CPU_MAX_SETS = 8
HOT_LAUNCHES = 200
MIN_ROUNDS = 5
WARM_UP_S = 0.2
REPLAY_S = 0.5
"""No replay should take longer, or it makes fewer calls than there are input sets."""

Run = Callable[[int], Tensors]
"""Runs a candidate on the input set of this number and returns its outputs."""


def main(connection: Connection[Any, Any], options: WorkerOptions, directory: Path) -> None:
    """Answers requests until the pipe closes. Every failure of a candidate becomes a `Failure`, here and only here."""
    bench = Bench(torch.device(options.device), options.memory_fraction, directory, connection.send)
    connection.send(bench.describe())
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
class Data:
    """Inputs of one distribution with their float64 outputs; `pristine` is a second copy to compare with."""

    inputs: Tensors
    pristine: Tensors
    reference: Tensors


@dataclass
class Case:
    """One distribution's inputs, with the outputs in float64 and by eager PyTorch."""

    inputs: Tensors
    expected: Tensors
    eager: Tensors

    def rounded(self, bench: Bench, dtype: torch.dtype | None) -> Tensors:
        """The outputs in float64 with the result of every operator, or else of every call of eager, rounded."""
        own = next(x.dtype for x in self.inputs if x.is_floating_point())
        wide = yardstick.in_float64(self.inputs, off=dtype)
        with yardstick.RoundEveryResult(dtype or own, yardstick.SUM_BITS if dtype else 0):
            return [y.double() for y in bench.reference(wide, "stepwise" if dtype else "reference")]


@dataclass
class Prepared:
    """A candidate ready to be timed: `replay` makes `launches` calls over the first `sets` input sets.

    run: held because the captured calls write to the scratch that it owns.
    """

    candidate: Candidate
    run: Run
    replay: Callable[[], None]
    launches: int
    sets: int
    method: str
    accuracy: Accuracy | None = None
    samples_us: list[float] = field(default_factory=list[float])
    hot_us: float | None = None

    def timing(self) -> Timing:
        return Timing(
            tuple(self.samples_us), self.launches, self.sets, self.method, hot_us=self.hot_us, accuracy=self.accuracy
        )


class Bench:
    """The state of the process: one device, one problem."""

    def __init__(
        self, device: torch.device, memory_fraction: float, directory: Path, report: Callable[[At], None]
    ) -> None:
        self.cuda = device.type == "cuda"
        self.device = device = torch.device("cuda", device.index or 0) if self.cuda else device
        self.memory_fraction = memory_fraction
        self.directory = directory
        self.report = report
        self.problem = Problem((), ())
        self.data: dict[Distribution, Data] = {}
        self.cases: dict[int, Case] = {}
        self.sets: list[tuple[Tensors, Tensors]] = []
        if self.cuda:
            torch.cuda.set_device(device)
            properties = device_properties(device)
            self.l2_bytes = int(properties.L2_cache_size)
            self.flush = torch.zeros(COLD_L2 * self.l2_bytes // 4, device=device)
            self.flushed = torch.zeros((), device=device)
        else:
            torch.set_num_threads(1)
            self.l2_bytes = CPU_L2_BYTES

    def describe(self) -> Device:
        triton_version = version("triton") if find_spec("triton") else "none"
        if not self.cuda:
            return Device("cpu", 0, os.cpu_count() or 1, self.l2_bytes, 0, 0, torch.__version__, triton_version)
        p = device_properties(self.device)
        return Device(
            name=p.name,
            arch=p.major * 10 + p.minor,
            multiprocessors=p.multi_processor_count,
            l2_bytes=self.l2_bytes,
            memory_bytes=p.total_memory,
            shared_bytes_per_block=p.shared_memory_per_block_optin,
            torch=torch.__version__,
            triton=triton_version,
        )

    def answer(self, request: object) -> object:
        match request:
            case SetProblem(problem):
                return self.set_problem(problem)
            case Check(candidate, distribution):
                return self.check(candidate, distribution)
            case Judge(candidate, standard):
                return self.judge_all(candidate, standard)
            case Time(candidates, effort, seed):
                return Timings(self.time(candidates, effort, seed))
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
        return Failure(FailureKind.WRONG if isinstance(error, WrongError) else FailureKind.COMPILE, message)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    # Inputs, and what the outputs should be

    def set_problem(self, problem: Problem) -> bool:
        self.problem = problem
        self.data.clear()
        self.cases.clear()
        self.sets.clear()
        if self.cuda:
            torch.cuda.empty_cache()
        self.draw("normal")
        self.synchronize()
        return True

    def draw(self, distribution: Distribution) -> Data:
        """The inputs of this distribution and the outputs in float64, made once."""
        if distribution not in self.data:
            g = torch.Generator(self.device).manual_seed(self.problem.seed)
            inputs = [draw(spec, distribution, g) for spec in self.problem.inputs]
            reference: Tensors = []
            if self.problem.reference_source is not None:
                module = load_module(self.problem.reference_source, self.directory)
                wide = [x.double() if x.is_floating_point() else x for x in inputs]
                reference = [y.double() for y in as_list(module.reference(*wide))]
            self.data[distribution] = Data(inputs, [x.clone() for x in inputs], reference)
        return self.data[distribution]

    def input_sets(self) -> list[tuple[Tensors, Tensors]]:
        """Copies of the inputs and room for the outputs, enough to cover `COLD_L2` times the L2."""
        if not self.sets:
            first = self.draw("normal").inputs
            in_bytes = max(sum(x.nbytes for x in first), 1)
            outputs = [self.empty(spec) for spec in self.problem.outputs]
            count = min(math.ceil(COLD_L2 * self.l2_bytes / in_bytes), MAX_SETS if self.cuda else CPU_MAX_SETS)
            if self.cuda:
                torch.cuda.empty_cache()
                room = self.memory_fraction * torch.cuda.mem_get_info(self.device)[0]
                count = min(count, int(room // (in_bytes + sum(y.nbytes for y in outputs))))
            self.sets = [(first, outputs)]
            for _ in range(max(count, 1) - 1):
                self.sets.append(([x.clone() for x in first], [torch.empty_like(y) for y in outputs]))
        return self.sets

    def empty(self, spec: TensorSpec) -> torch.Tensor:
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=self.device)

    # Candidates

    def load(self, candidate: Candidate, sets: Sequence[tuple[Tensors, Tensors]]) -> Run:
        """The candidate as a function of an input set's number. Workspace is one for all sets, as in a real caller."""
        module = load_module(candidate.source, self.directory)
        if candidate.kind == "function":
            fn = module.make(sets[0][0])
            return lambda i: as_list(fn(*sets[i][0]))
        scratch = module.make_scratch(self.device)
        for x in scratch:
            if x.is_floating_point():
                x.fill_(math.nan)

        def run(i: int) -> Tensors:
            inputs, outputs = sets[i]
            module.launch(inputs, outputs, scratch)
            return outputs

        return run

    def check(self, candidate: Candidate, distribution: Distribution) -> Accuracy:
        """The worse of two runs, with outputs poisoned before each and guarded on both sides. Raises WrongError."""
        self.report(At(candidate.id, candidate.timeout_s))
        data = self.draw(distribution)
        if not data.reference:
            raise ValueError("the problem has no reference to check against")
        guarded = [guarded_buffer(spec, self.device) for spec in self.problem.outputs]
        accuracy = Accuracy(0.0, 0.0)
        with torch.no_grad():
            inside = [inside_of(y, spec) for y, spec in zip(guarded, self.problem.outputs, strict=True)]
            run = self.load(candidate, [(data.inputs, inside)])
            for _ in range(2):
                for y in guarded:
                    poison(y)
                outputs = run(0)
                self.synchronize()
                accuracy = accuracy.worst(self.judge(outputs, data))
        self.refuse_stray_writes(data, guarded)
        return accuracy

    def refuse_stray_writes(self, data: Data, guarded: Tensors) -> None:
        changed = [
            spec.name
            for spec, x, kept in zip(self.problem.inputs, data.inputs, data.pristine, strict=True)
            if not torch.equal(x, kept)
        ]
        if changed:
            for x, kept in zip(data.inputs, data.pristine, strict=True):
                x.copy_(kept)
            raise WrongError(f"writes to its inputs: {', '.join(changed)}")
        for spec, y in zip(self.problem.outputs, guarded, strict=True):
            fresh = poison(torch.empty_like(y))
            for edge in (slice(None, GUARD_ELEMENTS), slice(-GUARD_ELEMENTS, None)):
                if not torch.equal(y[edge].view(torch.uint8), fresh[edge].view(torch.uint8)):
                    raise WrongError(f"writes outside output {spec.name}")

    def judge(self, outputs: Tensors, data: Data) -> Accuracy:
        return judge(self.problem.outputs, outputs, data.reference)

    def judge_all(self, candidate: Candidate, standard: Standard) -> Judged:
        """Every distribution of the yardstick; the float64 and eager outputs of each are made once."""
        found: list[yardstick.Judgement] = []
        with torch.no_grad():
            for i, kind in enumerate(yardstick.DISTRIBUTIONS):
                self.report(At(candidate.id, candidate.timeout_s))
                case = self.case(i, standard.contracted)
                outputs = [poison(self.empty(spec)) for spec in self.problem.outputs]
                outputs = self.load(candidate, [([x.clone() for x in case.inputs], outputs)])(0)
                self.synchronize()
                found.append(
                    yardstick.judge_outputs(
                        kind.name,
                        outputs,
                        case.expected,
                        case.eager,
                        lambda dtype, case=case: case.rounded(self, dtype),
                        standard.tolerance,
                        standard.overflow_like_eager,
                        standard.contracted,
                    )
                )
        problems = [f"{j.distribution}: {j.problem}" for j in found if j.problem]
        return Judged(not problems, found[0].error.norm, found[0].eager_error.norm, "; ".join(problems) or None)

    def case(self, i: int, contracted: int) -> Case:
        """Inputs of the yardstick's distribution number i, with their outputs in float64 and by eager PyTorch."""
        if i not in self.cases:
            specs = self.problem.inputs
            shapes, scales = [s.shape for s in specs], [s.scale for s in specs]
            dtypes: list[torch.dtype] = [getattr(torch, s.dtype) for s in specs]
            kind = yardstick.DISTRIBUTIONS[i]
            inputs = yardstick.draw(kind, shapes, dtypes, scales, contracted, self.device, self.problem.seed + i)
            self.cases[i] = Case(inputs, self.wide(inputs), [y.clone() for y in self.reference(inputs)])
        return self.cases[i]

    def reference(self, inputs: Tensors, form: str = "reference") -> Tensors:
        """What `reference`, or `stepwise`, its definition operator by operator, makes of the inputs."""
        assert self.problem.reference_source is not None, "a problem that is judged has a reference"
        module = load_module(self.problem.reference_source, self.directory)
        return as_list(getattr(module, form, module.reference)(*inputs))

    def wide(self, inputs: Tensors) -> Tensors:
        """The outputs in float64."""
        return [y.double() for y in self.reference(yardstick.in_float64(inputs))]

    # Timing

    def time(self, candidates: tuple[Candidate, ...], effort: Effort, seed: int) -> dict[str, Timing | Failure]:
        results: dict[str, Timing | Failure] = {}
        ready: list[Prepared] = []
        with torch.no_grad():
            self.warm_up()
            for c in candidates:
                self.report(At(c.id, c.timeout_s))
                try:
                    ready.append(self.prepare(c, effort))
                except Exception as e:  # the border of the GPU process: one candidate's failure is not the others'
                    results[c.id] = failure = self.failure(e)
                    if failure.fatal:
                        raise
            self.run_rounds(ready, effort, random.Random(seed))
        results |= {p.candidate.id: p.timing() for p in ready}
        ready.clear()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
        return results

    def prepare(self, candidate: Candidate, effort: Effort) -> Prepared:
        """Captures the calls, and judges what one replay of them leaves in the first and last set's outputs."""
        sets = self.input_sets()
        run = self.load(candidate, sets)
        self.host_seconds(run)  # compiles
        affordable = max(4, int(REPLAY_S / self.host_seconds(run)))
        cycle = list(range(len(sets))) * (2 if len(sets) <= 64 else 1)
        order = cycle[: min(effort.launches, affordable)]
        replay, outputs, method = self.record(run, order)
        prepared = Prepared(candidate, run, replay, len(order), min(len(sets), len(order)), method)
        data = self.draw("normal")
        if data.reference:
            for y in (y for ys in outputs if candidate.kind == "kernels" for y in ys):
                poison(y)
            replay()
            self.synchronize()
            try:
                prepared.accuracy = self.judge(outputs[0], data).worst(self.judge(outputs[-1], data))
            except WrongError:
                if candidate.kind == "kernels":
                    raise
                prepared.accuracy = Accuracy(math.inf, math.inf)  # a baseline that overflows is timed all the same
        if effort.hot:
            launches = min(HOT_LAUNCHES, max(4, len(order)))
            hot, _, _ = self.record(run, [0] * launches)
            times = [self.sample(hot, cold=False) for _ in range(6)]
            prepared.hot_us = statistics.median(times[1:]) / launches
        return prepared

    def host_seconds(self, run: Run) -> float:
        start = time.perf_counter()
        run(0)
        self.synchronize()
        return time.perf_counter() - start

    def record(self, run: Run, order: Sequence[int]) -> tuple[Callable[[], None], list[Tensors], str]:
        """A way to repeat these calls, the outputs they write, and its name."""
        outputs: list[Tensors] = [[] for _ in order]

        def calls() -> None:
            for n, i in enumerate(order):
                outputs[n] = run(i)

        if not self.cuda:
            calls()
            return calls, outputs, "host clock"
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                calls()
        except RuntimeError as e:
            self.synchronize()
            reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
            calls()
            return calls, outputs, f"events, no CUDA graph: {reason}"
        graph.replay()
        self.synchronize()
        return graph.replay, outputs, "CUDA graph"

    def run_rounds(self, ready: list[Prepared], effort: Effort, rng: random.Random) -> None:
        if not ready:
            return
        first_s: list[float] = []
        for p in ready:
            self.report(At(p.candidate.id, SAMPLE_TIMEOUT_S))
            first_s.append(self.sample(p.replay) * 1e-6)
        affordable = int(effort.seconds * len(ready) / max(sum(first_s), 1e-9))
        order = list(ready)
        for _ in range(max(MIN_ROUNDS, min(effort.rounds, affordable))):
            rng.shuffle(order)
            for p in order:
                self.report(At(p.candidate.id, SAMPLE_TIMEOUT_S))
                p.samples_us.append(self.sample(p.replay) / p.launches)

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
        a = torch.randn(2048, 2048, device=self.device).half()
        stop = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < stop:
            for _ in range(20):
                torch.mm(a, a)
            self.synchronize()

    def measure_floor(self, dtype: torch.dtype) -> Floor:
        """The ceilings. For float32 the matmul may use TF32, so that no kernel that does is found to be impossible."""
        self.warm_up()
        copy_elements, side = (1 << 31, 8192) if self.cuda else (1 << 22, 256)
        copied = [torch.ones(copy_elements, dtype=torch.uint8, device=self.device) for _ in range(2)]
        copy_us = self.median_us(lambda: copied[0].copy_(copied[1]))
        copied.clear()
        a, b = (torch.randn(side, side, device=self.device).to(dtype) for _ in range(2))
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        matmul_us = self.median_us(lambda: a @ b)
        torch.set_float32_matmul_precision(precision)
        with self.problem_of_nothing():
            empty = self.prepare(
                Candidate("empty", _EMPTY_KERNEL if self.cuda else _EMPTY_CALL), Effort(1, 64, 0, False)
            )
            samples = [self.sample(empty.replay) / empty.launches for _ in range(11)]
        return Floor(2e6 * copy_elements / copy_us, 2e6 * side**3 / matmul_us, statistics.median(samples))

    def median_us(self, call: Callable[[], object]) -> float:
        call()
        return statistics.median(self.sample(lambda: (call(), None)[1]) for _ in range(11))

    @contextmanager
    def problem_of_nothing(self) -> Generator[None]:
        """For the empty kernel: 64 input sets with nothing in them, on a problem without outputs."""
        kept = self.problem, self.data, self.sets
        self.problem, self.data = Problem((), ()), {}
        self.sets = [([torch.zeros(16, device=self.device)], []) for _ in range(64)]
        try:
            yield
        finally:
            self.problem, self.data, self.sets = kept


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


def device_properties(device: torch.device) -> Any:
    cuda: Any = torch.cuda
    return cuda.get_device_properties(device)
