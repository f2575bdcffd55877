"""A program cut over several GPUs, run by one process for each (`tune.rank`): what is asked, and what comes back."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal

from mirage_cli.tune.child import Child, ChildDied
from mirage_cli.tune.measure import Judged, MeasureError, Problem, Standard

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class File:
    """A function of an exported file, on tensors by name."""

    source: str
    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """An all-reduce of a tensor. op: SUM, MAX, MIN. dtype: what it is rounded to behind that."""

    tensor: str
    op: str
    dtype: str


@dataclass(frozen=True, slots=True)
class SplitTask:
    """What each process is given. problem: the whole program's, with tensors of full size.

    cut: the axis along which an input or an output is cut; whole where it is not there. steps: of one call.
    one: the whole program on one GPU.
    """

    gpus: int
    problem: Problem
    standard: Standard
    cut: Mapping[str, int]
    steps: tuple[File | Joined, ...]
    one: File


@dataclass(frozen=True, slots=True)
class Figures:
    """Microseconds of cold calls in a chain, a sample for each round: of the split, of its files without the
    all-reduces, and of the whole program on one GPU, in turn. method: how the split is timed: "CUDA graph", or why
    there is none. judged: the outputs of all GPUs together; of the first alone."""

    split_us: tuple[float, ...]
    computed_us: tuple[float, ...]
    one_us: tuple[float, ...]
    method: str
    judged: Judged | None


def run(task: SplitTask, device: Literal["cuda", "cpu"] = "cuda") -> tuple[Figures, ...]:
    """The figures of each GPU, joined by NCCL; on the CPU, kernels are interpreted and joined by gloo, and times mean
    little. Raises MeasureError, with the first process that failed."""
    env = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    with tempfile.TemporaryDirectory(prefix="mirage-") as folder:
        given = [(n, task, device, Path(folder)) for n in range(task.gpus)]
        ranks = [Child("mirage_cli.tune.rank", each, env, kernels=True) for each in given]
        left = {child.connection: (n, child) for n, child in enumerate(ranks)}
        found: dict[int, Figures] = {}
        end = time.monotonic() + TIMEOUT_S
        try:
            while left:
                ready = wait(list(left), max(end - time.monotonic(), 0.0))
                if not ready:
                    raise MeasureError(f"GPU {min(n for n, _ in left.values())}: no answer within {TIMEOUT_S:.0f} s")
                for connection in ready:
                    n, child = left[connection]  # pyright: ignore[reportArgumentType] - these are the keys
                    try:
                        answer: Figures | str = child.receive(0)
                    except ChildDied as error:
                        raise MeasureError(f"GPU {n}: {error}") from None
                    if isinstance(answer, str):
                        raise MeasureError(f"GPU {n}: {answer}")
                    found[n] = answer
                    del left[connection]  # pyright: ignore[reportArgumentType]
        finally:
            for child in ranks:
                child.kill()
    return tuple(found[n] for n in range(task.gpus))
