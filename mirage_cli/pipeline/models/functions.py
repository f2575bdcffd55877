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
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from mirage_cli.errors import NoKernelError, TraceError
from mirage_cli.pipeline.callers import Kernel, Kernels, Settings
from mirage_cli.pipeline.models.model import Function, Replaced, autocast
from mirage_cli.pipeline.models.regions import exported, whole

Sizes = tuple[object, ...]
"""Shapes, types and devices, and the types that autocast computes in."""


class Flat:
    """A function that returns a tensor, or a tuple of several. structure: what another returns them in, once called."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        self.structure: TreeSpec | None = None

    def __call__(self, *tensors: torch.Tensor) -> Any:
        leaves, self.structure = tree_flatten(self.function(*tensors))
        if others := [x for x in leaves if not isinstance(x, torch.Tensor)]:
            raise TraceError(self.name, f"a kernel returns tensors alone, and not {type(others[0]).__name__}")
        return leaves[0] if len(leaves) == 1 else tuple(leaves)

    @property
    def same(self) -> bool:
        """Whether the other returns what this does."""
        tree = self.structure
        assert tree is not None, "it was called"
        return tree.is_leaf() or (tree.type is tuple and tree.num_leaves == tree.num_children > 1)


class Structured(torch.nn.Module):
    """What a flat function returns, in the structure of the other."""

    def __init__(self, inner: torch.nn.Module, flat: Flat) -> None:
        super().__init__()
        self.inner, self.flat = inner, flat

    def forward(self, *tensors: torch.Tensor) -> Any:
        made = self.inner(*tensors)
        assert self.flat.structure is not None, "it was called when it was traced"
        return tree_unflatten(list(made) if isinstance(made, tuple) else [made], self.flat.structure)


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

    def find(self, tensors: Sequence[torch.Tensor], settings: Settings) -> Kernel | NoKernelError:
        sizes, name = self.sizes(tensors), self.name
        own = Function(flat := Flat(self.function, name))
        made = exported(own, tuple(x.detach() for x in tensors))
        program = whole(made, name)
        region = program.region
        if name.isidentifier() and name.islower() and not name.startswith("_"):
            region.graph.name = name
        with Kernels(settings) as kernels:
            (found,) = kernels.of([region.graph]) if settings.budget else kernels.known([region.graph])
        missing = isinstance(found, NoKernelError)
        if program.checks is not None and kernels.measures:
            program.checks.compile(dynamic=False)  # into one kernel
        if missing:
            self.known[sizes] = self.function
        else:
            replaced = Replaced(own, region, found, program.checks)
            self.known[sizes] = replaced if flat.same else Structured(replaced, flat)
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
