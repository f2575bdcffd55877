"""Loads of words of 32 bits in which several numbers lie, of which each lane takes its own.

    S = load(S[n])   -->   S = the last or the first 16 bits of load(S as words[n // 2])

An asynchronous copy moves 4 bytes of a thread or more (`ir/late.py`). Where threads have less than that of a block,
Triton loads it in the iteration that needs it; as words, it is fetched like the others, in earlier iterations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from mirage_cli.codegen import axisnames, nodes
from mirage_cli.codegen.access import multiplies
from mirage_cli.codegen.blocks import ScheduledKernel
from mirage_cli.codegen.nodes import WORD_BITS
from mirage_cli.ir import late
from mirage_cli.ir.access import strides
from mirage_cli.ir.mugraph import Load
from mirage_cli.ir.placement import Loop
from mirage_cli.ir.program import DTYPE_BYTES

TYPES = ("float16", "bfloat16", "int8")
"""Of numbers that are taken from words."""


def of_few_bytes(k: ScheduledKernel, boxes: Collection[str]) -> Mapping[str, tuple[str, int]]:
    """Loads of loops of which threads have less than a copy moves, and that lie in whole words along their only axis:
    with that, and a word for each number. boxes: loads through descriptors."""
    found: dict[str, tuple[str, int]] = {}
    for loop in k.placement.loops:
        if k.schedule.stages > 1 and multiplies(loop, k.dims, k.block):
            for x in few(k, loop):
                axes = k.axes_of(x.out)
                if len(axes) == 1 and x.out not in {*boxes, *k.paired} and in_whole_words(k, x, axes[0], 1):
                    found[x.out] = axes[0], 1
    return found


def few(k: ScheduledKernel, loop: Loop) -> list[Load]:
    """Loads of a loop of which each thread has less than a copy moves."""
    loads = [x for x in loop.steps if isinstance(x, Load)]
    blocks = [_block(k, x) for x in loads]
    return [x for x, small in zip(loads, late.few(blocks, 32 * k.schedule.warps), strict=True) if small]


def _block(k: ScheduledKernel, x: Load) -> late.Block:
    axes, element = k.axes_of(x.out), DTYPE_BYTES[k.tensors[x.buffer].dtype]
    return late.Block(frozenset(axes), element, k.elements(axes), k.elements(axes) * element)


def room_of(k: ScheduledKernel, x: Load) -> int:
    """How many elements of a load share a word."""
    return WORD_BITS // 8 // DTYPE_BYTES[k.tensors[x.buffer].dtype]


def in_whole_words(k: ScheduledKernel, x: Load, dim: str, count: int) -> bool:
    """Whether the positions of a load along an axis, its only one, are neighbours in memory, of which so many lie in
    one word, and its tensor, rows and blocks are whole words. What a kernel changes is read where it lies."""
    t, room = k.tensors[x.buffer], max(room_of(k, x), 1)
    if k.axes_of(x.out) != (dim,) or t.dtype not in TYPES or room < count or k.block.get(dim, 1) % room:
        return False
    written = x.buffer in {y.name for y in k.graph.outputs} | k.graph.changed
    if written or x.buffer in k.live or dim in k.repeats(x) or {*t.dims, *x.dims} & k.dynamic:
        return False
    if any(dim in i.dims and not i.affine for i in x.access) or prod(k.sizes[d] for d in t.dims) % room:
        return False
    if any(any(i.leaves(k.sizes[d], k.sizes)) for d, i in zip(t.dims, x.access, strict=True)):
        return False
    steps, start = strides(x.access, t.steps(k.sizes))
    others = [n for a, n in steps.items() if a != dim]
    return steps.get(dim) == 1 and not any(n % room for n in (start, *others))


def number(k: ScheduledKernel, x: Load, place: int = 0) -> nodes.OfWords:
    """Of each so many numbers of a load along its axis the one at a place."""
    dim, count = k.worded[x.out]
    block = nodes.Value(x.out, (axisnames.shared(dim, count),))
    return nodes.OfWords(block, dim, count, place, room_of(k, x), k.tensors[x.buffer].dtype)
