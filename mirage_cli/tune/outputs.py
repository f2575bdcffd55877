"""Room for a candidate's outputs: poisoned before it runs, and guarded on both sides."""

from __future__ import annotations

import math

import torch

from mirage_cli.tune.measure import TensorSpec
from mirage_cli.verify.lies import nothing

GUARD_ELEMENTS = 4096

Tensors = list[torch.Tensor]


class WrongError(Exception):
    """A candidate broke a rule that no tolerance excuses."""


def poison(x: torch.Tensor) -> torch.Tensor:
    return x.fill_(nothing(x.dtype))


def guarded_buffer(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """Room for the tensor with `GUARD_ELEMENTS` before and after it."""
    elements = math.prod(spec.shape) + 2 * GUARD_ELEMENTS
    return torch.empty(elements, dtype=getattr(torch, spec.dtype), device=device)


def inside_of(buffer: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return buffer[GUARD_ELEMENTS:-GUARD_ELEMENTS].view(spec.shape)
