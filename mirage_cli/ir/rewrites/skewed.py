"""Products with skewed operands: a read by the difference of two axes is moved from the operand to the product.

    dot(Q, R[q - s + n, d]; d)  -->  dot(Q, R; d)[q, r = q - s + n]

With the skewed operand each position q is multiplied by rows of its own: that is no product of matrices. The product
with all rows is one; the relative positions of Transformer-XL and DeBERTa are computed so.

    dot(H[N[n, k], d], W; d)  -->  dot(H, W; d)[row = N[n, k]]

So are rows that a table names more than once: the neighbours in a graph, each of which is multiplied once.

    dot(X[t, k], W[E[t], n, k]; k)  -->  dot(X, W; k)[t, e = E[t], n]

Where each row has a matrix that a table names (an expert's), products with all of them take a matrix once for all rows,
and as many times the arithmetic as there are matrices. No value of another matrix gets into a row.

    dot(X[t, k], W[E[t], n, k]; k)  -->  dot(where(e == E[t], X, 0), W; k, e)[t, n]

The sum over the matrices too is one product. Its loop goes over the matrices that the rows of its block name, and those
between: few, where rows are sorted by their matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import prod

from mirage_cli.ir.access import Index, Lookup, index
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program, Tensor
from mirage_cli.ir.rewrites.rewriter import Rewriter

MOST_WORK = 4
"""The most rows of the operand for each row that one position reads."""
LEAST_READS = 4
"""How often each row is read, at least, on average, where a table names the rows."""
MOST_ENTRIES = 64
"""The most matrices that all rows are multiplied by, where a table names one for each."""


def skewed(program: Program) -> Program | None:
    """A lowered program with its skewed products read after they are taken; None where there is none."""
    return _Skewed(program).rewritten()


def by_entries(program: Program) -> Program | None:
    """A program whose rows are multiplied by all matrices that a table may name for them, of which there are no more
    than rows, and read afterwards; None where there is none. Products that are not read are 0, so that a block of rows
    of which none names a matrix need not be multiplied by it."""
    return _ByEntries(program, in_order=False).rewritten()


def over_entries(program: Program, *, in_order: bool = False) -> Program | None:
    """A program whose rows are multiplied by all matrices that a table may name for them, and are 0 for those that it
    does not; None where there is none. A matrix that is infinite, or NaN, reaches other rows of a block. in_order: only
    by those of tables that are drawn sorted."""
    return OverEntries(program, in_order).rewritten()


class _Skewed(Rewriter):
    def of(self, e: Eqn) -> Iterable[Eqn]:
        if e.op in OPS and OPS[e.op].kind == "contraction" and len(e.values) == 2:
            for read, other in (e.values, e.values[::-1]):
                if (at := self.moved(e, read, other)) is not None:
                    return self.read_afterwards(e, read, *at)
        return (e,)

    def moved(self, e: Eqn, read: str, other: str) -> tuple[str, Index] | None:
        """The axis of `read`'s source that a skewed index reads, and that index; None where `read` is not skewed.

        None of its axes is summed, or in another index of `read`.
        """
        known = self.known[read]
        names = known.names if isinstance(known, Eqn) else {}
        several = [(d, i) for d, i in names.items() if i.axis is None]
        if len(several) != 1:
            return None
        ((d, i),) = several
        elsewhere = {a for x, j in names.items() if x != d for a in j.dims}
        if d in self.fixed or {*i.dims} & ({*e.axes} | elsewhere | self.fixed):
            return None
        return (d, i) if self.fits(e, d, i, other) else None

    def fits(self, e: Eqn, d: str, i: Index, other: str) -> bool:
        """Whether the index is skewed: affine in several axes, of which `other` has some but not all.

        So is one by a table that `other` knows nothing of, if each row is read several times, as a product of few
        columns.
        """
        beside = self.known[other].dims
        own = [a for a in i.dims if a not in beside]
        read_rows = prod(self.dims[a] for a in own)
        if i.affine:
            return 0 < len(own) < len(i.dims) and self.dims[d] <= MOST_WORK * read_rows
        columns = prod(self.dims[a] for a in beside if a not in e.axes)
        narrow = columns <= prod(self.dims[a] for a in e.axes)
        several_times = bool(i.lookups) and LEAST_READS * self.dims[d] <= read_rows
        return several_times and narrow and len(own) == len(i.dims)

    def read_afterwards(self, e: Eqn, read: str, d: str, i: Index) -> Iterator[Eqn]:
        """The product with all rows of the source's axis d, and the read of it by the index i."""
        row, rows, made = self.all_rows(e, read, d)
        yield from made
        product = self.name(f"{e.out}_{row}")
        yield self.define(product, e.op, tuple(rows if v == read else v for v in e.values), e.axes)
        own = [*self.kept(product, row, i)]
        yield from own
        yield self.read(e.out, own[-1].out if own else product, {row: i})

    def all_rows(self, e: Eqn, read: str, d: str) -> tuple[str, str, list[Eqn]]:
        """The axis of all rows along the source's axis d, the operand that has it, and how that is made."""
        known = self.known[read]
        assert isinstance(known, Eqn)
        row = self.axis(e, d, self.dims[d], (d,))
        names = {a: j for a, j in known.names.items() if a != d} | ({d: index({row: 1})} if row != d else {})
        rows, *_ = known.values
        if not names:
            return row, rows, []
        skewless = self.read(self.name(f"{read}_{row}"), rows, names)
        return row, skewless.out, [skewless]

    def kept(self, _product: str, _row: str, _i: Index) -> Iterator[Eqn]:
        """What else is made of the product with all rows, of which one is read by an index."""
        yield from ()


class OverEntries(_Skewed):
    """in_order: only by tables that are drawn sorted."""

    def __init__(self, program: Program, in_order: bool) -> None:
        super().__init__(program)
        self.in_order = in_order

    def fits(self, e: Eqn, d: str, i: Index, other: str) -> bool:
        """Whether the index is a table's alone, by positions of its axes, and all rows of `other` are of these: each
        has one of several matrices."""
        if len(i.terms) != 1 or i.offset or self.dims[d] == 1:
            return False
        ((entry, _),) = i.terms
        if not isinstance(entry, Lookup) or any(j.axis is None for j in entry.access):
            return False
        table = self.known[entry.table]
        if self.in_order and not (isinstance(table, Tensor) and table.drawn == "sorted"):
            return False
        rows = {a for a in self.known[other].dims if a not in e.axes}
        return bool(rows) and rows <= {*i.dims}

    def read_afterwards(self, e: Eqn, read: str, d: str, i: Index) -> Iterator[Eqn]:
        """The sum over the products with all rows of the axis d, which are of 0 but for the one that i names."""
        row, rows, made = self.all_rows(e, read, d)
        (other,) = (v for v in e.values if v != read)
        mask = [*self.named(row, i)]
        yield from (*made, *mask)
        yield (x := self.define(self.name(f"{other}_own"), "where", (mask[-1].out, other, Fraction(0)), ()))
        yield self.define(e.out, e.op, tuple(rows if v == read else x.out for v in e.values), (*e.axes, row))

    def named(self, row: str, i: Index) -> Iterator[Eqn]:
        """Last, whether the table of an index names the position along the axis of all rows."""
        ((entry, _),) = i.terms
        assert isinstance(entry, Lookup)
        names = {d: j for d, j in zip(self.known[entry.table].dims, entry.access, strict=True) if j.axis != d}
        at = entry.table
        if names:
            yield (read := self.read(self.name(f"{at}_at"), at, names))
            at = read.out
        yield (here := self.define(self.name(f"{row}_at"), "index", (), (row,)))
        yield self.define(self.name("own"), "eq", (here.out, at), ())


class _ByEntries(OverEntries):
    def fits(self, e: Eqn, d: str, i: Index, other: str) -> bool:
        """Whether there are few matrices too, for so many rows."""
        return super().fits(e, d, i, other) and self.dims[d] <= min(MOST_ENTRIES, prod(self.dims[a] for a in i.dims))

    def read_afterwards(self, e: Eqn, read: str, d: str, i: Index) -> Iterator[Eqn]:
        yield from _Skewed.read_afterwards(self, e, read, d, i)

    def kept(self, product: str, row: str, i: Index) -> Iterator[Eqn]:
        """Where the table names the matrix, the product, and else 0."""
        if {*i.dims} <= {*self.known[product].dims}:
            mask = [*self.named(row, i)]
            yield from mask
            yield self.define(self.name(f"{product}_own"), "where", (mask[-1].out, product, Fraction(0)), ())
