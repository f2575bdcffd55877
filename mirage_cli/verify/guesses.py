"""Guesses: the random answers of comparisons, and what they tell.

A comparison that is not exact is answered by one bit of a hash of its draw and of both sides. So what a μGraph makes of
one answer is seen in every other element, and what it makes where k comparisons have given certain answers, as in
`where(a < b and c < d, x, y)`, in one element of 2**k. A row that is reduced is one such element, and takes two answers
of each of its masks: a softmax of a single number tells nothing of it. So it is with masks and integers that are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, log, log1p, prod

import numpy as np

from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program, Tensor, tensor_type
from mirage_cli.verify.residues import DRAW, NO_GUESSES, Array

MANY = 1000
"""Comparisons of which one certain answer each never meets."""


class Guesses:
    """Those that a program makes, and then those of μGraphs.

    made: how many different ones each comparison made that made some, in each draw.
    of_program: whether what comes is the program's. alone: whether a μGraph has made others than the program. It stays
        so: what one μGraph has computed, others may find.
    """

    def __init__(self) -> None:
        self.made: list[list[int]] = []
        self.of_program, self.alone = True, False
        self._known: list[Array] = []

    def ended(self) -> None:
        """The program has made its guesses."""
        self.of_program = False
        self._known = [np.unique(np.concatenate(self._known))] if self._known else []

    def note(self, hashes: Array, guessed: Array, dims: tuple[str, ...]) -> None:
        """The guesses of one comparison. hashes: what they follow from, with these axes. guessed: where the comparison
        is one."""
        if self.alone or not guessed.any():
            return
        hashes, guessed = np.broadcast_arrays(hashes, guessed)
        if DRAW in dims:
            hashes, guessed = (np.moveaxis(x, dims.index(DRAW), 0) for x in (hashes, guessed))
        found, first = np.unique(hashes[guessed], return_index=True)
        if not self.of_program:
            self.alone = not (self._known and np.isin(found, self._known[0], assume_unique=True).all())
            return
        self._known.append(found)
        draws = len(hashes) if DRAW in dims else 1
        each = np.bincount(np.flatnonzero(guessed)[first] * draws // guessed.size, minlength=draws)
        self.made.append(np.where(each > 0, each, NO_GUESSES).tolist())


@dataclass(frozen=True, slots=True)
class Met:
    """How a value that is random meets others in what is made of it.

    answers: of how many of its elements certain values are needed at once. row: how many there are in what is reduced.
    """

    answers: int
    row: int


def met(program: Program, output: Tensor) -> dict[str, Met]:
    """How each comparison, and each input of masks or integers that is a value, meets others in an output."""
    eqns = program.only([output.name]).eqns
    dims = {t.name: t.dims for t in program.inputs} | {e.out: e.dims for e in eqns}
    values = {v for e in eqns for v in (e.values[:1] if e.op == "rename" else e.values)}
    found = [t.name for t in program.inputs if t.name in values and tensor_type(t) != "float"]
    found += [e.out for e in eqns if e.type == "bool"]
    return {v: _met(v, eqns, dims, program.sizes) for v in found}


def _met(value: str, eqns: Iterable[Eqn], dims: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int]) -> Met:
    along, reduced = {value: {*dims[value]}}, set[str]()
    for e in eqns:
        for v in (v for v in e.values if v in along):
            if OPS[e.op].kind in ("reduction", "contraction"):
                reduced |= along[v].intersection(e.axes)
            moved = {*e.dims} - {*dims[v]} if e.op == "rename" else set[str]()
            along[e.out] = along.get(e.out, set()) | (along[v] & {*e.dims}) | moved
    return Met(2 if reduced else 1, prod(sizes[d] for d in reduced))


def bits_of(guesses: int, joined: int) -> float:
    """-log2 of how likely so many elements all miss what is seen where so many answers are certain ones."""
    if joined < 2:
        return guesses if joined else inf
    return -guesses * log1p(-(2.0 ** -min(joined, MANY))) / log(2)


def compared_alone(program: Iterable[Eqn], graph: Iterable[Eqn]) -> int:
    """How many different comparisons a μGraph has more than the program: one at least."""
    more = Counter(_comparisons(graph)) - Counter(_comparisons(program))
    return max(1, more.total())


def _comparisons(eqns: Iterable[Eqn]) -> list[tuple[object, ...]]:
    """The different comparisons, without the names of values."""
    different = {(e.op, e.args) for e in eqns if OPS[e.op].compares}
    return [(op, *(a for a in args if not isinstance(a, str))) for op, args in different]
