"""Compiles candidates in parallel, each worker a process that may crash or hang, none of which needs a GPU.

What comes back are the resources of every kernel that a candidate launches, so that infeasible candidates never reach
the GPU; what stays is Triton's disk cache, where the GPU process finds them compiled (`tune.offline` says why).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

from mirage_cli.tune.child import Child, ChildDied, ChildKilled
from mirage_cli.tune.measure import Candidate, Failure, FailureKind, MeasureError, TensorSpec

START_TIMEOUT_S = 180.0
STARTS = 3
"""Processes in a row that may end before they have started: those are replaced, one more is an error."""


@dataclass(frozen=True, slots=True)
class KernelResources:
    """One compiled kernel, per block or per thread.

    shared_bytes: of a block, dynamic. spill_bytes: local memory of a thread, which a kernel without spills has none of.
    cache_key: names the kernel in Triton's disk cache.
    """

    name: str
    shared_bytes: int
    registers: int
    spill_bytes: int
    warps: int
    cache_key: str


Compiled = tuple[KernelResources, ...] | Failure
"""What becomes of a candidate: the kernels that it launches, or why it has none."""


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """share: of the candidate's launches, number i where i modulo its `shares` is this. again: whether the process that
    was asked first was killed."""

    candidate: Candidate
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    share: int = 0
    again: bool = False


@dataclass(slots=True)
class _Busy:
    """A process, which may be given its first job before it has started. deadline: for its next message. wanted:
    whether anyone waits for what becomes of its job."""

    child: Child
    job: CompileRequest | None
    deadline: float
    started: bool = False
    wanted: bool = True


class CompileFarm:
    """`workers` processes that compile for `sm_<arch>` (90 for H100 and H200), started when first needed.

    Use as a context manager. The processes live until `close`, over any number of calls. directory: where generated
    modules lie, for others to load them too; one of its own where none is given.
    """

    def __init__(self, arch: int, workers: int, directory: Path | None = None) -> None:
        self.arch = arch
        self.workers = workers
        self._held = ExitStack()
        self._directory = directory or Path(self._held.enter_context(TemporaryDirectory(prefix="mirage-")))
        self._children: list[_Busy] = []
        self._waiting: deque[CompileRequest] = deque()
        self._ahead: deque[CompileRequest] = deque()
        self._parts: dict[str, list[tuple[KernelResources, ...]]] = {}  # of candidates that are not whole yet, by id
        self._unstarted = 0

    def __enter__(self) -> CompileFarm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._kill_all()
        self._held.close()

    def start(self, count: int | None = None) -> None:
        """Starts processes ahead of need, so that their seconds of imports pass while other work is done."""
        while len(self._children) < min(count or self.workers, self.workers):
            self._children.append(self._spawn())

    def compile_all(
        self,
        candidates: Sequence[Candidate],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> Iterator[tuple[str, Compiled]]:
        """Yields each candidate's id and kernels as they are done. A caller that stops early drops the others."""
        self.give(candidates, inputs, outputs)
        try:
            while self.pending:
                yield from self.take()
        finally:
            self.drop()

    def give(
        self,
        candidates: Sequence[Candidate],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        """Has these compiled after those given before. Each share of one may take its `timeout_s`. What a process is at
        work on ahead of need is not begun again."""
        candidates = [
            replace(c, shares=min(c.shares, self.workers)) for c in candidates if not self._adopt(c, inputs, outputs)
        ]
        self._waiting += [CompileRequest(c, inputs, outputs, i) for c in candidates for i in range(c.shares)]
        self.start(len(self._waiting) + sum(b.job is not None for b in self._children))
        self._hand_out()

    def give_ahead(
        self, candidates: Sequence[Candidate], inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        """Has these compiled by half of the processes, where these have nothing else to do, in the place of what is
        left of those that were given so before. Nobody waits for them: who gives them again finds them in Triton's
        cache."""
        self._ahead = deque(CompileRequest(replace(c, shares=1), inputs, outputs) for c in candidates)
        self.start()
        self._hand_out()

    def _adopt(self, candidate: Candidate, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> bool:
        """Whether a process has the whole candidate at hand, for which nobody has waited until now."""
        whole = CompileRequest(replace(candidate, shares=1), inputs, outputs)
        for b in self._children:
            if not b.wanted and b.job == whole:
                b.wanted = True
                return True
        return False

    @property
    def pending(self) -> int:
        """Candidates that were given, and neither taken nor dropped."""
        return len({r.candidate.id for r in self._waiting} | self._begun)

    @property
    def _begun(self) -> set[str]:
        """Of these, those that a process is at work on or was, by id."""
        return {b.job.candidate.id for b in self._children if b.job and b.wanted} | self._parts.keys()

    def take(self, wait: bool = True, within_s: float = math.inf) -> list[tuple[str, Compiled]]:
        """Ids and kernels of what is done by now. wait: for the first of them, and no longer than this. Nothing where
        nothing is pending."""
        end = time.monotonic() + (within_s if wait else 0.0)
        done: list[tuple[str, Compiled]] = []
        while self.pending and not done:
            left_s = max(end - time.monotonic(), 0.0)
            answers = self._answers(left_s)
            if not answers and not left_s:
                break
            for b, answer in answers:
                job = b.job if b.wanted else None
                b.job, b.deadline = None, 0.0
                if isinstance(answer, Failure) and answer.fatal:
                    b.child.kill()
                    self._children[self._children.index(b)] = self._spawn()
                if job is not None and (whole := self._whole(job.candidate, answer)) is not None:
                    done.append((job.candidate.id, whole))
            self._hand_out()
        return done

    def _whole(self, candidate: Candidate, answer: Compiled) -> Compiled | None:
        """What becomes of a candidate with this answer for a share; None while others are still to come."""
        parts = self._parts.setdefault(candidate.id, [])
        if isinstance(answer, Failure):
            self._drop({candidate.id})
            return answer
        parts.append(answer)
        if len(parts) < candidate.shares:
            return None
        del self._parts[candidate.id]
        return tuple({k.cache_key: k for part in parts for k in part}.values())

    def forget(self) -> list[str]:
        """Drops what no process has begun with, and says what that is."""
        ids = {r.candidate.id: None for r in self._waiting if r.candidate.id not in self._begun}
        self._drop(ids.keys())
        return [*ids]

    def drop(self) -> None:
        """Drops everything. Processes that are at work end it first: that takes less time than to start others."""
        self._drop({r.candidate.id for r in self._waiting} | self._begun)

    def _drop(self, ids: Set[str]) -> None:
        self._waiting = deque(r for r in self._waiting if r.candidate.id not in ids)
        for b in self._children:
            if b.job and b.job.candidate.id in ids:
                b.wanted = False
        for id in ids & self._parts.keys():
            del self._parts[id]

    def _hand_out(self) -> None:
        unwanted = sum(b.job is not None and not b.wanted for b in self._children)
        for b in self._children:
            if b.job is None and self._waiting:
                self._give(b, self._waiting.popleft())
            elif b.job is None and self._ahead and unwanted < max(1, self.workers // 2):
                unwanted += 1
                self._give(b, self._ahead.popleft(), wanted=False)

    def _spawn(self) -> _Busy:
        """A process that is starting, with a deadline for its first message."""
        # Nothing here may touch a GPU: the one there is belongs to the measuring process.
        env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        child = Child("mirage_cli.tune.offline", (self.arch, self._directory), env, kernels=True)
        return _Busy(child, None, time.monotonic() + START_TIMEOUT_S)

    def _give(self, b: _Busy, request: CompileRequest, wanted: bool = True) -> None:
        b.job, b.wanted = request, wanted
        if b.started:
            b.deadline = time.monotonic() + request.candidate.timeout_s
        with suppress(ChildDied):  # the next receive reports it
            b.child.send(request)

    def _answers(self, most_s: float) -> list[tuple[_Busy, Compiled]]:
        """Of processes that answer, die or run out of time. most_s: to wait for one that does so, or starts."""
        busy = [b for b in self._children if b.deadline]
        within_s = max(min(min(b.deadline for b in busy) - time.monotonic(), most_s), 0.0)
        ready = wait([b.child.connection for b in busy], within_s)
        answers: list[tuple[_Busy, Compiled]] = []
        for b in busy:
            if b.child.connection in ready:
                try:
                    answer = b.child.receive(0)
                except ChildDied as e:
                    answers.append((b, self._lost(b, FailureKind.CRASH, str(e), isinstance(e, ChildKilled))))
                    continue
                if b.started:
                    answers.append((b, answer))
                else:
                    b.started, self._unstarted = True, 0
                    b.deadline = time.monotonic() + b.job.candidate.timeout_s if b.job else 0.0
            elif time.monotonic() >= b.deadline:
                answers.append((b, self._lost(b, FailureKind.HANG, "no answer in time")))
        return answers

    def _lost(self, b: _Busy, kind: FailureKind, message: str, killed: bool = False) -> Failure:
        """Raises MeasureError where processes do not start. The turn of a candidate that has nothing to do with it is
        still to come."""
        if not b.started:
            self._unstarted += 1
        if b.job and b.wanted and (not b.started or (killed and not b.job.again)):
            self._waiting.appendleft(replace(b.job, again=b.started))
            b.job = None
        if self._unstarted > STARTS:
            raise MeasureError(f"The compiling processes do not start: {message}")
        return Failure(kind, message, fatal=True)

    def _kill_all(self) -> None:
        for b in self._children:
            b.child.kill()
        self._children.clear()
