"""The baseline of a convolution: PyTorch's, which calls cuDNN, with the rest of the program as it is."""

from __future__ import annotations

from math import prod

from mirage_cli.codegen.torch_source import torch_source
from mirage_cli.ir.convolution import find_convolution
from mirage_cli.ir.program import Program, Tensor


def convolution_source(program: Program) -> str | None:
    """Module text of `pack(inputs)`, which adds the weight in the layout that PyTorch's convolutions take, and
    `reference(*packed)`. None where there is no convolution, and where outputs are parts of others.

    Channels stay where they are in memory: a value with its channels last is one in `torch.channels_last`, and its
    weight is laid out so too.
    """
    found = None if program.parts else find_convolution(program)
    if found is None or not {found.out, found.value} <= {*program.values()}:
        return None
    sizes, inputs = program.sizes, {t.name: t for t in program.inputs}
    axes = tuple(w.axis for w in found.windows)
    order = {a: d for d, a in found.plain.items()}  # axes of the value by those of the product
    batch, channels = tuple(order[a] for a in found.batch), tuple(order[a] for a in found.channels)
    own = inputs[found.value].dims if found.value in inputs else (*batch, *axes, *channels)
    result = (*found.batch, *(w.row for w in found.windows), *found.columns)
    value, made = Tensor(found.value, own, program.dtype), Tensor(found.out, result, program.dtype)
    front, back = program.around([value], [made])
    weight = inputs[found.weight].dims
    taps = tuple(w.tap for w in found.windows)
    kernel_dims = (*found.columns, *taps, *found.channels)

    def places(have: tuple[str, ...], want: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(have.index(d) for d in want)

    def count(dims: tuple[str, ...]) -> int:
        return prod(sizes[d] for d in dims)

    rank = len(axes)
    given = (count(batch), *(sizes[a] for a in axes), count(channels))
    kernel = (count(found.columns), *(sizes[t] for t in taps), count(found.channels))
    rows = ", ".join(f":{sizes[w.row]}" for w in found.windows)
    numbers = {x: tuple(getattr(w, x) for w in found.windows) for x in ("stride", "padding", "dilation")}
    options = ", ".join(f"{name}={n}" for name, n in numbers.items())
    last, first = (0, rank + 1, *range(1, rank + 1)), (0, *range(2, rank + 2), 1)
    return f"""\
import torch


{torch_source(front, "front")}

{torch_source(back, "back")}

def pack(inputs):
    weight = inputs[{program.inputs.index(inputs[found.weight])}].permute{places(weight, kernel_dims)}
    return [*inputs, weight.reshape{kernel}.contiguous()]


def reference(*packed):
    *inputs, weight = packed
    value = front(*inputs).permute{places(own, (*batch, *axes, *channels))}.reshape{given}
    value, weight = value.permute{last}, weight.permute{last}
    made = torch.nn.functional.conv{rank}d(value, weight, {options}).permute{first}
    return back(*inputs, made[:, {rows}].reshape{tuple(sizes[d] for d in result)})
"""
