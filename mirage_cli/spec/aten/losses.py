"""ATen's losses and distances."""

from __future__ import annotations

import math
import operator
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Trace, Unsupported
from mirage_cli.spec.aten.elementwise import log_sigmoid
from mirage_cli.spec.aten.lookups import element
from mirage_cli.spec.aten.operands import along_positions, both, trailing
from mirage_cli.spec.aten.reductions import log_softmax, norm, summed
from mirage_cli.spec.aten.row import Named, Rows, overloadless
from mirage_cli.spec.aten.shapes import broadcast_tensors, unsqueeze

aten = Rows()


@aten("aten.mse_loss")
def _mse_loss(x: Array, y: Array, reduce: int = 1) -> Array:
    return reduced(both(lambda a, b: g.square(a - b), x, y), reduce)


@aten("aten.l1_loss")
def _l1_loss(x: Array, y: Array, reduce: int = 1) -> Array:
    return reduced(both(lambda a, b: g.abs(a - b), x, y), reduce)


@aten("aten.smooth_l1_loss", "aten.huber_loss", with_node=True)
def _huber_loss(_t: Trace, node: Any, x: Array, y: Array, reduce: int = 1, width: float = 1.0) -> Array:
    distance = both(lambda a, b: g.abs(a - b), x, y)
    scale = 1 / width if overloadless(node.target) == "aten.smooth_l1_loss" else 1.0
    return reduced(both(lambda d: scale * g.where(d < width, 0.5 * d * d, width * (d - 0.5 * width)), distance), reduce)


@aten("aten.binary_cross_entropy_with_logits")
def _bce(x: Array, y: Array, weight: Any = None, positive: Any = None, reduce: int = 1) -> Array:
    """(1 - y)·x - (1 + (w - 1)·y)·log σ(x), for a weight w of what is positive."""
    more = 1 if positive is None else both(lambda b, w: 1 + (w - 1) * b, y, positive)
    made = both(lambda a, b, m, v: (1 - b) * a - m * v, x, y, more, log_sigmoid(x))
    return reduced(made if weight is None else both(operator.mul, made, weight), reduce)


@aten("aten.kl_div")
def _kl_div(x: Array, y: Array, reduce: int = 1, log_target: bool = False) -> Array:
    if log_target:
        return reduced(both(lambda a, b: g.exp(b) * (b - a), x, y), reduce)
    return reduced(both(lambda a, b: g.where(b == 0, 0, b * g.log(b)) - b * a, x, y), reduce)


@aten("aten.binary_cross_entropy", fractions=True)
def _bce_of_probabilities(x: Array, y: Array, weight: Any = None, reduce: int = 1) -> Array:
    made = both(lambda a, b: -(b * g.maximum(g.log(a), -100) + (1 - b) * g.maximum(g.log1p(-a), -100)), x, y)
    return reduced(made if weight is None else both(operator.mul, made, weight), reduce)


def of_a_class(node: Any) -> tuple[Named, ...]:
    """Of `op(x, target, weight, reduce, ignored)`, where the target's numbers are classes."""
    x, target, *rest = node.args
    ignored = rest[2] if len(rest) > 2 else -100
    if target.meta["val"].is_floating_point():
        return ()
    return (Named(target, x, min(1, x.meta["val"].dim() - 1), besides=ignored),)


@aten("aten.nll_loss", "aten.nll_loss_nd", named=of_a_class)
def _nll_loss(x: Array, target: Array, weight: Any = None, reduce: int = 1, ignored: int = -100) -> Array:
    return _nll_loss_forward(x, target, weight, reduce, ignored)[0]


@aten("aten.nll_loss_forward", "aten.nll_loss2d_forward", named=of_a_class)
def _nll_loss_forward(x: Array, target: Array, weight: Any, reduce: int, ignored: int) -> list[Array]:
    """Of logarithms and class numbers: what counts is where the position along the classes is that number. And how much
    all count together, which is 0 where nothing is summed."""
    loss, counts = of_classes(x, target, weight, ignored, min(1, len(x.dims) - 1))
    return [_over(loss, counts, reduce), summed(counts) if reduce else x.trace.full([], 0.0)]


def of_classes(x: Array, target: Array, weight: Any, ignored: int, at: int) -> tuple[Array, Array]:
    """For each target, its loss, and how much it counts."""
    if len(target.dims) != len(x.dims) - 1:
        raise Unsupported("a loss whose classes are no numbers")
    place, asked = along_positions(x, at), unsqueeze(target, at)
    loss = both(operator.neg, element(x, at, asked))
    if weight is None:
        counts = p.elementwise(lambda t: g.where(t != ignored, 1.0, 0.0), target)
        return p.elementwise(lambda t, v: g.where(t != ignored, v, 0), target, loss), counts
    weights = trailing(weight, len(x.dims) - at - 1)
    known = p.elementwise(lambda i, t, w: g.where((i == t) & (t != ignored), w, 0), place, asked, weights)
    counts = summed(known, at)
    return both(operator.mul, loss, counts), counts


def _over(loss: Array, counts: Array, reduce: int) -> Array:
    if reduce == 0:
        return loss
    return summed(loss) if reduce == 2 else both(operator.truediv, summed(loss), summed(counts))


@aten("aten.cross_entropy_loss", with_node=True, named=of_a_class)
def _cross_entropy(_t: Trace, node: Any, x: Array, target: Array, weight: Any = None, reduce: int = 1,
                   ignored: int = -100, smoothing: float = 0.0) -> Array:  # fmt: skip
    at = min(1, len(x.dims) - 1)
    logs, n = log_softmax(x, at), x.shape[at]
    weights = None if weight is None else trailing(weight, len(x.dims) - at - 1)
    if node.args[1].meta["val"].is_floating_point():
        smooth = both(lambda t: t * (1 - smoothing) + smoothing / n, target) if smoothing else target
        each_class = both(lambda t, v: -t * v, smooth, logs)
        loss = summed(each_class if weights is None else both(operator.mul, each_class, weights), at)
        if reduce != 1:
            return loss if reduce == 0 else summed(loss)
        return both(lambda v: v / (math.prod(x.shape) / n), summed(loss))
    loss, counts = of_classes(logs, target, weight, ignored, at)
    made = _over(loss, counts, reduce)
    if not smoothing:
        return made
    weighted = logs if weights is None else both(operator.mul, logs, weights)
    spread = p.elementwise(lambda t, v: g.where(t != ignored, -v, 0), target, summed(weighted, at))
    return both(lambda a, b: (1 - smoothing) * a + (smoothing / n) * b, made, _over(spread, counts, reduce))


def reduced(x: Array, how: int) -> Array:
    return x if how == 0 else p.reduction("mean" if how == 1 else "sum", x, [*range(len(x.dims))])


@aten("aten.pairwise_distance")
def _pairwise_distance(x: Array, y: Array, order: float = 2, eps: float = 1e-6, keep: bool = False) -> Array:
    return norm(both(lambda a, b: a - b + eps, x, y), order, -1, keep)


@aten("aten.cosine_similarity")
def _cosine_similarity(x: Array, y: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    x, y = broadcast_tensors([x, y])
    norms = [both(lambda v: g.maximum(v, eps), norm(a, 2, dim, True)) for a in (x, y)]
    a, b = (both(operator.truediv, v, n) for v, n in zip((x, y), norms, strict=True))
    return summed(both(operator.mul, a, b), dim)
