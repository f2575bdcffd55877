"""Tensors that are not row-major: strides as a spec gives them, and as a `Tensor` has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def overlap(strides: Sequence[int], dims: Sequence[str], sizes: Mapping[str, int]) -> str | None:
    """Why two elements may be in one place, or None: the stride of each axis is more than all shorter ones reach."""
    reach = 0
    for stride, d in sorted(zip(strides, dims, strict=True)):
        if sizes[d] > 1 and stride <= reach:
            return f"the stride of {d} is {stride}, and shorter ones reach {reach} elements far"
        reach += (sizes[d] - 1) * stride
    return None


def own_strides(
    strides: Sequence[int], dims: Sequence[str], sizes: Mapping[str, int], dynamic: Collection[str]
) -> tuple[int | None, ...]:
    """None in the place of strides that are what the axis behind takes: these follow its size. () where all are.

    The stride of an axis with one position does not matter. It is such that the axis may be longer at other sizes: what
    the axis behind takes, or beyond the last element where others are in the way.
    """
    end = 1 + sum((sizes[d] - 1) * stride for d, stride in zip(dims, strides, strict=True))
    for free in (None, end):
        found: list[int | None] = []
        steps: list[int] = []
        step, behind = 1, None
        for stride, d in reversed([*zip(strides, dims, strict=True)]):
            single = sizes[d] == 1 and d not in dynamic
            stride = (free or step) if single else stride
            found.insert(0, None if stride == step and (single or behind not in dynamic) else stride)
            steps.insert(0, stride)
            step, behind = stride * sizes[d], d
        if overlap(steps, dims, {d: max(2, n) for d, n in sizes.items()}) is None:
            break
    return tuple(found) if any(found) else ()
