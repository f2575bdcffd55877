"""The names of the axes of blocks: a dimension, several that are merged, or neighbours that share an element."""

from __future__ import annotations

from collections.abc import Iterable

Axes = tuple[str, ...]
"""The axes of a block, in order. A merged axis has the names of its axes with `*` between them."""


def merged(*groups: Iterable[str]) -> Axes:
    """An axis for each group that is not empty."""
    return tuple(filter(None, ("*".join(group) for group in groups)))


def apart(axes: Axes) -> Axes:
    """Merged axes replaced by the axes that they are merged from."""
    return tuple(d for axis in axes for d in axis.split("*"))


def merged_as(axes: Axes, block: Axes) -> Axes:
    """The axes of a block, merged as in `axes`."""
    whole = {d: axis for axis in axes for d in apart((axis,))}
    return tuple(dict.fromkeys(whole.get(d, d) for d in block))


def half(dim: str) -> str:
    """The axis of a block that has an element for two neighbours along a dimension, or along such an axis."""
    return f"{dim}/2"


def shared(dim: str, count: int) -> str:
    """The axis of a block that has an element for so many neighbours, a power of two."""
    return dim if count == 1 else half(shared(dim, count // 2))


def shares(axis: str) -> tuple[str, int]:
    """The dimension of such an axis, and how many neighbours have an element: of any other, one."""
    dim, *halves = axis.split("/")
    return dim, 1 << len(halves)
