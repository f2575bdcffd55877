"""ATen's norms of layers, groups, channels and batches."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any  # arguments of nodes, as PyTorch's schemas have them: arrays, numbers, lists, None

from mirage_cli.spec import graph as g
from mirage_cli.spec import positional as p
from mirage_cli.spec.arrays import Array, Trace, Unsupported
from mirage_cli.spec.aten.operands import both, trailing
from mirage_cli.spec.aten.row import Rows, overloadless

aten = Rows()


def affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else both(operator.mul, x, weight)
    return x if bias is None else both(operator.add, x, bias)


def last_axes(x: Array, shape: Sequence[int]) -> list[int]:
    """As many as the shape has."""
    return [*range(len(x.dims) - len(shape), len(x.dims))]


@aten("aten.layer_norm", behind=1)
def _layer_norm(
    x: Array, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Array:
    at = last_axes(x, shape)
    return affine(p.along("layer_norm", x, at, eps=eps), weight, bias)


@aten("aten.native_layer_norm", behind=1)
def _native_layer_norm(x: Array, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> list[Array]:
    at = last_axes(x, shape)
    return [_layer_norm(x, shape, weight, bias, eps), *statistics(x, at, eps)]


def statistics(x: Array, at: Sequence[int], eps: float, keep: bool = True) -> list[Array]:
    """The mean, and one over the deviation."""
    mean = p.reduction("mean", x, at, True)
    variance = p.reduction("mean", both(lambda a, m: g.square(a - m), x, mean), at, keep)
    shown = mean if keep else p.reduction("mean", x, at, False)
    return [shown, both(lambda v: g.rsqrt(v + eps), variance)]


@aten("aten.rms_norm", "aten._fused_rms_norm", behind=1, with_node=True)
def _rms_norm(
    _t: Trace, node: Any, x: Array, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    at = last_axes(x, shape)
    if eps is None:
        import torch

        dtype = node.args[0].meta["val"].dtype
        eps = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype).eps  # of the type that PyTorch computes in
    made = affine(p.along("rms_norm", x, at, eps=eps), weight, None)
    if overloadless(node.target) == "aten.rms_norm":
        return made
    square = p.reduction("mean", both(g.square, x), at, True)
    return [made, both(lambda v: g.rsqrt(v + eps), square)]


@aten("aten.group_norm", behind=1)
def _group_norm(x: Array, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Array:
    n, c, *rest = x.shape
    cut = p.reshaped(x, [n, groups, c // groups, *rest])
    made = p.reshaped(p.along("layer_norm", cut, [*range(2, len(cut.dims))], eps=eps), x.shape)
    return affine(made, *(w and trailing(w, len(rest)) for w in (weight, bias)))


@aten("aten.instance_norm", behind=1)
def _instance_norm(x: Array, weight: Any, bias: Any, mean: Any, var: Any, use_input: bool, *rest: Any) -> Array:
    _, eps, *_ = rest
    if not use_input or mean is not None or var is not None:
        raise Unsupported("instance norm with running statistics")
    made = p.along("layer_norm", x, [*range(2, len(x.dims))], eps=eps)
    return affine(made, *(w and trailing(w, len(x.dims) - 2) for w in (weight, bias)))


@aten("aten.native_group_norm", behind=1)
def _native_group_norm(x: Array, weight: Any, bias: Any, *rest: Any) -> list[Array]:
    *_, groups, eps = rest
    n, c, *others = x.shape
    cut = p.reshaped(x, [n, groups, c // groups, *others])
    return [
        _group_norm(x, groups, weight, bias, eps), *statistics(cut, [*range(2, len(cut.dims))], eps, keep=False)
    ]  # fmt: skip


@aten("aten.batch_norm", "aten._native_batch_norm_legit_no_training", with_node=True)
def _batch_norm(_t: Trace, node: Any, x: Array, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
    native = overloadless(node.target) != "aten.batch_norm"
    training, eps = (False, rest[1]) if native else (rest[0], rest[2])
    behind = len(x.dims) - 2
    weight, bias = (w and trailing(w, behind) for w in (weight, bias))
    if training or mean is None:
        at = [0, *range(2, len(x.dims))]
        made = affine(p.along("layer_norm", x, at, eps=eps), weight, bias)
    else:
        centred = both(operator.sub, x, trailing(mean, behind))
        made = affine(
            both(operator.mul, centred, both(lambda v: g.rsqrt(v + eps), trailing(var, behind))), weight, bias
        )
    return [made] if native else made


@aten("aten._native_batch_norm_legit_functional", "aten._native_batch_norm_legit", with_node=True)
def _batch_norm_in_training(_t: Trace, node: Any, x: Array, weight: Any, bias: Any, *rest: Any) -> list[Array]:
    """The result, the batch's statistics, and the running ones behind it."""
    *running, training, momentum, eps = rest
    if not training:
        raise Unsupported("batch norm of running statistics, in the form for training")
    at, behind = [0, *range(2, len(x.dims))], len(x.dims) - 2
    made = affine(p.along("layer_norm", x, at, eps=eps), *(w and trailing(w, behind) for w in (weight, bias)))
    mean, deviation = statistics(x, at, eps, keep=False)
    found = [made, mean, deviation]
    if len(running) == 2 and overloadless(node.target).endswith("functional"):
        count = math.prod(x.shape[i] for i in at)
        variance = _var_of(x, at, count - 1)
        found += [
            both(lambda old, new: (1 - momentum) * old + momentum * new, *pair)
            for pair in zip(running, (mean, variance), strict=True)
        ]
    return found


def _var_of(x: Array, at: Sequence[int], count: int) -> Array:
    centred = both(operator.sub, x, p.reduction("mean", x, at, True))
    return both(lambda v: v / count, p.reduction("sum", both(g.square, centred), at))
