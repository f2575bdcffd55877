"""Pieces of Python text, in lines that are not too long."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from mirage_cli.codegen.access import Descriptor
from mirage_cli.codegen.scalars import Stride
from mirage_cli.ir.program import Range, Tensor

WIDTH = 120


def layout_text(t: Tensor, sizes: Mapping[str, int | str]) -> tuple[str, str]:
    """Shape and strides of a tensor. Memory with strides takes less CPU time than without. sizes: numbers, or the names
    of what holds them."""
    return tuple_text(str(sizes[d]) for d in t.dims), tuple_text(map(product_text, stride_factors(t, sizes)))


def room_text(t: Tensor, sizes: Mapping[str, int | str]) -> tuple[str, str, str]:
    """Shape and strides of the memory of an intermediate, with what its rows have room for, and the index that leaves
    the tensor of it."""
    shape, strides = layout_text(t, sizes)
    if not t.strides:
        return shape, strides, ""
    (room,) = stride_factors(t, sizes)[-2]
    last = t.dims[-1]
    return layout_text(t, {**sizes, last: room})[0], strides, f"[..., :{sizes[last]}]"


def stride_factors(t: Tensor, sizes: Mapping[str, int | str]) -> list[list[int | str]]:
    """What the stride of each axis of a tensor is the product of: numbers, and names of what holds sizes."""
    found: list[list[int | str]] = []
    factors: list[int | str] = []
    for d, stride in zip(reversed(t.dims), reversed(t.own_strides), strict=True):
        found.append(factors if stride is None else [stride])
        factors = [sizes[d], *found[-1]]
    return found[::-1]


def input_text(t: Tensor, sizes: Mapping[str, int | str]) -> str:
    """What the checks of an exported file know of an input: name, strides (None: it is contiguous), shape, dtype."""
    shape, strides = layout_text(t, sizes)
    return f'("{t.name}", {strides if t.strides else None}, {shape}, torch.{t.dtype}),'


def product_text(factors: Iterable[int | str]) -> str:
    """Numbers multiplied out, behind the names."""
    factors = list(factors)
    number = prod(x for x in factors if isinstance(x, int))
    names = [x for x in factors if isinstance(x, str)]
    return " * ".join([*names, *[str(number)] * (number != 1 or not names)])


def layout_of_box(d: Descriptor) -> tuple[list[str], list[str]]:
    """Shape and strides of the tensor behind a descriptor."""

    def text(n: Stride) -> str:
        return str(n) if isinstance(n, int) else product_text([*(f"SIZE_{d}" for d in n.dims), n.number])

    return [*map(text, d.shape)], [*map(text, d.strides)]


def size_texts(sizes: Mapping[str, int], dynamic: Iterable[Range]) -> dict[str, int | str]:
    """The sizes, with names in the place of those that are known only when a kernel is called."""
    return {**sizes, **{r.dim: f"SIZE_{r.dim}" for r in dynamic}}


def tuple_text(items: Iterable[str]) -> str:
    texts = list(items)
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def table_text(rows: Iterable[str]) -> str:
    texts = list(rows)
    return f"({texts[0]})" if len(texts) == 1 else "\n".join(["(", *(f"    {r}" for r in texts), ")"])


def spelled(names: Iterable[str], is_taken: Callable[[str], bool], prefix: str = "") -> dict[str, str]:
    """What each of these names is called in a text: itself, unless it is a keyword or taken.

    Such a name gets the prefix, and underscores behind it until it is no other's.
    """
    found = {n: n for n in names}
    used = set(found)
    for n in found:
        if not is_taken(n) and not keyword.iskeyword(n):
            continue
        spelling = f"{prefix}{n}_"
        while spelling in used or is_taken(spelling):
            spelling += "_"
        used.add(spelling)
        found[n] = spelling
    return found


def unpacked(names: Sequence[str], source: str) -> str:
    line = f"    {', '.join(names)} = {source}" if len(names) > 1 else f"    ({names[0]},) = {source}"
    return line if len(line) <= WIDTH else "\n".join(["    (", *(f"        {n}," for n in names), f"    ) = {source}"])


def wrapped(start: str, items: Sequence[str], end: str) -> str:
    """`start item, item end`, over several lines where one is too short."""
    line = start + ", ".join(items) + end
    if len(line) <= WIDTH:
        return line
    indent = " " * (len(start) - len(start.lstrip()) + 4)
    inner = f"{indent}{', '.join(items)}"
    lines = [inner] if len(inner) <= WIDTH else [f"{indent}{x}," for x in items]
    return "\n".join([start, *lines, f"{indent[4:]}{end}"])


def filled(template: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        template = template.replace(f"@{key}@", value)
    return template.strip("\n")
