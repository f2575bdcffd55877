"""Draws: random inputs of a program at small sizes, what it makes of them, and which draws say something at all.

Where roots meet, one random input in hundreds has squares under all of them. So the first input of each block is mended
(`verify.squares`), of the others many are looked through at once, along an axis of their own, and only what says
something about an output is then run by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from mirage_cli.ir.access import dims_of
from mirage_cli.ir.program import Program, below, tensor_type
from mirage_cli.verify.field import Field
from mirage_cli.verify.interpret import run_program
from mirage_cli.verify.residues import (
    MODULI,
    NO_GUESSES,
    UNDEFINED,
    Array,
    Value,
    aligned,
    as_field,
    no_square,
    same,
)
from mirage_cli.verify.semantics import FieldSemantics
from mirage_cli.verify.squares import DRAW, mended

AT_ONCE = 64
"""Draws that are looked through at once, at most."""

SPACE = 1 << 14
"""Elements of any one value of them, at most."""


def blocks(program: Program) -> Iterator[range]:
    """Draws from 1 on, in blocks that share their random functions: one, then twice as many as before."""
    sizes = program.sizes
    largest = max((prod(sizes[d] for d in {*e.dims, *e.acts_on}) for e in program.eqns if e.op != "rename"), default=1)
    start, count = 1, 1
    while True:
        yield range(start, start + count)
        start, count = start + count, max(1, min(2 * count, AT_ONCE, SPACE // largest))


class Draw:
    """One random input, and what the program makes of it.

    guesses: random bits behind the comparison of the program that had the fewest. entry_bits: of an entry of a table,
    which every draw draws anew.
    """

    def __init__(self, program: Program, seed: int, block: range, draw: int) -> None:
        self.semantics = FieldSemantics(seed * 4099 + block.start, program.sizes)
        self.inputs = {n: _at(x, draw - block.start) for n, x in _inputs(program, seed, block).items()}
        self.want = run_program(program, self.inputs, self.semantics)
        self.guesses = self.semantics.field.fewest_guesses
        self.entry_bits = _entry_bits(program)


def _entry_bits(program: Program) -> int:
    """Random bits of an entry of a table, of that with the fewest: two entries are the same by luck. One bit of each
    entry that is divided: every other one is where a quotient changes."""
    sizes, parts = program.sizes, program.divided()
    bits = [max(1, n.bit_length() - 1) for x in program.lookups() if (n := x.bounds(sizes)[1] + 1) > 1]
    by_number = Counter(x for x, _ in parts)
    bits += [max(1, prod(sizes[d] for d in dims_of(x.access)) // n) for x, n in by_number.items()]
    return min(bits, default=NO_GUESSES)


@lru_cache(maxsize=256)
def run_draw(program: Program, seed: int, block: range, draw: int) -> Draw:
    """The same for every μGraph that is tested at these sizes: functions in it are hashes and keep nothing."""
    return Draw(program, seed, block, draw)


@lru_cache(maxsize=1 << 12)
def told(program: Program, needed: frozenset[str], seed: int, block: range) -> Mapping[str, Array]:
    """For each of these outputs, which elements are without doubt in each draw of the block: bool[draw, *its axes].

    The answers are the same for every μGraph, so they are kept longer than draws, and nothing else is computed.
    """
    small = program if len(needed) == len(program.outputs) else program.only(needed)
    if len(block) == 1:
        want = run_draw(small, seed, block, block.start).want
    else:
        semantics = FieldSemantics(seed * 4099 + block.start, program.sizes)
        semantics.field = _Sketch(semantics.field.seed, program.sizes)
        want = run_program(small, _inputs(program, seed, block), semantics)
    sizes = program.sizes
    return {
        t.name: np.broadcast_to(
            aligned(sure(want[t.name]), want[t.name].dims, (DRAW, *t.dims)), (len(block), *(sizes[d] for d in t.dims))
        )
        for t in small.outputs
    }


def sure(x: Value) -> Array:
    """The elements that are without taint in some residue, or undefined: then anything is right."""
    _, certain = same(x, x)
    return certain if x.flags is None else certain | (x.flags == UNDEFINED)


@lru_cache(maxsize=64)
def _inputs(program: Program, seed: int, block: range) -> Mapping[str, Value]:
    """Every input, with the draws of the block as its first axis. The draw 0 is left as it comes."""
    field = Field(seed * 4099 + block.start, program.sizes)
    shapes = {DRAW: len(block), **program.sizes}
    divisors: dict[str, set[int]] = {}
    for x, by in program.divided():
        divisors.setdefault(x.table, set()).add(by)
    found = {
        t.name: field.draw(
            (DRAW, *t.dims),
            tensor_type(t),
            shapes,
            below(t, shapes),
            t.distinct,
            sorted(divisors.get(t.name, ())),
            t.padded,
        )
        for t in program.inputs
    }
    return found if len(block) > 1 or not block.start else mended(program, found, seed * 4099 + block.start)


def _at(x: Value, place: int) -> Value:
    """One draw of an input."""
    return replace(x, dims=x.dims[1:], data=x.data[:, place] if x.kind == "field" else x.data[place])


class _Sketch(Field):
    """The same but for elements in doubt, which are any numbers: logarithms are what takes time."""

    def log(self, x: Value) -> Value:
        x = as_field(x)
        doubt = no_square(x.data) if x.taint is None else no_square(x.data) | x.taint
        y = super().log(replace(x, data=np.where(doubt, 1, x.data), taint=doubt))
        if y.taint is None:
            return y
        return replace(y, data=np.where(y.taint, 1 + x.data % (MODULI[-1] - 1), y.data))
