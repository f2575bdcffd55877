"""A split of a program on the GPUs of one host, by NCCL: python -m tools.tensor_parallel SPEC [--dim m=16] [--gpus 2]

Tunes what each GPU computes and the whole program on the first GPU, runs the split with one process a GPU, and compares
what it takes with one GPU and with the prediction: the cost model's times of the stages, and of the all-reduces.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any  # modules and results of exported files

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.derived import lower
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.optimize import finish
from mirage_cli.pipeline.parallel import Split, all_reduce_us, splits
from mirage_cli.pipeline.problem import key_of, measured_problem
from mirage_cli.pipeline.searching import Options, search_all
from mirage_cli.pipeline.session import Session
from mirage_cli.spec.reader import load_spec
from mirage_cli.store.results import Result
from mirage_cli.store.store import Store
from mirage_cli.target.gpus import Target, find_target
from mirage_cli.tune.modules import load_module
from mirage_cli.verify import testdata

COLD_BYTES = 8 * (50 << 20)
"""Of the input sets together: 8 times an H200's L2."""
ROUNDS, WARM = 30, 5
JOINS = {"add": dist.ReduceOp.SUM, "maximum": dist.ReduceOp.MAX, "minimum": dist.ReduceOp.MIN}
PROBED = (4 << 10, 128 << 10, 1 << 20, 16 << 20)
"""Bytes of the all-reduces that are timed by themselves."""
Call = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def tuned(programs: Sequence[Program], target: Target, here: bool, budget_s: float) -> list[tuple[str, Result]]:
    """The exported file and the result of each program, tuned where there is a GPU."""
    options = Options(max(1, (os.cpu_count() or 2) - 1), budget_s=budget_s, tune=here)
    found: list[tuple[str, Result]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder) / "tp.db") as store,
        Session(target, options, store, here) as session,
    ):
        session.prepare()
        for program, searched in zip(programs, search_all(programs, target, options), strict=True):
            result = finish(session, program, str(program), searched)
            assert isinstance(result, Result) and result.best is not None, result
            best = store.best(key_of(program, target, session.measures))
            assert best is not None
            found.append((best.source, result))
    return found


def predicted_us(result: Result) -> float:
    """The cost model's, of the plan that was chosen."""
    best = result.best
    assert best is not None
    return sum(us for _, us in best.bottlenecks.values()) or best.predicted_us or 0.0


def call_of(split: Split, functions: Sequence[Any]) -> Call:
    """The stages of one GPU with their all-reduces, on tensors by name."""

    def run(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        held, left = dict(held), iter(functions)
        for stage in split.stages:
            if stage.program:
                made = next(left)(*(held[t.name] for t in stage.program.inputs))
                made = made if isinstance(made, tuple) else (made,)
                held.update(zip((t.name for t in stage.program.outputs), made, strict=True))
            for j in stage.joins:
                dist.all_reduce(held[j.tensor], JOINS[j.op])
        return held

    return run


def timed_us(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """The median of a call in a chain of them, in a CUDA graph; all processes make the same number of calls."""
    for call in calls:
        call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the watchdog of NCCL asks for events
        for call in calls:
            call()
    samples: list[float] = []
    for _ in range(WARM + ROUNDS):
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize(device)
        samples.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(samples[WARM:])


def part(x: torch.Tensor, dims: Sequence[str], split: Split, rank: int) -> torch.Tensor:
    for i, d in enumerate(dims):
        if d in split.axes:
            x = x.chunk(split.gpus, i)[rank]
    return x.contiguous()


def worker(
    rank: int, program: Program, split: Split, sources: Sequence[str], whole: str, port: int, report: Any
) -> None:
    """One GPU's process. report: a queue for the first one's figures."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=split.gpus)
    folder = Path(tempfile.mkdtemp())
    stages = [s.program for s in split.stages if s.program]
    run = call_of(split, [getattr(load_module(s, folder), p.name) for s, p in zip(sources, stages, strict=True)])
    problem = measured_problem(program, 0)
    shapes, spreads = [s.shape for s in problem.inputs], [s.spread for s in problem.inputs]
    dtypes = [getattr(torch, s.dtype) for s in problem.inputs]
    data = testdata.draw(testdata.DISTRIBUTIONS[0], shapes, dtypes, spreads, 1, torch.device("cpu"), 0)
    full = {s.name: x.to(device) for s, x in zip(problem.inputs, data, strict=True)}
    mine = {t.name: part(full[t.name], t.dims, split, rank) for t in program.inputs}
    names: dict[str, Any] = {"torch": torch}
    exec(compile(torch_source(program.apart()), "reference", "exec"), names)
    found = run(mine)
    exact = names["reference"](
        *(full[t.name].double() if full[t.name].is_floating_point() else full[t.name] for t in program.inputs)
    )
    eager = names["reference"](*(full[t.name] for t in program.inputs))
    exact, eager = (x if isinstance(x, tuple) else (x,) for x in (exact, eager))
    errors = [
        tuple(
            ((y.double() - part(z, t.dims, split, rank)).norm() / part(z, t.dims, split, rank).norm()).item()
            for y in ys
        )
        for t, e, z in zip(program.outputs, eager, exact, strict=True)
        for ys in [(found[t.name], part(e, t.dims, split, rank))]
    ]
    figures: dict[str, Any] = {"errors": errors}
    if cuda:
        figures |= times_on(device, rank, full, mine, program, split, run, load_module(whole, folder))
    if rank == 0:
        report.put(figures)
    dist.barrier()
    dist.destroy_process_group()


def times_on(
    device: torch.device, rank: int, full: Any, mine: Any, program: Program, split: Split, run: Call, module: Any
) -> dict[str, Any]:
    """Medians: the split, one GPU, and all-reduces by themselves."""

    def copies(data: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        size = sum(x.nbytes for x in data.values())
        return [{n: x.clone() for n, x in data.items()} for _ in range(max(2, -(-COLD_BYTES // size)))]

    whole = getattr(module, program.name)
    own = copies(mine)
    split_us = timed_us([lambda x=x: run(x) for x in own] * 4, device)
    del own
    one = copies(full)
    one_us = timed_us([lambda x=x: whole(*(x[t.name] for t in program.inputs)) for x in one] * 4, device)
    joined: dict[int, float] = {}
    for count in PROBED:
        x = torch.zeros(count // 2, dtype=torch.float16, device=device)
        joined[count] = timed_us([lambda x=x: dist.all_reduce(x)] * 20, device)
    return {"split_us": split_us, "one_us": one_us, "joined_us": joined}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--axis", help="this one instead of the cheapest")
    parser.add_argument("--budget", type=float, default=60.0)
    given = parser.parse_args()
    sizes = {name: int(n) for name, _, n in (x.partition("=") for x in given.dim)}
    program = load_spec(given.spec).programs(sizes or None)[0]
    here = torch.cuda.is_available()
    target = find_target("auto" if here else "h200")
    ways, refused = splits(program, given.gpus, target)
    assert ways, refused
    split = next(s for s, _ in ways if given.axis in (None, *s.axes))
    stages = [s.program for s in split.stages if s.program]
    found = tuned([*stages, lower(program)], target, here, given.budget)
    context = mp.get_context("spawn")
    report = context.SimpleQueue()
    sources, whole = [s for s, _ in found[:-1]], found[-1][0]
    port = 20000 + os.getpid() % 20000
    processes = mp.spawn(worker, (program, split, sources, whole, port, report), given.gpus, join=False)
    figures = report.get()
    processes.join()
    joins_us = sum(all_reduce_us(j.moved_bytes, split.gpus, target) for s in split.stages for j in s.joins)
    expected_us = sum(predicted_us(r) for _, r in found[:-1]) + joins_us
    print(f"{program.name} {program.sizes} on {split.gpus} x {target.name}: split {', '.join(split.axes)}")
    print(f"all-reduce {split.joined_bytes} bytes, errors (split, eager) {figures['errors']}")
    one_us = predicted_us(found[-1][1])
    print(f"predicted: split {expected_us:.2f} us (all-reduce {joins_us:.2f}), one GPU {one_us:.2f} us")
    if here:
        ratio = expected_us / figures["split_us"]
        print(f"measured: split {figures['split_us']:.2f} us, one GPU {figures['one_us']:.2f} us")
        print(f"prediction / measurement: {ratio:.3f}; one GPU / split: {figures['one_us'] / figures['split_us']:.3f}")
        print("all-reduce by itself, bytes: us", {n: round(us, 2) for n, us in figures["joined_us"].items()})


if __name__ == "__main__":
    main()
