"""How the tensors of a graph's nodes lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # nodes of PyTorch's graphs, and what stands for their tensors

from mirage_cli.spec.aten.row import SYMBOLIC
from mirage_cli.spec.strides import overlap


def memory_order(tensor: Any) -> tuple[int, ...]:
    """The positions of an input as they lie in memory, the outermost first; in order, where there are gaps in it, and
    of whole numbers, which are looked up as they are declared."""
    return order_of_result(tensor) if tensor.dtype.is_floating_point else (*range(tensor.dim()),)


def order_of_result(tensor: Any) -> tuple[int, ...]:
    """The positions of a result as they lie in memory, the outermost first; in order, where there are gaps in it."""
    order = (*range(tensor.dim()),)
    if tensor.is_contiguous():
        return order
    laid = (*sorted(order, key=lambda d: -tensor.stride(d)),)
    return laid if tensor.permute(laid).is_contiguous() else order


def strides_of(node: Any) -> tuple[int, ...] | None:
    """Those of a tensor with gaps that a model is given or holds, and that is read in place. None for what is whole, as
    kernels make their results, or is made so: where several elements are in one place, or only gaps differ by call."""
    tensor = node.meta["val"]
    if node.op not in ("placeholder", "get_attr") or tensor.is_contiguous():
        return None
    symbolic = node.meta.get(SYMBOLIC, tensor)
    if all(isinstance(n, int) for n in symbolic.shape) and not all(isinstance(n, int) for n in symbolic.stride()):
        return None
    if tensor.permute(memory_order(tensor)).is_contiguous():
        return None
    names = [str(i) for i in range(tensor.dim())]
    apart = overlap(tensor.stride(), names, dict(zip(names, tensor.shape, strict=True))) is None
    return tensor.stride() if apart else None


def inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
