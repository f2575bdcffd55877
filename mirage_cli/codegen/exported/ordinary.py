"""Whether kernels may work on the memory of tensors, or PyTorch makes more of them than numbers. Exported files carry
this text."""

from __future__ import annotations

import functools
import operator
from typing import Any  # tensors, and what PyTorch keeps to itself

import torch

TORCH: Any = torch
ORDINARY = ("CPU", "CUDA", "BackendSelect", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU",
            "AutocastCUDA")  # fmt: skip
"""The dispatch keys of tensors in memory, and of calls that nothing transforms."""
ORDINARY_BITS = functools.reduce(
    operator.or_, (TORCH._C.DispatchKeySet(getattr(TORCH._C.DispatchKey, key)).raw_repr() for key in ORDINARY)
)


def only_numbers(x: Any) -> bool:
    """Whether a tensor is numbers in memory and no more: it is not being transformed (vmap, grad, jvp), recorded (a
    dispatch mode, a trace), negated when it is read, or differentiated forwards."""
    keys = TORCH._C._dispatch_keys(x) | TORCH._C._dispatch_tls_local_include_set()
    return not keys.raw_repr() & ~ORDINARY_BITS and not has_tangent(x)


def has_tangent(x: Any) -> bool:
    forward = TORCH.autograd.forward_ad
    return forward._current_level >= 0 and forward.unpack_dual(x).tangent is not None
