"""The process of one GPU of several (`tune.ranks`): its part of the program, what the GPUs join, and the times of both.

All processes make the same calls in the same order: each call of a split waits for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any  # what comes through a pipe; torch.distributed has no types

import torch
import torch.distributed as dist

from mirage_cli.tune.measure import At, Judged
from mirage_cli.tune.modules import load_module
from mirage_cli.tune.outputs import Tensors
from mirage_cli.tune.ranks import TIMEOUT_S, Figures, File, Joined, SplitTask
from mirage_cli.tune.setting import COLD_L2
from mirage_cli.tune.triton_interpreter import like_a_gpu
from mirage_cli.tune.worker import Bench
from mirage_cli.verify import testdata, yardstick
from mirage_cli.verify.pieces import as_tuple

ROUNDS, WARM = 31, 4
MOST_CALLS = 64
"""Of one sample. On the CPU, where times mean little, there is one call in one sample."""
Held = dict[str, torch.Tensor]
Call = Callable[[Held], Held]


def main(connection: Connection[Any, Any], number: int, task: SplitTask, device: str, folder: Path) -> None:
    """Sends the figures, or what went wrong."""
    if device == "cpu":
        like_a_gpu()
    try:
        where = torch.device("cuda", number) if device == "cuda" else torch.device("cpu")
        rank = Rank(where, folder, number, task)
        meeting = f"file://{folder / 'meeting'}"
        backend, limit = "nccl" if rank.cuda else "gloo", timedelta(seconds=TIMEOUT_S)
        dist.init_process_group(backend, meeting, rank=number, world_size=task.gpus, timeout=limit)
        with rank.launches.as_triton(), torch.no_grad():
            connection.send(rank.figures())
        dist.destroy_process_group()
    except Exception as error:  # the border of the process
        connection.send(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Repeated:
    """replay: makes so many calls. method: how they are timed."""

    replay: Callable[[], None]
    calls: int
    method: str


def _silent(_: At) -> None:
    pass


class Rank(Bench):
    """One GPU and its part of the task."""

    capture_error_mode = "thread_local"  # NCCL's watchdog, a thread of its own, asks for events meanwhile

    def __init__(self, device: torch.device, folder: Path, number: int, task: SplitTask) -> None:
        super().__init__(device, 1.0, folder, _silent)
        self.number, self.task = number, task
        self.problem = task.problem
        self.cut = self.cut_of(task.problem)
        self.functions = {f: self.function(f) for f in (*task.steps, task.one) if isinstance(f, File)}

    def function(self, f: File) -> Callable[..., Any]:
        return getattr(load_module(f.source, self.directory), f.function)

    def figures(self) -> Figures:
        judged = self.judged()
        data = self.by_name(self.inputs_of(0, contracted=1))
        mine = {name: self.part(name, x) for name, x in data.items()}
        calls = (
            self.repeated(self.split, mine),
            self.repeated(lambda held: self.split(held, joining=False), mine),
            self.repeated(lambda held: self.called(self.task.one, held), data),
        )
        self.warm_up()
        split_us, computed_us, one_us = self.samples(calls)
        return Figures(split_us, computed_us, one_us, calls[0].method, judged)

    # -- one call

    def split(self, held: Held, joining: bool = True) -> Held:
        """All tensors by name after a call of this GPU's part."""
        held = dict(held)
        for step in self.task.steps:
            if isinstance(step, Joined):
                if joining:
                    dist.all_reduce(held[step.tensor], getattr(dist.ReduceOp, step.op))
                held[step.tensor] = held[step.tensor].to(getattr(torch, step.dtype))
            else:
                held |= self.called(step, held)
        return held

    def called(self, f: File, held: Held) -> Held:
        made = as_tuple(self.functions[f](*(held[name] for name in f.inputs)))
        return dict(zip(f.outputs, made, strict=True))

    def by_name(self, tensors: Sequence[torch.Tensor]) -> Held:
        return {s.name: x for s, x in zip(self.problem.inputs, tensors, strict=True)}

    def part(self, name: str, x: torch.Tensor) -> torch.Tensor:
        axis = self.task.cut.get(name)
        return x if axis is None else x.chunk(self.task.gpus, axis)[self.number].contiguous()

    def whole(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """An output of all GPUs."""
        axis = self.task.cut.get(name)
        if axis is None:
            return x
        parts = [torch.empty_like(x) for _ in range(self.task.gpus)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, axis)

    # -- right and fast

    def judged(self) -> Judged | None:
        """By the standard of every kernel, on all distributions. The inputs are the same on all GPUs."""
        found: list[yardstick.Judgement] = []
        standard = self.task.standard
        for i, kind in enumerate(testdata.DISTRIBUTIONS):
            inputs = self.inputs_of(i, standard.contracted)
            held = self.split({name: self.part(name, x) for name, x in self.by_name(inputs).items()})
            outputs = [self.whole(y.name, held[y.name]) for y in self.problem.outputs]
            if self.number == 0:
                self.drawn = [inputs]
                found.append(self.case(i, standard.contracted, False).judge(kind.name, outputs, standard, self.cut))
        return Judged.of(found) if found else None

    def repeated(self, call: Call, held: Held) -> Repeated:
        """Calls that follow each other, on copies of the tensors that no L2 holds."""
        size = max(sum(x.nbytes for x in held.values()), 1)
        count = min(-(-COLD_L2 * self.l2_bytes // size), MOST_CALLS) if self.cuda else 1
        copies: list[Tensors] = [[x.clone() for x in held.values()] for _ in range(count)]
        order = [*range(count)] * (MOST_CALLS // count if self.cuda else 1)
        call(held)  # compiles, and connects
        replay, _, method = self.record(lambda i: call(dict(zip(held, copies[i], strict=True))), order)
        return Repeated(replay, len(order), method)

    def samples(self, calls: Sequence[Repeated]) -> list[tuple[float, ...]]:
        """Microseconds of a call, of each in turn, round by round. All GPUs begin together."""
        found: list[list[float]] = [[] for _ in calls]
        for _ in range(WARM + ROUNDS if self.cuda else 1):
            for samples, x in zip(found, calls, strict=True):
                dist.barrier()
                samples.append(self.sample(x.replay) / x.calls)
        return [tuple(x[-ROUNDS:]) for x in found]
