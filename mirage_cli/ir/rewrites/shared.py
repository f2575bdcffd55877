"""Products as PyTorch takes them, where the rows of a block share a matrix.

    dot(X[m, k], W[E[m // 128], n, k]; k)
        -->  P[b, i, n] = dot(X[128*b + i, k], W[E[b], n, k]; k)
             P[m // 128, m % 128, n]

A copy of the matrix for each row would take 128 times the memory, and as long. So it is with heads that share keys,
`K[b, s, h // 4, d]`. Rows with a matrix each that a table names: `ir/rewrites/named.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from mirage_cli.ir.access import Index, index, quotient, remainder
from mirage_cli.ir.derived import DERIVED
from mirage_cli.ir.ops import OPS
from mirage_cli.ir.program import Eqn, Program, Tensor
from mirage_cli.ir.rewrites.blocked import Steps, steps_of
from mirage_cli.ir.rewrites.rewriter import Rewriter


@lru_cache(maxsize=16)
def shared(program: Program, whole: frozenset[str] = frozenset()) -> Program:
    """A program, lowered or not, in which rows that share a matrix are multiplied by it at once: to be evaluated
    operator by operator. Axes of outputs and inputs are what they were. whole: axes that are taken in no blocks."""
    return _Shared(program, whole).rewritten() or program


class _Shared(Rewriter):
    """steps: of the program's values."""

    def __init__(self, program: Program, whole: frozenset[str]) -> None:
        super().__init__(program)
        self.fixed |= whole
        self.steps: dict[str, Steps] = {t.name: steps_of(t, {}) for t in program.inputs}

    def of(self, e: Eqn) -> Iterable[Eqn]:
        row = None if e.op in DERIVED else OPS[e.op]
        follows = row is not None and row.kind in ("elementwise", "rename", "leaf")
        self.steps[e.out] = steps_of(e, self.steps) if follows else dict.fromkeys(e.dims, 1)
        if row is not None and row.kind == "contraction" and len(e.values) == 2:
            for read, other in (e.values, e.values[::-1]):
                for d, n in self.steps[read].items():
                    if self.fits(d, n, e, read, other):
                        return self.by_blocks(e, read, d, n)
        return (e,)

    def fits(self, d: str, n: int, e: Eqn, read: str, other: str) -> bool:
        """Whether an axis is taken in blocks of n positions: those for which `read` is the same, and `other` is not."""
        whole = n > 1 and self.dims[d] % n == 0 and d not in {*e.axes, *self.fixed}
        return whole and self.steps[other].get(d) == 1 and self.is_of_inputs(read, d)

    def is_of_inputs(self, value: str, d: str) -> bool:
        """Whether what a value has of an axis are reads of inputs, element by element."""
        known = self.known[value]
        if d not in known.dims or isinstance(known, Tensor):
            return True
        if known.op in DERIVED or OPS[known.op].kind not in ("elementwise", "rename"):
            return False
        return all(isinstance(self.known[v], Tensor) if known.names else self.is_of_inputs(v, d) for v in known.values)

    def by_blocks(self, e: Eqn, read: str, d: str, n: int) -> Iterator[Eqn]:
        block, within = self.new(f"{d}_block", self.dims[d] // n), self.new(f"{d}_in", n)
        args: dict[str, str] = {}
        for v in e.values:
            at = index({block: n} if v == read else {block: n, within: 1})
            made = [*self.placed(v, d, at)] if v == read else [self.read(self.name(v), v, {d: at})]
            args[v] = made[-1].out
            yield from made
        product = self.define(self.name(e.out), e.op, tuple(args[v] for v in e.values), e.axes)
        yield product
        of = index({d: 1})
        yield self.read(e.out, product.out, {block: quotient(of, n), within: remainder(of, n)})

    def placed(self, value: str, d: str, i: Index) -> Iterator[Eqn]:
        """The equations of a value that is made of reads of inputs, with an index in the place of an axis; the last
        one is the value's own."""
        known, name = self.known[value], self.name(value)
        if isinstance(known, Tensor):
            yield self.read(name, value, {d: i})
        elif known.names:
            source, *_ = known.values
            own = {a: j.within({d: i}) for a, j in known.names.items()}
            plain = {d: i} if d in self.known[source].dims and d not in own else {}
            yield self.read(name, source, own | plain)
        else:
            args = list(known.args)
            for at, v in enumerate(known.args):
                if isinstance(v, str) and d in self.known[v].dims:
                    made = [*self.placed(v, d, i)]
                    args[at] = made[-1].out
                    yield from made
            yield self.define(name, known.op, tuple(args), known.axes)
