"""Test data on the device, and the judgement of what a candidate makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mirage_cli.tune.measure import Accuracy, Distribution, TensorSpec

GUARD_ELEMENTS = 4096

Tensors = list[torch.Tensor]


class WrongError(Exception):
    """A candidate broke a rule that no tolerance excuses."""


def draw(spec: TensorSpec, distribution: Distribution, g: torch.Generator) -> torch.Tensor:
    """Test data of one input. Distributions other than "normal" change floating-point inputs only."""
    if spec.dtype == "int32":
        high = max(2, *spec.shape)
        return torch.randint(0, high, spec.shape, generator=g, device=g.device, dtype=torch.int32)
    x = torch.randn(spec.shape, generator=g, device=g.device, dtype=torch.float32) * spec.scale
    match distribution:
        case "normal":
            pass
        case "large":
            x *= 16
        case "equal_rows":
            x = x[..., :1].expand(spec.shape).clone() if x.dim() else x
        case "outlier":
            x.view(-1)[x.numel() // 2] = 1000 * spec.scale
        case "tiny":
            x *= 1e-6
    return x.to(getattr(torch, spec.dtype))


def judge(specs: Sequence[TensorSpec], outputs: Tensors, reference: Tensors) -> Accuracy:
    """The worst output's error against the float64 `reference`.

    Raises WrongError: an inf or NaN (or an element never written) where float64, rounded to the output's type, is
    finite; a value other than its inf or NaN where it is not; outputs of another number or shape.
    """
    if len(outputs) != len(reference):
        raise WrongError(f"returns {len(outputs)} outputs, not {len(reference)}")
    accuracy = Accuracy(0.0, 0.0)
    for spec, y, ref in zip(specs, outputs, reference, strict=True):
        if y.shape != ref.shape:
            raise WrongError(f"{spec.name} has shape {tuple(y.shape)}, not {tuple(ref.shape)}")
        rounded = ref.to(getattr(torch, spec.dtype))
        finite = torch.isfinite(rounded)
        _refuse(spec.name, y, rounded, finite & ~torch.isfinite(y))
        _refuse(spec.name, y, rounded, ~finite & (rounded != y) & ~(rounded.isnan() & y.isnan()))
        zero = torch.zeros((), dtype=torch.float64, device=y.device)
        expected = torch.where(finite, ref, zero)
        error = torch.where(finite, y.double(), zero) - expected
        relative = _ratio(error.square().sum().sqrt(), expected.square().sum().sqrt())
        accuracy = accuracy.worst(Accuracy(relative, _ratio(_top(error), _top(expected))))
    return accuracy


def as_list(result: Any) -> Tensors:
    """What a torch function returned: one tensor, or several."""
    return [result] if isinstance(result, torch.Tensor) else list(result)


def poison(x: torch.Tensor) -> torch.Tensor:
    return x.fill_(math.nan if x.is_floating_point() else torch.iinfo(x.dtype).min)


def guarded_buffer(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """Room for the tensor with `GUARD_ELEMENTS` before and after it."""
    elements = math.prod(spec.shape) + 2 * GUARD_ELEMENTS
    return torch.empty(elements, dtype=getattr(torch, spec.dtype), device=device)


def inside_of(buffer: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return buffer[GUARD_ELEMENTS:-GUARD_ELEMENTS].view(spec.shape)


def _refuse(name: str, y: torch.Tensor, rounded: torch.Tensor, bad: torch.Tensor) -> None:
    if count := int(bad.sum()):
        at = tuple(int(i) for i in bad.nonzero()[0])
        more = f" and {count - 1} more" if count > 1 else ""
        raise WrongError(f"{name} is {y[at].item()} at {at}{more}, not {rounded[at].item():g}")


def _top(x: torch.Tensor) -> torch.Tensor:
    return x.abs().max() if x.numel() else torch.zeros((), dtype=x.dtype, device=x.device)


def _ratio(error: torch.Tensor, size: torch.Tensor) -> float:
    """error / size, and 0 for no error of nothing."""
    e, s = float(error), float(size)
    return e / s if s > 0 else (0.0 if e == 0 else math.inf)
