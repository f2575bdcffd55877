"""Planned launches of kernels that read tensors in boxes. Exported files with such kernels carry this text."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any  # Triton's compiled kernels and descriptors, which have no types

from mirage_cli.codegen.exported.direct import RecordedKernel, Step, UnknownLaunchError

# What stands for a descriptor in a launch by Triton 3.6 and 3.7 (`wrap_handle_tensordesc`), without blanks.
EXPANSION = ".extend(make_tensordesc_arg(arg,tensordesc_meta[tensordesc_idx]))"
KEPT_MAPS = 512  # of one descriptor


class RecordedBoxKernel(RecordedKernel):
    """A kernel with tensor descriptors among its arguments.

    For each, Triton makes a map for the hardware at every launch. Plans make it once for each address, or for each
    address and shape where that differs by call.
    """

    def step(self, compiled: Any, grid: tuple[int], args: Sequence[Any]) -> Step:
        step = super().step(compiled, grid, args)
        bare, expand = without_expansion(step.run)
        return step._replace(run=bare, expand=Expansion(args, expand))


class Expansion:
    """Makes a launch's arguments of addresses: of each descriptor its map, shape and strides. The address of one whose
    tensor's shape differs by call comes with shape and strides."""

    def __init__(self, args: Sequence[Any], expand: Sequence[Any]) -> None:
        """args: of a launch. expand: for each descriptor, what takes it apart."""
        boxes = [(i, a) for i, a in enumerate(args) if hasattr(a, "base")]
        maps = [(i, TensorMaps(d, apart)) for (i, d), apart in zip(boxes, expand, strict=True)]
        self.maps = maps[::-1]  # the last first: what stands for one is longer than it

    def __call__(self, addresses: Sequence[Any]) -> list[Any]:
        args: list[Any] = [*addresses]
        for i, maps in self.maps:
            args[i : i + 1] = maps[args[i]]
        return args


class TensorMaps(dict[Any, Any]):
    """What stands for a descriptor in a launch, by the address of its tensor; or by address, shape and strides. All
    else about the tensor is the same."""

    def __init__(self, descriptor: Any, expand: Callable[[Any], Any]) -> None:
        super().__init__()
        self.descriptor, self.expand = copy.copy(descriptor), expand
        self.descriptor.base = None  # memory is not kept

    def __missing__(self, key: Any) -> Any:
        if len(self) >= KEPT_MAPS:
            self.clear()
        descriptor = copy.copy(self.descriptor)
        address = key
        if isinstance(key, tuple):
            address, descriptor.shape, descriptor.strides = key
        descriptor.base = SimpleNamespace(data_ptr=lambda: address)
        self[key] = arguments = self.expand(descriptor)
        return arguments


def without_expansion(run: Any) -> tuple[Any, list[Callable[[Any], Any]]]:
    """Triton's launcher for descriptors that are taken apart already, and what takes apart each of them.

    Raises UnknownLaunchError.
    """
    try:
        if EXPANSION not in "".join(inspect.getsource(run.launch).split()):
            raise UnknownLaunchError
        parts = inspect.getclosurevars(run.launch)
        bare = copy.copy(run)
        bare.launch = parts.nonlocals["launcher"]
        expand = parts.globals["make_tensordesc_arg"]
        return bare, [functools.partial(expand, metadata=m) for m in parts.nonlocals["tensordesc_meta"]]
    except (AttributeError, KeyError, OSError, TypeError):
        raise UnknownLaunchError from None
