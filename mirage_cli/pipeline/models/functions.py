"""`@mirage_cli.kernel`: a function written with torch's calls, by one kernel of all that it computes.

@mirage_cli.kernel
def gated(x, w, v):
    return F.silu(x @ w) * (x @ v)

y = gated(x, w, v)                          # by the stored kernel for these shapes, or by PyTorch
kernel = gated.search(x, w, v, budget=60)   # .run, .export and .explain, as of `Graph.search`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload  # Any: tensors, and what functions of them return

import torch
from torch.fx.graph import CodeGen
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from mirage_cli.errors import NoKernelError, TraceError
from mirage_cli.pipeline.callers import Kernel, Kernels, Settings
from mirage_cli.pipeline.models.model import Function, Replaced, autocast
from mirage_cli.pipeline.models.regions import exported, whole

Sizes = tuple[object, ...]
"""Shapes, types and devices, and the types that autocast computes in."""


class Structured(torch.nn.Module):
    """What a function of tensors returns, by a module that returns a tensor, or a tuple of several."""

    def __init__(self, inner: torch.nn.Module, structure: TreeSpec) -> None:
        super().__init__()
        self.inner, self.structure = inner, structure

    def forward(self, *tensors: torch.Tensor) -> Any:
        made = self.inner(*tensors)
        return tree_unflatten(list(made) if isinstance(made, tuple) else [made], self.structure)


def flat(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def flattened(model: torch.fx.GraphModule, name: str) -> TreeSpec:
    """Has an exported model return a tensor, or a tuple of several. What it returned them in. Raises TraceError where
    one is no tensor."""
    structure: TreeSpec = model.graph._codegen.pytree_info.out_spec  # pyright: ignore
    (output,) = model.graph.find_nodes(op="output")
    results = [*output.args[0]]
    if others := [x for x in results if not isinstance(x, torch.fx.Node)]:
        raise TraceError(name, f"a kernel returns tensors alone, and not {type(others[0]).__name__}")
    output.args = (flat(results),)
    model.graph.set_codegen(CodeGen())
    model.recompile()
    return structure


class KernelFunction:
    """A function of tensors that knows kernels for the shapes that it was called with.

    settings: of the search at the first call with tensors of new shapes; stored kernels alone where its budget is 0.
    """

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        functools.update_wrapper(self, function)
        self.function, self.settings = function, settings
        self.known: dict[Sizes, Callable[..., Any]] = {}

    def __call__(self, *tensors: torch.Tensor, **named: torch.Tensor) -> Any:
        """By the kernel for these shapes; by PyTorch where there is none, where a gradient is asked for, on a CPU, and
        of tensors without elements.

        Raises TraceError where the function is no program, or an argument is given by name.
        """
        if torch.compiler.is_compiling():
            return self.function(*tensors, **named)
        if named:
            raise TraceError(self.name, f"give {', '.join(named)} by position, as all arguments of a kernel")
        sizes = self.sizes(tensors)
        if not all(x.numel() for x in tensors):
            return self.function(*tensors)
        if sizes not in self.known:
            self.find(tensors, self.settings)
        return self.known[sizes](*tensors)

    def search(self, *tensors: torch.Tensor, budget: float = 60.0) -> Kernel:
        """The best kernel for tensors of these shapes, for calls from then on. Raises TraceError, NoKernelError."""
        found = self.find(tensors, replace(self.settings, budget=budget))
        if isinstance(found, NoKernelError):
            raise found
        return found

    def sizes(self, tensors: Sequence[Any]) -> Sizes:
        """What a kernel is known by. Raises TraceError."""
        if others := [i for i, x in enumerate(tensors) if not isinstance(x, torch.Tensor)]:
            raise TraceError(self.name, f"argument {others[0]} is no tensor, as all arguments of a kernel are")
        return *((x.shape, x.dtype, x.device) for x in tensors), autocast()

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "kernel")

    @staticmethod
    def by(kernel: Replaced, structure: TreeSpec) -> torch.nn.Module:
        """A kernel whose results lie in what the function returns."""
        several = structure.num_leaves == structure.num_children > 1 and structure.type is tuple
        return kernel if structure.is_leaf() or several else Structured(kernel, structure)

    def find(self, tensors: Sequence[torch.Tensor], settings: Settings) -> Kernel | NoKernelError:
        sizes, name = self.sizes(tensors), self.name
        made = exported(Function(self.function), tuple(x.detach() for x in tensors))
        structure = flattened(made, name)
        program = whole(made, name)
        region = program.region
        if name.isidentifier() and name.islower() and not name.startswith("_"):
            region.graph.name = name
        with Kernels(settings) as kernels:
            (found,) = kernels.of([region.graph]) if settings.budget else kernels.known([region.graph])
        missing = isinstance(found, NoKernelError)
        if program.checks is not None and kernels.measures:
            program.checks.compile(dynamic=False)  # into one kernel
        own = Function(lambda *given: flat(tree_leaves(self.function(*given))))
        self.known[sizes] = (
            self.function if missing else self.by(Replaced(own, region, found, program.checks), structure)
        )
        return found


@overload
def kernel(function: Callable[..., Any]) -> KernelFunction: ...
@overload
def kernel(
    *,
    tune: float = 0.0,
    target: str = "auto",
    seed: int = 0,
    workers: int | None = None,
    db: str | Path | None = None,
) -> Callable[[Callable[..., Any]], KernelFunction]: ...
def kernel(
    function: Callable[..., Any] | None = None,
    *,
    tune: float = 0.0,
    target: str = "auto",
    seed: int = 0,
    workers: int | None = None,
    db: str | Path | None = None,
) -> Any:
    """A decorator, with or without options. Raises TypeError, TargetError, OptionError.

    tune: seconds of search and tuning at the first call with tensors of new shapes; 0: stored kernels alone.
    """
    if not (function is None or callable(function)):
        raise TypeError(f"mirage_cli.kernel takes a function, not {function!r:.40}; options are named")
    settings = Settings(target, tune, seed, workers, db)
    settings.gpu()
    return (lambda f: KernelFunction(f, settings)) if function is None else KernelFunction(function, settings)
