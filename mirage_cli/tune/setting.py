"""The GPU process's problem and device: draws inputs, runs a candidate on them, and judges what it leaves."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # torch has no type for a device's properties

import torch
import triton

from mirage_cli.tune.launches import Launches
from mirage_cli.tune.measure import (
    Accuracy,
    At,
    Candidate,
    Judged,
    Problem,
    Standard,
    TensorSpec,
)
from mirage_cli.tune.modules import load_module
from mirage_cli.tune.outputs import GUARD_ELEMENTS, Tensors, WrongError, guarded_buffer, inside_of, poison
from mirage_cli.verify import testdata, yardstick
from mirage_cli.verify.decided import decides
from mirage_cli.verify.distance import Error
from mirage_cli.verify.lies import Lies, changed_elsewhere, outputs_of, to_be_changed
from mirage_cli.verify.pieces import Block, Cut, Piece, as_tuple, pieces_of
from mirage_cli.verify.testdata import as_bytes

COLD_L2 = 8
MAX_SETS = 4096
TIMED_PIECES = 2
"""Of a problem that is judged in pieces, those that a timing looks at: what is wrong elsewhere, the judgement sees."""
HELD = 0.15
"""The share of the device's memory that the cases of one problem may take, to be at hand for the next candidate."""
TRACES = 2.0
"""How many times as large the error of a call behind others may be as by itself, where its outputs differ."""
DECIDED = 0.5
"""The error of whole numbers and masks up to which two draws may differ, where rounding decides a few elements. Those
of other data are about as far off as they are large."""
CPU_L2_BYTES = 1 << 20
CPU_MAX_SETS = 8


@dataclass(frozen=True)
class Left:
    """What a call has left: the tensors that it returned, and its inputs, which it may have changed.

    Outputs in rows that a table names are read, not viewed: not before the call has ended, nor where it is timed.
    """

    lies: Sequence[Lies] | None
    results: Sequence[torch.Tensor]
    inputs: Tensors

    def outputs(self) -> Tensors:
        return outputs_of(self.lies, self.results, self.inputs)

    def poison(self) -> None:
        """Takes the outputs away, for the next call to write them."""
        for y in self.results if self.lies is None else ():
            poison(y)
        for x in self.lies or ():
            if not x.read:
                x.take_away(self.results, self.inputs)


class LateError(Exception):
    """Time is up."""


Run = Callable[[int], Left]
"""Runs a candidate on the input set of this number."""


@dataclass
class Case:
    """One distribution's inputs, with what the program makes of them: by eager PyTorch, and in float64.

    room: whether so many bytes more may be held of it. pieces: in which it is judged. before: called before each
    evaluation.
    results: of evaluations that every candidate is compared with, by which they are.
    known: what no candidate changes of the yardstick on these data.
    """

    reference: yardstick.Reference
    inputs: Tensors
    room: Callable[[Case, int], bool]
    pieces: Sequence[Piece]
    before: Callable[[], None] = lambda: None
    results: dict[Hashable, Tensors] = field(default_factory=dict[Hashable, Tensors])
    known: yardstick.Known = field(default_factory=yardstick.Known)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for some in (self.inputs, *self.results.values()) for x in some)

    def eager(self) -> Tensors:
        """The outputs by eager PyTorch."""
        if "eager" not in self.results:
            self.results["eager"] = [y.clone() for y in self.reference.by_eager(self.inputs, self.pieces)]
        return self.results["eager"]

    def exact(self, piece: Piece) -> Tensors:
        """The outputs in float64 of a piece of the inputs."""
        return self.held(("exact", piece), piece.cut is None, lambda: self.reference.exact(self.inputs, piece))

    def rounded(self, piece: Piece, dtype: torch.dtype | None, seed: int, times: float | None = None) -> Tensors:
        """The same with rounding. Of numbers, `known` has the errors. Decisions are compared with the outputs; what is
        evaluated for some positions alone serves one candidate.
        """

        def made() -> Tensors:
            return self.reference.rounded(self.inputs, piece, dtype, seed, times)

        if times is not None and not isinstance(piece.positions, tuple):
            return self.held(("rounded", piece, dtype, seed, times), False, made)
        self.before()
        return made()

    def ranged(self, piece: Piece, seed: int | None = None, times: float = 0.0) -> Tensors:
        """The definition in float64, with float32's range. Of what moves make of it, `known` has what counts."""
        if seed is not None:
            self.before()
            return self.reference.ranged(self.inputs, piece, seed, times)
        return self.held(("ranged", piece), False, lambda: self.reference.ranged(self.inputs, piece))

    def tame(self, piece: Piece, seed: int) -> Tensors:
        """In float64 for numbers near 1, asked for where a candidate lacks an infinity."""
        return self.held(("tame", piece, seed), False, lambda: self.reference.tame(self.inputs, piece, seed))

    def held(self, key: Hashable, needed: bool, evaluate: Callable[[], Tensors]) -> Tensors:
        """The result of an evaluation, which is held where there is room, or where it is needed."""
        if key in self.results:
            return self.results[key]
        self.before()
        result = evaluate()
        if needed or self.room(self, sum(y.nbytes for y in result)):
            self.results[key] = result
        return result

    def judge(self, name: str, outputs: Tensors, standard: Standard, cut: Cut | None) -> yardstick.Judgement:
        how = standard.tolerance, standard.overflow_like_eager, standard.contracted, cut, self.known
        given = self.exact, self.eager(), self.rounded
        return yardstick.judge_outputs(name, outputs, *given, *how, self.ranged, self.tame)


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
        self.drawn: list[Tensors] = []  # draws of ordinary data, which the input sets hold in turn
        self.cut: Cut | None = None
        self.lies: list[Lies] | None = None
        self.pieces = pieces_of(None)
        self.expected: list[Case] = []  # of each of them, where there is a reference
        self.cases: dict[tuple[int, bool], Case] = {}  # by distribution, and whether on data drawn anew
        self.known: dict[tuple[int, bool], yardstick.Known] = {}  # also of cases that are too large to be held
        self.prepared: set[tuple[int, bool]] = set()  # cases of which every piece was evaluated ahead
        self.sets: list[tuple[Tensors, Tensors]] = []
        self.busy_until = -math.inf  # the end of the last timing
        self.launches = Launches(triton.runtime.driver.active if self.cuda else SimpleNamespace(launcher_cls=None))
        if self.cuda:
            torch.cuda.set_device(device)
            properties = device_properties(device)
            self.l2_bytes = int(properties.L2_cache_size)
            self.flush = torch.zeros(COLD_L2 * self.l2_bytes // 4, device=device)
            self.flushed = torch.zeros((), device=device)
            self.room_bytes = HELD * int(properties.total_memory)
            self.launches.install()
        else:
            torch.set_num_threads(1)
            self.l2_bytes = CPU_L2_BYTES
            self.room_bytes = HELD * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def set_problem(self, problem: Problem) -> bool:
        self.problem = problem
        self.lies = None if problem.lies is None else [Lies(*x) for x in problem.lies]
        self.expected = []
        self.cases.clear()
        self.known.clear()
        self.prepared.clear()
        self.sets.clear()
        if self.cuda:
            torch.cuda.empty_cache()
        self.cut = self.cut_of(problem)
        self.pieces = pieces_of(self.cut)
        self.drawn = [self.inputs_of(0, contracted=1, anew=anew) for anew in (False, True)]
        if problem.reference_source is not None:
            reference = self.reference()
            self.expected = [Case(reference, inputs, self.has_room, self.pieces) for inputs in self.drawn]
            for case in self.expected:
                case.exact(self.pieces[0])
        self.synchronize()
        return True

    def cut_of(self, problem: Problem) -> Cut | None:
        """Along which a problem is judged here, in pieces that this device has room for."""
        return Cut(*problem.cut).on(self.device) if problem.cut else None

    def inputs_of(self, i: int, contracted: int, anew: bool = False) -> Tensors:
        """Inputs of the yardstick's distribution number i. anew: others than else."""
        specs = self.problem.inputs
        shapes, spreads, strides = [s.shape for s in specs], [s.spread for s in specs], [s.strides for s in specs]
        dtypes: list[torch.dtype] = [getattr(torch, s.dtype) for s in specs]
        seed = self.problem.seed + i + len(testdata.DISTRIBUTIONS) * anew
        kind = testdata.DISTRIBUTIONS[i]
        return testdata.draw(kind, shapes, dtypes, spreads, contracted, self.device, seed, strides)

    def input_sets(self) -> list[tuple[Tensors, Tensors]]:
        """Copies of the draws in turn and room for the outputs, enough to cover `COLD_L2` times the L2.

        What a call finds left of the one before is of other data, and shows in its outputs.
        """
        if not self.sets:
            in_bytes = max(sum(x.nbytes for x in self.drawn[0]), 1)
            outputs = [self.empty(spec) for spec in self.problem.outputs]
            count = min(math.ceil(COLD_L2 * self.l2_bytes / in_bytes), MAX_SETS if self.cuda else CPU_MAX_SETS)
            if self.cuda:
                torch.cuda.empty_cache()
                room = self.memory_fraction * torch.cuda.mem_get_info(self.device)[0]
                count = min(count, int(room // (in_bytes + sum(y.nbytes for y in outputs))))
            first = [testdata.copied(x) for x in self.drawn[0]] if self.state else self.drawn[0]
            self.sets = [(first, outputs)]
            for i in range(1, max(count, 1)):
                data = self.drawn[i % len(self.drawn)]
                self.sets.append(([testdata.copied(x) for x in data], [torch.empty_like(y) for y in outputs]))
        return self.sets

    @property
    def state(self) -> set[int]:
        """The inputs, by number, of which calls read what they change."""
        return {-1 - x.tensor for x in self.lies or () if x.read}

    def renew(self, i: int) -> None:
        """Gives input set number i the data again that were drawn for it, where calls have changed what they read."""
        for n in self.state:
            self.sets[i][0][n].copy_(self.drawn[i % len(self.drawn)][n])

    def empty(self, spec: TensorSpec) -> torch.Tensor:
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=self.device)

    def load(self, candidate: Candidate, sets: Sequence[tuple[Tensors, Tensors]]) -> Run:
        """The candidate as a function of an input set's number. Workspace is one for all sets, as in a real caller."""
        module = load_module(candidate.source, self.directory)
        if candidate.kind == "function":
            given = [module.pack(inputs) if hasattr(module, "pack") else inputs for inputs, _ in sets]
            fn = module.make(given[0])
            return lambda i: Left(self.lies, as_tuple(fn(*given[i])), sets[i][0])
        scratch = module.make_scratch(self.device, *self.problem.arguments)
        for x in scratch:
            if x.is_floating_point():
                x.fill_(math.nan)

        def run(i: int) -> Left:
            inputs, outputs = sets[i]
            module.launch(inputs, outputs, scratch)
            return Left(self.lies, outputs, inputs)

        return run

    def refuse_traces_of_calls_before(self, run: Run, i: int, left: Left) -> None:
        """Raises WrongError where a call behind others has left these outputs, and by itself leaves other ones: it read
        too soon. Orders of addition that differ may round otherwise, and no worse."""
        among = [y.clone() for y in left.outputs()]
        self.synchronize()
        self.renew(i)
        alone = run(i).outputs()
        self.synchronize()
        if all(map(torch.equal, map(as_bytes, among), map(as_bytes, alone))):
            return
        if self.accuracy([(i, among)]).relative > TRACES * self.accuracy([(i, alone)]).relative:
            raise WrongError("the outputs depend on the call before")

    def refuse_stray_writes(self, inputs: Tensors, pristine: Tensors, guarded: Tensors) -> None:
        """Raises WrongError where the inputs differ from what they were, but for outputs in them, or what surrounds an
        output does."""
        changed = [self.problem.inputs[i].name for i in changed_elsewhere(self.lies, inputs, pristine)]
        if changed:
            raise WrongError(f"writes to its inputs: {', '.join(changed)}")
        for spec, y in zip(self.problem.outputs, guarded, strict=True):
            fresh = poison(torch.empty_like(y[:GUARD_ELEMENTS]))
            for edge in (slice(None, GUARD_ELEMENTS), slice(-GUARD_ELEMENTS, None)):
                if not torch.equal(y[edge].view(torch.uint8), fresh.view(torch.uint8)):
                    raise WrongError(f"writes outside output {spec.name}")

    def accuracy(self, calls: Sequence[tuple[int, Tensors]], excuses: bool = True) -> Accuracy:
        """The worst error of what these calls have returned, each for the input set of this number.

        Where a problem is judged in pieces, some of them are looked at. It is infinite where an infinity is further
        off than the largest value of its row: no rounding takes that much. Decisions count where all outputs are such.
        excuses: an inf or NaN does not count where eager PyTorch has one too, as in the judgement.
        """
        worst = Error(0.0, 0.0)
        some = self.pieces[:: max(1, -(-len(self.pieces) // TIMED_PIECES))]
        for i, outputs in calls:
            case = self.expected[i % len(self.expected)]
            numbers = [n for n, y in enumerate(outputs) if not decides(y.dtype)]
            for n in numbers or range(len(outputs)):
                eager = partial(lambda case, n: case.eager()[n], case, n) if excuses else None
                worst = worst.larger(yardstick.error_of(outputs[n], n, case.exact, some, eager, case.ranged))
        return Accuracy(worst.norm, worst.row)

    def judge_all(self, candidate: Candidate, standard: Standard, anew: bool, within_s: float = math.inf) -> Judged:
        """Every distribution of the yardstick, up to the first on which it is wrong. Raises WrongError, and LateError
        where it takes longer."""
        end = time.perf_counter() + within_s

        def go_on() -> None:
            self.report(At(candidate.id, candidate.timeout_s))
            if time.perf_counter() > end:
                raise LateError("time was up before it was judged")

        found: list[yardstick.Judgement] = []
        at: list[tuple[Tensors, Tensors]] = [([], [])]
        run: Run | None = None
        with torch.no_grad():
            for i, kind in enumerate(testdata.DISTRIBUTIONS):
                go_on()
                case = self.case(i, standard.contracted, anew)
                case.before = go_on
                guarded = [poison(guarded_buffer(spec, self.device)) for spec in self.problem.outputs]
                inside = [inside_of(y, spec) for y, spec in zip(guarded, self.problem.outputs, strict=True)]
                inputs = to_be_changed(self.lies, case.inputs)
                at[0] = inputs, inside
                run = run or self.load(candidate, at)  # with one workspace for all, as in a real caller
                outputs = run(0).outputs()
                self.synchronize()
                self.refuse_stray_writes(inputs, case.inputs, guarded)
                found.append(case.judge(kind.name, outputs, standard, self.cut))
                if found[-1].problem:
                    break
        return Judged.of(found)

    def case(self, i: int, contracted: int, anew: bool) -> Case:
        """Inputs of the yardstick's distribution number i, with their outputs. It is held for the next candidate where
        there is room; of the others, what the yardstick came to is."""
        key = i, anew
        if key in self.cases:
            return self.cases[key]
        inputs = self.inputs_of(i, contracted, anew)
        case = Case(self.reference(), inputs, self.has_room, self.pieces)
        case.eager()
        case.known = self.known.setdefault(key, case.known)
        if self.has_room(case, 0):
            self.cases[key] = case
        return case

    def prepare_case(self, contracted: int) -> int | None:
        """Evaluates one more case that judgements will ask for, those on data drawn anew behind the others. How many
        are left then; None where there is no room for more."""
        keys = [(i, anew) for anew in (False, True) for i in range(len(testdata.DISTRIBUTIONS))]
        left = [key for key in keys if key not in self.prepared]
        if not left or self.problem.reference_source is None:
            return 0
        with torch.no_grad():
            case = self.case(left[0][0], contracted, left[0][1])
            case.before = lambda: None  # no judgement's end is this one's
            exact_bytes = sum(y.numel() * torch.float64.itemsize for y in case.eager())
            if left[0] not in self.cases or not self.has_room(case, exact_bytes):
                return None
            for piece in self.pieces:
                case.exact(piece)
            self.synchronize()
        self.prepared.add(left[0])
        return len(left) - 1

    def has_room(self, case: Case, nbytes: int) -> bool:
        """Whether so many bytes more may be held of a case: all take no more than `HELD` of the device's memory."""
        others = (c.nbytes for c in self.cases.values() if c is not case)
        return nbytes + case.nbytes + sum(others) <= self.room_bytes

    def reference(self) -> yardstick.Reference:
        """The problem's program in PyTorch."""
        assert self.problem.reference_source is not None, "a problem that is judged has a reference"
        module = load_module(self.problem.reference_source, self.directory)
        precision: torch.dtype = getattr(torch, self.problem.precision)
        stepwise = getattr(module, "stepwise", module.reference)
        blocks = tuple(Block(*x) for x in self.problem.blocks)
        return yardstick.Reference(module.reference, stepwise, precision, blocks=blocks)


def device_properties(device: torch.device) -> Any:
    cuda: Any = torch.cuda
    return cuda.get_device_properties(device)
