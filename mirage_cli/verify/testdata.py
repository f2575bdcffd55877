"""Test data of the floating-point judgement. It needs torch alone: exported kernels carry this text with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mirage_cli.ir.drawn import PADDED, Spread, skewed

LARGEST = {
    torch.float16: 65504.0,
    torch.float8_e4m3fn: 448.0,
    torch.float8_e5m2: 57344.0,
}  # other types: their range is not what limits them


@dataclass(frozen=True)
class Distribution:
    """One kind of test data. `change(x, scale, contracted)` turns unit normal float64 values into it.

    scale: the deviation that the spec asks for. contracted: terms in the longest contraction of the program.
    elements: of the whole input, of which x may be some rows.
    outlier: the value of one element of the first floating-point input.
    ends: what the last elements of each axis are multiplied by, so that a sum without its last term is another.
    """

    name: str
    doc: str
    change: Callable[[torch.Tensor, float, int, int], torch.Tensor]
    outlier: float | None = None
    ends: float = 1.0


def products_up_to(peak: float, contracted: int, elements: int, x: torch.Tensor) -> torch.Tensor:
    """Values whose contraction with others like them hardly ever goes beyond `peak`.

    The largest of n normal values is about sqrt(2 ln n) deviations; n is taken from the rows that the input has.
    """
    rows = max(1.0, elements / contracted)
    deviations = max(4.5, math.sqrt(4 * math.log(rows)) + 0.8)
    return x * math.sqrt(peak / (deviations * math.sqrt(contracted)))


def equal_rows(x: torch.Tensor) -> torch.Tensor:
    return x[..., :1].expand(x.shape).clone() if x.dim() else x


DISTRIBUTIONS = (
    Distribution("normal", "normal, with the deviation of the spec", lambda x, scale, *_: x * scale),
    Distribution(
        "large", "products up to ±500: exp overflows float32", lambda x, _, k, n: products_up_to(500, k, n, x)
    ),
    Distribution("huge", "products up to ±60000, float16's end", lambda x, _, k, n: products_up_to(60000, k, n, x)),
    Distribution("equal rows", "every row holds one value", lambda x, scale, *_: equal_rows(x) * scale),
    # one activation of 10000: its product with one normal value is still within float16
    Distribution("outlier", "one value of 10000 in the first input", lambda x, scale, *_: x * scale, outlier=1e4),
    Distribution("tiny", "deviation 1e-6: float16's subnormals; large ends", lambda x, *_: x * 1e-6, ends=8.0),
    Distribution("large mean", "mean 100, deviation 1, times the spec's", lambda x, scale, *_: (x + 100) * scale),
)


SEVERAL = 4
"""Integers from which on the least, the one behind it and the largest are among them: lengths of no, one and all
positions."""


def integers(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    below: int,
    drawn: str,
    longest: int,
    g: torch.Generator,
    timed: bool = False,
) -> torch.Tensor:
    """Integers from 0 on, of 8 bits from the least on, where `below` is 0, and of 32 bits drawn; see `draw`. The ends
    are among several.

    timed: whether figures of speed count. A single one is the largest then: it is the position of a token, say, and a
    call takes longest there; drawn at random, it would say how long a call takes somewhere.
    """
    count = math.prod(shape)
    if drawn == "distinct":
        return torch.randperm(below, generator=g, device=g.device)[:count].reshape(shape).to(dtype)
    if drawn == "skewed":
        some = torch.tensor(skewed(count, below or longest), dtype=dtype, device=g.device)
        return some[torch.randperm(count, generator=g, device=g.device)].reshape(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g, device=g.device).bool()
    low, high = (-128, 128) if dtype == torch.int8 and not below else (0, below or longest)
    if drawn == "bits":
        low, high = -(1 << 31), 1 << 31
    some = torch.randint(low, high, (count,), generator=g, device=g.device, dtype=dtype)
    if timed and count == 1:
        some.fill_(high - 1)
    if count >= SEVERAL:
        ends = torch.tensor([low, min(low + 1, high - 1), high - 1], dtype=dtype, device=g.device)
        some[torch.randperm(SEVERAL, generator=g, device=g.device)[: len(ends)] * (count // SEVERAL)] = ends
    return (some.sort().values if drawn == "sorted" else some).view(shape)


def with_padding(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """Integers, some of them -1 instead: the last, and others here and there."""
    nothing = torch.randint(0, PADDED, x.shape, generator=g, device=x.device) == 0
    if x.numel() > 1:
        nothing.view(-1)[-1] = True
    return x.masked_fill(nothing, -1)


DRAWN_ELEMENTS = 1 << 24
"""About how many are drawn at a time, in float64."""


def laid_out(x: torch.Tensor, strides: Sequence[int] | None) -> torch.Tensor:
    """The tensor with these strides, if there are any. In the gaps lies NaN: nothing reads that."""
    if strides is None:
        return x
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
    memory = torch.zeros(span, device=x.device, dtype=x.dtype)
    if x.dtype.is_floating_point:
        memory.view(torch.uint8).fill_(0xFF)  # a NaN of every type
    return memory.as_strided(x.shape, strides).copy_(x)


def memory_of(x: torch.Tensor) -> torch.Tensor:
    """All elements from the first of a tensor to its last, those in gaps among them."""
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,))


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """Of float8, for which torch has little arithmetic, the bytes; other tensors as they are."""
    return x.view(torch.uint8) if x.dtype.is_floating_point and x.element_size() == 1 else x


def copied(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, and the same in the gaps."""
    return memory_of(x).clone().as_strided(x.shape, x.stride())


def draw(
    kind: Distribution,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    spreads: Sequence[Spread],
    contracted: int,
    device: torch.device,
    seed: int,
    strides: Sequence[Sequence[int] | None] = (),
) -> list[torch.Tensor]:
    """Inputs of one distribution.

    spreads: of floats, the deviation; of integers, what they are less than, how they are drawn, and whether some are
    -1 instead. Where the first is 0, those of 8 bits have their whole range, and others are less than the longest axis
    of all. strides: None for an input that is contiguous, () where all are.
    """
    g = torch.Generator(device=device).manual_seed(seed)
    longest = max([2, *(n for shape in shapes for n in shape)])
    inputs: list[torch.Tensor] = []
    outlier = kind.outlier
    for shape, steps, dtype, scale in zip(shapes, strides or [None] * len(shapes), dtypes, spreads, strict=True):
        if not dtype.is_floating_point or isinstance(scale, tuple):
            below, drawn, padded = scale if isinstance(scale, tuple) else (0, "evenly", False)
            some = integers(shape, dtype, below, drawn, longest, g, kind is DISTRIBUTIONS[0])
            inputs.append(laid_out(with_padding(some, g) if padded else some, steps))
            continue
        x = torch.empty(shape, device=device, dtype=dtype)
        most = LARGEST.get(dtype, math.inf)
        rows = x.view(-1, x.shape[-1]) if x.numel() and x.dim() > 1 else x.view(1, -1)
        for some in rows.split(max(1, DRAWN_ELEMENTS // max(1, rows.shape[-1]))):
            drawn = torch.randn(some.shape, generator=g, device=device, dtype=torch.float64)
            changed = kind.change(drawn, scale, contracted, x.numel())
            some.copy_(changed.clamp_(-most, most) if math.isfinite(most) else changed)
        for last in (x.select(d, -1) for d, n in enumerate(shape) if n > 1 and kind.ends != 1.0):
            last.copy_(last.float() * kind.ends)  # float8 has no products of its own
        if outlier is not None:
            x.view(-1)[x.numel() // 2] = min(outlier, most)
            outlier = None
        inputs.append(laid_out(x, steps))
    return inputs
