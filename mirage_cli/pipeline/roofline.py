"""What a program takes at least on a GPU: a bound for each level that it uses.

Program, Target ─► Roofline: matrix units, memory, L2, launches
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal

from mirage_cli.ir.derived import lower
from mirage_cli.ir.masked import product_flops, program_bytes
from mirage_cli.ir.precision import product_dtype
from mirage_cli.ir.program import DTYPE_BYTES, Program
from mirage_cli.ir.rewrites.joined import in_parts
from mirage_cli.ir.schedule import REGISTER_BYTES
from mirage_cli.target.gpus import Target

Unit = Literal["FLOP", "B", "kernels"]


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the machine: so many units pass it at least, at this rate."""

    name: str
    amount: float
    unit: Unit
    per_us: float

    @property
    def us(self) -> float:
        return self.amount / self.per_us


@dataclass(frozen=True, slots=True)
class Roofline:
    """The levels of a program on a GPU. written_kernels: one for each of its operators, as eager PyTorch has them."""

    flops: float
    moved_bytes: int
    levels: tuple[Level, ...]
    written_kernels: int

    @property
    def intensity(self) -> float:
        """Operations of products for each byte of device memory."""
        return self.flops / max(self.moved_bytes, 1)

    @property
    def limit(self) -> Level:
        """The level that takes the longest."""
        return max(self.levels, key=lambda x: x.us)

    @property
    def us(self) -> float:
        """No plan is faster: levels work side by side, and one kernel at least is launched."""
        return self.limit.us


def bounds(program: Program, target: Target) -> Roofline:
    """The least that any plan for this program does at each level."""
    lowered = in_parts(lower(program))
    flops, bytes_moved = product_flops(lowered), program_bytes(lowered)
    moved = sum(bytes_moved)
    levels = (
        Level("matrix units", flops, "FLOP", target.matrix_flops_per_us(product_dtype(lowered))),
        Level("memory", moved, "B", moved / target.memory_us(*bytes_moved)),
        Level("L2", max(moved, _operand_bytes(lowered, flops, target)), "B", target.l2_bytes_per_us),
        Level("launches", 1, "kernels", 1 / target.launch_us),
    )
    return Roofline(flops, moved, levels, sum(e.op not in ("index", "size") for e in program.eqns))


def _operand_bytes(program: Program, flops: float, target: Target) -> float:
    """Bytes that the largest product brings from the L2 to the multiprocessors.

    Σ over multiprocessors of 2·v / √s - 2·s elements, of v multiplications each where s elements fit in registers and
    shared memory (Smith et al. 2019, "A tight I/O lower bound for matrix multiplication", after Hong and Kung 1981).
    """
    volumes = [prod(program.sizes[a] for a in {*e.dims, *e.axes}) for e in program.eqns if e.op == "dot"]
    if not volumes:
        return 0.0
    left_by_masks = flops / (2.0 * sum(volumes))
    element = DTYPE_BYTES[product_dtype(program)]
    held = (target.smem_per_sm_bytes + REGISTER_BYTES * target.regs_per_sm) / element
    return element * (2.0 * max(volumes) * left_by_masks / sqrt(held) - 2.0 * held * target.sms)


def roofs(target: Target, dtype: str) -> Iterator[Level]:
    """The rates that a roofline draws: of what is computed, then of what is moved."""
    yield Level("matrix units", 1.0, "FLOP", target.matrix_flops_per_us(dtype))
    yield Level("float32 arithmetic", 1.0, "FLOP", target.fp32_flops_per_us)
    yield Level("L2", 1.0, "B", target.l2_bytes_per_us)
    yield Level("memory", 1.0, "B", target.dram_bytes_per_us)
