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
    """None in the place of strides that are what the axis behind takes: these follow its size. () where all are."""
    found: list[int | None] = []
    step, behind = 1, None
    for stride, d in reversed([*zip(strides, dims, strict=True)]):
        follows = sizes[d] == 1 or (stride == step and behind not in dynamic)
        found.append(None if follows else stride)
        step, behind = (step if follows else stride) * sizes[d], d
    return tuple(reversed(found)) if any(found) else ()
