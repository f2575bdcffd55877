"""Texts that modules with kernels start with, as far as their kernels need them."""

from __future__ import annotations

import re

from mirage_cli.ir.ops import OPS

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
DESCRIPTORS = '''
def descriptor(x, shape, strides, box):
    """What reads x in boxes: of a copy, where x starts at no multiple of the 16 bytes that the hardware asks for."""
    if x.data_ptr() % 16:
        x = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
    return TensorDescriptor(x, shape, strides, box)
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
ENDED = '''
@triton.jit
def ended(x):
    """x, in what the compiler takes for a computation: a product that is waited for. Triton would leave it under way
    and let the next iteration overwrite what it may still read."""
    return tl.where(tl.program_id(0) >= 0, x, tl.full(x.shape, 1, x.dtype))
'''.strip()
"""What modules start with in which a product is to end in the iteration that starts it."""
BYTES = '''
@triton.jit
def byte_bits(x, shift: tl.constexpr, mask: tl.constexpr, sign: tl.constexpr, less, pure: tl.constexpr = False):
    """1024 + ((x >> shift) & mask ^ sign) - less of bytes, as float16, whose last bits it is; in bfloat16, which has
    seven of them, 128 in place of 1024. In the type of less, which Triton's interpreter gets as float32 in place of
    bfloat16. Four bytes at a time. What is said to be pure Triton moves behind the exchange that brings bytes to the
    threads that multiply them: they are read from shared memory one by one then, but where four lie side by side along
    the summed axis."""
    if INTERPRETED:
        raised: tl.constexpr = 1024 if less.dtype == tl.float16 else 128
        return ((((x.to(tl.int32) >> shift) & mask) ^ sign) + raised).to(less.dtype) - less
    elif less.dtype == tl.float16:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 n, a, b;
            and.b32 n, $3, 255;
            shr.u32 a, $2, n;
            lop3.b32 a, a, $4, $5, 0x6a;
            prmt.b32 b, a, 0x64646464, 0x4140;
            sub.rn.f16x2 $0, b, $6;
            prmt.b32 b, a, 0x64646464, 0x4342;
            sub.rn.f16x2 $1, b, $7;
            }""",
            "=r,=r,r,r,r,r,r,r",
            [x, tl.full((), shift, tl.uint8), tl.full((), mask, tl.uint8), tl.full((), sign, tl.uint8), less],
            tl.float16,
            pure,
            4,
        )
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 n, a, b, minus;
            mov.b32 minus, 0xbf80bf80;
            and.b32 n, $3, 255;
            shr.u32 a, $2, n;
            lop3.b32 a, a, $4, $5, 0x6a;
            prmt.b32 b, a, 0x43434343, 0x4140;
            fma.rn.bf16x2 $0, $6, minus, b;
            prmt.b32 b, a, 0x43434343, 0x4342;
            fma.rn.bf16x2 $1, $7, minus, b;
            }""",
            "=r,=r,r,r,r,r,r,r",
            [x, tl.full((), shift, tl.uint8), tl.full((), mask, tl.uint8), tl.full((), sign, tl.uint8), less],
            tl.bfloat16,
            pure,
            4,
        )
'''.strip()
"""What modules start with that compute in 16 bits with parts of bytes."""
PAIRS = '''
@triton.jit
def pair_bits(x, shift: tl.constexpr, mask: tl.constexpr, sign: tl.constexpr, less):
    """1024 + ((x >> shift) & mask ^ sign) - less of 16 bits each, as float16; 128 in place of 1024 as bfloat16. The
    last bits of 1024 + n * 2^places are those of n * 2^places, so what lies `places` above the start of a byte need not
    be shifted: its fraction with 2^places is exact. bfloat16 has too few bits for that. In the type of less, and two
    elements at a time, in a text that is said to be pure: Triton moves it behind the read of shared memory that brings
    each thread the elements that it multiplies."""
    places: tl.constexpr = shift % 8
    if INTERPRETED:
        raised: tl.constexpr = 1024 if less.dtype == tl.float16 else 128
        return ((((x.to(tl.int32) >> shift) & mask) ^ sign) + raised).to(less.dtype) - less
    elif less.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 n, a, minus;
            mov.b32 minus, 0xbf80bf80;
            and.b32 n, $2, 255;
            shr.u32 a, $1, n;
            lop3.b32 a, a, $3, $4, 0x6a;
            fma.rn.bf16x2 $0, $5, minus, a;
            }""",
            "=r,r,r,r,r,r",
            [x, tl.full((), shift, tl.int16), tl.full((), mask, tl.int16), tl.full((), sign + 0x4300, tl.int16), less],
            tl.bfloat16,
            True,
            2,
        )
    elif places == 0:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 n, a;
            and.b32 n, $2, 255;
            shr.u32 a, $1, n;
            lop3.b32 a, a, $3, $4, 0x6a;
            sub.rn.f16x2 $0, a, $5;
            }""",
            "=r,r,r,r,r,r",
            [x, tl.full((), shift, tl.int16), tl.full((), mask, tl.int16), tl.full((), sign + 0x6400, tl.int16), less],
            tl.float16,
            True,
            2,
        )
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 n, a;
            and.b32 n, $2, 255;
            shr.u32 a, $1, n;
            lop3.b32 a, a, $3, $4, 0x6a;
            fma.rn.f16x2 $0, a, $5, $6;
            }""",
            "=r,r,r,r,r,r,r",
            [
                x,
                tl.full((), shift - places, tl.int16),
                tl.full((), mask << places, tl.int16),
                tl.full((), (sign << places) + 0x6400, tl.int16),
                tl.full((), 1 / (1 << places), tl.float16),
                (1024 - (1024 >> places)) - less,
            ],
            tl.float16,
            True,
            2,
        )


@triton.jit
def pair_bytes(x, second: tl.constexpr):
    """The first or the second byte of each 16 bits, as bfloat16: 128 + its last seven bits, minus 128; minus 256 where
    it is negative. Two elements at a time, and pure, as `pair_bits`. Triton's interpreter gets float32."""
    if INTERPRETED:
        return (((x.to(tl.int32) >> (8 if second else 0)) & 255 ^ 128) - 128).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 n, x, a, less, one;
            and.b32 n, $2, 255;
            shr.u32 x, $1, n;
            lop3.b32 a, x, 0x007f007f, 0x43004300, 0xea;
            lop3.b32 less, x, 0x00800080, 0xc300c300, 0xea;
            mov.b32 one, 0x3f803f80;
            fma.rn.bf16x2 $0, a, one, less;
            }""",
            "=r,r,r",
            [x, tl.full((), 8 if second else 0, tl.int16)],
            tl.bfloat16,
            True,
            2,
        )


@triton.jit
def every_second(x, second: tl.constexpr):
    """The elements of x at even or, second, at odd positions."""
    even, odd = tl.split(tl.reshape(x, [x.shape[0] // 2, 2]))
    return odd if second else even


def aligned(x, to):
    """x, or a copy where it does not start at a multiple of so many bytes: of what is read by so many at a time."""
    if x.data_ptr() % to:
        x = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
    return x
'''.strip()
"""What modules start with whose products take bytes two at a time."""
FLOAT8 = '''
@triton.jit
def dot_float8(a, b, terms: tl.constexpr):
    """a · b of float8, for float32 to add to. While matrix units add up, those of sm_89 and sm_90 keep 13 bits behind
    the point of the largest number: they are to add up so many terms, and float32 the rest. Triton adds in the matrix
    units what is added to a product, unless it is told a number of terms, as it is for sm_90 where none is named."""
    if INTERPRETED:
        return tl.dot(a, b)
    elif tl.target_info.cuda_capability_geq(10, 0) and not tl.target_info.cuda_capability_geq(12, 0):
        return tl.dot(a, b)
    elif tl.target_info.cuda_capability_geq(9, 0) and a.shape[-1] <= terms:
        return tl.dot(a, b)
    else:
        return tl.dot(a, b, max_num_imprecise_acc=min(terms, a.shape[-1]))
'''.strip()
"""What modules start with that multiply float8 on the matrix units.

Their products are exact; of each, and of what they are added to, the bits 2^-13 below the first of the largest are cut
off (Zhang et al., SageAttention2, 2024, section 3.4; DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.3.2).
"""
IN_PARTS = '''
@triton.jit
def first_bits(x, kept: tl.constexpr):
    """A float32 without its last bits."""
    return (x.to(tl.int32, bitcast=True) & kept).to(tl.float32, bitcast=True)


@triton.jit
def behind(x, first):
    """What is left of a float32 behind its first bits: of an infinity, nothing."""
    return tl.where(x == first, 0.0, x - first)


@triton.jit
def dot_in_bfloat16(a, b, side: tl.constexpr):
    """a · b of float32 and bfloat16: three times 8 bits of the float32, which are all that it has. What is not the
    first is nothing beside an infinity, which zeros would make no number. side: 0 where a is the float32, 1 where b
    is."""
    if side == 0:
        first = first_bits(a, -0x10000)
        second = first_bits(behind(a, first), -0x10000)
        third = behind(a, first) - second
        rest = tl.dot(third.to(MATRIX_TYPE), b)
        rest = tl.dot(second.to(MATRIX_TYPE), b, rest)
        whole = tl.dot(first.to(MATRIX_TYPE), b)
    else:
        first = first_bits(b, -0x10000)
        second = first_bits(behind(b, first), -0x10000)
        third = behind(b, first) - second
        rest = tl.dot(a, third.to(MATRIX_TYPE))
        rest = tl.dot(a, second.to(MATRIX_TYPE), rest)
        whole = tl.dot(a, first.to(MATRIX_TYPE))
    return whole + tl.where(rest == rest, rest, 0.0)


@triton.jit
def dot_in_tf32(a, b, side: tl.constexpr):
    """a · b of float32 and float16: twice 11 bits of the float32, as TF32, which holds float16 too."""
    if side == 0:
        first = first_bits(a, -0x2000)
        rest = tl.dot(first_bits(behind(a, first), -0x2000), b.to(tl.float32), input_precision="tf32")
        whole = tl.dot(first, b.to(tl.float32), input_precision="tf32")
    else:
        first = first_bits(b, -0x2000)
        rest = tl.dot(a.to(tl.float32), first_bits(behind(b, first), -0x2000), input_precision="tf32")
        whole = tl.dot(a.to(tl.float32), first, input_precision="tf32")
    return whole + tl.where(rest == rest, rest, 0.0)
'''.strip()
"""What modules start with that multiply float32 by smaller types on the matrix units (after 3xTF32: Ootomo and Yokota,
"Recovering single precision accuracy from Tensor Cores", 2022, of which the parts of an exact operand need no part)."""
FLOAT8_STORED = '''
@triton.jit
def float8_bits(x, digits: tl.constexpr, bias: tl.constexpr):
    """The bits of |x| rounded to nearest, in a type of which so many are behind the point, as if its exponents did not
    end. What is added to a number below the least normal one leaves these bits as its last."""
    bits = tl.abs(x).to(tl.int32, bitcast=True)
    half = (1 << (22 - digits)) - 1 + ((bits >> (23 - digits)) & 1)
    normal = ((bits + half) >> (23 - digits)) - ((127 - bias) << digits)
    added = tl.full((), (151 - bias - digits) << 23, tl.int32)
    small = (tl.abs(x) + added.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True) - added
    return tl.where(bits < (128 - bias) << 23, small, normal)


@triton.jit
def float8_of(x, digits: tl.constexpr, bias: tl.constexpr, beyond: tl.constexpr):
    """The bits of x rounded to nearest in such a type; those of what is beyond its numbers are named."""
    bits = tl.where(x == x, tl.minimum(float8_bits(x, digits, bias), beyond), 0x7F)
    return (bits | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)).to(tl.int8)


@triton.jit
def to_float8_e4m3fn(x):
    """x rounded to nearest; for what is beyond 448, the largest number, that. Before sm_90, Triton would cut off what
    float16 has not, and its interpreter cuts off all."""
    if INTERPRETED:
        rounded = float8_of(x, 3, 7, 0x7E).to(tl.float8e4nv, bitcast=True)
    elif tl.target_info.cuda_capability_geq(9, 0):
        rounded = x.to(tl.float8e4nv)
    else:
        rounded = float8_of(x, 3, 7, 0x7E).to(tl.float8e4nv, bitcast=True)
    return rounded


@triton.jit
def to_float8_e5m2(x):
    """The same; for what is beyond 57344, an infinity, in whose place the hardware has that number."""
    if INTERPRETED:
        rounded = float8_of(x, 2, 15, 0x7C).to(tl.float8e5, bitcast=True)
    elif tl.target_info.cuda_capability_geq(9, 0):
        infinite = tl.where(x > 0.0, 0x7C, -4).to(tl.int8)
        bits = tl.where(tl.abs(x) >= 61440.0, infinite, x.to(tl.float8e5).to(tl.int8, bitcast=True))
        rounded = bits.to(tl.float8e5, bitcast=True)
    else:
        rounded = float8_of(x, 2, 15, 0x7C).to(tl.float8e5, bitcast=True)
    return rounded
'''.strip()
"""What modules start with that store float8."""
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
HIDDEN_BOUND = '''
@triton.jit
def hidden_bound(x):
    """`bound`, of which the compiler does not know how it is computed, from sm_90 on."""
    if INTERPRETED:
        return bound(x)
    elif tl.target_info.cuda_capability_geq(9, 0):
        end = x + tl.zeros((), tl.int32)
        if end.dtype == tl.int64:
            return tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [end], tl.int64, False, 1)
        else:
            return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [end], tl.int32, False, 1)
    else:
        return x
'''.strip()
"""What modules start with in which a loop goes on where another has ended, and both multiply. Where the compiler finds
that the second has one iteration, or two, it has no loop for it; then the assembler takes its first product for one
that may overwrite accumulators of the first loop's last, and has every wgmma of the kernel wait for the one before it
(C7515, of CUDA 12.8)."""
QUOTIENT_OF_EACH = """
abs.f32 a, {x};
setp.ge.f32 p, a, {least};
setp.le.and.f32 p, a, 0f71800000, p;
setp.eq.or.b32 p, {x}, 0, p;
and.pred all, all, p;
mul.rn.f32 q, {x}, {inverse};
fma.rn.f32 e, {less}, q, {x};
fma.rn.f32 q, e, {inverse}, q;
fma.rn.f32 e, {less}, q, {x};
fma.rn.f32 {out}, e, {inverse}, q;
""".strip()
AT_ONCE = 4
"""Quotients that share a branch. One H200: two passes of attention over 4096 x 255, of which the second divides, took
362 us by `div.rn`, 498 with a branch for each quotient, and 308 with one for four."""


def _quotients() -> str:
    """The text of AT_ONCE of them. Registers are named by argument: out, x, y, inverse, less, least."""
    names = ["out", "x", "y", "inverse", "less", "least"]
    each = [{n: f"${i + AT_ONCE * j}" for j, n in enumerate(names)} for i in range(AT_ONCE)]
    lines = [".reg .pred p, all;", ".reg .f32 a, q, e;", "setp.eq.b32 all, 0, 0;"]
    lines += [line for r in each for line in QUOTIENT_OF_EACH.format(**r).splitlines()]
    lines += ["@all bra DONE;", *("div.rn.f32 {out}, {x}, {y};".format(**r) for r in each), "DONE:"]
    return "\n".join(" " * 12 + line for line in ["{", *lines, "}"]).lstrip()


QUOTIENT = f'''
@triton.jit
def quotient(x, y):
    """x / y, rounded to nearest, of a y that is the same for many x: two steps from the product with 1 / y, which is
    worked out once (P. Markstein, IA-64 and Elementary Functions, 2000). Where steps would be rounded or overflow, as
    they may for an x or a y far from 1, and for an infinity or -0, the hardware's own way is taken; 0 is in order."""
    if INTERPRETED:
        return tl.div_rn(x, y)
    elif x.numel < {AT_ONCE}:
        return tl.div_rn(x, y)
    else:
        near = (tl.abs(y) >= {2.0**-20!r}) & (tl.abs(y) <= {2.0**20!r})
        other = tl.where((y == y) & (y != 0.0), tl.where(y < 0.0, -0.0, 0.0), float("nan"))  # what 0 is multiplied by
        inverse = tl.where(near, tl.div_rn(1.0, y), other)
        less = tl.where(near, -y, 0.0)
        least = tl.where(near, {2.0**-102!r}, float("inf"))
        return tl.inline_asm_elementwise(
            """{_quotients()}""",
            "{",".join(["=&r"] * AT_ONCE + ["r"] * 5 * AT_ONCE)}",
            [x, y, inverse, less, least],
            tl.float32,
            True,
            {AT_ONCE},
        )
'''.strip()
"""What modules start with that divide many elements by one. `div.rn` calls a function for every x of 0, as masks and
exponentials make them."""
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
SCANS = """
@triton.jit
def running_largest(x, axis: tl.constexpr, back: tl.constexpr):
    return tl.associative_scan(x, axis, larger, reverse=back)


@triton.jit
def running_least(x, axis: tl.constexpr, back: tl.constexpr):
    return tl.associative_scan(x, axis, smaller, reverse=back)
""".strip()
"""What modules start with, behind the same, that have maxima or minima up to each position."""
RECURRENCE = """
@triton.jit
def after(a, x, b, y):
    return a * b, x * b + y


@triton.jit
def recurrence(x, decay, axis: tl.constexpr, back: tl.constexpr):
    return tl.associative_scan((decay, x), axis, after, reverse=back)[1]
""".strip()
"""What modules start with that have h[t] = decay[t] * h[t - 1] + x[t]."""
EXPONENTIALS = """
@triton.jit
def shift_of(m):
    return tl.where(tl.abs(m) == float("inf"), 0.0, m)


@triton.jit
def moved_to(x, m, shift):
    # of -inf alone the sum is 0, however far the shift is
    return tl.where(m == float("-inf"), 0.0, x * tl.exp(shift_of(m) - shift))


@triton.jit
def beside(m, x, n, y):
    most = tl.maximum(m, n, propagate_nan=tl.PropagateNan.ALL)
    shift = shift_of(most)
    return most, moved_to(x, m, shift) + moved_to(y, n, shift)


@triton.jit
def running_exponentials(x, axis: tl.constexpr, back: tl.constexpr):
    return tl.associative_scan((x, tl.exp(x - shift_of(x))), axis, beside, reverse=back)[1]
""".strip()
"""What modules start with that have sums of exponentials up to each position, relative to the largest."""
FOURTHS = """
@triton.jit
def split_in_four(x):
    even, odd = tl.split(x)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth
""".strip()
"""What modules start with that load four values whose elements lie in turns."""
EIGHTHS = """
@triton.jit
def split_in_eight(x):
    even, odd = tl.split(x)
    first, third, fifth, seventh = split_in_four(even)
    second, fourth, sixth, eighth = split_in_four(odd)
    return first, second, third, fourth, fifth, sixth, seventh, eighth
""".strip()
"""What is behind that where they load eight."""
OPERATORS = {name: row.helper for row in OPS.values() for name in re.findall(r"^def (\w+)", row.helper, re.MULTILINE)}
"""What modules start with that call one of these functions, by its name."""
HELPERS = {
    *OPERATORS,
    "MATRIX_TYPE",
    "INTERPRETED",
    "to_bfloat16",
    "byte_bits",
    "pair_bits",
    "pair_bytes",
    "every_second",
    "split_in_four",
    "split_in_eight",
    "aligned",
    "ended",
    "dot_float8",
    "first_bits",
    "behind",
    "dot_in_bfloat16",
    "dot_in_tf32",
    "float8_bits",
    "float8_of",
    "to_float8_e4m3fn",
    "to_float8_e5m2",
    "wait_for_data",
    "release_next",
    "release_before",
    "fetch",
    "bound",
    "hidden_bound",
    "quotient",
    "larger",
    "smaller",
    "largest",
    "least",
    "running_largest",
    "running_least",
    "can_overlap",
    "descriptor",
    "TensorDescriptor",
    "functools",
}
"""Names of a module that the texts above bring."""
