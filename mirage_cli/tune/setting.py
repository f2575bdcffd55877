"""The GPU process's problem and device: draws inputs, runs a candidate on them, and judges what it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mirage_cli.tune.measure import (
    Accuracy,
    At,
    Candidate,
    Distribution,
    Judged,
    Problem,
    Standard,
    TensorSpec,
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

Run = Callable[[int], Tensors]
"""Runs a candidate on the input set of this number and returns its outputs."""


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

    def rounded(self, setting: Setting, dtype: torch.dtype | None) -> Tensors:
        """The outputs in float64 with the result of every operator, or else of every call of eager, rounded."""
        own = next(x.dtype for x in self.inputs if x.is_floating_point())
        wide = yardstick.in_float64(self.inputs, off=dtype)
        with yardstick.RoundEveryResult(dtype or own, summing=dtype is not None):
            return [y.double() for y in setting.reference(wide, "stepwise" if dtype else "reference")]


class Setting:
    """One device, one problem."""

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

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

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
        try:
            self.refuse_stray_writes(data.inputs, data.pristine, guarded)
        finally:
            for x, kept in zip(data.inputs, data.pristine, strict=True):
                x.copy_(kept)
        return accuracy

    def refuse_stray_writes(self, inputs: Tensors, pristine: Tensors, guarded: Tensors) -> None:
        """Raises WrongError where the inputs differ from what they were, or what surrounds an output does."""
        changed = [
            spec.name
            for spec, x, kept in zip(self.problem.inputs, inputs, pristine, strict=True)
            if not torch.equal(x, kept)
        ]
        if changed:
            raise WrongError(f"writes to its inputs: {', '.join(changed)}")
        for spec, y in zip(self.problem.outputs, guarded, strict=True):
            fresh = poison(torch.empty_like(y))
            for edge in (slice(None, GUARD_ELEMENTS), slice(-GUARD_ELEMENTS, None)):
                if not torch.equal(y[edge].view(torch.uint8), fresh[edge].view(torch.uint8)):
                    raise WrongError(f"writes outside output {spec.name}")

    def judge(self, outputs: Tensors, data: Data) -> Accuracy:
        return judge(self.problem.outputs, outputs, data.reference)

    def judge_all(self, candidate: Candidate, standard: Standard) -> Judged:
        """Every distribution of the yardstick, whose float64 and eager outputs are made once. Raises WrongError."""
        found: list[yardstick.Judgement] = []
        with torch.no_grad():
            for i, kind in enumerate(yardstick.DISTRIBUTIONS):
                self.report(At(candidate.id, candidate.timeout_s))
                case = self.case(i, standard.contracted)
                guarded = [poison(guarded_buffer(spec, self.device)) for spec in self.problem.outputs]
                inside = [inside_of(y, spec) for y, spec in zip(guarded, self.problem.outputs, strict=True)]
                inputs = [x.clone() for x in case.inputs]
                outputs = self.load(candidate, [(inputs, inside)])(0)
                self.synchronize()
                self.refuse_stray_writes(inputs, case.inputs, guarded)
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


def device_properties(device: torch.device) -> Any:
    cuda: Any = torch.cuda
    return cuda.get_device_properties(device)
