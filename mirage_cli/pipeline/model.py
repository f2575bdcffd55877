"""A faster model from a PyTorch function or module: `mirage_cli.optimize`.

    model ─► regions ─► a Result each ─► the model with exported kernels in their place

What is in no region, and every region for which PyTorch is as fast, stays PyTorch's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any  # models, their arguments and results

import torch

from mirage_cli.codegen.export import load_export
from mirage_cli.ir.program import Program
from mirage_cli.pipeline.optimize import optimize as optimize_programs
from mirage_cli.pipeline.problem import key_of
from mirage_cli.pipeline.regions import Region, attribute, cut, exported
from mirage_cli.pipeline.searching import Options
from mirage_cli.pipeline.session import Session
from mirage_cli.store.results import Result
from mirage_cli.store.store import Store, default_path
from mirage_cli.target.gpus import Target, driver_version, find_target, local_target

LEAST_S = 5.0
"""Of search and tuning for one region, however many there are."""


@dataclass(frozen=True)
class Gain:
    """What was found for a region. problem: why PyTorch keeps it; None where a kernel was taken."""

    region: Region
    us: float | None
    eager_us: float | None
    problem: str | None

    def __str__(self) -> str:
        name, kernels = self.region.module, self.region.traced.graph.name
        if self.problem is not None:
            return f"{name} ({kernels}): PyTorch's, {self.problem}"
        times = f"{self.us:.2f} µs" if self.us is not None else "not timed"
        return f"{name} ({kernels}): {times}" + (f", eager {self.eager_us:.2f} µs" if self.eager_us is not None else "")


class Replaced(torch.nn.Module):
    """A region by its kernel; by PyTorch where a gradient is asked for, or where the kernel cannot run."""

    def __init__(self, original: torch.nn.Module, region: Region, program: Program, kernel: Callable[..., Any]) -> None:
        super().__init__()
        self.original, self.kernel = original, kernel
        sizes = program.sizes
        self.inputs = [(i, tuple(sizes[d] for d in t.dims)) for i, t in zip(region.inputs, program.inputs, strict=True)]
        self.shapes, self.single = region.shapes, len(region.shapes) == 1
        self.interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")

    def forward(self, *given: torch.Tensor) -> Any:
        trained = torch.is_grad_enabled() and any(x.requires_grad for x in given)
        if trained or not (self.interpreted or all(x.is_cuda for x in given)):
            return self.original(*given)
        made = self.kernel(*(given[i].reshape(shape).contiguous() for i, shape in self.inputs))
        results = [made] if self.single else made
        shaped = [y.view(held).expand(shape) for y, (shape, held) in zip(results, self.shapes, strict=True)]
        return shaped[0] if self.single else tuple(shaped)


def optimize(
    function: Callable[..., Any],
    example_inputs: Sequence[Any],
    *,
    budget: float = 60.0,
    target: str = "auto",
    dynamic: object = None,
    seed: int = 0,
    workers: int | None = None,
    db: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> torch.nn.Module:
    """The same function or module with the kernels that were found for it, for inputs of these shapes.

    example_inputs: positional. budget: seconds of search and tuning for all regions together; what the database answers
    takes none. target: as of `mirage search`. say: is told what was taken, what was not and why. Where a gradient is
    asked for, and on other devices, PyTorch computes. Raises MirageError, and what `torch.export` raises.
    """
    if dynamic is not None:
        raise NotImplementedError(
            "sizes that change from call to call: `mirage export --all` serves them, models do not yet"
        )
    found = cut(exported(as_module(function), tuple(example_inputs)))
    for operator, why in found.left.items():
        say(f"{operator}: PyTorch's, {why}")
    chosen = local_target() if target == "auto" else find_target(target)
    here = target == "auto" and chosen is not None and driver_version() is not None
    with without_main(), Store(Path(db) if db else default_path()) as store:
        options = Options(workers or len(os.sched_getaffinity(0)), budget_s=budget, seed=seed)
        with Session(
            chosen or find_target("h100"), options, store, here, lambda _: None, "mirage_cli.optimize"
        ) as session:
            for gain in replaced(found.model, found.regions, session):
                say(str(gain))
    return torch.compile(found.model) if here else found.model  # type: ignore[return-value]


@contextmanager
def without_main() -> Generator[None]:
    """Processes that are started meanwhile do not run the caller's script again, which may not look whether it is the
    main module."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def as_module(function: Callable[..., Any]) -> torch.nn.Module:
    if isinstance(function, torch.nn.Module):
        return function
    module = torch.nn.Module()
    module.forward = function  # type: ignore[method-assign]
    return module


def replaced(model: torch.nn.Module, regions: Sequence[Region], session: Session) -> Iterator[Gain]:
    """Puts kernels in the place of regions. Equal regions are searched once."""
    unique = {r.text: r.traced.graph.program() for r in regions}
    each_s = max(session.options.budget_s / max(len(unique), 1), LEAST_S)
    session.options = replace(session.options, budget_s=each_s)
    results = dict(zip(unique, optimize_programs(session, [(p, text) for text, p in unique.items()]), strict=True))
    kernels: dict[str, Callable[..., Any]] = {}
    for region in regions:
        result, program = results[region.text], unique[region.text]
        problem = refused(result)
        best = result.best if isinstance(result, Result) else None
        if problem is None:
            if region.text not in kernels:
                kernels[region.text] = kernel_of(session.store, program, session.target, session.measures)
            original = attribute(model, region.module)
            setattr(model, region.module, Replaced(original, region, program, kernels[region.text]))
        yield Gain(region, best and best.us if best and best.times else None, best and best.eager_us, problem)


def refused(result: object) -> str | None:
    """Why a region stays PyTorch's."""
    if not isinstance(result, Result):
        return str(getattr(result, "problem", "no result"))
    if result.best is None:
        return "no kernel was found"
    if result.best.eager_us is not None and result.best.us >= result.best.eager_us:
        return f"{result.best.us:.2f} µs is no faster than eager's {result.best.eager_us:.2f}"
    return None


def kernel_of(store: Store, program: Program, target: Target, measured: bool) -> Callable[..., Any]:
    """The exported function of the best kernel that is stored."""
    best = store.best(key_of(program, target, measured))
    assert best is not None, "what was just found is stored"
    module: Mapping[str, Any] = vars(load_export(best.source))
    return module[program.name]
