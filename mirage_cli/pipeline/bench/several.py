"""A program on several GPUs of this machine, beside one GPU and the prediction: `mirage bench --gpus 2`.

    Program ─► the cheapest Split ─► a kernel for each stage, as for any program ─► a process for each GPU ─► a row

The stages are tuned in a database that goes with the run: they are programs of no spec.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from mirage_cli.errors import NoKernelError
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.bench.benchmark import Document
from mirage_cli.pipeline.keys import key_of
from mirage_cli.pipeline.optimize import optimize
from mirage_cli.pipeline.parallel import Split, splits
from mirage_cli.pipeline.problem import measured_problem
from mirage_cli.pipeline.session import Session
from mirage_cli.pipeline.written import written_anew
from mirage_cli.store.results import Unfinished
from mirage_cli.store.store import Database
from mirage_cli.tune.measure import Standard, spread
from mirage_cli.tune.price import total_us
from mirage_cli.tune.ranks import File, Joined, SplitTask, run
from mirage_cli.verify.facts import longest_sum


def measured_split(
    session: Session, program: Program, text: str, gpus: int, device: Literal["cuda", "cpu"] = "cuda"
) -> Document:
    """The row of a program. Raises NoKernelError, MeasureError."""
    ways, refused = splits(program, gpus, session.target)
    if not ways:
        raise NoKernelError(program.name, "; ".join(f"{axis} cannot be split: {why}" for axis, why in refused.items()))
    split, cost = ways[0]
    stages = [s.program for s in split.stages if s.program]
    ((whole, whole_us),) = files(session, [(program, text)])
    with (
        TemporaryDirectory(prefix="mirage-") as folder,
        Database(Path(folder) / "mirage.db") as store,
        Session(session.target, session.options, store, session.measures, session.progress, session.command) as other,
    ):
        made = list(files(other, [(p, str(p)) for p in stages]))
    session.progress.doing(f"running it on {gpus} GPUs, split along {', '.join(split.axes)}")
    ranks = run(task_of(program, split, [file for file, _ in made], whole), device)
    judged = ranks[0].judged
    assert judged is not None, "the first GPU's process judges"
    slowest = max(ranks, key=lambda r: statistics.median(r.split_us))
    return {
        "spec": program.name,
        "dims": program.sizes,
        "dtype": program.dtype,
        "gpu": session.target.name,
        "gpus": gpus,
        "axes": list(split.axes),
        "all_reduce_bytes": split.joined_bytes,
        "predicted": {
            "us": sum(us for _, us in made) + cost.joined_us,
            "all_reduce_us": cost.joined_us,
            "one_gpu_us": whole_us,
        },
        "measured": {
            "us": statistics.median(slowest.split_us),
            "spread_us": spread(slowest.split_us),
            "computed_us": statistics.median(slowest.computed_us),
            "one_gpu_us": statistics.median(ranks[0].one_us),
            "one_gpu_spread_us": spread(ranks[0].one_us),
            "method": slowest.method,
        },
        "error": judged.error,
        "eager_error": judged.eager_error,
        "wrong": judged.problem,
    }


def files(session: Session, programs: Sequence[tuple[Program, str]]) -> Iterator[tuple[File, float]]:
    """The exported kernel of each program, and its time by the cost model. Raises NoKernelError."""
    for (program, _), result in zip(programs, optimize(session, programs), strict=True):
        key = key_of(program, session.target, session.measures)
        best = session.store.best(key)
        if isinstance(result, Unfinished) or best is None:
            raise NoKernelError(program.name, result.problem if isinstance(result, Unfinished) else "none was found")
        written = written_anew(session.store, program, key, best)
        names = tuple(t.name for t in program.inputs), tuple(t.name for t in program.outputs)
        us = total_us(written.graph, written.schedule, session.target)
        yield File(written.source, program.name, *names), us


def task_of(program: Program, split: Split, stages: Sequence[File], whole: File) -> SplitTask:
    left = iter(stages)
    steps: list[File | Joined] = []
    for stage in split.stages:
        steps += [next(left)] if stage.program else []
        steps += [Joined(j.tensor, OPS[j.op].all_reduce, j.dtype) for j in stage.joins]
    dims = {t.name: t.dims for t in (*program.inputs, *program.outputs)}
    cut = {name: i for name, axes in dims.items() for i, d in enumerate(axes) if d in split.axes}
    standard = Standard(program.tolerance, longest_sum(program), overflow_like_eager=True)
    return SplitTask(split.gpus, measured_problem(program, 0), standard, cut, tuple(steps), whole)
