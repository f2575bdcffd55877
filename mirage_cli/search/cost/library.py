"""The predicted time of a kernel that is a library call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from mirage_cli.ir.mugraph import Kernel
from mirage_cli.ir.program import DTYPE_BYTES, WIDEST_BYTES, Tensor
from mirage_cli.search.cost.traffic import whole_rows
from mirage_cli.target.gpus import Target


def library_us(
    kernel: Kernel, inputs: Iterable[Tensor], sizes: Mapping[str, int], element: int, target: Target
) -> float:
    """Predicted time of a matrix product by the vendor's library, in microseconds. inputs: of the μGraph. element:
    bytes of one."""
    e = kernel.body[0]
    tensors = [x.dims for x in kernel.loads] + [e.dims]
    moved = sum(prod(sizes[a] for a in axes) * element for axes in tensors)
    flops = 2.0 * prod(sizes[a] for a in {*e.dims, *e.axes})
    c = target.costs
    moving_us = moved / (c.library_memory * target.dram_bytes_per_us)
    single = element == DTYPE_BYTES["float32"]
    whole = [whole_rows(x, inputs, sizes, element) for x in kernel.loads]
    whole += [sizes[d] * element % WIDEST_BYTES == 0 for d in kernel.stores[0].dims[-1:]]
    rows = 1.0 if all(whole) else c.library_rows
    rate = c.library_single * target.fp32_flops_per_us if single else rows * target.tensor_flops_per_us
    return target.launch_us + c.library_us + max(moving_us, flops / rate)
