"""Draws: random inputs of a program at small sizes, its results, and in which draws these are certain.

Where roots meet, one random input in hundreds has squares under all of them. So the first input of each block is mended
(`verify.squares`), and of others many are looked through at once, along an axis of their own. Those in which an output
is certain are then run at once too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log2, prod

import numpy as np

from mirage_cli.ir.access import dims_of
from mirage_cli.ir.program import Program, Tensor, below, tensor_type
from mirage_cli.verify.field import Field
from mirage_cli.verify.fieldsemantics import FieldSemantics
from mirage_cli.verify.guesses import Guesses, met
from mirage_cli.verify.interpret import evaluated, outputs_of, run_program
from mirage_cli.verify.reduced import largest_array
from mirage_cli.verify.residues import (
    DRAW,
    MODULI,
    NO_GUESSES,
    UNDEFINED,
    Array,
    Residues,
    aligned,
    as_field,
    no_square,
    same,
)
from mirage_cli.verify.squares import mended
from mirage_cli.verify.stretches import compared

BLOCK = 256
"""Draws that share their random operations, at most."""

SPACE = 1 << 18
"""Elements of any one value of the draws that are run at once, at most: 8 MB of residues. The arrays of one draw are so
small that numpy's calls take most of the time of a run, and programs that read tables need dozens of draws."""


def at_once(program: Program) -> int:
    """How many draws may be run at once: without inputs, nothing has an axis of draws."""
    return max(1, SPACE // largest_array(program, program.sizes)) if program.inputs else 1


class Draws:
    """Some random inputs of a block, and what the program makes of them, each with the axis of draws in front.

    guesses: how many each comparison of the program made that made some, by its value, in each draw.
    """

    def __init__(self, program: Program, seed: int, block: range, draws: Sequence[int]) -> None:
        self.draws = draws
        self.semantics = FieldSemantics(seed * 4099 + block.start, program.sizes)
        self.semantics.field.draws = np.array(draws, dtype=np.uint64)
        places = [draw - block.start for draw in draws]
        self.inputs = {n: _at(x, places) for n, x in _inputs(program, seed, block).items()}
        self.of_comparisons = self.semantics.field.guesses = Guesses()
        env = dict(self.inputs)
        self.guesses: dict[str, list[int]] = {}
        for name in evaluated(program, env, self.semantics):
            if len(self.of_comparisons.made) > len(self.guesses):
                self.guesses[name] = self.of_comparisons.made[-1]
        self.results = outputs_of(program, env, self.semantics)
        self.of_comparisons.ended()


def edges_of(program: Program) -> dict[str, list[int]]:
    """For each table that is read by, where comparisons of positions with numbers change, if that is in two places at
    least: of one, two entries would be the same too often."""
    near = {place + n for _, place in compared(program.eqns) for n in (-1, 0, 1)}
    ends = {x.table: x.bounds(program.sizes)[1] + 1 for x in program.lookups()}
    found = {table: sorted(n for n in near if 0 <= n < end) for table, end in ends.items()}
    return {table: some for table, some in found.items() if len(some) > 1}


def drawn_bits(program: Program, output: Tensor) -> int:
    """Random bits of what a draw draws besides residues, of that with the fewest: an integer of a few, or a mask. Of
    those that are values, what the output needs counts.

    One bit of an output that is a mask or of integers itself, as each of its elements is right by luck in every other
    draw.

    Two entries of a table are the same by luck: of n, with probability 1 / n, and with 1 / (4 m) + 3 / (4 n) where
    every other one is one of m edges. One bit of a table that names one entry, or none. One bit of each entry that is
    divided: every other one is where a quotient changes. One bit of two integers, or elements of a mask, that are
    values: that a row of a mask holds two elements, say, which one that holds one would not tell.
    """
    sizes, parts, edges = program.sizes, program.divided(), edges_of(program)
    named = {x: x.bounds(sizes)[1] + 1 for x in program.lookups()}
    tables = [(n, len(edges.get(x.table, ()))) for x, n in named.items() if n > 1 or x.padded]
    bits = [max(1, int(-log2(1 / (4 * m) + 3 / (4 * n)))) if m else max(1, n.bit_length() - 1) for n, m in tables]
    by_number = Counter(x for x, _ in parts)
    bits += [max(1, prod(sizes[d] for d in dims_of(x.access)) // n) for x, n in by_number.items()]
    bits += [1] * (tensor_type(output) != "float")
    values = met(program, output)
    bits += [answers(t, sizes) for t in program.inputs if t.name in values]
    return min(bits, default=NO_GUESSES)


def answers(t: Tensor, sizes: Mapping[str, int]) -> int:
    """How many random answers a draw gives by an input of integers, or a mask: two of its elements are one."""
    return max(1, prod(sizes[d] for d in t.dims) // 2)


@lru_cache(maxsize=256)
def run_draws(program: Program, seed: int, block: range, draws: tuple[int, ...]) -> Draws:
    """The same for every μGraph that is tested at these sizes: functions in it are hashes and keep nothing."""
    return Draws(program, seed, block, draws)


DOUBT, KNOWN, OPEN = 0, 1, 2
"""The status of an element in a draw of the program: nothing is certain of it (a root of a non-square is behind it),
its value is certain, or it has no value, and whatever the μGraph makes is right."""


@lru_cache(maxsize=1 << 12)
def statuses(program: Program, needed: frozenset[str], seed: int, block: range) -> Mapping[str, Array]:
    """The status of each element of these outputs in each draw of the block: int8[draw, *its axes].

    The answers are the same for every μGraph, so they are kept longer than draws. Of several draws nothing else is
    computed; a block's only draw is mended, and hardly ever in vain: so it is run at once as it will be compared.
    """
    if len(block) == 1:
        found = _statuses(program, run_draws(program, seed, block, tuple(block)).results, 1)
        return {name: found[name] for name in needed}
    small = program if len(needed) == len(program.outputs) else program.only(needed)
    semantics = FieldSemantics(seed * 4099 + block.start, program.sizes)
    semantics.field = _Sketch(semantics.field.seed, program.sizes)
    inputs, step = _inputs(program, seed, block), at_once(small)
    parts: list[Mapping[str, Array]] = []
    for start in range(0, len(block), step):
        places = [*range(start, min(start + step, len(block)))]
        semantics.field.draws = np.array([block.start + n for n in places], dtype=np.uint64)
        found = run_program(small, {n: _at(x, places) for n, x in inputs.items()}, semantics)
        parts.append(_statuses(small, found, len(places)))
    return {t.name: np.concatenate([part[t.name] for part in parts]) for t in small.outputs}


def _statuses(program: Program, results: Mapping[str, Residues], draws: int) -> Mapping[str, Array]:
    """The statuses of the elements of all outputs, from the results of so many draws."""
    sizes = program.sizes
    found: dict[str, Array] = {}
    for t in program.outputs:
        x = aligned(status_of(results[t.name]), results[t.name].dims, (DRAW, *t.dims))
        found[t.name] = np.broadcast_to(x, (draws, *(sizes[d] for d in t.dims)))
    return found


def status_of(x: Residues) -> Array:
    """The status of each element. Those without taint in some residue are known."""
    _, certain = same(x, x)
    known = np.where(certain, KNOWN, DOUBT).astype(np.int8)
    return known if x.flags is None else np.where(x.flags == UNDEFINED, OPEN, known).astype(np.int8)


@lru_cache(maxsize=64)
def _inputs(program: Program, seed: int, block: range) -> Mapping[str, Residues]:
    """Every input, with the draws of the block as its first axis. The draw 0 is left as it comes."""
    field = Field(seed * 4099 + block.start, program.sizes)
    shapes = {DRAW: len(block), **program.sizes}
    divisors: dict[str, set[int]] = {}
    for x, by in program.divided():
        divisors.setdefault(x.table, set()).add(by)
    edges = edges_of(program)
    found = {
        t.name: field.draw(
            (DRAW, *t.dims),
            tensor_type(t),
            shapes,
            below(t, shapes),
            t.distinct,
            sorted(divisors.get(t.name, ())),
            edges.get(t.name, ()),
            t.padded,
        )
        for t in program.inputs
    }
    if len(block) > 1 or not block.start:
        return found
    return mended(program, found, seed * 4099 + block.start, block.start)


def _at(x: Residues, places: list[int]) -> Residues:
    """Some draws of an input."""
    return replace(x, data=x.data[:, places] if x.kind == "field" else x.data[places])


class _Sketch(Field):
    """The same but for elements in doubt, which are any numbers: logarithms are what takes time. It counts nothing."""

    def __init__(self, seed: int, sizes: Mapping[str, int]) -> None:
        super().__init__(seed, sizes)
        self.guesses = None

    def log(self, x: Residues) -> Residues:
        x = as_field(x)
        doubt = no_square(x.data) if x.taint is None else no_square(x.data) | x.taint
        y = super().log(replace(x, data=np.where(doubt, 1, x.data), taint=doubt))
        if y.taint is None:
            return y
        return replace(y, data=np.where(y.taint, 1 + x.data % (MODULI[-1] - 1), y.data))
