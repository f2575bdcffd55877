"""Blocks of a kernel as Triton text: their names, axes and offsets, and which lanes of them exist.

Every value is a block with one axis for each of its dimensions whose block size is over 1, in the schedule's order;
dimensions with block size 1 are scalars. Blocks are powers of two, so a block may reach past the end of a dimension.
What lanes out there hold is not defined, except where it is known to be zero; so every reduction masks its operand
unless it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from mirage_cli.codegen.writing import spelled
from mirage_cli.ir.mugraph import Kernel, MuGraph, split_axis
from mirage_cli.ir.placement import place
from mirage_cli.ir.program import Tensor
from mirage_cli.ir.schedule import KernelSchedule, block_sizes

TRITON_TYPE = {"float16": "tl.float16", "bfloat16": "tl.bfloat16", "float32": "tl.float32", "int32": "tl.int32"}
INTERPRETED = "INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)"
"""What the helpers below need."""
OVERLAP = '''
@functools.cache
def can_overlap():
    """Whether this GPU starts kernels before those in front have ended, if they ask for it (sm_90 and later)."""
    return bool(INTERPRETED) or triton.runtime.driver.active.get_current_target().arch >= 90


@triton.jit
def wait_for_data():
    """Until the kernel before this one, beside which it has started, has ended and its results can be read."""
    if not INTERPRETED:
        if tl.target_info.cuda_capability_geq(9, 0):
            tl.extra.cuda.gdc_wait()


@triton.jit
def release_next():
    """Lets the next kernel start on free processors, if it is one that waits for this one's data by itself."""
    if not INTERPRETED:
        if tl.target_info.cuda_capability_geq(9, 0):
            tl.extra.cuda.gdc_launch_dependents()
'''.strip()
"""What modules start with whose kernels overlap (programmatic dependent launch, sm_90 and later)."""
RELEASE_BEFORE = '''
@triton.jit
def release_before(left, most):
    """Lets the next kernel start if no more than `most` of a loop is left; once is as good as several times."""
    if not INTERPRETED:
        if tl.target_info.cuda_capability_geq(9, 0):
            tl.inline_asm_elementwise(
                "{.reg .pred p; setp.le.s32 p, $1, $2; @p griddepcontrol.launch_dependents; mov.u32 $0, 0;}",
                "=r,r,r",
                [left, most],
                tl.int32,
                False,
                1,
            )
'''.strip()
"""What modules start with whose kernels let the next one start in the last iterations of a loop."""
FETCH = '''
@triton.jit
def fetch(pointers, read: tl.constexpr):
    """Has the cache lines behind these pointers brought into the L2, and does not wait for them."""
    if not INTERPRETED:
        at = pointers.to(tl.uint64)
        if read:
            tl.inline_asm_elementwise("ld.volatile.global.L2::128B.u8 $0, [$1];", "=r,l", [at], tl.int32, False, 1)
        else:
            tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], tl.int32, False, 1)
'''.strip()
"""What modules start with whose kernels fetch inputs while they wait for the kernel in front.

Reading a byte of a line brings it nearer than PTX's prefetch does (one partition of the L2 caches what the other holds,
for the multiprocessors on its side), but other reads of the multiprocessor have to wait for it. A prefetch keeps
nothing waiting, and is dropped where there are many. One H200: 128 blocks that read 64 KB each take 5.1 us from memory,
3.2 behind prefetches by the same blocks, and 2.2 behind reads of a byte in each line; with 192 KB 7.8, 6.8 and 3.9. A
product of 16x256x4096 whose inputs are read takes 2.26 us, and 2.47 where they are prefetched; but decoding at batch 8,
with a tile of a loop fetched by each block, 20.1 us by reads and 19.3 by prefetches: with reads its loop ends 1.3 us
sooner, and the merge of the call in front, on the same multiprocessors, as much later. So reads are a choice of the
schedule, and the tiles of loops are always prefetched.
"""
LINE_BYTES = 128
"""A cache line (CUDA C++ programming guide)."""
DESCRIPTORS = '''
def descriptor(x, shape, strides, box):
    """What reads x in boxes: of a copy, where x starts at no multiple of the 16 bytes that the hardware asks for."""
    return TensorDescriptor(x if x.data_ptr() % 16 == 0 else x.clone(), shape, strides, box)
'''.strip()
"""What modules start with whose kernels have tensor descriptors."""
BFLOAT16 = '''
# What tl.dot is given. Triton's interpreter would multiply the bits of bfloat16: there it is given float32.
MATRIX_TYPE = tl.constexpr(tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16)


@triton.jit
def to_bfloat16(x):
    """x rounded to nearest. Triton's interpreter would cut bits off, and lose numbers below 1e-38: there it is done
    on the bits."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        bits = tl.where(x == x, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7FC0)
        rounded = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        rounded = x.to(tl.bfloat16)
    return rounded
'''.strip()
"""What modules with bfloat16 kernels start with."""
BOUND = '''
@triton.jit
def bound(x):
    """x, as a bound of a loop. Triton's interpreter keeps a number as an array of one element, and up to Triton 3.6 a
    range would have numpy make an integer of it, which numpy refuses from 2.4 on."""
    if INTERPRETED:
        return tl.full((), x, tl.int64).handle.data.item()
    else:
        return x
'''.strip()
"""What modules start with whose loops have bounds that are computed."""
EXTREMA = '''
@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(x, axis: tl.constexpr):
    """The maximum along an axis, NaN where there is one, as in PyTorch; tl.max leaves NaNs out."""
    if INTERPRETED:  # which would call `larger` for every element
        return tl.where(tl.sum((x != x).to(tl.int32), axis) > 0, float("nan"), tl.max(x, axis))
    else:
        return tl.reduce(x, axis, larger)


@triton.jit
def least(x, axis: tl.constexpr):
    """The minimum along an axis, NaN where there is one."""
    if INTERPRETED:
        return tl.where(tl.sum((x != x).to(tl.int32), axis) > 0, float("nan"), tl.min(x, axis))
    else:
        return tl.reduce(x, axis, smaller)
'''.strip()
"""What modules start with that have maxima or minima of floating-point numbers along an axis."""
MAX_PRODUCT = 1 << 17
"""Elements of the broadcast product that stands in for tl.dot where an axis is too small for it."""
MAX_ELEMENTS = 1 << 17
"""Elements of any one block; Triton's own limit is 2^20."""
HELPERS = {
    "MATRIX_TYPE",
    "INTERPRETED",
    "to_bfloat16",
    "wait_for_data",
    "release_next",
    "release_before",
    "fetch",
    "bound",
    "larger",
    "smaller",
    "largest",
    "least",
    "can_overlap",
    "descriptor",
    "TensorDescriptor",
    "functools",
}
"""Names of a module that the texts above bring."""
RESERVED = HELPERS | {"tl", "triton", "range", "pid", "chunk", "step", "min", "max", "float"}
OWN_PREFIXES = ("i_", "in_", "s_", "t_", "first_", "rows_", "begin_", "end_", "whole_", "rest_", "SIZE_", "BLOCK_")
OWN_SUFFIXES = ("_ptr", "_desc", "_next", "_scale", "_shift")


def _is_own(name: str) -> bool:
    """Whether the text of a kernel gives this name a meaning of its own."""
    return name in RESERVED or name.startswith(OWN_PREFIXES) or name.endswith(OWN_SUFFIXES)


class EmitError(Exception):
    """This schedule cannot be written in Triton. `reason` is a short constant, for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Blocks:
    """The text of one kernel as it grows, and what is known about its blocks."""

    def __init__(self, graph: MuGraph, kernel: Kernel, schedule: KernelSchedule, sizes: Mapping[str, int]) -> None:
        self.graph, self.kernel, self.schedule, self.sizes = graph, kernel, schedule, sizes
        self.tensors = graph.tensors()
        self.block = block_sizes(kernel, schedule, sizes)
        self.order = [d for d in schedule.order if d in self.block]
        self.dims = kernel.value_dims()
        self.eqns = {e.out: e for e in kernel.body}
        self.loads = {x.out: x for x in kernel.loads}
        self.placement = place(kernel)
        self.padded = {d for d in self.block if sizes[d] % self.block[d]}
        self.lines: list[str] = []
        self.depth = 1
        self.exact = graph.exact()[kernel.name]
        self.single = "float32" in {graph.dtype, *(t.dtype for t in (*graph.inputs, *graph.outputs))}
        self.clean: dict[str, frozenset[str]] = {}  # padded dimensions along which a value is known to be zero
        self.names = spelled(self.dims, _is_own, "v_")
        self.starts: dict[str, str] = {}  # where the current block along a dimension starts
        self.deferred: set[str] = set()  # accumulators that are reduced across lanes only after their loop
        self.buffers = tuple(dict.fromkeys([x.buffer for x in kernel.loads] + [s.buffer for s in kernel.stores]))

    def line(self, text: str, comment: str = "") -> None:
        self.lines.append("    " * self.depth + text + (f"  # {comment}" if comment else ""))

    def name(self, value: str) -> str:
        """The Python name of a value: its own, unless that is taken."""
        return self.names[value]

    def axes(self, dims: Iterable[str]) -> list[str]:
        """The axes of a block: the dimensions that are not scalars, in the schedule's order."""
        dims = set(dims)
        return [d for d in self.order if d in dims and self.block[d] > 1]

    def shape(self, axes: list[str]) -> str:
        return "[" + ", ".join(f"BLOCK_{d}" for d in axes) + "]"

    def count(self, axes: Iterable[str]) -> int:
        return prod(self.block[d] for d in axes)

    @staticmethod
    def spread(text: str, have: list[str], want: list[str]) -> str:
        """A block with the axes `have` made to broadcast against `want`, of which they are a part in order."""
        if have == want or not have:
            return text
        return text + "[" + ", ".join(":" if d in have else "None" for d in want) + "]"

    def positions(self, d: str, start: str, moves: bool) -> None:
        """`i_d`, the positions of the current block along d, and `in_d`, which of them exist."""
        wide = ".to(tl.int64)" if moves and self.huge() else ""
        self.starts[d] = start if moves else "0"
        if self.block[d] == 1:
            self.line(f"i_{d} = {start}{wide}" if moves else f"i_{d} = 0")
            return
        lanes = f"tl.arange(0, BLOCK_{d})"
        if moves and wide:
            start = f"({start}){wide}"
        self.line(f"i_{d} = {start} + {lanes}" if moves else f"i_{d} = {lanes}")
        if d in self.padded:
            self.line(f"in_{d} = i_{d} < SIZE_{d}")

    def huge(self) -> bool:
        """Whether offsets into some tensor need 64 bits."""
        return any(prod(self.sizes[a] for a in self.tensors[b].dims) >= 1 << 31 for b in self.buffers)

    def mask(self, dims: Iterable[str], want: list[str]) -> str:
        """The conjunction of `in_d` over these dimensions, as a block that broadcasts against `want`."""
        parts = [self.spread(f"in_{d}", [d], want) for d in want if d in set(dims) & self.padded]
        return " & ".join(f"({p})" if len(parts) > 1 else p for p in parts)

    def offsets(
        self, tensor: Tensor, dims: tuple[str, ...], want: list[str], at: Mapping[str, str] | None = None
    ) -> str:
        """Row-major offsets of a block; `dims` says what this kernel calls each axis of the tensor.

        at: positions along some dimensions, where they are not those of the current block.
        """
        terms: list[str] = []
        stride = 1
        for axis, d in reversed(list(zip(tensor.dims, dims, strict=True))):
            chunk = self.kernel.split is not None and d == split_axis(self.kernel.split)
            position = (at or {}).get(d, f"i_{d}")
            text = "chunk" if chunk else self.spread(position, [d] if d in want else [], want)
            if not chunk and self.block[d] == 1 and self.sizes[d] == 1:
                text = ""
            if text:
                terms.append(text if stride == 1 else f"{text} * {stride}")
            stride *= self.sizes[axis]
        return " + ".join(reversed(terms)) or "0"

    def type_of(self, value: str) -> str:
        """The element type of a value: of its tensor for a load, else float32, int32 or bool."""
        if value in self.loads:
            return self.tensors[self.loads[value].buffer].dtype
        return {"float": "float32", "int": "int32", "bool": "bool"}[self.eqns[value].type]

    def masked(self, text: str, axes: list[str], dims: Iterable[str], clean: frozenset[str], identity: str) -> str:
        """The block with `identity` where it lies past the end of one of these dimensions."""
        dirty = [d for d in dims if d in self.padded and d not in clean]
        mask = self.mask(dirty, axes)
        return f"tl.where({mask}, {text}, {identity})" if mask else text

    @staticmethod
    def cast(text: str, kind: str, dtype: str) -> str:
        if (kind, dtype) == ("float32", "bfloat16"):
            return f"to_bfloat16({text})"
        return f"{text}.to({TRITON_TYPE[dtype]})"

    @staticmethod
    def permuted(text: str, have: list[str], want: list[str]) -> str:
        if have == want:
            return text
        return f"tl.permute({text}, ({', '.join(str(have.index(d)) for d in want)}))"

    def as_float(self, value: str) -> str:
        return self.name(value) + ("" if self.type_of(value) == "float32" else ".to(tl.float32)")
