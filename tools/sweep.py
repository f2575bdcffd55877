"""Thousands of random programs in many processes, as a page: what failed, how many were fused, how long it took.

`python -m tools.sweep PAGE [--programs 2000] [--first 0] [--workers N] [--gpu] [--accesses]`; `make random` writes
results/random.md. Each program's best plans are judged in Triton's interpreter, with --gpu its best plan on the GPU.
With --accesses, programs read and write by indices. The exit code is 1 where any program failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import triton

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.tune.interpreted import Interpreter
from mirage_cli.tune.measure import Candidate, Failure, GpuWorker, Judged, Standard
from mirage_cli.verify.facts import longest_sum
from tests.pipeline.test_random import LIMIT_S, PLANS, Judge, Outcome, outcome
from tests.random_programs import random_spec

FUSED = 0.95
"""The part of all programs that should take fewer kernels than they have operators."""


class GpuJudge:
    """Judges sources on the GPU as the tuner does, in a process of its own."""

    def __init__(self) -> None:
        self.worker: GpuWorker | None = None
        self.program: Program | None = None

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = self.program = None

    def judge(self, program: Program, source: str, seed: int, overflow_like_eager: bool = False) -> Judged:
        if self.worker is None:
            self.worker = GpuWorker()
            self.worker.__enter__()
        if program is not self.program:
            self.worker.set_problem(measured_problem(program, seed))
            self.program = program
        standard = Standard(program.tolerance, longest_sum(program), overflow_like_eager)
        judged = self.worker.judge(Candidate("judged", source, timeout_s=LIMIT_S), standard)
        return Judged(False, problem=str(judged)) if isinstance(judged, Failure) else judged


@dataclass
class Process:
    """One process of the sweep."""

    gpu: bool = False
    accesses: bool = False
    judge: Judge | None = None

    def run(self, seed: int) -> tuple[int, Outcome]:
        if self.judge is None:
            self.judge = GpuJudge() if self.gpu else Interpreter()
        return seed, outcome(random_spec(seed, accesses=self.accesses), self.judge, 1 if self.gpu else PLANS)


PROCESS = Process()


def start(gpu: bool, accesses: bool) -> None:
    PROCESS.gpu, PROCESS.accesses = gpu, accesses


def run(seed: int) -> tuple[int, Outcome]:
    return PROCESS.run(seed)


def page(found: dict[int, Outcome], command: str, seconds: float, workers: int, gpu: bool) -> str:
    failed = {seed: o for seed, o in sorted(found.items()) if o.problem}
    right = [o for o in found.values() if not o.problem] or [*found.values()]
    fused = sum(o.kernels < o.operators for o in right) / max(len(right), 1)
    judged = sum(o.sources for o in right)
    took = [o.seconds[1] for o in right] or [0.0]
    where = "on the GPU" if gpu else "in Triton's interpreter"
    lines = [
        "# Random programs",
        "",
        f"`{command}`: seeds {min(found)} to {max(found)}, {workers} processes on {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, Triton {triton.__version__}, {seconds:.0f} s.",
        "",
        "| | |",
        "|---|---:|",
        f"| programs | {len(found)} |",
        f"| failed: wrong, refused, crashed or over {LIMIT_S:.0f} s | {len(failed)} |",
        f"| sources judged {where} | {judged} |",
        f"| fewer kernels than operators | {fused:.1%} |",
        f"| operators of a program, median and most | {statistics.median(o.operators for o in right):g}, "
        f"{max(o.operators for o in right)} |",
        f"| search, median and longest, s | {statistics.median(o.seconds[0] for o in right):.2f}, "
        f"{max(o.seconds[0] for o in right):.1f} |",
        f"| all of it, median and longest, s | {statistics.median(took):.2f}, {max(took):.1f} |",
    ]
    for seed, o in failed.items():
        lines += ["", f"## Seed {seed}", "", "```", *(o.problem or "").splitlines()[:3], "```"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.sweep", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--accesses", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    given = parser.parse_args(arguments)
    begun = time.monotonic()
    found: dict[int, Outcome] = {}
    seeds = range(given.first, given.first + given.programs)
    context = multiprocessing.get_context("spawn")
    with context.Pool(given.workers, start, (given.gpu, given.accesses)) as pool:
        for seed, o in pool.imap_unordered(run, seeds):
            found[seed] = o
            if o.problem:
                print(f"seed {seed}: {o.problem.splitlines()[0]}", flush=True)
            if time.monotonic() - begun > given.seconds:
                break
    command = "python -m tools.sweep " + " ".join(sys.argv[1:])
    given.page.write_text(page(found, command, time.monotonic() - begun, given.workers, given.gpu), encoding="utf-8")
    print(given.page.read_text(encoding="utf-8"))
    fused = sum(o.kernels < o.operators for o in found.values()) / len(found)
    return 1 if fused < FUSED or any(o.problem for o in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
