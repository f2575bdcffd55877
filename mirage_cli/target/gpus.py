"""TARGETS: what is known about GPUs, one row each. Every rate is what kernels reach, not what a datasheet promises.

Sources of the figures:
  [A100] NVIDIA A100 Tensor Core GPU Architecture (whitepaper), A100 80GB SXM datasheet
  [Ada]  NVIDIA Ada GPU Architecture (whitepaper), L40S datasheet
  [L4]   NVIDIA L4 Tensor Core GPU datasheet; its rates are of sparse matrices, of which half is dense
  [H100] NVIDIA H100 Tensor Core GPU Architecture (whitepaper), H100 SXM and H200 SXM datasheets
  [B]    NVIDIA Blackwell Architecture Technical Brief, HGX B200 datasheet; RTX Blackwell GPU Architecture (whitepaper)
  [CC]   CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": memory, threads
  [H200] our measurement on an H200 SXM: copy of 2 GiB, cuBLAS f16 8192³, an empty kernel replayed in a CUDA graph

Where no measurement is at hand, the reachable rate is a stated fraction of the datasheet's: device memory 0.89 on HBM
(0.89 = measured/datasheet on the H200) and 0.92 on GDDR, which has no stacks to switch; matrix units 0.66 where the
power limit holds the clock down (measured on the H200), 0.85 elsewhere. L2 rates are estimates of 0.65 of the read
width in [A100] (5120 bytes per clock), scaled by the number of multiprocessors for parts whose width is not published;
0.75 on Hopper, which fits the measured schedules of results/h200/cost_model.md best.

The constants of the cost model (`Costs`) were measured or fitted on an H200 alone, and are taken for every GPU. [fit]
are those that order the schedules of tests/data/h200_*.json.gz best, as results/h200/cost_model.md compares them.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_cli.errors import TargetError
from mirage_cli.ir.program import FLOAT8
from mirage_cli.target.device import first_device, torch_has_cuda

KIB, MIB = 1 << 10, 1 << 20
HBM, GDDR = 0.89, 0.92
POWER_LIMITED, FULL_CLOCK = 0.66, 0.85
LAUNCH_US = 0.74
"""[H200] An empty kernel in a CUDA graph. Taken for every GPU: it is the host-free cost of the same front end."""


LINK = 0.64
"""The part of a link's rate that an all-reduce of NCCL 2.28 reaches: two H200 over NVLink, 16 MiB to 64 MiB, took
290 GB/s of 450 (results/h200/notes-2026-11-24.md). Taken for every GPU."""
JOIN_US = 11.0
"""An all-reduce of little by NCCL 2.28 in a CUDA graph: two H200, 4 B took 9.0 us, 64 KiB 11.3, 256 KiB 12.7. Taken for
every GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the terms of the cost model (`search/cost/model.py`) take from a GPU besides its rates.

    Between kernels:
    gap_us: between two dependent kernels of one CUDA graph: the drain of one and the ramp of the next.
    ramp_us: what a kernel takes to fill the GPU and to drain, unless it starts before the one in front has ended.
    start_us: from the start of a program instance to that of the next one, on whichever multiprocessor, where kernels
        do not overlap.
    early_us: what a kernel gains that lets the one behind start at once: that one's blocks are in place when its own
        end, in the next call too.
    fetched_us: what a kernel gains whose first loads find their lines in the L2, or on their way there.
    traffic: what fetching into the L2 before the wait costs, as a part of the time that its bytes take at the memory's
        rate: it takes turns with the kernel in front.

    Of iterations:
    latency_us: from issuing a load of device memory to using it; fast_us: of a segment that loads nothing.
    step_us: the least time of an iteration of one warp: barriers and address arithmetic.
    warp_step_us: what each doubling of the warps adds to it.
    across_step_us: what an iteration takes longer for each reduction for which warps meet.
    mma_us: from one product of a warp on the matrix units to the next that adds to the same elements.
    late_us: what an iteration waits for a load that is not fetched ahead.
    behind: the part that the first iteration waits of the time which memory takes for all that blocks ask for by then.
    meet_us: what a sum takes longer where several warps have its block: they exchange results through shared memory.

    Of arithmetic:
    busy_warps: warps of a multiprocessor below which its reads of operands slow down, by their number, and its
        arithmetic, by the square of it.
    simd: the part of the float32 rate that arithmetic reaches which is not all multiply-adds.
    conversion: operations that reading an element for an operand that is computed takes. The warps that share its rows
        each have a copy of it: an operand of 16 rows is computed as many times as there are warps.
    whole_byte, part_of_byte: operations that a byte, or some of its bits, takes to become a number of 16 bits, less a
        zero point, by logic.
    bits_step: operations of each thread in an iteration of loops in which they are, however large blocks are: for zero
        points, scales, and addresses of them all.
    single_byte: operations more where it is read alone from shared memory, as pairs are not if factors differ within a
        block.
    boxed_byte: operations more where it comes through a descriptor, which has no pairs.
    narrow: operations that a load of less than 16 bytes takes, for its address, its mask, and its way to shared memory.
    shuffle: operations that a thread's exchange of a register with another and adding it up take.
    across_us: a sum across warps, for each warp and each element of the result.
    few_warps: the part of the matrix units' rate that is reached without a warpgroup, or by one with fewer rows than it
        takes, by types of 16 and 8 bits.
    tf32x3: the part of a third of TF32's rate that three products of it reach, with warpgroups or without.
    splitting: operations that splitting an element of float32 in two parts for TF32 takes: nine instructions.
    banks: the time of an access of a warp to shared memory, over that of its bytes at the rate that products use.
    ieee: the part of the float32 rate that Triton's products of float32 reach without the matrix units.
    turned: how many times an element costs what reading it from shared memory does, where a warpgroup has computed it
        in this iteration and a product takes it as its second operand: it is written there, in another layout, first.

    Of registers:
    fixed_registers: of a thread, for addresses and counters. held: the part of the largest value's that is not in use
        elsewhere at the same time.
    plain_registers: the same of kernels that multiply nothing, beside what an iteration loads and accumulators.
    kept: the part of what is held at once that takes registers: accumulators and products do, other values may be
        computed again.
    parts: registers that an element of an operand takes whose two parts for TF32 are worked out there.

    Of the L2:
    waste: the power of the length of a run over that of a line that a load of short runs uses; 0 would be no waste, 1
        the rest of the line.
    partial: how many times as long the L2 takes for a sector of which an instruction writes a part, as for what it
        moves otherwise.
    port: how many times its share of the L2's rate a multiprocessor takes where others are idle.
    near: of what several windows in registers read, the part of the L2's time that all reads but the first take.
    boxes: how many times as fast the L2 serves loops through descriptors: whole boxes, with no help of threads.
    grouped: how many times as fast it serves loops in which warpgroups multiply tiles that many instances read at once.

    Of what overlaps:
    shown: the part of what does not dominate that nothing hides.
    exposed: the part more that shows of a block that is alone on its multiprocessor and fetches nothing ahead. It falls
        with the blocks, and with the square of the stages.
    apart_warps: warps of a multiprocessor with which all of it shows where windows are in registers; less with more.

    Of the library's products:
    library_us: beside the launch and bytes or operations. library_memory, library_single: the parts of the memory's
        rate and of the float32 rate that it reaches. library_rows: the part of the matrix units' rate where rows of an
        operand or of the result begin or end at no multiples of 16 bytes.
    """

    gap_us: float
    ramp_us: float
    start_us: float
    early_us: float
    fetched_us: float
    traffic: float
    latency_us: float
    fast_us: float
    step_us: float
    warp_step_us: float
    behind: float
    across_step_us: float
    mma_us: float
    late_us: float
    meet_us: float
    busy_warps: float
    simd: float
    conversion: float
    whole_byte: float
    part_of_byte: float
    bits_step: float
    single_byte: float
    boxed_byte: float
    narrow: float
    shuffle: float
    across_us: float
    few_warps: float
    tf32x3: float
    splitting: float
    banks: float
    ieee: float
    turned: float
    fixed_registers: float
    held: float
    plain_registers: float
    kept: float
    parts: float
    waste: float
    partial: float
    port: float
    boxes: float
    grouped: float
    shown: float
    exposed: float
    near: float
    apart_warps: float
    library_us: float
    library_memory: float
    library_single: float
    library_rows: float


H200_COSTS = Costs(
    gap_us=1.2,  # [H200] two kernels of a CUDA graph
    ramp_us=0.6,  # [H200] pairs that differ in nothing else: 0.4 to 0.6 behind itself, 0.8 to 1.2 behind another
    start_us=0.62e-3,  # [H200] silu in 88,064 blocks: 55 us, and 107 where kernels may overlap
    early_us=0.4,  # [fit] tuned schedules
    fetched_us=0.55,  # [fit] tuned schedules; pairs that differ in nothing else: 0.3 to 0.7
    traffic=0.35,  # [fit] tuned schedules; pairs of first kernels, which have nothing to wait for, show up to 1
    latency_us=0.7,  # [H200]
    fast_us=0.1,  # no measurement is recorded
    step_us=0.085, warp_step_us=0.11, across_step_us=0.1, behind=0.3,  # [fit]
    mma_us=0.019,  # 33 cycles of mma.m16n8k16 (Luo et al. 2024, arXiv 2402.13499, table IX)
    late_us=0.6,  # [H200] one program: 17 us more in 32 iterations
    meet_us=0.3,  # [fit] tuned merges; [H200] merges of attention, 3 sums: 1.1 to 1.5 us more with 2 warps than with 1
    busy_warps=4.5, simd=0.55, conversion=1.5, across_us=8e-4, few_warps=0.4,  # [fit]
    whole_byte=2.5, part_of_byte=6.0,  # [H200] 2.1 and 2.3 instructions, parts in loops that wait for each other
    bits_step=60.0,  # [H200] fitted on 31 schedules of 4 bits with 16 rows; 130 of a loop's 588 instructions
    single_byte=12.0,  # [H200] 4096 x 14336 weights of 8 bits 43 us where pairs take 21, of 4 bits 33 and 12
    boxed_byte=4.0,  # [H200] 4 bits with 16 rows: 21.0 and 22.4 us, 14.6 and 15.0 by pointers
    shuffle=5.0,  # [CC] a fourth of the rate of other operations, and one of these
    narrow=15.0,  # instructions of loops on sm_90: 6 of a load of 2 bytes, 12 of a copy of 4; [H100] as the next
    tf32x3=0.95, splitting=11.0, banks=0.58, ieee=0.75,  # [H100] fitted on 67 schedules of float32, tried on 46 others
    turned=6.0,  # [fit]
    fixed_registers=60.0, held=0.15,  # no measurement is recorded
    plain_registers=18.0,  # [CC] sm_90: 16 to 35 beside what loops load and add up, of 15 kernels
    kept=0.92,  # fitted on 259 kernels of 11 programs, compiled for sm_90
    parts=2.2,  # fitted on 42 schedules of three programs, compiled for sm_90
    waste=0.6, port=1.7, boxes=1.6, grouped=1.5,  # [fit]
    partial=1.4,  # [H200] GPT-J's rotation and a butterfly: 55.1 and 27.8 us, 9.8 and 18.9 with whole sectors
    near=0.3, apart_warps=4.0,  # [H200] 38 schedules of windows in registers, of seven programs
    shown=0.05, exposed=0.15,  # [fit]
    library_us=4.2, library_memory=0.95,  # [fit] tuned μGraphs
    library_single=0.75,  # [H200] one product
    library_rows=0.17,  # [H100] products of 4093 or 4099 in k or n: 825 to 1580 us, 175 to 182 of 4096
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU. Rates are per microsecond: 1e6 bytes/us = 1 TB/s, 1e6 flops/us = 1 TFLOP/s.

    tensor_flops_per_us: float16 and bfloat16 products with float32 accumulation, dense.
    smem_per_block_bytes: the most that a block can opt in to. warps_per_sm: that a multiprocessor has at once.
    l2_bytes_per_us is an estimate everywhere. dram_bytes_per_us: of a copy, read and written; reads: how many times as
    fast memory is only read.
    link_bytes_per_us: from one GPU of a host to the others, in one direction. join_us: an all-reduce of a few bytes.
    launch_us: a kernel in a CUDA graph; a dependent kernel starts `costs.gap_us` after the one in front began to drain.
    """

    name: str
    arch: str
    sms: int
    clock_mhz: int
    dram_bytes_per_us: float
    l2_bytes: int
    l2_bytes_per_us: float
    tensor_flops_per_us: float
    tf32_flops_per_us: float
    fp32_flops_per_us: float
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    warps_per_sm: int = 64
    reads: float = 1.065  # [H200] 4.55 of 4.27: a matrix of 1 GB times a vector; taken for every GPU
    costs: Costs = H200_COSTS  # taken for every GPU
    regs_per_sm: int = 65536  # [CC]: since compute capability 3.5
    launch_us: float = LAUNCH_US
    link_bytes_per_us: float = LINK * 32e3  # PCIe 4 x16, one direction
    join_us: float = JOIN_US

    @property
    def smem_bytes_per_us(self) -> float:
        """128 bytes a clock and multiprocessor, of which products were seen to use 0.56 (fitted on [H200])."""
        return 0.56 * 128 * self.sms * self.clock_mhz

    @property
    def sm(self) -> int:
        """The architecture as a number, 90 for "sm_90"."""
        return int(self.arch.removeprefix("sm_"))

    @property
    def overlaps(self) -> bool:
        """Whether a kernel can start before the one in front has ended (programmatic dependent launch; [CC] 9.0)."""
        return self.sm >= 90

    @property
    def descriptors(self) -> bool:
        """Whether blocks of tensors are fetched by hardware that is given a tensor descriptor (TMA; [CC] 9.0)."""
        return self.sm >= 90

    def memory_us(self, read: float, written: float) -> float:
        """Of bytes that are read, at the rate of reading, and of others that are written: so much longer that a copy
        takes its own rate."""
        reading = self.reads * self.dram_bytes_per_us
        return read / reading + written * (2.0 / self.dram_bytes_per_us - 1.0 / reading)

    @property
    def specializes(self) -> bool:
        """Whether warps of their own for fetching are worth a try.

        Not on sm_90: of 40 schedules of nine programs on an H200, Triton 3.6 compiled 31, of which 19 hung or gave NaN,
        and the other 12 took 1.05 to 3.3 times as long as without.
        """
        return self.sm >= 100

    def holds(self, dtype: str) -> bool:
        """Whether kernels have this type: Triton has float8_e4m3fn from sm_89 on."""
        return dtype != "float8_e4m3fn" or self.sm >= 89

    @property
    def float8(self) -> float:
        """How many times as fast as float16 the matrix units multiply float8: twice in [Ada], [H100] and [B]. Those of
        [A100] have none of it, and Triton gives them float16."""
        return 2.0 if self.sm >= 89 else 1.0

    def matrix_flops_per_us(self, dtype: str) -> float:
        """The matrix units' rate for inputs of this dtype; float32 runs as TF32 where it is allowed to."""
        if dtype in FLOAT8:
            return self.tensor_flops_per_us * self.float8
        return self.tf32_flops_per_us if dtype == "float32" else self.tensor_flops_per_us

    def floor_us(self, read: float, written: float, flops: float, dtype: str) -> float:
        """No kernel is faster than this: bytes that are read and written over measured rates, operations over the
        measured matmul rate of operands of this dtype."""
        return max(self.memory_us(read, written), flops / self.matrix_flops_per_us(dtype))


# One block per GPU; the comment says where each figure of its line comes from.
TARGETS: tuple[Target, ...] = (
    Target(
        "a100", "sm_80", sms=108, clock_mhz=1410,  # [A100]
        dram_bytes_per_us=HBM * 2.039e6,  # [A100] 80 GB, HBM2e
        l2_bytes=40 * MIB, l2_bytes_per_us=0.65 * 5120 * 1410,  # [A100] size and width
        tensor_flops_per_us=FULL_CLOCK * 312e6, tf32_flops_per_us=FULL_CLOCK * 156e6,  # [A100]
        fp32_flops_per_us=19.5e6,  # [A100]
        smem_per_sm_bytes=164 * KIB, smem_per_block_bytes=163 * KIB,  # [CC] 8.0
        link_bytes_per_us=LINK * 300e3,  # [A100] NVLink 3, one direction
    ),
    Target(
        "l4", "sm_89", sms=58, clock_mhz=2040,  # [L4]
        dram_bytes_per_us=GDDR * 0.3e6,  # [L4] GDDR6
        l2_bytes=48 * MIB, l2_bytes_per_us=0.65 * 5120 * 2040 * 58 / 256,  # [L4] size; width estimated as [Ada]'s
        tensor_flops_per_us=POWER_LIMITED * 121e6, tf32_flops_per_us=POWER_LIMITED * 60e6,  # [L4] 72 W
        fp32_flops_per_us=30.3e6,  # [L4]
        smem_per_sm_bytes=100 * KIB, smem_per_block_bytes=99 * KIB, warps_per_sm=48,  # [CC] 8.9
    ),
    Target(
        "l40s", "sm_89", sms=142, clock_mhz=2520,  # [Ada] L40S
        dram_bytes_per_us=GDDR * 0.864e6,  # [Ada] L40S, GDDR6
        l2_bytes=96 * MIB, l2_bytes_per_us=0.65 * 5120 * 2520 * 142 / 256,  # [Ada] size; width estimated
        tensor_flops_per_us=POWER_LIMITED * 362e6, tf32_flops_per_us=POWER_LIMITED * 183e6,  # [Ada] L40S, 350 W
        fp32_flops_per_us=91.6e6,  # [Ada] L40S
        smem_per_sm_bytes=100 * KIB, smem_per_block_bytes=99 * KIB, warps_per_sm=48,  # [CC] 8.9
    ),
    Target(
        "rtx4090", "sm_89", sms=128, clock_mhz=2520,  # [Ada]
        dram_bytes_per_us=GDDR * 1.008e6,  # [Ada] GDDR6X
        l2_bytes=72 * MIB, l2_bytes_per_us=0.65 * 5120 * 2520 * 128 / 256,  # [Ada] size; width estimated
        tensor_flops_per_us=FULL_CLOCK * 165.2e6, tf32_flops_per_us=FULL_CLOCK * 82.6e6,  # [Ada] f32 accumulation
        fp32_flops_per_us=82.6e6,  # [Ada]
        smem_per_sm_bytes=100 * KIB, smem_per_block_bytes=99 * KIB, warps_per_sm=48,  # [CC] 8.9
    ),
    Target(
        "h100", "sm_90", sms=132, clock_mhz=1980,  # [H100] SXM5; the highest boost clock
        dram_bytes_per_us=HBM * 3.352e6,  # [H100] HBM3
        l2_bytes=50 * MIB, l2_bytes_per_us=0.75 * 5120 * 1755,  # [H100] size; A100's width at the sustained clock
        tensor_flops_per_us=POWER_LIMITED * 989.4e6, tf32_flops_per_us=POWER_LIMITED * 494.7e6,  # [H100] SXM5
        fp32_flops_per_us=66.9e6,  # [H100] SXM5
        smem_per_sm_bytes=228 * KIB, smem_per_block_bytes=227 * KIB,  # [CC] 9.0
        link_bytes_per_us=LINK * 450e3,  # [H100] NVLink 4, one direction
    ),
    Target(
        "h200", "sm_90", sms=132, clock_mhz=1980,  # [H100] the same chip
        dram_bytes_per_us=4.27e6,  # [H200] copy, 0.89 of the datasheet's 4.8 TB/s
        l2_bytes=50 * MIB, l2_bytes_per_us=0.75 * 5120 * 1755,  # as H100
        tensor_flops_per_us=651e6, tf32_flops_per_us=POWER_LIMITED * 494.7e6,  # [H200] cuBLAS f16; [H100]
        fp32_flops_per_us=66.9e6,  # [H100] SXM5
        smem_per_sm_bytes=228 * KIB, smem_per_block_bytes=227 * KIB,  # [CC] 9.0
        link_bytes_per_us=LINK * 450e3,  # [H100] NVLink 4, one direction
    ),
    Target(
        "b200", "sm_100", sms=148, clock_mhz=1965,  # [B] as the driver reports them
        dram_bytes_per_us=HBM * 8.0e6,  # [B] HBM3e
        l2_bytes=126 * MIB, l2_bytes_per_us=0.65 * 5120 * 1965 * 148 / 108,  # [B] size; width estimated from A100's
        tensor_flops_per_us=POWER_LIMITED * 2250e6, tf32_flops_per_us=POWER_LIMITED * 1125e6,  # [B] HGX B200, dense
        fp32_flops_per_us=75e6,  # [B] HGX B200
        smem_per_sm_bytes=228 * KIB, smem_per_block_bytes=227 * KIB,  # [CC] 10.0
        link_bytes_per_us=LINK * 900e3,  # [B] NVLink 5, one direction
    ),
    Target(
        "rtx5090", "sm_120", sms=170, clock_mhz=2407,  # [B] RTX
        dram_bytes_per_us=GDDR * 1.792e6,  # [B] RTX, GDDR7
        l2_bytes=96 * MIB, l2_bytes_per_us=0.65 * 5120 * 2407 * 170 / 256,  # [B] RTX, size; width estimated
        tensor_flops_per_us=FULL_CLOCK * 209.5e6, tf32_flops_per_us=FULL_CLOCK * 104.8e6,  # [B] RTX, f32 accumulation
        fp32_flops_per_us=104.8e6,  # [B] RTX
        smem_per_sm_bytes=100 * KIB, smem_per_block_bytes=99 * KIB, warps_per_sm=48,  # [CC] 12.0
        link_bytes_per_us=LINK * 63e3,  # [B] PCIe 5 x16, one direction
    ),
)  # fmt: skip

DRIVER_FILE = Path("/proc/driver/nvidia/version")

DEFAULT = "h100"
"""What is planned for on a machine without a GPU."""

REPRESENTATIVE = {"sm_80": "a100", "sm_89": "rtx4090", "sm_90": "h100", "sm_100": "b200", "sm_120": "rtx5090"}
"""The GPU that an architecture's name stands for."""


def find_target(text: str) -> Target:
    """The GPU that a user means: a name in any spelling ("H200", "NVIDIA RTX 4090"), "sm_90", or "auto".

    "auto" is this machine's first GPU, and the default where there is none. Raises TargetError, which lists the names.
    """
    if not isinstance(text, str):  # type: ignore[redundant-expr]  # of a caller in Python
        raise TargetError(text, names())
    if text.strip().lower() == "auto":
        return local_target() or _named(DEFAULT)
    plain = _plain(text)
    for t in TARGETS:
        if t.name == plain.removesuffix("sxm").removesuffix("sxm5"):
            return t
    if (arch := re.sub(r"^sm(\d+)a?$", r"sm_\1", plain)) in REPRESENTATIVE:
        return _named(REPRESENTATIVE[arch])
    raise TargetError(text, names())


def names() -> tuple[str, ...]:
    """Everything that `find_target` takes, in its plainest spelling."""
    return ("auto", *(t.name for t in TARGETS), *REPRESENTATIVE)


def local_target() -> Target | None:
    """This machine's first GPU, or None without one that torch can use. Raises TargetError for an unknown architecture.

    A GPU that has no row takes the figures of its architecture's representative, scaled by multiprocessors.
    """
    if not torch_has_cuda() or (device := first_device()) is None:
        return None
    return from_device(device.name, device.arch, device.sms, device.l2_bytes)


def driver_version() -> str | None:
    """Version of the NVIDIA driver ("570.86.15"), or None where none is loaded. Needs no torch."""
    with contextlib.suppress(OSError):
        if match := re.search(r"Module\s.*?(\d+\.\d+(\.\d+)?)", DRIVER_FILE.read_text(encoding="utf-8")):
            return match[1]
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return answer.stdout.strip().splitlines()[0]
    return None


def chosen_target(name: str) -> tuple[Target, bool]:
    """The target of this name, and whether this machine's GPU is it. "auto" is this machine's, or the h100 where there
    is none. Raises TargetError."""
    local = local_target() if driver_version() is not None else None
    if name == "auto":
        return (local, True) if local is not None else (find_target("h100"), False)
    target = find_target(name)
    return target, local is not None and local.name == target.name


def from_device(name: str, arch: str, sms: int, l2_bytes: int) -> Target:
    """The row of the device that the driver describes so, or one made from its architecture's. Raises TargetError."""
    row = next((t for t in TARGETS if _plain(name).startswith(t.name) and t.arch == arch and t.sms == sms), None)
    if row is not None:
        return row
    if arch not in REPRESENTATIVE:
        raise TargetError(f"{name} ({arch})", names())
    like = _named(REPRESENTATIVE[arch])
    share = sms / like.sms
    return replace(
        like,
        name=_plain(name),
        sms=sms,
        l2_bytes=l2_bytes,
        dram_bytes_per_us=like.dram_bytes_per_us * share,
        l2_bytes_per_us=like.l2_bytes_per_us * share,
        tensor_flops_per_us=like.tensor_flops_per_us * share,
        tf32_flops_per_us=like.tf32_flops_per_us * share,
        fp32_flops_per_us=like.fp32_flops_per_us * share,
    )


def _named(name: str) -> Target:
    return next(t for t in TARGETS if t.name == name)


def _plain(text: str) -> str:
    """ "NVIDIA GeForce RTX 4090" -> "rtx4090"."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", text.lower())
