"""How Triton's interpreter adds up. Exported kernels carry this text with them."""

from __future__ import annotations

import importlib
from typing import Any  # numpy's arrays, which only the interpreter has, and the interpreter itself


def halved_sum(x: Any, axis: int | None, keep: bool) -> Any:
    """Like numpy.sum of a block, whose sizes are powers of two, but by adding halves, as a GPU's threads do.

    numpy adds rows one after another. Equal numbers then are off in the same direction each time, which makes the sum
    of many worse than that of any kernel.
    """
    axes = tuple(range(x.ndim))
    summed = axes if axis is None else (axes[axis],)
    kept = [i for i in axes if i not in summed]
    total = x.transpose(*kept, *summed).reshape([*(x.shape[i] for i in kept), -1])
    while (half := total.shape[-1] // 2) > 0:
        total = total[..., :half] + total[..., half:]
    return total.reshape([1 if i in summed else n for i, n in enumerate(x.shape)]) if keep else total[..., 0]


def running_sum(x: Any, axis: int) -> Any:
    """Like numpy.cumsum, but by doubling, as a GPU's threads do (Hillis and Steele 1986): each step adds to every
    position the sum that is as far before it as all steps so far reach."""
    total = x.swapaxes(0, axis).copy()
    span = 1
    while span < len(total):
        total[span:] = total[span:] + total[:-span]
        span *= 2
    return total.swapaxes(0, axis)


def add_by_halves() -> None:
    """Lets the interpreter add blocks up as a GPU does, and up to each position. Once in a process."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")

    def block_sum(self: Any, x: Any) -> Any:
        return self.to_tensor(halved_sum(x.handle.data, self.axis, self.keep_dims), x.dtype)

    def block_scan(self: Any, x: Any) -> Any:
        return [self.to_tensor(running_sum(x.handle.data, self.axis), x.dtype)]

    interpreter.ReduceOps.sum = block_sum
    interpreter.ScanOps.cumsum = block_scan
