"""Rows with a matrix each that a table names, as a product that is evaluated for the rows of a matrix at once.

    dot(X[t, k], W[E[t], n, k]; k)  -->  a `Named` of X and W, with the roles e: of all matrices, E[t]: the row's own

A copy of the matrix for each row would take as much memory as that, and products with all matrices their time. Programs
keep the product, which says all of it: those that evaluate one operator by operator see it with `Named`s in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mirage_cli.ir.access import Index
from mirage_cli.ir.program import Eqn, Program
from mirage_cli.ir.rewrites.skewed import OverEntries

LEAST_ROWS = 2
"""For each matrix: of fewer rows, a copy of the matrix for each is no more than what they share."""


@dataclass(frozen=True, slots=True)
class Named(Eqn):
    """The product of a value with the one of several matrices that an index names at each of its rows.

    entry: the axis of the matrices, of one of the operands. index: looks up a position along it.
    """

    entry: str
    index: Index

    @property
    def acts_on(self) -> frozenset[str]:
        """The axes whose positions it mixes, or tells apart."""
        return frozenset((self.entry, *self.axes, *self.index.dims))


@lru_cache(maxsize=16)
def by_names(program: Program) -> Program:
    """A program, lowered or not, with `Named`s where many rows share few matrices."""
    return _ByNames(program, in_order=False).rewritten() or program


class _ByNames(OverEntries):
    def fits(self, e: Eqn, d: str, i: Index, other: str) -> bool:
        """Whether there are many rows for each matrix too."""
        return super().fits(e, d, i, other) and prod(self.dims[a] for a in i.dims) >= LEAST_ROWS * self.dims[d]

    def read_afterwards(self, e: Eqn, read: str, d: str, i: Index) -> Iterator[Eqn]:
        row, rows, made = self.all_rows(e, read, d)
        own = self.known[rows].dims
        if {*i.dims} & {*own} or not {*e.axes} <= {*own} & {*self.known[next(v for v in e.values if v != read)].dims}:
            yield e  # rows have more than the matrix of their own
            return
        yield from made
        args = tuple(rows if v == read else v for v in e.values)
        yield Named(e.out, e.op, args, e.axes, e.dims, e.type, row, i)
