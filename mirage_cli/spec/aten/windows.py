"""ATen's operators on pictures: convolution, pooling, interpolation. Their windows are accesses."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

import numpy as np

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Axis, Dim, Part, Trace, Unsupported
from mirage_cli.spec.aten.operands import MOST_COMPARED, along_positions, both, trailing
from mirage_cli.spec.aten.row import Rows, overloadless
from mirage_cli.spec.aten.shapes import pad, repeat_interleave, squeeze, unsqueeze
from mirage_cli.spec.graph import Value

aten = Rows()


def each(x: Any, rank: int) -> list[Any]:
    """A number for each axis of a picture."""
    values = x if isinstance(x, list) else [x]
    return values * rank if len(values) == 1 else values


def windows(
    x: Array, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any, shape: Sequence[int], outside: float
) -> Array:
    """x[b, c, y, ...] as [b, c, y', ..., i, ...]: what each place of the result sees."""
    rank = len(kernel)
    parts, dims = p.whole(x)[:2], [*x.dims[:2]]
    steps = zip(kernel, *(each(v, rank) for v in (stride, padding, dilation)), shape, strict=True)
    inner: list[Dim] = []
    for size, step, before, apart, n in steps:
        place, tap = axes(n), axes(size)
        parts.append(([(place, step), (tap, apart)], -before))
        dims.append(place)
        inner.append(tap)
    return p.read(x, parts, [*dims, *inner], outside)


@aten("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution", products=1, with_node=True)
def _convolution(_t: Trace, node: Any, x: Array, weight: Array, bias: Any = None, stride: Any = 1, padding: Any = 0,
                 dilation: Any = 1, *rest: Any) -> Array:  # fmt: skip
    native = overloadless(node.target) == "aten.convolution"
    groups = rest[-1] if rest else 1
    out, rank = tuple(node.meta["val"].shape), len(weight.dims) - 2
    if len(x.dims) == rank + 1:
        x, out = unsqueeze(x, 0), (1, *out)
    if native and rest and rest[0]:
        made = transposed(x, weight, stride, padding, dilation, out, groups)
    else:
        if isinstance(padding, str):  # what there is an odd one of stands behind
            reach = [d * (k - 1) for d, k in zip(each(dilation, rank), weight.shape[2:], strict=True)]
            padding = [n // 2 if padding == "same" else 0 for n in reach]
        seen = windows(x, weight.shape[2:], stride, padding, dilation, out[2:], 0.0)
        made = by_groups(CONVOLVED, seen, weight, groups, rank)
        made = p.reshaped(made, out)
    made = made if bias is None else both(operator.add, made, trailing(bias, rank))
    return made if len(node.meta["val"].shape) == rank + 2 else squeeze(made, [0])


CONVOLVED = "bgc{places}{taps},goc{taps}->bgo{places}"


def with_places(equation: str, rank: int) -> str:
    """An equation for `einsum`, of pictures of so many axes."""
    return equation.format(places="xyz"[:rank], taps="ijk"[:rank], phases="uvw"[:rank])


def by_groups(equation: str, seen: Array, weight: Array, groups: int, rank: int) -> Array:
    """The product of pictures and a weight, of channels that are cut into groups: the weight's first."""
    equation = with_places(equation, rank)
    if groups == 1:
        return p.einsum(equation.replace("g", ""), seen, weight)
    b, c, *others = seen.shape
    first, *rest = weight.shape
    seen = p.reshaped(seen, [b, groups, c // groups, *others])
    return p.einsum(equation, seen, p.reshaped(weight, [groups, first // groups, *rest]))


@aten("aten.convolution_backward", products=2)
def _convolution_backward(
    grad: Array, x: Array, weight: Array, _biases: Any, stride: Any, padding: Any, dilation: Any, transposes: bool,
    _more: Any, groups: int, wanted: Sequence[bool],
) -> list[Array | None]:  # fmt: skip
    """Of a convolution's input, weight and bias, those that are wanted. That of the input is the convolution the other
    way. That of the weight is a sum over all places, of what the smaller picture is there and what is seen from it."""
    steps, rank = (stride, padding, dilation), len(x.dims) - 2
    large, small = (grad, x) if transposes else (x, grad)
    seen = windows(large, weight.shape[2:], *steps, small.shape[2:], 0.0)
    made: list[Array | None] = [None, None, None]
    if wanted[0] and transposes:
        made[0] = p.reshaped(by_groups(CONVOLVED, seen, weight, groups, rank), x.shape)
    elif wanted[0]:
        made[0] = transposed(grad, weight, *steps, x.shape, groups)
    if wanted[1]:
        parts = (p.reshaped(y, [y.shape[0], groups, -1, *y.shape[2:]]) for y in (seen, small))
        equation = with_places("bgc{places}{taps},bgo{places}->goc{taps}", rank)
        made[1] = p.reshaped(p.einsum(equation, *parts), weight.shape)
    if wanted[2]:
        made[2] = p.reduction("sum", grad, [i for i in range(len(grad.dims)) if i != 1])
    return made


def transposed(
    x: Array, weight: Array, stride: Any, padding: Any, dilation: Any, out: Sequence[int], groups: int
) -> Array:
    """A transposed convolution, in phases of its stride: O[s·q + u - padding] = Σ over t of X[q - t] · W[s·t + u].

    So no product is computed with a place that the stride steps over.
    """
    rank, dilation = len(out) - 2, each(dilation, len(out) - 2)
    weight, dilation = with_gaps(weight, [*range(2, 2 + rank)], stride, dilation)
    f = Phases.of(weight.shape[2:], out[2:], stride, padding, dilation)
    seen = p.read(x, [*p.whole(x)[:2], *f.seen], [*x.dims[:2], *f.places, *f.taps])
    tapped = p.read(weight, [*p.whole(weight)[:2], *f.tapped], [*weight.dims[:2], *f.taps, *f.phases])
    made = by_groups("bgc{places}{taps},gco{taps}{phases}->bgo{places}{phases}", seen, tapped, groups, rank)
    batch, *channels = made.dims[: -2 * rank]
    return f.together(p.viewed(made, [batch, tuple(x for dim in channels for x in dim), *made.dims[-2 * rank :]]))


@dataclass(frozen=True)
class Phases:
    """Of what windows write and add up, the places in phases of the stride: place s·q + u - padding gets what window
    q - t writes at its tap s·t + u, for all t.

    seen, tapped: the indices of a window, and of its tap. moved: where each place of the result is, as q and u. ends:
    the axes of the result.
    """

    seen: tuple[Part, ...]
    tapped: tuple[Part, ...]
    places: tuple[Dim, ...]
    taps: tuple[Dim, ...]
    phases: tuple[Dim, ...]
    moved: tuple[Part, ...]
    ends: tuple[Dim, ...]

    @staticmethod
    def of(kernel: Sequence[int], out: Sequence[int], stride: Any, padding: Any, dilation: Any) -> Phases:
        """Taps are apart where the stride is 1 alone."""
        found: list[tuple[Part, Part, Dim, Dim, Dim, Part, Dim]] = []
        steps = (each(v, len(out)) for v in (stride, padding, dilation))
        for size, n, s, before, apart in zip(kernel, out, *steps, strict=True):
            count = -(-(n + before) // s) if s > 1 else n
            place, tap, phase = map(axes, (count, -(-size // s), s))
            end = (*axes(n // s), *axes(s)) if n % s == 0 else axes(n)
            seen: Part = [(place, 1), (tap, -apart)], 0 if s > 1 else before
            found.append((seen, ([(tap, s), (phase, 1)], 0), place, tap, phase, ([(end, 1)], before * (s > 1)), end))
        return Phases(*zip(*found, strict=True))

    def together(self, made: Array) -> Array:
        """A result [b, c, q, ..., u, ...] as [b, c, place, ...]."""
        rank = len(self.ends)
        whole = [a + b for a, b in zip(made.dims[-2 * rank : -rank], made.dims[-rank:], strict=True)]
        made = p.viewed(made, [*made.dims[: -2 * rank], *whole])
        if not any(self.phases):
            return made
        return p.read(made, [*p.whole(made)[:2], *self.moved], [*made.dims[:2], *self.ends])


def with_gaps(x: Array, positions: Sequence[int], stride: Any, dilation: Any) -> tuple[Array, list[int]]:
    """A kernel whose taps are apart with a tap for each place between two, and how far apart its taps are then: along
    positions where the stride is more than 1."""
    left: list[int] = []
    for at, s, apart in zip(positions, *(each(v, len(positions)) for v in (stride, dilation)), strict=True):
        x = spaced(x, at, apart) if s > 1 and apart > 1 else x
        left.append(1 if s > 1 else apart)
    return x, left


@aten("aten.col2im")
def _fold(x: Array, size: Any, kernel: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    """The windows of a picture, [b, c·i·j, y·x], added up where they lie over each other."""
    *batch, channels, _ = x.shape
    (i, j), out = each(kernel, 2), each(size, 2)
    steps = zip(out, (i, j), *(each(v, 2) for v in (padding, dilation, stride)), strict=True)
    counts = [(n + 2 * before - apart * (taps - 1) - 1) // s + 1 for n, taps, before, apart, s in steps]
    cut = p.reshaped(x, [math.prod(batch), channels // (i * j), i, j, *counts])
    return p.reshaped(added_up(cut, out, stride, padding, dilation), [*batch, channels // (i * j), *out])


def added_up(x: Array, out: Sequence[int], stride: Any, padding: Any, dilation: Any) -> Array:
    """The windows of a picture, [b, c, taps, places], added up where they lie over each other: [b, c, out]."""
    rank = len(out)
    taps = [*range(2, 2 + rank)]
    x, dilation = with_gaps(x, taps, stride, dilation)
    f = Phases.of(x.shape[2 : 2 + rank], out, stride, padding, dilation)
    seen = p.read(x, [*p.whole(x)[:2], *f.tapped, *f.seen], [*x.dims[:2], *f.taps, *f.places, *f.phases])
    return f.together(p.reduction("sum", seen, taps))


def axes(size: int) -> Dim:
    return (Axis(size),) if size > 1 else ()


def spaced(x: Array, dim: int, step: int) -> Array:
    """The array with zeros between its places along a position."""
    shape = [*x.shape]
    longer = pad(unsqueeze(x, dim + 1), [*[0, 0] * (len(shape) - dim - 1), 0, step - 1])
    return p.reshaped(longer, [*shape[:dim], shape[dim] * step, *shape[dim + 1 :]])


@aten("aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d", with_node=True)
def _upsample_nearest(_t: Trace, node: Any, x: Array, _size: Any, *scales: Any) -> Array:
    return nearest(x, node.meta["val"].shape, scales, 0)


@aten("aten._upsample_nearest_exact1d", "aten._upsample_nearest_exact2d", "aten._upsample_nearest_exact3d",
      with_node=True)  # fmt: skip
def _upsample_nearest_exact(_t: Trace, node: Any, x: Array, _size: Any, *scales: Any) -> Array:
    return nearest(x, node.meta["val"].shape, scales, 1)


def nearest(x: Array, shape: Sequence[int], scales: Sequence[Any], halves: int) -> Array:
    """A picture of this shape, whose place i is place (i + halves / 2) * step of x, rounded down."""
    for at, scale in enumerate(scales_of(scales, len(x.dims) - 2), 2):
        n, size = x.shape[at], shape[at]
        step = 1 / Fraction(scale).limit_denominator(size * n) if scale else Fraction(n, size)
        by, parts, start = step.numerator, step.denominator, step.numerator * halves
        rounded = np.floor((np.arange(size, dtype=np.float32) + np.float32(halves / 2)) * np.float32(step))
        by, parts = by * (1 + halves), parts * (1 + halves)
        if any(min(int(r), n - 1) != (start + i * by) // parts for i, r in enumerate(rounded)):
            raise Unsupported("a picture of which rounding chooses the places")
        x = repeat_interleave(x, parts, at) if parts > 1 else x
        if by > 1 or x.shape[at] != size:
            read, dims, place = p.whole(x), [*x.dims], axes(size)
            read[at], dims[at] = ([(place, by)], start), place
            x = p.read(x, read, dims)
    return x


def scales_of(scales: Sequence[Any], rank: int) -> list[Any]:
    """For each axis of the picture, by how much it is enlarged, if that is given."""
    given = scales[0] if scales and isinstance(scales[0], list) else [*scales]
    return given if len(given) == rank else [None] * rank


@aten("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d", with_node=True)
def _upsample_linear(_t: Trace, node: Any, x: Array, _size: Any, ends: bool, *scales: Any) -> Array:
    return resampled(x, node.meta["val"].shape, scales, ends, LINEAR)


@aten("aten.upsample_bicubic2d", with_node=True)
def _upsample_cubic(_t: Trace, node: Any, x: Array, _size: Any, ends: bool, *scales: Any) -> Array:
    return resampled(x, node.meta["val"].shape, scales, ends, CUBIC)


@aten("aten._upsample_bilinear2d_aa", with_node=True)
def _upsample_linear_smooth(_t: Trace, node: Any, x: Array, _size: Any, ends: bool, *scales: Any) -> Array:
    return resampled(x, node.meta["val"].shape, scales, ends, LINEAR, smooth=True)


@aten("aten._upsample_bicubic2d_aa", with_node=True)
def _upsample_cubic_smooth(_t: Trace, node: Any, x: Array, _size: Any, ends: bool, *scales: Any) -> Array:
    return resampled(x, node.meta["val"].shape, scales, ends, SMOOTH_CUBIC, smooth=True)


@dataclass(frozen=True)
class Filter:
    """How much a place counts, by how far away it is: nothing from `reach` on."""

    reach: int
    weight: Callable[[Value], Value]


def cubic(a: float) -> Filter:
    """Cubic convolution (Keys, 1981, equation 15), whose slope is `a` at a distance of 1."""

    def weight(d: Value) -> Value:
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        return g.where(d < 1, near, g.where(d < 2, ((d - 5) * d + 8) * d * a - 4 * a, 0))

    return Filter(2, lambda d: weight(g.abs(d)))


LINEAR = Filter(1, lambda d: g.maximum(1 - g.abs(d), 0))
CUBIC, SMOOTH_CUBIC = cubic(-0.75), cubic(-0.5)
FINEST = 1 << 12
"""The largest denominator of a factor that a picture is enlarged by."""
ROUNDED_OFF = Fraction(1, 1 << 16)
"""How far the last place of a picture may be from where such a factor has it."""


def resampled(
    x: Array, shape: Sequence[int], scales: Sequence[Any], ends: bool, kind: Filter, smooth: bool = False
) -> Array:
    """A picture of this shape: along one axis after the other, the last first, a sum of those places of x that are near
    to each place, times their weights. The places are read one by one: a reduction over so few would be spread over
    threads.

    ends: whether the first and last places stay where they are. scales: for each axis of the picture, if given. smooth:
    whether a place of a smaller picture sees all places of x that lie between it and the next.
    """
    factors = scales_of(scales, len(x.dims) - 2)
    for at in range(len(x.dims) - 1, 1, -1):
        n, size = x.shape[at], shape[at]
        s = Sampling(n, size, *steps_between(n, size, ends, factors[at - 2], smooth), kind, smooth)
        longer = repeat_interleave(x, s.parts, at) if s.parts > 1 else x
        whole, dims, place = p.whole(longer), [*x.dims], axes(size)
        dims[at] = place
        taps: list[Array] = []
        for t, weight in enumerate(s.weights(x.trace)):
            parts = [*whole[:at], ([(place, s.by)], s.first + t * s.parts), *whole[at + 1 :]]
            weight = p.viewed(weight, [*weight.dims, *[()] * (len(dims) - at - 1)])
            taps.append(both(operator.mul, p.read(longer, parts, dims), weight))
        x = functools.reduce(lambda v, w: both(operator.add, v, w), taps)
    return x


def steps_between(n: int, size: int, ends: bool, scale: float | None, smooth: bool) -> tuple[Fraction, Fraction]:
    """How far the places of a picture of this size are apart on an axis of n, and where the first one lies. Raises
    Unsupported where the factor is no such fraction, or a place lies outside of the axis."""
    if ends:
        step = Fraction(n - 1, max(size - 1, 1))
    else:
        step = 1 / Fraction(scale).limit_denominator(FINEST) if scale else Fraction(n, size)
    start = Fraction(0) if ends and not smooth else (step - 1) / 2
    rounded = scale and not ends and abs(step * Fraction(scale) - 1) * n > ROUNDED_OFF
    if rounded or not -1 <= start <= start + (size - 1) * step < n:
        raise Unsupported(f"a picture of {n} places that is enlarged to {size}, {scale} times")
    return step, start


@dataclass(frozen=True)
class Sampling:
    """Where the places of a picture lie on an axis of size n: one at `start`, the next `step` further."""

    n: int
    size: int
    step: Fraction
    start: Fraction
    kind: Filter
    smooth: bool

    @property
    def wider(self) -> Fraction:
        """By how much the filter is wider than that of an enlarged picture."""
        return max(self.step, Fraction(1)) if self.smooth else Fraction(1)

    @property
    def reach(self) -> int:
        return math.ceil(self.kind.reach * self.wider)

    @property
    def taps(self) -> int:
        return 2 * self.reach

    @property
    def parts(self) -> int:
        """Place i lies at a whole number by `parts`, its first tap at (i * by + first) // parts."""
        return math.lcm(self.step.denominator, self.start.denominator)

    @property
    def by(self) -> int:
        return int(self.step * self.parts)

    @property
    def first(self) -> int:
        return int((self.start + 1 - self.reach) * self.parts)

    def weights(self, trace: Trace) -> list[Array]:
        """By place, of each tap. What lies outside of the axis counts as its first or last place; in a smooth picture,
        not at all."""
        place, weight = trace.positions(self.size), self.inside if self.smooth else self.weight
        taps = [both(lambda i, t=t: weight(i, t), place) for t in range(self.taps)]
        if not self.smooth:
            return taps
        whole = functools.reduce(lambda v, w: both(operator.add, v, w), taps)
        return [both(operator.truediv, t, whole) for t in taps]

    def weight(self, i: Value, t: int) -> Value:
        weight, (apart, j) = self.kind.weight, self.seen(i, t)
        more = range(1, self.reach + 1)
        before, behind = (functools.reduce(operator.add, (weight(apart + m * side) for m in more)) for side in (1, -1))
        return weight(apart) + g.where(j == 0, before, 0) + g.where(j == self.n - 1, behind, 0)

    def inside(self, i: Value, t: int) -> Value:
        apart, j = self.seen(i, t)
        return g.where((j >= 0) & (j < self.n), self.kind.weight(apart * float(1 / self.wider)), 0)

    def seen(self, i: Value, t: int) -> tuple[Value, Value]:
        """How far a place lies behind a tap, and where the tap is."""
        at = i * self.by + self.first
        return at % self.parts / self.parts + (self.reach - 1 - t), at // self.parts + t


@aten("aten.pixel_shuffle")
def _pixel_shuffle(x: Array, r: int) -> Array:
    *lead, c, h, w = x.shape
    n = len(lead)
    cut = p.reshaped(x, [*lead, c // (r * r), r, r, h, w])
    moved = p.permuted(cut, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return p.reshaped(moved, [*lead, c // (r * r), h * r, w * r])


@aten("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d", with_node=True)
def _max_pool(_t: Trace, node: Any, x: Array, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
              _ceil: bool = False) -> Array:  # fmt: skip
    return largest(x, node, node.meta["val"], kernel, stride, padding, dilation)


@aten("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices", with_node=True)
def _max_pool_with_indices(_t: Trace, node: Any, x: Array, kernel: Any, stride: Any = None, padding: Any = 0,
                           dilation: Any = 1, _ceil: bool = False) -> list[Array]:  # fmt: skip
    return [largest(x, node, node.meta["val"][0], kernel, stride, padding, dilation)]


def largest(x: Array, node: Any, like: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Array:
    """like: has the shape of the result."""
    rank = rank_of(node)
    x = p.reshaped(x, [1, *x.shape]) if len(like.shape) == rank + 1 else x
    seen = windows(x, each(kernel, rank), stride or kernel, padding, dilation, like.shape[-rank:], -math.inf)
    return p.reshaped(p.reduction("max", seen, [*range(len(x.dims), len(seen.dims))]), like.shape)


def rank_of(node: Any) -> int:
    """How many axes the pictures of an operator have, which its name says."""
    return next(int(rank) for rank in "123" if f"{rank}d" in overloadless(node.target))


@aten("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d", with_node=True)
def _avg_pool(_t: Trace, node: Any, x: Array, kernel: Any, stride: Any = None, padding: Any = 0, ceil: bool = False,
              count_pad: bool = True, divisor: Any = None) -> Array:  # fmt: skip
    whole, rank = node.meta["val"].shape, rank_of(node)
    if len(whole) == rank + 1:
        x = p.reshaped(x, [1, *x.shape])
    shape, sizes = whole[-rank:], each(kernel, rank)
    seen = windows(x, sizes, stride or kernel, padding, 1, shape, 0.0)
    total = p.reduction("sum", seen, [*range(len(x.dims), len(seen.dims))])
    return p.reshaped(by_counts(total, x.shape[-rank:], sizes, stride, padding, ceil, count_pad, divisor), whole)


@aten("aten.avg_pool2d_backward", "aten.avg_pool3d_backward", with_node=True)
def _avg_pool_backward(_t: Trace, node: Any, grad: Array, x: Array, kernel: Any, stride: Any, padding: Any,
                       ceil: bool, count_pad: bool, divisor: Any) -> Array:  # fmt: skip
    rank, whole = rank_of(node), x.shape
    if len(whole) == rank + 1:
        grad = p.reshaped(grad, [1, *grad.shape])
    sizes, ones = each(kernel, rank), [1] * rank
    part = by_counts(grad, whole[-rank:], sizes, stride, padding, ceil, count_pad, divisor)
    lead, places = part.shape[:2], part.shape[2:]
    seen = p.expanded(p.reshaped(part, [*lead, *ones, *places]), [*lead, *sizes, *places])
    return p.reshaped(added_up(seen, whole[-rank:], stride or kernel, padding, 1), whole)


def by_counts(
    x: Array,
    shape: Sequence[int],
    sizes: list[int],
    stride: Any,
    padding: Any,
    ceil: bool,
    count_pad: bool,
    divisor: Any,
) -> Array:
    """Sums of windows over a picture of this shape, or what is to be spread over these, by how many places count."""
    rank = len(sizes)
    if divisor or not (ceil or (any(each(padding, 1)) and not count_pad)):
        return both(lambda v: v / (divisor or math.prod(sizes)), x)
    inside = each(padding, rank) if count_pad else [0] * rank
    steps = zip(shape, sizes, each(stride or sizes, rank), each(padding, rank), inside, x.shape[-rank:], strict=True)
    counts = [_counted(x.trace, *one, behind=rank - 1 - i) for i, one in enumerate(steps)]
    return both(operator.truediv, x, functools.reduce(lambda v, w: both(operator.mul, v, w), counts))


@aten("aten.upsample_nearest1d_backward", "aten.upsample_nearest2d_backward", "aten.upsample_nearest3d_backward",
      with_node=True)  # fmt: skip
def _upsample_nearest_backward(_t: Trace, node: Any, grad: Array, _out: Any, whole: Any, *scales: Any) -> Array:
    """Of a picture that was enlarged a whole number of times: the sum over each place's."""
    steps = zip(grad.shape, whole, [None, None, *scales_of(scales, rank_of(node))], strict=True)
    if any(n % size or (scale and scale != n // size) for n, size, scale in steps):
        raise Unsupported("the derivative of a picture that was not enlarged a whole number of times")
    apart = [part for n, size in zip(grad.shape[2:], whole[2:], strict=True) for part in (size, n // size)]
    cut = p.reshaped(grad, [*grad.shape[:2], *apart])
    return p.reduction("sum", cut, [*range(3, len(cut.dims), 2)])


@aten("aten._adaptive_avg_pool2d_backward", "aten._adaptive_avg_pool3d_backward", with_node=True)
def _adaptive_avg_pool_backward(_t: Trace, node: Any, grad: Array, x: Array) -> Array:
    """Where all windows are of one size, and do not overlap."""
    rank = rank_of(node)
    steps = [n // size for n, size in zip(x.shape[-rank:], grad.shape[-rank:], strict=True)]
    if any(n % size for n, size in zip(x.shape[-rank:], grad.shape[-rank:], strict=True)):
        raise Unsupported("the derivative of means over windows of several sizes")
    grad = both(lambda v: v / math.prod(steps), grad)
    for at, step in enumerate(steps, -rank):
        grad = repeat_interleave(grad, step, at)
    return grad


def _counted(trace: Trace, n: int, size: int, step: int, before: int, padded: int, places: int, behind: int) -> Array:
    """How many of the places from -padded up to n + padded each window along an axis has. before: places in front of 0
    where the first window begins. behind: how many axes stand behind this one."""
    some = trace.positions(n + 2 * padded)
    ones = p.viewed(p.elementwise(lambda v: g.where(v == v, 1, 1), some), [(), (), *some.dims])
    seen = windows(ones, [size], step, before - padded, 1, [places], 0.0)
    count = p.reduction("sum", seen, [len(seen.dims) - 1])
    return p.viewed(count, [*count.dims, *[()] * behind])


@aten("aten.unfold")
def _unfold(x: Array, dim: int, size: int, step: int) -> Array:
    at = p.axis_of(x, dim)
    parts, dims = p.whole(x), [*x.dims]
    count = (x.shape[at] - size) // step + 1
    place, tap = ((Axis(n),) if n > 1 else () for n in (count, size))
    parts[at], dims[at] = ([(place, step), (tap, 1)], 0), place
    return p.read(x, parts, [*dims, tap])


def adaptive(kind: str, x: Array, size: Any, rank: int) -> Array:
    """The reduction, along each of the last positions, of as many windows as are asked for, which tile them, or overlap
    by one place."""
    lead = len(x.dims) - rank
    sizes = [x.shape[lead + i] if n is None else n for i, n in enumerate(each(size, rank))]
    for at, n in enumerate(sizes, lead):
        if x.shape[at] % n:
            x = overlapping(kind, x, at, n)
    cut = [n for size, whole in zip(sizes, x.shape[lead:], strict=True) for n in (size, whole // size)]
    return p.reduction(kind, p.reshaped(x, [*x.shape[:lead], *cut]), [lead + 1 + 2 * i for i in range(rank)])


def overlapping(kind: str, x: Array, dim: int, count: int) -> Array:
    """The reduction of windows of several sizes along an axis of n places: of window i, the places from i * n / count,
    rounded down, to (i + 1) * n / count, rounded up."""
    n = x.shape[dim]
    if n > MOST_COMPARED:
        raise Unsupported(f"adaptive pooling of {n} places in windows of several sizes")
    table = unsqueeze(x, dim)
    place, numbers = along_positions(table, dim + 1), x.trace.positions(count)
    window = p.viewed(numbers, [*numbers.dims, *[()] * (len(x.dims) - dim)])

    def within(outside: float) -> Callable[[Value, Value, Value | float], Value]:
        return lambda i, j, v: g.where((j * count + count > i * n) & (j * count < i * n + n), v, outside)

    if kind == "max":
        return p.reduction("max", both(within(-math.inf), window, place, table), [dim + 1])
    ones = p.elementwise(lambda i, j: within(0.0)(i, j, 1.0), window, place)
    size = p.reduction("sum", ones, [len(ones.dims) - len(x.dims) + dim])
    return both(operator.truediv, p.reduction("sum", both(within(0.0), window, place, table), [dim + 1]), size)


@aten("aten.adaptive_avg_pool2d", "aten._adaptive_avg_pool2d", behind=1)
def _adaptive_avg_pool2d(x: Array, size: Any) -> Array:
    return adaptive("mean", x, size, 2)


@aten("aten.adaptive_avg_pool3d", "aten._adaptive_avg_pool3d", behind=1)
def _adaptive_avg_pool3d(x: Array, size: Any) -> Array:
    return adaptive("mean", x, size, 3)


@aten("aten.adaptive_max_pool2d", behind=1)
def _adaptive_max_pool2d(x: Array, size: Any) -> list[Array]:
    return [adaptive("max", x, size, 2)]


@aten("aten.adaptive_max_pool3d", behind=1)
def _adaptive_max_pool3d(x: Array, size: Any) -> list[Array]:
    return [adaptive("max", x, size, 3)]
