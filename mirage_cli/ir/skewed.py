"""Products with skewed operands: a read by the difference of two axes is moved from the operand to the product.

    dot(Q, R[q - s + n, d]; d)  -->  dot(Q, R; d)[q, r = q - s + n]

With the skewed operand each position q is multiplied by rows of its own: that is no product of matrices. The product
with all rows is one; the relative positions of Transformer-XL and DeBERTa are computed so.

    dot(H[N[n, k], d], W; d)  -->  dot(H, W; d)[row = N[n, k]]

So are rows that a table names more than once: the neighbours in a graph, each of which is multiplied once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from mirage_cli.ir.access import Index, index
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program
from mirage_cli.ir.rewriter import Rewriter

MOST_WORK = 4
"""The most rows of the operand for each row that one position reads."""
LEAST_READS = 4
"""How often each row is read, at least, on average, where a table names the rows."""


def skewed(program: Program) -> Program | None:
    """A lowered program with its skewed products read after they are taken; None where there is none."""
    return _Skewed(program).rewritten()


class _Skewed(Rewriter):
    def of(self, e: Eqn) -> Iterable[Eqn]:
        if OPS[e.op].kind == "contraction" and len(e.values) == 2:
            for read, other in (e.values, e.values[::-1]):
                if (at := self.moved(e, read, other)) is not None:
                    return self.read_afterwards(e, read, *at)
        return (e,)

    def moved(self, e: Eqn, read: str, other: str) -> tuple[str, Index] | None:
        """The axis of `read`'s source that a skewed index reads, and that index; None where `read` is not skewed.

        An index is skewed if it is affine in several axes, of which `other` has some but not all, and none is summed.
        So is one by a table that `other` knows nothing of, if each row is read several times, as a product of few
        columns.
        """
        known, beside = self.known[read], self.known[other].dims
        names = known.names if isinstance(known, Eqn) else {}
        several = [(d, i) for d, i in names.items() if i.axis is None]
        if len(several) != 1:
            return None
        ((d, i),) = several
        own = [a for a in i.dims if a not in beside]
        elsewhere = {a for x, j in names.items() if x != d for a in j.dims}
        read_rows = prod(self.dims[a] for a in own)
        if i.affine:
            fits = 0 < len(own) < len(i.dims) and self.dims[d] <= MOST_WORK * read_rows
        else:
            columns = prod(self.dims[a] for a in beside if a not in e.axes)
            narrow = columns <= prod(self.dims[a] for a in e.axes)
            several_times = bool(i.lookups) and LEAST_READS * self.dims[d] <= read_rows
            fits = several_times and narrow and len(own) == len(i.dims)
        return (d, i) if fits and d not in self.fixed and not {*i.dims} & ({*e.axes} | elsewhere | self.fixed) else None

    def read_afterwards(self, e: Eqn, read: str, d: str, i: Index) -> Iterator[Eqn]:
        """The product with all rows of the source's axis d, and the read of it by the index i."""
        known = self.known[read]
        assert isinstance(known, Eqn)
        row = self.axis(e, d, self.dims[d], (d,))
        names = {a: j for a, j in known.names.items() if a != d} | ({d: index({row: 1})} if row != d else {})
        rows, *_ = known.values
        if names:
            yield (skewless := self.read(self.name(f"{read}_{row}"), rows, names))
            rows = skewless.out
        product = self.name(f"{e.out}_{row}")
        yield self.define(product, e.op, tuple(rows if v == read else v for v in e.values), e.axes)
        yield self.read(e.out, product, {row: i})
